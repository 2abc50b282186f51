"""Adds a history: `python -m tests.histories.record PROGRAM NAME [--dies-at N [--after] [--again-at N]] [--fork-at N]
[--sums-every N]`.

The program is run on SQLite. With `--dies-at` its process dies before its N-th append, or after it with `--after`;
with `--again-at` the process that goes on with it, and adopts what differs, dies before its N-th append too; with
`--fork-at` the run is forked at its N-th record, and the fork is what is resumed. With `--sums-every` the rounds of its
loops are summed up more often than in a release. The file as it is then becomes
`recorded/NAME.sql`. A copy of it is resumed, and what came of that becomes `recorded/NAME.json`. What is there already
is never written again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from noetic_py.checkpoints import InMemoryBackend, SqliteBackend
from noetic_py.engine.journaling import summaries
from noetic_py.engine.kinds import loop
from noetic_py.testing import FaultyBackend
from tests.histories.programs import PROGRAMS
from tests.histories.recording import FOLDER, RUN, History, begin, die_again, dumped, go_on, harness_for, write_history

FORK = "fork"


async def record(given: argparse.Namespace, folder: Path) -> History:
    """Run, look at what came of it, and write that down."""
    program = PROGRAMS[given.program]()
    path = folder / "runs.db"
    async with SqliteBackend(path) as kept:
        backend = FaultyBackend(kept, dies_at=given.dies_at, when="after" if given.after else "before")
        ended = await begin(program, backend)
        if (ended is None) != (given.dies_at is not None):
            raise SystemExit(f"it made {backend.appends} appends, and {'died' if ended is None else 'ended'}")
        if given.again_at is not None:
            await die_again(program, backend, given.again_at)
            if not backend.dead:
                raise SystemExit(f"the second process made {backend.appends} appends, and ended")
        run_id = RUN
        if given.fork_at is not None:
            async with harness_for(program, kept) as harness:
                run_id = await harness.fork(RUN, at=given.fork_at)
    dump = dumped(path)
    outcome, _ = await go_on(History(given.name, given.program, run_id, {}), path)
    if outcome["error"] is None or outcome["error"][0] not in ("StepOutcomeUnknown", "BudgetExceeded"):
        # An outcome that nobody knows, and a call that counts as possibly spent, are what a kill may change.
        await compare(given.program, outcome, 1 if given.again_at is None else 2)
    history = History(given.name, given.program, run_id, outcome)
    made_by: dict[str, Any] = {"release": version("noetic-py"), "dies_at": given.dies_at}
    made_by |= {"when": "after" if given.after else "before"} if given.dies_at is not None else {}
    made_by |= {"again_at": given.again_at} if given.again_at is not None else {}
    made_by |= {"fork_at": given.fork_at} if given.fork_at is not None else {}
    made_by |= {"sums_every": given.sums_every} if given.sums_every is not None else {}
    write_history(history, dump, made_by)
    return history


async def compare(name: str, outcome: Mapping[str, Any], process: int) -> None:
    """What a resumed run comes to is what a run comes to that nobody stopped; a state's class may have got fields."""
    whole = await begin(PROGRAMS[name](), FaultyBackend(InMemoryBackend()), process=process)
    compared = ["status", "value", "error", "items"]
    compared += [] if PROGRAMS[name]().state_type else ["state"]
    assert whole is not None
    differs = {part: (whole[part], outcome[part]) for part in compared if whole[part] != outcome[part]}
    if differs:
        raise SystemExit(f"the resumed run differs from a whole one: {differs}")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.record", description="Add a history.")
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("name")
    parser.add_argument("--dies-at", type=int)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--again-at", type=int)
    parser.add_argument("--fork-at", type=int)
    parser.add_argument("--sums-every", type=int)
    given = parser.parse_args()
    if given.sums_every is not None:
        summaries.EVERY, summaries.SHARE, loop.KEPT = given.sums_every, 0, 1
    if (FOLDER / f"{given.name}.sql").exists() or (FOLDER / f"{given.name}.json").exists():
        raise SystemExit(f"{given.name} is recorded already, and a history never changes")
    with TemporaryDirectory() as folder:
        history = anyio.run(record, given, Path(folder))
    sys.stdout.write(f"{history.name}: {history.outcome['status']}, began {history.outcome['began']}\n")


if __name__ == "__main__":
    main()
