"""The arguments of a tool call as the tool receives them, and an approval with changed arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import asdict, define, evolve, field

from noetic_py.core.codec.text import dump
from noetic_py.core.codec.wire import MAX_ITEM_BYTES
from noetic_py.core.items import FunctionCall, InputText
from noetic_py.core.requests import Answer
from noetic_py.core.types import is_dict
from noetic_py.engine.frame import Frame
from noetic_py.errors import ArgumentsRefused, ToolArgumentsInvalid
from noetic_py.errors.redaction import MASK, redact
from noetic_py.journal.records import Pending
from noetic_py.memory.layer import MemoryLayer, answers
from noetic_py.tools import Tool
from noetic_py.tools.confidential import object_of, restored, secret_parameters, text_of
from noetic_py.tools.permissions import PermissionRule, decide

__all__ = ["Received", "changed_arguments", "check_changed", "plain", "rules_for", "with_changed_arguments"]


@define(eq=False)
class Received:
    """A call of a model, as it was sent and as the tool will receive it.

    Arguments are parsed once, so that what was judged is what the function gets.

    Attributes:
        tool: The tool, `None` for one that there is not.
        sent: The call as it was sent, or as a hook or a layer has changed it, with masks for secret arguments.
        given: The arguments without the masks, where there are any.
    """

    tool: Tool[..., Any, Any, Any] | None
    sent: FunctionCall
    given: str | None = None
    _values: dict[str, object] | None = field(default=None, alias="values")
    _call: FunctionCall | None = field(default=None, alias="call")

    @property
    def values(self) -> dict[str, object]:
        """What the function gets, by parameter; what was not sent is absent.

        Raises:
            ToolArgumentsInvalid: The arguments do not fit.
        """
        if self._values is None and self.tool is not None:
            text, secret = self.sent.arguments, self.tool.secret_parameters
            self._values = self.tool.parse(text if self.given is None else restored(text, self.given, secret))
        return self._values or {}

    def check(self) -> None:
        """Refuse arguments that do not fit, before anybody is asked about them.

        Raises:
            ToolArgumentsInvalid: They do not fit.
        """
        self._values = self.values

    @property
    def call(self) -> FunctionCall:
        """The call with the arguments that the tool will receive; as it was sent where they do not fit."""
        if self._call is None:
            self._call = self._as_received()
        return self._call

    def _as_received(self) -> FunctionCall:
        if self.tool is None:
            return self.sent
        try:
            text = text_of(self.tool.received(self.values))
        except ToolArgumentsInvalid:
            return self.sent
        return self.sent if text == self.sent.arguments else evolve(self.sent, arguments=text)

    def changed(self, made: FunctionCall) -> Received:
        """The call as an approver who was shown `call` wants it made: what is as it was there stays as it was sent."""
        if made.arguments == self.call.arguments:
            return self
        shown, wanted = object_of(self.call.arguments), object_of(made.arguments)
        sent = object_of(self.sent.arguments)
        if shown is None or wanted is None or sent is None:
            return Received(self.tool, made, self.given)
        # By their text: in Python 1, 1.0 and True are equal.
        before = {name: text_of(value) for name, value in shown.items()}
        new = {name: value for name, value in wanted.items() if before.get(name) != text_of(value)}
        same = {name: sent[name] for name in wanted if name not in new and name in sent}
        return Received(self.tool, evolve(made, arguments=text_of(same | new)), self.given)


def plain(arguments: str) -> str:
    """Arguments as JSON text that is the same for the same ones, and for no others."""
    return json.dumps(json.loads(arguments if arguments.strip() else "{}"), sort_keys=True)


_PROBLEMS = 5
_LARGEST = MAX_ITEM_BYTES // 8
"""So many bytes of arguments leave room in the item that tells the model of them."""


# ------------------------------------------------------------------------------------------------------- the answer


def rules_for(frame: Frame, tool: Tool[..., Any, Any, Any]) -> list[dict[str, Any]] | None:
    """What the permission layers of a call say of its tool, for taking an answer without the flow's code."""
    from noetic_py.engine.layers.handles import Live

    found: list[dict[str, Any]] = []
    for layer in frame.x.layers.by_id.values():
        if answers(type(layer), "call_rules") and layer.id in frame.scope.layer_states:
            bound: MemoryLayer[Any] = layer.bound(Live(frame, layer, reads=True))
            said = bound.call_rules()
            if said is not None:
                rules, otherwise = said
                found.append({"rules": [asdict(each) for each in rules], "otherwise": otherwise})
    return found or None


def check_changed(answer: Answer, record: Pending) -> None:
    """Refuse changed arguments that the call could not have been made with.

    Raises:
        ArgumentsRefused: They do not fit the tool's schema, hold a secret, or a permission rule denies them.
        ConfigError: The schema that the request holds is not a JSON schema; code `"tool-schema"`.
    """
    if answer.arguments is None:
        return
    problem = next(_problems(dict(answer.arguments), record), None)
    if problem is not None:
        raise ArgumentsRefused(
            f"request {answer.key}: the changed arguments of {record.tool} are not taken: {problem}",
            path=record.path,
            hint="approve with arguments that fit request.schema and the permission rules, or reject",
        )


def _problems(arguments: dict[str, Any], record: Pending) -> Iterator[str]:
    from noetic_py.tools.schema import SchemaCheck

    schema = record.schema
    if not record.is_approval or not is_dict(schema):
        yield "the request does not say what the tool takes"
        return
    if len(dump(arguments)) > _LARGEST:
        yield f"they are larger than {_LARGEST} bytes"
        return
    asked: Any = json.loads(record.arguments)
    masked = {name for name, value in asked.items() if value == MASK} if is_dict(asked) else set[str]()
    secret = secret_parameters(schema) | masked
    if any(name in secret and value != MASK for name, value in arguments.items()):
        yield "a secret cannot be changed: it would be stored"
    required: Any = schema.get("required", [])
    # A secret stays as it was sent, so it is neither among the changes nor missing.
    known = SchemaCheck(record.tool, {**schema, "required": [name for name in required if name not in secret]}, secret)
    if problems := known.problems({name: value for name, value in arguments.items() if name not in secret}):
        yield "; ".join(problems[:_PROBLEMS])
    received = known.filled(arguments)
    for layer in record.rules or ():
        try:
            rules = [PermissionRule(**each) for each in layer["rules"]]
        except TypeError:
            yield "their permission rules are of a later version"
            return
        action, rule = decide(rules, record.tool, received, otherwise=layer["otherwise"])
        if action == "deny":
            why = "no permission rule allows them"
            yield why if rule is None else f"a permission rule for {rule.tool!r} denies them"


# --------------------------------------------------------------------------------------------------------- the call


def changed_arguments(frame: Frame, asked: Received) -> str | None:
    """The arguments that a call was approved with, as JSON text; `None` where the tool receives the same with them."""
    answer = None if frame.node is None else frame.node.answer
    if answer is None or answer.decision != "approved" or answer.arguments is None:
        return None
    other = Received(asked.tool, evolve(asked.sent, arguments=answer.arguments), asked.given)
    return None if plain(other.call.arguments) == plain(asked.call.arguments) else answer.arguments


def with_changed_arguments(arguments: str, output: Any, *, made: bool = True) -> Any:
    """The output of a call that was approved with other arguments than the model's, so that the model knows of them.

    Args:
        arguments: What it was approved with.
        output: What came of it.
        made: Whether the tool was called.
    """
    what = "and was made with these" if made else "but was not made with these"
    note = redact(f"The call was approved with other arguments, {what}: {arguments}")
    return f"{note}\n{output}" if isinstance(output, str) else (InputText(text=note), *output)
