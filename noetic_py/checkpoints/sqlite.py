"""`SqliteBackend`: journals and values in one file of this machine."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import anyio

from noetic_py.checkpoints._sqlite.errors import DRIVER_ERRORS, from_sqlite
from noetic_py.checkpoints._sqlite.schema import VERSION, Mode, Place, Settings, connect, open_database, wal_is_safe
from noetic_py.checkpoints._sqlite.store import PrunePage, Store
from noetic_py.checkpoints._sqlite.worker import Worker
from noetic_py.checkpoints.backend import (
    BackendDurability,
    Head,
    Lease,
    Record,
    RunEntry,
    Scope,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.checkpoints.checks import (
    MAX_BYTES,
    check_append,
    check_id,
    check_key,
    check_page,
    check_prune,
    check_scope,
    check_ttl,
    check_value,
)
from noetic_py.checkpoints.packing import pack_scope
from noetic_py.errors import ConfigError, LeaseLost, NoeticError
from noetic_py.runtime import SYSTEM, Runtime

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 2**62
_PRUNED_AT_ONCE = 200


class SqliteBackend:
    """Keeps journals and values in an SQLite file. What was acknowledged survives the loss of power.

    The file is opened when it is first needed, in a thread of the backend's own; `async with` opens it at once. Several
    processes of one machine may use one file: their commits take turns, and what one of them owns is free as soon as
    it ends, however it ends. While it lives, nothing it owns runs out. Beside the file lie its journal and a file of
    locks, `-lock`; the disk has to be local. Use a copy of the file made by `VACUUM INTO`, or while nobody has it open.

    Args:
        path: The file; it and its directories are made when they are not there.
        busy_timeout: How many seconds to wait for another process.
        exclusive: Let no other process open the file meanwhile: faster where SQLite is older than 3.51.3, for one sync
            a commit does in place of four.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
        file_mode: Permissions of the file and of those beside it.
        runtime: The clock of `created` and `updated`.

    Raises:
        ConfigError: A setting is wrong; codes `"sqlite-path"` and `"sqlite-setting"`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout: float = 10.0,
        exclusive: bool = False,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
        file_mode: int = 0o600,
        runtime: Runtime = SYSTEM,
    ) -> None:
        if busy_timeout < 0 or blob_threshold < 0 or not 0 < max_bytes <= MAX_BYTES * 8:
            raise ConfigError(
                "busy_timeout, blob_threshold and max_bytes are numbers from 0 on, and max_bytes ends at 512 MiB",
                code="sqlite-setting",
                hint="leave them out",
            )
        self._settings = Settings(_checked_path(path), busy_timeout, file_mode, exclusive)
        self._threshold = blob_threshold
        self._largest = max_bytes
        self._runtime = runtime
        self._opening = _Opening(self._settings, blob_threshold)
        where = self._settings.where
        self._worker = Worker(self._opening.writer, self._opening.close, name="noetic-sqlite", where=where)
        self._reader = Worker(self._opening.reader, _nobody, name="noetic-sqlite-reader", where=where)
        weakref.finalize(self, _abandon, self._worker, self._reader)

    @property
    def durability(self) -> BackendDurability:
        """`"power"`: every commit is on the disk before it is acknowledged."""
        return "power"

    @property
    def shared(self) -> bool:
        """`False`: other processes of this machine see it, other machines do not."""
        return False

    async def describe(self) -> Mapping[str, str]:
        """The file, the SQLite that is linked, the journal mode and why it was chosen."""
        await self._open()
        mode = self._opening.mode or "persist"
        version = sqlite3.sqlite_version
        return {
            "backend": "sqlite",
            "path": self._settings.where,
            "schema": str(VERSION),
            "sqlite": version,
            "synchronous": "full",
            "journal": "persist" if mode == "persist" else "wal",
            "why": _why(mode, version),
        }

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and close the file; a second time is no error."""
        try:
            await self._reader.close()
        finally:
            await self._worker.close()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        await self._worker.run(_nothing, write=False)

    async def _write(self, work: Callable[[Store], T]) -> T:
        return await self._worker.run(work, write=True)

    async def _read(self, work: Callable[[Store], T]) -> T:
        """Read: beside what writes where the journal allows it, else in turn with it."""
        if self._opening.mode is None:
            await self._open()
        worker = self._reader if self._opening.mode == "wal" else self._worker
        return await worker.run(work, write=False)

    def _now(self) -> int:
        since = self._runtime.now() - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    # -- journals

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        card: bytes | None = None,
        status: str | None = None,
    ) -> int:
        """Append one transaction; see [`CheckpointBackend.append`][noetic_py.CheckpointBackend.append].

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: It is too large.
        """
        given = Transaction(run_id, expected_position, fence, records, card, status)
        return await self._write(self._appending(given))

    def _appending(self, given: Transaction) -> Callable[[Store], int]:
        check_id(given.run_id)
        check_append(given.records, given.card, given.status, largest=self._largest)
        return partial(Store.append, given=given, now=self._now())

    async def append_many(self, transactions: Sequence[Transaction]) -> Sequence[int | NoeticError]:
        """Append to several runs at once, each transaction with an outcome of its own."""
        outcomes: dict[int, int | NoeticError] = {}
        works: dict[int, Callable[[Store], int]] = {}
        for index, given in enumerate(transactions):
            try:
                works[index] = self._appending(given)
            except NoeticError as error:
                outcomes[index] = error
        outcomes |= zip(works, await self._worker.run_all(works.values()), strict=True)
        return [outcomes[index] for index in range(len(outcomes))]

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on; it ends early when it has become large.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: What is stored is not what was written.
        """
        check_id(run_id)
        check_page(after, limit)
        return await self._read(partial(Store.read, run_id=run_id, after=after, limit=limit))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(partial(Store.head, run_id=run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(partial(Store.entry, run_id=run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        return await self._read(partial(Store.list, after=after, limit=min(limit, _MOST), status=status))

    async def fork(
        self, run_id: str, *, at: int, new_run_id: str, card: bytes | None = None, status: str | None = None
    ) -> None:
        """Make a run whose journal is the first `at` records of another's, without copying them.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is no transaction's end, or the new run exists.
        """
        check_id(run_id)
        check_id(new_run_id, "new_run_id")
        check_append((), card, status)
        now = self._now()
        await self._write(lambda store: store.fork(run_id, at, new_run_id, card, status, now))

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._write(partial(Store.delete, run_id=run_id))

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds in one transaction.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
        oldest = None if before is None else int((before - _EPOCH).total_seconds() * 1_000_000)
        page, deleted = PrunePage(), 0
        while page.below is not None:
            page = await self._write(
                partial(Store.prune, page=page, before=oldest, keep=keep, statuses=statuses, limit=_PRUNED_AT_ONCE)
            )
            deleted += page.deleted
        return deleted

    async def stats(self) -> Stats:
        """How much it holds."""
        return await self._read(Store.stats)

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, until the lease is given back or this process ends.

        Raises:
            RunBusy: Another owner holds it.
        """
        check_id(run_id)
        check_ttl(ttl)
        given: list[Lease] = []
        now = self._now()

        def work(store: Store) -> Lease:
            lease = store.acquire(run_id, now)
            given[:] = [lease]
            return lease

        try:
            return await self._write(work)
        except anyio.get_cancelled_exc_class():
            # Nobody learns of this lease, so nobody would give it back.
            for lease in given:
                self._worker.send(partial(Store.give_back, lease=lease))
            raise

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Say whether a lease is still held; while its owner lives it does not run out.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("this is no lease", hint="acquire the run")
        return await self._read(partial(Store.renew, lease=lease))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        await self._write(partial(Store.give_back, lease=lease))

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        return await self._read(partial(Store.get, scope=pack_scope(scope), key=key))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        return await self._write(
            partial(Store.put, scope=pack_scope(scope), key=key, value=bytes(value), expected=expected)
        )

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        return await self._write(partial(Store.remove, scope=pack_scope(scope), key=key, expected=expected))

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        return await self._read(partial(Store.scan, scope=pack_scope(scope), after=after, limit=min(limit, _MOST)))


class _Opening:
    """Opens the file for the two threads; what it learns stays when it is opened again."""

    def __init__(self, settings: Settings, threshold: int) -> None:
        self._settings = settings
        self._threshold = threshold
        self._place: Place | None = None
        self._seed = 0
        self.mode: Mode | None = None

    def writer(self) -> Store:
        if self._place is None:
            self._place = Place.find(self._settings)
        connection, self.mode, self._seed = open_database(self._place)
        return Store(connection, self._place, mode=self.mode, seed=self._seed, threshold=self._threshold)

    def reader(self) -> Store:
        """A connection that reads only; there is a writer's before it."""
        if self._place is None or self.mode is None:
            return self.writer()
        try:
            connection = connect(self._settings)
            connection.execute("PRAGMA query_only = ON")
        except DRIVER_ERRORS as error:
            raise from_sqlite(error, self._settings.where) from error
        return Store(connection, self._place, mode=self.mode, seed=self._seed, threshold=self._threshold)

    def close(self) -> None:
        """Give back all that the backend owned."""
        if self._place is not None:
            self._place.locks.close()
            self._place = None


def _nothing(store: Store) -> None:
    """Open the store, and do nothing."""


def _nobody() -> None:
    """The reading thread owns nothing."""


def _abandon(*workers: Worker) -> None:
    for worker in workers:
        worker.abandon()


def _checked_path(path: str | Path) -> Path:
    text = str(path)
    if not text or text == ":memory:" or text.startswith("file:") or "\0" in text:
        raise ConfigError(
            f"{text!r} is no path of a file", code="sqlite-path", hint='"runs.db"; InMemoryBackend() keeps nothing'
        )
    return Path(text).absolute()


def _why(mode: Mode, version: str) -> str:
    if mode == "exclusive":
        return "no other process may open the file, so a write-ahead log is safe in every version"
    if mode == "wal":
        return f"SQLite {version} may use a write-ahead log with several connections"
    if wal_is_safe(sqlite3.sqlite_version_info):
        return "the file was made with a rollback journal, and another process may rely on that"
    return f"SQLite {version} can damage a file in WAL mode that two connections have open"
