"""Items as the content blocks of messages."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from attrs import define, field

from noetic_anthropic.reading import REDACTED, THINKING
from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
)
from noetic_py.core.values import is_dict
from noetic_py.errors import ConfigError

__all__ = ["Content", "content_of", "messages_of"]

_SYSTEM = ("system", "developer")
_PDF = "application/pdf"
# Blocks of tools that the provider runs itself; items of other providers have other names.
_OWN_BLOCKS = ("_tool_use", "_tool_result", "container_upload")
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


@define
class Content:
    """A conversation in the API's form.

    Attributes:
        system: The blocks of the system prompt.
        turns: The content blocks of the messages, each with its role.
    """

    system: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    turns: list[tuple[str, dict[str, Any]]] = field(factory=list[tuple[str, dict[str, Any]]])


def content_of(items: Sequence[Item], instructions: str | None = None) -> Content:
    """Items as content blocks.

    Messages of the system and the developer at the start are a part of the system prompt; later ones are the user's,
    for not every model takes a system message in the middle. Outputs of calls directly follow their calls, wherever
    they stand in the log. Extension items, items of other providers, and reasoning that Anthropic has not signed are
    left out.

    Args:
        items: The conversation.
        instructions: The system instructions.

    Raises:
        ConfigError: An item holds content that the API cannot carry (code `"model-content"`).
    """
    opening = next((n for n, item in enumerate(items) if not _is_system(item)), len(items))
    builder = _Builder({item.call_id: item for item in items if isinstance(item, FunctionCallOutput)})
    for item in items[opening:]:
        builder.add(item)
    builder.close()
    said = [block for item in items[:opening] if isinstance(item, Message) for block in _blocks(item.content)]
    if not builder.turns:
        # A request without a message is refused.
        return Content(_texts(instructions), [("user", block) for block in said])
    return Content([*_texts(instructions), *said], builder.turns)


def messages_of(turns: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The messages: what one role says in one go is one of them."""
    return [
        {"role": role, "content": [block for _, block in blocks]}
        for role, blocks in groupby(turns, lambda turn: turn[0])
    ]


def _is_system(item: Item) -> bool:
    return isinstance(item, Message) and item.role in _SYSTEM


def _texts(text: str | None) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text and text.strip() else []


@define
class _Builder:
    """The content blocks so far, and the calls whose outputs have to follow.

    Attributes:
        outputs: The outputs that have no place yet, by their calls.
    """

    outputs: dict[str, FunctionCallOutput]
    turns: list[tuple[str, dict[str, Any]]] = field(factory=list[tuple[str, dict[str, Any]]])
    calls: list[FunctionCall] = field(factory=list[FunctionCall])

    def add(self, item: Item) -> None:
        match item:
            case Message(role="assistant"):
                self.turns += [("assistant", block) for block in _blocks(item.content)]
            case FunctionCall():
                self.calls.append(item)
                self.turns.append(("assistant", _call(item)))
            case Reasoning() if (block := _thought(item)) is not None:
                self.turns.append(("assistant", block))
            case Opaque() if item.type.endswith(_OWN_BLOCKS):
                self.turns.append(("assistant", json.loads(item.raw)))
            case Message():
                self.close()
                self.turns += [("user", block) for block in _blocks(item.content)]
            case FunctionCallOutput():
                self.close()
                if item.call_id in self.outputs:
                    self._output(self.outputs.pop(item.call_id))
            case _:
                pass

    def close(self) -> None:
        """Put the outputs of the last calls behind them."""
        calls, self.calls = self.calls, []
        for call in calls:
            if call.call_id in self.outputs:
                self._output(self.outputs.pop(call.call_id))

    def _output(self, output: FunctionCallOutput) -> None:
        content = output.output if isinstance(output.output, str) else _blocks(output.output)
        block = {"type": "tool_result", "tool_use_id": _id(output.call_id), "content": content}
        self.turns.append(("user", block))


def _id(call_id: str) -> str:
    # Other providers put characters into ids that this one refuses.
    return _NOT_IN_IDS.sub("_", call_id)


def _call(call: FunctionCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not is_dict(arguments):
        # The model wrote no object, and its output says so; the API takes nothing else.
        arguments = {"not_an_object": call.arguments}
    return {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": arguments}


def _thought(item: Reasoning) -> dict[str, Any] | None:
    """Reasoning as it came, which alone is taken back."""
    if item.id.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": item.encrypted_content or ""}
    if item.id.startswith(THINKING):
        thinking = "".join(part.text for part in item.content if isinstance(part, OutputText))
        return {"type": "thinking", "thinking": thinking, "signature": item.encrypted_content or ""}
    return None


def _blocks(parts: Iterable[ContentPart]) -> list[dict[str, Any]]:
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: ContentPart) -> dict[str, Any] | None:
    match part:
        case InputImage():
            return {"type": "image", "source": _source(part.url, part.file_id, part.data, part.media_type or "")}
        case InputFile():
            return _document(part)
        case _:
            text = part.refusal if isinstance(part, Refusal) else str(getattr(part, "text", ""))
            if not text.strip():
                # The API refuses blocks that hold nothing but spaces.
                return None
            citations = (part.extra or {}).get("citations")
            return {"type": "text", "text": text, **({"citations": citations} if citations else {})}


def _document(part: InputFile) -> dict[str, Any]:
    kind = (part.media_type or "").partition(";")[0]
    if part.data is not None and kind.startswith("image/"):
        return {"type": "image", "source": _source(None, None, part.data, kind)}
    title = {"title": part.filename} if part.filename else {}
    if part.data is not None and kind.startswith("text/"):
        text = part.data.decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    if part.data is not None and kind != _PDF:
        raise ConfigError(
            f"Claude takes no file of the type {kind!r}",
            code="model-content",
            hint="give it as a PDF, an image or a text, with media_type= or a filename= that says which",
        )
    return {"type": "document", "source": _source(part.url, part.file_id, part.data, _PDF), **title}


def _source(url: str | None, file_id: str | None, data: bytes | None, media_type: str) -> dict[str, Any]:
    if data is not None:
        return {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
    return {"type": "url", "url": url} if url is not None else {"type": "file", "file_id": file_id}
