"""Faults in backends that the contracts have to find, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from attrs import evolve

from noetic_py.checkpoints import (
    CheckpointBackend,
    FileBackend,
    Head,
    InMemoryBackend,
    Lease,
    Record,
    RunEntry,
    SqliteBackend,
    Transaction,
)
from noetic_py.checkpoints.contract import BackendDurability
from noetic_py.checkpoints.threads import Job
from noetic_py.errors import LeaseLost, RunNotFound
from noetic_py.testing import BackendContract, LastingContract, ReferenceContract
from noetic_py.testing._conformance.disk import tells_what_waits

FAILED = pytest.fail.Exception


class HalfLease(InMemoryBackend):
    """A lease ends after half its time."""

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        return await super().acquire(run_id, ttl=ttl / 2)


class StaleRenew(InMemoryBackend):
    """Renewing does not extend a lease."""

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        head = await self.head(lease.run_id)
        if head is None or head.fence != lease.fence:
            raise LeaseLost("lost")
        return lease


class Aliased(InMemoryBackend):
    """Large payloads of one length that begin alike are stored as one."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[tuple[int, bytes], bytes] = {}

    async def append(self, run_id: str, *, records: Sequence[Record], **more: Any) -> int:
        made = [
            evolve(each, payload=self.blobs.setdefault((len(each.payload), each.payload[:4096]), each.payload))
            if len(each.payload) > 16384
            else each
            for each in records
        ]
        return await super().append(run_id, records=made, **more)


class LateEnd(SqliteBackend):
    """The end of a run is acknowledged, and written with the next call."""

    late: dict[str, Any] | None = None

    async def append(self, run_id: str, **given: Any) -> int:
        if self.late is not None:
            late, self.late = self.late, None
            await super().append(**late)
        if given.get("status") != "completed":
            return await super().append(run_id, **given)
        self.late = {"run_id": run_id, **given}
        return int(given["expected_position"]) + len(given["records"])


class Unsynced(SqliteBackend):
    """Writes are acknowledged without a sync, with the durability `"power"`."""

    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        return await self._pool.run(Job(lambda store: store.append(given, now), write=True, durable=False))

    async def _commit(self, given: Sequence[Transaction], size: int, now: datetime) -> Sequence[Lease]:
        return await self._pool.run(Job(lambda store: store.commit(given, now), write=True, durable=False))


class Buffered(InMemoryBackend):
    """What is acknowledged is written to a file when the backend is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.buffer = b""

    @property
    def durability(self) -> BackendDurability:
        return "process"

    async def append(self, run_id: str, *, records: Sequence[Record], **more: Any) -> int:
        self.buffer += b"".join(each.payload for each in records)
        return await super().append(run_id, records=records, **more)

    async def close(self) -> None:
        self.path.write_bytes(self.buffer)
        await super().close()


class Abandoned(InMemoryBackend):
    """An append that is cancelled is written later."""

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[str, Any] | None = None

    async def append(self, run_id: str, **given: Any) -> int:
        if self.late is not None:
            late, self.late = self.late, None
            await super().append(**late)
        try:
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.late = {"run_id": run_id, **given}
            raise
        return await super().append(run_id, **given)


class FencesOfEachRun(InMemoryBackend):
    """The owners of each run are numbered for themselves, as the contract allows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.given: dict[str, list[int]] = {}

    def real(self, run_id: str, fence: int) -> int:
        given = self.given.get(run_id, [])
        return 0 if fence == 0 else given[fence - 1] if 0 < fence <= len(given) else -1

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        given = self.given.setdefault(run_id, [])
        given.append((await super().acquire(run_id, ttl=ttl)).fence)
        return Lease(run_id, len(given))

    async def append(self, run_id: str, *, fence: int, **more: Any) -> int:
        return await super().append(run_id, fence=self.real(run_id, fence), **more)

    async def commit(self, transactions: Any) -> Any:
        done = await super().commit([evolve(t, fence=self.real(t.run_id, t.fence)) for t in transactions])
        leases: list[Lease] = []
        for each, lease in zip(transactions, done, strict=True):
            given = self.given.setdefault(each.run_id, [])
            if each.acquire is not None:
                given.append(lease.fence)
            leases.append(evolve(lease, fence=given.index(lease.fence) + 1 if lease.fence else 0))
        return leases

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        await super().renew(Lease(lease.run_id, self.real(lease.run_id, lease.fence)), ttl=ttl)
        return lease

    async def release(self, lease: Lease) -> None:
        await super().release(Lease(lease.run_id, self.real(lease.run_id, lease.fence)))

    async def head(self, run_id: str) -> Head | None:
        found = await super().head(run_id)
        return found and evolve(found, fence=self.given[run_id].index(found.fence) + 1 if found.fence else 0)


class Forgetful(InMemoryBackend):
    """No run is listed, which nearly every row shows."""

    async def list(self, **given: Any) -> Sequence[RunEntry]:
        return []


class Contract(BackendContract):
    async def lapse(self, backend: CheckpointBackend) -> None:
        """No case here waits for it."""


class Reference(ReferenceContract):
    kind: type[InMemoryBackend]
    examples = 20

    def make(self, folder: Path) -> CheckpointBackend:
        return self.kind(runtime=self.runtime)

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Its leases end with its clock."""


class Lasting(LastingContract):
    kind: type[FileBackend | SqliteBackend | Buffered]

    def make(self, folder: Path) -> CheckpointBackend:
        return self.kind(folder / "runs")


def lasting(kind: type[FileBackend | SqliteBackend | Buffered]) -> Lasting:
    made = Lasting()
    made.kind = kind
    return made


def reference(kind: type[InMemoryBackend]) -> Reference:
    made = Reference()
    made.kind = kind
    return made


@pytest.mark.parametrize(
    ("kind", "what"), [(HalfLease, "the time of a lease"), (StaleRenew, "the time of a renewed lease")]
)
async def test_leases_of_another_length(kind: type[InMemoryBackend], what: str) -> None:
    with pytest.raises(FAILED, match=f"{what} is 100 s"):
        await reference(kind).test_a_lease_lasts_as_long_as_was_asked_for()
    await reference(InMemoryBackend).test_a_lease_lasts_as_long_as_was_asked_for()


async def test_payloads_that_are_stored_as_one() -> None:
    async with Aliased() as backend:
        with pytest.raises(FAILED):
            await Contract().test_large_payloads_that_begin_alike(backend)


async def test_an_end_that_is_written_later(tmp_path: Path) -> None:
    with pytest.raises((FAILED, RunNotFound)):
        await lasting(LateEnd).test_an_acknowledged_append_is_there_at_once(tmp_path, "completed")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk, of which the kernel says what is written; `tmp_path` may be in memory."""
    with TemporaryDirectory(dir="/var/tmp" if Path("/var/tmp").is_dir() else None) as folder:
        if not tells_what_waits(Path(folder)):
            pytest.skip("the kernel does not say what is on the disk")
        yield Path(folder)


@pytest.mark.parametrize("size", [1024, 40_000])
@pytest.mark.parametrize("write", ["append", "commit", "put"])
@pytest.mark.parametrize("kind", [SqliteBackend, FileBackend])
async def test_what_was_synced_passes(
    disk: Path, kind: type[FileBackend | SqliteBackend], write: str, size: int
) -> None:
    try:
        await lasting(kind).test_an_acknowledged_write_is_where_it_survives(disk, write, size)
    except pytest.skip.Exception as skipped:
        pytest.fail(f"it was not tested: {skipped}")


class Elsewhere(Buffered):
    """It keeps nothing in the folder."""

    async def close(self) -> None:
        self.buffer = b""
        await super().close()


class Fleeting(Elsewhere):
    """It promises nothing."""

    @property
    def durability(self) -> BackendDurability:
        return "none"


@pytest.mark.parametrize(
    ("kind", "platform", "said"),
    [
        (SqliteBackend, "darwin", "what is on the disk is not known of .* run it on Linux"),
        (Elsewhere, "linux", "keeps payloads elsewhere than in the folder"),
        (Fleeting, "linux", "its durability is 'none'"),
    ],
)
async def test_what_cannot_be_tested_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[SqliteBackend | Buffered], platform: str, said: str
) -> None:
    monkeypatch.setattr("noetic_py.testing._conformance.disk.sys", SimpleNamespace(platform=platform))
    with pytest.raises(pytest.skip.Exception, match=said):
        await lasting(kind).test_an_acknowledged_write_is_where_it_survives(tmp_path, "append", 1024)


@pytest.mark.parametrize("size", [1024, 40_000])
@pytest.mark.parametrize("write", ["append", "commit"])
async def test_an_acknowledged_write_that_was_not_synced(disk: Path, write: str, size: int) -> None:
    said = rf"^{write}\(\) has returned, and its durability is 'power', but the data is not on the disk"
    with pytest.raises(FAILED, match=said):
        await lasting(Unsynced).test_an_acknowledged_write_is_where_it_survives(disk, write, size)


async def test_an_acknowledged_append_that_is_not_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(FAILED, match=r"durability is 'process', but the data is in a file only after close\(\)"):
        await lasting(Buffered).test_an_acknowledged_write_is_where_it_survives(tmp_path, "append", 1024)


async def test_a_cancelled_append_that_is_written_later() -> None:
    async with Abandoned() as backend:
        with pytest.raises(FAILED):
            await Contract().test_a_cancelled_append_has_ended(backend, 3)


def test_owners_may_be_numbered_for_each_run(anyio_backend_name: str) -> None:
    reference(FencesOfEachRun).test_it_does_what_the_reference_does(anyio_backend_name)


def test_a_row_that_fails_is_short_and_can_be_copied(anyio_backend_name: str) -> None:
    with pytest.raises(FAILED) as caught:
        reference(Forgetful).test_it_does_what_the_reference_does(anyio_backend_name)
    said = str(caught.value)
    assert "These operations show it" in said
    assert getattr(caught.value, "__notes__", []) == []
    rows = said[said.index("self.replay(") + len("self.replay(") : said.rindex(")")]
    operations = eval(f"[{rows}]")
    assert 1 <= len(operations) <= 3, operations
    with pytest.raises(FAILED, match="and the reference"):
        anyio.run(lambda: reference(Forgetful).replay(*operations), backend=anyio_backend_name)
