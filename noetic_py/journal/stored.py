"""The values that a backend stores: records, transactions, leases, heads and entries of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attrs import field, frozen

from noetic_py.errors import ConfigError

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
class Queued:
    """A run in a queue, which a worker is to claim.

    Attributes:
        queue: The queue.
        flow: The flow that the run needs; a worker claims the runs whose flow it has.
        at: From when on, in seconds since 1970 by the store's clock; `None` when only a signal wakes the run.
        priority: Of the runs that may be claimed, those with the highest go first.
        key: Whose run it is, such as a user's. Of runs with one priority, those go first whose key has the fewest at
            work in the queue, then the one that waits longest.
    """

    queue: str
    flow: str
    at: float | None = 0.0
    priority: int = 0
    key: str = ""


@frozen
class QueueLimits:
    """How many runs of a queue may be at work at once, with all workers of a store together.

    At work is a run that a worker has claimed and not given up. One that waits, for an answer or a time, is not.

    Attributes:
        concurrency: How many of the queue; `None` for no limit.
        per_key: How many with the same key; `None` for no limit.

    Raises:
        ConfigError: A limit is not a whole number from 1; code `"queue-limits"`.
    """

    concurrency: int | None = None
    per_key: int | None = None

    def __attrs_post_init__(self) -> None:
        given: tuple[tuple[str, object], ...] = (("concurrency", self.concurrency), ("per_key", self.per_key))
        for name, value in given:
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(
                    f"{name}={value!r} is not a valid limit of a queue; expected a number from 1, or None",
                    code="queue-limits",
                    hint="QueueLimits(concurrency=20, per_key=2)",
                )


@frozen
class Signal:
    """A message to a run, which waits in the run's inbox until its owner has stored what it did because of it.

    Attributes:
        run_id: The run.
        key: While one with this key waits in the inbox, another one has no effect.
        body: Its content.
        number: Its place in the inbox, which the store gives: a later one has a larger number.
    """

    run_id: str
    key: str
    body: bytes
    number: int = 0


@frozen
class BudgetChange:
    """What a run's owner changes of a shared budget: what the run has spent, and what it holds for work under way.

    Amounts are whole numbers by dimension; `cost` is in billionths of a USD.

    Attributes:
        name: The budget's name.
        period: Which of its periods, such as `"2026-11"`; each has a row of its own.
        spent: What is added to the row's usage.
        held: What the run holds from now on, in place of what it held; `None` leaves that.
        limits: Limits of the sum of what is used and held. A change that raises the sum above one is refused.
    """

    name: str
    period: str
    spent: Mapping[str, int] = field(factory=dict[str, int])
    held: Mapping[str, int] | None = None
    limits: Mapping[str, int] = field(factory=dict[str, int])


@frozen
class BudgetRow:
    """A shared budget in one of its periods; amounts are as in a `BudgetChange`.

    Attributes:
        name: The budget's name.
        period: The period.
        limits: The limits as the last change that had some named them.
        used: What was used.
        held: What runs hold for work under way, by their ids.
    """

    name: str
    period: str
    limits: Mapping[str, int] = field(factory=dict[str, int])
    used: Mapping[str, int] = field(factory=dict[str, int])
    held: Mapping[str, Mapping[str, int]] = field(factory=dict[str, Mapping[str, int]])

    @property
    def reserved(self) -> Mapping[str, int]:
        """What all runs hold together."""
        total: dict[str, int] = {}
        for amounts in self.held.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return total


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
        queued: Puts the run into a queue, or changes when it may be claimed; `None` leaves it.
        read: Up to which number signals are taken out of the run's inbox. Where one is left, a run that `queued` puts
            to sleep may be claimed at once.
        signals: What is sent to other runs. One that is not there gets nothing.
        ended: Whether the run has ended: it leaves its queue, and its inbox is emptied.
        budgets: What changes of shared budgets.
    """

    run_id: str
    expected_position: int
    fence: int
    records: Sequence[Record]
    summary: bytes | None = None
    status: str | None = None
    acquire: float | None = None
    release: bool = False
    queued: Queued | None = None
    read: int = 0
    signals: Sequence[Signal] = ()
    ended: bool = False
    budgets: Sequence[BudgetChange] = ()

    @property
    def only_appends(self) -> bool:
        """Whether it leaves queues, inboxes and shared budgets as they are."""
        return self.queued is None and not (self.read or self.signals or self.ended or self.budgets)


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
class Claim:
    """A run that a worker has claimed.

    Attributes:
        lease: The worker's.
        queued: How the run was queued.
        lives: How many owners in a row, this one included, have claimed the run; it begins anew when one gives it up.
        now: The store's clock at that moment, in seconds since 1970.
        signals: Whether signals may wait in the run's inbox; `False` only where the store has seen that none does.
    """

    lease: Lease
    queued: Queued
    lives: int
    now: float
    signals: bool = True


@frozen
class QueueStats:
    """How full a queue is.

    Attributes:
        queue: The queue.
        flow: The flow that these runs need.
        ready: How many runs may be claimed now.
        owned: How many an owner holds.
        waiting: How many sleep, or wait for a signal.
        since: When the run that has waited longest could first be claimed, in seconds since 1970; `None` for none.
    """

    queue: str
    flow: str
    ready: int
    owned: int
    waiting: int
    since: float | None


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
