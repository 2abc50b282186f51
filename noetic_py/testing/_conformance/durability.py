"""Cases for backends that outlive their process: reopening, second handles, and damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import CheckpointError, LeaseLost, NoeticError, RunBusy
from noetic_py.journal.stored import Head, Record, Transaction
from noetic_py.testing._conformance.base import SCOPE, Suite, equal, everything, fill, journal, payloads, record
from noetic_py.testing._conformance.disk import pieces_of, places_of, tells_what_waits, waiting_files

LARGE = b"large" * 20_000
SEEDS = 30


def _holding(folder: Path, mark: bytes) -> list[str]:
    """The names of files that hold some bytes, or are named by them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in files if mark in path.read_bytes() or mark in bytes(path))


class Reopening(Suite):
    """`make` with the same folder opens the same store, also while another handle has it open."""

    async def test_everything_is_there_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as backend:
            written = await fill(backend, "r", 2, 3, status="running")
            await backend.append(
                "r", expected_position=5, fence=0, records=[Record("K", (), LARGE)], summary=b"summary"
            )
            await backend.fork("r", at=5, new_run_id="f")
            version = await backend.put(SCOPE, "k", b"v")
            before = await backend.list()
        async with self.make(tmp_path) as backend:
            equal(await everything(backend, "f"), written)
            equal(payloads(await everything(backend, "r")) == [*payloads(written), LARGE], True)
            equal(await backend.list(), before)
            found = await backend.get(SCOPE, "k")
            equal(None if found is None else (found.value, found.version), (b"v", version))
            await fill(backend, "r", 1)

    @pytest.mark.parametrize("status", [None, "running", "suspended", "completed", "failed", "aborted"])
    async def test_an_acknowledged_append_is_there_at_once(self, tmp_path: Path, status: str | None) -> None:
        """Whatever status it sets, with records and without, another handle sees it before the first is used again."""
        async with self.make(tmp_path) as one, self.make(tmp_path) as other:
            written = await fill(one, "r", 2, status=status)
            equal(await everything(other, "r"), written)
            await one.append("r", expected_position=2, fence=0, records=[], summary=b"end", status=status)
            (entry,) = await other.list()
            equal((entry.position, entry.summary, entry.status), (2, b"end", status))

    @pytest.mark.parametrize("size", [1024, 40_000])
    @pytest.mark.parametrize("write", ["append", "commit", "put"])
    async def test_an_acknowledged_write_is_where_it_survives(self, tmp_path: Path, write: str, size: int) -> None:
        """With durability `"process"` it is in a file when the call returns, with `"power"` on the disk.

        For backends that keep payloads as they are in files of the folder; what is on the disk, Linux says from 6.5 on.
        """
        payload = os.urandom(size)  # so that no compression changes it
        records = [Record("K", (), payload)]
        async with self.make(tmp_path) as backend:
            durability = backend.durability
            await fill(backend, "r", 1)
            if write == "append":
                await backend.append("r", expected_position=1, fence=0, records=records)
            elif write == "commit":
                await backend.commit([Transaction("s", 0, 0, [record("beside")]), Transaction("r", 1, 0, records)])
            else:
                await backend.put(SCOPE, "k", payload)
            places = places_of(pieces_of(payload), tmp_path)
            waiting = waiting_files(places)
        if durability == "none":
            pytest.skip("its durability is 'none', so it promises nothing")
        promised = f"{write}() has returned, and its durability is {durability!r}"
        if not places and places_of(pieces_of(payload), tmp_path):
            pytest.fail(f"{promised}, but the data is in a file only after close(); write it before the call returns")
        if not places:
            pytest.skip("it keeps payloads elsewhere than in the folder, or in another form")
        if durability == "power" and not tells_what_waits(tmp_path):
            pytest.skip(
                f"what is on the disk is not known of {tmp_path}; run it on Linux 6.5 or newer, with --basetemp in a "
                "folder on a disk, not in memory"
            )
        if durability == "power" and waiting:
            pytest.fail(f"{promised}, but the data is not on the disk; sync before the call returns: {waiting}")

    async def test_leases_end_with_the_handle(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as backend:
            old = await backend.acquire("r", ttl=3600.0)
            await fill(backend, "r", 1, fence=old.fence)
        async with self.make(tmp_path) as backend:
            new = await backend.acquire("r", ttl=3600.0)
            equal(new.fence > old.fence, True)
            with pytest.raises(LeaseLost):
                await fill(backend, "r", 1, fence=old.fence)
            equal(await backend.head("r"), Head(1, new.fence))

    async def test_fences_and_versions_grow_over_a_reopening(self, tmp_path: Path) -> None:
        fences: list[int] = []
        versions: list[int] = []
        for _ in range(4):
            async with self.make(tmp_path) as backend:
                lease = await backend.acquire("r", ttl=60.0)
                fences.append(lease.fence)
                versions.append(await backend.put(SCOPE, "k", b"v"))
                await backend.remove(SCOPE, "k")
                await backend.release(lease)
                await backend.delete("r")
        equal(fences, sorted(set(fences)))
        equal(len(versions), len(set(versions)))

    async def test_what_was_deleted_stays_away(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as backend:
            await fill(backend, "r", 2)
            await backend.delete("r")
            await backend.put(SCOPE, "k", b"v")
            await backend.remove(SCOPE, "k")
        async with self.make(tmp_path) as backend:
            equal(await journal(backend, "r"), None)
            equal(await backend.get(SCOPE, "k"), None)
            stats = await backend.stats()
            equal((stats.runs, stats.values, stats.blobs), (0, 0, 0))

    async def test_no_byte_of_what_was_deleted_is_left_in_the_files(self, tmp_path: Path) -> None:
        """For backends that keep files in the folder; the others say where the rest may be."""
        gone, kept = b"GONE-", b"KEPT-"
        async with self.make(tmp_path) as backend, self.make(tmp_path) as other:
            # Rows of many sizes that come and go one between the other, so that pages are split and joined.
            for number in range(60):
                for mark in (gone, kept):
                    name = f"{mark.decode()}{number}"
                    data = (b"%s%d." % (mark, number)) * (1 + 7 * number % 97)
                    await backend.append(
                        name, expected_position=0, fence=0, records=[Record("K", (name,), data)], summary=data[:100]
                    )
                    await backend.put(("user", name), f"{name}-key", data)
            for mark in (gone, kept):
                await backend.append(
                    f"{mark.decode()}0", expected_position=1, fence=0, records=[Record("K", (), mark * 20_000)]
                )
            equal(len(await other.list(limit=1000)), 120)
            equal(bool(_holding(tmp_path, kept)), bool(_holding(tmp_path, gone)))
            for number in range(60):
                name = f"{gone.decode()}{number}"
                await backend.delete(name)
                await backend.remove(("user", name), f"{name}-key")
            equal(all(isinstance(each, str) for each in await backend.scrub()), True)
            equal(_holding(tmp_path, gone), [])
            equal(len(await other.list(limit=1000)), 60)
            await fill(backend, f"{kept.decode()}1", 1)
            equal(list(await other.scopes(("user",), limit=1000)) != [], True)
            # A second time is not an error.
            await other.scrub()
        equal(_holding(tmp_path, gone), [])

    async def test_two_handles_see_each_other(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as one, self.make(tmp_path) as other:
            written = await fill(one, "r", 2)
            equal(await everything(other, "r"), written)
            written += await fill(other, "r", 3)
            equal(await everything(one, "r"), written)
            version = await one.put(SCOPE, "k", b"v")
            await other.put(SCOPE, "k", b"w", expected=version)
            equal([each.value for each in await one.scan(SCOPE)], [b"w"])

    async def test_two_handles_do_not_own_one_run(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as one, self.make(tmp_path) as other:
            lease = await one.acquire("r", ttl=3600.0)
            with pytest.raises(RunBusy):
                await other.acquire("r", ttl=3600.0)
            with pytest.raises(RunBusy):
                await other.delete("r")
            equal([each.held for each in await other.list()], [True])
            await one.release(lease)
            await other.acquire("r", ttl=3600.0)
            with pytest.raises(LeaseLost):
                await fill(one, "r", 1, fence=lease.fence)

    async def test_a_closed_handle_frees_its_runs(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as one:
            other = self.make(tmp_path)
            lease = await other.acquire("r", ttl=3600.0)
            await other.close()
            taken = await one.acquire("r", ttl=3600.0)
            equal(taken.fence > lease.fence, True)


class Damaging(Suite):
    """After `damage`, everything that can be read is as it was, or an error says that it is not."""

    async def damage(self, folder: Path, seed: int) -> None:
        raise NotImplementedError("damage(folder, seed) has to change stored bytes while they are not open")

    async def _write(self, backend: CheckpointBackend) -> dict[str, list[Record]]:
        for n in range(8):
            await fill(backend, f"r{n}", 1, 3, 2, status="running")
            await backend.put(SCOPE, f"k{n}", b"value %d" % n * 20)
        await backend.append("r0", expected_position=6, fence=0, records=[Record("K", ("x",), LARGE), record("end")])
        await backend.fork("r1", at=4, new_run_id="fork")
        await fill(backend, "fork", 1)
        return {each.run_id: await everything(backend, each.run_id) for each in await backend.list()}

    @pytest.mark.parametrize("seed", range(SEEDS))
    async def test_damage_is_found(self, tmp_path: Path, seed: int) -> None:
        async with self.make(tmp_path) as backend:
            expected = await self._write(backend)
            listed = await backend.list()
            values = await backend.scan(SCOPE)
        await self.damage(tmp_path, seed)
        try:
            async with self.make(tmp_path) as backend:
                for run_id, records in expected.items():
                    try:
                        seen = await everything(backend, run_id)
                        head = await backend.head(run_id)
                    except CheckpointError:
                        continue
                    equal(seen == records, True)
                    equal(None if head is None else head.position, len(records))
                # A damaged run is listed as damaged, and the others as they are.
                equal([each for each in await backend.list() if not each.problem and each not in listed], [])
                equal(await backend.scan(SCOPE), values)
        except NoeticError as error:
            equal(isinstance(error, CheckpointError), True)
