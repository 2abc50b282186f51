"""An agent with one tool, a typed answer and a budget.

    noetic run flow.py "When is high water in Dover?"

Without `--model` the answers are scripted, so that the project runs before you have a key.
"""

from typing import Any

from attrs import frozen
from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    Memory,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel


@frozen
class Report:
    """What the flow returns."""

    question: str
    answer: str


@tool
async def tide_table(port: str) -> str:
    """Look up the times of high water.

    Args:
        port: The port's English name.
    """
    return f"{port}: high water at 06:12 and at 18:40"


agent = loop(
    call_model(instructions="Look the times up, then answer in one sentence.", tools=[tide_table]),
    until=until.no_tool_calls() | until.max_rounds(5),
)


@step
async def answer(question: str, ctx: Context[Memory, object]) -> Report:
    return Report(question, await agent(question, ctx))


flow = answer
budget = Budget(model_calls=6, tokens=20_000, cost="0.05")


def harness(model: str | None = None, checkpoints: Any = None) -> Harness[Memory]:
    """Make the harness that `noetic run` uses; the tests make their own."""
    return Harness(model=model or scripted(), checkpoints=checkpoints)


def scripted() -> ScriptedModel:
    """A model that says what is written here, for a first run and for tests."""
    call = FunctionCall(name="tide_table", arguments={"port": "Dover"})
    return ScriptedModel(call, "High water in Dover is at 06:12 and at 18:40.")
