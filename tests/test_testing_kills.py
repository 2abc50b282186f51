"""The contract for killed processes: the library's own stores pass it, and faults that it has to find."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py.checkpoints import CheckpointBackend, FileBackend, Lease, Record, SqliteBackend, Transaction
from noetic_py.errors import RunBusy
from noetic_py.testing.conformance import KillContract


class TestSqlite(KillContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "runs.db")


class TestFiles(KillContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return FileBackend(folder / "runs")


class Late(SqliteBackend):
    """An append is acknowledged, and written with the next call."""

    late: dict[str, Any] | None = None

    async def _write(self) -> None:
        if self.late is not None:
            late, self.late = self.late, None
            await super().append(**late)

    async def append(self, run_id: str, **given: Any) -> int:
        await self._write()
        if given.get("status") != "running":
            return await super().append(run_id, **given)
        self.late = {"run_id": run_id, **given}
        position: int = given["expected_position"]
        return position + len(given["records"])

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        await self._write()
        return await super().commit(transactions)

    async def put(self, *given: Any, **more: Any) -> int:
        await self._write()
        return await super().put(*given, **more)

    async def close(self) -> None:
        await self._write()
        await super().close()


class OneByOne(SqliteBackend):
    """Each record of an append is a write of its own."""

    async def append(self, run_id: str, *, expected_position: int, records: Sequence[Record], **given: Any) -> int:
        position = expected_position
        for each in records:
            position = await super().append(run_id, expected_position=position, records=[each], **given)
            # Most of the time goes by between two writes, so that a kill at a random time comes there.
            await anyio.sleep(0.005)
        return position


class StaleLock(SqliteBackend):
    """Marks an owned run with a file, which a process that dies leaves behind."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.folder = path.parent

    def _lock(self, run_id: str) -> None:
        try:
            os.close(os.open(self.folder / f"{run_id}.lock", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise RunBusy(f"run {run_id!r} has another owner") from None

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        self._lock(run_id)
        return await super().acquire(run_id, ttl=ttl)

    async def release(self, lease: Lease) -> None:
        (self.folder / f"{lease.run_id}.lock").unlink()
        await super().release(lease)


class InPlace(SqliteBackend):
    """Keeps values in one file, which is written anew where it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.values = path.with_suffix(".json")

    async def put(self, scope: Any, key: str, value: bytes, **given: Any) -> int:
        # The file first: what dies between the two then leaves a whole file, and the fault is always the same.
        text = json.dumps({"last": key, "filling": "x" * 200_000})
        with self.values.open("w") as file:
            for at in range(0, len(text), 100):
                file.write(text[at : at + 100])
                file.flush()
        return await super().put(scope, key, value, **given)

    async def get(self, scope: Any, key: str) -> Any:
        found = await super().get(scope, key)
        if found is not None:
            json.loads(self.values.read_text())
        return found


class TestLate(KillContract):
    __test__ = False
    # The first one that finds the fault is the last one.
    kills = 200

    def make(self, folder: Path) -> CheckpointBackend:
        return Late(folder / "runs.db")


class TestOneByOne(TestLate):
    def make(self, folder: Path) -> CheckpointBackend:
        return OneByOne(folder / "runs.db")


class TestStaleLock(TestLate):
    def make(self, folder: Path) -> CheckpointBackend:
        return StaleLock(folder / "runs.db")


class TestInPlace(TestLate):
    def make(self, folder: Path) -> CheckpointBackend:
        return InPlace(folder / "runs.db")


FAULTS: list[tuple[type[KillContract], str]] = [
    (TestLate, "were acknowledged"),
    (TestOneByOne, "in the middle of a transaction"),
    (TestStaleLock, "has another owner"),
    (TestInPlace, "JSONDecodeError"),
]


@pytest.mark.parametrize(("faulty", "why"), FAULTS)
def test_a_fault_is_found(faulty: type[KillContract], why: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"killed .*[0-9].*: (.|\n)*{why}"):
        faulty().test_no_acknowledged_write_is_lost(tmp_path)


def test_a_contract_that_cannot_be_sent_says_so(tmp_path: Path) -> None:
    class Inside(TestSqlite):
        pass

    with pytest.raises(pytest.fail.Exception, match="define it at the top of its module"):
        Inside().test_no_acknowledged_write_is_lost(tmp_path)
