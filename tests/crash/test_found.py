"""What the random kills have found, each as small as it became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import (
    Channel,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Message,
    ModelRequest,
    Retry,
    Step,
    call_model,
    loop,
    parallel,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.errors import CorruptRecord
from noetic_py.testing import ScriptedModel
from noetic_py.testing._random_programs.building import AnyContext
from noetic_py.testing.faults import FaultyBackend
from noetic_py.testing.ledger import attempt_of

pytestmark = pytest.mark.anyio


def look_first(request: ModelRequest) -> Item:
    if isinstance(request.items[-1], FunctionCallOutput):
        return Message.assistant("done")
    return FunctionCall(name="look", arguments={})


async def test_an_agent_is_not_judged_by_the_answer_of_one_beside_it(tmp_path: Path) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(*[look_first] * 99)
    agents = [loop(call_model(model, tools=(look,)), until=until.no_tool_calls(), id=f"agent{n}") for n in range(4)]
    flow: Step[str, list[Any]] = parallel(agents)
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        result = await Harness(checkpoints=backend, plugins=()).run(flow, "look around")
    assert result.value == ["done"] * 4
    assert result.model_calls == 8


QUEUE = Channel("queue", int)


@step
async def mail(x: int, ctx: AnyContext) -> int:
    await ctx.send(QUEUE, x)
    await ctx.send(QUEUE, x + 1)
    return await ctx.recv(QUEUE, timeout=0.5)


@step
async def flaky(x: int, ctx: AnyContext) -> list[int]:
    if sum(attempt for _, attempt in attempt_of(ctx)) == len(attempt_of(ctx)):
        raise ValueError("at first")
    return [x, await ctx.recv(QUEUE, timeout=0.5)]


async def test_a_message_goes_back_that_was_taken_before_the_process_died() -> None:
    flow = sequence(mail, flaky, id="flow").with_options(retry=Retry(2, initial=0))
    at = 1
    while True:
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        with backend.outlived():
            await Harness(checkpoints=backend, plugins=()).run(flow, 7, run_id="r")
        if not backend.dead:
            break
        backend.revive()
        with anyio.fail_after(5):
            result = await Harness(checkpoints=backend, plugins=()).resume("r", flow)
        assert result.value == [7, 8], f"killed after append {at}"
        at += 1
    assert at > 10


async def test_a_damaged_name_in_the_schema_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), b"x")])
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE TABL\xe1 runs"))
    damaged = SqliteBackend(path)
    with pytest.raises(CorruptRecord):
        await damaged.head("r")
    await damaged.close()
