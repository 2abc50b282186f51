"""What a journal is made of.

A run's journal is a list of records, and a position in it is a checkpoint. A step's place is its path: a tuple of
frames such as `("pipeline", "agent[3]", "search#2")`. The work a body does itself is cut into segments by its child
calls; a body's layout is the order of its segments and its children, and the conversation is the fold of the layouts
from the root, never the order of the records.

When a step commits, whatever its ancestors in flight had not written yet goes before it in the same transaction:
`StepOpened` the first time, then a `Segment`. A child's first record stands for the reference to it in its parent's
layout, at the place where the parent's layout then ends; the paths of a section are ordered by their index.

Without a durable backend records hold references: nothing is encoded, compared or copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import define, field, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.control import Control, RunStatus
from noetic_py.core.requests import Decided, RequestKind

if TYPE_CHECKING:
    from noetic_py.core.derivation import ContextMemory
    from noetic_py.core.items import Item
    from noetic_py.core.log import Origin
    from noetic_py.core.trace import Trace
    from noetic_py.core.types import Version

__all__ = [
    "Answered",
    "AttemptFailed",
    "Base",
    "CallStarted",
    "Change",
    "ChildReplayed",
    "Decision",
    "Intent",
    "JournalRecord",
    "LayerDeltas",
    "Opening",
    "Path",
    "Pending",
    "Progressed",
    "RunBegun",
    "RunEnded",
    "Segment",
    "StateRevised",
    "StepFinished",
    "StepOpened",
    "StepStopped",
    "Voided",
    "stored_name",
]

Path: TypeAlias = tuple[str, ...]


@frozen(eq=False)
class Change:
    """How one field of a state was changed.

    Attributes:
        op: `"set"`, `"unset"`, or `"append"` to a list.
        key: The field.
        before: A digest of what it was, `None` when it was not there.
        tree: Stored form of what was set, or of what was appended.
        kept: Whether the field holds the same object as before, which was changed in place.
    """

    op: Literal["set", "unset", "append"]
    key: str
    before: str | None
    tree: Any = None
    kept: bool = False


LayerDeltas: TypeAlias = tuple[tuple[str, tuple[Change, ...]], ...]
"""How layers' states were changed, by the layer's id."""


@define(eq=False)
class RunBegun:
    """The head of a journal: which flow, with which input, from which conversation."""

    path: Path
    run_id: str
    thread_id: str
    flow: str
    input: object
    history: int
    opening: Opening | None = None


@define(eq=False)
class Opening:
    """What else a durable run needs to begin again in another process.

    Attributes:
        fingerprint: The flow's.
        items: The conversation that it began with, unless `base` has it.
        state: The state that it began with.
        user_id: Whose run it is.
        request_id: The caller's correlation id.
        metadata: JSON of the caller's.
        source: Where the flow was found, `FILE:STEP` or a name in the harness's `flows`; `None` when it was not given.
        budget: The run's own limits.
        version: The `schema_version` of the state's type.
        base: The session that it is a turn of, whose items at that point are the conversation that it began with.
        depth: How deep below another run it was started.
        turns: The model calls that its context had seen before.
        trace: The place in a distributed trace that it belongs below, when it is traced.
        origins: Where `items` came from; empty when not known.
        memory: Where its layers of scope thread keep what is theirs, when that is not its thread's memory.
        asked: Where in that conversation a message of the user's stands that no run has answered.
    """

    fingerprint: str
    items: tuple[Item, ...]
    state: object
    user_id: str | None
    request_id: str | None
    metadata: Mapping[str, Any]
    source: str | None
    budget: Mapping[str, Any] | None = None
    version: int = 1
    base: Base | None = None
    depth: int = 0
    turns: int = 0
    trace: Trace | None = None
    origins: Sequence[tuple[int, Origin | None]] = ()
    asked: int | None = None
    memory: ContextMemory | None = None


@frozen
class Base:
    """Where a session stood when one of its turns began.

    Attributes:
        app: The session's application, `None` when it has none.
        user: Its user.
        session: Its name.
        position: How many records its stream held; -1 where the run holds itself what it began with.
    """

    app: str | None
    user: str | None
    session: str
    position: int


@define(eq=False)
class StepOpened:
    """A composite or a body with children is in flight; written with the first commit below it.

    Attributes:
        path: The step.
        kind: Its kind.
        attempt: Which attempt, from 1.
        fence: The owner that started it. A later one starts the body again: what it had written itself is void.
    """

    path: Path
    kind: str
    attempt: int
    fence: int = 0


@define(eq=False)
class Segment:
    """Own work of a body in flight, up to a child call: the items it appended, and how it changed the state.

    Attributes:
        before: The child in flight that has its place already, where changes of the state are written later than the
            items beside them.
    """

    path: Path
    attempt: int
    items: tuple[Item, ...]
    delta: tuple[Change, ...] = ()
    memory: LayerDeltas = ()
    before: str | None = None


@define(eq=False)
class ChildReplayed:
    """A body that was started again has called a child that had finished before: here stands what that one left."""

    path: Path


class StepFinished:
    """A step is done: its output, and what of its own work was not written yet.

    Written once for every step, so what most steps do not have is a default of the class and costs them nothing.

    Attributes:
        path: The step.
        kind: Its kind.
        input: What it was given.
        output: What it gave.
        attempt: Which attempt, from 1.
        items: The last segment's items.
        usage: Tokens that the step itself used, children apart; `None` for none.
        cost: USD likewise.
        control: The stop that the step's body asked for.
        winner: The index of a race's winning path.
        delta: How the last segment changed the state; in a durable run.
        memory: How it changed layers' states; in a durable run.
        fingerprint: Of the step's definition; in a durable run.
        digest: Of the input, `None` where it is derived from what is recorded; in a durable run.
        takes: The messages that the body has taken, by the paths of their sends; in a durable run.
        calls: How many model calls the step itself has made.
        tool: The tool that it has called.
        tool_error: What the tool call of a model has failed of; the model was told, and the step is done all the same.
        loop_stops: The loops that were asked to end, here or below, and with which values, and the step that is to hand
            over, and to whom; in a durable run.
        cut: Those of these loops that were to end in the middle of the round; in a durable run.
    """

    attempt: int = 1
    items: tuple[Item, ...] = ()
    usage: TokenUsage | None = None
    cost: Decimal | None = None
    control: Control | None = None
    winner: int | None = None
    delta: tuple[Change, ...] = ()
    memory: LayerDeltas = ()
    fingerprint: str = ""
    digest: str | None = None
    takes: tuple[Path, ...] = ()
    calls: int = 0
    tool: str | None = None
    tool_error: str | None = None
    loop_stops: tuple[tuple[Path, object], ...] = ()
    cut: tuple[Path, ...] = ()

    def __init__(self, path: Path, kind: str, input: object, output: object) -> None:
        self.path = path
        self.kind = kind
        self.input = input
        self.output = output

    def __repr__(self) -> str:
        return f"StepFinished({'/'.join(self.path)}, {self.kind}, output={self.output!r}, items={len(self.items)})"


@define(eq=False)
class AttemptFailed:
    """An attempt failed. Not final: everything below the path is void. Final: an outcome like a result.

    Attributes:
        held: Whether bodies around it had changed the state and that was not written, although the items before it
            were; in a durable run.
    """

    path: Path
    kind: str
    attempt: int
    final: bool
    error: Exception
    usage: TokenUsage | None
    cost: Decimal | None
    control: Control | None
    calls: int = 0
    tool: str | None = None
    held: bool = False


@define(eq=False)
class StepStopped:
    """An attempt was cancelled: its own unwritten work is void, what it used is not.

    Attributes:
        items: Own work kept, when the attempt itself asked for the stop; else what a model had said of an answer that a
            shutdown cut off, which is shown until it is asked again.
        control: The stop that it had asked for.
        delta: How the kept work changed the state; in a durable run.
        calls: How many model calls the attempt has made.
        tool: The tool that it has called.
        takes: The messages that the kept work has taken; in a durable run.
        memory: How it changed layers' states; in a durable run.
    """

    path: Path
    kind: str
    attempt: int
    items: tuple[Item, ...]
    usage: TokenUsage | None
    cost: Decimal | None
    control: Control | None
    delta: tuple[Change, ...] = ()
    calls: int = 0
    tool: str | None = None
    takes: tuple[Path, ...] = ()
    memory: LayerDeltas = ()


@define(eq=False)
class Decision:
    """What a function decided for a composite: a route, a verdict's feedback, names of dynamic paths, a next input."""

    path: Path
    key: str
    value: Any


@define(eq=False)
class Voided:
    """A finished step is void, because the run goes on with other code or another input than it had."""

    path: Path


@define(eq=False)
class StateRevised:
    """The state has another form from here on: what the records before it would say had it always had that form.

    Attributes:
        path: None; where layers have another form, the execution that has them.
        version: The `schema_version` of the state's type.
        state: Stored form of the state that the run began with.
        deltas: By the positions of records, how each changed the state.
        layers: The versions of layers that have another form, and are not the first.
        memory: By the positions of records, how each changed the states of layers.
    """

    path: Path
    version: int
    state: Any
    deltas: Mapping[int, tuple[Change, ...]]
    layers: Mapping[str, Version] = field(factory=dict[str, "Version"])
    memory: Mapping[int, LayerDeltas] = field(factory=dict[int, "LayerDeltas"])


@define(eq=False)
class Intent:
    """A step that may run only once is about to start; without an outcome it is not known whether it did."""

    path: Path
    digest: str | None


@define(eq=False)
class CallStarted:
    """A call that costs is about to start; without an outcome its whole reservation counts as possibly spent.

    Attributes:
        path: The step that asks.
        reserved_tokens: The most it can use.
        reserved_cost: USD likewise.
        reserved_output: How many of the tokens are output.
        fence: The owner that started it: an outcome that a later one writes is that of another call.
    """

    path: Path
    reserved_tokens: int
    reserved_cost: Decimal
    reserved_output: int = 0
    fence: int = 0


@define(eq=False)
class Pending:
    """A step waits for an answer, and its task has ended. A later one of the same step takes the place of this one.

    Attributes:
        path: The step.
        kind: What it waits for: `"approval"`, `"result"` or `"question"`.
        key: The request's own id.
        digest: Of what is asked: an answer holds for nothing else.
        call_id: The model's id of the call, empty where no model has made it.
        tool: The tool, empty for a question.
        arguments: The arguments, as JSON text.
        prompt: What is asked.
        schema: JSON schema of the answer.
        asked: When: ISO 8601, UTC.
        expires: Until when it can be answered, likewise.
        problem: Why an earlier answer was not taken.
        rules: Of an approval what the permission layers say of the tool: of each its rules, and what holds otherwise.
    """

    path: Path
    kind: RequestKind
    key: str
    digest: str
    call_id: str = ""
    tool: str = ""
    arguments: str = "{}"
    prompt: str = ""
    schema: Any = None
    asked: str = ""
    expires: str | None = None
    problem: str | None = None
    rules: Any = None


@define(eq=False)
class Answered:
    """What a step waits for was answered.

    Attributes:
        path: The step.
        key: The request.
        decision: `"approved"`, `"rejected"` or `"answered"`.
        value: JSON of the answer.
        reason: Why not.
        by: Who has answered.
        at: When: ISO 8601, UTC.
        arguments: Of an approval the arguments in place of the model's own, as JSON text; `None` for these.
    """

    path: Path
    key: str
    decision: Decided
    value: Any = None
    reason: str = ""
    by: str | None = None
    at: str = ""
    arguments: str | None = None


@define(eq=False)
class Progressed:
    """How far a step has come, as it or another one has said; a later one of the same step takes the place of this one.

    It is void when an attempt of the step, or of one around it, is void: a retry, a lost race. A later owner's start of
    the body makes it not void.

    Attributes:
        path: The step.
        what: `"set"` to a value, `"done"`, or `"cleared"`.
        value: JSON of the value.
    """

    path: Path
    what: Literal["set", "done", "cleared"]
    value: Any = None


@define(eq=False)
class RunEnded:
    """The run is over in this journal, or waits.

    Attributes:
        path: None.
        status: How.
        reason: Why.
        control: What has stopped it.
        pending: Of a suspended run the positions of the requests that it waits for.
    """

    path: Path
    status: RunStatus
    reason: str | None
    control: Control | None
    pending: tuple[int, ...] = ()


JournalRecord: TypeAlias = (
    RunBegun
    | StepOpened
    | Segment
    | ChildReplayed
    | StepFinished
    | AttemptFailed
    | StepStopped
    | Decision
    | Intent
    | CallStarted
    | Voided
    | StateRevised
    | Pending
    | Answered
    | Progressed
    | RunEnded
)

_STORED_NAMES: Mapping[type[Any], str] = {AttemptFailed: "StepFailed", RunBegun: "RunStarted"}


def stored_name(record: JournalRecord) -> str:
    """The name of a record's kind in stores and command lines; it stays when the class gets another name."""
    return _STORED_NAMES.get(type(record), type(record).__name__)
