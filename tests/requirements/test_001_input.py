"""Row 001-10: the input that a run was started with can be read wherever the run has got to."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import Context, Handoff, Harness, InMemoryBackend, Step, sequence, spawn, step
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio


def flow(seen: list[object]) -> Step[str, int]:
    @step
    async def child(number: int, ctx: Context[Any, Any]) -> int:
        seen.append(ctx.input)
        return number + 1

    @step
    async def target(number: int, ctx: Context[Any, Any]) -> int:
        seen.append(ctx.input)
        return await child(number, ctx)

    @step(handoffs=[target])
    async def first(text: str) -> int | Handoff[int]:
        return Handoff(target, int(text))

    return sequence(first, child, id="all")


@pytest.mark.clause("001-10a", "001-10b", "001-10c")
async def test_001_10_the_original_input_is_readable_in_children_after_a_handover_and_on_resume() -> None:
    whole = FaultyBackend(InMemoryBackend())
    seen: list[object] = []
    async with Harness(checkpoints=whole) as harness:
        assert (await harness.run(flow(seen), "7")).value == 9
        assert (await harness.run(spawn(flow(seen)), "8")).value == 10
    assert seen == ["7"] * 3 + ["8"] * 3
    after: list[int] = []
    for dies_at in range(2, 6):
        seen.clear()
        inner = InMemoryBackend()
        async with Harness(checkpoints=FaultyBackend(inner, dies_at=dies_at, when="after")) as harness:
            with pytest.raises(BaseException):  # noqa: B017, PT011 # whatever a dying process raises
                await harness.run(flow([]), "7", run_id="r")
        async with Harness(checkpoints=inner) as harness:
            assert (await harness.resume("r", flow(seen))).value == 9
        assert set(seen) <= {"7"}
        after.append(len(seen))
    assert max(after) == 3


async def test_001_10a_a_spawn_has_its_own_input_and_the_runs_is_the_roots() -> None:
    @step
    async def longer(text: str) -> str:
        return f"{text}!"

    @step
    async def look(_: object, ctx: Context[Any, Any]) -> tuple[object, object]:
        return ctx.input, ctx.root.input

    async with Harness() as harness:
        assert (await harness.run(longer >> look, "in")).value == ("in", "in")
        assert (await harness.run(longer >> spawn(spawn(look)), "in")).value == ("in!", "in")
