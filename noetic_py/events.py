"""The closed set of events a run sends, each tagged with the path it comes from, and the bus that carries them.

Publishing never waits. A subscriber that does not keep up loses the oldest events of its own bounded buffer, which
`Subscription.dropped` counts; or, when it has asked for that, the run waits for it before its next step and behind each
piece of an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

import anyio
from attrs import field, frozen
from typing_extensions import TypeVar

from noetic_py.budget import TokenUsage
from noetic_py.redaction import logger

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
    "Source",
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

    def tagged(self, source: Source) -> Self:
        """It, once the engine has said where it comes from; nobody has seen it before."""
        object.__setattr__(self, "_source", source)
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


EventT = TypeVar("EventT", bound=Event)
EntryT = TypeVar("EntryT", default=Event)


class Subscription(Generic[EntryT]):
    """One listener's bounded buffer; iterate it in one task.

    Args:
        capacity: How many entries may wait in it.
        waits: Whether the run waits while it is full, instead of losing the oldest.

    Attributes:
        dropped: How many it has lost.
    """

    __slots__ = ("_buffer", "_capacity", "_closed", "_held_up", "_told", "_wake", "dropped", "waits")

    def __init__(self, capacity: int, *, waits: bool = False) -> None:
        self._capacity = capacity
        self._buffer: deque[EntryT] = deque(maxlen=None if waits else capacity)
        self._wake: anyio.Event | None = None
        # Who of the run waits for room, in the order in which they came.
        self._held_up: dict[object, anyio.Event] = {}
        self._closed = self._told = False
        self.waits: bool = waits
        self.dropped: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the run has to wait for it."""
        return self.waits and len(self._buffer) >= self._capacity and not self._closed

    def put(self, entry: EntryT) -> None:
        """Take an entry; drops the oldest one when the buffer is full and the run does not wait for it."""
        if self._closed:
            return
        if len(self._buffer) == self._buffer.maxlen:
            self.dropped += 1
        self._buffer.append(entry)
        if self._wake is not None:
            self._wake.set()

    async def room(self, run_id: str) -> None:
        """Wait until there is room in it, or nobody reads it any more; says so in the log when it takes long."""
        me = object()
        try:
            while self.is_full:
                turn = self._held_up[me] = anyio.Event()
                with anyio.move_on_after(PATIENCE) as patience:
                    await turn.wait()
                if patience.cancelled_caught and not self._told:
                    self._told = True
                    logger().warning(_UNREAD, run_id, PATIENCE)
        finally:
            # One is let in at a time. Who takes no place, or goes away, leaves it to the next.
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
        """Nobody reads it any more."""
        self.forget()
        self.close()

    def forget(self) -> None:
        """As `leave`, from another thread: who waits finds out when its patience ends."""
        self._closed = True
        self._buffer.clear()

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
        entry = self._buffer.popleft()
        self._let_in()
        return entry


class _Listener(NamedTuple):
    hear: Callable[[Event], None]
    kinds: tuple[type[Event], ...] = ()
    subscription: Subscription[Any] | None = None


class Bus:
    """Broadcast of a run's events to whoever listens; costs one attribute look-up when nobody does."""

    __slots__ = ("_closed", "_listeners", "_routes", "_waited", "active", "run_id")

    def __init__(self, run_id: str = "") -> None:
        self.run_id: str = run_id
        self._listeners: list[_Listener] = []
        # By an event's class: who hears of it.
        self._routes: dict[type[Event], list[Callable[[Event], None]]] = {}
        self._waited: list[Subscription[Any]] = []
        self._closed = False
        self.active: bool = False

    def subscribe(
        self,
        subscription: Subscription[Any],
        hear: Callable[[Event], None] | None = None,
        kinds: tuple[type[Event], ...] = (),
    ) -> None:
        """Listen from now on.

        Args:
            subscription: What the run may have to wait for, and what ends with the run.
            hear: What is called with an event, at once; `subscription.put` when left out.
            kinds: The classes of events that are wanted; any when empty.
        """
        if self._closed:
            subscription.close()
            return
        self._listen(_Listener(hear or subscription.put, kinds, subscription))
        if subscription.waits:
            self._waited.append(subscription)

    def leave(self, subscription: Subscription[Any]) -> None:
        """Listen no more."""
        subscription.leave()
        self._listeners = [each for each in self._listeners if each.subscription is not subscription]
        self._waited = [each for each in self._waited if each is not subscription]
        self._routes = {}
        self.active = bool(self._listeners)

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call `watcher` with every event, at once; it must not wait and must not raise."""
        self._listen(_Listener(watcher))

    def _listen(self, listener: _Listener) -> None:
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

    async def room(self) -> None:
        """Wait for everybody who is to be waited for, while they have no room."""
        while self._waited and (full := next((each for each in self._waited if each.is_full), None)):
            await full.room(self.run_id)

    def close(self) -> None:
        """End every subscription."""
        self._closed = True
        for listener in self._listeners:
            if listener.subscription is not None:
                listener.subscription.close()
