"""`PostgresBackend`: journals and values in a PostgreSQL database, which several machines may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import psycopg

from noetic_postgres.address import Address, address_of
from noetic_postgres.journals import Numbers
from noetic_postgres.link import Link
from noetic_postgres.listening import Listener
from noetic_postgres.reconnect import Reconnector, Server
from noetic_postgres.schema import VERSION, Found
from noetic_postgres.statements import statements_of
from noetic_postgres.store import PostgresStore
from noetic_py import Secret
from noetic_py.checkpoints.checks import MAX_BYTES, check_settings
from noetic_py.checkpoints.contract import BackendDurability
from noetic_py.checkpoints.server import ServerBackend

__all__ = ["PostgresBackend"]


class PostgresBackend(ServerBackend[PostgresStore]):
    """Keeps journals and values in one schema of a PostgreSQL database, version 15 or newer.

    The server is reached when it is first needed; `async with` reaches it at once, and makes the schema if it is not
    there. Leases run by the server's clock, so the clocks of the machines do not matter; after a machine has died its
    runs are free when their time is up. When a connection is lost the backend reconnects, finds out what was
    committed and does the rest; what it cannot find out within `timeout` raises
    [`StoreUnavailable`][noetic_py.errors.StoreUnavailable], reason `"unknown"`, which is a `CheckpointFailed`.

    Args:
        address: `"postgresql://user@host:5432/database"`, or the `key=value` pairs of libpq. A password may stand in
            it, in the environment as `PGPASSWORD`, or in `~/.pgpass`. A URL may end in
            `?schema=noetic&connections=4&timeout=30`.
        schema: The schema that everything is in; `"noetic"` when left out.
        connections: How many connections this backend may have at once; 4 when left out.
        timeout: How many seconds an operation may take, with everything that is tried again; 30 when left out.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.

    Raises:
        ConfigError: The address or a setting is wrong; codes `"postgres-address"` and `"postgres-setting"`.
    """

    def __init__(
        self,
        address: str | Secret[str],
        *,
        schema: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_settings(blob_threshold=blob_threshold, max_bytes=max_bytes, limit=4 * MAX_BYTES, code="postgres-setting")
        self._address = address_of(address, schema=schema, connections=connections, timeout=timeout)
        self._meeting = _Meeting(self._address)
        server = Server(self._address.where, self._address.timeout, self._meeting.connect)
        self._listener = Listener(self._address, server.timeouts)
        super().__init__(
            partial(PostgresStore, numbers=Numbers(), threshold=blob_threshold),
            connections=self._address.connections,
            name="noetic-postgres",
            where=self._address.where,
            timeout=self._address.timeout,
            reconnector=partial(Reconnector, server),
            ended=server.timeouts.close,
            max_bytes=max_bytes,
        )

    def __repr__(self) -> str:
        return f"PostgresBackend({self._address.where!r})"

    @property
    def durability(self) -> BackendDurability:
        """The durability by the server's settings; `"none"` until it was reached.

        `"power"` where it acknowledges a commit when that is on a disk, `"process"` where `fsync`, `full_page_writes`
        or `synchronous_commit` is off.
        """
        found = self._meeting.found
        return "none" if found is None else found.durability

    async def wait_for_runs(self, queues: Sequence[str], *, timeout: float) -> bool:
        """Wait until another process has made a run ready in one of the queues; returns whether it was so.

        Raises:
            StoreUnavailable: The backend was closed.
        """
        self._pool.check_open()
        heard = await self._listener.wait(queues, timeout)
        self._pool.check_open()
        return heard

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and end all connections; a second time is not an error."""
        try:
            await super().close()
        finally:
            self._listener.close()

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
