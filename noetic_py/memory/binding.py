"""What a layer's handle stands on: its own value, or the state of a run, or a draft of that while a function works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from noetic_py.errors import NoContextError
from noetic_py.runtime import SYSTEM, Runtime
from noetic_py.state import copy_state

if TYPE_CHECKING:
    from noetic_py.memory.scopes import LayerStorage
    from noetic_py.models.base import Model
    from noetic_py.reading import ReadContext
    from noetic_py.steps.step import Step

__all__ = ["Alone", "Binding", "Draft", "Through"]


class Binding(Protocol):
    """Where a handle reads and writes."""

    def read(self) -> Any:
        """The state as it is now; not to be changed in place."""
        ...

    def write(self, value: Any, base: Any) -> None:
        """Put a state in place of what was read as `base`."""
        ...

    @property
    def ctx(self) -> ReadContext[Any, Any]:
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

    async def call(self, step: Step[Any, Any, Any, Any], input: object) -> Any:
        """Run a step for the layer."""
        ...

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: Any) -> Any:
        """Ask a model for the layer."""
        ...


def _nowhere(layer: str, what: str) -> NoContextError:
    return NoContextError(
        f"layer {layer!r} is in no run, so it has no {what}",
        hint="use it through ctx.memory; what it does by itself is its state and the functions that only need that",
    )


class Alone:
    """A layer that is used by itself, in no run: its state is its own."""

    __slots__ = ("_layer", "_value")

    def __init__(self, layer: str, state: Any) -> None:
        self._layer = layer
        self._value = state

    def read(self) -> Any:
        """The state."""
        return self._value

    def write(self, value: Any, base: Any) -> None:
        """Another state."""
        self._value = value

    @property
    def ctx(self) -> ReadContext[Any, Any]:
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

    async def call(self, step: Step[Any, Any, Any, Any], input: object) -> Any:
        """Nothing to run it in.

        Raises:
            NoContextError: Always.
        """
        raise _nowhere(self._layer, "run for a step")

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: Any) -> Any:
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

    def read(self) -> Any:
        """The state."""
        return self.below.read()

    def write(self, value: Any, base: Any) -> None:
        """Another state."""
        self.below.write(value, base)

    @property
    def ctx(self) -> ReadContext[Any, Any]:
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

    async def call(self, step: Step[Any, Any, Any, Any], input: object) -> Any:
        """Run a step for the layer."""
        return await self.below.call(step, input)

    async def ask(self, model: str | Model | None, instructions: str, text: str, output: Any) -> Any:
        """Ask a model for the layer."""
        return await self.below.ask(model, instructions, text, output)


class Draft(Through):
    """The state while a function or a hook works on it: a copy, which takes its place when that has succeeded."""

    __slots__ = ("_base", "_read", "_value", "_written")

    def __init__(self, below: Binding) -> None:
        super().__init__(below)
        self._read = self._written = False
        self._base: Any = None
        self._value: Any = None

    def read(self) -> Any:
        """The copy."""
        if not self._read:
            self._read = True
            self._base = self.below.read()
            self._value = copy_state(self._base)
        return self._value

    def peek(self) -> Any:
        """The state as `read` would give it, without making the copy: for who never changes it in place."""
        return self._value if self._read else self.below.read()

    def write(self, value: Any, base: Any) -> None:
        """Another state."""
        if not self._read:
            self._read = True
            self._base = self.below.read()
        self._value = value
        self._written = True

    @property
    def changed(self) -> bool:
        """Whether the state is another than it was."""
        return self._read and (self._written or bool(self._value != self._base) or not _has_equality(self._value))

    def commit(self) -> bool:
        """Put it in place; returns whether there was anything to put."""
        if not self.changed:
            return False
        self.below.write(self._value, self._base)
        return True


def _has_equality(value: object) -> bool:
    """Whether comparing tells anything: objects that are only equal to themselves have to be taken for changed."""
    return type(value).__eq__ is not object.__eq__
