"""What SQLite reports, by the names of this library: where it happened and what to do."""

from __future__ import annotations

import sqlite3

from noetic_py.errors import CheckpointError, CorruptRecord, StoreUnavailable

__all__ = ["DRIVER_ERRORS", "code_of", "from_sqlite", "is_broken", "is_worth_retrying"]

# Code: reason, what happened, what to do.
_SQLITE: dict[int, tuple[str, str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "busy",
        "another process has held the database for longer than busy_timeout",
        "look for a process that hangs, or raise busy_timeout=",
    ),
    sqlite3.SQLITE_LOCKED: ("busy", "the database is locked by another connection", "raise busy_timeout="),
    sqlite3.SQLITE_READONLY: (
        "readonly",
        "the database cannot be written",
        "let this user write the file and its directory",
    ),
    sqlite3.SQLITE_IOERR: (
        "io",
        "the disk failed; a commit that was under way may have been taken or not",
        "look at the disk and at the system's log, then resume the run: it reads what is there",
    ),
    sqlite3.SQLITE_FULL: ("full", "the disk, or the database's limit, is full", "free space, then resume the run"),
    sqlite3.SQLITE_CANTOPEN: (
        "permission",
        "the file, or its journal beside it, cannot be opened",
        "let this user read and write the file and its directory",
    ),
    sqlite3.SQLITE_NOTADB: ("not-a-database", "the file is no SQLite database", "give another path"),
    sqlite3.SQLITE_NOMEM: ("memory", "memory ran out", "give the process more memory"),
    sqlite3.SQLITE_PROTOCOL: ("busy", "the file's locks are not granted", "use a local disk"),
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)


# SQLite's message about a damaged schema holds bytes of the file; if they are no UTF-8, the driver raises that.
DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error of the driver itself."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_broken(error: Exception) -> bool:
    """Whether the connection should not be used any more."""
    return code_of(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB, *_DAMAGED)


def is_busy(error: Exception) -> bool:
    """Whether another connection has a lock that was wanted."""
    return code_of(error) == sqlite3.SQLITE_BUSY


def is_worth_retrying(error: Exception) -> bool:
    """Whether what was lost together may succeed one by one: it was certainly not taken, and waiting did not fail."""
    return code_of(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def from_sqlite(error: Exception, where: str) -> CheckpointError:
    """The library's error for SQLite's."""
    code = code_of(error)
    name: str = getattr(error, "sqlite_errorname", "") or type(error).__name__
    found = _SQLITE.get(code)
    if found is not None:
        reason, what, hint = found
        return StoreUnavailable(f"{where}: {what} ({name})", where=where, reason=reason, hint=hint)
    # The driver itself reports a text that is no UTF-8, and gives no code for it.
    if code in _DAMAGED or (code == 0 and isinstance(error, sqlite3.OperationalError)):
        return CorruptRecord(
            f"{where}: the database is damaged ({name})", hint="keep a copy of the file, and restore an earlier one"
        )
    return StoreUnavailable(
        f"{where}: SQLite refused ({name})", where=where, reason="sqlite", hint="look at the file and its directory"
    )
