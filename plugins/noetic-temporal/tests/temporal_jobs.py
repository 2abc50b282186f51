"""What worker processes do with runs that Temporal has them carry out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from noetic_temporal import work as work_for_temporal
from temporalio.client import Client

from noetic_py import Context, Harness, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from tests.crash.server import Say
from tests.crash.working import flow_into

ADDRESS = "NOETIC_TEST_TEMPORAL"
HEARTBEAT = 1.0
"""Seconds, so that a test need not wait long for the next worker."""


def backend_of(store: str) -> CheckpointBackend:
    """The backend of an address, or of a file."""
    if not store.startswith("postgresql:"):
        return SqliteBackend(store)
    from noetic_postgres import PostgresBackend

    return PostgresBackend(store)


async def connected(address: str) -> Client:
    """A client of a server, as soon as that listens."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await Client.connect(address)
            except RuntimeError:
                await asyncio.sleep(0.05)


@step(version="1")
async def deadly(name: str, ctx: Context) -> str:
    os._exit(1)


def work(given: dict[str, Any], say: Say) -> None:
    """Work until the process is killed."""

    async def main() -> None:
        flow = flow_into(Path(given["lines"]), given["process"], given["pause"])
        async with (
            backend_of(given["store"]) as backend,
            Harness(
                checkpoints=backend, plugins=[], flows={"flow": flow, "deadly": deadly}, lease=given["lease"]
            ) as harness,
        ):
            client = await connected(os.environ[ADDRESS])
            say(["ready", True])
            await work_for_temporal(client, harness, concurrency=given["concurrency"], lives=given.get("lives", 1000))

    asyncio.run(main())
