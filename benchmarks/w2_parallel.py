"""W2: what a parallel path costs: 1,000 trivial branches, joined, against an anyio task group doing the same."""

from __future__ import annotations

from functools import partial

import anyio
from typing_extensions import Unpack

from benchmarks.measure import EVEN, MICRO, Figure, Measurement, Plan, compare, cpu, in_loop, take_turns
from benchmarks.w1_steps import SAME, check, same
from noetic_py import Context, Harness, Message, parallel, step
from noetic_py.core.selections import SelectOptions

BRANCHES = 1_000
LOGS = (10, 1_000, 10_000)
TARGET = 1.5
WAITING = 100


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W2."""
    count = plan.size(BRANCHES)
    short, middle, long = (plan.size(length) for length in LOGS)
    sides: dict[str, Measurement] = {"group": task_group(count), "ours": branches(count)}
    sides |= {f"log {length}": branches_after(count, length) for length in (short, middle, long)}
    sides |= {"watched": branches_watched(count), "waiting": branches_watched(count, capacity=WAITING, overflow="wait")}
    sides |= {"trio group": task_group(count, "trio"), "trio": branches(count, "trio")}
    found = take_turns(sides, plan.rounds)
    compared = partial(compare, "W2", unit="µs a branch", factor=MICRO)
    name = f"parallel of {count:,} steps, against an anyio task group"
    reading = found["watched"], found["waiting"]
    return [
        compared(name, found["group"], found["ours"], target=TARGET),
        *(
            compared(
                f"after {n:,} items, against after {short:,}", found[f"log {short}"], found[f"log {n}"], target=EVEN
            )
            for n in (middle, long)
        ),
        compared(f"read meanwhile: {name}", found["group"], found["watched"]),
        compared(f"waiting for who reads, {WAITING} events at most, against one read meanwhile", *reading),
        compared(f"on trio: {name}", found["trio group"], found["trio"]),
    ]


def task_group(count: int, backend: str = "asyncio") -> Measurement:
    """Seconds a task of a task group whose results are kept in order."""

    async def work() -> float:
        ctx: Context = Context()
        results: dict[int, int] = {}

        async def one(index: int) -> None:
            results[index] = await same(index, ctx)

        began = cpu()
        async with anyio.create_task_group() as group:
            for index in range(count):
                group.start_soon(one, index)
        joined = [results[index] for index in range(count)]
        seconds = cpu() - began
        check(len(joined), count)
        return seconds / count

    return in_loop(work, backend)


def branches(count: int, backend: str = "asyncio") -> Measurement:
    """Seconds a branch of a run whose flow is one parallel section."""
    flow = parallel([SAME] * count)

    async def work() -> float:
        harness = Harness(plugins=[])
        began = cpu()
        result = await harness.run(flow, 1)
        seconds = cpu() - began
        check(len(result.value), count)
        return seconds / count

    return in_loop(work, backend)


def branches_watched(count: int, **options: Unpack[SelectOptions]) -> Measurement:
    """Seconds a branch of the same run while its events are read."""
    flow = parallel([SAME] * count)

    async def work() -> float:
        harness = Harness(plugins=[])
        began = cpu()
        async with harness.stream(flow, 1) as stream:
            seen = [event async for event in stream.select(**options)]
            result = await stream.result()
        seconds = cpu() - began
        check(len(result.value), count)
        # A branch begins and is committed; so is the section, and the run begins and ends.
        check(len(seen), 2 * count + 4)
        return seconds / count

    return in_loop(work)


def branches_after(count: int, items: int) -> Measurement:
    """Seconds a branch of a section in a run with a conversation before it; only the section is measured."""
    flow = parallel([SAME] * count)
    history = [Message.user(f"message {number}") for number in range(items)]
    taken: list[float] = []

    @step
    async def outer(value: int, ctx: Context) -> int:
        began = cpu()
        results = await flow(value, ctx)
        taken.append(cpu() - began)
        return len(results)

    async def work() -> float:
        result = await Harness(plugins=[]).run(outer, 1, history=history)
        check(result.value, count)
        return taken.pop() / count

    return in_loop(work)
