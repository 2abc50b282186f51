"""The engine of a context that no run has adopted: `Outside`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from noetic_py.attributes import Attributes
from noetic_py.budget import NO_USAGE, Remaining
from noetic_py.errors import NoContextError
from noetic_py.progress import NO_RUN, ProgressKeeper
from noetic_py.reading import Services, StepMeta
from noetic_py.runtime import SYSTEM

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from noetic_py.channels import Channel
    from noetic_py.context import Context
    from noetic_py.control import Control
    from noetic_py.detached import DetachedWork, DetachOptions
    from noetic_py.memory.view import LayerUsage
    from noetic_py.models.base import JsonValue
    from noetic_py.pending import Ask
    from noetic_py.sessions.keys import SessionKey
    from noetic_py.steps.step import Step
    from noetic_py.traces import Trace

__all__ = ["Outside"]


class Outside:
    """The engine of a context that no run has adopted: ids, and a refusal for everything else.

    Attributes:
        adopted: Whether a run is going on with the context now.
        named: Whether its maker has chosen its thread.
        trusted: How many items of its log a run has made; those behind come from outside.
        turns: The model calls of the runs that went on with it.
        place: The trace that they belong to; `None` until the first begins.
        request_id: The caller's correlation id.
    """

    run_id = ""
    depth = 0
    run_turns = 0
    step_count = 0
    tokens = NO_USAGE
    cost: Decimal = Decimal(0)
    input: object = None
    last_step: StepMeta | None = None
    last_layer_usage: LayerUsage | None = None
    stop: Control | None = None
    parent_context: Context[Any, Any] | None = None
    user_id: str | None = None
    session: SessionKey | None = None
    progress: ProgressKeeper = NO_RUN
    adopted: bool
    trusted: int
    thread_id: str
    named: bool
    turns: int
    place: Trace | None
    request_id: str | None

    def __init__(
        self, ctx: Context[Any, Any], thread_id: str | None, request_id: str | None, trace: Trace | None
    ) -> None:
        self.adopted, self.trusted, self.turns = False, 0, 0
        self.place = trace
        self.id: str = SYSTEM.new_id()
        self.thread_id, self.named = thread_id or SYSTEM.new_id(), bool(thread_id)
        self.request_id = request_id
        self.services: Services = Services()
        self.attrs: Attributes = Attributes()
        self.metadata: Mapping[str, JsonValue] = {}
        self.root_context = ctx
        self._began = SYSTEM.monotonic()

    @property
    def elapsed(self) -> float:
        return SYSTEM.monotonic() - self._began

    def _refuse(self, what: str) -> NoContextError:
        return NoContextError(
            f"{what} needs a run", hint="call it from a step; harness.run(step, input, ctx=ctx) adopts it"
        )

    def trace(self, ctx: Context[Any, Any], /) -> Trace | None:
        return self.place

    def touch(self, ctx: Context[Any, Any], /) -> None:
        """Nothing to guard: no step runs."""

    def bind(self, ctx: Context[Any, Any], /, *, reads: bool) -> Any:
        return None

    def remaining(self, ctx: Context[Any, Any], /) -> Remaining:
        return Remaining()

    def complete(self, ctx: Context[Any, Any], value: object, /) -> None:
        raise self._refuse("complete()")

    def abort(self, ctx: Context[Any, Any], reason: str, /) -> None:
        raise self._refuse("abort()")

    def stop_loop(self, ctx: Context[Any, Any], value: object, /) -> None:
        raise self._refuse("stop_loop()")

    def emit(self, ctx: Context[Any, Any], event: object, /) -> None:
        raise self._refuse("emit()")

    def span(self, ctx: Context[Any, Any], /) -> Span:
        from opentelemetry.trace import INVALID_SPAN

        return INVALID_SPAN

    def idempotency_key(self, ctx: Context[Any, Any], /) -> str:
        raise self._refuse("idempotency_key")

    async def call(self, ctx: Context[Any, Any], step: Step[Any, Any, Any, Any], value: object, /) -> Any:
        raise self._refuse(f"calling step {step.id!r}")

    async def gather(self, ctx: Context[Any, Any], steps: Sequence[Step[Any, Any, Any, Any]], /) -> list[Any]:
        raise self._refuse("gather()")

    async def send(
        self, ctx: Context[Any, Any], channel: Channel[Any], value: object, timeout: float | None, /
    ) -> None:
        raise self._refuse("send()")

    async def receive(self, ctx: Context[Any, Any], channel: Channel[Any], timeout: float | None, /) -> Any:
        raise self._refuse("recv()")

    def receive_now(self, ctx: Context[Any, Any], channel: Channel[Any], /) -> Any:
        raise self._refuse("try_recv()")

    async def ask(self, ctx: Context[Any, Any], question: Ask[Any], /) -> Any:
        raise self._refuse("ask()")

    async def checkpoint(self, ctx: Context[Any, Any], /) -> None:
        raise self._refuse("checkpoint()")

    def spawn_detached(
        self, ctx: Context[Any, Any], step: Step[Any, Any, Any, Any], value: object, options: DetachOptions, /
    ) -> DetachedWork:
        raise self._refuse("spawn_detached()")
