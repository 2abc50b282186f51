"""Passages in a layer's storage, and their fast search, compared with plain sums."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import InMemoryBackend
from noetic_py.core.codec import Codec
from noetic_py.errors import CodecError, ConfigError
from noetic_py.memory import Found, LayerStorage, Scope, VectorQuery
from noetic_py.memory.layers.passages import LocalShelf, Passages
from noetic_py.memory.layers.vectors import unit, words
from tests.properties.checks import examples

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIMIT = 40


def rows(*vectors: Sequence[float]) -> Any:
    return np.asarray([unit(list(each)) for each in vectors], np.float32)


@define
class Plain:
    """The same by lists and sums."""

    rows: dict[str, dict[str, tuple[Found, Sequence[float]]]] = field(factory=dict[str, Any])
    following: int = 0

    def add(self, name: str, given: Sequence[tuple[Found, Sequence[float]]]) -> int:
        mine, new = self.rows.setdefault(name, {}), 0
        for passage, vector in given:
            if passage.text not in mine:
                mine[passage.text] = (evolve(passage, number=self.following), vector)
                self.following, new = self.following + 1, new + 1
        every = sorted((row[0].number, name, text) for name, texts in self.rows.items() for text, row in texts.items())
        for _, name, text in every[: max(0, len(every) - LIMIT)]:
            del self.rows[name][text]
        return new

    def drop(self, where: Mapping[str, str]) -> int:
        gone = [
            (name, text)
            for name, texts in self.rows.items()
            for text, (passage, _) in texts.items()
            if where.items() <= passage.metadata.items()
        ]
        for name, text in gone:
            del self.rows[name][text]
        return len(gone)

    def reindex(self, name: str, vectors: Mapping[str, Sequence[float]]) -> int:
        mine, before = self.rows.setdefault(name, {}), len(self.rows.get(name, {}))
        others = [row for other, texts in self.rows.items() if other != name for row in texts.values()]
        for passage, _ in sorted(others, key=lambda row: -row[0].number):
            if passage.text not in mine:
                mine[passage.text] = (passage, vectors[passage.text])
        self.rows = {name: mine}
        return len(mine) - before

    def nearest(self, name: str, query: VectorQuery) -> list[tuple[str, float]]:
        mine = list(self.rows.get(name, {}).values())
        counted = {passage.text: Counter(words(passage.text)) for passage, _ in mine}
        mean = sum(each.total() for each in counted.values()) / max(1, len(mine)) or 1.0
        having = {word: sum(word in each for each in counted.values()) for word in set(words(query.text))}
        says = {word: math.log(1 + (len(mine) - n + 0.5) / (n + 0.5)) for word, n in having.items()}
        found: list[tuple[float, int, str]] = []
        for passage, vector in mine:
            used = counted[passage.text]
            length = 0.25 + 0.75 * used.total() / mean
            shared = sum(says[word] * used[word] / (used[word] + 1.2 * length) for word in says if used[word])
            score = math.fsum(a * b for a, b in zip(array("f", vector), array("f", query.vector), strict=True))
            score = round(score + query.words * shared / (sum(says.values()) or 1.0), 9)
            if score >= query.least and self.fits(passage, query):
                found.append((-score, passage.number, passage.text))
        return [(text, round(-score, 4)) for score, _, text in sorted(found)[: query.limit]]

    def fits(self, passage: Found, query: VectorQuery) -> bool:
        if (query.since or query.until) and passage.said is None:
            return False
        said = passage.said or NOON
        return (
            (query.since is None or said >= query.since)
            and (query.until is None or said < query.until)
            and all(passage.metadata.get(key) == value for key, value in query.where.items())
        )


HOURS = st.one_of(st.none(), st.integers(-3, 3).map(lambda hours: NOON + timedelta(hours=hours)))
WORDS = st.sampled_from(["tide", "moon", "bread", "oven", "road", "wheel", "12", "a"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
VECTORS = st.lists(st.integers(-3, 3), min_size=3, max_size=3).map(lambda each: unit([float(n) for n in each]))
METADATA = st.dictionaries(st.sampled_from(["book", "page", "tide"]), st.sampled_from(["1", "moon"]), max_size=2)
PASSAGES = st.builds(Found, text=TEXTS, said=HOURS, metadata=METADATA)
NAMES = st.sampled_from(["one", "one", "one", "two"])
QUERIES = st.builds(
    VectorQuery, TEXTS, VECTORS, st.integers(0, 8), st.sampled_from([-1.0, 0.1, 0.6]), st.sampled_from([0.0, 0.4]),
    HOURS, HOURS, st.one_of(st.just({}), METADATA),
)  # fmt: skip
DEEDS = st.one_of(
    st.tuples(st.just("add"), NAMES, st.lists(st.tuples(PASSAGES, VECTORS), max_size=25)),
    st.tuples(st.just("add"), NAMES, st.lists(st.tuples(PASSAGES, VECTORS), min_size=1, max_size=2)),
    st.tuples(st.just("ask"), NAMES, QUERIES),
    st.tuples(st.just("ask"), NAMES, QUERIES),
    st.tuples(st.sampled_from(["forget", "reindex"]), NAMES, st.none()),
    st.tuples(st.just("drop"), NAMES, METADATA),
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=examples(75, 5000), deadline=None)
@given(st.lists(st.tuples(DEEDS, st.integers(0, 1)), min_size=1, max_size=25))
async def test_two_processes_find_what_plain_sums_find(
    anyio_backend: str, deeds: list[tuple[tuple[str, str, Any], int]]
) -> None:
    shelf, processes, plain = LocalShelf(), (Passages(LIMIT), Passages(LIMIT)), Plain()
    for (deed, name, what), process in deeds:
        mine = processes[process]
        if deed == "add":
            passages = [passage for passage, _ in what]
            vectors = rows(*(vector for _, vector in what)) if what else np.empty((0, 3), np.float32)
            assert await mine.add(shelf, name, passages, vectors) == plain.add(name, what)
        elif deed == "forget":
            assert await mine.forget(shelf) == sum(map(len, plain.rows.values()))
            assert shelf.values == {}
            plain = Plain()
        elif deed == "drop":
            assert await mine.forget_where(shelf, what) == plain.drop(what)
        elif deed == "reindex":
            made = {text: [float(len(text)), 1.0, 0.0] for texts in plain.rows.values() for text in texts}

            async def embed(texts: Sequence[str], made: dict[str, Any] = made) -> Any:
                return rows(*(made[text] for text in texts))

            unitary = {text: unit(vector) for text, vector in made.items()}
            assert await mine.replace(shelf, name, embed) == plain.reindex(name, unitary)
            assert await mine.others(shelf, name) == {}
        else:
            found = await mine.nearest(shelf, name, what)
            assert [(each.text, each.score) for each in found] == plain.nearest(name, what)
            every = {each.text: each for each, _ in plain.rows.get(name, {}).values()}
            assert [evolve(each, score=0.0) for each in found] == [every[each.text] for each in found]
    for mine in processes:
        assert await mine.count(shelf) == sum(map(len, plain.rows.values()))


async def test_what_is_left_after_a_removal_is_found_by_words_and_metadata() -> None:
    shelf, mine = LocalShelf(), Passages(LIMIT)
    given = [Found(f"tide {n} moon", metadata={"book": str(n % 2), "page": str(n)}) for n in range(6)]
    assert await mine.add(shelf, "e", given, rows(*[[1.0, n, 0.0] for n in range(6)])) == 6
    assert await mine.forget_where(shelf, {"book": "0"}) == 3
    late = Found("tide 6 oven", metadata={"book": "1", "page": "6"})
    assert await mine.add(shelf, "e", [late], rows([1.0, 6.0, 0.0])) == 1
    for process in (mine, Passages(LIMIT)):
        by_word = VectorQuery("oven", unit([0.0, 0.0, 1.0]), 9, 0.1, 1.0)
        assert [each.text for each in await process.nearest(shelf, "e", by_word)] == ["tide 6 oven"]
        by_page = VectorQuery("", unit([1.0, 0.0, 0.0]), 9, -1.0, where={"page": "3"})
        assert [each.text for each in await process.nearest(shelf, "e", by_page)] == ["tide 3 moon"]
        shared = VectorQuery("moon", unit([0.0, 0.0, 1.0]), 9, 0.1, 1.0)
        assert [each.number for each in await process.nearest(shelf, "e", shared)] == [1, 3, 5]


async def test_many_passages_are_a_few_writes_and_the_store_stays_small() -> None:
    backend = InMemoryBackend()
    shelf = LayerStorage(backend, Codec(), layer="past", scope=Scope.USER, owner="ada")
    mine = Passages(5_000)
    count = 4_000
    vectors = rows(*([math.cos(n), math.sin(n)] for n in range(count)))
    assert await mine.add(shelf, "e", [Found(f"passage {n}") for n in range(count)], vectors) == count
    assert len(await shelf.keys()) == 9
    # One after the other they are joined, and what they replace goes.
    for n in range(200):
        assert await mine.add(shelf, "e", [Found(f"later {n}")], vectors[n : n + 1]) == 1
    assert len(await shelf.keys()) < 20
    other = Passages(5_000)
    assert await other.count(shelf) == await mine.count(shelf) == count + 200
    query = VectorQuery("later 7", [math.cos(7), math.sin(7)], 3, 0.0, 0.4)
    assert await other.nearest(shelf, "e", query) == await mine.nearest(shelf, "e", query)
    # Beyond the limit the oldest go, from memory too.
    for n in range(20):
        await mine.add(shelf, "e", [Found(f"more {n} {m}") for m in range(250)], vectors[:250])
    assert await mine.count(shelf) == await other.count(shelf) == 5_000
    assert await mine.missing(shelf, "e", ["passage 1", "later 7", "more 0 0"]) == ["passage 1", "later 7"]
    assert len(await shelf.keys()) < 40


def old_row(number: int, name: str, text: str) -> tuple[int, str, str, str, str, str, bytes]:
    return (number, name, "user", "t", f"i{number}", text, array("f", unit([1.0, float(number)])).tobytes())


async def test_what_an_earlier_release_has_stored_is_read_and_written_anew() -> None:
    backend = InMemoryBackend()
    shelf = LayerStorage(backend, Codec(), layer="past", scope=Scope.USER, owner="ada")
    for number, text in enumerate(["The tide is high.", "Bread needs an oven.", "A wheel is round."]):
        await shelf.put(f"{number:032x}", old_row(number, "e", text))
    await shelf.put("~", (3, "", "a stamp", "", "", "", b""))
    mine = Passages(10)
    query = VectorQuery("tide", unit([1.0, 0.0]), 2, 0.0, 0.4)
    found = await mine.nearest(shelf, "e", query)
    assert [(each.text, each.role, each.thread, each.item) for each in found] == [
        ("The tide is high.", "user", "t", "i0"),
        ("Bread needs an oven.", "user", "t", "i1"),
    ]
    assert found == await mine.nearest(shelf, "e", query)
    assert await mine.add(shelf, "e", [Found("A wheel is round."), Found("A cat.")], rows([0, 1], [0, 1])) == 1
    assert len(await shelf.keys()) == 3
    again = await Passages(10).nearest(shelf, "e", query)
    assert [evolve(each, score=0.0) for each in again] == [evolve(each, score=0.0) for each in found]
    assert await Passages(10).forget(shelf) == 4
    assert await shelf.keys() == []


async def test_what_an_earlier_release_has_stored_is_forgotten_and_reindexed() -> None:
    for deed in ("forget", "replace"):
        shelf = LocalShelf()
        for number, text in enumerate(["one", "two"]):
            await shelf.put(f"{number:032x}", old_row(number, "old", text))
        await shelf.put("~", (2, "", "a stamp", "", "", "", b""))

        async def embed(texts: Sequence[str]) -> Any:
            return rows(*([1.0, 0.0, 0.0] for _ in texts))

        if deed == "forget":
            assert await Passages(10).forget(shelf) == 2
            assert shelf.values == {}
        else:
            assert await Passages(10).replace(shelf, "new", embed) == 2
            assert len(shelf.values) == 2
            assert len(await Passages(10).nearest(shelf, "new", VectorQuery("", [1.0, 0.0, 0.0], 5, 0.5))) == 2


async def test_what_a_later_release_has_stored_is_refused() -> None:
    shelf = LocalShelf()
    await shelf.put("~", json.dumps({"format": 3}))
    with pytest.raises(CodecError, match="have format 3; expected at most 2"):
        await Passages(10).count(shelf)
    for odd in ("{}", "[]", "no json", 7):
        await shelf.put("~", odd)
        with pytest.raises(CodecError, match="damaged"):
            await Passages(10).count(shelf)


async def test_dimensions_that_do_not_fit_are_named() -> None:
    shelf, mine = LocalShelf(), Passages(10)
    await mine.add(shelf, "e", [Found("two")], rows([1, 0]))
    with pytest.raises(ConfigError, match="gave 3 dimensions, and what is stored of it has 2") as caught:
        await mine.add(shelf, "e", [Found("three")], rows([1, 0, 0]))
    assert caught.value.code == "vector-dimensions"
    with pytest.raises(ConfigError, match="gave 3 dimensions"):
        await mine.nearest(shelf, "e", VectorQuery("", [1.0, 0.0, 0.0], 5, 0.0))
    assert await mine.count(shelf) == 1


async def test_memory_is_bounded_by_passages_and_not_by_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_py.memory.layers.passages._MOST_CACHED", 10)
    backend, mine = InMemoryBackend(), Passages(10)
    shelves = [LayerStorage(backend, Codec(), layer="past", scope=Scope.USER, owner=f"u{n}") for n in range(5)]
    for shelf in shelves:
        await mine.add(shelf, "e", [Found(f"{n}") for n in range(4)], rows(*[[1, 0]] * 4))
    assert len(mine._known) == 2
    for shelf in shelves:
        assert await mine.count(shelf) == 4
