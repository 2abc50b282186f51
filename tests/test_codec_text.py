"""JSON text under rules: what is written and read as by the standard library, and what is refused, by random values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.core.codec import structure as text
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError, LimitExceeded

# What stands in texts and looks like the JSON around it.
TEXTS = st.text('{}[]":,\\ a\u00e4\n\ud83d', max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
TREES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=5), max_leaves=25
)


def plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parts(value: object) -> list[Any]:
    return list(value.values()) if is_dict(value) else value if is_list(value) else []


def keys(value: object) -> int:
    """How many keys the largest object has."""
    own = len(value) if is_dict(value) else 0
    return max([own, *map(keys, parts(value))])


def depth(value: object) -> int:
    return 1 + max(map(depth, parts(value)), default=0) if is_dict(value) or is_list(value) else 0


@given(TREES)
def test_values_are_written_as_plain_json_and_come_back(value: Any) -> None:
    encode = text._in_c()
    assert encode is not None
    assert "".join(encode(value, 0)) == plain(value)
    data = text.dump(value)
    assert text.parse(data, len(data), "bytes") == value
    with pytest.raises(LimitExceeded, match="bytes"):
        text.parse(data, len(data) - 1, "bytes")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {(1, 2): 3}, object()])
def test_what_json_cannot_hold_is_not_written(value: Any) -> None:
    encode = text._in_c()
    assert encode is not None
    with pytest.raises((ValueError, TypeError)):
        "".join(encode(value, 0))
    with pytest.raises(CodecError, match="JSON"):
        text.dump(value)


def test_keys_stay_in_their_order() -> None:
    encode = text._in_c()
    assert encode is not None
    assert "".join(encode({"b": 1, "a": 2}, 0)) == '{"b":1,"a":2}'


def refused(check: Callable[[], object]) -> str | None:
    try:
        check()
    except LimitExceeded as error:
        return error.what
    return None


@given(TREES, st.integers(1, 5), st.sampled_from([None, 1]))
def test_nesting_and_keys_are_bounded_exactly(value: Any, most: int, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=False, indent=indent)
    wide, deep = keys(value) > most, depth(value) > most
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "MAX_KEYS", most)
        assert refused(lambda: text._check_keys(written)) == ("keys of an object" if wide else None)
        found = {
            refused(lambda: text.check_nesting(value, most)),
            refused(lambda: text.parse(written, len(written), "characters", nesting=most)),
        }
    if wide or deep:
        assert found <= {name for name, over in (("keys of an object", wide), ("nesting", deep)) if over}
    else:
        assert found == {None}


@pytest.mark.parametrize("below", ["", "name", ".name", "[0]"])
def test_a_path_grows_from_what_holds_the_value(below: str) -> None:
    found = text.inside(CodecError("does not fit", where=below, hint="mend it"), "order")
    joined = {"": "order", "name": "order.name", ".name": "order.name", "[0]": "order[0]"}[below]
    assert (found.where, found.hint) == (joined, "mend it")
    assert found.message == CodecError("does not fit", where=joined).message
