"""Journal records as bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetic_py.core.codec import Codec
from noetic_py.core.codec.text import MAX_NESTING, dump, parse
from noetic_py.errors import CodecError, LimitExceeded
from noetic_py.journal.envelope import refuse_sealed
from noetic_py.journal.fields import (
    ANYWHERE,
    HINT,
    OF_THE_RUN,
    Form,
    check_fields,
    form_of,
    read_fields,
    refuse,
    write_fields,
)
from noetic_py.journal.records import (
    KINDS,
    JournalRecord,
    Pending,
    RunBegun,
    RunEnded,
    StateRevised,
    StepFinished,
    stored_name,
)
from noetic_py.journal.stored import Record
from noetic_py.journal.values import Path, SameAsChild

__all__ = ["MAX_RECORD_BYTES", "check_journal", "dump_record", "load_record"]

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""How long a stored record may be."""
_MOST_WRITTEN = MAX_RECORD_BYTES - 1024 * 1024
"""How long one may be that is written: there has to be room beside it for the small ones of its transaction."""
_NESTING = MAX_NESTING + 16
"""How deep: a value as deep as values may be, in a record."""
MAX_FRAMES = 512
"""How many frames a path may have: far more than runs can be nested, far less than recursion can bear."""


def dump_record(record: JournalRecord, codec: Codec) -> Record:
    """A record as bytes.

    Raises:
        CodecError: Something in it cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    payload = dump(write_fields(record, codec))
    if len(payload) > _MOST_WRITTEN:
        raise LimitExceeded("record size", _MOST_WRITTEN, hint="keep large values in files, and store their names")
    return Record(stored_name(record), record.path, payload)


def load_record(stored: Record, codec: Codec) -> JournalRecord:
    """The record that these bytes are.

    Raises:
        CodecError: They are no record of this version, or a field does not hold what it may hold; the message names it.
        TransformMissing: Only a record transform can read them, which is not here.
    """
    refuse_sealed(stored.payload, stored.path)
    kind = KINDS.get(stored.kind)
    if kind is None:
        raise CodecError(
            f"a record of kind {stored.kind!r:.60}, which this version does not know", hint="install a newer noetic-py"
        )
    form = form_of(kind)
    try:
        fields = parse(stored.payload, MAX_RECORD_BYTES, "record size", nesting=_NESTING)
        _check_path(form, stored.path, stored.kind)
        check_fields(form, fields, stored.kind, stored.path)
        record: Any = read_fields(form, fields, codec, stored.kind, stored.path)
        if form.check is not None:
            form.check(record)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise CodecError(
            f"is not a valid {stored.kind}: {type(error).__name__}: {error}", where="/".join(stored.path)
        ) from error
    made: JournalRecord = record
    return made


def _check_path(form: Form, path: Path, kind: str) -> None:
    if bool(path) == (OF_THE_RUN in form.marks) and ANYWHERE not in form.marks:
        raise refuse("/".join(path), "path", kind, "none" if path else "the frames of a step")
    if len(path) > MAX_FRAMES:
        raise refuse(len(path), "path", kind, f"at most {MAX_FRAMES} frames")


def check_journal(records: Sequence[JournalRecord], run_id: str) -> None:
    """Check what the records of one journal say of each other.

    Args:
        records: All of them.
        run_id: Whose they are, for messages.

    Raises:
        CodecError: One refers to a record that is not there; `where` is its number and the field.
    """
    finished: set[Path] = set()
    for position, record in enumerate(records):
        wrong: tuple[str, str] | None = None
        match record:
            case StepFinished():
                if isinstance(record.output, SameAsChild) and (*record.path, record.output.name) not in finished:
                    wrong = "output", f"the name of a child that has finished, not {record.output.name!r:.60}"
                finished.add(record.path)
            case RunBegun() if position:
                wrong = "kind", "one RunStarted, at the beginning"
            case StateRevised() if any(at >= position for at in record.deltas):
                wrong = "deltas", "positions of records before it"
            case RunEnded() if not all(at < position and isinstance(records[at], Pending) for at in record.pending):
                wrong = "pending", "positions of requests before it"
            case _:
                pass
        if wrong is not None:
            raise CodecError(
                f"the {wrong[0]} of a {stored_name(record)} is not valid; expected {wrong[1]}",
                where=f"record {position + 1} of run {run_id}",
                path=record.path,
                hint=HINT,
            )
