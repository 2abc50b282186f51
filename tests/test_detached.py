from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py import (
    Budget,
    Channel,
    Context,
    FunctionCall,
    Harness,
    Message,
    Retry,
    RunFinished,
    RunStatus,
    StateBag,
    Step,
    call_model,
    call_tool,
    current_context,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.detached import DetachedRun
from noetic_py.core.events import StepCommitted
from noetic_py.errors import (
    Aborted,
    BudgetExceeded,
    Cancelled,
    ChannelClosed,
    ConcurrentStepCall,
    ConfigError,
    LimitExceeded,
    NoContextError,
    ParallelFailed,
    StepFailed,
    StepTimeout,
)
from noetic_py.testing import ScriptedModel
from tests.properties.checks import left_over, tasks

pytestmark = pytest.mark.anyio

LINE = Channel("line", int, external=True)
DONE = Channel("done", str)


@define
class State:
    count: int = 0
    words: list[str] = field(factory=list[str])


@asynccontextmanager
async def watched(**options: Any) -> AsyncGenerator[Harness[Any]]:
    """A harness in which nothing is left over when the block ends, before the harness itself waits for anything."""
    with anyio.fail_after(5):
        async with Harness(plugins=(), **options) as harness:
            before = tasks()
            yield harness
            assert await left_over(before) == set()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await checkpoint()


@step
async def echo(text: str) -> str:
    return text


@step
async def slow(text: str) -> str:
    await anyio.sleep_forever()
    return text


@step
async def broken(text: str) -> str:
    raise ValueError(text)


@step
async def wait_for_line(text: str, ctx: Context) -> str:
    return f"{text} {await ctx.recv(LINE, timeout=float('inf'))}"


def starts(work: Step[Any, Any, Any, Any], kept: list[DetachedRun[Any]], **options: Any) -> Step[Any, Any, Any, Any]:
    """A step that starts work beside itself, and ends."""

    @step
    async def start(text: str, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(work, text, **options))
        return text

    return start


# -------------------------------------------------------------------------------------------------------------- results


async def test_work_goes_on_beside_the_step_and_the_run_waits_for_it() -> None:
    kept: list[DetachedRun[str]] = []
    seen: list[object] = []

    @step
    async def then(text: str, ctx: Context) -> str:
        [work] = kept
        seen.extend([work.status, work.result, work.error, work.run_id == ctx.run_id, work.path])
        await ctx.send(LINE, 5)
        return text.upper()

    async with watched() as harness:
        result = await harness.run(starts(wait_for_line, kept) >> then, "a")
    assert seen == ["running", None, None, True, ("sequence", "start", "wait_for_line[detached]")]
    assert (result.value, result.status) == ("A", "completed")
    [work] = kept
    assert work.status == "completed"
    assert work.result is not None
    assert (work.result.value, work.result.status, work.result.run_id) == ("a 5", "completed", result.run_id)
    assert work.error is None


async def test_waiting_for_work() -> None:
    @step
    async def body(text: str, ctx: Context) -> list[str]:
        work = ctx.spawn_detached(wait_for_line, text)
        with pytest.raises(StepTimeout) as caught:
            await work.wait(timeout=0)
        assert caught.value.path == ("body", "wait_for_line[detached]")
        with pytest.raises(StepTimeout):
            await work.wait(timeout=0.001)
        await ctx.send(LINE, 1)
        first = await work.wait(timeout=5)
        # It has ended, so nobody waits: not even without any time.
        again = await work.wait(timeout=0)
        assert first is again is work.result is await work.wait()
        return [first.value, work.status]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == ["a 1", "completed"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_a_time_to_wait_that_is_none(timeout: Any) -> None:
    @step
    async def body(text: str, ctx: Context) -> None:
        work = ctx.spawn_detached(echo, text)
        with pytest.raises(ConfigError) as caught:
            await work.wait(timeout=timeout)
        assert caught.value.code == "detached"
        assert caught.value.hint

    async with watched() as harness:
        await harness.run(body, "a")


async def test_a_failure_is_the_work_s_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "noetic_py")

    @step
    async def body(text: str, ctx: Context) -> str:
        work = ctx.spawn_detached(broken, text)
        ended = await work.wait()
        assert (ended.status, work.status, ended.reason) == ("failed", "failed", "ValueError: a")
        assert isinstance(work.error, StepFailed)
        assert work.error.path == ("body", "broken[detached]", "broken")
        assert work.error.result is ended
        with pytest.raises(StepFailed):
            _ = ended.value
        return "went on"

    async with watched() as harness:
        result = await harness.run(body, "a")
    assert (result.status, result.value) == ("completed", "went on")
    assert "body/broken[detached] failed: ValueError: a" in caplog.text


async def test_aborting_work_from_outside_of_it() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        work = ctx.spawn_detached(slow, text)
        await turns()
        work.abort("enough")
        work.abort("too late")
        ended = await work.wait()
        assert (ended.status, ended.reason, ended.error) == ("aborted", "enough", None)
        with pytest.raises(Aborted):
            _ = ended.value
        work.abort("later still")
        assert work.status == "aborted"
        return text

    async with watched() as harness:
        assert (await harness.run(body, "a")).status == "completed"


async def test_aborting_work_before_it_begins() -> None:
    begun: list[str] = []

    @step
    async def note(text: str) -> None:
        begun.append(text)

    @step
    async def body(text: str, ctx: Context) -> str:
        work = ctx.spawn_detached(note, text)
        work.abort("enough")
        ended = await work.wait()
        # What starts after it is not disturbed by the stop that is over.
        await echo(text, ctx)
        return ended.status

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == "aborted"
    assert begun == []


async def test_what_work_asks_for_itself_holds_for_it_alone() -> None:
    @step
    async def aborts(text: str, ctx: Context) -> None:
        ctx.abort("done here")
        await anyio.sleep_forever()

    @step
    async def completes(text: str, ctx: Context) -> None:
        ctx.complete("early")
        await anyio.sleep_forever()

    @step
    async def body(text: str, ctx: Context) -> list[object]:
        first, second = ctx.spawn_detached(aborts, text), ctx.spawn_detached(completes, text)
        ends = [await first.wait(), await second.wait()]
        assert not ctx.aborted
        assert not ctx.completed
        return [(end.status, end.reason, end.output_or(None)) for end in ends]

    async with watched() as harness:
        result = await harness.run(body, "a")
    assert result.status == "completed"
    assert result.value == [("aborted", "done here", None), ("completed", None, "early")]


async def test_an_abort_below_it_that_nobody_handles_is_a_failure() -> None:
    @step
    async def aborts(text: str, ctx: Context) -> str:
        ctx.abort("inner")
        await anyio.sleep_forever()
        return text

    @step
    async def body(text: str, ctx: Context) -> list[object]:
        ended = await ctx.spawn_detached(sequence(spawn(aborts), id="outer"), text).wait()
        return [ended.status, type(ended.error)]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == ["failed", Aborted]


async def test_work_can_stop_its_run() -> None:
    @step
    async def guard(text: str, ctx: Context) -> None:
        await turns()
        ctx.root.abort("too dangerous")
        await anyio.sleep_forever()

    kept: list[DetachedRun[None]] = []
    async with watched() as harness:
        result = await harness.run(starts(guard, kept) >> slow, "a")
    assert (result.status, result.reason) == ("aborted", "too dangerous")
    assert kept[0].status == "cancelled"


async def test_the_timeout_of_a_step_in_it() -> None:
    @step
    async def body(text: str, ctx: Context) -> object:
        work = ctx.spawn_detached(slow.with_options(timeout=0.001), text)
        await work.wait()
        return type(work.error)

    async with watched() as harness:
        assert (await harness.run(body, "a")).value is StepTimeout


async def test_a_retry_inside_it() -> None:
    attempts: list[str] = []

    @step(retry=Retry(3, initial=0.0001))
    async def unsure(text: str) -> int:
        attempts.append(text)
        if len(attempts) < 3:
            raise ValueError
        return len(attempts)

    kept: list[DetachedRun[int]] = []
    async with watched() as harness:
        await harness.run(starts(unsure, kept), "a")
    assert kept[0].result is not None
    assert kept[0].result.value == 3


# ------------------------------------------------------------------------------------------------------ ends of the run


async def ends_by(end: str, ctx: Context) -> None:
    if end == "aborted":
        ctx.abort("enough")
    elif end == "completed":
        ctx.complete("enough")
    elif end == "failed":
        raise ValueError("enough")
    await anyio.sleep_forever()


@pytest.mark.parametrize("end", ["aborted", "completed", "failed"])
async def test_a_run_that_ends_before_its_work_cancels_it(end: str) -> None:
    kept: list[DetachedRun[Any]] = []
    stopped: list[str] = []

    @step
    async def stubborn(text: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await turns(20)
            stopped.append(text)

    @step
    async def finish(text: str, ctx: Context) -> None:
        await turns()
        await ends_by(end, ctx)

    flow = starts(stubborn, kept) >> starts(stubborn, kept) >> finish
    async with watched() as harness:
        result = await harness.run(flow, "a", on_error="result")
        # It was not only told to stop: it has.
        assert stopped == ["a", "a"]
    assert result.status == end
    for work in kept:
        assert work.status == "cancelled"
        assert work.error is None
        assert work.result is not None
        assert work.result.reason
        with pytest.raises(Cancelled):
            _ = work.result.value


@pytest.mark.parametrize("limit", ["steps", "seconds", "deadline"])
async def test_a_run_that_is_out_of_budget_cancels_its_work(limit: str) -> None:
    kept: list[DetachedRun[Any]] = []
    options: dict[str, Any] = {"steps": {"budget": Budget(steps=2)}, "seconds": {"budget": Budget(seconds=0.01)}}.get(
        limit, {"deadline": 0.01}
    )
    then = echo >> echo if limit == "steps" else echo
    async with watched() as harness:
        result = await harness.run(starts(slow, kept) >> then, "a", **options)
    assert result.status == "budget_exceeded"
    assert [work.status for work in kept] == ["cancelled"]


async def test_the_end_of_the_time_is_also_the_end_of_waiting_for_work() -> None:
    kept: list[DetachedRun[Any]] = []
    async with watched() as harness:
        result = await harness.run(starts(slow, kept), "a", deadline=0.01)
    assert isinstance(result.error, BudgetExceeded)
    assert (result.error.dimension, kept[0].status) == ("seconds", "cancelled")


async def test_a_run_that_is_cancelled_from_outside_takes_its_work_along() -> None:
    kept: list[DetachedRun[Any]] = []
    async with watched() as harness:
        with anyio.CancelScope() as scope:

            @step
            async def leave(text: str) -> None:
                scope.cancel()
                await anyio.sleep_forever()

            await harness.run(starts(slow, kept) >> leave, "a")
        assert scope.cancelled_caught
        assert kept[0].status == "cancelled"


async def test_a_stream_that_is_left_takes_its_work_along() -> None:
    kept: list[DetachedRun[Any]] = []
    async with watched() as harness:
        async with harness.stream(starts(slow, kept), "a"):
            while not kept:
                await checkpoint()
        assert kept[0].status == "cancelled"


async def test_a_harness_that_is_left_by_an_exception_takes_all_work_along() -> None:
    kept: list[DetachedRun[Any]] = []
    before = tasks()

    async def leave() -> None:
        async with Harness(plugins=()) as harness:
            harness.start(starts(slow, kept) >> starts(slow, kept, owner="harness"), "a")
            while len(kept) < 2:
                await checkpoint()
            raise KeyError

    with pytest.raises(KeyError):
        await leave()
    assert await left_over(before) == set()
    assert [work.status for work in kept] == ["cancelled", "cancelled"]


async def test_work_that_is_started_after_the_stop_does_not_begin() -> None:
    begun: list[str] = []

    @step
    async def note(text: str) -> None:
        begun.append(text)

    @step
    async def body(text: str, ctx: Context) -> None:
        ctx.abort("enough")
        kept.append(ctx.spawn_detached(note, text))
        await anyio.sleep_forever()

    kept: list[DetachedRun[None]] = []
    async with watched() as harness:
        assert (await harness.run(body, "a")).status == "aborted"
    assert (begun, kept[0].status) == ([], "cancelled")


async def test_the_end_of_a_spawn_takes_along_what_was_started_in_it_when_it_was_stopped() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def stop(text: str, ctx: Context) -> None:
        ctx.complete("early")
        await anyio.sleep_forever()

    @step
    async def look(_: object) -> RunStatus:
        await turns()
        return kept[0].status

    async with watched() as harness:
        assert (await harness.run(spawn(starts(slow, kept) >> stop) >> look, "a")).value == "cancelled"


async def test_a_spawn_that_ends_by_itself_leaves_its_work_to_the_run() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def send(text: str, ctx: Context) -> RunStatus:
        before = kept[0].status
        await ctx.send(LINE, 1)
        return before

    async with watched() as harness:
        result = await harness.run(spawn(starts(wait_for_line, kept)) >> send, "a")
    assert (result.value, kept[0].status) == ("running", "completed")


async def test_work_of_a_wrap_up_step_is_waited_for_too() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def yields(text: str) -> str:
        await turns(30)
        return text

    @step
    async def last(_: object, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(yields, "b"))
        return "wrapped"

    budget = Budget(steps=4, wrap_up=last, reserve=Budget(steps=3))
    async with watched() as harness:
        result = await harness.run(echo >> echo, "a", budget=budget)
    assert (result.status, result.value, kept[0].status) == ("budget_exceeded", "wrapped", "completed")
    assert result.steps == 3


# ----------------------------------------------------------------------------------------- attempts, races, taken along


async def test_a_second_attempt_starts_its_work_again_under_the_same_path() -> None:
    kept: list[DetachedRun[str]] = []

    @step
    async def write(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        await echo(text, ctx)
        ctx.items.append(Message.user(text.upper()))
        return text

    @step(retry=Retry(3, initial=0.0001))
    async def body(text: str, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(write, f"attempt {len(kept)}"))
        await kept[-1].wait()
        if len(kept) < 3:
            raise ValueError
        return text

    async with watched() as harness:
        result = await harness.run(body, "a")
    assert {work.path for work in kept} == {("body", "write[detached]")}
    assert [work.status for work in kept] == ["completed"] * 3
    for at, work in enumerate(kept):
        assert work.result is not None
        assert [item.text for item in work.result.items if isinstance(item, Message)] == [
            f"attempt {at}",
            f"ATTEMPT {at}",
        ]
    assert list(result.items) == []


async def test_an_attempt_that_failed_takes_its_work_along_before_the_next_one() -> None:
    kept: list[DetachedRun[Any]] = []
    before: list[RunStatus] = []

    @step(retry=Retry(2, initial=0.0001))
    async def body(text: str, ctx: Context) -> str:
        before.extend(work.status for work in kept)
        kept.append(ctx.spawn_detached(slow if not kept else echo, text))
        await starts(slow if len(kept) == 1 else echo, kept)(text, ctx)
        if len(before) == 0:
            raise ValueError
        return text

    async with watched() as harness:
        await harness.run(body, "a")
    assert before == ["cancelled", "cancelled"]
    assert [work.status for work in kept] == ["cancelled", "cancelled", "completed", "completed"]


async def test_work_of_an_attempt_that_fails_at_once_does_not_begin() -> None:
    begun: list[int] = []

    @step
    async def note(n: int) -> None:
        begun.append(n)

    @step(retry=Retry(2, initial=0.0001))
    async def body(n: int, ctx: Context) -> None:
        attempts.append(n)
        ctx.spawn_detached(note, len(attempts))
        if len(attempts) == 1:
            raise ValueError

    attempts: list[int] = []
    async with watched() as harness:
        await harness.run(body, 0)
    assert begun == [2]


async def test_a_final_failure_that_is_handled_leaves_the_work_to_the_run() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(StepFailed):
            await (starts(wait_for_line, kept) >> broken)(text, ctx)
        assert kept[0].status == "running"
        await ctx.send(LINE, 3)
        value: str = (await kept[0].wait()).value
        return value

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == "a 3"


async def test_the_losers_of_a_race_take_their_work_along() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def wins(text: str) -> str:
        while len(kept) < 2:
            await checkpoint()
        return text

    loses = sequence(starts(slow, kept), starts(slow, kept), slow, id="loses")

    @step
    async def look(text: str) -> list[RunStatus]:
        return [work.status for work in kept]

    async with watched() as harness:
        result = await harness.run(race([wins, loses]) >> look, "a")
    assert result.value == ["cancelled", "cancelled"]


async def test_a_step_that_is_cancelled_takes_its_work_along() -> None:
    kept: list[DetachedRun[Any]] = []
    ready = anyio.Event()

    @step
    async def begins(text: str, ctx: Context) -> None:
        kept.append(ctx.spawn_detached(slow, text))
        ready.set()
        await anyio.sleep_forever()

    @step
    async def fails(text: str) -> None:
        await ready.wait()
        raise ValueError

    @step
    async def body(text: str, ctx: Context) -> RunStatus:
        with pytest.raises(ParallelFailed):
            await ctx.gather(begins.bind(text), fails.bind(text))
        return (await kept[0].wait()).status

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == "cancelled"


async def test_messages_of_a_second_attempt_and_its_work_are_sent_once() -> None:
    attempts: list[int] = []

    @step
    async def write(text: str, ctx: Context) -> None:
        await ctx.send(DONE, f"{text} 1")
        await ctx.send(DONE, f"{text} 2")

    @step(retry=Retry(3, initial=0.0001))
    async def body(n: int, ctx: Context) -> None:
        attempts.append(n)
        await ctx.send(DONE, "own")
        await ctx.spawn_detached(write, "beside").wait()
        await write("child", ctx)
        if len(attempts) < 3:
            raise ValueError

    @step
    async def collect(_: None, ctx: Context) -> list[str]:
        found: list[str] = []
        while (message := ctx.try_recv(DONE)) is not None:
            found.append(message)
        return found

    async with watched() as harness:
        result = await harness.run(body >> collect, 0)
    assert result.value == ["own", "beside 1", "beside 2", "child 1", "child 2"]


async def test_messages_taken_by_an_attempt_and_its_work_go_back_to_their_places() -> None:
    numbers = Channel("numbers", int)
    got: list[list[int]] = []

    @step
    async def two(_: int, ctx: Context) -> list[int]:
        return [await ctx.recv(numbers), await ctx.recv(numbers)]

    @step(retry=Retry(2, initial=0.0001))
    async def body(n: int, ctx: Context) -> None:
        own = [await ctx.recv(numbers)]
        beside = (await ctx.spawn_detached(two, 0).wait()).value
        child = await two(0, ctx)
        got.extend([own, beside, child])
        if len(got) == 3:
            raise ValueError

    @step
    async def fill(n: int, ctx: Context) -> int:
        for each in range(7):
            await ctx.send(numbers, each)
        return n

    @step
    async def rest(_: None, ctx: Context) -> list[int | None]:
        return [ctx.try_recv(numbers) for _ in range(3)]

    async with watched() as harness:
        result = await harness.run(fill >> body >> rest, 0)
    assert got == [[0], [1, 2], [3, 4]] * 2
    assert result.value == [5, 6, None]


@pytest.mark.parametrize("end", ["fails", "is aborted", "is stopped by its budget", "is cancelled"])
async def test_what_a_step_of_the_work_had_taken_when_it_ended_goes_back(end: str) -> None:
    @step
    async def take(text: str, ctx: Context) -> None:
        await ctx.recv(LINE)
        await ctx.recv(LINE)
        if end == "fails":
            raise ValueError
        if end == "is stopped by its budget":
            await echo(text, ctx)
            await echo(text, ctx)
        await anyio.sleep_forever()

    @step
    async def begins(text: str, ctx: Context) -> str:
        ctx.spawn_detached(take, text)
        return await slow(text, ctx)

    @step
    async def wins(text: str) -> str:
        await turns(20)
        return "won"

    @step
    async def body(text: str, ctx: Context) -> list[int | None]:
        for each in range(3):
            await ctx.send(LINE, each)
        budget = Budget(steps=2) if end == "is stopped by its budget" else None
        if end == "is cancelled":
            assert await race([begins, wins])(text, ctx) == "won"
        else:
            work = ctx.spawn_detached(take, text, budget=budget)
            await turns(20)
            if end == "is aborted":
                work.abort("enough")
            await work.wait()
        return [ctx.try_recv(LINE) for _ in range(4)]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == [0, 1, 2, None]


async def test_what_the_work_s_finished_steps_have_taken_stays_taken() -> None:
    @step
    async def take(text: str, ctx: Context) -> str:
        await ctx.recv(LINE)
        return text

    @step
    async def body(text: str, ctx: Context) -> list[int | None]:
        for each in range(2):
            await ctx.send(LINE, each)
        await ctx.spawn_detached(take >> broken, text).wait()
        return [ctx.try_recv(LINE) for _ in range(2)]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == [1, None]


async def test_a_take_in_flight_goes_back_also_when_what_started_the_work_has_ended() -> None:
    """The take was kept for the starter's second attempt; from the starter's end on it is the taker's alone."""
    taken = anyio.Event()
    go_on = anyio.Event()
    kept: list[DetachedRun[Any]] = []

    @step
    async def take(text: str, ctx: Context) -> None:
        await ctx.recv(LINE)
        taken.set()
        await go_on.wait()
        raise ValueError

    @step(retry=2)
    async def body(text: str, ctx: Context) -> str:
        await ctx.send(LINE, 7)
        kept.append(ctx.spawn_detached(take, text))
        await taken.wait()
        return text

    @step
    async def then(text: str, ctx: Context) -> int | None:
        go_on.set()
        await kept[0].wait()
        return ctx.try_recv(LINE)

    async with watched() as harness:
        result = await harness.run(body >> then, "a")
    assert result.value == 7


# ------------------------------------------------------------------------------------------- nesting, limits, ownership


async def test_work_starts_work() -> None:
    paths: list[tuple[str, ...]] = []

    @step
    async def nested(n: int, ctx: Context) -> None:
        paths.append(ctx.path)
        assert ctx.depth == 4 - n
        assert ctx.parent is not None or n == 4
        if n:
            ctx.spawn_detached(nested, n - 1)

    async with watched() as harness:
        await harness.run(nested, 4)
    assert len(paths) == 5
    assert paths[-1] == ("nested", *("nested[detached]", "nested") * 4)


async def test_work_below_work_ends_with_it_when_it_is_stopped() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def body(text: str, ctx: Context) -> list[RunStatus]:
        outer = ctx.spawn_detached(starts(slow, kept) >> slow, text)
        while not kept:
            await checkpoint()
        outer.abort("enough")
        await outer.wait()
        await kept[0].wait()
        return [outer.status, kept[0].status]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == ["aborted", "cancelled"]


async def test_the_same_step_several_times() -> None:
    @step
    async def body(text: str, ctx: Context) -> list[tuple[str, ...]]:
        works = [ctx.spawn_detached(echo, f"{n}") for n in range(3)]
        assert [(await work.wait()).value for work in works] == ["0", "1", "2"]
        # A child step of that name has a path of its own.
        await echo("x", ctx)
        return [work.path for work in works]

    async with watched() as harness:
        result = await harness.run(body, "a")
    assert result.value == [("body", f"echo[detached]{suffix}") for suffix in ("", "#1", "#2")]


async def test_the_depth_is_limited() -> None:
    deepest: list[int] = []

    @step
    async def dig(n: int, ctx: Context) -> None:
        deepest.append(ctx.depth)
        if n < 16:
            ctx.spawn_detached(dig, n + 1)
        else:
            with pytest.raises(LimitExceeded) as caught:
                ctx.spawn_detached(dig, n)
            assert caught.value.path == ctx.path
            assert caught.value.hint

    kept: list[DetachedRun[Any]] = []
    async with watched() as harness:
        await harness.run(starts(dig, kept), 1)
    assert deepest == list(range(1, 17))
    assert kept[0].status == "completed"


async def test_a_budget_s_depth_holds_for_it_too() -> None:
    @step
    async def dig(n: int, ctx: Context) -> None:
        with pytest.raises(BudgetExceeded, match="depth"):
            ctx.spawn_detached(echo, "x")

    async with watched() as harness:
        await harness.run(dig, 0, budget=Budget(depth=0))


async def test_256_live_children_and_no_more() -> None:
    works: list[DetachedRun[Any]] = []

    @step
    async def body(n: int, ctx: Context) -> int:
        for _ in range(256):
            works.append(ctx.spawn_detached(slow, "x"))  # noqa: PERF401 # the last one raises
        with pytest.raises(LimitExceeded) as caught:
            ctx.spawn_detached(echo, "x")
        assert caught.value.path == ("body",)
        assert caught.value.hint
        await turns(2)
        works[0].abort("make room")
        await works[0].wait()
        last = await ctx.spawn_detached(echo, "x").wait()
        assert last.value == "x"
        for work in works[1:]:
            work.abort("enough")
        return len({work.path for work in works})

    async with watched() as harness:
        assert (await harness.run(body, 0)).value == 256


async def test_what_could_not_be_started_does_not_count() -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> Any:
            raise TypeError("no")

    @step
    async def body(n: int, ctx: Context[Any, Any]) -> list[str]:
        for _ in range(300):
            with pytest.raises(ConfigError) as caught:
                ctx.spawn_detached(echo, "x")
            assert caught.value.code == "state-copy"
        # The first that can be started has the first path, and there is room for it.
        work = ctx.spawn_detached(echo, "x", state=StateBag())
        return [*work.path, (await work.wait()).value]

    async with watched() as harness:
        result = await harness.run(body, 0, state=Uncopyable())
    assert result.value == ["body", "echo[detached]", "x"]


async def test_a_harness_that_was_not_entered_owns_nothing() -> None:
    @step
    async def body(text: str, ctx: Context) -> None:
        ctx.spawn_detached(echo, text)

    with pytest.raises(ConfigError) as caught:
        await Harness(plugins=()).run(body, "a")
    assert (caught.value.code, caught.value.path) == ("harness-not-entered", ("body",))
    assert "async with" in (caught.value.hint or "")


def test_run_sync_owns_its_work() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def yields(text: str) -> str:
        await turns()
        return text

    harness = Harness(plugins=())
    assert harness.run_sync(starts(yields, kept) >> starts(yields, kept, owner="harness"), "a").value == "a"
    assert [work.status for work in kept] == ["completed", "completed"]


async def test_work_of_the_harness_goes_on_after_the_run() -> None:
    kept: list[DetachedRun[str]] = []
    async with Harness(plugins=()) as harness:
        before = tasks()
        result = await harness.run(starts(wait_for_line, kept, owner="harness"), "a", user_id="u", request_id="r")
        [work] = kept
        assert result.status == "completed"
        assert (work.status, work.result, work.error) == ("running", None, None)
        assert work.run_id != result.run_id
        # Its channels are its own.
        channel = work.channel(LINE)
        channel.send(4)
        ended = await work.wait(timeout=5)
        assert (ended.value, ended.run_id, work.status) == ("a 4", work.run_id, "completed")
        with pytest.raises(ChannelClosed):
            channel.send(5)
        assert await left_over(before) == set()


@pytest.mark.parametrize("end", ["abort", "fail"])
async def test_work_of_the_harness_is_not_touched_by_the_end_of_the_run(end: str) -> None:
    kept: list[DetachedRun[str]] = []

    @step
    async def finish(text: str, ctx: Context) -> None:
        await ends_by("aborted" if end == "abort" else "failed", ctx)

    async with Harness(plugins=()) as harness:
        await harness.run(starts(wait_for_line, kept, owner="harness") >> finish, "a", on_error="result")
        kept[0].channel(LINE).send(1)
        assert (await kept[0].wait()).value == "a 1"


async def test_aborting_work_of_the_harness() -> None:
    kept: list[DetachedRun[str]] = []
    async with Harness(plugins=()) as harness:
        await harness.run(starts(slow, kept, owner="harness"), "a")
        kept[0].abort("enough")
        ended = await kept[0].wait()
        kept[0].abort("later")
    assert (ended.status, ended.reason, kept[0].status) == ("aborted", "enough", "aborted")


async def test_a_failure_of_the_harness_s_work_is_its_own() -> None:
    kept: list[DetachedRun[str]] = []
    async with Harness(plugins=()) as harness:
        await harness.run(starts(broken, kept, owner="harness"), "a")
        ended = await kept[0].wait()
    assert (ended.status, type(kept[0].error)) == ("failed", StepFailed)


class Client: ...


async def test_what_work_of_the_harness_gets_from_its_starter() -> None:
    kept: list[DetachedRun[Any]] = []
    client = Client()

    @step
    async def look(text: str, ctx: Context[Any, Any]) -> list[object]:
        ctx.state.put("seen", text)
        return [ctx.user_id, ctx.request_id, ctx.services[Client], ctx.depth, ctx.parent, ctx.state.get("before")]

    state = StateBag({"before": 1})
    options: dict[str, Any] = {"user_id": "u", "request_id": "r", "services": {Client: client}}
    async with Harness(plugins=()) as harness:
        flow = starts(look, kept, owner="harness") >> starts(look, kept, owner="harness", state=StateBag({"before": 2}))
        await harness.run(flow, "a", state=state, **options)
        ends = [await work.wait() for work in kept]
    assert [end.value for end in ends] == [["u", "r", client, 0, None, None], ["u", "r", client, 0, None, 2]]
    assert state == StateBag({"before": 1})
    assert [end.state for end in ends] == [StateBag({"seen": "a"}), StateBag({"before": 2, "seen": "a"})]


async def test_the_harness_s_work_may_be_started_while_the_harness_is_being_left() -> None:
    kept: list[DetachedRun[Any]] = []
    leaving = anyio.Event()

    @step
    async def late(text: str, ctx: Context) -> str:
        await leaving.wait()
        await turns()
        await (starts(echo, kept) >> starts(echo, kept, owner="harness"))(text, ctx)
        return text

    async with Harness(plugins=()) as harness:
        handle = harness.start(late, "a")
        leaving.set()
    assert (await handle.result()).value == "a"
    assert [work.status for work in kept] == ["completed", "completed"]


# --------------------------------------------------------------------------------------------- from where it is started


async def test_starting_work_from_a_task_of_the_body_s_own() -> None:
    @step
    async def body(text: str, ctx: Context) -> None:
        async def elsewhere() -> None:
            ctx.spawn_detached(echo, text)

        async with anyio.create_task_group() as group:
            group.start_soon(elsewhere)

    async with watched() as harness:
        with pytest.raises(ConcurrentStepCall) as caught:
            await harness.run(body, "a")
    assert caught.value.path == ("body",)
    assert caught.value.hint


async def test_starting_work_after_the_step_has_ended() -> None:
    contexts: list[Context] = []

    @step
    async def leak(text: str, ctx: Context) -> str:
        contexts.append(ctx)
        return text

    @step
    async def body(text: str, ctx: Context) -> None:
        await leak(text, ctx)
        with pytest.raises(ConcurrentStepCall) as caught:
            contexts[0].spawn_detached(echo, text)
        assert caught.value.path == ("body", "leak")

    async with watched() as harness:
        await harness.run(body, "a")


async def test_starting_work_outside_a_run() -> None:
    with pytest.raises(NoContextError) as caught:
        Context().spawn_detached(echo, "a")
    assert caught.value.hint


async def test_starting_work_from_a_sync_tool_s_thread() -> None:
    kept: list[DetachedRun[str]] = []

    @tool
    def begin(ctx: Context, text: str) -> str:
        """Begin something."""
        kept.extend(ctx.spawn_detached(echo, f"{text}{n}") for n in range(2))
        return text

    @step
    async def after(text: str, ctx: Context) -> str:
        # The tool's step has left its body's calls in order.
        return await echo(text, ctx)

    async with watched() as harness:
        result = await harness.run(call_tool(begin, args={"text": "a"}) >> after, None)
    assert result.value == "a"
    assert [work.path for work in kept] == [
        ("sequence", "begin", "echo[detached]"),
        ("sequence", "begin", "echo[detached]#1"),
    ]
    assert [work.result.value for work in kept if work.result] == ["a0", "a1"]


async def test_starting_work_through_the_root() -> None:
    @step
    async def body(text: str, ctx: Context) -> tuple[str, ...]:
        work = ctx.root.spawn_detached(echo, text)
        await work.wait()
        return work.path

    async with watched() as harness:
        # It belongs to the step that asks.
        assert (await harness.run(body, "a")).value == ("body", "echo[detached]")


@pytest.mark.parametrize(
    ("work", "options", "code"),
    [("echo", {}, "not-a-step"), (echo, {"owner": "nobody"}, "detached"), (echo, {"budget": 3}, "detached")],
    ids=["step", "owner", "budget"],
)
async def test_wrong_arguments(work: Any, options: Any, code: str) -> None:
    @step
    async def body(text: str, ctx: Context[Any, Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            ctx.spawn_detached(work, text, **options)
        assert caught.value.code == code
        assert caught.value.hint

    async with watched() as harness:
        await harness.run(body, "a")


# ------------------------------------------------------------------------------- state, conversation, journal, channels


async def test_the_state_is_a_copy_unless_one_is_given() -> None:
    @step
    async def write(word: str, ctx: Context[Any, State]) -> str:
        ctx.state.count += 1
        ctx.state.words.append(word)
        return word

    @step
    async def body(text: str, ctx: Context[Any, State]) -> list[State]:
        ctx.state.words.append("mine")
        given = State(count=5)
        works = [ctx.spawn_detached(write, "a"), ctx.spawn_detached(write, "b", state=given)]
        ctx.state.words.append("later")
        ends = [await work.wait() for work in works]
        assert ends[1].state is given
        return [end.state for end in ends if isinstance(end.state, State)]

    async with watched() as harness:
        result = await harness.run(body, "a", state=State())
    assert result.value == [State(1, ["mine", "a"]), State(6, ["b"])]
    assert result.state == State(0, ["mine", "later"])


async def test_items_stay_in_the_work_s_own_conversation() -> None:
    @step
    async def write(word: str, ctx: Context) -> str:
        assert len(ctx.items) == 0
        ctx.items.append(Message.user(f"{word} 1"))
        await echo(word, ctx)
        await spawn(call_model())(word, ctx)
        ctx.items.append(Message.user(f"{word} 2"))
        return word

    @step
    async def body(text: str, ctx: Context) -> list[str]:
        ctx.items.append(Message.user("body 1"))
        works = [ctx.spawn_detached(write, word) for word in ("a", "b")]
        ctx.items.append(Message.user("body 2"))
        await turns()
        await echo(text, ctx)
        ctx.items.append(Message.user("body 3"))
        ends = [await work.wait() for work in works]
        assert {work.path[-1] for work in works} == {"write[detached]", "write[detached]#1"}
        ctx.items.append(Message.user("body 4"))
        assert len(ctx.items) == 4
        return [" ".join(texts(end.items)) + "|" + " ".join(texts(end.new_items)) for end in ends]

    async with watched(model=ScriptedModel("said", "said")) as harness:
        result = await harness.run(body, "x")
    assert result.value == ["a 1 a 2|a 1 a 2", "b 1 b 2|b 1 b 2"]
    assert texts(result.items) == ["body 1", "body 2", "body 3", "body 4"]
    assert texts(result.new_items) == ["body 1", "body 2", "body 3", "body 4"]


def texts(items: Any) -> list[str]:
    return [item.text for item in items]


async def test_a_model_s_round_in_it_is_its_own() -> None:
    @tool
    async def look(query: str) -> str:
        """Look."""
        return f"found {query}"

    agent = loop(call_model(tools=[look]), until=until.no_tool_calls())
    model = ScriptedModel([FunctionCall(name="look", arguments={"query": "a"})], "done")
    kept: list[DetachedRun[Any]] = []
    async with watched(model=model) as harness:
        result = await harness.run(starts(agent, kept), "a")
    ended = kept[0].result
    assert ended is not None
    assert [type(item).__name__ for item in ended.items] == [
        "Message",
        "FunctionCall",
        "FunctionCallOutput",
        "Message",
    ]
    assert (ended.value, ended.text, ended.model_calls) == ("done", "done", 2)
    assert (len(result.items), result.model_calls) == (0, 2)


@pytest.mark.parametrize("end", ["failed", "aborted"])
async def test_the_conversation_of_work_that_did_not_get_to_its_end(end: str) -> None:
    @step
    async def note(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    @step
    async def stop(text: str, ctx: Context) -> None:
        ctx.items.append(Message.user("lost"))
        if end == "failed":
            raise ValueError
        await anyio.sleep_forever()

    @step
    async def body(text: str, ctx: Context) -> list[str]:
        work = ctx.spawn_detached(note >> note >> stop, text)
        await turns(20)
        work.abort("enough")
        ended = await work.wait()
        assert ended.status == end
        return texts(ended.items)

    async with watched() as harness:
        result = await harness.run(body, "a")
    assert result.value == ["a", "a"]
    assert list(result.items) == []


async def test_commits_of_work_do_not_write_what_the_starter_has_not_finished() -> None:
    """Work commits in the middle of its starter's unwritten segment: the starter's place and order are its own."""
    go = anyio.Event()

    @step
    async def note(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    @step
    async def beside(text: str, ctx: Context) -> None:
        await note("beside 1", ctx)
        go.set()
        await note("beside 2", ctx)

    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user("body 1"))
        work = ctx.spawn_detached(beside, text)
        ctx.items.append(Message.user("body 2"))
        await go.wait()
        ctx.items.append(Message.user("body 3"))
        await work.wait()
        await note("child", ctx)
        ctx.items.append(Message.user("body 4"))
        return text

    order: list[tuple[str, ...]] = []
    async with watched() as harness, harness.stream(note >> body, "before") as stream:
        order = [event.path async for event in stream.events if isinstance(event, StepCommitted)]
        result = await stream.result()
    assert texts(result.items) == ["before", "body 1", "body 2", "body 3", "child", "body 4"]
    work = ("sequence", "body", "beside[detached]")
    assert order == [
        ("sequence", "note"),
        (*work, "beside", "note"),
        (*work, "beside", "note#1"),
        (*work, "beside"),
        work,
        ("sequence", "body", "note"),
        ("sequence", "body"),
        ("sequence",),
    ]


async def test_a_starter_that_fails_leaves_nothing_of_its_own_although_its_work_has_committed() -> None:
    @step
    async def note(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    @step
    async def fails(text: str, ctx: Context[Any, State]) -> str:
        ctx.items.append(Message.user("lost"))
        ctx.state.count = 9
        await ctx.spawn_detached(note, "beside").wait()
        raise ValueError

    @step
    async def body(text: str, ctx: Context[Any, State]) -> str:
        ctx.items.append(Message.user("kept"))
        with pytest.raises(StepFailed):
            await fails(text, ctx)
        return text

    async with watched() as harness:
        result = await harness.run(body, "a", state=State())
    assert texts(result.items) == ["kept"]
    assert result.state.count == 0


async def test_the_context_of_work() -> None:
    seen: dict[str, Any] = {}

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.update(
            path=ctx.path, depth=ctx.depth, branch=ctx.branch, input=ctx.input, run=ctx.run_id, steps=ctx.step_count
        )
        assert current_context() is ctx
        assert ctx.parent is not None
        assert ctx.parent.path == ("body",)
        assert ctx.root.path == ()
        assert ctx.id != ctx.run_id
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        await ctx.spawn_detached(look, "in").wait()
        return ctx.run_id

    async with watched() as harness:
        run_id = (await harness.run(body, "a")).value
    assert seen == {
        "path": ("body", "look[detached]", "look"),
        "depth": 1,
        "branch": "body.look[detached].look",
        "input": "in",
        "run": run_id,
        "steps": 1,
    }


async def test_stop_loop_does_not_reach_out_of_work() -> None:
    @step
    async def stop(text: str, ctx: Context) -> None:
        with pytest.raises(ConfigError) as caught:
            ctx.stop_loop()
        assert caught.value.code == "no-loop"

    @step
    async def body(text: str, ctx: Context) -> str:
        ended = await ctx.spawn_detached(stop, text).wait()
        assert ended.status == "completed"
        return text

    async with watched() as harness:
        assert (await harness.run(loop(body, until=until.max_rounds(2)), "a")).value == "a"


async def test_a_handle_of_the_run_s_channel() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        work = ctx.spawn_detached(wait_for_line, text)
        work.channel(LINE).send(8)
        with pytest.raises(ConfigError):
            work.channel(DONE)
        return (await work.wait()).value

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == "a 8"


# --------------------------------------------------------------------------------------------------------------- budget


@step
async def counted(n: int, ctx: Context) -> int:
    for _ in range(n):
        await echo("x", ctx)
    return n


def as_it_is(flow: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    return flow


def in_a_spawn(flow: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    return spawn(flow)


def in_a_spawn_with_a_cap(flow: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    return spawn(flow, budget=Budget(steps=100))


def with_budget_of_its_own(flow: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    return flow.with_options(budget=Budget(cost=1))


@pytest.mark.parametrize(
    "around", [as_it_is, in_a_spawn, with_budget_of_its_own, in_a_spawn_with_a_cap], ids=lambda around: around.__name__
)
@pytest.mark.parametrize("limit", [None, Budget(steps=1000, tokens=100_000, cost=10)], ids=["free", "limited"])
async def test_what_work_uses_counts_for_its_run(around: Callable[[Any], Any], limit: Budget | None) -> None:
    """Also when what started it has ended, and with it the lease that the work hangs from."""
    kept: list[DetachedRun[Any]] = []
    go = anyio.Event()

    @step
    async def work(n: int, ctx: Context) -> str:
        await go.wait()
        await counted(n, ctx)
        return str(await spawn(call_model())("hi", ctx))

    @step
    async def then(n: int, ctx: Context) -> None:
        go.set()

    model = ScriptedModel("hello", "hello", cost="0.25")
    options: dict[str, Any] = {} if limit is None else {"budget": limit}

    @step
    async def start(n: int, ctx: Context) -> int:
        kept.extend(ctx.spawn_detached(work, each) for each in (3, 4))
        return n

    async with watched(model=model, budget=Budget(cost=100)) as harness:
        result = await harness.run(around(start) >> then, 0, **options)
        whole = harness._resources.lease
    ends = [work.result for work in kept]
    # start, then; and of each work: itself, counted, its echoes and the model call.
    assert [(end.steps, end.cost, end.model_calls) for end in ends if end] == [
        (6, Decimal("0.25"), 1),
        (7, Decimal("0.25"), 1),
    ]
    assert result.steps == 2 + 6 + 7 == whole.steps
    assert result.cost == Decimal("0.5") == whole.cost
    assert result.model_calls == 2
    assert result.usage == ends[0].usage + ends[1].usage if ends[0] and ends[1] else False
    assert not any(whole._held.values())


async def test_a_budget_of_its_own_is_a_cap() -> None:
    @step
    async def body(n: int, ctx: Context) -> list[object]:
        work = ctx.spawn_detached(counted, 10, budget=Budget(steps=4))
        ended = await work.wait()
        assert isinstance(ended.error, BudgetExceeded)
        assert work.error is ended.error
        assert ended.error.dimension == "steps"
        return [ended.status, ended.steps, work.status]

    async with watched() as harness:
        result = await harness.run(body, 0, budget=Budget(steps=100))
    assert result.value == ["budget_exceeded", 4, "budget_exceeded"]
    assert (result.status, result.steps) == ("completed", 5)


async def test_its_own_wrap_up() -> None:
    @step
    async def last(_: object) -> str:
        return "wrapped"

    @step
    async def body(n: int, ctx: Context) -> list[object]:
        budget = Budget(steps=4, wrap_up=last, reserve=Budget(steps=1))
        ended = await ctx.spawn_detached(counted, 10, budget=budget).wait()
        return [ended.output_or(None), ended.steps]

    async with watched() as harness:
        result = await harness.run(body, 0)
    assert result.value == ["wrapped", 4]


async def test_its_time_is_limited() -> None:
    @step
    async def body(text: str, ctx: Context) -> list[object]:
        ended = await ctx.spawn_detached(slow, text, budget=Budget(seconds=0.01)).wait()
        assert isinstance(ended.error, BudgetExceeded)
        return [ended.status, ended.error.dimension, 0 < ended.seconds < 5]

    async with watched() as harness:
        assert (await harness.run(body, "a")).value == ["budget_exceeded", "seconds", True]


async def test_the_run_s_limit_stops_the_work_and_not_only_the_flow() -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def patient(text: str) -> str:
        ended = await kept[0].wait()
        return ended.status

    flow = starts(counted, kept)

    async with watched() as harness:

        @step
        async def begin(n: int, ctx: Context) -> str:
            kept.append(ctx.spawn_detached(counted, 10))
            return "x"

        result = await harness.run(begin >> patient, 0, budget=Budget(steps=7))
    assert flow.id == "start"
    assert result.status == "completed"
    assert (result.value, result.steps) == ("budget_exceeded", 7)


async def test_the_steps_of_work_in_flight_and_of_the_flow_share_one_count() -> None:
    @step
    async def body(n: int, ctx: Context) -> int:
        works = [ctx.spawn_detached(counted, 10) for _ in range(3)]
        ends = [await work.wait() for work in works]
        return sum(end.steps for end in ends)

    async with watched() as harness:
        result = await harness.run(body, 0, budget=Budget(steps=20))
    assert result.steps == 20
    assert result.value == 19


# ---------------------------------------------------------------------------------------------------------- the journal


@pytest.mark.parametrize("end", ["completed", "failed", "budget_exceeded"])
async def test_nothing_is_written_after_the_end_of_the_run(end: str) -> None:
    kept: list[DetachedRun[Any]] = []

    @step
    async def last(_: object, ctx: Context) -> str:
        kept.append(ctx.spawn_detached(echo, "b"))
        return "wrapped"

    flow = starts(echo, kept) >> (broken if end == "failed" else echo >> echo)
    budget = Budget(steps=4, wrap_up=last, reserve=Budget(steps=2)) if end == "budget_exceeded" else Budget(steps=50)
    async with watched() as harness, harness.stream(flow, "a", on_error="result", budget=budget) as stream:
        events = [event async for event in stream.events]
        result = await stream.result()
    assert result.status == end
    assert isinstance(events[-1], RunFinished)
    assert all(work.status in ("completed", "cancelled") for work in kept)


async def test_work_beside_parallel_paths() -> None:
    kept: list[DetachedRun[Any]] = []

    async with watched() as harness:
        result = await harness.run(parallel([starts(echo, kept), starts(echo, kept), starts(echo, kept)]), "a")
    assert result.value == ["a", "a", "a"]
    assert {work.path for work in kept} == {("parallel", f"start[{n}]", "echo[detached]") for n in range(3)}
    assert [work.status for work in kept] == ["completed"] * 3
