"""OpenAI Agents SDK: an agent with a scripted model; runs side by side are the parallel branches.

Tracing, which is on by default and exports to a server, is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)

Run = Callable[[], Awaitable[int]]
CONFIG = RunConfig(tracing_disabled=True)


def nothing() -> None:
    """What a model calls when no hook listens."""


@function_tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Scripted(Model):
    """A model that calls a tool again and again, then answers."""

    def __init__(self, turns: int, stamp: Callable[[], None] = nothing, seconds: float | None = None) -> None:
        self.left = turns
        self.stamp = stamp
        self.seconds = seconds

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        self.stamp()
        if self.seconds is not None and self.left:
            await asyncio.sleep(self.seconds)
        self.left -= 1
        call = ResponseFunctionToolCall(
            arguments='{"key": "tides"}', call_id=f"call_{self.left}", name="lookup", type="function_call"
        )
        return ModelResponse(output=[answer() if self.left < 0 else call], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def answer() -> ResponseOutputMessage:
    text = ResponseOutputText(annotations=[], text="done", type="output_text")
    return ResponseOutputMessage(id="message", content=[text], role="assistant", status="completed", type="message")


def agent_of(turns: int, stamp: Callable[[], None] = nothing, seconds: float | None = None) -> Agent:
    return Agent(name="agent", model=Scripted(turns, stamp, seconds), tools=[lookup])


async def turns_of(agent: Agent, turns: int) -> int:
    """A run of so many turns that call a tool, and one that answers; gives how many calls were answered."""
    result = await Runner.run(agent, "Look up the tides.", max_turns=turns + 1, run_config=CONFIG)
    return sum(item.type == "tool_call_output_item" for item in result.new_items)


def w1(steps: int) -> Run:
    # There is no other loop than that of the model, so a step is a turn of it.
    agent = agent_of(steps)

    async def run() -> int:
        return await turns_of(agent, steps)

    return run


def w2(branches: int) -> Run:
    # Runs that share an agent check one another's tools, so that a thousand of them would take several times as long.
    agents = [Agent(name="agent", model=Scripted(0)) for _ in range(branches)]

    async def run() -> int:
        results = await asyncio.gather(*[Runner.run(agent, "1", run_config=CONFIG) for agent in agents])
        return sum(result.final_output == "done" for result in results)

    return run


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    agent = agent_of(turns, stamp)

    async def run() -> int:
        return await turns_of(agent, turns)

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    async def make(texts: list[str]) -> object:
        # What `Runner.run(agent, items)` takes. The library's session keeps the same items in SQLite.
        roles = ("user", "assistant")
        return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]

    return make


def w7(runs: int, steps: int, seconds: float) -> Run:
    agents = [agent_of(steps, seconds=seconds) for _ in range(runs)]

    async def run() -> int:
        return sum(await asyncio.gather(*[turns_of(agent, steps) for agent in agents]))

    return run


def w8(turns: int, file: str) -> Run:
    agent = Agent(name="agent", model=Scripted(0))

    async def run() -> int:
        session = SQLiteSession("chat", file)
        for turn in range(turns):
            await Runner.run(agent, f"message {turn}", session=session, run_config=CONFIG)
        kept = len(await session.get_items())
        session.close()
        return kept

    return run
