"""The stored form of layer states: the same bytes and values as the layer's codec makes, from what has changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from attrs import evolve, frozen

from noetic_py.core.codec import Codec
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.layers.state_codec import StateCodec
from noetic_py.errors import CodecError, LimitExceeded


@frozen
class Note:
    text: str
    stars: int | float | bool = 1


class CountingCodec(Codec):
    """Counts the notes that it encodes and decodes."""

    notes = 0

    def encode(self, value: object) -> Any:
        self.notes += _notes(value)
        return super().encode(value)

    def decode(self, tree: object, type: object = object) -> Any:
        read = super().decode(tree, type)
        self.notes += _notes(read)
        return read


def _notes(value: Any) -> int:
    parts: Iterable[Any] = value.values() if is_dict(value) else value if is_list(value) else ()
    return sum(isinstance(part, Note) for part in parts)


def changed_dict(source: random.Random, state: dict[str, Any]) -> dict[str, Any]:
    made = dict(state)
    for _ in range(source.randint(0, 3)):
        key = source.choice(["a", "b", "c", "d", "e", "f"])
        match source.randint(0, 4):
            case 0:
                made.pop(key, None)
            case 1 if key in made:
                # The same key at another place.
                made[key] = made.pop(key)
            case 2 if key in made:
                made[key] = evolve(made[key], stars=source.choice([0, 1, 1.0, True]))
            case _:
                made[key] = Note(source.choice(["one", "two", "\ud800", "é", '"\\']))
    return made


def changed_list(source: random.Random, state: list[Any]) -> list[Any]:
    made = [*state, *[Note(str(source.random())) for _ in range(source.randint(0, 2))]]
    match source.randint(0, 5):
        case 0:
            source.shuffle(made)
        case 1 if made:
            made[source.randrange(len(made))] = Note("another")
        case 2:
            made = made[: source.randint(0, len(made))]
        case _:
            made = made[-source.randint(1, 6) :]
    return made


@pytest.mark.parametrize(
    ("kind", "first", "change"),
    [(dict[str, Note], dict[str, Any](), changed_dict), (list[Note], list[Any](), changed_list)],
)
@pytest.mark.parametrize("seed", range(8))
def test_it_stores_and_reads_what_the_codec_does(
    kind: Any, first: Any, change: Callable[[random.Random, Any], Any], seed: int
) -> None:
    source, plain = random.Random(f"{seed} {kind}"), Codec([Note])
    codec, other, pair = StateCodec(plain, kind), StateCodec(plain, kind), tuple[str, kind]
    state = first
    stored = codec.dumps(("first", state))
    for number in range(150):
        if source.random() < 0.5:
            # The next run, here or in another process.
            written, state = source.choice([codec, other]).loads(stored, pair)
            assert (written, state) == plain.loads(stored, pair)
            assert [type(each) for each in state] == [type(each) for each in plain.loads(stored, pair)[1]]
        state = change(source, state)
        by = codec if source.random() < 0.8 else other
        assert plain.loads(by.form(state), kind) == plain.loads(plain.dumps(state), kind)
        if source.random() < 0.7:
            stored = by.dumps((f"run {number}", state))
            assert plain.loads(stored, pair) == plain.loads(plain.dumps((f"run {number}", state)), pair)
            if b"\\ud" not in stored:
                assert stored == plain.dumps((f"run {number}", state))


def test_only_what_has_changed_is_encoded_and_decoded() -> None:
    counting = CountingCodec([Note])
    codec, pair = StateCodec(counting, dict[str, Note]), tuple[str, dict[str, Note]]
    stored = codec.dumps(("run", {str(number): Note(str(number)) for number in range(500)}))
    for number in range(20):
        _, state = codec.loads(stored, pair)
        counting.notes = 0
        stored = codec.dumps(("run", {**state, f"new {number}": Note("new")}))
        _, read = codec.loads(stored, pair)
        assert len(read) == 501 + number
        assert counting.notes == 2


def test_what_a_run_does_to_its_state_is_not_seen_by_another() -> None:
    plain = Codec([Note])
    codec, pair = StateCodec(plain, list[Note]), tuple[str, list[Note]]
    stored = codec.dumps(("run", [Note("kept")]))
    for _ in range(3):
        _, state = codec.loads(stored, pair)
        assert state == [Note("kept")]
        state.append(Note("a user of the result has put it there"))


def test_entries_that_can_change_are_not_shared() -> None:
    codec, pair = StateCodec(Codec(), dict[str, list[int]]), tuple[str, dict[str, list[int]]]
    stored = codec.dumps(("run", {"a": [1]}))
    codec.loads(stored, pair)[1]["a"].append(2)
    assert codec.loads(stored, pair)[1] == {"a": [1]}
    assert not codec.is_fixed(codec.loads(stored, pair)[1])


def test_limits_hold_for_what_is_new() -> None:
    codec = StateCodec(Codec(max_bytes=200), dict[str, Any])
    state: dict[str, Any] = {"a": (1,)}
    codec.dumps(("run", state))
    with pytest.raises(LimitExceeded, match="value size"):
        codec.dumps(("run", {**state, "b": ("x" * 200,)}))
    deep: Any = 1
    for _ in range(70):
        deep = (deep,)
    with pytest.raises(LimitExceeded, match="nesting"):
        codec.dumps(("run", {**state, "b": deep}))
    with pytest.raises(CodecError, match="cannot be stored"):
        codec.dumps(("run", {**state, "b": object()}))
    assert codec.loads(codec.dumps(("run", state)))[1] == state
