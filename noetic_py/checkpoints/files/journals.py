"""Journals as files that only grow, one frame a transaction, and the small file of each run."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from typing import BinaryIO

from attrs import frozen

from noetic_py.checkpoints.checks import RESTORE, moment
from noetic_py.checkpoints.files.folder import decode_file, encode_file, open_file, write_all
from noetic_py.errors import CorruptRecord
from noetic_py.journal.stored import RunEntry
from noetic_py.journal.transforms import Packed

_HEAD = struct.Struct("<IIQII")
_PLACE = struct.Struct("<Q")
_DIGEST = 32


class JournalDamaged(Exception):
    """A journal is not what was written; private, for callers that know which."""


@frozen
class FileTransaction:
    """One transaction.

    Attributes:
        first: The position before its first record.
        count: How many records it holds.
        digests: The SHA-256 of its large payloads.
        body: Its records.
        end: Where the next frame begins in the file.
    """

    first: int
    count: int
    digests: tuple[bytes, ...]
    body: bytes
    end: int


def framed(packed: Packed, first: int, count: int, *, stream: int, seed: int) -> bytes:
    """The bytes of a frame.

    Args:
        packed: Its transaction.
        first: The position before its first record.
        count: How many records it holds.
        stream: The number of the run that writes it.
        seed: Where its checksum begins.
    """
    rest = b"".join((*packed.blobs, packed.body))
    head = _HEAD.pack(0, len(rest), first, count, len(packed.blobs))
    return _HEAD.pack(_sum(head, rest, stream, seed), len(rest), first, count, len(packed.blobs)) + rest


def _sum(head: bytes, rest: bytes, stream: int, seed: int) -> int:
    return zlib.crc32(rest, zlib.crc32(head[4:], zlib.crc32(_PLACE.pack(stream), seed)))


class Journal:
    """An open journal.

    Args:
        path: The file.
        stream: The number of the run that writes it.
        seed: Where checksums begin.
        write: Whether it is to be written.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, *, stream: int, seed: int, write: bool = False) -> None:
        self._file: BinaryIO = open(open_file(path, os.O_RDWR if write else os.O_RDONLY), "rb")  # noqa: SIM115  # closed by `close`
        self._stream = stream
        self._seed = seed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self._file.fileno()).st_size

    def after(self, first: int, offset: int, limit: int) -> tuple[int, int]:
        """Where the frame ends that lies at an offset, by its own words, which are not looked at further.

        Args:
            first: The position before it.
            offset: Where it begins.
            limit: Where the journal ends.

        Returns:
            The position of its last record, and where the next frame begins.

        Raises:
            JournalDamaged: There is none.
        """
        self._file.seek(offset)
        head = self._file.read(_HEAD.size)
        if len(head) == _HEAD.size:
            _, size, found, count, _ = _HEAD.unpack(head)
            end = offset + _HEAD.size + size
            if found == first and count and end <= limit:
                return first + count, end
        raise JournalDamaged

    def frame(self, first: int, offset: int, limit: int) -> FileTransaction:
        """The frame at an offset.

        Args:
            first: The position before it.
            offset: Where it begins.
            limit: Where the journal ends.

        Raises:
            JournalDamaged: It is not what was written there.
        """
        last, end = self.after(first, offset, limit)
        self._file.seek(offset)
        head = self._file.read(_HEAD.size)
        rest = self._file.read(end - offset - _HEAD.size)
        apart: int = _HEAD.unpack(head)[4] * _DIGEST
        if len(head) + len(rest) != end - offset or apart > len(rest):
            raise JournalDamaged
        if _HEAD.unpack(head)[0] != _sum(head, rest, self._stream, self._seed):
            raise JournalDamaged
        digests = tuple(rest[at : at + _DIGEST] for at in range(0, apart, _DIGEST))
        return FileTransaction(first, last - first, digests, rest[apart:], end)

    def check_tail(self, position: int, end: int) -> None:
        """Look at what lies behind the end.

        Args:
            position: Where the journal ends.
            end: Where it ends in the file.

        Raises:
            JournalDamaged: The file is shorter, or more lies there than one append may leave.
        """
        size = self.size
        if size < end:
            raise JournalDamaged
        if size == end:
            return
        try:
            frame = self.frame(position, end, size)
        except JournalDamaged:
            return
        if frame.end != size:
            raise JournalDamaged

    def append(self, data: bytes, position: int, end: int) -> None:
        """Write a frame behind the end, over what an append has left that never ended; it is on the disk then.

        Raises:
            JournalDamaged: As of `check_tail`.
            OSError: It could not be written; the journal is as it was.
        """
        self.check_tail(position, end)
        handle = self._file.fileno()
        try:
            if self.size > end:
                os.ftruncate(handle, end)
            os.lseek(handle, end, os.SEEK_SET)
            write_all(handle, data)
            os.fsync(handle)
        except OSError:
            # Where even this fails, the next append does it.
            with suppress(OSError):
                os.ftruncate(handle, end)
            raise


@frozen
class JournalPart:
    """A part of a run's journal: one file.

    Attributes:
        stream: The number of the run that writes it.
        upto: The position that it is read up to.
        end: Where that is in the file.
    """

    stream: int
    upto: int
    end: int


@frozen
class RunHead:
    """A run; times are microseconds since 1970.

    Attributes:
        run_id: The run.
        number: Its number, later runs have larger ones.
        parts: Its journal, the last part its own and the others shared with what it was forked from.
        fence: Of its latest owner.
        owner: The number of the lease that holds it, 0 for none.
        created: When it was first written.
        updated: When it was last written.
        status: The text stored with it.
        summary: The bytes stored with it.
    """

    run_id: str
    number: int
    parts: tuple[JournalPart, ...]
    fence: int
    owner: int
    created: int
    updated: int
    status: str | None
    summary: bytes

    @property
    def own(self) -> JournalPart:
        """The part that it appends to."""
        return self.parts[-1]

    @property
    def position(self) -> int:
        """Where its journal ends."""
        return self.own.upto

    def entry(self, *, held: bool) -> RunEntry:
        """The run, as lists show it."""
        return RunEntry(
            run_id=self.run_id,
            position=self.position,
            status=self.status,
            summary=self.summary,
            created=moment(self.created),
            updated=moment(self.updated),
            held=held,
            cursor=self.number,
        )


def store_head(head: RunHead, *, seed: int) -> bytes:
    """The content of a run's small file."""
    fields: dict[str, object] = {
        "run_id": head.run_id,
        "number": head.number,
        "position": head.position,
        "status": head.status,
        "fence": head.fence,
        "owner": head.owner,
        "created": head.created,
        "updated": head.updated,
        "parts": [[part.stream, part.upto, part.end] for part in head.parts],
    }
    return encode_file(fields, head.summary, seed=seed)


def load_head(content: bytes, what: str, *, seed: int) -> RunHead:
    """The head that `store_head` has stored.

    Raises:
        CorruptRecord: It is not what was written.
    """
    fields, summary = decode_file(content, what, seed=seed)
    match fields:
        case {
            "run_id": str(run_id),
            "number": int(number),
            "status": (str() | None) as status,
            "fence": int(fence),
            "owner": int(owner),
            "created": int(created),
            "updated": int(updated),
            "parts": [*parts],
        } if parts:
            shares = tuple(JournalPart(*part) for part in parts)
            return RunHead(run_id, number, shares, fence, owner, created, updated, status, summary)
        case _:
            raise CorruptRecord(f"{what} is none", hint=RESTORE)
