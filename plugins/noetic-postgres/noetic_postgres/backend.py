"""`PostgresBackend`: journals and values in a PostgreSQL database, which several machines may use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import psycopg
from anyio.lowlevel import checkpoint

from noetic_postgres import journals, pairs, runs
from noetic_postgres.address import Address, address_of
from noetic_postgres.doing import Keeper
from noetic_postgres.journals import Given, Numbers, given_of
from noetic_postgres.link import Link
from noetic_postgres.pool import Pool
from noetic_postgres.schema import VERSION, Found
from noetic_postgres.statements import statements_of
from noetic_postgres.sums import Name
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
from noetic_py.errors import ConfigError, CorruptRecord, LeaseLost, NoeticError

__all__ = ["PostgresBackend"]

T = TypeVar("T")

_MOST = 2**62
_PRUNED_AT_ONCE = 200
_MANY = 256
_MANY_BYTES = 8 * 1024 * 1024


class PostgresBackend:
    """Keeps journals and values in one schema of a PostgreSQL database, version 15 or newer.

    The server is reached when it is first needed; `async with` reaches it at once, and makes the schema if it is not
    there. Leases run by the server's clock, so the clocks of the machines do not matter; after a machine has died its
    runs are free when their time is up. When a connection is lost the backend connects anew, finds out what was
    committed and does the rest; what it cannot find out within `timeout` raises
    [`StoreUnavailable`][noetic_py.errors.StoreUnavailable], reason `"unknown"`, which is a `CheckpointFailed`.

    Args:
        address: `"postgresql://user@host:5432/database"`, or the `key=value` pairs of libpq. A password may stand in
            it, in the environment as `PGPASSWORD`, or in `~/.pgpass`. A URL may end in
            `?schema=noetic&connections=4&timeout=30`.
        schema: The schema that everything is in; `"noetic"` when nobody says.
        connections: How many connections this backend may have at once; 4 when nobody says.
        timeout: How many seconds an operation may take, with everything that is tried again; 30 when nobody says.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.

    Raises:
        ConfigError: The address or a setting is wrong; codes `"postgres-address"` and `"postgres-setting"`.
    """

    def __init__(
        self,
        address: str,
        *,
        schema: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if blob_threshold < 0 or not 0 < max_bytes <= MAX_BYTES * 4:
            raise ConfigError(
                "blob_threshold and max_bytes are numbers from 0 on, and max_bytes ends at 256 MiB",
                code="postgres-setting",
                hint="leave them out",
            )
        self._address = address_of(address, schema=schema, connections=connections, timeout=timeout)
        self._threshold = blob_threshold
        self._largest = max_bytes
        self._leases = _Leases()
        self._numbers = Numbers()
        self._meeting = _Meeting(self._address)
        keeper = Keeper(self._address.where, self._address.timeout, self._meeting.connect)
        together = partial(_together, numbers=self._numbers)
        self._pool = Pool(self._address.connections, keeper, together, self._leases.give_all_back)
        weakref.finalize(self, self._pool.abandon)

    def __repr__(self) -> str:
        return f"PostgresBackend({self._address.where!r})"

    @property
    def durability(self) -> BackendDurability:
        """What the server's settings promise; `"none"` until it was reached.

        `"power"` where it acknowledges a commit when that is on a disk, `"process"` where `fsync`, `full_page_writes`
        or `synchronous_commit` is off.
        """
        found = self._meeting.found
        return "none" if found is None else found.durability

    @property
    def shared(self) -> bool:
        """`True`: every machine that reaches the server sees it."""
        return True

    async def describe(self) -> Mapping[str, str]:
        """The server, its version, the schema, and what the server's settings promise."""
        await self._open()
        found = self._meeting.found
        settings = {} if found is None else found.settings
        return {
            "backend": "postgresql",
            "server": self._address.where,
            "database": "" if found is None else found.database,
            "schema": self._address.schema,
            "tables": str(VERSION),
            "postgresql": "" if found is None else found.server,
            "driver": f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__})",
            "connections": str(self._address.connections),
            **{name: settings[name] for name in sorted(settings)},
            "durability": self.durability,
            "why": "" if found is None else found.why,
        }

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
        await self._read(_nothing)

    async def _write(self, work: Callable[[Link], T]) -> T:
        return await self._pool.run(work, write=True)

    async def _read(self, work: Callable[[Link], T]) -> T:
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
        after, limit = min(after, _MOST), min(limit, _MOST)
        return await self._read(partial(journals.read, run_id=run_id, after=after, limit=limit))

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(partial(journals.head, run_id=run_id))

    async def entry(self, run_id: str) -> RunEntry | None:
        """What a list says of one run, `None` when there is no such run."""
        check_id(run_id)
        return await self._read(partial(runs.entry, run_id=run_id))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first."""
        check_page(after, limit)
        return await self._read(partial(runs.list_runs, after=after, limit=min(limit, _MOST), status=status))

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
        await self._write(partial(runs.fork, run_id=run_id, at=at, new_run_id=new_run_id, card=card, status=status))

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        check_id(run_id)
        await self._write(partial(runs.delete, run_id=run_id, numbers=self._numbers))

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds; some hundreds in one transaction.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        check_prune(before, keep)
        chosen = None if statuses is None else list(statuses)
        page, deleted = runs.PrunePage(), 0
        while page.below is not None:
            page = await self._write(
                partial(runs.prune, page=page, before=before, keep=keep, statuses=chosen, limit=_PRUNED_AT_ONCE)
            )
            deleted += page.deleted
        return deleted

    async def stats(self) -> Stats:
        """How much it holds; the bytes are those of the tables and their indexes."""
        return await self._read(runs.stats)

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, for `ttl` seconds of the server's clock.

        Raises:
            RunBusy: Another owner's lease has not run out.
        """
        check_id(run_id)
        check_ttl(ttl)
        return await self._pool.run(
            partial(runs.acquire, run_id=run_id, ttl=ttl, numbers=self._numbers),
            write=True,
            note=self._leases.put,
            # Nobody learns of this lease, so nobody would give it back.
            regret=lambda lease: self._pool.send(partial(runs.give_back, leases=[lease])),
        )

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds, counted from now.

        Raises:
            LeaseLost: Somebody else has the run, or the lease was released.
        """
        check_ttl(ttl)
        if not lease.fence:
            raise LeaseLost("this is no lease", hint="acquire the run")
        return await self._write(partial(runs.renew, lease=lease, ttl=ttl))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is no error."""
        self._leases.drop(lease)
        await self._write(partial(runs.give_back, leases=[lease]))

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        check_scope(scope)
        check_key(key)
        return await self._read(partial(pairs.get, name=Name(scope, key)))

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value; returns its new version.

        Raises:
            VersionConflict: `expected` is not the version that is there, 0 for none.
        """
        check_scope(scope)
        check_key(key)
        check_value(value, largest=self._largest)
        return await self._write(partial(pairs.put, name=Name(scope, key), value=bytes(value), expected=expected))

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: `expected` is not the version that is there.
        """
        check_scope(scope)
        check_key(key)
        return await self._write(partial(pairs.remove, name=Name(scope, key), expected=expected))

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key."""
        check_scope(scope)
        check_page(None, limit)
        if after is not None:
            check_key(after)
        return await self._read(partial(pairs.scan, name=Name(scope, after or ""), limit=min(limit, _MOST)))


class _Leases:
    """The leases that were given to this process, which are given back at the end."""

    def __init__(self) -> None:
        self._held: set[Lease] = set()

    def put(self, lease: Lease) -> None:
        self._held.add(lease)

    def drop(self, lease: Lease) -> None:
        self._held.discard(lease)

    def give_all_back(self, link: Link) -> None:
        runs.give_back(link, tuple(self._held))


class _Meeting:
    """Makes connections, and knows what was found at the other end."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._statements = statements_of(address.schema)
        self.found: Found | None = None

    def connect(self, seconds: float) -> Link:
        return Link(self._address, self._statements, self._met, seconds=seconds)

    def _met(self, found: Found) -> None:
        self.found = found


def _together(link: Link, all_given: Sequence[Given], numbers: Numbers) -> Sequence[int | NoeticError]:
    return journals.append(link, all_given, numbers)


def _nothing(link: Link) -> None:
    """Reach the server, and do nothing."""
