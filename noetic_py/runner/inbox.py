"""The inbox of a run: answers and messages that come from any process, and how the run's owner takes them.

Each waits there as the record that the owner writes because of it, in its stored form. Answers are taken by the next
owner, because the step that has asked has ended its task. Messages are taken by the present one, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from logging import WARNING

from attrs import evolve

from noetic_py import errors
from noetic_py.channels import Channel, from_outside
from noetic_py.channels.declared import gone
from noetic_py.checkpoints.checks import no_run
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.codec import Codec
from noetic_py.core.control import Answer
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.types import T
from noetic_py.engine.journaling.fold import tree
from noetic_py.engine.journaling.run_history import (
    OVER,
    RunHistory,
    answers_for,
    is_message,
    read_journal,
    same_answer,
)
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.state import Run
from noetic_py.journal.records import MESSAGE, Answered, Decision, JournalRecord, dump_record
from noetic_py.journal.run_summary import PlainCodec, load_records
from noetic_py.journal.stored import Signal
from noetic_py.journal.transforms import pack, unpack

_ANSWER = "answer:"
_SENT = "sent:"
_INLINE = 1 << 62
_PAGE = 100


async def received(backend: CheckpointBackend, run_id: str, after: int = 0) -> list[Signal]:
    """All signals behind a number that wait for a run, in their order."""
    found: list[Signal] = []
    while page := await backend.inbox(run_id, after=found[-1].number if found else after, limit=_PAGE):
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
    for signal in signals:
        record = _record_of(signal, PlainCodec()) if signal.key.startswith(_ANSWER) else None
        if isinstance(record, Answered):
            found[record.key] = record
    return found


def messages_in(signals: Sequence[Signal]) -> Iterator[tuple[Signal, Decision]]:
    """The messages among signals.

    Raises:
        CodecError: One cannot be read.
        CorruptRecord: Likewise.
    """
    for signal in signals:
        record = _record_of(signal, Codec()) if signal.key.startswith(_SENT) else None
        if isinstance(record, Decision) and is_message(record):
            yield signal, record


def _record_of(signal: Signal, codec: Codec) -> JournalRecord | None:
    """What the owner of a run writes because of a signal."""
    return next(load_records(unpack(signal.body, 1, _apart), codec, signal.run_id, 0), None)


def _apart(digest: bytes) -> bytes:
    raise errors.CorruptRecord("a stored answer names bytes that are not with it")


def heard(run_history: RunHistory, run_id: str, signals: Sequence[Signal]) -> RunHistory:
    """Resume a run with what is in its inbox; an answer that fits no open request has no effect, and is logged."""
    known = {each.key for each in run_history.records if isinstance(each, Decision) and is_message(each)}
    made: list[Answered | Decision] = [each for _, each in messages_in(signals) if each.key not in known]
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


async def send_message(backend: CheckpointBackend, run_id: str, channel: Channel[T], value: T, key: str) -> None:
    """Put a message for one of its channels into a run's inbox.

    Raises:
        RunNotFound: There is no such run.
        ChannelClosed: It has ended.
        ChannelValueInvalid: The value is not of the channel's type.
        ForgedEvent: It is an item that only the library makes.
        ConfigError: It is not an external channel, code `"channel"`; or the backend has no inboxes, code `"queues"`.
        CodecError: The value cannot be stored.
    """
    codec = Codec()
    tree = codec.encode(from_outside(channel, value))
    codec.require_readable(tree, channel.schema)
    entry = await backend.entry(run_id)
    if entry is None:
        raise no_run(run_id)
    if entry.status in OVER:
        raise gone(channel.name, f"run {run_id!r} has {entry.status}")
    record = Decision((), f"{MESSAGE}[{key}]", [channel.name, tree])
    await backend.send(run_id, f"{_SENT}{key}", pack([dump_record(record, codec)], threshold=_INLINE).body)


async def take_messages(run: Run) -> None:
    """Put the messages in a run's inbox into its channels, as far as these have room, and into its journal.

    Raises:
        CheckpointError: The backend has not taken them.
        CorruptRecord: One cannot be read.
    """
    store = run.store
    if store is None:
        return
    signals = await received(store.backend, run.run_id, store.read)
    messages = {signal.number: message for signal, message in messages_in(signals)}
    before, read, is_first = len(run.journal), store.read, True
    for signal in signals:
        message = messages.get(signal.number)
        # Signals leave an inbox in order: behind one that has to stay, a message stays too, and is known by its key.
        is_first = message is not None and _take(run, store.codec, message) and is_first
        if is_first:
            read = signal.number
    if len(run.journal) > before or read > store.read:
        await store.receive(run.journal, read)


def _take(run: Run, codec: Codec, message: Decision) -> bool:
    """Put a message into its channel; says whether it is there, or cannot be put there at all."""
    known = run.messages = run.messages or set()
    if message.key in known:
        return True
    name, tree = message.value
    live = run.channels.known(name)
    if live is None:
        return False
    try:
        value = from_outside(live.channel, codec.decode(tree, live.channel.schema))
    except errors.NoeticError as error:
        text = "a message for channel %r of run %s is dropped: %s"
        log("runs", WARNING, text, name, run.run_id, error.message, where=Where(run.run_id))
    else:
        if not live.offer((message.key,), value):
            return False
        run.journal.append(message)
    known.add(message.key)
    return True
