"""`ContextPool`: entries by id, to be chosen by their descriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, Self, overload

from attrs import field

from noetic_py.core.types import T2
from noetic_py.errors import InvalidEntry, NameNotFound
from noetic_py.memory.layers.common import newest_within
from noetic_py.memory.layers.entries import INHERIT, EntryLayer, Inherit, check_entry, check_limit, open_limit_field
from noetic_py.memory.listeners import (
    Added,
    Adding,
    Cleared,
    Clearing,
    ContextItem,
    Evicting,
    Listener,
    Removed,
    Removing,
    T,
    T_co,
)
from noetic_py.memory.scopes import Slot
from noetic_py.tools.definition import MISSING

if TYPE_CHECKING:
    from typing import TypeAlias

    State: TypeAlias = dict[str, ContextItem[T]]


class CatalogueView(Protocol[T_co]):
    """A read-only view of a pool; a tool's parameter of this type gets the run's pool."""

    __noetic_layer__: ClassVar[bool] = True

    @property
    def entries(self) -> tuple[ContextItem[T_co], ...]:
        """The entries, the oldest first."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ContextItem[T_co]]: ...

    def __contains__(self, entry: object, /) -> bool: ...

    def __getitem__(self, id: str, /) -> ContextItem[T_co]: ...

    def get(self, id: str, /) -> ContextItem[T_co]:
        """The entry of an id."""
        ...

    def catalogue(self) -> str:
        """Ids and descriptions."""
        ...


class ContextPool(EntryLayer[dict[str, ContextItem[T]], T], Generic[T]):
    """Entries by id, each with a description to choose it by.

        pool = ContextPool[Doc](limit=50)
        await pool.add(ContextItem(doc, description="Q3 report: revenue, margins", id="q3"))

    In a bundle it is a layer whose catalogue the model is shown before each call. A tool's `ContextItem` with an id is
    added to the run's pool, and a tool's parameter of this class gets the pool to read, not to write.

    Listeners are notified of [`Evicting`][noetic_py.memory.listeners.Evicting],
    [`Adding`][noetic_py.memory.listeners.Adding], [`Added`][noetic_py.memory.listeners.Added],
    [`Removing`][noetic_py.memory.listeners.Removing], [`Removed`][noetic_py.memory.listeners.Removed],
    [`Clearing`][noetic_py.memory.listeners.Clearing] and [`Cleared`][noetic_py.memory.listeners.Cleared]. To a listener
    of `Evicting` `event.layer` shows the entry, to one of `Adding` it does not, as if it had gone between them; yet one
    that raises in either leaves the pool as it was. What a listener writes to `event.layer` stays.

    Attributes:
        limit: How many entries it holds at most, `None` for any number.
        tags: Labels, by which listeners of all layers choose.
        listeners: Functions that are called with its events.

    Raises:
        InvalidLimit: The limit is below one.
    """

    keyed: ClassVar[bool] = True
    views: ClassVar[tuple[type[object], ...]] = (CatalogueView,)

    slot: int = Slot.ENTITY
    limit: int | None = field(default=None, validator=open_limit_field)

    @property
    def entries(self) -> tuple[ContextItem[T], ...]:
        """The entries, the oldest first."""
        return tuple(self._look().values())

    @classmethod
    def _held(cls, entries: tuple[ContextItem[T], ...], limit: int | None) -> dict[str, ContextItem[T]]:
        held: State[T] = {}
        for entry in entries:
            key = check_for_pool(entry)
            if key in held:
                raise InvalidEntry(f"the id {key!r} is there twice", hint="an id is the key of one entry")
            held[key] = entry
        return held

    # -- reading

    def __contains__(self, entry: object) -> bool:
        """Whether an id, or an equal entry, is there."""
        if isinstance(entry, ContextItem):
            return entry in self.entries
        return entry in self._look()

    def __getitem__(self, id: str) -> ContextItem[T]:
        return self.get(id)

    @overload
    def get(self, id: str) -> ContextItem[T]: ...
    @overload
    def get(self, id: str, default: T2) -> ContextItem[T] | T2: ...
    def get(self, id: str, default: object = MISSING) -> Any:
        """The entry of an id.

        Args:
            id: The id.
            default: What to give when there is none; without it that is an error.

        Raises:
            NameNotFound: There is none.
        """
        found: Any = self._look().get(id, default)
        if found is MISSING:
            raise _missing(id, self._look())
        return found

    def catalogue(self) -> str:
        """`- [id] description` of each entry, a line each, the oldest first; nothing is escaped."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        return [f"- [{entry.id}] {entry.description}" for entry in self.entries]

    # -- writing

    def entry_writer(self, entry: ContextItem[Any]) -> Callable[[ContextItem[Any]], Awaitable[object]] | None:
        """`add`, for entries with an id."""
        return None if entry.id is None else self.add

    def injected(self) -> object:
        """The pool, to be read only."""
        return self.read_only()

    async def add(self, item: ContextItem[T], *, touch: bool = False) -> None:
        """Add an entry, or put it in place of the one with its id.

        Replacing makes nothing else go. The oldest make room for a new one.

        Args:
            item: The entry, with id and description; both may be empty texts.
            touch: Whether an entry that replaces another counts as the newest; it takes its place otherwise, which
                makes it go as early as the other would have gone.

        Raises:
            StateTypeError: It is not a `ContextItem`.
            InvalidEntry: It has no id or no description.
            Exception: What a listener raised; nothing has changed, unless it was one of `Added`.
        """
        check_entry(item)
        key = check_for_pool(item)
        layer = self._writable()
        notified: list[ContextItem[T]] = []
        announced = False
        while True:
            base = layer._held_now()
            # Anew after each listener: others may have written while it was at work.
            going = _going(base, key, self.limit)
            unnotified = next((each for each in going if not any(each is one for one in notified)), None)
            if unnotified is not None:
                notified.append(unnotified)
                await self._notify(Evicting(layer._shown(_without(base, notified[:-1])), unnotified))
            elif not announced:
                announced = True
                await self._notify(Adding(layer._shown(_without(base, going)), item))
            else:
                break
        held = _without(base, going)
        if touch:
            held.pop(key, None)
        held[key] = item
        layer._replace(held, base)
        await self._notify(Added(layer, item))

    async def remove(self, id: str) -> None:
        """Remove an entry.

        Raises:
            NameNotFound: There is none of that id; no listener was notified.
            ReadOnlyMemory: The pool was injected into a tool.
            Exception: What a listener raised; the entry is still there, unless it was one of `Removed`.
        """
        layer = self._writable()
        entry = layer.get(id)
        await self._notify(Removing(layer, entry))
        base = layer._held_now()
        layer._replace({key: each for key, each in base.items() if key != id}, base)
        await self._notify(Removed(layer, entry))

    async def clear(self) -> None:
        """Remove all entries; the listeners are notified of an empty pool too.

        Raises:
            ReadOnlyMemory: The pool was injected into a tool.
            Exception: What a listener raised; nothing was removed, unless it was one of `Cleared`.
        """
        layer = self._writable()
        await self._notify(Clearing(layer, layer.entries))
        layer._replace({}, layer._held_now())
        await self._notify(Cleared(layer))

    def branch(
        self,
        *,
        limit: int | Literal[Inherit.INHERIT] | None = INHERIT,
        listeners: Iterable[Listener] | Literal[Inherit.INHERIT] | None = INHERIT,
    ) -> Self:
        """A pool of its own that begins with the same entries; no listener is notified.

        It is of the same class, with the same tags, and belongs to no run. It can be written, even when this one
        cannot.

        Args:
            limit: Its limit, this pool's when left out, `None` for none; the newest entries are kept.
            listeners: Its listeners, a copy of this pool's when left out; `None` and `[]` mean none.

        Raises:
            InvalidLimit: The limit is below one.
        """
        if limit is INHERIT:
            limit = self.limit
        elif limit is not None:
            check_limit(limit)
        return self._branch(limit, listeners)

    def merge(
        self, base: dict[str, ContextItem[T]], mine: dict[str, ContextItem[T]], theirs: dict[str, ContextItem[T]]
    ) -> dict[str, ContextItem[T]]:
        """The state where two paths have written side by side; what is too old for the limit goes unannounced.

        Args:
            base: What both began with.
            mine: What one has made of it; of two entries of one id this one's is kept.
            theirs: What the other has.
        """
        kept = {key: each for key, each in theirs.items() if key in mine or key not in base}
        kept |= {key: each for key, each in mine.items() if key not in base or each != base[key]}
        return kept if self.limit is None else dict(list(kept.items())[-self.limit :])

    async def recall(self, query: str, budget: int) -> str | None:
        """The catalogue, as many of its newest lines as there is room for."""
        return "\n".join(newest_within(self._lines(), budget)) or None


def check_for_pool(entry: ContextItem[object]) -> str:
    """The id of an entry that a pool can hold.

    Raises:
        InvalidEntry: It has no id or no description.
    """
    check_entry(entry)
    missing = [name for name in ("id", "description") if getattr(entry, name) is None]
    if entry.id is None or missing:
        of = "" if entry.id is None else f" {entry.id!r}"
        raise InvalidEntry(
            f"the entry{of} has no {' and no '.join(missing)}",
            hint='a pool takes ContextItem(content, description="...", id="...")',
        )
    return entry.id


def _missing(id: str, held: Mapping[str, object]) -> NameNotFound:
    there = ", ".join(map(repr, list(held)[:_SHOWN])) + (", …" if len(held) > _SHOWN else "")
    return NameNotFound(f"the pool has no entry {id!r}", hint=f"there are {there}" if held else "it is empty")


_SHOWN: Final = 10


def _going(held: Mapping[str, ContextItem[T]], key: str, limit: int | None) -> tuple[ContextItem[T], ...]:
    """The entries that have to make room for one with a key."""
    if limit is None or key in held or len(held) < limit:
        return ()
    return tuple(held.values())[: len(held) + 1 - limit]


def _without(held: Mapping[str, ContextItem[T]], gone: Iterable[ContextItem[T]]) -> State[T]:
    keys = {each.id for each in gone}
    return {key: each for key, each in held.items() if key not in keys}
