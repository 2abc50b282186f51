"""Keeps the runs of noetic_py in PostgreSQL, where several machines see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name != "PostgresBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetic_postgres.backend import PostgresBackend

    return PostgresBackend
