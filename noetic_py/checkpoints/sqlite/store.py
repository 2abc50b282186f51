"""Reads and writes the SQLite file, on one connection in one thread."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

from attrs import astuple, evolve

from noetic_py.checkpoints import checks
from noetic_py.checkpoints.adapter import FARTHEST, LARGEST, PrunePage, commit_in_turn, queue_stats
from noetic_py.checkpoints.contract import Scope
from noetic_py.checkpoints.sqlite.budget_rows import BudgetRows
from noetic_py.checkpoints.sqlite.queue_rows import QueueRows
from noetic_py.checkpoints.sqlite.schema import (
    DRIVER_ERRORS,
    LONGEST,
    MOST,
    RUN,
    Mode,
    OpenFile,
    QueuedRow,
    RunRow,
    Sums,
    configure,
    from_sqlite,
    is_broken,
    is_busy,
    is_worth_retrying,
    open_checkpointer,
    place,
)
from noetic_py.checkpoints.threads import AnyJob
from noetic_py.checkpoints.turns import ClaimRequest
from noetic_py.errors import CorruptRecord, LimitExceeded, StoreUnavailable
from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.journal.transforms import Packed, pack, pack_scope, scopes_behind, unpack

_CHECKPOINT_BYTES = 4 << 20
"""So many bytes in the write-ahead log are moved into the file."""
_COMMIT_BYTES = 8 << 10
"""What a commit adds to the log at least: two pages."""
_POLL = 0.0005
"""Seconds between two attempts to take the lock of writers."""

_BY_RUN_ID = RUN + " WHERE run_id = ?"
_NEWEST = RUN + " WHERE id <= ? ORDER BY id DESC LIMIT ?"
_NEWEST_WITH = RUN + " WHERE id <= ? AND status = ? ORDER BY id DESC LIMIT ?"
# All that the checksum of a row's head covers, and the checksum: what was true of the row when it was read, still is.
_CHANGE = (
    "UPDATE runs SET position = ?, owner = ?, updated = ?, crc = ? WHERE id = ? AND run_id = ? "
    "AND position = ? AND fence = ? AND owner = ? AND updated = ? AND crc = ?"
)
_BY_NUMBER = RUN + " WHERE id = ?"
_SAVE_HEAD = "UPDATE runs SET position = ?, fence = ?, owner = ?, updated = ?, crc = ? WHERE id = ?"
_SAVE = _SAVE_HEAD.replace(" WHERE", ", status = ?, card = ?, card_crc = ? WHERE")
_HEADS = 512
_PRUNED_AT_ONCE = 200
_RESTORE = "restore a copy of the file"


class SqliteStore:
    """The file, through one connection."""

    def __init__(
        self, connection: sqlite3.Connection, place: OpenFile, *, mode: Mode, seed: int, threshold: int
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._place = place
        self._locks = place.locks
        self.where = place.settings.where
        self.mode = mode
        self.seed = seed
        self._sums = Sums(seed)
        self._queue_rows = QueueRows(connection, self._sums, place.locks)
        self._threshold = threshold
        # Rows of runs as they were left here, perhaps by what was undone; SQLite compares one that is relied on.
        self._heads: dict[str, RunRow] = {}
        # Moves the log into the file, while this connection holds the lock of writers.
        self._checkpointer: sqlite3.Connection | None = None
        self._logged = 0
        self._releases = False
        self._syncs = True
        if mode == "wal":
            self._execute("PRAGMA busy_timeout = 0")

    # -- transactions of SQLite

    @property
    def in_transaction(self) -> bool:
        """Whether one is open."""
        return self._connection.in_transaction

    def begin(self, *, write: bool, durable: bool = True) -> bool:
        """Open a transaction.

        Args:
            write: Whether it writes.
            durable: Whether it has to survive a loss of power at once, or with the next one that has to: a write-ahead
                log keeps them in order. In a rollback journal all do at once.

        Returns:
            Whether the file is still written the way it was when it was opened.

        Raises:
            StoreUnavailable: The file is not there any more.
        """
        if not write:
            self._execute("BEGIN")
            return True
        self._place.check()
        if durable != self._syncs and self.mode != "persist":
            self._execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._syncs = durable
        self._take_turn()
        if self.mode == "persist":
            return self._one("PRAGMA journal_mode") == ("persist",)
        if self._logged >= _CHECKPOINT_BYTES and self.mode == "wal":
            self._checkpoint()
            # The log begins anew with a transaction that finds all of it in the file.
            self._execute("ROLLBACK")
            self._take_turn()
        self._logged += _COMMIT_BYTES
        for lease in self._place.unreleased:
            with suppress(CorruptRecord):
                self._end(lease)
        return True

    def _take_turn(self) -> None:
        """Begin to write; SQLite's own wait for other writers would grow to a tenth of a second between two looks."""
        end = time.monotonic() + self._place.settings.busy_timeout
        while True:
            try:
                self._execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= end:
                    raise
            else:
                return
            time.sleep(_POLL)

    def _checkpoint(self) -> None:
        """Move the write-ahead log into the file, so that the next transaction begins the log anew.

        In SQLite before 3.51.3 a checkpoint damages the file when another connection begins the log anew meanwhile
        (https://sqlite.org/wal.html#walresetbug). Only the holder of the lock of writers can do that, and this
        connection holds it; another one of its process does the work, as a transaction cannot be checkpointed by the
        connection that has it open.
        """
        if self._checkpointer is None:
            self._checkpointer = open_checkpointer(self._place.settings)
        self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._logged = 0

    def savepoint(self) -> None:
        """Begin a part of a transaction that can be undone alone."""
        self._execute("SAVEPOINT part")

    def end_savepoint(self, *, undo: bool) -> None:
        """End that part."""
        if undo:
            self._execute("ROLLBACK TO part")
        self._execute("RELEASE part")

    def end(self) -> None:
        """Make everything last."""
        self._execute("COMMIT")
        if self._releases:
            self._releases = False
            self._place.unreleased.clear()

    def undo(self) -> None:
        """Undo everything since the beginning of the transaction, and begin again."""
        self._releases = False
        self._execute("ROLLBACK")
        self._execute("BEGIN")

    def rollback(self) -> None:
        """Undo everything; SQLite has done so itself after some errors."""
        self._releases = False
        with suppress(*DRIVER_ERRORS):
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        with suppress(*DRIVER_ERRORS), closing(self._connection):
            self.rollback()
            if self._checkpointer is not None:
                self._checkpointer.close()

    def _one(self, sql: str, values: tuple[object, ...] = ()) -> tuple[object, ...] | None:
        row: tuple[object, ...] | None = self._execute(sql, values).fetchone()
        return row

    def _number(self, sql: str, values: tuple[object, ...] = ()) -> int:
        row = self._one(sql, values)
        if row is None or not isinstance(row[0], int):
            raise CorruptRecord("a stored number is damaged", hint=_RESTORE)
        return row[0]

    def _tick(self) -> int:
        """A number that this file has never given before."""
        row = self._one("SELECT ticks, crc FROM store")
        match row:
            case (int(ticks), int(crc)) if crc == self._sums.ticks(ticks):
                pass
            case _:
                raise CorruptRecord("the file's counter is damaged", hint=_RESTORE)
        self._execute("UPDATE store SET ticks = ?, crc = ?", (ticks + 1, self._sums.ticks(ticks + 1)))
        return ticks + 1

    # -- rows of runs

    def _find(self, run_id: str, *, summary: bool = False) -> RunRow | None:
        row = self._one(_BY_RUN_ID, (run_id,))
        return None if row is None else self._sums.checked_run(row, summary=summary)

    def _require(self, run_id: str) -> RunRow:
        run = self._find(run_id)
        if run is None:
            raise checks.no_run(run_id)
        return run

    def _create(
        self,
        run_id: str,
        position: int,
        now: int,
        status: str | None = None,
        summary: bytes | None = None,
        *,
        owned: bool = False,
    ) -> RunRow:
        """Insert the row of a run, which is this process's own or has no owner; its number is the next."""
        number = self._tick()
        if number >= MOST:
            raise StoreUnavailable(
                f"{self.where}: all run numbers are used", where=self.where, reason="full", hint="use a new file"
            )
        # No fence of the file is larger than its newest number.
        fence, owner = (number, self._locks.owner) if owned else (0, 0)
        run = RunRow(number, run_id, position, fence, owner, now, 0, now, status, summary or b"", 0)
        run.crc, run.summary_crc = self._sums.head(run), self._sums.summary(run)
        self._execute(
            "INSERT INTO runs (id, run_id, position, fence, owner, updated, crc, created, status, card, card_crc) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            astuple(run),
        )
        return run

    def _save(self, run: RunRow, *, summary: bool = False) -> None:
        run.crc = self._sums.head(run)
        head = (run.position, run.fence, run.owner, run.updated, run.crc)
        if not summary:
            self._execute(_SAVE_HEAD, (*head, run.id))
            return
        run.summary_crc = self._sums.summary(run)
        self._execute(_SAVE, (*head, run.status, run.summary, run.summary_crc, run.id))

    def head(self, run_id: str) -> Head | None:
        """Where the journal ends."""
        run = self._find(run_id)
        return None if run is None else Head(run.position, run.fence)

    def entry(self, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        run = self._find(run_id, summary=True)
        return None if run is None else self._entry(run)

    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        if after == 0:
            # Only a damaged row has a number below it, and stood on the page before.
            return []
        # A damaged row may have any number that the file can hold.
        upto = LARGEST if after is None else after - 1
        if status is None:
            rows = self._execute(_NEWEST, (upto, limit)).fetchall()
        else:
            rows = self._execute(_NEWEST_WITH, (upto, status, limit)).fetchall()
        return [self._listed(row) for row in rows]

    def _listed(self, row: tuple[Any, ...]) -> RunEntry:
        try:
            return self._entry(self._sums.checked_run(row, summary=True))
        except CorruptRecord as error:
            return RunEntry.damaged(row[1], max(row[0], 0), error.message)

    def _entry(self, run: RunRow) -> RunEntry:
        return RunEntry(
            run_id=run.run_id,
            position=run.position,
            status=run.status,
            summary=run.summary,
            created=checks.moment(run.created),
            updated=checks.moment(run.updated),
            held=self._is_held(run),
            cursor=run.id,
        )

    def _is_held(self, run: RunRow) -> bool:
        return run.owner != 0 and self._locks.alive(run.owner)

    # -- journals

    def append(self, given: Transaction, now: datetime) -> int:
        """Append one transaction."""
        with_summary = given.summary is not None or given.status is not None
        when = checks.micros(now)
        run = None if with_summary else self._moved_on(given, when)
        if run is None:
            run = self._moved(given, when, with_summary=with_summary)
            self._remember(run)
        if given.records:
            self._insert(run, pack(given.records, threshold=self._threshold), len(given.records))
        return run.position

    def commit(self, given: Sequence[Transaction], now: datetime) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them."""
        leases = commit_in_turn(self, given, now)
        self._logged += BudgetRows(self._connection, self._sums).change(given)
        return leases

    def _remember(self, run: RunRow) -> None:
        if len(self._heads) == _HEADS:
            self._heads.clear()
        self._heads[run.run_id] = evolve(run, summary=b"", status=None)

    def _moved_on(self, given: Transaction, now: int) -> RunRow | None:
        """Move a head on in one statement, where it is known and unchanged since; `None` elsewhere."""
        run = self._heads.get(given.run_id)
        if run is None or (run.fence, run.position) != (given.fence, given.expected_position):
            return None
        return run if self._changed(run, run.position + len(given.records), run.owner, now) else None

    def _changed(self, run: RunRow, position: int, owner: int, updated: int) -> bool:
        """Change a head that is known, if it is unchanged since; otherwise it is known no more."""
        before = (run.id, run.run_id, run.position, run.fence, run.owner, run.updated, run.crc)
        run.position, run.owner, run.updated = position, owner, updated
        run.crc = self._sums.head(run)
        if self._execute(_CHANGE, (position, owner, updated, run.crc, *before)).rowcount == 1:
            return True
        del self._heads[run.run_id]
        return False

    def _moved(self, given: Transaction, now: int, *, with_summary: bool) -> RunRow:
        """Read a head, and move it on.

        Raises:
            LeaseLost: The fence is not the latest owner's.
            PositionConflict: The journal does not end where it should.
        """
        run = self._find(given.run_id, summary=with_summary)
        position, fence = (0, 0) if run is None else (run.position, run.fence)
        checks.check_turn(given, position, fence)
        position += len(given.records)
        if run is None:
            return self._create(given.run_id, position, now, given.status, given.summary)
        run.summary = run.summary if given.summary is None else given.summary
        run.status = run.status if given.status is None else given.status
        run.position, run.updated = position, now
        self._save(run, summary=with_summary)
        return run

    def _insert(self, run: RunRow, packed: Packed, count: int) -> None:
        if run.position >= LONGEST:
            raise LimitExceeded("a run's records", LONGEST - 1, hint="go on in a fork, or in a run of its own")
        crc = self._sums.transaction(run.id, run.position, count, packed.body)
        self._logged += len(packed.body)
        self._execute(
            "INSERT INTO transactions (id, count, crc, body) VALUES (?, ?, ?, ?)",
            (place(run.id, run.position), count, crc, packed.body),
        )
        for digest, payload in packed.blobs.items():
            self._logged += len(payload)
            self._execute("INSERT OR IGNORE INTO blobs (sha256, data) VALUES (?, ?)", (digest, payload))
            self._execute(
                "INSERT OR IGNORE INTO uses (stream, blob, first) SELECT ?, id, ? FROM blobs WHERE sha256 = ?",
                (run.id, run.position - count, digest),
            )

    def _parts(self, run: RunRow) -> Iterator[tuple[int, int]]:
        """The streams that a journal is made of, each with the position up to which it is."""
        rows = self._execute("SELECT upto, stream, crc FROM shared WHERE run = ? ORDER BY upto", (run.id,)).fetchall()
        for upto, stream, crc in rows:
            if (
                not isinstance(upto, int)
                or not isinstance(stream, int)
                or crc != self._sums.shared(run.id, upto, stream)
            ):
                raise CorruptRecord(f"the shared records of run {run.run_id!r} are damaged", hint=_RESTORE)
            yield stream, upto
        yield run.id, run.position

    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records."""
        run = self._require(run_id)
        page = checks.Page(after, limit)
        for stream, upto in self._parts(run):
            if page.at < upto:
                self._read_part(run, stream, upto, page)
            if page.full:
                return page.records[:limit]
        beyond = (place(run.id, run.position), place(run.id + 1, 0))
        if self._one("SELECT 1 FROM transactions WHERE id > ? AND id < ?", beyond) is not None:
            raise CorruptRecord(f"run {run_id!r} has records beyond its end", hint=_RESTORE)
        return page.records

    def _read_part(self, run: RunRow, stream: int, upto: int, page: checks.Page) -> None:
        sql = "SELECT id, count, crc, body FROM transactions WHERE id > ? AND id <= ? ORDER BY id"
        first = place(stream, 0)
        with closing(self._execute(sql, (first + page.at, first + upto))) as rows:
            for row in rows:
                match row:
                    case (int(found), int(count), int(crc), bytes(body)) if (
                        0 <= (last := found - first) - count <= page.at < last
                        and (last - count == page.at or not page.records)
                        and crc == self._sums.transaction(stream, last, count, body)
                    ):
                        page.add(unpack(body, count, self._blob, skip=page.at - (last - count)), last)
                    case _:
                        raise CorruptRecord(f"run {run.run_id!r} is damaged after position {page.at}", hint=_RESTORE)
                if page.full:
                    return
        if page.at != upto:
            raise CorruptRecord(f"run {run.run_id!r} has lost records after position {page.at}", hint=_RESTORE)

    def _blob(self, digest: bytes) -> bytes:
        row = self._one("SELECT data FROM blobs WHERE sha256 = ?", (digest,))
        if row is None or not isinstance(row[0], bytes):
            raise CorruptRecord("a large payload is missing", hint=_RESTORE)
        return row[0]

    def fork(self, run_id: str, given: Transaction, now: datetime) -> None:
        """Make a run that shares a journal's beginning, up to where a transaction is appended to it."""
        run = self._require(run_id)
        at = min(given.expected_position, run.position + 1)
        parts: list[tuple[int, int]] = []
        for stream, upto in self._parts(run):
            if not parts or parts[-1][1] < at:
                parts.append((stream, min(upto, at)))
        stream, upto = parts[-1]
        ends = self._one("SELECT 1 FROM transactions WHERE id = ?", (place(stream, at),))
        if at != 0 and (ends is None or upto != at):
            raise checks.no_end(at)
        if self._find(given.run_id) is not None:
            raise checks.is_taken(given.run_id)
        made = self._create(given.run_id, at + len(given.records), checks.micros(now), given.status, given.summary)
        for stream, upto in parts if at else ():
            self._execute(
                "INSERT INTO shared (run, upto, stream, crc) VALUES (?, ?, ?, ?)",
                (made.id, upto, stream, self._sums.shared(made.id, upto, stream)),
            )
        if given.records:
            self._insert(made, pack(given.records, threshold=self._threshold), len(given.records))

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        run = self._find(run_id)
        if run is None:
            return
        if self._is_held(run):
            raise checks.is_held()
        self._forget(run)

    def _forget(self, run: RunRow) -> None:
        self._heads.pop(run.run_id, None)
        streams = [stream for stream, _ in self._parts(run)]
        self._execute("DELETE FROM shared WHERE run = ?", (run.id,))
        self._queue_rows.remove(run.id)
        self._execute("DELETE FROM signals WHERE run = ?", (run.id,))
        self._execute("DELETE FROM runs WHERE id = ?", (run.id,))
        for stream in streams:
            self._trim(stream)

    def _trim(self, stream: int) -> None:
        """Take away what is not read any more: all of a stream, or what lies behind the last fork of a deleted run."""
        if self._one("SELECT 1 FROM runs WHERE id = ?", (stream,)) is not None:
            return
        upto = self._number("SELECT coalesce(max(upto), 0) FROM shared WHERE stream = ?", (stream,))
        self._execute("DELETE FROM transactions WHERE id > ? AND id < ?", (place(stream, upto), place(stream + 1, 0)))
        unused = self._execute("SELECT blob FROM uses WHERE stream = ? AND first >= ?", (stream, upto)).fetchall()
        self._execute("DELETE FROM uses WHERE stream = ? AND first >= ?", (stream, upto))
        self._connection.executemany(
            "DELETE FROM blobs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM uses WHERE blob = blobs.id)", unused
        )

    def prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first."""
        upto = (FARTHEST if page.below is None else page.below) - 1
        rows = self._execute(_NEWEST, (upto, _PRUNED_AT_ONCE)).fetchall()
        pruning, deleted = checks.Pruning(page.kept, before, keep, statuses), 0
        for row in rows:
            # A run that cannot be read does not keep the others from being removed; it is left for a repair.
            with suppress(CorruptRecord):
                run = self._sums.checked_run(row, summary=True)
                if pruning.takes(run.status, run.updated) and not self._is_held(run):
                    self._forget(run)
                    deleted += 1
        return PrunePage(rows[-1][0] if len(rows) == _PRUNED_AT_ONCE else None, pruning.kept, deleted)

    def stats(self) -> Stats:
        """How much there is."""
        return Stats(
            runs=self._number("SELECT count(*) FROM runs"),
            # A position that no run can have is damage, and would not fit into the sum.
            records=self._number(
                "SELECT coalesce(sum(position), 0) FROM runs WHERE position BETWEEN 0 AND ?", (LONGEST,)
            ),
            values=self._number("SELECT count(*) FROM pairs"),
            blobs=self._number("SELECT count(*) FROM blobs"),
            bytes=self._number("PRAGMA page_count") * self._number("PRAGMA page_size"),
        )

    def scrub(self) -> Sequence[str]:
        """Write the file anew without what was deleted, and empty its log or journal.

        Deleted rows are overwritten with zeros, but SQLite moves rows from page to page, and what it leaves where they
        were is not. So all pages are written anew. It is called in a transaction that has not read or written
        anything: it ends that, as a file is not written anew in one, and leaves another one like it.

        Raises:
            StoreUnavailable: Another process reads or writes the file all the time; reason `"busy"`.
        """
        self._place.check()
        self._execute("COMMIT")
        patience = int(self._place.settings.busy_timeout * 1000)
        try:
            self._execute(f"PRAGMA busy_timeout = {patience}")
            # The transaction before may have been one that is synced with the next.
            self._execute("PRAGMA synchronous = FULL")
            # A copy in memory would be as large as the file. What is temporary holds nothing that was deleted.
            self._execute("PRAGMA temp_store = FILE")
            # With this limit a commit cuts the rollback journal to nothing, instead of clearing its first bytes.
            self._execute("PRAGMA journal_size_limit = 0")
            self._execute("VACUUM")
            # It waits for the lock of writers, and holds it, so that no other connection begins the log anew meanwhile.
            busy = self.mode != "persist" and self._number("PRAGMA wal_checkpoint(TRUNCATE)") != 0
        finally:
            configure(self._connection)
            self._syncs = True
            if self.mode == "wal":
                self._execute("PRAGMA busy_timeout = 0")
        self._logged = 0
        self._execute("BEGIN")
        if busy:
            raise StoreUnavailable(
                f"{self.where}: the write-ahead log cannot be emptied while another connection reads the file",
                where=self.where,
                reason="busy",
                hint="try again, or close the other programs that have it open",
            )
        return ()

    # -- leases

    def acquire(self, run_id: str, ttl: float, now: datetime) -> Lease:
        """Become the owner; nothing runs out while it lives."""
        run = self._find(run_id)
        if run is None:
            run = self._create(run_id, 0, checks.micros(now), owned=True)
        elif self._is_held(run):
            raise checks.is_owned("its process to end")
        else:
            run.fence, run.owner = self._tick(), self._locks.owner
            self._save(run)
        self._remember(run)
        return Lease(run_id, run.fence, run.position)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Look whether the lease is still held."""
        run = self._find(lease.run_id)
        if run is None or (run.fence, run.owner) != (lease.fence, self._locks.owner):
            raise checks.not_held()
        return lease

    def release(self, leases: Collection[Lease]) -> None:
        """End leases; those that a full disk does not take end with the next transaction that it takes."""
        self._place.unreleased.update(leases)
        for lease in leases:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        number = self._given_up(lease)
        queued = None if number is None else self._queue_rows.of(number)
        if queued is not None and queued.lives:
            queued.lives = 0
            self._queue_rows.save(queued)
        self._releases = True

    def _given_up(self, lease: Lease) -> int | None:
        """End the ownership of a run; returns its number, or `None` where it is not owned."""
        mine = (lease.fence, self._locks.owner)
        run = self._heads.get(lease.run_id)
        if run is not None and (run.fence, run.owner) == mine and self._changed(run, run.position, 0, run.updated):
            return run.id
        run = self._find(lease.run_id)
        if run is None or (run.fence, run.owner) != mine:
            return None
        self._save(evolve(run, owner=0))
        return run.id

    # -- queues and inboxes

    def enqueue(self, given: Transaction, now: datetime) -> None:
        """Do what a transaction says of queues and inboxes."""
        run = self._require(given.run_id)
        upto = LARGEST if given.ended else given.read
        if upto:
            self._execute("DELETE FROM signals WHERE run = ? AND number <= ?", (run.id, upto))
        if given.ended:
            self._queue_rows.remove(run.id)
        elif given.queued is not None:
            new, old = given.queued, self._queue_rows.of(run.id)
            at = None if new.at is None else int(new.at * 1_000_000)
            lives = 0 if old is None else old.lives
            due = at is not None and at <= checks.micros(now)
            row = QueuedRow(run.id, new.queue, new.flow, at, new.priority, lives, 0, new.key, due)
            if self._one("SELECT 1 FROM signals WHERE run = ?", (run.id,)) is not None:
                _wake(row, now)
            self._queue_rows.save(row)
        for each in given.signals:
            receiver = self._find(each.run_id)
            if receiver is not None:
                self._send(receiver, each.key, each.body, now)

    def claim(self, wanted: ClaimRequest, now: datetime) -> Sequence[Claim]:
        """Become the owner of queued runs; an owner whose process has ended has none any more."""
        claims: list[Claim] = []
        for row in self._queue_rows.next(wanted, checks.micros(now)):
            run = self._sums.checked_run(self._execute(_BY_NUMBER, (row.run,)).fetchone(), summary=False)
            lease = self.acquire(run.run_id, wanted.ttl, now)
            row.lives, row.due = row.lives + 1, False
            self._queue_rows.save(row)
            signals = self._one("SELECT 1 FROM signals WHERE run = ? LIMIT 1", (run.id,)) is not None
            claims.append(Claim(lease, row.place, row.lives, now.timestamp(), signals))
        return claims

    def queues(self, now: datetime) -> Sequence[QueueStats]:
        """How full each queue is."""
        return queue_stats(((row.place, owned) for row, owned in self._queue_rows.all()), now)

    def send(self, run_id: str, key: str, body: bytes, now: datetime) -> int:
        """Put a signal into a run's inbox, and let the run be claimed."""
        return self._send(self._require(run_id), key, body, now)

    def _send(self, run: RunRow, key: str, body: bytes, now: datetime) -> int:
        row = self._one("SELECT number FROM signals WHERE run = ? AND key = ?", (run.id, key))
        if row is not None and isinstance(row[0], int):
            return row[0]
        number = self._tick()
        self._logged += len(body)
        self._execute(
            "INSERT INTO signals (number, run, key, crc, body) VALUES (?, ?, ?, ?, ?)",
            (number, run.id, key, self._sums.signal(number, run.id, key, body), body),
        )
        queued = self._queue_rows.of(run.id)
        if queued is not None:
            _wake(queued, now)
            self._queue_rows.save(queued)
        return number

    def inbox(self, run_id: str, after: int, limit: int) -> Sequence[Signal]:
        """A page of a run's signals."""
        run = self._find(run_id)
        if run is None:
            return ()
        rows = self._execute(
            "SELECT number, key, crc, body FROM signals WHERE run = ? AND number > ? ORDER BY number LIMIT ?",
            (run.id, after, limit),
        ).fetchall()
        return [self._signal(run, row) for row in rows]

    def _signal(self, run: RunRow, row: tuple[object, ...]) -> Signal:
        match row:
            case (int(number), str(key), int(crc), bytes(body)) if crc == self._sums.signal(number, run.id, key, body):
                return Signal(run.run_id, key, body, number)
            case _:
                raise CorruptRecord(f"a signal of run {run.run_id!r} is damaged", hint=_RESTORE)

    # -- shared budgets

    def budgets(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        return BudgetRows(self._connection, self._sums).read(name, since)

    def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        BudgetRows(self._connection, self._sums).forget(places)

    # -- scoped values

    def _pair(self, scope: bytes, key: str) -> StoredValue | None:
        row = self._one("SELECT key, version, crc, value FROM pairs WHERE scope = ? AND key = ?", (scope, key))
        return None if row is None else self._checked_pair(scope, row)

    def _checked_pair(self, scope: bytes, row: tuple[object, ...]) -> StoredValue:
        match row:
            case (str(key), int(version), int(crc), bytes(value)) if crc == self._sums.pair(version, scope, key, value):
                return StoredValue(key, value, version)
            case _:
                raise CorruptRecord("the value of a key is damaged", hint=_RESTORE)

    def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        return self._pair(pack_scope(scope), key)

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        packed = pack_scope(scope)
        found = self._expected(packed, key, expected)
        version = self._tick()
        self._logged += len(value)
        crc = self._sums.pair(version, packed, key, value)
        if found is None:
            self._execute(
                "INSERT INTO pairs (version, scope, key, crc, value) VALUES (?, ?, ?, ?, ?)",
                (version, packed, key, crc, value),
            )
        else:
            self._execute(
                "UPDATE pairs SET version = ?, crc = ?, value = ? WHERE version = ?",
                (version, crc, value, found.version),
            )
        return version

    def remove(self, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        found = self._expected(pack_scope(scope), key, expected)
        if found is not None:
            self._execute("DELETE FROM pairs WHERE version = ?", (found.version,))
        return found is not None

    def _expected(self, scope: bytes, key: str, expected: int | None) -> StoredValue | None:
        found = self._pair(scope, key)
        checks.check_version(found, expected)
        return found

    def scan(self, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        packed = pack_scope(scope)
        rows = self._execute(
            "SELECT key, version, crc, value FROM pairs WHERE scope = ? AND key > ? ORDER BY key LIMIT ?",
            (packed, after, limit),
        ).fetchall()
        return [self._checked_pair(packed, row) for row in rows]

    def scopes(self, prefix: bytes, after: bytes, limit: int) -> Sequence[bytes]:
        """A page of the scopes that hold a value; those that begin with a prefix follow each other."""
        rows = self._execute(
            "SELECT DISTINCT scope FROM pairs WHERE scope >= ? AND scope > ? ORDER BY scope LIMIT ?",
            (prefix, after, limit),
        ).fetchall()
        return scopes_behind((_bytes(scope) for (scope,) in rows), prefix, after, limit)


def _wake(row: QueuedRow, now: datetime) -> None:
    """Let a run be claimed at once."""
    soon = checks.micros(now)
    row.at, row.due = soon if row.at is None else min(row.at, soon), True


def _bytes(stored: object) -> bytes:
    if not isinstance(stored, bytes):
        raise CorruptRecord("the scope of a value is damaged", hint=_RESTORE)
    return stored


_MAX_GROUP = 512


class GroupCommit:
    """Does the jobs of one thread on a connection that it opens when it is first needed, and again after a disk failed.

    Args:
        opened: Opens the file.
        where: The file, for messages.
    """

    def __init__(self, opened: Callable[[], SqliteStore], where: str) -> None:
        self._opened = opened
        self._where = where
        self._store: SqliteStore | None = None

    def take(self, queue: deque[AnyJob]) -> list[AnyJob]:
        """Take everything that waits now."""
        return [queue.popleft() for _ in range(min(len(queue), _MAX_GROUP))]

    def do(self, jobs: Sequence[AnyJob]) -> None:
        """Do jobs, first what reads: it sees nothing that is not committed."""
        usable = True
        try:
            store = self._store = self._store or self._opened()
            reading, writing = [job for job in jobs if not job.write], [job for job in jobs if job.write]
            for job in reading:
                usable = self._read(store, job) and usable
            if writing:
                usable = self._write(store, writing) and usable
        except Exception as error:  # noqa: BLE001  # raised in the waiting tasks
            for job in jobs:
                if job.error is None:
                    job.error = error
            usable = False
        if not usable:
            self.close(last=False)

    def close(self, *, last: bool) -> None:
        """Close the connection."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _reopened(self) -> SqliteStore:
        """Open the file again, in the journal mode that another program has given it, and begin to write.

        Raises:
            StoreUnavailable: It was changed again.
        """
        self.close(last=False)
        store = self._store = self._opened()
        if store.begin(write=True):
            return store
        raise StoreUnavailable(
            f"{self._where}: another program has changed the file's journal mode",
            where=self._where,
            reason="mode",
            hint="close that program, then resume the run",
        )

    def _read(self, store: SqliteStore, job: AnyJob) -> bool:
        """Do one piece of reading work; returns whether the connection may be used on."""
        try:
            store.begin(write=False)
            job.value = job.work(store)
            store.end()
        except DRIVER_ERRORS as error:
            store.rollback()
            job.error = from_sqlite(error, self._where)
            return not is_broken(error)
        except Exception as error:  # noqa: BLE001  # raised in the waiting task
            store.rollback()
            job.error = error
        return True

    def _write(self, store: SqliteStore, jobs: Sequence[AnyJob]) -> bool:
        """Do writing work in one transaction; returns whether the connection may be used on.

        What was lost because of one piece is done once more, each piece alone.
        """
        try:
            if not store.begin(write=True, durable=any(job.durable for job in jobs)):
                store = self._reopened()
            for job in jobs:
                _part(store, job, alone=len(jobs) == 1)
            store.end()
        except DRIVER_ERRORS as error:
            store.rollback()
            if len(jobs) > 1 and is_worth_retrying(error):
                usable = True
                for job in jobs:
                    usable = self._write(store, [job]) and usable
                return usable
            for job in jobs:
                job.error = from_sqlite(error, self._where)
            return not is_broken(error)
        return True


def _part(store: SqliteStore, job: AnyJob, *, alone: bool) -> None:
    """Do one piece of a group; what it raises is its own, but for what the driver raises."""
    job.error = None
    if not alone:
        store.savepoint()
    try:
        job.value = job.work(store)
    except DRIVER_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  # raised in the waiting task
        job.error = error
    if not alone:
        store.end_savepoint(undo=job.error is not None)
    elif job.error is not None:
        store.undo()
