from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from noetic_redis import RedisBackend
from redis_proxy import proxy_of
from redis_server import RedisServer

from noetic_py.checkpoints import Queued, StoredValue, Transaction
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.errors import RunBusy
from tests.properties.checks import FULL
from tests.servers.cutting_proxy import CuttingProxy, How
from tests.servers.journeys import SCOPE, THRESHOLD, Journey, journal, record
from tests.servers.lost import LOSSES, LostConnections

pytestmark = pytest.mark.slow


class TestLostConnections(LostConnections):
    sampled = 14
    statements = 40

    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> None:
        self.server = self.redis = redis_server

    def made(self, url: str, **settings: Any) -> RedisBackend:
        return RedisBackend(url, **settings)

    def proxy(self) -> CuttingProxy:
        return proxy_of(self.redis)

    async def test_closing_without_a_server_ends(self, prefix: str) -> None:
        with self.proxy() as proxy:
            backend = self.through(proxy, prefix)
            lease = await backend.acquire("r", ttl=600.0)
            proxy.refusing = True
            proxy.lose_all()
            with anyio.fail_after(20):
                await backend.close()
        assert [until > self.redis.now() for until in self.redis.leases(prefix)] == [True]
        assert lease.fence

    @pytest.mark.parametrize("late", [10, 12, 20, 30])
    async def test_what_comes_long_after_it_was_given_up_does_nothing(self, late: int) -> None:
        """The session has gone on then, by so many writes."""
        for at in range(1, 14) if FULL else (1 + late % 3, 7, 13):
            with proxy_of(self.redis, late=late) as proxy, self.redis.prefix() as prefix:
                async with self.through(proxy, prefix, connections=1) as backend:
                    proxy.arm({at: "late"})
                    await Journey(backend).go()
                    assert proxy.cut

    async def test_a_refused_write_is_not_done_later(self, prefix: str) -> None:
        """It arrives when what it was refused for is gone, and after its caller was told so."""
        with proxy_of(self.redis, late=14) as proxy:
            async with (
                self.through(proxy, prefix, connections=1) as backend,
                RedisBackend(self.redis.url(prefix)) as other,
            ):
                lease = await other.acquire("r", ttl=600.0)
                proxy.arm({1: "late"})
                with pytest.raises(RunBusy):
                    await backend.delete("r")
                await other.release(lease)
                for _ in range(12):
                    await backend.get(SCOPE, "k")
                assert await other.head("r") is not None

    async def test_an_old_write_is_not_done_over_a_new_one(self, prefix: str) -> None:
        with proxy_of(self.redis, late=15) as proxy:
            async with self.through(proxy, prefix, connections=1) as backend:
                proxy.arm({1: "late"})
                await backend.put(SCOPE, "k", b"old")
                version = await backend.put(SCOPE, "k", b"new")
                for _ in range(12):
                    await backend.head("r")
                assert await backend.get(SCOPE, "k") == StoredValue("k", b"new", version)

    async def test_a_large_record_is_cut_in_its_middle(self, prefix: str) -> None:
        large = bytes(range(256)) * 4000
        with self.proxy() as proxy:
            async with RedisBackend(self.redis.url(prefix, port=proxy.port), blob_threshold=THRESHOLD) as backend:
                for position, payload in enumerate((large, large + b"x")):
                    proxy.arm({1: "half"})
                    append = partial(backend.append, "r", expected_position=position, fence=0)
                    assert await append(records=[record(payload)]) == position + 1
                    assert proxy.cut
                assert await journal(backend, "r") == [large, large + b"x"]

    @pytest.mark.parametrize("how", LOSSES)
    async def test_a_claim_and_a_signal_happen_once(self, how: How) -> None:
        """Whichever statement is cut."""
        step = 1 if FULL else 2
        at = 1 + LOSSES.index(how) % step
        with self.proxy() as proxy:
            while True:
                with self.redis.prefix() as prefix:
                    async with self.through(proxy, prefix, connections=1) as backend:
                        proxy.arm({at: how})
                        await _work_off(backend)
                if not proxy.cut:
                    break
                at += step
        assert at > 8


async def _work_off(backend: ServerBackend[Any]) -> None:
    """Queues runs and claims them; each result is what it is when nothing goes wrong."""
    queued, asleep = Queued("a queue", "a flow"), Queued("a queue", "a flow", None)
    runs = [f"run {n}" for n in range(4)]
    await backend.commit([Transaction(run_id, 0, 0, [record("x")], queued=queued) for run_id in runs])
    claim = partial(backend.claim, ["a queue"], flows=["a flow"], ttl=600.0)
    found = [*await claim(limit=2), *await claim(limit=1)]
    assert [(each.lease.run_id, each.lives, each.queued) for each in found] == [(each, 1, queued) for each in runs[:3]]
    first = await backend.send(runs[0], "a key", b"1")
    assert await backend.send(runs[0], "another key", b"2") > first
    assert await backend.send(runs[0], "a key", b"3") == first
    fence = found[0].lease.fence
    await backend.commit([Transaction(runs[0], 1, fence, [], release=True, read=first, queued=asleep)])
    await backend.release(found[1].lease)
    again = await claim(limit=9)
    # What has waited longest goes first, and a signal wakes a run now.
    assert [(each.lease.run_id, each.lives) for each in again] == [(runs[1], 1), (runs[3], 1), (runs[0], 1)]
    assert [(each.key, each.body) for each in await backend.inbox(runs[0])] == [("another key", b"2")]
    (stats,) = await backend.queues()
    assert (stats.ready, stats.owned, stats.waiting) == (0, 4, 0)
