"""Journals of earlier releases: every one of them is read, and every run goes on from where it was.

What the files are, and how one is added, is said in `tests/histories/README.md`.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

from noetic_py import Harness
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.core.values import is_mapping
from noetic_py.journal.records import JournalRecord, RunBegun, RunEnded, dump_record, load_record
from noetic_py.runner.lease import codec_for
from tests.crash.folders import quick_folder
from tests.histories.programs import PROGRAMS
from tests.histories.recording import (
    History,
    decoded,
    finished_bodies,
    go_on,
    read_histories,
    tried_again,
)
from tests.properties.checks import FULL

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parent.parent
HISTORIES = {history.name: history for history in read_histories()}


# The release that recorded it counted a step once more that was begun again when the run was resumed.
MISCOUNTED = {"out_of_money": {"steps": 3}}


@pytest.fixture
def folder() -> Generator[Path]:
    """Where the files are made again: in memory where there is one, for nothing here is about disks."""
    with quick_folder() as made:
        yield made


@pytest.fixture
def history(request: pytest.FixtureRequest) -> History:
    return HISTORIES[request.param]


every_history = pytest.mark.parametrize("history", list(HISTORIES), indirect=True)


@every_history
async def test_every_record_is_read(history: History, folder: Path) -> None:
    path = history.restore(folder)
    records = await decoded(history, path)
    async with SqliteBackend(path) as backend:
        head = await backend.head(history.run)
        # Without the flow's classes too, as `noetic show` does.
        plain = await Harness(plugins=(), checkpoints=backend).runs.journal(history.run)
    assert head is not None
    assert len(records) == len(plain) == head.position
    assert [type(record) for record in plain] == [type(record) for record in records]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def said(stored: Record) -> Any:
    """A record's JSON, without what says nothing."""
    tree = json.loads(stored.payload)
    return {name: part for name, part in tree.items() if part is not None} if is_mapping(tree) else tree


@every_history
async def test_nothing_that_was_stored_is_overlooked(history: History, folder: Path) -> None:
    """A record that is written again says the same. A release that writes another form says here what is equal."""
    path = history.restore(folder)
    program = history.made()
    codec = codec_for(program.flow, *([] if program.state_type is None else [program.state_type]))
    async with SqliteBackend(path) as backend:
        for stored in await backend.read(history.run):
            record = load_record(stored, codec)
            # Heads and stops hold values that stay as they were stored until somebody names their types.
            if not isinstance(record, RunBegun) and getattr(record, "control", None) is None:
                assert said(dump_record(record, codec)) == said(stored)


# The sample has a run of each program, and all of them are read.
PROGRAMS_ONCE = {history.program: name for name, history in HISTORIES.items()}


@pytest.mark.parametrize("history", list(HISTORIES if FULL else PROGRAMS_ONCE.values()), indirect=True)
async def test_every_run_goes_on(history: History, folder: Path) -> None:
    path = history.restore(folder)
    records = await decoded(history, path)
    finished = finished_bodies(records, history.run)
    outcome, written = await go_on(history, path)
    assert outcome == {**history.outcome, **MISCOUNTED.get(history.name, {})}
    after = await decoded(history, path)
    retried = tried_again(after[len(records) :])
    again = {path for path in finished.intersection(outcome["began"]) if not path.startswith(tuple(retried))}
    assert not again, "a body that had finished has run again"
    ended = records[-1] if isinstance(records[-1], RunEnded) else None
    if ended is not None and ended.status in ("completed", "aborted"):
        assert (outcome["status"], outcome["began"], written) == (ended.status, [], 0)
    if outcome["status"] == "completed":
        # And then it is over for good.
        assert await go_on(history, path) == ({**outcome, "began": []}, 0)


async def test_the_histories_hold_every_kind_of_record(folder: Path) -> None:
    found: set[type[object]] = set()
    unfinished = 0
    for number, history in enumerate(HISTORIES.values()):
        below = folder / str(number)
        below.mkdir()
        records = await decoded(history, history.restore(below))
        found |= {type(record) for record in records}
        unfinished += not isinstance(records[-1], RunEnded)
    assert found >= set(get_args(JournalRecord))
    assert {history.program for history in HISTORIES.values()} == set(PROGRAMS)
    assert len(HISTORIES) >= 90
    assert unfinished >= 45


def test_a_history_is_never_written_again() -> None:
    command = [sys.executable, "-m", "tests.histories.record", "typed", "typed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "typed is recorded already, and a history never changes"


@pytest.mark.parametrize(("was", "becomes"), [(b"repeatable", b"REPEATABLE"), (b'"o":23', b'"o":24')])
async def test_a_history_that_differs_is_found(was: bytes, becomes: bytes, folder: Path) -> None:
    """The files say what they say: a byte that is changed in one is a failure here."""
    history = HISTORIES["replay_kinds"]
    path = history.restore(folder)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, body FROM transactions").fetchall()
        changed = [(body.replace(was, becomes), number) for number, body in rows if was in body]
        assert changed
        connection.executemany("UPDATE transactions SET body = ? WHERE id = ?", changed)
        connection.commit()
    assert await go_on(history, path) == ({"status": "refused", "error": ["CorruptRecord", ""], "began": []}, 0)
