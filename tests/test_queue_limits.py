"""Whose turn it is in a queue, and how many of its runs are at work at once, with all workers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import Context, Harness, Memory, errors, spawn, step
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend, Lease, QueueLimits, SqliteBackend, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.schedules import Schedule
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    made = InMemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "runs.db")
    async with made as backend:
        yield backend


class Seen(DelegatingBackend):
    """Notes the keys of the runs that are queued."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.keys: list[str] = []

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.keys += [each.queued.key for each in transactions if each.queued is not None]
        return await super().commit(transactions)


@step
async def double(x: int, ctx: Context) -> int:
    return 2 * x


async def ended(harness: Harness[Memory], run_ids: Sequence[str]) -> None:
    with anyio.fail_after(20):
        for run_id in run_ids:
            await harness.runs.wait(run_id)


async def test_users_take_turns(store: CheckpointBackend) -> None:
    order: list[str] = []

    @step
    async def note(name: str, ctx: Context) -> None:
        order.append(name)

    async with (
        Harness(checkpoints=store, plugins=[], flows={"note": note}) as harness,
        anyio.create_task_group() as group,
    ):
        names = ["ada 1", "ada 2", "ada 3", "ben 1", "cy 1", "cy 2"]
        run_ids = [await harness.submit(note, name, user_id=name.split()[0]) for name in names]
        group.start_soon(partial(harness.work, concurrency=1))
        await ended(harness, run_ids)
        await harness.shutdown()
    assert order == ["ada 1", "ben 1", "cy 1", "ada 2", "cy 2", "ada 3"]


async def test_workers_keep_to_the_limits_together() -> None:
    runtime = VirtualRuntime()
    store = InMemoryBackend(runtime=runtime)
    inside: Counter[str] = Counter()
    most, most_of_key = 0, 0

    @step
    async def work(key: str, ctx: Context) -> None:
        nonlocal most, most_of_key
        inside[key] += 1
        most, most_of_key = max(most, inside.total()), max(most_of_key, *inside.values())
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        inside[key] -= 1

    def a_harness() -> Harness[Memory]:
        limits = {"default": QueueLimits(concurrency=3, per_key=2)}
        return Harness(checkpoints=store, plugins=[], flows={"work": work}, queues=limits, runtime=runtime)

    async with a_harness() as front, a_harness() as one, a_harness() as other, anyio.create_task_group() as group:
        run_ids = [await front.submit(work, key, key=key) for key in "aaaaaabbbb"]
        group.start_soon(one.work)
        group.start_soon(other.work)
        with anyio.fail_after(20):
            while [each for each in run_ids if (await front.runs.get(each)).status != "completed"]:
                await runtime.advance(0.25)
        await one.shutdown()
        await other.shutdown()
    assert (most, most_of_key) == (3, 2)


async def test_the_key_of_a_run(store: CheckpointBackend) -> None:
    seen, flow = Seen(store), spawn(double, queue="children", id="flow")
    schedules = {"hourly": Schedule("0 * * * *", double, 1, user_id="ada")}
    async with (
        Harness(checkpoints=seen, plugins=[], flows={"double": double, "flow": flow}, schedules=schedules) as harness,
        anyio.create_task_group() as group,
    ):
        await harness.submit(double, 1)
        await harness.submit(double, 1, user_id="ada")
        await harness.submit(double, 1, user_id="ada", key="acme")
        await harness.submit(double, 1, user_id="ada", key="")
        await harness.schedules.trigger("hourly")
        assert seen.keys == ["", "ada", "acme", "", "ada"]
        seen.keys.clear()
        parent = await harness.submit(flow, 1, user_id="ada", key="acme")
        group.start_soon(harness.work, ["default", "children"])
        await ended(harness, [parent])
        await harness.shutdown()
        # The parent is queued, waits and is woken; its child has its key.
        assert len(seen.keys) >= 3
        assert set(seen.keys) == {"acme"}


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_a_limit_that_cannot_be(wrong: Any) -> None:
    for name in ("concurrency", "per_key"):
        with pytest.raises(errors.ConfigError, match=f"{name}=.* is not a valid limit of a queue") as caught:
            QueueLimits(**{name: wrong})
        assert caught.value.code == "queue-limits"


@pytest.mark.parametrize("wrong", [["default"], {"default": 3}, 5])
def test_limits_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(errors.ConfigError, match="is not a valid mapping") as caught:
        Harness(plugins=[], queues=wrong)
    assert caught.value.code == "queue-limits"
    with pytest.raises(errors.InvalidId, match="name of a queue"):
        Harness(plugins=[], queues={"": QueueLimits()})


@pytest.mark.parametrize("wrong", ["a\nb", "k" * 5000, 5])
async def test_a_key_that_cannot_be(store: CheckpointBackend, wrong: Any) -> None:
    async with Harness(checkpoints=store, plugins=[], flows={"double": double}) as harness:
        with pytest.raises(errors.InvalidId, match="key is not a text"):
            await harness.submit(double, 1, key=wrong)
        assert not await harness.runs.list()
