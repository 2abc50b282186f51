"""Chat completions: requests from items."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from noetic_openai.caching import UNTOLD, Caching, mark
from noetic_openai.wire import Server, add_extra, file_data, image_url, output_schema, tool_fields
from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    OutputText,
    Refusal,
)
from noetic_py.core.secrets import revealed
from noetic_py.errors import ConfigError
from noetic_py.models import ModelRequest

__all__ = ["chat_messages", "chat_request"]


_MADE = "assistant"
# The formats of sound that the API names.
_SOUND = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def chat_request(request: ModelRequest, model: str, server: Server, caching: Caching = UNTOLD) -> dict[str, Any]:
    """The parameters of the SDK's `chat.completions.create` for a request.

    Args:
        request: What to ask.
        model: The provider's name of the model.
        server: Where it is asked.
        caching: The cache settings for the provider.

    Raises:
        ConfigError: The request holds content that chat completions cannot carry (code `"model-content"`).
    """
    settings = request.settings
    params: dict[str, Any] = {
        "model": model,
        "messages": _marked(request, caching),
        "stream": True,
        "stream_options": {"include_usage": True},
        **tool_fields(request, nested=True),
    }
    named = ("temperature", "top_p", "seed", "reasoning_effort")
    params.update({name: value for name, value in settings.items() if name in named})
    if "stop" in settings:
        params["stop"] = list(settings["stop"])
    if "max_output_tokens" in settings:
        # OpenAI's newer models refuse the old name, and many other servers do not know the new one.
        params["max_completion_tokens" if server.is_openai else "max_tokens"] = settings["max_output_tokens"]
    if request.output is not None:
        params["response_format"] = {"type": "json_schema", "json_schema": output_schema(request.output)}
    if server.store:
        params["store"] = True
    if caching.key and request.cache_key is not None:
        params["prompt_cache_key"] = request.cache_key
    add_extra(params, dict(revealed(settings.get("extra", {}))))
    return params


def _marked(request: ModelRequest, caching: Caching) -> list[dict[str, Any]]:
    """The messages, with marks in those that the next call will begin with too."""
    messages = chat_messages(request.items, request.instructions)
    if caching.mark is None:
        return messages
    start = chat_messages(request.items[: request.stable], request.instructions)
    # Later items can still change a message of the start: an output that is moved up to its call.
    pairs = enumerate(zip(start, messages, strict=False))
    stable = next((place for place, (one, other) in pairs if one != other), len(start))
    for message in messages:
        # The form is the same for all, marked or not, so that it is the same in the next call.
        if message["role"] != _MADE and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    mark(messages, stable, caching, is_input=lambda message: message["role"] != _MADE)
    return messages


def chat_messages(items: Sequence[Item], instructions: str | None = None) -> list[dict[str, Any]]:
    """Items as chat messages.

    What the model said and called in one go becomes one message, followed by the outputs of its calls, wherever they
    stand in the log. Reasoning, extension items and items of unknown types have no form here and are left out.

    Args:
        items: The conversation.
        instructions: The system instructions.
    """
    builder = _Messages({item.call_id: item for item in items if isinstance(item, FunctionCallOutput)})
    if instructions is not None:
        builder.add({"role": "system", "content": instructions})
    for item in items:
        match item:
            case Message(role="assistant"):
                builder.said(item)
            case Message():
                builder.add({"role": item.role, "content": _content(item.content)})
            case FunctionCall():
                builder.called(item)
            case FunctionCallOutput():
                builder.output(item)
            case _:
                pass
    builder.close()
    return builder.messages


@define
class _Messages:
    """The messages so far, and the assistant's message that may still grow."""

    outputs: dict[str, FunctionCallOutput]
    messages: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    texts: list[str] = field(factory=list[str])
    refusals: list[str] = field(factory=list[str])
    calls: list[FunctionCall] = field(factory=list[FunctionCall])

    def add(self, message: dict[str, Any]) -> None:
        self.close()
        self.messages.append(message)

    def said(self, message: Message) -> None:
        if not self.calls:
            self.close()
        self.texts.extend(part.text for part in message.content if isinstance(part, OutputText))
        self.refusals.extend(part.refusal for part in message.content if isinstance(part, Refusal))
        if not (self.texts or self.refusals):
            self.texts.append("")

    def called(self, call: FunctionCall) -> None:
        self.calls.append(call)

    def output(self, output: FunctionCallOutput) -> None:
        self.close()
        if output.call_id in self.outputs:
            self._outputs([self.outputs.pop(output.call_id)])

    def close(self) -> None:
        calls = self.calls
        if not (self.texts or self.refusals or calls):
            return
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.texts) if self.texts else None}
        if self.refusals:
            message["refusal"] = "".join(self.refusals)
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        self.messages.append(message)
        self.texts, self.refusals, self.calls = [], [], []
        # The API takes nothing between calls and their outputs, so outputs that came late are moved up.
        self._outputs([self.outputs.pop(call.call_id) for call in calls if call.call_id in self.outputs])

    def _outputs(self, outputs: list[FunctionCallOutput]) -> None:
        media: list[ContentPart] = []
        for output in outputs:
            self.messages.append({"role": "tool", "tool_call_id": output.call_id, "content": output.text})
            if not isinstance(output.output, str):
                media.extend(part for part in output.output if isinstance(part, InputImage | InputFile))
        if media:
            # A tool message carries text only.
            self.messages.append({"role": "user", "content": [_part(part) for part in media]})


def _call(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _content(parts: Sequence[ContentPart]) -> Any:
    made = [_part(part) for part in parts]
    # Some servers know text as a plain string only.
    if len(made) == 1 and made[0]["type"] == "text":
        return made[0]["text"]
    return made or ""


def _part(part: ContentPart) -> dict[str, Any]:
    match part:
        case InputImage():
            url = image_url(part)
            if url is None:
                raise _no_form("an image by file id", "give the image by url= or data=")
            image = {"url": url} if part.detail is None else {"url": url, "detail": part.detail}
            return {"type": "image_url", "image_url": image}
        case InputFile(url=str()):
            raise _no_form("a file by address", "give the file's data=, or use the Responses API")
        case InputFile(file_id=str()):
            return {"type": "file", "file": {"file_id": part.file_id}}
        case InputFile(data=bytes() as data, media_type=kind) if kind in _SOUND:
            sound = {"data": b64encode(data).decode(), "format": _SOUND[kind]}
            return {"type": "input_audio", "input_audio": sound}
        case InputFile():
            return {"type": "file", "file": {"filename": part.filename or "file", "file_data": file_data(part)}}
        case Refusal():
            return {"type": "text", "text": part.refusal}
        case _:
            return {"type": "text", "text": getattr(part, "text", "")}


def _no_form(what: str, hint: str) -> ConfigError:
    return ConfigError(f"chat completions cannot carry {what}", code="model-content", hint=hint)
