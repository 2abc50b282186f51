"""Limits of time hold for what a cancellation does not reach: bodies that block, threads, code that catches it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    ModelRequest,
    ModelResponse,
    Retry,
    Step,
    call_model,
    call_tool,
    each,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context import hooks
from noetic_py.errors import BudgetExceeded, ModelStreamError, ModelUnavailable, StepTimeout, ToolFailed
from noetic_py.models import ModelEvent, ModelStream, TimedModel
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]
LIMIT = 0.02
BLOCK = 0.015


def block(seconds: float) -> None:
    """Keep the thread to itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Blocking:
    """A step that never lets the event loop run, and how often it was begun."""

    def __init__(self, seconds: float = BLOCK, **options: Any) -> None:
        self.begun = 0
        self.step: AnyStep = step(id="block", **options)(self._body(seconds))

    def _body(self, seconds: float) -> Any:
        async def body(x: Any) -> Any:
            self.begun += 1
            block(seconds)
            return x

        return body


@step
async def stubborn(x: str) -> str:
    """Catches its cancellation, and goes on as if there had been none."""
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        pass
    return "as if nothing had happened"


def store(durable: bool) -> InMemoryBackend | None:
    return InMemoryBackend() if durable else None


OPTIONS: list[dict[str, Any]] = [{"budget": Budget(seconds=LIMIT)}, {"deadline": LIMIT}]
SHAPES: dict[str, Callable[[AnyStep], AnyStep]] = {
    "loop": lambda block: loop(block, until=until.max_rounds(8)),
    "sequence": lambda block: sequence(*[block] * 8),
    "each": lambda block: sequence(step(id="many")(many), each(block, concurrency=1)),
    "body": lambda block: step(id="calls")(calls(block)),
    "spawn": lambda block: spawn(loop(block, until=until.max_rounds(8))),
    "detached": lambda block: step(id="starts")(starts(loop(block, until=until.max_rounds(8)))),
}


async def many(x: str) -> list[str]:
    return [x] * 8


def calls(block: AnyStep) -> Any:
    async def body(x: str, ctx: Context) -> str:
        for _ in range(8):
            await block(x, ctx)
        return x

    return body


def starts(block: AnyStep) -> Any:
    async def body(x: str, ctx: Context) -> str:
        ctx.spawn_detached(block, x)
        return x

    return body


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_no_body_begins_after_the_time_of_its_run(shape: str, durable: bool) -> None:
    for options in OPTIONS:
        begun, tries = 0, 20
        # A busy machine may need all of the time before the first body.
        while not begun and tries:
            block, tries = Blocking(), tries - 1
            async with Harness(checkpoints=store(durable)) as harness:
                result = await harness.run(SHAPES[shape](block.step), "x", on_error="result", **options)
            assert result.status == "budget_exceeded", options
            assert isinstance(result.error, BudgetExceeded)
            assert result.error.dimension == "seconds"
            begun = block.begun
        assert 1 <= begun < 8, options


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - {"detached"}))
async def test_nor_after_the_time_of_a_step(shape: str) -> None:
    block = Blocking()
    async with Harness() as harness:
        flow = sequence(SHAPES[shape](block.step), id="inner")
        spent = await harness.run(flow.with_options(budget=Budget(seconds=LIMIT)), "x", on_error="result")
        assert spent.status == "budget_exceeded"
        timed = await harness.run(flow.with_options(timeout=LIMIT), "x", on_error="result")
        assert isinstance(timed.error, StepTimeout)
        child = await harness.run(spawn(flow, timeout=LIMIT), "x", on_error="result")
        assert isinstance(child.error, StepTimeout)
        assert 3 <= block.begun < 24


async def test_nor_in_a_session_or_a_harness_out_of_time() -> None:
    flow: AnyStep = loop(Blocking().step, until=until.max_rounds(8))
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        turn = await harness.session("ada", "s").run(flow, "x", on_error="result", deadline=LIMIT)
        assert turn.status == "budget_exceeded"
    async with Harness(budget=Budget(seconds=LIMIT)) as harness:
        assert (await harness.run(flow, "x", on_error="result")).status == "budget_exceeded"


def judged_late(kind: str, begun: list[str]) -> AnyStep:
    """A step whose work something judges, or puts together, for longer than there is time."""

    def late(*_: object) -> Any:
        block(LIMIT)

    async def hook(ctx: HookContext[Any, Any], *_: object) -> None:
        block(LIMIT)

    def answer(_: object) -> Any:
        begun.append("model")
        return "late"

    @tool
    async def work() -> str:
        """Work."""
        begun.append("tool")
        return "late"

    async def body(x: object) -> object:
        begun.append("body")
        return x

    if kind == "before_step":
        return step(hooks=[hooks.before_step(hook)])(body)
    if kind == "arguments":
        return call_tool(work, args=lambda _: late() or {})
    if kind in ("instructions", "before_model"):
        of_model: Any = hooks.before_model(hook)
        more: dict[str, Any] = {"instructions": late} if kind == "instructions" else {"hooks": [of_model]}
        return call_model(ScriptedModel(answer), **more)
    of_tool: Any = hooks.before_tool(hook)
    options: dict[str, Any] = {"needs_approval": late} if kind == "approval" else {"hooks": [of_tool]}
    taken = work.with_options(**options)
    return loop(call_model(ScriptedModel(FunctionCall(name="work", arguments={})), tools=[taken]), until=until.never())


@pytest.mark.parametrize(
    "kind", ["before_step", "arguments", "instructions", "before_model", "approval", "before_tool"]
)
async def test_nothing_begins_after_the_time_that_what_comes_before_it_has_used_up(kind: str) -> None:
    begun: list[str] = []
    async with Harness() as harness:
        result = await harness.run(judged_late(kind, begun), "x", budget=Budget(seconds=LIMIT), on_error="result")
    assert (result.status, begun) == ("budget_exceeded", [])


async def test_no_attempt_begins_after_the_time() -> None:
    begun = 0

    @step(retry=Retry(8, initial=0.0))
    async def fails(x: str) -> str:
        nonlocal begun
        begun += 1
        block(BLOCK)
        raise ValueError(x)

    async with Harness() as harness:
        assert (await harness.run(fails, "x", on_error="result", deadline=LIMIT)).status == "budget_exceeded"
    assert 1 <= begun < 8


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("late", [Blocking(LIMIT * 2).step, stubborn], ids=["blocks", "catches"])
async def test_a_late_value_is_no_success(late: AnyStep, durable: bool) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        run = harness.run
        timed = await run(late.with_options(timeout=LIMIT), "x", on_error="result", run_id="timed")
        assert isinstance(timed.error, StepTimeout)
        spent = await run(late.with_options(budget=Budget(seconds=LIMIT)), "x", on_error="result")
        assert (spent.status, spent.has_value) == ("budget_exceeded", False)
        assert (await run(late, "x", on_error="result", deadline=LIMIT)).status == "budget_exceeded"
        assert (await run(late, "x", on_error="result", budget=Budget(seconds=LIMIT))).status == "budget_exceeded"
        assert isinstance((await run(spawn(late, timeout=LIMIT), "x", on_error="result")).error, StepTimeout)


async def test_a_late_value_is_tried_again_and_wrapped_up() -> None:
    tried = 0

    @step(timeout=LIMIT, retry=Retry(2, initial=0.0))
    async def slow_once(x: str) -> str:
        nonlocal tried
        tried += 1
        if tried == 1:
            block(LIMIT * 2)
        return f"{x}, try {tried}"

    @step
    async def wrap_up(x: object) -> str:
        return "wrapped up"

    budget = Budget(seconds=60 + LIMIT, wrap_up=wrap_up, reserve=Budget(seconds=60))
    async with Harness() as harness:
        assert (await harness.run(slow_once, "x")).value == "x, try 2"
        late = Blocking(LIMIT * 2).step
        ended = await harness.run(late, "x", budget=budget, on_error="result")
        assert (ended.status, ended.value) == ("budget_exceeded", "wrapped up")
        assert (await harness.run(late.with_options(budget=budget), "x")).value == "wrapped up"


async def test_a_wrap_up_that_is_late_gives_nothing() -> None:
    budget = Budget(seconds=LIMIT * 2, wrap_up=Blocking(LIMIT * 2).step, reserve=Budget(seconds=LIMIT))
    async with Harness() as harness:
        result = await harness.run(Blocking(LIMIT * 2).step, "x", budget=budget, on_error="result")
    assert (result.status, result.has_value) == ("budget_exceeded", False)


async def test_a_once_step_has_its_time_too() -> None:
    late = Blocking(LIMIT * 2, replay="once", timeout=LIMIT).step
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(late, "x", run_id="run", on_error="result")
        assert isinstance(result.error, StepTimeout)


async def test_what_has_finished_in_time_is_kept_for_the_run_that_goes_on() -> None:
    block = Blocking()
    flow: AnyStep = loop(block.step, until=until.max_rounds(3))
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        first = await harness.run(flow, "x", run_id="run", on_error="result", deadline=LIMIT)
        assert first.status == "budget_exceeded"
        done = block.begun
        assert (await harness.resume("run", flow)).value == "x"
        assert block.begun == 3
        assert done < 3


# ---------------------------------------------------------------------------------------------------------------- tools


@tool(timeout=LIMIT)
def in_a_thread() -> str:
    """Work in a thread."""
    block(LIMIT * 2)
    return "as if nothing had happened"


@tool(timeout=LIMIT)
async def blocks() -> str:
    """Block the loop."""
    block(LIMIT * 2)
    return "as if nothing had happened"


@tool(timeout=LIMIT)
async def catches() -> str:
    """Catch the cancellation."""
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        pass
    return "as if nothing had happened"


@pytest.mark.parametrize("late", [in_a_thread, blocks, catches], ids=lambda each: each.name)
async def test_the_late_value_of_a_tool(late: Any) -> None:
    agent = loop(call_model(tools=[late]), until=until.no_tool_calls())
    model = ScriptedModel(FunctionCall(name=late.name, arguments={}), "done")
    async with Harness(model=model, checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(agent, "go")
        told = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
        assert told == [f"tool {late.name!r} took longer than {LIMIT:g} s"]
        direct = await harness.run(call_tool(late, args={}), None, on_error="result")
        assert isinstance(direct.error, ToolFailed)
        patient = late.with_options(timeout=None)
        timed = await harness.run(call_tool(patient, args={}).with_options(timeout=LIMIT), None, on_error="result")
        assert isinstance(timed.error, StepTimeout)
        ended = await harness.run(call_tool(patient, args={}), None, on_error="result", deadline=LIMIT)
        assert ended.status == "budget_exceeded"


async def test_a_tool_that_is_late_gives_nothing_to_a_layer_either() -> None:
    """Steps that a tool calls have no more time than the tool."""
    block = Blocking()

    @tool(timeout=LIMIT)
    async def several(ctx: Context) -> str:
        """Call steps."""
        for _ in range(8):
            await block.step("x", ctx)
        return "done"

    async with Harness() as harness:
        result = await harness.run(call_tool(several, args={}), None, on_error="result")
    assert isinstance(result.error, ToolFailed)
    assert block.begun < 8


# ---------------------------------------------------------------------------------------------------- layers and models


class Slow(MemoryLayer[list[str]]):
    async def recall(self, query: str, budget: int) -> str:
        block(LIMIT * 2)
        return "too late"


async def test_the_late_value_of_a_layers_hook() -> None:
    class Mem(Memory):
        slow: Slow = Slow(timeouts={"recall": LIMIT})

    model = ScriptedModel("hello")
    async with Harness(memory=Mem(), model=model) as harness:
        assert (await harness.run(call_model(), "hi")).value == "hello"
    assert "too late" not in str(model.requests[0].items)


@pytest.mark.parametrize("limit", ["begin", "total"])
async def test_the_late_answer_of_a_timed_model(limit: str) -> None:
    def slowly(request: object) -> str:
        block(LIMIT * 2)
        return "too late"

    async with Harness(model=TimedModel(ScriptedModel(slowly), **{limit: LIMIT})) as harness:
        result = await harness.run(call_model(), "hi", on_error="result")
    assert isinstance(result.error, ModelUnavailable)


class SlowStream:
    """An answer whose later events come late, from code that never waits."""

    def __init__(self, stream: ModelStream) -> None:
        self.stream = stream

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        async for event in self.stream:
            yield event
            block(LIMIT * 2)

    async def response(self) -> ModelResponse:
        return await self.stream.response()


class SlowModel:
    name = "test:slow"

    def __init__(self) -> None:
        self.inner = ScriptedModel("one two three")

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        async with self.inner.respond(request) as stream:
            yield SlowStream(stream)


@pytest.mark.parametrize("limit", ["idle", "total"])
async def test_the_late_events_of_a_timed_model(limit: str) -> None:
    async with Harness(model=TimedModel(SlowModel(), **{limit: LIMIT})) as harness:
        result = await harness.run(call_model(), "hi", on_error="result")
    assert isinstance(result.error, ModelStreamError)


async def test_without_a_limit_no_clock_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("noetic_py.engine.execute.in_time", lambda: asked.append(1))
    async with Harness() as harness:
        assert (await harness.run(parallel([Blocking(0.0).step] * 3), "x")).value == ["x"] * 3
    assert asked == []
