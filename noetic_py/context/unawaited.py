"""Classes whose async methods are called by users: a forgotten `await` is an error, wherever the call stands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from typing import Any, TypeVar

from noetic_py.context.protocol import CURRENT
from noetic_py.core.diagnostics import LOST, AwaitedCall

C = TypeVar("C", bound=type)


def awaited(name: str) -> Callable[[C], C]:
    """Make a forgotten `await` of any public async method of a class an error.

    In the body of a step it is that step's failure. Elsewhere what the call gave says so when it is used, and the
    harness when its block ends.

    Args:
        name: What users call an object of the class: `"harness"`.
    """

    def decorate(kind: C) -> C:
        for method, function in tuple(vars(kind).items()):
            if not method.startswith("_") and inspect.iscoroutinefunction(function):
                setattr(kind, method, _noting(function, f"{name}.{method}({_arguments(function)})"))
        return kind

    return decorate


def _arguments(function: Callable[..., object]) -> str:
    """The arguments that a call needs, as its caller writes them."""
    _, *parameters = inspect.signature(function).parameters.values()
    required = (each for each in parameters if each.default is each.empty)
    return ", ".join(each.name for each in required if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))


def _noting(function: Callable[..., Any], what: str) -> Callable[..., AwaitedCall]:
    @functools.wraps(function)
    def noting(*args: object, **kwargs: object) -> AwaitedCall:
        made = function(*args, **kwargs)
        made.__qualname__ = what
        caller = _getframe(1)
        call = AwaitedCall(made, what, f"{caller.f_code.co_filename}:{caller.f_lineno}")
        ctx = CURRENT.get()
        if ctx is None or not ctx.engine.note_call(ctx, made, caller.f_code, caller.f_lasti):
            block = LOST.get()
            if block is not None:
                call.lose_in(block)
        return call

    return noting
