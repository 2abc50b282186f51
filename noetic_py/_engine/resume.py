"""A run as its journal tells it: what a process needs that goes on with a run which another one has begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from attrs import frozen

from noetic_py._engine.fold import Node, tree
from noetic_py._engine.state import Run, Spent
from noetic_py.budget import NO_USAGE, Usage
from noetic_py.checkpoints.backend import CheckpointBackend
from noetic_py.checkpoints.records import (
    CallStarted,
    JournalRecord,
    Path,
    RunEnded,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStopped,
)
from noetic_py.checkpoints.stored import Stored, load_record
from noetic_py.codec import Codec
from noetic_py.control import Control
from noetic_py.errors import CodecError, NoeticError, ParallelFailed, RunNotFound

__all__ = ["Past", "past_of", "read_journal", "take_over"]

PAGE = 1000
"""Records read at once."""


@frozen(eq=False)
class Past:
    """What a journal says.

    Attributes:
        started: Its head.
        records: All records.
        index: The tree of steps.
        ended: Its end, when it has one.
    """

    started: RunStarted
    records: list[JournalRecord]
    index: Node
    ended: RunEnded | None


async def read_journal(backend: CheckpointBackend, run_id: str, codec: Codec) -> list[JournalRecord]:
    """Every record of a run.

    Raises:
        RunNotFound: There is no such run.
        CodecError: A record cannot be read; the message says which.
    """
    found: list[JournalRecord] = []
    while True:
        page = await backend.read(run_id, after=len(found), limit=PAGE)
        for stored in page:
            try:
                found.append(load_record(stored, codec))
            except CodecError as error:
                raise CodecError(
                    error.message, where=f"record {len(found) + 1} of run {run_id}", hint=error.hint
                ) from error
        if not page:
            return found


def past_of(records: list[JournalRecord], run_id: str) -> Past:
    """Read a journal.

    Raises:
        RunNotFound: It has no head, so there is nothing to go on with.
    """
    started = records[0] if records else None
    if not isinstance(started, RunStarted) or started.opening is None:
        raise RunNotFound(f"run {run_id!r} has no beginning", hint="it was never committed; start it again")
    ended = records[-1] if isinstance(records[-1], RunEnded) else None
    index = tree(records)
    if ended is not None and ended.status in ("failed", "budget_exceeded"):
        _void_failure(index, index.failed)
    return Past(started, records, index, ended)


def _void_failure(index: Node, failed: dict[str, tuple[StepFailed, int]]) -> None:
    """The failure that ended the run is to be tried again; those that somebody handled stay."""
    for record, _ in list(failed.values()):
        for cause in _causes(record.error):
            node: Node | None = index
            for name in cause.path:
                if node is None:
                    break
                node.failed.pop(name, None)
                node.tries.pop(name, None)
                node = node.children.get(name)
                if node is not None:
                    node.cause = None


def _causes(error: Exception) -> Iterator[NoeticError]:
    """An error and what lies behind it, from the outside."""
    if isinstance(error, NoeticError):
        yield error
        if isinstance(error, ParallelFailed):
            for each in error.failed.values():
                yield from _causes(each)


def take_over(run: Run, past: Past) -> None:
    """Let a run go on where its journal ends."""
    run.journal.extend(past.records)
    run.spent = list(_spent(past.records))
    run.stopped = list(_stops(past.records))
    run.mail = _mail(past)
    run.sent = {record.path for record in past.records if isinstance(record, StepFinished) and record.kind == "send"}


_COUNTED = frozenset({"code", "model", "tool"})


def _spent(records: Sequence[JournalRecord]) -> Iterator[Spent]:
    """What every attempt has used: finished, failed, stopped and void ones, each once."""
    open_calls: dict[Path, CallStarted] = {}
    for record in records:
        if isinstance(record, CallStarted):
            open_calls[record.path] = record
        elif isinstance(record, (StepFinished, StepFailed, StepStopped)):
            open_calls.pop(record.path, None)
            tool = record.path[-1].partition("[")[0] if record.kind in ("tool_call", "tool") else None
            used = Usage(record.usage or NO_USAGE, record.cost, 1 if record.kind == "answer" else 0)
            if (
                record.usage is not None
                or record.cost is not None
                or record.kind in _COUNTED
                or tool
                or used.model_calls
            ):
                yield Spent(record.path, used, int(record.kind in _COUNTED), tool)
    for call in open_calls.values():
        # Nobody knows whether the provider has charged it: its whole reservation counts as spent.
        yield Spent(call.path, Usage(NO_USAGE, call.reserved_cost or Decimal(0), 1), 0, None)


def _stops(records: Sequence[JournalRecord]) -> Iterator[Control]:
    """The stops that were committed, the first of each execution."""
    seen: set[Path] = set()
    for record in records:
        control = record.control if isinstance(record, (StepFinished, StepFailed, StepStopped)) else None
        if control is not None and control.at not in seen:
            seen.add(control.at)
            yield control


def _mail(past: Past) -> dict[str, list[tuple[Path, Any]]]:
    """Messages that were sent and that no step has taken for good, by channel, in order."""
    taken = set(_taken(past.index))
    found: dict[str, list[tuple[Path, Any]]] = {}
    for record in past.records:
        if isinstance(record, StepFinished) and record.kind == "send" and isinstance(record.output, Stored):
            name, value = record.output.tree
            if record.path not in taken:
                found.setdefault(name, []).append((record.path, value))
    return found


def _taken(node: Node) -> Iterator[Path]:
    if node.finished is not None:
        yield from node.finished.takes
    for key, value in node.decisions.items():
        if key.endswith(".from"):
            yield tuple(value)
    for child in node.children.values():
        yield from _taken(child)
