"""`Harness`: the public entry point to the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import anyio
from attrs import evolve
from typing_extensions import Unpack

from noetic_py.access import ALLOW_ALL, AccessAction, AccessPolicy, AccessRequest, Authorizer, Resource
from noetic_py.context.artifacts import ArtifactStore
from noetic_py.context.context import Context
from noetic_py.context.graph import GraphForm, drawn
from noetic_py.context.hooks import Hook, read_hooks
from noetic_py.context.read import ContextScope, Services
from noetic_py.context.step import AnyStep, Retry, Step, awaited, box_of, require_step
from noetic_py.core.budget import Budget
from noetic_py.core.control import AnyResult, Checkpoint, Partial, RunResult, SessionKey
from noetic_py.core.diagnostics import HIDING, LostCalls, known_keywords, must_enter
from noetic_py.core.memory import Memory
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.state import StateBag, class_of
from noetic_py.core.types import M, M_co, R, S, T
from noetic_py.errors import ConfigError, NoeticError, RunNotFound, StepFailed
from noetic_py.models.model import Model, ModelSettings
from noetic_py.runner import registry
from noetic_py.runner.plan import (
    Planner,
    ResumeOptions,
    RunOptions,
    adopting,
    at_home,
    check_parts,
    checked_backend,
    detached_options,
)
from noetic_py.sessions.policy import SessionPolicy, checked_policy
from noetic_py.steps.spawn import with_memory

if TYPE_CHECKING:
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.context.detached import DetachedWork, DetachOptions
    from noetic_py.context.hooks import AnyHook
    from noetic_py.core.view import View
    from noetic_py.engine.journaling.writer import ClaimedRun, RunStorage
    from noetic_py.engine.run import RunPlan
    from noetic_py.engine.state import Run
    from noetic_py.journal.run_summary import ResumePlan
    from noetic_py.journal.stored import Queued, QueueLimits
    from noetic_py.journal.transforms import RecordTransform
    from noetic_py.plugins import LayerRegistry
    from noetic_py.runner.children import QueuedChildren
    from noetic_py.runner.runs import Runs
    from noetic_py.runner.workers import QueueWorker, SubmitOptions
    from noetic_py.schedules import Schedule, Scheduler, Schedules
    from noetic_py.sessions.erasure import ErasureCertificate
    from noetic_py.sessions.export import LayerData
    from noetic_py.sessions.reindexing import Reindexed
    from noetic_py.sessions.session import Session, Sessions
    from noetic_py.sessions.store import SessionStore
    from noetic_py.tools import Tool
    from noetic_py.tools.definition import AnyTool

MemoryT = TypeVar("MemoryT", bound=Memory)


def _schedules_of(schedules: object, flows: Mapping[str, AnyStep]) -> Mapping[str, Schedule]:
    if schedules is None:
        return {}
    from noetic_py.schedules import check_schedules

    return check_schedules(schedules, flows)


def _limits_of(queues: object) -> Mapping[str, QueueLimits]:
    if queues is None:
        return {}
    from noetic_py.runner.workers import check_queues

    return check_queues(queues)


@awaited("harness")
class Harness(Generic[M_co]):
    """Runs steps. A harness is configuration and owned resources; any number of runs share it at once.

    Use it as `async with Harness(...) as harness`; leaving waits for started runs, and cancels them when it is left by
    an exception.

    Args:
        memory: The memory bundle; an instance of a [`Memory`][noetic_py.Memory] subclass.
        model: The model of `call_model()` steps that name none.
        checkpoints: What keeps its runs, so that they can be resumed: `"sqlite:runs.db"`, or a backend. Without one a
            journal lives as long as its result.
        budget: Limits that hold for all its runs together, or a budget that they share with runs of other processes.
        tools: Tools that every model call may use.
        plugins: The plugins to load, by name or as objects; all that are installed when left out.
        services: Services by type.
        flows: Steps by name, for the command line and for `submit` and `work`.
        schedules: When `work` begins runs of these flows by itself, by name.
        queues: How many runs of a queue, and of one key in it, workers carry out at once, all of them together.
        model_settings: Settings for every model call, farther than a step's own.
        sessions: How its sessions behave.
        runtime: The clock, ids and randomness; the machine's when left out.
        record_transforms: What the records of its runs go through on their way to the backend, in this order, to be
            signed or encrypted; those of plugins follow.
        access: The policy that decides who may do what to runs and sessions; everything is allowed when left out.
        hooks: Functions that are called in all its runs, after those of plugins; see
            `noetic_py.context.hooks`.
        max_parallel_tools: How many calls of tools of one answer run at once; a step may say otherwise.
        max_iterations: How many iterations all loops of a run, and of the runs that its steps start, may have together;
            50,000 when left out. A stored run does not hold the records of finished rounds of a long loop in memory.
        lease: Seconds after which another process may take over a run, on a server, when the process that has it is
            silent. It is renewed three times as often, so a short one costs more requests: 3 is short. On this machine
            a run is free as soon as its process ends.

    Raises:
        ConfigError: An argument is of the wrong kind.
        PluginError: A plugin was refused.
    """

    _group: anyio.abc.TaskGroup | None = None

    @overload
    def __init__(
        self: Harness[MemoryT],
        *,
        memory: MemoryT,
        model: str | Model | None = ...,
        checkpoints: str | CheckpointBackend | None = ...,
        budget: Budget | SharedBudget | None = ...,
        tools: Sequence[Tool[..., object, MemoryT]] = ...,
        plugins: Sequence[object] | None = ...,
        services: Mapping[type[Any], object] = ...,
        flows: Mapping[str, AnyStep] = ...,
        schedules: Mapping[str, Schedule] = ...,
        queues: Mapping[str, QueueLimits] = ...,
        model_settings: ModelSettings = ...,
        sessions: SessionPolicy = ...,
        runtime: Runtime = ...,
        record_transforms: Sequence[RecordTransform] = ...,
        access: AccessPolicy | None = ...,
        hooks: Sequence[Hook[MemoryT]] = ...,
        max_parallel_tools: int = ...,
        max_iterations: int = ...,
        lease: float = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Harness[Memory],
        *,
        memory: None = ...,
        model: str | Model | None = ...,
        checkpoints: str | CheckpointBackend | None = ...,
        budget: Budget | SharedBudget | None = ...,
        tools: Sequence[Tool[..., object]] = ...,
        plugins: Sequence[object] | None = ...,
        services: Mapping[type[Any], object] = ...,
        flows: Mapping[str, AnyStep] = ...,
        schedules: Mapping[str, Schedule] = ...,
        queues: Mapping[str, QueueLimits] = ...,
        model_settings: ModelSettings = ...,
        sessions: SessionPolicy = ...,
        runtime: Runtime = ...,
        record_transforms: Sequence[RecordTransform] = ...,
        access: AccessPolicy | None = ...,
        hooks: Sequence[Hook] = ...,
        max_parallel_tools: int = ...,
        max_iterations: int = ...,
        lease: float = ...,
    ) -> None: ...
    @known_keywords("Harness()")
    def __init__(
        self,
        *,
        memory: Memory | None = None,
        model: str | Model | None = None,
        checkpoints: str | CheckpointBackend | None = None,
        budget: Budget | SharedBudget | None = None,
        tools: Sequence[AnyTool] = (),
        plugins: Sequence[object] | None = None,
        services: Mapping[type[Any], object] | None = None,
        flows: Mapping[str, AnyStep] | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        queues: Mapping[str, QueueLimits] | None = None,
        model_settings: Mapping[str, Any] | None = None,
        sessions: SessionPolicy | None = None,
        runtime: Runtime = SYSTEM,
        record_transforms: Sequence[RecordTransform] = (),
        access: AccessPolicy | None = None,
        hooks: Sequence[AnyHook] = (),
        max_parallel_tools: int = 16,
        max_iterations: int | None = None,
        lease: float = 30.0,
    ) -> None:
        from noetic_py.engine import run as engine
        from noetic_py.engine.layers.handles import layers_for
        from noetic_py.engine.state import Resources, Run
        from noetic_py.plugins import load_plugins

        self._engine = engine  # loaded with the first harness and not with the package; every run needs it
        check_parts(memory, model, budget, tools, max_parallel_tools, max_iterations, lease)
        self._plugins = load_plugins(plugins, runtime=runtime)
        backend = self._plugins.backend(checkpoints, record_transforms)
        self._backend = kept = checked_backend(backend, self._plugins, sessions, memory, (model, *tools), services)
        self.flows: Mapping[str, AnyStep] = {k: require_step(v, f"flows[{k!r}]") for k, v in (flows or {}).items()}
        self._schedules, self._queue_limits = _schedules_of(schedules, self.flows), _limits_of(queues)
        self._resources = Resources(
            runtime=runtime,
            layers=layers_for(Memory() if memory is None else memory),
            storage=kept,
            model=model,
            plugins=self._plugins,
            tools=tuple(tools),
            budget=budget,
            settings=model_settings or {},
            hooks=(*self._plugins.hooks.hooks, *read_hooks(hooks, "the harness")),
            max_parallel_tools=max_parallel_tools,
            max_iterations=max_iterations,
            ttl=lease,
        )
        self._home = registry.Home(checkpoints.partition(":")[0] if isinstance(checkpoints, str) else "memory")
        # A backend that the harness has made is its own to close.
        self._closed, self._lost, self._made_backend = False, LostCalls(), isinstance(checkpoints, str)
        self._detached_runs: dict[str, registry.RunHandle[Any, Any]] = {}  # those that steps have started, by id
        self._session_policy, self._memory = checked_policy(sessions), memory
        self._workers: list[QueueWorker] = []
        self._living, self._access = registry.Living(self._refuse), (asked := Authorizer(access))
        given = Services(*(at_home(each, self._resources) for each in (services or {}, self._plugins.services.by_type)))
        self._resources.children = None if kept is None else lambda: self._children
        parts = (engine.INTERPRETER, Run, engine.RunPlan, self._resources, self._living, asked, given, kept, self.flows)
        self._planner = Planner(*parts)

    @property
    def budget(self) -> Budget | SharedBudget | None:
        """The limits that hold for all its runs together."""
        return self._resources.shared or self._resources.lease.budget

    @property
    def memory_layers(self) -> LayerRegistry:
        """The memory layers that can be named: the library's own, and those of plugins."""
        return self._plugins.layers

    def explain_view(self, run_id: str) -> View:
        """The last request to the model of a run: each part, its tokens and its reason, and what changed the cache.

        `print(harness.explain_view(run_id).explain())` is a table of it. The runs that go on are known, and those that
        have ended last.

        Raises:
            RunNotFound: No such run is known here, or no model was asked in it while it had layers.
        """
        return self._living.view(run_id, self._access)

    async def dump_memory(self, *, user_id: str | None = None, thread_id: str | None = None) -> Mapping[str, LayerData]:
        """What the memory layers of the harness's bundle keep for a user, for a thread, or for both, as data.

        Of a session, `session.dump()` has the layers of scope thread too. Layers are read one after the other, so runs
        that go on meanwhile may have written some of them. A database of a layer's own, such as
        `SemanticRecall(vectors=...)`, is not read.

        Args:
            user_id: Whose layers of scope user.
            thread_id: Of which thread those of scope thread.

        Returns:
            The state and the values beside it, in stored form, by the layer's id; of layers that keep something.

        Raises:
            ConfigError: Neither is named; code `"memory-owner"`.
            CodecError: What is stored cannot be read.
            AccessDenied: The access policy does not allow `"export"`.
        """
        from noetic_py.sessions.export import dump_of

        layers = self._resources.layers.by_id.values()
        store = self._session_store.layer_store
        return await dump_of(self._access, store, layers, user_id=user_id, thread_id=thread_id)

    async def reindex(self) -> AsyncGenerator[Reindexed]:
        """Bring what memory layers keep into the form of their settings: all passages get vectors of today's embedder.

            async for each in harness.reindex():
                print(f"{each.done} of {each.total}: {each.changed} passages")

        Call it after the embedder of a [`SemanticRecall`][noetic_py.memory.SemanticRecall] was changed. Owners come one
        after the other: users, threads, and what belongs to all. One that is done stays done, so a call after a crash
        goes on with the others. Runs may go on meanwhile.

        Yields:
            Each owner with the number of its passages that have a new vector.

        Raises:
            LayerError: The embedder has failed, or a database of a layer's own.
            AccessDenied: The access policy does not allow `"delete"`, which replacing is.
            StoreUnavailable: The store cannot be reached.
        """
        await self._access.require("delete", on=Resource())
        from noetic_py.sessions.reindexing import reindexed

        async for each in reindexed(self._session_store.layer_store, self._resources.layers.by_id.values()):
            yield each

    async def erase(self, user_id: str, *, thread_ids: Sequence[str] = ()) -> ErasureCertificate:
        """Erase all that is stored about a user: runs, sessions, messages, artifacts, and what memory layers keep.

        The runs are those with this `user_id`, and the turns of the user's sessions, in every application. Of a thread
        in which such a run was, all memory is erased, also what runs of other users have added to it. If the call is
        cut short, by an error or because the process dies, call it again: it goes on with what is left.

        Args:
            user_id: The user.
            thread_ids: Threads of the user whose runs were all deleted or pruned, so that nothing names them any more.
                Other threads and sessions are found.

        Returns:
            What was removed, and where copies may be that the library cannot reach.

        Raises:
            RunBusy: A run or a turn of the user goes on, here or elsewhere; nothing of it is erased. End it, then call
                again.
            InvalidId: An id cannot be one.
            AccessDenied: The access policy does not allow `"delete"`.
            StoreUnavailable: The store cannot be reached, or another process reads an SQLite file all the time.
            LayerError: A database of a layer's own has failed.
        """
        from noetic_py.sessions.erasure import Erasure, check_owners, known_bundles

        check_owners(user_id, thread_ids)
        await self._access.require("delete", on=Resource(owner=user_id))
        for thread_id in thread_ids:
            await self._access.require("delete", on=Resource(thread_id=thread_id))
        bundles = known_bundles((self._resources.layers, *self._resources.bundles), self.flows.values())
        artifacts = self._planner.services.get(ArtifactStore)
        return await Erasure(user_id, thread_ids, self._session_store, bundles, artifacts, self._living).run()

    # -- its life

    async def __aenter__(self) -> Self:
        self._home.opened = None
        self._check_home()
        if self._group is not None:
            raise ConfigError("the harness is in use already", code="harness-entered", hint="enter it once, run often")
        # Around the group of detached work, which may ask models to its end.
        await self._resources.open()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._resources.group, self._resources.start_detached = self._group, self._start_detached
        self._lost.enter()
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
            if e is not None:
                self._living.note_cancelled(e)
            self._resources.group = self._resources.start_detached = None
            self._lost.leave()
            try:
                await self._resources.close()
            finally:
                if self._backend is not None and self._made_backend:
                    with anyio.CancelScope(shield=True):
                        await self._backend.close()
        if e is None:
            self._lost.refuse(self)

    async def shutdown(self, *, timeout: float | None = None, partial: Partial = "save") -> None:
        """Refuse new runs, and wait for those in progress.

        New runs and turns, and turns that wait, raise `ShuttingDown`; runs in progress may still start others. A run
        that has not ended in time is interrupted: its finished steps are stored, its lease is released, and
        `RunInfo.shutdown` is true, so any process can resume it at once. A `replay="once"` body is not shielded longer.

        Args:
            timeout: Seconds to wait; `None` waits without a limit.
            partial: Whether the conversation keeps the part of an answer that had arrived when it was cut off.

        Raises:
            ConfigError: An argument is illegal, or a step of this harness asks; code `"shutdown"`.
        """
        registry.check_shutdown(timeout, partial)
        if not self._closed:
            self._check_home()
            await self._living.shut_down(timeout, partial)

    @must_enter("harness.stopping_on_signals()")
    def stopping_on_signals(
        self, *, grace: float = 10.0, partial: Partial = "save"
    ) -> AbstractAsyncContextManager[registry.Stopping]:
        """Shut down on SIGTERM and Ctrl-C: `async with Harness() as harness, harness.stopping_on_signals():`.

        The first signal begins [`shutdown`][noetic_py.Harness.shutdown]. When the runs have ended, the rest of the
        block is cancelled and `SystemExit` is raised: code 143 after SIGTERM, 130 after SIGINT. A second signal ends
        the process at once, and so does the end of the grace period when a step blocks the event loop.

        Args:
            grace: The grace period: seconds in which runs may end by themselves; one more second stores the rest.
            partial: As for `shutdown`.

        Raises:
            ConfigError: An argument is illegal; code `"shutdown"`.
        """
        registry.check_shutdown(grace, partial)
        return registry.stopping_on_signals(lambda: self.shutdown(timeout=grace, partial=partial), grace)

    def _refuse(self) -> None:
        """A shutdown begins."""
        if "_session_store" in self.__dict__:
            self._session_store.close()
        for worker in self._workers:
            worker.stop()

    def _check_home(self) -> None:
        """A harness belongs to one thread and one event loop."""
        if self._closed:
            raise ConfigError("the harness was closed", code="harness-closed", hint="make a new one")
        self._home.check()

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
    async def run(
        self, step: object, input: object, *, state: object = None, ctx: object = None, **options: object
    ) -> Any:
        """Run a step to its end.

        Args:
            step: The step.
            input: Its input.
            state: The state; needed when the step asks for a type of its own.
            ctx: A context to continue, instead of `state` and `history`; afterwards it holds the longer conversation.
            **options: See [`RunOptions`][noetic_py.runner.plan.RunOptions].

        Returns:
            How the run ended: completed, aborted, out of budget, ... ; see [`RunResult`][noetic_py.RunResult].

        Raises:
            NoeticError: The run broke; the error carries the result. `on_error="result"` returns it instead.
            ConfigError: An option is unknown or of the wrong kind.
            ForgedEvent: An item of `history=`, `ctx=` or the input is one that only a run makes.
            RunBusy: There is a run with this `run_id=` already, or another process has the session.
            WrongThread: The harness belongs to another thread or event loop.
            AccessDenied: The access policy does not let the caller run it.
        """
        with HIDING:
            return await self._run(step, input, state, ctx, options)

    async def _run(self, step: Any, input: Any, state: object, ctx: object, options: Mapping[str, Any]) -> AnyResult:
        self._check_home()
        run, plan = await self._planner.begin(step, input, state, ctx, options)
        return registry.deliver(await self._execute(run, plan, ctx), options.get("on_error", "raise"))

    async def _execute(self, run: Run, plan: RunPlan, ctx: object, asked: AccessRequest | None = None) -> AnyResult:
        try:
            if asked is not None:
                await self._access.approve(asked)
            with self._engine.traced(run, plan.step, resumed=plan.run_history is not None):
                if run.session is None:
                    return await self._go(run, plan, ctx)
                from noetic_py.sessions.turn import take_turn

                return await take_turn(self._session_store, run, plan, run.session, self._go, self._again)
        except BaseException as error:
            from noetic_py.engine.frame import failure_of

            failure = failure_of(error)
            if failure is None:
                registry.note_cancelled(error, run, self)
            if failure is error or failure is None:
                raise
            raise StepFailed(path=(), error_type="CancelledError", error_message=str(failure)) from error
        finally:
            self._living.remove(run)
            self._detached_runs.pop(run.run_id, None)

    async def _go(self, run: Run, plan: RunPlan, ctx: object = None) -> AnyResult:
        if plan.storage is None:
            return await self._engine.run_flow(run, plan) if ctx is None else await self._adopt(run, plan, ctx)
        return await self._keep(run, plan, plan.storage, ctx)

    async def _again(self, run_id: str, plan: RunPlan) -> tuple[AnyResult, ContextScope]:
        """Go on with a run of an earlier process, or give its result once more."""
        options = {"budget": plan.limits, "deadline": plan.deadline}
        run, former = await self._reopen(run_id, plan.step, class_of(plan.scope.state), options, ALLOW_ALL)
        try:
            with self._session_store.again(run):
                return await self._go(run, former), former.scope
        finally:
            self._living.remove(run)

    async def _keep(self, run: Run, plan: RunPlan, storage: RunStorage, ctx: object) -> AnyResult:
        from noetic_py.runner import lease

        plan = await lease.begin_stored_run(run, plan, storage) if plan.run_history is None else plan
        work = partial(self._engine.run_flow, run, plan) if ctx is None else partial(self._adopt, run, plan, ctx)
        return await lease.with_heartbeat(run, work)

    async def _adopt(self, run: Run, plan: RunPlan, ctx: object) -> AnyResult:
        with adopting(ctx, plan.scope.log, run) as outside:
            try:
                result = await self._engine.run_flow(run, plan)
            finally:
                outside.memory.states = (
                    self._resources.layers.of_thread(plan.scope.layer_states) or outside.memory.states
                )
            if result.status == "completed":
                outside.settled = plan.scope.log.size
            return result

    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[registry.RunStream[R, StateBag]]: ...
    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[registry.RunStream[R, S]]: ...
    @overload
    def stream(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[registry.RunStream[R, S]]: ...
    @must_enter("harness.stream(step, input)")
    def stream(
        self, step: object, input: object, *, state: object = None, ctx: object = None, **options: object
    ) -> Any:
        """Run a step and watch it: `async with harness.stream(step, input) as stream`.

        Leaving the block before the end cancels the run. Arguments and errors are those of `run`; errors of the run
        come out of `stream.result()`.
        """
        return self._stream(step, input, state, ctx, options)

    @asynccontextmanager
    async def _stream(
        self, step: Any, input: Any, state: object, ctx: object, options: Any
    ) -> AsyncGenerator[registry.RunStream[Any, Any]]:
        self._check_home()
        run, plan = await self._planner.begin(step, input, state, ctx, options)
        async with self._watched(run, plan, ctx, options) as stream:
            yield stream

    @asynccontextmanager
    async def _watched(
        self, run: Run, plan: RunPlan, ctx: object, options: Mapping[str, Any]
    ) -> AsyncGenerator[registry.RunStream[Any, Any]]:
        stream: registry.RunStream[Any, Any] = registry.RunStream(run, self._access)
        try:
            follow = partial(self._follow, run, plan, ctx, stream, options.get("on_error", "raise"))
            async with registry.beside(follow, lambda: run.bus.closed):
                yield stream
        except BaseException as error:
            registry.note_cancelled(error, run, self)
            raise
        finally:
            # Its task may have been cancelled before it began.
            self._living.remove(run)

    async def _follow(
        self,
        run: Run,
        plan: RunPlan,
        ctx: object,
        stream: registry.RunStream[object, object],
        on_error: str,
        asked: AccessRequest | None = None,
    ) -> None:
        """Carry a run that is watched; the watcher raises its errors."""
        outcome: AnyResult | NoeticError | None = None
        try:
            outcome = registry.deliver(await self._execute(run, plan, ctx, asked), on_error)
        except NoeticError as error:
            outcome = error
        except BaseException as cut:
            from noetic_py.engine.frame import lost_task

            # A cancellation of this task alone cancels its run, and not the harness that owns the task.
            if isinstance(cut, Exception) or lost_task(cut) is None:
                raise
        finally:
            # A run that could not begin has sent nothing, and nothing comes any more.
            run.bus.close()
            stream.finish(outcome)
            del stream  # from Python 3.12 on a body's traceback keeps this frame, and the stream is to be collected

    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> registry.RunHandle[R, StateBag]: ...
    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> registry.RunHandle[R, S]: ...
    @overload
    def start(
        self: Harness[M], step: Step[T, R, M, S], input: T, *, ctx: Context[M, S], **options: Unpack[RunOptions]
    ) -> registry.RunHandle[R, S]: ...
    def start(self, step: object, input: object, *, state: object = None, ctx: object = None, **options: Any) -> Any:
        """Start a run in the background, owned by the harness.

        Raises:
            ConfigError: The harness was not entered; code `"harness-not-entered"`.
            RunBusy: This process has the run in progress; every other `RunBusy` comes out of `handle.result()`.
            AccessDenied: No principal is set; what the policy denies comes out of `handle.result()`.
        """
        self._check_home()
        group = self._owner()
        given, asked = self._planner.authorize(options, ctx)
        run, plan = self._planner.new(step, input, state, ctx, given)
        handle: registry.RunHandle[Any, Any] = registry.RunHandle(run, registry.RunStream(run, self._access))
        group.start_soon(partial(self._follow, run, plan, ctx, handle.stream, options.get("on_error", "raise"), asked))
        return handle

    def _owner(self) -> anyio.abc.TaskGroup:
        if self._resources.group is None:
            raise ConfigError(
                "start() needs an owner for its task",
                code="harness-not-entered",
                hint="async with Harness() as harness:",
            )
        return self._resources.group

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
    def run_sync(
        self, step: object, input: object, *, state: object = None, ctx: object = None, **options: object
    ) -> Any:
        """Run a step from code without an event loop; the harness is entered for this one run.

        Raises:
            WrongThread: An event loop runs in this thread; `await harness.run(...)` there.
        """
        from anyio.from_thread import start_blocking_portal

        async def work() -> Any:
            self._home.leave()
            failure: Exception | None = None
            await self._resources.open()
            try:
                # Detached work of the run needs an owner, as in an entered harness.
                async with anyio.create_task_group() as group:
                    self._resources.group, self._resources.start_detached = group, self._start_detached
                    try:
                        return await self._run(step, input, state, ctx, options)
                    except Exception as error:  # noqa: BLE001 # raised below, outside the group, which would wrap it
                        failure = error
                if failure is not None:
                    raise failure
                raise RuntimeError("the run has ended without a result")
            finally:
                self._resources.group = self._resources.start_detached = None
                self._home.leave()
                await self._resources.close()

        with HIDING:
            self._home.require_no_loop()
            try:
                with start_blocking_portal() as portal:
                    return portal.call(work)
            except KeyboardInterrupt as error:
                self._living.note_cancelled(error)
                raise

    # -- what was begun before

    @property
    def runs(self) -> Runs:
        """The runs that the backend keeps.

        Raises:
            ConfigError: The harness has no backend; code `"no-backend"`.
        """
        from noetic_py.runner.runs import Runs

        living = self._living
        return Runs(
            self._needed(), self._resources.runtime, self._access, partial(living.flow, self.flows), living.end_of
        )

    def _needed(self) -> CheckpointBackend:
        if self._backend is None:
            raise ConfigError(
                "this harness keeps no runs", code="no-backend", hint='Harness(checkpoints="sqlite:runs.db")'
            )
        return self._backend

    @overload
    async def resume(
        self: Harness[M], run_id: str, step: Step[Any, R, M, StateBag], **options: Unpack[ResumeOptions]
    ) -> RunResult[R, StateBag]: ...
    @overload
    async def resume(
        self: Harness[M],
        run_id: str,
        step: Step[Any, R, M, S],
        *,
        state_type: type[S],
        **options: Unpack[ResumeOptions],
    ) -> RunResult[R, S]: ...
    async def resume(self, run_id: str, step: object, *, state_type: object = None, **options: Any) -> Any:
        """Go on with a run that this process, or another one, has begun.

        What has finished is not run again: a recorded step gives its recorded output. A step that was in flight runs
        again. A run that has completed gives its result once more; one that has failed tries again what it failed of.

        Args:
            run_id: The run.
            step: The flow it was started with.
            state_type: The type of its state; needed where no annotation of the flow names it.
            **options: See [`ResumeOptions`][noetic_py.runner.plan.ResumeOptions].

        Raises:
            RunNotFound: There is no such run, or the caller may not read it.
            AccessDenied: The caller may read it, and not resume it, try it again or approve what is answered.
            RunBusy: Another process has it.
            ReplayDiverged: The flow does something else than the run's journal says.
            PluginError: A step is of a kind that no plugin of this harness provides; nothing is run or written.
            AnswerError: An answer is not taken; then none is, and nothing is run.
            NoeticError: The run broke; the error carries the result. `on_error="result"` returns it instead.
        """
        with HIDING:
            run, plan = await self._reopen(run_id, step, state_type, options, self._access)
            return registry.deliver(await self._execute(run, plan, None), options.get("on_error", "raise"))

    @overload
    async def result(self: Harness[M], run_id: str, step: Step[Any, R, M, StateBag]) -> RunResult[R, StateBag]: ...
    @overload
    async def result(
        self: Harness[M], run_id: str, step: Step[Any, R, M, S], *, state_type: type[S]
    ) -> RunResult[R, S]: ...
    async def result(self, run_id: str, step: object, *, state_type: object = None) -> Any:
        """The result of a run that another process carries out, such as a worker; waits until it has ended.

        Nothing is run or written here, so that any number of processes may ask.

        Args:
            run_id: The run.
            step: The flow it was started with.
            state_type: The type of its state; needed where no annotation of the flow names it.

        Raises:
            RunNotFound: There is no such run, or the caller may not read it.
            Stopped: It has not ended: it waits for an answer, or was cut off and is to be resumed.
            ReplayDiverged: The flow does something else than the run's journal says.
            NoeticError: The run broke: the error of the step that broke it.
        """
        from noetic_py.runner import lease

        with HIDING:
            step = require_step(step, "result")
            info = await self.runs.wait(run_id)
            if info.status not in ("completed", "aborted"):
                raise await lease.failure_of(self._needed(), run_id, info.status)
            return await self._read_result(run_id, step, state_type)

    async def _read_result(self, run_id: str, step: AnyStep, state_type: object = None) -> AnyResult:
        run, plan = await self._reopen(run_id, step, state_type, {}, ALLOW_ALL, reads=True)
        return await self._engine.run_flow(run, plan)

    @overload
    def resume_stream(
        self: Harness[M], run_id: str, step: Step[Any, R, M, StateBag], **options: Unpack[ResumeOptions]
    ) -> AbstractAsyncContextManager[registry.RunStream[R, StateBag]]: ...
    @overload
    def resume_stream(
        self: Harness[M],
        run_id: str,
        step: Step[Any, R, M, S],
        *,
        state_type: type[S],
        **options: Unpack[ResumeOptions],
    ) -> AbstractAsyncContextManager[registry.RunStream[R, S]]: ...
    @must_enter("harness.resume_stream(run_id, step)")
    def resume_stream(self, run_id: str, step: object, *, state_type: object = None, **options: object) -> Any:
        """Go on with a run and watch it: `async with harness.resume_stream(run_id, step) as stream`.

        Leaving the block before the end cancels the run. Arguments and errors are those of `resume`; errors of the run
        come out of `stream.result()`.
        """
        return self._resume_stream(run_id, step, state_type, options)

    @asynccontextmanager
    async def _resume_stream(
        self, run_id: str, step: object, state_type: object, options: Any
    ) -> AsyncGenerator[registry.RunStream[Any, Any]]:
        run, plan = await self._reopen(run_id, step, state_type, options, self._access)
        async with self._watched(run, plan, None, options) as stream:
            yield stream

    async def plan_resume(self, run_id: str, step: AnyStep) -> ResumePlan:
        """The plan of a `resume`, read from the journal; nothing is run or written.

        Steps are compared by their code and options, as far as the flow declares them. What they would be given is
        known only once they run.

        Raises:
            RunNotFound: There is no such run.
            PluginError: A step is of a kind that no plugin of this harness provides.
        """
        from noetic_py.engine.journaling import dry_run
        from noetic_py.runner import lease
        from noetic_py.runner.runs import require_run

        self._check_home()
        require_step(step, "plan_resume")
        backend = self._needed()
        await require_run(self._access, backend, run_id, "read")
        return dry_run.plan_of(
            await lease.load_run_history(backend, run_id, lease.codec_for(step), self._resources.kinds), step
        )

    async def _reopen(
        self,
        run_id: str,
        step: Any,
        state_type: Any,
        options: Mapping[str, Any],
        access: Authorizer,
        claimed: ClaimedRun | None = None,
        *,
        reads: bool = False,
    ) -> tuple[Run, RunPlan]:
        self._check_home()
        backend = self._needed()
        return await self._planner.reopen(backend, run_id, step, state_type, options, access, claimed, reads=reads)

    # -- runs that workers carry out

    @overload
    async def submit(
        self: Harness[M],
        step: Step[T, R, M, StateBag],
        input: T,
        *,
        queue: str = ...,
        at: datetime | timedelta | None = ...,
        priority: int = ...,
        key: str | None = ...,
        **options: Unpack[SubmitOptions],
    ) -> str: ...
    @overload
    async def submit(
        self: Harness[M],
        step: Step[T, R, M, S],
        input: T,
        *,
        state: S,
        queue: str = ...,
        at: datetime | timedelta | None = ...,
        priority: int = ...,
        key: str | None = ...,
        **options: Unpack[SubmitOptions],
    ) -> str: ...
    async def submit(
        self,
        step: object,
        input: object,
        *,
        state: object = None,
        queue: str = "default",
        at: datetime | timedelta | None = None,
        priority: int = 0,
        key: str | None = None,
        **options: Any,
    ) -> str:
        """Store a run for a worker, which any process may be: `await harness.work()`. Nothing runs here.

        Args:
            step: The flow, one of the harness's `flows`; workers know it by its name there and by its code.
            input: Its input.
            state: The state; needed when the step asks for a type of its own.
            queue: The queue.
            at: When it may begin, or after how long; at once when left out.
            priority: Of the runs that may begin, those with the highest go first.
            key: Whose run it is in its queue, such as a tenant's: keys take turns, however many runs one of them has
                waiting, and `Harness(queues=)` can limit how many of each are at work. The user's id when left out.
            **options: See [`SubmitOptions`][noetic_py.runner.workers.SubmitOptions].

        Returns:
            The run's id, for `harness.runs.get` and `harness.runs.answer`.

        Raises:
            ConfigError: An option is unknown or of the wrong kind; it is not one of `flows`, code `"flows"`; or
                the backend has no queues, code `"queues"`.
            CodecError: The input or the state cannot be stored.
            RunBusy: There is a run with this id.
            AccessDenied: The access policy does not let the caller run it.
        """
        from noetic_py.runner import workers

        self._check_home()
        backend = self._needed()
        flow = require_step(step, "submit")
        workers.check_submit(options)
        owner = options.get("user_id") if key is None else key
        queued = workers.place_in(queue, flow, self.flows, await workers.when_of(at, backend), priority, owner)
        return await self._store_queued(*await self._planner.begin(flow, input, state, None, options), queued)

    async def _store_queued(self, run: Run, plan: RunPlan, queued: Queued) -> str:
        """Store the beginning of a run that a worker carries out; returns its id."""
        from noetic_py.runner import lease

        # A worker of this harness may carry it out before the store has answered here.
        self._living.remove(run)
        if plan.storage is not None:
            await lease.begin_stored_run(run, plan, evolve(plan.storage, queued=queued))
        self._look()
        return run.run_id

    def _look(self) -> None:
        """Have the workers of this process look for runs."""
        for worker in self._workers:
            worker.look()

    @cached_property
    def _children(self) -> QueuedChildren:
        """The runs that workers carry out for steps of its runs."""
        from noetic_py.runner.children import QueuedChildren

        return QueuedChildren(self._needed(), self._planner, self.flows, self._read_result, self._look)

    async def work(
        self,
        queues: Sequence[str] = ("default",),
        *,
        concurrency: int = 10,
        lives: int = 5,
        retry: Retry | None = None,
    ) -> None:
        """Carry out the runs that were submitted, until the harness is shut down; and begin those of its schedules.

        A run belongs to one worker at a time. When its worker dies, another one goes on with it from its last commit as
        soon as the lease has run out, in SQLite at once. A run that waits, for an approval or an answer, holds no
        worker; it is claimed again when it was answered. `shutdown` stops the claims, and hands over what has not
        ended in time.

        Args:
            queues: The queues.
            concurrency: How many runs this worker carries out at once; `Harness(queues=)` has limits of all workers.
            lives: How many workers in a row may die with a run; after that it ends as failed, with the reason, so that
                a run that kills its process does not do so for ever.
            retry: How often a run that fails is tried by workers, and how long they wait between; its finished steps
                are not repeated. Once when left out. A run that waits for another try stays in its queue.

        Raises:
            ConfigError: The harness has no `flows`, code `"flows"`; an option is wrong, code `"work"`; or the backend
                has no queues, code `"queues"`.
        """
        from noetic_py.runner import workers
        from noetic_py.runner.lease import beside

        self._check_home()
        backend = self._needed()
        workers.check_work(queues, concurrency, lives, retry)
        flows = workers.labelled(self.flows)
        runtime, ttl = self._resources.runtime, self._resources.ttl
        limits = self._queue_limits
        worker = workers.QueueWorker(
            backend,
            queues,
            limits,
            flows,
            self._carry,
            runtime,
            concurrency=concurrency,
            lives=lives,
            ttl=ttl,
            retry=retry,
        )
        if self._living.closing:
            return
        self._workers.append(worker)
        try:
            await (beside(self._scheduler().run, worker.run) if self._schedules else worker.run())
        finally:
            self._workers.remove(worker)

    @property
    def schedules(self) -> Schedules:
        """The schedules of this harness.

        Raises:
            ConfigError: The harness has no backend; code `"no-backend"`.
        """
        from noetic_py.schedules import Schedules

        return Schedules(self._scheduler(), self._access)

    def _scheduler(self) -> Scheduler:
        from noetic_py.schedules import Scheduler

        backend, runtime = self._needed(), self._resources.runtime
        return Scheduler(self._schedules, backend, self.flows, runtime, self._planner.new, self._store_queued)

    async def _carry(self, claimed: ClaimedRun, step: AnyStep) -> None:
        # The policy is not asked: the run that was submitted was allowed.
        run, plan = await self._reopen(claimed.claim.lease.run_id, step, None, {}, ALLOW_ALL, claimed)
        await self._execute(run, plan, None)

    # -- sessions

    def session(self, user: str | None, session: str, *, app: str | None = None) -> Session[M_co]:
        """One conversation of one user: `await harness.session("ada", "trip").run(agent, "Hello")`.

        Raises:
            InvalidId: A part cannot be one.
        """
        key = SessionKey(user, session, app=app)
        from noetic_py.sessions.session import Session

        return Session(key, self.run, self.stream, self._session_store, self._access)

    @property
    def sessions(self) -> Sessions:
        """The sessions that the backend keeps; without one, those of this harness."""
        from noetic_py.sessions.session import Sessions

        return Sessions(self._session_store, self._access)

    @cached_property
    def _session_store(self) -> SessionStore:
        from noetic_py.sessions.store import SessionStore

        resources = self._resources
        store = SessionStore(self._backend, self._session_policy, resources.runtime, self._memory, resources)
        if self._living.closing:
            store.close()
        return store

    async def interrupt(self, session: SessionKey, message: str | None = None) -> bool:
        """Stop the current turn of a session, in whatever process it runs; waiting turns are not stopped.

        The run ends as `"interrupted"`, with what it has so far. A message is added to the conversation behind that,
        as the user's, so that the model sees it in the next turn.

        Returns:
            Whether there was one.

        Raises:
            RunBusy: The other process that has the turn has not answered within ten seconds.
        """
        await self._access.require("abort", on=Resource.of_session(session))
        return await self._session_store.interrupt(session, message)

    async def fork(self, run_id: str, *, at: int | Checkpoint | None = None, state: object = None) -> str:
        """Copy a run up to a point of its journal; `resume` continues the copy.

        Args:
            run_id: The other run.
            at: Where: a position at which a transaction ends, or a checkpoint; its end when left out.
            state: The flow's state at that point; as it was when left out. Steps that finished on copies of the old
                one, paths of a section that goes on there, do not know of it.

        Returns:
            The new run's id.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: No transaction ends at `at`.
            CodecError: `state` cannot be stored.
            ConfigError: It is of another type than the run's; code `"state-type"`.
        """
        from noetic_py.runner.runs import fork_run, require_run

        backend = self._needed()
        await require_run(self._access, backend, run_id, "fork")
        return await fork_run(backend, self._resources.runtime, run_id, at, state)

    # -- what goes on beside

    def channel_handle(self, channel: Channel[T], run_id: str) -> ChannelHandle[T]:
        """A channel of a run in progress, for code outside: to send and to read.

        A run that was started, or that is being streamed, has its channels before its first step begins.

        Raises:
            RunNotFound: No such run is in progress in this harness.
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self._channel(channel, run_id, "send")

    def _channel(self, channel: Channel[T], run_id: str, *actions: AccessAction) -> ChannelHandle[T]:
        self._check_home()
        run = self._living.get(run_id)
        missing = RunNotFound(f"run {run_id!r} does not go on here", hint="it has ended, or another harness runs it")
        if run is None:
            self._access.require_now("read", on=Resource(run_id), hidden=missing)
            raise missing
        self._access.require_now(*actions, on=Resource.of_run(run), hidden=missing)
        return registry.handle_of(run, channel)

    @must_enter("harness.channel_stream(channel, run_id)")
    def channel_stream(self, channel: Channel[T], run_id: str) -> AbstractAsyncContextManager[AsyncIterator[T]]:
        """Stream an external channel of a run: `async with harness.channel_stream(channel, run_id) as values`.

        Raises:
            RunNotFound: No such run is in progress in this harness.
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self._channel(channel, run_id).stream()

    def _start_detached(
        self, run: Run, step: AnyStep, value: object, options: DetachOptions, run_id: str | None
    ) -> DetachedWork:
        """Start a detached run for a step, or return the one that the step has started before."""
        known = self._detached_runs.get(run_id or "")
        if known is not None:
            return registry.DetachedHarnessRun(known)
        given = detached_options(run, options.budget, run_id)
        if options.memory is not None:
            step = with_memory(step, memory=options.memory)
        made, plan = self._planner.new(step, value, options.state, None, given)
        if run_id is not None and plan.storage is not None:
            plan = evolve(plan, storage=evolve(plan.storage, again=True))
        # The policy is not asked: the run that starts it was allowed.
        handle: registry.RunHandle[object, object] = registry.RunHandle(made, registry.RunStream(made, ALLOW_ALL))
        self._owner().start_soon(partial(self._follow, made, plan, None, handle.stream, given["on_error"]))
        self._detached_runs[handle.run_id] = handle
        return registry.DetachedHarnessRun(handle)

    def graph(self, step: AnyStep, form: GraphForm = "mermaid") -> str:
        """The step's tree as a Mermaid flowchart, or as SVG."""
        return drawn(box_of(require_step(step, "graph")), form)
