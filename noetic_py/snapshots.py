"""A conversation as data: what a context outside of a run holds, as JSON that another process reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py._types import is_dict, is_list
from noetic_py.derivation import is_branch
from noetic_py.errors import CodecError, InvalidId
from noetic_py.items import ItemBase
from noetic_py.state import StateBag
from noetic_py.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from noetic_py.items import Item

__all__ = ["Conversation", "pack", "unpack"]

_FORM = 1
_FIELDS = frozenset({"form", "items", "state", "turns", "thread", "request"})
# What those of earlier releases have not.
_ADDED = frozenset({"trace", "name"})


@frozen
class Conversation:
    """What a context holds that a later process can go on with.

    Attributes:
        items: The conversation.
        state: The state.
        turns: The model calls so far.
        thread_id: The conversation's id.
        request_id: The caller's correlation id.
        trace: The place in a distributed trace.
        name: What the context is called.
    """

    items: Sequence[Item]
    state: Any
    turns: int
    thread_id: str
    request_id: str | None
    trace: Trace | None = None
    name: str | None = None


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
            "trace": None if conversation.trace is None else list(conversation.trace.as_headers()),
            "name": conversation.name,
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
    if not is_dict(tree) or not _FIELDS <= tree.keys() <= _FIELDS | _ADDED or tree["form"] != _FORM:
        raise CodecError("is no snapshot of a context", hint="Context.restore(ctx.snapshot())")
    bag = state_type is StateBag
    codec = Codec(() if bag else (state_type,))
    items: object = codec.decode(tree["items"])
    if not is_list(items) or not all(isinstance(item, ItemBase) for item in items):
        raise CodecError("holds something that is no item", where="items")
    turns, thread, request = tree["turns"], tree["thread"], tree["request"]
    if type(turns) is not int or turns < 0:
        raise CodecError("is no number of turns", where="turns")
    name = tree.get("name")
    if not isinstance(thread, str) or not thread or not isinstance(request, str | None):
        raise CodecError("are no ids", where="thread, request")
    if not isinstance(name, str | None) or (name is not None and not is_branch(name)):
        raise CodecError("is no name", where="name")
    try:
        state = codec.decode(tree["state"], dict if bag else state_type)
    except CodecError as error:
        raise inside(error, "state") from error
    trace = _trace(tree.get("trace"))
    return Conversation(items, StateBag(state) if bag else state, turns, thread, request, trace, name)


def _trace(headers: object) -> Trace | None:
    if headers is None:
        return None
    try:
        return Trace.from_headers(headers)
    except InvalidId as error:
        raise CodecError(error.message, where="trace") from error
