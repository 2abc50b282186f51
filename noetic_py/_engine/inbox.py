"""Where a step that has nothing to do waits: a loop for its next input, a schedule for somebody to wake it."""

from __future__ import annotations

from typing import Any

import anyio

from noetic_py._engine.channels import take
from noetic_py._engine.durable import NOTHING, recorded
from noetic_py._engine.frame import Frame
from noetic_py._engine.ledger import decided
from noetic_py.channels import Channel, Entry
from noetic_py.errors import ChannelClosed
from noetic_py.events import LoopParked

__all__ = ["Inbox"]


class Inbox:
    """What a loop takes its messages from: by a decision, so that a failed iteration does not give its own back."""

    def __init__(self, frame: Frame, channel: Channel[Any], patience: float) -> None:
        self._frame = frame
        self._channel = channel
        self._patience = patience
        attempt = frame.attempt
        # Of a topic for this attempt: the next one listens for itself.
        self._reader = frame.x.run.channels.live(channel).reader(
            lambda: frame.token is not None and frame.attempt == attempt
        )

    async def next(self, iteration: int) -> Any:
        """The next message, waited for as long as the loop parks; `NOTHING` when none has come."""
        before = recorded(self._frame, f"inbox[{iteration}]")
        if before is not NOTHING:
            return before
        message = self._take(self._reader.take_now(), iteration)
        if message is not NOTHING or not self._patience:
            return message
        bus = self._frame.x.run.bus
        if bus.active:
            self._frame.tell(LoopParked(self._frame.at, iteration))
        return self._take(await self.wait(self._patience), iteration)

    def now(self, iteration: int) -> Any:
        """A message that is there, `None` otherwise."""
        before = recorded(self._frame, f"inbox[{iteration}]")
        if before is not NOTHING:
            return before
        message = self._take(self._reader.take_now(), iteration)
        return None if message is NOTHING else message

    async def wait(self, seconds: float) -> Entry | None:
        """A message within so many seconds."""
        try:
            with anyio.move_on_after(seconds):
                return await self._reader.take()
        except ChannelClosed:
            pass
        return None

    async def interrupt(self, scope: anyio.CancelScope, iteration: int) -> None:
        """Cancel the scope when a message comes."""
        entry = await self._reader.take()
        self._take(entry, iteration)
        scope.cancel()

    def _take(self, entry: Entry | None, iteration: int) -> Any:
        if entry is None:
            return NOTHING
        key = f"inbox[{iteration}]"
        value = take(self._frame, self._channel, (*self._frame.at, key), entry, self._reader)
        decided(self._frame, key, value)
        if entry.sender and self._frame.x.run.store is not None:
            decided(self._frame, f"{key}.from", list(entry.sender))
        return value
