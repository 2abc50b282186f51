"""The values that a backend stores: records, transactions, leases, heads and entries of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from noetic_py.journal.records import JournalRecord


_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


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
class Transaction:
    """What is appended to one run, whole or not at all.

    Attributes:
        run_id: The run.
        expected_position: Where its journal has to end.
        fence: The writer's fence; 0 for a run that never had an owner. Of one that acquires the run the fence of the
            owner before, where no other may have come since, or 0.
        records: What is appended; may be empty when only the summary or the status changes.
        summary: Replaces the run's summary; `None` leaves it.
        status: Replaces the run's status; `None` leaves it.
        acquire: Seconds for which the writer becomes the run's owner with it; `None` for one that is the owner.
        release: Whether the owner's lease ends with it.
    """

    run_id: str
    expected_position: int
    fence: int
    records: Sequence[Record]
    summary: bytes | None = None
    status: str | None = None
    acquire: float | None = None
    release: bool = False


@frozen
class Lease:
    """The right to write a run.

    Attributes:
        run_id: The run.
        fence: Grows with every owner, also over a deletion of the run; a write with an older one is refused.
        position: Where the run's journal ended when this was given; `None` where the backend does not say.
    """

    run_id: str
    fence: int
    position: int | None = field(default=None, eq=False)


@frozen
class Head:
    """Where a run's journal ends.

    Attributes:
        position: How many records it holds.
        fence: The fence of its latest owner, 0 before the first.
    """

    position: int
    fence: int


@frozen
class RunEntry:
    """One run in a list.

    Attributes:
        run_id: The run.
        position: How many records its journal holds.
        status: The text that was stored with it, `None` when there was none.
        summary: The bytes that were stored with it.
        created: When the run was first written; of the wall clock, in UTC, for display.
        updated: When it was last written.
        held: Whether an owner holds it now.
        cursor: Its place in the list, for `after=`; later runs have larger ones.
        problem: Why nothing else here can be believed, when what is stored of the run is damaged or not verified.
    """

    run_id: str
    position: int
    status: str | None
    summary: bytes
    created: datetime
    updated: datetime
    held: bool
    cursor: int
    problem: str | None = None

    @classmethod
    def damaged(cls, run_id: object, cursor: int, problem: str) -> RunEntry:
        """The list entry of a run that cannot be read; other runs are still listed.

        Args:
            run_id: The id as far as it is known.
            cursor: Its place in the list.
            problem: What is wrong.
        """
        name = run_id if isinstance(run_id, str) else f"(run {cursor})"
        return cls(name, 0, None, b"", _NEVER, _NEVER, held=False, cursor=cursor, problem=problem)


@frozen
class StoredValue:
    """The value of a key.

    Attributes:
        key: The key.
        value: The bytes.
        version: Changes with every write, and never comes back, also when the key was removed in between.
    """

    key: str
    value: bytes
    version: int


@frozen
class Stats:
    """How much a backend holds.

    Attributes:
        runs: Runs.
        records: Records of their journals; a prefix that a fork shares counts in both.
        values: Keys that have a value.
        blobs: Large payloads that are stored apart.
        bytes: Size of the store, in bytes.
    """

    runs: int
    records: int
    values: int
    blobs: int
    bytes: int
