"""Children that workers carry out: their ends, their usage, what is set aside for them, and what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import (
    Budget,
    Context,
    Harness,
    Memory,
    call_model,
    each,
    errors,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend, SharedBudget, SqliteBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.context.step import AnyStep, Retry
from noetic_py.core.items import FunctionCall
from noetic_py.journal.stored import Lease, Transaction
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    made = InMemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "runs.db")
    async with made as backend:
        yield backend


@asynccontextmanager
async def working(backend: CheckpointBackend, flow: AnyStep, **options: Any) -> AsyncGenerator[Harness[Memory]]:
    """A harness whose worker carries out the flow, and what it spawns."""
    own = {name: options.pop(name) for name in ("model", "lease", "budget") if name in options}
    harness = Harness(plugins=[], checkpoints=backend, flows={"flow": flow}, **own)
    given: dict[str, Any] = {"queues": ["default", "children"], **options}
    async with harness, anyio.create_task_group() as group:

        async def work() -> None:
            await harness.work(**given)

        group.start_soon(work)
        yield harness
        await harness.shutdown()


class Recording(DelegatingBackend):
    """Notes what is committed."""

    def __init__(self, backend: CheckpointBackend) -> None:
        super().__init__(backend)
        self.commits: list[Sequence[Transaction]] = []

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.commits.append(transactions)
        return await super().commit(transactions)


async def until_true(check: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await check():  # noqa: ASYNC110 # another task works, and says nothing to this one
            await anyio.sleep(0.005)


async def of_flow(harness: Harness[Any], flow: str) -> list[Any]:
    return [each for each in await harness.runs.list() if each.flow == flow]


async def reaches(harness: Harness[Any], flow: str, status: str) -> str:
    """The id of the run of a flow, once it stands so."""

    async def there() -> bool:
        return any(each.status == status for each in await of_flow(harness, flow))

    await until_true(there)
    found: str = (await of_flow(harness, flow))[0].run_id
    return found


async def result(harness: Harness[Any], flow: AnyStep, value: object, **options: Any) -> Any:
    """The result of a flow that a worker carries out."""
    run_id = await harness.submit(flow, value, **options)
    with anyio.fail_after(20):
        return await harness.result(run_id, flow)


@step(version="1")
async def negate(x: int) -> int:
    return -x


@step(version="1")
async def square(x: int) -> int:
    return x * x


@step(version="1")
async def total(values: list[int]) -> int:
    return sum(values)


SUM = sequence(each(square, queue="children"), total, id="sum")


async def test_one_worker_is_enough(store: CheckpointBackend) -> None:
    """A parent that waits holds no worker: else one that takes one run at a time would wait for itself."""
    async with working(store, SUM, concurrency=1) as harness:
        made = await result(harness, SUM, [1, 2, 3, 4])
        assert (made.value, made.steps) == (30, 5)
        children = await of_flow(harness, "square")
        (parent,) = await of_flow(harness, "sum")
        assert [(child.parent, child.status, child.queue) for child in children] == [
            (parent.run_id, "completed", None)
        ] * 4
        assert await store.inbox(parent.run_id) == []


async def test_a_process_that_is_no_worker_waits_for_workers(store: CheckpointBackend) -> None:
    async with working(store, SUM), Harness(plugins=[], checkpoints=store, flows={"flow": SUM}) as front:
        with anyio.fail_after(20):
            made = await front.run(SUM, [3, 4])
        assert (made.value, made.steps) == (25, 3)


async def test_a_child_begins_with_its_parents_request_and_not_before(store: CheckpointBackend) -> None:
    async with Harness(plugins=[], checkpoints=store, flows={"flow": SUM}) as harness:
        run_id = await harness.submit(SUM, [7])
        assert await of_flow(harness, "square") == []
        async with working(store, SUM, queues=["default"]) as other:
            child = await reaches(other, "square", "queued")
            await reaches(other, "sum", "suspended")
            (waits,) = (await other.runs.get(run_id)).pending
            assert (waits.kind, waits.key) == ("run", child)
            with pytest.raises(errors.AnswerInvalid, match="is a run, and takes no answer"):
                await other.runs.answer(waits.answer(1))
        async with working(store, SUM) as last:
            with anyio.fail_after(20):
                assert (await last.result(run_id, SUM)).value == 49


async def test_a_child_begins_in_the_commit_of_the_request_for_it(store: CheckpointBackend) -> None:
    """A parent that is fenced before it leaves no child behind, and none is begun twice."""
    flow = spawn(square, queue="children", id="flow")
    recorded = Recording(store)
    async with working(recorded, flow) as harness:
        made = await result(harness, flow, 3)
    together = [commit for commit in recorded.commits if len(commit) > 1]
    assert [[record.kind for each in commit for record in each.records] for commit in together] == [
        ["Pending", "RunStarted"]
    ]
    assert made.value == 9


async def test_a_child_that_ends_while_its_parent_runs_wakes_it_all_the_same(store: CheckpointBackend) -> None:
    ended, begun = anyio.Event(), anyio.Event()

    @step(version="1")
    async def other(x: int) -> int:
        begun.set()
        await ended.wait()
        return x

    flow = parallel([spawn(square, queue="children"), other], id="both")
    async with working(store, flow) as harness:
        run_id = await harness.submit(flow, 3)
        await begun.wait()
        await reaches(harness, "square", "completed")
        assert (await harness.runs.get(run_id)).status == "running"
        ended.set()
        with anyio.fail_after(20):
            assert (await harness.result(run_id, flow)).value == [9, 3]


@step(version="1")
async def odd(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


@step(version="1")
async def gives_up(x: int, ctx: Context) -> int:
    ctx.abort("not worth it")
    return x


async def test_a_failure_of_a_child_is_its_parents(store: CheckpointBackend) -> None:
    flow = spawn(odd, queue="children", id="flow")
    async with working(store, flow) as harness:
        with pytest.raises(errors.StepFailed, match="2 is even"):
            await result(harness, flow, 2)


async def test_an_abort_of_a_child_is_an_error_of_its_parents(store: CheckpointBackend) -> None:
    flow = spawn(gives_up, queue="children", id="flow")
    async with working(store, flow) as harness:
        with pytest.raises(errors.Aborted, match="not worth it"):
            await result(harness, flow, 2)


async def test_partial_failures(store: CheckpointBackend) -> None:
    flow = settle([spawn(odd, queue="children", id=f"child{i}") for i in range(3)], id="flow")
    async with working(store, flow) as harness:
        found = (await result(harness, flow, 2)).value
        assert [each.ok for each in found] == [False] * 3
        assert "2 is even" in str(found[0].error)


async def test_another_attempt_begins_another_child(store: CheckpointBackend) -> None:
    flow = spawn(odd, queue="children").with_options(retry=Retry(3, initial=0.0))
    async with working(store, flow) as harness:
        with pytest.raises(errors.StepFailed, match="4 is even"):
            await result(harness, flow, 4)
        assert [child.status for child in await of_flow(harness, "odd")] == ["failed"] * 3


async def test_a_child_of_a_child(store: CheckpointBackend) -> None:
    flow = sequence(spawn(SUM, queue="children"), square, id="flow")
    async with working(store, flow, concurrency=1) as harness:
        made = await result(harness, flow, [1, 2])
        assert (made.value, made.steps) == (25, 4)


# ------------------------------------------------------------------------------------------------------------ usage


def of_models(n: int, queue: str | None) -> AnyStep:
    """A flow of children that ask a model and call a step."""
    child = sequence(call_model(id="ask"), id="child")
    budget = Budget(tokens=200, cost="1", steps=9)
    return parallel([spawn(child, queue=queue, budget=budget, id=f"c{i}") for i in range(n)], id="flow")


@pytest.mark.parametrize("n", [1, 3])
async def test_usage_is_as_without_a_queue(store: CheckpointBackend, n: int) -> None:
    limits = Budget(tokens=1_000, cost="5", steps=30)
    async with Harness(plugins=[], model=ScriptedModel(*["fine"] * n)) as plain:
        here = await plain.run(of_models(n, None), "hello", budget=limits)
    flow = of_models(n, "children")
    async with working(store, flow, model=ScriptedModel(*["fine"] * n)) as harness:
        there = await result(harness, flow, "hello", budget=limits)
    for name in ("value", "status", "usage", "cost", "steps", "model_calls"):
        assert getattr(there, name) == getattr(here, name), name


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def looking_up(queue: str | None) -> AnyStep:
    """A child that calls a tool twice."""
    child = loop(call_model(tools=[look_up], id="ask"), until=until.no_tool_calls(), id="child")
    budget = Budget(steps=9, tool_calls=5, per_tool={"look_up": 4})
    return sequence(spawn(child, queue=queue, budget=budget), id="flow")


async def test_tools_of_a_child_are_counted(store: CheckpointBackend) -> None:
    def model() -> ScriptedModel:
        calls = [FunctionCall(name="look_up", arguments='{"word": "sea"}', call_id=f"c{i}") for i in range(2)]
        return ScriptedModel(*calls, "done")

    limits = Budget(steps=9, tool_calls=5, per_tool={"look_up": 4})
    left: list[Any] = []

    @step(version="1")
    async def looks(x: object, ctx: Context) -> int:
        left.append((ctx.budget.used.tool_calls, ctx.budget.steps, ctx.budget.per_tool))
        return 0

    for queue in (None, "children"):
        flow = sequence(looking_up(queue), looks, id="outer")
        async with working(store, flow, model=model()) as harness:
            made = await result(harness, flow, "hello", budget=limits)
            assert (made.steps, made.model_calls) == (4, 3)
    assert left[0] == left[1]
    assert left[0][0] == 2


async def test_what_is_set_aside_is_kept_in_the_budget_of_a_step_around(store: CheckpointBackend) -> None:
    """The next owner knows of children in queues before it begins the step that has the budget."""
    part = each(spawn(square, queue="children", budget=Budget(steps=2)), id="part").with_options(budget=Budget(steps=4))
    flow = sequence(part, total, id="flow")
    async with working(store, flow) as harness:
        made = await result(harness, flow, [1, 2, 3], budget=Budget(steps=10))
        assert (made.value, made.steps) == (14, 4)


async def test_what_is_set_aside_beside_a_step_is_not_kept_in_its_own_budget(store: CheckpointBackend) -> None:
    """The first branch goes on in another process of the run while the child of the second is still at work."""
    went_on = anyio.Event()

    @step(version="1")
    async def work(x: int) -> int:
        if x:
            with anyio.fail_after(15):
                await went_on.wait()
        return x

    @step(version="1")
    async def goes_on(x: int) -> int:
        went_on.set()
        return x + 1

    branch = sequence(spawn(work, queue="children", budget=Budget(steps=2)), goes_on, id="branch")
    flow = each(branch.with_options(budget=Budget(steps=3)), id="flow")
    async with working(store, flow) as harness:
        made = await result(harness, flow, [0, 1], budget=Budget(steps=6))
        assert (made.value, made.steps) == ([1, 2], 4)


@pytest.mark.parametrize(("limit", "then"), [(Budget(steps=6), "budget_exceeded"), (Budget(tool_calls=9), "completed")])
async def test_the_budget_of_a_harness_counts_a_child_once(store: CheckpointBackend, limit: Budget, then: str) -> None:
    """The child is a run of the harness whose worker carries it out, and nothing is left set aside for it."""
    child = Budget(steps=2, tool_calls=1)
    flow = sequence(spawn(square, queue="children", budget=child), negate, id="flow")
    async with working(store, flow, budget=limit) as harness:
        for number in range(3):
            made = await result(harness, flow, number, budget=Budget(steps=3, tool_calls=1))
            assert (made.value, made.steps) == (-number * number, 2)
        assert harness._resources.lease.used()["steps"] == 6
        assert (await harness.run(negate, 1, on_error="result")).status == then


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
async def test_children_use_no_more_than_their_parent_has(n: int, own: int, limit: int) -> None:
    """What is set aside is never more than there is: children wait for others to give back, or are refused."""
    most = at_once = 0

    @step(version="1")
    async def work(x: int) -> int:
        nonlocal most, at_once
        at_once += own
        most = max(most, at_once)
        await anyio.lowlevel.checkpoint()
        at_once -= own
        return x

    flow = each(spawn(work, queue="children", budget=Budget(steps=own)), id="flow")
    async with InMemoryBackend() as backend, working(backend, flow) as harness:
        run_id = await harness.submit(flow, list(range(n)), budget=Budget(steps=limit))
        info = await harness.runs.wait(run_id, timeout=20)
        done = len(await of_flow(harness, "work"))
        # Each uses one step, and the last one that begins needs its whole share.
        fits = n - 1 + own <= limit
        assert info.status == ("completed" if fits else "budget_exceeded")
        assert (most <= limit, done <= limit) == (True, True)
        if fits:
            assert (await harness.result(run_id, flow)).steps == n


async def test_a_child_needs_the_limits_that_its_parent_has(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="children", budget=Budget(steps=2), id="flow")
    async with working(store, flow) as harness:
        with pytest.raises(errors.ConfigError, match="the run's budget limits tokens") as caught:
            await result(harness, flow, 2, budget=Budget(steps=5, tokens=100))
        assert caught.value.code == "spawn"
        assert await of_flow(harness, "square") == []


async def test_a_shared_budget_is_the_childs_too(store: CheckpointBackend) -> None:
    shared = SharedBudget("team", Budget(steps=3))
    async with working(store, SUM) as harness:
        assert (await result(harness, SUM, [1, 2], budget=shared)).value == 5
        (row,) = await harness.runs.budgets(name="team")
        assert (row.used["steps"], dict(row.reserved)) == (3, {})


# ----------------------------------------------------------------------------------------------- time, stops, orphans


async def test_a_child_that_takes_too_long(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="without-workers", timeout=0.2, id="flow")
    async with working(store, flow) as harness:
        with pytest.raises(errors.StepTimeout):
            await result(harness, flow, 2)
        (child,) = await of_flow(harness, "square")
        assert (child.status, child.queue) == ("aborted", None)


def an_endless_step() -> tuple[AnyStep, anyio.Event]:
    """A step that does not end, and the event that says that it has begun."""
    begun = anyio.Event()

    @step(version="1")
    async def endless(x: int) -> int:
        begun.set()
        await anyio.sleep_forever()
        return x

    return endless, begun


async def test_children_of_an_aborted_parent_are_stopped(store: CheckpointBackend) -> None:
    endless, begun = an_endless_step()
    flow = spawn(endless, queue="children", id="flow")
    async with working(store, flow, lease=0.9) as harness:
        run_id = await harness.submit(flow, 1)
        await begun.wait()
        (child,) = [each.run_id for each in await of_flow(harness, "endless")]
        await reaches(harness, "flow", "suspended")
        await harness.runs.abort(run_id, "enough")
        with anyio.fail_after(20):
            assert (await harness.runs.wait(child)).status == "aborted"


async def test_children_of_a_deleted_parent_are_stopped(store: CheckpointBackend) -> None:
    endless, begun = an_endless_step()
    flow = spawn(endless, queue="children", id="flow")
    async with working(store, flow, lease=0.9) as harness:
        run_id = await harness.submit(flow, 1)
        await begun.wait()
        (child,) = [each.run_id for each in await of_flow(harness, "endless")]
        await reaches(harness, "flow", "suspended")
        with pytest.raises(errors.RunBusy):
            await harness.runs.delete(child)
        await harness.runs.delete(run_id)
        with anyio.fail_after(20):
            assert (await harness.runs.wait(child)).status == "aborted"


async def test_a_child_can_be_resumed_and_forked_by_hand_when_its_parent_has_ended(store: CheckpointBackend) -> None:
    fails = True

    @step(version="1")
    async def sometimes(x: int) -> int:
        if fails:
            raise ValueError("not yet")
        # Longer than until its owner has looked at the parent.
        await anyio.sleep(0.3)
        return x

    flow = spawn(sometimes, queue="children", id="flow")
    async with working(store, flow, lease=0.9) as harness:
        run_id = await harness.submit(flow, 1)
        with anyio.fail_after(20):
            assert (await harness.runs.wait(run_id)).status == "failed"
        child = await reaches(harness, "sometimes", "failed")
        fails = False
        fork = await harness.fork(child)
        with anyio.fail_after(20):
            assert (await harness.resume(fork, sometimes)).value == 1
            assert (await harness.resume(child, sometimes, wait=10.0)).value == 1


async def test_a_child_that_is_waited_for_is_not_deleted(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="later", id="flow")
    async with working(store, flow, queues=["default"]) as harness:
        run_id = await harness.submit(flow, 3)
        child = await reaches(harness, "square", "queued")
        await reaches(harness, "flow", "suspended")
        with pytest.raises(errors.RunBusy, match="waits for run"):
            await harness.runs.delete(child)
    async with working(store, flow, queues=["default", "later"]) as last:
        with anyio.fail_after(20):
            assert (await last.result(run_id, flow)).value == 9
        await last.runs.delete(child)


async def test_siblings_of_a_failed_child_are_stopped_and_begun_anew(store: CheckpointBackend) -> None:
    fails = True

    @step(version="1")
    async def sometimes(x: int) -> int:
        if fails:
            raise ValueError("not yet")
        return x

    @step(version="1")
    async def patient(x: int) -> int:
        if fails:
            await anyio.sleep_forever()
        return -x

    flow = parallel([spawn(sometimes, queue="children"), spawn(patient, queue="children")], id="flow")
    async with working(store, flow, lease=0.9) as harness:
        run_id = await harness.submit(flow, 1)
        with anyio.fail_after(20):
            assert (await harness.runs.wait(run_id)).status == "failed"
        await reaches(harness, "patient", "aborted")
        fails = False
        with anyio.fail_after(20):
            assert (await harness.resume(run_id, flow, wait=10.0)).value == [1, -1]
        assert sorted(each.status for each in await of_flow(harness, "patient")) == ["aborted", "completed"]


async def test_a_parent_that_was_shut_down_goes_on_with_its_child(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="later", id="flow")
    run_id = child = ""
    async with (
        Harness(plugins=[], checkpoints=store, flows={"flow": flow}) as front,
        anyio.create_task_group() as group,
    ):
        handle = front.start(flow, 3)
        run_id = handle.run_id
        group.start_soon(handle.result)
        child = await reaches(front, "square", "queued")
        await front.shutdown(timeout=0.05)
    async with working(store, flow, queues=["later"]) as harness:
        with anyio.fail_after(20):
            assert (await harness.resume(run_id, flow)).value == 9
        assert [each.run_id for each in await of_flow(harness, "square")] == [child]


async def test_the_loser_of_a_race_is_stopped(store: CheckpointBackend) -> None:
    endless, _ = an_endless_step()
    flow = race([spawn(square, queue="children"), spawn(endless, queue="children")], id="flow")
    async with working(store, flow, lease=0.9) as harness:
        assert (await result(harness, flow, 3)).value == 9
        await reaches(harness, "endless", "aborted")


async def test_bodies_and_loops_spawn_into_queues(store: CheckpointBackend) -> None:
    child = spawn(square, queue="children")

    @step(version="1")
    async def twice(x: int, ctx: Context) -> int:
        return await child(await child(x, ctx), ctx)

    flow = loop(twice, until=until.custom(lambda snapshot: snapshot.output > 100), id="flow")
    async with working(store, flow) as harness:
        made = await result(harness, flow, 2)
        assert (made.value, made.steps) == (65536, 6)


async def test_so_many_at_once(store: CheckpointBackend) -> None:
    most = 0
    release = anyio.Event()

    @step(version="1")
    async def work(x: int) -> int:
        await release.wait()
        return x

    flow = each(work, queue="children", concurrency=3, id="flow")
    async with working(store, flow, concurrency=20) as harness:
        run_id = await harness.submit(flow, list(range(10)))
        await reaches(harness, "flow", "suspended")
        most = len(await of_flow(harness, "work"))
        release.set()
        with anyio.fail_after(20):
            assert (await harness.result(run_id, flow)).value == list(range(10))
        assert most == 3


# ------------------------------------------------------------------------------------------- what a child begins with


@define
class Tally:
    total: int = 0


@step(version="1")
async def adds(x: int, ctx: Context[Memory, Tally]) -> int:
    ctx.state.total += x
    return ctx.state.total


@pytest.mark.parametrize("state", ["copy", "deepcopy"])
async def test_a_child_has_a_copy_of_the_state(store: CheckpointBackend, state: Any) -> None:
    flow = sequence(spawn(adds, queue="children", state=state), adds, id="flow")
    async with working(store, flow) as harness:
        made = await result(harness, flow, 1, state=Tally(10))
        # The child makes 11 of its copy, and its parent adds these to its own 10.
        assert (made.value, made.state) == (21, Tally(21))


async def test_a_state_that_workers_do_not_know(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="children", id="flow")
    outer = sequence(adds, flow, id="outer")
    async with working(store, outer) as harness:
        with pytest.raises(errors.ConfigError, match="no annotation of the step names it"):
            await result(harness, outer, 1, state=Tally())


async def test_a_child_begins_with_its_parents_conversation(store: CheckpointBackend) -> None:
    model = ScriptedModel("first", "second")
    child = call_model(id="child")
    flow = sequence(call_model(id="one"), spawn(child, queue="children", items="copy"), id="flow")
    async with working(store, flow, model=model) as harness:
        assert (await result(harness, flow, "hello")).value == "second"
    shown = [[item.text for item in request.items if item.type == "message"] for request in model.requests]
    assert shown[1][:2] == ["hello", "first"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "share"}, 'state="share" with queue='),
        ({"items": "share"}, 'items="share" with queue='),
        ({"memory": Memory()}, "memory= with queue="),
        ({"queue": ""}, "not a valid queue"),
        ({"queue": 3}, "not a valid queue"),
        ({"budget": Budget(steps=2, reserve=Budget(steps=1), wrap_up=square)}, "budget= with wrap_up="),
    ],
)
def test_what_a_child_elsewhere_cannot_have(options: Any, message: str) -> None:
    made: Any = spawn
    with pytest.raises(errors.ConfigError, match=message) as caught:
        made(square, **{"queue": "children", **options})
    assert caught.value.code == "spawn"


async def test_a_step_that_no_flow_names(store: CheckpointBackend) -> None:
    flow = spawn(square, queue="children", id="flow")
    async with Harness(plugins=[], checkpoints=store) as harness:
        with pytest.raises(errors.ConfigError, match="workers could not find it") as caught:
            await harness.run(flow, 1)
        assert caught.value.code == "flows"


async def test_a_run_that_is_not_stored() -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(errors.ConfigError, match="not stored") as caught:
            await harness.run(spawn(square, queue="children", id="flow"), 1)
        assert caught.value.code == "no-backend"


async def test_a_backend_without_queues(tmp_path: Path) -> None:
    flow = spawn(square, queue="children", id="flow")
    async with Harness(plugins=[], checkpoints=FileBackend(tmp_path), flows={"flow": flow}) as harness:
        with pytest.raises(errors.ConfigError) as caught:
            await harness.run(flow, 1)
        assert caught.value.code == "queues"
