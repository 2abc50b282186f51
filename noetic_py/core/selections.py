"""Selections of a run's events: some of them, pieces of text, growing items, partial typed output.

Each is an asynchronous iterator with a buffer of its own, read by one task. A loop that is left early ends it: the
buffer goes with the iterator, and nothing waits for it any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from threading import get_ident
from typing import Any, Generic, Literal, Self, TypeAlias
from weakref import finalize

from attrs import evolve, field, frozen
from typing_extensions import TypedDict

from noetic_py.core.events import (
    CAPACITY,
    Bus,
    Event,
    ItemsAppended,
    ModelFailed,
    ModelStarted,
    ReasoningDelta,
    StepDiscarded,
    Subscription,
    TextDelta,
)
from noetic_py.core.items import Item, Message, OutputText, Reasoning
from noetic_py.core.types import T
from noetic_py.errors import CodecError, ConfigError

Overflow: TypeAlias = Literal["drop", "wait"]
"""The policy for a reader whose buffer is full: the oldest entry is dropped, and counted, or the run waits."""


class SelectOptions(TypedDict, total=False):
    """The events that a reader of a stream wants, and how many may wait for it; all conditions must hold.

    Attributes:
        path: Of the step at this path, and of those below it.
        branch: Of exactly this branch.
        branch_prefix: Of this branch, and of those below it.
        call_id: Of this tool call, and of all that happens below it.
        depth: Of no more spawns below the run than this; 0 is what is in none.
        capacity: How many entries may wait; 10,000 when left out. Besides, they may have 64 MiB together.
        overflow: What happens when more do: with `"drop"`, the default, the oldest are lost, and counted in `dropped`;
            with `"wait"` the run waits.
    """

    path: tuple[str, ...]
    branch: str
    branch_prefix: str
    call_id: str
    depth: int
    capacity: int
    overflow: Overflow


@frozen
class Choice:
    """The kinds of events that a reader wants, none for any, and its options."""

    kinds: tuple[type[Event], ...] = ()
    path: tuple[str, ...] = ()
    branch: str | None = field(default=None, kw_only=True)
    branch_prefix: str | None = field(default=None, kw_only=True)
    call_id: str | None = field(default=None, kw_only=True)
    depth: int | None = field(default=None, kw_only=True)
    capacity: int = field(default=CAPACITY, kw_only=True)
    overflow: Overflow = field(default="drop", kw_only=True)

    def __attrs_post_init__(self) -> None:
        given: tuple[object, ...] = self.kinds
        for kind in given:
            if not (isinstance(kind, type) and issubclass(kind, Event)):
                raise _refused(
                    f"{kind!r} is not a valid kind of events; expected a class below Event",
                    "select(TextDelta, ToolStarted)",
                )
        if not isinstance(self.path, tuple):
            raise _refused(f"path={self.path!r}", 'a path is a tuple of names: path=("pipeline", "agent")')
        if self.overflow not in ("drop", "wait") or self.capacity < 1:
            raise _refused(
                f"capacity={self.capacity!r}, overflow={self.overflow!r}",
                'capacity= is 1 at the least, overflow= "drop" or "wait"',
            )

    @property
    def is_narrow(self) -> bool:
        """Whether it wants only some events of its kinds."""
        return bool(self.path) or any(
            wanted is not None for wanted in (self.branch, self.branch_prefix, self.call_id, self.depth)
        )

    def accepts(self, event: Event) -> bool:
        """Whether it wants an event of its kinds."""
        return (
            event.path[: len(self.path)] == self.path
            and self.branch in (None, event.branch)
            and (self.branch_prefix is None or f"{event.branch}.".startswith(f"{self.branch_prefix}."))
            and self.call_id in (None, event.call_id)
            and (self.depth is None or event.depth <= self.depth)
        )


def _refused(what: str, hint: str) -> ConfigError:
    return ConfigError(what, code="stream", hint=hint)


class Selection(AsyncIterator[T], Generic[T]):
    """Some of what a run tells, in its order; get it as `stream.select(...)`.

    Args:
        bus: The run's.
        choice: Which events, and how many may wait.
        fold: What is to wait here instead of an event; called when that is sent.
    """

    def __init__(
        self, bus: Bus, choice: Choice, fold: Callable[[Event], Iterable[Callable[[], object]]] | None = None
    ) -> None:
        entries = self._entries = Subscription[Any](choice.capacity, waits=choice.overflow == "wait")
        put: Callable[[Event], None] = entries.hear if fold is None else partial(_put_all, entries, fold)
        bus.subscribe(entries, partial(_put_some, choice, put) if choice.is_narrow else put, choice.kinds)
        # A loop that is left early lets go of what it has looped over.
        self._left = finalize(self, _leave, bus, entries, get_ident())
        self._left.atexit = False

    @property
    def dropped(self) -> int:
        """How much was lost because it was not read in time."""
        return self._entries.dropped

    async def __anext__(self) -> T:
        found: T = await anext(self._entries)
        return found

    async def aclose(self) -> None:
        """Read no more of it: what waits for that goes on."""
        self._left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left()


def _put_some(choice: Choice, put: Callable[[Event], None], event: Event) -> None:
    if choice.accepts(event):
        put(event)


def _put_all(entries: Subscription[object], fold: Callable[[Event], Iterable[object]], event: Event) -> None:
    made = tuple(fold(event))
    size = event.size // max(1, len(made))
    for entry in made:
        entries.put(entry, size)


def _leave(bus: Bus, entries: Subscription[object], thread: int) -> None:
    if get_ident() == thread:
        bus.leave(entries)
    else:
        # The garbage collector runs where it likes, and must not wake a task of another thread.
        entries.forget()


class Deltas(AsyncIterator[str]):
    """Select the pieces of one kind from events."""

    def __init__(self, events: AsyncIterator[Event], kind: type[TextDelta | ReasoningDelta]) -> None:
        self._events = events
        self._kind = kind

    async def __anext__(self) -> str:
        async for event in self._events:
            if isinstance(event, self._kind):
                return event.delta
        raise StopAsyncIteration


class CommittedItems(AsyncIterator["Item"]):
    """Select the committed items from events."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._ready: list[Item] = []

    async def __anext__(self) -> Item:
        while not self._ready:
            async for event in self._events:
                if isinstance(event, ItemsAppended):
                    self._ready = list(reversed(event.items))
                    break
            else:
                raise StopAsyncIteration
        return self._ready.pop()


@frozen(eq=False)
class ItemSnapshot:
    """An item as it is now: while an answer is written it comes again and again, each time whole.

    Attributes:
        key: What is the same in all snapshots of one item, so that the next takes the place of the one before.
        item: It, `status="in_progress"` while it grows.
        state: Whether it still `"grows"`, is `"committed"`, or is `"discarded"`: the call has failed, or its step has.
        path: The path of the step that it belongs to.
        branch: The conversation that it belongs to.
        call_id: The tool call that it belongs to.
    """

    key: tuple[str, ...]
    item: Item
    state: Literal["grows", "committed", "discarded"]
    path: tuple[str, ...]
    branch: str
    call_id: str | None


class Snapshots(Selection[ItemSnapshot]):
    """Items while they grow, and as they are committed; get it as `stream.snapshots()`."""

    KINDS = (TextDelta, ReasoningDelta, ItemsAppended, ModelStarted, ModelFailed, StepDiscarded)

    def __init__(self, bus: Bus, choice: Choice) -> None:
        # Pieces are put together when they are sent: whatever is lost afterwards, what is read is whole.
        super().__init__(bus, evolve(choice, kinds=self.KINDS), _Answers().take)

    async def __anext__(self) -> ItemSnapshot:
        show: Callable[[], ItemSnapshot] = await anext(self._entries)
        return show()


_NONE_YET: Any = object()


class Partials(Selection[T]):
    """Values of answers while they come in, and at last those that are committed; get it as `stream.partial(type)`.

    Args:
        bus: The run's.
        choice: Which events, and how many may wait.
        begun: What the beginning of an answer says.
        whole: What an answer says.
    """

    KINDS = (TextDelta, ItemsAppended, ModelStarted, ModelFailed, StepDiscarded)

    def __init__(self, bus: Bus, choice: Choice, begun: Callable[[str], T], whole: Callable[[str], T]) -> None:
        super().__init__(bus, evolve(choice, kinds=self.KINDS), _Answers().take)
        self._begun = begun
        self._whole = whole
        self._last: dict[tuple[str, ...], object] = {}

    async def __anext__(self) -> T:
        while True:
            show: Callable[[], ItemSnapshot] = await anext(self._entries)
            snapshot = show()
            before = self._last.pop(snapshot.key, _NONE_YET)
            value: Any = self._value(snapshot)
            if snapshot.state == "grows":
                self._last[snapshot.key] = before if value is _NONE_YET else value
            if value is not _NONE_YET and value != before:
                found: T = value
                return found

    def _value(self, snapshot: ItemSnapshot) -> Any:
        item = snapshot.item
        if snapshot.state == "discarded" or not isinstance(item, Message) or item.role != "assistant":
            return _NONE_YET
        try:
            return self._begun(item.text) if snapshot.state == "grows" else self._whole(item.text)
        except CodecError:
            # There is not enough of it yet, or it is another answer.
            return _NONE_YET


class _Answers:
    """The text of answers so far, by their paths."""

    def __init__(self) -> None:
        self._growing: dict[tuple[str, ...], list[_Growth]] = {}

    def take(self, event: Event) -> list[Callable[[], ItemSnapshot]]:
        """The snapshot since an event; the item is made when it is read."""
        if isinstance(event, TextDelta | ReasoningDelta):
            growth = self._growth(event)
            return [partial(growth.show, event, "grows", growth.add(event.delta))]
        if isinstance(event, ItemsAppended):
            return self._committed(event)
        ended = [path for path in self._growing if path[: len(event.path)] == event.path]
        return [each.discarded(event) for path in ended for each in self._growing.pop(path)]

    def _growth(self, event: TextDelta | ReasoningDelta) -> _Growth:
        growing = self._growing.setdefault(event.path, [])
        kind = Message if isinstance(event, TextDelta) else Reasoning
        found = next((each for each in growing if each.kind is kind and each.item_id == event.item_id), None)
        if found is None:
            found = _Growth(event.path, kind, event.item_id)
            growing.append(found)
        return found

    def _committed(self, event: ItemsAppended) -> list[Callable[[], ItemSnapshot]]:
        growing = self._growing.pop(event.path, [])
        ids = {item.id for item in event.items}
        shown: list[Callable[[], ItemSnapshot]] = []
        for item in event.items:
            grown = next((each for each in growing if each.becomes(item, ids)), None)
            if grown is not None:
                growing.remove(grown)
            key = (*event.path, item.id) if grown is None else grown.key
            shown.append(partial(ItemSnapshot, key, item, "committed", event.path, event.branch, event.call_id))
        return shown + [each.discarded(event) for each in growing]


class _Growth:
    """An item that is being said, piece by piece."""

    def __init__(self, path: tuple[str, ...], kind: type[Message | Reasoning], item_id: str | None) -> None:
        self.kind = kind
        self.item_id = item_id
        self.path = path
        self.key: tuple[str, ...] = (*path, item_id or kind.__name__)
        self._id = item_id
        self._pieces: list[str] = []
        # The part of it that was read.
        self._text = ""
        self._read = 0

    def add(self, piece: str) -> int:
        """Say more; gives how many pieces there are."""
        self._pieces.append(piece)
        return len(self._pieces)

    def becomes(self, item: Item, ids: set[str]) -> bool:
        """Whether this is what it was going to be: the item of its id, or where there is none the first of its kind."""
        if isinstance(item, Message) and item.role != "assistant":
            # The text for the model when its answer was not accepted.
            return False
        return isinstance(item, self.kind) and (self.item_id == item.id or self.item_id not in ids)

    def discarded(self, event: Event) -> Callable[[], ItemSnapshot]:
        """It was said in vain."""
        return partial(self.show, event, "discarded", len(self._pieces))

    def show(self, event: Event, state: Literal["grows", "discarded"], count: int) -> ItemSnapshot:
        """It, with so many of its pieces."""
        self._text += "".join(self._pieces[self._read : count])
        self._read = count
        status: Literal["in_progress", "incomplete"] = "in_progress" if state == "grows" else "incomplete"
        item: Message | Reasoning
        if self.kind is Message:
            item = Message(role="assistant", content=self._text, id=self._id, status=status)
        else:
            item = Reasoning(content=(OutputText(text=self._text),), id=self._id, status=status)
        self._id = item.id
        return ItemSnapshot(self.key, item, state, self.path, event.branch, event.call_id)
