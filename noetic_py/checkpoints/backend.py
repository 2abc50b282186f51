"""What stores journals: the contract that every backend keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import JournalRecord

__all__ = ["CheckpointBackend", "Head", "Lease", "Record"]


@frozen
class Record:
    """One stored record of a journal.

    Attributes:
        kind: The record's class, such as `"StepFinished"`.
        path: The step's frames.
        payload: Its stored form; empty in a backend that keeps references.
        value: The record itself, in a backend that keeps references; `None` otherwise.
    """

    kind: str
    path: tuple[str, ...]
    payload: bytes = b""
    value: JournalRecord | None = None


@frozen
class Lease:
    """The right to write a run.

    Attributes:
        run_id: The run.
        fence: Grows with every owner; a write with an older one is refused.
    """

    run_id: str
    fence: int


@frozen
class Head:
    """Where a run's journal ends.

    Attributes:
        position: How many records it holds.
        fence: The fence of its latest owner, 0 before the first.
    """

    position: int
    fence: int


class CheckpointBackend(Protocol):
    """Stores journals, one a run: appended to at an expected position by the one owner of a lease."""

    @property
    def durability(self) -> Literal["none", "process", "power"]:
        """What a finished append survives: nothing, the death of the process, the loss of power."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other machines see it."""
        ...

    async def append(self, run_id: str, *, expected_position: int, fence: int, records: Sequence[Record]) -> int:
        """Append one transaction, whole or not at all.

        Returns:
            The new position.

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on.

        Raises:
            RunNotFound: There is no such run.
        """
        ...

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        ...

    async def fork(self, run_id: str, *, at: int, new_run_id: str) -> None:
        """Make a run whose journal is the first `at` records of another's.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is no transaction's end, or the new run exists.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error."""
        ...

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer for `ttl` seconds.

        Raises:
            RunBusy: Another owner's lease has not run out.
        """
        ...

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds.

        Raises:
            LeaseLost: It ran out and somebody else has the run, or it was released.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        ...
