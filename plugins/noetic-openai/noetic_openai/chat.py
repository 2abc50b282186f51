"""Chat completions: requests from items, items from a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from attrs import define, field

from noetic_openai.stream import Malformed, Reading, count, mapping, money, text
from noetic_openai.wire import Server, file_data, image_url, output_schema, tool_fields
from noetic_py.budget import TokenUsage
from noetic_py.errors import ConfigError
from noetic_py.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    Status,
)
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
)

__all__ = ["ChatReading", "chat_messages", "chat_request"]

_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


# ---------------------------------------------------------------------------------------------------- requests


def chat_request(request: ModelRequest, model: str, server: Server) -> dict[str, Any]:
    """The parameters of the SDK's `chat.completions.create` for a request.

    Args:
        request: What to ask.
        model: The provider's name of the model.
        server: Where it is asked.

    Raises:
        ConfigError: The request holds content that chat completions cannot carry (code `"model-content"`).
    """
    settings = request.settings
    params: dict[str, Any] = {
        "model": model,
        "messages": chat_messages(request.items, request.instructions),
        "stream": True,
        "stream_options": {"include_usage": True},
        **tool_fields(request, nested=True),
    }
    for name in ("temperature", "top_p", "seed", "reasoning_effort"):
        if name in settings:
            params[name] = settings[name]
    if "stop" in settings:
        params["stop"] = list(settings["stop"])
    if "max_output_tokens" in settings:
        # OpenAI's newer models refuse the old name, and many other servers do not know the new one.
        params["max_completion_tokens" if server.is_openai else "max_tokens"] = settings["max_output_tokens"]
    if request.output is not None:
        params["response_format"] = {"type": "json_schema", "json_schema": output_schema(request.output)}
    if server.store:
        params["store"] = True
    if settings.get("extra"):
        params["extra_body"] = dict(settings["extra"])
    return params


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
        case InputFile():
            return {"type": "file", "file": {"filename": part.filename or "file", "file_data": file_data(part)}}
        case Refusal():
            return {"type": "text", "text": part.refusal}
        case _:
            return {"type": "text", "text": getattr(part, "text", "")}


def _no_form(what: str, hint: str) -> ConfigError:
    return ConfigError(f"chat completions cannot carry {what}", code="model-content", hint=hint)


# ---------------------------------------------------------------------------------------------------- answers


@define
class _Call:
    call_id: str
    name: str
    arguments: str = ""


@define
class ChatReading(Reading):
    """Puts the chunks of one completion together."""

    _text: list[str] = field(factory=list[str], init=False)
    _refusal: list[str] = field(factory=list[str], init=False)
    _reasoning: list[str] = field(factory=list[str], init=False)
    _calls: dict[int, _Call] = field(factory=dict[int, _Call], init=False)
    _reason: str | None = field(default=None, init=False)
    _usage: TokenUsage | None = field(default=None, init=False)
    _cost: Decimal | None = field(default=None, init=False)
    _model: str | None = field(default=None, init=False)
    _id: str | None = field(default=None, init=False)
    _items: list[Item] = field(factory=list[Item], init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """The events of one chunk.

        Raises:
            ProviderError: The chunk is an error.
            Malformed: The chunk is not as it should be.
        """
        self.check(event)
        self._model = text(event, "model") or self._model
        self._id = text(event, "id") or self._id
        if event.get("usage") is not None:
            self._count(mapping(event["usage"], "usage"))
        choices = event.get("choices")
        if choices is None or choices == []:
            return []
        if not isinstance(choices, list):
            raise Malformed("choices is no list")
        choice = mapping(choices[0], "choices[0]")
        delta = choice.get("delta")
        found = list(self._delta(mapping(delta, "delta"))) if delta is not None else []
        self._reason = text(choice, "finish_reason") or self._reason
        if self._reason == "error":
            self.check({"error": choice.get("error") or {"message": "the answer ended in an error"}})
        return found

    def end(self) -> Iterable[ModelEvent]:
        """The events at the end of the stream; empty items mean that the model said nothing.

        Raises:
            Malformed: The stream ended before the answer did.
        """
        if self._reason is None:
            raise Malformed("the stream ended before the answer was complete")
        status: Status = "incomplete" if self._reason in ("length", "content_filter") else "completed"
        if self._reasoning:
            self._items.append(Reasoning(content="".join(self._reasoning)))
        parts: list[ContentPart] = []
        if self._text:
            parts.append(OutputText(text="".join(self._text)))
        if self._refusal:
            parts.append(Refusal(refusal="".join(self._refusal)))
        if parts:
            self._items.append(Message(role="assistant", content=parts, status=status))
        for _, call in sorted(self._calls.items()):
            self._items.append(
                FunctionCall(name=call.name, arguments=call.arguments, call_id=call.call_id, status=status)
            )
        self.complete = True
        return [ItemDone(item) for item in self._items]

    def response(self) -> ModelResponse:
        """The whole answer."""
        reason: StopReason = _REASONS.get(self._reason or "", "other")
        if self._refusal:
            reason = "refusal"
        elif self._calls and reason == "stop":
            reason = "tool_calls"
        return ModelResponse(
            items=tuple(self._items),
            usage=self._usage,
            cost=self._cost,
            stop_reason=reason,
            model=self._model,
            response_id=self._id,
        )

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[ModelEvent]:
        # The reasoning's name differs between servers; none sends both.
        thought = text(delta, "reasoning_content") or text(delta, "reasoning")
        if thought:
            self._reasoning.append(thought)
            yield ReasoningPart(thought)
        said = text(delta, "content")
        if said:
            self._text.append(said)
            yield TextPart(said)
        refused = text(delta, "refusal")
        if refused:
            self._refusal.append(refused)
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Malformed("tool_calls is no list")
        for piece in calls:
            yield from self._piece(mapping(piece, "tool_calls"))

    def _piece(self, piece: Mapping[str, Any]) -> Iterator[ModelEvent]:
        index = piece.get("index", 0)
        if not isinstance(index, int):
            raise Malformed("a tool call's index is no number")
        function = mapping(piece.get("function") or {}, "function")
        call_id, name = text(piece, "id"), text(function, "name")
        call = self._calls.get(index)
        if call is not None and call_id and name and call_id != call.call_id:
            # Some servers number every call 0, and only a new id tells them apart.
            call, index = None, max(self._calls) + 1
        if call is None:
            if not name:
                call = self._latest()
            else:
                call = self._calls[index] = _Call(call_id or self.new_id(), name)
        arguments = text(function, "arguments")
        if arguments:
            call.arguments += arguments
            yield ToolCallPart(call.call_id, call.name, arguments)

    def _latest(self) -> _Call:
        if not self._calls:
            raise Malformed("a tool call has no name")
        return self._calls[max(self._calls)]

    def _count(self, usage: Mapping[str, Any]) -> None:
        read = mapping(usage.get("prompt_tokens_details") or {}, "prompt_tokens_details")
        written = mapping(usage.get("completion_tokens_details") or {}, "completion_tokens_details")
        self._usage = TokenUsage(
            input=count(usage, "prompt_tokens") or 0,
            output=count(usage, "completion_tokens") or 0,
            cached_input=count(read, "cached_tokens"),
            cache_write=count(read, "cache_write_tokens"),
            reasoning=count(written, "reasoning_tokens"),
        )
        self._cost = money(usage, "cost")
