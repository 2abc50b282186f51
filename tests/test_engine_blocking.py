"""A body that holds the event loop is named in the log; time in which a body waits is not counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import from_thread
from anyio.lowlevel import checkpoint, current_token
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from noetic_py import (
    Ask,
    Context,
    FunctionCall,
    Harness,
    Retry,
    call_model,
    each,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.engine import frame
from noetic_py.testing import ScriptedModel

CLOCK = [100.0]


def block() -> None:
    """What a blocking call does: the clock goes on, and nothing else does."""
    CLOCK[0] += 2.5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "monotonic", lambda: CLOCK[0])
    monkeypatch.setattr(frame, "LIMIT", 1.0)


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """What was said of bodies that held the loop: the step or tool, and the path."""

    def heard() -> list[tuple[str, str]]:
        told = [record for record in caplog.records if "held the event loop for 2.5 s" in record.getMessage()]
        assert all(record.levelno == logging.WARNING for record in told)
        return [(" ".join(record.getMessage().split()[:2]).rstrip(","), vars(record)["path"]) for record in told]

    return heard


@step
async def quick(x: int) -> int:
    return x


@step
async def at_once(x: int) -> int:
    block()
    return x


@step
async def after_an_await(x: int) -> int:
    await checkpoint()
    block()
    return x


@step
async def before_an_await(x: int) -> int:
    block()
    await checkpoint()
    return x


@step(retry=Retry(2, initial=0))
async def fails_first(x: int, ctx: Context) -> int:
    frame: Any = ctx
    if frame.attempt == 1:
        raise LookupError
    block()
    return x


@step
async def fails(x: int) -> int:
    block()
    raise LookupError


@step
async def before_a_call(x: int, ctx: Context) -> int:
    block()
    return await quick(x, ctx)


@step
async def after_a_call(x: int, ctx: Context) -> int:
    await quick(x, ctx)
    block()
    return x


@step
async def calls(x: int, ctx: Context) -> int:
    return await at_once(await quick(x, ctx), ctx)


@step
async def gathers(x: int, ctx: Context) -> tuple[int, int, int]:
    return await ctx.gather(quick.bind(x), after_an_await.bind(x), quick.bind(x))


@tool
async def look() -> str:
    """Look."""
    block()
    return "ok"


@tool
def looks_in_a_thread() -> str:
    """Look."""
    # The thread may begin before the body that started it waits, so the clock goes on in a turn of the loop in which no
    # body runs. Without the token trio would take the body's turn.
    event_loop = from_thread.run_sync(current_token)
    from_thread.run_sync(block, token=event_loop)
    return "ok"


AGENT = loop(call_model(tools=[look, looks_in_a_thread]), until=until.no_tool_calls())


def slow_condition(snapshot: Any) -> bool:
    block()
    return True


@step
async def late(x: int, ctx: Context) -> int:
    if x == 300:
        block()
    return x + 1


FLOWS: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    "at-once": (at_once, 0, [("step 'at_once'", "at_once")]),
    "after-an-await": (after_an_await, 0, [("step 'after_an_await'", "after_an_await")]),
    "before-an-await": (before_an_await, 0, [("step 'before_an_await'", "before_an_await")]),
    "second-attempt": (fails_first, 0, [("step 'fails_first'", "fails_first")]),
    "raises": (fails, 0, [("step 'fails'", "fails")]),
    "before-a-call": (before_a_call, 0, [("step 'before_a_call'", "before_a_call")]),
    "after-a-call": (after_a_call, 0, [("step 'after_a_call'", "after_a_call")]),
    "called": (calls, 0, [("step 'at_once'", "calls/at_once")]),
    "in-a-sequence": (quick >> at_once >> quick, 0, [("step 'at_once'", "sequence/at_once")]),
    "beside": (parallel(quick, at_once, after_an_await), 0, [
        ("step 'at_once'", "parallel/at_once[1]"), ("step 'after_an_await'", "parallel/after_an_await[2]")]),
    "gathered": (gathers, 0, [("step 'after_an_await'", "gathers/gather/after_an_await[1]")]),
    "spawned": (spawn(at_once), 0, [("step 'at_once'", "spawn:at_once/at_once")]),
    "every-round": (loop(at_once, until=until.max_rounds(3)), 0, [("step 'at_once'", "loop/at_once[0]")]),
    "tool": (AGENT, "look", [("tool 'look'", "loop/call_model[0]/look[0]")]),
    "tool-in-a-thread": (AGENT, "looks_in_a_thread", []),
    "condition": (loop(quick, until=until.custom(slow_condition)), 0, [("step 'loop'", "loop")]),
    "late": (loop(late, until=until.max_rounds(400)), 0, [("step 'loop'", "loop")]),
    "quick": (loop(quick, until=until.max_rounds(400)), 0, []),
}  # fmt: skip


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", FLOWS)
async def test_a_body_that_holds_the_loop_is_named(
    name: str, durable: bool, heard: Callable[[], list[tuple[str, str]]]
) -> None:
    flow, value, expected = FLOWS[name]
    if durable and name == "late":
        # A step that has more than its body around it is timed always.
        expected = [("step 'late'", "loop/late[300]")]
    model = ScriptedModel(FunctionCall(name=str(value), arguments={}), "done")
    async with Harness(plugins=[], model=model, checkpoints="memory:" if durable else None) as harness:
        await harness.run(flow, value, on_error="result")
    assert sorted(heard()) == sorted(expected)


async def test_time_in_which_a_body_waits_is_not_counted(heard: Callable[[], list[tuple[str, str]]]) -> None:
    """Not while it waits for what is outside of the run, nor while another run of the harness holds the loop."""
    begun, goes_on = anyio.Event(), anyio.Event()

    @step
    async def waits(x: int) -> int:
        begun.set()
        await goes_on.wait()
        return x

    @step
    async def holds(x: int) -> int:
        block()
        return x

    async with Harness(plugins=[]) as harness:
        handle = harness.start(parallel(waits, waits.with_options(id="second")) >> each(waits), 0, on_error="result")
        await begun.wait()
        block()
        await harness.run(holds, 0)
        goes_on.set()
        await handle.result()
    assert heard() == [("step 'holds'", "holds")]


async def test_a_call_that_waits_for_an_approval_does_not_count_the_time_of_another(
    heard: Callable[[], list[tuple[str, str]]],
) -> None:
    begun, goes_on = anyio.Event(), anyio.Event()

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        begun.set()
        await goes_on.wait()
        return f"paid {to}"

    calls = [FunctionCall(name="pay", arguments={"to": to}) for to in ("a", "b")]
    agent = loop(call_model(tools=[pay]), until=until.no_tool_calls())
    async with Harness(plugins=[], model=ScriptedModel(calls, "done"), checkpoints="memory:") as harness:
        result = await harness.run(agent, "pay", run_id="r")
        assert len(result.pending) == 2
        async with anyio.create_task_group() as group:

            async def resume() -> None:
                await harness.resume("r", agent, answers=[result.pending[0].approve()])

            group.start_soon(resume)
            await begun.wait()
            block()
            goes_on.set()
    assert heard() == []


async def test_the_librarys_work_for_a_question_is_not_counted(heard: Callable[[], list[tuple[str, str]]]) -> None:
    class Size(int):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
            # As where the first question loads a library.
            block()
            return handler(int)

    @step
    async def asks(x: int, ctx: Context) -> int:
        return await ctx.ask(Ask("How many?", Size))

    async with Harness(plugins=[], checkpoints="memory:") as harness:
        result = await harness.run(asks, 1, run_id="r")
        again = await harness.resume("r", asks, answers=[result.pending[0].answer(3)])
        assert again.value == 3
    assert heard() == []


async def test_the_warning_says_where_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    @step
    async def holds(x: int) -> int:
        block()
        return x

    await Harness(plugins=[]).run(holds, 0)
    (record,) = (each for each in caplog.records if each.levelno == logging.WARNING)
    text = record.getMessage()
    assert f"holds ({__file__}:" in text
    assert "await anyio.to_thread.run_sync" in text
    assert record.name == "noetic_py.steps"
