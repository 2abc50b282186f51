"""The end of a command: the result on standard output, the summary on standard error, the exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TextIO

import attrs

from noetic_py.cli.formatting import jsonable, money, neutral, plural, printable
from noetic_py.cli.loading import FlowFile, place_of
from noetic_py.cli.output_capture import OutputCapture
from noetic_py.cli.record_lines import pending_objects
from noetic_py.core.control import AnyResult
from noetic_py.errors import (
    ConfigError,
    InvalidId,
    MissingExtra,
    NoeticError,
    ParallelFailed,
    PluginError,
    PositionConflict,
    RunBusy,
    RunNotFound,
)
from noetic_py.redaction import redact, rendered

FAILED = 1
USAGE = 2
EXIT_CODES: Mapping[str, int] = {
    "completed": 0,
    "failed": 1,
    "aborted": 3,
    "interrupted": 3,
    "cancelled": 3,
    "budget_exceeded": 4,
    "suspended": 5,
}
"""The exit code of each status a run can end with."""


# Errors of the arguments: nothing has begun.
_USAGE = (ConfigError, InvalidId, MissingExtra, PluginError, PositionConflict, RunBusy, RunNotFound)


def code_of(error: Exception) -> int:
    """The exit code of a command that an exception has ended."""
    return USAGE if isinstance(error, _USAGE) else FAILED


def summary(result: AnyResult) -> str:
    """One line: how the run ended, why, and what it took."""
    facts = [
        plural(result.steps, "step"),
        plural(result.usage.total, "token"),
        money(result.cost),
        f"{result.seconds:.2f} s",
    ]
    maybe = result.possibly_spent
    if maybe.model_calls:
        facts.append(f"of that possibly spent up to {plural(maybe.tokens.total, 'token')}, {money(maybe.cost)}")
    # An error has been said in full already.
    why = f" ({printable(result.reason)})" if result.reason and result.error is None else ""
    return f"{result.status}{why}: {', '.join(facts)}"


# -- values


def as_json(result: AnyResult) -> str:
    """The result as one JSON object on one line."""
    usage = attrs.asdict(result.usage) | {"total": result.usage.total}
    found = {
        "status": result.status,
        "value": jsonable(result.output_or(None)),
        "reason": result.reason,
        "run_id": result.run_id,
        "usage": usage,
        "cost": None if result.cost is None else str(result.cost),
        "steps": result.steps,
        "seconds": round(result.seconds, 6),
    }
    if result.pending:
        found["pending"] = pending_objects(result.pending)
    maybe = result.possibly_spent
    if maybe.model_calls:
        cost = None if maybe.cost is None else str(maybe.cost)
        found["possibly_spent"] = {"calls": maybe.model_calls, "tokens": maybe.tokens.total, "cost": cost}
    return json.dumps(found)


def _readable(value: object) -> str:
    if isinstance(value, str):
        return value
    found = jsonable(value)
    return found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False)


# -- printing


def print_result(result: AnyResult, file: FlowFile, *, as_object: bool) -> None:
    """Print the result on standard output; a reader that has stopped is not an error.

    Args:
        result: How the run ended; one without a value prints nothing for people.
        file: Its `show` prints the result, if it has one.
        as_object: Whether to print the JSON object for programs instead.
    """
    with _quiet_pipe(sys.stdout) as out:
        if as_object:
            _write(out, as_json(result))
        elif result.has_value and file.show is not None:
            with redirect_stdout(OutputCapture(out)) if out.isatty() else nullcontext():
                file.show(result)
        elif result.has_value and result.value is not None:
            _write(out, _readable(result.value))


def write_out(text: str) -> bool:
    """Write to standard output; a reader that has stopped is not an error.

    Returns:
        Whether it is still read.
    """
    try:
        _write(sys.stdout, text)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go(sys.stdout)
        return False
    return True


def say(text: str) -> None:
    """Write a line to standard error; it need not be read."""
    with _quiet_pipe(sys.stderr) as out:
        _write(out, text)


@contextmanager
def _quiet_pipe(out: TextIO) -> Generator[TextIO]:
    try:
        yield out
        out.flush()
    except BrokenPipeError:
        _let_go(out)


def _let_go(out: TextIO) -> None:
    # Data left in the buffer would raise again when the interpreter closes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def _write(out: TextIO, text: str) -> None:
    shown = redact(text if text.endswith("\n") else f"{text}\n")
    # A program that reads standard output gets the value as it is.
    out.write(neutral(shown) if out is not sys.stdout or out.isatty() else shown)


def print_error(error: BaseException, path: Path | None, *, trace: bool, besides: str | None = None) -> None:
    """Say on standard error what broke, where in the flow, where in the file, and what to try next.

    Args:
        error: What broke.
        path: The flow's file.
        trace: Whether to print the traceback first.
        besides: What else can be tried.
    """
    leaf: BaseException = error
    while isinstance(leaf, ParallelFailed):
        leaf = leaf.first
    lines = [f"error: {_message(error)}"]
    where = leaf.path if isinstance(leaf, NoeticError) else ()
    if where:
        lines.append(f"  at: {printable('/'.join(where))}")
    place = None if path is None else place_of(leaf.__cause__ or leaf, path) or place_of(leaf, path)
    if place is not None:
        lines.append(f"  in: {place}")
    hint = getattr(leaf, "hint", None) or getattr(error, "hint", None)
    look = f"look at {place}, or " if place else ""
    tries = [hint or f"{look}run again with --traceback", *([] if besides is None else [besides])]
    lines.append(f"  try: {'; or '.join(tries)}")
    if trace:
        lines.insert(0, rendered(error))
    say("\n".join(lines))


def _message(error: BaseException) -> str:
    if isinstance(error, ParallelFailed):
        # The first line: path and hint of its first failure follow on their own.
        return error.message.partition("\n")[0].partition(" [at ")[0]
    if isinstance(error, NoeticError):
        return error.message
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
