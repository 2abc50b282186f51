"""Random programs, processes killed at random: what was done stays done, and everything comes to the same end."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import pytest

from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.lives import a_life_and_deaths, new_life
from tests.properties.checks import SEED, examples

POINTS = examples(sample=8, full=1000)
"""How many processes are killed."""

CHUNKS = 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_is_killed_comes_to_the_same_end(children: Children, chunk: int, figure: Figure) -> None:
    kills: Counter[str] = Counter()
    statuses: Counter[str | None] = Counter()
    programs = repeated = 0
    for seed in itertools.count(SEED * 1_000_000 + chunk * 100_000):
        if kills.total() * CHUNKS >= POINTS:
            break
        found, more = a_life_and_deaths(partial(new_life, children), seed, statuses)
        kills += found
        repeated += more
        programs += 1
    figure("kills", dict(kills))
    figure("programs", programs)
    figure("bodies run again", repeated)
    figure("statuses", {status or "none": count for status, count in statuses.items()})
    assert kills.total() * CHUNKS >= POINTS
    assert len(kills) == 4 or POINTS < 400, kills
