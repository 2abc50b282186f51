from __future__ import annotations

import pytest
from noetic_redis import RedisBackend, plugin
from redis_server import RedisServer

from noetic_py.plugins import load_plugins
from tests.servers.plugged import SECRET, PluggedIn


class TestPluggedIn(PluggedIn):
    package = "noetic_redis"
    name = "redis"
    schemes = ("redis", "rediss", "unix")
    heavy = ("redis",)

    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    @pytest.fixture
    def wrong(self, redis_server: RedisServer) -> str:
        return redis_server.url(password=SECRET)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://host", "redis://host:6379/0 (prefix noetic)"),
        (f"redis://u:{SECRET}@host:6380/3?prefix=mine", "redis://u@host:6380/3 (prefix mine)"),
        (f"redis://:{SECRET}@host/?db=4&timeout=5", "redis://host:6379?db=4 (prefix noetic)"),
        (f"rediss://:{SECRET}@host?ssl_cert_reqs=none", "rediss://host:6379/0 (prefix noetic)"),
        (f"unix://u:{SECRET}@/run/redis.sock?db=2", "unix://u@/run/redis.sock?db=2 (prefix noetic)"),
        ("redis://[::1]:7000/0", "redis://[::1]:7000/0 (prefix noetic)"),
    ],
)
def test_addresses_become_backends(address: str, shown: str) -> None:
    backends = load_plugins([plugin]).backends
    made = backends(address)
    assert isinstance(made, RedisBackend)
    assert repr(made) == f"RedisBackend({shown!r})"
