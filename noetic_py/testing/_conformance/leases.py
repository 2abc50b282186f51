"""Cases of leases: one owner at a time, and fences that stop the earlier ones."""

from __future__ import annotations

import pytest

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import ConfigError, LeaseLost, RunBusy
from noetic_py.journal.stored import Head, Lease
from noetic_py.testing._conformance.base import Suite, equal, everything, fill, record


class Leases(Suite):
    async def test_one_owner_at_a_time(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        equal(lease.run_id, "r")
        equal(lease.fence > 0, True)
        with pytest.raises(RunBusy):
            await backend.acquire("r", ttl=60.0)
        equal(await backend.head("r"), Head(0, lease.fence))

    async def test_a_lease_may_say_where_the_journal_ends(self, backend: CheckpointBackend) -> None:
        for position in (0, 3):
            lease = await backend.acquire("r", ttl=60.0)
            equal(lease.position in (None, position), True)
            await fill(backend, "r", 3, fence=lease.fence)
            await backend.release(lease)

    async def test_becoming_the_owner_writes_nothing(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        before = await backend.list()
        lease = await backend.acquire("r", ttl=60.0)
        (entry,) = await backend.list()
        equal((entry.updated, entry.position), (before[0].updated, 1))
        await backend.renew(lease, ttl=60.0)
        await backend.release(lease)
        equal(await backend.list(), before)

    async def test_runs_have_owners_of_their_own(self, backend: CheckpointBackend) -> None:
        leases = [await backend.acquire(f"r{n}", ttl=60.0) for n in range(5)]
        for lease in leases:
            await fill(backend, lease.run_id, 1, fence=lease.fence)

    async def test_fences_grow(self, backend: CheckpointBackend) -> None:
        fences: list[int] = []
        for _ in range(5):
            lease = await backend.acquire("r", ttl=60.0)
            fences.append(lease.fence)
            await backend.release(lease)
        equal(fences, sorted(set(fences)))

    async def test_fences_grow_over_a_deletion(self, backend: CheckpointBackend) -> None:
        old = await backend.acquire("r", ttl=60.0)
        await backend.release(old)
        await backend.delete("r")
        new = await backend.acquire("r", ttl=60.0)
        equal(new.fence > old.fence, True)
        with pytest.raises(LeaseLost):
            await backend.append("r", expected_position=0, fence=old.fence, records=[record("stale")])

    async def test_every_write_checks_the_fence(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        for fence in (0, lease.fence - 1, lease.fence + 1, -1, 2**70):
            with pytest.raises(LeaseLost):
                await backend.append("r", expected_position=0, fence=fence, records=[record("x")])
            with pytest.raises(LeaseLost):
                await backend.append("r", expected_position=0, fence=fence, records=[], summary=b"x", status="x")
        (entry,) = await backend.list()
        equal((entry.position, entry.summary, entry.status), (0, b"", None))
        await backend.append("r", expected_position=0, fence=lease.fence, records=[record("x")])

    async def test_the_fence_is_looked_at_before_the_position(self, backend: CheckpointBackend) -> None:
        await backend.acquire("r", ttl=60.0)
        with pytest.raises(LeaseLost):
            await backend.append("r", expected_position=9, fence=0, records=[record("x")])

    async def test_renewing_keeps_the_fence(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        for _ in range(3):
            equal(await backend.renew(lease, ttl=60.0), lease)
        with pytest.raises(RunBusy):
            await backend.acquire("r", ttl=60.0)

    async def test_releasing_twice_is_no_error(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        await backend.release(lease)
        await backend.release(lease)
        await backend.release(Lease("other", 3))
        await backend.acquire("r", ttl=60.0)

    async def test_an_old_release_frees_nothing(self, backend: CheckpointBackend) -> None:
        old = await backend.acquire("r", ttl=60.0)
        await backend.release(old)
        new = await backend.acquire("r", ttl=60.0)
        await backend.release(old)
        with pytest.raises(RunBusy):
            await backend.acquire("r", ttl=60.0)
        equal(await backend.renew(new, ttl=60.0), new)

    async def test_a_released_lease_cannot_be_renewed(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        await backend.release(lease)
        with pytest.raises(LeaseLost):
            await backend.renew(lease, ttl=60.0)

    @pytest.mark.parametrize(
        "lease", [Lease("none", 1), Lease("r", 0), Lease("r", 10**6)], ids=["run", "none", "fence"]
    )
    async def test_a_lease_that_is_none(self, backend: CheckpointBackend, lease: Lease) -> None:
        await fill(backend, "r", 1)
        with pytest.raises(LeaseLost):
            await backend.renew(lease, ttl=60.0)
        await backend.release(lease)

    @pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf")])
    async def test_a_time_that_is_none(self, backend: CheckpointBackend, ttl: float) -> None:
        with pytest.raises(ConfigError):
            await backend.acquire("r", ttl=ttl)
        equal(await backend.head("r"), None)

    async def test_a_lapsed_lease_is_taken_over(self, backend: CheckpointBackend) -> None:
        old = await backend.acquire("r", ttl=60.0)
        written = await fill(backend, "r", 2, fence=old.fence)
        await self.lapse(backend)
        (entry,) = await backend.list()
        equal(entry.held, False)
        new = await backend.acquire("r", ttl=60.0)
        equal(new.fence > old.fence, True)
        equal(await everything(backend, "r"), written)
        equal(await backend.head("r"), Head(2, new.fence))

    async def test_a_stale_owner_changes_nothing(self, backend: CheckpointBackend) -> None:
        old = await backend.acquire("r", ttl=60.0)
        written = await fill(backend, "r", 2, fence=old.fence)
        await self.lapse(backend)
        new = await backend.acquire("r", ttl=60.0)
        with pytest.raises(LeaseLost):
            await backend.append("r", expected_position=2, fence=old.fence, records=[record("stale")])
        with pytest.raises(LeaseLost):
            await backend.renew(old, ttl=60.0)
        await backend.release(old)
        equal(await everything(backend, "r"), written)
        written += await fill(backend, "r", 1, fence=new.fence)
        with pytest.raises(LeaseLost):
            await backend.append("r", expected_position=3, fence=old.fence, records=[record("stale")])
        equal(await everything(backend, "r"), written)
        equal(await backend.renew(new, ttl=60.0), new)

    async def test_a_lapsed_run_can_be_deleted(self, backend: CheckpointBackend) -> None:
        await backend.acquire("r", ttl=60.0)
        await self.lapse(backend)
        await backend.delete("r")
        equal(await backend.head("r"), None)
