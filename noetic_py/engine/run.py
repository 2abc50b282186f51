"""A run from its first record to its last, and the interpreter: whatever ends a run, one result comes out."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import evolve, frozen

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.read import ContextScope
from noetic_py.context.step import AnyStep, Retry, SequenceSpec, Step, asks_model
from noetic_py.core.budget import Budget, BudgetLease
from noetic_py.core.control import NO_VALUE, AnyResult, Checkpoint, Control, LoopStop, RunResult, RunStatus, Transcript
from noetic_py.core.diagnostics import Where, log, trim
from noetic_py.core.events import RunFinished
from noetic_py.core.events import RunStarted as RunStartedEvent
from noetic_py.core.items import ID_SOURCE, Item
from noetic_py.core.log import ItemLog
from noetic_py.core.runtime import SYSTEM, current_span, place_of, recorded_span
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.engine import hooks, stops
from noetic_py.engine.detached import detach, recover_detached
from noetic_py.engine.execute import (
    as_error,
    call_from_body,
    execute,
    hint_beside,
    open_wrap_up,
    remedy_of,
    restore,
    retold,
    settle_failure,
)
from noetic_py.engine.frame import Frame, Waiting, failure_of, is_late
from noetic_py.engine.journaling.fold import CLOSE, OPEN, items_below, visible
from noetic_py.engine.journaling.ledger import checkpoint, count_turns, discarded, recover
from noetic_py.engine.journaling.replay import NOTHING, put_state, recorded, stop_again
from noetic_py.engine.journaling.run_history import RunHistory, open_requests, request_of, summary_of
from noetic_py.engine.journaling.writer import RunStorage, RunWriter
from noetic_py.engine.kinds.channels import receive, receive_now, send
from noetic_py.engine.kinds.flow import gather_step
from noetic_py.engine.kinds.loop import cut_short
from noetic_py.engine.kinds.model import input_items, known_of, unsaid
from noetic_py.engine.kinds.spawn import derived_step
from noetic_py.engine.kinds.suspension import ask
from noetic_py.engine.layers.handles import bind
from noetic_py.engine.layers.lifecycle import close_layers, open_layers
from noetic_py.engine.layers.store import StoredLayers
from noetic_py.engine.progress import RunProgress
from noetic_py.engine.protocol import Interpreter
from noetic_py.engine.shared_budgets import RunBudgets
from noetic_py.engine.state import Execution, Run, head, split, wrap_up_step
from noetic_py.engine.stops import (
    ORPHAN,
    VALUELESS,
    asked_again,
    note,
    note_valueless,
    out_of_time,
    unfinished,
    value_so_far,
    wrap_up_of,
)
from noetic_py.engine.telemetry import record_failure
from noetic_py.errors import BudgetExceeded, CheckpointError, NoeticError
from noetic_py.journal.records import (
    CHILD_USED,
    Base,
    Decision,
    JournalRecord,
    Opening,
    Pending,
    RunBegun,
    RunEnded,
    StepFinished,
)
from noetic_py.journal.stored import Queued
from noetic_py.steps.flow import BranchSpec, ParallelSpec
from noetic_py.steps.handoff import HandoffSourceSpec, HandoffSpec, members
from noetic_py.steps.loop import LoopSpec
from noetic_py.steps.spawn import MemorySpec

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@frozen(eq=False)
class RunPlan:
    """The options of a run's execution."""

    step: AnyStep
    value: Any
    scope: ContextScope
    limits: Budget | SharedBudget | None
    deadline: float | None
    opening: Opening | None = None
    run_history: RunHistory | None = None
    storage: RunStorage | None = None
    base: Base | None = None
    delivery_id: str | None = None

    @property
    def budget(self) -> Budget | None:
        """The run's own limits, unless it shares them."""
        return split(self.limits)[0]


# Types that a span can hold; other JSON is stored as text.
_SCALARS = (str, bool, int, float)
_NO_SPAN = nullcontext()
_ROOT: AnyStep = Step(id="run", kind="run")


def _shared_budgets(run: Run, store: RunWriter, plan: RunPlan, now: float) -> RunBudgets | None:
    both = (run.resources.shared, split(plan.limits)[1])
    # Of two with one name the run's own holds.
    shares = [*{budget.name: budget for budget in both if budget is not None}.values()]
    return RunBudgets(shares, store, run.resources.lease, now=now) if shares else None


async def run_flow(run: Run, plan: RunPlan) -> AnyResult:
    """Run a flow to its end; never raises for what happens in it, only for a cancellation from outside."""
    now = run.runtime.monotonic()
    # A run that is only read has no owner, and one without a store has no shared budgets.
    if run.store is not None and run.store.fence:
        run.shared = run.store.budgets = _shared_budgets(run, run.store, plan, now)
    lease = BudgetLease(plan.budget, run.resources.lease if run.shared is None else run.shared.lease, now=now)
    x = Execution(run, lease, depth=0, parent=None, input=plan.value)
    run.root = x
    x.turns = run.context_turns
    # Items that steps make get their ids from the run's own source, so that a second run of it makes the same.
    ids = ID_SOURCE.set(run.runtime.new_id) if run.runtime is not SYSTEM else None
    if run.early is not None:
        x.request(run.early)
    lease.on_warning = x.warned
    root = head(x, None, _ROOT, plan.scope)
    root.opened = True
    history = plan.scope.log.fork()
    # Of a run that was submitted there is its beginning, and nothing else.
    how = "started" if plan.run_history is None or len(plan.run_history.records) == 1 else "resumed"
    log("runs", INFO, "run %s of %s %s", run.run_id, plan.step.id, how, where=Where(run.run_id))
    _announce(run)
    try:
        _begin(x, root, plan, lease)
        output, stop, error = await _outcome(x, root, plan, lease)
        if root.scope.layer_states and (stop is None or not stop.rule.waits):
            await close_layers(x, root)
        return await _result(run, x, plan, history, _Ending(output, stop, error), now)
    except BaseException as cancelled:
        failure = failure_of(cancelled)
        if failure is not None:
            broken = _Ending(NO_VALUE, None, as_error(root, failure))
            return await _result(run, x, plan, history, broken, now)
        reason = "cancelled from outside" if x.stop is None else x.stop.reason
        _discard_wrap_up(root, again=root.wrap_up is not None)
        restore(root)
        left = _Ending(NO_VALUE, Control("cancel", reason=reason), None)
        with anyio.CancelScope(shield=True):
            await close_layers(x, root)
            run.left = await _result(run, x, plan, history, left, now)
            run.cancelled = root.cancelled
        raise
    finally:
        if ids is not None:
            ID_SOURCE.reset(ids)
        if run.detached:
            await run.dismiss()
        lease.close(root.wrap_up)
        lease.on_warning = None
        if run.shared is not None:
            run.shared.close()
        run.close_channels()
        run.bus.close()
        # Without these the run would be a ring that only the garbage collector could break.
        run.root = None
        x.frame = None
        run.context_turns = x.turns


def _announce(run: Run) -> None:
    """Let event sinks follow a run, and say that it begins."""
    # A run that is only read has no owner, and its events have been sent.
    if run.resources.sinks is not None and (run.store is None or run.store.fence):
        run.resources.sinks.follow(run.bus)
    if run.bus.active:
        run.bus.publish(RunStartedEvent((), run.run_id))


def traced(run: Run, step: AnyStep, *, resumed: bool) -> AbstractContextManager[None]:
    """A run's own span, around all that it does in this process; below the place that the run was given, if any.

    A resumed run, which a fork is too, is linked to the run that had begun.
    """
    return _NO_SPAN if run.tracer is None and run.metrics is None else _observed(run, step, resumed=resumed)


@contextmanager
def _observed(run: Run, step: AnyStep, *, resumed: bool) -> Generator[None]:
    try:
        with _NO_SPAN if run.tracer is None else _run_span(run, run.tracer, step, resumed=resumed):
            yield
    finally:
        if run.metrics is not None:
            run.metrics.ran(step.id, run.executed - run.replayed, run.replayed)


@contextmanager
def _run_span(run: Run, tracer: Tracer, step: AnyStep, *, resumed: bool) -> Generator[None]:
    attributes: dict[str, str | int] = {
        "noetic.run": run.run_id,
        "noetic.thread": run.thread_id,
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": step.id,
        "gen_ai.conversation.id": run.thread_id,
    }
    if run.request_id is not None:
        attributes["noetic.request"] = run.request_id
    with recorded_span(tracer, f"invoke_workflow {step.id}", attributes, below=run.trace, follows=resumed) as span:
        for name, value in known_of(run).items():
            span.set_attribute(f"noetic.metadata.{name}", value if isinstance(value, _SCALARS) else json.dumps(value))
        run.trace = place_of(span)
        yield


def open_journal(run: Run, plan: RunPlan) -> None:
    """Write the head of a new run's journal."""
    history = len(plan.scope.log)
    run.journal.append(RunBegun((), run.run_id, run.thread_id, plan.step.id, plan.value, history, plan.opening))
    if run.early is not None and run.early.rule.settles:
        note(run, run.early)


def _begin(x: Execution, root: Frame, plan: RunPlan, lease: BudgetLease) -> None:
    """Begin the journal, if it has not been stored already; or go on where it ends."""
    run, run_history = x.run, plan.run_history
    if run_history is None:
        if run.store is None:
            open_journal(run, plan)
        return
    root.node = run_history.index
    run.unfinished = unfinished(run_history.records)
    recover(run, lease, ())
    count_turns(x, ())
    stop_again(x, ())
    asked = asked_again(root.node, run, run.flow)
    if asked is not None and not asked.rule.wraps_up:
        x.request(asked)
    if x.stop is not None:
        # Nothing runs any more: what the steps have left is all there is.
        left = visible(run_history.index)
        for segment in left:
            plan.scope.log.extend(segment.items)
        put_state(root, left)


async def _outcome(
    x: Execution, root: Frame, plan: RunPlan, lease: BudgetLease
) -> tuple[object, Control | None, NoeticError | None]:
    """Run the flow, and the wrap-up where it was stopped for one; nothing stops the run any more afterwards."""
    run = x.run
    try:
        output, stop, error = await _attempt(x, root, plan, lease)
    finally:
        if run.detached:
            await run.dismiss()
    # Timing of running bodies starts again here.
    run.running_since = 0.0
    asked = stop is not None and stop.rule.wraps_up
    _discard_wrap_up(root, again=asked or (stop is not None and stop.error is not None and lease.keeps))
    if stop is not None and stop.error is not None and lease.keeps and plan.budget is not None:
        output, stop = await _budget_wrapped_up(x, root, plan.budget, lease, stop)
        await run.dismiss()
    elif stop is not None and asked:
        output, stop, error = await _wrapped_up(x, root, plan, lease, stop)
        await run.dismiss()
    x.over = True
    return output, stop, error


async def _attempt(
    x: Execution, root: Frame, plan: RunPlan, lease: BudgetLease
) -> tuple[object, Control | None, NoeticError | None]:
    """Run the flow; what comes out is its output, what stopped it, or what broke it."""
    run = x.run
    left, limit = _seconds(x, plan, lease) or (None, 0.0)
    output: object = NO_VALUE
    if left is not None:
        if left <= 0:
            restore(root, wrapped=False)
            return output, x.out_of_time(limit), None
        run.has_deadline()
        x.cancel_scope.deadline = anyio.current_time() + left
    try:
        lease.keep_reserve()
        with x.cancel_scope:
            output = await _whole(x, root, plan)
    except Waiting:
        if x.stop is None:
            restore(root, wrapped=False)
            return NO_VALUE, Control("suspend"), None
    except Exception as error:  # noqa: BLE001 # it becomes the result's error
        if x.stop is None:
            failure = as_error(root, error)
            settle_failure(root, failure, wrapped=False)
            if isinstance(failure, BudgetExceeded):
                control = Control("budget", reason=str(failure.message), path=failure.path, error=failure)
                return NO_VALUE, control, None
            return NO_VALUE, None, failure
    if x.stop is None and (x.cancel_scope.cancelled_caught or is_late(x.cancel_scope)):
        x.out_of_time(limit)
    stop = x.stop
    if stop is None:
        return output, None, None
    restore(root, wrapped=_is_over(x.run))
    return (stop.value if stop.rule.completes else NO_VALUE), stop, None


def _is_over(run: Run) -> bool:
    """Whether a step had asked for the run's end before this process had it, so that nothing runs any more."""
    return any(control.at == () for control in run.stopped)


def _discard_wrap_up(root: Frame, *, again: bool) -> None:
    """Discard the wrap-up of an earlier process if a step has finished after it, or if none follows this time."""
    run, node, path = root.x.run, root.node, (*root.at, "wrap_up")
    if node is None or "wrap_up" not in node.children or _is_over(run) or (again and not _has_gone_on(run.journal)):
        return
    node.drop("wrap_up")
    node.failed.pop("wrap_up", None)
    discarded(run, path)
    run.recorded_usage = [each.discarded_with(path) for each in run.recorded_usage]


def _has_gone_on(journal: Sequence[JournalRecord]) -> bool:
    """Whether a step of the flow has finished since the last wrap-up began."""
    for record in reversed(journal):
        if isinstance(record, Decision) and not record.path and record.key == "wrap_up":
            return False
        if isinstance(record, StepFinished) and record.path[0] not in ("wrap_up", OPEN, CLOSE):
            return True
    return False


async def _whole(x: Execution, root: Frame, plan: RunPlan) -> object:
    """The flow, and all that it has started beside itself."""
    if x.has_layers:
        await open_layers(x, root, plan.step.id)
    asked = None if root.node is None else asked_again(root.node, x.run, x.run.flow)
    if asked is not None:
        # The flow itself does not run any more, and the wrap-up has the layers as the flow would have them.
        x.request(asked)
    output = await execute(plan.step, plan.value, root, plan.step.id)
    if x.run.detached:
        await x.run.join_detached()
    if x.run.waits and open_requests(x.run.journal, x.run.kinds):
        raise Waiting
    return output


def _seconds(x: Execution, plan: RunPlan, lease: BudgetLease) -> tuple[float, float] | None:
    """How long the run may take from now on, and the limit that says so."""
    if lease.deadline is None and plan.deadline is None:
        return None
    bounds: list[tuple[float, float]] = []
    now = x.run.runtime.monotonic()
    node: BudgetLease | None = lease
    while node is not None:
        if node.budget is not None and node.budget.seconds is not None and node.ends is not None:
            bounds.append((max(0.0, node.ends - now), node.budget.seconds))
        node = node.parent
    if plan.deadline is not None:
        bounds.append((plan.deadline, plan.deadline))
    return min(bounds, default=None)


async def _wrapped_up(
    x: Execution, root: Frame, plan: RunPlan, lease: BudgetLease, stop: Control
) -> tuple[object, Control | None, NoeticError | None]:
    """Finish with what there is: the value of the wrap-up step, or of the loop that was in flight."""
    step = wrap_up_step(plan.budget) or wrap_up_of(x.run, plan.step)
    if step is None:
        return (value := value_so_far(x.run, plan.step)), _giving(stop, value), None
    if recorded(root, VALUELESS) is not NOTHING:
        restore(root)
        return NO_VALUE, evolve(stop, reason=out_of_time(stop.reason)), None
    x.wraps = True
    output, error = await _wrap_up(x, root, step, lease, stop)
    if x.stop is not None:
        # Stopped in another way meanwhile, and that holds.
        return (x.stop.value if x.stop.rule.completes else NO_VALUE), x.stop, None
    if error is not None:
        return NO_VALUE, None, retold(error, f"the wrap-up failed: {error.message}", remedy_of(error, lease))
    if output is NO_VALUE:
        note_valueless(x.run)
        stop = evolve(stop, reason=out_of_time(stop.reason))
    return output, _giving(stop, output), None


def _giving(stop: Control, output: object) -> Control:
    """A stop with the run's final value, for readers of the journal."""
    return stop if output is NO_VALUE else evolve(stop, value=output)


async def _budget_wrapped_up(
    x: Execution, root: Frame, budget: Budget, lease: BudgetLease, stop: Control
) -> tuple[object, Control]:
    """Run the wrap-up of a spent budget; when even that fails, the run has no value, and its stop says why."""
    step, error = wrap_up_step(budget), stop.error
    if step is None or error is None:
        return NO_VALUE, stop
    output, failure = await _wrap_up(x, root, step, lease, stop)
    if x.stop is not None:
        # Stopped in another way meanwhile, and that holds.
        return (x.stop.value if x.stop.rule.completes else NO_VALUE), x.stop
    if output is not NO_VALUE:
        return output, evolve(stop, error=retold(error, error.message, hint_beside(error)))
    if failure is None:
        seconds = 0.0 if budget.reserve is None else budget.reserve.seconds or 0.0
        failure = BudgetExceeded("seconds", limit=seconds, requested=0.0, settled=seconds)
    log("runs", ERROR, "the wrap-up failed: %s", failure.message, where=root.where, error=failure)
    both = retold(error, f"{error.message}; its wrap-up failed: {failure.message}", remedy_of(failure, lease))
    both.__cause__ = failure
    return NO_VALUE, evolve(stop, error=both, reason=both.message)


async def _wrap_up(
    x: Execution, root: Frame, step: AnyStep, lease: BudgetLease, stop: Control
) -> tuple[object, NoeticError | None]:
    """Run a wrap-up on the reserve: its value, or why it failed; neither when it was stopped or out of time."""
    x.ended()
    x.stop = None
    x.cancel_scope = anyio.CancelScope()
    reserve, work = open_wrap_up(root, lease, step, stop.error, f"{stop.status}: {stop.reason}")
    if reserve.deadline is not None:
        x.cancel_scope.deadline = anyio.current_time() + max(0.0, reserve.deadline - x.run.runtime.monotonic())
    try:
        with x.cancel_scope:
            output = await work()
            await x.run.join_detached()
            if not is_late(x.cancel_scope):
                return output, None
    except Exception as failed:  # noqa: BLE001 # it is given to the caller of the wrap-up
        failure = as_error(root, failed)
        settle_failure(root, failure)
        return NO_VALUE, failure
    finally:
        # Its steps are the run's, and the run's result tells of them.
        reserve.close()
    return NO_VALUE, None


async def _end(
    run: Run,
    status: RunStatus,
    reason: str | None,
    control: Control | None,
    pending: Mapping[int, Pending],
    error: NoeticError | None,
) -> None:
    if run.store is not None:
        run.store.settle(run.journal)
    last = run.journal[-1] if run.journal else None
    if not isinstance(last, RunEnded) or last.status != status:
        run.journal.append(RunEnded((), status, reason, control, tuple(pending)))
    if run.store is not None:
        run.store.status = status
        if control is not None and control.shutdown is not None:
            run.store.set_summary(shutdown=True)
        try:
            # A reader of the stream sees the end before the session is written.
            followed = run.store.followed and not run.bus.streamed
            claimed, waits = run.store.claimed, status == "suspended"
            queued = _until_due(claimed.claim.queued, pending.values()) if waits and claimed is not None else None
            if queued is not None and run.children is not None and run.children.refused and run.children.freed:
                # There is room now for children that could not begin.
                queued = evolve(queued, at=await run.store.backend.clock())
            if error is not None and claimed is not None and claimed.retry is not None:
                queued = await _tried_again(run, run.store.backend, claimed.claim.queued, claimed.retry, error)
            # A run that was cut off stays where it was: another worker goes on with it.
            stays = queued is not None or waits
            cut = control is not None and (control.kind == "cancel" or control.shutdown is not None)
            await run.store.end(run.journal, followed=followed, queued=queued, ended=not stays and not cut)
        finally:
            await run.store.release()
        cut = status in ("interrupted", "cancelled") or (queued is not None and not waits)
        if run.children is not None and not cut:
            await _stop_children(run, {each.key for each in pending.values()})
    if run.bus.active:
        run.bus.publish(RunFinished((), run.run_id, status, reason))


async def _stop_children(run: Run, wanted: set[str]) -> None:
    """Stop the runs that workers carry out for the run, and that it does not wait for any more."""
    if run.resources.children is None:
        return
    ended = {each.value["run"] for each in run.journal if isinstance(each, Decision) and each.key == CHILD_USED}
    begun = [each for each in run.journal if isinstance(each, Pending) and each.kind == "run"]
    children, reason = run.resources.children(), f"run {run.run_id} does not wait for it any more"
    async with anyio.create_task_group() as group:
        for each in begun:
            if each.key not in ended and each.key not in wanted:
                group.start_soon(children.stop, each.key, reason, ORPHAN)


def _until_due(queued: Queued, pending: Iterable[Pending]) -> Queued:
    """A run that waits is claimed again when a signal comes, or when the first of its requests expires."""
    ends = [datetime.fromisoformat(each.expires).timestamp() for each in pending if each.expires is not None]
    return evolve(queued, at=min(ends, default=None))


async def _tried_again(
    run: Run, backend: CheckpointBackend, queued: Queued, retry: Retry, error: NoeticError
) -> Queued | None:
    """When a worker tries a run that has failed once more; `None` for no more."""
    failures = sum(isinstance(each, RunEnded) and each.status == "failed" for each in run.journal)
    if failures >= retry.attempts or not retry.covers(error):
        return None
    wait = retry.wait(failures, run.runtime.random())
    text = "run %s is tried again in %.1f s, %s of %s"
    log("runs", WARNING, text, run.run_id, wait, failures + 1, retry.attempts, where=Where(run.run_id))
    return evolve(queued, at=await backend.clock() + wait)


def _verdict(run: Run, flow: AnyStep) -> tuple[str | None, LoopStop | None]:
    """Why the flow ended, when a loop ended it: the flow itself, a sequence's last step, a branch's chosen one."""
    if run.verdict is None:
        return None, None
    path, reason, loop_stop = run.verdict
    step: AnyStep | None = flow if path[:1] == (flow.id,) else None
    for frame in path[1:]:
        step = None if step is None else _last_step(run, step, frame)
    return (reason, loop_stop) if step is not None and run.kinds[step.kind].judged else (None, None)


def _last_step(run: Run, step: AnyStep, frame: str) -> AnyStep | None:
    """The child at a frame, when the step ends with it."""
    spec: object = step.spec
    if isinstance(spec, SequenceSpec):
        return spec.steps[-1] if spec.frames[-1] == frame else None
    if isinstance(spec, BranchSpec):
        return next((each for each in (*(spec.cases or {}).values(), spec.default) if each and each.id == frame), None)
    if isinstance(spec, HandoffSourceSpec):
        return spec.inner
    if isinstance(spec, MemorySpec) and not run.kinds[step.kind].execution:
        return spec.step
    if isinstance(spec, HandoffSpec):
        name, _, _ = frame.partition("#")
        return next((each for each in members(spec) if each.id == name and each.body is None), None)
    return None


def _left_unsaid(run: Run, plan: RunPlan, history: int, status: RunStatus) -> Sequence[Item]:
    """The user's message if the run ended before a model call: it stays in the conversation."""
    flow, log = plan.step, plan.scope.log
    if status in ("completed", "suspended") or log.size > history or not _asks_first(flow, run.opening):
        return ()
    try:
        return unsaid(run, log, input_items(plan.value, ()))
    except NoeticError:
        # It is not an input of a model, and that is why the run has failed.
        return ()


def _asks_first(flow: AnyStep, opening: Sequence[AnyStep]) -> bool:
    """Whether a flow begins with a model that is given its input, or with a race of such models.

    Args:
        flow: The flow.
        opening: The paths of its first race that learns its paths while running.
    """
    while isinstance(flow.spec, SequenceSpec | LoopSpec):
        flow = flow.spec.entry()
    if isinstance(flow.spec, ParallelSpec):
        # The winner's conversation would be the run's; paths of other sections keep theirs to themselves.
        paths = flow.spec.paths or opening
        return flow.spec.mode == "race" and any(_asks_first(path, opening) for path in paths)
    return asks_model(flow)


@frozen(eq=False)
class _Ending:
    """How the flow ended: its output, what stopped it, what broke it."""

    output: object
    stop: Control | None
    error: NoeticError | None


def _why(run: Run, plan: RunPlan, ending: _Ending) -> tuple[str | None, LoopStop | None]:
    """The reason that the result gives, and what ended the loop if the flow ended with one."""
    stop = ending.stop
    if stop is not None:
        return (f"complete() at {'/'.join(stop.path)}" if stop.rule.completes and stop.path else stop.reason), None
    return _verdict(run, plan.step) if ending.error is None else (ending.error.message, None)


async def _result(run: Run, x: Execution, plan: RunPlan, history: ItemLog, ending: _Ending, began: float) -> AnyResult:
    output, stop, error = ending.output, ending.stop, ending.error
    status: RunStatus = "failed" if error is not None else "completed" if stop is None else stop.status
    reason, loop_stop = _why(run, plan, ending)
    waits = open_requests(run.journal, run.kinds) if status == "suspended" else {}
    if stop is not None and stop.rule.waits:
        stop, reason = None, summary_of(list(waits.values()))
    try:
        await _end(run, status, reason, stop, waits, error)
    except CheckpointError as failed:
        # Uncommitted work has not happened: the run is not finished, whatever the flow returned.
        output, stop, error, status, reason, loop_stop = NO_VALUE, None, failed, "failed", failed.message, None
    why = "" if reason is None else f": {reason}"
    log("runs", INFO, "run %s of %s ended: %s%s", run.run_id, plan.step.id, status, why, where=Where(run.run_id))
    if error is not None and run.tracer is not None:
        record_failure(current_span(), error, str(error))
    broken = error if error is not None else None if stop is None else stop.error
    if broken is not None:
        trim(broken, causes=True)

    cause, kinds = (() if broken is None else broken.path), run.kinds
    said = _left_unsaid(run, plan, len(history), status)
    plan.scope.log.extend(said)
    # Of a run that was stopped or has failed, the conversation may hold more than was committed.
    whole = plan.scope.log.fork() if status == "completed" and stop is None else None
    journal = run.journal if whole is None else ()

    def transcript() -> Transcript:
        log = history.fork() if whole is None else whole
        if whole is None:
            log.extend(items_below(journal, kinds, (), cause) or said)
        # Its open requests are listed beside it.
        why = "it waits for an answer" if status == "suspended" else reason
        view = log.rendered(f"{status}: {why}" if why else status, run.unfinished)
        return Transcript(view, view[len(history) :])

    result: AnyResult = RunResult(
        run_id=run.run_id,
        status=status,
        output=output,
        state=plan.scope.state,
        usage=x.lease.tokens,
        cost=None if run.unpriced else x.lease.cost,
        steps=x.lease.steps,
        model_calls=x.lease.calls,
        seconds=run.runtime.monotonic() - began,
        checkpoint=Checkpoint(run.run_id, run.position),
        transcript=transcript,
        reason=reason,
        loop_stop=loop_stop,
        error=broken,
        last_layer_usage=x.last_layer_usage,
        memory=plan.scope.layer_states,
        possibly_spent=run.possibly_spent(),
        pending=[request_of(each, run.run_id) for each in waits.values()] if status == "suspended" else (),
        shutdown=stop is not None and stop.shutdown is not None,
    )
    if broken is not None:
        broken.result = result
    return result


class _Interpreter:
    # Every call of a step from a body passes here: a static function is not bound each time.
    call = staticmethod(call_from_body)
    section = staticmethod(gather_step)
    derived = staticmethod(derived_step)
    send = staticmethod(send)
    receive = staticmethod(receive)
    receive_now = staticmethod(receive_now)
    ask = staticmethod(ask)
    checkpoint = staticmethod(checkpoint)
    detach = staticmethod(detach)
    recover_detached = staticmethod(recover_detached)
    with_hooks = staticmethod(hooks.with_hooks)
    cut_short = staticmethod(cut_short)
    note_stop = staticmethod(stops.note)
    progress = staticmethod(RunProgress)
    bind = staticmethod(bind)
    layer_store = staticmethod(StoredLayers)


INTERPRETER: Final[Interpreter] = _Interpreter()
"""It holds nothing of a run, so that all runs share it."""
