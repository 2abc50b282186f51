"""`noetic memory trial`: stored runs of a folder with other layers."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from noetic_py import Harness, Memory, call_model
from noetic_py.checkpoints import SqliteBackend
from noetic_py.testing import ScriptedModel
from tests.cli_shell import Inside, Shell

FLOW = """
from noetic_py.memory import HistoryWindow, Observational, WorkingMemory
from noetic_py.trial import Evidence

class Notes(Memory):
    notes: WorkingMemory = WorkingMemory()

class Short(Memory):
    newest: HistoryWindow = HistoryWindow(max_items=2)

class Distilled(Memory):
    seen: Observational = Observational(every=1)

SHORT = Short()
flow = call_model(ScriptedModel(), instructions="Be short.", id="ask")

def evidence(asked):
    print("asked")
    return Evidence(needed=["dog is called"], outdated=["Max"]) if asked.query == "Who barks?" else None

def failing(asked):
    return {"Who barks?": None}[asked.query]

def loose(asked):
    return ["Rex"]

async def later(asked):
    return None

print("loaded")
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = Inside(tmp_path, monkeypatch, capsys)
    made.write(FLOW)
    return made


async def _fill(path: Path, turns: int) -> None:
    model = ScriptedModel("Rex, I see.", *["Fine."] * (turns - 2), "It is Rex.")
    async with Harness(memory=Memory(), checkpoints=SqliteBackend(path), plugins=()) as harness:
        for place, text in enumerate(["The dog is called Rex", *["It rains"] * (turns - 2), "Who barks?"]):
            await harness.session("ada", "t").run(call_model(model, id="ask"), text, run_id=f"run{place}")


def filled(shell: Shell, turns: int = 4) -> list[str]:
    """Give the folder a database with a conversation; returns its runs."""
    (shell.folder / ".noetic").mkdir()
    anyio.run(_fill, shell.folder / ".noetic" / "runs.db", turns)
    return [f"run{place}" for place in range(turns)]


def test_two_bundles_are_shown_side_by_side(shell: Shell) -> None:
    runs = filled(shell)
    done = shell.run(
        "memory", "trial", *runs, "--with", "flow.py:Notes", "--against", "flow.py:SHORT", "--flow", "flow.py", "--all"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "4 runs, 4 requests, 0 model calls"
    assert lines[2].split() == ["Notes", "Short", "difference"]
    found = next(line for line in lines if line.startswith("evidence found"))
    assert found.split()[2:] == ["1.00", "0.00", "+1.00"]
    assert any(line.startswith("tokens") for line in lines)
    assert "Who barks?" in lines[-1]
    assert "loaded" not in done.stdout


def test_a_function_of_a_file_tells_the_evidence(shell: Shell) -> None:
    runs = filled(shell)
    asked = ("memory", "trial", *runs, "--with", "flow.py:Notes", "--against", "flow.py:Short", "--json")
    for name in ("flow.py:evidence", "flow.py"):
        done = shell.run(*asked, "--evidence", name)
        assert done.returncode == 0, done.stderr
        assert "asked" in done.stderr
        document = json.loads(done.stdout)
        sides = [[each["found"] for each in side["requests"]] for side in document["bundles"]]
        assert sides == [[None, None, None, 1.0], [None, None, None, 0.0]]
        assert document["bundles"][0]["requests"][-1]["outdated"] == 0


def test_json_has_each_request(shell: Shell) -> None:
    runs = filled(shell)
    done = shell.run("memory", "trial", *runs, "--with", "flow.py:Short", "--json")
    assert done.returncode == 0, done.stderr
    assert "--flow FILE:STEP adds instructions" in done.stderr
    document = json.loads(done.stdout)
    assert (document["runs"], document["model_calls"]) == (4, 0)
    [side] = document["bundles"]
    assert side["memory"] == "Short"
    last = side["requests"][-1]
    assert (last["run"], last["query"], last["found"]) == ("run3", "Who barks?", 0.0)
    assert last["shown"][-1]["content"][0]["text"] == "Who barks?"
    assert document["summary"]["tokens"]["against"] is None
    assert document["summary"]["evidence found"]["memory"] == {
        "mean": 0.0, "low": None, "high": None, "observations": 1,
    }  # fmt: skip


def test_a_long_trial_says_how_far_it_is(shell: Shell) -> None:
    runs = filled(shell, 100)
    done = shell.run("memory", "trial", *runs, "--with", "flow.py:Short")
    assert done.returncode == 0, done.stderr
    assert "5 of 100 replays" in done.stderr
    assert "100 of 100 replays" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nope", "--with", "flow.py:Short"], "there is no run 'nope'"),
        (["run0", "--with", "flow.py"], "more than one memory bundle"),
        (["run0", "--with", "flow.py:flow"], "not a valid bundle"),
        (["run0", "--with", "flow.py:Gone"], "has no 'Gone'"),
        (["run0", "--with", "flow.py:Distilled"], "layer 'seen' asks a model"),
        (["run0", "--with", "flow.py:Short", "--evidence", "flow.py:gone"], "flow.py has no 'gone'"),
        (["run0", "--with", "flow.py:Short", "--evidence", "flow.py:SHORT"], "expected a function"),
        (["run0", "--with", "flow.py:Short", "--evidence", "flow.py:later"], "later in flow.py is async"),
        (["run0", "--with", "flow.py:Short", "--evidence", "flow.py:loose"], "request 0 of run run0; expected an Ev"),
        (
            ["run0", "--with", "flow.py:Short", "--evidence", "flow.py:failing"],
            "failing in flow.py failed for request 0",
        ),
        (["run0", "--with", "flow.py:Short", "--evidence", "flow.py:failing"], "look at flow.py:"),
    ],
)
def test_what_cannot_be_tried_is_refused(shell: Shell, options: list[str], said: str) -> None:
    filled(shell)
    done = shell.run("memory", "trial", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "try:" in done.stderr
