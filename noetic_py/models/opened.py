"""`OpenModels`: the models that a harness keeps open between their calls."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from logging import WARNING

import anyio
import anyio.abc
from attrs import define, field

from noetic_py.core.diagnostics import log
from noetic_py.models.model import Model

# A program that makes a model for each of its users would keep as many connections.
_MOST = 64


@define(eq=False)
class _Opening:
    model: Model
    ready: anyio.Event = field(factory=anyio.Event)
    failure: Exception | None = None


class OpenModels:
    """Opens each model that is an async context manager at its first call, and closes all of them in the end.

    A model may have task groups, which the task that has entered them has to leave. So each model has a task, which
    sees nothing of the run that has asked for it.
    """

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup | None = None
        self._openings: dict[int, _Opening] = {}

    async def start(self) -> None:
        """Models are opened from now on, until the task that calls this calls `close`."""
        self._over = anyio.Event()
        self._context: Context = copy_context()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    async def close(self) -> None:
        """Close all models."""
        group, self._group = self._group, None
        if group is not None:
            self._over.set()
            try:
                await group.__aexit__(None, None, None)
            finally:
                self._openings.clear()

    async def open(self, model: Model) -> None:
        """Open a model, unless it is open.

        Args:
            model: A model. Nothing is done for one that is no context manager, before `start`, and where many others
                are open.

        Raises:
            Exception: What the model has raised; the next call tries again.
        """
        opening = self._openings.get(id(model))
        if opening is None:
            group = self._group
            if group is None or len(self._openings) >= _MOST or not isinstance(model, AbstractAsyncContextManager):
                return
            opening = self._openings[id(model)] = _Opening(model)
            _ = self._context.copy().run(group.start_soon, self._own, model, opening)
        if not opening.ready.is_set():
            await opening.ready.wait()
        if opening.failure is not None:
            raise opening.failure

    async def _own(self, manager: AbstractAsyncContextManager[object], opening: _Opening) -> None:
        try:
            async with manager:
                opening.ready.set()
                # Where all is cancelled, what still winds up may ask once more.
                with anyio.CancelScope(shield=True):
                    await self._over.wait()
        except Exception as error:  # noqa: BLE001 # the call that waits raises it
            if opening.ready.is_set():
                log("models", WARNING, "%s could not be closed", opening.model.name, error=error)
            opening.failure = error
        finally:
            if not opening.ready.is_set():
                del self._openings[id(opening.model)]
                opening.ready.set()
