"""User code that is driven by hand: cancelled at each point where it waits, or slowed down there."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

__all__ = ["CancelledAt", "at_every_wait", "slowed"]

T = TypeVar("T")

_MOST_WAITS = 50
"""How many waits of one call are tried, so that a call which polls ends the case."""


@coroutine
def _driven(
    awaitable: Awaitable[T],
    waits: Callable[[], Awaitable[object] | None],
    raised: Callable[[BaseException], None] = lambda error: None,
) -> Generator[Any, Any, T]:
    """Await something.

    Args:
        awaitable: What is awaited.
        waits: Called each time it waits; what it returns is awaited after the wait.
        raised: Called with what a wait raises in it.
    """
    inner = awaitable.__await__()
    try:
        wanted = next(inner)
        while True:
            more = waits()
            try:
                answer = yield wanted
                if more is not None:
                    yield from more.__await__()
            except BaseException as error:  # noqa: BLE001 # every one belongs to the code that waits
                raised(error)
                wanted = inner.throw(error)
            else:
                # Trio sends an outcome that raises in the code; asyncio throws.
                outcome = getattr(answer, "error", None)
                if isinstance(outcome, BaseException):
                    raised(outcome)
                wanted = next(inner) if answer is None else inner.send(answer)
    except StopIteration as stop:
        found: T = stop.value
        return found


async def slowed(awaitable: Awaitable[T], dice: random.Random) -> T:
    """Await something that waits longer each time, so that several of its kind overlap."""

    async def longer(times: int) -> None:
        for _ in range(times):
            await anyio.lowlevel.checkpoint()

    found: T = await _driven(awaitable, lambda: longer(dice.randint(1, 5)))
    return found


class CancelledAt(Generic[T]):
    """Runs a function, and cancels it when it waits for the `at`-th time, from 0.

    Attributes:
        waited: Whether it got so far.
        swallowed: Whether it returned although the cancellation was raised in it.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self.waited: bool = False
        self.swallowed: bool = False

    async def run(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Return what the function returned; `None` when it was cancelled."""
        raised: list[BaseException] = []
        with anyio.CancelScope() as scope:
            left = iter(range(self._at, -1, -1))

            def wait() -> None:
                if next(left, None) == 0:
                    self.waited = True
                    scope.cancel()

            result: T = await _driven(call(), wait, raised.append)
            # A shielded call, or one whose wait was over at that moment, gets no exception.
            self.swallowed = any(isinstance(each, anyio.get_cancelled_exc_class()) for each in raised)
            return result
        return None


async def at_every_wait(call: Callable[[CancelledAt[Any]], Awaitable[object]]) -> None:
    """Call a function with one that cancels at the first wait, at the second, and so on until none is left."""
    for at in range(_MOST_WAITS):
        cancelled: CancelledAt[Any] = CancelledAt(at)
        await call(cancelled)
        if not cancelled.waited:
            return
