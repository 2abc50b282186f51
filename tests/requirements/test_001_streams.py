"""What a watcher of a run can pick out of what its nested parts send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from noetic_py import (
    Context,
    Emitted,
    Event,
    FunctionCall,
    Harness,
    ItemsAppended,
    Memory,
    Message,
    StateBag,
    Step,
    TextDelta,
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
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


async def read(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


@step
async def tell(text: str, ctx: Context) -> str:
    ctx.emit(text)
    return text


def agent(tools: dict[str, Step[Any, Any, Any, Any]]) -> Step[Any, Any, Any, Any]:
    """An agent that calls each of some steps once, in one round, with their names as call ids."""
    made = [step_tool(each, name=name, description="Do it.") for name, each in tools.items()]
    calls = [FunctionCall(name=name, arguments={"input": f"for {name}"}, call_id=name) for name in tools]
    asked = call_model(ScriptedModel(calls, "all done", chunk=100), tools=made)
    return loop(asked, until=until.no_tool_calls(), id="Root")


@pytest.mark.clause("001-25b")
async def test_001_25_the_events_of_a_child_are_found_by_its_branch_and_by_its_call() -> None:
    child = spawn(sequence(tell, call_model(ScriptedModel("from below", chunk=100))), id="child")
    flow = agent({"ask": child, "other": tell})
    async with Harness(plugins=[]) as harness, harness.stream(flow, "Go.") as stream:
        of_call = stream.select(call_id="ask")
        everything = stream.select()
        found: list[Event] = await read(everything)
        branch = next(event.branch for event in found if isinstance(event, TextDelta) and event.depth == 1)
        assert await read(of_call) == [event for event in found if event.call_id == "ask"]
    assert "child" in branch.split(".")
    # Its own conversation, and nothing of the parent's.
    told = [event for event in found if event.branch == branch]
    assert all("child" in "/".join(event.path) for event in told)
    assert {event.call_id for event in told} == {"ask"}
    said = [item for event in told if isinstance(event, ItemsAppended) for item in event.items]
    assert [item.text for item in said if isinstance(item, Message)] == ["for ask", "from below"]
    # The parent's own are told apart from them.
    own = [event for event in found if event.branch == "Root" and isinstance(event, ItemsAppended)]
    texts = [item.text for event in own for item in event.items if isinstance(item, Message)]
    assert texts == ["Go.", "all done"]


@pytest.mark.clause("001-25b")
async def test_001_25_a_branch_and_those_below_it() -> None:
    flow = spawn(sequence(tell, spawn(tell, id="inner")), id="outer")
    async with Harness(plugins=[]) as harness, harness.stream(sequence(tell, flow, id="Root"), "x") as stream:
        below, everything = stream.select(Emitted, branch_prefix="Root"), stream.select(Emitted)
        events = await read(everything)
        assert await read(below) == events
    assert [event.depth for event in events] == [0, 1, 2]
    outer, inner = events[1].branch, events[2].branch
    assert inner.startswith(f"{outer}.")
    assert events[0].branch == "Root"


@pytest.mark.clause("001-27c")
async def test_001_27_what_a_tool_emits_says_which_call_it_belongs_to() -> None:
    @tool
    async def search(ctx: Context, word: str) -> str:
        """Search."""
        ctx.emit(f"searching {word}")
        return word

    calls = [FunctionCall(name="search", arguments={"word": word}, call_id=word) for word in ("a", "b")]
    flow = loop(call_model(ScriptedModel(calls, "ok"), tools=[search]), until=until.no_tool_calls())
    kinds = (Emitted, ToolStarted, ToolFinished)
    async with Harness(plugins=[]) as harness, harness.stream(flow, "Go.") as stream:
        by_call = {word: stream.select(*kinds, call_id=word) for word in ("a", "b")}
        found = {word: await read(events) for word, events in by_call.items()}
    for word, events in found.items():
        started, emitted, finished = events
        assert (started.call.call_id, emitted.event, finished.output.call_id) == (word, f"searching {word}", word)


@pytest.mark.clause("001-27c")
async def test_001_27_outside_of_a_call_there_is_none() -> None:
    async with Harness(plugins=[]) as harness, harness.stream(sequence(tell, spawn(tell)), "x") as stream:
        events: list[Event] = await read(stream.events)
    assert {event.call_id for event in events} == {None}


@pytest.mark.clause("001-28c")
async def test_001_28_each_event_of_a_nested_part_comes_once_with_its_branch_and_call() -> None:
    deep = spawn(spawn(tell, id="inner"), id="outer")
    team = sequence(deep, parallel([tell.bind("b"), spawn(tell).bind("c")]), id="team")
    flow = agent({"ask": team})
    async with Harness(plugins=[]) as harness, harness.stream(flow, "Go.") as stream:
        emitted: list[Emitted] = await read(stream.select(Emitted))
    assert sorted(str(event.event) for event in emitted) == ["b", "c", "for ask"]
    assert {event.call_id for event in emitted} == {"ask"}
    by_text = {str(event.event): event for event in emitted}
    assert {text: event.depth for text, event in by_text.items()} == {"for ask": 2, "b": 0, "c": 1}
    # Three conversations, each with a name of its own.
    assert len({event.branch for event in emitted}) == 3
    # The branch is the name that the part itself sees.
    assert by_text["for ask"].branch.endswith("inner.tell")


@pytest.mark.clause("001-28c")
async def test_001_28_a_watcher_may_leave_nested_parts_out() -> None:
    flow = agent({"ask": spawn(tell), "own": tell})
    async with Harness(plugins=[]) as harness, harness.stream(flow, "Go.") as stream:
        own: list[Emitted] = await read(stream.select(Emitted, depth=0))
    assert [event.event for event in own] == ["for own"]


@pytest.mark.clause("001-28c")
async def test_001_28_the_branch_of_an_event_is_that_of_the_context_that_emits_it() -> None:
    @step
    async def which(_: object, ctx: Ctx) -> str:
        ctx.emit("here")
        return ctx.branch

    flow = sequence(which, spawn(which, id="child"), id="Root")
    async with Harness(plugins=[]) as harness, harness.stream(flow, None) as stream:
        branches = [event.branch for event in await read(stream.select(Emitted))]
        assert (await stream.result()).value == branches[-1]
    assert len(set(branches)) == 2
