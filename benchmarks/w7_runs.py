"""W7: many runs at once: 1,000 runs of 20 steps that sleep for a millisecond, against bare tasks that do the same."""

from __future__ import annotations

import asyncio

import anyio

from benchmarks.measure import Figure, Measurement, Plan, compare, in_loop, take_turns, wall
from benchmarks.w1_steps import check
from noetic_py import Context, Harness, loop, step, until

RUNS = 1_000
STEPS = 20
SECONDS = 0.001
TARGET = 2.5


async def nap(value: int, ctx: Context) -> int:
    """A body that waits."""
    await anyio.sleep(SECONDS)
    return value


NAP = step(nap)


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W7."""
    runs = plan.size(RUNS)
    sides = {"bare": tasks(runs), "ours": harness_runs(runs), "watched": watched_runs(runs)}
    found = take_turns(sides, plan.rounds)
    name = f"{runs:,} runs of {STEPS} steps of sleep(1 ms), against asyncio tasks"
    return [
        compare("W7", name, found["bare"], found["ours"], unit="s", factor=1.0, target=TARGET),
        compare("W7", f"read meanwhile: {name}", found["bare"], found["watched"], unit="s", factor=1.0),
    ]


def tasks(runs: int) -> Measurement:
    """Seconds for bare tasks."""

    async def one(ctx: Context) -> int:
        value = 0
        for _ in range(STEPS):
            value = await nap(value, ctx)
        return value

    async def work() -> float:
        ctx: Context = Context()
        began = wall()
        done = await asyncio.gather(*[asyncio.create_task(one(ctx)) for _ in range(runs)])
        seconds = wall() - began
        check(len(done), runs)
        return seconds

    return in_loop(work)


def harness_runs(runs: int) -> Measurement:
    """Seconds for as many runs of one harness."""
    flow = loop(NAP, until=until.max_rounds(STEPS))

    async def work() -> float:
        harness = Harness(plugins=[])
        began = wall()
        done = await asyncio.gather(*[asyncio.create_task(harness.run(flow, 0)) for _ in range(runs)])
        seconds = wall() - began
        check(sum(result.steps for result in done), runs * STEPS)
        return seconds

    return in_loop(work)


def watched_runs(runs: int) -> Measurement:
    """Seconds for the same runs, each with a reader of its events."""
    flow = loop(NAP, until=until.max_rounds(STEPS))

    async def one(harness: Harness) -> int:
        async with harness.stream(flow, 0) as stream:
            return len([event async for event in stream.select()])

    async def work() -> float:
        harness = Harness(plugins=[])
        began = wall()
        done = await asyncio.gather(*[asyncio.create_task(one(harness)) for _ in range(runs)])
        seconds = wall() - began
        # A step begins and is committed, and its loop says so; the loop, and the run, begin and end.
        check(sum(done), runs * (3 * STEPS + 4))
        return seconds

    return in_loop(work)
