"""Reading a journal back: the conversation is the fold of the layouts from the root, whatever order the records have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from noetic_py.checkpoints.records import Segment, StepFailed, StepFinished, StepOpened, StepStopped
from noetic_py.items import FunctionCallOutput

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import JournalRecord, Path
    from noetic_py.items import Item

__all__ = ["items_below"]

# What the parent's conversation gets of a section's paths: a race its winner's items, a round of tools their outputs.
_WALLS = frozenset({"spawn", "parallel", "gather"})


@define(eq=False)
class _Node:
    """One step as the journal knows it; its layout holds items and children in order."""

    name: str
    kind: str = ""
    layout: list[tuple[Item, ...] | _Node] = field(factory=list["tuple[Item, ...] | _Node"])
    children: dict[str, _Node] = field(factory=dict[str, "_Node"])
    finished: StepFinished | None = None
    dead: bool = False

    def child(self, name: str) -> _Node:
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = _Node(name)
            self.layout.append(found)
        return found

    def void(self) -> None:
        self.layout.clear()
        self.children.clear()
        self.dead = False
        self.finished = None


def _tree(journal: Sequence[JournalRecord], below: Path) -> _Node:
    root = _Node("")
    depth = len(below)
    for record in journal:
        path = record.path
        if path[:depth] != below:
            continue
        if not isinstance(record, (StepOpened, Segment, StepFinished, StepFailed, StepStopped)):
            continue
        node = root
        for name in path[depth:]:
            node = node.child(name)
        _apply(node, record)
    return root


def _apply(node: _Node, record: StepOpened | Segment | StepFinished | StepFailed | StepStopped) -> None:
    match record:
        case StepOpened():
            node.kind = record.kind
        case Segment():
            node.layout.append(record.items)
        case StepFinished():
            node.kind = record.kind
            node.finished = record
            node.layout.append(record.items)
        case StepFailed(final=False):
            node.void()
        case StepFailed():
            node.kind = record.kind
            node.dead = True
        case StepStopped():
            node.kind = record.kind
            node.layout.append(record.items)


def items_below(journal: Sequence[JournalRecord], path: Path) -> list[Item]:
    """The items that the steps at and below a path have put into the conversation of that path."""
    root = _tree(journal, path)
    root.dead = True
    return list(_visible(root, top=True))


def _visible(node: _Node, *, top: bool = False) -> Iterator[Item]:
    if not top and node.kind in _WALLS:
        yield from _through_wall(node)
        return
    if node.kind == "tool_call":
        yield from _outputs(node)
        return
    layout = _in_call_order(node.layout) if node.kind == "model" else node.layout
    last = layout[-1] if layout else None
    for entry in layout:
        if isinstance(entry, tuple):
            yield from entry
        # A failure that was handled leaves nothing; one that ended its parent too shows how far things had come.
        elif not entry.dead or (node.dead and entry is last):
            yield from _visible(entry)


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
