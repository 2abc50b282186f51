"""What is emitted while a run goes on, and what of it reaches whoever watches."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    Emitted,
    Event,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    ItemsAppended,
    Memory,
    Message,
    StateBag,
    Step,
    ToolFinished,
    ToolStarted,
    call_model,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.errors import NoContextError
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


async def watched(flow: Step[Any, Any, Any, Any], value: object, **options: Any) -> list[Event]:
    """All events of a run."""
    async with Harness(plugins=[]) as harness, harness.stream(flow, value, **options) as stream:
        return [event async for event in stream.events]


def emitted(events: list[Event]) -> list[tuple[object, str]]:
    return [(event.event, "/".join(event.path)) for event in events if isinstance(event, Emitted)]


@step
async def tell(text: str, ctx: Context) -> str:
    ctx.emit(text)
    return text


# --------------------------------------------------------------------------------------------------------------- 001-17


@pytest.mark.clause("001-17a")
async def test_001_17_code_in_a_run_emits_any_object() -> None:
    thing = object()

    @step
    async def emit(_: object, ctx: Ctx) -> None:
        # It is a plain function: nothing is awaited.
        ctx.emit(thing)
        ctx.emit({"percent": 50})

    assert emitted(await watched(emit, None)) == [(thing, "emit"), ({"percent": 50}, "emit")]


@pytest.mark.clause("001-17b")
async def test_001_17_nobody_has_to_watch() -> None:
    async with Harness(plugins=[]) as harness:
        assert (await harness.run(tell, "x")).value == "x"


@pytest.mark.clause("001-17c")
async def test_001_17_outside_of_a_run_there_is_nobody_to_emit_to() -> None:
    with pytest.raises(NoContextError):
        Context().emit("x")


# --------------------------------------------------------------------------------------------------------------- 001-25


@step
async def expert(question: str, ctx: Ctx) -> str:
    ctx.items.extend([Message.user(question), Message.assistant("At noon.")])
    ctx.emit("looked it up")
    return "At noon."


def agent_with(child: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    """An agent that asks a child with a log of its own."""
    ask = step_tool(child, name="ask", description="Ask the expert.", input_type=str)
    model = ScriptedModel(FunctionCall(name="ask", arguments={"input": "When?"}), "It is at noon.")
    return loop(call_model(model, tools=[ask]), until=until.no_tool_calls(), id="Root")


def texts(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@pytest.mark.clause("001-25a", "001-25b")
async def test_001_25_what_a_child_emits_and_says_reaches_the_parents_stream_with_its_place() -> None:
    events = await watched(agent_with(spawn(expert)), "Ask.")
    place = ("Root", "call_model[0]", "ask[0]", "spawn:expert", "expert")
    assert emitted(events) == [("looked it up", "/".join(place))]
    said = [event for event in events if isinstance(event, ItemsAppended) and event.path == place]
    assert [texts(event.items) for event in said] == [["When?", "At noon."]]
    # Its place begins with the branch of its conversation, and no other event's does.
    below = [event for event in events if isinstance(event, ItemsAppended) and "spawn:expert" in event.path]
    assert below == said
    # It is tagged with the branch and the call that it belongs to, as all that happens there is.
    (call,) = [event.call for event in events if isinstance(event, ToolStarted)]
    assert {event.branch for event in below} == {".".join(place)}
    assert {event.call_id for event in events if "spawn:expert" in event.path} == {call.call_id}
    assert {event.branch for event in events if event.path == ("Root", "call_model[0]")} == {"Root"}


@pytest.mark.clause("001-25a")
async def test_001_25_they_come_as_items_of_the_stream_too() -> None:
    async with Harness(plugins=[]) as harness, harness.stream(agent_with(spawn(expert)), "Ask.") as stream:
        items: list[Item] = [item async for item in stream.items]
        result = await stream.result()
    assert texts(items) == ["Ask.", "When?", "At noon.", "It is at noon."]
    # The conversation is the parent's own, and has of the child what it answered.
    assert texts(result.items) == ["Ask.", "It is at noon."]
    (output,) = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert output.output == "At noon."


@pytest.mark.clause("001-25c")
async def test_001_25_they_never_enter_a_log_that_was_begun_anew() -> None:
    logs: list[list[str]] = []

    @step
    async def inner(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user("inner"))
        return text

    @step
    async def outer(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user("outer"))
        await spawn(inner)(text, ctx)
        logs.append(texts(ctx.items))
        return text

    events = await watched(spawn(outer), "x")
    assert logs == [["outer"]]
    told = [texts(event.items) for event in events if isinstance(event, ItemsAppended)]
    assert sorted(told) == [["inner"], ["outer"]]


@pytest.mark.clause("001-25d")
async def test_001_25_a_sessions_run_keeps_what_the_child_said() -> None:
    """The session's conversation has the answer alone; the run's journal has everything."""
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        session = harness.session("ada", "s")
        result = await session.run(agent_with(spawn(expert)), "Ask.")
        journal = await harness.runs.journal(result.run_id)
    assert texts(await session.items()) == ["Ask.", "It is at noon."]
    kept = [text for record in journal for text in texts(getattr(record, "items", ()))]
    assert "When?" in kept
    assert "At noon." in kept


# --------------------------------------------------------------------------------------------------------------- 001-27


@pytest.mark.clause("001-27a")
async def test_001_27_what_a_tool_emits_is_seen_at_once_and_before_its_result() -> None:
    seen = anyio.Event()

    @tool
    async def slow(ctx: Context) -> str:
        """Ends only when somebody has seen what it has emitted."""
        ctx.emit("half way")
        await seen.wait()
        return "done"

    agent = loop(call_model(ScriptedModel(FunctionCall(name="slow"), "ok"), tools=[slow]), until=until.no_tool_calls())
    order: list[str] = []
    async with Harness(plugins=[]) as harness, harness.stream(agent, "Go.") as stream:
        async for event in stream.events:
            if isinstance(event, Emitted | ToolStarted | ToolFinished):
                order.append(type(event).__name__)
            if isinstance(event, Emitted):
                assert event.event == "half way"
                seen.set()
    assert order == ["ToolStarted", "Emitted", "ToolFinished"]


@pytest.mark.clause("001-27a")
async def test_001_27_a_sync_tool_emits_from_its_thread() -> None:
    @tool
    def count(ctx: Context, to: int) -> int:
        """Count."""
        for number in range(to):
            ctx.emit(number)
        return to

    agent = loop(
        call_model(ScriptedModel(FunctionCall(name="count", arguments={"to": 3}), "ok"), tools=[count]),
        until=until.no_tool_calls(),
    )
    events = await watched(agent, "Go.")
    assert [what for what, _ in emitted(events)] == [0, 1, 2]
    last = max(index for index, event in enumerate(events) if isinstance(event, Emitted))
    assert any(isinstance(event, ToolFinished) for event in events[last:])


@pytest.mark.clause("001-27b")
async def test_001_27_results_come_in_the_order_of_the_calls_whichever_ends_first() -> None:
    first_may_end = anyio.Event()

    @tool
    async def wait(ctx: Context) -> str:
        """The first call, which ends last."""
        await first_may_end.wait()
        return "first"

    @tool
    async def quick() -> str:
        """The second call, which ends first."""
        return "second"

    calls = [FunctionCall(name="wait"), FunctionCall(name="quick")]
    model = ScriptedModel(calls, "ok")
    agent = loop(call_model(model, tools=[wait, quick]), until=until.no_tool_calls())
    finished: list[object] = []
    async with Harness(plugins=[]) as harness, harness.stream(agent, "Go.") as stream:
        async for event in stream.events:
            if isinstance(event, ToolFinished):
                # They are told when they happen.
                finished.append(event.output.output)
                first_may_end.set()
        result = await stream.result()
    assert finished == ["second", "first"]
    outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
    assert outputs == ["first", "second"]
    shown = [item.output for item in model.requests[1].items if isinstance(item, FunctionCallOutput)]
    assert shown == ["first", "second"]


# --------------------------------------------------------------------------------------------------------------- 001-28


@pytest.mark.clause("001-28a")
async def test_001_28_events_of_nested_parts_reach_the_root_once_each() -> None:
    deep = spawn(spawn(tell, id="inner"), id="outer")
    agent = agent_with(sequence(deep, parallel([tell.bind("b"), spawn(tell).bind("c")]), id="team"))
    events = await watched(agent, "Go.")
    top = "Root/call_model[0]/ask[0]/team"
    assert sorted(emitted(events), key=str) == [
        ("When?", f"{top}/outer/inner/tell"),
        ("b", f"{top}/parallel/tell[0]"),
        ("c", f"{top}/parallel/spawn:tell[1]/tell"),
    ]


@pytest.mark.clause("001-28b")
async def test_001_28_every_watcher_gets_each_once() -> None:
    seen: list[list[object]] = [[], []]

    async def follow(stream: Any, into: list[object]) -> None:
        into.extend([item async for item in stream])

    deep = spawn(spawn(expert, id="inner"), id="outer")
    async with (
        Harness(plugins=[]) as harness,
        harness.stream(deep, "When?") as stream,
        anyio.create_task_group() as group,
    ):
        group.start_soon(follow, stream.events, seen[0])
        group.start_soon(follow, stream.items, seen[1])
    events: Any = seen[0]
    assert [event.event for event in events if isinstance(event, Emitted)] == ["looked it up"]
    assert texts(seen[1]) == ["When?", "At noon."]


async def test_001_28_what_a_part_has_emitted_before_a_retry_was_emitted() -> None:
    """An event is not taken back: whoever watches has seen it."""
    tries: list[int] = []

    @step(retry=2)
    async def flaky(text: str, ctx: Ctx) -> str:
        tries.append(1)
        ctx.emit(f"try {len(tries)}")
        if len(tries) == 1:
            raise OSError(text)
        return text

    runtime = VirtualRuntime()
    async with Harness(plugins=[], runtime=runtime) as harness:
        handle = harness.start(spawn(flaky), "x")
        stream: Any = handle.stream
        with anyio.fail_after(10):
            while not handle.done:
                await runtime.advance(10)
        events = [event async for event in stream.events]
    assert [what for what, _ in emitted(events)] == ["try 1", "try 2"]
