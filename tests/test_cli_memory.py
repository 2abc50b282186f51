"""`noetic memory`, and `harness.dump_memory`: what layers keep for a user or a thread."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, SessionKey, acting_as, call_model, step
from noetic_py.access import AccessRequest, Principal
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.errors import AccessDenied, ConfigError
from noetic_py.memory import Facts, Scope, SemanticRecall, WorkingMemory
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.cli_shell import Inside, Shell
from tests.layer_runs import Letters

FLOW = """
from noetic_py.memory import Facts, Scope, WorkingMemory

class Mem(Memory):
    facts: Facts = Facts(scope=Scope.USER)
    notes: WorkingMemory = WorkingMemory()

@step
async def main(value: str) -> str:
    return value

print("loaded")

def harness(model, checkpoints) -> Harness:
    return Harness(memory=Mem(), checkpoints=checkpoints)
"""


class Mem(Memory):
    facts: Facts = Facts(scope=Scope.USER)
    notes: WorkingMemory = WorkingMemory()
    past: SemanticRecall = SemanticRecall(embedder=Letters(), scope=Scope.USER)
    once: WorkingMemory = WorkingMemory(scope=Scope.EXECUTION)
    everyone: WorkingMemory = WorkingMemory(scope=Scope.GLOBAL)


@step
async def learn(value: str, ctx: Context[Mem]) -> str:
    text = f"We live in {value}."
    await ctx.memory.facts.record_from("letter", text, "user", "home", value, text)
    await ctx.memory.past.remember(text)
    for notes in (ctx.memory.notes, ctx.memory.once, ctx.memory.everyone):
        await notes.update({"town": value})
    return value


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["memory", "sqlite", "none"])
async def test_dump_memory_has_what_belongs_to_the_owner(kind: str, tmp_path: Path) -> None:
    backends: dict[str, CheckpointBackend] = {
        "memory": InMemoryBackend(),
        "sqlite": SqliteBackend(tmp_path / "runs.db"),
    }
    async with Harness(memory=Mem(), checkpoints=backends.get(kind), plugins=()) as harness:
        await harness.run(learn, "Delft", user_id="ada", thread_id="t")
        await harness.run(learn, "Bonn", user_id="bob", thread_id="u")
        user = await harness.dump_memory(user_id="ada")
        thread = await harness.dump_memory(thread_id="t")
        both = await harness.dump_memory(user_id="ada", thread_id="t")
        nobody = await harness.dump_memory(user_id="cy", thread_id="x")
    assert (set(user), set(thread), set(both), dict(nobody)) == (
        {"facts", "past"},
        {"notes"},
        {"facts", "past", "notes"},
        {},
    )
    assert thread["notes"].state is not None
    assert thread["notes"].state.value == {"town": "Delft"}
    assert "Delft" in repr(user["facts"].state)
    assert user["past"].values
    assert "Bonn" not in repr(both)


@pytest.mark.anyio
async def test_a_session_is_a_thread() -> None:
    async with Harness(memory=Mem(), plugins=()) as harness:
        await harness.session("ada", "trip").run(learn >> call_model(ScriptedModel("ok")), "Delft")
        found = await harness.dump_memory(thread_id=SessionKey("ada", "trip").stream)
        assert found["notes"] == (await harness.session("ada", "trip").dump()).layers["notes"]


@pytest.mark.anyio
async def test_dump_memory_needs_an_owner_and_leave() -> None:
    class Own:
        async def allows(self, request: AccessRequest) -> bool:
            return request.owner == request.principal.user_id

    async with Harness(memory=Mem(), plugins=()) as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.dump_memory()
    assert caught.value.code == "memory-owner"
    async with Harness(memory=Mem(), access=Own(), plugins=()) as harness:
        with acting_as(Principal("ada")):
            assert await harness.dump_memory(user_id="ada") == {}
            with pytest.raises(AccessDenied):
                await harness.dump_memory(user_id="bob")
            with pytest.raises(AccessDenied):
                await harness.dump_memory(user_id="ada", thread_id="the thread of bob")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = Inside(tmp_path, monkeypatch, capsys)
    made.write(FLOW)
    return made


async def _fill(path: Path) -> None:
    runtime = VirtualRuntime()
    async with Harness(memory=Mem(), checkpoints=SqliteBackend(path), runtime=runtime, plugins=()) as harness:
        await harness.run(learn, "Delft\x1b[2J", user_id="ada", thread_id="t")
        await runtime.advance(86_400)
        await harness.session("ada", "trip").run(learn, "Gouda")


def filled(shell: Shell) -> None:
    """Give the folder a database with a user's memory."""
    (shell.folder / ".noetic").mkdir()
    anyio.run(_fill, shell.folder / ".noetic" / "runs.db")


def test_show_prints_what_is_kept(shell: Shell) -> None:
    filled(shell)
    done = shell.run("memory", "show", "flow.py", "--user", "ada", "--session", "trip")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "facts  version 1"
    assert "notes  version 1" in lines
    assert lines[-1] == "  town: Gouda"
    assert "      value: Gouda" in lines
    assert "      said: 2025-01-02T00:00:00+00:00" in lines
    assert "      value: Delft [2J" in lines
    assert "      superseded_by:" in lines


def test_export_prints_all_of_it_as_json(shell: Shell) -> None:
    filled(shell)
    done = shell.run("memory", "export", "flow.py", "--user", "ada", "--thread", "t")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["user"], document["thread"], document["session"]) == ("ada", "t", None)
    assert set(document["layers"]) == {"facts", "notes"}
    assert document["layers"]["notes"]["state"] == {"version": 1, "value": {"town": "Delft\x1b[2J"}}
    facts = document["layers"]["facts"]["state"]["value"]["facts"]
    assert sorted(each["value"] for each in facts.values()) == ["Delft \x1b[2J".replace(" ", ""), "Gouda"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["flow.py"], 2, "no owner is named"),
        (["flow.py", "--user", "cy"], 0, "nothing is kept"),
        (["none.py", "--user", "ada"], 2, "there is no file none.py"),
        (["flow.py", "--user", "ada", "--thread", "t", "--session", "trip"], 2, "a session is a thread of its own"),
        (["flow.py", "--user", "ada", "--db", "none.db"], 2, "there is no database"),
    ],
)
def test_what_is_asked_for_in_the_wrong_way(shell: Shell, arguments: list[str], code: int, message: str) -> None:
    filled(shell)
    done = shell.run("memory", "show", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert not (shell.folder / "none.db").exists()


def test_erase_removes_all_of_the_user_and_says_what_it_does_not_reach(shell: Shell) -> None:
    filled(shell)
    done = shell.run("memory", "erase", "flow.py", "--user", "ada", "--thread", "other", "--yes")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("erased ada: ")
    assert "2 runs" in lines[0]
    assert "1 sessions" in lines[0]
    assert any("backups" in line for line in lines[2:])
    for path in (shell.folder / ".noetic").iterdir():
        assert b"We live in" not in path.read_bytes()
        # The name is made of hexadecimal digits, which ids are made of too.
        assert re.search(rb"(?<![0-9a-f])ada(?![0-9a-f])", path.read_bytes()) is None
    # A layer that the file's harness does not have.
    assert any("'everyone'" in line for line in lines[2:])
    done = shell.run("memory", "erase", "flow.py", "--user", "ada", "-y", "--json")
    certificate = json.loads(done.stdout)
    assert (certificate["user_id"], certificate["backend"], certificate["removed"]) == ("ada", "sqlite", {})
    assert certificate["remaining"]
    assert certificate["erased_at"]


def test_erase_asks_first(shell: Shell) -> None:
    filled(shell)
    done = shell.run("memory", "erase", "flow.py", "--user", "ada")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "facts" in shell.run("memory", "show", "flow.py", "--user", "ada").stdout


VECTORS = """
from tests.layer_runs import Letters
from noetic_py.memory import Scope, SemanticRecall

class Named(Letters):
    name = "named"

class Mem(Memory):
    past: SemanticRecall = SemanticRecall(embedder=Named(), scope=Scope.USER)

@step
async def main(value: str) -> str:
    return value

def harness(model, checkpoints) -> Harness:
    return Harness(memory=Mem(), checkpoints=checkpoints)
"""


def test_reindex_gives_passages_vectors_of_another_embedder(shell: Shell) -> None:
    filled(shell)
    shell.write(VECTORS, "vectors.py")
    done = shell.run("memory", "reindex", "vectors.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 passages of 1 owner with a new vector\n"
    assert "1 of 1 owner, 2 passages with a new vector" in done.stderr
    assert shell.run("memory", "reindex", "vectors.py").stdout == "0 passages of 1 owner with a new vector\n"
    assert shell.run("memory", "reindex", "flow.py").stdout == "0 passages of 0 owners with a new vector\n"
