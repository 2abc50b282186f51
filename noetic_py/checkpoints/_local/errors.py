"""What the file system reports, by the names of this library: where it happened and what to do."""

from __future__ import annotations

import errno

from noetic_py.errors import StoreUnavailable

__all__ = ["from_os"]

_RIGHTS = ("permission", "this user may not open it", "let this user read and write the file and its directory")
_OS: dict[int, tuple[str, str, str]] = {
    errno.ENOSPC: ("full", "the disk is full", "free space"),
    errno.EDQUOT: ("full", "the quota of the disk is used up", "free space"),
    errno.EROFS: ("readonly", "the file system can only be read", "give a path that can be written"),
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EISDIR: ("directory", "it is a directory", "give another path"),
    errno.ENOTDIR: ("directory", "a part of the path is a file", "give another path"),
    errno.ELOOP: ("link", "a file in it or beside it is a symbolic link", "take the link away"),
    errno.EFBIG: ("full", "a file may not become larger", "raise the limit of the size of files"),
    errno.ENOLCK: ("locks", "the file system has no locks", "use a local disk"),
}


def from_os(error: OSError, where: str) -> StoreUnavailable:
    """The library's error for the file system's."""
    reason, what, hint = _OS.get(
        error.errno or 0, ("io", error.strerror or type(error).__name__, "look at the path and at the disk")
    )
    return StoreUnavailable(f"{where}: {what}", where=where, reason=reason, hint=hint)
