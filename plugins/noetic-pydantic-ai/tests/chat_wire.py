"""What a server of chat completions sends, by its published schema: the chunks of a stream, and errors."""

from __future__ import annotations

import json
from typing import Any

from noetic_py.testing.models import ProviderAnswer, ProviderFailure, ProviderScript
from noetic_py.testing.replies import CUT, STALL, Piece, Reply


def reply(script: ProviderScript) -> Reply:
    """An entry of a script in the interface's own form."""
    if isinstance(script, ProviderFailure):
        code = "context_length_exceeded" if script.overflow else "a_code"
        headers = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
        return Reply.json({"error": {"message": script.message, "code": code}}, script.status, **headers)
    return Reply(_pieces(script))


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _pieces(script: ProviderAnswer) -> list[Piece]:
    found: list[Piece] = [chunk({"role": "assistant"}), *[chunk({"content": text}) for text in script.text]]
    if script.refusal is not None:
        found.append(chunk({"refusal": script.refusal}))
    for index, call in enumerate(script.calls):
        function = {"name": call.name, "arguments": ""}
        found.append(
            chunk({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})
        )
        parts = [{"index": index, "function": {"arguments": text}} for text in call.pieces]
        found += [chunk({"tool_calls": [part]}) for part in parts]
    match script.end:
        case "cut":
            return [*found, CUT]
        case "stall":
            return [*found, STALL]
        case "malformed":
            return [*found, b"data: {oops\n\n", STALL]
        case _:
            found.append(chunk({}, "tool_calls" if script.calls else "stop"))
    if (used := script.usage) is not None:
        usage: dict[str, Any] = {"prompt_tokens": used.input, "completion_tokens": used.output}
        usage["total_tokens"] = used.input + used.output
        usage["prompt_tokens_details"] = {"cached_tokens": used.cached_input}
        last: dict[str, Any] = {
            "id": "r1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": usage,
        }
        found.append(event(last))
    return [*found, b"data: [DONE]\n\n"]
