"""`InMemoryBackend`: journals and values in this process, for as long as the backend lives."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py.checkpoints import budgets, checks
from noetic_py.checkpoints.adapter import PrunePage, StoreBackend, commit_in_turn, queue_stats, woken
from noetic_py.checkpoints.contract import BackendDurability, Scope
from noetic_py.checkpoints.turns import Candidate, ClaimRequest, Turns
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import StoreUnavailable
from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    Queued,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.journal.transforms import pack_scope, scopes_behind

T = TypeVar("T")


@define(eq=False)
class _Journal:
    """A run's records and its lease.

    Attributes:
        ends: Where transactions end.
        queued: Its place in a queue.
        lives: How many owners in a row have claimed it.
        signals: Its inbox, by key, in the order of their numbers.
    """

    number: int
    created: datetime
    updated: datetime
    records: list[Record] = field(factory=list[Record])
    ends: list[int] = field(factory=list[int])
    status: str | None = None
    summary: bytes = b""
    fence: int = 0
    held: Lease | None = None
    until: float = 0.0
    queued: Queued | None = None
    lives: int = 0
    signals: dict[str, Signal] = field(factory=dict[str, Signal])

    @property
    def position(self) -> int:
        return len(self.records)


class MemoryStore:
    """Journals and values as the objects they are.

    Args:
        clock: The clock that leases run by.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.runs: dict[str, _Journal] = {}
        self.values: dict[Scope, dict[str, StoredValue]] = {}
        self.shared: dict[tuple[str, str], BudgetRow] = {}
        self._turns = Turns()
        self._ticks = 0

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    # -- journals

    def _create(self, run_id: str, now: datetime) -> _Journal:
        run = self.runs[run_id] = _Journal(self._tick(), now, now)
        return run

    def _get(self, run_id: str) -> _Journal:
        run = self.runs.get(run_id)
        if run is None:
            raise checks.no_run(run_id)
        return run

    def _is_held(self, run: _Journal) -> bool:
        return run.held is not None and self._clock() < run.until

    def append(self, given: Transaction, now: datetime) -> int:
        """Append one transaction."""
        run = self.runs.get(given.run_id)
        position, fence = (0, 0) if run is None else (run.position, run.fence)
        checks.check_turn(given, position, fence)
        if run is None:
            run = self._create(given.run_id, now)
        run.records.extend(given.records)
        if given.records:
            run.ends.append(run.position)
        run.updated = now
        run.summary = run.summary if given.summary is None else bytes(given.summary)
        run.status = run.status if given.status is None else given.status
        return run.position

    def commit(self, given: Sequence[Transaction], now: datetime) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them."""
        for each in given:
            run = self.runs.get(each.run_id)
            position, fence = (0, 0) if run is None else (run.position, run.fence)
            if each.acquire is not None and run is not None and self._is_held(run):
                raise checks.is_owned("its lease to run out")
            checks.check_turn(each, position, fence)
        rows = budgets.rows_after(given, self.shared)
        leases = commit_in_turn(self, given, now)
        self.shared.update(rows)
        return leases

    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records."""
        return self._get(run_id).records[after : after + limit]

    def head(self, run_id: str) -> Head | None:
        """Where the journal ends."""
        run = self.runs.get(run_id)
        return None if run is None else Head(run.position, run.fence)

    def entry(self, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        run = self.runs.get(run_id)
        return None if run is None else self._entry(run_id, run)

    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        page: list[RunEntry] = []
        # Runs are kept in the order in which they were made.
        for run_id, run in reversed(self.runs.items()):
            if (after is None or run.number < after) and (status is None or run.status == status):
                page.append(self._entry(run_id, run))
            if len(page) == limit:
                break
        return page

    def _entry(self, run_id: str, run: _Journal) -> RunEntry:
        return RunEntry(
            run_id=run_id,
            position=run.position,
            status=run.status,
            summary=run.summary,
            created=run.created,
            updated=run.updated,
            held=self._is_held(run),
            cursor=run.number,
        )

    def fork(self, run_id: str, given: Transaction, now: datetime) -> None:
        """Make a run whose journal is another's beginning, and a transaction."""
        run, at = self._get(run_id), given.expected_position
        place = bisect_left(run.ends, at)
        if at not in (0, run.position) and (place == len(run.ends) or run.ends[place] != at):
            raise checks.no_end(at)
        if given.run_id in self.runs:
            raise checks.is_taken(given.run_id)
        made = self._create(given.run_id, now)
        made.records, made.ends = [*run.records[:at], *given.records], [end for end in run.ends if end <= at]
        if given.records:
            made.ends.append(made.position)
        made.summary, made.status = bytes(given.summary or b""), given.status

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        run = self.runs.get(run_id)
        if run is not None and self._is_held(run):
            raise checks.is_held()
        self.runs.pop(run_id, None)

    def prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None
    ) -> PrunePage:
        """Delete what is old."""
        old = [*self._old(before, keep or 0, statuses)]
        for run_id in old:
            del self.runs[run_id]
        return PrunePage(None, deleted=len(old))

    def _old(self, before: datetime | None, keep: int, statuses: Sequence[str] | None) -> Iterator[str]:
        left = 0
        for run_id, run in reversed(self.runs.items()):
            if statuses is not None and run.status not in statuses:
                continue
            if left < keep:
                left += 1
            elif (before is None or run.updated < before) and not self._is_held(run):
                yield run_id

    def stats(self) -> Stats:
        """How much there is; references count as no bytes."""
        values = [value for scope in self.values.values() for value in scope.values()]
        payloads = sum(len(record.payload) for run in self.runs.values() for record in run.records)
        return Stats(
            runs=len(self.runs),
            records=sum(run.position for run in self.runs.values()),
            values=len(values),
            blobs=0,
            bytes=payloads + sum(len(value.value) for value in values),
        )

    def scrub(self) -> Sequence[str]:
        """There are no files."""
        return ()

    # -- leases

    def acquire(self, run_id: str, ttl: float, now: datetime) -> Lease:
        """Become the owner for `ttl` seconds."""
        run = self.runs.get(run_id)
        if run is None:
            run = self._create(run_id, now)
            run.fence = run.number
        elif self._is_held(run):
            raise checks.is_owned("its lease to run out")
        else:
            run.fence = self._tick()
        run.held = Lease(run_id, run.fence, run.position)
        run.until = self._clock() + ttl
        return run.held

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Renew the lease."""
        run = self.runs.get(lease.run_id)
        if run is None or run.held != lease:
            raise checks.not_held()
        run.until = self._clock() + ttl
        return lease

    def release(self, leases: Collection[Lease]) -> None:
        """End leases."""
        for lease in leases:
            run = self.runs.get(lease.run_id)
            if run is not None and run.held == lease:
                run.held, run.lives = None, 0

    # -- queues and inboxes

    def enqueue(self, given: Transaction, now: datetime) -> None:
        """Do what a transaction says of queues and inboxes."""
        run = self._get(given.run_id)
        run.signals = {} if given.ended else {k: v for k, v in run.signals.items() if v.number > given.read}
        if given.ended:
            run.queued, run.lives = None, 0
        elif given.queued is not None:
            run.queued = woken(given.queued, now) if run.signals else given.queued
        for each in given.signals:
            if each.run_id in self.runs:
                self.send(each.run_id, each.key, each.body, now)

    def claim(self, wanted: ClaimRequest, now: datetime) -> Sequence[Claim]:
        """Become the owner of queued runs."""
        seconds = now.timestamp()
        ready: list[Candidate[tuple[str, _Journal]]] = []
        at_work: Counter[tuple[str, str]] = Counter()
        for run_id, run in self.runs.items():
            place = run.queued
            if place is None or place.queue not in wanted.queues:
                continue
            if self._is_held(run):
                at_work[place.queue, place.key] += run.lives > 0
            elif place.flow in wanted.flows and place.at is not None and place.at <= seconds:
                ready.append(Candidate(place, run.number, (run_id, run)))
        claims: list[Claim] = []
        for each in self._turns.choose(ready, at_work, wanted):
            run_id, run = each.run
            run.lives += 1
            lease = self.acquire(run_id, wanted.ttl, now)
            claims.append(Claim(lease, each.place, run.lives, seconds, bool(run.signals)))
        return claims

    def queues(self, now: datetime) -> Sequence[QueueStats]:
        """How full each queue is."""
        return queue_stats(
            ((run.queued, self._is_held(run)) for run in self.runs.values() if run.queued is not None), now
        )

    def send(self, run_id: str, key: str, body: bytes, now: datetime) -> int:
        """Put a signal into a run's inbox, and let the run be claimed."""
        run = self._get(run_id)
        sent = run.signals.setdefault(key, Signal(run_id, key, body, self._tick()))
        if run.queued is not None:
            run.queued = woken(run.queued, now)
        return sent.number

    def inbox(self, run_id: str, after: int, limit: int) -> Sequence[Signal]:
        """A page of a run's signals."""
        run = self.runs.get(run_id)
        return () if run is None else [each for each in run.signals.values() if each.number > after][:limit]

    # -- shared budgets

    def budgets(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        rows = sorted(self.shared.items())
        return [row for (own, period), row in rows if name in (None, own) and period >= since]

    def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        for place in places:
            if place in self.shared and not self.shared[place].held:
                del self.shared[place]

    # -- scoped values

    def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        return self.values.get(scope, {}).get(key)

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        checks.check_version(self.get(scope, key), expected)
        stored = StoredValue(key, value, self._tick())
        self.values.setdefault(scope, {})[key] = stored
        return stored.version

    def remove(self, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        checks.check_version(self.get(scope, key), expected)
        values = self.values.get(scope, {})
        removed = values.pop(key, None) is not None
        if not values:
            self.values.pop(scope, None)
        return removed

    def scan(self, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        values = self.values.get(scope, {})
        keys = sorted(key for key in values if key > after)
        return [values[key] for key in keys[:limit]]

    def scopes(self, prefix: bytes, after: bytes, limit: int) -> Sequence[bytes]:
        """A page of the scopes that hold a value."""
        return scopes_behind(map(pack_scope, self.values), prefix, after, limit)


class InMemoryBackend(StoreBackend[MemoryStore]):
    """Keeps journals and values in memory, records as the objects they are. Nothing survives the process.

    `Harness(checkpoints=InMemoryBackend())` keeps the journals of its runs until `delete` or `prune` is called.

    Args:
        runtime: The clock that leases run by.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
    """

    def __init__(self, *, runtime: Runtime = SYSTEM, max_bytes: int = checks.MAX_BYTES) -> None:
        super().__init__(largest=max_bytes, runtime=runtime, payloads=False)
        self._store = MemoryStore(runtime.monotonic)
        self._closed = False

    @property
    def durability(self) -> BackendDurability:
        """`"none"`: it dies with the process."""
        return "none"

    @property
    def shared(self) -> bool:
        """`False`: no other process sees it."""
        return False

    async def describe(self) -> Mapping[str, str]:
        """A description of the backend."""
        await self._open()
        return {"backend": "memory", "why": "nothing is kept longer than the backend"}

    async def close(self) -> None:
        """Forget everything; a second time is not an error."""
        await checkpoint()
        self._closed = True
        self._store = MemoryStore(self._runtime.monotonic)

    async def _do(self, work: Callable[[MemoryStore], T], *, write: bool = False) -> T:
        # Others get a turn, and after it nothing is waited for.
        await checkpoint()
        if self._closed:
            raise StoreUnavailable("the backend was closed", where="memory", reason="closed", hint="make a new one")
        return work(self._store)

    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        return await self._do(lambda store: store.append(given, now))

    async def _commit(self, given: Sequence[Transaction], size: int, now: datetime) -> Sequence[Lease]:
        return await self._do(lambda store: store.commit(given, now))
