"""Items from the events of a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from noetic_anthropic.reading import MessageReading

from noetic_py import TokenUsage
from noetic_py.core.budget import problem_of
from noetic_py.core.items import FunctionCall, Message, Opaque, OutputText, Reasoning, Refusal
from noetic_py.models import ItemDone, ModelEvent, ReasoningPart, TextPart, ToolCallPart
from noetic_py.models.reading import BEGUN, Malformed, ProviderError

USAGE = {"input_tokens": 10, "output_tokens": 1}


def start(usage: Any = USAGE) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "msg_1", "model": "claude-x", "content": [], "usage": usage}}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *[{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": index},
    ]


def said(index: int, words: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": words})


def end(reason: str | None = "end_turn", usage: Any = None, details: Any = None) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_details": details}
    return [{"type": "message_delta", "delta": delta, "usage": usage or {"output_tokens": 5}}, {"type": "message_stop"}]


def read(*events: dict[str, Any]) -> tuple[MessageReading, list[ModelEvent]]:
    reading = MessageReading()
    found = [part for event in events for part in reading.feed(event)]
    assert reading.complete
    return reading, found


SEARCH: dict[str, Any] = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: dict[str, Any] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"encrypted_content": "x"}],
}
CITATION: dict[str, Any] = {"type": "web_search_result_location", "url": "https://x.test"}


def answer_with_everything() -> list[dict[str, Any]]:
    return [
        start(),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "sig"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "sealed"}),
        *block(
            2,
            SEARCH,
            {"type": "input_json_delta", "partial_json": '{"query": '},
            {"type": "input_json_delta", "partial_json": '"tide"}'},
        ),
        *block(3, FOUND),
        *said(4, "High water "),
        *block(
            5,
            {"type": "text", "text": ""},
            {"type": "citations_delta", "citation": CITATION},
            {"type": "text_delta", "text": "is at noon."},
        ),
        *block(
            6,
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a": 1}'},
        ),
        *block(7, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}),
        *end("tool_use"),
    ]


def test_an_answer_with_everything() -> None:
    reading, events = read(*answer_with_everything())
    response = reading.response()
    thought, redacted, called, found, message, first, second = response.items
    assert isinstance(thought, Reasoning)
    assert (thought.text, thought.encrypted_content) == ("hm", "sig")
    assert isinstance(redacted, Reasoning)
    assert (redacted.text, redacted.encrypted_content) == ("", "sealed")
    assert isinstance(called, Opaque)
    assert json.loads(called.raw) == {**SEARCH, "input": {"query": "tide"}}
    assert isinstance(found, Opaque)
    assert (found.type, json.loads(found.raw)) == ("web_search_tool_result", FOUND)
    assert isinstance(message, Message)
    assert message.text == "High water is at noon."
    assert message.content == (
        OutputText(text="High water "),
        OutputText(text="is at noon.", extra={"citations": [CITATION]}),
    )
    assert isinstance(first, FunctionCall)
    assert (first.call_id, first.name, first.arguments) == ("toolu_1", "add", '{"a": 1}')
    assert isinstance(second, FunctionCall)
    assert second.arguments == "{}"
    assert [event.item for event in events if isinstance(event, ItemDone)] == list(response.items)
    assert [event for event in events if not isinstance(event, ItemDone)] == [
        ReasoningPart("hm"),
        TextPart("High water ", message.id),
        TextPart("is at noon.", message.id),
        ToolCallPart("toolu_1", "add", '{"a": 1}'),
    ]
    assert (response.stop_reason, response.model, response.response_id) == ("tool_calls", "claude-x", "msg_1")


def test_usage_with_what_was_read_from_the_cache_and_written_to_it() -> None:
    first = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 1,
    }
    last = {"output_tokens": 50, "input_tokens": None, "output_tokens_details": {"thinking_tokens": 40}}
    reading, _ = read(start(first), *said(0, "x"), *end(usage=last))
    usage = TokenUsage(140, 50, cached_input=100, cache_write=30, cache_write_1h=20, reasoning=40)
    assert reading.response().usage == usage
    assert problem_of(usage, None) is None


@pytest.mark.parametrize("odd", ["many", -1, 1.5, True])
def test_what_is_no_number_of_tokens_is_refused_by_name(odd: Any) -> None:
    reading, _ = read(start({"input_tokens": odd, "output_tokens": 1}), *end())
    assert "input" in str(problem_of(reading.response().usage, None))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "paused"),
        ("something_new", "other"),
    ],
)
def test_stop_reasons(sent: str, reason: str) -> None:
    reading, _ = read(start(), *said(0, "a"), *end(sent))
    response = reading.response()
    assert response.stop_reason == reason
    assert response.items[-1].status == ("incomplete" if reason == "length" else "completed")


def test_a_refusal_follows_what_was_said() -> None:
    reading, _ = read(start(), *said(0, "Well, "), *end("refusal"))
    (message,) = reading.response().items
    assert isinstance(message, Message)
    assert message.content == (OutputText(text="Well, "), Refusal(refusal="the model declined to answer"))


def test_an_error_is_raised_as_it_came() -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ProviderError) as caught:
        read(event)
    assert caught.value.error == event


@pytest.mark.parametrize(
    "event",
    [
        {"type": 5},
        {"type": "message_start", "message": "x"},
        {"type": "content_block_start", "index": "x", "content_block": {"type": "text"}},
        {"type": "content_block_start", "index": 0, "content_block": 5},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_stop", "index": 7},
        {"type": "message_delta", "delta": 5},
        {"type": "message_start", "message": {"usage": [1]}},
    ],
)
def test_malformed_events(event: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read(event)


def test_an_input_that_is_not_json() -> None:
    search: dict[str, Any] = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    with pytest.raises(Malformed, match="not JSON"):
        read(start(), *block(0, search, {"type": "input_json_delta", "partial_json": "{oops"}))


def test_an_answer_that_just_ends_is_not_whole() -> None:
    with pytest.raises(Malformed, match="ended before"):
        MessageReading().end()


@pytest.mark.parametrize(
    "content",
    [
        {"type": "tool_use", "id": "t", "name": "f", "input": {"text": ["x" * 10_000]}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"encrypted_content": "x" * 10_000}]},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    ],
)
def test_all_that_a_block_begins_with_counts(content: dict[str, Any]) -> None:
    reading = MessageReading()
    begun, *_ = block(0, content)
    for event in (start(), begun):
        list(reading.feed(event))
    assert reading.unheard >= BEGUN + len(json.dumps(content)) - 50


@pytest.mark.parametrize(
    ("reported", "uses"),
    [
        ({"web_search_requests": 2, "web_fetch_requests": 3}, {"web_search": 2}),
        ({"web_search_requests": 0}, {}),
        ({"code_execution_requests": 1, "of_later": "x"}, {"code_execution": 1}),
        (None, {}),
    ],
)
def test_uses_of_its_own_tools_that_are_charged(reported: Any, uses: dict[str, int]) -> None:
    reading, _ = read(start(), *said(0, "noon"), *end(usage={"output_tokens": 5, "server_tool_use": reported}))
    assert reading.response().server_tools == uses
