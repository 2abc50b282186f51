"""A harness that is shut down, and the turns that it leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from noetic_py import Harness, InMemoryBackend, Item, Memory, Message, RunResult, SessionKey, call_model, loop, until
from noetic_py.errors import ConfigError, ShuttingDown
from noetic_py.models import ModelEvent, ModelRequest, ModelResponse, TextPart

pytestmark = pytest.mark.anyio

KEYS = [SessionKey("ada", "trip"), SessionKey("bob", "trip"), SessionKey("ada", "other")]


class Slow:
    """A model that says half of its answer and then waits until it is let go."""

    name = "slow"

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.requests: list[ModelRequest] = []

    @asynccontextmanager
    async def respond(self, request: ModelRequest) -> AsyncGenerator[Slow]:
        self.requests.append(request)
        yield self

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        yield TextPart("At ")
        await self.go.wait()
        yield TextPart("noon.")

    async def response(self) -> ModelResponse:
        return ModelResponse([Message.assistant("At noon.")])

    async def wait(self, count: int) -> None:
        while len(self.requests) < count:
            await anyio.lowlevel.checkpoint()


def texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


class Turns:
    """Turns beside a test."""

    def __init__(self) -> None:
        self.results: dict[SessionKey, RunResult[Any, Any]] = {}

    async def do(self, harness: Harness[Memory], key: SessionKey) -> None:
        self.results[key] = await harness.run(call_model(), "When is high water?", session=key)


@pytest.mark.clause("004-39a", "004-39b", "004-40b")
async def test_004_39_a_turn_that_a_shutdown_stops_is_marked_and_its_prompt_is_said_once() -> None:
    backend, model, turns = InMemoryBackend(), Slow(), Turns()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        for key in KEYS:
            group.start_soon(turns.do, harness, key)
        await model.wait(3)
        await harness.shutdown(timeout=0.01)
    assert [turns.results[key].shutdown for key in KEYS] == [True] * 3
    model.go.set()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        assert [info.shutdown for info in await harness.runs.list()] == [True] * 3
        # Each session has its own mark, whichever is asked for first.
        for at, key in reversed(list(enumerate(KEYS))):
            session = harness.session(key.user, key.session)
            assert texts(await session.items()) == ["When is high water?", "At "]
            again = await session.run(call_model(), "When is high water?")
            assert (again.run_id, again.value) == (turns.results[key].run_id, "At noon.")
            assert texts(await session.items()) == ["When is high water?", "At noon."]
            assert texts(model.requests[-1].items) == ["When is high water?"]
            assert sum(info.shutdown for info in await harness.runs.list()) == at
        # The mark is there once, and the interrupt itself is not kept: the same words are asked again now.
        session = harness.session("ada", "trip")
        third = await session.run(call_model(), "When is high water?")
        assert third.run_id != turns.results[KEYS[0]].run_id
        assert texts(await session.items()) == ["When is high water?", "At noon."] * 2


@pytest.mark.clause("004-39d")
async def test_004_39_the_prompt_is_dropped_once_whatever_flow_runs() -> None:
    backend, model, turns = InMemoryBackend(), Slow(), Turns()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        group.start_soon(turns.do, harness, KEYS[0])
        await model.wait(1)
        await harness.shutdown(timeout=0.01)
    model.go.set()
    other: Any = loop(call_model(), until=until.no_tool_calls(), id="other")
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        await session.run(other, "When is high water?")
        assert texts(await session.items()) == ["When is high water?", "At ", "At noon."]
        await session.run(other, "When is high water?")
        assert texts(await session.items()) == [
            "When is high water?",
            "At ",
            "At noon.",
            "When is high water?",
            "At noon.",
        ]


@pytest.mark.clause("004-39c")
async def test_004_39_another_prompt_clears_the_mark() -> None:
    backend, model, turns = InMemoryBackend(), Slow(), Turns()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        group.start_soon(turns.do, harness, KEYS[0])
        await model.wait(1)
        await harness.shutdown(timeout=0.01)
    model.go.set()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        await session.run(call_model(), "And low water?")
        again = await session.run(call_model(), "When is high water?")
        assert again.run_id != turns.results[KEYS[0]].run_id
        asked = ["When is high water?", "At ", "And low water?", "At noon.", "When is high water?", "At noon."]
        assert texts(await session.items()) == asked


@pytest.mark.clause("004-40a", "004-40b")
async def test_004_40_a_harness_that_shuts_down_takes_no_calls_and_waits_for_those_that_it_has() -> None:
    model, turns = Slow(), Turns()
    async with Harness(plugins=[], model=model) as harness, anyio.create_task_group() as group:
        for time in (0, -1.0):
            with pytest.raises(ConfigError, match="above 0"):
                await harness.shutdown(timeout=time)
        group.start_soon(turns.do, harness, KEYS[0])
        await model.wait(1)
        group.start_soon(harness.shutdown)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ShuttingDown):
            await harness.run(call_model(), "Hello?")
        with pytest.raises(ShuttingDown):
            await harness.session("bob", "trip").run(call_model(), "Hello?")
        # It waits for as long as it takes.
        await anyio.wait_all_tasks_blocked()
        model.go.set()
    assert (turns.results[KEYS[0]].status, turns.results[KEYS[0]].value) == ("completed", "At noon.")


@pytest.mark.clause("004-40c")
@pytest.mark.parametrize(("partial", "kept"), [("save", ["At "]), ("discard", [])])
async def test_004_40_half_an_answer_is_saved_or_discarded(partial: Any, kept: list[str]) -> None:
    backend, model, turns = InMemoryBackend(), Slow(), Turns()
    async with Harness(plugins=[], checkpoints=backend, model=model) as harness, anyio.create_task_group() as group:
        group.start_soon(turns.do, harness, KEYS[0])
        await model.wait(1)
        await anyio.wait_all_tasks_blocked()
        await harness.shutdown(timeout=0.01, partial=partial)
    assert texts(turns.results[KEYS[0]].items) == ["When is high water?", *kept]
    async with Harness(plugins=[], checkpoints=backend) as harness:
        items = await harness.session("ada", "trip").items()
        assert texts(items) == ["When is high water?", *kept]
        assert [item.status for item in items[1:]] == ["incomplete"] * len(kept)
