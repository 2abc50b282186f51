"""What starts itself again without an end ends at the cap, whatever dies meanwhile, and does not fill the memory."""

from __future__ import annotations

import random

import pytest

from noetic_py.engine.state import MAX_CHILDREN, MAX_ITERATIONS
from tests.crash.bombs import ROUNDS
from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.properties.checks import FULL, SEED, examples

KILLS = examples(sample=2, full=200)
"""How many processes are killed in a loop without an end."""
LOOPS = ("asyncio", "trio")
_MIB = 200


def test_a_loop_without_an_end_ends_at_the_cap_whatever_dies(children: Children, figure: Figure) -> None:
    dice = random.Random(SEED)
    killed = trials = 0
    while killed < KILLS:
        most = dice.randrange(20, 60)
        loop, trials = LOOPS[trials % 2], trials + 1
        with quick_folder() as folder:
            given = {"store": str(folder / "runs.db"), "book": str(folder / "book"), "most": most, "loop": loop}
            deaths = 0
            while True:
                death = {"at": 2 + dice.randrange(30), "when": dice.choice(("before", "after"))}
                ended = children.run("tests.crash.bombs:go_round", **given, **(death if deaths < 4 else {}))
                if not ended.killed:
                    break
                deaths += 1
            killed += deaths
            why = f"seed {SEED}, trial {trials}, {deaths} deaths, cap {most}"
            assert ended.result == ["iterations of a run", most], why
            whole, rest = divmod(most, ROUNDS + 1)
            bodies = whole * ROUNDS + max(0, rest - 1)
            lines = (folder / "book").read_text().count("end body")
            # A body that was in flight at a kill runs again, and nothing else does.
            assert bodies <= lines <= bodies + deaths, why
            again = children.run("tests.crash.bombs:go_round", **given)
            assert again.result == ["iterations of a run", most], why
            assert (folder / "book").read_text().count("end body") == lines, why
    figure("kills", killed)
    figure("runs", trials)


@pytest.mark.parametrize("loop", LOOPS)
def test_runs_that_start_runs_end_at_the_cap(children: Children, loop: str, figure: Figure) -> None:
    with quick_folder() as folder:
        told = children.run("tests.crash.bombs:explode", store=str(folder / "runs.db"), bomb="spawns", loop=loop).result
    assert (told["started"], told["refused"]) == (MAX_CHILDREN, ["live children"])
    assert told["MiB"] < _MIB
    figure("MiB", told["MiB"])


@pytest.mark.skipif(not FULL, reason="of the full set: it takes a minute")
def test_as_many_iterations_as_there_may_be_fit(children: Children, figure: Figure) -> None:
    with quick_folder() as folder:
        pid = children.start("tests.crash.bombs:explode", store=str(folder / "runs.db"), bomb="loops")
        told = children.ended(pid, kill_after=300).result
    assert told["refused"] == ["iterations of a run", MAX_ITERATIONS]
    assert told["MiB"] < _MIB
    figure("MiB", told["MiB"])
