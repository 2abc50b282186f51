"""What a listener makes of a run's events, whoever keeps up, and whoever leaves."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from attrs import evolve
from pydantic import BaseModel
from typing_extensions import TypedDict

from noetic_py import (
    Budget,
    Context,
    Emitted,
    Event,
    FunctionCall,
    Harness,
    Memory,
    Message,
    Model,
    ModelRequest,
    ModelResponse,
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
    tool,
    until,
)
from noetic_py.core import events as events_module
from noetic_py.core.events import Backlog, BudgetWarning, Bus, ItemsAppended, RunStarted, Subscription
from noetic_py.core.items import OutputText
from noetic_py.core.selections import Choice, ItemSnapshot, Selection
from noetic_py.errors import ConfigError, ModelStreamError
from noetic_py.memory import Guide, MemoryLayer
from noetic_py.models import ModelStream
from noetic_py.models.model import ModelEvent, TextPart
from noetic_py.models.wrapper import RetryModel
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
            assert len(beside._entries._buffer) <= count + 1
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


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ((), {"capacity": 0}),
        ((), {"overflow": "block"}),
        ((), {"path": "agent"}),
        ((str,), {}),
        ((TextDelta, "ToolStarted"), {}),
    ],
)
async def test_what_nobody_can_want(kinds: Any, options: Any) -> None:
    async with Harness() as harness, harness.stream(one, 1) as stream:
        with pytest.raises(ConfigError) as caught:
            stream.select(*kinds, **options)
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


class Asked(Subscription):
    """Counts how often somebody asks whether it is full."""

    asked = 0

    @property
    def is_full(self) -> bool:
        self.asked += 1
        return super().is_full


async def test_of_many_who_wait_one_is_let_in_at_a_time() -> None:
    """In the order in which they came, and without waking all the others for each of them."""
    many = 200
    events = Asked(1, waits=True)
    events.put(RunStarted((), "first"))
    order: list[int] = []

    async def want(number: int) -> None:
        await events.wait_for_space("r")
        order.append(number)
        events.put(RunStarted((), str(number)))

    async with anyio.create_task_group() as group:
        for number in range(many):
            group.start_soon(want, number)
        await anyio.wait_all_tasks_blocked()
        events.asked = 0
        for _ in range(many + 1):
            await anext(events)
    assert sorted(order) == list(range(many))
    assert events.asked < many * 10


@pytest.mark.parametrize("told", [True, False], ids=["told", "not-told"])
async def test_who_stops_waiting_leaves_its_turn_to_the_next(told: bool) -> None:
    events = Subscription(1, waits=True)
    events.put(RunStarted((), "first"))
    passed: list[str] = []
    scopes: dict[str, anyio.CancelScope] = {}

    async def want(name: str) -> None:
        with anyio.CancelScope() as scopes[name]:
            await events.wait_for_space("r")
            await anyio.lowlevel.checkpoint()
            passed.append(name)

    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(want, name)
            await anyio.wait_all_tasks_blocked()
        for told_now in (told, not told):
            if told_now:
                await anext(events)
            else:
                scopes["a"].cancel()
    assert passed == ["b"]


async def test_a_run_that_nobody_reads_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("noetic_py.core.events.PATIENCE", 0.0)
    async with Harness() as harness, harness.stream(each(one, concurrency=1), range(50), run_id="r1") as stream:
        async with stream.select(Emitted, capacity=2, overflow="wait"):
            while not caplog.records:
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert not stream.done
        assert (await stream.result()).value == list(range(50))
    (record,) = caplog.records
    assert "run r1 has waited" in record.getMessage()
    assert "overflow='wait'" in record.getMessage()


async def test_a_reader_that_another_thread_forgets_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the garbage collector does, which runs wherever there is something to collect."""
    monkeypatch.setattr("noetic_py.core.events.PATIENCE", 0.001)
    async with Harness() as harness, harness.stream(each(one, concurrency=1), range(50)) as stream:
        held = [stream.select(Emitted, capacity=2, overflow="wait")]
        await anext(held[0])
        await anyio.to_thread.run_sync(held.clear)
        with anyio.fail_after(10):
            assert (await stream.result()).value == list(range(50))


async def test_the_run_waits_behind_what_a_tool_yields() -> None:
    yielded: list[int] = []

    @tool
    async def count() -> AsyncIterator[int]:
        """Count."""
        for number in range(50):
            yielded.append(number)
            yield number

    agent = loop(call_model(tools=[count]), until=until.no_tool_calls())
    model = ScriptedModel(FunctionCall(name="count"), "done")
    async with Harness(model=model) as harness, harness.stream(agent, "q") as stream:
        seen = 0
        async for event in stream.select(Emitted, capacity=2, overflow="wait"):
            assert len(yielded) <= seen + 2 + 2
            assert event.event == seen
            seen += 1
    assert seen == 50


async def test_events_of_budgets_say_where_they_come_from() -> None:
    flow = spawn(each(one, concurrency=1), id="child", budget=Budget(steps=100, warn_at=0.05))
    async with Harness() as harness, harness.stream(flow, range(10)) as stream:
        (warning,) = await read(stream.select(BudgetWarning))
        await stream.result()
    assert warning.path == ("child",)


async def test_a_bus_is_quiet_again_when_the_last_has_left() -> None:
    bus = Bus()
    first, second = Selection[Event](bus, Choice()), Selection[Event](bus, Choice())
    listening = [bus.active]
    for _ in range(2):
        await first.aclose()
        listening.append(bus.active)
    assert listening == [True] * 3
    bus.publish(RunStarted((), "r"))
    assert len(second._entries._buffer) == 1
    del second
    gc.collect()
    bus.close()
    late = Selection[Event](bus, Choice())
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


async def test_snapshots_of_an_item_have_its_id() -> None:
    first, second = Message.assistant("the rise"), Message.assistant("and the fall")
    model = ScriptedModel([first, second], chunk=3)
    async with Harness(model=model) as harness, harness.stream(call_model(), "q") as stream:
        found: list[ItemSnapshot] = [each for each in await read(stream.snapshots()) if each.branch == "call_model"]
        await stream.result()
    grown = [each for each in found if each.item.id in (first.id, second.id)]
    keys = {each.item.id: each.key for each in grown}
    assert len(set(keys.values())) == 2
    assert all(each.key == keys[each.item.id] for each in grown)
    assert [told(each) for each in grown if each.state == "committed"] == [
        ("committed", "the rise"),
        ("committed", "and the fall"),
    ]
    assert [told(each)[1] for each in grown if each.state == "grows" and each.item.id == second.id] == [
        "and",
        "and th",
        "and the f",
        "and the fall",
    ]


class Changed:
    """A model whose stream is another one's, changed."""

    def __init__(self, model: Model, change: Callable[[ModelEvent], ModelEvent | None]) -> None:
        self._model = model
        self._change = change

    @property
    def name(self) -> str:
        return self._model.name

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        async with self._model.respond(request) as stream:
            yield ChangedStream(stream, self._change)


class ChangedStream:
    def __init__(self, stream: ModelStream, change: Callable[[ModelEvent], ModelEvent | None]) -> None:
        self._stream = stream
        self._change = change

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        async for event in self._stream:
            changed = self._change(event)
            if changed is not None:
                yield changed

    async def response(self) -> ModelResponse:
        return await self._stream.response()


def nameless(event: ModelEvent) -> ModelEvent:
    """Nobody says which item a piece belongs to."""
    return evolve(event, item_id=None) if isinstance(event, TextPart) else event


def nothing(_: ModelEvent) -> None:
    """The answer comes at once."""


async def test_pieces_without_an_id_are_of_the_first_item_of_their_kind() -> None:
    model = Changed(ScriptedModel("the rise", chunk=4), nameless)
    async with Harness(model=model) as harness, harness.stream(call_model(), "q") as stream:
        found: list[ItemSnapshot] = await read(stream.snapshots(path=("call_model", "answer")))
        await stream.result()
    assert [told(each) for each in found] == [("grows", "the "), ("grows", "the rise"), ("committed", "the rise")]
    assert len({each.key for each in found}) == 1
    assert len({each.item.id for each in found[:2]}) == 1


async def test_a_reader_of_snapshots_who_is_late_sees_no_holes() -> None:
    text = "a tide is the rise and fall of the sea"
    async with Harness(model=ScriptedModel(text, chunk=2)) as harness, harness.stream(call_model(), "q") as stream:
        path = ("call_model", "answer")
        late = [stream.snapshots(path=path, capacity=capacity) for capacity in (1, 2, 5)]
        await stream.result()
        for snapshots in late:
            found = await read(snapshots)
            assert told(found[-1]) == ("committed", text)
            assert all(text.startswith(told(each)[1]) for each in found)
            assert snapshots.dropped > 10


class Picky(MemoryLayer):
    """Takes an answer only when it is polite."""

    async def after_model_call(self, response: ModelResponse) -> Guide | None:
        return (
            None if any("please" in item.text for item in response.items if isinstance(item, Message)) else Guide("!")
        )


class PickyMemory(Memory):
    picky: Picky = Picky()


async def test_an_answer_that_is_not_taken_is_void() -> None:
    model = ScriptedModel("go away", "sit down, please", chunk=100)
    agent = loop(call_model(), until=until.no_tool_calls())
    async with Harness(model=model, memory=PickyMemory()) as harness, harness.stream(agent, "q") as stream:
        found = [each for each in await read(stream.snapshots()) if isinstance(each.item, Message)]
        await stream.result()
    states = {each.key: each.state for each in found}
    said = [(*told(each), states[each.key]) for each in found if each.item.role == "assistant"]
    assert said == [
        ("grows", "go away", "discarded"),
        ("discarded", "go away", "discarded"),
        ("grows", "sit down, please", "committed"),
        ("committed", "sit down, please", "committed"),
    ]


async def test_a_call_that_fails_voids_what_has_grown() -> None:
    script = ScriptedModel(Unfinished("half an ans", ModelStreamError("cut", model="m")), "whole", chunk=4)
    model = RetryModel(script, attempts=2, initial=0.0)
    async with Harness(model=model) as harness, harness.stream(call_model(), "q") as stream:
        found = [told(each) for each in await read(stream.snapshots()) if isinstance(each.item, Message)]
        await stream.result()
    void = found.index(("discarded", "half an ans"))
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


async def test_a_number_is_shown_once_it_is_whole() -> None:
    answer = '{"name": "Pier 12", "depth": 119, "notes": ["7 \\" 8"]}'
    agent = call_model(output=Port)
    async with Harness(model=ScriptedModel(answer, chunk=1)) as harness, harness.stream(agent, "q") as stream:
        found = await read(stream.partial(Port))
        await stream.result()
    assert {each.depth for each in found} == {None, 119}
    # A text that ends in one may grow.
    assert [each.name for each in found][:7] == ["", "P", "Pi", "Pie", "Pier", "Pier ", "Pier 1"]
    assert found[-1].notes == ['7 " 8']


class Loose(TypedDict, total=False):
    name: str
    depth: int


async def test_keys_that_may_be_missing_come_one_by_one() -> None:
    agent = call_model(output=Loose)
    answer = '{"name": "Brest", "depth": 11}'
    async with Harness(model=ScriptedModel(answer, chunk=100)) as harness, harness.stream(agent, "q") as stream:
        assert await read(stream.partial(Loose)) == [{"name": "Brest", "depth": 11}]
    async with Harness(model=ScriptedModel(answer, chunk=9)) as harness, harness.stream(agent, "q") as stream:
        assert await read(stream.partial(Loose)) == [{}, {"name": "Brest"}, {"name": "Brest", "depth": 11}]


async def test_a_late_reader_of_typed_output_reads_no_holes() -> None:
    answer = json.dumps({"name": "Brest", "notes": [str(number) for number in range(20)]})
    agent = call_model(output=Port)
    async with Harness(model=ScriptedModel(answer, chunk=5)) as harness, harness.stream(agent, "q") as stream:
        late = stream.partial(Port, capacity=4)
        value = (await stream.result()).value
        found = await read(late)
    assert late.dropped > 10
    assert found[-1] == value
    assert all(value.notes[: len(each.notes) - 1] == each.notes[:-1] for each in found)


async def test_typed_output_ends_with_what_is_committed() -> None:
    """Of a model that does not stream too."""
    model = Changed(ScriptedModel('{"name": "Brest"}'), nothing)
    async with Harness(model=model) as harness, harness.stream(call_model(output=Port), "q") as stream:
        assert await read(stream.partial(Port)) == [Port(name="Brest")]
        await stream.result()


async def test_typed_output_begins_anew_after_an_answer_that_does_not_fit() -> None:
    model = ScriptedModel('{"name": "Brest", "depth": "deep"}', '{"name": "Brest", "depth": 11}', chunk=15)
    agent = call_model(output=Port, output_retries=1)
    async with Harness(model=model) as harness, harness.stream(agent, "q") as stream:
        found = await read(stream.partial(Port))
        result = await stream.result()
    assert found[-1] == result.value
    assert found[0] == found[-2] == Port(name="Brest")


async def test_leaving_typed_output_and_snapshots_holds_nobody_up() -> None:
    model = ScriptedModel("one two three four five", '{"name": "Brest", "notes": ["deep", "old"]}', chunk=3)
    flow = call_model() >> call_model(output=Port)
    async with Harness(model=model) as harness, harness.stream(flow, "q") as stream:
        async with stream.snapshots(capacity=1, overflow="wait") as snapshots:
            await anext(snapshots)
        partials = stream.partial(Port, capacity=1, overflow="wait")
        await anext(partials)
        await partials.aclose()
        assert (await stream.result()).value.name == "Brest"


async def test_typed_output_in_a_fence() -> None:
    answer = '```json\n{"name": "Port of Brest", "depth": 11}\n```\n'
    async with (
        Harness(model=ScriptedModel(answer, chunk=1)) as harness,
        harness.stream(call_model(output=Port), "q") as stream,
    ):
        found = await read(stream.partial(Port))
        await stream.result()
    assert [each.name for each in found[:6]] == ["", "P", "Po", "Por", "Port", "Port "]
    assert found[-1] == Port(name="Port of Brest", depth=11)
    assert len({repr(each) for each in found}) == len(found)


# ---------------------------------------------------------------------------------------------------- bytes


@step
async def shout(count: int, ctx: Context) -> str:
    for number in range(count):
        ctx.emit(f"{number:03}" + "x" * 997)
    return "done"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MAX_HELD", 20_000)


@pytest.mark.usefixtures("small")
async def test_unread_events_are_bounded_in_bytes() -> None:
    async with Harness() as harness, harness.stream(shout, 100) as stream:
        heard = stream.select(Emitted)
        large = stream.select(Emitted, capacity=1_000_000)
        few = stream.select(Emitted, capacity=3)
        whole = stream.select(Emitted, overflow="wait")
        said: list[Any] = []
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                said.extend([event.event async for event in whole])

            tasks.start_soon(read)

        async def newest(reader: AsyncIterator[Event]) -> int:
            kept = [event.event for event in [event async for event in reader] if isinstance(event, Emitted)]
            assert 15 <= len(kept) <= 20
            assert kept == said[-len(kept) :]
            return len(kept)

        for reader in (heard, large):
            assert await newest(reader) == 100 - reader.dropped
        # The stream itself also holds, and drops, the events of the run.
        assert await newest(stream.events) >= 100 - stream.dropped
        assert [event.event async for event in few] == said[-3:]
        assert (len(said), whole.dropped, few.dropped) == (100, 0, 97)


@pytest.mark.usefixtures("small")
async def test_a_run_waits_for_the_bytes_of_its_reader() -> None:
    async with Harness() as harness, harness.stream(each(shout, concurrency=1), [10] * 10) as stream:
        whole = stream.select(Emitted, overflow="wait")
        seen = 0
        async for _ in whole:
            seen += 1
            # What is sent between two places at which the run waits, which is one step, may come on top.
            assert len(whole._entries._buffer) <= 20 + 10
    assert (seen, whole.dropped) == (100, 0)


@pytest.mark.usefixtures("small")
async def test_one_event_may_have_any_size() -> None:
    @step
    async def once(text: str, ctx: Context) -> str:
        ctx.emit(text)
        return text

    async with Harness() as harness, harness.stream(once, "x" * 50_000) as stream:
        heard = stream.select(Emitted)
        patient = stream.select(Emitted, overflow="wait")
        assert [len(str(event.event)) async for event in patient] == [50_000]
        assert [len(str(event.event)) async for event in heard] == [50_000]
        assert heard.dropped == 0


@pytest.mark.usefixtures("small")
async def test_late_snapshots_are_bounded_in_bytes_and_whole() -> None:
    model = ScriptedModel("x" * 100_000, chunk=1000)
    async with Harness(model=model) as harness, harness.stream(call_model(), "say") as stream:
        late = stream.snapshots()
        pieces = stream.select(TextDelta)
        await stream.result()
        shown = [snapshot async for snapshot in late]
        assert 0 < len([piece async for piece in pieces]) <= 20
    assert late.dropped > 50
    item = shown[-1].item
    assert isinstance(item, Message)
    assert item.text == "x" * 100_000


def test_a_view_counts_without_the_conversation() -> None:
    text = Message.user("x" * 100_000)
    assert ItemsAppended(("a",), (text,)).size > 100_000
    assert TextDelta(("a",), "x" * 5000).size < 6000


def test_entries_leave_a_backlog_in_their_order() -> None:
    backlog = Backlog[str](3)
    for entry in "abcd":
        backlog.put(entry, 10)
    assert (list(backlog), len(backlog), backlog.dropped) == ([("b", 10), ("c", 10), ("d", 10)], 3, 1)
    assert [backlog.take() for _ in range(3)] == ["b", "c", "d"]
    assert not backlog.is_large
    nothing = Backlog[str](0)
    nothing.put("a", 1)
    assert (len(nothing), nothing.dropped) == (0, 1)
