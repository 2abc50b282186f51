"""`Temporal`: what time it is, by the clock of the run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Message, call_model
from noetic_py.errors import ConfigError
from noetic_py.memory import Moments, Temporal
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.layer_runs import assert_lasts, harness, is_sealed, shown, tokens_shown

pytestmark = pytest.mark.anyio

START = datetime(2025, 1, 1, 12, 30, 15, tzinfo=UTC)


async def nothing(layer: Any) -> None:
    """What is done with a layer that has no functions."""


def at(**settings: Any) -> Temporal:
    """A layer whose clock stands still."""
    return Temporal(clock=VirtualRuntime(start=START), **settings)


@pytest.mark.clause("002-50k")
async def test_the_time_by_itself() -> None:
    assert await at().recall("", 100) == "Now: 2025-01-01 12:30 (UTC), Wednesday"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"precision": "second"}, "2025-01-01 12:30:15 (UTC), Wednesday"),
        ({"precision": "hour"}, "2025-01-01 12:00 (UTC), Wednesday"),
        ({"precision": "day"}, "2025-01-01 (UTC), Wednesday"),
        ({"timezone": "Pacific/Auckland"}, "2025-01-02 01:30 (Pacific/Auckland), Thursday"),
    ],
)
async def test_zone_and_precision(settings: Any, told: str) -> None:
    assert await at(**settings).recall("", 100) == f"Now: {told}"


@pytest.mark.clause("002-50k")
async def test_how_long_ago_things_were_said() -> None:
    runtime = VirtualRuntime(start=START)
    layer = Temporal(clock=runtime)
    await layer.on_item_append([Message.user("one")])
    await runtime.advance(3 * 86_400 + 7_200 + 61)
    await layer.on_item_append([Message.user("two")])
    await runtime.advance(59)
    assert await layer.recall("", 100) == (
        "Now: 2025-01-04 14:32 (UTC), Saturday\n"
        "The user's newest message: less than a minute ago\n"
        "The user's message before that: 3 days 2 hours ago\n"
        "The conversation began: 3 days 2 hours ago"
    )


async def test_what_no_user_says_is_not_noted() -> None:
    layer = at()
    await layer.on_item_append([Message.developer("x")])
    assert layer.state == Moments()


@given(seconds=st.integers(-10, 10**9))
async def test_any_span_can_be_told(seconds: int) -> None:
    runtime = VirtualRuntime(start=START)
    layer = Temporal(clock=runtime, precision="second")
    layer.state = Moments(newest=START - timedelta(seconds=seconds))
    assert " ago" in await layer.recall("", 100)


@pytest.mark.parametrize("settings", [{"timezone": "Atlantis"}, {"timezone": "../x"}, {"precision": "week"}])
def test_wrong_settings(settings: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Temporal(**settings)
    assert caught.value.code == "temporal"


async def test_turns_of_a_conversation() -> None:
    runtime = VirtualRuntime(start=START)
    model = ScriptedModel("one", "two")
    async with harness(Temporal(), runtime=runtime) as built:
        await built.run(call_model(model), "hi", thread_id="t")
        await runtime.advance(3600)
        await built.run(call_model(model), "again", thread_id="t")
    told = [item.text for item in model.requests[1].items if isinstance(item, Message) and "Now:" in item.text]
    told_now = (
        '<memory layer="layer">\n'
        "Now: 2025-01-01 13:30 (UTC), Wednesday\n"
        "The user's newest message: less than a minute ago\n"
        "The user's message before that: 1 hour ago\n"
        "Your last answer: 1 hour ago\n"
        "The conversation began: 1 hour ago\n"
        "</memory>"
    )
    assert told == [told_now]


async def test_it_stands_behind_the_conversation() -> None:
    runtime = VirtualRuntime(start=START)
    model = ScriptedModel("one", "two")
    history = [Message.user("old"), Message.assistant("older")]
    async with harness(Temporal(), runtime=runtime) as built:
        await built.run(call_model(model), "hi", history=history)
    items = model.requests[0].items
    assert [isinstance(item, Message) and "Now:" in item.text for item in items] == [False, False, True, False]


async def test_an_interrupted_run_comes_to_the_same(tmp_path: Path) -> None:
    await assert_lasts(at, nothing, tmp_path)


@pytest.mark.parametrize("budget", [0, 5, 30, 100])
async def test_a_budget_is_kept(budget: int) -> None:
    assert await tokens_shown(Temporal(budget=budget), nothing) <= budget


async def test_it_is_one_block() -> None:
    (message,) = await shown(at(), nothing)
    assert is_sealed(message)
