"""Canonical JSON: the vectors of RFC 8785, and no two values with the same bytes."""

from __future__ import annotations

import json
import math
import os
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetic_signing import canonical_json

from noetic_py.core.codec.structure import parse
from noetic_py.core.values import is_list
from noetic_py.errors import CodecError

SEED = int(os.environ.get("NOETIC_SEED", "1"))

# Appendix B of RFC 8785: the bits of a double, and how it is written.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "written"), NUMBERS.items())
def test_numbers_are_written_as_the_standard_says(bits: str, written: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == written.encode()


def test_texts_and_literals_are_written_as_the_standard_says() -> None:
    """The example of section 3.2.2."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
        "literals": [None, True, False],
    }
    assert canonical_json(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_sorted_by_their_units_in_utf_16() -> None:
    """The example of section 3.2.3, which has a key beyond the basic plane."""
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical_json(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize("control", range(0x20))
def test_control_characters_have_one_form(control: int) -> None:
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    assert canonical_json(chr(control)).decode() == f'"{short.get(control, chr(92) + f"u{control:04x}")}"'


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, -math.inf, 2**53, -(2**53), 2**53 + 1, "\ud800", {"\ud800": 1}, {1: 2},
        {True: 1}, {None: 1}, b"x", object(), {1, 2}, [math.nan], {"a": {"b": [2**60]}},
    ],
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical_json(value)


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deep"):
        canonical_json(value)


def test_one_number_one_form() -> None:
    assert {canonical_json(number) for number in (1, 1.0, 1e0)} == {b"1"}
    assert {canonical_json(number) for number in (0, 0.0, -0.0)} == {b"0"}
    assert canonical_json("\u00e9") != canonical_json("e\u0301")
    assert len({canonical_json(value) for value in (1, True, "1", "true", None, "null", [1], {"1": 1})}) == 8


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "[NaN]", "[Infinity]", "[1e999]"])
def test_what_is_no_one_value_is_refused_where_records_are_read(text: str) -> None:
    with pytest.raises(CodecError):
        parse(text.encode(), 1000, "size")


def _value(chosen: random.Random, depth: int = 0) -> Any:
    kind = chosen.randrange(9 if depth < 4 else 7)
    if kind == 0:
        return chosen.choice([None, True, False])
    if kind == 1:
        return chosen.randrange(-(2**53) + 1, 2**53)
    if kind in (2, 3):
        while not math.isfinite(number := struct.unpack(">d", chosen.randbytes(8))[0]):
            pass
        return number
    if kind < 7:
        return _text(chosen)
    if kind == 7:
        return [_value(chosen, depth + 1) for _ in range(chosen.randrange(4))]
    return {_text(chosen): _value(chosen, depth + 1) for _ in range(chosen.randrange(4))}


def _text(chosen: random.Random) -> str:
    places = [(0, 0x80), (0x80, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    return "".join(chr(chosen.randrange(*chosen.choice(places))) for _ in range(chosen.randrange(6)))


def _plain(value: Any) -> Any:
    """A value that equals another exactly when JSON tells them apart by nothing."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, (int, float)):
        return ("number", float(value) + 0.0)
    if is_list(value):
        return ("array", tuple(_plain(each) for each in value))
    return ("object", frozenset((key, _plain(each)) for key, each in value.items()))


def test_10000_values_come_back_and_no_two_share_their_bytes() -> None:
    chosen = random.Random(SEED)
    seen: dict[bytes, Any] = {}
    for number in range(10_000):
        value = _value(chosen)
        data = canonical_json(value)
        plain = _plain(value)
        assert _plain(json.loads(data)) == plain, f"NOETIC_SEED={SEED}, {number}: {value!r}"
        assert canonical_json(json.loads(data, parse_int=float)) == data, f"NOETIC_SEED={SEED}, {number}: {value!r}"
        assert seen.setdefault(data, plain) == plain, f"NOETIC_SEED={SEED}, {number}: {value!r}"


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=200)
@given(_JSON, _JSON)
def test_equal_bytes_are_equal_values(left: Any, right: Any) -> None:
    assert (canonical_json(left) == canonical_json(right)) == (_plain(left) == _plain(right))
