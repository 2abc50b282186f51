"""The steps that can be reached from a step: those that it declares, and those that its functions name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from typing_extensions import TypeIs

from noetic_py._engine.graph import children
from noetic_py.steps.loop import EverySpec
from noetic_py.steps.model import ModelSpec
from noetic_py.steps.step import Step, is_step
from noetic_py.steps.tool import ToolSpec

__all__ = ["referenced"]

AnyStep = Step[Any, Any, Any, Any]


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
            waiting += _of_step(value)
        elif inspect.isfunction(value):
            waiting += _of_function(value)
        elif _is_many(value):
            waiting += value.values() if isinstance(value, Mapping) else value
        else:
            # A tool is what its function does.
            function = getattr(value, "fn", None)
            waiting += [function] if inspect.isfunction(function) and hasattr(value, "wire_name") else []


def _is_many(value: object) -> TypeIs[Iterable[object]]:
    return isinstance(value, (Mapping, list, tuple, set, frozenset))


def _of_step(step: AnyStep) -> Iterator[object]:
    yield from (child for _, child in children(step))
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
            # What chooses the steps of a branch or of parallel paths is a function too.
            yield from (value for value in _parts(spec) if inspect.isfunction(value))


def _parts(spec: object) -> Iterator[object]:
    for field in getattr(type(spec), "__attrs_attrs__", ()):
        yield getattr(spec, field.name, None)


def _of_function(function: Any) -> Iterator[object]:
    """What a function's code names: steps, what may hold steps, and other functions of its module."""
    function = inspect.unwrap(function)
    names = set(_names(function.__code__))
    for cell in function.__closure__ or ():
        # One that is not filled yet is a name that nobody has used.
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


def _worth(values: Iterable[object], function: Any) -> Iterator[object]:
    for value in values:
        if inspect.isfunction(value):
            # The library and what it is made of name no steps of the flow.
            if value.__module__ == function.__module__:
                yield value
        elif is_step(value) or _is_many(value) or hasattr(value, "wire_name"):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
