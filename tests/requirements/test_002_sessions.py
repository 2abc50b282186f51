"""A session's queue of messages, and what those see who watch it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Memory,
    Message,
    RunResult,
    Session,
    SessionPolicy,
    StateBag,
    call_model,
    errors,
    loop,
    step,
    tool,
    until,
)
from noetic_py.core.events import RunFinished, RunStarted
from noetic_py.core.items import Reasoning
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def said(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message) and item.role == "user"]


@step
async def echo(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.user(text))
    await anyio.lowlevel.checkpoint()
    return text


class Waiting:
    """An agent that calls a tool, which waits, and then answers."""

    def __init__(self) -> None:
        self.begun, self.go = anyio.Event(), anyio.Event()

        @tool
        async def search(query: str) -> str:
            """Search."""
            self.begun.set()
            await self.go.wait()
            return "found"

        self.agent = loop(call_model(tools=[search]), until=until.no_tool_calls())
        call = FunctionCall(name="search", arguments={"query": "tides"})
        self.model = ScriptedModel(call, "At noon.", "Then not.", "Well.")
        self.results: list[RunResult[Any, Any]] = []

    async def serve(self, session: Session[Any], turns: int) -> None:
        async def told(result: RunResult[Any, Any]) -> None:
            self.results.append(result)
            if len(self.results) == turns:
                scope.cancel()

        with anyio.fail_after(20), anyio.CancelScope() as scope:
            await session.serve(self.agent, on_turn=told)


@pytest.mark.clause("002-53a")
async def test_002_53_one_fifo_for_each_thread(tmp_path: Path) -> None:
    async with Harness(plugins=(), checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        sessions = [harness.session(user, "trip") for user in ("ada", "bob")]
        for number in range(5):
            for session in sessions:
                await session.send(f"{session.key.user} {number}")
    # What waits is not this process's.
    async with Harness(plugins=(), checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        for name in ("bob", "ada"):
            session = harness.session(name, "trip")
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(session.next_turn, echo)
            assert said(await session.items()) == [f"{name} {number}" for number in range(5)]
            assert await session.queued() == ()


@pytest.mark.clause("002-53b")
async def test_002_53_delivered_as_the_next_turn() -> None:
    waiting = Waiting()
    async with Harness(plugins=(), model=waiting.model) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")
        group.start_soon(waiting.serve, session, 2)
        await session.send("When is high water?")
        await waiting.begun.wait()
        await session.send("And today?")
        waiting.go.set()
    assert [result.value for result in waiting.results] == ["At noon.", "Then not."]
    assert said(waiting.model.requests[1].items) == ["When is high water?"]
    assert said(waiting.model.requests[2].items) == ["When is high water?", "And today?"]


@pytest.mark.clause("002-53c")
async def test_002_53_delivered_between_two_rounds() -> None:
    waiting = Waiting()
    async with Harness(plugins=(), model=waiting.model) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")
        group.start_soon(waiting.serve, session, 1)
        await session.send("When is high water?")
        await waiting.begun.wait()
        await session.send("In Brest.", deliver="between_rounds")
        waiting.go.set()
    assert [result.value for result in waiting.results] == ["At noon."]
    call, output, told = waiting.model.requests[1].items[1:]
    assert isinstance(call, FunctionCall)
    assert isinstance(output, FunctionCallOutput)
    assert isinstance(told, Message)
    assert told.text == "In Brest."
    async with Harness(plugins=()) as harness:
        # Nothing goes on that could be told, so that a turn is begun for it.
        session = harness.session("ada", "trip")
        await session.send("hello", deliver="between_rounds")
        result = await session.next_turn(echo)
        assert result is not None
        assert result.value == "hello"
        assert await session.queued() == ()


@pytest.mark.clause("002-53d")
async def test_002_53_delivered_as_an_interrupt() -> None:
    waiting = Waiting()
    async with Harness(plugins=(), model=waiting.model) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")
        group.start_soon(waiting.serve, session, 3)
        await session.send("When is high water?")
        await waiting.begun.wait()
        await session.send("And today?")
        assert (await session.send("Stop.", deliver="interrupt")).interrupted
    assert [result.status for result in waiting.results] == ["interrupted", "completed", "completed"]
    first, call, output, told = waiting.model.requests[1].items
    assert isinstance(first, Message)
    assert first.text == "When is high water?"
    assert isinstance(call, FunctionCall)
    assert isinstance(output, FunctionCallOutput)
    assert isinstance(told, Message)
    assert told.text == "Stop."
    assert said(waiting.model.requests[2].items)[-1] == "And today?"


@pytest.mark.clause("002-53e")
async def test_002_53_streams_of_text_reasoning_items_and_events() -> None:
    thought = Reasoning(content=["Let me see."])
    model = ScriptedModel([thought, Message.assistant("At noon.")], "At six.")
    async with Harness(plugins=(), model=model) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as stream:
            for text in ("When?", "And then?"):
                await session.send(text)
                await session.next_turn(call_model())
        assert "".join([piece async for piece in stream.text]) == "At noon.At six."
        assert "".join([piece async for piece in stream.reasoning]) == "Let me see."
        assert said([item async for item in stream.items]) == ["When?", "And then?"]
        events = [event async for event in stream.events]
        turns = [type(event) for event in events if isinstance(event, RunStarted | RunFinished)]
        assert turns == [RunStarted, RunFinished, RunStarted, RunFinished]


@pytest.mark.clause("002-53f")
async def test_002_53_who_comes_late_sees_what_was() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.run(echo, "one")
        async with session.watch() as late:
            await session.run(echo, "two")
        assert said([item async for item in late.items]) == ["one", "two"]
        assert (late.missed, late.dropped) == (0, 0)


@pytest.mark.clause("002-53g")
async def test_002_53_buffers_are_bounded_the_oldest_go_first_and_are_counted() -> None:
    async with Harness(plugins=(), sessions=SessionPolicy(history=10, max_queued=3)) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as early:
            for number in range(10):
                await session.run(echo, str(number))
        everything = [event async for event in early.events]
        async with session.watch() as late:
            pass
        assert [event async for event in late.events] == everything[-10:]
        assert late.missed == len(everything) - 10 > 0
        # What somebody has said is no event: it is refused while it can be said again, and never dropped.
        for text in ("one", "two", "three"):
            await session.send(text)
        with pytest.raises(errors.LimitExceeded):
            await session.send("four")
        assert [each.message for each in await session.queued()] == ["one", "two", "three"]
