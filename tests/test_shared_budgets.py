"""Shared budgets: limits that hold for the runs of several harnesses, processes and machines."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
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
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    Model,
    ModelRequest,
    ModelSettings,
    RunResult,
    StateBag,
    Step,
    TokenUsage,
    call_model,
    errors,
    loop,
    parallel,
    step,
    tool,
    until,
)
from noetic_py.access import ACTIONS, Principal, RoleAccess, acting_as
from noetic_py.checkpoints import BudgetChange, CheckpointBackend, SharedBudget, SqliteBackend, Transaction
from noetic_py.core.events import BudgetWarning
from noetic_py.core.shared_budget import has_ended
from noetic_py.journal.fields import summary_fields
from noetic_py.models import LimitedModel
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime
from tests.properties.checks import examples
from tests.servers.races import race

pytestmark = pytest.mark.anyio


async def row_of(
    backend: CheckpointBackend, name: str = "team"
) -> tuple[Mapping[str, int], Mapping[str, Mapping[str, int]]]:
    """What the only row of a budget has used, and what is held of it."""
    (row,) = await backend.budgets(name=name)
    return row.used, row.held


@step
async def one(value: int) -> int:
    return value + 1


three = one >> one.with_options(id="two") >> one.with_options(id="three")


async def test_two_harnesses_share_a_limit() -> None:
    async with InMemoryBackend() as backend, AsyncExitStack() as stack:
        shared = SharedBudget("team", Budget(steps=4))
        a, b = [await stack.enter_async_context(Harness(checkpoints=backend, budget=shared)) for _ in range(2)]
        assert (await a.run(three, 0)).status == "completed"
        result = await b.run(three, 0)
        assert (result.status, result.steps) == ("budget_exceeded", 1)
        error = result.error
        assert isinstance(error, errors.BudgetExceeded)
        assert (error.shared, error.period, error.dimension, error.limit) == ("team", "ever", "steps", 4)
        assert (error.settled, error.requested, error.path) == (4, 1, ("sequence", "two"))
        assert "shared budget 'team' of 4 steps reached (period ever)" in str(result.reason)
        assert await row_of(backend) == ({"steps": 4}, {})


async def test_model_calls_of_two_harnesses_at_once() -> None:
    """What two processes did with a budget of each: six calls where three are allowed."""
    async with InMemoryBackend() as backend, AsyncExitStack() as stack:
        shared = SharedBudget("team", Budget(model_calls=3))
        model = ScriptedModel(*["hello"] * 6)
        ask = call_model(model)
        results: list[RunResult[str, object]] = []
        harnesses = [await stack.enter_async_context(Harness(checkpoints=backend, budget=shared)) for _ in range(2)]

        async def run(harness: Harness) -> None:
            results.append(await harness.run(ask, "hello"))

        async with anyio.create_task_group() as group:
            for harness in harnesses * 3:
                group.start_soon(run, harness)
        assert len(model.requests) == 3
        assert sorted(result.status for result in results) == ["budget_exceeded"] * 3 + ["completed"] * 3
        assert await row_of(backend) == ({"model_calls": 3}, {})


class Held(ScriptedModel):
    """A model that says when it was asked, and answers when it may."""

    def __init__(self, *turns: str, usage: TokenUsage | None = None) -> None:
        super().__init__(*turns, usage=usage, cost="0.25")
        self.asked, self.go = anyio.Event(), anyio.Event()

    async def _answer(self, request: ModelRequest) -> Any:
        self.asked.set()
        await self.go.wait()
        return await super()._answer(request)


def asking(model: Model, most: int | None = 50) -> Step[str, str, Memory, StateBag]:
    return call_model(model) if most is None else call_model(model, settings=ModelSettings(max_output_tokens=most))


async def test_a_call_holds_its_maximum_and_is_settled_with_the_next_commit() -> None:
    async with InMemoryBackend() as backend:
        model = Held("hello", usage=TokenUsage(20, 10))
        shared = SharedBudget("team", Budget(tokens=1_000, cost="5.00"))
        async with Harness(checkpoints=backend, budget=shared) as harness, anyio.create_task_group() as group:

            async def run() -> None:
                assert (await harness.run(asking(model), "hello", run_id="r")).status == "completed"

            group.start_soon(run)
            await model.asked.wait()
            used, held = await row_of(backend)
            assert used == {}
            assert held["r"]["tokens"] > 50
            assert held["r"]["cost"] == 250_000_000
            model.go.set()
        assert await row_of(backend) == ({"tokens": 30, "cost": 250_000_000}, {})


async def test_a_call_that_another_run_leaves_no_room_for_is_not_made() -> None:
    async with InMemoryBackend() as backend:
        model, other = Held("hello", usage=TokenUsage(20, 10)), ScriptedModel("hello", "hello", usage=TokenUsage(1, 1))
        shared = SharedBudget("team", Budget(tokens=100))
        async with (
            Harness(checkpoints=backend, budget=shared) as a,
            Harness(checkpoints=backend, budget=shared) as b,
            anyio.create_task_group() as group,
        ):

            async def run() -> None:
                assert (await a.run(asking(model), "hello", run_id="r")).status == "completed"

            group.start_soon(run)
            await model.asked.wait()
            result = await b.run(asking(other), "hello", run_id="s")
            assert (result.status, result.model_calls, len(other.requests)) == ("budget_exceeded", 0, 0)
            error = result.error
            assert isinstance(error, errors.BudgetExceeded)
            assert (error.shared, error.dimension, error.limit, error.settled) == ("team", "tokens", 100, 0)
            assert 50 < error.reserved < 100
            # A call without a limit of its own gets what is left.
            assert (await b.run(asking(other, None), "hello")).status == "completed"
            assert (other.requests[0].settings.get("max_output_tokens") or 99) < 50
            model.go.set()
        assert await row_of(backend) == ({"tokens": 32}, {})
        async with Harness(checkpoints=backend, budget=shared) as b:
            assert (await b.resume("s", asking(other))).status == "completed"
        assert await row_of(backend) == ({"tokens": 34}, {})


async def test_what_a_cancelled_call_has_used_is_settled_at_the_end_of_the_run() -> None:
    async with InMemoryBackend() as backend:
        model = Held("hello")
        async with Harness(checkpoints=backend, budget=SharedBudget("team", Budget(tokens=100))) as harness:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def cancel() -> None:
                        await model.asked.wait()
                        scope.cancel()

                    group.start_soon(cancel)
                    await harness.run(asking(model), "hello", run_id="r")
        used, held = await row_of(backend)
        assert (0 < used.get("tokens", 0) < 50, held) == (True, {})


async def test_a_failed_call_gives_back() -> None:
    async with InMemoryBackend() as backend:
        model = ScriptedModel(errors.ModelError("no", model="test:scripted"), "hello", usage=TokenUsage(3, 4))
        async with Harness(checkpoints=backend, budget=SharedBudget("team", Budget(tokens=100))) as harness:
            result = await harness.run(asking(model), "hello", on_error="result")
            assert result.status == "failed"
            assert await row_of(backend) == ({}, {})


async def test_a_run_has_a_budget_that_it_shares_and_one_of_its_harness() -> None:
    async with InMemoryBackend() as backend:
        everyone = SharedBudget("everyone", Budget(steps=5))
        async with Harness(checkpoints=backend, budget=everyone) as harness:
            mine = SharedBudget("ada", Budget(steps=2))
            result = await harness.run(three, 0, budget=mine, run_id="r")
            assert (result.status, getattr(result.error, "shared", None)) == ("budget_exceeded", "ada")
            assert await row_of(backend, "ada") == ({"steps": 2}, {})
            # It goes on with the budget that it began with, or with another one.
            assert (await harness.resume("r", three)).status == "budget_exceeded"
            more = SharedBudget("ada", Budget(steps=3))
            assert (await harness.resume("r", three, budget=more)).value == 3
            assert await row_of(backend, "ada") == ({"steps": 3}, {})
            assert await row_of(backend, "everyone") == ({"steps": 3}, {})
            result = await harness.run(three, 0)
            assert getattr(result.error, "shared", None) == "everyone"


async def test_a_submitted_run_takes_its_shared_budget_along() -> None:
    async with InMemoryBackend() as backend, Harness(checkpoints=backend, flows={"three": three}) as harness:
        shared = SharedBudget("ada", Budget(steps=2, per_tool={"search": 1}), per="month")
        run_id = await harness.submit(three, 0, budget=shared)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            await harness.runs.wait(run_id, timeout=30)
            await harness.shutdown()
        info = await harness.runs.get(run_id)
        (row,) = await backend.budgets()
        assert (info.status, row.used, row.limits) == (
            "budget_exceeded",
            {"steps": 2},
            {"steps": 2, "per_tool:search": 1},
        )


@pytest.mark.parametrize(
    ("per", "after", "periods"),
    [
        ("hour", timedelta(hours=1), ["2026-11-30T23", "2026-12-01T00"]),
        ("day", timedelta(days=1), ["2026-11-30", "2026-12-01"]),
        ("month", timedelta(days=1), ["2026-11", "2026-12"]),
    ],
)
async def test_it_begins_anew_by_the_clock_of_the_store(per: Any, after: timedelta, periods: list[str]) -> None:
    runtime = VirtualRuntime(start=datetime(2026, 11, 30, 23, 30, tzinfo=UTC))
    async with InMemoryBackend(runtime=runtime) as backend:
        # The clock of the process says something else.
        async with Harness(checkpoints=backend, budget=SharedBudget("team", Budget(steps=3), per=per)) as harness:
            assert (await harness.run(three, 0)).status == "completed"
            assert (await harness.run(three, 0)).status == "budget_exceeded"
            await runtime.advance(after.total_seconds())
            assert (await harness.run(three, 0)).status == "completed"
        assert [row.period for row in await backend.budgets()] == periods


async def test_a_call_over_the_end_of_a_period_is_settled_where_it_began() -> None:
    runtime = VirtualRuntime(start=datetime(2026, 11, 30, 23, 30, tzinfo=UTC))
    async with InMemoryBackend(runtime=runtime) as backend:
        model = Held("hello", usage=TokenUsage(20, 10))
        shared = SharedBudget("team", Budget(tokens=100), per="month")
        async with Harness(checkpoints=backend, budget=shared) as harness, anyio.create_task_group() as group:
            group.start_soon(harness.run, asking(model), "hello")
            await model.asked.wait()
            await runtime.advance(3600.0)
            model.go.set()
        (row,) = await backend.budgets()
        assert (row.period, row.used, row.held) == ("2026-11", {"tokens": 30}, {})


async def test_a_session_settles_with_the_end_of_its_turn() -> None:
    async with InMemoryBackend() as backend:
        model = ScriptedModel("hello", usage=TokenUsage(20, 10))
        async with Harness(checkpoints=backend, budget=SharedBudget("team", Budget(tokens=100))) as harness:
            session = harness.session("ada", "trip")
            assert (await session.run(asking(model), "hello")).status == "completed"
        assert await row_of(backend) == ({"tokens": 30}, {})


# -- owners that die


@step
async def noting(value: int) -> str:
    return f"the number is {value}"


@pytest.mark.parametrize("of_model", [False, True])
async def test_killed_anywhere_it_gives_back_and_never_passes_the_limit(of_model: bool) -> None:
    """Before and after each commit: what was begun counts, nothing stays reserved."""
    usage, at, kills = TokenUsage(20, 10), 0, 0
    limits = Budget(steps=None if of_model else 9, model_calls=3, tokens=1_000)
    shared = SharedBudget("team", limits)
    of_harness = None if of_model else shared
    while True:
        at += 1
        reached = False
        for when in ("before", "after"):
            async with InMemoryBackend() as inner:
                backend = FaultyBackend(inner, dies_at=at, when=when)
                model = ScriptedModel(*["hello"] * 4, usage=usage)
                asked = LimitedModel(model, budget=shared) if of_model else model
                flow = one >> noting >> asking(asked) >> asking(asked).with_options(id="again")

                def harness(backend: FaultyBackend = backend) -> Harness:
                    return Harness(checkpoints=backend, budget=of_harness)

                with backend.outlived():
                    async with harness() as it:
                        await it.run(flow, 0, run_id="r")
                died = backend.dead
                reached = reached or died
                kills += died
                backend.revive()
                head = await backend.head("r")
                async with harness() as it:
                    if head is None or not head.position:
                        result = await it.run(flow, 0, run_id="r")
                    else:
                        result = await it.resume("r", flow)
                assert result.status == "completed", (at, when)
                (row,) = await inner.budgets()
                calls, open_calls = len(model.requests), row.used["model_calls"] - 2
                assert row.held == {}, (at, when)
                assert calls <= row.used["model_calls"] <= 3
                assert of_model or 4 <= row.used["steps"] <= 5
                # A call whose answer was not stored may have used all that it held.
                assert row.used["tokens"] >= 30 * calls
                assert row.used["tokens"] <= 60 + 100 * max(open_calls, 0)
        if not reached:
            break
    assert kills > 10


async def dies_in_a_call(backend: CheckpointBackend, shared: SharedBudget) -> int:
    """Leave a run whose owner has died in a call of a model; gives how many tokens it held."""
    model, dead = Held("never"), FaultyBackend(backend, dies_at=10**6)
    flow = asking(model)
    with dead.outlived():
        async with Harness(checkpoints=dead, budget=shared) as harness, anyio.create_task_group() as group:
            group.start_soon(partial(harness.run, flow, "hello", run_id="r"))
            await model.asked.wait()
            await dead._die()
            group.cancel_scope.cancel()
    _, held = await row_of(backend)
    return held["r"]["tokens"]


SHARED = SharedBudget("team", Budget(tokens=200, model_calls=2))


async def test_the_next_owner_books_what_a_call_in_flight_held() -> None:
    async with InMemoryBackend() as backend:
        most = await dies_in_a_call(backend, SHARED)
        assert await row_of(backend) == ({"model_calls": 1}, {"r": {"tokens": most}})
        answers = ScriptedModel("hello", usage=TokenUsage(1, 2))
        # The harness that goes on need not name the budget to give back.
        async with Harness(checkpoints=backend) as harness:
            assert (await harness.resume("r", asking(answers))).status == "completed"
        assert await row_of(backend) == ({"model_calls": 1, "tokens": most}, {})


async def test_a_run_of_a_dead_owner_that_is_ended_from_outside_gives_back() -> None:
    async with InMemoryBackend() as backend:
        most = await dies_in_a_call(backend, SHARED)
        async with Harness(checkpoints=backend, budget=SHARED) as harness:
            assert (await harness.runs.complete("r", "enough")).status == "completed"
        assert await row_of(backend) == ({"model_calls": 1, "tokens": most}, {})


async def test_a_run_of_a_dead_owner_that_is_deleted_gives_back() -> None:
    async with InMemoryBackend() as backend:
        most = await dies_in_a_call(backend, SHARED)
        async with Harness(checkpoints=backend) as harness:
            await harness.runs.delete("r")
            await harness.runs.delete("r")
        assert await backend.head("r") is None
        assert await row_of(backend) == ({"model_calls": 1, "tokens": most}, {})


@pytest.mark.parametrize("access", [None, RoleAccess({"operator": ACTIONS}, any_owner={"operator"})])
@pytest.mark.parametrize("older_than", [None, timedelta(0)])
async def test_a_run_of_a_dead_owner_that_is_pruned_gives_back(
    access: RoleAccess | None, older_than: timedelta | None
) -> None:
    async with InMemoryBackend() as backend:
        most = await dies_in_a_call(backend, SHARED)
        with acting_as(Principal("eve", {"operator"})):
            async with Harness(checkpoints=backend, access=access) as harness:
                assert await harness.runs.prune(older_than=older_than, keep=1, statuses=["running"]) == 0
                assert await harness.runs.prune(older_than=older_than, keep=0) == 0
                assert await row_of(backend) == ({"model_calls": 1}, {"r": {"tokens": most}})
                assert await harness.runs.prune(older_than=older_than, keep=0, statuses=["running"]) == 1
        assert await backend.head("r") is None
        assert await row_of(backend) == ({"model_calls": 1, "tokens": most}, {})


async def test_a_fork_holds_nothing() -> None:
    async with InMemoryBackend() as backend:
        most = await dies_in_a_call(backend, SHARED)
        answers = ScriptedModel("hello", usage=TokenUsage(1, 2))
        async with Harness(checkpoints=backend, budget=SHARED) as harness:
            fork = await harness.fork("r", at=1)
            assert (await harness.resume(fork, asking(answers))).status == "completed"
        assert await row_of(backend) == ({"model_calls": 2, "tokens": 3}, {"r": {"tokens": most}})


async def test_a_run_that_is_stored_at_its_end_only() -> None:
    async with InMemoryBackend() as backend:
        model = ScriptedModel("hello", usage=TokenUsage(1, 2))
        async with Harness(checkpoints=backend, budget=SHARED) as harness:
            assert (await harness.run(asking(model), "hello", durability="exit", run_id="r")).status == "completed"
        entry = await backend.entry("r")
        assert entry is not None
        assert summary_fields(entry.summary)["budgets"] == [["team", "ever"]]
        assert await row_of(backend) == ({"model_calls": 1, "tokens": 3}, {})


async def test_tools_are_counted_by_name() -> None:
    @tool
    async def search(query: str) -> str:
        """Search."""
        return f"nothing about {query}"

    async with InMemoryBackend() as backend:
        model = ScriptedModel(*[FunctionCall(name="search", arguments={"query": "tides"})] * 3, "enough")
        agent = loop(call_model(model, tools=[search]), until=until.no_tool_calls())
        shared = SharedBudget("team", Budget(tool_calls=9, per_tool={"search": 2}))
        async with Harness(checkpoints=backend, budget=shared) as harness:
            result = await harness.run(agent, "hello")
        error = result.error
        assert isinstance(error, errors.BudgetExceeded)
        assert (error.dimension, error.shared, error.settled) == ("per_tool:search", "team", 2)
        assert await row_of(backend) == ({"tool_calls": 2, "per_tool:search": 2}, {})


async def test_parallel_calls_of_a_run_wait_for_each_other() -> None:
    async with InMemoryBackend() as backend:
        model = ScriptedModel(*["hello"] * 3, usage=TokenUsage(5, 5))
        a, b, c = (asking(model).with_options(id=f"ask-{n}") for n in range(3))
        shared = SharedBudget("team", Budget(tokens=100))
        async with Harness(checkpoints=backend, budget=shared) as harness:
            result = await harness.run(parallel(a, b, c), "hello")
        assert result.status == "completed"
        assert await row_of(backend) == ({"tokens": 30}, {})


async def test_a_warning_tells_of_all_runs() -> None:
    async with InMemoryBackend() as backend:
        model = ScriptedModel(*["hello"] * 4, usage=TokenUsage(20, 5))
        shared = SharedBudget("team", Budget(tokens=120, warn_at=0.5))
        warned: list[list[tuple[str, object, object]]] = []
        async with Harness(checkpoints=backend, budget=shared) as harness:
            for _ in range(3):
                async with harness.stream(asking(model), "hello") as stream:
                    found = [event async for event in stream.events if isinstance(event, BudgetWarning)]
                    warned.append([(event.dimension, event.used, event.limit) for event in found])
        assert warned == [[], [], [("tokens", 75, 120)]]


async def test_a_folder_of_files_has_no_shared_budgets(tmp_path: Path) -> None:
    async with Harness(checkpoints=f"files:{tmp_path}", budget=SharedBudget("team", Budget(steps=3))) as harness:
        with pytest.raises(errors.ConfigError, match="a folder of files has no shared budgets") as caught:
            await harness.run(one, 0)
        assert caught.value.code == "budgets"


async def test_a_harness_without_checkpoints_has_no_shared_budgets() -> None:
    async with Harness(budget=SharedBudget("team", Budget(steps=3))) as harness:
        with pytest.raises(errors.ConfigError, match=r"a shared budget without checkpoints= is not valid"):
            await harness.run(one, 0)
    async with Harness() as harness:
        with pytest.raises(errors.ConfigError, match=r"a shared budget without checkpoints= is not valid"):
            await harness.run(one, 0, budget=SharedBudget("team", Budget(steps=3)))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SharedBudget("", Budget(steps=1)), "is not a valid name of a shared budget"),
        (lambda: SharedBudget("a\nb", Budget(steps=1)), "is not a valid name of a shared budget"),
        (lambda: SharedBudget("x" * 257, Budget(steps=1)), "is not a valid name of a shared budget"),
        (lambda: SharedBudget("a", Budget()), "is not a valid budget to share"),
        (lambda: SharedBudget("a", Budget(steps=1, seconds=3)), "a shared budget with seconds= is not valid"),
        (lambda: SharedBudget("a", Budget(steps=1, depth=3)), "a shared budget with depth= is not valid"),
        (lambda: SharedBudget("a", Budget(steps=2, reserve=Budget(steps=1))), "with reserve= is not valid"),
        (lambda: SharedBudget("a", Budget(steps=1), per="week"), "per='week' is not a valid period"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: SharedBudget("a", Budget(cost=10**8)), "is not a valid limit to share"),
    ],
)
def test_arguments_that_are_refused(made: Any, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        made()


def test_a_shared_budget_says_what_it_is() -> None:
    assert repr(SharedBudget("team", Budget(steps=3), per="day")) == "SharedBudget('team', Budget(steps=3), per='day')"


# -- processes


async def test_processes_race_for_one_budget(tmp_path: Path) -> None:
    await race(str(tmp_path / "runs.db"))


@settings(max_examples=examples(50, 20_000))
@given(
    st.sampled_from(["minute", "hour", "day", "month"]),
    st.integers(10**8, 4 * 10**9),
    st.sampled_from([60, 3_600, 86_400, 2_678_400, 40_000_000]),
    st.floats(-1.5, 1.5),
)
def test_a_period_has_ended_when_a_later_one_has_begun(per: Any, taken: int, span: int, share: float) -> None:
    shared, begun = SharedBudget("team", Budget(steps=1), per=per), datetime.fromtimestamp(taken, UTC)
    period = shared.period_at(begun.timestamp())
    # The texts of a kind of periods are in the order of time.
    for moment in (begun + timedelta(seconds=span * share), begun.replace(second=0, microsecond=0), begun):
        assert has_ended(period, moment) == (shared.period_at(moment.timestamp()) > period)
    left = shared.left_of_period(begun.timestamp())
    assert left is not None
    for moment in (begun + timedelta(seconds=left, milliseconds=each) for each in (-1, 1)):
        later = shared.period_at(moment.timestamp()) > period
        assert has_ended(period, moment) == later == (moment > begun + timedelta(seconds=left))


@pytest.mark.parametrize(
    "period",
    ["ever", "", "x", "2026", "2026-1", "2026-13", "2026-02-30", "2026-11-30T24", "\uff12026-11", "9999-12", "-"],
)
def test_what_is_no_period_of_the_calendar_has_not_ended(period: str) -> None:
    assert not has_ended(period, datetime.max.replace(tzinfo=UTC))


PERIODS = [
    "2026-10",
    "2026-11",
    "2026-11-29",
    "2026-11-30",
    "2026-11-30T22",
    "2026-11-30T23",
    "2026-11-30T23:58",
    "ever",
]
"""The last minute of November has begun: of each kind of period one has just ended, and one goes on."""


async def spent(backend: CheckpointBackend, *rows: tuple[str, str], held: int = 0) -> None:
    """Have a run take of rows."""
    taken = [BudgetChange(name, period, {"steps": 1}, {"tokens": held}) for name, period in rows]
    await backend.commit([Transaction("taker", 0, 0, (), acquire=1e6, release=not held, budgets=taken)])


@pytest.mark.parametrize(
    ("ago", "left"),
    [
        (timedelta(0), {"2026-11", "2026-11-30", "2026-11-30T23", "ever"}),
        (timedelta(seconds=10, microseconds=1), {"2026-11", "2026-11-30", "2026-11-30T23", "2026-11-30T23:58", "ever"}),
        (timedelta(days=1), {*PERIODS} - {"2026-10"}),
        (timedelta(days=29, hours=23, minutes=59, seconds=10), {*PERIODS} - {"2026-10"}),
        (timedelta(days=30), {*PERIODS}),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_old_rows_are_pruned(tmp_path: Path, kind: str, ago: timedelta, left: set[str]) -> None:
    # The harness's own clock is not the one that periods go by.
    runtime = VirtualRuntime(start=datetime(2026, 11, 30, 23, 59, 10, tzinfo=UTC))
    sqlite = SqliteBackend(tmp_path / "runs.db", runtime=runtime)
    async with sqlite if kind == "sqlite" else InMemoryBackend(runtime=runtime) as backend:
        await spent(backend, *((name, period) for name in ("a", "b") for period in PERIODS))
        async with Harness(checkpoints=backend, runtime=VirtualRuntime()) as harness:
            assert await harness.runs.prune(keep=0) == 0
            assert len(await harness.runs.budgets()) == 16
            assert await harness.runs.prune(older_than=ago) == 0
            rows = await harness.runs.budgets()
        assert {(row.name, row.period) for row in rows} == {(name, period) for name in ("a", "b") for period in left}


async def test_many_rows_are_pruned_but_none_that_a_run_holds_something_of() -> None:
    async with InMemoryBackend() as backend, Harness(checkpoints=backend) as harness:
        await spent(backend, *(("team", f"2020-01-01T{at // 60:02}:{at % 60:02}") for at in range(250)))
        await spent(backend, ("team", "2020-01"), ("other", "2020-01-01T00:07"), held=5)
        for used, left in ((5, ["other", "team"]), (0, [])):
            await harness.runs.prune(older_than=timedelta(days=1))
            assert [row.name for row in await harness.runs.budgets()] == left
            head = await backend.head("taker")
            assert head is not None
            settled = [BudgetChange(row.name, row.period, {"tokens": used}, {}) for row in await backend.budgets()]
            await backend.commit([Transaction("taker", 0, head.fence, (), budgets=settled)])


async def test_who_may_prune_rows() -> None:
    access = RoleAccess(
        {"member": ACTIONS, "reader": {"read"}, "deleter": {"delete"}, "operator": {"read", "delete"}},
        any_owner={"reader", "deleter", "operator"},
    )
    async with InMemoryBackend() as backend, Harness(checkpoints=backend, access=access) as harness:
        await spent(backend, ("team", "2020-01"))
        for role, rows in (("member", 1), ("reader", 1), ("deleter", 1), ("operator", 0)):
            with acting_as(Principal("ada", {role})):
                assert await harness.runs.prune(older_than=timedelta(days=1)) == 0
            assert len(await backend.budgets()) == rows, role


async def test_a_folder_of_files_is_pruned_without_rows(tmp_path: Path) -> None:
    async with Harness(checkpoints=f"files:{tmp_path}") as harness:
        await harness.run(one, 0)
        assert await harness.runs.prune(older_than=timedelta(0)) == 1


async def test_a_damaged_row_keeps_no_run_from_being_pruned(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend, Harness(checkpoints=backend) as harness:
        await spent(backend, ("team", "2020-01"))
        await harness.run(one, 0)
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE budgets SET crc = crc + 1")
        assert await harness.runs.prune(keep=1) == 0
        with pytest.raises(errors.CorruptRecord, match="shared budget 'team' is damaged"):
            await harness.runs.prune(older_than=timedelta(0))
        assert [info.run_id for info in await harness.runs.list()] == ["taker"]
