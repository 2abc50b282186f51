"""What a child process does with a run that spends money, at a provider whose books outlive every process."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from noetic_py import Budget, Harness
from noetic_py.errors import CheckpointError, ModelUnavailable
from noetic_py.models import ModelProfile, ModelRequest, ModelStream, Price
from noetic_py.testing import ScriptedModel
from tests.crash.conversing import Book, Opened
from tests.crash.jobs import RUN, Death, DyingBackend, prepare
from tests.crash.server import Say
from tests.properties.test_budget_exact import random_flow


class Till:
    """A model that takes a dollar for each answer, also for one that nobody waits for any more.

    Args:
        book: Where it writes down what it has taken.
        dice: Says when it is not there, which costs nothing.
        dies_at: At which line of this process the process is killed; 0 is never.
    """

    name: str = "metered:till"
    profile: ModelProfile = ModelProfile(price=Price(per_call=Decimal(1)))

    def __init__(self, book: Book, dice: random.Random, dies_at: int) -> None:
        self._book = book
        self._dice = dice
        self._left = dies_at

    def _write(self, line: str) -> None:
        self._book.write(line)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @asynccontextmanager
    async def _respond(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        self._write("asked")
        try:
            for _ in range(self._dice.randrange(4)):
                await checkpoint()
            if self._dice.random() < 0.2:
                raise ModelUnavailable("down", model=self.name)
        except ModelUnavailable:
            raise
        except BaseException:
            self._write("paid")
            raise
        self._write("paid")
        async with ScriptedModel("yes", cost=1).respond(request) as stream:
            yield stream

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer, and take the money."""
        return self._respond(request)


async def _pay(given: Any, opened: Opened) -> Any:
    while time.monotonic() < given.get("moment", 0.0):
        pass
    till = Till(Book(given["book"]), random.Random(given["luck"]), given.get("line", 0))
    flow = random_flow(random.Random(given["seed"]), till, 3)
    async with (
        opened(given["store"], Death(given)) as backend,
        Harness(plugins=[], checkpoints=backend) as harness,
    ):
        try:
            head = await backend.head(RUN)
            if head is None or not head.position:
                limit = Budget(cost=given["limit"], model_calls=given["limit"] * 2)
                result = await harness.run(flow, 1, run_id=RUN, budget=limit, on_error="result")
            else:
                result = await harness.resume(RUN, flow, on_error="result")
        except CheckpointError as error:
            return {"refused": type(error).__name__}
        maybe = result.possibly_spent
        return {
            "status": result.status,
            "cost": str(result.cost),
            "maybe": str(maybe.cost or 0),
            "calls": result.model_calls,
        }


def pay(given: Any, say: Say, opened: Opened = DyingBackend) -> Any:
    """Begin a run that spends money, or go on with it."""
    prepare(given)
    return anyio.run(_pay, given, opened, backend=given.get("loop", "asyncio"))
