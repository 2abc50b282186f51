"""Runs a step with a derived context, as a part of the execution of the original one."""

from __future__ import annotations

from attrs import frozen

from noetic_py.context.context import Derived
from noetic_py.context.read import ContextScope
from noetic_py.context.step import AnyStep, Step
from noetic_py.engine.execute import execute
from noetic_py.engine.frame import Frame, frame_around
from noetic_py.engine.kind import Kind, Shared


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
    kind = next(kind for kind in KINDS if kind.shares == shared)
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


KINDS = (
    _derived("derived", items=False, state=False),
    _derived("derived_items", items=True, state=False),
    _derived("derived_state", items=False, state=True),
    _derived("derived_whole", items=True, state=True),
)
