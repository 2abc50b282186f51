"""The random programs that are shipped for tests: what a seed means, and that a wrong run is noticed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from attrs import evolve

from noetic_py import Context, Harness, InMemoryBackend, Message, RunResult, StateBag, errors, sequence, step
from noetic_py.engine.journaling import fold
from noetic_py.engine.journaling.fold import items_below
from noetic_py.engine.kinds import KINDS
from noetic_py.testing import (
    FaultyBackend,
    Observations,
    RandomProgram,
    assert_expected_outcome,
    expected_outcome,
    random_program,
)

pytestmark = pytest.mark.anyio

SEEDS = [*range(25), *range(100_000, 100_025)]
# Of 50 programs: a seed that somebody has written down must not come to mean another one.
MEANT = "caff219239cfddffee4c5448415272b730112289b3857f6680c15f7af243f996"


def test_a_seed_means_the_same_program_for_ever() -> None:
    lines = [
        f"{seed} {[repr(p.root), p.state, p.model_calls, p.input]}" for seed in SEEDS for p in [random_program(seed)]
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == MEANT


def test_programs_are_values() -> None:
    assert random_program(7) == random_program(7)
    assert random_program(7) != random_program(8)
    assert len({random_program(seed) for seed in range(20)}) == 20


def completing(first: int = 0) -> RandomProgram:
    """A program without races, stops and failures, so that every run of it completes."""
    for seed in range(first, first + 1000):
        program = random_program(seed)
        shape = repr(program.root)
        if program.model_calls is None and not any(
            each in shape for each in ("race", "Fail(", "Stop(", "down", "Hang")
        ):
            return program
    raise AssertionError("there is none")


async def run(program: RandomProgram, seen: Observations, harness: Any, **options: Any) -> RunResult[Any, Any]:
    result: RunResult[Any, Any] = await harness.run(
        program.flow(seen),
        program.input,
        state=program.new_state(),
        budget=program.budget,
        on_error="result",
        **options,
    )
    return result


async def test_a_run_comes_out_as_foretold() -> None:
    for seed in range(10):
        program, seen = random_program(seed), Observations()
        async with Harness(plugins=()) as harness:
            result = await run(program, seen, harness)
        expected = assert_expected_outcome(program, seen, result)
        assert expected is None or expected == expected_outcome(program, seen)


@pytest.mark.parametrize("part", ["program", "bodies", "cost", "conversation", "error"])
async def test_a_run_that_is_wrong_is_noticed(part: str) -> None:
    program, seen = completing(), Observations()
    async with Harness(plugins=()) as harness:
        result = await run(program, seen, harness)
    assert assert_expected_outcome(program, seen, result) is not None
    match part:
        case "program":
            program = evolve(program, input=program.input + 1)
        case "bodies":
            seen.bodies += 1
        case "cost":
            seen.cost += 1
        case "conversation":
            # As if a model had been sent the same item twice.
            seen.bad_requests.append([evolve(Message.user("a"), id="m"), evolve(Message.user("b"), id="m")])
        case _:
            seen.unexpected.append(errors.ConfigError("wrong", code="x"))
    with pytest.raises(AssertionError) as caught:
        assert_expected_outcome(program, seen, result)
    assert caught.value.__notes__ == [f"{program}"]


async def test_a_flow_that_does_something_else_is_noticed() -> None:
    program, seen = completing(), Observations()

    @step(id="more")
    async def more(x: int) -> int:
        return x + 1

    async with Harness(plugins=()) as harness:
        result = await harness.run(
            sequence(program.flow(seen), more), program.input, state=program.new_state(), on_error="result"
        )
    with pytest.raises(AssertionError, match="steps"):
        assert_expected_outcome(program, seen, result)


async def test_the_conversation_of_a_completed_run_is_what_its_journal_says() -> None:
    compared = 0
    for seed in range(40):
        program, seen = random_program(seed), Observations()
        backend = FaultyBackend(InMemoryBackend(), dies_at=3, when="after")
        async with Harness(plugins=(), checkpoints=backend) as harness:
            with backend.outlived():
                result = await run(program, seen, harness, run_id="r")
        async with Harness(plugins=(), checkpoints=backend) as harness:
            if backend.dead:
                backend.revive()
                flow = program.flow(Observations())
                result = await harness.resume("r", flow, state_type=program.state_type, on_error="result")
            journal = await harness.runs.journal("r")
        if result.status == "completed":
            said = [item for item in result.new_items if not item.id.endswith("-closed")]
            compared += bool(said)
            assert said == items_below(journal, KINDS, ())
    assert compared >= 10


async def test_items_of_a_completed_run_are_read_without_its_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    @step
    async def say(x: int, ctx: Context) -> int:
        ctx.items.append(Message.assistant(f"{x}"))
        return x + 1

    async with Harness(plugins=()) as harness:
        result = await harness.run(sequence(say, say), 1)
    monkeypatch.setattr(fold, "tree", None)
    assert [item.text for item in result.items if isinstance(item, Message)] == ["1", "2"]


async def test_a_run_that_died_comes_out_as_foretold() -> None:
    deaths = 0
    for seed in range(8):
        program, seen = random_program(seed), Observations()
        backend = FaultyBackend(InMemoryBackend(), dies_at=3, when="after")
        async with Harness(plugins=(), checkpoints=backend) as harness:
            with backend.outlived():
                result = await run(program, seen, harness, run_id="r")
        async with Harness(plugins=(), checkpoints=backend) as harness:
            if backend.dead:
                deaths += 1
                backend.revive()
                seen = seen.after_death(await harness.runs.journal("r"))
                result = await harness.resume("r", program.flow(seen), state_type=program.state_type, on_error="result")
                assert seen.deaths == 1
            journal = await harness.runs.journal("r")
        assert_expected_outcome(program, seen, result, journal=journal)
    assert deaths >= 4


async def test_what_a_dead_process_has_seen_counts_only_when_it_is_kept() -> None:
    program, seen = completing(), Observations()
    async with Harness(plugins=()) as harness:
        await run(program, seen, harness)
    left = seen.after_death([])
    assert (left.bodies, left.starts, left.done, left.deaths) == (0, {}, set(), 1)
    assert (left.cost, left.calls) == (seen.cost, seen.calls)


async def test_a_bag_may_be_named_as_the_state_type() -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=2, when="after")

    @step
    async def put(x: int) -> int:
        return x

    with backend.outlived():
        await Harness(plugins=(), checkpoints=backend).run(put, 1, run_id="r", state=StateBag({"k": [1]}))
    backend.revive()
    result = await Harness(plugins=(), checkpoints=backend).resume("r", put, state_type=StateBag)
    assert result.state == StateBag({"k": [1]})
