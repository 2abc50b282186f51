"""Watching a session: what is remembered first, then what happens, and nothing left behind by those who leave."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from noetic_py import Context, Harness, Memory, Message, Session, SessionPolicy, StateBag, call_model, step
from noetic_py.core.events import Event, RunFinished, RunStarted
from noetic_py.core.items import Reasoning
from noetic_py.errors import ConfigError
from noetic_py.sessions.store import SessionStream
from noetic_py.testing import ScriptedModel
from tests.properties.checks import left_over, tasks

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


@step
async def echo(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.user(text))
    return text


async def first(values: Any, count: int) -> list[Any]:
    """So many of them, and no more are waited for."""
    with anyio.fail_after(10):
        return [await anext(values) for _ in range(count)]


async def test_who_is_early_and_who_is_late_see_the_same() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as early, harness.session("bob", "trip").watch() as stranger:
            for text in ("one", "two"):
                await session.run(echo, text)
            async with session.watch() as late:
                await session.run(echo, "three")
                for stream in (early, late):
                    items = await first(stream.items, 3)
                    assert [item.text for item in items] == ["one", "two", "three"]
                    assert (stream.missed, stream.dropped) == (0, 0)
                count = len(harness._session_store.watchers._session(session.key).history)
                seen = [await first(stream.events, count) for stream in (early, late)]
                assert seen[0] == seen[1]
                kinds = [type(event) for event in seen[0] if isinstance(event, RunStarted | RunFinished)]
                assert kinds == [RunStarted, RunFinished] * 3
            with anyio.move_on_after(0.01) as scope:
                await anext(stranger.events)
            assert scope.cancelled_caught


async def test_text_and_reasoning_come_apart() -> None:
    thought = Reasoning(summary=["Hm, so."], content=["Let me see."])
    model = ScriptedModel([thought, Message.assistant("At noon.")], "At six.")
    async with Harness(plugins=(), model=model) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as stream:
            for _ in range(2):
                await session.run(call_model(), "When?")
        assert "".join([piece async for piece in stream.text]) == "At noon.At six."
        assert "".join([piece async for piece in stream.reasoning])
        assert [item.type async for item in stream.items] == [
            "message", "reasoning", "message", "message", "message",
        ]  # fmt: skip


async def test_the_oldest_are_forgotten_and_counted() -> None:
    async with Harness(plugins=(), sessions=SessionPolicy(history=5)) as harness:
        session = harness.session("ada", "trip")
        seen: list[Event] = []
        async with session.watch() as early:
            for number in range(10):
                await session.run(echo, str(number))
        seen = [event async for event in early.events]
        async with session.watch() as late:
            pass
        assert [event async for event in late.events] == seen[-5:]
        assert late.missed == len(seen) - 5


async def test_who_does_not_keep_up_loses_the_oldest_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_py.sessions.store.CAPACITY", 4)
    async with Harness(plugins=(), sessions=SessionPolicy(history=0)) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as stream:
            for number in range(10):
                await session.run(echo, str(number))
            events = stream.events
        left = [event async for event in events]
        assert len(left) == 4
        assert isinstance(left[-1], RunFinished)
        assert stream.dropped > 20
        assert len(harness._session_store.watchers) == 0


async def a_look(session: Session[Any]) -> str:
    async with session.watch() as stream:
        return (await anext(stream.items)).type


async def test_who_leaves_early_leaves_nothing() -> None:
    before = tasks()
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.run(echo, "one")
        for _ in range(20):
            assert await a_look(session) == "message"
        with pytest.raises(LookupError):
            async with session.watch():
                raise LookupError
        assert harness._session_store.watchers._session(session.key).watchers == []
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, SessionStream)]
    assert await left_over(before) == set()


async def test_so_many_sessions_are_remembered_and_no_more() -> None:
    async with Harness(plugins=(), sessions=SessionPolicy(cache_size=3)) as harness:
        watched = harness.session("ada", "watched")
        async with watched.watch() as stream:
            for number in range(20):
                await harness.session("ada", str(number)).run(echo, "x")
            assert len(harness._session_store.watchers) <= 4
            await watched.run(echo, "still")
            assert [item.text for item in await first(stream.items, 1)] == ["still"]
        await harness.session("ada", "last").run(echo, "x")
        assert len(harness._session_store.watchers) == 3


async def test_a_deleted_session_lets_go_who_watches_it() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        async with session.watch() as stream:
            await session.run(echo, "one")
            await harness.sessions.delete(session.key)
            assert [item.type async for item in stream.items] == ["message"]
        async with session.watch() as after:
            pass
        assert [event async for event in after.events] == []


async def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(ConfigError):
        SessionPolicy(history=-1)
    with pytest.raises(ConfigError):
        SessionPolicy(max_queued=-1)
