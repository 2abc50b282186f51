"""The power is lost: what was acknowledged is there, whole, and the run goes on to the same end.

A process is traced while it carries a run. From the trace the disk is rebuilt as it may be at a random point, many
times, and the real backend opens what is left.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import Harness, errors
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.testing._conformance.disk_image import Disk, DiskEvent, Files, read_trace, trace_options, write_files
from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.powered import ACKNOWLEDGED, RUN, TURNS, carried, talked
from tests.crash.tools import traced
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.needs("strace")

STATES = examples(sample=20, full=1000) // 4
"""How many states of the disk are looked at, of each of the four traces."""


@dataclass(frozen=True)
class Trace:
    """What a process did.

    Attributes:
        before: What was on the disk when it began.
        events: Its calls.
        value: What the run came to.
        records: Every record, as the process read them at the end.
        exclusive: How the file was opened.
        known: How many records had been acknowledged when it began.
    """

    before: Files
    events: Sequence[DiskEvent]
    value: Any
    records: Sequence[Record]
    exclusive: bool
    known: int = 0

    def disk(self) -> Disk:
        """The disk when it began."""
        return Disk(self.before)


def trace(children: Children, folder: Path, before: Files, *, exclusive: bool, known: int = 0) -> Trace:
    """Trace a process that begins the run, or goes on with it."""
    below = folder / "traced"
    write_files(below, before)
    pid = children.start("tests.crash.powered:carry", folder=str(below), traced=True, exclusive=exclusive)
    with traced(pid, *trace_options(folder / "log")):
        result = children.ended(pid).result
    events = read_trace(folder / "log", below, below / ACKNOWLEDGED)
    shutil.rmtree(below)
    records = [Record(kind, tuple(path), bytes.fromhex(payload)) for kind, path, payload in result["records"]]
    return Trace(before, events, result["value"], records, exclusive, known)


def in_a_commit(whole: Trace) -> tuple[Files, int]:
    """What a process leaves that is killed in the middle of a commit: its log ends with half a transaction.

    Returns:
        The files, and how many records it knew to be stored.
    """
    writes = [at for at, event in enumerate(whole.events) if event.call == "write"]
    end = next(at for at in writes[len(writes) * 2 // 3 :] if whole.events[at].name == "runs.db-wal")
    disk = whole.disk()
    for event in whole.events[: end + 1]:
        disk.do(event)
    return disk.now(), int(disk.acknowledged[-1])


@pytest.fixture(params=["from the beginning", "while it goes on"])
def resumed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "while it goes on")


known: dict[tuple[bool, bool], Trace] = {}


def traced_run(children: Children, *, exclusive: bool, resumed: bool) -> Trace:
    """What a process did; each is traced once."""
    if (exclusive, resumed) not in known:
        files: Files = {}
        acknowledged = 0
        if resumed:
            files, acknowledged = in_a_commit(traced_run(children, exclusive=exclusive, resumed=False))
        with quick_folder() as folder:
            known[exclusive, resumed] = trace(children, folder, files, exclusive=exclusive, known=acknowledged)
    return known[exclusive, resumed]


@pytest.fixture(params=["shared", "exclusive"])
def found(request: pytest.FixtureRequest, resumed: bool, children: Children) -> Trace:
    """What a process did."""
    return traced_run(children, exclusive=request.param == "exclusive", resumed=resumed)


@dataclass(frozen=True)
class State:
    """A disk whose power was lost.

    Attributes:
        at: Before which call.
        files: What is on it.
        acknowledged: How many records the process knew to be stored.
    """

    at: int
    files: Files
    acknowledged: int


def states(found: Trace, dice: random.Random, wanted: int, *, syncs: bool = True) -> list[State]:
    """So many states, at random points."""
    points = Counter(dice.randint(0, len(found.events)) for _ in range(wanted))
    disk = found.disk()
    made: list[State] = []
    for at in range(len(found.events) + 1):
        acknowledged = int(disk.acknowledged[-1]) if disk.acknowledged else found.known
        made += [State(at, disk.left(dice), acknowledged) for _ in range(points[at])]
        if at < len(found.events):
            disk.do(found.events[at], syncs=syncs)
    return made


async def stored(backend: SqliteBackend) -> Sequence[Record]:
    """Every record of the run, none when there is no run."""
    head = await backend.head(RUN)
    return [] if head is None else await backend.read(RUN)


async def problem(found: Trace, state: State, folder: Path) -> str | None:
    """What is wrong with a state; `None` when nothing is."""
    write_files(folder, state.files)
    try:
        async with SqliteBackend(folder / "runs.db", exclusive=found.exclusive) as backend:
            records = await stored(backend)
            if list(records) != list(found.records[: len(records)]):
                return "the records are others than were written"
            if len(records) < state.acknowledged:
                return f"{state.acknowledged} records were acknowledged, and {len(records)} are there"
            value = await carried(backend)
        with closing(sqlite3.connect(folder / "runs.db")) as connection:
            said = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    except (errors.NoeticError, sqlite3.DatabaseError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder)
    if value != found.value:
        return f"the run came to {value}, and not to {found.value}"
    return None if said == "ok" else said


def problems(found: Trace, tried: Sequence[State]) -> list[str]:
    """What is wrong with states, each with where it was."""

    async def look() -> list[str]:
        with quick_folder() as folder:
            told = [(state, await problem(found, state, folder / "disk")) for state in tried]
        return [f"seed {SEED}, before call {state.at} of {len(found.events)}: {what}" for state, what in told if what]

    return anyio.run(look)


def test_what_was_acknowledged_survives(found: Trace, resumed: bool, figure: Figure) -> None:
    tried = states(found, random.Random(f"{SEED} {found.exclusive} {resumed}"), STATES)
    wrong = problems(found, tried)
    figure("states", len(tried))
    figure("calls", len(found.events))
    figure("acknowledged", sum(state.acknowledged for state in tried))
    figure("wrong", len(wrong))
    assert wrong == []
    assert len(tried) == STATES
    # Many of them are in the middle of the run.
    assert sum(0 < state.acknowledged < len(found.records) for state in tried) > len(tried) / 5


@pytest.mark.parametrize("resumed", [False], indirect=False)
def test_a_disk_that_heeds_no_sync_loses_what_was_acknowledged(found: Trace, resumed: bool, figure: Figure) -> None:
    """So the states are hard enough: the same calls on a disk that lies about syncs lose data, and damage files."""
    tried = states(found, random.Random(SEED), 40, syncs=False)
    wrong = problems(found, tried)
    figure("states", len(tried))
    figure("wrong", len(wrong))
    assert len(wrong) > len(tried) / 2
    assert any("were acknowledged" in what for what in wrong)


@pytest.mark.parametrize("lost", ["runs.db-journal", "runs.db", "runs.db-wal", ""])
def test_every_kind_of_sync_is_needed(children: Children, lost: str, figure: Figure) -> None:
    """Leaving out the syncs of one file, or of the folder, is found too."""
    found = traced_run(children, exclusive=False, resumed=False)
    calls = found.events
    if lost == "runs.db-journal":
        # It is there while the file is made, and its syncs matter only then.
        calls = calls[: 20 + max(at for at, call in enumerate(calls) if call.call == "sync" and call.name == lost)]
    events = [event for event in calls if event.call != "sync" or event.name != lost]
    assert len(events) < len(calls)
    lying = Trace(found.before, events, found.value, found.records, found.exclusive)
    dice = random.Random(SEED)
    seen: set[tuple[int, frozenset[tuple[str, bytes]]]] = set()
    for tried in range(20, 1000, 20):
        # Near the beginning, where a journal matters, the same files are often left.
        made = {(state.acknowledged, frozenset(state.files.items())): state for state in states(lying, dice, 20)}
        wrong = problems(lying, [state for key, state in made.items() if key not in seen])
        seen |= made.keys()
        if wrong:
            figure("states", tried)
            figure("wrong", len(wrong))
            return
    pytest.fail(f"a thousand states were tried, and none shows that {lost or 'the folder'} has to be synced")


async def wrong_talk(state: State, folder: Path, *, exclusive: bool) -> str | None:
    """What is wrong with a conversation after a loss of power, and when its messages are delivered again."""
    write_files(folder, state.files)
    try:
        async with SqliteBackend(folder / "runs.db", exclusive=exclusive) as backend:
            async with Harness(checkpoints=backend, plugins=()) as harness:
                known = await harness.session("ada", "chat").items()
            if len(known) < 2 * state.acknowledged:
                return f"{state.acknowledged} turns had come back, and {len(known)} items are there"
            said = await talked(backend)
    except (errors.NoeticError, sqlite3.DatabaseError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder)
    expected = [text for turn in range(TURNS) for text in (f"message {turn}", f"re message {turn}")]
    return None if said == expected else f"the conversation is {said}"


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_a_turn_that_has_come_back_survives(children: Children, exclusive: bool, figure: Figure) -> None:
    """Some commits of a turn are synced with a later one; what is there is always a beginning of what was written."""
    with quick_folder() as folder:
        below = folder / "traced"
        write_files(below, {})
        pid = children.start("tests.crash.powered:converse", folder=str(below), traced=True, exclusive=exclusive)
        with traced(pid, *trace_options(folder / "log")):
            assert len(children.ended(pid).result) == 2 * TURNS
        found = Trace({}, read_trace(folder / "log", below, below / ACKNOWLEDGED), None, (), exclusive)

    async def look(tried: Sequence[State]) -> list[str]:
        with quick_folder() as folder:
            told = [(state, await wrong_talk(state, folder / "disk", exclusive=exclusive)) for state in tried]
        return [f"seed {SEED}, before call {state.at}: {what}" for state, what in told if what]

    tried = states(found, random.Random(f"{SEED} {exclusive}"), STATES)
    wrong = anyio.run(look, tried)
    figure("states", len(tried))
    figure("acknowledged", sum(state.acknowledged for state in tried))
    figure("wrong", len(wrong))
    assert wrong == []
    assert sum(0 < state.acknowledged < TURNS for state in tried) > len(tried) / 5
    # On a disk that heeds no sync, turns that had come back are lost.
    assert any("had come back" in what for what in anyio.run(look, states(found, random.Random(SEED), 40, syncs=False)))
