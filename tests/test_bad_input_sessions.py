"""What can be wrong with sessions: each has a name, says what to do, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias

import anyio
import pytest
from attrs import define

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    SessionKey,
    SessionPolicy,
    StateBag,
    errors,
    step,
)
from noetic_py.checkpoints import Record

pytestmark = pytest.mark.anyio

Ctx: TypeAlias = Context[Memory, StateBag]
Work: TypeAlias = Callable[[], Awaitable[object]]
KEY = SessionKey("ada", "trip")


@step(version="1")
async def chat(text: str, ctx: Ctx) -> str:
    """Says it."""
    ctx.items.append(Message.user(text))
    return text


def harness(backend: Any = None, **policy: Any) -> Any:
    return Harness(plugins=[], checkpoints=backend, sessions=SessionPolicy(**policy))


async def said(it: Any) -> list[str]:
    return [item.text for item in await it.session("ada", "trip").items()]


BAD_IDS = ["x" * 257, "a\nb", "a\0", "\ud800", "\u2028", 7, b"ada"]


@pytest.mark.parametrize("id", BAD_IDS, ids=ascii)
async def test_ids_that_no_part_of_a_session_can_have(id: Any) -> None:
    async with harness() as it:
        for make in (
            lambda: SessionKey(id, "s"),
            lambda: SessionKey("u", id),
            lambda: SessionKey("u", "s", app=id),
            lambda: it.session(id, "s"),
            lambda: it.session("u", id),
        ):
            with pytest.raises(errors.InvalidId, match="expected a printable text of 1 to 256") as caught:
                make()
            assert caught.value.hint
        with pytest.raises(errors.InvalidId):
            await it.sessions.list(id)


@pytest.mark.parametrize("id", ["", " ", "\u3000", None], ids=ascii)
def test_a_session_has_a_name(id: Any) -> None:
    with pytest.raises(errors.InvalidId) as caught:
        SessionKey("ada", id)
    assert caught.value.hint


def test_ids_that_are_just_allowed() -> None:
    for name in ("x" * 256, "..", "a/b", "é", "日本", "😀", "-", "'; DROP TABLE runs; --"):
        assert SessionKey(name, name, app=name).parts == (name, name, name)
    assert SessionKey("", "s") == SessionKey(None, "s", app="")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"history": []}, "history"),
        ({"thread_id": "t"}, "thread_id"),
        ({"user_id": "ada"}, "user_id"),
        ({"history": [], "user_id": "ada"}, "history, user_id"),
        ({"ctx": Context()}, "ctx"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_a_session_brings_itself(options: Any, says: str) -> None:
    async with harness(InMemoryBackend()) as it:
        with pytest.raises(errors.ConfigError, match=f"session= brings its own {says}\n") as caught:
            await it.run(chat, "x", session=KEY, **options)
        assert (caught.value.code, bool(caught.value.hint)) == ("run-option", True)
        assert not await it.sessions.exists(KEY)


@pytest.mark.parametrize("session", ["trip", ("ada", "trip"), {"user": "ada"}], ids=repr)
async def test_something_that_is_no_key(session: Any) -> None:
    async with harness() as it:
        with pytest.raises(errors.ConfigError, match="is not a valid session; expected a SessionKey") as caught:
            await it.run(chat, "x", session=session)
        assert (caught.value.code, "SessionKey(" in (caught.value.hint or "")) == ("run-option", True)


async def test_a_delivery_without_what_it_needs() -> None:
    async with harness(InMemoryBackend()) as it:
        with pytest.raises(errors.ConfigError, match="delivery_id= is of sessions") as caught:
            await it.run(chat, "x", delivery_id="d")
        assert caught.value.hint == "add session="
        for wrong in ("", "a\n", "x" * 257, 7):
            with pytest.raises(errors.InvalidId, match="delivery_id"):
                await it.run(chat, "x", session=KEY, delivery_id=wrong)
    async with harness(InMemoryBackend(), lock="none") as it:
        with pytest.raises(errors.ConfigError) as caught:
            await it.run(chat, "x", session=KEY, delivery_id="d")
        assert caught.value.code == "session-delivery"
    # Who keeps nothing cannot give a result once more: that is said with the first delivery, not with the second.
    async with harness() as it:
        with pytest.raises(errors.ConfigError, match="delivery_id=") as caught:
            await it.run(chat, "x", session=KEY, delivery_id="d")
        assert (caught.value.code, "checkpoints=" in (caught.value.hint or "")) == ("no-backend", True)
        assert await said(it) == []


@pytest.mark.parametrize(
    "given",
    [
        {"lock": "fifo"},
        {"lock": ["queue"]},
        {"persist": "never"},
        {"on_conflict": "append"},
        {"on_load_error": None},
        {"wait": -0.1},
        {"wait": float("nan")},
        {"wait": float("inf")},
        {"wait": "5"},
        {"wait": None},
        {"cache_size": -1},
        {"cache_size": 1.5},
        {"cache_size": None},
        {"max_waiting": -1},
        {"max_waiting": True},
        {"max_waiting": "3"},
    ],
    ids=repr,
)
def test_policies_that_are_none(given: Any) -> None:
    [name] = given
    with pytest.raises(errors.ConfigError, match=name) as caught:
        SessionPolicy(**given)
    assert (caught.value.code, bool(caught.value.hint)) == ("session-policy", True)


def test_something_that_is_no_policy() -> None:
    wrong: Any = "queue"
    with pytest.raises(
        errors.ConfigError, match="sessions='queue' is not a valid policy; expected a SessionPolicy"
    ) as caught:
        Harness(plugins=[], sessions=wrong)
    assert caught.value.code == "session-policy"


@pytest.mark.parametrize(
    "damage",
    [
        Record("TurnDreamt", (), b"{}"),
        Record("TurnEnded", (), b"not json"),
        Record("TurnEnded", (), b"[]"),
        Record("TurnStarted", (), b"{}"),
        Record("TurnEnded", (), b'{"run":"r","status":"completed","i":[{"$":"quantum"}]}'),
        Record("TurnEnded", (), b'{"run":"r","status":"completed","s":{"StateBag":{"c":[["=","x",null,1]]}}}'),
        Record("SessionEdited", (), b'{"i":[],"kept":["Never"]}'),
    ],
    ids=lambda damage: f"{damage.kind}-{len(damage.payload)}",
)
async def test_a_stream_that_is_damaged(damage: Record) -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(chat, "before", session=KEY)
        head = await backend.head(KEY.stream)
        assert head is not None
        await backend.append(KEY.stream, expected_position=head.position, fence=head.fence, records=[damage])
        stored = await backend.read(KEY.stream)
        session = it.session("ada", "trip")
        works: list[Work] = [
            lambda: it.run(chat, "x", session=KEY),
            lambda: session.run(chat, "x", delivery_id="d"),
            session.items,
            lambda: session.state(StateBag),
            session.clear,
        ]
        for work in works:
            with pytest.raises(errors.SessionLoadError, match="'trip' cannot be read: record 3") as caught:
                await work()
            assert "delete the session" in (caught.value.hint or "")
            assert isinstance(caught.value.__cause__, errors.CodecError)
        # Nothing was written, nobody holds it, and others are not touched.
        assert await backend.read(KEY.stream) == stored
        entry = await backend.entry(KEY.stream)
        assert entry is not None
        assert not entry.held
        assert (await it.session("bob", "trip").run(chat, "x")).value == "x"
        # What is known of it can be listed, and it can be deleted.
        assert await it.sessions.list("ada") == [KEY]
        await it.sessions.delete(KEY)
        assert (await it.run(chat, "anew", session=KEY)).value == "anew"
        assert await said(it) == ["anew"]


def first_profile() -> Any:
    @define
    class Profile:
        name: str = ""

    return Profile


def renamed_profile(version: int = 1) -> Any:
    @define
    class Profile:
        schema_version: ClassVar[int] = version
        full_name: str
        age: int = 30

        @classmethod
        def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
            return {"full_name": stored["name"]}

    return Profile


async def test_a_state_whose_type_has_changed() -> None:
    @step
    async def look(_: None, ctx: Context[Memory, Any]) -> Any:
        ctx.items.append(Message.user("looked"))
        return ctx.state

    backend = InMemoryBackend()
    first, renamed, migrating = first_profile(), renamed_profile(), renamed_profile(2)
    async with harness(backend) as it:
        session = it.session("ada", "trip")
        await session.run(look, None, state=first("Ada"))
        # Without a migration.
        works: list[Work] = [
            lambda: session.run(look, None, state=renamed("nobody")),
            lambda: session.state(renamed),
        ]
        for work in works:
            with pytest.raises(errors.CodecError, match="the stored state is not a valid Profile") as caught:
                await work()
            assert "schema_version" in (caught.value.hint or "")
        # Nothing is lost, and the old code goes on.
        assert (await session.run(look, None, state=first())).value == first("Ada")
        assert await said(it) == ["looked", "looked"]
        # With one.
        assert await session.state(migrating) == migrating("Ada", 30)
        result = await session.run(look, None, state=migrating("nobody"))
        assert (result.state, await session.state(migrating)) == (migrating("Ada", 30),) * 2
        # What is newer than the code is left as it is.
        works = [lambda: session.run(look, None, state=first()), lambda: session.state(first)]
        for work in works:
            with pytest.raises(errors.SessionLoadError, match="is of version 2, and this one is 1") as newer:
                await work()
            assert newer.value.hint == "use the newer code"
        assert (await session.run(look, None, state=migrating("nobody"))).value == migrating("Ada", 30)


async def test_a_migration_that_fails() -> None:
    @step
    async def look(_: None, ctx: Context[Memory, Any]) -> Any:
        return ctx.state

    backend, migrating = InMemoryBackend(), renamed_profile(2)

    @define
    class Profile:
        nickname: str = ""

    async with harness(backend) as it:
        session = it.session("ada", "trip")
        await session.run(look, None, state=Profile("Ada"))
        with pytest.raises(errors.CodecError, match=r"Profile\.migrate\(\) failed on a state of version 1: KeyError"):
            await session.run(look, None, state=migrating("nobody"))
        assert await session.state(Profile) == Profile("Ada")


async def test_a_sessions_stream_is_no_run() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(chat, "x", session=KEY, run_id="run")
        for taken in (KEY.stream, "session.x"):
            with pytest.raises(errors.InvalidId, match="streams of sessions") as caught:
                await it.run(chat, "x", run_id=taken)
            assert caught.value.hint
        stream = KEY.stream
        works: list[Work] = [
            lambda: it.runs.get(stream),
            lambda: it.runs.journal(stream),
            lambda: it.resume(stream, chat),
            lambda: it.plan_resume(stream, chat),
            lambda: it.fork(stream),
            lambda: it.fork(stream, at=1, state=StateBag()),
        ]
        for work in works:
            with pytest.raises(errors.RunNotFound):
                await work()
        # Looking after runs never takes a conversation away.
        await it.runs.delete(stream)
        assert [info.run_id for info in await it.runs.list()] == ["run"]
        assert await it.runs.prune(keep=0) == 1
        assert await it.runs.list(session=KEY) == []
        assert await said(it) == ["x"]
        await it.run(chat, "y", session=KEY)
        assert await said(it) == ["x", "y"]


async def test_too_many_turns_wait() -> None:
    begun, go = anyio.Event(), anyio.Event()

    @step
    async def hang(text: str, ctx: Ctx) -> None:
        ctx.items.append(Message.user(text))
        begun.set()
        await go.wait()

    async with harness(InMemoryBackend(), max_waiting=2) as it, anyio.create_task_group() as group:
        session = it.session("ada", "trip")
        group.start_soon(session.run, hang, "0")
        await begun.wait()
        for number in "12":
            group.start_soon(session.run, hang, number)
            # One after the other: trio begins tasks in any order.
            await anyio.wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(errors.Overloaded, match="2 turns of session 'trip' wait already") as caught:
                await session.run(hang, "one too many")
            assert (caught.value.waiting, bool(caught.value.hint)) == (2, True)
        # Another session has a line of its own.
        group.start_soon(it.session("bob", "trip").run, hang, "x")
        await anyio.wait_all_tasks_blocked()
        go.set()
        await anyio.wait_all_tasks_blocked()
        await session.run(hang, "3")
        assert await said(it) == ["0", "1", "2", "3"]


async def test_a_session_that_is_in_use_here() -> None:
    begun = anyio.Event()

    @step
    async def hang(_: None) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with harness(lock="reject") as it, anyio.create_task_group() as group:
        session = it.session("ada", "trip")
        group.start_soon(session.run, hang, None)
        await begun.wait()
        with pytest.raises(errors.RunBusy, match="'trip' has a turn already") as caught:
            await session.run(chat, "x")
        assert 'lock="queue"' in (caught.value.hint or "")
        assert await session.interrupt()


async def test_a_session_that_another_owner_has() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        session = it.session("ada", "trip")
        await session.run(chat, "x")
        lease = await backend.acquire(KEY.stream, ttl=60.0)
        works: list[Work] = [
            lambda: session.run(chat, "y"),
            session.clear,
            lambda: it.sessions.delete(KEY),
        ]
        for work in works:
            with pytest.raises(errors.RunBusy):
                await work()
        # Whoever only looks does not have to wait.
        assert await said(it) == ["x"]
        await backend.release(lease)
        await session.run(chat, "y")
        assert await said(it) == ["x", "y"]


CALL = FunctionCall(name="search", arguments={}, call_id="c-1")
OUTPUT = FunctionCallOutput(call_id="c-1", output="found")


@pytest.mark.parametrize("items", [[Message.user("a"), "b"], None], ids=["text", "nothing"])
async def test_an_edit_that_leaves_no_conversation(items: Any) -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        session = it.session("ada", "trip")
        await session.run(chat, "x")
        with pytest.raises(errors.ConfigError, match="the edited items are not a valid conversation") as caught:
            async with session.edit() as edit:
                edit.items = items
        assert (caught.value.code, bool(caught.value.hint)) == ("session-edit", True)
        # It is as it was, and nobody holds it.
        await session.run(chat, "y")
        assert await said(it) == ["x", "y"]


@pytest.mark.parametrize(
    "items",
    [[CALL], [OUTPUT], [OUTPUT, CALL], [CALL, OUTPUT, OUTPUT], [CALL, CALL]],
    ids=["open", "alone", "before", "twice", "calls"],
)
async def test_an_edit_that_forges_a_call_or_its_output(items: Any) -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        session = it.session("ada", "trip")
        await session.run(chat, "x")
        with pytest.raises(errors.ForgedEvent) as caught:
            async with session.edit() as edit:
                edit.items += items
        assert (caught.value.entry, bool(caught.value.hint)) == ("session", True)
        # It is as it was, and nobody holds it.
        await session.run(chat, "y")
        assert await said(it) == ["x", "y"]


async def test_an_edit_whose_block_fails_changes_nothing() -> None:
    async with harness(InMemoryBackend()) as it:
        session = it.session("ada", "trip")
        await session.run(chat, "x")

        async def fail() -> None:
            async with session.edit() as edit:
                edit.items.clear()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await said(it) == ["x"]
