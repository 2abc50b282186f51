"""What a model is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from noetic_py import FunctionCallOutput, Message, ModelRequest
from noetic_py.core.items import Item
from noetic_py.core.log import ItemLog, ItemView

SAID: Sequence[Item] = (Message.user("one"), Message.assistant("two"), Message.user("three"))


@pytest.mark.parametrize("kind", [list, tuple, ItemView, ItemLog])
def test_the_items_of_a_request_are_a_view_whatever_is_given(kind: Any) -> None:
    request = ModelRequest(items=kind(SAID))
    assert isinstance(request.items, ItemView)
    assert not isinstance(request.items, ItemLog)
    assert (request.items.last_text("user"), tuple(request.items)) == ("three", tuple(SAID))
    assert request == ModelRequest(SAID)
    assert request != ModelRequest(SAID[:1])
    other = evolve(request, items=[*request.items[:1], Message.user("four")])
    assert (len(other.items), other.items.last_text("user")) == (2, "four")
    assert evolve(request, instructions="Be brief.").items is request.items


def test_they_are_not_checked() -> None:
    unpaired = [FunctionCallOutput(call_id="c", output="no call")]
    assert list(ModelRequest(unpaired).items) == unpaired


def test_a_list_that_changes_later_changes_no_request() -> None:
    items = list(SAID)
    request = ModelRequest(items)
    items.clear()
    assert len(request.items) == 3
