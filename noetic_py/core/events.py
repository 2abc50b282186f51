"""The closed set of events a run sends, each tagged with the path it comes from, and the bus that carries them.

Publishing never waits. A subscriber that does not keep up loses the oldest events of its own buffer, which is bounded
in events and in bytes; `Subscription.dropped` counts them. Or, when it has asked for that, the run waits for it before
its next step and behind each piece of an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from logging import WARNING
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

import anyio
from attrs import field, fields, frozen
from typing_extensions import TypeVar

from noetic_py.core.budget import TokenUsage
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.values import size_of

if TYPE_CHECKING:
    from noetic_py.core.control import PendingRequest, RunStatus
    from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item
    from noetic_py.core.view import View

__all__ = [
    "CAPACITY",
    "MAX_HELD",
    "PATIENCE",
    "Backlog",
    "BudgetWarning",
    "Bus",
    "ChannelDropped",
    "Emitted",
    "Event",
    "HandedOver",
    "ItemsAppended",
    "LayerFailed",
    "LayerWarned",
    "LoopIteration",
    "LoopWaiting",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "ProgressSet",
    "ReasoningDelta",
    "RequestMade",
    "RunFinished",
    "RunStarted",
    "Source",
    "StepCommitted",
    "StepDiscarded",
    "StepStarted",
    "Subscription",
    "TextDelta",
    "ToolFinished",
    "ToolStarted",
    "UntilFailed",
    "ViewMade",
]

CAPACITY = 10_000
"""The default number of events that may wait for a listener."""
MAX_HELD = 64 * 1024 * 1024
"""How many bytes of events may wait for a listener, as `Event.size` counts them; the newest event always may."""
PATIENCE = 30.0
"""Seconds that a run waits for a reader before the log says so, once."""
_UNREAD = (
    "run %s has waited %g s for a reader that asked for overflow='wait': read it, close it, or leave its loop; "
    "readers that the run waits for are read side by side"
)


class Source(NamedTuple):
    """Where events come from, besides their path: one for all that a part of a run sends.

    Attributes:
        branch: The dotted name of a conversation.
        call_id: A tool call.
        depth: How many spawns are around it.
    """

    branch: str = ""
    call_id: str | None = None
    depth: int = 0


@frozen(eq=False)
class Event:
    """Base of every event.

    Attributes:
        path: The path of the step it comes from; empty for the run itself.
    """

    path: tuple[str, ...]
    _source: Source = field(default=Source(), init=False, repr=False)

    @property
    def branch(self) -> str:
        """The dotted name of the conversation that this step writes to."""
        return self._source.branch

    @property
    def call_id(self) -> str | None:
        """The tool call that it belongs to: of the call itself, and of all that happens below it."""
        return self._source.call_id

    @property
    def depth(self) -> int:
        """How many spawns are around it."""
        return self._source.depth

    @property
    def size(self) -> int:
        """Bytes of memory that its own fields hold, estimated."""
        size = _FLAT
        kind: object = self.__class__
        for name in _own_fields(kind):
            size += size_of(getattr(self, name))
        return size

    def tagged(self, source: Source) -> Self:
        """It, once the engine has said where it comes from; it was not published before."""
        object.__setattr__(self, "_source", source)
        return self


_FLAT = 64


@lru_cache(maxsize=256)
def _own_fields(kind: type[Event]) -> tuple[str, ...]:
    # The path and the source are those of the step, which has them anyway.
    common = {each.name for each in fields(Event)}
    return tuple(each.name for each in fields(kind) if each.name not in common)


@frozen(eq=False)
class RunStarted(Event):
    """A run has begun."""

    run_id: str


@frozen(eq=False)
class RunFinished(Event):
    """A run has ended; the one terminal event, sent once, last."""

    run_id: str
    status: RunStatus
    reason: str | None


@frozen(eq=False)
class StepStarted(Event):
    """The body of a step starts, or starts again."""

    kind: str
    attempt: int


@frozen(eq=False)
class StepCommitted(Event):
    """A step has finished and is in the journal at `position`."""

    kind: str
    position: int


@frozen(eq=False)
class StepDiscarded(Event):
    """An attempt left nothing: it failed, lost a race, or was stopped.

    Attributes:
        attempt: Which attempt, from 1.
        reason: Why.
        final: Whether the step is over.
    """

    attempt: int
    reason: str
    final: bool


@frozen(eq=False)
class ItemsAppended(Event):
    """Items that a commit added to a conversation."""

    items: tuple[Item, ...]


@frozen(eq=False)
class RequestMade(Event):
    """A step waits for an answer, and its request is stored.

    Attributes:
        request: What it waits for.
    """

    request: PendingRequest


@frozen(eq=False)
class ModelStarted(Event):
    """A model is asked."""

    model: str


@frozen(eq=False)
class ModelFinished(Event):
    """A model has answered.

    Attributes:
        model: Its name.
        usage: Tokens, `None` when the provider reported none.
        cost: USD, `None` when the model has no price.
    """

    model: str
    usage: TokenUsage | None
    cost: Decimal | None


@frozen(eq=False)
class ModelFailed(Event):
    """A call of a model has ended without an answer: what was streamed since its `ModelStarted` is discarded.

    Attributes:
        model: The model's name.
        error: Why.
        usage: Tokens that the call counts for all the same, `None` for none.
        cost: USD likewise, `None` for none, or when the model has no price.
    """

    model: str
    error: str
    usage: TokenUsage | None
    cost: Decimal | None


@frozen(eq=False)
class ViewMade(Event):
    """A request was put together of the conversation and what layers recalled; see `view.explain()`."""

    view: View

    @property
    def size(self) -> int:
        """Bytes of what is not the conversation's own, of which the run has one copy for all views."""
        return _FLAT + _BYTES_PER_TOKEN * max(0, self.view.tokens - self.view.usage.history)


_BYTES_PER_TOKEN = 4


@frozen(eq=False)
class TextDelta(Event):
    """A piece of an answer's text; not final before its step is committed.

    Attributes:
        delta: The piece.
        item_id: The id of the item that it is a piece of, when the model says so.
    """

    delta: str
    item_id: str | None = None


@frozen(eq=False)
class ReasoningDelta(Event):
    """A piece of visible reasoning; not final before its step is committed.

    Attributes:
        delta: The piece.
        item_id: The id of the item that it is a piece of, when the model says so.
    """

    delta: str
    item_id: str | None = None


@frozen(eq=False)
class ToolStarted(Event):
    """A tool is called."""

    call: FunctionCall


@frozen(eq=False)
class ToolFinished(Event):
    """A tool call has its output."""

    output: FunctionCallOutput
    failed: bool


@frozen(eq=False)
class UntilFailed(Event):
    """The condition of a loop has raised, which ends the loop.

    Attributes:
        iteration: After which iteration, from 0.
        error_type: The exception's class name, such as `"AttributeError"`.
        error_message: The exception's text.
    """

    iteration: int
    error_type: str
    error_message: str


@frozen(eq=False)
class LoopIteration(Event):
    """A loop finished an iteration.

    Attributes:
        iteration: From 0.
        stop: Whether the loop ends here.
        reason: The verdict's reason.
        feedback: The verdict's feedback.
    """

    iteration: int
    stop: bool
    reason: str | None
    feedback: str | None


@frozen(eq=False)
class HandedOver(Event):
    """A step of a chain has handed over to another one; the path is the chain's.

    Attributes:
        step: The id of the step that has handed over.
        to: The id of the next step.
    """

    step: str
    to: str


@frozen(eq=False)
class LoopWaiting(Event):
    """A loop has nothing to do and waits for a message in its inbox.

    Attributes:
        iteration: Which iteration the message would start, from 0.
    """

    iteration: int


@frozen(eq=False)
class LayerFailed(Event):
    """A memory layer has failed, and the run continues without it.

    Attributes:
        layer: The layer's id.
        hook: In which hook; `"mirror"` when its state could not be put into the store.
        error: Why.
    """

    layer: str
    hook: str
    error: str


@frozen(eq=False)
class LayerWarned(Event):
    """A memory layer works, but not as its user may expect.

    Attributes:
        layer: The layer's id.
        message: What is the matter, and what to do.
    """

    layer: str
    message: str


@frozen(eq=False)
class ChannelDropped(Event):
    """A full channel has lost its oldest message.

    Attributes:
        channel: The channel's name.
        dropped: How many it has lost by now.
    """

    channel: str
    dropped: int


@frozen(eq=False)
class BudgetWarning(Event):
    """A budget has passed its `warn_at`, in the dimension's unit."""

    dimension: str
    used: Decimal
    limit: Decimal


@frozen(eq=False)
class FeeUnknown(Event):
    """A model's provider has used a tool of its own, and what it charges for that is not known: no cost has it."""

    model: str
    tool: str
    uses: int


@frozen(eq=False)
class Emitted(Event):
    """An event that a step sent with `ctx.emit(...)`."""

    event: object = field()


@frozen(eq=False)
class ProgressSet(Event):
    """A step has left how far it has come: `ctx.progress.set(value)`, or `ctx.progress.finish()`.

    Attributes:
        value: What was left, JSON.
        done: Whether the step is done; there is then no value.
    """

    value: object
    done: bool = False


EventT = TypeVar("EventT", bound=Event)
EntryT = TypeVar("EntryT", default=Event)


class Backlog(Generic[EntryT]):
    """Entries that wait, the oldest first: so many, and of so many bytes; of more the oldest are lost.

    Args:
        capacity: How many entries may wait; any number when `None`, and then of any size.

    Attributes:
        dropped: How many were lost.
    """

    __slots__ = ("_capacity", "_entries", "_size", "_sizes", "dropped")

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._entries: deque[EntryT] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0
        self.dropped: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[EntryT, int]]:
        return zip(self._entries, self._sizes, strict=True)

    @property
    def is_large(self) -> bool:
        """Whether the entries have all the bytes that they may have."""
        return self._size >= MAX_HELD

    def put(self, entry: EntryT, size: int) -> None:
        """Add the newest entry, of so many bytes; it is kept whatever its size, unless none may be."""
        entries, capacity = self._entries, self._capacity
        entries.append(entry)
        self._sizes.append(size)
        self._size += size
        if capacity is not None:
            while len(entries) > capacity or (self._size > MAX_HELD and len(entries) > 1):
                self.take()
                self.dropped += 1

    def take(self) -> EntryT:
        """Take the oldest entry out."""
        self._size -= self._sizes.popleft()
        return self._entries.popleft()


class Subscription(Generic[EntryT]):
    """One listener's bounded buffer; iterate it in one task.

    Args:
        capacity: How many entries may wait in it.
        waits: Whether the run waits while it is full, instead of losing the oldest.
    """

    __slots__ = ("_buffer", "_capacity", "_closed", "_held_up", "_reported", "_wake", "waits")

    def __init__(self, capacity: int, *, waits: bool = False) -> None:
        self._capacity = capacity
        self._buffer: Backlog[EntryT] = Backlog(None if waits else capacity)
        self._wake: anyio.Event | None = None
        # The tasks of the run that wait for space, in order of arrival.
        self._held_up: dict[object, anyio.Event] = {}
        self._closed = self._reported = False
        self.waits: bool = waits

    @property
    def unread(self) -> int:
        """How many entries wait in it."""
        return len(self._buffer)

    @property
    def dropped(self) -> int:
        """How many entries it has lost."""
        return self._buffer.dropped

    @property
    def is_full(self) -> bool:
        """Whether the run has to wait for it."""
        return self.waits and not self._closed and (len(self._buffer) >= self._capacity or self._buffer.is_large)

    def put(self, entry: EntryT, size: int = 0) -> None:
        """Take an entry of so many bytes; drops the oldest when the buffer is full and the run does not wait for it."""
        if self._closed:
            return
        self._buffer.put(entry, size)
        if self._wake is not None:
            self._wake.set()

    def hear(self, event: Any) -> None:
        """Take an event."""
        self.put(event, event.size)

    async def wait_for_space(self, run_id: str) -> None:
        """Wait until the buffer has space or its reader has gone; a long wait is logged."""
        me = object()
        try:
            while self.is_full:
                turn = self._held_up[me] = anyio.Event()
                with anyio.move_on_after(PATIENCE) as patience:
                    await turn.wait()
                if patience.cancelled_caught and not self._reported:
                    self._reported = True
                    log("events", WARNING, _UNREAD, run_id, PATIENCE, where=Where(run_id))
        finally:
            # One task gets space at a time; a task that takes none wakes the next.
            self._held_up.pop(me, None)
            self._let_in()

    def _let_in(self) -> None:
        if self._held_up and not self.is_full:
            next(iter(self._held_up.values())).set()

    def close(self) -> None:
        """End the iteration once the buffer is empty."""
        self._closed = True
        if self._wake is not None:
            self._wake.set()
        self._let_in()

    def leave(self) -> None:
        """It is not read any more."""
        self.forget()
        self.close()

    def forget(self) -> None:
        """Do the same as `leave` from another thread; a waiting task notices after its timeout."""
        self._closed = True
        # Another one, and not the same one cleared: the run's thread may be in the middle of a change of it.
        empty = Backlog[EntryT](None)
        empty.dropped = self._buffer.dropped
        self._buffer = empty

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryT:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._wake = anyio.Event()
            try:
                await self._wake.wait()
            finally:
                self._wake = None
        entry = self._buffer.take()
        self._let_in()
        return entry


class _BusListener(NamedTuple):
    hear: Callable[[Event], None]
    kinds: tuple[type[Event], ...] = ()
    subscription: Subscription[object] | None = None


class Bus:
    """Broadcast of a run's events to its listeners; costs one attribute look-up without any."""

    __slots__ = ("_listeners", "_routes", "_waited", "active", "closed", "run_id")

    def __init__(self, run_id: str = "") -> None:
        self.run_id: str = run_id
        self._listeners: list[_BusListener] = []
        # The listeners of each class of events.
        self._routes: dict[type[Event], list[Callable[[Event], None]]] = {}
        self._waited: list[Subscription[object]] = []
        self.closed: bool = False
        self.active: bool = False

    def subscribe(
        self,
        subscription: Subscription[object],
        hear: Callable[[Event], None] | None = None,
        kinds: tuple[type[Event], ...] = (),
    ) -> None:
        """Listen from now on.

        Args:
            subscription: What the run may have to wait for, and what ends with the run.
            hear: What is called with an event, at once; `subscription.hear` when left out.
            kinds: The classes of events that are wanted; any when empty.
        """
        if self.closed:
            subscription.close()
            return
        self._listen(_BusListener(hear or subscription.hear, kinds, subscription))
        if subscription.waits:
            self._waited.append(subscription)

    @property
    def streamed(self) -> bool:
        """Whether a caller reads the run's events, and takes the last one for the end."""
        return any(each.subscription is not None for each in self._listeners)

    def leave(self, subscription: Subscription[object]) -> None:
        """Listen no more."""
        subscription.leave()
        self._listeners = [each for each in self._listeners if each.subscription is not subscription]
        self._waited = [each for each in self._waited if each is not subscription]
        self._routes = {}
        self.active = bool(self._listeners)

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call `watcher` with every event, at once; it must not wait and must not raise."""
        self._listen(_BusListener(watcher))

    def _listen(self, listener: _BusListener) -> None:
        self._listeners.append(listener)
        self._routes = {}
        self.active = True

    def publish(self, event: Event) -> None:
        """Hand the event to every listener."""
        kind = event.__class__
        route = self._routes.get(kind)
        if route is None:
            route = [each.hear for each in self._listeners if not each.kinds or issubclass(kind, each.kinds)]
            self._routes[kind] = route
        for hear in route:
            hear(event)

    async def wait_for_space(self) -> None:
        """Wait while a listener with `overflow="wait"` has a full buffer."""
        while self._waited and (full := next((each for each in self._waited if each.is_full), None)):
            await full.wait_for_space(self.run_id)

    def close(self) -> None:
        """End every subscription."""
        self.closed = True
        for listener in self._listeners:
            if listener.subscription is not None:
                listener.subscription.close()
