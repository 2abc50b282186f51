"""Taking over a run that another owner has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from noetic_py import Answer, Ask, Context, Harness, InMemoryBackend, Memory, StateBag, errors, step
from noetic_py.checkpoints import CheckpointBackend, Lease, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


@step(version="1")
async def work(value: int, ctx: Ctx) -> int:
    """A run of one step."""
    return value + 1


def harness(backend: CheckpointBackend, **options: Any) -> Any:
    return Harness(plugins=[], checkpoints=backend, **options)


async def test_resume_waits_for_the_other_owner() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(work, 1, run_id="r")
    lease = await backend.acquire("r", ttl=30)
    found: list[Any] = []
    async with harness(backend) as it, anyio.create_task_group() as group:

        async def resume() -> None:
            found.append(await it.resume("r", work, wait=60.0))

        group.start_soon(resume)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        await backend.release(lease)
    assert found[0].value == 2


async def test_it_gives_up_when_the_time_is_over() -> None:
    backend = InMemoryBackend()
    runtime = VirtualRuntime()
    async with harness(backend) as it:
        await it.run(work, 1, run_id="r")
    lease = await backend.acquire("r", ttl=3600)
    refused: list[float] = []
    async with harness(backend, runtime=runtime) as it, anyio.create_task_group() as group:

        async def resume(wait: float) -> None:
            with pytest.raises(errors.RunBusy):
                await it.resume("r", work, wait=wait)
            refused.append(wait)

        group.start_soon(resume, 7.0)
        await runtime.advance(6.9)
        assert refused == []
        await resume(0.0)
        await runtime.advance(0.1)
        await anyio.wait_all_tasks_blocked()
        assert refused == [0.0, 7.0]
        await backend.release(lease)
        assert (await it.resume("r", work)).value == 2


async def test_it_waits_for_a_run_of_its_own_harness() -> None:
    begun, go = anyio.Event(), anyio.Event()
    found: list[Any] = []

    @step(version="1")
    async def slow(value: int, ctx: Ctx) -> int:
        begun.set()
        await go.wait()
        return value

    async with harness(InMemoryBackend()) as it, anyio.create_task_group() as group:
        handle = it.start(slow, 5, run_id="r")
        await begun.wait()
        with pytest.raises(errors.RunBusy):
            await it.resume("r", slow)

        async def resume() -> None:
            found.append((await it.resume("r", slow, wait=60.0)).value)

        group.start_soon(resume)
        await anyio.wait_all_tasks_blocked()
        go.set()
        assert (await handle.result()).value == 5
    assert found == [5]


@pytest.mark.parametrize("wait", [-1, "1", float("nan"), None, True])
async def test_a_wait_that_is_no_time(wait: Any) -> None:
    async with harness(InMemoryBackend()) as it:
        with pytest.raises(errors.ConfigError, match="wait="):
            await it.resume("r", work, wait=wait)


async def test_what_is_refused_takes_the_run_from_no_owner() -> None:
    """The lease has run out, nobody has taken the run, and its owner is alive."""
    clock = VirtualRuntime()
    backend = InMemoryBackend(runtime=clock)
    begun, go = anyio.Event(), anyio.Event()

    @step(version="1")
    async def slow(value: int, ctx: Ctx) -> int:
        begun.set()
        await go.wait()
        return value

    async with harness(backend) as owner, harness(backend) as other, anyio.create_task_group() as group:
        handle = owner.start(slow, 5, run_id="r")
        await begun.wait()
        await clock.advance(3600.0)
        assert not (await other.runs.get("r")).alive
        with pytest.raises(errors.RequestNotFound):
            await other.runs.answer(Answer("r", "no such key", "answered"), wait=0)
        go.set()
        assert (await handle.result()).value == 5
        group.cancel_scope.cancel()
    head = await backend.head("r")
    async with harness(backend) as other:
        with pytest.raises(errors.RequestNotFound):
            await other.runs.answer(Answer("r", "no such key", "answered"), wait=0)
        with pytest.raises(errors.RunOver):
            await other.runs.wrap_up("r", "late", wait=0)
        with pytest.raises(errors.RunOver):
            await other.runs.complete("r", 1, step=slow, wait=0)
    assert await backend.head("r") == head


async def test_an_answer_is_one_write_that_leaves_the_run_free() -> None:
    backend = Counted(InMemoryBackend())

    @step(version="1")
    async def asks(value: int, ctx: Ctx) -> int:
        return value + await ctx.ask(Ask("How many?", int))

    async with harness(backend) as it:
        (request,) = (await it.run(asks, 1, run_id="r")).pending
        backend.writes.clear()
        info = await it.runs.answer(request.answer(2), wait=0)
        assert (info.status, info.alive, backend.writes) == ("suspended", False, ["commit"])
        assert (await it.resume("r", asks)).value == 3


class Counted(DelegatingBackend):
    """Notes what is written."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.writes: list[str] = []

    async def append(self, run_id: str, **given: Any) -> int:
        self.writes.append("append")
        return await super().append(run_id, **given)

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.writes.append("commit")
        return await super().commit(transactions)

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        self.writes.append("acquire")
        return await super().acquire(run_id, ttl=ttl)

    async def release(self, lease: Lease) -> None:
        self.writes.append("release")
        await super().release(lease)
