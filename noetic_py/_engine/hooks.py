"""How a hook of a layer is called: on a draft of its state, for so long and no longer, and what its failure means."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import anyio
from attrs import define

from noetic_py._engine.frame import Frame
from noetic_py._engine.layers import AnyLayer, Live
from noetic_py.errors import CheckpointError, ConcurrentStepCall, LayerError, NoeticError, Stopped
from noetic_py.events import LayerFailed
from noetic_py.memory.binding import Draft
from noetic_py.memory.hooks import TIMEOUTS, HookName
from noetic_py.redaction import logger

__all__ = ["FAILED", "as_layer_error", "call_at_once", "call_hook", "present", "tell_failed", "try_hook"]


class _Failed(Enum):
    FAILED = "failed"


FAILED: Final = _Failed.FAILED
"""What a hook gives that has failed, or took too long."""

# What ends the run whoever meets it.
_THROUGH = (CheckpointError, ConcurrentStepCall, Stopped)


def present(frame: Frame, hook: HookName) -> Sequence[AnyLayer]:
    """The layers of an execution that have a hook and are not left out, in the order in which it is called."""
    layers = frame.x.layers.having(hook)
    if not layers:
        return layers
    cells = frame.domain.cells
    return [layer for layer in layers if layer.id in cells]


async def call_hook(frame: Frame, layer: AnyLayer, hook: HookName, *args: Any) -> Any:
    """Call a hook; what it did to the layer's state counts when it returns.

    Returns:
        What it gave, or `FAILED`; then an event has been sent, and the state is as it was.
    """
    called = _Called(layer, Draft(Live(frame, layer)))
    await called.run(frame, hook, args)
    return called.settle(frame, hook)


async def try_hook(frame: Frame, layer: AnyLayer, hook: HookName) -> Exception | None:
    """Call a hook whose failure may end the run; returns what it raised."""
    called = _Called(layer, Draft(Live(frame, layer)))
    await called.run(frame, hook, ())
    if called.error is None:
        called.draft.commit()
    return called.error


async def call_at_once(frame: Frame, layers: Sequence[AnyLayer], hook: HookName, *args: Any) -> None:
    """Call a hook of several layers at once, each on its own draft; one that fails does not touch the others."""
    if len(layers) == 1:
        await call_hook(frame, layers[0], hook, *args)
        return
    called = [_Called(layer, Draft(Live(frame, layer))) for layer in layers]
    async with anyio.create_task_group() as group:
        for each in called:
            group.start_soon(each.run, frame, hook, args)
    for each in called:
        each.settle(frame, hook)


@define(eq=False)
class _Called:
    """One call of a hook."""

    layer: AnyLayer
    draft: Draft
    result: Any = None
    error: Exception | None = None

    async def run(self, frame: Frame, hook: HookName, args: tuple[Any, ...]) -> None:
        seconds = self.layer.timeouts.get(hook, TIMEOUTS[hook])
        method = getattr(self.layer.bound(self.draft), hook)
        try:
            with anyio.move_on_after(seconds) as scope:
                self.result = await method(*args)
            if scope.cancelled_caught:
                self.error = LayerError(
                    f"layer {self.layer.id!r} took longer than {seconds:g} s in {hook}",
                    layer=self.layer.id,
                    hook=hook,
                    path=frame.at,
                    hint=f"timeouts={{{hook!r}: ...}} of the layer gives it more",
                )
        except Exception as error:  # noqa: BLE001 # what it means is settled by the caller
            self.error = error

    def settle(self, frame: Frame, hook: HookName) -> Any:
        if self.error is None:
            self.draft.commit()
            return self.result
        if isinstance(self.error, _THROUGH):
            raise self.error
        tell_failed(frame, self.layer, hook, self.error)
        return FAILED


def as_layer_error(frame: Frame, layer: AnyLayer, hook: str, error: Exception) -> LayerError:
    """A hook's failure as it is told."""
    if isinstance(error, LayerError):
        return error
    what = error.message if isinstance(error, NoeticError) else f"{type(error).__name__}: {error}"
    made = LayerError(f"layer {layer.id!r} failed in {hook}: {what}", layer=layer.id, hook=hook, path=frame.at)
    made.__cause__ = error
    return made


def tell_failed(frame: Frame, layer: AnyLayer, hook: str, error: Exception) -> None:
    """Log a failure that nobody else hears of, and send its event."""
    told = as_layer_error(frame, layer, hook, error)
    logger().warning("%s", told, exc_info=error)
    if frame.x.run.bus.active:
        frame.tell(LayerFailed(frame.at, layer.id, hook, str(told)))
