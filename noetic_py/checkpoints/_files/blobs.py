"""Large payloads: each is one file, with a name in `blobs` and one in the folder of every run that holds it.

How many names a file has is counted by the file system, so nobody has to know who needs it: the name in `blobs` goes
with the last run that has one, and only a second copy of a payload is lost where two processes cross each other.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress

from noetic_py.checkpoints._files.sealed import read_file, write_new

__all__ = ["discard", "is_blob", "keep", "link"]

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
    mine, everybodys = os.path.join(run, digest.hex()), os.path.join(blobs, digest.hex())
    if os.path.lexists(mine):
        return
    try:
        os.link(everybodys, mine)
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
            os.replace(temporary, everybodys)
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
    """Delete a file, or the folder of a run with the payloads that nobody else has."""
    try:
        names = os.listdir(path)
    except NotADirectoryError:
        os.unlink(path)
        return
    for name in filter(is_blob, names):
        mine, everybodys = os.path.join(path, name), os.path.join(blobs, name)
        with suppress(FileNotFoundError):
            last = os.lstat(everybodys)
            if os.path.samestat(last, os.lstat(mine)) and last.st_nlink == 2:
                os.unlink(everybodys)
    shutil.rmtree(path)
