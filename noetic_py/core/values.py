"""Values that go from one step to another: what kind of container one is, copies where it can change, its size."""

from __future__ import annotations

import copy
import dataclasses
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from sys import getsizeof
from types import (
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from typing_extensions import TypeIs

from noetic_py.core.diagnostics import not_a_value
from noetic_py.core.state import StateBag, class_of, copy_state, state_fields
from noetic_py.core.types import MAX_NESTING
from noetic_py.errors import ConfigError, LimitExceeded
from noetic_py.redaction import with_article


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Whether this is a mapping; its elements are not checked."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeIs[dict[Any, Any]]:
    """Whether this is a dict; its elements are not checked."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Whether this is a list; its elements are not checked."""
    return isinstance(value, list)


def is_array(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Whether this is a list or a tuple; its elements are not checked."""
    return isinstance(value, list | tuple)


ATOMS: Final[frozenset[type]] = frozenset({
    str, int, float, bool, bytes, type(None), complex, Decimal, Fraction, UUID, range, type, type(...),
    date, datetime, time, timedelta, timezone, PosixPath, WindowsPath, PurePosixPath, PureWindowsPath,
})  # fmt: skip
"""Classes whose instances cannot change and hold nothing that can."""

Other: TypeAlias = Callable[[Any], Any]
"""Copies what is not data."""
Copier: TypeAlias = Callable[[Any, Other], Any]


def copy_value(value: object) -> Any:
    """A value of its own: equal, and independent of whatever is done to the original.

    Raises:
        ConfigError: It holds itself, and something else that cannot be copied; code `"value-copy"`.
    """
    kind = value.__class__
    if kind in ATOMS:
        return value
    try:
        return _copied(value, kind, _itself)
    except RecursionError:
        # It holds itself, so it is not a tree; or it is deeper than Python calls functions.
        try:
            return copy.deepcopy(value)
        except Exception as error:
            raise ConfigError(
                f"{with_article(kind.__name__)} that a step takes or gives cannot be copied: "
                f"{type(error).__name__}: {error}",
                code="value-copy",
                hint="hand on plain data that does not hold itself, and pass clients and locks as services=",
            ) from error


def copy_private(value: object) -> Any:
    """A copy of a layer's state, or of a part of one: no change of one of the two is seen in the other.

    Raises:
        ConfigError: It holds something that cannot be copied; code `"state-copy"`.
    """
    try:
        return _copied(value, class_of(value), copy_state)
    except Exception:  # noqa: BLE001 # it is not a tree, or one of its classes refuses: this says what is wrong
        return copy_state(value)


def copier_of(value: object, known: tuple[object, Other] | None = None) -> Other:
    """A function that copies a value as `copy_private` does, faster where possible.

    To look through a large value takes longer than to copy it, so a caller keeps this for as long as the value is the
    same.

    Args:
        value: The value.
        known: Another value with its copier: what stands in that too is not looked through again.

    Raises:
        ConfigError: As for `copy_private`.
    """
    if known is not None and _shares(value, *known):
        flat_too: Other = class_of(value)
        return flat_too
    made = copy_private(value)
    if made is value:
        return _itself
    held: Any = value
    kind = class_of(value)
    entries = held.values() if kind is dict else held
    if kind in (list, set, dict) and _same(held, made) and (kind is not dict or _same(entries, made.values())):
        flat: Other = kind
        return flat
    return copy_private


def _shares(value: Any, known: Any, copier: Other) -> bool:
    """Whether the parts of a value cannot change, as those of a known one of which a copy takes its container only."""
    kind = class_of(value)
    if not (kind is copier is class_of(known)) or kind not in (dict, list):
        return False
    if kind is dict and not ATOMS.issuperset(map(type, value)):
        return False
    there = set(map(id, known.values() if kind is dict else known))
    new = [part for part in (value.values() if kind is dict else value) if id(part) not in there]
    return all(copy_private(part) is part for part in new)


def _itself(value: object) -> object:
    return value


def alike(one: object, other: object) -> bool:
    """Whether two values hold the same, of the same classes; also where a class does not say when two are equal."""
    return _alike(one, other, set())


def _alike(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    if one is other:
        return True
    kind = class_of(one)
    if kind is not class_of(other):
        return False
    if kind in ATOMS or issubclass(kind, (set, frozenset, Enum)):
        # Not a number is not equal to itself.
        return bool(one == other) or (one != one and other != other)
    if (id(one), id(other)) in seen:
        return True
    seen.add((id(one), id(other)))
    if issubclass(kind, (list, tuple, deque)):
        return len(one) == len(other) and _all_alike(one, other, seen)
    if not issubclass(kind, dict) and not (state_fields(one) or state_fields(other)):
        return kind.__eq__ is object.__eq__ or bool(one == other)
    mine, theirs = state_fields(one), state_fields(other)
    return list(mine) == list(theirs) and _all_alike(mine.values(), theirs.values(), seen)


def _all_alike(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    return all(a is b or _alike(a, b, seen) for a, b in zip(one, other, strict=True))


def separate_state(state: object) -> None:
    """Make a state a tree, in place: what stands in it twice becomes two values, the later one a copy.

    A state is stored field by field, so this is what it would be if it were read back.

    Raises:
        LimitExceeded: It is nested too deep.
    """
    fields: dict[Any, object] = dict(enumerate(state)) if is_list(state) else state_fields(state)
    if ATOMS.issuperset(map(type, fields.values())):
        return
    seen: set[int] = set()
    for name, value in fields.items():
        try:
            once = _once(value, seen)
        except RecursionError:
            raise LimitExceeded("nesting", MAX_NESTING, hint="nest the state less deeply") from None
        if not once:
            own = copy_value(value)
            if isinstance(state, (StateBag, dict, list)):
                state[name] = own
            else:
                object.__setattr__(state, name, own)


def _once(value: object, seen: set[int]) -> bool:
    """Whether nothing that can change stands in a value twice, or among what was seen before."""
    kind = value.__class__
    if kind in ATOMS:
        return True
    make = _copier(kind)
    if make is None or make is _other:
        return True
    if make not in (_tuple, _frozenset, _frozen):
        if id(value) in seen:
            return False
        seen.add(id(value))
    held = _HELD.get(make)
    return (
        held is None
        # In most containers nothing can change, which is seen without a call for each part.
        or ATOMS.issuperset(map(type, held(value)))
        or all(_once(part, seen) for part in held(value))
    )


def _copied(value: object, kind: object, other: Other) -> Any:
    make = _copier(kind)
    return value if make is None else make(value, other)


def _copier(kind: Any) -> Copier | None:
    try:
        return _COPIERS[kind]
    except KeyError:
        make = _COPIERS[kind] = _find(kind)
        return make


def _parts(values: Iterable[object], other: Other) -> list[Any]:
    return [each if (kind := each.__class__) in ATOMS else _copied(each, kind, other) for each in values]


def _same(one: Iterable[object], other: Iterable[object]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def _tuple(value: tuple[object, ...], other: Other) -> tuple[object, ...]:
    if ATOMS.issuperset(map(type, value)):
        return value
    parts = _parts(value, other)
    if _same(value, parts):
        return value
    kind: Any = value.__class__
    make: Any = kind._make if hasattr(kind, "_make") else kind
    made: tuple[object, ...] = make(parts)
    return made


def _dict(value: dict[Any, object], other: Other) -> dict[Any, object]:
    copied = {
        key: part if (kind := part.__class__) in ATOMS else _copied(part, kind, other) for key, part in value.items()
    }  # fmt: skip
    return copied if ATOMS.issuperset(map(type, copied)) else _keyed(copied, other)


def _keyed(value: dict[object, object], other: Other) -> dict[object, object]:
    """A dict whose keys are copied: an object that can change may be a key, where it is equal to itself only."""
    return dict(zip(_parts(value, other), value.values(), strict=True))


# The method of `dict` itself, as a subclass may count or convert what is read or written.
def _items(value: dict[object, object]) -> Iterable[tuple[object, object]]:
    return dict[Any, Any].items(value)


def _entries(value: dict[object, object]) -> Iterable[object]:
    return chain(dict[Any, Any].keys(value), dict[Any, Any].values(value))


def _mapping(value: Any, other: Other) -> object:
    """Copy a subclass of `dict` with its default factory and its attributes."""
    made = _with_attributes(copy.copy(value), other)
    entries = _dict(dict(_items(value)), other)
    dict[Any, Any].clear(made)
    for key, part in entries.items():
        dict[Any, Any].__setitem__(made, key, part)
    return made


def _sequence(value: Any, other: Other) -> object:
    made = _with_attributes(copy.copy(value), other)
    for index, part in enumerate(value):
        made[index] = _copied(part, part.__class__, other)
    return made


def _set(value: Any, other: Other) -> object:
    made = _with_attributes(copy.copy(value), other)
    if not ATOMS.issuperset(map(type, value)):
        parts = _parts(value, other)
        made.clear()
        made.update(parts)
    return made


def _frozenset(value: frozenset[object], other: Other) -> frozenset[object]:
    if ATOMS.issuperset(map(type, value)):
        return value
    parts = _parts(value, other)
    kind: Any = value.__class__
    made: frozenset[object] = value if _same(value, parts) else kind(parts)
    return made


def _proxy(value: Any, other: Other) -> object:
    return MappingProxyType(_dict(dict(value), other))


def _shallow(value: object, other: Other) -> object:
    return _with_attributes(copy.copy(value), other)


def _with_attributes(made: object, other: Other) -> Any:
    """A copy of a container, with copies of the attributes that a class of its own gave it."""
    own: dict[str, object] | None = getattr(made, "__dict__", None)
    if own:
        own.update(_dict(own, other))
    return made


def _fields(value: object, other: Other) -> object:
    """An object that can change, with what its fields hold."""
    made = copy.copy(value)
    for name, part in state_fields(value).items():
        if (kind := part.__class__) not in ATOMS and (own := _copied(part, kind, other)) is not part:
            object.__setattr__(made, name, own)
    return made


def _frozen(value: object, other: Other) -> object:
    """An object that cannot change: itself, unless one of its fields holds something that can."""
    fields = state_fields(value)
    if ATOMS.issuperset(map(type, fields.values())) or _same(fields.values(), _parts(fields.values(), other)):
        return value
    return _fields(value, other)


def _bag(value: StateBag, other: Other) -> StateBag:
    made: StateBag = class_of(value)(_dict(dict(value.view()), other))
    return made


def _deep(value: object, other: Other) -> object:
    return copy.deepcopy(value)


def _other(value: object, other: Other) -> object:
    return other(value)


def _coroutine(value: Any, other: Other) -> object:
    raise not_a_value(value, "a value of a step is or holds")


# The first that a class is a subclass of says how its instances are copied.
_BASES: Final[tuple[tuple[Any, Copier], ...]] = (
    (tuple, _tuple),
    (dict, _mapping),
    (list, _sequence),
    (deque, _sequence),
    (set, _set),
    (frozenset, _frozenset),
    (bytearray, _shallow),
    (StateBag, _bag),
    (MappingProxyType, _proxy),
    ((ChainMap, UserDict, UserList, SimpleNamespace), _fields),
)
# Types of values that hold other values.
_HELD: Final[dict[Copier, Callable[[Any], Iterable[object]]]] = {
    _parts: iter,
    _tuple: iter,
    _sequence: iter,
    _dict: _entries,
    _mapping: _entries,
    _set: iter,
    _frozenset: iter,
    _proxy: lambda value: value.values(),
    _bag: lambda value: value.view().values(),
    _fields: lambda value: state_fields(value).values(),
    _frozen: lambda value: state_fields(value).values(),
}
_COPIERS: WeakKeyDictionary[type, Copier | None] = WeakKeyDictionary()
_COPIERS[list] = _parts
_COPIERS[dict] = _dict
_COPIERS[CoroutineType] = _coroutine


def _find(kind: Any) -> Copier | None:
    """How instances of a class are copied; `None` when they are handed on as they are."""
    if getattr(kind, "__noetic_shared__", False):
        return None
    for base, make in _BASES:
        if issubclass(kind, base):
            return make
    if issubclass(kind, (str, int, float, bytes, Enum, BaseException)):
        return None
    if hasattr(kind, "__attrs_attrs__"):
        return _frozen if getattr(kind.__setattr__, "__name__", "") == "_frozen_setattrs" else _fields
    if dataclasses.is_dataclass(kind):
        return _frozen if getattr(kind, "__dataclass_params__").frozen else _fields  # noqa: B009 # untyped in typeshed
    if hasattr(kind, "__pydantic_fields__"):
        return _fields
    # Arrays and tables say themselves how they are copied.
    return _deep if hasattr(kind, "__deepcopy__") else _other


_MOST_PARTS: Final = 4_096
_SAMPLE: Final = 1_024
"""How many entries of a container are looked at; the others count as these do."""
_UNKNOWN: Final = 64

_FLAT: Final[frozenset[type]] = frozenset({str, bytes, bytearray, int, float, bool, type(None)})
# Shared by the whole program, so not counted for each reference.
_SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def size_of(value: object) -> int:
    """Bytes of memory that a value holds with all its parts, estimated: of large containers it looks at a sample.

    Args:
        value: Any object; one that stands in it several times counts once.
    """
    kind = value.__class__
    if kind in _FLAT:
        return getsizeof(value)
    total = 0.0
    seen: set[int] = set()
    # Each part, and how many entries it stands for.
    parts: list[tuple[object, float]] = [(value, 1.0)]
    while parts and len(seen) < _MOST_PARTS:
        part, weight = parts.pop()
        if id(part) in seen or isinstance(part, _SHARED):
            continue
        seen.add(id(part))
        total += weight * _own_size(part)
        if part.__class__ not in _FLAT:
            inner, count = _parts_of(part)
            share = weight * max(1.0, count / _SAMPLE)
            parts += [(each, share) for each in inner]
    # Parts that were not looked at count without their own parts.
    return int(total + sum(weight * _own_size(part) for part, weight in parts))


def _own_size(value: object) -> int:
    if isinstance(value, memoryview):
        return value.nbytes
    try:
        return getsizeof(value, _UNKNOWN)
    except Exception:  # noqa: BLE001 # an object of the user's that cannot tell its size
        return _UNKNOWN


def _parts_of(value: Any) -> tuple[Iterator[object], int]:
    """Some of what an object refers to, and how many entries these are a sample of."""
    kind: Any = value.__class__
    if issubclass(kind, list | tuple):
        count = len(value)
        return iter(value[:: -(-count // _SAMPLE)] if count > _SAMPLE else value), count
    if issubclass(kind, dict):
        return chain.from_iterable(islice(value.items(), _SAMPLE)), len(value)
    if issubclass(kind, set | frozenset | deque):
        return islice(value, _SAMPLE), len(value)
    fields = (getattr(value, name, None) for name in _slots_of(kind))
    own = getattr(value, "__dict__", None)
    return chain(fields, () if own is None else (own,)), 0


@lru_cache(maxsize=1024)
def _slots_of(kind: type[object]) -> tuple[str, ...]:
    """The names of an object's fields that are not in a `__dict__`."""
    names: list[str] = []
    for base in kind.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        given = (slots,) if isinstance(slots, str) else tuple(slots)
        names += [name if not name.startswith("__") else f"_{base.__name__.lstrip('_')}{name}" for name in given]
    return tuple(name for name in names if name in dir(kind))
