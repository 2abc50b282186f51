"""Small programs that once came out wrong, each with the rule that it broke."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define

from noetic_py import (
    Ask,
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    ModelRequest,
    Retry,
    StateBag,
    Step,
    call_model,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.journal.records import StepFinished
from noetic_py.models import ModelStream
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@define
class Pair:
    """Two fields that are changed together or not at all."""

    a: int = 0
    b: int = 0


Ctx = Context[Memory, Pair]


def say(text: str) -> Message:
    return Message.assistant(text)


def texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


# -- state: old or new


async def state_of_a_run_that_is_cancelled_in(flow: Step[Any, Any, Memory, Pair], where: anyio.Event) -> Pair:
    """The state of a run that is cancelled from outside once it has come to a place where it waits."""
    state = Pair()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(Harness(plugins=()).run, flow, "go", state=state))
            await where.wait()
            group.cancel_scope.cancel()
    return state


async def test_state_changed_after_a_handled_failure_goes_when_the_body_is_cancelled() -> None:
    here = anyio.Event()

    @step
    async def grandchild(x: str, ctx: Ctx) -> str:
        return x

    @step
    async def child(x: str, ctx: Ctx) -> str:
        await grandchild(x, ctx)
        raise ValueError("child")

    @step
    async def parent(x: str, ctx: Ctx) -> str:
        assert ctx.state.a == 0
        with pytest.raises(errors.StepFailed):
            await child(x, ctx)
        ctx.state.a = 1
        here.set()
        await anyio.sleep_forever()
        ctx.state.b = 1
        return x

    assert await state_of_a_run_that_is_cancelled_in(parent, here) == Pair(0, 0)


async def test_state_changed_after_a_child_was_given_up_goes_when_the_body_is_cancelled() -> None:
    here, scope = anyio.Event(), anyio.CancelScope()

    @step
    async def grandchild(x: str, ctx: Ctx) -> str:
        return x

    @step
    async def child(x: str, ctx: Ctx) -> str:
        await grandchild(x, ctx)
        scope.cancel()
        await anyio.sleep_forever()
        return x

    @step
    async def parent(x: str, ctx: Ctx) -> str:
        assert ctx.state.a == 0
        with scope:
            await child(x, ctx)
        ctx.state.a = 1
        here.set()
        await anyio.sleep_forever()
        ctx.state.b = 1
        return x

    assert await state_of_a_run_that_is_cancelled_in(parent, here) == Pair(0, 0)


async def test_state_of_a_failed_run_holds_nothing_of_the_bodies_that_did_not_finish() -> None:
    @step
    async def child(x: int, ctx: Ctx) -> int:
        assert ctx.state.a == 1
        raise ValueError("child")

    @step
    async def parent(x: int, ctx: Ctx) -> int:
        ctx.state.a = 1
        await child(x, ctx)
        ctx.state.b = 1
        return x

    result = await Harness(plugins=()).run(parent, 1, state=Pair(), on_error="result")
    assert result.state == Pair(0, 0)


async def test_state_of_finished_children_stays_when_their_parent_raises_after_a_stop() -> None:
    @step
    async def child(x: int, ctx: Ctx) -> int:
        ctx.items.append(say("child"))
        ctx.state.a = ctx.state.b = 1
        return x

    @step
    async def parent(x: int, ctx: Ctx) -> int:
        await child(x, ctx)
        ctx.complete(5)
        raise ValueError("late")

    result = await Harness(plugins=()).run(parent, 1, state=Pair())
    assert (result.status, result.value) == ("completed", 5)
    assert texts(result.items) == ["child"]
    assert result.state == Pair(1, 1)


# -- items: the fold is the live log


async def test_items_before_a_retried_child_stand_before_its_items() -> None:
    tries: list[int] = []

    @step(retry=Retry(2, initial=0))
    async def child(x: int, ctx: Context) -> int:
        tries.append(x)
        if len(tries) == 1:
            raise ValueError("first")
        ctx.items.append(say("child"))
        return x

    seen: list[list[str]] = []

    @step
    async def parent(x: int, ctx: Context) -> int:
        ctx.items.append(say("parent"))
        await child(x, ctx)
        seen.append(texts(ctx.items))
        return x

    result = await Harness(plugins=()).run(parent, 1)
    assert seen == [["parent", "child"]]
    assert texts(result.items) == ["parent", "child"]


async def test_items_of_steps_that_finished_before_a_budget_was_spent_stay_after_the_wrap_up() -> None:
    @step
    async def work(x: object, ctx: Context) -> int:
        ctx.items.append(say("work"))
        return 1

    seen: list[list[str]] = []

    @step
    async def wrap(x: object, ctx: Context) -> int:
        seen.append(texts(ctx.items))
        ctx.items.append(say("wrap"))
        return 9

    budget = Budget(steps=3, wrap_up=wrap, reserve=Budget(steps=1))
    result = await Harness(plugins=()).run(sequence(work, work, work), 1, budget=budget)
    assert (result.status, result.value) == ("budget_exceeded", 9)
    assert seen == [["work", "work"]]
    assert texts(result.items) == ["work", "work", "wrap"]


async def test_items_of_finished_steps_stay_after_the_wrap_up_of_a_step() -> None:
    @step
    async def work(x: object, ctx: Context) -> int:
        ctx.items.append(say("work"))
        return 1

    @step
    async def wrap(x: object, ctx: Context) -> int:
        ctx.items.append(say("wrap"))
        return 9

    @step(budget=Budget(steps=3, wrap_up=wrap, reserve=Budget(steps=1)))
    async def parent(x: int, ctx: Context) -> int:
        ctx.items.append(say("parent"))
        return await sequence(work, work, work)(x, ctx)

    live: list[list[str]] = []

    @step
    async def last(x: int, ctx: Context) -> int:
        live.append(texts(ctx.items))
        return x

    result = await Harness(plugins=()).run(parent >> last, 1)
    assert (result.status, result.value) == ("completed", 9)
    assert texts(result.items) == live[0]
    assert live == [["work", "work", "wrap"]] or live == [["parent", "work", "work", "wrap"]]


async def test_items_of_finished_steps_stay_in_a_shared_conversation_that_is_stopped() -> None:
    @step
    async def work(x: int, ctx: Context) -> int:
        ctx.items.append(say("work"))
        return x

    @step
    async def stop(x: int, ctx: Context) -> int:
        ctx.root.abort("enough")
        await checkpoint()
        return x

    flow = sequence(work, spawn(sequence(work, stop), items="share"))
    result = await Harness(plugins=()).run(flow, 1)
    assert result.status == "aborted"
    assert texts(result.items) == ["work", "work"]


async def test_items_below_a_failure_that_was_handled_do_not_come_back_when_the_parent_fails_of_another() -> None:
    @step
    async def grandchild(x: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.items.append(say("grandchild"))
        ctx.state["seen"] = True
        return x

    @step
    async def child(x: int, ctx: Context[Memory, StateBag]) -> int:
        await grandchild(x, ctx)
        raise ValueError("child")

    @step
    async def parent(x: int, ctx: Context[Memory, StateBag]) -> int:
        with pytest.raises(errors.StepFailed):
            await child(x, ctx)
        raise ValueError("parent")

    result = await Harness(plugins=()).run(parent, 1, on_error="result")
    assert result.status == "failed"
    assert "seen" not in result.state
    assert texts(result.items) == []


# -- control


async def test_an_abort_right_after_the_start_is_not_lost() -> None:
    @step
    async def work(x: int) -> int:
        await checkpoint()
        return x

    async with Harness(plugins=()) as harness:
        handle = harness.start(work, 1)
        handle.abort("at once")
        result = await handle.result()
    assert (result.status, result.reason) == ("aborted", "at once")


async def test_an_interrupt_right_after_the_start_is_not_lost() -> None:
    @step
    async def work(x: int) -> int:
        await checkpoint()
        return x

    async with Harness(plugins=()) as harness:
        handle = harness.start(work, 1)
        handle.interrupt("at once")
        result = await handle.result()
    assert result.status == "interrupted"


async def test_a_loop_stop_asked_for_by_a_failed_attempt_is_void() -> None:
    tries: list[int] = []

    @step(retry=Retry(2, initial=0))
    async def count(x: int, ctx: Context) -> int:
        tries.append(x)
        if len(tries) == 1:
            ctx.stop_loop(77)
            raise ValueError("first")
        return x + 1

    result = await Harness(plugins=()).run(loop(count, until=until.max_rounds(3)), 1)
    assert result.value == 4


# -- budgets


async def test_a_reserve_that_does_not_fit_the_harness_gives_nothing_back() -> None:
    @step
    async def work(x: object) -> int:
        return 1

    harness = Harness(plugins=(), budget=Budget(cost=1))
    budget = Budget(cost=5, wrap_up=work, reserve=Budget(cost=2))
    result = await harness.run(work, 1, budget=budget, on_error="result")
    assert result.status == "budget_exceeded"
    # Nothing was kept, so there is nothing to give back: a later run must not find more than the harness allows.
    model = ScriptedModel("1", "2", "3", cost=1)
    later = await harness.run(sequence(call_model(model), call_model(model)), "go", on_error="result")
    assert len(model.requests) == 1
    assert later.status == "budget_exceeded"
    assert later.cost == Decimal(1)


async def test_retries_share_the_budget_of_their_step() -> None:
    model = ScriptedModel(*[errors.ModelUnavailable("down", model="test:scripted") for _ in range(9)])
    flow = call_model(model, retry=Retry(5, initial=0), budget=Budget(model_calls=2))
    result = await Harness(plugins=()).run(flow, "go", on_error="result")
    assert len(model.requests) == 2
    assert result.status == "budget_exceeded"


async def test_a_block_of_steps_kept_for_a_wrap_up_is_kept_above_too() -> None:
    @step
    async def work(x: object, ctx: Context) -> int:
        return 1

    @step
    async def wrap(x: object, ctx: Context) -> int:
        return 9

    @step(budget=Budget(steps=5, wrap_up=wrap, reserve=Budget(steps=1)))
    async def parent(x: int, ctx: Context) -> int:
        for _ in range(9):
            await work(x, ctx)
        return 1

    result = await Harness(plugins=()).run(parent, 1, budget=Budget(steps=4), on_error="result")
    assert result.steps <= 4
    assert result.output_or(None) == 9


async def test_items_before_a_child_that_handles_a_failure_stand_before_its_items() -> None:
    @step
    async def broken(x: int, ctx: Context) -> int:
        raise ValueError("broken")

    @step
    async def child(x: int, ctx: Context) -> int:
        with pytest.raises(errors.StepFailed):
            await broken(x, ctx)
        ctx.items.append(say("child"))
        return x

    @step
    async def parent(x: int, ctx: Context) -> int:
        ctx.items.append(say("parent"))
        return await child(x, ctx)

    result = await Harness(plugins=()).run(parent, 1)
    assert texts(result.items) == ["parent", "child"]


async def test_state_of_finished_steps_in_a_shared_state_stays_when_the_run_fails() -> None:
    @step
    async def work(x: int, ctx: Ctx) -> int:
        ctx.state.a = ctx.state.b = x
        return x

    @step
    async def broken(x: int, ctx: Ctx) -> int:
        ctx.state.a = 99
        raise ValueError("broken")

    result = await Harness(plugins=()).run(spawn(work >> broken, state="share"), 1, state=Pair(), on_error="result")
    assert result.status == "failed"
    assert result.state == Pair(1, 1)


async def test_the_conversation_of_a_cancelled_run_has_the_outputs_of_the_tools_that_finished() -> None:
    done = anyio.Event()

    @tool
    async def work(x: int) -> str:
        if x:
            await anyio.sleep_forever()
        done.set()
        return "done"

    calls = [FunctionCall(name="work", arguments={"x": x}) for x in range(2)]
    ctx: Context[Memory, StateBag] = Context()
    async with anyio.create_task_group() as group:
        flow = loop(call_model(ScriptedModel(calls), tools=[work]), until=until.no_tool_calls())
        group.start_soon(partial(Harness(plugins=()).run, flow, "go", ctx=ctx))
        await done.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    outputs = [item.call_id for item in ctx.items if isinstance(item, FunctionCallOutput)]
    assert outputs == [calls[0].call_id]


@pytest.mark.parametrize("how", ["complete", "abort"])
async def test_a_stop_asked_for_through_the_root_keeps_the_asking_bodys_work(how: str) -> None:
    @step
    async def work(x: int, ctx: Ctx) -> int:
        ctx.items.append(say("work"))
        ctx.state.a = ctx.state.b = 1
        getattr(ctx.root, how)("now")
        await checkpoint()
        return x

    result = await Harness(plugins=()).run(work, 1, state=Pair())
    assert texts(result.items) == ["work"]
    assert result.state == Pair(1, 1)


async def test_items_below_a_handled_failure_do_not_come_back_with_a_wrap_up() -> None:
    @step
    async def grandchild(x: int, ctx: Context) -> int:
        ctx.items.append(say("grandchild"))
        return x

    @step
    async def child(x: int, ctx: Context) -> int:
        await grandchild(x, ctx)
        raise ValueError("child")

    seen: list[list[str]] = []

    @step
    async def wrap(x: object, ctx: Context) -> int:
        seen.append(texts(ctx.items))
        ctx.items.append(say("wrap"))
        return 9

    @step(budget=Budget(steps=3, wrap_up=wrap, reserve=Budget(steps=1)))
    async def parent(x: int, ctx: Context) -> int:
        ctx.items.append(say("parent"))
        with pytest.raises(errors.StepFailed):
            await child(x, ctx)
        return await grandchild(x, ctx)

    budget = Budget(steps=4, wrap_up=wrap, reserve=Budget(steps=1))
    for flow, limit in ((parent, Budget()), (parent.with_options(budget=Budget()), budget)):
        seen.clear()
        result = await Harness(plugins=()).run(flow, 1, budget=limit)
        assert result.value == 9
        assert seen == [["parent"]]
        assert texts(result.items) == ["parent", "wrap"]


async def test_state_of_a_finished_grandchild_stays_when_its_parents_fail() -> None:
    @step
    async def grandchild(x: int, ctx: Ctx) -> int:
        ctx.state.a = ctx.state.b = 1
        return x

    @step
    async def child(x: int, ctx: Ctx) -> int:
        await grandchild(x, ctx)
        raise ValueError("child")

    @step
    async def parent(x: int, ctx: Ctx) -> int:
        assert ctx.state.a == 0
        return await child(x, ctx)

    result = await Harness(plugins=()).run(parent, 1, state=Pair(), on_error="result")
    assert result.status == "failed"
    assert result.state == Pair(1, 1)


async def test_outputs_of_finished_tool_calls_stay_in_the_conversation_when_their_round_is_given_up() -> None:
    @tool
    async def work(x: int) -> str:
        if x:
            scope.cancel()
            await anyio.sleep_forever()
        return "done"

    calls = [FunctionCall(name="work", arguments={"x": x}) for x in range(2)]
    ask = call_model(ScriptedModel([Message.assistant("well"), *calls]), tools=[work])
    scope = anyio.CancelScope()
    seen: list[list[str]] = []

    @step
    async def parent(x: int, ctx: Context) -> int:
        with scope:
            await ask("go", ctx)
        seen.append([item.call_id for item in ctx.items if isinstance(item, FunctionCallOutput)])
        return x

    result = await Harness(plugins=()).run(parent, 1)
    assert seen == [[calls[0].call_id]]
    outputs = {item.call_id: item.output for item in result.items if isinstance(item, FunctionCallOutput)}
    assert outputs[calls[0].call_id] == "done"
    assert str(outputs[calls[1].call_id]).startswith("Not finished")


async def test_the_output_of_a_tool_that_ended_its_spawn_stays_in_a_shared_conversation() -> None:
    @tool
    async def end(ctx: Context) -> str:
        ctx.complete("ended")
        return "done"

    ask = call_model(ScriptedModel([FunctionCall(name="end")]), tools=[end])
    child = spawn(loop(ask, until=until.no_tool_calls()), items="share")
    seen: list[list[object]] = []

    @step
    async def parent(x: str, ctx: Context) -> str:
        value = await child(x, ctx)
        seen.append([item.output for item in ctx.items if isinstance(item, FunctionCallOutput)])
        return value or "nothing"

    result = await Harness(plugins=()).run(parent, "go")
    assert result.value == "ended"
    assert seen == [["done"]]
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["done"]


async def stopped_after(child: Step[Any, Any, Memory, Pair], scope: anyio.CancelScope) -> Pair:
    """The state when a body that gave up a child, and had begun to change its state before, is cancelled."""
    waiting = anyio.Event()

    @step
    async def parent(x: str, ctx: Ctx) -> str:
        ctx.state.a = 1
        with scope:
            await child(x, ctx)
        assert scope.cancelled_caught
        waiting.set()
        await anyio.sleep_forever()
        ctx.state.b = 1
        return x

    return await state_of_a_run_that_is_cancelled_in(parent, waiting)


async def test_a_cancelled_retry_does_not_write_what_its_parent_has_begun() -> None:
    scope = anyio.CancelScope()
    tries: list[str] = []

    @step(retry=Retry(2, initial=0))
    async def child(x: str) -> str:
        tries.append(x)
        if len(tries) == 1:
            raise ValueError("first")
        scope.cancel()
        await anyio.sleep_forever()
        return x

    assert await stopped_after(child, scope) == Pair(0, 0)
    assert len(tries) == 2


async def test_a_cancelled_model_call_does_not_write_what_its_parent_has_begun() -> None:
    scope = anyio.CancelScope()

    class Hanging(ScriptedModel):
        def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
            scope.cancel()
            return super().respond(request)

    model = Hanging("late", cost=1, delay=60)
    assert await stopped_after(call_model(model), scope) == Pair(0, 0)


async def test_what_was_written_before_a_handled_failure_stays_when_its_body_is_given_up() -> None:
    scope = anyio.CancelScope()

    @step
    async def grandchild(x: int, ctx: Context) -> int:
        ctx.items.append(say("grandchild"))
        return x

    @step
    async def child(x: int, ctx: Context) -> int:
        await grandchild(x, ctx)
        raise ValueError("child")

    @step
    async def parent(x: int, ctx: Context) -> int:
        ctx.items.append(say("written with the grandchild"))
        with pytest.raises(errors.StepFailed):
            await child(x, ctx)
        ctx.items.append(say("never written"))
        scope.cancel()
        await anyio.sleep_forever()
        return x

    seen: list[list[str]] = []

    @step
    async def outer(x: int, ctx: Context) -> int:
        with scope:
            await parent(x, ctx)
        seen.append(texts(ctx.items))
        return x

    result = await Harness(plugins=()).run(outer, 1)
    assert seen == [["written with the grandchild"]]
    assert texts(result.items) == seen[0]


async def test_of_two_paths_that_end_together_the_first_in_the_journal_wins() -> None:
    go = anyio.Event()

    @step
    async def late(x: int) -> str:
        await checkpoint()
        await checkpoint()
        await go.wait()
        return "late"

    @step
    async def early(x: int) -> str:
        await go.wait()
        return "early"

    async with Harness(plugins=()) as harness:
        handle = harness.start(race([late, early]), 1)
        run = handle._run
        await anyio.wait_all_tasks_blocked()
        go.set()
        result = await handle.result()
    finished = [record.output for record in run.journal if isinstance(record, StepFinished)]
    assert finished[0] == result.value
    assert finished[-1] == result.value


@pytest.mark.parametrize("asks", [True, False])
async def test_what_stood_around_a_request_that_was_stored_is_shown_when_the_run_fails(asks: bool) -> None:
    @step
    async def waits(x: int, ctx: Context[Any, Any]) -> int:
        if asks:
            return await ctx.ask(Ask("How many?", int))
        await anyio.sleep_forever()
        return x

    @step
    async def fails(x: int) -> int:
        # The other path waits by then, and its request is stored.
        await anyio.wait_all_tasks_blocked()
        raise ValueError

    @step
    async def outer(x: int, ctx: Context[Any, Any]) -> object:
        ctx.items.append(say("before the question"))
        return await parallel(waits, fails)(x, ctx)

    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(outer, 1, on_error="result")
    assert result.status == "failed"
    # A person may have read it with the question; what nobody was asked beside goes with its body.
    assert texts(result.items) == (["before the question"] if asks else [])


async def asks_behind_its_own_work(x: int, ctx: Context[Memory, StateBag]) -> object:
    ctx.items.append(say("before the questions"))
    ctx.state["asked"] = x

    @step
    async def price(x: int, ctx: Context[Any, Any]) -> int:
        return await ctx.ask(Ask("How much?", int))

    @step
    async def count(x: int, ctx: Context[Any, Any]) -> int:
        return await ctx.ask(Ask("How many?", int))

    return await parallel(price, count)(x, ctx)


async def test_a_run_that_still_waits_shows_the_state_beside_the_conversation() -> None:
    """A process that finds the request made has written nothing itself, and showed a state from before the question."""
    flow = step(id="flow")(asks_behind_its_own_work)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(flow, 1)
        for _ in range(3):
            assert result.status == "suspended"
            assert texts(result.items) == ["before the questions"]
            assert result.state == StateBag({"asked": 1})
            result = await harness.resume(result.run_id, flow)


async def test_a_run_that_fails_of_an_answer_shows_the_state_beside_the_conversation() -> None:
    flow = step(id="flow")(asks_behind_its_own_work)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        first = await harness.run(flow, 1)
        refused = [request.reject("none") for request in first.pending if request.prompt == "How many?"]
        result = await harness.resume(first.run_id, flow, answers=refused, on_error="result")
    assert result.status == "failed"
    assert texts(result.items) == ["before the questions"]
    assert result.state == StateBag({"asked": 1})
