"""A class of the user's as the form of a layer's values: which fields there are, and what fits them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
from attrs import frozen

from noetic_py.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Shape", "shape_of"]

T = TypeVar("T")

_SHOWN = 10
_SHAPES: dict[type[Any], Shape[Any]] = {}


@frozen(eq=False)
class Shape(Generic[T]):
    """What a class says of values by name.

    Attributes:
        kind: A pydantic model, an attrs class, a dataclass or a `TypedDict`.
        names: Its fields.
    """

    kind: type[T]
    names: frozenset[str]
    _adapter: TypeAdapter[Any]

    def problems(self, values: Mapping[str, Any], *, strict: bool = True, partial: bool = False) -> list[str]:
        """What does not fit, a line each.

        Args:
            values: Plain data, as JSON has it.
            strict: Whether `"3"` is no number.
            partial: Whether fields may be missing.
        """
        from pydantic import ValidationError

        known = ", ".join(sorted(self.names))
        found = [f"{name}: no such field (fields: {known})" for name in sorted(set(values) - self.names)]
        try:
            self._adapter.validate_json(json.dumps(values), strict=strict)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            wanted = [each for each in errors if not (partial and each["type"] == "missing")]
            found += [f"{'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}" for each in wanted]
        return found[:_SHOWN]

    def make(self, values: Mapping[str, Any]) -> T:
        """A value of the class.

        Raises:
            ValueError: The values do not fit.
        """
        made: Any = self._adapter.validate_json(json.dumps(values), strict=True)
        if attrs.has(self.kind):
            names = {field.name: field.alias or field.name for field in attrs.fields(self.kind) if field.init}
            made = self.kind(**{names[name]: getattr(made, name) for name in made.model_fields_set if name in names})
        result: T = made
        return result

    def plain(self, value: T) -> dict[str, Any]:
        """A value as plain data.

        Raises:
            ValueError: It is none of the class, or has no form in JSON.
        """
        given: Any = value
        if attrs.has(self.kind):
            if not isinstance(value, self.kind):
                raise ValueError(f"{value!r} is no {self.kind.__name__}")
            given = {field.name: getattr(value, field.name) for field in attrs.fields(self.kind)}
        checked = self._adapter.validate_python(given)
        found: dict[str, Any] = self._adapter.dump_python(checked, mode="json", by_alias=True)
        return found


def shape_of(kind: type[T]) -> Shape[T]:
    """The shape of a class; made once.

    Raises:
        ConfigError: It says nothing of its fields, or one has a type without a JSON form; code `"layer-schema"`.
    """
    found = _SHAPES.get(kind)
    if found is None:
        found = _SHAPES[kind] = _made(kind)
    return found


def _made(kind: type[Any]) -> Shape[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    try:
        names = _names(kind)
        adapter: TypeAdapter[Any] = TypeAdapter(_model_of(kind) if attrs.has(kind) else kind)
        adapter.json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, TypeError) as error:
        raise ConfigError(
            f"{kind!r} cannot be the form of a layer's values: {error}",
            code="layer-schema",
            hint="use a pydantic model, a dataclass, a TypedDict, or an attrs class whose fields are plain values",
        ) from error
    return Shape(kind, names, adapter)


def _names(kind: type[Any]) -> frozenset[str]:
    if attrs.has(kind):
        return frozenset(field.name for field in attrs.fields(kind))
    fields: Mapping[str, Any] | None = getattr(kind, "model_fields", None)
    if fields is not None:
        return frozenset(getattr(field, "alias", None) or name for name, field in fields.items())
    found: Mapping[str, Any] = getattr(kind, "__annotations__", {})
    if not (hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__required_keys__")):
        raise TypeError("it has no fields")
    return frozenset(found)


def _model_of(kind: type[Any]) -> type[Any]:
    """A pydantic model with the fields of an attrs class."""
    from pydantic import create_model

    attrs.resolve_types(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in attrs.fields(kind):
        default = ... if field.default is attrs.NOTHING else None
        fields[field.name] = (field.type, default)
    model: type[Any] = create_model(kind.__name__, **fields)
    return model
