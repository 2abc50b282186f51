"""The shape of a backend of this machine: one store, opened in a thread of the backend's own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio

from noetic_py.checkpoints._local.moments import micros
from noetic_py.checkpoints._local.pages import PrunePage
from noetic_py.checkpoints._local.worker import Opened, Worker
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
from noetic_py.checkpoints.packing import pack_scope
from noetic_py.errors import ConfigError, LeaseLost, NoeticError
from noetic_py.runtime import Runtime

__all__ = ["LocalBackend", "LocalStore", "check_settings"]

T = TypeVar("T")

_MOST = 2**62


def check_settings(busy_timeout: float, blob_threshold: int, max_bytes: int, *, code: str) -> None:
    """Refuse settings that are none.

    Raises:
        ConfigError: One is wrong.
    """
    if busy_timeout < 0 or blob_threshold < 0 or not 0 < max_bytes <= MAX_BYTES * 8:
        raise ConfigError(
            "busy_timeout, blob_threshold and max_bytes are numbers from 0 on, and max_bytes ends at 512 MiB",
            code=code,
            hint="leave them out",
        )


class LocalStore(Opened, Protocol):
    """An open store: every method is done in its thread, and refuses by the rules of `CheckpointBackend`."""

    def append(self, given: Transaction, now: int) -> int: ...
    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]: ...
    def head(self, run_id: str) -> Head | None: ...
    def entry(self, run_id: str) -> RunEntry | None: ...
    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]: ...
    def fork(self, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None, now: int) -> None: ...
    def delete(self, run_id: str) -> None: ...
    def prune(
        self, page: PrunePage, before: int | None, keep: int | None, statuses: Collection[str] | None, limit: int
    ) -> PrunePage: ...
    def stats(self) -> Stats: ...
    def acquire(self, run_id: str, now: int) -> Lease: ...
    def renew(self, lease: Lease) -> Lease: ...
    def give_back(self, lease: Lease) -> None: ...
    def get(self, scope: bytes, key: str) -> StoredValue | None: ...
    def put(self, scope: bytes, key: str, value: bytes, expected: int | None) -> int: ...
    def remove(self, scope: bytes, key: str, expected: int | None) -> bool: ...
    def scan(self, scope: bytes, after: str | None, limit: int) -> Sequence[StoredValue]: ...


S = TypeVar("S", bound=LocalStore)


class LocalBackend(Generic[S]):
    """What backends have in common whose store is opened in a thread of their own.

    Args:
        workers: What does the work; the first one writes.
        largest: The largest transaction, and the largest value of a key, in bytes.
        runtime: The clock of `created` and `updated`.
    """

    _pruned_at_once = 200

    def __init__(self, *workers: Worker[S], largest: int, runtime: Runtime) -> None:
        self._workers = workers
        self._worker = workers[0]
        self._largest = largest
        self._runtime = runtime
        weakref.finalize(self, _abandon, *workers)

    @property
    def durability(self) -> BackendDurability:
        """`"power"`: every commit is on the disk before it is acknowledged."""
        return "power"

    @property
    def shared(self) -> bool:
        """`False`: other processes of this machine see it, other machines do not."""
        return False

    async def describe(self) -> Mapping[str, str]:
        """What it is and how it is set up."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and close the file; a second time is no error."""
        try:
            for worker in self._workers[1:]:
                await worker.close()
        finally:
            await self._worker.close()

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
        await self._worker.run(_nothing, write=False)

    async def _write(self, work: Callable[[S], T]) -> T:
        return await self._worker.run(work, write=True)

    async def _write_all(self, works: Iterable[Callable[[S], T]]) -> Sequence[T | NoeticError]:
        return await self._worker.run_all(works)

    async def _read(self, work: Callable[[S], T]) -> T:
        return await self._worker.run(work, write=False)

    def _now(self) -> int:
        return micros(self._runtime.now())

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
        """Append one transaction; see [`CheckpointBackend.append`][noetic_py.CheckpointBackend.append].

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: It is too large.
        """
        given = Transaction(run_id, expected_position, fence, records, card, status)
        return await self._write(self._appending(given))

    def _appending(self, given: Transaction) -> Callable[[S], int]:
        check_id(given.run_id)
        check_append(given.records, given.card, given.status, largest=self._largest)
        now = self._now()
        return lambda store: store.append(given, now)

    async def append_many(self, transactions: Sequence[Transaction]) -> Sequence[int | NoeticError]:
        """Append to several runs at once, each transaction with an outcome of its own."""
        outcomes: dict[int, int | NoeticError] = {}
        works: dict[int, Callable[[S], int]] = {}
        for index, given in enumerate(transactions):
            try:
                works[index] = self._appending(given)
            except NoeticError as error:
                outcomes[index] = error
        outcomes |= zip(works, await self._write_all(works.values()), strict=True)
        return [outcomes[index] for index in range(len(outcomes))]

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on; it ends early when it has become large.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: What is stored is not what was written.
        """
        check_id(run_id)
        check_page(after, limit)
        return await self._read(lambda store: store.read(run_id, after, limit))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(lambda store: store.head(run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(lambda store: store.entry(run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        return await self._read(lambda store: store.list(after, min(limit, _MOST), status))

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
        now = self._now()
        await self._write(lambda store: store.fork(run_id, at, new_run_id, card, status, now))

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._write(lambda store: store.delete(run_id))

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds at once.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
        oldest = None if before is None else micros(before)
        page, deleted = PrunePage(), 0
        while page.below is not None:
            page = await self._write(self._pruning(page, oldest, keep, statuses))
            deleted += page.deleted
        return deleted

    def _pruning(
        self, page: PrunePage, oldest: int | None, keep: int | None, statuses: Collection[str] | None
    ) -> Callable[[S], PrunePage]:
        return lambda store: store.prune(page, oldest, keep, statuses, self._pruned_at_once)

    async def stats(self) -> Stats:
        """How much it holds."""
        return await self._read(lambda store: store.stats())

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, until the lease is given back or this process ends.

        Raises:
            RunBusy: Another owner holds it.
        """
        check_id(run_id)
        check_ttl(ttl)
        given: list[Lease] = []
        now = self._now()

        def work(store: S) -> Lease:
            lease = store.acquire(run_id, now)
            given[:] = [lease]
            return lease

        try:
            return await self._write(work)
        except anyio.get_cancelled_exc_class():
            # Nobody learns of this lease, so nobody would give it back.
            for lease in given:
                self._worker.send(partial(_give_back, lease=lease))
            raise

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Say whether a lease is still held; while its owner lives it does not run out.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("this is no lease", hint="acquire the run")
        return await self._read(lambda store: store.renew(lease))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        await self._write(lambda store: store.give_back(lease))

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        return await self._read(lambda store: store.get(pack_scope(scope), key))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        kept = bytes(value)
        return await self._write(lambda store: store.put(pack_scope(scope), key, kept, expected))

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        return await self._write(lambda store: store.remove(pack_scope(scope), key, expected))

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        return await self._read(lambda store: store.scan(pack_scope(scope), after, min(limit, _MOST)))


def _nothing(store: object) -> None:
    """Open the store, and do nothing."""


def _give_back(store: LocalStore, lease: Lease) -> None:
    store.give_back(lease)


def _abandon(*workers: Worker[S]) -> None:
    for worker in workers:
        worker.abandon()
