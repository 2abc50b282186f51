"""Several that use one server at once, and a server that goes away meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from noetic_py.checkpoints import CheckpointBackend, Transaction
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.errors import PositionConflict, RunBusy
from tests.properties.checks import examples
from tests.servers.journeys import journal, record
from tests.servers.tested import ServerOfTests
from tests.servers.turmoil import in_turmoil

__all__ = ["SeveralAtOnce"]

Figure = Callable[[str, object], None]


class SeveralAtOnce:
    """Tests of backends that share a server.

    Attributes:
        server: The server.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    server: ServerOfTests

    def made(self, url: str, **settings: Any) -> ServerBackend[Any]:
        """A backend."""
        raise NotImplementedError

    def left(self, space: str) -> object:
        """What is left of runs when there are none; nothing has to be."""
        raise NotImplementedError

    async def test_forks_and_deletions_at_once_leave_nothing(self) -> None:
        large = bytes(5000)
        with self.server.space() as space:
            async with self.made(self.server.url(space), connections=6, blob_threshold=100) as backend:

                async def chain(index: int) -> None:
                    name = f"r{index}"
                    await backend.append(name, expected_position=0, fence=0, records=[record(large)])
                    await backend.append(name, expected_position=1, fence=0, records=[record(large + b"x")])
                    async with anyio.create_task_group() as group:
                        for n in range(4):
                            group.start_soon(partial(backend.fork, name, at=1 + n % 2, new_run_id=f"f{index}-{n}"))
                    async with anyio.create_task_group() as group:
                        group.start_soon(backend.delete, name)
                        for n in range(4):
                            group.start_soon(one, f"f{index}-{n}", n)

                async def one(run_id: str, n: int) -> None:
                    assert await journal(backend, run_id) == [large, large + b"x"][: 1 + n % 2]
                    await backend.delete(run_id)

                async with anyio.create_task_group() as group:
                    for index in range(8):
                        group.start_soon(chain, index)
                stats = await backend.stats()
                assert (stats.runs, stats.records, stats.blobs) == (0, 0, 0)
                assert not self.left(space)

    async def test_owners_never_interleave(self) -> None:
        """Two handles take a run from each other again and again; what is written under one fence is in one piece."""
        with self.server.space() as space:
            url = self.server.url(space)
            async with self.made(url) as one, self.made(url) as other:
                async with anyio.create_task_group() as group:
                    for backend in (one, other, one, other):
                        group.start_soon(_own, backend)
                written = [int(each) for each in await journal(one, "r")]
                assert written == sorted(written)
                assert all(written.count(fence) == 3 for fence in written)

    async def test_a_lease_runs_by_the_servers_clock(self) -> None:
        with self.server.space() as space:
            url = self.server.url(space)
            async with self.made(url) as one, self.made(url) as other:
                lease = await one.acquire("r", ttl=1.0)
                with pytest.raises(RunBusy):
                    await other.acquire("r", ttl=1.0)
                # By the server's own clock, until the time is up, and not longer.
                await anyio.to_thread.run_sync(self.server.wait_for_leases, space)
                taken = await other.acquire("r", ttl=600.0)
                assert taken.fence > lease.fence

    async def test_a_commit_sees_runs_that_others_have_made_again(self) -> None:
        with self.server.space() as space:
            url = self.server.url(space)
            async with self.made(url) as one, self.made(url) as other:
                names = ["a", "b", "c"]
                await one.commit([Transaction(name, 0, 0, [record("old")]) for name in names])
                for name in names[1:]:
                    await other.delete(name)
                await other.append("c", expected_position=0, fence=0, records=[record("new")])
                given = {name: Transaction(name, 1, 0, [record("more")]) for name in names}
                with pytest.raises(PositionConflict):
                    await one.commit([*given.values()])
                done = await one.commit([given["a"], given["c"]])
                assert [each.position for each in done] == [2, 2]
                assert await journal(one, "c") == [b"new", b"more"]
                assert await one.append("b", expected_position=0, fence=0, records=[record("again")]) == 1

    async def test_appends_that_wait_together_have_outcomes_of_their_own(self) -> None:
        with self.server.space() as space:
            async with self.made(self.server.url(space), connections=1) as backend:
                outcomes: dict[int, object] = {}

                async def append(index: int) -> None:
                    try:
                        outcomes[index] = await backend.append(
                            f"r{index}", expected_position=int(index % 3 == 2), fence=0, records=[record("x")]
                        )
                    except PositionConflict as error:
                        outcomes[index] = type(error)

                for _ in range(2):
                    async with anyio.create_task_group() as group:
                        for index in range(30):
                            group.start_soon(append, index)
                    assert [outcomes[index] for index in range(3)] in ([1, 1, PositionConflict], [PositionConflict] * 3)
                assert set(outcomes.values()) == {PositionConflict}
                assert [await journal(backend, f"r{index}") for index in (0, 1)] == [[b"x"], [b"x"]]
                assert await backend.head("r2") is None

    async def test_what_is_appended_to_known_runs_together_is_refused_alone(self) -> None:
        with self.server.space() as space:
            async with self.made(self.server.url(space), connections=1) as backend:
                for index in range(12):
                    await backend.append(f"r{index}", expected_position=0, fence=0, records=[record("x")])
                outcomes: dict[int, object] = {}

                async def append(index: int) -> None:
                    # Some are elsewhere, some have no records, and some set what is listed.
                    card, status = (b"card", "done") if index % 2 else (None, None)
                    records = [record(f"y{index}")] * (index % 4)
                    try:
                        outcomes[index] = await backend.append(
                            f"r{index}", expected_position=1 + (index % 3 == 2), fence=0, records=records,
                            summary=card, status=status,
                        )  # fmt: skip
                    except PositionConflict as error:
                        outcomes[index] = type(error)

                async with anyio.create_task_group() as group:
                    for index in range(12):
                        group.start_soon(append, index)
                expected = {k: PositionConflict if k % 3 == 2 else 1 + k % 4 for k in range(12)}
                assert outcomes == expected
                for index in range(12):
                    taken = index % 3 != 2
                    assert await journal(backend, f"r{index}") == [b"x"] + [f"y{index}".encode()] * (index % 4 * taken)
                    entry = await backend.entry(f"r{index}")
                    assert entry is not None
                    assert (entry.summary, entry.status) == ((b"card", "done") if index % 2 and taken else (b"", None))

    async def test_restarts_in_the_middle(self, record_property: Figure) -> None:
        """As after crashes of the server: nothing that was acknowledged is lost, and nothing is there twice."""
        times = examples(sample=4, full=100) // 2
        with self.server.space() as space:
            async with self.made(self.server.url(space), timeout=60) as backend:
                await in_turmoil(backend, self.server.restart, times)
        record_property("restarts", times)

    async def test_ended_sessions_in_the_middle(self, record_property: Figure) -> None:
        times = examples(sample=12, full=200) // 2
        with self.server.space() as space:
            async with self.made(self.server.url(space), timeout=60) as backend:
                await in_turmoil(backend, self.server.end_sessions, times)
        record_property("times", times)

    async def test_a_server_that_starts_later_is_waited_for(self) -> None:
        with self.server.space() as space:
            async with self.made(self.server.url(space), timeout=60) as backend:
                await backend.append("r", expected_position=0, fence=0, records=[record("x")])
                await anyio.to_thread.run_sync(self.server.stop)
                async with anyio.create_task_group() as group:
                    group.start_soon(partial(backend.append, "r", expected_position=1, fence=0, records=[record("y")]))
                    await anyio.to_thread.run_sync(self.server.start)
                assert await journal(backend, "r") == [b"x", b"y"]


async def _own(backend: CheckpointBackend) -> None:
    for _ in range(15):
        try:
            lease = await backend.acquire("r", ttl=600.0)
        except RunBusy:
            await anyio.lowlevel.checkpoint()
            continue
        head = await backend.head("r")
        assert head is not None
        for position in range(head.position, head.position + 3):
            await backend.append("r", expected_position=position, fence=lease.fence, records=[record(str(lease.fence))])
        await backend.release(lease)
