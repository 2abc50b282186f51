"""Items from the chunks of an answer."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from attrs import define, field

from noetic_py import TokenUsage
from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    Item,
    JsonValue,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
)
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelResponse,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
)
from noetic_py.models.reading import BEGUN, AnswerReading, Malformed, ProviderError

if TYPE_CHECKING:
    from google.genai.types import (
        Candidate,
        GenerateContentResponse,
        GenerateContentResponseUsageMetadata,
        ModalityTokenCount,
        Part,
    )
    from google.genai.types import FunctionCall as SentCall

__all__ = ["PART", "SIGNATURE", "THOUGHT", "ChunkReading"]

THOUGHT: Final = "google_thought_"
"""How the ids of reasoning of this provider begin; it gets back no other."""
SIGNATURE: Final = "thought_signature"
"""Where texts and calls keep the signature, in Base64, with which they have to go back."""
PART: Final = "google_part"
"""The type of items for all that is neither text nor a call, such as what tools of the provider's do."""

_REASONS: Final[Mapping[str, StopReason]] = {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length"}
_WITHHELD: Final = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "ESCALATION",
        "PUP_LIMITED_DISABLED",
        "MODEL_ARMOR",
    }
)
# The model has written what cannot be used; another try often brings something else.
_UNUSABLE: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
_FOUND: Final = ("grounding_metadata", "citation_metadata", "url_context_metadata")


@define
class ChunkReading(AnswerReading):
    """Puts the chunks of one answer together.

    Texts that follow each other are one message, and thoughts that do are one item. What carries a signature is a part
    of its own, since it has to go back as it came. An item is reported when the next one begins, for the last one is
    incomplete when the answer was cut off.
    """

    begun: bool = field(default=False, init=False)
    _texts: list[str] = field(factory=list[str], init=False)
    _thoughts: list[str] = field(factory=list[str], init=False)
    _parts: list[ContentPart] = field(factory=list[ContentPart], init=False)
    _message_id: str | None = field(default=None, init=False)
    _held: Item | None = field(default=None, init=False)
    _items: list[Item] = field(factory=list[Item], init=False)
    _queries: set[str] = field(factory=set[str], init=False)
    _is_grounded: bool = field(default=False, init=False)
    _found: dict[str, JsonValue] = field(factory=dict[str, JsonValue], init=False)
    _usage: GenerateContentResponseUsageMetadata | None = field(default=None, init=False)
    _reason: str = field(default="", init=False)
    _declined: str | None = field(default=None, init=False)
    _model: str | None = field(default=None, init=False)
    _id: str | None = field(default=None, init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """The events of one chunk, which stands in `event["chunk"]`.

        Raises:
            ProviderError: The model has written what cannot be used.
            Malformed: The chunk is not as it should be.
        """
        self.begun = True
        chunk: GenerateContentResponse = event["chunk"]
        self._model = chunk.model_version or self._model
        self._id = chunk.response_id or self._id
        # Each chunk's figures are those of all of the answer so far.
        self._usage = chunk.usage_metadata or self._usage
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            self._declined = feedback.block_reason_message or f"the prompt was blocked: {_name(feedback.block_reason)}"
        for candidate in (chunk.candidates or ())[:1]:
            yield from self._said(candidate)

    def end(self) -> Iterable[ModelEvent]:
        """The stream ended, which is how a whole answer ends.

        Raises:
            Malformed: There was no reason why the model stopped.
        """
        if not self._reason and self._declined is None:
            raise Malformed("the stream ended before the answer was complete")
        self.complete = True
        yield from self._end_thoughts()
        self._end_text(None)
        if self._found and self._parts:
            self._parts[-1] = attrs.evolve(self._parts[-1], extra={**(self._parts[-1].extra or {}), **self._found})
        if self._declined is not None:
            self._parts.append(Refusal(refusal=self._declined))
        yield from self._end_message()
        if self._held is not None and _REASONS.get(self._reason) == "length":
            self._held = attrs.evolve(self._held, status="incomplete")
        yield from self._hold(None)

    def response(self) -> ModelResponse:
        """The whole answer."""
        reason: StopReason = _REASONS.get(self._reason, "other")
        if self._declined is not None:
            reason = "refusal"
        elif reason == "stop" and any(isinstance(item, FunctionCall) for item in self._items):
            reason = "tool_calls"
        return ModelResponse(
            items=tuple(self._items),
            usage=_tokens(self._usage),
            stop_reason=reason,
            model=self._model,
            response_id=self._id,
            server_tools=self._server_tools(),
        )

    def _server_tools(self) -> dict[str, int]:
        """The searches that Google charges for: each query, and for models before Gemini 3 each grounded answer."""
        older = (self._model or "").startswith(("gemini-1", "gemini-2"))
        count = int(self._is_grounded) if older else len(self._queries)
        return {"web_search": count} if count and self._queries else {}

    # -- chunks

    def _said(self, candidate: Candidate) -> Iterator[ModelEvent]:
        for part in (candidate.content and candidate.content.parts) or ():
            yield from self._part(part)
        for name in _FOUND:
            found = getattr(candidate, name)
            if found is not None:
                self._found[name] = _plain(found)
                self.unheard += len(repr(self._found[name]))
        grounding = candidate.grounding_metadata
        if grounding is not None:
            self._queries.update(query for query in grounding.web_search_queries or () if query)
            self._is_grounded |= any(each.web is not None for each in grounding.grounding_chunks or ())
        if candidate.finish_reason is None:
            return
        self._reason = _name(candidate.finish_reason)
        words = candidate.finish_message
        if self._reason in _UNUSABLE:
            raise ProviderError(f"{self._reason}: {words}" if words else self._reason)
        if self._reason in _WITHHELD:
            self._declined = words or f"the provider withheld the answer: {self._reason}"

    def _part(self, part: Part) -> Iterator[ModelEvent]:
        signature = None if part.thought_signature is None else b64encode(part.thought_signature).decode()
        self.unheard += len(signature or "")
        if part.function_call is not None:
            yield from self._call(part.function_call, signature)
        elif part.text is not None or not _plain(part).keys() - {"thoughtSignature"}:
            # A piece that says nothing and has no signature ends nothing.
            if part.text or signature is not None:
                yield from (self._thought if part.thought else self._text)(part.text or "", signature)
        else:
            raw = json.dumps({"type": PART, "part": _plain(part)}, ensure_ascii=False)
            self.unheard += BEGUN + len(raw)
            yield from self._end_thoughts()
            yield from self._end_message()
            yield from self._hold(Opaque(raw=raw.encode(errors="surrogatepass")))

    def _thought(self, text: str, signature: str | None) -> Iterator[ModelEvent]:
        yield from self._end_message()
        if signature is not None:
            yield from self._end_thoughts()
        self._thoughts.append(text)
        if text:
            yield ReasoningPart(text)
        if signature is not None:
            yield from self._end_thoughts(signature)

    def _text(self, text: str, signature: str | None) -> Iterator[ModelEvent]:
        yield from self._end_thoughts()
        self._message_id = self._message_id or self.new_id()
        if signature is not None:
            self._end_text(None)
        self._texts.append(text)
        if text:
            yield TextPart(text, self._message_id)
        if signature is not None:
            self._end_text(signature)

    def _call(self, call: SentCall, signature: str | None) -> Iterator[ModelEvent]:
        if call.partial_args or call.will_continue:
            raise Malformed("a call came in parts; leave stream_function_call_arguments out of the settings")
        yield from self._end_thoughts()
        yield from self._end_message()
        self.unheard += BEGUN
        found = FunctionCall(
            name=call.name or "",
            arguments=json.dumps(call.args or {}, ensure_ascii=False),
            call_id=call.id or self.new_id(),
            extra=None if signature is None else {SIGNATURE: signature},
        )
        yield ToolCallPart(found.call_id, found.name, found.arguments)
        yield from self._hold(found)

    # -- items

    def _end_text(self, signature: str | None) -> None:
        """Make one part of the pieces that have come."""
        if self._texts:
            extra = None if signature is None else {SIGNATURE: signature}
            self._parts.append(OutputText(text="".join(self._texts), extra=extra))
            self._texts = []

    def _end_message(self) -> Iterator[ModelEvent]:
        """Make one message of the texts that have come."""
        self._end_text(None)
        parts, self._parts = self._parts, []
        made, self._message_id = self._message_id, None
        if parts:
            yield from self._hold(Message(role="assistant", content=parts, id=made))

    def _end_thoughts(self, signature: str | None = None) -> Iterator[ModelEvent]:
        """Make one item of the thoughts that have come."""
        thoughts, self._thoughts = "".join(self._thoughts), []
        if thoughts or signature is not None:
            made = THOUGHT + self.new_id()
            yield from self._hold(Reasoning(content=thoughts or (), encrypted_content=signature, id=made))

    def _hold(self, item: Item | None) -> Iterator[ModelEvent]:
        """Tell of the item before."""
        before, self._held = self._held, item
        if before is not None:
            self._items.append(before)
            yield ItemDone(before)


def _plain(value: Any) -> dict[str, Any]:
    """A value of the SDK in the API's own form."""
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _name(reason: Any) -> str:
    """A reason's name, also of one that the SDK does not know."""
    return str(getattr(reason, "value", reason))


def _tokens(usage: GenerateContentResponseUsageMetadata | None) -> TokenUsage | None:
    """The tokens as the provider reports them, which leaves out those of which there are none."""
    if usage is None or (usage.prompt_token_count is None and usage.candidates_token_count is None):
        return None
    # What the provider's own tools have read and what the model has thought are not in the figures of the rest.
    read, written = usage.prompt_tokens_details or [], usage.candidates_tokens_details or []
    return TokenUsage(
        input=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        output=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        cached_input=usage.cached_content_token_count,
        reasoning=usage.thoughts_token_count,
        input_audio=_of_kind(read, "AUDIO"),
        input_image=_of_kind(read, "IMAGE"),
        output_audio=_of_kind(written, "AUDIO"),
        output_image=_of_kind(written, "IMAGE"),
    )


def _of_kind(counts: Iterable[ModalityTokenCount], kind: str) -> int | None:
    found = [each.token_count or 0 for each in counts if each.modality is not None and _name(each.modality) == kind]
    return sum(found) if found else None
