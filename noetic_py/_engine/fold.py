"""Reading a journal back: the conversation is the fold of the layouts from the root, in whatever order records lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from noetic_py.checkpoints.records import (
    Answered,
    ChildReplayed,
    Decision,
    Intent,
    Pending,
    RunEnded,
    Segment,
    StepFailed,
    StepFinished,
    StepOpened,
    StepStopped,
    Voided,
)
from noetic_py.errors import NoeticError, ParallelFailed, StepOutcomeUnknown
from noetic_py.items import FunctionCallOutput
from noetic_py.steps.spawn import NOTHING_SHARED, SPAWNS

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import Change, JournalRecord, LayerDeltas, Path
    from noetic_py.items import Item

__all__ = ["COMPOSITES", "Node", "Own", "ended_with", "inside", "items_below", "left_by", "tree", "visible"]

# What the parent's conversation gets of a section's paths: a race its winner's items, a round of tools their outputs.
_WALLS = frozenset({*SPAWNS, "parallel", "gather", "every"})


# What these do themselves is decided or recorded elsewhere: their layout is their children, in order.
COMPOSITES = frozenset(
    {"run", "sequence", "loop", "branch", "handoff", "parallel", "gather", *SPAWNS, "detached", "every"}
)


@frozen(eq=False)
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
        begun: The children of which a void attempt had finished something, so that what stands before them was written.
        decisions: What functions have decided for it, by key.
        intents: By name, the digests of children that may run only once and whose outcome nobody knows.
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
    failed: dict[str, tuple[StepFailed, int]] = field(factory=dict[str, "tuple[StepFailed, int]"])
    tries: dict[str, int] = field(factory=dict[str, int])
    begun: set[str] = field(factory=set[str])
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
    failure: StepFailed | None = None
    over = False
    for position, record in enumerate(journal):
        if over and failure is not None:
            # The run goes on after the failure that had ended it: that is tried again.
            forget_failure(root, failure)
            failure = None
        over = isinstance(record, RunEnded)
        if isinstance(record, StepFailed) and record.final and len(record.path) == 1:
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


def forget_failure(root: Node, failure: StepFailed) -> None:
    """A failure that has ended the run is void, with what it came from; failures that somebody handled stay."""
    depth = len(root.path)
    root.cause = None
    for cause in _causes(failure.error):
        node: Node | None = root if cause.path[:depth] == root.path else None
        for name in cause.path[depth:]:
            if node is None:
                break
            node.failed.pop(name, None)
            node.tries.pop(name, None)
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
    elif isinstance(record, (StepFailed, Decision, Intent, Pending, Answered)):
        parent, node = root, root
        for name in frames:
            parent, node = node, node.child(name, place=False)
        if isinstance(record, (Pending, Answered)):
            _ask(node, record, position)
        else:
            _note(parent, node, record, position)


def _place(
    node: Node, record: StepOpened | Segment | ChildReplayed | StepFinished | StepStopped, position: int
) -> None:
    if isinstance(record, ChildReplayed):
        return
    if isinstance(record, Segment):
        node.layout.append(Own(record.items, record.delta, record.memory, position))
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


def _note(parent: Node, node: Node, record: StepFailed | Decision | Intent, position: int) -> None:
    match record:
        case Decision(key="wrap_up"):
            node.show_last(record.value)
            node.decisions[record.key] = record.value
        case Decision():
            node.decisions[record.key] = record.value
        case Intent():
            parent.intents[node.name] = record.digest
        case StepFailed(final=False) if node is not parent:
            parent.intents.pop(node.name, None)
            parent.tries[node.name] = record.attempt
            if node.layout:
                parent.begun.add(node.name)
            parent.drop(node.name)
        case StepFailed():
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


def below(journal: Sequence[JournalRecord], path: Path, cause: Path = ()) -> list[Own]:
    """All that these steps have put into the conversation and the state of that path; see `items_below`."""
    root = tree(journal, path)
    if root.cause is None:
        root.cause = cause
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
    return node.cause is not None and node.layout[-1] is entry and node.cause[: len(entry.path)] == entry.path


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
    share = SPAWNS.get(node.kind, NOTHING_SHARED)
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
