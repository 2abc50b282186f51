"""The journal read back: the conversation is the fold of the layouts from the root, in any order of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from noetic_py.context.read import StepMeta
from noetic_py.core.control import LoopStop
from noetic_py.engine.kind import UNNAMED, BodySegment, Kinds, Node
from noetic_py.errors import BudgetExceeded, NoeticError, ParallelFailed, ReplayDiverged, StepOutcomeUnknown
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    ChildReplayed,
    Decision,
    Folded,
    Intent,
    JournalRecord,
    Pending,
    ResultDiscarded,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
)

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.journal.values import Path


OPEN, CLOSE = "memory[open]", "memory[close]"
"""The steps of the engine's own that open the layers of an execution, and close them whatever has ended it."""


FOLDED: Final = "rounds[folded]"
"""The name of what stands in the layout of a loop for the rounds that a summary stands for."""


def placed(journal: Iterable[JournalRecord]) -> Iterator[tuple[int, JournalRecord]]:
    """The records with their positions, where summaries may stand for records that were not read."""
    position, kept = 0, list[int]()
    for record in journal:
        if isinstance(record, Folded) and record.stands:
            yield record.first, record
            # What it keeps follows it.
            position, kept = record.end, [*reversed(record.kept)]
        elif kept:
            yield kept.pop(), record
        else:
            yield position, record
            position += 1


def tree(journal: Sequence[JournalRecord], kinds: Kinds, below: Path = ()) -> Node:
    """The recorded steps below a path.

    Raises:
        CodecError: A record names a kind of step that there is not.
    """
    root = Node(below)
    depth = len(below)
    # Detached work commits independently, and gives neither itself nor the steps around it a place.
    beside: list[Path] = []
    once: dict[Path, Node] = {}
    failure: AttemptFailed | None = None
    over = False
    for position, record in placed(journal):
        if over and failure is not None:
            # The run goes on after the failure that had ended it: that is tried again.
            forget_failure(root, failure)
            failure = None
        over = isinstance(record, RunEnded)
        if isinstance(record, AttemptFailed) and record.final and len(record.path) == 1:
            failure = record
        if below[: len(record.path)] == record.path and discards(record):
            # The attempt that all records so far belong to is discarded.
            root = Node(below, root.kind)
            continue
        if record.path[:depth] != below:
            continue
        if isinstance(record, StepOpened) and kinds[record.kind].beside and record.path != below:
            beside.append(record.path)
        apart = max((len(each) for each in beside if record.path[: len(each)] == each), default=0)
        if isinstance(record, ChildReplayed) and record.path in once:
            _put_back(root, once[record.path], depth)
        if isinstance(record, Folded):
            _stand_for(root, record, record.path[depth:], position)
        else:
            _read(root, record, kinds, record.path[depth:], position, apart - depth)
        if isinstance(record, Intent) and record.path != below:
            once[record.path] = root.find(record.path[depth:])
    return root


def _stand_for(root: Node, record: Folded, frames: Path, position: int) -> None:
    """Put what a summary says in the place of the rounds that it stands for; in its own place it says nothing."""
    if not record.stands:
        return
    loop = root
    for name in frames:
        loop = loop.child(name)
    loop.folded = record
    rounds = Node((*record.path, FOLDED), placed=True)
    rounds.layout.append(BodySegment((), record.delta, (), position))
    loop.layout.append(rounds)


def discards(record: JournalRecord) -> bool:
    """Whether everything that was recorded at and below the path of the record is discarded."""
    return isinstance(record, ResultDiscarded) or (isinstance(record, AttemptFailed) and not record.final)


def _put_back(root: Node, node: Node, depth: int) -> None:
    """A step that may run only once is not discarded when a step around it is tried again: it stands there again."""
    above = root.find(node.path[depth:-1])
    if node.name not in above.children:
        above.children[node.name] = node
        node.placed = False


# Records with a place in their parent's layout: what the parent wrote before stands before them in the journal.
_PLACED = (StepOpened, Segment, ChildReplayed, StepFinished)


def forget_failure(root: Node, failure: AttemptFailed) -> None:
    """A failure that has ended the run is discarded, with what it came from; failures that were handled stay."""
    depth = len(root.path)
    root.cause = None
    for cause in _causes(failure.error):
        # Other code has failed in the step that it ran in, and not in the one that it did not call.
        path = cause.path[:-1] if isinstance(cause, ReplayDiverged) else cause.path
        node: Node | None = root if path[:depth] == root.path else None
        for name in path[depth:]:
            if node is None:
                break
            node.failed.pop(name, None)
            if not isinstance(cause, BudgetExceeded):
                # A step that a budget has ended continues with the same attempt.
                node.tries.pop(name, None)
            beside = list(node.failed.values()) if node.kind.at_once else []
            for record, _ in beside:
                # Only the first of the paths that a budget has ended is reported; all of them are retried.
                node.failed.pop(record.path[-1], None)
                forget_failure(root, record)
            if node.kind.at_once and isinstance(cause, BudgetExceeded):
                _forget_refused(root, node, cause)
            node = node.children.get(name)
            if node is not None:
                node.cause = None


def _forget_refused(root: Node, node: Node, cause: BudgetExceeded) -> None:
    """Discard what the same budget has ended in sections that were cancelled before they could fail of it."""
    for child in node.children.values():
        if child.finished is not None:
            continue
        # A section of which only failures were written has no named kind. A body that went on after a failure has one.
        for record, _ in list(child.failed.values()) if child.kind.at_once or child.kind is UNNAMED else ():
            error = record.error
            if isinstance(error, BudgetExceeded) and (error.dimension, error.limit) == (cause.dimension, cause.limit):
                child.failed.pop(record.path[-1], None)
                forget_failure(root, record)
        _forget_refused(root, child, cause)


def _causes(error: NoeticError) -> Iterator[NoeticError]:
    """An error and what lies behind it, from the outside."""
    yield error
    if isinstance(error, ParallelFailed):
        for each in error.failed.values():
            yield from _causes(each)


def _read(root: Node, record: JournalRecord, kinds: Kinds, frames: Path, position: int, apart: int) -> None:
    if isinstance(record, _PLACED) or (
        isinstance(record, StepStopped) and (record.control is not None or record.items)
    ):
        node = root
        for depth, name in enumerate(frames):
            if node.folded is not None and node.folded.stands_for(name):
                # A later process has only noted that this round has its place.
                return
            node = node.child(name, place=depth >= apart)
        _place(node, record, kinds, position)
    elif isinstance(record, ResultDiscarded):
        node = root
        for name in frames[:-1]:
            node = node.child(name, place=False)
        node.drop(frames[-1])
        node.failed.pop(frames[-1], None)
    elif isinstance(record, (AttemptFailed, Decision, Intent, Pending, Answered)):
        parent, node = root, root
        for name in frames:
            parent, node = node, node.child(name, place=False)
        if isinstance(record, (Pending, Answered)):
            if isinstance(record, Pending):
                # A tool that waits for approval has not started.
                parent.intents.pop(node.name, None)
            _ask(node, record, position)
        else:
            _note(parent, node, record, kinds, position)


def _place(
    node: Node, record: StepOpened | Segment | ChildReplayed | StepFinished | StepStopped, kinds: Kinds, position: int
) -> None:
    if isinstance(record, ChildReplayed):
        return
    if isinstance(record, Segment):
        node.put(BodySegment(record.items, record.delta, record.memory, position), record.before)
        return
    node.kind = kinds[record.kind]
    if isinstance(record, StepOpened):
        node.start_again(record.fence)
        return
    node.forget_shown()
    own = BodySegment(record.items, record.delta, record.memory, position)
    node.layout.append(own)
    node.takes = record.takes
    if isinstance(record, StepStopped) and record.control is None:
        node.kept = own
    if isinstance(record, StepFinished):
        own.view = None if record.view is None else record.path
        node.finished = record
        node.position = position


def _ask(node: Node, record: Pending | Answered, position: int) -> None:
    if isinstance(record, Pending):
        node.asked, node.answer = (record, position), None
    elif node.asked is not None and node.asked[0].key == record.key:
        node.answer = record


def _note(parent: Node, node: Node, record: AttemptFailed | Decision | Intent, kinds: Kinds, position: int) -> None:
    match record:
        case Decision(key="wrap_up"):
            node.show_last(record.value)
            node.decisions[record.key] = record.value
        case Decision():
            node.decisions[record.key] = record.value
        case Intent():
            parent.intents[node.name] = record.digest
        case AttemptFailed(final=False):
            parent.intents.pop(node.name, None)
            parent.tries[node.name] = record.attempt
            if node.layout:
                parent.begun[node.name] = record.held
            parent.drop(node.name)
        case AttemptFailed():
            if not isinstance(record.error, StepOutcomeUnknown):
                parent.intents.pop(node.name, None)
            node.kind = kinds[record.kind]
            node.forget_shown()
            node.cause = record.error.path
            if node is not parent:
                parent.failed[node.name] = (record, position)


def items_below(journal: Sequence[JournalRecord], kinds: Kinds, path: Path, cause: Path = ()) -> list[Item]:
    """The items that the steps at and below a path have put into the conversation of that path.

    Args:
        journal: The run's records.
        kinds: All kinds of steps.
        path: The step of the conversation.
        cause: Where the failure that ended the path came from, when one did.
    """
    return [item for segment in below(journal, kinds, path, cause) for item in segment.items]


def cause_of(journal: Sequence[JournalRecord]) -> Path:
    """Where the failure that ended a run came from; empty for a run that did not fail, or has not ended."""
    ended = journal[-1] if journal else None
    if not isinstance(ended, RunEnded):
        return ()
    if ended.control is not None:
        return () if ended.control.error is None else ended.control.error.path
    last = [each for each in journal if isinstance(each, AttemptFailed) and each.final and len(each.path) == 1]
    return last[-1].error.path or last[-1].path if last and ended.status == "failed" else ()


def below(
    journal: Sequence[JournalRecord], kinds: Kinds, path: Path, cause: Path = (), *, wrapped: bool = True
) -> list[BodySegment]:
    """All that these steps have put into the conversation and the state of that path; see `items_below`.

    `wrapped` says whether the path's own wrap-up belongs to it.
    """
    root = tree(journal, kinds, path)
    if root.cause is None:
        root.cause = cause
    if not wrapped:
        root.drop("wrap_up")
    return list(_visible(root, top=True))


def lasting(journal: Sequence[JournalRecord], kinds: Kinds, path: Path) -> list[BodySegment]:
    """What `below` gives to a run that goes on: bodies that have not succeeded run again, what they called stays."""
    root = tree(journal, kinds)
    for record, _ in list(root.failed.values()):
        forget_failure(root, record)
    node = root.find(path)
    again = {id(own) for child in node.children.values() for own in _unfinished(child)}
    return [segment for segment in _visible(node, top=True) if id(segment) not in again]


def _unfinished(node: Node) -> Iterator[BodySegment]:
    if node.finished is None:
        yield from (entry for entry in node.layout if isinstance(entry, BodySegment))
        for child in node.children.values():
            yield from _unfinished(child)


def left_by(node: Node, *, own: bool) -> list[BodySegment]:
    """The changes of a finished step in the scope that it ran in, in order; `own`: whether that was its own."""
    return list(_visible(node, top=own and node.kind.left is not None))


def visible(node: Node) -> list[BodySegment]:
    """The items and state changes of all steps below in the node's own scope."""
    return list(_visible(node, top=True))


def inside(node: Node) -> list[BodySegment]:
    """The changes of a spawn's steps in its own scope, whether or not the spawn has ended."""
    entries = [entry for entry in node.layout if isinstance(entry, Node)]
    return [own for entry in entries for own in _entry(node, entry)]


def _visible(node: Node, *, top: bool = False) -> Iterator[BodySegment]:
    kind = node.kind
    if not top and kind.is_wall:
        yield from _through_wall(node)
        return
    if not top and kind.left is not None:
        yield from kind.left(node)
        return
    for entry in node.layout if kind.ordered is None else kind.ordered(node.layout):
        if isinstance(entry, BodySegment):
            yield entry
        else:
            yield from _entry(node, entry)


def _entry(node: Node, entry: Node) -> Iterator[BodySegment]:
    """The changes of a step, unless it failed and its parent handled that."""
    if entry.cause is None or entry.shown or ended_with(node, entry):
        yield from _visible(entry)


def ended_with(node: Node, entry: Node) -> bool:
    """Whether a step's failure ended its parent too: then it shows how far things had come."""
    if node.cause is None or node.cause[: len(entry.path)] != entry.path:
        return False
    # Layers are closed after whatever has ended an execution, and that changes nothing of what has.
    return next((each for each in reversed(node.layout) if not _closes(each)), None) is entry


def _closes(entry: BodySegment | Node) -> bool:
    return isinstance(entry, Node) and entry.name == CLOSE


def _through_wall(node: Node) -> Iterator[BodySegment]:
    share = node.kind.shares
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            yield entry
        elif share is not None and (share.items or share.state):
            for segment in _entry(node, entry):
                yield BodySegment(segment.items if share.items else (), segment.delta if share.state else ())
    if node.finished is not None and node.finished.winner is not None:
        for name, child in node.children.items():
            if name.endswith(f"[{node.finished.winner}]"):
                # The winner's change of the state is the race's change.
                yield from (BodySegment(segment.items) for segment in _visible(child))


BEGUN: Final = "begun"
"""The key of a section's decision: what had begun in its other paths when one of them decided how it ends."""
DETACHED_START: Final = "launched"
"""The key of the decision that says with what work beside the flow was started."""


class Begun:
    """The attempts that have begun, each counted once, however many processes have started it."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self.attempts: set[tuple[Path, int]] = set()
        self._open: dict[Path, int] = {}

    def read(self, record: JournalRecord) -> list[Path]:
        """The steps with an attempt that a record mentions first."""
        found: list[Path] = []
        match record:
            case StepOpened() if self._kinds[record.kind].counted:
                self._open[record.path] = record.attempt
            case StepFinished() | AttemptFailed() | StepStopped():
                if self._kinds[record.kind].counted and not _refused(record):
                    found = self._count(record.path, record.attempt)
                if isinstance(record, AttemptFailed) and _starts_over(record):
                    self.forget(record.path)
            case ResultDiscarded():
                self.forget(record.path)
            case Decision() if record.key == BEGUN:
                found = [path for at, attempt in record.value for path in self._count(tuple(at), attempt)]
            case Pending():
                # A waiting step has no record of its end, and may never get one: a race can be won without it.
                around = [record.path[:depth] for depth in range(1, len(record.path) + 1)]
                found = [path for each in around if each in self._open for path in self._count(each, self._open[each])]
            case _:
                pass
        return found

    def _count(self, path: Path, attempt: int) -> list[Path]:
        if (path, attempt) in self.attempts:
            return []
        self.attempts.add((path, attempt))
        return [path]

    def forget(self, path: Path) -> None:
        """Discard what is at a path and below it; what begins there now is counted from 0."""
        depth = len(path)
        self.attempts = {each for each in self.attempts if each[0][:depth] != path}
        self._open = {each: attempt for each, attempt in self._open.items() if each[:depth] != path}


def _starts_over(record: AttemptFailed) -> bool:
    """Whether the next start there is another attempt: after the last one a resumed run begins with the first."""
    return not record.final or (record.attempt > 1 and not isinstance(record.error, BudgetExceeded))


def _refused(record: StepFinished | AttemptFailed | StepStopped) -> bool:
    """Whether a budget of steps has refused the step, so that it has not begun."""
    error = record.error if isinstance(record, AttemptFailed) else None
    return isinstance(error, BudgetExceeded) and error.dimension == "steps" and error.path == record.path


AT_LIMIT: Final = "the limit of {} rounds was reached"
"""Why a loop with `at_limit="end"` has ended."""
_ROUND: Final = re.compile(r".+\[(\d+)\]")


def last_step(child: Node) -> StepMeta | None:
    """The last completed step at or below a child, for the steps after it."""
    node = max(_done(child), key=lambda each: each.position, default=None)
    if node is None:
        return None
    return StepMeta() if node.kind.meta is None else node.kind.meta(node)


def last_verdict(child: Node) -> tuple[Path, str | None, LoopStop] | None:
    """Why the last loop at or below a finished step has ended, and which loop that is."""
    loop = max(_loops(child), key=lambda each: each.position, default=None)
    return None if loop is None else (loop.path, *_why_ended(loop))


def _why_ended(loop: Node) -> tuple[str | None, LoopStop]:
    """The verdict of a finished loop's last round."""
    rounds = filter(None, map(_ROUND.fullmatch, (*loop.children, *loop.failed)))
    last = max((int(name[1]) for name in rounds), default=0)
    verdict = loop.decisions.get(f"verdict[{last}]")
    if verdict is not None and verdict[0]:
        return verdict[1], "until_failed" if verdict[3:] else "until"
    if verdict is not None or f"on_error[{last}]" in loop.decisions:
        return AT_LIMIT.format(last + 1), "max_iterations"
    return "stop_loop", "stop_loop"


def _loops(node: Node) -> Iterator[Node]:
    if node.kind.judged and node.finished is not None:
        yield node
    for child in node.lasting:
        yield from _loops(child)


def _done(node: Node) -> Iterator[Node]:
    """The bodies at and below a node that have finished in its own execution."""
    if node.kind.counted and node.finished is not None:
        yield node
    if not node.kind.execution:
        for child in node.children.values():
            yield from _done(child)
