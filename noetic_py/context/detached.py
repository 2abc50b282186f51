"""`DetachedRun`: the handle of work that runs in the background of the step that started it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import anyio
from attrs import frozen

from noetic_py.context.step import awaited
from noetic_py.core.control import AnyResult, RunResult, RunStatus
from noetic_py.core.types import O_co, T
from noetic_py.errors import ConfigError, NoeticError, StepTimeout

if TYPE_CHECKING:
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.channels.declared import AnyChannel
    from noetic_py.core.budget import Budget


@frozen(eq=False)
class DetachOptions:
    """The options of `ctx.spawn_detached`."""

    memory: Any
    state: Any
    budget: Budget | None
    owner: Literal["run", "harness"]


class DetachedWork(Protocol):
    """The protocol from a handle to its work."""

    run_id: str
    path: tuple[str, ...]

    @property
    def outcome(self) -> AnyResult | None:
        """How it ended, `None` while it runs."""
        ...

    async def wait(self) -> AnyResult:
        """Wait for its end."""
        ...

    def complete(self, value: object) -> bool:
        """End it with a value."""
        ...

    def wrap_up(self, reason: str) -> bool:
        """Have it finish with what it has."""
        ...

    def abort(self, reason: str) -> None:
        """Stop it."""
        ...

    def channel(self, channel: AnyChannel) -> ChannelHandle[Any]:
        """A handle of one of its run's channels."""
        ...


@awaited("handle")
class DetachedRun(Generic[O_co]):
    """Work that a step started with `ctx.spawn_detached`; its owner awaits it, even if no step does."""

    def __init__(self, work: DetachedWork) -> None:
        self._work = work

    @property
    def run_id(self) -> str:
        """The run it belongs to: the step's own, or one of its own when the harness owns it."""
        return self._work.run_id

    @property
    def path(self) -> tuple[str, ...]:
        """Its path in the journal of its run."""
        return self._work.path

    @property
    def status(self) -> RunStatus:
        """`"running"`, or how it ended."""
        outcome = self._work.outcome
        return "running" if outcome is None else outcome.status

    @property
    def result(self) -> RunResult[O_co] | None:
        """How it ended and its result, `None` while it runs."""
        return self._work.outcome

    @property
    def error(self) -> NoeticError | None:
        """The error that broke it, `None` without one."""
        outcome = self._work.outcome
        return None if outcome is None else outcome.error

    async def wait(self, *, timeout: float | None = None) -> RunResult[O_co]:
        """Wait for its end. A failure is not raised here: `result.value` raises it.

        Args:
            timeout: The maximum seconds to wait. The work continues afterwards.

        Raises:
            StepTimeout: It has not ended in time.
            ConfigError: `timeout` is not a number of seconds; code `"detached"`.
        """
        if timeout is not None and not _is_seconds(timeout):
            raise ConfigError(
                f"timeout={timeout!r} is not a number of seconds",
                code="detached",
                hint="await handle.wait(timeout=30.0)",
            )
        if timeout is None:
            return await self._work.wait()
        with anyio.move_on_after(timeout):
            return await self._work.wait()
        raise StepTimeout(timeout, path=self._work.path)

    def complete(self, value: object) -> bool:
        """End it with a value: its status becomes `"completed"`, and what runs in it is cancelled.

        Returns:
            Whether this has ended it: `False` when it had ended, or when something else had stopped it before.

        Raises:
            ConfigError: The value is not of the type that the step is annotated with; code `"complete"`.
            CodecError: The run is stored, and the value cannot be.
        """
        return self._work.complete(value)

    def wrap_up(self, reason: str) -> bool:
        """Have it finish with what it has: its status becomes `"completed"`, and what runs in it is cancelled.

        The value is that of its budget's `wrap_up` step, which is run now, or of the loop in flight, as
        [`RunStream.wrap_up`][noetic_py.RunStream.wrap_up] says.

        Returns:
            Whether it finishes for this: `False` when it had ended, or when something else had stopped it before.
        """
        return self._work.wrap_up(reason)

    def abort(self, reason: str) -> None:
        """Stop it: its status becomes `"aborted"`. Nothing happens when it has ended."""
        self._work.abort(reason)

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of its run's external channels."""
        return self._work.channel(channel)


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
