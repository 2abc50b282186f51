"""Kinds of steps that need no interpreter: functions of the user's, the run itself, and work of the engine."""

from __future__ import annotations

from typing import Any

from noetic_py.engine.frame import Frame
from noetic_py.engine.kind import Kind


async def run_work(work: Any, frame: Frame) -> object:
    """Do the engine's own work as a step, so that it is in the journal and is not done twice."""
    return await work(frame)


KINDS = (
    Kind("code", counted=True),
    Kind(
        "run",
        declared=False,
        composite=True,
        ends_with=lambda frame, name, output: frame.up is None and name == frame.x.run.flow.id,
        passes_on=True,
    ),
    Kind(
        "memory",
        run_work,
        declared=False,
        reported=False,
        digested=False,
        no_waiting="by a memory layer, which is not to make its run wait",
    ),
    Kind("hook", run_work, declared=False, digested=False),
)
