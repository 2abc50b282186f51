"""The store of the SQLite backend alone, in one thread: it does what the store in memory does, and finds damage."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py.checkpoints.adapter import PrunePage
from noetic_py.checkpoints.memory import MemoryStore
from noetic_py.checkpoints.sqlite import schema
from noetic_py.checkpoints.sqlite import store as module
from noetic_py.checkpoints.sqlite.schema import (
    MOST,
    VERSION,
    Mode,
    OpenFile,
    RunRow,
    Settings,
    Sums,
    from_sqlite,
    open_database,
)
from noetic_py.checkpoints.sqlite.store import GroupCommit, SqliteStore
from noetic_py.checkpoints.threads import Job
from noetic_py.errors import CorruptRecord, NoeticError, StoreUnavailable
from noetic_py.journal.stored import Head, Lease, Record, RunEntry, Stats, Transaction
from tests.properties.checks import examples
from tests.test_checkpoints_sqlite import another_owner, read_by_another

Work: TypeAlias = Callable[[Any], object]

BEGAN = datetime(2025, 1, 1, tzinfo=UTC)
FOREVER = 1e9
LARGE = 8
"""From how many bytes on payloads are stored apart."""


class Process:
    """A process that has the file open."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        # No process waits for another here: they are in one thread.
        self.place = OpenFile.find(Settings(path, 0.0, 0o600, exclusive))
        self.leases: list[Lease] = []
        self.others: list[Process] = []
        self.open()

    def open(self) -> None:
        connection, mode, seed = open_database(self.place)
        self.store = SqliteStore(connection, self.place, mode=mode, seed=seed, threshold=LARGE)

    def close_and_open(self) -> None:
        self.store.close()
        self.open()

    def close(self) -> None:
        self.store.close()
        self.place.locks.close()

    def begin(self, *, write: bool) -> None:
        """Begin a transaction, in the journal mode that another process has given the file."""
        if not self.store.begin(write=write):
            self.close_and_open()
            assert self.store.begin(write=write)

    def is_open(self) -> bool:
        """Whether a transaction is."""
        return self.store.in_transaction

    def do(self, *works: Work, write: bool = True) -> list[object]:
        """What works give, or the names of their errors; each is done whole or not at all."""
        self.begin(write=write)
        assert self.is_open()
        outcomes: list[object] = []
        for work in works:
            if len(works) > 1:
                self.store.savepoint()
            outcomes.append(outcome_of(work, self.store))
            failed = isinstance(outcomes[-1], Failed)
            if len(works) > 1:
                self.store.end_savepoint(undo=failed)
            elif failed and write:
                self.store.undo()
        self.store.end()
        assert not self.is_open()
        return outcomes

    def undone(self, work: Work) -> None:
        """Work that is taken back."""
        self.begin(write=True)
        outcome_of(work, self.store)
        self.store.rollback()
        assert not self.is_open()


class Failed(str):
    """The name of an error."""

    __slots__ = ()


def outcome_of(work: Work, store: object) -> object:
    try:
        return work(store)
    except NoeticError as error:
        return Failed(type(error).__name__)


@contextmanager
def opened(folder: Path, count: int = 1, *, mode: Mode = "wal") -> Generator[list[Process]]:
    path = folder / "runs.db"
    if mode == "persist":
        Process(path).close()
    with read_by_another(path) if mode == "persist" else nullcontext():
        processes = [Process(path, exclusive=mode == "exclusive") for _ in range(count)]
    for each in processes:
        each.others = [other for other in processes if other is not each]
    try:
        assert {each.store.mode for each in processes} == {mode}
        yield processes
    finally:
        for each in processes:
            each.close()


def appending(run_id: str, position: int, *payloads: bytes, **more: Any) -> Callable[[Any], int]:
    records = [Record("K", ("flow", "step#2"), payload) for payload in payloads]
    given = Transaction(run_id, position, more.pop("fence", 0), records, **more)
    return lambda store: store.append(given, BEGAN)


# -- as the store in memory

RUNS = st.sampled_from(["a", "b", "c"])
STATUS = st.sampled_from([None, None, "running", "completed"])
SUMMARY = st.sampled_from([None, b"", b"shown"])
PAYLOAD = st.sampled_from([b"", b"x", b"small", b"a large payload", b"another large one"])
MOVES = st.one_of(
    st.tuples(
        st.just("append"), RUNS, st.lists(PAYLOAD, max_size=3), st.sampled_from([0, 0, 0, 0, 1]), STATUS, SUMMARY
    ),
    st.tuples(st.just("append"), RUNS, st.lists(PAYLOAD, min_size=1, max_size=3), st.just(0), st.none(), st.none()),
    st.tuples(st.just("undone"), RUNS, st.lists(PAYLOAD, max_size=3)),
    st.tuples(st.just("fork"), RUNS, RUNS, st.integers(0, 5), st.lists(PAYLOAD, max_size=2), STATUS, SUMMARY),
    st.tuples(st.just("delete"), RUNS),
    st.tuples(
        st.just("prune"),
        st.sampled_from([None, 0, 1, 2]),
        st.sampled_from([None, 0, 3]),
        st.sampled_from([None, ["running"]]),
    ),
    st.tuples(st.just("acquire"), RUNS),
    st.tuples(st.just("renew"), st.integers(0, 3)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("lapse")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("put"), st.sampled_from("kl"), st.binary(max_size=2), st.sampled_from([None, None, -1, 0])),
    st.tuples(st.just("remove"), st.sampled_from("kl"), st.sampled_from([None, None, -1, 0])),
)
PLANS = st.lists(st.tuples(st.integers(0, 1), st.booleans(), MOVES), min_size=10, max_size=30)
SCOPE = ("s", "t")


class World:
    """Two processes on one file, and the store in memory that they should be equal to."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.processes = processes
        self.model = MemoryStore(lambda: 0.0)
        self.now = BEGAN

    def both(self, process: Process, together: bool, *works: Work) -> None:
        """Do something in both stores, perhaps in one transaction with something that fails."""
        failing: list[Work] = [lambda store: store.read("none", 0, 1)] if together else []
        done = process.do(*failing, *works, *failing)
        assert done == [outcome_of(work, self.model) for work in [*failing, *works, *failing]]

    def move(self, process: Process, together: bool, name: str, *given: Any) -> None:
        self.now += timedelta(seconds=1)
        getattr(self, name)(process, together, *given)

    def append(
        self,
        process: Process,
        together: bool,
        run: str,
        payloads: list[bytes],
        off: int,
        status: str | None,
        summary: bytes | None,
    ) -> None:
        head = self.model.head(run)
        position, fence = (0, 0) if head is None else (head.position, head.fence)
        records = [Record("K", ("flow",), payload) for payload in payloads]
        first = Transaction(run, position + off, fence + off * len(payloads), records, summary, status)
        following = Transaction(run, position + len(records), fence, records)
        now = self.now
        self.both(process, together, lambda store: store.append(first, now), lambda store: store.append(following, now))

    def undone(self, process: Process, together: bool, run: str, payloads: list[bytes]) -> None:
        head = self.model.head(run)
        position, fence = (0, 0) if head is None else (head.position, head.fence)
        process.undone(appending(run, position, *payloads, fence=fence))

    def fork(
        self,
        process: Process,
        together: bool,
        run: str,
        new: str,
        at: int,
        payloads: list[bytes],
        status: str | None,
        summary: bytes | None,
    ) -> None:
        now = self.now
        given = Transaction(new, at, 0, [Record("K", ("flow",), each) for each in payloads], summary, status)
        self.both(process, together, lambda store: store.fork(run, given, now))

    def delete(self, process: Process, together: bool, run: str) -> None:
        self.both(process, together, lambda store: store.delete(run))

    def prune(
        self, process: Process, together: bool, keep: int | None, age: int | None, statuses: list[str] | None
    ) -> None:
        before = None if age is None else self.now - timedelta(seconds=age)

        def pruned(store: Any) -> int:
            page, deleted = PrunePage(), 0
            while page.below is not None:
                page = store.prune(page, before, keep, statuses)
                deleted += page.deleted
            return deleted

        self.both(process, together, pruned)

    def acquire(self, process: Process, together: bool, run: str) -> None:
        now = self.now
        self.both(process, together, lambda store: store.acquire(run, FOREVER, now))
        held = self.model.runs[run].held
        if held is not None and not any(held in each.leases for each in self.processes):
            process.leases.append(held)

    def renew(self, process: Process, together: bool, which: int) -> None:
        if which < len(process.leases):
            lease = process.leases[which]
            self.both(process, together, lambda store: store.renew(lease, FOREVER))

    def release(self, process: Process, together: bool, which: int) -> None:
        if which < len(process.leases):
            lease = process.leases[which]
            # Of another process it is none that could be given back.
            process.others[0].do(lambda store: store.release([lease]))
            self.both(process, together, lambda store: store.release([lease]))

    def lapse(self, process: Process, together: bool) -> None:
        another_owner(process.place.locks)
        for lease in process.leases:
            run = self.model.runs.get(lease.run_id)
            if run is not None and run.held == lease:
                run.held = None

    def reopen(self, process: Process, together: bool) -> None:
        process.close_and_open()

    def put(self, process: Process, together: bool, key: str, value: bytes, off: int | None) -> None:
        expected = self.expected(key, off)
        self.both(process, together, lambda store: store.put(SCOPE, key, value, expected))

    def remove(self, process: Process, together: bool, key: str, off: int | None) -> None:
        expected = self.expected(key, off)
        self.both(process, together, lambda store: store.remove(SCOPE, key, expected))

    def expected(self, key: str, off: int | None) -> int | None:
        found = self.model.get(SCOPE, key)
        return None if off is None else off + (1 if found is None else found.version + 1)

    def check(self, process: Process) -> None:
        """All that can be read, by pages of each size."""
        model = self.model
        reads: list[Work] = [
            lambda store: [store.get(SCOPE, key) for key in "kl"],
            lambda store: [each for after in ("", "k") for each in store.scan(SCOPE, after, 2)],
            lambda store: [store.scan(("s",), "", 2), store.scan(SCOPE, "", 1)],
        ]
        for run in ("a", "b", "c"):
            reads += [head_of(run), entry_of(run)]
            reads += [reading(run, after, limit) for after in range(4) for limit in (1, 2, 100)]
        reads += [listing(limit, status) for limit in (1, 2, 100) for status in (None, "running")]
        for read in reads:
            assert process.do(read, write=False) == [outcome_of(read, model)]
        [stats] = process.do(lambda store: store.stats(), write=False)
        wanted = model.stats()
        large = {each.payload for run in model.runs.values() for each in run.records if len(each.payload) >= LARGE}
        assert isinstance(stats, type(wanted))
        assert (stats.runs, stats.records, stats.values) == (wanted.runs, wanted.records, wanted.values)
        assert stats.blobs == len(large)


def forking(run: str, at: int, new: str) -> Work:
    given = Transaction(new, at, 0, (), b"s", "running")
    return lambda store: store.fork(run, given, BEGAN)


def deleting(run: str) -> Work:
    return lambda store: store.delete(run)


def head_of(run: str) -> Work:
    return lambda store: store.head(run)


def entry_of(run: str) -> Work:
    return lambda store: store.entry(run)


def reading(run: str, after: int, limit: int) -> Work:
    return lambda store: list(store.read(run, after, limit))


def listing(limit: int, status: str | None) -> Callable[[Any], list[RunEntry]]:
    """All pages of a list."""

    def listed(store: Any) -> list[RunEntry]:
        found: list[RunEntry] = []
        after: int | None = None
        while page := store.list(after, limit, status):
            assert len(page) <= limit
            found += page
            after = page[-1].cursor
        return found

    return listed


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [(count,)] = connection.execute(f"SELECT count(*) FROM {table}")
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("mode", ["persist", "wal"])
@settings(max_examples=examples(30, 1000))
@given(PLANS)
def test_it_does_what_the_store_in_memory_does(
    tmp_path_factory: pytest.TempPathFactory, mode: Mode, plan: list[tuple[int, bool, tuple[Any, ...]]]
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        opened(folder := tmp_path_factory.mktemp("store"), 2, mode=mode) as processes,
    ):
        patch.setattr(module, "_HEADS", 2)
        patch.setattr(module, "_PRUNED_AT_ONCE", 2)
        world = World(processes)
        for number, together, move in plan:
            world.move(processes[number], together, *move)
        for process in processes:
            world.check(process)
        for process in processes:
            world.move(process, False, "lapse")
        world.move(processes[0], False, "prune", None, None, None)
        for key in "kl":
            world.move(processes[0], False, "remove", key, None)
        for table in ("runs", "transactions", "shared", "uses", "blobs", "pairs"):
            assert rows(folder / "runs.db", table) == 0, table


def test_forks_of_forks_share_what_is_before_them(tmp_path: Path) -> None:
    """At each position of a chain of forks, and whichever of them are deleted then."""
    model, runs = MemoryStore(lambda: 0.0), ["a", "f", "g"]
    with opened(tmp_path) as [process]:

        def both(*works: Work) -> None:
            for work in works:
                assert process.do(work) == [outcome_of(work, model)]

        def equal() -> None:
            both(*(reading(run, after, 2) for run in [*runs, *made] for after in range(9)))

        made: list[str] = []
        both(appending("a", 0, b"1"), appending("a", 1, b"2", b"a large payload"), appending("a", 3, b"4"))
        both(forking("a", 3, "f"), appending("f", 3, b"5", b"another large one"))
        both(forking("f", 5, "g"), appending("g", 5, b"6"))
        for run in runs:
            for at in range(9):
                both(forking(run, at, f"{run}{at}"), appending(f"{run}{at}", at, b"its own"))
                made.append(f"{run}{at}")
        both(forking("a", 3, "g"))
        equal()
        for run in ("f", "a", "g", "f3", "g6"):
            both(deleting(run))
            equal()
        both(*(deleting(run) for run in made))
        for table in ("runs", "transactions", "shared", "uses", "blobs"):
            assert rows(tmp_path / "runs.db", table) == 0, table


def test_a_run_has_so_many_records_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 3)
    with opened(tmp_path) as [process]:
        assert process.do(appending("a", 0, b"x", b"x")) == [2]
        assert process.do(appending("a", 2, b"x")) == ["LimitExceeded"]
        assert process.do(lambda store: store.fork("a", Transaction("f", 2, 0, ()), BEGAN), appending("a", 2)) == [
            None,
            2,
        ]


def test_what_is_damaged_is_left_when_old_runs_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as [process]:
        for run in ("a", "b", "c"):
            process.do(appending(run, 0, b"x", summary=b"shown"))
        change(tmp_path / "runs.db", "UPDATE runs SET card = x'00' WHERE run_id = 'b'")
        [page] = process.do(lambda store: store.prune(PrunePage(), None, None, None))
        assert page == PrunePage(None, deleted=2)
        assert rows(tmp_path / "runs.db", "runs") == 1


def test_a_lease_that_a_full_disk_did_not_take_back_ends_with_the_next_write(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as [one, two]:
        [lease] = one.do(lambda store: store.acquire("a", FOREVER, BEGAN))
        [other] = one.do(lambda store: store.acquire("b", FOREVER, BEGAN))
        assert isinstance(lease, Lease)
        assert isinstance(other, Lease)
        one.undone(lambda store: store.release([lease, other]))
        assert two.do(lambda store: store.acquire("a", FOREVER, BEGAN)) == ["RunBusy"]
        # A row that is damaged meanwhile keeps neither the other lease nor the next write.
        change(tmp_path / "runs.db", "UPDATE runs SET crc = crc + 1 WHERE run_id = 'b'")
        one.close_and_open()
        assert one.do(appending("c", 0, b"x")) == [1]
        assert one.place.unreleased == set()
        assert isinstance(two.do(lambda store: store.acquire("a", FOREVER, BEGAN))[0], Lease)


def test_what_is_undone_gives_no_lease_back(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as [one, two]:
        [lease] = one.do(lambda store: store.acquire("a", FOREVER, BEGAN))
        assert isinstance(lease, Lease)
        one.undone(lambda store: store.release([lease]))
        assert one.do(appending("a", 7, b"x", fence=lease.fence)) == ["PositionConflict"]
        assert two.do(lambda store: store.acquire("a", FOREVER, BEGAN)) == ["RunBusy"]
        assert one.do(head_of("a")) == [Head(0, lease.fence)]
        assert isinstance(two.do(lambda store: store.acquire("a", FOREVER, BEGAN))[0], Lease)


def test_so_many_heads_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEADS", 2)
    with opened(tmp_path) as [process]:
        for run, heads in (("a", {"a"}), ("b", {"a", "b"}), ("c", {"c"})):
            process.do(appending(run, 0, b"x"))
            assert {*process.store._heads} == heads


# -- numbers


def change(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql, values)


def test_a_file_has_numbers_for_so_many_runs_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with opened(tmp_path) as [process]:
        process.do(appending("a", 0, b"x"))
        sums = Sums(process.store.seed)
        change(path, "UPDATE store SET ticks = ?, crc = ?", MOST - 2, sums.ticks(MOST - 2))
        assert process.do(appending("b", 0, b"x"), appending("c", 0, b"x")) == [1, "StoreUnavailable"]
        assert process.store.begin(write=True)
        with pytest.raises(StoreUnavailable, match="numbers are") as caught:
            appending("c", 0, b"x")(process.store)
        assert caught.value.reason == "full"
        process.store.rollback()
        assert process.do(lambda store: [each.cursor for each in store.list(None, 9, None)], write=False) == [
            [MOST - 1, 1]
        ]


@pytest.mark.parametrize("number", [-5, 0])
def test_a_damaged_number_ends_the_pages_of_a_list(tmp_path: Path, number: int) -> None:
    with opened(tmp_path) as [process]:
        for run in ("a", "b"):
            process.do(appending(run, 0, b"x", status="running"))
        change(tmp_path / "runs.db", "UPDATE runs SET id = ? WHERE run_id = 'a'", number)
        for status in (None, "running"):
            process.begin(write=False)
            pages = listing(1, status)(process.store)
            process.store.end()
            assert [(each.run_id, each.cursor, each.problem is None) for each in pages] == [
                ("b", 2, True),
                ("a", 0, False),
            ]


# -- damage

READ = "a fork reads"
DAMAGE = [
    ("UPDATE shared SET crc = crc + 1", READ),
    ("UPDATE shared SET upto = upto + 1", READ),
    ("UPDATE shared SET upto = 'x'", READ),
    ("UPDATE shared SET upto = 1.5", READ),
    ("UPDATE shared SET stream = 'x'", READ),
    ("UPDATE shared SET stream = 9", READ),
    ("DELETE FROM shared", READ),
    ("UPDATE transactions SET crc = crc + 1 WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("UPDATE transactions SET count = 1 WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("UPDATE transactions SET count = 'x' WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("UPDATE transactions SET body = 'x' WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("UPDATE transactions SET id = id - 1 WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("DELETE FROM transactions WHERE id = (SELECT min(id) FROM transactions)", READ),
    ("DELETE FROM transactions WHERE id = (SELECT max(id) FROM transactions)", READ),
    ("INSERT INTO transactions SELECT id + 1, count, crc, body FROM transactions ORDER BY id DESC LIMIT 1", READ),
    ("UPDATE blobs SET data = 'x'", READ),
    ("UPDATE blobs SET data = x'00'", READ),
    ("DELETE FROM blobs", READ),
    ("UPDATE runs SET crc = crc + 1", READ),
    ("UPDATE runs SET card_crc = card_crc + 1", "entry"),
    ("UPDATE pairs SET crc = crc + 1", "get"),
    ("UPDATE pairs SET value = 'x'", "get"),
    ("UPDATE pairs SET key = x'6b'", "scan"),
    ("UPDATE store SET crc = crc + 1", "put"),
    ("UPDATE store SET ticks = 'x'", "put"),
    ("DELETE FROM store", "put"),
]
WORKS: dict[str, Work] = {
    READ: lambda store: store.read("f", 0, 100),
    "entry": lambda store: store.entry("f"),
    "get": lambda store: store.get(SCOPE, "k"),
    "scan": lambda store: store.scan(SCOPE, "", 9),
    "put": lambda store: store.put(SCOPE, "k", b"w", None),
}


@pytest.mark.parametrize(("sql", "what"), DAMAGE)
def test_what_is_changed_in_a_file_is_found_when_it_is_read(tmp_path: Path, sql: str, what: str) -> None:
    with opened(tmp_path) as [process]:
        process.do(
            appending("a", 0, b"x", b"a large payload"),
            appending("a", 2, b"y"),
            lambda store: store.fork("a", Transaction("f", 2, 0, ()), BEGAN),
            appending("f", 2, b"z"),
            lambda store: store.put(SCOPE, "k", b"v", None),
        )
        for work in WORKS.values():
            assert not isinstance(process.do(work)[0], Failed)
        change(tmp_path / "runs.db", sql)
        write = what == "put"
        process.begin(write=write)
        with pytest.raises(CorruptRecord):
            WORKS[what](process.store)
        process.store.rollback()


def test_damaged_numbers_are_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path) as [process]:
        process.do(appending("a", 0, b"x"), appending("b", 0, b"x"))
        change(tmp_path / "runs.db", "UPDATE runs SET position = 'x' WHERE run_id = 'a'")
        [stats] = process.do(lambda store: store.stats(), write=False)
        assert isinstance(stats, Stats)
        assert (stats.runs, stats.records) == (2, 1)
    assert stats.bytes == (tmp_path / "runs.db").stat().st_size


# -- how the file is opened


def test_checksums_are_those_of_every_release() -> None:
    sums = Sums(7)
    run = RunRow(1, "r\u00e9", 2, 3, 4, 5, 0, 6, "done", b"shown", 0)
    bare = evolve(run, status=None, summary=b"")
    assert (sums.head(run), sums.summary(run), sums.summary(bare)) == (3336445223, 3974177095, 1378346423)
    assert sums.transaction(1, 2, 3, b"b") == 3424243295
    assert sums.shared(1, 2, 3) == 450083568
    assert sums.pair(1, b"s", "k\u00e9", b"v") == 3208309570
    assert sums.ticks(5) == 450215437


def pragma(store: SqliteStore, name: str) -> object:
    return store._execute(f"PRAGMA {name}").fetchone()[0]


@pytest.mark.parametrize("mode", ["persist", "wal", "exclusive"])
def test_a_file_is_opened_with_care(tmp_path: Path, mode: Mode) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path, mode=mode) as [process]:
            store = process.store
            process.do(appending("a", 0, b"x"))
            assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
            assert (store.mode, store.where) == (mode, str(tmp_path / "runs.db"))
            assert (pragma(store, "synchronous"), pragma(store, "secure_delete"), pragma(store, "temp_store")) == (
                2,
                1,
                2,
            )
            assert (pragma(store, "fullfsync"), pragma(store, "checkpoint_fullfsync")) == (1, 1)
            assert (pragma(store, "trusted_schema"), pragma(store, "cell_size_check"), pragma(store, "mmap_size")) == (
                0,
                1,
                0,
            )
            assert pragma(store, "journal_mode") == ("persist" if mode == "persist" else "wal")
            assert pragma(store, "locking_mode") == ("exclusive" if mode == "exclusive" else "normal")
            assert pragma(store, "journal_size_limit") == 8 << 20
            assert (pragma(store, "wal_autocheckpoint") == 0) == (mode != "exclusive")
            assert (pragma(store, "application_id"), pragma(store, "user_version")) == (0x6E6F6574, VERSION)
            assert store._execute("SELECT id, length(salt) FROM store").fetchall() == [(1, 16)]
            assert store._execute("SELECT run_id, id FROM runs").fetchall() == [("a", 1)]
    finally:
        os.umask(before)


def test_an_sqlite_that_is_too_old_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_OLDEST", sqlite3.sqlite_version_info)
    with opened(tmp_path):
        monkeypatch.setattr(schema, "_OLDEST", (99, 0, 0))
        with pytest.raises(StoreUnavailable) as caught:
            Process(tmp_path / "runs.db")
        assert caught.value.reason == "sqlite"


COUNTED = [
    # A number that is above the counter says that the counter went back; one that is damaged itself does not.
    ("UPDATE store SET ticks = 3, crc = :three", True),
    ("UPDATE store SET ticks = 4, crc = :four", False),
    ("UPDATE store SET ticks = 3, crc = :four", True),
    ("UPDATE store SET ticks = 3, crc = :three; UPDATE pairs SET crc = crc + 1", False),
    ("UPDATE store SET ticks = 3, crc = :three; DELETE FROM pairs", False),
    ("UPDATE store SET ticks = 2, crc = :two; DELETE FROM pairs", True),
    ("UPDATE store SET ticks = 2, crc = :two; DELETE FROM pairs; UPDATE runs SET crc = crc + 1 WHERE id = 2", False),
    ("UPDATE store SET ticks = 1, crc = :one; DELETE FROM pairs; UPDATE runs SET crc = crc + 1 WHERE id = 1", True),
    ("UPDATE store SET ticks = 'x', crc = :four", True),
    ("UPDATE store SET salt = 'x'", True),
    ("DELETE FROM store", True),
    ("DROP INDEX pairs_by_key", True),
    ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END", True),
    ("CREATE VIEW v AS SELECT * FROM runs", True),
    ("CREATE TABLE other (n)", False),
]


@pytest.mark.parametrize(("sql", "refused"), COUNTED)
def test_what_is_wrong_with_a_file_is_found_when_it_is_opened(tmp_path: Path, sql: str, refused: bool) -> None:
    path = tmp_path / "runs.db"
    with opened(tmp_path) as [process]:
        # Runs 1 and 2, of which the second has fence 3; and the value with version 4.
        process.do(appending("a", 0, b"x"))
        process.do(appending("b", 0, b"x"))
        process.do(lambda store: store.acquire("b", FOREVER, BEGAN))
        process.do(lambda store: store.put(SCOPE, "k", b"v", None))
        sums = Sums(process.store.seed)
    for number, name in enumerate((":one", ":two", ":three", ":four"), 1):
        sql = sql.replace(name, str(sums.ticks(number)))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    with pytest.raises(CorruptRecord, match=str(path)) if refused else nullcontext():
        Process(path).close()


NAMED: list[tuple[int, type[Exception], str | None]] = [
    (sqlite3.SQLITE_BUSY, StoreUnavailable, "busy"),
    (sqlite3.SQLITE_LOCKED, StoreUnavailable, "busy"),
    (sqlite3.SQLITE_READONLY, StoreUnavailable, "readonly"),
    (sqlite3.SQLITE_IOERR, StoreUnavailable, "io"),
    (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable, "io"),
    (sqlite3.SQLITE_FULL, StoreUnavailable, "full"),
    (sqlite3.SQLITE_CANTOPEN, StoreUnavailable, "permission"),
    (sqlite3.SQLITE_NOTADB, StoreUnavailable, "not-a-database"),
    (sqlite3.SQLITE_NOMEM, StoreUnavailable, "memory"),
    (sqlite3.SQLITE_PROTOCOL, StoreUnavailable, "busy"),
    (sqlite3.SQLITE_TOOBIG, StoreUnavailable, "sqlite"),
    (sqlite3.SQLITE_MISUSE, StoreUnavailable, "sqlite"),
    (sqlite3.SQLITE_CORRUPT, CorruptRecord, None),
    (sqlite3.SQLITE_CONSTRAINT, CorruptRecord, None),
    (sqlite3.SQLITE_MISMATCH, CorruptRecord, None),
]


@pytest.mark.parametrize(("code", "kind", "reason"), NAMED)
def test_errors_of_sqlite_have_names(code: int, kind: type[Exception], reason: str | None) -> None:
    error = from_sqlite(driver_error(code), "here")
    assert type(error) is kind
    assert getattr(error, "reason", None) == reason
    assert error.hint
    assert "here" in str(error)
    assert f"CODE_{code}" in str(error)


def test_an_error_of_the_driver_has_a_name() -> None:
    error = from_sqlite(sqlite3.ProgrammingError("closed"), "here")
    assert isinstance(error, StoreUnavailable)
    assert (error.reason, "ProgrammingError" in str(error)) == ("sqlite", True)
    assert isinstance(from_sqlite(UnicodeDecodeError("utf-8", b"", 0, 1, "no"), "here"), CorruptRecord)


def test_what_goes_away_before_it_is_opened_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "runs.db"
    place = OpenFile.find(Settings(path, 5.0, 0o600, False))
    path.mkdir()
    with pytest.raises(StoreUnavailable) as caught:
        open_database(place)
    assert caught.value.reason == "permission"
    place.locks.close()
    place = OpenFile.find(Settings(folder / "other.db", 5.0, 0o600, False))
    shutil.rmtree(folder)
    with pytest.raises(StoreUnavailable) as caught:
        open_database(place)
    assert caught.value.where == str(folder / "other.db")
    assert caught.value.reason == "missing"
    place.locks.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows what a process has open")
def test_a_file_that_is_refused_is_not_kept_open(tmp_path: Path) -> None:
    """Not even while its error is looked at."""
    path = tmp_path / "runs.db"
    path.write_bytes(b"not a database at all")
    place = OpenFile.find(Settings(path, 5.0, 0o600, False))
    with pytest.raises(StoreUnavailable) as caught:
        open_database(place)
    opened = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert path not in opened
    assert caught.value.reason == "not-a-database"
    place.locks.close()


def test_a_journal_mode_that_cannot_be_set_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreUnavailable) as caught,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as memory,
    ):
        schema._prepare(memory, Settings(tmp_path / "runs.db", 5.0, 0o600, False))
    assert caught.value.reason == "sqlite"
    assert "journal mode" in str(caught.value)


# -- the file between two transactions


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("mode", ["persist", "wal", "exclusive"])
def test_a_file_is_closed_with_all_that_was_committed(tmp_path: Path, mode: Mode, busy: bool) -> None:
    with opened(tmp_path, mode=mode) as [process]:
        process.do(appending("a", 0, b"x"))
        if busy:
            process.begin(write=True)
            appending("b", 0, b"x")(process.store)
    assert rows(tmp_path / "runs.db", "runs") == 1
    assert not (tmp_path / "runs.db-wal").exists()


def test_another_journal_mode_is_noticed(tmp_path: Path) -> None:
    with opened(tmp_path, mode="persist") as [process]:
        process.do(appending("a", 0, b"x"))
        with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
            assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        assert not process.store.begin(write=True)
        process.store.rollback()


# -- what waits together


class Opening:
    """Opens the file again and again, and counts how often."""

    def __init__(self, folder: Path) -> None:
        self.process = Process(folder / "runs.db")
        self.process.store.close()
        self.path = folder / "runs.db"
        # How often another program changes the journal mode while the file is opened.
        self.changed = 0
        self.count = 0
        self.fails: Exception | None = None

    def __call__(self) -> SqliteStore:
        if self.fails is not None:
            raise self.fails
        if self.changed:
            self.changed -= 1
            with read_by_another(self.path):
                self.process.open()
            with closing(sqlite3.connect(self.path)) as other:
                other.execute("PRAGMA journal_mode = WAL")
        else:
            self.process.open()
        self.count += 1
        return self.process.store


@contextmanager
def commits(folder: Path) -> Generator[tuple[GroupCommit, Opening]]:
    opening = Opening(folder)
    group = GroupCommit(opening, "here")
    try:
        yield group, opening
    finally:
        group.close(last=True)
        opening.process.place.locks.close()


def writes(work: Work) -> Job[Any]:
    return Job(work, write=True)


def reads(work: Work) -> Job[Any]:
    return Job(work, write=False)


def raises(error: Exception) -> Work:
    def work(store: Any) -> object:
        store.put(SCOPE, "k", b"never", None)
        raise error

    return work


def driver_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode, error.sqlite_errorname = code, f"CODE_{code}"
    return error


def done(group: GroupCommit, *jobs: Job[Any]) -> list[object]:
    """What each job gives, or the name of its error."""
    group.do(jobs)
    return [
        outcome_of(lambda job: job.outcome(), job) if isinstance(job.error, NoeticError | None) else job.error
        for job in jobs
    ]


@pytest.mark.anyio
async def test_so_many_jobs_are_one_group() -> None:
    group = GroupCommit(pytest.fail, "here")
    jobs = [reads(head_of("a")) for _ in range(600)]
    queue = deque(jobs)
    assert group.take(queue) == jobs[:512]
    assert group.take(queue) == jobs[512:]
    assert group.take(queue) == []
    group.close(last=True)


@pytest.mark.anyio
async def test_what_reads_in_a_group_sees_what_was_committed_before(tmp_path: Path) -> None:
    with commits(tmp_path) as (group, opening):
        assert opening.count == 0
        assert done(group, writes(appending("a", 0, b"1")), reads(head_of("a"))) == [1, None]
        assert done(group, reads(head_of("a")), writes(appending("a", 1, b"2")), writes(head_of("a"))) == [
            Head(1, 0),
            2,
            Head(2, 0),
        ]
        assert done(group, reads(head_of("a"))) == [Head(2, 0)]
        assert opening.count == 1
        group.close(last=False)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            opening.process.store._execute("SELECT 1")
        assert done(group, reads(head_of("a"))) == [Head(2, 0)]
        assert opening.count == 2


@pytest.mark.anyio
async def test_each_job_of_a_group_is_taken_or_not(tmp_path: Path) -> None:
    oops = ValueError("oops")
    with commits(tmp_path) as (group, opening):
        got = done(
            group,
            reads(raises(oops)),
            reads(reading("none", 0, 1)),
            writes(appending("a", 0, b"1")),
            writes(raises(oops)),
            writes(appending("a", 0, b"1")),
            writes(appending("a", 1, b"2")),
        )
        assert got == [oops, "RunNotFound", 1, oops, "PositionConflict", 2]
        assert done(group, writes(raises(oops))) == [oops]
        assert done(group, reads(head_of("a")), reads(lambda store: store.get(SCOPE, "k"))) == [Head(2, 0), None]
        assert opening.count == 1


FAILURES = [
    # What others can do without the one that failed, each alone; what they cannot; and what opens the file anew.
    (sqlite3.SQLITE_TOOBIG, True, False),
    (sqlite3.SQLITE_FULL, True, False),
    (sqlite3.SQLITE_CONSTRAINT, True, True),
    (sqlite3.SQLITE_BUSY, False, False),
    (sqlite3.SQLITE_IOERR, False, True),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "alone", "broken"), FAILURES)
async def test_what_one_job_breaks_is_done_again_without_it(
    tmp_path: Path, code: int, alone: bool, broken: bool
) -> None:
    error = driver_error(code)
    name = type(from_sqlite(error, "here")).__name__
    with commits(tmp_path) as (group, opening):
        assert done(group, writes(appending("a", 0, b"1"))) == [1]
        got = done(group, writes(appending("a", 1, b"2")), writes(raises(error)), writes(appending("a", 2, b"3")))
        assert got == ([2, name, 3] if alone else [name] * 3)
        position = 3 if alone else 1
        assert done(group, reads(head_of("a"))) == [Head(position, 0)]
        assert opening.count == 1 + broken
        # One that is alone, and one that only reads.
        assert done(group, writes(raises(error))) == [name]
        assert done(group, reads(lambda store: raises(error)(MemoryStore(lambda: 0.0)))) == [name]
        assert done(group, reads(head_of("a")), reads(lambda store: store.get(SCOPE, "k"))) == [Head(position, 0), None]
        assert opening.count == 1 + 3 * broken


@pytest.mark.anyio
@pytest.mark.parametrize("changed", [1, 2])
async def test_a_file_whose_journal_mode_was_changed_is_opened_once_more(tmp_path: Path, changed: int) -> None:
    with commits(tmp_path) as (group, opening):
        assert done(group, writes(appending("a", 0, b"1"))) == [1]
        group.close(last=False)
        opening.count, opening.changed = 0, changed
        job, beside = writes(appending("a", 1, b"2")), writes(appending("b", 0, b"3"))
        if changed == 1:
            assert done(group, job, beside, reads(head_of("a"))) == [2, 1, Head(1, 0)]
            assert opening.count == 2
        else:
            assert done(group, job, beside) == ["StoreUnavailable"] * 2
            assert isinstance(job.error, StoreUnavailable)
            assert job.error.reason == "mode"
            assert opening.count == 2
            # The connection that was refused is not used again, and nothing was done.
            assert done(group, job, beside) == [2, 1]


@pytest.mark.anyio
async def test_a_file_that_cannot_be_opened_or_written_fails_all_jobs_of_a_group(tmp_path: Path) -> None:
    refused = StoreUnavailable("gone", where="here", reason="moved", hint="put it back")
    with commits(tmp_path) as (group, opening):
        opening.fails = refused
        assert done(group, writes(head_of("a")), reads(head_of("a"))) == ["StoreUnavailable"] * 2
        opening.fails = None
        assert done(group, writes(appending("a", 0, b"1")), writes(appending("a", 1, b"2"))) == [1, 2]
        (tmp_path / "runs.db").rename(tmp_path / "elsewhere.db")
        assert done(group, writes(head_of("a")), writes(head_of("a"))) == ["StoreUnavailable"] * 2


# -- what was deleted


def _churned(process: Process, seed: int) -> None:
    """Put, replace and remove values of many sizes, and then remove all that are of `GONE`."""
    dice, live = random.Random(seed), dict[tuple[str, str], None]()
    process.begin(write=True)
    for _ in range(3000):
        who = dice.choice(("GONE", "KEPT"))
        scope, key = who, f"{dice.random()}-{who}"
        if live and dice.random() < 0.45:
            scope, key = dice.choice(list(live))
            if dice.random() < 0.5:
                process.store.remove((scope,), key, None)
                del live[scope, key]
                continue
        process.store.put((scope,), key, f"{scope}-".encode() * dice.randrange(1, 300), None)
        live[scope, key] = None
    for scope, key in live:
        if scope == "GONE":
            process.store.remove((scope,), key, None)
    process.store.end()


def _copies(folder: Path, mark: bytes) -> int:
    return sum(path.read_bytes().count(mark) for path in folder.iterdir())


@pytest.mark.parametrize("mode", ["wal", "exclusive", "persist"])
@pytest.mark.parametrize("seed", [1])
def test_a_file_that_was_scrubbed_holds_no_byte_of_what_was_deleted(tmp_path: Path, mode: str, seed: int) -> None:
    """With this seed SQLite leaves copies of deleted values behind, although it overwrites what it deletes."""
    path = tmp_path / "runs.db"
    made = Process(path)
    made.close()
    with read_by_another(path) if mode == "persist" else nullcontext():
        process = Process(path, exclusive=mode == "exclusive")
    assert process.store.mode == mode
    _churned(process, seed)
    assert _copies(tmp_path, b"GONE")
    assert process.do(lambda store: store.scrub(), write=False) == [()]
    assert _copies(tmp_path, b"GONE") == 0
    assert _copies(tmp_path, b"KEPT")
    # It goes on as before: with its log, its settings and its rows.
    assert process.do(lambda store: store.put(("KEPT",), "new", b"v", 0)) != []
    assert process.do(lambda store: len(store.scan(("KEPT",), "", 10_000)) > 100, write=False) == [True]
    asked = ("busy_timeout", "temp_store", "journal_size_limit", "secure_delete", "journal_mode")
    pragmas = {name: process.store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked}
    assert pragmas["temp_store"] == 2
    assert pragmas["journal_size_limit"] == schema._JOURNAL_BYTES
    assert (pragmas["busy_timeout"], pragmas["secure_delete"]) == (0, 1)
    assert pragmas["journal_mode"] == ("persist" if mode == "persist" else "wal")
    # What it is told of syncs is what the next transaction relies on.
    for durable, expected in ((False, 1), (True, 2)):
        process.store.begin(write=True, durable=False)
        process.store.end()
        process.do(lambda store: store.scrub(), write=False)
        process.store.begin(write=True, durable=durable)
        found = process.store._connection.execute("PRAGMA synchronous").fetchone()[0]
        process.store.end()
        assert found == (2 if mode == "persist" else expected)
    process.close()


def test_a_log_that_another_connection_reads_is_not_scrubbed_in_silence(tmp_path: Path) -> None:
    process = Process(tmp_path / "runs.db")
    process.do(lambda store: store.put(("GONE",), "k", b"GONE", 0))
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM pairs").fetchall()
        process.do(lambda store: store.remove(("GONE",), "k", None))
        assert process.do(lambda store: store.scrub(), write=False) == ["StoreUnavailable"]
        other.execute("COMMIT")
    assert process.do(lambda store: store.scrub(), write=False) == [()]
    assert _copies(tmp_path, b"GONE") == 0
    process.close()
