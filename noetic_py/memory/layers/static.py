"""`StaticContent`: a text, or items, that the model always sees at the start."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from typing_extensions import TypeIs

from noetic_py.context.read import AnyReadContext
from noetic_py.core.items import Item, ItemBase
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import wrong
from noetic_py.memory.scopes import Scope, Slot

Content: TypeAlias = str | Sequence[Item]
"""A text, or items."""

Writer: TypeAlias = Callable[[AnyReadContext], Awaitable[Content | None]]
"""An async function that writes content, given what can be read of the run."""


class StaticContent(MemoryLayer[None]):
    """A text, items, or an async function that gives them, at the start of each request.

        class Mem(Memory):
            rules: StaticContent = StaticContent(content="House rules: cite a source for each claim.")

    A function is asked before each model call; with `recall_mode="eventual"` once in an execution. The layer has no
    state, so nothing of it is stored.

    Attributes:
        content: What the model sees; `None` from a function is nothing.

    Raises:
        ConfigError: The content is blank, no text, no items or no async function; code `"static-content"`.
    """

    content: Content | Writer
    slot: int = Slot.SYSTEM
    scope: Scope = Scope.EXECUTION
    placement: Literal["anchor", "live", "auto"] = "anchor"

    def __attrs_post_init__(self) -> None:
        given: object = self.content
        if isinstance(given, str):
            if not given.strip():
                raise wrong(self, "content= is blank", "static-content", "leave the layer out")
        elif _is_sequence(given):
            if not given or not all(isinstance(item, ItemBase) for item in given):
                raise wrong(
                    self,
                    "content= is not valid; expected a sequence of items",
                    "static-content",
                    "[Message.developer(...)]",
                )
            # A tuple of the layer's own, so that the anchored content does not change.
            self.__dict__["content"] = tuple(given)
        elif not _is_async(given):
            raise wrong(
                self, f"content={given!r} is neither content nor an async function", "static-content", "async def"
            )

    async def recall(self, query: str, budget: int) -> Content | None:
        """The content."""
        if not callable(self.content):
            return self.content
        return await self.content(self.ctx)


def _is_sequence(given: object) -> TypeIs[Sequence[object]]:
    return isinstance(given, Sequence)


def _is_async(given: object) -> bool:
    return inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None))  # noqa: B004
