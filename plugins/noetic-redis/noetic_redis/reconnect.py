"""Doing a piece of work on a connection that may be lost at any moment, exactly once."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from attrs import frozen

from noetic_py.checkpoints.server import LOST, connected
from noetic_py.errors import CheckpointError, NoeticError, StoreUnavailable
from noetic_redis.failures import from_server, is_lost, is_passing, unavailable, unknown_outcome
from noetic_redis.link import Link

__all__ = ["Reconnector", "Server"]

T = TypeVar("T")

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 0.5
# A server that was never reached is rather misspelt than away.
_ALWAYS_PASSING = frozenset({"starting", "connections"})


@frozen
class Server:
    """The server of connections, and what their threads share.

    Attributes:
        where: The server, for messages.
        timeout: How many seconds an operation may take.
        connect: Opens a connection within so many seconds.
        reached: Set once a connection was made.
    """

    where: str
    timeout: float
    connect: Callable[[float], Link]
    reached: threading.Event


class Reconnector:
    """Runs work on one connection, which it opens when needed and reopens when lost.

    Args:
        server: The server to connect to.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._link: Link | None = None
        self._session = secrets.token_hex(12)
        self._next = 1

    def run(self, work: Callable[[Link], T], end: float) -> T:
        """Do a piece of work; when the connection was lost its writes are sent again, and done if they were not.

        Args:
            work: Reads, or runs one script that writes, with one row of arguments or several.
            end: The deadline, by the monotonic clock.

        Raises:
            NoeticError: What the work raised, or what happened to the server.
        """
        floor, again, wait = self._next, False, _FIRST_WAIT
        while True:
            link = self._again(end) if again else self._linked(end)
            link.begin(self._session, floor, again=again)
            try:
                return work(link)
            except (redis.RedisError, OSError) as error:
                again = again or link.sent
                self._failed(link, error, end, again=again)
            except NoeticError:
                raise
            except BaseException:
                self.drop()
                raise
            finally:
                # Whatever came of it, what is still under way of it comes too late for what is done next.
                self._next = max(self._next, floor + max(1, link.written))
            time.sleep(max(0.0, min(wait, end - time.monotonic())))
            wait = min(wait * 2, _LONGEST_WAIT)

    def _again(self, end: float) -> Link:
        try:
            return self._linked(end)
        except StoreUnavailable as error:
            raise unknown_outcome(self._server.where) from error

    def _failed(self, link: Link, error: Exception, end: float, *, again: bool) -> None:
        """Look whether the work is to be done again.

        Raises:
            NoeticError: It is not.
        """
        where = self._server.where
        lost = is_lost(error)
        if lost:
            self.drop()
        if (lost or is_passing(error)) and time.monotonic() < end:
            return
        # The driver's text may quote what was sent.
        raise (unknown_outcome(where) if again else from_server(error, where)) from None

    def _linked(self, end: float) -> Link:
        """The connection, set up."""
        if self._link is None:
            self._link = connected(self._server.connect, end, passing=self._is_passing, late=self._late)
            self._server.reached.set()
        return self._link

    def _is_passing(self, reason: str) -> bool:
        return reason in (LOST if self._server.reached.is_set() else _ALWAYS_PASSING)

    def _late(self) -> StoreUnavailable:
        server = self._server
        what = f"nothing came back in {server.timeout:g} s"
        return unavailable(server.where, ("timeout", what, "look at the server and the network, or raise timeout="))

    def drop(self) -> None:
        """Give the connection up."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

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
                self.run(lambda link: link.goodbye(), end)
        except CheckpointError:
            # Leases that were not released expire, and other processes remove old results.
            return
        finally:
            self.drop()
