"""`WorkingMemory`: notes that code and the model keep together, and that the model always sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import TypeVar

from noetic_py.core.items import JsonValue
from noetic_py.core.state import copy_state
from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer, Returned
from noetic_py.memory.layers import common
from noetic_py.memory.layers.task import shape_of

ValueT = TypeVar("ValueT", default=Any)


class Notes(MemoryLayer[dict[str, ValueT]]):
    """Base of `WorkingMemory` and `NestedMemory`, which describe the settings."""

    schema: type[Any] | None = None
    children: common.MergeMode = "merge"
    max_bytes: int = 32_768

    def __attrs_post_init__(self) -> None:
        common.check_counts(self, "working-memory", max_bytes=self.max_bytes)
        common.is_one_of(self, "working-memory", "children", self.children, ("merge", "ignore"))
        if self.schema is not None:
            shape_of(self.schema)

    @property
    def snapshot(self) -> Mapping[str, ValueT]:
        """The notes as they are now; a copy, so changing it changes nothing."""
        notes: dict[str, ValueT] = copy_state(self.state)
        return notes

    async def recall(self, query: str, budget: int) -> str | None:
        """The notes by key, as many as there is room for."""
        return common.within(self, common.readable(self.state), budget) or None

    def merge(self, base: dict[str, ValueT], mine: dict[str, ValueT], theirs: dict[str, ValueT]) -> dict[str, ValueT]:
        """The notes of both; of a note that both have written the later one."""
        notes: dict[str, ValueT] = common.latest(base, mine, theirs)
        return notes

    async def on_return(self, child: Returned[dict[str, ValueT]]) -> None:
        """The changes of the child, if `children` takes them over."""
        if self.children == "merge":
            self._put("update", common.merged(self.state, child, child.state))

    def _put(self, name: str, notes: dict[str, Any], *, strict: bool = True) -> None:
        size = len(json.dumps(notes, ensure_ascii=False).encode(errors="replace"))
        if size > self.max_bytes:
            raise common.refused(
                self, name, f"the notes would take {size} bytes of {self.max_bytes}", "take away what is not needed"
            )
        if self.schema is not None:
            problems = shape_of(self.schema).problems(notes, strict=strict, partial=True)
            if problems:
                raise common.refused(self, name, "\n".join(["the notes do not fit:", *problems]))
        self.state = notes


class WorkingMemory(Notes[str]):
    """Short notes by key, which the model sees in each request and can change.

        class Mem(Memory):
            notes: WorkingMemory = WorkingMemory()

        await ctx.memory.notes.update({"topic": "tides", "draft": None})

    The notes are shown in the order of their keys, so that equal notes are equal bytes. A child begins with the notes
    of its parent, and what it changes of them is merged into the parent's when it has succeeded.

    Attributes:
        schema: A class whose fields the notes are: a pydantic model, an attrs class, a dataclass or a `TypedDict`. An
            update that does not fit them is refused; fields that have no value yet may be missing.
        children: What is taken of a child that has succeeded: what it has changed of the notes, or nothing.
        max_bytes: How large the notes may become, as bytes of JSON.

    Raises:
        ConfigError: A setting is wrong; code `"working-memory"`, or `"layer-schema"`.
    """

    @function
    async def update(self, patch: Mapping[str, str | None]) -> None:
        """Change the notes: a key gets a new text, and null takes a note away. What is not named stays.

        Args:
            patch: New texts by key.

        Raises:
            ToolArgumentsInvalid: They do not fit the schema, or there would be too much; nothing has changed then.
        """
        notes: dict[str, Any] = {**self.state, **patch}
        # In text a number looks like any other word, so the schema decides whether to read it as one.
        self._put("update", {key: text for key, text in notes.items() if text is not None}, strict=False)


class NestedMemory(Notes[JsonValue]):
    """Notes of any form JSON has, which are merged deeply; otherwise as `WorkingMemory`.

        await ctx.memory.profile.update({"user": {"name": "Ada", "tags": ["a"]}})
        await ctx.memory.profile.update({"user": {"tags": None}})

    Settings and errors are those of `WorkingMemory`.
    """

    @function
    async def update(self, patch: Mapping[str, JsonValue]) -> None:
        """Change the notes: objects are merged, lists and values take the old one's place, null takes a key away.

        Args:
            patch: What is to change, by key.

        Raises:
            ToolArgumentsInvalid: It does not fit the schema, or there would be too much; nothing has changed then.
        """
        self._put("update", common.patched(self.state, patch))
