"""Passages and their vectors in a real server with pgvector."""

from __future__ import annotations

import math
import re
import socket
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import numpy as np
import psycopg
import pytest
from attrs import define, evolve, field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from noetic_postgres import PgVectorStore, PostgresBackend
from postgres_server import PostgresServer
from psycopg import sql

from noetic_py import Context, Harness, Memory, call_model, step
from noetic_py.core.events import LayerFailed
from noetic_py.core.items import Message
from noetic_py.errors import ConfigError, CorruptRecord, InvalidId, StoreUnavailable
from noetic_py.memory import Found, Owner, Scope, SemanticRecall, VectorQuery, VectorStore
from noetic_py.memory.layers.passages import LocalShelf, Passages
from noetic_py.memory.layers.vectors import unit, words
from noetic_py.testing import ScriptedModel
from tests.layer_runs import Letters
from tests.properties.checks import examples

pytestmark = pytest.mark.anyio

ADA = Owner(Scope.USER, "ada", "past")
BOB = Owner(Scope.USER, "bob", "past")
EMBEDDER = "test:two"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def opened(server: PostgresServer, schema: str, **options: Any) -> AsyncGenerator[PgVectorStore]:
    async with PgVectorStore(server.url(schema), **options) as store:
        yield store


def passage(text: str, *vector: float) -> tuple[Found, Sequence[float]]:
    return Found(text, "user", "t", "i"), unit(vector or (1.0, 0.0))


async def texts(store: PgVectorStore, owner: Owner, *vector: float, limit: int = 50, least: float = -2.0) -> list[str]:
    query = VectorQuery("", unit(vector or (1.0, 0.0)), limit, least)
    return [each.text for each in await store.nearest(owner, EMBEDDER, query)]


# ---------------------------------------------------------------------------------------------------- an oracle


@define
class Plain:
    """The same by lists and sums."""

    rows: dict[Owner, dict[tuple[str, str], tuple[int, Found, Sequence[float]]]] = field(factory=dict[Owner, Any])
    count: int = 0

    def add(self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], limit: int) -> int:
        mine, new = self.rows.setdefault(owner, {}), 0
        for found, vector in given[-limit:]:
            if (embedder, found.text) not in mine:
                self.count, new = self.count + 1, new + 1
                mine[embedder, found.text] = (self.count, found, array("f", vector))
        if new:
            for key in sorted(mine, key=lambda key: mine[key][0])[:-limit]:
                del mine[key]
        return new

    def drop(self, owner: Owner, first: str) -> int:
        mine = self.rows.get(owner, {})
        gone = [key for key in mine if key[1].split()[0] == first]
        for key in gone:
            del mine[key]
        return len(gone)

    def score(self, owner: Owner, name: str, query: VectorQuery, found: Found, vector: Sequence[float]) -> float:
        near = sum(a * b for a, b in zip(vector, query.vector, strict=True))
        every = [Counter(words(text)) for embedder, text in self.rows[owner] if embedder == name]
        mean = sum(each.total() for each in every) / len(every) or 1.0
        having = {word: sum(word in each for each in every) for word in set(words(query.text))}
        says = {word: math.log(1 + (len(every) - n + 0.5) / (n + 0.5)) for word, n in having.items()}
        mine = Counter(words(found.text))
        length = 0.25 + 0.75 * mine.total() / mean
        shared = sum(says[word] * mine[word] / (mine[word] + 1.2 * length) for word in says if mine[word])
        return near + query.words * shared / (sum(says.values()) or 1.0)

    def scores(self, owner: Owner, embedder: str, query: VectorQuery) -> dict[str, float]:
        mine = self.rows.get(owner, {})
        wanted = [(found, vector) for (name, _), (_, found, vector) in mine.items() if name == embedder]
        return {found.text: self.score(owner, embedder, query, found, vector) for found, vector in wanted}


TEXTS = st.lists(st.sampled_from(["tide", "moon", "bread", "oven", "road"]), min_size=1, max_size=4).map(" ".join)
VECTORS = st.lists(st.integers(-3, 3), min_size=3, max_size=3).map(lambda each: unit([float(n) for n in each]))
OWNERS = st.sampled_from([ADA, BOB])
NAMES = st.sampled_from(["one", "two"])
ADDED = st.tuples(st.just("add"), OWNERS, NAMES, st.lists(st.tuples(TEXTS, VECTORS), max_size=5))
ASKED = st.tuples(st.just("ask"), OWNERS, NAMES, TEXTS, VECTORS, st.sampled_from([0.0, 0.4]), st.integers(1, 6))
FORGOTTEN = st.tuples(st.just("forget"), OWNERS)
DROPPED = st.tuples(st.just("drop"), OWNERS, st.sampled_from(["tide", "moon", "bread"]))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=examples(15, 1000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(ADDED, ASKED, ASKED, FORGOTTEN, DROPPED), min_size=1, max_size=12))
async def test_two_users_find_what_plain_sums_find(
    vector_server: PostgresServer, anyio_backend: str, deeds: list[tuple[Any, ...]]
) -> None:
    oracle, limit = Plain(), 6
    with vector_server.schema(fresh=True) as schema:
        async with opened(vector_server, schema, connections=1) as store:
            for deed, owner, *rest in deeds:
                if deed == "add":
                    passages = [
                        (Found(text, owner.id, "t", "i", metadata={"first": text.split()[0]}), vector)
                        for text, vector in rest[1]
                    ]
                    new = await store.add(owner, rest[0], passages, limit=limit)
                    assert new == oracle.add(owner, rest[0], passages, limit)
                elif deed == "drop":
                    assert await store.forget(owner, {"first": rest[0]}) == oracle.drop(owner, rest[0])
                elif deed == "forget":
                    assert await store.forget(owner) == len(oracle.rows.pop(owner, {}))
                else:
                    name, text, vector, part, most = rest
                    query = VectorQuery(text, vector, most, 0.1, part)
                    await compare(store, oracle, owner, name, query)


async def compare(store: PgVectorStore, oracle: Plain, owner: Owner, name: str, query: VectorQuery) -> None:
    found = await store.nearest(owner, name, query)
    expected = oracle.scores(owner, name, query)
    assert len({each.text for each in found}) == len(found)
    assert all(each.role == owner.id for each in found)
    assert [each.score for each in found] == pytest.approx([expected[each.text] for each in found], abs=2e-4)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    # What is left out is not nearer than what is there, as far as the server's smaller numbers tell.
    out = [score for text, score in expected.items() if text not in {each.text for each in found}]
    last = found[-1].score if len(found) == query.limit else query.least
    assert all(score <= last + 2e-4 for score in out)
    there = set(await store.missing(owner, name, [*expected, "something else"]))
    assert there == {"something else"}


DATED = st.builds(
    Found,
    text=TEXTS,
    origin=st.sampled_from(["", "book"]),
    said=st.one_of(st.none(), st.integers(-2, 2).map(lambda hours: NOON + timedelta(hours=hours))),
    metadata=st.dictionaries(st.sampled_from(["a", "a\0b", "\ud800"]), st.sampled_from(["1", "\\"]), max_size=2),
)
TIMES = st.one_of(st.none(), st.integers(-2, 2).map(lambda hours: NOON + timedelta(hours=hours)))
PARTS = st.lists(st.tuples(DATED, VECTORS), max_size=12)
FILTERED = st.tuples(
    TEXTS, VECTORS, st.integers(0, 6), st.sampled_from([-1.0, 0.1]), st.sampled_from([0.0, 0.4]), TIMES, TIMES,
    st.one_of(st.just({}), st.dictionaries(st.just("a"), st.just("1"))),
)  # fmt: skip


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=examples(12, 1000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NAMES, PARTS), min_size=1, max_size=4), st.lists(FILTERED, min_size=1, max_size=6), NAMES)
async def test_the_order_is_that_of_a_search_in_the_process(
    vector_server: PostgresServer, anyio_backend: str, added: Any, asked: Any, last: str
) -> None:
    """Bit for bit: places, scores, dates, and the ties."""
    shelf, near = LocalShelf(), Passages(15)

    async def compare(store: PgVectorStore, name: str) -> None:
        for each in asked:
            query = VectorQuery(*each)
            here, there = await near.nearest(shelf, name, query), await store.nearest(ADA, name, query)
            assert [evolve(found, number=0) for found in there] == [evolve(found, number=0) for found in here]

    def matrix(part: Any) -> Any:
        return np.asarray([vector for _, vector in part], np.float32).reshape(-1, 3)

    with vector_server.schema(fresh=True) as schema:
        async with opened(vector_server, schema, connections=1) as store:
            for name, part in added:
                new = await near.add(shelf, name, [found for found, _ in part], matrix(part))
                assert await store.add(ADA, name, part, limit=15) == new
            for name in ("one", "two"):
                await compare(store, name)
            while others := await store.others(ADA, last, limit=4):
                await store.replace(ADA, last, [(found, [1.0, 0.0, 0.0]) for found in others])

            async def embed(texts: Sequence[str]) -> Any:
                return np.asarray([[1.0, 0.0, 0.0] for _ in texts], np.float32)

            await near.replace(shelf, last, embed)
            every = VectorQuery("", [1.0, 0.0, 0.0], 50, -2.0)
            found = {each.text for each in await near.nearest(shelf, last, every)}
            assert {each.text for each in await store.nearest(ADA, last, every)} == found


# ---------------------------------------------------------------------------------------------------- one after another


async def test_counts_of_words_are_those_of_the_passages(vector_server: PostgresServer, vector_schema: str) -> None:
    def counts() -> tuple[Any, ...]:
        schema = sql.Identifier(vector_schema)
        words = sql.SQL("SELECT word, passages FROM {}.vector_words ORDER BY word").format(schema)
        totals = sql.SQL("SELECT embedder, passages, words FROM {}.vector_counts ORDER BY 1").format(schema)
        run = vector_server.quick().execute
        return dict(run(words).fetchall()), run(totals).fetchall()

    async with opened(vector_server, vector_schema) as store:
        await store.add(ADA, EMBEDDER, [passage("tide and moon"), passage("tide tide")], limit=3)
        assert counts() == ({"and": 1, "moon": 1, "tid": 2}, [(EMBEDDER, 2, 5)])
        await store.add(ADA, EMBEDDER, [passage("bread"), passage("oven")], limit=3)
        assert counts() == ({"bread": 1, "oven": 1, "tid": 1}, [(EMBEDDER, 3, 4)])
        others = await store.others(ADA, "test:new", limit=2)
        assert [each.text for each in others] == ["tide tide", "bread"]
        assert await store.replace(ADA, "test:new", [(each, [1.0]) for each in others]) == 2
        assert counts()[1] == [("test:new", 2, 3), (EMBEDDER, 1, 1)]
        assert [each.text for each in await store.others(ADA, "test:new", limit=9)] == ["oven"]
        assert await store.forget(ADA) == 3
        assert counts() == ({}, [])


async def test_the_table_of_version_1_is_read(vector_server: PostgresServer, vector_schema: str) -> None:
    async with opened(vector_server, vector_schema) as store:
        await store.add(ADA, EMBEDDER, [passage("tide and moon"), passage("tide")], limit=5)
        query = VectorQuery("moon", unit([1.0, 0.0]), 5, 0.0, 0.4)
        found = await store.nearest(ADA, EMBEDDER, query)
    # As the release before has made it.
    undo = """
        DROP TABLE {schema}.vector_counts; DROP TABLE {schema}.vector_words;
        ALTER TABLE {schema}.vectors DROP said, DROP metadata; UPDATE {schema}.vectors_version SET version = 1;
    """
    vector_server.quick().execute(sql.SQL(undo).format(schema=sql.Identifier(vector_schema)))
    async with opened(vector_server, vector_schema) as store:
        assert await store.nearest(ADA, EMBEDDER, query) == found
        assert await store.add(ADA, EMBEDDER, [passage("moon")], limit=5) == 1
        assert len(await store.nearest(ADA, EMBEDDER, query)) == 3


async def test_an_index_finds_the_nearest_and_those_of_its_owner(
    vector_server: PostgresServer, vector_schema: str
) -> None:
    def near(number: int) -> tuple[Found, Sequence[float]]:
        return passage(f"passage number {number}", math.cos(number), math.sin(number))

    async with opened(vector_server, vector_schema) as store:
        assert await store.build_index(ADA, EMBEDDER) == 0
        await store.add(ADA, EMBEDDER, [near(number) for number in range(300)], limit=1000)
        await store.add(BOB, EMBEDDER, [near(number) for number in range(300, 310)], limit=1000)
        queries = [
            VectorQuery(f"number {number}", unit([math.cos(number), math.sin(number)]), 3, 0.0, 0.4)
            for number in (0, 7, 123, 299)
        ]
        exact = [await store.nearest(ADA, EMBEDDER, query) for query in queries]
        assert await store.build_index(ADA, EMBEDDER) == 300
        assert await store.build_index(ADA, EMBEDDER) == 300
        names = "SELECT indexname FROM pg_indexes WHERE schemaname = %s AND indexname ~ 'hnsw|gin'"
        assert len(vector_server.quick().execute(names, [vector_schema]).fetchall()) == 2
        assert [await store.nearest(ADA, EMBEDDER, query) for query in queries] == exact
        # What is added later is in them, and what is forgotten is not.
        await store.add(ADA, EMBEDDER, [passage("something new", 1, 0)], limit=1000)
        [found] = await store.nearest(ADA, EMBEDDER, VectorQuery("something new", [1.0, 0.0], 1, 0.0, 0.4))
        assert found.text == "something new"
        assert len(await store.nearest(BOB, EMBEDDER, VectorQuery("", [1.0, 0.0], 50, -1.0))) == 10
        await store.forget(ADA)
        assert await texts(store, ADA) == []


async def test_what_is_near_comes_first_and_of_equals_the_oldest(
    vector_server: PostgresServer, vector_schema: str
) -> None:
    async with opened(vector_server, vector_schema) as store:
        given = [passage("east", 1, 0), passage("north", 0, 1), passage("also east", 2, 0), passage("nowhere", 0, 0)]
        assert await store.add(ADA, EMBEDDER, given, limit=10) == 4
        assert await store.add(ADA, EMBEDDER, given, limit=10) == 0
        assert await texts(store, ADA) == ["east", "also east", "north", "nowhere"]
        assert await texts(store, ADA, limit=1) == ["east"]
        assert await texts(store, ADA, limit=0) == []
        assert await texts(store, ADA, least=0.5) == ["east", "also east"]
        assert await texts(store, BOB) == []
        assert await store.missing(ADA, EMBEDDER, ["east", "west", "west"]) == ["west"]
        assert await store.missing(ADA, "test:other", ["east"]) == ["east"]
        assert await store.missing(ADA, EMBEDDER, []) == []
        assert await store.add(ADA, EMBEDDER, [], limit=10) == 0
        [found] = await store.nearest(ADA, EMBEDDER, VectorQuery("", unit([0.0, 1.0]), 1, 0.5))
        assert (found.text, found.role, found.thread, found.item, found.score) == ("north", "user", "t", "i", 1.0)
    assert isinstance(store, VectorStore)


async def test_the_oldest_make_room(vector_server: PostgresServer, vector_schema: str) -> None:
    async with opened(vector_server, vector_schema) as store:
        for number in range(5):
            assert await store.add(ADA, EMBEDDER, [passage(f"number {number}")], limit=3) == 1
        assert await texts(store, ADA) == ["number 2", "number 3", "number 4"]
        assert await store.add(ADA, EMBEDDER, [passage(f"later {number}") for number in range(5)], limit=2) == 2
        assert await texts(store, ADA) == ["later 3", "later 4"]
        assert await store.add(BOB, EMBEDDER, [passage("mine")], limit=1) == 1
        assert await texts(store, ADA) == ["later 3", "later 4"]


async def test_names_are_columns_and_never_meet(vector_server: PostgresServer, vector_schema: str) -> None:
    # As one text some of these would be the same, or say something to the server.
    owners = [
        Owner(Scope.USER, "a", "bc"),
        Owner(Scope.USER, "ab", "c"),
        Owner(Scope.THREAD, "a", "bc"),
        Owner(Scope.EXECUTION, "a", "bc"),
        Owner(Scope.GLOBAL, "", "abc"),
        Owner(Scope.USER, "a/b", "c"),
        Owner(Scope.USER, "a", "b/c"),
        Owner(Scope.USER, "' OR true --", "c"),
        Owner(Scope.USER, "%", "c"),
        Owner(Scope.USER, "%(owner)s", "c"),
    ]
    async with opened(vector_server, vector_schema) as store:
        for number, owner in enumerate(owners):
            assert await store.add(owner, EMBEDDER, [passage("the same"), passage(f"{number}")], limit=5) == 2
        for number, owner in enumerate(owners):
            assert await texts(store, owner) == ["the same", f"{number}"]
        assert await store.forget(owners[0]) == 2
        assert await texts(store, owners[0]) == []
        assert all([len(await texts(store, owner)) == 2 for owner in owners[1:]])
    query = sql.SQL("SELECT DISTINCT scope, owner, layer FROM {}").format(sql.Identifier(vector_schema, "vectors"))
    stored = set(vector_server.quick().execute(query).fetchall())
    assert stored == {(owner.scope.value, owner.id, owner.layer) for owner in owners[1:]}


async def test_a_digest_alone_opens_nothing(vector_server: PostgresServer, vector_schema: str) -> None:
    """Were two owners' digests the same, the columns would still tell them apart."""
    async with opened(vector_server, vector_schema) as store:
        await store.add(ADA, EMBEDDER, [passage("hers")], limit=5)
        await store.add(BOB, EMBEDDER, [passage("his")], limit=5)
        table = sql.Identifier(vector_schema, "vectors")
        same = "UPDATE {table} SET owner_sha = (SELECT owner_sha FROM {table} WHERE owner = 'ada')"
        vector_server.quick().execute(sql.SQL(same).format(table=table))
        assert await texts(store, ADA) == ["hers"]
        assert await store.forget(ADA) == 1
    rows = vector_server.quick().execute(sql.SQL("SELECT owner FROM {}").format(table)).fetchall()
    assert rows == [("bob",)]


@pytest.mark.parametrize(
    "owner", [Owner(Scope.USER, "a\0b", "past"), Owner(Scope.USER, "\ud800", "past"), Owner(Scope.USER, "a", "")]
)
async def test_what_is_no_id_is_refused(vector_server: PostgresServer, vector_schema: str, owner: Owner) -> None:
    async with opened(vector_server, vector_schema) as store:
        with pytest.raises(InvalidId):
            await store.add(owner, EMBEDDER, [passage("x")], limit=5)
        with pytest.raises(InvalidId):
            await texts(store, owner)
        with pytest.raises(InvalidId):
            await store.forget(owner)
        with pytest.raises(InvalidId):
            await store.missing(ADA, "", ["x"])


async def test_any_text_comes_back_as_it_was(vector_server: PostgresServer, vector_schema: str) -> None:
    odd = ["a\0b", "\ud800 alone", "%s %(owner)s {x}", "\\x41", "'; DROP TABLE x; --", "\U0001f30a" * 400]
    async with opened(vector_server, vector_schema) as store:
        assert await store.add(ADA, EMBEDDER, [passage(text) for text in odd], limit=50) == len(odd)
        assert await texts(store, ADA) == odd
        assert await store.missing(ADA, EMBEDDER, odd) == []
        found = await store.nearest(ADA, EMBEDDER, VectorQuery("alone ' OR %s", unit([1.0, 0.0]), 1, 0.0, 0.4))
        assert found[0].text == odd[1]


# ---------------------------------------------------------------------------------------------------- failures


async def test_dimensions_that_do_not_fit_are_named(vector_server: PostgresServer, vector_schema: str) -> None:
    bad: list[list[float]] = [[], [0.0] * 16_001, [float("nan"), 0.0], [float("inf"), 0.0], [1e300, 0.0]]
    async with opened(vector_server, vector_schema) as store:
        await store.add(ADA, EMBEDDER, [passage("two", 1, 0)], limit=5)
        with pytest.raises(ConfigError, match="gave 3 dimensions, and what is stored of it has 2") as caught:
            await store.add(ADA, EMBEDDER, [passage("three", 1, 0, 0)], limit=5)
        assert caught.value.code == "vector-dimensions"
        with pytest.raises(ConfigError, match="gave 3 dimensions, and what is stored of it has 2"):
            await store.nearest(ADA, EMBEDDER, VectorQuery("", [1.0, 0.0, 0.0], 5, 0.0))
        with pytest.raises(ConfigError, match="different numbers of dimensions"):
            await store.add(ADA, EMBEDDER, [passage("a", 1, 0), passage("b", 1, 0, 0)], limit=5)
        for vector in bad:
            with pytest.raises(ConfigError):
                await store.add(ADA, EMBEDDER, [(Found("x"), vector)], limit=5)
            with pytest.raises(ConfigError):
                await store.nearest(ADA, EMBEDDER, VectorQuery("", vector, 5, 0.0))
        assert await texts(store, ADA) == ["two"]
        # Another embedder, or another owner, has nothing to do with that.
        assert await store.add(ADA, "test:three", [passage("three", 1, 0, 0)], limit=5) == 1
        assert await store.add(BOB, EMBEDDER, [passage("three", 1, 0, 0)], limit=5) == 1
        assert await store.forget(BOB) == 1
        assert await store.add(BOB, EMBEDDER, [passage("two", 1, 0)], limit=5) == 1


async def test_a_database_without_the_extension_is_told_of(vector_server: PostgresServer, vector_schema: str) -> None:
    with vector_server.database("bare", vectors=False) as name:
        address = vector_server.url(vector_schema, database=name)
        with pytest.raises(StoreUnavailable) as caught:
            await PgVectorStore(address).missing(ADA, EMBEDDER, ["x"])
        assert caught.value.reason == "extension"
        assert caught.value.hint == "an administrator of the database runs: CREATE EXTENSION vector"
        # The runs need no extension.
        async with PostgresBackend(address) as backend:
            assert await backend.head("r") is None
        with vector_server.without_pgvector(), pytest.raises(StoreUnavailable) as caught:
            async with PgVectorStore(address):
                pass
        assert caught.value.reason == "extension"
        package = f"postgresql-{vector_server.query('SHOW server_version')[0][0].split('.')[0]}-pgvector"
        assert package in str(caught.value.hint)
        assert str(caught.value.hint).endswith("CREATE EXTENSION vector")


async def test_the_extension_may_be_in_any_schema(vector_server: PostgresServer) -> None:
    with vector_server.database("elsewhere", vectors=False) as name:
        with vector_server.connect(name) as connection:
            connection.execute('CREATE SCHEMA "Odd one"')
            connection.execute('CREATE EXTENSION vector SCHEMA "Odd one"')
        async with PgVectorStore(vector_server.url("mine", database=name)) as store:
            await store.add(ADA, EMBEDDER, [passage("east")], limit=5)
            assert await texts(store, ADA) == ["east"]


async def test_a_server_that_does_not_answer_is_told_of() -> None:
    # It takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = PgVectorStore(f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/d?timeout=2")
        with pytest.raises(StoreUnavailable) as caught:
            await texts(store, ADA)
    assert caught.value.reason in ("unreachable", "timeout")
    assert "hunter2" not in str(caught.value) + repr(store)
    await store.close()
    with pytest.raises(StoreUnavailable) as caught:
        await store.forget(ADA)
    assert caught.value.reason == "closed"


async def test_a_table_of_a_later_release_is_refused(vector_server: PostgresServer, vector_schema: str) -> None:
    async with opened(vector_server, vector_schema):
        pass
    table = sql.Identifier(vector_schema, "vectors_version")
    vector_server.quick().execute(sql.SQL("UPDATE {} SET version = 99").format(table))
    with pytest.raises(StoreUnavailable, match="has version 99") as caught:
        await PgVectorStore(vector_server.url(vector_schema)).forget(ADA)
    assert caught.value.reason == "newer"


async def test_a_damaged_passage_is_refused(vector_server: PostgresServer, vector_schema: str) -> None:
    async with opened(vector_server, vector_schema) as store:
        await store.add(ADA, EMBEDDER, [passage("hers")], limit=5)
        table = sql.Identifier(vector_schema, "vectors")
        damage = sql.SQL("UPDATE {} SET body = replace(convert_from(body, 'UTF8'), 'hers', 'mine')::bytea")
        vector_server.quick().execute(damage.format(table))
        with pytest.raises(CorruptRecord, match="passage is damaged"):
            await texts(store, ADA)


async def test_lost_connections_are_made_anew(vector_server: PostgresServer, vector_schema: str) -> None:
    async with opened(vector_server, vector_schema, connections=1) as store:
        assert await store.add(ADA, EMBEDDER, [passage("east")], limit=5) == 1
        vector_server.end_sessions()
        assert await texts(store, ADA) == ["east"]
        vector_server.end_sessions()
        assert await store.add(ADA, EMBEDDER, [passage("also east")], limit=5) == 1
        vector_server.end_sessions()
        assert await store.forget(ADA) == 2
    vector_server.wait_until_nobody_is_connected()


# ---------------------------------------------------------------------------------------------------- several at once


async def test_several_who_come_first_make_the_table_once(vector_server: PostgresServer, vector_schema: str) -> None:
    stores = [PgVectorStore(vector_server.url(vector_schema), connections=1) for _ in range(6)]

    async def come(number: int, store: PgVectorStore) -> None:
        assert await store.add(Owner(Scope.USER, f"{number}", "past"), EMBEDDER, [passage("x")], limit=5) == 1

    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(come, number, store)
    rows = vector_server.quick().execute(
        sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(vector_schema, "vectors"))
    )
    assert rows.fetchone() == (6,)
    for store in stores:
        await store.close()


async def test_who_adds_at_once_keeps_within_the_limit(vector_server: PostgresServer, vector_schema: str) -> None:
    new: list[int] = []

    async with opened(vector_server, vector_schema) as one, opened(vector_server, vector_schema) as other:

        async def fill(store: PgVectorStore, name: str) -> None:
            for number in range(6):
                given = [passage(f"{name} {number}"), passage(f"shared {number}")]
                new.append(await store.add(ADA, EMBEDDER, given, limit=5))

        async with anyio.create_task_group() as group:
            for store, name in ((one, "one"), (one, "two"), (other, "three"), (other, "four")):
                group.start_soon(fill, store, name)
        assert len(await texts(one, ADA)) == 5
        assert sum(new) >= 24 + 6


# ---------------------------------------------------------------------------------------------------- in a run

TOPICS = ("tide sea moon water", "bread oven flour", "car road wheel")


@define
class TopicEmbedder:
    """Knows three topics by their words."""

    name: str = "test:topics"
    dimensions: int = len(TOPICS) + 1

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        return [[*(sum(word in text.lower() for word in topic.split()) for topic in TOPICS), 0.01] for text in texts]


def bundle(store: PgVectorStore | None, scope: Scope = Scope.USER) -> Any:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), scope=scope, vectors=store)

    return Mem()


@step
async def recalled(query: str, ctx: Context[Any]) -> list[tuple[str, str, str, float]]:
    found = await ctx.memory["past"].search(query, 20)
    return [(each.text, each.role, each.thread, each.score) for each in found]


@step
async def forget(query: str, ctx: Context[Any]) -> int:
    return int(await ctx.memory["past"].forget())


def shown(model: ScriptedModel) -> str:
    return "\n".join(item.text for item in model.requests[-1].items if isinstance(item, Message))


async def test_a_layer_recalls_from_it_what_it_would_without(vector_server: PostgresServer, vector_schema: str) -> None:
    said = ["Why is there a tide?", "How is bread made?", "A car needs a road.", "The moon, and the sea, and the tide."]
    results: list[Any] = []
    async with opened(vector_server, vector_schema) as store:
        for vectors in (store, None):
            model = ScriptedModel(*[f"Answer {number}." for number in range(len(said))], "yes")
            async with Harness(memory=bundle(vectors), model=model) as harness:
                for number, text in enumerate(said):
                    await harness.run(call_model(), text, thread_id=f"t{number}", user_id="ada")
                await harness.run(call_model(), "Tell me about the sea.", thread_id="new", user_id="ada")
                assert re.search(r"\[user, [\d-]{10}, t0\] Why is there a tide\?", shown(model))
                found = [
                    (await harness.run(recalled, query, user_id="ada", thread_id="new")).value
                    for query in ("sea and moon", "answer 2", "flour for bread", "tide")
                ]
                assert (await harness.run(recalled, "sea", user_id="bob", thread_id="t0")).value == []
                results.append(found)
        theirs, ours = results
        assert [[row[:3] for row in rows] for rows in theirs] == [[row[:3] for row in rows] for rows in ours]
        for rows, others in zip(theirs, ours, strict=True):
            assert [row[3] for row in rows] == pytest.approx([row[3] for row in others], abs=2e-4)
        assert await store.forget(Owner(Scope.USER, "ada", "past")) == 10


async def test_forgetting_is_of_the_layers_scope(vector_server: PostgresServer, vector_schema: str) -> None:
    async with (
        opened(vector_server, vector_schema) as store,
        Harness(memory=bundle(store, Scope.THREAD), model=ScriptedModel("yes", "yes")) as harness,
    ):
        for thread in ("one", "two"):
            await harness.run(call_model(), "The tide is high.", thread_id=thread)
        assert (await harness.run(forget, "", thread_id="one")).value == 2
        assert (await harness.run(recalled, "tide", thread_id="one")).value == []
        assert [row[0] for row in (await harness.run(recalled, "tide", thread_id="two")).value] == ["The tide is high."]


async def test_a_store_that_is_away_does_no_harm_to_a_run() -> None:
    store = PgVectorStore("postgresql://u:hunter2@127.0.0.1:1/d?timeout=2")
    model = ScriptedModel("one")
    async with (
        Harness(memory=bundle(store), model=model) as harness,
        harness.stream(call_model(), "The tide is high.", user_id="ada") as stream,
    ):
        failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
        assert (await stream.result()).value == "one"
    assert {event.layer for event in failed} == {"past"}
    assert all("the server could not be reached" in event.error and "hunter2" not in event.error for event in failed)
    await store.close()


async def test_rows_of_an_erased_user_are_in_the_files_until_the_tables_are_vacuumed_as_the_certificate_says(
    vector_server: PostgresServer, vector_schema: str
) -> None:
    mark = "brightlanternword"

    def holding() -> int:
        with psycopg.connect(vector_server.url(vector_schema).partition("?")[0], autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        files = [path for path in (vector_server.data / "base").rglob("*") if path.is_file()]
        return sum(mark.encode() in path.read_bytes() for path in files)

    async with opened(vector_server, vector_schema) as store, PostgresBackend(vector_server.url(vector_schema)) as kept:

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(embedder=Letters(), scope=Scope.USER, vectors=store)

        @step
        async def learn(text: str, ctx: Context[Mem]) -> int:
            return await ctx.memory.past.remember(text)

        async with Harness(memory=Mem(), checkpoints=kept, plugins=()) as harness:
            await harness.run(learn, f"The word is {mark}.", user_id="ada")
            await store.build_index(ADA, Letters().name)
            assert holding() > 1
            certificate = await harness.erase("ada")
            assert await store.scrub() == await kept.scrub()
    assert certificate.removed["passages"] == 1
    # Once, though the runs and the vectors are both there.
    [told] = [each for each in certificate.remaining if "VACUUM FULL" in each]
    assert f"(schema {vector_schema})" in told
    assert holding() > 0
    with psycopg.connect(vector_server.url(vector_schema).partition("?")[0], autocommit=True) as connection:
        named = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
        for (table,) in connection.execute(named, (vector_schema,)).fetchall():
            connection.execute(sql.SQL("VACUUM FULL {}").format(sql.Identifier(vector_schema, table)))
    assert holding() == 0
