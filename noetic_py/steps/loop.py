"""`loop`: a step again and again, until a predicate says stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from attrs import frozen

from noetic_py._types import M, OnError, R, S, T
from noetic_py.context import Context
from noetic_py.errors import ConfigError
from noetic_py.steps.flow import AnyStep
from noetic_py.steps.step import Step, check_id, is_whole, require_step
from noetic_py.steps.until import Until, Verdict

__all__ = ["loop"]


@frozen(eq=False)
class LoopSpec:
    """A loop's parts; see [`loop`][noetic_py.loop]."""

    body: AnyStep
    until: Until[Any]
    prepare_next: Callable[..., Any] | None
    on_error: Callable[[Exception, Context[Any, Any]], OnError] | None
    max_iterations: int


@overload
def loop(
    body: Step[T, R, M, S],
    /,
    *,
    until: Until[R],
    prepare_next: Callable[[R, Verdict, Context[M, S]], T],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def loop(
    body: Step[T | None, R, M, S],
    /,
    *,
    until: Until[R],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def loop(
    body: Step[T, T, M, S],
    /,
    *,
    until: Until[T],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    id: str | None = None,
) -> Step[T, T, M, S]: ...
def loop(
    body: Any,
    /,
    *,
    until: Any,
    prepare_next: Any = None,
    on_error: Any = None,
    max_iterations: int = 1000,
    id: str | None = None,
) -> Any:
    """Run a step again and again; the loop's output is the last iteration's.

    From the second iteration on the input is what `prepare_next` makes; without it a body that can go on from the log,
    such as `call_model`, gets `None`, and any other gets its own last output.

    Args:
        body: The step.
        until: When to stop; see `noetic_py.until`. A predicate that raises stops the loop, with that as the reason.
        prepare_next: `(output, verdict, ctx)` makes the next input.
        on_error: `(error, ctx)` decides on a failed iteration: `"retry"` the same input, `"skip"` to the next iteration
            with it, or `"abort"`, which raises. It is never asked about a cancellation.
        max_iterations: The bound that holds whatever `until` says.
        id: The step's id, `"loop"` when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"loop"`.
        LoopLimit: While running: `max_iterations` is reached.
    """
    inner = require_step(body, "loop")
    if not callable(until):
        raise ConfigError(f"until={until!r} is no predicate", code="loop", hint="until=until.max_rounds(10)")
    if not is_whole(max_iterations, 1):
        raise ConfigError(
            f"max_iterations={max_iterations!r} is not 1 or more", code="loop", hint="max_iterations=1000"
        )
    for name, function in (("prepare_next", prepare_next), ("on_error", on_error)):
        if function is not None and not callable(function):
            raise ConfigError(f"{name}={function!r} is not a function", code="loop", hint=f"{name}=lambda ...: ...")
    judge: Any = until
    made: AnyStep = Step(
        id=check_id(id) if id is not None else "loop",
        kind="loop",
        spec=LoopSpec(inner, judge, prepare_next, on_error, max_iterations),
        goes_on=inner.goes_on,
        named=id is not None,
    )
    return made
