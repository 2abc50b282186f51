"""`Memory`: the base of memory bundles. The layers themselves stand above, in `noetic_py.memory`."""

from __future__ import annotations

import copy
from inspect import get_annotations
from typing import Any, TypeVar, dataclass_transform, overload

from attrs import define
from typing_extensions import TypeIs

from noetic_py.errors import ConfigError

L = TypeVar("L")


def make_frozen(cls: type[object]) -> None:
    """Make a class with annotated fields a frozen attrs class, in place."""
    define(cls, frozen=True, slots=False, kw_only=True, eq=False)


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class Memory:
    """Base of a memory bundle: a class whose fields are the layers that a run carries.

        class Mem(Memory):
            notes: WorkingMemory = WorkingMemory()

    `Context[Mem, State]` names the bundle a step needs, and a bare `Context` needs none. In a step `ctx.memory.notes`
    is the layer, bound to the run; `ctx.memory[WorkingMemory]` and `ctx.memory["notes"]` are the same.

    Raises:
        ConfigError: A field has no annotation, or a class in place of a layer; code `"memory-field"`.
    """

    __slots__ = ("__dict__",)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        make_frozen(cls)
        _check_fields(cls)

    def __attrs_post_init__(self) -> None:
        values: dict[str, object] = self.__dict__
        for name, value in values.items():
            if _is_layer_class(value):
                raise ConfigError(
                    f"{name}={value.__name__} is not a valid field of a bundle; expected a layer, not its class",
                    code="memory-field",
                    hint=f"write `{name}: {value.__name__} = {value.__name__}()`",
                )
        for name, layer in _layers(self).items():
            if not layer.id or hasattr(layer, "__parameters__"):
                named = copy.copy(layer)
                named.__dict__["id"] = layer.id or name
                named.__dict__["_field"] = (type(self), name)
                self.__dict__[name] = named

    @overload
    def __getitem__(self, layer: type[L], /) -> L: ...
    @overload
    def __getitem__(self, layer: str, /) -> Any: ...
    def __getitem__(self, layer: type[object] | str, /) -> Any:
        """The layer of an id or a class.

        Raises:
            KeyError: There is none, or more than one of the class.
        """
        layers = _layers(self).values()
        if isinstance(layer, str):
            found = [each for each in layers if each.id == layer]
        else:
            found = [each for each in layers if isinstance(each, layer)]
        if len(found) != 1:
            what = layer if isinstance(layer, str) else layer.__name__
            there = ", ".join(f"{each.id} ({type(each).__name__})" for each in layers) or "none"
            raise KeyError(f"{'no layer' if not found else 'several layers'} {what!r}; the layers are {there}")
        return found[0]


def _check_fields(cls: type[object]) -> None:
    """Refuse a layer that is a plain attribute: it is not a field, so no run would carry it."""
    for base in cls.__mro__:
        values: dict[str, object] = dict(vars(base))
        for name, value in values.items():
            if _is_layer_class(value):
                # A class that is defined in the bundle is not meant as a field.
                if value.__qualname__ != f"{base.__qualname__}.{name}":
                    _refuse(base, name, value, value.__name__)
            elif hasattr(value.__class__, "__noetic_layer__"):
                _refuse(base, name, value.__class__, f"{value.__class__.__name__}()")


def _refuse(base: type[object], name: str, layer: type[object], given: str) -> None:
    hint = f"write `{name}: {layer.__name__} = {layer.__name__}()`"
    hints = get_annotations(base)
    if "ClassVar" in str(hints.get(name)):
        return
    if name in hints:
        # attrs takes the fields of bundles only.
        hint = f"make {base.__name__} a bundle: `class {base.__name__}(Memory)`"
    raise ConfigError(
        f"`{name} = {given}` of {base.__name__} is not a valid field of a bundle; expected an annotation",
        code="memory-field",
        hint=hint,
    )


def _is_layer_class(value: object) -> TypeIs[type[object]]:
    return isinstance(value, type) and hasattr(value, "__noetic_layer__")


def _layers(memory: Memory) -> dict[str, Any]:
    values: dict[str, object] = memory.__dict__
    return {name: value for name, value in values.items() if hasattr(value.__class__, "__noetic_layer__")}
