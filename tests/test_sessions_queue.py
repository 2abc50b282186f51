"""Messages that wait for a session: each is delivered once, in its order, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    RunResult,
    SessionPolicy,
    StateBag,
    call_model,
    errors,
    loop,
    parallel,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.models import ModelRequest
from noetic_py.sessions.queue import Delivery
from noetic_py.testing import FaultyBackend, ScriptedModel
from tests.properties.checks import SEED, examples, left_over, tasks

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
STORES = pytest.mark.parametrize("store", ["none", "memory", "sqlite"])


@asynccontextmanager
async def kept_in(store: str, folder: Path) -> AsyncGenerator[CheckpointBackend | None]:
    if store == "sqlite":
        async with SqliteBackend(folder / "runs.db") as backend:
            yield backend
    else:
        yield InMemoryBackend() if store == "memory" else None


def said(items: Sequence[Item]) -> list[str]:
    """What the user has said."""
    return [item.text for item in items if isinstance(item, Message) and item.role == "user"]


def is_accepted(items: Sequence[Item]) -> bool:
    """Whether a provider takes it: nothing but outputs of its calls stands between a round's calls and the rest."""
    waiting: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCall):
            waiting.add(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            waiting.remove(item.call_id)
        elif waiting:
            return False
    return not waiting


@step
async def echo(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.user(text))
    return text


@step
async def given(message: str | Message, ctx: Ctx) -> str:
    return message if isinstance(message, str) else " ".join(getattr(part, "text", "") for part in message.content)


class Search:
    """An agent whose one tool waits to be let go."""

    def __init__(self, rounds: int = 1) -> None:
        self.begun, self.go = anyio.Event(), anyio.Event()
        self.requests: list[list[Item]] = []
        self.rounds = rounds

        @tool
        async def search(query: str) -> str:
            """Search."""
            self.begun.set()
            await self.go.wait()
            return "found"

        self.agent = loop(call_model(tools=[search]), until=until.no_tool_calls())
        self.model = ScriptedModel(*[self.answer] * 100)

    def answer(self, request: ModelRequest) -> Any:
        self.requests.append(list(request.items))
        if len(self.requests) <= self.rounds:
            return FunctionCall(name="search", arguments={"query": "tides"})
        return f"answer {len(self.requests)}"


async def drained(session: Any, flow: Any) -> list[RunResult[Any, Any]]:
    """Do the turns of all that waits."""
    results: list[RunResult[Any, Any]] = []
    while (result := await session.next_turn(flow, on_error="result")) is not None:
        results.append(result)
    return results


@STORES
async def test_a_turn_for_each_message_in_the_order_of_arrival(store: str, tmp_path: Path) -> None:
    async with kept_in(store, tmp_path) as backend, Harness(plugins=(), checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        other = harness.session("bob", "trip")
        await other.send("not hers")
        sent = [await session.send(text) for text in ("one", "two", "three")]
        assert {each.durable for each in sent} == {store != "none"}
        assert [each.message for each in await session.queued()] == ["one", "two", "three"]
        assert [result.value for result in await drained(session, echo)] == ["one", "two", "three"]
        assert said(await session.items()) == ["one", "two", "three"]
        assert await session.queued() == ()
        assert await session.next_turn(echo) is None
        assert [each.message for each in await other.queued()] == ["not hers"]


@STORES
async def test_between_two_rounds_the_model_reads_it_and_nothing_is_between_a_call_and_its_output(
    store: str, tmp_path: Path
) -> None:
    search = Search()
    async with (
        kept_in(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, model=search.model) as harness,
        anyio.create_task_group() as group,
    ):
        session = harness.session("ada", "trip")
        group.start_soon(session.run, search.agent, "go")
        await search.begun.wait()
        await session.send("hurry", deliver="between_rounds")
        await session.send("later")
        await session.send("please", deliver="between_rounds")
        search.go.set()
        with anyio.fail_after(10):
            while len(await session.queued()) > 1:
                await anyio.lowlevel.checkpoint()
        assert said(search.requests[0]) == ["go"]
        assert said(search.requests[1]) == ["go", "hurry", "please"]
        assert is_accepted(search.requests[1])
        [result] = await drained(session, search.agent)
        assert result.status == "completed"
        assert said(await session.items()) == ["go", "hurry", "please", "later"]
        group.cancel_scope.cancel()


@STORES
async def test_a_turn_that_ends_before_leaves_it_to_the_next(store: str, tmp_path: Path) -> None:
    search = Search(rounds=0)
    async with (
        kept_in(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, model=search.model) as harness,
    ):
        session = harness.session("ada", "trip")
        await session.send("hurry", deliver="between_rounds")
        # It has one round, and so there is nothing between two.
        await session.run(search.agent, "go")
        assert [each.message for each in await session.queued()] == ["hurry"]
        assert len(await drained(session, search.agent)) == 1
        assert said(await session.items()) == ["go", "hurry"]


async def test_a_path_of_its_own_takes_nothing_that_is_for_the_conversation() -> None:
    search = Search(rounds=2)
    both = parallel(search.agent, search.agent)
    async with Harness(plugins=(), model=search.model) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")
        group.start_soon(session.run, both, "go")
        await search.begun.wait()
        await session.send("hurry", deliver="between_rounds")
        search.go.set()
        [result] = await drained(session, echo)
        assert result.value == "hurry"
        assert not any("hurry" in said(request) for request in search.requests)


@STORES
async def test_an_interrupt_ends_the_turn_and_goes_before_what_waits(store: str, tmp_path: Path) -> None:
    search = Search()
    results: list[RunResult[Any, Any]] = []
    async with (
        kept_in(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, model=search.model) as harness,
        anyio.create_task_group() as group,
    ):
        session = harness.session("ada", "trip")

        async def told(result: RunResult[Any, Any]) -> None:
            results.append(result)
            if len(results) == 3:
                group.cancel_scope.cancel()

        await session.send("go")
        group.start_soon(lambda: session.serve(search.agent, on_turn=told))
        await search.begun.wait()
        await session.send("later")
        assert (await session.send("stop", deliver="interrupt")).interrupted
    assert [result.status for result in results] == ["interrupted", "completed", "completed"]
    assert said(search.requests[-1]) == ["go", "stop", "later"]
    assert is_accepted(search.requests[-1])


async def test_an_interrupt_of_nothing_is_the_next_turn() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.send("first")
        assert not (await session.send("second", deliver="interrupt")).interrupted
        assert [result.value for result in await drained(session, echo)] == ["second", "first"]


async def test_what_was_said_stays_when_its_turn_keeps_nothing() -> None:
    @step
    async def breaks(text: str, ctx: Ctx) -> str:
        raise ValueError(text)

    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.send("one")
        with pytest.raises(errors.StepFailed):
            await session.next_turn(breaks)
        assert await session.next_turn(breaks) is None
        assert said(await session.items()) == ["one"]


@STORES
async def test_a_delivery_is_taken_once(store: str, tmp_path: Path) -> None:
    search = Search()
    async with (
        kept_in(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, model=search.model) as harness,
        anyio.create_task_group() as group,
    ):
        session = harness.session("ada", "trip")
        first = await session.send("one", delivery_id="m-1")
        assert (first.duplicate, first.delivery_id) == (False, "m-1")
        assert (await session.send("one", delivery_id="m-1")).duplicate
        group.start_soon(session.next_turn, search.agent)
        await search.begun.wait()
        assert (await session.send("one", delivery_id="m-1")).duplicate
        for _ in range(2):
            await session.send("two", delivery_id="m-2", deliver="between_rounds")
        search.go.set()
        await drained(session, echo)
        for name in ("m-1", "m-2"):
            assert (await session.send("again", delivery_id=name)).duplicate
        assert await drained(session, echo) == []
        assert said(await session.items()) == ["one", "two"]


async def test_a_process_later_the_message_is_still_there(tmp_path: Path) -> None:
    pictured = Message.user(["look", "there"])
    for number in range(2):
        async with Harness(plugins=(), checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
            session = harness.session("ada", "trip")
            if number == 0:
                await session.send("hello", deliver="interrupt")
                await session.send(pictured, deliver="between_rounds")
            else:
                first, second = await session.queued()
                assert (first.message, first.deliver) == ("hello", "interrupt")
                assert isinstance(second.message, Message)
                assert second.message.content == pictured.content
                assert [result.value for result in await drained(session, given)] == ["hello", "look there"]


async def test_so_many_and_no_more_wait() -> None:
    async with Harness(plugins=(), sessions=SessionPolicy(max_queued=2)) as harness:
        session = harness.session("ada", "trip")
        for text in ("one", "two"):
            await session.send(text)
        with pytest.raises(errors.LimitExceeded) as caught:
            await session.send("three")
        assert caught.value.limit == 2
        first = await session.next_turn(echo)
        assert first is not None
        assert first.value == "one"
        await session.send("three")
        assert [result.value for result in await drained(session, echo)] == ["two", "three"]


async def test_what_cannot_be_sent_is_refused() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        wrong: list[tuple[Any, dict[str, Any], type[Exception]]] = [
            (3, {}, errors.ConfigError),
            (Message.assistant("hello"), {}, errors.ConfigError),
            ("hello", {"deliver": "soon"}, errors.ConfigError),
            ("hello", {"delivery_id": ""}, errors.InvalidId),
            (Message(role="user", content="x", extra={"tool_calls": []}), {}, errors.ForgedEvent),
        ]
        for message, options, error in wrong:
            with pytest.raises(error):
                await session.send(message, **options)
        with pytest.raises(errors.ConfigError):
            await session.next_turn(echo, run_id="mine")
        with pytest.raises(errors.ConfigError):
            await session.serve(echo, poll=0)
        assert await session.queued() == ()
    async with Harness(plugins=(), sessions=SessionPolicy(lock="none")) as harness:
        with pytest.raises(errors.ConfigError):
            await harness.session("ada", "trip").send("hello")


async def test_deleting_a_session_forgets_what_waits_for_it() -> None:
    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.send("hello")
        await harness.sessions.delete(session.key)
        assert await session.queued() == ()


async def test_turns_that_are_saved_later_are_not_done_again(tmp_path: Path) -> None:
    policy = SessionPolicy(persist="manual")
    async with Harness(plugins=(), checkpoints=f"sqlite:{tmp_path / 'runs.db'}", sessions=policy) as harness:
        session = harness.session("ada", "trip")
        for text in ("one", "two"):
            await session.send(text)
        assert [result.value for result in await drained(session, echo)] == ["one", "two"]
        assert len(await session.queued()) == 2
        assert await session.save() == 2
        assert await session.queued() == ()
        assert said(await session.items()) == ["one", "two"]


async def test_serving_ends_with_the_harness_and_leaves_no_task() -> None:
    before = tasks()
    async with Harness(plugins=()) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")
        group.start_soon(session.serve, echo)
        await session.send("one")
        with anyio.fail_after(10):
            while await session.queued():
                await anyio.lowlevel.checkpoint()
            await harness.shutdown()
    assert await left_over(before) == set()


async def test_whoever_serves_is_told_of_a_turn_that_fails() -> None:
    @step
    async def breaks(text: str, ctx: Ctx) -> str:
        raise ValueError(text)

    async with Harness(plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.send("one")
        with pytest.raises(errors.StepFailed):
            await session.serve(breaks)


MODES: tuple[Delivery, ...] = ("next_turn", "between_rounds", "interrupt")


class Chatter:
    """Anybody says anything at any moment, while the agent goes on for a few rounds in each turn."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.sent: dict[str, str] = {}

        @tool
        async def think() -> str:
            """Think."""
            await self.pause()
            return "so"

        self.agent = loop(call_model(tools=[think]), until=until.no_tool_calls())
        self.model = ScriptedModel(*[self.answer] * 10_000)

    def answer(self, request: ModelRequest) -> Any:
        assert is_accepted(request.items)
        texts = said(request.items)
        assert len(texts) == len(set(texts))
        return FunctionCall(name="think", arguments={}) if self.dice.random() < 0.6 else "done"

    async def pause(self) -> None:
        for _ in range(self.dice.randrange(12)):
            await anyio.lowlevel.checkpoint()

    async def talk(self, session: Any, count: int) -> None:
        for number in range(count):
            await self.pause()
            mode = self.dice.choices(MODES, (5, 5, 2))[0]
            self.sent[f"{mode} {number}"] = mode
            for _ in range(self.dice.choice((1, 1, 2))):
                await session.send(f"{mode} {number}", deliver=mode, delivery_id=f"d-{number}")


@STORES
@pytest.mark.parametrize("seed", range(examples(4, 100)))
async def test_whatever_is_said_when_is_delivered_once_and_in_order(store: str, seed: int, tmp_path: Path) -> None:
    chatter = Chatter(random.Random(f"{SEED} {seed} {store}"))
    async with (
        kept_in(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, model=chatter.model) as harness,
    ):
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(session.serve, chatter.agent)
            with anyio.fail_after(60):
                await chatter.talk(session, 25)
                while await session.queued():
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        found = said(await session.items())
        assert sorted(found) == sorted(chatter.sent)
        for mode in MODES:
            assert [text for text in found if chatter.sent[text] == mode] == [
                text for text in chatter.sent if chatter.sent[text] == mode
            ], mode


class Dying(FaultyBackend):
    """Dies at what is put and removed as well."""

    async def put(self, scope: Any, key: str, value: bytes, *, expected: int | None = None) -> int:
        self._check()
        number = await self._begin()
        found = await super().put(scope, key, value, expected=expected)
        await self._end(number)
        return found

    async def remove(self, scope: Any, key: str, *, expected: int | None = None) -> bool:
        self._check()
        number = await self._begin()
        found = await super().remove(scope, key, expected=expected)
        await self._end(number)
        return found


async def a_life(backend: CheckpointBackend) -> tuple[list[Item], int]:
    """Send what was to be sent, as often as it takes, and do the turns."""
    rounds: list[int] = []

    def answer(request: ModelRequest) -> Any:
        rounds.append(1)
        assert is_accepted(request.items)
        last = [item for item in request.items if not isinstance(item, Message) or item.role == "user"][-1]
        asks = isinstance(last, Message) and last.text in ("one", "two")
        return FunctionCall(name="look", arguments={}) if asks else f"re: {said(request.items)[-1]}"

    async with Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*[answer] * 100)) as harness:
        session = harness.session("ada", "trip")

        @tool
        async def look() -> str:
            """Look."""
            for text in ("between", "last"):
                deliver: Delivery = "between_rounds" if text == "between" else "next_turn"
                await session.send(text, deliver=deliver, delivery_id=text)
            return "seen"

        agent = loop(call_model(tools=[look]), until=until.no_tool_calls())
        for text in ("one", "two"):
            await session.send(text, delivery_id=text)
        await drained(session, agent)
        assert await session.queued() == ()
        return list(await session.items()), len(rounds)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whenever_the_process_dies_each_message_is_delivered_once(when: Any) -> None:
    whole, _ = await a_life(InMemoryBackend())
    assert said(whole) == ["one", "between", "two", "last"]
    deaths = 0
    while True:
        backend = Dying(InMemoryBackend(), dies_at=deaths + 1, when=when)
        with backend.outlived():
            await a_life(backend)
        if not backend.dead:
            break
        deaths += 1
        backend.revive()
        items, _ = await a_life(backend)
        assert said(items) == said(whole), deaths
        assert is_accepted(items)
    assert deaths > 15
