"""A loop that takes its inputs from a channel, and parks where it has nothing to do."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from noetic_py import (
    Channel,
    Context,
    FunctionCall,
    Harness,
    Message,
    Retry,
    RunHandle,
    Step,
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
from noetic_py.core.events import LoopIteration, LoopWaiting
from noetic_py.errors import ConfigError, LoopLimit, StepFailed
from noetic_py.testing import ScriptedModel
from noetic_py.until import Snapshot, Verdict
from tests.properties.checks import left_over, tasks

pytestmark = pytest.mark.anyio

INBOX = Channel("inbox", str, external=True)
FOR_EVER = float("inf")


@step
async def echo(text: str) -> str:
    return text


def listen(body: Step[Any, Any, Any, Any] = echo, **options: Any) -> Step[Any, Any, Any, Any]:
    """A loop that would end after each iteration, were there no message."""
    make: Any = loop
    listening: Step[Any, Any, Any, Any] = make(body, until=until.max_rounds(1), inbox=INBOX, **options)
    return listening


def fill(*messages: str) -> Step[Any, Any, Any, Any]:
    @step(id="fill")
    async def send(text: str, ctx: Context) -> str:
        for message in messages:
            await ctx.send(INBOX, message)
        return text

    return send


@step
async def rest(_: object, ctx: Context) -> list[str]:
    """What is left in the inbox."""
    found: list[str] = []
    while (message := ctx.try_recv(INBOX)) is not None:
        found.append(message)
    return found


def noted(seen: list[str]) -> Step[str, str, Any, Any]:
    @step(id="note")
    async def note(text: str) -> str:
        seen.append(text)
        return text.upper()

    return note


async def run(flow: Any, input: object = "first", **options: Any) -> Any:
    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            return (await harness.run(flow, input, **options)).value


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await checkpoint()


@asynccontextmanager
async def parked(flow: Step[Any, Any, Any, Any]) -> AsyncGenerator[RunHandle[Any, Any]]:
    """A run that has got to where its loop waits for a message, and that leaves nothing behind."""
    async with Harness(plugins=()) as harness:
        before = tasks()
        start: Any = harness.start
        handle: RunHandle[Any, Any] = start(flow, "first", on_error="result")
        with anyio.fail_after(5):
            async for event in handle.stream.events:
                if isinstance(event, LoopWaiting):
                    break
            yield handle
            await handle.result()
            assert await left_over(before) == set()


# --------------------------------------------------------------------------------------------------------------- inputs


async def test_each_message_is_an_input() -> None:
    seen: list[str] = []
    assert await run(fill("a", "b", "c") >> listen(noted(seen))) == "C"
    assert seen == ["first", "a", "b", "c"]


async def test_a_loop_without_a_message_ends_as_any_other() -> None:
    async with Harness(plugins=()) as harness:
        result = await harness.run(listen(), "first")
    assert (result.value, result.reason) == ("first", "max_rounds: 1 round reached")


async def test_what_comes_while_it_runs_is_taken_where_it_would_stop() -> None:
    seen: list[str] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        seen.append(text)
        if len(text) < 4:
            await ctx.send(INBOX, text + "x")
        return text

    assert await run(listen(body), "a") == "axxx"
    assert seen == ["a", "ax", "axx", "axxx"]


async def test_between_two_iterations_of_a_body_that_goes_on_by_itself_its_output_is_the_input() -> None:
    """An output is an input like any other; what waits is taken where the loop would stop."""
    seen: list[str] = []
    body = noted(seen)
    assert await run(fill("a", "b") >> loop(body, until=until.max_rounds(2), inbox=INBOX)) == "B"
    assert seen == ["first", "FIRST", "a", "b"]


async def test_what_prepare_next_makes_goes_before_messages_and_none_leaves_the_place_to_one() -> None:
    seen: list[str | None] = []

    @step
    async def body(text: str | None) -> int:
        seen.append(text)
        return len(seen)

    def prepare(output: int, verdict: Verdict, ctx: object) -> Any:
        return "prepared" if output == 1 else None

    make: Any = loop
    flow = fill("a", "b") >> make(body, until=until.max_rounds(3), prepare_next=prepare, inbox=INBOX)
    assert await run(flow) == 4
    # The third input is None, so that a message takes its place; the other comes where the loop would stop.
    assert seen == ["first", "prepared", "a", "b"]


async def test_a_conversation_gets_messages_between_two_rounds_and_where_it_would_stop() -> None:
    @tool
    async def look(ctx: Context, query: str) -> str:
        """Look."""
        if query == "tide":
            await ctx.send(INBOX, "And tomorrow?")
        return "6.9 m"

    model = ScriptedModel(
        [FunctionCall(name="look", arguments={"query": "tide"})],
        [FunctionCall(name="look", arguments={"query": "tomorrow"})],
        "6.9 m both",
        "You are welcome",
    )
    asked = 0

    async def judge(snapshot: Snapshot[object]) -> Verdict:
        nonlocal asked
        stop = snapshot.output is not None
        if stop and not asked:
            asked += 1
            # Somebody writes while the loop makes up its mind.
            handle.channel(INBOX).send("Thank you")
        return Verdict(stop, reason="an answer")

    made: Any = judge
    agent = loop(call_model(tools=[look]), until=made, inbox=INBOX)
    async with Harness(plugins=(), model=model) as harness:
        handle = harness.start(agent, "When is high tide?")
        result = await handle.result()
    assert [type(item).__name__ + " " + getattr(item, "role", "") for item in result.items] == [
        "Message user",
        "FunctionCall ",
        "FunctionCallOutput ",
        "Message user",
        "FunctionCall ",
        "FunctionCallOutput ",
        "Message assistant",
        "Message user",
        "Message assistant",
    ]
    said = [item.text for item in result.items if isinstance(item, Message) and item.role == "user"]
    assert said == ["When is high tide?", "And tomorrow?", "Thank you"]
    assert result.value == "You are welcome"


async def test_none_is_a_message_where_the_channel_carries_it() -> None:
    maybe: Channel[Any] = Channel("maybe", type(None))
    seen: list[object] = []

    @step
    async def body(value: object, ctx: Context) -> None:
        seen.append(value)
        if len(seen) == 1:
            await ctx.send(maybe, None)

    make: Any = loop
    await run(make(body, until=until.max_rounds(1), inbox=maybe))
    assert seen == ["first", None]


async def test_stop_loop_ends_it_although_messages_wait() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.stop_loop("stopped")
        return text

    @step
    async def look(text: str, ctx: Context) -> list[str]:
        return [text, *await rest(None, ctx)]

    assert await run(fill("a", "b") >> listen(body, inbox_timeout=FOR_EVER) >> look) == ["stopped", "a", "b"]


async def test_messages_do_not_lift_the_bound() -> None:
    async with Harness(plugins=()) as harness:
        with pytest.raises(LoopLimit):
            await harness.run(fill(*"abcd") >> listen(max_iterations=3), "first")


async def test_two_loops_share_an_inbox() -> None:
    seen: list[list[str]] = [[], []]
    flow = fill(*"abcd") >> parallel([listen(noted(own), id=f"loop{n}") for n, own in enumerate(seen)])
    await run(flow)
    assert sorted(seen[0][1:] + seen[1][1:]) == ["a", "b", "c", "d"]
    assert [own[0] for own in seen] == ["first", "first"]
    assert all(own == [own[0], *sorted(own[1:])] for own in seen)


async def test_iterations_of_messages_have_paths_of_their_own() -> None:
    paths: list[tuple[str, ...]] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        paths.append(ctx.path)
        return text

    await run(fill("a", "b") >> listen(note))
    assert [path[-1] for path in paths] == ["note[0]", "note[1]", "note[2]"]


# -------------------------------------------------------------------------------------------------------------- parking


async def test_a_parked_loop_wakes_within_one_turn_of_the_event_loop(anyio_backend: str) -> None:
    seen: list[str] = []
    async with parked(listen(noted(seen), inbox_timeout=FOR_EVER)) as handle:
        inbox = handle.channel(INBOX)
        for message in "abc":
            # Somewhere in between it may be about to park again.
            await turns()
            inbox.send(message)
            assert seen[-1] != message
            # Trio runs the tasks of one turn in any order, and this one is in the first turn too.
            await turns(1 if anyio_backend == "asyncio" else 2)
            assert seen[-1] == message
        handle.abort("done")
    assert seen == ["first", "a", "b", "c"]


def waits(ended: list[str]) -> Step[str, str, Any, Any]:
    """A step that parks for ever, and notes its end."""

    @step
    async def wait(text: str, ctx: Context) -> str:
        try:
            value: str = await listen(inbox_timeout=FOR_EVER)(text, ctx)
            return value
        finally:
            ended.append(text)

    return wait


@pytest.mark.parametrize("how", ["abort", "interrupt"])
async def test_a_parked_loop_is_released_at_once_when_the_run_is_stopped(how: str) -> None:
    ended: list[str] = []
    async with parked(waits(ended)) as handle:
        handle.abort("enough") if how == "abort" else handle.interrupt("enough")
        await turns(4)
        assert ended == ["first"]
        assert (await handle.result()).status == {"abort": "aborted", "interrupt": "interrupted"}[how]


async def test_a_parked_loop_is_released_at_once_when_a_step_beside_it_completes() -> None:
    ended: list[str] = []

    @step
    async def end(text: str, ctx: Context) -> None:
        await turns(20)
        assert ended == []
        ctx.complete("completed")
        await anyio.sleep_forever()

    assert await run(parallel([waits(ended), end])) == "completed"
    assert ended == ["first"]


async def test_a_parked_loop_is_released_at_the_deadline() -> None:
    ended: list[str] = []
    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            result = await harness.run(waits(ended), "first", deadline=0.01)
    assert (result.status, ended) == ("budget_exceeded", ["first"])


async def test_a_parked_loop_is_released_at_once_when_its_run_is_cancelled() -> None:
    ended: list[str] = []
    async with Harness(plugins=()) as harness:
        before = tasks()
        with anyio.fail_after(5):
            async with harness.stream(waits(ended), "first") as stream:
                async for event in stream.events:
                    if isinstance(event, LoopWaiting):
                        break
        assert ended == ["first"]
        assert await left_over(before) == set()


async def test_nothing_comes_while_it_parks() -> None:
    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            result = await harness.run(listen(inbox_timeout=0.01), "first")
    assert (result.value, result.reason, result.steps) == ("first", "max_rounds: 1 round reached", 1)


async def test_each_time_it_parks_is_told() -> None:
    parks: list[int] = []
    iterations: list[int] = []

    @step
    async def feed(_: str, ctx: Context) -> None:
        for message in ("a", "b"):
            await turns(30)
            await ctx.send(INBOX, message)

    async with Harness(plugins=()) as harness:
        flow = parallel([listen(inbox_timeout=0.05), feed])
        async with harness.stream(flow, "first") as stream:
            async for event in stream.events:
                if isinstance(event, LoopWaiting):
                    assert event.path == ("parallel", "loop[0]")
                    parks.append(event.iteration)
                elif isinstance(event, LoopIteration):
                    iterations.append(event.iteration)
    assert parks == [1, 2, 3]
    assert iterations == [0, 1, 2]


async def test_a_message_that_is_there_is_taken_without_parking() -> None:
    async with (
        Harness(plugins=()) as harness,
        harness.stream(fill("a") >> listen(inbox_timeout=0.001), "first") as stream,
    ):
        parks = [event.iteration async for event in stream.events if isinstance(event, LoopWaiting)]
    assert parks == [2]


async def test_the_message_of_work_that_goes_on_beside() -> None:
    seen: list[str] = []

    @step
    async def research(topic: str, ctx: Context) -> None:
        await turns(20)
        await ctx.send(INBOX, f"about {topic}")

    @step
    async def body(text: str, ctx: Context) -> str:
        seen.append(text)
        if text == "first":
            ctx.spawn_detached(research, "tides")
        else:
            ctx.stop_loop()
        return text

    assert await run(listen(body, inbox_timeout=FOR_EVER)) == "about tides"
    assert seen == ["first", "about tides"]


async def test_a_loop_in_work_beside_waits_for_what_its_starter_sends() -> None:
    seen: list[str] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        work = ctx.spawn_detached(listen(noted(seen), inbox_timeout=FOR_EVER), text)
        for message in ("a", "b"):
            await turns(10)
            await ctx.send(INBOX, message)
        await turns(10)
        work.abort("that is all")
        ended = await work.wait()
        return ended.status

    assert await run(body) == "aborted"
    assert seen == ["first", "a", "b"]


async def test_an_outside_thread_wakes_it() -> None:
    seen: list[str] = []
    async with parked(listen(noted(seen), inbox_timeout=FOR_EVER)) as handle:
        inbox = handle.channel(INBOX)
        thread = threading.Thread(target=lambda: inbox.send("from a thread"))
        thread.start()
        while len(seen) < 2:
            await checkpoint()
        await anyio.to_thread.run_sync(thread.join)
        handle.abort("done")
    assert seen == ["first", "from a thread"]


# -------------------------------------------------------------------------------------------- failures, attempts, races


def failing(seen: list[str], *bad: str) -> Step[str, str, Any, Any]:
    @step(id="body")
    async def body(text: str) -> str:
        seen.append(text)
        if text in bad:
            raise ValueError(text)
        return text

    return body


def decide(answer: str) -> Callable[[Exception, object], Any]:
    return lambda error, ctx: answer


async def test_a_failed_iteration_does_not_give_its_message_back() -> None:
    seen: list[str] = []

    @step
    async def handle(text: str, ctx: Context) -> list[str]:
        with pytest.raises(StepFailed):
            await listen(failing(seen, "b"))(text, ctx)
        return await rest(None, ctx)

    assert await run(fill("a", "b", "c") >> handle) == ["c"]
    assert seen == ["first", "a", "b"]


async def test_after_a_skipped_failure_the_next_message_is_the_input() -> None:
    seen: list[str] = []
    flow = fill("a", "b", "c") >> listen(failing(seen, "first", "b"), on_error=decide("skip"))
    assert await run(flow) == "c"
    assert seen == ["first", "a", "b", "c"]


async def test_a_skipped_failure_parks_and_without_a_message_it_is_raised() -> None:
    seen: list[str] = []
    async with Harness(plugins=()) as harness:
        with anyio.fail_after(5):
            with pytest.raises(StepFailed, match="ValueError: first"):
                await harness.run(listen(failing(seen, "first"), on_error=decide("skip"), inbox_timeout=0.01), "first")
    assert seen == ["first"]
    flow = listen(failing(seen, "first"), on_error=decide("skip"), inbox_timeout=FOR_EVER)
    async with parked(flow) as handle:
        handle.channel(INBOX).send("second")
        await turns()
        handle.abort("done")
    assert seen == ["first", "first", "second"]


async def test_a_retried_iteration_has_the_same_message() -> None:
    seen: list[str] = []

    @step
    async def body(text: str) -> str:
        seen.append(text)
        if seen.count(text) == 1:
            raise ValueError
        return text

    assert await run(fill("a", "b") >> listen(body, on_error=decide("retry"))) == "b"
    assert seen == ["first", "first", "a", "a", "b", "b"]


async def test_a_second_attempt_around_the_loop_gets_the_messages_again_in_order() -> None:
    seen: list[str] = []

    @step
    async def last(text: str) -> str:
        if seen.count("first") == 1:
            raise ValueError
        return text

    tried = sequence(listen(noted(seen)), last, id="tried").with_options(retry=Retry(2, initial=0.0001))
    assert await run(fill("a", "b") >> tried) == "B"
    assert seen == ["first", "a", "b"] * 2


async def test_a_second_attempt_of_the_loop_itself_gets_the_messages_again() -> None:
    seen: list[str] = []

    @step
    async def body(text: str) -> str:
        seen.append(text)
        if text == "b" and seen.count("b") == 1:
            raise ValueError
        return text

    assert await run(fill("a", "b") >> listen(body).with_options(retry=Retry(2, initial=0.0001))) == "b"
    assert seen == ["first", "a", "b"] * 2


async def test_the_loser_of_a_race_gives_its_messages_back() -> None:
    seen: list[str] = []

    @step
    async def wins(text: str) -> str:
        while len(seen) < 3:
            await checkpoint()
        return text

    flow = fill("a", "b") >> race([listen(noted(seen), inbox_timeout=FOR_EVER), wins]) >> rest
    assert await run(flow) == ["a", "b"]
    assert seen == ["first", "a", "b"]


async def test_the_winner_of_a_race_keeps_its_messages() -> None:
    seen: list[str] = []

    @step
    async def loses(text: str) -> str:
        await anyio.sleep_forever()
        return text

    assert await run(fill("a", "b") >> race([loses, listen(noted(seen))]) >> rest) == []


async def test_a_predicate_that_raises_stops_it_only_where_nothing_waits() -> None:
    seen: list[str] = []

    def judge(snapshot: Snapshot[str]) -> Verdict:
        raise KeyError("why")

    made: Any = judge
    async with Harness(plugins=()) as harness:
        result = await harness.run(fill("a") >> loop(noted(seen), until=made, inbox=INBOX), "first")
    assert seen == ["first", "a"]
    assert result.value == "A"


async def test_a_loop_inside_a_spawn_has_the_run_s_inbox() -> None:
    seen: list[str] = []
    assert await run(fill("a") >> spawn(listen(noted(seen)))) == "A"


@pytest.mark.parametrize(
    "options",
    [
        {"inbox": "inbox"},
        {"inbox": Channel("v", str, mode="value")},
        {"inbox": Channel("t", str, mode="topic")},
        {"inbox": INBOX, "inbox_timeout": -1},
        {"inbox": INBOX, "inbox_timeout": float("nan")},
        {"inbox": INBOX, "inbox_timeout": "1"},
        {"inbox": INBOX, "inbox_timeout": True},
        {"inbox_timeout": 1.0},
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    make: Any = loop
    with pytest.raises(ConfigError) as caught:
        make(echo, until=until.never(), **options)
    assert caught.value.code == "loop"
    assert caught.value.hint


async def test_an_inbox_that_differs_from_the_run_s_channel() -> None:
    async with Harness(plugins=()) as harness:
        other = Channel("inbox", str, external=True, capacity=3)
        flow = fill("a") >> loop(echo, until=until.max_rounds(1), inbox=other)
        with pytest.raises(ConfigError) as caught:
            await harness.run(flow, "first")
    assert caught.value.code == "channel"
    assert caught.value.path == ("sequence", "loop")
