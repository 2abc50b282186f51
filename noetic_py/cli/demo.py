"""`noetic demo`: one run that is killed, resumed and approved, by the commands that a reader would type."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import field, frozen

from noetic_py.cli.database import DATABASE_VARIABLE
from noetic_py.cli.report import FAILED, say, write_out
from noetic_py.errors import ConfigError

_DIES_AT = "Ostend"
_COMMAND = (sys.executable, "-m", "noetic_py.cli")
_KILLED = {-signal.SIGTERM, -getattr(signal, "SIGKILL", signal.SIGTERM), signal.SIGTERM}
_DIARY = "bodies.log"


@frozen
class _Act:
    """A command of the demo.

    Attributes:
        title: What it shows.
        text: What the reader should look at.
        arguments: What follows `noetic`.
        codes: The exit codes after which the demo continues.
        environment: Variables for this command only.
    """

    title: str
    text: str
    arguments: tuple[str, ...]
    codes: frozenset[int] = frozenset({0})
    environment: Mapping[str, str] = field(factory=dict[str, str])


def demo(folder: Path, *, ask: bool) -> int:
    """Write the flow into a folder and run the demo there.

    Args:
        folder: Where the flow and its runs are stored; it is made, and has to be empty.
        ask: Whether the reader decides about the approval; otherwise the demo approves.

    Returns:
        The exit code.

    Raises:
        ConfigError: The folder holds something already; code `"demo-folder"`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is not an empty folder", code="demo-folder", hint=f"rm -r {folder}, or name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    flow = (examples_folder() / "demo.py").read_text(encoding="utf-8")
    (folder / "flow.py").write_text(flow, encoding="utf-8")
    # The demo keeps to its folder, whatever database the reader works with.
    environment = {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}
    for number, act in enumerate(_acts(ask=ask), 1):
        write_out(f"\n{number}. {act.title}\n{act.text}\n$ noetic {shlex.join(act.arguments)}")
        done = subprocess.run(  # noqa: S603 # our own command line, in the folder that was just made
            [*_COMMAND, *act.arguments], cwd=folder, env={**environment, **act.environment}, check=False
        )
        if done.returncode not in act.codes:
            say(f"the demo stops here: the command ended with exit code {done.returncode}")
            return FAILED
    write_out("\n".join(_counted(folder)))
    write_out(_next(folder))
    return 0


def examples_folder() -> Path:
    """The examples: in a wheel they are part of the package, in a clone they stand beside it."""
    package = Path(__file__).parent.parent
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"


def _acts(*, ask: bool) -> Iterator[_Act]:
    yield _Act(
        "An agent with tools, under a budget, killed in the middle",
        "The agent asks two tools, then six harbours are measured one after the other. While the fourth is measured,\n"
        "the process kills itself, as if the machine had lost its power.",
        ("run", "flow.py", "Plan a day by boat.", "--run-id", "demo"),
        frozenset(_KILLED),
        {"NOETIC_DEMO_DIE_AT": _DIES_AT},
    )
    yield _Act(
        "The same run, resumed in a new process",
        "Finished steps are read from the database and do not run again; the model is not asked again. The run then\n"
        "waits, because booking a boat requires approval. While it waits, no process is needed.",
        ("resume", "demo"),
        frozenset({5}),
    )
    answer = ("answer", "demo") if ask else ("answer", "demo", "--approve", "--by", "demo")
    who = (
        "You decide: the answer is recorded" if ask else "Without a terminal, the demo approves: the answer is recorded"
    )
    yield _Act("The approval", f"{who} with the run, and every process that resumes the run finds it.", answer)
    yield _Act("To the end", "The tool is called with what was approved, and the run completes.", ("resume", "demo"))
    yield _Act(
        "What the model was shown",
        "The conversation is part of the run's record, like each step, its output and its cost.",
        ("show", "demo", "--items"),
    )


def _counted(folder: Path) -> Iterator[str]:
    """How often each body ran in each process: the bodies themselves wrote it down."""
    lines = [line.partition(" ") for line in (folder / _DIARY).read_text(encoding="utf-8").splitlines()]
    processes = list(dict.fromkeys(process for process, _, _ in lines))
    ran = Counter((name, processes.index(process) + 1) for process, _, name in lines)
    yield f"\nHow often each body ran, as the bodies themselves wrote it into {_DIARY}:"
    for name in dict.fromkeys(name for _, _, name in lines):
        numbers = [number for number in range(1, len(processes) + 1) if ran[name, number]]
        counts = [f"{ran[name, number]} in process {number}" for number in numbers]
        died = "  (it was at work when the process died)" if name.endswith(_DIES_AT) else ""
        yield f"  {name:<22} {', '.join(counts)}{died}"


def _next(folder: Path) -> str:
    return f"""
Look further, in {folder}:
  noetic show demo          the steps, what each returned and cost
  noetic tail demo          the records of the journal
  noetic graph flow.py      the flow as a diagram
  flow.py                   the flow itself
Start your own:
  noetic new my-agent       a project with a flow, a test and a CI file
  noetic examples           more examples, each one idea"""
