from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    Emitted,
    Event,
    FunctionCall,
    Harness,
    Item,
    ItemsAppended,
    Message,
    Model,
    Reasoning,
    Retry,
    RunFinished,
    StepStarted,
    TextDelta,
    TokenUsage,
    ToolFinished,
    ToolStarted,
    call_model,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.events import (
    BudgetWarning,
    LoopIteration,
    ModelFinished,
    ModelStarted,
    ReasoningDelta,
    RunStarted,
    StepCommitted,
    StepDiscarded,
)
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@step
async def echo(text: str) -> str:
    return text


@step
async def write(text: str, ctx: Context) -> str:
    ctx.items.append(Message.user(text))
    return text


@step
async def forever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


async def events_of(flow: Any, input: object = "x", *, model: Model | None = None, **options: Any) -> list[Event]:
    async with Harness(model=model) as harness:
        made: Any = harness.stream(flow, input, on_error="result", **options)
        async with made as stream:
            return [event async for event in stream.events]


def shorten(events: list[Event]) -> list[tuple[str, str]]:
    return [(type(event).__name__, "/".join(event.path)) for event in events]


async def test_the_events_of_a_step() -> None:
    events = await events_of(sequence(write, echo))
    assert shorten(events) == [
        ("RunStarted", ""),
        ("StepStarted", "sequence"),
        ("StepStarted", "sequence/write"),
        ("ItemsAppended", "sequence/write"),
        ("StepCommitted", "sequence/write"),
        ("StepStarted", "sequence/echo"),
        ("StepCommitted", "sequence/echo"),
        ("StepCommitted", "sequence"),
        ("RunFinished", ""),
    ]
    first, *_, last = events
    assert isinstance(first, RunStarted)
    assert isinstance(last, RunFinished)
    assert last.run_id == first.run_id
    assert (last.status, last.reason) == ("completed", None)
    started = [event for event in events if isinstance(event, StepStarted)]
    assert [(event.kind, event.attempt) for event in started] == [("sequence", 1), ("code", 1), ("code", 1)]
    positions = [event.position for event in events if isinstance(event, StepCommitted)]
    assert positions == sorted(set(positions))
    assert positions[0] > 0


async def test_the_events_of_an_agent() -> None:
    call = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel(
        [Reasoning(content="let me see"), call], "it is found", usage=TokenUsage(7, 3), cost="0.5", chunk=4
    )
    events = await events_of(loop(call_model(tools=(search,)), until=until.no_tool_calls()), "go", model=model)
    by_type: dict[type[Event], list[Any]] = {}
    for event in events:
        by_type.setdefault(type(event), []).append(event)
    assert [event.model for event in by_type[ModelStarted]] == ["test:scripted"] * 2
    first = by_type[ModelFinished][0]
    assert (first.model, first.usage, first.cost) == ("test:scripted", TokenUsage(7, 3), Decimal("0.5"))
    assert first.path == ("loop", "call_model[0]", "answer")
    assert "".join(event.delta for event in by_type[ReasoningDelta]) == "let me see"
    assert [event.delta for event in by_type[TextDelta]] == ["it i", "s fo", "und"]
    assert [event.call for event in by_type[ToolStarted]] == [call]
    assert [(event.output.output, event.failed) for event in by_type[ToolFinished]] == [("found x", False)]
    assert by_type[ToolStarted][0].path == ("loop", "call_model[0]", "search[0]")
    assert [event.stop for event in by_type[LoopIteration]] == [False, True]
    appended = [item for event in by_type[ItemsAppended] for item in event.items]
    kinds = [item.type for item in appended]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output", "message"]


async def test_a_tool_that_fails_says_so() -> None:
    @tool
    async def broken() -> str:
        raise ValueError("no")

    model = ScriptedModel(FunctionCall(name="broken"), "done")
    events = await events_of(loop(call_model(tools=(broken,)), until=until.no_tool_calls()), "go", model=model)
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert finished.failed
    assert "no" in str(finished.output.output)


async def test_failed_attempts_are_void() -> None:
    @step(retry=Retry(2, initial=0))
    async def bad(text: str) -> str:
        raise ValueError("no")

    events = await events_of(sequence(write, bad))
    voided = [event for event in events if isinstance(event, StepDiscarded)]
    assert [("/".join(event.path), event.attempt, event.final) for event in voided] == [
        ("sequence/bad", 1, False),
        ("sequence/bad", 2, True),
        ("sequence", 1, True),
    ]
    assert "no" in voided[0].reason
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.reason) == ("failed", "ValueError: no")


async def test_losers_of_a_race_are_void() -> None:
    inside = anyio.Event()

    @step
    async def loser(text: str) -> str:
        inside.set()
        await anyio.sleep_forever()
        return text

    @step
    async def winner(text: str) -> str:
        await inside.wait()
        return text

    events = await events_of(race([loser, winner]))
    voided = [event for event in events if isinstance(event, StepDiscarded)]
    assert [(event.path, event.reason, event.final) for event in voided] == [(("race", "loser[0]"), "stopped", True)]


async def test_every_step_that_starts_ends() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        await write(text, ctx)
        ctx.items.append(Message.user("kept"))
        ctx.abort("enough")
        return text

    events = await events_of(parallel([forever, spawn(forever), sequence(echo, stop)]))
    started = [event.path for event in events if isinstance(event, StepStarted)]
    ended = [event.path for event in events if isinstance(event, (StepCommitted, StepDiscarded))]
    assert sorted(ended) == sorted(started)
    appended = [item for event in events if isinstance(event, ItemsAppended) for item in event.items]
    assert [item.text for item in appended if isinstance(item, Message)] == ["x", "kept"]
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.reason) == ("aborted", "enough")


async def test_a_step_sends_events_of_its_own() -> None:
    @step
    async def send(text: str, ctx: Context) -> str:
        ctx.emit({"progress": 0.5})
        ctx.emit(text)
        return text

    events = [event for event in await events_of(sequence(send)) if isinstance(event, Emitted)]
    assert [(event.path, event.event) for event in events] == [
        (("sequence", "send"), {"progress": 0.5}),
        (("sequence", "send"), "x"),
    ]
    async with Harness() as harness:
        assert (await harness.run(send, "x")).value == "x"


async def test_a_generator_tool_sends_its_values() -> None:
    @tool
    async def count(n: int) -> AsyncIterator[int]:
        """Count."""
        for each in range(n):
            yield each

    model = ScriptedModel(FunctionCall(name="count", arguments={"n": 3}), "done")
    flow = loop(call_model(tools=(count,)), until=until.no_tool_calls())
    events = [event for event in await events_of(flow, "go", model=model) if isinstance(event, Emitted)]
    assert [event.event for event in events] == [0, 1, 2]
    async with Harness(model=ScriptedModel(FunctionCall(name="count", arguments={"n": 3}), "done")) as harness:
        assert (await harness.run(flow, "go")).value == "done"


async def test_a_budget_warns_once_a_dimension() -> None:
    events = await events_of(sequence(*[echo] * 9), budget=Budget(steps=10, warn_at=0.5))
    (warning,) = [event for event in events if isinstance(event, BudgetWarning)]
    assert warning.dimension == "steps"
    assert (warning.used, warning.limit) == (Decimal(5), Decimal(10))


async def test_a_step_s_budget_warns_too() -> None:
    events = await events_of(sequence(echo, echo).with_options(budget=Budget(steps=2)))
    assert [event.dimension for event in events if isinstance(event, BudgetWarning)] == ["steps"]


async def test_a_harness_budget_warns_too() -> None:
    async with Harness(budget=Budget(steps=2, warn_at=0.5)) as harness, harness.stream(echo >> echo, "x") as stream:
        warnings = [event async for event in stream.events if isinstance(event, BudgetWarning)]
    assert [(event.dimension, event.limit) for event in warnings] == [("steps", Decimal(2))]


# -------------------------------------------------------------------------------------------------------------- streams


async def test_text_and_items_and_events_side_by_side() -> None:
    model = ScriptedModel("one two", "three")
    texts: list[str] = []
    items: list[Item] = []
    events: list[Event] = []

    async with Harness(model=model) as harness:
        async with harness.stream(call_model() >> call_model(), "hi") as stream, anyio.create_task_group() as group:

            async def read_text() -> None:
                texts.extend([piece async for piece in stream.text])

            async def read_items() -> None:
                items.extend([item async for item in stream.items])

            async def read_events() -> None:
                events.extend([event async for event in stream.events])

            group.start_soon(read_text)
            group.start_soon(read_items)
            group.start_soon(read_events)
        result = await stream.result()
    assert texts == ["one ", "two", "three"]
    assert items == list(result.items)
    assert isinstance(events[-1], RunFinished)
    assert stream.dropped == 0
    assert stream.run_id == result.run_id


async def test_reading_may_begin_late_and_go_on_after_the_end() -> None:
    async with Harness() as harness, harness.stream(write, "x") as stream:
        result = await stream.result()
        assert result.value == "x"
        assert len([event async for event in stream.events]) == 5
        assert [event async for event in stream.events] == []
        assert [item.type async for item in stream.items] == ["message"]
        assert [piece async for piece in stream.text] == []


async def test_reading_may_be_left_and_taken_up_again() -> None:
    model = ScriptedModel("one two three")
    async with Harness(model=model) as harness, harness.stream(call_model(), "x") as stream:
        async for piece in stream.text:
            assert piece == "one "
            break
        assert [piece async for piece in stream.text] == ["two ", "three"]


async def test_who_reads_too_slowly_loses_the_oldest_and_is_told() -> None:
    @step
    async def chatter(n: int, ctx: Context) -> int:
        for each in range(n):
            ctx.emit(each)
        return n

    async with Harness() as harness, harness.stream(chatter, 10_100) as stream:
        await stream.result()
        # Nobody has lost anything while nobody reads.
        assert stream.dropped == 0
        events = [event async for event in stream.events]
        assert stream.dropped == 104
    assert len(events) == 10_000
    assert isinstance(events[-1], RunFinished)
    first = events[0]
    assert isinstance(first, Emitted)
    assert first.event == 102


async def test_leaving_early_cancels_the_run() -> None:
    stopped: list[str] = []

    @step
    async def slow(text: str, ctx: Context) -> str:
        ctx.emit("inside")
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(text)
        return text

    async with Harness() as harness:
        async with harness.stream(slow, "x") as stream:
            async for event in stream.events:
                if isinstance(event, Emitted):
                    break
        assert stopped == ["x"]


async def test_leaving_at_once_leaves_nobody_waiting() -> None:
    async with Harness() as harness:
        async with harness.stream(forever, "x") as stream:
            pass
        with anyio.fail_after(5):
            with pytest.raises(Exception, match="before its end"):
                await stream.result()
            events = [event async for event in stream.events]
    assert all(isinstance(event, RunFinished | RunStarted | StepStarted | StepDiscarded) for event in events)


async def test_a_stream_can_be_stopped() -> None:
    async with Harness() as harness:
        async with harness.stream(forever, "x") as stream:
            stream.abort("enough")
            result = await stream.result()
        assert (result.status, result.reason) == ("aborted", "enough")
        async with harness.stream(forever, "x") as stream:
            stream.interrupt("stop")
            result = await stream.result()
    assert (result.status, result.reason) == ("interrupted", "stop")


async def test_a_started_run_can_be_watched() -> None:
    async with Harness() as harness:
        handle = harness.start(write, "x")
        events = [event async for event in handle.stream.events]
        assert isinstance(events[-1], RunFinished)
        assert handle.done
