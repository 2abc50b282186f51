"""Items from the events of a message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
from attrs import define, field

from noetic_py import TokenUsage
from noetic_py.core.items import ContentPart, FunctionCall, Item, Message, Opaque, OutputText, Reasoning, Refusal
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelResponse,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
)
from noetic_py.models.reading import BEGUN, AnswerReading, Malformed, ProviderError, array, mapping, text

__all__ = ["REDACTED", "THINKING", "MessageReading"]

THINKING = "thinking_"
"""How the ids of reasoning begin that Anthropic has signed; it takes back no other."""
REDACTED = "redacted_thinking_"
"""The prefix of ids of reasoning that Anthropic has encrypted."""

_REASONS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "paused",
}


@define
class _Block:
    """A content block that is being streamed.

    Attributes:
        start: The block as it began.
        pieces: The pieces of its text, its thinking or its input.
        signature: The pieces of its signature.
        citations: Its citations.
    """

    start: Mapping[str, Any]
    pieces: list[str] = field(factory=list[str])
    signature: list[str] = field(factory=list[str])
    citations: list[Any] = field(factory=list[Any])

    @property
    def kind(self) -> str:
        return text(self.start, "type")

    @property
    def joined(self) -> str:
        return "".join(self.pieces)


@define
class MessageReading(AnswerReading):
    """Puts the events of one message together.

    Texts that follow each other are one message. An item is reported when the next one begins, for the last one is
    incomplete when the answer was cut off.
    """

    begun: bool = field(default=False, init=False)
    _blocks: dict[int, _Block] = field(factory=dict[int, _Block], init=False)
    _parts: list[ContentPart] = field(factory=list[ContentPart], init=False)
    _message_id: str | None = field(default=None, init=False)
    _held: Item | None = field(default=None, init=False)
    _items: list[Item] = field(factory=list[Item], init=False)
    _usage: dict[str, Any] = field(factory=dict[str, Any], init=False)
    _reason: str = field(default="", init=False)
    _model: str | None = field(default=None, init=False)
    _id: str | None = field(default=None, init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """The events of one event of the API; those that it does not know mean nothing.

        Raises:
            ProviderError: The event is an error.
            Malformed: The event is not as it should be.
        """
        match text(event, "type"):
            case "message_start":
                return self._begin(mapping(event.get("message"), "message"))
            case "content_block_start":
                return self._open(event)
            case "content_block_delta":
                return self._delta(self._block(event), mapping(event.get("delta"), "delta"))
            case "content_block_stop":
                return self._close(event)
            case "message_delta":
                return self._stopped(event)
            case "message_stop":
                self.complete = True
                return ()
            case "error":
                raise ProviderError(event)
            case _:
                return ()

    def end(self) -> Iterable[ModelEvent]:
        """The stream ended; the last event of a whole answer would have come before.

        Raises:
            Malformed: Always.
        """
        raise Malformed("the stream ended before the answer was complete")

    def response(self) -> ModelResponse:
        """The whole answer."""
        return ModelResponse(
            items=tuple(self._items),
            usage=_tokens(self._usage),
            stop_reason=_REASONS.get(self._reason, "other"),
            model=self._model,
            response_id=self._id,
            server_tools=_server_tools(self._usage),
        )

    # -- events

    def _begin(self, message: Mapping[str, Any]) -> Iterable[ModelEvent]:
        self.begun = True
        self._model, self._id = text(message, "model") or None, text(message, "id") or None
        self._count(message)
        return ()

    def _open(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        block = _Block(mapping(event.get("content_block"), "content_block"))
        self._blocks[_index(event)] = block
        # The input of a call, or what a tool of the provider's has found, may stand in here.
        self.unheard += BEGUN + len(repr(block.start))
        if block.kind == "text":
            self._message_id = self._message_id or self.new_id()
            yield from self._delta(block, {"type": "text_delta", "text": text(block.start, "text")})
        else:
            yield from self._end_message()
        if block.kind == "thinking":
            yield from self._delta(block, {"type": "thinking_delta", "thinking": text(block.start, "thinking")})

    def _delta(self, block: _Block, delta: Mapping[str, Any]) -> Iterator[ModelEvent]:
        match text(delta, "type"):
            case "text_delta" if piece := text(delta, "text"):
                block.pieces.append(piece)
                yield TextPart(piece, self._message_id)
            case "thinking_delta" if piece := text(delta, "thinking"):
                block.pieces.append(piece)
                yield ReasoningPart(piece)
            case "input_json_delta" if piece := text(delta, "partial_json"):
                block.pieces.append(piece)
                if block.kind == "tool_use":
                    yield ToolCallPart(text(block.start, "id"), text(block.start, "name"), piece)
                else:
                    self.unheard += len(piece)
            case "signature_delta":
                block.signature.append(text(delta, "signature"))
                self.unheard += len(block.signature[-1])
            case "citations_delta":
                block.citations.append(delta.get("citation"))
                self.unheard += len(repr(delta))
            case _:
                pass

    def _close(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        block = self._block(event)
        del self._blocks[_index(event)]
        if block.kind == "text":
            cited = {"citations": [*array(block.start.get("citations"), "citations"), *block.citations]}
            if block.joined:
                self._parts.append(OutputText(text=block.joined, extra=cited if cited["citations"] else None))
        else:
            yield from self._hold(self._item(block))

    def _stopped(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        delta = mapping(event.get("delta"), "delta")
        self._reason = text(delta, "stop_reason") or self._reason
        self._count(event)
        if self._reason == "refusal":
            details = mapping(delta.get("stop_details") or {}, "stop_details")
            words = text(details, "explanation") or "the model declined to answer"
            self._parts.append(Refusal(refusal=words))
        yield from self._end_message()
        if self._held is not None and _REASONS.get(self._reason) == "length":
            self._held = attrs.evolve(self._held, status="incomplete")
        yield from self._hold(None)

    # -- items

    def _item(self, block: _Block) -> Item:
        start, joined = block.start, block.joined
        match block.kind:
            case "tool_use":
                arguments = joined or json.dumps(start.get("input") or {})
                return FunctionCall(name=text(start, "name"), arguments=arguments, call_id=text(start, "id"))
            case "thinking":
                signature = text(start, "signature") + "".join(block.signature)
                return Reasoning(content=joined or (), encrypted_content=signature, id=THINKING + self.new_id())
            case "redacted_thinking":
                return Reasoning(encrypted_content=text(start, "data"), id=REDACTED + self.new_id())
            case kind if kind:
                whole = {**start, "input": _parsed(joined)} if joined else start
                return Opaque(raw=json.dumps(whole, ensure_ascii=False).encode(errors="surrogatepass"))
            case _:
                raise Malformed("a content block has no type")

    def _end_message(self) -> Iterator[ModelEvent]:
        """Make one message of the texts that have come."""
        parts, self._parts = self._parts, []
        made, self._message_id = self._message_id, None
        if parts:
            yield from self._hold(Message(role="assistant", content=parts, id=made))

    def _hold(self, item: Item | None) -> Iterator[ModelEvent]:
        """Tell of the item before."""
        before, self._held = self._held, item
        if before is not None:
            self._items.append(before)
            yield ItemDone(before)

    def _block(self, event: Mapping[str, Any]) -> _Block:
        found = self._blocks.get(_index(event))
        if found is None:
            raise Malformed("a piece of a content block that did not begin")
        return found

    def _count(self, holder: Mapping[str, Any]) -> None:
        """Note the tokens so far: the figures of later events are those of all of the answer."""
        usage = mapping(holder.get("usage") or {}, "usage")
        self._usage.update({name: value for name, value in usage.items() if value is not None})


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise Malformed("a content block has no index")
    return index


def _parsed(joined: str) -> Any:
    try:
        return json.loads(joined)
    except (ValueError, RecursionError):
        raise Malformed("a tool's input is not JSON") from None


def _server_tools(usage: Mapping[str, Any]) -> dict[str, int]:
    """The uses of Anthropic's own tools that it reports; what it fetches costs its tokens only."""
    counts = mapping(usage.get("server_tool_use") or {}, "server_tool_use")
    uses = {name.removesuffix("_requests"): count for name, count in counts.items() if name != "web_fetch_requests"}
    return {name: count for name, count in uses.items() if isinstance(count, int) and count > 0}


def _tokens(usage: Mapping[str, Any]) -> TokenUsage | None:
    """A usage as the provider reports it; `None` where that does not say how much was read and written.

    A value that is not a number of tokens is passed on as it is: the engine refuses it by name.
    """
    fresh, written = usage.get("input_tokens"), usage.get("output_tokens")
    if fresh is None or written is None:
        return None
    cached, stored = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    parts: list[Any] = [fresh, cached or 0, stored or 0]
    odd = [part for part in parts if type(part) is not int]
    by_time = mapping(usage.get("cache_creation") or {}, "cache_creation")
    details = mapping(usage.get("output_tokens_details") or {}, "output_tokens_details")
    return TokenUsage(
        input=odd[0] if odd else sum(parts),
        output=written,
        cached_input=cached,
        cache_write=stored,
        cache_write_1h=by_time.get("ephemeral_1h_input_tokens"),
        reasoning=details.get("thinking_tokens"),
    )
