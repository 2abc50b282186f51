"""A wall clock that jumps by a day, between processes and within one: order, leases and results stay as they are."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.crash.children import Children, fork_server
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import CARRY, Life, random_kills, same
from tests.programs import need
from tests.properties.checks import SEED, examples

RUNS = examples(sample=2, full=50)
"""How many runs see other clocks."""

DAY = 86_400
JUMPS = ["+1d", "-1d", "+1h", "-1h", "+3599", "-1", "+0"]
LEASE = 0.05
"""Seconds for which leases are asked here, so that they are renewed often while the clock jumps."""


@pytest.fixture(scope="module")
def clock() -> Generator[Path]:
    """A file with what is added to the clock that the children of this module see."""
    with quick_folder() as folder:
        path = folder / "clock"
        path.write_text("+0")
        yield path


@pytest.fixture(scope="module")
def children(clock: Path) -> Generator[Children]:
    """A fork server whose children see that clock; what is measured is still measured by the true one."""
    shown = {
        "LD_PRELOAD": str(need("faketime")),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
        # The library's own way around an old glibc makes every wait with a timeout longer, and threads wait often.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
    with fork_server(**shown) as server:
        yield server


def set_clock(clock: Path, offset: str) -> None:
    """Show another time from now on."""
    clock.write_text(offset)


def a_run_under_other_clocks(children: Children, clock: Path, seed: int) -> None:
    """Kill processes, and show each of them another day; within each the clock jumps before every commit."""
    dice = random.Random(seed)
    with quick_folder() as whole_folder, quick_folder() as folder:
        set_clock(clock, "+0")
        whole = Life(children, whole_folder, {"seed": seed}).live([])
        jumps = dice.sample(JUMPS, len(JUMPS))
        life = Life(children, folder, {"seed": seed, "ttl": LEASE, "clock": str(clock), "jumps": jumps})
        for kill in random_kills(dice, whole, 4):
            set_clock(clock, dice.choice(JUMPS))
            if not life.process(kill).killed:
                break
        set_clock(clock, dice.choice(JUMPS))
        ended = life.live([])
        assert same(ended.result) == same(whole.result), life.explain(f"clock {jumps}: {ended.result}")


def test_the_clock_changes_nothing(children: Children, clock: Path, figure: Figure) -> None:
    for number in range(RUNS):
        a_run_under_other_clocks(children, clock, SEED * 1_000_000 + number)
    figure("runs", RUNS)


@pytest.mark.parametrize("offset", ["+1d", "-1d", "+1h", "-1h"])
def test_nobody_takes_a_run_because_of_the_clock(children: Children, clock: Path, offset: str) -> None:
    with quick_folder() as folder:
        os.mkfifo(folder / "gate")
        set_clock(clock, "+0")
        given = {"folder": str(folder), "seed": 4, "flow": "gate", "ttl": LEASE}
        owner = children.start(CARRY, **given, process=0)
        held = children.hear(owner, "held")
        assert abs(held - time.time()) < 60
        set_clock(clock, offset)
        refused = children.run(CARRY, **given, process=1)
        assert refused.result["errors"] == [["RunBusy", ""]], refused
        with (folder / "gate").open("wb"):
            pass
        result = children.ended(owner).result
        assert (result["status"], result["value"]) == ("completed", 7), result


def test_the_clock_is_really_another_one(children: Children, clock: Path) -> None:
    with quick_folder() as folder:
        os.mkfifo(folder / "gate")
        for process, offset in enumerate((-DAY, DAY)):
            set_clock(clock, f"{offset:+d}")
            child = children.start(CARRY, folder=str(folder), seed=4, flow="gate", process=process)
            shown = children.hear(child, "held")
            assert abs(shown - time.time() - offset) < 60
            children.kill(child)
