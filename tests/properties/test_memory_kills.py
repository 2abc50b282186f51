"""Programs with layers that are killed before or after any commit, and go on: nobody can tell by what they come to."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from noetic_py.testing.resumable import NotReached, ResumeCheck, kill_points
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.remembering import PROGRAMS, Program, stored

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def test_there_are_twenty_programs() -> None:
    assert len({program.__name__ for program in PROGRAMS}) >= 20


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_a_program_with_layers_that_is_killed_comes_to_the_same(program: Callable[[], Program]) -> None:
    made = program()
    check = ResumeCheck(made.limited, "hi", made.state, made.harness, "ada", stored)
    before = tasks()
    expected, appends = await check.whole()
    assert expected.parts["status"] == "completed", expected.parts["error"]
    points, missed = kill_points(appends), 0
    chosen = random.Random(f"{SEED} {program.__name__}").sample(
        points, min(len(points), examples(sample=2, full=10_000))
    )
    for at, when in sorted(chosen):
        try:
            await check.kill(at, when, expected)
        except NotReached:
            # Of paths that run side by side, two commits may become one.
            missed += 1
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, {program.__name__}, killed {when} append {at} of {appends}")
            raise
    assert missed <= 4
    assert await left_over(before) == set()
