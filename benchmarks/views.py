"""How much of its requests a provider can serve from its cache in a long session, and what a late turn costs.

    python -m benchmarks.views            # 500 turns
    python -m benchmarks.views 100

A user talks with an agent that calls tools, in a session with no, five or eight memory layers and a window of 8,000 or
32,000 tokens. The cached share is the longest common beginning of each request and the one before, in tokens, of all
tokens sent. A late turn is compared with an early one by the calls of functions that it makes, and with eight layers by
its CPU time too: an old and a young session take turns, since a machine is not always as fast.
"""

from __future__ import annotations

import json
import sys
from random import Random
from statistics import median
from time import process_time
from types import FrameType

import anyio
from attrs import evolve, frozen

from noetic_py import FunctionCall, Harness, Memory, Message, call_model, loop, tool, until
from noetic_py.context.step import AnyStep
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.memory import (
    Compaction,
    Episodic,
    Plan,
    SemanticRecall,
    StaticContent,
    Temporal,
    ToolMemory,
    WorkingMemory,
)
from noetic_py.models.model import ModelProfile, ModelRequest
from noetic_py.testing import ScriptedModel

COUNTER = EstimatedCounter()
WINDOWS = (8_000, 32_000)
WORDS = ("harbour", "tide", "pilot", "chart", "anchor", "buoy", "lantern", "mast", "rope", "keel", "compass", "storm")
SAMPLED = 5
"""How many turns are compared, from the tenth on and at the end."""
PAIRS = 30
"""How many are compared by their CPU time."""


def say(seed: str, count: int) -> str:
    """Words that are the same for the same seed."""
    return " ".join(Random(seed).choices(WORDS, k=count))


@tool
async def lookup(place: str) -> str:
    """Look a place up in the pilot book."""
    return say(place, Random(place).choice((20, 60, 150)))


class Five(Memory):
    """Instructions, notes, a plan, calls of tools and the time."""

    rules: StaticContent = StaticContent(content="Cite the pilot book. " + say("rules", 30))
    notes: WorkingMemory = WorkingMemory()
    plan: Plan = Plan()
    calls: ToolMemory = ToolMemory(max_calls=8, budget=600)
    time: Temporal = Temporal(precision="day")


def eight(window: int) -> Memory:
    """The same with recall of episodes and passages, and compaction."""

    class Eight(Five):
        past: Episodic = Episodic(max_recalled=3)
        passages: SemanticRecall = SemanticRecall(limit=300)
        short: Compaction = Compaction(window=window - 400)

    return Eight()


class Windowed(ScriptedModel):
    """A model with a window, whose answers follow from the request."""

    def __init__(self, window: int, turns: int) -> None:
        super().__init__(*[answer] * (2 * turns))
        self._window = window

    @property
    def profile(self) -> ModelProfile:
        """With the window."""
        return evolve(super().profile, context_window=self._window, max_output_tokens=200)


def answer(request: ModelRequest) -> str | list[FunctionCall]:
    """Tools first, notes now and then, and a text after their outputs."""
    last = request.items[-1]
    if not isinstance(last, Message):
        return say(str(len(request.items)), 25)
    turn = int(last.text.split()[1])
    calls = [FunctionCall(name="lookup", arguments=json.dumps({"place": say(last.text, 2)}))]
    if turn % 9 == 0 and any(each["name"] == "notes__update" for each in request.tools):
        patch = {"patch": {WORDS[turn % len(WORDS)]: say(last.text, 6)}}
        calls.append(FunctionCall(name="notes__update", arguments=json.dumps(patch)))
    return calls


@frozen
class Measured:
    """What a session came to."""

    requests: int
    above: int
    share: float
    growth: float

    @property
    def line(self) -> str:
        """For a person."""
        return (
            f"{self.requests:>8} requests, {self.above} above the window, {self.share:.3f} from the cache, "
            f"a late turn makes {self.growth:.2f} times the calls of an early one"
        )


def head(request: ModelRequest) -> int:
    """The tokens around the conversation."""
    texts = [request.instructions or "", *map(json.dumps, request.tools)]
    return sum(COUNTER.count_text(text).value for text in texts if text)


def size(request: ModelRequest) -> int:
    """All its tokens."""
    return head(request) + sum(COUNTER.count_item(item).value for item in request.items)


def repeated(before: ModelRequest, now: ModelRequest) -> int:
    """The tokens of the beginning that both have."""
    if (before.instructions, before.tools) != (now.instructions, now.tools):
        return 0
    tokens = head(now)
    for one, other in zip(before.items, now.items, strict=False):
        if evolve(one, id=other.id) != other:
            break
        tokens += COUNTER.count_item(other).value
    return tokens


def agent(model: ScriptedModel) -> AnyStep:
    """Asks, and calls tools until nothing is left to call."""
    asking = call_model(model, instructions="You are a pilot. " + say("pilot", 40), tools=[lookup])
    return loop(asking, until=until.no_tool_calls())


def question(turn: int) -> str:
    """What the user says in a turn."""
    return f"Turn {turn} {say(str(turn), 8 + turn % 2 * 22)}"


async def cpu(memory: Memory, window: int, turns: int) -> tuple[float, float]:
    """The CPU time of turns around the tenth and of the last ones, in ms: the medians."""
    begins = (min(5, turns - PAIRS), turns - PAIRS)
    flows = [agent(Windowed(window, begin + PAIRS)) for begin in begins]
    taken: tuple[list[float], list[float]] = [], []
    async with Harness(memory=memory, plugins=()) as harness:
        sessions = [harness.session(user, "t") for user in ("bob", "ada")]
        for flow, session, begin in zip(flows, sessions, begins, strict=True):
            for turn in range(begin):
                await session.run(flow, question(turn))
        for pair in range(PAIRS):
            for flow, session, begin, times in zip(flows, sessions, begins, taken, strict=True):
                began = process_time()
                await session.run(flow, question(begin + pair))
                times.append((process_time() - began) * 1000)
    return median(taken[0]), median(taken[1])


async def measure(memory: Memory | None, window: int, turns: int) -> Measured:
    """A session of so many turns."""
    calls = [0]

    def note(frame: FrameType, event: str, arg: object) -> None:
        calls[-1] += event == "call"

    model, early, late = Windowed(window, turns), 0, 0
    flow = agent(model)
    async with Harness(memory=memory, plugins=()) as harness:
        session = harness.session("ada", "t")
        for turn in range(turns):
            sampled = 10 <= turn < 10 + SAMPLED or turn >= turns - SAMPLED
            sys.setprofile(note if sampled else None)
            try:
                await session.run(flow, question(turn))
            finally:
                sys.setprofile(None)
            early, late = early + calls[0] * (turn < turns - SAMPLED), late + calls[0] * (turn >= turns - SAMPLED)
            calls[0] = 0
    sizes = [size(request) for request in model.requests]
    shared = sum(map(repeated, model.requests, model.requests[1:]))
    above = sum(each > window - min(200, window // 8) for each in sizes)
    return Measured(len(sizes), above, shared / sum(sizes), late / early)


async def main(turns: int) -> None:
    """Print a line for each number of layers and each window."""
    for window in WINDOWS:
        for name, memory in (("no layers", None), ("five", Five()), ("eight", eight(window))):
            measured = await measure(memory, window, turns)
            sys.stdout.write(f"{window:>6} tokens, {name:<9} {measured.line}\n")
            sys.stdout.flush()
        early, late = await cpu(eight(window), window, turns)
        sys.stdout.write(
            f"{window:>6} tokens, eight     {early:.1f} ms of CPU for an early turn, {late:.1f} for a late one\n"
        )


if __name__ == "__main__":
    anyio.run(main, int((sys.argv[1:] or ["500"])[0]))
