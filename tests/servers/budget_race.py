"""Processes that race for one shared budget, and are killed; run as a program it is one of them."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream
from attrs import define, field

from noetic_py.checkpoints import BudgetChange, CheckpointBackend, SqliteBackend, Transaction
from noetic_py.errors import BudgetExceeded
from tests.properties.checks import SEED, examples

ROOT = Path(__file__).resolve().parent.parent.parent
NAME, PERIOD = "team", "2026-11"
HELD, USED = 10, 3
MOST = 100 * HELD
"""So many tokens are left besides: dead processes hold some until the end, and only steps are to refuse a race."""


def opened(place: str) -> CheckpointBackend:
    """The store that processes race in."""
    if place.startswith("postgres"):
        from noetic_postgres import PostgresBackend

        return PostgresBackend(place, connections=1)
    if place.startswith(("redis", "unix")):
        from noetic_redis import RedisBackend

        return RedisBackend(place, connections=1)
    return SqliteBackend(place)


async def _race(place: str, number: str, races: int, limit: int, dies: bool) -> None:
    """Take one step and hold tokens, say so, and settle, so many times; what is to be killed waits for it."""
    limits = {"steps": limit, "tokens": limit * USED + MOST}
    async with opened(place) as backend:
        run_id = f"p{number}"
        lease = await backend.acquire(run_id, ttl=60.0)

        async def change(spent: dict[str, int], held: dict[str, int], **limits: int) -> None:
            given = BudgetChange(NAME, PERIOD, spent, held, limits)
            await backend.commit([Transaction(run_id, 0, lease.fence, (), budgets=[given])])

        for _ in range(races):
            try:
                await change({"steps": 1}, {"tokens": HELD}, **limits)
            except BudgetExceeded:
                os.write(1, b"refused\n")
                continue
            os.write(1, b"taken\n")
            await change({"tokens": USED}, {})
            os.write(1, b"settled\n")
        if dies:
            await anyio.sleep_forever()


@define
class Outcome:
    """What processes have said, and how often they were killed."""

    said: Counter[str] = field(factory=Counter[str])
    kills: int = 0


async def race(place: str, lapse: Callable[[], None] = lambda: None) -> None:
    """Race in a store, with kills, and check every sum; the runs of those that were killed are taken over at the end.

    Args:
        place: The store, empty.
        lapse: Lets the lease of every process that is gone end, where that takes time.
    """
    processes, races = (8, 10_000) if examples(0, 1) else (2, 120)
    limit = races * 3 // 4
    each = races // processes
    drawn = random.Random(SEED)
    outcome = Outcome()

    async def racer(number: int) -> None:
        left, lives = each, 0
        while left > 0:
            dies = lives < 2
            last = drawn.randint(1, max(2, each // 2))
            lives += 1
            command = [sys.executable, "-m", __name__, place, f"{number}-{lives}", str(left), str(limit), "x" * dies]
            async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
                assert process.stdout is not None
                said, rest = Counter[str](), ""
                async for text in TextReceiveStream(process.stdout):
                    *lines, rest = (rest + text).split("\n")
                    said.update(lines)
                    if dies and (said["taken"] >= last or said["taken"] + said["refused"] >= left):
                        process.send_signal(signal.SIGKILL)
                if await process.wait() == -signal.SIGKILL:
                    outcome.kills += 1
                else:
                    assert process.returncode == 0
            outcome.said += said
            left -= said["taken"] + said["refused"]

    async with anyio.create_task_group() as group:
        for number in range(processes):
            group.start_soon(racer, number)
    lapse()
    async with opened(place) as backend:
        (row,) = await backend.budgets(name=NAME)
        left = dict(row.held)
        assert outcome.kills >= processes
        assert len(left) <= outcome.kills
        for run_id, amounts in left.items():
            lease = await backend.acquire(run_id, ttl=60.0)
            given = BudgetChange(NAME, PERIOD, amounts, {})
            await backend.commit([Transaction(run_id, 0, lease.fence, (), release=True, budgets=[given])])
        (row,) = await backend.budgets(name=NAME)
    steps, tokens = row.used["steps"], row.used["tokens"]
    assert row.held == {}
    # A kill comes between a commit and the word of it once at most.
    assert outcome.said["taken"] <= steps <= min(limit, outcome.said["taken"] + outcome.kills)
    # Each step was settled, or is one that a dead process held.
    assert tokens == USED * (steps - len(left)) + HELD * len(left)
    if outcome.said["refused"]:
        assert steps == limit


if __name__ == "__main__":
    anyio.run(_race, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), bool(sys.argv[5]))
