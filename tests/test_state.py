"""Copies of states: what holds nothing that can change is copied without a walk, and comes out as from `deepcopy`."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from attrs import define, field
from pydantic import BaseModel

from noetic_py.state import StateBag, copy_state, state_fields


@define
class Slotted:
    text: str = ""
    count: int = 0
    parts: list[int] = field(factory=list[int])


@define
class Flat:
    text: str = ""
    count: int = 0


@define(slots=False)
class Open:
    text: str = ""


@dataclasses.dataclass
class Data:
    text: str = ""
    part: float | None = None


@dataclasses.dataclass(slots=True)
class SlottedData:
    text: str = ""


@define
class OwnWay:
    text: str = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnWay:
        return OwnWay(self.text + "!")


class OwnState:
    def __init__(self, text: str) -> None:
        self.text = text

    def __getstate__(self) -> dict[str, str]:
        return {"kept": self.text}

    def __setstate__(self, kept: dict[str, str]) -> None:
        self.text = kept["kept"] + "!"


class OwnArguments:
    text: str

    def __new__(cls, text: str) -> OwnArguments:
        made = super().__new__(cls)
        made.text = text
        return made

    def __getnewargs__(self) -> tuple[str]:
        return ("again",)


class OwnReduction:
    text = "class"

    def __reduce__(self) -> tuple[Any, ...]:
        return (OwnReduction, (), {"text": "reduced"})


class Registered:
    text = "class"


def reduced(_: Registered) -> Any:
    return Registered, (), {"text": "registered"}


copyreg.pickle(Registered, reduced)


class Named(NamedTuple):
    text: str
    parts: list[int]


class Words(list[str]):
    """A list with fields of its own."""


class Table(dict[str, Any]):
    """A dict with fields of its own."""


class Model(BaseModel):
    text: str = ""


class Colour(Enum):
    RED = 1


class Cut:
    __slots__ = ("text", "unset")

    def __init__(self) -> None:
        self.text = "cut"


def words() -> Words:
    made = Words(["a"])
    made.__dict__["extra"] = 1
    return made


STATES: list[Any] = [
    Flat("a", 1), Slotted("a", 1, [1]), Open("a"), Data("a"), Data("a", 0.5), SlottedData("a"), OwnWay("a"),
    OwnState("a"), OwnArguments("a"), OwnReduction(), Registered(), Named("a", [1]), words(), Table(a=1),
    Model(text="a"), Colour.RED, Cut(), SimpleNamespace(text="a"),
    {}, {"a": 1}, {"a": [1]}, {("a", 1): "b"}, {1: {2: 3}}, [], [1], {1},
    frozenset({1}), (1, [2]), StateBag(), StateBag({"a": 1}), StateBag({"a": {"b": [1]}}), bytearray(b"a"), object(),
]  # fmt: skip


def contents(state: Any) -> Any:
    """All that there is to compare."""
    held = (dict, list, set, frozenset, tuple, bytearray)
    plain: Any = state if issubclass(state.__class__, held) else None
    return type(state), plain, state_fields(state), getattr(state, "text", None)


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_copy_is_what_deepcopy_makes(state: Any) -> None:
    before = contents(state)
    copied = copy_state(state)
    assert contents(copied) == contents(copy.deepcopy(state))
    assert (copied is state) is (copy.deepcopy(state) is state)
    assert contents(state) == before


@pytest.mark.parametrize("state", [{"a": [1]}, StateBag({"a": [1]}), Slotted(parts=[1])])
def test_a_copy_shares_nothing_that_can_change(state: Any) -> None:
    copied = copy_state(state)
    mine: Any = next(part for part in state_fields(state).values() if part.__class__ is list)
    other: Any = next(part for part in state_fields(copied).values() if part.__class__ is list)
    assert mine == other
    assert mine is not other


def test_a_copy_of_a_flat_state_is_another_object() -> None:
    state = Flat("a", 1)
    copied = copy_state(state)
    copied.text = "b"
    assert state == Flat("a", 1)
