"""Channels: typed ways between the steps of a run, and between a run and the code around it.

A `Channel` is a declaration, made once and shared by everybody who sends or receives. What is under way belongs to a
run: it is made when the run first uses the channel, and closed when the run ends.

- `"queue"`: first in, first out; each message goes to one receiver. A full queue parks its senders, first come first
  served.
- `"value"`: the latest value; receiving does not take it away.
- `"topic"`: every step that is receiving gets every message; without a receiver a message is gone.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias

import anyio
import anyio.from_thread
from anyio.lowlevel import checkpoint, current_token
from attrs import define, field
from typing_extensions import TypeIs

from noetic_py._types import T
from noetic_py.errors import ChannelClosed, ChannelValueInvalid, ConfigError, WrongThread

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Board", "Channel", "ChannelHandle", "ChannelMode", "Entry", "Live", "Reader"]

ChannelMode: TypeAlias = Literal["value", "queue", "topic"]
"""How a channel hands on what is sent."""

DEFAULT_TIMEOUT = 30.0
"""Seconds that `ctx.send` and `ctx.recv` wait unless told."""
MAX_NAME = 200
"""The longest name of a channel, in characters."""

_log = logging.getLogger("noetic_py")


class Channel(Generic[T]):
    """A typed channel.

    ```python
    questions = Channel("questions", str, external=True)
    await ctx.send(questions, "When is high tide?")
    question = await ctx.recv(questions)
    ```

    Two declarations with one name are one channel when they agree, and an error in a run that meets both when not.

    Args:
        name: Its name, unique in a run.
        schema: The type of what is sent: any type that pydantic can check. A step's value has to be of the type as it
            stands; one from outside the run is converted where pydantic does that without loss.
        mode: `"queue"`, `"value"` or `"topic"`.
        capacity: How many messages may wait: in a queue for a receiver, in a topic for each receiver.
        external: Whether code outside the run may have a handle of it.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"channel"`.
    """

    __slots__ = ("_adapter", "capacity", "external", "mode", "name", "schema")

    def __init__(
        self, name: str, schema: type[T], *, mode: ChannelMode = "queue", capacity: int = 1000, external: bool = False
    ) -> None:
        _check_parts(name, mode, capacity)
        self.name: str = name
        self.schema: type[T] = schema
        self.mode: ChannelMode = mode
        self.capacity: int = capacity
        self.external: bool = external
        self._adapter: TypeAdapter[T] | None = None
        declared: object = schema
        if isinstance(declared, str):
            raise _unknown(declared)
        if not isinstance(declared, type):
            # A class can always be checked; of anything else it shows now whether pydantic knows it.
            self._checker()

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {_spelled(self.schema)}, mode={self.mode!r})"

    def agrees(self, other: Channel[Any]) -> bool:
        """Whether both declare the same channel."""
        return (self.name, self.schema, self.mode, self.capacity, self.external) == (
            other.name, other.schema, other.mode, other.capacity, other.external,
        )  # fmt: skip

    def check(self, value: object, *, outside: bool = False) -> T:
        """The value as the channel carries it.

        Args:
            value: What is to be sent.
            outside: Whether it comes from outside the run, and may be converted.

        Raises:
            ChannelValueInvalid: It is not of the channel's type.
        """
        if type(value) is self.schema and not outside:
            return value
        from pydantic import BaseModel, PydanticUserError, ValidationError

        declared: object = self.schema
        strict = not outside and isinstance(declared, type) and issubclass(declared, BaseModel)
        if strict and not isinstance(value, BaseModel):
            # Pydantic makes a model of a mapping even where it is told to be strict.
            raise self._unfit(f"{type(value).__name__} is no {_spelled(declared)}")
        try:
            return self._checker().validate_python(value, strict=None if outside else True)
        except PydanticUserError as error:
            raise _unknown(self.schema) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self._unfit(f"{where}: {first['msg']}" if where else first["msg"]) from None

    def _unfit(self, message: str) -> ChannelValueInvalid:
        return ChannelValueInvalid(message, channel=self.name, hint=f"{self.name!r} carries {_spelled(self.schema)}")

    def _checker(self) -> TypeAdapter[T]:
        if self._adapter is None:
            from pydantic import ConfigDict, PydanticUserError, TypeAdapter
            from pydantic.warnings import ArbitraryTypeWarning

            try:
                with warnings.catch_warnings():
                    # What is no type at all would be let through with a warning, whatever is sent.
                    warnings.simplefilter("error", ArbitraryTypeWarning)
                    try:
                        self._adapter = TypeAdapter(self.schema, config=ConfigDict(arbitrary_types_allowed=True))
                    except PydanticUserError:
                        # A pydantic model or dataclass brings a configuration of its own, and wants no other.
                        self._adapter = TypeAdapter(self.schema)
            except (PydanticUserError, ArbitraryTypeWarning, NameError, TypeError) as error:
                raise _unknown(self.schema) from error
        return self._adapter


def _check_parts(name: object, mode: object, capacity: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise _refuse(f"name={name!r} is not a printable text of 1 to {MAX_NAME} characters", 'Channel("jobs", str)')
    if mode not in ("value", "queue", "topic"):
        raise _refuse(f"mode={mode!r} is unknown", 'mode="queue", "value" or "topic"')
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise _refuse(f"capacity={capacity!r} is not 1 or more", "capacity=1000")


def is_channel(value: object) -> TypeIs[Channel[Any]]:
    """Whether the value is a channel, whatever it carries."""
    return isinstance(value, Channel)


def _spelled(schema: object) -> str:
    # A generic such as list[int] has the name of its class, without what is in the brackets.
    return schema.__name__ if isinstance(schema, type) and "[" not in repr(schema) else repr(schema)


def _unknown(schema: object) -> ConfigError:
    return _refuse(f"schema={schema!r} is no type that pydantic can check", "schema=str")


def _refuse(message: str, hint: str) -> ConfigError:
    return ConfigError(message, code="channel", hint=hint)


def _gone(name: str, hint: str) -> ChannelClosed:
    return ChannelClosed(f"channel {name!r} is closed", hint=hint)


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


class Live(Protocol):
    """A channel of a run, while the run goes on."""

    channel: Channel[Any]
    closed: bool
    dropped: int

    async def room(self) -> Entry:
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

    def push(self, value: object) -> None:
        """Send without waiting; a full queue loses its oldest message, which is counted.

        Raises:
            ChannelClosed: The channel is closed.
        """
        ...

    def reader(self, alive: Callable[[], bool]) -> Reader:
        """What a new receiver takes from; of a topic for as long as it is alive."""
        ...

    def listen(self) -> Reader:
        """What a stream of the channel takes from: of a value every change."""
        ...

    def close(self) -> None:
        """Take no more messages; what is there can still be received."""
        ...


class _Base:
    """What the three modes share."""

    def __init__(self, channel: Channel[Any], lost: Callable[[Channel[Any], int], None]) -> None:
        self.channel = channel
        self.closed = False
        self.dropped = 0
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

    def _check_open(self) -> None:
        if self.closed:
            raise _gone(self.channel.name, "its run is over")

    def _lose(self) -> None:
        self.dropped += 1
        self._lost(self.channel, self.dropped)


class _Queue(_Base):
    """Messages in order, parked senders in order, waiting receivers in order."""

    def __init__(self, channel: Channel[Any], lost: Callable[[Channel[Any], int], None]) -> None:
        super().__init__(channel, lost)
        self._entries: deque[Entry] = deque()
        self._senders: deque[_Waiter] = deque()
        self._readers: deque[_Waiter] = deque()

    async def room(self) -> Entry:
        self._check_open()
        if len(self._entries) < self.channel.capacity and not self._senders:
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
            elif waiter in self._senders:
                self._senders.remove(waiter)
            raise
        if waiter.entry is None:
            self._check_open()
            raise RuntimeError("a parked sender was woken without a place")
        return waiter.entry

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        entry.placed = True
        self._serve()

    def restore(self, sender: tuple[str, ...], value: object) -> None:
        entry = self._entry()
        entry.sender = sender
        self._entries.append(entry)
        self.place(entry, value)

    def leave(self, entry: Entry) -> None:
        """Give up a place that was kept."""
        self._entries.remove(entry)
        self._serve()
        self._grant()

    def push(self, value: object) -> None:
        self._check_open()
        if len(self._entries) >= self.channel.capacity:
            oldest = next((entry for entry in self._entries if entry.placed), None)
            self._lose()
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
        self._check_open()
        waiter = _Waiter()
        self._readers.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            # Cancelled in the moment of the hand-over: the message goes back, and nobody gets it twice.
            if waiter.entry is not None:
                self.give_back(waiter.entry)
            elif waiter in self._readers:
                self._readers.remove(waiter)
            raise
        if waiter.entry is None:
            self._check_open()
            raise RuntimeError("a receiver was woken without a message")
        return waiter.entry

    def take_now(self) -> Entry | None:
        if not self._entries or not self._entries[0].placed:
            return None
        entry = self._entries.popleft()
        self._grant()
        return entry

    def give_back(self, *entries: Entry) -> None:
        # All of them before anybody is served: who waits gets the first of them, whatever order they come in.
        _put_back(self._entries, entries)
        self._serve()

    def _serve(self) -> None:
        """Hand messages to receivers; an earlier place that is still empty is waited for."""
        while self._readers and (entry := self.take_now()) is not None:
            waiter = self._readers.popleft()
            waiter.entry = entry
            waiter.event.set()

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
        self._senders.clear()
        self._readers.clear()


class _Value(_Base):
    """The latest value."""

    def __init__(self, channel: Channel[Any], lost: Callable[[Channel[Any], int], None]) -> None:
        super().__init__(channel, lost)
        self._latest: Entry | None = None
        self._changed = anyio.Event()

    async def room(self) -> Entry:
        self._check_open()
        return self._entry()

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        self._latest = entry
        self._wake()

    def push(self, value: object) -> None:
        self._check_open()
        self.place(self._entry(), value)

    def newer(self, serial: int) -> Entry | None:
        """The value, if it is a later one than that."""
        return self._latest if self._latest is not None and self._latest.serial > serial else None

    async def wait(self, serial: int) -> Entry:
        """The first value that is later than that."""
        while (entry := self.newer(serial)) is None:
            self._check_open()
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
        """A change is told once to each listener; whoever comes later sees the latest value."""


_FEW = 32


class _Topic(_Base):
    """Everybody who listens, each with a buffer of its own."""

    def __init__(self, channel: Channel[Any], lost: Callable[[Channel[Any], int], None]) -> None:
        super().__init__(channel, lost)
        self._listeners: list[_Listener] = []
        # How many there may be before those whose step has ended are looked for.
        self._many = _FEW

    async def room(self) -> Entry:
        self._check_open()
        return self._entry()

    def place(self, entry: Entry, value: object) -> None:
        entry.value = value
        for listener in tuple(self._listeners):
            listener.hear(entry)

    def push(self, value: object) -> None:
        self._check_open()
        self.place(self._entry(), value)

    def reader(self, alive: Callable[[], bool]) -> Reader:
        return self._add(_Listener(self, alive))

    def listen(self) -> _Listener:
        return self._add(_Listener(self))

    def _add(self, listener: _Listener) -> _Listener:
        if len(self._listeners) >= self._many:
            # Nobody sends, so nobody has noticed who is gone; twice as many as are left makes this cheap.
            self._listeners = [each for each in self._listeners if each.alive]
            self._many = max(_FEW, 2 * len(self._listeners))
        self._listeners.append(listener)
        return listener

    def forget(self, listener: _Listener) -> None:
        """The listener is gone."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def overflow(self) -> None:
        """A listener has lost its oldest message."""
        self._lose()

    def check_open(self) -> None:
        """Raise when the topic is closed."""
        self._check_open()

    def close(self) -> None:
        self.closed = True
        for listener in self._listeners:
            listener.wake()


class _Listener:
    """One receiver's share of a topic."""

    def __init__(self, topic: _Topic, alive: Callable[[], bool] | None = None) -> None:
        self._topic = topic
        # Asked at each message; a listener that says no is forgotten.
        self._alive = alive
        self._heard: deque[Entry] = deque()
        self._waiting: deque[_Waiter] = deque()

    @property
    def alive(self) -> bool:
        """Whether somebody may still ask it for a message."""
        return self._alive is None or self._alive()

    def hear(self, entry: Entry) -> None:
        """Take note of a message."""
        if not self.alive:
            self._topic.forget(self)
            return
        if len(self._heard) >= self._topic.channel.capacity:
            self._heard.popleft()
            self._topic.overflow()
        self._heard.append(entry)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._heard:
            waiter = self._waiting.popleft()
            waiter.entry = self._heard.popleft()
            waiter.event.set()

    def wake(self) -> None:
        """The topic is closed."""
        for waiter in self._waiting:
            waiter.event.set()
        self._waiting.clear()

    async def take(self) -> Entry:
        if self._heard:
            return self._heard.popleft()
        self._topic.check_open()
        waiter = _Waiter()
        self._waiting.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.entry is not None:
                self.give_back(waiter.entry)
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise
        if waiter.entry is None:
            self._topic.check_open()
            raise RuntimeError("a listener was woken without a message")
        return waiter.entry

    def take_now(self) -> Entry | None:
        # A topic keeps nothing for somebody who is not waiting.
        return None

    def give_back(self, *entries: Entry) -> None:
        _put_back(self._heard, entries)
        self._serve()

    def leave(self) -> None:
        """Stop listening."""
        self._topic.forget(self)


_LIVE: dict[ChannelMode, Callable[[Channel[Any], Callable[[Channel[Any], int], None]], Live]] = {
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

    def __init__(self, lost: Callable[[Channel[Any], int], None], fill: Callable[[Live], None] | None = None) -> None:
        self._lost = lost
        self._fill = fill
        self._live: dict[str, Live] = {}
        self._closed = False

    def live(self, channel: object) -> Live:
        """A channel of the run; made when it is first asked for.

        Raises:
            ConfigError: It is no channel, or one that differs from another of that name; code `"channel"`.
        """
        if not is_channel(channel):
            raise _refuse(f"{channel!r} is no channel", 'Channel("jobs", str)')
        found = self._live.get(channel.name)
        if found is None:
            found = self._live[channel.name] = _LIVE[channel.mode](channel, self._lost)
            if self._fill is not None:
                self._fill(found)
            if self._closed:
                found.close()
        elif found.channel is not channel and not found.channel.agrees(channel):
            raise _refuse(
                f"{channel!r} differs from {found.channel!r}, which the run uses under that name",
                "declare the channel once and import it",
            )
        return found

    def close(self) -> None:
        """The run is over: nothing more is sent, and what is left can still be read."""
        self._closed = True
        for live in self._live.values():
            live.close()


class ChannelHandle(Generic[T]):
    """A channel of a run, for code outside of it; get one from `harness.channel_handle`.

    `send` may be called from any thread.
    """

    def __init__(self, channel: Channel[T], live: Live) -> None:
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
        """How many messages were lost because nobody received them in time."""
        return self._live.dropped

    def send(self, value: T) -> None:
        """Send; never waits for a place.

        A full queue loses its oldest message, which is counted, logged once, and told as an event.

        Raises:
            ChannelValueInvalid: The value is not of the channel's type.
            ChannelClosed: The run is over.
            WrongThread: The thread runs an event loop of its own from which nothing can be handed over.
        """
        checked = self._channel.check(value, outside=True)
        if self._live.closed:
            raise _gone(self._channel.name, "its run is over")
        if threading.get_ident() == self._thread:
            self._live.push(checked)
            return
        try:
            anyio.from_thread.run_sync(partial(self._live.push, checked), token=self._token)
        except RuntimeError as error:
            if self.closed or isinstance(error, anyio.RunFinishedError):
                raise _gone(self._channel.name, "the event loop of its run has ended") from error
            raise WrongThread(
                "this thread runs an event loop of its own", hint="await anyio.to_thread.run_sync(handle.send, value)"
            ) from error

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
        try:
            yield _Values(reader)
        finally:
            if isinstance(reader, _Listener):
                reader.leave()


class _Values(AsyncIterator[T]):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def __anext__(self) -> T:
        await checkpoint()
        try:
            value: T = (await self._reader.take()).value
        except ChannelClosed:
            raise StopAsyncIteration from None
        return value


def log_lost(channel: Channel[Any], dropped: int) -> None:
    """Say once that a channel loses messages; from then on the count tells."""
    if dropped == 1:
        _log.warning(
            "channel %r is full: its oldest message was dropped, and more may follow (capacity %d)",
            channel.name,
            channel.capacity,
        )
