"""Errors of the library as stored values: which class it was, what it said, its fields.

They are made again from a closed set of classes; what a program derives from one of them is told as the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from noetic_py.core.codec.structure import Failure
from noetic_py.core.codec.text import Unfit, is_dict
from noetic_py.errors import LimitExceeded, NoeticError, ParallelFailed
from noetic_py.errors.redaction import redact

Encode = Callable[[Any, int], Any]


def _family(kind: type[NoeticError]) -> Iterator[type[NoeticError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)


_CLASSES: Final[dict[str, type[NoeticError]]] = {
    kind.__name__: kind for kind in _family(NoeticError) if kind.__module__ == NoeticError.__module__
}
# What is stored in a place of its own, what belongs to a process, and what another field says already.
_OWN: Final = frozenset({"message", "path", "hint", "result", "left", "first"})


def encode_failure(error: NoeticError, depth: int, encode: Encode) -> dict[str, Any]:
    """The parts of an error; a field that cannot be stored is told as text."""
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


def _part(value: object, depth: int, encode: Encode) -> Any:
    if isinstance(value, str):
        return _text(value)
    try:
        return encode(value, depth)
    except Unfit:
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


def make_failure(stored: Failure, make: Callable[[object], object]) -> NoeticError:
    """The error again.

    Raises:
        Unfit: It is malformed, or of a class that this version does not know.
    """
    kind = _CLASSES.get(stored.name)
    if kind is None:
        raise Unfit(f"is an error of class {stored.name!r:.60}, which this version does not know")
    error = kind.__new__(kind)
    NoeticError.__init__(error, stored.message, path=stored.path, hint=stored.hint)
    for name, value in stored.fields.items():
        if name in _OWN or name[:1] == "_":
            raise Unfit(f"{name!r:.60} is not a valid field of a stored error; expected a field of {stored.name}")
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
    except Unfit:
        # Its class is not known: a failure can be handled without it.
        return _described(value)
