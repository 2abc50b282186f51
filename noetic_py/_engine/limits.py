"""Budgets as what is stored of them."""

from __future__ import annotations

from typing import Any

from noetic_py.budget import Budget
from noetic_py.errors import ConfigError

__all__ = ["budget_of", "limits_of"]


def limits_of(budget: Budget | None) -> dict[str, Any] | None:
    """A budget as JSON; a wrap-up step is named, and has to be given again."""
    if budget is None:
        return None
    limits = {name: str(limit) for name, limit in budget.limits.items() if not name.startswith("per_tool:")}
    return {
        "limits": limits,
        "per_tool": dict(budget.per_tool),
        "seconds": budget.seconds,
        "depth": budget.depth,
        "warn_at": budget.warn_at,
        "wrap_up": None if budget.wrap_up is None else budget.wrap_up.id,
        "reserve": limits_of(budget.reserve),
    }


def budget_of(tree: Any, given: Budget | None) -> Budget | None:
    """The budget that a run goes on with: the one given now, or the one it began with.

    Raises:
        ConfigError: That one had a wrap-up step, which no journal can hold; code `"budget"`.
    """
    if given is not None or tree is None:
        return given
    if tree["wrap_up"] is not None:
        raise ConfigError(
            f"the run's budget had wrap_up={tree['wrap_up']}, which has to be given again",
            code="budget",
            hint="resume(..., budget=Budget(..., wrap_up=...))",
        )
    numbers: dict[str, Any] = {name: limit if name == "cost" else int(limit) for name, limit in tree["limits"].items()}
    return Budget(
        **numbers,
        per_tool=tree["per_tool"] or None,
        seconds=tree["seconds"],
        depth=tree["depth"],
        warn_at=tree["warn_at"],
        reserve=budget_of(tree["reserve"], None),
    )
