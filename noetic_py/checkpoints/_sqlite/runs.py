"""Rows of runs: what a run's row holds, and that it is what was written."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from attrs import define

from noetic_py.errors import CorruptRecord

__all__ = ["LONGEST", "MOST", "POSITION_BITS", "Run", "Sums", "place"]

POSITION_BITS = 27
"""How many bits of a place are the position."""
LONGEST = 1 << POSITION_BITS
"""Below this is the position of every record: 134 million."""
MOST = 1 << 63 - POSITION_BITS
"""Below this is the number of every run: 69 billion."""

_HEAD = struct.Struct("<qqqqq")
_CARD = struct.Struct("<qqq?")
_THREE = struct.Struct("<qqq")


def place(stream: int, position: int) -> int:
    """Where a transaction is: the stream that it belongs to, and the position of its last record."""
    return stream << POSITION_BITS | position


@define(eq=False)
class Run:
    """One row of `runs`; times are microseconds since 1970.

    Attributes:
        id: Its number, which is the number of the stream that it appends to as well.
        owner: Who holds it, 0 for nobody.
    """

    id: int
    run_id: str
    position: int
    fence: int
    owner: int
    updated: int
    crc: int
    created: int
    status: str | None
    card: bytes
    card_crc: int


class Sums:
    """Checksums of rows. They begin at the file's salt and take a row's place in, so a row of elsewhere has another.

    Args:
        seed: The checksum of the file's salt.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def head(self, run: Run) -> int:
        """Of a run's position, fence and owner."""
        numbers = _HEAD.pack(run.id, run.position, run.fence, run.owner, run.updated)
        return zlib.crc32(run.run_id.encode(), zlib.crc32(numbers, self._seed))

    def card(self, run: Run) -> int:
        """Of a run's card and status."""
        status = b"" if run.status is None else run.status.encode()
        begun = zlib.crc32(_CARD.pack(run.id, run.created, len(status), run.status is None), self._seed)
        return zlib.crc32(run.card, zlib.crc32(status, begun))

    def transaction(self, stream: int, last: int, count: int, body: bytes) -> int:
        """Of a packed transaction at its place."""
        return zlib.crc32(body, zlib.crc32(_THREE.pack(stream, last, count), self._seed))

    def shared(self, run: int, upto: int, stream: int) -> int:
        """Of a part that a fork shares."""
        return zlib.crc32(_THREE.pack(run, upto, stream), self._seed)

    def pair(self, version: int, scope: bytes, key: str, value: bytes) -> int:
        """Of the value of a key."""
        name = key.encode()
        begun = zlib.crc32(_THREE.pack(version, len(scope), len(name)), self._seed)
        return zlib.crc32(value, zlib.crc32(name, zlib.crc32(scope, begun)))

    def ticks(self, value: int) -> int:
        """Of the file's counter."""
        return zlib.crc32(str(value).encode(), self._seed)

    def checked_run(self, row: tuple[Any, ...], *, card: bool) -> Run:
        """A row of `runs`.

        Args:
            row: Its columns. A value of a wrong type has no checksum, so the types are not looked at one by one.
            card: Whether the card and the status are wanted too.

        Raises:
            CorruptRecord: It is not what was written.
        """
        try:
            run = Run(*row)
            if run.crc == self.head(run) and (not card or run.card_crc == self.card(run)):
                return run
        except (TypeError, AttributeError, struct.error):
            pass
        raise CorruptRecord("the row of a run is damaged", hint="restore a copy of the file")
