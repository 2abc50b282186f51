"""noetic_py: our own side of each work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
from attrs import define

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Memory,
    Message,
    ModelRequest,
    call_model,
    loop,
    parallel,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel

Run = Callable[[], Awaitable[int]]


@step
async def same(value: int, ctx: Context) -> int:
    return value


def w1(steps: int) -> Run:
    harness = Harness(plugins=[])
    flow = loop(same, until=until.max_rounds(steps), max_iterations=steps)

    async def run() -> int:
        return (await harness.run(flow, 1)).steps

    return run


def w2(branches: int) -> Run:
    harness = Harness(plugins=[])
    flow = parallel([same] * branches)

    async def run() -> int:
        return len((await harness.run(flow, 1)).value)

    return run


@tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return key


@define
class Kept:
    text: str = ""


@step
async def keep(value: int, ctx: Context[Memory, Kept]) -> int:
    ctx.state.text = f"{value:08d}" * 125
    ctx.items.append(Message.user(f"{value:08d}" * 25))
    return value + 1


def w3(steps: int, file: str) -> Run:
    flow = loop(keep, until=until.max_rounds(steps), max_iterations=steps)

    async def run() -> int:
        async with Harness(plugins=[], checkpoints=f"sqlite:{file}") as harness:
            return (await harness.run(flow, 0, state=Kept())).steps

    return run


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    def ask(request: ModelRequest) -> Item:
        stamp()
        return FunctionCall(name="lookup", arguments='{"key": "tides"}')

    def end(request: ModelRequest) -> Item:
        stamp()
        return Message.assistant("done")

    harness = Harness(plugins=[])
    model = ScriptedModel(*[ask] * turns, end)
    flow = loop(call_model(model, tools=(lookup,)), until=until.no_tool_calls())

    async def run() -> int:
        result = await harness.run(flow, "Look up the tides.")
        return sum(isinstance(item, FunctionCallOutput) for item in result.items)

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    async def make(texts: list[str]) -> object:
        # A context stands for the session until there are sessions.
        makers = (Message.user, Message.assistant)
        return Context(items=[makers[number % 2](text) for number, text in enumerate(texts)])

    return make


def w7(runs: int, steps: int, seconds: float) -> Run:
    @step
    async def nap(value: int, ctx: Context) -> int:
        await anyio.sleep(seconds)
        return value

    harness = Harness(plugins=[])
    flow = loop(nap, until=until.max_rounds(steps))

    async def run() -> int:
        results = await asyncio.gather(*[harness.run(flow, 0) for _ in range(runs)])
        return sum(result.steps for result in results)

    return run


def w8(turns: int, file: str) -> Run:
    model = ScriptedModel(*["done"] * turns)

    async def run() -> int:
        async with Harness(plugins=[], checkpoints=f"sqlite:{file}", model=model) as harness:
            session = harness.session("user", "chat")
            for turn in range(turns):
                await session.run(call_model(), f"message {turn}")
            return len(await session.items())

    return run
