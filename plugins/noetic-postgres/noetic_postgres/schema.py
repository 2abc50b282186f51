"""The tables, made once by the first session that needs them, and what a server has to be."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import psycopg
from attrs import frozen
from psycopg import sql

from noetic_postgres.failures import from_server
from noetic_py.checkpoints.contract import BackendDurability
from noetic_py.errors import CorruptRecord, StoreUnavailable

__all__ = ["CREATING", "IDLE", "OLDEST", "VERSION", "Found", "check_server", "lock_of", "prepare"]

VERSION = 4
"""The version of the tables."""
OLDEST = 15
"""The oldest server, by its major version."""

CREATING = 0x6E6F65746963
"""The number of the lock under which tables are made."""
IDLE = 5.0
"""Seconds after which the server undoes a transaction that its client has stopped in, and frees the rows it holds."""
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "server_encoding")

_SCHEMA = sql.SQL("CREATE SCHEMA {schema}")
_TABLES = sql.SQL(
    """
    CREATE SEQUENCE {schema}.ticks AS bigint;
    CREATE TABLE {schema}.store (
        id smallint PRIMARY KEY CHECK (id = 1), version integer NOT NULL, salt bytea NOT NULL,
        created timestamptz NOT NULL
    );
    CREATE TABLE {schema}.runs (
        id bigint PRIMARY KEY, run_id text COLLATE "C" NOT NULL UNIQUE, position bigint NOT NULL,
        fence bigint NOT NULL, crc bigint NOT NULL, until timestamptz, created timestamptz NOT NULL,
        updated timestamptz NOT NULL, status text COLLATE "C", status_crc bigint NOT NULL, card bytea NOT NULL,
        card_crc bigint NOT NULL
    ) WITH (fillfactor = 60);
    CREATE INDEX runs_by_status ON {schema}.runs (status, id);
    CREATE TABLE {schema}.shared (
        run bigint NOT NULL, upto bigint NOT NULL, stream bigint NOT NULL, crc bigint NOT NULL,
        PRIMARY KEY (run, upto)
    );
    CREATE INDEX shared_by_stream ON {schema}.shared (stream, upto);
    CREATE TABLE {schema}.transactions (
        stream bigint NOT NULL, last bigint NOT NULL, count bigint NOT NULL, size bigint NOT NULL,
        crc bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (stream, last)
    );
    CREATE TABLE {schema}.blobs (sha256 bytea PRIMARY KEY, data bytea NOT NULL);
    CREATE TABLE {schema}.uses (
        stream bigint NOT NULL, sha256 bytea NOT NULL, first bigint NOT NULL, PRIMARY KEY (stream, sha256)
    );
    CREATE INDEX uses_by_blob ON {schema}.uses (sha256);
    CREATE TABLE {schema}.pairs (
        name bytea PRIMARY KEY, scope_sha bytea NOT NULL, scope bytea NOT NULL, key text COLLATE "C" NOT NULL,
        version bigint NOT NULL, crc bigint NOT NULL, value bytea NOT NULL
    );
    CREATE INDEX pairs_by_key ON {schema}.pairs (scope_sha, left(key, 500));
    CREATE TABLE {schema}.sessions (
        id bigint PRIMARY KEY, last bigint NOT NULL, used timestamptz NOT NULL
    ) WITH (fillfactor = 20);
    """
)
_QUEUES = sql.SQL(
    """
    CREATE TABLE {schema}.queued (
        run bigint PRIMARY KEY, queue text COLLATE "C" NOT NULL, flow text COLLATE "C" NOT NULL,
        at double precision, priority bigint NOT NULL, crc bigint NOT NULL, lives bigint NOT NULL, fence bigint NOT NULL
    ) WITH (fillfactor = 60);
    CREATE INDEX queued_by_turn ON {schema}.queued (queue, priority DESC, at, run) WHERE at IS NOT NULL;
    CREATE TABLE {schema}.signals (
        run bigint NOT NULL, number bigint NOT NULL, name bytea NOT NULL, key text COLLATE "C" NOT NULL,
        crc bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (run, number)
    );
    CREATE UNIQUE INDEX signals_by_name ON {schema}.signals (run, name);
    """
)
_BUDGETS = sql.SQL(
    """
    CREATE TABLE {schema}.budgets (
        name text COLLATE "C" NOT NULL, period text COLLATE "C" NOT NULL, crc bigint NOT NULL, body bytea NOT NULL,
        PRIMARY KEY (name, period)
    ) WITH (fillfactor = 60);
    """
)
# Due is a run whose time is known to be over, and that no worker has: the index that claims read has these alone.
_KEYS = sql.SQL(
    """
    ALTER TABLE {schema}.queued
        ADD COLUMN key text COLLATE "C" NOT NULL DEFAULT '', ADD COLUMN due boolean NOT NULL DEFAULT false;
    DROP INDEX {schema}.queued_by_turn;
    CREATE INDEX queued_by_turn ON {schema}.queued (queue, key, priority DESC, at, run) WHERE due;
    CREATE INDEX queued_asleep ON {schema}.queued (at) WHERE NOT due AND lives = 0;
    CREATE INDEX queued_at_work ON {schema}.queued (queue, key) WHERE lives > 0 AND NOT due;
    """
)
_UPGRADES = {1: _QUEUES, 2: _BUDGETS, 3: _KEYS}
"""By the version that the tables have: what makes them those of the next."""
_FIND = sql.SQL("SELECT version, salt FROM {schema}.store")
_INSERT = sql.SQL("INSERT INTO {schema}.store VALUES (1, %s, %s, now())")
_UPGRADED = sql.SQL("UPDATE {schema}.store SET version = %s")


@frozen
class Found:
    """A store that is ready.

    Attributes:
        salt: Where its checksums begin.
        server: The server's version, such as `"15.14"`.
        database: The database's name.
        settings: What the server says of those of its settings that decide what a commit survives.
    """

    salt: bytes
    server: str
    database: str
    settings: dict[str, str]

    @property
    def durability(self) -> BackendDurability:
        """The durability of a commit with these settings."""
        safe = self.settings["fsync"] == self.settings["full_page_writes"] == "on"
        return "power" if safe and self.settings["synchronous_commit"] != "off" else "process"

    @property
    def why(self) -> str:
        """Why it survives that, in words."""
        if self.settings["fsync"] != "on":
            return "fsync is off, so the server acknowledges what is not on a disk yet"
        if self.settings["full_page_writes"] != "on":
            return "full_page_writes is off, so a loss of power can leave half a page"
        if self.settings["synchronous_commit"] == "off":
            return "synchronous_commit is off, so the server acknowledges what is not on a disk yet"
        return "the server acknowledges a commit when it is on a disk"


def lock_of(schema: str) -> int:
    """The number of the lock under which a schema's blobs are collected."""
    return int.from_bytes(hashlib.sha256(f"noetic {schema}".encode()).digest()[:7], "big")


def check_server(version: int, where: str) -> None:
    """Refuse a server that is too old.

    Args:
        version: As the driver says it, such as 150014.
        where: The server, for the error.

    Raises:
        StoreUnavailable: It is; reason `"server"`.
    """
    if version // 10_000 < OLDEST:
        raise StoreUnavailable(
            f"{where}: PostgreSQL {version // 10_000} is too old",
            where=where,
            reason="server",
            hint=f"PostgreSQL {OLDEST} or newer",
        )


def prepare(connection: psycopg.Connection[tuple[Any, ...]], schema: str, where: str, *, lock: float) -> Found:
    """Set a connection up, and make the tables if they are not there; a lock is waited for so many seconds.

    Raises:
        StoreUnavailable: They cannot be made, or are of a newer release.
        CorruptRecord: They have lost what they began with.
    """
    check_server(connection.info.server_version, where)
    # Names are looked up in the catalog alone, and each statement sees what was committed before it.
    connection.execute(
        "SELECT set_config('search_path', 'pg_catalog', false),"
        " set_config('default_transaction_isolation', 'read committed', false),"
        " set_config('idle_in_transaction_session_timeout', %s, false)",
        [f"{IDLE * 1000:.0f}"],
    )
    # A shorter time, which an administrator or the address may have set, holds.
    connection.execute(
        "SELECT set_config('lock_timeout', LEAST(NULLIF(setting::bigint, 0), %s)::text, false)"
        " FROM pg_settings WHERE name = 'lock_timeout'",
        [max(1, int(lock * 1000))],
    )
    settings = _settings(connection)
    if settings["server_encoding"] != "UTF8":
        raise StoreUnavailable(
            f"{where}: the database's encoding is {settings['server_encoding']}",
            where=where,
            reason="server",
            hint="createdb --encoding=UTF8 --template=template0 NAME",
        )
    salt = _find(connection, schema, where) or _make(connection, schema, where)
    return Found(salt, connection.info.parameter_status("server_version") or "", connection.info.dbname, settings)


def _settings(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, str]:
    row = connection.execute(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'),"
        " current_setting('synchronous_commit'), current_setting('server_encoding')"
    ).fetchone()
    return dict(zip(_SETTINGS, row or (), strict=True))


def _find(connection: psycopg.Connection[tuple[Any, ...]], schema: str, where: str) -> bytes | None:
    """The salt of a store that is there; `None` also where its tables are those of an earlier release."""
    try:
        row = connection.execute(_FIND.format(schema=sql.Identifier(schema)), binary=True).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    except psycopg.errors.UndefinedColumn as error:
        raise from_server(error, where) from None
    if row is None or not isinstance(row[1], bytes):
        raise CorruptRecord(f"{where}: the store has lost its salt", hint="restore a copy of the database")
    if row[0] in _UPGRADES:
        return None
    if row[0] != VERSION:
        raise StoreUnavailable(
            f"{where}: the tables have version {row[0]}, and this release knows {VERSION}",
            where=where,
            reason="newer",
            hint="upgrade noetic-postgres, or give another schema=",
        )
    return row[1]


def _make(connection: psycopg.Connection[tuple[Any, ...]], schema: str, where: str) -> bytes:
    """Make the tables, or those that were added since, unless another session does so at this moment."""
    there = None
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATING])
            name = sql.Identifier(schema)
            # IF NOT EXISTS needs the right to create schemas even where the schema exists.
            if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone():
                connection.execute(_SCHEMA.format(schema=name))
            there = connection.execute(
                "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relname = 'store'",
                [schema],
            ).fetchone()
            if there is None:
                connection.execute(_TABLES.format(schema=name))
                for added in _UPGRADES.values():
                    connection.execute(added.format(schema=name))
                connection.execute(_INSERT.format(schema=name), (VERSION, secrets.token_bytes(16)))
            else:
                _upgrade(connection, name)
    except psycopg.errors.InsufficientPrivilege:
        new = there is None
        raise StoreUnavailable(
            f"{where}: the role may not {'make the schema' if new else 'add the tables of this release'}",
            where=where,
            reason="permission",
            hint=f"an administrator runs: CREATE SCHEMA {schema} AUTHORIZATION the_role"
            if new
            else "connect once as the role that made the schema, and give this one the rights to its tables",
        ) from None
    salt = _find(connection, schema, where)
    if salt is None:
        raise StoreUnavailable(
            f"{where}: the schema was dropped just now", where=where, reason="schema", hint="try again"
        )
    return salt


def _upgrade(connection: psycopg.Connection[tuple[Any, ...]], schema: sql.Identifier) -> None:
    """Make tables of an earlier release those of this one; what is stored stays."""
    row = connection.execute(_FIND.format(schema=schema)).fetchone()
    for version, statements in _UPGRADES.items():
        if row is not None and row[0] == version:
            connection.execute(statements.format(schema=schema))
            row = (version + 1,)
            connection.execute(_UPGRADED.format(schema=schema), row)
