"""Ids that look like patterns, scripts, queries, paths and names of other keys: data, which reach nothing else."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from noetic_py.checkpoints.checks import MAX_STATUS
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import InvalidId, RunNotFound
from tests.erasing import contents, harness_on, turn
from tests.properties.checks import examples
from tests.servers.journeys import journal, record

__all__ = ["ALL", "BROKEN", "INSIDE", "MIXED", "PLAIN", "VICTIM", "HostileIdsContract", "victim_in"]

VICTIM = "victim"

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
SQL = [
    "'",
    "''",
    "' OR '1'='1",
    "' OR 1=1 --",
    "victim' --",
    "victim'; DROP TABLE runs; --",
    "'; DELETE FROM transactions; --",
    "') UNION SELECT * FROM runs --",
    "' UNION ALL SELECT NULL, NULL, sql FROM sqlite_master --",
    "1; ATTACH DATABASE '/tmp/x' AS x; --",
    '" OR ""="',
    "`runs`",
    "[runs]",
    "?1",
    ":name",
    "@name",
    "$1",
    "$$victim$$",
    "victim%",
    "_ictim",
    "x' || (SELECT run_id FROM runs) || '",
    "\\' OR 1=1 --",
    "%27 OR 1=1",
    "/**/OR/**/1=1",
    "json_extract(card, '$.user')",
    "$.user') OR 1=1 --",
    "E'\\x27'",
    "pg_sleep(10)",
    "'; SELECT pg_sleep(10); --",
]
PATHS = [
    "..",
    ".",
    "/",
    "\\",
    "../victim",
    "./victim",
    "victim/",
    "victim/.",
    "/etc/passwd",
    "..\\victim",
    "C:\\victim",
    "\\\\host\\victim",
    "%2e%2e%2fvictim",
    "%2e%2e",
    "~",
    "CON",
    "nul.txt",
    "-rf",
    "--",
    "victim.",
    "file:victim?mode=memory",
    ":memory:",
]
PROTOCOL = [
    "$3",
    "*1",
    "+OK",
    "-ERR",
    ":1!",
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
TWINS = ["a:b", "a__3Ab", "a%3Ab", "YTpi", "a|b", "a\u2028b", "a\u00adb", "vi\u200bctim", "vict\u0131m", "\u0475ictim"]
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
PLAIN = [*GLOBS, *BRACES, *NAMES, *LUA, *SEARCH, *SQL, *PATHS, *PROTOCOL, *TWINS, *TEXTS]
BROKEN = [*map(chr, range(32)), "\x7f", "\x85", "\ud800", "a\ud800", "", "x" * 257]
MIXED = ["".join(pair) for pair in itertools.product(["*", "{noetic}:", "'..", "@a:{", "%"], [*LUA[:8], *SEARCH[:8]])]
INSIDE = [f"a{character}b" for character in ("\0", "\n", "\r", "\r\n", "\t", "\x1b")]
ALL = [*PLAIN, *MIXED, *BROKEN, *INSIDE]


@asynccontextmanager
async def victim_in(backend: CheckpointBackend) -> AsyncGenerator[None]:
    """A run and values that nobody may read or touch who does not name them."""
    await backend.append(
        VICTIM, expected_position=0, fence=0, records=[record("victim's")], summary=b"summary", status="completed"
    )
    await backend.put((VICTIM,), VICTIM, b"victim's")
    await backend.put((VICTIM, VICTIM), VICTIM, b"deeper")
    yield
    assert await journal(backend, VICTIM) == [b"victim's"]
    assert [each.run_id for each in await backend.list(status="completed")] == [VICTIM]
    assert [each.value for each in await backend.scan((VICTIM,))] == [b"victim's"]
    assert [each.value for each in await backend.scan((VICTIM, VICTIM))] == [b"deeper"]


class HostileIdsContract:
    """What holds of every backend; its fixture `backend` gives an empty one with the victim in it.

    Attributes:
        sample: How many ids the sample tries.
    """

    sample: int = len(ALL)

    def tried(self) -> list[str]:
        every = [*PLAIN, *MIXED]
        return every[:: max(1, len(every) // examples(self.sample, len(every)))]

    def test_there_are_enough(self) -> None:
        assert len(set(ALL)) == len(ALL) >= 200

    async def test_they_are_runs_like_others(self, backend: CheckpointBackend) -> None:
        taken: list[str] = []
        for each in self.tried():
            with pytest.raises(RunNotFound):
                await backend.read(each)
            assert await backend.entry(each) is None
            status = each[:MAX_STATUS]
            assert [run.run_id for run in await backend.list(status=status)] == []
            lease = await backend.acquire(each, ttl=600.0)
            await backend.append(
                each,
                expected_position=0,
                fence=lease.fence,
                records=[record(each)],
                summary=each.encode(),
                status=status,
            )
            await backend.release(lease)
            assert [(run.run_id, run.summary) for run in await backend.list(status=status)] == [(each, each.encode())]
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

    async def test_they_are_statuses_that_nobody_else_has(self, backend: CheckpointBackend) -> None:
        for each in self.tried():
            assert await backend.list(status=each[:MAX_STATUS]) == []
            assert await backend.prune(keep=0, statuses=[each[:MAX_STATUS]]) == 0

    async def test_they_are_keys_and_scopes_like_others(self, backend: CheckpointBackend) -> None:
        hostile = self.tried()
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

    async def test_the_user_with_such_an_id_is_erased_and_no_other(self, backend: CheckpointBackend) -> None:
        fit = [each for each in PLAIN if each.isprintable()]
        users = [VICTIM, *TWINS, *fit]
        users = [each for each in dict.fromkeys(users) if each.isprintable() and len(each) <= 256]
        # Each is erased while all others are there, and the whole store is looked at each time.
        users = users[:: max(1, len(users) // examples(sample=6, full=len(users)))]
        before: list[list[object]] = []
        async with harness_on(backend) as harness:
            for user in users:
                before.append([each for each in await contents(backend) if "waits" not in repr(each)])
                await harness.session(user, "trip", app=user).run(turn, "said")
                await harness.session("trip", user).send("waits")
                await harness.session(user, "trip").send("waits")
            assert (await harness.erase("trip")).removed["messages"] == len(users)
            for user in reversed(users):
                removed = (await harness.erase(user)).removed
                assert (removed["sessions"], removed["messages"]) == (1, 1), user
                left = [each for each in await contents(backend) if "waits" not in repr(each)]
                assert left == before.pop(), user

    async def test_what_is_no_id_is_refused(self, backend: CheckpointBackend) -> None:
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
