"""A run's channel, for the code around the run."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Generic

import anyio
import anyio.from_thread
from anyio.lowlevel import checkpoint, current_token

from noetic_py.channels.declared import Channel, gone
from noetic_py.channels.live import LiveChannel, Reader, TopicListener
from noetic_py.core.types import T
from noetic_py.core.unawaited import must_enter
from noetic_py.core.validation import admit_value
from noetic_py.core.values import copy_value
from noetic_py.errors import ChannelClosed, WrongThread


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

        A full queue loses its oldest message, which is counted, logged once, and told as an event.

        Raises:
            ChannelValueInvalid: The value is not of the channel's type.
            ForgedEvent: It is an item that only the library makes, such as a call without its output.
            ChannelClosed: The run is over.
            WrongThread: The thread runs an event loop of its own from which nothing can be handed over.
        """
        checked = copy_value(self._channel.check(value, outside=True))
        admit_value(checked, entry="channel")
        if self._live.closed:
            raise gone(self._channel.name, "its run is over")
        if threading.get_ident() == self._thread:
            self._live.push(checked)
            return
        try:
            anyio.from_thread.run_sync(partial(self._live.push, checked), token=self._token)
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
