"""Threads with a connection each, and how coroutines of any event loop wait for them.

The driver's own asynchronous half needs asyncio, and so would leave trio out. Its synchronous half runs in threads of
this pool, which tell an event loop that work is done through the loop's native token. Measured, one insertion at a time
on the loopback without fsync: 0.17 ms this way on asyncio and 0.25 ms on trio, 0.17 ms with the driver's own
asynchronous connection, 0.39 ms with `anyio.to_thread`, and 0.48 ms with that and psycopg_pool, which therefore is not
used: a thread that keeps its connection is a pool already.

Appends that wait at the same moment are done in one transaction of the server, and share its fsync.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from noetic_postgres.doing import Doer, Keeper
from noetic_postgres.failures import LOST
from noetic_postgres.link import Link
from noetic_py.errors import StoreUnavailable

__all__ = ["Pool"]

T = TypeVar("T")

Together = Callable[[Link, Sequence[Any]], Sequence[Any]]

_MOST_TOGETHER = 64
_MOST_BYTES = 4 * 1024 * 1024
_LEAVING = 5.0
# What these reasons say holds for every piece of a group as it holds for the group.
_FOR_ALL = LOST | {"unknown"}


class _Job(Generic[T]):
    """A piece of work, and the coroutine that waits for it."""

    __slots__ = ("bytes", "done", "end", "error", "given", "loop", "note", "value", "work")

    def __init__(
        self,
        work: Callable[[Link], T],
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


class Pool:
    """Does work on connections that are made when they are first needed, and again when they were lost.

    Args:
        size: How many connections there may be.
        keeper: What they lead to.
        together: Does what several jobs were given, in one transaction, with an outcome for each.
        leave: Gives back what is owned; done last.
    """

    def __init__(self, size: int, keeper: Keeper, together: Together, leave: Callable[[Link], object]) -> None:
        self._size = size
        self._keeper = keeper
        self._together = together
        self._leave = leave
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
        work: Callable[[Link], T],
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

    def send(self, work: Callable[[Link], object]) -> None:
        """Have a piece of work done that nobody waits for."""
        self._put(_Job(work))

    def check_open(self) -> None:
        """Refuse work when the pool was closed.

        Raises:
            StoreUnavailable: It was, reason `"closed"`; or the process is another one, reason `"forked"`.
        """
        where = self._keeper.where
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
            job.end = time.monotonic() + self._keeper.timeout
            self._queue.append(job)
            if self._threads - self._busy < len(self._queue) and self._threads < self._size:
                self._threads += 1
                self._working += 1
                # A daemon: a program that forgot to close the backend ends all the same, as if it had been killed.
                threading.Thread(target=self._serve, name="noetic-postgres", daemon=True).start()
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
                self._keeper.watch.close()
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

    # What follows runs in the threads. A connection is only in variables of theirs: a forked child has no such threads,
    # and so nothing that would close the parent's connections.

    def _serve(self) -> None:
        doer = Doer(self._keeper)
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
                self._keeper.watch.close()
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

    def _do(self, doer: Doer, jobs: Sequence[_Job[Any]]) -> None:
        if len(jobs) > 1 and self._do_together(doer, jobs):
            return
        for job in jobs:
            try:
                job.value = doer.do(job.work, job.end)
                if job.note is not None:
                    job.note(job.value)
            except Exception as error:  # noqa: BLE001  # it belongs to the one who waits, and the thread goes on
                job.error = error

    def _do_together(self, doer: Doer, jobs: Sequence[_Job[Any]]) -> bool:
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
