"""Where a body's items and state live: `Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define

from noetic_py.log import ItemLog
from noetic_py.state import NO_CELLS, Cells, copy_state

if TYPE_CHECKING:
    from noetic_py.checkpoints.cells import StoredCells
    from noetic_py.checkpoints.delta import Known
    from noetic_py.items import Item
    from noetic_py.memory.projector import Projector

__all__ = ["Counted", "Domain", "branch_at"]


def branch_at(path: Sequence[str]) -> str:
    """The branch of a conversation: the dotted path of the step it begins with, so that no two of a run are equal."""
    return ".".join(path)


@define(eq=False)
class Counted:
    """What a conversation's tokens came to when they were last counted.

    Attributes:
        counter: What counted them.
        size: How many items there were.
        last: The last of them.
        total: Their tokens.
    """

    counter: object
    size: int
    last: Item
    total: int


class Domain:
    """Where a body's items and state live: one for an execution, one for each parallel path.

    A path's state is copied from its section's when it is first looked at; until then nobody can have changed either.
    """

    __slots__ = ("_source", "_state", "began", "branch", "cells", "counted", "known", "log", "stored", "view")

    def __init__(
        self, log: ItemLog, state: object, branch: str, *, source: Domain | None = None, cells: Cells = NO_CELLS
    ) -> None:
        self.log: ItemLog = log
        self.branch: str = branch
        self._state = state
        self._source = source
        self.counted: Counted | None = None
        # In a durable run: the state's fields as they were stored last, once somebody has looked at it.
        self.known: dict[str, Known] | None = None
        # The states of layers, and those that a child has begun with; what of them is stored, in a durable run; and
        # how the model sees all of it.
        self.cells: Cells = cells
        self.began: Cells = cells
        self.stored: StoredCells | None = None
        self.view: Projector | None = None

    @property
    def state(self) -> Any:
        """The state object; copies it from the source the first time."""
        source = self._source
        if source is not None:
            self._source = None
            self._state = copy_state(source.state)
        return self._state

    @property
    def untouched(self) -> bool:
        """Whether nobody has looked at the state since it was forked."""
        return self._source is not None

    def fork(self, branch: str) -> Domain:
        """A path of its own: a view of the log that it goes on writing, a state copied on first use."""
        log = self.log.fork()
        origin = log.origin
        if origin is not None:
            log.origin = (origin[0], branch)
        domain = Domain(log, None, branch, source=self, cells=self.cells)
        if self.view is not None:
            domain.view = self.view.fork()
        return domain
