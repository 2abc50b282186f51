"""Workers hear at once of runs that other processes made ready; without a connection they only poll."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from noetic_py.checkpoints import Queued, Transaction
from noetic_py.errors import StoreUnavailable
from tests.servers.journeys import record

pytestmark = pytest.mark.anyio

NOW = Queued("jobs", "flow")
LISTENS = """application_name LIKE '%% listens' AND query = 'LISTEN "' || %s::text || '"'"""


async def listens(server: PostgresServer, schema: str) -> None:
    """Return when the connection listens."""
    while not server.quick().execute(f"SELECT 1 FROM pg_stat_activity WHERE {LISTENS}".encode(), [schema]).fetchall():
        await anyio.lowlevel.checkpoint()


async def submit(backend: PostgresBackend, run_id: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record(run_id)], queued=queued)])


async def test_a_run_of_another_process_is_heard_of(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend, PostgresBackend(server.url(schema)) as other:
        heard: list[bool] = []

        async def wait() -> None:
            heard.append(await backend.wait_for_runs(["jobs", "more"], timeout=30.0))

        with anyio.fail_after(10):
            assert not await backend.wait_for_runs(["jobs"], timeout=0.01)
            await listens(server, schema)
            for run_id, queued in (("a", NOW), ("b", evolve(NOW, queue="more"))):
                async with anyio.create_task_group() as group:
                    group.start_soon(wait)
                    await anyio.wait_all_tasks_blocked()
                    await submit(other, run_id, queued)
            # What wakes a run, or gives it up, is told too.
            await submit(other, "c", evolve(NOW, at=None))
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await other.send("c", "wake", b"")
            claims = await other.claim(["jobs"], flows=["flow"], ttl=60.0, limit=10)
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await other.release(claims[0].lease)
        assert heard == [True] * 4


async def test_what_is_not_ready_is_not_told(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend, PostgresBackend(server.url(schema)) as other:
        assert not await backend.wait_for_runs(["jobs"], timeout=0.01)
        await listens(server, schema)
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                assert not await backend.wait_for_runs(["jobs"], timeout=0.2)

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await submit(other, "asleep", evolve(NOW, at=None))
            await submit(other, "later", evolve(NOW, at=await other.clock() + 3600))
            await submit(other, "elsewhere", evolve(NOW, queue="others"))


async def test_a_lost_connection_comes_back(server: PostgresServer, schema: str) -> None:
    async with PostgresBackend(server.url(schema)) as backend, PostgresBackend(server.url(schema)) as other:
        assert not await backend.wait_for_runs(["jobs"], timeout=0.01)
        await listens(server, schema)
        server.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {LISTENS}", schema)
        with anyio.fail_after(10):
            await listens(server, schema)
            async with anyio.create_task_group() as group:
                group.start_soon(submit, other, "r")
                assert await backend.wait_for_runs(["jobs"], timeout=30.0)


async def test_closing_ends_the_wait(server: PostgresServer, schema: str) -> None:
    backend = PostgresBackend(server.url(schema))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(StoreUnavailable):
                    await backend.wait_for_runs(["jobs"], timeout=30.0)

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await backend.close()
        while server.quick().execute(f"SELECT 1 FROM pg_stat_activity WHERE {LISTENS}".encode(), [schema]).fetchall():
            await anyio.lowlevel.checkpoint()
