"""Routes returned entries to layers, and injects layers into parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from typing_extensions import TypeIs

from noetic_py.core.memory import Memory
from noetic_py.errors import ConfigError, NoeticError, StateTypeError
from noetic_py.memory.layer import MemoryLayer, answers, layers_of
from noetic_py.memory.layers.context_pool import check_for_pool
from noetic_py.memory.listeners import ContextItem
from noetic_py.redaction import with_article
from noetic_py.tools.definition import MISSING

EntryWriter: TypeAlias = Callable[[ContextItem[Any]], Awaitable[object]]

# By whether an entry has no id: the library's layer for it, and how a bundle declares the layer.
_USUAL = {
    True: ("ContextQueue", "window: ContextQueue[str] = ContextQueue()"),
    False: ("ContextPool", "shelf: ContextPool[Doc] = ContextPool()"),
}


def is_routed(value: object) -> bool:
    """Whether a run keeps the value itself: a `ContextItem`, or a list or tuple of nothing else.

    Raises:
        StateTypeError: It is a list or tuple of entries and other values.
    """
    entries = _entries(value)
    if entries and _is_array(value) and len(entries) < len(value):
        raise StateTypeError(
            "a list that mixes entries and other values was returned",
            hint="return entries only, or yield one value after another",
        )
    return bool(entries)


def has_place(memory: Memory) -> bool:
    """Whether a bundle has any layer that keeps returned entries."""
    return any(answers(type(layer), "entry_writer") for layer in layers_of(memory).values())


async def route(memory: Memory, value: object, *, where: tuple[str, ...], given: object = None) -> bool:
    """Put returned entries where they belong: into the layer that has a `entry_writer` for them.

    That is the queue for one without an id, the pool for one with an id, and what another layer takes. Of a list each
    goes its way in order, once it is clear that all of them can go. The listeners of the queue and the pool are called.

    Args:
        memory: The run's layers.
        value: What a tool or a step returned, or yielded.
        where: The path of the step, for errors.
        given: What the step was given: an entry of it that is handed on is not kept again.

    Returns:
        Whether there was anything to keep; the caller of a tool is not to see it then.

    Raises:
        ConfigError: There is no layer for it (code `"layer-missing"`), or more than one (`"layer-ambiguous"`).
        InvalidEntry: One has an id and no description.
        StateTypeError: It is a list of entries and other values.
    """
    try:
        if not is_routed(value):
            return False
        known = _entries(given)
        entries = [entry for entry in _entries(value) if not any(entry is each or entry == each for each in known)]
        writers = [(entry, _entry_writer(memory, entry)) for entry in entries]
        for entry, keep in writers:
            await keep(entry)
    except NoeticError as error:
        raise error.at(where) from error.__cause__
    return bool(entries)


def unrouted(values: Sequence[object]) -> list[object]:
    """The values of a generator that are not entries; entries are routed as they are yielded.

    Of a generator that has yielded nothing but entries it is these, as if they had been returned together.
    """
    rest = [value for value in values if not is_routed(value)]
    return rest or [entry for value in values for entry in _entries(value)]


def receipt(value: object) -> str:
    """The text that tells the model where entries were stored."""
    kept = [entry for entry in _entries(value) if entry.id is not None]
    if not kept:
        return "Noted."
    return "\n".join(f"Stored as [{entry.id}]: {entry.description}" for entry in kept)


def _entries(value: object) -> tuple[ContextItem[object], ...]:
    several = value if _is_array(value) else (value,)
    return tuple(each for each in several if _is_entry(each))


def _is_array(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _is_entry(value: object) -> TypeIs[ContextItem[object]]:
    return isinstance(value, ContextItem)


def _entry_writer(memory: Memory, entry: ContextItem[object]) -> EntryWriter:
    if entry.id is not None:
        check_for_pool(entry)
    found = {
        name: (layer, keep)
        for name, layer in layers_of(memory).items()
        if answers(type(layer), "entry_writer") and (keep := layer.entry_writer(entry)) is not None
    }
    if len(found) == 1:
        return next(keep for _, keep in found.values())
    returned = "an entry without an id" if entry.id is None else f"the entry {entry.id!r}"
    if not found:
        usual, field = _USUAL[entry.id is None]
        raise ConfigError(
            f"{returned} was returned, and the run has no {usual} for it",
            code="layer-missing",
            hint=f"Harness(memory=Mem()) with a class Mem(Memory) that has {field}",
        )
    kinds = {type(layer).__name__ for layer, _ in found.values()}
    what = kinds.pop() if len(kinds) == 1 else "layer"
    name, (_, first) = next(iter(found.items()))
    raise ConfigError(
        f"{returned} was returned, and the run has more than one {what}: {', '.join(found)}",
        code="layer-ambiguous",
        hint=f"write it yourself: await ctx.memory.{name}.{getattr(first, '__name__', 'keep')}(...)",
    )


def inject_layer(memory: Memory, parameter_name: str, kind: type[object], hint: object = None) -> object:
    """The run's layer for a parameter: the one of its class, or of a class below it.

    Of several it is the one whose field has the parameter's name, or else the one whose field has the parameter's
    annotation. It is given as its `injected` says: a pool can only be read.

    Args:
        memory: The run's layers.
        parameter_name: The parameter.
        kind: Its class.
        hint: Its annotation, such as `ContextQueue[str]`.

    Returns:
        The layer, or [`MISSING`][noetic_py.tools.MISSING] when the run has none of the class, or when it is not a class
        of a layer.

    Raises:
        ConfigError: There is more than one, and nothing tells them apart; code `"layer-ambiguous"`.
    """
    own = issubclass(kind, MemoryLayer)
    found = {
        name: layer
        for name, layer in layers_of(memory).items()
        if (isinstance(layer, kind) if own else kind in layer.views)
    }
    if not found:
        return MISSING
    if len(found) > 1:
        named = found.get(parameter_name)
        alike = [layer for layer in found.values() if hint is not None and layer.alias == hint]
        chosen = named if named is not None else alike[0] if len(alike) == 1 else None
    else:
        chosen = next(iter(found.values()))
    if chosen is None:
        raise ConfigError(
            f"parameter {parameter_name!r} asks for {with_article(kind.__name__)}, and there are several injectable "
            f"ones without a matching name: {', '.join(found)}",
            code="layer-ambiguous",
            hint=f"call the parameter {' or '.join(map(repr, found))}",
        )
    return chosen.injected()
