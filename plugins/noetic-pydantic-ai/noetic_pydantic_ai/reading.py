"""Items and events from the events of pydantic-ai's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import define, field
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from noetic_py import TokenUsage
from noetic_py.core.items import Item, Message, Refusal
from noetic_py.models import ItemDone, ModelEvent, ModelResponse, ReasoningPart, StopReason
from noetic_py.models import TextPart as SaidText
from noetic_py.models import ToolCallPart as SaidCall
from noetic_py.models.reading import BEGUN, AnswerReading
from noetic_pydantic_ai.parts import arguments_of, item_of

__all__ = ["PartReading"]

_REASONS: Final[Mapping[str | None, StopReason]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}


@define
class PartReading(AnswerReading):
    """Puts the parts of one answer together; pydantic-ai does, and this says what they are."""

    streamed: StreamedResponse = field(init=False)
    _ids: dict[int, str] = field(factory=dict[int, str], init=False)
    _calls: dict[int, tuple[str, str]] = field(factory=dict[int, tuple[str, str]], init=False)
    _items: list[Item] = field(factory=list[Item], init=False)
    _declined: bool = field(default=False, init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """The events of one event of pydantic-ai; those that it does not know mean nothing."""
        match event["event"]:
            case PartStartEvent(index=index, part=part):
                return self._started(index, part)
            case PartDeltaEvent(index=index, delta=delta):
                return self._changed(index, delta)
            case _:
                return ()

    def end(self) -> Iterable[ModelEvent]:
        """The answer is whole: pydantic-ai raises where it is not."""
        found = self.streamed.get()
        for index, part in enumerate(found.parts):
            item = item_of(part, self._id(index))
            if item is not None:
                self._items.append(item)
        words = (found.provider_details or {}).get("refusal")
        if isinstance(words, str) and words:
            self._declined = True
            self._items.append(Message(role="assistant", content=[Refusal(refusal=words)], id=self.new_id()))
        self.complete = True
        for item in self._items:
            yield ItemDone(item)

    def response(self) -> ModelResponse:
        """The whole answer."""
        found = self.streamed.get()
        reason: StopReason = _REASONS.get(found.finish_reason, "other")
        if self._declined:
            reason = "refusal"
        elif reason in ("stop", "other") and any(item.type == "function_call" for item in self._items):
            reason = "tool_calls"
        return ModelResponse(
            items=tuple(self._items),
            usage=_tokens(found.usage),
            stop_reason=reason,
            model=found.model_name,
            response_id=found.provider_response_id,
            # Only usages with searches have the attribute.
            server_tools={"web_search": searches} if (searches := getattr(found.usage, "web_searches", 0)) else {},
        )

    def _id(self, index: int) -> str:
        return self._ids.setdefault(index, self.new_id())

    def _started(self, index: int, part: Any) -> Iterator[ModelEvent]:
        self.unheard += BEGUN
        match part:
            case ToolCallPart(tool_call_id=call_id, tool_name=name):
                self._calls[index] = (call_id, name)
                arguments = arguments_of(part)
                if arguments:
                    yield SaidCall(call_id, name, arguments)
            case TextPart(content=text):
                if text:
                    yield SaidText(text, self._id(index))
            case ThinkingPart(content=text):
                if text:
                    yield ReasoningPart(text)
            case _:
                self.unheard += len(repr(part))

    def _changed(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        if isinstance(delta, TextPartDelta) and delta.content_delta:
            yield SaidText(delta.content_delta, self._id(index))
        elif isinstance(delta, ThinkingPartDelta):
            self.unheard += len(delta.signature_delta or "")
            if delta.content_delta:
                yield ReasoningPart(delta.content_delta)
        elif isinstance(delta, ToolCallPartDelta):
            piece = delta.args_delta if isinstance(delta.args_delta, str) else ""
            if piece and index in self._calls:
                yield SaidCall(*self._calls[index], piece)
            else:
                self.unheard += len(repr(delta.args_delta))


def _tokens(usage: Any) -> TokenUsage | None:
    """The tokens as the provider reports them; `None` where it does not."""
    if not usage.input_tokens and not usage.output_tokens:
        return None
    return TokenUsage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cached_input=usage.cache_read_tokens or None,
        cache_write=usage.cache_write_tokens or None,
        reasoning=usage.output_reasoning_tokens or None,
        input_audio=usage.input_audio_tokens or None,
        output_audio=usage.output_audio_tokens or None,
    )
