"""`ContextItem`: one entry of a queue or a pool."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

from attrs import Attribute, field, frozen
from typing_extensions import TypeVar

from noetic_py.errors import StateTypeError

if TYPE_CHECKING:
    from noetic_py.codec import Codec

__all__ = ["ContextItem", "T", "T_co", "codec_or_own"]

# Without brackets anything goes.
T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", covariant=True, default=Any)


def _text_or_none(item: ContextItem[Any], attribute: Attribute[str | None], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise StateTypeError(
            f"the {attribute.name} of a ContextItem is {type(value).__name__}, not text",
            hint=f'ContextItem(content, {attribute.name}="...")',
        )


@frozen
class ContextItem(Generic[T_co]):
    """Something to keep for later, and what to know about it before it is looked at.

    It is a value: it cannot be changed, two of equal parts are equal, and it can be hashed when its content can. A
    queue takes any; a pool needs `id` and `description`. When a tool returns one, the run puts it into its queue, or
    into its pool when it has an id.

    Attributes:
        content: What is kept.
        description: What to choose it by, in a line.
        id: Its key in a pool.

    Raises:
        StateTypeError: The description or the id is no text.
    """

    content: T_co
    description: str | None = field(default=None, validator=_text_or_none)
    id: str | None = field(default=None, validator=_text_or_none)

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextItem[T_co]:
        # As a tuple does it: what holds nothing that could change is its own copy.
        content = copy.deepcopy(self.content, memo)
        return self if content is self.content else type(self)(content, self.description, self.id)

    def dump(self, *, codec: Codec | None = None) -> dict[str, Any]:
        """The entry as plain data that JSON can hold.

        Args:
            codec: How the content is stored; the library's own when left out.

        Raises:
            CodecError: The content cannot be stored.
        """
        fields = {"content": self.content, "description": self.description, "id": self.id}
        dumped: dict[str, Any] = codec_or_own(codec).encode(fields)
        return dumped

    @classmethod
    def load(cls, data: Mapping[str, Any], *, type: Any = object, codec: Codec | None = None) -> ContextItem[T_co]:
        """The entry that `dump` has made this of.

        Args:
            data: What `dump` gave.
            type: What the content is; `object` makes only plain values and classes that are registered with `codec`.
            codec: How the content was stored.

        Raises:
            CodecError: It is no such entry.
        """
        form: Any = cls
        given: object = data
        tree = dict(data) if isinstance(given, Mapping) else given
        loaded: ContextItem[T_co] = codec_or_own(codec).decode(tree, form[type])
        return loaded


def codec_or_own(given: Codec | None) -> Codec:
    """The codec that was given, or the library's own."""
    if given is not None:
        return given
    from noetic_py.codec import Codec

    return Codec()
