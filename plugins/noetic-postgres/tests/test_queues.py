"""Queues and inboxes where several processes use them at once, connections are lost, and tables are older."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve
from noetic_postgres import PostgresBackend
from noetic_postgres.address import address_of
from noetic_postgres.journals import Numbers
from noetic_postgres.link import Link
from noetic_postgres.schema import VERSION
from noetic_postgres.statements import statements_of
from noetic_postgres.store import PostgresStore
from postgres_proxy import proxy_of
from postgres_server import PostgresServer

from noetic_py.checkpoints import BudgetChange, Claim, Head, Queued, Signal, Transaction
from noetic_py.checkpoints.turns import ClaimRequest
from noetic_py.errors import CorruptRecord, StoreUnavailable
from tests.properties.checks import FULL
from tests.servers.cutting_proxy import How
from tests.servers.journeys import journal, record
from tests.servers.lost import LOSSES

pytestmark = pytest.mark.anyio

NOW = Queued("jobs", "flow")
LATER = evolve(NOW, at=None)
_BEFORE_KEYS = """
    ALTER TABLE {0}.queued DROP COLUMN key, DROP COLUMN due;
    CREATE INDEX queued_by_turn ON {0}.queued (queue, priority DESC, at, run) WHERE at IS NOT NULL;
    UPDATE {0}.store SET version = 3
"""
_BEFORE_BUDGETS = _BEFORE_KEYS + "; DROP TABLE {0}.budgets; UPDATE {0}.store SET version = 2"
_BEFORE_QUEUES = (
    "DROP TABLE {0}.budgets; DROP TABLE {0}.queued; DROP TABLE {0}.signals; UPDATE {0}.store SET version = 1"
)


async def submit(backend: PostgresBackend, *run_ids: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record(run_id)], queued=queued) for run_id in run_ids])


async def claim(backend: PostgresBackend, limit: int = 10, queues: Sequence[str] = ("jobs",)) -> list[Claim]:
    return list(await backend.claim(queues, flows=["flow"], ttl=600.0, limit=limit))


async def test_a_run_is_claimed_when_the_servers_clock_says_so(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        at = await backend.clock() + 0.2
        await submit(backend, "r", queued=evolve(NOW, at=at))
        with anyio.fail_after(30):
            while not (found := await claim(backend)):
                # It may be ready at the next moment, and not when the time is up by another clock.
                assert [each.waiting + each.ready for each in await backend.queues()] == [1]
        assert at <= found[0].now <= await backend.clock()
        assert server.query("SELECT abs(extract(epoch FROM clock_timestamp()) - %s) < 60", at) == [(True,)]


def test_a_claim_is_planned_once_for_a_connection(server: PostgresServer, schema: str) -> None:
    # A worker without runs claims twice a second, and to plan a claim takes longer than to do it.
    address = address_of(server.url(schema), schema=None, connections=None, timeout=None)
    link = Link(address, statements_of(schema), lambda _: None, seconds=30.0)
    link.prepare()
    store = PostgresStore(link, numbers=Numbers(), threshold=1_000)
    wanted = ClaimRequest(["jobs"], frozenset(["flow"]), 600.0, 10, {})
    for _ in range(20):
        assert store.claim(wanted, datetime.now(UTC)) == []
    query = b"SELECT generic_plans > 10, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%q.key = %'"
    assert link.rows(query) == [(True, 0)]
    assert link.rows(b"SHOW plan_cache_mode") == [("auto",)]
    link.connection.close()


async def test_a_queue_survives_its_process(server: PostgresServer, schema: str) -> None:
    queued = Queued("jobs", "flow", 5.5, 7)
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r", queued=queued)
        number = await backend.send("r", "k", b"hello")
    async with PostgresBackend(server.url(schema)) as backend:
        assert list(await backend.inbox("r")) == [Signal("r", "k", b"hello", number)]
        (found,) = await claim(backend)
        assert (found.lease.run_id, found.queued, found.lives) == ("r", queued, 1)
    # It was given back when the backend was closed, so these are its first life again.
    async with PostgresBackend(server.url(schema)) as backend:
        (found,) = await claim(backend)
        assert found.lives == 1


async def test_lives_are_those_of_owners_in_a_row(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r")
        for lives in (1, 2):
            assert [each.lives for each in await claim(backend)] == [lives]
            server.lapse(schema)
        (found,) = await claim(backend)
        await backend.release(found.lease)
        await backend.acquire("r", ttl=600.0)
        server.lapse(schema)
        assert [each.lives for each in await claim(backend)] == [1]


async def test_processes_claim_no_run_twice(server: PostgresServer, schema: str) -> None:
    names = [f"r{n}" for n in range(200)]
    claims: list[Claim] = []

    async def work(backend: PostgresBackend, limit: int) -> None:
        while found := await claim(backend, limit):
            claims.extend(found)

    async with PostgresBackend(server.url(schema)) as first, PostgresBackend(server.url(schema)) as second:
        await submit(first, *names)
        async with anyio.create_task_group() as group:
            for index in range(8):
                group.start_soon(work, (first, second)[index % 2], 1 + index % 3)
        # A run whose row another session has locked at this moment is not waited for.
        claims += await claim(first, limit=200)
        assert sorted(each.lease.run_id for each in claims) == sorted(names)
        assert len({each.lease.fence for each in claims}) == len(names)
        for each in claims:
            assert await first.head(each.lease.run_id) == Head(1, each.lease.fence)


async def test_the_best_of_several_queues_go_first(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        for number, (queue, at, priority) in enumerate(
            [("a", 1, 0), ("b", 2, 5), ("a", 3, 5), ("b", 0, 0), ("a", 9, 9)]
        ):
            await submit(backend, f"r{number}", queued=Queued(queue, "flow", float(at), priority))
        found = [(await claim(backend, limit, ["a", "b"])) for limit in (2, 2, 2)]
        assert [[each.lease.run_id for each in page] for page in found] == [["r4", "r1"], ["r2", "r3"], ["r0"]]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_signal_is_lost_to_a_run_that_falls_asleep(server: PostgresServer, schema: str) -> None:
    """Two processes: one sends while the other reads the inbox and lets the run sleep."""
    async with PostgresBackend(server.url(schema)) as sender, PostgresBackend(server.url(schema)) as owner:
        outcomes: set[bool] = set()
        # Until both have happened: else the test shows nothing.
        for number in range(2000):
            if number >= 100 and len(outcomes) == 2:
                break
            run_id = f"r{number}"
            await submit(owner, run_id)
            (found,) = await claim(owner)
            read: list[Signal] = []

            async def send(run_id: str = run_id, turns: int = number % 5) -> None:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                await sender.send(run_id, "k", b"x")

            async def sleep(claimed: Claim = found, read: list[Signal] = read, turns: int = number // 5 % 5) -> None:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                read += await owner.inbox(claimed.lease.run_id)
                upto = read[-1].number if read else 0
                given = Transaction(
                    claimed.lease.run_id, 1, claimed.lease.fence, [], release=True, read=upto, queued=LATER
                )
                await owner.commit([given])

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                group.start_soon(sleep)
            ready = [each.lease.run_id for each in await claim(owner)]
            left = await owner.inbox(run_id)
            assert (ready, len(left)) == (([], 0) if read else ([run_id], 1))
            outcomes.add(bool(read))
        assert outcomes == {True, False}


async def test_every_signal_of_many_senders_is_read_once(server: PostgresServer, schema: str) -> None:
    """A smaller number that became visible after a larger one was read would be taken away unread."""
    sent, read = [f"{sender}/{n}" for sender in range(4) for n in range(25)], list[str]()

    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(PostgresBackend(server.url(schema))) for _ in range(3)]
        owner = backends[2]
        await submit(owner, "r", queued=LATER)

        async def send(sender: int) -> None:
            for n in range(25):
                await backends[sender % 2].send("r", f"{sender}/{n}", b"x")

        async def work() -> None:
            while len(read) < len(sent):
                for found in await claim(owner):
                    page = await owner.inbox("r", limit=3)
                    read.extend(each.key for each in page)
                    upto = page[-1].number if page else 0
                    given = Transaction("r", 1, found.lease.fence, [], release=True, read=upto, queued=LATER)
                    await owner.commit([given])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for sender in range(4):
                    group.start_soon(send, sender)
                group.start_soon(work)
        assert sorted(read) == sorted(sent)
        assert list(await owner.inbox("r")) == []


async def test_commits_that_send_to_each_others_runs_do_not_deadlock(server: PostgresServer, schema: str) -> None:
    log = server.folder / "log"
    before = log.read_text().count("deadlock detected")
    names = ("a", "b", "c")

    async def work(backend: PostgresBackend, own: str) -> None:
        for position in range(1, 31):
            signals = [Signal(name, f"{own}/{position}", b"x") for name in reversed(names) if name != own]
            await backend.commit([Transaction(own, position, 0, [record("x")], signals=signals)])

    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(PostgresBackend(server.url(schema))) for _ in names]
        await submit(backends[0], *names, queued=LATER)
        async with anyio.create_task_group() as group:
            for backend, own in zip(backends, names, strict=True):
                group.start_soon(work, backend, own)
        for name in names:
            assert len(await backends[0].inbox(name)) == 60
    assert log.read_text().count("deadlock detected") == before


@pytest.mark.parametrize("damage", ["queue = 'other'", "flow = 'other'", "priority = 99", "crc = 0"])
async def test_a_damaged_place_hides_no_other(server: PostgresServer, schema: str, damage: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r", "s")
        server.query(
            f"UPDATE {schema}.queued SET {damage} WHERE run = (SELECT id FROM {schema}.runs WHERE run_id = 'r')"
        )
        found = await backend.claim(["jobs", "other"], flows=["flow", "other"], ttl=60.0, limit=1)
        assert [each.lease.run_id for each in found] == ["s"]
        with pytest.raises(CorruptRecord):
            await backend.queues()


async def test_a_damaged_run_is_not_claimed(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r", "s")
        server.query(f"UPDATE {schema}.runs SET position = 7 WHERE run_id = 'r'")
        assert [each.lease.run_id for each in await claim(backend)] == ["s"]


@pytest.mark.parametrize("damage", ["body = 'y'", "key = 'other'", "number = number + 1"])
async def test_a_damaged_signal(server: PostgresServer, schema: str, damage: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r")
        await backend.send("r", "k", b"x")
        server.query(f"UPDATE {schema}.signals SET {damage}")
        with pytest.raises(CorruptRecord):
            await backend.inbox("r")


async def test_keys_of_any_length(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r")
        keys = ["\U0001f600" * 1023 + end for end in "ab"]
        numbers = [await backend.send("r", key, b"") for key in keys]
        assert [(each.key, each.number) for each in await backend.inbox("r")] == list(zip(keys, numbers, strict=True))


async def test_pruned_runs_leave_nothing(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend:
        await submit(backend, "r", "s")
        await backend.send("r", "k", b"x")
        assert await backend.prune(keep=0) == 2
        for table in ("queued", "signals"):
            assert server.query(f"SELECT count(*) FROM {schema}.{table}") == [(0,)]


@pytest.mark.parametrize(
    ("before", "queued"), [(_BEFORE_QUEUES, ["s"]), (_BEFORE_BUDGETS, ["r", "s"]), (_BEFORE_KEYS, ["r", "s"])]
)
async def test_tables_of_an_earlier_release(server: PostgresServer, before: str, queued: list[str]) -> None:
    columns = (
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s ORDER BY table_name, ordinal_position"
    )
    with server.schema(fresh=True) as schema:
        async with PostgresBackend(server.url(schema)) as backend:
            await submit(backend, "r")
        made = server.query(columns, schema)
        server.query(before.format(schema))
        # Several processes of the new release may begin at the same moment.
        async with AsyncExitStack() as stack:
            backends = [PostgresBackend(server.url(schema)) for _ in range(4)]
            for backend in backends:
                stack.push_async_callback(backend.close)
            async with anyio.create_task_group() as group:
                for backend in backends:
                    group.start_soon(backend.head, "r")
            assert await journal(backends[0], "r") == [b"r"]
            await submit(backends[1], "s")
            assert await backends[2].send("s", "k", b"x")
            assert [each.lease.run_id for each in await claim(backends[3])] == queued
            assert list(await backends[0].budgets()) == []
        assert server.query(columns, schema) == made
        assert server.query(f"SELECT version FROM {schema}.store") == [(VERSION,)]


async def test_a_damaged_budget_is_found(server: PostgresServer, schema: str) -> None:
    changed = BudgetChange("team", "2026-11", {"steps": 1})
    async with PostgresBackend(server.url(schema)) as backend:
        await backend.commit([Transaction("r", 0, 0, [record("x")], budgets=[changed])])
        server.query(f"UPDATE {schema}.budgets SET body = overlay(body placing 'X' from 3)")
        with pytest.raises(CorruptRecord, match="shared budget 'team'"):
            await backend.budgets()
        with pytest.raises(CorruptRecord, match="shared budget 'team'"):
            await backend.commit([Transaction("r", 1, 0, [record("y")], budgets=[changed])])
        assert await journal(backend, "r") == [b"x"]


async def test_a_role_that_may_not_add_tables(server: PostgresServer) -> None:
    with server.schema(fresh=True) as schema:
        async with PostgresBackend(server.url(schema)) as backend:
            await submit(backend, "r")
        server.query(_BEFORE_QUEUES.format(schema))
        server.query("DROP ROLE IF EXISTS guest")
        server.query("CREATE ROLE guest LOGIN PASSWORD 'hunter2'")
        server.query(f"GRANT USAGE ON SCHEMA {schema} TO guest")
        server.query(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO guest")
        backend = PostgresBackend(server.url(schema, user="guest", password="hunter2"))
        with pytest.raises(StoreUnavailable) as caught:
            await backend.head("r")
        await backend.close()
        assert caught.value.reason == "permission"
        assert "as the role that made the schema" in (caught.value.hint or "")


async def journey(backend: PostgresBackend) -> None:
    """Whatever is lost on the way, each claim, signal and commit is done once."""
    await submit(backend, "a", "b", queued=LATER)
    first = await backend.send("a", "k", b"1")
    assert await backend.send("a", "k", b"again") == first
    second = await backend.send("a", "l", b"2")
    (claimed,) = await claim(backend)
    assert (claimed.lease.run_id, claimed.lives) == ("a", 1)
    assert await backend.head("a") == Head(1, claimed.lease.fence)
    assert list(await backend.inbox("a")) == [Signal("a", "k", b"1", first), Signal("a", "l", b"2", second)]
    signals = [Signal("b", "from a", b"3"), Signal("none", "x", b"")]
    sleeps = Transaction(
        "a", 1, claimed.lease.fence, [record("x")], release=True, read=first, queued=LATER, signals=signals
    )
    await backend.commit([sleeps])
    found = await claim(backend)
    assert [(each.lease.run_id, each.lives) for each in found] == [("a", 1), ("b", 1)]
    assert [each.key for each in await backend.inbox("b")] == ["from a"]
    lease = found[0].lease
    await backend.commit([Transaction("a", 2, lease.fence, [record("end")], release=True, ended=True)])
    assert (list(await backend.inbox("a")), await journal(backend, "a")) == ([], [b"a", b"x", b"end"])
    assert [(each.owned, each.ready) for each in await backend.queues()] == [(1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("how", LOSSES)
async def test_a_cut_at_every_statement(server: PostgresServer, how: How, anyio_backend_name: str) -> None:
    step = 1 if FULL else 8
    at = 1 + (2 * LOSSES.index(how) + (anyio_backend_name == "trio")) % step
    with proxy_of(server) as proxy:
        while True:
            with server.schema() as schema:
                async with PostgresBackend(server.url(schema, port=proxy.port), connections=1) as backend:
                    proxy.arm({at: how})
                    await journey(backend)
            if not proxy.cut:
                break
            at += step
    # As many cuts as there are statements.
    assert at > 20
