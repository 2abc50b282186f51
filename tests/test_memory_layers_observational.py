"""`Observational`: what a model distils of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from noetic_py import (
    Budget,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    TokenUsage,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.core.events import LayerFailed
from noetic_py.core.items import FunctionCallOutput
from noetic_py.errors import ConfigError, ModelUnavailable, NoContextError
from noetic_py.memory import Observational, Observed
from noetic_py.memory.layers.common import COUNTER
from noetic_py.models.model import ModelRequest, ModelResponse
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


def notes(*texts: str) -> str:
    return json.dumps({"value": texts})


def make(**settings: Any) -> Memory:
    layer = Observational(**settings)

    class Mem(Memory):
        seen: Observational = layer

    return Mem()


def flow(model: ScriptedModel) -> Any:
    return loop(call_model(model, tools=[look]), until=until.no_tool_calls())


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"a boat at {where}"


def shown(request: ModelRequest) -> str:
    return "\n".join(item.text for item in request.items if isinstance(item, Message | FunctionCallOutput))


async def test_alone() -> None:
    layer = Observational(limit=3, length=20)
    assert not layer.observations
    assert await layer.recall("", 100) == ""
    assert await layer.note("Ada  likes\nboats.")
    assert not await layer.note("ada likes boats")
    assert not await layer.note("  ")
    for text in ("two", "three", "four and a very long rest of it"):
        assert await layer.note(text)
    assert layer.observations == ("two", "three", "four and [...] of it")
    assert await layer.recall("", 100) == "- two\n- three\n- four and [...] of it"
    assert layer.state == Observed(layer.observations)
    with pytest.raises(NoContextError):
        await layer.store(ModelResponse((), None, None, "stop"))


async def test_recall_stays_below_its_budget() -> None:
    layer = Observational()
    for number in range(60):
        await layer.note(f"Fact {number} is that the boat number {number} is blue.")
    for budget in (0, 5, 20, 50, 200, 500):
        text = await layer.recall("", budget)
        assert COUNTER.count_text(text).value <= budget
    assert (await layer.recall("", 50)).endswith("boat number 59 is blue.")
    assert await layer.recall("", 200) == await layer.recall("", 200)


async def test_distils_every_so_many_turns_what_nobody_has_distilled() -> None:
    distiller = ScriptedModel(
        notes("Ada has a boat."), notes("ada has a boat", "It is blue."), usage=TokenUsage(input=7, output=3)
    )
    memory = make(model=distiller, every=2)
    model = ScriptedModel("hello", "a boat, I see", "nice", "blue it is", "so you said")
    async with Harness(memory=memory, model=model) as harness:
        for number, text in enumerate(["hi", "I am Ada, I have a <b>boat</b>", "it is", "blue", "what did I say?"]):
            await harness.run(call_model(), text, thread_id="t")
            assert len(distiller.requests) == (number + 1) // 2
    first, second = (shown(request) for request in distiller.requests)
    assert "Known notes:\nnone" in first
    assert "I have a &lt;b>boat&lt;/b>" in first
    assert "Known notes:\n- Ada has a boat." in second
    assert "I am Ada" not in second
    assert "- Ada has a boat.\n- It is blue." in shown(model.requests[-1])


async def test_distils_sooner_when_there_is_much_also_of_tools() -> None:
    distiller = ScriptedModel(notes("There is a boat."), notes())
    model = ScriptedModel([FunctionCall(name="look", arguments={"where": "sea " * 200})], "a boat")
    async with Harness(memory=make(model=distiller, every=99, tokens=100)) as harness:
        await harness.run(flow(model), "look " * 10)
    assert "assistant calls look" in shown(distiller.requests[0])
    assert "There is a boat." in shown(model.requests[-1])


async def test_a_failing_model_changes_nothing_and_is_asked_again() -> None:
    def gone(request: ModelRequest) -> Exception:
        return ModelUnavailable("gone", model="test:distiller")

    distiller = ScriptedModel(gone, "no list", "no list either", notes("Ada has a boat."), notes())
    memory = make(model=distiller, every=1)
    model = ScriptedModel("one", "two", "three", "four")
    async with Harness(memory=memory, model=model) as harness:
        for number in range(4):
            async with harness.stream(call_model(), "I am Ada", thread_id="t") as stream:
                failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
                assert (await stream.result()).status == "completed"
            assert [(event.layer, event.hook) for event in failed] == ([("seen", "store")] if number < 2 else [])
    assert "Ada has a boat." in shown(model.requests[3])
    assert "Ada has a boat." not in shown(model.requests[2])


async def test_its_model_counts_against_the_budget_of_the_run() -> None:
    distiller = ScriptedModel(notes("a"), usage=TokenUsage(input=70, output=30))
    model = ScriptedModel("one", usage=TokenUsage(input=5, output=5))
    async with Harness(memory=make(model=distiller, every=1), model=model) as harness:
        result = await harness.run(call_model(), "hi", budget=Budget(model_calls=5))
    assert result.usage.total == 110


def answering() -> ScriptedModel:
    def turn(request: ModelRequest) -> Any:
        looked = any(isinstance(item, FunctionCallOutput) for item in request.items)
        return "a boat" if looked else [FunctionCall(name="look", arguments={"where": "sea"})]

    return ScriptedModel(turn, turn)


async def test_a_resumed_run_does_not_distil_again() -> None:
    def run_flow(backend: Any, distiller: ScriptedModel) -> Harness[Any]:
        return Harness(memory=make(model=distiller, every=1), checkpoints=backend)

    whole = FaultyBackend(InMemoryBackend())
    async with run_flow(whole, ScriptedModel(notes("a"))) as harness:
        await harness.run(flow(answering()), "go", run_id="r", thread_id="t")
    distiller = ScriptedModel(notes("There is a boat."))
    backend = FaultyBackend(InMemoryBackend(), dies_at=whole.appends)
    with backend.outlived():
        await run_flow(backend, distiller).run(flow(answering()), "go", run_id="r", thread_id="t")
    backend.revive()
    async with run_flow(backend, distiller) as harness:
        result = await harness.resume("r", flow(answering()))
        assert result.value == "a boat"
        assert len(distiller.requests) == 1
        model = ScriptedModel("yes")
        await harness.run(call_model(model), "a boat?", thread_id="t")
    assert "There is a boat." in shown(model.requests[0])


async def test_a_run_comes_out_the_same_wherever_it_dies() -> None:
    def distilled(request: ModelRequest) -> str:
        return notes("There is a boat.")

    class Mem(Memory):
        seen: Observational = Observational(model=ScriptedModel(*[distilled] * 300), every=1)

    memory = Mem()
    kills = await assert_resumable_everywhere(
        lambda: flow(answering()), "go", make=lambda backend: Harness(memory=memory, checkpoints=backend)
    )
    assert kills > 4


@pytest.mark.parametrize(
    "settings",
    [
        {"every": 0},
        {"tokens": -1},
        {"limit": 0},
        {"length": 1},
        {"max_input": 0},
        {"instructions": " "},
        {"every": float("nan")},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Observational(**settings)
    assert caught.value.code == "observational-settings"
