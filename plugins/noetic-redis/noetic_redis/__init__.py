"""Keeps the runs of noetic_py in Redis, where several machines see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_redis.backend import RedisBackend

__all__ = ["RedisBackend"]


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name != "RedisBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetic_redis.backend import RedisBackend

    return RedisBackend
