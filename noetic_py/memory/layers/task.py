"""`TaskState`: what a task has come to, as a value of the user's own class that code and the model change."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from noetic_py.codec.text import is_dict
from noetic_py.errors import LayerError
from noetic_py.items import JsonValue
from noetic_py.memory.functions import function
from noetic_py.memory.hooks import Returned
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import (
    changed_by,
    check_counts,
    is_one_of,
    merged,
    patched,
    readable,
    refused,
    within,
    wrong,
)
from noetic_py.memory.layers.shape import shape_of
from noetic_py.state import copy_state

__all__ = ["TaskState"]

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
    parent; `merge` says what comes back of it when it has succeeded.

    Attributes:
        type: A pydantic model, an attrs class, a dataclass or a `TypedDict`; without one the state is a dict.
        start: What the state begins with; left out, what the class makes of nothing.
        merge: `"shallow"` takes each field that a child has changed, `"namespaced"` puts what it has changed into the
            field `namespace`, under the child's id, `"ignore"` takes nothing.
        namespace: The field for what children have changed; the class needs it, a mapping, for `"namespaced"`.
        max_bytes: How large the state may become, as bytes of JSON.

    Raises:
        ConfigError: A setting is wrong (`"task-state"`), the class says nothing of its fields (`"layer-schema"`), or
            cannot be made of nothing and there is no `start` (`"layer-initial"`).
    """

    type: builtins.type[T] | None = None
    start: T | None = None
    merge: Literal["shallow", "namespaced", "ignore"] = "shallow"
    namespace: str = "children"
    max_bytes: int = 65_536

    def __attrs_post_init__(self) -> None:
        check_counts(self, "task-state", max_bytes=self.max_bytes)
        is_one_of(self, "task-state", "merge", self.merge, _MERGES)
        self.initial()
        if self.merge == "namespaced" and self.type is not None and self.namespace not in shape_of(self.type).names:
            raise wrong(
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
            raise wrong(
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
                    f"layer {self.id!r} has a state that is no {self.type.__name__}: {error}",
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
            raise refused(self, "put", f"the value does not fit: {error}") from error
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
        self._set("patch", patched(self.state, changes))
        return self.state

    async def recall(self, query: str, budget: int) -> str | None:
        """The state by field, as much as there is room for."""
        return within(self, readable(self.state), budget) or None

    async def on_return(self, child: Returned[dict[str, JsonValue]]) -> None:
        """What the child has changed, as `merge` says."""
        if self.merge == "shallow":
            self._set("on_return", merged(self.state, child, child.state, deep=False))
        elif self.merge == "namespaced":
            known = child.began
            gone = dict.fromkeys(sorted(set(known) - set(child.state)))
            changes = {key: value for key, value in child.state.items() if key not in known or known[key] != value}
            if changes or gone:
                named: Any = self.state.get(self.namespace) or {}
                there = changed_by(named, {child.id: {**changes, **gone}}, {}, deep=False)
                self._set("on_return", {**self.state, self.namespace: there})

    def _set(self, name: str, state: dict[str, JsonValue]) -> None:
        size = len(json.dumps(state, ensure_ascii=False).encode(errors="replace"))
        if size > self.max_bytes:
            raise refused(self, name, f"the state would take {size} bytes of {self.max_bytes}")
        if self.type is not None:
            problems = shape_of(self.type).problems(state)
            if problems:
                raise refused(self, name, "\n".join(["the state does not fit:", *problems]))
        self.state = state


def _as_dict(layer: TaskState[Any]) -> dict[str, JsonValue]:
    start: object = {} if layer.start is None else layer.start
    if not is_dict(start):
        raise wrong(layer, "start= is no dict, and there is no type=", "task-state", "type=")
    state: dict[str, JsonValue] = copy_state(start)
    return state
