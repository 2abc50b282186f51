"""LlamaIndex Workflows: a step that answers an event with the next one, a list of events as a fan-out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

Run = Callable[[], Awaitable[int]]


class Begin(StartEvent):
    steps: int
    seconds: float | None = None


class Again(Event):
    left: int
    done: int
    seconds: float | None = None


class Loop(Workflow):
    @step
    async def same(self, event: Begin | Again) -> Again | StopEvent:
        if event.seconds is not None:
            await asyncio.sleep(event.seconds)
        left, done = (event.left, event.done) if isinstance(event, Again) else (event.steps, 0)
        if left == 1:
            return StopEvent(result=done + 1)
        return Again(left=left - 1, done=done + 1, seconds=event.seconds)


def w1(steps: int) -> Run:
    loop = Loop(timeout=None)

    async def run() -> int:
        return await loop.run(start_event=Begin(steps=steps))

    return run


class Branch(Event):
    value: int


class Done(Event):
    value: int


def w2(branches: int) -> Run:
    # Four branches at a time, which is the default. With as many workers as branches it takes about four times as long.
    class Parallel(Workflow):
        @step
        async def out(self, event: StartEvent) -> list[Branch]:
            return [Branch(value=1) for _ in range(branches)]

        @step
        async def same(self, event: Branch) -> Done:
            return Done(value=event.value)

        @step
        async def joined(self, events: list[Done]) -> StopEvent:
            return StopEvent(result=len(events))

    parallel = Parallel(timeout=None)

    async def run() -> int:
        return await parallel.run()

    return run


def w7(runs: int, steps: int, seconds: float) -> Run:
    loop = Loop(timeout=None)

    async def run() -> int:
        begins = [Begin(steps=steps, seconds=seconds) for _ in range(runs)]
        return sum(await asyncio.gather(*[loop.run(start_event=begin) for begin in begins]))

    return run
