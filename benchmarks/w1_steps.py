"""W1: what one step costs: a trivial step 10,000 times in a run that persists nothing, against the bare function."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import EVEN, MICRO, Figure, Measurement, Plan, compare, cpu, in_loop, take_turns
from benchmarks.untraced import without_telemetry
from noetic_py import Context, Harness, Step, loop, step, until

STEPS = 10_000
LENGTHS = (1_000, 10_000, 50_000)
TARGET = 25.0
UNTRACED = 1.05
"""What telemetry may cost where nothing records."""


async def same(value: int, ctx: Context) -> int:
    """A body that does nothing."""
    return value


SAME: Step[int, int] = step(same)


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W1."""
    count = plan.size(STEPS)
    short, middle, long = (plan.size(length) for length in LENGTHS)
    sides: dict[str, Measurement] = {"bare": bare_calls(count), "loop": loop_of(count), "body": calls_from_body(count)}
    sides["untraced"] = without_telemetry(loop_of(count))
    sides |= {f"length {length}": loop_of(length) for length in (short, middle, long)}
    sides |= {"trio bare": bare_calls(count, "trio"), "trio": loop_of(count, "trio")}
    found = take_turns(sides, plan.rounds)
    compared = partial(compare, "W1", unit="µs a step", factor=MICRO)
    calls = f"await step(x, ctx) {count:,} times in a body"
    return [
        compared(f"loop(step) of {count:,}, against bare await", found["bare"], found["loop"], target=TARGET),
        compared(f"{calls}, against bare await", found["bare"], found["body"], target=TARGET),
        *(
            compared(
                f"loop of {n:,}, against a loop of {short:,}",
                found[f"length {short}"],
                found[f"length {n}"],
                target=EVEN,
            )
            for n in (middle, long)
        ),
        compared(
            f"loop(step) of {count:,} without a provider of telemetry, against code without telemetry",
            found["untraced"],
            found["loop"],
            target=UNTRACED,
        ),
        compared(f"on trio: loop(step) of {count:,}, against bare await", found["trio bare"], found["trio"]),
    ]


def bare_calls(count: int, backend: str = "asyncio") -> Measurement:
    """Seconds a call of the bare function."""

    async def work() -> float:
        ctx: Context = Context()
        # One call is far below what a clock can tell well, so ten times as many are made.
        began = cpu()
        for _ in range(10 * count):
            await same(1, ctx)
        return (cpu() - began) / (10 * count)

    return in_loop(work, backend)


def loop_of(count: int, backend: str = "asyncio") -> Measurement:
    """Seconds a step of a run whose flow is a loop; the run's own beginning and end are shared out."""
    flow = loop(SAME, until=until.max_rounds(count), max_iterations=count)

    async def work() -> float:
        harness = Harness(plugins=[])
        began = cpu()
        result = await harness.run(flow, 1)
        seconds = cpu() - began
        check(result.steps, count)
        return seconds / count

    return in_loop(work, backend)


def calls_from_body(count: int) -> Measurement:
    """Seconds a step of a run whose flow is a body that calls another step again and again."""

    @step
    async def outer(value: int, ctx: Context) -> int:
        for _ in range(count):
            await SAME(value, ctx)
        return value

    async def work() -> float:
        harness = Harness(plugins=[])
        began = cpu()
        result = await harness.run(outer, 1)
        seconds = cpu() - began
        check(result.steps, count + 1)
        return seconds / count

    return in_loop(work)


def check(steps: int, expected: int) -> None:
    """Refuse a figure of work that was not done."""
    if steps != expected:
        raise AssertionError(f"{steps} steps were run, not {expected}")
