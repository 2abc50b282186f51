"""`RedisBackend`: journals and values in a Redis server, which several machines may use."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial

import redis

from noetic_py import Secret
from noetic_py.checkpoints.checks import MAX_BYTES, check_settings
from noetic_py.checkpoints.contract import BackendDurability
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.core.diagnostics import warn
from noetic_redis.address import Address, address_of
from noetic_redis.link import VERSION, Link
from noetic_redis.reconnect import Reconnector, Server
from noetic_redis.settings import Found, Persistence, Require
from noetic_redis.store import RedisStore

__all__ = ["RedisBackend"]


class RedisBackend(ServerBackend[RedisStore]):
    """Keeps journals and values under one prefix of a Redis server, version 7 or newer.

    The server is reached when it is first needed; `async with` reaches it at once. Every write is one script, which
    compares position and fence and writes all of a transaction or nothing. Leases run by the server's clock, so the
    clocks of the machines do not matter; after a machine has died its runs are free when their time is up. When a
    connection is lost the backend reconnects and sends the write again, which the server does only if it had not;
    what it cannot find out within `timeout` raises [`StoreUnavailable`][noetic_py.errors.StoreUnavailable], reason
    `"unknown"`, which is a `CheckpointFailed`.

    What a finished write survives is the server's to say, and `persistence` says what it said. Unless that is
    `"always"`, a `NoeticWarning` tells it once, or `require` settles what is enough.

    Args:
        address: `"redis://user@host:6379/0"`, `"rediss://..."` with TLS, or `"unix:///path/to/socket"`. It may end in
            `?prefix=noetic&connections=4&timeout=30&require=always`, and in parameters of the driver.
        prefix: What the names of all keys begin with, in braces; `"noetic"` when left out.
        connections: How many connections this backend may have at once; 4 when left out.
        timeout: How many seconds an operation may take, with everything that is tried again; 30 when left out.
        require: What the server has to promise: `"always"`, `"everysec"` or better, or `"any"`, and no warning.
        blob_threshold: Payloads longer than this, in bytes, are stored once, by their content.
        max_bytes: The largest transaction, and the largest value of a key, in bytes.

    Raises:
        ConfigError: The address or a setting is wrong; codes `"redis-address"` and `"redis-setting"`. When the server
            is reached: it throws keys away when its memory is full, or promises less than `require`; codes
            `"redis-eviction"` and `"redis-durability"`.
    """

    def __init__(
        self,
        address: str | Secret[str],
        *,
        prefix: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
        require: Require | None = None,
        blob_threshold: int = 16 * 1024,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_settings(blob_threshold=blob_threshold, max_bytes=max_bytes, limit=4 * MAX_BYTES, code="redis-setting")
        self._address = address_of(address, prefix=prefix, connections=connections, timeout=timeout, require=require)
        self._meeting = _Meeting(self._address)
        self._warned = self._address.require is not None
        server = Server(
            where=self._address.where,
            timeout=self._address.timeout,
            connect=self._meeting.connect,
            reached=threading.Event(),
        )
        super().__init__(
            partial(RedisStore, threshold=blob_threshold),
            connections=self._address.connections,
            name="noetic-redis",
            where=self._address.where,
            timeout=self._address.timeout,
            reconnector=partial(Reconnector, server),
            max_bytes=max_bytes,
        )

    def __repr__(self) -> str:
        return f"RedisBackend({self._address.where!r})"

    @property
    def durability(self) -> BackendDurability:
        """The durability by the server's settings; `"none"` until it was reached.

        `"power"` where it brings a write to its disk before it answers, `"process"` where it does so a little later,
        `"none"` where it keeps no log of writes, or does not tell its settings.
        """
        found = self._meeting.found
        return "none" if found is None else found.durability

    @property
    def persistence(self) -> Persistence:
        """When the server brings a write to its disk, by its settings when it was last connected to.

        `"always"` before it answers, `"everysec"` each second, `"no"` when its system likes to, `"snapshots"` now and
        then all of its memory, `"none"` never, `"unknown"` when it does not tell, or was not reached yet.
        """
        found = self._meeting.found
        return "unknown" if found is None else found.persistence

    async def describe(self) -> Mapping[str, str]:
        """The server, its version, the prefix, and what the server's settings promise."""
        await self._begin()
        await self._open()
        found = self._meeting.found
        settings: Mapping[str, str] = {} if found is None else found.settings
        return {
            "backend": "redis",
            "server": self._address.where,
            "prefix": self._address.prefix,
            "layout": str(VERSION),
            "redis": "" if found is None else found.server,
            "driver": f"redis-py {redis.__version__}",
            "connections": str(self._address.connections),
            **{name: settings[name] for name in sorted(settings)},
            "persistence": self.persistence,
            "durability": self.durability,
            "why": "" if found is None else found.why,
        }

    async def _open(self) -> None:
        await super()._open()
        self._warn()

    async def _begin(self) -> None:
        if not self._warned:
            # Before anything is written: where warnings are errors, nothing was then.
            await self._open()

    def _warn(self) -> None:
        found = self._meeting.found
        if self._warned or found is None:
            return
        self._warned = True
        if found.persistence != "always":
            warn(
                f"{self._address.where}: {found.why}; set appendonly yes and appendfsync always there, "
                "or say with require= that this is enough"
            )


class _Meeting:
    """Makes connections, and knows what was found at the other end."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.found: Found | None = None

    def connect(self, seconds: float) -> Link:
        return Link(self._address, self._met, seconds=seconds)

    def _met(self, found: Found) -> None:
        self.found = found
