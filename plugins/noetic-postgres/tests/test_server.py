"""A real server that is misspelt, refuses, restarts, is too old, or belongs to another program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from noetic_postgres import PostgresBackend
from noetic_postgres.schema import VERSION
from postgres_proxy import proxy_of
from postgres_server import PASSWORD, USER, PostgresServer
from psycopg import sql

from noetic_py.checkpoints import RunEntry, Transaction
from noetic_py.errors import CheckpointFailed, ConfigError, CorruptRecord, PositionConflict, StoreUnavailable
from tests.properties.checks import FULL
from tests.servers.journeys import THRESHOLD, Journey, journal, record
from tests.servers.ports import free_port
from tests.servers.together import SeveralAtOnce

pytestmark = pytest.mark.anyio

Figure = Callable[[str, object], None]

_OF_RUNS = ("transactions", "shared", "uses")
SECRET = "hunter2 & co"
SECRETS = (SECRET, "hunter2", PASSWORD, "correct", "battery")


async def refused(backend: PostgresBackend, reason: str) -> StoreUnavailable:
    """The error of a server that cannot be used; it holds no secrets, neither itself nor what it came from."""
    with anyio.fail_after(30), pytest.raises(StoreUnavailable) as caught:
        await backend.head("r")
    await backend.close()
    error: BaseException | None = caught.value
    assert caught.value.reason == reason
    assert isinstance(caught.value, CheckpointFailed)
    assert caught.value.hint
    while error is not None:
        told = "".join((str(error), repr(error), *map(repr, vars(error).values())))
        assert [secret for secret in SECRETS if secret in told] == []
        assert "SELECT" not in told
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return caught.value


async def test_a_wrong_password(server: PostgresServer) -> None:
    error = await refused(PostgresBackend(server.url(password=SECRET)), "auth")
    assert error.where == f"postgresql://{USER}@127.0.0.1:{server.port}/postgres (schema noetic)"


async def test_no_password(server: PostgresServer) -> None:
    await refused(PostgresBackend(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"), "auth")


async def test_an_unknown_user(server: PostgresServer) -> None:
    await refused(PostgresBackend(server.url(user="nobody", password=SECRET)), "auth")


async def test_a_missing_database(server: PostgresServer) -> None:
    error = await refused(PostgresBackend(server.url(database="nowhere")), "database")
    assert "createdb" in (error.hint or "")


async def test_nobody_listens() -> None:
    await refused(PostgresBackend(f"postgresql://u:hunter2@127.0.0.1:{free_port()}/d"), "unreachable")


async def test_an_unknown_host() -> None:
    await refused(PostgresBackend("postgresql://u:hunter2@no-such-host.invalid/d?connect_timeout=5"), "unreachable")


async def test_no_encryption_where_it_is_wanted(server: PostgresServer) -> None:
    await refused(PostgresBackend(server.url(more="&sslmode=require")), "tls")


async def test_a_server_that_is_too_old(server: PostgresServer) -> None:
    def older(data: bytes) -> bytes:
        return data.replace(b"server_version\x0015.", b"server_version\x0014.")

    with proxy_of(server, older) as proxy:
        error = await refused(PostgresBackend(server.url(port=proxy.port)), "server")
    assert "14" in error.message
    assert "15" in (error.hint or "")


async def test_tables_of_a_newer_release(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        async with PostgresBackend(server.url(schema)) as backend:
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        server.query(f"UPDATE {schema}.store SET version = 99")
        error = await refused(PostgresBackend(server.url(schema)), "newer")
        assert "99" in error.message
        server.query(f"UPDATE {schema}.store SET version = {VERSION}")
        async with PostgresBackend(server.url(schema)) as backend:
            assert await journal(backend, "r") == [b"x"]


async def test_tables_of_somebody_else(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        server.query(f"CREATE SCHEMA {schema}")
        server.query(f"CREATE TABLE {schema}.runs (id int)")
        await refused(PostgresBackend(server.url(schema)), "schema")
        assert server.query(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == [(1,)]
        server.query(f"CREATE TABLE {schema}.store (id int)")
        await refused(PostgresBackend(server.url(schema)), "schema")


async def test_a_role_without_rights(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        server.query("DROP ROLE IF EXISTS poor")
        server.query("CREATE ROLE poor LOGIN PASSWORD 'hunter2'")
        url = server.url(schema, user="poor", password="hunter2")
        error = await refused(PostgresBackend(url), "permission")
        assert f"CREATE SCHEMA {schema}" in (error.hint or "")
        async with PostgresBackend(server.url(schema)) as backend:
            await backend.head("r")
        await refused(PostgresBackend(url), "permission")
        # A user with a schema of its own makes the rest itself.
        server.query(f"DROP SCHEMA {schema} CASCADE")
        server.query(f"CREATE SCHEMA {schema} AUTHORIZATION poor")
        async with PostgresBackend(url, blob_threshold=THRESHOLD) as backend:
            await Journey(backend).go()


async def test_a_role_that_may_only_read(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    url = server.url(schema, more="&options=-c%20default_transaction_read_only%3Don")
    async with PostgresBackend(url) as backend:
        assert await journal(backend, "r") == [b"x"]
        with pytest.raises(StoreUnavailable) as caught:
            await backend.append("r", expected_position=1, fence=0, records=[record("y")])
        assert caught.value.reason == "readonly"
        assert await journal(backend, "r") == [b"x"]


async def test_another_encoding(server: PostgresServer) -> None:
    server.query("DROP DATABASE IF EXISTS latin")
    server.query("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    error = await refused(PostgresBackend(server.url(database="latin")), "server")
    assert "LATIN1" in error.message


async def test_no_connection_is_left(server: PostgresServer, schema: str) -> None:
    server.query("DROP ROLE IF EXISTS narrow")
    server.query("CREATE ROLE narrow LOGIN PASSWORD 'hunter2' SUPERUSER CONNECTION LIMIT 1")
    server.query("ALTER ROLE narrow NOSUPERUSER")
    url = server.url("public", user="narrow", password="hunter2")
    with psycopg.connect(f"postgresql://narrow:hunter2@127.0.0.1:{server.port}/postgres"):
        await refused(PostgresBackend(url, timeout=2), "connections")


async def test_a_dropped_schema_is_named(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        async with PostgresBackend(server.url(schema)) as backend:
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
            server.query(f"DROP SCHEMA {schema} CASCADE")
            with pytest.raises(StoreUnavailable) as caught:
                await backend.append("r", expected_position=1, fence=0, records=[record("y")])
            assert caught.value.reason == "schema"


async def test_a_lost_salt_is_found(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        async with PostgresBackend(server.url(schema)) as backend:
            await backend.head("r")
        server.query(f"DELETE FROM {schema}.store")
        with pytest.raises(CorruptRecord):
            await PostgresBackend(server.url(schema)).head("r")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:hunter2@host:port/d",
        "postgresql://u:hunter2@host/d?colour=red",
        "postgresql://u:hunter2@[::1/d",
        "host=h password=hunter2 colour=red",
        "host=h password='hunter2",
        "hunter2",
        "http://u:hunter2@host/d",
    ],
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresBackend(address)
    assert caught.value.code == "postgres-address"
    assert "hunter2" not in str(caught.value) + repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresBackend("postgresql://h/d", schema="no schema"),
        lambda: PostgresBackend("postgresql://h/d", schema='x"; DROP SCHEMA public; --'),
        lambda: PostgresBackend("postgresql://h/d?schema="),
        lambda: PostgresBackend("postgresql://h/d?schema=pg_catalog"),
        lambda: PostgresBackend("postgresql://h/d", schema="s" * 64),
        lambda: PostgresBackend("postgresql://h/d?connections=none"),
        lambda: PostgresBackend("postgresql://h/d", connections=0),
        lambda: PostgresBackend("postgresql://h/d", timeout=0.0),
        lambda: PostgresBackend("postgresql://h/d", timeout=float("nan")),
        lambda: PostgresBackend("postgresql://h/d", blob_threshold=-1),
        lambda: PostgresBackend("postgresql://h/d", max_bytes=0),
    ],
)
def test_a_setting_that_is_wrong(make: Callable[[], PostgresBackend]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == "postgres-setting"


def test_a_backend_shows_no_password() -> None:
    backend = PostgresBackend(f"postgresql://u:hunter2@host:5433/d?sslpassword={PASSWORD.replace(' ', '%20')}")
    told = repr(backend) + str(backend)
    assert [secret for secret in SECRETS if secret in told] == []
    assert "u@host:5433/d" in told


# -- what it says of itself


async def test_it_describes_itself(server: PostgresServer, schema: str) -> None:
    backend = PostgresBackend(server.url(schema), connections=2)
    assert (backend.durability, backend.shared) == ("none", True)
    async with backend:
        described = await backend.describe()
    assert described["backend"] == "postgresql"
    assert described["schema"] == schema
    assert described["postgresql"].startswith(str(server.version))
    assert described["connections"] == "2"
    assert [secret for secret in SECRETS if secret in str(described)] == []


async def test_durability_is_what_the_server_promises(server: PostgresServer, schema: str) -> None:
    # The tests' own server does not wait for its disk.
    async with PostgresBackend(server.url(schema)) as backend:
        assert backend.durability == "process"
        assert "fsync" in (await backend.describe())["why"]
    with server.settings(fsync="on"):
        async with PostgresBackend(server.url(schema)) as backend:
            assert backend.durability == "power"
        more = "&options=-c%20synchronous_commit%3Doff"
        async with PostgresBackend(server.url(schema, more=more)) as backend:
            assert backend.durability == "process"
            assert "synchronous_commit" in (await backend.describe())["why"]


async def test_the_server_knows_whose_connections_they_are(server: PostgresServer, schema: str) -> None:
    url = server.url(schema, more="&application_name=" + "billing" * 20)
    async with PostgresBackend(url, connections=1):
        rows = server.query("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'billing%'")
    (name,) = rows[0]
    assert len(name) < 64
    assert len(rows) == 1


async def test_one_after_another_needs_one_connection(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema), connections=8) as backend:
        for position in range(30):
            await backend.append("r", expected_position=position, fence=0, records=[record("x")])
        assert len(server.sessions()) == 1
        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(backend.head, "r")
        assert 1 < len(server.sessions()) <= 8
    server.wait_until_nobody_is_connected()
    assert server.query(f"SELECT count(*) FROM {schema}.sessions") == [(0,)]


# -- several at once


async def test_first_starts_at_once(server: PostgresServer) -> None:
    for _ in range(5):
        with server.schema(fresh=True) as schema:
            backends = [PostgresBackend(server.url(schema)) for _ in range(8)]

            async def start(index: int, backends: list[PostgresBackend] = backends) -> None:
                await backends[index].append(f"r{index}", expected_position=0, fence=0, records=[record(str(index))])

            async with anyio.create_task_group() as group:
                for index in range(8):
                    group.start_soon(start, index)
            assert (await backends[0].stats()).runs == 8
            for backend in backends:
                await backend.close()


async def test_schemas_are_apart(server: PostgresServer) -> None:
    with server.schema() as one, server.schema() as other:
        async with PostgresBackend(server.url(one)) as a, PostgresBackend(server.url(), schema=other) as b:
            await a.append("r", expected_position=0, fence=0, records=[record("a")])
            assert await b.head("r") is None
            await b.put(("s",), "k", b"v")
            assert await a.get(("s",), "k") is None


async def test_a_row_of_elsewhere_is_found(server: PostgresServer) -> None:
    with server.schema() as one, server.schema() as other:
        for schema in (one, other):
            async with PostgresBackend(server.url(schema)) as backend:
                await backend.append("r", expected_position=0, fence=0, records=[record(schema)])
        server.query(f"DELETE FROM {other}.transactions")
        server.query(
            f"INSERT INTO {other}.transactions SELECT (SELECT id FROM {other}.runs), last, count, size, crc, body"
            f" FROM {one}.transactions"
        )
        async with PostgresBackend(server.url(other)) as backend:
            with pytest.raises(CorruptRecord):
                await backend.read("r")


DAMAGED = (
    "created = 'infinity'",
    "updated = '-infinity'",
    "created = '4713-01-01 BC'",
    "updated = '294000-01-01'",
    "created = '0001-01-01 00:00+14'",
    "id = -1",
    "id = -9223372036854775808",
    "id = 9223372036854775807",
    "position = 9223372036854775807",
    "run_id = ''",
    "card = 'x'",
)


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_damaged_run_hides_no_other(server: PostgresServer, schema: str, damage: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        for run_id in ("r1", "r2", "r3", "r4"):
            await backend.append(run_id, expected_position=0, fence=0, records=[record("x")], status="done")
        server.query(f"UPDATE {schema}.runs SET {damage} WHERE run_id = 'r2'")
        for status in (None, "done"):
            found = await pages(backend, status)
            assert {each.run_id for each in found if each.problem is None} == {"r1", "r3", "r4"}
            assert len([each for each in found if each.problem]) == 1
        assert (await backend.stats()).runs == 4
        assert await backend.prune(keep=1) >= 2
        assert "r4" in {each.run_id for each in await pages(backend, None)}


async def pages(backend: PostgresBackend, status: str | None) -> list[RunEntry]:
    """All runs, one on each page."""
    found: list[RunEntry] = []
    page = await backend.list(limit=1, status=status)
    while page:
        found += page
        page = await backend.list(after=page[-1].cursor, limit=1, status=status)
    return found


@pytest.mark.parametrize("damage", ["count = -9223372036854775808", "last = -5"])
async def test_a_damaged_transaction_is_damage_of_its_run(server: PostgresServer, schema: str, damage: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        for run_id in ("r1", "r2"):
            for position in (0, 1):
                await backend.append(run_id, expected_position=position, fence=0, records=[record("x")])
        first = f"stream = (SELECT id FROM {schema}.runs WHERE run_id = 'r1') AND last = 1"
        server.query(f"UPDATE {schema}.transactions SET {damage} WHERE {first}")
        with pytest.raises(CorruptRecord):
            await backend.read("r1")
        assert await journal(backend, "r2") == [b"x", b"x"]


async def test_two_that_wait_for_each_other_are_both_served(server: PostgresServer, schema: str) -> None:
    """Another transaction takes the rows of two runs in the other order."""
    async with PostgresBackend(server.url(schema), connections=1) as backend:
        given = [Transaction(name, 0, 0, [record(name)]) for name in ("a", "b")]
        assert [each.position for each in await backend.commit(given)] == [1, 1]
        with server.connect() as stranger:
            stranger.execute("BEGIN")
            lock = sql.SQL("SELECT 1 FROM {} WHERE run_id = %s FOR UPDATE").format(sql.Identifier(schema, "runs"))
            stranger.execute(lock, ["b"])
            outcomes: list[object] = []

            async def write() -> None:
                given = [Transaction(name, 1, 0, [record(name)]) for name in ("a", "b")]
                outcomes.extend(each.position for each in await backend.commit(given))

            async with anyio.create_task_group() as group:
                group.start_soon(write)
                await server.somebody_waits()
                # Now each has what the other wants; the server undoes one of them.
                try:
                    await anyio.to_thread.run_sync(stranger.execute, lock, ["a"])
                    stranger.execute("COMMIT")
                except psycopg.errors.DeadlockDetected:
                    stranger.execute("ROLLBACK")
        assert outcomes == [2, 2]
        assert await journal(backend, "a") == [b"a", b"a"]


@pytest.mark.parametrize("mode", ["ROW EXCLUSIVE", "ACCESS EXCLUSIVE"])
async def test_a_lock_that_is_held_for_too_long_is_busy(server: PostgresServer, schema: str, mode: str) -> None:
    async with PostgresBackend(server.url(schema), timeout=2, connections=1) as backend:
        assert await backend.append("r", expected_position=0, fence=0, records=[record("x")]) == 1
        with server.connect() as stranger:
            stranger.execute("BEGIN")
            if mode == "ACCESS EXCLUSIVE":
                stranger.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(schema, "runs")))
                with pytest.raises(StoreUnavailable) as caught:
                    await backend.head("r")
                assert caught.value.reason == "busy"
                # One that connects meanwhile is told the same.
                error = await refused(PostgresBackend(server.url(schema), timeout=2), "busy")
                assert "55P03" in error.message
            else:
                runs = sql.SQL("SELECT 1 FROM {} FOR UPDATE").format(sql.Identifier(schema, "runs"))
                stranger.execute(runs)
            with pytest.raises(StoreUnavailable) as caught:
                await backend.append("r", expected_position=1, fence=0, records=[record("y")])
            assert (caught.value.reason, "transaction" in (caught.value.hint or "")) == ("busy", True)
            stranger.execute("ROLLBACK")
        assert await backend.append("r", expected_position=1, fence=0, records=[record("z")]) == 2
        assert await journal(backend, "r") == [b"x", b"z"]


@pytest.mark.parametrize("before", [4, 5])
async def test_the_store_serves_on_after_a_lock_was_not_given(server: PostgresServer, schema: str, before: int) -> None:
    """The driver has a statement prepared at its sixth use, here within statements that are refused together."""
    lock = sql.SQL("LOCK TABLE {}").format(sql.Identifier(schema, "runs"))
    async with PostgresBackend(server.url(schema), timeout=2, connections=1) as backend:
        for n in range(before):
            await backend.acquire(f"r{n}", ttl=60)
        rounds = 2 if FULL else 1
        for n in range(rounds):
            with server.connect() as stranger:
                stranger.execute("BEGIN")
                stranger.execute(lock)
                with pytest.raises(StoreUnavailable) as caught:
                    await backend.acquire(f"late{n}", ttl=60)
                assert caught.value.reason == "busy"
                given = [Transaction(name, n, 0, [record(name)]) for name in ("a", "b")]
                with pytest.raises(StoreUnavailable) as caught:
                    await backend.commit(given)
                assert caught.value.reason == "busy"
            assert (await backend.acquire(f"late{n}", ttl=60)).run_id == f"late{n}"
            assert [each.position for each in await backend.commit(given)] == [n + 1] * 2
        assert len(await journal(backend, "a")) == rounds


async def test_a_lock_that_is_given_late_is_waited_for(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema), timeout=30, connections=1) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        with server.connect() as stranger:
            stranger.execute("BEGIN")
            stranger.execute(sql.SQL("SELECT 1 FROM {} FOR UPDATE").format(sql.Identifier(schema, "runs")))
            written: list[int] = []

            async def write() -> None:
                written.append(await backend.append("r", expected_position=1, fence=0, records=[record("y")]))

            async with anyio.create_task_group() as group:
                group.start_soon(write)
                await server.somebody_waits()
                stranger.execute("ROLLBACK")
        assert written == [2]


async def test_a_client_that_stops_in_a_transaction_holds_nothing(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetic_postgres.schema.IDLE", 0.5)
    with proxy_of(server) as proxy:
        stopped = PostgresBackend(server.url(schema, port=proxy.port, more="&timeout=40"), connections=1)
        async with stopped, PostgresBackend(server.url(schema)) as other, anyio.create_task_group() as group:
            for name in ("a", "b"):
                await stopped.append(name, expected_position=0, fence=0, records=[record("x")])
            # The first statement takes the rows of both, the second would commit.
            proxy.arm({2: "stall"})

            async def write() -> None:
                with pytest.raises(PositionConflict):
                    await stopped.commit([Transaction(name, 1, 0, [record("late")]) for name in ("a", "b")])

            group.start_soon(write)
            await server.idle_in_a_transaction()
            with anyio.fail_after(30):
                assert await other.append("b", expected_position=1, fence=0, records=[record("y")]) == 2
            proxy.lose_all()
        async with PostgresBackend(server.url(schema)) as backend:
            assert await journal(backend, "b") == [b"x", b"y"]
            assert await journal(backend, "a") == [b"x"]


@pytest.mark.parametrize("runs", ["r", "rs"])
@pytest.mark.parametrize("synced", [False, True])
async def test_a_client_that_stops_between_statements_sent_together_holds_nothing(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, synced: bool, runs: str
) -> None:
    """Whether the other one writes by one statement, or by several that are sent together.

    Behind a Sync the session is idle, and a Flush ends the server's time limit for that.
    """
    monkeypatch.setattr("noetic_postgres.schema.IDLE", 0.1)
    async with PostgresBackend(server.url(schema, more="&timeout=8"), connections=1) as backend:
        await backend.commit([Transaction(run_id, 0, 0, [record("x")]) for run_id in runs])
        with server.connect() as stopped, suppress(psycopg.Error):
            stopped.execute("SET application_name = 'noetic_py 0000000000000000'")
            with stopped.pipeline():
                stopped.execute("BEGIN")
                query = sql.SQL("SELECT 1 FROM {}.runs FOR UPDATE").format(sql.Identifier(schema))
                stopped.execute(query)
                if synced:
                    stopped.pgconn.pipeline_sync()
                    stopped.pgconn.send_flush_request()
                    stopped.pgconn.flush()
                await server.holds_rows_of_a_silent_client("noetic_py 0000000000000000")
                given = [Transaction(run_id, 1, 0, [record("y")]) for run_id in runs]
                assert [each.position for each in await backend.commit(given)] == [2] * len(runs)
            pytest.fail("its session was not ended")


class TestSeveralAtOnce(SeveralAtOnce):
    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> None:
        self.server = self.postgres = server

    def made(self, url: str, **settings: Any) -> PostgresBackend:
        return PostgresBackend(url, **settings)

    def left(self, space: str) -> object:
        every = (self.postgres.query(f"SELECT t::text FROM {space}.{table} t") for table in _OF_RUNS)
        return [row for rows in every for row in rows]
