"""Runs a step as a run of its own, which a worker carries out; the run that waits for it holds no worker meanwhile.

The child begins in the commit that stores its parent's request for it, and its end wakes the parent in the commit that
stores that end. What it has ended with is read from its journal, and is then the outcome of a step like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from noetic_py.core.budget import BudgetLease
from noetic_py.engine.frame import Frame, Waiting
from noetic_py.engine.journaling import ledger
from noetic_py.engine.journaling.run_history import store_time
from noetic_py.engine.journaling.writer import RunWriter
from noetic_py.engine.kind import Kind
from noetic_py.engine.kinds.suspension import Request, check, request
from noetic_py.engine.protocol import ChildEnd, Children
from noetic_py.engine.state import OpenChildren
from noetic_py.errors import BudgetExceeded, ConfigError, StepTimeout
from noetic_py.journal.records import CHILD_USED, Pending
from noetic_py.journal.values import dump_usage
from noetic_py.steps.spawn import QueuedSpec

_POLL = 0.5
"""Seconds between two looks at a child, by a process that is not a worker."""


async def run_queued(value: object, frame: Frame) -> object:
    """Begin the child, wait for its end, and make of that a value or an error of the parent's."""
    spec: QueuedSpec = frame.step.spec
    run = frame.x.run
    if run.store is None or run.resources.children is None:
        raise ConfigError(
            "spawn(queue=) in a run that is not stored is not valid: no worker could find the child",
            code="no-backend",
            path=frame.at,
            hint='Harness(checkpoints="sqlite:runs.db")',
        )
    check(frame, "run of a worker")
    run.children = run.children or OpenChildren()
    frame.x.enter_child()
    try:
        ended = await _carried_out(frame, spec, value, run.store, run.resources.children(), run.children)
    finally:
        run.limits.children -= 1
    if ended.error is not None:
        # In this run it comes from here; where in the child, the child's journal says.
        ended.error.path = frame.at
        raise ended.error
    return ended.value


def _own_lease(frame: Frame) -> BudgetLease:
    """The lease of the run; those above it count the child as a run of its own where it is carried out."""
    root = frame.x.run.root
    return frame.lease if root is None else root.lease


def _limits(spec: QueuedSpec) -> dict[str, Decimal]:
    return {} if spec.budget is None else dict(spec.budget.limits)


async def _carried_out(
    frame: Frame, spec: QueuedSpec, value: object, store: RunWriter, runs: Children, children: OpenChildren
) -> ChildEnd:
    """The end of the child; begins it where no process has.

    Raises:
        Waiting: It has not ended, and a worker has the parent.
        StepTimeout: It has not ended in time.
        BudgetExceeded: What it may use is more than the parent has left.
    """
    lease, limits, by_worker = frame.lease, _limits(spec), store.claimed is not None
    asked = None if frame.node is None or frame.node.asked is None else frame.node.asked[0]
    if asked is None:
        await _set_aside(frame, lease, limits, children)
    if asked is None or frame.at not in children.kept:
        children.count += 1
    ended: ChildEnd | None = None
    waits = False
    try:
        if asked is None:
            asked = await _begin(frame, spec, value, runs, limits)
        elif not by_worker or children.ended is None or asked.key in children.ended or await _is_late(frame, asked):
            asked, ended = await _looked_at(frame, spec, value, runs, asked)
        while ended is None:
            if by_worker:
                waits = True
                raise Waiting
            await frame.x.run.runtime.sleep(_POLL)
            asked, ended = await _looked_at(frame, spec, value, runs, asked)
    finally:
        if not waits:
            children.count -= 1
            children.freed = True
            children.kept.pop(frame.at, None)
            lease.free_up(limits, _own_lease(frame))
    _book(frame, asked.key, ended)
    return ended


async def _looked_at(
    frame: Frame, spec: QueuedSpec, value: object, runs: Children, asked: Pending
) -> tuple[Pending, ChildEnd | None]:
    """How the child has ended, if it has; or the request for another one that takes its place.

    Raises:
        StepTimeout: It has not ended in time.
    """
    ended = await runs.ended(asked.key, spec.step)
    if ended is not None and _begins_anew(frame, asked, ended):
        _book(frame, asked.key, ended)
        return await _begin(frame, spec, value, runs, _limits(spec)), None
    if ended is None and await _is_late(frame, asked):
        await runs.stop(asked.key, f"it has taken longer than {spec.timeout} s", None)
        raise StepTimeout(spec.timeout or 0.0, path=frame.at)
    return asked, ended


async def _set_aside(frame: Frame, lease: BudgetLease, limits: dict[str, Decimal], children: OpenChildren) -> None:
    """Set aside what the child may use; waits while children that have not ended could give back enough."""
    while True:
        try:
            return lease.set_aside(limits, _own_lease(frame))
        except BudgetExceeded as error:
            if not children.count:
                raise error.at(frame.at) from None
            store = frame.x.run.store
            if store is not None and store.claimed is not None:
                children.refused = True
                raise Waiting from None
        await frame.x.run.runtime.sleep(_POLL)


async def _begin(
    frame: Frame, spec: QueuedSpec, value: object, runs: Children, limits: Mapping[str, Decimal]
) -> Pending:
    """Store the child and the request for it, in one commit."""
    run_id = frame.x.run.runtime.new_id()
    return await request(
        frame,
        Request(
            "run",
            (),
            key=run_id,
            arguments=json.dumps({name: str(limit) for name, limit in limits.items()}),
            prompt=f"run {run_id} of {spec.step.id}, in queue {spec.queue}",
            expires=spec.timeout,
            begins=await runs.plan(frame, spec, value, run_id),
        ),
    )


def _begins_anew(frame: Frame, asked: Pending, ended: ChildEnd) -> bool:
    """Whether another child takes the place of one that has ended.

    So it is where the parent had ended before and goes on: with one that was stopped for that, and with one that had
    failed, as resumed runs try again what they have failed of.
    """
    return ended.again or (ended.error is not None and _is_booked(frame, asked.key))


def _is_booked(frame: Frame, run_id: str) -> bool:
    """Whether an earlier process has counted what a child has used."""
    told = None if frame.node is None else frame.node.decisions.get(CHILD_USED)
    return told is not None and told["run"] == run_id


async def _is_late(frame: Frame, asked: Pending) -> bool:
    run = frame.x.run
    if asked.expires is None or run.store is None:
        return False
    return datetime.fromisoformat(asked.expires) <= await store_time(run.store.backend, run.runtime)


def _book(frame: Frame, run_id: str, ended: ChildEnd) -> None:
    """Count for the parent what the child has used, and write it down; once."""
    if _is_booked(frame, run_id):
        return
    used = ended.used
    frame.lease.charge(used, ended.steps, ended.tools, _own_lease(frame))
    frame.x.run.unpriced |= ended.unpriced
    told = {
        "run": run_id,
        "steps": ended.steps,
        "calls": used.model_calls,
        "usage": dump_usage(used.tokens),
        "cost": None if used.cost is None else str(used.cost),
        "tools": list(ended.tools),
    }
    ledger.decided(frame, CHILD_USED, told)


KINDS = (Kind("spawn_queued", run_queued),)
