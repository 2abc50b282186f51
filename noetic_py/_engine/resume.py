"""A run as its journal tells it: what a process needs that goes on with a run which another one has begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from attrs import evolve, frozen

from noetic_py._engine.custody import keep_former
from noetic_py._engine.fold import Node, forget_failure, tree
from noetic_py._engine.ledger import note_outcome
from noetic_py._engine.progress import progress_of
from noetic_py._engine.requests import answers_for
from noetic_py._engine.revision import migrated, revise
from noetic_py._engine.state import Run, Spent
from noetic_py.budget import NO_USAGE, TokenUsage, Usage
from noetic_py.channels import Entry
from noetic_py.checkpoints.backend import CheckpointBackend
from noetic_py.checkpoints.naming import is_stream
from noetic_py.checkpoints.records import (
    Answered,
    CallStarted,
    Intent,
    JournalRecord,
    Path,
    RunEnded,
    RunStarted,
    StateRevised,
    StepFailed,
    StepFinished,
    StepOpened,
    StepStopped,
)
from noetic_py.checkpoints.stored import Stored, load_record
from noetic_py.codec import Codec
from noetic_py.control import Control
from noetic_py.errors import BudgetExceeded, CodecError, RunNotFound
from noetic_py.pending import Answer
from noetic_py.steps.spawn import SPAWNS

__all__ = ["Past", "answer", "past_of", "read_journal", "take_over"]

# What a run may have ended with and go on all the same.
_GO_ON = frozenset({"failed", "budget_exceeded"})
# What has ended so is told once more, and nothing is added to it.
_OVER = frozenset({"completed", "aborted"})
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
        revision: What a newer version of the state's type makes of it, and the journal does not hold yet.
        answered: What was answered just now, and the journal does not hold yet.
    """

    started: RunStarted
    records: list[JournalRecord]
    index: Node
    ended: RunEnded | None
    revision: StateRevised | None = None
    answered: Sequence[Answered] = ()


async def read_journal(backend: CheckpointBackend, run_id: str, codec: Codec) -> list[JournalRecord]:
    """Every record of a run.

    Raises:
        RunNotFound: There is no such run.
        CodecError: A record cannot be read; the message says which.
    """
    if is_stream(run_id):
        raise RunNotFound(f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()")
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


def past_of(records: list[JournalRecord], run_id: str, kind: type[Any] | None, codec: Codec) -> Past:
    """Read a journal.

    Args:
        records: What it holds.
        run_id: The run.
        kind: The type that its state has now.
        codec: What reads it.

    Raises:
        CodecError: The state cannot become one of that type.
        RunNotFound: It has no head, so there is nothing to go on with.
    """
    started = records[0] if records else None
    if not isinstance(started, RunStarted) or started.opening is None:
        raise RunNotFound(f"run {run_id!r} has no beginning", hint="it was never committed; start it again")
    ended = records[-1] if isinstance(records[-1], RunEnded) else None
    revise(records)
    revision = migrated(records, kind, codec)
    if revision is not None:
        revise([*records, revision])
    index = tree(records)
    if ended is not None and ended.status in _GO_ON:
        for record, _ in list(index.failed.values()):
            forget_failure(index, record)
    return Past(started, records, index, ended, revision)


def answer(past: Past, run_id: str, answers: Iterable[Answer], now: datetime) -> Past:
    """Let a run go on with answers to what it waits for.

    Raises:
        AnswerError: One is not taken; then none is.
    """
    made = answers_for(run_id, past.index, answers, now)
    return evolve(past, index=tree([*past.records, *made]), answered=made) if made else past


def take_over(run: Run, past: Past) -> None:
    """Let a run go on where its journal ends."""
    run.journal.extend(past.records)
    run.journal.extend(past.answered)
    run.spent = _spent(past.records)
    run.once = _once(past.records)
    run.turns = sum(spent.used.model_calls for spent in run.spent)
    run.context_turns = 0 if past.started.opening is None else past.started.opening.turns
    run.unpriced = any(
        record.calls and record.usage is not None and record.cost is None
        for record in past.records
        if isinstance(record, (StepFinished, StepFailed, StepStopped))
    )
    run.stopped = _stops(past.records)
    run.progress.update(progress_of(past.records))
    run.family.iterations += _iterations(past.records)
    _deliver(run, past)
    if past.revision is not None and (past.ended is None or past.ended.status not in _OVER):
        run.journal.append(past.revision)
    if any(isinstance(record, StepOpened) and record.kind == "detached" for record in past.records):
        run.relaunched = set()
    run.sent = {record.path for record in past.records if isinstance(record, StepFinished) and record.kind == "send"}


_REPEATING = frozenset({"loop", "handoff"})


def _iterations(records: Sequence[JournalRecord]) -> int:
    """How often the bodies of loops and the steps of chains of handoffs have ended, in attempts that are void too."""
    kinds = (StepOpened, StepFinished, StepFailed)
    loops = {record.path for record in records if isinstance(record, kinds) and record.kind in _REPEATING}
    ended = (record for record in records if isinstance(record, (StepFinished, StepFailed)))
    return sum(
        record.path[:-1] in loops and record.path[-1] != "wrap_up" and getattr(record, "final", True)
        for record in ended
    )


_COUNTED = frozenset({"code", "handing", "model", "tool"})


def _steps(record: StepFinished | StepFailed | StepStopped) -> int:
    """How many steps an attempt counts for."""
    if record.kind not in _COUNTED:
        return 0
    error = record.error if isinstance(record, StepFailed) else None
    # One that a budget of steps has refused has not begun.
    refused = isinstance(error, BudgetExceeded) and error.dimension == "steps" and error.path == record.path
    return 0 if refused else 1


def _spent(records: Sequence[JournalRecord]) -> list[Spent]:
    """What every attempt has used: finished, failed, stopped and void ones, each once."""
    begun: dict[Path, list[CallStarted]] = {}
    spawns = {record.path for record in records if getattr(record, "kind", None) in _EXECUTIONS}
    found: list[Spent] = []
    for record in records:
        if isinstance(record, CallStarted):
            begun.setdefault(record.path, []).append(record)
        elif isinstance(record, (StepFinished, StepFailed, StepStopped)):
            if record.calls and record.path in begun:
                # Its own are the last ones; those before were in flight when an earlier owner died.
                del begun[record.path][-record.calls :]
            used = Usage(record.usage or NO_USAGE, record.cost, record.calls)
            spent = Spent(record.path, used, _steps(record), record.tool, _execution(record.path, spawns))
            if spent.steps or spent.tool or used != _NOTHING:
                found.append(spent)
            if isinstance(record, StepFailed) and not record.final:
                found = [_tried_again(each, record.path) for each in found]
    for call in chain.from_iterable(begun.values()):
        # Nobody knows whether the provider has charged it: its whole reservation counts as spent.
        tokens = TokenUsage(call.reserved_tokens - call.reserved_output, call.reserved_output)
        most = Usage(tokens, call.reserved_cost, 1)
        found.append(Spent(call.path, most, 0, None, _execution(call.path, spawns), sure=False))
    return found


def _tried_again(spent: Spent, path: Path) -> Spent:
    """Note that a step around an attempt is tried again, which gives the steps below it new budgets."""
    if spent.path[: len(path)] != path or (spent.void is not None and spent.void <= len(path)):
        return spent
    return evolve(spent, void=len(path))


def _execution(path: Path, spawns: set[Path]) -> Path:
    """The innermost execution around a step."""
    return next((path[:depth] for depth in range(len(path) - 1, 0, -1) if path[:depth] in spawns), ())


_NOTHING = Usage(NO_USAGE, None, 0)
_EXECUTIONS = frozenset({*SPAWNS, "detached"})


def _stops(records: Sequence[JournalRecord]) -> list[Control]:
    """The stops that were committed and hold, the first of each execution."""
    found: dict[Path, Control] = {}
    for record in records:
        if isinstance(record, StepFailed) and not record.final:
            # What was asked for in the attempt is void with it.
            depth = len(record.path)
            found = {at: control for at, control in found.items() if at[:depth] != record.path}
        control = record.control if isinstance(record, (StepFinished, StepFailed, StepStopped)) else None
        if control is not None:
            found.setdefault(control.at, control)
    return list(found.values())


def _once(records: Sequence[JournalRecord]) -> dict[Path, Intent | StepFinished | StepFailed]:
    """What is known of the steps that may run only once."""
    found: dict[Path, Intent | StepFinished | StepFailed] = {}
    for record in records:
        if isinstance(record, Intent):
            found[record.path] = record
        elif record.path in found and isinstance(record, (StepFinished, StepFailed)):
            note_outcome(found, record)
    return found


def _deliver(run: Run, past: Past) -> None:
    """Put messages that were sent where they are to be found, and those taken where they may come back from."""
    takers = dict(_takes(past.index))
    sent: set[Path] = set()
    for record in past.records:
        # A second attempt's send is recorded, and has sent nothing.
        if isinstance(record, StepFinished) and record.kind == "send" and record.path not in sent:
            sent.add(record.path)
            name, value = record.output.tree if isinstance(record.output, Stored) else (None, None)
            if name is None:
                continue
            there = run.mail.setdefault(name, [])
            entry = Entry(len(there) + 1, value, record.path not in takers, record.path)
            there.append(entry)
            if not entry.placed:
                keep_former(run, takers[record.path], name, entry)


def _takes(node: Node) -> Iterator[tuple[Path, Path]]:
    """The messages that were taken for good, by the paths of their sends, each with the path of its taker."""
    yield from ((sender, node.path) for sender in node.takes)
    for key, value in node.decisions.items():
        if key.endswith(".from"):
            yield tuple(value), (*node.path, key.removesuffix(".from"))
    for child in node.lasting:
        yield from _takes(child)
