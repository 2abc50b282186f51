"""The places of runs in queues, in the SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from logging import WARNING

from attrs import astuple

from noetic_py.checkpoints.adapter import LARGEST
from noetic_py.checkpoints.locks import Locks
from noetic_py.checkpoints.sqlite.schema import QUEUED, QueuedRow, Sums
from noetic_py.core.diagnostics import log
from noetic_py.errors import CorruptRecord

_WITH_OWNER = QUEUED.replace(" FROM", ", r.owner FROM") + " JOIN runs r ON r.id = q.run"
_READY = _WITH_OWNER + " WHERE q.queue = ? AND q.flow = ? AND q.priority = ? AND q.at <= ? ORDER BY q.at, q.run"


class QueueRows:
    """Reads and writes them in a transaction of the file that is open.

    Args:
        connection: The connection.
        sums: The file's checksums.
        locks: Says which owners live.
    """

    def __init__(self, connection: sqlite3.Connection, sums: Sums, locks: Locks) -> None:
        self._execute = connection.execute
        self._sums = sums
        self._locks = locks
        # Runs whose place cannot be read, which was said.
        self._damaged: set[object] = set()

    def of(self, run: int) -> QueuedRow | None:
        """The place of a run.

        Raises:
            CorruptRecord: It is not what was written.
        """
        row = self._execute(QUEUED + " WHERE q.run = ?", (run,)).fetchone()
        return None if row is None else self._sums.checked_queued(row)

    def save(self, row: QueuedRow) -> None:
        """Write a place."""
        row.crc = self._sums.queued(row)
        self._execute(
            "INSERT OR REPLACE INTO queued (run, queue, flow, at, priority, lives, crc) VALUES (?, ?, ?, ?, ?, ?, ?)",
            astuple(row),
        )

    def remove(self, run: int) -> None:
        """Take a run out of its queue."""
        self._execute("DELETE FROM queued WHERE run = ?", (run,))

    def ready(self, queue: str, flow: str, limit: int, now: int) -> Iterator[QueuedRow]:
        """The next runs of a queue and a flow that may be claimed and have no owner, in their order."""
        priority = self._next_priority(queue, flow, LARGEST)
        while priority is not None and limit:
            for *row, owner in self._execute(_READY, (queue, flow, priority, now)):
                if owner and self._locks.alive(owner):
                    continue
                try:
                    found = self._sums.checked_queued(tuple(row))
                except CorruptRecord as error:
                    # It does not keep the others from being claimed, and is looked at twice a second.
                    if row[0] not in self._damaged:
                        self._damaged.add(row[0])
                        log("checkpoints", WARNING, "a run is not claimed: %s", error.message)
                    continue
                yield found
                limit -= 1
                if not limit:
                    return
            priority = self._next_priority(queue, flow, priority)

    def _next_priority(self, queue: str, flow: str, below: int) -> int | None:
        sql = "SELECT max(priority) FROM queued WHERE queue = ? AND flow = ? AND priority < ?"
        row = self._execute(sql, (queue, flow, below)).fetchone()
        return row[0] if row is not None and isinstance(row[0], int) else None

    def all(self) -> Iterator[tuple[QueuedRow, bool]]:
        """The places of all runs, and whether each has an owner.

        Raises:
            CorruptRecord: One is not what was written.
        """
        for *row, owner in self._execute(_WITH_OWNER).fetchall():
            yield self._sums.checked_queued(tuple(row)), owner != 0 and self._locks.alive(owner)
