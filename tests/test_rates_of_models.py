"""Shared budgets of single models: what all processes of a store may ask of one provider."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import (
    Budget,
    Harness,
    InMemoryBackend,
    Memory,
    Model,
    ModelRequest,
    ModelSettings,
    StateBag,
    Step,
    TokenUsage,
    call_model,
    errors,
    parallel,
)
from noetic_py.checkpoints import SharedBudget, SqliteBackend
from noetic_py.models import FallbackModel, LimitedModel, RetryModel
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.properties.checks import examples
from tests.test_rates import Held, worker_of
from tests.test_sleep import beside

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 11, 30, 23, 59, 10, tzinfo=UTC)


def asking(model: Model, most: int | None = 50) -> Step[str, str, Memory, StateBag]:
    return call_model(model, settings=ModelSettings() if most is None else ModelSettings(max_output_tokens=most))


@settings(max_examples=examples(sample=4, full=100), deadline=None)
@given(
    limit=st.integers(1, 4),
    tokens=st.integers(120, 400),
    widths=st.lists(st.integers(1, 3), min_size=2, max_size=5),
    per_run=st.booleans(),
)
def test_no_minute_of_two_harnesses_has_more_than_the_limit(
    limit: int, tokens: int, widths: list[int], per_run: bool
) -> None:
    budget = Budget(model_calls=limit, tokens=tokens)
    total = sum(widths)

    async def run() -> None:
        runtime = VirtualRuntime(start=BEGIN)
        free = ScriptedModel(*["a"] * total)
        flows: list[Step[str, str, Memory, StateBag]] = []
        results: list[Any] = []
        for _ in range(2):
            # As in two processes, which share nothing but the store.
            rate = SharedBudget("acme", budget, per="minute", wait=True)
            model = LimitedModel(ScriptedModel(*["a"] * total, usage=TokenUsage(10, 40)), budget=rate)
            flows.append(asking(model) >> asking(free).with_options(id="free"))

        async def begin(harness: Harness, flow: Step[str, str, Memory, StateBag], width: int) -> None:
            own = Budget(model_calls=2 * total)
            given = SharedBudget("user", own, per="month") if per_run else own
            wide: dict[str, Any] = {"flow": parallel(*[flow] * width)}
            results.append(await harness.run(wide["flow"], "hello", budget=given))

        async def all_runs(harnesses: list[Harness]) -> None:
            async with anyio.create_task_group() as group:
                for at, width in enumerate(widths):
                    group.start_soon(begin, harnesses[at % 2], flows[at % 2], width)

        with tempfile.TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                harnesses: list[Harness] = []
                for _ in range(2):
                    store = await stack.enter_async_context(SqliteBackend(Path(folder) / "runs.db", runtime=runtime))
                    harness = Harness(checkpoints=store, runtime=runtime, lease=1e6, plugins=())
                    harnesses.append(await stack.enter_async_context(harness))
                with anyio.fail_after(60):
                    await beside(runtime, lambda: all_runs(harnesses), 5.0)
                rows = await harnesses[0].runs.budgets()
        assert [each.status for each in results] == ["completed"] * len(widths)
        assert len(free.requests) == total
        rates = [row for row in rows if row.name == "acme"]
        for row in rates:
            assert row.used["model_calls"] <= limit
            assert row.used["tokens"] <= tokens
        assert all(row.held == {} for row in rows)
        assert sum(row.used["model_calls"] for row in rates) == total
        assert sum(row.used["tokens"] for row in rates) == 50 * total
        # The free model counts against the budget of the run, and not against that of the other model.
        assert sum(row.used["model_calls"] for row in rows if row.name == "user") == (2 * total if per_run else 0)

    anyio.run(run)


async def test_a_call_that_is_not_waited_for_is_refused_with_the_figures_of_the_model() -> None:
    async with InMemoryBackend() as store, Harness(checkpoints=store) as one, Harness(checkpoints=store) as other:
        models = [
            LimitedModel(ScriptedModel("a", "b"), budget=SharedBudget("acme", Budget(model_calls=1), per="month"))
            for _ in range(2)
        ]
        assert (await one.run(asking(models[0]), "hello")).status == "completed"
        result = await other.run(asking(models[1]), "hello")
        assert result.status == "budget_exceeded"
        error = result.error
        assert isinstance(error, errors.BudgetExceeded)
        assert (error.shared, error.dimension, error.limit, error.settled) == ("acme", "model_calls", 1, 1)
        (row,) = await one.runs.budgets()
        assert (row.name, row.used) == ("acme", {"model_calls": 1})


async def test_a_call_holds_its_maximum_where_nothing_else_limits_tokens() -> None:
    model = Held("hi", usage=TokenUsage(20, 10))
    rate = SharedBudget("acme", Budget(tokens=1_000))
    flow = asking(LimitedModel(model, budget=rate))
    async with InMemoryBackend() as store, Harness(checkpoints=store) as harness:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(harness.run, flow, "hello", run_id="r"))
            await model.asked.wait()
            (row,) = await store.budgets()
            assert row.used == {}
            assert row.held["r"]["tokens"] > 50
            model.go.set()
        (row,) = await store.budgets()
        assert (row.used, row.held) == ({"tokens": 30}, {})


async def test_calls_of_one_run_that_may_use_all_that_is_left_take_turns() -> None:
    model = ScriptedModel("a", "b", "c", usage=TokenUsage(10, 40))
    ask = asking(LimitedModel(model, budget=SharedBudget("acme", Budget(tokens=1_000))), None)
    wide: dict[str, Any] = {"flow": parallel(ask, ask, ask)}
    async with InMemoryBackend() as store, Harness(checkpoints=store) as harness:
        assert (await harness.run(wide["flow"], "hello")).status == "completed"
        (row,) = await store.budgets()
        assert (row.used, row.held) == ({"tokens": 150}, {})


async def test_a_model_that_reports_no_usage_is_counted() -> None:
    flow = asking(LimitedModel(ScriptedModel("a"), budget=SharedBudget("acme", Budget(tokens=1_000))))
    async with InMemoryBackend() as store, Harness(checkpoints=store) as harness:
        await harness.run(flow, "hello")
        (row,) = await store.budgets()
        assert row.used["tokens"] > 1


async def test_a_waiting_run_of_a_worker_is_suspended_below_other_wrappers() -> None:
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("acme", Budget(model_calls=1), per="minute", wait=True)
    model = ScriptedModel("a", "b", cost="0.01")
    flow = asking(RetryModel(FallbackModel(LimitedModel(model, concurrency=1, budget=rate), ScriptedModel("no"))))
    async with InMemoryBackend(runtime=runtime) as store, worker_of(store, runtime, flow=flow) as harness:
        names = [await harness.submit(flow, "hello") for _ in range(2)]
        async with anyio.create_task_group() as group:
            group.start_soon(partial(harness.work, concurrency=1))
            with anyio.fail_after(30):
                while not (pending := [one for each in names for one in (await harness.runs.get(each)).pending]):
                    await runtime.advance(0.1)
                assert [each.prompt for each in pending] == ["waits for room in the shared budget 'acme'"]
                while await store.queues():
                    await runtime.advance(1.0)
            await harness.shutdown()
        assert [(await harness.runs.get(name)).status for name in names] == ["completed"] * 2
        assert len(model.requests) == 2
        assert [row.used for row in await harness.runs.budgets()] == [{"model_calls": 1}] * 2
    assert runtime.now() - BEGIN >= timedelta(seconds=50)


async def test_a_call_counts_once_where_the_run_has_the_same_budget() -> None:
    rate = SharedBudget("acme", Budget(model_calls=5))
    flow = asking(LimitedModel(ScriptedModel("a"), budget=rate))
    async with InMemoryBackend() as store, Harness(checkpoints=store, budget=rate) as harness:
        await harness.run(flow, "hello")
        (row,) = await store.budgets()
        assert row.used == {"model_calls": 1}


async def test_only_a_stored_run_has_a_budget_of_a_model() -> None:
    model = LimitedModel(ScriptedModel("a"), budget=SharedBudget("acme", Budget(model_calls=5)))
    async with Harness() as harness:
        with pytest.raises(
            errors.ConfigError, match=r"a shared budget of 'test:scripted' without checkpoints="
        ) as caught:
            await harness.run(asking(model), "hello")
        assert caught.value.code == "budgets"
    with pytest.raises(errors.ConfigError, match="outside of a run"):
        async with model.respond(ModelRequest(())):
            pass


@pytest.mark.parametrize(
    ("budget", "model", "text"),
    [
        (Budget(model_calls=1), ScriptedModel("a"), "is not a valid budget of a model; expected a SharedBudget"),
        (SharedBudget("a", Budget(steps=1)), ScriptedModel("a"), "a budget with steps= is not a valid budget of a"),
        (
            SharedBudget("a", Budget(model_calls=1)),
            RetryModel(ScriptedModel("a")),
            "is not a valid model to have a budget; expected one that is not a wrapper",
        ),
    ],
)
def test_what_is_no_budget_of_a_model(budget: Any, model: Model, text: str) -> None:
    with pytest.raises(errors.ConfigError, match=text) as caught:
        LimitedModel(model, budget=budget)
    assert caught.value.code == "limited-model"
