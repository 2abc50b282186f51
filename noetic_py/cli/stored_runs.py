"""The commands that look at stored runs, or tidy them up; none of them loads a flow's code."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, get_args

import anyio
import typer

from noetic_py.cli.database import chosen, find, flag, read_runs, resume_line
from noetic_py.cli.diff import difference_json, difference_text, first_difference
from noetic_py.cli.formatting import plural, printable
from noetic_py.cli.inputs import read_age
from noetic_py.cli.record_lines import as_object, line_of
from noetic_py.cli.report import FAILED, USAGE, code_of, print_error, say, write_out
from noetic_py.cli.run_tree import read_tree
from noetic_py.cli.show import (
    item_lines,
    list_json,
    list_text,
    show_json,
    show_text,
    verified_json,
    verified_text,
    views_json,
    views_text,
)
from noetic_py.core.control import RunStatus
from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import ConfigError
from noetic_py.journal.records import JournalRecord, RunEnded
from noetic_py.journal.transforms import Anchor
from noetic_py.runner.recorded_events import RecordReader
from noetic_py.runner.runs import RunInfo, Runs

_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
_DIFFERENT = 1


Work: TypeAlias = Coroutine[Any, Any, int]


def run_async(work: Callable[[], Work], *, trace: bool) -> int:
    """Do a command's work in an event loop, and turn what goes wrong into a message.

    Returns:
        The exit code.
    """
    return guarded(lambda: anyio.run(work), trace=trace)


def guarded(
    work: Callable[[], int], *, trace: bool, besides: Callable[[Exception], str | None] = lambda _: None
) -> int:
    """Do a command's work, and turn what goes wrong into a message.

    Args:
        work: The work; it gives the exit code.
        trace: Whether to print tracebacks.
        besides: What else can be tried when it goes wrong.

    Returns:
        The exit code.
    """
    try:
        return work()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 # the last place where an error can become a message and an exit code
        print_error(error, None, trace=trace, besides=besides(error))
        return code_of(error)


def status_of(text: str) -> RunStatus:
    """The status of that name.

    Raises:
        ConfigError: There is none; code `"status"`.
    """
    for status in _STATUSES:
        if status == text:
            return status
    raise ConfigError(f"unknown status {text!r}", code="status", hint=f"one of {', '.join(_STATUSES)}")


async def listing(db: str | None, status: str | None, limit: int, *, as_json: bool) -> int:
    """Print the newest runs."""
    wanted = None if status is None else status_of(status)
    async with read_runs(db) as (runs, _):
        found = await runs.list(status=wanted, limit=limit + 1)
    shown, more = found[:limit], len(found) > limit
    write_out(list_json(shown) if as_json else list_text(shown))
    for info in shown:
        if info.problem is not None:
            say(f"run {printable(info.run_id)} cannot be read: {printable(info.problem)}")
    if more and not as_json:
        say(f"there are more: --limit {limit * 5} shows them")
    return 0


async def show(db: str | None, name: str, *, items: bool, everything: bool, as_json: bool) -> int:
    """Print a stored run."""
    async with read_runs(db) as (runs, _):
        info = await find(runs, name)
        tree = read_tree(await runs.journal(info.run_id))
    if as_json:
        write_out(show_json(info, tree, items=items))
    elif items:
        write_out("\n".join(item_lines(tree.items())))
    else:
        write_out(show_text(info, tree, everything=everything))
    return 0


async def show_views(db: str | None, name: str, *, as_json: bool) -> int:
    """Print what a model was shown in each request of a stored run."""
    async with read_runs(db) as (runs, _):
        info = await find(runs, name)
        found = await runs.views(info.run_id)
    write_out(views_json(found) if as_json else views_text(found))
    if not found:
        say("nothing was decided for a request of this run: it has no layers, or it is of an earlier version")
    return 0


async def tail(db: str | None, name: str, *, as_json: bool) -> int:
    """Print a run's records as they come, until it ends."""
    last: JournalRecord | None = None
    async with read_runs(db) as (runs, _):
        info = await find(runs, name)
        reader = RecordReader(runs, info.run_id, 0, anyio.sleep)
        while records := await reader.next():
            for position, last in records:
                line = json.dumps(as_object(position, last)) if as_json else line_of(position, last)
                if not write_out(line):
                    return 0
        info = await runs.get(info.run_id)
    if isinstance(last, RunEnded):
        return 0
    say(f"no process has the run any more, and its end is not written: {resume_line(info)}{flag(chosen(db))}")
    return FAILED


async def fork(db: str | None, name: str, at: int | None, *, as_json: bool) -> int:
    """Make a run of a part of another one's journal, and print its id."""
    from noetic_py.harness import Harness

    async with read_runs(db) as (runs, backend):
        info = await find(runs, name)
        new = await Harness(checkpoints=backend, plugins=()).fork(info.run_id, at=at)
        made = await runs.get(new)
    write_out(list_json([made])[1:-1] if as_json else new)
    say(f"to resume it: {resume_line(made)}{flag(chosen(db))}")
    return 0


async def verify(db: str | None, name: str, anchor: str | None, *, as_json: bool) -> int:
    """Print how the records of a run stand; the exit code says whether all are what was written."""
    try:
        kept = None if anchor is None else Anchor.parse(anchor)
    except ValueError as error:
        raise ConfigError(f"--anchor: {error}", code="anchor", hint="noetic verify RUN prints one") from None
    async with read_runs(db) as (runs, _):
        info = await find(runs, name)
        report = await runs.verify(info.run_id, anchor=kept)
    write_out(verified_json(report) if as_json else verified_text(report))
    return 0 if report.ok else FAILED


async def diff(db: str | None, names: tuple[str, str], *, as_json: bool) -> int:
    """Print where two runs differ; the exit code says whether they do."""
    async with read_runs(db) as (runs, _):
        left, right = [(await find(runs, name)).run_id for name in names]
        found, common = first_difference(await runs.journal(left), await runs.journal(right))
    write_out((difference_json if as_json else difference_text)(found, common, (left, right)))
    return 0 if found is None else _DIFFERENT


# -- pruning


async def prune(
    db: str | None, age: str | None, keep: int | None, statuses: Sequence[str], *, sure: bool, as_json: bool
) -> int:
    """Forget old runs, after asking."""
    wanted: list[RunStatus] = [status_of(text) for text in statuses or ("completed",)]
    older_than = None if age is None else read_age(age)
    if older_than is None and keep is None:
        raise ConfigError("prune needs to know which runs", code="prune", hint="--older-than 30d, or --keep 100")
    async with read_runs(db) as (runs, _):
        if not sure:
            count = len(await _doomed(runs, older_than, keep, wanted))
            if not count:
                sure = True
            elif not _agreed(count):
                say("nothing was forgotten")
                return USAGE
        forgotten = await runs.prune(older_than=older_than, keep=keep, statuses=wanted)
    write_out(json.dumps({"forgotten": forgotten}) if as_json else f"{plural(forgotten, 'run')} forgotten")
    return 0


async def _doomed(
    runs: Runs, older_than: timedelta | None, keep: int | None, statuses: Sequence[RunStatus]
) -> list[RunInfo]:
    """The runs that would be forgotten now."""
    found = [info for info in await runs.list(limit=None) if info.status in statuses][keep or 0 :]
    before = None if older_than is None else SYSTEM.now() - older_than
    return [info for info in found if not info.alive and (before is None or info.updated < before)]


def _agreed(count: int) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"{plural(count, 'run')} would be deleted; there is no terminal to confirm it",
            code="prune",
            hint="add --yes",
        )
    return typer.confirm(f"Delete {plural(count, 'run')} for good?", err=True)
