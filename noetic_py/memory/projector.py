"""The projector: from a conversation and what the layers recalled to what the model is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Self

from attrs import evolve, field, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import Item, JsonValue
from noetic_py.core.tokens import TokenCounter
from noetic_py.core.view import Dropped, LayerUsage, View, ViewBlock
from noetic_py.errors import LimitExceeded
from noetic_py.journal.changes import item_mark
from noetic_py.memory.blocks import (
    LayerBlock,
    Part,
    Parts,
    PlacedPart,
    first_other,
    made_id,
    mark_of,
    part_of,
    superseding,
    total,
    weigh,
)
from noetic_py.memory.history import (
    EPOCH_LENGTH,
    MISSED,
    SUPERSEDES_PERCENT,
    Anchors,
    HistoryIndex,
    HistoryListing,
    Narrowing,
    Pin,
)
from noetic_py.models.model import OutputSchema


def _system(head: RequestHead) -> int:
    return head.counter.count_text(head.instructions).value if head.instructions else 0


def _schema_texts(head: RequestHead) -> list[str]:
    texts = [json.dumps(tool) for tool in head.tools]
    return texts if head.output is None else [*texts, json.dumps(head.output.schema)]


@frozen
class HeadMark:
    """What stands around a conversation, as far as another process can compare it: names and digests.

    Attributes:
        model: The model's name.
        counter: The counter's name.
        instructions: A digest of the system instructions.
        tools: A digest of the tools and the output schema.
        counted_by: The counter, in the process that has made the view.
    """

    model: str | None
    counter: str
    instructions: str
    tools: str
    counted_by: TokenCounter | None = None


@frozen(eq=False)
class RequestHead:
    """The fixed parts around the conversation in a request, counted once.

    Args:
        counter: What counts tokens for the model.
        instructions: The system instructions.
        tools: The tools' definitions as the request has them.
        output: The schema of the answer.
        window: Tokens that request and answer may have together, `None` when it is not known.
        reserved: Tokens of the window kept for the answer.
        model: The model's name; another one has another cache.

    Attributes:
        system: Tokens of the instructions.
        schemas: Tokens of the tools and the output schema.
        mark: What another process can compare it by.
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
    mark: HeadMark = field(init=False)

    def __attrs_post_init__(self) -> None:
        texts, counter = _schema_texts(self), self.counter
        name: str = getattr(counter, "encoding", type(counter).__qualname__)
        mark = HeadMark(self.model, name, made_id(self.instructions or ""), made_id(*texts), counter)
        object.__setattr__(self, "system", _system(self))
        object.__setattr__(self, "schemas", sum(counter.count_text(text).value for text in texts))
        object.__setattr__(self, "mark", mark)

    @property
    def room(self) -> int | None:
        """Tokens left for the conversation and the layers; `None` when the window is not known."""
        return None if self.window is None else self.window - self.reserved - self.system - self.schemas

    def moved_from(self, other: HeadMark) -> str | None:
        """The difference between the start of this request and that of another one."""
        mark = self.mark
        if mark is other:
            return None
        known = other.counted_by is None or other.counted_by is self.counter
        if not known or (mark.model, mark.counter) != (other.model, other.counter):
            return "model"
        if mark.instructions != other.instructions:
            return "instructions"
        return None if mark.tools == other.tools else "tools"


DEFAULT_MAXIMUM: Final = 4_096
"""Tokens of a layer without a maximum of its own, where the window of the model is not known."""

# Of what the minimums leave, the layers get at most this much; the history keeps the rest.
_LAYERS_PERCENT: Final = 60


@frozen
class Demand:
    """The demand of a layer.

    Args:
        layer: The layer's id.
        minimum: Tokens it gets before anything is shared.
        maximum: The most it can use; `None` for no limit of its own.

    Raises:
        ValueError: The minimum is negative or above the maximum.
    """

    layer: str
    minimum: int = 0
    maximum: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(f"layer {self.layer!r} asks for {self.minimum} to {self.maximum} tokens")


def _read_only(layers: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(layers))


@frozen
class Allocation:
    """The token allocation of a request.

    Attributes:
        layers: Tokens by layer id, in the order asked.
        history: Tokens of the history, its newest part included; `None` for as many as it has.
    """

    layers: Mapping[str, int] = field(converter=_read_only)
    history: int | None

    @property
    def total(self) -> int | None:
        """All of it together, `None` when the history has no limit."""
        return None if self.history is None else self.history + sum(self.layers.values())


def allocate(pool: int, demands: Sequence[Demand]) -> Allocation:
    """Share a pool of tokens out.

    When the pool is too short for the minimums, the earlier layers get theirs. Of the rest each layer gets an equal
    part, none more than its maximum: the others share what that leaves. The same pool and demands always give the same
    shares.

    Args:
        pool: Tokens there are; a negative number counts as none.
        demands: What the layers ask for, the most important first.

    Raises:
        ValueError: Two demands are of the same layer.
    """
    rest = max(pool, 0)
    given: dict[str, int] = {}
    for demand in demands:
        if demand.layer in given:
            raise ValueError(f"layer {demand.layer!r} asks twice")
        given[demand.layer] = least = min(demand.minimum, rest)
        rest -= least
    share = rest * _LAYERS_PERCENT // 100
    # A layer without a maximum could use all there is to share.
    rooms = [share if demand.maximum is None else demand.maximum - demand.minimum for demand in demands]
    for demand, more in zip(demands, _in_equal_parts(share, rooms), strict=True):
        given[demand.layer] += more
        rest -= more
    return Allocation(given, rest)


def allocate_unknown(demands: Sequence[Demand]) -> Allocation:
    """The allocation without a known window: each layer its maximum, the history all of it.

    A layer without a maximum gets 4096 tokens, or its minimum if that is more.
    """
    layers = {
        demand.layer: max(demand.minimum, DEFAULT_MAXIMUM) if demand.maximum is None else demand.maximum
        for demand in demands
    }
    return Allocation(layers, None)


def _in_equal_parts(share: int, rooms: Sequence[int]) -> list[int]:
    """Equal parts of a share, none above its room: what one has no room for is shared by the others."""
    parts, left = [0] * len(rooms), share
    by_room = sorted(range(len(rooms)), key=lambda place: (rooms[place], -place))
    for count, place in zip(range(len(rooms), 0, -1), by_room, strict=True):
        parts[place] = min(rooms[place], left // count)
        left -= parts[place]
    return parts


ASSUMED_WINDOW: Final = 32_000
"""Tokens of an unknown window, where a share of it is needed."""

# More than what stands around an update of a pinned block takes.
_AROUND: Final = 50

# A history that no longer fits is cut to this much of its room, so that the next turns need no cut.
_CUT_TO_PERCENT: Final = 50


@frozen
class _ViewHistory:
    """The conversation as far as it can be shown: `index` counts `items`, and the tail begins at `tail`."""

    items: Sequence[Item]
    index: HistoryIndex
    tail: int
    same: int
    note: str | None
    before: HistoryIndex | None = None

    def run(self, shown: LastView, cut: int) -> int:
        """How many items from the cut on are those that the last view began with."""
        if shown.narrowed or self.note is not None:
            # The same item may have another place in another list.
            return 0 if self.before is None else self.before.run(shown.cut, self.items[cut:])
        return max(0, self.same - cut) if cut == shown.cut else 0

    @property
    def tail_tokens(self) -> int:
        return self.index.tokens_from(self.tail)


@frozen
class LastView:
    """What of a view is needed to compare the next one with it.

    Attributes:
        head: What stood around the conversation.
        anchors: The pinned blocks.
        size: How many items the conversation had.
        cut: Where the view began in it, or in what the layers had made of it.
        end: Where the part ends that the next view begins with.
        placed: What the layers have behind that.
        first: Stands for the item at `cut`.
        last: Stands for the last item of the conversation.
        first_round: Whether it was the first request of a turn.
        repeated: Its tokens that the view before had too.
        narrowed: Whether the layers had made something else of the conversation.
        kept: How many of the first of `placed` the next view begins with too.
        listing: Tells what the layers had made, in a process that has not made the view.
    """

    head: HeadMark
    anchors: Sequence[Part]
    size: int
    cut: int
    end: int
    placed: Sequence[PlacedPart]
    first: str
    last: str
    first_round: bool
    repeated: int
    narrowed: bool = False
    kept: int = 0
    listing: Callable[[], HistoryListing] | None = None


@frozen(eq=False)
class Recorded:
    """A view as it is stored.

    Attributes:
        path: The model call that it was made for, `None` for the one that a run begins with.
        state: Its stored form.
        pins: What was pinned then.
    """

    path: tuple[str, ...] | None = None
    state: Mapping[str, JsonValue] = field(factory=dict[str, JsonValue])
    pins: Sequence[Pin] = ()


NOT_RECORDED: Final = Recorded()


@frozen(eq=False)
class Made:
    """The last view and what it was made of, for its record.

    Attributes:
        view: The view.
        history: The conversation.
        items: The conversation, or what the layers made of it.
    """

    view: View
    history: Sequence[Item]
    items: Sequence[Item]


class Projector:
    """Makes the views of one conversation, and remembers what a provider may have of the last one in its cache.

    Attributes:
        anchors: The epochs, and what is pinned.
        shown: The last view, as far as the next one is compared with it.
        made: That view and what it was made of; `None` in a process that has not made it.
        recorded: Where the last view is recorded, and in which form.
        listed: The last list of the layers in its stored form, and what it says.
    """

    # `_same` is how many items at the start of the conversation are those that the last view was made of, and `_index`
    # counts the items of that view. It is `None` until a conversation is there that was begun in another process.
    # `_before` is these counts while the next view is made, and after a view that had no room.
    __slots__ = (
        "_before",
        "_index",
        "_log",
        "_narrowed",
        "_narrowing",
        "_ready",
        "_same",
        "anchors",
        "listed",
        "made",
        "recorded",
        "shown",
    )  # fmt: skip

    def __init__(self, anchors: Anchors | None = None, shown: LastView | None = None) -> None:
        self.anchors: Anchors = Anchors() if anchors is None else anchors
        self.shown: LastView | None = shown
        self.made: Made | None = None
        self.recorded: Recorded = NOT_RECORDED
        self.listed: tuple[object, HistoryListing] | None = None
        self._log = HistoryIndex()
        self._narrowed: HistoryIndex | None = None
        self._narrowing: Narrowing | None = None
        self._index: HistoryIndex | None = None
        self._before: HistoryIndex | None = None
        # What `certain` has found out of the conversation for the view that follows it.
        self._ready: tuple[Sequence[Item], Sequence[Item] | None, _ViewHistory] | None = None
        self._same = 0

    def fork(self) -> Self:
        """A projector that knows the same and goes its own way; costs nothing per item."""
        child = type(self)(self.anchors.fork(), self.shown)
        child.made, child.recorded, child.listed = self.made, self.recorded, self.listed
        child._same, child._narrowing, child._before = self._same, self._narrowing, self._before
        child._log = self._log.fork()
        child._narrowed = None if self._narrowed is None else self._narrowed.fork()
        if self._index is not None:
            # A view whose list was given up meanwhile has nothing in common with the next one's.
            index = child._log if self._index is self._log else None
            index = child._narrowed if self._index is self._narrowed else index
            child._index = HistoryIndex() if index is None else index
        return child

    def counting_as(self, other: Projector) -> Self:
        """This projector, with the counts of another one that has made the same view."""
        if other._index is not None:
            self._log, self._narrowed, self._index, self._same = other._log, other._narrowed, other._index, other._same
            self._narrowing, self.listed, self._before = other._narrowing, other.listed, other._before
        return self

    def plan(self, head: RequestHead, demands: Sequence[Demand]) -> Allocation:
        """How many tokens each layer may recall.

        Args:
            head: What stands around the conversation.
            demands: What the layers ask for, the most important first.

        Raises:
            ValueError: Two demands are of the same layer.
        """
        return allocate_unknown(demands) if head.room is None else allocate(head.room, demands)

    def certain(
        self,
        head: RequestHead,
        shares: Allocation,
        history: Sequence[Item],
        projected: Sequence[Item] | None,
        blocks: Sequence[LayerBlock],
    ) -> Sequence[Item]:
        """The newest items that the next view shows as they are, whatever the other layers recall.

        Args:
            head: What stands around the conversation.
            shares: What each layer may recall.
            history: The conversation, as for `assemble`.
            projected: The history as the layers narrowed it, likewise.
            blocks: What layers have recalled so far.
        """
        past = self._past(head, history, projected)
        if head.room is None:
            start = 0 if self.shown is None else min(self.shown.cut, past.tail)
        else:
            room = max(0, head.room - self._most(head, shares, blocks))
            fits = past.index.tokens_from(0) <= room
            start = 0 if fits else past.index.oldest_cut(room * _CUT_TO_PERCENT // 100, past.tail)
        shown = past.items[start:]
        self._ready = (history, projected, past)
        if past.note is None:
            return shown
        # What the layers have replaced has the id of what it stands for, so objects are compared.
        own = set(map(id, history[-len(shown) :]))
        return [item for item in shown if id(item) in own]

    def _most(self, head: RequestHead, shares: Allocation, blocks: Sequence[LayerBlock]) -> int:
        """Tokens that the layers may take in the next view, with what some have recalled already."""
        most = total([pin.part for pin in self.anchors.pins])
        known = {block.layer: block for block in blocks}
        for layer, share in shares.layers.items():
            block, pin = known.get(layer), self.anchors.pin_of(layer)
            if block is None or (pin is not None and pin.block.items != block.items):
                most += share + _AROUND
            elif pin is None:
                most += min(share, weigh(block.items, head.counter))
        return most

    def stale(self, head: RequestHead, blocks: Sequence[LayerBlock]) -> list[tuple[LayerBlock, LayerBlock]]:
        """The layers whose pinned block is out of date, each with what it recalled now and what is pinned.

        Empty when the next view begins an epoch, because that shows the newest of all layers.
        """
        if self._ending(head) is not None:
            return []
        return [(block, pin.block) for block, pin in self.anchors.stale(blocks)]

    def answered(self, usage: TokenUsage | None) -> None:
        """Hear what the provider said of the last view; a miss at the start of a turn begins a new epoch."""
        shown = self.shown
        if usage is None or usage.cached_input is None or shown is None:
            return
        if shown.first_round and usage.cached_input * 2 < shown.repeated:
            self.anchors.missed()

    def _ending(self, head: RequestHead) -> str | None:
        """Why the epoch is over before anything is put together."""
        ending = self.anchors.ending
        if ending is not None or self.shown is None:
            return ending
        moved = head.moved_from(self.shown.head)
        return None if moved is None else f"changed {moved}"

    # -- putting together

    def assemble(
        self,
        head: RequestHead,
        history: Sequence[Item],
        blocks: Sequence[LayerBlock] = (),
        *,
        deltas: Mapping[str, Sequence[Item]] | None = None,
        projected: Sequence[Item] | None = None,
    ) -> View:
        """Make the view of one call.

        Args:
            head: What stands around the conversation.
            history: The conversation so that a provider accepts it: `rendered` of its log.
            blocks: What each layer recalled; a layer that recalled nothing has a block without items, and one whose
                recall failed has no block.
            deltas: What changed in layers that `stale` named, by layer, from `as_items`.
            projected: The history as the layers narrowed it, `None` when none of them does. What they added to it is
                marked as memory.

        Raises:
            LimitExceeded: What is never left out does not fit the window: instructions, tools, the newest input or
                round.
            ValueError: Two blocks are of the same layer.
        """
        blocks = sorted(blocks, key=lambda block: block.slot)
        if len({block.layer for block in blocks}) < len(blocks):
            raise ValueError("two blocks of one layer")
        history_known, projected_known, known = self._ready or (None, None, None)
        self._ready = None
        if known is not None and history_known is history and projected_known is projected:
            past = known
        else:
            past = self._past(head, history, projected)
        reason = self._ending(head)
        self.anchors.observe(blocks, first_round=self._log.awaits_answer)
        if reason is not None:
            self.anchors.begin(reason, blocks, head.counter)
        parts = self._parts(head, blocks, deltas or {})
        if reason is None and (better := self._better_anew(head, parts, past)) is not None:
            reason = better
            self.anchors.begin(reason, blocks, head.counter)
            parts = self._parts(head, blocks, {})
        parts = self._squeezed(head, parts, past)
        moved = self._moved_start(head, parts)
        cut = self._cut(head, parts, past, anew=moved is not None or reason == MISSED)
        return self._view(head, parts, past, history, blocks, cut, moved)

    def _past(self, head: RequestHead, history: Sequence[Item], projected: Sequence[Item] | None) -> _ViewHistory:
        if self._index is None and self.shown is not None:
            self._count_shown(self.shown, history, head.counter)
        if self._before is None and self._index is not None:
            self._before = self._index.fork()
        same = self._log.update(history, head.counter)
        tail = self._log.tail
        if projected is None:
            self._narrowed = self._narrowing = None
            return self._since_shown(_ViewHistory(history, self._log, tail, same, None))
        made = Narrowing(projected, history, tail, self._narrowing)
        wanted, kept, self._narrowing = made.wanted, made.kept, made
        items = [*kept, *history[tail:]]
        if self._narrowed is None:
            self._narrowed = HistoryIndex()
        same = self._narrowed.update(items, head.counter, grows=False)
        halves = f", {len(wanted) - len(kept)} of them halves of pairs" if len(kept) < len(wanted) else ""
        note = f"the layers show {len(kept)} of {tail} items{halves}"
        return self._since_shown(_ViewHistory(items, self._narrowed, len(kept), same, note))

    def _count_shown(self, shown: LastView, history: Sequence[Item], counter: TokenCounter) -> None:
        """Count what the last view was made of, in a process that has not made it."""
        self._index = self._log
        size, listing = shown.size, shown.listing
        if _mark_at(history, size - 1) != shown.last if 0 < size <= len(history) else size:
            # Open calls of it were answered meanwhile. What stood before the cut cannot be others.
            size, listing = shown.cut, None
            if shown.narrowed or _mark_at(history, size) != shown.first:
                size = 0
        self._same = self._log.update(history[:size], counter) or len(self._log)
        if shown.narrowed:
            self._index = self._narrowed = HistoryIndex()
            items = [] if listing is None else listing().items(history[:size])
            self._narrowed.update(items, counter, grows=False)
            self._same = len(items)

    def _since_shown(self, past: _ViewHistory) -> _ViewHistory:
        """The same, compared with the last view rather than with the last look at the conversation."""
        before = self._before
        if self.shown is not None and self._index is not past.index:
            self._same = 0 if before is None else min(self._same, before.shared_with(past.items))
            self._index = past.index
        else:
            self._same = min(self._same, past.same)
        return evolve(past, same=self._same, before=before)

    def _better_anew(self, head: RequestHead, parts: Parts, past: _ViewHistory) -> str | None:
        """Why it is better to begin an epoch now that everything is known."""
        takes, cut = total(parts.supersedes), 0 if self.shown is None else min(self.shown.cut, past.tail)
        window = ASSUMED_WINDOW if head.window is None else head.window
        if takes * 100 > window * SUPERSEDES_PERCENT:
            return f"supersedes took more than {SUPERSEDES_PERCENT}% of the window"
        # What is sent again when the start moves.
        again = past.index.tokens_from(cut, past.tail)
        if self.anchors.assemblies >= EPOCH_LENGTH:
            # Where it would move something, not before that has cost as much as it costs to send all of it again.
            could = takes + total(self._still(parts))
            if not could or self.anchors.paid + could > total(parts.anchors) + again:
                return f"{EPOCH_LENGTH} requests"
        kept = past.index.tokens_from(cut, max(cut, min(past.same, past.tail)))
        if self.shown is not None and past.same < self.shown.end and kept < takes + total(self._still(parts)):
            # The layers have cut the history, so a provider has no more than this of it in its cache.
            return "the history was cut"
        if head.room is None:
            return None
        left = head.room - total(parts.all) - past.tail_tokens
        if takes and left < 0:
            return "supersedes left no room"
        if takes and left < again:
            return "the history was cut"
        # Not in the middle of a turn, where the history needs its place most.
        if 0 < self.anchors.squeezed <= left and self._log.awaits_answer:
            return "what was left out of pinned blocks has room again"
        return None

    def _parts(self, head: RequestHead, blocks: Sequence[LayerBlock], deltas: Mapping[str, Sequence[Item]]) -> Parts:
        anchors = [pin.part for pin in self.anchors.pins]
        lives: list[Part] = []
        supersedes: list[Part] = []
        for block in blocks:
            pin = self.anchors.pin_of(block.layer)
            if pin is None and block.items:
                lives.append(part_of(block, "live", self.anchors.why_live(block), head.counter))
            elif pin is not None and pin.block.items != block.items:
                supersedes.append(superseding(block, deltas.get(block.layer), head.counter))
        return Parts(anchors, lives, supersedes)

    def _still(self, parts: Parts) -> Sequence[Part]:
        """The live parts of layers that have kept still in this epoch and would be pinned by the next one."""
        return [part for part in parts.lives if self.anchors.kept_still(part.layer)]

    def _placed(self, parts: Parts, past: _ViewHistory, cut: int) -> Sequence[PlacedPart]:
        """Where the parts behind the history stand: before the newest part, or where they stood before.

        In a turn all keep their place while their text is the same; from turn to turn those whose layer keeps still do.
        """
        known: Sequence[PlacedPart] = ()
        is_still = self.anchors.is_still
        if self.shown is not None:
            begins = self._log.awaits_answer
            before = self.shown.placed[: self.shown.kept if begins else None]
            known = [each for each in before if cut <= each.place <= min(past.same, past.tail)]
            known = [each for each in known if not begins or is_still(each.part.layer)]
        left = [*parts.lives, *parts.supersedes]
        placed: list[PlacedPart] = []
        for each in known:
            same = next((part for part in left if _is_repeated(each, part)), None)
            if same is not None:
                left.remove(same)
                placed.append(PlacedPart(each.place, same))
        # Those last that change most often, within a turn above all: what stands before them stays the same.
        left.sort(key=lambda part: (not is_still(part.layer), self.anchors.habits[part.layer].unrest))
        return [*placed, *(PlacedPart(past.tail, part) for part in left)]

    def _squeezed(self, head: RequestHead, parts: Parts, past: _ViewHistory) -> Parts:
        """The parts as far as the window has room for them besides what is never left out."""
        if head.room is None:
            return parts
        over = total(parts.all) + past.tail_tokens - head.room
        if over <= 0:
            return parts
        if over > total(parts.anchors) + total(parts.lives):
            raise _too_small(head, parts, past)
        squeezed: dict[str, Part] = {}
        # What does not last goes first, and of each band the last slot.
        for part in [*reversed(parts.lives), *reversed(parts.anchors)]:
            if over <= 0:
                break
            squeezed[part.layer] = shorter = part.within(part.tokens - over, head.counter)
            over -= part.tokens - shorter.tokens
            if part.kind == "anchor":
                self.anchors.reshow(shorter)
        return Parts(
            [squeezed.get(part.layer, part) for part in parts.anchors],
            [squeezed.get(part.layer, part) for part in parts.lives],
            parts.supersedes,
        )

    def _cut(self, head: RequestHead, parts: Parts, past: _ViewHistory, *, anew: bool) -> int:
        """Where the history begins: where it began before, as long as that fits."""
        shown = self.shown
        cut = 0 if anew or shown is None or past.same < shown.cut else min(shown.cut, past.tail)
        if not past.index.may_begin(cut):
            # What stood there in the last view is gone, and something else follows now.
            cut = 0
        if head.room is None:
            return cut
        room = head.room - total(parts.all)
        if past.index.tokens_from(cut) <= room:
            return cut
        return past.index.oldest_cut(room * _CUT_TO_PERCENT // 100, past.tail)

    # -- what moved

    def _moved_start(self, head: RequestHead, parts: Parts) -> str | None:
        """What changed the part before the history."""
        shown = self.shown
        if shown is None:
            return None
        moved = head.moved_from(shown.head)
        if moved is not None:
            return moved
        place = first_other(shown.anchors, parts.anchors)
        if place is None:
            return None
        before, now = shown.anchors[place:], parts.anchors[place:]
        if now and now[0].layer not in {part.layer for part in shown.anchors}:
            return now[0].layer
        return (before or now)[0].layer

    def _moved_past(self, placed: Sequence[PlacedPart], past: _ViewHistory, cut: int) -> str | None:
        """What changed the history."""
        shown = self.shown
        if shown is None:
            return None
        if cut != shown.cut or past.same < shown.end:
            return "history"
        for one, other in zip_longest(shown.placed[: shown.kept], placed[: shown.kept]):
            if one is not None and (other is None or one.place != other.place or not _is_repeated(one, other.part)):
                return one.part.layer
        # Nothing new was said: what stands there now was not there before.
        rest = placed[shown.kept :]
        return rest[0].part.layer if rest and rest[0].place < shown.end else None

    def _repeated(
        self, head: RequestHead, parts: Parts, placed: Sequence[PlacedPart], past: _ViewHistory, cut: int
    ) -> int:
        """Tokens at the start that the view before had too."""
        shown = self.shown
        if shown is None or head.moved_from(shown.head) is not None:
            return 0
        start = head.system + head.schemas
        place = first_other(shown.anchors, parts.anchors)
        if place is not None:
            return start + total(parts.anchors[:place])
        start += total(parts.anchors)
        offset = cut - shown.cut
        end = cut + past.run(shown, cut)
        for one, other in zip_longest(shown.placed, placed):
            same = one is not None and other is not None and one.place + offset == other.place <= end
            if one is None or other is None or not same or not _is_repeated(one, other.part):
                end = min([end, *([one.place + offset] if one else ()), *([other.place] if other else ())])
                break
            start += other.part.tokens
        return start + past.index.tokens_from(cut, max(cut, end))

    # -- handing over

    def _view(
        self,
        head: RequestHead,
        parts: Parts,
        past: _ViewHistory,
        history: Sequence[Item],
        blocks: Sequence[LayerBlock],
        cut: int,
        moved: str | None,
    ) -> View:
        placed = self._placed(parts, past, cut)
        moved = moved or self._moved_past(placed, past, cut)
        repeated = self._repeated(head, parts, placed, past, cut)
        items = _ordered(parts, placed, past, cut)
        leading = sum(len(part.items) for part in parts.anchors)
        kept = next(
            (place for place, each in enumerate(placed) if not self.anchors.is_still(each.part.layer)), len(placed)
        )
        leading += sum(len(each.part.items) for each in placed[:kept])
        end = placed[kept].place if kept < len(placed) else len(past.items)
        self.anchors.assemblies += 1
        self.anchors.paid += total(parts.supersedes) + total(self._still(parts))
        self._same, self._index, self._before = len(past.items), past.index, None
        layers = {block.layer: 0 for block in blocks}
        for part in parts.all:
            layers[part.layer] = layers.get(part.layer, 0) + part.counts
        tokens = past.index.tokens_from(cut)
        around = head.system + head.schemas
        view = View(
            items=items,
            instructions=head.instructions,
            usage=LayerUsage(layers, head.system, head.schemas, tokens, around + tokens + sum(layers.values())),
            tokens=around + tokens + total(parts.all),
            stable=leading + end - cut,
            repeated=repeated,
            epoch=self.anchors.number,
            reason=self.anchors.reason,
            moved=moved,
            blocks=_described(head, parts, placed, past, cut),
        )
        self.made = Made(view, history, past.items)
        first, last = _mark_at(past.items, cut), _mark_at(history, len(history) - 1)
        self.shown = LastView(
            head.mark, parts.anchors, len(history), cut, end, placed, first, last, self._log.awaits_answer, repeated,
            past.note is not None, kept,
        )  # fmt: skip
        return view


def _mark_at(items: Sequence[Item], place: int) -> str:
    """Stands for an item's content: a body that is run again by a later process may give what it says another id."""
    return item_mark(items[place]) if 0 <= place < len(items) else ""


def _too_small(head: RequestHead, parts: Parts, past: _ViewHistory) -> LimitExceeded:
    window = head.window or 0
    needs = {
        "system": head.system,
        "tools": head.schemas,
        "supersedes": total(parts.supersedes),
        "tail": past.tail_tokens,
    }
    described = ", ".join(f"{part} {tokens}" for part, tokens in needs.items())
    return LimitExceeded(
        f"the request to the model takes {sum(needs.values())} tokens at least ({described}) and",
        max(0, window - head.reserved),
        hint="shorten the newest input or the instructions, offer fewer tools, or ask a model with a larger window",
    )


def _is_repeated(one: PlacedPart, other: Part) -> bool:
    """Whether a part has the content of an earlier one, of which a later process knows the mark alone."""
    same = (one.part.kind, one.part.layer) == (other.kind, other.layer)
    return same and mark_of(other.items) == (one.mark or mark_of(one.part.items))


def _ordered(parts: Parts, placed: Sequence[PlacedPart], past: _ViewHistory, cut: int) -> Sequence[Item]:
    items = past.items
    if not cut and not parts.all:
        return items
    made = _items(parts.anchors)
    for each in placed:
        made += items[cut : each.place]
        made += each.part.items
        cut = each.place
    return [*made, *items[cut:]]


def _items(parts: Sequence[Part]) -> list[Item]:
    return [item for part in parts for item in part.items]


def _described(
    head: RequestHead, parts: Parts, placed: Sequence[PlacedPart], past: _ViewHistory, cut: int
) -> Sequence[ViewBlock]:
    described: list[ViewBlock] = []
    if head.system:
        described.append(ViewBlock("system", None, head.system, 0, "the step's instructions"))
    if head.schemas:
        described.append(ViewBlock("tools", None, head.schemas, 0, f"{len(head.tools)} tools"))
    described += [part.described for part in parts.anchors]
    index = past.index
    if past.tail or past.note:
        dropped = Dropped(cut, index.tokens_from(0, cut), "the oldest of what has no room") if cut else None
        shown = index.tokens_from(cut, past.tail)
        described.append(ViewBlock("history", None, shown, past.tail - cut, "the conversation", dropped, past.note))
    described += [each.part.described for each in placed]
    tail = "input that waits for an answer" if index.awaits_answer else "the last round"
    described.append(ViewBlock("tail", None, past.tail_tokens, len(index) - past.tail, tail))
    return described
