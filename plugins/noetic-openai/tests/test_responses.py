from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetic_openai.responses import ResponsesReading, responses_input, responses_request
from noetic_openai.wire import Server

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import from_wire
from noetic_py.core.items import (
    Extension,
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
    extension_item,
)
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
TOOL: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@extension_item("noetic-openai-test:note")
class Note(Extension):
    text: str


# ---------------------------------------------------------------------------------------------------- requests


def test_input() -> None:
    items: list[Item] = [
        Message.user("hi"),
        Note(text="mine"),
        Reasoning(encrypted_content="sealed", summary="s", id="rs_1"),
        Message(role="assistant", content="I add.", id="msg_1"),
        FunctionCall(name="add", arguments='{"a": 1}', call_id="c1", id="fc_1"),
        FunctionCallOutput(call_id="c1", output="4"),
        Opaque(raw=b'{"type": "web_search_call", "id": "ws_1", "odd": [1.50]}'),
    ]
    assert responses_input(items, OPENAI) == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "sealed",
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "call_id": "c1",
            "name": "add",
            "arguments": '{"a": 1}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"type": "web_search_call", "id": "ws_1", "odd": [1.5]},
    ]


@pytest.mark.parametrize(
    ("item", "server", "goes"),
    [
        (Reasoning(content="x"), OPENAI, False),
        (Reasoning(id="rs_1"), Server(store=True), True),
        (Reasoning(content="x"), OTHER, True),
        (Reasoning(), OTHER, False),
        (Reasoning(encrypted_content="x", id="rs_1"), OPENAI, True),
        (Reasoning(encrypted_content="of another provider"), Server(store=True), False),
    ],
)
def test_reasoning_goes_where_it_can_be_taken_back(item: Item, server: Server, goes: bool) -> None:
    assert bool(responses_input([item], server)) is goes


def test_what_other_providers_want_back_stays_behind() -> None:
    extra = {"thought_signature": "c2ln"}
    items: list[Item] = [
        Message.assistant([OutputText(text="I add.", extra={"citations": []})]),
        FunctionCall(name="add", call_id="c1", extra=extra),
        FunctionCallOutput(call_id="c1", output="4"),
        Opaque(raw=b'{"type": "google_part", "part": {}}'),
        Opaque(raw=b'{"type": "server_tool_use", "id": "srvtoolu_1"}'),
        Opaque(raw=b'{"type": "web_search_tool_result"}'),
    ]
    message, call, output = responses_input(items, OPENAI)
    assert message["content"] == [{"type": "output_text", "text": "I add.", "annotations": []}]
    assert call == {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    assert output["output"] == "4"
    # Servers of others get what they may have sent themselves.
    assert responses_input(items, OTHER)[1] == {**call, **extra}


def test_files_get_a_name_and_a_type() -> None:
    parts = [
        InputFile(data=b"\x02", filename="a.pdf"),
        InputFile(data=b"\x02", media_type="text/plain"),
        InputFile(url="https://x.test/a"),
        InputImage(data=b"\x01", media_type="image/png"),
    ]
    expected = [
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,Ag=="},
        {"type": "input_file", "filename": "file", "file_data": "data:text/plain;base64,Ag=="},
        {"type": "input_file", "file_url": "https://x.test/a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AQ=="},
    ]
    (message,) = responses_input([Message.user(parts)], OPENAI)
    assert message["content"] == expected
    (output,) = responses_input([FunctionCallOutput(call_id="c1", output=parts)], OPENAI)
    assert output["output"] == expected


def test_settings() -> None:
    request = ModelRequest(
        items=[],
        instructions="Be brief.",
        tools=[TOOL],
        settings={
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 7,
            "tool_choice": "add",
            "parallel_tool_calls": True,
            "seed": 1,
            "stop": ("END",),
            "reasoning_effort": "low",
            "extra": {"metadata": {"a": "b"}},
        },
    )
    assert responses_request(request, "gpt-5-mini", OPENAI) == {
        "model": "gpt-5-mini",
        "input": [],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be brief.",
        "tools": [{"type": "function", **TOOL, "strict": False}],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low"},
        "extra_body": {"stop": ["END"], "metadata": {"a": "b"}},
    }
    other = responses_request(request, "gpt-5-mini", OTHER)
    assert other["extra_body"]["seed"] == 1
    assert "include" not in other


@pytest.mark.parametrize(("model", "wants"), [("gpt-4o", False), ("gpt-5", True), ("o4-mini", True)])
def test_sealed_reasoning_is_asked_of_models_that_reason(model: str, wants: bool) -> None:
    request = ModelRequest(items=[])
    assert ("include" in responses_request(request, model, OPENAI)) is wants
    assert "include" not in responses_request(request, model, Server(store=True))


def test_a_strict_tool() -> None:
    strict = {**TOOL, "strict": True}
    free: dict[str, Any] = {"name": "any", "strict": True, "parameters": {"type": "object"}}
    request = ModelRequest(items=[], tools=[strict, free, {"name": "bare"}])
    tight, loose, bare = responses_request(request, "m", OPENAI)["tools"]
    assert tight["strict"] is True
    assert tight["parameters"]["required"] == ["a"]
    assert tight["parameters"]["additionalProperties"] is False
    assert (loose["strict"], loose["parameters"]) == (False, {"type": "object"})
    assert (bare["strict"], bare["parameters"]) == (False, {"type": "object", "properties": {}})


def test_a_schema_in_the_form_each_server_wants() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tight = {**schema, "required": ["a"], "additionalProperties": False}
    request = ModelRequest(items=[], output=OutputSchema("x", schema))
    assert responses_request(request, "m", OPENAI)["text"] == {
        "format": {"type": "json_schema", "name": "x", "strict": True, "schema": tight}
    }
    made = responses_request(request, "m", Server(base_url="http://x", schema_in_extra_body=True))
    assert "text" not in made
    assert made["extra_body"] == {"json_schema": tight}


words = st.text('ab é𝄞{}"\\\n', max_size=8)
inputs = st.one_of(
    st.builds(InputText, text=words),
    st.builds(InputImage, url=st.just("https://x.test/a.png"), detail=st.sampled_from(["low", "high", None])),
    st.builds(InputImage, data=st.binary(max_size=4), media_type=st.just("image/png")),
    st.builds(InputFile, file_id=words),
    st.builds(InputFile, data=st.binary(max_size=4), media_type=st.just("application/pdf"), filename=st.just("a.pdf")),
)
outputs = st.one_of(st.builds(OutputText, text=words), st.builds(Refusal, refusal=words))
items = st.one_of(
    st.builds(
        Message, role=st.sampled_from(["user", "system", "developer"]), content=st.lists(inputs), id=st.just("msg_1")
    ),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.lists(outputs),
        id=st.just("msg_2"),
        status=st.sampled_from(["completed", "incomplete"]),
    ),
    st.builds(FunctionCall, name=words, arguments=words, call_id=words, id=st.just("fc_1")),
    st.builds(FunctionCallOutput, call_id=words, output=st.one_of(words, st.lists(inputs)), id=st.just("fco_1")),
    st.builds(Reasoning, content=words, summary=words, encrypted_content=words.filter(bool), id=st.just("rs_1")),
)


@settings(deadline=None)
@given(st.lists(items, max_size=5))
def test_items_to_wire_to_items(found: list[Item]) -> None:
    wire = json.loads(json.dumps(responses_input(found, OPENAI)))
    assert [from_wire(item) for item in wire] == found


# ---------------------------------------------------------------------------------------------------- answers


def read(*events: dict[str, Any]) -> tuple[ResponsesReading, list[ModelEvent]]:
    reading = ResponsesReading()
    return reading, [part for event in events for part in reading.feed(event)]


MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}


def done(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "item": item}


def completed(**more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "r1", "model": "m-1", "status": "completed", **more}}


def test_an_answer_with_everything() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "odd": 1}
    reading, events = read(
        {"type": "response.created", "response": {}},
        {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "delta": "hm"},
        {"type": "response.reasoning_text.delta", "item_id": "rs_1", "delta": "!"},
        done(THOUGHT),
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hello"},
        done(MESSAGE),
        done(search),
        {"type": "response.output_item.added", "item": {**CALL, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": '{"a":1}'},
        done(CALL),
        completed(
            usage={
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2},
                "cost": 0.5,
            }
        ),
    )
    assert reading.complete
    response = reading.response()
    thought, said, found, call = response.items
    assert isinstance(thought, Reasoning)
    assert thought.encrypted_content == "sealed"
    assert isinstance(said, Message)
    assert isinstance(found, Opaque)
    assert json.loads(found.raw) == search
    assert isinstance(call, FunctionCall)
    assert events == [
        ReasoningPart("hm", "rs_1"),
        ReasoningPart("!", "rs_1"),
        ItemDone(thought),
        TextPart("Hello", "msg_1"),
        ItemDone(said),
        ItemDone(found),
        ToolCallPart("c1", "add", '{"a":1}'),
        ItemDone(call),
    ]
    assert response.usage == TokenUsage(input=10, output=5, cached_input=4, reasoning=2)
    assert response.cost == Decimal("0.5")
    assert (response.stop_reason, response.model, response.response_id) == ("tool_calls", "m-1", "r1")
    # What came goes back as it came.
    sent = responses_input(response.items, OPENAI)
    assert [item["type"] for item in sent] == ["reasoning", "message", "web_search_call", "function_call"]
    assert sent[0]["encrypted_content"] == "sealed"


def test_items_that_come_only_at_the_end() -> None:
    reading, events = read(completed(output=[MESSAGE]))
    assert events == [ItemDone(reading.response().items[0])]
    assert reading.response().usage is None


def test_items_are_not_taken_twice() -> None:
    reading, _ = read(done(MESSAGE), completed(output=[MESSAGE]))
    assert len(reading.response().items) == 1


def test_a_refusal() -> None:
    refused = {**MESSAGE, "content": [{"type": "refusal", "refusal": "no"}]}
    reading, _ = read(done(refused), completed())
    assert reading.response().stop_reason == "refusal"


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "else"}, "other"),
        (None, "other"),
    ],
)
def test_an_incomplete_answer(details: dict[str, str] | None, reason: str) -> None:
    final = {"status": "incomplete", "incomplete_details": details}
    reading, _ = read(done(MESSAGE), {"type": "response.incomplete", "response": final})
    assert reading.complete
    assert reading.response().stop_reason == reason


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "fire"},
        {"type": "error", "error": {"message": "fire"}},
        {"error": {"message": "fire"}},
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "fire"}}},
    ],
)
def test_errors_inside_the_stream(event: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        read(event)
    assert "fire" in str(caught.value.error)


@pytest.mark.parametrize(
    "event",
    [
        {"type": 3},
        {"type": "response.output_text.delta", "delta": 3},
        {"type": "response.output_item.done"},
        {"type": "response.output_item.done", "item": {"type": "message", "role": "robot", "content": []}},
        {"type": "response.output_item.added", "item": 3},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_9", "delta": "{"},
        {"type": "response.completed"},
        {"type": "response.completed", "response": {"output": {"a": 1}}},
        {"type": "response.completed", "response": {"usage": 3}},
    ],
)
def test_malformed_events(event: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read(event)


def test_an_answer_that_just_ends_is_not_whole() -> None:
    reading, _ = read(done(MESSAGE))
    with pytest.raises(Malformed):
        reading.end()


def test_uses_of_its_own_tools_that_are_charged() -> None:
    actions = ("search", "open_page", "find_in_page", "search")
    searches: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": f"w{n}", "action": {"type": each}} for n, each in enumerate(actions)
    ]
    files: dict[str, Any] = {"type": "file_search_call", "id": "f", "queries": ["tide"]}
    code = {"type": "code_interpreter_call", "id": "c", "code": "1"}
    image = {"type": "image_generation_call", "id": "i"}
    reading, _ = read(*[done(each) for each in (*searches, files, code, image)], completed())
    assert reading.response().server_tools == {"web_search": 2, "file_search": 1, "code_interpreter": 1}
    reading, _ = read(done({"type": "web_search_call", "id": "w"}), completed())
    assert reading.response().server_tools == {"web_search": 1}
