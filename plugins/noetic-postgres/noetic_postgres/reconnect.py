"""Runs work exactly once on a connection that may be lost at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg
from attrs import field, frozen

from noetic_postgres.failures import from_server, is_busy, is_lost, is_passing, unknown_outcome
from noetic_postgres.link import Link, Pending
from noetic_postgres.timeouts import SocketTimeouts
from noetic_py.checkpoints.server import LOST, connected
from noetic_py.errors import StoreUnavailable

__all__ = ["Reconnector", "Server"]

T = TypeVar("T")

# A server that was never reached is rather misspelt than away.
_ALWAYS_PASSING = frozenset({"starting", "connections"})
# What was committed does not wait longer for the notification.
_NOTIFYING = 1.0


@frozen
class Server:
    """The server of connections, and what their threads share.

    Attributes:
        where: The server, for messages.
        timeout: How many seconds an operation may take.
        connect: Opens a connection within so many seconds.
        timeouts: Closes connections that do not answer in time.
        reached: Set once a connection was made.
        lost_sessions: The numbers of connections that were lost, and whose sessions at the server may not have ended.
    """

    where: str
    timeout: float
    connect: Callable[[float], Link]
    timeouts: SocketTimeouts = field(factory=SocketTimeouts)
    reached: threading.Event = field(factory=threading.Event)
    lost_sessions: set[int] = field(factory=set[int])


class Reconnector:
    """Runs work on one connection, which it opens when needed and reopens when lost.

    Args:
        server: The server to connect to.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._link: Link | None = None

    def run(self, work: Callable[[Link], T], end: float) -> T:
        """Run a piece of work; runs it again if the connection was lost and nothing was committed.

        Args:
            work: Reads, or writes one transaction.
            end: The deadline, by the monotonic clock.

        Raises:
            NoeticError: What the work raised, or what happened to the server.
        """
        unsettled: Pending | None = None
        while True:
            link = self._settling(unsettled, end)
            try:
                with self._watched(link, end):
                    if unsettled is not None:
                        if link.was_taken(unsettled):
                            found: T = unsettled.result
                            return found
                        unsettled = None
                    value = work(link)
            except psycopg.Error as error:
                unsettled = self._failed(link, error, end, unsettled)
            except BaseException:
                self._undo()
                raise
            else:
                self._notify(link, end)
                return value

    def _notify(self, link: Link, end: float) -> None:
        """Tell workers of runs that are ready; if that fails or takes long, polling finds them."""
        if link.ready:
            with suppress(psycopg.Error), self._watched(link, min(end, time.monotonic() + _NOTIFYING)):
                link.notify()

    def _settling(self, unsettled: Pending | None, end: float) -> Link:
        try:
            return self._linked(end)
        except StoreUnavailable as error:
            if unsettled is not None:
                raise unknown_outcome(self._server.where) from error
            raise

    def _failed(self, link: Link, error: psycopg.Error, end: float, unsettled: Pending | None) -> Pending | None:
        """The pending write whose outcome must be found out before the work is run again.

        Raises:
            NoeticError: It is not done again.
        """
        where = self._server.where
        lost = is_lost(error) or link.connection.closed
        if lost:
            unsettled = link.pending or unsettled
            self._lose()
        else:
            self._undo()
        if is_busy(error):
            self._end_stalled(end)
        left = end - time.monotonic()
        # A lock is waited for again where there is time for all of that: cut off, it would look like a lost connection.
        if left > (self._server.timeout / 2 if is_busy(error) else 0) and (lost or is_passing(error) or is_busy(error)):
            return unsettled
        # The driver's text may quote what is in a row.
        raise (unknown_outcome(where) if unsettled else from_server(error, where)) from None

    def _linked(self, end: float) -> Link:
        """The connection, set up."""
        if self._link is None:
            self._link = connected(
                lambda left: self._connect(left, end), end, passing=self._is_passing, late=self._late
            )
        return self._link

    def _connect(self, left: float, end: float) -> Link:
        link = self._link = self._server.connect(left)
        try:
            with self._watched(link, end):
                link.prepare()
                self._end_ghosts(link, end)
        except BaseException:
            self.drop()
            raise
        self._server.reached.set()
        return link

    def _is_passing(self, reason: str) -> bool:
        return reason in (LOST if self._server.reached.is_set() else _ALWAYS_PASSING)

    def _end_ghosts(self, link: Link, end: float) -> None:
        """End the sessions of lost connections: they may hold locks, or be about to commit."""
        lost_sessions = self._server.lost_sessions
        # Removed only after it has ended, so that a write's outcome is not looked up too early.
        for lost in tuple(lost_sessions):
            try:
                link.end_session(lost, end)
            except psycopg.Error as error:
                raise from_server(error, self._server.where) from None
            lost_sessions.discard(lost)

    def _end_stalled(self, end: float) -> None:
        """Free what a stopped client keeps locked, by another connection where this one was given up."""
        try:
            self._linked(end).end_stalled()
        except psycopg.Error:
            self._lose()
        except StoreUnavailable:
            # The next try says so, if there is time for one.
            self.drop()

    def _late(self) -> StoreUnavailable:
        server = self._server
        return StoreUnavailable(
            f"{server.where}: nothing came back in {server.timeout:g} s",
            where=server.where,
            reason="timeout",
            hint="look at the server and at the network, or raise timeout=",
        )

    @contextmanager
    def _watched(self, link: Link, end: float) -> Generator[None]:
        """Give a connection half of the time: what is left is for finding out what became of it."""
        handle = link.handle
        self._server.timeouts.put(handle, min(end, time.monotonic() + self._server.timeout / 2))
        try:
            yield
        finally:
            self._server.timeouts.take(handle)

    def _undo(self) -> None:
        if self._link is not None and self._link.refused:
            self.drop()
        elif self._link is not None:
            try:
                self._link.undo()
            except psycopg.Error:
                self._lose()

    def _lose(self) -> None:
        """Give up a connection that the server may still be busy with."""
        if self._link is not None:
            self._server.lost_sessions.add(self._link.session)
        self.drop()

    def drop(self) -> None:
        """Give the connection up."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(psycopg.Error):
                link.connection.close()

    def close(self, work: Callable[[Link], object] | None, seconds: float) -> None:
        """Do a last piece of work if that is possible, and end the connection.

        Args:
            work: Done only where there is a connection, or was one.
            seconds: How long all of it may take.
        """
        end = time.monotonic() + seconds
        try:
            if work is not None and self._server.reached.is_set():
                self.run(work, end)
            if self._link is not None:
                with self._watched(self._link, end):
                    self._link.forget()
        except (psycopg.Error, StoreUnavailable):
            # Leases that were not released expire, and other processes remove old rows of sessions.
            pass
        finally:
            self.drop()
