"""Recalled text as items that a model reads as data only, and as the parts of a view that layers fill.

Recalled text may come from any source: last week's output of a tool, a page, another user. So each item made here
is a message of the developer or the user whose text stands inside `<memory layer="...">`, with every character escaped
that could close that or open something else. A remembered answer, system message or tool call is quoted as text; it
never becomes one again. Ids are made from the content, so that the same content is the same bytes on the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from noetic_py.core.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemBase,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
)
from noetic_py.core.tokens import TokenCounter
from noetic_py.core.view import BlockKind, Dropped, ViewBlock
from noetic_py.redaction import with_article

Placement: TypeAlias = Literal["anchor", "live", "auto"]
"""Where a layer's block stands: where a provider can cache it, behind the history, or wherever it fits better."""

# The angle brackets that open a tag, also those that a normalisation turns into one; an ampersand that would read as an
# escape; control characters; and the invisible letters of the tag block, which a model reads and a person does not.
_HOSTILE: Final = re.compile(
    "[<\uff1c\ufe64\x00-\x08\x0b\x0c\x0e-\x1f\x7f\U000e0000-\U000e007f]"
    "|&(?=#|[A-Za-z][A-Za-z0-9]*;|(?i:amp|gt|lt|quot))"
)
_NAMED: Final = {"<": "&lt;", "&": "&amp;", '"': "&quot;"}
_CLOSE: Final = "\n</memory>"
_CUT: Final = "\n[the rest was cut to fit the budget]"
# A cut goes back to the last blank when there is one this close.
_WORD: Final = 24


@frozen
class LayerBlock:
    """The recall of one layer for one model call.

    Attributes:
        layer: The layer's id.
        slot: Its place among the layers of its band, the smallest first.
        items: What it recalled, from [`as_items`][noetic_py.memory.blocks.as_items]; empty when there was nothing.
        placement: Where the layer wants to stand.
        budget: Tokens it was given, `None` for no limit.
        tokens: Tokens by its own count, `None` when it has not counted.
        volatile: Whether the recall changed the layer's own state; such a block is never pinned.
        declared: The maximum of its settings, `None` for none.
    """

    layer: str
    slot: int
    items: tuple[Item, ...]
    placement: Placement = "auto"
    budget: int | None = None
    tokens: int | None = None
    volatile: bool = False
    declared: int | None = None

    @property
    def cut(self) -> str | None:
        """Says so where the window has no room for the maximum of its settings."""
        if self.budget is None or self.declared is None or self.budget >= self.declared:
            return None
        return f"it may take {self.budget} of the {self.declared} tokens of its budget, because layers share the window"


@frozen
class Fitted:
    """Items cut to a limit.

    Attributes:
        items: What is left.
        tokens: Its tokens.
        dropped: What is not, `None` when everything fitted.
    """

    items: tuple[Item, ...]
    tokens: int
    dropped: Dropped | None = None


# ---------------------------------------------------------------------------------------------------- making


def escape(text: str) -> str:
    """A text that opens and closes nothing; what is escaped can be read back as in HTML."""
    return _HOSTILE.sub(_reference, text)


def attribute(text: str) -> str:
    """A text for between double quotes."""
    return re.sub(r'["\n\r\t]', _reference, escape(text))


def _reference(found: re.Match[str]) -> str:
    character = found.group()
    return _NAMED.get(character) or f"&#x{ord(character):X};"


def made_id(*parts: str) -> str:
    """An id that says the same for the same parts."""
    text = json.dumps(parts)
    return f"mem_{sha256(text.encode()).hexdigest()[:32]}"


def mark_of(items: Sequence[Item]) -> str:
    """Stands for what was recalled: the ids of its items are made from their content."""
    return made_id(*[item.id for item in items])


def as_items(layer: str, content: str | Sequence[Item] | None) -> tuple[Item, ...]:
    """The recall of a layer as items for the model, each marked with its layer.

    Text becomes one message of the developer. Messages of the user and the developer keep their role, their images and
    their files; everything else becomes text that quotes it.

    Args:
        layer: The layer's id.
        content: What the layer gave; a blank text and `None` are nothing.

    Raises:
        TypeError: Something in the content is not an item.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (_wrapped(layer, 0, "developer", [content]),) if content.strip() else ()
    return tuple([_made(layer, place, item) for place, item in enumerate(content)])


def _made(layer: str, place: int, item: object) -> Message:
    if isinstance(item, Message) and item.role in ("user", "developer"):
        return _wrapped(layer, place, item.role, [_kept(part) for part in item.content])
    if not isinstance(item, ItemBase):
        raise TypeError(f"layer {layer!r} recalled {with_article(type(item).__name__)}; a recall gives text or items")
    return _wrapped(layer, place, "developer", [_quoted(item)])


def _kept(part: ContentPart) -> str | ContentPart:
    match part:
        case InputImage():
            return evolve(part, extra=None)
        case InputFile():
            return evolve(part, extra=None, filename=None if part.filename is None else escape(part.filename))
        case _:
            return _said(part)


def _said(part: ContentPart) -> str:
    match part:
        case InputText() | OutputText():
            return part.text
        case Refusal():
            return part.refusal
        case _:
            return f"({type(part).__name__})"


def _quoted(item: ItemBase) -> str:
    match item:
        case Message():
            return f"{item.role} message: {''.join(map(_said, item.content))}"
        case FunctionCall():
            return f"function call: {item.name}({item.arguments})"
        case FunctionCallOutput():
            return f"function output: {item.text}"
        case Reasoning():
            return f"reasoning: {item.text}"
        case Opaque():
            return f"item of type {item.type}: {item.raw.decode(errors='replace')}"
        case _:
            data: object = getattr(item, "data", None)
            return f"item of type {item.type}: {json.dumps(data, ensure_ascii=False)}"


def _wrapped(layer: str, place: int, role: Literal["user", "developer"], parts: Sequence[str | ContentPart]) -> Message:
    content: list[str | ContentPart] = [f'<memory layer="{attribute(layer)}">\n']
    for part in parts:
        _add(content, escape(part) if isinstance(part, str) else part)
    _add(content, _CLOSE)
    return Message(role=role, content=content, id=made_id(layer, str(place), role, *map(_face, content)))


def _add(content: list[str | ContentPart], part: str | ContentPart) -> None:
    """Add a part; text goes on in the text before it."""
    before = content[-1]
    if isinstance(part, str) and isinstance(before, str):
        content[-1] = before + part
    else:
        content.append(part)


def _face(part: str | ContentPart) -> str:
    """The identity of a part; bytes by their digest."""
    if isinstance(part, InputImage | InputFile) and part.data is not None:
        return f"{sha256(part.data).hexdigest()} {evolve(part, data=b'')!r}"
    return part if isinstance(part, str) else repr(part)


# ---------------------------------------------------------------------------------------------------- measuring


def weigh(items: Sequence[Item], counter: TokenCounter) -> int:
    """The tokens of some items."""
    return sum([counter.count_item(item).value for item in items])


def fit(
    items: tuple[Item, ...], limit: int | None, counter: TokenCounter, reason: str = "above the layer's budget"
) -> Fitted:
    """Items cut to a limit: whole ones are dropped from the end, a lone text is cut short with a mark that says so.

    Args:
        items: What to fit.
        limit: Tokens there are, `None` for no limit.
        counter: What counts.
        reason: Why there are no more.
    """
    sizes = [counter.count_item(item).value for item in items]
    total = tokens = sum(sizes)
    if limit is None or total <= limit:
        return Fitted(items, total)
    kept = len(items)
    while kept > 1 and tokens > limit:
        kept -= 1
        tokens -= sizes[kept]
    left: tuple[Item, ...] = items[:kept]
    if tokens > limit:
        shorter = _shortened(left[0], limit, counter)
        left = () if shorter is None else (shorter,)
        tokens = weigh(left, counter)
    return Fitted(left, tokens, Dropped(len(items) - len(left), total - tokens, reason))


def own_count(block: LayerBlock, shown: Fitted, counter: TokenCounter) -> tuple[int, str | None]:
    """The tokens of a block: the layer's figure if it is within a tenth of the counter's, otherwise the counter's.

    Returns:
        The tokens, and what to say when the layer's figure was not believed.
    """
    if block.tokens is None or shown.dropped is not None:
        return shown.tokens, None
    # The layer counts its content; what marks it as the layer's is not its business.
    frame = counter.count_item(_wrapped(block.layer, 0, "developer", [])).value * len(shown.items)
    if abs(block.tokens - shown.tokens) <= shown.tokens // 10 + frame:
        return block.tokens, None
    return shown.tokens, f"the layer said {block.tokens} tokens, the counter {shown.tokens}"


def _shortened(item: Item, limit: int, counter: TokenCounter) -> Message | None:
    """A message with as much of its text as fits, `None` when not even the mark does."""
    if not isinstance(item, Message) or len(item.content) != 1 or not isinstance(item.content[0], InputText):
        return None
    message, text = item, item.content[0].text
    head = text.index("\n") + 1 if text.startswith("<memory") and text.endswith(_CLOSE) else 0
    opening, body, close = text[:head], text[head : -len(_CLOSE)] if head else text, _CLOSE if head else ""

    def cut(length: int) -> Message:
        # A reference to an escaped character is cut as a whole.
        kept = re.sub(r"&[#\w]*$", "", body[:length])
        return Message(role=message.role, content=opening + kept + _CUT + close, id=f"{message.id}-{length}")

    def fits(length: int) -> bool:
        return counter.count_item(cut(length)).value <= limit

    if not fits(0):
        return None
    # Galloping from below: what is counted is never much longer than what is kept.
    low, high = 0, max(limit, 1)
    while high < len(body) and fits(high):
        low, high = high, high * 2
    high = min(high, len(body))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    blank = max(body.rfind(" ", low - _WORD, low), body.rfind("\n", low - _WORD, low)) if low > _WORD else -1
    if blank > 0 and fits(blank):
        return cut(blank)
    return cut(low)


# ---------------------------------------------------------------------------------------------- in the view


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
        mark: Stands for what it says, where its items are not known.
    """

    place: int
    part: Part
    mark: str = ""


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
    counts, own = own_count(block, shown, counter)
    note = "; ".join(filter(None, (block.cut, own))) or None
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
    return Part("supersede", block.layer, items, tokens, tokens, why, content.dropped, block.cut)


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
