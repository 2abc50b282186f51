"""What every model has to keep, kept by both interfaces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from noetic_openai import OpenAIModel
from proxy import error_reply, sse

from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderAnswer, ProviderFailure, ProviderScript, ServedModel
from noetic_py.testing.replies import CUT, STALL, Piece, Reply, replying


def failure(script: ProviderFailure) -> Reply:
    code = "context_length_exceeded" if script.overflow else "a_code"
    headers = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
    return error_reply(script.status, {"message": script.message, "code": code}, **headers)


def pieces(script: ProviderAnswer, events: Sequence[Any], end: Sequence[Any], *, done: bool) -> list[Piece]:
    match script.end:
        case "whole":
            return [*sse(*events, *end, done=done)]
        case "malformed":
            return [*sse(*events), b"data: {oops\n\n", STALL]
        case _:
            return [*sse(*events), CUT if script.end == "cut" else STALL]


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "r1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat(script: ProviderAnswer) -> list[Piece]:
    events = [chunk({"role": "assistant"}), *[chunk({"content": text}) for text in script.text]]
    if script.refusal is not None:
        events.append(chunk({"refusal": script.refusal}))
    for index, call in enumerate(script.calls):
        named = {"index": index, "id": call.call_id, "function": {"name": call.name, "arguments": ""}}
        events.append(chunk({"tool_calls": [named]}))
        parts = [{"index": index, "function": {"arguments": text}} for text in call.pieces]
        events += [chunk({"tool_calls": [part]}) for part in parts]
    end = [chunk({}, "tool_calls" if script.calls else "stop")]
    if (used := script.usage) is not None:
        details = {"cached_tokens": used.cached_input}
        usage = {"prompt_tokens": used.input, "completion_tokens": used.output, "prompt_tokens_details": details}
        end.append({"id": "r1", "choices": [], "usage": usage})
    return pieces(script, events, end, done=True)


def responses(script: ProviderAnswer) -> list[Piece]:
    delta = {"type": "response.output_text.delta", "item_id": "msg_1"}
    events: list[Any] = [{"type": "response.created", "response": {"id": "r1", "status": "in_progress"}}]
    events += [{**delta, "delta": text} for text in script.text]
    end: list[Any] = []
    said: list[Any] = [{"type": "output_text", "text": "".join(script.text), "annotations": []}] if script.text else []
    said += [] if script.refusal is None else [{"type": "refusal", "refusal": script.refusal}]
    if said:
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": said}
        end.append({"type": "response.output_item.done", "item": message})
    for index, call in enumerate(script.calls):
        item = {"id": f"fc_{index}", "type": "function_call", "call_id": call.call_id, "name": call.name}
        events.append({"type": "response.output_item.added", "item": {**item, "arguments": ""}})
        delta = {"type": "response.function_call_arguments.delta", "item_id": item["id"]}
        events += [{**delta, "delta": text} for text in call.pieces]
        whole = {**item, "arguments": call.arguments, "status": "completed"}
        end.append({"type": "response.output_item.done", "item": whole})
    final: dict[str, Any] = {"id": "r1", "model": "m", "status": "completed", "output": []}
    if (used := script.usage) is not None:
        details = {"cached_tokens": used.cached_input}
        final["usage"] = {
            "input_tokens": used.input,
            "output_tokens": used.output,
            "input_tokens_details": details,
        }
    return pieces(script, events, [*end, {"type": "response.completed", "response": final}], done=False)


class OpenAIContract(ModelContract):
    api: ClassVar[Literal["chat", "responses"]]

    def reply(self, script: ProviderScript) -> Reply:
        if isinstance(script, ProviderFailure):
            return failure(script)
        return Reply(chat(script) if self.api == "chat" else responses(script))

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[self.reply(each) for each in script]) as server:
            model = OpenAIModel("m", api=self.api, base_url=f"{server.url}/v1", api_key="sk-secret")
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)


class TestChat(OpenAIContract):
    api = "chat"


class TestResponses(OpenAIContract):
    api = "responses"
