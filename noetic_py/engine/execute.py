"""The one function that executes a step: path, budget, journal, span, retry and events meet here and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from decimal import Decimal
from functools import partial
from logging import DEBUG, WARNING
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from noetic_py import errors
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import ContextScope, StepMeta
from noetic_py.context.step import AnyStep, Body, SequenceSpec
from noetic_py.core.budget import Budget, BudgetLease
from noetic_py.core.diagnostics import forget_attempt, log, note_place
from noetic_py.core.events import StepStarted
from noetic_py.core.runtime import recorded_span
from noetic_py.core.state import LayerStates, SavedState, restore_state
from noetic_py.core.values import ATOMS, copy_value, separate_state
from noetic_py.engine.body import NO_VALUES, call_apart, explained, refuse, shielded
from noetic_py.engine.frame import (
    DONE,
    VIEW_UNCHANGED,
    CancelledError,
    Frame,
    Waiting,
    cut_again,
    failure_of,
    first_stretch,
    go_on,
    in_time,
    is_late,
    note_cut,
    pause,
    recorded_cut,
    resumed,
    waiting_in,
)
from noetic_py.engine.journaling import fold, ledger, replay
from noetic_py.engine.kind import BodySegment
from noetic_py.engine.layers.handles import check_shown, keeping
from noetic_py.engine.state import UNTIMED, Bare, Execution, wrap_up_step
from noetic_py.journal.records import Decision
from noetic_py.steps.code import wrong_input
from noetic_py.steps.flow import BranchSpec, ParallelSpec

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from noetic_py.engine.shared_budgets import RunBudgets


_Error = TypeVar("_Error", bound=errors.NoeticError)

NO_META = StepMeta()
_NO_SPAN = nullcontext()
# Bodies that never wait would starve the event loop and could not be cancelled: every so often a step lets others run.
_BREATHE = 127


async def execute(  # noqa: C901  # every step comes by here, and each call of a function costs it
    step: AnyStep, value: object, parent: Frame, name: str, scope: ContextScope | None = None
) -> Any:
    """Run a step as a child of `parent`, at frame `name`, in the parent's scope or in a new one."""
    x = parent.x
    run = x.run
    run.executed += 1
    own = scope is not None
    scope = parent.scope if scope is None else scope
    if run.alert or not run.executed & _BREATHE:
        found = await _before(step, value, parent, name, scope)
        if found is not None:
            run.replayed += 1
            return found.value
    length = scope.log.size
    if (length != parent.mark or (parent.touched and run.store is None)) and not own:
        ledger.close_segment(parent)
    # Adding tuples is measurably faster than unpacking into one, and every step comes by here.
    frame = Frame(step, parent, x, parent.at + (name,), scope, parent.lease, length)  # noqa: RUF005
    body = step.body
    body = frame.kind.run if body is None else keeping if x.layers.has_place else body
    if run.bus.active:
        await run.bus.wait_for_space()
        frame.publish(StepStarted(frame.at, step.kind, frame.attempt))
    try:
        counted = step.counted if not run.begun else step.counted and replay.is_new(parent, name)
        if frame.lease.steps_free:
            frame.lease.steps += counted
        else:
            frame.lease.take_step(counted)
        if run.shared is not None and counted:
            await _shared_step(frame, frame.lease, run.shared)
        context = copy_context()
        bare = step.plain and run.bare
        work = _inside(frame, body, value, bare)
        untimed = bare is UNTIMED and not own
        around = None if own else parent
        waits = context.run(next, work, DONE) if untimed else first_stretch(frame, context, work, around)
        if waits is not DONE:
            await go_on(frame, context, work, waits)
        output = frame.output
    except BaseException as error:  # noqa: BLE001 # it goes on from there, unless another attempt follows
        output = await _further_attempts(frame, body, value, error, own)
    frame.running = frame.on_stack = False
    length = scope.log.size
    ledger.finished(frame, value, output, length)
    x.last_step = NO_META if step.body is not None else x.last_step
    if not own and (length != parent.mark or parent.touched):
        ledger.returned(parent, length)
    if run.alert:
        last = x.last_step
        await _committed(frame, output)
        # Others have gone on meanwhile, and the next request is about this step.
        x.last_step = last
    return output


def _body(frame: Frame, body: Body, value: object, bare: Bare) -> Generator[object, object, None]:
    """A body, in the context that it has to itself; what it gives is left in the frame, which costs the least."""
    CURRENT.set(frame)
    frame.running = frame.on_stack = True
    if bare:
        work = body(value if value.__class__ in ATOMS else _given(frame.step, value), frame)
    else:
        work = (_logged if frame.x.run.verbose else _guarded)(body, value, frame)
    # Typed as what `coroutine` below makes of it: a generator may wait for a coroutine then.
    waits: Generator[object, object, object] = work  # type: ignore[assignment]
    output = yield from waits
    if frame.touched and frame.x.run.store is None:
        separate_state(frame.scope.state)
    calls = frame.calls
    ended = calls is None or (calls[0].cr_frame is None and calls[3] is None)
    plain = ended and frame.shown is None and output.__class__ in ATOMS
    frame.output = output if plain else _handed_on(frame, output)


_inside: Callable[[Frame, Body, Any, Bare], Any] = coroutine(_body)


async def _further_attempts(frame: Frame, body: Body, value: object, error: BaseException, own: bool) -> object:
    """A body has raised: run it again for as long as its step's `retry` says, and give what it gives at last."""
    step, bus, first = frame.step, frame.x.run.bus, error
    if isinstance(error, (TypeError, AttributeError, ValueError, LookupError)) and step.body is not None:
        frame.wrong_input = wrong_input(step, value, _giver(frame))
    while True:
        await _unwind(frame, error, own)
        if bus.active:
            frame.publish(StepStarted(frame.at, step.kind, frame.attempt))
        try:
            # As the first attempt it counts around the step, and not against the step's own budget.
            lease = frame.lease if frame.own_lease is None else frame.own_lease.parent or frame.lease
            lease.take_step(step.counted)
            if frame.x.run.shared is not None and step.counted:
                await _shared_step(frame, lease, frame.x.run.shared)
            context, work = copy_context(), _inside(frame, body, value, False)
            await go_on(frame, context, work, first_stretch(frame, context, work, None if own else frame.up))
            return frame.output
        except BaseException as another:  # noqa: BLE001 # as above
            # All further attempts are made in the handling of the first one's failure.
            forget_attempt(another, first)
            error = another


async def _shared_step(frame: Frame, lease: BudgetLease, shared: RunBudgets) -> None:
    """Count a body that starts against the budgets that other runs share, too."""
    from noetic_py.engine.kinds.suspension import with_room

    try:
        await with_room(frame, shared, partial(shared.start, {"steps": 1}))
    except BaseException:
        lease.give_back_step()
        raise
    if frame.x.run.store is not None:
        # The answer may have taken longer than the lease lasts.
        await frame.x.run.store.hold()


def _given(step: AnyStep, value: object) -> object:
    """The input of a body: a user's function gets its own copy."""
    return value if step.body is None else copy_value(value)


def _handed_on(frame: Frame, output: object) -> object:
    """The output of a step: a copy of the value that a user's function returned."""
    _check_end(frame, output)
    # In a durable run it has been read from the step's record already.
    own = frame.step.body is None or frame.x.run.store is not None
    return output if own else copy_value(output)


async def _before(
    step: AnyStep, value: object, parent: Frame, name: str, scope: ContextScope
) -> replay.ReplayedOutput | None:
    """The slow path before a step, always taken in a durable run: looks the step up in the journal."""
    run = parent.x.run
    if run.stopping or not run.executed & _BREATHE:
        await _breathe(parent.x)
        if run.bare:
            # By now a body that holds the event loop has most likely done so.
            run.bare = UNTIMED
    if run.timed:
        await in_time()
    if run.store is None:
        return None
    found = replay.lookup(step, value, parent, name, scope)
    cut = recorded_cut(parent, name)
    if cut is not None:
        if found is None:
            replay.restore_finished(step, parent, name, scope, held=len(cut) > 2)
        await cut_again(cut)
    elif found is not None and run.stopping:
        # Its requests are made again, and take effect as they did then.
        await _breathe(parent.x)
    return found


async def _committed(frame: Frame, output: object) -> None:
    """A step is done once its record is stored; and nothing goes on in an execution that was stopped."""
    x = frame.x
    run = x.run
    if run.store is not None and not _ends_around(frame, output):
        await run.store.commit(run.journal)
    if run.stopping:
        await _breathe(x)
    if frame.step.replay == "once":
        # It was shielded from cancellation until here.
        await checkpoint_if_cancelled()


def _ends_around(frame: Frame, output: object) -> bool:
    """Whether the step around ends with this one before anything of the user's runs, and its commit stores both."""
    x, up = frame.x, frame.up
    if x.run.detached or x.run.stopping:
        # Detached work goes on, or a wrap-up may follow.
        return False
    if up is None or x.has_layers or x.run.dispatches_hooks or frame.step.replay == "once":
        return False
    if up.up is None:
        # A step of the run itself, which ends with its flow.
        return x.run.flow is not None and frame.at[-1] == x.run.flow.id
    return up.kind.ends_with is not None and up.kind.ends_with(up, frame.at[-1], output)


async def _unwind(frame: Frame, error: BaseException, own: bool) -> None:
    """A body has raised: return when another attempt follows; a cancellation goes on, it is never swallowed."""
    failure = failure_of(error)
    if failure is not None:
        metrics = frame.x.run.metrics
        if metrics is not None and isinstance(failure, errors.BudgetExceeded) and failure.path in ((), frame.at):
            metrics.refused(failure.dimension)
        await _after_failure(frame, failure if frame.calls is None else explained(frame, failure))
        return
    waiting = waiting_in(error)
    _after_stop(frame, own, waiting=waiting is not None)
    raise error if waiting is None else waiting


async def _breathe(x: Execution) -> None:
    """Let others run, and start nothing in an execution that was stopped."""
    await checkpoint()
    node: Execution | None = None if x.closing else x
    while node is not None:
        if node.stop is not None:
            # Only code that shields itself from cancellation comes here.
            raise errors.Cancelled(
                "the execution was stopped", hint="steps cannot run inside a shielded scope after a stop"
            )
        node = None if node.frame is None or node.frame.up is None else node.frame.up.x


async def _guarded(body: Body, value: object, frame: Frame) -> object:
    """Run a body on its step's own input, under its own timeout, budget and span, and between its hooks."""
    step = frame.step
    if step.bound is not None:
        value = step.bound.value
    run = frame.x.run
    # The library's own work around the body is not timed: the first step imports and loads modules.
    run.running_since = 0.0
    done = await replay.begin(frame, value) if run.store is not None else None
    if step.hooks:
        run.has_hooks()
    if not run.dispatches_hooks or not step.counted:
        return await _run(body, value, frame, done)
    hooked = run.interpreter.with_hooks(body)
    try:
        return await _run(hooked, value, frame, done)
    except BaseException as error:
        failure = failure_of(error)
        if failure is not None:
            await hooked.failed(value, frame, as_error(frame, failure))
        raise


async def _run(body: Body, value: object, frame: Frame, done: replay.ReplayedOutput | None) -> object:
    step, run = frame.step, frame.x.run
    store = run.store
    given = value if value.__class__ in ATOMS else _given(step, value)
    resumed(frame)
    tracer = run.tracer
    with _NO_SPAN if tracer is None else _span(frame, tracer):
        if done is not None:
            output = done.value
        elif store is not None and step.replay == "once":
            output = await shielded(frame, lambda: _limited(frame, body, given))
        else:
            output = await _limited(frame, body, given)
    pause(frame)
    if frame.shown is not None or frame.calls is not None or output.__class__ in NO_VALUES:
        _check_end(frame, output)
    if store is not None:
        if frame.waits_below:
            # The body has caught an exception that must not be caught.
            raise Waiting
        replay.check_called(frame)
        output = ledger.encode_finished(frame, store, value, output)
    close_lease(frame)
    return output


async def _logged(body: Body, value: object, frame: Frame) -> object:
    """Run a body, and say in the log when it begins and when it has ended."""
    log("steps", DEBUG, "%s step started", frame.step.kind, where=frame.where)
    output = await _guarded(body, value, frame)
    log("steps", DEBUG, "%s step finished", frame.step.kind, where=frame.where)
    return output


def _check_end(frame: Frame, output: object) -> None:
    """After a body: refuse an output that is not a value, calls without `await`, and changes of read-only memory."""
    if frame.busy is not None:
        # A task that begins to run while its body's own code is still running, as eager tasks do, may call steps.
        raise _concurrent(frame, frame.busy, "and had not ended when the body did")
    if frame.calls is not None or output.__class__ in NO_VALUES:
        refuse(frame, output)
    if frame.shown is not None:
        check_shown(frame)


async def _limited(frame: Frame, body: Body, value: object) -> object:
    """Run a body under its step's own budget and timeout."""
    budget = frame.step.budget
    if budget is None:
        return await _timed(frame, body, value)
    if frame.own_lease is None:
        open_lease(frame, budget)
    if budget.wrap_up is not None and frame.step.body is not None:
        # Context variables of the body do not reach the wrap-up.
        return await under_budget(frame, budget, lambda: call_apart(frame, _timed, frame, body, value))
    return await under_budget(frame, budget, lambda: _timed(frame, body, value))


def open_lease(frame: Frame, budget: Budget) -> None:
    """A step's own budget: one lease for all its attempts."""
    x, spent = frame.x, None
    lease = BudgetLease(budget, frame.lease, now=x.run.runtime.monotonic(), depth=x.depth, on_warning=x.warned)
    if frame.up is not None and frame.up.node is not None:
        ledger.recover(x.run, lease, frame.at, attempts=not frame.virtual)
        ledger.recover_wrap_up(x.run, spent := BudgetLease(None), frame.at)
    try:
        lease.keep_reserve(spent)
    except errors.BudgetExceeded as error:
        if error.dimension == "steps" and frame.step.counted and not frame.virtual and _is_counted(frame):
            frame.lease.give_back_step()
        raise
    frame.own_lease = frame.lease = lease


def _is_counted(frame: Frame) -> bool:
    """Whether the attempt was counted in this process."""
    run = frame.x.run
    return not run.begun or (frame.at, frame.attempt) not in run.begun


def close_lease(frame: Frame) -> None:
    """A step's own budget ends with the step."""
    if frame.own_lease is not None:
        frame.own_lease.close(frame.wrap_up)
        frame.own_lease = None


async def _timed(frame: Frame, body: Body, value: object) -> object:
    seconds = frame.step.timeout
    if seconds is None:
        return await body(value, frame)
    frame.x.run.has_deadline()
    with anyio.move_on_after(seconds) as cancel_scope:
        output = await body(value, frame)
        if not is_late(cancel_scope):
            return output
    raise errors.StepTimeout(seconds, path=frame.at)


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


async def under_budget(frame: Frame, budget: Budget, body: Callable[[], Awaitable[object]]) -> object:
    """Run a body below the frame's own lease; when that is spent, the budget's wrap-up step gives the value."""
    lease = frame.lease
    try:
        return await _until_deadline(frame, lease, body)
    except errors.BudgetExceeded as error:
        step = wrap_up_step(budget)
        if step is None:
            raise
        if frame.wrap_up is not None:
            # In an attempt after the one that was wrapped up.
            text = f"{error.message}; its wrap-up has been run already"
            raise retold(error, text, hint_beside(error)) from error.__cause__
        # Unwritten changes of the body are dropped, like its items.
        frame.drop_unwritten()
        settle_failure(frame, error, wrapped=False)
        reserve, work = open_wrap_up(frame, lease, step, error, f"budget_exceeded: {error.message}")
        try:
            return await _until_deadline(frame, reserve, work)
        except errors.NoeticError as failure:
            text = f"{error.message}; its wrap-up failed: {failure.message}"
            raise retold(failure, text, remedy_of(failure, lease)) from failure.__cause__


def open_wrap_up(
    frame: Frame, lease: BudgetLease, step: AnyStep, error: errors.BudgetExceeded | None, why: str
) -> tuple[BudgetLease, Callable[[], Awaitable[object]]]:
    """Put a frame on the reserve of its spent lease, and say how to run the wrap-up step there."""
    run = frame.x.run
    run.unfinished = dict.fromkeys(frame.log.open_calls, why) | run.unfinished
    wrap_up = frame.wrap_up = frame.lease = lease.open_wrap_up(run.runtime.monotonic())
    if run.recorded_usage:
        ledger.recover_wrap_up(run, wrap_up, frame.at)
    run.journal.append(Decision(frame.at, "wrap_up", () if error is None else error.path))
    return wrap_up, lambda: execute(step, None, frame, "wrap_up")


def remedy_of(failure: errors.NoeticError, lease: BudgetLease) -> str:
    """What to try after the failure of the wrap-up of a lease."""
    reserve = None if lease.budget is None else lease.budget.reserve
    if isinstance(failure, errors.BudgetExceeded) and reserve is not None:
        kept: Mapping[str, Decimal | float | None] = {**reserve.limits, "seconds": reserve.seconds}
        keyword, limit = failure.dimension.partition(":")[0], kept.get(failure.dimension)
        if limit == failure.limit:
            return f"raise {keyword}= of reserve=, or let the step of wrap_up= do less"
        if limit is None and failure.limit == lease.limits.get(failure.dimension):
            return f"keep {keyword}= back too, in reserve="
    if isinstance(failure, errors.NoOutput):
        return "make wrap_up= one call_model(...) without tools, whose model answers with text"
    return failure.hint or "correct the step of wrap_up="


def hint_beside(error: errors.BudgetExceeded) -> str | None:
    """The hint of an error of a budget that has a wrap-up: not to give it one."""
    return None if error.hint is None else error.hint.removesuffix(", or give it wrap_up= and reserve=")


def retold(error: _Error, text: str, hint: str | None) -> _Error:
    """An error with another text; what the journal has of the error stays as it was."""
    told = copy.copy(error)
    told.message, told.args, told.hint, told.left = text, (text,), hint, error.left
    return told


async def _until_deadline(frame: Frame, lease: BudgetLease, body: Callable[[], Awaitable[object]]) -> object:
    if lease.budget is None or lease.budget.seconds is None or lease.deadline is None:
        return await body()
    seconds = lease.budget.seconds
    frame.x.run.has_deadline()
    with anyio.move_on_after(max(0.0, lease.deadline - frame.x.run.runtime.monotonic())) as cancel_scope:
        output = await body()
        if not is_late(cancel_scope):
            return output
    raise errors.BudgetExceeded("seconds", limit=seconds, requested=0.0, settled=seconds, path=frame.at)


def settle_failure(frame: Frame, error: errors.NoeticError, *, wrapped: bool = True) -> None:
    """The failure was not handled below: what finished steps left becomes visible again in the frame's scope."""
    settle_state(frame.scope, error)
    # A wrap-up may follow, and what it changes is told by what is stored.
    frame.look_again()
    restore(frame, error.path, wrapped=wrapped)
    if error.views is not None:
        frame.scope.view = error.views.get(frame.scope, frame.scope.view)


def settle_state(scope: ContextScope, error: errors.NoeticError) -> None:
    """The state becomes what finished steps had left before the failure, and so do those of layers."""
    left = error.left
    if left is not None and left[0] is scope.state:
        restore_state(scope.state, left[1])
        # Another execution may share the state, and has layers of its own.
        scope.layer_states = left[2].get(scope, scope.layer_states)


def restore(frame: Frame, cause: tuple[str, ...] = (), *, wrapped: bool = True) -> None:
    """Make the frame's conversation and state say what the journal says: an earlier process may have come further.

    Args:
        frame: The frame.
        cause: Where a failure came from.
        wrapped: Whether the frame's own wrap-up belongs to it; not while that may still follow.
    """
    left = fold.below(frame.x.run.journal, frame.x.run.kinds, frame.at, cause, wrapped=wrapped)
    _restore_items(frame, left)
    if frame.node is not None:
        replay.put_state(frame, left)


def restore_log(frame: Frame) -> None:
    """Make the frame's conversation say what the journal says of everything below it."""
    _restore_items(frame, fold.below(frame.x.run.journal, frame.x.run.kinds, frame.at))


def _restore_items(frame: Frame, left: Sequence[BodySegment]) -> None:
    items = [item for segment in left for item in segment.items]
    log = frame.scope.log
    there = log.since(frame.start)
    if list(there) != items[: len(there)]:
        log.rollback(frame.start)
        there = ()
    log.extend(items[len(there) :])
    frame.mark = frame.written = len(log)
    if frame.base_view is not VIEW_UNCHANGED and frame.x.run.store is not None:
        frame.scope.view = frame.base_view
        replay.restore_view(frame, frame.scope, left)


def as_error(frame: Frame, error: Exception) -> errors.NoeticError:
    """The failure as it is seen outside of the step, live and on replay."""
    if isinstance(error, errors.NoeticError):
        failure = error.at(frame.at)
        note_place(failure, error)
        return failure
    hidden = _misuse(error)
    if hidden is not None:
        hidden.__cause__ = error
        return hidden
    failure = errors.StepFailed(path=frame.at, error_type=type(error).__name__, error_message=str(error))
    failure.__cause__ = error.__cause__ if isinstance(error, CancelledError) else error
    failure.hint = frame.wrong_input
    note_place(failure, error)
    return failure


def _giver(frame: Frame) -> str | None:
    """The origin of a step's input: the step before it in the sequence, or the body that called it."""
    below, up = frame, frame.up
    while up is not None and isinstance(spec := up.step.spec, (SequenceSpec, ParallelSpec, BranchSpec)):
        if isinstance(spec, SequenceSpec) and below.at[-1] in spec.frames[1:]:
            return f"step {spec.steps[spec.frames.index(below.at[-1]) - 1].id!r}"
        below, up = up, up.up
    return None if up is None or up.step.body is None else f"the body of step {up.step.id!r}"


def _misuse(error: BaseException) -> errors.ConcurrentStepCall | None:
    """A step called from a body's own task group, which wraps what it raises."""
    if isinstance(error, errors.ConcurrentStepCall):
        return error
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next(filter(None, map(_misuse, inside)), None)


# Errors that a retry cannot fix.
_NEVER_RETRIED = (
    errors.BudgetExceeded,
    errors.UnknownPrice,
    errors.ConfigError,
    errors.ConcurrentStepCall,
    errors.NotAwaited,
    errors.Stopped,
    errors.CheckpointError,
)


async def _after_failure(frame: Frame, error: Exception) -> None:
    """Record a failed attempt; return when another one follows, raise otherwise."""
    failure = as_error(frame, error)
    x = frame.x
    frame.running = frame.on_stack = False
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
        # Detached work of the attempt ends with it, before the journal says that it is discarded.
        await x.run.dismiss(frame.at)
    frame.drop_unwritten()
    if final:
        _note_left(frame, failure)
    frame.rewind()
    forget_loop_stops(frame, frame.at)
    replay.disown(frame, failure)
    ledger.failed(frame, failure, final=final)
    if x.run.store is not None:
        await x.run.store.commit(x.run.journal)
    if final or retry is None:
        if x.run.verbose:
            # The error is raised to its caller; the traceback is that of the step in which it began.
            here = failure if failure.path == frame.at else None
            log("steps", DEBUG, "%s step failed: %s", frame.step.kind, failure.message, where=frame.where, error=here)
        _leave(frame)
        if failure is error:
            raise error
        raise failure from failure.__cause__
    try:
        seconds = retry.wait(frame.attempt, x.run.runtime.random())
        _log_retry(frame, failure, retry.attempts, seconds)
        await x.run.runtime.sleep(seconds)
        if x.run.timed:
            await in_time()
    except BaseException:
        _leave(frame)
        raise
    frame.attempt += 1
    frame.noted = True
    frame.used_tokens = frame.used_cost = frame.used_tool = frame.tool_error = frame.control = frame.occurrences = None
    frame.used_calls = 0
    frame.opened = frame.waits_below = False
    frame.node = frame.visited = frame.last_output = frame.prepared = frame.takes = frame.cuts = None
    frame.cuts_short = None


def _log_retry(frame: Frame, failure: errors.NoeticError, attempts: int, seconds: float) -> None:
    log(
        "steps",
        WARNING,
        "attempt %d of %d failed, the next follows in %.3g s: %s",
        frame.attempt,
        attempts,
        seconds,
        failure.message,
        where=frame.where,
        error=failure if frame.x.run.verbose else None,
    )


def _note_left(frame: Frame, failure: errors.NoeticError) -> None:
    """Note in a failure what finished steps had left in the frame's scope: it is seen where nothing handles it."""
    scope, left = frame.scope, failure.left
    if frame.x.run.store is None:
        # A stored run finds it in its journal.
        failure.views = failure.views or {}
        failure.views.setdefault(scope, scope.view)
    if not frame.has_base:
        return
    if left is None or left[0] is not scope.state:
        state, layer_states = _state_left(frame)
        failure.left = (scope.state, state, {scope: layer_states})
    elif scope not in left[2]:
        left[2][scope] = _state_left(frame)[1]


def _state_left(frame: Frame) -> tuple[object, LayerStates]:
    """The state as finished steps left it: without what the bodies around the failure have not written either."""
    state = frame.scope.state
    left, layer_states = None, frame.scope.layer_states
    node = frame.up
    while node is not None and not node.scope.untouched and node.scope.state is state:
        if node.touched and not node.clean:
            left = node.saved
            if node.scope is frame.scope:
                layer_states = node.saved_layer_states
        node = node.up
    return SavedState(state) if left is None else left, layer_states


def _after_stop(frame: Frame, own: bool, *, waiting: bool) -> None:
    """The body was cancelled, or waits: its unwritten work goes, unless it asked for the stop itself."""
    frame.running = frame.on_stack = False
    # Its task may end with it, and nothing holds the event loop until another body goes on.
    frame.x.run.running_since = 0.0
    if frame.x.run.verbose:
        how = "waits for an answer" if waiting else "was stopped"
        log("steps", DEBUG, "%s step %s", frame.step.kind, how, where=frame.where)
    if frame.x.run.detached:
        frame.x.run.cancel_detached(frame.at)
    if waiting and frame.x.stop is None:
        ledger.waiting(frame)
    else:
        ledger.stopped(frame)
    if frame.control is None:
        frame.drop_unwritten()
        forget_loop_stops(frame, frame.at, below=False)
    parent = frame.up
    if parent is not None and not waiting:
        # A body calls one step at a time: what it has left before does not count.
        beside = () if parent.step.body is not None else parent.cancelled
        parent.cancelled = (*beside, *(frame.cancelled or (frame.at,)))
    if not own and parent is not None and (parent.clean or frame.opened):
        parent.mark = parent.written = len(frame.scope.log)
    _leave(frame)


def _leave(frame: Frame) -> None:
    """A step ends without a result: its lease closes, and what its parent does from now on is a new segment."""
    close_lease(frame)
    if frame.up is not None:
        ledger.remember(frame.up)


def forget_loop_stops(frame: Frame, path: tuple[str, ...], *, below: bool = True) -> None:
    """The requests to loops of a discarded attempt of a step, and with `below` of all steps under it."""
    node: Frame | None = frame
    while node is not None:
        if node.loop_stops:
            node.loop_stops = [stop for stop in node.loop_stops if (stop[1][: len(path)] if below else stop[1]) != path]
        node = node.up


async def call_from_body(frame: Frame, step: AnyStep, value: object) -> object:
    """A body calls a step: one at a time, and in the body's own task."""
    occurrences = frame.occurrences
    if occurrences is None:
        occurrences = frame.occurrences = {}
    own = step.id
    count = occurrences.get(own, 0)
    # `context.step.frame`, without the call: every step that a body runs comes by here.
    name = f"{own}#{count}" if count else own
    if frame.busy is not None:
        raise _concurrent(frame, name, f"while {'/'.join((*frame.at, frame.busy))} is in flight")
    if not frame.on_stack:
        when = "from a task that the body started" if frame.running else "after the step had ended"
        raise _concurrent(frame, name, when)
    occurrences[own] = count + 1
    frame.busy = name
    try:
        return await execute(step, value, frame, name)
    except BaseException as error:
        if frame.x.run.store is not None:
            note_cut(frame, name, error)
        raise
    finally:
        frame.busy = None


def _concurrent(frame: Frame, name: str, when: str) -> errors.ConcurrentStepCall:
    return errors.ConcurrentStepCall(
        f"{'/'.join((*frame.at, name))} was called {when}",
        path=frame.at,
        hint="await ctx.gather(a.bind(x), b.bind(y)) runs several at once; anyio.fail_after replaces asyncio.wait_for",
    )
