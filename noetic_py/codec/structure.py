"""From decoded JSON to the classes that a type asks for.

Strict where `str(value)` would do: a number is no text, a text is no list. Where JSON has no form of its own, a native
value and its JSON form are both taken, so one converter serves stored values and payloads that came over the wire.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    ForwardRef,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import attrs

from noetic_py.codec.text import Unfit, kind_name
from noetic_py.items import ItemBase

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["Bag", "Member", "Record", "Structurer", "init_false", "is_model", "type_name"]


@attrs.frozen
class Record:
    """A stored instance whose class nobody has named yet."""

    name: str
    fields: Any


@attrs.frozen
class Member:
    """A stored member of an enumeration that nobody has named yet."""

    name: str
    value: Any


@attrs.frozen
class Bag:
    """A stored set or dict whose members may have to become hashable first."""

    kind: Literal["set", "frozenset", "dict"]
    parts: list[Any]


Hook = Callable[[Any], Any]

_SCALARS: Final[dict[Any, tuple[type | tuple[type, ...], Callable[[str], Any] | None]]] = {
    str: (str, None),
    int: (int, None),
    float: ((int, float), None),
    bool: (bool, None),
    type(None): (type(None), None),
    bytes: (bytes, partial(b64decode, validate=True)),
    datetime: (datetime, datetime.fromisoformat),
    date: (date, date.fromisoformat),
    time: (time, time.fromisoformat),
    timedelta: (timedelta, None),
    Decimal: (Decimal, Decimal),
    UUID: (UUID, UUID),
}

# The classes that a container type's values are made of; None keeps what was stored, for abstract types.
_CONTAINERS: Final[dict[Any, Callable[[Iterable[Any]], Any] | None]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: None,
    collections.abc.MutableSequence: list,
    collections.abc.Set: None,
    collections.abc.MutableSet: set,
    collections.abc.Iterable: None,
    collections.abc.Collection: None,
}
_SETS: Final = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def type_name(kind: Any) -> str:
    """A type the way its author writes it."""
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model, found out without loading pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_core_schema__") and hasattr(kind, "model_validate")


def init_false(kind: Any) -> frozenset[str]:
    """The fields of an attrs class or a dataclass that its constructor does not take."""
    base = get_origin(kind) or kind
    fields: Iterable[Any] = attrs.fields(base) if attrs.has(base) else dataclasses.fields(base)
    return frozenset(field.name for field in fields if not field.init)


class Structurer:
    """Makes values of declared types; what has no declared type comes from a closed registry.

    Args:
        registry: Classes by name, for positions that are declared `object` or `Any`.
    """

    def __init__(self, registry: Mapping[str, type] | None = None) -> None:
        self.registry = {} if registry is None else registry
        self._hooks: dict[Any, Hook | None] = {}
        self._built: Converter | None = None

    def structure(self, value: Any, kind: Any) -> Any:
        """The value as an instance of `kind`.

        Raises:
            Unfit: It is none.
        """
        hook = self._hook(kind)
        if hook is not None:
            return hook(value)
        try:
            return self._converter().structure(value, kind)
        except Exception as error:  # noqa: BLE001  # a class of the user's may raise anything
            raise _explained(error) from error

    def untyped(self, value: Any) -> Any:
        """The value with its own classes, as far as they are registered."""
        if isinstance(value, Record | Member):
            known = self.registry.get(value.name)
            if known is None:
                raise Unfit(
                    f"holds a {value.name}, and no such class is registered",
                    hint="declare the type where the value is read, or register the class with the codec",
                )
            return self.structure(value, known)
        if isinstance(value, list | tuple):
            made = [self._at(f"[{index}]", self.untyped, part) for index, part in enumerate(value)]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(value, dict):
            return {key: self._at(f"[{key!r}]", self.untyped, part) for key, part in value.items()}
        if isinstance(value, Bag):
            parts = [self.untyped(part) for part in value.parts]
            return _gather(value.kind, parts)
        return value

    # ------------------------------------------------------------------------------------------------ hooks

    def _hook(self, kind: Any) -> Hook | None:
        """What makes a `kind` here; `None` leaves it to cattrs."""
        try:
            if kind in self._hooks:
                return self._hooks[kind]
        except TypeError:
            return self._find(kind)
        hook = self._hooks[kind] = self._find(kind)
        return hook

    def _find(self, kind: Any) -> Hook | None:
        if kind is Any or kind is object or isinstance(kind, TypeVar | ForwardRef | str):
            return self.untyped
        if kind is None:
            kind = type(None)
        if kind in _SCALARS:
            return partial(_scalar, kind)
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            return partial(self._union, kind)
        base = origin or kind
        if base is tuple:
            return partial(self._tuple, get_args(kind))
        if base in _CONTAINERS:
            return partial(self._collection, base, *(get_args(kind) or (Any,)))
        if base in _MAPPINGS:
            return partial(self._mapping, *(get_args(kind) or (Any, Any)))
        return self._find_class(kind, base)

    def _find_class(self, kind: Any, base: Any) -> Hook | None:
        if not isinstance(base, type):
            return None
        if issubclass(base, Enum):
            return partial(self._member, base)
        if issubclass(base, ItemBase):
            return partial(_instance, base)
        if issubclass(base, tuple) and hasattr(base, "_fields"):
            return partial(self._named_tuple, base)
        if is_model(base):
            return partial(self._model, base)
        if attrs.has(base) or dataclasses.is_dataclass(base):
            return partial(self._record, kind)
        return None

    def _at(self, frame: str, make: Hook, value: Any) -> Any:
        try:
            return make(value)
        except Unfit as error:
            raise error.inside(frame) from error.__cause__

    def _each(self, values: Iterable[Any], kind: Any) -> list[Any]:
        make = partial(self.structure, kind=kind)
        return [self._at(f"[{index}]", make, value) for index, value in enumerate(values)]

    def _tuple(self, kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Unfit(f"is a tuple, not {kind_name(value)}")
        if not kinds or kinds[-1] is Ellipsis:
            return tuple(self._each(value, kinds[0] if kinds else Any))
        kinds = () if kinds == ((),) else kinds
        if len(value) != len(kinds):
            raise Unfit(f"is a tuple of {len(kinds)}, not of {len(value)}")
        return tuple(
            self._at(f"[{index}]", partial(self.structure, kind=kind), part)
            for index, (part, kind) in enumerate(zip(value, kinds, strict=True))
        )

    def _collection(self, base: Any, kind: Any, value: Any) -> Any:
        stored = value.parts if isinstance(value, Bag) and value.kind != "dict" else value
        if not isinstance(stored, list | tuple) or (stored is not value) > (base in _SETS or _CONTAINERS[base] is None):
            raise Unfit(f"is a {base.__name__}, not {kind_name(value)}")
        parts = self._each(stored, kind)
        make = _CONTAINERS[base]
        if make is None:
            make = {"set": set, "frozenset": frozenset}[value.kind] if isinstance(value, Bag) else type(stored)
        return _hashed(make, parts)

    def _mapping(self, key_kind: Any, value_kind: Any, value: Any) -> dict[Any, Any]:
        if isinstance(value, Bag) and value.kind == "dict":
            pairs: Iterable[Any] = value.parts
        elif isinstance(value, Mapping):
            pairs = value.items()
        else:
            raise Unfit(f"is a dict, not {kind_name(value)}")
        made = [
            (
                self._at(f"[{key!r}]", partial(self.structure, kind=key_kind), key),
                self._at(f"[{key!r}]", partial(self.structure, kind=value_kind), part),
            )
            for key, part in pairs
        ]
        found: dict[Any, Any] = _hashed(dict, made)
        return found

    def _union(self, kind: Any, value: Any) -> Any:
        members = sorted(get_args(kind), key=lambda member: not _fits(value, member))
        first: Unfit | None = None
        for member in members:
            try:
                return self.structure(value, member)
            except Unfit as error:
                first = first or error
        if first is not None and _fits(value, members[0]):
            raise first
        raise Unfit(f"is one of {', '.join(map(type_name, get_args(kind)))}, not {_shown(value)}") from first

    def _member(self, kind: type[Enum], value: Any) -> Enum:
        plain = self.untyped(value.value) if isinstance(value, Member) else value
        try:
            return kind(plain)
        except ValueError:
            raise Unfit(f"{plain!r:.60} is no {kind.__qualname__}") from None

    def _named_tuple(self, kind: Any, value: Any) -> Any:
        hints = get_type_hints(kind)
        fields = _fields(kind, value)
        made = {
            name: self._at(f".{name}", partial(self.structure, kind=hints.get(name, Any)), part)
            for name, part in fields.items()
        }
        return _called(kind, made)

    def _model(self, kind: Any, value: Any) -> Any:
        plain = self.untyped(value.fields if isinstance(value, Record) else value)
        try:
            return kind.model_validate(plain, by_name=True)
        except Exception as error:  # noqa: BLE001  # a validator of the user's may raise anything
            raise Unfit(f"does not fit {kind.__qualname__}: {error}") from error

    def _record(self, kind: Any, value: Any) -> Any:
        fields = _fields(kind, value)
        late = init_false(kind)
        make = self._converter().get_structure_hook(kind)
        try:
            made = make({name: part for name, part in fields.items() if name not in late}, kind)
        except Exception as error:  # noqa: BLE001  # a class of the user's may raise anything
            raise _explained(error) from error
        if late & fields.keys():
            hints = get_type_hints(get_origin(kind) or kind)
            for name in late & fields.keys():
                part = self._at(f".{name}", partial(self.structure, kind=hints.get(name, Any)), fields[name])
                object.__setattr__(made, name, part)
        return made

    def _converter(self) -> Converter:
        if self._built is None:
            self._built = self._build()
        return self._built

    def _build(self) -> Converter:
        from cattrs import Converter
        from cattrs.gen import make_dict_structure_fn

        converter = Converter(forbid_extra_keys=True, detailed_validation=True)

        def ours(kind: Any) -> bool:
            return self._hook(kind) is not None

        def factory(kind: Any) -> Callable[[Any, Any], Any]:
            hook = self._hook(kind)
            is_record = isinstance(hook, partial) and hook.func == self._record
            if is_record:
                # Below a class, cattrs asks us again for each of its fields; the class itself is its business.
                return self._nested(make_dict_structure_fn(kind, converter))
            return lambda value, kind: self.structure(value, kind)

        converter.register_structure_hook_factory(ours, factory)
        for scalar in _SCALARS:
            # Looked up by class before all factories, and for subclasses too, such as an Enum of texts.
            converter.register_structure_hook(scalar, lambda value, kind: self.structure(value, kind))
        return converter
