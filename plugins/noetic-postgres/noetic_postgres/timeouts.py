"""A thread that closes connections that do not answer in time.

The driver waits for an answer as long as the server's machine acknowledges bytes, and so for ever on a server, or on
something between, that is alive and stuck.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

__all__ = ["SocketTimeouts"]


class SocketTimeouts:
    """Closes sockets that are not removed before their deadline."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._nearest: float | None = None
        self._closed = False

    def put(self, handle: int, end: float) -> None:
        """Close a socket at a time of the monotonic clock, unless it is removed before."""
        with self._changed:
            self._ends[handle] = end
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="noetic-postgres-timeouts", daemon=True)
                self._thread.start()
            elif self._nearest is None or end < self._nearest:
                self._changed.notify()

    def take(self, handle: int) -> None:
        """Take a socket off; before it is closed, because its number may then be another one's."""
        with self._changed:
            self._ends.pop(handle, None)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _serve(self) -> None:
        with self._changed:
            while not self._closed:
                nearest = self._nearest = min(self._ends.values(), default=None)
                self._changed.wait(None if nearest is None else max(0.0, nearest - time.monotonic()))
                self._cut(time.monotonic())

    def _cut(self, now: float) -> None:
        for handle in [handle for handle, end in self._ends.items() if end <= now]:
            del self._ends[handle]
            with suppress(OSError), socket.socket(fileno=os.dup(handle)) as other:
                other.shutdown(socket.SHUT_RDWR)
