"""What a chain of handoffs does: one step after the other, each in the chain's own frame, so that none is nested."""

from __future__ import annotations

from typing import Any

from noetic_py._engine.execute import HANDLERS, execute
from noetic_py._engine.frame import Frame
from noetic_py._engine.graph import members
from noetic_py._engine.loop import counted
from noetic_py.errors import HandoffLimit
from noetic_py.steps.handoff import Handed, HandoffSpec
from noetic_py.steps.step import frame as frame_name


async def run_handoff(value: Any, frame: Frame) -> Any:
    """Run the handing step, and whatever it and those after it hand over to."""
    whole: HandoffSpec = frame.step.spec
    members(frame.step)
    step, targets = whole.first, whole.targets
    occurrences: dict[str, int] = {}
    for _ in range(whole.limit + 1):
        count = occurrences.get(step.id, 0)
        occurrences[step.id] = count + 1
        output = await execute(step, value, frame, counted(frame, frame_name(step.id, count)))
        if not isinstance(output, Handed):
            return output
        step, value = targets.steps()[output.step], output.input
        if isinstance(step.spec, HandoffSpec):
            # Its chain is this one's: nothing is nested, however long it gets.
            value = value if step.bound is None else step.bound.value
            targets = step.spec.targets
            step = step.spec.first
    raise HandoffLimit(whole.limit, path=frame.at)


HANDLERS["handoff"] = run_handoff
