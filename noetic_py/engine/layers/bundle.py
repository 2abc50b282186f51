"""The layers of a memory bundle: which there are, and in which order their hooks are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from noetic_py.core.derivation import LayerCopy
from noetic_py.core.memory import Memory
from noetic_py.memory.checks import check_memory
from noetic_py.memory.functions import functions_of
from noetic_py.memory.layer import MemoryLayer, answers, hooks_of, layers_of
from noetic_py.memory.routing import has_place
from noetic_py.memory.scopes import Scope

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec
    from noetic_py.core.state import LayerStates
    from noetic_py.memory.layer import HookName
    from noetic_py.tools import Tool

__all__ = ["NO_LAYERS", "AnyLayer", "Layers", "layers_for"]

AnyLayer = MemoryLayer[Any]


class Layers:
    """The layers of a bundle, by what the engine asks of them."""

    __slots__ = ("_hooks", "_order", "by_id", "codecs", "has_place", "memory", "tool_layers", "tools")

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
            if made.model and layer.by_model
        )
        # Those that have a say in which tools are offered.
        self.tool_layers: tuple[AnyLayer, ...] = tuple(
            each for each in declared if answers(type(each), "offered") or answers(type(each), "withheld")
        )

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

    def of_thread(self, layer_states: LayerStates) -> dict[str, LayerCopy]:
        """The states of those that belong to a thread."""
        mine = [layer for layer in self.by_id.values() if layer.scope is Scope.THREAD and layer.id in layer_states]
        return {layer.id: LayerCopy(layer.schema_version, layer_states[layer.id]) for layer in mine}

    def state_type(self, layer: str) -> Any:
        """The type of a layer's state, for reading it back."""
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
