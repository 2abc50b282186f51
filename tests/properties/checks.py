"""What every run has to keep, whatever it did; and how much of the full sets a test run tries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import anyio
from anyio.lowlevel import checkpoint

from noetic_py import FunctionCall, FunctionCallOutput, Item, Message
from tests.properties.oracle import ItemText

SEED = int(os.environ.get("NOETIC_SEED", "1"))
"""Where random tests start; printed by whatever fails."""


def examples(sample: int, full: int) -> int:
    """How many examples to try: a sample, or as many as `NOETIC_EXAMPLES` says, `full` being the whole set."""
    wanted = os.environ.get("NOETIC_EXAMPLES")
    if wanted is None:
        return sample
    return full if wanted == "full" else int(wanted)


def pairing_error(items: Sequence[Item]) -> str | None:
    """What a strict provider would refuse; `None` for a valid conversation.

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


def tasks() -> set[int]:
    """The tasks that are alive."""
    return {task.id for task in anyio.get_running_tasks()}


async def left_over(before: set[int]) -> set[str | None]:
    """The names of tasks that were not alive before, once those that are just ending have ended."""
    for _ in range(3):
        await checkpoint()
    return {task.name for task in anyio.get_running_tasks() if task.id not in before}
