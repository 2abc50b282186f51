"""The durable side of a run's journal: what is appended is encoded at once, and committed in order.

A run has one queue. A step that needs a commit while none is under way writes all that waits, for itself and others,
as one transaction. A commit that is not taken poisons the run in this process: every waiter gets the error, and nothing
is written after it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
from attrs import frozen

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.codec import Codec
from noetic_py.core.runtime import SYSTEM
from noetic_py.core.types import Durability
from noetic_py.engine.cancellation import failure_of
from noetic_py.errors import CheckpointError, CheckpointFailed, CodecError, LeaseLost, LimitExceeded
from noetic_py.journal.record_codec import dump_record
from noetic_py.journal.stored import Lease, Record

if TYPE_CHECKING:
    from noetic_py.journal.records import JournalRecord
    from noetic_py.journal.values import Path

__all__ = ["TTL", "RunStorage", "RunWriter"]

TTL = 30.0
"""Seconds after which a run whose owner is silent may be taken over."""
_LOOKS = 10
"""How often an owner looks between two renewals for what other processes ask of the run."""
_MOST_TOGETHER = 60 * 1024 * 1024
"""How many bytes of several commits are written as one transaction, of which backends take 64 MiB."""
_SAFE = 0.8
"""The part of that time in which no other clock can be so fast that another owner has come already."""


@frozen(eq=False)
class RunStorage:
    """Where and how a run is stored.

    Attributes:
        backend: The backend that stores it.
        mode: When finished steps are committed.
        source: Where its flow can be imported from, `None` when it was not given.
        again: Whether a stored run of the same id is resumed instead of refused.
    """

    backend: CheckpointBackend
    mode: Durability
    source: str | None
    again: bool = False


class RunWriter:
    """Where one run is written to.

    Attributes:
        backend: Where the run is kept.
        codec: For the run's values.
        fence: The owner's.
        mode: When finished steps are committed.
        card: What lists are to show of the run from the next commit on.
        summary: The run summary that lists always show.
        hurried: Whether something waits for the next commit that is not to wait for the next step.
    """

    def __init__(
        self, backend: CheckpointBackend, lease: Lease, codec: Codec, mode: Durability, *, position: int = 0
    ) -> None:
        self.codec = codec
        self.mode = mode
        self.fence = lease.fence
        self.card: bytes | None = None
        self.summary: Mapping[str, object] = {}
        self.status: str | None = None
        self.backend = backend
        self._lease = lease
        self.hurried = anyio.Event()
        # How many records of the journal have been encoded, and how many of them are in the backend.
        self._staged = position
        self._written = position
        self._queue: list[Record] = []
        # How many bytes these have, and how many records each commit has added to them.
        self._queued = 0
        self._commits: list[int] = []
        # The record too: while it is here, no other one can have its id.
        self._ready: dict[int, tuple[JournalRecord, Record]] = {}
        # What goes into the journal with the next commit, by path: of several that say the same place only the last.
        self._put_off: dict[Path, tuple[JournalRecord, Record]] = {}
        # Whether a commit is under way, and what those wait for who need the next one.
        self._writing = False
        self._turn: anyio.Event | None = None
        self._poison: CheckpointError | None = None
        # When the lease was certainly this process's; of the machine's own clock, whatever the run's does.
        self._renewed = SYSTEM.monotonic()

    def hurry(self) -> None:
        """Have what was appended stored soon, and not only with the next step's commit."""
        self.hurried.set()

    def set_card(self, **more: object) -> None:
        """Set what lists show from the next commit on: the run summary and the given fields."""
        self.card = json.dumps({**self.summary, **more}).encode()

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

    def drop_put_off(self, path: Path) -> None:
        """What was to be appended for a path or below it has become void."""
        for each in [each for each in self._put_off if each[: len(path)] == path]:
            del self._put_off[each]

    def settle(self, journal: list[JournalRecord]) -> None:
        """Append what was put off: before a record that is to be the last one of its transaction."""
        if self._put_off:
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
        before = len(self._queue)
        for record in journal[self._staged :]:
            ready = self._ready.pop(id(record), None)
            stored = self._dumped(record) if ready is None else ready[1]
            self._queue.append(stored)
            self._queued += len(stored.payload)
            self._staged += 1
        self._commits.append(len(self._queue) - before)

    def _dumped(self, record: JournalRecord) -> Record:
        try:
            return dump_record(record, self.codec)
        except (CodecError, LimitExceeded) as error:
            self._poison = CheckpointFailed(
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

    async def _wait_for(self, goal: int) -> None:
        """Others write: wait for them, and write what they have left."""
        while self._written < goal:
            self.check()
            if self._writing:
                if self._turn is None:
                    self._turn = anyio.Event()
                await self._turn.wait()
            else:
                await self._write()

    @property
    def broken(self) -> bool:
        """Whether a commit was not taken, so that nothing is written any more."""
        return self._poison is not None

    def check(self) -> None:
        """Refuse to go on in a process that cannot write the run any more.

        Raises:
            CheckpointError: A commit has failed, or the lease was lost.
        """
        if self._poison is not None:
            raise self._poison

    def _taken(self) -> tuple[list[Record], bool]:
        """What is to be written as one transaction, and whether there is more.

        What several commits have added may be too large together, and may be written apart: each could have come first.
        """
        queue, self._queue = self._queue, []
        commits, self._commits = self._commits, []
        queued, self._queued = self._queued, 0
        if queued <= _MOST_TOGETHER or len(commits) < 2:
            return queue, False
        end = size = 0
        while commits:
            grown = size + sum(len(record.payload) for record in queue[end : end + commits[0]])
            if end and grown > _MOST_TOGETHER:
                break
            size, end = grown, end + commits.pop(0)
        self._queue, self._commits, self._queued = queue[end:], commits, queued - size
        return queue[:end], bool(self._queue)

    async def _write(self) -> None:
        batch, more = self._taken()
        self._writing = True
        try:
            # Every step comes by here, and a shielded scope would cost more than all else that is done here: there is
            # one only where a cancellation has come.
            try:
                self._written = await self._append(batch, more)
            except anyio.get_cancelled_exc_class() as error:
                await self._finish_append(batch, more)
                if anyio.current_effective_deadline() > -math.inf and failure_of(error) is None:
                    # No scope is cancelled, which would say so again at the next wait: it was the task itself.
                    raise
            if not more:
                self.card = self.status = None
        except CheckpointError as error:
            self._poison = error
            raise
        except BaseException as error:
            self._poison = CheckpointFailed(
                f"a commit failed: {type(error).__name__}: {error}", hint="look at the backend, then resume the run"
            )
            if failure_of(error) is not None:
                raise self._poison from error
            raise
        finally:
            self._writing = False
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.set()

    async def _append(self, batch: Sequence[Record], more: bool) -> int:
        return await self.backend.append(
            self._lease.run_id,
            expected_position=self._written,
            fence=self._lease.fence,
            records=batch,
            card=None if more else self.card,
            status=None if more else self.status,
        )

    async def _finish_append(self, batch: Sequence[Record], more: bool) -> None:
        """What was cancelled is done whole or not at all: find out which, and then do it."""
        with anyio.CancelScope(shield=True):
            head = await self.backend.head(self._lease.run_id)
            done = self._written + len(batch)
            if head is None or (head.position, head.fence) != (done, self._lease.fence):
                done = await self._append(batch, more)
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
            CheckpointError: Another owner holds it, or it is not known who does.
        """
        if self._poison is None and SYSTEM.monotonic() > self._renewed + TTL * _SAFE:
            await self._renew()
        self.check()

    async def _renew(self) -> None:
        began = SYSTEM.monotonic()
        try:
            self._lease = await self.backend.renew(self._lease, ttl=TTL)
            self._renewed = began
        except BaseException as error:
            # Whatever a backend's client raises.
            if failure_of(error) is None:
                raise
            # While the lease lasts, a store that cannot be reached is asked again.
            if isinstance(error, LeaseLost) or SYSTEM.monotonic() > self._renewed + TTL * _SAFE:
                lost = error if isinstance(error, CheckpointError) else LeaseLost(f"the lease was not renewed: {error}")
                self._poison = self._poison or lost

    def lose(self, error: CheckpointError) -> None:
        """What the run belongs to is another process's by now: begin no further body, and commit nothing more."""
        self._poison = self._poison or error

    async def release(self) -> None:
        """Give the run up; cannot be cancelled."""
        with anyio.CancelScope(shield=True):
            await self.backend.release(self._lease)
