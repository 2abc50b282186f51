"""`ContextQueue`: the newest entries, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Literal, Self

from attrs import field

from noetic_py.errors import ConfigError
from noetic_py.memory.layers.common import newest_within
from noetic_py.memory.layers.entries import INHERIT, EntryLayer, Inherit, check_entry, check_limit, limit_field
from noetic_py.memory.listeners import Appended, Appending, Cleared, Clearing, ContextItem, Evicting, Listener, T
from noetic_py.memory.scopes import Slot


class ContextQueue(EntryLayer[tuple[ContextItem[T], ...], T], Generic[T]):
    """A window of entries: what is appended last stays, and the oldest make room.

        queue = ContextQueue[str](limit=3)
        await queue.append(ContextItem("a"), ContextItem("b"))

    In a bundle it is a layer that the model is shown before each call: the contents, the newest last, as many as its
    budget has room for. A tool's `ContextItem` without an id is appended to the run's queue.

    Listeners are notified of [`Appending`][noetic_py.memory.listeners.Appending],
    [`Evicting`][noetic_py.memory.listeners.Evicting], [`Appended`][noetic_py.memory.listeners.Appended],
    [`Clearing`][noetic_py.memory.listeners.Clearing] and [`Cleared`][noetic_py.memory.listeners.Cleared], in this
    order. Nothing of an append is in the queue before all of the first two were notified of, so a listener that raises
    there leaves it as it was. `event.layer` shows the queue as it is at that moment of the call, so that it is full
    when an entry makes room; what a listener writes to it stays, whatever becomes of the append.

    Attributes:
        limit: How many entries it holds at most; 10 when left out.
        tags: Labels, by which listeners of all layers choose.
        listeners: Functions that are called with its events.

    Raises:
        InvalidLimit: The limit is below one.
    """

    slot: int = Slot.HISTORY
    limit: int = field(default=10, validator=limit_field)

    @property
    def entries(self) -> tuple[ContextItem[T], ...]:
        """The entries, the oldest first."""
        return self._look()

    @classmethod
    def _held(cls, entries: tuple[ContextItem[T], ...], limit: int | None) -> tuple[ContextItem[T], ...]:
        return entries if limit is None else entries[-limit:]

    def entry_writer(self, entry: ContextItem[Any]) -> Callable[[ContextItem[Any]], Awaitable[object]] | None:
        """`append`, for entries without an id."""
        return self.append if entry.id is None else None

    async def append(self, *items: ContextItem[T]) -> None:
        """Append entries, all of them or none; with none the listeners are notified all the same.

        An entry may have to make room for others of the same call.

        Raises:
            StateTypeError: One of them is not a `ContextItem`; no listener was notified.
            Exception: What a listener raised; nothing was appended, unless it was one of `Appended`.
        """
        for item in items:
            check_entry(item)
        layer = self._writable()
        await self._notify(Appending(layer, items, layer.entries))
        notified: Counter[int] = Counter()
        while True:
            base = layer._held_now()
            joined = (*base, *items)
            # Entries that others appended while listeners ran count too.
            place = _first_unnotified(joined[: -self.limit], notified)
            if place is None:
                break
            notified[id(joined[place])] += 1
            shown = joined[place : max(place + self.limit, len(base))]
            await self._notify(Evicting(layer._shown(shown), joined[place]))
        kept = joined[-self.limit :]
        layer._replace(kept, base)
        await self._notify(Appended(layer, items, kept))

    async def clear(self) -> None:
        """Remove all entries; the listeners are notified of an empty queue too.

        Raises:
            Exception: What a listener raised; nothing was removed, unless it was one of `Cleared`.
        """
        layer = self._writable()
        await self._notify(Clearing(layer, layer.entries))
        layer._replace((), layer._held_now())
        await self._notify(Cleared(layer))

    def render(self, *, last: int | None = None) -> str:
        """The contents as text, a line each.

        Args:
            last: Only that many of the newest, 0 for none; all when left out.

        Raises:
            ConfigError: `last` is below zero; code `"queue-render"`.
        """
        entries = self.entries
        if last is not None:
            if last < 0:
                raise ConfigError(
                    f"last={last} is not valid; expected a number of entries", code="queue-render", hint="last=3"
                )
            entries = entries[max(0, len(entries) - last) :]
        return "\n".join(str(entry.content) for entry in entries)

    def branch(
        self,
        *,
        limit: int | Literal[Inherit.INHERIT] | None = INHERIT,
        listeners: Iterable[Listener] | Literal[Inherit.INHERIT] | None = INHERIT,
    ) -> Self:
        """A queue of its own that begins with the same entries; no listener is notified.

        It is of the same class, with the same tags, and belongs to no run.

        Args:
            limit: Its limit, this queue's when left out or `None`; the newest entries are kept.
            listeners: Its listeners, a copy of this queue's when left out; `None` and `[]` mean none.

        Raises:
            InvalidLimit: The limit is below one.
        """
        if limit is None or limit is INHERIT:
            limit = self.limit
        check_limit(limit)
        return self._branch(limit, listeners)

    def merge(
        self, base: tuple[ContextItem[T], ...], mine: tuple[ContextItem[T], ...], theirs: tuple[ContextItem[T], ...]
    ) -> tuple[ContextItem[T], ...]:
        """The state where two paths have written side by side; what is too old for the limit goes unannounced.

        Args:
            base: What both began with.
            mine: What one has made of it.
            theirs: What the other has.
        """
        gone, new = _difference(base, mine), _difference(mine, base)
        return (*_difference(theirs, gone), *new)[-self.limit :]

    async def recall(self, query: str, budget: int) -> str | None:
        """The contents, the newest last, as many of the newest as there is room for."""
        return "\n".join(newest_within([str(entry.content) for entry in self.entries], budget)) or None


def _difference(entries: Iterable[ContextItem[T]], without: Iterable[ContextItem[T]]) -> tuple[ContextItem[T], ...]:
    """The entries that are not among the others, in order; what stands twice has to be there twice."""
    left = list(without)
    kept: list[ContextItem[T]] = []
    for entry in entries:
        if entry in left:
            left.remove(entry)
        else:
            kept.append(entry)
    return tuple(kept)


def _first_unnotified(dropped: tuple[ContextItem[object], ...], notified: Counter[int]) -> int | None:
    """The place of the first that has to go and was not reported; the same entry may stand there twice."""
    open_ = notified.copy()
    for place, entry in enumerate(dropped):
        if not open_[id(entry)]:
            return place
        open_[id(entry)] -= 1
    return None
