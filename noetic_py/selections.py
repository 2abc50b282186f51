"""What a listener makes of a run's events: some of them, pieces of text, items as they grow.

Each is an asynchronous iterator with a buffer of its own, read by one task. Whoever leaves its loop early has left: the
buffer goes with the iterator, and nothing waits for it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, Self, TypeAlias
from weakref import finalize

from attrs import frozen
from typing_extensions import TypeVar

from noetic_py.errors import ConfigError
from noetic_py.events import (
    CAPACITY,
    Bus,
    Event,
    ItemsAppended,
    ModelFailed,
    ModelStarted,
    ReasoningDelta,
    StepVoided,
    Subscription,
    TextDelta,
)
from noetic_py.items import Item, ItemBase, Message, OutputText, Reasoning

__all__ = [
    "CommittedItems",
    "Deltas",
    "Filter",
    "ItemSnapshot",
    "Overflow",
    "Selection",
    "Snapshots",
]

E = TypeVar("E", bound=Event, default=Event)
Overflow: TypeAlias = Literal["drop", "wait"]


@frozen
class Filter:
    """Which events somebody wants; all conditions hold.

    Attributes:
        kinds: Of these classes, and of those below them; of any when empty.
        path: Of the step at this path, and of those below it.
        branch: Of exactly this branch.
        branch_prefix: Of this branch, and of those below it.
        call_id: Of this tool call.
        depth: Of no more spawns below the run than this; 0 is what is in none.
    """

    kinds: tuple[type[Event], ...] = ()
    path: tuple[str, ...] = ()
    branch: str | None = None
    branch_prefix: str | None = None
    call_id: str | None = None
    depth: int | None = None

    @property
    def predicate(self) -> Callable[[Event], bool] | None:
        """What says so of an event; `None` when all are wanted."""
        if self == Filter():
            return None
        if self == Filter(self.kinds):
            kinds = self.kinds
            return lambda event: isinstance(event, kinds)
        return self.accepts

    def accepts(self, event: Event) -> bool:
        """Whether it wants an event."""
        return (
            (not self.kinds or isinstance(event, self.kinds))
            and event.path[: len(self.path)] == self.path
            and self.branch in (None, event.branch)
            and (self.branch_prefix is None or f"{event.branch}.".startswith(f"{self.branch_prefix}."))
            and self.call_id in (None, event.call_id)
            and (self.depth is None or event.depth <= self.depth)
        )


class Selection(AsyncIterator[E], Generic[E]):
    """Some of a run's events, in their order; get it as `stream.select(...)`.

    Args:
        bus: The run's.
        accepts: Which of them.
        capacity: How many may wait here.
        overflow: What happens when more do: the oldest are lost, and counted, or the run waits.
    """

    def __init__(
        self,
        bus: Bus,
        accepts: Callable[[Event], bool] | None = None,
        *,
        capacity: int = CAPACITY,
        overflow: Overflow = "drop",
    ) -> None:
        if overflow not in ("drop", "wait") or capacity < 1:
            raise ConfigError(
                f"capacity={capacity!r}, overflow={overflow!r}",
                code="stream",
                hint='capacity= is 1 at the least, overflow= "drop" or "wait"',
            )
        self._events: Subscription = bus.subscribe(capacity=capacity, accepts=accepts, waits=overflow == "wait")
        # A loop that is left early lets go of what it has looped over.
        self._left = finalize(self, bus.leave, self._events)
        self._left.atexit = False

    @property
    def dropped(self) -> int:
        """Events that were lost because they were not read in time."""
        return self._events.dropped

    async def __anext__(self) -> E:
        found: Any = await anext(self._events)
        event: E = found
        return event

    async def aclose(self) -> None:
        """Read no more of it: what waits for that goes on."""
        self._left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left()


class Deltas(AsyncIterator[str]):
    """Of events the pieces of one kind."""

    def __init__(self, events: AsyncIterator[Event], kind: type[TextDelta | ReasoningDelta]) -> None:
        self._events = events
        self._kind = kind

    async def __anext__(self) -> str:
        async for event in self._events:
            if isinstance(event, self._kind):
                return event.delta
        raise StopAsyncIteration


class CommittedItems(AsyncIterator["Item"]):
    """Of events the items that were committed."""

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
        state: Whether it still `"grows"`, is `"committed"`, or is `"void"`: the call has failed, or its step has.
        path: The path of the step that it belongs to.
        branch: The conversation that it belongs to.
        call_id: The tool call that it belongs to.
    """

    key: tuple[str, ...]
    item: Item
    state: Literal["grows", "committed", "void"]
    path: tuple[str, ...]
    branch: str
    call_id: str | None


class Snapshots(AsyncIterator[ItemSnapshot]):
    """Items while they grow, and as they are committed."""

    KINDS = (TextDelta, ReasoningDelta, ItemsAppended, ModelStarted, ModelFailed, StepVoided)

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._ready: deque[ItemSnapshot] = deque()
        # What grows: by the answer's path and by what it is.
        self._growing: dict[tuple[str, ...], dict[type[ItemBase], str]] = {}

    async def __anext__(self) -> ItemSnapshot:
        while not self._ready:
            self._take(await anext(self._events))
        return self._ready.popleft()

    def _take(self, event: Event) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            kind: type[ItemBase] = Message if isinstance(event, TextDelta) else Reasoning
            texts = self._growing.setdefault(event.path, {})
            texts[kind] = texts.get(kind, "") + event.delta
            self._show(event, _item(kind, texts[kind], "in_progress"), "grows", kind)
        elif isinstance(event, ItemsAppended):
            # The first of a kind is what has grown here.
            grown = set(self._growing.pop(event.path, ()))
            for item in event.items:
                kind = type(item)
                self._show(event, item, "committed", kind if kind in grown else None)
                grown.discard(kind)
        elif isinstance(event, ModelStarted | ModelFailed | StepVoided):
            for path in [path for path in self._growing if path[: len(event.path)] == event.path]:
                for kind, text in self._growing.pop(path).items():
                    self._show(event, _item(kind, text, "incomplete"), "void", kind, path)

    def _show(
        self,
        event: Event,
        item: Item,
        state: Literal["grows", "committed", "void"],
        kind: type[ItemBase] | None,
        path: tuple[str, ...] | None = None,
    ) -> None:
        path = path or event.path
        key = (*path, item.id if kind is None else kind.__name__)
        self._ready.append(ItemSnapshot(key, item, state, path, event.branch, event.call_id))


def _item(kind: type[ItemBase], text: str, status: Literal["in_progress", "incomplete"]) -> Item:
    if kind is Message:
        return Message(role="assistant", content=text, status=status)
    return Reasoning(content=(OutputText(text=text),), status=status)
