"""The parts of the SQLite backend, private."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from noetic_py.checkpoints.adapter import EmbeddedBackend
from noetic_py.checkpoints.checks import MAX_BYTES, check_settings
from noetic_py.checkpoints.sqlite.schema import (
    DRIVER_ERRORS,
    VERSION,
    Mode,
    OpenFile,
    Settings,
    connect,
    from_sqlite,
    open_database,
)
from noetic_py.checkpoints.sqlite.store import GroupCommit, SqliteStore
from noetic_py.checkpoints.threads import Job, WorkerPool
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import ConfigError

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_WHY: Mapping[Mode, str] = {
    "exclusive": "no other process may open the file",
    "wal": "a commit syncs once, and readers do not wait for writers",
    "persist": "another program had the file open, or the disk has no shared memory for a write-ahead log",
}


class SqliteBackend(EmbeddedBackend[SqliteStore]):
    """Keeps journals and values in an SQLite file. What was acknowledged survives the loss of power.

    The file is opened when it is first needed, in a thread of the backend's own; `async with` opens it at once. Several
    processes of one machine may use one file: their commits take turns, and what one of them owns is free as soon as
    it ends, however it ends. While it lives, nothing it owns runs out. Beside the file lie its write-ahead log, `-wal`
    and `-shm`, and a file of locks, `-lock`; the disk has to be local. Back the file up with `VACUUM INTO`, or while it
    is closed.

    Args:
        path: The file; it and its directories are made when they are not there.
        busy_timeout: How many seconds to wait for another process.
        exclusive: Let no other process open the file meanwhile.
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
        check_settings(
            blob_threshold=blob_threshold,
            max_bytes=max_bytes,
            limit=8 * MAX_BYTES,
            code="sqlite-setting",
            busy_timeout=busy_timeout,
        )
        self._settings = Settings(_checked_path(path), busy_timeout, file_mode, exclusive)
        self._opening = _FileOpening(self._settings, blob_threshold)
        where = self._settings.where
        writer = WorkerPool[SqliteStore](
            partial(GroupCommit, self._opening.writer, where),
            name="noetic-sqlite",
            where=where,
            ended=self._opening.close,
        )
        super().__init__(writer, largest=max_bytes, runtime=runtime)
        self._reader = WorkerPool[SqliteStore](
            partial(GroupCommit, self._opening.reader, where), name="noetic-sqlite-reader", where=where
        )
        weakref.finalize(self, self._reader.abandon)

    async def describe(self) -> Mapping[str, str]:
        """The file, the SQLite that is linked, the journal mode and why it was chosen."""
        await self._open()
        mode = self._opening.mode or "persist"
        return {
            "backend": "sqlite",
            "path": self._settings.where,
            "schema": str(VERSION),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "full",
            "journal": "persist" if mode == "persist" else "wal",
            "why": _WHY[mode],
        }

    async def scrub(self) -> Sequence[str]:
        """Write the file anew without what was deleted, and empty its log; that takes as much room again meanwhile.

        Raises:
            StoreUnavailable: Another process uses the file, reason `"busy"`; try again.
        """
        # With the connection that writes, and not in the transaction of a group of writes.
        return await self._pool.run(Job(lambda store: store.scrub(), write=False))

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and close the file; a second time is not an error."""
        try:
            await self._reader.close()
        finally:
            await super().close()

    async def _do(self, work: Callable[[SqliteStore], T], *, write: bool = False) -> T:
        """Read beside what writes where the journal allows it, else in turn with it."""
        pool = self._pool
        if not write:
            if self._opening.mode is None:
                await self._open()
            if self._opening.mode == "wal":
                pool = self._reader
        return await pool.run(Job(work, write=write))


class _FileOpening:
    """Opens the file for the two threads; what it learns stays when it is opened again."""

    def __init__(self, settings: Settings, threshold: int) -> None:
        self._settings = settings
        self._threshold = threshold
        self._place: OpenFile | None = None
        self._seed = 0
        self.mode: Mode | None = None

    def writer(self) -> SqliteStore:
        if self._place is None:
            self._place = OpenFile.find(self._settings)
        connection, self.mode, self._seed = open_database(self._place)
        return SqliteStore(connection, self._place, mode=self.mode, seed=self._seed, threshold=self._threshold)

    def reader(self) -> SqliteStore:
        """A connection that reads only; there is a writer's before it."""
        if self._place is None or self.mode is None:
            return self.writer()
        try:
            connection = connect(self._settings)
            connection.execute("PRAGMA query_only = ON")
        except DRIVER_ERRORS as error:
            raise from_sqlite(error, self._settings.where) from error
        return SqliteStore(connection, self._place, mode=self.mode, seed=self._seed, threshold=self._threshold)

    def close(self) -> None:
        """Give back all that the backend owned."""
        if self._place is not None:
            self._place.locks.close()
            self._place = None


def _checked_path(path: str | Path) -> Path:
    text = str(path)
    if not text or text == ":memory:" or text.startswith("file:") or "\0" in text:
        raise ConfigError(
            f"{text!r} is not a valid path of a file",
            code="sqlite-path",
            hint='"runs.db"; InMemoryBackend() keeps nothing',
        )
    return Path(text).absolute()
