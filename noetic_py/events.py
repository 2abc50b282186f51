"""The closed set of events a run sends, each tagged with the path it comes from, and the bus that carries them.

Publishing never waits. A subscriber that does not keep up loses the oldest events of its own bounded buffer, which
`Subscription.dropped` counts; or, when it has asked for that, the run waits for it before its next step and behind each
piece of an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Self

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


CAPACITY = 10_000
"""How many events may wait for a listener who does not say otherwise."""


@frozen(eq=False)
class Event:
    """Base of every event.

    Attributes:
        path: The path of the step it comes from; empty for the run itself.
        branch: The dotted name of the conversation that this step writes to.
        call_id: The tool call that it belongs to: of the call itself, and of all that happens below it.
        depth: How many spawns are around it.
    """

    path: tuple[str, ...]
    branch: str = field(default="", init=False)
    call_id: str | None = field(default=None, init=False)
    depth: int = field(default=0, init=False)

    def tagged(self, branch: str, call_id: str | None, depth: int) -> Self:
        """It, once the engine has said where it comes from; nobody has seen it before."""
        object.__setattr__(self, "branch", branch)
        object.__setattr__(self, "call_id", call_id)
        object.__setattr__(self, "depth", depth)
        return self


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
    """One listener's bounded buffer; iterate it in one task.

    Args:
        capacity: How many events may wait in it.
        accepts: Which events it takes; all when left out.
        waits: Whether the run waits while it is full, instead of losing the oldest.

    Attributes:
        dropped: How many it has lost.
    """

    __slots__ = ("_accepts", "_buffer", "_capacity", "_closed", "_read", "_wake", "dropped", "waits")

    def __init__(self, capacity: int, *, accepts: Callable[[Event], bool] | None = None, waits: bool = False) -> None:
        self._capacity = capacity
        self._buffer: deque[Event] = deque(maxlen=None if waits else capacity)
        self._accepts = accepts
        self._wake: anyio.Event | None = None
        # Set when something was read of a buffer that the run waits for.
        self._read: anyio.Event | None = None
        self._closed = False
        self.waits: bool = waits
        self.dropped: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the run has to wait for it."""
        return self.waits and len(self._buffer) >= self._capacity and not self._closed

    def put(self, event: Event) -> None:
        """Take an event; drops the oldest one when the buffer is full and the run does not wait for it."""
        if self._closed or not (self._accepts is None or self._accepts(event)):
            return
        if len(self._buffer) == self._buffer.maxlen:
            self.dropped += 1
        self._buffer.append(event)
        if self._wake is not None:
            self._wake.set()

    async def room(self) -> None:
        """Wait until something was read of it, or nobody reads it any more."""
        while self.is_full:
            self._read = self._read or anyio.Event()
            await self._read.wait()

    def close(self) -> None:
        """End the iteration once the buffer is empty."""
        self._closed = True
        for event in (self._wake, self._read):
            if event is not None:
                event.set()

    def leave(self) -> None:
        """Nobody reads it any more."""
        self._buffer.clear()
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._wake = anyio.Event()
            try:
                await self._wake.wait()
            finally:
                self._wake = None
        event = self._buffer.popleft()
        if self._read is not None:
            self._read.set()
            self._read = None
        return event


class Bus:
    """Broadcast of a run's events to whoever listens; costs one attribute look-up when nobody does."""

    __slots__ = ("_closed", "_subscriptions", "_waited", "_watchers", "active")

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._waited: list[Subscription] = []
        self._watchers: list[Callable[[Event], None]] = []
        self._closed = False
        self.active: bool = False

    def subscribe(
        self, *, capacity: int = CAPACITY, accepts: Callable[[Event], bool] | None = None, waits: bool = False
    ) -> Subscription:
        """Listen from now on; see [`Subscription`][noetic_py.events.Subscription]."""
        subscription = Subscription(capacity, accepts=accepts, waits=waits)
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.append(subscription)
            self._waited += [subscription] * waits
            self.active = True
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Listen no more."""
        subscription.leave()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._waited = [each for each in self._waited if each is not subscription]
            self.active = bool(self._subscriptions or self._watchers)

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

    async def room(self) -> None:
        """Wait for everybody who is to be waited for, while they have no room."""
        while self._waited and (full := next((each for each in self._waited if each.is_full), None)):
            await full.room()

    def close(self) -> None:
        """End every subscription."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
