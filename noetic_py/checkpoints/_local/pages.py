"""Pages: of records while they are read, and of runs while they are pruned."""

from __future__ import annotations

from attrs import frozen

from noetic_py.checkpoints.backend import Record

__all__ = ["FAR", "Page", "PrunePage"]

FAR = 2**63 - 1
"""Above the number of every run."""
_PAGE_BYTES = 32 * 1024 * 1024


@frozen
class PrunePage:
    """How far a prune has come.

    Attributes:
        below: The number of the run to go on below; `None` when nothing is left.
        kept: How many of the newest were left.
        deleted: How many of this page are gone.
    """

    below: int | None = FAR
    kept: int = 0
    deleted: int = 0


class Page:
    """A page of records while it is read."""

    def __init__(self, after: int, limit: int) -> None:
        self.at = after
        self.limit = limit
        self.records: list[Record] = []
        self._bytes = 0

    def add(self, records: list[Record], last: int) -> None:
        """Take in the records of a transaction, the last of them at position `last`."""
        self.records += records
        self._bytes += sum(len(record.payload) for record in records)
        self.at = last

    @property
    def full(self) -> bool:
        """Whether it holds enough records, or enough bytes."""
        return len(self.records) >= self.limit or self._bytes >= _PAGE_BYTES
