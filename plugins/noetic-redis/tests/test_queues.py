"""Queues and inboxes on a real server: its clock, its restarts, and workers that claim at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import anyio
import pytest
from noetic_redis import RedisBackend
from noetic_redis.link import VERSION
from redis_server import RedisServer

from noetic_py.checkpoints import BudgetChange, CheckpointBackend, Claim, Queued, QueueStats, Signal, Transaction
from noetic_py.errors import CorruptRecord, StoreUnavailable
from tests.servers.journeys import journal, record

pytestmark = pytest.mark.anyio

NOW = Queued("jobs", "flow")
ASLEEP = Queued("jobs", "flow", None)
KEY = re.compile(rb"\{[\w-]+\}:[a-z]+(:[0-9a-f]+)?")


async def submit(backend: CheckpointBackend, *run_ids: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record("x")], queued=queued) for run_id in run_ids])


async def claim(backend: CheckpointBackend, limit: int = 1, *, ttl: float = 600.0) -> Sequence[Claim]:
    return await backend.claim(["jobs"], flows=["flow"], ttl=ttl, limit=limit)


async def claimed(backend: CheckpointBackend, limit: int = 1) -> list[str]:
    return [each.lease.run_id for each in await claim(backend, limit)]


def calls(server: RedisServer) -> int:
    """How many commands the server has run since its statistics were reset, those of scripts among them."""
    stats: bytes = server.command("INFO", "commandstats")
    return sum(int(found) for found in re.findall(rb"calls=(\d+)", stats))


async def test_a_run_is_claimed_when_its_time_has_come_by_the_servers_clock(
    redis_server: RedisServer, prefix: str
) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        at = await backend.clock() + 0.2
        await submit(backend, "r", queued=Queued("jobs", "flow", at))
        found: Sequence[Claim] = []
        with anyio.fail_after(20):
            while not found:
                found = await claim(backend)
        (only,) = found
        assert only.now >= at
        assert only.queued.at is not None
        assert 0 <= only.queued.at - at < 1e-5
        assert only.now <= redis_server.now() / 1e6


async def test_many_wake_at_once(redis_server: RedisServer, prefix: str) -> None:
    runs = [f"r{n:04}" for n in range(1300)]
    async with RedisBackend(redis_server.url(prefix)) as backend:
        at = await backend.clock() + 1.0
        await submit(backend, *runs, queued=Queued("jobs", "flow", at))
        late = await backend.clock() + 1.0
        await submit(backend, "urgent", queued=Queued("jobs", "flow", late, 1))
        with anyio.fail_after(30):
            while (left := late - await backend.clock()) > 0:  # noqa: ASYNC110 # another clock
                await anyio.sleep(left)
        found: list[str] = []
        while more := await claimed(backend, 10_000):
            found += more
        # The others have waited for as long as each other, so the first that came is the first.
        assert found == ["urgent", *runs]
        assert list(await backend.queues()) == [QueueStats("jobs", "flow", 0, 1301, 0, None)]


async def test_what_sleeps_or_has_an_owner_costs_a_claim_nothing(redis_server: RedisServer, prefix: str) -> None:
    costs: list[int] = []
    async with RedisBackend(redis_server.url(prefix), connections=1) as backend:
        for many in (10, 1000):
            at = await backend.clock() + 600
            sleeping = [f"{many}-sleeps-{n}" for n in range(many)]
            await submit(backend, *sleeping, queued=Queued("jobs", "flow", at))
            await submit(backend, *(f"{many}-owned-{n}" for n in range(many)))
            await submit(backend, *(f"{many}-elsewhere-{n}" for n in range(many)), queued=Queued("jobs", "other"))
            owned = 0
            while taken := len(await claim(backend, many)):
                owned += taken
            assert owned == many
            await submit(backend, f"{many}-ready")
            redis_server.command("CONFIG", "RESETSTAT")
            assert await claimed(backend) == [f"{many}-ready"]
            costs.append(calls(redis_server))
    assert costs[0] == costs[1]


async def test_a_queue_survives_its_server() -> None:
    server = RedisServer()
    try:
        server.start()
        queued = Queued("jobs", "flow", 5.5, 7)
        async with RedisBackend(server.url()) as backend:
            await submit(backend, "r", queued=queued)
            number = await backend.send("r", "k", b"hello")
            await submit(backend, "owned")
            await submit(backend, "asleep", queued=ASLEEP)
        async with RedisBackend(server.url()) as backend:
            assert await claimed(backend, 2) == ["r", "owned"]
            server.restart()
            assert await claimed(backend) == []
            assert list(await backend.queues()) == [QueueStats("jobs", "flow", 0, 2, 1, None)]
            assert list(await backend.inbox("r")) == [Signal("r", "k", b"hello", number)]
        async with RedisBackend(server.url()) as backend:
            # A backend that closes gives back what it has claimed.
            (found, _) = await claim(backend, 2)
            assert (found.lease.run_id, found.queued, found.lives) == ("r", queued, 1)
            assert await backend.send("asleep", "k", b"x") > number
            assert await claimed(backend) == ["asleep"]
    finally:
        server.close()


async def test_the_run_that_waits_longest_may_have_any_priority(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        for number, (at, priority) in enumerate([(9.0, 1_000_000), (5.0, 3), (7.0, 3), (6.0, -1_000_000)]):
            await submit(backend, f"r{number}", queued=Queued("jobs", "flow", at, priority))
        assert list(await backend.queues()) == [QueueStats("jobs", "flow", 4, 0, 0, 5.0)]
        assert await claimed(backend, 4) == ["r0", "r1", "r2", "r3"]


async def test_an_owner_that_has_died_is_noticed_when_its_lease_is_up(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r", queued=Queued("jobs", "flow", 5.5))
        await submit(backend, "s", queued=ASLEEP)
        await claim(backend, ttl=0.05)
        await backend.acquire("s", ttl=0.05)
        redis_server.wait_for_leases(prefix)
        assert list(await backend.queues()) == [QueueStats("jobs", "flow", 1, 0, 1, 5.5)]
        (found,) = await claim(backend, 5)
        assert (found.lease.run_id, found.lives) == ("r", 2)
        assert list(await backend.queues()) == [QueueStats("jobs", "flow", 0, 1, 1, None)]


async def test_a_lease_that_is_renewed_is_claimed_by_none(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r")
        (found,) = await claim(backend, ttl=0.05)
        redis_server.wait_for_leases(prefix)
        # Its owner was late, and is still the last one.
        await backend.renew(found.lease, ttl=600.0)
        assert await claimed(backend) == []
        await backend.renew(found.lease, ttl=0.05)
        redis_server.wait_for_leases(prefix)
        assert await claimed(backend) == ["r"]


async def test_workers_on_two_backends_claim_no_run_twice(redis_server: RedisServer, prefix: str) -> None:
    url = redis_server.url(prefix)
    async with RedisBackend(url) as one, RedisBackend(url) as other:
        await submit(one, *(f"r{n}" for n in range(200)))
        found: list[str] = []

        async def work(backend: RedisBackend, limit: int) -> None:
            while more := await claimed(backend, limit):
                found.extend(more)

        async with anyio.create_task_group() as group:
            for backend in (one, other):
                for limit in (1, 2, 3, 7):
                    group.start_soon(work, backend, limit)
        assert sorted(found) == sorted(f"r{n}" for n in range(200))


async def test_no_signal_is_lost_while_its_run_falls_asleep(redis_server: RedisServer, prefix: str) -> None:
    url = redis_server.url(prefix)
    async with RedisBackend(url) as owner, RedisBackend(url) as sender:
        await submit(owner, "r")
        for number in range(100):
            (found,) = await claim(owner)
            read: list[Signal] = []

            async def suspend(found: Claim = found, read: list[Signal] = read, turns: int = number % 4) -> None:
                for _ in range(turns):
                    await owner.head("r")
                read.extend(await owner.inbox("r"))
                upto = read[-1].number if read else 0
                given = Transaction("r", 1, found.lease.fence, [], release=True, read=upto, queued=ASLEEP)
                await owner.commit([given])

            async def send(turns: int = number // 4 % 4) -> None:
                for _ in range(turns):
                    await sender.head("r")
                await sender.send("r", "k", b"x")

            async with anyio.create_task_group() as group:
                group.start_soon(suspend)
                group.start_soon(send)
            left = list(await owner.inbox("r"))
            assert len(read) + len(left) == 1
            awake = await claim(owner)
            assert [each.lease.run_id for each in awake] == ["r"] * len(left)
            for each in awake:
                upto = left[-1].number
                await owner.commit([Transaction("r", 1, each.lease.fence, [], release=True, read=upto, queued=ASLEEP)])
            lease = await owner.acquire("r", ttl=600.0)
            await owner.commit([Transaction("r", 1, lease.fence, [], release=True, queued=NOW)])


async def test_long_inboxes_come_whole(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r")
        sent = [Signal("r", f"k{n}", str(n).encode()) for n in range(450)]
        await backend.commit([Transaction("s", 0, 0, [record("x")], signals=sent)])
        found = await backend.inbox("r", limit=10_000)
        assert [(each.key, each.body) for each in found] == [(each.key, each.body) for each in sent]
        large = bytes(9 * 1024 * 1024)
        for key in ("a", "b", "c"):
            await backend.send("r", key, large)
        assert [len(each.body) for each in await backend.inbox("r", after=found[-1].number)] == [len(large)] * 3


async def test_nothing_is_left_of_runs_that_are_gone(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "ready", "owned", "pruned", "ended")
        await submit(backend, "asleep", queued=ASLEEP)
        for run_id in ("ready", "owned", "pruned", "ended"):
            await backend.send(run_id, "k", b"x")
        lease = await backend.acquire("owned", ttl=600.0)
        assert len(redis_server.keys(prefix)) > 10
        assert [name for name in redis_server.keys(prefix) if KEY.fullmatch(name) is None] == []
        await backend.release(lease)
        await backend.commit([Transaction("ended", 1, 0, [record("y")], ended=True)])
        for run_id in ("ready", "owned", "asleep"):
            await backend.delete(run_id)
        assert await backend.prune(keep=0) == 2
        left = {key.partition(b"}:")[2].partition(b":")[0] for key in redis_server.keys(prefix)}
        assert left == {b"store", b"used", b"mark"}


@pytest.mark.parametrize("version", ["1", "2", "3"])
async def test_a_store_of_an_earlier_release(redis_server: RedisServer, prefix: str, version: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    redis_server.command("HSET", f"{{{prefix}}}:store", "version", version)
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.commit([Transaction("r", 1, 0, [], queued=NOW)])
        assert await claimed(backend) == ["r"]
    assert redis_server.command("HGET", f"{{{prefix}}}:store", "version") == str(VERSION).encode()


async def test_a_damaged_budget_is_found(redis_server: RedisServer, prefix: str) -> None:
    changed = BudgetChange("team", "2026-11", {"steps": 1})
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await backend.commit([Transaction("r", 0, 0, [record("x")], budgets=[changed])])
        name, place = f"{{{prefix}}}:budgets", "team\n2026-11"
        stored = redis_server.command("HGET", name, place)
        redis_server.command("HSET", name, place, stored.replace(b'"1"', b'"0"'))
        with pytest.raises(CorruptRecord):
            await backend.budgets()
        with pytest.raises(CorruptRecord):
            await backend.commit([Transaction("r", 1, 0, [record("y")], budgets=[changed])])
        assert await journal(backend, "r") == [b"x"]


async def test_a_full_memory_has_room_to_give_up_a_run(redis_server: RedisServer, prefix: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r", "s")
        (found,) = await claim(backend)
        redis_server.lapse(prefix)
        with redis_server.configured(maxmemory="1"):
            before = redis_server.stored(prefix)
            for write in (lambda: claim(backend), lambda: backend.send("s", "k", b"x"), lambda: submit(backend, "t")):
                with pytest.raises(StoreUnavailable) as caught:
                    await write()
                assert caught.value.reason == "memory"
            assert redis_server.stored(prefix) == before
            await backend.release(found.lease)
            await backend.delete("s")
        assert await claimed(backend, 2) == ["r"]


# -- damage


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"5500000 ", b"0 "),
        (b"5500000 ", b" "),
        (b" 0 0 ", b" 9 0 "),
        (b" 0 0 ", b" 0 7 "),
        (b"jobs", b"jobz"),
        (b"flow", b"floe"),
        (b"\n", b""),
    ],
)
async def test_a_damaged_place_hides_no_other(redis_server: RedisServer, prefix: str, old: bytes, new: bytes) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r", "s", queued=Queued("jobs", "flow", 5.5))
        key = f"{{{prefix}}}:run:{redis_server.command('HGET', f'{{{prefix}}}:ids', 'r').decode()}"
        stored: bytes = redis_server.command("HGET", key, "place")
        assert old in stored
        redis_server.command("HSET", key, "place", stored.replace(old, new, 1))
        assert await claimed(backend) == ["s"]
        with pytest.raises(CorruptRecord):
            await backend.head("r")
        with pytest.raises(CorruptRecord):
            await backend.commit([Transaction("t", 0, 0, [record("x")], signals=[Signal("r", "k", b"x")])])
        assert await backend.head("t") is None


@pytest.mark.parametrize("member", ["", "x", "9" * 400, "0" * 41, "{r}", "{s}"])
@pytest.mark.parametrize("index", ["ready", "asleep", "owned"])
async def test_a_damaged_index_hides_no_run(redis_server: RedisServer, prefix: str, index: str, member: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r")
        await submit(backend, "s", queued=ASLEEP)
        numbers = {f"{{{name}}}": redis_server.command("HGET", f"{{{prefix}}}:ids", name) for name in ("r", "s")}
        (ready,) = [key for key in redis_server.keys(prefix) if b":ready:" in key]
        key = ready.replace(b":ready:", f":{index}:".encode())
        redis_server.command("ZADD", key, 0, numbers.get(member, member))
        assert await claimed(backend, 5) == ["r"]
        await backend.send("s", "k", b"x")
        assert await claimed(backend, 5) == ["s"]


@pytest.mark.parametrize("index", ["owned", "asleep"])
async def test_a_turn_in_another_index_is_not_claimed(redis_server: RedisServer, prefix: str, index: str) -> None:
    """As after the server's clock was set back."""
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r", queued=NOW if index == "owned" else ASLEEP)
        await claim(backend)
        (key,) = [each for each in redis_server.keys(prefix) if f":{index}:".encode() in each]
        (turn,) = redis_server.command("ZRANGE", key, 0, -1)
        redis_server.command("ZADD", key.replace(f":{index}:".encode(), b":ready:"), 0, turn)
        await submit(backend, "s")
        assert await claimed(backend, 2) == ["s"]


@pytest.mark.parametrize("change", ["body", "number", "gone"])
async def test_a_damaged_signal(redis_server: RedisServer, prefix: str, change: str) -> None:
    async with RedisBackend(redis_server.url(prefix)) as backend:
        await submit(backend, "r")
        await backend.send("r", "k", b"hello")
        (key,) = [each for each in redis_server.keys(prefix) if b":signals:" in each]
        stored: bytes = redis_server.command("HGET", key, "k")
        if change == "gone":
            redis_server.command("HDEL", key, "k")
        else:
            redis_server.command("HSET", key, "k", stored[:-1] + b"p" if change == "body" else b"9" + stored)
        with pytest.raises(CorruptRecord):
            await backend.inbox("r")
