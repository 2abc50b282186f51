"""The interpreter of steps, put together from the parts that do it."""

from __future__ import annotations

from typing import Final

from noetic_py.engine import hooks, stops
from noetic_py.engine.detached import detach, recover_detached
from noetic_py.engine.execute import call_from_body
from noetic_py.engine.journaling.ledger import checkpoint
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.kinds.channels import receive, receive_now, send
from noetic_py.engine.kinds.derived import derived_step
from noetic_py.engine.kinds.flow import gather_step
from noetic_py.engine.kinds.loop import cut_short
from noetic_py.engine.kinds.suspension import ask
from noetic_py.engine.layers.handles import bind
from noetic_py.engine.layers.store import StoredLayers
from noetic_py.engine.progress import Keeper
from noetic_py.engine.protocol import Interpreter

__all__ = ["INTERPRETER"]


class _Interpreter:
    kinds = KINDS
    # Every call of a step from a body comes by here: a static function is not bound anew each time.
    call = staticmethod(call_from_body)
    section = staticmethod(gather_step)
    derived = staticmethod(derived_step)
    send = staticmethod(send)
    receive = staticmethod(receive)
    receive_now = staticmethod(receive_now)
    ask = staticmethod(ask)
    checkpoint = staticmethod(checkpoint)
    detach = staticmethod(detach)
    recover_detached = staticmethod(recover_detached)
    with_hooks = staticmethod(hooks.with_hooks)
    cut_short = staticmethod(cut_short)
    note_stop = staticmethod(stops.note)
    progress = staticmethod(Keeper)
    bind = staticmethod(bind)
    layer_store = staticmethod(StoredLayers)


INTERPRETER: Final[Interpreter] = _Interpreter()
"""It holds nothing of a run, so that all runs share it."""
