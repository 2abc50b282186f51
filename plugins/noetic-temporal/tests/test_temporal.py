"""Runs that Temporal has carried out, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from noetic_temporal import answer, scheduled, submit, work
from noetic_temporal.workflow import Standing
from temporal_server import TemporalServer
from temporalio.client import Client, Schedule, ScheduleSpec, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from noetic_py import Ask, Context, Harness, Memory, each, errors, sequence, spawn, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend

pytestmark = pytest.mark.anyio

HEARTBEAT = 2.0
"""Seconds that a worker which was stopped at the wrong moment keeps a workflow waiting."""


@step
async def double(x: int, ctx: Context) -> int:
    return 2 * x


@step
async def buy(item: str, ctx: Context) -> str:
    agreed = await ctx.ask(Ask(f"Buy {item}?", bool))
    return f"bought {item}" if agreed else "kept the money"


@step
async def hurry(item: str, ctx: Context) -> str:
    try:
        return await ctx.ask(Ask("Now?", str, expires=0.5))
    except errors.RequestExpired:
        return f"{item}: too late"


@step
async def naps(name: str, ctx: Context) -> str:
    await ctx.sleep(5.3)
    return f"{name} slept"


@step
async def chats(rounds: int, ctx: Context) -> int:
    return sum([await ctx.ask(Ask(f"number {n}?", int)) for n in range(rounds)])


@step
async def broken(x: int, ctx: Context) -> int:
    raise ValueError("no")


@step
async def gives_up(x: int, ctx: Context) -> None:
    ctx.abort("enough")


@step(replay="repeatable")
async def waits(x: int, ctx: Context) -> int:
    GATE.began.set()
    if not GATE.open:
        await asyncio.sleep(3600)
    return x


class Gate:
    """Whether the step that waits has begun, and whether it may end."""

    def __init__(self) -> None:
        self.close()

    def close(self) -> None:
        self.began, self.open = asyncio.Event(), False


GATE = Gate()
FLOWS = {each.id: each for each in (double, buy, hurry, naps, chats, broken, gives_up, waits)}


@pytest.fixture
async def client(temporal_server: TemporalServer) -> Client:
    return await temporal_server.connect()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    GATE.close()
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        yield backend


def a_harness(store: CheckpointBackend, flows: Mapping[str, Any] = FLOWS) -> Harness[Memory]:
    return Harness(checkpoints=store, plugins=[], flows=flows)


@asynccontextmanager
async def working(
    client: Client, store: CheckpointBackend, flows: Mapping[str, Any], **options: Any
) -> AsyncGenerator[Harness[Memory]]:
    """A worker beside the block, with a harness of its own; cancelled behind it."""
    async with a_harness(store, flows) as harness:
        task = asyncio.create_task(work(client, harness, **options))
        try:
            yield harness
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def some(*names: str) -> Mapping[str, Any]:
    return {name: FLOWS[name] for name in names}


async def until_true(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await check():  # noqa: ASYNC110 # other processes work
            await asyncio.sleep(0.02)


async def asks(client: Client, harness: Harness[Any], run_id: str) -> Any:
    """The request of a run, once its worker has told Temporal that it waits."""

    async def there() -> bool:
        pending = (await harness.runs.get(run_id)).pending
        return bool(pending) and not await activities(client, run_id)

    await until_true(there)
    return (await harness.runs.get(run_id)).pending[0]


async def activities(client: Client, run_id: str) -> int:
    """How many activities of a run are asked for, or go on."""
    described = await client.get_workflow_handle(run_id).describe()
    return len(described.raw_description.pending_activities)


async def status_of(client: Client, run_id: str) -> str:
    async with asyncio.timeout(30):
        found: str = await client.get_workflow_handle(run_id).result()
    return found


async def failure_of(client: Client, run_id: str) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await status_of(client, run_id)
    cause = caught.value.cause
    found = cause if isinstance(cause, ApplicationError) else cause.__cause__
    assert isinstance(found, ApplicationError), cause
    return found


async def test_a_run_to_its_end(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        run_id = await submit(client, front, double, 21, run_id="end", user_id="ada")
        assert run_id == "end"
        waiting = await front.runs.get("end")
        assert (waiting.status, waiting.queue, waiting.user_id) == ("queued", "temporal", "ada")
        # Until its workflow has begun, the same call is taken for the one that was cut short.
        with pytest.raises(errors.RunBusy, match="is there already"):
            await submit(client, front, double, 21, run_id="end")
        async with working(client, store, some("double")):
            assert await status_of(client, "end") == "completed"
            with pytest.raises(errors.RunBusy):
                await submit(client, front, double, 21, run_id="end")
        assert (await front.result("end", double)).value == 42
        assert list(await front.runs.queues()) == []


async def test_a_submit_that_was_cut_short_is_called_again(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        await front.submit(double, 4, run_id="cut", queue="temporal")
        await front.submit(double, 4, run_id="other", queue="default")
        with pytest.raises(errors.RunBusy):
            await submit(client, front, double, 4, run_id="other")
        with pytest.raises(errors.ConfigError) as caught:
            await submit(client, front, double.with_options(id="unknown"), 4)
        assert caught.value.code == "flows"
        assert await submit(client, front, double, 4, run_id="cut") == "cut"
        async with working(client, store, some("double")):
            assert await status_of(client, "cut") == "completed"


async def test_an_approval_across_a_stop_of_all_workers(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        await submit(client, front, buy, "tea", run_id="approval", heartbeat=HEARTBEAT)
        async with working(client, store, some("buy")):
            request = await asks(client, front, "approval")
        # No worker is there.
        handle = client.get_workflow_handle("approval")
        for wrong in ({"value": True}, {"key": request.key, "decision": "maybe"}):
            await handle.signal("answer", [wrong])
        await answer(client, "approval", evolve(request.answer(True), key="another"), request.answer("perhaps"))
        async with working(client, store, some("buy")):

            async def refused() -> bool:
                standing: Standing = await handle.query("standing", result_type=Standing)
                return len(standing.refused) == 3 and standing.requests != [request.key]

            await until_true(refused)
        (request,) = (await front.runs.get("approval")).pending
        assert request.problem is not None
        # As a program in another language sends it.
        await handle.signal("answer", [{"key": request.key, "value": True, "by": "grace"}])
        async with working(client, store, some("buy")):
            assert await status_of(client, "approval") == "completed"
        assert (await front.result("approval", buy)).value == "bought tea"


async def test_an_answer_that_is_in_the_store_already(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("buy")):
        for run_id in ("stored", "completed", "deleted"):
            await submit(client, front, buy, "tea", run_id=run_id)
        requests = [await asks(client, front, run_id) for run_id in ("stored", "completed", "deleted")]
        await front.runs.answer(requests[0].answer(True))
        await front.runs.complete("completed", "by hand")
        await front.runs.delete("deleted")
        for run_id in ("stored", "completed", "deleted"):
            await answer(client, run_id)
        assert [await status_of(client, run_id) for run_id in ("stored", "completed")] == ["completed"] * 2
        assert [(await front.result(run_id, buy)).value for run_id in ("stored", "completed")] == [
            "bought tea",
            "by hand",
        ]
        failure = await failure_of(client, "deleted")
        assert (failure.type, failure.non_retryable) == ("RunNotFound", True)


async def test_waiting_holds_no_worker_and_ends_in_time(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("naps", "hurry"), concurrency=1):
        for number in range(2):
            await submit(client, front, naps, "Ada", run_id=f"naps-{number}")
            await submit(client, front, hurry, "Ada", run_id=f"hurry-{number}")

        async def asleep() -> bool:
            found = [await front.runs.get(f"naps-{number}") for number in range(2)]
            return [each.status for each in found] == ["suspended"] * 2 and not await activities(client, "naps-0")

        await until_true(asleep)
        for number in range(2):
            assert await status_of(client, f"hurry-{number}") == "completed"
            assert await status_of(client, f"naps-{number}") == "completed"
            assert (await front.result(f"hurry-{number}", hurry)).value == "Ada: too late"
            assert (await front.result(f"naps-{number}", naps)).value == "Ada slept"


async def test_a_long_history_is_begun_anew(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("chats")):
        await submit(client, front, chats, 12, run_id="chat")
        first = (await client.get_workflow_handle("chat").describe()).run_id
        known: set[str] = set()

        async def asked() -> bool:
            found = (await front.runs.get("chat")).pending
            return bool(found) and found[0].key not in known

        for _ in range(12):
            await until_true(asked)
            (request,) = (await front.runs.get("chat")).pending
            known.add(request.key)
            await answer(client, "chat", request.answer(1))
        assert await status_of(client, "chat") == "completed"
        assert (await front.result("chat", chats)).value == 12
        assert (await client.get_workflow_handle("chat").describe()).run_id != first


async def test_how_a_run_ends_is_how_its_workflow_ends(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("broken", "gives_up")):
        await submit(client, front, broken, 1, run_id="broken")
        failure = await failure_of(client, "broken")
        assert failure.type == "RunFailed"
        assert "ValueError: no" in str(failure)
        await submit(client, front, gives_up, 1, run_id="aborted")
        assert await status_of(client, "aborted") == "aborted"


async def test_a_workflow_that_is_cancelled_ends_its_run(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("waits", "buy")):
        await submit(client, front, waits, 1, run_id="goes-on")
        await asyncio.wait_for(GATE.began.wait(), 30)
        await submit(client, front, buy, "tea", run_id="suspended")
        await asks(client, front, "suspended")
        GATE.began.clear()
        for run_id in ("goes-on", "suspended"):
            await client.get_workflow_handle(run_id).cancel()
            with pytest.raises(WorkflowFailureError) as caught:
                await status_of(client, run_id)
            assert isinstance(caught.value.cause, CancelledError)
            info = await front.runs.get(run_id)
            assert (info.status, info.alive, info.queue) == ("aborted", False, None)
        # The step that was cut off did not begin again to be stopped.
        assert not GATE.began.is_set()


async def test_a_worker_that_stops_hands_its_runs_over(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        await submit(client, front, waits, 7, run_id="handed-over", heartbeat=HEARTBEAT)
        for number in range(3):
            # Its runs are interrupted by the shutdown, or cut off with the worker; neither is a death.
            async with working(client, store, some("waits"), lives=1) as harness:
                await asyncio.wait_for(GATE.began.wait(), 30)
                GATE.began.clear()
                if number == 1:
                    await harness.shutdown(timeout=0.01)
                    assert (await front.runs.get("handed-over")).shutdown
        GATE.open = True
        async with working(client, store, some("waits"), lives=1):
            assert await status_of(client, "handed-over") == "completed"
        assert (await front.result("handed-over", waits)).value == 7


async def test_runs_of_other_code_are_left_alone(client: Client, store: CheckpointBackend) -> None:
    @step(id="double")
    async def changed(x: int, ctx: Context) -> int:
        return 3 * x

    async with a_harness(store) as front, a_harness(store, {"double": changed}) as newer:
        await submit(client, front, double, 2, run_id="old")
        await submit(client, newer, changed, 2, run_id="new")
        async with working(client, store, {"double": changed}):
            assert await status_of(client, "new") == "completed"
        assert (await front.runs.get("old")).status == "queued"
        async with working(client, store, some("double")):
            assert await status_of(client, "old") == "completed"
        assert ((await front.result("old", double)).value, (await newer.result("new", changed)).value) == (4, 6)
    async with a_harness(store, {}) as empty:
        with pytest.raises(errors.ConfigError) as caught:
            await work(client, empty)
        assert caught.value.code == "flows"


@step
async def total(values: list[Any], ctx: Context) -> str:
    return ", ".join(map(str, values))


@step
async def stuck(x: int, ctx: Context) -> str:
    try:
        return await spawn(buy, queue="temporal", timeout=0.5)("tea", ctx)
    except errors.StepTimeout:
        return "too late"


FAMILY: Mapping[str, Any] = {
    "doubles": sequence(each(double, queue="temporal"), total, id="doubles"),
    "in turn": sequence(each(double, queue="temporal", concurrency=1), total, id="in-turn"),
    "elsewhere": sequence(each(double, queue="children"), total, id="elsewhere"),
    "asks": sequence(spawn(buy, queue="temporal"), id="asks"),
    "fails": sequence(spawn(broken, queue="temporal"), id="fails"),
    "stuck": stuck,
    "family": sequence(spawn(sequence(spawn(double, queue="temporal"), id="inner"), queue="temporal"), id="family"),
}


async def child_of(harness: Harness[Any], run_id: str) -> str:
    """The child of a run, once there is one."""

    async def there() -> bool:
        return any(each.parent == run_id for each in await harness.runs.list())

    await until_true(there)
    return next(each.run_id for each in await harness.runs.list() if each.parent == run_id)


async def test_children_are_workflows_of_their_own(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store, FAMILY) as front, working(client, store, FAMILY, concurrency=2):
        await submit(client, front, FAMILY["doubles"], [1, 2, 3], run_id="doubles")
        assert await status_of(client, "doubles") == "completed"
        assert (await front.result("doubles", FAMILY["doubles"])).value == "2, 4, 6"
        children = [each.run_id for each in await front.runs.list() if each.parent == "doubles"]
        assert [await status_of(client, run_id) for run_id in children] == ["completed"] * 3
        # Their ends wake the parent: it has looked at nothing by a timer.
        history = await client.get_workflow_handle("doubles").fetch_history()
        assert [each.event_type for each in history.events if each.HasField("timer_started_event_attributes")] == []
        await submit(client, front, FAMILY["family"], 4, run_id="family")
        assert await status_of(client, "family") == "completed"
        assert (await front.result("family", FAMILY["family"])).value == 8


async def test_a_parent_whose_history_is_begun_anew_keeps_its_children(
    client: Client, store: CheckpointBackend
) -> None:
    async with a_harness(store, FAMILY) as front, working(client, store, FAMILY):
        await submit(client, front, FAMILY["in turn"], [*range(8)], run_id="many")
        first = (await client.get_workflow_handle("many").describe()).run_id
        assert await status_of(client, "many") == "completed"
        assert (await client.get_workflow_handle("many").describe()).run_id != first
        children = [each.run_id for each in await front.runs.list() if each.parent == "many"]
        assert [await status_of(client, run_id) for run_id in children] == ["completed"] * 8


async def test_how_a_child_ends_is_how_its_parent_goes_on(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store, FAMILY) as front, working(client, store, FAMILY):
        await submit(client, front, FAMILY["fails"], 1, run_id="fails")
        await submit(client, front, FAMILY["asks"], "tea", run_id="asks")
        await submit(client, front, stuck, 1, run_id="stuck")
        child = await child_of(front, "asks")
        await answer(client, child, (await asks(client, front, child)).answer(True))
        assert await status_of(client, "asks") == "completed"
        assert (await front.result("asks", FAMILY["asks"])).value == "bought tea"
        failure = await failure_of(client, "fails")
        assert failure.type == "RunFailed"
        assert "ValueError: no" in str(failure)
        # Its child waits for an answer, and its workflow is ended with it.
        assert await status_of(client, "stuck") == "completed"
        assert (await front.result("stuck", stuck)).value == "too late"
        child = await child_of(front, "stuck")
        with suppress(WorkflowFailureError):
            assert await status_of(client, child) == "aborted"
        assert (await front.runs.get(child)).status == "aborted"


async def test_a_cancelled_parent_ends_its_child(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store, FAMILY) as front, working(client, store, FAMILY):
        await submit(client, front, FAMILY["asks"], "tea", run_id="parent")
        child = await child_of(front, "parent")
        await asks(client, front, child)
        await client.get_workflow_handle("parent").cancel()
        for run_id in ("parent", child):
            with pytest.raises(WorkflowFailureError) as caught:
                await status_of(client, run_id)
            assert isinstance(caught.value.cause, CancelledError)
            assert (await front.runs.get(run_id)).status == "aborted"


async def test_a_child_that_no_worker_may_have_is_aborted_for_its_parent(
    client: Client, store: CheckpointBackend
) -> None:
    async with a_harness(store, FAMILY) as front:
        await submit(client, front, FAMILY["asks"], "tea", run_id="given-up", heartbeat=HEARTBEAT)
        async with working(client, store, FAMILY):
            child = await child_of(front, "given-up")
            request = await asks(client, front, child)
        await answer(client, child, request.answer(True))
        # One death would be too many, so none of these begins anything.
        async with working(client, store, FAMILY, lives=0):
            assert await status_of(client, child) == "aborted"
            assert (await front.runs.get(child)).status == "aborted"
            failure = await failure_of(client, "given-up")
            assert failure.type == "WorkersDied"
        with pytest.raises(errors.Aborted, match="0 workers in a row have died"):
            await front.resume("given-up", FAMILY["asks"])


async def test_children_of_other_queues_are_left_to_the_workers_of_the_library(
    client: Client, store: CheckpointBackend
) -> None:
    async with a_harness(store, FAMILY) as front, working(client, store, FAMILY):
        await submit(client, front, FAMILY["elsewhere"], [1, 2], run_id="elsewhere")
        async with a_harness(store, FAMILY) as other, asyncio.TaskGroup() as group:
            group.create_task(other.work(["children"]))
            assert await status_of(client, "elsewhere") == "completed"
            await other.shutdown()
        assert (await front.result("elsewhere", FAMILY["elsewhere"])).value == "2, 4"


async def test_a_schedule_begins_runs(client: Client, store: CheckpointBackend) -> None:
    async with a_harness(store) as front, working(client, store, some("double")):
        schedule = Schedule(scheduled(front, double, 21, run_id="nightly"), ScheduleSpec())
        handle = await client.create_schedule("nightly", schedule)
        await handle.trigger()

        async def completed() -> bool:
            return [each.status for each in await front.runs.list()] == ["completed"]

        await until_true(completed)
        await handle.delete()
        (info,) = await front.runs.list()
        assert info.run_id.startswith("nightly-2")
        assert await status_of(client, info.run_id) == "completed"
        assert (await front.result(info.run_id, double)).value == 42
