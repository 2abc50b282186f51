"""Calls of tools: masks for arguments that only the tool may see, and a call as its tool will receive it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from attrs import define, evolve, field

from noetic_py.core.codec.structure import dump
from noetic_py.core.codec.wire import MAX_ITEM_BYTES
from noetic_py.core.items import FunctionCall
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ArgumentsRefused, ToolArgumentsInvalid
from noetic_py.redaction import MASK, remember
from noetic_py.tools.permissions import PermissionRule, decide

if TYPE_CHECKING:
    from noetic_py.core.control import Answer
    from noetic_py.journal.records import Pending
    from noetic_py.tools.definition import AnyTool

_VALUES = frozenset({"default", "const", "enum", "examples"})


def secret_parameters(schema: Mapping[str, object]) -> frozenset[str]:
    """The parameters whose schema holds something `writeOnly`, or of the format of a password."""
    found: set[str] = set()
    for part in beside(schema, schema):
        found.update(name for name, each in properties_of(part).items() if _holds(each, schema, set()))
    return frozenset(found)


def properties_of(part: Mapping[str, object]) -> Mapping[str, object]:
    """The properties that a part of a schema names itself."""
    found = part.get("properties")
    return found if is_dict(found) else {}


def beside(part: object, root: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """A part of a schema, and the others that hold for the same value or may do so.

    Args:
        part: The part.
        root: The whole schema, which the part may refer into.
    """
    todo, seen = [part], set[int]()
    while todo:
        each = todo.pop(0)
        if is_dict(each) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [each[key] for key in ("then", "else") if key in each]
            todo += [one for key in ("allOf", "anyOf", "oneOf") if is_list(several := each.get(key)) for one in several]
            todo.append(_pointed(each.get("$ref"), root))


def _pointed(reference: object, root: Mapping[str, object]) -> object:
    """The target of a reference inside a schema; `None` without a target."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, unquote(reference[1:]).split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if is_list(found) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if is_dict(found) else None
    return found


def _holds(part: object, root: Mapping[str, object], seen: set[int]) -> bool:
    if is_list(part):
        return any(_holds(each, root, seen) for each in part)
    if not is_dict(part) or id(part) in seen:
        return False
    seen.add(id(part))
    if part.get("writeOnly") is True or part.get("format") == "password":
        return True
    if _holds(_pointed(part.get("$ref"), root), root, seen):
        return True
    return any(_holds(each, root, seen) for key, each in part.items() if key not in _VALUES)


def conceal(call: FunctionCall, secret: Collection[str]) -> FunctionCall:
    """The call as it is shown and stored, with a mask for each secret argument; its texts are known from now on.

    Args:
        call: The call as the model sent it.
        secret: The tool's secret parameters.
    """
    if not secret:
        return call
    sent = object_of(call.arguments)
    if sent is None:
        # A schema that cannot be read may hold anything.
        remember(call.arguments)
        return evolve(call, arguments=json.dumps(MASK))
    hidden = [name for name in sent if name in secret]
    for text in _texts([sent[name] for name in hidden]):
        remember(text)
    return evolve(call, arguments=text_of(sent | dict.fromkeys(hidden, MASK))) if hidden else call


def hidden_in(call: FunctionCall, tool: AnyTool | None, offered: Iterable[AnyTool]) -> frozenset[str]:
    """The arguments of a call that are secret, or may be under a wrong name.

    A model may misspell a tool or a parameter. Of a tool with secret parameters every name that it does not have is
    taken for one of them; where the tool is unknown, so is every name but the plain parameters of such tools.

    Args:
        call: The call as the model sent it.
        tool: The tool that it names, `None` when none has that name.
        offered: The tools that it could have named.
    """
    tools = [each for each in (offered if tool is None else (tool,)) if each.secret_parameters]
    if not tools:
        return frozenset()
    secret = frozenset[str]().union(*(each.secret_parameters for each in tools))
    plain = {name for each in tools for name in _parameters(each)} - secret
    return secret | ((object_of(call.arguments) or {}).keys() - plain)


def _parameters(tool: AnyTool) -> Iterable[str]:
    return [name for part in beside(tool.parameters, tool.parameters) for name in properties_of(part)]


def restored(arguments: str, given: str, secret: Collection[str]) -> str:
    """The arguments for the tool: what was sent in the place of each mask.

    Args:
        arguments: As they are shown, and as layers may have changed them.
        given: As the model sent them.
        secret: The tool's secret parameters.
    """
    shown, sent = object_of(arguments), object_of(given)
    if shown is None or sent is None:
        return given if arguments == json.dumps(MASK) else arguments
    back = {name: sent[name] for name in secret if name in sent and shown.get(name) == MASK}
    return text_of(shown | back) if back else arguments


def object_of(text: str) -> dict[str, object] | None:
    """The JSON object that a text is; `None` when it is something else."""
    try:
        found: object = json.loads(text if text.strip() else "{}")
    except (ValueError, RecursionError):
        return None
    return found if is_dict(found) else None


def text_of(value: object) -> str:
    """A value as short JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif is_list(value):
        for part in value:
            yield from _texts(part)
    elif is_dict(value):
        yield from _texts(list(value.values()))
    elif value is not None and not isinstance(value, bool):
        yield str(value)


# -------------------------------------------------------------------------------- the call as the tool receives it


@define(eq=False)
class Received:
    """A call of a model, as it was sent and as the tool will receive it.

    Arguments are parsed once, so that what was judged is what the function gets.

    Attributes:
        tool: The tool, `None` for one that there is not.
        sent: The call as it was sent, or as a hook or a layer has changed it, with masks for secret arguments.
        given: The arguments without the masks, where there are any.
    """

    tool: AnyTool | None
    sent: FunctionCall
    given: str | None = None
    _values: dict[str, object] | None = field(default=None, alias="values")
    _call: FunctionCall | None = field(default=None, alias="call")

    @property
    def values(self) -> dict[str, object]:
        """The function's arguments by parameter; those that were not sent are absent.

        Raises:
            ToolArgumentsInvalid: The arguments do not fit.
        """
        if self._values is None and self.tool is not None:
            text, secret = self.sent.arguments, self.tool.secret_parameters
            self._values = self.tool.parse(text if self.given is None else restored(text, self.given, secret))
        return self._values or {}

    def check(self) -> None:
        """Refuse arguments that do not fit, before approval is requested.

        Raises:
            ToolArgumentsInvalid: They do not fit.
        """
        self._values = self.values

    @property
    def fits(self) -> bool:
        """Whether the tool takes the arguments; in a later process it does not where a secret was sent."""
        try:
            self.check()
        except ToolArgumentsInvalid:
            return False
        return True

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
        """The approved call; arguments that equal those shown in `call` stay as they were sent."""
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

    def as_shown(self, arguments: str) -> Received:
        """The call with the arguments that were shown of it, also where a default is new each time."""
        if self.tool is None or self.call.arguments == arguments:
            return self
        again = self.changed(evolve(self.call, arguments=arguments))
        if again.call.arguments != arguments:
            return self
        return Received(self.tool, self.sent, self.given, again.values, again.call)


def plain(arguments: str) -> str:
    """Arguments as JSON text that is the same for the same ones, and for no others."""
    return json.dumps(json.loads(arguments if arguments.strip() else "{}"), sort_keys=True)


# -------------------------------------------------------------------------- arguments that an approval has changed


_PROBLEMS = 5
_LARGEST = MAX_ITEM_BYTES // 8
"""So many bytes of arguments leave room in the item that tells the model of them."""


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
    asked: object = json.loads(record.arguments)
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
