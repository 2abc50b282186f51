"""Mutable state of one run and of the executions inside it, and the bounds of a run and all that it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from functools import partial
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from threading import get_ident
from types import CodeType, CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import WeakSet

import anyio
from attrs import define, evolve, field, frozen

from noetic_py.channels import Board, Entry, LiveChannel, log_lost
from noetic_py.channels.declared import AnyChannel
from noetic_py.context.context import AnyContext, Derived
from noetic_py.context.detached import DetachedWork, DetachOptions
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import ContextScope, Services, StepMeta
from noetic_py.context.step import AnyStep, require_step
from noetic_py.core.allowance import Remaining
from noetic_py.core.budget import NOTHING_USED, Budget, BudgetLease, TokenUsage, Usage
from noetic_py.core.control import AnyResult, Ask, Control, LoopStop, Partial, SessionKey, StopKind, Timer
from noetic_py.core.derivation import ContextMemory
from noetic_py.core.diagnostics import is_verbose
from noetic_py.core.events import BudgetWarning, Bus, ChannelDropped, Emitted
from noetic_py.core.runtime import Runtime, Trace, current_span, place_of, trace_of_run
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.sinks import EventSinks
from noetic_py.core.state import NO_LAYER_STATES, Attributes, LayerStates, SavedState
from noetic_py.core.types import OnDiverge, ShareState, T
from noetic_py.core.values import copy_value
from noetic_py.engine.frame import Frame, acting, frame_around, frame_of, unfinished
from noetic_py.engine.journaling.fold import placed
from noetic_py.errors import BudgetExceeded, ConfigError, LimitExceeded, NoeticError, WrongThread
from noetic_py.journal.changes import StoredLayerStates, ViewState
from noetic_py.journal.patches import known_fields
from noetic_py.models.opened import OpenModels

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.context.hooks import AnyHook
    from noetic_py.core.items import JsonValue
    from noetic_py.core.progress import ProgressEntry, ProgressStore
    from noetic_py.core.telemetry import Metrics
    from noetic_py.core.tokens import CounterByName
    from noetic_py.core.view import LayerUsage, View
    from noetic_py.engine.journaling.writer import RunWriter
    from noetic_py.engine.kind import Kinds
    from noetic_py.engine.layers.handles import Layers
    from noetic_py.engine.protocol import Beside, Children, Interpreter, LayerStore, UnackedDelivery
    from noetic_py.engine.shared_budgets import RunBudgets
    from noetic_py.journal.records import AttemptFailed, Intent, JournalRecord, StepFinished
    from noetic_py.models.model import Model, ModelSettings
    from noetic_py.plugins import Plugins


def split(budget: Budget | SharedBudget | None) -> tuple[Budget | None, SharedBudget | None]:
    """A budget of one harness or run, or one that others share."""
    return (None, budget) if isinstance(budget, SharedBudget) else (budget, None)


def limits_of(budget: Budget | SharedBudget | None) -> dict[str, object] | None:
    """A budget as JSON; a wrap-up step is named, and has to be given again."""
    if budget is None:
        return None
    if isinstance(budget, SharedBudget):
        waits = {"wait": True} if budget.wait else {}
        return {**(limits_of(budget.budget) or {}), "shared": budget.name, "per": budget.per, **waits}
    limits = {name: str(limit) for name, limit in budget.limits.items() if not name.startswith("per_tool:")}
    return {
        "limits": limits,
        "per_tool": dict(budget.per_tool),
        "seconds": budget.seconds,
        "depth": budget.depth,
        "warn_at": budget.warn_at,
        "wrap_up": None if budget.wrap_up is None else budget.wrap_up.id,
        "reserve": limits_of(budget.reserve),
    }


def budget_of(tree: Any, given: Budget | SharedBudget | None) -> Budget | SharedBudget | None:
    """The budget of a resumed run: the given one, or the one it began with.

    Raises:
        ConfigError: That one had a wrap-up step, which no journal can hold; code `"budget"`.
    """
    if given is not None or tree is None:
        return given
    if tree["wrap_up"] is not None:
        raise ConfigError(
            f"the run's budget had wrap_up={tree['wrap_up']}, which has to be given again",
            code="budget",
            hint="resume(..., budget=Budget(..., wrap_up=...))",
        )
    budget = _stored_budget(tree)
    if "shared" not in tree:
        return budget
    return SharedBudget(tree["shared"], budget, per=tree["per"], wait=tree.get("wait") is True)


def _stored_budget(tree: Any) -> Budget:
    numbers: dict[str, Any] = {name: limit if name == "cost" else int(limit) for name, limit in tree["limits"].items()}
    return Budget(
        **numbers,
        per_tool=tree["per_tool"] or None,
        seconds=tree["seconds"],
        depth=tree["depth"],
        warn_at=tree["warn_at"],
        reserve=None if tree["reserve"] is None else _stored_budget(tree["reserve"]),
    )


MAX_DEPTH = 16
"""Spawns below one another."""
MAX_CHILDREN = 256
"""Spawns of one run in flight at once, and runs that its steps have started."""
MAX_ITERATIONS = 50_000
"""Iterations of all loops of one run, whatever each of them allows, unless its harness says otherwise; likewise."""


class RunLimits:
    """The limits that a run shares with all runs that its steps start.

    Attributes:
        children: Spawns and started runs in flight.
        iterations: Iterations of loops, those of earlier processes counted in.
        max_iterations: How many of these there may be.
    """

    __slots__ = ("children", "iterations", "max_iterations")

    def __init__(self, max_iterations: int | None) -> None:
        self.children = self.iterations = 0
        self.max_iterations = MAX_ITERATIONS if max_iterations is None else max_iterations

    def check(self, depth: int) -> None:
        """Check that one more child may start at a depth.

        Raises:
            LimitExceeded: Too deep, or too many in flight.
        """
        if depth > MAX_DEPTH:
            raise LimitExceeded("spawn depth", MAX_DEPTH, hint="spawn less deeply, or loop instead")
        if self.children >= MAX_CHILDREN:
            raise LimitExceeded("live children", MAX_CHILDREN, hint="use concurrency= to run fewer spawns at once")


def too_many_iterations(most: int) -> LimitExceeded:
    """Why there is no further iteration in a run that has had so many."""
    return LimitExceeded("iterations of a run", most, hint="end loops sooner, or set Harness(max_iterations=...)")


def wrap_up_step(budget: Budget | None) -> AnyStep | None:
    """The step that finishes with the reserve of a budget, `None` where there is none."""
    return None if budget is None or budget.wrap_up is None else require_step(budget.wrap_up, "wrap_up")


Bare: TypeAlias = bool | Literal["untimed"]
"""Whether a step runs without anything around its body, and then whether it is not even timed."""
UNTIMED: Final = "untimed"

StartDetached: TypeAlias = "Callable[[Run, AnyStep, object, DetachOptions, str | None], DetachedWork]"


class Resources:
    """The resources that a harness gives to its runs."""

    __slots__ = (
        "_storage", "bundles", "children", "counters", "group", "hooks", "kinds", "layers", "lease", "max_iterations",
        "max_parallel_tools", "model", "models", "open_models", "runtime", "settings", "shared", "sinks",
        "start_detached", "steering", "tools", "ttl",
    )  # fmt: skip

    def __init__(
        self,
        *,
        runtime: Runtime,
        layers: Layers,
        storage: CheckpointBackend | None,
        model: str | Model | None,
        plugins: Plugins,
        tools: Sequence[Any],
        budget: Budget | SharedBudget | None,
        settings: Mapping[str, Any],
        hooks: tuple[AnyHook, ...] = (),
        max_parallel_tools: int = 16,
        max_iterations: int | None = None,
        ttl: float,
    ) -> None:
        # The kinds of steps stand above the state of runs.
        from noetic_py.engine.kinds import KINDS

        self.runtime = runtime
        self.max_parallel_tools, self.max_iterations = max_parallel_tools, max_iterations
        self.hooks = hooks
        self.layers = layers
        # The other bundles that its runs have opened, such as those of sub-agents, for as long as something has them.
        self.bundles: WeakSet[Layers] = WeakSet()
        self._storage = storage
        self.model = model
        self.kinds: Kinds = KINDS.with_plugins(plugins.step_kinds.names)
        self.models: Callable[[str], Model] = plugins.models
        self.counters: CounterByName = plugins.counters
        self.tools = tools
        own, self.shared = split(budget)
        self.lease = BudgetLease(own, now=runtime.monotonic())
        # Seconds after which what this process owns may be taken over when it is silent.
        self.ttl: float = ttl
        given: Any = dict(settings)
        self.settings: ModelSettings = given
        # The task group for detached tasks while the harness is entered; and how a step starts another run.
        self.group: anyio.abc.TaskGroup | None = None
        self.start_detached: StartDetached | None = None
        # The models that stay open between their calls, and what gets all events, while the harness is entered.
        self.open_models = OpenModels()
        self.sinks: EventSinks | None = EventSinks(plugins.event_sinks.sinks) if plugins.event_sinks.sinks else None
        # The runs that workers carry out for steps, of a harness that keeps its runs.
        self.children: Callable[[], Children] | None = None
        self.steering: Callable[[SessionKey], Awaitable[Sequence[Any]]] | None = None

    async def open(self) -> None:
        """The harness is entered."""
        await self.open_models.start()
        if self.sinks is not None:
            await self.sinks.start()

    async def close(self) -> None:
        """The harness is left, by the task that has entered it, and its runs are over."""
        try:
            if self.sinks is not None:
                await self.sinks.close()
        finally:
            await self.open_models.close()

    @property
    def storage(self) -> CheckpointBackend:
        """Where layers keep what outlives a run: the harness's backend, or its own memory when it has none."""
        if self._storage is None:
            from noetic_py.checkpoints.memory import InMemoryBackend

            self._storage = InMemoryBackend(runtime=self.runtime)
        return self._storage


@define(eq=False)
class OpenChildren:
    """The runs that workers carry out for steps of a run, while it waits for them.

    Attributes:
        kept: What was set aside for those that an earlier process has begun, by their steps' paths.
        ended: Those of them that have ended, where no other one can have; `None` where that is not known.
        count: How many are waited for.
        refused: Whether one could not begin, because others have all that there is.
        freed: Whether one of those has ended in this process.
    """

    kept: dict[tuple[str, ...], dict[str, Decimal]] = field(factory=dict[tuple[str, ...], dict[str, Decimal]])
    ended: frozenset[str] | None = None
    count: int = 0
    refused: bool = False
    freed: bool = False


class Run:
    """One run: its journal, its bus and what all its executions share."""

    __slots__ = (
        "_board", "_over", "_thread", "alert", "asked", "attrs", "bare", "begun", "bus", "cancelled", "children",
        "content", "context_turns", "depth", "detached", "dispatches_hooks", "early", "executed", "flow", "forked",
        "in_flight", "interpreter", "journal", "kinds", "left", "limits", "memory", "messages", "metadata", "metrics",
        "model_settings", "noticed", "on_diverge", "once", "opening", "parent", "progress", "recorded_usage",
        "recovered_work", "replayed", "request_id", "resources", "root", "run_id", "running_since", "runtime", "said",
        "sent", "services", "session", "shared", "stopped", "stopping", "store", "stored_messages", "thread_id",
        "timed", "trace", "tracer", "turns", "unacknowledged", "unfinished", "unpriced", "user_id", "verbose",
        "verdict", "view", "views", "waits",
    )  # fmt: skip

    # What a model was shown last; and as stored, by the model calls of an earlier process, under `None` at the start.
    view: View | None
    views: dict[tuple[str, ...] | None, ViewState]
    # Why calls stayed open that a wrap-up was shown, by their ids.
    unfinished: dict[str, str]
    # What it takes of shared budgets, where it has some.
    shared: RunBudgets | None
    # Where in the conversation that it begins with a message stands that no run has answered.
    asked: int | None
    # Where its layers of scope thread keep what is theirs.
    memory: ContextMemory
    # How far its steps have come, as they say themselves; by their paths.
    progress: dict[tuple[str, ...], ProgressEntry]
    # The attempts that earlier processes had begun, by their steps' paths: none of them is counted as a step again.
    begun: set[tuple[tuple[str, ...], int]]
    # The attempts whose bodies go on, of a durable run: those that a budget counts.
    in_flight: set[tuple[tuple[str, ...], int]]
    # What has been warned of once.
    noticed: set[str]
    # The usage that its journal records from before this process had the run, and the stops requested before that.
    recorded_usage: list[RecordedUsage]
    stopped: list[Control]
    journal: list[JournalRecord]
    sent: set[tuple[str, ...]]
    detached: list[Beside]
    # The paths of the first race that learns its paths while running.
    opening: Sequence[AnyStep]
    # The run that waits for this one; and what workers carry out for its own steps, if there is something.
    parent: str | None
    _board: Board | None
    # The keys of the messages of other processes that are in the journal, where there are some.
    messages: set[str] | None
    # What the session's user has said to it by interrupts, where he has.
    said: list[str] | None
    children: OpenChildren | None
    # A stop that was asked for before the run had begun; the step it is started with; the session it is a turn of.
    early: Control | None
    flow: AnyStep | None
    session: SessionKey | None
    # Of a fork: the runs that it was made of, the first one first, and where in its journal each ends.
    forked: tuple[tuple[str, int], ...]

    def __init__(
        self,
        *,
        run_id: str,
        thread_id: str,
        user_id: str | None,
        request_id: str | None,
        resources: Resources,
        interpreter: Interpreter,
        services: Services,
        metadata: Mapping[str, JsonValue],
        model_settings: ModelSettings,
        bus: Bus,
        tracer: Tracer | None,
        metrics: Metrics | None,
        trace: Trace | None,
        attrs: Attributes,
        content: bool,
    ) -> None:
        self.run_id, self.thread_id, self.user_id, self.request_id = run_id, thread_id, user_id, request_id
        self.resources, self.runtime = resources, resources.runtime
        self.interpreter, self.kinds, self.services = interpreter, resources.kinds, services
        self.metadata, self.model_settings = metadata, model_settings
        self.bus, self.attrs, self.progress, self.begun = bus, attrs, {}, set()
        self.tracer, self.metrics, self.trace, self.asked, self.shared = tracer, metrics, trace, None, None
        self.memory, self.journal, self.recorded_usage, self.stopped = ContextMemory(), [], [], []
        # Where the journal is stored, in a durable run.
        self.store: RunWriter | None = None
        self.on_diverge: OnDiverge = "fail"
        # The last known outcome of every step that may run only once; kept even when a step around it is retried.
        self.once: dict[tuple[str, ...], Intent | StepFinished | AttemptFailed] = {}
        # Whether it has hooks, whether its steps are logged, and whether a bare step needs nothing around its body.
        self.dispatches_hooks, self.verbose = bool(resources.hooks), is_verbose()
        self.bare: Bare = tracer is None and not self.dispatches_hooks and not self.verbose
        # `stopping` counts the executions that are being stopped, `alert` the reasons for which a step looks around.
        # `context_turns` are those of the context it goes on with: from before and, once it is over, its own too.
        self.executed = self.replayed = self.turns = self.context_turns = self.stopping = self.alert = 0
        self.depth, self.limits = _place(resources)
        # When the stretch of its code that runs now has begun; see `frame`.
        self.running_since, self.noticed = 0.0, set()
        self.unpriced = self._over = self.waits = self.timed = False
        self.views, self._thread, self.content, self.in_flight = {}, get_ident(), content, set()
        # The loop that ended last, and why.
        self.verdict: tuple[tuple[str, ...], str | None, LoopStop] | None = None
        self.root: Execution | None = None
        self.view = self.parent = self.children = self.messages = self.said = self._board = None
        # Its result when it was cancelled from outside, which reaches no caller; and the steps in flight then.
        self.left: AnyResult | None = None
        self.cancelled: tuple[tuple[str, ...], ...] = ()
        # Messages sent before this process owned the run, by channel and as stored; received ones are not placed.
        self.stored_messages: dict[str, list[Entry]] = {}
        # Messages that may have to go back, while there are any.
        self.unacknowledged: list[UnackedDelivery] | None = None
        # The sends that a second attempt is not to repeat; and executions beside the flow, while there are any.
        self.sent, self.detached, self.opening, self.forked, self.unfinished = set(), [], (), (), {}
        # Those from before this process had the run that it has looked after, their starters being done; by path.
        self.recovered_work: set[tuple[str, ...]] | None = None
        self.early = self.flow = self.session = None

    def has_deadline(self) -> None:
        """Something in the run has a limit of time: compare the clock before each body from now on."""
        if not self.timed:
            self.timed = True
            self.alert += 1

    def has_stopped(self, more: int) -> None:
        """Another execution is being stopped, or with -1 one of them is over."""
        self.stopping += more
        self.alert += more

    def has_hooks(self) -> None:
        """A step that has hooks begins: look for hooks from now on."""
        self.dispatches_hooks, self.bare = True, False

    @property
    def position(self) -> int:
        """How many records its journal holds, those included for which summaries stand."""
        return len(self.journal) + (0 if self.store is None else self.store.unread)

    def journal_to(self, position: int | None) -> Sequence[JournalRecord]:
        """Its first so many records; all for `None`."""
        if self.store is None or not self.store.unread:
            return self.journal[:position]
        return [record for at, record in placed(self.journal) if position is None or at < position]

    @property
    def place(self) -> Trace:
        """Where it stands in a distributed trace."""
        return self.trace or trace_of_run(self.run_id)

    def settle(self) -> None:
        """Have the journal say now what steps have left of how far they have come."""
        if self.store is not None:
            self.store.settle(self.journal)

    def keep_in(self, store: RunWriter) -> None:
        """Make the run durable."""
        self.alert += self.store is None
        self.store = store
        store.metrics = self.metrics
        self.bare = False

    @property
    def channels(self) -> Board:
        """The run's channels."""
        if self._board is None:
            self._board = Board(self._lost, self._fill)
            if self._over:
                self._board.close()
        return self._board

    @property
    def takes_messages(self) -> bool:
        """Whether it has used a channel that other processes may send to."""
        return self._board is not None and self._board.has_external

    def _fill(self, live: LiveChannel) -> None:
        for entry in self.stored_messages.pop(live.channel.name, ()):
            if entry.placed and self.store is not None:
                live.restore(entry.sender, self.store.codec.decode(entry.value, live.channel.schema))
            else:
                live.skip()

    def requeue(self, name: str, entry: Entry) -> None:
        """A message that was taken before this process had the run goes back to its place."""
        entry.placed = True
        live = None if self._board is None else self._board.known(name)
        if live is not None and self.store is not None:
            value = self.store.codec.decode(entry.value, live.channel.schema)
            live.reader(lambda: True).give_back(evolve(entry, value=value))

    def _lost(self, channel: AnyChannel, dropped: int) -> None:
        log_lost(channel, dropped, self.run_id)
        if self.bus.active:
            self.bus.publish(ChannelDropped((), channel.name, dropped))

    def close_channels(self) -> None:
        """The run is over, and so are its channels."""
        self._over = True
        if self._board is not None:
            self._board.close()

    def cancel_detached(self, path: tuple[str, ...]) -> None:
        """Cancel what the steps at and below a path have started beside the flow."""
        for beside in self.detached:
            if beside.path[: len(path)] == path:
                beside.cancel_scope.cancel()

    async def dismiss(self, path: tuple[str, ...] = ()) -> None:
        """Cancel it, and wait until it has ended; not to be cancelled itself, so that no task outlives its owner."""
        self.cancel_detached(path)
        with anyio.CancelScope(shield=True):
            for beside in tuple(self.detached):
                if beside.path[: len(path)] == path:
                    await beside.done.wait()

    async def join_detached(self) -> None:
        """Wait for all work beside the flow, and for what that starts."""
        while self.detached:
            await self.detached[0].done.wait()

    def possibly_spent(self, path: tuple[str, ...] = ()) -> Usage:
        """The reservations of calls below a path that were in flight when an earlier owner died."""
        found = NOTHING_USED
        for usage in self.recorded_usage:
            if not usage.sure and usage.path[: len(path)] == path:
                used = usage.used
                cost = found.cost if not used.cost else used.cost + (found.cost or Decimal(0))
                found = Usage(found.tokens + used.tokens, cost, found.model_calls + used.model_calls)
        return found

    @property
    def shutdown(self) -> Partial | None:
        """How a shutdown treats an answer in flight."""
        stop = None if self.root is None else self.root.stop
        return None if stop is None else stop.shutdown

    def is_here(self) -> bool:
        """Whether this is the run's own thread."""
        return get_ident() == self._thread

    def in_its_thread(self, work: Callable[[], T]) -> T:
        """Do something in the run's own thread: at once there, and from a sync tool's worker thread by handing it over.

        Raises:
            WrongThread: This is neither.
        """
        if get_ident() == self._thread:
            return work()
        from anyio.from_thread import run_sync

        try:
            return run_sync(work)
        except RuntimeError as error:
            raise WrongThread(
                "the run belongs to another thread", hint="call it from a step, or from a sync tool that the run called"
            ) from error

    def stop_from_outside(self, kind: StopKind, reason: str, *, shutdown: Partial | None = None) -> bool:
        """Stop the run for a reason that no step gave; says whether nothing else had stopped or ended it."""
        return self.take_stop(Control(kind, reason=reason, shutdown=shutdown))

    def interrupt_turn(self, reason: str, message: str | None = None, *, by: str | None = None) -> bool:
        """Stop the run, which is a turn of a session; what its user says goes behind what the turn has made."""
        if message is not None:
            self.said = [*(self.said or ()), message]
        return self.take_stop(Control("interrupt", reason=reason, by=by))

    def take_stop(self, control: Control, *, key: str = "") -> bool:
        """Stop the run from outside, and note in its journal a stop after which it does not go on.

        Raises:
            CodecError: The value of a `complete` cannot be stored.
        """
        if self._over or (self.root is None and self.early is not None):
            return False
        if self.root is None:
            self.early = control
            return True
        return self.in_its_thread(partial(self._take_stop, self.root, control, key))

    def _take_stop(self, root: Execution, control: Control, key: str) -> bool:
        if not root.takes(control):
            return False
        if control.rule.settles:
            self.interpreter.note_stop(self, control, key)
        return root.request(control)


@frozen
class RecordedUsage:
    """The usage of one recorded attempt of a step, without its children.

    Attributes:
        path: The step.
        used: Tokens, cost and model calls.
        steps: How many steps it counts for.
        tool: The tool that it has called.
        execution: The path of the execution that it belongs to.
        discarded: The length of the path of the outermost step that was retried since.
        sure: Whether it was used, and not only reserved by a call with an unknown outcome.
    """

    path: tuple[str, ...]
    used: Usage
    steps: int
    tool: str | None
    execution: tuple[str, ...] = ()
    discarded: int | None = None
    sure: bool = True

    def discarded_with(self, path: tuple[str, ...]) -> RecordedUsage:
        """The same after a step was tried again or discarded, if it is below that: steps there have new budgets."""
        if self.path[: len(path)] != path or (self.discarded is not None and self.discarded <= len(path)):
            return self
        return evolve(self, discarded=len(path))


class Execution:
    """One execution: the run itself, or the child of a spawn. It is the engine that its contexts talk to."""

    __slots__ = (
        "_began", "_layer_store", "_parent", "_turns", "_whole", "born", "cancel_scope", "closing", "depth", "frame",
        "has_layers", "id", "input", "last_layer_usage", "last_step", "layers", "lease", "metadata", "over",
        "request_id", "run", "run_id", "services", "stop", "thread_id", "tool_failures", "user_id", "wraps",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        lease: BudgetLease,
        *,
        depth: int,
        parent: Frame | None,
        input: object,
        layers: Layers | None = None,
        part: bool = False,
    ) -> None:
        self.run = run
        self.run_id = run.run_id
        self._whole: Execution | None = parent.x.whole if part and parent is not None else None
        self.id: str
        if self._whole is not None:
            self.id = self._whole.id
        else:
            self.id = run.run_id if parent is None else run.runtime.new_id()
        self.lease = lease
        self.depth = depth
        self._parent = parent
        self.input = input
        self.thread_id = run.thread_id
        self.user_id = run.user_id
        self.request_id = run.request_id
        self.services = run.services
        self.metadata = run.metadata
        inherited: Layers = run.resources.layers if parent is None else parent.x.layers
        self.layers: Layers = inherited if layers is None else layers
        if layers is not None:
            run.resources.bundles.add(layers)
        self.has_layers = bool(self.layers.by_id)
        self.last_layer_usage: LayerUsage | None = None
        self._layer_store: LayerStore | None = None
        # The states that its parent's layers had when it began.
        self.born: LayerStates = NO_LAYER_STATES if parent is None else parent.scope.layer_states
        # Whether its layers are being closed, which no stop keeps from happening.
        self.closing = False
        # Whether it is wrapped up, which happens once; and whether its outcome is known, which nothing stops any more.
        self.wraps = self.over = False
        self.last_step: StepMeta | None = parent.x.last_step if part and parent is not None else None
        self._turns = 0
        # In how many rounds a tool refused its arguments or asked for another try, and the latest of them.
        self.tool_failures: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.stop: Control | None = None
        self.cancel_scope = anyio.CancelScope()
        self._began = run.runtime.monotonic()
        self.frame: Frame | None = None

    # -- what a context reads

    @property
    def fence(self) -> int | None:
        """The number of the run's owner; `None` without a store."""
        store = self.run.store
        return None if store is None else store.fence

    @property
    def whole(self) -> Execution:
        """The execution that it is a part of (with other memory, but the same counts and end); usually itself."""
        return self if self._whole is None else self._whole

    @property
    def parent_context(self) -> AnyContext | None:
        return self.whole._parent

    @property
    def root_context(self) -> AnyContext:
        root = self.run.root
        frame = self.frame if root is None else root.frame
        if frame is None:
            raise ConfigError("the run is over", code="not-running", hint="use ctx.root while the step runs")
        return frame

    @property
    def turns(self) -> int:
        return self.whole._turns

    @turns.setter
    def turns(self, turns: int) -> None:
        self.whole._turns = turns

    @property
    def step_count(self) -> int:
        return self.whole.lease.steps

    @property
    def tokens(self) -> TokenUsage:
        return self.whole.lease.tokens

    @property
    def cost(self) -> Decimal:
        return self.whole.lease.cost

    @property
    def elapsed(self) -> float:
        return self.run.runtime.monotonic() - self.whole._began

    @property
    def run_turns(self) -> int:
        """Model calls of the whole run."""
        return self.run.turns

    def remaining(self, ctx: AnyContext, /) -> Remaining:
        """The remaining budget of a step."""
        used = {**self.whole.lease.used(), "seconds": self.elapsed, "depth": self.depth}
        return frame_around(ctx).lease.remaining(self.run.runtime.monotonic(), self.depth, used)

    def memory_of(self, ctx: AnyContext, /) -> ContextMemory:
        """Where layers of scope thread keep what is the run's own, as it is now."""
        own = self.run.memory
        return evolve(own, states=self.layers.of_thread(frame_around(ctx).scope.layer_states))

    def bind(self, ctx: AnyContext, /, *, reads: bool) -> Any:
        frame = frame_around(ctx)
        if reads or not self.has_layers:
            return self.run.interpreter.bind(frame, reads)
        if frame.bundle is None:
            frame.bundle = self.run.interpreter.bind(frame, reads)
        return frame.bundle

    @property
    def attrs(self) -> Attributes:
        """Attributes that all parts of the run share."""
        return self.run.attrs

    @property
    def progress(self) -> ProgressStore:
        """How far the run's steps have come."""
        return self.run.interpreter.progress(self.run)

    @property
    def layer_store(self) -> LayerStore:
        """The store's side of its layers."""
        if self._layer_store is None:
            self._layer_store = self.run.interpreter.layer_store(self)
        return self._layer_store

    @property
    def session(self) -> SessionKey | None:
        """The session that the run is a turn of."""
        return self.run.session

    @property
    def parent_frame(self) -> Frame | None:
        """The step in flight that has spawned it."""
        return self._parent

    # -- what a context asks for

    def touch(self, ctx: AnyContext, /) -> None:
        """A body looks at the state: remember what it was, so that a body that does not finish leaves it as it was."""
        frame = frame_around(ctx)
        scope = frame.scope
        saved = SavedState(scope.state)
        if self.run.store is not None:
            if scope.known is None:
                scope.known = known_fields(scope.state, self.run.store.codec)
            if scope.stored is None:
                scope.stored = StoredLayerStates(scope.layer_states)
        frame.touched = True
        frame.clean = False
        frame.saved = saved
        frame.saved_layer_states = scope.layer_states
        node: Frame | None = frame
        while node is not None and node.scope is scope and not node.has_base:
            node.has_base = True
            node.base = saved
            node.base_layer_states = scope.layer_states
            node = node.up

    def complete(self, ctx: AnyContext, value: object, /) -> None:
        store = self.run.store
        if store is not None:
            try:
                store.codec.require_readable(store.codec.encode(value))
            except NoeticError as error:
                # Said here, for a stop that cannot be stored could not be reported.
                raise error.at(ctx.path) from None
        self.request(Control("complete", value=copy_value(value), path=ctx.path, at=self.at), frame_around(ctx))

    def abort(self, ctx: AnyContext, reason: str, /) -> None:
        self.request(Control("abort", reason=reason, path=ctx.path, at=self.at), frame_around(ctx))

    @property
    def at(self) -> tuple[str, ...]:
        """The execution's own path: of the run empty, of a spawn's child the spawn's."""
        frame = self.whole.frame
        return () if frame is None else frame.at

    def request(self, control: Control, frame: Frame | None = None) -> bool:
        """Stop this execution unless something has stopped it already; cancels all that runs in it."""
        return self.run.in_its_thread(partial(self.whole._request, control, frame))

    def takes(self, control: Control) -> bool:
        """Whether a stop can still be asked for: the first one wins, and none after its end does."""
        return self.stop is None and not self.over and not (self.wraps and control.rule.wraps_up)

    def _request(self, control: Control, frame: Frame | None) -> bool:
        if not self.takes(control):
            return False
        self.stop = control
        self.run.has_stopped(1)
        if frame is not None and frame.virtual:
            # Asked for through `ctx.root` or `ctx.parent`: it belongs to the body that asks.
            asking = CURRENT.get()
            frame = asking if isinstance(asking, Frame) else None
        if frame is not None:
            frame.control = control
            frame.noted = True
        self.cancel_scope.cancel()
        for beside in self.run.detached:
            if beside.child is not self and beside.child.is_below(self):
                beside.cancel_scope.cancel()
        return True

    def is_below(self, other: Execution) -> bool:
        """Whether it is the other execution, or one that was spawned from there."""
        node: Execution | None = self
        while node is not None and node is not other:
            node = None if node._parent is None else node._parent.x
        return node is not None

    def ended(self) -> None:
        """The execution is over, so its stop is not looked for any more."""
        if self.stop is not None:
            self.run.has_stopped(-1)

    def out_of_time(self, limit: float) -> Control:
        """The control of an execution whose time is over."""
        error = BudgetExceeded("seconds", limit=limit, requested=0.0, settled=limit)
        control = Control("budget", reason=error.message, error=error)
        if self.stop is None:
            self.stop = control
            self.run.has_stopped(1)
        return self.stop

    def stop_loop(self, ctx: AnyContext, value: object, /, *, now: bool = False) -> None:
        loop, value = self.stop_loop_around(frame_around(ctx), value)
        if now:
            self.run.in_its_thread(partial(self.run.interpreter.cut_short, loop, value, acting(frame_around(ctx))))

    def stop_loop_around(self, frame: Frame, value: object) -> tuple[Frame, object]:
        """Ask the nearest loop around a step to end after its round; gives that loop, and its value.

        Raises:
            ConfigError: There is none; code `"no-loop"`.
        """
        node: Frame | None = frame
        while node is not None and node.x.whole is self.whole:
            if node.kind.stoppable:
                value = copy_value(value)
                node.stop_loop_with(value, frame.at)
                return node, value
            node = node.up
        raise ConfigError(
            "stop_loop() was called outside a loop", code="no-loop", hint="complete(value) ends the execution"
        )

    def emit(self, ctx: AnyContext, event: object, /) -> None:
        if self.run.bus.active:
            frame = frame_around(ctx)
            source = frame.source or frame.find_source()
            tagged = Emitted(ctx.path, copy_value(event)).tagged(source._replace(branch=ctx.branch))
            self.run.in_its_thread(partial(self.run.bus.publish, tagged))

    def span(self, ctx: AnyContext, /) -> Span:
        span = frame_around(ctx).own_span
        return current_span() if span is None else span

    def trace(self, ctx: AnyContext, /) -> Trace:
        """The place of the step's span, or of the run when nothing records it."""
        span = None if self.run.tracer is None else frame_around(ctx).own_span
        return self.run.place if span is None else place_of(span)

    def idempotency_key(self, ctx: AnyContext, /) -> str:
        from hashlib import sha256

        # Hashed frame by frame with lengths: ids are data, and no two paths may meet in one key.
        digest = sha256(self.run_id.encode())
        for frame in ctx.path:
            part = frame.encode("utf-8", "surrogatepass")
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.hexdigest()

    def call(self, ctx: AnyContext, step: AnyStep, value: object, /) -> Coroutine[object, object, object]:
        if ctx.__class__ is not Frame and isinstance(ctx, Derived):
            step, ctx = self.run.interpreter.derived(step, ctx), frame_around(ctx)
        frame: Any = ctx if ctx.__class__ is Frame else frame_of(ctx)
        made: CoroutineType[object, object, object] = self.run.interpreter.call(frame, step, value)
        before = frame.calls
        if before is not None and before[0].cr_frame is None:
            # It has ended: only calls that nothing has awaited yet are kept.
            before = before[3]
        # The caller of `Step.__call__` by the number of its instruction, which is cheaper to get than the line.
        caller = _getframe(2)
        frame.calls = (made, caller.f_code, caller.f_lasti, before)
        return made

    def note_call(
        self, ctx: AnyContext, made: CoroutineType[object, object, object], code: CodeType, instruction: int, /
    ) -> bool:
        frame = frame_around(ctx)
        if frame.running:
            frame.calls = (made, code, instruction, unfinished(frame.calls))
        return frame.running

    def gather(self, ctx: AnyContext, steps: Sequence[AnyStep], state: ShareState, /) -> Awaitable[list[object]]:
        interpreter = self.run.interpreter
        entered: Awaitable[list[object]] = interpreter.call(frame_of(ctx), interpreter.section(steps, state), None)
        return entered

    def send(self, ctx: AnyContext, channel: AnyChannel, value: object, timeout: float | None, /) -> Awaitable[None]:
        return self.run.interpreter.send(frame_around(ctx), channel, value, timeout)

    def receive(self, ctx: AnyContext, channel: AnyChannel, timeout: float | None, /) -> Awaitable[object]:
        return self.run.interpreter.receive(frame_around(ctx), channel, timeout)

    def receive_now(self, ctx: AnyContext, channel: AnyChannel, /) -> object:
        return self.run.in_its_thread(partial(self.run.interpreter.receive_now, frame_around(ctx), channel))

    def ask(self, ctx: AnyContext, question: Ask[object] | Timer, /) -> Awaitable[Any]:
        return self.run.interpreter.ask(frame_around(ctx), question)

    def checkpoint(self, ctx: AnyContext, /) -> Awaitable[None]:
        return self.run.interpreter.checkpoint(frame_around(ctx))

    def spawn_detached(self, ctx: AnyContext, step: AnyStep, value: object, options: DetachOptions, /) -> DetachedWork:
        own = self.run.is_here()
        return self.run.in_its_thread(
            partial(self.run.interpreter.detach, frame_around(ctx), step, value, options, own)
        )

    def warned(self, dimension: str, spent: Decimal, limit: Decimal) -> None:
        """A lease of this execution has passed its `warn_at`."""
        if self.run.bus.active:
            frame = self.frame
            if frame is None:
                self.run.bus.publish(BudgetWarning((), dimension, spent, limit))
            else:
                frame.publish(BudgetWarning(frame.path, dimension, spent, limit))

    def enter_child(self) -> None:
        """Count a spawn that starts.

        Raises:
            LimitExceeded: Too deep, or too many in flight.
            BudgetExceeded: A budget's `depth` does not allow it.
        """
        self.run.limits.check(self.run.depth + self.depth + 1)
        self.lease.enter_depth(self.depth + 1)
        self.run.limits.children += 1


def _place(resources: Resources) -> tuple[int, RunLimits]:
    """The depth and the limits of a run that begins now: those of the step in flight that starts it, if any."""
    asking = CURRENT.get()
    if isinstance(asking, Frame) and asking.running:
        return asking.x.run.depth + asking.x.depth + 1, asking.x.run.limits
    return 0, RunLimits(resources.max_iterations)


def head(x: Execution, frame: Frame | None, step: Any, scope: ContextScope) -> Frame:
    """The frame that an execution hangs from; it writes no records of its own."""
    root = Frame(step, frame, x, () if frame is None else frame.path, scope, x.lease, len(scope.log))
    root.virtual = True
    if frame is not None and frame.node is not None:
        root.node = frame.node
        root.visited = frame.visited = set()
    x.frame = root
    return root
