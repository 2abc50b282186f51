"""What a child process does with damaged files: read them in every way, and go on with the run in them."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
from typing_extensions import TypedDict

from noetic_py import Harness, errors
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.runner import lease
from noetic_py.runner.runs import RunInfo
from noetic_py.testing._random_programs.states import state_type
from tests.crash.jobs import KINDS, RUN, plain
from tests.crash.ledger import Ledger
from tests.crash.programs import Maker
from tests.crash.server import Say
from tests.properties.damage import PAGE, damage

Verdict: TypeAlias = Literal["noticed", "unharmed"]


class Asked(TypedDict):
    """What a child is told.

    Attributes:
        folder: Where it works.
        seed: Of the program.
        good: The sound file.
        others: Files with pages that do not belong into it: an older copy, another run's.
        first: The seed of the first damage.
        count: How many times to damage it.
        expected: What the run's result is, as JSON.
    """

    folder: str
    seed: int
    good: str
    others: list[str]
    first: int
    count: int
    expected: dict[str, Any]


def foreign_page(work: Path, other: Path, dice: random.Random) -> str:
    """Put a page of another file, or of an older state of this one, where there is one now."""
    data, theirs = bytearray(work.read_bytes()), other.read_bytes()
    at = dice.randrange(len(data) // PAGE) * PAGE
    source = at if dice.random() < 0.7 else dice.randrange(len(theirs) // PAGE) * PAGE
    data[at : at + PAGE] = theirs[source : source + PAGE].ljust(PAGE, b"\0")
    work.write_bytes(data)
    return f"page {at // PAGE} is page {source // PAGE} of {other.name}"


def damage_somehow(work: Path, others: list[str], seed: int) -> str:
    """Damage a file as a seed says; gives what was done."""
    dice = random.Random(seed)
    if dice.random() < 0.25:
        return foreign_page(work, Path(dice.choice(others)), dice)
    try:
        return damage(work, seed)
    except sqlite3.IntegrityError as error:
        # This run has no such row.
        return f"nothing: {error}"


async def everything(backend: SqliteBackend) -> list[Record]:
    """All records of the run."""
    found: list[Record] = []
    while page := await backend.read(RUN, after=len(found)):
        found += page
    return found


class Reader:
    """Reads one damaged file after the other.

    Args:
        asked: What to do.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.folder = Path(asked["folder"])
        self.flow = Maker(asked["seed"], Ledger(self.folder / "ledger", 0)).flow()
        self.state = state_type(KINDS[asked["seed"] % 3])

    async def look(self, path: Path) -> tuple[list[Record], list[object]]:
        """Whatever can be read of a file without changing it."""
        async with SqliteBackend(path) as backend, Harness(checkpoints=backend, plugins=()) as harness:
            records = await everything(backend)
            assert len(await read_journal(backend, RUN, lease.codec_for(self.flow, self.state))) == len(records)
            return records, [*await harness.runs.list(), await backend.head(RUN)]

    async def go_on(self, path: Path) -> dict[str, Any]:
        """The result of the run in a file."""
        async with SqliteBackend(path) as backend, Harness(checkpoints=backend, plugins=()) as harness:
            return plain(await harness.resume(RUN, self.flow, state_type=self.state, on_error="result"))

    async def judge(self, path: Path, sound: tuple[list[Record], list[object]], what: str, *, go_on: bool) -> Verdict:
        """Whether a damage was noticed, or has changed nothing that can be read.

        Args:
            path: The damaged file.
            sound: What was read before it was damaged.
            what: What was done to it.
            go_on: Whether to go on with the run too, which takes as long as everything else.

        Raises:
            AssertionError: It was neither.
        """
        try:
            seen = await self.look(path)
        except errors.CheckpointError:
            return "noticed"
        assert seen[0] == sound[0], f"{what}: other records, and no error"
        if any(isinstance(each, RunInfo) and each.problem for each in seen[1]):
            return "noticed"
        assert seen[1] == sound[1], f"{what}: {seen[1]} is listed, and no error"
        if not go_on:
            return "unharmed"
        try:
            result = await self.go_on(path)
        except errors.CheckpointError:
            return "noticed"
        if result["status"] == "failed":
            assert {name for name, _ in result["errors"]} <= {"CorruptRecord", "StoreUnavailable"}, (what, result)
            return "noticed"
        assert json.loads(json.dumps(result)) == self.asked["expected"], f"{what}: {result}"
        return "unharmed"

    async def read_all(self, say: Say) -> dict[Verdict, int]:
        """Damage the file again and again, and count how that went."""
        counts: dict[Verdict, int] = {"noticed": 0, "unharmed": 0}
        good, work = Path(self.asked["good"]), self.folder / "work.db"
        shutil.copy(good, work)
        sound = await self.look(work)
        for seed in range(self.asked["first"], self.asked["first"] + self.asked["count"]):
            for path in self.folder.glob("work.db*"):
                path.unlink()
            shutil.copy(good, work)
            what = f"damage {seed}, {damage_somehow(work, self.asked['others'], seed)}"
            say(["damage", what])
            counts[await self.judge(work, sound, what, go_on=seed % 3 == 0)] += 1
        return counts


def read_damaged(asked: Asked, say: Say) -> dict[Verdict, int]:
    """Read many damaged files; says first what it did to each, so that a crash can be repeated."""
    return anyio.run(Reader(asked).read_all, say)
