"""Checkpoints: the records of a journal, what stores them, and the backends in memory, in SQLite and in plain files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.checkpoints.checks import Distributed
from noetic_py.checkpoints.contract import BackendDurability, CheckpointBackend, Scope
from noetic_py.checkpoints.spec import backend_from
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.journal.stored import (
    BudgetChange,
    BudgetRow,
    Claim,
    Head,
    Lease,
    Queued,
    QueueLimits,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)

if TYPE_CHECKING:
    from noetic_py.checkpoints.files import FileBackend
    from noetic_py.checkpoints.memory import InMemoryBackend
    from noetic_py.checkpoints.sqlite import SqliteBackend
    from noetic_py.journal.transforms import (
        Anchor,
        CheckedRecord,
        DecodedPayload,
        Finding,
        JournalEnd,
        RecordCheck,
        RecordPlace,
        RecordTransform,
        Verdict,
        VerificationReport,
    )

__all__ = [
    "Anchor",
    "BackendDurability",
    "BudgetChange",
    "BudgetRow",
    "CheckedRecord",
    "CheckpointBackend",
    "Claim",
    "DecodedPayload",
    "Distributed",
    "FileBackend",
    "Finding",
    "Head",
    "InMemoryBackend",
    "JournalEnd",
    "Lease",
    "QueueLimits",
    "QueueStats",
    "Queued",
    "Record",
    "RecordCheck",
    "RecordPlace",
    "RecordTransform",
    "RunEntry",
    "Scope",
    "SharedBudget",
    "Signal",
    "SqliteBackend",
    "Stats",
    "StoredValue",
    "Transaction",
    "Verdict",
    "VerificationReport",
    "backend_from",
]


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there. A program that stores nothing in
    # SQLite, in files or in memory does not load that, and one without transforms does not load signing.
    def __getattr__(name: str) -> object:
        if name == "SqliteBackend":
            from noetic_py.checkpoints.sqlite import SqliteBackend

            return SqliteBackend
        if name == "FileBackend":
            from noetic_py.checkpoints.files import FileBackend

            return FileBackend
        if name == "InMemoryBackend":
            from noetic_py.checkpoints.memory import InMemoryBackend

            return InMemoryBackend
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from noetic_py.journal import transforms

        found: object = getattr(transforms, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
