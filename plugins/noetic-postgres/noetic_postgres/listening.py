"""A connection on which a backend hears that runs are ready, so that its workers need not wait for their next poll."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from logging import WARNING

import anyio
import psycopg
from attrs import field, frozen
from psycopg import sql

from noetic_postgres.address import Address
from noetic_postgres.failures import from_connecting
from noetic_py.checkpoints.threads import Job
from noetic_py.core.diagnostics import log

__all__ = ["Listener"]

_LISTEN = sql.SQL("LISTEN {}")
_CONNECTING = 10.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


@frozen(eq=False)
class _Waiter:
    """A coroutine that waits.

    Attributes:
        names: Its queues, as notifications name them.
        job: What it waits for.
    """

    names: frozenset[str]
    job: Job[bool] = field(factory=lambda: Job(lambda _: True, write=False))


class Listener:
    """Hears what `notify` tells, in a thread that is started when somebody first waits.

    What it misses, or hears nothing of while its connection is lost, workers find by polling.

    Args:
        address: Where it connects to.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._closed = False

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait for a notification; returns whether one came in time."""
        waiter = _Waiter(frozenset(hashlib.sha256(each.encode()).hexdigest() for each in queues))
        with self._changed:
            self._waiters.add(waiter)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="noetic-postgres-listener", daemon=True)
                self._thread.start()
        try:
            with anyio.move_on_after(timeout):
                while not waiter.job.done:
                    await waiter.job.wait()
        finally:
            with self._changed:
                self._waiters.discard(waiter)
        return waiter.job.done

    def close(self) -> None:
        """End the connection and the thread; those who wait are told, and find that the backend is closed."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            if self._connection is not None and not self._connection.closed:
                # The thread waits for this socket, and closes it.
                with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as other:
                    other.shutdown(socket.SHUT_RDWR)
            waiters = [*self._waiters]
        Job.end_all([each.job for each in waiters])

    def _serve(self) -> None:
        pause, warned = _FIRST_PAUSE, False
        while not self._closed:
            try:
                self._connect()
                pause, warned = _FIRST_PAUSE, False
                self._hear()
            except psycopg.Error as error:
                if not warned and not self._closed:
                    # Its text may hold what was connected with.
                    why = from_connecting(error, self._address.where)
                    log("runs", WARNING, "workers only poll until the store can be listened to: %s", why.message)
                    warned = True
            finally:
                self._drop()
            with self._changed:
                if not self._closed:
                    self._changed.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _connect(self) -> None:
        text = self._address.connection_text(name="listens", seconds=_CONNECTING)
        connection = psycopg.connect(text, autocommit=True)
        with self._changed:
            self._connection = connection
        connection.execute(_LISTEN.format(sql.Identifier(self._address.schema)))

    def _drop(self) -> None:
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _hear(self) -> None:
        """Tell those who wait, until the connection is lost or the backend closed."""
        while self._connection is not None and not self._closed:
            for heard in self._connection.notifies(stop_after=1):
                with self._changed:
                    waiters = [each for each in self._waiters if heard.payload in each.names]
                    self._waiters.difference_update(waiters)
                Job.end_all([each.job for each in waiters])
