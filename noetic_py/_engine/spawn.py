"""What a spawn does: an execution of its own below a step."""

from __future__ import annotations

import copy
from typing import Any

import anyio

from noetic_py._engine import durable
from noetic_py._engine.execute import HANDLERS, close_lease, execute, open_lease, under_budget
from noetic_py._engine.frame import Frame
from noetic_py._engine.layers import layers_for
from noetic_py._engine.memory import close_layers, join_returned, open_layers, spawn_layers
from noetic_py._engine.parking import Parked
from noetic_py._engine.state import Execution
from noetic_py.budget import Budget, Lease
from noetic_py.control import Control
from noetic_py.domain import Domain, branch_at
from noetic_py.errors import Aborted, BudgetExceeded, Interrupted, StepTimeout
from noetic_py.log import ItemLog
from noetic_py.state import NO_CELLS, StateBag
from noetic_py.steps.spawn import SPAWNS, MemorySpec, SpawnSpec

__all__ = ["head", "run_child", "run_spawn"]


def head(x: Execution, frame: Frame | None, step: Any, domain: Domain) -> Frame:
    """The frame that an execution hangs from; it writes no records of its own."""
    root = Frame(step, frame, x, () if frame is None else frame.path, domain, x.lease, len(domain.log))
    root.virtual = True
    if frame is not None and frame.node is not None:
        root.node = frame.node
        root.visited = frame.visited = set()
    x.frame = root
    return root


async def run_spawn(value: Any, frame: Frame) -> Any:
    """Run the child, and make of its end a value or an error of the parent's."""
    spec: SpawnSpec = frame.step.spec
    parent = frame.x
    inside = frame.step.kind == "with_memory"
    depth = parent.depth + (not inside)
    if not inside:
        parent.enter_child()
    lease = Lease(None, frame.lease, depth=depth)
    try:
        layers = layers_for(spec.memory) if isinstance(spec, MemorySpec) else None
        child = Execution(parent.run, lease, depth=depth, parent=frame, input=value, layers=layers)
        if inside:
            child.id, child.passes = parent.id, True
        root = head(child, frame, frame.step, _domain(frame, spec))
        if frame.node is not None:
            durable.recover(parent.run, lease, frame.at, attempts=False)
            durable.count_turns(child, frame.at)
            durable.stop_again(child, frame.at)
            if child.stop is not None:
                durable.put_down(root, frame.node)
        try:
            output = await run_child(child, root, spec, value)
            if child.layers and layers is None:
                await join_returned(frame, {child.id: (root.domain, output)})
            return output
        finally:
            child.ended()
            child.frame = None
            if root.domain.log is frame.log and frame.clean:
                # The child wrote into the parent's conversation; that is its own, and no segment of the spawn's.
                frame.mark = frame.written = len(frame.log)
            if spec.state == "share" and root.domain.known is not None:
                # What the child's steps have changed they have written.
                frame.domain.known = root.domain.known
    finally:
        lease.close()
        parent.run.family.children -= not inside


async def run_child(child: Execution, root: Frame, spec: SpawnSpec, value: Any) -> Any:
    """Run a child execution to its end."""
    step = spec.step
    if spec.timeout is not None:
        child.scope.deadline = anyio.current_time() + spec.timeout
    output: Any = None
    waits = False
    try:
        with child.scope:
            if isinstance(spec, MemorySpec):
                await open_layers(child, root, step.id)
            else:
                await spawn_layers(root)
            if spec.budget is None:
                output = await execute(step, value, root, step.id)
            else:
                output = await _under_budget(root, spec.budget, step, value)
    except Parked:
        waits = child.stop is None
        if waits:
            raise
    finally:
        if isinstance(spec, MemorySpec) and not waits:
            await close_layers(child, root)
    if child.stop is not None:
        return _stopped(child.stop, root)
    if child.scope.cancelled_caught:
        raise StepTimeout(spec.timeout or 0.0, path=root.path)
    return output


async def _under_budget(root: Frame, budget: Budget, step: Any, value: Any) -> Any:
    open_lease(root, budget)
    try:
        return await under_budget(root, budget, lambda: execute(step, value, root, step.id))
    finally:
        close_lease(root)


def _stopped(stop: Control, root: Frame) -> Any:
    if stop.kind == "complete":
        return stop.value
    reason = stop.reason or ""
    if stop.kind == "abort":
        raise Aborted(reason, path=root.path)
    if isinstance(stop.error, BudgetExceeded):
        raise stop.error
    raise Interrupted(f"interrupted: {reason}", path=root.path)


def _domain(frame: Frame, spec: SpawnSpec) -> Domain:
    if spec.items == "share":
        log, branch = frame.log, frame.branch
    else:
        log = ItemLog() if spec.items == "new" else frame.log.fork()
        branch = branch_at((*frame.at, spec.step.id))
        log.origin = (frame.x.run_id, branch)
    cells = NO_CELLS if isinstance(spec, MemorySpec) else frame.domain.cells
    if callable(spec.state):
        return Domain(log, spec.state(), branch, cells=cells)
    if spec.state == "new":
        return Domain(log, StateBag(), branch, cells=cells)
    if spec.state == "deepcopy":
        return Domain(log, None, branch, source=frame.domain, cells=cells)
    # Looking at the state notes what it was, so that a step around the spawn can still go back.
    state = frame.state
    domain = Domain(log, state if spec.state == "share" else copy.copy(state), branch, cells=cells)
    if domain.state is state:
        domain.known = frame.domain.known
    return domain


HANDLERS.update(dict.fromkeys(SPAWNS, run_spawn))
