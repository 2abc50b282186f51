"""Leaving a stream, or an iterator of it, at each of a reference run's events: nothing is left of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import anyio
import pytest
from typing_extensions import TypedDict

from noetic_py import (
    Context,
    Event,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Reasoning,
    RunStream,
    StepStarted,
    call_model,
    current_context,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.journal.records import JournalRecord, StepFinished
from noetic_py.testing import ScriptedModel
from tests.properties.checks import examples, left_over, tasks

pytestmark = pytest.mark.anyio

Reader: TypeAlias = Callable[[RunStream[Any, Any]], AsyncIterator[Any]]
STRIDE = examples(sample=7, full=1)
"""Every so many events one is tried at."""


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    ctx = current_context(required=True)
    ctx.emit(word)
    return word


@step
async def say(text: object, ctx: Context) -> str:
    ctx.emit(text)
    await anyio.lowlevel.checkpoint()
    return str(text)


FLOW = (
    parallel([say, spawn(say, id="child")], merge=lambda outputs, _: outputs[0])
    >> loop(call_model(tools=[look_up]), until=until.no_tool_calls(), id="agent")
    >> say
)


ANSWER = '{"tide": "the rise and fall of the sea"}'


class Entry(TypedDict, total=False):
    """What the answer says."""

    tide: str


def model() -> ScriptedModel:
    calls = [FunctionCall(name="look_up", arguments={"word": word}) for word in ("tide", "sea")]
    thought = Reasoning(content="let me look that up")
    return ScriptedModel([thought, *calls], ANSWER, chunk=5)


def everything(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.events


def waited_for(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.select(capacity=1, overflow="wait")


def text(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.text


def reasoning(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.reasoning


def items(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.items


def snapshots(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.snapshots()


def waited_for_snapshots(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.snapshots(capacity=1, overflow="wait")


def values(stream: RunStream[Any, Any]) -> AsyncIterator[Any]:
    return stream.partial(Entry, capacity=1, overflow="wait")


READERS = (everything, waited_for, text, reasoning, items, snapshots, waited_for_snapshots, values)


@contextmanager
def quiet() -> Generator[None]:
    """Nothing is told of that nobody was there to hear: no generator that was not closed, no error in a finaliser."""
    told: list[Any] = []
    before = sys.unraisablehook
    sys.unraisablehook = told.append
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert told == []


async def count(reader: Reader) -> int:
    async with Harness(model=model()) as harness, harness.stream(FLOW, "q") as stream:
        return len([each async for each in reader(stream)])


async def leave(
    stream: RunStream[Any, Any], reader: Callable[[RunStream[Any, Any]], AsyncIterator[Any]], at: int
) -> None:
    seen = 0
    async for _ in reader(stream):
        if seen == at:
            break
        seen += 1


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
async def test_leaving_the_iterator_lets_the_run_go_on(reader: Any) -> None:
    before = tasks()
    total = await count(reader)
    assert total > 1
    for at in range(0, total, STRIDE):
        with quiet():
            async with Harness(model=model()) as harness, harness.stream(FLOW, "q") as stream:
                await leave(stream, reader, at)
                assert current_context() is None
                result = await stream.result()
            assert (result.status, result.value) == ("completed", ANSWER), at
        assert await left_over(before) == set(), at


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
async def test_leaving_the_stream_ends_the_run(reader: Any) -> None:
    before = tasks()
    kept: list[int] = []
    for at in range(0, await count(reader), STRIDE):
        with quiet():
            backend = InMemoryBackend()
            async with Harness(model=model(), checkpoints=backend) as harness:
                async with harness.stream(FLOW, "q", run_id="r") as stream:
                    await leave(stream, reader, at)
                assert current_context() is None
                # What was there before can still be read, and it ends.
                rest: list[Event] = [event async for event in stream.events]
                assert all(isinstance(event, Event) for event in rest)
                assert await left_over(before) == set(), at
        # What had finished is kept: somebody else goes on with it, and does none of it again.
        done = finished(await harness.runs.journal("r"))
        again = await started_again(backend)
        assert not done & again, at
        kept.append(len(done))
        assert await left_over(before) == set(), at
    assert kept[0] <= kept[-1] > 3


def finished(journal: Sequence[JournalRecord]) -> set[tuple[str, ...]]:
    return {record.path for record in journal if isinstance(record, StepFinished)}


async def started_again(backend: InMemoryBackend) -> set[tuple[str, ...]]:
    """The steps that run when the run is resumed."""
    async with Harness(model=model(), checkpoints=backend) as harness:
        made: Any = harness.resume_stream("r", FLOW, on_error="result")
        async with made as stream:
            started = {event.path async for event in stream.select(StepStarted)}
            assert (await stream.result()).run_id == "r"
    return started


class Mine(Exception):
    """An error of the watcher's."""


async def raised_in_the_block(harness: Harness, at: int) -> None:
    async with harness.stream(FLOW, "q") as stream:
        await leave(stream, everything, at)
        raise Mine


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    before = tasks()
    for at in range(0, await count(everything), STRIDE):
        with quiet():
            async with Harness(model=model()) as harness:
                with pytest.raises(Mine):
                    await raised_in_the_block(harness, at)
        assert await left_over(before) == set(), at
