"""Stopping what goes on in one session, with or without a word to the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    RunResult,
    SessionKey,
    StateBag,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.models import ModelEvent, ModelRequest, ModelResponse, ModelStream, TextPart
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx: TypeAlias = Context[Memory, StateBag]
KEY = SessionKey("ada", "trip")


def texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


class Turns:
    """Turns of sessions that hang until they are let go, or interrupted."""

    def __init__(self) -> None:
        self.begun: list[str | None] = []
        self.go = anyio.Event()
        self.results: dict[str, RunResult[Any, Any]] = {}

        @step
        async def said(text: str, ctx: Ctx) -> str:
            ctx.state["said"] = text
            ctx.items.append(Message.user(text))
            return text

        @step
        async def hang(text: str, ctx: Ctx) -> str:
            self.begun.append(ctx.user_id)
            await self.go.wait()
            return text

        self.flow = said >> hang

    async def do(self, harness: Harness[Memory], key: SessionKey, text: str) -> None:
        self.results[text] = await harness.run(self.flow, text, session=key, on_error="result")

    async def wait(self, count: int) -> None:
        while len(self.begun) < count:
            await anyio.lowlevel.checkpoint()


@pytest.mark.clause("004-33a", "004-33b")
async def test_004_33_an_interrupt_belongs_to_a_running_call_and_is_not_stored() -> None:
    backend, turns = InMemoryBackend(), Turns()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        async with anyio.create_task_group() as group:
            group.start_soon(turns.do, harness, KEY, "a")
            await turns.wait(1)
            assert await harness.interrupt(KEY)
        result = turns.results["a"]
        assert (result.status, result.reason) == ("interrupted", "interrupted by the session's user")
        turns.go.set()
        # The next call begins with no flag, here and elsewhere.
        await turns.do(harness, KEY, "b")
    async with Harness(plugins=[], checkpoints=backend) as harness:
        await turns.do(harness, KEY, "c")
    assert (turns.results["b"].status, turns.results["c"].status) == ("completed", "completed")
    assert turns.results["c"].state == StateBag({"said": "c"})


@pytest.mark.clause("004-34a", "004-34b", "004-34c")
async def test_004_34_interrupting_a_session_stops_its_running_call_only() -> None:
    turns, other = Turns(), SessionKey("bob", "trip")
    async with Harness(plugins=[]) as harness:
        # Nothing runs: nothing is kept for later.
        assert await harness.interrupt(KEY, "too early") is False
        async with anyio.create_task_group() as group:
            group.start_soon(turns.do, harness, KEY, "a")
            group.start_soon(turns.do, harness, other, "b")
            await turns.wait(2)
            group.start_soon(turns.do, harness, KEY, "queued")
            await anyio.wait_all_tasks_blocked()
            assert await harness.interrupt(KEY) is True
            await turns.wait(3)
            turns.go.set()
        assert {text: result.status for text, result in turns.results.items()} == {
            "a": "interrupted",
            "b": "completed",
            "queued": "completed",
        }
        assert await harness.interrupt(KEY) is False
        assert "too early" not in texts(await harness.session("ada", "trip").items())


@pytest.mark.clause("004-35a", "004-35b")
async def test_004_35_an_interrupt_can_bring_a_message_that_the_model_sees() -> None:
    backend, turns = InMemoryBackend(), Turns()
    async with Harness(plugins=[], checkpoints=backend) as harness, anyio.create_task_group() as group:
        group.start_soon(turns.do, harness, KEY, "Plan a trip.")
        await turns.wait(1)
        await harness.interrupt(KEY, "Stop, and summarise.")
    model = ScriptedModel("Done.")
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        await harness.run(call_model(), None, session=KEY)
    [request] = model.requests
    assert [(item.role, item.text) for item in request.items if isinstance(item, Message)] == [
        ("user", "Plan a trip."),
        ("user", "Stop, and summarise."),
    ]


class Endless:
    """A model that goes on writing until somebody stops it."""

    name = "endless"

    def __init__(self) -> None:
        self.written = 0

    @asynccontextmanager
    async def respond(self, request: ModelRequest) -> AsyncGenerator[Endless]:
        yield self

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        while True:
            self.written += 1
            yield TextPart("word ")
            await anyio.lowlevel.checkpoint()

    async def response(self) -> ModelResponse:
        raise RuntimeError("it never has a whole answer")


@pytest.mark.clause("004-36a", "004-36b", "004-36c")
async def test_004_36_interrupts_are_looked_for_before_steps_and_tools_and_while_a_model_answers() -> None:
    ran: list[str] = []

    @step
    async def stop(value: str, ctx: Ctx) -> str:
        assert ctx.session is not None
        await harness.interrupt(ctx.session)
        return value

    @step
    async def after(value: str) -> str:
        ran.append("step")
        return value

    @tool
    async def search() -> str:
        """Search."""
        ran.append("tool")
        return "no"

    class StoppedWhileItAnswers(ScriptedModel):
        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            assert await harness.session("ada", "trip").interrupt()
            async with super().respond(request) as stream:
                yield stream

    agent = loop(call_model(tools=[search]), until=until.no_tool_calls())
    scripted, endless = StoppedWhileItAnswers(FunctionCall(name="search", arguments={}), "never"), Endless()
    async with Harness(plugins=[], model=scripted) as harness:
        assert (await harness.run(stop >> after, "a", session=KEY)).status == "interrupted"
        assert (await harness.run(agent, "a", session=KEY)).status == "interrupted"
    async with Harness(plugins=[], model=endless) as harness:
        async with harness.stream(call_model(), "a", session=KEY) as stream:
            while endless.written < 3:
                await anyio.lowlevel.checkpoint()
            assert await harness.interrupt(KEY)
            written = endless.written
            assert (await stream.result()).status == "interrupted"
        await anyio.wait_all_tasks_blocked()
        # Not even the next piece of its answer is waited for.
        assert endless.written <= written + 1
    # The step behind, the tool that the model called, and the round behind it have not run.
    assert (ran, len(scripted.requests)) == ([], 1)


@pytest.mark.clause("004-37a", "004-37b")
async def test_004_37_an_interrupted_call_stores_and_returns_what_it_has_with_open_calls_closed() -> None:
    in_tool = anyio.Event()

    @tool
    async def search(query: str) -> str:
        """Search."""
        if query == "slow":
            in_tool.set()
            await anyio.sleep_forever()
        return f"found {query}"

    calls = [FunctionCall(name="search", arguments={"query": name}, call_id=name) for name in ("quick", "slow")]
    agent = loop(call_model(tools=[search]), until=until.no_tool_calls())
    backend, results = InMemoryBackend(), list[RunResult[Any, Any]]()
    async with Harness(plugins=[], checkpoints=backend, model=ScriptedModel(calls)) as harness:

        async def turn() -> None:
            results.append(await harness.run(agent, "Find it.", session=KEY))

        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            await in_tool.wait()
            await anyio.wait_all_tasks_blocked()
            await harness.interrupt(KEY, "That is enough.")
    [result] = results
    assert result.status == "interrupted"
    model = ScriptedModel("I have stopped.")
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        items = await harness.session("ada", "trip").items()
        await harness.run(call_model(), None, session=KEY)
    for found in (items, model.requests[0].items):
        first = next(item for item in found if isinstance(item, FunctionCallOutput))
        assert (first.call_id, first.text) == ("quick", "found quick")
        outputs = {item.call_id: item.status for item in found if isinstance(item, FunctionCallOutput)}
        assert outputs == {"quick": "completed", "slow": "incomplete"}
        assert texts(found) == ["Find it.", "That is enough."]
    # The result has what was said, without what was said to stop it.
    assert [item for item in result.items if isinstance(item, FunctionCall)] == calls
    assert texts(result.items) == ["Find it."]


async def test_004_38_what_to_interrupt_is_named() -> None:
    turns = Turns()
    async with Harness(plugins=[]) as harness, anyio.create_task_group() as group:
        group.start_soon(turns.do, harness, KEY, "a")
        await turns.wait(1)
        untyped: Any = harness
        with pytest.raises(TypeError):
            await untyped.interrupt()
        # Another conversation of the same user is not this one.
        assert await harness.interrupt(SessionKey("ada", "other")) is False
        assert await harness.interrupt(SessionKey(None, "trip")) is False
        turns.go.set()
    assert turns.results["a"].status == "completed"
