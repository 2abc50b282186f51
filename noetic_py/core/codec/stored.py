"""Values and failures as stored JSON, which says of itself what it holds."""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from pathlib import Path, PosixPath, WindowsPath
from types import CoroutineType
from typing import Any, Final, TypeVar, overload
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs

from noetic_py.core.codec import structure
from noetic_py.core.codec.wire import from_wire, from_wire_json, to_wire
from noetic_py.core.items import FunctionCallOutput, ItemBase, Opaque
from noetic_py.core.secrets import Secret
from noetic_py.core.types import MAX_NESTING
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError, ConfigError, LimitExceeded, NoeticError, ParallelFailed
from noetic_py.redaction import redact, with_article

Encode = Callable[[Any, int], Any]


def _family(kind: type[NoeticError]) -> Iterator[type[NoeticError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)


_CLASSES: Final[dict[str, type[NoeticError]]] = {
    kind.__name__: kind for kind in _family(NoeticError) if kind.__module__ == NoeticError.__module__
}
# Attributes that are stored elsewhere, belong to a process, or repeat another field.
_OWN: Final = frozenset({"message", "path", "hint", "result", "left", "first"})


def encode_failure(error: NoeticError, depth: int, encode: Encode) -> dict[str, object]:
    """The parts of an error; a field that cannot be stored is shown as text."""
    fields = {
        name: _part(value, depth + 2, encode)
        for name, value in vars(error).items()
        if name not in _OWN and name[:1] != "_"
    }
    encoded: dict[str, object] = {
        "t": _known(type(error)),
        "m": _text(error.message),
        "p": list(error.path),
        "h": None if error.hint is None else _text(error.hint),
        "f": fields,
    }
    if isinstance(error, ParallelFailed):
        encoded["first"] = next((index for index, each in error.failed.items() if each is error.first), None)
    return {key: value for key, value in encoded.items() if value not in (None, [], {})}


def _known(kind: type[NoeticError]) -> str:
    """The name of the nearest class that every build knows."""
    return next(base.__name__ for base in kind.__mro__ if _CLASSES.get(base.__name__) is base)


def _part(value: object, depth: int, encode: Encode) -> object:
    if isinstance(value, str):
        return _text(value)
    try:
        return encode(value, depth)
    except structure.Unfit:
        if is_dict(value):
            pairs = [[encode(key, depth + 2), _part(part, depth + 2, encode)] for key, part in value.items()]
            return {"$": "dict", "v": pairs}
    except LimitExceeded:
        pass
    return _described(value)


def _described(value: object) -> str:
    try:
        return _text(repr(value))
    except Exception:  # noqa: BLE001 # that something has failed must be stored, whatever it holds
        return f"<{type(value).__qualname__}>"


def _text(value: str) -> str:
    """A text without secrets and surrogates: what another program said in failing may hold any."""
    return redact(value.encode(errors="backslashreplace").decode())


def make_failure(stored: structure.Failure, make: Callable[[object], object]) -> NoeticError:
    """The error again.

    Raises:
        Unfit: It is malformed, or of a class that this version does not know.
    """
    kind = _CLASSES.get(stored.name)
    if kind is None:
        raise structure.Unfit(f"is an error of class {stored.name!r:.60}, which this version does not know")
    error = kind.__new__(kind)
    NoeticError.__init__(error, stored.message, path=stored.path, hint=stored.hint)
    for name, value in stored.fields.items():
        if name in _OWN or name[:1] == "_":
            raise structure.Unfit(
                f"{name!r:.60} is not a valid field of a stored error; expected a field of {stored.name}"
            )
        error.__dict__[name] = _made(value, make)
    if isinstance(error, ParallelFailed):
        failed, succeeded = (error.__dict__.get(name) for name in ("failed", "succeeded"))
        # Told as text where they could not be stored.
        error.failed = {at: each for at, each in _parts(failed) if isinstance(each, NoeticError)}
        error.succeeded = dict(_parts(succeeded))
        first = next((each for at, each in error.failed.items() if at == stored.first), None)
        error.first = error.__cause__ = first or next(iter(error.failed.values()), NoeticError("unknown"))
    return error


def _parts(value: object) -> Iterable[tuple[Any, Any]]:
    return value.items() if is_dict(value) else ()


def _made(value: object, make: Callable[[object], object]) -> Any:
    try:
        return make(value)
    except structure.Unfit:
        # Its class is not known: a failure can be handled without it.
        return _described(value)


MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""The default limit of the size of a stored value."""

T = TypeVar("T")


class Codec:
    """Values to stored JSON and back.

    It takes attrs classes, dataclasses, pydantic models, named tuples, enumerations, items, the library's errors, and
    Python's own values, with dates, decimals, UUIDs, paths and bytes among them. A class is made again from the type
    that `loads` is asked for; where that says `object` or `Any`, only registered classes are made, by the name they are
    registered under.

    Args:
        types: Classes to register.
        max_bytes: How long a stored value may be.
    """

    def __init__(self, types: Iterable[type] = (), *, max_bytes: int = MAX_VALUE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._types: dict[str, type] = {}
        self._structurer = structure.Structurer(self._types)
        for cls in types:
            self.register(cls)

    def register(self, cls: type, /) -> None:
        """Let `cls` be made where no type is declared.

        Raises:
            ConfigError: Another class of the same name is registered (code `"codec-duplicate"`).
        """
        if self._types.setdefault(cls.__name__, cls) is not cls:
            raise ConfigError(
                f"another class named {cls.__name__} is registered with this codec", code="codec-duplicate"
            )

    def dumps(self, value: object) -> bytes:
        """The value as compact JSON in UTF-8; equal sets give equal bytes.

        Raises:
            CodecError: Something in the value cannot be stored; `where` is the path to it, the message names its type.
            LimitExceeded: The result is longer than `max_bytes` or nested deeper than 64.
        """
        tree = self.encode(value)
        data = structure.dump(tree)
        if data.count(b"{") + data.count(b"[") > MAX_NESTING:
            structure.check_nesting(tree)
        if len(data) > self.max_bytes:
            raise LimitExceeded("value size", self.max_bytes)
        return data

    @overload
    def loads(self, data: bytes | str, type: type[T], /) -> T: ...
    @overload
    def loads(self, data: bytes | str, type: object = ..., /) -> Any: ...
    def loads(self, data: bytes | str, type: object = object, /) -> Any:
        """The value that `dumps` has stored, as an instance of `type`.

        Raises:
            CodecError: The data are malformed or do not fit the type; `where` is the path to what does not.
            LimitExceeded: The data are longer than `max_bytes` or nested deeper than 64.
        """
        return self.decode(structure.parse(data, self.max_bytes, "value size"), type)

    def encode(self, value: object) -> Any:
        """The value as what JSON knows, to be a part of something larger.

        Raises:
            CodecError: Something in the value cannot be stored; `where` is the path to it, the message names its type.
        """
        try:
            return _encode(value, 0)
        except RecursionError:
            raise LimitExceeded("nesting", MAX_NESTING) from None
        except structure.Unfit as error:
            raise CodecError(error.message, where=error.where.lstrip("."), hint=error.hint) from error.__cause__

    def decode(self, tree: object, type: object = object) -> Any:
        """The value that `encode` has made this of, as an instance of `type`.

        Raises:
            CodecError: It is malformed or does not fit the type; `where` is the path to what does not.
            LimitExceeded: It is nested too deep.
        """
        try:
            return self._structurer.structure(_decode(tree), type)
        except RecursionError:
            # Below the limit of JSON, but each mark takes several calls, and the stack may be deep already.
            raise LimitExceeded("nesting", MAX_NESTING) from None
        except structure.Unfit as error:
            raise CodecError(error.message, where=error.where.lstrip("."), hint=error.hint) from error.__cause__

    def require_readable(self, tree: object, type: object = object) -> None:
        """Refuse a value that `encode` has made of something, and that `decode` cannot make again.

        Raises:
            CodecError: A class in it is neither declared nor registered; `where` is the path to it.
        """
        if is_dict(tree) or is_list(tree):
            try:
                self.decode(tree, type)
            except CodecError as error:
                raise unreadable(error) from error

    def check(self, tree: object) -> None:
        """Refuse what `encode` cannot have made, whatever classes it holds.

        Raises:
            CodecError: It is malformed.
            LimitExceeded: It is nested too deep.
        """
        try:
            _decode(tree)
        except RecursionError:
            raise LimitExceeded("nesting", MAX_NESTING) from None
        except structure.Unfit as error:
            raise CodecError(error.message, where=error.where.lstrip("."), hint=error.hint) from error.__cause__


def unreadable(error: CodecError) -> CodecError:
    """The error for a value that could be stored but not read back."""
    return CodecError(
        f"the value could be stored, but not be read back: {error.message.removeprefix(f'{error.where}: ')}",
        where=error.where,
        hint=error.hint or "annotate the place that the value is read from with its class",
    )


# ---------------------------------------------------------------------------------------------------- writing

_MARK: Final = "$"
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_TEXT: Final = frozenset({str})


def _encode(value: object, depth: int) -> Any:
    kind: type[object] = value.__class__
    if kind in _PLAIN:
        return value
    if depth > MAX_NESTING:
        raise LimitExceeded("nesting", MAX_NESTING)
    encode = _ENCODERS.get(kind)
    return _encode_instance(value, kind, depth) if encode is None else encode(value, depth)


def _encode_at(frame: str, value: object, depth: int) -> object:
    try:
        return _encode(value, depth + 1)
    except structure.Unfit as error:
        raise error.inside(frame) from error.__cause__


def _encode_float(value: float, _: int) -> float:
    if value - value != 0:
        raise structure.Unfit(f"{value} is not a valid number in JSON", hint="store None, or a Decimal")
    return value


def _encode_list(value: Collection[object], depth: int) -> list[object]:
    if _PLAIN.issuperset(map(type, value)):
        return list(value)
    encoded: list[object] = []
    for index, part in enumerate(value):
        try:
            encoded.append(_encode(part, depth + 1))
        except structure.Unfit as error:
            raise error.inside(f"[{index}]") from error.__cause__
    return encoded


def _encode_dict(value: dict[Any, object], depth: int) -> object:
    if len(value) > structure.MAX_KEYS:
        raise LimitExceeded(
            "keys of an object", structure.MAX_KEYS, hint="keep it in a list, or in a database of its own"
        )
    if _MARK in value or not _TEXT.issuperset(map(type, value)):
        pairs = [
            [_encode_at(f"[{key!r:.60}]", key, depth + 2), _encode_at(f"[{key!r:.60}]", part, depth + 2)]
            for key, part in value.items()
        ]
        return {_MARK: "dict", "v": pairs}
    if _PLAIN.issuperset(map(type, value.values())):
        return dict(value)
    encoded: dict[str, object] = {}
    for key, part in value.items():
        try:
            encoded[key] = _encode(part, depth + 1)
        except structure.Unfit as error:
            raise error.inside(f"[{key!r:.60}]") from error.__cause__
    return encoded


def _encode_set(value: set[object] | frozenset[object], depth: int) -> dict[str, object]:
    return {_MARK: type(value).__name__, "v": sorted(_encode_list(value, depth + 1), key=structure.dump)}


def _encode_moment(value: datetime | time, _: int) -> dict[str, object]:
    encoded: dict[str, object] = {_MARK: type(value).__name__, "v": value.isoformat()}
    # An offset alone would forget the zone's rules, and which of two equal hours it was.
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key:
        encoded["tz"] = value.tzinfo.key
    if value.fold:
        encoded["fold"] = 1
    return encoded


def _encode_secret(value: Secret[object], _: int) -> dict[str, object]:
    if value.stored != "name":
        raise structure.Unfit(
            "a Secret is not stored", hint='Secret(value, name="db", stored="name") stores its name and not its value'
        )
    return {_MARK: "secret", "v": value.name}


def _tagged(tag: str, form: Callable[[Any], object]) -> Callable[[object, int], dict[str, object]]:
    return lambda value, _: {_MARK: tag, "v": form(value)}


_ENCODERS: Final[dict[type, Callable[[Any, int], object]]] = {
    float: _encode_float,
    list: _encode_list,
    dict: _encode_dict,
    tuple: lambda value, depth: {_MARK: "tuple", "v": _encode_list(value, depth + 1)},
    set: _encode_set,
    frozenset: _encode_set,
    bytes: _tagged("bytes", lambda value: b64encode(value).decode()),
    datetime: _encode_moment,
    time: _encode_moment,
    date: _tagged("date", date.isoformat),
    timedelta: _tagged("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: _tagged("decimal", str),
    UUID: _tagged("uuid", str),
    PosixPath: _tagged("path", str),
    WindowsPath: _tagged("path", str),
    Secret: _encode_secret,
}


def _encode_instance(value: Any, kind: Any, depth: int) -> dict[str, object]:
    if isinstance(value, ItemBase):
        return _encode_item(value)
    if isinstance(value, Enum):
        return {_MARK: "enum", "t": kind.__name__, "v": _encode(value.value, depth + 1)}
    if isinstance(value, NoeticError):
        return {_MARK: "error", **encode_failure(value, depth, _encode)}
    names = _field_names(kind)
    if names is not None:
        return _encode_fields(value, kind, names, depth)
    if structure.is_model(kind):
        return {_MARK: "object", "t": kind.__name__, "v": _encode(_model_fields(value), depth + 1)}
    hint = "use an attrs class, a dataclass, a pydantic model or plain values; a client goes into services="
    if kind is CoroutineType:
        hint = f"await {value.__name__}(...) first, and use what that gives"
    raise structure.Unfit(f"{with_article(kind.__module__)}.{structure.type_name(kind)} cannot be stored", hint=hint)


@lru_cache(1024)
def _field_names(kind: Any) -> Sequence[str] | None:
    """The fields of an attrs class, a dataclass or a named tuple; `None` for another class."""
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: Sequence[str] | None = kind._fields if structure.is_named_tuple(kind) else None
    return fields


def _encode_fields(value: object, kind: type, names: Iterable[str], depth: int) -> dict[str, object]:
    # Next to the mark rather than below it: a nested state is half as deep. No field's name can be the mark.
    encoded: dict[str, object] = {_MARK: f"object:{kind.__name__}"}
    for name in names:
        part: object = getattr(value, name)
        encoded[name] = part if part.__class__ in _PLAIN else _encode_at(f".{name}", part, depth)
    return encoded


def _model_fields(value: Any) -> object:
    try:
        return value.model_dump(mode="python", by_alias=False, round_trip=True, warnings="error")
    except Exception as error:  # a serializer of the user's may raise anything
        raise structure.Unfit(f"{type(value).__qualname__} does not dump: {error}") from error


def _encode_item(item: ItemBase) -> dict[str, object]:
    if isinstance(item, Opaque):
        return {_MARK: "opaque", "v": b64encode(item.raw).decode(), "id": item.id}
    try:
        wire = to_wire(item)
    except CodecError as error:
        said = error.message.removeprefix(f"{error.where}: ")
        raise structure.Unfit(said, hint=error.hint).inside(f".{error.where}" if error.where else "") from error
    if isinstance(item, FunctionCallOutput) and item.final:
        return {_MARK: "item", "v": wire, "final": True}
    return {_MARK: "item", "v": wire}


# ---------------------------------------------------------------------------------------------------- reading


def _decode(node: object) -> object:
    if node.__class__ in _PLAIN:
        return node
    if is_list(node):
        return [_decode(part) for part in node]
    if not is_dict(node):
        return node
    if _MARK not in node:
        return {key: _decode(part) for key, part in node.items()}
    tag = node[_MARK]
    if isinstance(tag, str) and tag.startswith("object:"):
        fields = {
            key: part if part.__class__ in _PLAIN else _decode(part) for key, part in node.items() if key != _MARK
        }
        return structure.StoredInstance(tag[7:], fields)
    decode = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decode is None:
        raise structure.Unfit(f"is marked {tag!r:.60}, which this version does not know")
    try:
        return decode(node)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, InvalidOperation) as error:
        raise structure.Unfit(f"is not a valid {tag}: {type(error).__name__}: {error!s:.200}") from None
    except NoeticError as error:
        raise structure.Unfit(error.message, hint=error.hint) from error


def _list_of(node: dict[str, object]) -> list[object]:
    parts = node["v"]
    if not is_list(parts):
        raise TypeError(f"it holds {structure.kind_name(parts)}")
    return [_decode(part) for part in parts]


def _decode_pairs(node: dict[str, object]) -> structure.Bag:
    pairs = _list_of(node)
    if not all(is_list(pair) and len(pair) == 2 for pair in pairs):
        raise TypeError("it holds something that is not a pair")
    return structure.Bag("dict", pairs)


def _decode_moment(kind: type[Any], node: dict[str, object]) -> object:
    moment = kind.fromisoformat(node["v"])
    changes: dict[str, object] = {"fold": 1} if node.get("fold") == 1 else {}
    if "tz" in node:
        changes["tzinfo"] = _zone(node["tz"])
    return moment.replace(**changes)


def _zone(name: Any) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, TypeError, KeyError, OSError):
        # Some names are folders or too long for a file's name, and what the system says of them tells where they are.
        raise ValueError(f"{name!r:.60} is not a valid time zone") from None


def _decode_timedelta(node: dict[str, Any]) -> timedelta:
    days, seconds, microseconds = node["v"]
    return timedelta(days, seconds, microseconds)


def _decode_item(node: dict[str, Any]) -> ItemBase:
    item = from_wire(node["v"])
    if "final" in node and isinstance(item, FunctionCallOutput):
        # The wire has no such field.
        return attrs.evolve(item, final=bool(node["final"]))
    return item


def _decode_opaque(node: dict[str, Any]) -> ItemBase:
    item = from_wire_json(b64decode(node["v"], validate=True))
    # The type may have been registered since. An id that was made here goes with the item.
    return attrs.evolve(item, id=str(node["id"])) if isinstance(item, Opaque) else item


def _decode_error(node: dict[str, Any]) -> structure.Failure:
    fields = _decode(node.get("f", {}))
    hint = node.get("h")
    if not is_dict(fields):
        raise TypeError(f"its fields are {structure.kind_name(fields)}")
    path = tuple([str(frame) for frame in node.get("p", ())])
    return structure.Failure(
        str(node["t"]), str(node.get("m", "")), path, None if hint is None else str(hint), fields, node.get("first")
    )


_DECODERS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "dict": _decode_pairs,
    "tuple": lambda node: tuple(_list_of(node)),
    "set": lambda node: structure.Bag("set", _list_of(node)),
    "frozenset": lambda node: structure.Bag("frozenset", _list_of(node)),
    "bytes": lambda node: b64decode(node["v"], validate=True),
    "datetime": lambda node: _decode_moment(datetime, node),
    "time": lambda node: _decode_moment(time, node),
    "date": lambda node: date.fromisoformat(node["v"]),
    "timedelta": _decode_timedelta,
    "decimal": lambda node: Decimal(node["v"]),
    "uuid": lambda node: UUID(node["v"]),
    "path": lambda node: Path(node["v"]),
    "secret": lambda node: Secret.named(str(node["v"])),
    "enum": lambda node: structure.Member(str(node["t"]), _decode(node["v"])),
    "object": lambda node: structure.StoredInstance(str(node["t"]), _decode(node["v"])),
    "item": _decode_item,
    "opaque": _decode_opaque,
    "error": _decode_error,
}
