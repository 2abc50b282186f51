"""Vectors of sentences, made by the real model."""

from __future__ import annotations

import pytest
from noetic_embeddings import MultilingualEmbedder

from noetic_py import Context, Harness, Memory, step
from noetic_py.memory import Embedder, SemanticRecall

pytestmark = pytest.mark.anyio


async def test_a_question_is_near_to_its_answer_in_another_language() -> None:
    embedder = MultilingualEmbedder()
    assert isinstance(embedder, Embedder)
    assert await embedder.embed([]) == []
    asked, answer, other, empty = await embedder.embed(
        ["Wann hat der Bäcker auf?", "The baker opens at seven.", "The tide follows the moon.", " "]
    )
    assert [len(each) for each in (asked, answer, other, empty)] == [embedder.dimensions] * 4
    assert sum(value * value for value in asked) == pytest.approx(1)
    near = [sum(a * b for a, b in zip(asked, each, strict=True)) for each in (answer, other)]
    assert near[0] > near[1]


async def test_a_layer_recalls_with_it() -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=MultilingualEmbedder())

    @step
    async def find(query: str, ctx: Context[Mem]) -> list[str]:
        for text in ("The baker opens at seven.", "The tide follows the moon.", "A car needs a road."):
            await ctx.memory.past.remember(text)
        return [each.text for each in await ctx.memory.past.search(query, limit=1)]

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(find, "¿A qué hora abre la panadería?")).value == ["The baker opens at seven."]
