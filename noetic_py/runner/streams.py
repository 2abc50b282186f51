"""A run under way, as its caller sees it: `RunStream` and `RunHandle`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from logging import ERROR
from typing import TYPE_CHECKING, Any, Generic, overload

import anyio
from typing_extensions import Unpack

from noetic_py.access import Authorizer, Resource
from noetic_py.context.protocol import CURRENT
from noetic_py.context.unawaited import awaited
from noetic_py.core.control import Control, RunResult
from noetic_py.core.events import Event, EventT, ItemsAppended, ReasoningDelta, TextDelta
from noetic_py.core.logs import Where, log
from noetic_py.core.selections import Choice, CommittedItems, Deltas, Partials, Selection, SelectOptions, Snapshots
from noetic_py.core.tracebacks import HIDING, trim
from noetic_py.core.types import O_co, S_co, T
from noetic_py.core.values import copy_value
from noetic_py.engine.frame import waited
from noetic_py.errors import NoeticError, RunBusy, StepFailed

if TYPE_CHECKING:
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.core.items import Item
    from noetic_py.engine.state import Run

__all__ = ["Launched", "RunHandle", "RunStream", "beside", "deliver", "handle_of"]


_VIEWS: Mapping[str, tuple[type[Event], ...]] = {
    "events": (),
    "text": (TextDelta,),
    "reasoning": (ReasoningDelta,),
    "items": (ItemsAppended,),
}


@awaited("stream")
class RunStream(Generic[O_co, S_co]):
    """A run under way: its events, its text, its items, and at the end its result.

    Each of `events`, `text`, `reasoning` and `items` has a buffer of its own, so they can be read side by side, each by
    one task; they begin with the run. Events of spawns, of parallel paths and of steps that tools call are among them.
    """

    def __init__(self, run: Any, access: Authorizer) -> None:
        self._run: Run = run
        self._access = access
        self._outcome: RunResult[O_co, S_co] | NoeticError | None = None
        # Whether anything has asked how the run ended, and so knows of a failure.
        self._reported = False
        self._done = anyio.Event()
        self._views: dict[str, Selection[Event]] = {
            name: Selection(run.bus, Choice(kinds)) for name, kinds in _VIEWS.items()
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
    def select(self, **options: Unpack[SelectOptions]) -> Selection[Event]: ...
    @overload
    def select(self, *kinds: type[EventT], **options: Unpack[SelectOptions]) -> Selection[EventT]: ...
    def select(self, *kinds: type[Any], **options: Unpack[SelectOptions]) -> Selection[Any]:
        """Some of the events, from now on: `async for event in stream.select(ToolStarted, depth=0)`.

        With `overflow="wait"` nothing is lost: while the buffer is full, the run waits before its next step and behind
        each piece of an answer or of what a tool yields. It does so until the iterator is closed, left by its loop, or
        garbage; a reader that holds it and does not read holds the run up, and the log says so after half a minute.

        Args:
            *kinds: Events of these classes; of any when left out.
            **options: Which of them, and how many may wait: see
                [`SelectOptions`][noetic_py.core.selections.SelectOptions].

        Raises:
            ConfigError: An option cannot be met, or a kind is no class of events; code `"stream"`.
        """
        return Selection(self._run.bus, Choice(kinds, **options))

    def snapshots(self, **options: Unpack[SelectOptions]) -> Snapshots:
        """Items while they grow, each time whole, and as they are committed; from now on.

        A snapshot takes the place of the one before that has the same `key`. What a failed call had said so far comes
        once more as `"void"`.

        Args:
            **options: As for `select`.

        Raises:
            ConfigError: As for `select`.
        """
        return Snapshots(self._run.bus, Choice(**options))

    def partial(self, type: type[T], **options: Unpack[SelectOptions]) -> Partials[T]:
        """The typed output of `call_model(..., output=type)` while it comes in, and at last as it is committed.

        It begins now. Each value fits the type. A text may still grow, and the last entry of a list may be missing; a
        class has to have all the fields that it requires, so give those a default, or use a `TypedDict` whose keys may
        be missing. Nothing of it is final before its step is committed: a failed call begins anew. Values of answers
        elsewhere that fit the type come too, unless `path=` or another option says which are meant.

        Args:
            type: What the answers are.
            **options: As for `select`.

        Raises:
            ConfigError: The type has no JSON schema, code `"output-type"`; or as for `select`.
        """
        from noetic_py.engine.kinds.output import output_plan

        plan = output_plan((type,))
        return Partials(self._run.bus, Choice(**options), plan.partial, plan.parse)

    async def result(self) -> RunResult[O_co, S_co]:
        """Wait for the end.

        Raises:
            NoeticError: The run broke, and `on_error` is `"raise"`.
        """
        await self._done.wait()
        self._reported = True
        if isinstance(self._outcome, NoeticError):
            with HIDING:
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
        self._reported = self._reported or self.done
        if isinstance(self._outcome, NoeticError):
            left: Any = self._outcome.result
            result: RunResult[O_co, S_co] | None = left
            return result
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
        if isinstance(outcome, NoeticError):
            # Its frames hold on to the stream, which could not be collected then.
            trim(outcome, causes=True)
        self._outcome = outcome
        self._done.set()

    def __del__(self) -> None:
        """Log a failure of which nothing has heard: that is known once nothing can ask for it any more."""
        outcome = self._outcome
        error = outcome.error if isinstance(outcome, RunResult) and outcome.status == "failed" else outcome
        if isinstance(error, NoeticError) and not self._reported:
            message = "run %s failed, and nothing asked for its result: %s"
            log("runs", ERROR, message, self.run_id, error.message, where=Where(self.run_id), error=error)

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        self._access.require_now("send", on=Resource.of_run(self._run))
        return handle_of(self._run, channel)

    def complete(self, value: object) -> bool:
        """End the run with a value: its status becomes `"completed"`, and what runs in it is cancelled.

        Returns:
            Whether this has ended it: `False` when it had ended, or when something else had stopped it before.

        Raises:
            ConfigError: The value is not of the type that the flow is annotated with; code `"complete"`.
            CodecError: The run is stored, and the value cannot be.
        """
        from noetic_py.engine.stops import COMPLETED, asked_by, check_value

        self._access.require_now("complete", on=Resource.of_run(self._run))
        check_value(value, self._run.flow, None if self._run.store is None else self._run.store.codec)
        return self._run.take_stop(Control("complete", value=copy_value(value), reason=COMPLETED, by=asked_by()))

    def wrap_up(self, reason: str) -> bool:
        """Have the run finish with what it has: its status becomes `"completed"`, and what runs in it is cancelled.

        The value is that of the budget's `wrap_up` step, which is run now. Without one it is the last value of the
        loop in flight that would have given the flow's output, if there is one.

        Returns:
            Whether it finishes for this: `False` when it had ended, or when something else had stopped it before.
        """
        from noetic_py.engine.stops import asked_by

        self._access.require_now("complete", on=Resource.of_run(self._run))
        return self._run.take_stop(Control("wrap_up", reason=reason, by=asked_by()))

    def abort(self, reason: str) -> bool:
        """Stop the run: its status becomes `"aborted"`; says whether nothing else had ended or stopped it."""
        from noetic_py.engine.stops import asked_by

        self._access.require_now("abort", on=Resource.of_run(self._run))
        return self._run.take_stop(Control("abort", reason=reason, by=asked_by()))

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Stop the run: its status becomes `"interrupted"`; says whether nothing else had ended or stopped it."""
        self._access.require_now("abort", on=Resource.of_run(self._run))
        return self._run.stop_from_outside("interrupt", reason)


@awaited("handle")
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
        with HIDING:
            return await self.stream.result()

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self.stream.channel(channel)

    def complete(self, value: object) -> bool:
        """End the run with a value; see [`RunStream.complete`][noetic_py.RunStream.complete].

        Raises:
            ConfigError: The value is not of the type that the flow is annotated with; code `"complete"`.
            CodecError: The run is stored, and the value cannot be.
        """
        return self.stream.complete(value)

    def wrap_up(self, reason: str) -> bool:
        """Have the run finish with what it has; see [`RunStream.wrap_up`][noetic_py.RunStream.wrap_up]."""
        return self.stream.wrap_up(reason)

    def abort(self, reason: str) -> bool:
        """Stop the run: its status becomes `"aborted"`; says whether nothing else had ended or stopped it."""
        return self.stream.abort(reason)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Stop the run: its status becomes `"interrupted"`; says whether nothing else had ended or stopped it."""
        return self.stream.interrupt(reason)


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
        return await waited(CURRENT.get(), self.run_id, self._handle.stream.ended)

    def complete(self, value: object) -> bool:
        """End it with a value."""
        return self._handle.complete(value)

    def wrap_up(self, reason: str) -> bool:
        """Have it finish with what it has."""
        return self._handle.wrap_up(reason)

    def abort(self, reason: str) -> None:
        """Stop it."""
        if not self._handle.done:
            self._handle.abort(reason)

    def channel(self, channel: Channel[Any]) -> ChannelHandle[Any]:
        """A handle of one of its channels."""
        return self._handle.channel(channel)


@asynccontextmanager
async def beside(follow: Callable[[], Coroutine[Any, Any, None]], over: Callable[[], bool]) -> AsyncGenerator[None]:
    """Carry a run beside a block, for as long as that lasts; one that is over by then still says how it has ended."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        try:
            yield
        except Exception as error:  # noqa: BLE001 # it is raised below, outside the group, which would wrap it
            failure = error
        if failure is not None or not over():
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
    from noetic_py.engine.detached import external_handle

    return external_handle(run, channel)
