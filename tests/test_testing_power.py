"""The contract for a loss of power: the library's own stores pass it, and faults that it has to find."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import stat
from pathlib import Path
from typing import Any, ClassVar

import pytest

from noetic_py.checkpoints import CheckpointBackend, FileBackend, InMemoryBackend, SqliteBackend
from noetic_py.testing._conformance.disk_image import Disk, DiskEvent
from noetic_py.testing._conformance.power_loss import lost, traced_events
from noetic_py.testing.conformance import PowerLossContract

pytestmark = pytest.mark.needs("strace")


class TestSqlite(PowerLossContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "runs.db")


class TestFiles(PowerLossContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return FileBackend(folder / "runs")


class TestUnsynced(TestFiles):
    """Acknowledges what it has not synced, in the process that is traced."""

    __test__ = False
    files: ClassVar[bool] = False
    folders: ClassVar[bool] = False

    def make(self, folder: Path) -> CheckpointBackend:
        if multiprocessing.parent_process() is not None:
            sync = os.fsync

            def sync_some(fd: Any) -> None:
                if self.folders if stat.S_ISDIR(os.fstat(fd).st_mode) else self.files:
                    sync(fd)

            os.fsync = os.fdatasync = sync_some
        return super().make(folder)


class TestFilesUnsynced(TestUnsynced):
    folders = True


class TestFoldersUnsynced(TestUnsynced):
    files = True


class TestThroughMemory(TestFiles):
    """Writes in a way that no call shows."""

    __test__ = False

    def make(self, folder: Path) -> CheckpointBackend:
        with (folder / "map").open("w+b") as file:
            file.truncate(100)
            with mmap.mmap(file.fileno(), 100) as memory:
                memory[:4] = b"data"
        return super().make(folder)


class TestInMemory(PowerLossContract):
    __test__ = False

    def make(self, folder: Path) -> CheckpointBackend:
        return InMemoryBackend()


@pytest.mark.parametrize("faulty", [TestUnsynced, TestFilesUnsynced, TestFoldersUnsynced])
def test_a_missing_sync_is_found(faulty: type[PowerLossContract], tmp_path: Path) -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"states of the disk are wrong; the first: the power was lost after"
    ):
        faulty().test_no_acknowledged_write_is_lost_with_the_power(tmp_path)


@pytest.mark.parametrize(("other", "why"), [(TestThroughMemory, "no calls of write"), (TestInMemory, "'none'")])
def test_what_cannot_be_tested_is_skipped_with_its_reason(
    other: type[PowerLossContract], why: str, tmp_path: Path
) -> None:
    with pytest.raises(pytest.skip.Exception, match=why):
        other().test_no_acknowledged_write_is_lost_with_the_power(tmp_path)


def test_a_store_without_syncs_loses_its_data(tmp_path: Path) -> None:
    """So the states are hard enough for a store whose syncs are made in C."""
    contract = TestSqlite()
    events = traced_events(contract, tmp_path)
    assert lost(contract, events, tmp_path, 20) == []
    assert len(lost(contract, events, tmp_path, 20, syncs=False)) > 10


def test_files_are_followed_through_folders_and_names() -> None:
    disk = Disk({"a/old": b"1", "keep": b"k"})
    for event in (
        DiskEvent("mkdir", "b"),
        DiskEvent("create", "a/new"),
        DiskEvent("write", "a/new", -1, b"22"),
        DiskEvent("move", "a/new", to="b/moved"),
        DiskEvent("link", "a/old", to="b/linked"),
        DiskEvent("unlink", "a/old"),
        DiskEvent("truncate", "keep", 0),
    ):
        disk.do(event)
    assert disk.now() == {"a/": b"", "b/": b"", "b/moved": b"22", "b/linked": b"1", "keep": b""}
    left = [disk.left(random.Random(seed)) for seed in range(200)]
    assert {each["keep"] for each in left} >= {b"k", b""}
    assert any("b/" not in each for each in left)
    assert any("a/old" in each and "b/linked" not in each for each in left)
    disk.do(DiskEvent("sync", "a"))
    disk.do(DiskEvent("sync", "b"))
    disk.do(DiskEvent("sync", ""))
    disk.do(DiskEvent("sync", "b/moved"))
    left = [disk.left(random.Random(seed)) for seed in range(50)]
    assert all(each["b/moved"] == b"22" and each["b/linked"] == b"1" and "a/old" not in each for each in left)


def test_a_file_that_was_moved_is_not_lost_with_both_names() -> None:
    disk = Disk({"log": b"1"})
    disk.do(DiskEvent("move", "log", to="log.1"))
    left = [disk.left(random.Random(seed)) for seed in range(50)]
    assert all({"log": b"1"}.items() <= each.items() or {"log.1": b"1"}.items() <= each.items() for each in left)
    assert {tuple(sorted(each)) for each in left} >= {("log",), ("log.1",)}
