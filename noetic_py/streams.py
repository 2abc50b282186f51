"""A run under way, as whoever started it sees it: `RunStream` and `RunHandle`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic

import anyio

from noetic_py._types import O_co, S_co, T
from noetic_py.control import RunResult
from noetic_py.errors import NoeticError, RunBusy, StepFailed
from noetic_py.events import CommittedItems, Deltas, Event, Subscription, TextDelta

if TYPE_CHECKING:
    from noetic_py._engine.state import Run
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.items import Item

__all__ = ["Launched", "RunHandle", "RunStream", "beside", "deliver", "handle_of"]


class RunStream(Generic[O_co, S_co]):
    """A run under way: its events, its text, its items, and at the end its result.

    Each of `events`, `text` and `items` has a buffer of its own, so they can be read side by side, each by one task.
    """

    def __init__(self, run: Any) -> None:
        self._run: Run = run
        self._outcome: RunResult[O_co, S_co] | NoeticError | None = None
        self._done = anyio.Event()
        self._subscriptions: dict[str, Subscription] = {
            name: run.bus.subscribe() for name in ("events", "text", "items")
        }
        self._read: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def dropped(self) -> int:
        """Events that the slowest reader has lost because it did not read them in time."""
        return max((self._subscriptions[name].dropped for name in self._read), default=0)

    def _subscription(self, name: str) -> Subscription:
        self._read.add(name)
        return self._subscriptions[name]

    @property
    def events(self) -> AsyncIterator[Event]:
        """Every event in order, `RunFinished` last."""
        return self._subscription("events")

    @property
    def text(self) -> AsyncIterator[str]:
        """The answers' text, piece by piece."""
        return Deltas(self._subscription("text"), TextDelta)

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return CommittedItems(self._subscription("items"))

    async def result(self) -> RunResult[O_co, S_co]:
        """Wait for the end.

        Raises:
            NoeticError: The run broke, and `on_error` is `"raise"`.
        """
        await self._done.wait()
        if isinstance(self._outcome, NoeticError):
            raise self._outcome
        if self._outcome is None:
            raise RunBusy("the run was left before its end", hint="await stream.result() inside the async with")
        return self._outcome

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._done.is_set()

    @property
    def outcome(self) -> RunResult[O_co, S_co] | None:
        """How the run ended, `None` before; of a run that was cancelled or that raised, too."""
        if isinstance(self._outcome, NoeticError):
            return self._outcome.result
        return self._run.left if self._outcome is None else self._outcome

    async def ended(self) -> RunResult[O_co, S_co]:
        """Wait for the end, whatever it is."""
        await self._done.wait()
        if self.outcome is None:
            if isinstance(self._outcome, NoeticError):
                raise self._outcome
            raise RunBusy("the run was left before it began", hint="await it inside the async with")
        return self.outcome

    def finish(self, outcome: RunResult[Any, Any] | NoeticError | None) -> None:
        """Say how the run ended; the harness does."""
        self._outcome = outcome
        self._done.set()

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        return handle_of(self._run, channel)

    def abort(self, reason: str) -> None:
        """Stop the run: its status becomes `"aborted"`."""
        self._run.stop_from_outside("abort", reason)

    def interrupt(self, reason: str = "interrupted") -> None:
        """Stop the run: its status becomes `"interrupted"`."""
        self._run.stop_from_outside("interrupt", reason)


class RunHandle(Generic[O_co, S_co]):
    """A run that was started and goes on beside its caller; the harness owns its task."""

    def __init__(self, run: Any, stream: RunStream[O_co, S_co]) -> None:
        self._run: Run = run
        self.stream: RunStream[O_co, S_co] = stream

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.stream.done

    async def result(self) -> RunResult[O_co, S_co]:
        """Wait for the end.

        Raises:
            NoeticError: The run broke, and `on_error` is `"raise"`.
        """
        return await self.stream.result()

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self.stream.channel(channel)

    def abort(self, reason: str) -> None:
        """Stop the run: its status becomes `"aborted"`."""
        self.stream.abort(reason)

    def interrupt(self, reason: str = "interrupted") -> None:
        """Stop the run: its status becomes `"interrupted"`."""
        self.stream.interrupt(reason)


class Launched:
    """A run that a step has started: what its `DetachedRun` stands for."""

    def __init__(self, handle: RunHandle[Any, Any]) -> None:
        self._handle = handle
        self.run_id: str = handle.run_id
        self.path: tuple[str, ...] = ()

    @property
    def outcome(self) -> RunResult[Any, Any] | None:
        """How it ended, `None` while it goes on."""
        return self._handle.stream.outcome

    async def wait(self) -> RunResult[Any, Any]:
        """Wait for its end."""
        return await self._handle.stream.ended()

    def abort(self, reason: str) -> None:
        """Stop it."""
        if not self._handle.done:
            self._handle.abort(reason)

    def channel(self, channel: Channel[Any]) -> ChannelHandle[Any]:
        """A handle of one of its channels."""
        return self._handle.channel(channel)


@asynccontextmanager
async def beside(follow: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    """Carry a run beside a block, for as long as that lasts."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        try:
            yield
        except Exception as error:  # noqa: BLE001 # it is raised below, outside the group, which would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def deliver(result: RunResult[Any, Any], on_error: str) -> RunResult[Any, Any]:
    """Return a result, or raise what broke its run."""
    if result.status != "failed" or on_error == "result":
        return result
    error = result.error
    if error is None:
        raise StepFailed(path=(), error_type="unknown", error_message="the run failed without an error")
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        raise error from error.__cause__
    raise error


def handle_of(run: Any, channel: Channel[T]) -> ChannelHandle[T]:
    """A handle of one of a run's external channels."""
    from noetic_py._engine.detached import external_handle

    return external_handle(run, channel)
