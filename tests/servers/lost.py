"""Whatever is cut, and whenever: each write happens once, or an error says that nobody knows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, get_args

import anyio
import pytest

from noetic_py.checkpoints import CheckpointBackend, Head
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.errors import CheckpointFailed, LeaseLost, PositionConflict, StoreUnavailable, VersionConflict
from tests.properties.checks import FULL, SEED, examples
from tests.servers.cutting_proxy import CuttingProxy, How
from tests.servers.journeys import SCOPE, THRESHOLD, Journey, journal, record
from tests.servers.tested import ServerOfTests

__all__ = ["LOSSES", "LostConnections"]

LOSSES: Sequence[How] = ("before", "after", "late", "half")


class LostConnections:
    """Tests of a backend whose connections are lost by a proxy.

    Attributes:
        server: The server.
        sampled: The step between the cuts that a sample tries; with 40 it is every fortieth.
        statements: How many statements the journey has at least.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    server: ServerOfTests
    sampled = 40
    statements = 100

    @pytest.fixture(autouse=True)
    def connect_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wait less between two tries to connect, and at the end for a server that is gone."""
        monkeypatch.setattr("noetic_py.checkpoints.server._LONGEST_WAIT", 0.04)
        monkeypatch.setattr("noetic_py.checkpoints.server._LEAVING", 0.5)

    def made(self, url: str, **settings: Any) -> ServerBackend[Any]:
        """A backend."""
        raise NotImplementedError

    def proxy(self) -> CuttingProxy:
        """A proxy before the server."""
        raise NotImplementedError

    def through(self, proxy: CuttingProxy, space: str, **settings: float) -> ServerBackend[Any]:
        """A backend whose connections the proxy can lose; its address has these settings."""
        more = "".join(f"&{name}={int(value)}" for name, value in settings.items())
        return self.made(self.server.url(space, port=proxy.port, more=more), blob_threshold=THRESHOLD)

    @pytest.mark.parametrize("how", LOSSES)
    async def test_a_cut_at_every_statement(self, how: How, anyio_backend_name: str) -> None:
        # A sample takes some of them, others on each event loop.
        step = 1 if FULL else self.sampled
        at = 1 + (LOSSES.index(how) * 5 + 2 * (anyio_backend_name == "trio")) % step
        with self.proxy() as proxy:
            while True:
                with self.server.space() as space:
                    async with self.through(proxy, space, connections=1) as backend:
                        proxy.arm({at: how})
                        await Journey(backend).go()
                if not proxy.cut:
                    break
                at += step
        # As many cuts as there are statements, and the journey was the same each time.
        assert at > self.statements

    @pytest.mark.parametrize("seed", range(SEED, SEED + examples(sample=2, full=100)))
    async def test_cuts_at_random(self, seed: int) -> None:
        dice = random.Random(seed)
        cuts: dict[int, How] = {at: dice.choice(LOSSES) for at in range(1, 400) if dice.random() < 0.1}
        # The journey may be over before the first of these.
        cuts[dice.randint(1, 20)] = dice.choice(LOSSES)
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=1) as backend:
                proxy.arm(cuts)
                await Journey(backend).go()
                assert proxy.cut

    @pytest.mark.parametrize("how", ["before", "after"])
    async def test_a_cut_after_a_write_that_was_refused(self, how: How) -> None:
        """The refused one leaves nothing to be found, and that says nothing of the one that is looked for."""
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=1) as backend:
                with pytest.raises(VersionConflict):
                    await backend.put(SCOPE, "k", b"stale", expected=5)
                proxy.arm({1: how})
                version = await backend.put(SCOPE, "k", b"v")
                assert proxy.cut == 1
                found = await backend.get(SCOPE, "k")
                assert found is not None
                assert (found.value, found.version) == (b"v", version)

    async def test_cuts_while_many_write(self) -> None:
        dice = random.Random(7)
        cuts: dict[int, How] = {at: dice.choice(LOSSES) for at in range(5, 2000) if dice.random() < 0.05}
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=3) as backend:
                proxy.arm(cuts)
                async with anyio.create_task_group() as group:
                    for index in range(12):
                        group.start_soon(partial(_fill, backend, f"r{index}", 20))
                # How many statements there are depends on how many appends wait together.
                assert proxy.cut > 2
                for index in range(12):
                    assert await journal(backend, f"r{index}") == [f"r{index}/{n}".encode() for n in range(20)]

    @pytest.mark.parametrize("how", ["before", "after"])
    async def test_an_unknown_outcome_is_an_error(self, how: How) -> None:
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=1, timeout=2) as backend:
                lease = await backend.acquire("r", ttl=600.0)
                proxy.arm({1: how})
                proxy.refusing = True
                with anyio.fail_after(20), pytest.raises(StoreUnavailable) as caught:
                    await backend.append("r", expected_position=0, fence=lease.fence, records=[record("x")])
                assert isinstance(caught.value, CheckpointFailed)
                assert caught.value.reason == "unknown"
                proxy.refusing = False
                # Now the journal says it, and a second try neither repeats nor loses anything.
                taken = how == "after"
                assert await backend.head("r") == Head(int(taken), lease.fence)
                again = partial(backend.append, "r", expected_position=0, fence=lease.fence, records=[record("x")])
                if taken:
                    with pytest.raises(PositionConflict):
                        await again()
                else:
                    await again()
                assert await journal(backend, "r") == [b"x"]

    async def test_a_read_that_cannot_be_done_is_an_error(self) -> None:
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=1, timeout=1) as backend:
                proxy.refusing = True
                proxy.lose_all()
                with anyio.fail_after(20), pytest.raises(StoreUnavailable) as caught:
                    await backend.head("r")
                assert caught.value.reason != "unknown"
                proxy.refusing = False
                assert await backend.head("r") is None

    async def test_a_server_that_stalls_hangs_nobody(self) -> None:
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=1, timeout=4) as backend:
                lease = await backend.acquire("r", ttl=600.0)
                proxy.arm({1: "stall"})
                with anyio.fail_after(20):
                    assert await backend.append("r", expected_position=0, fence=lease.fence, records=[record("x")]) == 1
                assert proxy.cut == 1
                assert await journal(backend, "r") == [b"x"]

    async def test_all_statements_stall(self) -> None:
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space, connections=2, timeout=2) as backend:
                await backend.append("r", expected_position=0, fence=0, records=[record("x")])
                proxy.arm(dict.fromkeys(range(1, 1000), "stall"))
                failed: list[StoreUnavailable] = []

                async def one(index: int) -> None:
                    with pytest.raises(StoreUnavailable) as caught:
                        await backend.append(f"r{index}", expected_position=0, fence=0, records=[record("x")])
                    failed.append(caught.value)

                with anyio.fail_after(30):
                    async with anyio.create_task_group() as group:
                        for index in range(10):
                            group.start_soon(one, index)
                assert len(failed) == 10
                proxy.arm()
                proxy.lose_all()
                found: list[bytes] = []
                with anyio.fail_after(30):
                    while not found:
                        # What comes first may use up its time on the connections that are lost.
                        with suppress(StoreUnavailable):
                            found = await journal(backend, "r")
                assert found == [b"x"]

    async def test_a_lost_owner_stays_the_owner(self) -> None:
        with self.proxy() as proxy, self.server.space() as space:
            async with self.through(proxy, space) as backend, self.made(self.server.url(space)) as other:
                lease = await backend.acquire("r", ttl=600.0)
                proxy.lose_all()
                await backend.append("r", expected_position=0, fence=lease.fence, records=[record("a")])
                self.server.lapse(space)
                taken = await other.acquire("r", ttl=600.0)
                proxy.lose_all()
                with pytest.raises(LeaseLost):
                    await backend.append("r", expected_position=1, fence=lease.fence, records=[record("stale")])
                with pytest.raises(LeaseLost):
                    await backend.renew(lease, ttl=600.0)
                await other.append("r", expected_position=1, fence=taken.fence, records=[record("b")])
                assert await journal(backend, "r") == [b"a", b"b"]

    def test_every_way_to_lose_a_connection_is_tried(self) -> None:
        assert {*LOSSES, "stall"} == set(get_args(How))


async def _fill(backend: CheckpointBackend, run_id: str, count: int) -> None:
    lease = await backend.acquire(run_id, ttl=600.0)
    for position in range(count):
        done = await backend.append(
            run_id, expected_position=position, fence=lease.fence, records=[record(f"{run_id}/{position}")]
        )
        assert done == position + 1
    await backend.release(lease)
