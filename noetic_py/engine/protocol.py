"""The protocol from a run to the higher parts of the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, frozen

from noetic_py.context.step import AnyStep, Body

if TYPE_CHECKING:
    import anyio

    from noetic_py.channels import Entry
    from noetic_py.channels.declared import AnyChannel
    from noetic_py.context.context import Derived
    from noetic_py.context.detached import DetachedWork, DetachOptions
    from noetic_py.core.budget import Usage
    from noetic_py.core.control import Ask, Control, Timer
    from noetic_py.core.progress import ProgressStore
    from noetic_py.core.state import LayerStates
    from noetic_py.core.types import ShareState
    from noetic_py.engine.frame import Frame
    from noetic_py.engine.journaling.writer import PlannedWrite
    from noetic_py.engine.kind import Node
    from noetic_py.engine.state import Execution, Run
    from noetic_py.errors import NoeticError
    from noetic_py.memory.functions import Called
    from noetic_py.memory.layer import AnyLayer
    from noetic_py.memory.scopes import LayerStorage
    from noetic_py.models.model import Model
    from noetic_py.steps.spawn import QueuedSpec


class Interpreter(Protocol):
    """Interprets the steps of a run. Bodies reach it through their context; the starter of a run passes it in."""

    def call(self, frame: Frame, step: AnyStep, value: object, /) -> Any:
        """Run a step as a child of a body; gives a coroutine of Python's own, which tells whether it was awaited."""
        ...

    def section(self, steps: Sequence[AnyStep], state: ShareState, /) -> AnyStep:
        """The step that runs several steps at once."""
        ...

    def derived(self, step: AnyStep, ctx: Derived, /) -> AnyStep:
        """The step that runs a step with a derived context."""
        ...

    def send(
        self, frame: Frame, channel: AnyChannel, value: object, timeout: float | None, /
    ) -> Coroutine[object, object, None]:
        """Send a message from a body."""
        ...

    def receive(self, frame: Frame, channel: AnyChannel, timeout: float | None, /) -> Coroutine[object, object, Any]:
        """Wait for a message in a body."""
        ...

    def receive_now(self, frame: Frame, channel: AnyChannel, /) -> Any:
        """Take a message that is there."""
        ...

    def ask(self, frame: Frame, question: Ask[Any] | Timer, /) -> Coroutine[object, object, Any]:
        """Ask from a body, or sleep, and wait."""
        ...

    def checkpoint(self, frame: Frame, /) -> Coroutine[object, object, None]:
        """Commit what a body has done so far."""
        ...

    def detach(self, frame: Frame, step: AnyStep, value: object, options: DetachOptions, own: bool, /) -> DetachedWork:
        """Start a step beside the flow."""
        ...

    def recover_detached(self, parent: Frame, step: AnyStep, node: Node, /) -> None:
        """Restart the detached work of a replayed child."""
        ...

    def with_hooks(self, body: Body, /) -> HookedBody:
        """A body between the hooks of its step."""
        ...

    def cut_short(self, loop: Frame, value: object, asking: Frame | None, /) -> None:
        """End a loop in the middle of a round."""
        ...

    def note_stop(self, run: Run, control: Control, key: str, /) -> None:
        """Write that a stop was asked for from outside."""
        ...

    def progress(self, run: Run, /) -> ProgressStore:
        """The progress of a run's steps."""
        ...

    def bind(self, frame: Frame, reads: bool, /) -> Any:
        """The memory bundle as a step has it, or as one that may only read."""
        ...

    def layer_store(self, x: Execution, /) -> LayerStore:
        """The store's side of an execution's layers."""
        ...


class HookedBody(Protocol):
    """A body between the hooks of its step."""

    def __call__(self, value: object, frame: Frame, /) -> Awaitable[object]:
        """Run the body, with the hooks before it and after it."""
        ...

    def failed(self, value: object, frame: Frame, error: NoeticError, /) -> Awaitable[None]:
        """Call the hooks for a failed attempt."""
        ...


class LayerStore(Protocol):
    """The store's side of the layers of one execution.

    Attributes:
        copiers: How states are copied, by layer.
        first: The states that the execution began with.
        recalled: What layers that recall now and then have recalled last, by layer.
        parents: Of a child the states that its parent's layers had when it looked last.
        warned: The layers of a fork that were warned that values in storage are not those of its point.
    """

    copiers: dict[str, tuple[Any, Callable[[Any], Any]]]
    first: dict[str, object]
    recalled: dict[str, Any]
    parents: dict[str, object]
    warned: set[str]

    def storage(self, layer: AnyLayer, namespace: str = "data") -> LayerStorage:
        """The layer's part of the store."""
        ...

    async def load(self, layer: AnyLayer) -> object:
        """The state that the store has of a layer, or its first one."""
        ...

    def is_behind(self, layer_states: LayerStates) -> bool:
        """Whether the store has not all that layers have."""
        ...

    async def flush(self, frame: Frame) -> None:
        """Store what has changed."""
        ...

    def note(self, layer: AnyLayer, call: Called) -> None:
        """A function has changed the state."""
        ...

    async def call(self, frame: Frame, layer: AnyLayer, step: AnyStep, value: object) -> Any:
        """Run a step for a layer."""
        ...

    async def ask(
        self,
        frame: Frame,
        layer: AnyLayer,
        model: str | Model | None,
        instructions: str,
        text: str,
        output: Any,
    ) -> Any:
        """Ask a model for a layer."""
        ...


@frozen(eq=False)
class ChildEnd:
    """How a run that a worker has carried out has ended.

    Attributes:
        value: Its value.
        error: What broke it, or how it was stopped; `None` where it has a value.
        used: What its model calls have used, in attempts that were discarded too.
        unpriced: Whether a model was called that has no price.
        steps: How many steps a budget counts.
        tools: The tools that it has called, each as often as it was.
        again: Whether it was stopped because its parent had ended, so that a parent that goes on has to begin it anew.
    """

    value: object
    error: NoeticError | None
    used: Usage
    unpriced: bool
    steps: int
    tools: Sequence[str]
    again: bool = False


class Children(Protocol):
    """The runs that workers carry out for a step of another one."""

    async def plan(self, frame: Frame, spec: QueuedSpec, value: object, run_id: str, /) -> PlannedWrite:
        """How a new one begins."""
        ...

    async def ended(self, run_id: str, step: AnyStep, /) -> ChildEnd | None:
        """How one has ended; `None` while it has not, and is left to workers."""
        ...

    async def stop(self, run_id: str, reason: str, key: str | None, /) -> None:
        """End one that is not wanted any more; one that has ended stays as it is. A key names the request."""
        ...


class Beside(Protocol):
    """A detached execution."""

    child: Execution
    cancel_scope: anyio.CancelScope
    done: anyio.Event
    path: tuple[str, ...]


class Giver(Protocol):
    """Where a message goes back to."""

    def give_back(self, *entries: Entry) -> None:
        """Undo takes."""
        ...


@define(eq=False)
class UnackedDelivery:
    """A message, its receiver, and the step whose end acknowledges it; unknown if another process received it."""

    path: tuple[str, ...]
    frame: Frame | None
    until: Frame | None
    reader: Giver
    entry: Entry
