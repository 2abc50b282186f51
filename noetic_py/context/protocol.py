"""The protocol by which a context reaches the engine, so that neither has to know how the other is made."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from decimal import Decimal
    from types import CodeType, CoroutineType

    from opentelemetry.trace import Span

    from noetic_py.channels.declared import AnyChannel
    from noetic_py.context.context import AnyContext
    from noetic_py.context.detached import DetachedWork, DetachOptions
    from noetic_py.context.read import Services, StepMeta
    from noetic_py.context.step import AnyStep
    from noetic_py.core.allowance import Remaining
    from noetic_py.core.budget import TokenUsage
    from noetic_py.core.control import Ask, Control, SessionKey, Timer
    from noetic_py.core.derivation import ContextMemory
    from noetic_py.core.items import JsonValue
    from noetic_py.core.progress import ProgressStore
    from noetic_py.core.runtime import Trace
    from noetic_py.core.state import Attributes
    from noetic_py.core.types import ShareState
    from noetic_py.core.view import LayerUsage

F = TypeVar("F", bound=Callable[..., Any])

CURRENT: ContextVar[AnyContext | None] = ContextVar("noetic_context", default=None)
"""The context of the step or tool whose code runs."""


def _itself(ctx: AnyContext) -> AnyContext:
    return ctx


def noted(context_of: Callable[[Any], AnyContext | None] = _itself) -> Callable[[F], F]:
    """Make a forgotten `await` of an async method the failure of the step whose body has called it.

    Args:
        context_of: From the method's object to the context of that body, itself when left out; `None` outside of one.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def noting(self: object, *args: object, **kwargs: object) -> object:
            made = method(self, *args, **kwargs)
            ctx = context_of(self)
            if ctx is not None:
                caller = _getframe(1)
                ctx.engine.note_call(ctx, made, caller.f_code, caller.f_lasti)
            return made

        same: Any = noting
        typed: F = same
        return typed

    return decorate


class Engine(Protocol):
    """The protocol from a context to its execution."""

    id: str
    run_id: str
    depth: int
    thread_id: str
    user_id: str | None
    services: Services
    metadata: Mapping[str, JsonValue]
    last_step: StepMeta | None
    last_layer_usage: LayerUsage | None
    stop: Control | None

    @property
    def request_id(self) -> str | None:
        """The caller's correlation id."""
        ...

    @property
    def fence(self) -> int | None:
        """The number of the run's owner."""
        ...

    @property
    def session(self) -> SessionKey | None:
        """The session that the run is a turn of."""
        ...

    @property
    def attrs(self) -> Attributes:
        """Attributes that all parts of the run share."""
        ...

    @property
    def progress(self) -> ProgressStore:
        """How far the run's steps have come."""
        ...

    @property
    def turns(self) -> int:
        """Model calls of this execution."""
        ...

    @property
    def run_turns(self) -> int:
        """Model calls of the whole run."""
        ...

    @property
    def parent_context(self) -> AnyContext | None:
        """The context that spawned the execution."""
        ...

    @property
    def root_context(self) -> AnyContext:
        """The run's own context."""
        ...

    @property
    def step_count(self) -> int:
        """Bodies started."""
        ...

    @property
    def tokens(self) -> TokenUsage:
        """Tokens used."""
        ...

    @property
    def cost(self) -> Decimal:
        """USD spent."""
        ...

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        ...

    def bind(self, ctx: AnyContext, /, *, reads: bool) -> Any:
        """The memory bundle as a step has it, or as one that may only read."""
        ...

    @property
    def input(self) -> object:
        """Its input."""
        ...

    def memory_of(self, ctx: AnyContext, /) -> ContextMemory:
        """Where layers of scope thread keep what is its own."""
        ...

    def touch(self, ctx: AnyContext, /) -> None:
        """A body looks at its state."""
        ...

    def remaining(self, ctx: AnyContext, /) -> Remaining:
        """The remaining budget of a step."""
        ...

    def complete(self, ctx: AnyContext, value: object, /) -> None:
        """End the execution with a value."""
        ...

    def abort(self, ctx: AnyContext, reason: str, /) -> None:
        """End the execution."""
        ...

    def stop_loop(self, ctx: AnyContext, value: object, /, *, now: bool = False) -> None:
        """End the nearest loop."""
        ...

    def emit(self, ctx: AnyContext, event: object, /) -> None:
        """Send an event."""
        ...

    def span(self, ctx: AnyContext, /) -> Span:
        """The active span."""
        ...

    def trace(self, ctx: AnyContext, /) -> Trace | None:
        """The place in a distributed trace."""
        ...

    def idempotency_key(self, ctx: AnyContext, /) -> str:
        """The step's key."""
        ...

    def call(self, ctx: AnyContext, step: AnyStep, value: object, /) -> Coroutine[object, object, Any]:
        """Run a step as a child."""
        ...

    def note_call(
        self, ctx: AnyContext, made: CoroutineType[object, object, object], code: CodeType, instruction: int, /
    ) -> bool:
        """Code of a body has made a call that has to be awaited; says whether the body goes on."""
        ...

    def gather(self, ctx: AnyContext, steps: Sequence[AnyStep], state: ShareState, /) -> Awaitable[list[object]]:
        """Run steps at once."""
        ...

    def send(self, ctx: AnyContext, channel: AnyChannel, value: object, timeout: float | None, /) -> Awaitable[None]:
        """Send a message."""
        ...

    def receive(self, ctx: AnyContext, channel: AnyChannel, timeout: float | None, /) -> Awaitable[Any]:
        """Wait for a message."""
        ...

    def receive_now(self, ctx: AnyContext, channel: AnyChannel, /) -> Any:
        """Take a message that is there."""
        ...

    def ask(self, ctx: AnyContext, question: Ask[Any] | Timer, /) -> Awaitable[Any]:
        """Wait for an answer, or for a time."""
        ...

    def checkpoint(self, ctx: AnyContext, /) -> Awaitable[None]:
        """Commit what was done so far."""
        ...

    def spawn_detached(self, ctx: AnyContext, step: AnyStep, value: object, options: DetachOptions, /) -> DetachedWork:
        """Start an execution beside the run's flow."""
        ...
