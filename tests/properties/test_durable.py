"""Random programs that are kept, killed anywhere and resumed come out as an oracle foretells that knows no journal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from noetic_py import RunResult
from noetic_py.testing import RandomProgram, random_program
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.durably import Kill, Life, TriedAgain, check_end

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHUNKS = 4
WHOLE = examples(sample=16, full=1200)
KILLED = examples(sample=10, full=1200)
EVERYWHERE = examples(sample=2, full=60)
FORKED = examples(sample=2, full=60)
TRIED = examples(sample=8, full=2000)
FIRST = SEED * 100_000


def kills_of(dice: random.Random, appends: int) -> list[Kill]:
    """One to three deaths: each process has as many appends at the most as the whole run had."""
    return [(dice.randint(1, appends), dice.choice(("before", "after"))) for _ in range(dice.randint(1, 3))]


async def lived(
    seed: int, kills: list[Kill], make: Callable[[int], RandomProgram] = random_program
) -> tuple[Life, str]:
    """Run a program through deaths, and check everything; returns how it ended."""
    before = tasks()
    life = Life(make(seed))
    try:
        result: RunResult[Any, Any] | None = await life.live(kills)
        ended = await check_end(life, result)
        assert await left_over(before) == set()
    except BaseException as error:
        error.add_note(f"NOETIC_SEED={SEED}, seed {seed}, kills {kills}: {life.program}")
        raise
    return life, ended


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_a_kept_run_comes_out_as_one_that_is_not_kept(chunk: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(FIRST + chunk, FIRST + WHOLE, CHUNKS):
        ends[(await lived(seed, []))[1]] += 1
    assert ends["ambiguous"] <= 1 + sum(ends.values()) / 20, ends


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_a_run_that_is_killed_comes_out_as_one_that_is_not(chunk: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(FIRST + 10_000 + chunk, FIRST + 10_000 + KILLED, CHUNKS):
        dice = random.Random(seed)
        life, _ = await lived(seed, [])
        for _ in range(2):
            ends[(await lived(seed, kills_of(dice, life.backend.appends)))[1]] += 1
    # The set is worth something only while most runs survive, and few are beyond the oracle.
    assert ends["completed"] >= sum(ends.values()) / 3, ends
    assert ends["ambiguous"] <= 1 + sum(ends.values()) / 20, ends


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_a_run_that_is_tried_again_and_killed_comes_out_as_one_that_is_not(chunk: int) -> None:
    def make(seed: int) -> RandomProgram:
        return TriedAgain(seed).program()

    for seed in range(FIRST + 40_000 + chunk, FIRST + 40_000 + TRIED, CHUNKS):
        dice = random.Random(seed)
        life, _ = await lived(seed, [], make)
        for _ in range(3):
            await lived(seed, kills_of(dice, life.backend.appends), make)


@pytest.mark.parametrize("second", [(10, "after"), (26, "before")])
async def test_what_stands_around_a_section_that_fails_again_is_not_written(second: Kill) -> None:
    """Its path had failed while a body around it held changes of the state, and nothing below it had finished."""
    await lived(1_441_775, [(112, "after"), second], lambda seed: TriedAgain(seed).program())


async def test_what_stands_around_a_section_stays_written_when_only_its_failure_is_replayed() -> None:
    """It had been written for a step that finished beside the failure; the next process ended the section before it."""
    kills: list[Kill] = [(10, "after"), (3, "before"), (15, "after")]
    for _ in range(6):
        # Which path begins first differs from time to time.
        await lived(2_841_941, kills, lambda seed: TriedAgain(seed).program())


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_every_append(when: Any) -> None:
    for seed in range(FIRST + 20_000, FIRST + 20_000 + EVERYWHERE):
        life, _ = await lived(seed, [])
        for at in range(1, life.backend.appends + 1):
            await lived(seed, [(at, when)])


async def test_a_fork_goes_on_like_a_run_that_was_killed_there() -> None:
    for seed in range(FIRST + 30_000, FIRST + 30_000 + FORKED):
        life, _ = await lived(seed, [])
        for at in life.ends:
            forked = await life.fork(at)
            if await forked.check_journal() in ("failed", "budget_exceeded"):
                continue
            try:
                await check_end(forked, await forked.live())
            except BaseException as error:
                error.add_note(f"NOETIC_SEED={SEED}, seed {seed}, forked at {at}: {life.program}")
                raise
