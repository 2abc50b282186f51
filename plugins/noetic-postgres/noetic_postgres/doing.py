"""Doing a piece of work on a connection that may be lost at any moment, exactly once."""

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
from noetic_postgres.watch import Watch
from noetic_py.checkpoints.server import LOST, connected
from noetic_py.errors import StoreUnavailable

__all__ = ["Doer", "Keeper"]

T = TypeVar("T")

# A server that was never reached is rather misspelt than away.
_ALWAYS_PASSING = frozenset({"starting", "connections"})


@frozen
class Keeper:
    """What connections lead to.

    Attributes:
        where: The server, for messages.
        timeout: How many seconds an operation may take.
        connect: Makes a connection, within so many seconds.
        watch: Cuts connections whose answer does not come.
        reached: Set when there was a connection.
        ghosts: The numbers of connections that were lost, and whose sessions at the server may not have ended.
    """

    where: str
    timeout: float
    connect: Callable[[float], Link]
    watch: Watch = field(factory=Watch)
    reached: threading.Event = field(factory=threading.Event)
    ghosts: set[int] = field(factory=set[int])


class Doer:
    """Has one connection, makes it when it is needed, and again when it was lost.

    Args:
        keeper: What the connection leads to.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._link: Link | None = None

    def do(self, work: Callable[[Link], T], end: float) -> T:
        """Do a piece of work; it is done again when the connection was lost and nothing of it was committed.

        Args:
            work: Reads, or writes one transaction.
            end: Until when, by the monotonic clock.

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
                            value: T = unsettled.result
                            return value
                        unsettled = None
                    return work(link)
            except psycopg.Error as error:
                unsettled = self._failed(link, error, end, unsettled)
            except BaseException:
                self._undo()
                raise

    def _settling(self, unsettled: Pending | None, end: float) -> Link:
        try:
            return self._linked(end)
        except StoreUnavailable as error:
            if unsettled is not None:
                raise unknown_outcome(self._keeper.where) from error
            raise

    def _failed(self, link: Link, error: psycopg.Error, end: float, unsettled: Pending | None) -> Pending | None:
        """What to find out before the work is done again.

        Raises:
            NoeticError: It is not done again.
        """
        where = self._keeper.where
        lost = is_lost(error) or link.connection.closed
        if lost:
            unsettled = link.pending or unsettled
            self._lose()
        else:
            self._undo()
        left = end - time.monotonic()
        # A lock is waited for again where there is time for all of that: cut off, it would look like a lost connection.
        if left > (self._keeper.timeout / 2 if is_busy(error) else 0) and (lost or is_passing(error) or is_busy(error)):
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
        link = self._link = self._keeper.connect(left)
        try:
            with self._watched(link, end):
                link.prepare()
                self._end_ghosts(link, end)
        except BaseException:
            self.drop()
            raise
        self._keeper.reached.set()
        return link

    def _is_passing(self, reason: str) -> bool:
        return reason in (LOST if self._keeper.reached.is_set() else _ALWAYS_PASSING)

    def _end_ghosts(self, link: Link, end: float) -> None:
        """End the sessions of lost connections: they may hold locks, or be about to commit."""
        ghosts = self._keeper.ghosts
        # Removed only after it has ended, so that a write's outcome is not looked up too early.
        for ghost in tuple(ghosts):
            try:
                link.end_session(ghost, end)
            except psycopg.Error as error:
                raise from_server(error, self._keeper.where) from None
            ghosts.discard(ghost)

    def _late(self) -> StoreUnavailable:
        keeper = self._keeper
        return StoreUnavailable(
            f"{keeper.where}: nothing came back in {keeper.timeout:g} s",
            where=keeper.where,
            reason="timeout",
            hint="look at the server and at the network, or raise timeout=",
        )

    @contextmanager
    def _watched(self, link: Link, end: float) -> Generator[None]:
        """Give a connection half of the time: what is left is for finding out what became of it."""
        handle = link.handle
        self._keeper.watch.put(handle, min(end, time.monotonic() + self._keeper.timeout / 2))
        try:
            yield
        finally:
            self._keeper.watch.take(handle)

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
            self._keeper.ghosts.add(self._link.session)
        self.drop()

    def drop(self) -> None:
        """Give the connection up."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(psycopg.Error):
                link.connection.close()

    def leave(self, work: Callable[[Link], object] | None, seconds: float) -> None:
        """Do a last piece of work if that is possible, and end the connection.

        Args:
            work: Done only where there is a connection, or was one.
            seconds: How long all of it may take.
        """
        end = time.monotonic() + seconds
        try:
            if work is not None and self._keeper.reached.is_set():
                self.do(work, end)
            if self._link is not None:
                with self._watched(self._link, end):
                    self._link.forget()
        except (psycopg.Error, StoreUnavailable):
            # What could not be given back runs out, and old rows of sessions are taken away by others.
            pass
        finally:
            self.drop()
