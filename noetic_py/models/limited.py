"""`LimitedModel`: lets so many requests through at once, and so many in a minute."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from attrs import define, field

from noetic_py.core.runtime import Runtime
from noetic_py.errors import ConfigError, ModelBusy
from noetic_py.models.model import Model, ModelRequest, ModelStream, current_runtime
from noetic_py.models.wrapper import ModelWrapper, checked_count

_CODE = "limited-model"
_MINUTE = 60.0
_ROUNDING = 1e-6


class LimitedModel(ModelWrapper):
    """Lets only so many requests be with its model at once, and only so many begin within a minute; the others wait.

    Who came first goes first. A request has its place from the moment it goes through until its stream is closed, and
    it waits before anything is reserved for it in a budget. All that use one `LimitedModel` share its places: the paths
    of a run, and all runs of one event loop.

    It counts the requests that come to it. Put it inside of a `RetryModel`, and every try waits for its turn; put it
    around one, and a request keeps its place over all its tries.

    Args:
        model: The model to ask, or its name.
        concurrency: Requests at once; `None` for any number.
        requests_per_minute: Requests that may begin within any 60 seconds; `None` for any number.
        max_waiting: Requests that may wait; one more is refused. `None` lets any number wait.

    Raises:
        ConfigError: A number is out of range, or neither limit is given; code `"limited-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        concurrency: int | None = None,
        requests_per_minute: int | None = None,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__(model)
        if concurrency is None and requests_per_minute is None:
            raise ConfigError("nothing is limited", code=_CODE, hint="LimitedModel(model, concurrency=4)")
        for name, value, least in (
            ("concurrency", concurrency, 1),
            ("requests_per_minute", requests_per_minute, 1),
            ("max_waiting", max_waiting, 0),
        ):
            if value is not None:
                checked_count(value, name, code=_CODE, least=least)
        self.concurrency: int | None = concurrency
        self.requests_per_minute: int | None = requests_per_minute
        self.max_waiting: int | None = max_waiting
        self._gate = _Gate(concurrency, requests_per_minute)

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._gate.line)

    @property
    def running(self) -> int:
        """Requests that have a place now."""
        return self._gate.running

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Wait for a place, and ask.

        Raises:
            ModelBusy: On entering: too many wait already.
            ModelError: The model behind failed.
            BudgetExceeded: In a run: the budget does not allow the call.
        """
        gate, runtime = self._gate, current_runtime()
        if not gate.try_enter(runtime):
            if self.max_waiting is not None and len(gate.line) >= self.max_waiting:
                raise ModelBusy(len(gate.line), model=self.name)
            await gate.wait(runtime)
        try:
            async with self.ask(self.model, request) as stream:
                yield stream
        finally:
            gate.leave()


@define(eq=False)
class _WaitingCall:
    """A place in the line; `called` when the waiter should look again."""

    called: anyio.Event = field(factory=anyio.Event)


@define(eq=False)
class _Gate:
    """Who goes through, and who waits.

    A waiter is not let in by another one: the first of the line is called, looks for itself and goes in without waiting
    in between, so a request that is cancelled at any time has taken nothing that it would have to hand on.
    """

    concurrency: int | None
    per_minute: int | None
    running: int = 0
    line: deque[_WaitingCall] = field(factory=deque[_WaitingCall])
    # When the latest requests began: as many as a minute allows, the oldest first, and by whose clock.
    _begun: deque[float] = field(init=False)
    _clock: Runtime | None = None

    def __attrs_post_init__(self) -> None:
        self._begun = deque(maxlen=self.per_minute or 0)

    def try_enter(self, runtime: Runtime) -> bool:
        """Go through, when the line is empty and there is room."""
        if self.line or self._is_full or self._pause(runtime):
            return False
        self._take(runtime)
        return True

    async def wait(self, runtime: Runtime) -> None:
        """Stand in line, and go through when it is one's turn."""
        place = _WaitingCall()
        self.line.append(place)
        try:
            while True:
                if self.line[0] is not place or self._is_full:
                    await place.called.wait()
                    place.called = anyio.Event()
                elif pause := self._pause(runtime):
                    await runtime.sleep(pause)
                else:
                    break
            self._take(runtime)
        finally:
            self.line.remove(place)
            self._call_first()

    def leave(self) -> None:
        """Give the place back."""
        self.running -= 1
        self._call_first()

    @property
    def _is_full(self) -> bool:
        return self.concurrency is not None and self.running >= self.concurrency

    def _take(self, runtime: Runtime) -> None:
        self.running += 1
        self._begun.append(runtime.monotonic())

    def _call_first(self) -> None:
        if self.line:
            self.line[0].called.set()

    def _pause(self, runtime: Runtime) -> float:
        """Seconds until another request may begin."""
        if self.per_minute is None:
            return 0.0
        if runtime is not self._clock:
            # Times of two clocks have nothing to do with each other.
            self._clock = runtime
            self._begun.clear()
        if len(self._begun) < self.per_minute:
            return 0.0
        left = self._begun[0] + _MINUTE - runtime.monotonic()
        # Less is what adding and subtracting has left.
        return left if left > _ROUNDING else 0.0
