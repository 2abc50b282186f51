"""The example of document 000, "AgenticContext", in Python; its methods are shown by the tests of its rows."""

from __future__ import annotations

import pytest

from noetic_py import Context, Harness, Message, call_model
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def test_document_000_usage_example() -> None:
    """A fresh context, two interactions of which the second remembers the first, and a value of one's own."""
    model = ScriptedModel("Of course. Which order?", "It is on its way.")
    agent = call_model(model)
    context = Context()
    assert (len(context.items), len(context.state), context.turns) == (0, 0, 0)
    async with Harness(plugins=[]) as harness:
        await harness.run(agent, "Hi, I need help with my order", ctx=context)
        await harness.run(agent, "It's order #12345", ctx=context)
    # The second call was shown what the first has said.
    shown = [(item.role, item.text) for item in model.requests[1].items if isinstance(item, Message)]
    assert shown == [
        ("user", "Hi, I need help with my order"),
        ("assistant", "Of course. Which order?"),
        ("user", "It's order #12345"),
    ]
    assert (len(context.items), context.turns) == (4, 2)
    # Custom state.
    context.state.put("orderNumber", "12345")
    order: str | None = context.state.get_as("orderNumber", str)
    assert order == "12345"


async def test_document_000_one_agent_for_many_conversations() -> None:
    """The context is passed per run, so that the agent itself holds nothing of any conversation."""
    model = ScriptedModel("a", "b")
    agent = call_model(model)
    one, other = Context(), Context()
    async with Harness(plugins=[]) as harness:
        await harness.run(agent, "first", ctx=one)
        await harness.run(agent, "second", ctx=other)
    assert [len(request.items) for request in model.requests] == [1, 1]
    assert [len(each.items) for each in (one, other)] == [2, 2]
