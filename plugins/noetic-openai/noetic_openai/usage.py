"""The usage that providers of OpenAI's interface report: tokens and cost."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from noetic_py.core.budget import TokenUsage
from noetic_py.models.reading import mapping

__all__ = ["money", "tokens_of"]


def tokens_of(usage: Mapping[str, Any], names: tuple[str, str], details: tuple[str, str]) -> TokenUsage | None:
    """A usage as the provider reports it; `None` where that does not say how much was read and written.

    What is not a number of tokens stays as it is: the engine refuses it by name, and books what was reserved.

    Args:
        usage: The object.
        names: What it calls the tokens read and written.
        details: What it calls the objects with their parts.
    """
    read, written = (_count(usage, name) for name in names)
    if read is None or written is None:
        return None
    of_read, of_written = (mapping(usage.get(name) or {}, name) for name in details)
    reasoning = _count(of_written, "reasoning_tokens")
    if _stands_apart(usage, read, written, reasoning):
        written += reasoning
    return TokenUsage(
        input=read,
        output=written,
        cached_input=_count(of_read, "cached_tokens"),
        cache_write=_count(of_read, "cache_write_tokens"),
        reasoning=reasoning,
        input_audio=_count(of_read, "audio_tokens"),
        output_audio=_count(of_written, "audio_tokens"),
        input_image=_count(of_read, "image_tokens"),
        output_image=_count(of_written, "image_tokens"),
    )


def _stands_apart(usage: Mapping[str, Any], read: Any, written: Any, reasoning: Any) -> bool:
    """Whether a provider counts reasoning beside what was written, as its total says."""
    numbers = (read, written, reasoning)
    return reasoning != 0 and all(type(each) is int for each in numbers) and usage.get("total_tokens") == sum(numbers)


def _count(event: Mapping[str, Any], name: str) -> Any:
    """A field's number of tokens, `None` when it is absent or null."""
    value = event.get(name)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def money(event: Mapping[str, Any], name: str) -> Decimal | None:
    """A field's amount, `None` when it is absent or null; "not a number", which the engine refuses, when it is none."""
    value = event.get(name)
    if value is None:
        return None
    try:
        return Decimal("NaN") if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        return Decimal("NaN")
