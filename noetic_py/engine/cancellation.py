"""Cancellation: which were requested, which end a suspended task, and limits of time for bodies that never wait."""

from __future__ import annotations

import math
import sys

import anyio
from anyio import current_effective_deadline
from anyio.lowlevel import checkpoint

__all__ = ["CancelledError", "Waiting", "failure_of", "in_time", "is_late", "is_requested", "lost_task", "waiting_in"]


class Waiting(BaseException):
    """A step waits for an answer: its task ends here, and so do those around it.

    It is no exception that a body could handle: one that catches it all the same is parked when it returns.
    """


def waiting_in(error: BaseException) -> Waiting | None:
    """The mark that a task waits, when that is what has ended it; a task group of the body's own wraps it."""
    if isinstance(error, Waiting):
        return error
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next(filter(None, map(waiting_in, inside)), None)


async def in_time() -> None:
    """Let a scope around this whose time is over cancel it, before anything more is begun."""
    while anyio.current_effective_deadline() <= anyio.current_time():
        await checkpoint()


def is_late(cancel_scope: anyio.CancelScope) -> bool:
    """Whether the time of a scope is over, whether or not it has cancelled anything by then."""
    return cancel_scope.deadline != math.inf and anyio.current_time() >= cancel_scope.deadline


class CancelledError(Exception):
    """What was awaited was cancelled, and nothing has cancelled who awaited it; `__cause__` is asyncio's own."""

    def __init__(self, said: str = "") -> None:
        super().__init__(said or "what was awaited was cancelled, and nothing has cancelled the step")


def failure_of(error: BaseException) -> Exception | None:
    """The failure that was raised; `None` for what goes on through everything, as a cancellation that was requested."""
    if isinstance(error, Exception):
        return error
    return _lost(error) if _is_cancellation(error) and not is_requested(otherwise=False) else None


def lost_task(error: BaseException) -> Exception | None:
    """The failure of a task that only this library starts and awaits; a request that was made of it alone is foreign.

    A task group would take its end for one that was wanted.
    """
    failure = failure_of(error)
    if failure is None and _is_cancellation(error) and current_effective_deadline() > -math.inf:
        return _lost(error)
    return failure


def _lost(error: BaseException) -> CancelledError:
    made = CancelledError("" if isinstance(error, BaseExceptionGroup) else str(error))
    made.__cause__ = error
    return made


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is asyncio's, or a group of such and of failures. The core does not import what may not be there."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if inside:
        return all(isinstance(each, Exception) or _is_cancellation(each) for each in inside)
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def is_requested(*, otherwise: bool) -> bool:
    """Whether the task that runs is to end; `otherwise` on another event loop than asyncio's."""
    try:
        task = sys.modules["asyncio"].current_task()
    except (KeyError, RuntimeError):
        return otherwise
    return task is None or task.cancelling() > 0 or current_effective_deadline() == -math.inf
