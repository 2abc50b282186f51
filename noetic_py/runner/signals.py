"""Ctrl-C and SIGTERM: the first asks for an end, the second ends the process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

import anyio

__all__ = ["Signals"]


class Signals:
    """Handles SIGINT and SIGTERM inside its block.

    The handlers are Python's own and not the event loop's: asyncio knows SIGINT only, and a step that never lets the
    loop run would keep the loop's from being called, while the second signal has to work then, too. On Windows, and
    outside the main thread, nothing is handled, and Ctrl-C raises `KeyboardInterrupt`.

    Args:
        farewell: Written to standard error when the process is ended at once.
        most: Seconds after the first signal in which the block has to be left, or the process is ended all the same;
            `None` waits for ever.

    Attributes:
        received: The first signal that came, `None` before.
    """

    def __init__(self, farewell: str = "", *, most: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self._farewell = farewell.encode()
        self._most = most
        self._watchdog: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        for each in (self._reader, self._writer):
            each.setblocking(False)
        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._reader.close()
        self._writer.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._end_now(number)
        self.received = signal.Signals(number)
        with suppress(OSError):
            self._writer.send(b"!")
        if self._most is not None:
            # A thread of its own: what blocks the event loop blocks every timer of that.
            self._watchdog = threading.Timer(self._most, self._end_now, (number,))
            self._watchdog.daemon = True
            self._watchdog.start()

    def _end_now(self, number: int) -> None:
        with suppress(OSError):
            os.write(2, self._farewell)
        os._exit(128 + number)

    async def wait(self) -> signal.Signals:
        """Wait for the first signal."""
        while self.received is None:
            await anyio.wait_readable(self._reader)
        return self.received
