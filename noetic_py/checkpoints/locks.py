"""Locks that the kernel frees when their process ends, durable folders, and file system errors by name."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from noetic_py.checkpoints.checks import NO_DESCRIPTORS, NO_DESCRIPTORS_ERRNO
from noetic_py.errors import StoreUnavailable

_RIGHTS = ("permission", "this user may not open it", "let this user read and write the file and its directory")
_OS: dict[int, tuple[str, str, str]] = {
    errno.ENOSPC: ("full", "the disk is full", "free space"),
    errno.EDQUOT: ("full", "the quota of the disk is used up", "free space"),
    errno.ENOENT: ("missing", "the folder does not exist and cannot be made", "make the folder, or give another path"),
    errno.EROFS: ("readonly", "the file system can only be read", "give a path that can be written"),
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EISDIR: ("directory", "it is a directory", "give another path"),
    errno.ENOTDIR: ("directory", "a part of the path is a file", "give another path"),
    errno.ELOOP: ("link", "a file in it or beside it is a symbolic link", "take the link away"),
    errno.EFBIG: ("full", "a file may not become larger", "raise the limit of the size of files"),
    **dict.fromkeys(NO_DESCRIPTORS_ERRNO, NO_DESCRIPTORS),
    errno.ENOLCK: ("locks", "the file system has no locks", "use a local disk"),
}


def from_os(error: OSError, where: str) -> StoreUnavailable:
    """The library's error for the file system's."""
    reason, what, hint = _OS.get(
        error.errno or 0, ("io", error.strerror or type(error).__name__, "check the path and the disk")
    )
    return StoreUnavailable(f"{where}: {what}", where=where, reason=reason, hint=hint)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they are there after a loss of power too."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path | str) -> None:
    """Make the names in a folder last."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


_OPENING = 0
_OWNER_BITS = 60
_NAMES = 1 << 61
"""Where the bytes begin that stand for names; those of owners lie below."""
_POLL = 0.0005
_SLOWEST = 0.005


class _File:
    """The file of the locks, opened once a process."""

    def __init__(self, handle: int, key: tuple[int, int]) -> None:
        self.handle = handle
        self.key = key
        self.users = 0
        self.held: set[int] = set()


_files: dict[tuple[int, int], _File] = {}
_guard = threading.Lock()


def _forget() -> None:
    """A forked child holds none of its parent's locks, and must not seem to."""
    global _guard
    # The parent's may be held by a thread that the child does not have.
    _guard = threading.Lock()
    for file in _files.values():
        with suppress(OSError):
            os.close(file.handle)
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _try_lock(handle: int, number: int, *, shared: bool) -> bool:
    """Lock a byte if it is free."""
    try:
        if sys.platform == "win32":
            os.lseek(handle, number, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.lockf(handle, kind | fcntl.LOCK_NB, 1, number, os.SEEK_SET)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(handle: int, number: int) -> None:
    if sys.platform == "win32":
        os.lseek(handle, number, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, number, os.SEEK_SET)


class Locks:
    """The locks beside one store, of one backend.

    Args:
        path: The file; made when it is not there.
        mode: Its permissions.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, mode: int) -> None:
        with _guard:
            self._file = _known(path) or _open(path, mode)
            self._file.users += 1
            self.owner = self._become_owner()

    def _become_owner(self) -> int:
        while True:
            number = secrets.randbits(_OWNER_BITS) + _OPENING + 1
            if number not in self._file.held and _try_lock(self._file.handle, number, shared=False):
                self._file.held.add(number)
                return number

    def alive(self, owner: int) -> bool:
        """Whether an owner lives, in this process or in another."""
        with _guard:
            if owner in self._file.held:
                return True
            # Shared, so that two processes that check at the same moment do not see each other as the owner.
            if not _try_lock(self._file.handle, owner, shared=True):
                return True
            _unlock(self._file.handle, owner)
            return False

    def opening(self, timeout: float, where: str) -> AbstractContextManager[None]:
        """Be the only one that opens the store, in any process; as `holding`."""
        return self._holding(_OPENING, timeout, where, "opening it")

    def holding(self, name: bytes, timeout: float, where: str) -> AbstractContextManager[None]:
        """Be the only one that has a part of the store, in any process.

        Args:
            name: The part; names are distinguished by 60 bits of their SHA-256.
            timeout: How many seconds to wait for the one that has it.
            where: The store, for the error.

        Raises:
            StoreUnavailable: Another process still has it; reason `"busy"`.
        """
        number = int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 64 - _OWNER_BITS
        return self._holding(_NAMES + number, timeout, where, "writing in it")

    @contextmanager
    def _holding(self, number: int, timeout: float, where: str, what: str) -> Generator[None]:
        end, pause = time.monotonic() + timeout, _POLL
        while not self._take(number):
            if time.monotonic() > end:
                raise StoreUnavailable(
                    f"{where}: another process has been {what} for longer than {timeout:g} s",
                    where=where,
                    reason="busy",
                    hint="look for a process that hangs, or raise busy_timeout=",
                )
            time.sleep(pause)
            pause = min(2 * pause, _SLOWEST)
        try:
            yield
        finally:
            with _guard:
                self._file.held.discard(number)
                _unlock(self._file.handle, number)

    def _take(self, number: int) -> bool:
        with _guard:
            if number in self._file.held or not _try_lock(self._file.handle, number, shared=False):
                return False
            self._file.held.add(number)
            return True

    def close(self) -> None:
        """Stop being an owner; what it held is free."""
        with _guard:
            if self.owner not in self._file.held:
                return
            self._file.held.discard(self.owner)
            _unlock(self._file.handle, self.owner)
            self._file.users -= 1
            if self._file.users == 0:
                del _files[self._file.key]
                os.close(self._file.handle)


def _known(path: Path) -> _File | None:
    """The file if this process has it open already; found by its inode, and never by opening it again."""
    try:
        status = os.stat(path)  # noqa: PTH116  # the numbers are wanted
    except FileNotFoundError:
        return None
    return _files.get((status.st_dev, status.st_ino))


def _open(path: Path, mode: int) -> _File:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, mode)
    status = os.fstat(handle)
    file = _files[status.st_dev, status.st_ino] = _File(handle, (status.st_dev, status.st_ino))
    return file
