"""Disks that are full, broken or read-only: a named error, nothing acknowledged is lost, and the run goes on later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import Life, same
from tests.crash.tools import counted, spread
from tests.properties.checks import examples

FAULTS = examples(sample=4, full=50)
"""At how many calls of each kind the disk fails."""

SEED = 33
GROWING = 19
"""Of a program that commits so often that its file grows several times."""

NOBODY = 65534
KINDS = [
    ("pwrite64", "ENOSPC", "full", "+"),
    ("pwrite64", "EIO", "io", ""),
    ("pwrite64", "EIO", "io", "+"),
    ("fdatasync", "EIO", "io", ""),
    ("fdatasync", "EIO", "io", "+"),
]
"""A call, how it fails, the reason that is told, and whether all calls after it fail too."""


def unharmed(children: Children, seed: int = SEED) -> tuple[Ended, int]:
    """The run on a disk that works; how large its file becomes, and its log at least."""
    with quick_folder() as folder:
        ended = Life(children, folder, {"seed": seed}).live([])
        return ended, (folder / "runs.db").stat().st_size


def is_named(ended: Ended, life: Life, reasons: set[str]) -> None:
    """The process was told what is wrong with the disk, and its run is not over."""
    result = ended.result
    assert result["status"] in ("failed", "refused"), life.explain(result)
    names = {name for name, _ in result["errors"]}
    assert names == {"StoreUnavailable"}, life.explain(result)
    assert result["reasons"][0] in reasons, life.explain(result)


def calls_of(children: Children, folder: Path, name: str) -> int:
    """How often the run makes a call."""
    log = folder / "log"
    life = Life(children, folder, {"seed": SEED})
    ended = life.process(trace=("-o", str(log), "-e", f"trace={name}"))
    assert ended.result["status"] == "completed"
    return counted(log)[name]


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("name", "error", "reason", "onwards"), KINDS)
def test_a_disk_that_fails_at_a_call(
    children: Children,
    name: str,
    error: str,
    reason: str,
    onwards: str,
    figure: Figure,
) -> None:
    expected, *_ = unharmed(children)
    with quick_folder() as folder:
        count = calls_of(children, folder, name)
    outcomes: Counter[str] = Counter()
    for _, number in spread([(name, at + 1) for at in range(count)], FAULTS):
        with quick_folder() as folder:
            life = Life(children, folder, {"seed": SEED})
            inject = f"inject={name}:error={error}:when={number}{onwards}"
            ended = life.process(trace=("-o", "/dev/null", "-e", f"trace={name}", "-e", inject))
            life.kills.append((f"{name} {error}{onwards}", number))
            # SQLite makes light of a folder that cannot be synced: the journal in it has been there for long.
            if ended.result["status"] != "completed":
                is_named(ended, life, {reason, "io"})
            outcomes[ended.result["status"]] += 1
            again = life.live([])
            assert same(again.result) == same(expected.result), life.explain(again.result)
    figure("outcomes", dict(outcomes))
    assert outcomes["failed"] > 0, outcomes


PARTS = [0.0, 0.2, 0.4, 0.6, 0.8, 0.95]
EMPTY = 61440
"""The size of a file without a run."""


@pytest.mark.parametrize("part", PARTS)
def test_a_file_that_may_not_grow(children: Children, part: float) -> None:
    """The same process goes on once there is room."""
    expected, size = unharmed(children, GROWING)
    with quick_folder() as folder:
        life = Life(children, folder, {"seed": GROWING})
        ended = life.process(limit=EMPTY + int(part * (size - EMPTY)) if part else 4000)
        is_named(ended, life, {"full", "io"})
        again = ended.result["again"]
        life.check(Ended(said=[[kind, *rest] for kind, *rest in ended.said if kind == "found"][1:]))
        assert same(again) == same(expected.result), life.explain(again)


@contextmanager
def small_disk(folder: Path, size: int) -> Generator[Path]:
    """A disk of so many bytes."""
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk; the other tests here have full disks too")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    """Change a disk that is mounted."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


@pytest.mark.parametrize("part", PARTS)
def test_a_disk_that_is_full(children: Children, part: float) -> None:
    expected, size = unharmed(children, GROWING)
    with quick_folder() as folder, small_disk(folder, 1 << 20) as place:
        life = Life(children, folder, {"seed": GROWING, "store": str(place / "runs.db")})
        room = EMPTY // 2 if part == 0.0 else EMPTY + int(part * (size - EMPTY))
        (place / "ballast").write_bytes(bytes((1 << 20) - room))
        ended = life.process()
        is_named(ended, life, {"full", "io"})
        remount(place, "size=4m")
        assert same(life.live([]).result) == same(expected.result), life.explain("it went on otherwise")


def test_a_disk_that_has_become_read_only(children: Children) -> None:
    expected, *_ = unharmed(children)
    with quick_folder() as folder, small_disk(folder, 1 << 20) as place:
        life = Life(children, folder, {"seed": SEED, "store": str(place / "runs.db")})
        assert life.process(("after", 4)).killed
        remount(place, "ro")
        is_named(life.process(), life, {"readonly", "permission"})
        remount(place, "rw")
        assert same(life.live([]).result) == same(expected.result), life.explain("it went on otherwise")


def test_a_file_that_may_not_be_written(children: Children) -> None:
    expected, *_ = unharmed(children)
    with quick_folder() as folder:
        life = Life(children, folder, {"seed": SEED})
        assert life.process(("after", 4)).killed
        # This user may write everything when it is the superuser; then somebody else is asked.
        user: dict[str, Any] = {"user": NOBODY} if os.geteuid() == 0 else {}
        files = [folder, *folder.iterdir()]
        for path in files:
            if user:
                shutil.chown(path, NOBODY, NOBODY)
        (folder / "runs.db").chmod(0o400)
        folder.chmod(0o500)
        try:
            is_named(life.process(**user), life, {"readonly", "permission"})
        finally:
            folder.chmod(0o700)
            (folder / "runs.db").chmod(0o600)
            for path in files:
                if user:
                    shutil.chown(path, 0, 0)
        assert same(life.live([]).result) == same(expected.result), life.explain("it went on otherwise")
