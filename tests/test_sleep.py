"""A step that sleeps: in its process, over a crash, and without a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from noetic_py import Context, Harness, Memory, errors, loop, sequence, step, until
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.runner.runs import RunInfo
from noetic_py.testing import FaultyBackend, VirtualRuntime

pytestmark = pytest.mark.anyio

DAY = 86_400.0


def a_harness(backend: CheckpointBackend | None, runtime: VirtualRuntime, **flows: Any) -> Harness[Memory]:
    # The clock of the leases is moved, and the heartbeat's is not.
    return Harness(plugins=[], checkpoints=backend, runtime=runtime, flows=flows, lease=10 * DAY)


async def beside(runtime: VirtualRuntime, work: Callable[[], Awaitable[Any]], span: float = 3600.0) -> Any:
    """Do work, while time goes on."""
    result: list[Any] = []
    async with anyio.create_task_group() as group:

        async def tick() -> None:
            while True:
                await runtime.advance(span)

        group.start_soon(tick)
        result.append(await work())
        group.cancel_scope.cancel()
    return result[0]


@step
async def naps(days: float, ctx: Context) -> str:
    await ctx.sleep(timedelta(days=days))
    return f"slept {days} days"


@pytest.mark.parametrize("stored", [False, True])
async def test_a_run_sleeps_in_its_process(stored: bool) -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime) if stored else None
    async with a_harness(backend, runtime) as harness:
        began = runtime.now()
        result = await beside(runtime, lambda: harness.run(naps, 2.0, run_id="r"))
        assert (result.status, result.value) == ("completed", "slept 2.0 days")
        assert timedelta(days=2) <= runtime.now() - began < timedelta(days=2.2)


async def test_a_short_sleep_writes_nothing() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)

    @step
    async def blinks(x: int, ctx: Context) -> int:
        await ctx.sleep(5)
        await ctx.sleep(0)
        return x

    async with a_harness(backend, runtime) as harness:
        await beside(runtime, lambda: harness.run(blinks, 1, run_id="r"), 1.0)
        assert "Pending" not in [type(each).__name__ for each in await harness.runs.journal("r")]


async def test_a_process_that_resumes_waits_for_what_is_left() -> None:
    runtime = VirtualRuntime()
    inner = InMemoryBackend(runtime=runtime)
    backend = FaultyBackend(inner)
    began = runtime.now()

    @step
    async def slow(x: int, ctx: Context) -> int:
        await ctx.sleep(3 * DAY)
        return x

    async with a_harness(backend, runtime) as harness:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await harness.run(slow, 1, run_id="r")

            group.start_soon(run)
            while runtime.now() - began < timedelta(days=2):
                await runtime.advance(3600.0)
            group.cancel_scope.cancel()
        # The program was off for half a day.
        await runtime.advance(DAY / 2)
        result = await beside(runtime, lambda: harness.resume("r", slow))
        assert result.value == 1
        assert timedelta(days=3) <= runtime.now() - began < timedelta(days=3.2)


async def test_a_sleeping_run_holds_no_worker() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)
    calls: list[int] = []

    @step
    async def first(x: int, ctx: Context) -> int:
        calls.append(x)
        return x

    @step
    async def waits(x: int, ctx: Context) -> int:
        await ctx.sleep(60)
        await ctx.sleep_until(began + timedelta(seconds=180))
        return x

    began = runtime.now()
    flow = sequence(first, waits, id="flow")
    async with a_harness(backend, runtime, flow=flow) as harness, a_harness(backend, runtime, flow=flow) as other:
        runs = [await other.submit(flow, n) for n in range(50)]
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: harness.work(concurrency=3))
            while (await backend.queues())[0].ready or (await backend.queues())[0].owned:
                await runtime.advance(1.0)
            (stats,) = await backend.queues()
            assert (stats.ready, stats.owned, stats.waiting) == (0, 0, 50)
            info = await other.runs.get(runs[0])
            assert (info.status, [each.kind for each in info.pending]) == ("suspended", ["timer"])
            with pytest.raises(errors.AnswerInvalid, match="takes no answer"):
                await other.runs.answer(info.pending[0].answer(1))
            while await backend.queues():
                await runtime.advance(5.0)
            await harness.shutdown()
        assert [(await other.resume(run_id, flow)).value for run_id in runs] == list(range(50))
        assert sorted(calls) == list(range(50))
        assert timedelta(seconds=180) <= runtime.now() - began


async def test_sleeps_of_a_loop_and_of_several_at_once() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)
    began = runtime.now()

    @step
    async def one(minutes: float, ctx: Context) -> float:
        await ctx.sleep(timedelta(minutes=minutes))
        return minutes + 1

    @step
    async def several(x: float, ctx: Context) -> float:
        slept = await ctx.gather(one.bind(1.0), one.bind(5.0), one.bind(3.0))
        return sum(slept)

    flow = sequence(loop(one, until=until.max_steps(3), id="rounds"), several, id="flow")
    async with a_harness(backend, runtime, flow=flow) as harness, a_harness(backend, runtime, flow=flow) as other:
        run_id = await other.submit(flow, 1.0)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            while await backend.queues():
                await runtime.advance(5.0)
            await harness.shutdown()
        assert (await other.resume(run_id, flow)).value == 12.0
        # 1 + 2 + 3 minutes one after the other, and 5 at once.
        assert timedelta(minutes=11) <= runtime.now() - began < timedelta(minutes=12)


async def test_waiting_for_a_run_that_sleeps() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)

    @step
    async def dozes(x: int, ctx: Context) -> int:
        await ctx.sleep(20)
        return x

    info: RunInfo | None = None
    async with a_harness(backend, runtime, dozes=dozes) as harness, a_harness(backend, runtime, dozes=dozes) as other:
        run_id = await other.submit(dozes, 7)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            info = await beside(runtime, lambda: other.runs.wait(run_id), 1.0)
            await harness.shutdown()
        assert info is not None
        assert info.status == "completed"


async def test_below_a_step_that_may_run_once_it_is_waited_for() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)
    calls: list[int] = []

    @step(replay="once")
    async def pays(x: int, ctx: Context) -> int:
        calls.append(x)
        await ctx.sleep(60)
        return x

    async with a_harness(backend, runtime, pays=pays) as harness, a_harness(backend, runtime, pays=pays) as other:
        run_id = await other.submit(pays, 7)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.work)
            while await backend.queues():
                await runtime.advance(5.0)
            await harness.shutdown()
        assert ((await other.resume(run_id, pays)).value, calls) == (7, [7])


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "60", timedelta(seconds=-1), 1e12])
async def test_a_time_that_cannot_be_slept(seconds: Any) -> None:
    @step
    async def bad(x: int, ctx: Context) -> None:
        await ctx.sleep(seconds)

    runtime = VirtualRuntime()
    async with a_harness(None, runtime) as harness:
        with pytest.raises(errors.ConfigError) as caught:
            await harness.run(bad, 1)
        assert caught.value.code == "sleep"


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), "2030-01-01", 5])  # noqa: DTZ001
async def test_a_moment_that_cannot_be_slept_until(when: Any) -> None:
    @step
    async def bad(x: int, ctx: Context) -> None:
        await ctx.sleep_until(when)

    async with a_harness(None, VirtualRuntime()) as harness:
        with pytest.raises(errors.ConfigError) as caught:
            await harness.run(bad, 1)
        assert caught.value.code == "sleep"


async def test_a_moment_that_has_passed() -> None:
    @step
    async def late(x: int, ctx: Context) -> int:
        await ctx.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        return x

    async with a_harness(None, VirtualRuntime()) as harness:
        assert (await harness.run(late, 1)).value == 1


async def test_outside_of_a_run() -> None:
    with pytest.raises(errors.NoeticError, match=r"sleep\(\)"):
        await Context().sleep(1)


async def test_a_run_that_is_resumed_as_by_a_worker_sleeps_without_its_process() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)
    async with a_harness(backend, runtime, naps=naps) as harness:
        await harness.submit(naps, 2.0, run_id="r", queue="engine")
        asleep = await harness.resume("r", naps, as_worker=True)
        assert (asleep.status, [each.kind for each in asleep.pending]) == ("suspended", ["timer"])
        info, (stats,) = await harness.runs.get("r"), await harness.runs.queues()
        assert (info.alive, info.queue, stats.queue, stats.waiting) == (False, "engine", "engine", 1)
        # Too early: it goes to sleep again.
        assert (await harness.resume("r", naps, as_worker=True)).status == "suspended"
        await runtime.advance(2 * DAY)
        (stats,) = await harness.runs.queues()
        assert stats.ready == 1
        result = await harness.resume("r", naps, as_worker=True)
        assert (result.status, result.value) == ("completed", "slept 2.0 days")
        assert (await harness.runs.get("r")).queue is None
        assert list(await harness.runs.queues()) == []
        # One that has ended gives its result, as without the option.
        assert (await harness.resume("r", naps, as_worker=True)).value == "slept 2.0 days"


async def test_a_run_that_cannot_be_resumed_as_by_a_worker_is_left_free() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)

    @step
    async def other(days: float, ctx: Context) -> str:
        return "other code"

    async with a_harness(backend, runtime, naps=naps) as harness, a_harness(backend, runtime, other=other) as changed:
        await harness.submit(naps, 2.0, run_id="r")
        with pytest.raises(errors.ConfigError) as caught:
            await changed.resume("r", naps, as_worker=True)
        assert caught.value.code == "flows"
        assert (await harness.resume("r", naps, as_worker=True)).status == "suspended"
        resume: Any = changed.resume
        with pytest.raises(errors.ConfigError, match="True or False"):
            await resume("r", other, as_worker="yes")
        with pytest.raises(errors.ReplayDiverged):
            await changed.resume("r", other, as_worker=True)
        assert not (await harness.runs.get("r")).alive
        await runtime.advance(2 * DAY)
        assert (await harness.resume("r", naps, as_worker=True)).value == "slept 2.0 days"
