"""Where a conversation may be cut, and what each part of it takes: kept up as the conversation grows.

A cut is *closed* where nothing that belongs together lies on both sides: every call before it has its output before it,
and an answer's reasoning, announcement and calls stay in one piece. Only there is a history ever cut.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal, Self, TypeAlias

from noetic_py.codec.text import is_dict
from noetic_py.items import FunctionCall, FunctionCallOutput, Item, Message, Opaque, Reasoning
from noetic_py.tokens import TokenCounter

__all__ = ["HistoryIndex"]


class HistoryIndex:
    """Token sums and closed cuts of one conversation.

    `update` looks at what is new and no more, so a turn costs its own items whatever came before; what was taken back
    meanwhile is noticed. The questions are answered by bisection.
    """

    # `_sums[i]` is what the items before i take, `_cuts` are the closed cuts behind which an item is known. The lists
    # are shared with forks: who finds that they go on behind its own `_size` or `_known` copies them first.
    __slots__ = ("_counter", "_cuts", "_input", "_items", "_known", "_open", "_scanned", "_size", "_sums")

    def __init__(self) -> None:
        self._counter: TokenCounter | None = None
        self._scanned = False
        self._clear()

    def _clear(self) -> None:
        self._items: list[Item] = []
        self._sums: list[int] = [0]
        self._cuts: list[int] = []
        self._size = 0
        self._known = 0
        self._open: frozenset[tuple[bool, str]] = frozenset()
        # Where the trailing run of what nobody has answered begins.
        self._input = 0

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> int:
        """What the whole conversation takes."""
        return self._sums[self._size]

    def fork(self) -> Self:
        """One that knows the same and goes its own way; costs nothing per item."""
        child = type(self)()
        child._counter, child._scanned = self._counter, self._scanned
        child._items, child._sums, child._cuts = self._items, self._sums, self._cuts
        child._size, child._known = self._size, self._known
        child._open, child._input = self._open, self._input
        return child

    # -- keeping up

    def update(self, items: Sequence[Item], counter: TokenCounter, *, grows: bool = True) -> int:
        """Take in a conversation as it is now.

        Args:
            items: All of it; every output stands behind its call.
            counter: What counts; with another one everything is counted anew.
            grows: Whether it changes at its end only, by appending and taking back. A list of any other kind is
                compared item by item.

        Returns:
            How many items at the start are the ones of the update before.
        """
        if self._counter is not counter:
            self._clear()
            self._counter = counter
        same = self._same(items, grows and not self._scanned)
        self._scanned = not grows
        if same < self._size:
            self._go_back(same)
        self._append(items, counter)
        return same

    def _same(self, items: Sequence[Item], grows: bool) -> int:
        last = min(self._size, len(items))
        known = self._items
        # In what changes at its end only, the same object at the same place has the same before it. An equal one has
        # not: the outputs that close open calls are made anew each time.
        if grows and last and items[last - 1] is known[last - 1]:
            return last
        pairs = enumerate(zip(known[:last], items, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours is not theirs and ours != theirs), last)

    def _go_back(self, size: int) -> None:
        """Forget the items from `size` on, and as many before it as make a closed cut."""
        known = bisect_right(self._cuts, size, 0, self._known)
        start = self._cuts[known - 1] if known else 0
        # The cut itself is decided anew: what followed it is gone.
        while known and self._cuts[known - 1] >= start:
            known -= 1
        self._items = self._items[:start]
        self._sums = self._sums[: start + 1]
        self._cuts = self._cuts[:known]
        self._size, self._known = start, known
        self._open = frozenset()
        self._input = start
        while self._input and _is_input(self._items[self._input - 1]):
            self._input -= 1

    def _append(self, items: Sequence[Item], counter: TokenCounter) -> None:
        new = items[self._size :]
        if not new:
            return
        if len(self._items) > self._size:
            self._items = self._items[: self._size]
            self._sums = self._sums[: self._size + 1]
        if len(self._cuts) > self._known:
            self._cuts = self._cuts[: self._known]
        open_calls = set(self._open)
        before = _kind(self._items[-1]) if self._items else None
        total = self._sums[-1]
        for place, item in enumerate(new, self._size):
            kind = _kind(item)
            if kind == "input" and open_calls:
                # The pairs of unknown items are a guess, which must not keep a conversation from ever being cut.
                open_calls = {half for half in open_calls if half[0]}
            if not open_calls and _may_part(before, kind):
                self._cuts.append(place)
            _note_halves(item, kind, open_calls)
            if kind != "input":
                self._input = place + 1
            total += counter.count_item(item).value
            self._sums.append(total)
            before = kind
        self._items.extend(new)
        self._size, self._known = len(self._items), len(self._cuts)
        self._open = frozenset(open_calls)

    # -- asking

    def tokens_from(self, start: int, stop: int | None = None) -> int:
        """What the items from `start` to `stop`, or to the end, take."""
        return self._sums[self._size if stop is None else stop] - self._sums[start]

    @property
    def tail(self) -> int:
        """Where the newest part begins, which a view never goes without.

        It is the input that nobody has answered yet; without one the last round, with all that the answer said before
        its calls.
        """
        if self._input < self._size:
            return self._input
        return self._cuts[self._known - 1] if self._known else 0

    @property
    def awaits_answer(self) -> bool:
        """Whether the newest item is input rather than something that the model began."""
        return self._input < self._size

    def cuts(self) -> Sequence[int]:
        """The closed cuts, the oldest first."""
        return tuple(self._cuts[: self._known])

    def oldest_cut(self, limit: int, latest: int) -> int:
        """The oldest closed cut behind which no more than `limit` tokens follow; `latest` where none before it is.

        Args:
            limit: Tokens that may follow.
            latest: A cut that is never passed, such as the beginning of the tail.
        """
        sums, end = self._sums, self._sums[self._size]
        # What follows a cut gets less from cut to cut.
        found = bisect_left(self._cuts, True, 0, self._known, key=lambda place: end - sums[place] <= limit)
        return min(self._cuts[found], latest) if found < self._known else latest


def _is_input(item: Item) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


# What an item is in its answer. An item of an unknown type is taken for a call, which it mostly is.
_Kind: TypeAlias = Literal["input", "output", "said", "reasoning", "call"]


def _kind(item: Item) -> _Kind:
    match item:
        case Message():
            return "said" if item.role == "assistant" else "input"
        case FunctionCallOutput():
            return "output"
        case Reasoning():
            return "reasoning"
        case Opaque():
            return "output" if item.type.endswith("_output") else "call"
        case _:
            return "call"


def _may_part(before: _Kind | None, now: _Kind) -> bool:
    """Whether a cut between two items leaves whole what one answer said, no call being open."""
    if before in (None, "input", "output") or now == "input":
        return True
    return before == "said" and now in ("said", "reasoning")


def _note_halves(item: Item, kind: _Kind, open_calls: set[tuple[bool, str]]) -> None:
    """Note a call that waits for its output, or an output that ends the waiting."""
    if isinstance(item, FunctionCall):
        open_calls.add((True, item.call_id))
    elif isinstance(item, FunctionCallOutput):
        open_calls.discard((True, item.call_id))
    elif isinstance(item, Opaque):
        call_id = _opaque_call(item)
        if call_id is not None:
            (open_calls.discard if kind == "output" else open_calls.add)((False, call_id))


def _opaque_call(item: Opaque) -> str | None:
    """The `call_id` of an item of an unknown type."""
    if b"call_id" not in item.raw:
        return None
    try:
        data: object = json.loads(item.raw)
    except (ValueError, RecursionError):
        return None
    found: object = data.get("call_id") if is_dict(data) else None
    return found if isinstance(found, str) else None
