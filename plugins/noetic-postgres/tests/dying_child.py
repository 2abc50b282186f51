"""What child processes do: carry a run of a harness on, and say where they are, so that a test can kill them there."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import anyio
import anyio.to_thread
from noetic_postgres import PostgresBackend, plugin

from noetic_py import Context, Harness, Message, StateBag, Step, loop, spawn, step, until
from noetic_py.errors import NoeticError, RunNotFound

RUN = "run"
ROUNDS = 3

Program = Step[int, Any, Any, StateBag]


class Ledger:
    """A file that the bodies of steps write down what they do, and whoever listens beside.

    Args:
        path: The file.
        say: Says that something is about to happen, or has.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path = path
        self.say = say

    def done(self, what: str) -> None:
        """A body does its work: this line is its effect."""
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, what.encode() + b"\n")
        os.close(handle)
        self.say(what)


def program(ledger: Ledger) -> Program:
    """A flow of thirteen steps: a sequence, a loop, a spawn, a body that calls steps; with items and state."""

    async def work(name: str, number: int, ctx: Context[Any, StateBag]) -> int:
        ledger.say("begin")
        ctx.state["steps"] = ctx.state.get("steps", 0) + 1
        ctx.items.append(Message.assistant(f"{name} of {number}"))
        ledger.done(f"{name}:{number}")
        return number * 3 + len(name)

    @step
    async def first(number: int, ctx: Context[Any, StateBag]) -> int:
        return await work("first", number, ctx)

    @step
    async def again(number: int, ctx: Context[Any, StateBag]) -> int:
        return await work("again", number, ctx)

    @step
    async def inner(number: int, ctx: Context[Any, StateBag]) -> int:
        return await work("inner", number, ctx)

    @step
    async def outer(number: int, ctx: Context[Any, StateBag]) -> int:
        one = await inner(number, ctx)
        other = await inner(one % 1000, ctx)
        return one + other

    @step
    async def apart(number: int, ctx: Context[Any, StateBag]) -> int:
        return await work("apart", number % 100, ctx)

    @step
    async def last(number: int, ctx: Context[Any, StateBag]) -> int:
        return await work("last", number % 100, ctx)

    return first >> loop(again, until=until.max_rounds(ROUNDS)) >> outer >> spawn(apart) >> last


async def _carry(url: str, path: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Go on with the run, or begin it; gives what came out."""
    flow = program(Ledger(path, say))
    async with Harness(checkpoints=url, plugins=[plugin]) as harness:
        try:
            result = await harness.resume(RUN, flow)
        except RunNotFound:
            result = await harness.run(flow, 1, state=StateBag(), run_id=RUN)
        return {
            "value": result.value,
            "status": result.status,
            "items": [item.text for item in result.items if isinstance(item, Message)],
            "steps": result.state["steps"],
        }


def _told(pipe: Connection, work: Callable[[], Awaitable[Any]], backend: str) -> None:
    """Do work in an event loop, and say what it gave, or which error."""

    async def main() -> None:
        try:
            pipe.send(["end", await work()])
        except NoeticError as error:
            pipe.send(["error", type(error).__name__])

    anyio.run(main, backend=backend)


def carry(pipe: Connection, url: str, path: str, backend: str = "asyncio") -> None:
    """Carry the run on, saying each step."""
    _told(pipe, lambda: _carry(url, path, lambda what: pipe.send(["step", what])), backend)


def carry_slowly(pipe: Connection, url: str, path: str, backend: str = "asyncio") -> None:
    """Carry the run on; before each step it waits until it is told to go on."""

    def say(what: str) -> None:
        pipe.send(["step", what])
        if what == "begin":
            pipe.recv()

    _told(pipe, lambda: _carry(url, path, say), backend)


def hold(pipe: Connection, url: str, seconds: float) -> None:
    """Become the owner of a run and keep it until killed."""

    async def work() -> None:
        backend = PostgresBackend(url)
        lease = await backend.acquire(RUN, ttl=seconds)
        pipe.send(["held", lease.fence])
        await anyio.sleep_forever()

    _told(pipe, work, "asyncio")


def use_after_fork(pipe: Connection, url: str) -> None:
    """Use a backend in a process that was forked from the one it was made in."""

    async def use(backend: PostgresBackend) -> None:
        try:
            await backend.head(RUN)
        except NoeticError as error:
            pipe.send(["child", getattr(error, "reason", type(error).__name__)])
        await backend.close()

    async def work() -> str:
        async with PostgresBackend(url) as backend:
            lease = await backend.acquire(RUN, ttl=600.0)
            pid = os.fork()
            if not pid:
                # In a thread of its own: this one is in an event loop that belongs to the parent.
                import threading

                thread = threading.Thread(target=anyio.run, args=(use, backend))
                thread.start()
                thread.join()
                os._exit(0)
            os.waitpid(pid, 0)
            await backend.append(RUN, expected_position=0, fence=lease.fence, records=[])
            return "parent"

    _told(pipe, work, "asyncio")
