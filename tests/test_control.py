from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import (
    Budget,
    Checkpoint,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    Message,
    Model,
    RunFinished,
    RunResult,
    RunStatus,
    StateBag,
    TokenUsage,
    branch,
    call_model,
    errors,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.control import NO_VALUE, Transcript
from noetic_py.errors import Aborted, BudgetExceeded, Interrupted, NoeticError, StepFailed
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio


@step
async def echo(text: str) -> str:
    return text


@step
async def forever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@step
async def fail(text: str) -> str:
    raise ValueError(text)


@step
async def write(text: str, ctx: Context[Memory, StateBag]) -> str:
    ctx.items.append(Message.user(text))
    ctx.state[f"n{len(ctx.items)}"] = text
    return text


@step
async def wrap_up(nothing: object, ctx: Context) -> str:
    ctx.items.append(Message.assistant("wrapped up"))
    return "wrapped up"


@step
async def look_at_budget(text: str, ctx: Context) -> int | None:
    return ctx.budget.steps


async def run(flow: Any, input: object = "x", *, model: Model | None = None, **options: Any) -> RunResult[Any, Any]:
    result: RunResult[Any, Any]
    async with Harness(model=model) as harness:
        result = await harness.run(flow, input, **options)
    return result


def texts(items: Sequence[object]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


# -------------------------------------------------------------------------------------------------------------- results


async def test_a_completed_run() -> None:
    model = ScriptedModel("hello", usage=TokenUsage(10, 5), cost="0.5")
    history = [Message.user("before")]
    result = await run(sequence(write, call_model()), "hi", model=model, run_id="run-1", history=history)
    assert (result.run_id, result.status, result.error) == ("run-1", "completed", None)
    assert (result.value, result.output_or(None), result.has_value) == ("hello", "hello", True)
    assert (result.usage, result.cost, result.steps) == (TokenUsage(10, 5), Decimal("0.5"), 2)
    assert result.seconds >= 0
    assert result.state["n2"] == "hi"
    assert texts(result.items) == ["before", "hi", "hi", "hello"]
    assert texts(result.new_items) == ["hi", "hi", "hello"]
    assert result.text == "hello"
    assert list(result.pending) == []
    assert isinstance(result.checkpoint, Checkpoint)
    assert result.checkpoint.run_id == "run-1"
    assert result.checkpoint.position > 0
    assert repr(result) == "RunResult(run-1, completed, steps=2, tokens=15, cost=0.5)"
    shown: str = result._repr_html_()
    for part in ("completed", "&#x27;hello&#x27;", "2 steps, 1 model calls, 15 tokens", "0.5 USD", "run-1"):
        assert part in shown
    assert ">error<" not in shown


async def test_none_is_a_value() -> None:
    @step
    async def nothing(text: str) -> None:
        return None

    result = await run(nothing)
    assert (result.value, result.output_or("other"), result.has_value) == (None, None, True)


async def test_text_is_the_last_thing_the_assistant_said() -> None:
    call = FunctionCall(name="look")

    @tool
    async def look() -> str:
        """Look."""
        return "x"

    model = ScriptedModel([Message.assistant("looking"), call], Message.assistant(""))
    flow = loop(call_model(tools=(look,)), until=until.max_rounds(2))
    assert (await run(flow, "go", model=model)).text == "looking"
    assert (await run(echo)).text == ""


async def test_an_unpriced_model_makes_the_cost_unknown() -> None:
    class Unpriced:
        name = "acme:x"

        def __init__(self) -> None:
            self.inner = ScriptedModel("a", usage=TokenUsage(1, 1))

        def respond(self, request: Any, /) -> Any:
            return self.inner.respond(request)

    result = await run(call_model(), "hi", model=Unpriced())
    assert (result.cost, result.usage.total) == (None, 2)


async def test_a_failed_run_raises_or_returns() -> None:
    result = await run(sequence(write, fail), "x", on_error="result")
    assert result.status == "failed"
    assert isinstance(result.error, StepFailed)
    assert result.reason == "ValueError: x"
    assert texts(result.items) == ["x"]
    assert result.state["n1"] == "x"
    assert not result.has_value
    assert result.output_or("default") == "default"
    with pytest.raises(StepFailed) as caught:
        _ = result.value
    assert caught.value is result.error
    assert caught.value.result is result
    with pytest.raises(StepFailed) as caught:
        await run(sequence(write, fail), "x", on_error="raise")
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_failure_of_the_library_s_own_is_raised_as_it_is() -> None:
    error = NoeticError("mine", hint="do something else")

    @step
    async def bad(text: str) -> str:
        raise error

    with pytest.raises(NoeticError) as caught:
        await run(sequence(bad))
    assert caught.value is error
    assert str(error) == "mine [at sequence/bad]\n  Try: do something else"


async def test_the_reason_is_the_loop_s_that_ended_the_flow() -> None:
    result = await run(loop(echo, until=until.max_rounds(2)))
    assert "max_rounds" in (result.reason or "")
    again = loop(echo, until=until.max_rounds(2))
    for flow in (
        echo >> again,
        branch(lambda text: "a", {"a": again}),
        branch(lambda text: "z", {"a": echo}, default=again),
    ):
        assert "max_rounds" in ((await run(flow)).reason or "")
    for other in (echo, again >> echo, parallel([again]), spawn(again), branch(lambda text: "a", {"a": again}) >> echo):
        unended: Any = other
        assert (await run(unended)).reason is None


# ------------------------------------------------------------------------------------------------- stopped from outside


async def test_an_interrupted_run() -> None:
    inside = anyio.Event()

    @step
    async def wait(text: str) -> str:
        inside.set()
        await anyio.sleep_forever()
        return text

    async with Harness() as harness:
        handle = harness.start(sequence(write, wait), "x")
        await inside.wait()
        handle.interrupt("user pressed stop")
        result = await handle.result()
        assert (result.status, result.reason) == ("interrupted", "user pressed stop")
        assert texts(result.items) == ["x"]
        with pytest.raises(Interrupted, match="user pressed stop") as caught:
            _ = result.value
        assert caught.value.result is result
        inside = anyio.Event()
        handle = harness.start(wait, "x")
        await inside.wait()
        handle.interrupt()
        assert (await handle.result()).status == "interrupted"


@pytest.mark.parametrize("how", ["abort", "interrupt"])
async def test_a_run_stopped_before_it_began(how: str) -> None:
    async with Harness() as harness:
        handle = harness.start(write, "x")
        getattr(handle, how)("at once")
        result = await handle.result()
    assert (result.status, result.reason) == (f"{how}ed", "at once")
    assert (result.steps, list(result.items)) == (0, [])


async def test_a_run_stopped_after_its_end_stays_as_it_was() -> None:
    async with Harness() as harness:
        handle = harness.start(echo, "x")
        result = await handle.result()
        handle.abort("too late")
        handle.interrupt()
        assert (await handle.result()) is result
    assert (result.status, result.value) == ("completed", "x")


async def test_a_run_cancelled_from_outside_says_so() -> None:
    events: list[object] = []
    inside = anyio.Event()

    @step
    async def wait(text: str) -> str:
        inside.set()
        await anyio.sleep_forever()
        return text

    async with Harness() as harness:
        async with harness.stream(wait, "x") as stream:
            await inside.wait()
        # Leaving the block cancels the run, and its events end.
        events = [event async for event in stream.events]
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert last.status == "cancelled"
    with pytest.raises(NoeticError, match="before its end"):
        await stream.result()


async def test_a_cancellation_is_passed_on() -> None:
    after: list[str] = []
    async with Harness() as harness:
        with anyio.move_on_after(0.01) as scope:
            await harness.run(forever, "x")
            after.append("not reached")
        assert scope.cancelled_caught
        assert (await harness.run(echo, "x")).value == "x"
    assert after == []


async def test_a_stop_and_a_cancellation_at_once() -> None:
    """The stop was first: the run still ends in the cancellation, which is the caller's to have."""
    async with Harness() as harness:
        with anyio.CancelScope() as scope:

            @step
            async def both(text: str, ctx: Context) -> str:
                ctx.abort("mine")
                scope.cancel()
                await anyio.sleep_forever()
                return text

            await harness.run(both, "x")
        assert scope.cancel_called
        assert (await harness.run(echo, "x")).value == "x"


# ------------------------------------------------------------------------------------------------ stops inside sections


@pytest.mark.parametrize("deep", [False, True])
async def test_a_stop_leaves_the_state_as_finished_steps_left_it(deep: bool) -> None:
    @step
    async def stop(text: str, ctx: Context[Memory, StateBag]) -> str:
        await write("child", ctx)
        ctx.state["mine"] = "kept"
        ctx.items.append(Message.user("kept"))
        ctx.abort("enough")
        return text

    flow = sequence(write, sequence(stop, write, id="inner") if deep else stop, write)
    result = await run(flow)
    assert result.status == "aborted"
    assert texts(result.items) == ["x", "child", "kept"]
    assert dict(result.state.view()) == {"n1": "x", "n2": "child", "mine": "kept"}


async def test_a_stop_inside_a_section_leaves_the_parent_alone() -> None:
    @step
    async def stop(text: str, ctx: Context[Memory, StateBag]) -> str:
        await write("path", ctx)
        ctx.complete("done")
        return text

    result = await run(sequence(write, parallel(stop, forever)))
    assert (result.status, result.output_or("")) == ("completed", "done")
    assert texts(result.items) == ["x"]
    assert dict(result.state.view()) == {"n1": "x"}


KEEPS_BACK = Budget(steps=5, wrap_up=echo.bind("w"), reserve=Budget(steps=2))


@pytest.mark.parametrize("budget", [None, Budget(tokens=1000), KEEPS_BACK])
async def test_a_stop_while_a_retry_waits(budget: Budget | None) -> None:
    runtime = VirtualRuntime()
    flow = sequence(echo, sequence(echo, fail), echo).with_options(id="outer", retry=3)
    waiting = sequence(echo, flow if budget is None else flow.with_options(budget=budget))
    async with Harness(runtime=runtime, budget=Budget(steps=20)) as harness:
        handle = harness.start(waiting, "x")
        while not runtime.sleeping():
            await anyio.lowlevel.checkpoint()
        handle.abort("no more")
        result = await handle.result()
        assert (result.status, result.reason, result.steps) == ("aborted", "no more", 4)
        # Nothing is kept back for a wrap-up that will never run.
        assert (await harness.run(look_at_budget, "x")).value == 15


async def test_a_stop_counts_what_a_cancelled_model_call_used() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        while not model.requests:
            await anyio.lowlevel.checkpoint()
        ctx.abort("enough")
        return text

    model = ScriptedModel("never", delay=60)
    result = await run(parallel(call_model(), stop), "x", model=model)
    assert result.status == "aborted"


# ------------------------------------------------------------------------------------------------- budgets and wrap-ups


async def test_a_run_out_of_budget() -> None:
    result = await run(sequence(write, write, write), "x", budget=Budget(steps=2))
    assert (result.status, result.steps) == ("budget_exceeded", 2)
    assert isinstance(result.error, BudgetExceeded)
    assert (result.error.dimension, result.error.limit) == ("steps", 2)
    assert "steps" in (result.reason or "")
    assert texts(result.items) == ["x", "x"]
    assert len(result.state) == 2
    assert not result.has_value
    with pytest.raises(BudgetExceeded):
        _ = result.value


async def test_a_handled_budget_error_is_no_stop() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(BudgetExceeded):
            await sequence(echo, echo, echo)(text, ctx)
        return "handled"

    result = await run(body, "x", budget=Budget(steps=3))
    assert (result.status, result.value) == ("completed", "handled")


@pytest.mark.parametrize("how", [{"deadline": 0.02}, {"budget": Budget(seconds=0.02)}])
async def test_a_run_out_of_time(how: Any) -> None:
    result = await run(sequence(write, forever), "x", **how)
    assert result.status == "budget_exceeded"
    assert isinstance(result.error, BudgetExceeded)
    assert (result.error.dimension, result.error.limit) == ("seconds", 0.02)
    assert texts(result.items) == ["x"]


async def test_a_run_without_any_time() -> None:
    result = await run(echo, "x", deadline=0)
    assert (result.status, result.steps) == ("budget_exceeded", 0)


async def test_the_nearest_of_several_deadlines_holds() -> None:
    result = await run(forever, "x", deadline=0.01, budget=Budget(seconds=60))
    assert isinstance(result.error, BudgetExceeded)
    assert result.error.limit == 0.01
    async with Harness(budget=Budget(seconds=0.01)) as harness:
        assert (await harness.run(forever, "x", deadline=60)).status == "budget_exceeded"


async def test_a_wrap_up_gives_a_value_to_a_run_that_still_says_why_it_ended() -> None:
    budget = Budget(steps=3, wrap_up=wrap_up, reserve=Budget(steps=1))
    result = await run(sequence(write, write, write), "x", budget=budget)
    assert (result.status, result.value, result.steps) == ("budget_exceeded", "wrapped up", 3)
    assert texts(result.items) == ["x", "x", "wrapped up"]
    assert isinstance(result.error, BudgetExceeded)
    assert result.has_value


async def test_a_wrap_up_when_time_is_over() -> None:
    budget = Budget(seconds=60, wrap_up=wrap_up, reserve=Budget(seconds=59.98))
    result = await run(sequence(write, forever), "x", budget=budget)
    assert (result.status, result.value) == ("budget_exceeded", "wrapped up")
    assert texts(result.items) == ["x", "wrapped up"]


async def test_a_wrap_up_that_fails_or_takes_too_long_gives_no_value() -> None:
    fails = Budget(steps=3, wrap_up=fail.bind("no"), reserve=Budget(steps=1))
    result = await run(sequence(write, write, write), "x", budget=fails)
    assert (result.status, result.has_value) == ("budget_exceeded", False)
    assert texts(result.items) == ["x", "x"]
    greedy = Budget(steps=3, wrap_up=sequence(echo, echo).bind("x"), reserve=Budget(steps=1))
    result = await run(sequence(write, write, write), "x", budget=greedy)
    assert (result.status, result.has_value) == ("budget_exceeded", False)
    slow = Budget(seconds=0.02, wrap_up=forever.bind("x"), reserve=Budget(seconds=0.01))
    result = await run(forever, "x", budget=slow)
    assert (result.status, result.has_value) == ("budget_exceeded", False)


async def test_a_wrap_up_of_a_step_s_own_budget() -> None:
    budget = Budget(steps=2, wrap_up=wrap_up, reserve=Budget(steps=1))
    flow = sequence(write, sequence(write, write, write, id="inner").with_options(budget=budget), write)
    result = await run(flow, "x")
    assert (result.status, result.value) == ("completed", "wrapped up")
    assert texts(result.items) == ["x", "x", "wrapped up", "wrapped up"]


async def test_a_wrap_up_is_not_run_when_the_budget_suffices() -> None:
    budget = Budget(steps=3, wrap_up=wrap_up, reserve=Budget(steps=1))
    result = await run(sequence(write, write), "x", budget=budget)
    assert (result.status, result.value) == ("completed", "x")
    assert texts(result.items) == ["x", "x"]


async def test_a_reserve_without_a_wrap_up_is_kept_back_all_the_same() -> None:
    result = await run(sequence(write, write, write), "x", budget=Budget(steps=3, reserve=Budget(steps=1)))
    assert (result.status, result.steps, result.has_value) == ("budget_exceeded", 2, False)


async def test_a_reserve_that_does_not_fit_above() -> None:
    budget = Budget(steps=5, wrap_up=wrap_up, reserve=Budget(steps=3))
    async with Harness(budget=Budget(steps=2)) as harness:
        result = await harness.run(echo, "x", budget=budget)
    assert result.status in ("failed", "budget_exceeded")
    assert isinstance(result.error, BudgetExceeded)


async def test_a_budget_of_the_harness_ends_its_runs() -> None:
    async with Harness(budget=Budget(steps=3)) as harness:
        assert (await harness.run(sequence(echo, echo), "x")).status == "completed"
        assert (await harness.run(sequence(echo, echo), "x")).status == "budget_exceeded"
        assert (await harness.run(echo, "x")).status == "budget_exceeded"


async def test_a_time_budget_of_a_step() -> None:
    flow = settle([forever.with_options(budget=Budget(seconds=0.01)), echo])
    outcomes = (await run(flow)).value
    assert isinstance(outcomes[0].error, BudgetExceeded)
    assert outcomes[0].error.path == ("settle", "forever[0]")
    assert outcomes[1].value == "x"
    within = echo.with_options(budget=Budget(seconds=60))
    assert (await run(within)).value == "x"


async def test_a_token_budget_ends_an_agent_with_a_valid_conversation() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "x"

    model = ScriptedModel(*[FunctionCall(name="look")] * 9, usage=TokenUsage(100, 50))
    flow = loop(call_model(tools=(look,)), until=until.no_tool_calls())
    result = await run(flow, "go", model=model, budget=Budget(tokens=500))
    assert result.status == "budget_exceeded"
    assert isinstance(result.error, BudgetExceeded)
    assert result.error.dimension == "tokens"
    calls = [item for item in result.items if isinstance(item, FunctionCall)]
    outputs = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert len(calls) == len(outputs) == len(model.requests) > 0


async def test_a_tool_budget_ends_an_agent_too() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "x"

    model = ScriptedModel(*[FunctionCall(name="look")] * 9)
    flow = loop(call_model(tools=(look,)), until=until.no_tool_calls())
    result = await run(flow, "go", model=model, budget=Budget(per_tool={"look": 2}))
    assert isinstance(result.error, BudgetExceeded)
    assert result.error.dimension == "per_tool:look"
    assert len(model.requests) == 3
    last = result.items[-1]
    assert isinstance(last, FunctionCallOutput)
    assert "budget" in str(last.output)


# -------------------------------------------------------------------------------------------------- stops out of spawns


async def test_a_stop_of_the_root_is_stronger_than_one_of_the_child() -> None:
    @step
    async def both(text: str, ctx: Context) -> str:
        ctx.abort("child")
        ctx.root.abort("root")
        return text

    result = await run(spawn(both))
    assert (result.status, result.reason) == ("aborted", "root")


async def test_an_interrupt_of_the_run_reaches_a_child() -> None:
    seen: list[bool] = []
    inside = anyio.Event()

    @step
    async def wait(text: str, ctx: Context) -> str:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(ctx.aborted)
        return text

    async with Harness() as harness:
        handle = harness.start(spawn(wait), "x")
        await inside.wait()
        handle.interrupt()
        result = await handle.result()
    assert result.status == "interrupted"
    # Interrupting is not aborting.
    assert seen == [False]


async def test_an_abort_of_a_child_can_be_handled_more_than_once() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.abort(text)
        return text

    @step
    async def body(text: str, ctx: Context) -> list[str]:
        reasons: list[str] = []
        for n in range(3):
            with pytest.raises(Aborted) as caught:
                await spawn(stop)(f"{text}{n}", ctx)
            reasons.append(caught.value.reason)
        return reasons

    assert (await run(body)).value == ["x0", "x1", "x2"]


# ---------------------------------------------------------------------------------------- statuses of other processes


@pytest.mark.parametrize(
    ("status", "expected", "text"),
    [
        ("aborted", errors.Aborted, "aborted: why"),
        ("interrupted", errors.Interrupted, "interrupted: why"),
        ("suspended", errors.Suspended, "waits for an answer: why"),
        ("cancelled", errors.Cancelled, "cancelled: why"),
        ("completed", errors.NoOutput, "no value"),
    ],
)
def test_a_result_without_a_value_says_why_it_has_none(
    status: RunStatus, expected: type[errors.NoeticError], text: str
) -> None:
    result: RunResult[str, StateBag] = RunResult(
        run_id="r",
        status=status,
        output=NO_VALUE,
        state=StateBag(),
        usage=TokenUsage(),
        cost=None,
        steps=0,
        model_calls=0,
        seconds=0.0,
        checkpoint=Checkpoint("r", 0),
        transcript=lambda: Transcript((), ()),
        reason="why",
    )
    with pytest.raises(expected, match=text) as caught:
        _ = result.value
    assert caught.value.result is result
    assert (result.has_value, result.output_or("else"), result.text, list(result.pending)) == (False, "else", "", [])
    shown: str = result._repr_html_()
    assert f"{status}: why" in shown
    assert "unknown" in shown
    assert ">value<" not in shown
