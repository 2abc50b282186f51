"""Rows of operations do on a real server what they do in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from noetic_redis import RedisBackend, scripts
from redis_server import RedisServer

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing import ReferenceContract
from tests.properties.checks import examples

CLOCK = b"redis.call('TIME')"
SHOWN = b"redis.call('HMGET', 'clock', 'seconds', 'micros')"


class TestBesideTheReference(ReferenceContract):
    """With scripts that read the time from a key, because the backend tells all time by the server's clock."""

    examples = examples(sample=12, full=500)
    # More connections change nothing for operations that come one after the other.
    connections = 1

    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.server = redis_server
        read = scripts.read_file
        assert read("prelude").count(CLOCK) == 1

        def changed(name: str) -> bytes:
            return read(name).replace(CLOCK, SHOWN)

        monkeypatch.setattr(scripts, "read_file", changed)
        scripts.script.cache_clear()
        with redis_server.prefix() as self.prefix:
            yield
        scripts.script.cache_clear()

    def make(self, folder: Path) -> CheckpointBackend:
        if keys := self.server.keys(self.prefix):
            self.server.command("DEL", *keys)
        self._show()
        return self.made()

    def made(self) -> CheckpointBackend:
        return RedisBackend(self.server.url(self.prefix), connections=self.connections)

    async def moved(self, backend: CheckpointBackend) -> None:
        self._show()

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Its leases end with the server's clock, which has been moved."""

    def _show(self) -> None:
        now = self.runtime.now()
        self.server.command("HSET", "clock", "seconds", int(now.timestamp()), "micros", now.microsecond)


class TestMostPayloadsApart(TestBesideTheReference):
    """Nearly every payload is stored by its content."""

    examples = examples(sample=4, full=200)

    def made(self) -> CheckpointBackend:
        return RedisBackend(self.server.url(self.prefix), connections=self.connections, blob_threshold=0)
