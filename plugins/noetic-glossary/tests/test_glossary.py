"""The glossary: by itself, in runs, and held to what every layer has to keep."""

from __future__ import annotations

import pytest
from noetic_glossary import Glossary

from noetic_py import Context, FunctionCall, FunctionCallOutput, Harness, Memory, call_model, loop, step, until
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import Scope
from noetic_py.testing import LayerContract, ScriptedModel

pytestmark = pytest.mark.anyio


class TestGlossary(LayerContract[Glossary]):
    """What every layer has to keep."""

    def make(self) -> Glossary:
        return Glossary(budget=300)

    async def use(self, layer: Glossary, text: str) -> None:
        await layer.define(f"known {len(text)}", text[:400])


class TestThreadGlossary(TestGlossary):
    """The same for one conversation."""

    def make(self) -> Glossary:
        return Glossary(scope=Scope.THREAD)


async def test_terms_are_defined_and_forgotten() -> None:
    glossary = Glossary(limit=2)
    assert await glossary.define("Spring  Tide", "large") == "spring tide: large"
    assert glossary.meaning("SPRING TIDE") == "large"
    await glossary.define("spring tide", "the large tide")
    await glossary.define("neap tide", "small")
    assert glossary.terms == ("neap tide", "spring tide")
    with pytest.raises(ToolArgumentsInvalid, match="the glossary is full with 2 terms"):
        await glossary.define("slack", "still water")
    assert await glossary.forget("Neap tide")
    assert not await glossary.forget("Neap tide")
    assert glossary.meaning("neap tide") is None
    for term, meaning, told in (("...", "x", "is not a valid term"), ("a", "x" * 401, "401 characters of 400")):
        with pytest.raises(ToolArgumentsInvalid, match=told):
            await glossary.define(term, meaning)


async def test_only_what_is_spoken_of_is_recalled() -> None:
    glossary = Glossary()
    await glossary.define("tide", "the sea's rise and fall")
    await glossary.define("spring tide", "the large one")
    await glossary.define("ebb", "the falling tide")
    assert await glossary.recall("What is a SPRING tide?", 100) == (
        "spring tide: the large one\ntide: the sea's rise and fall"
    )
    assert await glossary.recall("tidewater", 100) is None
    assert await glossary.recall("ebb", 1) is None


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        Glossary(limit=0)


async def test_the_model_defines_too_and_the_user_keeps_it() -> None:
    class Mem(Memory):
        terms: Glossary = Glossary()

    @step
    async def look(term: str, ctx: Context[Mem]) -> str | None:
        return ctx.memory.terms.meaning(term)

    call = FunctionCall(name="terms__define", arguments='{"term": "Ebb", "meaning": "the falling tide"}')
    flow = loop(call_model(ScriptedModel(call, "noted")), until=until.no_tool_calls())
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(flow, "An ebb is the falling tide.", user_id="ada")
        assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == [
            "ebb: the falling tide"
        ]
        assert (await harness.run(look, "ebb", user_id="ada")).value == "the falling tide"
        assert (await harness.run(look, "ebb", user_id="bob")).value is None


def test_the_plugin_registers_it() -> None:
    assert Harness(plugins=["glossary"]).memory_layers("glossary") is Glossary
