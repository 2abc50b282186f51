"""Rules that are the same for every store: why something is refused; stored times, pages of records and runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from noetic_py.errors import (
    CorruptRecord,
    LeaseLost,
    NoeticError,
    PositionConflict,
    RunBusy,
    VersionConflict,
)
from noetic_py.journal.stored import Record, StoredValue, Transaction

__all__ = [
    "RESTORE",
    "Page",
    "Pruning",
    "check_turn",
    "check_version",
    "is_changed",
    "is_elsewhere",
    "is_fenced",
    "is_held",
    "is_owned",
    "is_taken",
    "micros",
    "moment",
    "no_end",
    "not_held",
    "refusal",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(when: datetime) -> int:
    """A time as it is stored."""
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(stored: int) -> datetime:
    """A stored time."""
    try:
        return _EPOCH + timedelta(microseconds=stored)
    except OverflowError:
        raise CorruptRecord("a stored time is none") from None


_PAGE_BYTES = 32 * 1024 * 1024


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


RESTORE = "restore a copy of it"
"""What there is to do about damage."""


def refusal(given: Transaction, position: int, fence: int) -> NoeticError | None:
    """Why a transaction is not taken where a journal ends here and has this owner; `None` when it is."""
    if given.fence != fence:
        return is_fenced(given, fence)
    if given.expected_position != position:
        return is_elsewhere(given, position)
    return None


def check_turn(given: Transaction, position: int, fence: int) -> None:
    """Refuse a transaction whose turn it is not.

    Raises:
        LeaseLost: The fence is not the latest owner's.
        PositionConflict: The journal does not end where it should.
    """
    error = refusal(given, position, fence)
    if error is not None:
        raise error


def check_version(found: StoredValue | None, expected: int | None) -> None:
    """Refuse to write over another version.

    Raises:
        VersionConflict: Another one is there.
    """
    version = 0 if found is None else found.version
    if expected is not None and expected != version:
        raise is_changed(version, expected)


def is_fenced(given: Transaction, fence: object) -> LeaseLost:
    """The error for a transaction of an owner that is not the latest one."""
    return LeaseLost(f"fence {given.fence} is not {fence}, the latest", hint="acquire the run again")


def is_elsewhere(given: Transaction, position: object) -> PositionConflict:
    """The error for a transaction that does not begin where the journal ends."""
    return PositionConflict(
        f"the journal ends at {position}, not at {given.expected_position}", hint="read it again, then append"
    )


def is_changed(version: object, expected: int | None) -> VersionConflict:
    """The error for a key that has another version than expected."""
    return VersionConflict(f"the key has version {version}, not {expected}", hint="read it again, then write")


def no_end(at: int) -> PositionConflict:
    """The error for a fork in the middle of a transaction."""
    return PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")


def is_taken(run_id: str) -> PositionConflict:
    """The error for a fork to a run that is there."""
    return PositionConflict(f"run {run_id!r} exists already", hint="fork to a new id")


def is_owned(end: str) -> RunBusy:
    """The error for a run that cannot be acquired; `end` is what to wait for beside the run's own end."""
    return RunBusy("another owner holds the run", hint=f"wait for it to end, or for {end}")


def is_held() -> RunBusy:
    """The error for a run that cannot be deleted."""
    return RunBusy("an owner holds the run", hint="wait for it to end, then delete it")


def not_held() -> LeaseLost:
    """The error for a lease that is over."""
    return LeaseLost("the lease is not held any more", hint="acquire the run again")


class Pruning:
    """Decides which runs go, the newest first.

    Args:
        kept: How many were left on the pages before.
        before: Only runs that were last written before this moment.
        keep: Leave so many of the newest.
        statuses: Only runs with one of these.
    """

    def __init__(self, kept: int, before: datetime | None, keep: int | None, statuses: Sequence[str] | None) -> None:
        self.kept = kept
        self._before = None if before is None else micros(before)
        self._keep = keep
        self._statuses = statuses

    def takes(self, status: str | None, updated: int) -> bool:
        """Whether the next run goes, unless it is held."""
        if self._statuses is not None and status not in self._statuses:
            return False
        if self._keep is not None and self.kept < self._keep:
            self.kept += 1
            return False
        return self._before is None or updated < self._before
