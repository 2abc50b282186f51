"""Usage that a provider reports: what can be booked is, and what cannot be costs what was reserved."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import attrs
import pytest

from noetic_py import (
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Message,
    TokenUsage,
    call_model,
    errors,
    step,
)
from noetic_py.context.hooks import HookContext, after_model, before_model
from noetic_py.core.budget import MOST, problem_of
from noetic_py.journal.values import dump_usage, read_usage
from noetic_py.models import (
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    RetryModel,
    set_price,
)
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

BAD_COUNTS: list[Any] = [
    -1,
    -(10**30),
    1.5,
    1.0,
    math.nan,
    math.inf,
    MOST + 1,
    10**30,
    "10",
    "",
    b"1",
    True,
    [],
    Decimal(1),
]
BAD_USAGES: list[Any] = [
    *[TokenUsage(input=each, output=1) for each in BAD_COUNTS],
    *[TokenUsage(input=1, output=each) for each in BAD_COUNTS],
    TokenUsage(input=None, output=1),  # type: ignore[arg-type] # a field that a provider left out
    TokenUsage(input=1, output=None),  # type: ignore[arg-type] # likewise
    *[TokenUsage(1, 1, cached_input=each) for each in BAD_COUNTS],
    *[TokenUsage(1, 1, reasoning=each) for each in BAD_COUNTS],
    TokenUsage(10, 10, cached_input=11),
    TokenUsage(10, 10, cache_write=11),
    TokenUsage(10, 10, cached_input=6, cache_write=5),
    TokenUsage(10, 10, cache_write=5, cache_write_1h=6),
    TokenUsage(10, 10, cache_write_1h=1),
    TokenUsage(10, 10, reasoning=11),
    TokenUsage(10, 10, input_audio=11),
    TokenUsage(10, 10, output_audio=11),
    TokenUsage(10, 10, input_image=-1),
    TokenUsage(10, 10, output_image=11),
    "many",
    7,
    {"input": 1, "output": 1},
    (1, 1),
    False,
]
BAD_COSTS: list[Any] = [
    Decimal(-1),
    Decimal("-0.000001"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal(MOST) + 1,
    Decimal("1E+999999"),
    0.5,
    1,
    True,
    "0.50",
    [],
]
GOOD: list[TokenUsage | None] = [
    None,
    TokenUsage(),
    TokenUsage(MOST, MOST),
    TokenUsage(10, 10, cached_input=10),
    TokenUsage(10, 10, cached_input=5, cache_write=5, cache_write_1h=5, reasoning=10),
    TokenUsage(10, 10, input_audio=10, output_audio=10, input_image=0, output_image=10),
]


@attrs.frozen
class Reports:
    """A model that says "hi", and reports whatever it is told to."""

    usage: Any = None
    cost: Any = None
    name: str = "odd:m"
    profile: ModelProfile = attrs.field(factory=lambda: ModelProfile(price=Price(per_call="0.30")))
    asked: list[ModelRequest] = attrs.field(factory=list[ModelRequest])

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        self.asked.append(request)
        async with ScriptedModel("hi", name=self.name).respond(request) as inner:
            usage, cost = self.usage, self.cost

            class Stream:
                def __aiter__(self) -> AsyncIterator[ModelEvent]:
                    return inner.__aiter__()

                async def response(self) -> ModelResponse:
                    return attrs.evolve(await inner.response(), usage=usage, cost=cost)

            yield Stream()


FLOW = call_model(settings={"max_output_tokens": 50})


def test_what_is_wrong_is_said() -> None:
    for usage in BAD_USAGES:
        assert problem_of(usage, None), usage
    for cost in BAD_COSTS:
        assert "cost=" in (problem_of(None, cost) or ""), cost


def test_parts_of_the_input_fit_into_it_together() -> None:
    assert "cached_input=2 and cache_write=2" in (problem_of(TokenUsage(3, 1, 2, 2), None) or "")
    assert problem_of(TokenUsage(3, 1, 2, 1), None) is None
    assert problem_of(TokenUsage(3, 1, 3, reasoning=1), None) is None


async def test_what_can_be_booked_is_booked() -> None:
    for usage in GOOD:
        for cost in (None, Decimal(0), Decimal("0.25"), Decimal(MOST)):
            assert problem_of(usage, cost) is None
            async with Harness(model=Reports(usage, cost)) as harness:
                result = await harness.run(FLOW, "x")
            assert result.usage == (usage or TokenUsage())
            assert result.cost == (Decimal("0.30") if cost is None else cost)


@pytest.mark.parametrize("usages", [BAD_USAGES[part::4] for part in range(4)], ids=range(4))
async def test_a_usage_that_cannot_be_booked_costs_what_was_reserved(usages: list[Any]) -> None:
    """Nobody waits for what is never given back, and no call is free."""
    for usage in usages:
        await costs_what_was_reserved(usage, None)


async def test_a_cost_that_cannot_be_booked_costs_what_was_reserved() -> None:
    for cost in BAD_COSTS:
        await costs_what_was_reserved(None, cost)


async def costs_what_was_reserved(usage: Any, cost: Any) -> None:
    model = Reports(usage, cost)
    with anyio.fail_after(30):
        async with Harness(model=model, budget=Budget(tokens=130, cost="1.00")) as harness:
            ends = [await harness.run(FLOW, "x", on_error="result") for _ in range(4)]
    assert [type(each.error) for each in ends] == [*[errors.UsageInvalid] * 2, *[errors.BudgetExceeded] * 2], usage
    assert len(model.asked) == 2
    first = ends[0]
    assert first.usage.output == 50
    assert first.usage.input > 0
    assert first.cost == Decimal("0.30")
    assert "odd:m reported a usage that cannot be booked" in str(first.error)
    assert isinstance(first.error, errors.ModelError)
    assert not first.error.retryable


async def test_without_a_limit_too_it_is_refused() -> None:
    async with Harness(model=Reports(TokenUsage(-1, 0), profile=ModelProfile())) as harness:
        result = await harness.run(FLOW, "x", on_error="result")
    assert isinstance(result.error, errors.UsageInvalid)
    assert result.usage == TokenUsage(0, 0)
    assert result.cost is None

    async with Harness(model=Reports(TokenUsage(-1, 0)), budget=Budget(model_calls=3)) as harness:
        result = await harness.run(FLOW, "x", on_error="result")
    assert (result.usage.total, result.cost) == (50, Decimal("0.30"))


async def test_several_at_once_do_not_wait_for_each_other() -> None:
    model = Reports(TokenUsage(input="10", output=1))  # type: ignore[arg-type] # what is tested
    ends: list[Any] = []

    async def once() -> None:
        ends.append((await harness.run(FLOW, "x", on_error="result")).error)

    with anyio.fail_after(30):
        async with Harness(model=model, budget=Budget(tokens=300)) as harness, anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(once)
    assert {type(each) for each in ends} == {errors.UsageInvalid, errors.BudgetExceeded}
    assert len(model.asked) == sum(isinstance(each, errors.UsageInvalid) for each in ends)


async def test_what_was_spent_so_is_spent_after_a_resume_too() -> None:
    backend, model = InMemoryBackend(), Reports(TokenUsage(-1, 0))
    flow = step(id="all")(ask)
    async with Harness(model=model, checkpoints=backend) as harness:
        first = await harness.run(flow, "x", run_id="r", budget=Budget(tokens=130), on_error="result")
        assert isinstance(first.error, errors.UsageInvalid)
        again = await harness.resume("r", flow, on_error="result")
        assert isinstance(again.error, errors.UsageInvalid)
        assert again.usage == first.usage + first.usage
        last = await harness.resume("r", flow, on_error="result")
    assert last.status == "budget_exceeded"
    assert len(model.asked) == 2


async def ask(text: str, ctx: Context) -> str:
    return await FLOW(text, ctx)


async def test_answers_of_hooks_and_wrappers_are_looked_at_as_well() -> None:
    bad = ModelResponse([Message.assistant("hi")], usage=TokenUsage(-5, 0))

    @before_model
    async def answers(ctx: HookContext, request: ModelRequest) -> ModelResponse:
        return bad

    @after_model
    async def changes(ctx: HookContext, response: ModelResponse) -> ModelResponse:
        return attrs.evolve(response, cost=Decimal(-1))

    for hooks in ([answers], [changes]):
        async with Harness(model=ScriptedModel("hi"), hooks=hooks) as harness:
            result = await harness.run(call_model(), "x", on_error="result")
        assert isinstance(result.error, errors.UsageInvalid), hooks


async def test_a_model_is_not_asked_again_for_it() -> None:
    model = Reports(TokenUsage(-1, 0))
    async with Harness(model=RetryModel(model, attempts=3)) as harness:
        result = await harness.run(FLOW, "x", on_error="result")
    assert isinstance(result.error, errors.UsageInvalid)
    assert len(model.asked) == 1


async def test_a_price_that_fails_leaves_nothing_reserved() -> None:
    class Broken(Price):
        def cost(self, usage: TokenUsage) -> Decimal:
            raise ZeroDivisionError

    set_price("odd:broken", Broken())
    model = Reports(TokenUsage(1, 1), name="odd:broken")
    with anyio.fail_after(30):
        async with Harness(model=model, budget=Budget(tokens=130)) as harness:
            ends = [await harness.run(FLOW, "x", on_error="result") for _ in range(4)]
    assert isinstance(ends[-1].error, errors.BudgetExceeded)


# ---------------------------------------------------------------------------------------------------------- stored form


def test_parts_that_were_added_later_are_stored_where_they_are_known() -> None:
    old = TokenUsage(5, 4, 3, 2, 1)
    assert dump_usage(old) == [5, 4, 3, 2, 1]
    assert read_usage([5, 4, 3, 2, 1]) == old
    assert read_usage([5, 4, None, None, None]) == TokenUsage(5, 4)
    new = TokenUsage(9, 9, 3, 2, 1, 1, 2, 3, 4, 5)
    assert dump_usage(new) == [9, 9, 3, 2, 1, 1, 2, 3, 4, 5]
    assert read_usage(dump_usage(new)) == new
    some = TokenUsage(9, 9, input_image=3)
    assert read_usage(dump_usage(some)) == some
    assert dump_usage(None) is None
    assert read_usage(None) is None


def test_parts_add_up() -> None:
    one = TokenUsage(9, 9, 1, 1, 1, 1, 1, 1, 1, 1)
    assert one + one == TokenUsage(18, 18, 2, 2, 2, 2, 2, 2, 2, 2)
    assert one + TokenUsage(1, 1) == TokenUsage(10, 10, 1, 1, 1, 1, 1, 1, 1, 1)
