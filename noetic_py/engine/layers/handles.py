"""The layers of an execution, and the handles that steps and hooks get of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from logging import WARNING
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.context.read import AnyReadContext, ReadView
from noetic_py.core.caches import Cache
from noetic_py.core.derivation import LayerCopy
from noetic_py.core.diagnostics import log
from noetic_py.core.events import Emitted, LayerWarned
from noetic_py.core.memory import Memory
from noetic_py.core.reducers import Conflict
from noetic_py.core.values import alike, copier_of
from noetic_py.engine.frame import Frame, acting
from noetic_py.engine.merge import conflict, hint_of, merged
from noetic_py.errors import ConfigError, LayerError, NoContextError
from noetic_py.memory.functions import Called, functions_of
from noetic_py.memory.layer import AnyLayer, HookName, answers, check_memory, hooks_of, layers_of
from noetic_py.memory.routing import has_place, is_routed, route
from noetic_py.memory.scopes import LayerStorage, Scope

if TYPE_CHECKING:
    from noetic_py.context.step import AnyStep
    from noetic_py.core.codec import Codec
    from noetic_py.core.runtime import Runtime
    from noetic_py.core.state import LayerStates
    from noetic_py.engine.layers.state_codec import StateCodec
    from noetic_py.models.model import Model
    from noetic_py.tools.definition import AnyTool


# Of so many owners it is known what is stored.
_OWNERS = 32


class Layers:
    """The layers of a bundle, by what the engine asks of them."""

    __slots__ = (
        "__weakref__",
        "_hooks",
        "_order",
        "_types",
        "by_id",
        "codecs",
        "cut",
        "has_place",
        "memory",
        "state_codecs",
        "state_types",
        "tool_layers",
        "tools",
    )

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
        # The codec of each layer's values, made when it is first needed and used by all runs.
        self.codecs: dict[str, Codec] = {}
        # Those of which it was said that their budget is cut.
        self.cut: set[str] = set()
        # Those of states, by layer and owner.
        self.state_codecs: Cache[tuple[str, str], StateCodec] = Cache(_OWNERS)
        self._order[""] = by_slot
        # The types of all states, which are resolved once and not by each run.
        self._types: dict[str, object] = {each.id: each.state_type for each in declared}
        self.state_types: Sequence[object] = tuple([self.state_type(layer) for layer in self.by_id])
        self.tools: tuple[AnyTool, ...] = tuple(
            made.tool(layer.id)
            for layer in declared
            for made in functions_of(type(layer)).values()
            if made.model and layer.by_model
        )
        # Those that have a say in which tools are offered.
        self.tool_layers: tuple[AnyLayer, ...] = tuple(
            each
            for each in declared
            if answers(type(each), "available_tools") or answers(type(each), "unavailable_tools")
        )

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

    def of_thread(self, layer_states: LayerStates) -> dict[str, LayerCopy]:
        """The states of those that belong to a thread."""
        mine = [layer for layer in self.by_id.values() if layer.scope is Scope.THREAD and layer.id in layer_states]
        return {layer.id: LayerCopy(layer.schema_version, layer_states[layer.id]) for layer in mine}

    def state_type(self, layer: str) -> object:
        """The type of a layer's state, for reading it back."""
        kind = self._types.get(layer)
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

    def read(self) -> object:
        """The state as it is now, as a copy: a step that changes it in place fails at its end.

        Raises:
            LayerError: The layer is not in this execution.
            ConfigError: What the step was given earlier was changed; code `"layer-state"`.
        """
        frame, layer_state = acting(self._frame), self.peek()
        shown = frame.shown
        if shown is None:
            shown = frame.shown = {}
        place = (id(self._frame.scope), self._layer.id)
        before: _Shown | None = shown.get(place)
        if before is not None and before.layer_state is layer_state:
            return before.copy
        copied = self.copy()
        if before is not None:
            before.check(frame)
        if copied is not layer_state:
            shown[place] = _Shown(self._layer, layer_state, copied)
        return copied

    def peek(self) -> object:
        """The state itself.

        Raises:
            LayerError: The layer is not in this execution.
        """
        layer_states = self._frame.scope.layer_states
        try:
            return layer_states[self._layer.id]
        except KeyError:
            raise _absent(self._frame, self._layer) from None

    def copy(self) -> Any:
        """A copy of the state; how one is made is looked up once for each state."""
        layer_state, copiers = self.peek(), self._frame.x.layer_store.copiers
        known = copiers.get(self._layer.id)
        if known is None or known[0] is not layer_state:
            known = copiers[self._layer.id] = (layer_state, copier_of(layer_state, known))
        return known[1](layer_state)

    def set(self, value: object) -> None:
        """Refuse it: this is neither a function nor a hook of the layer.

        Raises:
            ConfigError: Always; code `"layer-state"`.
        """
        raise _untracked(self._layer, "assigned to", self._frame.path)

    def write(self, value: object, base: object) -> None:
        """Put a state in place of what was read as `base`; what others have changed since then is kept.

        Raises:
            NoContextError: This can only be read, or the execution is over.
            LayerError: The layer is not in this execution.
            ConfigError: Others have changed the same; code `"state-conflict"`.
        """
        if self._reads:
            raise NoContextError(
                f"layer {self._layer.id!r} can only be read here", hint="change it in a step, a tool or a hook"
            )
        if self._frame.x.frame is None:
            raise NoContextError(f"layer {self._layer.id!r} is used after its execution has ended")
        self._frame.x.run.in_its_thread(partial(self._put, value, base))

    def _put(self, value: object, base: object) -> None:
        copiers = self._frame.x.layer_store.copiers
        copier = copier_of(value, copiers.get(self._layer.id))
        try:
            # Code that has made it may hold on to it.
            value = copier(value)
        except ConfigError as error:
            error.at(self._frame.path)
            raise
        copiers[self._layer.id] = (value, copier)
        now = self.peek()
        if now is not base:
            try:
                value = merged(self._layer, base, value, now)
            except Conflict as error:
                what, who = f"memory.{self._layer.id}{error.where}", "two calls"
                raise conflict(what, who, hint_of(self._layer), self._frame.path) from None
        self._frame.put_layer_states({**self._frame.scope.layer_states, self._layer.id: value})

    def note(self, call: Called) -> None:
        """A function has changed the state."""
        self._frame.x.layer_store.note(self._layer, call)

    @property
    def ctx(self) -> AnyReadContext:
        """The step's context."""
        return ReadView(self._frame)

    @property
    def storage(self) -> LayerStorage:
        """The layer's own part of the store; a fork is warned once for each layer."""
        run, layer_store = self._frame.x.run, self._frame.x.layer_store
        if run.forked and self._layer.id not in layer_store.warned:
            layer_store.warned.add(self._layer.id)
            self.warn(
                f"it keeps values in storage, which is not part of the journal: this fork of run {run.forked[-1][0]!r} "
                "also finds what was stored after its point"
            )
        return layer_store.storage(self._layer)

    @property
    def runtime(self) -> Runtime:
        """The run's clock, ids and randomness."""
        return self._frame.x.run.runtime

    def warn(self, message: str) -> None:
        """Log a warning of the layer, and send its event."""
        log("memory", WARNING, "layer %r: %s", self._layer.id, message, where=self._frame.where)
        if self._frame.x.run.bus.active:
            self._frame.publish(LayerWarned(self._frame.at, self._layer.id, message))

    async def call(self, step: AnyStep, input: object) -> Any:
        """Run a step for the layer, below the step in flight."""
        return await self._frame.x.layer_store.call(self._frame, self._layer, step, input)

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: object) -> Any:
        """Ask a model for the layer, below the step in flight."""
        return await self._frame.x.layer_store.ask(self._frame, self._layer, model, instructions, text, output)


@frozen(eq=False)
class _Shown:
    """A layer's state as a step received it."""

    layer: AnyLayer
    layer_state: object
    copy: Any

    def check(self, frame: Frame) -> None:
        """Raise where it was changed in place."""
        if not alike(self.copy, self.layer_state):
            raise _untracked(self.layer, "changed in place", frame.path)


def check_shown(frame: Frame) -> None:
    """Refuse changes of layer states that a body received.

    Raises:
        ConfigError: It has changed one; code `"layer-state"`.
    """
    shown, frame.shown = frame.shown, None
    for each in (shown or {}).values():
        each.check(frame)


def _untracked(layer: AnyLayer, what: str, path: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"the state of layer {layer.id!r} was {what} outside of its functions and hooks, where it can only be read",
        code="layer-state",
        path=path,
        hint=f"change it in an async method of {type(layer).__name__} with @function in front of it, and call that",
    )


def _absent(frame: Frame, layer: AnyLayer) -> LayerError:
    return LayerError(
        f"layer {layer.id!r} is not in this execution",
        layer=layer.id,
        path=frame.path,
        hint="its init has failed, or its on_spawn gave nothing for this child",
    )


def bind(frame: Frame, reads: bool = False) -> Any:
    """The bundle of a step's execution, each layer bound to the step."""
    layers = frame.x.layers
    memory = layers.memory
    if not layers.by_id:
        return memory
    bound: object = object.__new__(type(memory))
    for name, layer in layers_of(memory).items():
        bound.__dict__[name] = layer.bound(Live(frame, layer, reads=reads))
    return bound


async def keeping(value: object, frame: Frame) -> object:
    """Run a code step's body, and put entries that it returns into the queue or the pool; they are its value too."""
    body = frame.step.body
    if body is None:
        raise TypeError(f"{frame.step.id} is not a code step")
    output = await body(value, frame)
    if is_routed(output) and await route(bind(frame), output, where=frame.path, given=value) and frame.x.run.bus.active:
        frame.publish(Emitted(frame.path, output))
    return output
