"""A check beside a model call: `parallel` is the guardrail, as the recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    HookContext,
    InMemoryBackend,
    Item,
    Message,
    ModelRequest,
    Step,
    TokenUsage,
    call_model,
    hooks,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.errors import ParallelFailed, StepError
from noetic_py.journal.records import StepFinished
from noetic_py.testing import FaultyBackend, ScriptedModel, Turn

pytestmark = pytest.mark.anyio


class NotAllowed(StepError):
    """The check has refused the question."""


def judging(request: ModelRequest) -> str:
    said = request.items[-1]
    return "no" if isinstance(said, Message) and "homework" in said.text else "yes"


def models(*turns: Turn, delay: float = 0.0) -> tuple[ScriptedModel, ScriptedModel]:
    small = ScriptedModel(*[judging] * 9, usage=TokenUsage(input=20, output=5), cost="0.01")
    return small, ScriptedModel(*turns, usage=TokenUsage(input=100, output=50), cost="0.10", delay=delay)


@tool
async def height(port: str) -> float:
    """The height of high water."""
    return 6.9


def guarded(small: ScriptedModel, large: ScriptedModel, *, began: anyio.Event | None = None) -> Step[str, str]:
    judge = spawn(call_model(small))

    @hooks.before_model
    async def begins(ctx: HookContext, request: ModelRequest) -> None:
        if began is not None:
            began.set()

    agent = loop(call_model(large, tools=[height], hooks=[begins]), until=until.no_tool_calls())

    @step
    async def items(text: str, ctx: Context) -> list[Item]:
        return list(ctx.items.view(branch=ctx.branch))

    @step
    async def check(question: str, ctx: Context) -> list[Item]:
        if began is not None:
            await began.wait()
        if await judge(question, ctx) == "no":
            raise NotAllowed("no homework")
        return []

    def answer(outputs: Sequence[list[Item]], ctx: Context) -> str:
        for item in outputs[0]:
            ctx.items.append(item)
        last = outputs[0][-1]
        return last.text if isinstance(last, Message) else ""

    return parallel([sequence(agent, items), check], merge=answer)


async def test_a_check_that_trips_cancels_the_call_beside_it_and_both_count() -> None:
    small, large = models("42", delay=3600.0)
    async with Harness() as harness:
        with anyio.fail_after(30):
            result = await harness.run(
                guarded(small, large, began=anyio.Event()), "my homework", on_error="result", budget=Budget(cost="1")
            )
    assert isinstance(result.error, ParallelFailed)
    assert isinstance(result.error.first, NotAllowed)
    assert (result.error.first.path, result.model_calls) == (("parallel", "check[1]"), 2)
    assert (len(small.requests), len(large.requests)) == (1, 1)
    assert result.cost == Decimal("0.11")
    assert not [item for item in result.items if isinstance(item, Message) and item.role == "assistant"]


async def test_a_check_that_passes_leaves_all_of_the_agents_items_and_none_of_its_own() -> None:
    small, large = models(FunctionCall(name="height", arguments={"port": "Brest"}), "6.9 metres")
    async with Harness() as harness:
        result = await harness.run(guarded(small, large), "the tides")
    assert (result.value, result.model_calls, result.usage.total) == ("6.9 metres", 3, 325)
    kinds = ["Message", "FunctionCall", "FunctionCallOutput", "Message"]
    assert [type(item).__name__ for item in result.items] == kinds


async def test_a_budget_is_for_both() -> None:
    small, large = models("42")
    async with Harness() as harness:
        result = await harness.run(guarded(small, large), "the tides", on_error="result", budget=Budget(model_calls=1))
    assert (result.status, result.model_calls) == ("budget_exceeded", 1)


async def test_a_check_that_had_passed_is_not_asked_again_by_a_run_that_goes_on() -> None:
    whole = FaultyBackend(InMemoryBackend())
    async with Harness(checkpoints=whole) as harness:
        await harness.run(guarded(*models("42")), "the tides", run_id="r")
    passed = 0
    for dies_at in range(2, whole.appends + 1):
        small, large = models("42", "42")
        flow, backend = guarded(small, large), FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        with backend.outlived():
            async with Harness(checkpoints=backend) as harness:
                await harness.run(flow, "the tides", run_id="r")
        backend.revive()
        asked = len(small.requests)
        async with Harness(checkpoints=backend) as harness:
            journal = await harness.runs.journal("r")
            result = await harness.resume("r", flow)
        assert result.value == "42"
        if any(isinstance(each, StepFinished) and each.path == ("parallel", "check[1]") for each in journal):
            passed += 1
            assert len(small.requests) == asked
    assert passed
