"""Errors as stored values: which class it was, what it said, its fields; made again from a closed set of classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetic_py.codec import Codec
from noetic_py.codec.text import is_dict
from noetic_py.errors import CodecError, NoeticError

__all__ = ["load_error", "store_error"]



def _family(kind: type[NoeticError]) -> Iterator[type[NoeticError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)


# The library's own; what a plugin or a program derives from them is told as the nearest of these.
_CLASSES: dict[str, type[NoeticError]] = {
    kind.__name__: kind for kind in _family(NoeticError) if kind.__module__ == NoeticError.__module__
}
_OWN = frozenset({"message", "path", "hint", "result", "left"})


def store_error(error: Exception, codec: Codec) -> dict[str, Any]:
    """An error in its stored form; a field that cannot be stored is told as text."""
    if not isinstance(error, NoeticError):
        return {"type": "StepFailed", "message": f"{type(error).__name__}: {error}", "path": [], "fields": {}}
    fields = {name: _store(value, codec) for name, value in vars(error).items() if name not in _OWN and name[:1] != "_"}
    return {
        "type": _known(type(error)),
        "message": error.message,
        "path": list(error.path),
        "hint": error.hint,
        "fields": fields,
    }


def _known(kind: type[NoeticError]) -> str:
    """The name of the nearest class that every build knows."""
    return next(base.__name__ for base in kind.__mro__ if _CLASSES.get(base.__name__) is base)


def _store(value: object, codec: Codec) -> Any:
    if isinstance(value, NoeticError):
        return ["error", store_error(value, codec)]
    if is_dict(value):
        return ["dict", [[codec.encode(key), _store(part, codec)] for key, part in value.items()]]
    try:
        return ["value", codec.encode(value)]
    except CodecError:
        return ["text", repr(value)]


def load_error(tree: Any, codec: Codec) -> NoeticError:
    """The error that `store_error` has stored.

    Raises:
        CodecError: It is malformed, or of a class that this version does not know.
    """
    try:
        kind = _CLASSES[tree["type"]]
        error = kind.__new__(kind)
        NoeticError.__init__(error, str(tree["message"]), path=tuple(tree["path"]), hint=tree.get("hint"))
        for name, value in tree["fields"].items():
            error.__dict__[str(name)] = _load(value, codec)
    except (KeyError, TypeError, ValueError) as problem:
        raise CodecError(f"is no stored error: {type(problem).__name__}: {problem}", where="error") from problem
    return error


def _load(value: Any, codec: Codec) -> Any:
    tag, content = value
    if tag == "error":
        return load_error(content, codec)
    if tag == "dict":
        return {codec.decode(key): _load(part, codec) for key, part in content}
    return codec.decode(content) if tag == "value" else content
