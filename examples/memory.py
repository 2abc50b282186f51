"""An assistant with memory: notes and a plan that code and the model keep together, separately for each user.

Run it: python examples/memory.py
"""

from __future__ import annotations

import json
from typing import Any

import anyio

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    Memory,
    Message,
    ModelRequest,
    call_model,
    loop,
    step,
    until,
)
from noetic_py.memory import HistoryWindow, Plan, Scope, WorkingMemory
from noetic_py.testing import ScriptedModel


class Mem(Memory):
    """What the assistant carries: each field is a layer."""

    notes: WorkingMemory = WorkingMemory(scope=Scope.USER, budget=400)
    plan: Plan = Plan()
    recent: HistoryWindow = HistoryWindow(max_turns=6)


@step
async def greet(question: str, ctx: Context[Mem]) -> str:
    """Code uses the same functions that the model has as tools."""
    await ctx.memory.notes.update({"asked": question})
    return question


def call(name: str, **arguments: Any) -> FunctionCall:
    """What a model would write."""
    return FunctionCall(name=name, arguments=json.dumps(arguments))


def answer(request: ModelRequest) -> str:
    """A stand-in for a model: it says what it was shown of its memory."""
    shown = [item.text for item in request.items if isinstance(item, Message) and "<memory" in item.text]
    return f"I was shown {len(shown)} blocks of memory; the first begins with {shown[0].splitlines()[1]!r}."


async def main() -> None:
    """Two conversations of one user: the notes are hers, the plan belongs to the conversation."""
    model = ScriptedModel(call("notes__update", patch={"likes": "short answers"}), answer, answer)
    ask = greet >> loop(call_model(instructions="You plan sailing trips."), until=until.no_tool_calls())
    async with Harness(memory=Mem(), model=model) as harness:
        first = await harness.run(ask, "Where to on Sunday?", user_id="ada", thread_id="one")
        print(first.value)
        second = await harness.run(ask, "And on Monday?", user_id="ada", thread_id="two")
        print(second.memory["notes"])
        print(harness.explain_view(second.run_id).explain())


if __name__ == "__main__":
    anyio.run(main)
