"""What child processes do: carry a run that is kept in PostgreSQL, or own one, until they are killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from noetic_postgres import PostgresBackend

from noetic_py.checkpoints import CheckpointBackend, Record
from noetic_py.errors import StoreUnavailable
from tests.crash import jobs
from tests.crash.server import Say

ADDRESS = "NOETIC_CRASH_ADDRESS"
"""Names the store that a fork server warms up with."""


class DyingPostgres(PostgresBackend):
    """Kills its process at an append."""

    def __init__(self, address: str, death: jobs.Death) -> None:
        super().__init__(address)
        self._death = death

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        card: bytes | None = None,
        status: str | None = None,
    ) -> int:
        self._death.before()
        position = await super().append(
            run_id, expected_position=expected_position, fence=fence, records=records, card=card, status=status
        )
        self._death.after()
        return position


class PostgresCarrier(jobs.Carrier):
    """One process of a run; `store` is the address."""

    def opened(self) -> CheckpointBackend:
        return DyingPostgres(self.given.get("store", ""), self.death)


def carry(given: jobs.Given, say: Say) -> Any:
    """Begin the run, or go on with it; says first what the journal held."""
    return jobs.carry(given, say, PostgresCarrier)


async def _hold(given: dict[str, Any], say: Say) -> None:
    backend = PostgresBackend(given["store"])
    lease = await backend.acquire(jobs.RUN, ttl=given["ttl"])
    say(["held", lease.fence])
    await anyio.sleep_forever()


def hold(given: dict[str, Any], say: Say) -> None:
    """Become the owner of a run and keep it until killed."""
    anyio.run(partial(_hold, given, say))


async def _used(backend: PostgresBackend) -> str:
    try:
        await backend.head(jobs.RUN)
    except StoreUnavailable as error:
        return error.reason
    finally:
        await backend.close()
    return "used"


async def _use_after_fork(given: dict[str, Any]) -> str:
    async with PostgresBackend(given["store"]) as backend:
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


def use_after_fork(given: dict[str, Any], say: Say) -> str:
    """Use a backend in a process that was forked from the one it was made in; what came of that."""
    return anyio.run(_use_after_fork, given)
