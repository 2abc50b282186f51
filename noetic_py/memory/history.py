"""The conversation in a request: where it may be cut, what each part costs, and its unchanged start."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import is_
from typing import Final, Literal, Self, TypeAlias

from attrs import evolve, frozen

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message, Opaque, Reasoning
from noetic_py.core.tokens import TokenCounter
from noetic_py.core.values import is_dict
from noetic_py.memory.blocks import LayerBlock, Part, as_items, mark_of, part_of

MADE_BY_LAYERS = "history"
"""The layer that items are marked with which the layers added to the history between them."""


class Narrowing:
    """What a view shows of a conversation that the layers narrowed, before its tail.

    A list that goes on where an earlier one ended costs what is new in it.

    Args:
        projected: The history as the layers hand it on, with the tail or without it.
        history: The conversation.
        tail: Where its tail begins.
        before: The narrowing of the request before.

    Attributes:
        wanted: What the layers show.
        kept: The same without halves of pairs.
    """

    __slots__ = ("_history", "_projected", "_tail", "kept", "wanted")

    def __init__(
        self, projected: Sequence[Item], history: Sequence[Item], tail: int, before: Narrowing | None = None
    ) -> None:
        new = None if before is None else before._continued(projected, history, tail)
        if before is None or new is None:
            self.wanted: Sequence[Item] = narrowed(projected, history, tail)
            self.kept: Sequence[Item] = paired(self.wanted)
        else:
            self.wanted, self.kept = [*before.wanted, *new], [*before.kept, *paired(new)]
        self._projected, self._history, self._tail = tuple(projected), tuple(history), tail

    def _continued(self, projected: Sequence[Item], history: Sequence[Item], tail: int) -> Sequence[Item] | None:
        """The items behind the earlier ones, where both lists went on with the same; `None` where they did not."""
        start = len(self._projected) - (len(self._history) - self._tail)
        grown = len(history) - len(self._history)
        if not (start >= 0 and tail >= self._tail and grown >= 0 and len(projected) - len(self._projected) == grown):
            return None
        if not (all(map(is_, self._projected, projected)) and all(map(is_, self._history, history))):
            return None
        # What was the tail before is behind a closed cut. Only an answer may still follow on reasoning.
        reasoned = self.wanted and isinstance(self.wanted[-1], Reasoning)
        if reasoned or not all(map(is_, projected[start:], history[self._tail :])):
            return None
        return history[self._tail : tail]


def narrowed(projected: Sequence[Item], history: Sequence[Item], tail: int) -> Sequence[Item]:
    """The part of the conversation before its tail that the layers show.

    Args:
        projected: The history as the layers hand it on, with the tail or without it.
        history: The conversation.
        tail: Where its tail begins.
    """
    start = len(history) - len(projected)
    if 0 <= start <= tail and all(map(is_, projected, history[start:])):
        # Nothing was added to it or replaced in it.
        return history[start:tail]
    known = {item.id: item for item in history}
    of_tail = {item.id for item in history[tail:]}
    kept = [item for item in projected if item.id not in of_tail]
    added = [place for place, item in enumerate(kept) if not _stands_for(item, known.get(item.id))]
    marked = as_items(MADE_BY_LAYERS, [kept[place] for place in added])
    for place, item in zip(added, marked, strict=True):
        kept[place] = item
    return kept


def _stands_for(item: Item, original: Item | None) -> bool:
    """Whether an item is one of the conversation, or may stand in its place."""
    if item is original:
        return True
    if isinstance(item, Message) and isinstance(original, Message):
        return item.role == original.role
    if isinstance(item, FunctionCall) and isinstance(original, FunctionCall):
        return item.call_id == original.call_id
    if isinstance(item, FunctionCallOutput) and isinstance(original, FunctionCallOutput):
        return item.call_id == original.call_id
    return item == original


def paired(items: Sequence[Item]) -> Sequence[Item]:
    """The items without what a provider refuses when a history was narrowed with no regard for it.

    A call goes that has no output behind it or whose id was used before, an output that has no call before it, and
    reasoning of which nothing follows.
    """
    waiting: dict[str, int] = {}
    seen: set[str] = set()
    whole: set[int] = set()
    for place, item in enumerate(items):
        if isinstance(item, FunctionCall) and item.call_id not in seen:
            seen.add(item.call_id)
            waiting[item.call_id] = place
        elif isinstance(item, FunctionCallOutput):
            call = waiting.pop(item.call_id, None)
            if call is not None:
                whole |= {call, place}
    kept: list[Item] = []
    follows = False
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, FunctionCall | FunctionCallOutput) and place not in whole:
            continue
        if isinstance(item, Reasoning) and not follows:
            continue
        follows = _of_an_answer(item)
        kept.append(item)
    if len(kept) == len(items):
        return items
    kept.reverse()
    return kept


@frozen
class HistoryListing:
    """How the layers made a list of a conversation: what they showed of it, and what they put in between.

    Attributes:
        entries: The beginning: stretches of the conversation from one place to another, and items that are not of it.
        start: From where on the conversation follows, up to its end.
    """

    entries: tuple[tuple[int, int] | Item, ...]
    start: int

    def items(self, history: Sequence[Item]) -> list[Item]:
        """The list."""
        # A slice of a list costs less than one of a view, and there can be many.
        made, every = list[Item](), [*history]
        for entry in self.entries:
            made += every[entry[0] : entry[1]] if isinstance(entry, tuple) else [entry]
        return made + every[self.start :]


def listing_of(items: Sequence[Item], history: Sequence[Item], before: HistoryListing | None) -> HistoryListing:
    """How a list was made of a conversation.

    Args:
        items: The list.
        history: The conversation.
        before: How an earlier list was made: mostly, this one goes on where that one ended.
    """
    start = len(history) - len(items)
    for likely in (before, HistoryListing((), start) if start >= 0 else None):
        if likely is not None and likely.items(history) == items:
            return likely
    return _listing(items, history)


def _listing(items: Sequence[Item], history: Sequence[Item]) -> HistoryListing:
    """The same, read from the end, which the two have in common."""
    entries: list[tuple[int, int] | Item] = []
    place = end = len(history)
    start: int | None = None
    # Of one item in two places the first: later entries come first here.
    places = {id(each): at for at, each in zip(range(end - 1, -1, -1), reversed(history), strict=True)}
    for item in reversed(items):
        if place and history[place - 1] is item:
            place -= 1
            continue
        if start is None:
            start = place
        elif place < end:
            entries.append((place, end))
        found = places.get(id(item))
        if found is not None and found < place:
            place, end = found, found + 1
            continue
        entries.append(item)
        # One that stands in the place of another has its id.
        place -= bool(place and history[place - 1].id == item.id)
        end = place
    if start is None:
        return HistoryListing((), place)
    if place < end:
        entries.append((place, end))
    entries.reverse()
    return HistoryListing(tuple(entries), start)


def _of_an_answer(item: Item) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return not isinstance(item, FunctionCallOutput)


EPOCH_LENGTH: Final = 50
"""Assemblies after which an epoch ends, unless that costs more than it saves."""

SUPERSEDES_PERCENT: Final = 15
"""Of the window: when what supersedes pinned blocks takes more, it is cheaper to send the blocks again."""

MISSED: Final = "the provider reported a cache miss"
"""The reason of an epoch that began because nothing was left in the provider's cache."""

# The provider may still be writing its cache while an epoch is this young.
_SETTLING: Final = 2


@frozen
class Pin:
    """A block as an epoch shows it.

    Attributes:
        block: What was recalled.
        whole: What is shown of it when there is room.
        part: What is shown of it now.
    """

    block: LayerBlock
    whole: Part
    part: Part


@frozen
class Habit:
    """How a layer's content has behaved.

    Attributes:
        mark: Stands for what was recalled last; the ids of items are made from their content.
        changes: A bit for each of the last four assemblies.
        fluid: Whether two of four in a row differed.
        volatile: Whether a recall has changed the layer's own state.
        restless: Whether the content has changed in this epoch.
        stirs: A bit for each of the last four assemblies within turns.
    """

    mark: str
    changes: int = 0
    fluid: bool = False
    volatile: bool = False
    restless: bool = False
    stirs: int = 0

    def after(self, block: LayerBlock, *, first_round: bool) -> Habit:
        """The same, one assembly later."""
        mark = mark_of(block.items)
        changed = mark != self.mark
        changes = (self.changes << 1 | changed) & 0b1111
        return Habit(
            mark,
            changes,
            self.fluid or changes.bit_count() >= 2,
            self.volatile or block.volatile,
            self.restless or changed,
            self.stirs if first_round else (self.stirs << 1 | changed) & 0b1111,
        )

    @property
    def unrest(self) -> tuple[int, int]:
        """How often it has changed lately, within turns and in all: what is less comes first."""
        return self.stirs.bit_count(), self.changes.bit_count()


class Anchors:
    """The epochs of one conversation: what is pinned, since when, and which layers are too restless to be.

    Attributes:
        number: Which epoch this is, from 1; 0 before the first assembly.
        reason: Why it began.
        assemblies: How many requests were assembled in it.
        due: Why it ends with the next request, `None` while it goes on.
        habits: How each layer's content has behaved.
        paid: Tokens that its requests have spent on what the next epoch pins.
    """

    __slots__ = ("_pins", "assemblies", "due", "habits", "number", "paid", "reason")

    def __init__(self, pins: Sequence[Pin] = ()) -> None:
        self.number: int = 0
        self.reason: str = ""
        self.assemblies: int = 0
        self.due: str | None = None
        self.paid: int = 0
        self.habits: dict[str, Habit] = {}
        self._pins: dict[str, Pin] = {pin.block.layer: pin for pin in pins}

    def fork(self) -> Self:
        """The same epoch, which from now on goes its own way."""
        child = type(self)(self.pins)
        child.number, child.reason, child.assemblies = self.number, self.reason, self.assemblies
        child.due, child.habits, child.paid = self.due, self.habits.copy(), self.paid
        return child

    @property
    def pins(self) -> Sequence[Pin]:
        """The pinned blocks in order."""
        return tuple(self._pins.values())

    def pin_of(self, layer: str) -> Pin | None:
        """The pinned block of a layer."""
        return self._pins.get(layer)

    @property
    def squeezed(self) -> int:
        """Tokens that pinned blocks go without because the window had no room for them."""
        return sum(pin.whole.tokens - pin.part.tokens for pin in self._pins.values())

    @property
    def ending(self) -> str | None:
        """Why the epoch is over, whatever the next request holds; `None` while it goes on."""
        return "cold start" if self.number == 0 else self.due

    def missed(self) -> None:
        """Hear that the provider had nothing of the start of the last request in its cache."""
        if self.assemblies > _SETTLING:
            self.due = MISSED

    def observe(self, blocks: Sequence[LayerBlock], *, first_round: bool = True) -> None:
        """Note whether the layers recalled the same as before; `first_round` says whether a turn begins."""
        habits = self.habits
        for block in blocks:
            known = habits.get(block.layer)
            if known is None:
                habits[block.layer] = Habit(mark_of(block.items), volatile=block.volatile)
            else:
                habits[block.layer] = known.after(block, first_round=first_round)

    def begin(self, reason: str, blocks: Sequence[LayerBlock], counter: TokenCounter) -> None:
        """Begin an epoch: pin what belongs to the start of the request, as it is now.

        Args:
            reason: Why.
            blocks: What was recalled, observed already, in the order of the slots.
            counter: What counts.
        """
        # A layer that did not change for a whole epoch may be pinned again.
        self.habits = {
            layer: evolve(habit, fluid=habit.fluid and habit.restless, restless=False)
            for layer, habit in self.habits.items()
        }
        self.number += 1
        self.reason = reason
        why = f"pinned since epoch {self.number} began"
        self._pins = {}
        for block in blocks:
            if block.items and self.is_anchored(block):
                part = part_of(block, "anchor", why, counter)
                self._pins[block.layer] = Pin(block, part, part)
        self.assemblies = self.paid = 0
        self.due = None

    def is_anchored(self, block: LayerBlock) -> bool:
        """Whether a block belongs to the start of the request when an epoch begins."""
        habit = self.habits[block.layer]
        if habit.volatile or block.placement == "live":
            return False
        return block.placement == "anchor" or not habit.fluid

    def is_still(self, layer: str) -> bool:
        """Whether a layer changes so little that its block may stay where it is from turn to turn."""
        habit = self.habits.get(layer)
        if habit is None or self.assemblies < _SETTLING:
            return False
        return not (habit.fluid or habit.restless or habit.volatile)

    def kept_still(self, layer: str) -> bool:
        """Whether a layer that is not pinned has not changed in this epoch."""
        habit = self.habits[layer]
        return habit.fluid and not (habit.restless or habit.volatile)

    def why_live(self, block: LayerBlock) -> str:
        """Why a block stands behind the history."""
        habit = self.habits[block.layer]
        if block.placement == "live":
            return "the layer asks for it"
        if habit.volatile:
            return "its recall changes its own state"
        if block.placement == "auto" and habit.fluid:
            return "its content keeps changing"
        return "it had nothing when the epoch began"

    def reshow(self, part: Part) -> None:
        """Show a pinned block in another way from now on."""
        self._pins[part.layer] = evolve(self._pins[part.layer], part=part)

    def stale(self, blocks: Sequence[LayerBlock]) -> list[tuple[LayerBlock, Pin]]:
        """The blocks that are no longer what is pinned of their layer."""
        pairs = [(block, self._pins.get(block.layer)) for block in blocks]
        return [(block, pin) for block, pin in pairs if pin is not None and pin.block.items != block.items]


class HistoryIndex:
    """Token sums and closed cuts of one conversation.

    `update` looks at what is new and no more, so a turn costs its own items whatever came before; what was taken back
    meanwhile is noticed. The questions are answered by bisection.
    """

    # `_sums[i]` is what the items before i take, `_cuts` are the closed cuts behind which an item is known. The lists
    # are shared with forks: an index whose shared part continues past its own `_size` or `_known` copies it first.
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
        # Where the trailing run of unanswered messages begins.
        self._input = 0

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> int:
        """The tokens of the whole conversation."""
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
            counter: The token counter; with another one everything is counted again.
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
        # In what changes at its end only, the same item at the same place has the same before it. Only the outputs that
        # close open calls are made anew each time.
        if grows and last and _is_same_item(items[last - 1], known[last - 1]):
            return last
        if all(map(is_, known[:last], items)):
            return last
        pairs = enumerate(zip(known[:last], items, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours is not theirs and ours != theirs), last)

    def _go_back(self, size: int) -> None:
        """Forget the items from `size` on, and as many before it as make a closed cut."""
        known = bisect_right(self._cuts, size, 0, self._known)
        start = self._cuts[known - 1] if known else 0
        # The cut is decided again: the items after it are gone.
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

    def shared_with(self, items: Sequence[Item]) -> int:
        """How many items at the start another list has too."""
        return self._same(items[: self._size], grows=False)

    def run(self, start: int, items: Sequence[Item]) -> int:
        """How many items from `start` on are those that another list begins with."""
        known = self._items[start : self._size]
        others = [place for place, same in enumerate(map(is_, known, items)) if not same]
        end = min(len(known), len(items))
        return next((place for place in others if known[place] != items[place]), end)

    def tokens_from(self, start: int, stop: int | None = None) -> int:
        """The tokens of the items from `start` to `stop`, or to the end."""
        return self._sums[self._size if stop is None else stop] - self._sums[start]

    @property
    def tail(self) -> int:
        """Where the newest part begins, which a view never goes without.

        It is the input that is not answered yet; without one the last round, with all that the answer said before
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

    def may_begin(self, place: int) -> bool:
        """Whether what follows a place can be shown without what stands before it."""
        found = bisect_left(self._cuts, place, 0, self._known)
        return place in (0, self.tail) or (found < self._known and self._cuts[found] == place)

    def oldest_cut(self, limit: int, latest: int) -> int:
        """The oldest closed cut behind which no more than `limit` tokens follow; `latest` where none before it is.

        Args:
            limit: Tokens that may follow.
            latest: A cut that is never passed, such as the beginning of the tail.
        """
        sums, end = self._sums, self._sums[self._size]
        # The part after a cut shrinks from cut to cut.
        found = bisect_left(self._cuts, True, 0, self._known, key=lambda place: end - sums[place] <= limit)
        return min(self._cuts[found], latest) if found < self._known else latest


def _is_same_item(one: Item, other: Item) -> bool:
    if one is other:
        return True
    return one == other and not (isinstance(one, FunctionCallOutput) and one.status == "incomplete")


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
