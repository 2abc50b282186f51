"""Session keys, requests to people, and one stop algebra: every way to end is a `Control` and gives a `RunResult`.

A run that was asked to end returns; a run that broke raises, and the error carries the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

from attrs import field, frozen

from noetic_py import errors
from noetic_py.core.budget import NOTHING_USED, TokenUsage, Usage
from noetic_py.core.diagnostics import HIDING, text_or_none
from noetic_py.core.types import O_co, S_co, T
from noetic_py.core.values import is_mapping
from noetic_py.redaction import html_table, with_article, without_secrets

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from noetic_py.core.items import Item, JsonValue
    from noetic_py.core.view import LayerUsage


SESSION = "session"
"""The status of a session's stream, by which lists of runs know it."""

_PREFIX = "session."


def stream_of(parts: Sequence[str | None]) -> str:
    """The id of a session's stream: a digest, so that no id is ever a part of another one."""
    import hashlib

    return _PREFIX + hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def is_stream(run_id: str) -> bool:
    """Whether an id is that of a session's stream, which no run may have."""
    return run_id.startswith(_PREFIX)


_MAX_ID = 256


def check_callers_id(value: object, name: str) -> None:
    """Refuse what a caller gives as an id and what cannot be one.

    Raises:
        InvalidId: It is not text, is empty or too long, or holds control characters or a lone surrogate.
    """
    if not isinstance(value, str) or not value or len(value) > _MAX_ID or not value.isprintable():
        raise errors.InvalidId(
            f"{value!r:.80} is not a valid {name}; expected a printable text of 1 to {_MAX_ID} characters",
            hint="use a UUID, or a short name",
        )


def _or_none(value: str | None) -> str | None:
    return value or None


@frozen
class SessionKey:
    """Identifies a conversation of a user. Two keys are one session exactly when all three parts are equal.

    Args:
        user: The user; `None` and the empty text are one user, the anonymous user.
        session: Which conversation of that user.
        app: Of which application, where several share a backend.

    Raises:
        InvalidId: A part is not a printable text of at most 256 characters, or `session` is empty.
    """

    user: str | None = field(converter=_or_none)
    session: str
    app: str | None = field(default=None, kw_only=True, converter=_or_none)

    def __attrs_post_init__(self) -> None:
        """Refuse an invalid id."""
        for name in ("user", "session", "app"):
            if (part := getattr(self, name)) not in (None, ""):
                check_callers_id(part, name)
        if not self.session or not self.session.strip():
            raise errors.InvalidId("session is empty", hint="a UUID for each conversation")

    @property
    def parts(self) -> tuple[str | None, str | None, str]:
        """Application, user and session."""
        return self.app, self.user, self.session

    @property
    def stream(self) -> str:
        """The id under which a backend keeps the session, which is also the `thread_id` of its runs."""
        return stream_of(self.parts)


RequestKind: TypeAlias = Literal["approval", "result", "question", "timer", "run"]
"""What a run waits for: approval of a tool call, the result of a long-running tool, the answer to `ctx.ask`, the end of
a `ctx.sleep`, or the end of a run that a worker carries out for it. The last two take no answer."""

END_BY_THEMSELVES: frozenset[RequestKind] = frozenset({"timer", "run"})
"""The kinds of requests that take no answer."""
Decided: TypeAlias = Literal["approved", "rejected", "answered"]
"""The kinds of answers."""


@frozen(eq=False)
class Ask(Generic[T]):
    """A question to a person or program that answers: `name = await ctx.ask(Ask("Which account?", str))`.

    Args:
        prompt: What is asked.
        answer: The type of the answer; what does not fit it is not taken.
        expires: Seconds until it can be answered no more; `None` for any time.

    Raises:
        ConfigError: The prompt is not text, the type has no JSON schema, or `expires` is not a time; code `"ask"`.
    """

    prompt: str
    answer: type[T]
    expires: float | None = None
    _known: list[TypeAdapter[T]] = field(factory=list["TypeAdapter[T]"], init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        prompt: object = self.prompt
        if not isinstance(prompt, str) or not prompt:
            raise errors.ConfigError(f"Ask got {prompt!r} as its prompt", code="ask", hint='Ask("Which account?", str)')
        check_expires(self.expires)

    def adapter(self) -> TypeAdapter[T]:
        """A validator of answers.

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
                raise errors.ConfigError(
                    f"Ask cannot take {self.answer!r} as the type of an answer: {error}",
                    code="ask",
                    hint="a type of JSON, a pydantic model, a dataclass, ...",
                ) from error
            self._known.append(made)
        return self._known[0]


def check_expires(expires: object) -> None:
    """Refuse an invalid time to wait.

    Raises:
        ConfigError: It is not a number of seconds above zero; code `"ask"`.
    """
    if expires is None:
        return
    if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not 0 < expires < _LONGEST:
        raise errors.ConfigError(
            f"expires={expires!r} is not a number of seconds above zero", code="ask", hint="expires=3600.0"
        )


_LONGEST = timedelta(days=36500).total_seconds()


@frozen
class Timer:
    """A time that a step sleeps until: so many seconds from when it is first asked for, or a moment.

    Attributes:
        seconds: From then on; `None` where there is a moment.
        until: The moment.
    """

    seconds: float | None
    until: datetime | None = None

    def __attrs_post_init__(self) -> None:
        seconds: object = self.seconds
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (number and isinstance(seconds, (int, float)) and 0 <= seconds < _LONGEST):
            raise errors.ConfigError(
                f"{seconds!r} is not a valid time to sleep; expected a number of seconds, 0 or more",
                code="sleep",
                hint="await ctx.sleep(3600.0), or ctx.sleep(timedelta(hours=1))",
            )
        until: object = self.until
        if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
            raise errors.ConfigError(
                f"{until!r} is not a valid time to sleep until; expected a datetime with a time zone",
                code="sleep",
                hint="datetime.now(UTC) + timedelta(hours=1)",
            )

    def ends(self, now: datetime) -> datetime:
        """When it is over, if it begins now."""
        return now + timedelta(seconds=self.seconds or 0.0) if self.until is None else self.until


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
        by: The name of the person who answered, if known.
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
                raise errors.AnswerInvalid(
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
            arguments: All arguments, in place of the model's own; the model sees them. The service that takes the
                answer checks them against the tool's schema and the permission rules.
            by: The name of the person who answers; recorded.

        Raises:
            AnswerInvalid: The request is not for an approval, or the arguments are not a mapping or have no JSON form.
        """
        if not self.is_approval:
            raise errors.AnswerInvalid(
                f"{with_article(self.kind)} cannot be approved", hint="give it a value: pending.answer(value)"
            )
        given: object = arguments
        if given is not None and not is_mapping(given):
            raise errors.AnswerInvalid(
                f"{given!r:.100} is not a valid value of arguments=; expected a mapping",
                hint='pending.approve(arguments={"amount": 250})',
            )
        changed: Any = None if given is None else _plain(dict(given))
        return Answer(self.run_id, self.key, "approved", by=by, arguments=changed)

    def reject(self, reason: str = "", *, by: str | None = None) -> Answer:
        """Reject the request: the model gets the reason; a question raises `Rejected` in its step."""
        return Answer(self.run_id, self.key, "rejected", reason=reason, by=by)

    def answer(self, value: object, *, by: str | None = None) -> Answer:
        """Answer a question, or give the result of a tool that takes long.

        Args:
            value: Anything that has a JSON form: what JSON has, a pydantic model, a dataclass, a date, ...
            by: The name of the person who answers; recorded.

        Raises:
            AnswerInvalid: It is an approval that is waited for, or the value has no JSON form.
        """
        if self.is_approval:
            raise errors.AnswerInvalid(
                "an approval takes no value", hint="pending.approve(), or pending.reject(reason)"
            )
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
        raise errors.AnswerInvalid(
            f"{value!r:.100} has no JSON form: {error}", hint="a value that JSON can hold"
        ) from error


RunStatus: TypeAlias = Literal[
    "queued", "running", "completed", "aborted", "budget_exceeded", "interrupted", "suspended", "cancelled", "failed"
]
"""How a run stands, or how it ended."""
StopKind: TypeAlias = Literal["complete", "wrap_up", "abort", "budget", "interrupt", "cancel", "suspend"]
"""The kinds of stops."""
LoopStop: TypeAlias = Literal["until", "until_failed", "stop_loop", "max_iterations"]
"""Why a loop ended: its condition, a condition that raised, `ctx.stop_loop`, or the limit of iterations."""
Partial: TypeAlias = Literal["save", "discard"]
"""Whether the conversation keeps the part of an answer that a shutdown cuts off."""


@frozen(eq=False)
class Control:
    """A request to stop one execution: the run, or the child of a spawn. The first one wins.

    Attributes:
        kind: What was asked for.
        value: The value of a `complete`.
        reason: Why, for every other kind.
        path: The step that asked; empty when it came from outside.
        at: The path of the execution it stops; empty for the run itself.
        error: The budget error behind a `budget` stop.
        shutdown: What becomes of the answer in flight when the harness that shuts down asked for it; `None` otherwise.
        by: The user of the principal that asked from outside, if one is set.
    """

    kind: StopKind
    value: object = None
    reason: str | None = field(default=None, converter=without_secrets, validator=text_or_none)
    path: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    error: errors.BudgetExceeded | None = None
    shutdown: Partial | None = None
    by: str | None = field(default=None, validator=text_or_none)

    @property
    def rule(self) -> StopRule:
        """The rule of its kind."""
        return STOPS[self.kind]

    @property
    def status(self) -> RunStatus:
        """The status of a run that it ends."""
        return self.rule.status


@frozen
class StopRule:
    """The rule of one kind of stop.

    Attributes:
        status: The status of a run that it ends.
        completes: Whether its value is the output.
        wraps_up: Whether the execution finishes with what it has, in a wrap-up step where there is one.
        aborts: Whether it is an `Aborted` error for what has started the execution.
        waits: Whether the run goes on by itself once it has an answer, so that its layers stay open.
        settles: Whether it gives the run an outcome, so that one from outside is noted in the journal.
    """

    status: RunStatus
    completes: bool = False
    wraps_up: bool = False
    aborts: bool = False
    waits: bool = False
    settles: bool = False


STOPS: Mapping[StopKind, StopRule] = {
    "complete": StopRule("completed", completes=True, settles=True),
    "wrap_up": StopRule("completed", wraps_up=True, settles=True),
    "abort": StopRule("aborted", aborts=True, settles=True),
    "budget": StopRule("budget_exceeded"),
    "interrupt": StopRule("interrupted"),
    "cancel": StopRule("cancelled"),
    "suspend": StopRule("suspended", waits=True),
}
"""The rules of all kinds of stops."""
SETTLING: Sequence[StopKind] = tuple(kind for kind, rule in STOPS.items() if rule.settles)
"""The stops that give a run an outcome."""


@frozen
class Checkpoint:
    """A position in a run's journal, from which it can be resumed or forked.

    Attributes:
        run_id: The run.
        position: How many records the journal holds there.
    """

    run_id: str
    position: int


@frozen(eq=False)
class Transcript:
    """The conversation of a run, from its journal.

    Attributes:
        items: The root's whole conversation, what it began with included.
        new: The part that this run added.
    """

    items: Sequence[Item]
    new: Sequence[Item]


_MISSING = object()


@frozen(eq=False)
class RunResult(Generic[O_co, S_co]):
    """How a run ended, and everything it leaves.

    Attributes:
        run_id: The run.
        status: `"completed"`, or how it was stopped.
        reason: Why it ended: of a stop its reason, of a loop that ended the flow its verdict's.
        loop_stop: What ended the loop that ended the flow, such as `"until_failed"` for a condition that raised; `None`
            when no loop did.
        usage: Tokens of every model call below the run.
        cost: USD of every model call, `None` when a model that has no price was called.
        steps: Bodies that were started; one that another process starts again counts once.
        model_calls: Calls of models.
        seconds: Active time.
        checkpoint: The journal's end.
        error: What broke the run, `None` when nothing did.
        last_layer_usage: Tokens of the last model call's request by where they came from, `None` without layers.
        memory: The states of the layers as the run left them, by the layer's id; to be read only.
        possibly_spent: The part of `usage`, `cost` and `model_calls` that is not known to be spent: the reservations of
            calls that were in flight when a process of the run died. Calls are reserved where a budget limits tokens
            or money.
        pending: What a suspended run waits for, in the order in which it was asked; empty otherwise.
        shutdown: Whether it was interrupted because its harness was shut down: it waits to be gone on with.
    """

    run_id: str
    status: RunStatus
    _output: Any = field(alias="output")
    _state: Any = field(alias="state")
    usage: TokenUsage
    cost: Decimal | None
    steps: int
    model_calls: int
    seconds: float
    checkpoint: Checkpoint
    _transcript: Callable[[], Transcript] = field(alias="transcript")
    reason: str | None = None
    loop_stop: LoopStop | None = None
    error: errors.NoeticError | None = None
    last_layer_usage: LayerUsage | None = None
    memory: Mapping[str, Any] = field(factory=dict[str, Any])
    possibly_spent: Usage = NOTHING_USED
    pending: Sequence[PendingRequest] = ()
    shutdown: bool = False
    _read: list[Transcript] = field(factory=list["Transcript"], init=False)

    @property
    def value(self) -> O_co:
        """The output.

        Raises:
            NoeticError: There is none: the error that broke the run, or one that says how it was stopped.
        """
        if self._output is not _MISSING:
            output: O_co = self._output
            return output
        with HIDING:
            raise self._why_not()

    def _why_not(self) -> errors.NoeticError:
        if self.error is not None:
            return self.error
        reason = self.reason or "no reason given"
        error: errors.NoeticError
        match self.status:
            case "aborted":
                error = errors.Aborted(reason)
            case "interrupted":
                error = errors.Interrupted(f"interrupted: {reason}")
            case "suspended":
                error = errors.Suspended(
                    f"the run waits for an answer: {reason}", hint="answer result.pending, then resume"
                )
            case "cancelled":
                error = errors.Cancelled(f"cancelled: {reason}")
            case _:
                text = "the run has no value" if self.reason is None else f"the run has no value: {self.reason}"
                error = errors.NoOutput(text, hint="look at result.status and result.items")
        error.result = self
        return error

    @property
    def has_value(self) -> bool:
        """Whether `value` gives an output."""
        return self._output is not _MISSING

    def output_or(self, default: T) -> O_co | T:
        """The output, or `default` when there is none."""
        if self._output is _MISSING:
            return default
        output: O_co = self._output
        return output

    @property
    def state(self) -> S_co:
        """The state as the last finished step left it."""
        state: S_co = self._state
        return state

    def _journal(self) -> Transcript:
        if not self._read:
            self._read.append(self._transcript())
        return self._read[0]

    @property
    def items(self) -> Sequence[Item]:
        """The conversation, open calls closed with the reason; a provider accepts it as it stands."""
        return self._journal().items

    @property
    def new_items(self) -> Sequence[Item]:
        """The part of the conversation that this run added."""
        return self._journal().new

    @property
    def text(self) -> str:
        """The text of the last assistant message, or output that stands for one; empty when there is none."""
        from noetic_py.core.items import FunctionCallOutput, Message

        for item in reversed(self.items):
            if isinstance(item, FunctionCallOutput) and item.final:
                return item.text
            if isinstance(item, Message) and item.role == "assistant" and item.text:
                return item.text
        return ""

    def __repr__(self) -> str:
        return (
            f"RunResult({self.run_id}, {self.status}, steps={self.steps}, tokens={self.usage.total}, cost={self.cost})"
        )

    def _repr_html_(self) -> str:
        """A table of how it ended and what it took, which a notebook shows."""
        used = f"{self.steps} steps, {self.model_calls} model calls, {self.usage.total} tokens, {self.seconds:.2f} s"
        rows = {
            "status": self.status if self.reason is None else f"{self.status}: {self.reason}",
            "value": repr(self._output) if self.has_value else None,
            "error": None if self.error is None else self.error.message,
            "waits for": ", ".join(f"{each.kind} {each.tool or each.prompt}" for each in self.pending) or None,
            "used": used,
            "cost": "unknown" if self.cost is None else f"{self.cost} USD",
            "run": self.run_id,
        }
        return html_table([(name, text) for name, text in rows.items() if text is not None])


NO_VALUE: Final[object] = _MISSING
"""The mark for 'there is no output', which `None` is not."""


AnyResult: TypeAlias = RunResult[Any, Any]
"""A result with whatever output and state."""
