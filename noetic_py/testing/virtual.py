"""A runtime whose time stands still until a test moves it, and whose ids and randomness come from a seed."""

from __future__ import annotations

import heapq
import random
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel

from noetic_py.core.runtime import Runtime

__all__ = ["VirtualRuntime"]

_EPOCH = datetime(2025, 1, 1, tzinfo=UTC)

# How many times in a row all other tasks get a turn, without a sleeper coming or going, before time moves on.
_QUIET_TURNS = 16


class VirtualRuntime(Runtime):
    """Clock, ids and randomness for tests: two runs with the same seed are identical, byte for byte.

    Args:
        seed: Where ids and random numbers start.
        start: What the wall clock shows first; 2025-01-01 in UTC unless told.
    """

    __slots__ = ("_elapsed", "_epoch", "_order", "_serial", "_sleepers")

    def __init__(self, seed: int = 0, *, start: datetime = _EPOCH) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311
        self._epoch = start
        self._elapsed = 0.0
        self._serial = 0
        self._order = 0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []

    def sleeping(self) -> int:
        """How many tasks wait in `sleep`."""
        return len(self._sleepers)

    def monotonic(self) -> float:
        """Seconds that the clock was moved since the start."""
        return self._elapsed

    def now(self) -> datetime:
        """The start plus the seconds that the clock was moved."""
        return self._epoch + timedelta(seconds=self._elapsed)

    def new_id(self) -> str:
        """A UUIDv7 made of the virtual time, a counter and seeded bits."""
        # Counter before noise: ids of one virtual millisecond stay in order, however many there are.
        millis = int(self._epoch.timestamp() * 1000) + int(self._elapsed * 1000)
        with self._lock:
            self._serial += 1
            serial, noise = self._serial, self._random.getrandbits(28)
        stamp = f"{millis:012x}"
        tail = f"{0b10 << 62 | (serial & 0x3FFFFFFFF) << 28 | noise:016x}"
        return f"{stamp[:8]}-{stamp[8:]}-7000-{tail[:4]}-{tail[4:]}"

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved by `seconds`."""
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        self._order += 1
        sleeper = (self._elapsed + seconds, self._order, anyio.Event())
        heapq.heappush(self._sleepers, sleeper)
        try:
            await sleeper[2].wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, waking sleepers at their deadlines, earliest first.

        After each wake-up the other tasks run until they wait again, so one that sleeps anew within the same span is
        woken in its turn. Tasks that wait for a thread or for the network are not waited for.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds:g} s")
        end = self._elapsed + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            deadline, _, event = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, deadline)
            event.set()
            await self._settle()
        self._elapsed = end
        await self._settle()

    async def _settle(self) -> None:
        quiet, seen = 0, self._order
        while quiet < _QUIET_TURNS:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if seen == self._order else 0
            seen = self._order
