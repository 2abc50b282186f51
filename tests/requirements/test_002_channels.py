"""Channels between steps and with the outside, loops that wait for messages, schedules, and work beside the flow."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from attrs import define
from pydantic import BaseModel

from noetic_py import (
    Budget,
    Channel,
    Context,
    Harness,
    Message,
    Step,
    call_model,
    every,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.context.detached import DetachedRun
from noetic_py.core.events import ChannelDropped, LoopWaiting
from noetic_py.errors import (
    Aborted,
    ChannelClosed,
    ChannelTimeout,
    ChannelValueInvalid,
    ConfigError,
    NoeticWarning,
    RunNotFound,
    StepFailed,
    StepTimeout,
)
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio

JOBS = Channel("jobs", str)
LINE = Channel("line", int, external=True)
LEVEL = Channel("level", int, mode="value", external=True)
NEWS = Channel("news", int, mode="topic", external=True)
MODES = pytest.mark.parametrize("channel", [LINE, LEVEL, NEWS], ids=lambda channel: channel.mode)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await checkpoint()


async def run(flow: Any, input: object = 0, **options: Any) -> Any:
    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            return (await harness.run(flow, input, **options)).value


# ------------------------------------------------------------------------------------------------ receiving and sending


@pytest.mark.clause("002-20a")
@MODES
async def test_002_20_recv_waits_for_the_next_value(channel: Channel[int]) -> None:
    received: list[int] = []

    @step
    async def receive(n: int, ctx: Context) -> int:
        received.append(await ctx.recv(channel))
        return received[0]

    @step
    async def send(n: int, ctx: Context) -> None:
        await turns()
        assert received == []
        await ctx.send(channel, 7)

    assert await run(parallel([receive, send])) == [7, None]


@pytest.mark.clause("002-20b", "002-52f")
@MODES
async def test_002_20_recv_gives_up_after_its_timeout(channel: Channel[int]) -> None:
    @step
    async def receive(n: int, ctx: Context) -> None:
        await ctx.recv(channel, timeout=0.001)

    with pytest.raises(ChannelTimeout) as caught:
        await run(receive)
    assert caught.value.path == ("receive",)


@pytest.mark.clause("002-20c", "002-21d")
@pytest.mark.parametrize("method", [Context.recv, Context.send], ids=["recv", "send"])
def test_002_20_the_timeout_is_30_seconds_unless_told(method: Callable[..., object]) -> None:
    assert inspect.signature(method).parameters["timeout"].default == 30.0


@pytest.mark.clause("002-20d")
async def test_002_20_no_timeout_waits_for_ever_and_warns() -> None:
    @step
    async def receive(n: int, ctx: Context) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = await ctx.recv(LINE, timeout=None)
        assert [each.category for each in caught] == [NoeticWarning]
        return value

    @step
    async def send(n: int, ctx: Context) -> None:
        await turns(50)
        await ctx.send(LINE, 3)

    assert await run(parallel([receive, send])) == [3, None]


@pytest.mark.clause("002-20e")
@MODES
async def test_002_20_recv_ends_at_once_when_the_execution_is_aborted(channel: Channel[int]) -> None:
    ended = anyio.Event()

    @step
    async def receive(n: int, ctx: Context) -> None:
        try:
            await ctx.recv(channel, timeout=float("inf"))
        finally:
            ended.set()

    async with Harness(plugins=()) as harness:
        handle = harness.start(receive, 0)
        await turns()
        handle.abort("enough")
        await turns()
        assert ended.is_set()
        assert (await handle.result()).status == "aborted"


@pytest.mark.clause("002-21a")
async def test_002_21_what_is_sent_is_checked() -> None:
    wrong: Any = "not a number"

    @step
    async def send(n: int, ctx: Context) -> None:
        await ctx.send(LINE, 1)
        with pytest.raises(ChannelValueInvalid) as caught:
            await ctx.send(LINE, wrong)
        assert (caught.value.channel, caught.value.path) == ("line", ("send",))
        assert [ctx.try_recv(LINE), ctx.try_recv(LINE)] == [1, None]

    await run(send)


@pytest.mark.clause("002-21b")
async def test_002_21_a_full_queue_parks_its_senders_first_come_first_served() -> None:
    full = Channel("full", int, capacity=1)
    order: list[int] = []

    def sender(value: int) -> Step[int, None, Any, Any]:
        @step(id=f"send{value}")
        async def send(n: int, ctx: Context) -> None:
            await turns(10 * value)
            await ctx.send(full, value)
            order.append(value)

        return send

    @step
    async def receive(n: int, ctx: Context) -> list[int]:
        await turns(60)
        assert order == [0]
        return [await ctx.recv(full) for _ in range(4)]

    assert (await run(parallel([receive, *map(sender, range(4))])))[0] == [0, 1, 2, 3]
    assert order == [0, 1, 2, 3]


@pytest.mark.clause("002-21c")
async def test_002_21_a_parked_sender_gives_up_after_its_timeout() -> None:
    full = Channel("full", int, capacity=1)

    @step
    async def send(n: int, ctx: Context) -> list[int | None]:
        await ctx.send(full, 1)
        with pytest.raises(ChannelTimeout):
            await ctx.send(full, 2, timeout=0.001)
        return [ctx.try_recv(full), ctx.try_recv(full)]

    assert await run(send) == [1, None]


@pytest.mark.clause("002-22a", "002-22b")
@MODES
async def test_002_22_try_recv_neither_waits_nor_raises(channel: Channel[int]) -> None:
    @step
    async def look(n: int, ctx: Context) -> list[int | None]:
        before = ctx.try_recv(channel)
        await ctx.send(channel, 5)
        return [before, ctx.try_recv(channel), ctx.try_recv(channel)]

    expected = {"queue": [None, 5, None], "value": [None, 5, 5], "topic": [None, None, None]}
    assert await run(look) == expected[channel.mode]


@pytest.mark.clause("002-23a")
async def test_002_23_a_value_is_the_last_one_written_and_reading_leaves_it_there() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await ctx.send(LEVEL, 1)
        await ctx.send(LEVEL, 2)
        return [await ctx.recv(LEVEL), await ctx.recv(LEVEL)]

    assert await run(body) == [2, 2]


@pytest.mark.clause("002-23b")
async def test_002_23_a_queue_is_first_in_first_out_and_bounded() -> None:
    assert Channel("q", int).mode == "queue"
    assert Channel("q", int).capacity == 1000

    @step
    async def body(n: int, ctx: Context) -> list[int]:
        for value in range(1000):
            await ctx.send(LINE, value, timeout=0)
        with pytest.raises(ChannelTimeout):
            await ctx.send(LINE, 1000, timeout=0)
        return [await ctx.recv(LINE) for _ in range(1000)]

    assert await run(body) == list(range(1000))


@pytest.mark.clause("002-23c")
async def test_002_23_a_topic_reaches_everybody_who_listens_and_nobody_else() -> None:
    ready = 0

    @step
    async def receive(n: int, ctx: Context) -> list[int]:
        nonlocal ready
        with pytest.raises(ChannelTimeout):
            await ctx.recv(NEWS, timeout=0)
        ready += 1
        return [await ctx.recv(NEWS), await ctx.recv(NEWS)]

    @step
    async def send(n: int, ctx: Context) -> None:
        while ready < 3:
            await checkpoint()
        await ctx.send(NEWS, 1)
        await ctx.send(NEWS, 2)

    @step
    async def early(n: int, ctx: Context) -> int:
        await ctx.send(NEWS, 0)
        return n

    flow: Step[int, Any, Any, Any] = early >> parallel([receive, receive, receive, send])
    assert await run(flow) == [[1, 2], [1, 2], [1, 2], None]


class Job(BaseModel):
    name: str


@dataclass
class Point:
    x: int


@define
class Pair:
    left: int


SCHEMAS: list[tuple[Any, object, object]] = [
    (str, "a", 1),
    (list[int], [1], ["1"]),
    (dict[str, int], {"a": 1}, {"a": "1"}),
    (int | None, None, "1"),
    (Job, Job(name="a"), {"name": "a"}),
    (Point, Point(1), {"x": 1}),
    (Pair, Pair(1), {"left": 1}),
]


@pytest.mark.clause("002-23d")
@pytest.mark.parametrize(("schema", "value", "wrong"), SCHEMAS)
async def test_002_23_a_channel_carries_any_type_that_pydantic_can_check(
    schema: Any, value: object, wrong: object
) -> None:
    channel: Channel[Any] = Channel("c", schema)

    @step
    async def body(n: int, ctx: Context) -> object:
        with pytest.raises(ChannelValueInvalid):
            await ctx.send(channel, wrong)
        await ctx.send(channel, value)
        return await ctx.recv(channel)

    assert await run(body) == value


# ---------------------------------------------------------------------------------------------------------- the outside


@step
async def receive_line(n: int, ctx: Context) -> int:
    return await ctx.recv(LINE, timeout=float("inf"))


@pytest.mark.clause("002-24a")
async def test_002_24_a_handle_is_open_before_the_first_step() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(receive_line, 0)
        harness.channel_handle(LINE, handle.run_id).send(4)
        assert (await handle.result()).value == 4


@pytest.mark.clause("002-24f")
async def test_002_24_only_channels_that_say_so_and_runs_that_go_on() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(receive_line, 0)
        with pytest.raises(ConfigError):
            harness.channel_handle(JOBS, handle.run_id)
        with pytest.raises(RunNotFound):
            harness.channel_handle(LINE, "another run")
        handle.abort("enough")


@pytest.mark.clause("002-24b", "002-52f")
async def test_002_24_a_handle_is_closed_when_the_run_ends() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(spawn(receive_line), 0)
        channel = handle.channel(LINE)
        channel.send(1)
        seen = [channel.closed]
        await handle.result()
        assert [*seen, channel.closed] == [False, True]
        with pytest.raises(ChannelClosed):
            channel.send(2)


@pytest.mark.clause("002-24c")
async def test_002_24_an_outside_sender_never_waits_and_what_is_lost_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = Channel("small", int, capacity=2, external=True)
    go = anyio.Event()

    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await go.wait()
        return [await ctx.recv(small), await ctx.recv(small)]

    caplog.set_level(logging.WARNING, "noetic_py")
    async with Harness(plugins=()) as harness, harness.stream(body, 0) as stream:
        channel = stream.channel(small)
        for value in range(5):
            channel.send(value)
        assert channel.dropped == 3
        go.set()
        dropped = [event.dropped async for event in stream.events if isinstance(event, ChannelDropped)]
        assert (await stream.result()).value == [3, 4]
    assert dropped == [1, 2, 3]
    assert len(caplog.records) == 1


@pytest.mark.clause("002-24e")
async def test_002_24_an_outside_thread_may_send() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(receive_line, 0)
        channel = handle.channel(LINE)
        thread = threading.Thread(target=lambda: channel.send(9))
        thread.start()
        assert (await handle.result()).value == 9
        await anyio.to_thread.run_sync(thread.join)


@pytest.mark.clause("002-24d")
@MODES
async def test_002_24_outside_readers_get_a_stream(channel: Channel[int]) -> None:
    ready = anyio.Event()

    @step
    async def send(n: int, ctx: Context) -> None:
        await ready.wait()
        for value in range(3):
            await ctx.send(channel, value)
            await turns()

    async with Harness(plugins=()) as harness:
        handle = harness.start(send, 0)
        async with harness.channel_stream(channel, handle.run_id) as values:
            ready.set()
            assert [value async for value in values] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ schedules and inboxes


@pytest.mark.clause("002-40f")
async def test_002_40_a_schedule_runs_a_step_at_its_times_until_it_is_stopped() -> None:
    runtime = VirtualRuntime()
    times: list[float] = []

    @step
    async def tick(_: None, ctx: Context) -> None:
        times.append(runtime.monotonic())
        ctx.items.append(Message.user("seen"))
        assert len(ctx.items) == 1
        if len(times) == 4:
            ctx.stop_loop()

    watch = every(10.0, tick)
    assert watch.kind == "every"
    async with Harness(plugins=(), runtime=runtime) as harness:
        handle = harness.start(watch, 0)
        await runtime.advance(100)
        result = await handle.result()
    assert times == [0, 10, 20, 30]
    assert (result.status, len(result.items)) == ("completed", 0)


@pytest.mark.clause("002-40g")
@pytest.mark.parametrize("answer", ["skip", "retry", "abort"])
async def test_002_40_a_schedule_asks_what_to_do_about_a_failure(answer: Any) -> None:
    runtime = VirtualRuntime()
    times: list[float] = []

    @step
    async def tick(_: None) -> None:
        times.append(runtime.monotonic())
        if len(times) == 1:
            raise ValueError

    def decide(error: Exception, ctx: object) -> Any:
        return answer

    async with Harness(plugins=(), runtime=runtime) as harness:
        handle = harness.start(every(10.0, tick, on_error=decide), 0, on_error="result")
        await runtime.advance(10)
        handle.abort("enough")
        result = await handle.result()
    assert times == {"skip": [0, 10], "retry": [0, 0, 10], "abort": [0]}[answer]
    assert result.status == ("failed" if answer == "abort" else "aborted")


@pytest.mark.clause("002-40b")
async def test_002_40_a_schedule_nests_like_any_step() -> None:
    @step
    async def once(_: None, ctx: Context) -> None:
        ctx.stop_loop()

    @step
    async def after(_: object) -> str:
        return "after"

    watch = every(60.0, once)
    flows: list[Step[Any, str, Any, Any]] = [
        watch >> after,
        sequence(spawn(watch), after),
        parallel([watch, watch]) >> after,
        loop(watch >> after, until=until.max_rounds(2)),
        every(60.0, sequence(watch, once)) >> after,
    ]
    assert [await run(flow) for flow in flows] == ["after"] * 5


INBOX = Channel("inbox", str, external=True)


@pytest.mark.clause("002-45f")
async def test_002_45_a_loop_takes_its_inputs_from_its_inbox() -> None:
    seen: list[str] = []

    @step
    async def note(text: str) -> str:
        seen.append(text)
        return text.upper()

    @step
    async def fill(text: str, ctx: Context) -> str:
        for message in ("a", "b"):
            await ctx.send(INBOX, message)
        return text

    assert await run(fill >> loop(note, until=until.max_rounds(1), inbox=INBOX), "first") == "B"
    assert seen == ["first", "a", "b"]


@pytest.mark.clause("002-45f")
async def test_002_45_a_conversation_goes_on_with_each_message() -> None:
    model = ScriptedModel("Hello", "Fine", "Bye")
    chat = loop(call_model(), until=until.no_tool_calls(), inbox=INBOX, inbox_timeout=float("inf"))
    async with Harness(plugins=(), model=model) as harness:
        handle = harness.start(chat, "Hi")
        inbox = handle.channel(INBOX)
        left = ["How are you?", "Bye"]
        async for event in handle.stream.events:
            if isinstance(event, LoopWaiting):
                if not left:
                    break
                inbox.send(left.pop(0))
        handle.abort("the user has gone")
        result = await handle.result()
    said = [item.text for item in result.items if isinstance(item, Message)]
    assert said == ["Hi", "Hello", "How are you?", "Fine", "Bye", "Bye"]


@pytest.mark.clause("002-45g")
async def test_002_45_a_parked_loop_stops_when_nothing_comes() -> None:
    @step
    async def echo(text: str) -> str:
        return text

    async with Harness(plugins=()) as harness:
        parked = loop(echo, until=until.max_rounds(1), inbox=INBOX, inbox_timeout=0.01)
        result = await harness.run(parked, "first")
    assert (result.status, result.value, result.reason) == ("completed", "first", "max_rounds: 1 round reached")


# ------------------------------------------------------------------------------------------------- work beside the flow


@step
async def answer(question: str, ctx: Context) -> str:
    return f"{question} {await ctx.recv(LINE, timeout=float('inf'))}"


@step
async def hang(question: str) -> str:
    await anyio.sleep_forever()
    return question


@step
async def fail(question: str) -> str:
    raise ValueError(question)


@pytest.mark.clause("002-44a", "002-44b")
async def test_002_44_a_detached_spawn_is_asked_for_status_and_result() -> None:
    @step
    async def body(question: str, ctx: Context) -> list[object]:
        work = ctx.spawn_detached(answer, question)
        seen: list[object] = [work.status, work.result, work.error]
        with pytest.raises(StepTimeout):
            await work.wait(timeout=0.001)
        await ctx.send(LINE, 42)
        ended = await work.wait(timeout=5)
        return [*seen, work.status, ended.value, work.error]

    assert await run(body, "six by seven?") == ["running", None, None, "completed", "six by seven? 42", None]


@pytest.mark.clause("002-44c")
async def test_002_44_its_failure_is_asked_for_and_not_thrown_at_anybody() -> None:
    @step
    async def body(question: str, ctx: Context) -> object:
        work = ctx.spawn_detached(fail, question)
        ended = await work.wait()
        with pytest.raises(StepFailed):
            _ = ended.value
        return [work.status, type(work.error)]

    assert await run(body, "why?") == ["failed", StepFailed]


@pytest.mark.clause("002-44f")
async def test_002_44_it_can_be_stopped() -> None:
    @step
    async def body(question: str, ctx: Context) -> object:
        work = ctx.spawn_detached(hang, question)
        await turns()
        work.abort("not needed")
        ended = await work.wait()
        with pytest.raises(Aborted):
            _ = ended.value
        return [work.status, ended.reason]

    assert await run(body, "why?") == ["aborted", "not needed"]


@pytest.mark.clause("002-44d")
@pytest.mark.parametrize("end", ["completed", "aborted", "failed", "budget_exceeded"])
async def test_002_44_its_run_owns_it(end: str) -> None:
    kept: list[DetachedRun[str]] = []

    @step
    async def body(question: str, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(answer if end == "completed" else hang, question))
        if end == "aborted":
            ctx.abort("enough")
        elif end == "failed":
            raise ValueError
        elif end == "budget_exceeded":
            await hang(question, ctx)
        await ctx.send(LINE, 1)
        return question

    async with Harness(plugins=()) as harness:
        before = len(anyio.get_running_tasks())
        budget = Budget(steps=1) if end == "budget_exceeded" else Budget(steps=100)
        result = await harness.run(body, "why?", on_error="result", budget=budget)
        # The run is over, and so is everything that it has started.
        assert kept[0].status == ("completed" if end == "completed" else "cancelled")
        await turns()
        assert len(anyio.get_running_tasks()) == before
    assert result.status == end


@pytest.mark.clause("002-44e")
async def test_002_44_or_the_harness_owns_it_when_asked() -> None:
    kept: list[DetachedRun[str]] = []

    @step
    async def body(question: str, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(answer, question, owner="harness"))
        return question

    async with Harness(plugins=()) as harness:
        result = await harness.run(body, "why?")
        assert (result.status, kept[0].status) == ("completed", "running")
        kept[0].channel(LINE).send(2)
    # Leaving the harness waits for it.
    assert kept[0].result is not None
    assert kept[0].result.value == "why? 2"


@pytest.mark.clause("002-44e")
async def test_002_44_without_an_owner_nothing_is_started() -> None:
    @step
    async def body(question: str, ctx: Context) -> None:
        ctx.spawn_detached(answer, question)

    with pytest.raises(ConfigError) as caught:
        await Harness(plugins=()).run(body, "why?")
    assert caught.value.code == "harness-not-entered"
