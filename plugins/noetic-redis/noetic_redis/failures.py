"""Maps errors of Redis and its driver to those of noetic_py: where it happened and what to do.

Nothing that the server or the driver says is passed on: it may quote a password, a command, or what is in a key.
"""

from __future__ import annotations

import redis
from redis import exceptions

from noetic_py.checkpoints.server import LOST
from noetic_py.errors import CheckpointError, CorruptRecord, StoreUnavailable

__all__ = ["from_connecting", "from_making", "from_server", "is_lost", "is_passing", "unavailable", "unknown_outcome"]

_Case = tuple[str, str, str]

_ACL = "let the user run EVALSHA, SCRIPT LOAD and what scripts do on keys of the prefix (ACL SETUSER)"
_AUTH: _Case = ("auth", "the server refused the user or the password", "look at both; rediss:// if it wants TLS")
_STARTING: _Case = ("starting", "the server is reading its data from the disk", "try again in a moment")
_LOST: _Case = ("lost", "the connection was lost", "look at the server and at the network")
_KEYS: _Case = ("keys", "there are keys under this prefix that are not this store's", "give another prefix=")
_CLUSTER: _Case = (
    "cluster",
    "the server belongs to a cluster, and the store is on another node of it",
    "give the address of the node that has the prefix: CLUSTER KEYSLOT '{prefix}'; it is not searched for",
)
# The beginnings of the server's messages; the driver removes some of them and has classes instead.
_SAID: tuple[tuple[tuple[str, ...], _Case], ...] = (
    (("noetic:gone",), ("gone", "the store was emptied or made anew", "make a new backend")),
    (
        ("noetic:stale",),
        ("unknown", "a write came too late, after it had been given up", "resume the run: it reads what is there"),
    ),
    (("wrongpass", "noauth", "invalid username-password", "authentication required", "invalid password"), _AUTH),
    (("without any password configured", "wrong number of arguments for 'auth'"), _AUTH),
    (("noperm", "no permissions", "can't access"), ("permission", "the user may not do this", _ACL)),
    (
        ("oom ", "used memory > 'maxmemory'"),
        ("memory", "the server's memory is full", "raise maxmemory, or delete old runs: noetic prune"),
    ),
    (
        ("readonly", "read only replica"),
        ("readonly", "the server is a replica, and takes no writes", "give the address of the primary"),
    ),
    (
        ("misconf", "errors writing to the aof", "no space left"),
        ("full", "the server cannot write to its disk", "free space there, and look at its log; then resume the run"),
    ),
    (("noreplicas", "not enough good replicas"), ("replicas", "too few replicas follow the server", "start them")),
    (("loading",), _STARTING),
    (("masterdown", "clusterdown", "tryagain"), ("starting", "the server is not ready", "try again in a moment")),
    (("busy ", "busy running a script"), ("busy", "the server is busy with a long script", "look which: SLOWLOG GET")),
    (
        ("max number of clients", "maxclients"),
        ("connections", "the server has no connection left", "lower connections=, or raise its maxclients"),
    ),
    (("moved ", "ask ", "crossslot", "non local key"), _CLUSTER),
    (("invalid database", "db index is out of range"), ("database", "there is no such database", "leave it out, or 0")),
    (("unknown command",), ("server", "the server does not know a command", "use Redis 7 or newer, or Valkey")),
)
# Where the store is not there yet, these keys are another program's; later they are damage.
_NOT_OURS = ("wrongtype", "wrong kind of value", "not an integer")
_CONNECTING: tuple[tuple[tuple[str, ...], _Case], ...] = (
    (
        ("certificate", "ssl", "tls"),
        ("tls", "no encrypted connection came about", "look at ssl_ca_certs= and ssl_cert_reqs=; redis:// has no TLS"),
    ),
    (
        ("name or service not known", "getaddrinfo", "nodename", "name resolution", "no address associated"),
        ("unreachable", "the server's name is not known", "look at the host in the address"),
    ),
    (
        ("permission denied",),
        ("permission", "the socket may not be opened", "look at the rights of the file and of its folder"),
    ),
    (
        ("timeout", "timed out"),
        (
            "unreachable",
            "the server did not answer in time",
            "look at the address, at the network and at firewalls, and whether the server speaks TLS (rediss://)",
        ),
    ),
)
_NO_SERVER: _Case = (
    "unreachable",
    "the server could not be reached",
    "start the server, or check host and port in the address",
)
_CLASSES: tuple[tuple[type[Exception], _Case], ...] = (
    (redis.BusyLoadingError, _STARTING),
    (redis.AuthenticationError, _AUTH),
    (redis.AuthenticationWrongNumberOfArgsError, _AUTH),
)


def unavailable(where: str, case: _Case) -> StoreUnavailable:
    """The library's error for a reason, what happened, and what to do."""
    reason, what, hint = case
    return StoreUnavailable(f"{where}: {what}", where=where, reason=reason, hint=hint)


def _known(error: Exception) -> _Case | None:
    for kind, case in _CLASSES:
        if isinstance(error, kind):
            return case
    said = f"{_code(error)} {error}".lower().lstrip()
    return next((case for texts, case in _SAID if any(text in said for text in texts)), None)


def _code(error: Exception) -> str:
    """The word that the driver has taken off."""
    names: dict[type[Exception], str] = {
        redis.ReadOnlyError: "READONLY",
        exceptions.OutOfMemoryError: "OOM",
        exceptions.NoPermissionError: "NOPERM",
        exceptions.MovedError: "MOVED",
        exceptions.AskError: "ASK",
        exceptions.ClusterCrossSlotError: "CROSSSLOT",
        exceptions.MasterDownError: "MASTERDOWN",
        exceptions.ClusterDownError: "CLUSTERDOWN",
        exceptions.TryAgainError: "TRYAGAIN",
    }
    return names.get(type(error), "")


def from_connecting(error: Exception, where: str) -> StoreUnavailable:
    """The library's error for a connection that did not come about."""
    case = _known(error)
    if case is None:
        said = f"{error} {error.__cause__ or ''}".lower()
        case = next((found for texts, found in _CONNECTING if any(text in said for text in texts)), _NO_SERVER)
    return unavailable(where, case)


def from_making(error: Exception, where: str) -> CheckpointError:
    """The library's error for a store that could not be found or made."""
    return unavailable(where, _KEYS) if _is_not_ours(error) else from_server(error, where)


def _is_not_ours(error: Exception) -> bool:
    return any(text in str(error).lower() for text in _NOT_OURS)


def from_server(error: Exception, where: str) -> CheckpointError:
    """The library's error for a script that was refused."""
    if "noetic:corrupt" in str(error) or _is_not_ours(error):
        return CorruptRecord(
            f"{where}: what is stored is not what was written", hint="restore a copy of the server's data"
        )
    case = _known(error)
    if case is None and is_lost(error):
        case = _LOST
    if case is None:
        case = ("server", f"the server refused a script: {type(error).__name__}", "report it")
    return unavailable(where, case)


def unknown_outcome(where: str) -> StoreUnavailable:
    """The error for a write of which it is not known whether it was taken."""
    return unavailable(
        where,
        (
            "unknown",
            "the connection was lost during a write, and whether it was taken could not be found out in time",
            "resume the run when the server is back: it reads what is there",
        ),
    )


def is_lost(error: Exception) -> bool:
    """Whether the connection is gone with the error, so that a write under way may have been taken or not."""
    return isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.InvalidResponse | OSError)


def is_passing(error: Exception) -> bool:
    """Whether the script was not run, and may be in a moment."""
    case = _known(error)
    return case is not None and (case[0] in LOST or case[0] == "busy")
