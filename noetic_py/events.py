"""The closed set of events a run sends, each tagged with the path it comes from, and the bus that carries them.

Publishing never waits. A subscriber that does not keep up loses the oldest events of its own bounded buffer, and
`Subscription.dropped` counts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import TYPE_CHECKING

import anyio
from attrs import field, frozen

from noetic_py.budget import TokenUsage

if TYPE_CHECKING:
    from noetic_py.control import RunStatus
    from noetic_py.items import FunctionCall, FunctionCallOutput, Item
    from noetic_py.memory.view import View
    from noetic_py.pending import PendingRequest

__all__ = [
    "BudgetWarning",
    "Bus",
    "ChannelDropped",
    "CommittedItems",
    "Deltas",
    "Emitted",
    "Event",
    "ItemsAppended",
    "LayerFailed",
    "LoopIteration",
    "LoopParked",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "ReasoningDelta",
    "RequestMade",
    "RunFinished",
    "RunStarted",
    "StepCommitted",
    "StepStarted",
    "StepVoided",
    "Subscription",
    "TextDelta",
    "ToolFinished",
    "ToolStarted",
    "ViewMade",
]


@frozen(eq=False)
class Event:
    """Base of every event.

    Attributes:
        path: The path of the step it comes from.
    """

    path: tuple[str, ...]


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
class StepVoided(Event):
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
    """A call of a model has ended without an answer: what was streamed since its `ModelStarted` is void.

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


@frozen(eq=False)
class TextDelta(Event):
    """A piece of an answer's text; not final before its step is committed."""

    delta: str


@frozen(eq=False)
class ReasoningDelta(Event):
    """A piece of visible reasoning."""

    delta: str


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
class LoopParked(Event):
    """A loop has nothing to do and waits for a message in its inbox.

    Attributes:
        iteration: Which iteration the message would start, from 0.
    """

    iteration: int


@frozen(eq=False)
class LayerFailed(Event):
    """A memory layer has failed, and the run goes on without what it would have done.

    Attributes:
        layer: The layer's id.
        hook: In which hook; `"mirror"` when its state could not be put into the store.
        error: Why.
    """

    layer: str
    hook: str
    error: str


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
    spent: Decimal
    limit: Decimal


@frozen(eq=False)
class Emitted(Event):
    """What a step sent with `ctx.emit(...)`."""

    event: object = field()


class Subscription:
    """One listener's bounded buffer; iterate it in one task."""

    __slots__ = ("_buffer", "_closed", "_wake", "dropped")

    def __init__(self, capacity: int) -> None:
        self._buffer: deque[Event] = deque(maxlen=capacity)
        self._wake: anyio.Event | None = None
        self._closed = False
        self.dropped: int = 0

    def put(self, event: Event) -> None:
        """Take an event; drops the oldest one when the buffer is full."""
        if len(self._buffer) == self._buffer.maxlen:
            self.dropped += 1
        self._buffer.append(event)
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def close(self) -> None:
        """End the iteration once the buffer is empty."""
        self._closed = True
        self._notify()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._wake = anyio.Event()
            await self._wake.wait()
        return self._buffer.popleft()


class Deltas(AsyncIterator[str]):
    """Of a listener's events the pieces of one kind."""

    def __init__(self, events: Subscription, kind: type[TextDelta | ReasoningDelta]) -> None:
        self._events = events
        self._kind = kind

    async def __anext__(self) -> str:
        async for event in self._events:
            if isinstance(event, self._kind):
                return event.delta
        raise StopAsyncIteration


class CommittedItems(AsyncIterator["Item"]):
    """Of a listener's events the items that were committed."""

    def __init__(self, events: Subscription) -> None:
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


class Bus:
    """Broadcast of a run's events to whoever listens; costs one attribute look-up when nobody does."""

    __slots__ = ("_subscriptions", "_watchers", "active")

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._watchers: list[Callable[[Event], None]] = []
        self.active: bool = False

    def subscribe(self, *, capacity: int = 10_000) -> Subscription:
        """Listen from now on.

        Args:
            capacity: How many events may wait; the oldest go first, and are counted.
        """
        subscription = Subscription(capacity)
        self._subscriptions.append(subscription)
        self.active = True
        return subscription

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call `watcher` with every event, at once; it must not wait and must not raise."""
        self._watchers.append(watcher)
        self.active = True

    def publish(self, event: Event) -> None:
        """Hand the event to every listener."""
        for watcher in self._watchers:
            watcher(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    def close(self) -> None:
        """End every subscription."""
        for subscription in self._subscriptions:
            subscription.close()
