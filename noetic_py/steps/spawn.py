"""`spawn`: a step as an execution of its own, with its own conversation, state, budget and stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

from attrs import frozen
from typing_extensions import override

from noetic_py.context.step import AnyStep, Spec, Step, check_id, read_options, require_step
from noetic_py.core.budget import Budget
from noetic_py.core.diagnostics import known_keywords
from noetic_py.core.memory import Memory
from noetic_py.core.types import M2, S2, M, R, S, Share, ShareItems, T
from noetic_py.errors import ConfigError


@frozen(eq=False)
class SpawnSpec(Spec):
    """A spawn's parts; see [`spawn`][noetic_py.spawn]."""

    step: AnyStep
    state: Share | Callable[[], Any]
    items: ShareItems
    timeout: float | None
    budget: Budget | None

    outline: ClassVar[tuple[str, str]] = ("[[", "]]")

    @override
    def entry(self) -> AnyStep:
        return self.step

    @override
    def exit(self) -> AnyStep:
        return self.step

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [("child", self.step)]


@frozen(eq=False)
class MemorySpec(SpawnSpec):
    """A spawn, or a step, that has other memory than its parent."""

    memory: Memory


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
    step: Step[T, R, M2, S],
    /,
    *,
    memory: M2,
    state: Share = ...,
    items: ShareItems = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    id: str | None = ...,
) -> Step[T, R, Memory, S]: ...
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
@overload
def spawn(
    step: Step[T, R, M2, S2],
    /,
    *,
    memory: M2,
    state: Callable[[], S2],
    items: ShareItems = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    id: str | None = ...,
) -> Step[T, R, Memory, object]: ...
@known_keywords("spawn()")
def spawn(
    step: object,
    /,
    *,
    memory: object = None,
    state: object = "deepcopy",
    items: ShareItems = "new",
    timeout: float | None = None,
    budget: Budget | None = None,
    id: str | None = None,
) -> Any:
    """Run a step as a child execution: `complete` and `abort` in it end the child and not the run.

    Its usage counts for the parent too. An abort in it raises [`Aborted`][noetic_py.errors.Aborted] in the parent.

    Args:
        step: The step.
        memory: Layers of the child's own, in place of its parent's.
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
        raise ConfigError(
            f"budget={budget!r} is not a valid budget; expected a Budget", code="spawn", hint="budget=Budget(steps=10)"
        )
    read_options({"timeout": timeout})
    spec = SpawnSpec(inner, state, items, timeout, budget)
    if memory is not None:
        spec = MemorySpec(inner, state, items, timeout, budget, _check_memory(memory, "spawn"))
    made: AnyStep = Step(
        id=check_id(id) if id is not None else f"spawn:{inner.id}",
        kind=_kind(items=items == "share", state=state == "share"),
        spec=spec,
        goes_on=False,
        named=id is not None,
    )
    return made


@overload
def with_memory(step: Step[T, R, M2, S], /, *, memory: M2, id: str | None = ...) -> Step[T, R, Memory, S]: ...
@overload
def with_memory(step: Step[T, R, M, S], /, *, memory: Memory, id: str | None = ...) -> Step[T, R, M, S]: ...
def with_memory(step: object, /, *, memory: object, id: str | None = None) -> Any:
    """Run a step with other layers: the memory is not its parent's, and all else is.

    Conversation, state, input, counters, loops around it and what ends the execution are as they would be without it.

    Args:
        step: The step.
        memory: Its layers; an instance of a [`Memory`][noetic_py.Memory] subclass.
        id: The step's id, `"with_memory:"` and the step's when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"with-memory"`.
    """
    inner = require_step(step, "with_memory")
    made: AnyStep = Step(
        id=check_id(id) if id is not None else f"with_memory:{inner.id}",
        kind="with_memory",
        spec=MemorySpec(inner, "share", "share", None, None, _check_memory(memory, "with_memory")),
        goes_on=inner.goes_on,
        named=id is not None,
    )
    return made


def _check_memory(memory: object, where: str) -> Memory:
    from noetic_py.memory.layer import check_memory

    if not isinstance(memory, Memory):
        raise ConfigError(
            f"{where}(memory={memory!r}): no Memory",
            code=where.replace("_", "-"),
            hint="an instance of a Memory subclass",
        )
    check_memory(memory)
    return memory


def _kind(*, items: bool, state: bool) -> str:
    """The kind of a spawn says what it shares, so that a journal alone can be read."""
    if items:
        return "spawn_whole" if state else "spawn_shared"
    return "spawn_state" if state else "spawn"
