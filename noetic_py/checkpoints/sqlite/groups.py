"""Group commit: what waits for the file at the same moment is one transaction that shares its fsync.

Each piece has a savepoint, and an outcome of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from noetic_py.checkpoints.adapter import Job
from noetic_py.checkpoints.sqlite.schema import DRIVER_ERRORS, from_sqlite, is_broken, is_worth_retrying
from noetic_py.checkpoints.sqlite.store import SqliteStore

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

    def take(self, queue: deque[Job[Any]]) -> list[Job[Any]]:
        """Take everything that waits now."""
        return [queue.popleft() for _ in range(min(len(queue), _MAX_GROUP))]

    def patience(self) -> float | None:
        """For how many seconds the file is held between two groups."""
        return None if self._store is None else self._store.patience()

    def do(self, jobs: Sequence[Job[Any]]) -> None:
        """Do jobs, first what reads: it sees nothing that is not committed."""
        usable = True
        try:
            store = self._store = self._store or self._opened()
            reading, writing = [job for job in jobs if not job.write], [job for job in jobs if job.write]
            for job in reading:
                usable = self._read(store, job) and usable
            if writing:
                usable = self._write(store, writing) and usable
        except Exception as error:  # noqa: BLE001  # it belongs to those who wait, and the thread goes on
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

    def _read(self, store: SqliteStore, job: Job[Any]) -> bool:
        """Do one piece of reading work; returns whether the connection may be used on."""
        try:
            store.begin(write=False)
            job.value = job.work(store)
            store.commit()
        except DRIVER_ERRORS as error:
            store.rollback()
            job.error = from_sqlite(error, self._where)
            return not is_broken(error)
        except Exception as error:  # noqa: BLE001  # it belongs to the one who waits
            store.rollback()
            job.error = error
        return True

    def _write(self, store: SqliteStore, jobs: Sequence[Job[Any]]) -> bool:
        """Do writing work in one transaction; returns whether the connection may be used on.

        What was lost because of one piece is done once more, each piece alone.
        """
        try:
            refused = store.begin(write=True)
            if refused is not None:
                store.rollback()
                for job in jobs:
                    job.error = refused
                return False
            for job in jobs:
                _part(store, job, alone=len(jobs) == 1)
            store.commit()
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


def _part(store: SqliteStore, job: Job[Any], *, alone: bool) -> None:
    """Do one piece of a group; what it raises is its own, but for what the driver raises."""
    job.error = None
    if not alone:
        store.savepoint()
    try:
        job.value = job.work(store)
    except DRIVER_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  # it belongs to the one who waits
        job.error = error
    if not alone:
        store.end_savepoint(undo=job.error is not None)
    elif job.error is not None:
        store.undo()
