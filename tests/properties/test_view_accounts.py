"""The account of each request that is stored in a journal, against what the model has received.

Random conversations with layers, tools and narrow windows, whose turns are taken by one process or by many. Each
request is counted anew and compared, token by token, with the one before it that was answered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, field, frozen

from noetic_py import FunctionCall, Harness, InMemoryBackend, Memory, call_model, loop, tool, until
from noetic_py.context.step import AnyStep
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.core.view import ViewAccount
from noetic_py.errors import LimitExceeded, ModelUnavailable
from noetic_py.memory import (
    Compaction,
    Episodic,
    Facts,
    HistoryWindow,
    MemoryLayer,
    Plan,
    StaticContent,
    Temporal,
    ToolMemory,
    WorkingMemory,
)
from noetic_py.models.model import ModelProfile, ModelRequest
from noetic_py.testing import ScriptedModel
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

COUNTER = EstimatedCounter()
WORDS = ("harbour", "tide", "pilot", "chart", "anchor", "buoy", "lantern", "mast", "rope", "keel", "compass", "storm")
WINDOWS = (1_500, 2_500, 8_000, 32_000)
TURNS = 10


def say(source: random.Random, most: int) -> str:
    return " ".join(source.choices(WORDS, k=source.randint(1, most)))


def bundle(source: random.Random, window: int) -> Memory:
    """Some of the layers, in any order."""
    layers: dict[str, Callable[[], MemoryLayer[Any]]] = {
        "rules": lambda: StaticContent(content=say(source, 60)),
        "notes": WorkingMemory,
        "plan": Plan,
        "calls": lambda: ToolMemory(max_calls=4, budget=200),
        "time": lambda: Temporal(precision=source.choice(["day", "minute"])),
        "past": lambda: Episodic(max_recalled=2),
        "facts": Facts,
        "short": lambda: Compaction(window=window // 2, tiers=source.choice([("outputs", "window"), ("window",)])),
        "newest": lambda: HistoryWindow(max_items=source.randint(4, 30)),
    }
    # Of a layer that recalls something each request has an account in the journal.
    chosen = source.sample(sorted(layers), source.randint(0, 5))
    made: dict[str, object] = {name: layers[name]() for name in ("time", *chosen)}
    annotations = {name: type(layer) for name, layer in made.items()}
    kind: type[Memory] = type("Mem", (Memory,), {"__annotations__": annotations, **made})
    return kind()


@frozen(eq=False)
class Talk:
    """The model of one conversation: what it answers, and which of its requests it has answered."""

    source: random.Random
    answered: list[ModelRequest] = field(factory=list[ModelRequest])

    def answer(self, request: ModelRequest) -> str | list[FunctionCall]:
        source = self.source
        if source.random() < 0.06:
            raise ModelUnavailable("the line is down", model="scripted")
        self.answered.append(request)
        names = {str(each["name"]) for each in request.tools}
        if source.random() < 0.45:
            return say(source, 30)
        calls = [
            FunctionCall(name="lookup", arguments=json.dumps({"place": say(source, 2)}))
            for _ in range(source.randint(1, 2))
        ]
        if "notes__update" in names and source.random() < 0.3:
            patch = {"patch": {source.choice(WORDS): say(source, 8)}}
            calls.append(FunctionCall(name="notes__update", arguments=json.dumps(patch)))
        return calls


class Windowed(ScriptedModel):
    def __init__(self, talk: Talk, window: int) -> None:
        super().__init__(*[talk.answer] * 1_000)
        self._window = window

    @property
    def profile(self) -> ModelProfile:
        return evolve(super().profile, context_window=self._window, max_output_tokens=100)


@tool
async def lookup(place: str) -> str:
    """Look a place up in the pilot book."""
    return say(random.Random(place), 80)


def head(request: ModelRequest) -> int:
    texts = [request.instructions or "", *map(json.dumps, request.tools)]
    return sum(COUNTER.count_text(text).value for text in texts if text)


def tokens(items: Any) -> int:
    return sum(COUNTER.count_item(item).value for item in items)


def shared(before: ModelRequest, now: ModelRequest) -> int:
    """How many items both requests begin with; -1 where something else comes first that differs."""
    if (before.instructions, before.tools) != (now.instructions, now.tools):
        return -1
    for place, (one, other) in enumerate(zip(before.items, now.items, strict=False)):
        if evolve(one, id=other.id) != other:
            return place
    return min(len(before.items), len(now.items))


def differences(request: ModelRequest, account: ViewAccount, before: tuple[ModelRequest, ViewAccount] | None) -> Any:
    """What an account says that the request does not bear out."""
    whole = head(request) + tokens(request.items)
    told = {
        "tokens": (account.tokens, whole),
        "usage": (account.usage.total, whole),
        "sum of parts": (sum(block.tokens for block in account.blocks), whole),
        "items": (sum(block.items for block in account.blocks), len(request.items)),
        "repeated": (account.repeated, 0),
    }
    if before is not None:
        same = shared(before[0], request)
        told["repeated"] = (account.repeated, 0 if same < 0 else head(request) + tokens(request.items[:same]))
        if account.moved is None:
            told["what stays"] = (min(same, before[1].stable), before[1].stable)
    else:
        told["moved"] = (account.moved is not None, False)
    return {name: pair for name, pair in told.items() if pair[0] != pair[1]}


async def converse(number: int) -> tuple[int, int, list[Any]]:
    """Hold a conversation: its requests, those that repeat a part of the one before, and what was told wrongly."""
    source = random.Random(f"{SEED} {number}")
    window = source.choice(WINDOWS)
    talk, memory, backend = Talk(source), bundle(source, window), InMemoryBackend()
    flow: AnyStep = loop(
        call_model(instructions="You are a pilot.", tools=[lookup]), until=until.no_tool_calls(), max_iterations=50
    )
    before: tuple[ModelRequest, ViewAccount] | None = None
    requests, repeats, wrong = 0, 0, list[Any]()
    turn = 0
    while turn < TURNS:
        async with Harness(memory=memory, checkpoints=backend, model=Windowed(talk, window), plugins=()) as harness:
            session = harness.session("ada", "talk")
            for _ in range(source.randint(1, 4)):
                turn += 1
                begun = len(talk.answered)
                result = await session.run(flow, f"{turn} {say(source, 25)}", on_error="result")
                assert result.error is None or isinstance(result.error, ModelUnavailable | LimitExceeded)
                views = await harness.runs.views(result.run_id)
                asked = talk.answered[begun:]
                assert len(views) == len(asked)
                for request, view in zip(asked, views, strict=True):
                    requests += 1
                    repeats += view.account.repeated > head(request)
                    if found := differences(request, view.account, before):
                        wrong.append((number, turn, window, found, view.account.moved, view.account.explain()))
                    before = request, view.account
    return requests, repeats, wrong


async def test_accounts_tell_what_the_model_has_received(
    anyio_backend_name: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    wanted = examples(sample=50, full=3_000)
    requests = repeats = 0
    wrong: list[Any] = []
    number = 0 if anyio_backend_name == "asyncio" else 1
    while requests < wanted:
        made, repeated, found = await converse(number)
        requests, repeats, wrong, number = requests + made, repeats + repeated, wrong + found, number + 2
    record_testsuite_property(
        f"accounts of requests, {anyio_backend_name}", f"{len(wrong)} of {requests} differ; {repeats} repeat a part"
    )
    assert wrong == []
    assert repeats * 2 > requests
