"""What several of the built-in layers do: checks of settings, what is new in a conversation, texts within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from noetic_py.errors import ConfigError
from noetic_py.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.memory.blocks import escape
from noetic_py.tokens import EstimatedCounter, TokenCounter

if TYPE_CHECKING:
    from noetic_py.memory.layer import MemoryLayer

__all__ = ["COUNTER", "at_least", "clipped", "newest_within", "not_blank", "transcript", "unseen", "wrong", "you_said"]

COUNTER: Final[TokenCounter] = EstimatedCounter()
"""Counts what a layer recalls; what it estimates too low the view cuts."""

# Of one tool output or one message a distilling model reads this much: the beginning and the end.
_LINE: Final = 4_000
_GAP: Final = " [...] "


def wrong(layer: MemoryLayer[Any], what: str, code: str, hint: str) -> ConfigError:
    """A setting that a layer cannot have."""
    return ConfigError(f"{type(layer).__name__} {layer.id!r}: {what}", code=code, hint=hint)


def at_least(layer: MemoryLayer[Any], code: str, least: float, /, **settings: Any) -> None:
    """Check numbers among a layer's settings.

    Raises:
        ConfigError: One of them is too small, or no number.
    """
    for name, value in settings.items():
        # Written so that what cannot be compared, such as not-a-number, is refused.
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise wrong(layer, f"{name}={value!r} is no number from {least:g}", code, f"{name}={max(least, 1):g}")


def not_blank(layer: MemoryLayer[Any], code: str, /, **settings: Any) -> None:
    """Check texts among a layer's settings.

    Raises:
        ConfigError: One of them says nothing.
    """
    for name, value in settings.items():
        if not isinstance(value, str) or not value.strip():
            raise wrong(layer, f"{name}={value!r} says nothing", code, f"{name}= a text")


def unseen(items: Sequence[Item], last: str) -> list[Item]:
    """The items behind the one with an id; all of them when there is no such one."""
    found: list[Item] = []
    for item in reversed(items):
        if item.id == last:
            break
        found.append(item)
    found.reverse()
    return found


def clipped(text: str, limit: int) -> str:
    """A text of at most `limit` characters: its beginning and its end."""
    if len(text) <= limit:
        return text
    if limit <= 2 * len(_GAP):
        return text[:limit]
    head = (limit - len(_GAP)) * 2 // 3
    return text[:head] + _GAP + text[len(text) - (limit - len(_GAP) - head) :]


def you_said(item: Item) -> str:
    """One item of a conversation as a line for a model that reads about it, `""` for what is nothing to read."""
    match item:
        case Message() if item.text.strip():
            return f"{item.role}: {clipped(item.text, _LINE)}"
        case FunctionCall():
            return f"assistant calls {item.name}: {clipped(item.arguments, _LINE)}"
        case FunctionCallOutput():
            return f"tool: {clipped(item.text, _LINE)}"
        case _:
            return ""


def transcript(items: Iterable[Item], limit: int) -> str:
    """A conversation as text that a model reads as data, of at most `limit` characters; the oldest goes first."""
    lines = [escape(line) for item in items if (line := you_said(item))]
    return f"<conversation>\n{clipped(chr(10).join(lines), limit)}\n</conversation>"


def newest_within(lines: Sequence[str], budget: int) -> list[str]:
    """As many of the last lines as a budget of tokens has room for, in their order."""
    kept: list[str] = []
    left = budget
    for line in reversed(lines):
        left -= COUNTER.count_text(line + "\n").value
        if left < 0:
            break
        kept.append(line)
    kept.reverse()
    return kept
