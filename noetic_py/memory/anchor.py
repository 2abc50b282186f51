"""What stays byte for byte the same at the start of a request, so that a provider can serve it from its cache.

Within an *epoch* each anchored layer is pinned: the model keeps seeing what the layer recalled when the epoch began. A
layer that recalls something else meanwhile is superseded by a short message further down. A new epoch pins everybody's
newest content; it begins when the old start of the request is lost anyway, or is no longer worth its price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from attrs import evolve, frozen

from noetic_py.items import Item
from noetic_py.memory.blocks import Block
from noetic_py.memory.parts import Part, part_of
from noetic_py.tokens import TokenCounter

__all__ = ["EPOCH_LENGTH", "MISSED", "SUPERSEDES_PERCENT", "Anchors", "Pin"]

EPOCH_LENGTH: Final = 50
"""Assemblies after which an epoch ends whatever happens."""

SUPERSEDES_PERCENT: Final = 15
"""Of the window: when what supersedes pinned blocks takes more, it is cheaper to send the blocks themselves anew."""

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

    block: Block
    whole: Part
    part: Part


@frozen
class _Habit:
    """How a layer's content has behaved; `changes` has a bit for each of the last four assemblies."""

    items: tuple[Item, ...]
    changes: int = 0
    fluid: bool = False
    volatile: bool = False
    restless: bool = False

    def after(self, block: Block) -> _Habit:
        changed = block.items != self.items
        changes = (self.changes << 1 | changed) & 0b1111
        return _Habit(
            block.items,
            changes,
            self.fluid or changes.bit_count() >= 2,
            self.volatile or block.volatile,
            self.restless or changed,
        )


class Anchors:
    """The epochs of one conversation: what is pinned, since when, and which layers are too restless to be.

    Attributes:
        number: Which epoch this is, from 1; 0 before the first assembly.
        reason: Why it began.
        assemblies: How many requests were assembled in it.
    """

    __slots__ = ("_due", "_habits", "_pins", "assemblies", "number", "reason")

    def __init__(self) -> None:
        self.number: int = 0
        self.reason: str = ""
        self.assemblies: int = 0
        self._due: str | None = None
        self._habits: dict[str, _Habit] = {}
        self._pins: dict[str, Pin] = {}

    def fork(self) -> Self:
        """The same epoch, which from now on goes its own way."""
        child = type(self)()
        child.number, child.reason, child.assemblies = self.number, self.reason, self.assemblies
        child._due = self._due
        child._habits, child._pins = self._habits.copy(), self._pins.copy()
        return child

    @property
    def pins(self) -> Sequence[Pin]:
        """What is pinned, in its order."""
        return tuple(self._pins.values())

    def pin_of(self, layer: str) -> Pin | None:
        """What is pinned of a layer."""
        return self._pins.get(layer)

    @property
    def squeezed(self) -> int:
        """Tokens that pinned blocks go without because the window had no room for them."""
        return sum(pin.whole.tokens - pin.part.tokens for pin in self._pins.values())

    @property
    def ending(self) -> str | None:
        """Why the epoch is over, whatever the next request holds; `None` while it goes on."""
        if self.number == 0:
            return "cold start"
        if self.assemblies >= EPOCH_LENGTH:
            return f"{EPOCH_LENGTH} requests"
        return self._due

    def missed(self) -> None:
        """Hear that the provider had nothing of the start of the last request in its cache."""
        if self.assemblies > _SETTLING:
            self._due = MISSED

    def observe(self, blocks: Sequence[Block]) -> None:
        """Note whether the layers recalled the same as before."""
        habits = self._habits
        for block in blocks:
            known = habits.get(block.layer)
            if known is None:
                habits[block.layer] = _Habit(block.items, volatile=block.volatile)
            else:
                habits[block.layer] = known.after(block)

    def begin(self, reason: str, blocks: Sequence[Block], counter: TokenCounter) -> None:
        """Begin an epoch: pin what belongs to the start of the request, as it is now.

        Args:
            reason: Why.
            blocks: What was recalled, observed already, in the order of the slots.
            counter: What counts.
        """
        # Who has kept still for a whole epoch may be pinned again.
        self._habits = {
            layer: evolve(habit, fluid=habit.fluid and habit.restless, restless=False)
            for layer, habit in self._habits.items()
        }
        self.number += 1
        self.reason = reason
        why = f"pinned since epoch {self.number} began"
        self._pins = {}
        for block in blocks:
            if block.items and self.is_anchored(block):
                part = part_of(block, "anchor", why, counter)
                self._pins[block.layer] = Pin(block, part, part)
        self.assemblies = 0
        self._due = None

    def is_anchored(self, block: Block) -> bool:
        """Whether a block belongs to the start of the request when an epoch begins."""
        habit = self._habits[block.layer]
        if habit.volatile or block.placement == "live":
            return False
        return block.placement == "anchor" or not habit.fluid

    def why_live(self, block: Block) -> str:
        """Why a block stands behind the history."""
        habit = self._habits[block.layer]
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

    def stale(self, blocks: Sequence[Block]) -> list[tuple[Block, Pin]]:
        """The blocks that are no longer what is pinned of their layer."""
        pairs = [(block, self._pins.get(block.layer)) for block in blocks]
        return [(block, pin) for block, pin in pairs if pin is not None and pin.block.items != block.items]
