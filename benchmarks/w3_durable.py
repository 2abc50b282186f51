"""W3: durable steps: 1,000 steps that change 1 KB of state and append one item, each committed before it counts as
finished, against one row of plain SQLite a step in the same journal mode; and how many bytes a step writes. And what a
step costs that adds to a list, a text or a dict of the state when that is large."""

from __future__ import annotations

import sqlite3
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time

import anyio
from attrs import define, field

from benchmarks.measure import EVEN, MICRO, Figure, Measurement, Plan, Spread, compare, in_loop, take_turns, wall
from benchmarks.w1_steps import check
from noetic_py import Context, Harness, Memory, Message, RunResult, loop, step, until
from noetic_py.checkpoints import SqliteBackend

STEPS = 1_000
LENGTHS = (100, 4_000)
AT_ONCE = 1_000
GROWTH = (200, 2_000)
GROWING = ("list", "text", "dict")
GROWN_BYTES = 96
STATE_BYTES = 1_000
ITEM_BYTES = 200
TARGET = 2.0
CPU_TARGET = 1.5


@define
class State:
    """What every step changes."""

    text: str = ""
    count: int = 0


@step
async def work(value: int, ctx: Context[Memory, State]) -> int:
    """Change the state, say something."""
    ctx.state.count += 1
    ctx.state.text = f"{value:08d}" * (STATE_BYTES // 8)
    ctx.items.append(Message.user(f"{value:08d}" * (ITEM_BYTES // 8)))
    return value + 1


@define
class Grown:
    """What grows by a text in every step."""

    kind: str = "list"
    rows: list[str] = field(factory=list[str])
    text: str = ""
    table: dict[str, str] = field(factory=dict[str, str])


MARKS: list[float] = []
"""The CPU time at which each step of the last run has begun."""


@step
async def grow(value: int, ctx: Context[Memory, Grown]) -> int:
    """Add a text to one field of the state."""
    MARKS.append(process_time())
    more = f"{value:08d}" * (GROWN_BYTES // 8)
    if ctx.state.kind == "list":
        ctx.state.rows.append(more)
    elif ctx.state.kind == "text":
        ctx.state.text += more
    else:
        ctx.state.table[f"{value}"] = more
    return value + 1


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W3."""
    count = plan.size(STEPS)
    mode = anyio.run(_journal_mode)
    rounds = max(1, plan.rounds // 3)
    alone = plan.size(AT_ONCE)
    sides: dict[str, Measurement] = {
        "raw": rows(count, mode),
        "ours": durable(count),
        "raw, wal": rows(count, "wal"),
        "ours, wal": durable(count, exclusive=True),
        "one after the other": runs_of(alone, at_once=1),
        "at once": runs_of(alone, at_once=alone),
    }
    found = take_turns(sides, rounds)
    # SQLite grows by pages, so fewer steps than the short run's would tell nothing.
    short, long = (bytes_of(max(LENGTHS[0], plan.size(length))) for length in LENGTHS)
    name = f"{count:,} steps, each committed, against a row of SQLite in the same journal mode ({mode})"
    alone_name = (
        f"{count:,} steps in a file of one process (exclusive=True), against a row in the same journal mode (wal)"
    )
    many = f"{alone:,} runs of {PER_RUN} steps at once"
    together = f"{many}, against one after the other (group commit)"
    return [
        compare("W3", name, found["raw"], found["ours"], unit="µs a step", factor=MICRO, target=TARGET),
        compare("W3", alone_name, found["raw, wal"], found["ours, wal"], unit="µs a step", factor=MICRO, target=TARGET),
        compare("W3", together, found["one after the other"], found["at once"], unit="µs a step", factor=MICRO),
        compare(
            "W3", f"{many}, against a row (wal)", found["raw, wal"], found["at once"], unit="µs a step", factor=MICRO
        ),
        _bytes(f"bytes a step of {LENGTHS[1]:,}, against a step of {LENGTHS[0]}", short, long, EVEN),
        _bytes("bytes a step, against the bytes that it changed", float(PAYLOAD), long, TARGET),
        *(figure for kind in GROWING for figure in growing(kind, plan, rounds)),
    ]


def growing(kind: str, plan: Plan, rounds: int) -> list[Figure]:
    """What a step costs that adds to a list, a text or a dict of the state, when that is large."""
    few, many = (max(20, plan.size(length)) for length in GROWTH)
    small, found = _grown(kind, few)[0], [_grown(kind, many) for _ in range(rounds)]
    name = f"of {GROWTH[1]:,} that each add {GROWN_BYTES} bytes to a {kind}"
    first, last = [Spread.of([each[part] for each in found]) for part in (1, 2)]
    ratio = Spread.of([each[2] / each[1] for each in found])
    return [
        _bytes(f"bytes a step {name}, against a step of {GROWTH[0]}", small, found[0][0], EVEN),
        Figure(
            "W3", f"CPU of the last tenth {name}, against the first", "µs a step",
            last, first, ratio, CPU_TARGET, rounds=rounds,
        ),
    ]  # fmt: skip


def _grown(kind: str, count: int) -> tuple[float, float, float]:
    """Bytes of the file for each step, and the CPU of a step in the first and in the last tenth of the run."""

    async def once() -> tuple[float, float, float]:
        MARKS.clear()
        flow = loop(grow, until=until.max_rounds(count), max_iterations=count)
        with tempfile.TemporaryDirectory() as folder:
            async with Harness(plugins=[], checkpoints=f"sqlite:{folder}/runs.db") as harness:
                result = await harness.run(flow, 0, state=Grown(kind))
                size = (await harness.runs.stats()).bytes
        check(result.steps, count)
        steps = [(after - before) * MICRO for before, after in pairwise([*MARKS, process_time()])]
        tenth = count // 10
        return size / count, median(steps[:tenth]), median(steps[-tenth:])

    return anyio.run(once)


def _bytes(name: str, baseline: float, ours: float, target: float) -> Figure:
    values = [Spread.of([each]) for each in (ours, baseline, ours / baseline)]
    return Figure("W3", name, "bytes", values[0], values[1], values[2], target, rounds=1)


PAYLOAD = STATE_BYTES + ITEM_BYTES
"""What a step changes: the text of the state and the text of the item, without names and marks."""
PER_RUN = 10


async def _journal_mode() -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteBackend(Path(folder) / "mode.db") as backend:
            return (await backend.describe())["journal"]


def rows(count: int, mode: str) -> Measurement:
    """Seconds a row of one connection that commits each."""

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            connection = sqlite3.connect(Path(folder) / "raw.db", isolation_level=None)
            connection.execute(f"PRAGMA journal_mode = {mode}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, payload BLOB)")
            payload = b"x" * PAYLOAD
            began = wall()
            for _ in range(count):
                connection.execute("INSERT INTO rows (payload) VALUES (?)", (payload,))
            seconds = wall() - began
            connection.close()
            return seconds / count

    return once


def durable(count: int, *, exclusive: bool = False) -> Measurement:
    """Seconds a step of one durable run."""

    async def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            backend = SqliteBackend(Path(folder) / "runs.db", exclusive=exclusive)
            async with backend, Harness(plugins=[], checkpoints=backend) as harness:
                began = wall()
                result = await _run(harness, count)
                seconds = wall() - began
            check(result.steps, count)
            return seconds / count

    return in_loop(once)


def runs_of(runs: int, *, at_once: int) -> Measurement:
    """Seconds a step of many durable runs in one harness, so many of them at once."""

    async def once() -> float:
        limiter = anyio.CapacityLimiter(at_once)
        with tempfile.TemporaryDirectory() as folder:
            async with Harness(plugins=[], checkpoints=f"sqlite:{folder}/runs.db") as harness:
                done: list[RunResult[int, State]] = []

                async def one() -> None:
                    async with limiter:
                        done.append(await _run(harness, PER_RUN))

                began = wall()
                async with anyio.create_task_group() as group:
                    for _ in range(runs):
                        group.start_soon(one)
                seconds = wall() - began
            check(sum(result.steps for result in done), runs * PER_RUN)
            return seconds / (runs * PER_RUN)

    return in_loop(once)


async def _run(harness: Harness[Memory], count: int) -> RunResult[int, State]:
    flow = loop(work, until=until.max_rounds(count), max_iterations=count)
    return await harness.run(flow, 0, state=State())


def bytes_of(count: int) -> float:
    """Bytes of the database for each step of one run, the empty database not counted."""

    async def size(steps: int, folder: str) -> int:
        path = Path(folder) / f"{steps}.db"
        async with Harness(plugins=[], checkpoints=f"sqlite:{path}") as harness:
            await _run(harness, steps)
            return (await harness.runs.stats()).bytes

    async def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            return (await size(count, folder) - await size(1, folder)) / (count - 1)

    return anyio.run(once)
