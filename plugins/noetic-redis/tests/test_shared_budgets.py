"""Processes that race for one shared budget in Redis, and are killed."""

from __future__ import annotations

import pytest
from redis_server import RedisServer

from tests.servers.budget_race import race

pytestmark = pytest.mark.anyio


async def test_processes_race_for_one_budget(redis_server: RedisServer, prefix: str) -> None:
    await race(redis_server.url(prefix), lambda: redis_server.lapse(prefix))
