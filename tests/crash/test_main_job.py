"""The main job, with the model that runs on this machine: killed twice in its middle, it asks nothing twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from tests.properties.checks import FULL

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What is the purpose of the with statement and of the as keyword in an except clause?"
SHORT = "What does a lambda expression create?"
"""The model reads less for it, and answers it in one round."""
ROUNDS = 2 if FULL else 1
"""Of two answers each. In the sample the process is killed in the first one only."""

# The example as it is. Only its model is told to write down what it is asked and that it has answered, its database to
# end the process at an append; both outside of everything that is kept.
CHILD = """
import importlib.util, json, os, signal, sys
from contextlib import asynccontextmanager

import anyio

from noetic_py import Harness
from noetic_py.checkpoints import SqliteBackend
from noetic_py.models import ModelWrapper

example, books, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
answers = 0
spec = importlib.util.spec_from_file_location("ask", example)
ask = importlib.util.module_from_spec(spec)
sys.modules["ask"] = ask
spec.loader.exec_module(ask)


def write(what, request):
    global answers
    answers += what == "answered"
    essence = [request.instructions, [getattr(item, "text", "") for item in request.items]]
    with open(books, "a") as file:
        file.write(json.dumps([what, essence]) + "\\n")


class Witness(ModelWrapper):
    @asynccontextmanager
    async def respond(self, request, /):
        write("asked", request)
        async with self.ask(self.model, request) as stream:
            yield stream
        write("answered", request)


class Mortal(SqliteBackend):
    async def append(self, run_id, **given):
        position = await super().append(run_id, **given)
        if answers and answers == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return position


def never(answer):
    return ask.until.Verdict(False, "never", answer.missing)


# No answer is good enough, so that it takes all rounds, of two answers each.
flow = ask.loop(
    ask.attempt,
    until=ask.until.verified(never) | ask.until.max_rounds(int(sys.argv[5])),
    prepare_next=lambda _, verdict, ctx: f"{ctx.input} {verdict.feedback or ''}",
)


async def main():
    async with Mortal("runs.db") as backend:
        async with Harness(model=Witness("local:smollm2"), checkpoints=backend) as harness:
            if await backend.entry("job") is None:
                result = await harness.run(flow, sys.argv[4], run_id="job", state=ask.State(), budget=ask.budget)
            else:
                result = await harness.resume("job", flow, state_type=ask.State, budget=ask.budget)
            told = [result.value.text, result.value.topic, result.model_calls, result.usage.total, result.steps]
            print(json.dumps([*told, result.status]))


anyio.run(main)
"""


def process(folder: Path, dies_at: int = 0) -> subprocess.CompletedProcess[str]:
    """One process of the job."""
    (folder / "child.py").write_text(CHILD, encoding="utf-8")
    command = [
        sys.executable,
        "child.py",
        str(ROOT / "examples" / "ask.py"),
        "books",
        str(dies_at),
        QUESTION,
        str(ROUNDS),
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def books(folder: Path) -> list[tuple[str, Any]]:
    """What the model was asked, and what it has answered."""
    lines = (folder / "books").read_text(encoding="utf-8").splitlines()
    return [(what, json.dumps(essence)) for what, essence in map(json.loads, lines)]


@pytest.mark.slow
def test_the_main_job_asks_nothing_twice_when_it_is_killed(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    alone = process(whole)
    assert alone.returncode == 0, alone.stderr
    expected = json.loads(alone.stdout)
    asked = [essence for what, essence in books(whole) if what == "asked"]
    assert len(asked) == 2 * ROUNDS
    # Each time behind the commit of an answer: the first one, and then the third.
    for answers in (1, 2)[:ROUNDS]:
        died = process(broken, answers)
        assert died.returncode == -9, died.stderr
    ended = process(broken)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == expected
    # Every question once, in the order of the job that nobody killed.
    assert [essence for what, essence in books(broken) if what == "asked"] == asked
    assert [essence for what, essence in books(broken) if what == "answered"] == asked


@pytest.mark.slow
def test_the_command_line_goes_on_with_the_main_job(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "ask.py")
    environment = {**os.environ, "NO_COLOR": "1"}
    noetic = [sys.executable, "-m", "noetic_py.cli"]
    begun = subprocess.Popen(
        [*noetic, "run", example, QUESTION if FULL else SHORT, "--run-id", "job"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert begun.stderr is not None
    for line in begun.stderr:
        # The model is at work: everything before is kept.
        if "started" in line and "sequence/loop" in line:
            break
    begun.kill()
    begun.communicate()
    done = subprocess.run(
        [*noetic, "resume", "job", "--flow", f"{example}:flow"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = re.match(r"(?s)(.+)\n\nThis is from the topic '([\w-]+)'", done.stdout)
    assert shown is not None, done.stdout
    quotation, topic = shown.groups()
    assert quotation in topics[topic]
