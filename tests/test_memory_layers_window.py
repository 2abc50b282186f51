"""`HistoryWindow`: the newest part of a conversation, cut where nothing belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import FunctionCall, FunctionCallOutput, Item, Message, call_model, loop, tool, until
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.errors import ConfigError
from noetic_py.memory import HistoryWindow
from noetic_py.memory.history import HistoryIndex, paired
from noetic_py.testing import ScriptedModel
from tests.layer_runs import assert_lasts, harness

pytestmark = pytest.mark.anyio

COUNTER = EstimatedCounter()


def talk(kinds: Sequence[int]) -> list[Item]:
    """A conversation: 0 is said by the user, 1 by the model, n > 1 are n - 1 calls and their outputs."""
    items: list[Item] = []
    for place, kind in enumerate(kinds):
        if kind == 0:
            items.append(Message.user(f"question {place}"))
        elif kind == 1:
            items.append(Message.assistant(f"answer {place}"))
        else:
            ids = [f"{place}-{each}" for each in range(kind - 1)]
            items += [FunctionCall(name="look", arguments="{}", call_id=each) for each in ids]
            items += [FunctionCallOutput(call_id=each, output="x" * 50) for each in ids]
    return items


async def nothing(layer: Any) -> None:
    """What is done with a layer that has no functions."""


async def test_turns() -> None:
    items = talk([0, 1, 0, 2, 1, 0, 1, 0])
    assert await HistoryWindow(max_turns=1).project_history(items) == items[-1:]
    assert await HistoryWindow(max_turns=2).project_history(items) == items[-3:]
    assert await HistoryWindow(max_turns=3).project_history(items) == items[2:]
    assert await HistoryWindow(max_turns=9).project_history(items) is items


async def test_several_inputs_in_a_row_are_one_turn() -> None:
    items = talk([0, 1, 0, 0, 1])
    assert await HistoryWindow(max_turns=1).project_history(items) == items[2:]


async def test_items() -> None:
    items = talk([0, 1, 0, 1, 0])
    for count in range(1, 7):
        assert await HistoryWindow(max_items=count).project_history(items) == items[-count:]


async def test_a_call_stays_with_its_output() -> None:
    items = talk([0, 3, 1, 0])
    assert [item.type for item in items] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
        "message",
    ]
    for count in (3, 4, 5):
        assert await HistoryWindow(max_items=count).project_history(items) == items[5:]
    assert await HistoryWindow(max_items=6).project_history(items) == items[1:]


async def test_the_newest_is_shown_whatever_it_takes() -> None:
    items = [*talk([0, 1, 0]), Message.user("x" * 5000)]
    assert await HistoryWindow(max_tokens=10).project_history(items) == items[-2:]
    items = talk([0, 1, 0, 0])
    assert await HistoryWindow(max_items=1).project_history(items) == items[2:]
    items = talk([0, 3])
    assert await HistoryWindow(max_items=1).project_history(items) == items[1:]


async def test_tokens() -> None:
    items = talk([0, 1] * 50)
    shown = await HistoryWindow(max_tokens=100).project_history(items)
    assert sum(COUNTER.count_item(item).value for item in shown) <= 100
    assert len(shown) > 5


async def test_the_narrowest_counts() -> None:
    items = talk([0, 1, 0, 1, 0])
    assert await HistoryWindow(max_turns=3, max_items=1).project_history(items) == items[-1:]
    assert await HistoryWindow(max_turns=1, max_items=9).project_history(items) == items[-1:]


async def test_nothing_of_nothing() -> None:
    assert await HistoryWindow(max_items=1).project_history([]) == []


@given(
    kinds=st.lists(st.integers(0, 4), max_size=20),
    limits=st.fixed_dictionaries(
        {"max_items": st.integers(1, 30)}, optional={"max_turns": st.integers(1, 8), "max_tokens": st.integers(1, 200)}
    ),
)
async def test_what_is_shown_is_whole(kinds: list[int], limits: dict[str, int]) -> None:
    items = talk(kinds)
    made: Any = HistoryWindow
    shown = await made(**limits).project_history(items)
    assert list(shown) == items[len(items) - len(shown) :]
    assert paired(shown) == list(shown)
    index = HistoryIndex()
    index.update(items, COUNTER)
    # No more than the limit, but for the part that is always there.
    newest = len(items) - index.tail
    assert newest <= len(shown) <= max(limits["max_items"], newest)


@pytest.mark.parametrize(
    "settings", [{}, {"max_items": 0}, {"max_turns": -1}, {"max_tokens": 1.5}, {"max_items": True}]
)
def test_wrong_settings(settings: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        HistoryWindow(**settings)
    assert caught.value.code == "history-window"


async def test_the_model_sees_less_and_the_log_keeps_all() -> None:
    model = ScriptedModel("one")
    async with harness(HistoryWindow(max_turns=1)) as built:
        result = await built.run(call_model(model), "new", history=talk([0, 1, 0, 2, 1]))
    (request,) = model.requests
    assert [item.text for item in request.items if isinstance(item, Message)] == ["new"]
    assert len(result.items) == 8


async def test_an_interrupted_run_comes_to_the_same(tmp_path: Path) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    call = FunctionCall(name="look", arguments="{}")
    await assert_lasts(lambda: HistoryWindow(max_items=2), nothing, tmp_path, call, tools=[look])


async def test_a_loop_goes_on_within_a_window() -> None:
    @tool
    async def look(at: int) -> str:
        """Look."""
        return f"seen {at}"

    calls = [FunctionCall(name="look", arguments=f'{{"at":{at}}}') for at in range(5)]
    model = ScriptedModel(*calls, "done")
    async with harness(HistoryWindow(max_items=3)) as built:
        result = await built.run(loop(call_model(model, tools=[look]), until=until.no_tool_calls()), "hi")
    assert result.value == "done"
    assert [len(request.items) for request in model.requests] == [1, 3, 2, 2, 2, 2]
