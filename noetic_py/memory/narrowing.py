"""What layers made of a history, mended so that a provider takes it and nothing in it passes for what it is not.

A layer may leave items out and may put a shorter one, of the same id and kind, in the place of another. Whatever else
it adds, such as a summary of what it left out, is recalled content like any other: marked as memory, never an answer, a
system message or a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from noetic_py.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from noetic_py.memory.blocks import as_items

__all__ = ["MADE_BY_LAYERS", "narrowed", "paired"]

MADE_BY_LAYERS = "history"
"""The layer that items are marked with which the layers added to the history between them."""


def narrowed(projected: Sequence[Item], history: Sequence[Item], tail: int) -> Sequence[Item]:
    """What the layers show of the conversation before its tail.

    Args:
        projected: The history as the layers hand it on, with the tail or without it.
        history: The conversation.
        tail: Where its tail begins.
    """
    known = {item.id: item for item in history}
    of_tail = {item.id for item in history[tail:]}
    kept = [item for item in projected if item.id not in of_tail]
    added = [place for place, item in enumerate(kept) if not _stands_for(item, known.get(item.id))]
    marked = as_items(MADE_BY_LAYERS, [kept[place] for place in added])
    for place, item in zip(added, marked, strict=True):
        kept[place] = item
    return kept


def _stands_for(item: Item, original: Item | None) -> bool:
    """Whether an item is one of the conversation, or may stand in its place."""
    if item is original:
        return True
    if isinstance(item, Message) and isinstance(original, Message):
        return item.role == original.role
    if isinstance(item, FunctionCall) and isinstance(original, FunctionCall):
        return item.call_id == original.call_id
    if isinstance(item, FunctionCallOutput) and isinstance(original, FunctionCallOutput):
        return item.call_id == original.call_id
    return item == original


def paired(items: Sequence[Item]) -> Sequence[Item]:
    """The items without what a provider refuses when a history was narrowed with no regard for it.

    A call goes that has no output behind it or whose id was used before, an output that has no call before it, and
    reasoning of which nothing follows.
    """
    waiting: dict[str, int] = {}
    seen: set[str] = set()
    whole: set[int] = set()
    for place, item in enumerate(items):
        if isinstance(item, FunctionCall) and item.call_id not in seen:
            seen.add(item.call_id)
            waiting[item.call_id] = place
        elif isinstance(item, FunctionCallOutput):
            call = waiting.pop(item.call_id, None)
            if call is not None:
                whole |= {call, place}
    kept: list[Item] = []
    follows = False
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, FunctionCall | FunctionCallOutput) and place not in whole:
            continue
        if isinstance(item, Reasoning) and not follows:
            continue
        follows = _of_an_answer(item)
        kept.append(item)
    if len(kept) == len(items):
        return items
    kept.reverse()
    return kept


def _of_an_answer(item: Item) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return not isinstance(item, FunctionCallOutput)
