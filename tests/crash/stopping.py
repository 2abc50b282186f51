"""What a child process does that is stopped by a signal: several runs at once, and a conversation beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio

from noetic_py import Context, Harness, Memory, RunResult, StateBag, call_model, parallel, sequence, step
from noetic_py.checkpoints import SqliteBackend
from noetic_py.errors import ShuttingDown
from noetic_py.models import ModelRequest
from noetic_py.runner import registry
from noetic_py.testing import ScriptedModel
from tests.crash.conversing import KEY, Book
from tests.crash.server import Say

STEPS = 12
RUNS = ("a", "b", "c")
_WORK = 0.004
"""Seconds of work of one step."""


def _working(name: str, book: Book, seconds: float) -> Any:
    @step(id=name)
    async def work(text: str, ctx: Context[Memory, StateBag]) -> str:
        place = f"{text} {'/'.join(ctx.path)}"
        book.write(f"begin {place}")
        await anyio.sleep(seconds)
        ctx.state[name] = text
        book.write(f"end {place}")
        return text

    return work


def job_of(book: Book, seconds: float = _WORK) -> Any:
    """Steps one after the other, and then some side by side."""
    steps = [_working(f"s{number}", book, seconds) for number in range(STEPS)]
    side: Any = parallel([_working(f"p{number}", book, seconds) for number in range(3)], id="side")
    return sequence(*steps, side, id="job")


def talk_of(book: Book, seconds: float = _WORK) -> Any:
    """Some work for a message, and its answer."""
    return sequence(_working("look", book, seconds), _working("think", book, seconds), call_model(), id="talk")


def _answer(request: ModelRequest) -> str:
    last: Any = request.items[-1]
    return f"re: {last.text}"


async def _serve(given: Mapping[str, Any], say: Say) -> None:
    book, begun = Book(given["book"]), anyio.Event()
    model = ScriptedModel(*[_answer] * 1000)
    async with (
        SqliteBackend(given["store"]) as backend,
        Harness(plugins=[], checkpoints=backend, model=model) as harness,
        harness.stopping_on_signals(grace=given["grace"]),
    ):
        seconds = given.get("seconds", _WORK)
        for name in RUNS:
            harness.start(job_of(book, seconds), name, run_id=name, on_error="result")
        session = harness.session(*KEY)
        say(["ready", 1])
        for text in given["texts"]:
            # A turn that was taken is answered; what cancels this waits until then.
            with anyio.CancelScope(shield=True):
                result = await session.run(talk_of(book, seconds), text)
                if result.status == "completed":
                    say(["answered", text])
            await anyio.lowlevel.checkpoint()
        await begun.wait()


def serve(given: Any, say: Say) -> Any:
    """Work until a signal comes."""
    registry.LAST_SECOND = given["last"]
    anyio.run(_serve, given, say, backend=given.get("loop", "asyncio"))


async def _go_on(given: Mapping[str, Any]) -> Any:
    book = Book(given["book"])
    model = ScriptedModel(*[_answer] * 1000)
    async with (
        SqliteBackend(given["store"]) as backend,
        Harness(plugins=[], checkpoints=backend, model=model) as harness,
    ):
        runs: dict[str, Any] = {}
        before: dict[str, Any] = {}
        for name in RUNS:
            entry = await backend.entry(name)
            if entry is None:
                result: RunResult[Any, Any] = await harness.run(job_of(book), name, run_id=name)
            else:
                info = await harness.runs.get(name)
                before[name] = [info.status, info.shutdown, info.alive]
                result = await harness.resume(name, job_of(book))
            runs[name] = [result.status, result.value, sorted(result.state)]
        session = harness.session(*KEY)
        for text in given["texts"]:
            await session.run(talk_of(book), text)
        return {"before": before, "runs": runs, "items": [getattr(item, "text", "") for item in await session.items()]}


def go_on(given: Any, say: Say) -> Any:
    """Go on with all that was begun, without waiting for anybody."""
    return anyio.run(_go_on, given, backend=given.get("loop", "asyncio"))


async def _block(given: Mapping[str, Any], say: Say) -> None:
    @step
    async def deaf(value: str) -> str:
        say(["ready", 1])
        if given["way"] == "loop":
            time.sleep(600)  # noqa: ASYNC251 # no other task gets to run
        with anyio.CancelScope(shield=True):
            await anyio.sleep(600)
        return value

    async with (
        SqliteBackend(given["store"]) as backend,
        Harness(plugins=[], checkpoints=backend) as harness,
        harness.stopping_on_signals(grace=given["grace"]),
    ):
        await harness.run(deaf, "x", run_id="deaf")


def block(given: Any, say: Say) -> Any:
    """Do not listen to anything."""
    registry.LAST_SECOND = given.get("last", registry.LAST_SECOND)
    anyio.run(_block, given, say, backend=given.get("loop", "asyncio"))
    raise ShuttingDown
