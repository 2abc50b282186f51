"""Processes that race for one shared budget in PostgreSQL, and are killed."""

from __future__ import annotations

import pytest
from postgres_server import PostgresServer

from tests.servers.budget_race import race

pytestmark = pytest.mark.anyio


async def test_processes_race_for_one_budget(server: PostgresServer, schema: str) -> None:
    await race(server.url(schema), lambda: server.lapse(schema))
