"""`InMemoryBackend`: journals and values in this process, for as long as the backend lives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py.checkpoints.backend import (
    BackendDurability,
    Head,
    Lease,
    Record,
    RunEntry,
    Scope,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.checkpoints.checks import (
    MAX_BYTES,
    check_append,
    check_id,
    check_key,
    check_page,
    check_prune,
    check_scope,
    check_ttl,
    check_value,
)
from noetic_py.errors import (
    LeaseLost,
    NoeticError,
    PositionConflict,
    RunBusy,
    RunNotFound,
    StoreUnavailable,
    VersionConflict,
)
from noetic_py.runtime import SYSTEM, Runtime

__all__ = ["InMemoryBackend"]


@define(eq=False)
class _Journal:
    """A run's records, and who may append to them.

    Attributes:
        ends: Where transactions end.
    """

    number: int
    created: datetime
    updated: datetime
    records: list[Record] = field(factory=list[Record])
    ends: list[int] = field(factory=list[int])
    status: str | None = None
    card: bytes = b""
    fence: int = 0
    held: Lease | None = None
    until: float = 0.0

    @property
    def position(self) -> int:
        return len(self.records)


class InMemoryBackend:
    """Keeps journals and values in memory, records as the objects they are. Nothing survives the process.

    `Harness(checkpoints=InMemoryBackend())` keeps the journals of its runs until `delete` or `prune` is called.

    Args:
        runtime: The clock that leases run by.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
    """

    def __init__(self, *, runtime: Runtime = SYSTEM, max_bytes: int = MAX_BYTES) -> None:
        self._runtime = runtime
        self._largest = max_bytes
        self._runs: dict[str, _Journal] = {}
        self._values: dict[Scope, dict[str, StoredValue]] = {}
        self._ticks = 0
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
        """What it is."""
        await self._begin()
        return {"backend": "memory", "why": "nothing is kept longer than the backend"}

    async def close(self) -> None:
        """Forget everything; a second time is no error."""
        await checkpoint()
        self._closed = True
        self._runs.clear()
        self._values.clear()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def _begin(self) -> None:
        """What every method begins with: others get a turn, and after it nothing is waited for."""
        await checkpoint()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the backend was closed", where="memory", reason="closed", hint="make a new one")

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    # -- journals

    def _create(self, run_id: str) -> _Journal:
        now = self._runtime.now()
        kept = self._runs[run_id] = _Journal(self._tick(), now, now)
        return kept

    def _get(self, run_id: str) -> _Journal:
        kept = self._runs.get(run_id)
        if kept is None:
            raise RunNotFound("there is no such run", hint="look at the run's id, and at the backend it was written to")
        return kept

    def _is_held(self, kept: _Journal) -> bool:
        return kept.held is not None and self._runtime.monotonic() < kept.until

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
        """Append one transaction; see [`CheckpointBackend.append`][noetic_py.CheckpointBackend.append].

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            LimitExceeded: It is too large.
        """
        await self._begin()
        return self._append(Transaction(run_id, expected_position, fence, records, card, status))

    def _append(self, given: Transaction) -> int:
        check_id(given.run_id)
        check_append(given.records, given.card, given.status, largest=self._largest, payloads=False)
        kept = self._runs.get(given.run_id)
        position, fence = (0, 0) if kept is None else (kept.position, kept.fence)
        if given.fence != fence:
            raise LeaseLost(f"fence {given.fence} is not {fence}, the latest", hint="acquire the run again")
        if given.expected_position != position:
            raise PositionConflict(
                f"the journal ends at {position}, not at {given.expected_position}", hint="read it again, then append"
            )
        if kept is None:
            kept = self._create(given.run_id)
        kept.records.extend(given.records)
        if given.records:
            kept.ends.append(kept.position)
        kept.updated = self._runtime.now()
        kept.card = kept.card if given.card is None else bytes(given.card)
        kept.status = kept.status if given.status is None else given.status
        return kept.position

    async def append_many(self, transactions: Sequence[Transaction]) -> Sequence[int | NoeticError]:
        """Append to several runs at once, each transaction with an outcome of its own."""
        await self._begin()
        outcomes: list[int | NoeticError] = []
        for given in transactions:
            try:
                outcomes.append(self._append(given))
            except NoeticError as error:
                outcomes.append(error)
        return outcomes

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on.

        Raises:
            RunNotFound: There is no such run.
        """
        check_id(run_id)
        check_page(after, limit)
        await self._begin()
        return self._get(run_id).records[after : after + limit]

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        await self._begin()
        kept = self._runs.get(run_id)
        return None if kept is None else Head(kept.position, kept.fence)

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        await self._begin()
        kept = self._runs.get(run_id)
        return None if kept is None else self._entry(run_id, kept)

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        await self._begin()
        page: list[RunEntry] = []
        # Runs are kept in the order in which they were made.
        for run_id, kept in reversed(self._runs.items()):
            if (after is None or kept.number < after) and (status is None or kept.status == status):
                page.append(self._entry(run_id, kept))
            if len(page) == limit:
                break
        return page

    def _entry(self, run_id: str, kept: _Journal) -> RunEntry:
        return RunEntry(
            run_id=run_id,
            position=kept.position,
            status=kept.status,
            card=kept.card,
            created=kept.created,
            updated=kept.updated,
            held=self._is_held(kept),
            cursor=kept.number,
        )

    async def fork(
        self, run_id: str, *, at: int, new_run_id: str, card: bytes | None = None, status: str | None = None
    ) -> None:
        """Make a run whose journal is the first `at` records of another's.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is no transaction's end, or the new run exists.
        """
        check_id(run_id)
        check_id(new_run_id, "new_run_id")
        check_append((), card, status)
        await self._begin()
        kept = self._get(run_id)
        place = bisect_left(kept.ends, at)
        if at not in (0, kept.position) and (place == len(kept.ends) or kept.ends[place] != at):
            raise PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")
        if new_run_id in self._runs:
            raise PositionConflict(f"run {new_run_id!r} exists already", hint="fork to a new id")
        made = self._create(new_run_id)
        made.records, made.ends = kept.records[:at], [end for end in kept.ends if end <= at]
        made.card, made.status = card or b"", status

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._begin()
        kept = self._runs.get(run_id)
        if kept is not None and self._is_held(kept):
            raise RunBusy("an owner holds the run", hint="wait for it to end, then delete it")
        self._runs.pop(run_id, None)

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
        await self._begin()
        old = list(self._old(before, keep or 0, statuses))
        for run_id in old:
            del self._runs[run_id]
        return len(old)

    def _old(self, before: datetime | None, keep: int, statuses: Collection[str] | None) -> Iterator[str]:
        left = 0
        for run_id, kept in reversed(self._runs.items()):
            if statuses is not None and kept.status not in statuses:
                continue
            if left < keep:
                left += 1
            elif (before is None or kept.updated < before) and not self._is_held(kept):
                yield run_id

    async def stats(self) -> Stats:
        """How much it holds; references count as no bytes."""
        await self._begin()
        values = [value for scope in self._values.values() for value in scope.values()]
        payloads = sum(len(record.payload) for kept in self._runs.values() for record in kept.records)
        return Stats(
            runs=len(self._runs),
            records=sum(kept.position for kept in self._runs.values()),
            values=len(values),
            blobs=0,
            bytes=payloads + sum(len(value.value) for value in values),
        )

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer for `ttl` seconds.

        Raises:
            RunBusy: Another owner's lease has not run out.
        """
        check_id(run_id)
        check_ttl(ttl)
        await self._begin()
        kept = self._runs.get(run_id) or self._create(run_id)
        if self._is_held(kept):
            raise RunBusy("another owner holds the run", hint="wait for it to end, or for its lease to run out")
        kept.fence = self._tick()
        kept.held = Lease(run_id, kept.fence)
        kept.until = self._runtime.monotonic() + ttl
        return kept.held

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        check_ttl(ttl)
        await self._begin()
        kept = self._runs.get(lease.run_id)
        if kept is None or kept.held != lease:
            raise LeaseLost("the lease is not held any more", hint="acquire the run again")
        kept.until = self._runtime.monotonic() + ttl
        return lease

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        await self._begin()
        kept = self._runs.get(lease.run_id)
        if kept is not None and kept.held == lease:
            kept.held = None

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        await self._begin()
        return self._values.get(scope, {}).get(key)

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        await self._begin()
        self._expect(scope, key, expected)
        stored = StoredValue(key, bytes(value), self._tick())
        self._values.setdefault(scope, {})[key] = stored
        return stored.version

    def _expect(self, scope: Scope, key: str, expected: int | None) -> None:
        found = self._values.get(scope, {}).get(key)
        version = 0 if found is None else found.version
        if expected is not None and expected != version:
            raise VersionConflict(f"the key has version {version}, not {expected}", hint="read it again, then write")

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        await self._begin()
        self._expect(scope, key, expected)
        values = self._values.get(scope, {})
        removed = values.pop(key, None) is not None
        if not values:
            self._values.pop(scope, None)
        return removed

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        await self._begin()
        values = self._values.get(scope, {})
        keys = sorted(key for key in values if after is None or key > after)
        return [values[key] for key in keys[:limit]]
