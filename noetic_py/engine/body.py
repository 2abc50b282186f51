"""What the engine grants a body and asks of it: a shield, functions called beside it, an output, calls awaited."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from inspect import isawaitable
from types import CodeType, CoroutineType
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from noetic_py.context.protocol import CURRENT
from noetic_py.context.step import AnyStep
from noetic_py.core.diagnostics import not_a_value
from noetic_py.engine.frame import DONE, Frame, failure_of, go_on
from noetic_py.engine.journaling.ledger import cut_loops
from noetic_py.errors import NoeticError, NotAwaited
from noetic_py.steps.handoff import Handoff, undeclared

SHIELD_TIMEOUT = 10.0
"""Seconds for which a shielded body may go on after it was cancelled."""


async def shielded(frame: Frame, work: Callable[[], Awaitable[object]]) -> object:
    """Run a body shielded from cancellation from outside; the caller is cancelled at its next wait after this returns.

    After `SHIELD_TIMEOUT` seconds the body is cancelled, and its outcome is unknown.
    """
    outcome: list[object] = []
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        listener = _Listener(frame)
        group.start_soon(listener.listen)
        with listener.shield:
            try:
                outcome.append(await work())
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 # raised below, outside the group, which would wrap it
                failure = error
            group.cancel_scope.cancel()
            await listener.ended()
    if failure is not None:
        raise failure
    if not outcome:
        await checkpoint()
        raise RuntimeError("a step was cancelled, but nothing requested it")
    return outcome[0]


class _Listener:
    """Waits for a cancellation of the body, outside its shield."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.shield = anyio.CancelScope(shield=True)
        self._listening = True
        self._over = anyio.Event()

    async def listen(self) -> None:
        """The task that waits for a cancellation, outside of the shield."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            # The cancellation is delivered again when the body has ended.
            if self._listening:
                self.shield.deadline = anyio.current_time() + self._seconds()
        self._over.set()

    def _seconds(self) -> float:
        """How long the body may go on: not at all when it stopped the run itself, or after a shutdown's timeout."""
        frame, stop = self._frame, self._frame.x.stop
        if frame.x.run.shutdown is not None or (stop is not None and stop.path[: len(frame.at)] == frame.at):
            return 0.0
        return 0.0 if cut_loops(frame) else SHIELD_TIMEOUT

    async def ended(self) -> None:
        """Wait for this task to end once the body has, so that nothing around it is left to cancel."""
        self._listening = False
        self.shield.deadline = math.inf
        await self._over.wait()


async def call_apart(frame: Frame, function: Callable[..., object], *args: object) -> Any:
    """Call a function that decides something for a step, sync or async, as a body is called.

    Raises:
        Exception: What it has raised; an unrequested cancellation is a failure of its.
    """
    found: list[object] = []

    async def work() -> None:
        CURRENT.set(frame)
        made = function(*args)
        found.append(await made if isawaitable(made) else made)

    context, begun = copy_context(), work().__await__()
    try:
        await go_on(frame, context, begun, context.run(next, begun, DONE))
    except BaseException as error:
        failure = failure_of(error)
        if failure is error or failure is None:
            raise
        raise failure from error
    return found[0]


NO_VALUES = (Handoff, CoroutineType)
"""Classes of what no step may return."""


def refuse(frame: Frame, output: Any) -> None:
    """Raise when a body has returned what is not a value, or has left a call behind that nothing has awaited.

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
    """Calls that were made and not awaited, in order; closed, so that Python does not warn again."""
    node, frame.calls = frame.calls, None
    lost: list[tuple[str, str]] = []
    while node is not None:
        made, code, instruction, node = node
        if made.cr_frame is not None and inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
            step: AnyStep | None = inspect.getcoroutinelocals(made).get("step")
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
