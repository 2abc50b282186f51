"""Processes that race for one shared budget in Redis, or to begin the runs of a schedule, and are killed."""

from __future__ import annotations

import pytest
from redis_server import RedisServer

from tests.servers.races import race, race_for_times

pytestmark = pytest.mark.anyio


async def test_processes_race_for_one_budget(redis_server: RedisServer, prefix: str) -> None:
    await race(redis_server.url(prefix), lambda: redis_server.lapse(prefix))


async def test_processes_race_for_the_times_of_a_schedule(redis_server: RedisServer, prefix: str) -> None:
    await race_for_times(redis_server.url(prefix))
