"""Ids that look like patterns, scripts, queries and names of other keys: they are data, and reach nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncGenerator

import pytest
from noetic_redis import RedisBackend
from redis_server import RedisServer

from noetic_py.checkpoints.checks import MAX_STATUS
from noetic_py.errors import InvalidId, RunNotFound
from tests.servers.journeys import journal, record

pytestmark = pytest.mark.anyio

VICTIM = "victim"
KEY = re.compile(rb"\{[\w-]+\}:[a-z]+(:[0-9a-f]+)?")

GLOBS = ["*", "?", "v*", "[a-z]*", "vi?tim", "[^x]ictim", "\\*", "**", "victim*", "*victim*"]
BRACES = ["{", "}", "{}", "{victim}", "{noetic}:store", "{noetic}:run:1", "a}{b", "{{noetic}}", "}:ids{", "{a}:{b}"]
NAMES = ["ids", "runs", "store", "run:1", "log:1", "mark:1", ":", "::", "1", "0", "-1", "salt", "ticks", "floor"]
LUA = [
    "'..redis.call('FLUSHALL')..'",
    '"] = 1 redis.call("DEL", KEYS[1]) --',
    "]] .. redis.call('KEYS','*') .. [[",
    "%s%s%n",
    "%d+",
    "noetic:corrupt",
    "noetic:gone",
    "ARGV[1]",
    "KEYS[1]",
    "return redis.call('GET','x')",
    "') end os.execute('id') --",
    "cjson.decode('{}')",
    "#!lua flags=no-writes",
]
SEARCH = [
    "@status:{completed}",
    "@id:victim | *",
    "*=>[KNN 10 @v $b]",
    "-@x",
    "~victim",
    "(@a:b)",
    "%victim%",
    "victim|other",
    '"victim"',
    "$.x[?(@.y)]",
    "@__key:*",
    "FT.SEARCH idx *",
    "1) return {} --",
]
PROTOCOL = [
    "$3",
    "*1",
    "+OK",
    "-ERR",
    ":1",
    "(victim",
    "[victim",
    "-inf",
    "+inf",
    "+",
    "-",
    "(",
    "[",
    "$-1",
    "0-0",
    "1-*",
]
TEXTS = [
    " victim",
    "victim ",
    "a b",
    "\u00a0",
    "\u202evictim",
    "e\u0301",
    "\u00e9",
    "\u6f22\u5b57",
    "\U0001f30a",
    "VICTIM",
]
PLAIN = [*GLOBS, *BRACES, *NAMES, *LUA, *SEARCH, *PROTOCOL, *TEXTS]
BROKEN = [*map(chr, range(32)), "\x7f", "\x85", "\ud800", "a\ud800", "", "x" * 257]
MIXED = ["".join(pair) for pair in itertools.product(["*", "{noetic}:", "'..", "@a:{", "%"], [*LUA[:8], *SEARCH[:8]])]
INSIDE = [f"a{character}b" for character in ("\0", "\n", "\r", "\r\n", "\t", "\x1b")]
ALL = [*PLAIN, *MIXED, *BROKEN, *INSIDE]


def test_there_are_enough() -> None:
    assert len(set(ALL)) == len(ALL) >= 200


@pytest.fixture
async def backend(redis_server: RedisServer, prefix: str) -> AsyncGenerator[RedisBackend]:
    async with RedisBackend(redis_server.url(prefix)) as made:
        await made.append(
            VICTIM, expected_position=0, fence=0, records=[record("victim's")], card=b"card", status="completed"
        )
        await made.put((VICTIM,), VICTIM, b"victim's")
        await made.put((VICTIM, VICTIM), VICTIM, b"deeper")
        yield made
        # Nobody has touched it.
        assert await journal(made, VICTIM) == [b"victim's"]
        assert [each.run_id for each in await made.list(status="completed")] == [VICTIM]
        assert [each.value for each in await made.scan((VICTIM,))] == [b"victim's"]
        assert [each.value for each in await made.scan((VICTIM, VICTIM))] == [b"deeper"]
        names = redis_server.keys(prefix)
        assert [name for name in names if KEY.fullmatch(name) is None] == []
        every: list[bytes] = redis_server.command("KEYS", "*")
        assert [name for name in every if not name.startswith(b"{test-") and name != b"clock"] == []


async def test_they_are_runs_like_others(backend: RedisBackend) -> None:
    taken: list[str] = []
    for each in [*PLAIN, *MIXED]:
        with pytest.raises(RunNotFound):
            await backend.read(each)
        assert await backend.entry(each) is None
        status = each[:MAX_STATUS]
        assert [run.run_id for run in await backend.list(status=status)] == []
        lease = await backend.acquire(each, ttl=600.0)
        await backend.append(
            each, expected_position=0, fence=lease.fence, records=[record(each)], card=each.encode(), status=status
        )
        await backend.release(lease)
        assert [(run.run_id, run.card) for run in await backend.list(status=status)] == [(each, each.encode())]
        await backend.fork(each, at=1, new_run_id=f"{each}!")
        assert await journal(backend, f"{each}!") == [each.encode()]
        taken.append(each)
    for each in taken:
        assert await journal(backend, each) == [each.encode()]
    assert (await backend.stats()).runs == 2 * len(taken) + 1
    for each in taken:
        await backend.delete(each)
        await backend.delete(f"{each}!")
    assert [run.run_id for run in await backend.list()] == [VICTIM]


async def test_they_are_statuses_that_nobody_else_has(backend: RedisBackend) -> None:
    for each in [*PLAIN, *MIXED]:
        assert await backend.list(status=each[:MAX_STATUS]) == []
        assert await backend.prune(keep=0, statuses=[each[:MAX_STATUS]]) == 0


async def test_they_are_keys_and_scopes_like_others(backend: RedisBackend) -> None:
    hostile = [*PLAIN, *MIXED]
    for each in hostile:
        for scope in ((each,), (VICTIM, each), (each, VICTIM)):
            assert await backend.scan(scope) == []
            await backend.put(scope, each, each.encode(), expected=0)
        await backend.put((VICTIM, "shared"), each, each.encode(), expected=0)
    for each in hostile:
        for scope in ((each,), (VICTIM, each), (each, VICTIM)):
            assert [(found.key, found.value) for found in await backend.scan(scope)] == [(each, each.encode())]
    page = await backend.scan((VICTIM, "shared"), limit=1000)
    assert [each.key for each in page] == sorted(hostile)
    for each in hostile:
        # Behind a key comes the next one, whatever a key looks like.
        behind = await backend.scan((VICTIM, "shared"), after=each, limit=1)
        assert [found.key for found in behind] == sorted(key for key in hostile if key > each)[:1]
    for each in hostile:
        assert await backend.remove((VICTIM, "shared"), each)
    assert await backend.scan((VICTIM, "shared")) == []


async def test_what_is_no_id_is_refused(backend: RedisBackend) -> None:
    for each in [*BROKEN, *INSIDE]:
        with pytest.raises(InvalidId):
            await backend.append(each, expected_position=0, fence=0, records=[])
        with pytest.raises(InvalidId):
            await backend.acquire(each, ttl=1.0)
        with pytest.raises(InvalidId):
            await backend.fork(VICTIM, at=0, new_run_id=each)
        for call in (backend.read, backend.head, backend.entry, backend.delete):
            with pytest.raises(InvalidId):
                await call(each)
        if len(each) < 257:
            with pytest.raises(InvalidId):
                await backend.put((each,), "k", b"")
            with pytest.raises(InvalidId):
                await backend.scan((VICTIM,), after=each)
