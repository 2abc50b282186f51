"""How each kind of step runs, one file a kind or a family of kinds, and the table of all of them."""

from __future__ import annotations

from typing import Final

from noetic_py.engine.kind import Kinds
from noetic_py.engine.kinds import channels, derived, flow, handoff, loop, model, plain, spawn, suspension, tool

__all__ = ["KINDS"]

_FILES = (
    channels, derived, flow, handoff, loop, model, plain, spawn, suspension, tool,
)  # fmt: skip

KINDS: Final = Kinds({kind.name: kind for file in _FILES for kind in file.KINDS})
"""All kinds of steps, by name."""
