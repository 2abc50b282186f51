"""What steps do to the world, by the world's own books: once for each key, and never twice unasked."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from noetic_py.testing.ledger import Attempt
from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.effects import Till
from tests.crash.folders import quick_folder
from tests.crash.ledger import opened, read_ledger
from tests.crash.lives import MOST_RESTARTS, Kill, Life, held, random_kills, same
from tests.properties.checks import SEED, examples

POINTS = examples(sample=8, full=1000)
"""How many processes are killed, of programs with `keyed` steps and of programs with `once` steps."""

CHUNKS = 2


def unknown(life: Life, ended: Ended) -> set[str]:
    """The `once` steps of which nobody could know, when the last process began, whether they had done their work."""
    before = held(ended)
    closed = set[Attempt]() if before is None else before.closed
    return opened(read_ledger(life.folder / "ledger"), life.processes - 1, closed, "o")


def to_the_end(life: Life, kills: Sequence[Kill], outcomes: Counter[str]) -> Ended:
    """Processes until one completes; one that reports an unknown outcome is followed by one that asks the till."""
    left = list(kills)
    asks = life.given["seed"] % 4 == 1
    while True:
        ended = life.process(left.pop(0) if left else None)
        if ended.killed:
            life.restarted += 1
            continue
        doubtful = unknown(life, ended)
        result = ended.result
        if result["status"] == "completed":
            assert asks or not doubtful, life.explain(f"nobody was told of {doubtful}")
            outcomes["reconciled"] += len(doubtful)
            return ended
        assert not asks, life.explain(result)
        assert {name for name, _ in result["errors"]} == {"StepOutcomeUnknown"}, life.explain(result["errors"])
        outcomes["reported"] += 1
        life.given["reconcile"] = asks = True


def a_life_and_deaths(children: Children, seed: int) -> tuple[int, Counter[str]]:
    """A program's run that nobody kills, and two of which processes are killed, each with a till of its own."""
    dice = random.Random(seed)
    killed, outcomes = 0, Counter[str]()
    with quick_folder() as folder:
        whole = Life(children, folder, {"seed": seed, "flow": "effects"})
        expected = whole.live([])
        assert expected.result["status"] == "completed", whole.explain(expected.result)
        till = Till(folder)
        for most in (2, MOST_RESTARTS):
            with quick_folder() as below:
                life = Life(children, below, {"seed": seed, "flow": "effects"})
                found = Counter[str]()
                ended = to_the_end(life, random_kills(dice, expected, most), found)
                assert Till(below).done_keyed() == till.done_keyed(), life.explain("other effects for keys")
                assert sorted(Till(below).done()) == sorted(till.done()), life.explain("other effects")
                if not found["reported"]:
                    assert same(ended.result) == same(expected.result), life.explain(ended.result)
                assert ended.result["value"] == expected.result["value"], life.explain(ended.result)
                killed += len(life.kills)
                outcomes += found
    return killed, outcomes


@pytest.mark.parametrize("kind", ["keyed", "once"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_effects_happen_as_often_as_they_should(children: Children, chunk: int, kind: str, figure: Figure) -> None:
    killed = programs = 0
    outcomes = Counter[str]()
    first = (SEED * 1_000_000 + chunk * 100_000) * 2 + (kind == "once")
    for seed in itertools.count(first, 2):
        # A small sample goes on until a kill has met a step that may run only once.
        met = kind == "keyed" or outcomes.total() > 0
        if killed * CHUNKS >= POINTS * (1 if met else 20):
            break
        more, found = a_life_and_deaths(children, seed)
        killed, programs, outcomes = killed + more, programs + 1, outcomes + found
    figure("kills", killed)
    figure("programs", programs)
    figure("outcomes", dict(outcomes))
    assert kind == "keyed" or outcomes.total() > 0
