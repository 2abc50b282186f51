"""`InMemoryBackend`: journals in this process, as references, for as long as the backend lives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attrs import define, field

from noetic_py.checkpoints.backend import Head, Lease, Record
from noetic_py.errors import CodecError, LeaseLost, PositionConflict, RunBusy, RunNotFound
from noetic_py.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import JournalRecord

__all__ = ["InMemoryBackend"]


@define(eq=False)
class _Journal:
    """A run's records, and who may append to them."""

    records: list[JournalRecord] = field(factory=list["JournalRecord"])
    ends: list[int] = field(factory=list[int])
    fence: int = 0
    held: Lease | None = None
    until: float = 0.0


class InMemoryBackend:
    """Keeps journals in memory. Nothing is encoded, and nothing survives the process.

    `Harness(checkpoints=InMemoryBackend())` keeps the journals of its runs until `delete` is called; a harness without
    a backend keeps each only as long as its result.

    Args:
        runtime: The clock that leases run by.
    """

    def __init__(self, *, runtime: Runtime = SYSTEM) -> None:
        self._runtime = runtime
        self._runs: dict[str, _Journal] = {}

    @property
    def durability(self) -> Literal["none", "process", "power"]:
        """`"none"`: it dies with the process."""
        return "none"

    @property
    def shared(self) -> bool:
        """`False`: no other process sees it."""
        return False

    def journal(self, run_id: str) -> list[JournalRecord]:
        """The list that a run of this process writes to.

        Raises:
            RunBusy: The run is here already.
        """
        if run_id in self._runs:
            raise RunBusy(f"run {run_id!r} is here already", hint="leave out run_id=, or delete the old run")
        kept = self._runs[run_id] = _Journal()
        return kept.records

    def _get(self, run_id: str) -> _Journal:
        kept = self._runs.get(run_id)
        if kept is None:
            raise RunNotFound("there is no such run", hint="look at the run's id, and at the backend it was written to")
        return kept

    async def append(self, run_id: str, *, expected_position: int, fence: int, records: Sequence[Record]) -> int:
        """Append one transaction; see [`CheckpointBackend`][noetic_py.CheckpointBackend].

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CodecError: A record holds no reference.
        """
        kept = self._runs.get(run_id) or _Journal()
        if fence != kept.fence:
            raise LeaseLost(f"fence {fence} is not {kept.fence}, the latest", hint="acquire the run again")
        if expected_position != len(kept.records):
            raise PositionConflict(
                f"the journal ends at {len(kept.records)}, not at {expected_position}",
                hint="read it again, then append",
            )
        values = [record.value for record in records if record.value is not None]
        if len(values) != len(records):
            raise CodecError("a record without its value cannot be kept in memory", where="records")
        kept.records.extend(values)
        kept.ends.append(len(kept.records))
        self._runs[run_id] = kept
        return len(kept.records)

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on.

        Raises:
            RunNotFound: There is no such run.
        """
        page = self._get(run_id).records[after : after + limit]
        return [Record(type(value).__name__, value.path, value=value) for value in page]

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        kept = self._runs.get(run_id)
        return None if kept is None else Head(len(kept.records), kept.fence)

    async def fork(self, run_id: str, *, at: int, new_run_id: str) -> None:
        """Make a run whose journal is the first `at` records of another's.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is no transaction's end, or the new run exists.
        """
        kept = self._get(run_id)
        place = bisect_left(kept.ends, at)
        if at != 0 and at != len(kept.records) and (place == len(kept.ends) or kept.ends[place] != at):
            raise PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")
        if new_run_id in self._runs:
            raise PositionConflict(f"run {new_run_id!r} exists already", hint="fork to a new id")
        ends = [end for end in kept.ends if end <= at]
        self._runs[new_run_id] = _Journal(kept.records[:at], ends)

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error."""
        self._runs.pop(run_id, None)

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer for `ttl` seconds.

        Raises:
            RunBusy: Another owner's lease has not run out.
        """
        kept = self._runs.get(run_id) or _Journal()
        now = self._runtime.monotonic()
        if kept.held is not None and now < kept.until:
            raise RunBusy("another owner holds the run", hint="wait for it to end, or for its lease to run out")
        kept.fence += 1
        kept.held = Lease(run_id, kept.fence)
        kept.until = now + ttl
        self._runs[run_id] = kept
        return kept.held

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        kept = self._runs.get(lease.run_id)
        if kept is None or kept.held != lease:
            raise LeaseLost("the lease is not held any more", hint="acquire the run again")
        kept.until = self._runtime.monotonic() + ttl
        return lease

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        kept = self._runs.get(lease.run_id)
        if kept is not None and kept.held == lease:
            kept.held = None
