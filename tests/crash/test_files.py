"""Runs that are kept in a folder of files: killed at system calls, by two owners at once, and on disks that fail."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py.checkpoints import FileBackend
from noetic_py.testing._conformance.base import everything
from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import Life, a_life_and_deaths, same, two_at_once
from tests.crash.test_disks import is_named, remount, small_disk
from tests.crash.tools import counted, spread
from tests.properties.checks import SEED, examples

CALLS = ("write", "fsync", "ftruncate", "rename", "mkdir", "link", "unlink", "openat")
POINTS = examples(sample=6, full=10_000)
"""How many calls are tried; every one of them in the full set."""

RUNS = examples(sample=2, full=200)
TOGETHER = examples(sample=3, full=200)
FAULTS = examples(sample=2, full=50)
"""At how many calls of each kind the disk fails."""

PROGRAM = 33
EFFECTS = 10
KEPT_APART = {"blob_threshold": 200}
"""So that these runs have large payloads too."""


def life_in(children: Children, folder: Path, seed: int, **more: Any) -> Life:
    given = {"seed": seed, "store": f"files:{folder}/runs", "settings": KEPT_APART, **more}
    return Life(children, folder, given)


@contextmanager
def new_life(children: Children, seed: int) -> Generator[Life]:
    with quick_folder() as folder:
        yield life_in(children, folder, seed)


def sound(folder: Path) -> None:
    """All that is there can be read, and nothing that was half made is seen."""

    async def read() -> None:
        async with FileBackend(copy) as backend:
            for entry in await backend.list():
                assert len(await everything(backend, entry.run_id)) == entry.position
            assert not any((copy / "tmp").iterdir())

    copy = folder.with_name("copy")
    if folder.exists():
        shutil.copytree(folder, copy)
        try:
            anyio.run(read)
        finally:
            shutil.rmtree(copy)


def test_a_life_and_deaths(children: Children, figure: Figure) -> None:
    kills: Counter[str] = Counter()
    for seed in range(SEED * 1_000_000, SEED * 1_000_000 + RUNS):
        kills += a_life_and_deaths(partial(new_life, children), seed)[0]
    figure("kills", dict(kills))
    assert kills.total() > RUNS / 2


def test_two_that_begin_at_one_moment(children: Children, figure: Figure) -> None:
    seen = Counter(two_at_once(partial(new_life, children), SEED * 1_000_000 + trial) for trial in range(TOGETHER))
    figure("trials", dict(seen))
    assert seen.total() == TOGETHER


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("flow", "seed"), [("program", PROGRAM), ("effects", EFFECTS)])
def test_a_kill_at_every_call(children: Children, flow: str, seed: int, figure: Figure) -> None:
    with quick_folder() as folder:
        log = folder / "log"
        whole = life_in(children, folder, seed, flow=flow).process(
            trace=("-o", str(log), "-e", f"trace={','.join(CALLS)}")
        )
        assert whole.result["status"] == "completed"
        counts = counted(log)
    assert counts["fsync"] > 20
    points = [(name, number + 1) for name in CALLS for number in range(counts.get(name, 0))]
    killed = 0
    tried = spread(points, POINTS)
    for name, number in tried:
        with quick_folder() as folder:
            life = life_in(children, folder, seed, flow=flow)
            only = ("-o", "/dev/null", "-e", f"trace={','.join(CALLS)}")
            ended = life.process(trace=(*only, "-e", f"inject={name}:signal=KILL:when={number}"))
            life.kills.append((name, number))
            killed += ended.killed
            sound(folder / "runs")
            result = life.live([]).result if ended.killed else ended.result
            sound(folder / "runs")
            assert same(result) == same(whole.result), life.explain(result)
    figure("calls", counts)
    figure("points", len(tried))
    figure("kills", killed)
    assert killed > len(tried) * 0.8


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("name", "error", "reason", "onwards"),
    [
        ("fsync", "EIO", "io", ""), ("fsync", "EIO", "io", "+"), ("rename", "EIO", "io", ""),
        ("rename", "ENOSPC", "full", "+"), ("link", "EIO", "io", "+"),
    ],
)  # fmt: skip
def test_a_disk_that_fails_at_a_call(
    children: Children, name: str, error: str, reason: str, onwards: str, figure: Figure
) -> None:
    with quick_folder() as folder:
        log = folder / "log"
        whole = life_in(children, folder, PROGRAM).process(trace=("-o", str(log), "-e", f"trace={name}"))
        count = counted(log)[name]
    outcomes: Counter[str] = Counter()
    for _, number in spread([(name, at + 1) for at in range(count)], FAULTS):
        with quick_folder() as folder:
            life = life_in(children, folder, PROGRAM)
            inject = f"inject={name}:error={error}:when={number}{onwards}"
            ended = life.process(trace=("-o", "/dev/null", "-e", f"trace={name}", "-e", inject))
            life.kills.append((f"{name} {error}{onwards}", number))
            if ended.result["status"] != "completed":
                is_named(ended, life, {reason})
            outcomes[ended.result["status"]] += 1
            again = life.live([])
            assert same(again.result) == same(whole.result), life.explain(again.result)
    figure("outcomes", dict(outcomes))
    assert outcomes["failed"] + outcomes["refused"] > 0, outcomes


@pytest.mark.parametrize("limit", [60, 600, 1400])
def test_files_that_may_not_grow(children: Children, limit: int) -> None:
    """The same process goes on once there is room."""
    with quick_folder() as folder:
        whole = life_in(children, folder, PROGRAM).live([])
    with quick_folder() as folder:
        life = life_in(children, folder, PROGRAM)
        ended = life.process(limit=limit)
        is_named(ended, life, {"full"})
        life.check(Ended(said=[[kind, *rest] for kind, *rest in ended.said if kind == "found"][1:]))
        assert same(ended.result["again"]) == same(whole.result), life.explain(ended.result["again"])


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.8])
def test_a_disk_that_is_full(children: Children, part: float) -> None:
    with quick_folder() as folder:
        whole = life_in(children, folder, PROGRAM).live([])
        used = sum(path.stat().st_blocks * 512 for path in (folder / "runs").rglob("*"))
    with quick_folder() as folder, small_disk(folder, 4 << 20) as place:
        life = life_in(children, folder, PROGRAM, store=f"files:{place}/runs")
        (place / "ballast").write_bytes(bytes((4 << 20) - int(part * used) // 4096 * 4096))
        is_named(life.process(), life, {"full"})
        remount(place, "size=8m")
        assert same(life.live([]).result) == same(whole.result), life.explain("it went on otherwise")


def test_a_disk_that_has_become_read_only(children: Children) -> None:
    with quick_folder() as folder:
        whole = life_in(children, folder, PROGRAM).live([])
    with quick_folder() as folder, small_disk(folder, 4 << 20) as place:
        life = life_in(children, folder, PROGRAM, store=f"files:{place}/runs")
        assert life.process(("after", 4)).killed
        remount(place, "ro")
        is_named(life.process(), life, {"readonly"})
        remount(place, "rw")
        assert same(life.live([]).result) == same(whole.result), life.explain("it went on otherwise")
