"""What a listener makes of a run's events, whoever keeps up, and whoever leaves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from noetic_py import (
    Context,
    Emitted,
    Event,
    FunctionCall,
    Harness,
    Message,
    Reasoning,
    StepStarted,
    TextDelta,
    ToolStarted,
    call_model,
    each,
    loop,
    spawn,
    step,
    step_tool,
    until,
)
from noetic_py.errors import ConfigError, ModelStreamError
from noetic_py.events import Bus, RunStarted, Subscription
from noetic_py.items import OutputText
from noetic_py.models.retry import RetryModel
from noetic_py.selections import Filter, ItemSnapshot, Selection
from noetic_py.testing import ScriptedModel, Unfinished
from tests.properties.checks import left_over, tasks

pytestmark = pytest.mark.anyio


@step
async def say(text: str, ctx: Context) -> str:
    ctx.emit(text)
    return text


@step
async def many(count: int, ctx: Context) -> int:
    for number in range(count):
        ctx.emit(number)
    return count


async def read(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


def numbers(events: list[Any]) -> list[object]:
    return [event.event for event in events if isinstance(event, Emitted)]


# ---------------------------------------------------------------------------------------------------------- where from


class Nested:
    """A run with a tool whose step spawns another one that calls a model."""

    def __init__(self) -> None:
        inner = spawn(say >> call_model(), id="child")
        ask = step_tool(inner, name="ask", description="Ask another one.")
        self.agent = loop(call_model(tools=[ask]), until=until.no_tool_calls(), id="agent")
        call = FunctionCall(name="ask", arguments={"input": "deep"}, call_id="c1")
        self.model = ScriptedModel(call, "from below", "from above", chunk=100)


async def test_an_event_says_where_it_comes_from() -> None:
    nested = Nested()
    async with Harness(model=nested.model) as harness, harness.stream(nested.agent, "go") as stream:
        events = await read(stream.events)
        await stream.result()
    emitted = next(event for event in events if isinstance(event, Emitted))
    assert (emitted.call_id, emitted.depth) == ("c1", 1)
    assert "child" in emitted.branch.split(".")
    assert emitted.path[0] == "agent"
    deltas = {event.delta: event for event in events if isinstance(event, TextDelta)}
    assert [(text, event.call_id, event.depth) for text, event in deltas.items()] == [
        ("from below", "c1", 1),
        ("from above", None, 0),
    ]
    assert deltas["from above"].branch == "agent"
    (started,) = [event for event in events if isinstance(event, ToolStarted)]
    assert (started.call_id, started.depth) == ("c1", 0)
    # Each comes once.
    assert len({id(event) for event in events}) == len(events)
    assert (events[0].path, events[0].branch, events[-1].path) == ((), "", ())


async def test_some_of_the_events() -> None:
    nested = Nested()
    wanted: dict[str, dict[str, Any]] = {
        "all": {},
        "kinds": {"kinds": (TextDelta, ToolStarted)},
        "path": {"path": ("agent",)},
        "branch": {"branch": "agent"},
        "below": {"branch_prefix": "agent"},
        "call": {"call_id": "c1"},
        "own": {"depth": 0},
        "both": {"kinds": (TextDelta,), "depth": 0},
        "none": {"branch_prefix": "age"},
    }
    async with Harness(model=nested.model) as harness, harness.stream(nested.agent, "go") as stream:
        selections = {
            name: stream.select(*options.get("kinds", ()), **{k: v for k, v in options.items() if k != "kinds"})
            for name, options in wanted.items()
        }
        found = {name: await read(selection) for name, selection in selections.items()}
    everything = found["all"]
    assert len(everything) > 20
    tests: dict[str, Callable[[Event], bool]] = {
        "kinds": lambda e: isinstance(e, TextDelta | ToolStarted),
        "path": lambda e: e.path[:1] == ("agent",),
        "branch": lambda e: e.branch == "agent",
        "below": lambda e: e.branch == "agent" or e.branch.startswith("agent."),
        "call": lambda e: e.call_id == "c1",
        "own": lambda e: e.depth == 0,
        "both": lambda e: isinstance(e, TextDelta) and e.depth == 0,
        "none": lambda _: False,
    }
    for name, test in tests.items():
        assert found[name] == [event for event in everything if test(event)], name
    assert all(found[name] for name in tests if name != "none")


def test_what_a_filter_says_alone() -> None:
    assert Filter().predicate is None
    event = RunStarted((), "r")
    for wanted, says in ((Filter((RunStarted,)), True), (Filter((TextDelta,)), False), (Filter(branch=""), True)):
        assert wanted.predicate is not None
        assert wanted.predicate(event) is says


# -------------------------------------------------------------------------------------------------------- too many


async def test_the_oldest_are_lost_and_counted() -> None:
    async with Harness() as harness, harness.stream(many, 100) as stream:
        few = stream.select(Emitted, capacity=10)
        whole = stream.select(Emitted)
        other = stream.select(StepStarted, capacity=1)
        await stream.result()
        assert numbers(await read(few)) == list(range(90, 100))
        assert numbers(await read(whole)) == list(range(100))
        assert (few.dropped, whole.dropped, other.dropped) == (90, 0, 0)


@step
async def one(number: int, ctx: Context) -> int:
    ctx.emit(number)
    return number


async def test_the_run_waits_for_a_reader() -> None:
    seen: list[int] = []

    @step
    async def note(number: int, ctx: Context) -> int:
        seen.append(number)
        ctx.emit(number)
        return number

    async with Harness() as harness, harness.stream(each(note, concurrency=1), range(50)) as stream:
        slow = stream.select(Emitted, capacity=3, overflow="wait")
        fast = stream.select(Emitted, capacity=5)
        read: list[object] = []
        async for event in slow:
            # No further than the buffer, what has been read, and the step that is under way.
            assert len(seen) <= len(read) + 3 + 2
            read.append(event.event)
            await anyio.lowlevel.checkpoint()
        assert read == list(range(50))
        assert (slow.dropped, fast.dropped) == (0, 45)
        assert (await stream.result()).status == "completed"


async def test_the_run_waits_behind_a_piece_of_an_answer() -> None:
    text = "a tide is the rise and fall of the sea"
    async with Harness(model=ScriptedModel(text, chunk=4)) as harness, harness.stream(call_model(), "q") as stream:
        slow = stream.select(TextDelta, capacity=1, overflow="wait")
        beside = stream.select(TextDelta)
        count, heard = 0, ""
        async for event in slow:
            count, heard = count + 1, heard + event.delta
            assert len(beside._events._buffer) <= count + 1
        assert heard == text
        assert count > 3


@pytest.mark.parametrize("way", ["break", "close", "with", "drop"])
async def test_whoever_leaves_holds_nobody_up(way: str) -> None:
    async with Harness() as harness, harness.stream(each(one, concurrency=1), range(50)) as stream:
        if way == "break":
            async for _ in stream.select(Emitted, capacity=2, overflow="wait"):
                break
        elif way == "close":
            selection = stream.select(Emitted, capacity=2, overflow="wait")
            await anext(selection)
            await selection.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(selection)
        elif way == "with":
            async with stream.select(Emitted, capacity=2, overflow="wait") as selection:
                await anext(selection)
        else:
            stream.select(Emitted, capacity=2, overflow="wait")
        gc.collect()
        assert (await stream.result()).value == list(range(50))


@pytest.mark.parametrize("kind", ["abort", "interrupt"])
async def test_a_run_that_waits_for_a_reader_can_be_stopped(kind: str) -> None:
    async with Harness() as harness, harness.stream(each(one, concurrency=1), range(50)) as stream:
        slow = stream.select(Emitted, capacity=2, overflow="wait")
        await anext(slow)
        await anyio.wait_all_tasks_blocked()
        getattr(stream, kind)("enough")
        result = await stream.result()
    assert (result.status, result.reason) == ({"abort": "aborted", "interrupt": "interrupted"}[kind], "enough")
    # What was there before can still be read.
    assert len(await read(slow)) >= 2


async def test_leaving_the_stream_ends_a_run_that_waits() -> None:
    before = tasks()
    async with Harness() as harness:
        async with harness.stream(each(one, concurrency=1), range(50)) as stream:
            slow = stream.select(Emitted, capacity=2, overflow="wait")
            await anext(slow)
            await anyio.wait_all_tasks_blocked()
        assert len(await read(slow)) <= 4
    assert await left_over(before) == set()


async def test_a_shutdown_ends_a_run_that_waits() -> None:
    async with Harness() as harness, harness.stream(each(one, concurrency=1), range(50)) as stream:
        slow = stream.select(Emitted, capacity=2, overflow="wait")
        await anext(slow)
        await anyio.wait_all_tasks_blocked()
        await harness.shutdown(timeout=0.01)
        assert (await stream.result()).status == "interrupted"


@pytest.mark.parametrize("options", [{"capacity": 0}, {"overflow": "block"}])
async def test_what_no_buffer_can_be(options: Any) -> None:
    async with Harness() as harness, harness.stream(one, 1) as stream:
        with pytest.raises(ConfigError) as caught:
            stream.select(**options)
        await stream.result()
    assert caught.value.code == "stream"


async def test_listening_to_a_run_that_is_over() -> None:
    async with Harness() as harness, harness.stream(one, 1) as stream:
        await stream.result()
        assert await read(stream.select()) == []


async def test_memory_is_bounded_without_a_reader() -> None:
    alive: list[weakref.ref[Any]] = []

    class Big:
        pass

    @step
    async def flood(count: int, ctx: Context) -> None:
        for number in range(count):
            event = Big()
            if number % 100 == 0:
                alive.append(weakref.ref(event))
            ctx.emit(event)

    async with Harness() as harness, harness.stream(flood, 30_000) as stream:
        stream.select(Emitted)
        await stream.result()
        gc.collect()
        # What nobody reads is kept for as long as there is room: of 300 that were looked at the latest 100.
        assert sum(ref() is not None for ref in alive) <= 101


async def test_a_bus_is_quiet_again_when_the_last_has_left() -> None:
    bus = Bus()
    first, second = Selection(bus), Selection(bus)
    listening = [bus.active]
    for _ in range(2):
        await first.aclose()
        listening.append(bus.active)
    assert listening == [True] * 3
    bus.publish(RunStarted((), "r"))
    assert len(second._events._buffer) == 1
    del second
    gc.collect()
    bus.close()
    late = Selection(bus)
    listening = [bus.active]
    assert listening == [False]
    assert await read(late) == []


async def test_a_subscription_takes_nothing_once_it_is_closed() -> None:
    events = Subscription(2, waits=True)
    for name in "abc":
        events.put(RunStarted((), name))
    full = [events.is_full]
    events.close()
    full.append(events.is_full)
    assert full == [True, False]
    events.put(RunStarted((), "d"))
    found: list[Event] = await read(events)
    assert [event.run_id for event in found if isinstance(event, RunStarted)] == ["a", "b", "c"]


# ------------------------------------------------------------------------------------------------ reasoning, snapshots


def thought(text: str) -> Reasoning:
    return Reasoning(content=(OutputText(text=text),))


async def test_reasoning_piece_by_piece() -> None:
    model = ScriptedModel([thought("let me see"), Message.assistant("42")], chunk=4)
    async with Harness(model=model) as harness, harness.stream(call_model(), "q") as stream:
        await stream.result()
        assert "".join(await read(stream.reasoning)) == "let me see"
        assert "".join(await read(stream.text)) == "42"


def told(snapshot: ItemSnapshot) -> tuple[str, str]:
    item = snapshot.item
    return snapshot.state, item.text if isinstance(item, Message) else type(item).__name__


async def test_items_while_they_grow() -> None:
    model = ScriptedModel([thought("hm"), Message.assistant("the sea")], chunk=3)
    async with Harness(model=model) as harness, harness.stream(say >> call_model(), "q") as stream:
        snapshots: list[ItemSnapshot] = await read(stream.snapshots())
        result = await stream.result()
    by_key: dict[tuple[str, ...], list[ItemSnapshot]] = {}
    for snapshot in snapshots:
        by_key.setdefault(snapshot.key, []).append(snapshot)
    message = next(found for found in by_key.values() if isinstance(found[0].item, Message) and len(found) > 1)
    assert [told(each) for each in message[:-1]] == [("grows", "the"), ("grows", "the se"), ("grows", "the sea")]
    assert all(each.item.status == "in_progress" for each in message[:-1])
    assert told(message[-1]) == ("committed", "the sea")
    assert message[-1].item in list(result.items)
    # At last there is what the conversation holds.
    assert [found[-1].item for found in by_key.values() if found[-1].state == "committed"] != []
    assert {found[-1].item.id for found in by_key.values()} == {item.id for item in result.items}
    assert all(found[-1].state == "committed" for found in by_key.values())


async def test_a_call_that_fails_voids_what_has_grown() -> None:
    script = ScriptedModel(Unfinished("half an ans", ModelStreamError("cut", model="m")), "whole", chunk=4)
    model = RetryModel(script, attempts=2, initial=0.0)
    async with Harness(model=model) as harness, harness.stream(call_model(), "q") as stream:
        found = [told(each) for each in await read(stream.snapshots()) if isinstance(each.item, Message)]
        await stream.result()
    void = found.index(("void", "half an ans"))
    assert [state for state, _ in found[:void]].count("grows") >= 1
    assert found[-1] == ("committed", "whole")


# ------------------------------------------------------------------------------------------------------- partial output


class Port(BaseModel):
    name: str
    depth: int | None = None
    notes: list[str] = []


async def test_typed_output_while_it_comes_in() -> None:
    answer = '{"name": "Brest", "depth": 11, "notes": ["deep", "old"]}'
    agent = call_model(output=Port)
    async with Harness(model=ScriptedModel(answer, chunk=7)) as harness, harness.stream(agent, "q") as stream:
        found = await read(stream.partial(Port))
        result = await stream.result()
    assert found[-1] == result.value == Port(name="Brest", depth=11, notes=["deep", "old"])
    assert all(isinstance(each, Port) for each in found)
    assert found[0].name in "Brest"
    assert found[0] != found[-1]
    # Each is more than the one before.
    assert len({repr(each) for each in found}) == len(found)


async def test_a_list_while_it_comes_in() -> None:
    agent = call_model(output=list[str])
    model = ScriptedModel('{"value": ["one", "two", "three"]}', chunk=5)
    async with Harness(model=model) as harness, harness.stream(agent, "q") as stream:
        found = await read(stream.partial(list[str]))
        result = await stream.result()
    assert found[-1] == result.value == ["one", "two", "three"]
    assert len(found) > 2
    assert all(each[:1] == ["one"][: len(each)] or each[0] in "one" for each in found)


async def test_answers_of_another_type_are_passed_over() -> None:
    flow = call_model() >> call_model(output=Port)
    model = ScriptedModel("no JSON at all", '{"name": "Brest"}')
    async with Harness(model=model) as harness, harness.stream(flow, "q") as stream:
        assert await read(stream.partial(Port)) == [Port(name="Brest")]
        await stream.result()


async def test_a_type_without_a_schema_is_refused() -> None:
    async with Harness() as harness, harness.stream(one, 1) as stream:
        with pytest.raises(ConfigError):
            stream.partial(type(lambda: None))
        await stream.result()
