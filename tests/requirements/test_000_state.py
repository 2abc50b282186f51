"""Named values that a context holds."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import Context
from noetic_py.errors import StateTypeError


@pytest.mark.clause("000-09a")
def test_000_09_a_value_is_put_by_name() -> None:
    state = Context().state
    assert state.put("a", 1).put("b", [2]) is state
    assert (state["a"], state["b"]) == (1, [2])
    state.put("a", 3)
    assert state["a"] == 3


@pytest.mark.clause("000-09b")
def test_000_09_putting_none_removes_the_name() -> None:
    state = Context().state.put("a", 1).put("b", 2)
    state.put("a", None).put("never there", None)
    assert dict(state.view()) == {"b": 2}


@pytest.mark.clause("000-09c")
def test_000_09_plain_assignment_stores_none() -> None:
    state = Context().state
    state["a"] = None
    assert "a" in state
    assert dict(state.view()) == {"a": None}


def test_000_10_a_missing_name_reads_as_none() -> None:
    state = Context().state.put("a", 1)
    assert state.get("a") == 1
    assert state.get("b") is None
    assert state.get("b", "instead") == "instead"
    assert "b" not in state


@pytest.mark.clause("000-11a", "000-11c")
def test_000_11_a_value_is_read_as_a_type() -> None:
    state = Context().state.put("number", 1).put("flag", True)
    assert state.get_as("number", int) == 1
    assert state.get_as("flag", int) is True
    assert state.get_as("missing", int) is None


@pytest.mark.clause("000-11b")
@pytest.mark.parametrize(("value", "wanted"), [(1, str), ("1", int), ([], dict)])
def test_000_11_a_value_of_another_type_is_an_error_at_once(value: object, wanted: type[Any]) -> None:
    state = Context().state.put("a", value)
    with pytest.raises(StateTypeError, match="'a'") as caught:
        state.get_as("a", wanted)
    assert isinstance(caught.value, TypeError)
    assert state["a"] == value


@pytest.mark.clause("000-12a")
def test_000_12_the_state_says_what_it_holds() -> None:
    state = Context().state
    assert "a" not in state
    state.put("a", 1)
    assert "a" in state
    state.put("a", None)
    assert "a" not in state


@pytest.mark.clause("000-12b")
def test_000_12_removing_a_missing_name_is_no_error() -> None:
    state = Context().state.put("a", 1).put("b", 2)
    assert state.pop("a", None) == 1
    assert state.pop("a", None) is None
    assert state.pop("a", "instead") == "instead"
    assert dict(state.view()) == {"b": 2}
    with pytest.raises(KeyError):
        state.pop("a")


@pytest.mark.clause("000-13a", "000-13b")
def test_000_13_the_whole_state_is_seen_live_and_read_only() -> None:
    state = Context().state.put("a", [1])
    view = state.view()
    state.put("b", 2)
    assert dict(view) == {"a": [1], "b": 2}
    writable: Any = view
    with pytest.raises(TypeError):
        writable["c"] = 3
    with pytest.raises(TypeError):
        del writable["a"]
    assert view["a"] is state["a"]
    assert dict(state.view()) == {"a": [1], "b": 2}
