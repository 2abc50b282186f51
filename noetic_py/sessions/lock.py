"""One at a time, in the order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from noetic_py.core.session_key import SessionKey
from noetic_py.errors import Overloaded, ShuttingDown


class _Place:
    """A place in the line."""

    def __init__(self, new: bool) -> None:
        self.new = new
        self.called = anyio.Event()
        self.refused = False


class SessionLock:
    """Lets one in at a time for each key, in the order of arrival; an unused key takes no room."""

    def __init__(self) -> None:
        self._lines: dict[SessionKey, deque[_Place]] = {}
        self.is_closed: bool = False

    def __len__(self) -> int:
        """How many keys are in use."""
        return len(self._lines)

    def is_locked(self, key: SessionKey) -> bool:
        """Whether it is locked."""
        return key in self._lines

    @asynccontextmanager
    async def acquire(self, key: SessionKey, *, limit: int | None = None, new: bool = False) -> AsyncGenerator[None]:
        """Wait for one's turn, and have it for as long as the block lasts.

        Args:
            key: What is to be had.
            limit: How many may wait.
            new: Whether it is new work, which does not begin once the lock is closed.

        Raises:
            Overloaded: So many wait already.
            ShuttingDown: The lock is closed, or was while this waited.
        """
        if new:
            self.check()
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque()
        else:
            if limit is not None and len(line) >= limit:
                raise Overloaded(
                    f"{len(line)} turns of session {key.session!r} wait already",
                    waiting=len(line),
                    hint="try again later, or raise max_waiting=",
                )
            await self._wait(key, line, new=new)
        try:
            yield
        finally:
            self._pass_on(key)

    def check(self) -> None:
        """Refuse new work once the lock is closed.

        Raises:
            ShuttingDown: It is.
        """
        if self.is_closed:
            raise ShuttingDown

    def close(self) -> None:
        """Let no new work begin, and refuse what waits; what is to be written still comes in."""
        self.is_closed = True
        for line in self._lines.values():
            for place in [place for place in line if place.new]:
                line.remove(place)
                place.refused = True
                place.called.set()

    async def _wait(self, key: SessionKey, line: deque[_Place], *, new: bool) -> None:
        place = _Place(new)
        line.append(place)
        try:
            await place.called.wait()
        except BaseException:
            if place.refused:
                raise
            if place.called.is_set():
                # It has come in the moment in which the wait was cancelled: it is the next one's.
                self._pass_on(key)
            else:
                line.remove(place)
            raise
        if place.refused:
            raise ShuttingDown

    def _pass_on(self, key: SessionKey) -> None:
        line = self._lines[key]
        if line:
            line.popleft().called.set()
        else:
            del self._lines[key]
