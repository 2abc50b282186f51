"""Requests as pydantic-ai's messages, settings and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as Said
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Message,
    Opaque,
    Reasoning,
)
from noetic_py.core.secrets import revealed
from noetic_py.errors import ConfigError
from noetic_py.models import ModelRequest
from noetic_pydantic_ai.parts import part_of

__all__ = ["request_of"]

_Turn: TypeAlias = tuple[type[Said | ModelResponse], list[Any]]
_SAME: Final = ("temperature", "top_p", "seed", "parallel_tool_calls")


def request_of(
    request: ModelRequest, model: Model, name: str
) -> tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]:
    """What a model of pydantic-ai is asked with.

    Args:
        request: What to ask.
        model: The model.
        name: The name the framework knows it by.

    Raises:
        ConfigError: The request holds what pydantic-ai cannot carry; code `"model-content"`.
    """
    return _messages(request, name), _settings(request), _parameters(request, model)


def _settings(request: ModelRequest) -> ModelSettings:
    given: Any = request.settings
    # The framework repeats, so that the budget and the journal see each attempt.
    found: dict[str, Any] = {"max_retries": 0}
    found |= {key: given[key] for key in _SAME if key in given}
    if "max_output_tokens" in given:
        found["max_tokens"] = given["max_output_tokens"]
    if "stop" in given:
        found["stop_sequences"] = list(given["stop"])
    if "reasoning_effort" in given:
        found["thinking"] = given["reasoning_effort"]
    choice = given.get("tool_choice")
    if choice is not None and request.tools:
        found["tool_choice"] = choice if choice in ("auto", "required", "none") else [choice]
    # Settings of pydantic-ai's own, such as `bedrock_guardrail_config`.
    found |= revealed(given.get("extra", {}))
    whole: Any = found
    made: ModelSettings = whole
    return made


def _parameters(request: ModelRequest, model: Model) -> ModelRequestParameters:
    parameters = ModelRequestParameters(function_tools=[_tool(each) for each in request.tools])
    output = request.output
    if output is not None:
        native = bool(model.profile.get("supports_json_schema_output"))
        parameters.output_mode = "native" if native else "prompted"
        parameters.output_object = OutputObjectDefinition(
            json_schema=dict(output.schema), name=output.name, strict=output.strict
        )
    return parameters


def _tool(tool: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=tool["name"],
        description=tool.get("description"),
        parameters_json_schema=dict(tool.get("parameters") or {"type": "object", "properties": {}}),
        strict=True if tool.get("strict") else None,
    )


def _messages(request: ModelRequest, name: str) -> list[ModelMessage]:
    calls = {item.call_id: item.name for item in request.items if isinstance(item, FunctionCall)}
    outputs = {item.call_id: item for item in request.items if isinstance(item, FunctionCallOutput)}
    turns: list[_Turn] = []
    if request.instructions:
        _add(turns, Said, SystemPromptPart(request.instructions))
    waiting: list[str] = []
    for item in request.items:
        if isinstance(item, FunctionCallOutput):
            waiting = _answered(turns, waiting, outputs, calls, name)
            continue
        answers = isinstance(item, Reasoning | Opaque | FunctionCall) or (
            isinstance(item, Message) and item.role == "assistant"
        )
        if answers:
            # Of one answer all calls stand together, and their outputs behind them.
            if not turns or turns[-1][0] is not ModelResponse:
                waiting = _answered(turns, waiting, outputs, calls, name)
            part = part_of(item)
            if part is not None:
                _add(turns, ModelResponse, part)
            waiting += [item.call_id] if isinstance(item, FunctionCall) else []
        elif isinstance(item, Message):
            waiting = _answered(turns, waiting, outputs, calls, name)
            _add(turns, Said, _of_person(item, name))
    _answered(turns, waiting, outputs, calls, name)
    return [kind(parts=parts) for kind, parts in turns]


def _add(turns: list[_Turn], kind: type[Said | ModelResponse], *parts: Any) -> None:
    """Put parts into the last message, or into a new one of the kind."""
    if turns and turns[-1][0] is kind:
        turns[-1][1].extend(parts)
    else:
        turns.append((kind, list(parts)))


def _answered(
    turns: list[_Turn],
    waiting: Iterable[str],
    outputs: Mapping[str, FunctionCallOutput],
    calls: Mapping[str, str],
    name: str,
) -> list[str]:
    """Put the outputs of calls behind them."""
    for call_id in waiting:
        if call_id in outputs:
            content = _content(outputs[call_id].output, name)
            _add(turns, Said, ToolReturnPart(tool_name=calls[call_id], content=content, tool_call_id=call_id))
    return []


def _of_person(item: Message, name: str) -> SystemPromptPart | UserPromptPart:
    if item.role in ("system", "developer"):
        return SystemPromptPart(item.text)
    return UserPromptPart(_content(item.content, name))


def _content(content: str | Sequence[ContentPart], name: str) -> Any:
    if isinstance(content, str):
        return content
    parts = [_part(part, name) for part in content]
    return "\n".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _part(part: ContentPart, name: str) -> Any:
    match part:
        case InputImage(url=str() as url):
            return ImageUrl(url)
        case InputImage(data=bytes() as data, media_type=kind):
            return BinaryContent(data, media_type=kind or "image/png")
        case InputFile(url=str() as url):
            return DocumentUrl(url)
        case InputFile(data=bytes() as data, media_type=kind):
            return BinaryContent(data, media_type=kind or "application/octet-stream")
        case InputImage() | InputFile():
            raise ConfigError(
                f"{name} cannot be sent a file by its id", code="model-content", hint="send its bytes or its address"
            )
        case _:
            return str(getattr(part, "text", None) or getattr(part, "refusal", ""))
