"""Conversations: whether a strict provider would take one, and what of it can be foretold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message

ItemText: TypeAlias = tuple[str, ...]
"""An item, as far as it can be foretold: a message with its text, a call with its name, an output with its text."""


def pairing_error(items: Sequence[Item]) -> str | None:
    """Name what a strict provider would refuse; `None` for a valid conversation.

    Every call has exactly one output behind it, no output is without its call, and no id is used twice.
    """
    open_calls: set[str] = set()
    seen: set[str] = set()
    ids: set[str] = set()
    for item in items:
        if item.id in ids:
            return f"id {item.id} stands twice"
        ids.add(item.id)
        if isinstance(item, FunctionCall):
            if item.call_id in seen:
                return f"call {item.call_id} stands twice"
            seen.add(item.call_id)
            open_calls.add(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in open_calls:
                return f"output of {item.call_id} without an open call"
            open_calls.remove(item.call_id)
    return f"calls without output: {open_calls}" if open_calls else None


def valid(items: Sequence[Item]) -> bool:
    """Whether a strict provider would take it."""
    return pairing_error(items) is None


def told(items: Iterable[Item]) -> list[ItemText]:
    """Items as far as they can be foretold."""
    out: list[ItemText] = []
    for item in items:
        if isinstance(item, Message):
            out.append(("message", item.text))
        elif isinstance(item, FunctionCall):
            out.append(("call", item.call_id, item.name))
        elif isinstance(item, FunctionCallOutput):
            text = str(item.output)
            out.append(("output", item.call_id, "Not finished" if text.startswith("Not finished") else text))
    return renumbered(out)


def renumbered(items: Iterable[ItemText]) -> list[ItemText]:
    """The same with call ids by the order of the calls."""
    numbers: dict[str, str] = {}
    return [
        item if item[0] == "message" else (item[0], numbers.setdefault(item[1], f"call {len(numbers)}"), item[2])
        for item in items
    ]
