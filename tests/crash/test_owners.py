"""Two processes want one run: one gets it, the other does nothing; one that is stopped keeps it until it is dead."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from functools import partial

from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import Life, new_life, same, two_at_once
from tests.properties.checks import FULL, SEED, examples

TOGETHER = examples(sample=4, full=200)
"""How often two processes begin at one moment."""

STOPPED = examples(sample=3, full=100)
"""How often an owner is stopped for longer than its lease."""

LEASE = 0.05
"""Seconds for which leases are asked here: much less than any other process lives."""


def test_two_that_begin_at_one_moment(children: Children, figure: Figure) -> None:
    seen = Counter(two_at_once(partial(new_life, children), SEED * 1_000_000 + trial) for trial in range(TOGETHER))
    figure("trials", dict(seen))
    assert seen.total() == TOGETHER
    # Who wins is chance: only many trials are sure to have seen each.
    assert len(seen) == 4 or TOGETHER < 100, seen


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
        life = Life(children, folder, {"seed": seed, "flow": "gate", "ttl": LEASE})
        life.make_gate()
        owner = life.begin()
        children.hear(owner, "held")
        os.kill(owner, signal.SIGSTOP)
        begun = time.monotonic()
        while time.monotonic() < begun + 2 * LEASE:
            assert is_refused(life.process(), life), life.explain("a stopped owner's run was taken")
        heir = owner
        if killed:
            children.kill(owner)
            begun = time.monotonic()
            heir = life.begin()
            children.hear(heir, "held")
            # The sample may run on a busy machine.
            assert time.monotonic() - begun < (1.0 if FULL else 5.0), life.explain("the run was not free at once")
        else:
            os.kill(owner, signal.SIGCONT)
        life.open_gate()
        result = children.ended(heir).result
        assert (result["status"], result["value"]) == ("completed", seed % 97 + 3), life.explain(result)
        return f"in a step, {'killed' if killed else 'continued'}"


def stopped_anywhere(children: Children, seed: int, *, killed: bool) -> str:
    """An owner is stopped at any moment: whoever gets the run does all of it, or nobody but the owner does."""
    dice = random.Random(seed)
    with quick_folder() as whole_folder, quick_folder() as folder:
        unharmed = Life(children, whole_folder, {"seed": seed}).begin()
        children.hear(unharmed, "found")
        begun = time.monotonic()
        whole = children.ended(unharmed)
        seconds = time.monotonic() - begun
        life = Life(children, folder, {"seed": seed, "ttl": LEASE, "settings": {"busy_timeout": 2 * LEASE}})
        owner = life.begin()
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
        starts = life.starts()
        assert killed or max(starts.values()) == 1, life.explain(f"done twice: {starts}")
        return f"anywhere, {'killed' if killed else 'continued'}, {outcome}"


def test_an_owner_that_is_stopped(children: Children, figure: Figure) -> None:
    seen: Counter[str] = Counter()
    for trial in range(STOPPED):
        stop = stopped_at_a_gate if trial % 2 else stopped_anywhere
        seen[stop(children, SEED * 1_000_000 + trial, killed=trial % 4 < 2)] += 1
    figure("trials", dict(seen))
    assert seen.total() == STOPPED
    assert STOPPED < 100 or any("kept" in what for what in seen), seen
