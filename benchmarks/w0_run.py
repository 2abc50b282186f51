"""W0: what a run costs by itself: a flow of one step that does nothing, run again and again, and not stored."""

from __future__ import annotations

from attrs import evolve

from benchmarks.measure import MICRO, Figure, Measurement, Plan, compare, cpu, in_loop, take_turns
from benchmarks.w1_steps import SAME, bare_calls, check
from noetic_py import Harness

RUNS = 2_000
TARGET_MICROSECONDS = 30.0


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W0."""
    count = plan.size(RUNS)
    found = take_turns({"bare": bare_calls(count), "runs": runs(count)}, plan.rounds)
    name = "a run of one step that does nothing, against bare await"
    figure = compare("W0", name, found["bare"], found["runs"], unit="µs a run", factor=MICRO)
    return [evolve(figure, target=TARGET_MICROSECONDS, judged="ours")]


def runs(count: int) -> Measurement:
    """Seconds a run."""

    async def work() -> float:
        harness = Harness(plugins=[])
        # The first run imports and makes what all others share.
        result = await harness.run(SAME, 1)
        began = cpu()
        for _ in range(count):
            result = await harness.run(SAME, 1)
        seconds = cpu() - began
        check(result.steps, 1)
        return seconds / count

    return in_loop(work)
