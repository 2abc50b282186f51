"""From a finished step to its record, with what its ancestors in flight had not written, and to the commit of both.

A body that has ended goes through this file from the top: `encode_finished` makes the record and what others read of
it, `finished` appends it, and `RunWriter.commit` stores what was appended.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.lowlevel import checkpoint as let_others_run
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.step import AnyStep
from noetic_py.core.codec import Codec
from noetic_py.core.codec.stored import unreadable
from noetic_py.core.codec.structure import dump, inside
from noetic_py.core.events import ItemsAppended, StepCommitted, StepDiscarded
from noetic_py.core.runtime import SYSTEM
from noetic_py.core.state import SavedState
from noetic_py.core.types import Durability, T
from noetic_py.core.values import ATOMS, separate_state
from noetic_py.engine.fingerprint import declared_input, declared_output, fingerprint, known_types, one_value, read_as
from noetic_py.engine.frame import NO_ITEMS, Frame, acting, failure_of, settle_cuts
from noetic_py.engine.journaling import deliveries, ledger
from noetic_py.engine.journaling.fold import BEGUN
from noetic_py.engine.kind import Kind
from noetic_py.engine.progress import forget
from noetic_py.journal import values
from noetic_py.journal.records import (
    AttemptFailed,
    Decision,
    Intent,
    JournalRecord,
    ResultDiscarded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
    dump_record,
)
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.steps.handoff import HandoffOutput, HandoffSourceSpec

if TYPE_CHECKING:
    from noetic_py.core.budget import BudgetLease
    from noetic_py.core.items import Item
    from noetic_py.core.metrics import Metrics
    from noetic_py.engine.state import Execution, RecordedUsage, Run


def packed(output: object) -> object:
    """The stored output of a step that may hand over."""
    to, given = (output.step, output.input) if isinstance(output, HandoffOutput) else (None, output)
    return {"to": to, "value": given}


def read_output(kind: Kind, output: values.Stored, step: AnyStep, codec: Codec) -> object:
    """An output from its stored form."""
    return _handed(output, step, codec) if kind.hands_over else read_value(output, step, codec)


def _handed(output: values.Stored, step: AnyStep, codec: Codec) -> object:
    """The output of a step that may hand over."""
    to, value = output.tree["to"], values.Stored(output.tree["value"])
    if to is None:
        return read_value(value, step, codec)
    spec: object = step.spec
    target = spec.targets.steps().get(to) if isinstance(spec, HandoffSourceSpec) else None
    return HandoffOutput(to, read_as(object if target is None else declared_input(target), value.tree, codec))


def read_value(value: values.Stored, step: AnyStep, codec: Codec) -> object:
    """A step's output from its stored form. A section may have steps inside that the flow does not declare."""
    kind = declared_output(step)
    try:
        return read_as(kind, value.tree, codec)
    except errors.CodecError:
        inner = known_types(step)
        if not inner:
            raise
        return read_as(kind, value.tree, Codec(inner))


TTL = 30.0
"""Seconds after which a run whose owner is silent may be taken over."""
_LOOKS = 10
"""How often an owner looks between two renewals for what other processes ask of the run."""
_MOST_TOGETHER = 60 * 1024 * 1024
"""How many bytes of several commits are written as one transaction, of which backends take 64 MiB."""
_SAFE = 0.8
"""The part of that time in which no other clock can be so fast that another owner has come already."""


class PlannedWrite(Protocol):
    """A transaction of another run that is committed together with one of a run."""

    @property
    def transaction(self) -> Transaction:
        """What is written."""
        ...

    def written(self, lease: Lease, /) -> None:
        """It was committed, and its journal ends where the lease says."""
        ...


@frozen(eq=False)
class RunStorage:
    """Where and how a run is stored.

    Attributes:
        backend: The backend that stores it.
        mode: When finished steps are committed.
        source: Where its flow can be imported from, `None` when it was not given.
        again: Whether a stored run of the same id is resumed instead of refused.
        turn: What its session writes together with its beginning, where it is a turn of one.
        followed: Whether the commit of its session is to store its end too.
    """

    backend: CheckpointBackend
    mode: Durability
    source: str | None
    again: bool = False
    turn: PlannedWrite | None = None
    followed: bool = False


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
        hurried: Whether something waits for the next commit that is not to wait for the next step.
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
        self._turn = storage.turn
        self._run_id = run_id
        self._lease: Lease | None = None
        # Whether the run is given up with the commit of its last record.
        self._ends = False
        self.metrics: Metrics | None = None
        self.hurried = anyio.Event()
        # How many records of the journal have been encoded, and how many of them are in the backend.
        self._staged = position
        self._written = position
        self._queue: list[Record] = []
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
        """Become the owner of a new run, and store how it begins; and the turn of its session, where it is one.

        Raises:
            RunBusy: Another owner has it.
            PositionConflict: There is such a run already.
            CheckpointError: The backend has not taken it.
        """
        self.stage(journal)
        first = self._taken() if self.mode == "step" else Transaction(self._run_id, 0, 0, ())
        given = [evolve(first, acquire=TTL)]
        if self._turn is not None:
            # In a backend that writes them in order, a turn without a run is closed by the next one.
            given.insert(0, self._turn.transaction)
        asked = SYSTEM.monotonic()
        leases = await self._measured(partial(self.backend.commit, given))
        if self._turn is not None:
            self._turn.written(leases[0])
        self.own(leases[-1], asked)
        self._written += len(first.records)

    def own(self, lease: Lease, asked: float) -> None:
        """Write as the owner of a lease, which was asked for at this moment of the machine's monotonic clock."""
        self._lease, self.fence, self._renewed = lease, lease.fence, asked

    def hurry(self) -> None:
        """Have what was appended stored soon, and not only with the next step's commit."""
        self.hurried.set()

    def set_summary(self, **more: object) -> None:
        """Store the run summary, with these fields added, in the next commit."""
        self.summary = json.dumps({**self.summary_fields, **more}).encode()

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
        for record in journal[self._staged :]:
            ready = self._ready.pop(id(record), None)
            stored = self._dumped(record) if ready is None else ready[1]
            self._queue.append(stored)
            size += len(stored.payload)
            self._staged += 1
        self._commits.append((len(self._queue) - before, size))

    def _dumped(self, record: JournalRecord) -> Record:
        try:
            return dump_record(record, self.codec)
        except (errors.CodecError, errors.LimitExceeded) as error:
            self._poison = errors.CheckpointFailed(
                f"a {type(record).__name__} cannot be stored: {error.message}", path=record.path, hint=error.hint
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

    async def end(self, journal: list[JournalRecord], *, followed: bool) -> None:
        """Store how the run ends and give it up, in one commit; or leave that to the commit of its session.

        Args:
            journal: The run's journal.
            followed: Whether that comes before a caller sees the end; `ending` is then what it has to store.

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
            self.ending = evolve(self._taken(), release=True)
            return
        self._ends = True
        while self._written < self._staged:
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
        return Transaction(self._run_id, self._written, self.fence, batch, summary, status)

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
            self._writing = False
            waited_for, self._next = self._next, None
            if waited_for is not None:
                waited_for.set()

    async def _append(self, taken: Transaction) -> None:
        if self._ends and not self._queue:
            await self._measured(partial(self.backend.commit, [evolve(taken, release=True)]))
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
            head = await self.backend.head(self._run_id)
            if head is None or (head.position, head.fence) != (done, self.fence):
                await self._append(taken)
            self._written = done

    async def beat(self, hear: Callable[[], Awaitable[None]]) -> None:
        """Keep the lease until cancelled; a lost one poisons the run before its next body, and its next commit.

        Args:
            hear: Looks for what other processes ask of the run.
        """
        while self._poison is None:
            for _ in range(_LOOKS):
                with anyio.move_on_after(TTL / 3 / _LOOKS):
                    await self.hurried.wait()
                await hear()
            await self._renew()

    async def hold(self) -> None:
        """Make sure that the run is still this process's own, which may have slept for longer than its lease.

        Raises:
            CheckpointError: Another owner holds it, or the owner is unknown.
        """
        while self._poison is None and self._lease is not None and SYSTEM.monotonic() > self._renewed + TTL * _SAFE:
            # Once more where the answer came so late that the lease may have run out again.
            await self._renew()
        self.check()

    async def _renew(self) -> None:
        began, lease = SYSTEM.monotonic(), self._lease
        if lease is None:
            return
        try:
            self._lease = await self.backend.renew(lease, ttl=TTL)
            self._renewed = began
        except BaseException as error:
            # Whatever a backend's client raises.
            if failure_of(error) is None:
                raise
            # While the lease lasts, a store that cannot be reached is asked again.
            if isinstance(error, errors.LeaseLost) or SYSTEM.monotonic() > self._renewed + TTL * _SAFE:
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


NO_TREE: Any = object()
"""There is no stored form of its own: the output stands in another record."""


# ------------------------------------------------------------------------------------------------------ a finished step


def encode_finished(frame: Frame, store: RunWriter, value: object, output: object) -> object:
    """A body is done: make its record, and encode it, so that what cannot be stored is this step's failure.

    Returns:
        The output as the step hands it on: what a process that resumes the run reads from the record.

    Raises:
        CodecError: Its output, an item or its state cannot be stored, or not be read back.
    """
    step = frame.step
    if frame.segments is not None:
        flush(frame)
    record = StepFinished(frame.at, step.kind, None, None)
    tree: object = NO_TREE
    record.items = frame.scope.log.since(frame.mark)
    try:
        record.delta = capture(frame)
        record.memory = capture_layer_states(frame)
        record.fingerprint = fingerprint(step) if frame.kind.declared else ""
        record.digest = frame.digest
        record.output, output, tree = _output(frame, value, output, store.codec)
        note_used(record, frame)
        record.takes = tuple(frame.takes or ())
        record.loop_stops = _asked_of_loops(frame)
        record.cut = cut_loops(frame) if record.loop_stops else ()
        record.view = frame.view_change
        store.prepare(record)
    except (errors.CodecError, errors.LimitExceeded) as error:
        error.at(frame.at)
        raise
    # Others in this process read the value itself.
    frame.prepared = record
    # A step has a parent, be it the head of its execution.
    (frame if frame.up is None else frame.up).last_output = (frame.at[-1], output, tree)
    return output


def _output(frame: Frame, value: object, output: object, codec: Codec) -> tuple[Any, Any, Any]:
    """The output to store (a reference if it is stored elsewhere), the value to return, and its stored form.

    Raises:
        CodecError: It cannot be stored, or not be read back.
    """
    step, kind = frame.step, frame.kind
    if kind.dump is not None:
        return kind.dump(value, output), output, NO_TREE
    last = frame.last_output
    if last is not None and output is not None and last[1] is output and _unchanged(step, last, codec):
        return (
            values.SameAsChild(last[0]),
            output if step.body is None else _own(frame, output, last[2], codec),
            last[2],
        )
    try:
        tree = codec.encode(packed(output) if kind.hands_over else output)
    except errors.CodecError as error:
        raise inside(error, "output") from error
    return None if output is None else values.Stored(tree), _own(frame, output, tree, codec), tree


def _unchanged(step: AnyStep, last: tuple[str, object, object], codec: Codec) -> bool:
    """Whether an output that is a child's is still what the child gave: a body may have changed it."""
    _, output, tree = last
    if step.body is None or output.__class__ in ATOMS:
        return True
    return tree is not NO_TREE and dump(codec.encode(output)) == dump(tree)


def _own(frame: Frame, output: object, tree: object, codec: Codec) -> object:
    """An output as it is read from its record, so that every process goes on with the same value.

    Raises:
        CodecError: It cannot be read back.
    """
    if output.__class__ in ATOMS or tree is NO_TREE:
        return output
    try:
        read = read_output(frame.kind, values.Stored(tree), frame.step, codec)
    except errors.CodecError as error:
        raise inside(unreadable(error), "output") from error
    return one_value(output, read, tree)


def _asked_of_loops(frame: Frame) -> tuple[tuple[values.Path, object], ...]:
    """The last request of a step, or of steps below it, to each loop and each handoff around it."""
    found: list[tuple[values.Path, object]] = []
    node = frame.up
    while node is not None:
        asked = [value for value, path in node.loop_stops or () if path[: len(frame.at)] == frame.at]
        if asked:
            value = asked[-1]
            found.append((node.at, packed(value) if node.kind.hands_over else value))
        node = node.up
    return tuple(found)


def cut_loops(frame: Frame) -> tuple[values.Path, ...]:
    """The loops that are to end in the middle of the round because a step, or one below it, has asked for it."""
    found: list[values.Path] = []
    node = frame.up
    while node is not None:
        asked = any(path[: len(frame.at)] == frame.at for _, path in node.loop_stops or ())
        if asked and node.cut is not None:
            found.append(node.at)
        node = node.up
    return tuple(found)


def note_used(record: StepFinished, frame: Frame) -> None:
    """Put into the record of a step what the engine has noted of it while it ran."""
    record.attempt = frame.attempt
    record.usage = frame.used_tokens
    record.cost = frame.used_cost
    record.control = frame.control
    record.winner = frame.winner
    record.calls = frame.used_calls
    record.tool = frame.used_tool
    record.tool_error = frame.tool_error


def finished(frame: Frame, value: object, output: object, length: int) -> None:
    """Commit a step that is done; `length` is its log's, now."""
    run = frame.x.run
    parent = frame.up
    if parent is not None and not (parent.clean and parent.opened):
        flush(parent)
    step = frame.step
    if run.in_flight:
        run.in_flight.discard((frame.at, frame.attempt))
        if parent is not None and parent.ends_by == "race":
            _note_begun(parent, frame)
    if run.unacknowledged and frame.noted:
        deliveries.release(run, frame)
    if frame.prepared is not None:
        _append_prepared(frame, frame.prepared)
        return
    record = StepFinished(frame.at, step.kind, value if step.bound is None else step.bound.value, output)
    if length != frame.mark or frame.segments is not None:
        record.items = _last_segment(frame)
    if frame.noted:
        note_used(record, frame)
    run.journal.append(record)
    if run.bus.active:
        _publish_finished(frame, record)


def _append_prepared(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    # The position of the step's commit can be forked at: it is the last record of it.
    run.settle()
    run.journal.append(record)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        _publish_finished(frame, record)


def _note_begun(section: Frame, path: Frame) -> None:
    """A path decides how its section ends: a later process starts no other one, and counts what has begun in them."""
    run, depth = section.x.run, len(section.at)
    others = [
        [list(at), attempt] for at, attempt in run.in_flight if at[:depth] == section.at and at[: depth + 1] != path.at
    ]
    if others:
        run.journal.append(Decision(section.at, BEGUN, sorted(others)))


def _publish_finished(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    if record.items:
        frame.publish(ItemsAppended(frame.at, record.items))
    frame.publish(StepCommitted(frame.at, record.kind, len(run.journal)))


def _last_segment(frame: Frame) -> tuple[Item, ...]:
    items = frame.scope.log.since(frame.mark)
    segments = frame.segments
    if segments is not None:
        # Closed before a child that wrote nothing: it goes into this record together with the last one.
        for earlier in reversed(segments):
            items = earlier.items + items
    return items


# ---------------------------------------------------------------------------------------------- what is not written yet


def close_segment(frame: Frame) -> None:
    """A child is about to start, and the body has appended something: that is a segment of its own."""
    log = frame.scope.log
    items = log.since(frame.mark)
    known, stored = frame.scope.known, frame.scope.stored
    delta = capture(frame)
    memory = capture_layer_states(frame)
    if not items and not delta and not memory:
        return
    segment = Segment(frame.at, frame.attempt, items, delta, memory)
    try:
        prepare(frame, segment)
    except errors.NoeticError:
        frame.scope.known, frame.scope.stored = known, stored
        raise
    frame.mark = log.size
    frame.clean = False
    if frame.segments is None:
        frame.segments = [segment]
    else:
        frame.segments.append(segment)


def prepare(frame: Frame, record: JournalRecord) -> None:
    """Encode a record of a durable run before it is appended, so that what cannot be stored fails the step.

    Raises:
        CodecError: It cannot be stored.
        LimitExceeded: It is too large.
    """
    store = frame.x.run.store
    if store is not None:
        try:
            store.prepare(record)
        except (errors.CodecError, errors.LimitExceeded) as error:
            error.at(frame.at)
            raise


def discarded(run: Run, path: values.Path) -> None:
    """Record that the result of a finished step is discarded: its code or its input has changed."""
    run.journal.append(ResultDiscarded(path))
    _count_anew(run, path)
    forget(run, path)


def _count_anew(run: Run, path: values.Path) -> None:
    """Discard what an earlier process has begun there: what begins there now is another step."""
    run.begun = {each for each in run.begun if each[0][: len(path)] != path}


def decided(frame: Frame, key: str, value: object) -> None:
    """Write what a function has decided for a step.

    Raises:
        CodecError: It cannot be stored.
    """
    record = Decision(frame.at, key, value)
    store = frame.x.run.store
    if store is not None and value.__class__ not in ATOMS:
        try:
            store.codec.require_readable(store.codec.encode(value))
        except errors.CodecError as error:
            raise inside(error, key.partition("[")[0]).at(frame.at) from error
    prepare(frame, record)
    frame.x.run.journal.append(record)


def capture(frame: Frame) -> tuple[values.Change, ...]:
    """How the body has changed the state since that was stored last, in a durable run.

    Raises:
        CodecError: The state cannot be stored.
        LimitExceeded: It is nested too deep.
    """
    store = frame.x.run.store
    scope = frame.scope
    if frame.touched:
        separate_state(scope.state)
    if store is None or not frame.touched:
        return ()
    try:
        now = values.known_fields(scope.state, store.codec)
        delta = values.changes(scope.known or {}, now)
        values.require_readable(scope.state, delta, now, store.codec)
    except errors.CodecError as error:
        error.at(frame.at)
        raise
    scope.known = now
    return delta


def capture_layer_states(frame: Frame) -> values.LayerDeltas:
    """How the body has changed the states of layers since they were stored last, in a durable run.

    Raises:
        CodecError: A state cannot be stored.
    """
    store, scope = frame.x.run.store, frame.scope
    if store is None or not frame.touched or scope.stored is None or scope.stored.layer_states is scope.layer_states:
        return ()
    try:
        deltas, after = scope.stored.changes(scope.layer_states, store.codec)
        for layer, delta in deltas:
            kind = frame.x.layers.state_type(layer)
            values.require_readable(
                scope.layer_states.get(layer),
                delta,
                after.form(layer, store.codec),
                store.codec,
                declared=kind,
                where=f"memory.{layer}",
            )
    except errors.CodecError as error:
        error.at(frame.at)
        raise
    scope.stored = after
    return deltas


def returned(frame: Frame, length: int) -> None:
    """A child has committed: all that the body did before is written, and what comes now is a new segment."""
    frame.mark = frame.written = length
    if frame.touched:
        frame.saved = SavedState(frame.scope.state)
        frame.saved_layer_states = frame.scope.layer_states
        frame.clean = False


def remember(frame: Frame) -> None:
    """All that a body did is written, and it goes on: it may still hold the state, so what that is now is noted now."""
    if frame.touched and frame.clean:
        frame.saved = SavedState(frame.scope.state)
        frame.saved_layer_states = frame.scope.layer_states
        frame.clean = False


def write_down(frame: Frame) -> None:
    """Write what a body, and those around it, have done so far; it goes on, and what comes now is a new segment.

    Raises:
        CodecError: An item or the state cannot be stored.
    """
    close_segment(frame)
    flush(frame)
    returned(frame, frame.log.size)


def holds_state(frame: Frame | None) -> bool:
    """Whether a body, or one around it, may have changed the state and has not written that."""
    while frame is not None and not (frame.clean and frame.opened):
        if frame.touched and not frame.clean:
            return True
        frame = frame.up
    return False


def write_items_down(frame: Frame) -> None:
    """Write the items of a body that ends without a result, and those before them; changes of states stay unwritten."""
    _keep_what_can_be(frame)
    flush_items(frame, frame.at)


def flush_items(frame: Frame | None, path: values.Path) -> None:
    """Write the items that a frame and its ancestors have not written, outermost first.

    Args:
        frame: The frame.
        path: The step that it is done for, which gets its place before the changes of states are written.
    """
    if frame is None or (frame.clean and frame.opened):
        return
    flush_items(frame.up, path)
    segments = frame.segments or []
    child = next(iter(path[len(frame.at) :]), None)
    held = [evolve(each, items=NO_ITEMS, before=child) for each in segments if each.delta or each.memory]
    frame.segments = [Segment(each.path, each.attempt, each.items) for each in segments if each.items] or None
    _flush_own(frame)
    frame.segments = held or None
    # Unwritten changes here and around are written before anything below is committed.
    frame.clean = not frame.touched and (frame.up is None or frame.up.clean)


def flush(frame: Frame | None) -> None:
    """Write what a frame and its ancestors have not written, outermost first; above a clean frame all are clean."""
    if frame is None or (frame.clean and frame.opened):
        return
    flush(frame.up)
    _flush_own(frame)


def _flush_own(frame: Frame) -> None:
    journal = frame.x.run.journal
    if not frame.opened:
        frame.opened = True
        if not frame.virtual:
            store = frame.x.run.store
            fence = 0 if store is None else store.fence
            journal.append(StepOpened(frame.at, frame.step.kind, frame.attempt, fence))
    segments = frame.segments
    if segments is not None:
        journal.extend(segments)
        frame.segments = None
        if frame.x.run.bus.active:
            for segment in segments:
                if segment.items:
                    frame.publish(ItemsAppended(frame.at, segment.items))
    frame.written = frame.mark
    frame.clean = True


def note_outcome(
    once: dict[values.Path, Intent | StepFinished | AttemptFailed], record: StepFinished | AttemptFailed
) -> None:
    """Note what became of a step that may run only once: a failed attempt that another one follows is none."""
    if isinstance(record, StepFinished) or (record.final and not isinstance(record.error, errors.StepOutcomeUnknown)):
        once[record.path] = record
    elif not record.final:
        once.pop(record.path, None)


def failed(frame: Frame, error: errors.NoeticError, *, final: bool) -> None:
    """Commit a failed attempt before any step reacts to it."""
    run = frame.x.run
    deliveries.nack(run, frame.at, below=not final)
    if final:
        deliveries.release(run, frame)
    if run.progress and not final:
        forget(run, frame.at)
    record = AttemptFailed(
        frame.at, frame.step.kind, frame.attempt, final, error, frame.used_tokens, frame.used_cost, frame.control,
        frame.used_calls, frame.used_tool, _is_held(frame),
    )  # fmt: skip
    run.in_flight.discard((frame.at, frame.attempt))
    if final and run.in_flight and frame.up is not None and frame.up.ends_by == "all":
        _note_begun(frame.up, frame)
    run.journal.append(record)
    if not final:
        _count_anew(run, frame.at)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        frame.publish(StepDiscarded(frame.at, frame.attempt, str(error), final))


def _is_held(frame: Frame) -> bool:
    """Whether an attempt had something written, without what bodies around it had done to the state."""
    return frame.up is not None and (frame.opened or frame.node is not None) and frame.up.holds_changes()


def stopped(frame: Frame) -> None:
    """Write what a cancelled attempt used; its own work, and its ancestors', only when it asked for the stop itself."""
    run = frame.x.run
    run.in_flight.discard((frame.at, frame.attempt))
    kept = NO_ITEMS
    if frame.control is None:
        deliveries.nack(run, frame.at, below=False)
    deliveries.release(run, frame)
    if frame.control is not None:
        if run.store is not None:
            _keep_what_can_be(frame)
            flush(frame)
        else:
            kept = _last_segment(frame)
        flush(frame.up)
    elif frame.kind.part and (partial := run.shutdown) is not None:
        # A resumed run asks again. Until then the conversation shows what was asked, and how far the answer had come.
        kept = frame.heard if partial == "save" else NO_ITEMS
        flush(frame.up)
    if frame.control is not None or kept or _counts(frame):
        record = StepStopped(
            frame.at, frame.step.kind, frame.attempt, kept, (), frame.used_tokens, frame.used_cost, frame.control,
            takes=tuple(frame.takes or ()) if frame.control is not None else (),
            calls=frame.used_calls, tool=frame.used_tool,
        )  # fmt: skip
        run.journal.append(record)
    if run.bus.active:
        if kept:
            frame.publish(ItemsAppended(frame.at, kept))
        frame.publish(StepDiscarded(frame.at, frame.attempt, "stopped", True))


def waiting(frame: Frame) -> None:
    """A step waits for an answer: that is not an attempt, and not written; what its body has taken goes back."""
    run = frame.x.run
    run.in_flight.discard((frame.at, frame.attempt))
    around = frame.up or frame
    frame.waits_below = around.waits_below = True
    deliveries.nack(run, frame.at, below=False)
    deliveries.release(run, frame)


def _keep_what_can_be(frame: Frame) -> None:
    """The body's own work as a segment; what cannot be stored is not kept, for the stop has no room for a failure."""
    try:
        close_segment(frame)
    except (errors.CodecError, errors.LimitExceeded):
        frame.drop_unwritten()


def _counts(frame: Frame) -> bool:
    """Whether the attempt counts against a budget, so that it has to be known after a crash."""
    return frame.step.counted or frame.used_calls > 0 or frame.used_tool is not None


def recover(run: Run, lease: BudgetLease, path: tuple[str, ...], *, attempts: bool = True) -> None:
    """Charge a lease with what the steps below a path had used before this process had the run.

    Args:
        run: The run.
        lease: The lease.
        path: Whose it is.
        attempts: Whether it holds for all attempts of that step, or for one.
    """
    for usage in _charged(run, path, attempts):
        lease.recover(usage.used, usage.steps, usage.tool)


def _charged(run: Run, path: values.Path, attempts: bool) -> Iterator[RecordedUsage]:
    depth = len(path)
    for usage in run.recorded_usage:
        below = usage.path[:depth] == path and len(usage.path) > depth
        if below and (usage.discarded is None or depth < usage.discarded or (attempts and depth == usage.discarded)):
            yield usage


def recover_wrap_up(run: Run, lease: BudgetLease, path: tuple[str, ...]) -> None:
    """Charge the lease of a wrap-up with what the wrap-up had used before this process had the run.

    Args:
        run: The run.
        lease: The lease.
        path: The step that is wrapped up.
    """
    depth = len(path)
    for usage in _charged(run, path, False):
        if usage.path[depth] == "wrap_up" and usage.discarded != depth + 1:
            lease.recover(usage.used, usage.steps, usage.tool)
    lease.begin_again()


def count_turns(x: Execution, path: tuple[str, ...]) -> None:
    """Count the model calls that an execution had made before this process had the run."""
    x.turns += sum(spent.used.model_calls for spent in x.run.recorded_usage if spent.execution == path)


async def checkpoint(frame: Frame) -> None:
    """Write what the body and those around it have not written yet, and wait until it is stored.

    It shows in the run's conversation and state from now on. When the process dies the body still starts again, and
    what it had written itself is then replaced.
    """
    frame = acting(frame)
    store = frame.x.run.store
    await let_others_run()
    if store is None:
        return
    settle_cuts(frame)
    ledger.write_down(frame)
    await store.commit(frame.x.run.journal, force=True)
