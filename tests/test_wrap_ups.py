"""Wrap-ups: what one says that fails, wherever it was run, and what it is shown of open calls."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    ModelRequest,
    Retry,
    StateBag,
    call_model,
    errors,
    loop,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.detached import DetachedRun
from noetic_py.core.control import AnyResult
from noetic_py.journal.records import RunEnded
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
SPENT = "budget of 2 steps reached: 2 spent, 1 more asked for"


@step
async def echo(x: object) -> object:
    return x


@step
async def broken(_: object) -> str:
    raise ValueError("nothing is left")


@step
async def slow(_: object) -> str:
    await anyio.sleep_forever()
    return ""


@step
async def gives_up(_: object, ctx: Ctx) -> str:
    ctx.abort("no sources")
    await anyio.sleep_forever()
    return ""


@step
async def knows(_: object, ctx: Ctx) -> str:
    ctx.complete("known")
    return ""


work = sequence(echo, echo, echo, id="work")
asks = call_model(ScriptedModel(*[FunctionCall(name="look", arguments={})] * 20), id="asks")


def kept(wrap_up: Any, **reserve: Any) -> Budget:
    """Two steps, and a reserve."""
    return Budget(steps=2 + reserve.get("steps", 0), wrap_up=wrap_up, reserve=Budget(**reserve))


FAILING = [
    (kept(broken, steps=1), "ValueError: nothing is left", "correct the step of wrap_up="),
    (
        kept(sequence(echo, echo, id="greedy"), steps=1),
        "budget of 1 steps reached: 1 spent, 1 more asked for",
        "raise steps= of reserve=, or let the step of wrap_up= do less",
    ),
    (
        kept(echo, tokens=100),
        "budget of 2 steps reached: 2 spent, 1 more asked for",
        "keep steps= back too, in reserve=",
    ),
    (
        kept(asks, steps=1),
        "the model called tools, so this round has no value",
        "make wrap_up= one call_model(...) without tools, whose model answers with text",
    ),
    (
        kept(slow, steps=1, seconds=0.01),
        "budget of 0.01 seconds reached: 0.01 spent, 0.0 more asked for",
        "raise seconds= of reserve=, or let the step of wrap_up= do less",
    ),
]
NAMES = ("broken", "greedy", "not-kept", "asks", "slow")


@pytest.mark.parametrize(("budget", "why", "remedy"), FAILING, ids=NAMES)
async def test_that_of_a_run(budget: Budget, why: str, remedy: str) -> None:
    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        first = await harness.run(work, 1, budget=budget, run_id="r")
        again = await harness.resume("r", work, budget=budget)
        ends = [each for each in await harness.runs.journal("r") if isinstance(each, RunEnded)]
    for result in (first, again):
        check(result, "budget_exceeded", why, remedy)
        assert isinstance(result.error, errors.BudgetExceeded)
        assert result.error.dimension == "steps"
        cause = result.error.__cause__
        assert isinstance(cause, errors.NoeticError)
        assert cause.message == why
        with pytest.raises(errors.BudgetExceeded, match="its wrap-up failed"):
            _ = result.value
    assert ends[0].reason == first.reason


def check(result: AnyResult, status: str, why: str, remedy: str) -> None:
    assert (result.status, result.has_value) == (status, False)
    assert result.reason is not None
    spent, _, failed = result.reason.partition("; its wrap-up failed: ")
    # A run that is resumed counts the steps of the wrap-up too.
    assert (spent.replace(": 3 spent", ": 2 spent"), failed) == (SPENT, why)
    assert result.error is not None
    assert (result.error.message, result.error.hint) == (result.reason, remedy)


@pytest.mark.parametrize(("budget", "why", "remedy"), FAILING, ids=NAMES)
@pytest.mark.parametrize("how", ["step", "spawn"])
async def test_that_of_a_step_and_of_a_spawn(budget: Budget, why: str, remedy: str, how: str) -> None:
    flow: Any = work.with_options(budget=budget) if how == "step" else spawn(work, budget=budget)
    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        first = await harness.run(flow, 1, run_id="r", on_error="result")
        again = await harness.resume("r", flow, on_error="result")
        ends = [each for each in await harness.runs.journal("r") if isinstance(each, RunEnded)]
    for result in (first, again):
        check(result, first.status, why, remedy)
    assert ends[0].reason == first.reason
    if "ValueError" in why:
        assert isinstance(first.error, errors.StepFailed)
        assert isinstance(first.error.__cause__, ValueError)


async def test_an_agent_as_a_tool_tells_the_model() -> None:
    agent = spawn(work, budget=kept(broken, steps=1))
    heard: list[str] = []

    @tool
    async def helper(ctx: Ctx) -> str:
        """Help."""
        try:
            await agent(1, ctx)
        except errors.StepFailed as error:
            heard.append(error.message)
            raise
        return ""

    model = ScriptedModel(FunctionCall(name="helper", arguments={}), "It failed.")
    flow = loop(call_model(tools=[helper]), until=until.no_tool_calls())
    async with Harness(plugins=(), model=model) as harness:
        result = await harness.run(flow, "Go.")
    assert result.value == "It failed."
    assert heard == [f"{SPENT}; its wrap-up failed: ValueError: nothing is left"]


async def test_an_attempt_after_the_wrap_up_has_no_other() -> None:
    flow = work.with_options(budget=kept(broken, steps=1), retry=Retry(2, initial=0))
    async with Harness(plugins=()) as harness:
        result = await harness.run(flow, 1)
    assert result.status == "budget_exceeded"
    assert result.error is not None
    assert str(result.reason).endswith("; its wrap-up has been run already")
    assert result.error.hint == "raise steps= of the budget"


@pytest.mark.parametrize(
    ("wrap_up", "status", "reason"),
    [(gives_up, "aborted", "no sources"), (knows, "completed", "complete() at wrap_up")],
    ids=["abort", "complete"],
)
async def test_a_wrap_up_that_stops_its_run_does_so_also_before_it_is_resumed(
    wrap_up: Any, status: str, reason: str
) -> None:
    budget = kept(wrap_up, steps=1)
    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        first = await harness.run(work, 1, budget=budget, run_id="r")
        again = await harness.resume("r", work, budget=budget)
    for result in (first, again):
        assert (result.status, result.reason) == (status, reason)
        assert result.output_or(None) == ("known" if status == "completed" else None)


async def test_a_budget_that_was_wrapped_up_is_not_told_to_have_a_wrap_up() -> None:
    async with Harness(plugins=()) as harness:
        result = await harness.run(work, 1, budget=kept(echo, steps=1))
    assert (result.status, result.value, result.reason) == ("budget_exceeded", None, SPENT)
    assert result.error is not None
    assert result.error.hint == "raise steps= of the budget"


class Waits:
    """A step that waits until it is stopped."""

    def __init__(self) -> None:
        self.there = anyio.Event()

        @step(id="waits")
        async def waits(x: int) -> int:
            self.there.set()
            await anyio.sleep_forever()
            return x

        self.flow = loop(waits, until=until.never(), id="waiting")


@pytest.mark.parametrize(
    ("wrap_up", "reserve", "why", "remedy"),
    [
        (broken, Budget(steps=1), "ValueError: nothing is left", "correct the step of wrap_up="),
        (
            sequence(echo, echo, id="greedy"),
            Budget(steps=1),
            "budget of 1 steps reached: 1 spent, 1 more asked for",
            "raise steps= of reserve=, or let the step of wrap_up= do less",
        ),
    ],
    ids=["broken", "greedy"],
)
@pytest.mark.parametrize("where", ["run", "beside"])
async def test_one_that_was_asked_for(wrap_up: Any, reserve: Budget, why: str, remedy: str, where: str) -> None:
    made, works = Waits(), list[DetachedRun[Any]]()
    found: list[AnyResult] = []
    budget = Budget(steps=50, wrap_up=wrap_up, reserve=reserve)

    @step
    async def start(n: int, ctx: Ctx) -> str:
        works.append(ctx.spawn_detached(made.flow, n, budget=budget))
        found.append(await works[-1].wait())
        return found[-1].status

    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        if where == "run":
            handle = harness.start(made.flow, 1, run_id="r", budget=budget, on_error="result")
            await made.there.wait()
            assert handle.wrap_up("closing time")
            found.append(await handle.result())
            found.append(await harness.resume("r", made.flow, budget=budget, on_error="result"))
        else:
            beside = harness.start(start, 1, run_id="r")
            await made.there.wait()
            assert works[0].wrap_up("closing time")
            await beside.result()
    for result in found:
        assert result.has_value is False
        assert result.reason == f"the wrap-up failed: {why}"
        assert result.error is not None
        assert (result.error.message, result.error.hint) == (result.reason, remedy)


@pytest.mark.parametrize("where", ["run", "beside"])
async def test_one_that_was_asked_for_and_is_out_of_time(where: str) -> None:
    made, works = Waits(), list[DetachedRun[Any]]()
    found: list[AnyResult] = []
    budget = Budget(seconds=60, wrap_up=slow, reserve=Budget(seconds=0.01))

    @step
    async def start(n: int, ctx: Ctx) -> str:
        works.append(ctx.spawn_detached(made.flow, n, budget=budget))
        found.append(await works[-1].wait())
        return found[-1].status

    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        if where == "run":
            handle = harness.start(made.flow, 1, run_id="r", budget=budget)
            await made.there.wait()
            assert handle.wrap_up("closing time")
            found.append(await handle.result())
            found.append(await harness.resume("r", made.flow, budget=budget))
        else:
            beside = harness.start(start, 1, run_id="r")
            await made.there.wait()
            assert works[0].wrap_up("closing time")
            await beside.result()
    for result in found:
        assert (result.status, result.has_value) == ("completed", False)
        assert result.reason == "closing time; the wrap-up was out of time: raise seconds= of reserve="
        with pytest.raises(errors.NoOutput, match="closing time; the wrap-up was out of time"):
            _ = result.value


@tool
async def look(n: int) -> str:
    """Look."""
    return "seen"


def closed(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, FunctionCallOutput)]


@pytest.mark.parametrize("how", ["run", "step", "spawn", "failed"])
async def test_a_wrap_up_and_the_result_say_the_same_of_an_open_call(how: str) -> None:
    shown: list[list[str]] = []

    def sums_up(request: ModelRequest) -> str:
        shown.append(closed(request.items))
        return "summed up"

    summary = call_model(id="sum_up")
    budget = Budget(
        tool_calls=1,
        wrap_up=sequence(summary, broken, id="sums") if how == "failed" else summary,
        reserve=Budget(steps=3),
    )
    agent = loop(call_model(tools=[look]), until=until.no_tool_calls())
    options: dict[str, Any] = {"on_error": "result"}
    flow: Any = agent
    if how in ("run", "failed"):
        options["budget"] = budget
    elif how == "step":
        flow = agent.with_options(budget=budget) >> call_model(id="after")
    else:
        flow = spawn(agent, budget=budget, items="share") >> call_model(id="after")
    turns = [FunctionCall(name="look", arguments={"n": n}) for n in range(2)]
    model = ScriptedModel(*turns, sums_up, sums_up)
    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend, model=model) as harness:
        first = await harness.run(flow, "Go.", run_id="r", **options)
        again = await harness.resume("r", flow, **options)
    why = "Not finished: budget_exceeded: budget of 1 tool_calls reached: 1 spent, 1 more asked for"
    assert [closed(first.items), closed(again.items), *shown] == [["seen", why]] * (2 + len(shown))
    assert len(shown) == (1 if how in ("run", "failed") else 2)


async def test_so_they_do_where_the_wrap_up_was_asked_for() -> None:
    shown: list[list[str]] = []
    there = anyio.Event()

    @tool
    async def hang() -> str:
        """Wait."""
        there.set()
        await anyio.sleep_forever()
        return ""

    def sums_up(request: ModelRequest) -> str:
        shown.append(closed(request.items))
        return "summed up"

    model = ScriptedModel(FunctionCall(name="hang", arguments={}), sums_up)
    flow = loop(call_model(tools=[hang]), until=until.no_tool_calls())
    budget = Budget(steps=9, wrap_up=call_model(id="sum_up"), reserve=Budget(steps=1))
    async with Harness(plugins=(), model=model) as harness:
        handle = harness.start(flow, "Go.", budget=budget)
        await there.wait()
        assert handle.wrap_up("closing time")
        result = await handle.result()
    assert (result.value, shown) == ("summed up", [closed(result.items)])
    assert shown == [["Not finished: completed: closing time"]]


# -- processes that die


@define
class Asked:
    times: int = 0


def spending(where: str, model: ScriptedModel) -> tuple[Any, Budget]:
    """A flow that asks until a budget of its own or of the run is spent; two dollars are left for its wrap-up."""
    asks = call_model(model, id="asks").bind("go")
    limit = Budget(cost=6, wrap_up=sequence(asks, asks, id="asks_again"), reserve=Budget(cost=2))

    @step
    async def body(_: object, ctx: Context[Memory, Asked]) -> None:
        while True:
            ctx.state.times += 1
            await asks(None, ctx)

    flow = body if where in ("body", "run") else sequence(*[asks] * 9, id="work")
    if where == "run":
        return flow, limit
    inside = spawn(flow, budget=limit) if where == "spawn" else flow.with_options(budget=limit)
    return settle([inside, inside]), Budget(cost=8)


@pytest.mark.parametrize("where", ["run", "body", "step", "spawn"])
async def test_a_budget_holds_whatever_calls_of_a_wrap_up_died_with_their_process(where: str) -> None:
    deaths, more, at, died = [0, 0], 0, 0, True
    while died:
        at, died = at + 1, False
        for again in range(3):
            model = ScriptedModel(*["yes"] * 40, cost=1)
            flow, budget = spending(where, model)
            async with InMemoryBackend() as inner:
                backend = FaultyBackend(inner, dies_at=at, when="after")
                with backend.outlived():
                    async with Harness(checkpoints=backend) as harness:
                        await harness.run(flow, None, state=Asked(), run_id="r", budget=budget, on_error="result")
                died = died or backend.dead
                deaths[0] += backend.dead
                backend.revive(dies_at=again or None, when="after")
                with backend.outlived():
                    async with Harness(checkpoints=backend) as harness:
                        await harness.resume("r", flow, state_type=Asked, budget=budget, on_error="result")
                deaths[1] += backend.dead
                backend.revive()
                async with Harness(checkpoints=backend) as harness:
                    result = await harness.resume("r", flow, state_type=Asked, budget=budget, on_error="result")
                    assert budget.limits["cost"] >= (result.cost or 0) >= len(model.requests), (at, again)
                    if where == "run" and result.status != "completed":
                        # The flow goes on, and the reserve of its next wrap-up is whole.
                        raised = Budget(cost=10, wrap_up=budget.wrap_up, reserve=Budget(cost=2))
                        last = await harness.resume("r", flow, state_type=Asked, budget=raised)
                        assert last.value == "yes", (at, again)
                        assert last.cost == Decimal(10), (at, again)
                        more += 1
    assert min(deaths) > 10
    assert more > 0 or where != "run"
