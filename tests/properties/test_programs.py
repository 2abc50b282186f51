"""Random programs come out as an oracle foretells that knows neither journal nor scheduler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    Event,
    Harness,
    RunFinished,
    RunResult,
    StepCommitted,
    StepStarted,
    StepVoided,
    errors,
)
from tests.properties.checks import SEED, examples, left_over, pairing_error, renumbered, tasks, told, valid
from tests.properties.generator import generate
from tests.properties.oracle import Ambiguous, Expected, foretell
from tests.properties.programs import Builder, Program, World, new_state, plain_state

pytestmark = pytest.mark.anyio

CHUNKS = 6
PROGRAMS = examples(sample=150, full=1500)


async def run(program: Program, harness: Any) -> tuple[RunResult[Any, Any], World, Context[Any, Any]]:
    """Run a program in a context whose conversation and state are looked at afterwards; every other one is watched."""
    world = World()
    step = Builder(world, valid).build(program.flow)
    ctx: Context[Any, Any] = Context(state=new_state(program.state))
    options: dict[str, Any] = {"budget": Budget(model_calls=program.model_calls), "on_error": "result", "ctx": ctx}
    with anyio.fail_after(30):
        if program.seed % 2:
            result: RunResult[Any, Any] = await harness.run(step, program.value, **options)
        else:
            events: list[Event] = []
            async with harness.stream(step, program.value, **options) as stream:
                stream._run.bus.watch(events.append)
                result = await stream.result()
            check_events(events, result)
    return result, world, ctx


def check_events(events: list[Event], result: RunResult[Any, Any]) -> None:
    """One end; and whatever starts is told to have been committed or to be void."""
    ends = [event for event in events if isinstance(event, RunFinished)]
    assert ends == events[-1:]
    assert ends[0].status == result.status
    started = Counter(event.path for event in events if isinstance(event, StepStarted))
    ended = Counter(event.path for event in events if isinstance(event, (StepCommitted, StepVoided)))
    assert started == ended


def check_value(expected: Expected, result: RunResult[Any, Any]) -> None:
    """Status, value and error."""
    assert result.status == expected.status, result.error
    assert result.output_or(None) == expected.value
    if result.status == "failed":
        assert type(result.error).__name__ == expected.error, result.error
    if result.status == "budget_exceeded":
        assert isinstance(result.error, errors.BudgetExceeded)
        assert result.error.dimension == "model_calls"


def check_books(program: Program, result: RunResult[Any, Any], world: World) -> None:
    """What was counted and paid equals what the bodies and the model noted themselves."""
    # A round that was cancelled right before its model was asked has been counted, and has met nobody who notes it.
    assert world.bodies <= result.steps <= world.bodies + world.cancelled
    assert result.cost == world.cost
    if program.model_calls is not None:
        assert world.calls <= program.model_calls
        assert not world.refused or world.calls == program.model_calls


async def check(program: Program, harness: Any) -> str:
    """Run a program and compare everything; returns how it ended."""
    result, world, ctx = await run(program, harness)
    assert not world.bad_requests, pairing_error(world.bad_requests[0])
    assert not world.unexpected, world.unexpected[0]
    assert pairing_error(result.items) is None
    check_books(program, result, world)
    try:
        expected = foretell(program, world)
    except Ambiguous:
        return "ambiguous"
    check_value(expected, result)
    assert plain_state(result.state) == expected.state
    assert result.state is ctx.state
    assert told(result.items) == renumbered(expected.items)
    assert told(result.new_items) == renumbered(expected.items)
    assert told(ctx.items) == renumbered(expected.live)
    return result.status


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_random_programs(chunk: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(SEED * 100_000 + chunk, SEED * 100_000 + PROGRAMS, CHUNKS):
        program = generate(seed)
        before = tasks()
        try:
            ends[await check(program, Harness(plugins=()))] += 1
            assert await left_over(before) == set()
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, seed {seed}: {program}")
            raise
    # The set is worth something only while most programs get to their end, and few are beyond the oracle.
    assert ends["completed"] >= sum(ends.values()) / 3, ends
    assert ends["ambiguous"] <= sum(ends.values()) / 20, ends


async def test_random_programs_side_by_side() -> None:
    first = SEED * 100_000 + 50_000
    harness = Harness(plugins=(), budget=Budget(cost=10_000, steps=1_000_000))
    before = tasks()
    for start in range(first, first + PROGRAMS // 3, 10):
        async with anyio.create_task_group() as group:
            for seed in range(start, start + 10):
                group.start_soon(check, generate(seed), harness)
    assert await left_over(before) == set()
    assert not any(harness._resources.lease._held.values())
