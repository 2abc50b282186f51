"""A run on a disk whose power is lost: what its process does, and what has to be true of what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from typing_extensions import TypedDict

from noetic_py import Harness, Message, ModelRequest, call_model, loop, parallel, sequence, step, until
from noetic_py.checkpoints import Lease, SqliteBackend, Transaction
from noetic_py.context.step import AnyStep
from noetic_py.testing import ScriptedModel
from noetic_py.testing._random_programs.building import AnyContext
from tests.crash.jobs import wait_for_tracer
from tests.crash.server import Say

RUN = "run"
ACKNOWLEDGED = "acknowledged"
"""The file into which the process writes a line for each append that it was told is stored."""
LARGE = 40_000


@step
async def first(x: int, ctx: AnyContext) -> int:
    ctx.items.append(Message.assistant(f"first {x}"))
    ctx.state["list"] = [x]
    return x + 1


@step
async def work(x: int, ctx: AnyContext) -> int:
    ctx.state["n"] = x
    return x + 1


@step
async def large(x: int, ctx: AnyContext) -> str:
    return chr(97 + x % 26) * LARGE


@step
async def count(text: str, ctx: AnyContext) -> int:
    return len(text) + ord(text[0])


def merge(results: Sequence[int], ctx: AnyContext) -> int:
    return sum(results)


rounds = loop(work, until=until.max_rounds(4), id="rounds")
both = parallel([work, sequence(large, count, id="row")], merge=merge, id="both")
parts: Any = (first, rounds, both, large, count, rounds)
flow: AnyStep = sequence(*parts, id="flow")


class Acknowledging(SqliteBackend):
    """Writes down outside of the store each append that was acknowledged, with the position."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._handle = os.open(path.parent / ACKNOWLEDGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def append(self, run_id: str, **given: Any) -> int:
        position = await super().append(run_id, **given)
        os.write(self._handle, b"%d\n" % position)
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        done = await super().commit(transactions)
        for lease in done:
            os.write(self._handle, b"%d\n" % (lease.position or 0))
        return done


class Given(TypedDict):
    """What the process is told.

    Attributes:
        folder: Where the file is.
        traced: There is a tracer to wait for.
        exclusive: Of the backend.
    """

    folder: str
    traced: bool
    exclusive: bool


async def carried(backend: SqliteBackend) -> Any:
    """Begin the run, or go on with it."""
    async with Harness(checkpoints=backend, plugins=()) as harness:
        head = await backend.head(RUN)
        if head is None or not head.position:
            return (await harness.run(flow, 1, run_id=RUN)).value
        return (await harness.resume(RUN, flow)).value


async def _work(given: Given) -> Any:
    async with Acknowledging(Path(given["folder"]) / "runs.db", exclusive=given["exclusive"]) as backend:
        value = await carried(backend)
        records = [[record.kind, list(record.path), record.payload.hex()] for record in await backend.read(RUN)]
    return {"value": value, "records": records}


def carry(given: Given, say: Say) -> Any:
    """The whole process; returns the value, and every record as it was stored."""
    wait_for_tracer()
    return anyio.run(_work, given)


TURNS = 6
"""How many messages are said in the conversation."""


def answered(request: ModelRequest) -> str:
    """What the model says to the last message."""
    return "re " + next(item.text for item in reversed(request.items) if isinstance(item, Message))


async def talked(backend: SqliteBackend, after: Callable[[int], object] = lambda turn: None) -> Sequence[str]:
    """Say all messages, some perhaps once more; returns what the conversation holds.

    Args:
        backend: Where it is kept.
        after: Called with the number of turns that have come back.
    """
    model = ScriptedModel(*[answered] * TURNS)
    async with Harness(checkpoints=backend, plugins=(), model=model) as harness:
        session = harness.session("ada", "chat")
        for turn in range(TURNS):
            result = await session.run(call_model(), f"message {turn}", delivery_id=f"d{turn}")
            assert result.value == f"re message {turn}"
            after(turn + 1)
        return [item.text for item in await session.items() if isinstance(item, Message)]


async def _talk(given: Given) -> Sequence[str]:
    folder = Path(given["folder"])
    handle = os.open(folder / ACKNOWLEDGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with SqliteBackend(folder / "runs.db", exclusive=given["exclusive"]) as backend:
        return await talked(backend, lambda turn: os.write(handle, b"%d\n" % turn))


def converse(given: Given, say: Say) -> Any:
    """The whole process; returns what the conversation holds."""
    wait_for_tracer()
    return anyio.run(_talk, given)
