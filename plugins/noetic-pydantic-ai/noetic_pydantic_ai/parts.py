"""Parts of pydantic-ai's answers as items, and back again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import to_jsonable_python

from noetic_py.core.items import FunctionCall, Item, Message, Opaque, OutputText, Reasoning
from noetic_py.core.values import is_mapping

__all__ = ["arguments_of", "item_of", "part_of"]

KEY: Final = "pydantic_ai"
"""Where an item keeps what its provider wants back: ids, signatures and other details."""
_KIND: Final = "pydantic_ai_part"
_ANY: Final[TypeAdapter[Any]] = TypeAdapter(ModelResponsePart)
_KEPT: Final = ("id", "signature", "provider_name", "provider_details")


def item_of(part: Any, id: str) -> Item | None:
    """A part of an answer as an item; `None` for a text without words.

    Args:
        part: The part.
        id: The item's id.
    """
    kept = {name: getattr(part, name, None) for name in _KEPT}
    details = {name: to_jsonable_python(value) for name, value in kept.items() if value is not None}
    extra = {KEY: details} if details else None
    if isinstance(part, TextPart):
        if not part.content and not details:
            return None
        return Message(role="assistant", content=[OutputText(text=part.content)], id=id, extra=extra)
    if isinstance(part, ThinkingPart):
        return Reasoning(content=part.content or (), id=id, extra=extra)
    if type(part) is ToolCallPart:
        return FunctionCall(
            name=part.tool_name,
            arguments=arguments_of(part) or "{}",
            call_id=part.tool_call_id,
            id=id,
            extra=extra,
        )
    # What the provider does by itself, such as a search of the web, and files: they go back as they are.
    data = {"type": _KIND, "id": id, "part": _ANY.dump_python(part, mode="json")}
    return Opaque(raw=json.dumps(data, ensure_ascii=False).encode())


def arguments_of(part: Any) -> str:
    """The arguments of a call as JSON text, exactly as the provider has sent them where that was text."""
    arguments: object = part.args
    return arguments if isinstance(arguments, str) else str(part.args_as_json_str()) if arguments else ""


def part_of(item: Item) -> Any:
    """What an item was made of; `None` of other providers' reasoning and items.

    Args:
        item: An item of an answer: a message of the assistant, a call, reasoning or an opaque item.
    """
    found: Any = (item.extra or {}).get(KEY)
    details: Mapping[str, Any] = found if is_mapping(found) else {}
    match item:
        case Message():
            return _ANY.validate_python({"part_kind": "text", "content": item.text, **_without(details, "signature")})
        case FunctionCall():
            said = {"tool_name": item.name, "args": item.arguments, "tool_call_id": item.call_id}
            return _ANY.validate_python({"part_kind": "tool-call", **said, **_without(details, "signature")})
        case Reasoning() if details:
            text = "".join(getattr(part, "text", "") for part in item.content)
            return _ANY.validate_python({"part_kind": "thinking", "content": text, **details})
        case Opaque() if item.kind == _KIND:
            return _ANY.validate_python(json.loads(item.raw)["part"])
        case _:
            return None


def _without(details: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in details.items() if key != name}
