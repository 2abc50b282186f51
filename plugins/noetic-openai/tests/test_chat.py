from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetic_openai.chat import chat_messages, chat_request
from noetic_openai.chat_reading import ChatReading
from noetic_openai.wire import Server

from noetic_py.core.budget import TokenUsage, problem_of
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
    Role,
)
from noetic_py.errors import ConfigError
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from noetic_py.models.reading import Malformed, ProviderError

OPENAI = Server()
OTHER = Server(base_url="http://127.0.0.1:1/v1")
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


# ---------------------------------------------------------------------------------------------------- requests


def test_calls_of_one_go_become_one_message() -> None:
    items: list[Item] = [
        Message.user("2+2 and 3+3?"),
        Reasoning(content="hm"),
        Message.assistant("I add."),
        FunctionCall(name="add", arguments='{"a": 2}', call_id="c1"),
        FunctionCall(name="add", arguments='{"a": 3}', call_id="c2"),
        FunctionCallOutput(call_id="c1", output="4"),
        FunctionCallOutput(call_id="c2", output="6"),
        FunctionCall(name="add", arguments="{}", call_id="c3"),
        FunctionCallOutput(call_id="c3", output="0"),
        Opaque(raw=b'{"type": "web_search_call"}'),
        Message.assistant("4 and 6"),
    ]
    assert chat_messages(items, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2 and 3+3?"},
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
                {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "tool", "tool_call_id": "c2", "content": "6"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c3", "content": "0"},
        {"role": "assistant", "content": "4 and 6"},
    ]


def test_a_late_output_follows_its_call() -> None:
    items: list[Item] = [
        FunctionCall(name="slow", call_id="c1"),
        FunctionCall(name="fast", call_id="c2"),
        FunctionCallOutput(call_id="c2", output="2"),
        Message.user("and?"),
        FunctionCallOutput(call_id="c1", output="1"),
    ]
    assert [message.get("tool_call_id", message["role"]) for message in chat_messages(items)] == [
        "assistant",
        "c1",
        "c2",
        "user",
    ]


def test_pictures_that_a_tool_gave_follow_its_output() -> None:
    image = InputImage(data=b"\x01", media_type="image/png")
    items: list[Item] = [
        FunctionCall(name="draw", call_id="c1"),
        FunctionCallOutput(call_id="c1", output=["done", image]),
    ]
    assert chat_messages(items)[1:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AQ=="}}]},
    ]


def test_content_of_every_kind() -> None:
    message = Message.user(
        [
            "look",
            InputImage(url="https://x.test/a.png", detail="low"),
            InputFile(data=b"\x02", filename="a.pdf"),
            InputFile(data=b"\x02"),
            InputFile(file_id="file-1"),
            InputFile(data=b"\x02", filename="a.wav"),
            InputFile(data=b"\x02", media_type="audio/mpeg"),
        ]
    )
    assert chat_messages([message]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,Ag=="}},
                {
                    "type": "file",
                    "file": {"filename": "file", "file_data": "data:application/octet-stream;base64,Ag=="},
                },
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "input_audio", "input_audio": {"data": "Ag==", "format": "wav"}},
                {"type": "input_audio", "input_audio": {"data": "Ag==", "format": "mp3"}},
            ],
        }
    ]


@pytest.mark.parametrize("part", [InputImage(file_id="file-1"), InputFile(url="https://x.test/a.pdf")])
def test_content_without_a_form_is_refused(part: InputImage | InputFile) -> None:
    with pytest.raises(ConfigError) as caught:
        chat_messages([Message.user([part])])
    assert caught.value.code == "model-content"
    assert caught.value.hint


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
            "seed": 1,
            "stop": ("END",),
            "reasoning_effort": "low",
            "extra": {"min_p": 0.1},
        },
    )
    assert chat_request(request, "m", OPENAI) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {**TOOL, "strict": False}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "reasoning_effort": "low",
        "stop": ["END"],
        "max_completion_tokens": 7,
        "extra_body": {"min_p": 0.1},
    }
    assert chat_request(request, "m", OTHER)["max_tokens"] == 7


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_tool_choice(choice: str) -> None:
    request = ModelRequest(items=[], tools=[TOOL], settings={"tool_choice": choice})
    assert chat_request(request, "m", OPENAI)["tool_choice"] == choice
    without = ModelRequest(items=[], settings={"tool_choice": choice, "parallel_tool_calls": True})
    assert {"tools", "tool_choice", "parallel_tool_calls"}.isdisjoint(chat_request(without, "m", OPENAI))


def test_a_schema_becomes_strict_where_it_can() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "label": {"enum": ["a", "b"], "default": "a"},
            "default": {"$ref": "#/$defs/P"},
            "many": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}},
        },
        "required": ["label"],
        "$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    request = ModelRequest(items=[], output=OutputSchema("my answer!", schema))
    assert chat_request(request, "m", OPENAI)["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "my_answer_",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {
                    "label": {"enum": ["a", "b"]},
                    "default": {"$ref": "#/$defs/P"},
                    "many": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}},
                },
                "required": ["label", "default", "many"],
                "additionalProperties": False,
                "$defs": {
                    "P": {
                        "type": "object",
                        "properties": {"x": {"type": "integer"}},
                        "required": ["x"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    }


@pytest.mark.parametrize(
    "free", [{"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}]
)
def test_a_schema_with_free_keys_is_sent_as_it_is(free: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"free": free}}
    request = ModelRequest(items=[], output=OutputSchema("x", schema))
    made = chat_request(request, "m", OPENAI)["response_format"]["json_schema"]
    assert made == {"name": "x", "strict": False, "schema": schema}


# What the wire says, read back: the inverse of the translation, for messages as providers keep them.
def read_back(messages: list[dict[str, Any]]) -> list[Item]:
    items: list[Item] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            items.append(FunctionCallOutput(call_id=message["tool_call_id"], output=content))
            continue
        parts: list[Any] = []
        if isinstance(content, str):
            parts.append(OutputText(text=content) if role == "assistant" else InputText(text=content))
        elif content is not None:
            parts.extend(InputText(text=part["text"]) for part in content)
        if "refusal" in message:
            parts.append(Refusal(refusal=message["refusal"]))
        if parts:
            items.append(Message(role=role, content=parts))
        for call in message.get("tool_calls", []):
            function = call["function"]
            items.append(FunctionCall(name=function["name"], arguments=function["arguments"], call_id=call["id"]))
    return items


def bare(items: list[Item]) -> list[tuple[Any, ...]]:
    """Items without their ids, which chat completions do not know."""
    found: list[tuple[Any, ...]] = []
    for item in items:
        match item:
            case Message():
                found.append((item.role, item.content))
            case FunctionCall():
                found.append((item.call_id, item.name, item.arguments))
            case FunctionCallOutput():
                found.append((item.call_id, item.output))
            case _:
                found.append((item,))
    return found


ROLES: list[Role] = ["user", "system", "developer"]
words = st.text('ab é𝄞{}"\\\n', min_size=1, max_size=8)


@st.composite
def rounds(draw: st.DrawFn) -> list[Item]:
    items: list[Item] = []
    for turn in range(draw(st.integers(0, 4))):
        role: Role = draw(st.sampled_from(ROLES))
        items.append(Message(role=role, content=draw(st.lists(words, min_size=1, max_size=3))))
        said = draw(st.sampled_from(["", "text", "refusal"]))
        if said:
            part = OutputText(text=draw(words)) if said == "text" else Refusal(refusal=draw(words))
            items.append(Message(role="assistant", content=[part]))
        ids = [f"c{turn}.{index}" for index in range(draw(st.integers(0, 3)))]
        items.extend(FunctionCall(name=draw(words), arguments=draw(words), call_id=call_id) for call_id in ids)
        items.extend(FunctionCallOutput(call_id=call_id, output=draw(words)) for call_id in ids)
    return items


@settings(deadline=None)
@given(rounds())
def test_items_to_wire_to_items(items: list[Item]) -> None:
    assert bare(read_back(chat_messages(items))) == bare(items)


# ---------------------------------------------------------------------------------------------------- answers


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def read(*events: dict[str, Any]) -> tuple[ChatReading, list[ModelEvent]]:
    reading = ChatReading()
    found = [part for event in events for part in reading.feed(event)]
    assert not reading.complete
    return reading, [*found, *reading.end()]


def test_an_answer_with_everything() -> None:
    reading, events = read(
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning": "m"}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        chunk({}, "tool_calls"),
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
                "cost": 0.00012,
            },
        },
    )
    response = reading.response()
    thought, said, call = response.items
    assert isinstance(thought, Reasoning)
    assert thought.text == "hm"
    assert isinstance(said, Message)
    assert said.text == "Hello"
    assert isinstance(call, FunctionCall)
    assert (call.call_id, call.name, call.arguments) == ("c1", "add", '{"a":1}')
    assert events == [
        ReasoningPart("h"),
        ReasoningPart("m"),
        TextPart("Hel"),
        TextPart("lo"),
        ToolCallPart("c1", "add", '{"a"'),
        ToolCallPart("c1", "add", ":1}"),
        ItemDone(thought),
        ItemDone(said),
        ItemDone(call),
    ]
    assert response.usage == TokenUsage(input=10, output=5, cached_input=4, reasoning=2)
    assert response.cost == Decimal("0.00012")
    assert (response.stop_reason, response.model, response.response_id) == ("tool_calls", "m-1", "r1")


@pytest.mark.parametrize(
    ("usage", "known"),
    [
        ({}, None),
        ({"prompt_tokens": 10}, None),
        ({"prompt_tokens": None, "completion_tokens": 5}, None),
        ({"prompt_tokens": 10, "completion_tokens": 5.0}, TokenUsage(10, 5)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"audio_tokens": 3, "image_tokens": 2, "cache_write_tokens": 1},
                "completion_tokens_details": {"audio_tokens": 1, "image_tokens": 4},
            },
            TokenUsage(10, 5, cache_write=1, input_audio=3, output_audio=1, input_image=2, output_image=4),
        ),
        (
            # Some count reasoning beside what was written.
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            TokenUsage(10, 12, reasoning=7),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 7,
                "total_tokens": 17,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            TokenUsage(10, 7, reasoning=7),
        ),
    ],
)
def test_what_a_usage_says(usage: dict[str, Any], known: TokenUsage | None) -> None:
    reading, _ = read(chunk({"content": "x"}, "stop"), {"choices": [], "usage": usage})
    assert reading.response().usage == known


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": -10},
        {"prompt_tokens": "10"},
        {"completion_tokens": 1.5},
        {"completion_tokens": True},
        {"prompt_tokens": 1e300},
        {"prompt_tokens_details": {"cached_tokens": 11}},
        {"cost": "much"},
        {"cost": True},
        {"cost": -1},
        {"cost": []},
    ],
)
def test_a_usage_that_cannot_be_booked_is_left_to_the_engine_to_refuse(wrong: dict[str, Any]) -> None:
    reading, _ = read(
        chunk({"content": "x"}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, **wrong}},
    )
    response = reading.response()
    assert problem_of(response.usage, response.cost)


def test_a_refusal() -> None:
    reading, _ = read(chunk({"refusal": "I "}), chunk({"refusal": "won't"}), chunk({}, "stop"))
    response = reading.response()
    assert response.stop_reason == "refusal"
    (item,) = response.items
    assert isinstance(item, Message)
    assert item.content == (Refusal(refusal="I won't"),)
    assert response.usage is None
    assert response.cost is None


def test_calls_that_all_have_the_index_zero_or_no_id() -> None:
    reading, _ = read(
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "2"}}]}),
        chunk({"tool_calls": [{"index": 5, "function": {"name": "h", "arguments": "3"}}]}, "stop"),
    )
    response = reading.response()
    calls = [(item.name, item.arguments) for item in response.items if isinstance(item, FunctionCall)]
    assert calls == [("f", "1"), ("g", "2"), ("h", "3")]
    assert response.stop_reason == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "stop_reason", "status"),
    [
        ("stop", "stop", "completed"),
        ("length", "length", "incomplete"),
        ("content_filter", "content_filter", "incomplete"),
        ("eos", "other", "completed"),
    ],
)
def test_stop_reasons(reason: str, stop_reason: str, status: str) -> None:
    reading, _ = read(chunk({"content": "x"}, reason))
    response = reading.response()
    assert (response.stop_reason, response.items[0].status) == (stop_reason, status)


@pytest.mark.parametrize(
    "event",
    [
        {"choices": {}},
        {"choices": ["x"]},
        {"choices": [{"delta": 3}]},
        {"choices": [{"delta": {"content": 3}}]},
        {"choices": [{"delta": {"tool_calls": {"a": 1}}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}}]},
        {"choices": [], "usage": 3},
    ],
)
def test_malformed_chunks(event: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        list(ChatReading().feed(event))


@pytest.mark.parametrize("event", [{"error": {"message": "no"}}, chunk({}, "error")])
def test_errors_inside_the_stream(event: dict[str, Any]) -> None:
    with pytest.raises(ProviderError):
        list(ChatReading().feed(event))


def test_an_answer_that_just_ends_is_not_whole() -> None:
    with pytest.raises(Malformed):
        read(chunk({"content": "x"}))


@settings(deadline=None)
@given(st.lists(words, max_size=5), st.lists(st.lists(words, min_size=1, max_size=3), max_size=3))
def test_pieces_are_put_together_in_order(texts: list[str], calls: list[list[str]]) -> None:
    events = [chunk({"content": text}) for text in texts]
    for index, pieces in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": pieces[0]}}
        events.append(chunk({"tool_calls": [head]}))
        more = [{"index": index, "function": {"arguments": piece}} for piece in pieces[1:]]
        events.extend(chunk({"tool_calls": [piece]}) for piece in more)
    reading, _ = read(*events, chunk({}, "stop"))
    items = list(reading.response().items)
    assert "".join(item.text for item in items if isinstance(item, Message)) == "".join(texts)
    assert [item.arguments for item in items if isinstance(item, FunctionCall)] == ["".join(parts) for parts in calls]
