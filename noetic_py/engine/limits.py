"""Limits of a run: budgets as they are stored, and the bounds of a run and all that it starts."""

from __future__ import annotations

from typing import Any

from noetic_py.context.step import Step, require_step
from noetic_py.core.budget import Budget
from noetic_py.errors import ConfigError, LimitExceeded

__all__ = ["MAX_CHILDREN", "MAX_DEPTH", "MAX_ITERATIONS", "RunLimits", "budget_of", "limits_of", "too_many_iterations"]


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


MAX_DEPTH = 16
"""Spawns below one another."""
MAX_CHILDREN = 256
"""Spawns of one run in flight at once, and runs that its steps have started."""
MAX_ITERATIONS = 50_000
"""Iterations of all loops of one run, whatever each of them allows; likewise."""


class RunLimits:
    """What a run and all runs that its steps have started use up together.

    Attributes:
        children: Spawns and started runs in flight.
        iterations: Iterations of loops, those of earlier processes counted in.
    """

    __slots__ = ("children", "iterations")

    def __init__(self) -> None:
        self.children = self.iterations = 0

    def check(self, depth: int) -> None:
        """Check that one more child may start at a depth.

        Raises:
            LimitExceeded: Too deep, or too many in flight.
        """
        if depth > MAX_DEPTH:
            raise LimitExceeded("spawn depth", MAX_DEPTH, hint="spawn less deeply, or loop instead")
        if self.children >= MAX_CHILDREN:
            raise LimitExceeded("live children", MAX_CHILDREN, hint="use concurrency= to run fewer spawns at once")


def too_many_iterations() -> LimitExceeded:
    """Why there is no further iteration in a run that has had `MAX_ITERATIONS`."""
    return LimitExceeded(
        "iterations of a run", MAX_ITERATIONS, hint="end loops sooner, or start a run for each part of the work"
    )


def wrap_up_step(budget: Budget | None) -> Step[Any, Any, Any, Any] | None:
    """The step that finishes with the reserve of a budget, `None` where there is none."""
    return None if budget is None or budget.wrap_up is None else require_step(budget.wrap_up, "wrap_up")
