"""Random programs, processes killed at random: what was done stays done, and everything comes to the same end."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import MOST_RESTARTS, Life, random_kills, same
from tests.properties.checks import SEED, examples

POINTS = examples(sample=40, full=1000)
"""How many processes are killed."""

CHUNKS = 4


def a_life_and_deaths(children: Children, seed: int, statuses: Counter[str | None]) -> tuple[Counter[str], int]:
    """A program's run that nobody kills, and two that processes are killed of; counts the kills, and what ran again.

    Args:
        children: Where processes come from.
        seed: The program's.
        statuses: Counts what lists of runs said after kills; each was compared with what the bodies then did.
    """
    dice = random.Random(seed)
    kills: Counter[str] = Counter()
    repeated = 0
    with quick_folder() as folder:
        whole = Life(children, folder, {"seed": seed})
        expected = whole.live([])
        assert expected.result["status"] == "completed", whole.explain(expected.result)
        for most in (2, MOST_RESTARTS):
            with quick_folder() as below:
                life = Life(children, below, {"seed": seed})
                ended = life.live(random_kills(dice, expected, most))
                assert same(ended.result) == same(expected.result), life.explain(ended.result)
                assert life.restarted <= MOST_RESTARTS, life.explain("too many restarts")
                # A run that is over gives its result again, and does nothing.
                lines = ended.result["lines"]
                over = life.process()
                assert same(over.result) == same(expected.result), life.explain(over.result)
                assert over.result["lines"] == 0, life.explain(f"{lines} lines, and then again {over.result['lines']}")
                assert life.statuses["completed"] > 0, life.explain("the list never said that it has completed")
                kills.update(when for when, _ in life.kills)
                statuses.update(life.statuses)
                repeated += life.repeated
    return kills, repeated


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_is_killed_comes_to_the_same_end(children: Children, chunk: int, figure: Figure) -> None:
    kills: Counter[str] = Counter()
    statuses: Counter[str | None] = Counter()
    programs = repeated = 0
    for seed in itertools.count(SEED * 1_000_000 + chunk * 100_000):
        if kills.total() * CHUNKS >= POINTS:
            break
        found, more = a_life_and_deaths(children, seed, statuses)
        kills += found
        repeated += more
        programs += 1
    figure("kills", dict(kills))
    figure("programs", programs)
    figure("bodies run again", repeated)
    figure("statuses", {status or "none": count for status, count in statuses.items()})
    assert kills.total() * CHUNKS >= POINTS
    assert len(kills) == 4 or POINTS < 400, kills
