"""`Harness`: the one public door to the engine."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

import anyio
from anyio.lowlevel import current_token
from typing_extensions import TypedDict, Unpack

from noetic_py._types import M2, M, M_co, O_co, R, S, S_co, T
from noetic_py.budget import Budget, Lease
from noetic_py.checkpoints.in_memory import InMemoryBackend
from noetic_py.context import Context, Domain, Outside, Services
from noetic_py.control import RunResult
from noetic_py.errors import ConfigError, InvalidId, NoeticError, RunBusy, RunNotFound, StepFailed, WrongThread
from noetic_py.events import Bus, Event, ItemsAppended, Subscription, TextDelta
from noetic_py.items import ItemBase
from noetic_py.log import ItemLog
from noetic_py.memory.layer import Memory
from noetic_py.models.base import ModelSettings
from noetic_py.runtime import SYSTEM, Runtime
from noetic_py.state import StateBag
from noetic_py.steps.step import Step, is_seconds, require_step
from noetic_py.tracing import tracer

if TYPE_CHECKING:
    from noetic_py._engine.run import RunPlan
    from noetic_py._engine.state import Run
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.checkpoints.backend import CheckpointBackend
    from noetic_py.detached import DetachedWork, DetachOptions
    from noetic_py.items import Item
    from noetic_py.models.base import JsonValue, Model, ModelSettings
    from noetic_py.tools import Tool

__all__ = ["Harness", "RunHandle", "RunOptions", "RunStream"]

MAX_ID = 256
"""The longest id that is taken from outside, in characters."""


class RunOptions(TypedDict, total=False):
    """Options of one run.

    Attributes:
        history: Items the conversation begins with.
        run_id: The run's id; made when left out.
        request_id: A correlation id of the caller's.
        thread_id: The conversation's id; made when left out.
        user_id: The user or tenant the run belongs to.
        on_error: Whether a run that broke raises, or returns a result whose status is `"failed"`.
        model_settings: Settings that hold for every model call of the run.
        budget: Limits of the run, besides the harness's.
        deadline: Seconds after which the run ends as `"budget_exceeded"`.
        services: Services by type, nearer than the harness's.
        metadata: JSON that travels with the run.
    """

    history: Iterable[Item]
    run_id: str
    request_id: str
    thread_id: str
    user_id: str
    on_error: Literal["raise", "result"]
    model_settings: ModelSettings
    budget: Budget
    deadline: float
    services: Mapping[type[Any], object]
    metadata: Mapping[str, JsonValue]


_OPTIONS = frozenset(RunOptions.__annotations__)
_KINDS: Mapping[str, type[Any]] = {
    "budget": Budget,
    "services": Mapping,
    "metadata": Mapping,
    "model_settings": Mapping,
}


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
        return _Text(self._subscription("text"))

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return _Items(self._subscription("items"))

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
        """The result once there is one, `None` before, and when the run raised."""
        return self._outcome if isinstance(self._outcome, RunResult) else None

    def finish(self, outcome: RunResult[Any, Any] | NoeticError | None) -> None:
        """Say how the run ended; the harness does."""
        self._outcome = outcome
        self._done.set()

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        return _handle(self._run, channel)

    def abort(self, reason: str) -> None:
        """Stop the run: its status becomes `"aborted"`."""
        self._run.stop_from_outside("abort", reason)

    def interrupt(self, reason: str = "interrupted") -> None:
        """Stop the run: its status becomes `"interrupted"`."""
        self._run.stop_from_outside("interrupt", reason)


class _Text(AsyncIterator[str]):
    def __init__(self, events: Subscription) -> None:
        self._events = events

    async def __anext__(self) -> str:
        async for event in self._events:
            if isinstance(event, TextDelta):
                return event.delta
        raise StopAsyncIteration


class _Items(AsyncIterator["Item"]):
    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._ready: list[Item] = []

    async def __anext__(self) -> Item:
        while not self._ready:
            async for event in self._events:
                if isinstance(event, ItemsAppended):
                    self._ready = list(reversed(event.items))
                    break
            else:
                raise StopAsyncIteration
        return self._ready.pop()


class RunHandle(Generic[O_co, S_co]):
    """A run that was started and goes on beside its caller; the harness owns its task."""

    def __init__(self, run: Any) -> None:
        self._run: Run = run
        self.stream: RunStream[O_co, S_co] = RunStream(run)

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
        return _handle(self._run, channel)

    def abort(self, reason: str) -> None:
        """Stop the run: its status becomes `"aborted"`."""
        self._run.stop_from_outside("abort", reason)

    def interrupt(self, reason: str = "interrupted") -> None:
        """Stop the run: its status becomes `"interrupted"`."""
        self._run.stop_from_outside("interrupt", reason)


class _Launched:
    """A run that a step has started: what its `DetachedRun` stands for."""

    def __init__(self, handle: RunHandle[Any, Any]) -> None:
        self._handle = handle
        self.run_id: str = handle.run_id
        self.path: tuple[str, ...] = ()

    @property
    def outcome(self) -> RunResult[Any, Any] | None:
        return self._handle.stream.outcome

    async def wait(self) -> RunResult[Any, Any]:
        return await self._handle.result()

    def abort(self, reason: str) -> None:
        if not self._handle.done:
            self._handle.abort(reason)

    def channel(self, channel: Channel[Any]) -> ChannelHandle[Any]:
        return self._handle.channel(channel)


class Harness(Generic[M_co]):
    """Runs steps. A harness is configuration and owned resources; any number of runs go on in it at once.

    Use it as `async with Harness(...) as harness`; leaving waits for started runs, and cancels them when it is left by
    an exception.

    Args:
        memory: The memory bundle; an instance of a [`Memory`][noetic_py.Memory] subclass.
        model: The model of `call_model()` steps that name none.
        checkpoints: What keeps the journals of its runs: an [`InMemoryBackend`][noetic_py.checkpoints.InMemoryBackend].
            Without one a journal lives as long as its result.
        budget: Limits that hold for all its runs together.
        tools: Tools that every model call may use.
        plugins: The plugins to load, by name or as objects; all that are installed when left out.
        services: Services by type.
        flows: Steps by name, for the command line.
        model_settings: Settings for every model call, farther than a step's own.
        runtime: The clock, ids and randomness; the machine's when left out.

    Raises:
        ConfigError: An argument is of the wrong kind.
        PluginError: A plugin was refused.
    """

    @overload
    def __init__(
        self: Harness[Memory],
        *,
        model: str | Model | None = ...,
        checkpoints: str | CheckpointBackend | None = ...,
        budget: Budget | None = ...,
        tools: Sequence[Tool[..., object]] = ...,
        plugins: Sequence[object] | None = ...,
        services: Mapping[type[Any], object] = ...,
        flows: Mapping[str, Step[Any, Any, Any, Any]] = ...,
        model_settings: ModelSettings = ...,
        runtime: Runtime = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Harness[M2],
        *,
        memory: M2,
        model: str | Model | None = ...,
        checkpoints: str | CheckpointBackend | None = ...,
        budget: Budget | None = ...,
        tools: Sequence[Tool[..., object, M2]] = ...,
        plugins: Sequence[object] | None = ...,
        services: Mapping[type[Any], object] = ...,
        flows: Mapping[str, Step[Any, Any, Any, Any]] = ...,
        model_settings: ModelSettings = ...,
        runtime: Runtime = ...,
    ) -> None: ...
    def __init__(
        self,
        *,
        memory: Any = None,
        model: str | Model | None = None,
        checkpoints: str | CheckpointBackend | None = None,
        budget: Budget | None = None,
        tools: Sequence[Any] = (),
        plugins: Sequence[object] | None = None,
        services: Mapping[type[Any], object] | None = None,
        flows: Mapping[str, Step[Any, Any, Any, Any]] | None = None,
        model_settings: Mapping[str, Any] | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        from noetic_py._engine import run as engine
        from noetic_py._engine.state import Resources
        from noetic_py.plugins import load_plugins

        # Loaded with the first harness and not with the package; kept, because every run needs it.
        self._engine = engine

        _check_parts(memory, model, budget, tools)
        self._backend = _in_process(checkpoints)
        self._plugins = load_plugins(plugins)
        self._services = dict(services or {})
        self.flows: Mapping[str, Step[Any, Any, Any, Any]] = {
            name: require_step(step, f"flows[{name!r}]") for name, step in (flows or {}).items()
        }
        settings: Any = dict(model_settings or {})
        self._resources = Resources(
            runtime=runtime,
            memory=Memory() if memory is None else memory,
            model=model,
            models=self._plugins.models,
            tools=tuple(tools),
            lease=Lease(budget, now=runtime.monotonic()),
            settings=settings,
        )
        self._home: tuple[int, object] | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._closed = False
        # The runs that go on now, for whoever wants a handle of their channels.
        self._live: dict[str, Run] = {}

    @property
    def budget(self) -> Budget | None:
        """The limits that hold for all its runs together."""
        return self._resources.lease.budget

    # -- its life

    async def __aenter__(self) -> Self:
        self._check_home()
        if self._group is not None:
            raise ConfigError("the harness is in use already", code="harness-entered", hint="enter it once, run often")
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._resources.group, self._resources.launch = self._group, self._launch
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        group, self._group, self._closed = self._group, None, True
        if group is None:
            return
        if e is not None:
            group.cancel_scope.cancel()
        # The body's own exception goes on as it is: a task group that saw it would wrap it into a group.
        try:
            await group.__aexit__(None, None, None)
        finally:
            self._resources.group = self._resources.launch = None

    def _check_home(self) -> None:
        """A harness belongs to one thread and one event loop."""
        if self._closed:
            raise ConfigError("the harness was closed", code="harness-closed", hint="make a new one")
        here = (threading.get_ident(), current_token())
        if self._home is None:
            self._home = here
        elif self._home != here:
            raise WrongThread(
                "this harness is used from another thread or event loop than before",
                hint="make one harness for each thread, or use run_sync",
            )

    # -- running

    @overload
    async def run(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> RunResult[R, StateBag]: ...
    @overload
    async def run(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    @overload
    async def run(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    async def run(self, step: Any, input: Any, *, state: Any = None, ctx: Any = None, **options: Any) -> Any:
        """Run a step to its end.

        Args:
            step: The step.
            input: Its input.
            state: The state; needed when the step asks for a type of its own.
            ctx: A context to go on with, instead of `state` and `history`; afterwards it holds the longer conversation.
            **options: See [`RunOptions`][noetic_py.RunOptions].

        Returns:
            How the run ended: completed, aborted, out of budget, ... ; see [`RunResult`][noetic_py.RunResult].

        Raises:
            NoeticError: The run broke; the error carries the result. `on_error="result"` returns it instead.
            ConfigError: An option is unknown or of the wrong kind.
            WrongThread: The harness belongs to another thread or event loop.
        """
        return await self._run(step, input, state, ctx, options)

    async def _run(
        self, step: Any, input: Any, state: Any, ctx: Any, options: Mapping[str, Any]
    ) -> RunResult[Any, Any]:
        run, plan = self._plan(step, input, state, ctx, options)
        return _deliver(await self._execute(run, plan, ctx), options.get("on_error", "raise"))

    async def _execute(self, run: Run, plan: RunPlan, ctx: Any) -> RunResult[Any, Any]:
        try:
            return await self._engine.run_flow(run, plan) if ctx is None else await self._adopt(run, plan, ctx)
        finally:
            del self._live[run.run_id]

    async def _adopt(self, run: Run, plan: RunPlan, ctx: Any) -> RunResult[Any, Any]:
        outside = _outside(ctx)
        if outside.adopted:
            raise RunBusy(
                "the context is in another run", hint="await that run first, or give each run a context of its own"
            )
        outside.adopted = True
        try:
            return await self._engine.run_flow(run, plan)
        finally:
            outside.adopted = False

    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, StateBag]]: ...
    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, S]]: ...
    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, S]]: ...
    def stream(self, step: Any, input: Any, *, state: Any = None, ctx: Any = None, **options: Any) -> Any:
        """Run a step and watch it: `async with harness.stream(step, input) as stream`.

        Leaving the block before the end cancels the run. Arguments and errors are those of `run`; errors of the run
        come out of `stream.result()`.
        """
        return self._stream(step, input, state, ctx, options)

    @asynccontextmanager
    async def _stream(
        self, step: Any, input: Any, state: Any, ctx: Any, options: Any
    ) -> AsyncGenerator[RunStream[Any, Any]]:
        run, plan = self._plan(step, input, state, ctx, options)
        stream: RunStream[Any, Any] = RunStream(run)
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self._follow, run, plan, ctx, stream, options.get("on_error", "raise")))
            try:
                yield stream
            except Exception as error:  # noqa: BLE001 # it is raised below, outside the group, which would wrap it
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _follow(self, run: Run, plan: RunPlan, ctx: Any, stream: RunStream[Any, Any], on_error: str) -> None:
        """Carry a run for somebody who watches it; its errors are the watcher's to raise."""
        outcome: RunResult[Any, Any] | NoeticError | None = None
        try:
            outcome = _deliver(await self._execute(run, plan, ctx), on_error)
        except NoeticError as error:
            outcome = error
        finally:
            stream.finish(outcome)

    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> RunHandle[R, StateBag]: ...
    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> RunHandle[R, S]: ...
    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> RunHandle[R, S]: ...
    def start(self, step: Any, input: Any, *, state: Any = None, ctx: Any = None, **options: Any) -> Any:
        """Start a run that goes on beside the caller, owned by the harness.

        Raises:
            ConfigError: The harness was not entered; code `"harness-not-entered"`.
        """
        self._check_home()
        if self._group is None:
            raise ConfigError(
                "start() needs an owner for its task",
                code="harness-not-entered",
                hint="async with Harness() as harness:",
            )
        run, plan = self._plan(step, input, state, ctx, options)
        handle: RunHandle[Any, Any] = RunHandle(run)
        self._group.start_soon(partial(self._follow, run, plan, ctx, handle.stream, options.get("on_error", "raise")))
        return handle

    @overload
    def run_sync(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> RunResult[R, StateBag]: ...
    @overload
    def run_sync(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    @overload
    def run_sync(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    def run_sync(self, step: Any, input: Any, *, state: Any = None, ctx: Any = None, **options: Any) -> Any:
        """Run a step from code without an event loop; the harness is entered for this one run.

        Raises:
            WrongThread: An event loop runs in this thread; `await harness.run(...)` there.
        """
        import sniffio
        from anyio.from_thread import start_blocking_portal

        try:
            sniffio.current_async_library()
        except sniffio.AsyncLibraryNotFoundError:
            pass
        else:
            raise WrongThread("run_sync() would block the event loop of this thread", hint="await harness.run(...)")

        async def work() -> Any:
            self._home = None
            try:
                # What the run starts beside itself needs an owner, as in a harness that was entered.
                async with anyio.create_task_group() as group:
                    self._resources.group, self._resources.launch = group, self._launch
                    return await self._run(step, input, state, ctx, options)
            finally:
                self._resources.group = self._resources.launch = None
                self._home = None

        with start_blocking_portal() as portal:
            return portal.call(work)

    def _plan(self, step: Any, input: Any, state: Any, ctx: Any, options: Mapping[str, Any]) -> tuple[Run, RunPlan]:
        self._check_home()
        require_step(step, "run")
        _check_options(options, state, ctx)
        outside = None if ctx is None else _outside(ctx)
        run_id = options.get("run_id") or self._resources.runtime.new_id()
        if run_id in self._live:
            raise RunBusy(f"run {run_id!r} goes on already", hint="leave out run_id=, or await that run first")
        domain = self._domain(run_id, step, state, ctx, options)
        run = self._engine.Run(
            run_id=run_id,
            thread_id=options.get("thread_id") or (run_id if outside is None else outside.thread_id),
            user_id=options.get("user_id"),
            request_id=options.get("request_id") or (None if outside is None else outside.request_id),
            resources=self._resources,
            services=Services(options.get("services") or {}, self._services),
            metadata=dict(options.get("metadata") or {}),
            model_settings=options.get("model_settings") or ModelSettings(),
            bus=Bus(),
            tracer=tracer(),
            journal=[] if self._backend is None else self._backend.journal(run_id),
        )
        self._live[run_id] = run
        return run, self._engine.RunPlan(step, input, domain, options.get("budget"), options.get("deadline"))

    def _domain(
        self, run_id: str, step: Step[Any, Any, Any, Any], state: Any, ctx: Any, options: Mapping[str, Any]
    ) -> Domain:
        if ctx is not None:
            log, state = ctx.domain.log, ctx.domain.state
        else:
            try:
                log = ItemLog(options.get("history") or ())
            except TypeError as error:
                raise ConfigError(
                    f"history= is no list of items: {error}", code="run-option", hint="history=result.items"
                ) from error
            state = StateBag() if state is None else state
        log.origin = (run_id, step.id)
        return Domain(log, state, step.id)

    # -- what goes on beside

    def channel_handle(self, channel: Channel[T], run_id: str) -> ChannelHandle[T]:
        """A channel of a run that goes on, for code outside of it: to send, and to read.

        A run that was started, or that is being streamed, has its channels before its first step begins.

        Raises:
            RunNotFound: No such run goes on in this harness.
            ConfigError: The channel is not external; code `"channel"`.
        """
        self._check_home()
        run = self._live.get(run_id)
        if run is None:
            raise RunNotFound(f"run {run_id!r} does not go on here", hint="it has ended, or another harness runs it")
        return _handle(run, channel)

    def channel_stream(self, channel: Channel[T], run_id: str) -> AbstractAsyncContextManager[AsyncIterator[T]]:
        """What a run sends to an external channel: `async with harness.channel_stream(channel, run_id) as values`.

        Raises:
            RunNotFound: No such run goes on in this harness.
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self.channel_handle(channel, run_id).stream()

    def _launch(self, run: Run, step: Step[Any, Any, Any, Any], value: object, options: DetachOptions) -> DetachedWork:
        """Start a run of its own for a step that asked for one."""
        given: dict[str, Any] = {"on_error": "result", "services": run.services.by_type}
        given |= {name: found for name in ("user_id", "request_id") if (found := getattr(run, name)) is not None}
        if options.budget is not None:
            given["budget"] = options.budget
        handle: RunHandle[Any, Any] = self.start(step, value, state=options.state, **given)
        return _Launched(handle)

    def graph(self, step: Step[Any, Any, Any, Any]) -> str:
        """The step's tree as a Mermaid flowchart."""
        from noetic_py._engine.graph import mermaid

        return mermaid(require_step(step, "graph"))


def _handle(run: Run, channel: Channel[T]) -> ChannelHandle[T]:
    from noetic_py._engine.detached import external_handle

    return external_handle(run, channel)


def _outside(ctx: object) -> Outside:
    """What a context made outside a run knows of itself.

    Raises:
        ConfigError: It is no context, or a step's own; code `"run-option"`.
    """
    engine = ctx.engine if isinstance(ctx, Context) else None
    if not isinstance(engine, Outside):
        raise ConfigError(
            f"ctx={ctx!r} is no context to go on with", code="run-option", hint="make one: Context(items=...)"
        )
    return engine


def _in_process(checkpoints: object) -> InMemoryBackend | None:
    if checkpoints is None or isinstance(checkpoints, InMemoryBackend):
        return checkpoints
    raise ConfigError(
        f"checkpoints={checkpoints!r}: this version has no durable backend",
        code="checkpoints",
        hint="checkpoints=InMemoryBackend() from noetic_py.checkpoints, or leave it out",
    )


def _check_parts(memory: object, model: object, budget: object, tools: Sequence[object]) -> None:
    if memory is not None and not isinstance(memory, Memory):
        raise ConfigError(f"memory={memory!r} is no Memory", code="memory", hint="an instance of a Memory subclass")
    if model is not None and not isinstance(model, str) and not hasattr(model, "respond"):
        raise ConfigError(f"model={model!r} is no model", code="model", hint='model="openai:gpt-5-mini"')
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(f"budget={budget!r} is no Budget", code="budget", hint='budget=Budget(cost="5.00")')
    for tool in tools:
        if not hasattr(tool, "definition") and not hasattr(tool, "tools"):
            raise ConfigError(
                f"tools= holds {tool!r}, which is no tool", code="tools", hint="put @tool on the function"
            )


def _deliver(result: RunResult[Any, Any], on_error: str) -> RunResult[Any, Any]:
    """Return a result, or raise what broke its run."""
    if result.status != "failed" or on_error == "result":
        return result
    error = result.error
    if error is None:
        raise StepFailed(path=(), error_type="unknown", error_message="the run failed without an error")
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        raise error from error.__cause__
    raise error


def _check_options(options: Mapping[str, Any], state: Any, ctx: Any) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"unknown option {name!r}", code="run-option", hint=f"known are {', '.join(sorted(_OPTIONS))}"
            )
    if ctx is not None and (state is not None or options.get("history") is not None):
        raise ConfigError(
            "ctx= brings its own state and history", code="run-option", hint="leave out state= and history="
        )
    if options.get("on_error", "raise") not in ("raise", "result"):
        raise ConfigError(f"on_error={options['on_error']!r} is unknown", code="run-option", hint='"raise" or "result"')
    _check_kinds(options)
    for name in ("run_id", "thread_id", "user_id", "request_id"):
        if name in options:
            check_outside_id(options[name], name)


def _check_kinds(options: Mapping[str, Any]) -> None:
    deadline = options.get("deadline")
    if deadline is not None and not is_seconds(deadline):
        raise ConfigError(f"deadline={deadline!r} is not a number of seconds", code="run-option", hint="deadline=30.0")
    for name, kind in _KINDS.items():
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise ConfigError(
                f"{name}={value!r} is of the wrong kind", code="run-option", hint=f"{name}= takes a {kind.__name__}"
            )
    history = options.get("history")
    if isinstance(history, (str, ItemBase)) or (history is not None and not isinstance(history, Iterable)):
        raise ConfigError(f"history={history!r} is no list of items", code="run-option", hint="history=result.items")


def check_outside_id(value: object, name: str) -> None:
    """Refuse an id that cannot be one.

    Raises:
        InvalidId: It is no text, empty, too long, or holds control characters or a lone surrogate.
    """
    if not isinstance(value, str) or not value or len(value) > MAX_ID or not value.isprintable():
        raise InvalidId(
            f"{name} is not a printable text of 1 to {MAX_ID} characters", hint="use a UUID, or a short name"
        )
