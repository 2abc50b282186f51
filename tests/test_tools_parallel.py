"""How many calls of tools of one answer run at once."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import sniffio
import trio
from anyio.lowlevel import checkpoint

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    RunResult,
    call_model,
    errors,
    loop,
    parallel,
    step,
    tool,
    until,
)
from noetic_py.engine.fingerprint import fingerprint
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Seen:
    """How many were at work, at the most and in all; the calls and the tasks."""

    def __init__(self) -> None:
        self.now = self.most = self.all = self.tasks = 0

    async def work(self, number: int) -> None:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        self.tasks = max(self.tasks, await tasks())
        # The later ones are done first.
        for _ in range(3 + number % 3):
            await checkpoint()
        self.now -= 1


async def tasks() -> int:
    """How many tasks there are."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(anyio.get_running_tasks())


name: ContextVar[str] = ContextVar("name", default="nobody's")


def calls(count: int) -> list[FunctionCall]:
    return [FunctionCall(name="work", arguments={"number": number}) for number in range(count)]


async def run(count: int, seen: Seen, *, harness: dict[str, Any], around: dict[str, Any]) -> RunResult[Any]:
    @tool
    async def work(number: int) -> str:
        """Work."""
        await seen.work(number)
        return f"done {number}"

    model = ScriptedModel(calls(count), "done")
    async with Harness(model=model, **harness) as made:
        return await made.run(loop(call_model(tools=[work], **around), until=until.no_tool_calls()), "go")


@pytest.mark.parametrize(
    ("harness", "around", "most"),
    [
        ({}, {}, 16),
        ({"max_parallel_tools": 3}, {}, 3),
        ({}, {"max_parallel_tools": 2}, 2),
        ({"max_parallel_tools": 3}, {"max_parallel_tools": 40}, 40),
        ({"max_parallel_tools": 1}, {}, 1),
        ({"checkpoints": InMemoryBackend()}, {"max_parallel_tools": 5}, 5),
    ],
    ids=["default", "harness", "round", "round above harness", "one", "kept"],
)
async def test_no_more_run_at_once_and_outputs_keep_their_order(harness: Any, around: Any, most: int) -> None:
    seen = Seen()
    result = await run(100, seen, harness=harness, around=around)
    assert (seen.most, seen.all, seen.now) == (most, 100, 0)
    outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
    assert outputs == [f"done {number}" for number in range(100)]


async def test_as_many_calls_as_there_are_start_few_tasks() -> None:
    seen = Seen()
    await run(800, seen, harness={}, around={})
    assert (seen.most, seen.all) == (16, 800)
    assert seen.tasks <= 16 + 5


async def test_each_call_has_its_own_context_variables() -> None:
    found: list[str] = []

    @tool
    async def look(number: int) -> str:
        """Look."""
        found.append(name.get())
        name.set(f"call {number}")
        return "seen"

    sent = [FunctionCall(name="look", arguments={"number": number}) for number in range(20)]
    flow = loop(call_model(tools=[look], max_parallel_tools=2), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(sent, "done")) as harness:
        await harness.run(flow, "go")
    assert found == ["nobody's"] * 20

    found.clear()

    @step
    async def look_too(text: str, ctx: Context) -> str:
        found.append(name.get())
        name.set("a path's")
        return text

    async with Harness() as harness:
        await harness.run(parallel(look_too, look_too, look_too, look_too, concurrency=2), "x")
    assert found == ["nobody's"] * 4


async def test_a_budget_is_exact() -> None:
    seen = Seen()
    result = await run(100, seen, harness={"budget": Budget(tool_calls=37)}, around={})
    assert result.status == "budget_exceeded"
    assert seen.all == 37


async def test_a_run_that_is_cancelled_starts_no_more() -> None:
    started: list[int] = []

    @tool
    async def hang(number: int) -> str:
        """Hang."""
        started.append(number)
        if len(started) == 16:
            scope.cancel()
        await anyio.sleep_forever()
        return ""

    sent = [FunctionCall(name="hang", arguments={"number": number}) for number in range(100)]
    flow = loop(call_model(tools=[hang]), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(sent)) as harness:
        with anyio.CancelScope() as scope:
            await harness.run(flow, "go")
    assert sorted(started) == list(range(16))


async def test_calls_that_wait_for_people_leave_their_place() -> None:
    done: list[int] = []

    @tool(needs_approval=lambda call, ctx: "1" not in call.arguments)
    async def act(number: int) -> str:
        """Act."""
        done.append(number)
        return "done"

    sent = [FunctionCall(name="act", arguments={"number": number}) for number in (2, 3, 4, 1, 5, 11)]
    flow = loop(call_model(tools=[act], max_parallel_tools=1), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(sent, "done"), checkpoints=InMemoryBackend()) as harness:
        waiting = await harness.run(flow, "go", run_id="r")
        assert [each.arguments["number"] for each in waiting.pending] == [2, 3, 4, 5]
        assert done == [1, 11]
        result = await harness.resume("r", flow, answers=[each.approve() for each in waiting.pending])
    assert result.value == "done"
    assert done == [1, 11, 2, 3, 4, 5]


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "16", []])
def test_a_number_that_is_none_is_refused(most: Any) -> None:
    for make in (lambda: Harness(max_parallel_tools=most), lambda: call_model(max_parallel_tools=most)):
        with pytest.raises(errors.ConfigError, match="is not a valid number of calls; expected 1 or more") as caught:
            make()
        assert caught.value.code == "max-parallel-tools"


def test_a_harness_leaves_it_to_nobody() -> None:
    none: Any = None
    with pytest.raises(errors.ConfigError, match="max_parallel_tools=None"):
        Harness(max_parallel_tools=none)


def test_a_run_goes_on_with_another_number() -> None:
    assert fingerprint(call_model(max_parallel_tools=3)) == fingerprint(call_model())
