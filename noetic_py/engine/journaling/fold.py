"""The journal read back: the conversation is the fold of the layouts from the root, in any order of records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from noetic_py.context.context import StepMeta
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.control import LoopStop
from noetic_py.core.items import FunctionCall, FunctionCallOutput
from noetic_py.errors import BudgetExceeded, NoeticError, ParallelFailed, StepOutcomeUnknown
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    ChildReplayed,
    Decision,
    Intent,
    Pending,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
    Voided,
)
from noetic_py.steps.spawn import DERIVED, NOTHING_SHARED, SPAWNS

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.engine.state import Execution, Run
    from noetic_py.journal.records import Change, JournalRecord, LayerDeltas, Path

__all__ = [
    "AT_LIMIT",
    "BEGUN",
    "CLOSE",
    "COMPOSITES",
    "COUNTED",
    "OPEN",
    "Begun",
    "Node",
    "Own",
    "below",
    "ended_with",
    "inside",
    "items_below",
    "left_by",
    "recall",
    "recall_verdict",
    "tree",
    "visible",
]

# What the parent's conversation gets of a section's paths: a race its winner's items, a round of tools their outputs.
_WALLS = frozenset({*SPAWNS, *DERIVED, "parallel", "gather", "every"})


# What these do themselves is decided or recorded elsewhere: their layout is their children, in order.
COMPOSITES = frozenset(
    {"run", "sequence", "loop", "branch", "handoff", "agent", "parallel", "gather", "detached", "every"}
).union(SPAWNS, DERIVED)


OPEN, CLOSE = "memory[open]", "memory[close]"
"""The steps of the engine's own that open the layers of an execution, and close them whatever has ended it."""


@define(eq=False)
class Own:
    """A stretch of a body's own work: the items it appended, and how it changed the state and those of layers."""

    items: tuple[Item, ...]
    delta: tuple[Change, ...] = ()
    memory: LayerDeltas = ()
    # Where in the journal it is; -1 for what is no record's own.
    position: int = -1


@define(eq=False)
class Node:
    """One step as the journal knows it.

    Attributes:
        path: The step.
        kind: Its kind, once a record has named it.
        layout: Own work and children, in order.
        children: Every child by name, those that have no place in the layout too.
        finished: The step's record, once it is done.
        position: Where in the journal that record is.
        failed: By name, the children that have failed for good, and where in the journal that is.
        tries: By name, how many attempts of a child have failed.
        begun: The children of which a void attempt had written something, so that what stands before them was written;
            and whether changes of the state were not.
        decisions: What functions have decided for it, by key.
        intents: By name, the digests of children that may run only once and whose outcome is not known.
        takes: The messages that it has taken for good, by the paths of their sends.
        asked: What it waits for, or has waited for, and where in the journal that is.
        answer: What was answered.
    """

    path: Path = ()
    kind: str = ""
    layout: list[Own | Node] = field(factory=list["Own | Node"])
    children: dict[str, Node] = field(factory=dict[str, "Node"])
    finished: StepFinished | None = None
    position: int = 0
    failed: dict[str, tuple[AttemptFailed, int]] = field(factory=dict[str, "tuple[AttemptFailed, int]"])
    tries: dict[str, int] = field(factory=dict[str, int])
    begun: dict[str, bool] = field(factory=dict[str, bool])
    decisions: dict[str, Any] = field(factory=dict[str, "Any"])
    intents: dict[str, str | None] = field(factory=dict[str, "str | None"])
    takes: tuple[Path, ...] = ()
    asked: tuple[Pending, int] | None = None
    answer: Answered | None = None
    # Where a failure that ended this step came from; None while it has not failed.
    cause: Path | None = None
    # Shown although it failed: what came after it, a wrap-up, was made because it did.
    shown: bool = False
    # Whether it has its place in its parent's layout.
    placed: bool = False
    # What is shown of it until it runs again.
    kept: Own | None = None
    fence: int = 0

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def lasting(self) -> Iterator[Node]:
        """The children whose work counts: of a race that was won the winner."""
        record = self.finished
        for name, child in self.children.items():
            if record is None or record.winner is None or name.endswith(f"[{record.winner}]"):
                yield child

    def child(self, name: str, *, place: bool = True) -> Node:
        """A child; made, and put where the layout now ends, when it has no place yet."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Node((*self.path, name))
        if place and not found.placed:
            found.placed = True
            self.layout.append(found)
        return found

    def put(self, own: Own, before: str | None) -> None:
        """Own work, at the end of the layout; or before a child, where that has its place already."""
        child = None if before is None else self.children.get(before)
        if child is None or not child.placed:
            self.layout.append(own)
        else:
            self.layout.insert(self.layout.index(child), own)

    def holds(self, name: str) -> bool:
        """Whether a child has ended here before, so that it does not start again."""
        found = self.children.get(name)
        return name in self.failed or (found is not None and found.finished is not None)

    def find(self, frames: Path) -> Node:
        """The step at a path below; made when it is not there."""
        node = self
        for name in frames:
            node = node.child(name, place=False)
        return node

    def drop(self, name: str) -> None:
        """An attempt is void: the next one takes its place where the layout then ends."""
        found = self.children.pop(name, None)
        if found is not None and found.placed:
            self.layout.remove(found)

    def forget_kept(self) -> None:
        """It has run again, so that what was shown of it meanwhile is void."""
        if self.kept is not None and self.kept in self.layout:
            self.layout.remove(self.kept)
        self.kept = None

    def start_again(self, fence: int) -> None:
        """A later owner has started the body again: what it had written itself is void, its children are not."""
        if fence <= self.fence:
            return
        self.fence = fence
        if self.kind in COMPOSITES:
            self.layout = [entry for entry in self.layout if isinstance(entry, Node)]
            return
        self.layout.clear()
        for child in self.children.values():
            child.placed = False
            child.forget_kept()

    def show_last(self, cause: Path) -> None:
        """Show the steps on the way to the failure after which a wrap-up was run."""
        last = self.layout[-1] if self.layout else None
        if isinstance(last, Node) and cause[: len(last.path)] == last.path:
            last.shown = True
            last.show_last(cause)


def tree(journal: Sequence[JournalRecord], below: Path = ()) -> Node:
    """What the journal says of the steps below a path."""
    root = Node(below)
    depth = len(below)
    # What goes on beside the flow commits when it likes, and neither it nor what is around it gets a place by that.
    beside: list[Path] = []
    once: dict[Path, Node] = {}
    failure: AttemptFailed | None = None
    over = False
    for position, record in enumerate(journal):
        if over and failure is not None:
            # The run goes on after the failure that had ended it: that is tried again.
            forget_failure(root, failure)
            failure = None
        over = isinstance(record, RunEnded)
        if isinstance(record, AttemptFailed) and record.final and len(record.path) == 1:
            failure = record
        if record.path[:depth] != below:
            continue
        if isinstance(record, StepOpened) and record.kind == "detached" and record.path != below:
            beside.append(record.path)
        apart = max((len(each) for each in beside if record.path[: len(each)] == each), default=0)
        if isinstance(record, ChildReplayed) and record.path in once:
            _put_back(root, once[record.path], depth)
        _read(root, record, record.path[depth:], position, apart - depth)
        if isinstance(record, Intent) and record.path != below:
            once[record.path] = root.find(record.path[depth:])
    return root


def _put_back(root: Node, node: Node, depth: int) -> None:
    """A step that may run only once is not void when a step around it is tried again: it stands there again."""
    above = root.find(node.path[depth:-1])
    if above.children.get(node.name) is not node:
        above.drop(node.name)
        above.children[node.name] = node
        node.placed = False


# What takes a place in its parent's layout: whatever the parent had not written stands before it in the journal.
_PLACED = (StepOpened, Segment, ChildReplayed, StepFinished)


# What fails of one of several children that run at once.
_AT_ONCE = frozenset({"parallel", "gather", "model"})


def forget_failure(root: Node, failure: AttemptFailed) -> None:
    """A failure that has ended the run is void, with what it came from; failures that were handled stay."""
    depth = len(root.path)
    root.cause = None
    for cause in _causes(failure.error):
        node: Node | None = root if cause.path[:depth] == root.path else None
        for name in cause.path[depth:]:
            if node is None:
                break
            node.failed.pop(name, None)
            if not isinstance(cause, BudgetExceeded):
                # What a budget has ended goes on with the attempt that it was in.
                node.tries.pop(name, None)
            beside = list(node.failed.values()) if node.kind in _AT_ONCE else []
            for record, _ in beside:
                # Only the first of the paths that a budget has ended is told of, and all of them are tried again.
                node.failed.pop(record.path[-1], None)
                forget_failure(root, record)
            node = node.children.get(name)
            if node is not None:
                node.cause = None


def _causes(error: Exception) -> Iterator[NoeticError]:
    """An error and what lies behind it, from the outside."""
    if isinstance(error, NoeticError):
        yield error
        if isinstance(error, ParallelFailed):
            for each in error.failed.values():
                yield from _causes(each)


def _read(root: Node, record: JournalRecord, frames: Path, position: int, apart: int) -> None:
    if isinstance(record, _PLACED) or (
        isinstance(record, StepStopped) and (record.control is not None or record.items)
    ):
        node = root
        for depth, name in enumerate(frames):
            node = node.child(name, place=depth >= apart)
        _place(node, record, position)
    elif isinstance(record, Voided):
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
                # A tool that waits for leave has not begun its work.
                parent.intents.pop(node.name, None)
            _ask(node, record, position)
        else:
            _note(parent, node, record, position)


def _place(
    node: Node, record: StepOpened | Segment | ChildReplayed | StepFinished | StepStopped, position: int
) -> None:
    if isinstance(record, ChildReplayed):
        return
    if isinstance(record, Segment):
        node.put(Own(record.items, record.delta, record.memory, position), record.before)
        return
    node.kind = record.kind
    if isinstance(record, StepOpened):
        node.start_again(record.fence)
        return
    node.forget_kept()
    own = Own(record.items, record.delta, record.memory, position)
    node.layout.append(own)
    node.takes = record.takes
    if isinstance(record, StepStopped) and record.control is None:
        node.kept = own
    if isinstance(record, StepFinished):
        node.finished = record
        node.position = position


def _ask(node: Node, record: Pending | Answered, position: int) -> None:
    if isinstance(record, Pending):
        node.asked, node.answer = (record, position), None
    elif node.asked is not None and node.asked[0].key == record.key:
        node.answer = record


def _note(parent: Node, node: Node, record: AttemptFailed | Decision | Intent, position: int) -> None:
    match record:
        case Decision(key="wrap_up"):
            node.show_last(record.value)
            node.decisions[record.key] = record.value
        case Decision():
            node.decisions[record.key] = record.value
        case Intent():
            parent.intents[node.name] = record.digest
        case AttemptFailed(final=False) if node is not parent:
            parent.intents.pop(node.name, None)
            parent.tries[node.name] = record.attempt
            if node.layout:
                parent.begun[node.name] = record.held
            parent.drop(node.name)
        case AttemptFailed():
            if not isinstance(record.error, StepOutcomeUnknown):
                parent.intents.pop(node.name, None)
            node.kind = record.kind
            node.forget_kept()
            node.cause = record.error.path if isinstance(record.error, NoeticError) else record.path
            if node is not parent:
                parent.failed[node.name] = (record, position)


def items_below(journal: Sequence[JournalRecord], path: Path, cause: Path = ()) -> list[Item]:
    """The items that the steps at and below a path have put into the conversation of that path.

    Args:
        journal: The run's records.
        path: Whose conversation.
        cause: Where the failure that ended the path came from, when one did.
    """
    return [item for own in below(journal, path, cause) for item in own.items]


def below(journal: Sequence[JournalRecord], path: Path, cause: Path = (), *, wrapped: bool = True) -> list[Own]:
    """All that these steps have put into the conversation and the state of that path; see `items_below`.

    `wrapped` says whether the path's own wrap-up belongs to it.
    """
    root = tree(journal, path)
    if root.cause is None:
        root.cause = cause
    if not wrapped:
        root.drop("wrap_up")
    return list(_visible(root, top=True))


def left_by(node: Node, *, own: bool) -> list[Own]:
    """What a finished step has left in the domain that it ran in, in order; `own` says whether that was its own."""
    return list(_visible(node, top=own and node.kind == "tool_call"))


def visible(node: Node) -> list[Own]:
    """What all steps below have put into the conversation and the state of the node's own domain."""
    return list(_visible(node, top=True))


def inside(node: Node) -> list[Own]:
    """What the steps of a spawn's child have left in its own domain, whether or not the spawn is done."""
    entries = [entry for entry in node.layout if isinstance(entry, Node)]
    return [own for entry in entries for own in _entry(node, entry)]


def _visible(node: Node, *, top: bool = False) -> Iterator[Own]:
    if not top and node.kind in _WALLS:
        yield from _through_wall(node)
        return
    if not top and node.kind == "tool_call":
        yield from _outputs(node)
        return
    for entry in _in_call_order(node.layout) if node.kind == "model" else node.layout:
        if isinstance(entry, Own):
            yield entry
        else:
            yield from _entry(node, entry)


def _entry(node: Node, entry: Node) -> Iterator[Own]:
    """What a step has left, unless it has failed and its parent went on."""
    if entry.cause is None or entry.shown or ended_with(node, entry):
        yield from _visible(entry)


def ended_with(node: Node, entry: Node) -> bool:
    """Whether a step's failure ended its parent too: then it shows how far things had come."""
    if node.cause is None or node.cause[: len(entry.path)] != entry.path:
        return False
    # Layers are closed after whatever has ended an execution, and that changes nothing of what has.
    return next((each for each in reversed(node.layout) if not _closes(each)), None) is entry


def _closes(entry: Own | Node) -> bool:
    return isinstance(entry, Node) and entry.name == CLOSE


def _in_call_order(layout: list[Own | Node]) -> list[Own | Node]:
    """A model round's layout: its tool calls in the order of the answer, not of their arrival."""
    calls = [entry for entry in layout if isinstance(entry, Node) and entry.kind == "tool_call"]
    if len(calls) < 2:
        return layout
    calls.sort(key=lambda entry: int(entry.name.rpartition("[")[2][:-1]))
    place = next(at for at, entry in enumerate(layout) if entry in calls)
    others = [entry for entry in layout if not (isinstance(entry, Node) and entry.kind == "tool_call")]
    return [*others[:place], *calls, *others[place:]]


def _outputs(node: Node) -> Iterator[Own]:
    """Of a tool call the conversation gets the output; what else the tool wrote stays on its own path."""
    if node.finished is not None:
        outputs = [item for item in node.finished.items[-1:] if isinstance(item, FunctionCallOutput)]
        yield Own(tuple(outputs))


def _through_wall(node: Node) -> Iterator[Own]:
    share = SPAWNS.get(node.kind) or DERIVED.get(node.kind, NOTHING_SHARED)
    for entry in node.layout:
        if isinstance(entry, Own):
            yield entry
        elif share.items or share.state:
            for own in _entry(node, entry):
                yield Own(own.items if share.items else (), own.delta if share.state else ())
    if node.finished is not None and node.finished.winner is not None:
        for name, child in node.children.items():
            if name.endswith(f"[{node.finished.winner}]"):
                # What the winner did to the state is the race's own change.
                yield from (Own(own.items) for own in _visible(child))


BEGUN: Final = "begun"
"""The key of a section's decision: what had begun in its other paths when one of them decided how it ends."""
COUNTED = frozenset({"code", "handing", "model", "tool"})
"""The kinds of steps that a budget counts."""


class Begun:
    """The attempts that have begun, each counted once, however many processes have started it."""

    def __init__(self) -> None:
        self.attempts: set[tuple[Path, int]] = set()
        self._open: dict[Path, int] = {}

    def read(self, record: JournalRecord) -> list[Path]:
        """The steps of which a record tells an attempt that no record before it has told."""
        found: list[Path] = []
        match record:
            case StepOpened() if record.kind in COUNTED:
                self._open[record.path] = record.attempt
            case StepFinished() | AttemptFailed() | StepStopped():
                if record.kind in COUNTED and not _refused(record):
                    found = self._count(record.path, record.attempt)
                if isinstance(record, AttemptFailed) and _starts_over(record):
                    self.forget(record.path)
            case Voided():
                self.forget(record.path)
            case Decision() if record.key == BEGUN:
                found = [path for at, attempt in record.value for path in self._count(tuple(at), attempt)]
            case Pending():
                # What waits has no record of its end, and may never get one: a race can be won without it.
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
        """What is at a path and below it is void: whatever begins there now is counted anew."""
        depth = len(path)
        self.attempts = {each for each in self.attempts if each[0][:depth] != path}
        self._open = {each: attempt for each, attempt in self._open.items() if each[:depth] != path}


def _starts_over(record: AttemptFailed) -> bool:
    """Whether what begins there next is another attempt: after the last one a resumed run begins with the first."""
    return not record.final or (record.attempt > 1 and not isinstance(record.error, BudgetExceeded))


def _refused(record: StepFinished | AttemptFailed | StepStopped) -> bool:
    """Whether a budget of steps has refused the step, so that it has not begun."""
    error = record.error if isinstance(record, AttemptFailed) else None
    return isinstance(error, BudgetExceeded) and error.dimension == "steps" and error.path == record.path


AT_LIMIT: Final = "the limit of {} rounds was reached"
"""Why a loop with `at_limit="end"` has ended."""
_ROUND: Final = re.compile(r".+\[(\d+)\]")


def recall(x: Execution, child: Node) -> None:
    """Let the execution know what it has done last."""
    node = max(_done(child), key=lambda each: each.position, default=None)
    if node is None:
        return
    answers = [each for each in node.children.values() if each.kind == "answer" and each.finished is not None]
    answer = max(answers, key=lambda each: each.position).finished if answers and node.kind == "model" else None
    if answer is None:
        x.last_step = StepMeta()
        return
    calls = tuple(item for item in answer.items if isinstance(item, FunctionCall))
    if any(_is_answer(each) for each in node.children.values()):
        calls = ()
    x.last_step = StepMeta(calls, answer.usage or NO_USAGE, answer.cost, answer.items)


def _is_answer(call: Node) -> bool:
    """Whether a call's output stands for the answer of its round."""
    items = () if call.finished is None or call.kind != "tool_call" else call.finished.items
    return any(isinstance(item, FunctionCallOutput) and item.final for item in items)


def recall_verdict(run: Run, child: Node) -> None:
    """Let the run know why the last loop at or below a finished step has ended."""
    loop = max(_loops(child), key=lambda each: each.position, default=None)
    if loop is not None:
        run.verdict = (loop.path, *_why_ended(loop))


def _why_ended(loop: Node) -> tuple[str | None, LoopStop]:
    """What a finished loop says of its last round."""
    rounds = filter(None, map(_ROUND.fullmatch, (*loop.children, *loop.failed)))
    last = max((int(name[1]) for name in rounds), default=0)
    verdict = loop.decisions.get(f"verdict[{last}]")
    if verdict is not None and verdict[0]:
        return verdict[1], "until_failed" if verdict[3:] else "until"
    if verdict is not None or f"on_error[{last}]" in loop.decisions:
        return AT_LIMIT.format(last + 1), "max_iterations"
    return "stop_loop", "stop_loop"


def _loops(node: Node) -> Iterator[Node]:
    if node.kind == "loop" and node.finished is not None:
        yield node
    for child in node.lasting:
        yield from _loops(child)


def _done(node: Node) -> Iterator[Node]:
    """The bodies at and below a node that have finished in its own execution."""
    if node.kind in ("code", "handing", "model", "tool") and node.finished is not None:
        yield node
    if node.kind not in SPAWNS or node.kind == "with_memory":
        for child in node.children.values():
            yield from _done(child)
