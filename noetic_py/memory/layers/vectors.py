"""Embedders, passages and queries, and the contract of a store of vectors."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from anyio import to_thread
from attrs import field, frozen

from noetic_py.core.caches import cached
from noetic_py.errors import MissingExtra

if TYPE_CHECKING:
    from noetic_py.memory.scopes import Owner

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
        """The id of its embedder; another one for another model or version."""
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

    _model: ClassVar[object] = None

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
        # A text without words is rejected here; the package would divide by zero.
        rows: list[list[float]] = model.embed([text or " " for text in texts], norm=False).tolist()
        return [unit(row) for row in rows]

    @classmethod
    def _loaded(cls) -> Any:
        with _loading:
            if cls._model is None:
                cls._model = _load()
            return cls._model


def _load() -> object:
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


_WORD: Final = re.compile(r"\w\w+")
_ENDING: Final = re.compile(r"(?<=\w{3})(ing|ed|es|s|e)$")
_LONGEST_WORD: Final = 100
AGAIN: Final = 1.2
"""How soon a word that is said again and again counts no more: BM25's own."""
LONG: Final = 0.75
"""How much a longer passage loses by its length: BM25's own."""


@frozen
class Found:
    """A passage that was found.

    Attributes:
        text: The passage.
        role: Its author: `"user"`, `"assistant"`, or the role that was stored with it.
        thread: In which conversation.
        item: The id of the message that it is of.
        origin: Where it is from, for people: the session's name, or what was stored with it.
        said: When it was said or stored; `None` where that is not known.
        metadata: What was stored with it, for filters.
        score: How near it is to what was asked for: 0 for nothing in common, 1 for the same direction, and more with
            the same words.
        number: Its place in the order of storing.
    """

    text: str
    role: str = ""
    thread: str = ""
    item: str = ""
    origin: str = ""
    said: datetime | None = None
    metadata: Mapping[str, str] = field(factory=dict[str, str], hash=False)
    score: float = 0.0
    number: int = 0


@frozen
class VectorQuery:
    """A search.

    Attributes:
        text: In words.
        vector: As a vector of length 1.
        limit: How many passages at most.
        least: What a passage has to reach.
        words: What it counts when a passage has all words of the query.
        since: Only passages that were said at this time or later.
        until: Only passages that were said before this time.
        where: Only passages with these pairs in their metadata.
    """

    text: str
    vector: Sequence[float]
    limit: int
    least: float
    words: float = 0.0
    since: datetime | None = None
    until: datetime | None = None
    where: Mapping[str, str] = field(factory=dict[str, str], hash=False)


@runtime_checkable
class VectorStore(Protocol):
    """Where passages and their vectors are kept, and searched: a database that does so itself.

    What one owner has, no other finds, changes or removes.
    """

    async def missing(self, owner: Owner, embedder: str, texts: Sequence[str], /) -> Sequence[str]:
        """The texts that are not there yet, each once, in their order.

        Args:
            owner: The owner of the passages.
            embedder: What makes their vectors; those of another one are as if they were not there.
            texts: What is asked for.
        """
        ...

    async def add(
        self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /, *, limit: int
    ) -> int:
        """Keep passages with their vectors of length 1; one whose text is there already stays as it is.

        Args:
            owner: The owner of the passages.
            embedder: What made the vectors.
            given: The passages, in their order.
            limit: How many the owner may have; the oldest go.

        Returns:
            How many are new.
        """
        ...

    async def nearest(self, owner: Owner, embedder: str, query: VectorQuery, /) -> Sequence[Found]:
        """The passages nearest to a query, the nearest first; of equal ones the oldest."""
        ...

    async def forget(self, owner: Owner, where: Mapping[str, str] | None = None, /) -> int:
        """Remove what an owner has.

        Args:
            owner: The owner of the passages.
            where: Only passages with these pairs in their metadata.

        Returns:
            How many passages that were.
        """
        ...

    async def scrub(self) -> Sequence[str]:
        """Take what was removed out of its files; `harness.erase` calls it.

        Returns:
            Where removed passages may still be that this cannot reach, and what removes them there; a sentence each.
        """
        ...

    async def others(self, owner: Owner, embedder: str, /, *, limit: int) -> Sequence[Found]:
        """Passages with a vector of another embedder, which `nearest` does not find; the oldest first.

        Args:
            owner: The owner of the passages.
            embedder: Whose vectors are left out.
            limit: How many at most.
        """
        ...

    async def replace(self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /) -> int:
        """Give passages of `others` vectors of this embedder; one whose text has such a vector already goes.

        Args:
            owner: The owner of the passages.
            embedder: What made the vectors.
            given: The passages, each with its number.

        Returns:
            How many have a new vector.
        """
        ...


@runtime_checkable
class Reranker(Protocol):
    """Puts what was found in a better order, such as a model that reads query and passage together."""

    async def rerank(self, query: str, found: Sequence[Found], /) -> Sequence[float]:
        """A score for each passage, in their order; the highest is shown first."""
        ...


def weighed(known: Mapping[str, int], count: int) -> dict[str, float]:
    """How much each word of a query says, a rare one more; 1 together.

    Args:
        known: The words, and in how many passages each is.
        count: How many passages there are.
    """
    made = {word: math.log(1 + (count - having + 0.5) / (having + 0.5)) for word, having in known.items()}
    whole = sum(made.values())
    return {word: weight / whole for word, weight in made.items()} if whole else {}


def words(text: str) -> list[str]:
    """The words of a text, without the commonest endings; of a very long one the beginning."""
    return [_stem(word[:_LONGEST_WORD]) for word in _WORD.findall(text.casefold())]


@cached(50_000)
def _stem(word: str) -> str:
    return _ENDING.sub("", word)


def unit(vector: Sequence[float]) -> list[float]:
    """The vector of length 1 in the same direction; zeros for one without a direction."""
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length > 0 and math.isfinite(length) else [0.0] * len(vector)


def split(text: str, length: int) -> list[str]:
    """A text as passages of at most `length` characters, cut at paragraphs, else at sentences, else at blanks."""
    passages: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        rest = paragraph.strip()
        if passages and rest and len(passages[-1]) + 2 + len(rest) <= length:
            passages[-1] += f"\n\n{rest}"
            continue
        while len(rest) > length:
            ends = [found.end() for found in re.finditer(r"[.!?]\s|\n", rest[:length])]
            cut = ends[-1] if ends and ends[-1] > length // 3 else rest.rfind(" ", length // 3, length)
            cut = cut if cut > 0 else length
            passages.append(rest[:cut].strip())
            rest = rest[cut:].strip()
        if rest:
            passages.append(rest)
    return passages
