"""What stands around the conversation in a request to a model, with its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from noetic_py.models.base import JsonValue, OutputSchema
from noetic_py.tokens import TokenCounter

__all__ = ["Head"]


def _system(head: Head) -> int:
    return head.counter.count_text(head.instructions).value if head.instructions else 0


def _schemas(head: Head) -> int:
    texts = [json.dumps(tool) for tool in head.tools]
    if head.output is not None:
        texts.append(json.dumps(head.output.schema))
    return sum(head.counter.count_text(text).value for text in texts)


@frozen(eq=False)
class Head:
    """What stands around the conversation in a request, counted once.

    Args:
        counter: What counts tokens for the model.
        instructions: The system instructions.
        tools: The tools' definitions as the request has them.
        output: The schema of the answer.
        window: Tokens that request and answer may have together, `None` when nobody knows.
        reserved: Tokens of the window kept for the answer.
        model: The model's name; another one has another cache.

    Attributes:
        system: Tokens of the instructions.
        schemas: Tokens of the tools and the output schema.
    """

    counter: TokenCounter
    instructions: str | None = None
    tools: Sequence[Mapping[str, JsonValue]] = ()
    output: OutputSchema | None = None
    window: int | None = None
    reserved: int = 0
    model: str | None = None
    system: int = field(init=False)
    schemas: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "system", _system(self))
        object.__setattr__(self, "schemas", _schemas(self))

    @property
    def room(self) -> int | None:
        """Tokens left for the conversation and the layers; `None` when the window is not known."""
        return None if self.window is None else self.window - self.reserved - self.system - self.schemas

    def moved_from(self, other: Head) -> str | None:
        """What makes the start of a request another one than that of `other`."""
        if self is other:
            return None
        if self.model != other.model or self.counter is not other.counter:
            return "model"
        if self.instructions != other.instructions:
            return "instructions"
        return "tools" if tuple(self.tools) != tuple(other.tools) or self.output != other.output else None
