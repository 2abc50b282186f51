"""`noetic answer`, and what the other commands say of a run that waits."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.cli_shell import TIMEOUT, Inside, Shell, posix, read_until

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
    assert "to go on with it: noetic resume" in two.stderr
    assert "answered   sequence/loop/call_model[0]/pay[1]  approved by ada" in inside.run("tail", "last").stdout

    assert inside.run("resume", "last").returncode == 5
    assert inside.run("answer", "last", "--value", "7").returncode == 0
    assert inside.run("resume", "last").returncode == 5
    (request,) = pending(inside)
    assert (request["prompt"], request["schema"]) == ("How often?", {"type": "integer"})
    assert inside.run("answer", "last", request["key"][:30], "--value", "often").returncode == 0
    again = inside.run("resume", "last")
    assert "asked again: the answer does not fit" in again.stderr
    assert inside.run("answer", "last", "--value", "3").returncode == 0
    end = inside.run("resume", "last")
    assert (end.returncode, end.stdout) == (0, "The call was rejected: too much, paid 20 for 7, 3 times\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--approve",), "2 requests are meant"),
        (("c10", "--approve", "--reject"), "say different things"),
        (("c10", "--value", "1"), "an approval takes no value"),
        (("nothing", "--approve"), "waits for nothing that 'nothing' names"),
        ((), "nobody to ask"),
    ],
)
def test_what_is_no_answer(shell: Shell, inside: Inside, arguments: tuple[str, ...], said: str) -> None:
    shell.write(PAYING)
    inside.run("run", "flow.py", "go")
    done = inside.run("answer", "last", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(pending(inside)) == 2


def test_a_run_that_waits_for_nothing(shell: Shell, inside: Inside) -> None:
    shell.write("@step\nasync def flow(x: str) -> str:\n    return x\n")
    inside.run("run", "flow.py", "x")
    done = inside.run("answer", "last", "--approve")
    assert (done.returncode, "waits for nothing" in done.stderr) == (1, True)


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
