"""Registers the backends `"redis://..."`, `"rediss://..."` and `"unix://..."`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.checkpoints import CheckpointBackend
    from noetic_py.plugins import BackendRegistry

__all__ = ["register_checkpoint_backends"]


@hookimpl
def register_checkpoint_backends(registry: BackendRegistry) -> None:
    """Make `Harness(checkpoints="redis://user@host:6379/0?prefix=noetic")` known."""
    for scheme in ("redis", "rediss", "unix"):
        registry.checkpoint_backend(scheme, partial(_made, scheme))


def _made(scheme: str, rest: str) -> CheckpointBackend:
    from noetic_redis.backend import RedisBackend

    return RedisBackend(f"{scheme}:{rest}")
