"""The state behind a layer's handle: its own value, the state of a run, or a draft while a function works."""

from __future__ import annotations

from logging import WARNING
from typing import TYPE_CHECKING, Any, Protocol

from noetic_py.core.diagnostics import log
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.values import alike, copy_private
from noetic_py.errors import NoContextError

if TYPE_CHECKING:
    from noetic_py.context.read import AnyReadContext
    from noetic_py.context.step import AnyStep
    from noetic_py.memory.functions import Called
    from noetic_py.memory.scopes import LayerStorage
    from noetic_py.models.model import Model


class Binding(Protocol):
    """Where a handle reads and writes."""

    def read(self) -> Any:
        """The state as code is given it: no change of it in place changes what others see."""
        ...

    def peek(self) -> Any:
        """The state itself, for code of the library that changes nothing in place."""
        ...

    def copy(self) -> object:
        """A copy of the state."""
        ...

    def set(self, value: Any) -> None:
        """Take what code assigns to `state`, where that may be changed."""
        ...

    def write(self, value: object, base: Any) -> None:
        """Put a state in place of the one that `peek` gave as `base`."""
        ...

    def note(self, call: Called) -> None:
        """A function has changed the state."""
        ...

    @property
    def ctx(self) -> AnyReadContext:
        """The step's context."""
        ...

    @property
    def storage(self) -> LayerStorage:
        """The layer's own part of the store."""
        ...

    @property
    def runtime(self) -> Runtime:
        """The clock, ids and randomness."""
        ...

    def warn(self, message: str) -> None:
        """Log a warning of the layer, and send its event."""
        ...

    async def call(self, step: AnyStep, input: object) -> Any:
        """Run a step for the layer."""
        ...

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: Any) -> Any:
        """Ask a model for the layer."""
        ...


def _nowhere(layer: str, what: str) -> NoContextError:
    return NoContextError(
        f"layer {layer!r} is in no run, so it has no {what}",
        hint="use it through ctx.memory; outside a run a layer has only its state",
    )


class Alone:
    """A layer that is used by itself, in no run: its state is its own."""

    __slots__ = ("_layer", "_value")

    def __init__(self, layer: str, state: Any) -> None:
        self._layer = layer
        self._value = state

    def read(self) -> object:
        """The state."""
        return self._value

    def peek(self) -> object:
        """The state."""
        return self._value

    def copy(self) -> Any:
        """A copy of it."""
        return copy_private(self._value)

    def set(self, value: object) -> None:
        """Another state."""
        self._value = value

    def write(self, value: object, base: object) -> None:
        """Another state."""
        self._value = value

    def note(self, call: Called) -> None:
        """There is no store that it could be done again for."""

    @property
    def ctx(self) -> AnyReadContext:
        """None.

        Raises:
            NoContextError: Always.
        """
        raise _nowhere(self._layer, "context")

    @property
    def storage(self) -> LayerStorage:
        """None.

        Raises:
            NoContextError: Always.
        """
        raise _nowhere(self._layer, "store")

    @property
    def runtime(self) -> Runtime:
        """The machine's."""
        return SYSTEM

    def warn(self, message: str) -> None:
        """Log a warning of the layer."""
        log("memory", WARNING, "layer %r: %s", self._layer, message)

    async def call(self, step: AnyStep, input: object) -> Any:
        """Nothing to run it in.

        Raises:
            NoContextError: Always.
        """
        raise _nowhere(self._layer, "run for a step")

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: object) -> Any:
        """Nothing to ask it in.

        Raises:
            NoContextError: Always.
        """
        raise _nowhere(self._layer, "run to ask a model in")


class Through:
    """A binding that goes on to the one below in all that it does not change."""

    __slots__ = ("below",)

    def __init__(self, below: Binding) -> None:
        self.below: Binding = below

    def read(self) -> object:
        """The state."""
        return self.below.read()

    def peek(self) -> object:
        """The state itself."""
        return self.below.peek()

    def copy(self) -> Any:
        """A copy of the state."""
        return self.below.copy()

    def set(self, value: object) -> None:
        """Another state."""
        self.below.set(value)

    def write(self, value: object, base: object) -> None:
        """Another state."""
        self.below.write(value, base)

    def note(self, call: Called) -> None:
        """A function has changed the state."""
        self.below.note(call)

    @property
    def ctx(self) -> AnyReadContext:
        """The step's context."""
        return self.below.ctx

    @property
    def storage(self) -> LayerStorage:
        """The layer's own part of the store."""
        return self.below.storage

    @property
    def runtime(self) -> Runtime:
        """The run's."""
        return self.below.runtime

    def warn(self, message: str) -> None:
        """Log a warning of the layer, and send its event."""
        self.below.warn(message)

    async def call(self, step: AnyStep, input: object) -> Any:
        """Run a step for the layer."""
        return await self.below.call(step, input)

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: object) -> Any:
        """Ask a model for the layer."""
        return await self.below.ask(model, instructions, text, output)


class Other(Through):
    """Another state in the place of the one below, to be read; what is written is written below."""

    __slots__ = ("_value",)

    def __init__(self, below: Binding, value: Any) -> None:
        super().__init__(below)
        self._value = value

    def read(self) -> object:
        """The other state."""
        return self._value

    def peek(self) -> object:
        """The other state."""
        return self._value

    def copy(self) -> Any:
        """A copy of it."""
        return copy_private(self._value)


class Draft(Through):
    """The state while a function or a hook works on it: a copy, which takes its place when that has succeeded.

    From then on it is not a draft any more: code that holds on to the handle reads and writes as any other code does.
    """

    __slots__ = ("_base", "_over", "_read", "_value", "_written")

    def __init__(self, below: Binding) -> None:
        super().__init__(below)
        self._read = self._written = self._over = False
        self._base: object = None
        self._value: Any = None

    def read(self) -> object:
        """The copy."""
        if self._over:
            return self.below.read()
        if not self._read:
            self._read = True
            self._base = self.below.peek()
            self._value = self.below.copy()
        return self._value

    def peek(self) -> object:
        """The state that `read` returns, without a copy: for callers that never change it in place."""
        return self._value if self._read and not self._over else self.below.peek()

    def copy(self) -> Any:
        """A copy of the copy."""
        return copy_private(self.peek())

    def set(self, value: object) -> None:
        """Another state."""
        if self._over:
            self.below.set(value)
        else:
            self.write(value, None)

    def write(self, value: object, base: object) -> None:
        """Another state."""
        if self._over:
            self.below.write(value, base)
            return
        if not self._read:
            self._read = True
            self._base = self.below.peek()
        self._value = value
        self._written = True

    @property
    def base(self) -> Any:
        """The state that it began with."""
        return self._base

    @property
    def changed(self) -> bool:
        """Whether the state is another than it was."""
        return self._read and (self._written or not alike(self._value, self._base))

    def commit(self) -> bool:
        """Put it in place; returns whether there was anything to put."""
        changed = self.changed
        if changed:
            self.below.write(self._value, self._base)
        self._over = True
        return changed
