"""The inbox of a run: answers that come while a process has the run, and how its next owner takes them.

An answer waits there as the record that the owner writes because of it, in its stored form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from logging import WARNING

from attrs import evolve

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.control import Answer
from noetic_py.core.diagnostics import Where, log
from noetic_py.engine.journaling.fold import tree
from noetic_py.engine.journaling.run_history import RunHistory, answers_for, read_journal, same_answer
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.records import Answered, dump_record
from noetic_py.journal.run_summary import PlainCodec, load_records
from noetic_py.journal.stored import Signal
from noetic_py.journal.transforms import pack, unpack

_ANSWER = "answer:"
_INLINE = 1 << 62
_PAGE = 100


async def received(backend: CheckpointBackend, run_id: str) -> list[Signal]:
    """All signals that wait for a run, in their order."""
    found: list[Signal] = []
    while page := await backend.inbox(run_id, after=found[-1].number if found else 0, limit=_PAGE):
        found += page
        if len(page) < _PAGE:
            break
    return found


def answered_in(signals: Sequence[Signal]) -> dict[str, Answered]:
    """The answers among signals, by their requests' keys.

    Raises:
        CodecError: One cannot be read.
        CorruptRecord: Likewise.
    """
    found: dict[str, Answered] = {}
    codec = PlainCodec()
    for signal in signals:
        if signal.key.startswith(_ANSWER):
            records = unpack(signal.body, 1, _apart)
            for record in load_records(records, codec, signal.run_id, 0):
                if isinstance(record, Answered):
                    found[record.key] = record
    return found


def _apart(digest: bytes) -> bytes:
    raise errors.CorruptRecord("a stored answer names bytes that are not with it")


def heard(run_history: RunHistory, run_id: str, signals: Sequence[Signal]) -> RunHistory:
    """Resume a run with the answers in its inbox; one that fits no open request has no effect, and is logged."""
    made: list[Answered] = []
    for record in answered_in(signals).values():
        arguments = None if record.arguments is None else json.loads(record.arguments)
        said = Answer(run_id, record.key, record.decision, record.value, record.reason, record.by, arguments)
        try:
            # Whether it came in time was decided when it was sent, by the store's clock.
            made += answers_for(run_id, run_history.index, [said], datetime.fromisoformat(record.at))
        except (errors.AnswerError, errors.ArgumentsRefused) as error:
            where = Where(run_id, record.path)
            log("runs", WARNING, "an answer of run %s is not taken: %s", run_id, error.message, where=where)
    if not made:
        return run_history
    return evolve(run_history, index=tree([*run_history.records, *made], KINDS), answered=made)


async def send_answers(backend: CheckpointBackend, run_id: str, answers: Sequence[Answer], now: datetime) -> bool:
    """Put answers into the inbox of a run that a process has.

    Returns:
        Whether the backend has inboxes.

    Raises:
        RunNotFound: There is no such run.
        AnswerError: One is not taken; then none is.
    """
    index = tree(await read_journal(backend, run_id, PlainCodec()), KINDS)
    made = {each.key: each for each in answers_for(run_id, index, answers, now)}
    _check_same(made, answered_in(await received(backend, run_id)))
    for key, record in made.items():
        body = pack([dump_record(record, PlainCodec())], threshold=_INLINE).body
        try:
            await backend.send(run_id, f"{_ANSWER}{key}", body)
        except errors.ConfigError as error:
            if error.code != "queues":
                raise
            return False
    # Another process may have been faster with one of them.
    _check_same(made, answered_in(await received(backend, run_id)))
    return True


def _check_same(made: dict[str, Answered], there: dict[str, Answered]) -> None:
    for key in made.keys() & there.keys():
        same_answer(there[key], made[key])
