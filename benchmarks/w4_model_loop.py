"""W4: what a turn of an agent costs beside the model: 200 rounds of a scripted model that calls one tool."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from attrs import evolve

from benchmarks.measure import EVEN, MILLI, Figure, Measurement, Plan, compare, cpu, in_loop, take_turns
from benchmarks.untraced import without_telemetry
from benchmarks.w1_steps import UNTRACED, check
from noetic_py import (
    Budget,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    ModelResponse,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.memory import ContextQueue, Scope, StaticContent, ToolMemory, WorkingMemory
from noetic_py.runner.plan import RunOptions
from noetic_py.testing import ScriptedModel

TURNS = 200
EARLY, LATE = 10, 190
AROUND = 8
"""How many turns before and after a turn are looked at with it."""
TARGET_MS = 0.15


@tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Counts(MemoryLayer[int]):
    """A layer that says something else each time, and keeps something of each answer."""

    async def recall(self, query: str, budget: int) -> str:
        """Say how many answers there were."""
        return f"{self.state} answers"

    async def store(self, response: ModelResponse) -> None:
        """Count one more."""
        self.state += 1


class Five(Memory):
    """Five layers: two that keep still, two that change each turn, one that watches the tools."""

    rules: StaticContent = StaticContent(content="Times are in UTC.")
    notes: WorkingMemory = WorkingMemory(scope=Scope.EXECUTION)
    answers: Counts = Counts(scope=Scope.EXECUTION)
    window: ContextQueue[str] = ContextQueue(limit=5, scope=Scope.EXECUTION)
    tools: ToolMemory = ToolMemory(scope=Scope.EXECUTION, max_calls=10)


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
    turns = plan.size(TURNS)
    free: list[list[float]] = []
    limited: list[list[float]] = []
    layered: list[list[float]] = []
    sides = {
        "bare": by_hand(turns),
        "free": agent(turns, free),
        "untraced": without_telemetry(agent(turns, [])),
        "limited": agent(turns, limited, Budget(tokens=10**9)),
        "layered": agent(turns, layered, memory=Five()),
    }
    found = take_turns(sides, plan.rounds)
    unit = "ms a turn"

    def whole(name: str, side: str, target: float | None) -> Figure:
        against = f"{name}, against a hand-written loop"
        figure = compare("W4", against, found["bare"], found[side], unit=unit, factor=MILLI)
        return evolve(figure, target=target, judged="ours")

    def late(name: str, deltas: Sequence[Sequence[float]], target: float | None) -> Figure:
        first, last = turns * EARLY // TURNS, turns * LATE // TURNS
        counted = deltas[-plan.rounds :]
        return compare("W4", f"{name}turn {last}, against turn {first}", [around(each, first) for each in counted],
                       [around(each, last) for each in counted], unit=unit, factor=MILLI, target=target)  # fmt: skip

    return [
        whole(f"loop(call_model) of {turns} tool turns", "free", TARGET_MS),
        late("", free, EVEN),
        compare(
            "W4",
            "without a provider of telemetry, against code without telemetry",
            found["untraced"],
            found["free"],
            unit=unit,
            factor=MILLI,
            target=UNTRACED,
        ),
        whole("the same with a budget of tokens", "limited", None),
        late("with a budget of tokens: ", limited, None),
        whole("with five memory layers", "layered", None),
        late("with five memory layers: ", layered, EVEN),
    ]


def around(deltas: Sequence[float], turn: int) -> float:
    """What a turn took, as the median of it and its neighbours: one alone is too short to be told from noise."""
    return statistics.median(deltas[max(0, turn - AROUND) : turn + AROUND + 1])


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


def agent(
    turns: int, deltas: list[list[float]], budget: Budget | None = None, memory: Memory | None = None
) -> Measurement:
    """Seconds a turn of an agent; what each turn took is added to `deltas`."""
    options: RunOptions = {} if budget is None else {"budget": budget}

    async def work() -> float:
        stamps = Stamps(turns)
        flow = loop(call_model(stamps.model, tools=(lookup,)), until=until.no_tool_calls())
        harness = Harness(plugins=[]) if memory is None else Harness(memory=memory, plugins=[])
        result = await harness.run(flow, "Look up the tides.", **options)
        check(len(result.items), 2 * turns + 2)
        deltas.append(stamps.deltas())
        return (stamps.times[-1] - stamps.times[0]) / turns

    return in_loop(work)
