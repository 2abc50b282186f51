"""The SQLite backend: the contract in every journal mode, and what only a file can do and suffer."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from noetic_py import Harness
from noetic_py.checkpoints import (
    BudgetChange,
    BudgetRow,
    CheckpointBackend,
    Head,
    InMemoryBackend,
    Queued,
    Record,
    Signal,
    SqliteBackend,
    Transaction,
    backend_from,
    locks,
)
from noetic_py.checkpoints.sqlite import schema, store
from noetic_py.checkpoints.sqlite.schema import LONGEST
from noetic_py.checkpoints.sqlite.store import SqliteStore
from noetic_py.checkpoints.threads import Job
from noetic_py.errors import (
    CheckpointError,
    CheckpointFailed,
    CodecError,
    ConfigError,
    CorruptRecord,
    LeaseLost,
    LimitExceeded,
    NoeticError,
    PositionConflict,
    RunBusy,
    StoreUnavailable,
)
from noetic_py.testing import VirtualRuntime
from noetic_py.testing._conformance.base import SCOPE, everything, fill, payloads, record
from noetic_py.testing._conformance.concurrency import Cancelling, Concurrency
from noetic_py.testing._conformance.leases import Leases
from noetic_py.testing.conformance import BackendContract, DamageContract, LastingContract, QueueContract
from tests.properties.damage import ROWS, damage, damage_row

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parent.parent
BIG = b"x" * 20_000


def place_of(backend: CheckpointBackend) -> schema.OpenFile | None:
    assert isinstance(backend, SqliteBackend)
    return backend._opening._place


async def become_another_owner(backend: CheckpointBackend) -> None:
    """As if the process had died and another one had come: the kernel has freed what it held."""
    place = place_of(backend)
    if place is not None:
        another_owner(place.locks)


def another_owner(mine: locks.Locks) -> None:
    with locks._guard:
        mine._file.held.discard(mine.owner)
        locks._unlock(mine._file.handle, mine.owner)
        mine.owner = mine._become_owner()


@contextmanager
def connections(prepare: Callable[[sqlite3.Connection], object]) -> Generator[None]:
    """Do something to every connection that is opened."""
    before = schema.connect

    def connect(settings: schema.Settings) -> sqlite3.Connection:
        connection = before(settings)
        prepare(connection)
        return connection

    schema.connect = connect
    try:
        yield
    finally:
        schema.connect = before


class TestWriteAheadLog(BackendContract, QueueContract, LastingContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "runs.db")

    async def lapse(self, backend: CheckpointBackend) -> None:
        await become_another_owner(backend)


class TestExclusive(Leases, Concurrency, Cancelling):
    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "runs.db", exclusive=True)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await become_another_owner(backend)


class TestDamage(DamageContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "runs.db")

    async def damage(self, folder: Path, seed: int) -> None:
        damage(folder / "runs.db", seed)


# -- which journal


@contextmanager
def read_by_another(path: Path) -> Generator[sqlite3.Connection]:
    """Another program reads the file, which it has given a rollback journal."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        assert other.execute("PRAGMA journal_mode = PERSIST").fetchone() == ("persist",)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        yield other


async def test_it_says_which_journal_and_why(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        described = await backend.describe()
        assert (backend.durability, backend.shared) == ("power", False)
    assert described["path"] == str(tmp_path / "runs.db")
    assert described["sqlite"] == sqlite3.sqlite_version
    assert described["synchronous"] == "full"
    assert described["journal"] == "wal"
    assert "syncs once" in described["why"]
    async with SqliteBackend(tmp_path / "other.db", exclusive=True) as backend:
        described = await backend.describe()
        assert described["journal"] == "wal"
        assert "no other process" in described["why"]


async def test_a_file_of_a_rollback_journal_gets_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        written = await fill(backend, "r", 2)
    with read_by_another(path):
        pass
    async with SqliteBackend(path) as backend:
        assert (await backend.describe())["journal"] == "wal"
        assert await everything(backend, "r") == written


async def test_a_file_that_another_program_reads_keeps_its_journal_until_then(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        written = await fill(backend, "r", 2)
    backend = SqliteBackend(path, busy_timeout=0.1)
    with read_by_another(path) as other:
        described = await backend.describe()
        assert described["journal"] == "persist"
        assert "another program" in described["why"]
        assert await everything(backend, "r") == written
        other.execute("COMMIT")
        written += await fill(backend, "r", 1)
        # Another process finds the file free, and changes the mode; this one goes on in that.
        async with SqliteBackend(path) as second:
            assert (await second.describe())["journal"] == "wal"
            written += await fill(backend, "r", 1)
            assert (await backend.describe())["journal"] == "wal"
            written += await fill(second, "r", 1)
            assert await everything(backend, "r") == written
    await backend.close()


async def test_an_exclusive_file_that_another_program_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
    with read_by_another(path):
        backend = SqliteBackend(path, exclusive=True, busy_timeout=0.1)
        with pytest.raises(StoreUnavailable) as caught:
            await backend.head("r")
        assert caught.value.reason in ("sqlite", "busy")
        await backend.close()


@pytest.mark.parametrize("exclusive", [False, True])
async def test_every_commit_reaches_the_disk(tmp_path: Path, exclusive: bool) -> None:
    settings = {"synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1, "secure_delete": 1, "trusted_schema": 0}

    def look(store: SqliteStore) -> dict[str, object]:
        return {name: (store._one(f"PRAGMA {name}") or (None,))[0] for name in settings}

    async with SqliteBackend(tmp_path / "runs.db", exclusive=exclusive) as backend:
        assert await backend._pool.run(Job(look, write=False)) == settings


# -- group commit


def commits(statements: list[str]) -> int:
    return sum(each.startswith("COMMIT") for each in statements)


async def test_writers_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    statements: list[str] = []
    with connections(lambda connection: connection.set_trace_callback(statements.append)):
        async with SqliteBackend(tmp_path / "runs.db") as backend:
            await fill(backend, "r", 1)
            statements.clear()
            await fill(backend, "r", *[1] * 10)
            assert commits([each for each in statements if "COMMIT" in each]) >= 10
            statements.clear()
            async with anyio.create_task_group() as group:
                for n in range(100):
                    group.start_soon(
                        partial(backend.append, f"r{n}", expected_position=0, fence=0, records=[record("x")])
                    )
            assert sum("SAVEPOINT" in each for each in statements) >= 90
            assert commits(statements) <= 25
            statements.clear()
            done = await backend.commit([Transaction(f"s{n}", 0, 0, [record("x")]) for n in range(100)])
            assert [each.position for each in done] == [1] * 100
            assert commits(statements) == 1


async def test_one_that_fails_in_sqlite_takes_nobody_with_it(tmp_path: Path) -> None:
    with connections(lambda connection: connection.execute("PRAGMA max_page_count = 60")):
        async with SqliteBackend(tmp_path / "runs.db") as backend:
            await fill(backend, "r", 1)
            outcomes: dict[str, object] = {}

            async def append(run_id: str, position: int, payload: bytes) -> None:
                try:
                    outcomes[run_id] = await backend.append(
                        run_id, expected_position=position, fence=0, records=[Record("K", (), payload)]
                    )
                except (StoreUnavailable, PositionConflict) as error:
                    outcomes[run_id] = getattr(error, "reason", type(error))

            async with anyio.create_task_group() as group:
                for run_id, position, size in (("a", 0, 9), ("b", 0, 1_000_000), ("c", 0, 9), ("late", 9, 9)):
                    group.start_soon(append, run_id, position, os.urandom(size))
            assert outcomes == {"a": 1, "b": "full", "c": 1, "late": PositionConflict}
            assert await backend.head("b") is None
            given = [Transaction("d", 0, 0, [record("small")]), Transaction("b", 0, 0, [Record("K", (), bytes(10**6))])]
            with pytest.raises(StoreUnavailable):
                await backend.commit(given)
            assert [await backend.head(run_id) for run_id in ("b", "d")] == [None, None]


async def test_bytes_a_step_stay_flat(tmp_path: Path) -> None:
    size = 1200
    sizes: list[int] = []
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        for first, last in ((0, 100), (100, 1000), (1000, 4000)):
            before = (await backend.stats()).bytes
            for start in range(first, last, 100):
                for n in range(start, start + 100):
                    records = [Record("StepFinished", ("flow", "a[3]", "b#2"), os.urandom(size))]
                    await backend.append("r", expected_position=n, fence=0, records=records)
            sizes.append(((await backend.stats()).bytes - before) // (last - first))
    assert all(size < each < size * 1.3 for each in sizes), sizes


async def test_a_fork_writes_nothing_twice(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), os.urandom(10_000))] * 50)
        before = (await backend.stats()).bytes
        for n in range(20):
            await backend.fork("r", at=50, new_run_id=f"f{n}")
        assert (await backend.stats()).bytes - before < 40_000


# -- other processes


CHILD = """
import os, sys
import anyio
from noetic_py.checkpoints import FileBackend, Record, SqliteBackend
from noetic_py.errors import NoeticError

path, loop, work, *more = sys.argv[1:]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

async def own(backend):
    lease = await backend.acquire("r", ttl=0.001)
    await backend.append("r", expected_position=0, fence=lease.fence, records=[Record("K", (), b"mine")])
    say("owner", lease.fence)
    await anyio.sleep_forever()

async def writer(backend, run_id):
    position = 0
    while True:
        records = [Record("K", (), b"%s/%d" % (run_id.encode(), position + n)) for n in range(3)]
        position = await backend.append(run_id, expected_position=position, fence=0, records=records)
        say(run_id, position)

async def write(backend):
    async with anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(writer, backend, f"r{n}")

async def count(backend):
    added = 0
    while added < 100:
        found = await backend.get(("s",), "n")
        value, version = (0, 0) if found is None else (int(found.value), found.version)
        try:
            await backend.put(("s",), "n", b"%d" % (value + 1), expected=version)
            added += 1
        except NoeticError as error:
            if type(error).__name__ != "VersionConflict":
                raise
    say("counted", added)

async def create(backend):
    for n in range(int(more[1])):
        records = [Record("K", (), b"%d" % os.getpid())]
        try:
            await backend.append(f"r{n}", expected_position=0, fence=0, records=records)
            say("mine", n)
        except NoeticError as error:
            say(type(error).__name__, n)

async def main():
    made = FileBackend(path) if "files" in more else SqliteBackend(path, exclusive="exclusive" in more)
    async with made as backend:
        say("open")
        await globals()[work](backend)

anyio.run(main, backend=loop)
"""


@contextmanager
def child(path: Path, loop: str, work: str, *more: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD, str(path), loop, work, *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield line.split()


Made: TypeAlias = Callable[[Path], CheckpointBackend]


async def see_a_killed_owner_replaced(path: Path, loop: str, make: Made, *more: str) -> None:
    with child(path, loop, "own", *more) as process:
        fence = int(next(lines(process))[1])
        async with make(path) as backend:
            # Its time is long over, but it lives.
            with pytest.raises(RunBusy):
                await backend.acquire("r", ttl=60.0)
            with pytest.raises(RunBusy):
                await backend.delete("r")
            assert await backend.prune(keep=0) == 0
            assert [each.held for each in await backend.list()] == [True]
            process.send_signal(signal.SIGKILL)
            process.wait()
            with anyio.fail_after(10):  # far below its time
                lease = await backend.acquire("r", ttl=60.0)
            assert lease.fence > fence
            assert payloads(await everything(backend, "r")) == [b"mine"]
            with pytest.raises(LeaseLost):
                await backend.append("r", expected_position=1, fence=fence, records=[record("stale")])


async def see_a_stopped_owner_keep_its_run(path: Path, loop: str, make: Made, *more: str) -> None:
    with child(path, loop, "own", *more) as process:
        next(lines(process))
        process.send_signal(signal.SIGSTOP)
        async with make(path) as backend:
            with pytest.raises(RunBusy):
                await backend.acquire("r", ttl=60.0)


async def see_a_killed_writer_leave_no_halves(path: Path, loop: str, make: Made, wanted: int, *more: str) -> None:
    acknowledged: dict[str, int] = {}
    with child(path, loop, "write", *more) as process:
        for index, (run_id, text) in enumerate(lines(process)):
            acknowledged[run_id] = int(text)
            if index == wanted:
                process.send_signal(signal.SIGKILL)
    async with make(path) as backend:
        for run_id, position in acknowledged.items():
            written = payloads(await everything(backend, run_id))
            assert len(written) >= position
            assert len(written) % 3 == 0
            assert written == [b"%s/%d" % (run_id.encode(), n) for n in range(len(written))]


async def see_two_processes_take_turns(path: Path, loop: str, make: Made, *more: str) -> None:
    async with make(path) as backend:
        with child(path, loop, "count", *more) as one, child(path, loop, "count", *more) as other:
            written = await fill(backend, "mine", *[1] * 50)
            assert [next(lines(each)) for each in (one, other)] == [["counted", "100"]] * 2
        found = await backend.get(("s",), "n")
        assert found is not None
        assert found.value == b"200"
        assert await everything(backend, "mine") == written


async def test_a_killed_owner_is_replaced_at_once(tmp_path: Path, anyio_backend: str) -> None:
    await see_a_killed_owner_replaced(tmp_path / "runs.db", anyio_backend, SqliteBackend)


async def test_a_stopped_owner_keeps_its_run(tmp_path: Path, anyio_backend: str) -> None:
    await see_a_stopped_owner_keep_its_run(tmp_path / "runs.db", anyio_backend, SqliteBackend)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_killed_writer_leaves_what_was_acknowledged_and_no_halves(
    tmp_path: Path, anyio_backend: str, exclusive: bool
) -> None:
    for attempt, wanted in enumerate((1, 7, 60, 200)):
        path, more = tmp_path / f"runs{attempt}.db", ["exclusive"] * exclusive
        await see_a_killed_writer_leave_no_halves(path, anyio_backend, SqliteBackend, wanted, *more)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_two_processes_take_turns(tmp_path: Path, anyio_backend: str) -> None:
    await see_two_processes_take_turns(tmp_path / "runs.db", anyio_backend, SqliteBackend)


async def test_nobody_opens_what_is_open_exclusively(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "runs.db"
    with child(path, anyio_backend, "own", "exclusive") as process:
        next(lines(process))
        backend = SqliteBackend(path, busy_timeout=0.2)
        with pytest.raises(StoreUnavailable) as caught:
            await backend.head("r")
        assert caught.value.reason == "busy"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert await backend.head("r") is not None
        await backend.close()


async def test_a_database_that_stays_locked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path, busy_timeout=0.1) as backend:
        await fill(backend, "r", 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for call in (
                lambda: fill(backend, "r", 1),
                lambda: backend.append("r", expected_position=1, fence=0, records=[]),
            ):
                with pytest.raises(StoreUnavailable, match="longer than busy_timeout") as caught:
                    await call()
                assert isinstance(caught.value, CheckpointFailed)
                assert (caught.value.reason, caught.value.where) == ("busy", str(path))
            other.execute("ROLLBACK")
        assert len(await fill(backend, "r", 1)) == 1


def test_a_forked_process_is_refused(tmp_path: Path) -> None:
    script = """
import os, sys, threading
import anyio
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.errors import StoreUnavailable

async def use(backend):
    try:
        await backend.acquire("child", ttl=1.0)
    except StoreUnavailable as error:
        os._exit(3 if error.reason == "forked" else 4)

async def main(path):
    backend = SqliteBackend(path)
    lease = await backend.acquire("r", ttl=1.0)
    if (pid := os.fork()) == 0:
        # In a thread of its own: this one is in an event loop that belongs to the parent.
        thread = threading.Thread(target=anyio.run, args=(use, backend))
        thread.start()
        thread.join()
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    other = SqliteBackend(path)
    assert [each.held for each in await other.list()] == [True]
    await backend.append("r", expected_position=0, fence=lease.fence, records=[Record("K", (), b"x")])
    await other.close()
    await backend.close()

anyio.run(main, sys.argv[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "runs.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# -- what may lie at a path


async def refused(path: Path, **settings: object) -> StoreUnavailable:
    backend = SqliteBackend(path, **settings)  # type: ignore[arg-type]  # settings by name
    with pytest.raises(StoreUnavailable) as caught:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    await backend.close()
    assert str(path) in str(caught.value)
    assert caught.value.hint
    return caught.value


async def test_a_directory(tmp_path: Path) -> None:
    assert (await refused(tmp_path)).reason == "directory"


async def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert (await refused(tmp_path / "file" / "runs.db")).reason == "directory"


@pytest.mark.parametrize("content", [b"not a database at all", os.urandom(5000), b"SQLite format 3\0" + bytes(3000)])
async def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    backend = SqliteBackend(path)
    with pytest.raises((StoreUnavailable, CorruptRecord)):
        await backend.head("r")
    await backend.close()
    assert path.read_bytes() == content


async def test_a_database_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
    assert (await refused(path)).reason == "not-a-database"


async def test_a_run_that_begins_while_a_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each statement with which a second connection checks the file, the first one begins another run."""
    begun: list[str] = []
    refused: dict[str, StoreUnavailable] = {}
    broken: list[BaseException] = []

    async def begin() -> None:
        run_id = f"r{len(begun) + len(refused)}"
        try:
            await fill(backend, run_id, 1)
        except StoreUnavailable as error:
            refused[run_id] = error
        else:
            begun.append(run_id)

    def before(sql: str) -> None:
        if sql.startswith(("SELECT", "PRAGMA integrity_check")):
            try:
                anyio.from_thread.run(begin)
            except BaseException as error:
                # SQLite swallows what a callback raises.
                broken.append(error)
                raise

    def connect(settings: schema.Settings) -> sqlite3.Connection:
        connection = original(settings)
        connection.set_trace_callback(before)
        return connection

    def look() -> None:
        connection, mode, _ = schema.open_database(
            schema.OpenFile.find(schema.Settings(path, 0.5, 0o600, exclusive=False))
        )
        modes.append(mode)
        connection.close()

    original = schema.connect
    path = tmp_path / "runs.db"
    modes: list[str] = []
    async with SqliteBackend(path, busy_timeout=0.1) as backend:
        await fill(backend, "first", 1)
        monkeypatch.setattr(schema, "connect", connect)
        await anyio.to_thread.run_sync(look)
        assert broken == []
        # The tables, what is foreign, two indexes, the counter: the file is as it has to be before each of them.
        assert len(begun) == 5
        assert (modes, refused) == (["wal"], {})
        for run_id in refused:
            await fill(backend, run_id, 1)
        there = await backend.list(limit=20)
        assert {each.run_id: each.position for each in there} == dict.fromkeys(("first", *begun, *refused), 1)


async def test_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    error = await refused(path)
    assert (error.reason, f"version {schema.VERSION + 1}" in str(error)) == ("newer", True)


async def test_tables_that_were_changed(tmp_path: Path) -> None:
    for number, sql in enumerate(("DROP INDEX runs_by_status", "CREATE VIEW v AS SELECT 1", "DROP TABLE uses")):
        path = tmp_path / f"{number}.db"
        async with SqliteBackend(path) as backend:
            await fill(backend, "r", 1)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(sql)
        with pytest.raises(CorruptRecord, match="tables are not those"):
            await SqliteBackend(path).head("r")


async def test_a_schema_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE TABL\xe1 runs"))
    with pytest.raises(CorruptRecord):
        await SqliteBackend(path).head("r")


async def test_an_empty_file_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)


async def test_links_are_refused(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
    (tmp_path / "soft.db").symlink_to(tmp_path / "runs.db")
    assert (await refused(tmp_path / "soft.db")).reason == "link"
    (tmp_path / "hard.db").hardlink_to(tmp_path / "runs.db")
    assert (await refused(tmp_path / "hard.db")).reason == "link"
    (tmp_path / "hard.db").unlink()
    (tmp_path / "runs.db-lock").unlink()
    (tmp_path / "runs.db-lock").symlink_to(tmp_path / "elsewhere")
    assert (await refused(tmp_path / "runs.db")).reason == "link"
    assert not (tmp_path / "elsewhere").exists()


async def test_files_are_of_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SqliteBackend(tmp_path / "new" / "runs.db") as backend:
            await fill(backend, "r", 1)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").iterdir()}
    finally:
        os.umask(before)
    assert set(modes) >= {"runs.db", "runs.db-lock"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "new" / "runs.db").chmod(0o666)
    async with SqliteBackend(tmp_path / "new" / "runs.db") as backend:
        assert await backend.head("r") == Head(1, 0)
    assert stat.S_IMODE((tmp_path / "new" / "runs.db").stat().st_mode) == 0o600


NOT_ALLOWED = """
import os, sys
import anyio
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.errors import StoreUnavailable

async def main(path):
    backend = SqliteBackend(path)
    try:
        await backend.append("r", expected_position=1, fence=0, records=[Record("K", (), b"x")])
    except StoreUnavailable as error:
        print(error.reason, end="")
    await backend.close()

anyio.run(anyio.sleep, 0)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
anyio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "reasons"),
    [(0o444, 0o777, {"readonly"}), (0o000, 0o777, {"permission"}), (0o666, 0o555, {"permission", "readonly"})],
    ids=["file", "closed file", "folder"],
)
def test_what_may_not_be_written(file_mode: int, folder_mode: int, reasons: set[str]) -> None:
    # Not below tmp_path, which nobody else may enter: the child is another user when this one may do everything.
    folder = Path("/tmp") / f"noetic-{os.getpid()}-{file_mode}"
    folder.mkdir()
    try:
        path = folder / "runs.db"

        async def make() -> None:
            async with SqliteBackend(path, file_mode=0o666) as backend:
                await fill(backend, "r", 1)

        anyio.run(make)
        if os.getuid() == 0:
            for each in folder.iterdir():
                os.chown(each, 65534, 65534)
        path.chmod(file_mode)
        folder.chmod(folder_mode)
        command = [sys.executable, "-c", NOT_ALLOWED, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout in reasons, done
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


async def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
    if os.getuid() == 0:
        os.chown(tmp_path / "runs.db", 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert (await refused(tmp_path / "runs.db")).reason == "permission"


@pytest.mark.parametrize("path", ["", ":memory:", "file:runs.db?mode=ro", "runs\0.db"])
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SqliteBackend(path)
    assert caught.value.code == "sqlite-path"


def test_settings_that_are_none() -> None:
    wrong: list[dict[str, int]] = [{"busy_timeout": -1}, {"blob_threshold": -1}, {"max_bytes": 0}, {"max_bytes": 2**40}]
    for settings in wrong:
        with pytest.raises(ConfigError) as caught:
            SqliteBackend("runs.db", **settings)  # type: ignore[arg-type]  # settings by name
        assert caught.value.code == "sqlite-setting"


async def test_a_strange_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = backend_from("sqlite:a b?mode=memory&x=%20#'é:漢.db")
    monkeypatch.chdir("/")
    async with backend:
        await fill(backend, "r", 1)
    assert (tmp_path / "a b?mode=memory&x=%20#'é:漢.db").exists()


def test_backends_by_name(tmp_path: Path) -> None:
    assert isinstance(backend_from(f"sqlite:{tmp_path}/runs.db"), SqliteBackend)
    assert isinstance(backend_from("memory:"), InMemoryBackend)
    for spec in ("", "sqlite", "sqlite:", "memory", "memory:x", "redis://x", ":x"):
        with pytest.raises(ConfigError) as caught:
            backend_from(spec)
        assert caught.value.code == "checkpoints"
    assert list(tmp_path.iterdir()) == []


# -- disks that fail


async def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    kept = 0
    with connections(lambda connection: connection.execute("PRAGMA max_page_count = 50")):
        async with SqliteBackend(path) as backend:
            lease = await backend.acquire("r", ttl=60.0)
            with pytest.raises(StoreUnavailable) as caught:  # noqa: PT012  # until it is full
                while True:
                    data = [Record("K", (), b"%d" % kept + BIG[:4000])]
                    kept = await backend.append("r", expected_position=kept, fence=lease.fence, records=data)
            assert (caught.value.reason, isinstance(caught.value, CheckpointFailed)) == ("full", True)
            assert kept > 5
            with pytest.raises(StoreUnavailable):
                await backend.put(("s",), "k", os.urandom(100_000))
            assert await backend.renew(lease, ttl=60.0) == lease
            assert [each.payload[:-4000] for each in await everything(backend, "r")] == [b"%d" % n for n in range(kept)]
    async with SqliteBackend(path) as backend:
        lease = await backend.acquire("r", ttl=60.0)
        data = [Record("K", (), b"%d" % kept + BIG[:4000])]
        assert await backend.append("r", expected_position=kept, fence=lease.fence, records=data) == kept + 1


FAILING_DISK = """
import resource, sys
import anyio
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.errors import StoreUnavailable

BIG = b"x" * 5000

async def main(path):
    backend = SqliteBackend(path, busy_timeout=1.0)
    lease = await backend.acquire("r", ttl=60.0)
    kept = await backend.append("r", expected_position=0, fence=lease.fence, records=[Record("K", (), BIG)])
    # A write behind this size fails, as on a disk that is broken there.
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        while True:
            records = [Record("K", (), b"%d" % kept + BIG)]
            kept = await backend.append("r", expected_position=kept, fence=lease.fence, records=records)
    except StoreUnavailable as error:
        reason = error.reason
    seen = await backend.read("r")
    assert len(seen) == kept, (len(seen), kept)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    kept = await backend.append("r", expected_position=kept, fence=lease.fence, records=[Record("K", (), BIG)])
    assert len(await backend.read("r")) == kept
    assert await backend.renew(lease, ttl=1.0) == lease
    await backend.close()
    print(reason, kept, end="")

anyio.run(main, sys.argv[1])
"""


def test_a_failing_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAILING_DISK, str(tmp_path / "runs.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    reason, kept = done.stdout.split()
    assert reason in ("io", "full")
    assert int(kept) > 5


async def test_after_the_disk_failed_the_file_is_opened_again(tmp_path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def fail(store: SqliteStore) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with connections(opened.append):
        async with SqliteBackend(tmp_path / "runs.db") as backend:
            lease = await backend.acquire("r", ttl=60.0)
            for count, write in enumerate((True, False), 1):
                assert len(opened) == count
                with pytest.raises(StoreUnavailable) as caught:
                    await backend._pool.run(Job(fail, write=write))
                assert caught.value.reason == "io"
                assert "may have been taken or not" in str(caught.value)
                await fill(backend, "r", 1, fence=lease.fence)
            # The owner is who it was.
            assert await backend.renew(lease, ttl=60.0) == lease
            assert await backend.head("r") == Head(2, lease.fence)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_file_that_went_away_is_missed(tmp_path: Path, exclusive: bool) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path, exclusive=exclusive) as backend:
        await fill(backend, "r", 2)
        path.rename(tmp_path / "elsewhere.db")
        for replaced in (False, True):
            if replaced:
                path.touch()
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as caught:
                    await backend.append("r", expected_position=2, fence=0, records=[record("x")])
                assert caught.value.reason == "moved"
        (tmp_path / "elsewhere.db").replace(path)
        assert len(await fill(backend, "r", 1)) == 1


@pytest.mark.parametrize("sql", ROWS)
async def test_a_changed_row_is_found(tmp_path: Path, sql: str) -> None:
    cases = TestDamage()
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        expected = await cases._write(backend)
    damage_row(tmp_path / "runs.db", sql, random.Random(2))
    backend = SqliteBackend(tmp_path / "runs.db")
    with pytest.raises(CheckpointError):  # noqa: PT012  # one of these
        for run_id in expected:
            await everything(backend, run_id)
        for problem in filter(None, [each.problem for each in await backend.list()]):
            raise CorruptRecord(problem)
        await backend.scan(SCOPE)
    await backend.close()


ODD_ROWS = [
    "UPDATE runs SET status = 'odd' WHERE run_id = 'r1'",
    "UPDATE runs SET position = 'x' WHERE run_id = 'r1'",
    "UPDATE runs SET fence = 4611686018427387904 WHERE run_id = 'r1'",
    "UPDATE runs SET id = 4611686018427387904 WHERE run_id = 'r1'",
    "UPDATE runs SET run_id = x'00' WHERE run_id = 'r1'",
    "UPDATE transactions SET count = 1.5 WHERE id = (SELECT min(id) FROM transactions)",
    "UPDATE pairs SET version = 4611686018427387904",
]


@pytest.mark.parametrize("sql", ODD_ROWS)
async def test_a_damaged_row_is_in_the_way_of_no_other(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for n in range(4):
            await fill(backend, f"r{n}", 1)
        await backend.put(SCOPE, "k", b"v")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()
    async with SqliteBackend(path) as backend:
        listed = {each.run_id for each in await backend.list() if each.problem is None}
        assert listed >= {"r2", "r3"}
        assert (await backend.stats()).runs == 4
        assert await backend.prune(keep=1) >= 2
        assert [each.run_id for each in await backend.list() if each.problem is None] == ["r3"]


@pytest.mark.parametrize("value", ["'x'", "4611686018427387904"])
async def test_a_counter_that_is_not_what_was_written_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE store SET ticks = {value}")
        connection.commit()
    with pytest.raises(CorruptRecord, match="counter is damaged"):
        async with SqliteBackend(path) as backend:
            await backend.list()


@pytest.mark.parametrize("needle", [b"needle-run", b"needle-key"])
async def test_a_name_that_was_damaged_is_not_missing(tmp_path: Path, needle: bytes) -> None:
    """A run that cannot be found would begin anew, so its name is damaged once in the table and once in the index."""
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for n in range(5):
            await fill(backend, f"r{n}", 1)
            await backend.put(SCOPE, f"k{n}", b"v")
        await fill(backend, "needle-run", 1)
        await backend.put(SCOPE, "needle-key", b"v")
    good = path.read_bytes()
    places = [at for at in range(len(good)) if good.startswith(needle, at)]
    assert len(places) >= 2
    found = 0
    for at in places:
        path.write_bytes(good[:at] + b"N" + good[at + 1 :])
        try:
            async with SqliteBackend(path) as backend:
                assert await backend.head("needle-run") == Head(1, 0)
                assert (await backend.scan(SCOPE))[-1].key == "needle-key"
        except CorruptRecord:
            found += 1
    # Old copies of a page may lie where nobody reads them; what is read is found.
    assert found >= 2


async def test_a_page_of_an_older_copy_is_found(tmp_path: Path) -> None:
    """A write that the disk lost leaves one page as it was before."""
    path, older, work = tmp_path / "runs.db", tmp_path / "older.db", tmp_path / "work.db"
    async with SqliteBackend(path) as backend:
        for n in range(4):
            await fill(backend, f"r{n}", 2, 2)
            await backend.put(("s",), f"k{n}", b"old")
    shutil.copy(path, older)
    async with SqliteBackend(path) as backend:
        expected = {
            f"r{n}": payloads(await everything(backend, f"r{n}") + await fill(backend, f"r{n}", 1)) for n in range(4)
        }
        for n in range(4):
            await backend.put(("s",), f"k{n}", b"new")
    old, new = older.read_bytes(), path.read_bytes()
    found = 0
    for at in range(0, len(old), 4096):
        if old[at : at + 4096] == new[at : at + 4096]:
            continue
        work.write_bytes(new[:at] + old[at : at + 4096] + new[at + 4096 :])
        seen: dict[str, list[bytes]] = {}
        values: list[bytes] = []
        try:
            async with SqliteBackend(work) as backend:
                values = [each.value for each in await backend.scan(("s",))]
                seen = {run_id: payloads(await everything(backend, run_id)) for run_id in expected}
        except (CorruptRecord, StoreUnavailable):
            found += 1
        else:
            # The first page holds a counter and no data.
            assert (at == 0, seen, values) == (True, expected, [b"new"] * 4)
    assert found >= 3


# -- the write-ahead log


async def test_the_log_is_moved_into_the_file_before_it_grows(tmp_path: Path) -> None:
    """By two processes that write in turn, and while a third reads; what is large counts as much as what is often."""
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    sizes: list[int] = []
    async with SqliteBackend(path) as one, SqliteBackend(path) as two:
        for n in range(40):
            for backend in (one, two):
                await fill(backend, f"r{n % 3}", 1)
                await backend.put(("s",), f"k{n % 3}", os.urandom(500_000))
            sizes.append(log.stat().st_size)
            assert await two.get(("s",), f"k{n % 3}") == await one.get(("s",), f"k{n % 3}")
        written = {run: await everything(one, run) for run in ("r0", "r1", "r2")}
        # 40 MB went through it; each of the two moves it when it has written 4 MiB, and begins it anew afterwards.
        assert 4_000_000 < max(sizes) < 16_000_000
        assert path.stat().st_size > 1_000_000
    assert not log.exists()
    async with SqliteBackend(path) as backend:
        assert {run: await everything(backend, run) for run in written} == written


async def test_a_reader_that_stays_keeps_the_log_and_loses_nothing(tmp_path: Path) -> None:
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN")
            assert other.execute("SELECT count(*) FROM runs").fetchone() == (1,)
            for n in range(30):
                await backend.put(("s",), f"k{n}", os.urandom(500_000))
            assert other.execute("SELECT count(*) FROM pairs").fetchone() == (0,)
            assert log.stat().st_size > 14_000_000
            other.execute("COMMIT")
            for n in range(30):
                await backend.put(("s",), f"k{n}", os.urandom(500_000))
        # It is cut when it begins anew.
        assert log.stat().st_size < 10_000_000
        assert len(await backend.scan(("s",))) == 30


async def test_the_log_is_moved_only_while_no_other_connection_can_write(tmp_path: Path) -> None:
    """SQLite before 3.51.3 damages a file whose log another connection begins anew in the middle of a checkpoint."""
    path = tmp_path / "runs.db"
    seen: list[str] = []

    def before(sql: str) -> None:
        if "wal_checkpoint" in sql:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    seen.append(str(error))

    with connections(lambda connection: connection.set_trace_callback(before)):
        async with SqliteBackend(path) as backend:
            for n in range(30):
                await backend.put(("s",), f"k{n}", os.urandom(500_000))
            assert await backend._pool.run(Job(lambda store: store._one("PRAGMA wal_autocheckpoint"), write=False)) == (
                0,
            )
    assert seen == ["database is locked"] * 3


async def test_writers_of_two_processes_take_turns_without_long_waits(tmp_path: Path) -> None:
    """A writer looks for its turn more often than SQLite does, which waits up to a tenth of a second between looks."""
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 1)
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            looks: list[float] = []

            def look(seconds: float) -> None:
                looks.append(seconds)
                other.execute("COMMIT")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "sleep", look)
                other.execute("BEGIN IMMEDIATE")
                await fill(backend, "r", 1)
        assert looks == [store._POLL]


_BEFORE_KEYS = """
    DROP INDEX queued_by_turn; DROP INDEX queued_asleep; DROP INDEX queued_at_work;
    ALTER TABLE queued DROP COLUMN key; ALTER TABLE queued DROP COLUMN due;
    CREATE INDEX queued_by_turn ON queued (queue, flow, priority, at, run);
    PRAGMA user_version = 4;
"""
_BEFORE_BUDGETS = (
    _BEFORE_KEYS
    + """
    DROP TABLE budgets; DROP INDEX queued_by_turn; CREATE INDEX queued_by_turn ON queued (queue, priority, at, run);
    PRAGMA user_version = 3;
"""
)
_BEFORE_QUEUES = _BEFORE_BUDGETS + "DROP TABLE queued; DROP TABLE signals; PRAGMA user_version = 2;"
_FIRST_VERSION = """
    ALTER TABLE transactions RENAME TO newer;
    CREATE TABLE transactions (
        id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL,
        crc INTEGER NOT NULL, body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX transactions_by_stream ON transactions (stream, last);
    INSERT INTO transactions (stream, last, count, crc, body)
        SELECT id >> 27, id & 0x7ffffff, count, crc, body FROM newer ORDER BY count;
    DROP TABLE newer;
    PRAGMA user_version = 1;
"""


@pytest.mark.parametrize(
    ("before", "queued"),
    [(_BEFORE_KEYS, 1), (_BEFORE_BUDGETS, 1), (_BEFORE_QUEUES, 0), (_BEFORE_QUEUES + _FIRST_VERSION, 0)],
    ids=["4", "3", "2", "1"],
)
async def test_a_file_of_an_earlier_version_becomes_one_of_this(tmp_path: Path, before: str, queued: int) -> None:
    path, place = tmp_path / "runs.db", Queued("jobs", "flow", 5.5, 7)
    async with SqliteBackend(path) as backend:
        await fill(backend, "r", 2, 1)
        await backend.fork("r", at=2, new_run_id="f")
        await fill(backend, "f", 1)
        written = [await everything(backend, run_id) for run_id in ("r", "f")]
        await backend.commit([Transaction("q", 0, 0, [record("x")], queued=place)])
    with closing(sqlite3.connect(path)) as connection:
        tables = {sql: name for name, sql in connection.execute("SELECT name, sql FROM sqlite_master")}
        connection.executescript(before)
    for _ in range(2):
        async with SqliteBackend(path) as backend:
            assert [await everything(backend, run_id) for run_id in ("r", "f")] == written
            assert await backend.send("r", "k", b"x")
            assert list(await backend.budgets()) == []
            claims = await backend.claim(["jobs"], flows=["flow"], ttl=60.0)
            assert [each.queued for each in claims] == [place] * queued
    with closing(sqlite3.connect(path)) as connection:
        assert {sql: name for name, sql in connection.execute("SELECT name, sql FROM sqlite_master")} == tables
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


async def test_a_budget_survives_its_process_and_its_damage_is_found(tmp_path: Path) -> None:
    path, changed = tmp_path / "runs.db", BudgetChange("team", "2026-11", {"steps": 1}, {"tokens": 5}, {"steps": 9})
    async with SqliteBackend(path) as backend:
        await backend.commit([Transaction("r", 0, 0, [record("x")], budgets=[changed])])
    async with SqliteBackend(path) as backend:
        (row,) = await backend.budgets()
        assert row == BudgetRow("team", "2026-11", {"steps": 9}, {"steps": 1}, {"r": {"tokens": 5}})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE budgets SET body = replace(body, '\"1\"', '\"0\"')")
        connection.execute("UPDATE budgets SET body = CAST(body AS BLOB)")
        connection.commit()
    async with SqliteBackend(path) as backend:
        with pytest.raises(CorruptRecord, match="shared budget 'team'"):
            await backend.budgets()
        with pytest.raises(CorruptRecord, match="shared budget 'team'"):
            await backend.commit([Transaction("r", 1, 0, [], budgets=[changed])])
        assert (await everything(backend, "r")) == [record("x")]


async def test_a_queue_survives_its_process(tmp_path: Path) -> None:
    queued = Queued("jobs", "flow", 5.5, 7)
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await backend.commit([Transaction("r", 0, 0, [record("x")], queued=queued)])
        number = await backend.send("r", "k", b"hello")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        assert list(await backend.inbox("r")) == [Signal("r", "k", b"hello", number)]
        (found,) = await backend.claim(["jobs"], flows=["flow"], ttl=60.0)
        assert (found.lease.run_id, found.queued, found.lives) == ("r", queued, 1)


async def test_a_run_is_claimed_when_its_time_has_come(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    async with SqliteBackend(tmp_path / "runs.db", runtime=runtime) as backend:
        at = await backend.clock() + 60
        await backend.commit([Transaction("r", 0, 0, [record("x")], queued=Queued("jobs", "flow", at))])
        await runtime.advance(59.0)
        assert await backend.claim(["jobs"], flows=["flow"], ttl=60.0) == []
        await runtime.advance(1.0)
        assert len(await backend.claim(["jobs"], flows=["flow"], ttl=60.0)) == 1


@pytest.mark.parametrize("change", ["at = 0", "queue = 'other'", "lives = 9", "run = 5", "priority = 'x'", "key = 'k'"])
async def test_a_damaged_place_in_a_queue(tmp_path: Path, change: str) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        for run_id in ("r", "s"):
            queued = Queued("jobs", "flow", 5.5)
            await backend.commit([Transaction(run_id, 0, 0, [record("x")], queued=queued)])
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute(f"UPDATE queued SET {change} WHERE run = (SELECT min(run) FROM queued)")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        # It does not keep the others from being claimed, and is named where someone looks at all.
        found = await backend.claim(["jobs", "other"], flows=["flow"], ttl=60.0, limit=2)
        assert [each.lease.run_id for each in found] == ["s"]
        if change != "run = 5":
            with pytest.raises(CorruptRecord):
                await backend.queues()


async def test_a_damaged_signal(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
        await backend.send("r", "k", b"hello")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE signals SET body = X'00'")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        with pytest.raises(CorruptRecord):
            await backend.inbox("r")


async def test_a_run_has_an_end(tmp_path: Path) -> None:
    def make_long(store: SqliteStore) -> None:
        run = store._require("r")
        run.position = LONGEST - 2
        store._save(run)

    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
        await backend._pool.run(Job(make_long, write=True))
        assert await backend.append("r", expected_position=LONGEST - 2, fence=0, records=[record("x")]) == LONGEST - 1
        for count in (1, 3):
            with pytest.raises(LimitExceeded):
                await backend.append("r", expected_position=LONGEST - 1, fence=0, records=[record("x")] * count)
        assert await backend.head("r") == Head(LONGEST - 1, 0)


# -- threads, loops and cancellation


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_task_of_asyncio_leaves_a_whole_transaction(tmp_path: Path, turns: int) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
        task = asyncio.create_task(
            backend.append("r", expected_position=1, fence=0, records=[record("a"), record("b")])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        begun = task.cancel()
        task.cancel()
        assert begun is not task.done()
        await asyncio.wait([task])
        head = await backend.head("r")
        assert head is not None
        assert head.position in (1, 3)
        # The task ended only when its fate was known.
        assert await backend.head("r") == head


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_task_of_asyncio_keeps_no_lease(tmp_path: Path, turns: int) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        task = asyncio.create_task(backend.acquire("r", ttl=60.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await backend.release(await task)
        except asyncio.CancelledError:
            assert task.cancelled()
        lease = await backend.acquire("r", ttl=60.0)
        assert lease.fence > 0


async def cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()


async def test_a_scope_that_is_cancelled_in_a_write_learns_its_outcome(tmp_path: Path) -> None:
    reached: list[int] = []
    records = [record("a")]
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        await fill(backend, "r", 1)
        for position in range(1, 20):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel, scope)
                    reached.append(await backend.append("r", expected_position=position, fence=0, records=records))
                    await anyio.sleep(60)
            assert scope.cancelled_caught
            assert reached == list(range(2, position + 2))


async def test_one_backend_serves_loops_of_several_threads(tmp_path: Path, anyio_backend: str) -> None:
    backend = SqliteBackend(tmp_path / "runs.db")

    def other(run_id: str) -> None:
        anyio.run(fill, backend, run_id, *[1] * 10, backend=anyio_backend)

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(anyio.to_thread.run_sync, other, f"t{n}")
        await fill(backend, "mine", *[1] * 10)
    assert sorted([(each.run_id, each.position) for each in await backend.list()]) == [
        ("mine", 10), ("t0", 10), ("t1", 10), ("t2", 10),
    ]  # fmt: skip
    await backend.close()


def test_one_backend_serves_one_loop_after_another(tmp_path: Path, anyio_backend: str) -> None:
    backend = SqliteBackend(tmp_path / "runs.db")
    for n in range(3):
        anyio.run(fill, backend, f"r{n}", 1, backend=anyio_backend)
    anyio.run(backend.close, backend=anyio_backend)


def test_a_loop_that_is_gone_is_not_told(anyio_backend: str) -> None:
    jobs: list[Job[None]] = []

    async def make() -> None:
        jobs.append(Job(lambda store: None, write=True))

    anyio.run(make, backend=anyio_backend)
    Job.end_all(jobs)
    assert not jobs[0].done


async def test_a_backend_that_nobody_has_any_more_ends(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    before = threading.enumerate()
    backend: SqliteBackend | None = SqliteBackend(path)
    assert backend is not None
    await backend.acquire("r", ttl=3600.0)
    (thread,) = (each for each in threading.enumerate() if each.name == "noetic-sqlite" and each not in before)
    backend = None
    gc.collect()
    await anyio.to_thread.run_sync(thread.join, 10.0)
    assert not thread.is_alive()
    async with SqliteBackend(path) as other:
        await other.acquire("r", ttl=60.0)


async def test_what_work_raises_is_its_own(tmp_path: Path) -> None:
    def broken(store: SqliteStore) -> int:
        if writes:
            store.put(SCOPE, "half", b"v", None)
        raise ZeroDivisionError("broken")

    writes = False

    async with SqliteBackend(tmp_path / "runs.db") as backend:
        for writes in (False, True):
            with pytest.raises(ZeroDivisionError):
                await backend._pool.run(Job(broken, write=writes))
        results: list[object] = []

        async def append(n: int) -> None:
            results.append(await backend.append(f"r{n}", expected_position=0, fence=0, records=[record("x")]))

        async def fail() -> None:
            with pytest.raises(ZeroDivisionError):
                await backend._pool.run(Job(broken, write=True))

        async with anyio.create_task_group() as group:
            for n in range(10):
                group.start_soon(append, n)
                group.start_soon(fail)
        assert results == [1] * 10
        assert await backend.get(SCOPE, "half") is None


async def test_references_cannot_be_stored(tmp_path: Path) -> None:
    from noetic_py.journal.records import StepOpened

    value = StepOpened(("a",), "code", 1)
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        with pytest.raises(CodecError):
            await backend.append("r", expected_position=0, fence=0, records=[Record("StepOpened", ("a",), value=value)])
        await backend.append("r", expected_position=0, fence=0, records=[Record("StepOpened", ("a",), b"x", value)])
        assert list(await backend.read("r")) == [Record("StepOpened", ("a",), b"x")]


async def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "new" / "runs.db")
    await backend.close()
    assert not (tmp_path / "new").exists()
    with pytest.raises(NoeticError):
        await backend.head("r")


@pytest.mark.parametrize("number", [-(2**63), -5, 0, 2**53, 2**62, 2**63 - 1])
async def test_a_row_whose_number_is_damaged_hides_no_other(tmp_path: Path, number: int) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for run_id in ("a", "b", "c"):
            await fill(backend, run_id, 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET id = ? WHERE run_id = 'b'", (number,))
    async with Harness(checkpoints=f"sqlite:{path}") as harness:
        listed = await harness.runs.list()
        assert [info.run_id for info in listed if info.run_id != "b"] == ["c", "a"]
        [damaged] = [info for info in listed if info.run_id == "b"]
        assert damaged.problem is not None
        assert "'b' is damaged" in damaged.problem


async def test_rows_with_the_largest_numbers_are_listed_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for run_id in ("a", "b", "c", "d"):
            await fill(backend, run_id, 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET id = 9223372036854775804 + id WHERE run_id IN ('a', 'b', 'c')")
    async with SqliteBackend(path) as backend:
        found: list[str] = []
        page = await backend.list(limit=1)
        while page:
            found += [entry.run_id for entry in page]
            page = await backend.list(after=page[-1].cursor, limit=1)
    assert found == ["c", "b", "a", "d"]


@pytest.mark.parametrize("column", ["run_id", "status", "card", "updated", "position"])
async def test_a_row_with_a_text_that_is_no_utf_8_hides_no_other(tmp_path: Path, column: str) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for run_id in ("a", "b", "c"):
            await fill(backend, run_id, 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE runs SET {column} = CAST(x'62FF' AS TEXT) WHERE run_id = 'b'")
    async with SqliteBackend(path) as backend:
        a, b, c = sorted(await backend.list(), key=lambda entry: entry.cursor)
        assert [a.problem, c.problem] == [None, None]
        assert b.problem is not None
        assert (b.run_id == "b") == (column != "run_id")
        if column != "run_id":
            with pytest.raises(CorruptRecord, match="'b' is damaged"):
                await backend.entry("b")
        await fill(backend, "d", 1)


async def test_damaged_positions_do_not_keep_the_store_from_being_counted(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteBackend(path) as backend:
        for run_id in ("a", "b", "c"):
            await fill(backend, run_id, 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET position = 9223372036854775807 WHERE run_id IN ('a', 'b')")
    async with SqliteBackend(path) as backend:
        assert (await backend.stats()).records == 1
