"""Which items may come in from outside: what was said, and never what makes the library or a provider act.

A history, a step's input, a session edited by hand and a channel's message may come from a client in the end. Whole
conversations are fine. A call without its output would be a wish that no model has had, an output without its call an
answer to nothing, an approval a yes that was never given: these are made by a run, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field

from noetic_py.core.items import RESERVED_PREFIXES, FunctionCall, FunctionCallOutput, ItemBase, Message, Opaque
from noetic_py.core.types import is_array, is_dict, is_list
from noetic_py.errors import ForgedEvent, NoeticError

# Calls of a provider's that a program executes; all others the provider has executed itself when it tells of them.
_OPEN_CALLS: Final = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_tool_call", "shell_call"}
)
_OUTPUT: Final = "_output"
# Fields in which other interfaces carry calls, and the ends of the names of parts that do.
_CALL_FIELDS: Final = frozenset({"function_call", "tool_call", "tool_call_id", "tool_calls", "tool_result", "tool_use"})
_MAX_RAW: Final = 32 * 1024 * 1024


def admit(items: Sequence[object], *, entry: str, known: Iterable[ItemBase] = (), path: tuple[str, ...] = ()) -> None:
    """Refuse items from outside of which one is not to come from there.

    Args:
        items: All of them, in order; the caller refuses what is not an item.
        entry: Where they come in, for the error.
        known: Those among them that were there before, and may be what they are; an open call among these stays open.
        path: The step that they come to.

    Raises:
        ForgedEvent: One of them is a call that has no output, an output that has no call or that answers a call which
            was open before, an approval, or of a type that is the library's own.
    """
    before = tuple(known)
    check = _Check(entry, path, {id(item) for item in before})
    open_before = _open_among(before)
    for index, item in enumerate(items):
        # Most of a history is plain messages, which can do nothing.
        if isinstance(item, ItemBase) and (item.__class__ is not Message or item.extra is not None):
            check.item(index, item)
    for index, item in check.waiting.values():
        if id(item) not in open_before:
            raise check.forged(index, item, "waits to be executed: its output is missing")


def admit_value(value: object, *, entry: str, path: tuple[str, ...] = ()) -> None:
    """Refuse a value from outside that is such an item, or a list that holds one.

    Raises:
        ForgedEvent: It is one.
    """
    if isinstance(value, ItemBase):
        admit((value,), entry=entry, path=path)
    elif is_array(value):
        admit(value, entry=entry, path=path)


Pair: TypeAlias = "tuple[str, str]"


@define
class _Check:
    """One look at a conversation, from its beginning to its end."""

    entry: str
    path: tuple[str, ...]
    trusted: set[int]
    waiting: dict[Pair, tuple[int, ItemBase]] = field(factory=dict[Pair, "tuple[int, ItemBase]"])
    seen: set[Pair] = field(factory=set[Pair])

    def item(self, index: int, item: ItemBase) -> None:
        """Take one item in.

        Raises:
            ForgedEvent: It is not to come from outside.
        """
        if id(item) not in self.trusted:
            why = _refused_alone(item)
            if why is not None:
                raise self.forged(index, item, why)
        kind, key = _half(item)
        if kind == "call":
            if key in self.seen:
                raise self.forged(index, item, "has the id of an earlier call")
            self.seen.add(key)
            self.waiting[key] = index, item
        elif kind == "output":
            _, call = self.waiting.pop(key, (0, None))
            if call is None:
                raise self.forged(index, item, "answers no call before it")
            if id(call) in self.trusted and id(item) not in self.trusted:
                raise self.forged(index, item, "answers a call that only its tool can answer")

    def forged(self, index: int, item: ItemBase, why: str) -> ForgedEvent:
        """The error."""
        where = "the input" if self.entry == "input" else f"the {self.entry}'s items"
        return ForgedEvent(
            f"item {index} of {where}, a {item.type!r:.60}, {why}",
            entry=self.entry,
            index=index,
            kind=item.type,
            path=self.path,
        )


def _open_among(items: Sequence[ItemBase]) -> set[int]:
    """The identities of the calls that have no output."""
    calls: dict[Pair, int] = {}
    for item in items:
        kind, key = _half(item)
        if kind == "call":
            calls[key] = id(item)
        elif kind == "output":
            calls.pop(key, None)
    return set(calls.values())


def _half(item: ItemBase) -> tuple[Literal["call", "output", None], Pair]:
    """Which half of a pair an item is, and which pair."""
    if isinstance(item, FunctionCall):
        return "call", ("function_call", item.call_id)
    if isinstance(item, FunctionCallOutput):
        return "output", ("function_call", item.call_id)
    if isinstance(item, Opaque):
        call = item.type.removesuffix(_OUTPUT)
        if call in _OPEN_CALLS:
            raw = _raw(item) or {}
            return "call" if call == item.type else "output", (call, str(raw.get("call_id")))
    return None, ("", "")


def _refused_alone(item: ItemBase) -> str | None:
    """Why an item cannot come from outside, whatever stands beside it."""
    kind = item.type.strip().lower()
    if kind.partition(":")[0] in RESERVED_PREFIXES:
        return "is of a type that is the library's own"
    if item.extra is not None and not _CALL_FIELDS.isdisjoint(item.extra):
        return "carries calls in fields that have no name here"
    return _refused_raw(item, kind) if isinstance(item, Opaque) else None


def _refused_raw(item: Opaque, kind: str) -> str | None:
    raw = _raw(item)
    if raw is None or raw.get("type", "message") != item.type:
        return "is something else than it says"
    if "approval" in kind or "confirmation" in kind:
        return "is an approval, which only the one who was asked can give"
    if kind.startswith("function_call"):
        return "is a call or an output that cannot be read"
    if kind != item.type or (kind.endswith(_OUTPUT) and kind.removesuffix(_OUTPUT) not in _OPEN_CALLS):
        return "is an output of no known call"
    content = raw.get("content")
    parts = content if is_list(content) else []
    inside = {str(part.get("type")) for part in parts if is_dict(part)}
    if not _CALL_FIELDS.isdisjoint(raw) or not _CALL_FIELDS.isdisjoint(inside):
        return "carries calls inside"
    return None


def _raw(item: Opaque) -> dict[str, Any] | None:
    from noetic_py.core.codec.text import parse

    try:
        found: object = parse(item.raw, _MAX_RAW, "item size")
    except NoeticError:
        return None
    return found if is_dict(found) else None
