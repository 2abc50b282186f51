"""W9: the resume of a stored run that has failed after 100,000 steps of a loop, against one after 1,000, and the
memory that such a run takes at its peak."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from pathlib import Path

import anyio
from attrs import define

from benchmarks.measure import EVEN, MILLI, Figure, Measurement, Plan, Spread, compare, cpu, in_loop, take_turns
from benchmarks.w1_steps import check
from noetic_py import Context, Harness, Memory, loop, step, until
from noetic_py.checkpoints import SqliteBackend
from noetic_py.context.step import AnyStep

STEPS = (1_000, 100_000)
TARGET = 2.0
MEMORY_STEPS = (1_000, 10_000)
TEXT_BYTES = 96


@define
class State:
    """What every step changes, and the step that fails."""

    text: str = ""
    stops: int = 0


class Stop(Exception):
    """The run cannot go on."""


@step
async def work(value: int, ctx: Context[Memory, State]) -> int:
    """Change the state, and fail where the run is to fail."""
    if value == ctx.state.stops:
        raise Stop
    ctx.state.text = f"{value:08d}" * (TEXT_BYTES // 8)
    return value + 1


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W9."""
    short, long = (max(600, plan.size(count)) for count in STEPS)
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Measurement] = {"short": resumed(short, folder), "long": resumed(long, folder)}
        found = take_turns(sides, max(1, plan.rounds // 3))
    small, large = (peak(max(600, plan.size(count))) for count in MEMORY_STEPS)
    values = [Spread.of([each]) for each in (large, small, large / small)]
    return [
        compare(
            "W9", f"CPU of a resume after {long:,} steps, against one after {short:,}", found["short"], found["long"],
            unit="ms", factor=MILLI, target=TARGET,
        ),
        Figure(
            "W9", f"memory of a stored run of {MEMORY_STEPS[1]:,} steps, against one of {MEMORY_STEPS[0]:,}", "KB",
            values[0], values[1], values[2], EVEN, rounds=1,
        ),
    ]  # fmt: skip


def flow_of(count: int) -> AnyStep:
    """A loop of that many rounds, and a few more."""
    return loop(work, until=until.max_rounds(count + 5), max_iterations=count + 5, id="loop")


async def run(harness: Harness[Memory], count: int, run_id: str) -> None:
    """Run the loop until it fails after so many rounds."""
    result = await harness.run(flow_of(count), 0, state=State(stops=count), run_id=run_id, on_error="result")
    check(result.steps, count + 1)


def resumed(count: int, folder: str) -> Measurement:
    """CPU seconds of a resume of a run that fails again; the run is made once, before the first one is measured."""

    async def once() -> float:
        path = Path(folder) / f"{count}.db"
        is_new = not path.exists()
        async with SqliteBackend(path, exclusive=True) as backend:
            async with Harness(plugins=[], checkpoints=backend, max_iterations=count + 10) as harness:
                if is_new:
                    await run(harness, count, "run")
            gc.collect()
            # Another harness, as in another process.
            async with Harness(plugins=[], checkpoints=backend, max_iterations=count + 10) as harness:
                began = cpu()
                result = await harness.resume("run", flow_of(count), state_type=State, on_error="result")
                seconds = cpu() - began
        check(result.steps, count + 1)
        return seconds

    return in_loop(once)


def peak(count: int) -> float:
    """The most kilobytes that Python has held while a run of so many rounds went on."""

    async def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                SqliteBackend(Path(folder) / "runs.db", exclusive=True) as backend,
                Harness(plugins=[], checkpoints=backend) as harness,
            ):
                # What is imported and made once is not counted.
                await run(harness, 10, "first")
                gc.collect()
                tracemalloc.start()
                await run(harness, count, "run")
                most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        return most / 1024

    return anyio.run(once)
