"""The contract over stores that block: what is checked before a store is asked, and how it is asked in a thread.

A store has a synchronous method for each one of the contract. `StoreBackend` has the contract itself, once.
`EmbeddedBackend` is for stores of this machine, which one thread has open; `noetic_py.checkpoints.server` is for those
that are reached over connections, from several threads.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import evolve, frozen

from noetic_py.checkpoints import checks
from noetic_py.checkpoints.contract import BackendDurability, Scope
from noetic_py.checkpoints.threads import Job, WorkerPool
from noetic_py.checkpoints.turns import ClaimRequest
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import LeaseLost
from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    Queued,
    QueueLimits,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.journal.transforms import pack_scope, unpack_scope

T = TypeVar("T")

FARTHEST = 2**53
"""No position and no number of a run is larger; a double holds all numbers below."""
LARGEST = 2**63 - 1
"""The largest number that a store can hold; what is damaged may have it as the number of a run."""


@frozen
class PrunePage:
    """How far a prune has come.

    Attributes:
        below: The number of the run to go on below; `None` when nothing is left.
        kept: How many of the newest were left.
        deleted: How many of this page are gone.
    """

    below: int | None = FARTHEST
    kept: int = 0
    deleted: int = 0


class BlockingStore(Protocol):
    """A store as one thread uses it; each method raises what the backend's of its name does.

    Ids, keys, pages and sizes were checked before. Of the times that are given, a server takes its own clock's.
    """

    def read(self, run_id: str, after: int, limit: int, /) -> Sequence[Record]:
        """A page of records."""
        ...

    def head(self, run_id: str, /) -> Head | None:
        """Where a journal ends."""
        ...

    def entry(self, run_id: str, /) -> RunEntry | None:
        """One run, as lists show it."""
        ...

    def list(self, after: int | None, limit: int, status: str | None, /) -> Sequence[RunEntry]:
        """A page of runs."""
        ...

    def fork(self, run_id: str, given: Transaction, now: datetime, /) -> None:
        """Make a run that shares a journal's beginning, up to where a transaction is appended to it."""
        ...

    def delete(self, run_id: str, /) -> None:
        """Forget a run."""
        ...

    def prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None, /
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first; as many as do not keep others waiting."""
        ...

    def stats(self) -> Stats:
        """How much there is."""
        ...

    def scrub(self) -> Sequence[str]:
        """Take what was deleted out of the files; returns where it may still be."""
        ...

    def acquire(self, run_id: str, ttl: float, now: datetime, /) -> Lease:
        """Become the owner."""
        ...

    def renew(self, lease: Lease, ttl: float, /) -> Lease:
        """Renew the lease; or check that it is held, where leases do not expire."""
        ...

    def release(self, leases: Collection[Lease], /) -> None:
        """End leases; those that are not held any more are left as they are."""
        ...

    def claim(self, wanted: ClaimRequest, now: datetime, /) -> Sequence[Claim]:
        """Become the owner of queued runs."""
        ...

    def queues(self, now: datetime, /) -> Sequence[QueueStats]:
        """How full each queue is."""
        ...

    def send(self, run_id: str, key: str, body: bytes, now: datetime, /) -> int:
        """Put a signal into a run's inbox, and let the run be claimed."""
        ...

    def inbox(self, run_id: str, after: int, limit: int, /) -> Sequence[Signal]:
        """A page of a run's signals."""
        ...

    def budgets(self, name: str | None, since: str, /) -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        ...

    def forget_budgets(self, places: Sequence[tuple[str, str]], /) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        ...

    def get(self, scope: Scope, key: str, /) -> StoredValue | None:
        """The value of a key."""
        ...

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None, /) -> int:
        """Give a key a value."""
        ...

    def remove(self, scope: Scope, key: str, expected: int | None, /) -> bool:
        """Take a key's value away."""
        ...

    def scan(self, scope: Scope, after: str, limit: int, /) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        ...

    def scopes(self, prefix: bytes, after: bytes, limit: int, /) -> Sequence[bytes]:
        """A page of the packed scopes that hold a value and begin with a prefix, behind another, in their order."""
        ...


S = TypeVar("S", bound=BlockingStore)


class StoreBackend(ABC, Generic[S]):
    """The methods of [`CheckpointBackend`][noetic_py.checkpoints.CheckpointBackend], over a store.

    Args:
        largest: The largest transaction, and the largest value of a key, in bytes.
        runtime: The clock of `created` and `updated`, where the store has none of its own.
        payloads: Whether the store has payloads only, so that a record needs one.
    """

    def __init__(self, *, largest: int, runtime: Runtime = SYSTEM, payloads: bool = True) -> None:
        self._largest = largest
        self._runtime = runtime
        self._payloads = payloads

    @property
    @abstractmethod
    def durability(self) -> BackendDurability:
        """Which failure a finished write survives."""

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Whether other machines see it."""

    @abstractmethod
    async def describe(self) -> Mapping[str, str]:
        """A description of the backend and its settings for people; contains no secrets."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun, give all leases back, and free what it holds; a second time is not an error."""

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        """Open the store."""
        await self._do(lambda _: None)

    @abstractmethod
    async def _do(self, work: Callable[[S], T], *, write: bool = False) -> T:
        """Use the store; a write that was begun is waited for."""

    async def _acquire(self, work: Callable[[S], Lease]) -> Lease:
        """Use the store to become an owner; where the caller never learns of it, it is undone."""
        return await self._do(work, write=True)

    async def _release(self, leases: Collection[Lease]) -> None:
        """Use the store to end leases."""
        await self._do(lambda store: store.release(leases), write=True)

    @abstractmethod
    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        """Append a transaction that was checked, of so many bytes."""

    @abstractmethod
    async def _commit(self, given: Sequence[Transaction], size: int, now: datetime) -> Sequence[Lease]:
        """Commit transactions that were checked, of so many bytes together."""

    # -- journals

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        summary: bytes | None = None,
        status: str | None = None,
    ) -> int:
        """Append one transaction; see [`CheckpointBackend.append`][noetic_py.checkpoints.CheckpointBackend.append].

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: It is too large.
        """
        given = Transaction(run_id, expected_position, fence, records, summary, status)
        return await self._append(given, self._size(given), self._runtime.now())

    def _size(self, given: Transaction) -> int:
        """How many bytes a transaction has that can be stored."""
        checks.check_id(given.run_id)
        return checks.check_append(
            given.records, given.summary, given.status, largest=self._largest, payloads=self._payloads
        )

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them, queue them, send signals: all of it or nothing.

        Raises:
            RunBusy: Another owner holds a run that was to be acquired.
            PositionConflict: A journal does not end where it is expected to.
            LeaseLost: A fence is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: All of it together is too large.
            BudgetExceeded: A shared budget would pass a limit.
            ConfigError: Two transactions are of the same run, code `"commit"`; or the backend has no queues, code
                `"queues"`, or no shared budgets, code `"budgets"`.
        """
        given = tuple(transactions)
        checks.check_apart(given)
        for each in given:
            if each.acquire is not None:
                checks.check_ttl(each.acquire)
        size = sum(map(self._size, given)) + sum(checks.check_queued(each, self._largest) for each in given)
        size += sum(map(checks.check_budgets, given))
        checks.check_size(size, self._largest)
        return await self._commit(given, size, self._runtime.now())

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on; it ends early when it has become large.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: The stored value is not what was written.
        """
        checks.check_id(run_id)
        checks.check_page(after, limit)
        return await self._do(lambda store: store.read(run_id, min(after, FARTHEST), min(limit, FARTHEST)))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        checks.check_id(run_id)
        return await self._do(lambda store: store.head(run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """The list entry of one run, `None` if it does not exist."""
        checks.check_id(run_id)
        return await self._do(lambda store: store.entry(run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        checks.check_page(after, limit)
        below = None if after is None else min(after, LARGEST)
        return await self._do(lambda store: store.list(below, min(limit, FARTHEST), status))

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        new_run_id: str,
        records: Sequence[Record] = (),
        summary: bytes | None = None,
        status: str | None = None,
    ) -> None:
        """Make a run whose journal is the first `at` records of another's, without copying them.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is not a transaction's end, or the new run exists.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: The records are too large.
        """
        checks.check_id(run_id)
        checks.check_id(new_run_id, "new_run_id")
        given = Transaction(new_run_id, at, 0, records, summary, status)
        self._size(given)
        now = self._runtime.now()
        await self._do(lambda store: store.fork(run_id, given, now), write=True)

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        checks.check_id(run_id)
        await self._do(lambda store: store.delete(run_id), write=True)

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds at once.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        checks.check_prune(before, keep)
        chosen = None if statuses is None else [*statuses]
        page, deleted = PrunePage(), 0
        while page.below is not None:
            page = await self._prune(page, before, keep, chosen)
            deleted += page.deleted
        return deleted

    async def _prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None
    ) -> PrunePage:
        return await self._do(lambda store: store.prune(page, before, keep, statuses), write=True)

    async def stats(self) -> Stats:
        """How much it holds."""
        return await self._do(lambda store: store.stats())

    async def scrub(self) -> Sequence[str]:
        """Take what was deleted out of its files; returns where it may still be.

        Raises:
            StoreUnavailable: Another process uses the store, reason `"busy"`; try again.
        """
        return await self._do(lambda store: store.scrub(), write=True)

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer: on a server for `ttl` seconds of its clock, on this machine while this lives.

        Raises:
            RunBusy: Another owner holds it.
        """
        checks.check_id(run_id)
        checks.check_ttl(ttl)
        now = self._runtime.now()
        return await self._acquire(lambda store: store.acquire(run_id, ttl, now))

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds, counted from now.

        Raises:
            LeaseLost: Another owner has the run, or the lease was released.
        """
        checks.check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("a fence of 0 is not a lease; expected one that acquire() gave", hint="acquire the run")
        return await self._do(lambda store: store.renew(lease, ttl))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is not an error."""
        await self._release([lease])

    # -- queues and inboxes

    async def clock(self) -> float:
        """The store's clock: seconds since 1970."""
        await checkpoint_if_cancelled()
        return self._runtime.now().timestamp()

    async def claim(
        self,
        queues: Sequence[str],
        *,
        flows: Collection[str],
        ttl: float,
        limit: int = 1,
        limits: Mapping[str, QueueLimits] | None = None,
    ) -> Sequence[Claim]:
        """Become the owner of queued runs that may be claimed and have none.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
        """
        for queue in queues:
            checks.check_id(queue, "queue")
        checks.check_ttl(ttl)
        checks.check_page(None, limit)
        # Workers may know limits of more queues than they look at.
        known = {queue: limits[queue] for queue in queues if limits and queue in limits}
        wanted = ClaimRequest([*dict.fromkeys(queues)], frozenset(flows), ttl, min(limit, FARTHEST), known)
        now = self._runtime.now()
        return await self._claim(lambda store: store.claim(wanted, now))

    async def _claim(self, work: Callable[[S], Sequence[Claim]]) -> Sequence[Claim]:
        """Use the store to become the owner of several runs; where the caller never learns of it, it is undone."""
        return await self._do(work, write=True)

    async def wait_for_runs(self, queues: Sequence[str], *, timeout: float) -> bool:
        """Sleep, where the store has no notifications; returns whether there was one."""
        await anyio.sleep(timeout)
        return False

    async def queues(self) -> Sequence[QueueStats]:
        """How full each queue is, by queue and flow.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
        """
        now = self._runtime.now()
        return await self._do(lambda store: store.queues(now))

    async def send(self, run_id: str, key: str, body: bytes) -> int:
        """Put a signal into a run's inbox, and let the run be claimed where it is queued; returns its number.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: The backend has no queues; code `"queues"`.
        """
        checks.check_id(run_id)
        checks.check_key(key)
        checks.check_value(body, largest=self._largest)
        stored, now = bytes(body), self._runtime.now()
        return await self._do(lambda store: store.send(run_id, key, stored, now), write=True)

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Signal]:
        """A page of the signals that wait for a run, in their order."""
        checks.check_id(run_id)
        checks.check_page(after, limit)
        return await self._do(lambda store: store.inbox(run_id, min(after, LARGEST), min(limit, FARTHEST)))

    # -- shared budgets

    async def budgets(self, *, name: str | None = None, since: str = "") -> Sequence[BudgetRow]:
        """The rows of shared budgets, by name and period.

        Raises:
            ConfigError: The backend has no shared budgets; code `"budgets"`.
        """
        if name is not None:
            checks.check_id(name, "budget")
        if since:
            checks.check_id(since, "period")
        return await self._do(lambda store: store.budgets(name, since))

    async def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets, those that no run holds anything of.

        Raises:
            ConfigError: The backend has no shared budgets; code `"budgets"`.
        """
        for name, period in places:
            checks.check_id(name, "budget")
            checks.check_id(period, "period")
        await self._do(lambda store: store.forget_budgets(places), write=True)

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        checks.check_scope(scope)
        checks.check_key(key)
        return await self._do(lambda store: store.get(scope, key))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        checks.check_scope(scope)
        checks.check_key(key)
        checks.check_value(value, largest=self._largest)
        stored = bytes(value)
        return await self._do(lambda store: store.put(scope, key, stored, expected), write=True)

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        checks.check_scope(scope)
        checks.check_key(key)
        return await self._do(lambda store: store.remove(scope, key, expected), write=True)

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        checks.check_scope(scope)
        checks.check_page(None, limit)
        if after is not None:
            checks.check_key(after)
        return await self._do(lambda store: store.scan(scope, after or "", min(limit, FARTHEST)))

    async def scopes(self, prefix: Scope = (), *, after: Scope | None = None, limit: int = 100) -> Sequence[Scope]:
        """A page of the scopes that hold a value and begin with these parts.

        Raises:
            CorruptRecord: A stored scope is not what was written.
        """
        if prefix != ():
            checks.check_scope(prefix)
        if after is not None:
            checks.check_scope(after)
        checks.check_page(None, limit)
        first, behind = pack_scope(prefix), pack_scope(after or ())
        found = await self._do(lambda store: store.scopes(first, behind, min(limit, FARTHEST)))
        return [unpack_scope(each) for each in found]


class ThreadedBackend(StoreBackend[S]):
    """A backend whose store is used in threads.

    Args:
        pool: What does the work.
        largest: The largest transaction, and the largest value of a key, in bytes.
        runtime: The clock of `created` and `updated`, where the store has none of its own.
    """

    def __init__(self, pool: WorkerPool[S], *, largest: int, runtime: Runtime = SYSTEM) -> None:
        super().__init__(largest=largest, runtime=runtime)
        self._pool = pool
        weakref.finalize(self, pool.abandon)

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and free what it holds; a second time is not an error."""
        await self._pool.close()

    async def _open(self) -> None:
        await self._pool.run(Job(lambda _: None, write=False))

    async def _do(self, work: Callable[[S], T], *, write: bool = False) -> T:
        return await self._pool.run(Job(work, write=write))

    async def _acquire(self, work: Callable[[S], Lease]) -> Lease:
        return await self._pool.run(Job(work, write=True), undo=_undo)

    async def _claim(self, work: Callable[[S], Sequence[Claim]]) -> Sequence[Claim]:
        return await self._pool.run(Job(work, write=True), undo=_undo_claim)


class EmbeddedStore(BlockingStore, Protocol):
    """A store of this machine."""

    def append(self, given: Transaction, now: datetime, /) -> int:
        """Append one transaction."""
        ...

    def commit(self, given: Sequence[Transaction], now: datetime, /) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them, all of it or nothing."""
        ...

    def enqueue(self, given: Transaction, now: datetime, /) -> None:
        """Do what a transaction says of queues, inboxes and budgets, once its records were appended."""
        ...


E = TypeVar("E", bound=EmbeddedStore)


class EmbeddedBackend(ThreadedBackend[E]):
    """Base of backends that open their store in their own thread."""

    @property
    def durability(self) -> BackendDurability:
        """`"power"`: every commit is on the disk before it is acknowledged."""
        return "power"

    @property
    def shared(self) -> bool:
        """`False`: other processes of this machine see it, other machines do not."""
        return False

    # A loss of power ends all processes that could own a run of this machine, so no lease has to survive one.

    async def _acquire(self, work: Callable[[E], Lease]) -> Lease:
        return await self._pool.run(Job(work, write=True, durable=False), undo=_undo)

    async def _claim(self, work: Callable[[E], Sequence[Claim]]) -> Sequence[Claim]:
        return await self._pool.run(Job(work, write=True, durable=False), undo=_undo_claim)

    async def _commit(self, given: Sequence[Transaction], size: int, now: datetime) -> Sequence[Lease]:
        durable = any(
            each.records or each.summary is not None or each.status is not None or not each.only_appends
            for each in given
        )
        job = Job(lambda store: store.commit(given, now), write=True, durable=durable)
        return await self._pool.run(job, undo=partial(_undo_commit, given))

    async def _release(self, leases: Collection[Lease]) -> None:
        await self._pool.run(Job(lambda store: store.release(leases), write=True, durable=False))

    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        return await self._pool.run(Job(lambda store: store.append(given, now), write=True))


def commit_in_turn(store: EmbeddedStore, given: Sequence[Transaction], now: datetime) -> Sequence[Lease]:
    """Do transactions of several runs one after the other, where a store makes one write of them, or has checked them.

    Ownership ends last: a store may end leases also when it could not write that.
    """
    done: list[Lease] = []
    for each in given:
        if each.acquire is not None:
            head = store.head(each.run_id) if each.fence else None
            lease = store.acquire(each.run_id, each.acquire, now)
            if each.fence and (head is None or head.fence != each.fence):
                raise checks.is_fenced(each, 0 if head is None else head.fence)
            each = evolve(each, fence=lease.fence)
        done.append(Lease(each.run_id, each.fence, store.append(each, now)))
    for each in given:
        if not each.only_appends:
            store.enqueue(each, now)
    store.release([lease for each, lease in zip(given, done, strict=True) if each.release])
    return done


def woken(queued: Queued, now: datetime) -> Queued:
    """How a run is queued that a signal has woken: it may be claimed at once."""
    seconds = now.timestamp()
    return queued if queued.at is not None and queued.at <= seconds else evolve(queued, at=seconds)


def queue_stats(queued: Iterable[tuple[Queued, bool]], now: datetime) -> list[QueueStats]:
    """How full queues are, of their runs, each with whether an owner holds it."""
    seconds = now.timestamp()
    found: dict[tuple[str, str], QueueStats] = {}
    for each, held in queued:
        stats = found.get((each.queue, each.flow)) or QueueStats(each.queue, each.flow, 0, 0, 0, None)
        if held:
            stats = evolve(stats, owned=stats.owned + 1)
        elif each.at is None or each.at > seconds:
            stats = evolve(stats, waiting=stats.waiting + 1)
        else:
            since = each.at if stats.since is None else min(stats.since, each.at)
            stats = evolve(stats, ready=stats.ready + 1, since=since)
        found[each.queue, each.flow] = stats
    return [found[key] for key in sorted(found)]


def _undo(lease: Lease, store: BlockingStore) -> None:
    store.release([lease])


def _undo_claim(claims: Sequence[Claim], store: BlockingStore) -> None:
    store.release([each.lease for each in claims])


def _undo_commit(given: Sequence[Transaction], leases: Sequence[Lease], store: BlockingStore) -> None:
    store.release([lease for each, lease in zip(given, leases, strict=True) if each.acquire is not None])
