"""How often the library asks a backend: each time is a round trip where the store is another machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from noetic_py import Ask, Context, Harness, InMemoryBackend, Memory, call_model, sequence, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context.step import AnyStep
from noetic_py.schedules import Schedule
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio

# Not the clock, which some backends have in this process.
_ASKING = frozenset(
    {
        "acquire",
        "append",
        "budgets",
        "claim",
        "commit",
        "entry",
        "get",
        "head",
        "inbox",
        "put",
        "read",
        "release",
        "scan",
    }
)


class Counting(DelegatingBackend):
    """A backend that notes what it is asked."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self._asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self._noting, name, found) if name in _ASKING else found

    async def _noting(self, name: str, ask: Callable[..., Awaitable[object]], *given: Any, **named: Any) -> object:
        self._asked.append(name)
        return await ask(*given, **named)

    def asked(self) -> list[str]:
        """What it was asked since the last look."""
        asked, self._asked = self._asked, []
        return asked


@step
async def double(value: int, ctx: Context) -> int:
    return 2 * value


@step
async def buy(value: int, ctx: Context) -> str:
    return f"{value} bought" if await ctx.ask(Ask(f"Buy {value}?", bool)) else "kept the money"


FLOWS: Mapping[str, AnyStep] = {"twice": sequence(double, double, id="twice"), "buy": buy}


def a_harness(store: CheckpointBackend, **options: Any) -> Harness[Memory]:
    return Harness(plugins=[], checkpoints=store, flows=FLOWS, **options)


async def carried_out(store: CheckpointBackend, run_id: str) -> list[str]:
    """What a worker asks for one run, behind its claim."""
    mine = Counting(store)
    async with a_harness(store) as other, a_harness(mine) as harness, anyio.create_task_group() as group:
        group.start_soon(partial(harness.work, concurrency=1))
        await other.runs.wait(run_id, timeout=10.0)
        await harness.shutdown()
    asked = mine.asked()
    first = asked.index("entry")
    assert set(asked[:first]) == {"claim"}
    return [name for name in asked[first:] if name != "claim"]


async def test_a_run_that_is_resumed() -> None:
    store, failing = Counting(InMemoryBackend()), [True]

    @step
    async def fails_once(value: int, ctx: Context) -> int:
        if failing:
            failing.clear()
            raise ValueError("not yet")
        return value

    flow = sequence(double, fails_once, id="flow")
    async with a_harness(store) as harness:
        failed = await harness.run(flow, 1, on_error="result")
        store.asked()
        assert (await harness.resume(failed.run_id, flow)).value == 2
        assert store.asked() == ["entry", "read", "acquire", "entry", "commit"]


async def test_a_run_that_a_worker_carries_out() -> None:
    store = InMemoryBackend()
    async with a_harness(mine := Counting(store)) as harness:
        run_id = await harness.submit(FLOWS["twice"], 1)
        assert mine.asked() == ["commit"]
    assert await carried_out(store, run_id) == ["entry", "read", "append", "commit"]


async def test_a_worker_reads_the_inbox_where_something_waits() -> None:
    store = InMemoryBackend()
    async with a_harness(store) as harness:
        run_id = await harness.submit(FLOWS["buy"], 1)
        assert "inbox" not in await carried_out(store, run_id)
        (request,) = (await harness.runs.get(run_id)).pending
        # It leaves a signal, which wakes the run.
        await harness.runs.answer(request.answer(True), wait=0)
        assert await carried_out(store, run_id) == ["entry", "read", "inbox", "append", "commit"]


async def test_a_turn_of_a_session() -> None:
    store = Counting(InMemoryBackend())
    async with a_harness(store, model=ScriptedModel("one", "two")) as harness:
        session = harness.session("ada", "chat")
        await session.run(call_model(), "first")
        store.asked()
        await session.run(call_model(), "second")
        assert store.asked() == ["commit", "commit"]


async def test_the_schedules_of_a_worker() -> None:
    runtime = VirtualRuntime()
    store = Counting(InMemoryBackend(runtime=runtime))
    schedules = {name: Schedule(timedelta(hours=1), FLOWS["twice"], 1) for name in ("a", "b", "c")}
    async with a_harness(store, runtime=runtime, schedules=schedules) as harness, anyio.create_task_group() as group:
        group.start_soon(harness.work)
        await runtime.advance(5.0)
        store.asked()
        await runtime.advance(1.0)
        assert [name for name in store.asked() if name != "claim"] == ["scan"]
        await harness.shutdown()
