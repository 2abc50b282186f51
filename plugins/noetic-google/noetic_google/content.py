"""Items as the contents of a request."""

from __future__ import annotations

import json
import mimetypes
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from attrs import define, field

from noetic_google.reading import PART, SIGNATURE, THOUGHT
from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Opaque,
    Reasoning,
    Refusal,
)
from noetic_py.core.values import is_dict
from noetic_py.errors import ConfigError

__all__ = ["Content", "content_of", "contents_of", "is_before_3"]

_SYSTEM: Final = ("system", "developer")
_UNKNOWN: Final = ("", "application/octet-stream")
_BEFORE_3: Final = re.compile(r"(?:.*/)?gemini-[12](?!\d)")
# Models since 3 refuse a call without a signature; for the call of another model the API takes this in its place.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"


@define
class Content:
    """A conversation in the API's form.

    Attributes:
        system: The parts of the system instruction.
        turns: The parts of the contents, each with its role.
    """

    system: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    turns: list[tuple[str, dict[str, Any]]] = field(factory=list[tuple[str, dict[str, Any]]])


def is_before_3(model: str) -> bool:
    """Whether a model is of a generation before Gemini 3, which takes fewer forms."""
    return _BEFORE_3.match(model) is not None


def content_of(items: Sequence[Item], instructions: str | None, model: str) -> Content:
    """Items as parts.

    Messages of the system and the developer at the start are a part of the system instruction; later ones are the
    user's, since a conversation has no other place for them. Outputs of calls directly follow their calls, wherever
    they stand in the log. Extension items, and items and reasoning of other providers are left out.

    Args:
        items: The conversation.
        instructions: The system instructions.
        model: The provider's name of the model.

    Raises:
        ConfigError: An item holds content that the API cannot carry (code `"model-content"`).
    """
    opening = next((n for n, item in enumerate(items) if not _is_system(item)), len(items))
    outputs = {item.call_id: item for item in items if isinstance(item, FunctionCallOutput)}
    builder = _Builder(outputs, is_before_3(model))
    for item in items[opening:]:
        builder.add(item)
    builder.close()
    said = [part for item in items[:opening] if isinstance(item, Message) for part in _parts(item.content)]
    first = [{"text": instructions}] if instructions and instructions.strip() else []
    if not builder.turns:
        # A request without contents is refused.
        return Content(first, [("user", part) for part in said])
    return Content([*first, *said], builder.turns)


def contents_of(turns: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The contents: what one role says in one go is one of them."""
    return [
        {"role": role, "parts": [part for _, part in parts]} for role, parts in groupby(turns, lambda turn: turn[0])
    ]


def _is_system(item: Item) -> bool:
    return isinstance(item, Message) and item.role in _SYSTEM


@define
class _Builder:
    """The parts so far, and the calls whose outputs have to follow.

    Attributes:
        outputs: The outputs that have no place yet, by their calls.
        before_3: Whether the model is of a generation that needs no signatures and takes no files in outputs.
    """

    outputs: dict[str, FunctionCallOutput]
    before_3: bool
    turns: list[tuple[str, dict[str, Any]]] = field(factory=list[tuple[str, dict[str, Any]]])
    calls: list[FunctionCall] = field(factory=list[FunctionCall])
    names: dict[str, str] = field(factory=dict[str, str])

    def add(self, item: Item) -> None:
        match item:
            case Message(role="assistant"):
                self._say(*_parts(item.content))
            case FunctionCall():
                self._call(item)
            case Reasoning() if item.id.startswith(THOUGHT):
                self._say(_signed({"text": item.text, "thought": True}, item.encrypted_content))
            case Opaque() if item.kind == PART:
                self._say(json.loads(item.raw)["part"])
            case Message():
                self.close()
                self.turns += [("user", part) for part in _parts(item.content)]
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

    def _say(self, *parts: dict[str, Any]) -> None:
        self.turns += [("model", part) for part in parts]

    def _call(self, call: FunctionCall) -> None:
        signature: Any = (call.extra or {}).get(SIGNATURE)
        # Of calls side by side the first has the signature.
        if signature is None and not self.calls and not self.before_3:
            signature = _NO_SIGNATURE
        self.calls.append(call)
        self.names[call.call_id] = call.name
        part = {"functionCall": {"id": call.call_id, "name": call.name, "args": _arguments(call)}}
        self._say(_signed(part, signature))

    def _output(self, output: FunctionCallOutput) -> None:
        content = output.output
        files = [] if isinstance(content, str) else [_file(part) for part in content if _is_file(part)]
        name = self.names.get(output.call_id, "")
        response: dict[str, Any] = {"id": output.call_id, "name": name, "response": {"output": output.text}}
        if files and not self.before_3:
            response["parts"] = files
            files = []
        self.turns += [("user", {"functionResponse": response}), *[("user", file) for file in files]]


def _signed(part: dict[str, Any], signature: Any) -> dict[str, Any]:
    return part if signature is None else {**part, "thoughtSignature": signature}


def _arguments(call: FunctionCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    # The model wrote no object, and its output says so; the API takes nothing else.
    return arguments if is_dict(arguments) else {"not_an_object": call.arguments}


def _is_file(part: ContentPart) -> bool:
    return isinstance(part, InputImage | InputFile)


def _parts(parts: Iterable[ContentPart]) -> list[dict[str, Any]]:
    return [made for part in parts if (made := _part(part)) is not None]


def _part(part: ContentPart) -> dict[str, Any] | None:
    if _is_file(part):
        return _file(part)
    text = part.refusal if isinstance(part, Refusal) else str(getattr(part, "text", ""))
    signature: Any = (part.extra or {}).get(SIGNATURE)
    # The API refuses a text without words, unless a signature came with it.
    return _signed({"text": text}, signature) if text or signature is not None else None


def _file(part: Any) -> dict[str, Any]:
    """A file by its content or its address; the id of one that the provider holds is an address too."""
    address = part.url or part.file_id
    if address is not None:
        kind, _ = mimetypes.guess_type(address)
        return {"fileData": {"fileUri": address, **({"mimeType": kind} if kind else {})}}
    kind = (part.media_type or "").partition(";")[0]
    if kind in _UNKNOWN:
        raise ConfigError(
            "Gemini takes no file of an unknown type",
            code="model-content",
            hint='say what it is: media_type="application/pdf", or a filename= with an ending that says it',
        )
    return {"inlineData": {"mimeType": kind, "data": b64encode(part.data).decode()}}
