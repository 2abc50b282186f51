"""A run under way, as whoever started it sees it: `RunStream` and `RunHandle`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, overload

import anyio

from noetic_py._types import O_co, S_co, T
from noetic_py.control import RunResult
from noetic_py.errors import CodecError, NoeticError, RunBusy, StepFailed
from noetic_py.events import (
    CAPACITY,
    Event,
    ItemsAppended,
    ModelFailed,
    ModelStarted,
    ReasoningDelta,
    StepVoided,
    TextDelta,
)
from noetic_py.selections import CommittedItems, Deltas, E, Filter, Overflow, Selection, Snapshots

if TYPE_CHECKING:
    from noetic_py._engine.state import Run
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.items import Item

__all__ = ["Launched", "RunHandle", "RunStream", "beside", "deliver", "handle_of"]


_VIEWS: Mapping[str, Filter] = {
    "events": Filter(),
    "text": Filter((TextDelta,)),
    "reasoning": Filter((ReasoningDelta,)),
    "items": Filter((ItemsAppended,)),
}


class RunStream(Generic[O_co, S_co]):
    """A run under way: its events, its text, its items, and at the end its result.

    Each of `events`, `text`, `reasoning` and `items` has a buffer of its own, so they can be read side by side, each by
    one task; they begin with the run. Events of spawns, of parallel paths and of steps that tools call are among them.
    """

    def __init__(self, run: Any) -> None:
        self._run: Run = run
        self._outcome: RunResult[O_co, S_co] | NoeticError | None = None
        self._done = anyio.Event()
        self._views: dict[str, Selection[Event]] = {
            name: Selection(run.bus, wanted.predicate) for name, wanted in _VIEWS.items()
        }
        self._read: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def dropped(self) -> int:
        """Events that the slowest reader of these four has lost because it did not read them in time."""
        return max((self._views[name].dropped for name in self._read), default=0)

    def _view(self, name: str) -> Selection[Event]:
        self._read.add(name)
        return self._views[name]

    @property
    def events(self) -> AsyncIterator[Event]:
        """Every event in order, `RunFinished` last."""
        return self._view("events")

    @property
    def text(self) -> AsyncIterator[str]:
        """The answers' text, piece by piece."""
        return Deltas(self._view("text"), TextDelta)

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The models' visible reasoning, piece by piece."""
        return Deltas(self._view("reasoning"), ReasoningDelta)

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return CommittedItems(self._view("items"))

    @overload
    def select(
        self,
        *,
        path: tuple[str, ...] = ...,
        branch: str | None = ...,
        branch_prefix: str | None = ...,
        call_id: str | None = ...,
        depth: int | None = ...,
        capacity: int = ...,
        overflow: Overflow = ...,
    ) -> Selection[Event]: ...
    @overload
    def select(
        self,
        *kinds: type[E],
        path: tuple[str, ...] = ...,
        branch: str | None = ...,
        branch_prefix: str | None = ...,
        call_id: str | None = ...,
        depth: int | None = ...,
        capacity: int = ...,
        overflow: Overflow = ...,
    ) -> Selection[E]: ...
    def select(
        self,
        *kinds: type[Any],
        path: tuple[str, ...] = (),
        branch: str | None = None,
        branch_prefix: str | None = None,
        call_id: str | None = None,
        depth: int | None = None,
        capacity: int = CAPACITY,
        overflow: Overflow = "drop",
    ) -> Selection[Any]:
        """Some of the events, from now on: `async for event in stream.select(ToolStarted, depth=0)`.

        With `overflow="wait"` nothing is lost: while the buffer is full, the run waits before its next step and behind
        each piece of an answer. It does so until the iterator is closed, left by its loop, or garbage; somebody who
        holds it and does not read holds the run up.

        Args:
            *kinds: Events of these classes; of any when left out.
            path: Of the step at this path, and of those below it.
            branch: Of exactly this branch.
            branch_prefix: Of this branch, and of those below it.
            call_id: Of this tool call, and of all that happens below it.
            depth: Of no more spawns below the run than this; 0 is what is in none.
            capacity: How many events may wait.
            overflow: What happens when more do: the oldest are lost, and counted in `dropped`, or the run waits.

        Raises:
            ConfigError: `capacity` is below 1, or `overflow` unknown; code `"stream"`.
        """
        wanted = Filter(kinds, tuple(path), branch, branch_prefix, call_id, depth)
        return Selection(self._run.bus, wanted.predicate, capacity=capacity, overflow=overflow)

    def snapshots(
        self, *, path: tuple[str, ...] = (), capacity: int = CAPACITY, overflow: Overflow = "drop"
    ) -> Snapshots:
        """Items while they grow, each time whole, and as they are committed; from now on.

        A snapshot takes the place of the one before that has the same `key`. What a failed call had said so far comes
        once more as `"void"`.

        Args:
            path: Of the step at this path, and of those below it.
            capacity: As for `select`.
            overflow: As for `select`.
        """
        return Snapshots(self.select(*Snapshots.KINDS, path=path, capacity=capacity, overflow=overflow))

    def partial(
        self, type: type[T], *, path: tuple[str, ...] = (), capacity: int = CAPACITY, overflow: Overflow = "drop"
    ) -> AsyncIterator[T]:
        """The typed output of `call_model(..., output=type)` while it comes in; from now on.

        Each value fits the type. A text may still grow, and the last entry of a list may be missing; a class has to
        have all the fields that it requires, so give those a default, or use a `TypedDict` whose keys may be missing.
        Nothing of it is final before its step is committed: a failed call begins anew.

        Args:
            type: What the answers are.
            path: Of the step at this path, and of those below it; answers elsewhere that fit the type come too.
            capacity: As for `select`.
            overflow: As for `select`.

        Raises:
            ConfigError: The type has no JSON schema; code `"output-type"`.
        """
        from noetic_py._engine.output import output_plan

        kinds = (TextDelta, ItemsAppended, ModelStarted, ModelFailed, StepVoided)
        events = self.select(*kinds, path=path, capacity=capacity, overflow=overflow)
        return _Partials(events, output_plan((type,)).partial)

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


class _Partials(AsyncIterator[T], Generic[T]):
    """The values of answers while they come in; `read` says what a beginning is, or that it is none yet."""

    def __init__(self, events: AsyncIterator[Event], read: Callable[[str], T]) -> None:
        self._events = events
        self._read = read
        self._texts: dict[tuple[str, ...], str] = {}
        self._last: object = None

    async def __anext__(self) -> T:
        async for event in self._events:
            if not isinstance(event, TextDelta):
                for path in [path for path in self._texts if path[: len(event.path)] == event.path]:
                    del self._texts[path]
                continue
            text = self._texts[event.path] = self._texts.get(event.path, "") + event.delta
            try:
                value = self._read(text)
            except CodecError:
                # There is not enough of it yet, or it is another answer.
                continue
            if self._last != (event.path, value):
                self._last = (event.path, value)
                return value
        raise StopAsyncIteration


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
