"""The view of one model call: each part, its tokens, why it is there, what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from noetic_py.core.items import Item

BlockKind: TypeAlias = Literal["system", "tools", "anchor", "history", "live", "supersede", "tail"]
"""The parts of a view, in their order."""


@frozen
class Dropped:
    """The part of a request that was dropped.

    Attributes:
        items: How many items were left out; one that was shortened does not count.
        tokens: Tokens that saves.
        reason: Why.
    """

    items: int
    tokens: int
    reason: str


@frozen
class LayerUsage:
    """How the tokens of a request are spread.

    Attributes:
        layers: Tokens by layer: its own figure when that is within a tenth of the counter's, which else wins.
        system: Tokens of the system instructions.
        tools: Tokens of the tools' definitions and of the output schema.
        history: Tokens of the conversation, its newest part included.
        total: All of them together.
    """

    layers: Mapping[str, int]
    system: int
    tools: int
    history: int
    total: int


@frozen
class ViewBlock:
    """A part of a view.

    Attributes:
        kind: Which part.
        layer: The layer it comes from, `None` for what comes from none.
        tokens: What it takes, by the counter.
        items: How many items it has.
        why: Why it is there, or stands where it stands.
        dropped: What was left out of it.
        note: A further remark.
    """

    kind: BlockKind
    layer: str | None
    tokens: int
    items: int
    why: str
    dropped: Dropped | None = None
    note: str | None = None


@frozen(eq=False, kw_only=True)
class ViewAccount:
    """The account of a view: what it is made of, and what of it a provider has in its cache.

    Attributes:
        usage: How the tokens are spread; its figures of layers may be the layers' own.
        tokens: What the whole request takes by the counter, so that it is counted once.
        stable: How many items at the start will be the same bytes in the next request of this epoch.
        repeated: Tokens at the start that are the same as in the request before, instructions and tools included: what
            a provider can serve from its cache. The request before is the last one that the model has answered, of
            whatever run of the conversation.
        epoch: Which epoch it belongs to, from 1.
        reason: Why that epoch began.
        moved: Who moved the start against the view before: a layer, `"model"`, `"instructions"`, `"tools"` or
            `"history"`; `None` when all of it still stands, and for the first view.
        blocks: The parts, in their order.
    """

    usage: LayerUsage
    tokens: int
    stable: int
    repeated: int
    epoch: int
    reason: str
    moved: str | None
    blocks: Sequence[ViewBlock]

    def explain(self) -> str:
        """The account as a table for a person."""
        moved = "" if self.moved is None else f"; {self.moved} moved the start"
        items = sum(block.items for block in self.blocks)
        head = (
            f"{self.tokens} tokens in {items} items, {self.repeated} as in the request before{moved}; "
            f"epoch {self.epoch}: {self.reason}"
        )
        rows = [_HEADINGS, *map(_row, self.blocks)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
        lines = [head, *(_line(row, widths) for row in rows)]
        return "\n".join(lines)


@frozen(eq=False, kw_only=True)
class View(ViewAccount):
    """The view of a model in one call.

    Attributes:
        items: The conversation with what the layers recalled: `items` of the request.
        instructions: The system instructions, `None` for none.
    """

    items: Sequence[Item]
    instructions: str | None


_HEADINGS: Final = ("part", "layer", "tokens", "items", "why")
_NUMBERS: Final = (2, 3)


def _row(block: ViewBlock) -> tuple[str, ...]:
    why = [block.why]
    if block.dropped is not None:
        dropped = block.dropped
        why.append(f"without {dropped.items} items, {dropped.tokens} tokens: {dropped.reason}")
    if block.note is not None:
        why.append(block.note)
    return block.kind, block.layer or "", str(block.tokens), str(block.items), "; ".join(why)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    *cells, why = row
    padded = [
        cell.rjust(width) if place in _NUMBERS else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join([*padded, why]).rstrip()
