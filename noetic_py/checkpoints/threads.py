"""Threads that do the work of stores, and the coroutines that wait for it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from noetic_py.errors import StoreUnavailable

T = TypeVar("T")
U = TypeVar("U")


class Job(Generic[T]):
    """A piece of work, and the coroutine that waits for it.

    Args:
        work: What is to be done, with what the thread keeps.
        write: Whether it writes.
        durable: Whether what it writes has to survive a loss of power; what writes later and has to keeps it too.

    Attributes:
        handed_over: When it was, by the monotonic clock.
        value: What the work has returned.
        error: What it has raised.
    """

    __slots__ = ("_loop", "_signal", "done", "durable", "error", "handed_over", "value", "work", "write")

    def __init__(self, work: Callable[[Any], T], *, write: bool, durable: bool = True) -> None:
        self.work: Callable[[Any], T] = work
        self.write: bool = write
        self.durable: bool = durable
        self.handed_over: float = time.monotonic()
        self.done: bool = False
        self.value: Any = None
        self.error: Exception | None = None
        self._loop: object = current_token().native_token
        self._signal = self._new_signal()

    def _new_signal(self) -> Any:
        """A future of asyncio's, or of a loop like it, else an event: what there is to wait for at the least cost."""
        return getattr(self._loop, "create_future", anyio.Event)()

    def wait(self) -> Awaitable[object]:
        """The future of the work; a cancelled wait needs a new one."""
        signal = self._signal
        if isinstance(signal, anyio.Event):
            return signal.wait()
        if signal.cancelled():
            signal = self._signal = self._new_signal()
        waiting: Awaitable[object] = signal
        return waiting

    def end(self) -> None:
        """Let the coroutine go on; called in its loop."""
        self.done = True
        signal = self._signal
        if isinstance(signal, anyio.Event):
            signal.set()
        elif not signal.done():
            signal.set_result(None)

    def outcome(self) -> T:
        """The result of the work.

        Raises:
            NoeticError: What it has raised.
        """
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value

    @staticmethod
    def end_all(jobs: Iterable[AnyJob]) -> None:
        """Tell every event loop once which of its coroutines may go on; called in any thread."""
        loops: dict[Any, list[AnyJob]] = {}
        for job in jobs:
            loops.setdefault(job._loop, []).append(job)
        for loop, its in loops.items():
            call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
            # A loop that is closed has no coroutines that wait.
            with suppress(RuntimeError):
                call(_end, its)


AnyJob: TypeAlias = Job[Any]
"""A job, whatever its work returns."""


def _end(jobs: Iterable[AnyJob]) -> None:
    for job in jobs:
        job.end()


class Worker(Protocol):
    """Does the jobs of one thread, with what it opens when it is first needed, and again after that broke."""

    def take(self, queue: deque[AnyJob], /) -> list[AnyJob]:
        """Take the next jobs out of a queue that is not empty: those that are done as one group."""
        ...

    def do(self, jobs: Sequence[AnyJob], /) -> None:
        """Do jobs, and set the value or the error of each; raises nothing."""
        ...

    def close(self, *, last: bool) -> None:
        """Close what it has opened; raises nothing.

        Args:
            last: Whether all other workers of the pool have done their last job.
        """
        ...


class WorkerPool(Generic[U]):
    """Has work done by threads that are started when they are needed.

    Args:
        worker: Makes what does the work of one thread, in the thread. Nothing else has it: a forked child has no such
            thread, and so nothing that would close what the parent has open.
        size: How many threads there may be.
        name: What they are called.
        where: The store, for messages.
        ended: Called in the last thread when all workers are closed.
    """

    def __init__(
        self,
        worker: Callable[[], Worker],
        *,
        size: int = 1,
        name: str,
        where: str,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._worker = worker
        self._size = size
        self._name = name
        self._where = where
        self._ended = ended
        self._lock = threading.Lock()
        self._queue: deque[AnyJob] = deque()
        # One for each job that was put, and one for each thread when it is to end: what threads wait for.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._threads = 0
        self._working = 0
        self._busy = 0
        self._closed = False
        self._closing: list[Job[None]] = []
        self._process = os.getpid()

    # -- coroutines

    async def run(self, job: Job[T], *, undo: Callable[[T, U], object] | None = None) -> T:
        """Have a job done, and wait for it; a write that was handed over is waited for through a cancellation.

        Args:
            job: What is to be done.
            undo: Undoes it when the caller was cancelled, and never learns of it.

        Raises:
            NoeticError: What the work raised, or what the store did.
        """
        await checkpoint_if_cancelled()
        self._put(job)
        try:
            await _wait((job,))
        except anyio.get_cancelled_exc_class():
            if undo is not None and job.done and job.error is None:
                # A pool that was closed meanwhile has given everything back.
                with suppress(StoreUnavailable):
                    self._put(Job(partial(undo, job.value), write=True))
            raise
        return job.outcome()

    async def close(self) -> None:
        """Finish what was handed over, close all workers and end the threads; a second time is not an error."""
        if os.getpid() != self._process:
            return
        job = Job(_nothing, write=True)
        with self._lock:
            self._end_threads()
            if not self._threads:
                return
            self._closing.append(job)
        await _wait([job])

    def abandon(self) -> None:
        """End the threads without waiting, when the backend is not used any more."""
        if os.getpid() == self._process:
            with self._lock:
                self._end_threads()

    def _end_threads(self) -> None:
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def check_open(self) -> None:
        """Refuse work when the pool was closed.

        Raises:
            StoreUnavailable: It was, reason `"closed"`; or the process is another one, reason `"forked"`.
        """
        self._check_process()
        if self._closed:
            raise self._is_closed()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            where = self._where
            raise StoreUnavailable(
                f"{where}: the backend belongs to the process that this one was forked from",
                where=where,
                reason="forked",
                hint="make a backend in the new process",
            )

    def _is_closed(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._where}: the backend was closed", where=self._where, reason="closed", hint="make a new one"
        )

    def _put(self, job: AnyJob) -> None:
        # Before the lock: a forked child's may be held by a thread that it does not have.
        self._check_process()
        with self._lock:
            if self._closed:
                raise self._is_closed()
            self._queue.append(job)
            if self._threads < self._size and self._threads - self._busy < len(self._queue):
                self._threads += 1
                self._working += 1
                # A daemon: a program that forgot to close the backend ends all the same, as if it had been killed.
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            self._calls.put(None)

    # -- threads

    def _serve(self) -> None:
        worker = self._worker()
        while (jobs := self._take(worker)) is not None:
            if not jobs:
                continue
            worker.do(jobs)
            # Freed before it is reported, so that one caller after another reuses the thread.
            with self._lock:
                self._busy -= 1
            Job.end_all(jobs)
        with self._lock:
            self._working -= 1
            last = not self._working
        worker.close(last=last)
        with self._lock:
            self._threads -= 1
            if not self._threads:
                if self._ended is not None:
                    self._ended()
                Job.end_all(self._closing)

    def _take(self, worker: Worker) -> list[AnyJob] | None:
        """The next jobs; none when another thread has taken them, `None` at the end."""
        self._calls.get()
        with self._lock:
            if not self._queue:
                return None if self._closed else []
            self._busy += 1
            jobs = worker.take(self._queue)
            if len(jobs) > 1:
                # A thread that was called for one of them finds nothing, and waits on.
                with suppress(Empty):
                    for _ in jobs[1:]:
                        self._calls.get_nowait()
        return jobs


def _nothing(store: object) -> None:
    """Open the store, and do nothing."""


async def _wait(jobs: Sequence[AnyJob]) -> None:
    """Wait until work is done; when it writes, through any cancellation.

    A call that an anyio scope cancels raises at its next wait, as after any shielded wait.
    """
    for job in jobs:
        try:
            while not job.done:
                await job.wait()
        except anyio.get_cancelled_exc_class():
            if not any(each.write for each in jobs):
                raise
            by_scope = anyio.current_effective_deadline() == -math.inf
            await _wait_shielded(jobs)
            if not by_scope:
                raise
            return


async def _wait_shielded(jobs: Iterable[AnyJob]) -> None:
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        for job in jobs:
            while not job.done:
                try:
                    await job.wait()
                except anyio.get_cancelled_exc_class() as error:
                    # A task of asyncio can be cancelled past every scope of anyio.
                    cancelled = error
    if cancelled is not None:
        raise cancelled
