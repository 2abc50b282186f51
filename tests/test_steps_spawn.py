from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    StateBag,
    Step,
    TokenUsage,
    call_model,
    parallel,
    sequence,
    settle,
    spawn,
    step,
)
from noetic_py.errors import Aborted, BudgetExceeded, LimitExceeded, StepFailed, StepTimeout
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@define
class State:
    count: int = 0
    words: list[str] = field(factory=list[str])


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


async def run(flow: Any, input: object = "x", **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, input, **options)).value


def test_it_is_named_after_its_step() -> None:
    assert spawn(echo).id == "spawn:echo"
    assert spawn(echo, id="mine").id == "mine"
    assert spawn(echo).kind == "spawn"


async def test_the_child_is_an_execution_of_its_own() -> None:
    seen: list[Context] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx)
        assert ctx.root.id == ctx.run_id
        return text

    async with Harness() as harness:
        result = await harness.run(sequence(look, spawn(look)), "x", thread_id="t", user_id="u", request_id="r")
    root, child = seen
    assert child.run_id == root.run_id == result.run_id
    assert child.id != root.id
    assert child.path == ("sequence", "spawn:look", "look")
    assert (child.thread_id, child.user_id, child.request_id) == ("t", "u", "r")
    assert root.branch == "sequence"
    assert child.branch == "sequence.spawn:look.look"
    assert child.input == "x"


async def test_a_failure_in_the_child_is_the_spawn_s() -> None:
    with pytest.raises(StepFailed) as caught:
        await run(spawn(fail))
    assert caught.value.path == ("spawn:fail", "fail")


async def test_a_failed_child_can_be_retried_and_starts_afresh() -> None:
    lengths: list[int] = []

    @step
    async def flaky(text: str, ctx: Context[Memory, State]) -> str:
        ctx.items.append(Message.user(text))
        ctx.state.count += 1
        lengths.append(len(ctx.items) + ctx.state.count)
        if len(lengths) == 1:
            raise ValueError(text)
        return text

    flow = spawn(flaky).with_options(retry=Retry(2, initial=0))
    assert await run(flow, state=State()) == "x"
    assert lengths == [2, 2]


async def test_the_timeout_names_the_spawn() -> None:
    with pytest.raises(StepTimeout) as caught:
        await run(spawn(forever, timeout=0.01))
    assert caught.value.path == ("spawn:forever",)
    assert caught.value.seconds == 0.01


async def test_a_timeout_can_be_handled() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(StepTimeout):
            await spawn(forever, timeout=0.01)(text, ctx)
        return await echo("handled", ctx)

    assert await run(body) == "handled"


async def test_a_child_that_aborts_in_a_section() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.abort("no")
        await anyio.sleep_forever()
        return text

    outcomes = await run(settle([spawn(stop), spawn(echo)]))
    assert isinstance(outcomes[0].error, Aborted)
    assert outcomes[0].error.reason == "no"
    assert outcomes[1].value == "x"


async def test_an_aborted_child_leaves_its_failed_body_behind() -> None:
    """What the body raises after it has asked for the stop does not matter any more."""

    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.complete("value")
        raise ValueError(text)

    assert await run(spawn(stop)) == "value"


# -------------------------------------------------------------------------------------------------------------- budgets


async def test_a_budget_of_the_child_and_one_of_the_run_hold_together() -> None:
    flow = settle([spawn(sequence(echo, echo, echo), budget=Budget(steps=10))])
    async with Harness() as harness:
        result = await harness.run(flow, "x", budget=Budget(steps=2))
    error = result.value[0].error
    assert isinstance(error, BudgetExceeded)
    assert error.limit == 2


async def test_the_child_sees_what_its_own_budget_leaves() -> None:
    seen: list[int | None] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx.budget.steps)
        return text

    async with Harness() as harness:
        await harness.run(sequence(look, spawn(look, budget=Budget(steps=3)), look), "x", budget=Budget(steps=10))
    assert seen == [9, 2, 7]


async def test_a_time_budget_of_the_child() -> None:
    async with Harness() as harness:
        result = await harness.run(settle([spawn(forever, budget=Budget(seconds=0.01))]), "x")
    error = result.value[0].error
    assert isinstance(error, BudgetExceeded)
    assert error.dimension == "seconds"


async def test_a_wrap_up_gives_the_child_s_value() -> None:
    @step
    async def sum_up(text: object) -> str:
        return "summed up"

    budget = Budget(steps=3, wrap_up=sum_up, reserve=Budget(steps=1))
    async with Harness() as harness:
        result = await harness.run(sequence(spawn(sequence(echo, echo, echo), budget=budget), echo), "x")
    assert result.value == "summed up"
    assert result.steps == 4


@pytest.mark.parametrize("around", [False, True], ids=["the spawn is tried again", "a step around it is"])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_wrap_up_does_not_see_what_an_attempt_before_has_left(kept: bool, around: bool) -> None:
    broken, seen = [True], list[str]()

    @step
    async def note(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.items.append(Message.assistant("noted"))
        return text

    @step
    async def fail_first(text: str) -> str:
        if broken:
            raise ValueError(broken.pop())
        return text

    @step
    async def sum_up(text: object, ctx: Context[Memory, StateBag]) -> str:
        seen.extend(item.text for item in ctx.items if isinstance(item, Message))
        return "summed up"

    again, budget = Retry(2, initial=0), Budget(steps=3, wrap_up=sum_up, reserve=Budget(steps=1))
    inner = spawn(sequence(note, fail_first, echo), budget=budget, id="inner")
    flow = sequence(inner, id="outer").with_options(retry=again) if around else inner.with_options(retry=again)
    async with Harness(checkpoints=InMemoryBackend() if kept else None) as harness:
        assert (await harness.run(flow, "x")).value == "summed up"
    assert seen == ["noted"]


async def test_depth_is_limited_by_budgets() -> None:
    two_deep = spawn(spawn(echo))
    async with Harness() as harness:
        assert (await harness.run(two_deep, "x", budget=Budget(depth=2))).value == "x"
        result = await harness.run(two_deep, "x", budget=Budget(depth=1))
        assert result.status == "budget_exceeded"
        none = await harness.run(spawn(echo), "x", budget=Budget(depth=0))
    assert isinstance(result.error, BudgetExceeded)
    assert result.error.dimension == "depth"
    assert none.status == "budget_exceeded"


async def test_depth_is_counted_from_where_the_budget_holds() -> None:
    flow = spawn(spawn(spawn(echo), budget=Budget(depth=1)))
    async with Harness() as harness:
        assert (await harness.run(flow, "x")).value == "x"
        flow = spawn(spawn(spawn(spawn(echo)), budget=Budget(depth=1)))
        assert (await harness.run(flow, "x")).status == "budget_exceeded"


async def test_spawns_in_flight_are_limited() -> None:
    async with Harness() as harness:
        with pytest.raises(Exception, match="live children") as caught:
            await harness.run(parallel([spawn(forever)] * 257), "x")
        assert isinstance(caught.value.__cause__, LimitExceeded)
        assert caught.value.__cause__.limit == 256
        # All are free again.
        assert len((await harness.run(parallel([spawn(echo)] * 256), "x")).value) == 256


async def test_usage_of_a_child_that_timed_out_counts() -> None:
    async with Harness(model=ScriptedModel("a", usage=TokenUsage(10, 5))) as harness:
        result = await harness.run(settle([spawn(sequence(call_model(), forever), timeout=0.05)]), "x")
    assert not result.value[0].ok
    assert result.usage.total == 15


# ---------------------------------------------------------------------------------------------------------------- state


@dataclass
class Plain:
    words: list[str]
    count: int = 0


@define(slots=True)
class Slotted:
    words: list[str]
    count: int = 0


class Handmade:
    """Slots here, a dictionary below."""

    __slots__ = ("words",)

    def __init__(self, words: list[str]) -> None:
        self.words = words


class Derived(Handmade):
    def __init__(self, words: list[str]) -> None:
        super().__init__(words)
        self.count = 0


@step
async def change(text: str, ctx: Context[Memory, Any]) -> str:
    ctx.state.words.append(text)
    ctx.state.count += 1
    return text


@pytest.mark.parametrize("made", [Plain, Slotted, Derived])
@pytest.mark.parametrize("share", ["share", "copy", "deepcopy"])
async def test_states_of_every_kind_of_class(made: Any, share: Any) -> None:
    state = made(["a"])
    await run(spawn(change, state=share), state=state)
    assert state.words == (["a"] if share == "deepcopy" else ["a", "x"])
    assert state.count == (1 if share == "share" else 0)


@pytest.mark.parametrize("share", ["copy", "deepcopy"])
async def test_a_bag_is_copied_whole(share: Any) -> None:
    @step
    async def put(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["new"] = text
        return text

    bag = StateBag({"old": 1})
    await run(spawn(put, state=share), state=bag)
    assert dict(bag.view()) == {"old": 1}


async def test_a_shallow_copy_of_a_bag_shares_what_is_in_it() -> None:
    @step
    async def put(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["words"].append(text)
        return text

    shallow, deep = StateBag({"words": []}), StateBag({"words": []})
    await run(spawn(put, state="copy"), state=shallow)
    await run(spawn(put, state="deepcopy"), state=deep)
    assert shallow["words"] == ["x"]
    assert deep["words"] == []


async def test_a_shared_state_goes_back_when_the_spawn_is_tried_again() -> None:
    tries = 0

    @step
    async def flaky(text: str, ctx: Context[Memory, State]) -> str:
        nonlocal tries
        tries += 1
        ctx.state.count += 1
        if tries == 1:
            raise ValueError(text)
        return text

    state = State()
    await run(spawn(flaky, state="share").with_options(retry=Retry(2, initial=0)), state=state)
    assert state.count == 1


async def test_a_state_made_by_a_function_is_made_for_each_spawn() -> None:
    @step
    async def count(text: str, ctx: Context[Memory, State]) -> int:
        ctx.state.count += 1
        return ctx.state.count

    one: Step[str, int] = spawn(count, state=State)
    assert await run(parallel([one, one])) == [1, 1]
