"""JSON text under rules, and from decoded JSON to the classes that a type asks for.

Strict where `str(value)` would do: a number is not text, and text is not a list. Where JSON has no form of its own, a
native value and its JSON form are both accepted, so one converter serves stored values and payloads from the wire.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
import re
import types
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    ForwardRef,
    Literal,
    NewType,
    NoReturn,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import attrs
from typing_extensions import is_typeddict

from noetic_py.core.items import ItemBase, JsonValue
from noetic_py.core.secrets import Secret, is_secret
from noetic_py.core.types import MAX_NESTING
from noetic_py.core.values import is_array, is_dict, is_list, is_mapping
from noetic_py.errors import CodecError, LimitExceeded, NoeticError
from noetic_py.redaction import with_article

if TYPE_CHECKING:
    from cattrs import Converter


MAX_KEYS: Final = 250_000
"""How many keys one object of JSON may have."""

DIGEST_BYTES: Final = 8

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_OBJECTS: Final = frozenset({dict})
_NESTED: Final = frozenset({dict, list})


class Unfit(Exception):
    """A value that has no place; the path to it grows on the way out."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where: str = ""

    def inside(self, frame: str) -> Unfit:
        """Put the name of what holds the value in front of the path."""
        self.where = f"{frame}{self.where}"
        return self


def inside(error: CodecError, where: str) -> CodecError:
    """The same error, with the name of what holds the value in front of the path to it."""
    below = error.where
    joined = where + (below if not below or below.startswith(("[", ".")) else f".{below}")
    return CodecError(error.message.removeprefix(f"{below}: "), where=joined, path=error.path, hint=error.hint)


def _refuse_number(text: str) -> NoReturn:
    raise CodecError(f"{text[:40]} is not a valid number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise CodecError(f"the key {twice!r:.80} stands twice in one object")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_number, parse_float=_finite)
# No circular check: what is written has been walked to a bounded depth, or fails by recursion, which is caught.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode


def _in_c() -> Callable[[object, int], Iterable[str]] | None:
    """The part of the encoder that is written in C, where there is one: made once, and not again for every text."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    text: object = getattr(json.encoder, "c_encode_basestring", None)
    if make is None or text is None:
        return None
    # No markers, for no circular check; no indent; neither keys in order nor keys left out; no NaN.
    made: Callable[[Any, int], Iterable[str]] = make(None, _encoder.default, text, None, ":", ",", False, False, False)
    return made


_encode_parts = _in_c()


def _encode_text(value: object) -> str:
    return _encoder.encode(value) if _encode_parts is None else "".join(_encode_parts(value, 0))


def dump(value: object, texts: dict[int, str] | None = None) -> bytes:
    """Compact JSON in UTF-8.

    Args:
        value: Dicts, lists and what JSON has besides.
        texts: The texts of parts of a dict or a list by their ids, of objects that are still there; those of this value
            take their place.
    """
    try:
        return (_encode_text(value) if texts is None else _joined_text(value, texts)).encode()
    except UnicodeEncodeError:
        return _dump_surrogates(value)
    except RecursionError:
        raise LimitExceeded("nesting", MAX_NESTING) from None
    except (ValueError, TypeError) as error:
        raise CodecError(f"not to be written as JSON: {error}") from None


def _joined_text(value: object, texts: dict[int, str]) -> str:
    """The text of a dict or a list, of which only the parts are encoded whose text is not known."""
    parts: Iterable[Any] = value.values() if is_dict(value) else value if is_list(value) else ()
    known = {id(part): texts.get(id(part)) or _encode_text(part) for part in parts}
    texts.clear()
    texts.update(known)
    if is_dict(value):
        key = json.encoder.encode_basestring
        return f"{{{','.join([f'{key(name)}:{known[id(part)]}' for name, part in value.items()])}}}"
    return f"[{','.join([known[id(part)] for part in parts])}]" if is_list(value) else _encode_text(value)


def digest_of(data: bytes) -> str:
    """A short digest of stored bytes; 64 bits, to notice a difference, not an attack."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _dump_surrogates(value: object) -> bytes:
    # A lone surrogate has no UTF-8, but JSON can escape it. Two in a row would come back as one character.
    text = _encode_ascii(value)
    if _decoder.decode(text) != value:
        raise CodecError("a text holds a pair of surrogates that would come back as another text")
    return text.encode()


def parse(data: bytes | str, limit: int, what: str, *, nesting: int = MAX_NESTING) -> Any:
    """The values of a JSON text no longer than `limit`, nested no deeper; `what` names the limit in the error."""
    if len(data) > limit:
        raise LimitExceeded(what, limit)
    try:
        text = data.decode() if isinstance(data, bytes) else data
        if text.count(":") > MAX_KEYS:
            _check_keys(text)
        value = _decoder.decode(text)
    except UnicodeDecodeError as error:
        raise CodecError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise LimitExceeded("nesting", MAX_NESTING) from None
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from None
    if text.count("{") + text.count("[") > nesting:
        check_nesting(value, nesting)
    return value


# A text, with the colon behind it if it is a key, or what opens or ends an object. A text that does not end goes on to
# the end of everything, and nothing is tried twice.
_KEYS_AND_BRACES: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"(?P<key>[ \t\n\r]*+:)?+)?+|[{}]', re.DOTALL)


def _check_keys(text: str) -> None:
    """Raise `LimitExceeded` for an object with too many keys, before anything is made of it."""
    open_objects = [0]
    for found in _KEYS_AND_BRACES.finditer(text):
        if found["key"] is not None:
            open_objects[-1] += 1
            if open_objects[-1] > MAX_KEYS:
                raise LimitExceeded("keys of an object", MAX_KEYS)
        elif found[0] == "{":
            open_objects.append(0)
        elif found[0] == "}" and len(open_objects) > 1:
            open_objects.pop()


def check_nesting(value: object, nesting: int = MAX_NESTING) -> None:
    """Raise `LimitExceeded` for lists and mappings nested deeper than `MAX_NESTING`, or with more than `MAX_KEYS`."""
    level: list[Any] = [value] if is_mapping(value) or is_array(value) else []
    for _ in range(nesting):
        if not level:
            return
        if [node for node in level if len(node) > MAX_KEYS and is_mapping(node)]:
            raise LimitExceeded("keys of an object", MAX_KEYS)
        # By identity, so that a value that holds itself several times does not multiply. Known classes come first: to
        # ask whether something is a mapping takes longer.
        below = {
            id(part): part
            for node in level
            for part in (node.values() if type(node) in _OBJECTS or is_mapping(node) else node)
            if type(part) not in _ATOMS and (type(part) in _NESTED or is_mapping(part) or is_array(part))
        }
        level = list(below.values())
    if level:
        raise LimitExceeded("nesting", nesting)


def kind_name(value: object) -> str:
    """The description of a value in a message."""
    return "null" if value is None else type(value).__name__


@attrs.frozen
class StoredInstance:
    """A stored instance whose class is not known yet."""

    name: str
    fields: object


@attrs.frozen
class Member:
    """A stored member of an enumeration that is not known yet."""

    name: str
    value: Any


@attrs.frozen
class Failure:
    """A stored error of the library."""

    name: str
    message: str
    path: tuple[str, ...]
    hint: str | None
    fields: dict[str, object]
    first: object


@attrs.frozen
class Bag:
    """A stored set or dict whose members may have to become hashable first."""

    kind: Literal["set", "frozenset", "dict"]
    parts: list[Any]


Hook = Callable[[Any], Any]

_SCALARS: Final[dict[object, tuple[type | tuple[type, ...], Callable[[str], Any] | None]]] = {
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
    Path: (Path, Path),
}

# The classes that a container type's values are made of; None keeps what was stored, for abstract types.
_CONTAINERS: Final[dict[object, Callable[[Iterable[object]], object] | None]] = {
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
_OPEN: Final = (collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def type_name(kind: Any) -> str:
    """A type the way its author writes it."""
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model, found out without loading pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_core_schema__") and hasattr(kind, "model_validate")


def is_named_tuple(kind: object) -> bool:
    """Whether a class is a named tuple."""
    return hasattr(kind, "_fields") and tuple in getattr(kind, "__mro__", ())


def _init_false(kind: Any) -> frozenset[str]:
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
        self.registry: Mapping[str, type] = {} if registry is None else registry
        self._hooks: dict[object, Hook | None] = {}
        # By class, with the fields that its constructor does not take.
        self._makers: dict[Any, tuple[Callable[[Mapping[str, Any], Any], Any], frozenset[str]]] = {}
        self._built: Converter | None = None

    def structure(self, value: object, kind: Any) -> object:
        """The value as an instance of `kind`.

        Raises:
            Unfit: It is not valid.
        """
        try:
            hook = self._hooks.get(kind)
        except TypeError:
            # An annotation inside of it cannot be hashed.
            hook = None
        if hook is None:
            kind = _bare(kind)
            hook = self._hook(kind)
        if hook is not None:
            return hook(value)
        try:
            return self._converter().structure(value, kind)
        except Exception as error:  # a class of the user's may raise anything
            raise _explained(error) from error

    def untyped(self, value: object) -> object:
        """The value with its own classes, as far as they are registered."""
        if isinstance(value, StoredInstance | Member):
            known = self.registry.get(value.name)
            if known is None:
                raise Unfit(
                    f"holds {with_article(value.name[:80])}, and no such class is registered",
                    hint="declare the type where the value is read, or register the class with the codec",
                )
            return self.structure(value, known)
        if is_array(value):
            made = [self._at(f"[{index}]", self.untyped, part) for index, part in enumerate(value)]
            return made if is_list(value) else tuple(made)
        if is_dict(value):
            return {key: self._at(f"[{key!r}]", self.untyped, part) for key, part in value.items()}
        if isinstance(value, Bag):
            parts = [self.untyped(part) for part in value.parts]
            return _gather(value.kind, parts)
        if isinstance(value, Failure):
            from noetic_py.core.codec.stored import make_failure

            return make_failure(value, self.untyped)
        return value

    # ------------------------------------------------------------------------------------------------ hooks

    def _hook(self, kind: object) -> Hook | None:
        """The function that structures a `kind`; `None` leaves it to cattrs."""
        try:
            if kind not in self._hooks:
                self._hooks[kind] = self._find(kind)
            return self._hooks[kind]
        except TypeError:
            # An annotation inside of it cannot be hashed, so it cannot be remembered.
            return self._find(kind)

    def _find(self, kind: object) -> Hook | None:
        if _is_open(kind):
            return self.untyped
        if kind is None or (_is_class(kind) and kind in _SCALARS):
            return partial(_scalar, type(None) if kind is None else kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return partial(self._union, kind)
        base = origin or kind
        if base is tuple:
            return partial(self._tuple, arguments)
        if base in _CONTAINERS:
            return partial(self._collection, base, *(arguments or (Any,)))
        if base in _MAPPINGS:
            return partial(self._mapping, *(arguments or (Any, Any)))
        return self._find_class(kind, base)

    def _find_class(self, kind: object, base: Any) -> Hook | None:
        if not _is_class(base):
            return None
        if base is Secret:
            return partial(self._secret, (get_args(kind) or (str,))[0])
        if issubclass(base, Enum):
            return partial(self._member, base)
        if issubclass(base, ItemBase):
            return partial(_instance, base)
        if issubclass(base, NoeticError):
            return partial(self._failure, base)
        if is_named_tuple(base):
            return partial(self._named_tuple, base)
        if is_typeddict(base):
            return partial(self._typed_dict, base)
        if is_model(base):
            return partial(self._model, base)
        if attrs.has(base) or dataclasses.is_dataclass(base):
            return partial(self.record, kind)
        return None

    def _secret(self, kind: object, value: object) -> Secret[object]:
        return value if is_secret(value) else Secret(self.structure(value, kind))

    def _own(self, kind: Any, value: object) -> object:
        """The class that a stored instance is of: the declared one, or a registered one below it."""
        base = get_origin(kind) or kind
        if not isinstance(value, StoredInstance) or value.name == base.__name__:
            return kind
        known = self.registry.get(value.name)
        if known is None or not issubclass(known, base):
            # Made of the declared class it would be another value, and say nothing of it.
            raise Unfit(f"is {with_article(type_name(kind))}, not {_shown(value)}")
        return known

    def _at(self, frame: str, make: Hook, value: object) -> Any:
        try:
            return make(value)
        except Unfit as error:
            raise error.inside(frame) from error.__cause__

    def _each(self, values: Iterable[object], kind: object) -> list[object]:
        make = partial(self.structure, kind=kind)
        return [self._at(f"[{index}]", make, value) for index, value in enumerate(values)]

    def _tuple(self, kinds: tuple[object, ...], value: object) -> tuple[object, ...]:
        if not is_array(value):
            raise Unfit(f"is a tuple, not {_shown(value)}")
        if not kinds or kinds[-1] is Ellipsis:
            return tuple(self._each(value, kinds[0] if kinds else Any))
        kinds = () if kinds == ((),) else kinds
        if len(value) != len(kinds):
            raise Unfit(f"is a tuple of {len(kinds)}, not of {len(value)}")
        return tuple(
            self._at(f"[{index}]", partial(self.structure, kind=kind), part)
            for index, (part, kind) in enumerate(zip(value, kinds, strict=True))
        )

    def _collection(self, base: Any, kind: object, value: object) -> object:
        make = _CONTAINERS[base]
        if isinstance(value, Bag) and value.kind != "dict" and (base in _SETS or base in _OPEN):
            parts = self._each(value.parts, kind)
            return _hashed(make, parts) if make else _gather(value.kind, parts)
        # A stored set is not a list, but what came over the wire as a list may become a set.
        if not is_array(value):
            raise Unfit(f"is {with_article(base.__name__)}, not {_shown(value)}")
        parts = self._each(value, kind)
        if make is None:
            return parts if is_list(value) else tuple(parts)
        return _hashed(make, parts)

    def _mapping(self, key_kind: Any, value_kind: object, value: object) -> dict[object, object]:
        key_of, value_of = partial(self.structure, kind=key_kind), partial(self.structure, kind=value_kind)
        if isinstance(value, Bag) and value.kind == "dict":
            pairs: Iterable[Any] = value.parts
        elif is_mapping(value):
            pairs = value.items()
        else:
            raise Unfit(f"is a dict, not {_shown(value)}")
        made = [
            (
                key if key_kind is str and type(key) is str else self._at(f"[{key!r}]", key_of, key),
                self._at(f"[{key!r}]", value_of, part),
            )
            for key, part in pairs
        ]
        found: dict[object, object] = _hashed(dict, made)
        return found

    def _union(self, kind: object, value: object) -> object:
        members = [member for member in get_args(kind) if member is not type(None) or value is None]
        if len(members) == 1:
            return self.structure(value, members[0])
        members.sort(key=lambda member: not _fits(value, member))
        causes: list[Unfit] = []
        for member in members:
            try:
                return self.structure(value, member)
            except Unfit as error:
                causes.append(error)
        if _fits(value, members[0]):
            raise causes[0]
        raise Unfit(f"is one of {', '.join(map(type_name, get_args(kind)))}, not {_shown(value)}") from causes[0]

    def _failure(self, kind: type[NoeticError], value: object) -> object:
        return _instance(kind, self.untyped(value) if isinstance(value, Failure) else value)

    def _member(self, kind: type[Enum], value: object) -> Enum:
        plain = self.untyped(value.value) if isinstance(value, Member) else value
        try:
            return kind(plain)
        except ValueError:
            raise Unfit(f"{plain!r:.60} is not a valid {kind.__qualname__}") from None

    def _named_tuple(self, kind: Any, value: object) -> object:
        kind = self._own(kind, value)
        hints = get_type_hints(kind)
        fields = _fields(kind, value)
        made = {
            name: self._at(f".{name}", partial(self.structure, kind=hints.get(name, Any)), part)
            for name, part in fields.items()
        }
        try:
            return kind(**made)
        except TypeError as error:
            raise Unfit(str(error)) from error

    def _typed_dict(self, kind: Any, value: object) -> dict[str, object]:
        fields = _fields(kind, value)
        # Where annotations are texts, the class itself does not know which of its keys are required.
        hints = get_type_hints(kind, include_extras=True)
        made: dict[str, object] = {}
        for key, hint in hints.items():
            if key in fields:
                plain = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
                made[key] = self._at(f".{key}", partial(self.structure, kind=plain), fields[key])
            elif key in kind.__required_keys__ and get_origin(hint) is not NotRequired:
                raise Unfit("is missing").inside(f".{key}")
        if unknown := fields.keys() - hints.keys():
            raise Unfit(f"has no field {', '.join(sorted(unknown))}")
        return made

    def _model(self, kind: Any, value: object) -> object:
        kind = self._own(kind, value)
        plain = self.untyped(value.fields if isinstance(value, StoredInstance) else value)
        try:
            return kind.model_validate(plain, by_name=True)
        except Exception as error:  # a validator of the user's may raise anything
            raise Unfit(f"does not fit {kind.__qualname__}: {error}") from error

    def record(self, kind: object, value: object) -> Any:
        """An instance of an attrs class or a dataclass, made of its fields.

        Raises:
            Unfit: A field is missing, unknown or does not fit, or the class refuses its values.
        """
        kind = self._own(kind, value)
        fields = _fields(kind, value)
        try:
            known = self._makers.get(kind)
            if known is None:
                known = self._makers[kind] = (self._maker(kind), _init_false(kind))
            make, late = known
            made = make({name: part for name, part in fields.items() if name not in late} if late else fields, kind)
        except Exception as error:  # a class of the user's may raise anything
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

        def ours(kind: object) -> bool:
            return self._hook(_bare(kind)) is not None

        def factory(_: object) -> Callable[[Any, Any], Any]:
            return self.structure

        converter = Converter(forbid_extra_keys=True, detailed_validation=True)
        converter.register_structure_hook_factory(ours, factory)
        for scalar in _SCALARS:
            # Looked up by class before all factories, and for subclasses too, such as an Enum of texts.
            converter.register_structure_hook(scalar, self.structure)
        return converter

    def _maker(self, kind: Any) -> Callable[[Mapping[str, Any], Any], Any]:
        from cattrs.gen import make_dict_structure_fn

        base = get_origin(kind) or kind
        if open_ends := getattr(kind, "__parameters__", ()):
            # A generic class without its arguments.
            kind = base[tuple([Any] * len(open_ends))]
        if attrs.has(base) and any(isinstance(field.type, str) for field in attrs.fields(base)):
            attrs.resolve_types(base)
        return make_dict_structure_fn(kind, self._converter())


def _is_class(kind: object) -> bool:
    return isinstance(kind, type)


def _is_open(kind: object) -> bool:
    # A variable that nothing fills, or the inside of a recursive alias.
    return kind is Any or kind is object or kind is JsonValue or isinstance(kind, TypeVar | ForwardRef | str)


def _scalar(kind: object, value: object) -> object:
    native, parse = _SCALARS[kind]
    # A bool is an int to Python, and a datetime a date.
    strange = isinstance(value, bool) != (kind is bool) or (kind is date and isinstance(value, datetime))
    if isinstance(value, native) and not strange:
        return value
    if parse is not None and isinstance(value, str):
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise Unfit(f"{value!r:.60} is not a valid {type_name(kind)}") from None
    raise Unfit(f"is {with_article(type_name(kind))}, not {_shown(value)}")


def _instance(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    raise Unfit(f"is {with_article(type_name(kind))}, not {_shown(value)}")


def _fields(kind: object, value: object) -> dict[str, object]:
    fields = value.fields if isinstance(value, StoredInstance) else value
    if is_dict(fields):
        return fields
    raise Unfit(f"is {with_article(type_name(kind))}, not {_shown(value)}")


def _hashed(make: Callable[[Iterable[Any]], object], parts: list[Any]) -> Any:
    try:
        return make(parts)
    except TypeError as error:
        raise Unfit(f"holds something that cannot be hashed: {error}") from error


def _gather(kind: Literal["set", "frozenset", "dict"], parts: list[object]) -> object:
    makers: dict[str, Callable[[Iterable[Any]], Any]] = {"set": set, "frozenset": frozenset, "dict": dict}
    return _hashed(makers[kind], parts)


def _bare(kind: object) -> object:
    """A type without its annotations, which need not be hashable, and its new name."""
    while get_origin(kind) is Annotated or isinstance(kind, NewType):
        kind = kind.__supertype__ if isinstance(kind, NewType) else get_args(kind)[0]
    return kind


def _fits(value: object, kind: object) -> bool:
    """Whether a value was stored from this member of a union, as far as its own class shows."""
    kind = _bare(kind)
    base = get_origin(kind) or kind
    if base is Literal:
        return any(type(choice) is type(value) and choice == value for choice in get_args(kind))
    if isinstance(value, StoredInstance | Member | Failure):
        return isinstance(base, type) and base.__name__ == value.name
    if isinstance(value, Bag):
        return isinstance(base, type) and base.__name__ == value.kind
    return type(value) is base


def _shown(value: object) -> str:
    if isinstance(value, Bag):
        return value.kind
    return value.name[:80] if isinstance(value, StoredInstance | Member | Failure) else kind_name(value)


def _explained(error: BaseException) -> Unfit:
    """The first cause of what cattrs or a constructor raised, with the path to it."""
    where = ""
    cause: Any = error
    while True:
        for note in getattr(cause, "__notes__", ()):
            where += f".{note.name}" if hasattr(note, "name") else ""
        within: Any = getattr(cause, "exceptions", None)
        if not within:
            break
        cause = within[0]
    if isinstance(cause, Unfit):
        # A new one: cattrs has hung its notes on the old one, and would count them again further out.
        return Unfit(cause.message, hint=cause.hint).inside(cause.where).inside(where)
    if isinstance(cause, KeyError):
        return Unfit("is missing").inside(where)
    if hasattr(cause, "extra_fields"):
        return Unfit(f"has no field {', '.join(sorted(cause.extra_fields))}").inside(where)
    return Unfit(f"{type(cause).__name__}: {cause}").inside(where)
