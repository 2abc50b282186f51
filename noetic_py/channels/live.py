"""The live channels of a run (queues, values and topics), and handles for code outside."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from heapq import merge
from logging import WARNING
from operator import attrgetter
from typing import Any, Final, Generic, Protocol

import anyio
from anyio.lowlevel import checkpoint, current_token
from attrs import define, field

from noetic_py.channels.declared import (
    AnyChannel,
    Channel,
    ChannelMode,
    gone,
    refuse,
    require_channel,
    require_external,
)
from noetic_py.core.diagnostics import Where, log, must_enter
from noetic_py.core.log import admit_value
from noetic_py.core.types import T
from noetic_py.core.values import copy_value
from noetic_py.errors import ChannelClosed, LimitExceeded, WrongThread

_OVER = "its run is over"
MAX_LISTENERS: Final = 10_000
"""How many may listen to one topic at once."""
MAX_CHANNELS: Final = 10_000
"""How many channels one run may have."""


@define(eq=False)
class Entry:
    """One message, or the place that is kept for one.

    Attributes:
        serial: Its place in the order of the channel.
        value: What was sent.
        placed: Whether it is there, and not only its place.
        sender: The path of the send; empty for one from outside the run.
    """

    serial: int
    value: Any = None
    placed: bool = False
    sender: tuple[str, ...] = ()


@define(eq=False)
class _Waiter:
    """A task that waits, and what it was handed."""

    event: anyio.Event = field(factory=anyio.Event)
    entry: Entry | None = None


_SERIAL = attrgetter("serial")


def _put_back(there: deque[Entry], entries: tuple[Entry, ...]) -> None:
    """Put messages back to their places among those that are there, which stand in order."""
    back = sorted(entries, key=_SERIAL)
    if there and back and there[0].serial < back[-1].serial:
        back = list(merge(back, there, key=_SERIAL))
        there.clear()
    there.extendleft(reversed(back))


class Reader(Protocol):
    """Where one receiver takes messages from."""

    async def take(self) -> Entry:
        """The next message; waits for it.

        Raises:
            ChannelClosed: The channel was closed, and nothing is left.
        """
        ...

    def take_now(self) -> Entry | None:
        """The next message if there is one."""
        ...

    def give_back(self, *entries: Entry) -> None:
        """Undo takes: the messages go back to their places in the order."""
        ...


class LiveChannel(Protocol):
    """A channel of a run in progress."""

    channel: AnyChannel
    closed: bool
    dropped: int

    async def wait_for_space(self) -> Entry:
        """Wait until a message can be placed, first come first served, and keep the place.

        Raises:
            ChannelClosed: The channel is closed.
        """
        ...

    def place(self, entry: Entry, value: object) -> None:
        """Put a message into its place."""
        ...

    def restore(self, sender: tuple[str, ...], value: object) -> None:
        """Put a message back that was sent before this process had the run."""
        ...

    def offer(self, sender: tuple[str, ...], value: object) -> bool:
        """Put a stored message there, unless the channel is closed or has no place for it; says whether it is there."""
        ...

    def skip(self) -> None:
        """Leave out the place of a message that was taken before this process had the run."""
        ...

    def push(self, value: object) -> None:
        """Send without waiting; a full queue loses its oldest message, which is counted.

        Raises:
            ChannelClosed: The channel is closed.
        """
        ...

    def reader(self, alive: Callable[[], bool]) -> Reader:
        """The source of a new receiver; of a topic for as long as the receiver lives."""
        ...

    def listen(self) -> Reader:
        """The source of a stream of the channel; of a value it yields every change."""
        ...

    def close(self) -> None:
        """Take no more messages; what is there can still be received."""
        ...


class _Base:
    """Base of the three modes."""

    def __init__(self, channel: AnyChannel, lost: Callable[[AnyChannel, int], None]) -> None:
        self.channel = channel
        self.closed = False
        self.dropped: int = 0
        self._lost = lost
        self._next = 0

    def _entry(self) -> Entry:
        self._next += 1
        return Entry(self._next)

    def place(self, entry: Entry, value: object) -> None:
        """Put a message into its place."""
        raise NotImplementedError

    def restore(self, sender: tuple[str, ...], value: object) -> None:
        entry = self._entry()
        entry.sender = sender
        self.place(entry, value)

    def offer(self, sender: tuple[str, ...], value: object) -> bool:
        if self.closed or not self.has_room:
            return False
        self.restore(sender, value)
        return True

    @property
    def has_room(self) -> bool:
        """Whether a message can be placed without waiting."""
        return True

    def skip(self) -> None:
        self._next += 1

    def check_open(self) -> None:
        """Raise when the channel is closed."""
        if self.closed:
            raise gone(self.channel.name, _OVER)

    def lose(self) -> None:
        """A message was dropped."""
        self.dropped += 1
        self._lost(self.channel, self.dropped)


class _Queue(_Base):
    """Messages in order, waiting senders in order, waiting receivers in order."""

    def __init__(self, channel: AnyChannel, lost: Callable[[AnyChannel, int], None]) -> None:
        super().__init__(channel, lost)
        self._entries: deque[Entry] = deque()
        self._senders: deque[_Waiter] = deque()
        self._readers: deque[_Waiter] = deque()

    @property
    def has_room(self) -> bool:
        return len(self._entries) < self.channel.capacity and not self._senders

    async def wait_for_space(self) -> Entry:
        self.check_open()
        if self.has_room:
            entry = self._entry()
            self._entries.append(entry)
            return entry
        waiter = _Waiter()
        self._senders.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            # Cancelled in the moment in which the place was granted: the next in line gets it.
            if waiter.entry is not None:
                self.leave(waiter.entry)
            else:
                self._senders.remove(waiter)
            raise
        if waiter.entry is None:
            # It is the end that has woken it.
            self._senders.remove(waiter)
            raise gone(self.channel.name, _OVER)
        return waiter.entry

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        entry.placed = True
        self._wake()

    def restore(self, sender: tuple[str, ...], value: object) -> None:
        entry = self._entry()
        entry.sender = sender
        self._entries.append(entry)
        self.place(entry, value)

    def leave(self, entry: Entry) -> None:
        """Give up a place that was kept."""
        self._entries.remove(entry)
        self._wake()
        self._grant()

    def push(self, value: object) -> None:
        self.check_open()
        if len(self._entries) >= self.channel.capacity:
            oldest = next((entry for entry in self._entries if entry.placed), None)
            self.lose()
            if oldest is None:
                return
            self._entries.remove(oldest)
        entry = self._entry()
        self._entries.append(entry)
        self.place(entry, value)

    async def take(self) -> Entry:
        entry = self.take_now()
        if entry is not None:
            return entry
        waiter = _Waiter()
        self._readers.append(waiter)
        try:
            # A message stays in the queue until a running receiver takes it, so that a cancelled one has none, and
            # messages leave in their order, in whatever order the event loop runs receivers.
            while True:
                entry = self._first() if self._readers[0] is waiter else None
                if entry is not None:
                    return entry
                if not self._ready():
                    self.check_open()
                waiter.event = anyio.Event()
                await waiter.event.wait()
        finally:
            self._readers.remove(waiter)
            self._wake()

    def take_now(self) -> Entry | None:
        # Messages that are there belong to receivers that wait already.
        return None if self._readers else self._first()

    def _first(self) -> Entry | None:
        """Take the first message; an earlier place that is still empty is waited for."""
        if not self._ready():
            return None
        entry = self._entries.popleft()
        self._grant()
        return entry

    def _ready(self) -> bool:
        return bool(self._entries) and self._entries[0].placed

    def give_back(self, *entries: Entry) -> None:
        _put_back(self._entries, entries)
        self._wake()

    def _wake(self) -> None:
        """Let the receiver that has waited longest have a look; it wakes the next one."""
        if self._readers and self._ready():
            self._readers[0].event.set()

    def _grant(self) -> None:
        while self._senders and len(self._entries) < self.channel.capacity:
            waiter = self._senders.popleft()
            waiter.entry = self._entry()
            self._entries.append(waiter.entry)
            waiter.event.set()

    def reader(self, alive: Callable[[], bool]) -> Reader:
        return self

    def listen(self) -> Reader:
        return self

    def close(self) -> None:
        self.closed = True
        for waiter in (*self._senders, *self._readers):
            waiter.event.set()


class _Value(_Base):
    """The latest value."""

    def __init__(self, channel: AnyChannel, lost: Callable[[AnyChannel, int], None]) -> None:
        super().__init__(channel, lost)
        self._latest: Entry | None = None
        self._changed = anyio.Event()

    async def wait_for_space(self) -> Entry:
        self.check_open()
        return self._entry()

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        self._latest = entry
        self._wake()

    def push(self, value: object) -> None:
        self.check_open()
        self.place(self._entry(), value)

    def newer(self, serial: int) -> Entry | None:
        """The value, if it is a later one than that."""
        return self._latest if self._latest is not None and self._latest.serial > serial else None

    async def wait(self, serial: int) -> Entry:
        """The first value that is later than that."""
        while (entry := self.newer(serial)) is None:
            self.check_open()
            await self._changed.wait()
        return entry

    async def take(self) -> Entry:
        return await self.wait(0)

    def take_now(self) -> Entry | None:
        return self._latest

    def give_back(self, *entries: Entry) -> None:
        """Nothing was taken away."""

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def reader(self, alive: Callable[[], bool]) -> Reader:
        return self

    def listen(self) -> Reader:
        return _Changes(self)

    def close(self) -> None:
        self.closed = True
        self._wake()


class _Changes:
    """Every change of a value that its reader is there for; of several at once the last."""

    def __init__(self, value: _Value) -> None:
        self._value = value
        self._serial = 0

    async def take(self) -> Entry:
        entry = await self._value.wait(self._serial)
        self._serial = entry.serial
        return entry

    def take_now(self) -> Entry | None:
        entry = self._value.newer(self._serial)
        self._serial = self._serial if entry is None else entry.serial
        return entry

    def give_back(self, *entries: Entry) -> None:
        """A change is sent once to each listener; later ones see the latest value."""


_FEW = 32


class _Topic(_Base):
    """All listeners, each with a buffer of its own."""

    def __init__(self, channel: AnyChannel, lost: Callable[[AnyChannel, int], None]) -> None:
        super().__init__(channel, lost)
        self._listeners: dict[TopicListener, None] = {}
        # Those of steps, which end without a word.
        self._readers: dict[TopicListener, None] = {}
        # How many there may be before those whose step has ended are looked for.
        self._many = _FEW

    async def wait_for_space(self) -> Entry:
        self.check_open()
        return self._entry()

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        for listener in tuple(self._listeners):
            listener.hear(entry)

    def push(self, value: object) -> None:
        self.check_open()
        self.place(self._entry(), value)

    def reader(self, alive: Callable[[], bool]) -> Reader:
        reader = self._add(TopicListener(self, alive))
        self._readers[reader] = None
        return reader

    def listen(self) -> TopicListener:
        return self._add(TopicListener(self))

    def _add(self, listener: TopicListener) -> TopicListener:
        if len(self._listeners) >= self._many:
            # Nothing was sent, so listeners that are gone were not noticed; twice as many as are left makes this cheap.
            for gone in [each for each in self._readers if not each.alive]:
                self.forget(gone)
            if len(self._listeners) >= MAX_LISTENERS:
                raise LimitExceeded(
                    f"listeners of channel {self.channel.name!r}", MAX_LISTENERS, hint="leave a stream that is not read"
                )
            self._many = min(max(_FEW, 2 * len(self._listeners)), MAX_LISTENERS)
        self._listeners[listener] = None
        return listener

    def forget(self, listener: TopicListener) -> None:
        """The listener is gone."""
        self._listeners.pop(listener, None)
        self._readers.pop(listener, None)

    def close(self) -> None:
        self.closed = True
        for listener in self._listeners:
            listener.wake()


class TopicListener:
    """One receiver's share of a topic."""

    def __init__(self, topic: _Topic, alive: Callable[[], bool] | None = None) -> None:
        self._topic = topic
        # Asked at each message; a listener that says no is forgotten.
        self._alive = alive
        self._heard: deque[Entry] = deque()
        self._waiting: deque[_Waiter] = deque()
        self._left = False

    @property
    def alive(self) -> bool:
        """Whether a receiver may still ask it for a message."""
        return self._alive is None or self._alive()

    def hear(self, entry: Entry) -> None:
        """Take note of a message."""
        if not self.alive:
            self._topic.forget(self)
            return
        if len(self._heard) >= self._topic.channel.capacity:
            self._heard.popleft()
            self._topic.lose()
        self._heard.append(entry)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._heard:
            waiter = self._waiting.popleft()
            waiter.entry = self._heard.popleft()
            waiter.event.set()

    def wake(self) -> None:
        """The topic is closed, or the listener has left."""
        for waiter in self._waiting:
            waiter.event.set()

    async def take(self) -> Entry:
        """The next message; waits for it."""
        if self._heard:
            return self._heard.popleft()
        if self._left or self._topic.closed:
            raise self._end()
        waiter = _Waiter()
        self._waiting.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.entry is not None:
                self.give_back(waiter.entry)
            else:
                self._waiting.remove(waiter)
            raise
        if waiter.entry is None:
            self._waiting.remove(waiter)
            raise self._end()
        return waiter.entry

    def _end(self) -> ChannelClosed:
        return gone(self._topic.channel.name, "its stream was left" if self._left else _OVER)

    def take_now(self) -> Entry | None:
        """Nothing."""
        # A topic keeps nothing for a receiver that is not waiting.
        return None

    def give_back(self, *entries: Entry) -> None:
        """Put messages back to their places."""
        _put_back(self._heard, entries)
        self._serve()

    def leave(self) -> None:
        """Stop listening."""
        self._left = True
        self._heard.clear()
        self._topic.forget(self)
        self.wake()


_LIVE: dict[ChannelMode, Callable[[AnyChannel, Callable[[AnyChannel, int], None]], LiveChannel]] = {
    "queue": _Queue,
    "value": _Value,
    "topic": _Topic,
}


class Board:
    """The channels of one run.

    Args:
        lost: Told of each message that was dropped: the channel, and how many it has lost by now.
        fill: Puts into a channel that is made what was in it before this process had the run.
    """

    def __init__(
        self, lost: Callable[[AnyChannel, int], None], fill: Callable[[LiveChannel], None] | None = None
    ) -> None:
        self._lost = lost
        self._fill = fill
        self._live: dict[str, LiveChannel] = {}
        self._closed = False

    def live(self, channel: object) -> LiveChannel:
        """A channel of the run; made when it is first asked for.

        Raises:
            ConfigError: It is not a channel, or one that differs from another of that name; code `"channel"`.
            LimitExceeded: The run has too many of them.
        """
        channel = require_channel(channel)
        found = self._live.get(channel.name)
        if found is None:
            if len(self._live) >= MAX_CHANNELS:
                raise LimitExceeded("channels of a run", MAX_CHANNELS, hint="send different things through one channel")
            found = self._live[channel.name] = _LIVE[channel.mode](channel, self._lost)
            if self._fill is not None:
                self._fill(found)
            if self._closed:
                found.close()
        elif found.channel is not channel and not found.channel.agrees(channel):
            raise refuse(
                f"{channel!r} differs from {found.channel!r}, which the run uses under that name",
                "declare the channel once and import it",
            )
        return found

    def known(self, name: str) -> LiveChannel | None:
        """A channel that has been made, by its name."""
        return self._live.get(name)

    @property
    def has_external(self) -> bool:
        """Whether one that has been made is external."""
        return any(live.channel.external for live in self._live.values())

    def close(self) -> None:
        """The run is over: nothing more is sent, and what is left can still be read."""
        self._closed = True
        for live in self._live.values():
            live.close()


def log_lost(channel: AnyChannel, dropped: int, run: str = "") -> None:
    """Say once that a channel of a run loses messages; from then on the count tells."""
    if dropped == 1:
        log(
            "channels",
            WARNING,
            "channel %r is full: its oldest message was dropped, and more may follow (capacity %d)",
            channel.name,
            channel.capacity,
            where=Where(run),
        )


def from_outside(channel: Channel[T], value: T) -> T:
    """A value from outside the run as one of its external channels carries it.

    Raises:
        ConfigError: The channel is not one, or not external; code `"channel"`.
        ChannelValueInvalid: The value is not of its type.
        ForgedEvent: It is an item that only the library makes, such as a call without its output.
    """
    require_external(require_channel(channel))
    checked: T = copy_value(channel.check(value, outside=True))
    admit_value(checked, entry="channel")
    return checked


class ChannelHandle(Generic[T]):
    """A channel of a run, for code outside of it; get one from `harness.channel_handle`.

    `send` may be called from any thread.
    """

    def __init__(self, channel: Channel[T], live: LiveChannel) -> None:
        self._channel = channel
        self._live = live
        self._thread = threading.get_ident()
        self._token = current_token()

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        return self._live.closed

    @property
    def dropped(self) -> int:
        """How many messages were lost because they were not received in time."""
        return self._live.dropped

    def send(self, value: T) -> None:
        """Send; never waits for a place.

        A full queue loses its oldest message, which is counted, logged once, and published as an event.

        Raises:
            ChannelValueInvalid: The value is not of the channel's type.
            ForgedEvent: It is an item that only the library makes, such as a call without its output.
            ChannelClosed: The run is over.
            WrongThread: The thread runs an event loop of its own from which nothing can be handed over.
        """
        checked = from_outside(self._channel, value)
        if self._live.closed:
            raise gone(self._channel.name, "its run is over")
        if threading.get_ident() == self._thread:
            self._live.push(checked)
            return
        from anyio.from_thread import run_sync

        try:
            run_sync(partial(self._live.push, checked), token=self._token)
        except RuntimeError as error:
            if self.closed or isinstance(error, anyio.RunFinishedError):
                raise gone(self._channel.name, "the event loop of its run has ended") from error
            raise WrongThread(
                "this thread runs an event loop of its own", hint="await anyio.to_thread.run_sync(handle.send, value)"
            ) from error

    @must_enter("channel.stream()")
    def stream(self) -> AbstractAsyncContextManager[AsyncIterator[T]]:
        """Read: `async with handle.stream() as values: async for value in values: ...`.

        Of a queue it takes messages away, as any receiver does; of a value it gives each change that it is in time for,
        of a topic all messages from now on. It ends when the run is over and nothing is left.
        """
        return self._stream()

    @asynccontextmanager
    async def _stream(self) -> AsyncGenerator[AsyncIterator[T]]:
        if threading.get_ident() != self._thread:
            raise WrongThread("the run belongs to another thread", hint="read its channels where it runs")
        reader = self._live.listen()
        values: _Values[T] = _Values(reader)
        try:
            yield values
        finally:
            values.left = True
            if isinstance(reader, TopicListener):
                reader.leave()


class _Values(AsyncIterator[T]):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.left = False

    async def __anext__(self) -> T:
        await checkpoint()
        if self.left:
            raise StopAsyncIteration
        try:
            value: T = copy_value((await self._reader.take()).value)
        except ChannelClosed:
            raise StopAsyncIteration from None
        return value
