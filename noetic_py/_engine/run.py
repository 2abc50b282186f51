"""A run from its first record to its last: whatever ends it, one result comes out."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from attrs import frozen

from noetic_py._engine import channels as _channels
from noetic_py._engine import checkpoint as _checkpoint
from noetic_py._engine import detached as _detached
from noetic_py._engine import flow as _flow
from noetic_py._engine import handoff as _handoff
from noetic_py._engine import loop as _loop
from noetic_py._engine import model as _model
from noetic_py._engine import relaunch as _relaunch
from noetic_py._engine import schedule as _schedule
from noetic_py._engine import spawn as _spawn
from noetic_py._engine import suspension as _suspension
from noetic_py._engine import tool as _tool
from noetic_py._engine import upkeep as _upkeep
from noetic_py._engine.answer import known_of
from noetic_py._engine.durable import count_turns, put_state, recover, stop_again
from noetic_py._engine.execute import AnyStep, as_error, execute, open_wrap_up, restore_log, settle_failure
from noetic_py._engine.fold import below, items_below, visible
from noetic_py._engine.frame import Frame
from noetic_py._engine.graph import members
from noetic_py._engine.memory import close_layers, open_layers
from noetic_py._engine.parking import Parked
from noetic_py._engine.requests import open_requests, request_of, told
from noetic_py._engine.resume import Past
from noetic_py._engine.state import Execution, Run
from noetic_py._engine.store import Kept
from noetic_py.budget import Budget, Lease
from noetic_py.checkpoints.records import Base, Opening, RunEnded, RunStarted
from noetic_py.control import Checkpoint, Control, RunResult, RunStatus, Transcript, no_value
from noetic_py.domain import Domain
from noetic_py.errors import BudgetExceeded, CheckpointError, NoeticError
from noetic_py.events import RunFinished
from noetic_py.events import RunStarted as RunStartedEvent
from noetic_py.items import ID_SOURCE, Item
from noetic_py.log import ItemLog
from noetic_py.runtime import SYSTEM
from noetic_py.steps.flow import BranchSpec, SequenceSpec
from noetic_py.steps.handoff import HandoffSpec
from noetic_py.steps.step import Step
from noetic_py.tracing import place_of, recorded_span

__all__ = ["Run", "RunPlan", "run_flow"]

# Importing a room of the interpreter registers the kinds it interprets.
INTERPRETERS = (
    _channels, _checkpoint, _detached, _flow, _handoff, _loop, _model, _relaunch, _schedule, _spawn, _suspension, _tool,
    _upkeep,
)  # fmt: skip


@frozen(eq=False)
class RunPlan:
    """What a run is asked to do."""

    step: AnyStep
    value: Any
    domain: Domain
    budget: Budget | None
    deadline: float | None
    opening: Opening | None = None
    past: Past | None = None
    kept: Kept | None = None
    base: Base | None = None
    delivery_id: str | None = None


# What a span can hold as it is; of other JSON it holds the text.
_SCALARS = (str, bool, int, float)
_ROOT: AnyStep = Step(id="run", kind="run")


async def run_flow(run: Run, plan: RunPlan) -> RunResult[Any, Any]:
    """Run a flow to its end; never raises for what happens in it, only for a cancellation from outside."""
    now = run.runtime.monotonic()
    lease = Lease(plan.budget, run.resources.lease, now=now)
    x = Execution(run, lease, depth=0, parent=None, input=plan.value)
    run.root = x
    x.turns = run.context_turns
    # Items that steps make get their ids from the run's own source, so that a second run of it makes the same.
    ids = ID_SOURCE.set(run.runtime.new_id) if run.runtime is not SYSTEM else None
    if run.early is not None:
        x.request(run.early)
    lease.on_warning = x.warned
    root = _spawn.head(x, None, _ROOT, plan.domain)
    root.opened = True
    history = plan.domain.log.frozen()
    if run.bus.active:
        run.bus.publish(RunStartedEvent((), run.run_id))
    try:
        await _begin(x, root, plan, lease, len(history))
        try:
            output, stop, error = await _attempt(x, root, plan, lease)
        finally:
            if run.detached:
                await run.dismiss()
        if stop is not None and stop.kind == "budget" and lease.keeps and plan.budget is not None:
            output = await _wrap_up(x, root, plan.budget, lease, stop.error)
            await run.dismiss()
        if stop is None or stop.kind != "suspend":
            await close_layers(x, root)
        return await _result(run, x, plan, history, _Ending(output, stop, error), now)
    except BaseException as cancelled:
        if isinstance(cancelled, Exception):
            broken = _Ending(no_value(), None, as_error(root, cancelled))
            return await _result(run, x, plan, history, broken, now)
        reason = "cancelled from outside" if x.stop is None else x.stop.reason
        restore_log(root)
        _show_state(root)
        left = _Ending(no_value(), Control("cancel", reason=reason), None)
        with anyio.CancelScope(shield=True):
            await close_layers(x, root)
            run.left = await _result(run, x, plan, history, left, now)
        raise
    finally:
        if ids is not None:
            ID_SOURCE.reset(ids)
        if run.detached:
            await run.dismiss()
        lease.close(root.wrap_up)
        run.close_channels()
        run.bus.close()
        # Without these the run would be a ring that only the garbage collector could break.
        run.root = None
        x.frame = None
        run.context_turns = x.turns


@contextmanager
def traced(run: Run, step: AnyStep) -> Generator[None]:
    """A run's own span, around all that it does in this process; below the place that the run was given, if any."""
    if run.tracer is None:
        yield
        return
    attributes: dict[str, str | int] = {"noetic.run": run.run_id, "noetic.thread": run.thread_id}
    if run.request_id is not None:
        attributes["noetic.request"] = run.request_id
    with recorded_span(run.tracer, f"run {step.id}", attributes, below=run.trace) as span:
        for name, value in known_of(run).items():
            span.set_attribute(f"noetic.metadata.{name}", value if isinstance(value, _SCALARS) else json.dumps(value))
        run.trace = place_of(span)
        yield


async def _begin(x: Execution, root: Frame, plan: RunPlan, lease: Lease, history: int) -> None:
    """Write the head of the journal, or go on where it ends."""
    run, past = x.run, plan.past
    if past is None:
        run.journal.append(RunStarted((), run.run_id, run.thread_id, plan.step.id, plan.value, history, plan.opening))
        if run.store is not None:
            await run.store.commit(run.journal)
        return
    root.node = past.index
    recover(run, lease, ())
    count_turns(x, ())
    stop_again(x, ())
    if x.stop is not None:
        # Nothing runs any more: what the steps have left is all there is.
        left = visible(past.index)
        for own in left:
            plan.domain.log.extend(own.items)
        put_state(root, left)


async def _attempt(
    x: Execution, root: Frame, plan: RunPlan, lease: Lease
) -> tuple[Any, Control | None, NoeticError | None]:
    """Run the flow; what comes out is its output, what stopped it, or what broke it."""
    left, limit = _seconds(x, plan, lease) or (None, 0.0)
    output: Any = no_value()
    if left is not None:
        if left <= 0:
            return output, x.out_of_time(limit), None
        x.scope.deadline = anyio.current_time() + left
    try:
        lease.keep_reserve()
        with x.scope:
            output = await _whole(x, root, plan)
    except Parked:
        if x.stop is None:
            restore_log(root)
            _show_state(root)
            return no_value(), Control("suspend"), None
    except Exception as error:  # noqa: BLE001 # it becomes the result's error
        if x.stop is None:
            failure = as_error(root, error)
            settle_failure(root, failure)
            if isinstance(failure, BudgetExceeded):
                control = Control("budget", reason=str(failure.message), path=failure.path, error=failure)
                return no_value(), control, None
            _show_state(root, failure.path)
            return no_value(), None, failure
    if x.stop is None and x.scope.cancelled_caught:
        x.out_of_time(limit)
    stop = x.stop
    if stop is None:
        return output, None, None
    restore_log(root)
    _show_state(root)
    return (stop.value if stop.kind == "complete" else no_value()), stop, None


def _show_state(root: Frame, cause: tuple[str, ...] = ()) -> None:
    """Make the state say what the journal says: an earlier process may have come further than this one."""
    stop = root.x.stop
    # A wrap-up may follow the end of a budget, and what it has done is not to be there before.
    if root.node is not None and (stop is None or stop.kind != "budget"):
        put_state(root, below(root.x.run.journal, (), cause))


async def _whole(x: Execution, root: Frame, plan: RunPlan) -> Any:
    """The flow, and all that it has started beside itself."""
    await open_layers(x, root, plan.step.id)
    output = await execute(plan.step, plan.value, root, plan.step.id)
    if x.run.detached:
        await x.run.join_detached()
    if x.run.waits and open_requests(x.run.journal):
        raise Parked
    return output


def _seconds(x: Execution, plan: RunPlan, lease: Lease) -> tuple[float, float] | None:
    """How long the run may take from now on, and the limit that says so."""
    bounds: list[tuple[float, float]] = []
    now = x.run.runtime.monotonic()
    node: Lease | None = lease
    while node is not None:
        if node.budget is not None and node.budget.seconds is not None and node.ends is not None:
            bounds.append((max(0.0, node.ends - now), node.budget.seconds))
        node = node.parent
    if plan.deadline is not None:
        bounds.append((plan.deadline, plan.deadline))
    return min(bounds, default=None)


async def _wrap_up(x: Execution, root: Frame, budget: Budget, lease: Lease, error: BudgetExceeded | None) -> Any:
    """Run the wrap-up on the reserve; when even that fails, the run simply has no value."""
    if budget.wrap_up is None:
        return no_value()
    x.ended()
    x.stop = None
    x.scope = anyio.CancelScope()
    reserve, work = open_wrap_up(root, lease, budget.wrap_up, error)
    if reserve.deadline is not None:
        x.scope.deadline = anyio.current_time() + max(0.0, reserve.deadline - x.run.runtime.monotonic())
    try:
        with x.scope:
            output = await work()
            await x.run.join_detached()
            return output
    except Exception as failed:  # noqa: BLE001 # the budget has ended the run already; its status says so
        settle_failure(root, as_error(root, failed))
    return no_value()


async def _end(
    run: Run, status: RunStatus, reason: str | None, control: Control | None, pending: Collection[int]
) -> None:
    if run.store is not None:
        run.store.settle(run.journal)
    last = run.journal[-1] if run.journal else None
    if not isinstance(last, RunEnded) or last.status != status:
        run.journal.append(RunEnded((), status, reason, control, tuple(pending)))
    if run.store is not None:
        run.store.status = status
        if control is not None and control.shutdown is not None:
            run.store.tell(shutdown=True)
        try:
            await run.store.commit(run.journal, force=True)
        finally:
            await run.store.release()
    if run.bus.active:
        run.bus.publish(RunFinished((), run.run_id, status, reason))


def _verdict(run: Run, flow: AnyStep) -> str | None:
    """Why the flow ended, when a loop ended it: the flow itself, a sequence's last step, a branch's chosen one."""
    path, reason = run.verdict or ((), None)
    step: AnyStep | None = flow if path[:1] == (flow.id,) else None
    for frame in path[1:]:
        step = None if step is None else _last_step(step, frame)
    return reason if step is not None and step.kind == "loop" else None


def _last_step(step: AnyStep, frame: str) -> AnyStep | None:
    """The child at a frame, when the step ends with it."""
    spec: object = step.spec
    if isinstance(spec, SequenceSpec):
        return spec.steps[-1] if spec.frames[-1] == frame else None
    if isinstance(spec, BranchSpec):
        return next((each for each in (*(spec.cases or {}).values(), spec.default) if each and each.id == frame), None)
    if isinstance(spec, HandoffSpec):
        name, _, _ = frame.partition("#")
        return next((each for each in members(step) if each.id == name and each.kind != "handing"), None)
    return None


@frozen(eq=False)
class _Ending:
    """How the flow ended: its output, what stopped it, what broke it."""

    output: Any
    stop: Control | None
    error: NoeticError | None


async def _result(
    run: Run, x: Execution, plan: RunPlan, history: Sequence[Item], ending: _Ending, began: float
) -> RunResult[Any, Any]:
    output, stop, error = ending.output, ending.stop, ending.error
    status: RunStatus = "failed" if error is not None else "completed" if stop is None else stop.status
    reason = (error.message if error is not None else _verdict(run, plan.step)) if stop is None else stop.reason
    if stop is not None and stop.kind == "complete":
        reason = f"complete() at {'/'.join(stop.path)}"
    waits = open_requests(run.journal) if status == "suspended" else {}
    if stop is not None and stop.kind == "suspend":
        stop, reason = None, told(list(waits.values()))
    try:
        await _end(run, status, reason, stop, waits)
    except CheckpointError as failed:
        # What was not committed has not happened: the run is not finished, whatever the flow returned.
        output, stop, error, status, reason = no_value(), None, failed, "failed", failed.message
    journal = run.journal
    broken = error if error is not None else None if stop is None else stop.error

    cause = () if broken is None else broken.path

    def transcript() -> Transcript:
        log = ItemLog(history)
        log.extend(items_below(journal, (), cause))
        # What it waits for is told in full beside it.
        why = "it waits for an answer" if status == "suspended" else reason
        view = log.rendered(f"{status}: {why}" if why else status)
        return Transcript(view, view[len(history) :])

    result: RunResult[Any, Any] = RunResult(
        run_id=run.run_id,
        status=status,
        output=output,
        state=plan.domain.state,
        usage=x.lease.tokens,
        cost=None if run.unpriced else x.lease.cost,
        steps=x.lease.steps,
        model_calls=x.lease.calls,
        seconds=run.runtime.monotonic() - began,
        checkpoint=Checkpoint(run.run_id, len(run.journal)),
        transcript=transcript,
        reason=reason,
        error=broken,
        last_layer_usage=x.last_layer_usage,
        memory=plan.domain.cells,
        possibly_spent=run.possibly_spent(),
        pending=[request_of(each, run.run_id) for each in waits.values()] if status == "suspended" else (),
        shutdown=stop is not None and stop.shutdown is not None,
    )
    if broken is not None:
        broken.result = result
    return result
