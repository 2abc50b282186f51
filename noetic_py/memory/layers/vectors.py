"""Embedders, and passages with vectors in the store of a layer, ranked by their similarity to a query."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import mul
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, TypeAlias, runtime_checkable

from anyio import to_thread
from attrs import define, field, frozen

from noetic_py.errors import MissingExtra, VersionConflict

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


_INDEX: Final = "~"
_WORD: Final = re.compile(r"\w\w+")
_ENDING: Final = re.compile(r"(?<=\w{3})(ing|ed|es|s|e)$")
AGAIN: Final = 1.2
"""How soon a word that is said again and again counts no more: BM25's own."""
LONG: Final = 0.75
"""How much a longer passage loses by its length: BM25's own."""
_ATTEMPTS: Final = 5
_MOST_CACHED: Final = 64
_PAGE: Final = 500

# Its number in the order of storing, what made the vector, role, thread, item, text, and the vector's 32-bit floats.
_Row: TypeAlias = tuple[int, str, str, str, str, str, bytes]


@frozen
class Found:
    """A passage that was found.

    Attributes:
        text: The passage.
        role: Its author: `"user"`, `"assistant"`, or the role that was stored with it.
        thread: In which conversation.
        item: The id of the message that it is of.
        score: How near it is to what was asked for: 0 for nothing in common, 1 for the same direction, and more with
            the same words.
        number: Its place in the order of storing.
    """

    text: str
    role: str = ""
    thread: str = ""
    item: str = ""
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
    """

    text: str
    vector: Sequence[float]
    limit: int
    least: float
    words: float = 0.0


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

    async def forget(self, owner: Owner, /) -> int:
        """Remove all that an owner has; returns how many passages that were."""
        ...


class Shelf(Protocol):
    """The part of a layer's storage that passages need."""

    async def get_versioned(self, key: str, type: object = object) -> tuple[Any, int]:
        """The value of a key, and its version."""
        ...

    async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
        """Give a key a value."""
        ...

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away."""
        ...

    async def scan(
        self, type: object = object, *, after: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Any]]:
        """A page of keys and their values."""
        ...


@define
class LocalShelf:
    """A shelf of a layer that is in no run: what is on it ends with the process."""

    values: dict[str, tuple[object, int]] = field(factory=dict[str, tuple[object, int]])

    async def get_versioned(self, key: str, type: object = object) -> tuple[object, int]:
        """The value of a key, and its version."""
        return self.values.get(key, (None, 0))

    async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
        """Give a key a value.

        Raises:
            VersionConflict: Another version is there.
        """
        version = self.values.get(key, (None, 0))[1]
        if expected is not None and expected != version:
            raise VersionConflict(f"{key!r} has version {version}")
        self.values[key] = (value, version + 1)
        return version + 1

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away."""
        return self.values.pop(key, None) is not None

    async def scan(
        self, type: object = object, *, after: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, object]]:
        """A page of keys and their values."""
        behind = sorted(key for key in self.values if after is None or key > after)
        return [(key, self.values[key][0]) for key in behind[:limit]]


def weighed(known: Mapping[str, int], count: int) -> dict[str, float]:
    """How much each word of a query says, a rare one more; 1 together.

    Args:
        known: The words, and in how many passages each is.
        count: How many passages there are.
    """
    made = {word: math.log(1 + (count - having + 0.5) / (having + 0.5)) for word, having in known.items()}
    whole = sum(made.values())
    return {word: weight / whole for word, weight in made.items()} if whole else {}


@frozen(eq=False)
class _Wording:
    """How often words are used in all passages, and how long these are."""

    count: int
    mean: float
    seen: Counter[str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Of some texts."""
        counted = [_counted(text) for text in texts]
        seen = Counter(word for each in counted for word in each)
        return cls(len(texts), sum(each.total() for each in counted) / max(1, len(texts)) or 1.0, seen)

    def weights(self, text: str) -> dict[str, float]:
        """The words of a query, and how much each says."""
        return weighed({word: self.seen.get(word, 0) for word in sorted(set(words(text)))}, self.count)

    def shared(self, weights: dict[str, float], text: str) -> float:
        """How much of a query's words a text has: from 0 to 1."""
        counted, found = _counted(text), 0.0
        length = 1 - LONG + LONG * counted.total() / self.mean
        for word, weight in weights.items():
            times = counted.get(word, 0)
            if times:
                found += weight * times / (times + AGAIN * length)
        return found


@define(eq=False)
class _Loaded:
    """The passages of one owner, as they were when the index had this stamp."""

    stamp: str
    version: int
    following: int
    rows: dict[str, _Row]
    vectors: dict[str, array[float]]
    wording: _Wording | None = None

    def worded(self) -> _Wording:
        """The words of all passages; counted on request."""
        if self.wording is None:
            self.wording = _Wording.of([row[5] for row in self.rows.values()])
        return self.wording


@define(eq=False)
class Passages:
    """The passages of a layer; what was read of the store is kept while its stamp is the same.

    The stamp is a digest of all that was ever written and removed, so that a reader with the same stamp has the same
    passages, in whichever process.

    Attributes:
        limit: How many passages are kept; the oldest go first.
    """

    limit: int
    _known: OrderedDict[str, _Loaded] = field(factory=OrderedDict[str, _Loaded], init=False)

    async def count(self, shelf: Shelf) -> int:
        """How many there are."""
        return len((await self._load(shelf)).rows)

    async def missing(self, shelf: Shelf, name: str, texts: Iterable[str]) -> list[str]:
        """The texts that are not there yet, each once."""
        rows = (await self._load(shelf)).rows
        return [text for text in dict.fromkeys(texts) if _key(name, text) not in rows]

    async def add(self, shelf: Shelf, name: str, given: Sequence[tuple[Found, Sequence[float]]]) -> int:
        """Keep passages with their vectors of length 1; one that is there already stays as it is.

        Returns:
            How many are new.

        Raises:
            VersionConflict: Others write all the time.
        """
        for _ in range(_ATTEMPTS):
            now = await self._load(shelf)
            rows: dict[str, _Row] = {}
            for passage, vector in given[-self.limit :]:
                key = _key(name, passage.text)
                if key not in now.rows and key not in rows:
                    packed = array("f", vector).tobytes()
                    about = (passage.role, passage.thread, passage.item, passage.text)
                    rows[key] = (now.following + len(rows), name, *about, packed)
            if not rows:
                return 0
            for key, row in rows.items():
                await shelf.put(key, row)
            try:
                await self._settle(shelf, now, rows)
            except VersionConflict:
                continue
            return len(rows)
        raise VersionConflict("others write the stored passages all the time")

    async def _settle(self, shelf: Shelf, now: _Loaded, rows: dict[str, _Row]) -> None:
        """Write the stamp of what is there now, and remove what is too much."""
        whole = now.rows | rows
        over = len(whole) - self.limit
        oldest = sorted(whole, key=lambda key: (whole[key][0], key))[:over] if over > 0 else []
        stamp = _digest((now.stamp, [(key, row[:6]) for key, row in rows.items()], oldest))
        following = now.following + len(rows)
        version = await shelf.put(_INDEX, _index(following, stamp), expected=now.version)
        vectors = now.vectors | _vectors(rows)
        for key in oldest:
            await shelf.remove(key)
            del whole[key], vectors[key]
        self._keep(_Loaded(stamp, version, following, whole, vectors))
        self._known.pop(now.stamp, None)

    async def forget(self, shelf: Shelf) -> int:
        """Remove them all; returns how many there were.

        Raises:
            VersionConflict: Others write all the time.
        """
        removed = 0
        for _ in range(_ATTEMPTS):
            index, version = await shelf.get_versioned(_INDEX, _Row)
            stamp = "" if index is None else index[2]
            try:
                # A concurrent writer or an earlier reader sees another stamp than the one it knows.
                marked = await shelf.put(_INDEX, _index(0, _digest((stamp, "forgotten"))), expected=version)
                removed += await _cleared(shelf)
                await shelf.remove(_INDEX, expected=marked)
            except VersionConflict:
                continue
            self._known.pop(stamp, None)
            return removed
        raise VersionConflict("others write the stored passages all the time")

    def _keep(self, loaded: _Loaded) -> _Loaded:
        self._known[loaded.stamp] = loaded
        while len(self._known) > _MOST_CACHED:
            self._known.popitem(last=False)
        return loaded

    async def _load(self, shelf: Shelf) -> _Loaded:
        index, version = await shelf.get_versioned(_INDEX, _Row)
        if index is None:
            return _Loaded("", 0, 0, {}, {})
        stamp, following = index[2], index[0]
        known = self._known.get(stamp)
        if known is not None:
            self._known.move_to_end(stamp)
            known.version = version
            return known
        rows: dict[str, _Row] = {}
        after: str | None = None
        while page := await shelf.scan(_Row, after=after, limit=_PAGE):
            rows |= {key: row for key, row in page if key != _INDEX}
            after = page[-1][0]
        return self._keep(_Loaded(stamp, version, following, rows, _vectors(rows)))

    async def nearest(self, shelf: Shelf, name: str, query: VectorQuery) -> list[Found]:
        """The passages nearest to a query, the nearest first.

        Args:
            shelf: Where they are.
            name: What made the query's vector; passages with a vector of something else are not looked at.
            query: What is looked for.
        """
        loaded = await self._load(shelf)
        if not loaded.rows:
            return []
        return await to_thread.run_sync(lambda: _nearest(loaded, name, query))


async def _cleared(shelf: Shelf) -> int:
    """Remove all but the index; returns how many passages that were."""
    removed, after = 0, None
    while page := await shelf.scan(_Row, after=after, limit=_PAGE):
        after = page[-1][0]
        for key, _ in page:
            if key != _INDEX:
                removed += await shelf.remove(key)
    return removed


def _index(following: int, stamp: str) -> _Row:
    return (following, "", stamp, "", "", "", b"")


def _digest(what: object) -> str:
    return sha256(repr(what).encode(errors="surrogatepass")).hexdigest()


def _nearest(loaded: _Loaded, name: str, query: VectorQuery) -> list[Found]:
    found: list[tuple[float, int, str]] = []
    wanted, limit = array("f", query.vector), query.limit
    wording = loaded.worded() if query.words else None
    asked = {} if wording is None else wording.weights(query.text)
    for key, vector in loaded.vectors.items():
        row = loaded.rows[key]
        if row[1] == name and len(vector) == len(wanted):
            score = sum(map(mul, vector, wanted))
            if wording is not None:
                score += query.words * wording.shared(asked, row[5])
            if score >= query.least:
                found.append((-score, row[0], key))
    found.sort()
    made: list[Found] = []
    for score, number, key in found[:limit]:
        _, _, role, thread, item, text, _ = loaded.rows[key]
        made.append(Found(text, role, thread, item, round(-score, 4), number))
    return made


def _vectors(rows: dict[str, _Row]) -> dict[str, array[float]]:
    made: dict[str, array[float]] = {}
    for key, row in rows.items():
        vector = array("f")
        vector.frombytes(row[6])
        made[key] = vector
    return made


def _key(name: str, text: str) -> str:
    """The same for the same text, so that storing it twice is storing it once."""
    return sha256(f"{name}\n{text}".encode(errors="surrogatepass")).hexdigest()[:32]


def words(text: str) -> list[str]:
    """The words of a text, without the commonest endings."""
    return [_ENDING.sub("", word) for word in _WORD.findall(text.casefold())]


@lru_cache(maxsize=20_000)
def _counted(text: str) -> Counter[str]:
    return Counter(words(text))


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
