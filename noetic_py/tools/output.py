"""What the model gets to read of a tool's value."""

from __future__ import annotations

from typing import Any, TypeGuard

import attrs

from noetic_py.errors import CodecError
from noetic_py.items import ContentPart, InputText, OutputText
from noetic_py.redaction import MASK, redact
from noetic_py.secret import is_secret

__all__ = ["render_output"]


def render_output(value: object, *, tool: str) -> str | tuple[ContentPart, ...]:
    """A tool's value as the output of a function call.

    Text and content parts stay as they are, `None` is an empty text. Everything else becomes compact JSON: JSON's own
    values, pydantic models, dataclasses, attrs classes, enums, dates, decimals, UUIDs, paths, sets and bytes that are
    text. This is for reading, not for storing: no type can be told from it afterwards. Secrets are masked, and so is
    every value that is known as one.

    Args:
        value: What the tool returned.
        tool: The tool's name, for messages.

    Raises:
        CodecError: There is no JSON for the value, or for something inside it.
    """
    if isinstance(value, str):
        return redact(value)
    if value is None:
        return ""
    if isinstance(value, ContentPart):
        return (_shown(value),)
    if _is_content(value):
        return tuple(InputText(text=redact(part)) if isinstance(part, str) else _shown(part) for part in value)
    if is_secret(value):
        return MASK
    # Loaded by now, because the arguments of the call were checked with it.
    from pydantic_core import to_json

    try:
        return redact(to_json(value, fallback=_fields, inf_nan_mode="strings").decode())
    except (ValueError, TypeError, RecursionError) as error:
        raise CodecError(
            f"tool {tool!r} returned a {type(value).__qualname__} that has no JSON form: {error}",
            hint="return text, JSON values, content parts, or a pydantic model, dataclass or attrs class of these",
        ) from error


def _is_content(value: object) -> TypeGuard[list[str | ContentPart] | tuple[str | ContentPart, ...]]:
    if not isinstance(value, list | tuple):
        return False
    kinds: list[type[Any]] = [type(part) for part in _parts(value)]
    # A list of nothing but text is data, and no list of parts.
    return any(issubclass(kind, ContentPart) for kind in kinds) and all(issubclass(k, str | ContentPart) for k in kinds)


def _parts(value: Any) -> list[object]:
    return list(value)


def _shown(part: ContentPart) -> ContentPart:
    if isinstance(part, InputText | OutputText) and redact(part.text) != part.text:
        return attrs.evolve(part, text=redact(part.text))
    return part


def _fields(value: object) -> object:
    if is_secret(value):
        return MASK
    kind: type[Any] = type(value)
    if not attrs.has(kind):
        raise TypeError(f"{kind.__qualname__} is not a class that can be read")
    return {f.name: getattr(value, f.name) for f in attrs.fields(kind)}
