"""How each kind of step runs, one file a kind or a family of kinds, and the table of all of them.

Kinds without an interpreter of their own are here: functions of the user's, the run itself, and work of the engine.
"""

from __future__ import annotations

from typing import Any, Final

from noetic_py.engine.frame import Frame
from noetic_py.engine.kind import Kind, Kinds
from noetic_py.engine.kinds import channels, flow, handoff, loop, model, queued, spawn, suspension, tool

__all__ = ["KINDS"]


async def _run_work(work: Any, frame: Frame) -> object:
    """Do the engine's own work as a step, so that it is in the journal and is not done twice."""
    return await work(frame)


_PLAIN = (
    Kind("code", counted=True, written=True),
    Kind("run", declared=False, composite=True, passes_on=True),
    Kind(
        "memory",
        _run_work,
        declared=False,
        reported=False,
        digested=False,
        no_waiting="by a memory layer, which is not to make its run wait",
    ),
    Kind("hook", _run_work, declared=False, digested=False),
)

_FILES = (channels, flow, handoff, loop, model, queued, spawn, suspension, tool)

KINDS: Final = Kinds({kind.name: kind for kinds in (_PLAIN, *(file.KINDS for file in _FILES)) for kind in kinds})
"""All kinds of steps, by name."""
