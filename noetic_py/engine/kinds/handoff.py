"""Runs a chain of handoffs: one step after the other in the chain's frame, without nesting."""

from __future__ import annotations

from noetic_py.context.step import frame as frame_name
from noetic_py.core.events import HandedOver
from noetic_py.engine.execute import execute
from noetic_py.engine.frame import Frame
from noetic_py.engine.kind import Kind
from noetic_py.engine.kinds.loop import counted
from noetic_py.errors import HandoffLimit
from noetic_py.steps.handoff import HandoffOutput, HandoffSpec, members


async def run_handoff(value: object, frame: Frame) -> object:
    """Run the step that hands over, and whatever it and those after it hand over to."""
    whole: HandoffSpec = frame.step.spec
    members(whole)
    step, targets = whole.first, whole.targets
    occurrences: dict[str, int] = {}
    for _ in range(whole.limit + 1):
        count = occurrences.get(step.id, 0)
        occurrences[step.id] = count + 1
        name = counted(frame, frame_name(step.id, count))
        known = frame.node is not None and frame.node.holds(name)
        output = await execute(step, value, frame, name)
        if not isinstance(output, HandoffOutput):
            return output
        if frame.x.run.bus.active and not known:
            frame.publish(HandedOver(frame.at, step.id, output.step))
        way = targets.ways()[output.step]
        frame.narrowed = None if way.history is None else (frame.log.size, way.history)
        step, value = way.step, output.input
        if isinstance(step.spec, HandoffSpec):
            # Its chain is this one's: nothing is nested, however long it gets.
            value = value if step.bound is None else step.bound.value
            targets = step.spec.targets
            step = step.spec.first
    raise HandoffLimit(whole.limit, path=frame.at)


async def run_agent(value: object, frame: Frame) -> object:
    """Run the step in which a model is asked, and hand over where the model, or a hook, has said so."""
    inner = frame.step.spec.inner
    output = await execute(inner, value, frame, inner.id)
    return output if frame.handover is None else frame.handover


KINDS = (
    Kind("handoff", run_handoff, composite=True, in_order=True, passes_on=True, rounds=True),
    # A function that may hand over, and a step in which a model may.
    Kind("handing", counted=True, hands_over=True),
    Kind("agent", run_agent, composite=True, in_order=True, hands_over=True),
)
