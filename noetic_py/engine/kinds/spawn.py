"""Runs a step in another context: a spawn, which is an execution of its own, and a step with a derived context."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import anyio
from attrs import frozen
from typing_extensions import override

from noetic_py.context.context import Derived
from noetic_py.context.read import ContextScope, branch_at
from noetic_py.context.step import AnyStep, Spec, Step
from noetic_py.core.budget import BudgetLease
from noetic_py.core.control import NO_VALUE, Control
from noetic_py.core.log import ItemLog
from noetic_py.core.state import NO_LAYER_STATES, StateBag
from noetic_py.engine.execute import (
    close_lease,
    execute,
    open_lease,
    open_wrap_up,
    remedy_of,
    restore,
    retold,
    under_budget,
)
from noetic_py.engine.frame import Frame, Waiting, frame_around, is_late
from noetic_py.engine.journaling import ledger, replay
from noetic_py.engine.kind import Kind, Shared
from noetic_py.engine.layers.handles import layers_for
from noetic_py.engine.layers.lifecycle import close_layers, join_returned, open_layers, spawn_layers
from noetic_py.engine.layers.versions import revise_here
from noetic_py.engine.state import Execution, head, wrap_up_step
from noetic_py.engine.stops import VALUELESS, asked_again, note_valueless, value_so_far, wrap_up_of
from noetic_py.errors import Aborted, BudgetExceeded, Interrupted, NoeticError, StepTimeout
from noetic_py.steps.spawn import MemorySpec, SpawnSpec


async def run_with_memory(value: object, frame: Frame) -> object:
    """Run the step as a part of the execution that has other layers."""
    spec: MemorySpec = frame.step.spec
    parent, layers = frame.x, layers_for(spec.memory)
    given = parent.input
    part = Execution(parent.run, frame.lease, depth=parent.depth, parent=frame, input=given, layers=layers, part=True)
    try:
        return await _run(part, frame, spec, value)
    finally:
        parent.last_step = part.last_step


async def run_spawn(value: object, frame: Frame) -> object:
    """Run the child, and make of its end a value or an error of the parent's."""
    spec: SpawnSpec = frame.step.spec
    parent = frame.x
    run, depth = parent.run, parent.depth + 1
    layers = layers_for(spec.memory) if isinstance(spec, MemorySpec) else None
    parent.enter_child()
    lease = BudgetLease(None, frame.lease, depth=depth)
    try:
        child = Execution(run, lease, depth=depth, parent=frame, input=value, layers=layers)
        if frame.node is not None:
            ledger.recover(run, lease, frame.at, attempts=False)
            ledger.count_turns(child, frame.at)
        return await _run(child, frame, spec, value)
    finally:
        lease.close()
        run.limits.children -= 1


async def _run(child: Execution, frame: Frame, spec: SpawnSpec, value: object) -> object:
    root = head(child, frame, frame.step, _scope(frame, spec))
    own = isinstance(spec, MemorySpec)
    if own:
        revise_here(root)
    if frame.node is not None:
        replay.stop_again(child, frame.at)
        if child.stop is not None:
            replay.put_down(root, frame.node)
    try:
        output = await run_child(child, root, spec, value)
        if child.has_layers and not own:
            await join_returned(frame, {child.id: (root.scope, output)})
        return output
    finally:
        child.ended()
        child.frame = None
        if root.scope.log is frame.log and (frame.clean or frame.opened):
            # The child wrote into the parent's conversation; that is its own, and no segment of the spawn's.
            frame.mark = frame.written = len(frame.log)
        if spec.state == "share" and root.scope.known is not None:
            # The child's steps have written their own changes.
            frame.scope.known = root.scope.known


async def run_child(child: Execution, root: Frame, spec: SpawnSpec, value: object) -> object:
    """Run a child execution to its end."""
    if spec.timeout is not None:
        child.run.has_deadline()
        child.cancel_scope.deadline = anyio.current_time() + spec.timeout
    output: object = None
    waits = False
    try:
        with child.cancel_scope:
            output = await _whole(child, root, spec, value)
        if child.stop is not None and child.stop.rule.wraps_up:
            output = await _wrap_up(child, root, spec)
    except Waiting:
        waits = child.stop is None
        if waits:
            raise
    finally:
        close_lease(root)
        if isinstance(spec, MemorySpec) and not waits:
            await close_layers(child, root)
    if child.stop is not None:
        return _stopped(child.stop, root, output)
    if not child.wraps and (child.cancel_scope.cancelled_caught or is_late(child.cancel_scope)):
        raise StepTimeout(spec.timeout or 0.0, path=root.path)
    return output


async def _whole(child: Execution, root: Frame, spec: SpawnSpec, value: object) -> object:
    step = spec.step
    if isinstance(spec, MemorySpec):
        await open_layers(child, root, step.id)
    else:
        await spawn_layers(root)
    asked = asked_again(root.node, child.run, step)
    if asked is not None:
        # The step itself does not run any more, and a wrap-up has the layers as the step would have them.
        child.request(asked)
    if spec.budget is None:
        return await execute(step, value, root, step.id)
    open_lease(root, spec.budget)
    return await under_budget(root, spec.budget, lambda: execute(step, value, root, step.id))


async def _wrap_up(child: Execution, root: Frame, spec: SpawnSpec) -> object:
    """Finish with what there is: the value of the wrap-up step, or of the loop that was in flight."""
    restore(root, wrapped=False)
    step = wrap_up_step(spec.budget) or wrap_up_of(child.run, spec.step, root.at)
    if step is None or root.wrap_up is not None:
        return value_so_far(child.run, spec.step, root.at)
    if replay.recorded(root, VALUELESS) is not replay.NOTHING:
        restore(root)
        return NO_VALUE
    child.wraps = True
    why = "" if child.stop is None else f"{child.stop.status}: {child.stop.reason}"
    child.ended()
    child.stop, child.cancel_scope = None, anyio.CancelScope()
    lease = root.lease
    reserve, work = open_wrap_up(root, lease, step, None, why)
    if reserve.deadline is not None:
        child.run.has_deadline()
        child.cancel_scope.deadline = anyio.current_time() + max(0.0, reserve.deadline - child.run.runtime.monotonic())
    try:
        with child.cancel_scope:
            output = await work()
            if not is_late(child.cancel_scope):
                return output
    except NoeticError as failure:
        text = f"the wrap-up failed: {failure.message}"
        raise retold(failure, text, remedy_of(failure, lease)) from failure.__cause__
    finally:
        reserve.close()
    if child.stop is None:
        note_valueless(child.run, root.at)
    return NO_VALUE


def _stopped(stop: Control, root: Frame, output: object) -> object:
    if stop.rule.completes:
        return stop.value
    if stop.rule.wraps_up:
        return output
    reason = stop.reason or ""
    if stop.rule.aborts:
        raise Aborted(reason, path=root.path)
    if isinstance(stop.error, BudgetExceeded):
        raise stop.error
    raise Interrupted(f"interrupted: {reason}", path=root.path)


def _scope(frame: Frame, spec: SpawnSpec) -> ContextScope:
    if spec.items == "share":
        log, branch = frame.log, frame.branch
    else:
        log = ItemLog() if spec.items == "new" else frame.log.fork()
        branch = branch_at((*frame.at, spec.step.id))
        log.origin = (frame.x.run_id, branch)
    layer_states = NO_LAYER_STATES if isinstance(spec, MemorySpec) else frame.scope.layer_states
    if callable(spec.state):
        return ContextScope(log, spec.state(), branch, layer_states=layer_states)
    if spec.state == "new":
        return ContextScope(log, StateBag(), branch, layer_states=layer_states)
    if spec.state == "deepcopy":
        return ContextScope(log, None, branch, source=frame.scope, layer_states=layer_states)
    # Looking at the state notes what it was, so that a step around the spawn can still go back.
    state = frame.state
    scope = ContextScope(log, state if spec.state == "share" else copy.copy(state), branch, layer_states=layer_states)
    if scope.state is state:
        scope.known = frame.scope.known
    return scope


class Work(Protocol):
    """Work beside the flow."""

    async def run(self, frame: Frame, spec: SpawnSpec, /) -> Any:
        """Do what its step does when it is executed."""
        ...


@frozen(eq=False)
class DetachedSpec(Spec):
    """A step beside the flow, and what has been started with it."""

    spawn: SpawnSpec
    work: Work

    @override
    def exit(self) -> AnyStep:
        return self.spawn.step


async def run_detached(value: object, frame: Frame) -> object:
    """The step of the journal that stands for work beside the flow."""
    spec: DetachedSpec = frame.step.spec
    return await spec.work.run(frame, spec.spawn)


# ------------------------------------------------------------------------------------ a step with a derived context


@frozen(eq=False)
class DerivedSpec:
    """A step, and the context that it is run with."""

    step: AnyStep
    ctx: Derived
    shared: Shared


def derived_step(step: AnyStep, ctx: Derived) -> AnyStep:
    """The part of an execution in which a step is run with a derived context."""
    frame = frame_around(ctx)
    shared = Shared(items=ctx.scope.log is frame.log, state=ctx.state is frame.state)
    kind = next(kind for kind in KINDS if kind.derived and kind.shares == shared)
    return Step(id=ctx.name if ctx.at != frame.at else "derived", kind=kind.name, spec=DerivedSpec(step, ctx, shared))


async def run_derived(value: object, frame: Frame) -> object:
    """Run the step where the derived context is; what it leaves there, the context has."""
    spec: DerivedSpec = frame.step.spec
    ctx, shared = spec.ctx, spec.shared
    # Looking at the state notes what it was, so that a step around can still go back.
    scope = ContextScope(
        ctx.scope.log, frame.state if shared.state else ctx.state, ctx.branch, layer_states=frame.scope.layer_states
    )
    if shared.state:
        scope.known = frame.scope.known
    try:
        return await execute(spec.step, value, frame, spec.step.id, scope)
    finally:
        if shared.items and (frame.clean or frame.opened):
            # It is the child's, and no segment of this part's own.
            frame.mark = frame.written = len(frame.log)
        if shared.state and scope.known is not None:
            frame.scope.known = scope.known
        if scope.layer_states is not frame.scope.layer_states:
            frame.put_layer_states(scope.layer_states)


def _derived(name: str, *, items: bool, state: bool) -> Kind:
    return Kind(
        name, run_derived, declared=False, composite=True, passes_on=True, derived=True, shares=Shared(items, state)
    )


# --------------------------------------------------------------------------------------------- the kinds


def _spawn(name: str, *, items: bool, state: bool) -> Kind:
    """A kind of spawn: what it shares is in its name, so that a journal alone can be read."""
    return Kind(name, run_spawn, composite=True, passes_on=True, execution=True, shares=Shared(items, state))


KINDS = (
    _spawn("spawn", items=False, state=False),
    _spawn("spawn_shared", items=True, state=False),
    _spawn("spawn_state", items=False, state=True),
    _spawn("spawn_whole", items=True, state=True),
    Kind("with_memory", run_with_memory, composite=True, passes_on=True, shares=Shared(items=True, state=True)),
    Kind(
        "detached",
        run_detached,
        declared=False,
        digested=False,
        composite=True,
        execution=True,
        beside=True,
        apart=True,
    ),
    _derived("derived", items=False, state=False),
    _derived("derived_items", items=True, state=False),
    _derived("derived_state", items=False, state=True),
    _derived("derived_whole", items=True, state=True),
)
