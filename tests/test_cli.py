"""The command line, tried as a process: what it reads, what it prints where, how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from noetic_py import (
    Budget,
    FunctionCallOutput,
    Step,
    TokenUsage,
    branch,
    call_model,
    call_tool,
    each,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.cli.display import PlainDisplay
from noetic_py.cli.formatting import amount, money, plural, printable, program
from noetic_py.cli.inputs import Special, input_type
from noetic_py.cli.output_capture import captured_output
from noetic_py.cli.progress import MAX_NODES, ProgressState
from noetic_py.cli.render import ASCII, UNICODE, screen
from noetic_py.cli.report import EXIT_CODES
from noetic_py.core.events import (
    BudgetWarning,
    Event,
    LoopIteration,
    ModelFailed,
    ModelFinished,
    ModelStarted,
    StepCommitted,
    StepDiscarded,
    StepStarted,
    TextDelta,
    ToolFinished,
    UntilFailed,
)
from tests.cli_shell import ROOT, SHOUT, TIMEOUT, Inside, Shell, environment, posix, read_until
from tests.warm import forked

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# -- the command itself


def test_version(shell: Shell) -> None:
    done = shell.run("--version")
    assert (done.returncode, done.stdout) == (0, "noetic 0.1.0\n")


@pytest.mark.parametrize(
    "arguments", [(), ("walk",), ("run",), ("run", "flow.py", "a", "--bogus"), ("run", "flow.py", "a", "b")]
)
def test_wrong_usage(inside: Inside, arguments: tuple[str, ...]) -> None:
    inside.write(SHOUT)
    done = inside.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: noetic" in done.stderr


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from noetic_py.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert missing in done.stderr
    assert 'pip install "noetic-py[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_graph(inside: Inside) -> None:
    inside.write(SHOUT + "\nflow = shout >> loop(shout, until=until.max_rounds(2))\n")
    done = inside.run("graph", "flow.py")
    assert done.returncode == 0
    assert done.stdout.startswith("flowchart TD\n")
    assert '"shout"' in done.stdout
    assert inside.run("graph", "flow.py:shout").stdout == 'flowchart TD\n    n0["shout"]\n'
    assert inside.run("graph", "flow.py:none").returncode == 2


def test_plugins(inside: Inside) -> None:
    done = inside.run("plugins", NOETIC_PLUGINS="openai,glossary")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["glossary", "noetic-glossary", "0.1.0", "register_memory_layers"],
        ["openai", "noetic-openai", "0.1.0", "register_models"],
    ]
    known = {"name": "openai", "distribution": "noetic-openai", "version": "0.1.0", "hooks": ["register_models"]}
    assert json.loads(inside.run("plugins", "--json", NOETIC_PLUGINS="openai").stdout) == [known]
    assert inside.run("plugins", NOETIC_PLUGINS="").stdout == "no plugin is loaded\n"
    wrong = inside.run("plugins", NOETIC_PLUGINS="no-such-plugin")
    assert wrong.returncode != 0
    assert "'no-such-plugin' is not installed" in wrong.stderr


# -- results and progress on pipes


def test_a_pipe_gets_the_answer_and_nothing_else(shell: Shell) -> None:
    shell.write(
        """
        print("loaded")

        @step
        async def shout(text: str) -> str:
            print("at work")
            return text.upper()

        @step
        async def twice(text: str) -> str:
            return text + text

        flow = shout >> twice
        """
    )
    done = shell.run("run", "flow.py", "hi")
    assert (done.returncode, done.stdout) == (0, "HIHI\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "loaded"
    assert "at work" in lines
    assert [line.partition(" s  ")[2] for line in lines if line.startswith("  ")] == [
        "started  sequence",
        "started  sequence/shout",
        "finished sequence/shout",
        "started  sequence/twice",
        "finished sequence/twice",
        "finished sequence",
    ]
    assert re.fullmatch(r"completed: 2 steps, 0 tokens, \$0\.00, \d+\.\d\d s", lines[-2])
    assert re.fullmatch(r"to look further: noetic show [\w-]+", lines[-1])
    assert "\x1b" not in done.stderr


def test_quiet_says_only_how_it_ended(inside: Inside) -> None:
    inside.write(SHOUT)
    done = inside.run("run", "flow.py", "hi", "--quiet")
    assert done.stdout == "HI\n"
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("completed: 1 step,")


def test_deep_steps_have_no_line(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def inner(x: int) -> int:
            return x

        @step
        async def outer(x: int, ctx: Context) -> int:
            return await (inner >> spawn(inner))(x, ctx)
        """
    )
    done = inside.run("run", "flow.py:outer", "1")
    assert "outer/sequence" in done.stderr
    assert "outer/sequence/inner" not in done.stderr


def test_many_steps_make_few_lines(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def one(x: int) -> int:
            return x

        flow = each(one)
        """
    )
    done = inside.run("run", "flow.py", json.dumps(list(range(1000))))
    assert done.returncode == 0
    assert json.loads(done.stdout) == list(range(1000))
    lines = done.stderr.splitlines()
    assert 20 < len(lines) < 100
    left_out = sum(
        int(count.replace(",", "")) for count in re.findall(r"\.\.\. ([\d,]+) more lines left out", done.stderr)
    )
    written = len([line for line in lines if " each" in line])
    assert left_out + written == 2 * 1001


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("'text'", "text\n"),
        ("'line\\n'", "line\n"),
        ("None", ""),
        ("7", "7\n"),
        ("{'a': [1, 'ü']}", '{\n  "a": [\n    1,\n    "ü"\n  ]\n}\n'),
        ("Point(1, 2)", '{\n  "x": 1,\n  "y": 2\n}\n'),
        ("Path('a')", "a\n"),
        ("object", "<class 'object'>\n"),
        ("float('nan')", "NaN\n"),
        ("b'\\xff'", "b'\\xff'\n"),
        ("Message.user('hi')", None),
    ],
)
def test_values(inside: Inside, value: str, printed: str | None) -> None:
    inside.write(
        f"""
        @define
        class Point:
            x: int
            y: int

        @step
        async def flow() -> object:
            return {value}
        """
    )
    done = inside.run("run", "flow.py", "--db", "none")
    assert done.returncode == 0, done.stderr
    if printed is None:
        assert json.loads(done.stdout)["role"] == "user"
    else:
        assert done.stdout == printed


def test_json(shell: Shell) -> None:
    shell.write(
        """
        agent = call_model(ScriptedModel("high tide", usage=TokenUsage(3, 4), cost="0.25"))
        """
    )
    done = shell.run("run", "flow.py", "when?", "--json")
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert re.fullmatch(r"[0-9a-f-]{36}", found.pop("run_id"))
    assert 0 <= found.pop("seconds") < TIMEOUT
    assert found == {
        "status": "completed",
        "value": "high tide",
        "reason": None,
        "usage": {"input": 3, "output": 4, "total": 7, **dict.fromkeys(UNKNOWN)},
        "cost": "0.25",
        "steps": 1,
    }


UNKNOWN = (
    *("cached_input", "cache_write", "cache_write_1h", "reasoning"),
    *("input_audio", "input_image", "output_audio", "output_image"),
)


def test_json_of_a_run_without_a_value(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def broken(x: object) -> str:
            raise ValueError("no tide today")
        """
    )
    done = inside.run("run", "flow.py", "x", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["status"], found["value"]) == ("failed", None)
    assert "no tide today" in found["reason"]


def test_a_closed_pipe_is_no_error(shell: Shell) -> None:
    shell.write(
        """
        @step
        async def flow() -> str:
            return "tide " * 200_000
        """
    )
    process = shell.start("run", "flow.py")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == b"tide"
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(TIMEOUT) == 0
    process.stderr.close()
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    assert "completed:" in said


# -- what a file offers


def test_which_step(inside: Inside) -> None:
    inside.write(SHOUT + "\nflow = shout\nmain = shout >> shout\n", "both.py")
    inside.write(SHOUT + "\nother = shout >> shout\nmain = shout\n", "main.py")
    inside.write(SHOUT + "\nagain = shout\n_hidden = shout >> shout\n", "only.py")
    for name in ("both.py", "main.py", "only.py", "both.py:shout", "only.py:_hidden"):
        assert inside.run("run", name, "a").stdout == "A\n", name


def test_no_single_step(inside: Inside) -> None:
    inside.write(SHOUT + "\nother = shout >> shout\n", "two.py")
    inside.write("x = 1\n", "none.py")
    done = inside.run("run", "two.py", "a")
    assert done.returncode == 2
    assert "one of two.py:shout, two.py:other" in done.stderr
    done = inside.run("run", "none.py", "a")
    assert done.returncode == 2
    assert "defines no step" in done.stderr
    done = inside.run("run", "two.py:missing")
    assert done.returncode == 2
    assert "one of two.py:shout" in done.stderr
    done = inside.run("run", "none.py:x")
    assert done.returncode == 2
    assert "is not a valid step" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "is not valid Python"),
        ("import not_there_at_all\n", "ModuleNotFoundError"),
        ("sys.exit(5)\n", 'if __name__ == "__main__"'),
        ("1 / 0\n", "look at flow.py:14"),
        ("@step\ndef sync(x: str) -> str:\n    return x\n", "is not async"),
        (SHOUT + "state = {}\n", "; expected a function"),
        (SHOUT + "async def show(result): ...\n", "is async"),
        (SHOUT + "budget = 5\n", "budget = Budget("),
    ],
)
def test_bad_files(inside: Inside, text: str, said: str) -> None:
    inside.write(text)
    done = inside.run("run", "flow.py", "a")
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "error: " in done.stderr
    assert "  try: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in inside.run("run", "flow.py", "a", "--traceback").stderr


@pytest.mark.parametrize("target", ["missing.py", "missing.py:flow", ".", "flow.py:"])
def test_no_file(inside: Inside, target: str) -> None:
    inside.write(SHOUT)
    done = inside.run("run", target, "a")
    assert done.returncode == 2
    assert "error: " in done.stderr


def test_a_file_finds_its_neighbours_and_shadows_nobody(inside: Inside) -> None:
    folder = inside.folder / "flows"
    folder.mkdir()
    inside.write("def loud(text):\n    return text.upper()\n", "flows/neighbour.py")
    inside.write(
        """
        from neighbour import loud

        @step
        async def flow(text: str) -> str:
            import json
            return loud(json.dumps(text))
        """,
        "flows/json.py",
    )
    assert inside.run("run", "flows/json.py", "a").stdout == '"A"\n'


def test_harness_of_the_file(inside: Inside) -> None:
    scripted = "Harness(model=ScriptedModel('yes'))"
    forms = {
        "value.py": f"harness = {scripted}\n",
        "function.py": f"def harness():\n    return {scripted}\n",
        "coroutine.py": f"async def harness():\n    return {scripted}\n",
    }
    for name, text in forms.items():
        inside.write(f"flow = call_model()\n{text}", name)
        assert inside.run("run", name, "a").stdout == "yes\n", name
        done = inside.run("run", name, "a", "--model", "x:y")
        assert done.returncode == 2, name
        assert "--model has no effect" in done.stderr


def test_harness_with_the_model_of_the_command_line(inside: Inside) -> None:
    inside.write(
        """
        flow = call_model()

        async def harness(model: str | None) -> Harness:
            return Harness(model=ScriptedModel(f"I am {model}"))
        """
    )
    assert inside.run("run", "flow.py", "a").stdout == "I am None\n"
    assert inside.run("run", "flow.py", "a", "--model", "x:y").stdout == "I am x:y\n"


def test_our_harness_takes_the_model(inside: Inside) -> None:
    inside.write("flow = call_model()\n")
    done = inside.run("run", "flow.py", "a", "--model", "nowhere:tide")
    assert done.returncode == 1
    assert "error: no plugin provides models 'nowhere'" in done.stderr
    assert "  at: call_model" in done.stderr
    done = inside.run("run", "flow.py", "a")
    assert done.returncode == 1
    assert "Harness(model=...)" in done.stderr


@pytest.mark.parametrize(
    ("harness", "code", "said"),
    [
        ("harness = 5", 2, "is not a valid harness; expected a Harness"),
        ("def harness():\n    raise KeyError('TOKEN')", 1, "KeyError: 'TOKEN'"),
        ("def harness():\n    return Harness(memory=5)", 2, "is not a valid memory"),
    ],
)
def test_a_bad_harness(inside: Inside, harness: str, code: int, said: str) -> None:
    inside.write(f"{SHOUT}\n{harness}\n")
    done = inside.run("run", "flow.py", "a")
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_state_and_show(inside: Inside) -> None:
    inside.write(
        """
        @define
        class State:
            seen: int = 41

        state = State

        @step
        async def flow(text: str, ctx: Context[Memory, State]) -> str:
            ctx.state.seen += 1
            return text

        def show(result: RunResult[str, State]) -> None:
            print(f"<{result.value}> {result.state.seen}")
        """
    )
    assert inside.run("run", "flow.py", "a").stdout == "<a> 42\n"
    assert json.loads(inside.run("run", "flow.py", "a", "--json").stdout)["value"] == "a"


# -- input

INPUTS = """
class Order(BaseModel):
    sku: str
    qty: int = 1

@define
class Place:
    name: str
    depth: float

class Colour(Enum):
    RED = "red"

def shown(kind):
    async def show_it(x):
        return repr(x)
    show_it.__annotations__ = {"x": kind}
    return step(show_it)

text = shown(str)
anything = shown(object)
maybe = shown(str | None)
number = shown(int)
choice = shown(Literal["a", "b"])
colour = shown(Colour)
path = shown(Path)
order = shown(Order)
place = shown(Place)
orders = each(order)
optional = shown(Order | None)
tides = step_input = shown(list[float])

@step
async def nothing() -> str:
    return "nothing"
"""


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("text", '{"not": "read"}', '\'{"not": "read"}\''),
        ("text", "@@home", "'@home'"),
        ("text", "", "''"),
        ("anything", "12", "'12'"),
        ("maybe", "12", "'12'"),
        ("number", "12", "12"),
        ("choice", "a", "'a'"),
        ("choice", '"a"', "'a'"),
        ("colour", "red", "<Colour.RED: 'red'>"),
        ("path", "12", "Path"),
        ("order", '{"sku": "t1"}', "Order(sku='t1', qty=1)"),
        ("place", '{"name": "bay", "depth": 2.5}', "Place(name='bay', depth=2.5)"),
        ("orders", '[{"sku": "a"}]', "Order(sku='a', qty=1)"),
        ("optional", None, "None"),
        ("tides", "[1, 2.5]", "[1.0, 2.5]"),
        ("nothing", None, "nothing"),
    ],
)
def test_input(inside: Inside, name: str, argument: str | None, value: str) -> None:
    inside.write(INPUTS)
    done = inside.run("run", f"flow.py:{name}", *([] if argument is None else [argument]), "--db", "none")
    assert done.returncode == 0, done.stderr
    assert value in done.stdout


@pytest.mark.parametrize(
    ("name", "argument", "said"),
    [
        ("text", None, "needs an input"),
        ("number", None, "needs an input of type int"),
        ("number", "twelve", "does not fit"),
        ("order", '{"qty": "many"}', '{"sku": string, "qty": integer}'),
        ("place", '{"name": "bay"}', '{"name": ..., "depth": ...}'),
        ("tides", "abc", "Invalid JSON"),
        ("choice", "c", "does not fit"),
        ("text", "@missing.txt", "for the text itself write '@@missing.txt'"),
        ("nothing", "x", "takes no input"),
    ],
)
def test_wrong_input(inside: Inside, name: str, argument: str | None, said: str) -> None:
    inside.write(INPUTS)
    done = inside.run("run", f"flow.py:{name}", *([] if argument is None else [argument]))
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_input_from_elsewhere(inside: Inside) -> None:
    inside.write(INPUTS)
    (inside.folder / "order.json").write_text('\ufeff{"sku": "t2"}\n', encoding="utf-8")
    (inside.folder / "latin.txt").write_bytes(b"\xff\xfe\xfd")
    assert "sku='t2'" in inside.run("run", "flow.py:order", "@order.json").stdout
    assert inside.run("run", "flow.py:text", stdin=b"from a pipe\n").stdout == "'from a pipe'\n"
    assert inside.run("run", "flow.py:text", "-", stdin=b"a\n\n").stdout == "'a\\n'\n"
    assert inside.run("run", "flow.py:text", "-", stdin=b"").stdout == "''\n"
    assert inside.run("run", "flow.py:nothing", stdin=b"not read").returncode == 0
    done = inside.run("run", "flow.py:text", "@latin.txt")
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


@step
async def takes_int(x: int) -> int:
    return x


@step
async def takes_nothing() -> int:
    return 1


@tool
def add(a: int) -> int:
    """Add."""
    return a + 1


def int_to_arguments(x: int) -> dict[str, object]:
    return {"a": x}


def int_to_key(x: int) -> str:
    return "a"


MIXED: list[Step[Any, Any, Any, Any]] = [takes_nothing, takes_int]


@pytest.mark.parametrize(
    ("flow", "kind"),
    [
        (takes_int, int),
        (takes_nothing, Special.NOTHING),
        (takes_int.bind(4), Special.NOTHING),
        (takes_int >> takes_int, int),
        (loop(takes_int, until=until.max_rounds(1)), int),
        (spawn(takes_int), int),
        (parallel(MIXED), int),
        (parallel([takes_nothing]), Special.NOTHING),
        (parallel(lambda x, ctx: [takes_int]), Special.TEXT),
        (each(takes_int), list[int]),
        (branch(int_to_key, {"a": takes_int}), int),
        (branch(lambda x: "a", {"a": takes_int}), int),
        (call_model("test:x"), Special.TEXT),
        (call_tool(add, args=int_to_arguments), int),
        (call_tool(add, args={"a": 1}), Special.NOTHING),
    ],
)
def test_input_types(flow: Step[Any, Any, Any, Any], kind: object) -> None:
    assert input_type(flow) == kind


# -- how it ends


def test_every_status_has_an_exit_code() -> None:
    assert EXIT_CODES == {
        "completed": 0,
        "failed": 1,
        "aborted": 3,
        "interrupted": 3,
        "cancelled": 3,
        "budget_exceeded": 4,
        "suspended": 5,
    }


def test_a_failure_names_the_path_the_place_and_what_to_do(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def broken(x: int) -> int:
            raise ValueError(f"no tide {x}")

        flow = each(broken)
        """
    )
    done = inside.run("run", "flow.py", "[7]", "-q")
    assert done.returncode == 1
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert said[0] == "error: 1 path failed, first: ValueError: no tide 7"
    assert said[1] == "  at: each/broken[0]"
    assert said[2] == "  in: flow.py:17"
    assert said[3].startswith("  try: ")
    assert said[4].startswith("failed: 1 step")
    assert said[5].startswith("to resume it: noetic resume ")
    assert len(said) == 6
    assert (
        "ValueError: no tide 7"
        in inside.run("run", "flow.py", "[7]", "-q", "--traceback").stderr.partition("error:")[0]
    )


def test_abort(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def flow(x: str, ctx: Context) -> str:
            ctx.abort("the sea is\\x1b[31m rough")
            await anyio.sleep_forever()
        """
    )
    done = inside.run("run", "flow.py", "x")
    assert (done.returncode, done.stdout) == (3, "")
    assert "aborted (the sea is [31m rough): 1 step" in done.stderr


def test_budget(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def flow(x: int) -> int:
            return x

        flow = flow >> flow >> flow
        budget = Budget(steps=2)
        """
    )
    done = inside.run("run", "flow.py", "1")
    assert (done.returncode, done.stdout) == (4, "")
    assert "budget of 2 steps reached" in done.stderr
    assert "  try: raise steps=" in done.stderr
    assert "warning  2 of 2 steps spent" in done.stderr


def test_wrap_up_still_has_a_value(inside: Inside) -> None:
    inside.write(
        """
        @step
        async def sum_up(x: object) -> str:
            return "so far"

        @step
        async def one(x: int) -> int:
            return x

        flow = one >> one >> one
        budget = Budget(steps=3, wrap_up=sum_up, reserve=Budget(steps=1))
        """
    )
    done = inside.run("run", "flow.py", "1")
    assert (done.returncode, done.stdout) == (4, "so far\n")


WAITING = """
@step
async def flow(x: str) -> str:
    print("READY")
    await anyio.sleep_forever()
"""

BLOCKING = """
@step
async def flow(x: str) -> str:
    print("READY", flush=True)
    time.sleep(600)
"""


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run(shell: Shell, number: signal.Signals, code: int) -> None:
    shell.write(WAITING)
    process = shell.start("run", "flow.py", "x", "--json")
    assert process.stderr is not None
    read_until(process.stderr, b"READY")
    process.send_signal(number)
    out, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code
    assert f"{number.name}: stopping the run" in said.decode()
    assert "1 step, 0 tokens" in said.decode()
    found = json.loads(out)
    assert (found["status"], found["reason"], found["value"]) == ("interrupted", number.name, None)
    assert b"Traceback" not in said


@posix
def test_a_second_signal_ends_a_program_that_does_not_listen(shell: Shell) -> None:
    shell.write(BLOCKING)
    process = shell.start("run", "flow.py", "x")
    assert process.stderr is not None
    read_until(process.stderr, b"READY")
    sent = 0
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        sent += 1
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            assert sent < 20
    out, _ = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert sent >= 2


# -- on a terminal

GATED = '''
class Gated:
    """Says the first half of its answer, and the second when somebody writes to the gate."""

    def __init__(self, inner, gate):
        self.inner, self.gate = inner, gate

    async def __aenter__(self):
        self.stream = await self.inner.__aenter__()
        self.said = 0
        return self

    async def __aexit__(self, *error):
        return await self.inner.__aexit__(*error)

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.said += 1
        if self.said == 4:
            await anyio.to_thread.run_sync(Path(self.gate).read_text)
        return await self.stream.__anext__()

    async def response(self):
        return await self.stream.response()


class GatedModel(ScriptedModel):
    def respond(self, request):
        return Gated(super().respond(request), "gate")


model = GatedModel("high water is \\x1b[5mat noon", usage=TokenUsage(300, 40), cost="0.1")
harness = Harness(model=model, budget=Budget(steps=5))
budget = Budget(cost="0.20")

@step
async def ask(topic: str) -> str:
    print(f"printed about {topic}")
    return f"When is {topic}?"

flow = ask >> loop(call_model(), until=until.no_tool_calls(), id="agent")
'''


class Terminal:
    """A pseudo-terminal, and all that was written to it."""

    def __init__(self, columns: int, lines: int) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.written = b""

    def read(self) -> bool:
        """Read what there is; whether there can be more."""
        select.select([self.master], [], [], TIMEOUT)
        try:
            more = os.read(self.master, 65536)
        except OSError:
            return False
        self.written += more
        return bool(more)

    def until(self, *markers: str) -> None:
        while not all(marker in self.text for marker in markers):
            assert self.read(), self.text

    def rest(self) -> None:
        os.close(self.slave)
        while self.read():
            pass
        os.close(self.master)

    @property
    def raw(self) -> str:
        return self.written.decode(errors="replace")

    @property
    def text(self) -> str:
        return ESCAPE.sub("", self.raw)

    def frames(self) -> list[str]:
        """What was drawn each time; a new screen begins where the one before is erased."""
        return [ESCAPE.sub("", part) for part in re.split(r"\r(?:\x1b\[1A)?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", self.raw)]


@posix
def test_a_terminal_shows_the_run_while_it_goes_on(shell: Shell) -> None:
    shell.write(GATED)
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    screen_ = Terminal(72, 24)
    process = shell.start("run", "flow.py", "tide", stderr=screen_.slave, TERM="xterm-256color")
    screen_.until("│ high water is", "agent", "call_model", "$0.00 of $0.20", "printed about tide")
    assert process.poll() is None
    gate.write_text("go", encoding="utf-8")
    out, _ = process.communicate(timeout=TIMEOUT)
    screen_.rest()
    assert out == b"high water is \x1b[5mat noon\n"
    assert process.returncode == 0
    last = screen_.frames()[-1]
    assert "✓ agent  1 round" in last
    assert "$0.10 of $0.20" in last
    assert "2 of 5" in last
    assert "│" not in last
    assert re.search(r"completed.*: 2 steps, 340 tokens, \$0\.10", last)
    assert screen_.raw.rindex("\x1b[?25h") > screen_.raw.rindex("\x1b[?25l")
    assert "\x1b[5m" not in screen_.raw


@posix
@pytest.mark.parametrize("extra", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {}])
def test_a_terminal_that_wants_plain_text(shell: Shell, extra: dict[str, str]) -> None:
    shell.write(SHOUT)
    screen_ = Terminal(72, 24)
    process = shell.start("run", "flow.py", "tide", stderr=screen_.slave, stdin=subprocess.DEVNULL, **extra)
    process.communicate(timeout=TIMEOUT)
    screen_.rest()
    assert "started  shout\r\n" in screen_.raw
    assert "\x1b" not in screen_.raw


@posix
def test_a_thousand_paths_fit_a_small_terminal(shell: Shell) -> None:
    shell.write(
        """
        @step
        async def fetch_the_tide_table(x: int) -> int:
            await anyio.sleep(x % 10 / 20)
            return x

        def sections(x, ctx):
            return [fetch_the_tide_table.with_options(id=f"section_{n}").bind(n) for n in range(300)]

        flow = each(fetch_the_tide_table) >> parallel(sections)
        """
    )
    screen_ = Terminal(40, 12)
    process = shell.start(
        "run", "flow.py", json.dumps(list(range(1000))), "--json", stderr=screen_.slave, TERM="xterm-256color"
    )
    screen_.until("more:", "each")
    out, _ = process.communicate(timeout=TIMEOUT)
    screen_.rest()
    assert len(json.loads(out)["value"]) == 300
    frames = screen_.frames()
    assert len(frames) > 3
    for frame in frames[:-1]:
        lines = frame.strip("\r\n").splitlines()
        assert len(lines) <= 11
        assert max((cell_len(line) for line in lines), default=0) <= 40
    assert any(re.search(r"fetch.*: ?|\d+ done, \d+", frame) for frame in frames)


@posix
def test_a_killed_screen_gives_the_cursor_back(shell: Shell) -> None:
    shell.write(BLOCKING)
    screen_ = Terminal(72, 24)
    process = shell.start("run", "flow.py", "x", stderr=screen_.slave, TERM="xterm-256color")
    screen_.until("READY")
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    screen_.rest()
    assert process.communicate()[0] == b""
    assert process.returncode == 143
    assert screen_.raw.rindex("\x1b[?25h") > screen_.raw.rindex("\x1b[?25l")


# -- the parts


def started(*path: str, kind: str = "code") -> StepStarted:
    return StepStarted(path, kind, 1)


def finished(*path: str, kind: str = "code") -> StepCommitted:
    return StepCommitted(path, kind, 1)


def shown(
    progress: ProgressState, width: int = 60, height: int = 24, seconds: float = 2.0, **options: Any
) -> list[str]:
    return screen(progress, title="flow.py:flow", seconds=seconds, size=(width, height), **options).plain.split("\n")


def fed(*events: Event, budgets: Sequence[Budget] = ()) -> ProgressState:
    progress = ProgressState(tuple(budgets))
    for event in events:
        progress.apply(event, 0.0)
    return progress


def test_paths_of_one_step_are_one_line() -> None:
    events: list[Event] = [started("each", kind="parallel")]
    events += [started("each", f"fetch[{n}]") for n in range(1000)]
    events += [finished("each", f"fetch[{n}]") for n in range(600)]
    events += [StepDiscarded(("each", f"fetch[{n}]"), 1, "ValueError: no", True) for n in range(600, 650)]
    events += [StepDiscarded(("each", f"fetch[{n}]"), 1, "stopped", True) for n in range(650, 660)]
    lines = shown(fed(*events))
    assert lines[1:] == ["⠦ each  2 s", "  ⠦ fetch  600 done, 340 running, 50 failed, 10 stopped"]


def test_a_step_called_again_is_the_same_line() -> None:
    events = [
        started("a"),
        started("a", "b"),
        finished("a", "b"),
        started("a", "b#1"),
        finished("a", "b#1"),
        finished("a"),
    ]
    assert shown(fed(*events))[1:] == ["✓ a", "  ✓ b  2 done"]


def test_rounds_retries_and_answers() -> None:
    path = ("agent", "call_model[0]")
    events: list[Event] = [
        started("agent", kind="loop"),
        started(*path, kind="model"),
        started(*path, "answer", kind="answer"),
        ModelStarted((*path, "answer"), "test:x"),
        TextDelta((*path, "answer"), "the water\nrises\x1b[2J slowly"),
    ]
    progress = fed(*events)
    assert shown(progress)[-2:] == ["│ the water", "│ rises [2J slowly"]
    assert not any("│" in line for line in shown(progress, final=True))
    progress.apply(ModelFinished((*path, "answer"), "test:x", TokenUsage(3, 4), None), 1.0)
    progress.apply(StepDiscarded(path, 1, "ValueError: no", False), 1.0)
    progress.apply(started(*path, kind="model"), 1.0)
    progress.apply(finished(*path), 1.0)
    progress.apply(LoopIteration(("agent",), 0, False, None, None), 1.0)
    lines = shown(progress)
    assert lines[0] == "flow.py:flow  2.0 s  2 steps  7 tokens  $0.00+?"
    assert lines[1:] == ["⠦ agent  1 round, 2 s", "  ✓ call_model  retried"]


def test_a_tool_that_failed_is_no_tool_that_is_done() -> None:
    call = ("agent", "call_model[0]", "search[0]")
    output = FunctionCallOutput(call_id="c", output="tool 'search' failed: OSError: gone")
    progress = fed(
        started(*call, kind="tool_call"), ToolFinished(call, output, True), finished(*call, kind="tool_call")
    )
    assert shown(progress)[-1].strip().startswith("✗ search")
    out = io.StringIO()
    display = PlainDisplay(out, lambda: 0.0)
    display.event(ToolFinished(("agent",), output, True))
    display.event(UntilFailed(("agent",), 3, "AttributeError", "no field"))
    assert out.getvalue().splitlines() == [
        "    0.00 s  failed   agent: tool 'search' failed: OSError: gone",
        "    0.00 s  failed   agent: until raised AttributeError: no field",
    ]


def test_a_failed_attempt_takes_its_text_along() -> None:
    progress = fed(started("a"), TextDelta(("a", "answer"), "half"), StepDiscarded(("a",), 1, "stopped", True))
    assert progress.speaking is None
    assert shown(progress)[1:] == ["■ a"]


def test_a_call_that_failed_takes_its_text_along_and_counts() -> None:
    path = ("a", "answer")
    progress = fed(
        started("a"),
        TextDelta(path, "half"),
        ModelFailed(path, "test:x", "cut off", TokenUsage(3, 4), Decimal("0.25")),
        ModelFailed(path, "test:x", "refused", None, None),
    )
    assert progress.speaking is None
    assert (progress.usage.total, progress.cost, progress.unpriced) == (7, Decimal("0.25"), False)
    progress.apply(ModelFailed(path, "test:x", "cut off", TokenUsage(1, 0), None), 1.0)
    assert progress.unpriced


def test_bars() -> None:
    budgets = [Budget(steps=4, cost="0.50"), Budget(steps=10, seconds=8, per_tool={"search": 2})]
    progress = fed(started("a"), BudgetWarning((), "tokens", Decimal(80), Decimal(100)), budgets=budgets)
    progress.cost = Decimal("0.25")
    progress.tools["search"] = 1
    bars = {line.split("  ")[0].strip(): line for line in shown(progress, glyphs=ASCII)[2:]}
    assert bars["steps"].endswith("######..................  1 of 4")
    assert bars["cost"].endswith("############............  $0.25 of $0.50")
    assert bars["seconds"].endswith("######..................  2 of 8")
    assert bars["per tool:search"].endswith("1 of 2")
    assert bars["tokens"].endswith("80 of 100")


def test_a_tree_does_not_grow_without_end() -> None:
    progress = ProgressState()
    progress.apply(started("root"), 0.0)
    for number in range(MAX_NODES + 500):
        progress.apply(started("root", f"s{number}"), 0.0)
        progress.apply(finished("root", f"s{number}"), 0.0)
    root = progress.root.children["root"]
    assert len(root.children) <= MAX_NODES + 1
    assert root.children["(others)"].done >= 500
    lines = shown(progress)
    assert len(lines) < 24
    assert "more:" in lines[-1]


def test_what_runs_is_shown_before_what_is_over() -> None:
    events: list[Event] = [started("all")]
    for number in range(30):
        events.append(started("all", f"s{number}"))
        if number not in (3, 17):
            events.append(finished("all", f"s{number}"))
    lines = shown(fed(*events))
    assert [line for line in lines if "⠦ s" in line] == ["  ⠦ s3  2 s", "  ⠦ s17  2 s"]
    assert lines[-1] == "  … 22 more: 22 done"


frames_ = st.sampled_from(["a", "bäh", "каша", "潮汐表", "x" * 80, "s[3]", "s[4]", "t#1"])
paths = st.lists(frames_, min_size=1, max_size=5).map(tuple)
events_ = st.one_of(
    st.builds(StepStarted, paths, st.sampled_from(["code", "loop", "answer", "parallel"]), st.just(1)),
    st.builds(StepCommitted, paths, st.just("code"), st.just(1)),
    st.builds(StepDiscarded, paths, st.just(1), st.sampled_from(["stopped", "ValueError"]), st.booleans()),
    st.builds(TextDelta, paths, st.text(max_size=200)),
    st.builds(LoopIteration, paths, st.just(0), st.booleans(), st.none(), st.none()),
    st.builds(BudgetWarning, st.just(()), st.sampled_from(["steps", "cost"]), st.just(Decimal(3)), st.just(Decimal(0))),
)


@given(
    st.lists(events_, max_size=60),
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from([ASCII, UNICODE]),
    st.booleans(),
)
def test_no_screen_is_larger_than_the_terminal(
    events: list[Event], width: int, height: int, glyphs: Any, final: bool
) -> None:
    progress = fed(*events, budgets=[Budget(tokens=10, seconds=3)])
    lines = shown(progress, width, height, glyphs=glyphs, final=final)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


@given(st.lists(events_, max_size=60))
def test_counts_are_never_negative(events: list[Event]) -> None:
    waiting = [fed(*events).root]
    while waiting:
        node = waiting.pop()
        assert min(node.running, node.done, node.failed, node.stopped, node.retried, node.rounds) >= 0
        waiting += node.children.values()


def test_plain_lines_come_no_faster_than_allowed() -> None:
    now = [100.0]
    out = io.StringIO()
    display = PlainDisplay(out, lambda: now[0])
    display.start()
    for number in range(100):
        display.event(started(f"s{number}"))
    assert len(out.getvalue().splitlines()) == 20
    now[0] += 1.0
    display.event(started("later"))
    display.stop()
    assert out.getvalue().splitlines()[-2:] == ["    1.00 s  ... 80 more lines left out", "    1.00 s  started  later"]


def test_plain_lines() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, lambda: 0.0)
    display.start()
    display.event(StepStarted(("a",), "code", 2))
    display.event(StepDiscarded(("a",), 2, "ValueError: b\x07d [at a]\n  Try: it", False))
    display.event(StepDiscarded(("a",), 3, "stopped", True))
    display.event(TextDelta(("a",), "not shown"))
    display.tick()
    display.stop()
    assert [line.partition(" s  ")[2] for line in out.getvalue().splitlines()] == [
        "started  a (attempt 2)",
        "retrying a: ValueError: b d",
        "stopped  a",
    ]


class Torn(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_torn_stream_does_not_end_the_run() -> None:
    display = PlainDisplay(Torn())
    display.start()
    display.event(started("a"))
    display.event(finished("a"))
    display.stop()


def test_relay_gives_whole_lines_to_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with captured_output() as relay:
        relay.sink = lines.append
        sys.stdout.write("half ")
        sys.stderr.write("a line\nand ")
        assert lines == ["half a line"]
    done = capsys.readouterr()
    assert (done.out, done.err) == ("", "and ")


def test_words() -> None:
    assert (plural(1, "step"), plural(1200, "step")) == ("1 step", "1,200 steps")
    assert (money(None), money(Decimal(0)), money(Decimal("1234.5678901"))) == ("cost unknown", "$0.00", "$1,234.56789")
    assert (amount(Decimal(2000)), amount(Decimal("2.50"))) == ("2,000", "2.5")
    assert printable("a\x1b[1m\nb") == "a [1m b"


# -- the guide

GUIDE = (ROOT / "docs" / "guides" / "cli.md").read_text(encoding="utf-8")
FILES = re.findall(r'^```python title="(\S+)"\n(.*?)^```$', GUIDE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```console\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def said_in(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    parts = [part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, printed) for command, _, printed in parts]


def pattern(printed: str) -> str:
    """What a command has to print; an ellipsis in the guide stands for anything on its line."""
    return re.escape(printed).replace("…", ".*")


@posix
@pytest.mark.parametrize("block", BLOCKS, ids=[said_in(block)[0][0] for block in BLOCKS])
def test_the_guide(tmp_path: Path, block: str) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    noetic = shlex.join(forked("tests.warm_noetic"))
    functions = f'noetic() {{ {noetic} "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
    for command, printed in said_in(block):
        done = subprocess.run(
            ["sh", "-c", functions + command],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
        assert re.fullmatch(pattern(printed), done.stdout), (command, done.stdout, done.stderr)


def test_the_guide_shows_commands() -> None:
    assert len(BLOCKS) >= 10
    assert [name for name, _ in FILES] == ["tides.py"]


@pytest.mark.parametrize(
    ("started", "uv", "found", "shown"),
    [
        ("noetic", False, False, "noetic"),
        ("/usr/bin/noetic", False, True, "noetic"),
        ("/usr/bin/noetic", False, False, "/usr/bin/noetic"),
        ("{here}/.venv/bin/noetic", True, True, ".venv/bin/noetic"),
        ("{here}/.venv/bin/noetic", False, False, ".venv/bin/noetic"),
        ("{here}/noetic_py/cli/__main__.py", True, False, "noetic"),
    ],
)
def test_printed_commands_are_those_that_the_readers_shell_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: str, uv: bool, found: bool, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started.format(here=tmp_path), "run"])
    folder = tmp_path / "bin"
    folder.mkdir()
    if found:
        (folder / "noetic").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("UV", raising=False)
    if uv:
        monkeypatch.setenv("UV", "/usr/bin/uv")
    assert program() == shown
