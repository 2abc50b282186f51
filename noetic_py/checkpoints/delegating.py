"""A backend in front of another one: what it does not do itself, the other one does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from noetic_py.checkpoints.contract import BackendDurability, CheckpointBackend, Scope
from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    QueueLimits,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)


class DelegatingBackend:
    """Another backend, as it is. A class below it does some of the methods in another way.

    Each method does what [`CheckpointBackend`][noetic_py.checkpoints.CheckpointBackend] says.

    Args:
        inner: The backend that stores everything.
    """

    def __init__(self, inner: CheckpointBackend) -> None:
        self._inner = inner

    @property
    def inner(self) -> CheckpointBackend:
        """The backend that stores everything; what every method but `close` begins with."""
        return self._inner

    @property
    def durability(self) -> BackendDurability:
        """The durability of the other backend."""
        return self._inner.durability

    @property
    def shared(self) -> bool:
        """Whether other machines see it."""
        return self._inner.shared

    async def describe(self) -> Mapping[str, str]:
        """The description of the other backend."""
        return await self.inner.describe()

    async def close(self) -> None:
        """Close the other backend."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self._inner.__aexit__(t, e, tb)

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
        """Append one transaction."""
        return await self.inner.append(
            run_id, expected_position=expected_position, fence=fence, records=records, summary=summary, status=status
        )

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them: all of it or nothing."""
        return await self.inner.commit(transactions)

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records."""
        return await self.inner.read(run_id, after=after, limit=limit)

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends."""
        return await self.inner.head(run_id)

    async def entry(self, run_id: str) -> RunEntry | None:
        """The list entry of one run."""
        return await self.inner.entry(run_id)

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs."""
        return await self.inner.list(after=after, limit=limit, status=status)

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
        """Make a run out of another one's beginning."""
        await self.inner.fork(run_id, at=at, new_run_id=new_run_id, records=records, summary=summary, status=status)

    async def delete(self, run_id: str) -> None:
        """Forget a run."""
        await self.inner.delete(run_id)

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs."""
        return await self.inner.prune(before=before, keep=keep, statuses=statuses)

    async def stats(self) -> Stats:
        """How much it holds."""
        return await self.inner.stats()

    async def scrub(self) -> Sequence[str]:
        """Take what was deleted out of the files of the other backend."""
        return await self.inner.scrub()

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer."""
        return await self.inner.acquire(run_id, ttl=ttl)

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease."""
        return await self.inner.renew(lease, ttl=ttl)

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        await self.inner.release(lease)

    async def clock(self) -> float:
        """The clock of the other backend's store."""
        return await self.inner.clock()

    async def claim(
        self,
        queues: Sequence[str],
        *,
        flows: Collection[str],
        ttl: float,
        limit: int = 1,
        limits: Mapping[str, QueueLimits] | None = None,
    ) -> Sequence[Claim]:
        """Become the owner of queued runs."""
        return await self.inner.claim(queues, flows=flows, ttl=ttl, limit=limit, limits=limits)

    async def wait_for_runs(self, queues: Sequence[str], *, timeout: float) -> bool:
        """Wait until a run may have become ready in one of the queues."""
        return await self.inner.wait_for_runs(queues, timeout=timeout)

    async def queues(self) -> Sequence[QueueStats]:
        """How full each queue is."""
        return await self.inner.queues()

    async def send(self, run_id: str, key: str, body: bytes) -> int:
        """Put a signal into a run's inbox."""
        return await self.inner.send(run_id, key, body)

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Signal]:
        """A page of the signals that wait for a run."""
        return await self.inner.inbox(run_id, after=after, limit=limit)

    async def budgets(self, *, name: str | None = None, since: str = "") -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        return await self.inner.budgets(name=name, since=since)

    async def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        await self.inner.forget_budgets(places)

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        return await self.inner.get(scope, key)

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value."""
        return await self.inner.put(scope, key, value, expected=expected)

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away."""
        return await self.inner.remove(scope, key, expected=expected)

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values."""
        return await self.inner.scan(scope, after=after, limit=limit)

    async def scopes(self, prefix: Scope = (), *, after: Scope | None = None, limit: int = 100) -> Sequence[Scope]:
        """A page of the scopes that hold a value."""
        return await self.inner.scopes(prefix, after=after, limit=limit)
