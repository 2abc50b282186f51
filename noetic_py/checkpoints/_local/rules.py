"""What is refused by the state of a store: in the same words whatever it is made of."""

from __future__ import annotations

from collections.abc import Collection

from noetic_py.checkpoints.backend import StoredValue, Transaction
from noetic_py.errors import (
    LeaseLost,
    PositionConflict,
    RunBusy,
    RunNotFound,
    VersionConflict,
)

__all__ = ["RESTORE", "Pruning", "check_turn", "check_version", "is_held", "is_taken", "no_end", "no_run", "not_held"]

RESTORE = "restore a copy of it"
"""What there is to do about damage."""


def check_turn(given: Transaction, position: int, fence: int) -> None:
    """Refuse a transaction whose turn it is not.

    Raises:
        LeaseLost: The fence is not the latest owner's.
        PositionConflict: The journal does not end where it should.
    """
    if given.fence != fence:
        raise LeaseLost(f"fence {given.fence} is not {fence}, the latest", hint="acquire the run again")
    if given.expected_position != position:
        raise PositionConflict(
            f"the journal ends at {position}, not at {given.expected_position}", hint="read it again, then append"
        )


def check_version(found: StoredValue | None, expected: int | None) -> None:
    """Refuse to write over another version.

    Raises:
        VersionConflict: Another one is there.
    """
    version = 0 if found is None else found.version
    if expected is not None and expected != version:
        raise VersionConflict(f"the key has version {version}, not {expected}", hint="read it again, then write")


def no_run() -> RunNotFound:
    """The error for a run that is not there."""
    return RunNotFound("there is no such run", hint="look at the run's id, and at the backend it was written to")


def no_end(at: int) -> PositionConflict:
    """The error for a fork in the middle of a transaction."""
    return PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")


def is_taken(run_id: str) -> PositionConflict:
    """The error for a fork to a run that is there."""
    return PositionConflict(f"run {run_id!r} exists already", hint="fork to a new id")


def is_held(*, deleting: bool) -> RunBusy:
    """The error for a run that an owner holds."""
    if deleting:
        return RunBusy("an owner holds the run", hint="wait for it to end, then delete it")
    return RunBusy("another owner holds the run", hint="wait for it to end, or for its process to")


def not_held() -> LeaseLost:
    """The error for a lease that is over."""
    return LeaseLost("the lease is not held any more", hint="acquire the run again")


class Pruning:
    """Decides which runs go, the newest first.

    Args:
        kept: How many were left on the pages before.
        before: Only runs that were last written before this moment, in microseconds since 1970.
        keep: Leave so many of the newest.
        statuses: Only runs with one of these.
    """

    def __init__(self, kept: int, before: int | None, keep: int | None, statuses: Collection[str] | None) -> None:
        self.kept = kept
        self._before = before
        self._keep = keep
        self._statuses = statuses

    def takes(self, status: str | None, updated: int) -> bool:
        """Whether the next run goes, unless somebody holds it."""
        if self._statuses is not None and status not in self._statuses:
            return False
        if self._keep is not None and self.kept < self._keep:
            self.kept += 1
            return False
        return self._before is None or updated < self._before
