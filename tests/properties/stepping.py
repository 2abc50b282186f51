"""Every scheduling point of a run, on both event loops: something is done when the k-th is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sniffio
import trio

T = TypeVar("T")


class Points:
    """Counts scheduling points, and calls `act` at the one that `at` names.

    A point is where a task of the run gives way to the event loop: the task that runs it, and those it starts.
    """

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.at = at
        self.act = act
        self.count = 0

    @property
    def reached(self) -> bool:
        """Whether the point was reached."""
        return self.at <= self.count

    def point(self) -> None:
        """A task has given way."""
        self.count += 1
        if self.count == self.at:
            self.act()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work, counting."""
        if sniffio.current_async_library() == "trio":
            with self._instrument():
                return await work()
        with self._task_factory():
            found: T = await _Stepped(work(), self)
            return found

    @contextmanager
    def _instrument(self) -> Generator[None]:
        instrument = _Instrument(self)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(instrument)

    @contextmanager
    def _task_factory(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
            return asyncio.Task(_stepped(coro, self), loop=loop, **options)

        loop.set_task_factory(factory)
        try:
            yield
        finally:
            loop.set_task_factory(before)


class _Instrument(trio.abc.Instrument):
    def __init__(self, points: Points) -> None:
        self.points = points
        host = trio.lowlevel.current_task()
        # The tasks of the test runner, besides this one, are no part of the run.
        self.others = set(_all_tasks()) - {host}

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task not in self.others:
            self.points.point()


def _all_tasks() -> Iterator[trio.lowlevel.Task]:
    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        if task is not None:
            yield task
            for nursery in task.child_nurseries:
                waiting += nursery.child_tasks


class _Stepped:
    """Drives a coroutine, and counts whenever it gives way."""

    def __init__(self, inner: Coroutine[Any, Any, Any], points: Points) -> None:
        self.inner = inner
        self.points = points

    def __await__(self) -> Generator[Any, Any, Any]:
        send: Callable[[], Any] = lambda: self.inner.send(None)  # noqa: E731 # the other one is in the loop
        while True:
            try:
                yielded = send()
            except StopIteration as end:
                return end.value
            self.points.point()
            try:
                got = yield yielded
            except BaseException as error:  # noqa: BLE001 # it is handed on to the coroutine
                send = _thrower(self.inner, error)
            else:
                send = _sender(self.inner, got)


def _sender(inner: Coroutine[Any, Any, Any], value: object) -> Callable[[], Any]:
    return lambda: inner.send(value)


def _thrower(inner: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)


async def _stepped(inner: Any, points: Points) -> Any:
    wrapped: Awaitable[Any] = _Stepped(inner, points)
    return await wrapped
