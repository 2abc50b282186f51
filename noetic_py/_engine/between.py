"""What a model is told between two rounds of a turn, by those who have sent it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from noetic_py._engine.durable import NOTHING, recorded
from noetic_py._engine.frame import Frame
from noetic_py._engine.ledger import decided
from noetic_py.items import Item, Message

__all__ = ["between_rounds"]

_KEY = "between"


async def between_rounds(frame: Frame) -> Sequence[Item]:
    """The messages that the conversation does not hold yet; none before a turn's first round."""
    run = frame.x.run
    if run.session is None or run.resources.mail is None or run.depth or not _is_conversation(frame):
        return ()
    known = recorded(frame, _KEY)
    if known is NOTHING:
        begun = frame.node is not None and frame.node.children
        if frame.x.last_step is None or begun:
            # A round that was answered before without them stays what it was.
            return ()
        known = await run.resources.mail(run.session)
    if not known:
        return ()
    there = {item.id for item in frame.log if isinstance(item, Message)}
    new = [item for item in known if item.id not in there]
    if new and recorded(frame, _KEY) is NOTHING:
        decided(frame, _KEY, new)
    return new


def _is_conversation(frame: Frame) -> bool:
    """Whether what the frame says is said in the turn's own conversation, and not in that of a path or a spawn."""
    top = frame
    while top.up is not None:
        top = top.up
    return frame.log is top.log
