"""Items and settings in the form of the Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from noetic_anthropic.content import content_of, messages_of
from noetic_anthropic.requests import message_request, profile_of_claude
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
from noetic_py.models import ModelRequest, OutputSchema

MODEL = "claude-sonnet-5"
OLD = "claude-sonnet-4-5-20250929"
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tide"}}
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def made(request: ModelRequest, model: str = MODEL, cache: Any = "5m") -> dict[str, Any]:
    return message_request(request, model, profile_of_claude(model), cache)


def messages(*items: Item) -> list[dict[str, Any]]:
    return messages_of(content_of(items).turns)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# ---------------------------------------------------------------------------------------------------- content


def test_one_go_is_one_message_with_its_blocks_in_order() -> None:
    found = messages(
        Message.user("2+2 and 3+3?"),
        Reasoning(content="hm", encrypted_content="sig", id="thinking_1"),
        Reasoning(encrypted_content="sealed", id="redacted_thinking_1"),
        Message.assistant("I add."),
        FunctionCall(name="add", arguments='{"a": 2}', call_id="c1"),
        FunctionCall(name="add", arguments='{"a": 3}', call_id="c2"),
        FunctionCallOutput(call_id="c1", output="4"),
        FunctionCallOutput(call_id="c2", output="6"),
        Message.user("Well?"),
    )
    assert found == [
        {"role": "user", "content": [text("2+2 and 3+3?")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "sealed"},
                text("I add."),
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 3}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "4"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "6"},
                text("Well?"),
            ],
        },
    ]


def test_a_late_output_follows_its_call() -> None:
    found = messages(
        FunctionCall(name="slow", call_id="c1"),
        FunctionCall(name="fast", call_id="c2"),
        FunctionCallOutput(call_id="c2", output="2"),
        Message.user("and?"),
        FunctionCallOutput(call_id="c1", output="1"),
    )
    assert [block.get("tool_use_id", block["type"]) for block in found[1]["content"]] == ["c1", "c2", "text"]


def test_what_the_provider_has_run_goes_back_and_what_is_of_others_does_not() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"encrypted_content": "x"}]}
    cited: Any = [{"type": "web_search_result_location", "url": "https://x.test", "encrypted_index": "y"}]
    found = messages(
        Opaque(raw=json.dumps(SEARCH).encode()),
        Opaque(raw=json.dumps(result).encode()),
        Message.assistant([OutputText(text="At noon.", extra={"citations": cited})]),
        Opaque(raw=b'{"type": "web_search_call", "id": "ws_1"}'),
        Reasoning(content="of another provider", encrypted_content="foreign"),
    )
    assert found == [{"role": "assistant", "content": [SEARCH, result, {**text("At noon."), "citations": cited}]}]


def test_images_and_documents() -> None:
    pdf = InputFile(data=b"%PDF", filename="a.pdf")
    found = messages(
        Message.user(
            [
                InputText(text="Look."),
                InputText(text=" "),
                InputImage(data=b"\x01", media_type="image/png"),
                InputImage(url="https://x.test/a.png"),
                InputImage(file_id="file_1"),
                pdf,
                InputFile(url="https://x.test/a.pdf"),
                InputFile(file_id="file_2"),
                InputFile(data="Höhe".encode(), filename="a.txt"),
                InputFile(data=b"\x02", media_type="image/jpeg"),
            ]
        ),
        FunctionCall(name="draw", call_id="c1"),
        FunctionCallOutput(call_id="c1", output=["done", InputImage(data=b"\x01", media_type="image/png")]),
    )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQ=="}}
    document = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    assert found[0]["content"] == [
        text("Look."),
        image,
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": document, "title": "a.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_2"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Höhe"},
            "title": "a.txt",
        },
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "Ag=="}},
    ]
    assert found[2]["content"][0]["content"] == [text("done"), image]


def test_a_file_without_a_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="application/zip") as caught:
        messages(Message.user([InputFile(data=b"PK", filename="a.zip")]))
    assert (caught.value.code, bool(caught.value.hint)) == ("model-content", True)


def test_the_system_prompt_is_what_stands_at_the_start() -> None:
    items = [Message.system("You know tides."), Message.user("hi"), Message.developer("Be brief.")]
    found = content_of(items, "Answer.")
    assert found.system == [text("Answer."), text("You know tides.")]
    assert messages_of(found.turns) == [{"role": "user", "content": [text("hi"), text("Be brief.")]}]
    alone = content_of([Message.developer("Go on.")], "Answer.")
    assert (alone.system, alone.turns) == ([text("Answer.")], [("user", text("Go on."))])


@pytest.mark.parametrize(
    ("arguments", "sent"), [("", {}), ("{oops", {"not_an_object": "{oops"}), ("[1]", {"not_an_object": "[1]"})]
)
def test_arguments_are_an_object(arguments: str, sent: dict[str, Any]) -> None:
    (message,) = messages(FunctionCall(name="add", arguments=arguments, call_id="functions.add:0"))
    assert message["content"] == [{"type": "tool_use", "id": "functions_add_0", "name": "add", "input": sent}]


def test_a_refusal_is_a_text() -> None:
    assert messages(Message.assistant([Refusal(refusal="No.")]))[0]["content"] == [text("No.")]


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
            "parallel_tool_calls": False,
            "stop": ("END",),
            "reasoning_effort": "minimal",
            "timeout": 3.0,
            "extra": {"top_k": 5, "tools": [{"type": "web_search_20260209", "name": "web_search"}]},
        },
    )
    schema = TOOL["parameters"]
    assert made(request) == {
        "model": MODEL,
        "max_tokens": 7,
        "system": [text("Be brief.")],
        "messages": [{"role": "user", "content": [text("hi")]}],
        "tools": [
            {"name": "add", "description": "Adds.", "input_schema": schema},
            {"type": "web_search_20260209", "name": "web_search"},
        ],
        "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "extra_body": {"top_k": 5},
    }


@pytest.mark.parametrize("name", ["seed", "presence_penalty"])
def test_a_setting_that_claude_does_not_have_is_refused_by_name(name: str) -> None:
    settings: Any = {name: 1}
    with pytest.raises(UnknownKeyword, match=name) as caught:
        made(ModelRequest(items=[], settings=settings))
    assert (caught.value.code, bool(caught.value.hint)) == ("model-settings", True)


@pytest.mark.parametrize(("choice", "sent"), [("auto", "auto"), ("required", "any"), ("none", "none")])
def test_tool_choice(choice: str, sent: str) -> None:
    request = ModelRequest(items=[], tools=[TOOL], settings={"tool_choice": choice})
    assert made(request)["tool_choice"] == {"type": sent}
    without = ModelRequest(items=[], settings={"tool_choice": choice})
    assert "tool_choice" not in made(without)


@pytest.mark.parametrize(
    ("model", "longest", "window"),
    [
        (MODEL, 64_000, 1_000_000),
        ("claude-opus-4-6", 64_000, 1_000_000),
        (OLD, 64_000, 200_000),
        ("claude-opus-4-1", 32_000, 200_000),
        ("claude-opus-4-20250514", 32_000, 200_000),
        ("claude-3-5-haiku-latest", 8192, 200_000),
    ],
)
def test_an_answer_is_as_long_as_the_profile_says(model: str, longest: int, window: int) -> None:
    assert made(ModelRequest(items=[]), model)["max_tokens"] == longest
    assert profile_of_claude(model).context_window == window


@pytest.mark.parametrize(
    ("most", "thinking"),
    [
        (64_000, {"type": "enabled", "budget_tokens": 8192}),
        (4000, {"type": "enabled", "budget_tokens": 3999}),
        (900, None),
    ],
)
def test_older_models_are_told_how_many_tokens_they_may_think(most: int, thinking: Any) -> None:
    request = ModelRequest(items=[], settings={"reasoning_effort": "medium", "max_output_tokens": most})
    found = made(request, OLD)
    assert (found.get("thinking"), "output_config" in found) == (thinking, False)


# ---------------------------------------------------------------------------------------------------- schemas


class Tide(BaseModel):
    port: str
    metres: float


class Tree(BaseModel):
    below: list[Tree] = []


class Free(BaseModel):
    heights: dict[str, float]


def wanted(kind: type[BaseModel], model: str = MODEL) -> tuple[Any, str]:
    request = ModelRequest(items=[Message.user("hi")], output=OutputSchema(kind.__name__, kind.model_json_schema()))
    found = made(request, model)
    return found.get("output_config"), "".join(block["text"] for block in found.get("system", ()))


def test_a_schema_is_enforced_where_the_api_can() -> None:
    config, words = wanted(Tide)
    schema = config["format"]["schema"]
    assert (config["format"]["type"], schema["additionalProperties"], words) == ("json_schema", False, "")
    assert schema["required"] == ["port", "metres"]


@pytest.mark.parametrize(
    ("kind", "model"), [(Tree, MODEL), (Free, MODEL), (Tide, "claude-opus-4-1"), (Tide, "claude-3-5-haiku-latest")]
)
def test_elsewhere_it_is_asked_for_in_words(kind: type[BaseModel], model: str) -> None:
    config, words = wanted(kind, model)
    assert config is None
    assert json.loads(words.partition("\n")[2]) == kind.model_json_schema()


def test_a_strict_tool() -> None:
    strict = {**TOOL, "strict": True}
    free = {**strict, "parameters": Free.model_json_schema()}
    first, second = made(ModelRequest(items=[], tools=[strict, free]))["tools"]
    assert (first["strict"], first["input_schema"]["additionalProperties"]) == (True, False)
    assert ("strict" in second, second["input_schema"]) == (False, Free.model_json_schema())


# ---------------------------------------------------------------------------------------------------- the cache


TALK: list[Item] = [
    Message.user("one"),
    Message.assistant("1"),
    Message.user("two"),
    Message.assistant("2"),
    Message.user("three"),
    Message.assistant("3"),
    Message.user("four"),
    Message.developer("It is noon."),
]


def marks(params: dict[str, Any]) -> list[str]:
    blocks = [*params.get("system", ()), *[block for each in params["messages"] for block in each["content"]]]
    return [block["text"] for block in blocks if "cache_control" in block]


def test_the_start_that_stays_is_marked_where_it_ends() -> None:
    request = ModelRequest(items=TALK, instructions="Be brief.", stable=7)
    found = made(request)
    assert marks(found) == ["Be brief.", "two", "three", "four"]
    assert found["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert made(request, cache="1h")["system"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert marks(made(request, cache="off")) == []
    assert marks(made(ModelRequest(items=TALK, instructions="Be brief."))) == []


def test_without_instructions_the_tools_are_marked() -> None:
    found = made(ModelRequest(items=TALK[:1], tools=[TOOL, TOOL], stable=1))
    assert ["cache_control" in tool for tool in found["tools"]] == [False, True]
    assert marks(found) == ["one"]


def test_a_start_that_a_late_output_changes_ends_before() -> None:
    items: list[Item] = [
        Message.user("one"),
        FunctionCall(name="slow", call_id="c1"),
        FunctionCall(name="fast", call_id="c2"),
        FunctionCallOutput(call_id="c2", output="2"),
        FunctionCallOutput(call_id="c1", output="1"),
    ]
    (first, _, results) = made(ModelRequest(items=items, stable=4))["messages"]
    assert "cache_control" in first["content"][0]
    assert all("cache_control" not in block for block in results["content"])
