from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from noetic_redis import RedisBackend
from redis_server import RedisServer

from tests.crash.children import Children
from tests.servers.conversations import ServedConversations, ServedSpending
from tests.servers.processes import Processes, ServedKills, children_of


@pytest.fixture(scope="module")
def children(redis_server: RedisServer) -> Generator[Children]:
    with children_of(redis_server, Path(__file__).parent, "redis_warm") as made:
        yield made


class TestKilled(ServedKills):
    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    def opened(self, url: str) -> RedisBackend:
        return RedisBackend(url)


class TestProcesses(Processes):
    jobs = "redis_jobs"

    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    def made(self, url: str) -> RedisBackend:
        return RedisBackend(url)


class TestConversations(ServedConversations):
    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer, children: Children) -> None:
        self.use_server(redis_server, children, "redis_jobs")


class TestSpending(ServedSpending):
    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer, children: Children) -> None:
        self.use_server(redis_server, children, "redis_jobs")
