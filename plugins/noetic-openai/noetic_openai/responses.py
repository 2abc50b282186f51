"""The Responses API: requests from items, items from a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from attrs import define, field

from noetic_openai.caching import UNTOLD, Caching, mark
from noetic_openai.usage import money, tokens_of
from noetic_openai.wire import Server, add_extra, output_schema, tool_fields, typed
from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import from_wire, to_wire
from noetic_py.core.items import Extension, FunctionCall, Item, Message, Opaque, Reasoning, Refusal
from noetic_py.core.secrets import revealed
from noetic_py.errors import CodecError, LimitExceeded
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
from noetic_py.models.reading import BEGUN, AnswerReading, Malformed, ProviderError, array, mapping, text

__all__ = ["ResponsesReading", "responses_input", "responses_request"]

_ENCRYPTED = "reasoning.encrypted_content"
_REASONS = re.compile(r"(o\d|gpt-[5-9]|codex)")
# The provider's own ids begin so; it refuses others, and takes items without an id.
_OWN_IDS: Mapping[str, str] = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
}
# How types of items end that other plugins make of what their providers' tools do.
_FOREIGN = ("_part", "_tool_use", "_tool_result", "container_upload")


# ---------------------------------------------------------------------------------------------------- requests


def responses_request(request: ModelRequest, model: str, server: Server, caching: Caching = UNTOLD) -> dict[str, Any]:
    """The parameters of the SDK's `responses.create` for a request.

    Args:
        request: What to ask.
        model: The provider's name of the model.
        server: Where it is asked.
        caching: The cache settings for the provider.
    """
    settings = request.settings
    params: dict[str, Any] = {
        "model": model,
        "input": _marked(request, server, caching),
        "stream": True,
        "store": server.store,
        **tool_fields(request, nested=False),
    }
    if request.instructions is not None:
        params["instructions"] = request.instructions
    if caching.key and request.cache_key is not None:
        params["prompt_cache_key"] = request.cache_key
    named = ("temperature", "top_p", "max_output_tokens")
    params.update({name: value for name, value in settings.items() if name in named})
    if "reasoning_effort" in settings:
        params["reasoning"] = {"effort": settings["reasoning_effort"]}
    if _wants_encrypted(request, model, server):
        params["include"] = [_ENCRYPTED]
    extra = _extra(request, server)
    if request.output is not None:
        schema = output_schema(request.output)
        if server.schema_in_extra_body:
            extra["json_schema"] = schema["schema"]
        else:
            params["text"] = {"format": {"type": "json_schema", **schema}}
    add_extra(params, extra)
    return params


def _marked(request: ModelRequest, server: Server, caching: Caching) -> list[dict[str, Any]]:
    """The input, with marks in what the next call will begin with too."""
    wires = responses_input(request.items, server)
    if caching.mark is None:
        return wires
    for wire in wires:
        # The form is the same for all, marked or not, so that it is the same in the next call.
        if wire.get("type") == _OUTPUT and isinstance(wire["output"], str):
            wire["output"] = [{"type": "input_text", "text": wire["output"]}]
    stable = sum(_goes(item, server) for item in request.items[: request.stable])
    mark(wires, stable, caching, is_input=_is_input)
    return wires


_OUTPUT = "function_call_output"


def _is_input(wire: Mapping[str, Any]) -> bool:
    return wire.get("type") == _OUTPUT or (wire.get("type") == "message" and wire.get("role") != "assistant")


def responses_input(items: Sequence[Item], server: Server) -> list[dict[str, Any]]:
    """Items as the API's input.

    Extension items are the program's own and are left out. So is reasoning that the provider has neither stored nor
    encrypted, since it could not be taken back, and what tools of other providers have done. Answers of another model
    go without what its provider wants back with them, such as signatures, since OpenAI refuses unknown fields.

    Args:
        items: The conversation.
        server: Where it goes.
    """
    return [_out(item, server) for item in items if _goes(item, server)]


def _goes(item: Item, server: Server) -> bool:
    if isinstance(item, Extension) or (isinstance(item, Opaque) and item.kind.endswith(_FOREIGN)):
        return False
    if isinstance(item, Reasoning) and server.is_openai and not item.id.startswith(_OWN_IDS["reasoning"]):
        return False
    if isinstance(item, Reasoning) and not item.encrypted_content:
        return server.store or (not server.is_openai and bool(item.content or item.summary))
    return True


def _out(item: Item, server: Server) -> dict[str, Any]:
    prefix = _OWN_IDS.get(item.type)
    foreign = prefix is not None and not item.id.startswith(prefix)
    wire: dict[str, Any] = dict(to_wire(_plain(item) if foreign and server.is_openai else item))
    if foreign:
        wire.pop("id", None)
        wire.pop("status", None)
    if item.type == "reasoning":
        wire.pop("status", None)
    for name in ("content", "output"):
        if isinstance(wire.get(name), list):
            wire[name] = [_file(part) for part in wire[name]]
    return wire


def _plain(item: Item) -> Item:
    """An answer of another model without the fields that its provider wants back."""
    match item:
        case Message(role="assistant"):
            return attrs.evolve(item, content=[attrs.evolve(part, extra=None) for part in item.content], extra=None)
        case FunctionCall():
            return attrs.evolve(item, extra=None)
        case _:
            return item


def _file(part: dict[str, Any]) -> dict[str, Any]:
    """A content part; a file's bytes get the form that the API wants, with a name and a media type."""
    data = part.get("file_data")
    if part.get("type") != "input_file" or data is None:
        return part
    filename = part.get("filename") or "file"
    return {**part, "filename": filename, "file_data": data if data.startswith("data:") else typed(data, filename)}


def _extra(request: ModelRequest, server: Server) -> dict[str, Any]:
    settings = request.settings
    extra: dict[str, Any] = {}
    if "stop" in settings:
        # The API itself has no such field: a provider that cannot take it says so, which is better than not stopping.
        extra["stop"] = list(settings["stop"])
    if "seed" in settings and not server.is_openai:
        extra["seed"] = settings["seed"]
    extra.update(revealed(settings.get("extra", {})))
    return extra


def _wants_encrypted(request: ModelRequest, model: str, server: Server) -> bool:
    # Models that do not reason answer the request for encrypted reasoning with an error.
    if server.store or not server.is_openai:
        return False
    return "reasoning_effort" in request.settings or _REASONS.match(model) is not None


# ---------------------------------------------------------------------------------------------------- answers


@define
class ResponsesReading(AnswerReading):
    """Puts the events of one response together."""

    _calls: dict[str, tuple[str, str]] = field(factory=dict[str, tuple[str, str]], init=False)
    _items: list[Item] = field(factory=list[Item], init=False)
    _final: Mapping[str, Any] = field(factory=dict[str, Any], init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """The events of one event of the API; those that it does not know mean nothing.

        Raises:
            ProviderError: The event is an error.
            Malformed: The event is not as it should be.
        """
        match text(event, "type"):
            case "response.output_text.delta":
                return (TextPart(text(event, "delta"), text(event, "item_id") or None),)
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                return (ReasoningPart(text(event, "delta"), text(event, "item_id") or None),)
            case "response.function_call_arguments.delta":
                return self._arguments(event)
            case "response.output_item.added":
                return self._added(event)
            case "response.output_item.done":
                return self._done(event)
            case "response.completed" | "response.incomplete":
                return self._finished(event)
            case "response.failed" | "error":
                response = mapping(event.get("response") or {}, "response")
                raise ProviderError(response.get("error") or event.get("error") or event)
            case _:
                self.check(event)
                return ()

    def end(self) -> Iterable[ModelEvent]:
        """The stream ended; the last event of a whole answer would have come before.

        Raises:
            Malformed: Always.
        """
        raise Malformed("the stream ended before the answer was complete")

    def response(self) -> ModelResponse:
        """The whole answer."""
        final = self._final
        return ModelResponse(
            items=tuple(self._items),
            usage=_usage(final),
            cost=money(mapping(final.get("usage") or {}, "usage"), "cost"),
            stop_reason=self._stop_reason(),
            model=text(final, "model") or None,
            response_id=text(final, "id") or None,
            server_tools=_server_tools(self._items),
        )

    def _stop_reason(self) -> StopReason:
        if any(isinstance(part, Refusal) for item in self._items if isinstance(item, Message) for part in item.content):
            return "refusal"
        if self._final.get("status") == "incomplete":
            details = mapping(self._final.get("incomplete_details") or {}, "incomplete_details")
            return _INCOMPLETE.get(text(details, "reason"), "other")
        return "tool_calls" if any(isinstance(item, FunctionCall) for item in self._items) else "stop"

    def _arguments(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        call_id, name = self._calls.get(text(event, "item_id"), ("", ""))
        if not call_id:
            raise Malformed("arguments of a call that was not announced")
        return (ToolCallPart(call_id, name, text(event, "delta")),)

    def _added(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        item = mapping(event.get("item"), "item")
        if item.get("type") == "function_call":
            own, call_id, name = text(item, "id"), text(item, "call_id"), text(item, "name")
            self._calls[own] = (call_id, name)
            self.unheard += BEGUN + len(own) + len(call_id) + len(name)
        return ()

    def _done(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        item = _in(event.get("item"))
        self._items.append(item)
        return (ItemDone(item),)

    def _finished(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        self._final = mapping(event.get("response"), "response")
        output = array(self._final.get("output"), "output")
        # Some servers send an item only here.
        late = [_in(item) for item in output] if not self._items else []
        self._items.extend(late)
        _usage(self._final)
        self.complete = True
        return [ItemDone(item) for item in late]


_INCOMPLETE: Mapping[str, StopReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


def _in(item: object) -> Item:
    try:
        return from_wire(dict(mapping(item, "item")))
    except (CodecError, LimitExceeded) as error:
        raise Malformed(f"an item does not fit: {error.message}") from None


_CHARGED: Mapping[str, str] = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_interpreter",
}
"""Items of tools that OpenAI charges for by their use, and the tools; no usage counts them."""


def _server_tools(items: Sequence[Item]) -> dict[str, int]:
    """The uses of OpenAI's own tools; of what a search does, opening a page and looking in it is not charged."""
    uses: dict[str, int] = {}
    for item in items:
        tool = _CHARGED.get(item.kind) if isinstance(item, Opaque) else None
        if isinstance(item, Opaque) and tool is not None:
            action = mapping(mapping(json.loads(item.raw), "item").get("action") or {}, "action")
            uses[tool] = uses.get(tool, 0) + (text(action, "type") not in ("open_page", "find_in_page"))
    return {tool: count for tool, count in uses.items() if count}


def _usage(response: Mapping[str, Any]) -> TokenUsage | None:
    if response.get("usage") is None:
        return None
    usage = mapping(response["usage"], "usage")
    return tokens_of(usage, ("input_tokens", "output_tokens"), ("input_tokens_details", "output_tokens_details"))
