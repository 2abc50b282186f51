"""Spans of model calls, tools and agents, by OpenTelemetry's conventions for GenAI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import TYPE_CHECKING

from noetic_py.context.step import asks_model
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    Refusal,
)
from noetic_py.models.model import ModelRequest, ModelResponse
from noetic_py.redaction import redact
from noetic_py.steps.loop import LoopSpec

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from noetic_py.core.telemetry import GuardedSpan
    from noetic_py.engine.frame import Frame
    from noetic_py.engine.state import Run
    from noetic_py.tools.definition import AnyTool

_SETTINGS = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop_sequences",
    "reasoning_effort": "reasoning.level",
}
_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached_input": "cache_read.input_tokens",
    "cache_write": "cache_write.input_tokens",
    "reasoning": "reasoning.output_tokens",
    "input_audio": "audio.input_tokens",
    "output_audio": "audio.output_tokens",
    "input_image": "image.input_tokens",
    "output_image": "image.output_tokens",
}
# Providers whose name in the conventions is another one.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "openai-chat": "openai",
    "xai": "x_ai",
}


class CallSpan:
    """The span of one request to a provider, below the span of the step that asks.

    Args:
        run: The run that asks.
        tracer: What records it.
        model: The model's name.
        request: What is asked.
    """

    def __init__(self, run: Run, tracer: Tracer, model: str, request: ModelRequest) -> None:
        from opentelemetry.trace import SpanKind

        from noetic_py.core.telemetry import GuardedSpan

        names = names_of(model)
        started = tracer.start_span(f"chat {names['gen_ai.request.model']}", kind=SpanKind.CLIENT, attributes=names)
        self._span: GuardedSpan = GuardedSpan(started)
        self._span.set_attributes(
            {
                "gen_ai.conversation.id": run.thread_id,
                **({} if request.output is None else {"gen_ai.output.type": "json"}),
                **_of_settings(request.settings),
            }
        )
        self._content = run.content
        if self._content:
            self._span.set_attribute("gen_ai.input.messages", _texts(_messages(request.items)))
            if request.instructions is not None:
                parts = [{"type": "text", "content": redact(request.instructions)}]
                self._span.set_attribute("gen_ai.system_instructions", _texts(parts))

    def active(self) -> AbstractContextManager[Span]:
        """Be the active span for a while."""
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, response: ModelResponse | None, failure: BaseException | None, cost: Decimal | None) -> None:
        """The call is over.

        Args:
            response: What the model has answered.
            failure: What the model has raised.
            cost: What it cost in USD, when that is known.
        """
        if cost is not None:
            # The conventions have no name for it.
            self._span.set_attribute("noetic.cost", float(cost))
        if response is not None:
            self._span.set_attributes(_of_response(response))
            if self._content:
                # Which arguments are secret is known only once the step has looked at the calls; the tool's span, and
                # the next request, have the arguments.
                said = [
                    # The conventions have deprecated the reason at this place; viewers refuse messages without it.
                    {**message, "finish_reason": _FINISHED.get(response.stop_reason, response.stop_reason)}
                    for message in _messages(response.items, arguments=False)
                ]
                self._span.set_attribute("gen_ai.output.messages", _texts(said))
        if isinstance(failure, Exception):
            self._span.record_exception(failure)
            record_failure(self._span, failure, str(failure))
        self._span.end()


def _of_settings(settings: Mapping[str, object]) -> dict[str, object]:
    return {f"gen_ai.request.{_SETTINGS[name]}": value for name, value in settings.items() if name in _SETTINGS}


def _of_response(response: ModelResponse) -> dict[str, object]:
    attributes = {
        "gen_ai.response.finish_reasons": [response.stop_reason],
        "gen_ai.response.model": response.model,
        "gen_ai.response.id": response.response_id,
        **({} if response.usage is None else _of_usage(response.usage)),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _of_usage(usage: TokenUsage) -> dict[str, int | None]:
    return {f"gen_ai.usage.{name}": getattr(usage, part) for part, name in _USAGE.items()}


def names_of(model: str) -> dict[str, str]:
    """What spans and metrics call a model.

    Args:
        model: Its name.
    """
    # Behind this prefix stands the whole name of a model of a provider.
    provider, colon, name = model.removeprefix("pydantic-ai:").partition(":")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": name if colon else model,
    }


# The conventions' own names of some reasons.
_FINISHED = {"tool_calls": "tool_call", "refusal": "content_filter"}


def _messages(items: Iterable[Item], *, arguments: bool = True) -> list[dict[str, object]]:
    """Items in the form of the conventions: consecutive ones of one role are one message."""
    found: list[dict[str, object]] = []
    parts: list[dict[str, object]] = []
    for item in items:
        role, more = _parts(item, arguments=arguments)
        if not more:
            continue
        if not found or found[-1]["role"] != role:
            parts = []
            found.append({"role": role, "parts": parts})
        parts += more
    return found


def _parts(item: Item, *, arguments: bool) -> tuple[str, list[dict[str, object]]]:
    match item:
        case Message():
            return item.role, [_part(part) for part in item.content]
        case FunctionCall():
            call: dict[str, object] = {"type": "tool_call", "id": item.call_id, "name": item.name}
            return "assistant", [{**call, "arguments": redact(item.arguments)} if arguments else call]
        case FunctionCallOutput():
            output = item.output
            said = redact(output) if isinstance(output, str) else [_part(part) for part in output]
            return "tool", [{"type": "tool_call_response", "id": item.call_id, "response": said}]
        case Reasoning():
            return "assistant", [{**_part(part), "type": "reasoning"} for part in (item.content or item.summary)]
        case _:
            return "assistant", [{"type": item.type}]


def _part(part: ContentPart) -> dict[str, object]:
    match part:
        case InputText() | OutputText():
            return {"type": "text", "content": redact(part.text)}
        case Refusal():
            return {"type": "text", "content": redact(part.refusal)}
        case _:
            # Pictures and files would make spans that no backend takes.
            return {"type": "image" if isinstance(part, InputImage) else "file"}


def _texts(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def describe_agent(span: Span, name: str, conversation: str) -> None:
    """Make a step's span that of an agent.

    Args:
        span: The span of the loop around its model.
        name: The agent's name.
        conversation: The conversation's id.
    """
    span.update_name(f"invoke_agent {name}")
    span.set_attributes(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.conversation.id": conversation,
        }
    )


def describe_tool(
    span: Span, frame: Frame, name: str, tool: AnyTool | None, call_id: str = "", arguments: str | None = None
) -> None:
    """Make a step's span that of a tool.

    Args:
        span: The span of the step that calls it.
        frame: The step.
        name: The tool's name, as the caller has it.
        tool: The tool; `None` when there is none of the name.
        call_id: The model's id of the call.
        arguments: The call's arguments, with masks for secret ones; `None` leaves them out.
    """
    span.update_name(f"execute_tool {name}")
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": frame.x.run.thread_id,
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
    }
    agent = _agent_around(frame)
    if agent is not None:
        attributes["gen_ai.agent.name"] = agent
    if call_id:
        attributes["gen_ai.tool.call.id"] = call_id
    if tool is not None and tool.description:
        attributes["gen_ai.tool.description"] = tool.description
    if arguments is not None:
        attributes["gen_ai.tool.call.arguments"] = arguments
    span.set_attributes(attributes)


def _agent_around(frame: Frame) -> str | None:
    """The name of the nearest loop around a model in which a step runs."""
    up = frame.up
    while up is not None:
        spec = up.step.spec
        if isinstance(spec, LoopSpec) and asks_model(spec.body):
            return up.step.id
        up = up.up
    return None


def describe_result(span: Span, item: FunctionCallOutput) -> None:
    """Say on a tool's span what it gave.

    Args:
        span: The span of the step that calls it.
        item: What the model is shown.
    """
    output = item.output
    parts = output if isinstance(output, str) else _texts([_part(part) for part in output])
    span.set_attribute("gen_ai.tool.call.result", parts)


def record_failure(span: Span, error: BaseException | None, message: str) -> None:
    """Say that what a span stands for has failed.

    Args:
        span: The span.
        error: What was raised; `None` for what was refused.
        message: Its description.
    """
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", "refused" if error is None else type(error).__qualname__)
    span.set_status(StatusCode.ERROR, message)
