"""Runs that workers carry out: submitted once, carried out once, handed over, woken, and given up in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import Ask, Budget, Context, Harness, Memory, Retry, errors, sequence, step
from noetic_py.checkpoints import CheckpointBackend, Claim, InMemoryBackend, Lease, Record, SqliteBackend, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.core.runtime import Runtime
from noetic_py.journal.records import RunEnded
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    made = InMemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "runs.db")
    async with made as backend:
        yield backend


@define
class Tally:
    total: int = 0


@step
async def double(x: int, ctx: Context) -> int:
    return 2 * x


@step
async def count(x: int, ctx: Context[Memory, Tally]) -> int:
    ctx.state.total += x
    return ctx.state.total


@step
async def buy(item: str, ctx: Context) -> str:
    agreed = await ctx.ask(Ask(f"Buy {item}?", bool))
    return f"bought {item}" if agreed else "kept the money"


@step
async def broken(x: int, ctx: Context) -> int:
    raise ValueError("no")


@step
async def wrap_up(x: object, ctx: Context) -> int:
    return 0


WRAPPED_UP = Budget(steps=5, reserve=Budget(steps=1), wrap_up=wrap_up)
FLOWS = {"double": double, "count": count, "buy": buy, "broken": broken}


def a_harness(backend: CheckpointBackend, **options: Any) -> Harness[Memory]:
    given: dict[str, Any] = {"flows": FLOWS, **options}
    return Harness(plugins=[], checkpoints=backend, **given)


async def until_true(check: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await check():  # noqa: ASYNC110 # another task works, and says nothing to this one
            await anyio.sleep(0.005)


async def reaches(harness: Harness[Any], run_id: str, *statuses: str) -> None:
    async def there() -> bool:
        return (await harness.runs.get(run_id)).status in statuses

    await until_true(there)


class Still(Runtime):
    """A clock by which no pause ever ends."""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep_forever()


async def test_who_waits_for_a_run_of_its_own_worker_learns_of_its_end_without_a_poll(store: CheckpointBackend) -> None:
    async with a_harness(store, runtime=Still()) as harness, anyio.create_task_group() as group:
        group.start_soon(harness.work)
        with anyio.fail_after(10):
            assert (await harness.result(await harness.submit(double, 21), double)).value == 42
            assert (await harness.runs.wait(await harness.submit(buy, "tea"))).status == "suspended"
        group.cancel_scope.cancel()


class Notifying(DelegatingBackend):
    """A store that notifies when a test wants it, or that cannot be listened to."""

    def __init__(self, inner: CheckpointBackend, *, away: bool = False) -> None:
        super().__init__(inner)
        self.away = away
        self.waits = anyio.Event()
        self.ready = anyio.Event()

    async def wait_for_runs(self, queues: Sequence[str], *, timeout: float) -> bool:
        self.waits.set()
        if self.away:
            raise errors.StoreUnavailable("away", where="away", reason="lost", hint="wait")
        self.ready = anyio.Event()
        await self.ready.wait()
        return True


async def test_a_notification_ends_the_pause_of_a_worker(store: CheckpointBackend) -> None:
    notifying = Notifying(store)
    async with (
        a_harness(notifying, runtime=Still()) as worker,
        a_harness(store) as front,
        anyio.create_task_group() as group,
    ):
        group.start_soon(worker.work)
        await notifying.waits.wait()
        run_id = await front.submit(double, 21)
        notifying.ready.set()
        with anyio.fail_after(20):
            assert (await front.result(run_id, double)).value == 42
        group.cancel_scope.cancel()


@pytest.mark.parametrize("away", [False, True])
async def test_a_worker_polls_without_a_notification(away: bool) -> None:
    runtime = VirtualRuntime()
    store = InMemoryBackend(runtime=runtime)
    notifying = Notifying(store, away=away)
    async with (
        a_harness(notifying, runtime=runtime) as worker,
        a_harness(store, runtime=runtime) as front,
        anyio.create_task_group() as group,
    ):
        group.start_soon(worker.work)
        await notifying.waits.wait()
        run_id = await front.submit(double, 21)
        while (await front.runs.get(run_id)).status != "completed":
            await runtime.advance(0.5)
        group.cancel_scope.cancel()


async def is_empty(backend: CheckpointBackend) -> bool:
    return not await backend.queues()


@asynccontextmanager
async def working(backend: CheckpointBackend, flows: Mapping[str, Any] = FLOWS, **options: Any) -> AsyncGenerator[None]:
    """A worker beside the block, in a harness of its own, which is shut down behind it."""
    async with a_harness(backend, flows=flows) as harness, anyio.create_task_group() as group:

        async def work() -> None:
            await harness.work(**options)

        group.start_soon(work)
        yield
        await harness.shutdown()


async def test_a_submitted_run_is_carried_out_by_another_harness(store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        run_id = await front.submit(double, 21, user_id="ada", metadata={"order": 7}, budget=Budget(steps=5))
        waiting = await front.runs.get(run_id)
        assert (waiting.status, waiting.alive, waiting.queue, waiting.user_id) == ("queued", False, "default", "ada")
        async with working(store):
            await reaches(front, run_id, "completed")
        result = await front.resume(run_id, double)
        assert (result.value, result.status) == (42, "completed")
        assert (await front.runs.get(run_id)).queue is None
        assert await is_empty(store)


async def test_waiting_for_a_run_of_any_process(store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        run_id, asking = await front.submit(double, 1), await front.submit(buy, "tea")
        broke = await front.submit(broken, 1)
        assert (await front.runs.wait(run_id, timeout=0.01)).status == "queued"
        async with working(store):
            with anyio.fail_after(20):
                found = [await front.runs.wait(each) for each in (run_id, asking, broke)]
        assert [each.status for each in found] == ["completed", "suspended", "failed"]
        assert len(found[1].pending) == 1
        assert [each.queue for each in await front.runs.queues()] == ["default"]
        with pytest.raises(errors.RunNotFound):
            await front.runs.wait("none")
        wrong: Any
        for wrong in ("3", -1.0, float("nan")):
            with pytest.raises(errors.ConfigError, match="is not a number of seconds"):
                await front.runs.wait(run_id, timeout=wrong)


async def test_the_result_of_a_run_that_a_worker_carries_out(store: CheckpointBackend) -> None:
    counted = 0

    @step
    async def counts(x: int, ctx: Context[Memory, Tally]) -> int:
        nonlocal counted
        counted += 1
        ctx.state.total = x
        return 2 * x

    flows = {"counts": counts, "buy": buy, "broken": broken}
    async with a_harness(store, flows=flows) as front:
        run_id = await front.submit(counts, 21, state=Tally())
        asking, broke = await front.submit(buy, "tea"), await front.submit(broken, 1)
        over = await front.submit(counts, 4, state=Tally(), at=HOUR)
        await front.runs.abort(over, "no budget")
        found: list[int] = []

        async def read() -> None:
            found.append((await front.result(run_id, counts, state_type=Tally)).value)

        async with working(store, flows):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(read)
            result = await front.result(run_id, counts, state_type=Tally)
            with pytest.raises(errors.StepFailed, match="ValueError: no"):
                await front.result(broke, broken)
            with pytest.raises(errors.Suspended, match="waits for an answer"):
                await front.result(asking, buy)
        assert (result.value, result.state, result.steps, found) == (42, Tally(21), 1, [42, 42, 42])
        # Nothing was written, and no body has begun again.
        assert (await front.runs.get(run_id)).position == result.checkpoint.position
        assert (await front.runs.get(broke)).status == "failed"
        assert counted == 1
        with pytest.raises(errors.RunOver):
            await front.runs.abort(run_id, "late")
        stopped = await front.result(over, counts, state_type=Tally)
        assert (stopped.status, stopped.reason) == ("aborted", "no budget")
        with pytest.raises(errors.RunNotFound):
            await front.result("none", buy)
        with pytest.raises(errors.ReplayDiverged):
            await front.result(run_id, buy)


async def test_a_result_is_read_while_another_process_reads_it(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = (await harness.run(buy, "tea")).run_id
        await harness.runs.complete(run_id, "sold out")
        lease = await store.acquire(run_id, ttl=30.0)
        # A value from outside: the step that asks has no output of its own.
        assert (await harness.result(run_id, buy)).value == "sold out"
        await store.release(lease)


async def test_waiting_goes_on_while_a_run_is_handed_over(store: CheckpointBackend) -> None:
    began = anyio.Event()

    @step(replay="repeatable")
    async def slow(x: int, ctx: Context) -> int:
        if not began.is_set():
            began.set()
            await anyio.sleep_forever()
        return x

    flows = {"slow": slow}
    async with a_harness(store, flows=flows) as front, a_harness(store, flows=flows) as old:
        run_id = await front.submit(slow, 5)
        seen: list[str] = []

        async def wait() -> None:
            seen.append((await front.runs.wait(run_id)).status)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(old.work)
            await began.wait()
            await old.shutdown(timeout=0.001)
            assert (await front.runs.get(run_id)).status == "interrupted"
            async with working(store, flows):
                await reaches(front, run_id, "completed")
        assert seen == ["completed"]


async def test_a_state_is_stored_with_the_run(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = await harness.submit(count, 2, state=Tally(40))
        async with working(store):
            await reaches(harness, run_id, "completed")
        result = await harness.resume(run_id, count, state_type=Tally)
        assert (result.value, result.state) == (42, Tally(42))


async def test_a_run_that_waits_holds_no_worker(store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        runs = [await front.submit(buy, item) for item in ("tea", "milk", "rice")]
        async with working(store, concurrency=1):
            for run_id in runs:
                await reaches(front, run_id, "suspended")
            (stats,) = await store.queues()
            assert (stats.ready, stats.owned, stats.waiting) == (0, 0, 3)
            for run_id in runs:
                (request,) = (await front.runs.get(run_id)).pending
                await front.runs.answer(request.answer(True))
            for run_id in runs:
                await reaches(front, run_id, "completed")
        assert [(await front.resume(run_id, buy)).value for run_id in runs] == [
            "bought tea",
            "bought milk",
            "bought rice",
        ]
        assert await is_empty(store)


async def test_an_answer_while_no_worker_is_there(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = await harness.submit(buy, "tea")
        async with working(store):
            await reaches(harness, run_id, "suspended")
    async with a_harness(store) as front:
        (request,) = (await front.runs.get(run_id)).pending
        await front.runs.answer(request.answer(False))
        (stats,) = await store.queues()
        assert (stats.ready, stats.waiting) == (1, 0)
        async with working(store):
            await reaches(front, run_id, "completed")
        assert (await front.resume(run_id, buy)).value == "kept the money"


async def test_a_run_that_was_answered_is_waited_for(store: CheckpointBackend) -> None:
    async with a_harness(store) as front:
        run_id = await front.submit(buy, "tea")
        async with working(store):
            (request,) = (await front.runs.wait(run_id)).pending
        await front.runs.answer(request.answer(True))
        with anyio.fail_after(20):
            # Until a worker claims it, it is as it was left.
            assert (await front.runs.wait(run_id, timeout=0.05)).status == "suspended"
            async with working(store):
                assert (await front.runs.wait(run_id)).status == "completed"


async def test_a_run_that_breaks_has_failed_and_leaves_the_queue(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = await harness.submit(broken, 1)
        async with working(store):
            await reaches(harness, run_id, "failed")
        assert await is_empty(store)
        with pytest.raises(errors.StepFailed, match="no"):
            await harness.resume(run_id, broken)


async def test_a_shutdown_hands_runs_over_at_once(store: CheckpointBackend) -> None:
    began, calls = anyio.Event(), list[str]()

    @step
    async def first(x: int, ctx: Context) -> int:
        calls.append("first")
        return x + 1

    @step(replay="repeatable")
    async def second(x: int, ctx: Context) -> int:
        calls.append("second")
        if len(calls) == 2:
            began.set()
            await anyio.sleep_forever()
        return x * 10

    flows = {"flow": sequence(first, second, id="flow")}
    async with a_harness(store, flows=flows) as old, a_harness(store, flows=flows) as new:
        run_id = await old.submit(flows["flow"], 1)
        async with anyio.create_task_group() as group:
            group.start_soon(old.work)
            await began.wait()
            await old.shutdown(timeout=0.001)
        assert (await new.runs.get(run_id)).shutdown
        async with working(store, flows):
            await reaches(new, run_id, "completed")
        assert (await new.resume(run_id, flows["flow"])).value == 20
        assert calls == ["first", "second", "second"]


async def test_a_worker_that_is_cancelled_leaves_its_runs_to_others(store: CheckpointBackend) -> None:
    began = anyio.Event()

    @step(replay="repeatable")
    async def slow(x: int, ctx: Context) -> int:
        if not began.is_set():
            began.set()
            await anyio.sleep_forever()
        return x

    async with a_harness(store, flows={"slow": slow}) as harness, a_harness(store, flows={"slow": slow}) as other:
        run_id = await harness.submit(slow, 5)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            await began.wait()
            group.cancel_scope.cancel()
        async with working(store, {"slow": slow}):
            await reaches(other, run_id, "completed")
        assert (await other.resume(run_id, slow)).value == 5


async def test_a_worker_leaves_runs_whose_code_it_has_not(store: CheckpointBackend) -> None:
    @step(id="double")
    async def other(x: int, ctx: Context) -> int:
        return 3 * x

    async with a_harness(store, flows={"double": other}) as old, a_harness(store) as new:
        run_id = await new.submit(double, 1)
        mine = await old.submit(other, 1)
        async with working(store, {"double": other}):
            await reaches(old, mine, "completed")
            assert (await old.runs.get(run_id)).status == "queued"
        async with working(store):
            await reaches(new, run_id, "completed")


async def test_the_code_of_steps_that_a_body_calls_counts_too(store: CheckpointBackend) -> None:
    def made(factor: int) -> Any:
        @step(version=str(factor))
        async def inner(x: int, ctx: Context) -> int:
            return factor * x

        @step
        async def outer(x: int, ctx: Context) -> int:
            return await inner(x, ctx)

        return outer

    old, new = made(2), made(3)
    async with a_harness(store, flows={"outer": old}) as front:
        run_id = await front.submit(old, 1)
        async with working(store, {"outer": new}), a_harness(store, flows={"outer": new}) as other:
            await reaches(front, await other.submit(new, 1), "completed")
            assert (await front.runs.get(run_id)).status == "queued"
        async with working(store, {"outer": old}):
            await reaches(front, run_id, "completed")
        assert (await front.resume(run_id, old)).value == 2


async def test_at_most_so_many_at_once(store: CheckpointBackend) -> None:
    now, most = 0, 0

    @step
    async def busy(x: int, ctx: Context) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.01)
        now -= 1
        return x

    async with a_harness(store, flows={"busy": busy}) as harness:
        runs = [await harness.submit(busy, n) for n in range(9)]
        async with working(store, {"busy": busy}, concurrency=3):
            for run_id in runs:
                await reaches(harness, run_id, "completed")
        assert most == 3


async def test_priorities_and_queues() -> None:
    order: list[int] = []

    @step
    async def note(x: int, ctx: Context) -> int:
        order.append(x)
        return x

    store = InMemoryBackend()
    async with a_harness(store, flows={"note": note}) as harness:
        for number, priority in [(1, 0), (2, 5), (3, -1), (4, 0)]:
            await harness.submit(note, number, priority=priority)
        other = await harness.submit(note, 9, queue="other")
        async with working(store, {"note": note}, concurrency=1):
            await until_true(lambda: _is(order, 4))
        assert order == [2, 1, 4, 3]
        assert (await harness.runs.get(other)).status == "queued"


async def _is(found: Sequence[object], size: int) -> bool:
    return len(found) == size


@pytest.mark.parametrize("absolute", [False, True])
async def test_a_run_begins_at_its_time(absolute: bool) -> None:
    runtime = VirtualRuntime()
    store = InMemoryBackend(runtime=runtime)
    delay = timedelta(minutes=2)
    when = runtime.now() + delay if absolute else delay
    async with a_harness(store, runtime=runtime) as harness:
        run_id = await harness.submit(double, 1, at=when)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            await runtime.advance(115.0)
            assert (await harness.runs.get(run_id)).status == "queued"
            while (await harness.runs.get(run_id)).status != "completed":
                await runtime.advance(5.0)
            await harness.shutdown()


async def test_a_request_expires_without_an_answer() -> None:
    runtime = VirtualRuntime()
    store = InMemoryBackend(runtime=runtime)

    @step
    async def asks(x: int, ctx: Context) -> str:
        try:
            return str(await ctx.ask(Ask("Well?", str, expires=60.0)))
        except errors.RequestExpired:
            return "no answer"

    async with a_harness(store, flows={"asks": asks}, runtime=runtime) as harness:
        run_id = await harness.submit(asks, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            while (await harness.runs.get(run_id)).status != "suspended":
                await runtime.advance(1.0)
            while (await harness.runs.get(run_id)).status != "completed":
                await runtime.advance(5.0)
            await harness.shutdown()
    async with a_harness(store, flows={"asks": asks}, runtime=runtime) as harness:
        assert (await harness.resume(run_id, asks)).value == "no answer"


async def test_a_run_that_kills_its_workers_fails_in_the_end(store: CheckpointBackend) -> None:
    class Dying(DelegatingBackend):
        """Claims of workers that die with the run: nothing of it is ever given up."""

        async def claim(self, queues: Sequence[str], **options: Any) -> Sequence[Claim]:
            claims = await super().claim(queues, **options)
            return [Claim(each.lease, each.queued, each.lives + 3, each.now) for each in claims]

    async with a_harness(store) as harness:
        run_id = await harness.submit(double, 21)
        async with working(Dying(store), lives=3):
            await reaches(harness, run_id, "failed")
        assert await is_empty(store)
        (last,) = [each for each in await harness.runs.journal(run_id) if type(each).__name__ == "RunEnded"]
        assert "3 workers in a row have died while they had the run" in str(last)
        # It was not the run's fault: by hand it goes on.
        assert (await harness.resume(run_id, double)).value == 42


async def test_a_store_that_cannot_be_reached_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Away(DelegatingBackend):
        tries = 0

        async def claim(self, queues: Sequence[str], **options: Any) -> Sequence[Claim]:
            self.tries += 1
            if self.tries < 3:
                raise errors.StoreUnavailable("it is away", where="x", reason="unreachable", hint="wait")
            return await super().claim(queues, **options)

    runtime = VirtualRuntime()
    store = Away(InMemoryBackend(runtime=runtime))
    async with a_harness(store, runtime=runtime) as harness:
        run_id = await harness.submit(double, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            while (await harness.runs.get(run_id)).status != "completed":
                await runtime.advance(1.0)
            await harness.shutdown()
    assert caplog.text.count("no runs can be claimed") == 2


async def test_a_run_that_cannot_be_read_does_not_keep_a_worker_busy(caplog: pytest.LogCaptureFixture) -> None:
    class Damaged(DelegatingBackend):
        async def read(self, run_id: str, **options: Any) -> Sequence[Record]:
            if run_id == "damaged":
                raise errors.CorruptRecord("it is damaged", hint="restore it")
            return await super().read(run_id, **options)

    runtime = VirtualRuntime()
    store = InMemoryBackend(runtime=runtime)
    async with a_harness(store, runtime=runtime) as harness:
        await harness.submit(double, 1, run_id="damaged", priority=1)
        whole = await harness.submit(double, 2)
        async with a_harness(Damaged(store), runtime=runtime) as worker, anyio.create_task_group() as group:
            group.start_soon(partial(worker.work, concurrency=1))
            with anyio.fail_after(20):
                while (await harness.runs.get(whole)).status != "completed":
                    await runtime.advance(1.0)
            for _ in range(20):
                await runtime.advance(1.0)
            await worker.shutdown()
        assert 1 <= caplog.text.count("run damaged is left to other workers: it is damaged") <= 5
        info = await harness.runs.get("damaged")
        assert (info.status, info.alive) == ("queued", False)


async def test_a_worker_of_a_harness_that_is_shut_down_ends_at_once(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = await harness.submit(double, 1)
        await harness.shutdown()
        with anyio.fail_after(20):
            await harness.work()
        assert (await harness.runs.get(run_id)).status == "queued"


async def test_a_stop_of_a_queued_run(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        done = await harness.submit(double, 1)
        assert (await harness.runs.complete(done, 7)).status == "completed"
        assert await is_empty(store)
        wrapped = await harness.submit(buy, "tea")
        await harness.runs.wrap_up(wrapped, "enough")
        async with working(store):
            await reaches(harness, wrapped, "completed", "interrupted", "aborted")
            await until_true(lambda: is_empty(store))


async def test_a_run_by_hand_is_left_alone_and_leaves_the_queue(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        run_id = await harness.submit(double, 4)
        later = await harness.submit(double, 5, at=HOUR)
        for each, value in ((run_id, 8), (later, 10)):
            assert (await harness.resume(each, double)).value == value
            assert (await harness.runs.get(each)).queue is None
        assert await is_empty(store)
        async with working(store):
            pass
        assert (await harness.runs.get(run_id)).status == "completed"


async def test_a_run_id_is_submitted_once(store: CheckpointBackend) -> None:
    async with a_harness(store) as harness:
        assert await harness.submit(double, 4, run_id="order-7") == "order-7"
        with pytest.raises(errors.RunBusy):
            await harness.submit(double, 5, run_id="order-7")
        async with working(store):
            await reaches(harness, "order-7", "completed")
            # Also when it has had an owner.
            with pytest.raises(errors.RunBusy):
                await harness.submit(double, 6, run_id="order-7")
        assert (await harness.resume("order-7", double)).value == 8


class SlowToTell(DelegatingBackend):
    """A store that says that a run was submitted only once a worker has ended it."""

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        leases = await super().commit(transactions)
        for each in transactions:
            if each.queued is not None and not each.expected_position:
                await until_true(partial(self._has_ended, each.run_id))
        return leases

    async def _has_ended(self, run_id: str) -> bool:
        entry = await self.entry(run_id)
        return entry is not None and entry.status == "completed"


async def test_a_worker_of_the_same_harness_is_faster_than_the_answer_of_the_store(
    store: CheckpointBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_harness(SlowToTell(store)) as harness, anyio.create_task_group() as group:
        group.start_soon(harness.work)
        run_id = await harness.submit(double, 21)
        assert (await harness.runs.get(run_id)).status == "completed"
        await harness.shutdown()
    assert not caplog.messages


async def test_what_cannot_be_submitted(store: CheckpointBackend, tmp_path: Path) -> None:
    @step
    async def unknown(x: int, ctx: Context) -> int:
        return x

    async with a_harness(store) as harness:
        submit: Any = harness.submit
        work: Any = harness.work
        refused: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("flows", lambda: submit(unknown, 1)),
            ("submit", lambda: submit(double, 1, at=datetime(2030, 1, 1))),  # noqa: DTZ001
            ("submit", lambda: submit(double, 1, at=3600.0)),
            ("submit", lambda: submit(double, 1, priority="high")),
            ("submit", lambda: submit(double, 1, priority=1.5)),
            ("run-option", lambda: submit(double, 1, services={})),
            ("run-option", lambda: submit(double, 1, deadline=3.0)),
            ("run-option", lambda: submit(double, 1, budget=WRAPPED_UP)),
            ("queued", lambda: submit(double, 1, at=datetime(1960, 1, 1, tzinfo=UTC))),
            ("work", lambda: work("default")),
            ("work", lambda: work([])),
            ("work", lambda: work(concurrency=0)),
            ("work", lambda: work(lives=0)),
        ]
        for code, call in refused:
            with pytest.raises(errors.ConfigError) as caught:
                await call()
            assert caught.value.code == code
        with pytest.raises(errors.InvalidId):
            await submit(double, 1, queue="")
        with pytest.raises(errors.CodecError):
            await submit(double, object())
        assert await harness.runs.list() == []
        # None of them is in the way of another one.
        assert await is_empty(store)
    async with a_harness(store, flows={}) as harness:
        with pytest.raises(errors.ConfigError, match="without flows"):
            await harness.work()
    async with FileBackend(tmp_path / "files") as files, a_harness(files) as harness:
        with pytest.raises(errors.ConfigError) as caught:
            await harness.submit(double, 1)
        assert caught.value.code == "queues"
        with pytest.raises(errors.ConfigError) as caught:
            await harness.work()
        assert caught.value.code == "queues"
        assert await harness.runs.list() == []


@pytest.mark.parametrize("lease", [0, -1.0, float("inf"), "30", True])
def test_a_lease_that_cannot_be(lease: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Harness(plugins=[], lease=lease)
    assert caught.value.code == "lease"


async def test_runs_of_other_code_and_damaged_rows_do_not_delay_a_claim(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend, a_harness(backend) as front:
        first, second = await front.submit(double, 1), await front.submit(double, 2)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
            plan = connection.execute(
                "EXPLAIN QUERY PLAN SELECT * FROM queued q WHERE q.queue = ? AND q.flow = ? AND q.key = ? "
                "AND q.due = 1 AND q.at <= ? ORDER BY q.priority DESC, q.at, q.run",
                ("default", "double", "", 0),
            ).fetchall()
            # Only rows of the flow are looked at, in their order.
            assert [row[-1].partition("(")[0] for row in plan] == ["SEARCH q USING INDEX queued_by_turn "]
            connection.execute(
                "UPDATE queued SET lives = 3 WHERE run = (SELECT id FROM runs WHERE run_id = ?)", (first,)
            )
            connection.commit()
        async with working(backend):
            await reaches(front, second, "completed")
            await anyio.sleep(1.1)
        assert (await front.runs.get(first)).status == "queued"
        assert caplog.text.count("a run is not claimed: the place of run number") == 1


async def test_a_run_that_fails_is_tried_again(store: CheckpointBackend) -> None:
    tried: list[str] = []

    @step
    async def before(x: int, ctx: Context) -> int:
        tried.append("before")
        return x

    @step
    async def shaky(x: int, ctx: Context) -> int:
        tried.append("shaky")
        if tried.count("shaky") < 3:
            raise ConnectionError("away")
        return x

    flow = sequence(before, shaky, id="flow")
    flows = {"flow": flow, "broken": broken, "buy": buy}
    async with a_harness(store, flows=flows) as front:
        run_id, broke = await front.submit(flow, 4), await front.submit(broken, 1)
        retry = Retry(3, initial=0.01, on=(ConnectionError,))
        async with working(store, flows, retry=retry):
            assert (await front.result(run_id, flow)).value == 4
            # Not worth another try, as the policy says.
            with pytest.raises(errors.StepFailed):
                await front.result(broke, broken)
        assert tried == ["before", "shaky", "shaky", "shaky"]
        ended = [each.status for each in await front.runs.journal(run_id) if isinstance(each, RunEnded)]
        assert ended == ["failed", "failed", "completed"]
        assert await is_empty(store)


async def test_a_run_is_tried_so_often_by_workers_of_any_process(store: CheckpointBackend) -> None:
    tried = 0

    @step
    async def never(x: int, ctx: Context) -> int:
        nonlocal tried
        tried += 1
        raise ConnectionError("away")

    flows = {"never": never}
    async with a_harness(store, flows=flows) as front:
        run_id = await front.submit(never, 1)
        async with working(store, flows, retry=Retry(2, initial=3600.0, max=3600.0)):
            await reaches(front, run_id, "failed")
        waiting = await front.runs.get(run_id)
        assert (waiting.status, waiting.queue, tried) == ("failed", "default", 1)
        assert [(each.ready, each.waiting) for each in await front.runs.queues()] == [(0, 1)]
        # Woken by a signal it goes on at once, in another worker.
        await store.send(run_id, "now", b"")
        async with working(store, flows, retry=Retry(2, initial=3600.0)):
            with pytest.raises(errors.StepFailed):
                await front.result(run_id, never)
        assert tried == 2
        assert (await front.runs.get(run_id)).queue is None
        assert await is_empty(store)
        harness: Any = front
        with pytest.raises(errors.ConfigError, match="expected a Retry"):
            await harness.work(retry=3)


async def test_a_signal_that_was_read_does_not_wake_its_run_again(store: CheckpointBackend) -> None:
    claims = 0

    class Counting(DelegatingBackend):
        async def claim(self, queues: Sequence[str], **given: Any) -> Sequence[Claim]:
            nonlocal claims
            found = await self.inner.claim(queues, **given)
            claims += len(found)
            return found

    @step
    async def twice(item: str, ctx: Context) -> str:
        first = await ctx.ask(Ask(f"Which {item}?", str))
        return first + await ctx.ask(Ask("How many?", str))

    flows = {"twice": twice}
    async with a_harness(store, flows=flows) as front:
        run_id = await front.submit(twice, "tea")
        async with working(Counting(store), flows):
            for answer in ("green", "two"):
                info = await front.runs.wait(run_id)
                await front.runs.answer(info.pending[0].answer(answer))
            assert (await front.result(run_id, twice)).value == "greentwo"
        # Once to begin it, and once for each answer.
        assert claims == 3


async def test_a_run_that_was_written_while_it_was_acquired_is_not_gone_on_with(store: CheckpointBackend) -> None:
    began = 0

    @step
    async def counts(x: int, ctx: Context) -> int:
        nonlocal began
        began += 1
        if began == 1:
            raise ValueError("no")
        return x

    class Meanwhile(DelegatingBackend):
        """Another process goes on with the run between what is read of it here and its lease."""

        done = False

        async def acquire(self, run_id: str, *, ttl: float) -> Lease:
            if not self.done:
                self.done = True
                async with a_harness(self.inner) as other:
                    await other.resume(run_id, counts)
            return await self.inner.acquire(run_id, ttl=ttl)

    async with a_harness(Meanwhile(store)) as harness:
        first = await harness.run(counts, 1, on_error="result")
        with pytest.raises(errors.RunBusy, match="was written by another owner just now"):
            await harness.resume(first.run_id, counts)
        assert began == 2
        assert (await harness.resume(first.run_id, counts)).value == 1
        assert began == 2
