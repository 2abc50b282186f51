"""The events that listeners of queues and pools are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic

from attrs import frozen

from noetic_py.memory.layers.context_item import T

if TYPE_CHECKING:
    from typing import TypeAlias

    from noetic_py.memory.layers.context_item import ContextItem
    from noetic_py.memory.layers.context_pool import ContextPool
    from noetic_py.memory.layers.context_queue import ContextQueue

    Entries: TypeAlias = tuple[ContextItem[T], ...]
    Holder: TypeAlias = ContextQueue[T] | ContextPool[T]

__all__ = [
    "Added",
    "Adding",
    "Appended",
    "Appending",
    "Cleared",
    "Clearing",
    "Evicting",
    "LayerEvent",
    "Removed",
    "Removing",
]


@frozen(eq=False)
class LayerEvent:
    """Base of all events; a listener of it is told of every one."""

    VALUES: ClassVar[int] = 0
    """How many values a listener gets that takes them one by one; 0 for one that always gets the event."""

    def values(self) -> tuple[object, ...]:
        """The event's values in order, sequences as lists of their own."""
        names: tuple[str, ...] = self.__match_args__
        return tuple(_own(getattr(self, name)) for name in names)


@frozen(eq=False)
class Appending(LayerEvent, Generic[T]):
    """Entries are about to be appended to a queue.

    Attributes:
        layer: The queue.
        entries: What is to be appended.
        current: What the queue holds.
    """

    VALUES: ClassVar[int] = 3

    layer: ContextQueue[T]
    entries: Entries[T]
    current: Entries[T]


@frozen(eq=False)
class Appended(LayerEvent, Generic[T]):
    """Entries were appended to a queue.

    Attributes:
        layer: The queue.
        entries: What was appended, with what had to make room in the same call.
        current: What the queue holds now.
    """

    VALUES: ClassVar[int] = 3

    layer: ContextQueue[T]
    entries: Entries[T]
    current: Entries[T]


@frozen(eq=False)
class Evicting(LayerEvent, Generic[T]):
    """An entry is about to make room for another.

    Attributes:
        layer: The queue or the pool, in which it is still there.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: Holder[T]
    entry: ContextItem[T]


@frozen(eq=False)
class Clearing(LayerEvent, Generic[T]):
    """A queue or a pool is about to be emptied.

    Attributes:
        layer: The queue or the pool.
        entries: What it holds.
    """

    VALUES: ClassVar[int] = 2

    layer: Holder[T]
    entries: Entries[T]

    @property
    def by_id(self) -> dict[str, ContextItem[T]]:
        """The entries that have an id, by it; of a pool all of them."""
        return {entry.id: entry for entry in self.entries if entry.id is not None}

    def values(self) -> tuple[object, ...]:
        """The layer, and a list of its entries, or a dict of them by id when it is a pool."""
        return self.layer, self.by_id if self.layer.keyed else list(self.entries)


@frozen(eq=False)
class Cleared(LayerEvent, Generic[T]):
    """A queue or a pool was emptied.

    Attributes:
        layer: The queue or the pool.
    """

    layer: Holder[T]


@frozen(eq=False)
class Adding(LayerEvent, Generic[T]):
    """An entry is about to be added to a pool, or to replace the one of its id.

    Attributes:
        layer: The pool, in which what had to make room is gone.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: ContextPool[T]
    entry: ContextItem[T]


@frozen(eq=False)
class Added(LayerEvent, Generic[T]):
    """An entry was added to a pool.

    Attributes:
        layer: The pool.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: ContextPool[T]
    entry: ContextItem[T]


@frozen(eq=False)
class Removing(LayerEvent, Generic[T]):
    """An entry is about to be removed from a pool.

    Attributes:
        layer: The pool, in which it is still there.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: ContextPool[T]
    entry: ContextItem[T]


@frozen(eq=False)
class Removed(LayerEvent, Generic[T]):
    """An entry was removed from a pool.

    Attributes:
        layer: The pool, in which it is no more.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: ContextPool[T]
    entry: ContextItem[T]


def _own(value: Any) -> object:
    return [*value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType] # of anything
