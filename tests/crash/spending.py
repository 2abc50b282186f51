"""A budget over all the processes that spend it, two of them at one moment among them."""

from __future__ import annotations

import random
import time
from collections import Counter
from decimal import Decimal
from typing import Any

from tests.crash.children import Ended
from tests.crash.talks import LOOPS, Figure, NewTalk, Talk
from tests.properties.checks import SEED

MOST_DEATHS = 8


class Spending:
    """Tests of budgets over processes; a class below it says where the runs are kept.

    Attributes:
        new: Makes a place for a run.
        kills: How many processes are killed.
    """

    new: NewTalk
    kills: int

    def test_no_budget_is_passed_whoever_dies_in_a_call(self, record_property: Figure) -> None:
        seen: Counter[str] = Counter()
        seed = SEED * 1_000_000
        while seen["kills"] < self.kills:
            with self.new() as talk:
                seen += spent(talk, seed)
            seed += 1
        record_property("seen", dict(seen))
        assert seen["dollars that nobody knows of"] or self.kills < 100


def spent(talk: Talk, seed: int) -> Counter[str]:
    """A run that spends money is carried by processes that die, and then by two at once."""
    dice = random.Random(seed)
    limit = dice.randrange(2, 26)
    given = {**talk.given, "seed": seed, "limit": limit, "loop": LOOPS[seed % 2]}
    seen: Counter[str] = Counter(runs=1)
    killed = 0
    ended = None
    while killed < MOST_DEATHS and (ended is None or ended.killed):
        at = dice.randrange(1, 10)
        death = {"line": at} if dice.random() < 0.7 else {"at": at, "when": dice.choice(("before", "after"))}
        ended = talk.children.run(f"{talk.jobs}:pay", **given, luck=dice.random(), **death)
        killed += ended.killed
        if ended.killed:
            talk.between()
        assert paid(talk) <= limit, f"seed {seed}: {paid(talk)} of {limit}"
    # Two at one moment: one goes on, or one after the other, and a run that has failed tries again then.
    moment = time.monotonic() + 0.05
    pair = [talk.children.start(f"{talk.jobs}:pay", **given, luck=dice.random(), moment=moment) for _ in range(2)]
    outcomes = [talk.children.ended(pid) for pid in pair]
    ends = [end for end in map(result_of, outcomes) if end is not None]
    assert ends, f"seed {seed}: {outcomes}"
    last = max(ends, key=lambda end: Decimal(end["cost"]))
    cost, maybe = Decimal(last["cost"]), Decimal(last["maybe"])
    # By the till's own book, which the run has never read.
    why = f"seed {seed}: {paid(talk)} paid, {cost} of {limit} booked, {maybe} of it possibly, {killed} killed"
    assert cost - maybe <= paid(talk) <= cost <= limit, why
    assert last["calls"] <= 2 * limit, why
    seen["kills"] += killed
    seen["dollars"] += paid(talk)
    seen["dollars that nobody knows of"] += int(maybe)
    seen[f"of two at once, {len(ends)} had an end"] += 1
    return seen


def result_of(ended: Ended) -> dict[str, Any] | None:
    """What a process says of the run; `None` when it was told that another one has it."""
    result: dict[str, Any] = ended.result
    if "refused" in result:
        assert result["refused"] == "RunBusy", result
        return None
    return result


def paid(talk: Talk) -> int:
    """How many dollars the till has taken."""
    return talk.book().count("paid")
