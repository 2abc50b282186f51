"""What `every` does: a step again and again, at its times."""

from __future__ import annotations

from itertools import count

import anyio

from noetic_py.context.read import ContextScope, branch_at
from noetic_py.engine.execute import execute
from noetic_py.engine.frame import Frame
from noetic_py.engine.kind import Kind
from noetic_py.engine.kinds.loop import Inbox, Rounds, on_error
from noetic_py.engine.progress import forget_round
from noetic_py.steps.loop import EverySpec


async def run_every(value: object, frame: Frame) -> None:
    """Run the step again and again, at its times."""
    with Rounds(frame):
        await _go_on(frame)


async def _go_on(frame: Frame) -> None:
    spec: EverySpec = frame.step.spec
    runtime = frame.x.run.runtime
    wake = None if spec.wake is None else Inbox(frame, spec.wake, float("inf"))
    due = runtime.monotonic()
    at_once = False
    name = ""
    for tick in count():
        left = 0.0 if at_once else due - runtime.monotonic() + spec.jitter * (runtime.random() if spec.jitter else 0.0)
        await _rest(frame, max(0.0, left), wake, tick)
        at_once = False
        due = runtime.monotonic() + spec.interval
        if tick and frame.x.run.progress:
            forget_round(frame, name)
        log, name = frame.log.fork(), f"{spec.body.id}[{tick}]"
        branch = branch_at((*frame.at, name))
        log.origin = (frame.x.run_id, branch)
        scope = ContextScope(log, frame.state, branch, layer_states=frame.scope.layer_states)
        try:
            await execute(spec.body, None, frame, name, scope)
        except Exception as error:  # noqa: BLE001 # raised again unless on_error decides otherwise
            at_once = await on_error(frame, spec.on_error, error, tick) == "retry"
        if scope.layer_states is not frame.scope.layer_states:
            frame.put_layer_states(scope.layer_states)
        if frame.loop_stops:
            return


async def _rest(frame: Frame, seconds: float, wake: Inbox | None, tick: int) -> None:
    """Wait until it is time, or until the schedule is woken."""
    runtime = frame.x.run.runtime
    if wake is None:
        await runtime.sleep(seconds)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(wake.interrupt, group.cancel_scope, tick)
        await runtime.sleep(seconds)
        group.cancel_scope.cancel()


KINDS = (Kind("every", run_every, composite=True, in_order=True, passes_on=True, firings=True, stoppable=True),)
