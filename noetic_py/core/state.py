"""The state of a run and its attributes: how a bag of values, or an object of a user's, is copied and restored."""

from __future__ import annotations

import copy
import copyreg
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeAlias, TypeVar, overload

from attrs import frozen
from typing_extensions import TypeIs

from noetic_py.core.types import MAX_NESTING, Share, T
from noetic_py.errors import (
    AmbiguousAttribute,
    ConfigError,
    LimitExceeded,
    NoeticError,
    NoStateField,
    StateTypeError,
)
from noetic_py.redaction import with_article

__all__ = [
    "NO_LAYER_STATES",
    "Attributes",
    "Key",
    "LayerStates",
    "SavedState",
    "StateBag",
    "class_of",
    "copy_state",
    "merge_state",
    "read_only_state",
    "restore_state",
    "share_state",
    "state_fields",
]


D = TypeVar("D")


@frozen
class Key(Generic[T]):
    """Names a value and says its type: `TENANT = Key("tenant", str)`.

    Two keys of one name are one place. A key of another type finds nothing.

    Args:
        name: The name.
        kind: The class of the value.

    Raises:
        ConfigError: The name is not text, or the type is not a class; code `"attribute"`.
    """

    name: str
    kind: type[T]

    def __attrs_post_init__(self) -> None:
        name: object = self.name
        kind: object = self.kind
        if not isinstance(name, str) or not name or not isinstance(kind, type):
            raise ConfigError(
                f"Key({name!r}, {kind!r}) names nothing", code="attribute", hint='Key("tenant", str): a text, a class'
            )


_ABSENT: Final = object()


class Attributes:
    """Values of one run by name, by typed key and by class; shared by all its parts, and never stored.

    ```python
    TENANT = Key("tenant", str)

    result = await harness.run(flow, input, attrs={TENANT: "acme", Limits: Limits(pages=3)})
    ...
    tenant = ctx.attrs[TENANT]  # a str
    limits = ctx.attrs[Limits]  # the Limits, or the one value of a class below it
    ctx.attrs["seen"] = 5
    ```

    A value that was put under a class is found by that class first; otherwise by a class above its own. Of several the
    most special counts, and where there is none it is an error that names them. Threads of sync tools may use it too:
    each operation is one of a dictionary.

    Args:
        given: What it holds at first; a text, a [`Key`][noetic_py.Key] or a class each.

    Raises:
        ConfigError: A key is not valid, or a value is not of its key's class; code `"attribute"`.
    """

    __slots__ = ("_named", "_typed")

    def __init__(self, given: Mapping[Any, object] | None = None) -> None:
        self._named: dict[str, object] = {}
        self._typed: dict[type[object], object] = {}
        for key, value in (given or {}).items():
            self[key] = value

    # -- writing

    @overload
    def __setitem__(self, key: Key[T], value: T) -> None: ...
    @overload
    def __setitem__(self, key: type[T], value: T) -> None: ...
    @overload
    def __setitem__(self, key: str, value: object) -> None: ...
    def __setitem__(self, key: object, value: object) -> None:
        """Put a value in place; `None` is a value."""
        if isinstance(key, type):
            _check(key, value, key.__qualname__)
            self._typed[key] = value
        elif _is_key(key):
            _check(key.kind, value, key.name)
            self._named[key.name] = value
        else:
            self._named[_checked_name(key)] = value

    @overload
    def put(self, key: Key[T], value: T | None) -> None: ...
    @overload
    def put(self, key: type[T], value: T | None) -> None: ...
    @overload
    def put(self, key: str, value: object) -> None: ...
    def put(self, key: Any, value: object) -> None:
        """Put a value in place, or take it away with `None`."""
        if value is not None:
            self[key] = value
        elif isinstance(key, type):
            self._typed.pop(key, None)
        else:
            self._named.pop(key.name if _is_key(key) else _checked_name(key), None)

    @overload
    def __delitem__(self, key: Key[Any]) -> None: ...
    @overload
    def __delitem__(self, key: type[Any]) -> None: ...
    @overload
    def __delitem__(self, key: str) -> None: ...
    def __delitem__(self, key: Any) -> None:
        """Take a value away; one that is not there is no error."""
        self.put(key, None)

    # -- reading

    @overload
    def __getitem__(self, key: Key[T]) -> T: ...
    @overload
    def __getitem__(self, key: type[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> object: ...
    def __getitem__(self, key: object) -> Any:
        """The value.

        Raises:
            KeyError: There is none.
            AmbiguousAttribute: There are several of a class, and none is the most special one.
        """
        found = self._look(key)
        if found is _ABSENT:
            raise KeyError(key.name if _is_key(key) else key)
        return found

    @overload
    def get(self, key: Key[T]) -> T | None: ...
    @overload
    def get(self, key: Key[T], default: D) -> T | D: ...
    @overload
    def get(self, key: type[T]) -> T | None: ...
    @overload
    def get(self, key: type[T], default: D) -> T | D: ...
    @overload
    def get(self, key: str, default: object = ...) -> object: ...
    def get(self, key: object, default: object = None) -> Any:
        """The value, or `default`; so it is too where a named value is not of the key's class.

        Raises:
            AmbiguousAttribute: There are several of a class, and none is the most special one.
        """
        found = self._look(key)
        return default if found is _ABSENT else found

    def __contains__(self, key: object) -> bool:
        return self._look(key) is not _ABSENT

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self._named) + len(self._typed)

    @property
    def mapping(self) -> dict[str, object]:
        """The values that have names, live: what is changed here is changed. Those kept by class are not in it."""
        return self._named

    @property
    def given(self) -> dict[Any, object]:
        """All values by what they are kept under, so that other attributes can be made of them."""
        return {**self._named, **self._typed}

    def copy(self) -> Attributes:
        """A copy of the values, to be changed independently."""
        made = Attributes()
        made._named.update(self._named)
        made._typed.update(self._typed)
        return made

    def _look(self, key: object) -> object:
        if isinstance(key, type):
            return self._of(key)
        if _is_key(key):
            found = self._named.get(key.name, _ABSENT)
            return found if isinstance(found, key.kind) else _ABSENT
        return self._named.get(_checked_name(key), _ABSENT)

    def _of(self, kind: type[object]) -> object:
        """The value of a class: kept under it, or under a class below it."""
        found = self._typed.get(kind, _ABSENT)
        if found is not _ABSENT:
            return found
        if kind is Attributes:
            return self
        below = [each for each in tuple(self._typed) if issubclass(each, kind)]
        special = [each for each in below if all(issubclass(each, other) for other in below)]
        if below and not special:
            names = ", ".join(sorted(each.__qualname__ for each in below))
            raise AmbiguousAttribute(
                f"several attributes are {with_article(kind.__qualname__)}: {names}",
                hint="ask for one of these classes",
            )
        return self._typed.get(special[0], _ABSENT) if special else _ABSENT

    def __repr__(self) -> str:
        # Names only: values may be private.
        return f"Attributes({', '.join([*self._named, *(kind.__qualname__ for kind in self._typed)])})"


def _is_key(key: object) -> TypeIs[Key[Any]]:
    return isinstance(key, Key)


def _checked_name(key: object) -> str:
    if not isinstance(key, str):
        raise ConfigError(
            f"{key!r:.60} is not a valid key of an attribute; expected a text, a Key or a class",
            code="attribute",
            hint="a text, a Key or a class",
        )
    return key


def _check(kind: type[object], value: object, name: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(
            f"attribute {name} is {with_article(type(value).__qualname__)}, not {with_article(kind.__qualname__)}",
            code="attribute",
            hint="put a value of the key's class there",
        )


_ATOMS = (str, int, float, bool, bytes, type(None), Decimal, complex, type)
_FLAT = frozenset({str, int, float, bool, bytes, type(None), complex})
_NOTHING: Any = object()
# The function that `object.__reduce_ex__` names for an object that needs nothing but its class.
_NEW: Any = object().__reduce_ex__(4)[0]


class StateBag(MutableMapping[str, object]):
    """State by key, a mutable mapping: the default where a flow declares no state type of its own.

    Attributes:
        reducers: In a subclass: by key how two values that were written side by side become one, as
            `reducers = {"hits": reducers.sum}`; see `noetic_py.core.reducers`.
    """

    __slots__ = ("_data",)

    reducers: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init__(self, values: Mapping[str, object] | None = None, /) -> None:
        self._data: dict[str, object] = dict(values or {})

    if not TYPE_CHECKING:
        # Type checkers refuse what these two say at run time.

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_field(name)

        def __setattr__(self, name: str, value: object) -> None:
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                raise _no_field(name) from None

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._data[key] = value

    def __delitem__(self, key: str) -> None:
        del self._data[key]

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def popitem(self) -> tuple[str, Any]:
        """Remove what was added last, as a dict does."""
        return self._data.popitem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateBag) and self._data == other._data

    def __or__(self, other: Mapping[str, object]) -> StateBag:
        """A bag of its own with the values of both; those of the second where both have a key."""
        if not isinstance(other, Mapping):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Mapping[str, object]) -> StateBag:
        """The same, where the first is another mapping."""
        if not isinstance(other, Mapping):
            return NotImplemented
        made: StateBag = class_of(self)(other)
        made.update(self._data)
        return made

    def __ior__(self, other: Mapping[str, object] | Iterable[tuple[str, object]]) -> Self:
        """Add values, as `update` does."""
        self.update(other)
        return self

    def copy(self) -> StateBag:
        """A bag of its own with the same values."""
        made: StateBag = class_of(self)(self._data)
        return made

    __copy__ = copy

    def __repr__(self) -> str:
        return f"StateBag({self._data!r})"

    def get_as(self, key: str, type: type[T]) -> T | None:
        """The value of a key as a type; `None` when the key is missing.

        Raises:
            StateTypeError: The value is of another type.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, type):
            raise StateTypeError(f"state {key!r} is {value.__class__.__name__}, not {type.__name__}")
        return value

    def put(self, key: str, value: object) -> Self:
        """Store a value; `None` removes the key, which `state[key] = None` does not."""
        if value is None:
            self._data.pop(key, None)
        else:
            self._data[key] = value
        return self

    def view(self) -> Mapping[str, object]:
        """A live read-only view."""
        return MappingProxyType(self._data)


def _no_field(name: str) -> AttributeError:
    if name.startswith("__"):
        # Attributes that Python itself asks for: copying, pickling, printing.
        return AttributeError(name)
    return NoStateField(
        f"the state is a StateBag, the default, which has no field {name!r}",
        hint=f"give the flow's own state: harness.run(step, input, state=...); or use a key: ctx.state[{name!r}]",
    )


LayerStates: TypeAlias = Mapping[str, Any]
"""The states of layers by the layer's id; replaced when one changes, and never changed in place."""
NO_LAYER_STATES: LayerStates = MappingProxyType({})
_BY_KEY: frozenset[object] = frozenset({dict, StateBag})
_CONTAINERS: frozenset[object] = frozenset({list, dict, set})


def copy_state(state: T) -> T:
    """A deep copy of a state object.

    Raises:
        ConfigError: It holds something that cannot be copied; code `"state-copy"`.
        LimitExceeded: It is nested too deep.
    """
    # `isinstance` would narrow the type for what follows.
    if issubclass(class_of(state), _ATOMS):
        return state
    try:
        copied: T | None = _copy_flat(state, {})
        return copy.deepcopy(state) if copied is None else copied
    except Exception as error:
        raise _not_copied(state, error) from error


def _not_copied(state: object, error: Exception) -> NoeticError:
    if isinstance(error, RecursionError):
        return LimitExceeded("nesting", MAX_NESTING, hint="nest the state less deeply")
    return ConfigError(
        f"state of type {type(state).__name__} cannot be copied: {error}",
        code="state-copy",
        hint="keep plain data in the state; pass clients and locks as services=",
    )


def share_state(state: T, how: Share) -> T:
    """The state object for another context: itself, a copy that shares its values, a deep copy, or a new one.

    Raises:
        ConfigError: It cannot be copied, code `"state-copy"`; or a new one cannot be made of its class alone, code
            `"state-new"`.
    """
    if how == "share":
        return state
    if how == "copy":
        return copy.copy(state)
    if how == "deepcopy":
        return copy_state(state)
    kind = class_of(state)
    try:
        made: T = kind()
    except TypeError as error:
        raise ConfigError(
            f"a new {kind.__name__} cannot be made: {error}", code="state-new", hint="give its fields defaults"
        ) from error
    return made


def _copy_flat(state: Any, originals: dict[int, object]) -> Any:
    """A deep copy of a state of values that cannot change, and of lists, dicts and sets of such; `None` for all others.

    It is made the way `deepcopy` would make it, without the walk: a class that has its own way is left to `deepcopy`.

    Args:
        state: The state, as most are.
        originals: Gets the parts that were copied, by the ids of their copies.
    """
    kind = class_of(state)
    by_key = kind in _BY_KEY
    contents = state_fields(state) if by_key else _plain_contents(state, kind)
    if contents is None or (by_key and not _FLAT.issuperset(map(type, contents))):
        return None
    copied = _copy_contents(contents, originals)
    if copied is None:
        return None
    made: Any = kind(copied) if by_key else _refilled(_NEW(kind), copied)
    if originals:
        originals[id(made)] = state
        if kind is StateBag:
            originals[id(made._data)] = state._data
    return made


def _copy_contents(contents: dict[str, object], originals: dict[int, object]) -> dict[str, object] | None:
    if _FLAT.issuperset(map(type, contents.values())):
        return contents
    made = dict(contents)
    copies: dict[int, object] = {}
    for name, value in contents.items():
        if value.__class__ in _FLAT:
            continue
        if id(value) not in copies:
            copied = _copy_container(value)
            if copied is None:
                return None
            copies[id(value)] = copied
            originals[id(copied)] = value
        made[name] = copies[id(value)]
    return made


def _copy_container(value: Any) -> Any:
    kind = class_of(value)
    if kind not in _CONTAINERS or not _FLAT.issuperset(map(type, value)):
        return None
    if kind is dict and not _FLAT.issuperset(map(type, value.values())):
        return None
    return value.copy()


def _refilled(made: Any, contents: dict[str, object]) -> object:
    if hasattr(made, "__setstate__"):
        made.__setstate__(contents)
    else:
        made.__dict__.update(contents)
    return made


def _plain_contents(state: object, kind: Any) -> dict[str, object] | None:
    """The data that restore an object of its class; `None` where the class restores it itself."""
    if hasattr(kind, "__deepcopy__") or kind in copyreg.dispatch_table:
        return None
    reduced: Any = state.__reduce_ex__(4)
    if reduced[:2] != (_NEW, (kind,)) or reduced[3:] != (None, None):
        return None
    contents: Any = reduced[2]
    return contents if contents.__class__ is dict else None


def class_of(value: object) -> Any:
    """The class of an object of which nothing is known."""
    return type(value)


@lru_cache(256)
def _slots_of(cls: Any) -> tuple[str, ...]:
    return tuple(_find_slots(cls))


def _find_slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__weakref__", "__dict__"):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


class SavedState:
    """A copy of a state that knows of which object each of its parts is the copy: bodies hold on to these too."""

    __slots__ = ("_originals", "copied")

    def __init__(self, state: object) -> None:
        self._originals: dict[int, object] = {}
        memo: dict[int, Any] = {}
        try:
            self.copied = state if isinstance(state, _ATOMS) else _copy_flat(state, self._originals)
            if self.copied is None and state is not None:
                self._originals.clear()
                self.copied = copy.deepcopy(state, memo)
        except Exception as error:
            raise _not_copied(state, error) from error
        # `deepcopy` keeps what it has copied alive there.
        kept: Any = memo.get(id(memo), ())
        for each in kept:
            self._originals[id(memo.get(id(each)))] = each

    def restore(self, target: object) -> None:
        """Give a state, and each object that was a part of it, the contents that they had."""
        if self._originals and self._originals.get(id(self.copied)) is target and _is_filled(target):
            try:
                self._back(self.copied, {})
            except RecursionError:
                # This takes more calls for each level than copying does. A state that deep is restored as a copy.
                pass
            else:
                return
        restore_state(target, copy_state(self.copied))

    def _back(self, part: object, done: dict[int, object]) -> object:
        """The object that a part is the copy of, as it was; where that cannot be filled, another copy."""
        if part.__class__ in _FLAT:
            return part
        if id(part) in done:
            return done[id(part)]
        original = self._originals.get(id(part), _NOTHING)
        if class_of(original) is not class_of(part) or not _is_filled(original):
            made = done[id(part)] = copy.deepcopy(part)
            return made
        done[id(part)] = original
        self._fill(original, part, done)
        return original

    def _fill(self, original: Any, part: Any, done: dict[int, object]) -> None:
        kind = class_of(part)
        if issubclass(kind, dict):
            entries = [(self._back(key, done), self._back(value, done)) for key, value in part.items()]
            original.clear()
            for key, value in entries:
                # `update` of a `Counter` would add.
                original[key] = value
        elif issubclass(kind, (tuple, frozenset)):
            for each in part:
                self._back(each, done)
        elif issubclass(kind, _FILLED):
            parts = [self._back(each, done) for each in part]
            original.clear()
            original.update(parts) if issubclass(kind, set) else original.extend(parts)
        for name in _slots_of(class_of(part)):
            if hasattr(part, name):
                object.__setattr__(original, name, self._back(getattr(part, name), done))
            elif hasattr(original, name):
                object.__delattr__(original, name)
        own = getattr(part, "__dict__", None)
        if own is not None:
            fields = {name: self._back(value, done) for name, value in own.items()}
            original.__dict__.clear()
            original.__dict__.update(fields)


_FILLED = (list, set, deque, bytearray)


def _is_filled(value: object) -> bool:
    """Whether an object can be given other contents: what makes and copies itself in its own way cannot."""
    kind = class_of(value)
    own = isinstance(value, (*_FILLED, dict, tuple, frozenset))
    return own or (kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__)


def restore_state(target: Any, saved: Any) -> None:
    """Give a state object the contents of an earlier copy, keeping its identity, which bodies hold on to.

    Of a `SavedState` all parts keep theirs.
    """
    if isinstance(saved, SavedState):
        saved.restore(target)
        return
    kind = class_of(target)
    if issubclass(kind, (MutableMapping, set)):
        target.clear()
        target.update(saved)
    elif issubclass(kind, MutableSequence):
        target.clear()
        target.extend(saved)
    elif not issubclass(kind, (*_ATOMS, tuple, frozenset)):
        for name in _slots_of(kind):
            if hasattr(saved, name):
                object.__setattr__(target, name, getattr(saved, name))
            elif hasattr(target, name):
                object.__delattr__(target, name)
        if hasattr(target, "__dict__"):
            target.__dict__.clear()
            target.__dict__.update(saved.__dict__)


def state_fields(state: Any) -> dict[str, Any]:
    """A state object's contents by name."""
    if isinstance(state, StateBag):
        return dict(state.view())
    kind = class_of(state)
    if issubclass(kind, dict):
        return dict(state)
    fields: dict[str, Any] = {}
    for name in _slots_of(kind):
        value = getattr(state, name, _NOTHING)
        if value is not _NOTHING:
            fields[name] = value
    fields.update(getattr(state, "__dict__", ()))
    return fields


def merge_state(state: object, changes: Mapping[str, object]) -> None:
    """Set values of a state object by name, and leave all others as they are.

    Raises:
        ConfigError: It has no value of one of the names, and takes no new ones; code `"state-field"`.
    """
    if isinstance(state, (StateBag, MutableMapping)):
        for name, value in changes.items():
            state[name] = value
        return
    fields = state_fields(state)
    for name in changes:
        if name not in fields:
            raise ConfigError(
                f"state of type {type(state).__name__} has no {name!r}",
                code="state-field",
                hint=f"it has {', '.join(fields) or 'no fields'}",
            )
    for name, value in changes.items():
        setattr(state, name, value)


def check_same(holder: Any, state: object) -> None:
    """Refuse another state for a context, which only `ctx.state |= ...` assigns: the object that it has.

    Raises:
        AttributeError: It is another object.
    """
    if state is not holder.state:
        raise AttributeError("the state of a context cannot be replaced; change it in place: ctx.state.update(...)")


def read_only_state(state: Any) -> Any:
    """A state object to be read: live, and what would change it raises `TypeError`.

    It shows values as they are, so what they hold can still be changed; lists and sets are shown as copies.
    """
    if isinstance(state, StateBag):
        return _ReadBag(state)
    kind = class_of(state)
    if issubclass(kind, MutableMapping):
        return MappingProxyType(state)
    if issubclass(kind, MutableSequence):
        return tuple(state)
    if issubclass(kind, MutableSet):
        return frozenset(state)
    return state if issubclass(kind, (*_ATOMS, tuple, frozenset, Mapping, Enum)) else _ShownObject(state)


def _refuse(*_: object) -> NoReturn:
    raise TypeError("this state is read-only here; only the body of a step may change it")


class _ReadBag(StateBag):
    """A bag that shows what another one holds."""

    __slots__ = ()

    def __init__(self, shown: StateBag) -> None:
        self._data = shown._data

    def __reduce__(self) -> Any:
        # A copy is a bag of its own.
        return StateBag, (self._data,)

    def copy(self) -> StateBag:
        return StateBag(self._data)

    __copy__ = copy

    def __ror__(self, other: Mapping[str, object]) -> StateBag:
        return other | self.copy()

    def __ior__(self, other: object) -> NoReturn:
        _refuse()

    def __setitem__(self, key: str, value: object) -> NoReturn:
        _refuse()

    def __delitem__(self, key: str) -> NoReturn:
        _refuse()

    def put(self, key: str, value: object) -> NoReturn:
        _refuse()

    def pop(self, key: str, default: object = None) -> NoReturn:
        _refuse()

    def popitem(self) -> NoReturn:
        _refuse()


class _ShownObject:
    """Shows any other object: with its class, its fields and its methods, which cannot set a field either."""

    __slots__ = ("_shown",)

    def __init__(self, shown: object) -> None:
        object.__setattr__(self, "_shown", shown)

    def __getattribute__(self, name: str) -> object:
        shown = object.__getattribute__(self, "_shown")
        found = getattr(shown, name)
        # Requests of Python itself, such as a copy, go to the object that is shown.
        if isinstance(found, MethodType) and found.__self__ is shown and not name.startswith("__"):
            return MethodType(found.__func__, self)
        return found

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = _refuse


# Special methods, which Python looks up on the class and not on the object.
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "repr": repr,
    "str": str,
    "hash": hash,
    "bool": bool,
    "len": len,
    "iter": iter,
    "contains": operator.contains,
    "getitem": operator.getitem,
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _shown_by(function: Callable[..., object]) -> Callable[..., object]:
    def of(self: _ShownObject, *arguments: object) -> object:
        return function(object.__getattribute__(self, "_shown"), *arguments)

    return of


for _name, _function in _OPERATORS.items():
    setattr(_ShownObject, f"__{_name}__", _shown_by(_function))
