"""W8: turns of a stored session: 100 turns of a chat with a model that answers at once, each stored before the next one
begins, against one row of plain SQLite in a write-ahead log for each turn."""

from __future__ import annotations

import tempfile

from benchmarks.measure import MILLI, Figure, Measurement, Plan, compare, in_loop, take_turns, wall
from benchmarks.w1_steps import check
from benchmarks.w3_durable import rows
from noetic_py import Harness, call_model
from noetic_py.testing import ScriptedModel

TURNS = 100
TARGET = 4.0


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W8."""
    count = plan.size(TURNS)
    sides: dict[str, Measurement] = {
        "raw": rows(count, "wal"),
        "stored": turns(count, stored=True),
        "in memory": turns(count, stored=False),
    }
    found = take_turns(sides, max(1, plan.rounds // 3))
    name = f"{count} turns of a stored session, against a row of SQLite (wal)"
    beside = f"{count} turns of a stored session, against turns that are not stored"
    return [
        compare("W8", name, found["raw"], found["stored"], unit="ms a turn", factor=MILLI, target=TARGET),
        compare("W8", beside, found["in memory"], found["stored"], unit="ms a turn", factor=MILLI),
    ]


def turns(count: int, *, stored: bool) -> Measurement:
    """Seconds a turn of one session."""

    async def once() -> float:
        model, agent = ScriptedModel(*["done"] * (count + 1)), call_model()
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = f"sqlite:{folder}/chat.db" if stored else None
            async with Harness(plugins=[], checkpoints=checkpoints, model=model) as harness:
                session = harness.session("user", "chat")
                await session.run(agent, "The first turn makes the file.")
                began = wall()
                for turn in range(count):
                    await session.run(agent, f"message {turn}")
                seconds = wall() - began
                check(len(await session.items()), 2 * (count + 1))
        return seconds / count

    return in_loop(once)
