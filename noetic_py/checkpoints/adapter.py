"""The contract over stores that block: what is checked before a store is asked, and which thread asks it.

A store has a synchronous method for each one of the contract. `StoreBackend` has the contract itself, once.
`EmbeddedBackend` is for stores of this machine, which one thread has open; `noetic_py.checkpoints.server` is for those
that are reached over connections, from several threads.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from attrs import frozen

from noetic_py.checkpoints.checks import (
    check_append,
    check_id,
    check_key,
    check_page,
    check_prune,
    check_scope,
    check_ttl,
    check_value,
)
from noetic_py.checkpoints.contract import BackendDurability, Scope
from noetic_py.checkpoints.threads import Job, WorkerPool
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import LeaseLost, NoeticError
from noetic_py.journal.stored import Head, Lease, Record, RunEntry, Stats, StoredValue, Transaction

__all__ = [
    "FARTHEST",
    "LARGEST",
    "BlockingStore",
    "EmbeddedBackend",
    "EmbeddedStore",
    "PrunePage",
    "StoreBackend",
    "ThreadedBackend",
]

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

    def fork(
        self, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None, now: datetime, /
    ) -> None:
        """Make a run that shares a journal's beginning."""
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

    def acquire(self, run_id: str, ttl: float, now: datetime, /) -> Lease:
        """Become the owner."""
        ...

    def renew(self, lease: Lease, ttl: float, /) -> Lease:
        """Begin the time anew; or look whether the lease is held, where nothing runs out."""
        ...

    def release(self, leases: Collection[Lease], /) -> None:
        """End leases; those that are not held any more are left as they are."""
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
        """What a finished write survives."""

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Whether other machines see it."""

    @abstractmethod
    async def describe(self) -> Mapping[str, str]:
        """What it is and how it is set up, for people; holds no secrets."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun, give all leases back, and free what it holds; a second time is no error."""

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
        await self._do(_nothing)

    @abstractmethod
    async def _do(self, work: Callable[[S], T], *, write: bool = False) -> T:
        """Use the store; a write that was begun is waited for."""

    async def _acquire(self, work: Callable[[S], Lease]) -> Lease:
        """Use the store to become an owner; where the caller never learns of it, it is undone."""
        return await self._do(work, write=True)

    @abstractmethod
    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        """Append a transaction that was checked, of so many bytes."""

    @abstractmethod
    async def _append_many(
        self, given: Sequence[Transaction], sizes: Sequence[int], now: datetime
    ) -> Sequence[int | NoeticError]:
        """Append transactions that were checked, each with an outcome of its own."""

    # -- journals

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        card: bytes | None = None,
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
        given = Transaction(run_id, expected_position, fence, records, card, status)
        return await self._append(given, self._size(given), self._runtime.now())

    def _size(self, given: Transaction) -> int:
        """How many bytes a transaction has that can be stored."""
        check_id(given.run_id)
        return check_append(given.records, given.card, given.status, largest=self._largest, payloads=self._payloads)

    async def append_many(self, transactions: Sequence[Transaction]) -> Sequence[int | NoeticError]:
        """Append to several runs at once, each transaction with an outcome of its own; hundreds share one commit."""
        outcomes: dict[int, int | NoeticError] = {}
        sizes: dict[int, int] = {}
        for index, given in enumerate(transactions):
            try:
                sizes[index] = self._size(given)
            except NoeticError as error:
                outcomes[index] = error
        fit = [transactions[index] for index in sizes]
        outcomes |= zip(sizes, await self._append_many(fit, [*sizes.values()], self._runtime.now()), strict=True)
        return [outcomes[index] for index in range(len(outcomes))]

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on; it ends early when it has become large.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: What is stored is not what was written.
        """
        check_id(run_id)
        check_page(after, limit)
        return await self._do(lambda store: store.read(run_id, min(after, FARTHEST), min(limit, FARTHEST)))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        return await self._do(lambda store: store.head(run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        return await self._do(lambda store: store.entry(run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        below = None if after is None else min(after, LARGEST)
        return await self._do(lambda store: store.list(below, min(limit, FARTHEST), status))

    async def fork(
        self, run_id: str, *, at: int, new_run_id: str, card: bytes | None = None, status: str | None = None
    ) -> None:
        """Make a run whose journal is the first `at` records of another's, without copying them.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is no transaction's end, or the new run exists.
        """
        check_id(run_id)
        check_id(new_run_id, "new_run_id")
        check_append((), card, status)
        now = self._runtime.now()
        await self._do(lambda store: store.fork(run_id, at, new_run_id, card, status, now), write=True)

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._do(lambda store: store.delete(run_id), write=True)

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds at once.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
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

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer: on a server for `ttl` seconds of its clock, on this machine while this lives.

        Raises:
            RunBusy: Another owner holds it.
        """
        check_id(run_id)
        check_ttl(ttl)
        now = self._runtime.now()
        return await self._acquire(lambda store: store.acquire(run_id, ttl, now))

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds, counted from now.

        Raises:
            LeaseLost: Another owner has the run, or the lease was released.
        """
        check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("a fence of 0 is not a lease; expected one that acquire() gave", hint="acquire the run")
        return await self._do(lambda store: store.renew(lease, ttl))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        await self._do(lambda store: store.release([lease]), write=True)

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        return await self._do(lambda store: store.get(scope, key))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        stored = bytes(value)
        return await self._do(lambda store: store.put(scope, key, stored, expected), write=True)

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        return await self._do(lambda store: store.remove(scope, key, expected), write=True)

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        return await self._do(lambda store: store.scan(scope, after or "", min(limit, FARTHEST)))


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
        """Finish what was begun, give all leases back, and free what it holds; a second time is no error."""
        await self._pool.close()

    async def _open(self) -> None:
        await self._pool.run(Job(_nothing, write=False))

    async def _do(self, work: Callable[[S], T], *, write: bool = False) -> T:
        return await self._pool.run(Job(work, write=write))

    async def _acquire(self, work: Callable[[S], Lease]) -> Lease:
        return await self._pool.run(Job(work, write=True), undo=_release)


class EmbeddedStore(BlockingStore, Protocol):
    """A store of this machine."""

    def append(self, given: Transaction, now: datetime, /) -> int:
        """Append one transaction."""
        ...


E = TypeVar("E", bound=EmbeddedStore)


class EmbeddedBackend(ThreadedBackend[E]):
    """What backends have in common whose store is opened in a thread of their own."""

    @property
    def durability(self) -> BackendDurability:
        """`"power"`: every commit is on the disk before it is acknowledged."""
        return "power"

    @property
    def shared(self) -> bool:
        """`False`: other processes of this machine see it, other machines do not."""
        return False

    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        return await self._pool.run(Job(_appending(given, now), write=True))

    async def _append_many(
        self, given: Sequence[Transaction], sizes: Sequence[int], now: datetime
    ) -> Sequence[int | NoeticError]:
        return await self._pool.run_all([_appending(each, now) for each in given])


def _appending(given: Transaction, now: datetime) -> Callable[[EmbeddedStore], int]:
    return lambda store: store.append(given, now)


def _nothing(store: object) -> None:
    """Open the store, and do nothing."""


def _release(lease: Lease, store: BlockingStore) -> None:
    store.release([lease])
