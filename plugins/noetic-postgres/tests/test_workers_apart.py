"""Workers that lose the network, and workers whose clocks are wrong."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from noetic_postgres import PostgresBackend
from postgres_proxy import proxy_of
from postgres_server import PostgresServer

from noetic_py import Context, Harness, step
from noetic_py.cli.loading import load_flow
from tests.programs import need
from tests.servers.journeys import journal

pytestmark = pytest.mark.anyio


async def test_a_worker_without_a_network_writes_nothing_and_its_run_goes_on_elsewhere(
    server: PostgresServer, schema: str
) -> None:
    fences: list[int] = []
    after: list[int] = []
    held, go = anyio.Event(), anyio.Event()

    @step(replay="repeatable")
    async def slow(x: int, ctx: Context) -> int:
        fences.append(ctx.fence or 0)
        if len(fences) == 1:
            held.set()
            await go.wait()
        return x + 1

    @step
    async def then(x: int) -> int:
        after.append(x)
        return x

    flow: Any = slow >> then
    with proxy_of(server) as proxy:
        async with (
            PostgresBackend(server.url(schema, port=proxy.port, more="&timeout=2")) as apart,
            PostgresBackend(server.url(schema)) as store,
            Harness(checkpoints=apart, flows={"flow": flow}, lease=1.0, plugins=()) as cut_off,
            Harness(checkpoints=store, flows={"flow": flow}, lease=1.0, plugins=()) as other,
            anyio.create_task_group() as group,
        ):
            run_id = await other.submit(flow, 1)
            group.start_soon(partial(cut_off.work, concurrency=1))
            await held.wait()
            # From here on nothing that it sends arrives, and nothing closes its connections.
            proxy.refusing = True
            proxy.arm(dict.fromkeys(range(1, 1000), "stall"))
            group.start_soon(partial(other.work, concurrency=1))
            with anyio.fail_after(30):
                info = await other.runs.wait(run_id)
            assert info.status == "completed"
            written = await journal(store, run_id)
            proxy.refusing = False
            proxy.arm()
            go.set()
            await cut_off.shutdown()
            await other.shutdown()
            assert await journal(store, run_id) == written
    assert len(fences) == 2
    assert fences[0] < fences[1]
    assert after == [2]


FLOW = """
import time

from noetic_py import Context, sequence, step


@step
async def begins(x: int) -> float:
    return time.monotonic()


@step
async def naps(begun: float, ctx: Context) -> float:
    await ctx.sleep(2)
    return time.monotonic() - begun


flow = sequence(begins, naps, id="flow")
"""


@pytest.mark.slow
async def test_clocks_of_workers_that_are_minutes_off_change_no_time(
    server: PostgresServer, schema: str, tmp_path: Path
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    url = server.url(schema)
    program = [sys.executable, "-m", "noetic_py.cli"]
    async with AsyncExitStack() as stack:
        for offset in ("-7m", "+9m"):
            shown = {
                "LD_PRELOAD": str(need("faketime")),
                "FAKETIME": offset,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            }
            command = [*program, "worker", "flow.py:flow", "--db", url]
            worker = await anyio.open_process(
                command, cwd=tmp_path, env={**os.environ, **shown}, stdout=None, stderr=None
            )
            await stack.enter_async_context(worker)
            stack.callback(worker.terminate)
        flow = load_flow(f"{tmp_path / 'flow.py'}:flow").step
        async with (
            PostgresBackend(url) as store,
            Harness(checkpoints=store, flows={"flow": flow}, plugins=()) as harness,
        ):
            submitted = [await harness.submit(flow, 1) for _ in range(3)]
            # By a wrong clock they would sleep for minutes, or not at all.
            with anyio.fail_after(120):
                ended = [await harness.runs.wait(run_id) for run_id in submitted]
            slept = [(await harness.result(run_id, flow)).value for run_id in submitted]
        assert [each.status for each in ended] == ["completed"] * 3
        assert min(slept) > 1.9
