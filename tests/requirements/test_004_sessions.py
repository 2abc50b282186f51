"""Conversations of many users in one harness: what a session holds, and who may do a turn of it when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Context,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    step,
)
from noetic_py.checkpoints import Record
from noetic_py.errors import InvalidId, SessionLoadError
from noetic_py.journal.records import StepFinished
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx: TypeAlias = Context[Memory, StateBag]


@step
async def chat(text: str, ctx: Ctx) -> int:
    """Says it, answers, and counts the answers in the state."""
    count = (ctx.state.get_as("count", int) or 0) + 1
    ctx.state["count"] = count
    ctx.items.extend([Message.user(text), Message.assistant(f"{count}: {text}")])
    return count


def texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


def kept(backend: Any = None, **policy: Any) -> Harness[Memory]:
    return Harness(plugins=[], checkpoints=backend, sessions=SessionPolicy(**policy))


@pytest.mark.clause("004-01a", "004-01b")
async def test_004_01_one_harness_serves_many_sessions() -> None:
    model = ScriptedModel("to ada", "to bob", "to ada again")
    async with Harness(model=model, plugins=[]) as harness:
        await harness.session("ada", "trip").run(call_model(), "I am ada")
        await harness.session("bob", "trip").run(call_model(), "I am bob")
        # The key may as well be an option of the call.
        await harness.run(call_model(), "Who am I?", session=SessionKey("ada", "trip"))
    assert texts(model.requests[1].items) == ["I am bob"]
    assert texts(model.requests[2].items) == ["I am ada", "to ada", "Who am I?"]


@pytest.mark.clause("004-02a", "004-02b", "004-02c")
async def test_004_02_a_session_is_loaded_at_the_beginning_of_a_call_and_stored_at_its_end() -> None:
    backend = InMemoryBackend()
    async with kept(backend) as here, kept(backend) as there:
        assert (await here.session("ada", "trip").run(chat, "a")).value == 1
        assert (await there.session("ada", "trip").run(chat, "b")).value == 2
        # What this one has in memory is not believed: the other has written since.
        result = await here.session("ada", "trip").run(chat, "c")
    assert result.value == 3
    assert texts(result.items) == ["a", "1: a", "b", "2: b", "c", "3: c"]


@pytest.mark.clause("004-03a", "004-03b")
async def test_004_03_a_session_that_cannot_be_loaded_is_an_error() -> None:
    backend = InMemoryBackend()
    key = SessionKey("ada", "trip")
    async with kept(backend) as harness:
        await harness.run(chat, "a", session=key)
    head = await backend.head(key.stream)
    assert head is not None
    damage = Record("TurnEnded", (), b'{"run":"r","status":"completed","i":[{"$":"quantum"}]}')
    position = await backend.append(key.stream, expected_position=head.position, fence=head.fence, records=[damage])
    async with kept(backend) as harness:
        for work in (lambda: harness.run(chat, "b", session=key), harness.session("ada", "trip").items):
            with pytest.raises(SessionLoadError) as caught:
                await work()
            assert caught.value.hint
    # Nothing was written over it.
    assert len(await backend.read(key.stream)) == position
    # Beginning afresh has to be asked for; what could not be read is still there then.
    async with kept(backend, on_load_error="fresh") as harness:
        assert texts((await harness.run(chat, "b", session=key)).items) == ["b", "1: b"]
    async with kept(backend) as harness:
        assert texts((await harness.run(chat, "c", session=key)).items) == ["b", "1: b", "c", "2: c"]
    assert (await backend.read(key.stream))[position - 1] == damage


async def test_004_05_calls_to_different_sessions_run_side_by_side() -> None:
    inside: list[str | None] = []
    all_in = anyio.Event()

    @step
    async def meet(value: int, ctx: Ctx) -> int:
        inside.append(ctx.user_id)
        if len(inside) == 4:
            all_in.set()
        # Ends only when all four are in at once.
        await all_in.wait()
        return value

    async with kept() as harness, anyio.create_task_group() as group:
        for user, session in (("ada", "a"), ("ada", "b"), ("bob", "a"), (None, "a")):
            group.start_soon(harness.session(user, session).run, meet, 1)
    assert sorted(map(str, inside)) == ["None", "ada", "ada", "bob"]


@pytest.mark.clause("004-06a", "004-06b", "004-06c")
async def test_004_06_calls_to_one_session_run_in_order_of_arrival_whatever_becomes_of_each() -> None:
    ran: list[str] = []
    begun, go, inside = anyio.Event(), anyio.Event(), 0

    @step
    async def work(name: str, ctx: Ctx) -> str:
        nonlocal inside
        inside += 1
        try:
            assert inside == 1
            ran.append(name)
            if name == "first":
                begun.set()
                await go.wait()
            if name == "fails":
                raise ValueError(name)
            if name == "hangs":
                hanging.cancel()
            await anyio.lowlevel.checkpoint()
            return name
        finally:
            inside -= 1

    hanging, waiting = anyio.CancelScope(), anyio.CancelScope()

    async def turn(user: str | None, name: str, scope: anyio.CancelScope | None = None) -> None:
        with scope or anyio.CancelScope():
            await harness.session(user, "s").run(work, name, on_error="result")

    async with kept() as harness, anyio.create_task_group() as group:
        group.start_soon(turn, None, "first")
        await begun.wait()
        # The user who is nobody has one line, however that is written.
        for name, user, scope in (
            ("fails", "", None),
            ("hangs", None, hanging),
            ("never", "", waiting),
            ("last", None, None),
        ):
            group.start_soon(turn, user, name, scope)
            await anyio.wait_all_tasks_blocked()
        waiting.cancel()
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert ran == ["first", "fails", "hangs", "last"]


@pytest.mark.clause("004-07a", "004-07b")
async def test_004_07_a_call_sees_no_other_calls_unsaved_changes() -> None:
    changed, seen = anyio.Event(), anyio.Event()
    found: list[Any] = []

    @step
    async def change(value: str, ctx: Ctx) -> None:
        ctx.state["list"].append(value)
        ctx.items.append(Message.user(value))
        if value == "first":
            changed.set()
            await seen.wait()
        else:
            found.extend([list(ctx.state["list"]), texts(ctx.items)])

    @step
    async def begin(_: None, ctx: Ctx) -> None:
        ctx.state["list"] = []

    async with kept(lock="none", on_conflict="merge") as harness:
        session = harness.session("ada", "s")
        await session.run(begin, None)
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, change, "first")
            await changed.wait()
            # Neither a call beside it nor anybody who looks sees what is not stored.
            looked = await session.state(StateBag)
            assert looked is not None
            assert looked["list"] == []
            # And what is looked at is a copy.
            looked["list"].append("mine")
            await session.run(change, "second")
            seen.set()
    assert found == [["second"], ["second"]]


async def test_004_08_a_call_without_a_session_gets_a_new_conversation() -> None:
    seen: list[tuple[SessionKey | None, str, list[str]]] = []

    @step
    async def look(text: str, ctx: Ctx) -> None:
        seen.append((ctx.session, ctx.thread_id, texts(ctx.items)))
        ctx.items.append(Message.user(text))

    backend = InMemoryBackend()
    async with kept(backend) as harness:
        await harness.run(look, "a")
        await harness.run(look, "b")
        assert await harness.sessions.list(None) == []
    assert [(session, items) for session, _, items in seen] == [(None, []), (None, [])]
    assert seen[0][1] != seen[1][1]


@pytest.mark.clause("004-09a", "004-09b")
async def test_004_09_session_ids_are_checked_and_never_joined() -> None:
    for user, session in (
        ("ada", ""),
        ("ada", "  "),
        ("ada", "a\nb"),
        ("a\0", "s"),
        ("ada", "x" * 257),
        ("x" * 257, "s"),
    ):
        with pytest.raises(InvalidId):
            SessionKey(user, session)
    others: list[Any] = [None, 7]
    for wrong in others:
        with pytest.raises(InvalidId):
            SessionKey("ada", wrong)
    # However they would be joined, these are different conversations.
    keys = [
        SessionKey("a/b", "c"),
        SessionKey("a", "b/c"),
        SessionKey(None, "a/b/c"),
        SessionKey("-", "c", app="a/b"),
        SessionKey(None, "c", app="a/b"),
        SessionKey("a", "c", app="b"),
        SessionKey("a.b", "c"),
        SessionKey("..", ".."),
    ]
    backend = InMemoryBackend()
    async with kept(backend) as harness:
        for number, key in enumerate(keys):
            assert (await harness.run(chat, str(number), session=key)).value == 1
        for number, key in enumerate(keys):
            found = harness.session(key.user, key.session, app=key.app)
            assert texts(await found.items()) == [str(number), f"1: {number}"]
            assert key in await harness.sessions.list(key.user, app=key.app)


@pytest.mark.clause("004-10a", "004-10b")
async def test_004_10_a_session_names_itself_and_its_user() -> None:
    found: list[SessionKey | None] = []

    @step
    async def look(_: None, ctx: Ctx) -> None:
        found.append(ctx.session)

    backend = InMemoryBackend()
    async with kept(backend) as harness:
        session = harness.session("ada", "trip", app="planner")
        assert (session.key.user, session.key.session, session.key.app) == ("ada", "trip", "planner")
        await session.run(look, None)
        nobody = harness.session(None, "trip")
        assert nobody.key.user is None
        await nobody.run(look, None)
        assert [info.session for info in await harness.runs.list()] == [nobody.key, session.key]
    assert found == [session.key, nobody.key]


@pytest.mark.clause("004-11a", "004-11b")
async def test_004_11_a_sessions_items_can_be_read_as_a_snapshot() -> None:
    async with kept() as harness:
        session = harness.session("ada", "trip")
        assert list(await session.items()) == []
        await session.run(chat, "a")
        before: Any = await session.items()
        await session.run(chat, "b")
        assert texts(before) == ["a", "1: a"]
        assert texts(await session.items()) == ["a", "1: a", "b", "2: b"]
        with pytest.raises(AttributeError):
            before.append(Message.user("no"))
        with pytest.raises(TypeError):
            before[0] = Message.user("no")


@pytest.mark.clause("004-12a", "004-12b")
async def test_004_12_a_sessions_items_can_be_edited_outside_a_call() -> None:
    backend = InMemoryBackend()
    async with kept(backend) as harness:
        session = harness.session("ada", "trip")
        await session.run(chat, "a")
        stored = await backend.read(session.key.stream)
        async with session.edit() as edit:
            edit.items[:1] = [Message.system("They greeted.")]
            del edit.items[1:]
        assert texts(await session.items()) == ["They greeted."]
        assert texts((await session.run(chat, "b")).items) == ["They greeted.", "b", "2: b"]
        # The log is appended to: what was there before is there still.
        assert (await backend.read(session.key.stream))[: len(stored)] == stored


async def test_004_18_how_far_the_last_call_came_is_known() -> None:
    @step
    async def first(_: None) -> None: ...

    @step
    async def second(_: None) -> None:
        raise ValueError("no")

    backend = InMemoryBackend()
    async with kept(backend) as harness:
        session = harness.session("ada", "trip")
        await session.run(chat, "a")
        await session.run(first >> second, None, run_id="last", on_error="result")
    async with kept(backend) as harness:
        [last] = await harness.runs.list(session=session.key, limit=1)
        journal = await harness.runs.journal(last.run_id)
    assert (last.run_id, last.status, last.alive) == ("last", "failed", False)
    finished = [(record.path[-1], record.kind) for record in journal if isinstance(record, StepFinished)]
    assert finished == [("first", "code")]


@define
class Profile:
    name: str = ""
    likes: list[str] = field(factory=list[str])


@pytest.mark.clause("004-21a", "004-21b")
async def test_004_21_a_session_can_be_opened_changed_and_stored_outside_a_call() -> None:
    @step
    async def learn(like: str, ctx: Context[Memory, Profile]) -> list[str]:
        ctx.state.likes.append(like)
        ctx.items.append(Message.user(like))
        return list(ctx.state.likes)

    backend = InMemoryBackend()
    async with kept(backend) as harness:
        session = harness.session("ada", "trip")
        # One that does not exist is empty, and looking at it does not make it.
        assert (list(await session.items()), await session.state(Profile)) == ([], None)
        assert not await harness.sessions.exists(session.key)
        async with session.edit() as edit:
            edit.items.append(Message.system("Ada asks about tides."))
        assert await harness.sessions.exists(session.key)
        assert (await session.run(learn, "maps", state=Profile("ada"))).value == ["maps"]
    async with kept(backend) as harness:
        session = harness.session("ada", "trip")
        assert texts(await session.items()) == ["Ada asks about tides.", "maps"]
        assert await session.state(Profile) == Profile("ada", ["maps"])
        async with session.edit() as edit:
            assert edit.states == {"Profile"}
            edit.states.clear()
            del edit.items[0]
        assert texts(await session.items()) == ["maps"]
        assert (await session.run(learn, "trains", state=Profile("bob"))).value == ["trains"]


async def test_004_41_sessions_kept_in_memory_are_bounded_in_number() -> None:
    class Counting(InMemoryBackend):
        """Counts what is read of sessions, not what of runs."""

        def __init__(self) -> None:
            super().__init__()
            self.read_from: list[int] = []

        async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Any:
            if run_id in streams:
                self.read_from.append(after)
            return await super().read(run_id, after=after, limit=limit)

    streams = {SessionKey("ada", name).stream for name in "abc"}

    async def reading(cache_size: int) -> list[int]:
        backend = Counting()
        async with kept(backend, cache_size=cache_size) as harness:
            for name in "abc":
                await harness.session("ada", name).run(chat, "x")
            backend.read_from.clear()
            for name in "cba":
                await harness.session("ada", name).items()
        return backend.read_from

    # What is in memory is not read again; what had to make room is read from its beginning.
    assert await reading(3) == []
    assert [after for after in await reading(2) if after == 0] == [0]
    assert [after for after in await reading(0) if after == 0] == [0, 0, 0]


@pytest.mark.clause("004-42a", "004-42b", "004-42c")
async def test_004_42_a_sessions_items_can_be_cleared_while_its_other_data_stays() -> None:
    backend = InMemoryBackend()
    async with kept(backend) as harness:
        session = harness.session("ada", "trip")
        await session.run(chat, "a")
        await session.clear()
        # It is stored at once.
        async with kept(backend) as other:
            assert list(await other.session("ada", "trip").items()) == []
        result = await session.run(chat, "b")
        assert (result.value, texts(result.items)) == (2, ["b", "2: b"])
        # One that does not exist is no error, and is not made.
        await harness.session("ada", "never").clear()
        assert await harness.sessions.list("ada") == [session.key]


async def test_004_55_there_is_one_history_and_no_second_memory_beside_it() -> None:
    model = ScriptedModel("Hello Ada.", "You said hello.")
    backend = InMemoryBackend()
    async with Harness(model=model, plugins=[], checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        first = await session.run(call_model(), "Hello", run_id="first")
        second = await session.run(call_model(), "What did I say?", run_id="second")
        items = await session.items()
        # What a run ends with, what a session holds, and what a model is shown are the same items.
        assert list(items) == list(second.items)
        assert list(items)[: len(first.items)] == list(first.items)
        assert list(model.requests[1].items) == list(items)[:-1]
        # The second run names where it began, and repeats nothing.
        stored = b"".join(record.payload for record in await backend.read("second"))
    assert b"Hello" not in stored
