"""Threads that do the work of stores, and what a backend on a server does with them; without a server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest

from noetic_py.checkpoints import BackendDurability, Lease, Queued, Record, SqliteBackend, Transaction
from noetic_py.checkpoints.memory import MemoryStore
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.checkpoints.threads import Job, WorkerPool
from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import CorruptRecord, NoeticError, StoreUnavailable

pytestmark = pytest.mark.anyio

T = TypeVar("T")
LONG = 30.0


class Hands:
    """Does jobs, all that wait at once, and notes which it did together."""

    def __init__(self, groups: list[int]) -> None:
        self._groups = groups

    def take(self, queue: deque[Job[Any]]) -> list[Job[Any]]:
        jobs = list(queue)
        queue.clear()
        return jobs

    def do(self, jobs: Sequence[Job[Any]]) -> None:
        self._groups.append(len(jobs))
        for job in jobs:
            try:
                job.value = job.work(self)
            except threading.BrokenBarrierError as error:
                job.error = error

    def close(self, *, last: bool) -> None:
        self._groups.append(-1 if last else -2)


class Hand(Hands):
    """Does one job after another."""

    def take(self, queue: deque[Job[Any]]) -> list[Job[Any]]:
        return [queue.popleft()]


def pool_of(worker: Callable[[], Hands], size: int = 1) -> WorkerPool[Hands]:
    return WorkerPool(worker, size=size, name="tested", where="here")


def two(hands: object) -> int:
    return 2


class Gate:
    """Work that goes on when it is let."""

    def __init__(self) -> None:
        self._begun, self._let = threading.Event(), threading.Event()

    def work(self, hands: object) -> int:
        self._begun.set()
        assert self._let.wait(LONG)
        return 1

    async def begun(self) -> None:
        assert await anyio.to_thread.run_sync(self._begun.wait, LONG)

    def let(self) -> None:
        self._let.set()


async def test_what_waits_at_the_same_moment_is_one_group() -> None:
    groups: list[int] = []
    pool, gate, values = pool_of(partial(Hands, groups)), Gate(), list[int]()

    async def run(work: Callable[[object], int]) -> None:
        values.append(await pool.run(Job(work, write=True)))

    async with anyio.create_task_group() as group:
        group.start_soon(run, gate.work)
        await gate.begun()
        for _ in range(3):
            group.start_soon(run, two)
        while len(pool._queue) < 3:
            await anyio.lowlevel.checkpoint()
        gate.let()
    await pool.close()
    assert (sorted(values), groups) == ([1, 2, 2, 2], [1, 3, -1])


async def test_threads_are_started_for_work_that_would_wait() -> None:
    groups: list[int] = []
    pool, meeting = pool_of(partial(Hand, groups), size=3), threading.Barrier(3)
    for _ in range(5):
        await pool.run(Job(lambda hands: None, write=False))
    assert pool._threads == 1
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(pool.run, Job(lambda hands: meeting.wait(LONG), write=True))
    assert pool._threads == 3
    await pool.close()
    await pool.close()
    assert sorted(groups[-3:]) == [-2, -2, -1]


async def test_a_closed_backend_refuses_to_commit_nothing(tmp_path: Path) -> None:
    async with OnServer(Server()) as server, SqliteBackend(tmp_path / "runs.db") as file:
        assert [list(await each.commit([])) for each in (server, file)] == [[], []]
    for backend in (server, file):
        with pytest.raises(StoreUnavailable) as caught:
            await backend.commit([])
        assert caught.value.reason == "closed"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("closing", [False, True])
async def test_what_a_cancelled_task_never_learns_of_is_undone(closing: bool) -> None:
    pool, gate, undone = pool_of(partial(Hands, [])), Gate(), list[int]()
    task = asyncio.create_task(pool.run(Job(gate.work, write=True), undo=lambda value, hands: undone.append(value)))
    await gate.begun()
    task.cancel()
    async with anyio.create_task_group() as group:
        if closing:
            group.start_soon(pool.close)
        while pool._closed != closing:
            await anyio.lowlevel.checkpoint()
        gate.let()
        with pytest.raises(asyncio.CancelledError):
            await task
    await pool.close()
    # One that is closed has given everything back.
    assert undone == ([] if closing else [1])


# -- a backend on a server


class Server(MemoryStore):
    """A server's store: several appends at once, some of which damage or a lost connection meets."""

    def __init__(self) -> None:
        super().__init__(SYSTEM.monotonic)
        self.groups: list[int] = []
        self.fails: NoeticError | None = None
        self.gate: Gate | None = None

    def commit_many(self, given: Sequence[Sequence[Transaction]]) -> Sequence[Sequence[Lease] | NoeticError]:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.work(self)
        self.groups.append(len(given))
        if self.fails is not None and any(what.run_id == "bad" for each in given for what in each):
            raise self.fails
        return [self.commit(each, SYSTEM.now()) for each in given]

    def clock(self) -> float:
        return 5.0


class Reconnector:
    """Has no connection, and loses none."""

    def run(self, work: Callable[[None], T], end: float) -> T:
        return work(None)

    def close(self, work: Callable[[None], object] | None, seconds: float) -> None:
        if work is not None:
            work(None)


class OnServer(ServerBackend[Server]):
    def __init__(self, server: Server) -> None:
        super().__init__(
            lambda link: server,
            connections=1,
            name="tested",
            where="here",
            timeout=LONG,
            reconnector=Reconnector,
            max_bytes=20_000_000,
        )

    @property
    def durability(self) -> BackendDurability:
        return "none"

    async def describe(self) -> dict[str, str]:
        return {}


async def appended(backend: OnServer, run_id: str, outcomes: dict[str, object], size: int = 1) -> None:
    records = [Record("K", (), bytes(size))]
    try:
        outcomes[run_id] = await backend.append(run_id, expected_position=0, fence=0, records=records)
    except NoeticError as error:
        outcomes[run_id] = error


async def at_once(server: Server, backend: OnServer, run_ids: Sequence[str], size: int = 1) -> dict[str, object]:
    """Append to runs that wait while another append is under way."""
    outcomes: dict[str, object] = {}
    gate = server.gate = Gate()
    async with anyio.create_task_group() as group:
        group.start_soon(appended, backend, "first", outcomes)
        await gate.begun()
        for run_id in run_ids:
            group.start_soon(appended, backend, run_id, outcomes, size)
        while len(backend._pool._queue) < len(run_ids):
            await anyio.lowlevel.checkpoint()
        gate.let()
    return outcomes


@pytest.mark.parametrize(("count", "size", "groups"), [(3, 1, [3]), (70, 1, [64, 6]), (3, 3_000_000, [1, 1, 1])])
async def test_appends_that_wait_go_to_a_server_together(count: int, size: int, groups: list[int]) -> None:
    server = Server()
    async with OnServer(server) as backend:
        outcomes = await at_once(server, backend, [f"r{n}" for n in range(count)], size)
    assert server.groups == [1, *groups]
    assert set(outcomes.values()) == {1}


async def test_the_clock_is_the_servers() -> None:
    async with OnServer(Server()) as backend:
        assert await backend.clock() == 5.0


async def test_a_damaged_run_breaks_no_other_one_of_its_group() -> None:
    server = Server()
    server.fails = CorruptRecord("damaged")
    async with OnServer(server) as backend:
        outcomes = await at_once(server, backend, ["a", "bad", "b"])
        assert (outcomes["a"], outcomes["b"], type(outcomes["bad"])) == (1, 1, CorruptRecord)


async def test_a_lost_connection_is_told_to_each_of_a_group() -> None:
    server = Server()
    server.fails = StoreUnavailable("lost", where="here", reason="lost")
    async with OnServer(server) as backend:
        outcomes = await at_once(server, backend, ["a", "bad"])
        errors = [outcomes["a"], outcomes["bad"]]
        assert [each.reason for each in errors if isinstance(each, StoreUnavailable)] == ["lost", "lost"]
        assert errors[0] is not errors[1]
    assert server.groups == [1, 2]


async def test_the_last_thread_gives_the_leases_back() -> None:
    server = Server()
    async with OnServer(server) as backend:
        taken = [await backend.acquire(run_id, ttl=LONG) for run_id in "abc"]
        await backend.release(taken[0])
        for run_id in "de":
            await backend.commit([Transaction(run_id, 0, 0, [Record("K", ())], queued=Queued("q", "f"))])
        claims = await backend.claim(["q"], flows=["f"], ttl=LONG, limit=2)
        assert [each.lease.run_id for each in claims] == ["d", "e"]
        assert [server._is_held(server.runs[run_id]) for run_id in "abcde"] == [False, True, True, True, True]
    assert not any(server._is_held(server.runs[run_id]) for run_id in "abcde")
    assert all(isinstance(each, Lease) for each in taken)
