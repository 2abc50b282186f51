"""How the bodies of random programs make one number of several."""

from __future__ import annotations

from typing import Any


def mix(*numbers: int) -> int:
    """One number out of several; the order counts."""
    found = 7
    for number in numbers:
        found = (found * 31 + number + 1) % 10007
    return found


def see(acc: int, items: int, state: dict[str, Any]) -> int:
    """Mix what a body sees of the conversation and the state into a number."""
    return mix(acc, items, state["n"], len(state["l"]), state["a"], state["b"])


def number(outcome: Any) -> int:
    """A section's outcome as a number."""
    if isinstance(outcome, int):
        return outcome
    return outcome.value if outcome.ok else 9999
