"""One run, killed at every call that writes, syncs or makes a file: nothing acknowledged is lost, nothing half done.

A process and its threads are traced, and the kernel kills it as it enters its k-th call of a kind. The same is done to
a process that goes on with a run that was killed in the middle of a commit: its log ends with half a transaction.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.effects import Till
from tests.crash.folders import quick_folder
from tests.crash.lives import Life, same
from tests.crash.tools import counted, spread
from tests.properties.checks import examples

pytestmark = pytest.mark.needs("strace")

CALLS = ("pwrite64", "fdatasync", "fsync", "write", "ftruncate", "unlink", "rename", "openat")
POINTS = examples(sample=3, full=10_000)
"""How many calls of each of the four are tried; every one of them in the full set."""

MIDDLE = 90
"""A call to `pwrite64` in the middle of a run, which is not the last of its commit."""

Point = tuple[str, int]


def begun(children: Children, folder: Path, flow: str, seed: int, *, resumed: bool) -> Life:
    """A run that has not begun, or one that was killed in a commit, with half a transaction in its log."""
    life = Life(children, folder, {"flow": flow, "seed": seed})
    if resumed:
        ended = life.process(trace=(*only(), "-e", f"inject=pwrite64:signal=KILL:when={MIDDLE}"))
        assert ended.killed, life.explain("it should have died in the middle of a commit")
        life.kills.append(("pwrite64", MIDDLE))
    return life


def only() -> Sequence[str]:
    """Trace the calls that matter here, and write nothing down."""
    return "-o", "/dev/null", "-e", f"trace={','.join(CALLS)}"


def sound(folder: Path) -> str:
    """What SQLite says of a copy of the file and its journal."""
    copy = folder / "copy"
    copy.mkdir()
    for path in folder.glob("runs.db*"):
        shutil.copy(path, copy)
    try:
        with closing(sqlite3.connect(copy / "runs.db")) as connection:
            return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        shutil.rmtree(copy)


def killed_at(children: Children, point: Point, flow: str, seed: int, *, resumed: bool) -> tuple[Life, bool, object]:
    """Kill a process at a call, and let another one end the run."""
    name, number = point
    with quick_folder() as folder:
        life = begun(children, folder, flow, seed, resumed=resumed)
        ended = life.process(trace=(*only(), "-e", f"inject={name}:signal=KILL:when={number}"))
        life.kills.append((name, number))
        assert sound(folder) == "ok", life.explain("the file is damaged")
        result = ended.result
        if ended.killed:
            result = life.live([]).result
        assert sound(folder) == "ok", life.explain("the file is damaged at the end")
        return life, ended.killed, (same(result), Till(folder).done_keyed())


@pytest.mark.parametrize("resumed", [False, True], ids=["from the beginning", "while it goes on"])
@pytest.mark.parametrize(("flow", "seed"), [("program", 33), ("effects", 10)])
def test_a_kill_at_every_call(children: Children, flow: str, seed: int, resumed: bool, figure: Figure) -> None:
    with quick_folder() as folder:
        life = begun(children, folder, flow, seed, resumed=resumed)
        log = folder / "log"
        whole = life.process(trace=("-o", str(log), "-e", f"trace={','.join(CALLS)}"))
        assert whole.result["status"] == "completed"
        expected = (same(whole.result), Till(folder).done_keyed())
        counts = counted(log)
        assert counts["fdatasync"] > 2
    points = [(name, number + 1) for name in CALLS for number in range(counts.get(name, 0))]
    killed = 0
    tried = spread(points, POINTS)
    for point in tried:
        life, dead, result = killed_at(children, point, flow, seed, resumed=resumed)
        killed += dead
        assert result == expected, life.explain(result)
    figure("calls", counts)
    figure("points", len(tried))
    figure("kills", killed)
    assert killed > len(tried) * 0.8
