"""What OpenTelemetry's conventions for GenAI say of spans of model calls and of tools; contents are never recorded.

The names are those of https://github.com/open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from noetic_py.core.usage import TokenUsage
from noetic_py.models.model import ModelRequest, ModelResponse

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from noetic_py.core.guarded_span import GuardedSpan
    from noetic_py.tools import Tool

__all__ = ["CallSpan", "describe_tool", "record_failure"]

_SETTINGS = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop_sequences",
}
_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached_input": "cache_read.input_tokens",
    "cache_write": "cache_creation.input_tokens",
    "reasoning": "reasoning.output_tokens",
    "input_audio": "audio.input_tokens",
    "output_audio": "audio.output_tokens",
    "input_image": "image.input_tokens",
    "output_image": "image.output_tokens",
}


class CallSpan:
    """The span of one request to a provider, below the span of the step that asks.

    Args:
        tracer: What records it.
        model: The model's name.
        request: What is asked.
        conversation: The conversation's id.
    """

    def __init__(self, tracer: Tracer, model: str, request: ModelRequest, conversation: str) -> None:
        from opentelemetry.trace import SpanKind

        from noetic_py.core.guarded_span import GuardedSpan

        provider, colon, name = model.partition(":")
        name = name if colon else model
        self._span: GuardedSpan = GuardedSpan(tracer.start_span(f"chat {name}", kind=SpanKind.CLIENT))
        self._span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": name,
                "gen_ai.conversation.id": conversation,
                "gen_ai.output.type": "text" if request.output is None else "json",
                **_of_settings(request.settings),
            }
        )

    def active(self) -> AbstractContextManager[Span]:
        """Be the active span for a while."""
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, response: ModelResponse | None, failure: BaseException | None) -> None:
        """The call is over.

        Args:
            response: What the model has answered.
            failure: What the model has raised.
        """
        if response is not None:
            self._span.set_attributes(_of_response(response))
        if isinstance(failure, Exception):
            self._span.record_exception(failure)
            record_failure(self._span, failure, str(failure))
        self._span.end()


def _of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"gen_ai.request.{_SETTINGS[name]}": value for name, value in settings.items() if name in _SETTINGS}


def _of_response(response: ModelResponse) -> dict[str, Any]:
    attributes = {
        "gen_ai.response.finish_reasons": [response.stop_reason],
        "gen_ai.response.model": response.model,
        "gen_ai.response.id": response.response_id,
        **({} if response.usage is None else _of_usage(response.usage)),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _of_usage(usage: TokenUsage) -> dict[str, int | None]:
    return {f"gen_ai.usage.{name}": getattr(usage, part) for part, name in _USAGE.items()}


def describe_tool(span: Span, name: str, tool: Tool[..., Any, Any, Any] | None, call_id: str = "") -> None:
    """Make a step's span that of a tool.

    Args:
        span: The span of the step that calls it.
        name: The tool's name, as the caller has it.
        tool: The tool; `None` when there is none of the name.
        call_id: The model's id of the call.
    """
    span.update_name(f"execute_tool {name}")
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    if call_id:
        attributes["gen_ai.tool.call.id"] = call_id
    if tool is not None and tool.description:
        attributes["gen_ai.tool.description"] = tool.description
    span.set_attributes(attributes)


def record_failure(span: Span, error: BaseException | None, message: str) -> None:
    """Say that what a span stands for has failed.

    Args:
        span: The span.
        error: What was raised; `None` for what was refused.
        message: What is told of it.
    """
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", "refused" if error is None else type(error).__qualname__)
    span.set_status(StatusCode.ERROR, message)
