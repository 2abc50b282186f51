"""A conversation as data: what a context outside of a run holds, as JSON that another process reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py._types import is_dict, is_list
from noetic_py.errors import CodecError
from noetic_py.items import ItemBase
from noetic_py.state import StateBag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from noetic_py.items import Item

__all__ = ["Conversation", "pack", "unpack"]

_FORM = 1
_FIELDS = frozenset({"form", "items", "state", "turns", "thread", "request"})


@frozen
class Conversation:
    """What a context holds that a later process can go on with.

    Attributes:
        items: The conversation.
        state: The state.
        turns: The model calls so far.
        thread_id: The conversation's id.
        request_id: The caller's correlation id.
    """

    items: Sequence[Item]
    state: Any
    turns: int
    thread_id: str
    request_id: str | None


def pack(conversation: Conversation) -> bytes:
    """A conversation as JSON.

    Raises:
        CodecError: An item or the state cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    from noetic_py.codec import Codec

    state = conversation.state
    bag = isinstance(state, StateBag)
    return Codec().dumps(
        {
            "form": _FORM,
            "items": list(conversation.items),
            "state": dict(state.view()) if bag else state,
            "turns": conversation.turns,
            "thread": conversation.thread_id,
            "request": conversation.request_id,
        }
    )


def unpack(data: bytes, state_type: type[Any]) -> Conversation:
    """The conversation that `pack` has made this of, its state checked to be a `state_type`.

    Raises:
        CodecError: It is malformed, of another form, or its state does not fit.
        LimitExceeded: It is too long, or nested too deep.
    """
    from noetic_py.codec import MAX_VALUE_BYTES, Codec
    from noetic_py.codec.text import inside, parse

    tree: object = parse(data, MAX_VALUE_BYTES, "value size")
    if not is_dict(tree) or tree.keys() != _FIELDS or tree["form"] != _FORM:
        raise CodecError("is no snapshot of a context", hint="Context.restore(ctx.snapshot())")
    bag = state_type is StateBag
    codec = Codec(() if bag else (state_type,))
    items: object = codec.decode(tree["items"])
    if not is_list(items) or not all(isinstance(item, ItemBase) for item in items):
        raise CodecError("holds something that is no item", where="items")
    turns, thread, request = tree["turns"], tree["thread"], tree["request"]
    if type(turns) is not int or turns < 0:
        raise CodecError("is no number of turns", where="turns")
    if not isinstance(thread, str) or not thread or not isinstance(request, str | None):
        raise CodecError("are no ids", where="thread, request")
    try:
        state = codec.decode(tree["state"], dict if bag else state_type)
    except CodecError as error:
        raise inside(error, "state") from error
    return Conversation(items, StateBag(state) if bag else state, turns, thread, request)
