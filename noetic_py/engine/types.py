"""Which types a flow's values have, as far as its annotations say: what stored values are made into."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
from typing_extensions import TypeIs

from noetic_py.context.step import Step, children_of, entry_of, exit_of, function_of
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import is_model, is_named_tuple
from noetic_py.core.codec.text import dump
from noetic_py.core.items import ItemBase
from noetic_py.core.values import copy_value
from noetic_py.engine.layers.bundle import layers_for
from noetic_py.errors import CodecError
from noetic_py.steps.flow import ParallelSpec
from noetic_py.steps.handoff import Handoff, HandoffSourceSpec
from noetic_py.steps.model import ModelSpec
from noetic_py.steps.spawn import MemorySpec

__all__ = ["declared_input", "declared_output", "expected_output", "known_types", "types_in"]

AnyStep = Step[Any, Any, Any, Any]


def declared_input(step: AnyStep) -> Any:
    """The type that a step's input is declared to have, `object` where none is declared."""
    function, entry = function_of(step), entry_of(step)
    if function is not None:
        return _input_of(function)
    return object if entry is None else declared_input(entry)


def _giving(step: AnyStep) -> AnyStep:
    """The step whose output is the step's."""
    last = exit_of(step)
    return step if last is None else _giving(last)


def expected_output(step: AnyStep) -> Any:
    """The type that a flow's value has to have, `object` where none is declared."""
    spec = _giving(step).spec
    if isinstance(spec, ModelSpec) and spec.validate is None:
        return Union[spec.outputs] if spec.outputs else str  # noqa: UP007 # of a tuple that is only known here
    return declared_output(step)


def declared_output(step: AnyStep) -> Any:
    """The type that a step's output is declared to have, `object` where none is declared."""
    step = _giving(step)
    spec, function = step.spec, function_of(step)
    if function is not None:
        given = _hints(function).get("return", object)
        return without_handoffs(given) if isinstance(spec, HandoffSourceSpec) else given
    return spec.outputs[0] if isinstance(spec, ModelSpec) and len(spec.outputs) == 1 else object


def read_as(kind: Any, tree: Any, codec: Codec) -> Any:
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


def one_value(given: Any, read: Any, tree: Any) -> Any:
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
    # Of a secret the journal has the name only; this process has its value.
    return own if b'"$":"secret"' in dump(tree) else read


def _input_of(function: Any) -> Any:
    hints = _hints(function)
    parameters = list(inspect.signature(function).parameters)
    return hints.get(parameters[0], object) if parameters else object


def without_handoffs(kind: Any) -> Any:
    """What a step gives at last, when its annotation names handoffs besides."""
    if get_origin(kind) is Handoff:
        return get_args(kind)[0]
    if get_origin(kind) not in (Union, types.UnionType):
        return object if kind is Handoff else kind
    parts = tuple(without_handoffs(each) for each in get_args(kind) if each is not Handoff)
    return Union[parts] if parts else object  # noqa: UP007 # of a tuple that is only known here


def types_in(*kinds: Any) -> list[type]:
    """Every class that some types name, those inside of them too; of two with one name the first."""
    found: dict[str, type] = {}
    for kind in kinds:
        _collect(kind, found, set())
    return list(found.values())


def known_types(step: AnyStep, *more: Any) -> list[type]:
    """Every class that the flow's annotations name, those inside of them too; of two with one name the first."""
    return types_in(*more, *_annotated(step, set()))


def _annotated(step: AnyStep, seen: set[int]) -> Iterator[Any]:
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
    elif isinstance(spec, MemorySpec):
        yield from layers_for(spec.memory).state_types
    elif isinstance(spec, ParallelSpec) and spec.merge is not None:
        yield from _hints(spec.merge).values()
    for _, child in children_of(step):
        yield from _annotated(child, seen)


def _collect(kind: Any, found: dict[str, type], seen: set[int]) -> None:
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
        # What is declared as a class may be of one below it.
        for inner in (*_hints(kind).values(), *kind.__subclasses__()):
            _collect(inner, found, seen)
    elif issubclass(kind, Enum):
        found.setdefault(kind.__name__, kind)


def _is_class(kind: object) -> TypeIs[type[Any]]:
    return isinstance(kind, type)


def _hints(holder: Any) -> dict[str, Any]:
    try:
        return get_type_hints(holder, include_extras=True)
    except Exception:  # noqa: BLE001 # a name that cannot be resolved: the value is read by its own marks
        return {}
