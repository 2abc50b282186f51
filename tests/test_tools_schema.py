"""Tools whose schema comes from elsewhere: arguments are checked against it, and nothing is fetched."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from datetime import date
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import FunctionCall, FunctionCallOutput, Harness, Tool, call_model, call_tool, loop, until
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.testing import ScriptedModel
from noetic_py.tools.schema import SchemaCheck

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "format": "hostname"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "stops": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "anyOf": [
                    {"type": "integer"},
                    {
                        "type": "object",
                        "properties": {"at": {"$ref": "#/$defs/Hour"}},
                        "required": ["at"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Hour": {"enum": ["morning", "evening"]}},
}


async def take(**values: object) -> object:
    return values


def of(schema: Mapping[str, Any], **options: Any) -> Tool[..., Any]:
    return Tool.from_schema(take, parameters=dict(schema), name="travel", **options)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


MISFITS: list[tuple[Any, str]] = [
    ({}, "'city' is a required property"),
    ({"city": "x"}, "city: 'x' is too short"),
    ({"city": 7}, "city: 7 is not of type 'string'"),
    ({"city": "Bath", "days": 8}, "days: 8 is greater than the maximum of 7"),
    ({"city": "Bath", "days": 1.5}, "days: 1.5 is not of type 'integer'"),
    ({"city": "Bath", "stops": [1, "x"]}, "stops[1]: 'x' is not valid under any of the given schemas"),
    ({"city": "Bath", "stops": [{"at": "noon"}]}, "stops[0].at: 'noon' is not one of ['morning', 'evening']"),
    ({"city": "Bath", "stops": [{}]}, "stops[0]: 'at' is a required property"),
    ({"city": "Bath", "speed": 1}, "Additional properties are not allowed ('speed' was unexpected)"),
]


@pytest.mark.parametrize(("sent", "told"), MISFITS)
def test_what_does_not_fit_is_told_with_its_place(sent: Any, told: str) -> None:
    for arguments in (json.dumps(sent), sent):
        with pytest.raises(ToolArgumentsInvalid) as caught:
            of(PLACE).parse(arguments)
        assert f"- {told}" in caught.value.message
        assert caught.value.tool == "travel"


def test_all_that_does_not_fit_is_told_at_once() -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        of(PLACE).parse({"city": 1, "days": "x", "stops": 1})
    assert caught.value.message.count("\n- ") == 3
    many = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 300}}
    with pytest.raises(ToolArgumentsInvalid) as caught:
        of(many).parse({f"p{number}": number for number in range(500)} | {"long": "x" * 301})
    assert "and 90 more" in caught.value.message
    with pytest.raises(ToolArgumentsInvalid) as caught:
        of(many).parse({"long": "x" * 301})
    assert len(caught.value.message) < 300


def test_what_fits_is_passed_on_as_it_was_sent() -> None:
    good = {"city": "Bath", "days": 2.0, "stops": [1, {"at": "evening"}]}
    assert of(PLACE).parse(json.dumps(good)) == good
    assert of(PLACE).parse(good) == good
    assert of({}).parse('{"a": 1}') == {"a": 1}
    # What code gives may be of types that JSON does not have.
    assert of(PLACE).parse({"city": "Bath", "stops": (1, 2)}) == {"city": "Bath", "stops": (1, 2)}
    day = date(2031, 1, 1)
    assert of({"properties": {"day": {"type": "string"}}}).parse({"day": day}) == {"day": day}


@given(
    st.dictionaries(
        st.sampled_from(["city", "days", "stops", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["Bath", "x", "noon", "evening"]),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["at", "y"]), inner),
            max_leaves=5,
        ),
    )
)
def test_what_passes_is_what_the_schema_says(sent: dict[str, Any]) -> None:
    validator: Any = jsonschema.Draft202012Validator(PLACE)
    fits = validator.is_valid(sent)
    try:
        assert of(PLACE).parse(json.dumps(sent)) == sent
    except ToolArgumentsInvalid:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"properties": {"a": {"type": 7}}},
        {"required": "a"},
        {"properties": {"a": {"pattern": "["}}},
        {"$ref": "https://example.org/schema.json"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json#/x"}}},
        {"properties": {"a": {"$ref": "file:///etc/hosts"}}},
        {"properties": {"a": {"$ref": "#/$defs/Nowhere"}}},
        {"$id": "https://example.org/a/", "properties": {"a": {"$ref": "b.json"}}},
        {"properties": {"a": {"$dynamicRef": "https://example.org/x#y"}}},
    ],
    ids=repr,
)
def test_a_schema_that_is_none_is_named_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the parameters of tool 'travel' are not a valid JSON schema") as caught:
        of(schema).parse({"a": "x"})
    assert caught.value.code == "tool-schema"
    assert "not fetched" in (caught.value.hint or "")


def test_the_draft_is_the_one_that_the_schema_names() -> None:
    old = {"maximum": 3, "exclusiveMaximum": True}
    four = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": old}}
    assert of(four).parse({"a": 2}) == {"a": 2}
    with pytest.raises(ToolArgumentsInvalid, match="a: 3 is greater than or equal to the maximum of 3"):
        of(four).parse({"a": 3})
    own = {"$schema": "https://example.org/own", "properties": {"a": {"type": "string"}}}
    assert of(own).parse({"a": "x"}) == {"a": "x"}


def test_no_end_of_a_schema_is_told() -> None:
    deep = {"properties": {"a": {"$ref": "#/properties/a"}}}
    with pytest.raises(ToolArgumentsInvalid, match="nested too deeply"):
        of(deep).parse({"a": 1})


def test_a_secret_is_not_told() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "key": {"type": "string", "maxLength": 5, "writeOnly": True},
            "other": {"type": "integer"},
        },
        "required": ["other"],
        "maxProperties": 2,
    }
    for sent in ({"key": "open sesame", "other": 1}, {"key": ["open sesame"], "other": 1, "x": 1, "y": 1}):
        with pytest.raises(ToolArgumentsInvalid) as caught:
            of(schema).parse(json.dumps(sent))
        assert "sesame" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
        assert "does not fit the schema (" in caught.value.message
    with pytest.raises(ToolArgumentsInvalid, match="'other' is a required property"):
        of(schema).parse({"key": "open"})
    with pytest.raises(ToolArgumentsInvalid, match="other: 'x' is not of type 'integer'"):
        of(schema).parse({"other": "x"})


@pytest.mark.anyio
async def test_the_model_is_told_and_does_better() -> None:
    made: list[object] = []

    async def travel(**values: object) -> str:
        made.append(values)
        return "booked"

    tool = Tool.from_schema(travel, parameters=PLACE, name="travel")
    model = ScriptedModel(
        FunctionCall(name="travel", arguments={"city": "Bath", "stops": [{"at": "noon"}]}),
        FunctionCall(name="travel", arguments={"city": "Bath", "stops": [{"at": "evening"}]}),
        "done",
    )
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=[tool]), until=until.no_tool_calls()), "go")
        first, second = (item.output for item in result.items if isinstance(item, FunctionCallOutput))
        assert "stops[0].at: 'noon' is not one of" in str(first)
        assert (second, made) == ("booked", [{"city": "Bath", "stops": [{"at": "evening"}]}])
        with pytest.raises(ToolArgumentsInvalid, match="days: 9 is greater"):
            await harness.run(call_tool(tool, args={"city": "Bath", "days": 9}), None)


LOGIN: dict[str, Any] = {"properties": {"user": {}, "password": {"$ref": "#/definitions/Key"}}}
KEY: dict[str, Any] = {"definitions": {"Key": {"type": "string", "writeOnly": True}, "Login": LOGIN}}


SECRETS: list[Any] = [
    KEY | LOGIN,
    KEY | {"$ref": "#/definitions/Login"},
    KEY | {"allOf": [{"properties": {"other": {}}}, {"$ref": "#/definitions/Login"}]},
    KEY | {"anyOf": [{"$ref": "#/definitions/Login"}, {"properties": {"password": {}}}]},
    KEY | {"properties": {"password": {"items": {"anyOf": [{}, {"$ref": "#/definitions/Key"}]}}}},
    {"$defs": {"a/b": {"format": "password"}}, "properties": {"password": {"$ref": "#/$defs/a~1b"}}},
    {
        "$defs": {"a b": {"allOf": [{"format": "password"}]}},
        "properties": {"password": {"$ref": "#/$defs/a%20b/allOf/0"}},
    },
    {
        "properties": {
            "password": {"properties": {"again": {"$ref": "#/properties/password"}, "x": {"writeOnly": True}}}
        }
    },
]


@pytest.mark.parametrize("schema", SECRETS)
def test_secret_parameters_are_found_wherever_a_schema_has_them(schema: dict[str, Any]) -> None:
    tool = of(schema)
    assert tool.secret_parameters == {"password"}
    assert tool.received({"password": "open sesame"})["password"] == "[secret]"


@pytest.mark.parametrize("reference", ["#/nowhere", "#/allOf/0", "https://example.org/a#/b", 5])
def test_a_reference_to_nothing_holds_no_secret(reference: Any) -> None:
    assert of({"allOf": [], "properties": {"password": {"$ref": reference}}}).secret_parameters == frozenset()


SLOW = "^(a+)+$"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": {"type": "string", "pattern": SLOW}}}, {"a": "a" * 5000 + "!"}),
        ({"patternProperties": {SLOW: {"type": "integer"}}, "additionalProperties": False}, {"a" * 5000 + "!": 1}),
        ({"patternProperties": {SLOW: {"type": "integer"}}}, {"a" * 5000: "x"}),
        ({"properties": {"a": {"$schema": DRAFT, "pattern": SLOW}}}, {"a": "a" * 5000 + "!"}),
        (
            {"$schema": DRAFT, "properties": {"b": {"$ref": "#"}}, "additionalProperties": {"pattern": SLOW}},
            {"b": {"a": "aaa!" * 900}},
        ),
    ],
)
def test_a_slow_regular_expression_takes_no_time(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Python's own would take longer than the universe is old."""
    checked = SchemaCheck("t", {"type": "object", **schema}, frozenset())
    assert len(checked.problems(arguments)) == 1


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"^\d{4}-\d{2}$", "2026-11", True),
        (r"^\d{4}-\d{2}$", "2026-1", False),
        (r"^\S+@\S+\.\S+$", "a@b.fr", True),
        ("b", "abc", True),
        (r"^(?=.*\d).+$", "no digit", True),  # with a look-around it is not checked
        (r"^[\w\/.-]+$", "a/b.c", True),
    ],
)
def test_a_pattern_is_looked_for(pattern: str, text: str, fits: bool) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    assert (SchemaCheck("t", schema, frozenset()).problems({"a": text}) == []) is fits


def test_other_properties_are_refused_by_name() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x-": {}}}
    closed = SchemaCheck("t", {**schema, "additionalProperties": False}, frozenset())
    assert closed.problems({"a": 1, "x-b": 2}) == []
    (problem,) = closed.problems({"b": 1, "c": 2, "x-b": 2})
    assert "'b', 'c' were unexpected" in problem
    typed = SchemaCheck("t", {**schema, "additionalProperties": {"type": "integer"}}, frozenset())
    assert typed.problems({"b": "x"}) == ["b: 'x' is not of type 'integer'"]
    # Of a pattern it is not known whether a property is evaluated.
    open_ = SchemaCheck("t", {**schema, "unevaluatedProperties": False}, frozenset())
    assert open_.problems({"b": 1}) == []
    assert SchemaCheck("t", {"type": "object", "unevaluatedProperties": False}, frozenset()).problems({"b": 1})
