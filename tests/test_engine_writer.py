"""The writer of a run: what was appended is stored once and in its order, whatever the backend and its callers do."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Harness, InMemoryBackend, step
from noetic_py.checkpoints import BudgetChange, Lease, Record, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.core.codec import Codec
from noetic_py.engine.journaling import writer as writing
from noetic_py.engine.journaling.writer import TTL, RunStorage, RunWriter, ended_signals, fit_together, parent_in
from noetic_py.errors import CheckpointError, CheckpointFailed, ConfigError, LeaseLost, StoreUnavailable
from noetic_py.journal.records import Decision, Intent, JournalRecord, ResultDiscarded, dump_record
from noetic_py.testing import Died, FaultyBackend, VirtualRuntime

pytestmark = pytest.mark.anyio

CALLER: ContextVar[anyio.CancelScope] = ContextVar("CALLER")
MOST = 200


def down() -> StoreUnavailable:
    return StoreUnavailable("the disk failed", where="here", reason="io", hint="try again")


class Scripted(DelegatingBackend):
    """A backend whose appends go one after the other as a script says; the rest of them are taken at once.

    "slow" lets others run first, "refused" and "broken" raise before it is stored, "lost" raises after that. "cut" and
    "late" cancel their caller, before it is stored and after.
    """

    def __init__(self, script: Sequence[str] = ()) -> None:
        super().__init__(InMemoryBackend())
        self.script = deque(script)
        self.batches: list[list[int]] = []
        self.shown: list[tuple[bytes | None, str | None]] = []

    async def append(self, run_id: str, *, records: Sequence[Record], **given: Any) -> int:
        does = self.script.popleft() if self.script else "taken"
        if does == "slow":
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        if does == "cut":
            CALLER.get().cancel()
            await anyio.lowlevel.checkpoint()
        if does == "refused":
            raise down()
        if does == "broken":
            raise ValueError("no such table")
        position = await super().append(run_id, records=records, **given)
        self.batches.append([len(record.payload) for record in records])
        self.shown.append((given["summary"], given["status"]))
        if does == "late":
            CALLER.get().cancel()
            await anyio.lowlevel.checkpoint()
        if does == "lost":
            raise down()
        return position

    async def stored(self) -> list[Record]:
        """What is stored."""
        return await stored_in(self)


async def stored_in(backend: DelegatingBackend) -> list[Record]:
    """What is stored, also for a caller that is cancelled."""
    found: list[Record] = []
    with anyio.CancelScope(shield=True):
        if await backend.entry("r") is not None:
            found += await backend.read("r")
    return found


async def writer_of(backend: Any, mode: Any = "step", position: int = 0) -> RunWriter:
    writer = RunWriter(RunStorage(backend, mode, None), "r", Codec(), position=position)
    # The clock of the module, which tests replace.
    asked = vars(writing)["SYSTEM"].monotonic()
    writer.own(await backend.acquire("r", ttl=TTL), asked)
    return writer


def intent(number: int, size: int) -> Intent:
    return Intent((f"step[{number}]",), "x" * size)


# -- many who commit


class Program:
    """Tasks that append records to one journal and commit them."""

    def __init__(self, backend: Scripted, writer: RunWriter) -> None:
        self.backend, self.writer = backend, writer
        self.journal: list[JournalRecord] = []
        self.sizes: list[list[int]] = []
        self.failures: list[Exception] = []

    async def task(self, commits: Sequence[tuple[Sequence[int], bool]]) -> None:
        for sizes, force in commits:
            with anyio.CancelScope() as scope:
                CALLER.set(scope)
                await self.commit(sizes, force)
            if self.failures:
                return

    async def commit(self, sizes: Sequence[int], force: bool) -> None:
        before = len(self.journal)
        self.journal += [intent(before + number, size) for number, size in enumerate(sizes)]
        self.sizes.append([len(each.payload) for each in self.encoded()[before:]])
        try:
            await self.writer.commit(self.journal, force=force)
        except CheckpointError as error:
            self.failures.append(error)
            assert self.writer.broken
        else:
            assert len(await self.backend.stored()) >= before + len(sizes)

    def encoded(self) -> list[Record]:
        return [dump_record(record, Codec()) for record in self.journal]


def together(commits: Sequence[Sequence[int]], batches: Sequence[Sequence[int]]) -> None:
    """Each transaction is made of whole commits, not more than fit."""
    left = deque(each for each in commits if each)
    for batch in batches:
        size = 0
        rest = [*batch]
        while rest:
            commit = left.popleft()
            assert rest[: len(commit)] == [*commit]
            rest = rest[len(commit) :]
            size += sum(commit)
            assert size <= MOST or len(batch) == len(commit)


COMMITS = st.tuples(st.lists(st.integers(0, 90), max_size=3), st.booleans())
SCRIPTS = st.lists(st.sampled_from(["taken", "slow", "slow", "cut", "late", "refused", "broken", "lost"]), max_size=8)


@given(st.lists(st.lists(COMMITS, max_size=4), min_size=1, max_size=4), SCRIPTS)
async def test_what_is_committed_is_stored_once_and_in_order(
    tasks: list[list[tuple[list[int], bool]]], script: list[str]
) -> None:
    backend = Scripted(script)
    writer = await writer_of(backend)
    program = Program(backend, writer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_MOST_TOGETHER", MOST)
        async with anyio.create_task_group() as group:
            for commits in tasks:
                group.start_soon(program.task, commits)
        stored = await backend.stored()
        assert stored == program.encoded()[: len(stored)]
        together(program.sizes, backend.batches)
        if not program.failures:
            assert len(stored) == len(program.journal)
            assert not writer.broken
            return
        # After a commit that was not taken nothing is written any more, by whoever tries.
        appends = len(backend.batches)
        for force in (False, True):
            with pytest.raises(CheckpointError) as caught:
                await writer.commit(program.journal, force=force)
            assert caught.value is program.failures[0]
        assert len(backend.batches) == appends


@pytest.mark.parametrize(
    ("does", "message", "stored"),
    [
        ("refused", "the disk failed", 0),
        ("lost", "the disk failed", 1),
        ("broken", "a commit failed: ValueError: no ", 0),
    ],
)
async def test_a_commit_that_fails_is_the_end_for_all_who_wait(does: str, message: str, stored: int) -> None:
    backend = Scripted(["slow", does])
    writer, journal, failed = await writer_of(backend), list[JournalRecord](), list[Exception]()

    async def commits(number: int) -> None:
        journal.append(intent(number, 1))
        try:
            await writer.commit(journal)
        except CheckpointError as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(commits, number)
    # The first was written alone; the others waited for one of them, which failed for all.
    assert len(await backend.stored()) == 1 + 3 * stored
    assert {*map(id, failed)} == {id(failed[0])}
    assert len(failed) == 3
    assert message in str(failed[0])
    assert writer.broken
    with pytest.raises(CheckpointError):
        writer.check()


@pytest.mark.parametrize("dies_at", [1, 2, 3])
async def test_a_process_that_dies_in_a_commit_writes_nothing_more(dies_at: int) -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
    writer, journal = await writer_of(backend), list[JournalRecord]()
    with backend.outlived():
        for number in range(4):
            journal.append(intent(number, 1))
            await writer.commit(journal)
    assert (len(journal), writer.broken) == (dies_at, True)
    with pytest.raises(CheckpointFailed, match="a commit failed: Died"):
        await writer.commit(journal)
    head = await backend._inner.head("r")
    assert head is not None
    assert head.position == dies_at - 1


async def test_what_was_set_while_a_commit_is_under_way_goes_with_the_next() -> None:
    backend = Scripted(["slow"])
    writer, journal = await writer_of(backend), list[JournalRecord]()
    writer.summary_fields = {"flow": "f"}
    writer.status = "running"
    writer.set_summary()

    async def ends() -> None:
        await anyio.lowlevel.checkpoint()
        journal.append(intent(2, 1))
        writer.status = "completed"
        writer.set_summary(shutdown=True)
        await writer.commit(journal, force=True)

    async with anyio.create_task_group() as group:
        journal.append(intent(1, 1))
        group.start_soon(writer.commit, journal)
        group.start_soon(ends)
    journal.append(intent(3, 1))
    await writer.commit(journal)
    shown = [(json.loads(summary) if summary else None, status) for summary, status in backend.shown]
    assert shown == [({"flow": "f"}, "running"), ({"flow": "f", "shutdown": True}, "completed"), (None, None)]


async def test_what_lists_show_goes_with_the_last_part_of_what_is_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "_MOST_TOGETHER", MOST)
    backend = Scripted()
    writer, journal = await writer_of(backend, "manual"), list[JournalRecord]()
    sizes: list[list[int]] = [[MOST], [MOST - 10, 4], [], [1], [50, 50], [100], [1, MOST + 1], []]
    for number, each in enumerate(sizes):
        # A record has four bytes around its text.
        journal += [intent(number, size - 4) for size in each if size > 4]
        journal += [ResultDiscarded((f"step[{number}]",)) for size in each if size <= 4]
        await writer.commit(journal)
    writer.status = "completed"
    assert await backend.stored() == []
    await writer.commit(journal, force=True)
    assert [sum(batch) for batch in backend.batches] == [MOST, MOST - 8 + 2, MOST, MOST + 3]
    assert [status for _, status in backend.shown] == [None, None, None, "completed"]
    assert len(await backend.stored()) == len(journal)


@pytest.mark.parametrize("mode", ["exit", "manual"])
async def test_a_run_that_does_not_commit_each_step_commits_when_it_is_forced(mode: str) -> None:
    backend = Scripted()
    writer, journal = await writer_of(backend, mode), [intent(1, 1)]
    await writer.commit([*journal])
    assert await backend.stored() == []
    writer.lose(down())
    writer.lose(LeaseLost("later"))
    for force in (False, True):
        with pytest.raises(StoreUnavailable):
            await writer.commit([*journal], force=force)


@pytest.mark.parametrize("force", [False, True])
async def test_a_lease_that_is_lost_in_a_commit_fails_the_one_that_is_forced(force: bool) -> None:
    class Losing(Scripted):
        async def append(self, run_id: str, **given: Any) -> int:
            writer.lose(LeaseLost("gone"))
            return await super().append(run_id, **given)

    backend = Losing()
    writer = await writer_of(backend)
    with pytest.raises(LeaseLost) if force else nullcontext():
        await writer.commit([intent(1, 1)], force=force)
    assert (writer.broken, len(await backend.stored())) == (True, 1)


async def test_a_record_that_cannot_be_stored_ends_the_run_and_not_only_its_step() -> None:
    backend = Scripted()
    writer = await writer_of(backend)
    journal: list[JournalRecord] = [intent(1, 1), Decision(("step[2]",), "k", object()), intent(3, 1)]
    for _ in range(2):
        with pytest.raises(CheckpointFailed, match=r"a Decision cannot be stored: .*object cannot be stored") as caught:
            await writer.commit(journal)
        assert caught.value.path == ("step[2]",)
        assert caught.value.hint
    assert await backend.stored() == []


async def test_a_record_is_stored_as_it_was_when_it_was_prepared() -> None:
    backend = Scripted()
    writer = await writer_of(backend)
    value = {"n": 1}
    journal: list[JournalRecord] = [Decision(("a",), "k", value), Decision(("b",), "k", value)]
    writer.prepare(journal[0])
    value["n"] = 2
    await writer.commit(journal)
    assert [json.loads(record.payload)[-1] for record in await backend.stored()] == [{"n": 1}, {"n": 2}]


async def test_of_what_is_put_off_the_last_of_each_place_goes_with_the_next_commit() -> None:
    backend = Scripted()
    writer, journal = await writer_of(backend), list[JournalRecord]()
    for path in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("d",), ("d",)):
        record = Intent(path, str(len(writer._put_off)))
        writer.put_off(record, dump_record(record, Codec()))
    writer.drop_put_off(("a", "b"))
    assert journal == []
    journal.append(intent(1, 1))
    await writer.commit(journal)
    await writer.commit(journal)
    assert [record.path for record in await backend.stored()] == [("step[1]",), ("a",), ("ab",), ("d",)]
    assert await backend.stored() == [dump_record(record, Codec()) for record in journal]
    last = journal[-1]
    assert isinstance(last, Intent)
    assert last.digest == "5"


# -- cancelled in a commit


async def test_one_that_waits_for_the_commit_of_another_is_not_cancelled_before_it_is_stored() -> None:
    class Waiting(Scripted):
        async def append(self, run_id: str, **given: Any) -> int:
            writing.set()
            await go.wait()
            return await super().append(run_id, **given)

    writing, go = anyio.Event(), anyio.Event()
    backend = Waiting()
    writer, journal, told = await writer_of(backend), list[JournalRecord](), list[bool]()

    async def commits(scope: anyio.CancelScope) -> None:
        with scope:
            journal.append(intent(len(journal), 1))
            count = len(journal)
            await writer.commit(journal)
            told.append(len(await backend.stored()) >= count)

    scopes = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(commits, scopes[0])
        await writing.wait()
        group.start_soon(commits, scopes[1])
        await anyio.wait_all_tasks_blocked()
        scopes[1].cancel()
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert told == [True, True]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_task_of_asyncio_that_is_cancelled_in_a_commit_has_stored_it(stored: bool, anyio_backend: str) -> None:
    waiting = asyncio.Event()

    class Waiting(Scripted):
        async def append(self, run_id: str, **given: Any) -> int:
            first = not waiting.is_set()
            position = await super().append(run_id, **given) if stored or not first else 0
            if first:
                waiting.set()
                await asyncio.get_running_loop().create_future()
            return position

    backend = Waiting()
    writer, journal = await writer_of(backend), [intent(1, 1)]
    task = asyncio.create_task(writer.commit([*journal]))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not writer.broken
    await writer.commit([*journal, intent(2, 1)])
    assert backend.batches == [[5], [5]]


async def test_a_commit_that_is_cut_short_asks_who_owns_the_run_before_it_is_made_again() -> None:
    """Another owner may have written as much meanwhile."""
    backend = Scripted(["cut"])
    writer = await writer_of(backend)
    inner = backend.inner
    failed: list[Exception] = []

    async def commits(scope: anyio.CancelScope) -> None:
        with scope:
            CALLER.set(scope)
            try:
                await writer.commit([intent(1, 1)])
            except LeaseLost as error:
                failed.append(error)

    lease = Lease("r", writer.fence)
    await inner.release(lease)
    other = await inner.acquire("r", ttl=TTL)
    await inner.append("r", expected_position=0, fence=other.fence, records=[Record("K", (), b"{}")])
    await commits(anyio.CancelScope())
    assert len(failed) == 1
    assert [record.kind for record in await backend.stored()] == ["K"]


class Told(DelegatingBackend):
    """Lets a run go on to its end while the decision to stop it is stored."""

    def __init__(self) -> None:
        super().__init__(InMemoryBackend())
        self.begun = anyio.Event()

    async def append(self, run_id: str, *, records: Sequence[Record], **given: Any) -> int:
        if [record.kind for record in records] == ["Decision"]:
            self.begun.set()
            await anyio.wait_all_tasks_blocked()
        return await super().append(run_id, records=records, **given)


async def test_a_run_that_ends_while_its_stop_is_stored_is_listed_as_ended() -> None:
    backend = Told()
    begun = anyio.Event()

    @step(version="1")
    async def body(value: int) -> int:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await backend.begun.wait()
        return value

    async with Harness(plugins=(), checkpoints=backend) as harness:
        handle = harness.start(body, 1, run_id="r")
        await begun.wait()
        handle.abort("enough")
        assert (await handle.result()).status == "aborted"
        assert [info.status for info in await harness.runs.list()] == ["aborted"]


# -- the end


class Commits(DelegatingBackend):
    """A backend that remembers the transactions, and how often a lease was released apart from one.

    With `cut` it cancels the caller of a commit that it has stored; with `fails` it takes none.
    """

    def __init__(self) -> None:
        super().__init__(InMemoryBackend())
        self.cut: anyio.CancelScope | None = None
        self.fails: Exception | None = None
        self.given: list[Transaction] = []
        self.released = 0

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        await anyio.lowlevel.checkpoint()
        if self.fails is not None:
            raise self.fails
        leases = await super().commit(transactions)
        self.given += transactions
        if self.cut is not None:
            self.cut.cancel()
            await anyio.lowlevel.checkpoint()
        return leases

    async def release(self, lease: Lease) -> None:
        self.released += 1
        await super().release(lease)


@pytest.mark.parametrize(("position", "over"), [(0, True), (1, True), (1, False)])
async def test_the_last_record_gives_the_run_up_and_takes_it_out_of_a_queue_that_it_may_be_in(
    position: int, over: bool
) -> None:
    """Only a run that was stored before this process had it can be in a queue."""
    backend = Commits()
    first = await writer_of(backend)
    journal: list[JournalRecord] = [intent(number, 1) for number in range(position)]
    await first.commit(journal)
    await first.release()
    writer = await writer_of(backend, position=position)
    writer.summary_fields = {"flow": "f", "queue": "q"}
    writer.status = "completed"
    writer.read = 3
    journal.append(intent(position, 1))
    await writer.end(journal, followed=False, ended=over)
    (given,) = backend.given
    assert (given.release, given.read, given.status) == (True, 3, "completed")
    leaves = over and position > 0
    assert given.ended is leaves
    assert given.summary == (b'{"flow": "f"}' if leaves else None)
    released = backend.released
    await writer.release()
    assert backend.released == released
    assert len(await stored_in(backend)) == position + 1


async def test_an_end_that_is_stored_and_cut_short_has_given_the_run_up() -> None:
    backend = Commits()
    writer = await writer_of(backend)
    with anyio.CancelScope() as backend.cut:
        await writer.end([intent(0, 1)], followed=False)
    assert [given.release for given in backend.given] == [True]
    await writer.release()
    assert backend.released == 0


async def test_a_commit_that_is_stored_and_cut_short_before_the_end_does_not_give_the_run_up() -> None:
    backend = Scripted(["late"])
    writer = await writer_of(backend)
    with anyio.CancelScope() as scope:
        CALLER.set(scope)
        await writer.commit([intent(0, 1)])
    assert scope.cancel_called
    await writer.release()
    # Another owner may have it, as this one has given its lease back.
    assert (await backend.acquire("r", ttl=TTL)).fence > writer.fence


@pytest.mark.parametrize("by_session", [True, False])
async def test_an_end_that_its_session_is_to_store_is_stored_once(by_session: bool) -> None:
    backend = Commits()
    writer = await writer_of(backend)
    await writer.end([intent(0, 1)], followed=True)
    await writer.release()
    assert (backend.given, backend.released, await stored_in(backend)) == ([], 0, [])
    ending = writer.ending
    assert ending is not None
    if by_session:
        await backend.commit([ending])
        writer.finished()
    with anyio.CancelScope() as scope:
        # It cannot be cancelled.
        scope.cancel()
        await writer.finish()
        await writer.release()
    (given,) = backend.given
    assert (given.release, given.budgets, backend.released) == (True, (), 0)
    assert len(await stored_in(backend)) == 1


# -- shared budgets


async def test_what_a_run_holds_of_shared_budgets_is_named_once_and_in_every_summary_from_then_on() -> None:
    backend = Commits()
    writer, journal = await writer_of(backend), list[JournalRecord]()
    writer.summary_fields = {"flow": "f"}
    for places in ([("team", "ever")], [("team", "ever")], [("team", "ever"), ("me", "day")]):
        await writer.change_budgets(list, places=places)
    one, both = [["team", "ever"]], [["team", "ever"], ["me", "day"]]
    named = [None if given.summary is None else json.loads(given.summary) for given in backend.given]
    assert named == [{"flow": "f", "budgets": one}, None, {"flow": "f", "budgets": both}]
    writer.set_summary(shutdown=True)
    journal.append(intent(0, 1))
    await writer.commit(journal)
    entry = await backend.entry("r")
    assert entry is not None
    assert json.loads(entry.summary) == {"flow": "f", "budgets": both, "shutdown": True}


@pytest.mark.parametrize("broken", [down(), ValueError("no such table")])
async def test_a_change_of_a_budget_that_may_be_stored_or_not_is_the_end_of_the_run(broken: Exception) -> None:
    backend = Commits()
    writer = await writer_of(backend)
    backend.fails = broken
    with pytest.raises(type(broken)):
        await writer.change_budgets(list)
    backend.fails = None
    assert writer.broken
    with pytest.raises(CheckpointError):
        await writer.commit([intent(0, 1)])


class Owed:
    """Settlements that go with the next commit, once."""

    open = True
    settlements = 0

    def changes(self) -> Sequence[BudgetChange]:
        return ()

    def settled(self) -> None:
        self.open = False
        self.settlements += 1


async def test_what_is_settled_in_a_commit_that_is_cut_short_is_settled_once() -> None:
    backend = Commits()
    writer = await writer_of(backend)
    writer.budgets = owed = Owed()
    with anyio.CancelScope() as backend.cut:
        await writer.commit([intent(0, 1)])
    assert (len(backend.given), owed.settlements) == (1, 1)


async def test_a_refused_change_of_a_budget_is_not_the_end_of_the_run() -> None:
    backend = Commits()
    writer = await writer_of(backend)
    backend.fails = ConfigError("no shared budgets", code="budgets")
    with pytest.raises(ConfigError):
        await writer.change_budgets(list)
    backend.fails = None
    await writer.commit([intent(0, 1)])
    assert len(await stored_in(backend)) == 1


@pytest.mark.parametrize(("sizes", "apart"), [((100, 100), 0), ((100, 101), 1), ((201,), 1)])
async def test_what_is_too_large_for_the_commit_of_a_session_is_written_before_it(
    sizes: Sequence[int], apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MOST_TOGETHER", MOST)
    backend = Scripted()
    writer, journal = await writer_of(backend, "manual"), list[JournalRecord]()
    for number, size in enumerate(sizes):
        # A record has four bytes around its text.
        journal.append(intent(number, size - 4))
        await writer.commit(journal)
    await writer.end(journal, followed=True)
    ending = writer.ending
    assert ending is not None
    assert (len(backend.batches), len(ending.records)) == (apart, len(sizes) - apart)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_transactions_are_written_as_one_up_to_a_size(more: int, fits: bool) -> None:
    half = writing._MOST_TOGETHER // 2
    records = [Record("Intent", (), b"x" * size) for size in (half, half + more)]
    given = [Transaction(name, 0, 1, (record,)) for name, record in zip("rs", records, strict=True)]
    assert writing._MOST_TOGETHER % 2 == 0
    assert fit_together(*given) is fits


async def test_a_commit_is_measured_by_the_clock_of_the_machine(leased: Leased) -> None:
    class Slow(DelegatingBackend):
        async def append(self, *given: Any, **more: Any) -> int:
            await leased.virtual.advance(2.5)
            return await super().append(*given, **more)

    measured: list[float] = []
    writer = await writer_of(Slow(leased))
    metrics: Any = SimpleNamespace(committed=measured.append)
    writer.metrics = metrics
    await writer.commit([intent(0, 1)])
    assert measured == [2.5]


# -- the lease


class Leased(InMemoryBackend):
    """A backend that renews leases as a script says, by a clock that a test moves."""

    def __init__(self, clock: VirtualRuntime) -> None:
        super().__init__(runtime=clock)
        self.virtual = clock
        self.fails: BaseException | None = None
        self.takes = 0.0
        self.renewed: list[tuple[float, float]] = []

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        self.renewed.append((self.virtual.monotonic(), ttl))
        await self.virtual.advance(self.takes)
        if self.fails is not None:
            raise self.fails
        return await super().renew(lease, ttl=ttl)


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> Leased:
    clock = VirtualRuntime()
    # So that not everything counts from zero.
    clock._elapsed = 1000.0
    monkeypatch.setattr(writing, "SYSTEM", clock)
    return Leased(clock)


async def test_a_lease_is_renewed_once_it_is_not_certain_any_more(leased: Leased) -> None:
    writer = await writer_of(leased)
    leased.takes = 2.0
    await leased.virtual.advance(0.8 * TTL)
    await writer.hold()
    assert leased.renewed == []
    await leased.virtual.advance(0.25)
    await writer.hold()
    # From the moment in which it was asked for, and not from the answer.
    await leased.virtual.advance(0.8 * TTL - 2.0)
    await writer.hold()
    assert leased.renewed == [(1024.25, TTL)]
    await leased.virtual.advance(0.25)
    await writer.hold()
    assert len(leased.renewed) == 2
    assert not writer.broken


ERRORS: list[tuple[Exception, type[Exception], str]] = [
    (down(), StoreUnavailable, "the disk failed"),
    (OSError("no route"), LeaseLost, "the lease was not renewed: no route"),
]


@pytest.mark.parametrize(("error", "kind", "message"), ERRORS)
async def test_a_store_that_cannot_be_reached_is_asked_again_while_the_lease_lasts(
    leased: Leased, error: Exception, kind: type[Exception], message: str
) -> None:
    writer = await writer_of(leased)
    leased.fails = error
    await leased.virtual.advance(0.8 * TTL)
    await writer._renew()
    assert not writer.broken
    await leased.virtual.advance(0.25)
    with pytest.raises(kind, match=message) as caught:
        await writer.hold()
    # The first reason stays, and a writer that is broken asks no more.
    leased.fails = LeaseLost("another owner")
    await writer._renew()
    asked = len(leased.renewed)
    with pytest.raises(kind) as again:
        await writer.hold()
    assert again.value is caught.value
    assert len(leased.renewed) == asked


async def test_a_lease_that_another_owner_has_is_lost_at_once(leased: Leased) -> None:
    writer = await writer_of(leased)
    leased.fails = LeaseLost("another owner")
    await writer._renew()
    with pytest.raises(LeaseLost, match="another owner"):
        writer.check()


async def test_what_is_no_failure_of_the_store_goes_on_through_a_renewal(leased: Leased) -> None:
    writer = await writer_of(leased)
    leased.fails = Died("here")
    await leased.virtual.advance(TTL)
    with pytest.raises(Died):
        await writer.hold()
    assert not writer.broken


async def test_a_heartbeat_looks_ten_times_and_renews_until_the_lease_is_lost(leased: Leased) -> None:
    writer = await writer_of(leased)
    looks: list[int] = []
    thorough: list[bool] = []

    async def hear(is_thorough: bool) -> None:
        looks.append(len(leased.renewed))
        thorough.append(is_thorough)
        if len(looks) == 25:
            leased.fails = LeaseLost("another owner")

    writer.hurry()
    with anyio.fail_after(10):
        await writer.beat(hear)
    # What hurries it is not taken back here, so it waits for nothing; it ends once the lease is lost.
    assert looks == [0] * 10 + [1] * 10 + [2] * 10
    assert thorough == ([True] + [False] * 9) * 3
    assert (len(leased.renewed), writer.broken) == (3, True)
    with anyio.fail_after(10):
        await writer.beat(hear)
    assert len(looks) == 30


def test_a_heartbeat_looks_each_second_and_renews_in_a_third_of_the_lease() -> None:
    import trio
    from trio.testing import MockClock

    looks: list[float] = []
    backend = InMemoryBackend()

    async def main() -> None:
        writer = await writer_of(backend)
        with anyio.move_on_after(TTL):
            await writer.beat(partial(look, writer))

    async def look(writer: RunWriter, _: bool) -> None:
        looks.append(trio.current_time())
        if len(looks) == 5:
            # It is not waited for when it hurries.
            writer.hurry()
        elif writer.hurried.is_set():
            writer.hurried = anyio.Event()

    clock = MockClock(autojump_threshold=0)
    anyio.run(main, backend="trio", backend_options={"clock": clock})
    begun = looks[0] - 1
    assert [round(each - begun, 3) for each in looks[:8]] == [1, 2, 3, 4, 5, 5, 6, 7]


async def test_a_run_is_given_back_by_a_caller_that_is_cancelled(leased: Leased) -> None:
    writer = await writer_of(leased)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await writer.release()
    again = await leased.acquire("r", ttl=TTL)
    assert again.fence > writer.fence


def test_the_summary_of_a_child_names_the_run_that_waits_for_it() -> None:
    for summary, parent in ((b'{"parent": "p"}', "p"), (b'{"parent": 1}', None), (b"{}", None), (b"", None)):
        assert parent_in(summary) == parent
        assert [signal.run_id for signal in ended_signals("c", parent)] == ([] if parent is None else [parent])
