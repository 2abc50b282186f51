"""The parts of the backend on plain files, private."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from noetic_py.checkpoints.adapter import EmbeddedBackend
from noetic_py.checkpoints.checks import MAX_BYTES, check_settings
from noetic_py.checkpoints.files.folder import VERSION, FileSettings, Folder, naming
from noetic_py.checkpoints.files.store import FileStore
from noetic_py.checkpoints.threads import AnyJob, WorkerPool
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import ConfigError


class FileBackend(EmbeddedBackend[FileStore]):
    """Keeps journals and values in plain files of one folder. What was acknowledged survives the loss of power.

    For command-line tools and small deployments: a run is a folder, whose `head` says in one line of JSON what there is
    to know of it. Names are hashes and counters, so no id leads anywhere. A list reads the heads of all runs: with
    thousands of them, [`SqliteBackend`][noetic_py.checkpoints.SqliteBackend] is faster.

    The folder is opened when it is first needed, in a thread of the backend's own; `async with` opens it at once.
    Several processes of one machine may use one folder: the writer of a run locks it, and its locks are
    released when its process ends in any way. While it lives, its leases do not expire. The disk has to be local.
    Copy the folder as a whole, while no process writes in it.

    Args:
        path: The folder; it and those above it are made when they are not there. It has to belong to this user, and
            rights that others have are taken away.
        busy_timeout: How many seconds to wait for another process that writes the same run.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
        runtime: The clock of `created` and `updated`.

    Raises:
        ConfigError: A setting is wrong; codes `"files-path"` and `"files-setting"`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout: float = 10.0,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
        runtime: Runtime = SYSTEM,
    ) -> None:
        check_settings(
            blob_threshold=blob_threshold,
            max_bytes=max_bytes,
            limit=8 * MAX_BYTES,
            code="files-setting",
            busy_timeout=busy_timeout,
        )
        self._settings = FileSettings(_checked_path(path), busy_timeout)
        self._opening = _FolderOpening(self._settings, blob_threshold)
        where = self._settings.where
        pool = WorkerPool[FileStore](
            partial(_OneByOne, self._opening.store, where), name="noetic-files", where=where, ended=self._opening.close
        )
        super().__init__(pool, largest=max_bytes, runtime=runtime)

    async def describe(self) -> Mapping[str, str]:
        """The folder and the version of its layout."""
        await self._open()
        return {
            "backend": "files",
            "path": self._settings.where,
            "version": str(VERSION),
            "why": "every append is synced, and then the head that says how far the journal goes is replaced",
        }


class _FolderOpening:
    """Opens the folder once; its owner does not change."""

    def __init__(self, settings: FileSettings, threshold: int) -> None:
        self._settings = settings
        self._threshold = threshold
        self.folder: Folder | None = None

    def store(self) -> FileStore:
        if self.folder is None:
            self.folder = Folder.open(self._settings)
        return FileStore(self.folder, threshold=self._threshold)

    def close(self) -> None:
        """Give back all that the backend owned."""
        if self.folder is not None:
            self.folder.locks.close()
            self.folder = None


class _OneByOne:
    """Does the jobs of the thread that has the folder: each is whole by itself, and what it raises is its own."""

    def __init__(self, opened: Callable[[], FileStore], where: str) -> None:
        self._opened = opened
        self._where = where
        self._store: FileStore | None = None

    def take(self, queue: deque[AnyJob]) -> list[AnyJob]:
        """Take the next one."""
        return [queue.popleft()]

    def do(self, jobs: Sequence[AnyJob]) -> None:
        """Do it."""
        for job in jobs:
            try:
                store = self._store = self._store or self._opened()
                with naming(self._where):
                    if job.write:
                        store.check()
                    job.value = job.work(store)
            except Exception as error:  # noqa: BLE001  # raised in the waiting task; the thread goes on
                job.error = error

    def close(self, *, last: bool) -> None:
        """Nothing is open between two jobs."""


def _checked_path(path: str | Path) -> Path:
    text = str(path)
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is not a valid path of a folder", code="files-path", hint='"runs"')
    return Path(text).absolute()
