"""`TaskState`: what a task has come to, as a value of the user's own class that code and the model change."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal

import attrs
from attrs import frozen
from typing_extensions import TypeVar

from noetic_py.core.items import JsonValue
from noetic_py.core.state import copy_state
from noetic_py.core.values import is_dict
from noetic_py.errors import ConfigError, LayerError
from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer, Returned
from noetic_py.memory.layers import common

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ShapeT = TypeVar("ShapeT")

_SHOWN = 10
_SHAPES: dict[type[object], Shape[Any]] = {}


@frozen(eq=False)
class Shape(Generic[ShapeT]):
    """The fields and checks of a class.

    Attributes:
        kind: A pydantic model, an attrs class, a dataclass or a `TypedDict`.
        names: Its fields.
    """

    kind: type[ShapeT]
    names: frozenset[str]
    _adapter: TypeAdapter[object]

    def problems(self, values: Mapping[str, object], *, strict: bool = True, partial: bool = False) -> list[str]:
        """The problems of a value, one line each.

        Args:
            values: Plain data, as JSON has it.
            strict: Whether `"3"` is not a number.
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

    def make(self, values: Mapping[str, object]) -> ShapeT:
        """A value of the class.

        Raises:
            ValueError: The values do not fit.
        """
        made: Any = self._adapter.validate_json(json.dumps(values), strict=True)
        if attrs.has(self.kind):
            names = {field.name: field.alias or field.name for field in attrs.fields(self.kind) if field.init}
            made = self.kind(**{names[name]: getattr(made, name) for name in made.model_fields_set if name in names})
        result: ShapeT = made
        return result

    def plain(self, value: ShapeT) -> dict[str, Any]:
        """A value as plain data.

        Raises:
            ValueError: It is none of the class, or has no form in JSON.
        """
        given: object = value
        if attrs.has(self.kind):
            if not isinstance(value, self.kind):
                raise ValueError(f"{value!r} is not a valid {self.kind.__name__}")
            given = {field.name: getattr(value, field.name) for field in attrs.fields(self.kind)}
        checked = self._adapter.validate_python(given)
        found: dict[str, object] = self._adapter.dump_python(checked, mode="json", by_alias=True)
        return found


def shape_of(kind: type[ShapeT]) -> Shape[ShapeT]:
    """The shape of a class; made once.

    Raises:
        ConfigError: It says nothing of its fields, or one has a type without a JSON form; code `"layer-schema"`.
    """
    found = _SHAPES.get(kind)
    if found is None:
        found = _SHAPES[kind] = _made(kind)
    return found


def _made(kind: type[object]) -> Shape[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    try:
        names = _names(kind)
        adapter: TypeAdapter[object] = TypeAdapter(_model_of(kind) if attrs.has(kind) else kind)
        adapter.json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, TypeError) as error:
        raise ConfigError(
            f"{kind!r} cannot be the form of a layer's values: {error}",
            code="layer-schema",
            hint="use a pydantic model, a dataclass, a TypedDict, or an attrs class whose fields are plain values",
        ) from error
    return Shape(kind, names, adapter)


def _names(kind: type[object]) -> frozenset[str]:
    if attrs.has(kind):
        return frozenset(field.name for field in attrs.fields(kind))
    fields: Mapping[str, object] | None = getattr(kind, "model_fields", None)
    if fields is not None:
        return frozenset(getattr(field, "alias", None) or name for name, field in fields.items())
    found: Mapping[str, object] = getattr(kind, "__annotations__", {})
    if not (hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__required_keys__")):
        raise TypeError("it has no fields")
    return frozenset(found)


def _model_of(kind: type[Any]) -> type[object]:
    """A pydantic model with the fields of an attrs class."""
    from pydantic import create_model

    attrs.resolve_types(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in attrs.fields(kind):
        default = ... if field.default is attrs.NOTHING else None
        fields[field.name] = (field.type, default)
    model: type[object] = create_model(kind.__name__, **fields)
    return model


T = TypeVar("T", default=dict[str, JsonValue])

_MERGES = ("shallow", "namespaced", "ignore")


class TaskState(MemoryLayer[dict[str, JsonValue]], Generic[T]):
    """The state of a task, typed by a class of the user's, in the model's sight and under its hands.

        @define
        class Report:
            title: str = ""
            pages: int = 0

        class Mem(Memory):
            task: TaskState[Report] = TaskState(type=Report)

        await ctx.memory.task.patch({"pages": 3})
        ctx.memory.task.value.pages

    It is kept as plain data, which an interrupted run has again when it goes on. A child begins with the state of its
    parent; `children` says what comes back of it when it has succeeded.

    Attributes:
        type: A pydantic model, an attrs class, a dataclass or a `TypedDict`; without one the state is a dict.
        start: What the state begins with; left out, what the class makes of nothing.
        children: `"shallow"` takes each field that a child has changed, `"namespaced"` puts what it has changed into
            the field `namespace`, under the child's id, `"ignore"` takes nothing.
        namespace: The field for what children have changed; the class needs it, a mapping, for `"namespaced"`.
        max_bytes: How large the state may become, as bytes of JSON.

    Raises:
        ConfigError: A setting is wrong (`"task-state"`), the class says nothing of its fields (`"layer-schema"`), or
            cannot be made of nothing and there is no `start` (`"layer-initial"`).
    """

    type: builtins.type[T] | None = None
    start: T | None = None
    children: Literal["shallow", "namespaced", "ignore"] = "shallow"
    namespace: str = "children"
    max_bytes: int = 65_536

    def __attrs_post_init__(self) -> None:
        common.check_counts(self, "task-state", max_bytes=self.max_bytes)
        common.is_one_of(self, "task-state", "children", self.children, _MERGES)
        self.initial()
        if self.children == "namespaced" and self.type is not None and self.namespace not in shape_of(self.type).names:
            raise common.wrong(
                self,
                f"{self.type.__name__} has no field {self.namespace!r} for what children have changed",
                "task-state",
                f"{self.namespace}: dict[str, Any], or namespace= with another field",
            )

    def initial(self) -> dict[str, JsonValue]:
        """The state that a task begins with."""
        if self.type is None:
            return _as_dict(self)
        shape = shape_of(self.type)
        try:
            return shape.plain(self.type() if self.start is None else self.start)
        except (TypeError, ValueError) as error:
            raise common.wrong(
                self, f"no first state can be made of {self.type.__name__}: {error}", "layer-initial", "start="
            ) from error

    @property
    def value(self) -> T:
        """The state as a value of the class; one of its own each time, so changing it changes nothing.

        Raises:
            LayerError: What is stored does not fit the class, because that is another one now.
        """
        state: Any = copy_state(self.state)
        if self.type is not None:
            try:
                return shape_of(self.type).make(state)
            except ValueError as error:
                raise LayerError(
                    f"layer {self.id!r} has a state that is not a valid {self.type.__name__}: {error}",
                    layer=self.id,
                    hint="raise schema_version, and define migrate(self, state, version)",
                ) from error
        found: T = state
        return found

    async def put(self, value: T) -> None:
        """Put a value in place of the state.

        Raises:
            ToolArgumentsInvalid: It does not fit the class, or is too large; the state is as it was then.
        """
        given: Any = value
        try:
            state = given if self.type is None else shape_of(self.type).plain(value)
        except ValueError as error:
            raise common.refused(self, "put", f"the value does not fit: {error}") from error
        self._set("put", state)

    @function
    async def get(self) -> dict[str, JsonValue]:
        """Read the state of the task, all of it."""
        state: dict[str, JsonValue] = copy_state(self.state)
        return state

    @function
    async def patch(self, changes: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Change the state of the task: objects are merged, other values replaced, null takes a field away.

        Args:
            changes: The new values, by field.

        Raises:
            ToolArgumentsInvalid: They do not fit, or the state becomes too large; it is as it was then.
        """
        self._set("patch", common.patched(self.state, changes))
        return self.state

    async def recall(self, query: str, budget: int) -> str | None:
        """The state by field, as much as there is room for."""
        return common.within(self, common.readable(self.state), budget) or None

    def merge(
        self, base: dict[str, JsonValue], mine: dict[str, JsonValue], theirs: dict[str, JsonValue]
    ) -> dict[str, JsonValue]:
        """The fields that either has changed; of one that both have changed what the later has made of it."""
        state: dict[str, JsonValue] = common.latest(base, mine, theirs)
        return state

    async def on_return(self, child: Returned[dict[str, JsonValue]]) -> None:
        """The changes of the child, as `children` says."""
        if self.children == "shallow":
            self._set("on_return", common.merged(self.state, child, child.state, deep=False))
        elif self.children == "namespaced":
            known = child.began
            gone = dict.fromkeys(sorted(set(known) - set(child.state)))
            changes = {key: value for key, value in child.state.items() if key not in known or known[key] != value}
            if changes or gone:
                named: Any = self.state.get(self.namespace) or {}
                there = common.changed_by(named, {child.id: {**changes, **gone}}, {}, deep=False)
                self._set("on_return", {**self.state, self.namespace: there})

    def _set(self, name: str, state: dict[str, JsonValue]) -> None:
        size = len(json.dumps(state, ensure_ascii=False).encode(errors="replace"))
        if size > self.max_bytes:
            raise common.refused(self, name, f"the state would take {size} bytes of {self.max_bytes}")
        if self.type is not None:
            problems = shape_of(self.type).problems(state)
            if problems:
                raise common.refused(self, name, "\n".join(["the state does not fit:", *problems]))
        self.binding.write(state, self.binding.peek())


def _as_dict(layer: TaskState[Any]) -> dict[str, JsonValue]:
    start: object = {} if layer.start is None else layer.start
    if not is_dict(start):
        raise common.wrong(layer, "start= without type= is not valid; expected a dict", "task-state", "type=")
    state: dict[str, JsonValue] = copy_state(start)
    return state
