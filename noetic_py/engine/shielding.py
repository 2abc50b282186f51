"""A body that may run only once is not cut off in the middle: a cancellation waits for it, though not for ever."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.ledger import cut_loops

__all__ = ["GRACE", "shielded"]

GRACE = 10.0
"""Seconds that such a body gets to come to its end once it is to be cancelled."""


async def shielded(frame: Frame, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do a body's work; what cancels it from around is heard by the caller, at its next wait after this returns.

    After `GRACE` seconds the body is cancelled like any other, and it is not known what it has done.
    """
    outcome: list[Any] = []
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
    """Hears that the body is to be cancelled."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.shield = anyio.CancelScope(shield=True)
        self._listening = True
        self._over = anyio.Event()

    async def listen(self) -> None:
        """The task: it stands outside of the shield."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            # Nothing is lost: the cancellation is still there when the body has come to its end.
            if self._listening:
                self.shield.deadline = anyio.current_time() + self._seconds()
        self._over.set()

    def _seconds(self) -> float:
        """How long the body may go on: who asks for the end does not want to, and a shutdown has waited."""
        frame, stop = self._frame, self._frame.x.stop
        if frame.x.run.shutdown is not None or (stop is not None and stop.path[: len(frame.at)] == frame.at):
            return 0.0
        return 0.0 if cut_loops(frame) else GRACE

    async def ended(self) -> None:
        """The body is done: return once this task has ended, so that nothing is left to be cancelled around it."""
        self._listening = False
        self.shield.deadline = math.inf
        await self._over.wait()
