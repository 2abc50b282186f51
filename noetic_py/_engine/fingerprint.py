"""What a step is, as a short text: equal as long as nobody has changed what it does.

A fingerprint covers the step's own functions, its options, and the fingerprints of the steps it declares. Of a function
it covers what the source says, without comments and docstrings, so that its layout, and the Python that runs it, make
no difference. Where there is no source, `version=` stands for it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from hashlib import blake2b
from types import CodeType
from typing import Any, get_origin
from weakref import WeakKeyDictionary

import attrs
from typing_extensions import TypeIs

from noetic_py._engine.graph import children
from noetic_py.channels import is_channel
from noetic_py.codec.text import is_list, is_mapping
from noetic_py.errors import ConfigError
from noetic_py.items import ItemBase
from noetic_py.steps.handoff import HandingSpec, HandoffSpec
from noetic_py.steps.step import Retry, Step, is_step
from noetic_py.steps.until import Predicate

__all__ = ["fingerprint", "fingerprint_of", "source_parts"]

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


def fingerprint_of(tool: Any) -> str:
    """A tool's fingerprint: what the model is told of it, and what its function does."""
    try:
        parts = list(_of(tool))
    except OSError:
        # Its compiled form stands for the source, which is more than the source says, and never less.
        parts = [repr(tool.definition()), repr(_says(inspect.unwrap(tool.fn).__code__))]
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _of_step(step: Step[Any, Any, Any, Any]) -> Iterator[str]:
    yield step.kind
    yield step.id
    yield from _of_retry(step.retry)
    yield repr((step.timeout, step.replay, step.budget, step.version))
    if step.version is not None:
        # The author's word stands for the source of the step's own functions, and for nothing below.
        yield from (fingerprint(child) for _, child in children(step))
        return
    spec: object = step.spec
    if isinstance(spec, HandoffSpec):
        yield repr(spec.limit)
        yield from (fingerprint(child) for _, child in children(step))
        return
    try:
        yield from _of(spec.fn if isinstance(spec, HandingSpec) else spec)
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
    elif isinstance(value, type) or _is_alias(value):
        yield value.__qualname__ if isinstance(value, type) else repr(value)
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


def _is_alias(value: object) -> bool:
    """Whether this is a type with brackets such as `list[str]`, which can be iterated, and gives itself once more."""
    return get_origin(value) is not None and isinstance(value, Iterable)


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
        yield from _of_parts(value)


def _of_parts(value: Any) -> Iterator[str]:
    kind: Any = value.__class__
    names: list[str] = []
    if kind is partial:
        names = ["func", "args", "keywords"]
    elif attrs.has(kind):
        names = [field.name for field in attrs.fields(kind)]
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        if name.lstrip("_") != "cache":
            yield from _of(getattr(value, name))
    call = inspect.getattr_static(kind, "__call__", None)
    if inspect.isfunction(call):
        # An object in the place of a function does what its class says.
        yield from _of_function(call)


def _of_function(function: Any) -> Iterator[str]:
    function = inspect.unwrap(function)
    inner = vars(function).get("step") if inspect.isfunction(function) else None
    if is_step(inner):
        yield fingerprint(inner)
    elif inspect.isbuiltin(function) or not hasattr(function, "__code__"):
        yield f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
    elif function.__name__ == "<lambda>":
        yield from _of_lambda(function)
    else:
        yield from source_parts(_source_of(function))


def _source_of(function: Any) -> str:
    """A function's source.

    Raises:
        OSError: There is none. What has none may be told to stand in `<string>`, and so may the program of `python -c`,
            which newer versions remember.
    """
    source = inspect.getsource(function)
    if f"def {function.__code__.co_name}" not in source:
        raise OSError(f"what is there for the source of {function.__qualname__} is that of something else")
    return source


def _of_lambda(function: Any) -> Iterator[str]:
    """A lambda, looked for in the file that it stands in: its lines alone need not be a program."""
    code = function.__code__
    lines, _ = inspect.findsource(function)
    there = [node for node in _lambdas("".join(lines)) if node.lineno == code.co_firstlineno]
    if len(there) > 1:
        there = [node for node in there if _compiled(node) == _says(code)] or there
    for node in there:
        yield from _walk(node)
    if not there:
        yield inspect.getsource(function).strip()


@lru_cache(16)
def _lambdas(source: str) -> list[ast.Lambda]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]


def _compiled(node: ast.Lambda) -> object:
    module = compile(ast.Expression(node), "", "eval")
    return next((_says(each) for each in module.co_consts if isinstance(each, CodeType)), None)


def _says(code: CodeType) -> object:
    """What tells two compiled functions apart, wherever they stand."""
    constants = [_says(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def source_parts(source: str) -> list[str]:
    """What a function's source says, without comments, docstrings and layout, and equal in every version of Python."""
    inner = source[:1].isspace()
    # As it stands, and not dedented: a text of several lines may begin at the margin.
    module: Any = ast.parse(f"if 1:\n{source}").body[0] if inner else ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node, False):
            node.body = node.body[1:] or [ast.Pass()]
    return [part for statement in module.body for part in _walk(statement)]


# How a text was quoted, and what a comment says of a type, changes nothing.
_LAYOUT = frozenset({"kind", "type_comment", "ctx"})


def _walk(node: ast.AST) -> Iterator[str]:
    """A syntax tree as texts. What is absent or empty is left out: newer versions have more fields."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name in _LAYOUT or (value in (None, []) and not isinstance(node, ast.Constant)):
            continue
        yield name
        parts = value if is_list(value) else [value]
        for part in parts:
            if isinstance(node, ast.JoinedStr) and isinstance(part, ast.Constant) and part.value == "":
                # Some versions put it into the format of a value.
                continue
            if isinstance(part, ast.AST):
                yield from _walk(part)
            else:
                yield repr(part)
    yield "."
