"""The contract of services: sound ones pass it, and faults that it has to find."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import anyio
import anyio.lowlevel
import pytest

from noetic_py.testing import ServiceContract


class Tides:
    """A cache, which one use at a time fills."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self.known: dict[int, int] = {}

    async def height(self, hour: int) -> int:
        await anyio.lowlevel.checkpoint()
        with self._free:
            return self.known.setdefault(hour, abs(hour % 12 - 6))


class HasHeight(Protocol):
    async def height(self, hour: int) -> int: ...


class OnAsyncio(Tides):
    async def height(self, hour: int) -> int:
        await asyncio.sleep(0)
        return await super().height(hour)


class TestTides(ServiceContract[Tides]):
    kind: ClassVar[Callable[..., object]] = Tides

    def make(self) -> Tides:
        return Tides()

    async def use(self, service: Tides, number: int) -> int:
        return await service.height(number)


class TestTidesAsAProtocol(TestTides):
    kind = HasHeight


class TestOnAsyncio(TestTides):
    loops = ("asyncio",)

    def make(self) -> Tides:
        return OnAsyncio()


OPEN: list[Callable[[], object]] = []
"""Closes what faulty services have opened."""


class Thread(Tides):
    """Starts a thread when it is made."""

    def __init__(self) -> None:
        super().__init__()
        stop = threading.Event()
        OPEN.append(stop.set)
        threading.Thread(target=stop.wait).start()


class Connection(Tides):
    """Opens a socket when it is made."""

    def __init__(self) -> None:
        super().__init__()
        OPEN.extend(end.close for end in socket.socketpair())


class Misnamed:
    async def hight(self, hour: int) -> int:
        return 0


class Mixing(Tides):
    """Keeps the hour of one use where another one puts its own."""

    hour = 0

    async def height(self, hour: int) -> int:
        self.hour = hour
        await anyio.lowlevel.checkpoint()
        return self.hour


class OneLoop(Tides):
    """Belongs to the event loop that has used it first."""

    token: Any = None

    async def height(self, hour: int) -> int:
        self.token = self.token or anyio.lowlevel.current_token()
        if self.token != anyio.lowlevel.current_token():
            raise RuntimeError("attached to a different loop")
        return await super().height(hour)


class Leaving(Tides):
    """Leaves a task behind each use."""

    async def height(self, hour: int) -> int:
        self.tasks = [*getattr(self, "tasks", []), asyncio.ensure_future(asyncio.sleep(60))]
        return await super().height(hour)


class Taken(Tides):
    """Gives its only connection back unless it is cancelled."""

    free: anyio.Semaphore | None = None

    async def height(self, hour: int) -> int:
        if self.free is None:
            self.free = anyio.Semaphore(1)
        await self.free.acquire()
        found = await super().height(hour)
        self.free.release()
        return found


class Deaf(Tides):
    """Takes a cancellation for a failure, and gives what it has."""

    async def height(self, hour: int) -> int:
        try:
            return await super().height(hour)
        except BaseException:  # noqa: BLE001 # the fault
            return 0


class HalfDone(Tides):
    """Marks its table as there before it is."""

    ready = False

    async def height(self, hour: int) -> int:
        if not self.ready:
            self.ready = True
            await anyio.lowlevel.checkpoint()
            self.known = {each: abs(each % 12 - 6) for each in range(8)}
        return self.known.get(hour, 0)


FAULTS: list[tuple[Callable[[], Any], str, str]] = [
    (Thread, "making_it_opens_nothing", ""),
    (Connection, "making_it_opens_nothing", ""),
    (Misnamed, "it_is_what_it_is_registered_as", "height"),
    (Mixing, "many_runs_use_it_at_once", ""),
    (OneLoop, "one_event_loop_after_another_uses_it", "different loop"),
    (Leaving, "a_use_leaves_no_task", ""),
    (Taken, "a_cancelled_use_ends_and_leaves_it_usable", ""),
    (HalfDone, "a_cancelled_use_ends_and_leaves_it_usable", ""),
    (Deaf, "a_cancelled_use_ends_and_leaves_it_usable", "went on after it was cancelled"),
]


@pytest.mark.parametrize(("faulty", "case", "why"), FAULTS)
def test_a_fault_is_found(faulty: Callable[[], Any], case: str, why: str) -> None:
    class Case(ServiceContract[Any]):
        kind = HasHeight
        loops = ("asyncio",)
        patience = 0.3

        def make(self) -> Any:
            return faulty()

        async def use(self, service: Any, number: int) -> Any:
            return await service.height(number)

    failures: Any = (AssertionError, TimeoutError, RuntimeError, ExceptionGroup, pytest.fail.Exception)
    with pytest.raises(failures) as caught:
        called(getattr(Case(), f"test_{case}"))
    while OPEN:
        OPEN.pop()()
    assert why in repr(caught.value)


def called(case: Callable[[], Any]) -> None:
    found = case()
    if found is not None:
        anyio.run(lambda: found, backend="asyncio")
