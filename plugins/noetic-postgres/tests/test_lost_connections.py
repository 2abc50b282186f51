from __future__ import annotations

from typing import Any

import anyio
import pytest
from noetic_postgres import PostgresBackend
from postgres_proxy import proxy_of
from postgres_server import PostgresServer

from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.lost import LostConnections

pytestmark = pytest.mark.slow


class TestLostConnections(LostConnections):
    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> None:
        self.server = self.postgres = server

    def made(self, url: str, **settings: Any) -> PostgresBackend:
        return PostgresBackend(url, **settings)

    def proxy(self) -> CuttingProxy:
        return proxy_of(self.postgres)

    async def test_closing_without_a_server_ends(self, schema: str) -> None:
        with self.proxy() as proxy:
            backend = self.through(proxy, schema)
            lease = await backend.acquire("r", ttl=600.0)
            proxy.refusing = True
            proxy.lose_all()
            with anyio.fail_after(20):
                await backend.close()
        assert self.postgres.query(f"SELECT until > now() FROM {schema}.runs") == [(True,)]
        assert lease.fence
