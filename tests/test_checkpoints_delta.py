"""Changes of a state: what leads from one to another, stored, and made again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pydantic
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import StateBag, errors
from noetic_py.core.codec import Codec
from noetic_py.journal.patches import Change, apply_changes, changes, known_fields, mismatch
from noetic_py.journal.records import Segment, dump_record, load_record

CODEC = Codec()

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text(max_size=3), st.binary(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False, places=2), st.sampled_from([0, 1, True, False, 0.0, 1.0, -0.0]),
)  # fmt: skip
keys = st.sampled_from(["a", "b", "c", "$", "x y"])
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(keys, st.integers(0, 2)), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)
bags = st.dictionaries(keys, values, max_size=4)


@define
class Fields:
    """A state of a class."""

    n: Any = 0
    rows: list[Any] = field(factory=list[Any])
    more: dict[str, Any] = field(factory=dict[str, Any])


@dataclasses.dataclass
class Data:
    """A state of a dataclass."""

    n: Any = 0
    rows: list[Any] = dataclasses.field(default_factory=list[Any])


class Model(pydantic.BaseModel):
    """A state of a pydantic model."""

    n: int = 0
    rows: list[int] = []


def stored(given_changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes as another process reads them."""
    record = load_record(dump_record(Segment(("a",), 1, (), given_changes), CODEC), CODEC)
    assert isinstance(record, Segment)
    return record.delta


def exact(value: Any) -> bytes:
    """What tells 1, 1.0 and True apart."""
    return CODEC.dumps(dict(value.view()) if isinstance(value, StateBag) else value)


def check(before: Any, after: Any) -> tuple[Change, ...]:
    """From one state to the other, by what is stored of the way."""
    old, new = known_fields(before, CODEC), known_fields(after, CODEC)
    delta = stored(changes(old, new))
    assert mismatch(old, delta) is None
    target = copy.deepcopy(before)
    apply_changes(target, delta, CODEC)
    assert type(target) is type(after)
    assert exact(target) == exact(after)
    return delta


def ops(delta: tuple[Change, ...]) -> list[tuple[str, str]]:
    return [(change.op, change.key) for change in delta]


# -- any state to any other


@given(bags, bags)
def test_bags(before: dict[str, Any], after: dict[str, Any]) -> None:
    check(StateBag(before), StateBag(after))


@given(st.dictionaries(st.one_of(keys, st.just(""), st.integers(0, 2)), values, max_size=3), bags)
def test_dicts_whose_keys_are_names_or_not(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    check(one, other)
    check(other, one)


@given(st.lists(values, max_size=4), st.lists(values, max_size=4))
def test_lists(before: list[Any], after: list[Any]) -> None:
    check(before, after)


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_sets(before: set[int], after: set[int]) -> None:
    check(before, after)


@given(
    st.builds(Fields, atoms, st.lists(values, max_size=3), bags),
    st.builds(Fields, atoms, st.lists(values, max_size=3), bags),
)
def test_classes(before: Fields, after: Fields) -> None:
    check(before, after)


@given(st.builds(Data, atoms, st.lists(atoms, max_size=3)), st.builds(Data, atoms, st.lists(atoms, max_size=3)))
def test_dataclasses(before: Data, after: Data) -> None:
    check(before, after)


@given(st.builds(Model), st.builds(Model))
def test_models(before: Model, after: Model) -> None:
    check(before, after)


@given(st.dictionaries(st.sampled_from(["", "a"]), values), st.dictionaries(st.sampled_from(["", "a"]), values))
def test_bags_with_a_key_of_no_letters(before: dict[str, Any], after: dict[str, Any]) -> None:
    check(StateBag(before), StateBag(after))


@given(st.lists(bags, min_size=2, max_size=5))
def test_many_changes_in_a_row(states: list[dict[str, Any]]) -> None:
    target = StateBag(copy.deepcopy(states[0]))
    for before, after in pairwise(states):
        old = known_fields(StateBag(before), CODEC)
        apply_changes(target, stored(changes(old, known_fields(StateBag(after), CODEC))), CODEC)
        assert exact(target) == exact(StateBag(after))


# -- what is stored of it


def test_only_what_changed_is_stored() -> None:
    before, after = StateBag({"a": 1, "b": [1], "c": 3}), StateBag({"a": 1, "b": [1, 2], "d": 4})
    delta = check(before, after)
    assert ops(delta) == [("unset", "c"), ("append", "b"), ("set", "d")]
    assert delta[1].tree == [2]
    assert check(before, copy.copy(before)) == ()


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0, False), (True, 1.0), (0.0, -0.0), ("1", 1)])
def test_values_that_python_takes_for_equal_are_changes(old: object, new: object) -> None:
    assert ops(check(StateBag({"a": old}), StateBag({"a": new}))) == [("set", "a")]
    # A list whose beginning only looks the same has not grown.
    assert ops(check(StateBag({"a": [old]}), StateBag({"a": [new, 2]}))) == [("set", "a")]


def test_a_list_that_is_shorter_or_other_is_set() -> None:
    assert ops(check(StateBag({"a": [1, 2]}), StateBag({"a": [1]}))) == [("set", "a")]
    assert ops(check(StateBag({"a": [1, 2]}), StateBag({"a": [2, 2, 3]}))) == [("set", "a")]
    assert ops(check([1, 2], [1, 2, 3])) == [("append", "")]


# -- what stays the same object


def grown(start: Any, change: Callable[[Any], object]) -> tuple[Any, Any]:
    """What a holder of the field sees, and the field, after a change was made again in another process."""
    live = StateBag({"it": start})
    before = known_fields(live, CODEC)
    change(live)
    delta = stored(changes(before, known_fields(live, CODEC)))
    kind: Any = start.__class__
    again = StateBag({"it": CODEC.loads(CODEC.dumps(start), kind)})
    held = again["it"]
    apply_changes(again, delta, CODEC)
    return held, again["it"]


IN_PLACE: list[tuple[Any, Callable[[Any], object]]] = [
    ([1], lambda bag: bag["it"].append(2)),
    ([1], lambda bag: bag["it"].insert(0, 2)),
    ([1, 2], lambda bag: bag["it"].clear()),
    ({"a": 1}, lambda bag: bag["it"].update(b=2)),
    ({"a": [1]}, lambda bag: bag["it"]["a"].append(2)),
]
REPLACED: list[tuple[Any, Callable[[Any], object]]] = [
    ([1], lambda bag: bag.put("it", [1, 2])),
    ({"a": 1}, lambda bag: bag.put("it", {"a": 1, "b": 2})),
]


@pytest.mark.parametrize(("start", "change"), IN_PLACE)
def test_what_was_changed_in_place_is_changed_in_place_again(start: Any, change: Callable[[Any], object]) -> None:
    held, found = grown(copy.deepcopy(start), change)
    assert held is found


@pytest.mark.parametrize(("start", "change"), REPLACED)
def test_what_was_replaced_is_replaced_again(start: Any, change: Callable[[Any], object]) -> None:
    held, found = grown(copy.deepcopy(start), change)
    assert held is not found
    assert held == start


def test_a_frozen_value_is_replaced() -> None:
    @define(frozen=True)
    class Point:
        x: int

    codec = Codec([Point])
    state = StateBag({"p": Point(1)})
    held = state["p"]
    apply_changes(state, (Change("set", "p", None, codec.encode(Point(2)), True),), codec)
    assert (held, state["p"]) == (Point(1), Point(2))


def test_the_state_stays_the_same_object() -> None:
    state = Fields(1, [1])
    rows = state.rows
    apply_changes(state, (Change("set", "n", None, 2), Change("append", "rows", None, [2], True)), CODEC)
    assert state == Fields(2, [1, 2])
    assert state.rows is rows


# -- what does not fit


def test_another_state_than_was_changed_is_noticed() -> None:
    delta = changes(known_fields(StateBag({"a": 1, "b": 1}), CODEC), known_fields(StateBag({"a": 2}), CODEC))
    assert mismatch(known_fields(StateBag({"a": 1, "b": 1, "c": 1}), CODEC), delta) is None
    assert mismatch(known_fields(StateBag({"a": True, "b": 1}), CODEC), delta) == "a"
    assert mismatch(known_fields(StateBag({"a": 1}), CODEC), delta) == "b"
    assert mismatch(known_fields(StateBag({"b": 1}), CODEC), delta) == "a"
    added = changes({}, known_fields(StateBag({"a": 1}), CODEC))
    assert mismatch(known_fields(StateBag({"a": 1}), CODEC), added) == "a"
    # Only the first change of a field meets what is there.
    assert mismatch(known_fields(StateBag({"a": 1}), CODEC), (*delta[1:], Change("set", "a", "other", 3))) is None


def test_what_cannot_be_stored_is_named_with_its_field() -> None:
    with pytest.raises(errors.CodecError, match=r"state\.a\['k'\]\[0\]: a builtins.object cannot be stored"):
        known_fields(StateBag({"a": {"k": [object()]}}), CODEC)
    with pytest.raises(errors.CodecError, match=r"state\[0\]: a builtins.object"):
        known_fields([object()], CODEC)


def test_appending_to_what_is_no_list_is_an_error_and_no_wrong_value() -> None:
    state = StateBag({"a": 1})
    with pytest.raises(errors.CodecError, match=r"state\.a"):
        apply_changes(state, (Change("append", "a", None, [2]),), CODEC)
    assert state["a"] == 1


def test_a_value_that_does_not_fit_the_declared_type_is_an_error() -> None:
    @define
    class Typed:
        n: int = 0

    with pytest.raises(errors.CodecError):
        apply_changes(Typed(), (Change("set", "n", None, "one"),), CODEC)
