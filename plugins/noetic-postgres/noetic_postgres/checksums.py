"""Checksums of rows, and the names under which values are found."""

from __future__ import annotations

import hashlib
import struct
import zlib

from noetic_py.journal.stored import Queued
from noetic_py.journal.transforms import pack_scope

__all__ = ["FARTHEST", "Checksums", "Name", "int8"]

FARTHEST = 2**63 - 1
_TWO = struct.Struct("<qq")
_THREE = struct.Struct("<qqq")


def int8(value: int) -> int:
    """A number as the server's `bigint`; what is none becomes -1, no position, fence or version of anything."""
    return value if 0 <= value <= FARTHEST else -1


class Name:
    """Where a key of a scope is found. An index holds no 4 KB keys, so it holds digests."""

    __slots__ = ("key", "packed", "scope", "whole")

    def __init__(self, scope: tuple[str, ...], key: str) -> None:
        self.key = key
        self.packed = pack_scope(scope)
        self.scope = hashlib.sha256(self.packed).digest()
        # No other scope and key give this: the last part is the key, and every part has its length before it.
        self.whole = hashlib.sha256(pack_scope((*scope, key))).digest()


class Checksums:
    """Checksums of rows. They begin at the store's salt and take a row's place in, so a row of elsewhere has another.

    Args:
        salt: The store's.
    """

    def __init__(self, salt: bytes) -> None:
        self._seed = zlib.crc32(salt)

    def head(self, number: int, run_id: str, position: int, fence: int) -> int:
        """Return the checksum of the end of a run's journal and of its owner."""
        return zlib.crc32(run_id.encode(), zlib.crc32(_THREE.pack(number, position, fence), self._seed))

    def summary(self, number: int, summary: bytes) -> int:
        """Return the checksum of a run's summary."""
        return zlib.crc32(summary, zlib.crc32(_TWO.pack(number, 1), self._seed))

    def status(self, number: int, status: str | None) -> int:
        """Return the checksum of a run's status."""
        begun = zlib.crc32(_TWO.pack(number, 2 if status is None else 3), self._seed)
        return zlib.crc32((status or "").encode(), begun)

    def transaction(self, stream: int, last: int, count: int, body: bytes) -> int:
        """Return the checksum of a packed transaction at its place."""
        return zlib.crc32(body, zlib.crc32(_THREE.pack(stream, last, count), self._seed))

    def shared(self, run: int, upto: int, stream: int) -> int:
        """Return the checksum of a part that a fork shares."""
        return zlib.crc32(_THREE.pack(run, upto, stream), self._seed)

    def pair(self, version: int, packed: bytes, key: str, value: bytes) -> int:
        """Return the checksum of the value of a key."""
        name = key.encode()
        begun = zlib.crc32(_THREE.pack(version, len(packed), len(name)), self._seed)
        return zlib.crc32(value, zlib.crc32(name, zlib.crc32(packed, begun)))

    def queued(self, place: Queued) -> int:
        """Return the checksum of a place in a queue, without its time; runs with the same place have the same one."""
        name, behind = place.queue.encode(), f"{place.flow}\0{place.key}" if place.key else place.flow
        begun = zlib.crc32(_TWO.pack(place.priority, len(name)), self._seed)
        return zlib.crc32(behind.encode(), zlib.crc32(name, begun))

    def budget(self, name: str, period: str, body: bytes) -> int:
        """Return the checksum of a row of a shared budget."""
        names = f"{name}\0{period}".encode()
        return zlib.crc32(body, zlib.crc32(names, zlib.crc32(_TWO.pack(len(names), len(body)), self._seed)))

    def signal(self, run: int, number: int, key: str, body: bytes) -> int:
        """Return the checksum of a signal."""
        name = key.encode()
        begun = zlib.crc32(_THREE.pack(run, number, len(name)), self._seed)
        return zlib.crc32(body, zlib.crc32(name, begun))
