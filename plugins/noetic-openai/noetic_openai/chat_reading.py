"""Chat completions: items from a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from attrs import define, field

from noetic_openai.usage import money, tokens_of
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import ContentPart, FunctionCall, Item, Message, OutputText, Reasoning, Refusal, Status
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelResponse,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
)
from noetic_py.models.reading import BEGUN, AnswerReading, Malformed, array, mapping, text

__all__ = ["ChatReading"]

_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


@define
class _Call:
    call_id: str
    name: str
    arguments: str = ""


@define
class ChatReading(AnswerReading):
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
        choices = array(event.get("choices"), "choices")
        if not choices:
            return []
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
            self.unheard += len(refused)
        for piece in array(delta.get("tool_calls"), "tool_calls"):
            yield from self._piece(mapping(piece, "tool_calls"))

    def _piece(self, piece: Mapping[str, Any]) -> Iterator[ModelEvent]:
        index = piece.get("index", 0)
        if not isinstance(index, int):
            raise Malformed("a tool call's index is not a number")
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
                self.unheard += BEGUN + len(call_id) + len(name)
        arguments = text(function, "arguments")
        if arguments:
            call.arguments += arguments
            yield ToolCallPart(call.call_id, call.name, arguments)

    def _latest(self) -> _Call:
        if not self._calls:
            raise Malformed("a tool call has no name")
        return self._calls[max(self._calls)]

    def _count(self, usage: Mapping[str, Any]) -> None:
        names, details = ("prompt_tokens", "completion_tokens"), ("prompt_tokens_details", "completion_tokens_details")
        self._usage = tokens_of(usage, names, details)
        self._cost = money(usage, "cost")
