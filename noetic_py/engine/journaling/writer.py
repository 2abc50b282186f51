"""What one run is written through: its records, encoded and in order, become commits of its owner."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.codec import Codec
from noetic_py.core.runtime import SYSTEM
from noetic_py.core.types import Durability, T
from noetic_py.core.values import is_list
from noetic_py.engine.frame import failure_of
from noetic_py.journal import values
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.records import JournalRecord, dump_record
from noetic_py.journal.stored import BudgetChange, Claim, Lease, Queued, Record, Signal, Transaction
from noetic_py.redaction import with_article

if TYPE_CHECKING:
    from noetic_py.context.step import Retry
    from noetic_py.core.telemetry import Metrics

TTL = 30.0
"""Seconds after which a run whose owner is silent may be taken over, where a harness says nothing else."""
_SAFE = 0.8
"""The part of that time in which no other clock can be so fast that another owner has come already."""
_LOOKS = 10
"""How often an owner looks between two renewals for what other processes ask of the run."""
_MOST_TOGETHER = 60 * 1024 * 1024
"""How many bytes of several commits are written as one transaction, of which backends take 64 MiB."""
HOLDS = "budgets"
"""The field of a run's summary that names the rows of shared budgets which may hold something for it."""
ENDED = "ended:"
"""What the key of a signal begins with that says which run has ended."""
PARENT = "parent"
"""The field of a run's summary that names the run which waits for its end."""
SUMMARIES = "folded"
"""The field of a run's summary that names the records which sum up rounds, by their positions."""


class Settlements(Protocol):
    """What a run has to settle with shared budgets."""

    @property
    def open(self) -> bool:
        """Whether there is something."""
        ...

    def changes(self) -> Sequence[BudgetChange]:
        """What the next commit does."""
        ...

    def settled(self) -> None:
        """It was taken."""
        ...


class PlannedWrite(Protocol):
    """A transaction of another run that is committed together with one of a run."""

    @property
    def transaction(self) -> Transaction:
        """What is written."""
        ...

    def written(self, lease: Lease, /) -> None:
        """It was committed, and its journal ends where the lease says."""
        ...


class TurnWrite(PlannedWrite, Protocol):
    """The write that begins the turn of a session, of which a run is the turn."""

    async def renew(self) -> None:
        """Renew the lease of the session, while it is held."""
        ...


@frozen(eq=False)
class ClaimedRun:
    """A run that a worker has claimed, and has not read yet.

    Attributes:
        claim: The claim.
        asked: When it was asked for, by the machine's monotonic clock.
        retry: How often the worker tries a run that fails, and how long it waits between; `None` for once.
    """

    claim: Claim
    asked: float
    retry: Retry | None = None


@frozen(eq=False)
class RunStorage:
    """Where and how a run is stored.

    Attributes:
        backend: The backend that stores it.
        mode: When finished steps are committed.
        source: Where its flow can be imported from, `None` when it was not given.
        again: Whether a stored run of the same id is resumed instead of refused.
        turn: What its session writes together with its beginning, where it is a turn of one. The lease of the session
            is renewed with that of the run.
        followed: Whether the commit of its session is to store its end too.
        queued: Where a new run waits for a worker that begins it; `None` where this process does.
        claimed: The claim of the worker that goes on with it.
        ttl: Seconds after which it may be taken over when its owner is silent.
        reads: Whether only the result of a run that is over is asked for: then nothing is written, without a lease.
    """

    backend: CheckpointBackend
    mode: Durability
    source: str | None
    again: bool = False
    turn: TurnWrite | None = None
    followed: bool = False
    queued: Queued | None = None
    claimed: ClaimedRun | None = None
    ttl: float = TTL
    reads: bool = False


def parent_in(summary: bytes) -> str | None:
    """The run that waits for the end of another one, by that one's summary."""
    parent = summary_fields(summary).get(PARENT)
    return parent if isinstance(parent, str) else None


def ended_signals(run_id: str, parent: str | None) -> Sequence[Signal]:
    """What wakes the run that waits for the end of another one."""
    return () if parent is None else (Signal(parent, f"{ENDED}{run_id}", b""),)


def fit_together(*transactions: Transaction) -> bool:
    """Whether transactions of several runs are written as one."""
    return sum(len(record.payload) for each in transactions for record in each.records) <= _MOST_TOGETHER


class RunWriter:
    """Where one run is written to.

    Attributes:
        backend: Where the run is kept.
        codec: For the run's values.
        fence: The owner's.
        mode: When finished steps are committed.
        summary: The encoded run summary that the next commit stores; `None` leaves the stored one.
        summary_fields: The fields that every summary of this run has.
        followed: Whether the commit of its session is to store its end too.
        ending: What that has to store, once the run has ended.
        metrics: What measures its commits, when something does.
        size: How many bytes of records this process has encoded for it.
        unread: How many records of the journal this process does not hold, because summaries stand for them.
        hurried: Whether something waits for the next commit that is not to wait for the next step.
        claimed: The claim of the worker that has the run, if it came out of a queue.
        read: Up to which number its owner has read the signals in its inbox.
        budgets: What it has to settle with shared budgets, where it has some.
        parent: The run that waits for its end.
    """

    def __init__(self, storage: RunStorage, run_id: str, codec: Codec, *, position: int = 0) -> None:
        self.codec = codec
        self.mode = storage.mode
        self.followed = storage.followed
        self.fence = 0
        self.summary: bytes | None = None
        self.summary_fields: Mapping[str, object] = {}
        self.status: str | None = None
        self.backend = storage.backend
        self.ending: Transaction | None = None
        self.claimed = storage.claimed
        self._reads = storage.reads
        self._ttl = storage.ttl
        self._turn = storage.turn
        self._queued = storage.queued
        self._may_be_queued = position > 0
        self.run_id = run_id
        self.budgets: Settlements | None = None
        self.parent: str | None = None
        self._lease: Lease | None = None
        # What the commit of the last record does besides: it gives the run up.
        self._ending: Callable[[Transaction], Transaction] | None = None
        self.metrics: Metrics | None = None
        self.hurried = anyio.Event()
        self.unread = self.size = self.read = 0
        # Whether the next commit takes signals out of the inbox.
        self._received = False
        # How many records of the journal have been encoded, and how many of them are in the backend.
        self._staged = position
        self._written = position
        self._queue: list[Record] = []
        # What is committed with the last of the records that wait.
        self._beside: list[PlannedWrite] = []
        # How many records each commit has added to these, and of how many bytes.
        self._commits: deque[tuple[int, int]] = deque()
        # The record too: while it is here, no other one can have its id.
        self._ready: dict[int, tuple[JournalRecord, Record]] = {}
        # Records that wait for the next commit, by path: of several for one path only the last is written.
        self._put_off: dict[values.Path, tuple[JournalRecord, Record]] = {}
        # Whether a commit is in progress, and the event that steps wait for which need the next one.
        self._writing = False
        self._next: anyio.Event | None = None
        self._poison: errors.CheckpointError | None = None
        # When the lease was certainly this process's; of the machine's own clock, whatever the run's does.
        self._renewed = 0.0

    async def begin(self, journal: list[JournalRecord]) -> None:
        """Store how a new run begins, and become its owner unless it is queued; and the turn of its session, if any.

        Raises:
            RunBusy: Another owner has it.
            PositionConflict: There is such a run already.
            CheckpointError: The backend has not taken it.
        """
        first = self.first(journal)
        given = [first]
        if self._turn is not None:
            # In a backend that writes them in order, a turn without a run is closed by the next one.
            given.insert(0, self._turn.transaction)
        asked = SYSTEM.monotonic()
        leases = await self._measured(partial(self.backend.commit, given))
        if self._turn is not None:
            self._turn.written(leases[0])
        if not first.release:
            self.own(leases[-1], asked)
        self._written += len(first.records)

    def first(self, journal: list[JournalRecord]) -> Transaction:
        """How a new run begins."""
        self.stage(journal)
        first = self._taken() if self.mode == "step" else Transaction(self.run_id, 0, 0, ())
        # A queued run is given up at once; without an owner a run that is there already would be found by its fence.
        return evolve(first, acquire=self._ttl, release=self._queued is not None, queued=self._queued)

    def add_run(self, planned: PlannedWrite) -> None:
        """Have another run begin in the commit of what is appended next."""
        self._beside.append(planned)

    def own(self, lease: Lease, asked: float) -> None:
        """Write as the owner of a lease, which was asked for at this moment of the machine's monotonic clock."""
        self._lease, self.fence, self._renewed = lease, lease.fence, asked

    def hurry(self) -> None:
        """Have what was appended stored soon, and not only with the next step's commit."""
        self.hurried.set()

    def set_summary(self, **more: object) -> None:
        """Store the run summary, with these fields added, in the next commit."""
        self.summary = json.dumps({**self.summary_fields, **more}).encode()

    def name_summaries(self, positions: Sequence[int]) -> None:
        """Have every summary of the run from now on name these records, which sum up rounds of its loops."""
        self.summary_fields = {**self.summary_fields, SUMMARIES: [*positions]}

    def prepare(self, record: JournalRecord) -> None:
        """Encode a record before it is appended, so that what cannot be stored fails its own step.

        Raises:
            CodecError: Something in it cannot be stored.
            LimitExceeded: It is too long, or nested too deep.
        """
        self._ready[id(record)] = (record, dump_record(record, self.codec))

    def put_off(self, record: JournalRecord, stored: Record) -> None:
        """Have a record appended with the next commit, in place of an earlier one of its path."""
        self._put_off[record.path] = (record, stored)

    def drop_put_off(self, path: values.Path) -> None:
        """Discard what was to be appended for a path and below it."""
        for each in [each for each in self._put_off if each[: len(path)] == path]:
            del self._put_off[each]

    def settle(self, journal: list[JournalRecord]) -> None:
        """Append what was put off: before a record that is to be the last one of its transaction."""
        for record, stored in self._put_off.values():
            journal.append(record)
            self._ready[id(record)] = (record, stored)
        self._put_off.clear()

    def stage(self, journal: list[JournalRecord]) -> None:
        """Encode what was appended, as it is now.

        Raises:
            CheckpointFailed: A record cannot be stored, and the run cannot go on without it.
        """
        self.settle(journal)
        before, size = len(self._queue), 0
        for record in journal[self._staged - self.unread :]:
            ready = self._ready.pop(id(record), None)
            stored = self._dumped(record) if ready is None else ready[1]
            self._queue.append(stored)
            size += len(stored.payload)
            self._staged += 1
        self.size += size
        self._commits.append((len(self._queue) - before, size))

    def _dumped(self, record: JournalRecord) -> Record:
        try:
            return dump_record(record, self.codec)
        except (errors.CodecError, errors.LimitExceeded) as error:
            self._poison = errors.CheckpointFailed(
                f"{with_article(type(record).__name__)} cannot be stored: {error.message}",
                path=record.path,
                hint=error.hint,
            )
            raise self._poison from error

    async def commit(self, journal: list[JournalRecord], *, force: bool = False) -> None:
        """Return once everything appended so far is stored; cannot be cancelled.

        Args:
            journal: The run's journal.
            force: Also where the run does not commit each step.

        Raises:
            CheckpointError: The backend has not taken it, now or earlier.
        """
        self.check()
        self.stage(journal)
        if self.mode != "step" and not force:
            return
        goal = self._staged
        if self._writing:
            with anyio.CancelScope(shield=True):
                await self._wait_for(goal)
        else:
            while self._written < goal:
                await self._write()
        if force:
            self.check()

    async def receive(self, journal: list[JournalRecord], read: int) -> None:
        """Store what was appended because of signals, and take these out of the inbox in the same commit.

        Args:
            journal: The run's journal.
            read: Up to which number.

        Raises:
            CheckpointError: The backend has not taken it, now or earlier.
        """
        self.check()
        self.stage(journal)
        self.read, self._received = read, True
        await self.commit(journal, force=True)

    async def end(
        self, journal: list[JournalRecord], *, followed: bool, queued: Queued | None = None, ended: bool = False
    ) -> None:
        """Store how the run ends and give it up, in one commit; or leave that to the commit of its session.

        Args:
            journal: The run's journal.
            followed: Whether that comes before a caller sees the end; `ending` is then what it has to store.
            queued: When a worker is to claim the run again; `None` leaves that as it is.
            ended: Whether it leaves its queue, where it may be in one: it was submitted, and by hand resumed perhaps.

        Raises:
            CheckpointError: The backend has not taken it, now or earlier.
        """
        self.check()
        self.stage(journal)
        if self._writing:
            with anyio.CancelScope(shield=True):
                while self._writing:
                    await self._written_by_others()
            self.check()
        if followed:
            while self._is_too_large():
                await self._write()
            changes = () if self.budgets is None else self.budgets.changes()
            self.ending = evolve(self._taken(), release=True, read=self.read, budgets=changes)
            return
        ended = ended and self._may_be_queued
        if ended:
            self.summary_fields = {name: value for name, value in self.summary_fields.items() if name != "queue"}
            self.set_summary()
        told = ended_signals(self.run_id, self.parent) if ended else ()
        self._ending = partial(evolve, release=True, queued=queued, read=self.read, ended=ended, signals=told)
        while self._written < self._staged or (
            self._lease is not None and (self.read or self.claimed is not None or self._owes)
        ):
            await self._write()
        self.check()

    async def finish(self) -> None:
        """Store the end that was left to the commit of the session, if that has not stored it.

        Raises:
            CheckpointError: The backend has not taken it.
        """
        ending, self.ending = self.ending, None
        if ending is not None:
            with anyio.CancelScope(shield=True):
                try:
                    await self.backend.commit([ending])
                    self._lease = None
                finally:
                    await self.release()

    def finished(self) -> None:
        """The commit of the session has stored the end."""
        self.ending = self._lease = None

    async def _wait_for(self, goal: int) -> None:
        """Others write: wait for them, and write what they have left."""
        while self._written < goal:
            self.check()
            if self._writing:
                await self._written_by_others()
            else:
                await self._write()

    async def _written_by_others(self) -> None:
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()

    @property
    def staged(self) -> int:
        """How many records of the journal have been encoded."""
        return self._staged

    @property
    def broken(self) -> bool:
        """Whether a commit was not taken, so that nothing is written any more."""
        return self._poison is not None

    def check(self) -> None:
        """Refuse to continue in a process that can no longer write the run.

        Raises:
            CheckpointError: A commit has failed, or the lease was lost.
        """
        if self._poison is not None:
            raise self._poison

    def _is_too_large(self) -> bool:
        """Whether what is to be written is more than one transaction."""
        return len(self._commits) > 1 and sum(size for _, size in self._commits) > _MOST_TOGETHER

    def _taken(self) -> Transaction:
        """The next transaction.

        What several commits have added may be too large together, and may be written apart: each could have come first.
        What lists show goes with the last part.
        """
        end = size = 0
        while self._commits:
            count, more = self._commits[0]
            size += more
            if end and size > _MOST_TOGETHER:
                break
            end += count
            self._commits.popleft()
        batch, self._queue = self._queue[:end], self._queue[end:]
        summary = status = None
        if not self._queue:
            # At once: what is set while this is written goes with the next commit.
            summary, status, self.summary, self.status = self.summary, self.status, None, None
        return Transaction(self.run_id, self._written, self.fence, batch, summary, status)

    async def _write(self) -> None:
        taken = self._taken()
        done = self._written + len(taken.records)
        self._writing = True
        try:
            # Every step comes by here, and a shielded scope would cost more than all else that is done here: there is
            # one only where a cancellation has come.
            try:
                await self._append(taken)
            except anyio.get_cancelled_exc_class() as error:
                await self._finish_append(taken, done)
                if anyio.current_effective_deadline() > -math.inf and failure_of(error) is None:
                    # No scope is cancelled, which would say so again at the next wait: it was the task itself.
                    raise
        except errors.CheckpointError as error:
            self._poison = error
            raise
        except BaseException as error:
            if self._written == done:
                # It is stored, and its task was cancelled.
                raise
            self._poison = errors.CheckpointFailed(
                f"a commit failed: {type(error).__name__}: {error}", hint="look at the backend, then resume the run"
            )
            if failure_of(error) is not None:
                raise self._poison from error
            raise
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._writing = False
        waited_for, self._next = self._next, None
        if waited_for is not None:
            waited_for.set()

    async def change_budgets(
        self,
        changes: Callable[[], Sequence[BudgetChange]],
        taken: Callable[[Sequence[BudgetChange]], None] | None = None,
        places: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Change shared budgets before work begins, under the run's fence; cannot be cancelled.

        Args:
            changes: What to change, as it is when the turn to write has come.
            taken: Called when the store has taken it, before anything else is written.
            places: Names and periods of rows that hold something for the run from now on.

        Raises:
            BudgetExceeded: One of them has not enough left.
            ConfigError: The backend has no shared budgets; code `"budgets"`.
            CheckpointError: The backend has not taken it, now or earlier.
        """
        with anyio.CancelScope(shield=True):
            while self._writing:
                await self._written_by_others()
            self.check()
            self._writing = True
            try:
                named = self._naming(places)
                summary = None if named is None else json.dumps(named).encode()
                given = Transaction(self.run_id, self._written, self.fence, (), summary, budgets=changes())
                await self._measured(partial(self.backend.commit, [given]))
                if taken is not None:
                    taken(given.budgets)
                if named is not None:
                    self.summary_fields = named
                    if self.summary is not None:
                        self.summary = json.dumps({**summary_fields(self.summary), HOLDS: named[HOLDS]}).encode()
            except (errors.BudgetExceeded, errors.ConfigError):
                raise
            except errors.CheckpointError as error:
                self._poison = error
                raise
            except BaseException as error:
                self._poison = errors.CheckpointFailed(f"a commit failed: {type(error).__name__}: {error}")
                raise
            finally:
                self._end_turn()

    def _naming(self, places: Sequence[tuple[str, str]]) -> Mapping[str, object] | None:
        """The fields of a summary that names rows of shared budgets; `None` where it names them already."""
        named: object = self.summary_fields.get(HOLDS)
        known = list(named) if is_list(named) else []
        more = [[*place] for place in places if [*place] not in known]
        if not more:
            return None
        return {**self.summary_fields, HOLDS: [*known, *more]}

    @property
    def _owes(self) -> bool:
        return self.budgets is not None and self.budgets.open

    async def _append(self, taken: Transaction) -> None:
        if self._reads:
            self._written = taken.expected_position + len(taken.records)
            return
        ending, beside = (None, ()) if self._queue else (self._ending, tuple(self._beside))
        received = self._received and not self._queue
        if ending is not None or beside or self._owes or received:
            if received:
                self._received = False
                taken = evolve(taken, read=self.read)
            if self.budgets is not None:
                taken = evolve(taken, budgets=self.budgets.changes())
            given = [taken if ending is None else ending(taken), *(each.transaction for each in beside)]
            leases = await self._measured(partial(self.backend.commit, given))
            for planned, lease in zip(beside, leases[1:], strict=True):
                planned.written(lease)
            del self._beside[: len(beside)]
            if self.budgets is not None:
                self.budgets.settled()
            if ending is not None:
                self._lease = None
            self._written = taken.expected_position + len(taken.records)
            return
        self._written = await self._measured(
            partial(
                self.backend.append,
                taken.run_id,
                expected_position=taken.expected_position,
                fence=taken.fence,
                records=taken.records,
                summary=taken.summary,
                status=taken.status,
            )
        )

    async def _measured(self, write: Callable[[], Awaitable[T]]) -> T:
        if self.metrics is None:
            return await write()
        # The machine's own clock, whatever the run's does.
        began = SYSTEM.monotonic()
        result = await write()
        self.metrics.committed(SYSTEM.monotonic() - began)
        return result

    async def _finish_append(self, taken: Transaction, done: int) -> None:
        """After a cancelled append: find out whether it was committed, and append it if not."""
        with anyio.CancelScope(shield=True):
            head = await self.backend.head(self.run_id)
            if head is None or (head.position, head.fence) != (done, self.fence):
                await self._append(taken)
            elif taken.records and not self._queue:
                # The commit that has stored them has begun what was beside them, and has given the run up.
                self._beside.clear()
                if self._ending is not None:
                    self._lease = None
            if self.budgets is not None and taken.records and not self._reads:
                self.budgets.settled()
            self._written = done

    async def beat(self, hear: Callable[[bool], Awaitable[None]]) -> None:
        """Keep the lease until cancelled; a lost one poisons the run before its next body, and its next commit.

        Args:
            hear: Looks for what other processes ask of the run; more thoroughly once between two renewals.
        """
        while self._poison is None:
            for look in range(_LOOKS):
                with anyio.move_on_after(self._ttl / 3 / _LOOKS):
                    await self.hurried.wait()
                await hear(look == 0)
            await self._renew()
            if self._turn is not None:
                await self._turn.renew()

    async def hold(self) -> None:
        """Make sure that the run is still this process's own, which may have slept for longer than its lease.

        Raises:
            CheckpointError: Another owner holds it, or the owner is unknown.
        """
        while self._poison is None and self._lease is not None and not self._is_sure:
            # Once more where the answer came so late that the lease may have run out again.
            await self._renew()
        self.check()

    @property
    def _is_sure(self) -> bool:
        """Whether no other owner can have come since the lease was asked for."""
        return SYSTEM.monotonic() <= self._renewed + self._ttl * _SAFE

    async def _renew(self) -> None:
        began, lease = SYSTEM.monotonic(), self._lease
        if lease is None:
            return
        try:
            self._lease = await self.backend.renew(lease, ttl=self._ttl)
            self._renewed = began
        except BaseException as error:
            # Whatever a backend's client raises.
            if failure_of(error) is None:
                raise
            # While the lease lasts, a store that cannot be reached is asked again.
            if isinstance(error, errors.LeaseLost) or not self._is_sure:
                lost = (
                    error
                    if isinstance(error, errors.CheckpointError)
                    else errors.LeaseLost(f"the lease was not renewed: {error}")
                )
                self._poison = self._poison or lost

    def lose(self, error: errors.CheckpointError) -> None:
        """Mark the run as lost to another process: start no body and commit nothing more."""
        self._poison = self._poison or error

    async def release(self) -> None:
        """Give the run up, unless that is left to the commit of its session; cannot be cancelled."""
        if self.ending is None and self._lease is not None:
            lease, self._lease = self._lease, None
            with anyio.CancelScope(shield=True):
                await self.backend.release(lease)
