"""Records of a journal, and requests that wait, each as one line for people or as one JSON object."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from noetic_py.cli.formatting import jsonable, money, plural, printable
from noetic_py.core.control import PendingRequest
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.kinds import KINDS
from noetic_py.errors import NoeticError
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    CallStarted,
    ChildReplayed,
    Decision,
    Folded,
    Intent,
    JournalRecord,
    Pending,
    Progressed,
    ResultDiscarded,
    RunBegun,
    RunEnded,
    Segment,
    StateRevised,
    StepFinished,
    StepOpened,
    StepStopped,
    stored_name,
)

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
    """The fields of a record except its path, as JSON."""
    names = _FINISHED if isinstance(record, StepFinished) else [each.name for each in attrs.fields(type(record))]
    return {name: _field(getattr(record, name)) for name in names if name != "path"}


def _field(value: object) -> Any:
    from noetic_py.journal.values import SameAsChild

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
    """A value on one line, as a person would write it, cut where it is long."""
    text = printable(written(jsonable(value)))
    return text if len(text) <= length else f"{text[: length - 1]}…"


def written(tree: object) -> str:
    """A value as a person would write it: JSON, and what JSON has no form for by its class and its fields.

    Args:
        tree: JSON, as the value is stored.
    """
    if is_list(tree):
        return f"[{', '.join(map(written, tree))}]"
    if not is_dict(tree):
        return json.dumps(tree, ensure_ascii=False)
    try:
        return _of_class(tree) if isinstance(tree.get("$"), str) else _of_pairs(tree.items())
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        # It is not what the codec writes, so it is shown as it is.
        return json.dumps(tree, ensure_ascii=False)


def _of_pairs(pairs: Iterable[tuple[object, object]]) -> str:
    return f"{{{', '.join(f'{written(key)}: {written(part)}' for key, part in pairs)}}}"


def _of_class(tree: Mapping[str, Any]) -> str:
    tag, _, name = tree["$"].partition(":")
    if tag == "object" and name:
        return _of_fields(name, {key: part for key, part in tree.items() if key != "$"})
    return _CLASSES[tag](tree["v"], tree) if tag != "error" else f"{tree['t']}: {tree['m']}"


def _of_fields(name: str, fields: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={written(part)}' for key, part in fields.items())})"


def _joined(parts: Iterable[object]) -> str:
    return ", ".join(map(written, parts))


def _of_set(parts: Sequence[object], tree: Mapping[str, Any]) -> str:
    return f"{{{_joined(parts)}}}" if parts else f"{tree['$']}()"


_CLASSES: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "object": lambda value, tree: _of_fields(tree["t"], value),
    "enum": lambda value, tree: f"{tree['t']}({written(value)})",
    "dict": lambda value, _: _of_pairs(value),
    "tuple": lambda value, _: f"({_joined(value)}{',' if len(value) == 1 else ''})",
    "set": _of_set,
    "frozenset": _of_set,
    "bytes": lambda value, _: repr(b64decode(value, validate=True)),
    "timedelta": lambda value, _: str(timedelta(*value)),
    "secret": lambda value, _: f"Secret({written(value)})",
    "item": lambda value, _: written(value),
    **dict.fromkeys(("date", "datetime", "time", "decimal", "uuid", "path"), lambda value, _: f"{value}"),
}
"""How a stored value of each mark is written; see the encoders of the codec."""


def line_of(position: int, record: JournalRecord) -> str:
    """A record for people."""
    verb, what = _described(record)
    path = printable("/".join(record.path))
    return "  ".join(part for part in (f"{position:>6}", f"{verb:<9}", path, what) if part).rstrip()


def _described(record: JournalRecord) -> tuple[str, str]:
    """The event of a record, and its details."""
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
        case Folded():
            return "sums up", f"{plural(record.rounds, 'round')}, records {record.first + 1} to {record.end}"
        case RunEnded():
            return "ended", f"{record.status}{f'  {printable(record.reason)}' if record.reason else ''}"
        case _:
            return _described_other(record)


def _described_other(record: JournalRecord) -> tuple[str, str]:
    match record:
        case Segment():
            return "wrote", f"{plural(len(record.items), 'item')}, {plural(len(record.delta), 'change')} of the state"
        case ChildReplayed():
            return "replayed", ""
        case Decision():
            return _decided(record)
        case Intent():
            return "starts", "may run only once"
        case ResultDiscarded():
            return "discarded", "runs again"
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
    detail = short(asked["value"]) if "value" in asked else printable(asked.get("reason", ""))
    return "asked", f"{asked['kind']}  {detail}" + (f"  by {printable(asked['by'])}" if "by" in asked else "")


def _attempt(kind: str, attempt: int) -> str:
    return kind if attempt == 1 else f"{kind}, attempt {attempt}"


def _used(record: StepFinished | StepStopped) -> list[str]:
    used = [] if record.usage is None else [plural(record.usage.total, "token")]
    return used + ([] if record.cost is None else [money(record.cost)])


def _output(record: StepFinished) -> list[str]:
    fields: Mapping[str, Any] = record_fields(record)
    output = fields["output"]
    if KINDS[record.kind].part or output is None or (is_dict(output) and "same_as_child" in output):
        return []
    return [short(output)]


def pending_lines(pending: Iterable[PendingRequest]) -> Iterator[str]:
    """Each request in a line or two."""
    for request in pending:
        yield f"  {request.key}  {_request_text(request)}"
        if request.expires is not None:
            yield f"    until {request.expires.astimezone():%Y-%m-%d %H:%M:%S}"
        if request.problem is not None:
            yield f"    asked again: {printable(request.problem)}"


def _request_text(request: PendingRequest) -> str:
    if not request.tool:
        return f"question  {short(request.prompt)}"
    called = (
        f"{printable(request.tool)}({', '.join(f'{printable(k)}={short(v)}' for k, v in request.arguments.items())})"
    )
    return f"{request.kind:<8}  {called}" + (f"  {short(request.prompt)}" if request.prompt else "")


def pending_objects(pending: Iterable[PendingRequest]) -> list[dict[str, Any]]:
    """The same as JSON objects."""
    return [jsonable({field.name: getattr(each, field.name) for field in attrs.fields(type(each))}) for each in pending]
