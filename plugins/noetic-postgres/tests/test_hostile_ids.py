"""Ids that look like SQL, patterns and queries reach nothing else in a PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from tests.servers.hostile_ids import HostileIdsContract, victim_in

pytestmark = pytest.mark.anyio


class TestHostileIds(HostileIdsContract):
    sample = 60

    @pytest.fixture
    async def backend(self, server: PostgresServer, schema: str) -> AsyncGenerator[PostgresBackend]:
        async with PostgresBackend(server.url(schema)) as made, victim_in(made):
            yield made
