"""Completing and aborting an execution."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    Message,
    StateBag,
    call_model,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.errors import Aborted, NoeticError, StepFailed
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@step
async def echo(text: str) -> str:
    return text


@step
async def complete(text: str, ctx: Context) -> str:
    ctx.complete(f"completed {text}")
    return "not this"


@step
async def abort(text: str, ctx: Context) -> str:
    ctx.abort(f"because of {text}")
    return "not this"


def recorder() -> tuple[Any, list[str]]:
    """A step that notes its input, and the notes."""
    seen: list[str] = []

    @step
    async def note(text: str) -> str:
        seen.append(text)
        return text

    return note, seen


# --------------------------------------------------------------------------------------------------------------- 002-26


@pytest.mark.clause("002-26a")
async def test_002_26_completed_is_true_and_the_value_is_there() -> None:
    seen: list[tuple[bool, object]] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        seen.append((ctx.completed, ctx.completion_value))
        ctx.complete(text)
        seen.append((ctx.completed, ctx.completion_value))
        assert not ctx.aborted
        return "not this"

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert seen == [(False, None), (True, "x")]
    assert (result.status, result.value) == ("completed", "x")
    assert "body" in (result.reason or "")


@pytest.mark.clause("002-26b")
async def test_002_26_the_execution_stops_with_that_result() -> None:
    note, seen = recorder()
    async with Harness() as harness:
        result = await harness.run(sequence(note, complete, note), "x")
    assert result.value == "completed x"
    assert seen == ["x"]
    assert result.steps == 2


@pytest.mark.clause("002-26b")
async def test_002_26_the_calling_body_goes_on_to_its_next_await() -> None:
    reached: list[str] = []

    @step
    async def body(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.complete(text)
        ctx.items.append(Message.user("kept"))
        ctx.state["kept"] = True
        reached.append("before")
        await anyio.lowlevel.checkpoint()
        reached.append("after")
        return "not this"

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert reached == ["before"]
    assert result.value == "x"
    assert [item.text for item in result.items if isinstance(item, Message)] == ["kept"]
    assert result.state["kept"] is True


@pytest.mark.clause("002-26c")
async def test_002_26_the_first_call_wins() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.complete("first")
        ctx.complete("second")
        assert ctx.completion_value == "first"
        ctx.abort("third")
        assert (ctx.completed, ctx.aborted, ctx.abort_reason) == (True, False, None)
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.value) == ("completed", "first")


@pytest.mark.clause("002-26a")
async def test_002_26_the_value_may_be_none() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.complete()
        assert (ctx.completed, ctx.completion_value) == (True, None)
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x")
    value: object = result.value
    assert value is None
    assert result.has_value


@pytest.mark.clause("002-26b")
async def test_002_26_a_loop_does_not_go_on() -> None:
    count = 0

    @step
    async def body(n: int, ctx: Context) -> int:
        nonlocal count
        count += 1
        if n == 2:
            ctx.complete(99)
        return n + 1

    async with Harness() as harness:
        assert (await harness.run(loop(body, until=until.never()), 0)).value == 99
    assert count == 3


@pytest.mark.clause("002-26d")
async def test_002_26_what_runs_beside_is_cancelled() -> None:
    stopped: list[str] = []
    inside = anyio.Event()

    @step
    async def slow(text: str) -> str:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(text)
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        await inside.wait()
        ctx.complete(["done"])
        return text

    async with Harness() as harness:
        result = await harness.run(parallel([slow, spawn(slow), body]), "x")
    assert result.output_or(None) == ["done"]
    assert stopped == ["x", "x"]


@pytest.mark.clause("002-26e")
async def test_002_26_in_a_spawn_it_is_the_spawn_s_value() -> None:
    note, seen = recorder()
    async with Harness() as harness:
        result = await harness.run(sequence(spawn(sequence(complete, note)), note), "x")
    assert (result.status, result.value) == ("completed", "completed x")
    assert seen == ["completed x"]


@pytest.mark.clause("002-26e")
async def test_002_26_root_completes_the_whole_run() -> None:
    note, seen = recorder()

    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.root.complete("from below")
        assert ctx.root.completed
        assert not ctx.completed
        return text

    async with Harness() as harness:
        result = await harness.run(sequence(spawn(sequence(body, note)), note), "x")
    assert (result.status, result.value) == ("completed", "from below")
    assert seen == []


async def test_002_26_a_tool_may_complete_the_run() -> None:
    @tool
    async def finish(ctx: Context, answer: str) -> str:
        """Say the answer."""
        ctx.complete(answer)
        return "thanks"

    model = ScriptedModel(FunctionCall(name="finish", arguments={"answer": "42"}), "not asked")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(finish,)), until=until.no_tool_calls()), "go")
    assert result.value == "42"
    assert len(model.requests) == 1
    assert len([item for item in result.items if isinstance(item, FunctionCallOutput)]) == 1


@pytest.mark.clause("002-26f")
async def test_002_26_it_cannot_be_swallowed() -> None:
    note, seen = recorder()

    @step
    async def careless(text: str, ctx: Context) -> str:
        try:
            await complete(text, ctx)
            await note(text, ctx)
        except Exception:  # noqa: BLE001 # the point: a stop is no exception that a handler sees
            seen.append("handled")
        return "not this"

    async with Harness() as harness:
        assert (await harness.run(careless, "x")).value == "completed x"
    assert seen == []


@pytest.mark.clause("002-26f")
async def test_002_26_nor_turned_into_a_failure() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.complete("done")
        raise ValueError(text)

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.value, result.error) == ("completed", "done", None)


@pytest.mark.clause("002-26f")
async def test_002_26_nor_retried() -> None:
    tries = 0

    @step(retry=3)
    async def body(text: str, ctx: Context) -> str:
        nonlocal tries
        tries += 1
        ctx.complete("done")
        raise ValueError(text)

    async with Harness() as harness:
        assert (await harness.run(body, "x")).value == "done"
    assert tries == 1


# --------------------------------------------------------------------------------------------------------------- 002-27


@pytest.mark.clause("002-27a", "002-27g")
async def test_002_27_aborted_is_true_and_the_reason_is_there() -> None:
    seen: list[tuple[bool, str | None]] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        seen.append((ctx.aborted, ctx.abort_reason))
        ctx.abort("user cancelled")
        seen.append((ctx.aborted, ctx.abort_reason))
        assert not ctx.completed
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert seen == [(False, None), (True, "user cancelled")]
    assert (result.status, result.reason) == ("aborted", "user cancelled")
    assert not result.has_value
    with pytest.raises(Aborted) as caught:
        _ = result.value
    assert caught.value.reason == "user cancelled"
    assert caught.value.result is result


@pytest.mark.clause("002-27b")
async def test_002_27_nothing_starts_after_it() -> None:
    note, seen = recorder()
    async with Harness() as harness:
        result = await harness.run(sequence(note, abort, note), "x")
    assert (result.status, result.reason) == ("aborted", "because of x")
    assert seen == ["x"]


@pytest.mark.clause("002-27b")
async def test_002_27_a_loop_stops_before_its_next_iteration() -> None:
    count = 0

    @step
    async def body(n: int, ctx: Context) -> int:
        nonlocal count
        count += 1
        if n == 2:
            ctx.abort("enough")
        return n + 1

    asked: list[Exception] = []

    def on_error(error: Exception, ctx: Context) -> Any:
        asked.append(error)
        return "skip"

    async with Harness() as harness:
        result = await harness.run(loop(body, until=until.never(), on_error=on_error), 0)
    assert (result.status, count, asked) == ("aborted", 3, [])


@pytest.mark.clause("002-27c")
async def test_002_27_it_reaches_every_live_descendant() -> None:
    seen: list[tuple[int, bool, str | None]] = []
    waiting = 0
    inside = anyio.Event()

    @step
    async def wait(text: str, ctx: Context) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append((ctx.depth, ctx.aborted, ctx.abort_reason))
        return text

    @step
    async def stopper(text: str, ctx: Context) -> str:
        await inside.wait()
        ctx.abort("enough")
        return text

    flow = parallel([wait, spawn(wait), spawn(spawn(wait)), stopper])
    async with Harness() as harness:
        result = await harness.run(flow, "x")
    assert (result.status, result.reason) == ("aborted", "enough")
    assert sorted(seen) == [(0, True, "enough"), (1, True, "enough"), (2, True, "enough")]


@pytest.mark.clause("002-27d")
async def test_002_27_it_never_goes_upward() -> None:
    seen: list[bool] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(Aborted) as caught:
            await spawn(abort)(text, ctx)
        assert caught.value.reason == "because of x"
        assert caught.value.path == ("body", "spawn:abort")
        seen.extend([ctx.aborted, ctx.root.aborted])
        return await echo("went on", ctx)

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.value) == ("completed", "went on")
    assert seen == [False, False]


async def test_002_27_an_abort_of_a_child_that_nobody_handles_breaks_the_run() -> None:
    async with Harness() as harness:
        with pytest.raises(Aborted) as caught:
            await harness.run(spawn(abort), "x")
        assert caught.value.result is not None
        assert caught.value.result.status == "failed"
        outcome = (await harness.run(settle([spawn(abort), echo]), "x")).value
    assert isinstance(outcome[0].error, Aborted)
    assert outcome[1].value == "x"


@pytest.mark.clause("002-27d")
async def test_002_27_siblings_of_an_aborted_child_go_on() -> None:
    aborted = anyio.Event()

    @step
    async def wait(text: str, ctx: Context) -> str:
        await aborted.wait()
        assert not ctx.aborted
        return text

    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.abort("mine alone")
        aborted.set()
        return text

    async with Harness() as harness:
        outcome = (await harness.run(settle([spawn(stop), spawn(wait), wait]), "x")).value
    assert [each.ok for each in outcome] == [False, True, True]


@pytest.mark.clause("002-27e")
@pytest.mark.parametrize("shielded", [False, True])
async def test_002_27_a_child_made_afterwards_never_runs(shielded: bool) -> None:
    note, seen = recorder()
    errors: list[BaseException] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.abort("enough")
        with anyio.CancelScope(shield=shielded):
            try:
                await spawn(note)(text, ctx)
            except BaseException as error:
                errors.append(error)
                raise
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.reason) == ("aborted", "enough")
    assert seen == []
    assert len(errors) == 1


@pytest.mark.clause("002-27e")
async def test_002_27_a_child_of_an_aborted_child_s_subtree_never_runs_either() -> None:
    note, seen = recorder()

    @step
    async def inner(text: str, ctx: Context) -> str:
        assert ctx.parent is not None
        ctx.parent.abort("from below")
        assert ctx.aborted
        assert ctx.abort_reason == "from below"
        with anyio.CancelScope(shield=True):
            await note(text, ctx)
        return text

    async with Harness() as harness:
        result = await harness.run(spawn(inner), "x")
    assert (result.status, result.reason) == ("aborted", "from below")
    assert seen == []


@pytest.mark.clause("002-27f")
async def test_002_27_the_first_reason_wins() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.abort("first")
        ctx.abort("second")
        ctx.complete("third")
        assert ctx.abort_reason == "first"
        assert (ctx.completed, ctx.completion_value) == (False, None)
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.reason) == ("aborted", "first")


@pytest.mark.clause("002-27h")
async def test_002_27_a_body_that_swallows_the_cancellation_is_aborted_all_the_same() -> None:
    @step
    async def stubborn(text: str, ctx: Context) -> str:
        ctx.abort("enough")
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            pass
        return "not this"

    async with Harness() as harness:
        result = await harness.run(stubborn, "x")
    assert result.status == "aborted"
    assert not result.has_value


@pytest.mark.clause("002-27h")
async def test_002_27_a_body_that_raises_after_it_is_aborted_all_the_same() -> None:
    @step(retry=3)
    async def body(text: str, ctx: Context) -> str:
        ctx.abort("enough")
        raise ValueError(text)

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert (result.status, result.reason, result.error, result.steps) == ("aborted", "enough", None, 1)


async def test_002_27_open_calls_are_closed_with_the_reason() -> None:
    @tool
    async def give_up(ctx: Context) -> str:
        ctx.abort("no way")
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel(FunctionCall(name="give_up"))
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(give_up,)), until=until.no_tool_calls()), "go")
    assert result.status == "aborted"
    output = result.items[-1]
    assert isinstance(output, FunctionCallOutput)
    assert "no way" in str(output.output)


async def test_002_27_from_outside() -> None:
    inside = anyio.Event()
    seen: list[str | None] = []

    @step
    async def wait(text: str, ctx: Context) -> str:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(ctx.abort_reason)
        return text

    async with Harness() as harness:
        handle = harness.start(wait, "x")
        await inside.wait()
        handle.abort("from outside")
        handle.abort("again")
        result = await handle.result()
    assert (result.status, result.reason) == ("aborted", "from outside")
    assert seen == ["from outside"]


async def test_002_27_what_finished_before_stays() -> None:
    inside = anyio.Event()

    @step
    async def write(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["written"] = text
        ctx.items.append(Message.user(text))
        return text

    @step
    async def unfinished(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["written"] = "void"
        ctx.items.append(Message.user("void"))
        inside.set()
        await anyio.sleep_forever()
        return text

    async with Harness() as harness:
        handle = harness.start(sequence(write, unfinished), "x")
        await inside.wait()
        handle.abort("enough")
        result = await handle.result()
    assert [item.text for item in result.items if isinstance(item, Message)] == ["x"]
    assert result.state["written"] == "x"


async def test_002_27_an_ordinary_failure_is_no_abort() -> None:
    @step
    async def bad(text: str) -> str:
        raise ValueError(text)

    async with Harness() as harness:
        with pytest.raises(NoeticError) as caught:
            await harness.run(bad, "x")
    assert isinstance(caught.value, StepFailed)
    assert not isinstance(caught.value, Aborted)
