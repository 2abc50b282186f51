"""Listeners of queues and pools, and the events that they receive."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, get_type_hints, overload
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar
from attrs import Attribute, field, frozen
from typing_extensions import TypeVar

from noetic_py.context.hooks import inner_of, is_async, name_of
from noetic_py.errors import ConfigError, NoContextError, StateTypeError
from noetic_py.tools.definition import MISSING
from noetic_py.tools.signature import Injected, Parameter

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec

__all__ = [
    "EVERYWHERE",
    "Added",
    "Adding",
    "Appended",
    "Appending",
    "Cleared",
    "Clearing",
    "ContextItem",
    "Evicting",
    "LayerEvent",
    "Listener",
    "Listeners",
    "Removed",
    "Removing",
    "T",
    "T_co",
    "codec_or_own",
    "notify",
]

# Without brackets anything goes.
T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", covariant=True, default=Any)


def _text_or_none(item: ContextItem[object], attribute: Attribute[str | None], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise StateTypeError(
            f"the {attribute.name} of a ContextItem is {type(value).__name__}, not text",
            hint=f'ContextItem(content, {attribute.name}="...")',
        )


@frozen
class ContextItem(Generic[T_co]):
    """Something to keep for later, and what to know about it before it is looked at.

    It is a value: it cannot be changed, two of equal parts are equal, and it can be hashed when its content can. A
    queue takes any; a pool needs `id` and `description`. When a tool returns one, the run puts it into its queue, or
    into its pool when it has an id.

    Attributes:
        content: What is kept.
        description: What to choose it by, in a line.
        id: Its key in a pool.

    Raises:
        StateTypeError: The description or the id is not a text.
    """

    content: T_co
    description: str | None = field(default=None, validator=_text_or_none)
    id: str | None = field(default=None, validator=_text_or_none)

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextItem[T_co]:
        # The same as `copy.deepcopy` of a tuple: a value without mutable members is its own copy.
        content = copy.deepcopy(self.content, memo)
        return self if content is self.content else type(self)(content, self.description, self.id)

    def dump(self, *, codec: Codec | None = None) -> dict[str, Any]:
        """The entry as plain data that JSON can hold.

        Args:
            codec: How the content is stored; the library's own when left out.

        Raises:
            CodecError: The content cannot be stored.
        """
        fields = {"content": self.content, "description": self.description, "id": self.id}
        dumped: dict[str, Any] = codec_or_own(codec).encode(fields)
        return dumped

    @classmethod
    def load(
        cls, data: Mapping[str, object], *, type: object = object, codec: Codec | None = None
    ) -> ContextItem[T_co]:
        """The entry that `dump` has made this of.

        Args:
            data: What `dump` gave.
            type: What the content is; `object` makes only plain values and classes that are registered with `codec`.
            codec: How the content was stored.

        Raises:
            CodecError: It is not such an entry.
        """
        form: Any = cls
        given: object = data
        tree = dict(data) if isinstance(given, Mapping) else given
        loaded: ContextItem[T_co] = codec_or_own(codec).decode(tree, form[type])
        return loaded


def codec_or_own(given: Codec | None) -> Codec:
    """The codec that was given, or the library's own."""
    if given is not None:
        return given
    from noetic_py.core.codec import Codec

    return Codec()


if TYPE_CHECKING:
    from typing import TypeAlias

    from noetic_py.memory.layers.context_pool import ContextPool
    from noetic_py.memory.layers.context_queue import ContextQueue

    Entries: TypeAlias = tuple[ContextItem[T], ...]
    Holder: TypeAlias = ContextQueue[T] | ContextPool[T]


@frozen(eq=False)
class LayerEvent:
    """Base of all events; a listener for it gets every event."""

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
        layer: The pool, which no longer holds it.
        entry: The entry.
    """

    VALUES: ClassVar[int] = 2

    layer: ContextPool[T]
    entry: ContextItem[T]


def _own(value: object) -> object:
    return [*value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType] # of anything


E = TypeVar("E", bound=LayerEvent)

# --------------------------------------------------------------------------------------------------------- listeners


@frozen(eq=False)
class Listener:
    """An async function that is called with events of one kind. Calling the listener calls the function.

    Attributes:
        event: The kind; an event of a class below it counts too.
        fn: The function.
        name: What stored data call it: `module:qualified.name` unless it was given another.
        lock: Whether it is run for one event at a time.
        tags: It gets events of layers that share one of them; of all layers if it has none.
    """

    event: type[LayerEvent]
    fn: Callable[..., Awaitable[object]]
    name: str
    lock: bool = False
    tags: frozenset[str] = frozenset()
    _spread: bool = field(alias="spread", default=False)
    _injected: tuple[Injected, ...] = field(alias="injected", default=())

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[object]:
        """Call the function."""
        return self.fn(*args, **kwargs)

    def hears(self, event: LayerEvent, tags: Iterable[str]) -> bool:
        """Whether the listener gets events of a layer with these tags."""
        return isinstance(event, self.event) and (not self.tags or not self.tags.isdisjoint(tags))

    async def notify(self, event: LayerEvent) -> None:
        """Run the function for an event.

        Raises:
            TypeError: It needs a layer by a keyword, and the queue or the pool is in no run.
        """
        values = event.values() if self._spread else (event,)
        filled = _filled(self._injected, event) if self._injected else {}
        if not self.lock:
            await self.fn(*values, **filled)
            return
        async with _lock_of(self):
            await self.fn(*values, **filled)


_LOCKS: Final[RunVar[WeakKeyDictionary[Listener, anyio.Lock]]] = RunVar("noetic_py.memory.listeners")


def _lock_of(listener: Listener) -> anyio.Lock:
    """The listener's lock in this event loop; a listener may outlive several."""
    try:
        locks = _LOCKS.get()
    except LookupError:
        locks = WeakKeyDictionary[Listener, anyio.Lock]()
        _LOCKS.set(locks)
    found = locks.get(listener)
    if found is None:
        found = locks[listener] = anyio.Lock()
    return found


def _filled(injected: tuple[Injected, ...], event: Any) -> dict[str, object]:
    from noetic_py.memory.routing import inject_layer

    try:
        memory = event.layer.ctx.memory
    except NoContextError:
        return {}
    found = {each.name: inject_layer(memory, each.name, each.type, each.hint) for each in injected}
    return {name: value for name, value in found.items() if value is not MISSING}


class Attach(Generic[E]):
    """The decorator that `on(...)` returns: it makes a listener of a function and attaches it."""

    __slots__ = ("_attach", "_make")

    def __init__(
        self, attach: Callable[[Listener], None], make: Callable[[Callable[..., Awaitable[object]]], Listener]
    ) -> None:
        self._attach = attach
        self._make = make

    @overload
    def __call__(self, fn: Callable[[Any, Any], Awaitable[object]], /) -> Listener: ...
    @overload
    def __call__(self, fn: Callable[[Any, Any, Any], Awaitable[object]], /) -> Listener: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[E, ...], Awaitable[object]], /) -> Listener: ...
    def __call__(self, fn: Callable[..., Awaitable[object]], /) -> Listener:
        made = self._make(fn)
        self._attach(made)
        return made


class Listeners:
    """The listeners of a queue or a pool, in order; branches begin with a copy of it."""

    __slots__ = ("_listeners",)

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners: list[Listener] = []
        for each in listeners:
            self.append(each)

    def on(self, event: type[E], *, name: str | None = None, lock: bool = False, tags: Iterable[str] = ()) -> Attach[E]:
        """Attach the async function that is decorated, and put a [`Listener`][noetic_py.memory.Listener] in its place.

        A function may be attached for several events and to several layers.

        Args:
            event: The kind of events.
            name: What stored data call it; `module:qualified.name` when left out.
            lock: Run it for one event at a time.
            tags: Tell it of layers only that share one of these.

        Raises:
            ConfigError: It is not async, or takes neither the event nor its values; code `"layer-listener"`.
        """
        return Attach(self.append, partial(make_listener, event=event, name=name, lock=lock, tags=tags))

    def append(self, listener: Listener) -> None:
        """Attach a listener; one that is attached already is not called twice.

        Raises:
            ConfigError: It is not a listener; code `"layer-listener"`.
        """
        if not isinstance(listener, Listener):
            raise _refused(listener, "is not a valid listener", "@queue.on(Appended) makes one of an async function")
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Detach a listener; one that is not attached is ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def copy(self) -> Listeners:
        """The same listeners, to be changed by itself."""
        return Listeners(self._listeners)

    def names(self) -> dict[str, list[str]]:
        """Their names by event, for stored data."""
        found: dict[str, list[str]] = {}
        for each in self._listeners:
            found.setdefault(each.event.__name__, []).append(each.name)
        return found

    def __iter__(self) -> Iterator[Listener]:
        return iter(tuple(self._listeners))

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, listener: object) -> bool:
        return listener in self._listeners

    def __repr__(self) -> str:
        return f"Listeners({[each.name for each in self._listeners]})"


EVERYWHERE: Final = Listeners()
"""Listeners of all queues and pools, called after those of the layer itself: `@EVERYWHERE.on(Appended)`."""


async def notify(event: LayerEvent, listeners: Listeners, tags: Iterable[str]) -> None:
    """Tell the listeners of a layer of an event, and then those of all layers, each function once.

    One that is attached or detached meanwhile counts from the next event on.
    """
    notified: list[object] = []
    for listener in (*listeners, *EVERYWHERE):
        if listener.fn not in notified and listener.hears(event, tags):
            notified.append(listener.fn)
            await listener.notify(event)


# ------------------------------------------------------------------------------------------------------- registering


def make_listener(
    fn: Callable[..., Awaitable[object]], *, event: type[LayerEvent], name: str | None, lock: bool, tags: Iterable[str]
) -> Listener:
    """Make a listener of a function, or of what another listener runs.

    Raises:
        ConfigError: It cannot be one; code `"layer-listener"`.
    """
    if isinstance(fn, Listener):
        fn = fn.fn
    if not _is_event(event):
        raise _refused(event, "is not a valid event", "queue.on(Appended)")
    if not is_async(fn):
        raise _refused(fn, "is not an async function", "write async def")
    spread, injected = _read(fn, event)
    return Listener(
        event=event,
        fn=fn,
        name=name or name_of(fn),
        lock=lock,
        tags=as_tags(tags),
        spread=spread,
        injected=injected,
    )


def as_tags(tags: Iterable[str]) -> frozenset[str]:
    """Tags as a set.

    Raises:
        ConfigError: It is one text, or holds something else than texts; code `"layer-tags"`.
    """
    found = frozenset(tags)
    if isinstance(tags, str) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"tags={tags!r} are not valid; expected texts", code="layer-tags", hint='tags=["session"]')
    return found


def _refused(what: object, why: str, hint: str) -> ConfigError:
    shown = getattr(what, "__qualname__", None) or repr(what)
    return ConfigError(f"{shown} {why}", code="layer-listener", hint=hint)


def _is_event(event: object) -> bool:
    return isinstance(event, type) and issubclass(event, LayerEvent)


_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _read(fn: Callable[..., object], event: type[LayerEvent]) -> tuple[bool, tuple[Injected, ...]]:
    """Whether the function takes the event's values one by one, and what the run fills."""
    parameters = inspect.signature(fn).parameters.values()
    by_position = [each for each in parameters if each.kind in _BY_POSITION]
    needed = sum(each.default is inspect.Parameter.empty for each in by_position)
    starred = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    injected = _keywords(fn, [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY])
    if needed <= 1 and (by_position or starred):
        return False, injected
    if needed and needed <= event.VALUES and (starred or len(by_position) >= event.VALUES):
        return True, injected
    also = f" or the {event.VALUES} values of it" if event.VALUES > 1 else ""
    raise _refused(fn, f"takes {needed} values", f"a listener of {event.__name__} takes the event{also}")


def _keywords(fn: object, parameters: list[inspect.Parameter]) -> tuple[Injected, ...]:
    if not parameters:
        return ()
    try:
        hints = get_type_hints(inner_of(fn), include_extras=True)
    except NameError as error:
        raise _refused(fn, f"has an annotation that names nothing: {error}", "import the name at run time") from error
    found: list[Injected] = []
    for each in parameters:
        asked = Parameter(each.name, hints.get(each.name), each.default, "injected").as_injected()
        if getattr(asked.type, "__noetic_layer__", False) is True:
            found.append(asked)
        elif asked.required:
            raise _refused(fn, f"takes {each.name!r} by keyword", "only a memory layer is filled there")
    return tuple(found)
