"""The durability of a server by its settings, and the settings that it must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from noetic_py.checkpoints.contract import BackendDurability
from noetic_py.errors import ConfigError, StoreUnavailable

__all__ = ["ASKED", "OLDEST", "Found", "Persistence", "Require", "check"]

OLDEST = 7
"""The oldest server, by its major version."""

ASKED = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
"""The settings that are asked for."""

Persistence: TypeAlias = Literal["always", "everysec", "no", "snapshots", "none", "unknown"]
"""When the server brings a write to its disk: before it answers, each second, when its system likes to, now and then
all of its memory, never, or it does not say."""

Require: TypeAlias = Literal["always", "everysec", "any"]
"""The durability that a program requires of the server."""

_WHY: Mapping[Persistence, str] = {
    "always": "the server answers a write when that is on its disk",
    "everysec": "the server brings writes to its disk each second, so a crash of it loses a second or two",
    "no": "the server leaves it to its system when writes come to the disk, so a loss of power loses half a minute",
    "snapshots": "the server keeps no log, only snapshots, so a crash of it loses everything since the last one",
    "none": "the server keeps everything in memory only, so a crash or a restart of it loses everything",
    "unknown": "the server does not tell its settings (CONFIG GET), so what a crash of it loses is not known",
}
_DURABILITY: Mapping[Persistence, BackendDurability] = {"always": "power", "everysec": "process", "no": "process"}
_ENOUGH: Mapping[Require, frozenset[Persistence]] = {
    "always": frozenset({"always"}),
    "everysec": frozenset({"always", "everysec"}),
    "any": frozenset(_WHY),
}


@frozen
class Found:
    """A server that may be used.

    Attributes:
        server: Its version, such as `"7.0.15"`; empty when it does not say.
        settings: Those of `ASKED` that it tells.
        salt: Where the store's checksums begin.
    """

    server: str
    settings: Mapping[str, str]
    salt: bytes = b""

    @property
    def persistence(self) -> Persistence:
        """When a write comes to the server's disk."""
        log = self.settings.get("appendonly")
        if log is None:
            return "unknown"
        if log != "yes":
            return "snapshots" if self.settings.get("save") else "none"
        known: Mapping[str, Persistence] = {"always": "always", "everysec": "everysec", "no": "no"}
        return known.get(self.settings.get("appendfsync", ""), "unknown")

    @property
    def durability(self) -> BackendDurability:
        """The guaranteed durability of a finished write."""
        return _DURABILITY.get(self.persistence, "none")

    @property
    def why(self) -> str:
        """Why it survives that, in words."""
        return _WHY[self.persistence]


def check(found: Found, require: Require | None, where: str) -> None:
    """Refuse a server that cannot keep what it is given, or keeps it less well than was asked.

    Args:
        found: What it says of itself.
        require: What was asked.
        where: The server, for errors.

    Raises:
        StoreUnavailable: It is too old; reason `"server"`.
        ConfigError: It throws keys away when its memory is full, or promises too little; codes `"redis-eviction"` and
            `"redis-durability"`.
    """
    version = found.server.partition(".")[0]
    if version.isdigit() and int(version) < OLDEST:
        raise StoreUnavailable(
            f"{where}: Redis {found.server} is too old", where=where, reason="server", hint=f"Redis {OLDEST} or newer"
        )
    policy = found.settings.get("maxmemory-policy", "noeviction")
    # No key of the store has a time to live, so only these take some away.
    if policy.startswith("allkeys"):
        raise ConfigError(
            f"{where}: maxmemory-policy is {policy}, so the server would throw runs away when its memory is full",
            code="redis-eviction",
            hint="CONFIG SET maxmemory-policy noeviction, and in its file; or a server that is not a cache as well",
        )
    if require is not None and found.persistence not in _ENOUGH[require]:
        raise ConfigError(
            f"{where}: require={require!r}, but {found.why}",
            code="redis-durability",
            hint="set appendonly yes and appendfsync always at the server, or ask for less: require='any'",
        )
