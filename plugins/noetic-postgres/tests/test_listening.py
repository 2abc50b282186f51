"""Workers hear at once of runs that other processes made ready; without a connection they only poll."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from attrs import evolve
from noetic_postgres import PostgresBackend
from noetic_postgres.address import address_of
from noetic_postgres.listening import LISTENERS, Listener
from noetic_postgres.timeouts import SocketTimeouts
from postgres_proxy import proxy_of
from postgres_server import PostgresServer

from noetic_py.checkpoints import Queued, Transaction
from noetic_py.errors import StoreUnavailable
from tests.servers.journeys import journal, record

pytestmark = pytest.mark.anyio

NOW = Queued("jobs", "flow")
LISTENS = """application_name LIKE '%% listens' AND query = 'LISTEN "' || %s::text || '"'"""
ROOT = Path(__file__).parents[3]
TOKEN = re.compile(rb"[0-9a-f]{32}")


@pytest.fixture
def listener(server: PostgresServer, schema: str) -> Iterator[Callable[[int, float], Listener]]:
    """Makes listeners that connect through a port and check their connection so often."""
    timeouts, made = SocketTimeouts(), list[Listener]()

    def make(port: int, check: float) -> Listener:
        address = address_of(server.url(schema, port=port), schema=None, connections=None, timeout=None)
        made.append(Listener(address, timeouts, check=check))
        return made[-1]

    yield make
    for each in made:
        each.close()
    timeouts.close()


async def until(check: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not check():
            await anyio.lowlevel.checkpoint()


async def listens(server: PostgresServer, schema: str, count: int = 1) -> None:
    """Return when so many connections listen."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE {LISTENS}"
    await until(lambda: server.quick().execute(query.encode(), [schema]).fetchone() == (count,))


async def nothing_listens(server: PostgresServer) -> None:
    query = b"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '% listens'"
    await until(lambda: server.quick().execute(query).fetchone() == (0,))


async def submit(backend: PostgresBackend, run_id: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record(run_id)], queued=queued)])


@asynccontextmanager
async def waiting(*waiters: Listener | PostgresBackend, queue: str = "jobs") -> AsyncGenerator[Counter[int]]:
    """Workers that wait, and how often each was told."""
    heard = Counter[int]()

    async def wait(index: int, waiter: Listener | PostgresBackend) -> None:
        while True:
            if isinstance(waiter, Listener):
                told = await waiter.wait([queue], 0.5)
            else:
                told = await waiter.wait_for_runs([queue], timeout=0.5)
            heard[index] += told

    async with anyio.create_task_group() as group:
        for index, waiter in enumerate(waiters):
            group.start_soon(wait, index, waiter)
        yield heard
        group.cancel_scope.cancel()


async def heard_of_again(backend: PostgresBackend, heard: Counter[int], name: str) -> None:
    """Return when a run was heard of; a notification that comes between two connections is lost."""
    before = heard.total()
    for number in itertools.count():
        await submit(backend, f"{name}-{number}")
        with anyio.move_on_after(1):
            await until(lambda: heard.total() > before)
            return


async def test_a_run_of_another_process_is_heard_of(server: PostgresServer, schema: str) -> None:
    async with (
        PostgresBackend(server.url(schema)) as backend,
        PostgresBackend(server.url(schema)) as other,
        waiting(backend) as jobs,
        waiting(backend, queue="more") as more,
    ):
        await listens(server, schema)
        await submit(other, "a")
        await until(lambda: jobs.total() == 1)
        # What is not ready is not told, and notifications keep their order.
        await submit(other, "asleep", evolve(NOW, at=None))
        await submit(other, "later", evolve(NOW, at=await other.clock() + 3600))
        await submit(other, "elsewhere", evolve(NOW, queue="others"))
        await submit(other, "b", evolve(NOW, queue="more"))
        await until(lambda: more.total() == 1)
        assert jobs.total() == 1
        # What wakes a run, or gives it up, is told too.
        await other.send("asleep", "wake", b"")
        await until(lambda: jobs.total() == 2)
        claims = await other.claim(["jobs"], flows=["flow"], ttl=60.0, limit=10)
        await other.release(claims[0].lease)
        await until(lambda: jobs.total() == 3)


async def test_a_run_that_came_while_the_worker_claimed_ends_its_next_wait(server: PostgresServer, schema: str) -> None:
    async with (
        PostgresBackend(server.url(schema)) as backend,
        PostgresBackend(server.url(schema)) as other,
        waiting(backend, queue="more") as more,
    ):
        assert not await backend.wait_for_runs(["jobs"], timeout=0.01)
        await listens(server, schema)
        await submit(other, "a")
        await submit(other, "b", evolve(NOW, queue="more"))
        await until(lambda: more.total() == 1)
        with anyio.fail_after(60):
            assert await backend.wait_for_runs(["jobs"], timeout=3600.0)


async def test_a_notification_wakes_few_of_many_workers(
    server: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py.runs")
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(PostgresBackend(server.url(schema))) for _ in range(LISTENERS + 2)]
        other = await stack.enter_async_context(PostgresBackend(server.url(schema)))
        async with waiting(*backends) as heard:
            await until(lambda: caplog.messages.count(f"{LISTENERS} other processes listen for runs already") == 2)
            await listens(server, schema, LISTENERS)
            await submit(other, "a")
            await until(lambda: heard.total() == LISTENERS)
            await submit(other, "b")
            await until(lambda: heard.total() == 2 * LISTENERS)
            # As often as the page about capacity says.
            assert f"NOTIFIED = {LISTENERS} " in (ROOT / "docs/guides/capacity.md").read_text()
            assert sorted(heard[index] for index in range(len(backends))) == [0, 0, *[2] * LISTENERS]


async def test_a_server_that_starts_anew_is_listened_to_again(server: PostgresServer, schema: str) -> None:
    async with (
        PostgresBackend(server.url(schema)) as backend,
        PostgresBackend(server.url(schema)) as other,
        waiting(backend) as heard,
    ):
        await listens(server, schema)
        await anyio.to_thread.run_sync(server.restart)
        # Those who wait are not disturbed.
        await listens(server, schema)
        await heard_of_again(other, heard, "r")


async def test_a_connection_that_swallows_everything_is_given_up(
    server: PostgresServer, schema: str, listener: Callable[[int, float], Listener]
) -> None:
    with proxy_of(server) as proxy:
        async with PostgresBackend(server.url(schema)) as other, waiting(listener(proxy.port, 0.5)) as heard:
            await heard_of_again(other, heard, "before")
            proxy.swallow()
            await heard_of_again(other, heard, "after")


async def test_a_pooler_in_transaction_mode_is_warned_of_once(
    server: PostgresServer, listener: Callable[[int, float], Listener], caplog: pytest.LogCaptureFixture
) -> None:
    tokens = list[bytes]()

    def lose(said: bytes) -> bytes:
        tokens.extend(TOKEN.findall(said))
        return TOKEN.sub(b"-" * 32, said)

    with proxy_of(server, lose) as proxy:
        async with waiting(listener(proxy.port, 0.2)) as heard:
            await until(lambda: len({*tokens}) >= 2)
        assert not heard.total()
    (said,) = caplog.messages
    assert "a pooler has to be in session mode" in said


async def test_without_a_store_a_worker_is_warned_once_and_told_nothing(
    server: PostgresServer, listener: Callable[[int, float], Listener], caplog: pytest.LogCaptureFixture
) -> None:
    with proxy_of(server) as proxy:
        proxy.refusing = True
        async with waiting(listener(proxy.port, 0.2)) as heard:
            await until(lambda: bool(caplog.messages))
            proxy.refusing = False
            # It tries again, and finds that it is there.
            await until(lambda: proxy.sent > 0)
        assert not heard.total()
    (said,) = caplog.messages
    assert said.startswith("workers only poll, because the store cannot be listened to")


async def test_a_process_whose_workers_are_busy_gives_its_place_up(
    server: PostgresServer, schema: str, listener: Callable[[int, float], Listener]
) -> None:
    one = listener(server.port, 0.2)
    for _ in range(2):
        async with waiting(one):
            await listens(server, schema)
        await nothing_listens(server)


@pytest.mark.parametrize("moment", [b"server_version", b"LISTEN\0"])
async def test_closing_while_it_begins_to_listen_leaves_nothing(server: PostgresServer, moment: bytes) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(said: bytes) -> bytes:
        if moment in said:
            reached.set()
            go.wait(60)
        return said

    with proxy_of(server, hold) as proxy:
        backend = PostgresBackend(server.url(port=proxy.port))
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(StoreUnavailable):
                    await backend.wait_for_runs(["jobs"], timeout=3600.0)

            group.start_soon(wait)
            await anyio.to_thread.run_sync(reached.wait, 60)
            with anyio.fail_after(60):
                await backend.close()
        go.set()
        await nothing_listens(server)
        with pytest.raises(StoreUnavailable):
            await backend.wait_for_runs(["jobs"], timeout=3600.0)


async def test_a_notification_that_hangs_holds_no_commit_up(server: PostgresServer, schema: str) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(said: bytes) -> bytes:
        if b"pg_notify" in said:
            held.set()
            go.wait(120)
        return said

    with proxy_of(server, hold) as proxy:
        # Half of its time is more than the test takes.
        async with PostgresBackend(server.url(schema, port=proxy.port, more="&connections=1&timeout=600")) as backend:
            with anyio.fail_after(60):
                await submit(backend, "a")
            assert held.is_set()
            go.set()
            assert await journal(backend, "a") == [b"a"]
