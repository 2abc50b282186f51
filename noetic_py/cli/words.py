"""How numbers and texts are written for people."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["amount", "money", "neutral", "plural", "printable"]

# What steers a terminal or changes the order of what is read: control characters but for tab and line feed, what is for
# format alone but for the two joiners that letters and pictures are made with, separators of lines, lone surrogates.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_COLOURED = re.compile(r"(\x1b\[[0-9;:]*m|\r)")


def plural(count: int, word: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def amount(value: Decimal) -> str:
    """A number with as many places as it has, and commas."""
    return f"{value.normalize():,f}"


def money(value: Decimal | None) -> str:
    """USD with at least two and at most six places; `cost unknown` for `None`."""
    if value is None:
        return "cost unknown"
    whole, _, places = f"{value:,.6f}".partition(".")
    return f"${whole}.{places.rstrip('0').ljust(2, '0')}"


def neutral(text: str, *, coloured: bool = False) -> str:
    """The text with everything that could steer a terminal written as an escape in its place.

    All that the command line writes for people goes through it: values, errors and names may hold anything that a model
    or a database says.

    Args:
        text: The text, of any number of lines.
        coloured: Whether colours and carriage returns stay, as in what a flow's own code prints.
    """
    if not coloured:
        return _STEERING.sub(_escaped, text)
    parts = _COLOURED.split(text)
    return "".join(part if at % 2 else _STEERING.sub(_escaped, part) for at, part in enumerate(parts))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def printable(text: str) -> str:
    """The text on one line, without anything that could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
