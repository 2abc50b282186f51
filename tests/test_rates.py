"""Shared budgets that wait for room: limits of rate, in a process and over workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import (
    Budget,
    FunctionCall,
    Harness,
    InMemoryBackend,
    ModelRequest,
    ModelSettings,
    TokenUsage,
    call_model,
    errors,
    loop,
    parallel,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import BudgetChange, CheckpointBackend, SharedBudget, Transaction
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.properties.checks import examples
from tests.test_sleep import beside

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 11, 30, 23, 59, 10, tzinfo=UTC)


@step
async def one(value: int) -> int:
    return value + 1


three = one >> one.with_options(id="two") >> one.with_options(id="three")


def calls(model: ScriptedModel, most: int = 50) -> Any:
    return call_model(model, settings=ModelSettings(max_output_tokens=most))


def two_calls() -> Any:
    model = ScriptedModel(*"abcdef", usage=TokenUsage(10, 40), cost="0.25")
    return calls(model) >> calls(model).with_options(id="second")


@pytest.mark.parametrize(
    ("budget", "flow", "value"),
    [
        pytest.param(Budget(steps=2), lambda: three, 1, id="steps"),
        pytest.param(Budget(model_calls=1), two_calls, "hello", id="calls"),
        pytest.param(Budget(tokens=100), two_calls, "hello", id="tokens"),
        pytest.param(Budget(cost="0.30"), two_calls, "hello", id="cost"),
    ],
)
@pytest.mark.parametrize("per", ["minute", "month"])
async def test_a_run_waits_for_the_next_period(budget: Budget, flow: Callable[[], Any], value: Any, per: Any) -> None:
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("team", budget, per=per, wait=True)
    backend = InMemoryBackend(runtime=runtime)
    async with Harness(checkpoints=backend, budget=rate, runtime=runtime, lease=1e6) as harness:
        result = await beside(runtime, lambda: harness.run(flow(), value), 1.0)
        assert result.status == "completed", result.reason
        assert timedelta(seconds=50) <= runtime.now() - BEGIN <= timedelta(seconds=53)
        rows = await harness.runs.budgets()
    assert len(rows) == 2
    for row in rows:
        assert row.used.keys() == row.limits.keys()
        assert all(row.used[name] <= limit for name, limit in row.limits.items())
        assert row.held == {}


async def test_what_can_never_have_room_is_refused() -> None:
    runtime = VirtualRuntime(start=BEGIN)
    async with InMemoryBackend(runtime=runtime) as backend:
        for rate in (
            SharedBudget("large", Budget(tokens=40), per="minute", wait=True),
            SharedBudget("ever", Budget(model_calls=1), wait=True),
        ):
            async with Harness(checkpoints=backend, budget=rate, runtime=runtime) as harness:
                with anyio.fail_after(30):
                    result = await harness.run(two_calls(), "hello")
            assert result.status == "budget_exceeded"
            assert isinstance(result.error, errors.BudgetExceeded)
            assert result.error.shared == rate.name
    assert runtime.now() == BEGIN


class Held(ScriptedModel):
    """A model that says when it was asked, and answers when it may."""

    def __init__(self, *turns: str, usage: TokenUsage) -> None:
        super().__init__(*turns, usage=usage)
        self.asked, self.go = anyio.Event(), anyio.Event()

    async def _answer(self, request: ModelRequest) -> Any:
        self.asked.set()
        await self.go.wait()
        return await super()._answer(request)


async def test_a_call_waits_for_what_another_one_gives_back() -> None:
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("team", Budget(tokens=140), wait=True)
    first = Held("hello", usage=TokenUsage(10, 10))
    second = ScriptedModel("hi", usage=TokenUsage(10, 10))
    backend = InMemoryBackend(runtime=runtime)
    async with Harness(checkpoints=backend, budget=rate, runtime=runtime, lease=1e6) as harness:
        async with anyio.create_task_group() as group:
            group.start_soon(harness.run, calls(first, 80), "hello")
            await first.asked.wait()
            group.start_soon(harness.run, calls(second, 80), "hello")
            await runtime.advance(20.0)
            assert second.requests == []
            first.go.set()
            with anyio.fail_after(30):
                while not second.requests:
                    await runtime.advance(1.0)
        (row,) = await harness.runs.budgets()
    assert (row.used, row.held) == ({"tokens": 40}, {})


def worker_of(backend: CheckpointBackend, runtime: VirtualRuntime, **flows: Any) -> Harness[Any]:
    return Harness(checkpoints=backend, runtime=runtime, flows=flows, lease=1e6, plugins=())


async def until_empty(backend: CheckpointBackend, runtime: VirtualRuntime, harness: Harness[Any]) -> None:
    """Work until the queue is empty, with room for one run."""
    async with anyio.create_task_group() as group:
        group.start_soon(partial(harness.work, concurrency=1))
        with anyio.fail_after(30):
            while await backend.queues():
                await runtime.advance(1.0)
        await harness.shutdown()


async def test_a_waiting_run_holds_no_worker() -> None:
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("team", Budget(model_calls=2), per="minute", wait=True)
    ended: list[datetime] = []

    @step
    async def other(value: int) -> int:
        ended.append(runtime.now())
        return value

    asks = two_calls()
    async with InMemoryBackend(runtime=runtime) as backend, worker_of(backend, runtime, asks=asks, other=other) as it:
        names = [await it.submit(asks, "hello", budget=rate) for _ in range(3)]
        await it.submit(other, 1)
        seen: set[str] = set()

        async def watch() -> None:
            while True:
                for each in [await it.runs.get(name) for name in names]:
                    seen.update(f"{one.kind}: {one.prompt}" for one in each.pending)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await until_empty(backend, runtime, it)
            group.cancel_scope.cancel()
        assert [(await it.runs.get(name)).status for name in names] == ["completed"] * 3
        assert ended[0] - BEGIN < timedelta(seconds=50)
        assert seen == {"timer: waits for room in the shared budget 'team'"}
        assert [(row.period, row.used) for row in await it.runs.budgets()] == [
            ("2026-11-30T23:59", {"model_calls": 2}),
            ("2026-12-01T00:00", {"model_calls": 2}),
            ("2026-12-01T00:01", {"model_calls": 2}),
        ]


async def test_the_only_worker_is_free_for_the_run_whose_owner_has_died() -> None:
    """Else it would wait for what only the next owner of that run can give back (rule D22)."""
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("team", Budget(steps=10, tokens=300), wait=True)
    asks = calls(ScriptedModel("hi", usage=TokenUsage(1, 1)), 150)
    async with InMemoryBackend(runtime=runtime) as backend, worker_of(backend, runtime, asks=asks, three=three) as it:
        dead = await it.submit(three, 1, budget=rate)
        (queued,) = await backend.queues()
        (claim,) = await backend.claim(["default"], flows=[queued.flow], ttl=100.0)
        held = BudgetChange("team", "ever", {}, {"tokens": 200}, rate.limits)
        entry = await backend.entry(dead)
        assert entry is not None
        summary = entry.summary[:-1] + b', "budgets": [["team", "ever"]]}'
        fence = claim.lease.fence
        await backend.commit([Transaction(dead, entry.position, fence, (), summary, budgets=[held])])
        waiting = await it.submit(asks, "hello", budget=rate)
        await until_empty(backend, runtime, it)
        assert (await it.runs.get(dead)).status == "completed"
        assert (await it.runs.get(waiting)).status == "budget_exceeded"
        (row,) = await it.runs.budgets()
        assert (row.used, row.held) == ({"steps": 4, "tokens": 200}, {})


async def test_an_approved_tool_is_not_asked_for_again_while_it_waits() -> None:
    runtime = VirtualRuntime(start=BEGIN)
    rate = SharedBudget("team", Budget(tool_calls=1), per="minute", wait=True)

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    wanted = [FunctionCall(name="pay", arguments={"amount": n}) for n in (1, 2)]
    flow = loop(call_model(ScriptedModel(wanted, "done"), tools=[pay]), until=until.no_tool_calls())
    async with InMemoryBackend(runtime=runtime) as backend, worker_of(backend, runtime, flow=flow) as it:
        name = await it.submit(flow, "pay", budget=rate)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(it.work, concurrency=1))
            with anyio.fail_after(30):
                while len((info := await it.runs.get(name)).pending) < 2:
                    await runtime.advance(1.0)
                await it.runs.answer(*[each.approve() for each in info.pending])
                while (await it.runs.get(name)).status != "completed":
                    assert [each for each in (await it.runs.get(name)).pending if each.kind == "approval"] == []
                    await runtime.advance(1.0)
            await it.shutdown()
        async with worker_of(backend, runtime) as reader:
            result = await reader.resume(name, flow)
        outputs = [each.output for each in result.items if each.type == "function_call_output"]
        assert sorted(map(str, outputs)) == ["paid 1", "paid 2"]
    assert runtime.now() - BEGIN >= timedelta(seconds=50)


@settings(max_examples=examples(sample=15, full=200), deadline=None)
@given(
    limit=st.integers(1, 5),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    workers=st.integers(1, 3),
    what=st.sampled_from(["model_calls", "steps"]),
)
def test_no_period_has_more_than_the_limit(limit: int, widths: list[int], workers: int, what: str) -> None:
    limits = Budget(model_calls=limit) if what == "model_calls" else Budget(steps=limit)

    async def run() -> None:
        runtime = VirtualRuntime(start=BEGIN)
        rate = SharedBudget("team", limits, per="minute", wait=True)
        asks = calls(ScriptedModel(*["a"] * sum(widths)))
        flows: dict[str, Any] = {f"wide{width}": parallel(*[asks] * width) for width in (1, 2, 3)}
        async with InMemoryBackend(runtime=runtime) as backend, worker_of(backend, runtime, **flows) as it:
            names = [await it.submit(flows[f"wide{width}"], "hello", budget=rate) for width in widths]
            async with anyio.create_task_group() as group:
                group.start_soon(partial(it.work, concurrency=workers))
                with anyio.fail_after(60):
                    while await backend.queues():
                        await runtime.advance(5.0)
                await it.shutdown()
            infos = [await it.runs.get(name) for name in names]
            rows = await it.runs.budgets()
        assert [each.status for each in infos] == ["completed"] * len(widths)
        assert all(row.used[what] <= limit and row.held == {} for row in rows)
        assert what == "steps" or sum(row.used[what] for row in rows) == sum(widths)

    anyio.run(run)
