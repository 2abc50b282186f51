"""What the layers share: text within a budget, on one line, and the same for equal values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from noetic_py.core.tokens import EstimatedCounter
from noetic_py.memory import WorkingMemory
from noetic_py.memory.blocks import as_items, weigh
from noetic_py.memory.layers.common import canonical, one_line, plain, readable, within

COUNTER = EstimatedCounter()
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(lines=st.lists(st.text(max_size=40), max_size=20), budget=st.integers(0, 200), id=st.text(max_size=10))
def test_lines_take_no_more_than_their_budget(lines: list[str], budget: int, id: str) -> None:
    layer = WorkingMemory(id=id)
    told = within(layer, lines, budget)
    assert weigh(as_items(layer.id, told), COUNTER) <= budget or not told


def test_all_lines_are_shown_where_there_is_room() -> None:
    assert within(WorkingMemory(), ["a", "b"], 100) == "a\nb"
    assert within(WorkingMemory(), ["word " * 20] * 9, 80).endswith("\n(7 more left out)")
    assert within(WorkingMemory(), ["a"], 3) == ""
    assert within(WorkingMemory(), [], 100) == ""


@given(values=st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_values_are_read_the_same_in_any_order(values: dict[str, Any]) -> None:
    lines = readable(values)
    assert lines == readable(dict(reversed(values.items())))
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert len(set(lines)) == len(lines) or any(isinstance(value, dict) for value in values.values())


@given(one=st.text(max_size=10), other=st.text(max_size=10))
def test_two_texts_never_look_alike(one: str, other: str) -> None:
    assert (plain(one) == plain(other)) == (one == other)
    assert len(plain(one).splitlines()) == 1


@given(text=st.text(max_size=50), limit=st.integers(1, 30))
def test_one_line_is_one_line(text: str, limit: int) -> None:
    made = one_line(text, limit)
    assert len(made) <= limit
    assert len(made.splitlines()) < 2


@given(value=JSON)
def test_canonical_json_is_one_line(value: Any) -> None:
    assert len(canonical(value).splitlines()) == 1


def test_a_text_that_was_cut_says_so() -> None:
    assert one_line("a b  c\nd", 7) == "a b c d"
    assert one_line("one two three", 8) == "one two\u2026"
    assert one_line("a" * 10 + " " * 100, 20) == "a" * 10 + "\u2026"
