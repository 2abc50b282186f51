"""What the Gemini API sends, by its published schema: the chunks of a stream, and errors."""

from __future__ import annotations

import json
from typing import Any

from google.oauth2.credentials import Credentials

from noetic_py import TokenUsage
from noetic_py.testing.models import ProviderAnswer, ProviderFailure, ProviderScript
from noetic_py.testing.replies import CUT, STALL, Piece, Reply

MODEL = "gemini-3.8-flash"
USED = {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}


def credentials_with(token: str) -> Credentials:
    """Credentials of Google Cloud that need no refreshing."""
    make: Any = Credentials
    made: Credentials = make(token=token)
    return made


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\r\n\r\n".encode()


def chunk(*parts: dict[str, Any], finish: str | None = None, usage: Any = None, **candidate: Any) -> bytes:
    """A chunk with these parts."""
    found: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}
    if finish is not None:
        found["finishReason"] = finish
    fields: dict[str, Any] = {"candidates": [found], "modelVersion": MODEL, "responseId": "resp_1"}
    return event(**fields, **({} if usage is None else {"usageMetadata": usage}))


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


def called(name: str, args: dict[str, Any], call_id: str | None = None, **fields: Any) -> dict[str, Any]:
    call = {"name": name, "args": args, **({} if call_id is None else {"id": call_id})}
    return {"functionCall": call, **fields}


def blocked(message: str | None, usage: Any = None) -> bytes:
    """The one chunk of a blocked prompt; only Vertex AI sends a message."""
    feedback = {"blockReason": "SAFETY", **({} if message is None else {"blockReasonMessage": message})}
    return event(promptFeedback=feedback, modelVersion=MODEL, **({} if usage is None else {"usageMetadata": usage}))


def answer(*parts: dict[str, Any], finish: str = "STOP", usage: Any = USED, **candidate: Any) -> Reply:
    """A whole answer, each part in a chunk of its own."""
    return Reply([*[chunk(part) for part in parts], chunk(finish=finish, usage=usage, **candidate)])


def error(status: int, kind: str, message: str, *details: dict[str, Any], **headers: str) -> Reply:
    return Reply.json(error_body(status, kind, message, *details), status, **headers)


def error_body(status: int, kind: str, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": kind, "details": list(details)}}


def retry_info(delay: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


KINDS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
OVERFLOW = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."


def reply(script: ProviderScript) -> Reply:
    """An entry of a script in the API's own form."""
    if isinstance(script, ProviderFailure):
        details = [] if script.retry_after is None else [retry_info(f"{script.retry_after}s")]
        message = OVERFLOW if script.overflow else script.message
        return error(script.status, KINDS.get(script.status, "INTERNAL"), message, *details)
    return Reply(_pieces(script))


def _pieces(script: ProviderAnswer) -> list[Piece]:
    usage = None if script.usage is None else _usage(script.usage)
    pieces: list[Piece] = [chunk(said(text), usage=usage) for text in script.text]
    # The API sends a call whole, whatever pieces another one would have.
    pieces += [chunk(called(each.name, json.loads(each.arguments), each.call_id)) for each in script.calls]
    if script.end != "whole":
        ends: dict[str, list[Piece]] = {"cut": [CUT], "stall": [STALL]}
        return pieces + ends.get(script.end, [b"data: {oops\r\n\r\n", STALL])
    if script.refusal is not None:
        return [*pieces, blocked(script.refusal, usage)]
    return [*pieces, chunk(finish="STOP", usage=usage)]


def _usage(used: TokenUsage) -> dict[str, Any]:
    found = {"promptTokenCount": used.input, "candidatesTokenCount": used.output, "totalTokenCount": used.total}
    return found if used.cached_input is None else {**found, "cachedContentTokenCount": used.cached_input}
