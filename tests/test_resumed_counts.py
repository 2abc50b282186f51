"""What a run counts is the same wherever its process has died: steps of paths that lost, and of wrap-ups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    Harness,
    Memory,
    MemoryLayer,
    Retry,
    RunResult,
    StateBag,
    Step,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.context.detached import DetachedRun
from noetic_py.memory import function
from noetic_py.testing import FaultyBackend
from noetic_py.testing.faults import When
from tests.properties.checks import FULL

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]


async def lives(make: Callable[[], AnyStep], inner: CheckpointBackend, at: int | None, when: When, name: str) -> Any:
    """The run's result, after its process has died at an append; `None` when it had ended before."""
    store = FaultyBackend(inner, dies_at=at, when=when)
    async with Harness(plugins=(), checkpoints=store) as harness:
        with store.outlived():
            whole: RunResult[Any, Any] = await harness.run(make(), 1, run_id=name, on_error="result")
        if not store.dead:
            return whole if at is None else None
    store.revive()
    async with Harness(plugins=(), checkpoints=store) as harness:
        try:
            return await harness.resume(name, make(), on_error="result")
        except errors.RunNotFound:
            return await harness.run(make(), 1, run_id=f"{name} again", on_error="result")


async def check_everywhere(
    make: Callable[[], AnyStep], backend: CheckpointBackend, told: Callable[[Any], Any] | None = None
) -> Any:
    """Kill the run before and after each of its commits; it ends as one that nothing kills."""
    tell = told or outcome
    with anyio.fail_after(60):
        whole = await lives(make, backend, None, "before", "whole")
        for when in get_args(When):
            at = 1
            while (found := await lives(make, backend, at, when, f"{when} {at}")) is not None:
                assert tell(found) == tell(whole), (when, at)
                at += 1
    return whole


def outcome(result: RunResult[Any, Any]) -> object:
    return result.status, result.steps, result.model_calls


def waits_for(others: int) -> tuple[Callable[[], Awaitable[None]], Callable[[], None]]:
    """How a step waits until as many others go on, and how these say so."""
    there, all_there = [0], anyio.Event()

    def come() -> None:
        there[0] += 1
        if there[0] == others:
            all_there.set()

    return all_there.wait, come


def beside(first: Callable[[int], int], section: Callable[[list[AnyStep]], AnyStep]) -> AnyStep:
    """A section in which one path decides while three steps of others go on: its own, a nested one and a child's."""
    wait, come = waits_for(3)

    @step
    async def decides(n: int) -> int:
        await wait()
        return first(n)

    @step
    async def goes_on(n: int, ctx: Ctx) -> int:
        come()
        await anyio.sleep_forever()
        return n

    @step
    async def before(n: int) -> int:
        return n

    nested = sequence(before, goes_on, id="nested")
    return section([decides, goes_on, nested, spawn(goes_on, id="child")])


@step
async def after(n: Any) -> int:
    return 7


def breaks(n: int) -> int:
    raise ValueError("broken")


async def test_a_race_that_is_killed_right_after_its_winner_counts_those_who_lost(backend: CheckpointBackend) -> None:
    def make() -> AnyStep:
        return sequence(beside(lambda n: n, lambda paths: race(paths, id="race")), after, id="flow")

    whole = await check_everywhere(make, backend)
    assert (whole.status, whole.steps) == ("completed", 6)


async def test_so_does_a_section_that_a_failed_path_has_ended(backend: CheckpointBackend) -> None:
    def make() -> AnyStep:
        def at_once(paths: list[AnyStep]) -> AnyStep:
            section: AnyStep = parallel(paths, id="all")
            return section

        section = beside(breaks, at_once)

        @step
        async def goes_on_after(n: int, ctx: Ctx) -> int:
            try:
                await section(n, ctx)
            except errors.ParallelFailed:
                return await after(n, ctx)
            return 0

        return goes_on_after

    whole = await check_everywhere(make, backend)
    assert (whole.status, whole.steps) == ("completed", 7)


async def test_so_does_a_gather(backend: CheckpointBackend) -> None:
    def make() -> AnyStep:
        wait, come = waits_for(1)

        @step
        async def decides(n: int) -> int:
            await wait()
            return breaks(n)

        @step
        async def goes_on(n: int) -> int:
            come()
            await anyio.sleep_forever()
            return n

        @step
        async def gathers(n: int, ctx: Ctx) -> int:
            try:
                await ctx.gather(goes_on.bind(n), decides.bind(n))
            except errors.ParallelFailed:
                return await after(n, ctx)
            return 0

        return gathers

    whole = await check_everywhere(make, backend)
    assert (whole.status, whole.steps) == ("completed", 4)


async def test_a_race_inside_a_race_counts_them_once() -> None:
    def make() -> AnyStep:
        inner = beside(lambda n: n, lambda paths: race(paths, id="inner"))

        @step
        async def never(n: int) -> int:
            await anyio.sleep_forever()
            return n

        return sequence(race([inner, never], id="outer"), after, id="flow")

    whole = await check_everywhere(make, InMemoryBackend())
    assert (whole.status, whole.steps) == ("completed", 7)


# ------------------------------------------------------------------------------------------------------------ wrap-ups


def wrapped(limit: int, kept: int, ones: int) -> Budget:
    """A budget whose wrap-up calls so many steps, and says in the state what it is told of its budget."""

    @step
    async def summary(_: object, ctx: Ctx) -> int:
        for n in range(ones):
            await after(n, ctx)
        told = ctx.budget
        ctx.state[f"budget of {limit}"] = [told.steps, told.limit.steps, told.used.steps]
        return 100

    return Budget(steps=limit, reserve=Budget(steps=kept), wrap_up=summary)


@step
async def many(n: int, ctx: Ctx) -> int:
    for each in range(10):
        await after(each, ctx)
    return n


AROUND: list[Callable[[Budget], AnyStep]] = [
    lambda budget: many.with_options(budget=budget),
    lambda budget: sequence(after, many.with_options(budget=budget), after, id="row"),
    lambda budget: spawn(many.with_options(budget=budget), id="child"),
    lambda budget: spawn(many, id="child", budget=budget),
    lambda budget: loop(
        many.with_options(budget=budget), until=until.never(), max_iterations=2, at_limit="end", id="loop"
    ),
]


LIMITED = [(limit, around) for limit in (None, 8, 9, 14) for around in range(len(AROUND))]


# The sample has each limit and each step around, and not with each other.
@pytest.mark.parametrize(("limit", "around"), LIMITED if FULL else LIMITED[::3])
async def test_a_wrap_up_below_another_budget_counts_and_has_left_what_it_would_have(
    limit: int | None, around: int
) -> None:
    def make() -> AnyStep:
        inner = AROUND[around](wrapped(8, 5, 2))
        if limit is None:
            return inner
        row = sequence(inner, *[after] * 5, id="row around").with_options(budget=wrapped(limit, 3, 1))
        return sequence(row, after, id="flow")

    whole = await check_everywhere(make, InMemoryBackend(), lambda found: (found.status, found.steps, found.state))
    assert whole.status == "completed"


async def test_a_step_whose_reserve_does_not_fit_has_not_begun(backend: CheckpointBackend) -> None:
    def make() -> AnyStep:
        inner = many.with_options(budget=wrapped(8, 5, 2))
        return sequence(inner, id="row").with_options(budget=wrapped(5, 1, 0))

    whole = await check_everywhere(make, backend, lambda found: (found.status, found.steps, found.state))
    assert (whole.status, whole.steps) == ("completed", 1)


class Unfinished:
    """A step that waits, and a wrap-up that has no time in the first process and would be quick in the next."""

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.begun = 0

        @step
        async def waits(n: int) -> int:
            self.there.set()
            await anyio.sleep_forever()
            return n

        @step
        async def summary(_: object, ctx: Ctx) -> int:
            self.begun += 1
            await after(0, ctx)
            if self.begun == 1:
                await anyio.sleep_forever()
            return 100

        self.budget = Budget(seconds=600, reserve=Budget(seconds=0.1), wrap_up=summary)
        self.waits: Step[int, int, Memory, StateBag] = waits


async def test_a_wrap_up_that_ended_without_a_value_has_none_later(backend: CheckpointBackend) -> None:
    made = Unfinished()
    with anyio.fail_after(30):
        async with Harness(plugins=(), checkpoints=backend) as harness:
            handle = harness.start(made.waits, 1, run_id="r", budget=made.budget)
            await made.there.wait()
            assert handle.wrap_up("enough")
            first = await handle.result()
        async with Harness(plugins=(), checkpoints=backend) as harness:
            again = await harness.resume("r", made.waits, budget=made.budget)
    for found in (first, again):
        assert (found.status, found.has_value, found.steps) == ("completed", False, 3)
        assert found.reason == "enough; the wrap-up was out of time: raise seconds= of reserve="
    assert list(again.items) == list(first.items)
    assert made.begun == 1


async def test_so_has_work_beside_the_flow(backend: CheckpointBackend) -> None:
    made, works = Unfinished(), list[DetachedRun[int]]()
    seen: list[tuple[str, bool, int]] = []

    @step
    async def start(n: int, ctx: Ctx) -> str:
        works.append(ctx.spawn_detached(made.waits, n, budget=made.budget))
        found = await works[-1].wait()
        seen.append((found.status, found.has_value, found.steps))
        return found.status

    with anyio.fail_after(30):
        async with Harness(plugins=(), checkpoints=backend) as harness:
            handle = harness.start(start, 1, run_id="r")
            await made.there.wait()
            assert works[0].wrap_up("enough")
            whole = await handle.result()
            journal = await harness.runs.journal("r")
            # Wherever the process has died since it was known to have no value.
            known = next(at for at, each in enumerate(journal) if getattr(each, "key", "") == "valueless")
            for at in range(known + 1, len(journal)):
                try:
                    fork = await harness.fork("r", at=at)
                except errors.PositionConflict:
                    # No transaction ends there.
                    continue
                result = await harness.resume(fork, start)
                assert (result.value, result.steps) == (whole.value, whole.steps)
    assert seen == [("completed", False, 3)] * len(seen)
    assert made.begun == 1
    assert len(seen) > 1


class Said(MemoryLayer[list[str]]):
    @function
    async def add(self, text: str) -> None:
        """Keep a text."""
        self.state = [*self.state, text]


class Mem(Memory):
    said: Said = Said()


@pytest.mark.parametrize("how", ["spawn", "parallel", "handled"])
async def test_a_part_that_shares_the_state_leaves_its_layers_to_itself_when_it_fails(
    how: str, backend: CheckpointBackend
) -> None:
    """The state is one object, and the layers of the part are a copy that comes back when it succeeds."""

    def say(text: str) -> AnyStep:
        @step(id=text, version="1")
        async def says(_: object, ctx: Context[Any, StateBag]) -> str:
            ctx.state["said"] = [*(ctx.state.get_as("said", list) or []), text]
            await ctx.memory.said.add(text)
            return text

        return says

    part = sequence(say("b"), say("c"), say("d"), id="part")
    shared = parallel([part], state="share") if how == "parallel" else spawn(part, state="share")

    @step(version="1")
    async def handles(_: object, ctx: Context[Any, StateBag]) -> str:
        with pytest.raises(errors.BudgetExceeded):
            await shared.with_options(budget=Budget(steps=1))(None, ctx)
        return "handled"

    flow = sequence(say("a"), handles, say("e")) if how == "handled" else sequence(say("a"), shared)
    budget = Budget(steps=100 if how == "handled" else 2)
    expected = {"handled": ["a", "e"], "parallel": ["a"], "spawn": ["a", "b"]}[how]

    async with Harness(plugins=(), memory=Mem(), checkpoints=backend) as harness:
        whole = await harness.run(flow, None, budget=budget, run_id="r", on_error="result")
        for _ in range(2):
            again = await harness.resume("r", flow, budget=budget, on_error="result")
            assert again.status == whole.status
            assert again.state == whole.state
            assert again.memory == whole.memory
    assert whole.state["said"] == expected
    assert whole.memory["said"] == (["a", "e"] if how == "handled" else ["a"])
    async with Harness(plugins=(), memory=Mem()) as harness:
        unkept = await harness.run(flow, None, budget=budget, on_error="result")
    assert (unkept.state, unkept.memory) == (whole.state, whole.memory)


async def test_attempts_of_a_step_do_not_count_against_its_own_budget() -> None:
    @step(id="say", version="1")
    async def say(x: int) -> int:
        return x

    @step(id="tries", version="1", retry=Retry(3, initial=0), budget=Budget(steps=1))
    async def tries(x: int, ctx: Ctx) -> int:
        frame: Any = ctx
        if frame.attempt < 3:
            raise ValueError(x)
        return await say(x, ctx)

    whole = await check_everywhere(lambda: sequence(tries, say, id="flow"), InMemoryBackend())
    assert (whole.status, whole.steps) == ("completed", 5)
