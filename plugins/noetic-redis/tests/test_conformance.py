"""The suite that every backend has to pass, against a real server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from noetic_redis import RedisBackend
from redis_server import RedisServer

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing.conformance import BackendContract, DamageContract, LastingContract, QueueContract
from tests.properties.checks import FULL


class _OnServer:
    """A folder stands for a prefix of the server, and every test has one."""

    @pytest.fixture(autouse=True)
    def use(self, redis_server: RedisServer) -> Iterator[None]:
        self.server = redis_server
        with redis_server.prefix() as self.prefix:
            yield

    def make(self, folder: Path) -> CheckpointBackend:
        return RedisBackend(self.server.url(self.prefix))

    async def lapse(self, backend: CheckpointBackend) -> None:
        self.server.lapse(self.prefix)


class TestRedis(_OnServer, BackendContract, QueueContract, LastingContract):
    pass


class TestOneConnection(_OnServer, BackendContract, QueueContract):
    """Everything goes through one connection, so that appends are sent together; and every payload is apart."""

    __test__ = FULL

    # What an event loop has to do with it was shown above.
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    def make(self, folder: Path) -> CheckpointBackend:
        return RedisBackend(self.server.url(self.prefix), connections=1, blob_threshold=0)


class _Damage:
    """Changes of what is stored, each by its number.

    Args:
        server: The server.
        prefix: Whose keys.
        dice: Where in a value.
    """

    def __init__(self, server: RedisServer, prefix: str, dice: random.Random) -> None:
        self.server = server
        self.base = f"{{{prefix}}}:"
        self.prefix = prefix
        self.dice = dice

    def number(self, run_id: str) -> str:
        found: bytes = self.server.command("HGET", f"{self.base}ids", run_id)
        return found.decode()

    def flipped(self, data: bytes) -> bytes:
        at = self.dice.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.dice.randrange(8)]) + data[at + 1 :]

    def field(self, run_id: str, name: str, value: str) -> None:
        self.server.command("HSET", f"{self.base}run:{self.number(run_id)}", name, value)

    def log(self, change: Callable[[str, list[bytes]], tuple[str, list[bytes]]], run_id: str = "r3") -> None:
        """Write a journal anew, one transaction of it changed."""
        key = f"{self.base}log:{self.number(run_id)}"
        rows: list[tuple[bytes, list[bytes]]] = self.server.command("XRANGE", key, "-", "+")
        chosen = self.dice.randrange(len(rows))
        self.server.command("DEL", key)
        for index, (name, fields) in enumerate(rows):
            changed = change(name.decode(), fields) if index == chosen else (name.decode(), fields)
            self.server.command("XADD", key, changed[0], *changed[1])

    def _body(self, name: str, fields: list[bytes]) -> tuple[str, list[bytes]]:
        return name, [*fields[:-1], self.flipped(fields[-1])]

    def _cut(self, name: str, fields: list[bytes]) -> tuple[str, list[bytes]]:
        return name, [*fields[:-1], fields[-1][:-1]]

    def _sum(self, name: str, fields: list[bytes]) -> tuple[str, list[bytes]]:
        return name, [*fields[:3], b"%d" % (int(fields[3]) ^ 1), *fields[4:]]

    def _more(self, name: str, fields: list[bytes]) -> tuple[str, list[bytes]]:
        return name, [fields[0], b"%d" % (int(fields[1]) + 1), *fields[2:]]

    def _swapped(self) -> None:
        """The journals of two runs, each in the place of the other."""
        one, other = (f"{self.base}log:{self.number(run_id)}" for run_id in ("r2", "r3"))
        for old, new in ((one, "elsewhere"), (other, one), ("elsewhere", other)):
            self.server.command("RENAME", old, new)

    def _lost(self) -> None:
        """A transaction, perhaps the last one."""
        key = f"{self.base}log:{self.number('r3')}"
        rows: list[tuple[bytes, list[bytes]]] = self.server.command("XRANGE", key, "-", "+")
        self.server.command("XDEL", key, self.dice.choice([name for name, _ in rows]))

    def _value(self) -> None:
        for key in self.server.keys(self.prefix):
            if b":values:" in key:
                self.server.command("HSET", key, "k3", self.flipped(self.server.command("HGET", key, "k3")))

    def _version(self) -> None:
        for key in self.server.keys(self.prefix):
            if b":heads:" in key:
                found: bytes = self.server.command("HGET", key, "k3")
                self.server.command("HSET", key, "k3", b"9" + found)

    def _keyless(self) -> None:
        for key in self.server.keys(self.prefix):
            if b":heads:" in key:
                self.server.command("HDEL", key, "k3")

    def _blob(self, *, gone: bool) -> None:
        for key in self.server.keys(self.prefix):
            if b":blob:" in key:
                found = self.server.command("GET", key)
                self.server.command(*(("DEL", key) if gone else ("SET", key, self.flipped(found))))

    def _swapped_ids(self) -> None:
        one, other = self.number("r2"), self.number("r3")
        self.server.command("HSET", f"{self.base}ids", "r2", other, "r3", one)

    def all(self) -> list[Callable[[], None]]:
        command = self.server.command
        return [
            lambda: self.log(self._body),
            lambda: self.log(self._cut),
            lambda: self.log(self._sum),
            lambda: self.log(self._more),
            self._swapped,
            self._lost,
            lambda: command("DEL", f"{self.base}log:{self.number('r3')}"),
            lambda: command("XADD", f"{self.base}log:{self.number('r3')}", "99-0", "b", "x"),
            lambda: self._blob(gone=False),
            lambda: self._blob(gone=True),
            self._value,
            self._version,
            self._keyless,
            lambda: self.field("r3", "pos", "8"),
            lambda: self.field("r3", "pos", "1"),
            lambda: self.field("r3", "fence", "7"),
            lambda: self.field("r3", "card", "other"),
            lambda: self.field("r3", "status", "scompleted"),
            lambda: self.field("r3", "status", ""),
            lambda: self.field("r3", "updated", "5"),
            lambda: self.field("r3", "id", "r3x"),
            lambda: self.field("fork", "parts", "3:2"),
            lambda: self.field("fork", "parts", ""),
            self._swapped_ids,
            lambda: command("DEL", f"{self.base}store"),
            lambda: command("HSET", f"{self.base}store", "salt", "other"),
            lambda: command("DEL", f"{self.base}run:{self.number('r3')}"),
            lambda: command("SET", f"{self.base}run:{self.number('r3')}", "a text"),
        ]


class TestDamaged(_OnServer, DamageContract):
    async def damage(self, folder: Path, seed: int) -> None:
        changes = _Damage(self.server, self.prefix, random.Random(seed)).all()
        changes[seed % len(changes)]()
