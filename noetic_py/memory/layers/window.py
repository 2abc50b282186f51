"""`HistoryWindow`: the model sees the newest part of a conversation, and the log keeps all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from noetic_py.core.items import Item, Message
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.memory.history import HistoryIndex
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import check_counts, wrong
from noetic_py.memory.scopes import Scope

_COUNTER: Final = EstimatedCounter()


class HistoryWindow(MemoryLayer[None]):
    """Shows the model the last turns, items or tokens of the conversation.

        class Mem(Memory):
            window: HistoryWindow = HistoryWindow(max_turns=20)

    It is cut only where nothing that belongs together lies on both sides: a call and its output stay together, and so
    does all that one answer said. Where a limit falls in between, what is shown is less than the limit. The newest
    input, or the newest round where there is none, is always shown, whatever it takes. Of several limits the
    narrowest counts.

    Attributes:
        max_turns: How many inputs of the user are shown, each with what came of it.
        max_items: How many items.
        max_tokens: How many tokens, by an estimate.

    Raises:
        ConfigError: There is no limit, or one is not a whole number above 0; code `"history-window"`.
    """

    max_turns: int | None = None
    max_items: int | None = None
    max_tokens: int | None = None
    scope: Scope = Scope.EXECUTION

    def __attrs_post_init__(self) -> None:
        limits = {"max_turns": self.max_turns, "max_items": self.max_items, "max_tokens": self.max_tokens}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise wrong(
                self,
                "a window without a limit is not valid; expected at least one",
                "history-window",
                "max_turns=, max_items= or max_tokens=",
            )
        check_counts(self, "history-window", **given)

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        """The newest part, beginning at a closed cut."""
        index = HistoryIndex()
        index.update(items, _COUNTER)
        start = max(self._by_turns(items), self._by_items(items))
        latest = index.tail
        cut = next((cut for cut in index.cuts() if cut >= start), latest)
        if self.max_tokens is not None:
            cut = max(cut, index.oldest_cut(self.max_tokens, latest))
        cut = min(cut, latest)
        return items[cut:] if cut else items

    def _by_items(self, items: Sequence[Item]) -> int:
        return 0 if self.max_items is None else max(0, len(items) - self.max_items)

    def _by_turns(self, items: Sequence[Item]) -> int:
        if self.max_turns is None:
            return 0
        turns, place = 0, len(items)
        for place in range(len(items) - 1, -1, -1):
            if _is_user(items[place]) and not (place and _is_user(items[place - 1])):
                turns += 1
                if turns == self.max_turns:
                    return place
        return 0


def _is_user(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"
