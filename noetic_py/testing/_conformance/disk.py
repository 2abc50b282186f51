"""Whether bytes are in files, and on the disk: the kernel is asked which pages of a file wait to be written."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_CACHESTAT = 451  # of Linux 6.5, with this number on every architecture that Python runs on
_PIECE = 16
_STEP = 512


class _Range(ctypes.Structure):
    _fields_ = (("at", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "being_written", "evicted", "lately"))


def waiting_pages(path: Path, at: int = 0, length: int = 0) -> int | None:
    """How many pages of a part of a file wait to be written to the disk; `None` if the kernel does not say."""
    if not sys.platform.startswith("linux"):
        return None
    part, pages = _Range(at, length), _Pages()
    call = ctypes.CDLL(None, use_errno=True).syscall
    with path.open("rb") as file:
        failed = call(
            ctypes.c_long(_CACHESTAT), file.fileno(), ctypes.byref(part), ctypes.byref(pages), ctypes.c_uint(0)
        )
    return None if failed else int(pages.dirty) + int(pages.being_written)


def tells_what_waits(folder: Path) -> bool:
    """Whether the kernel and the file system of a folder say what is not on the disk; some never do."""
    path = folder / "waits"
    try:
        with path.open("wb") as file:
            file.write(b"x" * _STEP)
            file.flush()
            before = waiting_pages(path)
            os.fsync(file.fileno())
            return bool(before) and waiting_pages(path) == 0
    finally:
        path.unlink()


def pieces_of(payload: bytes) -> Sequence[bytes]:
    """Short pieces of a payload, which a store that cuts it into pages leaves whole, except for a few."""
    return [payload[at : at + _PIECE] for at in range(0, len(payload) - _PIECE, _STEP)]


def places_of(pieces: Sequence[bytes], folder: Path) -> dict[bytes, list[tuple[Path, int]]]:
    """In which files of a folder, and where, pieces stand; without those that are nowhere."""
    found: dict[bytes, list[tuple[Path, int]]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for piece in pieces:
            for at in _all_places(data, piece):
                found.setdefault(piece, []).append((path, at))
    return found


def _all_places(data: bytes, piece: bytes) -> Iterator[int]:
    at = data.find(piece)
    while at >= 0:
        yield at
        at = data.find(piece, at + 1)


def waiting_files(places: dict[bytes, list[tuple[Path, int]]]) -> Sequence[str]:
    """The names of the files that hold a piece of which no copy is on the disk."""
    waiting = [each for each in places.values() if all(waiting_pages(path, at, _PIECE) for path, at in each)]
    return sorted({path.name for each in waiting for path, _ in each})
