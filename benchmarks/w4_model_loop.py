"""W4: what a turn of an agent costs beside the model: 200 rounds of a scripted model that calls one tool."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from benchmarks.measure import EVEN, MILLI, Figure, Measurement, Plan, compare, cpu, in_loop, take_turns
from benchmarks.w1_steps import check
from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Message,
    ModelRequest,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel

TURNS = 200
EARLY, LATE = 10, 190
AROUND = 5
"""How many turns before and after a turn are looked at with it."""
TARGET_MS = 0.15


@tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Stamps:
    """A scripted model's turns, which note the time at which each is asked for."""

    def __init__(self, turns: int) -> None:
        self.times: list[float] = []
        self.model = ScriptedModel(*[self.turn] * turns, self.end)

    def turn(self, request: ModelRequest) -> Item:
        """Call the tool."""
        self.times.append(cpu())
        return FunctionCall(name="lookup", arguments='{"key": "tides"}')

    def end(self, request: ModelRequest) -> Item:
        """Answer."""
        self.times.append(cpu())
        return Message.assistant("done")

    def deltas(self) -> list[float]:
        """Seconds from each call of the model to the next."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W4."""
    turns = max(plan.size(TURNS), 2)
    deltas: list[list[float]] = []
    found = take_turns({"bare": by_hand(turns), "ours": agent(turns, deltas)}, plan.rounds)
    counted = deltas[-plan.rounds :]
    early, late = turns * EARLY // TURNS, turns * LATE // TURNS
    unit = "ms a turn"
    whole = compare("W4", f"loop(call_model) of {turns} tool turns, against a hand-written loop", found["bare"],
                    found["ours"], unit=unit, factor=MILLI)  # fmt: skip
    return [
        Figure("W4", whole.name, unit, whole.ours, whole.baseline, whole.ratio, TARGET_MS, "ours", rounds=plan.rounds),
        compare("W4", f"turn {late}, against turn {early}", [around(each, early) for each in counted],
                [around(each, late) for each in counted], unit=unit, factor=MILLI, target=EVEN),
    ]  # fmt: skip


def around(deltas: Sequence[float], turn: int) -> float:
    """What a turn took, together with its neighbours: one alone is too short to be told from noise."""
    return statistics.mean(deltas[max(0, turn - AROUND) : turn + AROUND + 1])


def by_hand(turns: int) -> Measurement:
    """Seconds a turn of the same conversation in a plain loop: ask, call, append."""

    async def work() -> float:
        stamps = Stamps(turns)
        items: list[Item] = [Message.user("Look up the tides.")]
        while True:
            async with stamps.model.respond(ModelRequest(tuple(items), None, (), {}, None)) as stream:
                response = await stream.response()
            items.extend(response.items)
            calls = [item for item in response.items if isinstance(item, FunctionCall)]
            if not calls:
                break
            for call in calls:
                output = await lookup(**json.loads(call.arguments))
                items.append(FunctionCallOutput(call_id=call.call_id, output=output))
        check(len(items), 2 * turns + 2)
        return (stamps.times[-1] - stamps.times[0]) / turns

    return in_loop(work)


def agent(turns: int, deltas: list[list[float]]) -> Measurement:
    """Seconds a turn of an agent; what each turn took is added to `deltas`."""

    async def work() -> float:
        stamps = Stamps(turns)
        flow = loop(call_model(stamps.model, tools=(lookup,)), until=until.no_tool_calls())
        result = await Harness(plugins=[]).run(flow, "Look up the tides.")
        check(len(result.items), 2 * turns + 2)
        deltas.append(stamps.deltas())
        return (stamps.times[-1] - stamps.times[0]) / turns

    return in_loop(work)
