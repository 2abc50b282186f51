"""The records of a journal, and their bytes.

A run's journal is a list of records, and a position in it is a checkpoint. A step's place is its path: a tuple of
frames such as `("pipeline", "agent[3]", "search#2")`. The work a body does itself is cut into segments by its child
calls; a body's layout is the order of its segments and its children, and the conversation is the fold of the layouts
from the root, never the order of the records.

When a step commits, whatever its ancestors in flight had not written yet goes before it in the same transaction:
`StepOpened` the first time, then a `Segment`. A child's first record stands for the reference to it in its parent's
layout, at the place where the parent's layout then ends; the paths of a section are ordered by their index.

Without a durable backend records hold references: nothing is encoded, compared or copied.
"""

# No postponed annotations: how a field is stored is read from them, and no text is evaluated for it.
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from attrs import define, field, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import SETTLING, Control, Decided, RequestKind, RunStatus, StopKind, is_approval
from noetic_py.core.derivation import ContextMemory
from noetic_py.core.items import FunctionCallOutput, Item, ItemBase
from noetic_py.core.log import Origin
from noetic_py.core.runtime import Trace
from noetic_py.core.types import MAX_NESTING, Version
from noetic_py.core.values import is_list
from noetic_py.errors import CodecError, LimitExceeded, NoeticError
from noetic_py.journal import patches, values
from noetic_py.journal.changes import VIEW, ViewChange
from noetic_py.journal.fields import (
    ALWAYS,
    ANYWHERE,
    CLOSED,
    HINT,
    NEEDED,
    OF_THE_RUN,
    Fits,
    Form,
    NamedBy,
    StoredKey,
    When,
    check_fields,
    form_of,
    or_none,
    read_fields,
    refuse,
    refuse_transformed,
    write_fields,
)
from noetic_py.journal.stored import Record
from noetic_py.redaction import with_article

_KIND = StoredKey("k")
_USAGE, _COST, _CONTROL, _TOOL = (
    values.USAGE.or_null(),
    values.COST.or_null(),
    values.CONTROL.or_null(),
    values.TEXT.or_null(),
)
_TEXT_OR_NULL = values.TEXT.or_null()
_ITEMS, _CHANGES, _LAYERS = values.ITEMS.or_null(), values.CHANGES.or_null(), values.LAYERS.or_null()


def _has_own_output(step: "StepFinished") -> bool:
    return not isinstance(step.output, values.SameAsChild)


def _has_childs_output(step: "StepFinished") -> bool:
    return isinstance(step.output, values.SameAsChild)


def _has_layers(revised: "StateRevised") -> bool:
    return bool(revised.layers)


def _has_value(progressed: "Progressed") -> bool:
    return progressed.what == "set"


def _decided(decision: "Decision") -> str:
    return decision.key.partition("[")[0]


@frozen
class Base:
    """Where a session stood when one of its turns began.

    Attributes:
        app: The session's application, `None` when it has none.
        user: Its user.
        session: Its name.
        position: How many records its stream held; -1 where the run holds itself what it began with.
    """

    app: Annotated[str | None, _TEXT_OR_NULL]
    user: Annotated[str | None, values.TEXT]
    session: Annotated[str, values.TEXT]
    position: Annotated[int, values.POSITION]


@define(eq=False)
class Opening:
    """Further data that a durable run needs to start again in another process.

    Attributes:
        fingerprint: The flow's.
        items: The conversation that it began with, unless `base` has it.
        state: The state that it began with.
        user_id: The owner of the run.
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
        view: How a model was shown the conversation last, unless `base` has it.
        asked: Where in that conversation a message of the user's stands that no run has answered.
        parent: The run that waits for it, where a step of that one has started it.
    """

    fingerprint: Annotated[str, StoredKey("f"), values.TEXT]
    items: Annotated[tuple[Item, ...], StoredKey("i"), values.ITEMS]
    state: Annotated[object, StoredKey("s"), values.TREE]
    user_id: Annotated[str | None, StoredKey("user"), _TEXT_OR_NULL]
    request_id: Annotated[str | None, StoredKey("request"), _TEXT_OR_NULL]
    metadata: Annotated[Mapping[str, Any], StoredKey("meta"), values.METADATA]
    source: Annotated[str | None, StoredKey("source"), _TEXT_OR_NULL]
    budget: Annotated[Mapping[str, Any] | None, StoredKey("budget"), values.LIMITS, NEEDED] = None
    version: Annotated[int, StoredKey("v"), values.ATTEMPT] = 1
    base: Annotated[Base | None, StoredKey("session"), values.nested(Base, "a list")] = None
    depth: Annotated[int, StoredKey("depth"), values.COUNT] = 0
    turns: Annotated[int, StoredKey("turns"), values.COUNT] = 0
    trace: Annotated[Trace | None, StoredKey("trace"), values.TRACE] = None
    origins: Annotated[Sequence[tuple[int, Origin | None]], StoredKey("o"), values.ORIGINS] = ()
    asked: Annotated[int | None, StoredKey("asked"), values.COUNT] = None
    memory: Annotated[ContextMemory | None, StoredKey("memory"), values.MEMORY] = None
    view: Annotated[Mapping[str, Any], StoredKey("shown"), values.OBJECT] = field(factory=dict[str, Any])
    parent: Annotated[str | None, StoredKey("parent"), _TEXT_OR_NULL] = None


@define(eq=False)
class RunBegun:
    """The head of a journal: which flow, with which input, from which conversation."""

    path: Annotated[values.Path, OF_THE_RUN]
    run_id: Annotated[str, StoredKey("run"), values.TEXT]
    thread_id: Annotated[str, StoredKey("thread"), values.TEXT]
    flow: Annotated[str, StoredKey("flow"), values.TEXT]
    input: Annotated[object, StoredKey("in"), values.VALUE]
    history: Annotated[int, StoredKey("n"), values.COUNT]
    opening: Annotated[Opening | None, StoredKey("opening"), values.nested(Opening, "an object")] = None


@define(eq=False)
class StepOpened:
    """A composite or a body with children is in flight; written with the first commit below it.

    Attributes:
        path: The step.
        kind: Its kind.
        attempt: Which attempt, from 1.
        fence: The owner that started it. A later one starts the body again: what it had written itself is discarded.
    """

    path: values.Path
    kind: Annotated[str, values.TEXT]
    attempt: Annotated[int, values.ATTEMPT]
    fence: Annotated[int, values.COUNT, ALWAYS] = 0


@define(eq=False)
class Segment:
    """Own work of a body in flight, up to a child call: the items it appended, and how it changed the state.

    Attributes:
        before: The child in flight that has its place already, where changes of the state are written later than the
            items beside them.
    """

    path: Annotated[values.Path, ANYWHERE]
    attempt: Annotated[int, values.ATTEMPT]
    items: Annotated[tuple[Item, ...], values.ITEMS]
    delta: Annotated[tuple[patches.Change, ...], values.CHANGES, NEEDED] = ()
    memory: Annotated[values.LayerDeltas, values.LAYERS] = ()
    before: Annotated[str | None, values.TEXT] = None


@define(eq=False)
class ChildReplayed:
    """A body that was started again has called a child that had finished before: here stands what that one left."""

    path: values.Path


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
        tool_error: The error of a model's tool call; the model got it, and the step has finished.
        loop_stops: The loops that were asked to end, here or below, and with which values, and the step that is to hand
            over, and to whom; in a durable run.
        cut: Those of these loops that were to end in the middle of the round; in a durable run.
        view: How what the model was shown differs from what it was shown before; in a durable run.
    """

    path: values.Path
    kind: Annotated[str, _KIND, values.TEXT]
    input: object = None
    attempt: Annotated[int, StoredKey("n"), values.ATTEMPT] = 1
    fingerprint: Annotated[str, StoredKey("f"), values.TEXT] = ""
    digest: Annotated[str | None, StoredKey("d"), _TEXT_OR_NULL] = None
    memory: Annotated[values.LayerDeltas, StoredKey("y"), _LAYERS] = ()
    items: Annotated[tuple[Item, ...], StoredKey("i"), _ITEMS] = ()
    delta: Annotated[tuple[patches.Change, ...], StoredKey("s"), _CHANGES] = ()
    usage: Annotated[TokenUsage | None, StoredKey("u"), _USAGE] = None
    cost: Annotated[Decimal | None, StoredKey("c"), _COST] = None
    control: Annotated[Control | None, StoredKey("x"), _CONTROL] = None
    winner: Annotated[int | None, StoredKey("w"), values.COUNT.or_null()] = None
    takes: Annotated[tuple[values.Path, ...], StoredKey("t"), values.PATHS] = ()
    calls: Annotated[int, StoredKey("m"), values.COUNT] = 0
    tool: Annotated[str | None, StoredKey("tool"), _TOOL] = None
    tool_error: Annotated[str | None, StoredKey("te"), _TEXT_OR_NULL] = None
    loop_stops: Annotated[tuple[tuple[values.Path, object], ...], StoredKey("l"), values.LOOP_STOPS] = ()
    cut: Annotated[tuple[values.Path, ...], StoredKey("cut"), values.PATHS] = ()
    view: Annotated[ViewChange | None, StoredKey("v"), VIEW] = None
    output: Annotated[
        object,
        *(StoredKey("o", absent=values.Stored(None)), values.VALUE, When(_has_own_output)),
        *(StoredKey("r"), values.CHILD, When(_has_childs_output)),
    ] = None

    def __init__(self, path: values.Path, kind: str, input: object, output: object) -> None:
        self.path = path
        self.kind = kind
        self.input = input
        self.output = output

    def __repr__(self) -> str:
        return f"StepFinished({'/'.join(self.path)}, {self.kind}, output={self.output!r}, items={len(self.items)})"

    def check(self) -> None:
        """Check what no single field tells.

        Raises:
            CodecError: It has not the output of a step of its kind.
        """
        check_output(self.kind, self.path, getattr(self.output, "tree", None), self.items)


@define(eq=False)
class AttemptFailed:
    """An attempt failed. Not final: everything below the path is discarded. Final: an outcome like a result.

    Attributes:
        held: Whether bodies around it had changed the state and that was not written, although the items before it
            were; in a durable run.
    """

    path: values.Path
    kind: Annotated[str, _KIND, values.TEXT]
    attempt: Annotated[int, StoredKey("n"), values.ATTEMPT]
    final: Annotated[bool, StoredKey("final"), values.FLAG]
    error: Annotated[NoeticError, StoredKey("e"), values.ERROR]
    usage: Annotated[TokenUsage | None, StoredKey("u"), _USAGE]
    cost: Annotated[Decimal | None, StoredKey("c"), _COST]
    control: Annotated[Control | None, StoredKey("x"), _CONTROL]
    calls: Annotated[int, StoredKey("m"), values.COUNT] = 0
    tool: Annotated[str | None, StoredKey("tool"), _TOOL] = None
    held: Annotated[bool, StoredKey("h"), values.FLAG] = False


@define(eq=False)
class StepStopped:
    """An attempt was cancelled: its own unwritten work is discarded, what it used is not.

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

    path: values.Path
    kind: Annotated[str, _KIND, values.TEXT]
    attempt: Annotated[int, StoredKey("n"), values.ATTEMPT]
    items: Annotated[tuple[Item, ...], StoredKey("i"), _ITEMS]
    delta: Annotated[tuple[patches.Change, ...], StoredKey("s"), _CHANGES]
    usage: Annotated[TokenUsage | None, StoredKey("u"), _USAGE]
    cost: Annotated[Decimal | None, StoredKey("c"), _COST]
    control: Annotated[Control | None, StoredKey("x"), _CONTROL]
    takes: Annotated[tuple[values.Path, ...], StoredKey("t"), values.PATHS, ALWAYS] = ()
    memory: Annotated[values.LayerDeltas, StoredKey("y"), _LAYERS] = ()
    calls: Annotated[int, StoredKey("m"), values.COUNT] = 0
    tool: Annotated[str | None, StoredKey("tool"), _TOOL] = None


@define(eq=False)
class Decision:
    """A decision of a function for a composite: a route, a verdict's feedback, names of dynamic paths, a next input."""

    path: Annotated[values.Path, ANYWHERE]
    key: Annotated[str, values.TEXT]
    value: Annotated[Any, values.ENCODED, NamedBy(_decided)]

    def check(self) -> None:
        """Check the value by the key.

        Raises:
            CodecError: It is not what the engine decides under this key.
        """
        check_decision(self.key, self.value, self.path)


@define(eq=False)
class ResultDiscarded:
    """The result of a finished step is discarded, because its code or its input has changed."""

    path: values.Path


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

    path: Annotated[values.Path, ANYWHERE]
    version: Annotated[int, values.ATTEMPT]
    state: Annotated[Any, values.ANY_JSON]
    deltas: Annotated[Mapping[int, tuple[patches.Change, ...]], values.REVISED_CHANGES]
    layers: Annotated[Mapping[str, Version], values.VERSIONS] = field(factory=dict[str, "Version"])
    memory: Annotated[Mapping[int, values.LayerDeltas], values.REVISED_LAYERS, NEEDED, When(_has_layers)] = field(
        factory=dict[int, "values.LayerDeltas"]
    )


@define(eq=False)
class Intent:
    """A step that may run only once is about to start; without an outcome it is not known whether it did."""

    path: values.Path
    digest: Annotated[str | None, _TEXT_OR_NULL]


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

    path: values.Path
    reserved_tokens: Annotated[int, values.COUNT]
    reserved_cost: Annotated[Decimal, values.COST]
    reserved_output: Annotated[int, values.COUNT, ALWAYS] = 0
    fence: Annotated[int, values.COUNT, ALWAYS] = 0


@define(eq=False)
class Pending:
    """A step waits for an answer, and its task has ended. A later one of the same step takes the place of this one.

    Attributes:
        path: The step.
        kind: What it waits for: `"approval"`, `"result"`, `"question"`, `"timer"` or `"run"`.
        key: The request's own id; of a run its id.
        digest: Of what is asked: an answer holds for nothing else.
        call_id: The model's id of the call, empty where no model has made it.
        tool: The tool, empty for a question.
        arguments: The arguments, as JSON text; of a run what is set aside for it of the budgets around.
        prompt: What is asked.
        schema: JSON schema of the answer.
        asked: When: ISO 8601, UTC.
        expires: Until when it can be answered, likewise.
        problem: Why an earlier answer was not taken.
        rules: Of an approval what the permission layers say of the tool: of each its rules, and what holds otherwise.
    """

    path: Annotated[values.Path, CLOSED]
    kind: Annotated[RequestKind, StoredKey("kind"), values.one_of(RequestKind)]
    key: Annotated[str, StoredKey("key"), values.TEXT]
    digest: Annotated[str, StoredKey("digest"), values.TEXT]
    call_id: Annotated[str, StoredKey("call_id"), values.TEXT] = ""
    tool: Annotated[str, StoredKey("tool"), values.TEXT] = ""
    arguments: Annotated[str, StoredKey("arguments"), values.ARGUMENTS] = "{}"
    prompt: Annotated[str, StoredKey("prompt"), values.TEXT] = ""
    schema: Annotated[Any, StoredKey("schema"), values.OBJECT.or_null()] = None
    asked: Annotated[str, StoredKey("asked"), values.TIME, NEEDED] = ""
    expires: Annotated[str | None, StoredKey("expires"), values.TIME.or_null()] = None
    problem: Annotated[str | None, StoredKey("problem"), _TEXT_OR_NULL] = None
    rules: Annotated[Any, StoredKey("rules"), values.RULES.or_null()] = None

    def check(self) -> None:
        """Check what is set aside for a run.

        Raises:
            CodecError: It is not an amount of each dimension.
        """
        if self.kind == "run" and not all(map(values.is_cost, json.loads(self.arguments).values())):
            raise refuse(self.arguments, "arguments", "Pending of a run", "the text of a number for each", self.path)

    @property
    def is_approval(self) -> bool:
        """Whether a tool waits to be approved."""
        return is_approval(self.kind)


@define(eq=False)
class Answered:
    """A request was answered.

    Attributes:
        path: The step.
        key: The request.
        decision: `"approved"`, `"rejected"` or `"answered"`.
        value: JSON of the answer.
        reason: Why not.
        by: The name of the person who answered.
        at: When: ISO 8601, UTC.
        arguments: Of an approval the arguments in place of the model's own, as JSON text; `None` for these.
    """

    path: Annotated[values.Path, CLOSED]
    key: Annotated[str, StoredKey("key"), values.TEXT]
    decision: Annotated[Decided, StoredKey("decision"), values.one_of(Decided)]
    value: Annotated[Any, StoredKey("value"), values.ANY_JSON] = None
    reason: Annotated[str, StoredKey("reason"), values.TEXT] = ""
    by: Annotated[str | None, StoredKey("by"), _TEXT_OR_NULL] = None
    at: Annotated[str, StoredKey("at"), values.TIME] = ""
    arguments: Annotated[str | None, StoredKey("arguments"), values.ARGUMENTS.or_null()] = None


@define(eq=False)
class Progressed:
    """The reported progress of a step; a later record of the same step replaces it.

    It is discarded with an attempt of the step or of one around it, after a retry or a lost race. It stays when a later
    owner starts the body again.

    Attributes:
        path: The step.
        what: `"set"` to a value, `"done"`, or `"cleared"`.
        value: JSON of the value.
    """

    path: Annotated[values.Path, ANYWHERE]
    what: Annotated[Literal["set", "done", "cleared"], values.one_of(Literal["set", "done", "cleared"])]
    value: Annotated[Any, values.ENCODED, NEEDED, When(_has_value)] = None


@define(eq=False)
class Folded:
    """Sums up the first rounds of a loop: a process that resumes the run reads it in place of their records.

    Attributes:
        path: The loop.
        next: The name of the first round that it does not sum up; that round has finished.
        rounds: How many rounds it sums up.
        first: The position of the first record that it stands for.
        end: The position behind the last one.
        kept: The positions in between of records that are read all the same, because they are not of these rounds.
        iterations: How many iterations of loops these rounds count as.
        steps: How many steps.
        usage: The tokens that they have used; `None` for none.
        cost: USD likewise.
        calls: How many model calls they have made.
        unpriced: Whether one of these has no known price.
        stepped: Whether a step had finished in the execution, so that there is a last one.
        delta: How they have changed the state.
        stands: Whether it was read in place of these records; in its own place it says nothing about the run.
    """

    path: Annotated[values.Path, CLOSED]
    next: Annotated[str, StoredKey("next"), values.TEXT]
    rounds: Annotated[int, StoredKey("rounds"), values.ATTEMPT]
    first: Annotated[int, StoredKey("first"), values.ATTEMPT]
    end: Annotated[int, StoredKey("end"), values.ATTEMPT]
    kept: Annotated[tuple[int, ...], StoredKey("kept"), values.POSITIONS] = ()
    iterations: Annotated[int, StoredKey("iterations"), values.COUNT] = 0
    steps: Annotated[int, StoredKey("steps"), values.COUNT] = 0
    usage: Annotated[TokenUsage | None, StoredKey("usage"), _USAGE] = None
    cost: Annotated[Decimal | None, StoredKey("cost"), _COST] = None
    calls: Annotated[int, StoredKey("calls"), values.COUNT] = 0
    unpriced: Annotated[bool, StoredKey("unpriced"), values.FLAG] = False
    stepped: Annotated[bool, StoredKey("stepped"), values.FLAG] = False
    delta: Annotated[tuple[patches.Change, ...], StoredKey("delta"), values.CHANGES] = ()
    stands: bool = False

    def round_of(self, name: str) -> int | None:
        """The number of the loop's round that a frame below the loop is; `None` where it is none."""
        head = self.next.rpartition("[")[0] + "["
        number = name[len(head) : -1] if name.startswith(head) else ""
        return int(number) if number.isdecimal() else None

    def stands_for(self, name: str) -> bool:
        """Whether a frame below the loop is one of these rounds."""
        number = self.round_of(name)
        return number is not None and number < self.rounds

    def check(self) -> None:
        """Check what no single field tells.

        Raises:
            CodecError: It stands for no records, or keeps others than these, or names no round.
        """
        if not self.first < self.end:
            raise refuse(self.end, "end", "Folded", f"more than {self.first}")
        if [*self.kept] != sorted({one for one in self.kept if self.first <= one < self.end}):
            raise refuse(self.kept, "kept", "Folded", f"positions from {self.first} to {self.end}, in order")
        if not self.next.endswith(f"[{self.rounds}]"):
            raise refuse(self.next, "next", "Folded", f"the name of round {self.rounds}")


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

    path: Annotated[values.Path, OF_THE_RUN]
    status: Annotated[RunStatus, values.one_of(RunStatus)]
    reason: Annotated[str | None, _TEXT_OR_NULL]
    control: Annotated[Control | None, _CONTROL]
    pending: Annotated[tuple[int, ...], values.POSITIONS] = ()


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
    | ResultDiscarded
    | StateRevised
    | Pending
    | Answered
    | Progressed
    | Folded
    | RunEnded
)

# Classes whose name in stores is another one.
_STORED_NAMES: Mapping[type[object], str] = {
    AttemptFailed: "StepFailed",
    RunBegun: "RunStarted",
    ResultDiscarded: "Voided",
}


def _stored_name(kind: type[object]) -> str:
    return _STORED_NAMES.get(kind, kind.__name__)


KINDS: Mapping[str, type[Any]] = {_stored_name(each): each for each in get_args(JournalRecord)}
"""The classes of records, by their names in stores."""


def stored_name(record: JournalRecord) -> str:
    """The name of a record's kind in stores and command lines; it stays when the class gets another name."""
    return _stored_name(type(record))


# ------------------------------------------------------------ decisions, and outputs of the engine's own steps


def _anything(_: object) -> bool:
    return True


def _is_verdict(value: object) -> bool:
    return (
        is_list(value)
        and len(value) in (3, 4)
        and values.is_flag(value[0])
        and all(map(values.is_optional_text, value[1:3]))
        and all(map(values.is_flag, value[3:]))
    )


def asks_for(*kinds: StopKind) -> Fits:
    """The check of the stored form of a stop that is asked for, of one of these kinds."""
    return values.object_of(
        {"kind": lambda value: value in kinds},
        {"value": _anything, "reason": values.is_text, "by": values.is_optional_text, "key": values.is_text},
    )


# The stored outputs of the engine's own steps, by kind.
_OUTPUTS: Mapping[str, tuple[Fits, str]] = {
    "answer": (
        lambda value: (
            is_list(value)
            and len(value) == 5
            and or_none(values.is_usage)(value[0])
            and or_none(values.object_of({"$": lambda mark: mark == "decimal", "v": values.is_cost}))(value[1])
            and all(map(values.is_optional_text, value[2:]))
        ),
        "[usage, cost, stop reason, model, response id]",
    ),
    "gather": (is_list, "a list"),
    "handing": (values.object_of({"to": values.is_optional_text, "value": _anything}), "an object of to and value"),
    "send": (values.pair_of(values.is_text, _anything), "[channel, value]"),
}
JUDGING: Final = "hooks[before_tool_call]"
"""The frame, up to its number, of the step in which hooks and layers judge a call of an answer."""
_IS_CALL_OUTPUT: Fits = values.object_of(
    {
        "$": lambda mark: mark == "item",
        "v": values.object_of({"type": lambda name: name == "function_call_output"}),
    }
)
_JUDGED: tuple[Fits, str] = (
    lambda value: (
        is_list(value)
        and len(value) == 5
        and all(map(values.is_optional_text, value[:4]))
        and or_none(_IS_CALL_OUTPUT)(value[4])
    ),
    "[arguments, shown arguments, question, refusal, output]",
)
CHILD_USED: Final = "child"
"""The key of the decision that says what a run that another worker has carried out has used."""
MESSAGE: Final = "message"
"""The key, up to its bracket, of the run's decisions that put messages of other processes into its channels."""
# The engine's decisions about a step, by the key up to its number, as they are read.
_DECISIONS: Mapping[str, tuple[Fits, str]] = {
    "route": (values.is_optional_text, "the id of a step or null"),
    "paths": (values.is_path, "ids of steps"),
    "wrap_up": (lambda value: isinstance(value, tuple) and values.is_path(value), "a path"),
    "verdict": (
        _is_verdict,
        "[stop, reason, feedback], with a fourth field when the condition failed",
    ),
    "cut": (
        lambda value: (
            is_list(value) and len(value) in (2, 3) and type(value[0]) is int and all(map(values.is_flag, value[1:]))
        ),
        "[scope, timed] or [scope, timed, held]",
    ),
    "between": (values.each_of(lambda item: isinstance(item, ItemBase)), "a list of items"),
    "begun": (
        values.each_of(
            lambda value: (
                is_list(value) and len(value) == 2 and values.is_path(value[0]) and values.is_attempt(value[1])
            )
        ),
        "a list of [path, attempt]",
    ),
    "valueless": (lambda value: value is True, "true"),
    CHILD_USED: (
        values.object_of(
            {
                "run": values.is_text,
                "steps": values.is_count,
                "calls": values.is_count,
                "usage": values.is_usage,
                "cost": lambda value: value is None or values.is_cost(value),
                "tools": values.is_path,
            }
        ),
        "what a run has used",
    ),
    "asked": (asks_for(*SETTLING), "a stop that was asked for"),
    MESSAGE: (values.pair_of(values.is_text, _anything), "[channel, value]"),
    "launched": (
        values.object_of(
            {
                "step": values.is_text,
                "fingerprint": values.is_text,
                "count": values.is_count,
                "input": values.is_text,
                "state": values.is_text,
                "bag": values.is_flag,
                "version": values.is_attempt,
                "budget": values.is_limits,
            }
        ),
        "what was started",
    ),
}
_TAKEN = (values.is_path, "the path of a send")
_CALL = re.compile(r"\[\d{1,9}\]\Z")


def check_output(kind: str, path: values.Path, tree: object, items: Sequence[Item]) -> None:
    """Check the output of a finished step, which the engine's own steps know the form of.

    Args:
        kind: The step's kind.
        path: The step.
        tree: Its output in its stored form, `None` where it has none of its own.
        items: Its items.

    Raises:
        CodecError: It has another form; or it is a tool call without a number, or without its output.
    """
    of_kind = f"StepFinished of kind {kind}"
    known = _JUDGED if path[-1].partition("#")[0] == JUDGING else _OUTPUTS.get(kind)
    if known is not None and not known[0](tree):
        raise refuse(tree, "output", of_kind, known[1], path)
    if kind == "tool_call":
        if not _CALL.search(path[-1]):
            raise refuse("/".join(path), "path", of_kind, "a frame with a number, such as [0]")
        if not isinstance(items[-1] if items else None, FunctionCallOutput):
            raise refuse(len(items), "items", of_kind, "an output as the last one")


def check_decision(key: str, value: object, path: values.Path) -> None:
    """Check what was decided for a step, as it was read.

    Raises:
        CodecError: It is not what the engine decides under this key.
    """
    name, bracket, end = key.partition("[")
    found = _TAKEN if bracket and end.endswith(".from") else _DECISIONS.get(name)
    if found is not None and not found[0](value):
        raise refuse(value, f"value of {key:.60}", "Decision", found[1], path)


# --------------------------------------------------------------------------------------------------------- bytes


MAX_RECORD_BYTES = 64 * 1024 * 1024
"""How long a stored record may be."""
_MOST_WRITTEN = MAX_RECORD_BYTES - 1024 * 1024
"""How long one may be that is written: there has to be room beside it for the small ones of its transaction."""
_NESTING = MAX_NESTING + 16
"""How deep: a value as deep as values may be, in a record."""
MAX_FRAMES = 512
"""How many frames a path may have: far more than runs can be nested, far less than recursion can bear."""


def dump_record(record: JournalRecord, codec: Codec) -> Record:
    """A record as bytes.

    Raises:
        CodecError: Something in it cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    payload = dump(write_fields(record, codec))
    if len(payload) > _MOST_WRITTEN:
        raise LimitExceeded("record size", _MOST_WRITTEN, hint="keep large values in files, and store their names")
    return Record(stored_name(record), record.path, payload)


def load_record(stored: Record, codec: Codec) -> JournalRecord:
    """The record that these bytes are.

    Raises:
        CodecError: They are not a record of this version, or the value of a field is not valid; the message names it.
        TransformMissing: Only a record transform can read them, which is not here.
    """
    refuse_transformed(stored.payload, stored.path)
    kind = KINDS.get(stored.kind)
    if kind is None:
        raise CodecError(
            f"a record of kind {stored.kind!r:.60}, which this version does not know", hint="install a newer noetic-py"
        )
    form = form_of(kind)
    try:
        fields = parse(stored.payload, MAX_RECORD_BYTES, "record size", nesting=_NESTING)
        _check_path(form, stored.path, stored.kind)
        check_fields(form, fields, stored.kind, stored.path)
        record: Any = read_fields(form, fields, codec, stored.kind, stored.path)
        if form.check is not None:
            form.check(record)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise CodecError(
            f"is not a valid {stored.kind}: {type(error).__name__}: {error}", where="/".join(stored.path)
        ) from error
    made: JournalRecord = record
    return made


def _check_path(form: Form, path: values.Path, kind: str) -> None:
    if bool(path) == (OF_THE_RUN in form.marks) and ANYWHERE not in form.marks:
        raise refuse("/".join(path), "path", kind, "none" if path else "the frames of a step")
    if len(path) > MAX_FRAMES:
        raise refuse(len(path), "path", kind, f"at most {MAX_FRAMES} frames")


def check_journal(records: Sequence[JournalRecord], run_id: str) -> None:
    """Check what the records of one journal say of each other.

    Args:
        records: All of them.
        run_id: The run, for messages.

    Raises:
        CodecError: One refers to a record that is not there; `where` is its number and the field.
    """
    finished: set[values.Path] = set()
    for position, record in enumerate(records):
        wrong: tuple[str, str] | None = None
        match record:
            case StepFinished():
                if isinstance(record.output, values.SameAsChild) and (*record.path, record.output.name) not in finished:
                    wrong = "output", f"the name of a child that has finished, not {record.output.name!r:.60}"
                finished.add(record.path)
            case RunBegun() if position:
                wrong = "kind", "one RunStarted, at the beginning"
            case StateRevised() if any(at >= position for at in record.deltas):
                wrong = "deltas", "positions of records before it"
            case RunEnded() if not all(at < position and isinstance(records[at], Pending) for at in record.pending):
                wrong = "pending", "positions of requests before it"
            case _:
                pass
        if wrong is not None:
            raise CodecError(
                f"the {wrong[0]} of {with_article(stored_name(record))} is not valid; expected {wrong[1]}",
                where=f"record {position + 1} of run {run_id}",
                path=record.path,
                hint=HINT,
            )
