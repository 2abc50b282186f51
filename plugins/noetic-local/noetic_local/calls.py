"""Tool calls for models that were never taught any: the grammar leaves them no other way to answer.

A tiny model does not keep to a format because it is asked to. So a request with tools becomes one without: the tools
stand in the instructions, earlier calls and outputs in the conversation as plain text, and the answer's schema allows a
call of one of the tools, or an answer, and nothing else.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
from noetic_openai.narrow import is_array, is_object

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelStream,
    OutputSchema,
    TextPart,
    ToolCallPart,
)

__all__ = ["CallStream", "needs_packing", "pack", "unpack"]

_CALL = "name"
_ARGUMENTS = "arguments"
_ANSWER = "answer"


def needs_packing(request: ModelRequest) -> bool:
    """Whether a request has tools, or tool calls in its conversation."""
    return bool(request.tools) or any(isinstance(item, FunctionCall | FunctionCallOutput) for item in request.items)


def pack(request: ModelRequest) -> ModelRequest:
    """The same request without tools and calls."""
    settings = request.settings.copy()
    settings.pop("tool_choice", None)
    settings.pop("parallel_tool_calls", None)
    tools = _tools_of(request)
    return attrs.evolve(
        request,
        items=_plain_items(request.items),
        instructions=_instructions(request, tools),
        tools=(),
        settings=settings,
        output=_schema(request, tools) if tools else request.output,
    )


def unpack(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    """The response to `request`, from the response to `pack(request)`."""
    if not _tools_of(request):
        return response
    items: list[Item] = []
    called = False
    for item in response.items:
        found = _read(item.text, request.output is not None) if isinstance(item, Message) else None
        called = called or isinstance(found, FunctionCall)
        items.append(item if found is None else found)
    # An answer that was cut off is not JSON and stays the text it is.
    stop_reason = "tool_calls" if called else response.stop_reason
    return attrs.evolve(response, items=tuple(items), stop_reason=stop_reason)


class CallStream:
    """The stream of a packed request: silent until the answer is whole.

    Args:
        stream: The stream of the packed request.
        request: The request as it was before.
    """

    def __init__(self, stream: ModelStream, request: ModelRequest) -> None:
        self._stream = stream
        self._request = request
        self._response: ModelResponse | None = None
        self._events: deque[ModelEvent] = deque()

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        await self.response()
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    async def response(self) -> ModelResponse:
        """The whole answer."""
        if self._response is None:
            self._response = unpack(await self._stream.response(), self._request)
            for item in self._response.items:
                if isinstance(item, FunctionCall):
                    self._events.append(ToolCallPart(item.call_id, item.name, item.arguments))
                elif isinstance(item, Message):
                    self._events.append(TextPart(item.text, item.id))
                self._events.append(ItemDone(item))
        return self._response


def _tools_of(request: ModelRequest) -> Sequence[Mapping[str, Any]]:
    choice = request.settings.get("tool_choice", "auto")
    if choice == "none":
        return ()
    if choice in ("auto", "required"):
        return request.tools
    return [tool for tool in request.tools if tool["name"] == choice]


def _may_answer(request: ModelRequest) -> bool:
    return request.settings.get("tool_choice", "auto") == "auto"


def _plain_items(items: Sequence[Item]) -> list[Item]:
    names = {item.call_id: item.name for item in items if isinstance(item, FunctionCall)}
    plain: list[Item] = []
    for item in items:
        match item:
            case FunctionCall():
                call = f'{{"{_CALL}": {json.dumps(item.name)}, "{_ARGUMENTS}": {item.arguments or "{}"}}}'
                plain.append(Message.assistant(call))
            case FunctionCallOutput():
                plain.append(Message.user(f"Result of {names.get(item.call_id, 'the call')}: {item.text}"))
            case _:
                plain.append(item)
    return plain


def _instructions(request: ModelRequest, tools: Sequence[Mapping[str, Any]]) -> str | None:
    if not tools:
        return request.instructions
    lines = [request.instructions] if request.instructions else []
    lines.append(f'Call a function by writing {{"{_CALL}": ..., "{_ARGUMENTS}": {{...}}}}. Functions:')
    for tool in tools:
        parameters: Any = tool.get("parameters") or {}
        names = ", ".join(parameters.get("properties", {}))
        lines.append(f"{tool['name']}({names}): {tool.get('description') or ''}".rstrip(": "))
    if _may_answer(request):
        lines.append(f'When you know the answer, write {{"{_ANSWER}": ...}}.')
    return "\n".join(lines)


def _schema(request: ModelRequest, tools: Sequence[Mapping[str, Any]]) -> OutputSchema:
    definitions: dict[str, Any] = {}
    kinds: list[Any] = []
    for index, tool in enumerate(tools):
        parameters: Any = tool.get("parameters") or {"type": "object", "properties": {}}
        arguments = _hoisted(parameters, f"t{index}_", definitions)
        kinds.append(_object({_CALL: {"const": tool["name"]}, _ARGUMENTS: arguments}))
    if _may_answer(request):
        answer: Any = {"type": "string"} if request.output is None else request.output.schema
        kinds.append(_object({_ANSWER: _hoisted(answer, "a_", definitions)}))
    schema: dict[str, Any] = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    if definitions:
        schema["$defs"] = definitions
    return OutputSchema("call", schema, strict=False)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_REFERENCE = "#/$defs/"


def _hoisted(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    """The schema with its definitions moved to `definitions`, since references are read from the root."""
    for name, definition in schema.get("$defs", {}).items():
        definitions[prefix + name] = _renamed(definition, prefix)
    return _renamed({key: value for key, value in schema.items() if key != "$defs"}, prefix)


def _renamed(value: Any, prefix: str) -> Any:
    if is_object(value):
        return {
            key: _REFERENCE + prefix + part.removeprefix(_REFERENCE)
            if key == "$ref" and isinstance(part, str)
            else _renamed(part, prefix)
            for key, part in value.items()
        }
    if is_array(value):
        return [_renamed(part, prefix) for part in value]
    return value


def _read(text: str, structured: bool) -> Item | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not is_object(data):
        return None
    if _CALL in data and _ARGUMENTS in data:
        return FunctionCall(name=str(data[_CALL]), arguments=data[_ARGUMENTS])
    if _ANSWER in data:
        answer = data[_ANSWER]
        return Message.assistant(json.dumps(answer, ensure_ascii=False) if structured else str(answer))
    return None
