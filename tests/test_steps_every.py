"""A step that runs again and again at its times: with a clock that the test moves."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py import (
    Budget,
    Channel,
    Context,
    Harness,
    Message,
    Retry,
    RunHandle,
    Step,
    call_model,
    every,
    parallel,
    race,
    sequence,
    step,
)
from noetic_py.errors import ConfigError, StepFailed, StepTimeout
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.properties.checks import left_over, tasks

pytestmark = pytest.mark.anyio

WAKE = Channel("wake", str, external=True)
ALARM = Channel("alarm", str, mode="topic", external=True)


@define
class State:
    count: int = 0
    words: list[str] = field(factory=list[str])


class Clock(VirtualRuntime):
    """A clock that starts at noon, so that zero is no special time."""

    __slots__ = ()

    def monotonic(self) -> float:
        return 43_200.0 + super().monotonic()

    @property
    def time(self) -> float:
        """Seconds since the test began."""
        return round(super().monotonic(), 6)


def noting(clock: Clock, times: list[float], seconds: float = 0.0) -> Step[None, None, Any, Any]:
    """A step that notes when it runs, and takes some time."""

    @step
    async def tick(_: None) -> None:
        times.append(clock.time)
        await clock.sleep(seconds)

    return tick


@asynccontextmanager
async def started(clock: Clock, flow: Any, **options: Any) -> AsyncGenerator[RunHandle[Any, Any]]:
    """A run of a flow that goes on until it is aborted or ends, and leaves nothing behind."""
    async with Harness(plugins=(), runtime=clock) as harness:
        before = tasks()
        start: Any = harness.start
        handle: RunHandle[Any, Any] = start(flow, "x", on_error="result", **options)
        yield handle
        handle.abort("that is enough")
        with anyio.fail_after(5):
            await handle.result()
        assert await left_over(before) == set()


# ---------------------------------------------------------------------------------------------------------------- times


async def test_the_first_time_is_now_and_the_next_after_the_interval() -> None:
    clock, times = Clock(), list[float]()
    async with started(clock, every(10.0, noting(clock, times))):
        await clock.advance(0)
        assert times == [0]
        await clock.advance(9.99)
        assert times == [0]
        await clock.advance(30)
    assert times == [0, 10, 20, 30]


async def test_the_interval_is_from_start_to_start() -> None:
    clock, times = Clock(), list[float]()
    async with started(clock, every(10.0, noting(clock, times, seconds=4.0))):
        await clock.advance(35)
    assert times == [0, 10, 20, 30]


async def test_a_time_that_takes_too_long_is_followed_at_once_and_none_is_made_up_for() -> None:
    clock, times = Clock(), list[float]()
    seconds = [25.0, 3.0, 0.0, 0.0]

    @step
    async def tick(_: None) -> None:
        times.append(clock.time)
        await clock.sleep(seconds[len(times) - 1] if len(times) <= len(seconds) else 0.0)

    async with started(clock, every(10.0, tick)):
        await clock.advance(60)
    assert times == [0, 25, 35, 45, 55]


async def test_jitter_comes_on_top_of_each_time() -> None:
    clock, times = Clock(seed=3), list[float]()
    async with started(clock, every(10.0, noting(clock, times), jitter=5.0)):
        await clock.advance(10_000)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert 0 <= gaps[0] < 5
    assert all(10 <= gap < 15 for gap in gaps[1:])
    assert len({round(gap, 3) for gap in gaps}) > 500
    assert 12 < sum(gaps[1:]) / len(gaps[1:]) < 13


async def test_jitter_is_the_runtime_s() -> None:
    ticks: list[list[float]] = []
    for seed in (1, 1, 2):
        clock, times = Clock(seed=seed), list[float]()
        async with started(clock, every(10.0, noting(clock, times), jitter=5.0)):
            await clock.advance(100)
        ticks.append(times)
    assert ticks[0] == ticks[1] != ticks[2]


async def test_the_shortest_interval_lets_others_run() -> None:
    clock = Clock()
    others: list[int] = []

    @step
    async def tick(_: None, ctx: Context) -> None:
        if len(others) > 5:
            ctx.stop_loop()

    @step
    async def other(_: object) -> None:
        for n in range(10):
            others.append(n)
            await checkpoint()

    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            # On the machine's own clock, where a nanosecond has always passed.
            await harness.run(parallel([every(1e-9, tick), other]), "x")
    assert clock.time == 0
    assert len(others) == 10


# ----------------------------------------------------------------------------------------------------------------- ends


async def test_stop_loop_ends_it_after_this_time() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def tick(_: None, ctx: Context) -> str:
        times.append(clock.time)
        if len(times) == 3:
            ctx.stop_loop("not its value")
        await clock.sleep(1)
        times.append(-clock.time)
        return "neither is this"

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, tick), "x")
        await clock.advance(100)
        result = await handle.result()
    assert times == [0, -1, 10, -11]
    assert (result.status, result.output_or("missing")) == ("completed", None)


async def test_stop_loop_below_a_step_of_it() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def stop(_: object, ctx: Context) -> None:
        ctx.stop_loop()

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, sequence(noting(clock, times), stop)) >> after(clock, times), "x")
        await clock.advance(100)
        assert (await handle.result()).value == "after"
    assert times == [0, 0]


def after(clock: Clock, times: list[float]) -> Step[object, str, Any, Any]:
    @step(id="after")
    async def then(_: object) -> str:
        times.append(clock.time)
        return "after"

    return then


async def test_complete_ends_the_execution() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def tick(_: None, ctx: Context) -> None:
        times.append(clock.time)
        if len(times) == 2:
            ctx.complete("found")

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, tick), "x")
        await clock.advance(100)
        assert (await handle.result()).value == "found"
    assert times == [0, 10]


@pytest.mark.parametrize("when", ["between", "during"])
async def test_an_abort_ends_it_at_once(when: str) -> None:
    clock, times = Clock(), list[float]()
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, noting(clock, times, seconds=5.0)), "x")
        await clock.advance(17 if when == "between" else 12)
        handle.abort("enough")
        with anyio.fail_after(5):
            assert (await handle.result()).status == "aborted"
    assert times == [0, 10]


async def test_a_budget_ends_it() -> None:
    clock, times = Clock(), list[float]()
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, noting(clock, times)), "x", budget=Budget(steps=4))
        await clock.advance(100)
        result = await handle.result()
    assert (result.status, result.steps, len(times)) == ("budget_exceeded", 4, 4)


# --------------------------------------------------------------------------------------------------------------- errors


def failing(clock: Clock, times: list[float], *bad: int) -> Step[None, None, Any, Any]:
    @step(id="tick")
    async def tick(_: None) -> None:
        times.append(clock.time)
        if len(times) - 1 in bad:
            raise ValueError(f"time {len(times) - 1}")

    return tick


async def test_a_failure_ends_it_unless_somebody_decides() -> None:
    clock, times = Clock(), list[float]()
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, failing(clock, times, 1)), "x", on_error="result")
        await clock.advance(100)
        result = await handle.result()
    assert (result.status, result.reason) == ("failed", "ValueError: time 1")
    assert isinstance(result.error, StepFailed)
    assert result.error.path == ("every", "tick[1]")
    assert times == [0, 10]


@pytest.mark.parametrize(
    ("answer", "expected"), [("skip", [0, 10, 20, 30]), ("retry", [0, 10, 10, 20, 30]), ("abort", [0, 10])]
)
async def test_on_error_decides(answer: str, expected: list[float]) -> None:
    clock, times = Clock(), list[float]()
    errors: list[tuple[str, tuple[str, ...]]] = []

    async def decide(error: Exception, ctx: Context[Any, Any]) -> Any:
        errors.append((str(error).splitlines()[0], ctx.path))
        return answer

    make: Any = every
    async with started(clock, make(10.0, failing(clock, times, 1), on_error=decide)) as handle:
        await clock.advance(35)
        assert handle.done == (answer == "abort")
    assert times == expected
    assert errors == [("ValueError: time 1 [at every/tick[1]]", ("every",))]


async def test_a_time_that_is_tried_again_waits_for_nothing() -> None:
    clock, times = Clock(seed=1), list[float]()

    def decide(error: Exception, ctx: object) -> Any:
        return "retry"

    async with started(clock, every(10.0, failing(clock, times, 0, 1, 2), jitter=5.0, on_error=decide)):
        await clock.advance(5)
    # Neither for the interval nor for more of the jitter.
    assert len(times) == 4
    assert len(set(times)) == 1


async def test_a_decision_that_is_none() -> None:
    clock, times = Clock(), list[float]()

    def decide(error: Exception, ctx: object) -> Any:
        return "perhaps"

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, failing(clock, times, 0), on_error=decide), "x", on_error="result")
        await clock.advance(1)
        result = await handle.result()
    assert isinstance(result.error, ConfigError)


async def test_the_step_s_own_retry_and_timeout() -> None:
    clock, times = Clock(), list[float]()
    tick = failing(clock, times, 0, 1).with_options(retry=Retry(3, backoff="fixed", initial=1.0, jitter=False))
    async with started(clock, every(10.0, tick)):
        await clock.advance(15)
    assert times == [0, 1, 2, 10]

    @step(timeout=0.001)
    async def hangs(_: None) -> None:
        await anyio.sleep_forever()

    seen: list[type[Exception]] = []

    def decide(error: Exception, ctx: object) -> Any:
        seen.append(type(error))
        return "abort"

    async with Harness(plugins=()) as harness:
        with pytest.raises(StepTimeout):
            await harness.run(every(10.0, hangs, on_error=decide), "x")
    assert seen == [StepTimeout]


async def test_what_a_failed_time_had_taken_goes_back() -> None:
    clock = Clock()
    got: list[str] = []

    @step
    async def tick(_: None, ctx: Context) -> None:
        got.append(await ctx.recv(WAKE))
        if len(got) == 1:
            raise ValueError

    def decide(error: Exception, ctx: object) -> Any:
        return "skip"

    async with started(clock, every(10.0, tick, on_error=decide)) as handle:
        channel = handle.channel(WAKE)
        channel.send("a")
        channel.send("b")
        await clock.advance(25)
    assert got == ["a", "a", "b"]


# ----------------------------------------------------------------------------------------------------------------- wake


@pytest.mark.parametrize("channel", [WAKE, ALARM], ids=lambda channel: channel.mode)
async def test_a_message_starts_it_at_once_and_the_interval_counts_from_there(channel: Channel[str]) -> None:
    clock, times = Clock(), list[float]()
    async with started(clock, every(10.0, noting(clock, times), wake=channel)) as handle:
        await clock.advance(13)
        handle.channel(channel).send("now")
        await clock.advance(0)
        assert times == [0, 10, 13]
        await clock.advance(11)
    assert times == [0, 10, 13, 23]


@pytest.mark.parametrize("channel", [WAKE, ALARM], ids=lambda channel: channel.mode)
async def test_messages_that_come_while_it_runs_start_it_afterwards(channel: Channel[str]) -> None:
    clock, times = Clock(), list[float]()
    async with started(clock, every(10.0, noting(clock, times, seconds=3.0), wake=channel)) as handle:
        await clock.advance(1)
        for _ in range(2):
            handle.channel(channel).send("now")
        await clock.advance(20)
    assert times == [0, 3, 6, 16]


async def test_a_message_takes_away_the_jitter_too() -> None:
    clock, times = Clock(seed=1), list[float]()
    async with started(clock, every(10.0, noting(clock, times), jitter=100.0, wake=WAKE)) as handle:
        handle.channel(WAKE).send("now")
        await clock.advance(0)
        assert times == [0]


async def test_a_wake_up_call_of_a_step_of_the_same_run() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def call(_: object, ctx: Context) -> None:
        await clock.sleep(4)
        await ctx.send(WAKE, "now")

    async with started(clock, parallel([every(10.0, noting(clock, times), wake=WAKE), call])):
        await clock.advance(15)
    assert times == [0, 4, 14]


async def test_a_wake_up_call_that_the_loser_of_a_race_has_had_goes_back() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def wins(_: object) -> str:
        while not times:
            await checkpoint()
        return "won"

    @step
    async def look(_: object, ctx: Context) -> str | None:
        return ctx.try_recv(WAKE)

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(race([every(10.0, noting(clock, times), wake=WAKE), wins]) >> look, "x")
        handle.channel(WAKE).send("mine")
        with anyio.fail_after(5):
            assert (await handle.result()).value == "mine"


async def test_a_second_attempt_around_a_schedule_listens_anew() -> None:
    small = Channel("small", str, mode="topic", capacity=1, external=True)
    clock, times = Clock(), list[float]()
    flow = every(10.0, failing(clock, times, 0), wake=small).with_options(
        retry=Retry(2, backoff="fixed", initial=1.0, jitter=False)
    )
    async with started(clock, flow) as handle:
        await clock.advance(2)
        channel = handle.channel(small)
        channel.send("a")
        await clock.advance(0)
        channel.send("b")
        await clock.advance(0)
        assert channel.dropped == 0
    assert times == [0, 1, 2, 2]


# ----------------------------------------------------------------------------------------------- state and conversation


async def test_the_state_is_the_flow_s_and_is_kept_when_it_is_stopped() -> None:
    clock = Clock()

    @step
    async def tick(_: None, ctx: Context[Any, State]) -> None:
        ctx.state.count += 1
        ctx.state.words.append(f"time {ctx.state.count}")
        await clock.sleep(5)

    state = State(count=10)
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(every(10.0, tick), "x", state=state)
        # In the middle of the third time, whose own changes go with it.
        await clock.advance(22)
        handle.abort("enough")
        result = await handle.result()
    assert result.state is state
    assert state == State(12, ["time 11", "time 12"])


async def test_a_failed_time_leaves_the_state_as_it_was() -> None:
    clock = Clock()

    @step
    async def tick(_: None, ctx: Context[Any, State]) -> None:
        ctx.state.count += 1
        ctx.state.words.append("x")
        if ctx.state.count == 2:
            raise ValueError

    def decide(error: Exception, ctx: Context[Any, State]) -> Any:
        ctx.state.words.append("failed")
        ctx.state.count += 10
        return "skip"

    async with started(clock, every(10.0, tick, on_error=decide), state=State()) as handle:
        await clock.advance(25)
        handle.abort("enough")
        result = await handle.result()
    assert result.state == State(12, ["x", "failed", "x"])


async def test_a_second_attempt_around_it_starts_from_its_state() -> None:
    clock, attempts = Clock(), list[int]()

    @step
    async def tick(_: None, ctx: Context[Any, State]) -> None:
        ctx.state.count += 1
        ctx.stop_loop()

    @step
    async def last(_: object, ctx: Context[Any, State]) -> int:
        attempts.append(ctx.state.count)
        if len(attempts) == 1:
            raise ValueError
        return ctx.state.count

    flow = sequence(every(10.0, tick), last, id="tried").with_options(retry=Retry(2, initial=0.001))
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(flow, "x", state=State())
        await clock.advance(1)
        assert (await handle.result()).value == 1
    assert attempts == [1, 1]


async def test_each_time_begins_with_the_conversation_that_the_schedule_found() -> None:
    clock = Clock()
    lengths: list[int] = []

    @step
    async def before(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user("before"))
        return text

    @step
    async def tick(_: None, ctx: Context) -> None:
        lengths.append(len(ctx.items))
        ctx.items.append(Message.user("a"))
        ctx.items.append(Message.user("b"))
        if len(lengths) == 3:
            ctx.stop_loop()

    @step
    async def then(_: object, ctx: Context) -> list[str]:
        return [item.text for item in ctx.items if isinstance(item, Message)]

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(before >> every(10.0, tick) >> then, "x")
        await clock.advance(100)
        result = await handle.result()
    assert lengths == [1, 1, 1]
    assert result.value == ["before"]
    assert [item.text for item in result.items if isinstance(item, Message)] == ["before"]


async def test_a_model_in_it_is_asked_afresh_each_time() -> None:
    clock = Clock()
    model = ScriptedModel("one", "two", "three")
    async with Harness(plugins=(), runtime=clock, model=model) as harness:
        handle = harness.start(every(10.0, call_model().bind("look")), "x")
        await clock.advance(25)
        handle.abort("enough")
        result = await handle.result()
    assert [len(request.items) for request in model.requests] == [1, 1, 1]
    assert (result.model_calls, len(result.items)) == (3, 0)


async def test_a_log_of_ten_thousand_times_is_as_short_as_one_of_ten() -> None:
    longest = 0
    sizes: list[int] = []

    @step
    async def tick(_: None, ctx: Context) -> None:
        nonlocal longest
        longest = max(longest, len(ctx.items))
        ctx.items.append(Message.user("a"))
        sizes.append(len(ctx.items))
        if len(sizes) == 10_000:
            ctx.stop_loop()

    async with Harness(plugins=()) as harness:
        result = await harness.run(every(1e-9, tick), "x")
    assert (longest, set(sizes), len(result.items)) == (0, {1}, 0)


async def test_what_a_time_leaves_behind_does_not_grow_with_their_number() -> None:
    """Besides the journal, which is what happened, nothing of a time is kept."""
    quiet = Channel("quiet", int, mode="topic")
    sizes: dict[int, int] = {}
    count = 0

    @step
    async def tick(_: None, ctx: Context) -> None:
        nonlocal count
        count += 1
        with pytest.raises(TimeoutError):
            await ctx.recv(quiet, timeout=0)
        if count in (200, 400, 600):
            engine: Any = ctx.engine
            engine.run.journal.clear()
            gc.collect()
            sizes[count] = tracemalloc.get_traced_memory()[0]
        if count == 600:
            ctx.stop_loop()

    tracemalloc.start()
    try:
        async with Harness(plugins=()) as harness:
            await harness.run(every(1e-9, tick), "x")
    finally:
        tracemalloc.stop()
    assert sizes[600] - sizes[400] < 100_000


async def test_two_schedules_side_by_side() -> None:
    clock, first, second = Clock(), list[float](), list[float]()
    flow = parallel([every(10.0, noting(clock, first), id="slow"), every(3.0, noting(clock, second), id="fast")])
    async with started(clock, flow):
        await clock.advance(12)
    assert (first, second) == ([0, 10], [0, 3, 6, 9, 12])


async def test_a_schedule_beside_the_flow() -> None:
    clock, times = Clock(), list[float]()

    @step
    async def body(_: str, ctx: Context) -> str:
        watch = ctx.spawn_detached(every(10.0, noting(clock, times)), None)
        await clock.sleep(25)
        watch.abort("not needed any more")
        await watch.wait()
        return watch.status

    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(body, "x")
        await clock.advance(100)
        assert (await handle.result()).value == "aborted"
    assert times == [0, 10, 20]


@pytest.mark.parametrize(
    ("interval", "options"),
    [
        (0, {}),
        (-1.0, {}),
        (float("nan"), {}),
        (float("inf"), {}),
        ("1", {}),
        (True, {}),
        (1.0, {"jitter": -1}),
        (1.0, {"jitter": "1"}),
        (1.0, {"on_error": "skip"}),
        (1.0, {"wake": "wake"}),
        (1.0, {"wake": Channel("v", int, mode="value")}),
        (1.0, {"step": "tick"}),
    ],
    ids=str,
)
def test_wrong_options(interval: Any, options: dict[str, Any]) -> None:
    make: Any = every
    tick = noting(Clock(), [])
    with pytest.raises(ConfigError) as caught:
        make(interval, options.pop("step", tick), **options)
    assert caught.value.code in ("every", "not-a-step")
    assert caught.value.hint


def test_its_id() -> None:
    tick = noting(Clock(), [])
    assert (every(1.0, tick).id, every(1.0, tick, id="watch").id, every(1.0, tick).kind) == ("every", "watch", "every")
