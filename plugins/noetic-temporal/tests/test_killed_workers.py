"""Worker processes are killed and the server is restarted: all runs complete, and no stored step is done again."""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from noetic_temporal import submit
from temporal_jobs import ADDRESS, HEARTBEAT, backend_of, deadly
from temporal_server import TemporalServer
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from noetic_py import Harness
from noetic_py.context.step import AnyStep
from tests.crash.children import Children, fork_server
from tests.crash.folders import quick_folder
from tests.crash.working import Workers, carried_out, flow_into, value_of
from tests.properties.checks import FULL, SEED, examples
from tests.servers.figures import Figure

pytestmark = pytest.mark.anyio

RUNS = examples(sample=8, full=1000)
KILLS = examples(sample=2, full=100)
TAKEN_OVER = examples(sample=1, full=50)
LEASE = 0.9
"""Seconds: shorter than the heartbeat's, so that the next worker need not wait for it."""
PAUSE = 0.1
"""Seconds; a run takes six of them, so that a kill meets some in progress."""
WORK = "temporal_jobs:work"
STORES = ("sqlite", "postgresql") if FULL else ("sqlite",)


@pytest.fixture(scope="module")
def children(temporal_server: TemporalServer) -> Iterator[Children]:
    path = str(Path(__file__).parent)
    with fork_server("temporal_warm", PYTHONPATH=path, **{ADDRESS: temporal_server.address}) as made:
        yield made


@contextmanager
def stored_in(kind: str, folder: Path) -> Generator[str]:
    """The address of an empty store."""
    if kind == "sqlite":
        yield str(folder / "runs.db")
        return
    sys.path.append(str(Path(__file__).parents[2] / "noetic-postgres" / "tests"))
    server: Any = importlib.import_module("postgres_server").PostgresServer()
    try:
        server.start()
        with server.space() as space:
            yield server.url(space)
    finally:
        server.close()


@pytest.mark.parametrize("kind", STORES)
async def test_workers_that_are_killed(
    kind: str, children: Children, temporal_server: TemporalServer, record_property: Figure
) -> None:
    client = await temporal_server.connect()

    async def submitted(harness: Harness, flow: AnyStep, number: int, run_id: str) -> str:
        return await submit(client, harness, flow, number, run_id=f"{kind}-{run_id}", heartbeat=HEARTBEAT)

    with quick_folder() as folder, stored_in(kind, folder) as store:
        workers = Workers(children, store, folder / "lines", random.Random(SEED), LEASE, WORK, pause=PAUSE)
        workers.concurrency, workers.between = 2, 10
        async with backend_of(store) as backend:
            came = await carried_out(backend, workers, RUNS, KILLS, temporal_server.restart, submitted)
            # All runs have ended; the last workers were killed before they could tell Temporal of all.
            workers.start()
            ids = [f"{kind}-run-{number}" for number in range(RUNS)]
            with anyio.fail_after(60):
                ended = {await client.get_workflow_handle(run_id).result() for run_id in ids}
            workers.stop()
    assert ended == {"completed"}
    record_property("runs", RUNS)
    record_property("kills", came.kills)
    record_property("runs taken over", len(came.waits))
    record_property("seconds", round(came.seconds, 1))
    # How long they stood still says little: a run that is taken over waits behind all that have not begun. Two kills
    # may both meet a worker that has just started.
    assert came.waits or KILLS < 30


async def test_a_run_goes_on_when_the_heartbeats_of_its_worker_have_stopped(
    children: Children, temporal_server: TemporalServer, record_property: Figure
) -> None:
    client = await temporal_server.connect()
    waits: list[float] = []
    with quick_folder() as folder, stored_in(STORES[-1], folder) as store:
        lines = folder / "lines"
        workers = Workers(children, store, lines, random.Random(SEED), LEASE, WORK, pause=PAUSE)
        flow = flow_into(lines, -1)

        async def first_line(run_id: str, *without: int) -> tuple[int, float]:
            with anyio.fail_after(60):
                while True:
                    for line in map(json.loads, lines.read_text().splitlines()):
                        if line[2] == run_id and line[0] not in without:
                            return line[0], line[1]
                    await anyio.sleep(0.01)

        async with (
            backend_of(store) as backend,
            Harness(checkpoints=backend, plugins=[], flows={"flow": flow}) as harness,
        ):
            pids = [workers.start() for _ in range(2)]
            for number in range(TAKEN_OVER):
                run_id = await submit(client, harness, flow, number, run_id=f"taken-{number}", heartbeat=HEARTBEAT)
                owner, _ = await first_line(run_id)
                children.kill(pids[owner])
                workers.pids.remove(pids[owner])
                killed = time.monotonic()
                _, taken = await first_line(run_id, owner)
                waits.append(taken - killed)
                pids.append(workers.start())
                assert (await harness.result(run_id, flow)).value == value_of(number)
            workers.stop()
    record_property("takeovers", len(waits))
    record_property("half of them, seconds", round(sorted(waits)[len(waits) // 2], 2))
    record_property("the longest", round(max(waits), 2))
    # Temporal's own timers are up to a second late, and the sample may run on a busy machine.
    assert max(waits) < HEARTBEAT + (2.0 if FULL else 30.0)


async def test_a_run_that_kills_its_workers_fails(children: Children, temporal_server: TemporalServer) -> None:
    client = await temporal_server.connect()
    with quick_folder() as folder:
        store = str(folder / "runs.db")
        async with (
            backend_of(store) as backend,
            Harness(checkpoints=backend, plugins=[], flows={"deadly": deadly}) as harness,
        ):
            await submit(client, harness, deadly, "x", run_id="deadly", heartbeat=HEARTBEAT)
            given = {
                "store": store,
                "lines": str(folder / "lines"),
                "lease": LEASE,
                "concurrency": 1,
                "pause": PAUSE,
                "lives": 2,
            }
            for process in range(2):
                pid = children.start(WORK, process=process, **given)
                children.ended(pid, codes=(1,))
            last = children.start(WORK, process=2, **given)
            with pytest.raises(WorkflowFailureError) as caught:
                await client.get_workflow_handle("deadly").result()
            children.kill(last)
            assert isinstance(caught.value.cause, ActivityError)
            assert isinstance(caught.value.cause.cause, ApplicationError)
            assert caught.value.cause.cause.type == "WorkersDied"
            assert "2 workers in a row have died" in str(caught.value.cause.cause)
            left = await harness.runs.get("deadly")
            assert (left.status, left.alive) == ("queued", False)
