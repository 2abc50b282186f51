"""A step in flight: its context, the engine's notes about it, how its body is driven, and what cancels it."""

from __future__ import annotations

import contextvars
import math
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from logging import WARNING
from time import monotonic
from types import CodeType, CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from anyio import CancelScope, current_effective_deadline
from anyio.lowlevel import checkpoint

from noetic_py.context.context import AnyContext, Context, Derived
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import ContextScope
from noetic_py.context.step import function_of
from noetic_py.core.budget import BudgetLease, TokenUsage
from noetic_py.core.diagnostics import Where, log, where_defined
from noetic_py.core.events import Event, Source
from noetic_py.core.state import NO_LAYER_STATES, LayerStates, restore_state
from noetic_py.core.types import T
from noetic_py.errors import ConfigError
from noetic_py.journal.changes import StoredLayerStates, ViewChange
from noetic_py.journal.patches import known_fields
from noetic_py.journal.records import Decision, Segment, StepFinished

if TYPE_CHECKING:
    from decimal import Decimal

    from opentelemetry.trace import Span

    from noetic_py.channels import Reader
    from noetic_py.context.step import AnyStep
    from noetic_py.core.control import Control
    from noetic_py.core.items import Item
    from noetic_py.core.log import ItemLog
    from noetic_py.engine.kind import Kind, Node
    from noetic_py.engine.state import Execution
    from noetic_py.steps.flow import Mode
    from noetic_py.steps.handoff import HistoryFilter


VIEW_UNCHANGED: Final = object()
"""In place of a view: no model has answered in the step, so there is no earlier view to go back to."""


class Waiting(BaseException):
    """Raised when a step waits for an answer: ends its task and those around it.

    Bodies are not meant to catch it; a step whose body does is suspended when the body returns.
    """


def waiting_in(error: BaseException) -> Waiting | None:
    """The mark that a task waits, when that is what has ended it; a task group of the body's own wraps it."""
    if isinstance(error, Waiting):
        return error
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next(filter(None, map(waiting_in, inside)), None)


async def in_time() -> None:
    """Let a scope around this whose time is over cancel it, before anything more is begun."""
    while anyio.current_effective_deadline() <= anyio.current_time():
        await checkpoint()


def is_late(cancel_scope: anyio.CancelScope) -> bool:
    """Whether the time of a scope is over, whether or not it has cancelled anything by then."""
    return cancel_scope.deadline != math.inf and anyio.current_time() >= cancel_scope.deadline


class CancelledError(Exception):
    """The awaited object was cancelled, but the step was not; `__cause__` is asyncio's error."""

    def __init__(self, said: str = "") -> None:
        super().__init__(said or "what was awaited was cancelled, and nothing has cancelled the step")


def failure_of(error: BaseException) -> Exception | None:
    """The failure that was raised; `None` for what goes on through everything, as a cancellation that was requested."""
    if isinstance(error, Exception):
        return error
    return _lost(error) if _is_cancellation(error) and not is_requested(otherwise=False) else None


def lost_task(error: BaseException) -> Exception | None:
    """The failure of a task that only this library starts and awaits; a request that was made of it alone is foreign.

    A task group would take its end for one that was wanted.
    """
    failure = failure_of(error)
    if failure is None and _is_cancellation(error) and current_effective_deadline() > -math.inf:
        return _lost(error)
    return failure


def _lost(error: BaseException) -> CancelledError:
    made = CancelledError("" if isinstance(error, BaseExceptionGroup) else str(error))
    made.__cause__ = error
    return made


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is asyncio's, or a group of such and of failures. The core does not import what may not be there."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if inside:
        return all(isinstance(each, Exception) or _is_cancellation(each) for each in inside)
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def is_requested(*, otherwise: bool) -> bool:
    """Whether the task that runs is to end; `otherwise` on another event loop than asyncio's."""
    try:
        task = sys.modules["asyncio"].current_task()
    except (KeyError, RuntimeError):
        return otherwise
    return task is None or task.cancelling() > 0 or current_effective_deadline() == -math.inf


NO_ITEMS: tuple[Item, ...] = ()

Calls: TypeAlias = "tuple[CoroutineType[Any, Any, Any], CodeType, int, Calls | None]"
"""A call: its coroutine, the code that made it and its instruction; and the calls before it."""


class Frame(Context[Any, Any]):
    """A step in flight: the context its body holds, and the engine's own notes about it.

    Attributes:
        clean: Whether everything the body did itself is in the journal; then so it is for all frames above.
        saved: The state before the body's unwritten work, while `touched` and not clean.
        base: The state at the step's start, once a step below may change it.
        saved_layer_states: The states of layers before the body's unwritten work.
        base_layer_states: The states of layers at the step's start.
        start: The log's length at the step's start.
        mark: The log's length up to which the items have their place: a segment, or a child.
        written: The log's length up to which they are in the journal.
    """

    # Slots for attributes that every step reads: a class default is found only after the instance and each base class.
    __slots__ = (
        "__dict__", "calls", "clean", "kind", "lease", "mark", "noted", "on_stack", "opened", "output", "prepared",
        "running", "segments", "shown", "start", "step", "up", "written", "x",
    )  # fmt: skip

    # Most steps never need most of these: a class default costs a step nothing.
    attempt = 1
    has_base = False
    base: object = None
    saved: object = None
    base_layer_states: LayerStates = NO_LAYER_STATES
    saved_layer_states: LayerStates = NO_LAYER_STATES
    # How the model saw the conversation before the step; and how a model call has changed that, in a durable run.
    base_view: object = VIEW_UNCHANGED
    view_change: ViewChange | None = None
    # The layers as the step has them, once it has asked; and what it was given of their states, by scope and layer.
    bundle: object = None
    busy: str | None = None
    control: Control | None = None
    occurrences: dict[str, int] | None = None
    used_tokens: TokenUsage | None = None
    used_cost: Decimal | None = None
    # How many model calls the attempt has made, and the tool that it has called.
    used_calls = 0
    used_tool: str | None = None
    tool_error: str | None = None
    # For a step that has failed: why its input does not fit its function.
    wrong_input: str | None = None
    # The text of an answer that was cut off.
    heard: tuple[Item, ...] = NO_ITEMS
    # The values given to `stop_loop`, or the step a hook hands over to, and by which steps; the last one counts.
    loop_stops: list[tuple[object, tuple[str, ...]]] | None = None
    # For a loop: the scope of its rounds, and the value with which they were cut short.
    rounds: CancelScope | None = None
    cut: tuple[object] | None = None
    # The loop that ends once this step has, in the middle of a round, because a hook of the step's asks for it.
    cuts_short: tuple[Frame, object] | None = None
    # The lease of the step's own budget, and the one of its wrap-up.
    own_lease: BudgetLease | None = None
    wrap_up: BudgetLease | None = None
    # The step's node in the journal of a resumed run, and which of its children were called this time.
    node: Node | None = None
    visited: set[str] | None = None
    # In a durable run: the cancel scope in which the body began; and which of its calls were cancelled, and by what.
    around: object = None
    cuts: list[tuple[str, list[object]]] | None = None
    # In a durable run: a digest of the input as the step was given it; the last child's name, its output and the stored
    # form of that; the record that is about to be committed; messages taken.
    digest: str | None = None
    last_output: tuple[str, object, object] | None = None
    takes: list[tuple[str, ...]] | None = None
    own_span: Span | None = None
    # For a chain of handoffs: which part of the earlier conversation its step in flight sees, and where that ends.
    narrowed: tuple[int, HistoryFilter] | None = None
    # The body's sources of messages, by channel and attempt.
    readers: dict[tuple[str, int], Reader] | None = None
    winner: int | None = None
    # For a section while its paths run: the mode that ends it early.
    ends_by: Mode | None = None
    # Whether a child waits for an answer, so that the body cannot come to an end.
    waits_below = False
    # The function call that a tool call is made for; and where its events come from, once it has sent one.
    call_id: str | None = None
    source: Source | None = None
    # The steps in flight at and below it when it was cancelled.
    cancelled: tuple[tuple[str, ...], ...] = ()
    # The head of an execution: it stands for the spawn, or the run, that has records of its own.
    virtual = False

    def __init__(
        self,
        step: AnyStep,
        parent: Frame | None,
        x: Execution,
        path: tuple[str, ...],
        scope: ContextScope,
        lease: BudgetLease,
        length: int,
    ) -> None:
        self.engine = x
        self.scope = scope
        self.at = path
        self.touched = False
        self.x: Execution = x
        self.step = step
        self.kind: Kind = x.run.kinds[step.kind]
        self.up = parent
        self.lease = lease
        self.mark = self.written = self.start = length
        # Whether the step's record has to hold more than its output and its items.
        self.noted = self.opened = False
        # Whether the body has begun and not ended, and whether its own code is what runs now: code of another task runs
        # while the body waits, and must not call steps in its name.
        self.running = self.on_stack = False
        self.clean = True
        # The output of the body.
        self.output: object = None
        # Calls of steps that may not have been awaited, the latest first; see `engine/body.py`.
        self.calls: Calls | None = None
        self.shown: dict[tuple[int, str], Any] | None = None
        self.segments: list[Segment] | None = None
        self.prepared: StepFinished | None = None

    def publish(self, event: Event) -> None:
        """Send an event of the step's, with the branch and the tool call that it belongs to."""
        self.x.run.bus.publish(event.tagged(self.source or self.find_source()))

    def find_source(self) -> Source:
        """Where its events come from: as its parent's do, unless it has a conversation of its own, or is a call."""
        up = self.up
        around = None if up is None else up.source or up.find_source()
        if up is not None and around is not None and self.scope is up.scope and self.call_id is None:
            self.source = around
        else:
            above = None if around is None else around.call_id
            self.source = Source(self.scope.branch, self.call_id or above, self.x.depth)
        return self.source

    @property
    def where(self) -> Where:
        """The fields of log records about it."""
        return Where(self.x.run.run_id, self.at, self.attempt)

    @property
    def log(self) -> ItemLog:
        """The conversation the body writes to."""
        return self.scope.log

    def stop_loop_with(self, value: object, path: tuple[str, ...]) -> None:
        """A step asks this loop to end, or this step to hand over."""
        self.loop_stops = [*(self.loop_stops or ()), (value, path)]

    @property
    def handover(self) -> object:
        """The target of a hook's handoff in place of this step; `None` without one."""
        return self.loop_stops[-1][0] if self.loop_stops and self.kind.hands_over else None

    def rewind(self) -> None:
        """Go back to the step's start: its state and its place in the log."""
        self.log.rollback(self.start)
        self.mark = self.written = self.start
        self.segments = self.shown = None
        if self.base_view is not VIEW_UNCHANGED:
            self.scope.view = self.base_view
        if self.has_base:
            restore_state(self.scope.state, self.base)
            self.scope.layer_states = self.base_layer_states
            self.look_again()
        self.touched = False
        self.clean = True

    def drop_unwritten(self) -> None:
        """Forget what the body did itself and no commit has written."""
        self.log.rollback(self.written)
        self.mark = self.written
        self.segments = None
        if self.touched and not self.clean:
            restore_state(self.scope.state, self.saved)
            self.scope.layer_states = self.saved_layer_states
            self.look_again()

    def holds_changes(self) -> bool:
        """Whether it, or a body around it, changed the state before a child and has not written it; if durable."""
        frame: Frame | None = self
        while frame is not None and not (frame.clean and frame.opened):
            if any(each.delta or each.memory for each in frame.segments or ()):
                return True
            frame = frame.up
        return False

    def look_again(self) -> None:
        """Note what is stored: the state was put back, so what is known of it is not what was stored last."""
        store = self.x.run.store
        if store is not None and self.scope.known is not None:
            self.scope.known = known_fields(self.scope.state, store.codec)
            self.scope.stored = StoredLayerStates(self.scope.layer_states)

    def put_layer_states(self, layer_states: LayerStates) -> None:
        """Put states of layers in place of those that are there, as work of the body's own."""
        if not self.touched:
            self.x.touch(self)
        self.scope.layer_states = layer_states

    def put_view(self, view: object) -> None:
        """Put how the model sees the conversation in place of what that was; a step that does not end undoes it."""
        scope = self.scope
        node: Frame | None = self
        while node is not None and node.scope is scope and node.base_view is VIEW_UNCHANGED:
            node.base_view = scope.view
            node = node.up
        scope.view = view


# ------------------------------------------------------------------------------------- the body while it runs


DONE: Final = object()
"""The default of `next` for work that has ended; cheaper than the exception that `send` raises."""
LIMIT: Final = 1.0
"""Seconds that a body may hold the event loop."""


def first_stretch(frame: Frame, context: contextvars.Context, work: Any, around: Frame | None) -> object:
    """Begin a body and time it up to its first await; gives what it waits for, or `DONE`.

    Args:
        frame: The step.
        context: What the body runs in.
        work: The body.
        around: The step around it; `None` when the body begins a task, so that the one around it is not running.
    """
    run = frame.x.run
    # Only code of a user's holds the event loop.
    if around is not None and around.kind.reported and around.on_stack:
        look(around)
    else:
        run.running_since = monotonic()
    try:
        waits = context.run(next, work, DONE)
    except BaseException:
        look(frame)
        raise
    if waits is DONE:
        # `look`, without the call.
        now = monotonic()
        if run.running_since and now - run.running_since > LIMIT:
            look(frame)
        run.running_since = now
    return waits


def resumed(frame: Frame) -> None:
    """A body goes on."""
    frame.x.run.running_since = monotonic()


def pause(frame: Frame) -> None:
    """A stretch of a body is over, and what follows is not timed."""
    look(frame)
    frame.x.run.running_since = 0.0


def look(frame: Frame) -> None:
    """A stretch of a body is over, and another one begins."""
    run, now = frame.x.run, monotonic()
    seconds = now - run.running_since if run.running_since else 0.0
    run.running_since = now
    if seconds > LIMIT and frame.kind.reported:
        _warn(frame, seconds)


def _warn(frame: Frame, seconds: float) -> None:
    step, noticed = frame.step, frame.x.run.noticed
    tool = frame.call_id is not None
    what = f"tool {frame.at[-1].partition('[')[0]!r}" if tool else f"step {step.id!r}"
    if what in noticed:
        return
    noticed.add(what)
    function = function_of(step)
    place = "" if function is None else f", {where_defined(function)},"
    log(
        "steps",
        WARNING,
        "%s%s held the event loop for %.1f s without an await, so nothing else ran meanwhile",
        what,
        place,
        seconds,
        where=frame.where,
        hint="an async client, or await anyio.to_thread.run_sync(function, ...) for what blocks"
        + ("; a tool that is a plain def runs in a thread" if tool else ""),
    )


@coroutine
def go_on(frame: Frame, context: contextvars.Context, work: Any, waits: Any) -> Generator[Any, Any, None]:
    """Bring work of a step to its end that has begun in a context and waits for something."""
    run = frame.x.run
    try:
        while waits is not DONE:
            frame.on_stack = False
            # Those around it find that the stretch is over, and when it goes on they are the first to note it.
            if run.running_since:
                if monotonic() - run.running_since > LIMIT:
                    look(frame)
                run.running_since = 0.0
            try:
                sent, thrown = (yield waits), None
            except BaseException as error:  # noqa: BLE001 # it is raised where the work waits
                sent, thrown = None, error
            frame.on_stack = True
            if not run.running_since:
                run.running_since = monotonic()
            waits = context.run(next, work, DONE) if sent is thrown else context.run(_resume, work, sent, thrown)
    finally:
        now = monotonic()
        if run.running_since and now - run.running_since > LIMIT:
            look(frame)
        run.running_since = now


def _resume(work: Any, sent: object, thrown: BaseException | None) -> object:
    try:
        return work.send(sent) if thrown is None else work.throw(thrown)
    except StopIteration:
        return DONE


# --------------------------------------------------------------------------------------------- contexts


def acting(frame: Frame) -> Frame:
    """The frame that work belongs to; requests through `ctx.root` or `ctx.parent` belong to their caller."""
    asking = CURRENT.get() if frame.virtual else None
    return asking if isinstance(asking, Frame) else frame


def frame_of(ctx: AnyContext) -> Frame:
    """The frame that a context is.

    Raises:
        ConfigError: It is not valid; code `"not-running"`, or `"derived"` when it was derived from one.
    """
    if isinstance(ctx, Frame):
        return ctx
    if isinstance(ctx, Derived):
        raise ConfigError(
            "several steps at once are called with the context of a step",
            code="derived",
            path=ctx.path,
            hint="await step(input, child) runs one with it; gather with the context that it was derived from",
        )
    raise ConfigError("this context is not the engine's", code="not-running")


def frame_around(ctx: AnyContext) -> Frame:
    """The frame that a context is, or that it was derived from."""
    while isinstance(ctx, Derived):
        ctx = ctx.within
    return frame_of(ctx)


# ---------------------------------------------------------------------------------------- what cuts calls off


_NO_SCOPE = -1
"""Marks a cancellation that no anyio scope caused, such as one by `asyncio.timeout`."""


def innermost() -> object:
    """The cancel scope in which a body begins; those that it opens are inside of it."""
    return next(iter(_scopes()), None)


def note_cut(frame: Frame, name: str, error: BaseException) -> None:
    """A call of a body's is being cancelled: remember by what, in case that is the body's own and the body goes on."""
    if not isinstance(error, anyio.get_cancelled_exc_class()) or recorded_cut(frame, name) is not None:
        return
    own = True
    for at, cancel_scope in enumerate(_scopes()):
        own = own and cancel_scope is not frame.around
        if cancel_scope.cancel_called:
            if own:
                _remember(frame, name, at, cancel_scope.deadline <= anyio.current_time())
            return
    _remember(frame, name, _NO_SCOPE, False)


def _remember(frame: Frame, name: str, at: int, timed: bool) -> None:
    frame.cuts = [*(frame.cuts or ()), (name, [at, timed, True] if frame.holds_changes() else [at, timed])]


def settle_cuts(frame: Frame) -> None:
    """The body goes on, so that what has cut off its calls is decided."""
    cuts, frame.cuts = frame.cuts, None
    for name, cut in cuts or ():
        # Where the task is still to end it was not the body's own, and the body only puts things in order.
        if cut[0] != _NO_SCOPE or not is_requested(otherwise=True):
            frame.x.run.journal.append(Decision(frame.at, f"cut[{name}]", cut))


def recorded_cut(frame: Frame, name: str) -> Any:
    """The recorded cause that cut off a call in an earlier process; `None` without one.

    The number of the scope, whether its time was over, and `True` where changes of the state before the call were not
    written.
    """
    return None if frame.node is None else frame.node.decisions.get(f"cut[{name}]")


async def waited(frame: object, name: str, wait: Callable[[], Awaitable[T]]) -> T:
    """Wait in a body for what is not a step; what cuts the wait off is decided as it is for a call of a step.

    Args:
        frame: The body that waits, if a body does.
        name: What it waits for, the same in every process.
        wait: Waits.
    """
    # Calls of other tasks of the body have no reproducible order.
    if not isinstance(frame, Frame) or frame.x.run.store is None or not frame.on_stack:
        return await wait()
    occurrences = frame.occurrences
    if occurrences is None:
        occurrences = frame.occurrences = {}
    # No id of a user's can hold brackets, so no step called from the body has this name.
    place = f"{name}[waited]"
    count = occurrences[place] = occurrences.get(place, 0) + 1
    place = f"{place}#{count}"
    cut = recorded_cut(frame, place)
    if cut is not None:
        await cut_again(cut)
    try:
        return await wait()
    except BaseException as error:
        note_cut(frame, place, error)
        raise


async def cut_again(cut: Any) -> None:
    """Be cancelled by the scope that has cancelled this call before; by what is not a scope when that does it again."""
    at, timed = cut[:2]
    for distance, cancel_scope in enumerate(_scopes()):
        if distance == at and timed:
            # Its time is over, as it was then: `fail_after` looks at that.
            cancel_scope.deadline = anyio.current_time()
        elif distance == at:
            cancel_scope.cancel()
    await anyio.sleep_forever()


def _scopes() -> Iterator[Any]:
    """The cancel scopes around the running code, from the inside; none where the event loop does not show them.

    Neither anyio nor trio has a public way to them.
    """
    trio, backend = sys.modules.get("trio"), sys.modules.get("anyio._backends._asyncio")
    try:
        if trio is not None and issubclass(anyio.get_cancelled_exc_class(), trio.Cancelled):
            status = trio.lowlevel.current_task()._cancel_status
            while status is not None:
                yield status._scope
                status = status._parent
        elif backend is not None:
            state = backend._task_states.get(sys.modules["asyncio"].current_task())
            cancel_scope = None if state is None else state.cancel_scope
            while cancel_scope is not None:
                yield cancel_scope
                cancel_scope = cancel_scope._parent_scope
    except AttributeError:
        return


def unfinished(calls: Calls | None) -> Calls | None:
    """The calls that have not ended: tasks of a body may make calls side by side, for as long as it runs."""
    kept: list[Calls] = []
    while calls is not None:
        if calls[0].cr_frame is not None:
            kept.append(calls)
        calls = calls[3]
    for each in reversed(kept):
        calls = (*each[:3], calls)
    return calls
