"""Items from the chunks of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st
from noetic_google.content import content_of
from noetic_google.reading import ChunkReading

from noetic_py import TokenUsage
from noetic_py.core.budget import problem_of
from noetic_py.core.items import FunctionCall, Message, Opaque, OutputText, Reasoning, Refusal
from noetic_py.models import ItemDone, ModelEvent, ReasoningPart, TextPart, ToolCallPart
from noetic_py.models.reading import BEGUN, Malformed, ProviderError

MODEL = "gemini-3.8-flash"


def chunk(*parts: dict[str, Any], finish: str | None = None, usage: Any = None, **candidate: Any) -> dict[str, Any]:
    found = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, **candidate}
    return {"candidates": [found], "modelVersion": MODEL, "responseId": "resp_1", "usageMetadata": usage}


def fed(*chunks: dict[str, Any]) -> tuple[ChunkReading, list[ModelEvent]]:
    reading = ChunkReading()
    found: list[ModelEvent] = []
    for each in chunks:
        found += reading.feed({"chunk": GenerateContentResponse.model_validate(each)})
    return reading, found


def read(*chunks: dict[str, Any]) -> tuple[ChunkReading, list[ModelEvent]]:
    reading, found = fed(*chunks)
    found += reading.end()
    assert reading.complete
    return reading, found


def test_an_answer_with_everything() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(6)", "id": "c1"}, "thoughtSignature": "c2ln"}
    printed = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "6\n"}}
    grounding = {"webSearchQueries": ["tide Brest"]}
    reading, events = read(
        chunk({"text": "Two ", "thought": True}),
        chunk({"text": "ports.", "thought": True}),
        chunk(code),
        chunk(printed),
        chunk({"text": "High water "}),
        chunk({"text": "is at noon."}),
        chunk({"text": "", "thoughtSignature": "AQID"}),
        chunk({"functionCall": {"name": "add", "args": {"a": 1}, "id": "f1"}, "thoughtSignature": "-_8="}),
        chunk({"functionCall": {"name": "now"}}),
        chunk({"text": "So."}, finish="STOP", groundingMetadata=grounding),
    )
    response = reading.response()
    thought, executed, result, message, first, second, last = response.items
    assert isinstance(thought, Reasoning)
    assert (thought.text, thought.encrypted_content) == ("Two ports.", None)
    assert isinstance(executed, Opaque)
    assert json.loads(executed.raw) == {"type": "google_part", "part": code}
    assert isinstance(result, Opaque)
    assert json.loads(result.raw)["part"] == printed
    assert isinstance(message, Message)
    assert message.content == (
        OutputText(text="High water is at noon."),
        OutputText(text="", extra={"thought_signature": "AQID"}),
    )
    assert isinstance(first, FunctionCall)
    assert (first.call_id, first.name, first.arguments) == ("f1", "add", '{"a": 1}')
    assert first.extra == {"thought_signature": "+/8="}
    assert isinstance(second, FunctionCall)
    assert (second.arguments, second.extra, bool(second.call_id)) == ("{}", None, True)
    assert isinstance(last, Message)
    assert last.content[0].extra == {"grounding_metadata": grounding}
    assert [event.item for event in events if isinstance(event, ItemDone)] == list(response.items)
    assert [event for event in events if not isinstance(event, ItemDone)] == [
        ReasoningPart("Two "),
        ReasoningPart("ports."),
        TextPart("High water ", message.id),
        TextPart("is at noon.", message.id),
        ToolCallPart("f1", "add", '{"a": 1}'),
        ToolCallPart(second.call_id, "now", "{}"),
        TextPart("So.", last.id),
    ]
    assert (response.stop_reason, response.model, response.response_id) == ("tool_calls", MODEL, "resp_1")


PARTS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.booleans(),
        st.sampled_from([None, None, "AQID", "c2ln"]),
    ),
    max_size=8,
)


@given(parts=PARTS, cuts=st.lists(st.integers(0, 12), min_size=8, max_size=8))
def test_what_is_read_goes_back_as_it_came_however_it_was_cut(
    parts: list[tuple[str, bool, str | None]], cuts: list[int]
) -> None:
    def part(text: str, thought: bool, signature: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"text": text, **({"thought": True} if thought else {})}
        return found if signature is None else {**found, "thoughtSignature": signature}

    chunks: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    for (text, thought, signature), cut in zip(parts, cuts, strict=False):
        # A part with a signature comes in one piece, and stays one; the others are pieces of a text.
        pieces = [text] if signature is not None else [text[:cut], text[cut:]]
        chunks += [chunk(part(piece, thought, signature)) for piece in pieces]
        made = part(text, thought, signature)
        before = whole[-1] if whole else None
        if text == "" and signature is None:
            continue
        if before is not None and before.keys() == made.keys() and signature is None:
            before["text"] += text
        else:
            whole.append(made)
    reading, _ = read(*chunks, chunk(finish="STOP"))
    assert [sent for _, sent in content_of(reading.response().items, None, MODEL).turns] == whole


def test_usage_with_thoughts_tools_the_cache_and_sound() -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 30,
        "toolUsePromptTokenCount": 7,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 50},
            {"modality": "AUDIO", "tokenCount": 40},
            {"modality": "IMAGE", "tokenCount": 10},
        ],
    }
    reading, _ = read(chunk(usage={"promptTokenCount": 100}), chunk({"text": "x"}, finish="STOP", usage=usage))
    found = reading.response().usage
    assert found == TokenUsage(107, 50, cached_input=60, reasoning=30, input_audio=40, input_image=10)
    assert problem_of(found, None) is None


def test_tokens_of_which_there_are_none_are_left_out_by_the_provider() -> None:
    reading, _ = read(chunk(finish="STOP", usage={"promptTokenCount": 8, "totalTokenCount": 8}))
    assert reading.response().usage == TokenUsage(8, 0)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [("STOP", "stop"), ("MAX_TOKENS", "length"), ("CONTINUATION", "length"), ("OTHER", "other"), ("NO_IMAGE", "other")],
)
def test_stop_reasons(sent: str, reason: str) -> None:
    reading, _ = read(chunk({"text": "a"}, finish=sent))
    response = reading.response()
    assert response.stop_reason == reason
    assert response.items[-1].status == ("incomplete" if reason == "length" else "completed")


def test_a_stop_reason_that_the_sdk_does_not_know() -> None:
    with pytest.warns(UserWarning, match="SOMETHING_NEW"):
        reading, _ = read(chunk({"text": "a"}, finish="SOMETHING_NEW"))
    assert reading.response().stop_reason == "other"


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII"])
def test_an_answer_that_is_withheld_is_a_refusal(reason: str) -> None:
    reading, _ = read(chunk({"text": "Well, "}), chunk(finish=reason))
    (message,) = reading.response().items
    assert isinstance(message, Message)
    words = f"the provider withheld the answer: {reason}"
    assert message.content == (OutputText(text="Well, "), Refusal(refusal=words))
    assert reading.response().stop_reason == "refusal"
    reading, _ = read(chunk(finish=reason, finishMessage="It says why."))
    (message,) = reading.response().items
    assert isinstance(message, Message)
    assert message.content == (Refusal(refusal="It says why."),)


@pytest.mark.parametrize(
    ("feedback", "words"),
    [
        ({"blockReason": "PROHIBITED_CONTENT"}, "the prompt was blocked: PROHIBITED_CONTENT"),
        ({"blockReason": "SAFETY", "blockReasonMessage": "Not that."}, "Not that."),
    ],
)
def test_a_blocked_prompt_is_a_refusal(feedback: dict[str, Any], words: str) -> None:
    reading, _ = read({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}})
    response = reading.response()
    (message,) = response.items
    assert isinstance(message, Message)
    assert (message.content, response.stop_reason) == ((Refusal(refusal=words),), "refusal")
    assert response.usage == TokenUsage(4, 0)


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_what_cannot_be_used_is_an_error(reason: str) -> None:
    with pytest.raises(ProviderError) as caught:
        read(chunk(finish=reason, finishMessage="print(tide("))
    assert caught.value.error == f"{reason}: print(tide("


@pytest.mark.parametrize("call", [{"name": "f", "willContinue": True}, {"partialArgs": [{"jsonPath": "$.a"}]}])
def test_a_call_in_parts_is_refused(call: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="stream_function_call_arguments"):
        read(chunk({"functionCall": call}))


def test_an_answer_that_just_ends_is_not_whole() -> None:
    with pytest.raises(Malformed, match="ended before"):
        read(chunk({"text": "Hel"}))


@pytest.mark.parametrize(
    "part",
    [
        {"functionCall": {"name": "f", "args": {"text": "x" * 10_000}}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "x" * 10_000}},
        {"text": "", "thoughtSignature": "AAAA" * 2500},
    ],
)
def test_all_that_an_answer_keeps_counts(part: dict[str, Any]) -> None:
    reading, events = fed(chunk(part))
    heard = sum(len(event.delta) for event in events if isinstance(event, ToolCallPart))
    assert reading.unheard + heard >= 10_000
    assert reading.unheard >= (BEGUN if "text" not in part else 0)


@pytest.mark.parametrize(
    ("model", "found", "searches"),
    [
        (MODEL, [{"webSearchQueries": ["a", "b"]}, {"webSearchQueries": ["b", "", "c"]}], 3),
        (MODEL, [{"groundingChunks": [{"web": {"uri": "https://x.test"}}]}], 0),
        (
            "gemini-2.5-flash",
            [{"webSearchQueries": ["a", "b"], "groundingChunks": [{"web": {"uri": "https://x.test"}}]}],
            1,
        ),
        ("gemini-2.5-flash", [{"webSearchQueries": ["a", "b"]}], 0),
        (MODEL, [], 0),
    ],
)
def test_searches_that_are_charged(model: str, found: list[dict[str, Any]], searches: int) -> None:
    chunks = [chunk({"text": "x"}, groundingMetadata=each) for each in found]
    reading, _ = read(*[{**each, "modelVersion": model} for each in (*chunks, chunk({"text": "."}, finish="STOP"))])
    assert reading.response().server_tools == ({"web_search": searches} if searches else {})
