"""The fingerprint of a flow's code, and the types that its steps declare."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from hashlib import blake2b
from types import CodeType, ModuleType
from typing import Any, Union, get_args, get_origin
from weakref import WeakKeyDictionary

import attrs
from typing_extensions import TypeIs

from noetic_py.channels import Channel
from noetic_py.checkpoints.checks import check_descriptors
from noetic_py.context.step import AnyStep, Retry, children_of, entry_of, exit_of, function_of, is_step
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump, is_model, is_named_tuple
from noetic_py.core.items import ItemBase
from noetic_py.core.types import annotations_of
from noetic_py.core.values import copy_value, is_list, is_mapping
from noetic_py.engine.layers.handles import layers_for
from noetic_py.errors import CodecError, ConfigError
from noetic_py.steps.flow import ParallelSpec
from noetic_py.steps.handoff import Handoff, HandoffSourceSpec, HandoffSpec, transfer_tools
from noetic_py.steps.loop import EverySpec
from noetic_py.steps.model import ModelSpec
from noetic_py.steps.spawn import MemorySpec
from noetic_py.steps.tool import ToolSpec
from noetic_py.until import Predicate


def declared_input(step: AnyStep) -> object:
    """The type that a step's input is declared to have, `object` where none is declared."""
    function, entry = function_of(step), entry_of(step)
    if function is not None:
        return _input_of(function)
    return object if entry is None else declared_input(entry)


def _giving(step: AnyStep) -> AnyStep:
    """The step whose output is the step's."""
    last = exit_of(step)
    return step if last is None else _giving(last)


def expected_output(step: AnyStep) -> object:
    """The type that a flow's value has to have, `object` where none is declared."""
    spec = _giving(step).spec
    if isinstance(spec, ModelSpec) and spec.validate is None:
        return Union[spec.outputs] if spec.outputs else str  # noqa: UP007 # of a tuple that is only known here
    return declared_output(step)


def declared_output(step: AnyStep) -> object:
    """The type that a step's output is declared to have, `object` where none is declared."""
    step = _giving(step)
    spec, function = step.spec, function_of(step)
    if function is not None:
        given = _hints(function).get("return", object)
        return without_handoffs(given) if isinstance(spec, HandoffSourceSpec) else given
    if isinstance(spec, ToolSpec):
        return _hints(spec.tool.fn).get("return", object)
    return spec.outputs[0] if isinstance(spec, ModelSpec) and len(spec.outputs) == 1 else object


def read_as(kind: object, tree: object, codec: Codec) -> object:
    """A value of the type that its place declares; of its own classes, where it does not keep to that.

    Raises:
        CodecError: It can be made neither way.
    """
    try:
        return codec.decode(tree, kind)
    except CodecError as error:
        try:
            return codec.decode(tree)
        except CodecError:
            raise error from None


def one_value(given: object, read: object, tree: object) -> object:
    """The value that this process goes on with, which is the one that a process that resumes the run reads.

    Args:
        given: The value as it was given.
        read: The same, read from its stored form.
        tree: That form.
    """
    own = copy_value(given)
    if own is given and read.__class__ is given.__class__:
        # It cannot change, so nothing tells it from a copy.
        return given
    # The journal has only the name of a secret; this process has its value.
    return own if b'"$":"secret"' in dump(tree) else read


def _input_of(function: Any) -> object:
    hints = _hints(function)
    parameters = list(inspect.signature(function).parameters)
    return hints.get(parameters[0], object) if parameters else object


def without_handoffs(kind: object) -> object:
    """The output type of a step whose annotation also names handoffs."""
    if get_origin(kind) is Handoff:
        return get_args(kind)[0]
    if get_origin(kind) not in (Union, types.UnionType):
        return object if kind is Handoff else kind
    parts = tuple(without_handoffs(each) for each in get_args(kind) if each is not Handoff)
    return Union[parts] if parts else object  # noqa: UP007 # of a tuple that is only known here


def types_in(*kinds: object) -> list[type]:
    """Every class that some types name, those inside of them too; of two with one name the first."""
    found: dict[str, type] = {}
    for kind in kinds:
        _collect(kind, found, set())
    return list(found.values())


def known_types(step: AnyStep, *more: object) -> list[type]:
    """Every class that the flow's annotations name, those inside of them too; of two with one name the first."""
    return types_in(*more, *_annotated(step, set()))


def _annotated(step: AnyStep, seen: set[int]) -> Iterator[object]:
    if id(step) in seen:
        return
    seen.add(id(step))
    spec, function = step.spec, function_of(step)
    if isinstance(spec, HandoffSourceSpec):
        yield from map(without_handoffs, _hints(spec.fn).values())
        yield from (each.input for each in spec.targets.ways().values() if each.input is not None)
    elif function is not None:
        yield from _hints(function).values()
    elif isinstance(spec, ModelSpec):
        yield from spec.outputs
    elif isinstance(spec, ToolSpec):
        yield from _hints(spec.tool.fn).values()
    elif isinstance(spec, MemorySpec):
        yield from layers_for(spec.memory).state_types
    elif isinstance(spec, ParallelSpec) and spec.merge is not None:
        yield from _hints(spec.merge).values()
    for _, child in children_of(step):
        yield from _annotated(child, seen)


def _collect(kind: object, found: dict[str, type], seen: set[int]) -> None:
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for argument in (get_origin(kind), *get_args(kind)):
        if argument is not None:
            _collect(argument, found, seen)
    if not _is_class(kind) or issubclass(kind, ItemBase):
        return
    if attrs.has(kind) or hasattr(kind, "__dataclass_fields__") or is_model(kind) or is_named_tuple(kind):
        found.setdefault(kind.__name__, kind)
        # A value of a declared class may be of a subclass.
        for inner in (*_hints(kind).values(), *kind.__subclasses__()):
            _collect(inner, found, seen)
    elif issubclass(kind, Enum):
        found.setdefault(kind.__name__, kind)


def _is_class(kind: object) -> TypeIs[type[object]]:
    return isinstance(kind, type)


# Each run of a flow asks for the same ones. What was found is kept as long as its module defines nothing more, which an
# annotation may name.
_resolved: WeakKeyDictionary[Any, tuple[int, dict[str, object]]] = WeakKeyDictionary()


def _hints(holder: object) -> dict[str, object]:
    if not inspect.isfunction(holder) and not _is_class(holder):
        # Such as an object with slots, which cannot be a key.
        return annotations_of(holder)
    size = len(holder.__globals__) if inspect.isfunction(holder) else 0
    known = _resolved.get(holder)
    if known is None or known[0] != size:
        known = _resolved[holder] = size, annotations_of(holder)
    return known[1]


def referenced(step: AnyStep) -> Iterator[AnyStep]:
    """The step itself, and every step that can be reached from it; each once."""
    seen: set[int] = set()
    waiting: list[object] = [step]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_step(value):
            yield value
            waiting += _steps_in_step(value)
        elif inspect.isfunction(value):
            waiting += _steps_in_function(value)
        elif _holds_many(value):
            waiting += value.values() if isinstance(value, Mapping) else value
        else:
            # A tool is what its function does.
            function = getattr(value, "fn", None)
            waiting += [function] if inspect.isfunction(function) and hasattr(value, "wire_name") else []


def _holds_many(value: object) -> TypeIs[Iterable[object]]:
    return isinstance(value, (Mapping, list, tuple, set, frozenset))


def _steps_in_step(step: AnyStep) -> Iterator[object]:
    yield from (child for _, child in children_of(step))
    spec: object = step.spec
    match spec:
        case EverySpec():
            yield spec.body
        case ModelSpec():
            yield from spec.tools
        case ToolSpec():
            yield spec.tool
        case _ if inspect.isfunction(spec):
            yield spec
        case _:
            # Functions that choose the steps of a branch or of parallel paths count too.
            yield from (value for value in _parts(spec) if inspect.isfunction(value))


def _parts(spec: object) -> Iterator[object]:
    for field in getattr(type(spec), "__attrs_attrs__", ()):
        yield getattr(spec, field.name, None)


def _steps_in_function(function: Any) -> Iterator[object]:
    """The objects that a function's code names: steps, containers of steps, and functions of its module."""
    function = inspect.unwrap(function)
    names = set(_names(function.__code__))
    for cell in function.__closure__ or ():
        # One that is not filled yet is an unused name.
        yield from _worth([cell.cell_contents] if _is_filled(cell) else [], function)
    space: dict[str, object] = function.__globals__
    yield from _worth([space[name] for name in names & space.keys()], function)
    for module in [space[name] for name in names & space.keys() if isinstance(space[name], ModuleType)]:
        yield from _worth([getattr(module, name, None) for name in names], function)
    yield from _worth(function.__defaults__ or (), function)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _worth(values: Iterable[object], function: object) -> Iterator[object]:
    for value in values:
        if inspect.isfunction(value):
            # The library and what it is made of name no steps of the flow.
            if value.__module__ == function.__module__:
                yield value
        elif is_step(value) or _holds_many(value) or hasattr(value, "wire_name"):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_KNOWN: WeakKeyDictionary[AnyStep, str] = WeakKeyDictionary()
_SPELLED: tuple[type[object], ...] = (str, int, float, bool, bytes, type(None), Decimal, Enum, Channel)
"""Values whose `repr` says what they are."""


def fingerprint(step: AnyStep) -> str:
    """The step's fingerprint.

    Raises:
        ConfigError: A function has no source and the step has no `version=`; code `"no-source"`.
        StoreUnavailable: Its file cannot be read for want of file descriptors; reason `"descriptors"`.
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
    """A tool's fingerprint: its description for the model, and the code of its function."""
    try:
        parts = list(_of(tool))
    except OSError as error:
        check_descriptors(f"the source of tool {tool.name!r}", error)
        # Its compiled form stands for the source, which is more than the source says, and never less.
        parts = [repr(tool.definition()), repr(_says(inspect.unwrap(tool.fn).__code__))]
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _of_step(step: AnyStep) -> Iterator[str]:
    yield step.kind
    yield step.id
    yield from _of_retry(step.retry)
    yield repr((step.timeout, step.replay, step.budget, step.version))
    if step.version is not None:
        # The author's word stands for the source of the step's own functions, and for nothing below.
        yield from (fingerprint(child) for _, child in children_of(step))
        return
    spec: object = step.spec
    if isinstance(spec, HandoffSpec):
        yield repr(spec.limit)
        yield from (fingerprint(child) for _, child in children_of(step))
        return
    if isinstance(spec, HandoffSourceSpec) and spec.inner is not None:
        yield fingerprint(spec.inner)
        yield from (repr(tool.definition()) for tool in transfer_tools(spec.targets))
        return
    try:
        yield from _of(spec.fn if isinstance(spec, HandoffSourceSpec) else spec)
    except OSError as error:
        check_descriptors(f"the source of step {step.id!r}", error)
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
    elif isinstance(value, _SPELLED):
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


def _counts(field: Any, value: object) -> bool:
    """Whether a field is part of what a definition is: limits of what runs at once change nothing of what comes out.

    An option that earlier releases did not know counts where it is given, so that their flows stay what they were.
    """
    if not field.metadata.get("fingerprint", True):
        return False
    return "added" not in field.metadata or bool(getattr(value, field.name) != field.default)


def _of_parts(value: object) -> Iterator[str]:
    kind: type[object] = value.__class__
    names: list[str] = []
    if kind is partial:
        names = ["func", "args", "keywords"]
    elif attrs.has(kind):
        names = [each.name for each in attrs.fields(kind) if _counts(each, value)]
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
        raise OSError(f"the source found for {function.__qualname__} is that of another object")
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
    """The identity of a compiled function, independent of its place."""
    constants = [_says(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def source_parts(source: str) -> list[str]:
    """A function's source without comments, docstrings and layout, equal in every version of Python."""
    inner = source[:1].isspace()
    # The source is not dedented: a text of several lines may begin at the margin.
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
