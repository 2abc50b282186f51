"""Processes that race for one shared budget in PostgreSQL, or to begin the runs of a schedule, and are killed."""

from __future__ import annotations

import pytest
from postgres_server import PostgresServer

from tests.servers.races import race, race_for_times

pytestmark = pytest.mark.anyio


async def test_processes_race_for_one_budget(server: PostgresServer, schema: str) -> None:
    await race(server.url(schema), lambda: server.lapse(schema))


async def test_processes_race_for_the_times_of_a_schedule(server: PostgresServer, schema: str) -> None:
    await race_for_times(server.url(schema))
