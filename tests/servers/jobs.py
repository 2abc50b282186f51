"""What child processes do: carry a run that a server keeps, or own one, until they are killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.errors import StoreUnavailable
from noetic_py.journal.stored import Lease, Transaction
from noetic_py.testing import FaultyBackend
from tests.crash import conversing, jobs, paying, working
from tests.crash.server import Say

__all__ = ["ADDRESS", "ServerJobs"]

ADDRESS = "NOETIC_CRASH_ADDRESS"
"""Names the store that a fork server warms up with."""


class Dying(FaultyBackend):
    """Kills its process at an append."""

    def __init__(self, inner: CheckpointBackend, death: jobs.Death) -> None:
        super().__init__(inner)
        self._death = death

    async def append(self, run_id: str, **given: Any) -> int:
        self._death.before()
        position = await super().append(run_id, **given)
        self._death.after()
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self._death.before()
        done = await super().commit(transactions)
        self._death.after()
        return done


class ServerJobs:
    """The jobs of the children, for one kind of backend.

    Args:
        made: Makes a backend of an address.
    """

    def __init__(self, made: Callable[[str], ServerBackend[Any]]) -> None:
        self._made = made

    def carry(self, given: jobs.Given, say: Say) -> Any:
        """Begin the run, or go on with it; says first what the journal held."""
        return jobs.carry(given, say, partial(_Carrier, self._made))

    def converse(self, given: dict[str, Any], say: Say) -> Any:
        """Do turns of one session."""
        return conversing.converse(given, say, self._dying)

    def post(self, given: dict[str, Any], say: Say) -> None:
        """Send messages to one session, and do its turns."""
        conversing.post(given, say, self._dying)

    def read(self, given: dict[str, Any], say: Say) -> Any:
        """What the session holds."""
        return conversing.read(given, say, self._dying)

    def pay(self, given: dict[str, Any], say: Say) -> Any:
        """Begin a run that spends money, or go on with it."""
        return paying.pay(given, say, self._dying)

    def work(self, given: dict[str, Any], say: Say) -> None:
        """Carry out submitted runs."""
        working.work(given, say, self._made)

    def _dying(self, address: str, death: jobs.Death) -> CheckpointBackend:
        return Dying(self._made(address), death)

    def hold(self, given: dict[str, Any], say: Say) -> None:
        """Become the owner of a run and keep it until killed."""
        anyio.run(partial(self._hold, given, say))

    async def _hold(self, given: dict[str, Any], say: Say) -> None:
        backend = self._made(given["store"])
        lease = await backend.acquire(jobs.RUN, ttl=given["ttl"])
        say(["held", lease.fence])
        await anyio.sleep_forever()

    def use_after_fork(self, given: dict[str, Any], say: Say) -> str:
        """Use a backend in a process that was forked from the one it was made in; what came of that."""
        return anyio.run(self._use_after_fork, given)

    async def _use_after_fork(self, given: dict[str, Any]) -> str:
        async with self._made(given["store"]) as backend:
            lease = await backend.acquire(jobs.RUN, ttl=600.0)
            ours, its = os.pipe()
            if not os.fork():
                # In a thread of its own: this one is in an event loop that belongs to the parent.
                with anyio.from_thread.start_blocking_portal() as portal:
                    os.write(its, portal.call(_used, backend).encode())
                os._exit(0)
            os.close(its)
            with os.fdopen(ours) as heard:
                said = heard.read()
            await backend.append(jobs.RUN, expected_position=0, fence=lease.fence, records=[])
            return said


class _Carrier(jobs.Carrier):
    """One process of a run; `store` is the address."""

    def __init__(self, made: Callable[[str], ServerBackend[Any]], given: jobs.Given, say: Say) -> None:
        self._made = made
        super().__init__(given, say)

    def opened(self) -> CheckpointBackend:
        return Dying(self._made(self.given.get("store", "")), self.death)


async def _used(backend: ServerBackend[Any]) -> str:
    try:
        await backend.head(jobs.RUN)
    except StoreUnavailable as error:
        return error.reason
    finally:
        await backend.close()
    return "used"
