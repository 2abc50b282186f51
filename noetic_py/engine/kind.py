"""Kinds of steps, and steps as recorded in the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from attrs import define, field, frozen

from noetic_py.context.read import StepMeta
from noetic_py.context.step import Body
from noetic_py.core.items import Item
from noetic_py.errors import CodecError, PluginError
from noetic_py.journal.patches import Change
from noetic_py.journal.records import Answered, AttemptFailed, Folded, Pending, StepFinished
from noetic_py.journal.values import LayerDeltas, Path
from noetic_py.steps.kind import is_kind_name


@frozen
class Shared:
    """The parts of its parent that a child works on: the conversation, the state, both or neither."""

    items: bool
    state: bool


async def _no_interpreter(value: object, frame: Any) -> object:
    raise TypeError(f"{frame.step!r} has no body of its own")


@frozen(eq=False, repr=False)
class Kind:
    """A kind of step: how it runs, how its record is written and read, and what its children are to it.

    The defaults are those of a leaf: it has no children, does its own work, and stores its output as a value.

    Attributes:
        name: As steps, records and events name it.
        run: Runs a step of the kind, given its input and its frame; a step that brings a body of its own runs that.
        counted: Whether a budget of steps counts it.
        declared: Whether a flow declares such steps; the engine's own have no fingerprint in their records.
        part: Whether it is shown as a part of the step above it, and as far as it had come when a shutdown cut it off.
        reported: Whether it is reported when it holds the event loop; the library's own work is not.
        digested: Whether a digest of its input is recorded; not where the input follows from other records.
        essence: What of its input identifies a call, for the digest; `None` for all of it.
        stored: Whether its record holds its output; where not, that stands in the record's items, or in another one.
        dump: What is stored for its input and output, where that is not the output as a value.
        load: Its output from its node in the journal, where it is not stored as a value.
        reconcile: Asks whether a step that may run only once has done its work; the step's own `reconcile` when `None`.
        meta: What `ctx.last_step` says after it, from its node.
        composite: Whether it does nothing itself: its layout is its children, in order, and stands when it runs again.
        in_order: Whether it calls one child after the other, and nothing new before all that is recorded.
        at_once: Whether its children run at once, so that several of them may have failed.
        skips: Whether it may end without calling every child that is recorded.
        paths: Whether each child works on a copy of conversation and state, and they are joined at the end.
        firings: Whether each child works on a copy of the conversation, and on the state of the step itself.
        shares: What of its parent's the one child works on, for a spawn and a part with a derived context.
        derived: Whether it stands for a derived context, which every process makes again.
        execution: Whether it is an execution of its own, with counters and a stop of its own.
        beside: Whether it goes on beside the flow, without a place in the layout of the step that has started it.
        apart: Whether it works on a conversation and state of its own wherever it is called.
        left: What the conversation of its parent gets of its node, where that is not all of it.
        ordered: Its layout in the order of the conversation, where that is not the order of the records.
        ends_with: Whether nothing of the user's runs between the end of a child and its own end: given its frame, the
            child's name and the child's output. The child's record then waits for its own with a loss of power.
        passes_on: Whether a failure below ends it too, so that it does not react to one.
        rounds: Whether the limit of iterations counts its children.
        stoppable: Whether `stop_loop` ends it.
        judged: Whether a condition ends it, so that one round needs no value and the result says why it ended.
        hands_over: Whether it may hand over, so that its output names a target or is a value.
        sends: Whether its record says that a message was sent, and which.
        written: Whether its body is a function of the flow's.
        no_waiting: Why nothing below it can wait for an answer; `None` where it can.
    """

    name: str
    run: Body = _no_interpreter
    counted: bool = False
    declared: bool = True
    part: bool = False
    reported: bool = True
    digested: bool = True
    essence: Callable[[Any], object] | None = None
    stored: bool = True
    dump: Callable[[Any, Any], Any] | None = None
    load: Callable[[Node, Any], object] | None = None
    reconcile: Callable[[Any, Any], Awaitable[object]] | None = None
    meta: Callable[[Node], StepMeta] | None = None
    composite: bool = False
    in_order: bool = False
    at_once: bool = False
    skips: bool = False
    paths: bool = False
    firings: bool = False
    shares: Shared | None = None
    derived: bool = False
    execution: bool = False
    beside: bool = False
    apart: bool = False
    left: Callable[[Node], Iterator[BodySegment]] | None = None
    ordered: Callable[[list[BodySegment | Node]], list[BodySegment | Node]] | None = None
    ends_with: Callable[[Any, str, Any], bool] | None = None
    passes_on: bool = False
    rounds: bool = False
    stoppable: bool = False
    judged: bool = False
    hands_over: bool = False
    sends: bool = False
    written: bool = False
    no_waiting: str | None = None

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    @property
    def begins_apart(self) -> bool:
        """Whether its children begin with the layers of its parent, and leave them as they are."""
        return self.firings or (self.shares is not None and not self.derived)

    @property
    def is_wall(self) -> bool:
        """Whether its children have their own conversation unless the parent's is shared."""
        return self.paths or self.firings or self.shares is not None

    def is_named(self, name: str) -> bool:
        """Whether a record, or a step, names this kind."""
        return name == self.name


UNNAMED = Kind("")
"""The kind of a step that no record has named yet."""


@lru_cache(256)
def kind_of_plugin(name: str) -> Kind:
    """A kind that a plugin brings along: its steps do what a function of the user's does."""
    return Kind(name, counted=True, written=True)


class Kinds(dict[str, Kind]):
    """All kinds of steps, by name; those of plugins are read alike, so that no journal needs the plugin to be read."""

    def with_plugins(self, names: Iterable[str]) -> Kinds:
        """The table of a harness, whose steps have these kinds of plugins and no others."""
        return _HarnessKinds({**self, **{name: kind_of_plugin(name) for name in names}})

    def __missing__(self, name: str) -> Kind:
        """The kind of a plugin.

        Raises:
            CodecError: No plugin could have a kind of that name.
        """
        if is_kind_name(name):
            return kind_of_plugin(name)
        raise CodecError(
            f"{name!r:.60} is not a valid kind of step; expected {', '.join(self)}",
            hint="read the run with the version of the library that has written it, or a newer one",
        )


class _HarnessKinds(Kinds):
    """The kinds that the steps of a harness may have."""

    def __missing__(self, name: str) -> Kind:
        """Refuse a kind that no plugin of the harness has.

        Raises:
            PluginError: A plugin may have it.
            CodecError: No plugin could have a kind of that name.
        """
        if not is_kind_name(name):
            return super().__missing__(name)
        raise PluginError(
            f"no plugin of this harness provides the step kind {name!r}",
            hint=f"load the plugin that registers it, most likely {name.partition('.')[0]!r}: install its package, and "
            "allow it with Harness(plugins=[...]) or NOETIC_PLUGINS",
        )


@define(eq=False)
class BodySegment:
    """A stretch of a body's own work: the items it appended, and how it changed the state and those of layers."""

    items: tuple[Item, ...]
    delta: tuple[Change, ...] = ()
    memory: LayerDeltas = ()
    # Where in the journal it is; -1 for what is not a record's own.
    position: int = -1
    # The model call whose view is the newest with it.
    view: Path | None = None


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
        begun: The children of which a discarded attempt had written something, so that what stands before them was
            written; and whether changes of the state were not.
        decisions: What functions have decided for it, by key.
        intents: By name, the digests of children that may run only once and whose outcome is not known.
        takes: The messages that it has taken for good, by the paths of their sends.
        asked: What it waits for, or has waited for, and where in the journal that is.
        answer: What was answered.
        folded: What stands for the first rounds of a loop, where their records were not read.
    """

    path: Path = ()
    kind: Kind = UNNAMED
    layout: list[BodySegment | Node] = field(factory=list["BodySegment | Node"])
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
    folded: Folded | None = None
    # Where a failure that ended this step came from; None while it has not failed.
    cause: Path | None = None
    # Shown although it failed: what came after it, a wrap-up, was made because it did.
    shown: bool = False
    # Whether it has its place in its parent's layout.
    placed: bool = False
    # Its display until it runs again.
    kept: BodySegment | None = None
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

    def put(self, segment: BodySegment, before: str | None) -> None:
        """Own work, at the end of the layout; or before a child, where that has its place already."""
        child = None if before is None else self.children.get(before)
        if child is None or not child.placed:
            self.layout.append(segment)
        else:
            self.layout.insert(self.layout.index(child), segment)

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
        """An attempt is discarded: the next one takes its place where the layout then ends."""
        found = self.children.pop(name, None)
        if found is not None and found.placed:
            self.layout.remove(found)

    def forget_shown(self) -> None:
        """Called when the step has run again: what was shown of the earlier run is discarded."""
        if self.kept is not None and self.kept in self.layout:
            self.layout.remove(self.kept)
        self.kept = None

    def start_again(self, fence: int) -> None:
        """A later owner has started the body again: what it had written itself is discarded, its children are not."""
        if fence <= self.fence:
            return
        self.fence = fence
        if self.kind.composite:
            self.layout = [entry for entry in self.layout if isinstance(entry, Node)]
            return
        self.layout.clear()
        for child in self.children.values():
            child.placed = False
            child.forget_shown()

    def show_last(self, cause: Path) -> None:
        """Show the steps on the way to the failure after which a wrap-up was run."""
        last = self.layout[-1] if self.layout else None
        if isinstance(last, Node) and cause[: len(last.path)] == last.path:
            last.shown = True
            last.show_last(cause)
