"""`Context`: what a step sees of its run.

A context reaches the engine through one small protocol, `Engine`; the engine's own contexts are a subclass, so a step
body, a tool and a route all hold the same object. A `Context(...)` made outside a run holds items, state and ids;
running it is the harness's work, and engine methods on it raise [`NoContextError`][noetic_py.errors.NoContextError].
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, overload

from noetic_py.channels import DEFAULT_TIMEOUT, Channel, Receivable
from noetic_py.context.detached import DetachedRun, DetachOptions
from noetic_py.context.protocol import CURRENT, Engine, noted
from noetic_py.context.read import ContextScope, ReadContext, ReadView, Services, StepMeta
from noetic_py.context.unbound import Conversation, UnboundEngine, pack, unpack
from noetic_py.core.allowance import Remaining
from noetic_py.core.budget import Budget, TokenUsage
from noetic_py.core.control import Timer
from noetic_py.core.derivation import (
    ContextMemory,
    Derivation,
    Preset,
    ShareCounters,
    ShareMemory,
    ShareSession,
    ShareTrace,
    branch_below,
    derivation,
    refuse_options,
)
from noetic_py.core.items import Item, JsonValue, Message
from noetic_py.core.log import ItemLog, admit
from noetic_py.core.progress import Progress
from noetic_py.core.runtime import SYSTEM, Trace, new_trace
from noetic_py.core.state import Attributes, StateBag, check_same, restore_state, share_state
from noetic_py.core.types import M2, S2, A, B, C, M, M_co, R, S, S_co, Share, ShareItems, ShareState, T
from noetic_py.core.values import copy_value
from noetic_py.errors import ConfigError, NoContextError, RunBusy

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from noetic_py.context.step import AnyStep, Step
    from noetic_py.core.control import Ask, Control, SessionKey
    from noetic_py.core.memory import Memory
    from noetic_py.core.view import LayerUsage


class Context(Generic[M_co, S_co]):
    """The object that a step works with: counters, state, conversation, control.

    Made by a user it is a conversation to run: `await harness.run(step, input, ctx=ctx)`.

    Args:
        state: The state; a new [`StateBag`][noetic_py.StateBag] when left out.
        items: The conversation so far; copied.
        thread_id: The conversation's id; made when left out.
        request_id: A correlation id of the caller's.
        trace: The trace that its runs belong to; the first of them begins one when left out.
        name: What it is called; the first part of its path and of its children's branches.

    Raises:
        InvalidId: `name` cannot be one.
        ForgedEvent: `items` hold one that only a run makes, such as a call without its output.
    """

    __slots__ = ("__weakref__", "at", "engine", "scope", "touched")
    __noetic_context__ = True

    # The engine's own, not for steps: what it talks to, where it stands, and whether its state was looked at.
    engine: Engine
    scope: ContextScope
    at: tuple[str, ...]
    touched: bool

    @overload
    def __init__(
        self: Context[Memory, S2],
        *,
        state: S2,
        items: Iterable[Item] | None = ...,
        thread_id: str | None = ...,
        request_id: str | None = ...,
        trace: Trace | None = ...,
        name: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Context[Memory, StateBag],
        *,
        items: Iterable[Item] | None = ...,
        thread_id: str | None = ...,
        request_id: str | None = ...,
        trace: Trace | None = ...,
        name: str | None = ...,
    ) -> None: ...
    def __init__(
        self,
        *,
        state: object = None,
        items: Iterable[Item] | None = None,
        thread_id: str | None = None,
        request_id: str | None = None,
        trace: Trace | None = None,
        name: str | None = None,
    ) -> None:
        added = tuple(items or ())
        admit(added, entry="context")
        branch = "" if name is None else branch_below("", name)
        self.scope = ContextScope(ItemLog(added), StateBag() if state is None else state, branch)
        self.engine = UnboundEngine(self, thread_id, request_id, trace)
        self.at = () if name is None else (name,)
        self.touched = True

    def __reduce__(self) -> Any:
        raise TypeError("a context cannot be pickled: it belongs to one run in one process")

    def __copy__(self) -> Any:
        raise TypeError("a context cannot be copied")

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError("a context cannot be copied")

    def __repr__(self) -> str:
        return f"Context({'/'.join(self.at) or 'outside a run'}, run={self.engine.run_id or None})"

    # -- identity

    @property
    def id(self) -> str:
        """The execution's id, a UUIDv7: the run's own, or a spawn's; never shared with a child."""
        return self.engine.id

    @property
    def run_id(self) -> str:
        """The run's id; equal in all children."""
        return self.engine.run_id

    @property
    def fence(self) -> int | None:
        """The number of the process that has the run: a later owner has a larger one; `None` where nothing is stored.

        A target that keeps the largest number that it has seen for a run, and refuses smaller ones, takes nothing from
        a process that stood still for longer than its lease and does not know that another one goes on.
        """
        return self.engine.fence

    @property
    def name(self) -> str:
        """The step's id."""
        return self.at[-1] if self.at else ""

    @property
    def path(self) -> tuple[str, ...]:
        """The step's path, frame by frame, such as `("pipeline", "agent[3]", "search#2")`."""
        return self.at

    @property
    def branch(self) -> str:
        """The dotted name of the conversation this step writes to; a spawn and a parallel path have their own."""
        return self.scope.branch

    @property
    def depth(self) -> int:
        """0 in the run itself, one more for each spawn."""
        return self.engine.depth

    @property
    def parent(self) -> AnyContext | None:
        """Inside a spawn the context that spawned it, otherwise `None`."""
        return self.engine.parent_context

    @property
    def root(self) -> AnyContext:
        """The run's own context; `ctx.root.abort(...)` stops the whole run."""
        return self.engine.root_context

    @property
    def thread_id(self) -> str:
        """The conversation's id, stable over runs."""
        return self.engine.thread_id

    @property
    def session(self) -> SessionKey | None:
        """The session that the run is a turn of, `None` outside of one."""
        return self.engine.session

    @property
    def user_id(self) -> str | None:
        """The user or tenant the run belongs to."""
        return self.engine.user_id

    @property
    def request_id(self) -> str | None:
        """The caller's correlation id; can be set outside of a run, for the runs that follow."""
        return self.engine.request_id

    @request_id.setter
    def request_id(self, value: str | None) -> None:
        self._outside("request_id").request_id = value

    # -- what happened

    @property
    def input(self) -> object:
        """The input of the execution."""
        return copy_value(self.engine.input)

    @property
    def step_count(self) -> int:
        """Bodies started in this execution, the running one included: code steps, model calls, tool steps."""
        return self.engine.step_count

    @property
    def turns(self) -> int:
        """Model calls of this execution; in a run that continues a context those of its earlier runs are included.

        A context outside a run has those that its runs have made themselves, not in a spawn.
        """
        return self.engine.turns

    @property
    def tokens(self) -> TokenUsage:
        """Tokens of all model calls here and below."""
        return self.engine.tokens

    @property
    def cost(self) -> Decimal:
        """USD of all model calls here and below, exact."""
        return self.engine.cost

    @property
    def elapsed(self) -> float:
        """Seconds since the execution began, from a monotonic clock."""
        return self.engine.elapsed

    @property
    def budget(self) -> Remaining:
        """The remaining budget, with `limit` and `used` of each dimension."""
        return self.engine.remaining(self)

    @property
    def last_step(self) -> StepMeta | None:
        """The most recently completed step of this execution, `None` before the first."""
        return self.engine.last_step

    @property
    def items(self) -> ItemLog:
        """The conversation, append-only."""
        return self.scope.log

    @property
    def state(self) -> S_co:
        """The state: one mutable object, which a step that does not finish leaves as it found it."""
        if not self.touched:
            self.engine.touch(self)
        state: S_co = self.scope.state
        return state

    if not TYPE_CHECKING:
        state = state.setter(check_same)

    @property
    def memory(self) -> M_co:
        """The memory bundle, each layer bound to this step."""
        memory: M_co = self.engine.bind(self, reads=False)
        return memory

    @property
    def last_layer_usage(self) -> LayerUsage | None:
        """Tokens of the last model call's request by where they came from; `None` before the first one."""
        return self.engine.last_layer_usage

    @property
    def services(self) -> Services:
        """The run's services by type."""
        return self.engine.services

    @property
    def attrs(self) -> Attributes:
        """Attributes that all steps, tools and layers of this run share; never stored."""
        return self.engine.attrs

    @property
    def progress(self) -> Progress:
        """How far the step has come, for the process that resumes the run; shared by all its steps."""
        return Progress(self.engine.progress, self.at)

    @property
    def metadata(self) -> Mapping[str, JsonValue]:
        """The run's metadata, JSON; a copy of its own each time."""
        return dict[str, "JsonValue"](copy_value(self.engine.metadata))

    @property
    def span(self) -> Span:
        """The active OpenTelemetry span, one that records nothing when tracing is off."""
        return self.engine.span(self)

    @property
    def trace(self) -> Trace | None:
        """The place in a distributed trace: of the active span, or of the run when nothing is recorded.

        `None` in a context that no run has gone on with, unless it was given one; can be set outside of a run, for the
        runs that follow.
        """
        return self.engine.trace(self)

    @trace.setter
    def trace(self, value: Trace | None) -> None:
        self._outside("trace").place = value

    def _outside(self, what: str) -> UnboundEngine:
        """The settable data of a context outside of a run.

        Raises:
            ConfigError: It is a run's own; code `"running"`.
            RunBusy: A run is using it.
        """
        engine = self.engine
        if not isinstance(engine, UnboundEngine):
            raise ConfigError(
                f"{what} is the run's", code="running", hint=f"set {what} before the run, or spawn a step"
            )
        if engine.adopted:
            raise RunBusy("the context is in a run", hint="await that run first")
        return engine

    @property
    def idempotency_key(self) -> str:
        """A key for the outside world, the same whenever this step runs again in this run."""
        return self.engine.idempotency_key(self)

    # -- control

    @property
    def completed(self) -> bool:
        """Whether `complete` was called in this execution."""
        stop = self.engine.stop
        return stop is not None and stop.rule.completes

    @property
    def completion_value(self) -> object:
        """The value given to `complete`, `None` before."""
        stop = self.engine.stop
        return stop.value if stop is not None and stop.rule.completes else None

    @property
    def aborted(self) -> bool:
        """Whether this execution, or one above it, was aborted."""
        return self._abort() is not None

    @property
    def abort_reason(self) -> str | None:
        """Why, `None` before."""
        stop = self._abort()
        return None if stop is None else stop.reason

    def _abort(self) -> Control | None:
        ctx: AnyContext | None = self
        while ctx is not None:
            stop = ctx.engine.stop
            if stop is not None and stop.rule.aborts:
                return stop
            ctx = ctx.engine.parent_context
        return None

    def complete(self, value: object = None) -> None:
        """End this execution with a value; the first stop wins.

        What runs beside is cancelled at once; the calling body goes on to its next await. In a spawn the value is the
        spawn's.
        """
        self.engine.complete(self, value)

    def abort(self, reason: str) -> None:
        """End this execution and everything below it; the first stop wins.

        In a spawn the parent gets [`Aborted`][noetic_py.errors.Aborted] with the reason.
        """
        self.engine.abort(self, reason)

    def stop_loop(self, value: object = None, *, now: bool = False) -> None:
        """End the nearest loop after this iteration; its value is `value`, or the iteration's when that is `None`.

        Args:
            value: The loop's value.
            now: End it at once: the rest of the iteration does not run, and what runs beside is cancelled. The calling
                body goes on to its next await, and what it has done so far stays. The loop's value is `value`.

        Raises:
            ConfigError: No loop is around this step in its execution; code `"no-loop"`.
        """
        self.engine.stop_loop(self, value, now=now)

    def emit(self, event: object, /) -> None:
        """Send an event of your own to the listeners of the run."""
        self.engine.emit(self, event)

    @overload
    async def gather(
        self: Context[M, S], a: Step[object, A, M, S], b: Step[object, B, M, S], /, *, state: ShareState = ...
    ) -> tuple[A, B]: ...
    @overload
    async def gather(
        self: Context[M, S],
        a: Step[object, A, M, S],
        b: Step[object, B, M, S],
        c: Step[object, C, M, S],
        /,
        *,
        state: ShareState = ...,
    ) -> tuple[A, B, C]: ...
    @overload
    async def gather(self: Context[M, S], *steps: Step[object, R, M, S], state: ShareState = ...) -> list[R]: ...
    @noted()
    async def gather(self, *steps: AnyStep, state: ShareState = "copy") -> Any:
        """Run bound steps at once, as a parallel section; `await ctx.gather(a.bind(x), b.bind(y))`.

        Args:
            *steps: The steps.
            state: As in [`parallel`][noetic_py.parallel].

        Returns:
            The outputs in order: a tuple for two or three steps, a list otherwise.

        Raises:
            ParallelFailed: A path failed; the others were cancelled.
        """
        outputs = await self.engine.gather(self, steps, state)
        return tuple(outputs) if len(steps) in (2, 3) else outputs

    @noted()
    async def send(self, channel: Channel[T], value: T, *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Send a message to the receivers of the channel in this run.

        It is a step of its own: what was sent stays sent, and a second attempt of this step does not send it again.

        Args:
            channel: Where to.
            value: What; it has to be of the channel's type as it stands.
            timeout: Seconds to wait for a place in a full queue; `None` waits for ever, and warns.

        Raises:
            ChannelValueInvalid: The value is not of the channel's type.
            ChannelTimeout: No place was free in time.
            ChannelClosed: The channel is closed.
        """
        await self.engine.send(self, channel, value, timeout)

    @noted()
    async def recv(self, channel: Receivable[T], *, timeout: float | None = DEFAULT_TIMEOUT) -> T:
        """Wait for the next message, or for the first value of a value channel.

        A message taken from a queue goes back to its place when this step does not finish. From a topic a step gets
        everything that is sent between its first `recv` and its end.

        Args:
            channel: Where from.
            timeout: Seconds to wait; `None` waits for ever, and warns.

        Raises:
            ChannelTimeout: Nothing came in time.
            ChannelClosed: The channel is closed.
        """
        declared: Any = channel
        value: T = await self.engine.receive(self, declared, timeout)
        return value

    def try_recv(self, channel: Receivable[T]) -> T | None:
        """The next message if there is one now, `None` otherwise; of a topic always `None`."""
        declared: Any = channel
        value: T | None = self.engine.receive_now(self, declared)
        return value

    @noted()
    async def ask(self, question: Ask[T]) -> T:
        """Ask a person or program, and wait for the answer: `sure = await ctx.ask(Ask("Send it?", bool))`.

        Until there is an answer the run is suspended: no task waits, and `harness.resume(..., answers=[...])` in any
        process goes on. This step's body then begins again from its start, and its finished steps replay.

        Raises:
            Rejected: The answer was no.
            RequestExpired: It was not answered in time.
            ConfigError: The run is not kept; code `"no-backend"`.
        """
        answer: T = await self.engine.ask(self, question)
        return answer

    @noted()
    async def sleep(self, seconds: float | timedelta) -> None:
        """Wait for some time: `await ctx.sleep(timedelta(days=3))`.

        The end is stored, so a process that resumes the run waits only for what is left. In a run that was submitted
        to workers, a long sleep suspends the run: no worker holds it meanwhile, and when the time has come a worker
        goes on with it. This step's body then begins again from its start, and its finished steps replay. In other
        runs, and below a step with `replay="once"`, it is waited for in this process.

        Args:
            seconds: How long; a number of seconds or a span of time.

        Raises:
            ConfigError: It is not a time; code `"sleep"`.
        """
        await self.engine.ask(self, Timer(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds))

    @noted()
    async def sleep_until(self, when: datetime) -> None:
        """Wait until a moment; as `sleep` does. One that has passed is not waited for.

        Raises:
            ConfigError: It is not a time, or has no time zone; code `"sleep"`.
        """
        await self.engine.ask(self, Timer(None, when))

    @noted()
    async def checkpoint(self) -> None:
        """Commit what this step, and those around it, have done so far; nothing without a backend.

        Finished steps are committed anyway. This is for a long body, or for a run with `durability="manual"`. When the
        process dies, a body that was in flight still starts again.

        Raises:
            CodecError: An item or the state cannot be stored.
            CheckpointError: The backend has not taken it.
        """
        await self.engine.checkpoint(self)

    @overload
    def spawn_detached(
        self: Context[M, object],
        step: Step[T, R, M, S2],
        input: T,
        *,
        state: S2 | None = ...,
        budget: Budget | None = ...,
        owner: Literal["run", "harness"] = ...,
    ) -> DetachedRun[R]: ...
    @overload
    def spawn_detached(
        self,
        step: Step[T, R, M2, S2],
        input: T,
        *,
        memory: M2,
        state: S2 | None = ...,
        budget: Budget | None = ...,
        owner: Literal["run", "harness"] = ...,
    ) -> DetachedRun[R]: ...
    def spawn_detached(
        self,
        step: AnyStep,
        input: object,
        *,
        memory: object = None,
        state: object = None,
        budget: Budget | None = None,
        owner: Literal["run", "harness"] = "run",
    ) -> Any:
        """Start a step in the background: `handle = ctx.spawn_detached(research, topic)`.

        It has a conversation and a state of its own. Owned by the run it shares the run's channels, journal and
        budgets; the run ends when it has ended, and stops it when it is stopped itself. When the
        attempt of the step that started it is discarded, the work is too. Owned by the harness it is a run of its own,
        which this run's end does not touch.

        Args:
            step: The step.
            input: Its input.
            memory: Layers of its own; those of this step, as their `on_spawn` makes them, or of the harness, when left
                out.
            state: Its state; a deep copy of this step's for the run's own, a new `StateBag` for the harness's, when
                left out.
            budget: Limits for it alone.
            owner: `"run"` or `"harness"`: which of them waits for it.

        Raises:
            ConfigError: The harness was not entered with `async with`; code `"harness-not-entered"`.
            LimitExceeded: Too deep, or too many in flight.
            BudgetExceeded: A budget's `depth` does not allow it.
        """
        started: DetachedRun[Any] = DetachedRun(
            self.engine.spawn_detached(self, step, input, DetachOptions(memory, state, budget, owner))
        )
        return started

    def read_only(self) -> ReadContext[M_co, S_co]:
        """A live view that offers nothing to change the run with."""
        return ReadView(self)

    def child(
        self,
        *,
        preset: Preset | None = None,
        name: str | None = None,
        branch: str | None = None,
        state: Share | None = None,
        items: ShareItems | None = None,
        counters: ShareCounters | None = None,
        trace: ShareTrace | None = None,
        session: ShareSession | None = None,
        memory: ShareMemory | None = None,
        parent_span: str | None = None,
        request: str | None = None,
    ) -> Context[M_co, S_co]:
        """A context that takes over of this one what is asked for: `ctx.child(request="And then?")`.

        It is a conversation apart, for a run of its own: neither sees what the other does from then on, but for values
        that both hold. With `preset="derive"` it goes on in the same run instead: it has that run's ids, counters,
        services, control and events, and the same state and log unless they are asked for otherwise. A step can be run
        with it: `await step(input, child)`.

        Args:
            preset: What goes for all that is left out. `"fork"`, which is what goes without one: state and items
                copied, turns from 0, a new span in the same trace. `"copy"`: the same turns and place in the trace too.
                `"derive"`: see above. `"isolated"`: nothing of it.
            name: What it is called; the last frame of its path.
            branch: What its branch is called below this one's, with dots where it has parts; its name when left out.
            state: The same object, a copy that shares its values, a deep copy, or a new one of its class.
            items: The conversation so far as a copy, which costs nothing, or none; or the same log, in the same run.
            counters: Whether `turns` continues or begins at 0.
            trace: The same place, a new span below it, a new trace that links to it; or nothing of it, nor of the
                request id.
            session: Whether it keeps this `thread_id` or gets a new one.
            memory: What its layers of scope thread begin with: the same memory, a copy of it as it is now, or nothing.
            parent_span: The id of that new span, instead of a random one; it begins a trace when there is none.
            request: A message of the user's to end with; it may be empty.

        Raises:
            ConfigError: The state cannot be copied, code `"state-copy"`, or a new one needs arguments,
                code `"state-new"`; or an option is unknown or at odds with another, code `"child-option"`.
            InvalidId: `branch`, `name` or `parent_span` cannot be one.
        """
        given = {"counters": counters, "trace": trace, "session": session, "memory": memory}
        how = derivation(preset, state=state, items=items, **given)
        place = self.branch if branch is None and name is None else branch_below(self.branch, branch or name or "")
        if preset == "derive":
            refuse_options("derive", {**given, "parent_span": parent_span})
        child: AnyContext
        # Outside of a run a log of its own needs an origin of its own that knows what of it is a run's.
        if preset == "derive" and (how.items == "share" or not isinstance(self.engine, UnboundEngine)):
            child = Derived(self, how, name, place)
        elif how.items == "share":
            raise ConfigError('items="share" needs preset="derive"', code="child-option", hint='items="copy"')
        else:
            child = self._apart(how, name, place, parent_span)
        if request is not None:
            child.items.append(Message.user(request))
        return child

    def _apart(self, how: Derivation, name: str | None, branch: str, parent_span: str | None) -> AnyContext:
        same, mine = how.session == "same", self.engine
        made: Any = Context(
            state=share_state(self.state, how.state),
            thread_id=mine.thread_id if same else None,
            request_id=None if how.trace == "new" else mine.request_id,
            trace=self._traced(how, parent_span),
            name=name,
        )
        engine: UnboundEngine = made.engine
        if how.items != "new":
            made.scope.log = self.scope.log.fork()
            made.scope.log.origin = None
            known = mine if isinstance(mine, UnboundEngine) else None
            size = len(made.items)
            engine.trusted, engine.settled = (size, size) if known is None else (known.trusted, known.settled)
        made.scope.branch = branch
        engine.memory = self._remembered(how.memory)
        engine.turns = mine.turns if how.counters == "keep" else 0
        engine.named = same and (not isinstance(mine, UnboundEngine) or mine.named)
        child: AnyContext = made
        return child

    def _remembered(self, how: ShareMemory) -> ContextMemory:
        mine = self.engine.memory_of(self)
        if how == "new":
            return ContextMemory(SYSTEM.new_id())
        if how == "copy":
            return ContextMemory(SYSTEM.new_id(), mine.owner or self.thread_id, mine.states)
        return mine

    def _traced(self, how: Derivation, parent_span: str | None) -> Trace | None:
        if parent_span is not None and how.trace != "child":
            raise ConfigError(
                f"parent_span= is at odds with trace={how.trace!r}", code="child-option", hint='trace="child"'
            )
        place = None if how.trace == "new" else self.trace
        if how.trace == "link":
            return new_trace(SYSTEM, link=place)
        if parent_span is not None:
            return (new_trace(SYSTEM) if place is None else place).below(parent_span)
        return new_trace(SYSTEM, within=place) if how.trace == "child" and place is not None else place

    def reset(self, *, trace: bool = False) -> None:
        """Start over: no items, a state as new, no turns. Views of the items that were taken before keep them.

        Args:
            trace: Whether the trace and the request id go too.

        Raises:
            ConfigError: The context is a run's own, code `"running"`; or a new state needs arguments, code
                `"state-new"`.
            RunBusy: A run is using it.
        """
        engine = self._outside("the conversation")
        restore_state(self.state, share_state(self.state, "new"))
        self.scope = ContextScope(ItemLog(), self.state, self.branch)
        engine.trusted = engine.settled = engine.turns = 0
        if trace:
            engine.place = engine.request_id = None

    def snapshot(self) -> bytes:
        """The conversation, the state, the turns and the ids as JSON, for `Context.restore`.

        The states of layers of scope thread are in it as the last run with the context has left them.

        Raises:
            CodecError: The state, an item or the state of a layer cannot be stored.
        """
        ids = (self.thread_id, self.request_id, self.trace, self.name or None)
        memory = self.engine.memory_of(self)
        return pack(Conversation(self.items.snapshot(), self.state, self.turns, *ids, memory))

    @overload
    @classmethod
    def restore(cls, data: bytes, /) -> Context[Memory, StateBag]: ...
    @overload
    @classmethod
    def restore(cls, data: bytes, /, *, state_type: type[S2]) -> Context[Memory, S2]: ...
    @classmethod
    def restore(cls, data: bytes, /, *, state_type: type[Any] = StateBag) -> Any:
        """A context outside of any run that continues from a snapshot, its layers too.

        Raises:
            CodecError: The data are not a snapshot, or the state in them is not a `state_type`.
            ForgedEvent: They hold an item that only a run makes, such as a call without its output.
        """
        kept = unpack(data, state_type)
        ids = {"thread_id": kept.thread_id, "request_id": kept.request_id, "name": kept.name}
        made: Any = Context(state=kept.state, items=kept.items, trace=kept.trace, **ids)
        engine: UnboundEngine = made.engine
        engine.turns, engine.memory = kept.turns, kept.memory
        if kept.memory.states and kept.memory.owner is None:
            # Later changes of the thread's own memory do not belong to this conversation.
            kept.memory.owner, kept.memory.source = SYSTEM.new_id(), kept.thread_id
        return made

    @contextmanager
    def bind(self) -> Generator[Self]:
        """Make this the context that `current_context()` gives in a block: `with ctx.bind(): ...`.

        Tasks and threads that anyio starts in the block see it too, and steps that run in it have their own. The one
        before is back after it, however it ends.
        """
        token = _BOUND.set((self, CURRENT.get()))
        try:
            yield self
        finally:
            _BOUND.reset(token)


class Derived(Context[Any, Any]):
    """A context in the same run, or outside of one, as another: it has its engine, and a branch of its own.

    Args:
        within: The other context.
        how: What of it is shared.
        name: The last frame of its path; the other's path when left out.
        branch: Its branch.
    """

    __slots__ = ("how", "within")

    def __init__(self, within: AnyContext, how: Derivation, name: str | None, branch: str) -> None:
        self.within: AnyContext = within
        self.how: Derivation = how
        self.engine: Engine = within.engine
        self.at: tuple[str, ...] = within.at if name is None else (*within.at, name)
        self.touched: bool = True
        log = within.scope.log
        if how.items != "share":
            log = ItemLog() if how.items == "new" else log.fork()
            log.origin = (within.run_id, branch) if within.run_id else None
        # A step that looks at its state has it copied first: a shared one is looked at on request.
        state = None if how.state == "share" else share_state(within.state, how.state)
        self.scope: ContextScope = ContextScope(log, state, branch)

    @property
    def state(self) -> Any:
        """The state, its own or the other's."""
        return self.within.state if self.how.state == "share" else self.scope.state


# The context that `bind` has put over the engine's current one; a step that begins there does not have it.
_BOUND: ContextVar[tuple[AnyContext, AnyContext | None] | None] = ContextVar("noetic_bound", default=None)


@overload
def current_context() -> AnyContext | None: ...
@overload
def current_context(*, required: Literal[True]) -> AnyContext: ...
def current_context(*, required: bool = False) -> AnyContext | None:
    """The context of the step or tool that is running here, or that a block of `bind` puts in its place; or `None`.

    Args:
        required: Raise instead of returning `None`.

    Raises:
        NoContextError: `required` and there is none.
    """
    ctx, bound = CURRENT.get(), _BOUND.get()
    if bound is not None and bound[1] is ctx:
        ctx = bound[0]
    if ctx is None and required:
        raise NoContextError("no step is running here", hint="call this from a step or a tool, or pass ctx on")
    return ctx


AnyContext: TypeAlias = Context[Any, Any]
