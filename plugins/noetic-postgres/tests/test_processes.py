from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from tests.crash.children import Children
from tests.servers.conversations import ServedConversations, ServedSpending
from tests.servers.processes import Processes, ServedKills, children_of


@pytest.fixture(scope="module")
def children(server: PostgresServer) -> Generator[Children]:
    with children_of(server, Path(__file__).parent, "crash_warm") as made:
        yield made


class TestKilled(ServedKills):
    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> None:
        self.server = server

    def opened(self, url: str) -> PostgresBackend:
        return PostgresBackend(url)


class TestProcesses(Processes):
    jobs = "crash_jobs"

    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> None:
        self.server = server

    def made(self, url: str) -> PostgresBackend:
        return PostgresBackend(url)


class TestConversations(ServedConversations):
    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer, children: Children) -> None:
        self.use_server(server, children, "crash_jobs")


class TestSpending(ServedSpending):
    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer, children: Children) -> None:
        self.use_server(server, children, "crash_jobs")
