"""Stored runs as the conversations that they were: what was said, what the model answered, what tools gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeGuard

from attrs import field, frozen

from noetic_py.core.control import SessionKey
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.core.runtime import made_at
from noetic_py.engine.journaling.fold import cause_of, items_below
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.kinds.model import ANSWERS
from noetic_py.engine.kinds.tool import CALL
from noetic_py.errors import CodecError, ConfigError
from noetic_py.journal.records import AttemptFailed, JournalRecord, RunBegun, Segment, StepFinished, StepStopped
from noetic_py.runner.runs import RunInfo, Runs


@frozen(eq=False)
class StoredRound:
    """One request of a stored run, and what came of it.

    Attributes:
        run_id: The run.
        index: Which of the run's answered requests it was, from 0.
        step: The id of the step that asked; empty where none is known.
        input: What was new in the conversation.
        answer: The items of the answer; `None` for a request that was not answered.
        outputs: The outputs of its calls, by call id.
    """

    run_id: str
    index: int
    step: str
    input: Sequence[Item]
    answer: Sequence[Item] | None
    outputs: Mapping[str, FunctionCallOutput] = field(factory=dict[str, FunctionCallOutput])

    @property
    def query(self) -> str:
        """What the user said last before it, empty where nothing new was said."""
        said = [item.text for item in self.input if isinstance(item, Message) and item.role == "user"]
        return said[-1] if said else ""


@frozen(eq=False)
class StoredTurn:
    """A stored run.

    Attributes:
        info: What the list of runs knows of it.
        history: How many items its conversation began with.
        position: Where its session stood when it began; `None` for a run that is no turn.
        rounds: Its requests.
        rest: What was put into the conversation after the last of them.
        notes: What of it a trial leaves out.
    """

    info: RunInfo
    history: int
    position: int | None
    rounds: Sequence[StoredRound]
    rest: Sequence[Item]
    notes: Sequence[str]

    @property
    def conversation(self) -> str | SessionKey:
        """What tells its conversation from others."""
        info = self.info
        return info.session or info.thread_id or info.run_id

    @property
    def size(self) -> int:
        """How many items the conversation holds after it."""
        rounds = sum(len(each.input) + len(each.answer or ()) + len(each.outputs) for each in self.rounds)
        return self.history + rounds + len(self.rest)


async def read_turns(runs: Runs, run_ids: Iterable[str]) -> Sequence[StoredTurn]:
    """Read stored runs, in the order in which they began.

    Raises:
        RunNotFound: One is not there.
        ConfigError: None of them holds an answer of a model; code `"trial"`.
    """
    turns = [await _read_turn(runs, each) for each in dict.fromkeys(run_ids)]
    if not any(turn.rounds for turn in turns):
        which = ", ".join(turn.info.run_id for turn in turns[:_NAMED]) or "none"
        raise ConfigError(
            f"no model has answered in the runs of this trial: {which}",
            code="trial",
            hint="give runs with a model; noetic runs lists what is stored",
        )
    # Runs of one moment have ids that tell the order too.
    return sorted(turns, key=lambda turn: (turn.info.created, turn.info.run_id))


_NAMED: Final = 5


async def _read_turn(runs: Runs, run_id: str) -> StoredTurn:
    info = await runs.get(run_id)
    records = await runs.journal(run_id)
    begun = next((each for each in records if isinstance(each, RunBegun)), None)
    opening = None if begun is None else begun.opening
    if begun is None or opening is None:
        raise CodecError("a run without a beginning cannot be tried", where=f"run {run_id}")
    base = opening.base
    position = None if base is None or base.position < 0 else base.position
    items = items_below(records, KINDS, (), cause_of(records))
    rounds, rest = _rounds(run_id, records, items)
    return StoredTurn(info, begun.history, position, rounds, rest, [*_notes(run_id, records, rounds)])


def _rounds(
    run_id: str, records: Sequence[JournalRecord], items: Sequence[Item]
) -> tuple[Sequence[StoredRound], Sequence[Item]]:
    """What was said, cut at the answers; and what follows the last one."""
    asked = [each for each in records if _is_of_answer(each)]
    answers = {each.items[0].id: each for each in asked if isinstance(each, StepFinished) and each.items}
    found: list[StoredRound] = []
    new: list[Item] = []
    outputs: dict[str, FunctionCallOutput] = {}
    open_calls: set[str] = set()
    place = 0
    while place < len(items):
        item = items[place]
        answer = answers.get(item.id)
        if answer is not None and _begins(items, place, answer.items):
            outputs = {}
            found.append(StoredRound(run_id, len(found), _asking(answer.path), new, answer.items, outputs))
            new = []
            open_calls = {each.call_id for each in answer.items if isinstance(each, FunctionCall)}
            place += len(answer.items)
            continue
        if isinstance(item, FunctionCallOutput) and item.call_id in open_calls:
            open_calls.discard(item.call_id)
            outputs[item.call_id] = item
        else:
            new.append(item)
        place += 1
    if asked and not isinstance(asked[-1], StepFinished):
        # The model was asked, and what was said stays in the conversation without an answer.
        return [*found, StoredRound(run_id, len(found), _asking(asked[-1].path), new, None)], ()
    return found, new


def _is_of_answer(record: object) -> TypeGuard[StepFinished | AttemptFailed | StepStopped]:
    return isinstance(record, StepFinished | AttemptFailed | StepStopped) and ANSWERS.is_named(record.kind)


def _begins(items: Sequence[Item], place: int, answer: Sequence[Item]) -> bool:
    return [each.id for each in answer] == [each.id for each in items[place : place + len(answer)]]


def _asking(path: Sequence[str]) -> str:
    """The id of the step that has asked for an answer."""
    frame = path[-2] if len(path) > 1 else ""
    return frame.partition("#")[0].partition("[")[0]


def _notes(run_id: str, records: Sequence[JournalRecord], rounds: Sequence[StoredRound]) -> Iterable[str]:
    """What of a run a trial cannot show."""
    tried = sum(each.answer is not None for each in rounds)
    others = sum(_is_of_answer(each) and isinstance(each, StepFinished) for each in records) - tried
    if others:
        yield f"run {run_id}: {others} answers of other conversations, such as those of sub-agents, are left out"
    written = {
        (record.path[-1], layer)
        for record in records
        if isinstance(record, StepFinished | Segment) and _is_code(record)
        for layer, _ in record.memory
    }
    for step, layer in sorted(written):
        yield f"run {run_id}: step {step} has written to layer {layer!r}, and code is not run in a trial"


def _is_code(record: StepFinished | Segment) -> bool:
    """Whether the record is of a step of the user's, which no layer and no call of a model has made."""
    if not isinstance(record, StepFinished):
        return False
    if CALL.is_named(record.kind):
        # Functions of layers run in a trial too.
        return record.tool is not None and "/" not in record.tool
    return KINDS[record.kind].written


def time_of(items: Iterable[Item], otherwise: datetime) -> datetime:
    """When the newest of some items was made, as far as their ids tell; never earlier than a time."""
    found = [moment for item in items if (moment := made_at(item.id)) is not None]
    return max([otherwise, *found])
