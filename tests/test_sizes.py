"""The estimate of what a value holds: close for data, fast for anything, and never an error."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from noetic_py.core.values import size_of

MANY = 1_000_000


class Plain:
    def __init__(self, held: object) -> None:
        self.held = held


class Slots:
    __slots__ = ("__held", "empty")

    def __init__(self, held: object) -> None:
        self.__held = held


class OneSlot:
    __slots__ = "held"

    def __init__(self, held: object) -> None:
        self.held = held


@attrs.frozen
class Fields:
    held: object


class Model(BaseModel):
    held: Any


class Hides:
    def __sizeof__(self) -> int:
        raise RuntimeError


def fresh(size: int) -> str:
    return "x" * size


@pytest.mark.parametrize(
    "value",
    [
        fresh(MANY),
        b"x" * MANY,
        bytearray(MANY),
        memoryview(bytes(MANY)),
        [[[fresh(MANY)]]],
        (1, {"a": fresh(MANY)}),
        {fresh(MANY): 1},
        {fresh(MANY)},
        frozenset({fresh(MANY)}),
        deque([fresh(MANY)]),
        Plain(fresh(MANY)),
        Slots(fresh(MANY)),
        OneSlot([fresh(MANY)]),
        Fields(fresh(MANY)),
        Model(held=Fields(fresh(MANY))),
        [f"{number:01000}" for number in range(1000)],
        [f"{number:0100}" for number in range(10_000)],
        {number: f"{number:0100}" for number in range(10_000)},
        [[f"{number:0100}"] * 10 for number in range(6_000)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_holds_is_counted(value: object) -> None:
    assert MANY * 0.9 < size_of(value) < MANY * 2.5


def test_what_is_held_twice_counts_once() -> None:
    text = fresh(MANY)
    assert size_of([text] * 100) < MANY * 1.1
    ring: list[object] = [text]
    ring.append(ring)
    assert size_of(ring) < MANY * 1.1


def test_what_the_program_shares_is_not_counted() -> None:
    shared: list[Any] = [sys, Plain, fresh, len, "".join, Hides().__sizeof__]
    assert size_of(shared) < 2000


def test_an_object_that_cannot_tell_its_size() -> None:
    assert 0 < size_of(Hides()) < 1000
    assert size_of([Hides(), fresh(MANY)]) > MANY


Trees = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=50,
)


@given(Trees)
def test_no_value_counts_less_than_its_parts(tree: Any) -> None:
    assert size_of([tree, fresh(1000)]) >= 1000
    assert size_of(tree) >= 16
