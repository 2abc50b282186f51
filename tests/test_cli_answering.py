"""`noetic answer`, and what the other commands say of a run that waits."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.cli_shell import TIMEOUT, Inside, Shell, environment, posix, read_until

PAYING = """


@tool(needs_approval=True, expires=3600.0)
async def pay(amount: int) -> str:
    return f"paid {amount}"

def clerk(request):
    told = [item.output for item in request.items if isinstance(item, FunctionCallOutput)]
    calls = [FunctionCall(name="pay", arguments={"amount": n}, call_id=f"c{n}") for n in (10, 20)]
    return ", ".join(told) if told else calls

@step
async def report(text: str, ctx: Context[Memory, StateBag]) -> str:
    name = await ctx.ask(Ask("Whose bills?", str))
    count = await ctx.ask(Ask("How often?", int))
    return f"{text} for {name}, {count} times"

flow = loop(call_model(ScriptedModel(*[clerk] * 3), tools=[pay]), until=until.no_tool_calls()) >> report
"""


def pending(shell: Shell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.run("show", "last", "--json").stdout)["pending"]
    return found


def test_from_the_first_request_to_the_last(shell: Shell, inside: Inside) -> None:
    shell.write(PAYING)
    done = inside.run("run", "flow.py", "go", "--json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (5, "suspended")
    assert [each["call_id"] for each in json.loads(done.stdout)["pending"]] == ["c10", "c20"]
    assert "approval  pay(amount=10)" in done.stderr
    assert "to answer: noetic answer" in done.stderr
    assert [each["arguments"] for each in pending(inside)] == [{"amount": 10}, {"amount": 20}]
    text = inside.run("show", "last").stdout
    assert "waits for\n" in text
    assert "    until 20" in text

    one = inside.run("answer", "last", "c20", "--approve", "--by", "ada")
    assert (one.returncode, one.stdout.splitlines()[0]) == (0, "1 request answered")
    assert "pay(amount=10)" in one.stdout
    two = inside.run("answer", "last", "--reject", "--reason", "too much", "--json")
    assert json.loads(two.stdout) | {"run_id": ""} == {
        "run_id": "",
        "answered": 1,
        "status": "suspended",
        "pending": [],
    }
    assert "to resume it: noetic resume" in two.stderr
    assert "answered   sequence/loop/call_model[0]/pay[1]  approved by ada" in inside.run("tail", "last").stdout

    assert inside.run("resume", "last").returncode == 5
    assert inside.run("answer", "last", "--value", "7").returncode == 0
    assert inside.run("resume", "last").returncode == 5
    (request,) = pending(inside)
    assert (request["prompt"], request["schema"]) == ("How often?", {"type": "integer"})
    wrong = inside.run("answer", "last", request["key"][:30], "--value", "often")
    assert wrong.returncode != 0
    assert "'often' is not of type 'integer'" in wrong.stderr
    assert [each["key"] for each in pending(inside)] == [request["key"]]
    assert inside.run("answer", "last", "--value", "3").returncode == 0
    end = inside.run("resume", "last")
    assert (end.returncode, end.stdout) == (0, "The call was rejected: too much, paid 20 for 7, 3 times\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--approve",), "2 requests match"),
        (("c10", "--approve", "--reject"), "say different things"),
        (("c10", "--value", "1"), "an approval takes no value"),
        (("c10", "--arguments", "{}"), "--arguments goes with --approve"),
        (("c10", "--approve", "--arguments", "[1]"), "'[1]' is not a valid JSON object"),
        (("c10", "--approve", "--arguments", "much"), "'much' is not a valid JSON object"),
        (("c10", "--approve", "--arguments", '{"amount": "much"}'), "amount: 'much' is not of type 'integer'"),
        (("nothing", "--approve"), "has no open request 'nothing'"),
        ((), "no terminal to ask at"),
    ],
)
def test_what_is_no_answer(shell: Shell, inside: Inside, arguments: tuple[str, ...], said: str) -> None:
    shell.write(PAYING)
    inside.run("run", "flow.py", "go")
    done = inside.run("answer", "last", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(pending(inside)) == 2


def test_a_call_is_approved_with_other_arguments(shell: Shell, inside: Inside) -> None:
    shell.write(PAYING)
    inside.run("run", "flow.py", "go")
    changed = inside.run("answer", "last", "c10", "--approve", "--arguments", '{"amount": 5}', "--by", "ada")
    assert (changed.returncode, changed.stdout.splitlines()[0]) == (0, "1 request answered")
    assert 'approved with {"amount": 5} by ada' in inside.run("tail", "last").stdout
    inside.run("answer", "last", "c20", "--reject")
    inside.run("resume", "last")
    assert 'with these: {"amount": 5}\n  paid 5' in inside.run("show", "last", "--items").stdout


def test_a_run_is_completed_or_wrapped_up(shell: Shell, inside: Inside) -> None:
    shell.write(PAYING)
    for run_id in ("one", "two"):
        inside.run("run", "flow.py", "go", "--run-id", run_id)
    done = inside.run("complete", "one", "all paid")
    assert (done.returncode, done.stdout) == (0, "one is completed\n")
    shown = inside.run("show", "one").stdout
    assert "completed (completed from outside)" in shown
    assert 'value      "all paid"' in shown
    assert 'asked      complete  "all paid"' in shown
    assert json.loads(inside.run("show", "one", "--json").stdout)["value"] == "all paid"
    end = inside.run("resume", "one")
    assert (end.returncode, end.stdout) == (0, "all paid\n")
    late = inside.run("complete", "one", "again")
    assert late.returncode == 1
    assert "it has completed" in late.stderr

    inside.run("run", "flow.py", "go", "--run-id", "three")
    aborted = inside.run("abort", "three", "--reason", "not this month")
    assert (aborted.returncode, aborted.stdout) == (0, "three is aborted\n")
    assert "aborted (not this month)" in inside.run("show", "three").stdout

    wrapped = inside.run("wrap-up", "two", "--reason", "the month is over", "--json")
    assert json.loads(wrapped.stdout) == {"run_id": "two", "status": "interrupted"}
    assert "to finish it: noetic resume two" in wrapped.stderr
    assert inside.run("resume", "two").returncode == 0
    shown = inside.run("show", "two").stdout
    assert "completed (the month is over)" in shown
    assert "asked      wrap_up  the month is over" in inside.run("tail", "two").stdout


def test_a_run_that_waits_for_nothing(shell: Shell, inside: Inside) -> None:
    shell.write("@step\nasync def flow(x: str) -> str:\n    return x\n")
    inside.run("run", "flow.py", "x")
    done = inside.run("answer", "last", "--approve")
    assert (done.returncode, "has no open request" in done.stderr) == (1, True)


@posix
def test_at_a_terminal_each_is_asked_for(shell: Shell, inside: Inside) -> None:
    import pty

    shell.write(PAYING)
    inside.run("run", "flow.py", "go")
    master, slave = pty.openpty()
    process = shell.start("answer", "last", stdin=slave)
    assert process.stderr is not None
    for question, said in ((b"Approve?", b"y\n"), (b"Approve?", b"n\n"), (b"Why not?", b"no money\n")):
        read_until(process.stderr, question)
        os.write(master, said)
    out, _ = process.communicate(timeout=TIMEOUT)
    os.close(slave)
    os.close(master)
    assert (process.returncode, out.strip()) == (0, b"2 requests answered")
    assert inside.run("resume", "last").returncode == 5
    assert "The call was rejected: no money" in inside.run("show", "last", "--items").stdout


EVIL = r"\x1b]0;pwned\x07\x1b[2J\x9b31m\u202eabc\x1b[8m"
STEERING = re.compile("\x1b\\]|\x1b\\[2J|\x1b\\[8m|[\x07\x80-\x9f\u202e]")
HOSTILE = f'''
from noetic_py import Ask, Context, FunctionCall, call_model, loop, step, tool, until
from noetic_py.testing import ScriptedModel
EVIL = "{EVIL}"

@step
async def failing(x: str) -> str:
    raise ValueError(EVIL)

@step
async def asking(x: str, ctx: Context) -> str:
    print(EVIL[:-4])
    return await ctx.ask(Ask(EVIL, str))

@step
async def shown(x: str) -> str:
    return x

@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay."""
    return to

show = lambda result: print(result.value[:-4])
paying = loop(call_model(tools=[pay]), until=until.no_tool_calls(), max_iterations=3)
speaking = call_model()
harness = lambda model, checkpoints: Harness(
    model=ScriptedModel(FunctionCall(name="pay", arguments={{"to": EVIL}}), EVIL), checkpoints=checkpoints
)
'''


# One process for all commands: most of the time goes into starting one.
MANY = """
import json, sys
from noetic_py.cli.app import run_command_line

for sys.argv in json.loads(sys.argv[1]):
    sys.stderr.write(f"== {sys.argv[1:3]!r:.60}\\n")
    run_command_line()
"""


def _on_terminal(shell: Shell, commands: list[list[str]]) -> str:
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MANY, json.dumps([["noetic", *each] for each in commands])],
        cwd=shell.folder, env=environment(TERM="xterm"), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    said = b""
    with suppress(OSError):
        while piece := os.read(master, 65536):
            said += piece
    os.close(master)
    assert process.wait(TIMEOUT) is not None
    return said.decode(errors="replace")


@posix
def test_nothing_that_steers_reaches_a_terminal(shell: Shell, inside: Inside) -> None:
    """Texts of models, errors, requests, prompts and what the flow prints, in every command that shows them."""
    shell.write(HOSTILE)
    evil: str = ast.literal_eval(f'"{EVIL}"')
    commands = [
        ["run", "flow.py:speaking", "hi", "--run-id", "spoken"],
        ["run", "flow.py:shown", evil, "--run-id", "echo"],
        ["run", "flow.py:shown", evil, "--quiet"],
        ["run", "flow.py:failing", "hi", "--run-id", "broken", "--traceback"],
        ["run", "flow.py:asking", "hi", "--run-id", "asked"],
        ["run", "flow.py:paying", "hi", "--run-id", "paid"],
        *([name, run] for name in ("show", "tail", "resume") for run in ("echo", "broken", "asked", "paid")),
        ["show", "spoken", "--items"], ["runs"], ["diff", "echo", "paid"], ["fork", "paid"],
        ["answer", "asked", "--value", "x"], ["answer", "paid", "--approve"], ["show", evil],
    ]  # fmt: skip
    said = _on_terminal(shell, commands)
    assert said.count("== [") == len(commands)
    assert not STEERING.search(said), STEERING.search(said)
    assert "\\x1b]0;pwned\\x07" in said
    for shown in ("completed", "suspended", "failed", "question", "approval"):
        assert shown in said
    # A program gets what there is.
    assert inside.run("run", "flow.py:shown", evil, "--quiet").stdout.startswith(evil[:-4])
