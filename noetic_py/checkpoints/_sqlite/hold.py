"""Keeping a rollback journal open between commits that follow each other closely.

SQLite opens its journal for each transaction, syncs the folder that it lies in, and closes it with the last lock: a
fifth of what a small commit takes. While a statement of the connection is open, the lock that readers take stays, and
with it the journal, and all pages that are in memory are known to be the file's. Nothing else changes: the same bytes
are synced at the same moments.

Another process can begin a transaction meanwhile, but not end it. So the lock is given back a few milliseconds after a
commit, and at once when the next transaction here finds that somebody else has begun one.
"""

from __future__ import annotations

import sqlite3
import time

from noetic_py.checkpoints._sqlite.errors import DRIVER_ERRORS, is_busy
from noetic_py.checkpoints._sqlite.schema import inode_of

__all__ = ["Hold"]

SECONDS = 0.005
"""How long after a commit: longer than a step that does little, and nothing to a process that waits."""


class Hold:
    """The lock of one connection, between its transactions.

    Args:
        connection: The connection.
        path: Its file.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._execute = connection.execute
        self._journal = f"{path}-journal"
        # Which file the journal is that SQLite has open. Where another program deletes it, what is written to it is
        # lost, and nobody would find it after a loss of power.
        self._inode: tuple[int, int] | None = None
        self._open: sqlite3.Cursor | None = None
        self._until = 0.0

    def begin(self) -> bool:
        """Begin a transaction under the lock that is held.

        Returns:
            Whether that was possible; where not, nothing is held any more.
        """
        if self._open is None:
            return False
        try:
            self._execute("BEGIN IMMEDIATE")
        except DRIVER_ERRORS as error:
            self.let_go()
            if is_busy(error):
                return False
            raise
        if self._inode == inode_of(self._journal):
            return True
        self._execute("ROLLBACK")
        self.let_go()
        return False

    def take(self) -> None:
        """Hold on to the lock of the transaction that was begun."""
        self._open = self._execute("SELECT name FROM sqlite_master")

    def commit(self) -> None:
        """Commit, and look before the first time at the journal, which until then nobody else touches."""
        if self._open is not None and self._inode is None:
            self._inode = inode_of(self._journal)
        self._execute("COMMIT")
        self._until = time.monotonic() + SECONDS

    def left(self) -> float | None:
        """For how many seconds it is still held, `None` when it is not; one whose time is over is let go."""
        if self._open is None:
            return None
        left = self._until - time.monotonic()
        if left > 0:
            return left
        self.let_go()
        return None

    def let_go(self) -> None:
        """Give the lock back, unless a transaction needs it."""
        held, self._open, self._inode = self._open, None, None
        if held is not None:
            held.close()
