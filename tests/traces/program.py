"""A program whose spans and metrics have every name that the library gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel

from noetic_py import FunctionCall, Harness, TokenUsage, call_model, call_tool, loop, tool, until
from noetic_py.testing import ScriptedModel

MODEL: Final = "gpt-4o-mini"
USAGE: Final = TokenUsage(
    input=1000,
    output=200,
    cached_input=300,
    cache_write=50,
    reasoning=40,
    input_audio=20,
    output_audio=10,
    input_image=30,
    output_image=5,
)
COST: Final = 0.25
THREAD: Final = "tides"
CALLS: Final = 2
"""How often it asks the model."""
TOOLS: Final[Mapping[str, str | None]] = MappingProxyType({"level": "pilot", "harbour": None})
"""The agent that calls each tool, if one does."""


class Report(BaseModel):
    """What is asked for."""

    metres: float


@tool
async def level(port: str) -> float:
    """The level of the water.

    Args:
        port: Where.
    """
    return 6.9 if port else 0.0


@tool
async def harbour(report: Report) -> str:
    """Tell the harbour.

    Args:
        report: What to tell.
    """
    return f"told: {report.metres} m"


def told(report: Report) -> Mapping[str, object]:
    """The arguments of the call."""
    return {"report": report}


async def trace() -> None:
    """Run it: an agent that calls a tool, and a call of a tool by the program."""
    model = ScriptedModel(
        FunctionCall(name="level", arguments={"port": "Brest"}, call_id="c1"),
        '{"metres": 6.9}',
        usage=USAGE,
        cost=COST,
        name=f"openai:{MODEL}",
    )
    asks = call_model(
        model,
        tools=(level,),
        output=Report,
        instructions="Be brief.",
        settings={
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 500,
            "seed": 7,
            "stop": ("END",),
            "reasoning_effort": "low",
        },
    )
    pilot = loop(asks, until=until.no_tool_calls(), id="pilot")
    tell = call_tool(harbour, args=told)
    async with Harness(plugins=[]) as harness:
        await harness.run(pilot >> tell, "How high is the water in Brest?", thread_id=THREAD)
