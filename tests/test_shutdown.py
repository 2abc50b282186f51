"""A harness that is shut down: what it still takes, how long it waits, and what it leaves to the next process."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    RunResult,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    loop,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import SqliteBackend
from noetic_py.errors import ConfigError, Interrupted, ShuttingDown, StepOutcomeUnknown
from noetic_py.models import ModelEvent, ModelRequest, ModelResponse, TextPart
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx: TypeAlias = Context[Memory, StateBag]
KEY = SessionKey("ada", "trip")
SOON = 0.01


class Hanging:
    """A model that says something and then hangs, as often as it is to; afterwards it answers."""

    name = "hanging"

    def __init__(self, hangs: int = 1, says: str = "The tide ", answer: str = "The tide is high at noon.") -> None:
        self.requests: list[ModelRequest] = []
        self.said = anyio.Event()
        self._hangs = hangs
        self._says = says
        self._answer = answer

    def respond(self, request: ModelRequest) -> AbstractAsyncContextManager[Any]:
        return self._respond(request)

    @asynccontextmanager
    async def _respond(self, request: ModelRequest) -> AsyncGenerator[Hanging]:
        self.requests.append(request)
        yield self

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        if len(self.requests) > self._hangs:
            yield TextPart(self._answer)
            return
        if self._says:
            yield TextPart(self._says)
        self.said.set()
        await anyio.sleep_forever()

    async def response(self) -> ModelResponse:
        return ModelResponse([Message.assistant(self._answer)])


class Steps:
    """A flow of two steps, the second of which waits until it is let go."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.go = anyio.Event()
        self.ran: list[str] = []

        @step
        async def first(text: str, ctx: Ctx) -> str:
            self.ran.append("first")
            ctx.items.append(Message.user(text))
            ctx.state["text"] = text
            return text

        @step
        async def second(text: str, ctx: Ctx) -> str:
            self.ran.append("second")
            ctx.state["lost"] = True
            self.begun.set()
            await self.go.wait()
            del ctx.state["lost"]
            ctx.items.append(Message.assistant(f"re: {text}"))
            return f"re: {text}"

        self.flow = first >> second


@step
async def same(value: int) -> int:
    return value


def texts(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


class Results:
    """Runs beside a test, and what came of them."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def start(
        self, harness: Harness[Memory], group: anyio.abc.TaskGroup, flow: Any, value: Any = "hello", **options: Any
    ) -> None:
        async def work() -> None:
            try:
                self.found.append(await harness.run(flow, value, **options))
            except ShuttingDown as error:
                self.found.append(error)

        group.start_soon(work)


# -- what it refuses


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0, math.nan, math.inf, True, "1"])
async def test_a_time_that_is_none_is_refused(timeout: Any) -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.shutdown(timeout=timeout)
        assert caught.value.code == "shutdown"
        # It was not begun.
        assert (await harness.run(same, 1)).value == 1


async def test_an_unknown_way_with_partial_answers_is_refused() -> None:
    untyped: Any = Harness(plugins=[])
    async with untyped as harness:
        with pytest.raises(ConfigError, match="'keep'"):
            await harness.shutdown(partial="keep")
        with pytest.raises(ConfigError, match="above 0"):
            harness.stopping_on_signals(grace=0)


async def test_a_step_cannot_shut_its_own_harness_down() -> None:
    async with Harness(plugins=[]) as harness:

        @step
        async def end(value: str) -> str:
            await harness.shutdown()
            return value

        with pytest.raises(ConfigError) as caught:
            await harness.run(end, "x")
        assert caught.value.code == "shutdown"
        assert (await harness.run(same, 1)).value == 1


async def test_every_door_is_closed() -> None:
    steps = Steps()
    steps.go.set()
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        await harness.run(steps.flow, "x", run_id="r")
        await harness.shutdown()
        session = harness.session("ada", "trip")
        with pytest.raises(ShuttingDown) as caught:
            await harness.run(steps.flow, "x")
        assert caught.value.hint is not None
        with pytest.raises(ShuttingDown):
            harness.start(steps.flow, "x")
        with pytest.raises(ShuttingDown):
            async with harness.stream(steps.flow, "x"):
                pass
        with pytest.raises(ShuttingDown):
            await session.run(steps.flow, "x")
        with pytest.raises(ShuttingDown):
            async with session.stream(steps.flow, "x"):
                pass
        with pytest.raises(ShuttingDown):
            await harness.resume("r", steps.flow)
        with pytest.raises(ShuttingDown):
            async with harness.resume_stream("r", steps.flow):
                pass
        # What is there can still be read, and once more is no error.
        assert (await harness.runs.get("r")).status == "completed"
        await harness.shutdown(timeout=SOON)
    await harness.shutdown()


# -- how long it waits


async def test_without_a_time_it_waits_for_what_goes_on_and_takes_nothing_new() -> None:
    results = Results()
    steps = Steps()
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness, anyio.create_task_group() as group:
        results.start(harness, group, steps.flow)
        await steps.begun.wait()
        down = anyio.Event()

        async def shut() -> None:
            await harness.shutdown()
            down.set()

        group.start_soon(shut)
        await anyio.wait_all_tasks_blocked()
        assert not down.is_set()
        with pytest.raises(ShuttingDown):
            await harness.run(steps.flow, "x")
        steps.go.set()
        await down.wait()
        [result] = results.found
        assert (result.value, result.status, result.shutdown) == ("re: hello", "completed", False)


async def test_a_started_run_and_a_stream_are_waited_for() -> None:
    one, two = Steps(), Steps()
    async with Harness(plugins=[]) as harness:
        handle = harness.start(one.flow, "one")
        async with harness.stream(two.flow, "two") as stream:
            await one.begun.wait()
            await two.begun.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(harness.shutdown)
                await anyio.wait_all_tasks_blocked()
                one.go.set()
                await anyio.wait_all_tasks_blocked()
                two.go.set()
            assert ((await handle.result()).value, (await stream.result()).value) == ("re: one", "re: two")


async def test_what_is_under_way_may_still_start_runs() -> None:
    results = Results()
    async with Harness(plugins=[]) as harness, anyio.create_task_group() as group:
        closing, begun = anyio.Event(), anyio.Event()

        @step
        async def part(value: int) -> int:
            return value + 1

        @step
        async def whole(value: int, ctx: Ctx) -> list[int]:
            begun.set()
            await closing.wait()
            beside = ctx.spawn_detached(part, value, owner="harness")
            return [(await harness.run(part, value)).value, (await beside.wait()).value]

        results.start(harness, group, whole, 1)
        await begun.wait()
        group.start_soon(harness.shutdown)
        await anyio.wait_all_tasks_blocked()
        closing.set()
    assert results.found[0].value == [2, 2]


async def test_turns_that_wait_are_refused_and_the_one_that_goes_on_is_not() -> None:
    results = Results()
    steps = Steps()
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness, anyio.create_task_group() as group:
        results.start(harness, group, steps.flow, "one", session=KEY)
        await steps.begun.wait()
        results.start(harness, group, steps.flow, "two", session=KEY)
        results.start(harness, group, steps.flow, "three", session=KEY)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(harness.shutdown)
        await anyio.wait_all_tasks_blocked()
        assert [type(each) for each in results.found] == [ShuttingDown, ShuttingDown]
        steps.go.set()
    assert results.found[2].value == "re: one"
    assert steps.ran == ["first", "second"]


async def test_a_turn_that_waits_for_another_process_is_refused(tmp_path: Path) -> None:
    results = Results()
    steps = Steps()
    async with (
        SqliteBackend(tmp_path / "runs.db") as backend,
        SqliteBackend(tmp_path / "runs.db") as other,
        Harness(plugins=[], checkpoints=other) as elsewhere,
        Harness(plugins=[], checkpoints=backend, sessions=SessionPolicy(wait=60)) as harness,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: elsewhere.run(steps.flow, "x", session=KEY))
        await steps.begun.wait()
        results.start(harness, group, steps.flow, "y", session=KEY)
        await anyio.sleep(SOON)
        await harness.shutdown()
        assert [type(each) for each in results.found] == [ShuttingDown]
        steps.go.set()


# -- what it leaves


async def test_what_does_not_end_in_time_is_interrupted_and_can_be_resumed_at_once(tmp_path: Path) -> None:
    results = Results()
    steps = Steps()
    async with SqliteBackend(tmp_path / "runs.db") as backend, Harness(plugins=[], checkpoints=backend) as harness:
        async with anyio.create_task_group() as group:
            results.start(harness, group, steps.flow, run_id="r")
            await steps.begun.wait()
            await harness.shutdown(timeout=SOON)
        [result] = results.found
        assert (result.status, result.reason, result.shutdown) == ("interrupted", "shutdown", True)
        assert result.state == StateBag({"text": "hello"})
        with pytest.raises(Interrupted, match="shutdown"):
            result.value  # noqa: B018 # it is asked for
        # Seen from another process, before this one has gone.
        async with SqliteBackend(tmp_path / "runs.db") as other, Harness(plugins=[], checkpoints=other) as later:
            info = await later.runs.get("r")
            assert (info.status, info.shutdown, info.alive) == ("interrupted", True, False)
            assert [run.run_id for run in await later.runs.list(status="interrupted") if run.shutdown] == ["r"]
            steps.go.set()
            done = await later.resume("r", steps.flow)
            assert (done.value, done.status, done.shutdown) == ("re: hello", "completed", False)
            assert texts(done.items) == ["hello", "re: hello"]
            info = await later.runs.get("r")
            assert (info.status, info.shutdown) == ("completed", False)
    assert steps.ran == ["first", "second", "second"]


async def test_a_run_that_goes_on_and_is_interrupted_by_somebody_is_not_of_a_shutdown() -> None:
    backend, steps = InMemoryBackend(), Steps()
    async with Harness(plugins=[], checkpoints=backend) as harness, anyio.create_task_group() as group:
        Results().start(harness, group, steps.flow, run_id="r")
        await steps.begun.wait()
        await harness.shutdown(timeout=SOON)
    steps.begun = anyio.Event()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        async with harness.resume_stream("r", steps.flow) as stream:
            await steps.begun.wait()
            stream.interrupt("enough")
            assert (await stream.result()).reason == "enough"
        info = await harness.runs.get("r")
        assert (info.status, info.shutdown) == ("interrupted", False)


async def test_a_run_that_has_not_begun_is_kept() -> None:
    backend, steps = InMemoryBackend(), Steps()
    steps.go.set()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        handle = harness.start(steps.flow, "hello", run_id="r")
        harness.session("ada", "trip")
        blocked = Steps()
        other = harness.start(blocked.flow, "x")
        await blocked.begun.wait()
        await harness.shutdown(timeout=SOON)
        assert (await handle.result()).status == "completed"
        assert (await other.result()).shutdown


async def test_what_shields_itself_is_waited_for() -> None:
    results = Results()
    begun, go = anyio.Event(), anyio.Event()

    @step
    async def firm(value: str) -> str:
        begun.set()
        with anyio.CancelScope(shield=True):
            await go.wait()
        return value

    async with Harness(plugins=[]) as harness, anyio.create_task_group() as group:
        results.start(harness, group, firm, "x")
        await begun.wait()
        down = anyio.Event()

        async def shut() -> None:
            await harness.shutdown(timeout=SOON)
            down.set()

        group.start_soon(shut)
        with anyio.move_on_after(SOON * 5):
            await down.wait()
        assert not down.is_set()
        go.set()
        await down.wait()
        assert results.found[0].shutdown


async def test_a_step_that_may_run_once_has_the_time_of_the_shutdown_and_no_more() -> None:
    backend, begun = InMemoryBackend(), anyio.Event()

    @step(replay="once")
    async def pay(value: str) -> str:
        begun.set()
        await anyio.sleep_forever()
        return value

    async with Harness(plugins=[], checkpoints=backend) as harness, anyio.create_task_group() as group:
        Results().start(harness, group, pay, run_id="r")
        await begun.wait()
        with anyio.fail_after(5):
            await harness.shutdown(timeout=SOON)
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.runs.get("r")).shutdown
        with pytest.raises(StepOutcomeUnknown):
            await harness.resume("r", pay)


async def test_the_first_stop_wins() -> None:
    steps = Steps()
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        handle = harness.start(steps.flow, "x", run_id="r")
        await steps.begun.wait()
        handle.abort("wrong")
        await harness.shutdown(timeout=SOON)
        assert (await handle.result()).status == "aborted"
        assert not (await harness.runs.get("r")).shutdown


async def test_leaving_the_harness_after_a_shutdown_leaves_nothing_behind() -> None:
    steps = Steps()
    harness = Harness(plugins=[])
    async with harness:
        handle = harness.start(steps.flow, "x")
        await steps.begun.wait()
        await harness.shutdown(timeout=SOON)
    assert (await handle.result()).shutdown
    with pytest.raises(ConfigError, match="closed"):
        await harness.run(steps.flow, "x")


# -- answers that are cut off


async def cut_off(model: Any, backend: Any, **options: Any) -> RunResult[Any, Any]:
    """A run that a shutdown interrupts while the model answers."""
    results = Results()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        results.start(harness, group, call_model(), "When is high water?", session=KEY, run_id="r")
        await model.said.wait()
        await harness.shutdown(timeout=SOON, **options)
    result: RunResult[Any, Any] = results.found[0]
    assert result.shutdown
    return result


@pytest.mark.parametrize("says", ["The tide ", ""])
async def test_what_a_model_had_said_is_saved(says: str) -> None:
    model, backend = Hanging(says=says), InMemoryBackend()
    result = await cut_off(model, backend)
    expected = ["When is high water?", says] if says else ["When is high water?"]
    assert texts(result.items) == expected
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        items = await harness.session("ada", "trip").items()
        assert texts(items) == expected
        assert [item.status for item in items] == ["completed", "incomplete"][: len(items)]
        # Whoever goes on asks again, without it.
        done = await harness.resume("r", call_model())
        assert texts(model.requests[1].items) == ["When is high water?"]
        assert texts(done.items) == ["When is high water?", "The tide is high at noon."]
        assert texts(await harness.session("ada", "trip").items()) == texts(done.items)


async def test_what_a_model_had_said_is_discarded() -> None:
    model, backend = Hanging(), InMemoryBackend()
    result = await cut_off(model, backend, partial="discard")
    assert texts(result.items) == ["When is high water?"]
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        assert texts(await harness.session("ada", "trip").items()) == ["When is high water?"]


async def test_a_harness_that_keeps_nothing_gives_what_was_said_to_who_watches() -> None:
    model = Hanging()
    async with Harness(plugins=[], model=model) as harness, harness.stream(call_model(), "High water?") as stream:
        await model.said.wait()
        await harness.shutdown(timeout=SOON)
        assert texts((await stream.result()).items) == ["High water?", "The tide "]


async def test_an_interrupt_by_somebody_keeps_no_part_of_an_answer() -> None:
    model = Hanging()
    async with Harness(plugins=[], checkpoints=InMemoryBackend(), model=model) as harness:
        handle = harness.start(call_model(), "When is high water?")
        await model.said.wait()
        handle.interrupt()
        assert "The tide " not in texts((await handle.result()).items)


@pytest.mark.parametrize("hangs", ["a", "b"])
async def test_open_calls_are_closed_and_run_again_when_it_goes_on(hangs: str) -> None:
    results = Results()
    in_tool, found = anyio.Event(), list[str]()

    @tool
    async def search(query: str) -> str:
        """Search."""
        found.append(query)
        if query == hangs and found.count(query) == 1:
            in_tool.set()
            await anyio.sleep_forever()
        return f"found {query}"

    calls = [FunctionCall(name="search", arguments={"query": name}, call_id=name) for name in "ab"]
    agent = loop(call_model(tools=[search]), until=until.no_tool_calls())
    backend, model = InMemoryBackend(), ScriptedModel(calls, "At noon.")
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        results.start(harness, group, agent, "Find it.", session=KEY)
        await in_tool.wait()
        await anyio.wait_all_tasks_blocked()
        await harness.shutdown(timeout=SOON)
    outputs = {item.call_id: item.status for item in results.found[0].items if isinstance(item, FunctionCallOutput)}
    assert outputs == {name: "incomplete" if name == hangs else "completed" for name in "ab"}
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        done = await harness.session("ada", "trip").run(agent, "Find it.")
        assert done.value == "At noon."
        items = await harness.session("ada", "trip").items()
    # The prompt is there once, each call has its output, and of the tools the one ran again that had not finished.
    assert texts(items) == ["Find it.", "At noon."]
    assert [item.status for item in items if isinstance(item, FunctionCallOutput)] == ["completed", "completed"]
    assert sorted(found) == sorted(["a", "b", hangs])


# -- the same message again


async def test_the_same_message_goes_on_and_another_one_begins_anew() -> None:
    for text, expected in (
        ("When is high water?", ["When is high water?", "The tide is high at noon."]),
        ("And low water?", ["When is high water?", "The tide ", "And low water?", "The tide is high at noon."]),
    ):
        model, backend = Hanging(), InMemoryBackend()
        first = await cut_off(model, backend)
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
            session = harness.session("ada", "trip")
            again = await session.run(call_model(), text)
            assert (again.run_id == first.run_id) is (text == "When is high water?")
            assert texts(await session.items()) == expected
            # It was said once: the same words are another question now.
            await session.run(call_model(), text)
            assert texts(await session.items()) == [*expected, text, "The tide is high at noon."]


async def test_a_message_made_anew_is_the_same_and_another_flow_begins_anew_behind_it() -> None:
    async def ended(flow: Any, value: Any) -> list[str]:
        model, backend = Hanging(), InMemoryBackend()
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
            Results().start(harness, group, call_model(), [Message.user("High water?")], session=KEY)
            await model.said.wait()
            await harness.shutdown(timeout=SOON)
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
            await harness.session("ada", "trip").run(flow, value)
            return texts(await harness.session("ada", "trip").items())

    answer = "The tide is high at noon."
    assert await ended(call_model(), [Message.user("High water?")]) == ["High water?", answer]
    before = ["High water?", "The tide "]
    assert await ended(call_model(), [Message.user("High water?"), Message.user("Today.")]) == [
        *before, "High water?", "Today.", answer,
    ]  # fmt: skip
    # What is asked again is there already, and is said once.
    assert await ended(call_model(), "High water?") == [*before, answer]
    assert await ended(sequence(call_model(), id="other"), [Message.user("High water?")]) == [*before, answer]


async def test_it_is_interrupted_again_and_again() -> None:
    results = Results()
    model, backend = Hanging(hangs=3), InMemoryBackend()
    first = await cut_off(model, backend)
    for _ in range(2):
        model.said = anyio.Event()
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
            results.start(harness, group, call_model(), "When is high water?", session=KEY)
            await model.said.wait()
            await harness.shutdown(timeout=SOON)
            assert (results.found[0].run_id, results.found[0].shutdown) == (first.run_id, True)
            assert texts(results.found[0].items) == ["When is high water?", "The tide "]
            assert texts(await harness.session("ada", "trip").items()) == ["When is high water?", "The tide "]
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        assert (await session.run(call_model(), "When is high water?")).run_id == first.run_id
        assert texts(await session.items()) == ["When is high water?", "The tide is high at noon."]


async def test_other_code_begins_anew() -> None:
    model, backend = Hanging(), InMemoryBackend()
    await cut_off(model, backend)
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        result = await session.run(call_model(instructions="Be brief.", id="call_model"), "When is high water?")
        assert result.value == "The tide is high at noon."


async def test_delivered_again_it_is_written_once_whatever_came_between() -> None:
    for between in (False, True):
        model, backend = Hanging(), InMemoryBackend()
        policy = SessionPolicy(on_conflict="merge")
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
            Results().start(harness, group, call_model(), "High water?", session=KEY, delivery_id="1")
            await model.said.wait()
            await harness.shutdown(timeout=SOON)
        async with Harness(plugins=[], checkpoints=backend, model=model, sessions=policy) as harness:
            session = harness.session("ada", "trip")
            if between:
                await session.run(call_model(), "Hello?")
            for _ in range(2):
                await session.run(call_model(), "High water?", delivery_id="1")
            answer = "The tide is high at noon."
            whole = ["High water?", answer]
            assert texts(await session.items()) == (
                ["High water?", "The tide ", "Hello?", answer, answer] if between else whole
            )


async def test_the_state_of_a_turn_goes_on() -> None:
    backend, steps = InMemoryBackend(), Steps()
    async with Harness(plugins=[], checkpoints=backend) as harness, anyio.create_task_group() as group:
        Results().start(harness, group, steps.flow, "hello", session=KEY)
        await steps.begun.wait()
        await harness.shutdown(timeout=SOON)
    steps.go.set()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        assert await session.state(StateBag) == StateBag({"text": "hello"})
        result = await session.run(steps.flow, "hello")
        assert (result.value, steps.ran) == ("re: hello", ["first", "second", "second"])
        assert texts(await session.items()) == ["hello", "re: hello"]


async def test_what_was_used_before_counts_when_it_goes_on() -> None:
    model, backend = Hanging(), InMemoryBackend()
    budget = Budget(model_calls=1)
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        Results().start(harness, group, call_model(), "High water?", session=KEY, budget=budget)
        await model.said.wait()
        await harness.shutdown(timeout=SOON)
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        result = await harness.session("ada", "trip").run(call_model(), "High water?", budget=budget)
        assert result.status == "budget_exceeded"


# -- signals

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are handled on POSIX")


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_ends_what_goes_on_and_then_the_block(number: signal.Signals, code: int) -> None:
    steps, backend = Steps(), InMemoryBackend()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    after: list[Any] = []

    async def work() -> None:
        async with Harness(plugins=[], checkpoints=backend) as harness, harness.stopping_on_signals(grace=SOON) as stop:
            assert stop.received is None
            handle = harness.start(steps.flow, "hello", run_id="r")
            await steps.begun.wait()
            signal.raise_signal(number)
            with anyio.CancelScope(shield=True):
                # What has to be done with a result is done.
                result = await handle.result()
                await anyio.sleep(SOON)
                after.extend([result.status, result.shutdown, stop.received])
            await anyio.sleep_forever()

    with pytest.raises(SystemExit) as caught:
        await work()
    assert caught.value.code == code
    assert after == ["interrupted", True, number]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


@posix
@pytest.mark.parametrize("inside", [False, True])
async def test_a_block_that_is_refused_new_work_waits_for_the_old(inside: bool) -> None:
    steps, backend = Steps(), InMemoryBackend()

    async def work() -> None:
        async with Harness(plugins=[], checkpoints=backend) as harness, harness.stopping_on_signals(grace=60):
            harness.start(steps.flow, "hello", run_id="r")
            await steps.begun.wait()
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep(SOON)
            try:
                if inside:
                    async with anyio.create_task_group() as group:
                        group.start_soon(harness.run, steps.flow, "more")
                else:
                    await harness.run(steps.flow, "more")
            finally:
                assert (await harness.runs.get("r")).status == "running"
                steps.go.set()

    with pytest.raises(SystemExit):
        await work()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.runs.get("r")).status == "completed"


@posix
async def test_what_a_block_raises_goes_on_as_it_is() -> None:
    async def fail(number: signal.Signals | None) -> None:
        async with Harness(plugins=[]) as harness, harness.stopping_on_signals():
            if number is not None:
                signal.raise_signal(number)
            raise KeyError("mine")

    for number in (None, signal.SIGTERM):
        with pytest.raises(KeyError, match="mine"):
            await fail(number)


@posix
async def test_without_a_signal_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with Harness(plugins=[]) as harness:
        async with harness.stopping_on_signals() as stopping:
            assert signal.getsignal(signal.SIGTERM) != before
            assert (await harness.run(same, 1)).value == 1
        assert (stopping.received, signal.getsignal(signal.SIGTERM)) == (None, before)
        assert (await harness.run(same, 2)).value == 2
