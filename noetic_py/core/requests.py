"""What a run can wait for: a request that a person or another program answers, and the answer.

A run that waits holds no task, no lease and no connection: its requests are in its journal, where any process finds
them (`harness.runs.get(run_id).pending`), and `harness.resume(run_id, step, answers=[...])` goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from attrs import field, frozen

from noetic_py.core.types import T, is_mapping
from noetic_py.errors import AnswerInvalid, ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from noetic_py.core.items import JsonValue

RequestKind: TypeAlias = Literal["approval", "result", "question"]
"""What is waited for: leave to call a tool, the result of a tool that takes long, or the answer to `ctx.ask`."""
Decided: TypeAlias = Literal["approved", "rejected", "answered"]
"""What an answer says."""


@frozen(eq=False)
class Ask(Generic[T]):
    """A question to a person or program that answers: `name = await ctx.ask(Ask("Which account?", str))`.

    Args:
        prompt: What is asked.
        answer: The type of the answer; what does not fit it is not taken.
        expires: Seconds until it can be answered no more; `None` for any time.

    Raises:
        ConfigError: The prompt is no text, the type has no JSON schema, or `expires` is no time; code `"ask"`.
    """

    prompt: str
    answer: type[T]
    expires: float | None = None
    _known: list[TypeAdapter[T]] = field(factory=list["TypeAdapter[T]"], init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        prompt: object = self.prompt
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f"Ask got {prompt!r} as its prompt", code="ask", hint='Ask("Which account?", str)')
        check_expires(self.expires)

    def adapter(self) -> TypeAdapter[T]:
        """What checks answers.

        Raises:
            ConfigError: The type is none that JSON can be checked against; code `"ask"`.
        """
        if not self._known:
            from pydantic import PydanticUserError, TypeAdapter
            from pydantic.errors import PydanticInvalidForJsonSchema

            try:
                made: TypeAdapter[T] = TypeAdapter(self.answer)
                made.json_schema()
            except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
                raise ConfigError(
                    f"Ask cannot take {self.answer!r} as the type of an answer: {error}",
                    code="ask",
                    hint="a type of JSON, a pydantic model, a dataclass, ...",
                ) from error
            self._known.append(made)
        return self._known[0]


def check_expires(expires: object) -> None:
    """Refuse what is no time to wait.

    Raises:
        ConfigError: It is no number of seconds above zero; code `"ask"`.
    """
    if expires is None:
        return
    if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not 0 < expires < _LONGEST:
        raise ConfigError(
            f"expires={expires!r} is not a number of seconds above zero", code="ask", hint="expires=3600.0"
        )


_LONGEST = timedelta(days=36500).total_seconds()


@frozen
class Answer:
    """An answer to one request of one run; made by [`PendingRequest`][noetic_py.PendingRequest].

    It is of use once, for the request it was made of: not for another run, another call or other arguments.

    Attributes:
        run_id: The run.
        key: The request.
        decision: What it says.
        value: The answer or result, as JSON.
        reason: Why not, of a rejection.
        by: Who has answered, if known.
        arguments: Of an approval the arguments in place of the model's own, `None` for these.
    """

    run_id: str
    key: str
    decision: Decided
    value: JsonValue = None
    reason: str = ""
    by: str | None = None
    arguments: Mapping[str, JsonValue] | None = None

    def __attrs_post_init__(self) -> None:
        for name, given in (("reason", self.reason), ("by", "" if self.by is None else self.by)):
            said: object = given
            if not isinstance(said, str):
                raise AnswerInvalid(
                    f"{said!r:.80} is not a valid {name}; expected text", hint="str(value) makes a text of it"
                )


def is_approval(kind: RequestKind) -> bool:
    """Whether a request of the kind is for a tool to be approved, and not for a value."""
    return kind == "approval"


@frozen
class PendingRequest:
    """Something that a run waits for.

    Attributes:
        run_id: The run.
        key: Names the request, and stays the same in whatever process it is looked at.
        kind: What is waited for.
        path: The step that waits.
        call_id: The model's id of the call; the key where no model has made it.
        tool: The tool, empty for a question.
        arguments: What it is, or was, called with.
        prompt: What is asked; of a tool that takes long what it said when it was started.
        schema: The JSON schema that an answer has to fit, of an approval changed arguments; `None` for any.
        asked: When, UTC.
        expires: Until when it can be answered, UTC; `None` for any time.
        problem: Why an earlier answer was not taken, `None` when there was none.
    """

    run_id: str
    key: str
    kind: RequestKind
    path: tuple[str, ...]
    call_id: str
    tool: str
    arguments: Mapping[str, JsonValue]
    prompt: str
    schema: Mapping[str, JsonValue] | None
    asked: datetime
    expires: datetime | None = None
    problem: str | None = None

    @property
    def is_approval(self) -> bool:
        """Whether a tool waits to be approved, and not a question or a tool's result to be answered."""
        return is_approval(self.kind)

    def approve(self, *, arguments: Mapping[str, object] | None = None, by: str | None = None) -> Answer:
        """Let the tool be called once, with exactly these arguments or with others.

        Args:
            arguments: All arguments, in place of the model's own; the model is told of them. The service that takes the
                answer checks them against the tool's schema and the permission rules.
            by: Who answers, for the record.

        Raises:
            AnswerInvalid: It is no approval that is waited for, or the arguments are no mapping or have no JSON form.
        """
        if not self.is_approval:
            raise AnswerInvalid(f"a {self.kind} cannot be approved", hint="give it a value: pending.answer(value)")
        given: object = arguments
        if given is not None and not is_mapping(given):
            raise AnswerInvalid(
                f"{given!r:.100} is not a valid value of arguments=; expected a mapping",
                hint='pending.approve(arguments={"amount": 250})',
            )
        changed: Any = None if given is None else _plain(dict(given))
        return Answer(self.run_id, self.key, "approved", by=by, arguments=changed)

    def reject(self, reason: str = "", *, by: str | None = None) -> Answer:
        """Say no: the model is told so and why; a question raises `Rejected` where it was asked."""
        return Answer(self.run_id, self.key, "rejected", reason=reason, by=by)

    def answer(self, value: object, *, by: str | None = None) -> Answer:
        """Answer a question, or give the result of a tool that takes long.

        Args:
            value: Anything that has a JSON form: what JSON has, a pydantic model, a dataclass, a date, ...
            by: Who answers, for the record.

        Raises:
            AnswerInvalid: It is an approval that is waited for, or the value has no JSON form.
        """
        if self.is_approval:
            raise AnswerInvalid("an approval takes no value", hint="pending.approve(), or pending.reject(reason)")
        return Answer(self.run_id, self.key, "answered", _plain(value), by=by)


def _plain(value: object) -> Any:
    """A value as JSON has it.

    Raises:
        AnswerInvalid: It has no JSON form.
    """
    from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

    try:
        found: object = to_jsonable_python(value, inf_nan_mode="constants")
        # A text with half a character in it is none that can be stored.
        to_json(found)
        return found
    except (PydanticSerializationError, ValueError) as error:
        raise AnswerInvalid(f"{value!r:.100} has no JSON form: {error}", hint="a value that JSON can hold") from error
