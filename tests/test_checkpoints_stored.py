"""Journal records as bytes, and back."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Budget, FunctionCall, FunctionCallOutput, InMemoryBackend, Message, TokenUsage, errors
from noetic_py.checkpoints import Record
from noetic_py.core.codec import Codec
from noetic_py.core.control import Control
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.engine.state import limits_of
from noetic_py.journal import patches, records, values
from noetic_py.journal.records import check_journal, dump_record, load_record
from noetic_py.journal.values import SameAsChild, Stored
from noetic_py.steps.flow import Settled
from tests.properties.checks import SEED, examples

CODEC = Codec([Settled])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
frames = st.text("abc#[]012ä", min_size=1, max_size=4)
paths = st.lists(frames, max_size=3).map(tuple)
whole = st.integers(0, 10**12)
money = st.decimals(0, 10**6, allow_nan=False, places=6)
maybe_money = st.none() | money
usages = st.none() | st.builds(TokenUsage, whole, whole, st.none() | whole, st.none() | whole, st.none() | whole)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | texts | money,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | st.tuples(inner),
    max_leaves=5,
)
items = st.one_of(
    st.builds(Message.user, texts),
    st.builds(Message.assistant, texts),
    st.builds(FunctionCall, name=st.just("f"), arguments=st.dictionaries(texts, st.integers(), max_size=2)),
    st.builds(FunctionCallOutput, call_id=texts.filter(bool), output=texts, final=st.booleans()),
)
several = st.lists(items, max_size=3).map(tuple)
deltas = st.lists(
    st.builds(
        patches.Change,
        st.sampled_from(["set", "unset", "append"]),
        texts,
        st.none() | texts,
        st.lists(st.integers(), max_size=2),
        st.booleans(),
    ),
    max_size=3,
).map(tuple)
failures = st.one_of(
    st.builds(errors.StepFailed, path=paths, error_type=texts, error_message=texts),
    st.builds(errors.StepTimeout, st.floats(0.1, 100), path=paths),
    st.builds(errors.BudgetExceeded, st.just("cost"), limit=money, requested=money, settled=money, path=paths),
    st.builds(errors.LoopLimit, whole, path=paths),
    st.builds(errors.Aborted, texts, path=paths),
    st.builds(errors.ConfigError, texts, code=st.just("c"), hint=st.none() | texts, path=paths),
    st.builds(errors.ModelUnavailable, texts, model=texts),
    st.builds(errors.ReplayDiverged, texts, path=paths),
    st.builds(errors.StepOutcomeUnknown, path=paths),
)


def of_paths(each: errors.NoeticError, path: tuple[str, ...], value: object) -> errors.ParallelFailed:
    return errors.ParallelFailed(succeeded={0: value}, failed={1: each}, first=each, path=path)


nested = st.builds(of_paths, failures, paths, plain)
problems = failures | nested
controls = st.none() | st.builds(
    Control, st.sampled_from(["complete", "abort"]), value=plain, reason=st.none() | texts, path=paths, at=paths
)
tools = st.none() | texts.filter(bool)
takes = st.lists(paths, max_size=2).map(tuple)


places = st.lists(frames, min_size=1, max_size=3).map(tuple)
moments = st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
arguments = st.dictionaries(texts, st.integers(), max_size=2).map(json.dumps)
BUDGET = limits_of(Budget(cost="1.5", steps=9, per_tool={"pay": 1}, seconds=2.5, reserve=Budget(tokens=10)))


@st.composite
def finished(draw: st.DrawFn) -> records.StepFinished:
    record = records.StepFinished(draw(places), draw(st.sampled_from(["code", "model", "loop"])), None, draw(plain))
    record.attempt = draw(st.integers(1, 5))
    record.items, record.delta = draw(several), draw(deltas)
    record.usage, record.cost, record.control = draw(usages), draw(maybe_money), draw(controls)
    record.winner = draw(st.none() | st.integers(0, 9))
    record.fingerprint, record.digest = draw(texts), draw(st.none() | texts.filter(bool))
    record.takes, record.calls, record.tool = draw(takes), draw(st.integers(0, 3)), draw(tools)
    record.loop_stops = tuple(draw(st.lists(st.tuples(paths, plain), max_size=2)))
    record.cut = tuple(path for path, _ in record.loop_stops if draw(st.booleans()))
    if draw(st.booleans()):
        record.output = SameAsChild(draw(frames))
    return record


@st.composite
def summaries(draw: st.DrawFn) -> records.Folded:
    first, size, rounds = draw(st.integers(1, 99)), draw(st.integers(1, 99)), draw(st.integers(1, 99))
    kept = draw(st.sets(st.integers(first, first + size - 1), max_size=3))
    return records.Folded(
        draw(places), f"a[{rounds}]", rounds, first, first + size, tuple(sorted(kept)), draw(whole), draw(whole),
        draw(usages), draw(maybe_money), draw(whole), draw(st.booleans()), draw(st.booleans()), draw(deltas),
    )  # fmt: skip


openings = st.builds(
    records.Opening,
    fingerprint=texts,
    items=several,
    state=plain.map(CODEC.encode),
    user_id=st.none() | texts,
    request_id=st.none() | texts,
    metadata=st.dictionaries(texts, st.integers(), max_size=2),
    source=st.none() | texts,
    budget=st.none() | st.just(BUDGET),
    version=st.integers(1, 3),
    turns=st.integers(0, 3),
    origins=st.sampled_from([(), ((2, None), (1, ("run", "branch")))]),
    asked=st.none() | st.integers(0, 9),
)
attempts = st.integers(1, 9)
statuses = st.sampled_from(["completed", "failed", "aborted"])
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "RunStarted": st.builds(records.RunBegun, st.just(()), texts, texts, texts, plain, whole, st.none() | openings),
    "StepOpened": st.builds(records.StepOpened, places, texts, attempts, whole),
    "Segment": st.builds(
        records.Segment, places, attempts, several, deltas, st.just(()) | deltas.map(lambda delta: (("notes", delta),)),
        st.none() | frames,
    ),
    "ChildReplayed": st.builds(records.ChildReplayed, places),
    "Voided": st.builds(records.ResultDiscarded, places),
    "StateRevised": st.builds(
        records.StateRevised, st.just(()), attempts, plain.map(CODEC.encode),
        st.dictionaries(whole, deltas, max_size=3),
    ),
    "StepFinished": finished(),
    "StepFailed": st.builds(
        records.AttemptFailed, places, texts, attempts, st.booleans(), problems, usages, maybe_money, controls,
        st.integers(0, 3), tools, st.booleans(),
    ),
    "StepStopped": st.builds(
        records.StepStopped, places, texts, attempts, several, deltas, usages, maybe_money, controls, takes,
        calls=st.integers(0, 3), tool=tools,
    ),
    "Decision": st.builds(records.Decision, places, texts, plain),
    "Intent": st.builds(records.Intent, places, st.none() | texts),
    "CallStarted": st.builds(records.CallStarted, places, whole, money, whole, whole),
    "Pending": st.builds(
        records.Pending, places, st.sampled_from(["approval", "result", "question"]), texts, texts, texts, texts,
        arguments, texts, st.none() | st.just({"type": "integer"}), moments, st.none() | moments, st.none() | texts,
    ),
    "Answered": st.builds(
        records.Answered, places, texts, st.sampled_from(["approved", "rejected", "answered"]),
        st.none() | st.just({"a": [1, None]}), texts, st.none() | texts, moments,
    ),
    "Progressed": st.builds(records.Progressed, places, st.just("set"), plain)
    | st.builds(records.Progressed, places, st.sampled_from(["done", "cleared"])),
    "Folded": summaries(),
    "RunEnded": st.builds(
        records.RunEnded, st.just(()), statuses, st.none() | texts, controls, st.lists(whole, max_size=3).map(tuple)
    ),
}  # fmt: skip


def told(value: Any) -> Any:
    """A record's contents, to compare; what stays in its stored form is stored here too."""
    if isinstance(value, errors.NoeticError):
        fields = {name: told(part) for name, part in vars(value).items() if name not in ("result", "left")}
        return [type(value).__name__, value.args, fields, told(value.__cause__)]
    if isinstance(value, (Stored, SameAsChild)):
        return attrs.asdict(value)
    if isinstance(value, Control):
        return [told(getattr(value, name)) for name in ("kind", "value", "reason", "path", "at", "error")]
    kind: Any = value.__class__
    if kind in (tuple, list):
        return [kind.__name__, *map(told, value)]
    if kind is dict:
        return [[told(key), told(part)] for key, part in value.items()]
    if kind.__module__ in (patches.__name__, records.__name__, values.__name__):
        names: list[str] = [*vars(value)] if not attrs.has(kind) else [field.name for field in attrs.fields(kind)]
        names += [name for name in vars(kind) if name in vars(records.StepFinished)["__annotations__"]]
        return {name: told(getattr(value, name)) for name in names}
    return [kind.__name__, value]


# What only the step that asks for it can make again.
_KEPT_STORED = {"input", "output", "state"}


def as_read(record: Any) -> Any:
    """The record as it is to be read back."""
    if isinstance(record, records.RunBegun):
        opening = record.opening
        opening = None if opening is None else attrs.evolve(opening, state=Stored(opening.state))
        return attrs.evolve(record, input=Stored(CODEC.encode(record.input)), opening=opening)
    control = getattr(record, "control", None)
    if control is not None:
        record.control = attrs.evolve(control, value=Stored(CODEC.encode(control.value)))
    if isinstance(record, records.StepFinished):
        if not isinstance(record.output, SameAsChild):
            record.output = Stored(CODEC.encode(record.output))
        record.loop_stops = tuple((path, Stored(CODEC.encode(value))) for path, value in record.loop_stops)
    return record


def test_every_kind_of_record_is_tried() -> None:
    assert set(KINDS) == {records.stored_name(object.__new__(kind)) for kind in records.JournalRecord.__args__}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_record_comes_back_as_it_was(kind: str, data: st.DataObject) -> None:
    record = data.draw(KINDS[kind])
    stored = dump_record(record, CODEC)
    assert (stored.kind, stored.path, stored.value) == (kind, record.path, None)
    read = load_record(stored, CODEC)
    assert type(read) is type(record)
    assert told(read) == told(as_read(record))


def test_an_error_keeps_its_class_its_fields_and_its_cause() -> None:
    inner = errors.StepFailed(path=("a", "b"), error_type="ValueError", error_message="no")
    error = errors.ParallelFailed(succeeded={0: 1}, failed={2: errors.LoopLimit(3), 1: inner}, first=inner, path=("a",))
    settled: Settled[int] = Settled(None, error)
    found = CODEC.loads(CODEC.dumps(settled), Settled[int]).error
    assert isinstance(found, errors.ParallelFailed)
    assert (found.path, found.message, found.hint, found.succeeded) == (("a",), error.message, error.hint, {0: 1})
    assert isinstance(found.failed[2], errors.LoopLimit)
    assert found.failed[2].limit == 3
    assert found.first is found.failed[1] is found.__cause__


def test_an_error_of_ones_own_is_told_as_the_nearest_known_one() -> None:
    class Mine(errors.StepTimeout):
        pass

    found = CODEC.loads(CODEC.dumps(Mine(2.0, path=("a",))))
    assert type(found) is errors.StepTimeout
    assert found.seconds == 2.0


def test_a_failure_is_stored_whatever_it_holds() -> None:
    class Wild:
        def __repr__(self) -> str:
            raise ValueError

    deep: Any = []
    for _ in range(500):
        deep = [deep]
    error = errors.ParallelFailed(
        succeeded={0: object(), 1: Wild(), 2: deep, 3: 4},
        failed={5: errors.StepFailed(path=(), error_type="E", error_message="\ud800 and \ud83d\udc00")},
        first=errors.LoopLimit(1),
    )
    record = records.AttemptFailed(("a",), "code", 1, True, error, None, None, None)
    found = load_record(dump_record(record, CODEC), CODEC)
    assert isinstance(found, records.AttemptFailed)
    assert isinstance(found.error, errors.ParallelFailed)
    assert found.error.succeeded[3] == 4
    assert "object object" in str(found.error.succeeded[0])


def test_where_a_value_stands_that_cannot_be_stored_is_named() -> None:
    record = records.StepFinished(("a",), "code", None, {"k": [object()]})
    with pytest.raises(errors.CodecError, match=r"^output\['k'\]\[0\]: a builtins\.object cannot be stored"):
        dump_record(record, CODEC)
    with pytest.raises(errors.CodecError, match=r"^next\[1\]: a builtins\.object"):
        dump_record(records.Decision(("a",), "next[3]", [1, object()]), CODEC)


def test_what_is_written_is_read_again_however_deep_it_is() -> None:
    """A value may be as deep as values may be; the record around it does not count."""
    value: Any = 1
    for _ in range(64):
        value = [value]
    try:
        stored = dump_record(records.StepFinished(("a",), "code", None, value), CODEC)
    except errors.LimitExceeded:
        pytest.fail("a value of the deepest nesting is refused")
    assert isinstance(load_record(stored, CODEC), records.StepFinished)
    with pytest.raises(errors.LimitExceeded):
        dump_record(records.StepFinished(("a",), "code", None, [[value]]), CODEC)


@pytest.mark.parametrize("kind", ["Unheard", "", "dict"])
def test_a_kind_that_is_not_known_is_named(kind: str) -> None:
    with pytest.raises(errors.CodecError, match="which this version does not know"):
        load_record(Record(kind, ("a",), b"{}"), CODEC)


# -- damaged bytes


def damaged(payload: bytes, dice: random.Random) -> bytes:
    """Bytes of which some are others, missing, or too many."""
    data = bytearray(payload)
    match dice.randrange(5):
        case 0:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case 1:
            del data[dice.randrange(len(data)) :]
        case 2:
            at = dice.randrange(len(data))
            data[at : at + dice.randrange(1, 9)] = dice.randbytes(dice.randrange(9))
        case 3:
            data += dice.choice([b"}", b"]", b" 1", b"\x00"])
        case _:
            others: list[Any] = [None, 1, "x", [], {}, [1, 2, 3], {"k": 1}, {"path": []}]
            return json.dumps(dice.choice(others)).encode()
    return bytes(data)


def test_damaged_bytes_give_a_named_error_or_a_record() -> None:
    """Never another exception. Whether bytes are those that were written is the backend's to know, by its checksums."""
    dice = random.Random(SEED)
    samples = [dump_record(sample, CODEC) for sample in SAMPLES]
    refused = 0
    for number in range(examples(sample=1_500, full=50_000)):
        stored = dice.choice(samples)
        payload = damaged(stored.payload, dice)
        try:
            record = load_record(Record(stored.kind, stored.path, payload), CODEC)
        except (errors.CodecError, errors.LimitExceeded):
            refused += 1
        except Exception as error:
            error.add_note(f"NOETIC_SEED={SEED}, {number}: {stored.kind} {payload!r}")
            raise
        else:
            assert records.stored_name(record) == stored.kind
    assert refused > 1000


SAMPLES: list[records.JournalRecord] = [
    records.RunBegun(
        (), "r", "t", "f", [1, {"a": Decimal(2)}], 1,
        records.Opening("f", (Message.user("hi"),), {"a": 1}, None, "q", {"m": 1}, None, BUDGET),
    ),
    records.StepOpened(("a",), "code", 1, 2),
    records.Segment(("a",), 1, (Message.user("hi"),), (patches.Change("set", "a", None, 1),)),
    records.AttemptFailed(("a",), "code", 1, True, errors.LoopLimit(3), TokenUsage(1, 2), Decimal(1), None, 1, "t"),
    records.StepStopped(("a",), "code", 1, (), (), None, None, Control("abort", reason="r", path=("a",))),
    records.Decision(("a",), "route", "b"),
    records.Intent(("a",), "d"),
    records.CallStarted(("a",), 1, Decimal("0.5"), 1, 1),
    records.Progressed(("a",), "set", {"page": [3]}),
    records.RunEnded((), "completed", None, None),
]  # fmt: skip


@pytest.mark.anyio
async def test_a_record_that_cannot_be_read_is_named_by_its_number() -> None:
    backend = InMemoryBackend()
    lease = await backend.acquire("r", ttl=1)
    good = dump_record(SAMPLES[0], CODEC)
    await backend.append(
        "r", expected_position=0, fence=lease.fence, records=[good, Record("StepOpened", ("a",), b'["code"')]
    )
    with pytest.raises(errors.CodecError, match="record 2 of run r: "):
        await read_journal(backend, "r", CODEC)


# ---------------------------------------------------------------------------------------------------- wrong fields

ODD_OPENINGS: dict[str, dict[str, Any]] = {
    "metadata": {"meta": {"$": "dict", "v": [[1, 2]]}},
    "budget": {"budget": {**(BUDGET or {}), "limits": {"steps": "many"}}},
    "base.position": {"session": ["app", "user", "name", -2]},
    "trace": {"trace": "00-"},
    "source": {"source": 5},
    "origins": {"o": [[1, "run"]]},
    "memory": {"memory": {"owner": 1}},
    "asked": {"asked": -1},
}
BUDGETED: dict[str, Any] = {"f": "f", "i": [], "s": {}, "user": None, "request": None, "meta": {}, "source": None}
ASKED_FOR: dict[str, Any] = {"kind": "approval", "key": "k", "digest": "d", "asked": "2026-01-01T00:00:00+00:00"}
FAILED: dict[str, Any] = {"k": "code", "n": 1, "final": True, "e": {}, "u": None, "c": None, "x": None}
RULE: dict[str, Any] = {"action": "deny", "tool": "*", "where": [["a", "b"]], "within": [], "folders": []}
FOLDED: dict[str, Any] = {"next": "s[2]", "rounds": 2, "first": 5, "end": 9}
WRONG: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("StepOpened", ("a",), {}, "form"),
    ("StepOpened", ("a",), ["code"], "attempt"),
    ("StepOpened", ("a",), [[], 1], "kind"),
    ("StepOpened", ("a",), ["code", 0], "attempt"),
    ("StepOpened", ("a",), ["code", 1, None], "fence"),
    ("StepOpened", ("a",), ["code", True, 1], "attempt"),
    ("StepOpened", (), ["code", 1, 1], "path"),
    ("StepOpened", ("a",) * 600, ["code", 1, 1], "path"),
    ("RunEnded", ("a",), ["failed", None, None], "path"),
    ("RunEnded", (), ["gone", None, None], "status"),
    ("RunEnded", (), [["failed"], None, None], "status"),
    ("RunEnded", (), ["aborted", None, {"kind": "abort"}], "control"),
    ("RunEnded", (), ["suspended", None, None, ["1"]], "pending"),
    ("Segment", ("a",), [1, [], [["set", "a", 5, 1]]], "delta"),
    ("Segment", ("a",), [1, [], [["append", "a", None, 1]]], "delta"),
    ("Segment", ("a",), [1, [], [["set", "a", None, 1, 1]]], "delta"),
    ("Segment", ("a",), [1, [], [], [["layer", [1]]]], "memory"),
    ("StepFinished", ("a",), {"k": "code", "c": "NaN"}, "cost"),
    ("StepFinished", ("a",), {"k": "code", "c": "much"}, "cost"),
    ("StepFinished", ("a",), {"k": "code", "u": [1, -2, None, None, None]}, "usage"),
    ("StepFinished", ("a",), {"k": "code", "l": [["a"]]}, "loop_stops"),
    ("StepFinished", ("a",), {"k": "code", "w": -1}, "winner"),
    ("StepFinished", ("a",), {"k": "code", "cut": [[1]]}, "cut"),
    ("StepFinished", ("a",), {"k": "code", "te": 1}, "tool_error"),
    ("StepFinished", ("a",), {"k": "code", "o": 1, "r": "b"}, "output"),
    ("StepFinished", ("a",), {"k": "send", "o": 5}, "output"),
    ("StepFinished", ("a",), {"k": "gather"}, "output"),
    ("StepFinished", ("a",), {"k": "handing", "o": {"to": 5, "value": 1}}, "output"),
    ("StepFinished", ("a",), {"k": "answer", "o": [None, 5, None, None, None]}, "output"),
    ("StepFinished", ("a", "call"), {"k": "tool_call"}, "path"),
    ("StepFinished", ("a", "call[0]"), {"k": "tool_call"}, "items"),
    ("Decision", ("a",), ["verdict[1]", [1, None, None]], "value of verdict[1]"),
    ("Decision", ("a",), ["inbox[1].from", "x"], "value of inbox[1].from"),
    ("Decision", ("a",), ["launched", {"step": 1}], "value of launched"),
    ("Decision", ("a",), ["paths", [1]], "value of paths"),
    ("Decision", ("a",), ["cut[b]", [1]], "value of cut[b]"),
    ("Segment", ("a",), [1, [], [], [], 5], "before"),
    ("StepFailed", ("a",), {"k": "code", "n": 1, "final": True, "e": {}}, "usage"),
    ("StepFailed", ("a",), FAILED | {"h": 1}, "held"),
    ("Decision", ("a",), ["between", [1]], "value of between"),
    ("Pending", ("a",), {"kind": "wish", "key": "k", "digest": "d", "asked": "2026-01-01T00:00:00+00:00"}, "kind"),
    ("Pending", ("a",), {"kind": "result", "key": "k", "digest": "d", "asked": "soon"}, "asked"),
    ("Pending", ("a",), {"kind": "result", "key": "k", "digest": "d", "asked": "2026-01-01"}, "asked"),
    ("Pending", ("a",), ASKED_FOR | {"rules": {}}, "rules"),
    ("Pending", ("a",), ASKED_FOR | {"rules": [{"otherwise": "ask", "rules": [RULE | {"action": "never"}]}]}, "rules"),
    ("Pending", ("a",), ASKED_FOR | {"rules": [{"otherwise": "ask", "rules": [RULE | {"where": ["a"]}]}]}, "rules"),
    ("Pending", ("a",), ASKED_FOR | {"rules": [{"otherwise": 1, "rules": []}]}, "rules"),
    ("Answered", ("a",), {"key": "k", "decision": "maybe"}, "decision"),
    ("Answered", ("a",), {"key": "k", "decision": "approved", "arguments": "[1]"}, "arguments"),
    ("Answered", ("a",), {"key": "k", "decision": "approved", "arguments": {}}, "arguments"),
    ("Decision", (), ["asked", {"kind": "stop"}], "value of asked"),
    ("Decision", (), ["asked", {"kind": "complete", "reason": 1}], "value of asked"),
    ("Decision", (), ["asked", "complete"], "value of asked"),
    ("Progressed", ("a",), ["lost"], "what"),
    ("Progressed", ("a",), ["set"], "value"),
    ("Progressed", ("a",), ["done", 1], "value"),
    ("Folded", ("a",), FOLDED | {"rounds": 0}, "rounds"),
    ("Folded", ("a",), FOLDED | {"end": 5}, "end"),
    ("Folded", ("a",), FOLDED | {"kept": [9]}, "kept"),
    ("Folded", ("a",), FOLDED | {"kept": [7, 6]}, "kept"),
    ("Folded", ("a",), FOLDED | {"next": "s[1]"}, "next"),
    ("Folded", ("a",), FOLDED | {"delta": [["set", "a", 5, 1]]}, "delta"),
    ("Folded", (), FOLDED, "path"),
    ("StateRevised", (), [1, {}, [], {"notes": 2}], "memory"),
    ("StateRevised", (), [1, {}, [], {}, []], "memory"),
    ("StateRevised", (), [1, {}, [["0", []]]], "deltas"),
    ("CallStarted", ("a",), [1, "Infinity"], "reserved_cost"),
    ("RunStarted", (), {"run": "r", "thread": "t", "flow": "f", "in": 1, "n": 0, "opening": []}, "opening"),
    *[
        (
            "RunStarted", (),
            {"run": "r", "thread": "t", "flow": "f", "in": 1, "n": 0, "opening": {**BUDGETED, "budget": None, **odd}},
            f"opening.{name}",
        )
        for name, odd in ODD_OPENINGS.items()
    ],
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "odd", "name"), WRONG)
def test_a_field_that_does_not_fit_is_named(kind: str, path: tuple[str, ...], odd: Any, name: str) -> None:
    with pytest.raises(errors.CodecError) as caught:
        load_record(Record(kind, path, json.dumps(odd).encode()), CODEC)
    assert caught.value.where == name
    assert kind in caught.value.message
    assert caught.value.hint


TOO_MANY: list[tuple[str, Any]] = [
    ("StepOpened", ["code", 1, 1, 1]),
    ("Segment", [1, [], [], [], "b", 1]),
    ("Intent", [None, 1]),
    ("Voided", [1]),
    ("Answered", {"key": "k", "decision": "approved", "later": 1}),
    ("Folded", FOLDED | {"later": 1}),
]


@pytest.mark.parametrize(("kind", "odd"), TOO_MANY)
def test_a_record_with_more_fields_than_this_version_knows_is_refused(kind: str, odd: Any) -> None:
    with pytest.raises(errors.CodecError, match="more fields than this version knows"):
        load_record(Record(kind, ("a",), json.dumps(odd).encode()), CODEC)


def test_a_key_of_a_later_version_is_passed_over_where_a_step_is_done_all_the_same() -> None:
    assert load_record(Record("StepFinished", ("a",), b'{"k":"code","later":1}'), CODEC).path == ("a",)


def test_rules_of_a_request_come_back() -> None:
    given = ASKED_FOR | {"rules": [{"otherwise": "ask", "rules": [RULE]}], "later": 1}
    odd = Record("Pending", ("a",), json.dumps(given).encode())
    with pytest.raises(errors.CodecError):
        load_record(odd, CODEC)
    del given["later"]
    read = load_record(Record("Pending", ("a",), json.dumps(given).encode()), CODEC)
    assert isinstance(read, records.Pending)
    assert read.rules == given["rules"]


def test_the_table_has_every_kind_of_record() -> None:
    assert set(KINDS) == set(records.KINDS)


def _finished(path: tuple[str, ...], output: Any = None) -> records.StepFinished:
    return records.StepFinished(path, "code", None, output)


@pytest.mark.parametrize(
    ("journal", "what"),
    [
        ([SAMPLES[0], SAMPLES[0]], "record 2 of run r: the kind of a RunStarted"),
        ([SAMPLES[0], _finished(("a",), SameAsChild("b"))], "record 2 of run r: the output of a StepFinished"),
        ([records.StateRevised((), 1, {}, {0: ()})], "record 1 of run r: the deltas of a StateRevised"),
        ([SAMPLES[0], records.RunEnded((), "suspended", None, None, (0,))], "record 2 of run r: the pending of a"),
        ([SAMPLES[0], records.RunEnded((), "suspended", None, None, (7,))], "record 2 of run r: the pending of a"),
    ],
)
def test_a_record_that_refers_to_one_that_is_not_there_is_named(journal: list[Any], what: str) -> None:
    with pytest.raises(errors.CodecError, match=what):
        check_journal(journal, "r")
    check_journal([SAMPLES[0], _finished(("a", "b")), _finished(("a",), SameAsChild("b"))], "r")
