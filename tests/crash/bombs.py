"""What a child process does that never ends by itself: loops in spawns in loops, and runs that start runs."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any

import anyio

from noetic_py import Context, Harness, Memory, StateBag, loop, spawn, step, until
from noetic_py.checkpoints import SqliteBackend
from noetic_py.engine import state as limits
from noetic_py.errors import LimitExceeded
from tests.crash.conversing import Book
from tests.crash.jobs import Death, DyingBackend
from tests.crash.server import Say

ROUNDS = 7


def endless(book: Book | None) -> Any:
    """A loop without an end, of which each iteration has a spawn with a loop of its own."""

    @step
    async def body(value: int) -> int:
        if book is not None:
            book.write("end body")
        return value + 1

    inner = loop(body, until=until.max_rounds(ROUNDS), id="inner")
    return loop(spawn(inner), until=until.never(), max_iterations=10**9, id="outer")


async def _loop(given: Any) -> Any:
    limits.MAX_ITERATIONS = given.get("most", limits.MAX_ITERATIONS)
    flow = endless(Book(given["book"]))
    async with (
        DyingBackend(given["store"], Death(given)) as backend,
        Harness(plugins=[], checkpoints=backend) as harness,
    ):
        try:
            if await backend.entry("r") is None:
                await harness.run(flow, 0, run_id="r")
            else:
                await harness.resume("r", flow)
        except LimitExceeded as error:
            return [error.what, error.limit]


def go_round(given: Any, say: Say) -> Any:
    """Go round until something ends it; returns what did."""
    return anyio.run(_loop, given, backend=given.get("loop", "asyncio"))


async def _memory(given: Mapping[str, Any]) -> Any:
    told: dict[str, Any] = {}
    full = anyio.Event()

    @step
    async def bomb(depth: int, ctx: Context[Memory, StateBag]) -> int:
        told["deepest"] = max(told.get("deepest", 0), depth)
        while True:
            # Each starts as many as it may, and all of them do.
            try:
                ctx.spawn_detached(bomb, depth + 1, owner="harness")
            except LimitExceeded as error:
                told.setdefault("refused", set()).add(error.what)
                full.set()
                await anyio.sleep_forever()
            told["started"] = told.get("started", 0) + 1
            if depth % 2:
                await anyio.lowlevel.checkpoint()

    async with SqliteBackend(given["store"]) as backend, Harness(plugins=[], checkpoints=backend) as harness:
        if given["bomb"] == "spawns":
            harness.start(bomb, 0)
            await full.wait()
            await anyio.wait_all_tasks_blocked()
            await harness.shutdown(timeout=0.1)
            told["refused"] = sorted(told["refused"])
        else:
            try:
                await harness.run(endless(None), 0)
            except LimitExceeded as error:
                told["refused"] = [error.what, error.limit]
    # KiB, on Linux.
    return {**told, "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def explode(given: Any, say: Say) -> Any:
    """Start as much as one may; returns what came of it, and how much memory that took at the most."""
    return anyio.run(_memory, given, backend=given.get("loop", "asyncio"))
