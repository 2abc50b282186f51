"""Workers are killed while they carry out runs: all runs complete, and no step that was stored is done again."""

from __future__ import annotations

import random

import anyio
import pytest

from noetic_py.checkpoints import SqliteBackend
from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.working import Workers, carried_out
from tests.properties.checks import SEED, examples

RUNS = examples(sample=20, full=1000)
KILLS = examples(sample=4, full=100)


@pytest.mark.parametrize("spread", [False, True], ids=["whole", "spread"])
def test_workers_that_are_killed(children: Children, figure: Figure, spread: bool) -> None:
    """Workers that carry out whole runs, and such that carry out parts of a run as runs of their own."""
    with quick_folder() as folder:
        path = folder / "runs.db"
        workers = Workers(children, str(path), folder / "lines", random.Random(SEED), spread=spread)

        async def main() -> None:
            async with SqliteBackend(path) as backend:
                came = await carried_out(backend, workers, RUNS, KILLS)
            figure("runs", RUNS)
            figure("kills", came.kills)
            figure("seconds", round(came.seconds, 1))
            figure("longest takeover, seconds", round(came.longest, 2))
            # In SQLite a run is free as soon as its process has ended; the rest is what other runs take.
            assert came.longest < 5.0

        anyio.run(main)
