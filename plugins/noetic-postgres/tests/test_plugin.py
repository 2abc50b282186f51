from __future__ import annotations

import pytest
from noetic_postgres import PostgresBackend, plugin
from postgres_server import PostgresServer

from noetic_py.errors import PluginError
from noetic_py.plugins import BackendRegistry, hookimpl, load_plugins
from tests.servers.plugged import SECRET, PluggedIn


class TestPluggedIn(PluggedIn):
    package = "noetic_postgres"
    name = "postgres"
    schemes = ("postgres", "postgresql")
    heavy = ("psycopg",)

    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> None:
        self.server = server

    @pytest.fixture
    def wrong(self, server: PostgresServer) -> str:
        return server.url(password=SECRET)


def test_addresses_become_backends() -> None:
    backends = load_plugins([plugin]).backends
    for scheme in ("postgres", "postgresql"):
        made = backends(f"{scheme}://u:{SECRET}@host:5433/d?schema=mine")
        assert isinstance(made, PostgresBackend)
        assert repr(made) == "PostgresBackend('postgresql://u@host:5433/d (schema mine)')"


def test_nothing_takes_a_scheme_that_is_taken() -> None:
    class Other:
        def __init__(self, scheme: str) -> None:
            self.scheme = scheme

        @hookimpl
        def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
            registry.checkpoint_backend(self.scheme, PostgresBackend)

    for scheme in ("postgresql", "sqlite", "memory"):
        with pytest.raises(PluginError, match=scheme):
            load_plugins([plugin, Other(scheme)])
    for scheme in ("", "a b", "a:b", "é"):
        with pytest.raises(PluginError):
            load_plugins([Other(scheme)])
