"""Pydantic AI, whose agent loop is a pydantic-graph: an agent with a scripted model, and its message history.

Instrumentation is off, as it is unless asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

Run = Callable[[], Awaitable[int]]


class Scripted(Model):
    """A model that calls a tool again and again, then answers.

    It is a model of its own because `FunctionModel` counts the words of the whole history for each request.
    """

    def __init__(self, turns: int, stamp: Callable[[], None]) -> None:
        super().__init__()
        self.left = turns
        self.stamp = stamp

    @property
    def model_name(self) -> str:
        return "scripted"

    @property
    def system(self) -> str:
        return "scripted"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self.stamp()
        self.left -= 1
        if self.left < 0:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("lookup", '{"key": "tides"}')])


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    agent = Agent(Scripted(turns, stamp))

    @agent.tool_plain
    async def lookup(key: str) -> str:
        """Look a key up."""
        return key

    async def run() -> int:
        result = await agent.run("Look up the tides.", usage_limits=UsageLimits(request_limit=None))
        return sum(isinstance(part, ToolReturnPart) for message in result.all_messages() for part in message.parts)

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    async def make(texts: list[str]) -> list[ModelMessage]:
        # What `agent.run(..., message_history=...)` takes: the library has no session besides it.
        return [
            ModelResponse(parts=[TextPart(text)]) if number % 2 else ModelRequest(parts=[UserPromptPart(text)])
            for number, text in enumerate(texts)
        ]

    return make
