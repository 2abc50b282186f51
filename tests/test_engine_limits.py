"""What bounds a run and all that it starts: depth, width and iterations, exact, and the same over resumes."""

from __future__ import annotations

from typing import Any, TypeAlias

import anyio
import pytest

from noetic_py import (
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    StateBag,
    Step,
    loop,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.engine import state as limits
from noetic_py.engine.state import MAX_CHILDREN, MAX_DEPTH
from noetic_py.errors import ConfigError, LimitExceeded, ParallelFailed, PositionConflict

pytestmark = pytest.mark.anyio

Ctx: TypeAlias = Context[Memory, StateBag]
SOON = 0.01


async def stopped(harness: Harness[Memory], flow: Any, value: Any, **options: Any) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await harness.run(flow, value, **options)
    return caught.value


# -- depth


async def test_spawns_below_one_another_end_at_the_cap() -> None:
    depths: list[int] = []

    @step
    async def deeper(depth: int, ctx: Ctx) -> int:
        depths.append(depth)
        again: Step[int, int, Memory, StateBag] = deeper
        return await spawn(again)(depth + 1, ctx)

    async with Harness(plugins=[]) as harness:
        error = await stopped(harness, deeper, 0)
    assert (error.what, error.limit, depths) == ("spawn depth", MAX_DEPTH, list(range(MAX_DEPTH + 1)))


def descending(depths: list[int], errors: list[LimitExceeded], way: str, harness: Harness[Memory]) -> Any:
    """A step that starts a run of its own of itself, again and again."""

    @step
    async def deeper(depth: int, ctx: Ctx) -> int:
        depths.append(depth)
        again: Step[int, int, Memory, StateBag] = deeper
        try:
            if way == "run":
                return (await harness.run(again, depth + 1)).value
            if way == "spawn, run" and depth % 2:
                return await spawn(again)(depth + 1, ctx)
            return (await ctx.spawn_detached(again, depth + 1, owner="harness").wait()).value
        except LimitExceeded as error:
            errors.append(error)
            return depth

    return deeper


@pytest.mark.parametrize("way", ["run", "start", "spawn, run"])
async def test_a_run_that_a_step_starts_does_not_begin_to_count_anew(way: str) -> None:
    depths: list[int] = []
    errors: list[LimitExceeded] = []
    async with Harness(plugins=[]) as harness:
        result = await harness.run(descending(depths, errors, way, harness), 0)
        assert (result.value, depths) == (MAX_DEPTH, list(range(MAX_DEPTH + 1)))
        assert [error.what for error in errors] == ["spawn depth"]
        # Nothing of it counts against the next one.
        assert (await harness.run(descending(depths, errors, way, harness), 1)).value == MAX_DEPTH + 1


@pytest.mark.parametrize("way", ["start", "spawn, run"])
async def test_a_run_that_goes_on_alone_is_as_deep_as_it_was(way: str) -> None:
    backend, hangs, deep = InMemoryBackend(), [True], anyio.Event()
    depths: list[int] = []
    errors: list[LimitExceeded] = []

    def flow_of(harness: Harness[Memory]) -> Any:
        inner = descending(depths, errors, way, harness)

        @step
        async def deeper(depth: int, ctx: Ctx) -> int:
            again: Step[int, int, Memory, StateBag] = deeper
            if depth < 6:
                return (await ctx.spawn_detached(again, depth + 1, owner="harness").wait()).value
            if hangs[0]:
                deep.set()
                await anyio.sleep_forever()
            found: int = await inner(depth, ctx)
            return found

        return deeper

    async with Harness(plugins=[], checkpoints=backend) as harness:
        harness.start(flow_of(harness), 0)
        await deep.wait()
        await harness.shutdown(timeout=SOON)
        left = [run.run_id for run in await harness.runs.list(status="interrupted") if run.shutdown]
        assert len(left) == 7
    hangs[0] = False
    async with Harness(plugins=[], checkpoints=backend) as harness:
        # The newest is the one at depth 6.
        result = await harness.resume(left[0], flow_of(harness))
        assert result.value == MAX_DEPTH
    assert [error.what for error in errors] == ["spawn depth"]
    assert max(depths) == MAX_DEPTH


# -- width


async def test_spawns_at_once_end_at_the_cap() -> None:
    begun: list[int] = []

    @step
    async def hang(number: int) -> int:
        begun.append(number)
        await anyio.sleep_forever()
        return number

    @step
    async def many(count: int, ctx: Ctx) -> int:
        for number in range(count):
            try:
                ctx.spawn_detached(hang, number)
            except LimitExceeded:
                await anyio.wait_all_tasks_blocked()
                raise
        return count

    async with Harness(plugins=[]) as harness:
        error = await stopped(harness, many, MAX_CHILDREN + 50)
        assert (error.what, error.limit) == ("live children", MAX_CHILDREN)
        assert sorted(begun) == list(range(MAX_CHILDREN))


async def test_paths_at_once_end_at_the_cap() -> None:
    @step
    async def hang(number: int) -> int:
        await anyio.sleep_forever()
        return number

    @step
    async def many(count: int, ctx: Ctx) -> list[int]:
        return await ctx.gather(*(spawn(hang.bind(number)) for number in range(count)))

    async with Harness(plugins=[]) as harness:
        with pytest.raises(ParallelFailed) as caught:
            await harness.run(many, MAX_CHILDREN + 1)
        [error] = caught.value.failed.values()
        assert isinstance(error, LimitExceeded)
        assert (error.what, error.limit) == ("live children", MAX_CHILDREN)


async def test_runs_that_steps_start_count_together_with_what_those_start() -> None:
    begun: list[int] = []
    refused: list[LimitExceeded] = []
    full = anyio.Event()

    @step
    async def hang(number: int) -> int:
        begun.append(number)
        await anyio.sleep_forever()
        return number

    @step
    async def many(count: int, ctx: Ctx) -> int:
        for number in range(count):
            try:
                ctx.spawn_detached(hang, number, owner="harness")
            except LimitExceeded as error:
                refused.append(error)
                full.set()
                break
        await anyio.sleep_forever()
        return count

    @step
    async def most(count: int, ctx: Ctx) -> int:
        for _ in range(2):
            ctx.spawn_detached(many, count, owner="harness")
        await anyio.sleep_forever()
        return count

    async with Harness(plugins=[]) as harness:
        harness.start(most, 200)
        await full.wait()
        await anyio.wait_all_tasks_blocked()
        # The two that start them are children themselves.
        assert len(begun) == MAX_CHILDREN - 2
        assert {error.what for error in refused} == {"live children"}
        await harness.shutdown(timeout=SOON)


# -- iterations


class Endless:
    """A loop without an end, of which each iteration has a spawn with a loop of its own."""

    def __init__(self) -> None:
        self.bodies = 0

        @step
        async def body(value: int) -> int:
            self.bodies += 1
            return value + 1

        inner = loop(body, until=until.max_rounds(7), id="inner")
        self.flow: Any = loop(spawn(inner), until=until.never(), max_iterations=10**9, id="outer")


def bodies_of(most: int) -> int:
    """How many bodies run under a cap: each outer iteration counts, and seven inner ones."""
    whole, rest = divmod(most, 8)
    return whole * 7 + max(0, rest - 1)


@pytest.mark.parametrize("most", [1, 8, 9, 100])
async def test_iterations_of_all_loops_of_a_run_end_at_the_cap(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(limits, "MAX_ITERATIONS", most)
    endless = Endless()
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        error = await stopped(harness, endless.flow, 0, run_id="r")
        assert (error.what, error.limit, endless.bodies) == ("iterations of a run", most, bodies_of(most))
        # Trying again what failed of it gives it no more.
        with pytest.raises(LimitExceeded):
            await harness.resume("r", endless.flow)
        assert endless.bodies == bodies_of(most)


@pytest.mark.parametrize("most", [1, 9])
async def test_a_harness_sets_the_cap_on_iterations(most: int) -> None:
    endless = Endless()
    async with Harness(plugins=[], max_iterations=most) as harness:
        error = await stopped(harness, endless.flow, 0)
    assert (error.limit, endless.bodies) == (most, bodies_of(most))
    assert "max_iterations" in str(error.hint)


@pytest.mark.parametrize("most", [0, -1, True, "9", 1.5])
def test_a_cap_on_iterations_is_a_number_from_1_on(most: Any) -> None:
    with pytest.raises(ConfigError, match="is not a valid number of iterations; expected 1 or more"):
        Harness(plugins=[], max_iterations=most)


async def test_the_cap_on_iterations_is_the_same_wherever_the_process_died(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 41
    monkeypatch.setattr(limits, "MAX_ITERATIONS", most)
    backend, whole = InMemoryBackend(), Endless()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        await stopped(harness, whole.flow, 0, run_id="r")
        end = (await harness.runs.get("r")).position
        for at in range(1, end):
            try:
                killed = await harness.fork("r", at=at)
            except PositionConflict:
                # No transaction ends there.
                continue
            done = sum(
                type(record).__name__ == "StepFinished" and record.path[-1].startswith("body[")
                for record in await harness.runs.journal(killed)
            )
            endless = Endless()
            with pytest.raises(LimitExceeded):
                await harness.resume(killed, endless.flow)
            assert endless.bodies + done == bodies_of(most), at


async def test_iterations_of_started_runs_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ITERATIONS", 30)
    ran: list[int] = []

    @step
    async def body(value: int) -> int:
        ran.append(value)
        return value + 1

    part = loop(body, until=until.max_rounds(5), id="part")

    @step
    async def again(value: int, ctx: Ctx) -> int:
        return (await ctx.spawn_detached(part, value, owner="harness").wait()).value

    flow = loop(again, until=until.never(), max_iterations=10**6)
    async with Harness(plugins=[]) as harness:
        await stopped(harness, flow, 0)
        assert len(ran) == 25


async def test_loops_of_runs_that_nobody_else_has_started_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ITERATIONS", 10)

    @step
    async def body(value: int) -> int:
        return value + 1

    part = loop(body, until=until.max_rounds(5))
    async with Harness(plugins=[]) as harness:
        for _ in range(5):
            assert (await harness.run(sequence(part, part), 0)).value == 10
            await stopped(harness, sequence(part, part, part, id="more"), 0)
