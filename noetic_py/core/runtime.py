"""The seam through which the library gets time, ids and randomness.

Everything that would differ between two runs of one program goes through a [`Runtime`][noetic_py.core.runtime.Runtime]:
a test that passes another one gets the same ids, the same clock and the same jitter every time.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import anyio

__all__ = ["SYSTEM", "Runtime"]

# The last 48 bits of an id count within one millisecond. The count starts between 2**44 and 2**47, so it always has
# twelve hexadecimal digits, and goes up in strides, so that a neighbour's id is not this one plus one.
_COUNT_START = 1 << 44
_COUNT_SPREAD_BITS = 46
_COUNT_END = 1 << 48
_STRIDE_BITS = 16


class Runtime:
    """Clock, ids and randomness of the machine it runs on; subclass it to supply others.

    Safe to use from several threads.
    """

    __slots__ = ("_lock", "_random", "_stamp")

    def __init__(self) -> None:
        self.reseed()

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock in UTC, for display only: it may jump."""
        return datetime.now(UTC)

    def new_id(self) -> str:
        """A new UUIDv7 in canonical text; ids of one process compare in the order they were made."""
        millis = int(time.time() * 1000)
        stamp = self._stamp
        if millis != stamp[0]:
            stamp = self._restamp(millis)
        return stamp[1] + hex(stamp[2]())[2:]  # noqa: FURB116  # formatting takes four times as long

    def random(self) -> float:
        """A random number in [0.0, 1.0), for jitter; not for secrets."""
        return self._random.random()

    def reseed(self) -> None:
        """Start ids and randomness afresh; a forked process would otherwise repeat its parent's."""
        self._lock = threading.Lock()
        self._random = random.Random(os.urandom(32))  # noqa: S311
        # (millisecond, text before the count, its next value): replaced as one, so a reader never sees a mixture.
        self._stamp: tuple[int, str, Callable[[], int]] = (-1, "", itertools.count().__next__)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; a checkpoint when it is zero or less."""
        await anyio.sleep(max(0.0, seconds))

    def _restamp(self, millis: int) -> tuple[int, str, Callable[[], int]]:
        with self._lock:
            last, _, count = self._stamp
            # A clock that was set back goes on counting in the latest millisecond, while that has room.
            if millis <= last:
                if count() < _COUNT_END - (1 << 32):
                    return self._stamp
                millis = last + 1
            noise = int.from_bytes(os.urandom(12), "big")
            time_text = f"{millis:012x}"
            head = f"{time_text[:8]}-{time_text[8:]}-7{noise & 0xFFF:03x}-{0x8000 | noise >> 12 & 0x3FFF:04x}-"
            start = _COUNT_START + (noise >> 26 & (1 << _COUNT_SPREAD_BITS) - 1)
            stride = 1 + (noise >> 72 & (1 << _STRIDE_BITS) - 1)
            self._stamp = (millis, head, itertools.count(start, stride).__next__)
            return self._stamp


SYSTEM = Runtime()
"""The runtime of the machine, used wherever no other is given."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.reseed)
