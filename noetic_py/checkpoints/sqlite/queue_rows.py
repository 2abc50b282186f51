"""The places of runs in queues, in the SQLite file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, product, zip_longest
from logging import WARNING

from attrs import astuple

from noetic_py.checkpoints.locks import Locks
from noetic_py.checkpoints.sqlite.schema import QUEUED, QueuedRow, Sums
from noetic_py.checkpoints.turns import Candidate, ClaimRequest, Turns
from noetic_py.core.diagnostics import log
from noetic_py.errors import CorruptRecord

_WITH_OWNER = QUEUED.replace(" FROM", ", r.owner FROM") + " JOIN runs r ON r.id = q.run"
_READY = (
    _WITH_OWNER
    + " WHERE q.queue = ? AND q.flow = ? AND q.key = ? AND q.due = 1 AND q.at <= ?"
    + " ORDER BY q.priority DESC, q.at, q.run"
)
_FIRST_KEY = "SELECT min(key) FROM queued WHERE queue = ? AND flow = ? AND key >= ? AND due = 1"
_CLAIMED = (
    "SELECT q.run, q.key, q.due, r.owner FROM queued q JOIN runs r ON r.id = q.run WHERE q.queue = ? AND q.lives > 0"
)


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
        self._turns = Turns()
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
            "INSERT OR REPLACE INTO queued (run, queue, flow, at, priority, lives, crc, key, due)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            astuple(row),
        )

    def remove(self, run: int) -> None:
        """Take a run out of its queue."""
        self._execute("DELETE FROM queued WHERE run = ?", (run,))

    def next(self, wanted: ClaimRequest, now: int) -> Sequence[QueuedRow]:
        """The runs that a claim gets, in their order; they have no owner."""
        self._execute("UPDATE queued SET due = 1 WHERE due IS NOT 1 AND lives = 0 AND at <= ?", (now,))
        at_work: Counter[tuple[str, str]] = Counter()
        for queue in wanted.queues:
            for run, key, due, owner in self._execute(_CLAIMED, (queue,)).fetchall():
                if owner and self._locks.alive(owner):
                    at_work[queue, key] += 1
                elif not due:
                    # Its worker has died.
                    self._execute("UPDATE queued SET due = 1 WHERE run = ? AND at <= ?", (run, now))
        lanes = list(product(wanted.queues, wanted.flows))
        pages = (self._turns.pages(lane, partial(self._keys, *lane)) for lane in lanes)
        for found in zip_longest(*pages, fillvalue=()):
            ready = [
                Candidate(row.place, row.run, row)
                for (queue, flow), keys in zip(lanes, found, strict=True)
                for key in keys
                for row in islice(self._ready(queue, flow, key, now), wanted.limit)
            ]
            if chosen := self._turns.choose(ready, at_work, wanted):
                return [each.run for each in chosen]
        return ()

    def _keys(self, queue: str, flow: str, low: str, most: int) -> Iterator[str]:
        """So many keys that have runs which may be claimed, from a text on."""
        while most:
            (key,) = self._execute(_FIRST_KEY, (queue, flow, low)).fetchone()
            if not isinstance(key, str):
                return
            yield key
            low, most = key + "\x01", most - 1

    def _ready(self, queue: str, flow: str, key: str, now: int) -> Iterator[QueuedRow]:
        """The runs of a queue, a flow and a key that may be claimed and have no owner, in their order."""
        for *row, owner in self._execute(_READY, (queue, flow, key, now)):
            if owner and self._locks.alive(owner):
                continue
            try:
                yield self._sums.checked_queued(tuple(row))
            except CorruptRecord as error:
                # It does not keep the others from being claimed, and is looked at twice a second.
                if row[0] not in self._damaged:
                    self._damaged.add(row[0])
                    log("checkpoints", WARNING, "a run is not claimed: %s", error.message)

    def all(self) -> Iterator[tuple[QueuedRow, bool]]:
        """The places of all runs, and whether each has an owner.

        Raises:
            CorruptRecord: One is not what was written.
        """
        for *row, owner in self._execute(_WITH_OWNER).fetchall():
            yield self._sums.checked_queued(tuple(row)), owner != 0 and self._locks.alive(owner)
