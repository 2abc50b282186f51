"""What turns texts into vectors: the `Embedder` protocol, and one that runs on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from anyio import to_thread

from noetic_py.errors import MissingExtra

__all__ = ["Embedder", "WordEmbedder"]

_PACKAGE: Final = "wordllama"
_loading: Final = Lock()


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors, such that texts about the same thing get vectors in nearly the same direction.

    Attributes:
        name: What makes its vectors: those of one name are never compared with those of another.
        dimensions: Numbers in a vector.
    """

    @property
    def name(self) -> str:
        """What makes its vectors; another one for another model or version."""
        ...

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        ...

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """A vector for each text, in their order; of any length, for only the direction counts."""
        ...


class WordEmbedder:
    """Vectors from the meanings of words, made on this machine by a table that comes with the package `wordllama`.

    Nothing is downloaded, and no model runs: a text's vector is the mean of its words' vectors. That is quick, a tenth
    of a millisecond for a sentence, and knows that a car is a vehicle; it does not know that "A beats B" is not
    "B beats A". It is loaded with the first text, in a worker thread, which takes about two seconds and 100 MB.

    Raises:
        MissingExtra: While embedding: the extra `embeddings` is not installed.
    """

    _model: ClassVar[Any] = None

    @property
    def name(self) -> str:
        """`"wordllama:l2_supercat_256"`."""
        return "wordllama:l2_supercat_256"

    @property
    def dimensions(self) -> int:
        """256."""
        return 256

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text; zeros for one without words.

        Raises:
            MissingExtra: The extra `embeddings` is not installed.
        """
        wanted = list(texts)
        return await to_thread.run_sync(lambda: self._embedded(wanted)) if wanted else []

    def _embedded(self, texts: list[str]) -> Sequence[Sequence[float]]:
        model = self._loaded()
        # What normalises here is told of a text without words, where the package would divide by zero.
        rows: list[list[float]] = model.embed([text or " " for text in texts], norm=False).tolist()
        return [_unit(row) for row in rows]

    @classmethod
    def _loaded(cls) -> Any:
        with _loading:
            if cls._model is None:
                cls._model = _load()
            return cls._model


def _unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row] if length > 0 and math.isfinite(length) else [0.0] * len(row)


def _load() -> Any:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "the package wordllama, which WordEmbedder stands on,", install='pip install "noetic-py[embeddings]"'
        )
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        package = importlib.import_module(_PACKAGE)
    finally:
        # The package sets up logging for the whole process when it is imported, which is not its business.
        root.handlers[:] = handlers
        root.setLevel(level)
    # The files are looked for below the folder of a cache, where the package keeps its own.
    return package.WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
