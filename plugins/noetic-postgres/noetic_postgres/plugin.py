"""Registers the backends `"postgresql://..."` and `"postgres://..."`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.checkpoints import CheckpointBackend
    from noetic_py.plugins import BackendRegistry

__all__ = ["register_checkpoint_backends"]


@hookimpl
def register_checkpoint_backends(registry: BackendRegistry) -> None:
    """Make `Harness(checkpoints="postgresql://user@host/database?schema=noetic")` known."""
    registry.checkpoint_backend("postgresql", _made)
    registry.checkpoint_backend("postgres", _made)


def _made(rest: str) -> CheckpointBackend:
    from noetic_postgres.backend import PostgresBackend

    return PostgresBackend(f"postgresql:{rest}")
