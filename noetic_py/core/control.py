"""One stop algebra: every way a run can end goes through one `Control` and comes out as one `RunResult`.

A run that was asked to end returns; a run that broke raises, and the error carries the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from attrs import field, frozen

from noetic_py.core.budget import NOTHING_USED, TokenUsage, Usage
from noetic_py.core.spelling import text_or_none
from noetic_py.core.tracebacks import HIDING
from noetic_py.core.types import O_co, S_co, T
from noetic_py.errors import Aborted, BudgetExceeded, Cancelled, Interrupted, NoeticError, NoOutput, Suspended
from noetic_py.errors.redaction import html_table, without_secrets

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.core.requests import PendingRequest
    from noetic_py.core.view import LayerUsage

RunStatus: TypeAlias = Literal[
    "running", "completed", "aborted", "budget_exceeded", "interrupted", "suspended", "cancelled", "failed"
]
"""How a run stands, or how it ended."""
StopKind: TypeAlias = Literal["complete", "wrap_up", "abort", "budget", "interrupt", "cancel", "suspend"]
"""What can stop an execution."""
LoopStop: TypeAlias = Literal["until", "until_failed", "stop_loop", "max_iterations"]
"""What ended a loop: its condition, a condition that raised, `ctx.stop_loop`, or the limit of its iterations."""
Partial: TypeAlias = Literal["save", "discard"]
"""What becomes of what a model had said of an answer that a shutdown cuts off."""


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
        by: Who asked from outside, when the program says who acts.
    """

    kind: StopKind
    value: object = None
    reason: str | None = field(default=None, converter=without_secrets, validator=text_or_none)
    path: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    error: BudgetExceeded | None = None
    shutdown: Partial | None = None
    by: str | None = field(default=None, validator=text_or_none)

    @property
    def rule(self) -> StopRule:
        """What a stop of its kind does."""
        return STOPS[self.kind]

    @property
    def status(self) -> RunStatus:
        """The status of a run that it ends."""
        return self.rule.status


@frozen
class StopRule:
    """What a stop of one kind does.

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
"""What can stop an execution, and what that does."""
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
    """What a run's journal says of its conversation.

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
    error: NoeticError | None = None
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

    def _why_not(self) -> NoeticError:
        if self.error is not None:
            return self.error
        reason = self.reason or "no reason given"
        error: NoeticError
        match self.status:
            case "aborted":
                error = Aborted(reason)
            case "interrupted":
                error = Interrupted(f"interrupted: {reason}")
            case "suspended":
                error = Suspended(f"the run waits for an answer: {reason}", hint="answer result.pending, then resume")
            case "cancelled":
                error = Cancelled(f"cancelled: {reason}")
            case _:
                error = NoOutput("the run has no value", hint="look at result.status and result.items")
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


def no_value() -> object:
    """The mark for 'there is no output', which `None` is not."""
    return _MISSING


AnyResult: TypeAlias = RunResult[Any, Any]
"""A result with whatever output and state."""
