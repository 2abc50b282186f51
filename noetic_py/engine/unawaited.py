"""Calls that a body has made and not awaited: where they stand, and the error that names them."""

from __future__ import annotations

import inspect
from types import CodeType, CoroutineType
from typing import TYPE_CHECKING, Any

from noetic_py.core.unawaited import not_a_value
from noetic_py.errors import NoeticError, NotAwaited
from noetic_py.steps.handoff import Handoff, undeclared

if TYPE_CHECKING:
    from noetic_py.context.step import Step
    from noetic_py.engine.frame import Frame

__all__ = ["NO_VALUES", "explained", "refuse"]

NO_VALUES = (Handoff, CoroutineType)
"""Classes of what no step may return."""


def refuse(frame: Frame, output: Any) -> None:
    """Raise when a body has returned what is no value, or has left a call behind that nothing has awaited.

    Raises:
        NotAwaited: It has.
        ConfigError: It has returned a handoff without saying so; code `"handoff"`.
    """
    if output.__class__ is Handoff:
        raise undeclared(frame.at, output)
    lost = _lost(frame)
    if lost:
        raise _not_awaited(frame, lost)
    if inspect.iscoroutine(output):
        raise not_a_value(output, "the step returned", path=frame.at)


def explained(frame: Frame, error: Exception) -> Exception:
    """The failure of a body that has left calls behind: they are the failure where it could not use a coroutine."""
    lost = _lost(frame)
    if not lost:
        return error
    if isinstance(error, (TypeError, AttributeError, NoeticError)) and "coroutine" in str(error):
        found: NoeticError = _not_awaited(frame, lost)
        found.__cause__ = error
        return found
    for name, place in lost:
        error.add_note(f"{name} was called and not awaited ({place})")
    return error


def _not_awaited(frame: Frame, lost: list[tuple[str, str]]) -> NotAwaited:
    what = ", ".join(f"{name} was called and not awaited ({place})" for name, place in lost)
    return NotAwaited(what, path=frame.at, hint=f"await {lost[0][0]}")


def _lost(frame: Frame) -> list[tuple[str, str]]:
    """What was called and has not begun, in the order of the calls; closed, so that Python warns of none again."""
    node, frame.calls = frame.calls, None
    lost: list[tuple[str, str]] = []
    while node is not None:
        made, code, instruction, node = node
        if made.cr_frame is not None and inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
            step: Step[Any, Any, Any, Any] | None = inspect.getcoroutinelocals(made).get("step")
            if step is not None and frame.x.run.kinds[step.kind].derived:
                # It is called after the context that it was made for.
                step = step.spec.step
            name = made.__qualname__ if step is None else step.id
            if step is None and not name.endswith(")"):
                name = f"{name.replace('Context.', 'ctx.', 1)}(...)"
            made.close()
            lost.append((name, f"{code.co_filename}:{_line(code, instruction)}, in {code.co_qualname}"))
    return lost[::-1]


def _line(code: CodeType, instruction: int) -> int:
    found = (line for start, end, line in code.co_lines() if start <= instruction < end and line is not None)
    return next(found, code.co_firstlineno)
