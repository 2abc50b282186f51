"""The layers of an execution: which there are and in which order, and the handles that steps and hooks get of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from noetic_py._engine.frame import Frame
from noetic_py._engine.merge import joined
from noetic_py._engine.state import DOORS
from noetic_py.errors import LayerError, NoContextError
from noetic_py.events import Emitted
from noetic_py.memory.checks import check_memory
from noetic_py.memory.functions import functions_of
from noetic_py.memory.layer import Memory, MemoryLayer, hooks_of, layers_of
from noetic_py.memory.layers.tool_groups import ToolGroups
from noetic_py.memory.routing import has_place, is_routed, route
from noetic_py.reading import ReadView

if TYPE_CHECKING:
    from noetic_py.codec import Codec
    from noetic_py.memory.hooks import HookName
    from noetic_py.memory.scopes import LayerStorage
    from noetic_py.models.base import Model
    from noetic_py.reading import ReadContext
    from noetic_py.runtime import Runtime
    from noetic_py.steps.step import Step
    from noetic_py.tools import Tool

__all__ = ["NO_LAYERS", "Layers", "Live", "bind", "keeping", "layers_for"]

AnyLayer = MemoryLayer[Any]


class Layers:
    """The layers of a bundle, by what the engine asks of them."""

    __slots__ = ("_hooks", "_order", "by_id", "codecs", "groups", "has_place", "memory", "tools")

    def __init__(self, memory: Memory) -> None:
        check_memory(memory)
        self.memory = memory
        self.by_id: dict[str, AnyLayer] = {each.id: each for each in layers_of(memory).values()}
        declared = tuple(self.by_id.values())
        by_slot = tuple(sorted(declared, key=lambda each: each.slot))
        self._order: dict[str, tuple[AnyLayer, ...]] = {
            "init": declared,
            "store": declared,
            "on_complete": by_slot,
            "dispose": tuple(reversed(declared)),
        }
        self._hooks: dict[str, tuple[AnyLayer, ...]] = {}
        # Whether what steps return has to be looked at.
        self.has_place = has_place(memory)
        # What stores the values of each layer, made when it is first needed and used by all runs.
        self.codecs: dict[str, Codec] = {}
        self._order[""] = by_slot
        self.tools: tuple[Tool[..., Any, Any, Any], ...] = tuple(
            made.tool(layer.id)
            for layer in declared
            for made in functions_of(type(layer)).values()
            if made.model and (not isinstance(layer, ToolGroups) or layer.by_model)
        )
        # Those that have a say in which tools are offered.
        self.groups: tuple[ToolGroups, ...] = tuple(each for each in declared if isinstance(each, ToolGroups))

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def having(self, hook: HookName) -> Sequence[AnyLayer]:
        """The layers that have a hook, in the order in which it is called."""
        found = self._hooks.get(hook)
        if found is None:
            order = self._order.get(hook, self._order[""])
            found = self._hooks[hook] = tuple(each for each in order if hook in hooks_of(type(each)))
        return found

    @property
    def by_slot(self) -> Sequence[AnyLayer]:
        """All of them, by slot."""
        return self._order[""]

    @property
    def state_types(self) -> Sequence[Any]:
        """The types of all states."""
        return [self.state_type(layer) for layer in self.by_id]

    def state_type(self, layer: str) -> Any:
        """The type of a layer's state, for whoever reads it back."""
        found = self.by_id.get(layer)
        kind = None if found is None else found.state_type
        return object if kind is None else kind


def layers_for(memory: Memory) -> Layers:
    """The layers of a bundle; put together once.

    Raises:
        ConfigError: The bundle cannot work.
    """
    found: Layers | None = memory.__dict__.get("_layers")
    if found is None:
        found = memory.__dict__["_layers"] = Layers(memory)
    return found


NO_LAYERS = Layers(Memory())


class Live:
    """A layer's state in a run, as a step in flight sees it."""

    __slots__ = ("_frame", "_layer", "_reads")

    def __init__(self, frame: Frame, layer: AnyLayer, *, reads: bool = False) -> None:
        self._frame = frame
        self._layer = layer
        self._reads = reads

    def read(self) -> Any:
        """The state as it is now.

        Raises:
            LayerError: The layer is not in this execution.
        """
        cells = self._frame.domain.cells
        try:
            return cells[self._layer.id]
        except KeyError:
            raise _absent(self._frame, self._layer) from None

    def write(self, value: Any, base: Any) -> None:
        """Put a state in place of what was read as `base`; what others have changed since then is kept.

        Raises:
            NoContextError: This can only be read, or the execution is over.
            LayerError: The layer is not in this execution.
        """
        if self._reads:
            raise NoContextError(
                f"layer {self._layer.id!r} can only be read here", hint="change it in a step, a tool or a hook"
            )
        if self._frame.x.frame is None:
            raise NoContextError(f"layer {self._layer.id!r} is used after its execution has ended")
        self._frame.x.run.in_its_thread(partial(self._put, value, base))

    def _put(self, value: Any, base: Any) -> None:
        now = self.read()
        if now is not base:
            value = joined(base, value, now, self._layer)
        self._frame.put_cells({**self._frame.domain.cells, self._layer.id: value})

    @property
    def ctx(self) -> ReadContext[Any, Any]:
        """The step's context."""
        return ReadView(self._frame)

    @property
    def storage(self) -> LayerStorage:
        """The layer's own part of the store."""
        return self._frame.x.upkeep.storage(self._layer)

    @property
    def runtime(self) -> Runtime:
        """The run's clock, ids and randomness."""
        return self._frame.x.run.runtime

    async def call(self, step: Step[Any, Any, Any, Any], input: object) -> Any:
        """Run a step for the layer, below the step in flight."""
        return await self._frame.x.upkeep.call(self._frame, self._layer, step, input)

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: Any) -> Any:
        """Ask a model for the layer, below the step in flight."""
        return await self._frame.x.upkeep.ask(self._frame, self._layer, model, instructions, text, output)


def _absent(frame: Frame, layer: AnyLayer) -> LayerError:
    return LayerError(
        f"layer {layer.id!r} is not in this execution",
        layer=layer.id,
        path=frame.path,
        hint="its init has failed, or its on_spawn gave nothing for this child",
    )


def bind(frame: Frame, *, reads: bool = False) -> Any:
    """The bundle of a step's execution, each layer bound to the step."""
    layers = frame.x.layers
    memory = layers.memory
    if not layers:
        return memory
    bound: Any = object.__new__(type(memory))
    for name, layer in layers_of(memory).items():
        bound.__dict__[name] = layer.bound(Live(frame, layer, reads=reads))
    return bound


async def keeping(value: Any, frame: Frame) -> Any:
    """Run a code step's body, and put entries that it returns into the queue or the pool; they are its value too."""
    body = frame.step.body
    if body is None:
        raise TypeError(f"{frame.step.id} is no code step")
    output = await body(value, frame)
    if is_routed(output) and await route(bind(frame), output, where=frame.path, given=value) and frame.x.run.bus.active:
        frame.tell(Emitted(frame.path, output))
    return output


DOORS.bind = lambda frame, reads: bind(frame, reads=reads)
