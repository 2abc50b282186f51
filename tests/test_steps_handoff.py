"""Handoffs: a step that lets another go on in its place."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from attrs import define

from noetic_py import (
    Context,
    FunctionCall,
    Handoff,
    Harness,
    Message,
    Retry,
    Step,
    branch,
    call_model,
    call_tool,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.checkpoints import InMemoryBackend
from noetic_py.core.budget import Budget
from noetic_py.errors import BudgetExceeded, ConfigError, HandoffLimit, LimitExceeded, ReplayDiverged, StepFailed
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


@define
class Order:
    number: int


@step
async def refund(order: Order, ctx: Context[Any, Any]) -> str:
    ctx.items.append(Message.assistant(f"refunds {order.number}"))
    return f"refunded {order.number}"


@step
async def sell(text: str) -> str:
    return f"sold {text}"


@step(handoffs=[refund, sell])
async def triage(text: str, ctx: Context[Any, Any]) -> str | Handoff[str]:
    ctx.items.append(Message.assistant("triages"))
    if text.startswith("refund "):
        return Handoff(refund, Order(int(text.removeprefix("refund "))))
    return Handoff(sell, text) if text else "nothing to do"


async def run(flow: Step[Any, Any, Any, Any], value: Any, **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, value, **options)).value


async def test_the_target_gives_the_value_and_the_handoff_itself_is_nobodys() -> None:
    assert await run(triage, "refund 7") == "refunded 7"
    assert await run(triage, "shoes") == "sold shoes"
    assert await run(triage, "") == "nothing to do"


def counting(limit: int = 1000) -> Step[int, int]:
    def back() -> list[Step[int, int]]:
        return [pong]

    @step(handoffs=back, max_handoffs=limit)
    async def ping(left: int) -> int | Handoff[int]:
        return Handoff(pong, left - 1) if left else 0

    @step(handoffs=[ping])
    async def pong(left: int) -> int | Handoff[int]:
        return Handoff(ping, left - 1) if left else 0

    return ping


async def test_ten_thousand_handoffs_are_no_deeper_than_one() -> None:
    peaks: list[int] = []
    flow = counting(20_000)
    await run(flow, 10)
    for length in (2_500, 10_000):
        tracemalloc.start()
        try:
            assert await run(flow, length) == 0
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 6 * peaks[0]


async def test_a_chain_has_at_most_as_many_handoffs_as_its_first_step_says() -> None:
    assert await run(counting(3), 3) == 0
    with pytest.raises(HandoffLimit, match="more than 3 times") as raised:
        await run(counting(3), 4)
    assert (raised.value.limit, raised.value.path) == (3, ("ping",))
    with pytest.raises(HandoffLimit):
        await run(counting(), 1001)


async def test_each_handoff_counts_as_an_iteration_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_py.engine.state.MAX_ITERATIONS", 5)
    with pytest.raises(LimitExceeded):
        await run(counting(), 10)


async def test_every_step_of_a_chain_has_a_path_of_its_own() -> None:
    paths: list[tuple[str, ...]] = []

    @step
    async def last(value: int, ctx: Context[Any, Any]) -> int:
        paths.append(ctx.path)
        return value

    @step(handoffs=lambda: [again, last])
    async def again(value: int, ctx: Context[Any, Any]) -> int | Handoff[int]:
        paths.append(ctx.path)
        return Handoff(again, value - 1) if value else Handoff(last, 9)

    assert await run(sequence(again, id="all"), 2) == 9
    assert paths == [("all", "again", name) for name in ("again", "again#1", "again#2", "last")]


async def test_retry_timeout_and_budget_are_the_handing_steps_own() -> None:
    tries: list[str] = []

    @step
    async def target(value: int) -> int:
        tries.append("target")
        raise ValueError("no")

    @step(handoffs=[target], retry=3, timeout=5.0, budget=Budget(steps=1))
    async def first(value: int) -> Handoff[int]:
        tries.append("first")
        return Handoff(target, value)

    with pytest.raises(StepFailed) as raised:
        await run(first, 1)
    assert tries == ["first", "target"]
    assert raised.value.path == ("first", "target")


async def test_with_options_changes_the_handing_step_too() -> None:
    tries: list[int] = []

    @step(handoffs=[sell])
    async def shaky(text: str) -> Handoff[str]:
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("once more")
        return Handoff(sell, text)

    other = shaky.with_options(retry=Retry(2, initial=0.0), id="other", tags={"a"})
    assert await run(other, "x") == "sold x"
    assert (other.id, other.tags, len(tries)) == ("other", frozenset({"a"}), 2)
    assert await run(other.bind("y"), None) == "sold y"


async def test_the_budget_around_a_chain_holds_for_all_of_it() -> None:
    with pytest.raises(BudgetExceeded):
        await run(sequence(counting(), id="few").with_options(budget=Budget(steps=3)), 10)


async def test_a_composite_has_the_handoffs_value() -> None:
    assert await run(triage >> sell, "shoes") == "sold sold shoes"
    assert await run(parallel(triage, sell), "x") == ("sold x", "sold x")
    assert await run(race([triage]), "refund 1") == "refunded 1"
    assert await run(spawn(triage), "refund 2") == "refunded 2"
    assert await run(branch(lambda text: "a", {"a": triage}), "refund 3") == "refunded 3"
    assert await run(loop(triage, until=until.max_steps(3)), "x") == "sold sold x"

    @step
    async def calls(text: str, ctx: Context[Any, Any]) -> str:
        return await triage(text, ctx)

    assert await run(calls, "refund 4") == "refunded 4"


async def test_a_cancelled_chain_starts_no_target() -> None:
    started: list[str] = []

    @step
    async def target(value: int) -> int:
        started.append("target")
        return value

    @step(handoffs=[target])
    async def first(value: int, ctx: Context[Any, Any]) -> int | Handoff[int]:
        ctx.complete(5)
        return Handoff(target, value)

    assert await run(first, 1) == 5
    assert started == []


async def test_a_tool_made_of_a_step_may_hand_over() -> None:
    model = ScriptedModel(FunctionCall(name="triage", arguments='{"input": "refund 8"}', call_id="c1"), "done")
    flow = loop(
        call_model(model, tools=[step_tool(triage, name="triage", description="Sorts.")]), until=until.no_tool_calls()
    )
    async with Harness() as harness:
        result = await harness.run(flow, "hello")
    assert result.value == "done"
    assert "refunded 8" in repr(list(result.items))


async def test_a_handoff_from_where_none_is_followed_is_refused() -> None:
    @step
    async def plain(text: str) -> Handoff[str]:
        return Handoff(sell, text)

    for checkpoints in (None, InMemoryBackend()):
        async with Harness(checkpoints=checkpoints) as harness:
            with pytest.raises(ConfigError, match="where none is followed") as raised:
                await harness.run(plain, "x")
            assert (raised.value.code, raised.value.path) == ("handoff", ("plain",))

    @tool
    async def over(text: str) -> object:
        return Handoff(sell, text)

    model = ScriptedModel(FunctionCall(name="over", arguments='{"text": "x"}', call_id="c1"), "done")
    async with Harness() as harness:
        for flow in (call_model(model, tools=[over]), call_tool(over, args={"text": "x"})):
            with pytest.raises(ConfigError, match="where none is followed") as raised:
                await harness.run(flow, "x")
            assert raised.value.code == "handoff"

    @step(handoffs=[refund], retry=3)
    async def elsewhere(text: str) -> Handoff[str]:
        return Handoff(sell, text)

    with pytest.raises(ConfigError, match="is not one of its handoffs"):
        await run(elsewhere, "x")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"handoffs": []}, "handoff"),
        ({"handoffs": 3}, "handoff"),
        ({"handoffs": sell}, "handoff"),
        ({"handoffs": ["sell"]}, "not-a-step"),
        ({"handoffs": [sell, sell.with_options(retry=2)]}, "duplicate-id"),
        ({"handoffs": [sell], "max_handoffs": 0}, "handoff"),
    ],
)
def test_what_is_declared_wrongly_is_refused_where_it_is_declared(options: Any, code: str) -> None:
    async def body(text: str) -> str:
        return text

    with pytest.raises(ConfigError) as raised:
        step(**options)(body)
    assert raised.value.code == code


async def test_a_chain_that_holds_itself_is_refused() -> None:
    @step(handoffs=lambda: [inside])
    async def outside(text: str) -> str | Handoff[str]:
        return Handoff(inside, text)

    inside: Step[str, str] = sequence(sell, outside, id="inside")
    with pytest.raises(ConfigError, match="inside"):
        await run(outside, "x")
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        with pytest.raises(ConfigError, match="inside"):
            await harness.run(outside, "x")


def made() -> Step[str, str]:
    return triage


@pytest.mark.parametrize("text", ["refund 7", "shoes", ""])
async def test_a_chain_goes_on_after_a_kill_anywhere(text: str) -> None:
    assert await assert_resumable_everywhere(made, text) >= 4


async def test_a_long_chain_goes_on_after_a_kill_anywhere() -> None:
    assert await assert_resumable_everywhere(counting, 4) >= 10


async def test_composites_of_chains_go_on_after_a_kill_anywhere() -> None:
    def flow() -> Step[str, tuple[str, str]]:
        return parallel(triage >> sell, spawn(triage), concurrency=1)

    assert await assert_resumable_everywhere(flow, "refund 3") >= 8


async def test_the_handing_body_does_not_run_again_once_its_handoff_is_stored() -> None:
    ran: list[str] = []

    @step
    async def target(order: Order) -> int:
        ran.append("target")
        return order.number

    @step(handoffs=[target], replay="once")
    async def first(value: int) -> int | Handoff[int]:
        ran.append("first")
        return Handoff(target, Order(value))

    whole = FaultyBackend(InMemoryBackend())
    async with Harness(checkpoints=whole) as harness:
        await harness.run(first, 3)
    seen: set[tuple[str, ...]] = set()
    for at in range(1, whole.appends + 1):
        ran.clear()
        inner = InMemoryBackend()
        run_id = "r"
        async with Harness(checkpoints=FaultyBackend(inner, dies_at=at, when="after")) as harness:
            with pytest.raises(BaseException):  # noqa: B017, PT011 # whatever a dying process raises
                await harness.run(first, 3, run_id=run_id)
        before = tuple(ran)
        async with Harness(checkpoints=inner) as harness:
            try:
                result = await harness.resume(run_id, first)
            except Exception as error:  # noqa: BLE001 # one that may run once, killed in its midst
                seen.add((type(error).__name__,))
                continue
        assert result.value == 3
        assert ran.count("first") <= 1
        seen.add(before)
    assert ("first",) in seen or ("first", "target") in seen


async def test_other_code_below_a_handoff_is_told() -> None:
    def flow(version: str) -> Step[int, int]:
        @step(version=version)
        async def target(value: int) -> int:
            return value + 1

        @step(handoffs=[target], version="1")
        async def first(value: int) -> int | Handoff[int]:
            return Handoff(target, value)

        @step(version="1")
        async def ends(value: int) -> int:
            return value

        return sequence(first, ends, id="all")

    whole = FaultyBackend(InMemoryBackend())
    async with Harness(checkpoints=whole) as harness:
        await harness.run(flow("1"), 3)
    inner = InMemoryBackend()
    async with Harness(checkpoints=FaultyBackend(inner, dies_at=whole.appends - 1, when="after")) as harness:
        with pytest.raises(BaseException):  # noqa: B017, PT011 # as above
            await harness.run(flow("1"), 3, run_id="r")
    async with Harness(checkpoints=inner) as harness:
        with pytest.raises(ReplayDiverged):
            await harness.resume("r", flow("2"))
        assert (await harness.resume("r", flow("1"))).value == 4


async def test_a_graph_of_steps_that_hand_over_to_each_other_ends() -> None:
    async with Harness() as harness:
        drawn = harness.graph(counting())
    assert re.search("hands to", drawn)


async def test_handoffs_of_an_earlier_process_count_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_py.engine.state.MAX_ITERATIONS", 8)
    flow = counting()
    inner = InMemoryBackend()
    async with Harness(checkpoints=FaultyBackend(inner, dies_at=6, when="after")) as harness:
        with pytest.raises(BaseException):  # noqa: B017, PT011 # whatever a dying process raises
            await harness.run(flow, 10, run_id="r")
    async with Harness(checkpoints=inner) as harness:
        with pytest.raises(LimitExceeded) as raised:
            await harness.resume("r", flow)
    assert raised.value.path == ("ping",)
