"""Rows 002-28 to 002-35: the items of a conversation and their form on the wire."""

from __future__ import annotations

import json
from typing import Any, get_args
from uuid import UUID

import attrs
import pytest

from noetic_py.core.codec import from_wire, from_wire_json, to_wire, to_wire_json
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
    Role,
    Status,
    extension_item,
)
from noetic_py.core.log import ItemLog
from noetic_py.errors import ConfigError, DuplicateCall, UnpairedOutput


@extension_item("acme:finding")
class Finding(Extension):
    text: str
    score: float = 0.0


def every_kind() -> list[Item]:
    return [
        Message.user("hi"),
        FunctionCall(name="look"),
        FunctionCallOutput(call_id="1", output="seen"),
        Reasoning(content="hm"),
        Finding(text="x"),
        Opaque(raw=b'{"type":"web_search_call"}'),
    ]


@pytest.mark.clause("002-28a", "002-28b", "002-28c")
def test_002_28_item_base() -> None:
    assert set(get_args(Status)) == {"in_progress", "completed", "incomplete", "failed"}
    for item in every_kind():
        assert UUID(item.id).version == 7
        assert item.status == "completed"
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            item.status = "failed"  # type: ignore[misc]  # that is the test
        for status in get_args(Status):
            moved = attrs.evolve(item, status=status)
            assert (moved.id, moved.status) == (item.id, status)
            assert item.status == "completed"
    wrong: Any = "done"
    with pytest.raises(ValueError, match="status"):
        Message(role="user", content="x", status=wrong)


@pytest.mark.clause("002-29a", "002-29b")
def test_002_29_message_roles_and_parts() -> None:
    assert set(get_args(Role)) == {"user", "assistant", "system", "developer"}
    made = [Message.user("a"), Message.assistant("a"), Message.system("a"), Message.developer("a")]
    assert [message.role for message in made] == ["user", "assistant", "system", "developer"]
    assert [(str(message.type), message.text) for message in made] == [("message", "a")] * 4
    parts = [InputText(text="look: "), InputImage(url="https://example.org/a.png"), InputText(text="there")]
    message = Message(role="user", content=parts)
    assert list(message.content) == parts
    assert message.text == "look: there"
    wrong: Any = "tool"
    with pytest.raises(ValueError, match="role"):
        Message(role=wrong, content="x")


def test_002_30_arguments_stay_the_exact_text() -> None:
    text = '{ "b":1.0,\n "a" : 1e2, "a2": "\\u00e9" }'
    call = FunctionCall(call_id="c1", name="look", arguments=text)
    assert (call.call_id, call.name, call.arguments) == ("c1", "look", text)
    assert call.type == "function_call"
    wire = {"type": "function_call", "id": "f", "status": "completed", "call_id": "c1", "name": "n", "arguments": text}
    read = from_wire_json(json.dumps(wire))
    assert isinstance(read, FunctionCall)
    assert read.arguments == text
    assert to_wire(read) == wire
    broken = FunctionCall(name="look", arguments="{not json")
    assert from_wire_json(to_wire_json(broken)) == broken


@pytest.mark.clause("002-31a", "002-31b")
def test_002_31_output_pairs_with_its_call() -> None:
    call = FunctionCall(name="look")
    output = FunctionCallOutput(call_id=call.call_id, output="seen")
    assert output.type == "function_call_output"
    assert (output.call_id, output.output) == (call.call_id, "seen")
    log = ItemLog()
    with pytest.raises(UnpairedOutput):
        log.append(output)
    log.append(call)
    assert list(log.open_calls) == [call.call_id]
    log.append(output)
    assert not log.open_calls
    with pytest.raises(UnpairedOutput):
        log.append(output)
    with pytest.raises(DuplicateCall):
        log.append(call)


@pytest.mark.clause("002-32a", "002-32b")
def test_002_32_encrypted_reasoning_survives() -> None:
    sealed = "gAAAAAB/+==é\n \ud7ff" + "Zm9v" * 500
    item = Reasoning(content="because", summary="short", encrypted_content=sealed)
    assert (item.type, item.text) == ("reasoning", "because")
    back = from_wire_json(to_wire_json(item))
    assert isinstance(back, Reasoning)
    assert back.encrypted_content == sealed
    assert back == item
    assert to_wire(back)["summary"] == [{"type": "summary_text", "text": "short"}]
    bare = Reasoning()
    assert (bare.content, bare.summary, bare.encrypted_content) == ((), (), None)
    assert "encrypted_content" not in to_wire(bare)


@pytest.mark.clause("002-33a", "002-33b", "002-33c")
def test_002_33_extensions_registered_or_kept() -> None:
    finding = Finding(text="x", score=0.5)
    assert str(finding.type) == "acme:finding"
    assert finding.data == {"text": "x", "score": 0.5}
    wire = to_wire(finding)
    assert (wire["type"], wire["data"]) == ("acme:finding", {"text": "x", "score": 0.5})
    assert from_wire(wire) == finding
    raw = b'{"type" : "acme:elsewhere", "id":"e1",  "data":{"b":1.0, "a":[]}}'
    unknown = from_wire_json(raw)
    assert isinstance(unknown, Opaque)
    assert (unknown.type, unknown.id) == ("acme:elsewhere", "e1")
    assert to_wire_json(unknown) == raw
    for name in ("finding", "message", "acme:finding"):
        with pytest.raises(ConfigError):

            @extension_item(name)
            class Other(Extension):
                text: str


@pytest.mark.clause("002-34a", "002-34b")
def test_002_34_content_parts_have_their_wire_names() -> None:
    given_and_sent: list[tuple[Any, dict[str, Any]]] = [
        (OutputText(text="a"), {"type": "output_text", "text": "a", "annotations": []}),
        (InputText(text="a"), {"type": "input_text", "text": "a"}),
        (
            InputImage(url="https://example.org/a.png", detail="high"),
            {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "high"},
        ),
        (
            InputImage(data=b"\x00\x01", media_type="image/png"),
            {"type": "input_image", "image_url": "data:image/png;base64,AAE="},
        ),
        (
            InputFile(data=b"\x00\x01", filename="a.pdf"),
            {"type": "input_file", "file_data": "data:application/pdf;base64,AAE=", "filename": "a.pdf"},
        ),
        (InputFile(file_id="file_1"), {"type": "input_file", "file_id": "file_1"}),
        (
            InputFile(url="https://example.org/a.pdf", filename="a.pdf"),
            {"type": "input_file", "file_url": "https://example.org/a.pdf", "filename": "a.pdf"},
        ),
        (Refusal(refusal="no"), {"type": "refusal", "refusal": "no"}),
    ]
    for part, sent in given_and_sent:
        message = Message(role="user", content=[part])
        assert to_wire(message)["content"] == [sent]
        assert from_wire(to_wire(message)) == message


@pytest.mark.clause("002-35a", "002-35b")
def test_002_35_no_loss_on_the_way_to_a_responses_api() -> None:
    answer: list[dict[str, Any]] = [
        {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [], "encrypted_content": "AAAA"},
        {
            "id": "ws_1",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "tides"},
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "arguments": '{"q": "x"}',
            "call_id": "call_1",
            "name": "look",
        },
        {"id": "fo_1", "type": "function_call_output", "status": "completed", "call_id": "call_1", "output": "seen"},
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "High at noon.",
                    "annotations": [{"type": "url_citation", "url": "https://example.org", "start_index": 0}],
                    "logprobs": [],
                }
            ],
            "phase": "final_answer",
        },
    ]
    log = ItemLog(from_wire(wire) for wire in answer)
    assert [type(item) for item in log] == [Reasoning, Opaque, FunctionCall, FunctionCallOutput, Message]
    assert [to_wire(item) for item in log] == answer
    texts = [json.dumps(wire, indent=1).encode() for wire in answer]
    again = [from_wire_json(text) for text in texts]
    assert [json.loads(to_wire_json(item)) for item in again] == answer
    assert to_wire_json(again[1]) == texts[1]
