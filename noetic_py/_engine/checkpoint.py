"""`ctx.checkpoint()`: what a body has done so far is committed, although the body goes on."""

from __future__ import annotations

from anyio.lowlevel import checkpoint as let_others_run

from noetic_py._engine import ledger
from noetic_py._engine.frame import Frame, acting
from noetic_py._engine.state import DOORS

__all__ = ["checkpoint"]


async def checkpoint(frame: Frame) -> None:
    """Write what the body and those around it have not written yet, and wait until it is stored.

    It shows in the run's conversation and state from now on. When the process dies the body still starts again, and
    what it had written itself is then replaced.
    """
    frame = acting(frame)
    store = frame.x.run.store
    await let_others_run()
    if store is None:
        return
    ledger.close_segment(frame)
    ledger.flush(frame)
    ledger.returned(frame, frame.log.size)
    await store.commit(frame.x.run.journal, force=True)


DOORS.checkpoint = checkpoint
