"""What each field of a stored record may hold: one table, checked before anything uses a record.

A stored record can have a valid checksum and still be wrong: it was edited, or another program has written it. Whatever
is behind the table (the fold of a journal, `resume`, lists of runs) relies on these types and ranges. Fields that the
table does not name are left to the reader, so that later versions can add some.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias, get_args

from attrs import frozen

from noetic_py.core.codec.text import is_array, is_dict, is_list, parse
from noetic_py.core.control import Partial, RunStatus, StopKind
from noetic_py.core.items import FunctionCallOutput, ItemBase
from noetic_py.core.requests import Decided, RequestKind
from noetic_py.core.types import version_order
from noetic_py.errors import CodecError
from noetic_py.journal.records import (
    JournalRecord,
    Path,
    Pending,
    RunBegun,
    RunEnded,
    StateRevised,
    StepFinished,
    stored_name,
)

__all__ = ["SameAsChild", "check_decision", "check_journal", "check_metadata", "check_outcome", "check_stored"]

MAX_FRAMES = 512
"""How many frames a path may have: far more than runs can be nested, far less than recursion can bear."""
_MAX_COUNT = 2**63
_HINT = "the record was changed after it was written; restore the store from a backup"

Fits: TypeAlias = Callable[[Any], bool]


@frozen(eq=False)
class SameAsChild:
    """The output of a composite that is its child's, and so is stored there."""

    name: str


@frozen(eq=False)
class Field:
    """One field of a record.

    Attributes:
        name: What it is called in an error.
        expected: What it may hold, in words.
        fits: Whether a stored value is such a one.
        key: Where it stands: a key of a JSON object, or a place in a list.
        needed: Whether it may not be left out.
    """

    name: str
    expected: str
    fits: Fits
    key: str | int
    needed: bool = True


# ---------------------------------------------------------------------------------------------------- kinds of values


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_attempt(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_cost(value: Any) -> bool:
    try:
        return isinstance(value, str) and Decimal(value).is_finite()
    except InvalidOperation:
        return False


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_json_object(value: Any) -> bool:
    return isinstance(value, str) and is_dict(parse(value, len(value) * 4 + 1, "arguments"))


def _is_change(value: Any) -> bool:
    if not is_list(value) or not 4 <= len(value) <= 5:
        return False
    op, key, before, tree, *kept = value
    return (
        op in ("set", "unset", "append")
        and _is_text(key)
        and _or_none(_is_text)(before)
        and (op != "append" or is_list(tree))
        and all(map(_is_flag, kept))
    )


def _anything(_: Any) -> bool:
    return True


def _or_none(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _each(fits: Fits) -> Fits:
    return lambda value: is_array(value) and all(map(fits, value))


def _pair(first: Fits, second: Fits) -> Fits:
    return lambda value: is_list(value) and len(value) == 2 and first(value[0]) and second(value[1])


def _one_of(given: Any) -> Fits:
    known = frozenset(get_args(given))
    return lambda value: isinstance(value, str) and value in known


def _names(given: Any) -> str:
    return " or ".join(get_args(given))


def _object(fields: Mapping[str, Fits], optional: Mapping[str, Fits] | None = None) -> Fits:
    more = optional or {}
    return lambda value: (
        is_dict(value)
        and all(key in value and fits(value[key]) for key, fits in fields.items())
        and all(fits(value[key]) for key, fits in more.items() if key in value)
    )


_is_path = _each(_is_text)
_is_changes = _each(_is_change)
_is_layers = _each(_pair(_is_text, _is_changes))
_is_takes = _each(_is_path)
_optional_text = _or_none(_is_text)
_is_control = _object(
    {
        "kind": _one_of(StopKind),
        "value": _anything,
        "reason": _optional_text,
        "path": _is_path,
        "at": _is_path,
        "error": _or_none(is_dict),
    },
    {"shutdown": _or_none(_one_of(Partial))},
)


def _is_usage(value: Any) -> bool:
    # What a provider does not tell is null: all but what was read and written.
    return (
        is_list(value)
        and len(value) >= 5
        and all(map(_is_count, value[:2]))
        and all(each is None or _is_count(each) for each in value[2:])
    )


def _is_verdict(value: Any) -> bool:
    return (
        is_list(value)
        and len(value) in (3, 4)
        and _is_flag(value[0])
        and all(map(_optional_text, value[1:3]))
        and all(map(_is_flag, value[3:]))
    )


def _is_loop_stops(value: Any) -> bool:
    return is_list(value) and len(value) % 2 == 0 and all(map(_is_path, value[::2]))


def _is_session(value: Any) -> bool:
    return (
        is_list(value)
        and len(value) == 4
        and _optional_text(value[0])
        and _is_text(value[1])
        and _is_text(value[2])
        and (value[3] == -1 or _is_count(value[3]))
    )


def _is_versions(value: Any) -> bool:
    return is_dict(value) and all(version_order(each) is not None for each in value.values())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_limits(value: Any) -> bool:
    return _LIMITS(value)


_LIMITS = _or_none(
    _object(
        {
            "limits": lambda value: (
                is_dict(value)
                and all(_is_cost(each) if name == "cost" else _is_digits(each) for name, each in value.items())
            ),
            "per_tool": lambda value: is_dict(value) and all(map(_is_count, value.values())),
            "seconds": _or_none(_is_number),
            "depth": _or_none(_is_count),
            "warn_at": _is_number,
            "wrap_up": _optional_text,
            "reserve": _is_limits,
        }
    )
)


_ACTION = _one_of(Literal["allow", "ask", "deny"])
_RULES = _object(
    {
        "otherwise": _ACTION,
        "rules": _each(
            _object(
                {
                    "action": _ACTION,
                    "tool": _is_text,
                    "where": _each(_pair(_is_text, _is_text)),
                    "within": _each(_is_text),
                    "folders": _each(_is_text),
                }
            )
        ),
    }
)
_ASKED = _object(
    {"kind": lambda value: value in ("complete", "wrap_up", "abort")},
    {"value": _anything, "reason": _is_text, "by": _optional_text, "key": _is_text},
)


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20


# What the engine's own steps store as their output, by kind.
_OUTPUTS: Mapping[str, tuple[Fits, str]] = {
    "answer": (
        lambda value: (
            is_list(value)
            and len(value) == 5
            and _or_none(_is_usage)(value[0])
            and _or_none(_object({"$": lambda mark: mark == "decimal", "v": _is_cost}))(value[1])
            and all(map(_optional_text, value[2:]))
        ),
        "[usage, cost, stop reason, model, response id]",
    ),
    "gather": (is_list, "a list"),
    "handing": (_object({"to": _optional_text, "value": _anything}), "an object of to and value"),
    "send": (_pair(_is_text, _anything), "[channel, value]"),
}


# ---------------------------------------------------------------------------------------------------- the table


def _row(*fields: tuple[str, str, Fits], needed: int | None = None) -> tuple[Field, ...]:
    """Fields of a record that is stored as a list; the first `needed` are always there."""
    least = len(fields) if needed is None else needed
    return tuple(Field(name, told, fits, at, at < least) for at, (name, told, fits) in enumerate(fields))


def _field(key: str, name: str, expected: str, fits: Fits, *, needed: bool = True) -> Field:
    return Field(name, expected, fits, key, needed)


def _maybe(key: str, name: str, expected: str, fits: Fits) -> Field:
    return Field(name, expected, fits, key, needed=False)


_CHANGES = "a list of changes, each [op, key, before, value]"
_LAYERS = "a list of [layer, changes]"
_COUNT = "a whole number from 0 on"
_ATTEMPT = "a whole number from 1 on"
_PATHS = "a list of paths, each a list of texts"
_OR_NONE = " or null"
_KIND = ("kind", "text", _is_text)
_USED = (
    _maybe("u", "usage", "a list of whole numbers from 0 on, or null", _or_none(_is_usage)),
    _maybe("c", "cost", "text of a finite number or null", _or_none(_is_cost)),
    _maybe("x", "control", "a stop: kind, value, reason, path, at, error", _or_none(_is_control)),
    _maybe("m", "calls", _COUNT, _is_count),
    _maybe("tool", "tool", "text or null", _optional_text),
)
_OWN = (
    _maybe("i", "items", "a list of items", _or_none(_each(is_dict))),
    _maybe("s", "delta", _CHANGES, _or_none(_is_changes)),
    _maybe("y", "memory", _LAYERS, _or_none(_is_layers)),
    _maybe("t", "takes", _PATHS, _is_takes),
)

_FIELDS: Mapping[str, tuple[Field, ...]] = {
    "RunStarted": (
        _field("run", "run_id", "text", _is_text),
        _field("thread", "thread_id", "text", _is_text),
        _field("flow", "flow", "text", _is_text),
        _field("in", "input", "a stored value", _anything),
        _field("n", "history", _COUNT, _is_count),
        _maybe("opening", "opening", "an object", is_dict),
    ),
    "opening": (
        _field("f", "fingerprint", "text", _is_text),
        _field("i", "items", "a list of items", _each(is_dict)),
        _field("s", "state", "a stored value", _anything),
        _field("user", "user_id", "text or null", _optional_text),
        _field("request", "request_id", "text or null", _optional_text),
        _field("meta", "metadata", "an object", is_dict),
        _field("source", "source", "text or null", _optional_text),
        _field("budget", "budget", "limits or null", _is_limits),
        _maybe("v", "version", _ATTEMPT, _is_attempt),
        _maybe("session", "session", "[app, user, session, position]", _is_session),
        _maybe("depth", "depth", _COUNT, _is_count),
        _maybe("turns", "turns", _COUNT, _is_count),
        _maybe("trace", "trace", "a list of texts", _is_path),
    ),
    "StepOpened": _row(_KIND, ("attempt", _ATTEMPT, _is_attempt), ("fence", _COUNT, _is_count), needed=2),
    "Segment": _row(
        ("attempt", _ATTEMPT, _is_attempt),
        ("items", "a list of items", _each(is_dict)),
        ("delta", _CHANGES, _is_changes),
        ("memory", _LAYERS, _is_layers),
        ("before", "the name of a child", _is_text),
        needed=3,
    ),
    "ChildReplayed": (),
    "Voided": (),
    "StepFinished": (
        _field("k", "kind", "text", _is_text),
        _maybe("n", "attempt", _ATTEMPT, _is_attempt),
        _maybe("f", "fingerprint", "text", _is_text),
        _maybe("d", "digest", "text or null", _optional_text),
        *_OWN,
        *_USED,
        _maybe("w", "winner", _COUNT + _OR_NONE, _or_none(_is_count)),
        _maybe("r", "output", "the name of a child", _is_text),
        _maybe("l", "loop_stops", "pairs of a path and a value", _is_loop_stops),
    ),
    "StepFailed": (
        _field("k", "kind", "text", _is_text),
        _field("n", "attempt", _ATTEMPT, _is_attempt),
        _field("final", "final", "true or false", _is_flag),
        _field("e", "error", "a stored error", is_dict),
        *_USED,
        _maybe("h", "held", "true or false", _is_flag),
    ),
    "StepStopped": (
        _field("k", "kind", "text", _is_text),
        _field("n", "attempt", _ATTEMPT, _is_attempt),
        *_OWN,
        *_USED,
    ),
    "Decision": _row(("key", "text", _is_text), ("value", "a stored value", _anything)),
    "Intent": _row(("digest", "text or null", _optional_text)),
    "StateRevised": _row(
        ("version", _ATTEMPT, _is_attempt),
        ("state", "a stored value", _anything),
        ("deltas", "a list of [position, changes]", _each(_pair(_is_count, _is_changes))),
        ("layers", "an object of versions", _is_versions),
        ("memory", "a list of [position, layers]", _each(_pair(_is_count, _is_layers))),
        needed=3,
    ),
    "CallStarted": _row(
        ("reserved_tokens", _COUNT, _is_count),
        ("reserved_cost", "text of a finite number", _is_cost),
        ("reserved_output", _COUNT, _is_count),
        ("fence", _COUNT, _is_count),
        needed=2,
    ),
    "Pending": (
        _field("kind", "kind", _names(RequestKind), _one_of(RequestKind)),
        _field("key", "key", "text", _is_text),
        _field("digest", "digest", "text", _is_text),
        _maybe("call_id", "call_id", "text", _is_text),
        _maybe("tool", "tool", "text", _is_text),
        _maybe("arguments", "arguments", "text of a JSON object", _is_json_object),
        _maybe("prompt", "prompt", "text", _is_text),
        _maybe("schema", "schema", "an object or null", _or_none(is_dict)),
        _field("asked", "asked", "a time with an offset", _is_time),
        _maybe("expires", "expires", "a time with an offset or null", _or_none(_is_time)),
        _maybe("problem", "problem", "text or null", _optional_text),
        _maybe("rules", "rules", "a list of rules with what becomes of other calls, or null", _or_none(_each(_RULES))),
    ),
    "Answered": (
        _field("key", "key", "text", _is_text),
        _field("decision", "decision", _names(Decided), _one_of(Decided)),
        _maybe("reason", "reason", "text", _is_text),
        _maybe("by", "by", "text or null", _optional_text),
        _maybe("at", "at", "a time with an offset", _is_time),
        _maybe("arguments", "arguments", "text of a JSON object or null", _or_none(_is_json_object)),
    ),
    "Progressed": _row(
        ("what", "set, done or cleared", lambda value: value in ("set", "done", "cleared")),
        ("value", "JSON", _anything),
        needed=1,
    ),
    "RunEnded": _row(
        ("status", _names(RunStatus), _one_of(RunStatus)),
        ("reason", "text or null", _optional_text),
        ("control", "a stop or null", _or_none(_is_control)),
        ("pending", "a list of positions", _each(_is_count)),
        needed=3,
    ),
}
# Records of the run itself, and those that a run without a step can have.
_OF_THE_RUN = frozenset({"RunStarted", "RunEnded"})
_ANYWHERE = frozenset({"Decision", "Progressed", "Segment", "StateRevised"})

# What the engine decides for a step, by the key up to its number, as read.
_DECISIONS: Mapping[str, tuple[Fits, str]] = {
    "route": (_optional_text, "the id of a step or null"),
    "paths": (_each(_is_text), "ids of steps"),
    "wrap_up": (_each(_is_text), "a path"),
    "verdict": (
        _is_verdict,
        "[stop, reason, feedback], with a fourth field when the condition failed",
    ),
    "cut": (
        lambda value: (
            is_list(value) and len(value) in (2, 3) and type(value[0]) is int and all(map(_is_flag, value[1:]))
        ),
        "[scope, timed] or [scope, timed, held]",
    ),
    "between": (_each(lambda item: isinstance(item, ItemBase)), "a list of items"),
    "begun": (
        _each(lambda value: is_list(value) and len(value) == 2 and _is_path(value[0]) and _is_attempt(value[1])),
        "a list of [path, attempt]",
    ),
    "valueless": (lambda value: value is True, "true"),
    "asked": (_ASKED, "a stop that was asked for"),
    "launched": (
        _object(
            {
                "step": _is_text,
                "fingerprint": _is_text,
                "count": _is_count,
                "input": _is_text,
                "state": _is_text,
                "bag": _is_flag,
                "version": _is_attempt,
                "budget": _is_limits,
            }
        ),
        "what was started",
    ),
}
_TAKEN = (_is_path, "the path of a send")
_CALL = re.compile(r"\[\d{1,9}\]\Z")


# ---------------------------------------------------------------------------------------------------- checking


def _refuse(value: Any, name: str, kind: str, expected: str, path: Path = ()) -> CodecError:
    return CodecError(
        f"{value!r:.80} is not a valid {name} of a {kind}; expected {expected}", where=name, path=path, hint=_HINT
    )


def check_stored(kind: str, path: Path, fields: Any) -> None:
    """Check the path and the fields of a stored record, as JSON, against the table.

    Raises:
        CodecError: One does not fit; `where` is its name.
    """
    if bool(path) == (kind in _OF_THE_RUN) and kind not in _ANYWHERE:
        expected = "none" if path else "the frames of a step"
        raise _refuse("/".join(path), "path", kind, expected)
    if len(path) > MAX_FRAMES:
        raise _refuse(len(path), "path", kind, f"at most {MAX_FRAMES} frames")
    table = _FIELDS[kind]
    if table:
        _check_fields(kind, path, fields, table, list if isinstance(table[0].key, int) else dict)
    if kind == "RunStarted" and "opening" in fields:
        _check_fields(kind, path, fields["opening"], _FIELDS["opening"], dict, "opening.")
    elif kind == "StepFinished":
        _check_output(path, fields)


def _check_fields(
    kind: str, path: Path, fields: Any, table: Sequence[Field], shape: type[Any], inside: str = ""
) -> None:
    if not isinstance(fields, shape):
        raise _refuse(fields, "form", kind, "a list" if shape is list else "an object", path)
    count = len(fields)
    for field in table:
        if not (field.key < count if isinstance(field.key, int) else field.key in fields):
            if field.needed:
                raise CodecError(f"a {kind} without its {field.name}", where=inside + field.name, path=path, hint=_HINT)
        elif not field.fits(fields[field.key]):
            raise _refuse(fields[field.key], inside + field.name, kind, field.expected, path)


def _check_output(path: Path, fields: Mapping[str, Any]) -> None:
    kind = fields["k"]
    known = _OUTPUTS.get(kind)
    if known is not None and not known[0](fields.get("o")):
        raise _refuse(fields.get("o"), "output", f"StepFinished of kind {kind}", known[1], path)
    if kind == "tool_call" and not _CALL.search(path[-1]):
        raise _refuse("/".join(path), "path", f"StepFinished of kind {kind}", "a frame with a number, such as [0]")


def check_metadata(value: Any, path: Path) -> None:
    """Check the metadata of a run, as they were read.

    Raises:
        CodecError: They are no mapping with text keys.
    """
    if not is_dict(value) or not all(map(_is_text, value)):
        raise _refuse(value, "opening.metadata", "RunStarted", "an object with text keys", path)


def check_outcome(record: StepFinished) -> None:
    """Check the items of a finished step, which have been read by now.

    Raises:
        CodecError: It is a tool call without its output.
    """
    if record.kind == "tool_call" and not isinstance(record.items[-1] if record.items else None, FunctionCallOutput):
        raise _refuse(len(record.items), "items", "StepFinished of kind tool_call", "an output as the last one")


def check_decision(key: str, value: Any, path: Path) -> None:
    """Check what was decided for a step, as it was read.

    Raises:
        CodecError: It is not what the engine decides under this key.
    """
    name, bracket, end = key.partition("[")
    found = _TAKEN if bracket and end.endswith(".from") else _DECISIONS.get(name)
    if found is not None and not found[0](value):
        raise _refuse(value, f"value of {key:.60}", "Decision", found[1], path)


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
                hint=_HINT,
            )
