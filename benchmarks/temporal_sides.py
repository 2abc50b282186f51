"""One side of `benchmarks.temporal_runs`, in a process of its own: it measures, and prints a line of JSON.

Each side does the same work: a run of some steps, one after the other, each of which takes and returns the same small
payload and is stored before the next one begins. DBOS's side runs in an environment with that library alone, so this
module imports the standard library, and each side what it needs.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

FEW, MANY = 1, 20
"""Steps of a run."""
AT_ONCE = 20
TEXT = "x" * 100
Payload = dict[str, Any]
Start = Callable[[int], Awaitable[int]]
"""Has a run of so many steps carried out, and gives the number that its last step returned."""
STAMPS: list[float] = []
"""When the steps of the last runs began."""


def counted(value: Payload) -> Payload:
    """What every step does."""
    STAMPS.append(time.perf_counter())
    return {"text": value["text"], "number": value["number"] + 1}


def beginning() -> Payload:
    return {"text": TEXT, "number": 0}


async def measure(start: Start, count: int) -> dict[str, float]:
    """Seconds of a run alone, of a step in it, and of a run among many."""
    for steps in (FEW, MANY) * 3:
        await start(steps)
    figures: dict[str, float] = {}
    spent: dict[int, list[float]] = {FEW: [], MANY: []}
    between: list[float] = []
    gc.collect()
    for _ in range(max(count // 4, 3)):
        for steps, found in spent.items():
            STAMPS.clear()
            begun = time.perf_counter()
            done = await start(steps)
            found.append(time.perf_counter() - begun)
            check(done, steps)
            if steps == MANY:
                between.append((STAMPS[-1] - STAMPS[0]) / (MANY - 1))
    for steps, found in spent.items():
        figures[f"alone {steps}"] = statistics.median(found)
    figures["step"] = statistics.median(between)
    for steps in (FEW, MANY):
        gc.collect()
        begun = time.perf_counter()
        for done in await asyncio.gather(*(start(steps) for _ in range(count))):
            check(done, steps)
        figures[f"among {steps}"] = (time.perf_counter() - begun) / count
    return figures


def check(done: int, steps: int) -> None:
    if done != steps:
        raise AssertionError(f"{done} steps were done, not {steps}")


def at_most(start: Start) -> Start:
    """Only so many at once, for sides that begin a run as soon as they are asked."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(steps: int) -> int:
        async with free:
            return await start(steps)

    return one


@asynccontextmanager
async def beside(working: Awaitable[None]) -> AsyncGenerator[None]:
    """Work beside a block."""
    task = asyncio.ensure_future(working)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def noetic(postgres: str) -> AsyncGenerator[tuple[Any, Any]]:
    from benchmarks.temporal_runs import counts
    from noetic_py import Harness

    async with Harness(plugins=["postgres"], checkpoints=postgres, flows={"counts": counts}) as harness:
        yield harness, counts


@asynccontextmanager
async def noetic_run(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """`harness.run`: the backend alone."""
    async with noetic(postgres) as (harness, flow):

        async def one(steps: int) -> int:
            return (await harness.run(flow, steps)).value

        yield at_most(one)


@asynccontextmanager
async def noetic_workers(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """`harness.submit`, and the library's own worker."""
    async with noetic(postgres) as (harness, flow):

        async def one(steps: int) -> int:
            return (await harness.result(await harness.submit(flow, steps), flow)).value

        async with beside(harness.work(concurrency=AT_ONCE)):
            yield one


@asynccontextmanager
async def noetic_temporal(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """The same runs, and Temporal has them carried out."""
    from noetic_temporal import submit, work
    from temporalio.client import Client

    client = await Client.connect(temporal)
    async with noetic(postgres) as (harness, flow):

        async def one(steps: int) -> int:
            run_id = await submit(client, harness, flow, steps)
            await client.get_workflow_handle(run_id).result()
            return (await harness.result(run_id, flow)).value

        async with beside(work(client, harness, concurrency=AT_ONCE)):
            yield one


@asynccontextmanager
async def plain_temporal(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """A workflow of Temporal's, each step an activity."""
    from temporalio.client import Client
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker

    from benchmarks.temporal_runs import Plain, activity_count

    client = await Client.connect(temporal)
    worker = Worker(
        client,
        task_queue="plain",
        workflows=[Plain],
        activities=[activity_count],
        max_concurrent_activities=AT_ONCE,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )

    async def one(steps: int) -> int:
        done: int = await client.execute_workflow(Plain.run, steps, id=str(uuid4()), task_queue="plain")
        return done

    async with worker:
        yield one


@asynccontextmanager
async def dbos(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """A workflow of DBOS, begun in the process that waits for it."""
    async with dbos_workflow(postgres) as (made, counts):

        async def one(steps: int) -> int:
            handle = await made.start_workflow_async(counts, steps)
            return await handle.get_result()

        yield at_most(one)


@asynccontextmanager
async def dbos_queue(postgres: str, temporal: str) -> AsyncGenerator[Start]:
    """The same in a queue of DBOS, which it looks at once a second."""
    async with dbos_workflow(postgres) as (made, counts):
        await made.register_queue_async("benchmark", worker_concurrency=AT_ONCE)

        async def one(steps: int) -> int:
            handle = await made.enqueue_workflow_async("benchmark", counts, steps)
            return await handle.get_result(polling_interval_sec=0.02)

        yield one


@asynccontextmanager
async def dbos_workflow(postgres: str) -> AsyncGenerator[tuple[Any, Any]]:
    # It is not there in the environment of the other sides.
    made: Any = importlib.import_module("dbos").DBOS

    made(
        config={
            "name": "benchmark",
            "system_database_url": postgres.partition("?")[0],
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )

    @made.step()
    async def count(value: Payload) -> Payload:
        return counted(value)

    @made.workflow()
    async def counts(steps: int) -> int:
        value = beginning()
        for _ in range(steps):
            value = await count(value)
        return value["number"]

    made.launch()
    try:
        yield made, counts
    finally:
        made.destroy()


SIDES = {
    each.__name__: each for each in (noetic_run, noetic_workers, noetic_temporal, plain_temporal, dbos, dbos_queue)
}


async def main(side: str, postgres: str, temporal: str, count: int) -> None:
    async with SIDES[side](postgres, temporal) as start:
        figures = await measure(start, count)
    sys.stdout.write(f"{json.dumps(figures)}\n")


def begin() -> None:
    """Measure one side, and end the process, whose library may have threads that outlive it."""
    side, postgres, temporal, size = sys.argv[1:]
    asyncio.run(main(side, postgres, temporal, int(size)))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    begin()
