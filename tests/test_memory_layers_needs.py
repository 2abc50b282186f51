"""A layer that needs another layer of its bundle: what it reads, and which bundles are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from noetic_py import Context, Harness, Memory, MemoryLayer, ModelResponse, call_model, spawn, step, with_memory
from noetic_py.errors import ConfigError, LayerError, NoContextError
from noetic_py.memory import Needs, function
from noetic_py.memory.layer import AnyLayer
from noetic_py.testing import LayerContract, ScriptedModel


class Facts(MemoryLayer[list[str]]):
    @function
    async def remember(self, fact: str) -> None:
        self.state = [*self.state, fact]


class Dated(Facts):
    """A class below."""


class Digest(MemoryLayer[list[str]]):
    facts = Needs(Facts)

    @function
    async def note(self, text: str) -> int:
        self.state = [*self.state, text]
        return len(self.facts.state)

    @function
    async def write_there(self) -> None:
        await self.facts.remember("written by another layer")

    async def recall(self, query: str, budget: int) -> str | None:
        return f"{len(self.facts.state)} facts, the last: {self.facts.state[-1]}" if self.facts.state else None

    def merge(self, base: list[str], mine: list[str], theirs: list[str]) -> list[str]:
        return [*theirs, *mine[len(base) :]]


class Mem(Memory):
    digest: Digest = Digest()
    known: Dated = Dated()


class Without(Memory):
    digest: Digest = Digest()


class TestDigest(LayerContract[Digest]):
    def make(self) -> Digest:
        return Digest()

    def needed(self) -> Mapping[str, AnyLayer]:
        return {"facts": Facts()}

    async def use(self, layer: Digest, text: str) -> None:
        await layer.note(text)


async def test_a_hook_and_a_function_read_the_other_layer() -> None:
    @step
    async def learn(text: str, ctx: Context[Mem]) -> str:
        assert await ctx.memory.digest.note("before") == 0
        await ctx.memory.known.remember(text)
        assert await ctx.memory.digest.note("after") == 1
        return text

    model = ScriptedModel("At noon.")
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(learn >> call_model(model), "high water is at noon")
    assert result.memory == {"digest": ["before", "after"], "known": ["high water is at noon"]}
    assert "1 facts, the last: high water is at noon" in repr(model.requests[0].items)


async def test_the_other_layer_can_only_be_read() -> None:
    @step
    async def writes(text: str, ctx: Context[Mem]) -> str:
        with pytest.raises(NoContextError, match="layer 'known' can only be read here"):
            await ctx.memory.digest.write_there()
        return text

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(writes, "x")
    assert result.memory["known"] == []
    with pytest.raises(NoContextError, match="layer 'Digest' is in no run"):
        await Digest().note("x")


async def test_a_layer_that_is_left_out_of_an_execution_cannot_be_read() -> None:
    class Broken(Facts):
        async def init(self) -> None:
            raise OSError("no index")

    class Part(Memory):
        digest: Digest = Digest()
        facts: Facts = Broken(on_init_error="disable")

    @step
    async def note(text: str, ctx: Context[Part]) -> int:
        return await ctx.memory.digest.note(text)

    async with Harness(memory=Part()) as harness:
        with pytest.raises(LayerError, match="layer 'facts' is not in this execution") as caught:
            await harness.run(note, "x")
    assert caught.value.layer == "facts"


async def test_all_layers_store_at_once() -> None:
    class Counts(MemoryLayer[list[int]]):
        facts = Needs(Facts)

        async def store(self, response: ModelResponse) -> None:
            self.state = [*self.state, len(self.facts.state)]

    class Learns(Facts):
        async def store(self, response: ModelResponse) -> None:
            self.state = [*self.state, "an answer"]

    class Both(Memory):
        facts: Learns = Learns()
        counts: Counts = Counts()

    model = ScriptedModel("one", "two")
    async with Harness(memory=Both()) as harness:
        result = await harness.run(call_model(model, id="first") >> call_model(model, id="second"), "x")
    assert result.memory == {"facts": ["an answer", "an answer"], "counts": [0, 1]}


def refused(memory: Memory) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Harness(memory=memory)
    return caught.value


def test_a_bundle_without_the_other_layer_is_refused() -> None:
    error = refused(Without())
    assert (error.code, error.message) == (
        "layer-missing",
        "layer 'digest' (Digest) needs a Facts layer, and Without has none",
    )
    assert error.hint == "add a field to Without: facts: Facts = Facts()"
    for refuses in (spawn, with_memory):
        with pytest.raises(ConfigError, match=r"'digest'.* needs a Facts layer, and Without has none"):
            refuses(call_model(), memory=Without())


def test_of_several_the_one_with_the_name_is_read() -> None:
    class Several(Memory):
        digest: Digest = Digest()
        old: Facts = Facts()
        new: Facts = Facts()

    class Named(Several):
        facts: Facts = Facts(id="others")

    error = refused(Several())
    assert error.code == "layer-ambiguous"
    assert error.message == "layer 'digest' (Digest) needs a Facts layer, and Several has several: old, new"
    assert error.hint == "name the field 'facts' of the one that 'digest' is to read"
    memory = Named()
    Harness(memory=memory)
    assert Digest.facts.find(memory, memory.digest) is memory.facts


def test_a_layer_is_not_what_it_needs_itself() -> None:
    class Chain(MemoryLayer[None]):
        before = Needs(MemoryLayer[Any])

        async def on_complete(self) -> None: ...

    class Alone(Memory):
        chain: Chain = Chain()

    class Two(Memory):
        chain: Chain = Chain()
        facts: Facts = Facts()

    assert refused(Alone()).code == "layer-missing"
    Harness(memory=Two())


def test_a_class_below_can_do_without() -> None:
    loose: Any = type("Loose", (Digest,), {"facts": None})

    class Loosely(Memory):
        digest: Digest = loose()

    Harness(memory=Loosely())


def test_what_is_not_the_class_of_a_layer_is_refused() -> None:
    mistakes: list[Any] = [int, Facts(), "Facts", Memory]
    for wrong in mistakes:
        with pytest.raises(ConfigError, match="is not valid; expected the class of a memory layer") as caught:
            Needs(wrong)
        assert caught.value.code == "layer-needs"


def test_an_annotation_that_makes_it_a_setting_is_refused() -> None:
    class Annotated(MemoryLayer[None]):
        facts: Needs[Facts] = Needs(Facts)

        async def on_complete(self) -> None: ...

    class Wrong(Memory):
        it: Annotated = Annotated()
        facts: Facts = Facts()

    error = refused(Wrong())
    assert error.code == "layer-needs"
    assert error.hint == "without an annotation: facts = Needs(Facts)"
