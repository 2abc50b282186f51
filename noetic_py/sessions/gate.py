"""One at a time, in the order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from noetic_py.errors import (
    Overloaded,
)

if TYPE_CHECKING:
    pass

from noetic_py.sessions.keys import SessionKey

__all__ = ["Gate"]


class Gate:
    """Lets one in at a time for each key, in the order of arrival; a key that nobody uses takes no room."""

    def __init__(self) -> None:
        self._lines: dict[SessionKey, deque[anyio.Event]] = {}

    def __len__(self) -> int:
        """How many keys are in use."""
        return len(self._lines)

    def is_taken(self, key: SessionKey) -> bool:
        """Whether somebody is in."""
        return key in self._lines

    @asynccontextmanager
    async def enter(self, key: SessionKey, *, most: int | None = None) -> AsyncGenerator[None]:
        """Wait for one's turn, and have it for as long as the block lasts.

        Raises:
            Overloaded: So many wait already.
        """
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque()
        else:
            if most is not None and len(line) >= most:
                raise Overloaded(
                    f"{len(line)} turns of session {key.session!r} wait already",
                    waiting=len(line),
                    hint="try again later, or raise max_waiting=",
                )
            await self._wait(key, line)
        try:
            yield
        finally:
            self._pass_on(key)

    async def _wait(self, key: SessionKey, line: deque[anyio.Event]) -> None:
        turn = anyio.Event()
        line.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                # It has come in the moment in which the wait was cancelled: it is the next one's.
                self._pass_on(key)
            else:
                line.remove(turn)
            raise

    def _pass_on(self, key: SessionKey) -> None:
        line = self._lines[key]
        if line:
            line.popleft().set()
        else:
            del self._lines[key]
