"""A connection on which a backend hears that runs are ready, so that its workers need not wait for their next poll."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from logging import DEBUG, WARNING

import anyio
import psycopg
from attrs import field, frozen
from psycopg import sql

from noetic_postgres.address import Address
from noetic_postgres.failures import from_connecting
from noetic_postgres.schema import lock_of
from noetic_postgres.timeouts import SocketTimeouts
from noetic_py.checkpoints.threads import Job
from noetic_py.core.diagnostics import log

__all__ = ["CHECK", "LISTENERS", "Listener"]

LISTENERS = 4
"""How many processes listen at once; a notification wakes at most one worker of each."""
CHECK = 20.0
"""Seconds within which a notification of its own has to come back to a listener."""
_LISTEN = sql.SQL("LISTEN {}")
_NOTIFY = sql.SQL("SELECT pg_notify(%s, %s)")
_LOCK = sql.SQL("SELECT pg_try_advisory_lock(%s)")
# Told nothing else, the server waits for hours before it takes the lock of a machine that is gone.
_NOTICE_DEATH = sql.SQL(
    "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),"
    " set_config('tcp_keepalives_count', '3', false)"
)
_PATIENCE = 10.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_TAKEN = (30.0, 60.0)


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
    """Hears what `notify` tells, in a thread that runs while workers wait.

    What it misses, or hears nothing of while its connection is lost, workers find by polling.

    Args:
        address: Where it connects to.
        timeouts: Closes connections that do not answer in time.
        check: Seconds within which a notification of its own has to come back.
    """

    def __init__(self, address: Address, timeouts: SocketTimeouts, *, check: float = CHECK) -> None:
        self._address = address
        self._timeouts = timeouts
        self._check = check
        self._locks = [lock_of(f"{address.schema}\0listener\0{number}") for number in range(LISTENERS)]
        self._changed = threading.Condition()
        self._waiters: set[_Waiter] = set()
        # Names that were waited for, and those of them that were told of while no worker waited for them.
        self._known: set[str] = set()
        self._missed: set[str] = set()
        self._wanted = False
        self._warned = False
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._closed = False

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait for a notification; returns whether one came in time, or had come since the last wait."""
        waiter = _Waiter(frozenset(hashlib.sha256(each.encode()).hexdigest() for each in queues))
        with self._changed:
            if self._closed:
                return False
            self._wanted = True
            self._known |= waiter.names
            if waiter.names & self._missed:
                self._missed -= waiter.names
                return True
            self._waiters.add(waiter)
            if self._thread is None:
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
            if self._connection is not None:
                # The thread waits for this socket, and closes it.
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as other:
                    other.shutdown(socket.SHUT_RDWR)
            waiters = [*self._waiters]
        Job.end_all([each.job for each in waiters])

    # -- the thread

    def _serve(self) -> None:
        pause = _FIRST_PAUSE
        while self._is_wanted(ends=True):
            began = time.monotonic()
            try:
                rest = self._listen()
            except psycopg.Error as error:
                # Its text may hold what was connected with.
                self._warn(from_connecting(error, self._address.where).message)
                pause = _FIRST_PAUSE if time.monotonic() > began + self._check else min(pause * 2, _LONGEST_PAUSE)
                rest = pause
            with self._changed:
                self._changed.wait_for(lambda: self._closed, rest)

    def _is_wanted(self, *, ends: bool = False) -> bool:
        """Whether a worker waits, or has waited since the last look; if not, the next one may start another thread."""
        with self._changed:
            wanted = not self._closed and (self._wanted or bool(self._waiters))
            self._wanted = False
            if ends and not wanted:
                self._thread = None
            return wanted

    def _warn(self, why: str) -> None:
        """Say once that it cannot listen; what becomes of the store later, claims say."""
        if not self._warned and not self._closed:
            self._warned = True
            log("runs", WARNING, "workers only poll, because the store cannot be listened to: %s", why)

    def _listen(self) -> float:
        """Listen while workers wait.

        Returns:
            After how many seconds it may try again.
        """
        with self._connected() as connection:
            self._do(connection, _NOTICE_DEATH)
            # The server gives the lock of a process that ends to the next one that asks.
            if not any(self._do(connection, _LOCK, each).fetchall() == [(True,)] for each in self._locks):
                log("runs", DEBUG, "%s other processes listen for runs already", LISTENERS)
                return random.uniform(*_TAKEN)  # noqa: S311  # spreads the tries of many processes
            self._do(connection, _LISTEN.format(sql.Identifier(self._address.schema)))
            while self._hears(connection):
                if not self._is_wanted():
                    return 0.0
        self._warn("its notifications do not arrive here; a pooler has to be in session mode")
        return 0.0

    def _hears(self, connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        """Tell those who wait, for a while; returns whether a notification of its own came back meanwhile."""
        token, came_back = secrets.token_hex(16), False
        # From another session: a pooler in transaction mode hands a session's own ones back to it.
        with closing(self._connect("notifies")) as other:
            self._do(other, _NOTIFY, self._address.schema, token)
        for heard in connection.notifies(timeout=self._check):
            came_back = came_back or heard.payload == token
            self._tell(heard.payload)
        return came_back

    def _tell(self, name: str) -> None:
        """Let one worker that waits for a queue go on, or the next one that will."""
        with self._changed:
            told = next((each for each in self._waiters if name in each.names), None)
            if told is not None:
                self._waiters.discard(told)
                Job.end_all([told.job])
            elif name in self._known:
                self._missed.add(name)

    # -- its connections

    @contextmanager
    def _connected(self) -> Generator[psycopg.Connection[tuple[object, ...]]]:
        """A connection that `close` ends."""
        with closing(self._connect("listens")) as connection:
            try:
                with self._changed:
                    if self._closed:
                        raise psycopg.OperationalError("closed")
                    self._connection = connection
                yield connection
            finally:
                with self._changed:
                    self._connection = None

    def _connect(self, name: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._address.connection_text(name=name, seconds=_PATIENCE), autocommit=True)

    def _do(
        self, connection: psycopg.Connection[tuple[object, ...]], query: sql.SQL | sql.Composed, *values: object
    ) -> psycopg.Cursor[tuple[object, ...]]:
        """Execute a statement; the connection is closed where no answer comes."""
        handle = connection.fileno()
        self._timeouts.put(handle, time.monotonic() + _PATIENCE)
        try:
            return connection.execute(query, values)
        finally:
            self._timeouts.take(handle)
