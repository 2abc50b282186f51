"""Reading a journal back: the conversation is the fold of the layouts from the root, in whatever order records lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from noetic_py.checkpoints.records import (
    Decision,
    Segment,
    StepFailed,
    StepFinished,
    StepOpened,
    StepStopped,
)
from noetic_py.errors import NoeticError
from noetic_py.items import FunctionCallOutput

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import JournalRecord, Path
    from noetic_py.items import Item

__all__ = ["items_below"]

# What the parent's conversation gets of a section's paths: a race its winner's items, a round of tools their outputs.
_WALLS = frozenset({"spawn", "parallel", "gather", "every"})


@define(eq=False)
class _Node:
    """One step as the journal knows it; its layout holds items and children in order."""

    path: Path = ()
    kind: str = ""
    layout: list[tuple[Item, ...] | _Node] = field(factory=list["tuple[Item, ...] | _Node"])
    children: dict[str, _Node] = field(factory=dict[str, "_Node"])
    finished: StepFinished | None = None
    # Where a failure that ended this step came from; None while it has not failed.
    cause: Path | None = None
    # Shown although it failed: what came after it, a wrap-up, was made because it did.
    shown: bool = False

    @property
    def name(self) -> str:
        return self.path[-1]

    def child(self, name: str) -> _Node:
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = _Node((*self.path, name))
            self.layout.append(found)
        return found

    def drop(self, name: str) -> None:
        """An attempt is void: the next one takes its place where the layout then ends."""
        self.layout.remove(self.children.pop(name))

    def show_last(self, cause: Path) -> None:
        """Show the steps on the way to the failure after which a wrap-up was run."""
        last = self.layout[-1] if self.layout else None
        if isinstance(last, _Node) and cause[: len(last.path)] == last.path:
            last.shown = True
            last.show_last(cause)


def _tree(journal: Sequence[JournalRecord], below: Path) -> _Node:
    root = _Node(below)
    depth = len(below)
    # What goes on beside the flow commits when it likes, and is no part of anybody's layout.
    beside: list[Path] = []
    for record in journal:
        if record.path[:depth] != below:
            continue
        if beside and any(record.path[: len(each)] == each for each in beside):
            continue
        if isinstance(record, StepOpened) and record.kind == "detached" and record.path != below:
            beside.append(record.path)
            continue
        frames = record.path[depth:]
        if isinstance(record, _PLACED) or (isinstance(record, StepStopped) and record.control is not None):
            node = root
            for name in frames:
                node = node.child(name)
            _place(node, record)
        elif (found := _find(root, frames)) is not None:
            _note(*found, record)
    return root


# What takes a place in its parent's layout: whatever the parent had not written stands before it in the journal.
_PLACED = (StepOpened, Segment, StepFinished)


def _find(root: _Node, frames: Path) -> tuple[_Node, _Node] | None:
    """The parent and the node of a path, when the path has a place already."""
    parent, node = root, root
    for name in frames:
        found = node.children.get(name)
        if found is None:
            return None
        parent, node = node, found
    return parent, node


def _place(node: _Node, record: StepOpened | Segment | StepFinished | StepStopped) -> None:
    if isinstance(record, Segment):
        node.layout.append(record.items)
        return
    node.kind = record.kind
    if not isinstance(record, StepOpened):
        node.layout.append(record.items)
    if isinstance(record, StepFinished):
        node.finished = record


def _note(parent: _Node, node: _Node, record: JournalRecord) -> None:
    match record:
        case StepFailed(final=False) if node is not parent:
            parent.drop(node.name)
        case StepFailed():
            node.kind = record.kind
            node.cause = record.error.path if isinstance(record.error, NoeticError) else record.path
        case Decision(key="wrap_up"):
            node.show_last(record.value)
        case _:
            pass


def items_below(journal: Sequence[JournalRecord], path: Path, cause: Path = ()) -> list[Item]:
    """The items that the steps at and below a path have put into the conversation of that path.

    Args:
        journal: The run's records.
        path: Whose conversation.
        cause: Where the failure that ended the path came from, when one did.
    """
    root = _tree(journal, path)
    if root.cause is None:
        root.cause = cause
    return list(_visible(root, top=True))


def _visible(node: _Node, *, top: bool = False) -> Iterator[Item]:
    if not top and node.kind in _WALLS:
        yield from _through_wall(node)
        return
    if node.kind == "tool_call":
        yield from _outputs(node)
        return
    for entry in _in_call_order(node.layout) if node.kind == "model" else node.layout:
        if isinstance(entry, tuple):
            yield from entry
        elif entry.cause is None or entry.shown or _ended(node, entry):
            yield from _visible(entry)


def _ended(node: _Node, entry: _Node) -> bool:
    """Whether a step's failure ended its parent too: then it shows how far things had come."""
    return node.cause is not None and node.layout[-1] is entry and node.cause[: len(entry.path)] == entry.path


def _in_call_order(layout: list[tuple[Item, ...] | _Node]) -> list[tuple[Item, ...] | _Node]:
    """A model round's layout: its tool calls in the order of the answer, not of their arrival."""
    calls = [entry for entry in layout if isinstance(entry, _Node) and entry.kind == "tool_call"]
    if len(calls) < 2:
        return layout
    calls.sort(key=lambda entry: int(entry.name.rpartition("[")[2][:-1]))
    place = next(at for at, entry in enumerate(layout) if entry in calls)
    others = [entry for entry in layout if not (isinstance(entry, _Node) and entry.kind == "tool_call")]
    return [*others[:place], *calls, *others[place:]]


def _outputs(node: _Node) -> Iterator[Item]:
    """Of a tool call the conversation gets the output; what else the tool wrote stays on its own path."""
    if node.finished is not None:
        yield from (item for item in node.finished.items[-1:] if isinstance(item, FunctionCallOutput))


def _through_wall(node: _Node) -> Iterator[Item]:
    for entry in node.layout:
        if isinstance(entry, tuple):
            yield from entry
    if node.finished is not None and node.finished.winner is not None:
        for name, child in node.children.items():
            if name.endswith(f"[{node.finished.winner}]"):
                yield from _visible(child)
