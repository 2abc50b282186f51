"""The one function that executes a step: path, budget, journal, span, retry and events meet here and nowhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from noetic_py._engine import durable, fold, ledger
from noetic_py._engine.frame import Frame
from noetic_py._engine.grace import in_peace
from noetic_py._engine.layers import keeping
from noetic_py._engine.parking import Parked, parked_in
from noetic_py._engine.state import DOORS, Execution
from noetic_py.budget import Budget, Lease
from noetic_py.checkpoints.records import Decision
from noetic_py.context import CURRENT, StepMeta
from noetic_py.domain import Domain
from noetic_py.errors import (
    BudgetExceeded,
    Cancelled,
    CheckpointError,
    ConcurrentStepCall,
    ConfigError,
    NoeticError,
    StepFailed,
    StepTimeout,
    Stopped,
    UnknownPrice,
)
from noetic_py.events import StepStarted
from noetic_py.state import Cells, copy_state, restore_state
from noetic_py.steps.handoff import Handoff, undeclared
from noetic_py.steps.step import Body, Step
from noetic_py.steps.step import frame as frame_name
from noetic_py.tracing import recorded_span

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = [
    "HANDLERS",
    "as_error",
    "call_from_body",
    "execute",
    "forget_loop_stops",
    "open_lease",
    "open_wrap_up",
    "restore_log",
    "settle_failure",
    "settle_state",
    "under_budget",
]

AnyStep = Step[Any, Any, Any, Any]
HANDLERS: dict[str, Body] = {}
"""What interprets a kind of step; a code step's body is its own interpreter."""

NO_META = StepMeta()
_NO_SPAN = nullcontext()
# Bodies that never wait would starve the event loop and could not be cancelled: every so often a step lets others run.
_BREATHE = 127


async def execute(step: AnyStep, value: Any, parent: Frame, name: str, domain: Domain | None = None) -> Any:
    """Run a step as a child of `parent`, at frame `name`, in the parent's domain or one of its own."""
    x = parent.x
    run = x.run
    run.executed += 1
    own = domain is not None
    domain = parent.domain if domain is None else domain
    if run.stopping or run.store is not None or not run.executed & _BREATHE:
        found = await _before(step, value, parent, name, domain)
        if found is not None:
            return found.value
    length = domain.log.size
    if length != parent.mark and not own:
        ledger.close_segment(parent)
    # Adding tuples is measurably faster than unpacking into one, and every step comes by here.
    frame = Frame(step, parent, x, parent.at + (name,), domain, parent.lease, length)  # noqa: RUF005
    body = keeping if x.layers.has_place and step.body is not None else step.body or HANDLERS[step.kind]
    if run.bus.active:
        await run.bus.room()
        frame.tell(StepStarted(frame.at, step.kind, frame.attempt))
    frame.token = CURRENT.set(frame)
    try:
        if frame.lease.steps_free:
            frame.lease.steps += step.counted
        else:
            frame.lease.take_step(step.counted)
        output = await (body(value, frame) if step.plain and run.bare else _guarded(frame, body, value))
        if output.__class__ is Handoff:
            raise undeclared(frame.at, output)
    except BaseException as error:  # noqa: BLE001 # it goes on from there, unless another attempt follows
        output = await _further_attempts(frame, body, value, error, own)
    CURRENT.reset(frame.token)
    frame.token = None
    length = domain.log.size
    ledger.finished(frame, value, output, length)
    x.last_step = NO_META if step.body is not None else x.last_step
    if not own and (length != parent.mark or parent.touched):
        ledger.returned(parent, length)
    if run.stopping or run.store is not None:
        last = x.last_step
        await _committed(x, step)
        # Others have gone on meanwhile, and whoever asks next asks about this step.
        x.last_step = last
    return output


async def _further_attempts(frame: Frame, body: Body, value: Any, error: BaseException, own: bool) -> Any:
    """A body has raised: run it again for as long as its step's `retry` says, and give what it gives at last."""
    step, bus = frame.step, frame.x.run.bus
    while True:
        await _unwind(frame, error, own)
        if bus.active:
            frame.tell(StepStarted(frame.at, step.kind, frame.attempt))
        frame.token = CURRENT.set(frame)
        try:
            frame.lease.take_step(step.counted)
            return await _guarded(frame, body, value)
        except BaseException as another:  # noqa: BLE001 # as above
            error = another


async def _before(step: AnyStep, value: Any, parent: Frame, name: str, domain: Domain) -> durable.Found | None:
    """What comes before a step now and then, and always in a durable run: what its journal says of the step."""
    run = parent.x.run
    if run.stopping or not run.executed & _BREATHE:
        await _breathe(parent.x)
    return None if run.store is None else durable.look(step, value, parent, name, domain)


async def _committed(x: Execution, step: AnyStep) -> None:
    """A step is done once its record is stored; and nothing goes on in an execution that was stopped."""
    run = x.run
    if run.store is not None:
        await run.store.commit(run.journal)
    if run.stopping:
        await _breathe(x)
    if step.replay == "once":
        # It was left in peace until here.
        await checkpoint_if_cancelled()


async def _unwind(frame: Frame, error: BaseException, own: bool) -> None:
    """A body has raised: return when another attempt follows; a cancellation goes on, it is never swallowed."""
    if isinstance(error, Exception):
        if frame.token is not None:
            CURRENT.reset(frame.token)
        await _after_failure(frame, error)
        return
    CURRENT.set(frame.up)
    parked = parked_in(error)
    _after_stop(frame, own, parked=parked is not None)
    raise error if parked is None else parked


async def _breathe(x: Execution) -> None:
    """Let others run, and start nothing in an execution that was stopped."""
    await checkpoint()
    node: Execution | None = None if x.closing else x
    while node is not None:
        if node.stop is not None:
            # Only code that shields itself from cancellation comes here.
            raise Cancelled("the execution was stopped", hint="steps cannot run inside a shielded scope after a stop")
        node = None if node.frame is None or node.frame.up is None else node.frame.up.x


async def _guarded(frame: Frame, body: Body, value: Any) -> Any:
    """Run a body on its step's own input, under its own timeout, budget and span."""
    step = frame.step
    if step.bound is not None:
        value = step.bound.value
    run = frame.x.run
    durably = run.store is not None
    done = await durable.begin(frame, value) if durably else None
    if step.hooks:
        run.has_hooks()
    if run.hooked and step.counted:
        body = DOORS.hooked(body)
    tracer = run.tracer
    with _NO_SPAN if tracer is None else _span(frame, tracer):
        if done is not None:
            output = done.value
        elif durably and step.replay == "once":
            output = await in_peace(frame, lambda: _limited(frame, body, value))
        else:
            output = await _limited(frame, body, value)
    if output.__class__ is Handoff:
        raise undeclared(frame.at, output)
    if durably:
        if frame.parks:
            # The body has caught what nobody is to catch.
            raise Parked
        durable.prepare(frame, value, output)
    close_lease(frame)
    return output


async def _limited(frame: Frame, body: Body, value: Any) -> Any:
    """Run a body under its step's own budget and timeout."""
    budget = frame.step.budget
    if budget is None:
        return await _timed(frame, body, value)
    if frame.own_lease is None:
        open_lease(frame, budget)
    return await under_budget(frame, budget, lambda: _timed(frame, body, value))


def open_lease(frame: Frame, budget: Budget) -> None:
    """A step's own budget: one lease for all its attempts."""
    x = frame.x
    lease = Lease(budget, frame.lease, now=x.run.runtime.monotonic(), depth=x.depth, on_warning=x.warned)
    if frame.up is not None and frame.up.node is not None:
        durable.recover(x.run, lease, frame.at, attempts=not frame.virtual)
    lease.keep_reserve()
    frame.own_lease = frame.lease = lease


def close_lease(frame: Frame) -> None:
    """A step's own budget ends with the step."""
    if frame.own_lease is not None:
        frame.own_lease.close(frame.wrap_up)
        frame.own_lease = None


async def _timed(frame: Frame, body: Body, value: Any) -> Any:
    seconds = frame.step.timeout
    if seconds is None:
        return await body(value, frame)
    with anyio.move_on_after(seconds):
        return await body(value, frame)
    raise StepTimeout(seconds, path=frame.at)


@contextmanager
def _span(frame: Frame, tracer: Tracer) -> Generator[None]:
    step = frame.step
    attributes: dict[str, str | int] = {
        "noetic.path": "/".join(frame.at),
        "noetic.kind": step.kind,
        "noetic.attempt": frame.attempt,
    }
    with recorded_span(tracer, f"{step.kind} {step.id}", attributes) as span:
        frame.own_span = span
        yield


async def under_budget(frame: Frame, budget: Budget, body: Callable[[], Awaitable[Any]]) -> Any:
    """Run a body below the frame's own lease; when that is spent, the budget's wrap-up step gives the value."""
    lease = frame.lease
    try:
        return await _until_deadline(frame, lease, body)
    except BudgetExceeded as error:
        if budget.wrap_up is None or frame.wrap_up is not None:
            raise
        settle_failure(frame, error)
        return await _until_deadline(frame, *open_wrap_up(frame, lease, budget.wrap_up, error))


def open_wrap_up(
    frame: Frame, lease: Lease, step: AnyStep, error: BudgetExceeded | None
) -> tuple[Lease, Callable[[], Awaitable[Any]]]:
    """Put a frame on the reserve of its spent lease, and say how to run the wrap-up step there."""
    run = frame.x.run
    wrap_up = frame.wrap_up = frame.lease = lease.open_wrap_up(run.runtime.monotonic())
    run.journal.append(Decision(frame.at, "wrap_up", () if error is None else error.path))
    return wrap_up, lambda: execute(step, None, frame, "wrap_up")


async def _until_deadline(frame: Frame, lease: Lease, body: Callable[[], Awaitable[Any]]) -> Any:
    if lease.budget is None or lease.budget.seconds is None or lease.deadline is None:
        return await body()
    seconds = lease.budget.seconds
    with anyio.move_on_after(max(0.0, lease.deadline - frame.x.run.runtime.monotonic())):
        return await body()
    raise BudgetExceeded("seconds", limit=seconds, requested=0.0, settled=seconds, path=frame.at)


def settle_failure(frame: Frame, error: NoeticError) -> None:
    """Nobody below handled the failure: what finished steps left becomes visible again in the frame's domain."""
    settle_state(frame.domain, error)
    restore_log(frame, error.path)


def settle_state(domain: Domain, error: NoeticError) -> None:
    """The state becomes what finished steps had left before the failure, and so do those of layers."""
    left = error.left
    if left is not None and left[0] is domain.state:
        restore_state(domain.state, left[1])
        domain.cells = left[2]


def restore_log(frame: Frame, cause: tuple[str, ...] = ()) -> None:
    """Make the frame's log say what the journal says of everything below it; `cause` is where a failure came from."""
    items = fold.items_below(frame.x.run.journal, frame.at, cause)
    log = frame.domain.log
    there = log.since(frame.start)
    if list(there) != items[: len(there)]:
        log.rollback(frame.start)
        there = ()
    log.extend(items[len(there) :])
    frame.mark = frame.written = len(log)


def as_error(frame: Frame, error: Exception) -> NoeticError:
    """The failure as everybody outside the step sees it, live and on replay."""
    if isinstance(error, NoeticError):
        return error.at(frame.at)
    hidden = _misuse(error)
    if hidden is not None:
        hidden.__cause__ = error
        return hidden
    failure = StepFailed(path=frame.at, error_type=type(error).__name__, error_message=str(error))
    failure.__cause__ = error
    return failure


def _misuse(error: BaseException) -> ConcurrentStepCall | None:
    """A step called from a body's own task group, which wraps what it raises."""
    if isinstance(error, ConcurrentStepCall):
        return error
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next(filter(None, map(_misuse, inside)), None)


# What another attempt cannot change.
_NEVER_RETRIED = (BudgetExceeded, UnknownPrice, ConfigError, ConcurrentStepCall, Stopped, CheckpointError)


async def _after_failure(frame: Frame, error: Exception) -> None:
    """Record a failed attempt; return when another one follows, raise otherwise."""
    failure = as_error(frame, error)
    x = frame.x
    frame.token = None
    if x.stop is not None:
        # After a stop no failure is written: the attempt ends as stopped, and its finished children stay.
        frame.drop_unwritten()
        ledger.stopped(frame)
        _leave(frame)
        await _breathe(x)
    retry = frame.step.retry
    final = (
        retry is None
        or frame.attempt >= retry.attempts
        or isinstance(failure, _NEVER_RETRIED)
        or not retry.covers(failure)
    )
    if not final and x.run.detached:
        # What the attempt has started goes with it, before the journal says that it is void.
        await x.run.dismiss(frame.at)
    frame.drop_unwritten()
    if final and frame.has_base and (failure.left is None or failure.left[0] is not frame.domain.state):
        failure.left = (frame.domain.state, *_state_left(frame))
    frame.rewind()
    forget_loop_stops(frame, frame.at)
    durable.disown(frame, failure)
    ledger.failed(frame, failure, final=final)
    if x.run.store is not None:
        await x.run.store.commit(x.run.journal)
    if final or retry is None:
        _leave(frame)
        if failure is error:
            raise error
        raise failure from error
    try:
        await x.run.runtime.sleep(retry.wait(frame.attempt, x.run.runtime.random()))
    except BaseException:
        _leave(frame)
        raise
    frame.attempt += 1
    frame.noted = True
    frame.used_tokens = frame.used_cost = frame.used_tool = frame.control = frame.occurrences = None
    frame.used_calls = 0
    frame.opened = frame.parks = False
    frame.node = frame.visited = frame.last_output = frame.prepared = frame.takes = None


def _state_left(frame: Frame) -> tuple[Any, Cells]:
    """The state as finished steps left it: without what the bodies around the failure have not written either."""
    state = frame.domain.state
    left, cells = state, frame.domain.cells
    node = frame.up
    while node is not None and not node.domain.untouched and node.domain.state is state:
        if node.touched and not node.clean:
            left = node.saved
            if node.domain is frame.domain:
                cells = node.saved_cells
        node = node.up
    return copy_state(left), cells


def _after_stop(frame: Frame, own: bool, *, parked: bool) -> None:
    """The body was cancelled, or waits: its unwritten work goes, unless it asked for the stop itself."""
    frame.token = None
    if frame.x.run.detached:
        frame.x.run.cancel_detached(frame.at)
    if parked and frame.x.stop is None:
        ledger.parked(frame)
    else:
        ledger.stopped(frame)
    if frame.control is None:
        frame.drop_unwritten()
        forget_loop_stops(frame, frame.at, below=False)
    parent = frame.up
    if not own and parent is not None and parent.clean:
        parent.mark = parent.written = len(frame.domain.log)
    _leave(frame)


def _leave(frame: Frame) -> None:
    """A step ends without a result: its lease closes, and what its parent does from now on is a new segment."""
    close_lease(frame)
    if frame.up is not None:
        ledger.remember(frame.up)


def forget_loop_stops(frame: Frame, path: tuple[str, ...], *, below: bool = True) -> None:
    """What a void attempt of the step at a path has asked of the loops around it, and with `below` all under it too."""
    node: Frame | None = frame
    while node is not None:
        if node.loop_stops:
            node.loop_stops = [stop for stop in node.loop_stops if (stop[1][: len(path)] if below else stop[1]) != path]
        node = node.up


async def call_from_body(frame: Frame, step: AnyStep, value: object) -> Any:
    """A body calls a step: one at a time, and in the body's own task."""
    occurrences = frame.occurrences
    if occurrences is None:
        occurrences = frame.occurrences = {}
    count = occurrences.get(step.id, 0)
    name = frame_name(step.id, count)
    if frame.busy is not None:
        raise _concurrent(frame, name, f"while {'/'.join((*frame.at, frame.busy))} is in flight")
    token = frame.token
    if token is None:
        raise _concurrent(frame, name, "after the step had ended")
    try:
        # A token belongs to the task that set it: this is how a call from a foreign task is told, at no cost.
        CURRENT.reset(token)
    except ValueError:
        raise _concurrent(frame, name, "from a task that the body started") from None
    occurrences[step.id] = count + 1
    frame.busy = name
    try:
        return await execute(step, value, frame, name)
    finally:
        frame.busy = None
        frame.token = CURRENT.set(frame)


def _concurrent(frame: Frame, name: str, when: str) -> ConcurrentStepCall:
    return ConcurrentStepCall(
        f"{'/'.join((*frame.at, name))} was called {when}",
        path=frame.at,
        hint="await ctx.gather(a.bind(x), b.bind(y)) runs several at once; anyio.fail_after replaces asyncio.wait_for",
    )


DOORS.enter = call_from_body
