"""Where sessions are kept: one backend for all, compared when it is written, and shared by processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

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
    step,
)
from noetic_py.checkpoints import CheckpointBackend, Record, SqliteBackend, backend_from
from noetic_py.errors import ConfigError, LeaseLost, PositionConflict, SessionConflict, VersionConflict
from noetic_py.memory import Plan
from noetic_py.runner.plan import RunOptions
from noetic_py.testing import BackendContract
from noetic_py.testing._conformance.ids import KEPT

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
KEY = SessionKey("ada", "trip")
Ctx: TypeAlias = Context[Memory, StateBag]


@step
async def chat(text: str, ctx: Ctx) -> int:
    """Says it, and counts."""
    count = (ctx.state.get_as("count", int) or 0) + 1
    ctx.state["count"] = count
    ctx.items.append(Message.user(text))
    return count


def texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


def kept(backend: Any = None, **policy: Any) -> Harness[Memory]:
    return Harness(plugins=[], checkpoints=backend, sessions=SessionPolicy(**policy))


def files_in(folder: Path) -> set[str]:
    """Without what SQLite puts beside a file."""
    return {path.name.partition("-")[0] for path in folder.iterdir()}


@asynccontextmanager
async def made(kind: str, folder: Path) -> AsyncGenerator[CheckpointBackend]:
    backend = InMemoryBackend() if kind == "memory" else SqliteBackend(folder / "runs.db")
    async with backend:
        yield backend


backends = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@pytest.mark.clause("004-22a", "004-22b", "004-22c", "004-22d")
@backends
async def test_004_22_sessions_are_loaded_stored_listed_asked_for_and_deleted_by_user(
    kind: str, tmp_path: Path
) -> None:
    async with made(kind, tmp_path) as backend, kept(backend) as harness:
        sessions = harness.sessions
        assert (list(await harness.session("ada", "a").items()), await sessions.exists(SessionKey("ada", "a"))) == (
            [],
            False,
        )
        for user, name in (("ada", "b"), ("ada", "a"), ("bob", "a"), (None, "c"), ("-", "d")):
            await harness.session(user, name).run(chat, "x")
        # One user's, by name; nobody in particular is a user like the others.
        for user, names in (("ada", "ab"), ("bob", "a"), (None, "c"), ("", "c"), ("-", "d"), ("eve", "")):
            assert await sessions.list(user) == [SessionKey(user, name) for name in names]
        assert await sessions.exists(SessionKey("ada", "a"))
        await sessions.delete(SessionKey("ada", "a"))
        await sessions.delete(SessionKey("ada", "never was"))
        assert not await sessions.exists(SessionKey("ada", "a"))
        assert await sessions.list("ada") == [SessionKey("ada", "b")]
        assert texts(await harness.session("bob", "a").items()) == ["x"]
        # It begins anew.
        assert (await harness.session("ada", "a").run(chat, "y")).value == 1
        assert texts(await harness.session("ada", "a").items()) == ["y"]


@pytest.mark.clause("004-23a", "004-23b")
@backends
async def test_004_23_storing_over_somebody_elses_newer_state_is_refused(kind: str, tmp_path: Path) -> None:
    record = Record("TurnStarted", (), b'{"run":"r"}')
    async with made(kind, tmp_path) as backend:
        # A journal's version is its position, and 0 makes it.
        lease = await backend.acquire("s", ttl=60.0)
        assert await backend.append("s", expected_position=0, fence=lease.fence, records=[record]) == 1
        for expected in (0, 2, 7):
            with pytest.raises(PositionConflict):
                await backend.append("s", expected_position=expected, fence=lease.fence, records=[record])
        await backend.release(lease)
        later = await backend.acquire("s", ttl=60.0)
        with pytest.raises(LeaseLost):
            await backend.append("s", expected_position=1, fence=lease.fence, records=[record])
        assert list(await backend.read("s")) == [record]
        await backend.release(later)
        # A value's version is one that nothing had before, and 0 is that of none.
        version = await backend.put(("scope",), "key", b"1", expected=0)
        for expected in (0, version + 1):
            with pytest.raises(VersionConflict):
                await backend.put(("scope",), "key", b"2", expected=expected)
        found = await backend.get(("scope",), "key")
        assert found is not None
        assert (found.value, found.version) == (b"1", version)
        await backend.put(("scope",), "key", b"3", expected=version)
    # Whoever writes another backend is held to the same.
    cases = {"another_position_is_refused", "every_write_checks_the_fence", "only_the_expected_version_is_replaced"}
    assert {f"test_{case}" for case in cases} <= set(dir(BackendContract))


CONFLICTS: dict[str, tuple[type[Exception] | None, list[str]]] = {
    "fail": (SessionConflict, ["before", "quick"]),
    "merge": (None, ["before", "quick", "slow"]),
    "overwrite": (None, ["before", "slow"]),
}


@pytest.mark.clause("004-24a", "004-24b", "004-24c")
@pytest.mark.parametrize("policy", [*CONFLICTS, None])
async def test_004_24_what_happens_on_a_conflict_can_be_chosen(policy: str | None) -> None:
    begun, go = anyio.Event(), anyio.Event()

    @step
    async def work(text: str, ctx: Ctx) -> str:
        ctx.state["last"] = text
        ctx.items.append(Message.user(text))
        if text == "slow":
            begun.set()
            await go.wait()
        return text

    error, expected = CONFLICTS[policy or "fail"]
    raised: list[SessionConflict] = []
    chosen = {} if policy is None else {"on_conflict": policy}
    async with kept(lock="none", **chosen) as harness:
        session = harness.session("ada", "trip")
        await session.run(work, "before")

        async def slow() -> None:
            try:
                await session.run(work, "slow")
            except SessionConflict as conflict:
                raised.append(conflict)

        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            await begun.wait()
            await session.run(work, "quick")
            go.set()
        assert texts(await session.items()) == expected
        state = await session.state(StateBag)
        assert state is not None
        assert state["last"] == expected[-1]
    assert [type(each) for each in raised] == ([] if error is None else [error])
    for conflict in raised:
        # What was made is not lost.
        assert conflict.result is not None
        assert conflict.result.value == "slow"


async def test_004_25_sessions_can_be_kept_in_memory() -> None:
    backend = InMemoryBackend()
    async with kept(backend) as harness:
        await harness.session("ada", "trip").run(chat, "a")
    async with kept(backend) as harness:
        assert (await harness.session("ada", "trip").run(chat, "b")).value == 2
    # Without a backend they last as long as the harness.
    async with kept() as harness:
        await harness.session("ada", "trip").run(chat, "a")
        assert (await harness.session("ada", "trip").run(chat, "b")).value == 2
    async with kept() as harness:
        assert await harness.sessions.list("ada") == []


@pytest.mark.clause("004-26a", "004-26c")
async def test_004_26_sessions_can_be_kept_in_a_file_and_no_id_leads_outside(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    keys = [
        SessionKey(user, session) for user in ("..", "/", "../../x", "a/..", None) for session in ("..", ".", "/x", "~")
    ]
    async with kept(f"sqlite:{folder}/runs.db") as harness:
        for key in keys:
            assert (await harness.run(chat, repr(key), session=key)).value == 1
    async with kept(f"sqlite:{folder}/runs.db") as harness:
        for key in keys:
            assert texts(await harness.session(key.user, key.session).items()) == [repr(key)]
    assert files_in(tmp_path) == {"inside"}
    assert files_in(folder) == {"runs.db"}


@pytest.mark.clause("004-28a", "004-28b", "004-28c")
async def test_004_28_one_option_chooses_the_backend_for_runs_sessions_and_layers(tmp_path: Path) -> None:
    class Mem(Memory):
        plan: Plan = Plan()

    @step
    async def work(text: str, ctx: Context[Mem]) -> list[str]:
        await ctx.memory.plan.add(text)
        ctx.items.append(Message.user(text))
        return [item.text for item in ctx.memory.plan.items.values()]

    for text, planned in (("a", ["a"]), ("b", ["a", "b"])):
        async with Harness(plugins=[], memory=Mem(), checkpoints=f"sqlite:{tmp_path}/all.db") as harness:
            session = harness.session("ada", "trip")
            result = await session.run(work, text, run_id=text)
            assert result.value == planned
            assert texts(await session.items()) == planned
            assert sorted(info.run_id for info in await harness.runs.list(session=session.key)) == planned


PROGRAM = """
import sys
import anyio
from noetic_py import Context, Harness, Message, step


@step
async def chat(text: str, ctx: Context) -> None:
    ctx.items.append(Message.user(text))
    ctx.state["said"] = [*(ctx.state.get_as("said", list) or []), text]


async def main():
    async with Harness(checkpoints=f"sqlite:{sys.argv[1]}", plugins=[]) as harness:
        result = await harness.session("ada", "trip").run(chat, sys.argv[2])
        print([item.text for item in result.items], result.state["said"])


anyio.run(main)
"""


def test_004_30_a_second_process_goes_on_with_a_session_of_the_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")

    def process(text: str) -> str:
        command = [sys.executable, str(program), str(tmp_path / "runs.db"), text]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert process("from the web") == "['from the web'] ['from the web']"
    assert process("from a shell") == "['from the web', 'from a shell'] ['from the web', 'from a shell']"


@backends
async def test_004_31_sessions_of_the_same_name_but_different_users_are_apart(kind: str, tmp_path: Path) -> None:
    users = ["ada", "bob", None, "Ada", "ada "]
    async with made(kind, tmp_path) as backend:
        async with kept(backend) as harness:
            for user in users:
                result = await harness.session(user, "trip").run(chat, str(user))
                assert (result.value, texts(result.items)) == (1, [str(user)])
        async with kept(backend) as harness:
            for user in users:
                session = harness.session(user, "trip")
                assert texts(await session.items()) == [str(user)]
                [info] = await harness.runs.list(session=session.key)
                assert info.user_id == user


async def test_004_32_the_store_is_fixed_with_the_harness_and_no_option_of_a_call() -> None:
    here, there = InMemoryBackend(), InMemoryBackend()
    untyped: Any = kept(here)
    async with untyped as harness:
        for name in ("checkpoints", "backend", "store"):
            assert name not in RunOptions.__annotations__
            with pytest.raises(ConfigError):
                await harness.run(chat, "a", session=KEY, **{name: there})
            with pytest.raises(ConfigError):
                await harness.session("ada", "trip").run(chat, "a", **{name: there})
        await harness.run(chat, "a", session=KEY)
    assert (len(await here.list()), len(await there.list())) == (2, 0)


@pytest.mark.clause("004-26a", "004-26b", "004-26c")
@pytest.mark.parametrize("spec", ["sqlite:{}/kept/runs.db", "files:{}/kept/runs"])
async def test_004_26_a_store_in_a_local_file_keeps_every_id_inside(spec: str, tmp_path: Path) -> None:
    @step
    async def told(name: str) -> str:
        return name

    place = spec.format(tmp_path)
    async with Harness(checkpoints=place, plugins=()) as harness:
        for name in filter(str.isprintable, KEPT.values()):
            assert (await harness.run(told, name, run_id=name)).value == name
    async with backend_from(place) as backend:
        for name in KEPT.values():
            await backend.put(("user", name), name, name.encode(), expected=0)
        assert {entry.run_id for entry in await backend.list()} == set(filter(str.isprintable, KEPT.values()))
        for name in KEPT.values():
            assert [each.value for each in await backend.scan(("user", name))] == [name.encode()]
    assert names_below(tmp_path, "*") == {"kept"}
    assert names_below(tmp_path, "**/*").isdisjoint(KEPT.values())


def names_below(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in folder.glob(pattern)}
