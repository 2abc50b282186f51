"""Two processes want one run: one gets it, the other does nothing; one that is stopped keeps it until it is dead."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.ledger import read_ledger
from tests.crash.lives import Life, same
from tests.properties.checks import SEED, examples

TOGETHER = examples(sample=20, full=200)
"""How often two processes begin at one moment."""

STOPPED = examples(sample=10, full=100)
"""How often an owner is stopped for longer than its lease."""

LEASE = 0.05
"""Seconds for which leases are asked here: much less than any other process lives."""


def open_gate(folder: Path) -> None:
    """Let the one that waits go on; waits until somebody does."""
    with (folder / "gate").open("wb"):
        pass


def started_in(folder: Path, process: int) -> int:
    """How many bodies a process has started."""
    return sum(line.process == process and line.what == "start" for line in read_ledger(folder / "ledger"))


def begin(life: Life, **more: object) -> int:
    """Start a process of a run and do not wait for it."""
    given = {**life.given, "folder": str(life.folder), "process": life.processes, **more}
    life.processes += 1
    return life.children.start("jobs:carry", **given)


def two_at_once(children: Children, seed: int) -> str:
    """Two processes begin a run, or go on with one, at the same moment; says which of these, and who won."""
    dice = random.Random(seed)
    resumed = dice.random() < 0.5
    with quick_folder() as folder:
        os.mkfifo(folder / "gate")
        life = Life(children, folder, {"seed": seed, "flow": "gate"})
        if resumed:
            # The first two appends are the run's head and its first step; so it was killed there, or before its head.
            life.process(("after", dice.randint(1, 2)))
        first = life.processes
        moment = time.monotonic() + 0.03
        pids = [begin(life, moment=moment) for _ in range(2)]
        # Whoever has the run waits at the gate, so the one that ends is the other.
        while True:
            event = children.event(pids)
            assert event is not None, life.explain("both hang: both have the run, or none")
            if event[1][0] == "result":
                break
        loser = event[0]
        refused = event[1][1]
        winner = next(pid for pid in pids if pid != loser)
        assert refused["status"] == "refused", life.explain(refused)
        assert refused["errors"] == [["RunBusy", ""]], life.explain(refused)
        assert refused["lines"] == started_in(folder, first + pids.index(loser)) == 0, life.explain("the loser acted")
        children.ended(loser)
        open_gate(folder)
        result = children.ended(winner).result
        assert result["status"] == "completed", life.explain(result)
        starts = Counter(line.key for line in read_ledger(folder / "ledger") if line.what == "start")
        assert max(starts.values()) == 1 or resumed, life.explain(starts)
        assert result["value"] == seed % 97 + 3, life.explain(result)
        return f"{'resumed' if resumed else 'new'}, {'first' if winner == pids[0] else 'second'} won"


def test_two_that_begin_at_one_moment(children: Children, figure: Figure) -> None:
    seen = Counter(two_at_once(children, SEED * 1_000_000 + trial) for trial in range(TOGETHER))
    figure("trials", dict(seen))
    assert seen.total() == TOGETHER
    assert len(seen) == 4, seen


def is_refused(ended: Ended, life: Life) -> bool:
    """Whether a process did nothing, because somebody else has the run or was stopped while writing the file."""
    result = ended.result
    if result["status"] != "refused":
        return False
    assert [name for name, _ in result["errors"]] == ["RunBusy"] or result["reasons"] == ["busy"], life.explain(result)
    assert result["lines"] == 0, life.explain(result)
    return True


def stopped_at_a_gate(children: Children, seed: int, *, killed: bool) -> str:
    """An owner is stopped in the middle of a step: nobody gets its run before it is dead, and then somebody at once."""
    with quick_folder() as folder:
        os.mkfifo(folder / "gate")
        life = Life(children, folder, {"seed": seed, "flow": "gate", "ttl": LEASE})
        owner = begin(life)
        children.hear(owner, "held")
        os.kill(owner, signal.SIGSTOP)
        begun = time.monotonic()
        while time.monotonic() < begun + 2 * LEASE:
            assert is_refused(life.process(), life), life.explain("a stopped owner's run was taken")
        heir = owner
        if killed:
            children.kill(owner)
            begun = time.monotonic()
            heir = begin(life)
            children.hear(heir, "held")
            assert time.monotonic() - begun < 1.0, life.explain("the run was not free at once")
        else:
            os.kill(owner, signal.SIGCONT)
        open_gate(folder)
        result = children.ended(heir).result
        assert (result["status"], result["value"]) == ("completed", seed % 97 + 3), life.explain(result)
        return f"in a step, {'killed' if killed else 'continued'}"


def stopped_anywhere(children: Children, seed: int, *, killed: bool) -> str:
    """An owner is stopped at any moment: whoever gets the run does all of it, or nobody but the owner does."""
    dice = random.Random(seed)
    with quick_folder() as whole_folder, quick_folder() as folder:
        unharmed = begin(Life(children, whole_folder, {"seed": seed}))
        children.hear(unharmed, "found")
        begun = time.monotonic()
        whole = children.ended(unharmed)
        seconds = time.monotonic() - begun
        life = Life(children, folder, {"seed": seed, "ttl": LEASE, "settings": {"busy_timeout": 2 * LEASE}})
        owner = begin(life)
        children.hear(owner, "found")
        moment = time.monotonic() + dice.uniform(0.0, seconds)
        while (event := children.event([owner], moment - time.monotonic())) is not None:
            if event[1][0] == "result":
                # Too late, it was faster.
                break
        os.kill(owner, signal.SIGSTOP)
        other = life.process()
        if is_refused(other, life):
            if killed:
                children.kill(owner)
                last = life.process()
            else:
                os.kill(owner, signal.SIGCONT)
                last = children.ended(owner)
            assert same(last.result) == same(whole.result), life.explain(last.result)
            outcome = "kept its run"
        else:
            assert same(other.result) == same(whole.result), life.explain(other.result)
            os.kill(owner, signal.SIGCONT)
            late = children.ended(owner)
            assert is_refused(late, life) or same(late.result) == same(whole.result), life.explain(late.result)
            outcome = "was too late or too early"
        starts = Counter(line.key for line in read_ledger(folder / "ledger") if line.what == "start")
        assert killed or max(starts.values()) == 1, life.explain(f"done twice: {starts}")
        return f"anywhere, {'killed' if killed else 'continued'}, {outcome}"


def test_an_owner_that_is_stopped(children: Children, figure: Figure) -> None:
    seen: Counter[str] = Counter()
    for trial in range(STOPPED):
        stop = stopped_at_a_gate if trial % 2 else stopped_anywhere
        seen[stop(children, SEED * 1_000_000 + trial, killed=trial % 4 < 2)] += 1
    figure("trials", dict(seen))
    assert seen.total() == STOPPED
    assert sum(count for what, count in seen.items() if "kept" in what) > 0
