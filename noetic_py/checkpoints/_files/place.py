"""The folder: where it may be, what is in it, and how anything in it is replaced.

    store            the version of the layout, and a salt that checksums begin with
    ticks            the counter that runs, fences and versions get their numbers from
    lock             a byte for each owner, and for each part that is being written
    runs/<sha256>/   a run: its `head`, its journals, and links to its large payloads
    blobs/<sha256>   the large payloads, each once
    values/<sha256>/ a scope; in it a file for each key
    tmp/             what is being made or taken away, by the number of its owner

What is not there yet is made in `tmp` and renamed to its place, what is not wanted any more is renamed to `tmp` and
then deleted: so a run is whole or not there. What the dead have left in `tmp` goes when the folder is opened.
"""

from __future__ import annotations

import os
import secrets
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path

from attrs import define, field, frozen

from noetic_py.checkpoints._files.blobs import discard
from noetic_py.checkpoints._files.sealed import read_file, seal, unseal, write_new
from noetic_py.checkpoints._local.errors import from_os
from noetic_py.checkpoints._local.folders import make_folder, sync_folder
from noetic_py.checkpoints._local.locks import Locks
from noetic_py.checkpoints._local.rules import RESTORE
from noetic_py.errors import CorruptRecord, StoreUnavailable

__all__ = ["VERSION", "FileSettings", "Folder", "naming"]

VERSION = 1
_FOLDERS = ("runs", "blobs", "values", "tmp")
_KNOWN = {*_FOLDERS, "store", "ticks", "lock"}


@frozen
class FileSettings:
    """How the folder is opened.

    Attributes:
        path: Where it is.
        busy_timeout: How many seconds to wait for another process.
    """

    path: Path
    busy_timeout: float

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return str(self.path)


@contextmanager
def naming(where: str) -> Generator[None]:
    """Raise what the file system reports by the names of this library."""
    try:
        yield
    except OSError as error:
        raise from_os(error, where) from error


def _refuse(settings: FileSettings, what: str, reason: str, hint: str) -> StoreUnavailable:
    return StoreUnavailable(f"{settings.where}: {what}", where=settings.where, reason=reason, hint=hint)


@define(eq=False)
class Folder:
    """An open folder.

    Attributes:
        settings: How it was opened.
        locks: The locks in it.
        seed: Where the checksums of its files begin.
        void: The fences of leases that the disk refused to write when they may have been there already.
    """

    settings: FileSettings
    locks: Locks
    seed: int = 0
    void: set[int] = field(factory=set[int])
    _lock: tuple[int, int] = (0, 0)
    _names: Iterator[int] = field(factory=count)

    @classmethod
    def open(cls, settings: FileSettings) -> Folder:
        """Open a folder, or make it.

        Raises:
            StoreUnavailable: There can be no store there, and why.
            CorruptRecord: It is damaged.
        """
        with naming(settings.where):
            _check_root(settings)
            locks = Locks(settings.path / "lock", mode=0o600)
            try:
                folder = cls(settings, locks)
                with locks.opening(settings.busy_timeout, settings.where):
                    folder._prepare()
            except BaseException:
                locks.close()
                raise
            return folder

    def at(self, *names: str) -> str:
        """The path of what is in it."""
        return os.path.join(self.settings.path, *names)

    def check(self) -> None:
        """Look whether the path still leads to the folder that was opened.

        Raises:
            StoreUnavailable: It does not, or somebody has taken the file of the locks away; reason `"moved"`.
        """
        try:
            status = os.stat(self.at("lock"), follow_symlinks=False)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._lock:
            raise _refuse(
                self.settings,
                "the folder was moved or deleted while it was open",
                "moved",
                "put it back, or start anew",
            )

    def _prepare(self) -> None:
        status = os.stat(self.at("lock"), follow_symlinks=False)
        self._lock = status.st_dev, status.st_ino
        for name in _FOLDERS:
            with suppress(FileExistsError):
                os.mkdir(self.at(name), 0o700)
            if not stat.S_ISDIR(os.lstat(self.at(name)).st_mode):
                raise _refuse(
                    self.settings, f"{name!r} in it is no folder", "link", "take it away, or give another path"
                )
        # What a process made that has died may not be on the disk yet.
        for name in (*_FOLDERS, ""):
            sync_folder(self.at(name))
        try:
            self._identify(read_file(self.at("store")))
        except FileNotFoundError:
            self._found()
        self._sweep()

    def _identify(self, content: bytes) -> None:
        fields, _ = unseal(content, f"{self.settings.where}: the file `store`", seed=0)
        match fields:
            case {"noetic": "files", "version": int(version), "salt": str(salt)}:
                pass
            case _:
                raise CorruptRecord(f"{self.settings.where}: the file `store` is none of ours", hint=RESTORE)
        if version != VERSION:
            raise _refuse(
                self.settings,
                f"the folder has version {version}, and this release knows {VERSION}",
                "newer",
                "upgrade noetic-py, or give another path",
            )
        self.seed = zlib.crc32(salt.encode())

    def _found(self) -> None:
        """Make a store of an empty folder."""
        if os.listdir(self.at("runs")) or os.listdir(self.at("values")):
            raise CorruptRecord(f"{self.settings.where}: the file `store` is missing", hint=RESTORE)
        salt = secrets.token_hex(16)
        self.seed = zlib.crc32(salt.encode())
        self._count(0)
        self.replace(self.at(), "store", seal({"noetic": "files", "version": VERSION, "salt": salt}, b"", seed=0))

    def _sweep(self) -> None:
        """Delete what owners have left that are not alive any more."""
        for name in os.listdir(self.at("tmp")):
            owner, dash, _ = name.partition("-")
            if dash and not self.locks.alive(int(owner, 16)):
                discard(self.at("tmp", name), self.at("blobs"))

    # -- writing

    def temporary(self) -> str:
        """A path at which nothing is."""
        return self.at("tmp", f"{self.locks.owner:016x}-{next(self._names)}")

    def replace(self, folder: str, name: str, content: bytes) -> None:
        """Give a small file another content, whole or not at all."""
        made = self.temporary()
        try:
            write_new(made, content)
            os.replace(made, os.path.join(folder, name))
        except BaseException:
            with suppress(OSError):
                os.unlink(made)
            raise
        sync_folder(folder)

    def holding(self, name: bytes) -> AbstractContextManager[None]:
        """Be the only one that writes a part of the store, in any process.

        Raises:
            StoreUnavailable: Another process goes on writing it; reason `"busy"`.
        """
        return self.locks.holding(name, self.settings.busy_timeout, self.settings.where)

    def tick(self) -> int:
        """A number that this store has never given before."""
        with self.holding(b"ticks"):
            try:
                fields, _ = unseal(read_file(self.at("ticks")), "the store's counter", seed=self.seed)
            except FileNotFoundError:
                raise CorruptRecord("the store's counter is missing", hint=RESTORE) from None
            match fields:
                case {"ticks": int(ticks)}:
                    self._count(ticks + 1)
                    return ticks + 1
                case _:
                    raise CorruptRecord("the store's counter is none", hint=RESTORE)

    def _count(self, ticks: int) -> None:
        self.replace(self.at(), "ticks", seal({"ticks": ticks}, b"", seed=self.seed))


def _check_root(settings: FileSettings) -> None:
    """Refuse what is no folder of one's own, and take rights away that others have."""
    path = settings.path
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        make_folder(path)
        status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise _refuse(settings, "it is a symbolic link", "link", "give the path of the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise _refuse(settings, "it is no folder", "directory", "give the path of a folder")
    if os.name == "posix" and status.st_uid != os.geteuid():
        raise _refuse(settings, "the folder belongs to another user", "permission", "give a folder of this user's own")
    names = os.listdir(path)
    if "store" not in names and not _KNOWN.issuperset(names):
        raise _refuse(settings, "the folder holds other things", "not-a-store", "give a folder that is empty, or new")
    if os.name == "posix" and status.st_mode & 0o077:
        path.chmod(0o700)
