"""Keeps the runs of noetic_py in PostgreSQL, where several machines see them, and what is recalled by meaning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_postgres.backend import PostgresBackend
    from noetic_postgres.vectors import PgVectorStore

__all__ = ["PgVectorStore", "PostgresBackend"]

_HOMES = {"PgVectorStore": "noetic_postgres.vectors", "PostgresBackend": "noetic_postgres.backend"}


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
