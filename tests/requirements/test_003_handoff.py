"""Row 003-15: a step that is returned is gone on with in the same run, and is nobody's value itself."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import Context, FunctionCall, Handoff, Harness, Message, Step, call_model, loop, step, step_tool, until
from noetic_py.core.items import FunctionCallOutput
from noetic_py.testing import ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio

Ctx = Context[Any, Any]


def desk(seen: list[tuple[Any, ...]]) -> Step[str, str]:
    @step
    async def billing(number: int, ctx: Ctx) -> str:
        seen.append((ctx.run_id, number, ctx.path, ctx.input))
        ctx.items.append(Message.assistant(f"bills {number}"))
        return f"paid {number}"

    @step(handoffs=[billing])
    async def triage(text: str, ctx: Ctx) -> str | Handoff[str]:
        seen.append((ctx.run_id, text))
        ctx.items.append(Message.assistant("sorts"))
        return Handoff(billing, int(text)) if text.isdigit() else "no bill"

    return triage


@pytest.mark.clause("003-15a")
async def test_003_15_a_step_hands_over_in_the_same_run_and_its_handoff_is_nobodys_value() -> None:
    seen: list[tuple[Any, ...]] = []
    async with Harness() as harness:
        result = await harness.run(desk(seen), "12")
        assert (await harness.run(desk([]), "x")).value == "no bill"
    assert result.value == "paid 12"
    assert seen == [(result.run_id, "12"), (result.run_id, 12, ("triage", "billing"), "12")]
    texts = [item.text for item in result.items if isinstance(item, Message) and item.role == "assistant"]
    assert texts == ["sorts", "bills 12"]
    assert "Handoff" not in repr(result.items)


@pytest.mark.clause("003-15b")
async def test_003_15_a_tool_hands_over_when_it_is_made_of_such_a_step() -> None:
    seen: list[tuple[Any, ...]] = []
    call = FunctionCall(name="desk", arguments='{"input": "12"}', call_id="c1")
    tool = step_tool(desk(seen), name="desk", description="Sorts bills.")
    flow = loop(call_model(ScriptedModel(call, "done"), tools=[tool]), until=until.no_tool_calls())
    async with Harness() as harness:
        result = await harness.run(flow, "pay")
    assert result.value == "done"
    assert [entry[0] for entry in seen] == [result.run_id] * 2
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["paid 12"]


@pytest.mark.clause("003-15c")
async def test_003_15_a_handover_survives_a_kill_anywhere() -> None:
    assert await assert_resumable_everywhere(lambda: desk([]), "12") >= 4
