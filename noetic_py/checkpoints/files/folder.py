"""The folder of a file store: where it may be, what is in it, and how files in it are replaced."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from noetic_py.checkpoints.checks import RESTORE
from noetic_py.checkpoints.locks import Locks, from_os, make_folder, sync_folder
from noetic_py.errors import CorruptRecord, StoreUnavailable

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_SUM = 9


def encode_file(fields: Mapping[str, object], data: bytes, *, seed: int) -> bytes:
    """The content of a small file: a line of fields with a checksum, then data.

    Args:
        fields: Its first line; it names the owner, which the file's name does not.
        data: The bytes after that line.
        seed: The initial value of the checksum.
    """
    # Escaped, so that no id can show a person's terminal anything else than itself.
    body = json.dumps(fields, separators=(",", ":")).encode() + b"\n" + data
    return b"%08x " % zlib.crc32(body, seed) + body


def decode_file(content: bytes, what: str, *, seed: int) -> tuple[dict[str, Any], bytes]:
    """The fields and the data of a small file.

    Raises:
        CorruptRecord: The checksum does not match.
    """
    line, newline, data = content[_SUM:].partition(b"\n")
    try:
        if newline and content[:_SUM] == b"%08x " % zlib.crc32(content[_SUM:], seed):
            fields: object = json.loads(line)
            if isinstance(fields, dict):
                return fields, data  # pyright: ignore[reportUnknownVariableType]  # any JSON
    except (ValueError, RecursionError):
        pass
    raise CorruptRecord(f"{what} is damaged", hint=RESTORE)


def open_file(path: str, flags: int) -> int:
    """Open a file itself, and not what a link in its place leads to."""
    return os.open(path, flags | _NO_LINKS, 0o600)


def read_file(path: str) -> bytes:
    """All of a file."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def write_new(path: str, *parts: bytes) -> None:
    """Make a file with a content that lasts."""
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for part in parts:
            write_all(handle, part)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write all of some bytes; the system may take them in pieces."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


_NAME = re.compile(r"[0-9a-f]{64}")
# No more names for this file, no second names on this disk.
_NO_NAME = {errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS}


def is_blob(name: str) -> bool:
    """Whether a name in a run's folder is that of a payload."""
    return _NAME.fullmatch(name) is not None


def keep(run: str, blobs: str, temporary: str, digest: bytes, payload: bytes) -> None:
    """Keep a payload in a run's folder.

    Args:
        run: The run's folder.
        blobs: The folder of all payloads.
        temporary: A path at which nothing is.
        digest: The payload's SHA-256.
        payload: The payload.
    """
    mine, shared = os.path.join(run, digest.hex()), os.path.join(blobs, digest.hex())
    if os.path.lexists(mine):
        return
    try:
        os.link(shared, mine)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
    else:
        return
    try:
        write_new(temporary, payload)
        if _linked(temporary, mine):
            os.replace(temporary, shared)
        else:
            os.replace(temporary, mine)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _linked(path: str, name: str) -> bool:
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        return False
    return True


def link(path: str, name: str) -> None:
    """Give a file a second name, or copy it where it can have none."""
    if not _linked(path, name):
        write_new(name, read_file(path))


def discard(path: str, blobs: str) -> None:
    """Delete a file, or the folder of a run with the payloads that no other run has."""
    try:
        names = os.listdir(path)
    except NotADirectoryError:
        os.unlink(path)
        return
    for name in filter(is_blob, names):
        mine, shared = os.path.join(path, name), os.path.join(blobs, name)
        with suppress(FileNotFoundError):
            last = os.lstat(shared)
            if os.path.samestat(last, os.lstat(mine)) and last.st_nlink == 2:
                os.unlink(shared)
    shutil.rmtree(path)


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
        discarded: The fences of leases that the disk refused to write when they may have been there already.
    """

    settings: FileSettings
    locks: Locks
    seed: int = 0
    discarded: set[int] = field(factory=set[int])
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
            StoreUnavailable: It does not, or the file of the locks was removed; reason `"moved"`.
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
                    self.settings, f"{name!r} in it is not a folder", "link", "take it away, or give another path"
                )
        # Files of a process that has died may not be on the disk yet.
        for name in (*_FOLDERS, ""):
            sync_folder(self.at(name))
        try:
            self._identify(read_file(self.at("store")))
        except FileNotFoundError:
            self._found()
        self.sweep()

    def _identify(self, content: bytes) -> None:
        fields, _ = decode_file(content, f"{self.settings.where}: the file `store`", seed=0)
        match fields:
            case {"noetic": "files", "version": int(version), "salt": str(salt)}:
                pass
            case _:
                raise CorruptRecord(
                    f"{self.settings.where}: the file `store` is not one of this library's", hint=RESTORE
                )
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
        self.replace(
            self.at(), "store", encode_file({"noetic": "files", "version": VERSION, "salt": salt}, b"", seed=0)
        )

    def sweep(self, *, own: bool = False) -> None:
        """Delete what owners have left that are not alive any more.

        Args:
            own: Also what this owner has left, which writes nothing at this moment.
        """
        for name in os.listdir(self.at("tmp")):
            owner, dash, _ = name.partition("-")
            if dash and ((own and int(owner, 16) == self.locks.owner) or not self.locks.alive(int(owner, 16))):
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
            StoreUnavailable: Another process keeps writing it; reason `"busy"`.
        """
        return self.locks.holding(name, self.settings.busy_timeout, self.settings.where)

    def tick(self) -> int:
        """A number that this store has never given before."""
        with self.holding(b"ticks"):
            try:
                fields, _ = decode_file(read_file(self.at("ticks")), "the store's counter", seed=self.seed)
            except FileNotFoundError:
                raise CorruptRecord("the store's counter is missing", hint=RESTORE) from None
            match fields:
                case {"ticks": int(ticks)}:
                    self._count(ticks + 1)
                    return ticks + 1
                case _:
                    raise CorruptRecord("the store's counter is not a number", hint=RESTORE)

    def _count(self, ticks: int) -> None:
        self.replace(self.at(), "ticks", encode_file({"ticks": ticks}, b"", seed=self.seed))


def _check_root(settings: FileSettings) -> None:
    """Refuse everything but a folder of one's own, and take rights away that others have."""
    path = settings.path
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        make_folder(path)
        status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise _refuse(settings, "it is a symbolic link", "link", "give the path of the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise _refuse(settings, "it is not a folder", "directory", "give the path of a folder")
    if os.name == "posix" and status.st_uid != os.geteuid():
        raise _refuse(settings, "the folder belongs to another user", "permission", "give a folder of this user's own")
    names = os.listdir(path)
    if "store" not in names and not _KNOWN.issuperset(names):
        raise _refuse(settings, "the folder holds other things", "not-a-store", "give a folder that is empty, or new")
    if os.name == "posix" and status.st_mode & 0o077:
        path.chmod(0o700)
