"""Where a body's items and state live: `ContextScope`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from attrs import define

from noetic_py.core.items import Message
from noetic_py.core.log import ItemLog
from noetic_py.core.state import NO_LAYER_STATES, LayerStates, copy_state

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.journal.delta import Known
    from noetic_py.journal.layer_states import StoredLayerStates


def branch_at(path: Sequence[str]) -> str:
    """The branch of a conversation: the dotted path of the step it begins with, so that no two of a run are equal."""
    return ".".join(path)


def unanswered(log: ItemLog, settled: int) -> int | None:
    """Where the message of the user's stands that a run has left last which did not complete, `None` when none has.

    Args:
        log: The conversation.
        settled: How many items there were when a run had completed last.
    """
    for index in range(log.size - 1, settled - 1, -1):
        item = log[index]
        if isinstance(item, Message) and item.role == "user":
            return None if log.origin_of(index) is None else index
    return None


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


class ForkedView(Protocol):
    """What shows the model a conversation, and goes with each path of it."""

    def fork(self) -> Self:
        """The same for a path, which changes it for itself."""
        ...


class ContextScope:
    """Where a body's items and state live: one for an execution, one for each parallel path.

    A path's state is copied from its section's when it is first looked at; until then neither can have changed.
    """

    __slots__ = ("_source", "_state", "began", "branch", "counted", "known", "layer_states", "log", "stored", "view")

    def __init__(
        self,
        log: ItemLog,
        state: object,
        branch: str,
        *,
        source: ContextScope | None = None,
        layer_states: LayerStates = NO_LAYER_STATES,
    ) -> None:
        self.log: ItemLog = log
        self.branch: str = branch
        self._state = state
        self._source = source
        self.counted: Counted | None = None
        # In a durable run: the state's fields as they were stored last, once it was looked at.
        self.known: dict[str, Known] | None = None
        # The states of layers, and those that a child has begun with; what of them is stored, in a durable run; and
        # how the model sees all of it.
        self.layer_states: LayerStates = layer_states
        self.began: LayerStates = layer_states
        self.stored: StoredLayerStates | None = None
        self.view: ForkedView | None = None

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
        """Whether the state was not looked at since it was forked."""
        return self._source is not None

    def fork(self, branch: str) -> ContextScope:
        """A path of its own: a view of the log that it goes on writing, a state copied on first use."""
        log = self.log.fork()
        origin = log.origin
        if origin is not None:
            log.origin = (origin[0], branch)
        scope = ContextScope(log, None, branch, source=self, layer_states=self.layer_states)
        if self.view is not None:
            scope.view = self.view.fork()
        return scope
