"""Records of a journal, each as one line for people or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from noetic_py.cli.report import jsonable
from noetic_py.cli.words import money, plural, printable
from noetic_py.core.codec.text import is_dict
from noetic_py.errors import NoeticError
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    CallStarted,
    ChildReplayed,
    Decision,
    Intent,
    JournalRecord,
    Pending,
    Progressed,
    RunBegun,
    RunEnded,
    Segment,
    StateRevised,
    StepFinished,
    StepOpened,
    StepStopped,
    Voided,
    stored_name,
)

__all__ = ["as_object", "error_object", "line_of", "record_fields", "short"]

_FINISHED = (
    "kind",
    "attempt",
    "output",
    "items",
    "usage",
    "cost",
    "control",
    "winner",
    "delta",
    "fingerprint",
    "digest",
    "takes",
)
SHORT = 60
"""Characters of a value that a line shows."""


def record_fields(record: JournalRecord) -> dict[str, Any]:
    """What a record holds besides its path, by name, as JSON."""
    names = _FINISHED if isinstance(record, StepFinished) else [each.name for each in attrs.fields(type(record))]
    return {name: _field(getattr(record, name)) for name in names if name != "path"}


def _field(value: object) -> Any:
    from noetic_py.journal.record_codec import SameAsChild

    if isinstance(value, SameAsChild):
        return {"same_as_child": value.name}
    return error_object(value) if isinstance(value, Exception) else jsonable(value)


def error_object(error: Exception) -> dict[str, Any]:
    """An error as JSON."""
    if not isinstance(error, NoeticError):
        return {"type": type(error).__name__, "message": str(error), "path": [], "hint": None}
    return {"type": type(error).__name__, "message": error.message, "path": list(error.path), "hint": error.hint}


def as_object(position: int, record: JournalRecord) -> dict[str, Any]:
    """A record as JSON."""
    return {
        "position": position,
        "record": stored_name(record),
        "path": list(record.path),
        **record_fields(record),
    }


def short(value: object, length: int = SHORT) -> str:
    """A value on one line, cut where it is long."""
    text = printable(json.dumps(jsonable(value), ensure_ascii=False))
    return text if len(text) <= length else f"{text[: length - 1]}…"


def line_of(position: int, record: JournalRecord) -> str:
    """A record for people."""
    verb, what = _told(record)
    path = printable("/".join(record.path))
    return "  ".join(part for part in (f"{position:>6}", f"{verb:<9}", path, what) if part).rstrip()


def _told(record: JournalRecord) -> tuple[str, str]:
    """What happened, and what there is to say of it."""
    match record:
        case RunBegun():
            return "started", f"{record.flow}  {short(record.input)}"
        case StepOpened():
            return "began", _attempt(record.kind, record.attempt)
        case StepFinished():
            return "finished", "  ".join((_attempt(record.kind, record.attempt), *_used(record), *_output(record)))
        case AttemptFailed():
            message = printable(error_object(record.error)["message"])
            return "failed" if record.final else "retrying", f"{_attempt(record.kind, record.attempt)}  {message}"
        case StepStopped():
            return "stopped", "  ".join((_attempt(record.kind, record.attempt), *_used(record)))
        case Progressed():
            return "progress", short(record.value) if record.what == "set" else record.what
        case RunEnded():
            return "ended", f"{record.status}{f'  {printable(record.reason)}' if record.reason else ''}"
        case _:
            return _aside(record)


def _aside(record: JournalRecord) -> tuple[str, str]:
    match record:
        case Segment():
            return "wrote", f"{plural(len(record.items), 'item')}, {plural(len(record.delta), 'change')} of the state"
        case ChildReplayed():
            return "replayed", ""
        case Decision():
            return _decided(record)
        case Intent():
            return "starts", "may run only once"
        case Voided():
            return "voided", "runs anew"
        case StateRevised():
            return "revised", f"the state, version {record.version}"
        case CallStarted():
            return "calls", f"at most {plural(record.reserved_tokens, 'token')}, {money(record.reserved_cost)}"
        case Pending():
            return "waits", f"{record.kind}  {short(record.prompt) if record.prompt else printable(record.tool)}"
        case Answered():
            changed = "" if record.arguments is None else f" with {short(json.loads(record.arguments))}"
            return "answered", record.decision + changed + (f" by {printable(record.by)}" if record.by else "")
        case _:
            return stored_name(record), ""


def _decided(record: Decision) -> tuple[str, str]:
    if record.path or record.key != "asked":
        return "decided", f"{printable(record.key)} = {short(record.value)}"
    asked: Mapping[str, Any] = record.value
    told = short(asked["value"]) if "value" in asked else printable(asked.get("reason", ""))
    return "asked", f"{asked['kind']}  {told}" + (f"  by {printable(asked['by'])}" if "by" in asked else "")


def _attempt(kind: str, attempt: int) -> str:
    return kind if attempt == 1 else f"{kind}, attempt {attempt}"


def _used(record: StepFinished | StepStopped) -> list[str]:
    used = [] if record.usage is None else [plural(record.usage.total, "token")]
    return used + ([] if record.cost is None else [money(record.cost)])


def _output(record: StepFinished) -> list[str]:
    fields: Mapping[str, Any] = record_fields(record)
    output = fields["output"]
    if record.kind == "answer" or output is None or (is_dict(output) and "same_as_child" in output):
        return []
    return [short(output)]
