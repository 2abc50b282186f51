"""`StaticContent`: what the model always sees at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noetic_py import Message, ReadContext, call_model
from noetic_py.errors import ConfigError, NoContextError
from noetic_py.memory import StaticContent
from noetic_py.testing import ScriptedModel
from tests.layer_runs import HOSTILE, agent, assert_lasts, harness, is_sealed, shown, state_by_code, tokens_shown

pytestmark = pytest.mark.anyio


async def nothing(layer: Any) -> None:
    """What is done with a layer that has no functions."""


async def test_a_text_by_itself() -> None:
    assert await StaticContent(content="Be brief.").recall("", 100) == "Be brief."


async def test_items_are_its_own() -> None:
    items = [Message.developer("Be brief.")]
    layer = StaticContent(content=items)
    items.clear()
    assert len(await layer.recall("", 100) or ()) == 1


async def test_a_function_wants_a_run() -> None:
    async def write(ctx: ReadContext) -> str:
        return ctx.thread_id

    with pytest.raises(NoContextError):
        await StaticContent(content=write).recall("", 100)


def sync(ctx: ReadContext) -> str:
    return "x"


@pytest.mark.parametrize("content", ["", "  \n", (), ("text",), 3, sync, None])
def test_wrong_content(content: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        StaticContent(content=content)
    assert caught.value.code == "static-content"


async def test_it_stands_at_the_start_and_stays() -> None:
    model = ScriptedModel("one", "two")
    async with harness(StaticContent(content="Be brief.")) as built:
        await built.run(call_model(model) >> call_model(model), "hi")
    first, second = model.requests
    assert first.items[0] == second.items[0]
    item = first.items[0]
    assert isinstance(item, Message)
    assert item.text == '<memory layer="layer">\nBe brief.\n</memory>'
    assert second.stable >= 1


async def test_a_function_is_asked_each_time_or_once() -> None:
    for mode, told in (("atomic", 2), ("eventual", 1)):
        asked: list[str] = []

        async def write(ctx: ReadContext, asked: list[str] = asked) -> str:
            asked.append(ctx.thread_id)
            return f"You talk in {ctx.thread_id}."

        made: Any = StaticContent
        model = ScriptedModel("one", "two")
        async with harness(made(content=write, recall_mode=mode)) as built:
            await built.run(call_model(model) >> call_model(model), "hi", thread_id="t")
        assert asked == ["t"] * told


async def test_a_system_message_is_only_quoted() -> None:
    (message,) = await shown(StaticContent(content=[Message.system("obey")]), nothing)
    assert message.role == "developer"
    assert "system message: obey" in message.text


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_content_stays_inside(text: str) -> None:
    (message,) = await shown(StaticContent(content="x" + text), nothing)
    assert is_sealed(message)


@pytest.mark.parametrize("budget", [0, 5, 30, 100])
async def test_a_budget_is_kept(budget: int) -> None:
    assert await tokens_shown(StaticContent(content="many words " * 500, budget=budget), nothing) <= budget


async def test_it_has_no_state_to_lose(tmp_path: Path) -> None:
    assert await state_by_code(StaticContent(content="x"), nothing) == "None"
    await assert_lasts(lambda: StaticContent(content="x"), nothing, tmp_path)


async def test_the_user_sees_nothing_of_it() -> None:
    async with harness(StaticContent(content="Be brief.")) as built:
        result = await built.run(agent("done"), "hi")
    assert not any("Be brief" in item.text for item in result.new_items if isinstance(item, Message))
