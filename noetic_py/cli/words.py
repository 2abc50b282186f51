"""How numbers and texts are written for people."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["amount", "money", "plural", "printable"]


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


def printable(text: str) -> str:
    """The text on one line, without anything that could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
