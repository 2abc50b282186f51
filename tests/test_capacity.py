"""What runs and workers ask of a store, against the formulas of the capacity page; and runs that hold no worker."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from noetic_py import Ask, Context, Harness, InMemoryBackend, Memory, sequence, step
from noetic_py.checkpoints import CheckpointBackend, QueueStats
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context.step import AnyStep
from noetic_py.core.runtime import Runtime
from noetic_py.testing import VirtualRuntime
from tests.properties.checks import examples
from tests.test_docs_snippets import all_snippets

WORKERS = examples(sample=10, full=1_000)
OWNERS = examples(sample=2, full=100)
ASLEEP = examples(sample=100, full=10_000)
BEGUN = datetime(2025, 1, 1, tzinfo=UTC)
# Waiting for a notification asks the store for nothing.
METHODS = {name for name, each in vars(DelegatingBackend).items() if iscoroutinefunction(each)} - {"wait_for_runs"}


class LoopClock(Runtime):
    """The clock of the event loop, by which heartbeats go."""

    def monotonic(self) -> float:
        return anyio.current_time()

    def now(self) -> datetime:
        return BEGUN + timedelta(seconds=anyio.current_time())


class Counting(DelegatingBackend):
    """A store, and how often it was called, by method."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.calls = Counter[str]()

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS:
            self.calls[name] += 1
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The names of the first program of the page."""
    first = next(each for each in all_snippets() if each.page == "docs/guides/capacity.md")
    path = tmp_path_factory.mktemp("capacity") / "capacity_page.py"
    path.write_text(first.code, encoding="utf-8")
    return runpy.run_path(str(path))


@step
async def double(x: int, ctx: Context) -> int:
    return 2 * x


@step
async def works(seconds: float, ctx: Context) -> float:
    await anyio.sleep(seconds)
    return seconds


FLOWS: Mapping[str, AnyStep] = {"double": double, "works": works}


def a_harness(
    store: CheckpointBackend, runtime: Runtime, flows: Mapping[str, AnyStep] = FLOWS, *, lease: float = 30.0
) -> Harness[Memory]:
    return Harness(plugins=[], checkpoints=store, runtime=runtime, flows=flows, lease=lease)


def on_a_jumping_clock(main: Callable[[], Awaitable[None]]) -> None:
    """Run on an event loop whose clock moves on when every task waits."""
    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def calls_in(seconds: float, *, workers: int, runs: int = 0, lease: float = 30.0) -> Counter[str]:
    """What so many workers, and the runs that they have, ask of a store in some seconds."""
    counted = Counter[str]()

    async def main() -> None:
        store = Counting(InMemoryBackend(runtime=LoopClock()))
        async with a_harness(store, LoopClock(), lease=lease) as harness, anyio.create_task_group() as group:
            for _ in range(runs):
                await harness.submit(works, 1e6)
            for _ in range(workers):
                group.start_soon(harness.work)
            # The window begins between two looks of the workers, and of the runs.
            await anyio.sleep(1.0 + 1 / 64)
            assert sum(each.owned for each in await store.queues()) == runs
            store.calls.clear()
            await anyio.sleep(seconds)
            counted.update(store.calls)
            group.cancel_scope.cancel()

    on_a_jumping_clock(main)
    return counted


def test_a_worker_with_room_asks_as_often_as_the_page_says(page: Mapping[str, Any]) -> None:
    for workers in (1, WORKERS):
        assert calls_in(2.0, workers=workers) == {name: 2 * each for name, each in page["looking"](workers).items()}


@pytest.mark.parametrize("lease", [30.0, 6.0])
def test_a_run_that_a_worker_has_asks_as_often_as_the_page_says(page: Mapping[str, Any], lease: float) -> None:
    # These workers have no room for another run, and do not look for one.
    for runs in (10, 10 * OWNERS):
        found = calls_in(lease, workers=runs // 10, runs=runs, lease=lease)
        assert found == {name: lease * each for name, each in page["held"](runs, lease).items()}


@pytest.mark.parametrize("steps", [2, 10])
def test_a_run_asks_as_often_as_the_page_says(page: Mapping[str, Any], steps: int) -> None:
    store = Counting(InMemoryBackend(runtime=LoopClock()))
    flow = sequence(*[double.with_options(id=f"double_{each}") for each in range(steps)], id="flow")

    async def main() -> None:
        async with a_harness(store, LoopClock(), {"flow": flow}) as harness, anyio.create_task_group() as group:
            group.start_soon(harness.work)
            await anyio.sleep(0.25)
            store.calls.clear()
            run_id = await harness.submit(flow, 1)
            assert store.calls == page["SUBMIT"]
            await anyio.sleep(0.5)
            assert store.calls - Counter(page["SUBMIT"]) == page["one_run"](steps) | {"claim": 2}
            assert (await harness.runs.get(run_id)).status == "completed"
            group.cancel_scope.cancel()

    on_a_jumping_clock(main)


async def carried_out(harness: Harness[Memory], clock: VirtualRuntime, done: Callable[[QueueStats], bool]) -> None:
    """Let a worker work until the queues are in a state, and stop it."""
    async with anyio.create_task_group() as group:
        group.start_soon(partial(harness.work, concurrency=100))
        while not all(map(done, await harness.runs.queues())):
            await clock.advance(0.5)
        await harness.shutdown()


@pytest.mark.anyio
async def test_runs_asleep_hold_no_worker_and_wake_in_time() -> None:
    clock = VirtualRuntime(start=BEGUN)
    store = InMemoryBackend(runtime=clock)
    late, bought = list[float](), Counter[str]()

    @step
    async def naps(seconds: float, ctx: Context) -> None:
        until = BEGUN + timedelta(seconds=seconds)
        await ctx.sleep_until(until)
        late.append((clock.now() - until).total_seconds())

    @step
    async def buys(item: str, ctx: Context) -> None:
        agreed = await ctx.ask(Ask(f"Buy {item}?", bool))
        bought[item] += agreed

    def harness() -> Harness[Memory]:
        return a_harness(store, clock, {"naps": naps, "buys": buys})

    async with harness() as worker:
        # They wake over ten seconds.
        half, hour = ASLEEP // 2, timedelta(hours=1).total_seconds()
        for each in range(half):
            await worker.submit(naps, hour + 10 * each / half)
        buyers = [await worker.submit(buys, "tea") for _ in range(half)]
        await carried_out(worker, clock, lambda stats: stats.waiting == half)

    # Every worker has stopped. What is approved now is ready for the next one.
    async with harness() as front:
        assert [(each.ready, each.owned, each.waiting) for each in await front.runs.queues()] == [(0, 0, half)] * 2
        for run_id in buyers:
            (request,) = (await front.runs.get(run_id)).pending
            await front.runs.answer(request.answer(True))
        found = {(each.ready, each.owned, each.waiting) for each in await front.runs.queues()}
        assert found == {(0, 0, half), (half, 0, 0)}
        await clock.advance(hour - 60.0)
    async with harness() as worker:
        await carried_out(worker, clock, lambda stats: stats.waiting == half)
        assert clock.now() < BEGUN + timedelta(hours=1)
        assert (len(late), bought) == (0, {"tea": half})
    async with harness() as worker:
        await carried_out(worker, clock, lambda _: False)
    assert len(late) == half
    assert 0.0 <= min(late) <= max(late) <= 1.0
