"""Content of the protocol as content parts of noetic_py."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcp import types

from noetic_py import InputFile, InputImage, InputText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from noetic_py.core.items import ContentPart

__all__ = ["InvalidContent", "error_text", "message_part", "resource_part", "tool_output"]

_ERROR_TEXT = 2000
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9.+-]{0,100}")


class InvalidContent(Exception):
    """Content that is not valid, or larger than it may be."""

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


def tool_output(result: types.CallToolResult, limit: int) -> str | list[ContentPart]:
    """The output of a call: one text if all of it is text, otherwise content parts.

    Args:
        result: The server's answer.
        limit: The most bytes it may have.

    Raises:
        InvalidContent: It is larger, or a part of it is not valid.
    """
    parts: list[ContentPart] = [message_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [InputText(text=json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))]
    check_size(parts, limit)
    texts = [part.text for part in parts if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def error_text(result: types.CallToolResult) -> str:
    """The failure message of a tool, cut to the maximum length of a message."""
    text = "\n".join(block.text for block in result.content if isinstance(block, types.TextContent)).strip()
    text = text or "the tool failed and gave no reason"
    return text if len(text) <= _ERROR_TEXT else f"{text[:_ERROR_TEXT]} [cut after {_ERROR_TEXT} characters]"


def message_part(block: types.ContentBlock) -> ContentPart:
    """One block of content as a content part.

    Raises:
        InvalidContent: Its data are not base64.
    """
    match block:
        case types.TextContent():
            return InputText(text=block.text)
        case types.ImageContent():
            return InputImage(data=_decoded(block.data, "an image"), media_type=_kind(block.mime_type, "image"))
        case types.AudioContent():
            return InputFile(data=_decoded(block.data, "audio"), media_type=_kind(block.mime_type, "audio"))
        case types.EmbeddedResource():
            return resource_part(block.resource)
        case types.ResourceLink():
            about = f" ({block.description})" if block.description else ""
            return InputText(text=f"{block.title or block.name}{about}: {block.uri}")


def resource_part(resource: types.TextResourceContents | types.BlobResourceContents) -> ContentPart:
    """The contents of a resource as a content part.

    Raises:
        InvalidContent: Its data are not base64.
    """
    if isinstance(resource, types.TextResourceContents):
        return InputText(text=resource.text)
    data, kind = _decoded(resource.blob, f"the resource {resource.uri}"), resource.mime_type
    if kind is None or _MEDIA_TYPE.fullmatch(kind) is None:
        kind = "application/octet-stream"
    if kind.startswith("image/"):
        return InputImage(data=data, media_type=kind)
    name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
    return InputFile(data=data, filename=name, media_type=kind)


def check_size(parts: Sequence[ContentPart], limit: int) -> None:
    """Refuse content that is larger than it may be.

    Raises:
        InvalidContent: It has more than `limit` bytes.
    """
    size = sum(_sizes(parts))
    if size > limit:
        raise InvalidContent(f"the output has {size} bytes, and {limit} are allowed", too_large=True)


def _sizes(parts: Sequence[ContentPart]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, InputText):
            yield len(part.text.encode(errors="replace"))
        elif isinstance(part, InputImage | InputFile) and part.data is not None:
            yield len(part.data)


def _decoded(data: str, what: str) -> bytes:
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidContent(f"{what} is not valid base64") from None
    if not found:
        raise InvalidContent(f"{what} has no data")
    return found


def _kind(media_type: str, family: str) -> str:
    """The media type; a provider would refuse another one, and with it every later request of the conversation."""
    if _MEDIA_TYPE.fullmatch(media_type) is None or not media_type.startswith(f"{family}/"):
        raise InvalidContent(f"{media_type!r:.80} is not a valid media type; expected one of {family}/...")
    return media_type
