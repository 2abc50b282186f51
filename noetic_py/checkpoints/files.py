"""`FileBackend`: journals and values in plain files of one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from noetic_py.checkpoints._files.place import VERSION, FileSettings, Folder, naming
from noetic_py.checkpoints._files.store import FileStore
from noetic_py.checkpoints._local.backend import LocalBackend, check_settings
from noetic_py.checkpoints._local.worker import Faults, Worker
from noetic_py.checkpoints.checks import MAX_BYTES
from noetic_py.errors import CheckpointError, ConfigError, NoeticError
from noetic_py.runtime import SYSTEM, Runtime

__all__ = ["FileBackend"]

T = TypeVar("T")


class FileBackend(LocalBackend[FileStore]):
    """Keeps journals and values in plain files of one folder. What was acknowledged survives the loss of power.

    For command-line tools and small deployments: a run is a folder, whose `head` says in one line of JSON what there is
    to know of it. Names are hashes and counters, so no id leads anywhere. A list reads the heads of all runs: with
    thousands of them, [`SqliteBackend`][noetic_py.checkpoints.SqliteBackend] is faster.

    The folder is opened when it is first needed, in a thread of the backend's own; `async with` opens it at once.
    Several processes of one machine may use one folder: who writes a run locks it, and what a process owns is free as
    soon as it ends, however it ends. While it lives, nothing it owns runs out. The disk has to be local. Copy the
    folder as a whole, while nobody writes in it.

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

    # A page of them costs a look at all heads.
    _pruned_at_once = 5000

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout: float = 10.0,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
        runtime: Runtime = SYSTEM,
    ) -> None:
        check_settings(busy_timeout, blob_threshold, max_bytes, code="files-setting")
        self._settings = FileSettings(_checked_path(path), busy_timeout)
        self._opening = _Opening(self._settings, blob_threshold)
        where = self._settings.where
        worker = Worker(self._opening.store, self._opening.close, faults=_NONE, name="noetic-files", where=where)
        super().__init__(worker, largest=max_bytes, runtime=runtime)

    async def describe(self) -> Mapping[str, str]:
        """The folder and the version of its layout."""
        await self._open()
        return {
            "backend": "files",
            "path": self._settings.where,
            "version": str(VERSION),
            "why": "every append is synced, and then the head that says how far the journal goes is replaced",
        }

    def _named(self, work: Callable[[FileStore], T]) -> Callable[[FileStore], T]:
        def named(store: FileStore) -> T:
            with naming(self._settings.where):
                return work(store)

        return named

    async def _write(self, work: Callable[[FileStore], T]) -> T:
        return await super()._write(self._named(work))

    async def _write_all(self, works: Iterable[Callable[[FileStore], T]]) -> Sequence[T | NoeticError]:
        return await super()._write_all(map(self._named, works))

    async def _read(self, work: Callable[[FileStore], T]) -> T:
        return await super()._read(self._named(work))


class _Opening:
    """Opens the folder; who its owner is stays when that is done again."""

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


def _unnamed(error: Exception) -> NoeticError:
    return CheckpointError(str(error))


def _never(error: Exception) -> bool:
    return False


# Pieces of work are whole by themselves, so what one raises is its own.
_NONE = Faults((), _unnamed, _never, _never)


def _checked_path(path: str | Path) -> Path:
    text = str(path)
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is no path of a folder", code="files-path", hint='"runs"')
    return Path(text).absolute()
