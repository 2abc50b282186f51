"""Passages and their vectors in the storage of a layer: segments that are only added and replaced, and their index.

A segment holds up to 512 passages of one embedder, their vectors as 32-bit floats, and has a key made of its content.
The index names the segments that count and is written with the version it was read with; so an addition is there as a
whole or not at all, and two writers cannot lose each other's. Small segments at the end are joined, as the digits of
a binary counter are, so that a passage is written a few times at most.

A store that earlier releases wrote has a key for each passage. It is read as it is, and written anew with the next
addition.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from anyio import to_thread
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from noetic_py.core.caches import Cache
from noetic_py.errors import CodecError, ConfigError, VersionConflict
from noetic_py.memory.layers.ranking import Ranking, Vectors
from noetic_py.memory.layers.vectors import Found, VectorQuery
from noetic_py.memory.scopes import Owner

_INDEX: Final = "~"
_FORMAT: Final = 2
_ATTEMPTS: Final = 5
_SEGMENT: Final = 512
_PAGE: Final = 500
_MOST_CACHED: Final = 100_000
_MOST_STAMPS: Final = 64

# Of the first format: number, embedder, role, thread, item, text, and the vector's 32-bit floats.
_Row: TypeAlias = tuple[int, str, str, str, str, str, bytes]
# Embedder, dimensions, the passages as JSON, and the vectors' 32-bit floats.
_Stored: TypeAlias = tuple[str, int, str, bytes]

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Vectors]]
"""Makes vectors of length 1, one a row."""


class Shelf(Protocol):
    """The part of a layer's storage that passages need."""

    @property
    def owner(self) -> Owner | None:
        """The owner of the values; `None` in no run."""
        ...

    async def get_versioned(self, key: str, type: object = object) -> tuple[Any, int]:
        """The value of a key, and its version."""
        ...

    async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
        """Give a key a value."""
        ...

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away."""
        ...

    async def keys(self) -> Sequence[str]:
        """All keys, in order."""
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
    owner: Owner | None = None

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

    async def keys(self) -> Sequence[str]:
        """All keys, in order."""
        return sorted(self.values)

    async def scan(
        self, type: object = object, *, after: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, object]]:
        """A page of keys and their values."""
        behind = sorted(key for key in self.values if after is None or key > after)
        return [(key, self.values[key][0]) for key in behind[:limit]]


@frozen
class _PassageSegment:
    """What the index says of a segment.

    Attributes:
        key: Where it is.
        embedder: What made its vectors.
        first: The number of its first passage.
        last: The number of its last.
        count: How many passages it has, those included that were removed since.
    """

    key: str
    embedder: str
    first: int
    last: int
    count: int


@frozen
class _PassageIndex:
    """What an owner has.

    Attributes:
        version: Of the key, as it was read.
        following: The next number.
        first: Passages with smaller numbers were removed.
        count: How many passages there are.
        stamp: A digest of all that was ever added and removed.
        before: The stamps before, the newest last; a reader who knows one of these knows what was added since.
        segments: In the order of their numbers.
    """

    version: int = 0
    following: int = 0
    first: int = 0
    count: int = 0
    stamp: str = ""
    before: tuple[str, ...] = ()
    segments: tuple[_PassageSegment, ...] = ()

    @classmethod
    def parse(cls, stored: object, version: int) -> _PassageIndex:
        """Read a stored index.

        Raises:
            CodecError: It is of a later release, or not an index.
        """
        try:
            if not isinstance(stored, str):
                following, _, stamp, *_ = _row(stored)
                return cls(version, following, stamp=stamp)
            read = json.loads(stored)
            if read["format"] != _FORMAT:
                raise CodecError(
                    f"the stored passages have format {read['format']!r}; expected at most {_FORMAT}",
                    hint="upgrade noetic-py",
                )
            segments = tuple(_PassageSegment(*each) for each in read["segments"])
            following, first, count = read["following"], read["first"], read["count"]
            return cls(version, following, first, count, read["stamp"], tuple(read["before"]), segments)
        except (ValueError, KeyError, TypeError) as error:
            raise CodecError("the index of the stored passages is damaged") from error

    def text(self) -> str:
        """It as it is stored."""
        segments = [[each.key, each.embedder, each.first, each.last, each.count] for each in self.segments]
        counts = {"following": self.following, "first": self.first, "count": self.count}
        stamps = {"stamp": self.stamp, "before": self.before}
        return json.dumps({"format": _FORMAT, **counts, **stamps, "segments": segments})

    def then(self, what: object, **changes: Any) -> _PassageIndex:
        """The index after a change."""
        before = (*self.before, self.stamp)[-_MOST_STAMPS:]
        return evolve(self, stamp=_digest(self.stamp, what), before=before, **changes)


@define(eq=False)
class _Loaded:
    """The passages of one owner in memory, as they were when the index had this stamp."""

    index: _PassageIndex
    rankings: dict[str, Ranking] = field(factory=dict[str, Ranking])
    legacy: tuple[str, ...] = ()
    _lock: Lock = field(factory=Lock)

    def __len__(self) -> int:
        return sum(map(len, self.rankings.values()))

    def has(self, name: str, text: str) -> bool:
        """Whether a text has a vector of an embedder."""
        return name in self.rankings and text in self.rankings[name]

    def advance(self, index: _PassageIndex, added: Iterable[tuple[str, Sequence[Found], Vectors]], since: str) -> None:
        """Take in what was added and removed since a stamp, unless another call has done so already."""
        with self._lock:
            if self.index.stamp != since:
                return
            for name, passages, vectors in added:
                self._ranking(name, vectors.shape[1]).add(passages, vectors)
            for ranking in self.rankings.values():
                ranking.drop_before(index.first)
            self.index = index

    def remove(self, index: _PassageIndex, gone: Collection[int], since: str) -> None:
        """Take out what was removed since a stamp, unless another call has read all of it anew."""
        with self._lock:
            if self.index.stamp == since:
                for ranking in self.rankings.values():
                    ranking.remove(gone)
                self.index = index

    def _ranking(self, name: str, dimensions: int) -> Ranking:
        ranking = self.rankings.get(name)
        if ranking is None or (not len(ranking) and ranking.dimensions != dimensions):
            ranking = self.rankings[name] = Ranking(dimensions)
        return ranking

    def check(self, name: str, dimensions: int) -> None:
        """Refuse vectors that cannot be compared with those that are there.

        Raises:
            ConfigError: They have other dimensions; code `"vector-dimensions"`.
        """
        ranking = self.rankings.get(name)
        if ranking is not None and len(ranking) and ranking.dimensions != dimensions:
            raise ConfigError(
                f"embedder {name!r} gave {dimensions} dimensions, and what is stored of it has {ranking.dimensions}",
                code="vector-dimensions",
                hint="give each model of an embedder a name of its own",
            )

    def without(self, count: int) -> int:
        """The number from which on all but the `count` oldest passages are."""
        numbers = heapq.merge(*(ranking.numbers for ranking in self.rankings.values()))
        return max([number + 1 for number in islice(numbers, max(0, count))], default=self.index.first)


@define(eq=False)
class Passages:
    """The passages of a layer; those of the owners that were used last are in memory.

    Attributes:
        limit: How many passages an owner may have; the oldest go first.
    """

    limit: int
    _known: Cache[Owner | None, _Loaded] = field(
        factory=lambda: Cache[Owner | None, _Loaded](_MOST_CACHED, size=len), init=False
    )

    async def count(self, shelf: Shelf) -> int:
        """How many there are."""
        return len(await self._load(shelf))

    async def missing(self, shelf: Shelf, name: str, texts: Iterable[str]) -> list[str]:
        """The texts that have no vector of an embedder yet, each once."""
        now = await self._load(shelf)
        return [text for text in dict.fromkeys(texts) if not now.has(name, text)]

    async def others(self, shelf: Shelf, name: str) -> Mapping[str, int]:
        """How many passages have vectors of other embedders, by their names."""
        now = await self._load(shelf)
        return {other: len(ranking) for other, ranking in now.rankings.items() if other != name and len(ranking)}

    async def nearest(self, shelf: Shelf, name: str, query: VectorQuery) -> list[Found]:
        """The passages nearest to a query, the nearest first.

        Args:
            shelf: Where they are.
            name: What made the query's vector; passages with a vector of something else are not looked at.
            query: What is looked for.

        Raises:
            ConfigError: The query's vector has other dimensions than those that are there; code `"vector-dimensions"`.
        """
        now = await self._load(shelf)
        ranking = now.rankings.get(name)
        if ranking is None or not len(ranking):
            return []
        now.check(name, len(query.vector))
        return await to_thread.run_sync(lambda: ranking.nearest(query))

    async def add(self, shelf: Shelf, name: str, given: Sequence[Found], vectors: Vectors) -> int:
        """Keep passages with their vectors of length 1; one that is there already stays as it is.

        Returns:
            How many are new.

        Raises:
            ConfigError: The vectors have other dimensions than those that are there; code `"vector-dimensions"`.
            VersionConflict: Others write all the time.
        """
        for _ in range(_ATTEMPTS):
            now = await self._load(shelf)
            now.check(name, vectors.shape[1])
            places = _fresh(now, name, given[-self.limit :], len(given) - min(len(given), self.limit))
            if not places:
                return 0
            following = now.index.following
            passages = [evolve(given[place], number=following + n) for n, place in enumerate(places)]
            if await self._append(shelf, now, name, passages, vectors[places]):
                return len(passages)
        raise VersionConflict("others write the stored passages all the time")

    async def _append(self, shelf: Shelf, now: _Loaded, name: str, passages: list[Found], vectors: Vectors) -> bool:
        # Another call may move on what is loaded while this one waits; its version is then not the one that is stored.
        index, legacy, added = now.index, now.legacy, [(name, passages, vectors)]
        count = len(now) + len(passages)
        first = now.without(count - self.limit)
        written = await _converted(shelf, now) if legacy else []
        left = [each for each in (*index.segments, *written) if each.last >= first]
        # The small ones at the end are written again together with what is new.
        while left and left[-1].embedder == name and left[-1].count <= len(passages) <= _SEGMENT - left[-1].count:
            joined, more = now.rankings[name].behind(max(first, left.pop().first), passages[0].number)
            passages, vectors = joined + passages, np.concatenate([more, vectors])
        segments = await _write(shelf, name, passages, vectors)
        after = index.then(
            [(each.key, first) for each in segments],
            following=passages[-1].number + 1,
            first=first,
            count=min(self.limit, count),
            segments=(*left, *segments),
        )
        committed = await self._commit(shelf, index, after, [*written, *segments], legacy)
        if committed is not None:
            await to_thread.run_sync(lambda: now.advance(committed, added, index.stamp))
            self._known.put(shelf.owner, now)
        return committed is not None

    async def _commit(
        self,
        shelf: Shelf,
        index: _PassageIndex,
        after: _PassageIndex,
        written: Sequence[_PassageSegment],
        legacy: Sequence[str] = (),
    ) -> _PassageIndex | None:
        """Make an index the one that counts; returns it, or `None` where another writer was quicker."""
        try:
            version = await shelf.put(_INDEX, after.text(), expected=index.version)
        except VersionConflict:
            # What another writer has stored meanwhile may be the same.
            there = {each.key for each in (await self._load(shelf)).index.segments}
            await _remove(shelf, [each.key for each in written if each.key not in there])
            return None
        kept = {each.key for each in after.segments}
        gone = [each.key for each in (*index.segments, *written) if each.key not in kept]
        await _remove(shelf, [*gone, *legacy])
        return evolve(after, version=version)

    async def replace(self, shelf: Shelf, name: str, embed: Embed) -> int:
        """Give all passages that have a vector of another embedder one of this; they keep their numbers.

        Returns:
            How many passages have a new vector.

        Raises:
            VersionConflict: Others write all the time.
        """
        made: dict[str, NDArray[np.float32]] = {}
        for _ in range(_ATTEMPTS):
            now = await self._load(shelf)
            every = [each for other, ranking in now.rankings.items() if other != name for each in ranking.behind(0)[0]]
            if not every:
                return 0
            every = list({each.text: each for each in sorted(every, key=lambda each: each.number)}.values())
            changed = [each for each in every if not now.has(name, each.text)]
            wanted = [each.text for each in changed if each.text not in made]
            for begin in range(0, len(wanted), _SEGMENT):
                texts = wanted[begin : begin + _SEGMENT]
                made |= zip(texts, await embed(texts), strict=True)
            if await self._rewrite(shelf, now, name, changed, made):
                self._known.drop(shelf.owner)
                return len(changed)
        raise VersionConflict("others write the stored passages all the time")

    async def _rewrite(
        self, shelf: Shelf, now: _Loaded, name: str, changed: Sequence[Found], made: Mapping[str, NDArray[np.float32]]
    ) -> bool:
        index, legacy = now.index, now.legacy
        rows = {each.number: (each, made[each.text]) for each in changed}
        if name in now.rankings:
            passages, vectors = now.rankings[name].behind(0)
            rows |= {each.number: (each, vector) for each, vector in zip(passages, vectors, strict=True)}
        ordered = [rows[number] for number in sorted(rows)]
        segments = await _write(shelf, name, [each for each, _ in ordered], np.stack([row for _, row in ordered]))
        after = index.then([each.key for each in segments], count=len(ordered), segments=tuple(segments))
        # A reader who knows what was there before has to read all of it.
        return await self._commit(shelf, index, evolve(after, before=()), segments, legacy) is not None

    async def forget(self, shelf: Shelf) -> int:
        """Remove them all; returns how many there were.

        Raises:
            VersionConflict: Others write all the time.
        """
        removed = 0
        for _ in range(_ATTEMPTS):
            stored, version = await shelf.get_versioned(_INDEX, object)
            keys = [key for key in await shelf.keys() if key != _INDEX]
            index = _PassageIndex() if stored is None else _PassageIndex.parse(stored, version)
            try:
                # A concurrent writer or an earlier reader sees another stamp than the one it knows.
                marker = _PassageIndex(stamp=_digest(index.stamp, "forgotten"))
                marked = await shelf.put(_INDEX, marker.text(), expected=version)
                removed += index.count if stored is None or isinstance(stored, str) else len(keys)
                await _remove(shelf, [key for key in await shelf.keys() if key != _INDEX])
                await shelf.remove(_INDEX, expected=marked)
            except VersionConflict:
                continue
            self._known.drop(shelf.owner)
            return removed
        raise VersionConflict("others write the stored passages all the time")

    async def forget_where(self, shelf: Shelf, where: Mapping[str, str]) -> int:
        """Remove those with these metadata; returns how many there were.

        Raises:
            VersionConflict: Others write all the time.
        """
        for _ in range(_ATTEMPTS):
            now = await self._load(shelf)
            gone = {number for ranking in now.rankings.values() for number in ranking.having(where)}
            # What an earlier release has stored has no metadata, so everything is in segments here.
            if not gone:
                return 0
            since, committed = now.index.stamp, await self._without(shelf, now, gone)
            if committed is not None:
                await to_thread.run_sync(now.remove, committed, gone, since)
                self._known.put(shelf.owner, now)
                return len(gone)
        raise VersionConflict("others write the stored passages all the time")

    async def _without(self, shelf: Shelf, now: _Loaded, gone: Collection[int]) -> _PassageIndex | None:
        """Write the segments that have some of the passages anew; the others stay."""
        index, left, written = now.index, list[_PassageSegment](), list[_PassageSegment]()
        for segment in index.segments:
            passages, vectors = now.rankings[segment.embedder].behind(segment.first, segment.last + 1)
            rows = [row for row, each in enumerate(passages) if each.number not in gone]
            if len(rows) == len(passages):
                left.append(segment)
            elif rows:
                made = await _write(shelf, segment.embedder, [passages[row] for row in rows], vectors[rows])
                written += made
                left += made
        after = index.then(sorted(gone), count=index.count - len(gone), segments=tuple(left))
        # A reader who knows what was there before has to read all of it.
        return await self._commit(shelf, index, evolve(after, before=()), written)

    async def _load(self, shelf: Shelf) -> _Loaded:
        for _ in range(_ATTEMPTS):
            stored, version = await shelf.get_versioned(_INDEX, object)
            if stored is None:
                return _Loaded(_PassageIndex())
            known = self._known.get(shelf.owner)
            index = _PassageIndex.parse(stored, version)
            if known is not None and known.index.stamp == index.stamp:
                known.index = evolve(known.index, version=version)
                return self._known.put(shelf.owner, known)
            if not isinstance(stored, str):
                return self._known.put(shelf.owner, await _legacy(shelf, index))
            if known is None or known.index.stamp not in index.before or known.legacy:
                known = _Loaded(_PassageIndex())
            if await _read(shelf, known, index):
                return self._known.put(shelf.owner, known)
        raise VersionConflict("others write the stored passages all the time")


def _fresh(now: _Loaded, name: str, given: Sequence[Found], begin: int) -> list[int]:
    """The places of the passages that are not there, each text once."""
    places: dict[str, int] = {}
    for place, passage in enumerate(given, begin):
        if not now.has(name, passage.text):
            places.setdefault(passage.text, place)
    return list(places.values())


async def _read(shelf: Shelf, known: _Loaded, index: _PassageIndex) -> bool:
    """Read what an index has and a loaded one does not; returns whether it was still there."""
    since, following, added = known.index.stamp, known.index.following, list[tuple[str, Sequence[Found], Vectors]]()
    for segment in index.segments:
        if segment.last < following:
            continue
        stored, _ = await shelf.get_versioned(segment.key, _Stored)
        if stored is None:
            return False
        name, passages, vectors = _unpacked(stored)
        rows = [row for row, each in enumerate(passages) if each.number >= max(following, index.first)]
        added.append((name, [passages[row] for row in rows], vectors[rows]))
    await to_thread.run_sync(lambda: known.advance(index, added, since))
    return True


async def _legacy(shelf: Shelf, index: _PassageIndex) -> _Loaded:
    """Read what an earlier release has stored: a key for each passage."""
    rows: dict[str, _Row] = {}
    after: str | None = None
    while page := await shelf.scan(object, after=after, limit=_PAGE):
        after = page[-1][0]
        rows |= {key: _row(value) for key, value in page if key != _INDEX}
    loaded = _Loaded(index, legacy=tuple(rows))
    # Two writers could give one number twice; here each passage has one of its own.
    ordered = sorted(rows.items(), key=lambda entry: (entry[1][0], entry[0]))
    added = [
        (row[1], [Found(row[5], row[2], row[3], row[4], number=number)], np.frombuffer(row[6], "<f4")[None])
        for number, (_, row) in enumerate(ordered)
    ]
    loaded.advance(evolve(index, following=max(len(ordered), index.following)), added, index.stamp)
    return loaded


async def _converted(shelf: Shelf, now: _Loaded) -> list[_PassageSegment]:
    """Write what an earlier release has stored as segments."""
    made: list[_PassageSegment] = []
    for name, ranking in now.rankings.items():
        made += await _write(shelf, name, *ranking.behind(0))
    return made


def _row(value: Any) -> _Row:
    number, name, role, thread, item, text, vector = value
    return (int(number), str(name), str(role), str(thread), str(item), str(text), bytes(vector))


async def _write(shelf: Shelf, name: str, passages: Sequence[Found], vectors: Vectors) -> list[_PassageSegment]:
    """Store passages as segments, which count when an index names them."""
    made: list[_PassageSegment] = []
    for begin in range(0, len(passages), _SEGMENT):
        part = passages[begin : begin + _SEGMENT]
        stored = _packed(name, part, vectors[begin : begin + len(part)])
        key = f"{part[0].number:012d}-{_digest(*stored)[:32]}"
        await shelf.put(key, stored)
        made.append(_PassageSegment(key, name, part[0].number, part[-1].number, len(part)))
    return made


async def _remove(shelf: Shelf, keys: Iterable[str]) -> None:
    for key in keys:
        await shelf.remove(key)


def _packed(name: str, passages: Sequence[Found], vectors: Vectors) -> _Stored:
    rows = [
        [each.number, each.role, each.thread, each.item, each.origin, _when(each.said), dict(each.metadata), each.text]
        for each in passages
    ]
    # Fixed in its bytes, whichever machine has written it.
    return (name, vectors.shape[1], json.dumps(rows), vectors.astype("<f4").tobytes())


def _unpacked(stored: _Stored) -> tuple[str, list[Found], Vectors]:
    name, dimensions, text, data = stored
    passages = [
        Found(text, role, thread, item, origin, _moment(said), metadata, number=number)
        for number, role, thread, item, origin, said, metadata, text in json.loads(text)
    ]
    return name, passages, np.frombuffer(data, "<f4").astype(np.float32).reshape(len(passages), dimensions)


def _when(said: datetime | None) -> str | None:
    return None if said is None else said.astimezone(UTC).isoformat()


def _moment(said: str | None) -> datetime | None:
    return None if said is None else datetime.fromisoformat(said)


def _digest(*parts: object) -> str:
    made = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode(errors="surrogatepass")
        made.update(f"{len(data)}:".encode())
        made.update(data)
    return made.hexdigest()
