"""What one thread does on its connection to PostgreSQL, as `ServedBackend` asks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from noetic_postgres import journals, pairs, runs
from noetic_postgres.link import Link
from noetic_postgres.sums import Name
from noetic_py.checkpoints.backend import Head, Lease, Record, RunEntry, Scope, Stats, StoredValue
from noetic_py.checkpoints.served import Given, PrunePage
from noetic_py.errors import NoeticError

__all__ = ["PostgresOperations"]


class PostgresOperations:
    """The operations of `ServedBackend`; the contract is there."""

    def __init__(self) -> None:
        self._numbers = journals.Numbers()

    def append(self, link: Link, given: Sequence[Given]) -> Sequence[int | NoeticError]:
        """Append transactions in one transaction of the server."""
        return journals.append(link, given, self._numbers)

    def read(self, link: Link, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records."""
        return journals.read(link, run_id, after, limit)

    def head(self, link: Link, run_id: str) -> Head | None:
        """Where a journal ends."""
        return journals.head(link, run_id)

    def entry(self, link: Link, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        return runs.entry(link, run_id)

    def list_runs(self, link: Link, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        return runs.list_runs(link, after, limit, status)

    def fork(self, link: Link, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None) -> None:
        """Make a run that shares a journal's beginning."""
        runs.fork(link, run_id, at, new_run_id, card, status)

    def delete(self, link: Link, run_id: str) -> None:
        """Forget a run."""
        runs.delete(link, run_id, self._numbers)

    def prune(
        self,
        link: Link,
        page: PrunePage,
        before: datetime | None,
        keep: int | None,
        statuses: Sequence[str] | None,
        limit: int,
    ) -> PrunePage:
        """Delete what is old among the next runs."""
        return runs.prune(link, page, before, keep, statuses, limit)

    def stats(self, link: Link) -> Stats:
        """How much there is; the bytes are those of the tables and their indexes."""
        return runs.stats(link)

    def acquire(self, link: Link, run_id: str, ttl: float) -> Lease:
        """Become the owner."""
        return runs.acquire(link, run_id, ttl, self._numbers)

    def renew(self, link: Link, lease: Lease, ttl: float) -> Lease:
        """Begin the time anew."""
        return runs.renew(link, lease, ttl)

    def give_back(self, link: Link, leases: Collection[Lease]) -> None:
        """End leases."""
        runs.give_back(link, leases)

    def get(self, link: Link, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        return pairs.get(link, Name(scope, key))

    def put(self, link: Link, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        return pairs.put(link, Name(scope, key), value, expected)

    def remove(self, link: Link, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        return pairs.remove(link, Name(scope, key), expected)

    def scan(self, link: Link, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values."""
        return pairs.scan(link, Name(scope, after), limit)
