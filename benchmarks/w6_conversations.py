"""W6: what an idle conversation of 20 items keeps of the memory: without layers, and with what three of them know."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from attrs import evolve

from benchmarks.measure import Figure, Measurement, Plan, compare, in_loop, take_turns
from benchmarks.w1_steps import check
from noetic_py import Context, Harness, Memory, Message, ModelRequest, StateBag, Step, call_model, step
from noetic_py.memory import ContextItem, ContextQueue, WorkingMemory
from noetic_py.memory import Plan as Checklist
from noetic_py.models import ModelStream
from noetic_py.testing import ScriptedModel

Make: TypeAlias = Callable[[int], Awaitable[object]]
"""Makes a conversation of a number, and gives what has to be kept of it."""

CONVERSATIONS = 40
FIRST = 12
ITEMS = 20
KIB = 1 / 1024
TARGET_KB = 6.0


class Three(Memory):
    """Three layers, each with something of each conversation."""

    notes: WorkingMemory = WorkingMemory()
    plan: Checklist = Checklist()
    window: ContextQueue[str] = ContextQueue(limit=5)


@step
async def nothing(text: str) -> str:
    """Hand the input on."""
    return text


@step
async def keep(text: str, ctx: Context[Three]) -> str:
    """Keep something in each layer, of the first input."""
    if not ctx.memory.plan.items:
        await ctx.memory.notes.update({"topic": text})
        await ctx.memory.plan.set_plan(["read", "write", "send"])
        await ctx.memory.window.append(ContextItem(text))
    return text


def answer(request: ModelRequest) -> str:
    """What the model says."""
    return f"an answer to {len(request.items)} items"


class Forgetful(ScriptedModel):
    """A model that answers for ever, and keeps nothing of what it was asked: that would be counted as ours."""

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer."""
        return ScriptedModel(answer).respond(request)


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W6."""
    count = plan.size(CONVERSATIONS)
    sides = {
        "bare": items(count),
        "plain": talks(count, lambda: Harness(plugins=[]), nothing),
        "layers": talks(count, lambda: Harness(memory=Three(), plugins=[]), keep),
    }
    found = take_turns(sides, plan.rounds)

    def figure(name: str, side: str) -> Figure:
        against = f"{name}, against a list of its messages"
        made = compare("W6", against, found["bare"], found[side], unit="KB", factor=KIB)
        return evolve(made, target=TARGET_KB, judged="ours")

    return [
        figure(f"an idle conversation of {ITEMS} items", "plain"),
        figure("the same with what three layers keep", "layers"),
    ]


def traced(begin: Callable[[], Make], count: int) -> Measurement:
    """Bytes that each of so many conversations keeps, in place of seconds."""

    async def work() -> float:
        make = begin()
        tracemalloc.start()
        # What is made once, and what a harness keeps of its last runs, of any user, belongs to none of them.
        first = [await make(-number - 1) for number in range(FIRST)]
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        kept = [await make(number) for number in range(count)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        check(len(kept) + len(first), count + FIRST)
        return (after - before) / count

    return in_loop(work)


def items(count: int) -> Measurement:
    """Bytes of a list of messages."""

    async def make(number: int) -> list[Message]:
        kept: list[Message] = []
        for turn in range(ITEMS // 2):
            kept += [Message.user(question(number, turn)), Message.assistant(f"an answer to {2 * turn + 1} items")]
        return kept

    return traced(lambda: make, count)


def talks(count: int, made: Callable[[], Harness[Any]], first: Step[str, str, Any, Any]) -> Measurement:
    """Bytes of a context that ten runs have gone on with, and of what its harness keeps of them."""

    def begin() -> Make:
        harness = made()
        flow = first >> call_model(Forgetful())

        async def make(number: int) -> Context[Memory, StateBag]:
            ctx: Context[Memory, StateBag] = Context(thread_id=f"conversation {number}")
            for turn in range(ITEMS // 2):
                await harness.run(flow, question(number, turn), ctx=ctx)
            check(len(ctx.items), ITEMS)
            return ctx

        return make

    return traced(begin, count)


def question(number: int, turn: int) -> str:
    """What the user says."""
    return f"question {turn} of conversation {number}"
