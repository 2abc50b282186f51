"""Files that were damaged: a named error, or exactly what was written; never anything else, and never a crash."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.children import Children, Ended
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.lives import Life, same
from tests.properties.checks import SEED, examples

DAMAGES = examples(sample=20, full=5000)
"""How many times a file is damaged: of a run that is over, and of one that was killed in the middle."""

AT_ONCE = 100
PROGRAM = 13


def stored(life: Life, name: str) -> str:
    """Keep a copy of a run's file, which no process has open, with all that a killed one has left in its log."""
    with closing(sqlite3.connect(life.folder / "runs.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return str(shutil.copy(life.folder / "runs.db", life.folder / name))


def files(children: Children, folder: Path) -> tuple[list[str], Ended]:
    """A run's file at three moments, the last of them its end; and the run's result."""
    life = Life(children, folder, {"seed": PROGRAM})
    found: list[str] = []
    for name, at in (("early", 20), ("half", 25)):
        assert life.process(("after", at)).killed
        found.append(stored(life, name))
    ended = life.live([])
    return [*found, stored(life, "done")], ended


@pytest.mark.parametrize("moment", ["half", "done"])
def test_damage_is_noticed_or_harmless(children: Children, moment: str, figure: Figure) -> None:
    counts: Counter[str] = Counter()
    with quick_folder() as folder, quick_folder() as other, quick_folder() as work:
        (early, half, done), ended = files(children, folder)
        (foreign, *_), _ = files(children, other)
        while counts.total() < DAMAGES // 2:
            pid = children.start(
                "tests.crash.damaged:read_damaged",
                folder=str(work),
                seed=PROGRAM,
                good=half if moment == "half" else done,
                others=[early, foreign],
                first=SEED * 1_000_000 + counts.total(),
                count=min(AT_ONCE, DAMAGES // 2),
                expected=same(ended.result),
            )
            reader = children.ended(pid)
            assert not reader.killed, f"it crashed: {reader.said[-1]}"
            counts.update(reader.result)
    figure("damages", dict(counts))
    assert counts["noticed"] > counts.total() / 4
    assert counts["unharmed"] > 0
