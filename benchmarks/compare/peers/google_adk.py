"""Google ADK: a `LoopAgent` and a `ParallelAgent` of agents that yield one event, an `Agent` with a scripted model.

Both are deprecated in favour of `Workflow` and measured nevertheless, because they are several times as fast: a loop
in a `Workflow` costs more for each step the longer it runs. A runner needs a session service; it is the one in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from google.adk import Agent
from google.adk.agents import BaseAgent, InvocationContext, LoopAgent, ParallelAgent, RunConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner, Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

Run = Callable[[], Awaitable[int]]
APP = "benchmark"
USER = "user"


class Same(BaseAgent):
    seconds: float | None = None

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        yield Event(author=self.name)


async def events_of(runner: InMemoryRunner, text: str, config: RunConfig | None = None) -> AsyncIterator[Event]:
    """Everything that a run in a session of its own yields."""
    session = await runner.session_service.create_session(app_name=APP, user_id=USER)
    message = types.UserContent(text)
    async for event in runner.run_async(
        user_id=USER, session_id=session.id, new_message=message, run_config=config or RunConfig()
    ):
        yield event


def loop(steps: int, seconds: float | None = None) -> InMemoryRunner:
    agent = LoopAgent(name="loop", sub_agents=[Same(name="same", seconds=seconds)], max_iterations=steps)
    return InMemoryRunner(agent=agent, app_name=APP)


async def count(runner: InMemoryRunner) -> int:
    return len([event async for event in events_of(runner, "1")])


def w1(steps: int) -> Run:
    runner = loop(steps)

    async def run() -> int:
        return await count(runner)

    return run


def w2(branches: int) -> Run:
    agent = ParallelAgent(name="parallel", sub_agents=[Same(name=f"same_{number}") for number in range(branches)])
    runner = InMemoryRunner(agent=agent, app_name=APP)

    async def run() -> int:
        return await count(runner)

    return run


async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Scripted(BaseLlm):
    """A model that calls a tool again and again, then answers."""

    left: int
    stamp: Callable[[], None]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.stamp()
        self.left -= 1
        part = types.Part.from_function_call(name="lookup", args={"key": "tides"})
        if self.left < 0:
            part = types.Part.from_text(text="done")
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1)
        yield LlmResponse(content=types.ModelContent([part]), usage_metadata=usage)


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    agent = Agent(name="agent", model=Scripted(model="scripted", left=turns, stamp=stamp), tools=[lookup])
    runner = InMemoryRunner(agent=agent, app_name=APP)

    async def run() -> int:
        events = events_of(runner, "Look up the tides.", RunConfig(max_llm_calls=turns + 1))
        return sum([len(event.get_function_responses()) async for event in events])

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    service = InMemorySessionService()

    async def make(texts: list[str]) -> None:
        session = await service.create_session(app_name=APP, user_id=USER)
        for number, text in enumerate(texts):
            content = types.ModelContent(text) if number % 2 else types.UserContent(text)
            await service.append_event(session, Event(author="agent" if number % 2 else "user", content=content))

    return make


def w7(runs: int, steps: int, seconds: float) -> Run:
    runner = loop(steps, seconds)

    async def run() -> int:
        return sum(await asyncio.gather(*[count(runner) for _ in range(runs)]))

    return run


def w8(turns: int, file: str) -> Run:
    agent = Agent(name="agent", model=Scripted(model="scripted", left=0, stamp=lambda: None))

    async def run() -> int:
        service = SqliteSessionService(file)
        runner = Runner(agent=agent, app_name=APP, session_service=service)
        session = await service.create_session(app_name=APP, user_id=USER)
        for turn in range(turns):
            message = types.UserContent(f"message {turn}")
            async for _ in runner.run_async(user_id=USER, session_id=session.id, new_message=message):
                pass
        kept = await service.get_session(app_name=APP, user_id=USER, session_id=session.id)
        return sum(event.content is not None for event in kept.events)

    return run
