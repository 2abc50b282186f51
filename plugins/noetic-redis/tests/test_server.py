"""A real server that is misspelt, refuses, is full, restarts, promises little, or belongs to another program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from noetic_redis import RedisBackend
from noetic_redis.failures import from_server
from redis import exceptions
from redis_server import PASSWORD, RedisServer

from noetic_py.checkpoints import CheckpointBackend, Queued, RunEntry, Transaction
from noetic_py.errors import (
    CheckpointFailed,
    ConfigError,
    CorruptRecord,
    NoeticError,
    NoeticWarning,
    StoreUnavailable,
)
from tests.servers.journeys import THRESHOLD, Journey, journal, record
from tests.servers.ports import free_port
from tests.servers.together import SeveralAtOnce

pytestmark = pytest.mark.anyio

Figure = Callable[[str, object], None]

SECRET = "hunter2 & co"
SECRETS = (SECRET, "hunter2", PASSWORD, "correct", "battery")


@contextmanager
def another(**settings: str) -> Generator[RedisServer]:
    """A server with other settings, for a while."""
    made = RedisServer(**settings)
    try:
        made.start()
        yield made
    finally:
        made.close()


def tells_no_secret(error: BaseException | None) -> None:
    """Neither an error nor what it came from holds a secret, or a script."""
    while error is not None:
        told = "".join((str(error), repr(error), *map(repr, vars(error).values())))
        assert [secret for secret in (*SECRETS, "redis.call", "user_script") if secret in told] == []
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


async def refused(backend: RedisBackend, reason: str) -> StoreUnavailable:
    """The error of a server that cannot be used; it holds no secrets, neither itself nor what it came from."""
    with anyio.fail_after(30), pytest.raises(StoreUnavailable) as caught:
        await backend.head("r")
    await backend.close()
    assert caught.value.reason == reason
    assert isinstance(caught.value, CheckpointFailed)
    assert caught.value.hint
    tells_no_secret(caught.value)
    return caught.value


async def misset(backend: RedisBackend, code: str) -> ConfigError:
    with anyio.fail_after(30), pytest.raises(ConfigError) as caught:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    await backend.close()
    assert caught.value.code == code
    assert caught.value.hint
    tells_no_secret(caught.value)
    return caught.value


async def fails(backend: CheckpointBackend, reason: str, position: int = 1) -> StoreUnavailable:
    """The error of an append that the server does not take."""
    with anyio.fail_after(30), pytest.raises(StoreUnavailable) as caught:
        await backend.append("r", expected_position=position, fence=0, records=[record("y")], status="new")
    assert caught.value.reason == reason
    assert caught.value.hint
    tells_no_secret(caught.value)
    return caught.value


# -- servers that refuse a connection


async def test_a_wrong_password(redis_server: RedisServer) -> None:
    error = await refused(RedisBackend(redis_server.url(password=SECRET)), "auth")
    assert error.where == f"redis://127.0.0.1:{redis_server.port}/0 (prefix noetic)"


async def test_no_password(redis_server: RedisServer) -> None:
    await refused(RedisBackend(redis_server.url(password="")), "auth")


async def test_an_unknown_user(redis_server: RedisServer) -> None:
    await refused(RedisBackend(redis_server.url(user="nobody", password=SECRET)), "auth")


async def test_a_password_where_none_is_set() -> None:
    with another(requirepass="") as server:
        await refused(RedisBackend(server.url(user="ada", password=SECRET)), "auth")
        async with RedisBackend(server.url()) as backend:
            await backend.head("r")


async def test_a_missing_database(redis_server: RedisServer) -> None:
    await refused(RedisBackend(redis_server.url(database=99)), "database")


async def test_nobody_listens(tmp_path: Path) -> None:
    await refused(RedisBackend(f"redis://u:hunter2@127.0.0.1:{free_port()}/0"), "unreachable")
    await refused(RedisBackend(f"unix://u:hunter2@{tmp_path}/none?db=0"), "unreachable")


async def test_an_unknown_host() -> None:
    await refused(RedisBackend("redis://u:hunter2@no-such-host.invalid/0"), "unreachable")


async def test_no_encryption_where_it_is_wanted(redis_server: RedisServer) -> None:
    url = redis_server.url().replace("redis://", "rediss://")
    # It waits for the end of what it takes for a command.
    error = await refused(RedisBackend(url + "&timeout=2"), "unreachable")
    assert "TLS" in (error.hint or "")


async def test_a_user_without_rights(redis_server: RedisServer, prefix: str) -> None:
    redis_server.command("ACL", "SETUSER", "poor", "on", ">hunter2", "~other:*", "+@all")
    await refused(RedisBackend(redis_server.url(prefix, user="poor", password="hunter2")), "permission")
    redis_server.command("ACL", "DELUSER", "poor")


async def test_a_user_with_few_rights(redis_server: RedisServer, prefix: str) -> None:
    """What is asked of the server's settings may be forbidden; then it promises nothing."""
    rights = ["on", ">hunter2", f"~{{{prefix}}}:*", "-@all", "+evalsha", "+eval", "+script|load", "+@hash", "+@string"]
    redis_server.command("ACL", "SETUSER", "few", *rights, "+@sortedset", "+@stream", "+@keyspace", "+time", "+select")
    backend = RedisBackend(redis_server.url(prefix, user="few", password="hunter2"), blob_threshold=THRESHOLD)
    with pytest.warns(NoeticWarning, match="does not tell"):
        await Journey(backend).go()
    queued = Queued("jobs", "flow", await backend.clock())
    await backend.commit([Transaction("queued", 0, 0, [record("x")], queued=queued)])
    await backend.send("queued", "k", b"hello")
    (claim,) = await backend.claim(["jobs"], flows=["flow"], ttl=600.0)
    assert [each.owned for each in await backend.queues()] == [len(await backend.inbox("queued"))]
    ended = Transaction("queued", 1, claim.lease.fence, [], release=True, ended=True)
    await backend.commit([ended])
    assert (backend.persistence, backend.durability) == ("unknown", "none")
    await backend.close()
    url = redis_server.url(prefix, user="few", password="hunter2", more="&require=always")
    await misset(RedisBackend(url), "redis-durability")
    redis_server.command("ACL", "DELUSER", "few")


async def test_too_many_connections() -> None:
    with another(maxclients="2") as server:
        async with RedisBackend(server.url(), connections=1) as backend:
            await backend.head("r")
            await refused(RedisBackend(server.url(more="&timeout=1")), "connections")


# -- who is not what it should be


async def test_a_store_of_a_newer_release(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    redis_server.command("HSET", f"{{{prefix}}}:store", "version", "99")
    error = await refused(RedisBackend(redis_server.url(prefix)), "newer")
    assert "99" in error.message
    redis_server.command("HSET", f"{{{prefix}}}:store", "version", "1")
    async with RedisBackend(redis_server.url(prefix)) as backend:
        assert await journal(backend, "r") == [b"x"]


async def test_keys_of_somebody_else(redis_server: RedisServer, prefix: str) -> None:
    redis_server.command("SET", f"{{{prefix}}}:store", "mine")
    await refused(RedisBackend(redis_server.url(prefix)), "keys")
    assert redis_server.command("GET", f"{{{prefix}}}:store") == b"mine"


async def test_a_store_that_was_emptied(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        redis_server.command("UNLINK", *redis_server.keys(prefix))
        await fails(backend, "gone")
        async with RedisBackend(redis_server.url(prefix)) as other:
            await other.append("r", expected_position=0, fence=0, records=[record("other")])
            # Made anew, it is another store.
            await fails(backend, "gone")
            assert await journal(other, "r") == [b"other"]


async def test_half_a_store_is_not_made_anew(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    redis_server.command("UNLINK", f"{{{prefix}}}:store")
    with pytest.raises(CorruptRecord):
        await RedisBackend(redis_server.url(prefix)).head("r")


ODD: dict[str, tuple[str, ...]] = {
    "gone": ("UNLINK",),
    "another type": ("SET", "odd"),
    "without a field": ("HDEL", "bytes"),
    "another position": ("HSET", "pos", "-1"),
    "another name": ("HSET", "id", "odd"),
    "no time": ("HSET", "until", "soon"),
    "another summary": ("HSET", "card", "odd"),
}


@pytest.mark.parametrize("words", ODD.values(), ids=ODD)
async def test_a_damaged_run_is_in_the_way_of_no_other(
    redis_server: RedisServer, prefix: str, words: tuple[str, ...]
) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for run_id in ("r1", "r2", "r3"):
            await backend.append(
                run_id, expected_position=0, fence=0, records=[record("x")], summary=b"c", status="done"
            )
        number = int(redis_server.command("HGET", f"{{{prefix}}}:ids", "r2"))
        redis_server.command(words[0], f"{{{prefix}}}:run:{number}", *words[1:])
        for status in (None, "done"):
            listed = await backend.list(status=status)
            assert {each.run_id for each in listed if each.problem is None} == {"r1", "r3"}
            assert [each.cursor for each in listed if each.problem] == [number]
        assert (await backend.stats()).runs == 3
        assert await backend.prune(keep=0) >= 2
        assert [each.run_id for each in await backend.list() if each.problem is None] == []


INDEX: dict[str, tuple[str | bytes, ...]] = {
    "no number": ("5", "x"),
    "no text": ("5", b"\xff\xfe"),
    "nothing": ("5", ""),
    "a fraction": ("0.5", "0.5"),
    "a negative number": ("-5", "-5"),
    "the largest": ("+inf", "9" * 400),
    "another place": ("1e17", "{r2}"),
    "before all": ("-inf", "{r2}"),
    "behind all": ("+inf", "{r2}"),
}


@pytest.mark.parametrize("words", INDEX.values(), ids=INDEX)
@pytest.mark.parametrize("status", [None, "done"])
async def test_a_damaged_index_is_in_the_way_of_no_run(
    redis_server: RedisServer, prefix: str, words: tuple[str | bytes, ...], status: str | None
) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for run_id in ("r1", "r2", "r3", "r4"):
            await backend.append(run_id, expected_position=0, fence=0, records=[record("x")], status="done")
        number = redis_server.command("HGET", f"{{{prefix}}}:ids", "r2")
        (index,) = (
            [key for key in redis_server.keys(prefix) if b":status:" in key] if status else [f"{{{prefix}}}:runs"]
        )
        redis_server.command("ZADD", index, *(number if word == "{r2}" else word for word in words))
        found = await pages(backend, status)
        assert {each.run_id for each in found if each.problem is None} >= {"r1", "r3", "r4"}
        assert len([each for each in found if each.problem]) == 1
        assert await backend.list(status=status, limit=50)
        assert await backend.prune(keep=2) >= 1


async def pages(backend: RedisBackend, status: str | None) -> list[RunEntry]:
    """All runs, one on each page."""
    found: list[RunEntry] = []
    page = await backend.list(limit=1, status=status)
    while page:
        found += page
        assert len(found) < 20
        page = await backend.list(after=page[-1].cursor, limit=1, status=status)
    return found


async def test_a_run_in_the_index_of_another_status_hides_no_other(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for run_id, status in (("r1", "done"), ("r2", "failed")):
            await backend.append(run_id, expected_position=0, fence=0, records=[record("x")], status=status)
        done, failed = (
            f"{{{prefix}}}:status:{sha256(b'done').hexdigest()}",
            redis_server.command("HGET", f"{{{prefix}}}:ids", "r2"),
        )
        redis_server.command("ZADD", done, int(failed), failed)
        problems = {each.run_id: each.problem for each in await backend.list(status="done")}
        assert problems["r1"] is None
        assert problems["r2"] is not None
        assert [each.problem for each in await backend.list()] == [None, None]


async def test_a_run_that_is_not_found_by_its_id_says_so_in_a_list(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for run_id in ("r1", "r2"):
            await backend.append(run_id, expected_position=0, fence=0, records=[record("x")])
        redis_server.command("HDEL", f"{{{prefix}}}:ids", "r1")
        assert [each.problem is None for each in await backend.list()] == [True, False]


@pytest.mark.parametrize("words", [("LPUSH", "x"), ("XADD", "9-0", "x", "y"), ("XADD", "9-0", *"c1k2s3d4b5")])
async def test_a_journal_of_another_kind_is_damage_of_its_run(
    redis_server: RedisServer, prefix: str, words: tuple[str, ...]
) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for run_id in ("r1", "r2"):
            await backend.append(run_id, expected_position=0, fence=0, records=[record("x")] * 10)
        number = redis_server.command("HGET", f"{{{prefix}}}:ids", "r1").decode()
        redis_server.command("UNLINK", f"{{{prefix}}}:log:{number}")
        redis_server.command(words[0], f"{{{prefix}}}:log:{number}", *words[1:])
        with pytest.raises(CorruptRecord):
            await backend.read("r1")
        assert await journal(backend, "r2") == [b"x"] * 10


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_throws_keys_away(redis_server: RedisServer, prefix: str, policy: str) -> None:
    with redis_server.configured(maxmemory_policy=policy):
        error = await misset(RedisBackend(redis_server.url(prefix)), "redis-eviction")
        assert policy in str(error)
        assert "noeviction" in (error.hint or "")
    assert redis_server.keys(prefix) == []
    with redis_server.configured(maxmemory_policy="volatile-lru"):
        async with RedisBackend(redis_server.url(prefix), blob_threshold=THRESHOLD) as backend:
            await Journey(backend).go()
            # None of the keys has a time to live, so this one takes none of them.
            assert {redis_server.command("TTL", key) for key in redis_server.keys(prefix)} == {-1}


@pytest.mark.parametrize(
    ("settings", "persistence", "durability"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "always", "power"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "everysec", "process"),
        ({"appendonly": "yes", "appendfsync": "no"}, "no", "process"),
        ({"appendonly": "no", "save": "60 1"}, "snapshots", "none"),
        ({"appendonly": "no", "save": ""}, "none", "none"),
    ],
)
async def test_durability_is_what_the_server_promises(
    settings: dict[str, str], persistence: str, durability: str, recwarn: pytest.WarningsRecorder
) -> None:
    with another(**settings) as server:
        backend = RedisBackend(server.url(more="&require=any"))
        assert (backend.durability, backend.persistence) == ("none", "unknown")
        async with backend:
            assert (backend.persistence, backend.durability) == (persistence, durability)
            described = await backend.describe()
            assert (described["persistence"], described["durability"]) == (persistence, durability)
        assert [each.message for each in recwarn.list] == []
        if persistence == "always":
            async with RedisBackend(server.url(), require="always") as backend:
                await backend.head("r")
            return
        await misset(RedisBackend(server.url(), require="always"), "redis-durability")
        if persistence != "everysec":
            await misset(RedisBackend(server.url(), require="everysec"), "redis-durability")
        assert server.keys("noetic") in ([], [b"{noetic}:store"])
        backend = RedisBackend(server.url())
        with pytest.warns(NoeticWarning, match="appendfsync always") as warned:
            await _write_two(backend)
        assert len(warned) == 1


async def _write_two(backend: RedisBackend) -> None:
    async with backend:
        for position in range(2):
            await backend.append("r", expected_position=position, fence=0, records=[record("x")])


async def test_where_warnings_are_errors_nothing_was_written(redis_server: RedisServer, prefix: str) -> None:
    with redis_server.configured(appendfsync="everysec"):
        backend = RedisBackend(redis_server.url(prefix))
        with pytest.raises(NoeticWarning):
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        assert await backend.head("r") is None
        await backend.close()


# -- a server in trouble


async def test_a_full_memory(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix), blob_threshold=THRESHOLD) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")], status="running")
        lease = await backend.acquire("other", ttl=600.0)
        before = redis_server.stored(prefix)
        with redis_server.configured(maxmemory="1"):
            error = await fails(backend, "memory")
            assert "maxmemory" in (error.hint or "")
            writes: list[Callable[[], Any]] = [
                partial(backend.append, "new", expected_position=0, fence=0, records=[record(bytes(5000))]),
                partial(backend.acquire, "r", ttl=5.0),
                partial(backend.fork, "r", at=1, new_run_id="f"),
                partial(backend.put, ("s",), "k", b"v"),
            ]
            for write in writes:
                with pytest.raises(StoreUnavailable) as caught:
                    await write()
                assert caught.value.reason == "memory"
            assert redis_server.stored(prefix) == before
            # What gives memory back is done, and reading goes on.
            assert await journal(backend, "r") == [b"x"]
            await backend.release(lease)
            await backend.delete("other")
            assert await backend.prune(keep=0) == 1
        stats = await backend.stats()
        assert (stats.runs, stats.records, stats.bytes) == (0, 0, 0)
        assert await backend.append("r", expected_position=0, fence=0, records=[record("y")]) == 1


async def test_a_replica(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    primary = f"127.0.0.1 {redis_server.port}"
    with (
        # By itself it waits for seconds, in case that others come.
        redis_server.configured(repl_diskless_sync_delay="0"),
        another(replicaof=primary, masterauth=PASSWORD) as replica,
    ):
        while b"master_link_status:up" not in replica.command("INFO", "replication"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        async with RedisBackend(replica.url(prefix)) as backend:
            assert await journal(backend, "r") == [b"x"]
            await fails(backend, "readonly")
            assert await journal(backend, "r") == [b"x"]
        await refused(RedisBackend(replica.url("elsewhere")), "readonly")


async def test_scripts_that_the_server_has_forgotten(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix), connections=1) as backend:
        for position in range(5):
            redis_server.command("SCRIPT", "FLUSH")
            await backend.append("r", expected_position=position, fence=0, records=[record(str(position))])
        redis_server.command("SCRIPT", "FLUSH")
        done = await backend.commit([Transaction(f"r{n}", 0, 0, [record("x")]) for n in range(20)])
        assert [each.position for each in done] == [1] * 20
        assert await journal(backend, "r") == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_server_that_is_still_reading_its_data() -> None:
    # Each command of its log takes it so many microseconds, and it looks up after some thousand.
    with another(key_load_delay="300") as server:
        for number in range(5000):
            server.command("SET", "number", number)
        async with RedisBackend(server.url(), connections=1) as backend:
            for position in range(4):
                await backend.append("r", expected_position=position, fence=0, records=[record("x")])
            server.kill()
            server.begin()
            with anyio.fail_after(30):
                while not await anyio.to_thread.run_sync(server.is_loading):
                    pass
                assert await backend.append("r", expected_position=4, fence=0, records=[record("y")]) == 5
            assert len(await journal(backend, "r")) == 5


async def test_too_few_replicas(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        with redis_server.configured(min_replicas_to_write="1"):
            await fails(backend, "replicas")
            assert await journal(backend, "r") == [b"x"]
        assert await backend.append("r", expected_position=1, fence=0, records=[record("y")]) == 2


async def test_a_server_that_is_busy_with_somebodys_script(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix, more="&timeout=20"), connections=1) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])

        def loop() -> None:
            with pytest.raises(exceptions.ResponseError):
                redis_server.alone("EVAL", "while true do end", 0)

        with redis_server.configured(busy_reply_threshold="10"):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, loop)
                while not await anyio.to_thread.run_sync(redis_server.is_busy):
                    pass
                group.start_soon(partial(backend.append, "r", expected_position=1, fence=0, records=[record("y")]))
                short = RedisBackend(redis_server.url(prefix, more="&timeout=1"))
                await refused(short, "busy")
                redis_server.command("SCRIPT", "KILL")
        assert await journal(backend, "r") == [b"x", b"y"]


@pytest.mark.parametrize(
    "error",
    [
        exceptions.MovedError("3999 127.0.0.1:6381"),
        exceptions.AskError("3999 127.0.0.1:6381"),
        exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"),
    ],
)
def test_another_node_of_a_cluster(error: Exception) -> None:
    found = from_server(error, "redis://host")
    assert isinstance(found, StoreUnavailable)
    assert found.reason == "cluster"
    assert "6381" not in str(found)


async def _until_refused(backend: RedisBackend) -> StoreUnavailable:
    while True:
        try:
            await backend.append("big", expected_position=0, fence=0, records=[record(bytes(9000))])
            await backend.delete("big")
        except StoreUnavailable as error:
            return error


async def test_a_disk_that_is_full() -> None:
    """A server that syncs each second goes on without its disk, and takes no writes until there is room again."""
    with another(appendfsync="everysec") as server:
        async with RedisBackend(server.url(more="&require=any")) as backend:
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
            server.limit_files(1)
            with anyio.fail_after(30):
                error = await _until_refused(backend)
            assert error.reason == "full"
            tells_no_secret(error)
            assert await journal(backend, "r") == [b"x"]
            server.limit_files(None)
            with anyio.fail_after(30):
                while await backend.head("again") is None:
                    with suppress(StoreUnavailable):
                        await backend.append("again", expected_position=0, fence=0, records=[record("y")])


async def test_a_disk_that_is_full_when_every_write_is_synced() -> None:
    """Such a server ends when it cannot keep what it is about to acknowledge."""
    with another() as server:
        async with RedisBackend(server.url(more="&timeout=2")) as backend:
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
            server.limit_files(1)
            with anyio.fail_after(30), pytest.raises(StoreUnavailable) as caught:
                await backend.append("r", expected_position=1, fence=0, records=[record("y")])
            assert caught.value.reason == "unknown"
            server.ended()
            server.start()
            assert await journal(backend, "r") == [b"x"]
            assert await backend.append("r", expected_position=1, fence=0, records=[record("z")]) == 2


async def test_a_server_that_stops_for_a_while(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix, more="&timeout=4"), connections=1) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        redis_server.signal(signal.SIGSTOP)
        try:
            with anyio.fail_after(30), pytest.raises(StoreUnavailable) as caught:
                await backend.append("r", expected_position=1, fence=0, records=[record("y")])
        finally:
            redis_server.signal(signal.SIGCONT)
        assert caught.value.reason == "unknown"
        # It does now what it was sent, or never does it.
        found = await journal(backend, "r")
        assert found in ([b"x"], [b"x", b"y"])
        assert await backend.append("r", expected_position=len(found), fence=0, records=[record("z")]) == len(found) + 1
        assert await journal(backend, "r") == [*found, b"z"]


# -- addresses and settings


@pytest.mark.parametrize(
    "address",
    [
        "redis:",
        "http://host/0",
        f"redis://u:{SECRET}@host:port/0",
        "redis://host:99999999/0",
        f"redis://:{SECRET}@host/0#fragment",
        f"redis://:{SECRET}@host/0?no_such_parameter=1",
        f"redis://:{SECRET}@host/0?decode_responses=yes",
        f"redis://:{SECRET}@host/0?protocol=3",
        "",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisBackend(address)
    assert caught.value.code == "redis-address"
    tells_no_secret(caught.value)


@pytest.mark.parametrize(
    "setting",
    ["prefix=", "prefix=a b", "prefix={a}", "prefix=a*", "connections=0", "connections=x", "timeout=0", "require=most"],
)
def test_wrong_settings(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisBackend(f"redis://:hunter2@host/0?{setting}")
    assert caught.value.code == "redis-setting"
    tells_no_secret(caught.value)


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigError):
        RedisBackend("redis://host/0", blob_threshold=-1)
    with pytest.raises(ConfigError):
        RedisBackend("redis://host/0", max_bytes=0)


async def test_it_describes_itself(redis_server: RedisServer, prefix: str) -> None:
    backend = RedisBackend(redis_server.url(prefix), connections=2)
    assert (backend.durability, backend.shared) == ("none", True)
    async with backend:
        described = await backend.describe()
    assert described["backend"] == "redis"
    assert described["prefix"] == prefix
    assert int(described["redis"].partition(".")[0]) >= 7
    assert described["maxmemory-policy"] == "noeviction"
    tells_no_secret(ValueError(str(described), repr(backend)))


async def test_a_socket_in_a_folder(redis_server: RedisServer, prefix: str) -> None:
    secret = PASSWORD.replace(" ", "%20")
    address = f"unix://:{secret}@{redis_server.socket}?db=0&prefix={prefix}"
    async with RedisBackend(address, blob_threshold=THRESHOLD) as backend:
        await Journey(backend).go()
    assert repr(backend) == f"RedisBackend('unix://{redis_server.socket}?db=0 (prefix {prefix})')"


@pytest.mark.needs("openssl", "redis-server")
async def test_an_encrypted_connection(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate"), str(tmp_path / "key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    await anyio.run_process(command)
    port = free_port()
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
    with another(tls_port=str(port), tls_auth_clients="no", **files) as server:
        url = server.url(port=port).replace("redis://", "rediss://")
        async with RedisBackend(f"{url}&ssl_ca_certs={certificate}", blob_threshold=THRESHOLD) as backend:
            await Journey(backend).go()
        await refused(RedisBackend(url), "tls")


async def test_a_cluster_of_one() -> None:
    """All keys of a prefix have one slot, so every script may use them all."""
    with another(cluster_enabled="yes") as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        async with RedisBackend(server.url(), blob_threshold=THRESHOLD) as backend:
            await Journey(backend).go()
        slots = {server.command("CLUSTER", "KEYSLOT", key) for key in server.keys("noetic")}
        assert len(slots) == 1
        # Another node has the slot now.
        server.command("CLUSTER", "DELSLOTS", *slots)
        await refused(RedisBackend(server.url(more="&timeout=1")), "starting")


# -- several at once


async def test_first_starts_at_once(redis_server: RedisServer) -> None:
    for _ in range(5):
        with redis_server.prefix() as prefix:
            backends = [RedisBackend(redis_server.url(prefix)) for _ in range(8)]

            async def start(index: int, backends: list[RedisBackend] = backends) -> None:
                await backends[index].append(f"r{index}", expected_position=0, fence=0, records=[record(str(index))])

            async with anyio.create_task_group() as group:
                for index in range(8):
                    group.start_soon(start, index)
            assert (await backends[0].stats()).runs == 8
            for backend in backends:
                await backend.close()


async def test_prefixes_are_apart(redis_server: RedisServer) -> None:
    with redis_server.prefix() as one:
        names = (one, f"{one}0", f"{one}:run", f"{one}:ids")
        backends = [RedisBackend(redis_server.url(), prefix=name) for name in names]
        for name, backend in zip(names, backends, strict=True):
            await backend.append("r", expected_position=0, fence=0, records=[record(name)])
            await backend.put(("s",), "k", name.encode())
        for name, backend in zip(names, backends, strict=True):
            assert await journal(backend, "r") == [name.encode()]
            found = await backend.get(("s",), "k")
            assert found is not None
            assert found.value == name.encode()
            assert (await backend.stats()).runs == 1
            await backend.close()
        for name in names[1:]:
            redis_server.command("UNLINK", *redis_server.keys(name))


async def test_one_after_another_needs_one_connection(redis_server: RedisServer, prefix: str) -> None:
    redis_server.wait_until_nobody_is_connected()
    async with RedisBackend(redis_server.url(prefix), connections=8) as backend:
        for position in range(30):
            await backend.append("r", expected_position=position, fence=0, records=[record("x")])
        assert len(redis_server.sessions()) == 1
        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(backend.head, "r")
        assert 1 < len(redis_server.sessions()) <= 8
    redis_server.wait_until_nobody_is_connected()
    left = [key for key in redis_server.keys(prefix) if b":mark:" in key or key.endswith(b":used")]
    assert left == []


async def test_results_of_sessions_that_ended_long_ago_go_away(redis_server: RedisServer, prefix: str) -> None:
    for name in ("old", "new"):
        redis_server.command("HSET", f"{{{prefix}}}:mark:{name}", "floor", 1)
        redis_server.command("ZADD", f"{{{prefix}}}:used", 5 if name == "old" else redis_server.now(), name)
    redis_server.command("HSET", f"{{{prefix}}}:store", "version", 1, "salt", "s")
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    left = [key for key in redis_server.keys(prefix) if b":mark:" in key]
    assert left == [f"{{{prefix}}}:mark:new".encode()]
    assert redis_server.command("ZRANGE", f"{{{prefix}}}:used", 0, -1) == [b"new"]


async def test_the_bytes_are_counted(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix), blob_threshold=100) as backend:
        large = bytes(5000)
        await backend.append(
            "r", expected_position=0, fence=0, records=[record(large), record("x")], summary=b"summary"
        )
        first = (await backend.stats()).bytes
        assert 5000 < first < 5200
        await backend.append("r", expected_position=2, fence=0, records=[record(large)], summary=b"c")
        second = (await backend.stats()).bytes
        # The payload is there already.
        assert first < second < first + 100
        await backend.fork("r", at=3, new_run_id="f")
        assert (await backend.stats()).bytes == second
        await backend.put(("s",), "k", bytes(300))
        await backend.put(("s",), "k", bytes(200))
        assert (await backend.stats()).bytes == second + 200
        await backend.delete("r")
        await backend.remove(("s",), "k")
        assert second - 10 < (await backend.stats()).bytes < second
        await backend.delete("f")
        stats = await backend.stats()
        assert (stats.runs, stats.records, stats.values, stats.blobs, stats.bytes) == (0, 0, 0, 0, 0)
        left = {key.partition(b"}:")[2] for key in redis_server.keys(prefix)}
        assert {key for key in left if not key.startswith(b"mark:")} == {b"store", b"used"}


async def test_a_page_of_large_records_is_short(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        large = bytes(6 * 1024 * 1024)
        for position in range(6):
            records = [record(large + bytes([position]))]
            await backend.append("r", expected_position=position, fence=0, records=records)
        assert len(await backend.read("r")) == 3
        assert await journal(backend, "r") == [large + bytes([position]) for position in range(6)]


async def test_long_lists_and_scans(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        given = [Transaction(f"r{n}", 0, 0, [record("x")], status="even" if n % 2 else "odd") for n in range(450)]
        assert [each.position for each in await backend.commit(given)] == [1] * 450
        async with anyio.create_task_group() as group:
            for n in range(450):
                group.start_soon(backend.put, ("s",), f"k{n:04}", b"v" * n)
        assert len(await backend.list(limit=10_000)) == 450
        assert len(await backend.list(limit=150, status="even")) == 150
        assert [each.key for each in await backend.scan(("s",), limit=10_000)] == [f"k{n:04}" for n in range(450)]
        assert await backend.prune(keep=10) == 440


async def test_a_server_that_forgets_everything() -> None:
    """Without a log, a restart loses all; that is found, and nothing is made up."""
    with another(appendonly="no") as server:
        async with RedisBackend(server.url(more="&require=any")) as backend:
            lease = await backend.acquire("r", ttl=600.0)
            await backend.append("r", expected_position=0, fence=lease.fence, records=[record("x")])
            server.restart()
            for _ in range(2):
                with pytest.raises(NoeticError):
                    await backend.append("r", expected_position=1, fence=lease.fence, records=[record("y")])


def test_the_tests_end_their_servers(redis_server: RedisServer) -> None:
    with another() as server:
        pid = server.pid
        assert Path(f"/proc/{pid}").exists() or os.name != "posix"
    assert not Path(f"/proc/{pid}").exists()


class TestSeveralAtOnce(SeveralAtOnce):
    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> None:
        self.server = self.redis = redis_server

    def made(self, url: str, **settings: Any) -> RedisBackend:
        return RedisBackend(url, **settings)

    def left(self, space: str) -> object:
        kinds = {key.partition(b"}:")[2].partition(b":")[0] for key in self.redis.keys(space)}
        return kinds - {b"store", b"used", b"mark"}
