"""JSON text under rules: UTF-8, finite numbers, unique keys, bounded nesting; each breach has a named error."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from noetic_py.core.types import is_array, is_dict, is_list, is_mapping
from noetic_py.errors import CodecError, LimitExceeded

__all__ = [
    "MAX_KEYS",
    "MAX_NESTING",
    "Unfit",
    "check_nesting",
    "dump",
    "inside",
    "is_array",
    "is_dict",
    "is_list",
    "is_mapping",
    "kind_name",
    "parse",
]

MAX_NESTING: Final = 64
"""How deep JSON may be nested."""
MAX_KEYS: Final = 250_000
"""How many keys one object of JSON may have."""


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


def _unique(pairs: list[tuple[str, object]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise CodecError(f"the key {twice!r:.80} stands twice in one object")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_number, parse_float=_finite)
# No circular check: what is written has been walked to a bounded depth, or fails by recursion, which is caught.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode


def _in_c() -> Callable[[Any, int], Iterable[str]] | None:
    """The part of the encoder that is written in C, where there is one: made once, and not again for every text."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    text: Any = getattr(json.encoder, "c_encode_basestring", None)
    if make is None or text is None:
        return None
    # No markers, for no circular check; no indent; neither keys in order nor keys left out; no NaN.
    made: Callable[[Any, int], Iterable[str]] = make(None, _encoder.default, text, None, ":", ",", False, False, False)
    return made


_encode_parts = _in_c()


def _encode_text(value: object) -> str:
    return _encoder.encode(value) if _encode_parts is None else "".join(_encode_parts(value, 0))


def dump(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    try:
        return _encode_text(value).encode()
    except UnicodeEncodeError:
        return _dump_surrogates(value)
    except RecursionError:
        raise LimitExceeded("nesting", MAX_NESTING) from None
    except (ValueError, TypeError) as error:
        raise CodecError(f"not to be written as JSON: {error}") from None


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
    level: dict[int, object] = {0: value}
    for _ in range(nesting):
        if any(is_mapping(node) and len(node) > MAX_KEYS for node in level.values()):
            raise LimitExceeded("keys of an object", MAX_KEYS)
        # By identity, so that a value that holds itself several times does not multiply.
        level = {
            id(part): part
            for node in level.values()
            if is_mapping(node) or is_array(node)
            for part in (node.values() if is_mapping(node) else node)
            if is_mapping(part) or is_array(part)
        }
        if not level:
            return
    raise LimitExceeded("nesting", nesting)


def kind_name(value: object) -> str:
    """What a value is, in a message."""
    return "null" if value is None else type(value).__name__
