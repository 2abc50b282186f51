"""Events of stored runs, read by a cursor: the same for every reader, none lost and none twice."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import anyio
import attrs
import pytest

from noetic_py import Context, Harness, InMemoryBackend, errors, loop, sequence, step, until
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.events import (
    Event,
    ItemsAppended,
    LoopIteration,
    ProgressSet,
    RequestMade,
    RunFinished,
    RunStarted,
    StepCommitted,
    StepDiscarded,
)
from noetic_py.runner.recorded_events import RecordedEvent
from noetic_py.testing import FaultyBackend, Observations, VirtualRuntime, random_program
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

RECORDED = (
    RunStarted,
    ItemsAppended,
    StepCommitted,
    StepDiscarded,
    LoopIteration,
    RequestMade,
    ProgressSet,
    RunFinished,
)


def shown(event: Event) -> str:
    """What an event says; the position of a commit is where its record stood in the process or stands in the store."""
    names = [each.name for each in attrs.fields(type(event)) if each.name not in ("position", "_source")]
    fields = {name: getattr(event, name) for name in names}
    if isinstance(event, ItemsAppended):
        fields["items"] = [item.id for item in event.items]
    return f"{type(event).__name__} {fields}"


def is_stopped(event: Event) -> bool:
    """Whether it tells of a step that was stopped; one that has left nothing has no record."""
    return isinstance(event, StepDiscarded) and event.reason == "stopped"


async def read(harness: Harness[Any], run_id: str, after: int = 0) -> list[RecordedEvent]:
    with anyio.fail_after(30):
        return [each async for each in harness.runs.events(run_id, after=after)]


@pytest.mark.parametrize("seed", range(SEED * 1000, SEED * 1000 + examples(sample=12, full=500)))
async def test_they_are_what_a_live_reader_was_told(seed: int) -> None:
    program = random_program(seed)
    async with Harness(checkpoints=InMemoryBackend(), plugins=()) as harness:
        flow, state = program.flow(Observations()), program.new_state()
        async with harness.stream(flow, program.input, state=state, run_id="r", on_error="result") as stream:
            live = [event async for event in stream.events if isinstance(event, RECORDED)]
        found = [each.event for each in await read(harness, "r") if isinstance(each.event, RECORDED)]
    assert [shown(each) for each in found if not is_stopped(each)] == [
        shown(each) for each in live if not is_stopped(each)
    ]
    stopped = [Counter(shown(each) for each in some if is_stopped(each)) for some in (found, live)]
    assert stopped[0] <= stopped[1]


async def test_a_reader_goes_on_behind_any_cursor() -> None:
    program = random_program(11)
    async with Harness(checkpoints=InMemoryBackend(), plugins=()) as harness:
        await harness.run(
            program.flow(Observations()), program.input, state=program.new_state(), run_id="r", on_error="result"
        )
        whole = [(each.cursor, shown(each.event)) for each in await read(harness, "r")]
        cursors = [cursor for cursor, _ in whole]
        assert len(cursors) > 20
        assert cursors == sorted(set(cursors))
        for index, cursor in enumerate(cursors):
            rest = await read(harness, "r", cursor)
            assert [(each.cursor, shown(each.event)) for each in rest] == whole[index + 1 :]


@step
async def add(value: int, ctx: Context) -> int:
    ctx.progress.finish()
    return value + 1


adds = sequence(add, loop(add, until=until.max_rounds(4)), add.with_options(id="last"), id="adds")


async def test_readers_and_writers_that_die_lose_and_double_nothing() -> None:
    dice, dies_at, dead = random.Random(SEED), 0, True
    while dead:
        dies_at += 1
        store = InMemoryBackend()
        seen: list[tuple[int, str]] = []
        over = anyio.Event()

        async def reads(store: CheckpointBackend, seen: list[tuple[int, str]], over: anyio.Event) -> None:
            while True:
                # A new process each time, that knows only how far the last one came.
                patience = dice.randrange(1, 6)
                async with Harness(checkpoints=store, plugins=()) as reader:
                    last = over.is_set()
                    try:
                        async for each in reader.runs.events("r", after=seen[-1][0] if seen else 0):
                            seen.append((each.cursor, shown(each.event)))
                            patience -= 1
                            if not patience:
                                break
                        else:
                            if last:
                                return
                    except errors.RunNotFound:
                        pass
                await anyio.lowlevel.checkpoint()

        dying = FaultyBackend(store, dies_at=dies_at)
        async with anyio.create_task_group() as group:
            group.start_soon(reads, store, seen, over)
            with dying.outlived():
                async with Harness(checkpoints=dying, plugins=()) as first:
                    await first.run(adds, 0, run_id="r")
            async with Harness(checkpoints=store, plugins=()) as second:
                begun = await store.head("r") is not None
                result = await (second.resume("r", adds) if begun else second.run(adds, 0, run_id="r"))
                assert (result.status, result.value) == ("completed", 6)
            over.set()
        async with Harness(checkpoints=store, plugins=()) as harness:
            assert seen == [(each.cursor, shown(each.event)) for each in await read(harness, "r")], f"seed {SEED}"
        dead = dying.dead
    assert dies_at > 5


async def test_a_reader_follows_a_run_over_its_workers() -> None:
    runtime = VirtualRuntime()

    @step
    async def naps(value: int, ctx: Context) -> int:
        await ctx.sleep(60)
        return value

    flow = sequence(naps, add, id="flow")
    backend = InMemoryBackend(runtime=runtime)
    async with Harness(checkpoints=backend, runtime=runtime, flows={"flow": flow}, lease=1e6, plugins=()) as harness:
        run_id = await harness.submit(flow, 1)
        found: list[Event] = []

        async def reads() -> None:
            found.extend([each.event async for each in harness.runs.events(run_id)])

        async with anyio.create_task_group() as group:
            group.start_soon(partial(harness.work, concurrency=1))
            group.start_soon(reads)
            with anyio.fail_after(30):
                while not any(isinstance(each, RunFinished) for each in found):
                    await runtime.advance(1.0)
            await harness.shutdown()
    statuses = [each.status for each in found if isinstance(each, RunFinished)]
    requests = [each.request.kind for each in found if isinstance(each, RequestMade)]
    assert (statuses, requests) == (["suspended", "completed"], ["timer"])


async def test_a_reader_of_a_run_that_is_deleted_is_told() -> None:
    async with Harness(checkpoints=InMemoryBackend(), plugins=()) as harness:
        await harness.run(adds, 0, run_id="r")
        reader = harness.runs.events("r")
        await anext(reader)
        await harness.runs.delete("r")
        with pytest.raises(errors.RunNotFound, match="there is no run 'r'"):
            async for _ in reader:
                pass
        with pytest.raises(errors.RunNotFound, match="there is no run 'other'"):
            await read(harness, "other")


@pytest.mark.parametrize("after", [-1, 1.0, True, "1", None])
async def test_what_is_no_cursor_is_refused(after: Any) -> None:
    async with Harness(checkpoints=InMemoryBackend(), plugins=()) as harness:
        with pytest.raises(errors.ConfigError, match="is not a valid cursor; expected a whole number") as caught:
            await read(harness, "r", after)
        assert caught.value.code == "cursor"
