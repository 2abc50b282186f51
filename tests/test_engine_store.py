"""The durable side of a run's journal: what a cancellation does to a commit that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, StateBag, sequence, step
from noetic_py.checkpoints import Lease, SqliteBackend, Transaction
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio


class Interrupted(SqliteBackend):
    """A backend whose appends can be cancelled, before they are done or after it; one of them waits until it is."""

    def __init__(self, path: Path, when: Literal["before", "after"], nth: int) -> None:
        super().__init__(path)
        self.waiting = anyio.Event()
        self.appends: list[int] = []
        self._when = when
        self._left = nth

    async def append(self, run_id: str, **given: Any) -> int:
        await self._wait("before")
        position = await super().append(run_id, **given)
        self.appends.append(position)
        await self._wait("after")
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        if transactions[0].acquire is not None:
            return await super().commit(transactions)
        await self._wait("before")
        done = await super().commit(transactions)
        self.appends += [lease.position or 0 for lease in done]
        await self._wait("after")
        return done

    async def _wait(self, now: Literal["before", "after"]) -> None:
        self._left -= now == "before"
        if self._left or now != self._when:
            return
        self.waiting.set()
        await anyio.sleep_forever()


ran: list[str] = []


@step
async def first(value: int) -> int:
    ran.append("first")
    return value + 1


@step
async def second(value: int) -> int:
    ran.append("second")
    await anyio.lowlevel.checkpoint()
    return value * 10


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_cancelled_commit_is_done_once(when: Literal["before", "after"], nth: int, tmp_path: Path) -> None:
    ran.clear()
    backend = Interrupted(tmp_path / "runs.db", when, nth)
    async with backend, Harness(plugins=[], checkpoints=backend) as harness:
        async with anyio.create_task_group() as group:
            group.start_soon(_run, harness)
            await backend.waiting.wait()
            group.cancel_scope.cancel()
        # A commit that came through leaves a run that can be written on, and so its end is.
        entry = await backend.entry("r")
        assert entry is not None
        assert entry.status in ("cancelled", "completed")
        # No append was made twice, and none is missing between two that were made.
        assert backend.appends == sorted(set(backend.appends))
        head = await backend.head("r")
        assert head is not None
        assert head.position == backend.appends[-1]
        result = await harness.resume("r", flow)
        assert result.value == 21
        # What was committed in spite of the cancellation counts: only the step in flight may run again.
        assert ran.count("first") + ran.count("second") <= 4


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_whose_task_is_cancelled_in_a_commit_is_listed_as_cancelled(
    when: Literal["before", "after"], tmp_path: Path, anyio_backend: str
) -> None:
    backend = Interrupted(tmp_path / "runs.db", when, 2)
    async with backend, Harness(plugins=[], checkpoints=backend) as harness:
        task = asyncio.create_task(_run(harness))
        await backend.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [info.status for info in await harness.runs.list()] == ["cancelled"]
        assert (await harness.resume("r", flow)).value == 21


flow = sequence(first, second, first)


async def _run(harness: Harness) -> None:
    await harness.run(flow, 1, run_id="r")


async def test_a_fork_with_another_state_is_whole_or_not_there() -> None:
    """It is one commit, so no process can die between a fork and its state, and leave a run with the old one."""

    @step
    async def shown(x: int, ctx: Context[Memory, StateBag]) -> object:
        return ctx.state["n"]

    backend = InMemoryBackend()
    async with Harness(checkpoints=backend) as harness:
        await harness.run(shown, 1, run_id="r", state=StateBag({"n": 1}))
    async with Harness(checkpoints=FaultyBackend(backend, dies_at=1)) as harness:
        forked = await harness.fork("r", at=1, state=StateBag({"n": 2}))
    async with Harness(checkpoints=backend) as harness:
        assert {each.run_id for each in await harness.runs.list()} == {"r", forked}
        assert (await harness.resume(forked, shown)).value == 2
