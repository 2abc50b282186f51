"""Tests of reducers, and of joining values that were written side by side."""

from __future__ import annotations

import copy
import dataclasses
from enum import Enum
from typing import Annotated, Any, NamedTuple

import pytest
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from noetic_py import StateBag
from noetic_py.core import reducers
from noetic_py.core.reducers import Conflict, join, join_declared
from noetic_py.core.values import alike


class Colour(Enum):
    RED = 1
    BLUE = 2


@define
class State:
    hits: Annotated[int, reducers.sum] = 0
    seen: Annotated[set[str], reducers.union] = field(factory=set[str])
    words: Annotated[list[str], reducers.append] = field(factory=list[str])
    counts: Annotated[dict[str, int], reducers.by_key(reducers.sum)] = field(factory=dict[str, int])
    best: int = field(default=0, metadata={"reducer": reducers.reducer(lambda base, mine, theirs: max(mine, theirs))})
    plain: int = 0


@dataclasses.dataclass
class Data:
    last: int = dataclasses.field(default=0, metadata={"reducer": reducers.last})


class Model(BaseModel):
    hits: Annotated[int, reducers.sum] = 0


class Tally(StateBag):
    reducers = {"hits": reducers.sum, "named": reducers.by_key()}  # noqa: RUF012 # as a user writes it


class Pair(NamedTuple):
    one: int
    two: list[int]


@frozen
class Fixed:
    text: str
    many: tuple[int, ...] = ()


class Plain:
    """It does not say when two are equal."""

    def __init__(self, value: Any) -> None:
        self.value = value


JOINED: list[tuple[Any, ...]] = [
    ([1], [1, 2], [1, 3], [1, 3, 2]),
    ((1,), (1, 2), (1, 3), (1, 3, 2)),
    ({1}, {1, 2}, set(), {2}),
    (frozenset({1}), frozenset({1, 2}), frozenset({1, 3}), frozenset({1, 2, 3})),
    ({}, {"a": 1}, {"b": 2}, {"b": 2, "a": 1}),
    ({"a": 1, "b": 1}, {"b": 1}, {"a": 1}, {}),
    ({}, {"a": [1]}, {"a": [2]}, {"a": [2, 1]}),
    ({"a": {"b": [0]}}, {"a": {"b": [0, 1]}}, {"a": {"b": [0], "c": 2}}, {"a": {"b": [0, 1], "c": 2}}),
    ({"a": 1}, {}, {}, {}),
    (1, 1, 2, 2),
    (False, True, True, True),
    (Colour.RED, Colour.BLUE, Colour.BLUE, Colour.BLUE),
    (None, "ada", "ada", "ada"),
    ("open", "done", "done", "done"),
    ([1, 2], [3], [3], [3]),
    ([1, 2], [2, 1], [2, 1], [2, 1]),
    (Fixed("a"), Fixed("a", (1,)), Fixed("b"), Fixed("b", (1,))),
    (StateBag({"a": 1, "b": 1}), StateBag({"b": 1}), StateBag({"a": 1, "b": 2}), StateBag({"b": 2})),
    (Model(), Model(hits=1), Model(hits=2), Model(hits=3)),
    (Data(), Data(1), Data(2), Data(1)),
    (Tally({"hits": 1}), Tally({"hits": 2}), Tally({"hits": 3}), Tally({"hits": 4})),
    (Tally(), Tally({"named": {"a": 1}}), Tally({"named": {"a": 2, "b": 2}}), Tally({"named": {"a": 1, "b": 2}})),
]


@pytest.mark.parametrize(("base", "mine", "theirs", "expected"), JOINED)
def test_what_both_have_changed_is_joined(base: Any, mine: Any, theirs: Any, expected: Any) -> None:
    before = copy.deepcopy((base, mine, theirs))
    assert join(base, mine, theirs) == expected
    assert (base, mine, theirs) == before, "none of them is changed"


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "where"),
    [
        (0, 1, 1, ""),
        (0, 1, 2, ""),
        ("a", "ab", "ab", ""),
        ("a", "b", "c", ""),
        (b"a", b"ab", b"ac", ""),
        ([1, 2], [2], [1, 2, 3], ""),
        ([1], [2], [2, 3], ""),
        ([1, 2], [1], [1], ""),
        ([1, 2, 3], [1, 3], [1, 3], ""),
        ((1,), (), (), ""),
        ([[1], [2]], [[2]], [[2]], ""),
        ({"a": 1}, {}, {"a": 2}, "['a']"),
        ({"a": {"b": 0}}, {"a": {"b": 1}}, {"a": {"b": 2}}, "['a']['b']"),
        (State(), State(plain=1), State(plain=1), ".plain"),
        (StateBag({"hits": 0}), StateBag({"hits": 1}), StateBag({"hits": 1}), "['hits']"),
        (StateBag(), StateBag({"hits": 1}), StateBag({"hits": 1}), "['hits']"),
        (State(words=["a"]), State(words=[]), State(words=["b"]), ".words"),
        (State(counts={"a": 1}), State(counts={}), State(counts={"a": 2}), ".counts['a']"),
        (None, 1, "1", ""),
        (Pair(1, []), Pair(1, [1]), Pair(2, []), ""),
    ],
)
def test_what_cannot_be_joined_is_named(base: Any, mine: Any, theirs: Any, where: str) -> None:
    with pytest.raises(Conflict) as caught:
        join(base, mine, theirs)
    assert caught.value.where == where


def test_reducers_of_fields() -> None:
    base = State(1, {"x"}, ["w"], {"a": 1}, 3)
    mine = State(3, {"x", "y"}, ["w", "m"], {"a": 2, "b": 1}, 7)
    theirs = State(2, set(), ["w", "t"], {"a": 5}, 5, plain=9)
    assert join(base, mine, theirs) == State(4, {"y"}, ["w", "t", "m"], {"a": 6, "b": 1}, 7, plain=9)
    mine.plain = 4
    assert join_declared(base, mine, theirs) == State(4, {"y"}, ["w", "t", "m"], {"a": 6, "b": 1}, 7, plain=9)
    assert repr(reducers.sum) == "reducers.sum"
    assert reducers.by_key(reducers.sum).name == "by_key(sum)"
    assert reducers.union.apply({}, {"a": 1}, {"b": 1}) == {"a": 1, "b": 1}
    assert reducers.union.apply(None, {1}, {2}) == {1, 2}
    assert reducers.append.apply(None, "a", "b") == "ba"
    assert reducers.sum.apply(None, 1, 2) == 3


def test_a_name_that_is_not_there_takes_no_reducer_away() -> None:
    @define
    class Local:
        hits: Annotated[int, reducers.sum] = 0
        other: NotThere | None = None  # type: ignore[name-defined] # noqa: F821 # what is tested

    assert join(Local(0), Local(1), Local(2)) == Local(3)


# -- properties

DICTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)
TREES: Any = st.recursive(
    st.lists(st.integers(0, 3), max_size=3) | st.sets(st.integers(0, 3)) | st.integers(0, 3) | st.booleans(),
    lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(TREES, TREES)
def test_one_who_has_changed_nothing_changes_nothing(base: Any, other: Any) -> None:
    assert alike(join(base, base, other), other)
    assert alike(join(base, other, base), other)


@given(TREES, TREES, TREES)
def test_whether_there_is_a_conflict_does_not_depend_on_the_order(base: Any, mine: Any, theirs: Any) -> None:
    def tried(one: Any, other: Any) -> str | None:
        try:
            join(base, one, other)
        except Conflict:
            return "conflict"
        return None

    assert tried(mine, theirs) == tried(theirs, mine)


@given(st.lists(st.integers()), st.lists(st.integers(), min_size=1), st.lists(st.integers(), min_size=1))
def test_of_lists_that_grew_nothing_is_lost(base: list[int], mine: list[int], theirs: list[int]) -> None:
    assert sorted(join(base, base + mine, base + theirs)) == sorted(base + mine + theirs)


@given(DICTS, DICTS, DICTS)
def test_counts_by_key_add_up(base: dict[str, int], mine: dict[str, int], theirs: dict[str, int]) -> None:
    def added(one: dict[str, int]) -> dict[str, int]:
        return {key: base.get(key, 0) + one.get(key, 0) for key in {**base, **one}}

    made = reducers.by_key(reducers.sum).apply(base, added(mine), added(theirs))
    assert {key: value for key, value in made.items() if value} == {
        key: total for key in "abc" if (total := sum(each.get(key, 0) for each in (base, mine, theirs)))
    }
