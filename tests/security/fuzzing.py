"""Decoders fed with changed inputs.

`python -m tests.security.fuzzing items 300 1` feeds one decoder for 300 seconds from seed 1 and says what was found;
`tests.security.steered` does it by what the inputs reach.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import anyio
from attrs import define, field, frozen
from pydantic import BaseModel

from noetic_py import Channel
from noetic_py.checkpoints import SqliteBackend
from noetic_py.core.codec import Codec, from_wire_json, to_wire_json
from noetic_py.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    Reasoning,
)
from noetic_py.errors import NoeticError
from noetic_py.journal.records import KINDS as RECORD_KINDS
from noetic_py.journal.records import load_record
from noetic_py.journal.session_stream import StoredConversation, edited, ended, started
from noetic_py.journal.stored import Record
from noetic_py.journal.transforms import pack, unpack

HISTORIES = Path(__file__).resolve().parents[1] / "histories" / "recorded"
HANG = 1.0
"""Seconds of work that no input may take."""


class Colour(Enum):
    RED = "red"


@frozen
class Spot:
    x: int
    when: datetime
    near: tuple[str, ...] = ()


class Report(BaseModel):
    title: str
    marks: dict[str, float] = {}


@frozen
class Decoder:
    """What is fed.

    Attributes:
        feed: Takes one input.
        seeds: Inputs that it takes as they are.
        named: The errors that it may raise.
    """

    feed: Callable[[bytes], object]
    seeds: list[bytes]
    named: tuple[type[Exception], ...] = (NoeticError,)


# ------------------------------------------------------------------------------------------ the decoders

TYPES: list[Any] = [
    object,
    Spot,
    Report,
    list[Spot],
    dict[str, Decimal],
    set[int],
    Colour | None,
    Message,
    tuple[UUID, date],
]
CODEC = Codec([Spot, Report, Colour])
KINDS = sorted(RECORD_KINDS)
VALUES: list[Any] = [
    {"a": [1, 2.5, None, True, "x\ud800"], "$": "dict", "b": {(1, 2): b"bytes"}},
    Spot(1, datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), ("a", "b")),
    [Report(title="t", marks={"a": 0.5}), Colour.RED, Decimal("1.50"), timedelta(days=1), {1, 2}, frozenset({"x"})],
    (UUID(int=5), date(2026, 1, 1), Path("a/b"), datetime(2026, 1, 1, tzinfo=UTC).timetz()),
    NoeticError("it is", path=("a", "b"), hint="so"),
    [Message.user("hi"), FunctionCall(name="look", arguments="{}", call_id="c")],
]
ITEMS: list[Item] = [
    Message.user("hi"),
    Message.user([InputText(text="a"), InputImage(data=b"x", media_type="image/png"), InputFile(url="https://x/y")]),
    Message.assistant("re: hi"),
    FunctionCall(name="look", arguments='{"a": 1}', call_id="c"),
    FunctionCallOutput(call_id="c", output="done"),
    Reasoning(content="thought", summary="short"),
]


def records() -> list[tuple[str, bytes]]:
    """What a release has stored of every kind of record."""
    found = {("Decision", json.dumps(["k", CODEC.encode(value)]).encode()) for value in VALUES[1:]}
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(HISTORIES.glob("*.sql"))[::5]:
            place = Path(folder) / f"{path.stem}.db"
            with closing(sqlite3.connect(place)) as connection:
                connection.executescript(path.read_text(encoding="utf-8"))
            found |= anyio.run(_read, place)
    return sorted(found)


async def _read(place: Path) -> set[tuple[str, bytes]]:
    async with SqliteBackend(place) as backend:
        runs = [entry.run_id for entry in await backend.list()]
        return {
            (record.kind, record.payload)
            for run in runs
            for record in await backend.read(run)
            if record.kind in RECORD_KINDS
        }


def feed_record(data: bytes) -> object:
    kind = KINDS[data[0] % len(KINDS)] if data else "RunStarted"
    path = () if kind in ("RunStarted", "StateRevised", "RunEnded") else ("a", "b[0]")
    return load_record(Record(kind, path, data[1:]), CODEC)


def feed_session(data: bytes) -> object:
    conversation = StoredConversation()
    kinds = SESSION_KINDS
    lines = [Record(kinds[line[0] % len(kinds)], (), line[1:]) for line in data.split(b"\n") if line]
    try:
        conversation.advance(lines, CODEC)
    finally:
        # Whatever was refused, what had been read is whole.
        assert conversation.position <= len(lines)
        len(conversation.log)
    return conversation


SESSION_KINDS = [started("r", None).kind, ended("r", "completed", [], {}, CODEC).kind, edited([], None, CODEC).kind]


def _session(*given: Record) -> bytes:
    return b"\n".join(bytes((SESSION_KINDS.index(each.kind),)) + each.payload for each in given)


def feed_value(data: bytes) -> object:
    return CODEC.loads(data[1:], TYPES[data[0] % len(TYPES)] if data else object)


CHANNELS: list[Channel[Any]] = [Channel(f"c{index}", kind, external=True) for index, kind in enumerate(TYPES[1:])]


def feed_channel(data: bytes) -> object:
    channel = CHANNELS[data[0] % len(CHANNELS)] if data else CHANNELS[0]
    return channel.check(CODEC.loads(data[1:]), outside=True)


def feed_canonical(data: bytes) -> object:
    from noetic_signing import canonical_json

    try:
        value = json.loads(data)
    except RecursionError:
        return None
    first = canonical_json(value)
    # What is canonical is so for good.
    assert canonical_json(json.loads(first)) == first
    return first


def feed_packed(data: bytes) -> object:
    return unpack(data[1:], data[0] if data else 1, lambda _: b"blob")


def _typed(values: list[Any]) -> list[bytes]:
    return [bytes((number % len(TYPES),)) + CODEC.dumps(value) for number, value in enumerate(values)]


def decoders() -> dict[str, Decoder]:
    """Every decoder, by its name."""
    turn = [started("r", "d"), ended("r", "completed", ITEMS, {"main": {"w": {"a": 1}, "v": 1}}, CODEC, said=1)]
    turn.append(edited(ITEMS[:2], ["main"], CODEC))
    packed = pack([Record("K", ("a", "b"), b"x" * 10), Record("L", (), b"y" * 100)], threshold=1000)
    return {
        "records": Decoder(feed_record, [bytes((KINDS.index(kind),)) + data for kind, data in records()]),
        "items": Decoder(from_wire_json, [to_wire_json(item) for item in ITEMS]),
        "sessions": Decoder(feed_session, [_session(*turn), _session(turn[0]), _session(turn[1], turn[2])]),
        "values": Decoder(feed_value, _typed(VALUES)),
        "channels": Decoder(feed_channel, _typed(VALUES)),
        "canonical": Decoder(feed_canonical, [CODEC.dumps(value) for value in VALUES[1:]], (ValueError,)),
        "packed": Decoder(feed_packed, [b"\x02" + packed.body]),
    }


# ------------------------------------------------------------------------------------------ changing inputs

TOKENS = [
    b'{"$":"object","t":"Spot","v":',
    b'"$"',
    b'"object:Spot"',
    b"null",
    b"1e999",
    b'"\\ud800"',
    b"[[[[[[[[",
    b"]",
    b"{",
    b"}",
    b"-0",
    b"9" * 30,
    b"1.0",
    b'"type"',
    b'"v"',
    b"true",
    b'"uuid"',
    b'"datetime"',
    b'"tz"',
    b"\xff",
    b"\x00",
    b'"dict"',
]
TREES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    0.5,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    {"$": 1},
    {"$": "set", "v": [[1]]},
    "America",
]


def changed(seeds: list[bytes], chance: random.Random) -> bytes:
    """One of the inputs, with a few changes of its bytes or of its tree."""
    data = chance.choice(seeds)
    if chance.random() < 0.5:
        with suppress(ValueError, RecursionError):
            first = 0 if data[:1] in (b"{", b"[", b'"') else 1
            tree = json.loads(data[first:])
            for _ in range(chance.randint(1, 3)):
                tree = _grafted(tree, chance)
            return data[:first] + json.dumps(tree).encode()
    for _ in range(chance.randint(1, 6)):
        data = chance.choice(CHANGES)(data, seeds, chance)
    return data[:20_000]


def _grafted(tree: Any, chance: random.Random) -> Any:
    kind: Any = tree.__class__
    if chance.random() < 0.15 or not tree or kind not in (list, dict):
        return chance.choice(TREES)
    if kind is dict:
        key = chance.choice(list(tree))
        if chance.random() < 0.2:
            return {other: part for other, part in tree.items() if other != key}
        new = chance.choice([key] * 6 + ["$", "v", "t", "x"])
        return {**tree, new: _grafted(tree[key], chance)}
    at = chance.randrange(len(tree))
    return [*tree[:at], _grafted(tree[at], chance), *tree[at + chance.randint(0, 1) :]]


def _flip(data: bytes, _: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]


def _insert(data: bytes, _: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(TOKENS) + data[at:]


def _cut(data: bytes, _: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randint(1, 20) :]


def _double(data: bytes, _: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    piece = data[at : at + chance.randint(1, 200)]
    return data[:at] + piece * chance.randint(2, 30) + data[at:]


def _splice(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    other = chance.choice(seeds)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


CHANGES: list[Callable[[bytes, list[bytes], random.Random], bytes]] = [_flip, _insert, _cut, _double, _splice]


@define
class Found:
    """What feeding has come to.

    Attributes:
        fed: How many inputs.
        refused: How many of them with a named error.
        unnamed: Inputs that raised something else, and what.
        slow: Inputs that took longer than a second of work.
    """

    fed: int = 0
    refused: int = 0
    unnamed: list[tuple[bytes, str]] = field(factory=list[tuple[bytes, str]])
    slow: list[bytes] = field(factory=list[bytes])


def feed(decoder: Decoder, data: bytes, found: Found) -> None:
    """Feed one input, and note what comes of it."""
    begun = time.thread_time()
    found.fed += 1
    try:
        decoder.feed(data)
    except decoder.named:
        found.refused += 1
    except Exception as error:  # noqa: BLE001  # that there is none is what is tried
        # Not every text that bytes can hold may be printed.
        found.unnamed.append((data, ascii(f"{type(error).__name__}: {error}")))
    if time.thread_time() - begun > HANG:
        found.slow.append(data)


def fuzz(decoder: Decoder, *, seconds: float, inputs: int, seed: int) -> Found:
    """Feed a decoder until the time is over or so many inputs were fed, whichever is first."""
    chance, found = random.Random(seed), Found()
    until = time.monotonic() + seconds
    for each in decoder.seeds:
        feed(decoder, each, found)
    while found.fed < inputs and time.monotonic() < until and len(found.unnamed) < 20:
        feed(decoder, changed(decoder.seeds, chance), found)
    return found


def main(name: str, seconds: str, seed: str) -> int:
    """Feed one decoder and say what was found; 1 when something was."""
    decoder = decoders()[name]
    found = fuzz(decoder, seconds=float(seconds), inputs=10**12, seed=int(seed))
    told = {"fed": found.fed, "refused": found.refused, "unnamed": len(found.unnamed), "slow": len(found.slow)}
    sys.stdout.write(json.dumps(told | {"first": [repr(each) for each in found.unnamed[:3]]}) + "\n")
    return 1 if found.unnamed or found.slow else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
