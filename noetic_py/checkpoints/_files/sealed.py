"""Small files that are replaced whole: a checksum and a line of JSON that a person can read, then bytes as they are."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from noetic_py.checkpoints._local.rules import RESTORE
from noetic_py.errors import CorruptRecord

__all__ = ["open_file", "read_file", "seal", "unseal", "write_all", "write_new"]

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_SUM = 9


def seal(fields: Mapping[str, object], data: bytes, *, seed: int) -> bytes:
    """The content of a small file.

    Args:
        fields: What is in its first line; says whose it is, for names of files say nothing.
        data: What is behind that.
        seed: Where its checksum begins.
    """
    # Escaped, so that no id can show a person's terminal anything else than itself.
    body = json.dumps(fields, separators=(",", ":")).encode() + b"\n" + data
    return b"%08x " % zlib.crc32(body, seed) + body


def unseal(content: bytes, what: str, *, seed: int) -> tuple[dict[str, Any], bytes]:
    """What a small file holds.

    Raises:
        CorruptRecord: It is not what was written.
    """
    line, newline, data = content[_SUM:].partition(b"\n")
    try:
        if newline and content[:_SUM] == b"%08x " % zlib.crc32(content[_SUM:], seed):
            fields: Any = json.loads(line)
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
