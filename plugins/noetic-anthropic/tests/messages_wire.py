"""What the Messages API sends, by its published schema: the events of a stream, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from noetic_py.testing.models import ProviderAnswer, ProviderFailure, ProviderScript
from noetic_py.testing.replies import CUT, STALL, Piece, Reply


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING = event("ping")


def start(**usage: Any) -> bytes:
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None}
    return event("message_start", message={**message, **({"usage": usage} if usage else {})})


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any], stop: bool = True) -> list[bytes]:
    """The events of one content block."""
    return [
        event("content_block_start", index=index, content_block=content),
        *[event("content_block_delta", index=index, delta=delta) for delta in deltas],
        *([event("content_block_stop", index=index)] if stop else []),
    ]


def texts(index: int, *pieces: str, stop: bool = True) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas, stop=stop)


def tool_use(index: int, call_id: str, name: str, *pieces: str, stop: bool = True) -> list[bytes]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, *deltas, stop=stop)


def end(reason: str = "end_turn", *, details: dict[str, Any] | None = None, **usage: Any) -> list[bytes]:
    delta = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [event("message_delta", delta=delta, **({"usage": usage} if usage else {})), event("message_stop")]


def answer(*blocks: Iterable[bytes], reason: str = "end_turn", details: dict[str, Any] | None = None) -> Reply:
    """A whole answer of these blocks."""
    pieces = [piece for each in blocks for piece in each]
    return Reply(
        [start(input_tokens=9, output_tokens=1), PING, *pieces, *end(reason, details=details, output_tokens=5)]
    )


def error(status: int, kind: str, message: str, **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Reply.json(body, status, **headers)


KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def reply(script: ProviderScript) -> Reply:
    """An entry of a script in the API's own form."""
    if isinstance(script, ProviderFailure):
        headers = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
        message = "prompt is too long: 210000 tokens > 200000 maximum" if script.overflow else script.message
        return error(script.status, KINDS.get(script.status, "api_error"), message, **headers)
    return Reply(_pieces(script))


def _pieces(script: ProviderAnswer) -> list[Piece]:
    used, whole = script.usage, script.end == "whole"
    first: dict[str, Any] = {}
    if used is not None:
        cached = used.cached_input
        first = {"input_tokens": used.input - (cached or 0), "cache_read_input_tokens": cached, "output_tokens": 1}
    pieces: list[Piece] = [start(**first), PING]
    if script.text:
        pieces += texts(0, *script.text, stop=whole)
    for index, call in enumerate(script.calls, 1):
        pieces += tool_use(index, call.call_id, call.name, *call.pieces, stop=whole or index < len(script.calls))
    if not whole:
        ends: dict[str, list[Piece]] = {"cut": [CUT], "stall": [STALL]}
        return pieces + ends.get(script.end, [b"event: content_block_delta\ndata: {oops\n\n", STALL])
    last: dict[str, Any] = {} if used is None else {"output_tokens": used.output}
    if script.refusal is not None:
        details = {"type": "refusal", "category": "cyber", "explanation": script.refusal}
        return [*pieces, *end("refusal", details=details, **last)]
    return [*pieces, *end("tool_use" if script.calls else "end_turn", **last)]
