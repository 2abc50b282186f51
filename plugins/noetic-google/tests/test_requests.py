"""Items and settings in the form of the Gemini API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from noetic_google.content import content_of, contents_of
from noetic_google.requests import content_request, profile_of_gemini
from pydantic import BaseModel

from noetic_py.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
)
from noetic_py.errors import ConfigError, UnknownKeyword
from noetic_py.models import ModelProfile, ModelRequest, OutputSchema

MODEL = "gemini-3.8-flash"
OLD = "gemini-2.5-flash"
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def contents(*items: Item, model: str = MODEL) -> list[dict[str, Any]]:
    return contents_of(content_of(items, None, model).turns)


def config_of(request: ModelRequest, model: str = MODEL) -> dict[str, Any]:
    _, config = content_request(request, model)
    found: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    own = {"automatic_function_calling": {"disable": True}, "automatic_continuation": False}
    assert {name: found.pop(name) for name in own} == own
    return found


def text(words: str) -> dict[str, Any]:
    return {"text": words}


def call(call_id: str, name: str, signature: str | None = None, **args: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"id": call_id, "name": name, "args": args}}
    return part if signature is None else {**part, "thoughtSignature": signature}


def output(call_id: str, name: str, words: str) -> dict[str, Any]:
    return {"functionResponse": {"id": call_id, "name": name, "response": {"output": words}}}


# ---------------------------------------------------------------------------------------------------- content


def test_one_go_is_one_content_with_its_parts_in_order() -> None:
    found = contents(
        Message.user("2+2 and 3+3?"),
        Reasoning(content="hm", id="google_thought_1"),
        Reasoning(content="so", encrypted_content="c2ln", id="google_thought_2"),
        Message.assistant([OutputText(text="I add."), OutputText(text="", extra={"thought_signature": "AQID"})]),
        FunctionCall(name="add", arguments='{"a": 2}', call_id="c1", extra={"thought_signature": "+/8="}),
        FunctionCall(name="add", arguments='{"a": 3}', call_id="c2"),
        FunctionCallOutput(call_id="c1", output="4"),
        FunctionCallOutput(call_id="c2", output="6"),
        Message.user("Well?"),
    )
    assert found == [
        {"role": "user", "parts": [text("2+2 and 3+3?")]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"text": "so", "thought": True, "thoughtSignature": "c2ln"},
                text("I add."),
                {"text": "", "thoughtSignature": "AQID"},
                call("c1", "add", "+/8=", a=2),
                call("c2", "add", a=3),
            ],
        },
        {"role": "user", "parts": [output("c1", "add", "4"), output("c2", "add", "6"), text("Well?")]},
    ]


@pytest.mark.parametrize(("model", "signature"), [(MODEL, "skip_thought_signature_validator"), (OLD, None)])
def test_calls_of_another_model_are_taken_without_a_signature(model: str, signature: str | None) -> None:
    found = contents(
        FunctionCall(name="add", call_id="c1"),
        FunctionCall(name="add", call_id="c2"),
        FunctionCallOutput(call_id="c1", output="1"),
        FunctionCallOutput(call_id="c2", output="2"),
        model=model,
    )
    assert found[0]["parts"] == [call("c1", "add", signature), call("c2", "add")]


def test_a_late_output_follows_its_call() -> None:
    found = contents(
        FunctionCall(name="slow", call_id="c1"),
        FunctionCall(name="fast", call_id="c2"),
        FunctionCallOutput(call_id="c2", output="2"),
        Message.user("and?"),
        FunctionCallOutput(call_id="c1", output="1"),
    )
    assert found[1]["parts"] == [output("c1", "slow", "1"), output("c2", "fast", "2"), text("and?")]


def test_what_the_provider_has_run_goes_back_and_what_is_of_others_does_not() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(6)"}}
    found = contents(
        Opaque(raw=json.dumps({"type": "google_part", "part": code}).encode()),
        Message.assistant("Six."),
        Opaque(raw=b'{"type": "web_search_call", "id": "ws_1"}'),
        Reasoning(content="of another provider", encrypted_content="foreign"),
    )
    assert found == [{"role": "model", "parts": [code, text("Six.")]}]


def test_files_by_content_and_by_address() -> None:
    found = contents(
        Message.user(
            [
                InputText(text="Look."),
                InputText(text=""),
                InputImage(data=b"\x01", media_type="image/png"),
                InputFile(data=b"%PDF", filename="a.pdf"),
                InputFile(data=b"\x02", media_type="audio/wav"),
                InputFile(data=b"\x03", media_type="video/mp4; codecs=avc1"),
                InputImage(url="gs://tides/a.png"),
                InputFile(file_id="https://generativelanguage.googleapis.com/v1beta/files/abc"),
            ]
        )
    )
    assert found[0]["parts"] == [
        text("Look."),
        {"inlineData": {"mimeType": "image/png", "data": "AQ=="}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
        {"inlineData": {"mimeType": "audio/wav", "data": "Ag=="}},
        {"inlineData": {"mimeType": "video/mp4", "data": "Aw=="}},
        {"fileData": {"fileUri": "gs://tides/a.png", "mimeType": "image/png"}},
        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
    ]


def test_a_file_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown type") as caught:
        contents(Message.user([InputFile(data=b"PK", filename="a")]))
    assert (caught.value.code, bool(caught.value.hint)) == ("model-content", True)


def test_a_picture_in_an_output_stands_in_it_or_behind_it() -> None:
    drawn = FunctionCallOutput(call_id="c1", output=["done", InputImage(data=b"\x01", media_type="image/png")])
    items: list[Item] = [FunctionCall(name="draw", call_id="c1"), drawn]
    picture = {"inlineData": {"mimeType": "image/png", "data": "AQ=="}}
    made = output("c1", "draw", "done")
    assert contents(*items, model=OLD)[1]["parts"] == [made, picture]
    made["functionResponse"]["parts"] = [picture]
    assert contents(*items)[1]["parts"] == [made]


def test_the_system_instruction_is_what_stands_at_the_start() -> None:
    items = [Message.system("You know tides."), Message.user("hi"), Message.developer("Be brief.")]
    found = content_of(items, "Answer.", MODEL)
    assert found.system == [text("Answer."), text("You know tides.")]
    assert contents_of(found.turns) == [{"role": "user", "parts": [text("hi"), text("Be brief.")]}]
    alone = content_of([Message.developer("Go on.")], "Answer.", MODEL)
    assert (alone.system, alone.turns) == ([text("Answer.")], [("user", text("Go on."))])


@pytest.mark.parametrize(
    ("arguments", "sent"), [("", {}), ("{oops", {"not_an_object": "{oops"}), ("[1]", {"not_an_object": "[1]"})]
)
def test_arguments_are_an_object(arguments: str, sent: dict[str, Any]) -> None:
    (content,) = contents(FunctionCall(name="add", arguments=arguments, call_id="c1"), model=OLD)
    assert content["parts"] == [call("c1", "add", **sent)]


def test_a_refusal_is_a_text() -> None:
    assert contents(Message.assistant([Refusal(refusal="No.")]))[0]["parts"] == [text("No.")]


# ---------------------------------------------------------------------------------------------------- settings


def test_settings() -> None:
    request = ModelRequest(
        items=[Message.user("hi")],
        instructions="Be brief.",
        tools=[TOOL],
        settings={
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 7,
            "tool_choice": "add",
            "seed": 3,
            "stop": ("END",),
            "reasoning_effort": "minimal",
            "timeout": 3.0,
            "extra": {"top_k": 5, "tools": [{"google_search": {}}]},
        },
    )
    declared = {"name": "add", "description": "Adds.", "parameters_json_schema": TOOL["parameters"]}
    assert config_of(request) == {
        "system_instruction": {"parts": [text("Be brief.")]},
        "tools": [{"function_declarations": [declared]}, {"google_search": {}}],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["add"]}},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "seed": 3,
        "stop_sequences": ["END"],
        "thinking_config": {"include_thoughts": True, "thinking_level": "MINIMAL"},
        "top_k": 5,
    }


@pytest.mark.parametrize("name", ["parallel_tool_calls", "presence_penalty"])
def test_a_setting_that_gemini_does_not_have_is_refused_by_name(name: str) -> None:
    settings: Any = {name: 1}
    with pytest.raises(UnknownKeyword, match=name) as caught:
        config_of(ModelRequest(items=[], settings=settings))
    assert (caught.value.code, bool(caught.value.hint)) == ("model-settings", True)


def test_a_field_that_the_sdk_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="topp_k") as caught:
        config_of(ModelRequest(items=[], settings={"extra": {"topp_k": 5}}))
    assert (caught.value.code, bool(caught.value.hint)) == ("model-settings", True)


@pytest.mark.parametrize(("choice", "sent"), [("auto", "AUTO"), ("required", "ANY"), ("none", "NONE")])
def test_tool_choice(choice: str, sent: str) -> None:
    request = ModelRequest(items=[], tools=[TOOL], settings={"tool_choice": choice})
    assert config_of(request)["tool_config"] == {"function_calling_config": {"mode": sent}}
    assert "tool_config" not in config_of(ModelRequest(items=[], settings={"tool_choice": choice}))


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        (OLD, "minimal", {"thinking_budget": 512}),
        ("models/gemini-2.5-pro", "high", {"thinking_budget": 24_576}),
        (MODEL, "medium", {"thinking_level": "MEDIUM"}),
        ("gemini-3.1-pro-preview", "minimal", {"thinking_level": "LOW"}),
        ("gemini-flash-latest", "low", {"thinking_level": "LOW"}),
    ],
)
def test_how_hard_to_think(model: str, effort: Any, thinking: dict[str, Any]) -> None:
    found = config_of(ModelRequest(items=[], settings={"reasoning_effort": effort}), model)
    assert found["thinking_config"] == {"include_thoughts": True, **thinking}


def test_what_is_known_of_a_model() -> None:
    assert profile_of_gemini(MODEL) == ModelProfile(context_window=1_048_576, max_output_tokens=65_536)
    assert profile_of_gemini("publishers/google/models/gemini-2.0-flash").max_output_tokens == 8192
    assert profile_of_gemini("gemma-4-31b") == ModelProfile()


# ---------------------------------------------------------------------------------------------------- schemas


class Tide(BaseModel):
    port: str
    metres: float


@pytest.mark.parametrize(
    ("model", "tools", "strict", "enforced"),
    [
        (MODEL, [], True, True),
        (MODEL, [TOOL], True, True),
        (OLD, [], True, True),
        (OLD, [TOOL], True, False),
        (MODEL, [], False, False),
    ],
)
def test_a_schema_is_enforced_where_the_api_can(model: str, tools: Any, strict: bool, enforced: bool) -> None:
    output = OutputSchema("Tide", Tide.model_json_schema(), strict=strict)
    found = config_of(ModelRequest(items=[Message.user("hi")], tools=tools, output=output), model)
    if enforced:
        assert (found["response_mime_type"], found["response_json_schema"]) == ("application/json", output.schema)
        assert "system_instruction" not in found
    else:
        words = found["system_instruction"]["parts"][0]["text"]
        assert json.loads(words.partition("\n")[2]) == output.schema
        assert "response_json_schema" not in found


def test_a_tool_without_parameters_has_no_schema() -> None:
    (tool,) = config_of(ModelRequest(items=[], tools=[{"name": "now", "parameters": {"type": "object"}}]))["tools"]
    assert tool == {"function_declarations": [{"name": "now", "description": ""}]}
