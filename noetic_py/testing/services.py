"""The conformance suite for services that a plugin registers, to be run with pytest against one of your own.

A service is one object for all runs of a harness, and often for all harnesses of a process. One that passes the suite
opens nothing before it is used, serves many runs at once and one event loop after another, and can be cancelled.

```python
from noetic_py.testing import ServiceContract


class Tides:
    async def height(self, hour: int) -> int:
        return abs(hour % 12 - 6)


class TestTides(ServiceContract[Tides]):
    kind = Tides

    def make(self) -> Tides:
        return Tides()

    async def use(self, service: Tides, number: int) -> int:
        return await service.height(number)
```
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic

import anyio
import pytest
from typing_extensions import get_protocol_members, is_protocol

from noetic_py.context.context import Context
from noetic_py.core.types import T
from noetic_py.harness import Harness
from noetic_py.plugins import ServiceRegistry, hookimpl
from noetic_py.steps.code import step
from noetic_py.testing._conformance.base import equal
from noetic_py.testing._conformance.driving import CancelledAt, at_every_wait, slowed

__all__ = ["ServiceContract"]

_RUNS = range(8)


class ServiceContract(Generic[T]):
    """The contract of a service.

    Attributes:
        kind: The type that it is registered as: its class, one above it, or a protocol.
        loops: The event loops that it works on.
        patience: Seconds that a use may take; more means that something waits for ever.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    kind: ClassVar[Callable[..., object]]
    loops: ClassVar[Sequence[str]] = ("asyncio", "trio")
    patience: ClassVar[float] = 20.0

    def make(self) -> T:
        """Make the service as the plugin does."""
        raise NotImplementedError("make() has to make the service")

    async def use(self, service: T, number: int) -> object:
        """Use the service as a step would; the same number gives an equal answer each time.

        Args:
            service: The service.
            number: Which use it is, from 0 to 7.
        """
        raise NotImplementedError("use(service, number) has to use the service")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each case on the loops of the service."""
        if "anyio_backend" in metafunc.fixturenames:
            metafunc.parametrize("anyio_backend", self.loops, scope="module")

    # -- what it is

    def test_making_it_opens_nothing(self) -> None:
        """No thread, file or connection: plugins are loaded where nothing uses them, and before a server forks."""
        self.make()
        before = _open()
        made = self.make()
        equal(_open(), before)
        del made

    def test_it_is_what_it_is_registered_as(self) -> None:
        """It is of its kind; of a protocol it has every member."""
        kind, made = self.kind, self.make()
        registry = ServiceRegistry()
        registry.service(kind, made)
        if not isinstance(kind, type):
            pytest.fail(f"kind = {kind!r} is not a valid type of a service; expected a class")
        if is_protocol(kind):
            equal([name for name in sorted(get_protocol_members(kind)) if not hasattr(made, name)], [])
        else:
            equal(isinstance(made, kind), True)

    # -- how it is used

    async def test_a_step_finds_and_uses_it(self) -> None:
        """The runs of a harness, and those of the next one, get from it what a program gets."""
        service = self.make()
        expected = await self._use(self.make(), 0)
        for _ in range(2):
            async with self._harness(service) as harness:
                equal((await harness.run(self._step(), 0)).value, expected)

    async def test_many_runs_use_it_at_once(self) -> None:
        """Each gets its own answer."""
        service, found = self.make(), dict[int, object]()
        expected = {number: await self._use(self.make(), number) for number in _RUNS}
        async with self._harness(service) as harness:

            async def one(number: int) -> None:
                dice = random.Random(number)  # noqa: S311 # draws a schedule
                found[number] = (await harness.run(self._step(dice), number)).value

            with anyio.fail_after(self.patience):
                async with anyio.create_task_group() as group:
                    for number in _RUNS:
                        group.start_soon(one, number)
        equal(found, expected)

    def test_one_event_loop_after_another_uses_it(self) -> None:
        """A program may run several, such as one for each of its tests; many uses wait for each other in each."""
        service = self.make()
        for loop in (*self.loops, *self.loops):
            anyio.run(partial(self._many, service), backend=loop)

    async def _many(self, service: T) -> None:
        async with anyio.create_task_group() as group:
            for number in _RUNS:
                group.start_soon(self._use, service, number)

    # -- how a use ends

    async def test_a_use_leaves_no_task(self) -> None:
        """What it begins has ended when it returns, because a run owns no other tasks."""
        service = self.make()
        await self._use(service, 0)
        before = len(anyio.get_running_tasks())
        await self._use(service, 1)
        equal(len(anyio.get_running_tasks()), before)

    async def test_a_cancelled_use_ends_and_leaves_it_usable(self) -> None:
        """Cancelled wherever it waits: nothing stays locked, taken or half done."""
        service = self.make()
        expected = [await self._use(self.make(), number) for number in (1, 2)]

        async def cancelled_use(cancelled: CancelledAt[object]) -> None:
            await cancelled.run(lambda: self.use(service, 0))
            if cancelled.swallowed:
                pytest.fail("it went on after it was cancelled; let the exception of a cancellation through")
            equal([await self._use(service, number) for number in (1, 2)], expected)

        await at_every_wait(cancelled_use)

    # -- helpers

    async def _use(self, service: T, number: int) -> object:
        with anyio.fail_after(self.patience):
            return await self.use(service, number)

    def _harness(self, service: T) -> Harness[Any]:
        kind = self.kind

        class Plugin:
            @hookimpl
            def register_services(self, registry: ServiceRegistry) -> None:
                registry.service(kind, service)

        return Harness(plugins=[Plugin()])

    def _step(self, dice: random.Random | None = None) -> Any:
        contract = self

        @step(id="use", version="1")
        async def use(number: int, ctx: Context[Any]) -> object:
            service: Any = ctx.services[contract.kind]
            used = contract._use(service, number)
            return await (used if dice is None else slowed(used, dice))

        return use


def _open() -> tuple[int, int]:
    """How many threads and open files this process has; Windows does not list its files."""
    files = 0 if sys.platform == "win32" else len(os.listdir("/dev/fd"))  # noqa: PTH208 # numbers, no files
    return threading.active_count(), files
