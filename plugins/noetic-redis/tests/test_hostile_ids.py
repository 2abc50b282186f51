"""Ids that look like patterns, scripts and queries reach nothing else in a Redis, not even by the names of its keys."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest
from noetic_redis import RedisBackend
from redis_server import RedisServer

from tests.servers.hostile_ids import HostileIdsContract, victim_in

pytestmark = pytest.mark.anyio

KEY = re.compile(rb"\{[\w-]+\}:[a-z]+(:[0-9a-f]+)?")


class TestHostileIds(HostileIdsContract):
    sample = 60

    @pytest.fixture
    async def backend(self, redis_server: RedisServer, prefix: str) -> AsyncGenerator[RedisBackend]:
        before: set[bytes] = {*redis_server.command("KEYS", "*")}
        async with RedisBackend(redis_server.url(prefix)) as made, victim_in(made):
            yield made
            names = redis_server.keys(prefix)
            assert [name for name in names if KEY.fullmatch(name) is None] == []
            every: list[bytes] = redis_server.command("KEYS", "*")
            assert sorted({*every} - before) == names
