"""Checkpoints: the records of a journal, what stores them, and the backends in memory, in SQLite and in plain files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.checkpoints.backend import (
    BackendDurability,
    CheckpointBackend,
    Head,
    Lease,
    Record,
    RunEntry,
    Scope,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.checkpoints.in_memory import InMemoryBackend
from noetic_py.checkpoints.spec import backend_from

if TYPE_CHECKING:
    from noetic_py.checkpoints.files import FileBackend
    from noetic_py.checkpoints.sqlite import SqliteBackend

__all__ = [
    "BackendDurability",
    "CheckpointBackend",
    "FileBackend",
    "Head",
    "InMemoryBackend",
    "Lease",
    "Record",
    "RunEntry",
    "Scope",
    "SqliteBackend",
    "Stats",
    "StoredValue",
    "Transaction",
    "backend_from",
]


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there. A program that stores nothing in
    # SQLite does not load it, and one that stores nothing in files loads nothing of that.
    def __getattr__(name: str) -> object:
        if name == "SqliteBackend":
            from noetic_py.checkpoints.sqlite import SqliteBackend

            return SqliteBackend
        if name == "FileBackend":
            from noetic_py.checkpoints.files import FileBackend

            return FileBackend
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
