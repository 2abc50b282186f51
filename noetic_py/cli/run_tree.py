"""The tree of a run from its journal: steps, usage and failures. The flow's code is not needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import define, field

from noetic_py.core.budget import NO_USAGE, TokenUsage
from noetic_py.engine.kind import UNNAMED, Kind
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.kinds.model import ANSWER
from noetic_py.journal.records import (
    AttemptFailed,
    CallStarted,
    Decision,
    Intent,
    JournalRecord,
    ResultDiscarded,
    RunBegun,
    RunEnded,
    StepFinished,
    StepOpened,
    StepStopped,
)
from noetic_py.journal.values import Path, SameAsChild, Stored

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.core.progress import ProgressEntry


NOTHING: Any = object()
"""There is no output, which `None` is not."""
PLACE = re.compile(r"\[(\d+)\]|#(\d+)")
"""A step's place among others of its id, in a frame of a path."""


@define(eq=False)
class StepNode:
    """One step, as its records tell it.

    Attributes:
        path: The step.
        kind: Its kind, `UNNAMED` where no record names it.
        state: `"finished"`, `"failed"`, `"stopped"`, or `"open"` when it has begun and nothing says how it ended.
        attempts: How many attempts are known to have ended, and the one that is open.
        usage: Tokens that the step itself used, attempts that failed too, children apart.
        cost: USD likewise, `None` for none, or for what has no price.
        output: What it gave, as stored; `NOTHING` when it has given nothing.
        error: What it failed of last; `None` also where a step below did.
        rounds: How often its loop has decided whether to go on.
        below: Its children, in the order in which they were first heard of.
    """

    path: Path
    kind: Kind = UNNAMED
    state: str = "open"
    attempts: int = 0
    usage: TokenUsage | None = None
    cost: Decimal | None = None
    output: Any = NOTHING
    error: str | None = None
    rounds: int = 0
    below: dict[str, StepNode] = field(factory=dict[str, "StepNode"])

    def children(self) -> list[StepNode]:
        """Its children: paths of a section, rounds of a loop and repeated calls by their number."""
        first: dict[str, int] = {}
        for name in self.below:
            first.setdefault(PLACE.sub("", name), len(first))
        return [self.below[name] for name in sorted(self.below, key=lambda name: _order(name, first))]

    def all(self) -> Iterator[StepNode]:
        """The steps below it, parents first."""
        for child in self.children():
            yield child
            yield from child.all()


def _order(name: str, first: dict[str, int]) -> tuple[int, ...]:
    return (first[PLACE.sub("", name)], *(int(a or b) for a, b in PLACE.findall(name)))


@define(eq=False)
class FailedAttempt:
    """An attempt that failed.

    Attributes:
        path: The step.
        attempt: Which attempt, from 1.
        final: Whether no other attempt followed.
        error: The class of the error.
        message: What it says.
        hint: What to try next.
    """

    path: Path
    attempt: int
    final: bool
    error: str
    message: str
    hint: str | None


@define(eq=False)
class RunTree:
    """A run, as its journal tells it.

    Attributes:
        records: All records.
        started: The journal's head, `None` when it has none yet.
        root: Holds the steps.
        ended: The journal's end, when it has one.
        usage: Tokens of all attempts, discarded ones too.
        cost: USD likewise; `None` when an answer has no price.
        steps: Bodies that were started and are accounted for; one that another process starts again counts once.
        model_calls: Calls of models that have an outcome.
        failures: Attempts that failed, in order.
        asked: The stop with an outcome that was asked for from outside, when one was.
        open_calls: By path, model calls that were begun and have no outcome: they may have been charged.
    """

    records: Sequence[JournalRecord]
    started: RunBegun | None = None
    root: StepNode = field(factory=lambda: StepNode(()))
    ended: RunEnded | None = None
    usage: TokenUsage = NO_USAGE
    cost: Decimal | None = Decimal(0)
    steps: int = 0
    model_calls: int = 0
    failures: list[FailedAttempt] = field(factory=list[FailedAttempt])
    asked: Mapping[str, Any] | None = None
    open_calls: dict[Path, list[CallStarted]] = field(factory=dict[Path, list[CallStarted]])

    @property
    def flow(self) -> StepNode | None:
        """The step that the run was started with, once it has begun."""
        return None if self.started is None else self.root.below.get(self.started.flow)

    def output(self, step: StepNode) -> Any:
        """A step's output, looked up at its child when it is the same."""
        output = step.output
        if isinstance(output, SameAsChild):
            child = step.below.get(output.name)
            return NOTHING if child is None else self.output(child)
        return output.tree if isinstance(output, Stored) else output

    def value(self) -> Any:
        """The value of the run: the flow's output, or the value it was completed or wrapped up with."""
        if self.ended is not None and self.ended.status == "completed":
            control = self.ended.control
            value = None if control is None else control.value
            if value is not None:
                return getattr(value, "tree", value)
            if self.asked is not None and "value" in self.asked:
                return self.asked["value"]
        return NOTHING if self.flow is None else self.output(self.flow)

    def progress(self) -> Mapping[Path, ProgressEntry]:
        """How far its steps had come, as they said themselves."""
        from noetic_py.engine.progress import progress_of

        return progress_of(self.records)

    def items(self) -> list[Item]:
        """The conversation, with what it began with; open calls are closed."""
        from noetic_py.core.log import ItemLog
        from noetic_py.engine.journaling.fold import cause_of, items_below

        opening = None if self.started is None else self.started.opening
        log = ItemLog(() if opening is None else opening.items)
        log.extend(items_below(self.records, KINDS, (), cause_of(self.records)))
        return list(log.rendered("the run has no outcome yet" if self.ended is None else self.ended.status))


def _path_of(record: AttemptFailed) -> Path:
    return record.error.path or record.path


def read_tree(records: Sequence[JournalRecord]) -> RunTree:
    """Read a journal."""
    from noetic_py.engine.journaling.fold import Begun

    run, begun = RunTree(records), Begun(KINDS)
    for record in records:
        run.ended = None
        run.steps += len(begun.read(record))
        match record:
            case RunBegun():
                run.started = record
            case RunEnded():
                run.ended = record
            case StepFinished() | AttemptFailed() | StepStopped():
                _outcome(run, record)
            case _:
                _progress(run, record)
    return run


def _step(run: RunTree, path: Path) -> StepNode:
    step = run.root
    for depth, name in enumerate(path, 1):
        found = step.below.get(name)
        step = step.below.setdefault(name, StepNode(path[:depth])) if found is None else found
    return step


def _progress(run: RunTree, record: JournalRecord) -> None:
    match record:
        case StepOpened():
            step = _step(run, record.path)
            step.kind, step.state = KINDS[record.kind], "open"
            step.attempts = max(step.attempts, record.attempt)
        case CallStarted():
            run.open_calls.setdefault(record.path, []).append(record)
            _step(run, record.path).kind = KINDS[ANSWER.kind]
        case ResultDiscarded():
            _step(run, record.path[:-1]).below.pop(record.path[-1], None)
        case Decision() if record.key.startswith("verdict["):
            _step(run, record.path).rounds += 1
        case Decision(path=(), key="asked"):
            run.asked = record.value
        case Intent():
            step = _step(run, record.path)
            step.attempts = max(step.attempts, 1)
        case _:
            pass


def _outcome(run: RunTree, record: StepFinished | AttemptFailed | StepStopped) -> None:
    step = _step(run, record.path)
    step.kind = KINDS[record.kind]
    step.attempts = max(step.attempts, record.attempt)
    if record.calls and record.path in run.open_calls:
        # Its own calls are the last ones; those before were in flight when an earlier process died.
        del run.open_calls[record.path][-record.calls :]
    _add_usage(run, step, record)
    if isinstance(record, StepFinished):
        step.state, step.output, step.error = "finished", record.output, None
        if record.tool_error is not None:
            # The model was told, and has gone on.
            step.state, step.error = "failed", record.tool_error
            run.failures.append(FailedAttempt(record.path, record.attempt, True, "ToolFailed", record.tool_error, None))
    elif isinstance(record, StepStopped):
        step.state = "stopped"
    else:
        _failed(run, step, record)


def _failed(run: RunTree, step: StepNode, record: AttemptFailed) -> None:
    error = record.error
    if _path_of(record) == record.path:
        # Steps above fail with the same error, which is shown once.
        run.failures.append(
            FailedAttempt(record.path, record.attempt, record.final, type(error).__name__, error.message, error.hint)
        )
        step.error = error.message
    if record.final:
        step.state = "failed"
    else:
        # Another attempt follows, and what this one has done is discarded.
        step.below.clear()
        step.attempts += 1
        step.rounds = 0


def _add_usage(run: RunTree, step: StepNode, record: StepFinished | AttemptFailed | StepStopped) -> None:
    run.model_calls += record.calls
    # A call that was refused has used nothing; one that was answered, and has no cost, has no price.
    answered = step.kind.part and (record.usage is not None or isinstance(record, StepFinished))
    if answered and record.cost is None:
        run.cost = None
    if record.usage is not None:
        run.usage += record.usage
        step.usage = record.usage if step.usage is None else step.usage + record.usage
    if record.cost is not None:
        step.cost = record.cost if step.cost is None else step.cost + record.cost
        run.cost = None if run.cost is None else run.cost + record.cost
