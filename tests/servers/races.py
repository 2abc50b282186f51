"""Processes that race for one shared budget or to begin the runs of a schedule, and are killed.

Run as a program it is one of them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream
from attrs import define, field

from noetic_py import Context, Harness, step
from noetic_py.checkpoints import BudgetChange, CheckpointBackend, SqliteBackend, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.errors import BudgetExceeded, NoeticError
from noetic_py.journal.stored import Lease
from noetic_py.schedules import Schedule, _State
from tests.properties.checks import SEED, examples

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "team"
PERIODS = [f"2026-11-28T12:{minute:02}" for minute in range(4)]
FULL = examples(0, 1)
PROCESSES = 8 if FULL else 2
KILLS = 2
"""How often each is killed and begun again."""
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


async def _spend(place: str, number: str, races: int, limit: int) -> None:
    """Take one step and hold tokens, say so, and settle, so many times, in one period after the other."""
    limits = {"steps": limit, "tokens": limit * USED + MOST}
    async with opened(place) as backend:
        run_id = f"p{number}"
        lease = await backend.acquire(run_id, ttl=60.0)

        async def change(period: str, spent: dict[str, int], held: dict[str, int], **limits: int) -> None:
            given = BudgetChange(NAME, period, spent, held, limits)
            await backend.commit([Transaction(run_id, 0, lease.fence, (), budgets=[given])])

        for race in range(races):
            period = PERIODS[race * len(PERIODS) // races]
            try:
                await change(period, {"steps": 1}, {"tokens": HELD}, **limits)
            except BudgetExceeded:
                _say("refused")
                continue
            _say("taken")
            await change(period, {"tokens": USED}, {})
            _say("settled")


class _Saying(DelegatingBackend):
    """Says of each commit whether it was taken."""

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        try:
            done = await self.inner.commit(transactions)
        except NoeticError:
            _say("refused")
            raise
        _say("taken")
        return done


@step
async def report(city: str, ctx: Context) -> str:
    return city


async def _fire(place: str, until: datetime) -> None:
    """Begin the runs of a schedule that a test left behind, up to a time."""
    async with (
        opened(place) as backend,
        Harness(
            plugins=[], checkpoints=_Saying(backend), flows={"report": report}, schedules={NAME: EVERY_SECOND}
        ) as harness,
    ):
        scheduler = harness._scheduler()
        while (await _State.read(backend, NAME)).after[EVERY_SECOND.definition] < until:
            await scheduler.fire()


EVERY_SECOND = Schedule(timedelta(seconds=1), report, "Brest", catch_up="all")


def _say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


@define
class Outcome:
    """What processes have said, and how often they were killed."""

    said: Counter[str] = field(factory=Counter[str])
    kills: int = 0


async def _run(outcome: Outcome, kill_at: int | None, *given: str) -> Counter[str]:
    """Run one process; it is killed when it has said so often that something was taken, or when it is done."""
    command = [sys.executable, "-m", __name__, *given, "waits" if kill_at is not None else ""]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        said, rest = Counter[str](), ""
        async for text in TextReceiveStream(process.stdout):
            *lines, rest = (rest + text).split("\n")
            said.update(lines)
            if kill_at is not None and (said["taken"] >= kill_at or said["done"]):
                process.send_signal(signal.SIGKILL)
        if await process.wait() == -signal.SIGKILL:
            outcome.kills += 1
        else:
            assert process.returncode == 0
    outcome.said += said
    return said


async def race(place: str, lapse: Callable[[], None] = lambda: None) -> None:
    """Race in a store, with kills, and check every sum; the runs of those that were killed are taken over at the end.

    Args:
        place: The store, empty.
        lapse: Lets the lease of every process that is gone end, where that takes time.
    """
    processes, races = PROCESSES, 10_000 if FULL else 120
    limit = races * 3 // 4 // len(PERIODS)
    each = races // processes
    drawn = random.Random(SEED)
    outcome = Outcome()

    async def racer(number: int) -> None:
        left, lives = each, 0
        while left > 0:
            kill_at = drawn.randint(1, max(2, each // 2)) if lives < KILLS else None
            lives += 1
            said = await _run(outcome, kill_at, "spend", place, f"{number}-{lives}", str(left), str(limit))
            left -= said["taken"] + said["refused"]

    async with anyio.create_task_group() as group:
        for number in range(processes):
            group.start_soon(racer, number)
    lapse()
    async with opened(place) as backend:
        left = [(row.period, run_id, held) for row in await backend.budgets() for run_id, held in row.held.items()]
        assert outcome.kills >= processes
        assert len(left) <= outcome.kills
        for period, run_id, amounts in left:
            lease = await backend.acquire(run_id, ttl=60.0)
            given = BudgetChange(NAME, period, amounts, {})
            await backend.commit([Transaction(run_id, 0, lease.fence, (), release=True, budgets=[given])])
        rows = await backend.budgets()
    assert {row.period for row in rows} <= set(PERIODS)
    assert all(row.held == {} and row.used["steps"] <= limit for row in rows)
    steps, tokens = (sum(row.used[name] for row in rows) for name in ("steps", "tokens"))
    # A kill comes between a commit and the word of it once at most.
    assert outcome.said["taken"] <= steps <= outcome.said["taken"] + outcome.kills
    # Each step was settled, or is one that a dead process held.
    assert tokens == USED * (steps - len(left)) + HELD * len(left)
    if outcome.said["refused"]:
        assert any(row.used["steps"] == limit for row in rows)


async def race_for_times(place: str) -> None:
    """Let processes begin the runs of one schedule for times that have passed, with kills: each time has one run.

    Args:
        place: The store, empty.
    """
    times = 10_000 if FULL else 150
    drawn = random.Random(SEED)
    outcome = Outcome()
    async with opened(place) as backend:
        now = datetime.fromtimestamp(int(await backend.clock()), UTC)
        begin = now - timedelta(seconds=times)
        written = await _State.read(backend, NAME)
        assert await written.write(backend, {EVERY_SECOND.definition: begin}, paused=False, last_run=None)

    async def racer(number: int) -> None:
        for life in range(KILLS + 1):
            kill_at = drawn.randint(1, max(2, times // PROCESSES // KILLS)) if life < KILLS else None
            await _run(outcome, kill_at, "fire", place, now.isoformat())

    async with anyio.create_task_group() as group:
        for number in range(PROCESSES):
            group.start_soon(racer, number)
    async with opened(place) as backend, Harness(plugins=[], checkpoints=backend) as harness:
        runs = {each.run_id: each.position for each in await harness.runs.list(limit=None)}
    assert outcome.kills == PROCESSES * KILLS
    expected = [f"{NAME}@{begin + timedelta(seconds=n):%Y-%m-%dT%H:%M:%SZ}" for n in range(1, times + 1)]
    # Times that came meanwhile may have runs too.
    assert set(expected) <= runs.keys()
    assert set(runs.values()) == {1}
    assert len(runs) <= outcome.said["taken"] + outcome.kills


async def _main(*arguments: str) -> None:
    what, *given = arguments
    if what == "spend":
        place, number, races, limit, waits = given
        await _spend(place, number, int(races), int(limit))
    else:
        place, until, waits = given
        await _fire(place, datetime.fromisoformat(until))
    _say("done")
    if waits:
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
