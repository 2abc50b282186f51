"""The options of a run, and how a run is made of what its caller asks for: `Planner`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, frozen
from typing_extensions import TypedDict

from noetic_py.access import AccessRequest, Authorizer, Resource, attributed, current_principal
from noetic_py.checkpoints.checks import check_shared
from noetic_py.context.artifacts import StoredArtifacts
from noetic_py.context.context import AnyContext, Context
from noetic_py.context.read import ContextScope, Services, unanswered
from noetic_py.context.step import AnyStep, is_seconds, is_whole, require_step
from noetic_py.context.unbound import UnboundEngine
from noetic_py.core.budget import Budget
from noetic_py.core.control import Answer, SessionKey, check_callers_id, is_stream
from noetic_py.core.diagnostics import unknown_keyword, where_defined
from noetic_py.core.events import Bus
from noetic_py.core.items import Item, ItemBase, JsonValue
from noetic_py.core.log import ItemLog, admit
from noetic_py.core.memory import Memory
from noetic_py.core.runtime import Trace, metrics, records_content, tracer
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.state import Attributes, StateBag
from noetic_py.core.types import Durability, OnDiverge
from noetic_py.core.values import copy_value
from noetic_py.errors import ConfigError, InvalidId, RunBusy
from noetic_py.memory.layer import layers_of
from noetic_py.models.model import ModelSettings
from noetic_py.redaction import with_article
from noetic_py.runner.registry import Living
from noetic_py.steps.model import check_parallel_tools

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.engine.journaling.run_history import RunHistory
    from noetic_py.engine.journaling.writer import ClaimedRun, RunStorage
    from noetic_py.engine.protocol import Interpreter
    from noetic_py.engine.run import RunPlan
    from noetic_py.engine.state import Run
    from noetic_py.plugins import Plugins

__all__ = [
    "ResumeOptions",
    "RunOptions",
    "adopting",
    "check_options",
    "check_parts",
    "check_resume_options",
    "checked_backend",
    "conversation_of",
    "detached_options",
    "outside_of",
    "scope_of",
]


class RunOptions(TypedDict, total=False):
    """Options of one run.

    Attributes:
        history: Items the conversation begins with: a whole one, every call with its output.
        run_id: The run's id; made when left out.
        request_id: A correlation id of the caller's.
        traceparent: The place in a distributed trace that the run belongs below, as the header of a request; the active
            span of OpenTelemetry when left out.
        thread_id: The conversation's id; made when left out.
        user_id: The user or tenant the run belongs to.
        session: The session that the run is a turn of; it says whose it is, and what was said before.
        delivery_id: What the message was delivered as. A turn of the session that was delivered as the same before is
            not done again: its result is given once more.
        on_error: Whether a run that broke raises, or returns a result whose status is `"failed"`.
        model_settings: Settings that hold for every model call of the run.
        budget: Limits of the run, or a budget that it shares with others, besides the harness's.
        deadline: Seconds after which the run ends as `"budget_exceeded"`.
        services: Services by type, nearer than the harness's.
        attrs: What `ctx.attrs` holds at first, by name, [`Key`][noetic_py.Key] or class; never stored.
        metadata: JSON that travels with the run.
        durability: When a kept run is committed: after each `"step"`, at its `"exit"`, or `"manual"`ly, by
            `ctx.checkpoint()` and at its end.
        source: Where the flow is found again, such as `"agents.py:triage"`; its name in `flows` when left out.
    """

    history: Iterable[Item]
    run_id: str
    request_id: str
    traceparent: str
    thread_id: str
    user_id: str
    session: SessionKey
    delivery_id: str
    on_error: Literal["raise", "result"]
    model_settings: ModelSettings
    budget: Budget | SharedBudget
    deadline: float
    services: Mapping[type[Any], object]
    attrs: Mapping[Any, object]
    metadata: Mapping[str, JsonValue]
    durability: Durability
    source: str


class ResumeOptions(TypedDict, total=False):
    """Options of a resumed run.

    Attributes:
        on_error: Whether a run that breaks raises, or returns a result whose status is `"failed"`.
        model_settings: Settings that hold for every model call of the run from now on.
        budget: Limits of the run, what was used before counted in; the run's own when left out.
        deadline: Seconds after which the run ends as `"budget_exceeded"`.
        services: Services by type, nearer than the harness's.
        attrs: What `ctx.attrs` holds at first, by name, key or class; what it held in another process is gone.
        durability: When the run is committed.
        on_diverge: What happens where the flow does something else than the journal says: `"fail"` raises
            `ReplayDiverged`, `"adopt"` runs the step again, `"pin"` keeps the record.
        answers: To what the run waits for; all are taken or none.
        wait: How many seconds to wait for a run that another process holds, before `RunBusy`; none when left out.
        as_worker: Go on as a worker does, for an engine that has workers of its own: a long sleep suspends the run
            instead of being waited for here. Of a run that was submitted; its flow is one of the harness's `flows`.
    """

    on_error: Literal["raise", "result"]
    model_settings: ModelSettings
    budget: Budget | SharedBudget
    deadline: float
    services: Mapping[type[Any], object]
    attrs: Mapping[Any, object]
    durability: Durability
    on_diverge: OnDiverge
    answers: Iterable[Answer]
    wait: float
    as_worker: bool


_OPTIONS = frozenset(RunOptions.__annotations__)
_RESUME = frozenset(ResumeOptions.__annotations__)
_KINDS: Mapping[str, type[object]] = {
    "services": Mapping,
    "attrs": Mapping,
    "metadata": Mapping,
    "model_settings": Mapping,
    "traceparent": str,
    "source": str,
}


def check_options(options: Mapping[str, Any], state: object, ctx: object) -> None:
    """Refuse options that are unknown, of the wrong kind, or at odds.

    Raises:
        ConfigError: Code `"run-option"`.
        InvalidId: An id cannot be one.
    """
    for name in options:
        if name not in _OPTIONS:
            raise unknown_keyword("run()", name, (*_OPTIONS, "state", "ctx"), code="run-option")
    if ctx is not None and (state is not None or options.get("history") is not None):
        raise ConfigError(
            "ctx= brings its own state and history", code="run-option", hint="leave out state= and history="
        )
    if not options:
        return
    if options.get("on_error", "raise") not in ("raise", "result"):
        raise ConfigError(f"on_error={options['on_error']!r} is unknown", code="run-option", hint='"raise" or "result"')
    _check_kinds(options)
    _check_session(options, ctx)
    for name in ("run_id", "thread_id", "user_id", "request_id", "delivery_id"):
        if name in options:
            check_callers_id(options[name], name)
    if "run_id" in options and is_stream(options["run_id"]):
        raise InvalidId("run_id begins as the streams of sessions do", hint="use a UUID, or a short name")


def _check_session(options: Mapping[str, object], ctx: object) -> None:
    session = options.get("session")
    if session is None:
        if "delivery_id" in options:
            raise ConfigError("delivery_id= is of sessions", code="run-option", hint="add session=")
        return
    if not isinstance(session, SessionKey):
        raise ConfigError(
            f"session={session!r} is not a valid session; expected a SessionKey",
            code="run-option",
            hint='SessionKey("ada", "trip")',
        )
    given = [name for name in ("history", "thread_id", "user_id") if name in options] + ["ctx"] * (ctx is not None)
    if given:
        raise ConfigError(
            f"session= brings its own {', '.join(given)}", code="run-option", hint=f"leave out {given[0]}="
        )


def check_resume_options(options: Mapping[str, object]) -> None:
    """Refuse options that a resumed run does not accept.

    Raises:
        ConfigError: Code `"run-option"`.
    """
    for name in options:
        if name not in _RESUME:
            raise unknown_keyword("resume()", name, _RESUME, code="run-option")
    if options.get("on_diverge", "fail") not in ("fail", "adopt", "pin"):
        raise ConfigError(
            f"on_diverge={options['on_diverge']!r} is unknown", code="run-option", hint='"fail", "adopt" or "pin"'
        )
    wait = options.get("wait", 0.0)
    if not is_seconds(wait):
        raise ConfigError(f"wait={wait!r} is not a number of seconds", code="run-option", hint="wait=30.0")
    as_worker = options.get("as_worker", False)
    if not isinstance(as_worker, bool):
        raise ConfigError(
            f"as_worker={as_worker!r} is not a valid choice; expected True or False",
            code="run-option",
            hint="as_worker=True",
        )
    own = ("on_diverge", "answers", "wait", "as_worker")
    check_options({name: options[name] for name in options if name not in own}, None, None)


def _check_kinds(options: Mapping[str, Any]) -> None:
    deadline = options.get("deadline")
    if deadline is not None and not is_seconds(deadline):
        raise ConfigError(f"deadline={deadline!r} is not a number of seconds", code="run-option", hint="deadline=30.0")
    if options.get("durability", "step") not in ("step", "exit", "manual"):
        raise ConfigError(
            f"durability={options['durability']!r} is unknown", code="run-option", hint='"step", "exit" or "manual"'
        )
    for name, kind in _KINDS.items():
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise ConfigError(
                f"{name}={value!r} is of the wrong kind",
                code="run-option",
                hint=f"{name}= takes {with_article(kind.__name__)}",
            )
    check_budget(options.get("budget"), "run-option")
    odd = next((key for key in options.get("metadata") or () if not isinstance(key, str)), None)
    if odd is not None:
        raise ConfigError(
            f"{odd!r:.80} is not a valid key of metadata=; expected text", code="run-option", hint="JSON has no others"
        )
    history = options.get("history")
    if isinstance(history, (str, ItemBase)) or (history is not None and not isinstance(history, Iterable)):
        raise ConfigError(
            f"history={history!r} is not a valid history; expected a list of items",
            code="run-option",
            hint="history=result.items",
        )


def outside_of(ctx: object) -> UnboundEngine:
    """The data of a context that was made outside a run.

    Raises:
        ConfigError: It is not a context, or a step's own; code `"run-option"`.
    """
    engine = ctx.engine if isinstance(ctx, Context) else None
    if not isinstance(engine, UnboundEngine):
        raise ConfigError(
            f"ctx={ctx!r} is not a valid ctx; expected a Context made outside a run",
            code="run-option",
            hint="make one: Context(items=...)",
        )
    return engine


def detached_options(run: Any, budget: Budget | None, run_id: str | None) -> dict[str, Any]:
    """The options of a run that another one starts."""
    given = {"user_id": run.user_id, "request_id": run.request_id, "budget": budget, "run_id": run_id}
    set_options = {name: value for name, value in given.items() if value is not None}
    if run.tracer is None:
        set_options["traceparent"] = run.place.traceparent
    return {**set_options, "on_error": "result", "services": run.services.by_type, "attrs": run.attrs.given}


@contextmanager
def adopting(ctx: object, log: ItemLog, run: Any) -> Generator[UnboundEngine]:
    """A run goes on with a context; gives what that knows of itself.

    Raises:
        RunBusy: Another one does.
    """
    outside = outside_of(ctx)
    if outside.adopted:
        raise RunBusy(
            "the context is in another run", hint="await that run first, or give each run a context of its own"
        )
    outside.adopted = True
    try:
        yield outside
    finally:
        # Items added between two runs belong to neither.
        log.origin = None
        outside.adopted, outside.trusted, outside.turns = False, len(log), run.context_turns
        outside.place = outside.place or run.place


def conversation_of(ctx: AnyContext | None, options: Mapping[str, Any]) -> ItemLog:
    """The conversation that a run begins with, once what comes from outside in it was looked at.

    Raises:
        ForgedEvent: It holds an item that only a run makes.
        ConfigError: `history=` holds something that is not an item; code `"run-option"`.
    """
    if ctx is not None:
        items = ctx.scope.log.snapshot()
        admit(items, entry="context", known=items[: outside_of(ctx).trusted])
        return ctx.scope.log
    history = tuple(options.get("history") or ())
    if not history:
        return ItemLog()
    admit(history, entry="history")
    try:
        return ItemLog(history)
    except TypeError as error:
        raise ConfigError(
            f"history= is not a valid conversation; expected a list of items: {error}",
            code="run-option",
            hint="history=result.items, or [Message.user(text), ...]; noetic_py.core.codec.from_wire(message) reads a "
            "provider's message",
        ) from error


def check_parts(
    memory: object,
    model: object,
    budget: object,
    tools: Sequence[object],
    max_parallel_tools: object,
    max_iterations: object,
    lease: object,
) -> None:
    """Refuse what a harness cannot be made of.

    Raises:
        ConfigError: One is of the wrong kind.
    """
    if memory is not None and not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is not a valid memory; expected an instance of a Memory subclass",
            code="memory",
            hint="class Mem(Memory): notes: WorkingMemory = WorkingMemory()",
        )
    if model is not None and not isinstance(model, str) and not hasattr(model, "respond"):
        raise ConfigError(
            f"model={model!r} is not a valid model; expected a model or its name",
            code="model",
            hint='model="openai:gpt-5-mini"',
        )
    check_budget(budget, "budget")
    for tool in tools:
        if not hasattr(tool, "definition") and not hasattr(tool, "tools"):
            raise ConfigError(
                f"{where_defined(tool)} in tools= is not a valid tool; expected a function with @tool",
                code="tools",
                hint="put @tool on the function",
            )
    check_parallel_tools(max_parallel_tools)
    if max_iterations is not None and not is_whole(max_iterations, 1):
        raise ConfigError(
            f"max_iterations={max_iterations!r} is not a valid number of iterations; expected 1 or more",
            code="max-iterations",
            hint="max_iterations=1_000_000",
        )
    if not is_seconds(lease) or not lease:
        raise ConfigError(
            f"lease={lease!r} is not a valid lease; expected a positive number of seconds",
            code="lease",
            hint="lease=30.0",
        )


def check_budget(budget: object, code: str) -> None:
    """Refuse a budget of a harness or of a run that is none.

    Raises:
        ConfigError: It is not a budget.
    """
    if budget is not None and not isinstance(budget, Budget | SharedBudget):
        raise ConfigError(
            f"budget={budget!r} is not a valid budget; expected a Budget or a SharedBudget",
            code=code,
            hint='budget=Budget(cost="5.00")',
        )


def checked_backend(
    backend: CheckpointBackend | None,
    plugins: Plugins,
    sessions: object,
    memory: Memory | None,
    parts: Sequence[object],
    services: Mapping[type[Any], object] | None,
) -> CheckpointBackend | None:
    """The backend, when it is one for all that the harness is made of.

    Raises:
        ConfigError: A part works across machines, and others do not see the backend; code `"not-shared"`.
    """
    layers = {} if memory is None else layers_of(memory)
    known = {**plugins.services.by_type, **(services or {})}
    check_shared(
        backend,
        [
            ("SessionPolicy(shared=True)", sessions),
            *((f"memory layer {layer.id!r}", layer) for layer in layers.values()),
            *((f"{type(part).__name__} {getattr(part, 'name', '')}".rstrip(), part) for part in parts),
            *((f"service {kind.__name__}", service) for kind, service in known.items()),
        ],
    )
    if backend is not None:
        # A run that begins or goes on without file descriptors left could load no module, and is to be refused by name.
        import_module("noetic_py.runner.lease")
        import_module("noetic_py.runner.runs")
    return backend


def scope_of(run_id: str, step: AnyStep, state: object, ctx: Any, options: Mapping[str, object]) -> ContextScope:
    """The conversation and the state that a run begins with.

    Raises:
        ConfigError: The history is not valid; code `"run-option"`.
    """
    log = conversation_of(ctx, options)
    if ctx is not None:
        state = ctx.state
    elif state is None:
        state = StateBag()
    log.origin = (run_id, step.id)
    return ContextScope(log, state, step.id)


def at_home(services: Mapping[type[object], object], resources: Any) -> dict[type[object], object]:
    """Services, of which those that keep what they are given keep it where the harness does."""
    return {
        kind: evolve(service, backend=resources.storage)
        if isinstance(service, StoredArtifacts) and service.backend is None
        else service
        for kind, service in services.items()
    }


@frozen(eq=False)
class Planner:
    """Makes the runs of a harness; what is made has not begun.

    Attributes:
        interpreter: What a body's call of the engine comes to.
        plan_type: How a run begins. Like what a run is made of, it is loaded with the first harness and not with the
            package.
        resources: What the harness lends to its runs.
        living: The registry of its runs in progress.
        access: Asked whether a run may begin.
        services: Its services and those of plugins.
        backend: What keeps its runs, `None` when nothing does.
        flows: Its steps by name.
    """

    interpreter: Interpreter
    _run_type: type[Run]
    plan_type: type[RunPlan]
    resources: Any
    living: Living
    access: Authorizer
    services: Services
    backend: CheckpointBackend | None
    flows: Mapping[str, AnyStep]

    def authorize(self, options: Mapping[str, Any], ctx: object) -> tuple[Mapping[str, object], AccessRequest | None]:
        """The options of a new run with those that follow from its principal, and what `access.approve` has to ask.

        Raises:
            AccessDenied: No principal is set.
        """
        if self.access.allows_all:
            return options, None
        session, run_id, thread_id = options.get("session"), options.get("run_id"), options.get("thread_id")
        if isinstance(session, SessionKey):
            return options, self.access.request("run", Resource(run_id, session.user, session))
        if ctx is not None:
            outside = outside_of(ctx)
            thread_id = outside.thread_id if outside.named else thread_id
        elif thread_id is None:
            # Not the run's id, which the caller may have chosen as the name of another's thread.
            options = {**options, "thread_id": self.resources.runtime.new_id()}
        principal = current_principal()
        if "user_id" not in options and principal is not None and principal.user_id is not None:
            options = {**options, "user_id": principal.user_id}
        resource = Resource(run_id, options.get("user_id"), thread_id=thread_id)
        return options, self.access.request("run", resource)

    async def begin(
        self, step: object, input: object, state: object, ctx: object, options: Mapping[str, object]
    ) -> tuple[Any, Any]:
        """The same as `new`, once the policy has approved it.

        Raises:
            AccessDenied: It has not.
        """
        options, request = self.authorize(options, ctx)
        if request is not None:
            await self.access.approve(request)
        return self.new(step, input, state, ctx, options)

    def new(self, step: Any, input: object, state: object, ctx: object, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """A run of a step, and how it is to begin.

        Raises:
            ConfigError: An option is unknown or of the wrong kind.
            RunBusy: A run with this id or this context is in progress.
        """
        require_step(step, "run")
        check_options(options, state, ctx)
        outside = None if ctx is None else outside_of(ctx)
        run_id = options.get("run_id") or self.resources.runtime.new_id()
        self.living.admit(run_id, "leave out run_id=, or await that run first")
        scope = scope_of(run_id, step, state, ctx, options)
        header, metadata = options.get("traceparent"), options.get("metadata")
        place = None if outside is None else outside.place
        run = self._run(
            run_id,
            options,
            thread_id=options.get("thread_id") or (run_id if outside is None else outside.thread_id),
            user_id=options.get("user_id"),
            request_id=options.get("request_id") or (None if outside is None else outside.request_id),
            metadata=copy_value(dict(metadata)) if metadata else {},
            trace=place if header is None else Trace.from_traceparent(header),
        )
        run.flow = step
        run.context_turns = 0 if outside is None else outside.turns
        if outside is not None:
            run.asked, run.memory = unanswered(scope.log, outside.settled), outside.memory
        session = run.session = options.get("session")
        if session is not None:
            run.thread_id, run.user_id = session.stream, session.user
        budget = options.get("budget")
        storage = self._run_storage(step, options)
        if storage is None and (isinstance(budget, SharedBudget) or self.resources.shared is not None):
            raise ConfigError(
                "a shared budget without checkpoints= is not valid; expected a store that other runs see",
                code="budgets",
                hint='Harness(checkpoints="sqlite:runs.db")',
            )
        self.living.add(run)
        plan = self.plan_type(
            step,
            copy_value(input),
            scope,
            budget,
            options.get("deadline"),
            storage=storage,
            delivery_id=options.get("delivery_id"),
        )
        return run, plan

    async def reopen(
        self,
        backend: CheckpointBackend,
        run_id: str,
        step: Any,
        state_type: Any,
        options: Mapping[str, Any],
        access: Authorizer,
        claimed: ClaimedRun | None,
        *,
        reads: bool,
    ) -> tuple[Run, RunPlan]:
        """Become the owner of a run that was begun before; or only read it.

        Args:
            backend: Where it is stored.
            run_id: The run.
            step: Its flow.
            state_type: The type of its state, where no annotation of the flow names it.
            options: Those of a resume.
            access: Asked whether it may go on.
            claimed: The ownership, of a worker that has claimed it.
            reads: Whether it is only read.

        Raises:
            RunNotFound: There is no such run, or the caller may not read it.
            AccessDenied: The caller may not go on with it.
            RunBusy: Another owner has it.
            ReplayDiverged: The flow does something else than the journal says.
            ConfigError: An option is wrong.
        """
        from noetic_py.engine.journaling.writer import RunStorage
        from noetic_py.runner import lease, runs

        require_step(step, "resume")
        check_resume_options(options)
        answers = tuple(options.get("answers", ()))
        await runs.require_run(access, backend, run_id, *(("resume", "approve") if answers else ("resume",)))
        state_type = None if state_type is StateBag else state_type
        options = {**options, "answers": attributed(answers), "state_type": state_type}
        storage = RunStorage(
            backend, options.get("durability", "step"), None, claimed=claimed, ttl=self.resources.ttl, reads=reads
        )

        async def take() -> tuple[Run, RunPlan]:
            if not reads:
                self.living.admit(run_id, "await that run")
            if not options.get("as_worker"):
                return await self._go_on(storage, run_id, step, options, access)
            from noetic_py.runner import workers

            one = await workers.claim_one(backend, run_id, step, self.flows, storage.ttl)
            try:
                return await self._go_on(evolve(storage, claimed=one), run_id, step, options, access)
            except BaseException:
                if one is not None:
                    await lease.release_lease(backend, one.claim.lease)
                raise

        return await lease.when_free(take, options.get("wait", 0.0), self.resources.runtime)

    async def _go_on(
        self, storage: RunStorage, run_id: str, step: AnyStep, options: Mapping[str, Any], access: Authorizer
    ) -> tuple[Run, RunPlan]:
        """Read a run's journal, and become its owner where it is not only read."""
        from noetic_py.runner import lease, runs

        layers, kind = self.resources.layers, options["state_type"]
        codec = lease.codec_for(step, *([] if kind is None else [kind]), *layers.state_types)
        # Layers read what their own steps have recorded, and other code is compared with every step.
        summaries = not layers.by_id and options.get("on_diverge", "fail") == "fail"
        run_history = await lease.load_run_history(
            storage.backend, run_id, codec, self.resources.kinds, kind, step, summaries=summaries
        )
        # Once more: another process may have gone on with it meanwhile, and have failed.
        status = "running" if run_history.ended is None else run_history.ended.status
        await runs.require_run(access, storage.backend, run_id, runs.resume_action(status))
        run = self._again(run_id, run_history, options)
        run.flow, run.on_diverge = step, options.get("on_diverge", "fail")
        plan = await lease.go_on(run, run_history, step, codec, storage, options)
        if not storage.reads:
            self.living.add(run)
        return run, evolve(plan, storage=storage)

    def _again(self, run_id: str, begun: RunHistory, options: Mapping[str, object]) -> Run:
        """A run that has a journal already."""
        opening = begun.started.opening
        run = self._run(
            run_id,
            options,
            thread_id=begun.started.thread_id,
            user_id=None if opening is None else opening.user_id,
            request_id=None if opening is None else opening.request_id,
            metadata={} if opening is None else opening.metadata,
            trace=None if opening is None else opening.trace,
        )
        run.depth = max(run.depth, 0 if opening is None else opening.depth)
        if opening is not None:
            run.asked, run.memory = opening.asked, opening.memory or run.memory
            run.parent = opening.parent
        if opening is not None and opening.base is not None:
            run.session = SessionKey(opening.base.user, opening.base.session, app=opening.base.app)
        return run

    def _run(self, run_id: str, options: Mapping[str, Any], **ids: Any) -> Run:
        given = options.get("services")
        return self._run_type(
            run_id=run_id,
            resources=self.resources,
            interpreter=self.interpreter,
            services=Services(at_home(given, self.resources), self.services.by_type) if given else self.services,
            model_settings=options.get("model_settings") or ModelSettings(),
            bus=Bus(run_id),
            tracer=tracer(),
            metrics=metrics(),
            attrs=Attributes(options.get("attrs")),
            content=records_content(),
            **ids,
        )

    def _run_storage(self, step: AnyStep, options: Mapping[str, Any]) -> RunStorage | None:
        """How the run is to be kept, when it is."""
        if self.backend is None:
            return None
        from noetic_py.engine.journaling.writer import RunStorage

        named = next((name for name, flow in self.flows.items() if flow is step), None)
        return RunStorage(
            self.backend, options.get("durability", "step"), options.get("source", named), ttl=self.resources.ttl
        )
