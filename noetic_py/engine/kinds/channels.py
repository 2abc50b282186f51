"""Sending and receiving inside a run.

A send is a child step of the body, `send`, `send#1`, ...: what was sent stays sent, also when the body fails later, and
a second attempt of the body does not send it twice. A take is the body's own work: it goes back when the body does.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import frozen

from noetic_py.channels import Entry, LiveChannel, Reader
from noetic_py.channels.declared import AnyChannel
from noetic_py.context.step import AnyStep, Step
from noetic_py.core.diagnostics import warn
from noetic_py.core.values import copy_value
from noetic_py.engine.execute import call_from_body
from noetic_py.engine.frame import Frame, acting, waited
from noetic_py.engine.journaling.deliveries import going_on, note_delivery
from noetic_py.engine.kind import Kind
from noetic_py.errors import ChannelTimeout, ConcurrentStepCall, ConfigError, NoeticError


@frozen(eq=False)
class Put:
    """The arguments of a send."""

    channel: AnyChannel
    value: Any
    timeout: float | None


SEND: AnyStep = Step(id="send", kind="send")


async def send(frame: Frame, channel: AnyChannel, value: object, timeout: float | None) -> None:
    """Send from a body."""
    frame = _acting(frame)
    _check_timeout(timeout, "send", frame)
    with _named(frame):
        frame.x.run.channels.live(channel)
        checked = copy_value(channel.check(value))
        store = frame.x.run.store
        if store is not None:
            # Encoded before it is placed: no receiver may see a message that cannot be stored.
            store.codec.require_readable(store.codec.encode(checked), channel.schema)
    await call_from_body(frame, SEND, Put(channel, checked, timeout))


async def run_send(put: Put, frame: Frame) -> None:
    """Wait for a place, and put the message there."""
    live = frame.x.run.channels.live(put.channel)
    again = _may_come_again(frame)
    sent = frame.x.run.sent
    if again and frame.at in sent:
        return
    with _limit(put.timeout, f"no place was free in channel {put.channel.name!r}", frame):
        entry = await live.wait_for_space()
    # Nothing is awaited from here on: what was placed was sent.
    entry.sender = frame.at
    live.place(entry, put.value)
    if again:
        sent.add(frame.at)


def _may_come_again(frame: Frame) -> bool:
    """Whether a step around it could be tried again, which would send the same message a second time."""
    return any(node.step.retry is not None for node in going_on(frame))


async def receive(frame: Frame, channel: AnyChannel, timeout: float | None) -> object:
    """Wait for the next message."""
    frame = _acting(frame)
    _check_timeout(timeout, "recv", frame)
    with _named(frame):
        reader = _reader(frame, frame.x.run.channels.live(channel))
    # A body that only receives would starve the event loop, and could not be stopped while messages are there.
    name = f"{channel.name} recv"
    await waited(frame, name, checkpoint)
    with _named(frame), _limit(timeout, f"no message came in channel {channel.name!r}", frame):
        entry = await waited(frame, name, reader.take)
    return take(frame, channel, frame.at, entry, reader)


def receive_now(frame: Frame, channel: AnyChannel) -> object:
    """The next message if there is one."""
    frame = _acting(frame)
    with _named(frame):
        live = frame.x.run.channels.live(channel)
    if channel.mode == "topic":
        # It keeps nothing for a receiver that does not wait, and to look once does not begin to listen.
        return None
    reader = _reader(frame, live)
    entry = reader.take_now()
    return None if entry is None else take(frame, channel, frame.at, entry, reader)


def take(frame: Frame, channel: AnyChannel, path: tuple[str, ...], entry: Entry, reader: Reader) -> Any:
    """Note that the step at `path` has taken a message."""
    if channel.mode == "queue":
        note_delivery(frame, path, reader, entry)
        if entry.sender and frame.x.run.store is not None and path == frame.at:
            if frame.takes is None:
                frame.takes = []
            frame.takes.append(entry.sender)
    # It may go back, and another attempt takes it again; of a topic others take it too.
    return copy_value(entry.value)


def _reader(frame: Frame, live: LiveChannel) -> Reader:
    """The source that the body receives from: of a topic its own listener, from its first `recv` until it ends."""
    readers = frame.readers
    if readers is None:
        readers = frame.readers = {}
    attempt = frame.attempt
    found = readers.get((live.channel.name, attempt))
    if found is None:
        found = live.reader(lambda: frame.running and frame.attempt == attempt)
        readers[live.channel.name, attempt] = found
    return found


def _acting(frame: Frame) -> Frame:
    """The body that asks.

    Raises:
        ConcurrentStepCall: It has ended.
    """
    frame = acting(frame)
    if not frame.running:
        raise ConcurrentStepCall(
            f"{'/'.join(frame.at)} used a channel after it had ended",
            path=frame.at,
            hint="send and receive while the step runs; spawn_detached goes on beside it",
        )
    return frame


@contextmanager
def _named(frame: Frame) -> Generator[None]:
    """Add this step's path to errors raised inside."""
    try:
        yield
    except NoeticError as error:
        error.at(frame.at)
        raise


@contextmanager
def _limit(timeout: float | None, what: str, frame: Frame) -> Generator[None]:
    if timeout is None:
        yield
        return
    with anyio.move_on_after(timeout):
        yield
        return
    raise ChannelTimeout(
        f"{what} within {timeout:g} s", path=frame.at, hint="raise timeout=, or check the other side of the channel"
    )


def _check_timeout(timeout: object, where: str, frame: Frame) -> None:
    if timeout is None:
        warn(f"{where}(timeout=None) waits for ever; timeout=float('inf') says that it is meant")
    elif isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigError(
            f"timeout={timeout!r} is not a number of seconds", code="channel", path=frame.at, hint="timeout=30.0"
        )


def _message(put: Put, output: object = None) -> list[object]:
    return [put.channel.name, put.value]


KINDS = (
    Kind("send", run_send, declared=False, sends=True, essence=_message, dump=_message, load=lambda node, codec: None),
)
