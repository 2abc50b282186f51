"""`spawn`: a step as an execution of its own, with its own conversation, state, budget and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from attrs import frozen

from noetic_py._types import S2, M, R, S, Share, ShareItems, T
from noetic_py.budget import Budget
from noetic_py.errors import ConfigError
from noetic_py.steps.flow import AnyStep
from noetic_py.steps.step import Step, check_id, read_options, require_step

__all__ = ["spawn"]


@frozen(eq=False)
class SpawnSpec:
    """A spawn's parts; see [`spawn`][noetic_py.spawn]."""

    step: AnyStep
    state: Share | Callable[[], Any]
    items: ShareItems
    timeout: float | None
    budget: Budget | None


@frozen
class Shared:
    """What of its parent's a spawn shares: its kind says it, so that a journal alone can be read."""

    items: bool
    state: bool


NOTHING_SHARED = Shared(items=False, state=False)
SPAWNS: Mapping[str, Shared] = {
    "spawn": NOTHING_SHARED,
    "spawn_shared": Shared(items=True, state=False),
    "spawn_state": Shared(items=False, state=True),
    "spawn_whole": Shared(items=True, state=True),
}
"""The kinds of spawns."""


@overload
def spawn(
    step: Step[T, R, M, S],
    /,
    *,
    state: Share = ...,
    items: ShareItems = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    id: str | None = ...,
) -> Step[T, R, M, S]: ...
@overload
def spawn(
    step: Step[T, R, M, S2],
    /,
    *,
    state: Callable[[], S2],
    items: ShareItems = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    id: str | None = ...,
) -> Step[T, R, M, object]: ...
def spawn(
    step: Any,
    /,
    *,
    state: Any = "deepcopy",
    items: ShareItems = "new",
    timeout: float | None = None,
    budget: Budget | None = None,
    id: str | None = None,
) -> Any:
    """Run a step as a child execution: `complete` and `abort` in it end the child and not the run.

    Its usage counts for the parent too. An abort in it raises [`Aborted`][noetic_py.errors.Aborted] in the parent.

    Args:
        step: The step.
        state: The child's state: the parent's own (`"share"`), a shallow or deep copy of it, a new `StateBag`
            (`"new"`), or what a function without arguments makes.
        items: The conversation it begins with: none (`"new"`), a copy or a view of the parent's, or the parent's own.
        timeout: Seconds it may take.
        budget: Limits for the child; a cap below the parent's own.
        id: The step's id, `"spawn:"` and the step's when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"spawn"`.
        Aborted: While running: the child aborted.
        StepTimeout: While running: it took longer than `timeout`.
        BudgetExceeded: While running: its budget is spent.
    """
    inner = require_step(step, "spawn")
    if not callable(state) and state not in ("share", "copy", "deepcopy", "new"):
        raise ConfigError(
            f"state={state!r} is unknown", code="spawn", hint='"share", "copy", "deepcopy", "new" or a function'
        )
    if items not in ("share", "copy", "new", "view"):
        raise ConfigError(f"items={items!r} is unknown", code="spawn", hint='"new", "copy", "view" or "share"')
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(f"budget={budget!r} is no Budget", code="spawn", hint="budget=Budget(steps=10)")
    read_options({"timeout": timeout})
    made: AnyStep = Step(
        id=check_id(id) if id is not None else f"spawn:{inner.id}",
        kind=_kind(Shared(items == "share", state == "share")),
        spec=SpawnSpec(inner, state, items, timeout, budget),
        goes_on=False,
        named=id is not None,
    )
    return made


def _kind(shared: Shared) -> str:
    return next(kind for kind, shares in SPAWNS.items() if shares == shared)
