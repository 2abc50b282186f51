"""The memory bundle: a class whose fields are the layers that a run carries."""

from __future__ import annotations

__all__ = ["Memory"]


class Memory:
    """Base of a memory bundle; a run without layers carries this one.

    `Context[Mem, State]` names the bundle a step needs, and a bare `Context` needs none.
    """

    __slots__ = ()
