from __future__ import annotations

import dataclasses
import logging
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from attrs import define
from pydantic import BaseModel, ConfigDict

from noetic_py import Channel, Context, Harness, Retry, call_tool, parallel, step, tool
from noetic_py.channels import Board, ChannelHandle, log_lost
from noetic_py.core.events import ChannelDropped, StepCommitted
from noetic_py.errors import (
    ChannelClosed,
    ChannelTimeout,
    ChannelValueInvalid,
    ConcurrentStepCall,
    ConfigError,
    NoeticError,
    NoeticWarning,
    RunNotFound,
    WrongThread,
)

pytestmark = pytest.mark.anyio

JOBS = Channel("jobs", str)
NUMBERS = Channel("numbers", int)
LINE = Channel("line", int, external=True)
LEVEL = Channel("level", int, mode="value", external=True)
NEWS = Channel("news", int, mode="topic", external=True)


async def run(flow: Any, input: object = 0, **options: Any) -> Any:
    async with Harness(plugins=()) as harness:
        return (await harness.run(flow, input, **options)).value


async def failure(flow: Any, input: object = 0) -> NoeticError:
    with pytest.raises(NoeticError) as caught:
        await run(flow, input)
    return caught.value


async def turns(count: int = 5) -> None:
    """Let the other tasks go on."""
    for _ in range(count):
        await checkpoint()


async def drain(ctx: Context, channel: Channel[Any]) -> list[Any]:
    found: list[Any] = []
    while (value := ctx.try_recv(channel)) is not None:
        found.append(value)
    return found


# ---------------------------------------------------------------------------------------------------------- declaration


def test_a_declaration_says_what_it_was_given() -> None:
    channel = Channel("jobs", str, mode="topic", capacity=3, external=True)
    assert (channel.name, channel.schema, channel.mode) == ("jobs", str, "topic")
    assert (channel.capacity, channel.external) == (3, True)
    assert (JOBS.mode, JOBS.capacity, JOBS.external) == ("queue", 1000, False)
    assert repr(channel) == "Channel('jobs', str, mode='topic')"
    assert repr(Channel("many", list[int])) == "Channel('many', list[int], mode='queue')"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Channel("", str),
        lambda: Channel("a\nb", str),
        lambda: Channel("x" * 201, str),
        lambda: Channel(3, str),  # type: ignore[arg-type]  # on purpose
        lambda: Channel("a", str, mode="pipe"),  # type: ignore[arg-type]  # on purpose
        lambda: Channel("a", str, capacity=0),
        lambda: Channel("a", str, capacity=-1),
        lambda: Channel("a", str, capacity=True),
        lambda: Channel("a", str, capacity=1.5),  # type: ignore[arg-type]  # on purpose
        lambda: Channel("a", 3),  # type: ignore[arg-type]  # on purpose
        lambda: Channel("a", "no such type"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_a_wrong_declaration_is_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == "channel"
    assert caught.value.hint


def test_the_longest_name() -> None:
    assert Channel("x" * 200, str).name == "x" * 200


async def test_declarations_that_agree_are_one_channel() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await ctx.send(Channel("n", list[int], capacity=5), [1])
        return await ctx.recv(Channel("n", list[int], capacity=5))

    assert await run(body) == [1]


@pytest.mark.parametrize(
    "other",
    [
        Channel("n", str),
        Channel("n", int, mode="value"),
        Channel("n", int, capacity=5),
        Channel("n", int, external=True),
    ],
    ids=["schema", "mode", "capacity", "external"],
)
async def test_declarations_that_differ_are_an_error(other: Channel[Any]) -> None:
    assert not Channel("n", int).agrees(other)

    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.send(Channel("n", int), 1)
        for use in (lambda: ctx.send(other, "x"), lambda: ctx.recv(other)):
            with pytest.raises(ConfigError) as caught:
                await use()
            assert (caught.value.code, caught.value.path) == ("channel", ("body",))
            assert caught.value.hint
        with pytest.raises(ConfigError) as caught:
            ctx.try_recv(other)
        assert (caught.value.code, caught.value.path) == ("channel", ("body",))

    await run(body)


async def test_what_is_no_channel() -> None:
    wrong: Any = "jobs"

    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.send(wrong, 1)

    error = await failure(body)
    assert isinstance(error, ConfigError)
    assert (error.code, error.path) == ("channel", ("body",))


async def test_a_run_has_channels_of_its_own() -> None:
    @step
    async def fill(n: int, ctx: Context) -> list[int]:
        await ctx.send(NUMBERS, n)
        return await drain(ctx, NUMBERS)

    async with Harness(plugins=()) as harness:
        assert [(await harness.run(fill, n)).value for n in (1, 2)] == [[1], [2]]


# ----------------------------------------------------------------------------------------------------- what may be sent


class Kind(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@define
class Pair:
    left: int
    right: str = ""


class SubPair(Pair): ...


class Job(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    size: int = 1


INSIDE: list[tuple[Any, object, object]] = [
    (str, "a", "a"),
    (int, 1, 1),
    (float, 1.5, 1.5),
    (float, 1, 1.0),
    (bytes, b"a", b"a"),
    (type(None), None, None),
    (object, 3, 3),
    (dict, {"a": 1}, {"a": 1}),
    (list[int], [1, 2], [1, 2]),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (tuple[int, str], (1, "a"), (1, "a")),
    (int | None, None, None),
    (int | str, "a", "a"),
    (Literal["a", "b"], "b", "b"),
    (Kind, Kind.RED, Kind.RED),
    (date, date(2025, 1, 2), date(2025, 1, 2)),
    (Decimal, Decimal("1.5"), Decimal("1.5")),
    (Point, Point(1, 2), Point(1, 2)),
    (Pair, Pair(1), Pair(1)),
    (Pair, SubPair(1), SubPair(1)),
    (list[Pair], [Pair(1)], [Pair(1)]),
    (Job, Job(name="a"), Job(name="a")),
    (list[Job], [Job(name="a")], [Job(name="a")]),
]


@pytest.mark.parametrize(("schema", "value", "carried"), INSIDE)
async def test_a_step_sends_what_is_of_the_type(schema: Any, value: object, carried: object) -> None:
    channel: Channel[Any] = Channel("c", schema)

    @step
    async def body(n: int, ctx: Context) -> object:
        await ctx.send(channel, value)
        return await ctx.recv(channel)

    found = await run(body)
    assert (type(found), found) == (type(carried), carried)


NOT_INSIDE: list[tuple[Any, object]] = [
    (str, 1),
    (str, None),
    (str, b"a"),
    (int, "1"),
    (int, True),
    (int, 1.0),
    (float, "1.5"),
    (bytes, "a"),
    (list[int], ["1"]),
    (list[int], (1, 2)),
    (dict[str, list[int]], {"a": ["1"]}),
    (int | None, "1"),
    (Literal["a", "b"], "c"),
    (Kind, "red"),
    (date, "2025-01-02"),
    (Decimal, "1.5"),
    (Point, {"x": 1}),
    (Pair, {"left": 1}),
    (Pair, Point(1)),
    (Job, {"name": "a"}),
    (list[Job], [{"name": 1}]),
]


@pytest.mark.parametrize(("schema", "value"), NOT_INSIDE)
async def test_a_step_s_value_has_to_be_of_the_type_as_it_stands(schema: Any, value: object) -> None:
    channel: Channel[Any] = Channel("c", schema)

    @step
    async def body(n: int, ctx: Context) -> object:
        await ctx.send(channel, value)
        return ctx.try_recv(channel)

    error = await failure(body)
    assert isinstance(error, ChannelValueInvalid)
    assert (error.channel, error.path) == ("c", ("body",))
    assert error.hint is not None
    assert "'c' carries " in error.hint


OUTSIDE: list[tuple[Any, object, object]] = [
    (int, "1", 1),
    (int, 1.0, 1),
    (float, "1.5", 1.5),
    (list[int], ["1", 2], [1, 2]),
    (list[int], (1, 2), [1, 2]),
    (Kind, "red", Kind.RED),
    (date, "2025-01-02", date(2025, 1, 2)),
    (datetime, "2025-01-02T03:04:05Z", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (Decimal, "1.5", Decimal("1.5")),
    (Point, {"x": "1"}, Point(1)),
    (Pair, Pair(1), Pair(1)),
    (Job, {"name": "a", "size": "2"}, Job(name="a", size=2)),
    (list[Job], [{"name": "a"}], [Job(name="a")]),
    (str, "a", "a"),
]


@pytest.mark.parametrize(("schema", "value", "carried"), OUTSIDE)
async def test_a_value_from_outside_is_converted(schema: Any, value: object, carried: object) -> None:
    channel: Channel[Any] = Channel("c", schema, external=True)

    @step
    async def body(n: int, ctx: Context) -> object:
        return await ctx.recv(channel)

    async with Harness(plugins=()) as harness:
        handle = harness.start(body, 0)
        handle.channel(channel).send(value)
        found = (await handle.result()).value
    assert (type(found), found) == (type(carried), carried)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(int, "one"), (int, 1.5), (str, 1), (list[int], ["one"]), (Pair, {"left": 1}), (Job, {}), (Kind, "blue")],
)
async def test_a_value_from_outside_that_does_not_fit(schema: Any, value: object) -> None:
    channel: Channel[Any] = Channel("c", schema, external=True)
    async with waiting(channel) as handle:
        with pytest.raises(ChannelValueInvalid) as caught:
            handle.send(value)
        assert caught.value.channel == "c"
        assert caught.value.hint


async def test_an_error_says_where_in_the_value_and_does_not_show_it() -> None:
    channel: Channel[Any] = Channel("c", list[Job], external=True)
    async with waiting(channel) as handle:
        with pytest.raises(ChannelValueInvalid) as caught:
            handle.send([{"name": "a"}, {"name": "b", "size": "hunter2"}])
    assert caught.value.message.startswith("1.size: ")
    assert "hunter2" not in str(caught.value)


def test_a_type_whose_names_are_not_known_yet() -> None:
    @dataclasses.dataclass
    class Late:
        other: Nowhere  # type: ignore[name-defined]  # noqa: F821  # on purpose

    channel = Channel("c", Late)
    with pytest.raises(ConfigError) as caught:
        channel.check({"other": 1}, outside=True)
    assert caught.value.code == "channel"


@asynccontextmanager
async def waiting(channel: Channel[Any]) -> AsyncGenerator[ChannelHandle[Any]]:
    """A handle of a run that does nothing until the block is left."""
    done = anyio.Event()

    @step
    async def body(n: int) -> None:
        await done.wait()

    async with Harness(plugins=()) as harness:
        handle = harness.start(body, 0)
        try:
            yield handle.channel(channel)
        finally:
            done.set()


# ------------------------------------------------------------------------------------------------------- inside the run


async def test_a_queue_is_first_in_first_out() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int]:
        for each in range(5):
            await ctx.send(NUMBERS, each)
        return [await ctx.recv(NUMBERS), *await drain(ctx, NUMBERS)]

    assert await run(body) == [0, 1, 2, 3, 4]


async def test_each_message_of_a_queue_goes_to_one_receiver_in_the_order_in_which_they_wait() -> None:
    got: list[tuple[str, int]] = []

    def reader(name: str, before: int) -> Any:
        @step(id=name)
        async def read(n: int, ctx: Context) -> None:
            await turns(before)
            got.append((name, await ctx.recv(NUMBERS)))

        return read

    @step
    async def write(n: int, ctx: Context) -> None:
        await turns(40)
        for each in range(3):
            await ctx.send(NUMBERS, each)

    await run(parallel([reader("c", 20), reader("a", 0), reader("b", 10), write]))
    assert sorted(got) == [("a", 0), ("b", 1), ("c", 2)]


async def test_a_full_queue_parks_its_senders_in_order() -> None:
    full = Channel("full", int, capacity=2)
    sent: list[int] = []
    got: list[int] = []

    def sender(value: int, before: int) -> Any:
        @step(id=f"send{value}")
        async def send(n: int, ctx: Context) -> None:
            await turns(before)
            await ctx.send(full, value)
            sent.append(value)

        return send

    @step
    async def read(n: int, ctx: Context) -> None:
        await turns(60)
        assert sent == [0, 1]
        for count in range(6):
            got.append(await ctx.recv(full))
            await turns(10)
            # Whoever waits first goes first, and one place makes room for one sender.
            assert len(sent) == min(6, 3 + count)

    await run(parallel([*(sender(value, 10 * value) for value in range(6)), read]))
    assert got == sent == [0, 1, 2, 3, 4, 5]


async def test_a_value_is_the_latest_and_is_not_taken_away() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int | None]:
        before = ctx.try_recv(LEVEL)
        await ctx.send(LEVEL, 1)
        await ctx.send(LEVEL, 2)
        received = [await ctx.recv(LEVEL), await ctx.recv(LEVEL)]
        return [before, *received, ctx.try_recv(LEVEL)]

    assert await run(body) == [None, 2, 2, 2]


async def test_a_receiver_waits_for_the_first_value() -> None:
    @step
    async def read(n: int, ctx: Context) -> int:
        return await ctx.recv(LEVEL)

    @step
    async def write(n: int, ctx: Context) -> None:
        await turns()
        await ctx.send(LEVEL, 7)

    assert await run(parallel([read, read, write])) == [7, 7, None]


async def test_a_topic_is_heard_from_the_first_recv_to_the_end_of_the_step() -> None:
    begun = anyio.Event()
    listening = [anyio.Event(), anyio.Event()]

    @step
    async def read(n: int, ctx: Context) -> list[int]:
        await begun.wait()
        with pytest.raises(ChannelTimeout):
            await ctx.recv(NEWS, timeout=0)
        next(event for event in listening if not event.is_set()).set()
        await turns(30)
        return [await ctx.recv(NEWS), await ctx.recv(NEWS)]

    @step
    async def write(n: int, ctx: Context) -> None:
        await ctx.send(NEWS, 0)
        begun.set()
        for event in listening:
            await event.wait()
        await ctx.send(NEWS, 1)
        await ctx.send(NEWS, 2)

    assert (await run(parallel([write, read, read])))[1:] == [[1, 2], [1, 2]]


async def test_a_listener_keeps_nothing_for_who_only_looks() -> None:
    live = Board(log_lost).live(NEWS)
    reader = live.reader(lambda: True)
    live.push(1)
    assert reader.take_now() is None
    assert (await reader.take()).value == 1


async def test_only_looking_at_a_topic_is_no_listening() -> None:
    small = Channel("small", int, mode="topic", capacity=1, external=True)

    @step
    async def body(n: int, ctx: Context) -> int | None:
        found = ctx.try_recv(small)
        for each in range(5):
            await ctx.send(small, each)
        assert ctx.try_recv(small) is None
        return found

    async with Harness(plugins=()) as harness:
        handle = harness.start(body, 0)
        channel = handle.channel(small)
        assert (await handle.result()).value is None
        assert channel.dropped == 0


async def test_listeners_whose_step_has_ended_are_forgotten_where_nobody_sends() -> None:
    quiet = Channel("quiet", int, mode="topic")
    most = 0

    @step
    async def look(n: int, ctx: Context) -> None:
        nonlocal most
        with pytest.raises(ChannelTimeout):
            await ctx.recv(quiet, timeout=0)
        engine: Any = ctx.engine
        most = max(most, len(engine.run.channels.live(quiet)._listeners))

    @step
    async def body(n: int, ctx: Context) -> None:
        for _ in range(500):
            await look(0, ctx)

    await run(body)
    assert 0 < most <= 64


async def test_a_topic_s_reader_that_falls_behind_loses_the_oldest() -> None:
    small = Channel("small", int, mode="topic", capacity=2, external=True)
    ready = anyio.Event()

    @step
    async def read(n: int, ctx: Context) -> list[int]:
        with pytest.raises(ChannelTimeout):
            await ctx.recv(small, timeout=0)
        ready.set()
        await turns(50)
        found = [await ctx.recv(small) for _ in range(2)]
        with pytest.raises(ChannelTimeout):
            await ctx.recv(small, timeout=0)
        return found

    @step
    async def write(n: int, ctx: Context) -> None:
        await ready.wait()
        for each in range(5):
            await ctx.send(small, each)

    async with Harness(plugins=()) as harness:
        handle = harness.start(parallel([read, write]), 0)
        channel = handle.channel(small)
        assert (await handle.result()).value == [[3, 4], None]
        assert channel.dropped == 3


async def test_a_second_attempt_of_a_step_listens_anew() -> None:
    small = Channel("small", int, mode="topic", capacity=1, external=True)
    attempts: list[int] = []

    @step(retry=Retry(2, initial=0.0001))
    async def read(n: int, ctx: Context) -> int:
        attempts.append(n)
        with pytest.raises(ChannelTimeout):
            await ctx.recv(small, timeout=0)
        if len(attempts) == 1:
            raise ValueError("first")
        for each in range(2):
            await ctx.send(small, each)
        return await ctx.recv(small)

    async with Harness(plugins=()) as harness:
        handle = harness.start(read, 0)
        channel = handle.channel(small)
        assert (await handle.result()).value == 1
        # The listener of the first attempt has lost nothing, because it is gone.
        assert channel.dropped == 1


async def test_send_is_a_step_of_its_own() -> None:
    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.send(NUMBERS, 1)
        await ctx.send(JOBS, "a")

    async with Harness(plugins=()) as harness, harness.stream(body, 0) as stream:
        paths = [event.path async for event in stream.events if isinstance(event, StepCommitted)]
        assert (await stream.result()).steps == 1
    assert paths == [("body", "send"), ("body", "send#1"), ("body",)]


async def test_sending_from_a_task_of_the_body_s_own_is_refused() -> None:
    @step
    async def body(n: int, ctx: Context) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.send, NUMBERS, 1)

    error = await failure(body)
    assert isinstance(error, ConcurrentStepCall)
    assert error.path == ("body",)


async def test_a_context_that_has_outlived_its_step() -> None:
    kept: list[Context] = []

    @step
    async def leak(n: int, ctx: Context) -> None:
        kept.append(ctx)

    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await ctx.send(NUMBERS, 1)
        await leak(0, ctx)
        for use in (lambda: kept[0].send(NUMBERS, 2), lambda: kept[0].recv(NUMBERS)):
            with pytest.raises(ConcurrentStepCall) as caught:
                await use()
            assert caught.value.path == ("body", "leak")
            assert caught.value.hint
        with pytest.raises(ConcurrentStepCall):
            kept[0].try_recv(NUMBERS)
        return await drain(ctx, NUMBERS)

    assert await run(body) == [1]


async def test_the_root_s_channels_are_the_body_s() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int | None]:
        await ctx.root.send(NUMBERS, 1)
        await ctx.root.send(NUMBERS, 2)
        first = await ctx.root.recv(NUMBERS)
        return [first, ctx.root.try_recv(NUMBERS)]

    assert await run(body) == [1, 2]


async def test_a_sync_tool_looks_into_a_channel_from_its_thread() -> None:
    @tool
    def look(ctx: Context, n: int) -> int | None:
        """Look."""
        assert threading.current_thread() is not threading.main_thread()
        return ctx.try_recv(NUMBERS)

    @step
    async def body(n: int, ctx: Context) -> list[int | None]:
        await ctx.send(NUMBERS, 5)
        call = call_tool(look, args={"n": 1})
        return [await call(None, ctx), await call(None, ctx)]

    assert await run(body) == [5, None]


# ------------------------------------------------------------------------------------------------------------- timeouts


async def test_nothing_comes_in_time() -> None:
    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.recv(NUMBERS, timeout=0.001)

    error = await failure(body)
    assert isinstance(error, ChannelTimeout)
    assert isinstance(error, TimeoutError)
    assert error.path == ("body",)
    assert error.hint
    assert "'numbers'" in error.message
    assert "0.001 s" in error.message


@pytest.mark.parametrize("channel", [NUMBERS, LEVEL, NEWS], ids=lambda channel: channel.mode)
async def test_a_timeout_of_zero_takes_what_is_there_and_waits_for_nothing(channel: Channel[int]) -> None:
    @step
    async def body(n: int, ctx: Context) -> int:
        with pytest.raises(ChannelTimeout):
            await ctx.recv(channel, timeout=0)
        await ctx.send(channel, 3, timeout=0)
        return await ctx.recv(channel, timeout=0)

    assert await run(body) == 3


async def test_no_place_is_free_in_time() -> None:
    full = Channel("full", int, capacity=1)

    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await ctx.send(full, 1, timeout=0)
        for timeout in (0, 0.001):
            with pytest.raises(ChannelTimeout, match="no place was free in channel 'full'"):
                await ctx.send(full, 2, timeout=timeout)
        return await drain(ctx, full)

    assert await run(body) == [1]


async def test_a_timeout_that_was_caught_leaves_the_step_and_the_place_in_the_line() -> None:
    @step
    async def impatient(n: int, ctx: Context) -> None:
        with pytest.raises(ChannelTimeout):
            await ctx.recv(NUMBERS, timeout=0)

    @step
    async def patient(n: int, ctx: Context) -> int:
        return await ctx.recv(NUMBERS)

    @step
    async def write(n: int, ctx: Context) -> None:
        await turns(20)
        await ctx.send(NUMBERS, 4)

    assert await run(parallel([impatient, patient, write])) == [None, 4, None]


async def test_waiting_for_ever_warns_at_the_caller_s_line() -> None:
    full = Channel("full", int, capacity=1)
    lines: list[int] = []

    @step
    async def body(n: int, ctx: Context) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await ctx.send(full, 1, timeout=None)
            await ctx.recv(full, timeout=None)
            await ctx.send(full, 1, timeout=float("inf"))
            await ctx.recv(full, timeout=float("inf"))
        assert [each.category for each in caught] == [NoeticWarning, NoeticWarning]
        assert {each.filename for each in caught} == {__file__}
        assert "send(timeout=None)" in str(caught[0].message)
        assert "recv(timeout=None)" in str(caught[1].message)
        lines.extend(each.lineno for each in caught)

    await run(body)
    first = body.spec.__code__.co_firstlineno
    assert [line - first for line in lines] == [4, 5]


async def test_with_warnings_as_errors_nothing_is_sent() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[int]:
        with pytest.raises(NoeticWarning):
            await ctx.send(NUMBERS, 1, timeout=None)
        return await drain(ctx, NUMBERS)

    assert await run(body) == []


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), "1", True])
async def test_a_timeout_that_is_none(timeout: Any) -> None:
    @step
    async def body(n: int, ctx: Context) -> None:
        for use in (lambda: ctx.send(NUMBERS, 1, timeout=timeout), lambda: ctx.recv(NUMBERS, timeout=timeout)):
            with pytest.raises(ConfigError) as caught:
                await use()
            assert (caught.value.code, caught.value.path) == ("channel", ("body",))
            assert caught.value.hint
        assert ctx.try_recv(NUMBERS) is None

    await run(body)


@pytest.mark.parametrize("stop", ["abort", "complete"])
@pytest.mark.parametrize("waits", ["recv", "send"])
async def test_a_stop_ends_the_waiting_at_once(stop: str, waits: str) -> None:
    full = Channel("full", int, capacity=1)
    ended: list[str] = []

    @step
    async def wait(n: int, ctx: Context) -> None:
        try:
            await (ctx.recv(NUMBERS, timeout=float("inf")) if waits == "recv" else fill(ctx))
        finally:
            ended.append(waits)

    async def fill(ctx: Context) -> None:
        await ctx.send(full, 1)
        await ctx.send(full, 2, timeout=float("inf"))

    @step
    async def end(n: int, ctx: Context) -> None:
        await turns(20)
        ctx.abort("enough") if stop == "abort" else ctx.complete("enough")
        await turns(20)

    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            result = await harness.run(parallel([wait, end]), 0)
    assert (result.status, ended) == ("aborted" if stop == "abort" else "completed", [waits])


async def test_receiving_after_a_stop_is_stopped() -> None:
    after: list[int] = []

    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.send(NUMBERS, 1)
        ctx.abort("enough")
        after.append(await ctx.recv(NUMBERS))

    async with Harness(plugins=()) as harness:
        result = await harness.run(body, 0)
    assert (result.status, after) == ("aborted", [])


# -------------------------------------------------------------------------------------------------------------- handles


@step
async def take_one(n: int, ctx: Context) -> int:
    return await ctx.recv(LINE)


async def test_a_handle_is_there_before_the_first_step() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        by_run, by_id = handle.channel(LINE), harness.channel_handle(LINE, handle.run_id)
        by_id.send(1)
        by_run.send(2)
        assert (await handle.result()).value == 1


async def test_a_handle_of_a_stream() -> None:
    async with Harness(plugins=()) as harness, harness.stream(take_one, 0) as stream:
        stream.channel(LINE).send(6)
        assert (await stream.result()).value == 6


async def test_only_an_external_channel_has_a_handle() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        uses: list[Callable[[], object]] = [
            lambda: handle.channel(NUMBERS),
            lambda: harness.channel_handle(NUMBERS, handle.run_id),
        ]
        for use in uses:
            with pytest.raises(ConfigError) as caught:
                use()
            assert caught.value.code == "channel"
            assert "external=True" in (caught.value.hint or "")
        handle.channel(LINE)
        with pytest.raises(ConfigError, match="differs"):
            handle.channel(Channel("line", str, external=True))
        handle.abort("done")


async def test_a_run_that_is_not_going_on_here() -> None:
    async with Harness(plugins=()) as harness, Harness(plugins=()) as other:
        handle = harness.start(take_one, 0)
        for where, run_id in ((harness, "unknown"), (other, handle.run_id)):
            for use in (where.channel_handle, where.channel_stream):
                with pytest.raises(RunNotFound) as caught:
                    use(LINE, run_id)
                assert caught.value.hint
        handle.channel(LINE).send(1)
        await handle.result()
        with pytest.raises(RunNotFound):
            harness.channel_handle(LINE, handle.run_id)


async def test_a_handle_is_closed_with_its_run() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        channel = handle.channel(LINE)
        seen = [channel.closed]
        for value in (1, 2, 3):
            channel.send(value)
        await handle.result()
        assert [*seen, channel.closed] == [False, True]
        with pytest.raises(ChannelClosed) as caught:
            channel.send(4)
        assert caught.value.hint
        # What nobody has received can still be read.
        async with channel.stream() as values:
            assert [value async for value in values] == [2, 3]


@pytest.mark.parametrize("channel", [LINE, LEVEL, NEWS], ids=lambda channel: channel.mode)
async def test_a_handle_that_is_asked_for_after_the_end_is_closed(channel: Channel[int]) -> None:
    @step
    async def body(n: int) -> int:
        return n

    async with Harness(plugins=()) as harness:
        handle = harness.start(body, 0)
        await handle.result()
        late = handle.channel(channel)
        assert late.closed
        with pytest.raises(ChannelClosed):
            late.send(1)
        with anyio.fail_after(5):
            async with late.stream() as values:
                assert [value async for value in values] == []


@pytest.mark.parametrize("end", ["fails", "is aborted", "is cancelled"])
async def test_a_run_that_ends_in_another_way_closes_its_channels_too(end: str) -> None:
    @step
    async def body(n: int, ctx: Context) -> None:
        await ctx.recv(LINE, timeout=float("inf"))
        if end == "is aborted":
            ctx.abort("enough")
        raise ValueError("enough")

    async with Harness(plugins=()) as harness:
        if end == "is cancelled":
            async with harness.stream(body, 0) as stream:
                channel = stream.channel(LINE)
                await turns()
        else:
            handle = harness.start(body, 0, on_error="result")
            channel = handle.channel(LINE)
            channel.send(1)
            await handle.result()
        assert channel.closed
        with pytest.raises(ChannelClosed):
            channel.send(1)


async def test_an_outside_sender_never_waits_and_the_loss_is_told(caplog: pytest.LogCaptureFixture) -> None:
    small = Channel("small", int, capacity=3, external=True)
    done = anyio.Event()

    @step
    async def body(n: int, ctx: Context) -> list[int]:
        await done.wait()
        return await drain(ctx, small)

    caplog.set_level(logging.WARNING, "noetic_py")
    async with Harness(plugins=()) as harness, harness.stream(body, 0) as stream:
        channel = stream.channel(small)
        for value in range(10):
            channel.send(value)
            assert channel.dropped == max(0, value - 2)
        done.set()
        events = [event async for event in stream.events]
        assert (await stream.result()).value == [7, 8, 9]
    told = [event for event in events if isinstance(event, ChannelDropped)]
    assert [(event.path, event.channel, event.dropped) for event in told] == [((), "small", n) for n in range(1, 8)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'small'" in caplog.text
    assert "capacity 3" in caplog.text


async def test_an_outside_sender_does_not_overtake_parked_senders_of_the_run() -> None:
    small = Channel("small", int, capacity=1, external=True)
    parked = anyio.Event()

    @step
    async def write(n: int, ctx: Context) -> None:
        await ctx.send(small, 1)
        parked.set()
        await ctx.send(small, 2)

    @step
    async def read(n: int, ctx: Context) -> list[int]:
        await turns(40)
        return [await ctx.recv(small), await ctx.recv(small)]

    async with Harness(plugins=()) as harness:
        handle = harness.start(parallel([write, read]), 0)
        await parked.wait()
        await turns()
        channel = handle.channel(small)
        channel.send(9)
        assert (await handle.result()).value == [None, [9, 2]]
        assert channel.dropped == 1


async def test_a_place_that_was_granted_to_a_sender_is_not_taken_from_it() -> None:
    small = Channel("small", int, capacity=1, external=True)
    parked = anyio.Event()

    @step
    async def write(n: int, ctx: Context) -> None:
        await ctx.send(small, 1)
        parked.set()
        await ctx.send(small, 2)

    async with Harness(plugins=()) as harness:
        handle = harness.start(write, 0)
        await parked.wait()
        await turns()
        channel = handle.channel(small)
        async with channel.stream() as values:
            # The first message is taken, and the parked sender has its place, but has not run yet.
            assert vars(channel)["_live"].take_now().value == 1
            channel.send(9)
            assert channel.dropped == 1
            assert [value async for value in values] == [2]


async def in_a_thread(work: Callable[[], object]) -> None:
    """Do something in a thread that no event loop knows of."""
    failed: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 # raised again by who waits
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    if failed:
        raise failed[0]


async def test_sending_from_threads() -> None:
    @step
    async def collect(n: int, ctx: Context) -> list[int]:
        return [await ctx.recv(LINE) for _ in range(n)]

    async with Harness(plugins=()) as harness:
        handle = harness.start(collect, 400)
        channel = handle.channel(LINE)

        def write(first: int) -> None:
            for value in range(first, first + 100):
                channel.send(value)

        threads = [threading.Thread(target=write, args=(first,)) for first in range(0, 400, 100)]
        for thread in threads:
            thread.start()
        found = (await handle.result()).value
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
    assert sorted(found) == list(range(400))
    for first in range(0, 400, 100):
        own = [value for value in found if first <= value < first + 100]
        assert own == sorted(own)


async def test_a_thread_gets_the_same_errors() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        channel = handle.channel(LINE)
        wrong: Any = "one"
        with pytest.raises(ChannelValueInvalid):
            await in_a_thread(lambda: channel.send(wrong))
        await in_a_thread(lambda: channel.send(1))
        await handle.result()
        with pytest.raises(ChannelClosed):
            await in_a_thread(lambda: channel.send(2))


async def test_a_handle_is_made_where_the_run_is() -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        channel = handle.channel(LINE)
        for use in (lambda: handle.channel(LINE), lambda: harness.channel_handle(LINE, handle.run_id)):
            with pytest.raises(WrongThread) as caught:
                await in_a_thread(use)
            assert caught.value.hint

        def read() -> None:
            async def look() -> None:
                async with channel.stream():
                    pass

            anyio.run(look)

        with pytest.raises(WrongThread):
            await in_a_thread(read)
        channel.send(1)
        await handle.result()


@pytest.mark.parametrize("there", ["asyncio", "trio"])
async def test_sending_from_a_thread_with_an_event_loop_of_its_own(there: str, anyio_backend: str) -> None:
    async with Harness(plugins=()) as harness:
        handle = harness.start(take_one, 0)
        channel = handle.channel(LINE)

        async def elsewhere() -> None:
            if (anyio_backend, there) == ("trio", "trio"):
                # Trio hands over nothing from a thread that runs trio itself.
                with pytest.raises(WrongThread) as caught:
                    channel.send(1)
                assert "to_thread" in (caught.value.hint or "")
                await anyio.to_thread.run_sync(channel.send, 2)
            else:
                channel.send(2)

        await in_a_thread(lambda: anyio.run(elsewhere, backend=there))
        assert (await handle.result()).value == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handle_that_has_outlived_its_event_loop(backend: str) -> None:
    kept: list[ChannelHandle[int]] = []

    async def body() -> None:
        async with Harness(plugins=()) as harness:
            handle = harness.start(take_one, 0)
            kept.append(handle.channel(LINE))
            kept[0].send(1)
            await handle.result()

    thread = threading.Thread(target=lambda: anyio.run(body, backend=backend))
    thread.start()
    thread.join()
    assert kept[0].closed
    with pytest.raises(ChannelClosed):
        kept[0].send(2)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_whose_event_loop_was_broken_off(backend: str) -> None:
    kept: list[ChannelHandle[int]] = []

    async def body() -> None:
        async with Harness(plugins=()) as harness:
            kept.append(harness.start(take_one, 0).channel(LINE))
            await turns()
            raise KeyError("enough")

    def work() -> None:
        with pytest.raises(KeyError):
            anyio.run(body, backend=backend)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with pytest.raises(ChannelClosed) as caught:
        kept[0].send(2)
    assert caught.value.hint


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_channel_whose_event_loop_ended_before_its_run(backend: str) -> None:
    kept: list[ChannelHandle[int]] = []

    async def body() -> None:
        kept.append(ChannelHandle(LINE, Board(log_lost).live(LINE)))

    thread = threading.Thread(target=lambda: anyio.run(body, backend=backend))
    thread.start()
    thread.join()
    assert not kept[0].closed
    with pytest.raises(ChannelClosed) as caught:
        kept[0].send(2)
    assert caught.value.hint


# -------------------------------------------------------------------------------------------------------------- streams


async def test_a_stream_of_a_queue_takes_messages_away() -> None:
    @step
    async def write(n: int, ctx: Context) -> list[int]:
        for value in range(4):
            await ctx.send(LINE, value)
        await turns(20)
        return await drain(ctx, LINE)

    async with Harness(plugins=()) as harness:
        handle = harness.start(write, 0)
        found: list[int] = []
        async with harness.channel_stream(LINE, handle.run_id) as values:
            async for value in values:
                found.append(value)
                if value == 1:
                    break
        assert found == [0, 1]
        assert (await handle.result()).value == [2, 3]


async def test_a_stream_of_a_value_gives_the_changes() -> None:
    asked = [anyio.Event() for _ in range(4)]

    @step
    async def write(n: int, ctx: Context) -> None:
        await ctx.send(LEVEL, 0)
        for value, event in enumerate(asked, 1):
            await event.wait()
            await ctx.send(LEVEL, 10 * value)
            await ctx.send(LEVEL, 10 * value + 1)

    async with Harness(plugins=()) as harness:
        handle = harness.start(write, 0)
        async with handle.channel(LEVEL).stream() as values:
            found: list[int] = []
            async for value in values:
                found.append(value)
                if len(found) <= len(asked):
                    asked[len(found) - 1].set()
        # Of two changes at once the last; it ends with the run.
        assert found == [0, 11, 21, 31, 41]
        async with handle.channel(LEVEL).stream() as values:
            assert [value async for value in values] == [41]


async def test_a_stream_of_a_topic_gives_everything_from_now_on() -> None:
    go = anyio.Event()

    @step
    async def write(n: int, ctx: Context) -> None:
        await ctx.send(NEWS, 0)
        await go.wait()
        for value in range(1, 5):
            await ctx.send(NEWS, value)

    async with Harness(plugins=()) as harness:
        handle = harness.start(write, 0)
        await turns(20)
        channel = handle.channel(NEWS)
        async with channel.stream() as first, channel.stream() as second:
            go.set()
            assert [value async for value in first] == [1, 2, 3, 4]
            assert [value async for value in second] == [1, 2, 3, 4]
        async with channel.stream() as late:
            assert [value async for value in late] == []


async def test_a_stream_of_a_topic_that_is_left_listens_no_more() -> None:
    small = Channel("small", int, mode="topic", capacity=1, external=True)
    async with waiting(small) as handle:
        async with handle.stream():
            handle.send(1)
            handle.send(2)
            assert handle.dropped == 1
        handle.send(3)
        handle.send(4)
        assert handle.dropped == 1


@pytest.mark.parametrize("channel", [LINE, LEVEL, NEWS], ids=lambda channel: channel.mode)
async def test_a_stream_that_was_left_has_nothing_more(channel: Channel[int]) -> None:
    async with waiting(channel) as handle:
        with anyio.fail_after(5):
            async with handle.stream() as values:
                handle.send(1)
            handle.send(2)
            assert [value async for value in values] == []


async def test_leaving_a_stream_releases_who_still_reads_from_it() -> None:
    found: list[int] = []
    async with waiting(NEWS) as handle, anyio.create_task_group() as group:

        async def read(values: AsyncIterator[int]) -> None:
            found.extend([value async for value in values])

        with anyio.fail_after(5):
            async with handle.stream() as values:
                group.start_soon(read, values)
                await turns()
                handle.send(1)
                await turns()
    assert found == [1]


async def test_a_stream_that_waits_when_the_run_ends() -> None:
    go = anyio.Event()
    found: list[int] = []

    @step
    async def body(n: int, ctx: Context) -> None:
        await go.wait()

    async with Harness(plugins=()) as harness, anyio.create_task_group() as group:
        handle = harness.start(body, 0)

        async def read(channel: Channel[int]) -> None:
            async with handle.channel(channel).stream() as values:
                found.extend([value async for value in values])

        for channel in (LINE, LEVEL, NEWS):
            group.start_soon(read, channel)
        await turns(10)
        go.set()
        with anyio.fail_after(5):
            await handle.result()
    assert found == []


async def test_a_stream_s_reader_that_is_cancelled_loses_nothing() -> None:
    async with waiting(LINE) as handle:
        got: list[int] = []
        async with anyio.create_task_group() as group, handle.stream() as values:

            async def read() -> None:
                got.append(await anext(values))

            group.start_soon(read)
            await turns()
            # HandoffOutput over and cancelled in the same moment: whichever comes first, the message is somewhere.
            handle.send(1)
            group.cancel_scope.cancel()
        async with handle.stream() as values:
            handle.send(2)
            rest = [await anext(values)]
            rest += [await anext(values)] if not got else []
        assert got + rest == [1, 2]
