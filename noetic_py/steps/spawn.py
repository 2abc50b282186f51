"""`spawn`: a step as an execution of its own, with its own conversation, state, budget and stop, here or elsewhere."""

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


@frozen(eq=False)
class QueuedSpec(SpawnSpec):
    """A spawn that a worker carries out, as a run of its own."""

    queue: str


@overload
def spawn(
    step: Step[T, R, M, S],
    /,
    *,
    state: Share = ...,
    items: ShareItems = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    queue: str | None = ...,
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
    queue: str | None = ...,
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
    queue: str | None = None,
    id: str | None = None,
) -> Any:
    """Run a step as a child execution: `complete` and `abort` in it end the child and not the run.

    Its usage counts for the parent too. An abort in it raises [`Aborted`][noetic_py.errors.Aborted] in the parent.

    With `queue=` the child is a run of its own, which a worker carries out, on this machine or another one. Value,
    failure, usage and trace are as without it. A parent that a worker has holds no worker while it waits.

    Args:
        step: The step.
        memory: Layers of the child's own, in place of its parent's.
        state: The child's state: the parent's own (`"share"`), a shallow or deep copy of it, a new `StateBag`
            (`"new"`), or what a function without arguments makes.
        items: The conversation it begins with: none (`"new"`), a copy or a view of the parent's, or the parent's own.
        timeout: Seconds it may take; with `queue=` those count in which it waits for a worker.
        budget: Limits for the child; a cap below the parent's own. With `queue=` they are set aside for it, so it needs
            a limit for each dimension that a budget of the parent limits.
        queue: The queue of a worker that is to carry it out; here when left out. Workers find the step in the flows
            that they have. The child cannot share state or items with its parent then, and works on copies.
        id: The step's id, `"spawn:"` and the step's when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"spawn"`.
        Aborted: While running: the child aborted.
        StepTimeout: While running: it took longer than `timeout`.
        BudgetExceeded: While running: its budget is spent, or with `queue=` the parent's has not enough left for it.
    """
    inner = require_step(step, "spawn")
    given = _check_child(state, items, budget)
    read_options({"timeout": timeout})
    spec = SpawnSpec(inner, given, items, timeout, budget)
    if queue is not None:
        _check_queued(queue, state, items, memory, budget)
        spec = QueuedSpec(inner, given, items, timeout, budget, queue)
    elif memory is not None:
        spec = MemorySpec(inner, given, items, timeout, budget, _check_memory(memory, "spawn"))
    made: AnyStep = Step(
        id=check_id(id) if id is not None else f"spawn:{inner.id}",
        kind="spawn_queued" if queue is not None else _kind(items=items == "share", state=state == "share"),
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


def _check_child(state: Any, items: object, budget: object) -> Share | Callable[[], Any]:
    """Refuse what a child cannot begin with; gives the state.

    Raises:
        ConfigError: Code `"spawn"`.
    """
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
    found: Share | Callable[[], Any] = state
    return found


def _check_queued(queue: object, state: object, items: object, memory: object, budget: Budget | None) -> None:
    """Refuse what a run of another process cannot be given.

    Raises:
        ConfigError: Code `"spawn"`.
    """
    if not isinstance(queue, str) or not queue:
        raise ConfigError(
            f"queue={queue!r} is not a valid queue; expected a text", code="spawn", hint='queue="default"'
        )
    shared = [name for name, value in (("state", state), ("items", items)) if value == "share"]
    if shared:
        raise ConfigError(
            f'{shared[0]}="share" with queue= is not valid: another process carries the child out',
            code="spawn",
            hint=f'{shared[0]}="copy", and return from the child what its parent is to have',
        )
    if memory is not None:
        raise ConfigError(
            "memory= with queue= is not valid: it would not be stored with the run",
            code="spawn",
            hint="spawn(with_memory(step, memory=...), queue=...), so that the worker's code has it",
        )
    if budget is not None and budget.wrap_up is not None:
        raise ConfigError(
            "budget= with wrap_up= and queue= is not valid: the step would not be stored with the run",
            code="spawn",
            hint="give it to the child: spawn(step.with_options(budget=Budget(..., wrap_up=...)), queue=...)",
        )


def _kind(*, items: bool, state: bool) -> str:
    """The kind of a spawn says what it shares, so that a journal alone can be read."""
    if items:
        return "spawn_whole" if state else "spawn_shared"
    return "spawn_state" if state else "spawn"
