"""What a run waits for, as its journal tells it, and what may be answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from noetic_py._engine.fold import Node, tree
from noetic_py.checkpoints.plain import PlainCodec, load_records
from noetic_py.checkpoints.records import Answered, Pending, RunEnded
from noetic_py.codec.text import dump
from noetic_py.errors import AnswerConflict, AnswerInvalid, CodecError, RequestExpired, RequestNotFound
from noetic_py.pending import Answer, PendingRequest

if TYPE_CHECKING:
    from noetic_py.checkpoints.backend import CheckpointBackend
    from noetic_py.checkpoints.records import JournalRecord
    from noetic_py.items import JsonValue

__all__ = ["answers_for", "open_requests", "request_of", "told", "waiting"]


def open_requests(journal: Sequence[JournalRecord]) -> dict[int, Pending]:
    """What a run waits for, by the position of its record, in the order of the layout."""
    return dict(sorted(((position, record) for record, position in _open(tree(journal))), key=_place))


_INDEX = re.compile(r"[\[#](\d{1,9})\]?\Z")


def _place(found: tuple[int, Pending]) -> list[tuple[int, str]]:
    """Where a request's step stands: paths of a section and calls of a round by their index, whichever asked first."""
    numbers = [(_INDEX.search(frame), frame) for frame in found[1].path]
    return [(0 if number is None else int(number[1]), frame) for number, frame in numbers]


async def waiting(backend: CheckpointBackend, run_id: str, position: int) -> list[PendingRequest]:
    """What a suspended run waits for, without reading more of its journal than that.

    Args:
        backend: Where it is kept.
        run_id: The run.
        position: How many records its journal holds; the last one says where the requests are.

    Raises:
        CodecError: A record cannot be read.
    """
    codec = PlainCodec()
    ended = await _record(backend, run_id, position - 1, codec)
    if not isinstance(ended, RunEnded):
        # Somebody goes on with it by now.
        return []
    found = [await _record(backend, run_id, each, codec) for each in ended.pending]
    return [request_of(record, run_id) for record in found if isinstance(record, Pending)]


async def _record(backend: CheckpointBackend, run_id: str, position: int, codec: PlainCodec) -> JournalRecord | None:
    page = await backend.read(run_id, after=position, limit=1)
    return next(iter(load_records(page, codec, run_id, position)), None)


def _open(node: Node) -> Iterator[tuple[Pending, int]]:
    done = node.finished is not None
    if node.asked is not None and node.answer is None and not done:
        yield node.asked
    for child in node.lasting:
        # Below a step that is done only what it has started beside the flow may still wait.
        goes_on = not done or child.finished is not None or child.kind == "detached"
        if goes_on and child.name not in node.failed:
            yield from _open(child)


def told(requests: Sequence[Pending]) -> str:
    """What a run waits for, in a line."""
    each = [f"{record.kind} of {record.tool or 'ask'} at {'/'.join(record.path)}" for record in requests]
    if not each:
        return "everything that it has waited for was answered"
    return f"waits for {'; '.join(each[:3])}" + (f" and {len(each) - 3} more" if len(each) > 3 else "")


def request_of(record: Pending, run_id: str) -> PendingRequest:
    """A request as it is shown."""
    arguments: JsonValue = json.loads(record.arguments)
    return PendingRequest(
        run_id,
        record.key,
        record.kind,
        record.path,
        record.call_id or record.key,
        record.tool,
        arguments if isinstance(arguments, dict) else {},
        record.prompt,
        record.schema,
        datetime.fromisoformat(record.asked),
        None if record.expires is None else datetime.fromisoformat(record.expires),
        record.problem,
    )


def answers_for(run_id: str, index: Node, answers: Iterable[Answer], now: datetime) -> list[Answered]:
    """Check answers against what a run waits for; the records that say so, without those that are there already.

    Raises:
        RequestNotFound: The run does not wait for one of them.
        RequestExpired: It came too late.
        AnswerConflict: It says something else than an earlier one.
        AnswerInvalid: It is of the wrong kind.
    """
    asked = {
        record.key: (record, node) for node in _all(index) if node.asked is not None for record in (node.asked[0],)
    }
    still = {record.key for record, _ in _open(index)}
    made: dict[str, Answered] = {}
    for answer in answers:
        record, node = _asked(run_id, asked, answer)
        _check_answer(answer, record)
        new = Answered(
            record.path, record.key, answer.decision, answer.value, answer.reason, answer.by, now.isoformat()
        )
        before = made.get(record.key) or node.answer
        if before is not None:
            _check_same(before, new)
            continue
        if answer.key not in still:
            raise _not_found(answer, "it is not waited for any more")
        if record.expires is not None and datetime.fromisoformat(record.expires) <= now:
            raise RequestExpired(
                f"request {answer.key} could be answered until {record.expires}",
                path=record.path,
                hint="resume the run without an answer; its step is told",
            )
        made[record.key] = new
    return list(made.values())


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _all(child)


def _asked(run_id: str, asked: Mapping[str, tuple[Pending, Node]], answer: Answer) -> tuple[Pending, Node]:
    given: object = answer
    if not isinstance(given, Answer):
        raise AnswerInvalid(f"{given!r:.100} is no Answer", hint="pending.approve(), .reject(reason) or .answer(value)")
    if answer.run_id != run_id:
        raise RequestNotFound(
            "an answer is for another run than the one that it was given to", hint="look at runs.get(run_id).pending"
        )
    if answer.key not in asked:
        raise _not_found(answer, "there is no such request in the run")
    return asked[answer.key]


def _not_found(answer: Answer, why: str) -> RequestNotFound:
    return RequestNotFound(f"request {answer.key}: {why}", hint="look at harness.runs.get(run_id).pending")


def _check_answer(answer: Answer, record: Pending) -> None:
    wanted = ("approved" if record.kind == "approval" else "answered", "rejected")
    if answer.decision not in wanted:
        raise AnswerInvalid(
            f"request {answer.key} is a {record.kind}, and cannot be {answer.decision}",
            path=record.path,
            hint=" or ".join(wanted),
        )
    try:
        dump(answer.value)
    except CodecError as error:
        raise AnswerInvalid(f"the answer cannot be stored: {error.message}", path=record.path) from error


def _check_same(before: Answered, new: Answered) -> None:
    if (before.decision, dump(before.value), before.reason) != (new.decision, dump(new.value), new.reason):
        raise AnswerConflict(
            f"request {new.key} was {before.decision} before" + (f" by {before.by}" if before.by else ""),
            path=new.path,
            hint="the first answer holds",
        )
