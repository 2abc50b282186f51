"""Base of queues and pools: listeners, tags, branches, stored data, and access to their state."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from attrs import Attribute, field, frozen

from noetic_py.errors import CodecError, ConfigError, NameNotFound, ReadOnlyMemory, StateTypeError
from noetic_py.memory.binding import Alone, Binding, Other, Through
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.listeners import (
    EVERYWHERE,
    Attach,
    ContextItem,
    E,
    LayerEvent,
    Listener,
    Listeners,
    T,
    as_tags,
    codec_or_own,
    notify,
)

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec

S = TypeVar("S")

VERSION: Final = 1
"""The form of what `dump` gives."""


class InvalidLimit(ConfigError, ValueError):
    """A queue or a pool was given a limit below one."""


class Inherit(Enum):
    """The type of `INHERIT`."""

    INHERIT = "inherit"

    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = Inherit.INHERIT
"""A branch has what the layer has that it is made of."""


def check_limit(limit: object) -> None:
    """Raise unless it is a whole number above zero.

    Raises:
        InvalidLimit: It is not.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidLimit(
            "limit must be >= 1", code="layer-limit", hint=f"{limit!r} is not a number of entries to keep"
        )


def limit_field(_layer: object, _attribute: Attribute[Any], value: object) -> None:
    """Check a limit that has to be there, as a validator of attrs."""
    check_limit(value)


def open_limit_field(_layer: object, _attribute: Attribute[Any], value: object) -> None:
    """Check a limit that may be `None`, as a validator of attrs."""
    if value is not None:
        check_limit(value)


def _as_listeners(listeners: Iterable[Listener]) -> Listeners:
    return listeners if isinstance(listeners, Listeners) else Listeners(listeners)


class _ReadOnly(Through):
    """A state that can be read."""

    __slots__ = ()

    def read(self) -> object:
        return self.below.read()

    def set(self, value: object) -> None:
        self.write(value, None)

    def write(self, value: object, base: object) -> None:
        raise ReadOnlyMemory(
            "a pool that was injected can only be read",
            hint="return a ContextItem with id and description, and the run adds it",
        )


@frozen
class _Dumped(Generic[T]):
    """The result of `dump`."""

    version: int
    limit: int | None
    tags: list[str]
    entries: tuple[ContextItem[T], ...]
    listeners: dict[str, list[str]] = field(factory=dict[str, list[str]])


class EntryLayer(MemoryLayer[S], Generic[S, T]):
    """Base of the layers that hold entries.

    Attributes:
        tags: Labels, by which listeners of all layers choose.
        listeners: Functions that are called with its events; part of the configuration and not of the state. Those of
            a bundle's field are the same in every run of that bundle.
    """

    keyed: ClassVar[bool] = False

    tags: Collection[str] = field(default=frozenset[str](), converter=as_tags)
    listeners: Listeners = field(factory=Listeners, converter=_as_listeners)

    # -- what a subclass says

    @property
    def entries(self) -> tuple[ContextItem[T], ...]:
        """The entries, the oldest first."""
        raise NotImplementedError

    @classmethod
    def _held(cls, entries: tuple[ContextItem[T], ...], limit: int | None) -> Any:
        """The state that holds entries which were loaded or come from a branch's origin."""
        raise NotImplementedError

    # -- reading

    @property
    def items(self) -> list[ContextItem[T]]:
        """The entries as a list of its own."""
        return list(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[ContextItem[T]]:
        return iter(self.entries)

    def __bool__(self) -> bool:
        """Whether there is any entry."""
        return bool(self.entries)

    # -- listeners

    def on(self, event: type[E], *, name: str | None = None, lock: bool = False, tags: Iterable[str] = ()) -> Attach[E]:
        """Attach the async function that is decorated; see [`Listeners.on`][noetic_py.memory.Listeners.on].

        Raises:
            ConfigError: It is not async, or takes neither the event nor its values; code `"layer-listener"`.
        """
        return self.listeners.on(event, name=name, lock=lock, tags=tags)

    async def _notify(self, event: LayerEvent) -> None:
        await notify(event, self.listeners, self.tags)

    # -- the state

    def _look(self) -> S:
        """The state, to be read only."""
        state: S = self.binding.read()
        return state

    def _held_now(self) -> S:
        """The state that a change is made of, and that is changed by nothing else."""
        state: S = self.binding.peek()
        return state

    def _replace(self, state: S, base: S) -> None:
        self.binding.write(state, base)

    def _writable(self) -> Self:
        """The handle that a call works on: of what a listener was shown, the layer itself.

        Raises:
            ReadOnlyMemory: The layer can only be read here.
        """
        binding = self.binding
        while isinstance(binding, Other):
            binding = binding.below
        if isinstance(binding, _ReadOnly):
            binding.write(None, None)
        layer: Self = self if binding is self.binding else self.bound(binding)
        return layer

    def _shown(self, state: S) -> Self:
        """The same layer with another state, for a listener to look at."""
        shown: Self = self.bound(Other(self.binding, state))
        return shown

    def read_only(self) -> Self:
        """The same layer, to be read only: what would change it raises `ReadOnlyMemory`."""
        seen: Self = self.bound(_ReadOnly(self.binding))
        return seen

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, listeners=self.listeners.copy())
        return made

    def bound(self, binding: Binding) -> Any:
        """The same layer on something else, with the same listeners; for the library's own use."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _binding=binding)
        return made

    # -- branches and stored data

    def _branch(self, limit: int | None, listeners: Iterable[Listener] | Literal[Inherit.INHERIT] | None) -> Self:
        made = copy.copy(self)
        if listeners is not INHERIT:
            made.__dict__["listeners"] = Listeners(listeners or ())
        made.__dict__["limit"] = limit
        kept = self.entries if limit is None else self.entries[-limit:]
        state = self._held(kept, limit)
        made.__dict__["_binding"] = Alone(self.id or type(self).__name__, state)
        return made

    def dump(self, *, codec: Codec | None = None) -> dict[str, Any]:
        """The layer as plain data that JSON can hold: limit, tags, entries, and the names of its listeners.

        Args:
            codec: How contents are stored; the library's own when left out.

        Raises:
            CodecError: A content cannot be stored.
        """
        return {
            "version": VERSION,
            "limit": getattr(self, "limit", None),
            "tags": sorted(self.tags),
            "entries": codec_or_own(codec).encode(
                [{"content": each.content, "description": each.description, "id": each.id} for each in self.entries]
            ),
            "listeners": self.listeners.names(),
        }

    @classmethod
    def load(
        cls,
        data: Mapping[str, object],
        *,
        type: object = object,
        listeners: Iterable[Listener] = (),
        codec: Codec | None = None,
        **settings: object,
    ) -> Self:
        """The layer from the data of `dump`. No listener is called.

        Args:
            data: What `dump` gave.
            type: What the contents are; `object` makes only plain values and classes that are registered with `codec`.
            listeners: Those that the data may name, besides those in `EVERYWHERE`.
            codec: How contents were stored.
            settings: Other fields of the layer.

        Raises:
            CodecError: It is not such data.
            InvalidEntry: An entry is none that the layer can hold.
            NameNotFound: The data name a listener that is not among them.
        """
        given: object = data
        version = data.get("version") if isinstance(given, Mapping) else None
        if version != VERSION:
            raise CodecError(f"the data are of version {version!r}, and this reads {VERSION}", where="version")
        form: Any = _Dumped
        dumped: _Dumped[T] = codec_or_own(codec).decode(dict(data), form[type])
        make: Any = cls
        made: Self = make(
            limit=dumped.limit,
            tags=dumped.tags,
            listeners=Listeners(_named(dumped.listeners, (*listeners, *EVERYWHERE))),
            **settings,
        )
        state = made._held(dumped.entries, dumped.limit)
        made.__dict__["_binding"] = Alone(made.id or cls.__name__, state)
        return made

    def initial(self) -> S:
        """No entries."""
        state: S = self._held((), None)
        return state


def _named(names: Mapping[str, Sequence[str]], known: Sequence[Listener]) -> Iterator[Listener]:
    for event, each in names.items():
        for name in each:
            found = next((one for one in known if one.name == name and one.event.__name__ == event), None)
            if found is None:
                raise NameNotFound(
                    f"the data name a listener {name!r} of {event}, and no such listener was given",
                    hint="load(data, listeners=[...]), each made by @queue.on(...) or @EVERYWHERE.on(...)",
                )
            yield found


def check_entry(value: object) -> None:
    """Raise unless it is an entry.

    Raises:
        StateTypeError: It is something else.
    """
    if not isinstance(value, ContextItem):
        raise StateTypeError(
            f"{type(value).__name__} is not a valid entry; expected a ContextItem",
            hint="ContextItem(content) makes an entry of anything",
        )
