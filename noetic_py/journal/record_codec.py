"""Journal records as bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from attrs import asdict, astuple, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import Codec
from noetic_py.core.codec.text import MAX_NESTING, dump, inside, parse
from noetic_py.core.control import Control
from noetic_py.core.derivation import read_memory, write_memory
from noetic_py.core.items import Item, ItemBase
from noetic_py.core.log import Origin
from noetic_py.core.trace import Trace
from noetic_py.errors import (
    BudgetExceeded,
    CodecError,
    CorruptRecord,
    ItemSchemaMismatch,
    LimitExceeded,
    NoeticError,
    TransformMissing,
)
from noetic_py.errors import StepFailed as StepFailedError
from noetic_py.journal.record_fields import SameAsChild, check_decision, check_metadata, check_outcome, check_stored
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    Base,
    CallStarted,
    Change,
    ChildReplayed,
    Decision,
    Intent,
    JournalRecord,
    LayerDeltas,
    Opening,
    Path,
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
from noetic_py.journal.stored import Record

__all__ = [
    "MAX_RECORD_BYTES",
    "SameAsChild",
    "Stored",
    "beside_card",
    "card_fields",
    "dump_record",
    "dump_usage",
    "load_error",
    "load_record",
    "missing",
    "opened",
    "plain_card",
    "read_origins",
    "read_usage",
    "refuse_sealed",
    "sealed",
    "sealed_around",
    "store_error",
    "write_origins",
]


def store_error(error: Exception, codec: Codec) -> Any:
    """An error in its stored form; what is none of the library's is stored as what its step shows to others."""
    if not isinstance(error, NoeticError):
        error = StepFailedError(path=(), error_type=type(error).__name__, error_message=str(error))
    return codec.encode(error)


def load_error(tree: Any, codec: Codec) -> NoeticError:
    """The error that `store_error` has stored.

    Raises:
        CodecError: It is malformed, or of a class that this version does not know.
    """
    found = codec.decode(tree)
    if not isinstance(found, NoeticError):
        raise CodecError("is no stored error", where="error")
    return found


_MARK = 0xF5
_BEGIN = bytes((_MARK,))
_LENGTH = 4
_HINTS = {
    "signing": "pip install noetic-signing, then NOETIC_SIGNING_TRUSTED, or Harness(record_transforms=[Signing(...)])"
}


def sealed(name: str, payload: bytes) -> bytes:
    """What a transform gave, marked with its name."""
    told = name.encode()
    return b"".join((_BEGIN, bytes((len(told),)), told, payload))


def opened(payload: bytes) -> tuple[str, bytes] | None:
    """A transform's name and what it gave; `None` when these bytes are not sealed."""
    if payload[:1] != _BEGIN:
        return None
    start = 2 + (payload[1] if len(payload) > 1 else 0)
    return payload[2:start].decode("ascii", "backslashreplace"), payload[start:]


def refuse_sealed(payload: bytes, path: tuple[str, ...] = ()) -> None:
    """Refuse bytes that only a transform can read.

    Raises:
        TransformMissing: They are such bytes.
    """
    found = opened(payload)
    if found is not None:
        raise missing(found[0], path)


def missing(name: str, path: tuple[str, ...] = ()) -> TransformMissing:
    """The error for a transform that is needed and not here."""
    return TransformMissing(
        f"the run was written through the record transform {name!r:.80}, which is not here",
        transform=name,
        path=path,
        hint=_HINTS.get(name, "install and configure the plugin that has it, or Harness(record_transforms=[...])"),
    )


def sealed_around(name: str, card: bytes, beside: bytes) -> bytes:
    """A run's card with what is kept beside it, marked with the name of a transform."""
    return sealed(name, len(card).to_bytes(_LENGTH, "big") + card + beside)


def beside_card(stored: bytes) -> bytes:
    """What is kept beside a card; nothing where it is not sealed."""
    found = opened(stored)
    return b"" if found is None else found[1][_LENGTH + len(plain_card(stored)) :]


def plain_card(stored: bytes) -> bytes:
    """The card as its owner gave it."""
    found = opened(stored)
    if found is None:
        return stored
    size = int.from_bytes(found[1][:_LENGTH], "big")
    return found[1][_LENGTH : _LENGTH + size]


def card_fields(stored: bytes) -> dict[str, Any]:
    """What the card of a run or of a session says; nothing where there is none.

    Raises:
        CorruptRecord: It is no JSON object.
    """
    told = plain_card(stored)
    if not told:
        return {}
    try:
        fields: Any = json.loads(told)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise CorruptRecord("the card of a run is no JSON object", hint="restore the store from a backup")
    return fields  # pyright: ignore[reportUnknownVariableType]  # any JSON


MAX_RECORD_BYTES = 64 * 1024 * 1024
"""How long a stored record may be."""
_MOST_WRITTEN = MAX_RECORD_BYTES - 1024 * 1024
"""How long one may be that is written: there has to be room beside it for the small ones of its transaction."""
_NESTING = MAX_NESTING + 16
"""How deep: a value as deep as values may be, in a record."""

Fields = dict[str, Any]


@frozen(eq=False)
class Stored:
    """A value in its stored form: the code that knows its type makes it."""

    tree: Any


def dump_record(record: JournalRecord, codec: Codec) -> Record:
    """A record as bytes.

    Raises:
        CodecError: Something in it cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    kind = stored_name(record)
    payload = dump(_DUMP[kind](record, codec))
    if len(payload) > _MOST_WRITTEN:
        raise LimitExceeded("record size", _MOST_WRITTEN, hint="keep large values in files, and store their names")
    return Record(kind, record.path, payload)


def load_record(stored: Record, codec: Codec) -> JournalRecord:
    """The record that these bytes are.

    Raises:
        CodecError: They are no record of this version, or a field does not hold what it may hold; the message names it.
        TransformMissing: Only a record transform can read them, which is not here.
    """
    refuse_sealed(stored.payload, stored.path)
    load = _LOAD.get(stored.kind)
    if load is None:
        raise CodecError(
            f"a record of kind {stored.kind!r:.60}, which this version does not know", hint="install a newer noetic-py"
        )
    try:
        fields = parse(stored.payload, MAX_RECORD_BYTES, "record size", nesting=_NESTING)
        check_stored(stored.kind, stored.path, fields)
        record: JournalRecord = load(stored.path, fields, codec)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise CodecError(
            f"is no {stored.kind}: {type(error).__name__}: {error}", where="/".join(stored.path)
        ) from error
    return record


# ---------------------------------------------------------------------------------------------------- parts


def write_items(items: tuple[Item, ...], codec: Codec) -> list[Any]:
    return [_tree(item, f"items[{index}]", codec) for index, item in enumerate(items)]


def _tree(value: Any, where: str, codec: Codec) -> Any:
    """The stored form of a value of the user's; what it says when it has none begins with where it stands."""
    try:
        return codec.encode(value)
    except CodecError as error:
        raise inside(error, where) from error


def read_items(tree: Any, codec: Codec) -> tuple[Item, ...]:
    found: list[Any] = [codec.decode(each) for each in tree or ()]
    if not all(isinstance(each, ItemBase) for each in found):
        raise ItemSchemaMismatch("holds something that is no item", where="items")
    return tuple(found)


def write_origins(origins: Sequence[tuple[int, Origin | None]]) -> list[Any]:
    """Where items came from; empty when not known."""
    told = [[count] if origin is None else [count, *origin] for count, origin in origins]
    return told if any(origin is not None for _, origin in origins) else []


def read_origins(tree: Any) -> tuple[tuple[int, Origin | None], ...]:
    """Where items came from, as `write_origins` has told it.

    Raises:
        ValueError: It was not.
    """
    found: list[tuple[int, Origin | None]] = []
    for count, *origin in tree or ():
        if type(count) is not int or count < 0 or len(origin) not in (0, 2) or not all(type(e) is str for e in origin):
            raise ValueError(f"{[count, *origin]!r:.60} says of no items where they came from")
        found.append((count, (origin[0], origin[1]) if origin else None))
    return tuple(found)


def write_changes(delta: tuple[Change, ...]) -> list[Any]:
    return [[change.op, change.key, change.before, change.tree, *((True,) if change.kept else ())] for change in delta]


def read_changes(tree: Any) -> tuple[Change, ...]:
    return tuple(Change(*each) for each in tree or ())


def _layers(deltas: LayerDeltas) -> list[Any]:
    return [[layer, write_changes(delta)] for layer, delta in deltas]


def _read_layers(tree: Any) -> LayerDeltas:
    return tuple((layer, read_changes(delta)) for layer, delta in tree or ())


def dump_usage(usage: TokenUsage | None) -> Any:
    """Tokens as a list of numbers."""
    if usage is None:
        return None
    first = [usage.input, usage.output, usage.cached_input, usage.cache_write, usage.reasoning]
    # What was added later stands in a record only where it is known.
    later = [getattr(usage, name) for name in _LATER]
    return first if later == _UNKNOWN else first + later


def read_usage(tree: Any) -> TokenUsage | None:
    """Tokens from a list of numbers."""
    if tree is None:
        return None
    return TokenUsage(*tree)


_LATER = ("cache_write_1h", "input_audio", "output_audio", "input_image", "output_image")
_UNKNOWN = [None] * len(_LATER)


def _control(control: Control | None, codec: Codec) -> Any:
    if control is None:
        return None
    return {
        "kind": control.kind,
        "value": codec.encode(control.value),
        "reason": control.reason,
        "path": list(control.path),
        "at": list(control.at),
        "error": None if control.error is None else store_error(control.error, codec),
        **({} if control.shutdown is None else {"shutdown": control.shutdown}),
    }


def _read_control(tree: Any, codec: Codec) -> Control | None:
    if tree is None:
        return None
    error = None if tree["error"] is None else load_error(tree["error"], codec)
    return Control(
        tree["kind"],
        value=Stored(tree["value"]),
        reason=tree["reason"],
        path=tuple(tree["path"]),
        at=tuple(tree["at"]),
        error=error if isinstance(error, BudgetExceeded) else None,
        shutdown=tree.get("shutdown"),
    )


def _cost(cost: Decimal | None) -> str | None:
    return None if cost is None else str(cost)


def _read_cost(tree: Any) -> Decimal | None:
    return None if tree is None else Decimal(tree)


def _called(record: StepFinished | AttemptFailed | StepStopped) -> Fields:
    fields: Fields = {"m": record.calls} if record.calls else {}
    return fields if record.tool is None else fields | {"tool": record.tool}


def _lean(fields: Fields) -> Fields:
    """Without what says nothing."""
    return {key: value for key, value in fields.items() if value not in (None, [], "")}


# ---------------------------------------------------------------------------------------------------- records


def _dump_started(record: RunBegun, codec: Codec) -> Fields:
    opening = record.opening
    fields: Fields = {
        "run": record.run_id,
        "thread": record.thread_id,
        "flow": record.flow,
        "in": codec.encode(record.input),
        "n": record.history,
    }
    if opening is not None:
        fields["opening"] = {
            "f": opening.fingerprint,
            "i": write_items(opening.items, codec),
            "s": opening.state,
            "user": opening.user_id,
            "request": opening.request_id,
            "meta": codec.encode(dict(opening.metadata)),
            "source": opening.source,
            "budget": opening.budget,
            **({} if opening.version == 1 else {"v": opening.version}),
            **({} if opening.base is None else {"session": list(astuple(opening.base))}),
            **({} if not opening.depth else {"depth": opening.depth}),
            **({} if not opening.turns else {"turns": opening.turns}),
            **({} if opening.trace is None else {"trace": opening.trace.as_headers()}),
            **({"o": origins} if (origins := write_origins(opening.origins)) else {}),
            **({} if opening.asked is None else {"asked": opening.asked}),
            **({} if opening.memory is None else {"memory": write_memory(opening.memory, codec.encode)}),
        }
    return fields


def _load_started(path: Path, fields: Fields, codec: Codec) -> RunBegun:
    given = fields.get("opening")
    opening = None
    if given is not None:
        metadata = codec.decode(given["meta"])
        check_metadata(metadata, path)
        opening = Opening(
            given["f"],
            read_items(given["i"], codec),
            Stored(given["s"]),
            given["user"],
            given["request"],
            metadata,
            given["source"],
            given["budget"],
            given.get("v", 1),
            Base(*given["session"]) if "session" in given else None,
            given.get("depth", 0),
            given.get("turns", 0),
            Trace.from_headers(given["trace"]) if "trace" in given else None,
            read_origins(given.get("o")),
            given.get("asked"),
            read_memory(given["memory"]) if "memory" in given else None,
        )
    return RunBegun(path, fields["run"], fields["thread"], fields["flow"], Stored(fields["in"]), fields["n"], opening)


def _dump_finished(record: StepFinished, codec: Codec) -> Fields:
    fields: Fields = {"k": record.kind}
    if record.attempt != 1:
        fields["n"] = record.attempt
    fields |= _lean({"f": record.fingerprint, "d": record.digest, "y": _layers(record.memory)})
    if record.items:
        fields["i"] = write_items(record.items, codec)
    if record.delta:
        fields["s"] = write_changes(record.delta)
    if record.usage is not None or record.cost is not None or record.control is not None:
        used = {"u": dump_usage(record.usage), "c": _cost(record.cost), "x": _control(record.control, codec)}
        fields |= _lean(used)
    if record.winner is not None or record.takes:
        fields |= _lean({"w": record.winner, "t": [list(take) for take in record.takes]})
    if record.calls or record.tool is not None:
        fields |= _called(record)
    fields |= _lean({"te": record.tool_error})
    if record.loop_stops:
        # One list of them all, which of one is what earlier versions have written.
        fields["l"] = [
            part
            for path, value in record.loop_stops
            for part in (list(path), value.tree if isinstance(value, Stored) else codec.encode(value))
        ]
        fields |= _lean({"cut": [list(path) for path in record.cut]})
    output = record.output
    if isinstance(output, SameAsChild):
        fields["r"] = output.name
    elif output is not None:
        fields["o"] = output.tree if isinstance(output, Stored) else _tree(output, "output", codec)
    return fields


def _load_finished(path: Path, fields: Fields, codec: Codec) -> StepFinished:
    output: object = SameAsChild(fields["r"]) if "r" in fields else Stored(fields.get("o"))
    record = StepFinished(path, fields["k"], None, output)
    record.attempt = fields.get("n", 1)
    record.fingerprint = fields.get("f", "")
    record.digest = fields.get("d")
    record.items = read_items(fields.get("i"), codec)
    record.delta = read_changes(fields.get("s"))
    record.memory = _read_layers(fields.get("y"))
    record.usage = read_usage(fields.get("u"))
    record.cost = _read_cost(fields.get("c"))
    record.control = _read_control(fields.get("x"), codec)
    record.winner = fields.get("w")
    record.takes = tuple(tuple(take) for take in fields.get("t", ()))
    record.calls = fields.get("m", 0)
    record.tool = fields.get("tool")
    record.cut = tuple(tuple(path) for path in fields.get("cut", ()))
    record.tool_error = fields.get("te")
    if "l" in fields:
        told = fields["l"]
        record.loop_stops = tuple(
            (tuple(path), Stored(value)) for path, value in zip(told[::2], told[1::2], strict=True)
        )
    check_outcome(record)
    return record


def _dump_failed(record: AttemptFailed, codec: Codec) -> Fields:
    fields: Fields = {
        "k": record.kind,
        "n": record.attempt,
        "final": record.final,
        "e": store_error(record.error, codec),
        "u": dump_usage(record.usage),
        "c": _cost(record.cost),
        "x": _control(record.control, codec),
        **_called(record),
        **({"h": True} if record.held else {}),
    }
    return fields


def _load_failed(path: Path, fields: Fields, codec: Codec) -> AttemptFailed:
    return AttemptFailed(
        path,
        fields["k"],
        fields["n"],
        fields["final"],
        load_error(fields["e"], codec),
        read_usage(fields["u"]),
        _read_cost(fields["c"]),
        _read_control(fields["x"], codec),
        fields.get("m", 0),
        fields.get("tool"),
        fields.get("h", False),
    )


def _dump_stopped(record: StepStopped, codec: Codec) -> Fields:
    fields: Fields = {
        "k": record.kind,
        "n": record.attempt,
        "i": write_items(record.items, codec),
        "s": write_changes(record.delta),
        "u": dump_usage(record.usage),
        "c": _cost(record.cost),
        "x": _control(record.control, codec),
        "t": [list(take) for take in record.takes],
        **({"y": _layers(record.memory)} if record.memory else {}),
        **_called(record),
    }
    return fields


def _load_stopped(path: Path, fields: Fields, codec: Codec) -> StepStopped:
    return StepStopped(
        path,
        fields["k"],
        fields["n"],
        read_items(fields["i"], codec),
        read_usage(fields["u"]),
        _read_cost(fields["c"]),
        _read_control(fields["x"], codec),
        read_changes(fields["s"]),
        fields.get("m", 0),
        fields.get("tool"),
        tuple(tuple(take) for take in fields.get("t", ())),
        _read_layers(fields.get("y")),
    )


def _revised_layers(record: StateRevised) -> list[Any]:
    return [dict(record.layers), [[position, _layers(memory)] for position, memory in record.memory.items()]]


def _has(record: Progressed) -> bool:
    return record.what == "set"


def _is_told(field: Any, value: Any) -> bool:
    return bool(field.name != "path" and value != field.default)


_DUMP: dict[str, Callable[[Any, Codec], Any]] = {
    "RunStarted": _dump_started,
    "StepOpened": lambda record, _: [record.kind, record.attempt, record.fence],
    "Segment": lambda record, codec: [
        record.attempt,
        write_items(record.items, codec),
        write_changes(record.delta),
        *((_layers(record.memory),) if record.memory or record.before is not None else ()),
        *((record.before,) if record.before is not None else ()),
    ],
    "ChildReplayed": lambda record, _: [],
    "Voided": lambda record, _: [],
    "StepFinished": _dump_finished,
    "StepFailed": _dump_failed,
    "StepStopped": _dump_stopped,
    "Decision": lambda record, codec: [record.key, _tree(record.value, record.key.partition("[")[0], codec)],
    "Intent": lambda record, _: [record.digest],
    "StateRevised": lambda record, _: [
        record.version,
        record.state,
        [[position, write_changes(delta)] for position, delta in record.deltas.items()],
        *(_revised_layers(record) if record.layers else ()),
    ],
    "CallStarted": lambda record, _: [
        record.reserved_tokens,
        str(record.reserved_cost),
        record.reserved_output,
        record.fence,
    ],
    "Pending": lambda record, _: asdict(record, filter=_is_told),
    "Answered": lambda record, _: asdict(record, filter=_is_told),
    "Progressed": lambda record, codec: [record.what, *([_tree(record.value, "value", codec)] if _has(record) else ())],
    "RunEnded": lambda record, codec: [
        record.status,
        record.reason,
        _control(record.control, codec),
        *((list(record.pending),) if record.pending else ()),
    ],
}


def _load_segment(path: Path, fields: Any, codec: Codec) -> Segment:
    attempt, items, delta, *later = fields
    memory, before = [*later, None, None][:2]
    return Segment(path, attempt, read_items(items, codec), read_changes(delta), _read_layers(memory), before)


def _load_decision(path: Path, fields: Any, codec: Codec) -> Decision:
    key, tree = fields
    value = codec.decode(tree)
    check_decision(key, value, path)
    return Decision(path, key, value)


def _load_revised(path: Path, fields: Any, _: Codec) -> StateRevised:
    version, state, deltas, *layers = fields
    record = StateRevised(path, version, state, {position: read_changes(delta) for position, delta in deltas})
    if layers:
        versions, memory = layers
        record.layers, record.memory = dict(versions), {position: _read_layers(each) for position, each in memory}
    return record


def _load_progressed(path: Path, fields: Any, codec: Codec) -> Progressed:
    what, *value = fields
    record = Progressed(path, what, codec.decode(*value) if value else None)
    if what not in ("set", "done", "cleared") or len(value) != _has(record):
        raise ValueError(f"it says {what!r:.60} and {len(value)} values")
    return record


def _load_ended(path: Path, fields: Any, codec: Codec) -> RunEnded:
    status, reason, control, *pending = fields
    return RunEnded(path, status, reason, _read_control(control, codec), tuple(*pending))


_LOAD: dict[str, Callable[[Path, Any, Codec], JournalRecord]] = {
    "RunStarted": _load_started,
    "StepOpened": lambda path, fields, _: StepOpened(path, *fields),
    "Segment": _load_segment,
    "ChildReplayed": lambda path, _, __: ChildReplayed(path),
    "Voided": lambda path, _, __: Voided(path),
    "StepFinished": _load_finished,
    "StepFailed": _load_failed,
    "StepStopped": _load_stopped,
    "Decision": _load_decision,
    "Intent": lambda path, fields, _: Intent(path, fields[0]),
    "StateRevised": _load_revised,
    "CallStarted": lambda path, fields, _: CallStarted(path, fields[0], Decimal(fields[1]), *fields[2:]),
    "Pending": lambda path, fields, _: Pending(path, **fields),
    "Answered": lambda path, fields, _: Answered(path, **fields),
    "Progressed": _load_progressed,
    "RunEnded": _load_ended,
}
