"""What a step is, as a short text: equal as long as nobody has changed what it does.

A fingerprint covers the step's own functions, its options, and the fingerprints of the steps it declares. Of a function
it covers the tokens of the source, without comments and docstrings, so that formatting, and the Python that runs it,
make no difference. Where there is no source, `version=` stands for it.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import attrs
from typing_extensions import TypeIs

from noetic_py.channels import is_channel
from noetic_py.codec.text import is_mapping
from noetic_py.errors import ConfigError
from noetic_py.items import ItemBase
from noetic_py.steps.step import Retry, Step, is_step
from noetic_py.steps.until import Predicate

__all__ = ["fingerprint", "source_tokens"]

_KNOWN: WeakKeyDictionary[Step[Any, Any, Any, Any], str] = WeakKeyDictionary()
_PLAIN = (str, int, float, bool, bytes, type(None), Decimal)


def fingerprint(step: Step[Any, Any, Any, Any]) -> str:
    """The step's fingerprint.

    Raises:
        ConfigError: A function has no source and the step has no `version=`; code `"no-source"`.
    """
    found = _KNOWN.get(step)
    if found is None:
        digest = blake2b(digest_size=8)
        for part in _of_step(step):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(4, "big") + data)
        found = _KNOWN[step] = digest.hexdigest()
    return found


def _of_step(step: Step[Any, Any, Any, Any]) -> Iterator[str]:
    yield step.kind
    yield step.id
    yield from _of_retry(step.retry)
    yield repr((step.timeout, step.replay, step.budget, step.version))
    if step.version is not None:
        # The author's word stands for the source of the step's own functions.
        return
    try:
        yield from _of(step.spec)
    except OSError as error:
        raise ConfigError(
            f"step {step.id!r} has no source to take a fingerprint of",
            code="no-source",
            hint='give it version="1", and another one when it changes',
        ) from error


def _of_retry(retry: Retry | None) -> Iterator[str]:
    if retry is not None:
        yield repr((retry.attempts, retry.backoff, retry.initial, retry.max, retry.jitter))


def _of(value: object) -> Iterator[str]:
    """The parts of a definition, one after the other."""
    if is_step(value):
        yield fingerprint(value)
    elif isinstance(value, (*_PLAIN, Enum)) or is_channel(value):
        yield repr(value)
    elif isinstance(value, type):
        yield value.__qualname__
    elif inspect.isroutine(value):
        yield from _of_function(value)
    elif is_mapping(value):
        for key, part in value.items():
            yield repr(key)
            yield from _of(part)
    elif _is_set(value):
        yield from sorted(map(repr, value))
    elif _is_many(value):
        yield type(value).__name__
        for part in value:
            yield from _of(part)
    else:
        yield from _of_object(value)


def _is_set(value: object) -> TypeIs[frozenset[object] | set[object]]:
    return isinstance(value, (frozenset, set))


def _is_many(value: object) -> TypeIs[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, ItemBase)


def _of_object(value: Any) -> Iterator[str]:
    """An object: its class, and what it is made of where that is declared; a model counts by its name."""
    yield type(value).__qualname__
    if isinstance(value, Predicate):
        # When to stop is a decision, recorded each time: it may be made differently from now on.
        yield value.name
    elif hasattr(value, "respond"):
        yield str(getattr(value, "name", ""))
    elif hasattr(value, "definition") and hasattr(value, "wire_name"):
        yield repr(value.definition())
        yield from _of(value.fn)
    else:
        kind: Any = value.__class__
        names = [field.name for field in attrs.fields(kind)] if attrs.has(kind) else []
        for name in names:
            if name.lstrip("_") != "cache":
                yield from _of(getattr(value, name))


def _of_function(function: Any) -> Iterator[str]:
    function = inspect.unwrap(function)
    if inspect.isbuiltin(function) or not hasattr(function, "__code__"):
        yield f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
        return
    yield from source_tokens(inspect.getsource(function))


_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER})
_F_START: int = getattr(tokenize, "FSTRING_START", -1)
_F_END: int = getattr(tokenize, "FSTRING_END", -1)


def source_tokens(source: str) -> list[str]:
    """The tokens of a function's source, without comments, blank lines and docstrings."""
    text = textwrap.dedent(source)
    hidden = _docstrings(text)
    found: list[str] = []
    try:
        for token in _whole_f_strings(text):
            if token.type in _LAYOUT or token.start[0] in hidden:
                continue
            found.append({tokenize.INDENT: "<", tokenize.DEDENT: ">"}.get(token.type, token.string))
    except (tokenize.TokenError, IndentationError):
        # A lambda in the middle of an expression: its lines are no program of their own.
        return text.split()
    return found


def _whole_f_strings(text: str) -> Iterator[tokenize.TokenInfo]:
    """Tokens, in which an f-string is one token, as it was before Python 3.12."""
    lines = text.splitlines(keepends=True)
    depth, begin = 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == _F_START:
            begin = begin if depth else token.start
            depth += 1
        elif token.type == _F_END:
            depth -= 1
            if depth == 0:
                whole = _between(lines, begin, token.end)
                yield tokenize.TokenInfo(tokenize.STRING, whole, begin, token.end, token.line)
        elif depth == 0:
            yield token


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    middle = lines[start[0] : end[0] - 1]
    return "".join([lines[start[0] - 1][start[1] :], *middle, lines[end[0] - 1][: end[1]]])


def _docstrings(text: str) -> set[int]:
    """The lines of docstrings."""
    try:
        module = ast.parse(text)
    except SyntaxError:
        return set()
    lines: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node, False):
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines
