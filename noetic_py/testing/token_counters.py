"""The conformance suite for token counters that a plugin registers, to be run with pytest against one of your own.

A counter that passes it can reserve budgets and fit conversations into windows: it opens nothing before its first
count, counts every kind of item, and counts the same each time.

```python
from noetic_py.core.tokens import TextCounter, TokenCount
from noetic_py.testing import TokenCounterContract


class Words(TextCounter):
    def count_text(self, text: str, /) -> TokenCount:
        return TokenCount(len(text.split()), "exact")


class TestWords(TokenCounterContract):
    def make(self) -> Words:
        return Words()
```
"""

from __future__ import annotations

import pytest

from noetic_py.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    Opaque,
    Reasoning,
)
from noetic_py.core.tokens import TokenCounter
from noetic_py.plugins import TokenCounterRegistry
from noetic_py.testing._conformance.base import equal

__all__ = ["TokenCounterContract"]

_TEXT = "High water at Brest: 06:12, 6.9 m."
_TEXTS = ("", " ", _TEXT, "Šaltinis, 満潮 and 🌊", "\x00\ufffd", "<|endoftext|>", "a" * 100_000)


def _items() -> list[Item]:
    parts = (InputText(text=_TEXT), InputImage(url="https://example.org/chart.png"), InputFile(file_id="f1"))
    return [
        Message.user(_TEXT),
        Message(role="user", content=parts),
        FunctionCall(name="look_up", arguments='{"port": "Brest"}'),
        FunctionCallOutput(call_id="c1", output=_TEXT),
        FunctionCallOutput(call_id="c1", output=parts),
        Reasoning(encrypted_content="c2VjcmV0"),
        Opaque(type="acme:note", raw=b'{"type":"acme:note"}'),
    ]


class TokenCounterContract:
    """The contract of a token counter."""

    def make(self) -> TokenCounter:
        """Make the counter as the plugin does."""
        raise NotImplementedError("make() has to make the counter")

    def test_it_can_be_registered(self) -> None:
        """It is an object with both methods."""
        counter, registry = self.make(), TokenCounterRegistry()
        registry.token_counter("contract:*", counter)
        equal(registry("contract:model") is counter, True)

    @pytest.mark.parametrize("text", _TEXTS)
    def test_a_text_has_the_same_count_each_time(self, text: str) -> None:
        """Also with another counter, as in another process."""
        counter = self.make()
        equal([counter.count_text(text), self.make().count_text(text)], [counter.count_text(text)] * 2)
        equal(counter.count_text(text).value >= 0, True)

    def test_a_longer_text_has_more_tokens(self) -> None:
        """So a limit is reached in the end."""
        counter = self.make()
        equal(counter.count_text("").value, 0)
        equal(counter.count_text(_TEXT * 100).value > counter.count_text(_TEXT).value > 0, True)

    @pytest.mark.parametrize("number", range(7))
    def test_every_item_has_the_same_count_each_time(self, number: int) -> None:
        """Of every kind that a conversation has."""
        counter, item = self.make(), _items()[number]
        count = counter.count_item(item)
        equal([count.value > 0, counter.count_item(item), self.make().count_item(item)], [True, count, count])

    def test_an_item_takes_no_less_than_its_text(self) -> None:
        """The frame around it takes tokens as well, and is not taken for nothing."""
        counter = self.make()
        equal(counter.count_item(Message.user(_TEXT)).value >= counter.count_text(_TEXT).value, True)
