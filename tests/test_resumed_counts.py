"""What a run counts is the same wherever its process has died: steps of paths that lost, and of wrap-ups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import anyio
import pytest

from noetic_py import Context, Harness, Memory, RunResult, StateBag, Step, errors, parallel, race, sequence, spawn, step
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.testing import FaultyBackend
from noetic_py.testing.faults import When

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
    tell = told or (lambda result: (result.status, result.steps, result.model_calls))
    with anyio.fail_after(60):
        whole = await lives(make, backend, None, "before", "whole")
        for when in get_args(When):
            at = 1
            while (found := await lives(make, backend, at, when, f"{when} {at}")) is not None:
                assert tell(found) == tell(whole), (when, at)
                at += 1
    return whole


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
