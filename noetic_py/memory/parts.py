"""The parts of a view that layers fill: pinned blocks, live ones, and messages that supersede pinned ones."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from noetic_py.core.items import ContentPart, InputText, Item, Message
from noetic_py.core.tokens import TokenCounter
from noetic_py.core.view import BlockKind, Dropped, ViewBlock
from noetic_py.memory.blocks import Fitted, LayerBlock, attribute, fit, made_id, own_count, weigh


@frozen
class Part:
    """Items of a layer with their place in the view.

    Attributes:
        kind: Which part of the view it belongs to.
        layer: The layer's id.
        items: What is shown.
        tokens: What that takes, by the counter.
        counts: What it counts for: the layer's own figure, or the counter's.
        why: Why it is there.
        dropped: What was left out.
        note: A further remark.
    """

    kind: BlockKind
    layer: str
    items: tuple[Item, ...]
    tokens: int
    counts: int
    why: str
    dropped: Dropped | None = None
    note: str | None = None

    @property
    def described(self) -> ViewBlock:
        """The account of it."""
        return ViewBlock(self.kind, self.layer, self.tokens, len(self.items), self.why, self.dropped, self.note)

    def within(self, limit: int, counter: TokenCounter) -> Part:
        """The part cut to a limit, because the window has no room for more of it."""
        shown = fit(self.items, max(0, limit), counter, "no room in the window")
        now, before = shown.dropped, self.dropped
        if now is None:
            return self
        if before is not None:
            now = Dropped(before.items + now.items, before.tokens + now.tokens, f"{before.reason}, {now.reason}")
        return evolve(self, items=shown.items, tokens=shown.tokens, counts=shown.tokens, dropped=now, note=None)


@frozen
class PlacedPart:
    """A part that stands somewhere in the conversation.

    Attributes:
        place: Before which item of the conversation.
        part: The part.
    """

    place: int
    part: Part


@frozen
class Parts:
    """All that layers put into a view, in its order."""

    anchors: Sequence[Part]
    lives: Sequence[Part]
    supersedes: Sequence[Part]

    @property
    def all(self) -> Sequence[Part]:
        """All of them."""
        return [*self.anchors, *self.lives, *self.supersedes]

    @property
    def behind(self) -> Sequence[Part]:
        """The part between history and tail."""
        return [*self.lives, *self.supersedes]


def total(parts: Sequence[Part]) -> int:
    """The tokens of some parts."""
    return sum([part.tokens for part in parts])


def first_other(before: Sequence[Part], now: Sequence[Part]) -> int | None:
    """The first place where two rows of pinned blocks are not the same."""
    for place, (one, other) in enumerate(zip(before, now, strict=False)):
        if one.layer != other.layer or one.items != other.items:
            return place
    return None if len(before) == len(now) else min(len(before), len(now))


def part_of(block: LayerBlock, kind: BlockKind, why: str, counter: TokenCounter) -> Part:
    """A block as it goes into a view, cut to its layer's budget."""
    shown = fit(block.items, block.budget, counter)
    counts, note = own_count(block, shown, counter)
    return Part(kind, block.layer, shown.items, shown.tokens, counts, why, shown.dropped, note)


# ---------------------------------------------------------------------------------------------------- superseding


def superseding(block: LayerBlock, delta: Sequence[Item] | None, counter: TokenCounter) -> Part:
    """The replacement of a stale pinned block: a message of the developer that names the layer.

    Args:
        block: What the layer recalled now.
        delta: What changed, from `as_items`, in place of the whole block.
        counter: What counts.
    """
    content = fit(tuple(delta) if delta else block.items, block.budget, counter)
    if delta:
        says, why = "What stands under this layer above has changed:", "told by what changed"
    elif block.items:
        says, why = "What stands under this layer above is out of date. This takes its place:", "sent whole"
    else:
        says, why = "This layer holds nothing any more; what stands under it above is no longer so.", "withdrawn"
    items = _update(block.layer, says, content)
    tokens = weigh(items, counter)
    why = f"what is pinned is out of date; {why}"
    return Part("supersede", block.layer, items, tokens, tokens, why, content.dropped)


def _update(layer: str, says: str, content: Fitted) -> tuple[Item, ...]:
    opening = f'<memory-update layer="{attribute(layer)}">\n{says}\n'
    close = "</memory-update>"
    named = made_id("update", layer, says, *[item.id for item in content.items])
    messages = [item for item in content.items if isinstance(item, Message) and item.role == "developer"]
    if len(messages) == len(content.items):
        parts = [part for message in messages for part in message.content]
        return (Message(role="developer", content=_joined([opening, *parts, close]), id=named),)
    # The user's message stays as it is: the text follows it rather than becoming part of it. Under another id, as
    # its own may stand in the pinned block too.
    following = [evolve(item, id=made_id(named, item.id)) for item in content.items]
    return (Message(role="developer", content=opening + close, id=named), *following)


def _joined(parts: Sequence[str | ContentPart]) -> list[str | ContentPart]:
    """Parts with the texts that stand side by side put together, each on a line of its own."""
    joined: list[str | ContentPart] = []
    for part in parts:
        text = part.text if isinstance(part, InputText) else part
        before = joined[-1] if joined else None
        if isinstance(text, str) and isinstance(before, str):
            joined[-1] = before + text if before.endswith("\n") else f"{before}\n{text}"
        else:
            joined.append(text)
    return joined
