"""The command line and the runs that are kept: going on with them, looking at them, tidying them up."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py.checkpoints import SqliteBackend
from noetic_py.cli.database import flag
from tests.cli_shell import SHOUT, TIMEOUT, Inside, Shell, environment, posix, read_until
from tests.warm import forked


def listed(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    done = shell.run("runs", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def shown(shell: Shell, name: str = "last", *arguments: str) -> dict[str, Any]:
    done = shell.run("show", name, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def log(shell: Shell) -> list[str]:
    """What the steps of `FRAGILE` have done in the world."""
    path = shell.folder / "log"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


# Its second step fails until there is a file `ok`; every body that starts writes its name.
FRAGILE = """
def note(name):
    with open("log", "a") as log:
        log.write(name + "\\n")

@step
async def first(x: str) -> str:
    note("first")
    return x + "1"

@step
async def second(x: str) -> str:
    note("second")
    if not Path("ok").exists():
        raise ValueError("the tide is out")
    return x + "2"

@step
async def third(x: str) -> str:
    note("third")
    return x + "3"

flow = first >> second >> third
"""

# Its second step waits while there is a file `gate`: as long as a test wants.
GATED = FRAGILE.replace(
    'if not Path("ok").exists():\n        raise ValueError("the tide is out")',
    'while Path("gate").exists():\n        await anyio.sleep(0.01)',
)


@pytest.fixture
def begun(shell: Shell) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `GATED` in a process of its own, whose second step is in flight."""
    shell.write(GATED)
    (shell.folder / "gate").touch()
    process = shell.start("run", "flow.py", "x")
    assert process.stderr is not None
    read_until(process.stderr, b"started  sequence/second")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# -- where runs are kept


def test_a_run_is_kept_in_its_folder(inside: Inside) -> None:
    inside.write(SHOUT)
    assert inside.run("run", "flow.py", "a").stdout == "A\n"
    (found,) = listed(inside)
    assert (found["status"], found["alive"], found["flow"]) == ("completed", False, "shout")
    assert found["source"] == "flow.py:shout"
    folder = inside.folder / ".noetic"
    assert (folder / "runs.db").exists()
    assert (folder / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_the_source_is_found_from_the_same_folder(inside: Inside, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "far.py"
    (inside.folder / "flows").mkdir()
    inside.write(FRAGILE, "flows/near.py")
    elsewhere.write_bytes((inside.folder / "flows" / "near.py").read_bytes())
    for target, source in [
        ("flows/near.py", "flows/near.py:flow"),
        (str(inside.folder / "flows" / "near.py:first"), "flows/near.py:first"),
        (str(elsewhere), f"{elsewhere.resolve()}:flow"),
    ]:
        inside.run("run", target, "x")
        assert listed(inside, "--limit", "1")[0]["source"] == source
        (inside.folder / "ok").touch()
        named = ["--flow", source] if target == str(elsewhere) else []
        assert inside.run("resume", "last", *named).returncode == 0
        (inside.folder / "ok").unlink()


@pytest.mark.parametrize(
    ("option", "variable", "made"),
    [
        (None, None, ".noetic/runs.db"),
        ("other/my.db", None, "other/my.db"),
        (None, "its.db", "its.db"),
        ("other.db", "its.db", "other.db"),
        ("other.db", "none", "other.db"),
        ("none", None, None),
        ("none", "its.db", None),
        (None, "none", None),
    ],
)
def test_which_database(inside: Inside, option: str | None, variable: str | None, made: str | None) -> None:
    inside.write(FRAGILE)
    options = [] if option is None else ["--db", option]
    done = inside.run("run", "flow.py", "x", *options, NOETIC_DB=variable or "")
    assert done.returncode == 1
    databases = [path.relative_to(inside.folder).as_posix() for path in inside.folder.rglob("*.db")]
    assert databases == ([] if made is None else [made])
    assert ("noetic resume" in done.stderr) == (made is not None)
    last = done.stderr.splitlines()[-1]
    assert (f"--db {option}" in last) == (option is not None and made is not None)
    assert inside.run("runs", *options, NOETIC_DB=variable or "").returncode == (2 if made is None else 0)


@pytest.mark.parametrize(
    "arguments", [("runs",), ("show", "last"), ("tail", "x"), ("resume", "x"), ("fork", "x"), ("prune", "--keep", "1")]
)
def test_no_database(inside: Inside, arguments: tuple[str, ...]) -> None:
    done = inside.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no database .noetic/runs.db" in done.stderr
    assert "--db PATH" in done.stderr
    assert not (inside.folder / ".noetic").exists()
    done = inside.run(*arguments, NOETIC_DB="none")
    assert done.returncode == 2
    assert "NOETIC_DB says none" in done.stderr


def test_a_file_that_is_no_database(inside: Inside) -> None:
    inside.write(SHOUT)
    (inside.folder / "my.db").write_text("this is a diary, and a long one\n" * 50, encoding="utf-8")
    for arguments in (("run", "flow.py", "a"), ("runs",)):
        done = inside.run(*arguments, "--db", "my.db")
        assert (done.returncode, done.stdout) == (1, "")
        assert "my.db" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_address_that_no_plugin_serves(inside: Inside) -> None:
    inside.write(SHOUT)
    address = "postgresql://ada:secret@127.0.0.1:1/runs"
    for arguments in (("run", "flow.py", "a"), ("runs",)):
        done = inside.run(*arguments, "--db", address, NOETIC_PLUGINS="")
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install noetic-postgres" in done.stderr
        assert inside.run(*arguments, NOETIC_DB=address, NOETIC_PLUGINS="").stderr == done.stderr
        assert "secret" not in done.stderr
    assert not list(inside.folder.rglob("*.db"))


@pytest.mark.parametrize(
    ("address", "made", "shown"),
    [
        ("sqlite:deep/my.db", "deep/my.db", " --db deep/my.db"),
        ("files:kept", "kept/runs", " --db files:kept"),
        ("./odd:name.db", "odd:name.db", " --db odd:name.db"),
    ],
)
def test_db_takes_what_checkpoints_takes(inside: Inside, address: str, made: str, shown: str) -> None:
    inside.write(FRAGILE)
    assert inside.run("runs", "--db", address).returncode == 2
    assert [path.name for path in inside.folder.iterdir()] == ["flow.py"]
    done = inside.run("run", "flow.py", "x", "--db", address, "--run-id", "tide")
    assert f"noetic resume tide{shown}\n" in done.stderr
    assert (inside.folder / made).exists()
    (inside.folder / "ok").touch()
    assert inside.run("resume", "tide", "--db", address).stdout == "x123\n"
    assert inside.run("runs", NOETIC_DB=address).stdout.splitlines()[1].startswith("tide  completed")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("sqlte:my.db", 'did you mean "sqlite:..."?'),
        ("file:runs", 'did you mean "files:..."?'),
        ("SQLITE:my.db", 'did you mean "sqlite:..."?'),
        ("postgressql://host/db", 'did you mean "postgresql:..."?'),
        ("sqlite:", "sqlite:runs.db"),
        ("odd:name.db", "files:... memory:..."),
    ],
)
def test_an_address_that_is_none_makes_nothing(inside: Inside, address: str, said: str) -> None:
    inside.write(SHOUT)
    for arguments in (("run", "flow.py", "a"), ("runs",)):
        done = inside.run(*arguments, "--db", address)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert address.partition(":")[0] in done.stderr
    assert [path.name for path in inside.folder.iterdir() if path.name != "__pycache__"] == ["flow.py"]


@pytest.mark.parametrize(
    ("place", "said", "shown"),
    [
        ("files:kept runs", None, " --db 'files:kept runs'"),
        ("acme://host/runs", None, " --db acme://host/runs"),
        ("acme://ada@host:5/runs", "other.db", " --db acme://ada@host:5/runs"),
        ("acme://ada:secret@host/runs", None, " --db ..."),
        ("acme://host/runs?password=secret", None, " --db ..."),
        ("acme://ada:secret@host/runs", "acme://ada:secret@host/runs", ""),
        (Path("my.db"), "acme://host/runs", " --db my.db"),
    ],
)
def test_an_address_on_a_command_line_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch, place: Path | str, said: str | None, shown: str
) -> None:
    monkeypatch.delenv("NOETIC_DB", raising=False)
    if said is not None:
        monkeypatch.setenv("NOETIC_DB", said)
    assert flag(place) == shown


def test_run_ids(inside: Inside) -> None:
    inside.write(SHOUT)
    assert inside.run("run", "flow.py", "a", "--run-id", "monday").returncode == 0
    assert listed(inside)[0]["run_id"] == "monday"
    done = inside.run("run", "flow.py", "a", "--run-id", "monday")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is there already" in done.stderr
    for bad in ("last", ""):
        assert inside.run("run", "flow.py", "a", "--run-id", bad).returncode == 2
    assert len(listed(inside)) == 1


def test_a_harness_of_the_file_keeps_as_it_likes(inside: Inside) -> None:
    inside.write(FRAGILE + "harness = Harness()\n", "none.py")
    done = inside.run("run", "none.py", "x")
    assert done.returncode == 1
    assert "noetic resume" not in done.stderr
    assert not (inside.folder / ".noetic").exists()
    done = inside.run("run", "none.py", "x", "--db", "my.db")
    assert done.returncode == 2
    assert "--db has no effect" in done.stderr

    inside.write(FRAGILE + "def harness():\n    return Harness(checkpoints='sqlite:own.db')\n", "own.py")
    done = inside.run("run", "own.py", "x")
    assert done.stderr.splitlines()[-1].endswith("--db own.db")
    (inside.folder / "ok").touch()
    assert inside.run("resume", "last", "--db", "own.db").stdout == "x123\n"
    assert log(inside)[-3:] == ["second", "second", "third"]


def test_a_harness_function_takes_the_database(inside: Inside) -> None:
    inside.write(
        FRAGILE
        + "def harness(model: str | None, checkpoints) -> Harness:\n"
        + "    print(model, checkpoints is not None)\n"
        + "    return Harness(checkpoints=checkpoints)\n"
    )
    done = inside.run("run", "flow.py", "x", "--model", "a:b", "--db", "my.db")
    assert "a:b True" in done.stderr
    (inside.folder / "ok").touch()
    done = inside.run("resume", "last", "--db", "my.db", "--model", "c:d")
    assert (done.returncode, done.stdout) == (0, "x123\n")
    assert "c:d True" in done.stderr
    assert "None False" in inside.run("run", "flow.py", "x", "--db", "none").stderr


def test_what_cannot_be_stored_says_how_to_do_without(inside: Inside) -> None:
    inside.write("@step\nasync def flow(x: str) -> object:\n    return object()\n")
    done = inside.run("run", "flow.py", "a")
    assert done.returncode == 1
    assert "cannot be stored" in done.stderr
    assert "or --db none, to run without a database" in done.stderr
    assert inside.run("run", "flow.py", "a", "--db", "none").returncode == 0


# -- going on


@posix
def test_a_killed_process_repeats_nothing(shell: Shell, inside: Inside, begun: subprocess.Popen[bytes]) -> None:
    (found,) = listed(inside)
    assert (found["status"], found["alive"]) == ("running", True)
    done = inside.run("resume", "last")
    assert done.returncode == 2
    assert "error: " in done.stderr

    begun.send_signal(signal.SIGKILL)
    assert begun.wait(TIMEOUT) == -signal.SIGKILL
    assert log(shell) == ["first", "second"]
    (found,) = listed(inside)
    assert (found["status"], found["alive"]) == ("running", False)
    assert "running, not alive" in inside.run("runs").stdout
    assert "running, not alive" in inside.run("show", "last").stdout
    done = inside.run("tail", "last")
    assert done.returncode == 1
    assert "finished   sequence/first" in done.stdout
    stays = "no process has the run any more, and its end is not written"
    assert f"{stays}: noetic resume {found['run_id']}" in done.stderr

    (shell.folder / "gate").unlink()
    done = shell.run("resume", "last")
    assert (done.returncode, done.stdout) == (0, "x123\n")
    # The step in flight runs again, the one that had finished does not.
    assert log(shell) == ["first", "second", "second", "third"]
    assert "sequence/first" not in done.stderr
    assert listed(inside)[0]["status"] == "completed"
    assert inside.run("resume", "last").stdout == "x123\n"
    assert len(log(shell)) == 4


@posix
def test_an_interrupted_run_goes_on(inside: Inside, begun: subprocess.Popen[bytes]) -> None:
    begun.send_signal(signal.SIGINT)
    out, said = begun.communicate(timeout=TIMEOUT)
    assert (begun.returncode, out) == (130, b"")
    (found,) = listed(inside)
    assert (found["status"], found["alive"]) == ("interrupted", False)
    assert said.decode().splitlines()[-1] == f"to resume it: noetic resume {found['run_id']}"
    (inside.folder / "gate").unlink()
    done = inside.run("resume", found["run_id"][:20])
    assert (done.returncode, done.stdout) == (0, "x123\n")
    assert log(inside) == ["first", "second", "second", "third"]


@posix
def test_a_resumed_run_is_interrupted_likewise(shell: Shell, inside: Inside) -> None:
    shell.write(FRAGILE)
    assert inside.run("run", "flow.py", "x").returncode == 1
    text = (shell.folder / "flow.py").read_text(encoding="utf-8")
    waits = text.replace('note("third")', 'note("third")\n    await anyio.sleep_forever()')
    (shell.folder / "flow.py").write_text(waits, encoding="utf-8")
    (shell.folder / "ok").touch()
    process = shell.start("resume", "last", "--json")
    assert process.stderr is not None
    read_until(process.stderr, b"started  sequence/third")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143
    assert json.loads(out)["status"] == "interrupted"
    (shell.folder / "flow.py").write_text(text, encoding="utf-8")
    assert inside.run("resume", "last").stdout == "x123\n"
    assert log(shell) == ["first", "second", "second", "third", "third"]


def test_what_failed_is_tried_again(inside: Inside) -> None:
    inside.write(FRAGILE)
    done = inside.run("run", "flow.py", "x", "--run-id", "tide")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "to resume it: noetic resume tide"
    assert inside.run("resume", "tide").returncode == 1
    (inside.folder / "ok").touch()
    done = inside.run("resume", "tide", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"], found["value"], found["run_id"]) == (0, "completed", "x123", "tide")
    assert log(inside) == ["first", "second", "second", "second", "third"]


def test_the_state_goes_on(inside: Inside) -> None:
    inside.write(
        FRAGILE.replace("flow = first", "").replace(">> second >> third", "")
        + """
@define
class State:
    seen: int = 0

state = State

@step
async def count(x: str, ctx: Context[Memory, State]) -> str:
    ctx.state.seen += 1
    return x

flow = count >> second >> count

def show(result: RunResult[str, State]) -> None:
    print(result.value, result.state.seen)
"""
    )
    assert inside.run("run", "flow.py", "x").returncode == 1
    (inside.folder / "ok").touch()
    assert inside.run("resume", "last").stdout == "x2 2\n"


def test_a_budget_can_be_raised(inside: Inside) -> None:
    inside.write(FRAGILE + "budget = Budget(steps=2, seconds=60)\n")
    (inside.folder / "ok").touch()
    done = inside.run("run", "flow.py", "x")
    assert done.returncode == 4
    assert "noetic resume" in done.stderr
    assert inside.run("resume", "last").returncode == 4
    done = inside.run("resume", "last", "--budget", "steps=3", "--budget", "cost=0.50")
    assert (done.returncode, done.stdout) == (0, "x123\n")
    assert log(inside) == ["first", "second", "third"]


@pytest.mark.parametrize("budget", ["steps=many", "hope=3", "steps", "cost=much", "seconds=x", "steps=-1"])
def test_wrong_budgets(inside: Inside, budget: str) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x")
    done = inside.run("resume", "last", "--budget", budget)
    assert (done.returncode, done.stdout) == (2, "")
    assert "  try: " in done.stderr
    assert listed(inside)[0]["status"] == "failed"


def test_an_abort_holds(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def flow(x: str, ctx: Context) -> str:
            ctx.abort("rough sea")
            await anyio.sleep_forever()
        """
    )
    done = inside.run("run", "flow.py", "x")
    assert done.returncode == 3
    assert "noetic resume" not in done.stderr
    done = inside.run("resume", "last")
    assert done.returncode == 3
    assert "aborted (rough sea)" in done.stderr
    done = inside.run("resume", "last", "--dry-run", "--flow", "flow.py")
    assert (done.returncode, done.stdout) == (0, "nothing is left to run\n")


# -- what going on would do


def test_a_dry_run_runs_nothing(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x")
    before = (log(inside), listed(inside))
    done = inside.run("resume", "last", "--dry-run", "--flow", "flow.py")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["run", "sequence"],
        ["replay", "sequence/first"],
        ["run", "sequence/second"],
        ["run", "sequence/third"],
    ]
    assert "failed; 1 replay, 3 run, 0 differ, 0 unknown" in done.stderr
    found = json.loads(inside.run("resume", "last", "--dry-run", "--json", "--flow", "flow.py").stdout)
    assert (found["status"], found["diverges"]) == ("failed", False)
    assert [step["action"] for step in found["steps"]] == ["run", "replay", "run", "run"]
    assert (log(inside), listed(inside)) == before


def test_changed_code_is_found_and_can_be_adopted(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x")
    inside.write(FRAGILE.replace('x + "1"', 'x + "one"'))
    done = inside.run("resume", "last", "--dry-run", "--flow", "flow.py")
    assert done.returncode == 1
    assert "differ   sequence/first  code: the step's code or options have changed since it ran" in done.stdout
    (inside.folder / "ok").touch()
    done = inside.run("resume", "last")
    assert (done.returncode, done.stdout) == (1, "")
    assert "  at: sequence/first" in done.stderr
    assert "--on-diverge adopt" in done.stderr
    assert inside.run("resume", "last", "--on-diverge", "adopt").stdout == "xone23\n"
    assert inside.run("resume", "last", "--on-diverge", "hope").returncode == 2


def test_another_flow_is_no_flow_of_the_run(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x")
    done = inside.run("resume", "last", "--flow", "flow.py:first")
    assert done.returncode == 1
    assert "was started with step 'sequence'" in done.stderr
    done = inside.run("resume", "last", "--flow", "flow.py:first", "--dry-run")
    assert done.returncode == 1
    assert "differ   first" in done.stdout


def test_a_flow_that_is_not_there_any_more(inside: Inside) -> None:
    path = inside.write(FRAGILE)
    inside.run("run", "flow.py", "x", "--run-id", "tide")
    path.rename(inside.folder / "moved.py")
    for more in ([], ["--dry-run"]):
        done = inside.run("resume", "tide", *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the flow of run 'tide' was flow.py:flow, which is not there" in done.stderr
        assert "noetic resume tide --flow FILE:STEP" in done.stderr
    inside.write(SHOUT)
    done = inside.run("resume", "tide")
    assert done.returncode == 2
    assert "flow.py has no 'flow'" in done.stderr
    assert "noetic resume tide --flow FILE:STEP" in done.stderr
    (inside.folder / "ok").touch()
    assert inside.run("resume", "tide", "--flow", "moved.py:flow").stdout == "x123\n"


PLANTED = """
open({canary!r}, "w").close()
from noetic_py import step

@step
async def flow(x: str) -> str:
    return x
"""
ELSEWHERE = """
import anyio
from noetic_py import Harness, step

@step
async def flow(x: str) -> str:
    raise ValueError(x)

async def main() -> None:
    async with Harness(checkpoints="sqlite:given.db") as harness:
        for run_id, source in {sources!r}.items():
            await harness.run(flow, "x", run_id=run_id, source=source, on_error="result")

anyio.run(main)
"""


def run_program(inside: Inside, name: str) -> None:
    command = [*forked("tests.warm_program"), name]
    subprocess.run(command, cwd=inside.folder, env=environment(), check=True, timeout=TIMEOUT)


def test_what_a_database_names_is_imported_only_below_the_folder(
    inside: Inside, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An absolute path, one with `..`, a link to elsewhere, and a link whose name holds the colon."""
    outside = tmp_path_factory.mktemp("elsewhere")
    canary = outside / "ran"
    evil = outside / "evil.py"
    evil.write_text(PLANTED.format(canary=str(canary)))
    (inside.folder / "link.py").symlink_to(evil)
    (inside.folder / "folder").symlink_to(outside)
    (inside.folder / "here.py").write_text("")
    (inside.folder / "here.py:flow").symlink_to(evil)
    up = os.path.relpath(evil, inside.folder)
    sources = {"abs": f"{evil}:flow", "up": f"{up}:flow", "link": "link.py:flow", "folder": "folder/evil.py:flow"}
    sources["colon"] = "here.py:flow"
    (inside.folder / "make.py").write_text(ELSEWHERE.format(sources=sources))
    run_program(inside, "make.py")
    for run_id in sources:
        for more in ([], ["--dry-run"]):
            done = inside.run("resume", run_id, "--db", "given.db", *more)
            assert (done.returncode, done.stdout) == (2, "")
            assert "is not below this folder, so it is not imported" in done.stderr
            assert "--flow FILE:STEP" in done.stderr
    assert not canary.exists()
    inside.run("resume", "abs", "--db", "given.db", "--flow", str(evil))
    assert canary.exists()


@pytest.mark.parametrize("place", [".noetic/runs.db", "files:kept"])
def test_what_came_with_a_database_is_not_imported(inside: Inside, place: str) -> None:
    folder = inside.folder / (".noetic" if place.startswith(".") else "kept")
    if place.startswith("."):
        folder.mkdir()
    sources = {"in": f"{folder.name}/evil.py:flow", "link": "link.py:flow", "long": f"{'x' * 5000}.py:flow"}
    spec = place if place.startswith("files:") else f"sqlite:{place}"
    (inside.folder / "make.py").write_text(ELSEWHERE.format(sources=sources).replace("sqlite:given.db", spec))
    run_program(inside, "make.py")
    (folder / "evil.py").write_text(f"open('ran', 'w').close()\n{FRAGILE}")
    (inside.folder / "link.py").symlink_to(folder / "evil.py")
    for run_id in sources:
        done = inside.run("resume", run_id, "--db", place)
        assert (done.returncode, done.stdout) == (2, "")
        assert ("which is not there" if run_id == "long" else "is a part of its database") in done.stderr
    assert not (inside.folder / "ran").exists()


def test_a_dry_run_imports_only_what_the_command_line_names(inside: Inside) -> None:
    inside.write(f"open('ran', 'w').close()\n{FRAGILE}")
    inside.run("run", "flow.py", "x")
    (inside.folder / "ran").unlink()
    done = inside.run("resume", "last", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "noetic resume last --dry-run --flow flow.py:flow" in done.stderr
    assert not (inside.folder / "ran").exists()
    assert inside.run("resume", "last", "--dry-run", "--flow", "flow.py:flow").returncode == 0


def test_a_run_of_a_program_does_not_say_where_its_flow_is(inside: Inside) -> None:
    main = "Harness(checkpoints='sqlite:my.db').run_sync(first, 'x', run_id='p')\n"
    inside.write(f"{FRAGILE}if __name__ == '__main__':\n    {main}")
    run_program(inside, "flow.py")
    done = inside.run("resume", "p", "--db", "my.db")
    assert done.returncode == 2
    assert "does not record the file of its flow 'first'" in done.stderr
    assert inside.run("show", "p", "--db", "my.db").returncode == 0
    assert inside.run("resume", "p", "--db", "my.db", "--flow", "flow.py:first").stdout == "x1\n"


def test_a_run_that_never_began(inside: Inside) -> None:
    async def acquire() -> None:
        async with SqliteBackend(inside.folder / "my.db") as backend:
            await backend.acquire("early", ttl=1.0)

    anyio.run(acquire)
    assert "early" in inside.run("runs", "--db", "my.db").stdout
    assert inside.run("show", "early", "--db", "my.db").returncode == 0
    assert inside.run("tail", "early", "--db", "my.db").returncode == 1
    for more in ([], ["--dry-run"]):
        done = inside.run("resume", "early", "--db", "my.db", *more)
        assert done.returncode == 2
        assert "has no records yet" in done.stderr


# -- which run


def test_which_run_is_meant(inside: Inside) -> None:
    inside.write(SHOUT)
    for name in ("tide-1", "tide-2", "tide", "ebb"):
        inside.run("run", "flow.py", "a", "--run-id", name)
    for said, meant in {
        "last": "ebb",
        "e": "ebb",
        "tide-1": "tide-1",
        "tide-": None,
        "tide": "tide",
        "t": None,
    }.items():
        done = inside.run("show", said, "--json")
        if meant is None:
            assert (done.returncode, done.stdout) == (2, "")
            assert f"runs begin with {said!r}: " in done.stderr
            assert "tide-1" in done.stderr
        else:
            assert json.loads(done.stdout)["run_id"] == meant
    for unknown in ("nobody", "tide-11", ""):
        done = inside.run("show", unknown)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"there is no run {unknown!r}" in done.stderr
        assert "noetic runs" in done.stderr


def test_no_run_yet(inside: Inside) -> None:
    inside.write(SHOUT)
    inside.run("run", "flow.py", "a", "--run-id", "only")
    inside.run("prune", "--keep", "0", "--yes")
    assert inside.run("runs").stdout.split() == ["RUN", "STATUS", "FLOW", "RECORDS", "UPDATED"]
    assert listed(inside) == []
    done = inside.run("show", "last")
    assert done.returncode == 2
    assert "there is no run yet" in done.stderr


# -- looking


def test_runs(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x", "--run-id", "bad")
    for number in range(3):
        inside.run("run", "flow.py:first", "x", "--run-id", f"good-{number}")
    table = [line.split() for line in inside.run("runs").stdout.splitlines()]
    assert [row[:4] for row in table[1:]] == [
        *([f"good-{number}", "completed", "flow.py:first", "3"] for number in (2, 1, 0)),
        ["bad", "failed", "flow.py:flow", "6"],
    ]
    assert [info["run_id"] for info in listed(inside, "--status", "failed")] == ["bad"]
    done = inside.run("runs", "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert "there are more" in done.stderr
    assert inside.run("runs", "--limit", "4").stderr == ""
    done = inside.run("runs", "--status", "happy")
    assert done.returncode == 2
    assert "budget_exceeded" in done.stderr
    assert inside.run("runs", "--limit", "0").returncode == 2


TRIP = """
@define
class Trip:
    port: str
    days: int

@tool
def chart(port: str) -> str:
    "Find the chart."
    return f"chart of {port}"

@step(retry=Retry(attempts=2, initial=0.0))
async def plan(port: str) -> Trip:
    if not Path("tried").exists():
        Path("tried").touch()
        raise OSError("a wet chart")
    return Trip(port, 3)

@step
async def say(trip: Trip) -> str:
    return f"{trip.days} days at {trip.port}?"

model = ScriptedModel(
    [FunctionCall(call_id="c1", name="chart", arguments='{"port": "Brest"}')],
    "A fine\\nidea.",
    usage=TokenUsage(30, 4),
    cost="0.01",
)
again = lambda output, verdict, ctx: Trip("Brest", 1)
flow = plan >> say >> loop(call_model(model, tools=[chart]), until=until.no_tool_calls())
"""


def test_show_needs_no_code_of_the_flow(inside: Inside) -> None:
    path = inside.write(TRIP)
    assert inside.run("run", "flow.py", "Brest", "--run-id", "trip").returncode == 0
    path.unlink()
    text = inside.run("show", "trip").stdout
    facts = dict(line.split(None, 1) for line in text.partition("\n\n")[0].splitlines())
    assert facts["status"] == "completed (no tool calls)"
    assert facts["source"] == "flow.py:flow"
    assert facts["input"] == '"Brest"'
    assert facts["value"] == r'"A fine\nidea."'
    assert facts["used"] == "5 steps, 2 model calls, 68 tokens (60 in, 8 out), $0.02"
    assert facts["journal"].endswith("4 items in the conversation")
    steps = text.partition("steps\n")[2].partition("\n\n")[0].splitlines()
    assert steps == [
        "  ✓ sequence",
        '    ✓ plan  code  2 attempts  Trip(port="Brest", days=3)',
        '    ✓ say  code  "3 days at Brest?"',
        "    ✓ loop  2 rounds",
        "      ✓ call_model[0]  model  34 tokens  $0.01",
        "        ✓ chart[0]  tool_call",
        r'      ✓ call_model[1]  model  34 tokens  $0.01  "A fine\nidea."',
    ]
    assert "  sequence/plan (attempt 1, tried again): OSError: a wet chart" in text
    assert text.splitlines()[-1].split() == [facts["journal"].split()[0], "ended", "completed", "no", "tool", "calls"]

    found = shown(inside, "trip")
    assert (found["value"], found["cost"], found["items"], found["model_calls"]) == ("A fine\nidea.", "0.02", 4, 2)
    plan = next(step for step in found["steps"] if step["path"] == ["sequence", "plan"])
    assert plan["output"] == {"$": "object:Trip", "port": "Brest", "days": 3}
    assert (plan["attempts"], plan["state"], plan["error"]) == (2, "finished", None)
    assert [failure["message"] for failure in found["failures"]] == ["OSError: a wet chart"]
    assert "conversation" not in found


FAULTY = """
@tool
async def chart(port: str) -> str:
    "Draw a chart."
    raise OSError("a wet chart")

flow = loop(
    call_model(
        ScriptedModel(FunctionCall(name="chart", arguments={"port": "Brest"}), lambda request: "No chart."),
        tools=[chart],
    ),
    until=until.no_tool_calls(),
)
"""


def test_a_tool_call_that_failed_is_shown_as_failed(inside: Inside) -> None:
    inside.write(FAULTY)
    done = inside.run("run", "flow.py", "Brest")
    assert (done.returncode, done.stdout) == (0, "No chart.\n")
    assert "failed   loop/call_model[0]/chart[0]: tool 'chart' failed: OSError: a wet chart" in done.stderr
    text = inside.run("show", "last").stdout
    assert "    ✗ chart[0]  tool_call  failed  tool 'chart' failed: OSError: a wet chart" in text
    assert "failures\n  loop/call_model[0]/chart[0] (attempt 1): tool 'chart' failed: OSError: a wet chart" in text
    (call,) = (step for step in shown(inside, "last")["steps"] if step["path"][-1] == "chart[0]")
    assert (call["state"], call["error"]) == ("failed", "tool 'chart' failed: OSError: a wet chart")


def test_the_conversation(inside: Inside) -> None:
    path = inside.write(TRIP)
    inside.run("run", "flow.py", "Brest")
    path.unlink()
    assert inside.run("show", "last", "--items").stdout.splitlines() == [
        "user: 3 days at Brest?",
        'call chart {"port": "Brest"}',
        "output: chart of Brest",
        "assistant: A fine",
        "  idea.",
    ]
    found = shown(inside, "last", "--items")["conversation"]
    assert [item["type"] for item in found] == ["message", "function_call", "function_call_output", "message"]


def test_a_decided_value_of_a_class_needs_no_code_either(inside: Inside) -> None:
    path = inside.write(TRIP + "flow = plan >> loop(say, until=until.max_rounds(2), prepare_next=again)\n")
    assert inside.run("run", "flow.py", "Brest").stdout == "1 days at Brest?\n"
    path.unlink()
    said = inside.run("tail", "last").stdout
    assert 'Trip(port="Brest"' in said
    assert inside.run("show", "last").returncode == 0


def test_show_and_tail_tell_how_far_steps_have_come(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def copy(pages: int, ctx: Context) -> int:
            ctx.progress.set({"page": 2})
            ctx.progress.at(("another",)).finish()
            raise ValueError("no paper")

        flow = copy
        """
    )
    assert inside.run("run", "flow.py", "4").returncode == 1
    text = inside.run("show", "last").stdout
    assert '\nprogress   copy  {"page": 2}\nprogress   another  done\n' in text
    assert shown(inside)["progress"] == [
        {"path": ["copy"], "value": {"page": 2}, "done": False},
        {"path": ["another"], "value": None, "done": True},
    ]
    run_id = listed(inside)[0]["run_id"]
    lines = [" ".join(line.split()[1:]) for line in inside.run("tail", run_id).stdout.splitlines()]
    assert {'progress copy {"page": 2}', "progress another done"} <= set(lines)


def test_a_wide_run_is_shown_in_few_lines(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def one(x: int) -> int:
            if x == 40:
                raise ValueError("forty")
            return x

        flow = settle([one.bind(n) for n in range(60)])
        """
    )
    assert inside.run("run", "flow.py", "--db", "my.db").returncode == 0
    text = inside.run("show", "last", "--db", "my.db").stdout
    assert "    ✗ one[40]  code  failed  ValueError: forty" in text
    assert "    … 40 more (40 finished), all with --all" in text
    assert len(text.splitlines()) < 45
    everything = inside.run("show", "last", "--db", "my.db", "--all").stdout
    assert [line.split()[1] for line in everything.splitlines() if " one[" in line and line.startswith("    ")][:3] == [
        "one[0]",
        "one[1]",
        "one[2]",
    ]
    assert everything.count("one[") >= 60


def test_failures_of_parallel_paths_are_told_once_each(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def inner(x: int) -> int:
            raise ValueError(f"no {x}")

        flow = each(inner >> inner)
        """
    )
    assert inside.run("run", "flow.py", "[7]").returncode == 1
    found = shown(inside)
    failures = [(failure["path"], failure["message"].partition("\n")[0]) for failure in found["failures"]]
    assert failures[0] == (["each", "sequence[0]", "inner"], "ValueError: no 7")
    assert [path for path, _ in failures[1:]] == [["each"]]


@posix
def test_tail_follows_a_run_to_its_end(shell: Shell, begun: subprocess.Popen[bytes]) -> None:
    following = shell.start("tail", "last")
    assert following.stdout is not None
    seen = read_until(following.stdout, b"sequence/first")
    assert following.poll() is None
    (shell.folder / "gate").unlink()
    assert begun.wait(TIMEOUT) == 0
    out, said = following.communicate(timeout=TIMEOUT)
    lines = (seen + out).decode().splitlines()
    assert following.returncode == 0
    assert said == b""
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, len(lines) + 1)]
    assert lines[-1].split() == [str(len(lines)), "ended", "completed"]


def test_tail_as_json(inside: Inside) -> None:
    inside.write(SHOUT)
    inside.run("run", "flow.py", "a")
    records = [json.loads(line) for line in inside.run("tail", "last", "--json").stdout.splitlines()]
    assert [record["record"] for record in records] == ["RunStarted", "StepFinished", "RunEnded"]
    assert records[1]["path"] == ["shout"]
    assert records[1]["output"] == "A"


@posix
@pytest.mark.parametrize("number", [signal.SIGINT])
def test_tail_is_left(shell: Shell, begun: subprocess.Popen[bytes], number: signal.Signals) -> None:
    following = shell.start("tail", "last")
    assert following.stdout is not None
    read_until(following.stdout, b"sequence/first")
    following.send_signal(number)
    _, said = following.communicate(timeout=TIMEOUT)
    assert following.returncode == 128 + number
    assert b"Traceback" not in said
    assert begun.poll() is None


@posix
def test_tail_ends_when_nobody_reads(shell: Shell, inside: Inside) -> None:
    shell.write(SHOUT)
    inside.run("run", "flow.py", "a")
    following = shell.start("tail", "last")
    assert following.stdout is not None
    following.stdout.close()
    assert following.wait(TIMEOUT) == 0
    assert following.stderr is not None
    assert following.stderr.read() == b""
    following.stderr.close()


# -- forks and differences


def test_a_fork_goes_on_by_itself(inside: Inside) -> None:
    inside.write(FRAGILE)
    (inside.folder / "ok").touch()
    inside.run("run", "flow.py", "x", "--run-id", "trunk")
    at = next(
        record["position"]
        for line in inside.run("tail", "trunk", "--json").stdout.splitlines()
        if (record := json.loads(line))["path"] == ["sequence", "second"]
    )
    done = inside.run("fork", "trunk", "--at", str(at))
    assert done.returncode == 0
    new = done.stdout.strip()
    assert f"noetic resume {new}" in done.stderr
    assert listed(inside, "--limit", "1")[0]["source"] == "flow.py:flow"
    assert inside.run("resume", new).stdout == "x123\n"
    assert log(inside) == ["first", "second", "third", "third"]

    assert json.loads(inside.run("fork", "trunk", "--json").stdout)["position"] == shown(inside, "trunk")["position"]
    done = inside.run("fork", "trunk", "--at", "1000")
    assert (done.returncode, done.stdout) == (2, "")


def test_where_two_runs_part(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x", "--run-id", "bad")
    (inside.folder / "ok").touch()
    inside.run("run", "flow.py", "x", "--run-id", "good")
    inside.run("run", "flow.py", "x", "--run-id", "like")
    done = inside.run("diff", "good", "like")
    assert (done.returncode, done.stdout) == (0, "no difference in 6 records\n")
    done = inside.run("diff", "bad", "good")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "they differ at sequence/second, after 2 records in common"
    assert "StepFailed" in done.stdout
    assert "StepFinished" in done.stdout
    found = json.loads(inside.run("diff", "good", "bad", "--json").stdout)
    assert (found["same"], found["difference"]["path"]) == (False, ["sequence", "second"])
    assert found["difference"]["right"]["error"]["message"] == "ValueError: the tide is out"
    assert inside.run("diff", "good", "nobody").returncode == 2
    # What went on after a failure has done the same in the end, and failed on the way.
    inside.run("resume", "bad")
    assert inside.run("diff", "bad", "good").returncode == 1


def test_other_inputs_and_other_outputs(inside: Inside) -> None:
    inside.write(FRAGILE)
    (inside.folder / "ok").touch()
    inside.run("run", "flow.py", "x", "--run-id", "a")
    inside.run("run", "flow.py", "y", "--run-id", "b")
    assert inside.run("diff", "a", "b").stdout.splitlines() == [
        "they differ at the run itself, after 0 records in common",
        "  input",
        '    a: #1 "x"',
        '    b: #1 "y"',
    ]
    inside.write(FRAGILE.replace('x + "2"', 'x + "two"'))
    inside.run("run", "flow.py", "x", "--run-id", "c")
    lines = inside.run("diff", "a", "c").stdout.splitlines()
    assert lines[0] == "they differ at sequence/second, after 2 records in common"
    assert lines[1:4] == ["  output", '    a: #4 "x12"', '    c: #4 "x1two"']
    assert "  fingerprint" in lines


def test_ids_and_the_order_of_paths_make_no_difference(inside: Inside) -> None:
    inside.write(
        """
        order = iter(Path("order").read_text().split())
        delays = {name: float(next(order)) for name in "ab"}

        @step
        async def a(x: str) -> str:
            await anyio.sleep(delays["a"])
            return x

        @step
        async def b(x: str) -> str:
            await anyio.sleep(delays["b"])
            return x

        flow = parallel([a, b]) >> call_model(ScriptedModel("yes"))
        flow = call_model(ScriptedModel("hello")) >> parallel([a, b])
        """
    )
    for delays in ("0 0.1", "0.1 0"):
        (inside.folder / "order").write_text(delays, encoding="utf-8")
        assert inside.run("run", "flow.py", "x").returncode == 0
    first, second = (info["run_id"] for info in listed(inside))
    assert "no difference" in inside.run("diff", first, second).stdout


@posix
def test_a_run_that_was_cut_off_and_went_on_is_like_one_that_was_not(
    inside: Inside, begun: subprocess.Popen[bytes]
) -> None:
    begun.kill()
    begun.wait(TIMEOUT)
    (inside.folder / "gate").unlink()
    assert inside.run("resume", "last").returncode == 0
    cut = listed(inside)[0]["run_id"]
    assert inside.run("run", "flow.py", "x").returncode == 0
    done = inside.run("diff", cut, "last")
    assert done.returncode == 0, done.stdout


# -- tidying up


def test_prune(inside: Inside) -> None:
    inside.write(FRAGILE)
    inside.run("run", "flow.py", "x", "--run-id", "bad")
    for number in range(4):
        inside.run("run", "flow.py:first", "x", "--run-id", f"good-{number}")
    assert inside.run("prune", "--older-than", "1d", "--yes").stdout == "0 runs forgotten\n"
    assert inside.run("prune", "--older-than", "1d").stdout == "0 runs forgotten\n"
    done = inside.run("prune", "--keep", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "3 runs would be deleted" in done.stderr
    assert "add --yes" in done.stderr
    assert len(listed(inside)) == 5
    assert json.loads(inside.run("prune", "--keep", "1", "--yes", "--json").stdout) == {"forgotten": 3}
    assert [info["run_id"] for info in listed(inside)] == ["good-3", "bad"]
    statuses = ("--status", "failed", "--status", "completed")
    assert inside.run("prune", "--older-than", "0s", *statuses, "-y").stdout == "2 runs forgotten\n"
    assert listed(inside) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--older-than", "soon"),
        ("--older-than", "9999999d"),
        ("--keep", "-1"),
        ("--keep", "1", "--status", "happy"),
    ],
)
def test_wrong_prunes(inside: Inside, arguments: tuple[str, ...]) -> None:
    inside.write(SHOUT)
    inside.run("run", "flow.py", "a")
    done = inside.run("prune", "--yes", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(listed(inside)) == 1


@posix
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 2, 2)])
def test_prune_asks(shell: Shell, inside: Inside, answer: str, code: int, left: int) -> None:
    import pty

    shell.write(SHOUT)
    for text in "ab":
        inside.run("run", "flow.py", text)
    master, slave = pty.openpty()
    process = shell.start("prune", "--keep", "0", stdin=slave)
    assert process.stderr is not None
    read_until(process.stderr, b"Delete 2 runs for good?")
    os.write(master, answer.encode())
    process.communicate(timeout=TIMEOUT)
    os.close(slave)
    os.close(master)
    assert process.returncode == code
    assert len(listed(inside)) == left


@posix
def test_prune_leaves_what_goes_on(inside: Inside, begun: subprocess.Popen[bytes]) -> None:
    assert inside.run("prune", "--keep", "0", "--status", "running", "--yes").stdout == "0 runs forgotten\n"
    begun.kill()
    begun.wait(TIMEOUT)
    assert inside.run("prune", "--keep", "0", "--status", "running", "--yes").stdout == "1 run forgotten\n"


# -- all of them


@pytest.mark.parametrize(
    "command", ["run", "resume", "runs", "show", "tail", "fork", "answer", "diff", "prune", "graph"]
)
def test_every_command_has_help(inside: Inside, command: str) -> None:
    done = inside.run(command, "--help")
    assert done.returncode == 0
    assert f"Usage: noetic {command}" in done.stdout
    if command != "graph":
        assert "--db" in done.stdout


def test_a_database_that_cannot_be_opened_is_a_failure_and_no_wrong_usage(inside: Inside) -> None:
    inside.write(SHOUT)
    folder = inside.folder / "kept.db"
    folder.mkdir()
    for arguments in (("run", "flow.py", "a"), ("resume", "last"), ("runs",), ("show", "last")):
        done = inside.run(*arguments, "--db", str(folder))
        assert done.returncode == 1, arguments
        assert "it is a directory" in done.stderr, arguments


# -- one bad run among others

KEPT = """
@step
async def flow(x: str) -> str:
    return x

@step
async def asking(x: str, ctx: Context) -> str:
    return await ctx.ask(Ask("Sure?", str))
"""


def _damage(folder: Path, kind: str) -> None:
    """Damage the journal of the run that waits, and what lists know of another one."""
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "runs")) as connection:
            connection.execute(
                "UPDATE transactions SET body = zeroblob(length(body)) WHERE id = (SELECT max(id) FROM transactions)"
            )
            connection.execute("UPDATE runs SET status = 'failed' WHERE run_id = 'torn'")
            connection.commit()
        return
    for path in folder.rglob("head"):
        text = path.read_bytes()
        if b"torn" in text:
            path.write_bytes(text.replace(b"completed", b"cancelled"))
        elif b"waits" in text:
            for file in path.parent.iterdir():
                if file.name != "head":
                    file.write_bytes(bytes(len(file.read_bytes())))


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_damaged_run_hides_no_other(inside: Inside, kind: str) -> None:
    inside.write(KEPT)
    db = ("--db", f"{kind}:runs")
    for run_id in ("good1", "torn", "good2"):
        assert inside.run("run", "flow.py:flow", "x", "--run-id", run_id, *db).returncode == 0
    inside.run("run", "flow.py:asking", "x", "--run-id", "waits", *db)
    _damage(inside.folder, kind)
    done = inside.run("runs", *db)
    assert done.returncode == 0
    told = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()[1:]}
    assert len(told) == 4
    assert [told.pop(name) for name in ("good1", "good2", "waits")] == ["completed", "completed", "unreadable"]
    assert list(told.values()) == ["unreadable"]
    assert done.stderr.count("cannot be read") == 2
    assert "run waits cannot be read: run 'waits' is damaged after position" in done.stderr
    found = {each["run_id"]: each["problem"] for each in json.loads(inside.run("runs", "--json", *db).stdout)}
    assert (found["good1"], bool(found["waits"])) == (None, True)
    for name in ("good1", "good2"):
        shown = inside.run("show", name, *db)
        assert (shown.returncode, "completed" in shown.stdout) == (0, True)
        assert inside.run("tail", name, *db).returncode == 0
    shown = inside.run("show", "waits", *db)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "run 'waits' is damaged" in shown.stderr
    shown = inside.run("show", "torn", *db)
    # In files the head is all that there is of a run's name; in SQLite the journal can be read all the same.
    assert (shown.returncode, "problem    the row of run 'torn' is damaged" in shown.stdout) == (
        (0, True) if kind == "sqlite" else (2, False)
    )
    (newest,) = [line.split()[0] for line in inside.run("runs", "--limit", "1", *db).stdout.splitlines()[1:]]
    assert newest == "waits"
    done = inside.run("run", "flow.py:flow", "x", "--run-id", "good3", *db)
    assert done.returncode == 0
