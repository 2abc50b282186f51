from __future__ import annotations

import json
from typing import Any

import pytest
from noetic_local.calls import needs_packing, pack, unpack

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.models import ModelRequest, ModelResponse, ModelSettings, OutputSchema

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
FIND: dict[str, Any] = {
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Place"}}}},
    },
}


def request(*items: Item, choice: str | None = None, tools: tuple[Any, ...] = (ADD, FIND), **more: Any) -> ModelRequest:
    settings: ModelSettings = {} if choice is None else {"tool_choice": choice}
    return ModelRequest(items=items or [Message.user("2+3?")], tools=tools, settings=settings, **more)


def said(text: str) -> ModelResponse:
    return ModelResponse(items=[Message.assistant(text)], stop_reason="stop")


def test_only_requests_about_tools_are_packed() -> None:
    assert needs_packing(request())
    assert needs_packing(request(FunctionCall(name="add"), tools=()))
    assert not needs_packing(request(tools=()))


def test_earlier_calls_and_outputs_become_text() -> None:
    packed = pack(
        request(
            Message.user("2+3?"),
            FunctionCall(name="add", arguments='{"a":2}', call_id="c1"),
            FunctionCallOutput(call_id="c1", output="5"),
            FunctionCallOutput(call_id="c2", output="6"),
        )
    )
    texts = [(item.role, item.text) for item in packed.items if isinstance(item, Message)]
    assert texts == [
        ("user", "2+3?"),
        ("assistant", '{"name": "add", "arguments": {"a":2}}'),
        ("user", "Result of add: 5"),
        ("user", "Result of the call: 6"),
    ]
    assert packed.tools == ()
    assert "tool_choice" not in packed.settings


def test_tools_stand_in_the_instructions() -> None:
    packed = pack(request(instructions="Be brief."))
    assert packed.instructions is not None
    first, *_, last = packed.instructions.split("\n")
    assert first == "Be brief."
    assert "add(a, b): Adds two numbers." in packed.instructions
    assert "find(at)\n" in packed.instructions
    assert "answer" in last
    assert "answer" not in (pack(request(choice="required")).instructions or "")
    assert pack(request(choice="none", instructions="Be brief.")).instructions == "Be brief."


def names(schema: Any) -> list[str]:
    kinds = schema.get("anyOf", [schema])
    return [kind["properties"]["name"]["const"] if "name" in kind["properties"] else "answer" for kind in kinds]


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        (None, ["add", "find", "answer"]),
        ("auto", ["add", "find", "answer"]),
        ("required", ["add", "find"]),
        ("add", ["add"]),
    ],
)
def test_the_schema_allows_what_the_choice_does(choice: str | None, allowed: list[str]) -> None:
    packed = pack(request(choice=choice))
    assert packed.output is not None
    assert names(packed.output.schema) == allowed


def test_without_a_choice_the_wish_for_an_output_stays() -> None:
    wish = OutputSchema("x", {"type": "object"})
    assert pack(request(choice="none", output=wish)).output is wish


def test_references_are_read_from_the_root() -> None:
    wish = OutputSchema(
        "x",
        {"type": "object", "properties": {"p": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": "string"}}},
    )
    packed = pack(request(output=wish))
    assert packed.output is not None
    schema: Any = packed.output.schema
    assert schema["$defs"]["a_Place"] == {"type": "string"}
    assert schema["$defs"]["t1_Place"] == {"type": "object", "properties": {"next": {"$ref": "#/$defs/t1_Place"}}}
    assert "$defs" not in json.dumps(schema["anyOf"]).replace("#/$defs/", "")


def test_a_call_is_read() -> None:
    response = unpack(said('{"name": "add", "arguments": {"a": 2, "b": 3}}'), request())
    (call,) = response.items
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments, response.stop_reason) == ("add", '{"a":2,"b":3}', "tool_calls")


def test_an_answer_is_read() -> None:
    (item,) = unpack(said('{"answer": "five"}'), request()).items
    assert isinstance(item, Message)
    assert item.text == "five"
    wish = OutputSchema("x", {"type": "object"})
    (item,) = unpack(said('{"answer": {"label": "é"}}'), request(output=wish)).items
    assert isinstance(item, Message)
    assert item.text == '{"label": "é"}'


@pytest.mark.parametrize("text", ['{"name": "add", "argu', "[1]", '{"other": 1}', "[" * 100_000])
def test_what_is_cut_off_stays_text(text: str) -> None:
    response = unpack(said(text), request())
    (item,) = response.items
    assert isinstance(item, Message)
    assert item.text == text
    assert response.stop_reason == "stop"


def test_a_plain_answer_is_not_read() -> None:
    response = said('{"answer": "five"}')
    assert unpack(response, request(choice="none")) is response
