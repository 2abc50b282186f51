"""Budgets are kept to the call, the token and the cent, whatever runs at once."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from types import TracebackType
from typing import Any, TypeAlias

import anyio
import pytest
from anyio.lowlevel import checkpoint

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Message,
    ModelRequest,
    Retry,
    RunResult,
    Step,
    TokenUsage,
    call_model,
    call_tool,
    each,
    errors,
    loop,
    race,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.budget import BudgetLease
from noetic_py.core.events import BudgetWarning
from noetic_py.core.tokens import TiktokenCounter
from noetic_py.models import ModelStream
from noetic_py.models.model import ModelEvent, ModelProfile, ModelResponse, Price
from noetic_py.steps.flow import Settled
from noetic_py.testing import ScriptedModel
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

AnyStep: TypeAlias = Step[Any, Any, Any, Any]
AnyContext: TypeAlias = Context[Any, Any]


class Meter:
    """A model behind a meter of its own: how many calls, and at what cost."""

    def __init__(self, inner: ScriptedModel) -> None:
        self.inner = inner
        self.calls = 0
        self.paid = Decimal(0)

    @property
    def name(self) -> str:
        """A name that no price list has."""
        return "metered:model"

    @property
    def profile(self) -> ModelProfile:
        """The inner model's price."""
        return self.inner.profile

    @property
    def requests(self) -> Sequence[ModelRequest]:
        """What was asked."""
        return self.inner.requests

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer, and count."""
        return _Call(self, self.inner.respond(request))


class _Call:
    def __init__(self, meter: Meter, inner: AbstractAsyncContextManager[ModelStream]) -> None:
        self.meter = meter
        self.inner = inner

    async def __aenter__(self) -> ModelStream:
        meter = self.meter
        meter.calls += 1
        price = meter.profile.price or Price()
        try:
            stream = await self.inner.__aenter__()
        except errors.ModelUnavailable:
            # Refused before an answer began, so it cost nothing.
            raise
        except BaseException:
            meter.paid += price.per_call
            raise
        meter.paid += price.per_call
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


def metered(*, cost: str | None = None, delay: float = 0.0, usage: TokenUsage | None = None, calls: int = 500) -> Meter:
    """A model that says yes."""
    return Meter(ScriptedModel(*["yes"] * calls, cost=cost, delay=delay, usage=usage))


def lease_of(harness: Harness[Any]) -> BudgetLease:
    return harness._resources.lease


def settled_of(harness: Harness[Any], name: str) -> Decimal:
    """What the harness's budget has settled, once nothing is held any more."""
    lease = lease_of(harness)
    assert not any(lease._held.values())
    assert not any(lease._kept.values())
    return lease._settled.get(name, Decimal(0))


def ask(model: Any, **options: Any) -> AnyStep:
    return call_model(model, **options).bind("go")


# ------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("delay", [0.0, 0.002])
async def test_five_calls_for_eight_delegates_that_settle(delay: float) -> None:
    model = metered(delay=delay)
    flow = settle([spawn(ask(model), id=f"delegate{index}") for index in range(8)])
    result: RunResult[Any, Any] = await Harness(plugins=()).run(flow, 1, budget=Budget(model_calls=5))
    outcomes: list[Settled[Any]] = result.value
    assert sum(outcome.ok for outcome in outcomes) == 5
    refused = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert all(isinstance(error, errors.BudgetExceeded) and error.dimension == "model_calls" for error in refused)
    assert len(refused) == 3
    assert model.calls == len(model.requests) == 5


@pytest.mark.parametrize("delay", [0.0, 0.002])
async def test_five_calls_for_eight_delegates_of_which_all_are_needed(delay: float) -> None:
    model = metered(delay=delay)
    result: RunResult[Any, Any] = await Harness(plugins=()).run(
        each(spawn(call_model(model))), ["go"] * 8, budget=Budget(model_calls=5)
    )
    assert result.status == "budget_exceeded"
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == "model_calls"
    assert model.calls == 5


async def test_steps_are_exact_over_parallel_paths() -> None:
    bodies: list[int] = []

    @step
    async def work(x: int) -> int:
        bodies.append(x)
        await checkpoint()
        return x

    flow = settle([sequence(work, work, work) for _ in range(10)])
    result: RunResult[Any, Any] = await Harness(plugins=()).run(flow, 1, budget=Budget(steps=17))
    assert result.status == "completed"
    assert len(bodies) == result.steps == 17


async def test_tool_calls_and_calls_of_one_tool_are_exact() -> None:
    ran: list[str] = []

    @tool
    async def search(query: str) -> str:
        ran.append("search")
        await checkpoint()
        return query

    @tool
    async def fetch(url: str) -> str:
        ran.append("fetch")
        await checkpoint()
        return url

    searches = [call_tool(search, args={"query": "q"}, id=f"search{index}") for index in range(6)]
    fetches = [call_tool(fetch, args={"url": "u"}, id=f"fetch{index}") for index in range(6)]
    flow = settle([*searches, *fetches])
    result: RunResult[Any, Any] = await Harness(plugins=()).run(
        flow, None, budget=Budget(tool_calls=8, per_tool={"search": 2, "other": 0})
    )
    assert (ran.count("search"), ran.count("fetch")) == (2, 6)
    said = [outcome.error.dimension for outcome in result.value if isinstance(outcome.error, errors.BudgetExceeded)]
    assert len(said) == 4
    # Which of the two limits refuses a search depends on how many of the others have begun.
    assert set(said) <= {"per_tool:search", "tool_calls"}
    ran.clear()
    result = await Harness(plugins=()).run(flow, None, budget=Budget(tool_calls=7))
    said = [outcome.error.dimension for outcome in result.value if isinstance(outcome.error, errors.BudgetExceeded)]
    assert (len(ran), said) == (7, ["tool_calls"] * 5)


async def test_calls_that_a_model_asks_for_stop_at_the_limit_of_their_tool() -> None:
    ran: list[int] = []

    @tool
    async def search(x: int) -> str:
        ran.append(x)
        return "found"

    def answer(request: ModelRequest) -> Sequence[Item]:
        return [FunctionCall(name="search", arguments={"x": index}) for index in range(3)]

    flow = loop(call_model(ScriptedModel(*[answer] * 9), tools=[search]), until=until.no_tool_calls())
    result = await Harness(plugins=()).run(flow, "go", budget=Budget(per_tool={"search": 4}))
    assert result.status == "budget_exceeded"
    assert len(ran) == 4
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == "per_tool:search"
    answered = {item.call_id for item in result.items if isinstance(item, FunctionCallOutput)}
    assert answered == {item.call_id for item in result.items if isinstance(item, FunctionCall)}


async def test_depth_stops_a_spawn_that_spawns_itself() -> None:
    depths: list[int] = []

    @step
    async def deeper(x: int, ctx: AnyContext) -> int:
        depths.append(ctx.depth)
        return await spawn(deeper)(x + 1, ctx)

    result = await Harness(plugins=()).run(deeper, 1, budget=Budget(depth=3))
    assert result.status == "budget_exceeded"
    assert depths == [0, 1, 2, 3]
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == "depth"


async def test_seconds_end_a_run_and_a_step() -> None:
    @step
    async def sleep(x: int) -> int:
        await anyio.sleep_forever()
        return x

    result = await Harness(plugins=()).run(sleep, 1, budget=Budget(seconds=0.01))
    assert result.status == "budget_exceeded"
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == "seconds"
    limited = settle([sleep.with_options(budget=Budget(seconds=0.01))])
    outcomes: Sequence[Settled[int]] = (await Harness(plugins=()).run(limited, 1)).value
    assert isinstance(outcomes[0].error, errors.BudgetExceeded)


# -------------------------------------------------------------------------------------------------------------- money


@pytest.mark.parametrize("delay", [0.0, 0.002])
async def test_a_hundred_dollars_asked_for_at_once_of_ten(delay: float) -> None:
    model = metered(cost="1", delay=delay)
    harness = Harness(plugins=(), budget=Budget(cost=10))
    result: RunResult[Any, Any] = await harness.run(settle([ask(model) for _ in range(100)]), 1)
    assert model.calls == 10
    assert model.paid == 10
    assert result.cost == Decimal(10)
    assert settled_of(harness, "cost") == Decimal(10)
    assert sum(outcome.ok for outcome in result.value) == 10


async def test_a_failed_call_gives_its_money_to_one_that_waits() -> None:
    def down(request: ModelRequest) -> Exception:
        return errors.ModelUnavailable("down", model="metered:model")

    script = [down if index % 2 else "yes" for index in range(40)]
    model = Meter(ScriptedModel(*script, cost="1", delay=0.001))
    harness = Harness(plugins=(), budget=Budget(cost=5))
    result: RunResult[Any, Any] = await harness.run(settle([ask(model) for _ in range(40)]), 1)
    # A refused request costs nothing, so others may go on until five have been paid.
    assert model.paid == 5
    assert result.cost == Decimal(5)
    assert settled_of(harness, "cost") == Decimal(5)


async def test_sixty_four_forks() -> None:
    model = metered(cost="0.01", delay=0.001)
    harness = Harness(plugins=(), budget=Budget(cost="0.40"))
    work = sequence(ask(model), ask(model))
    result: RunResult[Any, Any] = await harness.run(settle([work for _ in range(64)]), 1)
    assert model.calls == 40
    assert result.cost == model.paid == Decimal("0.40")
    assert settled_of(harness, "cost") == Decimal("0.40")


async def test_spawns_eight_deep_all_draw_on_the_same_budget() -> None:
    model = metered(cost="1")

    def nest(depth: int) -> AnyStep:
        inner = sequence(ask(model), ask(model))
        return inner if depth == 0 else sequence(inner, spawn(nest(depth - 1), id=f"deep{depth}"))

    harness = Harness(plugins=(), budget=Budget(cost=100))
    result = await harness.run(nest(8), 1, budget=Budget(cost=11, model_calls=50))
    assert result.status == "budget_exceeded"
    assert model.calls == 11
    assert result.cost == model.paid == Decimal(11)
    assert settled_of(harness, "cost") == Decimal(11)


async def test_five_tries_of_a_model_that_fails_never_pass_the_limit() -> None:
    def broken(request: ModelRequest) -> Exception:
        return errors.ModelStreamError("cut", model="metered:model")

    model = Meter(ScriptedModel(*[broken] * 50, cost="1"))
    harness = Harness(plugins=(), budget=Budget(cost=3))
    flow = settle([ask(model, retry=Retry(5, initial=0)) for _ in range(4)])
    await harness.run(flow, 1)
    # A stream that is cut was read: it counts at its price.
    assert model.calls == model.paid == 3
    assert settled_of(harness, "cost") == Decimal(3)


async def test_a_budget_of_a_spawn_is_a_cap_below_the_runs_own() -> None:
    model = metered(cost="1", delay=0.001)
    child = spawn(settle([ask(model) for _ in range(9)]), budget=Budget(cost=3))
    harness = Harness(plugins=(), budget=Budget(cost=100))
    result: RunResult[Any, Any] = await harness.run(settle([child, child, child]), 1, budget=Budget(cost=7))
    assert model.calls == 7
    assert result.cost == Decimal(7)
    assert settled_of(harness, "cost") == Decimal(7)
    for outcome in result.value:
        assert sum(each_.ok for each_ in outcome.value) <= 3


async def test_losers_of_a_race_are_paid_for() -> None:
    slow = metered(cost="1", delay=5.0)
    fast = metered(cost="1", delay=0.001)
    harness = Harness(plugins=(), budget=Budget(cost=10))
    result: RunResult[Any, Any] = await harness.run(race([ask(slow), ask(fast)]), 1)
    assert result.status == "completed"
    assert settled_of(harness, "cost") == slow.paid + fast.paid == Decimal(2)


async def test_concurrent_runs_share_the_harness_budget() -> None:
    model = metered(cost="1", delay=0.001)
    harness = Harness(plugins=(), budget=Budget(cost=12, model_calls=100))
    results: list[RunResult[Any, Any]] = []

    async def one() -> None:
        results.append(await harness.run(settle([ask(model) for _ in range(4)]), 1, budget=Budget(cost=3)))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert model.calls == 12
    assert settled_of(harness, "cost") == Decimal(12)
    assert sum(result.cost or 0 for result in results) == 12
    assert all(result.cost is not None and result.cost <= 3 for result in results)


async def test_a_cost_limit_refuses_a_model_without_a_price() -> None:
    class Unpriced(Meter):
        @property
        def profile(self) -> ModelProfile:
            return ModelProfile()

    model = Unpriced(ScriptedModel("yes", "yes"))
    with pytest.raises(errors.UnknownPrice) as caught:
        await Harness(plugins=()).run(ask(model, retry=Retry(5, initial=0)), 1, budget=Budget(cost=1))
    assert caught.value.model == "metered:model"
    assert caught.value.path
    assert model.calls == 0
    result = await Harness(plugins=()).run(ask(model), 1)
    assert result.cost is None


# ------------------------------------------------------------------------------------------------------------- tokens


def counted(request: ModelRequest) -> int:
    """What the engine will count for a request, counted here again."""
    counter = TiktokenCounter("o200k_base")
    return sum(counter.count_item(item).value for item in request.items)


class Talker:
    """A model that writes as many tokens as it may, and reports exactly what it read and wrote."""

    def __init__(self, writes: int, delay: float = 0.0, price: Price | None = None) -> None:
        self.writes = writes
        self.delay = delay
        self.price = price or Price()
        self.used: list[TokenUsage] = []
        self.asked_for: list[int | None] = []
        self.live = 0
        self.peak = 0

    @property
    def name(self) -> str:
        """A name that no price list has."""
        return "talking:model"

    @property
    def profile(self) -> ModelProfile:
        """Its price, and the encoding that counts for it."""
        return ModelProfile(price=self.price, encoding="o200k_base")

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer."""
        return self._answer(request)

    @asynccontextmanager
    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        settings = request.settings
        # A `get` of a TypedDict as large as this one is beyond one of the checkers.
        most = settings["max_output_tokens"] if "max_output_tokens" in settings else None  # noqa: SIM401
        usage = TokenUsage(counted(request), self.writes if most is None else min(most, self.writes))
        self.asked_for.append(most)
        self.used.append(usage)
        self.live += 1
        self.peak = max(self.peak, self.live)
        await anyio.sleep(self.delay)
        self.live -= 1
        yield _Said(ModelResponse([Message.assistant("yes")], usage))


class _Said:
    def __init__(self, said: ModelResponse) -> None:
        self.said = said

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        raise StopAsyncIteration

    async def response(self) -> ModelResponse:
        """The whole."""
        return self.said


async def test_a_request_waits_until_a_sibling_has_given_back_what_it_did_not_use() -> None:
    model = Talker(writes=10, delay=0.001)
    read = counted(ModelRequest([Message.user("go")]))
    # Each holds 90 tokens and uses 10, so the third and the fourth have to wait and can go on then.
    limit = 2 * (read + 90)
    flow = settle([ask(model, settings={"max_output_tokens": 90}) for _ in range(4)])
    harness = Harness(plugins=(), budget=Budget(tokens=limit))
    result: RunResult[Any, Any] = await harness.run(flow, 1)
    assert all(outcome.ok for outcome in result.value), result.value
    assert model.peak <= 2
    assert result.usage.total == 4 * (read + 10) <= limit
    assert settled_of(harness, "tokens") == 4 * (read + 10)


async def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    model = Talker(writes=10, delay=0.001)
    read = counted(ModelRequest([Message.user("go")]))
    small = ask(model, settings={"max_output_tokens": 50})
    large = ask(model, settings={"max_output_tokens": 51})
    result: RunResult[Any, Any] = await Harness(plugins=()).run(
        settle([small, large]), 1, budget=Budget(tokens=read + 50)
    )
    assert result.value[0].ok
    error = result.value[1].error
    assert isinstance(error, errors.BudgetExceeded)
    assert (error.dimension, error.requested) == ("tokens", read + 51)
    assert len(model.used) == 1


async def test_a_request_that_waited_in_vain_is_refused() -> None:
    model = Talker(writes=90, delay=0.001)
    read = counted(ModelRequest([Message.user("go")]))
    flow = settle([ask(model, settings={"max_output_tokens": 90}) for _ in range(3)])
    result: RunResult[Any, Any] = await Harness(plugins=()).run(flow, 1, budget=Budget(tokens=2 * (read + 90)))
    assert sum(outcome.ok for outcome in result.value) == 2
    assert len(model.used) == 2


async def test_output_that_nobody_limited_is_limited_to_what_is_left() -> None:
    model = Talker(writes=10_000)
    read = counted(ModelRequest([Message.user("go")]))
    result = await Harness(plugins=()).run(ask(model), 1, budget=Budget(tokens=500))
    assert model.asked_for == [500 - read]
    assert result.usage.total == 500
    for budget in (Budget(output_tokens=70), Budget(output_tokens=70, tokens=500)):
        model = Talker(writes=10_000)
        await Harness(plugins=()).run(ask(model), 1, budget=budget)
        assert model.asked_for == [70]
    model = Talker(writes=10_000, price=Price(output=Decimal(1_000_000)))
    result = await Harness(plugins=()).run(ask(model), 1, budget=Budget(cost=7))
    assert model.asked_for == [7]
    assert result.cost == Decimal(7)


@pytest.mark.parametrize("dimension", ["tokens", "input_tokens", "output_tokens"])
async def test_tokens_never_pass_their_limit(dimension: str) -> None:
    chance = random.Random(SEED)
    for _ in range(examples(sample=8, full=100)):
        limit = chance.randint(1, 300)
        model = Talker(writes=chance.randint(1, 60), delay=chance.choice((0.0, 0.0005)))
        steps = [
            ask(model, settings={"max_output_tokens": chance.randint(1, 80)} if chance.random() < 0.5 else {})
            for _ in range(chance.randint(1, 12))
        ]
        harness = Harness(plugins=(), budget=Budget(**{dimension: limit}))  # type: ignore[arg-type] # the name of any dimension
        with anyio.fail_after(20):
            result: RunResult[Any, Any] = await harness.run(settle(steps), 1)
        read = sum(usage.input for usage in model.used)
        written = sum(usage.output for usage in model.used)
        spent = {"tokens": read + written, "input_tokens": read, "output_tokens": written}
        assert settled_of(harness, dimension) == spent[dimension] <= limit
        assert (result.usage.input, result.usage.output) == (read, written)


# ------------------------------------------------------------------------------------------------ warnings and wrap-up


def warnings_of(events: Sequence[object]) -> list[tuple[str, Decimal, Decimal]]:
    return [(event.dimension, event.used, event.limit) for event in events if isinstance(event, BudgetWarning)]


async def run_and_watch(flow: AnyStep, budget: Budget, harness: Harness[Any] | None = None) -> list[object]:
    events: list[object] = []
    async with harness or Harness(plugins=()) as entered:
        handle = entered.start(flow, 1, budget=budget, on_error="result")
        handle._run.bus.watch(events.append)
        await handle.result()
    return events


@pytest.mark.parametrize("wrap", ["plain", "spawn", "parallel", "nested"])
async def test_a_warning_is_sent_once(wrap: str) -> None:
    model = metered(cost="1")
    work: AnyStep = sequence(*[ask(model) for _ in range(9)])
    shapes: Mapping[str, Callable[[], AnyStep]] = {
        "plain": lambda: work,
        "spawn": lambda: spawn(work),
        "parallel": lambda: settle([ask(model) for _ in range(9)]),
        "nested": lambda: spawn(spawn(work, budget=Budget(cost=50)), budget=Budget(steps=60)),
    }
    events = await run_and_watch(shapes[wrap](), Budget(cost=10, model_calls=100, warn_at=0.5))
    assert warnings_of(events) == [("cost", Decimal(5), Decimal(10))]


async def test_a_warning_of_the_harness_budget_reaches_the_run_that_passes_it() -> None:
    model = metered(cost="1")
    events = await run_and_watch(
        sequence(*[ask(model)] * 3), Budget(), Harness(plugins=(), budget=Budget(cost=4, warn_at=0.5))
    )
    assert warnings_of(events) == [("cost", Decimal(2), Decimal(4))]


def reserve_of(name: str) -> tuple[Budget, int]:
    """A budget with a block for the wrap-up, and how many calls or steps the work gets of it."""
    wrap = ask(metered(cost="1"))
    match name:
        case "cost":
            return Budget(cost=5, wrap_up=wrap, reserve=Budget(cost=2)), 3
        case "model_calls":
            return Budget(model_calls=5, wrap_up=wrap, reserve=Budget(model_calls=2)), 3
        case _:
            return Budget(steps=5, wrap_up=wrap, reserve=Budget(steps=2)), 3


@pytest.mark.parametrize("name", ["cost", "model_calls", "steps"])
async def test_a_wrap_up_gives_a_run_that_is_spent_its_value(name: str) -> None:
    budget, calls = reserve_of(name)
    model = metered(cost="1")
    harness = Harness(plugins=(), budget=Budget(cost=100, model_calls=100, steps=100))
    result: RunResult[Any, Any] = await harness.run(sequence(*[ask(model)] * 9), 1, budget=budget)
    assert result.status == "budget_exceeded"
    assert result.value == "yes"
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == name
    assert model.calls == calls
    assert result.cost == Decimal(calls + 1)
    # The call that was refused had begun as a step, unless it was the step that was refused.
    steps = calls + (1 if name == "steps" else 2)
    assert result.steps == steps
    assert settled_of(harness, "cost") == Decimal(calls + 1)
    assert settled_of(harness, "model_calls") == Decimal(calls + 1)
    assert lease_of(harness).steps == steps


@pytest.mark.parametrize("name", ["cost", "model_calls", "steps"])
async def test_a_wrap_up_gives_a_step_that_is_spent_its_value(name: str) -> None:
    budget, calls = reserve_of(name)
    model = metered(cost="1")
    harness = Harness(plugins=(), budget=Budget(cost=100, model_calls=100, steps=100))
    work = sequence(*[ask(model)] * 9).with_options(budget=budget)
    result: RunResult[Any, Any] = await harness.run(sequence(work, ask(model)), 1, budget=Budget(cost=50, steps=50))
    assert result.status == "completed"
    assert model.calls == calls + 1
    assert result.cost == Decimal(calls + 2)
    steps = calls + (2 if name == "steps" else 3)
    assert result.steps == steps
    assert settled_of(harness, "cost") == Decimal(calls + 2)
    assert settled_of(harness, "model_calls") == Decimal(calls + 2)
    assert lease_of(harness).steps == steps


async def test_a_wrap_up_cannot_pass_the_reserve_either() -> None:
    wrapping = metered(cost="1")
    wrap = sequence(*[ask(wrapping)] * 9)
    model = metered(cost="1")
    harness = Harness(plugins=(), budget=Budget(cost=100))
    budget = Budget(cost=5, wrap_up=wrap, reserve=Budget(cost=2))
    result: RunResult[Any, Any] = await harness.run(sequence(*[ask(model)] * 9), 1, budget=budget)
    assert result.status == "budget_exceeded"
    assert not result.has_value
    assert (model.calls, wrapping.calls) == (3, 2)
    assert settled_of(harness, "cost") == result.cost == Decimal(5)


async def test_the_block_of_a_wrap_up_is_safe_from_siblings() -> None:
    model, wrapping = metered(cost="1", delay=0.001), metered(cost="1")
    budget = Budget(cost=4, wrap_up=ask(wrapping), reserve=Budget(cost=1))
    careful = sequence(*[ask(model)] * 9).with_options(budget=budget)
    greedy = sequence(*[ask(model)] * 9)
    harness = Harness(plugins=(), budget=Budget(cost=6))
    result: RunResult[Any, Any] = await harness.run(settle([careful, greedy, greedy]), 1)
    assert result.value[0].ok
    assert wrapping.calls == 1
    assert model.calls == 5
    assert settled_of(harness, "cost") == Decimal(6)


async def test_a_wrap_up_inside_a_wrap_up_is_booked_once() -> None:
    inner_wrap, inner_work = metered(cost="1"), metered(cost="1")
    inner = sequence(*[ask(inner_work)] * 9).with_options(
        budget=Budget(cost=3, wrap_up=ask(inner_wrap), reserve=Budget(cost=1))
    )
    model = metered(cost="1")
    harness = Harness(plugins=(), budget=Budget(cost=9))
    budget = Budget(cost=9, wrap_up=inner, reserve=Budget(cost=5))
    result: RunResult[Any, Any] = await harness.run(sequence(*[ask(model)] * 9), 1, budget=budget)
    assert result.status == "budget_exceeded"
    assert result.value == "yes"
    assert (model.calls, inner_work.calls, inner_wrap.calls) == (4, 2, 1)
    assert settled_of(harness, "cost") == result.cost == Decimal(7)


# ------------------------------------------------------------------------------------------------------------- random


def random_flow(chance: random.Random, model: Any, depth: int) -> AnyStep:
    """Calls in sections, spawns, retries and steps with budgets of their own."""
    if depth == 0 or chance.random() < 0.2:
        options: dict[str, Any] = {"retry": Retry(chance.randint(1, 3), initial=0)} if chance.random() < 0.3 else {}
        return ask(model, **options)
    inner = [random_flow(chance, model, depth - 1) for _ in range(chance.randint(1, 4))]
    match chance.choice(("sequence", "settle", "race", "spawn", "budget", "wrap_up")):
        case "sequence":
            return sequence(*inner)
        case "settle":
            return settle(inner, merge=lambda outcomes, ctx: 1)
        case "race":
            return race(inner)
        case "spawn":
            return spawn(inner[0], budget=Budget(cost=chance.randint(0, 5)) if chance.random() < 0.5 else None)
        case "budget":
            return inner[0].with_options(budget=Budget(cost=chance.randint(0, 5), model_calls=chance.randint(0, 9)))
        case _:
            wrap_up = random_flow(chance, model, depth - 1)
            budget = Budget(cost=chance.randint(2, 6), wrap_up=wrap_up, reserve=Budget(cost=chance.randint(0, 2)))
            return sequence(*inner).with_options(budget=budget)


async def test_what_is_settled_is_what_was_paid_and_never_above_the_limit() -> None:
    def unsteady(request: ModelRequest) -> str | Exception:
        return errors.ModelUnavailable("down", model="m") if chance.random() < 0.2 else "yes"

    for seed in range(SEED * 1000, SEED * 1000 + examples(sample=60, full=1000)):
        chance = random.Random(seed)
        model = Meter(ScriptedModel(*[unsteady] * 900, cost="1", delay=chance.choice((0.0, 0.0, 0.0005))))
        limit, calls = chance.randint(0, 25), chance.randint(0, 40)
        harness = Harness(plugins=(), budget=Budget(cost=limit, model_calls=calls))
        flow = random_flow(chance, model, 3)
        try:
            with anyio.fail_after(20):
                result: RunResult[Any, Any] = await harness.run(flow, 1, budget=Budget(cost=20), on_error="result")
            assert settled_of(harness, "cost") == result.cost == model.paid <= min(limit, 20)
            assert settled_of(harness, "model_calls") == model.calls <= calls
            assert lease_of(harness).cost == model.paid
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, seed {seed}")
            raise
