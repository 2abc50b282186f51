"""Threads with a connection each, and how coroutines of any event loop wait for them.

For backends whose driver is synchronous, or asynchronous on one event loop only. Its synchronous half runs in threads
of this pool, which tell an event loop that work is done through the loop's native token. Measured with PostgreSQL, one
insertion at a time on the loopback without fsync: 0.17 ms this way on asyncio and 0.25 ms on trio, 0.17 ms with the
driver's own asynchronous connection, 0.39 ms with `anyio.to_thread`, and 0.48 ms with that and a pool of the driver,
which therefore is not used: a thread that keeps its connection is a pool already.

Appends that wait at the same moment are given to one connection together.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from noetic_py.errors import StoreUnavailable

__all__ = ["LOST", "Doer", "Pool", "connected"]

T = TypeVar("T")
L = TypeVar("L")
L_co = TypeVar("L_co", covariant=True)

LOST = frozenset({"unreachable", "starting", "connections", "timeout", "lost"})
"""Reasons of `StoreUnavailable` that may be gone in a moment."""

_MOST_TOGETHER = 64
_MOST_BYTES = 4 * 1024 * 1024
_LEAVING = 5.0
# What these reasons say holds for every piece of a group as it holds for the group.
_FOR_ALL = LOST | {"unknown"}
_FIRST_WAIT = 0.02
_LONGEST_WAIT = 1.0


class Doer(Protocol[L_co]):
    """Does work on one connection, which it makes when it is needed, and again when it was lost. One thread has it."""

    def do(self, work: Callable[[L_co], T], end: float) -> T:
        """Do a piece of work once.

        Args:
            work: What is to be done.
            end: Until when, by the monotonic clock.
        """
        ...

    def leave(self, work: Callable[[L_co], object] | None, seconds: float) -> None:
        """Do a last piece of work if that is possible, and end the connection; raises nothing of the server's.

        Args:
            work: Done only where there is a connection, or was one.
            seconds: How long all of it may take.
        """
        ...


def connected(
    connect: Callable[[float], L], end: float, *, passing: Callable[[str], bool], late: Callable[[], StoreUnavailable]
) -> L:
    """Connect, and again after a while when that may help; the time between grows from 0.02 s to 1 s.

    Args:
        connect: Makes a connection within so many seconds.
        end: Until when, by the monotonic clock.
        passing: Whether a reason may be gone in a moment.
        late: The error when there was no time to try.

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
            if not passing(error.reason) or end - time.monotonic() <= wait:
                raise
            time.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)


class _Job(Generic[T]):
    """A piece of work, and the coroutine that waits for it."""

    __slots__ = ("bytes", "done", "end", "error", "given", "loop", "note", "value", "work")

    def __init__(
        self,
        work: Callable[[Any], T],
        *,
        given: Sequence[Any] | None = None,
        size: int = 0,
        note: Callable[[T], None] | None = None,
    ) -> None:
        self.work = work
        self.note = note
        self.given = given
        self.bytes = size
        self.loop: Any = current_token().native_token
        self.done = anyio.Event()
        self.end = 0.0
        self.value: Any = None
        self.error: Exception | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class Pool(Generic[L]):
    """Does work on connections that are made when they are first needed, and again when they were lost.

    Args:
        size: How many connections there may be.
        name: What the threads are called.
        where: The server, for messages.
        timeout: How many seconds a piece of work may take.
        doer: Makes what does the work of one thread.
        together: Does what several jobs were given, with an outcome for each.
        leave: Gives back what is owned; done last.
        ended: Called when all threads have ended.
    """

    def __init__(
        self,
        size: int,
        *,
        name: str,
        where: str,
        timeout: float,
        doer: Callable[[], Doer[L]],
        together: Callable[[L, Sequence[Any]], Sequence[Any]],
        leave: Callable[[L], object],
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._size = size
        self._name = name
        self._where = where
        self._timeout = timeout
        self._doer = doer
        self._together = together
        self._leave = leave
        self._ended = ended
        self._queue: deque[_Job[Any]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._working = 0
        self._busy = 0
        self._closed = False
        self._left: list[_Job[Any]] = []
        self._process = os.getpid()

    async def run(
        self,
        work: Callable[[L], T],
        *,
        write: bool,
        note: Callable[[T], None] | None = None,
        regret: Callable[[T], None] | None = None,
    ) -> T:
        """Do one piece of work.

        A write that was handed over cannot be cancelled any more, and is waited for.

        Args:
            work: What is to be done.
            write: Whether it writes.
            note: Gets what was returned, in the thread.
            regret: Gets what was returned when the caller was cancelled and never will.

        Raises:
            NoeticError: What the work raised, or what happened to the server.
        """
        await checkpoint_if_cancelled()
        job = self._put(_Job(work, note=note))
        try:
            await _wait(job, shield=write)
        except anyio.get_cancelled_exc_class():
            if regret is not None and job.done.is_set() and job.error is None:
                regret(job.value)
            raise
        return job.outcome()

    async def run_together(self, given: Sequence[Any], size: int) -> Sequence[Any]:
        """Do what may be done in one transaction with that of others.

        Args:
            given: What is to be done, in order.
            size: How many bytes it has.

        Returns:
            An outcome for each.
        """
        await checkpoint_if_cancelled()
        job = self._put(_Job[Sequence[Any]](lambda link: self._together(link, given), given=given, size=size))
        await _wait(job, shield=True)
        return job.outcome()

    def send(self, work: Callable[[L], object]) -> None:
        """Have a piece of work done that nobody waits for."""
        self._put(_Job(work))

    def check_open(self) -> None:
        """Refuse work when the pool was closed.

        Raises:
            StoreUnavailable: It was, reason `"closed"`; or the process is another one, reason `"forked"`.
        """
        where = self._where
        if os.getpid() != self._process:
            raise StoreUnavailable(
                f"{where}: the backend belongs to the process that this one was forked from",
                where=where,
                reason="forked",
                hint="make a backend in the new process",
            )
        if self._closed:
            raise StoreUnavailable(
                f"{where}: the backend was closed", where=where, reason="closed", hint="make a new one"
            )

    def _put(self, job: _Job[T]) -> _Job[T]:
        # Before the lock as well: a forked child's may be held by a thread that it does not have.
        self.check_open()
        with self._changed:
            self.check_open()
            job.end = time.monotonic() + self._timeout
            self._queue.append(job)
            if self._threads - self._busy < len(self._queue) and self._threads < self._size:
                self._threads += 1
                self._working += 1
                # A daemon: a program that forgot to close the backend ends all the same, as if it had been killed.
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            else:
                self._changed.notify()
        return job

    async def close(self) -> None:
        """Finish what was handed over, give back what is owned and end the threads."""
        if os.getpid() != self._process:
            return
        job = _Job[None](lambda link: None)
        with self._changed:
            self._closed = True
            if not self._threads:
                self._over()
                return
            self._left.append(job)
            self._changed.notify_all()
        await _wait(job, shield=True)

    def abandon(self) -> None:
        """End the threads without waiting, when nobody has the backend any more."""
        if os.getpid() == self._process:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _over(self) -> None:
        if self._ended is not None:
            self._ended()

    # What follows runs in the threads. A connection is only in variables of theirs: a forked child has no such threads,
    # and so nothing that would close the parent's connections.

    def _serve(self) -> None:
        doer = self._doer()
        while jobs := self._take():
            self._do(doer, jobs)
            # First free, then heard: who waits for one thing after another shall not get a connection for each.
            with self._changed:
                self._busy -= 1
            _deliver(jobs)
        with self._changed:
            self._working -= 1
            last = not self._working
        doer.leave(self._leave if last else None, _LEAVING)
        with self._changed:
            self._threads -= 1
            if not self._threads:
                self._over()
                _deliver(self._left)

    def _take(self) -> list[_Job[Any]]:
        """The next job, with the appends that wait behind it if it is one; nothing when the pool is closed."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return []
                self._changed.wait()
            self._busy += 1
            jobs = [self._queue.popleft()]
            if jobs[0].given is None:
                return jobs
            count, size = len(jobs[0].given), jobs[0].bytes
            while self._queue and (following := self._queue[0]).given is not None:
                count, size = count + len(following.given), size + following.bytes
                if count > _MOST_TOGETHER or size > _MOST_BYTES:
                    break
                jobs.append(self._queue.popleft())
            return jobs

    def _do(self, doer: Doer[L], jobs: Sequence[_Job[Any]]) -> None:
        if len(jobs) > 1 and self._do_together(doer, jobs):
            return
        for job in jobs:
            try:
                job.value = doer.do(job.work, job.end)
                if job.note is not None:
                    job.note(job.value)
            except Exception as error:  # noqa: BLE001  # it belongs to the one who waits, and the thread goes on
                job.error = error

    def _do_together(self, doer: Doer[L], jobs: Sequence[_Job[Any]]) -> bool:
        """Do jobs in one transaction; returns whether that is their outcome, or each has to be done alone."""
        given = [each for job in jobs for each in job.given or ()]
        try:
            outcomes = iter(doer.do(lambda link: self._together(link, given), jobs[0].end))
        except Exception as error:  # noqa: BLE001  # it belongs to those who wait
            if not isinstance(error, StoreUnavailable) or error.reason not in _FOR_ALL:
                return False
            for job in jobs:
                job.error = StoreUnavailable(error.message, where=error.where, reason=error.reason, hint=error.hint)
            return True
        for job in jobs:
            job.value = [next(outcomes) for _ in job.given or ()]
        return True


async def _wait(job: _Job[Any], *, shield: bool) -> None:
    """Wait until work is done; when it writes, through any cancellation, which is delivered afterwards."""
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=shield):
        while not job.done.is_set():
            try:
                await job.done.wait()
            except anyio.get_cancelled_exc_class() as error:
                # A task of asyncio can be cancelled past every scope of anyio.
                if not shield:
                    raise
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _deliver(jobs: Iterable[_Job[Any]]) -> None:
    """Tell every event loop once which of its coroutines may go on."""
    loops: dict[Any, list[_Job[Any]]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, its in loops.items():
        call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        try:
            call(_wake, its)
        except RuntimeError:
            # The loop is closed, and with it everybody who waited.
            continue


def _wake(jobs: Iterable[_Job[Any]]) -> None:
    for job in jobs:
        job.done.set()
