"""A backend whose store is a server: what it checks, and which of its threads does the work.

What differs from server to server is a connection and the `Operations` on it; all that programs see of a backend is
here, once.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from anyio.lowlevel import checkpoint
from attrs import frozen

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
from noetic_py.checkpoints.packing import Packed, pack
from noetic_py.checkpoints.threads import Doer, Pool
from noetic_py.errors import ConfigError, CorruptRecord, LeaseLost, NoeticError

__all__ = ["FARTHEST", "Given", "Operations", "PrunePage", "ServedBackend", "check_settings", "given_of"]

T = TypeVar("T")
L = TypeVar("L")
L_contra = TypeVar("L_contra", contravariant=True)

FARTHEST = 2**53
"""No position and no number of a run is larger; a double holds all numbers below."""
_PRUNED_AT_ONCE = 200
_MANY = 256
_MANY_BYTES = 8 * 1024 * 1024


@frozen(eq=False)
class Given:
    """A transaction that is to be appended.

    Attributes:
        what: The transaction.
        packed: Its records.
        size: How many bytes they have.
    """

    what: Transaction
    packed: Packed
    size: int


def given_of(what: Transaction, threshold: int) -> Given:
    """Pack a transaction; payloads longer than `threshold` go apart."""
    packed = pack(what.records, threshold=threshold)
    return Given(what, packed, len(packed.body) + sum(map(len, packed.blobs.values())))


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


def check_settings(blob_threshold: int, max_bytes: int, code: str) -> None:
    """Refuse sizes that are none.

    Raises:
        ConfigError: They are, with this code.
    """
    if blob_threshold < 0 or not 0 < max_bytes <= MAX_BYTES * 4:
        raise ConfigError(
            "blob_threshold and max_bytes are numbers from 0 on, and max_bytes ends at 256 MiB",
            code=code,
            hint="leave them out",
        )


class Operations(Protocol[L_contra]):
    """What one thread does on its connection; each raises what the method of the backend says.

    Ids, keys, pages and sizes were checked before.
    """

    def append(self, link: L_contra, given: Sequence[Given], /) -> Sequence[int | NoeticError]:
        """Append transactions, each with an outcome of its own."""
        ...

    def read(self, link: L_contra, run_id: str, after: int, limit: int, /) -> Sequence[Record]:
        """A page of records."""
        ...

    def head(self, link: L_contra, run_id: str, /) -> Head | None:
        """Where a journal ends."""
        ...

    def entry(self, link: L_contra, run_id: str, /) -> RunEntry | None:
        """One run, as lists show it."""
        ...

    def list_runs(self, link: L_contra, after: int | None, limit: int, status: str | None, /) -> Sequence[RunEntry]:
        """A page of runs."""
        ...

    def fork(
        self, link: L_contra, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None, /
    ) -> None:
        """Make a run that shares a journal's beginning."""
        ...

    def delete(self, link: L_contra, run_id: str, /) -> None:
        """Forget a run."""
        ...

    def prune(
        self,
        link: L_contra,
        page: PrunePage,
        before: datetime | None,
        keep: int | None,
        statuses: Sequence[str] | None,
        limit: int,
        /,
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first."""
        ...

    def stats(self, link: L_contra, /) -> Stats:
        """How much there is."""
        ...

    def acquire(self, link: L_contra, run_id: str, ttl: float, /) -> Lease:
        """Become the owner until the server's clock says that the time is up."""
        ...

    def renew(self, link: L_contra, lease: Lease, ttl: float, /) -> Lease:
        """Begin the time anew."""
        ...

    def give_back(self, link: L_contra, leases: Collection[Lease], /) -> None:
        """End leases; those that are not held any more are left as they are."""
        ...

    def get(self, link: L_contra, scope: Scope, key: str, /) -> StoredValue | None:
        """The value of a key."""
        ...

    def put(self, link: L_contra, scope: Scope, key: str, value: bytes, expected: int | None, /) -> int:
        """Give a key a value."""
        ...

    def remove(self, link: L_contra, scope: Scope, key: str, expected: int | None, /) -> bool:
        """Take a key's value away."""
        ...

    def scan(self, link: L_contra, scope: Scope, after: str, limit: int, /) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        ...


class ServedBackend(ABC, Generic[L]):
    """The methods of [`CheckpointBackend`][noetic_py.CheckpointBackend] on a server.

    A class below it says what it is.

    Args:
        operations: What is done on a connection.
        connections: How many connections there may be.
        name: What the threads are called.
        where: The server, for messages.
        timeout: How many seconds an operation may take.
        doer: Makes what does the work of one thread.
        ended: Called when all threads have ended.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
    """

    def __init__(
        self,
        operations: Operations[L],
        *,
        connections: int,
        name: str,
        where: str,
        timeout: float,
        doer: Callable[[], Doer[L]],
        ended: Callable[[], None] | None = None,
        blob_threshold: int,
        max_bytes: int,
    ) -> None:
        self._operations = operations
        self._threshold = blob_threshold
        self._largest = max_bytes
        self._leases: set[Lease] = set()
        pool: Pool[L] = Pool(
            connections,
            name=name,
            where=where,
            timeout=timeout,
            doer=doer,
            together=operations.append,
            leave=partial(_give_all_back, operations, self._leases),
            ended=ended,
        )
        self._pool = pool
        weakref.finalize(self, pool.abandon)

    @property
    @abstractmethod
    def durability(self) -> BackendDurability:
        """What a finished write survives; `"none"` until the server was reached."""

    @abstractmethod
    async def describe(self) -> Mapping[str, str]:
        """What it is and how it is set up, for people; holds no secrets."""

    @property
    def shared(self) -> bool:
        """`True`: every machine that reaches the server sees it."""
        return True

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and close the connections; a second time is no error.

        A lease that cannot be given back, because the server is away, runs out.
        """
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        """Reach the server."""
        await self._pool.run(_nothing, write=False)

    async def _begin(self) -> None:
        """What every operation begins with; nothing, unless a class below says so."""

    async def _write(self, work: Callable[[L], T]) -> T:
        await self._begin()
        return await self._pool.run(work, write=True)

    async def _read(self, work: Callable[[L], T]) -> T:
        await self._begin()
        return await self._pool.run(work, write=False)

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
            CheckpointFailed: It was not taken, and why; or nobody knows, reason `"unknown"`.
            CodecError: A record holds a reference and no payload.
            LimitExceeded: It is too large.
        """
        given = self._given(Transaction(run_id, expected_position, fence, records, card, status))
        await self._begin()
        (outcome,) = await self._pool.run_together([given], given.size)
        if isinstance(outcome, NoeticError):
            raise outcome
        position: int = outcome
        return position

    def _given(self, what: Transaction) -> Given:
        check_id(what.run_id)
        check_append(what.records, what.card, what.status, largest=self._largest)
        return given_of(what, self._threshold)

    async def append_many(self, transactions: Sequence[Transaction]) -> Sequence[int | NoeticError]:
        """Append to several runs at once, each transaction with an outcome of its own; hundreds share one commit."""
        self._pool.check_open()
        await self._begin()
        outcomes: dict[int, int | NoeticError] = {}
        chunk: dict[int, Given] = {}
        size = 0
        for index, what in enumerate(transactions):
            try:
                given = self._given(what)
            except NoeticError as error:
                outcomes[index] = error
                continue
            if len(chunk) == _MANY or (chunk and size + given.size > _MANY_BYTES):
                outcomes |= await self._append_chunk(chunk, size)
                chunk, size = {}, 0
            chunk[index] = given
            size += given.size
        outcomes |= await self._append_chunk(chunk, size)
        return [outcomes[index] for index in range(len(outcomes))]

    async def _append_chunk(self, chunk: Mapping[int, Given], size: int) -> dict[int, int | NoeticError]:
        if not chunk:
            await checkpoint()
            return {}
        try:
            found: Sequence[int | NoeticError] = await self._pool.run_together(list(chunk.values()), size)
        except CorruptRecord as error:
            if len(chunk) == 1:
                return dict.fromkeys(chunk, error)
            # One run is damaged, and the others are not.
            alone = [await self._append_chunk({index: given}, given.size) for index, given in chunk.items()]
            return {index: outcome for each in alone for index, outcome in each.items()}
        except NoeticError as error:
            return dict.fromkeys(chunk, error)
        return dict(zip(chunk, found, strict=True))

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on; it ends early when it has become large.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: What is stored is not what was written.
        """
        check_id(run_id)
        check_page(after, limit)
        after, limit = min(after, FARTHEST), min(limit, FARTHEST)
        return await self._read(lambda link: self._operations.read(link, run_id, after, limit))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(lambda link: self._operations.head(link, run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(lambda link: self._operations.entry(link, run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        return await self._read(lambda link: self._operations.list_runs(link, after, min(limit, FARTHEST), status))

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
        await self._write(lambda link: self._operations.fork(link, run_id, at, new_run_id, card, status))

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._write(lambda link: self._operations.delete(link, run_id))

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds in one transaction.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
        chosen = None if statuses is None else list(statuses)
        page, deleted = PrunePage(), 0
        while page.below is not None:
            page = await self._write(partial(self._prune, page=page, before=before, keep=keep, statuses=chosen))
            deleted += page.deleted
        return deleted

    def _prune(
        self,
        link: L,
        page: PrunePage,
        before: datetime | None,
        keep: int | None,
        statuses: Sequence[str] | None,
    ) -> PrunePage:
        return self._operations.prune(link, page, before, keep, statuses, _PRUNED_AT_ONCE)

    async def stats(self) -> Stats:
        """How much it holds; what the bytes are of is the server's."""
        return await self._read(self._operations.stats)

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, for `ttl` seconds of the server's clock.

        Raises:
            RunBusy: Another owner's lease has not run out.
        """
        check_id(run_id)
        check_ttl(ttl)
        await self._begin()
        return await self._pool.run(
            lambda link: self._operations.acquire(link, run_id, ttl),
            write=True,
            note=self._leases.add,
            regret=self._regret,
        )

    def _regret(self, lease: Lease) -> None:
        # Nobody learns of this lease, so nobody would give it back.
        self._pool.send(lambda link: self._operations.give_back(link, [lease]))

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds, counted from now.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("this is no lease", hint="acquire the run")
        return await self._write(lambda link: self._operations.renew(link, lease, ttl))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        self._leases.discard(lease)
        await self._write(lambda link: self._operations.give_back(link, [lease]))

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        return await self._read(lambda link: self._operations.get(link, scope, key))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        kept = bytes(value)
        return await self._write(lambda link: self._operations.put(link, scope, key, kept, expected))

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        return await self._write(lambda link: self._operations.remove(link, scope, key, expected))

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        return await self._read(lambda link: self._operations.scan(link, scope, after or "", min(limit, FARTHEST)))


def _give_all_back(operations: Operations[L], leases: Collection[Lease], link: L) -> None:
    operations.give_back(link, tuple(leases))


def _nothing(link: object) -> None:
    """Reach the server, and do nothing."""
