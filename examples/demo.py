"""A run that is killed in the middle, resumed, and approved by a person: what `noetic demo` shows, command by command.

    noetic run demo.py "Plan a day by boat."

An agent plans a day, a survey measures six harbours one after the other, and booking the boat requires approval. A
script stands in for the model, so that the demo needs no key; `--model openai:gpt-5-mini` asks a real one.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field, frozen

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    Message,
    RunResult,
    call_model,
    each,
    loop,
    step,
    tool,
    until,
)
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel

HARBOURS = {"Dover": 6.8, "Calais": 7.2, "Hull": 7.1, "Ostend": 4.9, "Brest": 6.2, "Cadiz": 3.1}
DIARY = Path("bodies.log")


@frozen
class Measured:
    harbour: str
    metres: float


@define
class State:
    """What the run keeps beside its conversation."""

    measured: list[Measured] = field(factory=list[Measured])


def note(line: str) -> None:
    """Write down outside of the run that a body ran, and in which process, so that it can be counted afterwards."""
    with DIARY.open("a", encoding="utf-8") as diary:
        diary.write(f"{os.getpid()} {line}\n")


@tool
async def tide(harbour: str) -> float:
    """Height of the next high tide in metres.

    Args:
        harbour: The harbour's English name.
    """
    note(f"tool tide {harbour}")
    await anyio.sleep(0.3)
    return HARBOURS[harbour]


@tool(needs_approval=True)
async def book(harbour: str, euros: int) -> str:
    """Book the boat.

    Args:
        harbour: Where it leaves.
        euros: What it costs.
    """
    note(f"tool book {harbour}")
    return f"booked from {harbour} for {euros} euros"


def script(request: ModelRequest) -> str | list[FunctionCall]:
    """Stands in for a model: asks for two tides, compares them, and books when it is asked to."""
    note("model")
    outputs = [item.text for item in request.items if isinstance(item, FunctionCallOutput)]
    asked = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
    if asked[-1].startswith("Book"):
        if outputs and not outputs[-1].replace(".", "").isdigit():
            return f"The answer to the booking was: {outputs[-1]}."
        return [FunctionCall(name="book", arguments={"harbour": "Calais", "euros": 240})]
    if not outputs:
        return [FunctionCall(name="tide", arguments={"harbour": name}) for name in ("Dover", "Calais")]
    return f"High water is at {outputs[0]} m in Dover and at {outputs[1]} m in Calais, so Calais is the better start."


plan = loop(
    call_model(instructions="You plan trips by boat.", tools=[tide]),
    until=until.no_tool_calls() | until.max_rounds(5),
    id="plan",
)


@step
async def harbours(_: str) -> list[str]:
    return list(HARBOURS)


@step
async def measure(harbour: str) -> Measured:
    note(f"step measure {harbour}")
    await anyio.sleep(0.3)
    if harbour == os.environ.get("NOETIC_DEMO_DIE_AT"):
        # As if the machine had lost its power: no exception, no clean-up, no farewell.
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return Measured(harbour, HARBOURS[harbour])


@step
async def report(measured: Sequence[Measured], ctx: Context[Memory, State]) -> str:
    ctx.state.measured.extend(measured)
    highest = max(measured, key=lambda each: each.metres)
    return f"Book the boat from {highest.harbour}."


booking = loop(call_model(tools=[book]), until=until.no_tool_calls() | until.max_rounds(3), id="booking")

flow = plan >> harbours >> each(measure, concurrency=1, id="survey") >> report >> booking

state = State
budget = Budget(model_calls=8, tokens=20_000, steps=40, seconds=600)


def harness(model: str | None = None, checkpoints: Any = None) -> Harness[Memory]:
    return Harness(model=model or ScriptedModel(*[script] * 20, delay=0.4), checkpoints=checkpoints)


def show(result: RunResult[str, State]) -> None:
    print(result.value)
    print(f"measured: {', '.join(f'{each.harbour} {each.metres} m' for each in result.state.measured)}")
