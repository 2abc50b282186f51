"""A backend whose store is a server: threads with a connection each, and what such backends have in common.

For drivers that are synchronous, or asynchronous on one event loop only. A server differs by its
connection, the store that is used through it, and a `Reconnector`, which finds out the outcome of a write whose
connection was lost. Commits that wait at the same moment go to one connection together.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from noetic_py.checkpoints.adapter import BlockingStore, ThreadedBackend
from noetic_py.checkpoints.checks import check_descriptors
from noetic_py.checkpoints.threads import AnyJob, Job, WorkerPool
from noetic_py.errors import NoeticError, StoreUnavailable
from noetic_py.journal.stored import Claim, Lease, Transaction
from noetic_py.journal.transforms import Packed, pack

T = TypeVar("T")
L = TypeVar("L")
L_co = TypeVar("L_co", covariant=True)
S = TypeVar("S")

LOST = frozenset({"unreachable", "starting", "connections", "timeout", "lost"})
"""Reasons of `StoreUnavailable` that may be gone in a moment."""

_MOST_TOGETHER = 64
_MOST_BYTES = 4 * 1024 * 1024
_LEAVING = 5.0
# These reasons apply to every piece of a group as they apply to the group.
_FOR_ALL = LOST | {"unknown"}
_FIRST_WAIT = 0.02
_LONGEST_WAIT = 1.0


@frozen(eq=False)
class PackedTransaction:
    """A transaction as a server stores it.

    Attributes:
        what: The transaction.
        packed: Its records.
    """

    what: Transaction
    packed: Packed

    @property
    def size(self) -> int:
        """How many bytes its records have."""
        return len(self.packed.body) + sum(map(len, self.packed.blobs.values()))

    @classmethod
    def of(cls, what: Transaction, threshold: int) -> PackedTransaction:
        """Pack a transaction; payloads longer than `threshold` go apart."""
        return cls(what, pack(what.records, threshold=threshold))


class ServerStore(BlockingStore, Protocol):
    """A store that is used through a connection."""

    def commit_many(self, given: Sequence[Sequence[Transaction]], /) -> Sequence[Sequence[Lease] | NoeticError]:
        """Do commits of different runs, each all or nothing.

        Returns:
            For each its leases, as `commit` of the backend gives them, or why it was not taken.

        Raises:
            NoeticError: None of them was taken. If they are several, each may be tried alone.
        """
        ...

    def clock(self) -> float:
        """The server's clock: seconds since 1970."""
        ...


B = TypeVar("B", bound=ServerStore)


class Reconnector(Protocol[L_co]):
    """Runs work on one connection, which it opens when needed and reopens when lost. Used by one thread."""

    def run(self, work: Callable[[L_co], T], end: float) -> T:
        """Run a piece of work once.

        Args:
            work: The work.
            end: The deadline, by the monotonic clock.
        """
        ...

    def close(self, work: Callable[[L_co], object] | None, seconds: float) -> None:
        """Run a last piece of work if possible, and close the connection; raises no error of the server.

        Args:
            work: Run only if a connection was made before.
            seconds: The time limit for all of it.
        """
        ...


def connected(
    connect: Callable[[float], L], end: float, *, passing: Callable[[str], bool], late: Callable[[], StoreUnavailable]
) -> L:
    """Connect, and retry temporary failures after a wait that grows from 0.02 s to 1 s.

    Args:
        connect: Opens a connection within so many seconds.
        end: The deadline, by the monotonic clock.
        passing: Whether a reason may be temporary.
        late: The error when the deadline has passed.

    Raises:
        StoreUnavailable: There is no connection, and why.
    """
    wait = _FIRST_WAIT
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise late()
        try:
            return connect(left)
        except StoreUnavailable as error:
            check_descriptors(error.where, error)
            if not passing(error.reason) or end - time.monotonic() <= wait:
                raise
            time.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)


class ServerWorker(Generic[L, S]):
    """Does the jobs of one thread on a connection, one after another.

    Args:
        reconnector: Does one piece of work.
        store: What pieces of work are given, made of the connection.
        timeout: How many seconds one may take, counted from when it was handed over.
    """

    def __init__(self, reconnector: Reconnector[L], store: Callable[[L], S], *, timeout: float) -> None:
        self._reconnector = reconnector
        self._store = store
        self._timeout = timeout

    def take(self, queue: deque[AnyJob]) -> list[AnyJob]:
        """Take the next job."""
        return [queue.popleft()]

    def do(self, jobs: Sequence[AnyJob]) -> None:
        """Do jobs."""
        for job in jobs:
            try:
                job.value = self._done(job.work, since=job.handed_over)
            except Exception as error:  # noqa: BLE001  # raised in the waiting task; the thread goes on
                job.error = error

    def _done(self, work: Callable[[S], T], *, since: float) -> T:
        return self._reconnector.run(lambda link: work(self._store(link)), since + self._timeout)

    def close(self, *, last: bool) -> None:
        """End the connection."""
        self._reconnector.close(None, _LEAVING)


class _CommitJob(Job[Sequence[Sequence[Lease] | NoeticError]]):
    """A commit, which may be done in one transaction of the server with others.

    Args:
        given: What is committed.
        size: How many bytes it has.
    """

    __slots__ = ("given", "size")

    def __init__(self, given: Sequence[Transaction], size: int) -> None:
        super().__init__(self._commit, write=True)
        self.given = given
        self.size = size

    def _commit(self, store: ServerStore) -> Sequence[Sequence[Lease] | NoeticError]:
        # Unchanged: what a lost connection has committed after all is given back as the store has prepared it.
        return store.commit_many([self.given])

    @property
    def leases(self) -> Iterator[tuple[Transaction, Lease]]:
        """What was committed, with the leases; nothing if it was not taken."""
        (outcome,) = self.value or ((),)
        return zip(self.given, () if isinstance(outcome, NoeticError) else outcome, strict=False)


class _BackendWorker(ServerWorker[L, B]):
    """Does commits that wait at the same moment together, and gives leases back when it is the last one.

    Args:
        reconnector: Does one piece of work.
        store: The store of a connection.
        timeout: How many seconds a piece of work may take.
        leases: Those that the backend has.
    """

    def __init__(
        self, reconnector: Reconnector[L], store: Callable[[L], B], *, timeout: float, leases: set[Lease]
    ) -> None:
        super().__init__(reconnector, store, timeout=timeout)
        self._leases = leases

    def take(self, queue: deque[AnyJob]) -> list[AnyJob]:
        """Take the next job, with the commits of other runs that wait behind it if it is one."""
        jobs = [first := queue.popleft()]
        if isinstance(first, _CommitJob):
            size, runs = first.size, {each.run_id for each in first.given}
            while queue and isinstance(following := queue[0], _CommitJob):
                size += following.size
                more = {each.run_id for each in following.given}
                if size > _MOST_BYTES or len(runs) + len(more) > _MOST_TOGETHER or not runs.isdisjoint(more):
                    break
                runs |= more
                jobs.append(queue.popleft())
        return jobs

    def do(self, jobs: Sequence[AnyJob]) -> None:
        """Do jobs, in one transaction where there are several."""
        commits = [job for job in jobs if isinstance(job, _CommitJob)]
        if len(commits) < 2 or not self._done_at_once(commits):
            super().do(jobs)
        for commit in commits:
            self._leases.update(lease for each, lease in commit.leases if each.acquire is not None and not each.release)
        for job in jobs:
            match job.value:
                case Lease() as lease:
                    self._leases.add(lease)
                case [Claim(), *_] as claims:
                    self._leases.update(each.lease for each in claims)
                case _:
                    pass

    def _done_at_once(self, jobs: Sequence[_CommitJob]) -> bool:
        """Do jobs in one transaction; returns whether that is their outcome, or each has to be done alone."""
        given = [job.given for job in jobs]
        try:
            outcomes = self._done(lambda store: store.commit_many(given), since=jobs[0].handed_over)
        except Exception as error:  # noqa: BLE001  # raised in the waiting tasks
            if not isinstance(error, StoreUnavailable) or error.reason not in _FOR_ALL:
                return False
            for job in jobs:
                job.error = StoreUnavailable(error.message, where=error.where, reason=error.reason, hint=error.hint)
            return True
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.value = [outcome]
        return True

    def close(self, *, last: bool) -> None:
        """End the connection; give back what the backend has."""
        if not last:
            super().close(last=last)
        else:
            self._reconnector.close(lambda link: self._store(link).release(tuple(self._leases)), _LEAVING)


class ServerBackend(ThreadedBackend[B]):
    """The methods of [`CheckpointBackend`][noetic_py.checkpoints.CheckpointBackend] on a server.

    A class below it says what it is.

    Args:
        store: The store that is used through a connection.
        connections: How many connections there may be.
        name: What the threads are called.
        where: The server, for messages.
        timeout: How many seconds an operation may take.
        reconnector: Makes what does the work of one thread.
        ended: Called when all threads have ended.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.
    """

    def __init__(
        self,
        store: Callable[[L], B],
        *,
        connections: int,
        name: str,
        where: str,
        timeout: float,
        reconnector: Callable[[], Reconnector[L]],
        ended: Callable[[], None] | None = None,
        max_bytes: int,
    ) -> None:
        leases = self._leases = set[Lease]()

        def worker() -> _BackendWorker[L, B]:
            return _BackendWorker(reconnector(), store, timeout=timeout, leases=leases)

        pool = WorkerPool[B](worker, size=connections, name=name, where=where, ended=ended)
        super().__init__(pool, largest=max_bytes)

    @property
    def shared(self) -> bool:
        """`True`: every machine that reaches the server sees it."""
        return True

    async def _begin(self) -> None:
        """Called before every operation; does nothing unless overridden."""

    async def _do(self, work: Callable[[B], T], *, write: bool = False) -> T:
        await self._begin()
        return await super()._do(work, write=write)

    async def _append(self, given: Transaction, size: int, now: datetime) -> int:
        (lease,) = await self._commit([given], size, now)
        return given.expected_position if lease.position is None else lease.position

    async def _commit(self, given: Sequence[Transaction], size: int, now: datetime) -> Sequence[Lease]:
        await self._begin()
        job = _CommitJob(given, size)

        def undo(outcomes: object, store: B) -> None:
            store.release([lease for each, lease in job.leases if each.acquire is not None])

        (outcome,) = await self._pool.run(job, undo=undo)
        if isinstance(outcome, NoeticError):
            raise outcome
        self._leases.difference_update(lease for each, lease in job.leases if each.release)
        return outcome

    async def _acquire(self, work: Callable[[B], Lease]) -> Lease:
        await self._begin()
        return await super()._acquire(work)

    async def _claim(self, work: Callable[[B], Sequence[Claim]]) -> Sequence[Claim]:
        await self._begin()
        return await super()._claim(work)

    async def clock(self) -> float:
        """The server's clock, which queues go by: seconds since 1970."""
        return await self._do(lambda store: store.clock())

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is not an error."""
        self._leases.discard(lease)
        await super().release(lease)
