"""Users and threads side by side: whatever is written in whatever order, nobody meets anybody else's memory."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, MemoryLayer, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.memory import Scope, function
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

OPERATIONS = examples(sample=60, full=10_000)

USERS = ("ada", "ada/one")
THREADS = ("one", "ada", "ada/one")


class Shelf(MemoryLayer[dict[str, str]]):
    """A state, and values beside it."""

    @function
    async def put(self, key: str, value: str) -> None:
        """Keep a value in both."""
        self.state = {**self.state, key: value}
        await self.storage.put(key, value)

    @function
    async def drop(self, key: str) -> None:
        """Take it out of both."""
        self.state = {name: value for name, value in self.state.items() if name != key}
        await self.storage.remove(key)

    async def kept(self) -> dict[str, str]:
        """What stands beside the state."""
        return dict(await self.storage.scan(str))


class Shelves(Memory):
    """One for each scope."""

    thread: Shelf = Shelf(scope=Scope.THREAD)
    user: Shelf = Shelf(scope=Scope.USER)
    everybody: Shelf = Shelf(scope=Scope.GLOBAL, id="global")
    once: Shelf = Shelf(scope=Scope.EXECUTION)


@step
async def operate(work: tuple[str, str, str], ctx: Context[Shelves]) -> list[Any]:
    """Do one thing to each shelf, and say what is on them."""
    what, key, value = work
    found: list[Any] = []
    for shelf in (ctx.memory.thread, ctx.memory.user, ctx.memory.everybody, ctx.memory.once):
        if what == "put":
            await shelf.put(key, value)
        elif what == "drop":
            await shelf.drop(key)
        found.append((dict(shelf.state), await shelf.kept()))
    return found


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_nobody_meets_anybody_elses_memory(kind: str, tmp_path: Any) -> None:
    backend: CheckpointBackend = InMemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / "runs.db")
    count = OPERATIONS if kind == "memory" else OPERATIONS // 8
    dice = random.Random(SEED)
    expected: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    async with backend, Harness(memory=Shelves(), checkpoints=backend) as harness:
        for number in range(count):
            user, thread = dice.choice(USERS), dice.choice(THREADS)
            key = dice.choice(("a", "b", "global", "thread"))
            work = (dice.choice(("put", "put", "drop", "look")), key, f"{user}|{thread}|{number}")
            places = [("thread", thread), ("user", user), ("global",), ("once", str(number))]
            for place in places:
                if work[0] == "put":
                    expected[place][key] = work[2]
                elif work[0] == "drop":
                    expected[place].pop(key, None)
            found = (await harness.run(operate, work, user_id=user, thread_id=thread)).value
            assert found == [(expected[place], expected[place]) for place in places], f"NOETIC_SEED={SEED}, {number}"
