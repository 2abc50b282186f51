"""The commands of `noetic`."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from noetic_py.cli.loading import load_flow
from noetic_py.cli.relay import relayed
from noetic_py.cli.report import USAGE, print_error, write_out
from noetic_py.cli.running import Request, run_request
from noetic_py.errors import NoeticError
from noetic_py.harness import Harness

__all__ = ["app", "run_command_line"]

app: typer.Typer = typer.Typer(
    name="noetic",
    help="Run and draw agent workflows.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Target = Annotated[str, typer.Argument(metavar="FILE[:STEP]", help="A Python file, and the variable of its step.")]
Trace = Annotated[bool, typer.Option("--traceback", help="Print Python tracebacks of errors.")]


def run_command_line() -> int:
    """Run the command the process was started with, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to lose the result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="noetic")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noetic {sys.modules['noetic_py'].__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run and draw agent workflows."""


@app.command()
def run(
    target: Target,
    input: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="Text, or JSON of the step's type; @FILE, or - for standard input."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Such as openai:gpt-5-mini.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the value.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    trace: Trace = False,
) -> None:
    """Run a step of a file and print its value.

    Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 aborted or interrupted, 4 out of budget, 5 suspended,
    130 and 143 stopped by a signal.
    """
    raise typer.Exit(run_request(Request(target, input, model, json, quiet, trace)))


@app.command()
def graph(target: Target, trace: Trace = False) -> None:
    """Print a step's tree as a Mermaid flowchart."""
    try:
        with relayed():
            # Drawing needs no plugin, and a broken one must not stand in the way.
            drawn = Harness(plugins=()).graph(load_flow(target).step)
    except NoeticError as error:
        print_error(error, None, trace=trace)
        raise typer.Exit(USAGE) from None
    write_out(drawn)
