"""Values of a layer beside its state are not part of the journal, and a fork is told so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, MemoryLayer, Retry, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.control import AnyResult
from noetic_py.core.events import LayerWarned
from noetic_py.memory import function
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio


class Shelf(MemoryLayer[list[str]]):
    @function
    async def keep(self, text: str) -> None:
        self.state = [*self.state, text]
        await self.storage.put(text, text)

    @function
    async def stored(self) -> list[str]:
        return [key for key, _ in await self.storage.scan()]


class Mem(Memory):
    shelf: Shelf = Shelf()
    other: Shelf = Shelf()


@step
async def first(text: str, ctx: Context[Mem]) -> str:
    await ctx.memory.shelf.keep("first")
    return text


@step
async def second(text: str, ctx: Context[Mem]) -> str:
    await ctx.memory.shelf.keep("second")
    return text


@step
async def look(text: str, ctx: Context[Mem]) -> tuple[list[str], list[str]]:
    await ctx.memory.shelf.stored()
    return list(ctx.memory.shelf.state), await ctx.memory.shelf.stored()


def harness(backend: CheckpointBackend) -> Harness[Mem]:
    return Harness(memory=Mem(), checkpoints=backend, plugins=())


async def resumed(made: Harness[Mem], run_id: str, flow: Any) -> tuple[AnyResult, Sequence[LayerWarned]]:
    async with made.resume_stream(run_id, flow) as stream:
        warned = [event async for event in stream.events if isinstance(event, LayerWarned)]
        return await stream.result(), warned


async def test_a_fork_finds_what_was_stored_later_and_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    flow = first >> second >> look
    async with harness(InMemoryBackend()) as made:
        with caplog.at_level(logging.WARNING, logger="noetic_py"):
            result = await made.run(flow, "go", run_id="one", thread_id="t")
        assert result.value == (["first", "second"], ["first", "second"])
        assert caplog.messages == []
        fork = await made.fork("one", at=2)
        result, warned = await resumed(made, fork, first >> look)
    assert result.value == (["first"], ["first", "second"])
    [event] = warned
    assert event.layer == "shelf"
    assert "this fork of run 'one' also finds what was stored after its point" in event.message


async def test_what_a_failed_attempt_or_a_dead_process_has_stored_stays() -> None:
    tried: list[int] = []

    @step(version="1", retry=Retry(2, initial=0))
    async def unsure(text: str, ctx: Context[Mem]) -> str:
        tried.append(len(tried))
        await ctx.memory.shelf.keep(f"attempt {len(tried)}")
        if len(tried) == 1:
            raise OSError("once more")
        return text

    flow = unsure >> look
    backend = FaultyBackend(InMemoryBackend(), dies_at=3)
    with backend.outlived():
        async with harness(backend) as made:
            await made.run(flow, "go", run_id="r", thread_id="t")
    backend.revive()
    async with harness(backend) as made:
        result = await made.resume("r", flow)
    state, stored = result.value
    assert (len(state), stored) == (1, [f"attempt {number + 1}" for number in tried])
    assert len(tried) > 1
