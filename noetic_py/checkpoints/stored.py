"""Journal records as bytes, and back.

A record's payload is compact JSON with one-letter keys; what is the usual case is left out. Values of the user's, such
as outputs, stay in their stored form when a record is read, because only the step that asks for one knows its type.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from attrs import asdict, astuple, frozen

from noetic_py.budget import TokenUsage
from noetic_py.checkpoints.backend import Record
from noetic_py.checkpoints.envelope import refuse_sealed
from noetic_py.checkpoints.failures import load_error, store_error
from noetic_py.checkpoints.records import (
    Answered,
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
    RunEnded,
    RunStarted,
    Segment,
    StateRevised,
    StepFailed,
    StepFinished,
    StepOpened,
    StepStopped,
    Voided,
)
from noetic_py.codec import Codec
from noetic_py.codec.text import MAX_NESTING, dump, inside, parse
from noetic_py.control import Control
from noetic_py.errors import BudgetExceeded, CodecError, ItemSchemaMismatch
from noetic_py.items import Item, ItemBase
from noetic_py.traces import Trace

__all__ = ["MAX_RECORD_BYTES", "SameAsChild", "Stored", "dump_record", "dump_usage", "load_record", "read_usage"]

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""How long a stored record may be."""
_NESTING = MAX_NESTING + 16
"""How deep: a value as deep as values may be, in a record."""

Fields = dict[str, Any]


@frozen(eq=False)
class Stored:
    """A value in its stored form: whoever knows its type makes it."""

    tree: Any


@frozen(eq=False)
class SameAsChild:
    """The output of a composite that is its child's, and so is stored there."""

    name: str


def dump_record(record: JournalRecord, codec: Codec) -> Record:
    """A record as bytes.

    Raises:
        CodecError: Something in it cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    kind = type(record).__name__
    return Record(kind, record.path, dump(_DUMP[kind](record, codec)))


def load_record(stored: Record, codec: Codec) -> JournalRecord:
    """The record that these bytes are.

    Raises:
        CodecError: They are no record of this version.
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
    return [usage.input, usage.output, usage.cached_input, usage.cache_write, usage.reasoning]


def read_usage(tree: Any) -> TokenUsage | None:
    """Tokens from a list of numbers."""
    if tree is None:
        return None
    read, written, cached, cache_write, reasoning = tree
    return TokenUsage(read, written, cached_input=cached, cache_write=cache_write, reasoning=reasoning)


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


def _called(record: StepFinished | StepFailed | StepStopped) -> Fields:
    fields: Fields = {"m": record.calls} if record.calls else {}
    return fields if record.tool is None else fields | {"tool": record.tool}


def _lean(fields: Fields) -> Fields:
    """Without what says nothing."""
    return {key: value for key, value in fields.items() if value not in (None, [], "")}


# ---------------------------------------------------------------------------------------------------- records


def _dump_started(record: RunStarted, codec: Codec) -> Fields:
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
        }
    return fields


def _load_started(path: Path, fields: Fields, codec: Codec) -> RunStarted:
    given = fields.get("opening")
    opening = None
    if given is not None:
        opening = Opening(
            given["f"],
            read_items(given["i"], codec),
            Stored(given["s"]),
            given["user"],
            given["request"],
            codec.decode(given["meta"]),
            given["source"],
            given["budget"],
            given.get("v", 1),
            Base(*given["session"]) if "session" in given else None,
            given.get("depth", 0),
            given.get("turns", 0),
            Trace.from_headers(given["trace"]) if "trace" in given else None,
        )
    return RunStarted(path, fields["run"], fields["thread"], fields["flow"], Stored(fields["in"]), fields["n"], opening)


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
    if record.loop_stops:
        # One list of them all, which of one is what earlier versions have written.
        fields["l"] = [
            part
            for path, value in record.loop_stops
            for part in (list(path), value.tree if isinstance(value, Stored) else codec.encode(value))
        ]
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
    if "l" in fields:
        told = fields["l"]
        record.loop_stops = tuple(
            (tuple(path), Stored(value)) for path, value in zip(told[::2], told[1::2], strict=True)
        )
    return record


def _dump_failed(record: StepFailed, codec: Codec) -> Fields:
    fields: Fields = {
        "k": record.kind,
        "n": record.attempt,
        "final": record.final,
        "e": store_error(record.error, codec),
        "u": dump_usage(record.usage),
        "c": _cost(record.cost),
        "x": _control(record.control, codec),
        **_called(record),
    }
    return fields


def _load_failed(path: Path, fields: Fields, codec: Codec) -> StepFailed:
    return StepFailed(
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
        *((_layers(record.memory),) if record.memory else ()),
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
    attempt, items, delta, *memory = fields
    return Segment(path, attempt, read_items(items, codec), read_changes(delta), _read_layers(*memory or ((),)))


def _load_revised(path: Path, fields: Any, _: Codec) -> StateRevised:
    version, state, deltas = fields
    return StateRevised(path, version, state, {position: read_changes(delta) for position, delta in deltas})


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
    "Decision": lambda path, fields, codec: Decision(path, fields[0], codec.decode(fields[1])),
    "Intent": lambda path, fields, _: Intent(path, fields[0]),
    "StateRevised": _load_revised,
    "CallStarted": lambda path, fields, _: CallStarted(path, fields[0], Decimal(fields[1]), *fields[2:]),
    "Pending": lambda path, fields, _: Pending(path, **fields),
    "Answered": lambda path, fields, _: Answered(path, **fields),
    "Progressed": _load_progressed,
    "RunEnded": _load_ended,
}
