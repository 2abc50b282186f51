"""The file: where it may be, how it is opened, and the tables it has to have.

Which journal: one fsync a commit with a write-ahead log, four with a rollback journal that is kept open (`hold.py`) and
five with one that is not; but SQLite before 3.51.3 (3.50.7, 3.44.6) can damage a file in WAL mode when one connection
commits while another ends a checkpoint. So WAL is used where that is mended, or where this process alone may open the
file (`exclusive=True`); else a rollback journal whose file stays (`PERSIST`), the fastest of its kind. A file keeps the
mode it was made in, because another process with another SQLite may have it open.

The driver is the standard library's. apsw brings a newer SQLite, and is no faster here; but it would be the second copy
of SQLite in the process, and of two copies with one file each drops the other's locks when it closes it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import define, frozen

from noetic_py.checkpoints._local.errors import from_os
from noetic_py.checkpoints._local.folders import make_folder, sync_folder
from noetic_py.checkpoints._local.locks import Locks
from noetic_py.checkpoints._sqlite.errors import DRIVER_ERRORS, from_sqlite
from noetic_py.checkpoints._sqlite.runs import POSITION_BITS
from noetic_py.errors import CorruptRecord, StoreUnavailable

__all__ = ["VERSION", "Mode", "Place", "Settings", "connect", "mode_of", "open_database", "wal_is_safe"]

APPLICATION = 0x6E6F6574
VERSION = 2
_OLDEST = (3, 35, 0)
_MENDED = ((3, 51, 3), (3, 50, 7), (3, 44, 6))

Mode: TypeAlias = Literal["wal", "exclusive", "persist"]
"""How the file is written: WAL with several connections, WAL with one, or a rollback journal."""

_TABLES = (
    """CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1), salt BLOB NOT NULL, ticks INTEGER NOT NULL, crc INTEGER NOT NULL
    )""",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, position INTEGER NOT NULL, fence INTEGER NOT NULL,
        owner INTEGER NOT NULL, updated INTEGER NOT NULL, crc INTEGER NOT NULL, created INTEGER NOT NULL,
        status TEXT, card BLOB NOT NULL, card_crc INTEGER NOT NULL
    )""",
    "CREATE INDEX runs_by_status ON runs (status, id)",
    """CREATE TABLE shared (
        run INTEGER NOT NULL, upto INTEGER NOT NULL, stream INTEGER NOT NULL, crc INTEGER NOT NULL,
        PRIMARY KEY (run, upto)
    ) WITHOUT ROWID""",
    "CREATE INDEX shared_by_stream ON shared (stream, upto)",
    # The id is a place, the stream and the position of the last record, so there is no index for a commit to write.
    """CREATE TABLE transactions (
        id INTEGER PRIMARY KEY, count INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL
    )""",
    "CREATE TABLE blobs (id INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
    """CREATE TABLE uses (
        stream INTEGER NOT NULL, blob INTEGER NOT NULL, first INTEGER NOT NULL, PRIMARY KEY (stream, blob)
    ) WITHOUT ROWID""",
    "CREATE INDEX uses_by_blob ON uses (blob)",
    """CREATE TABLE pairs (
        version INTEGER PRIMARY KEY, scope BLOB NOT NULL, key TEXT NOT NULL, crc INTEGER NOT NULL, value BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX pairs_by_key ON pairs (scope, key)",
)

# By the version that a file has: what makes it one of the next.
_UPGRADES = {
    1: (
        "ALTER TABLE transactions RENAME TO transactions_1",
        next(sql for sql in _TABLES if sql.startswith("CREATE TABLE transactions")),
        f"INSERT INTO transactions SELECT stream << {POSITION_BITS} | last, count, crc, body FROM transactions_1",  # noqa: S608  # nosec B608  # a number of ours
        "DROP TABLE transactions_1",
    ),
}


@frozen
class Settings:
    """How the file is opened.

    Attributes:
        path: Where it is.
        busy_timeout: How many seconds to wait for another process.
        mode: The permissions of the file and of those beside it.
        exclusive: Whether no other process may open it meanwhile.
    """

    path: Path
    busy_timeout: float
    mode: int
    exclusive: bool

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path)


@define(eq=False)
class Place:
    """An open file: what stays when its connection is opened anew.

    Attributes:
        settings: How it was opened.
        locks: The locks beside it.
        inode: Which file it is, once it was opened.
    """

    settings: Settings
    locks: Locks
    inode: tuple[int, int] | None = None

    @classmethod
    def find(cls, settings: Settings) -> Place:
        """Look at the path, and take the locks beside it.

        Raises:
            StoreUnavailable: There can be no database there, and why.
        """
        try:
            _check_file(settings)
            beside = settings.path.with_name(settings.path.name + "-lock")
            return cls(settings, Locks(beside, mode=settings.mode))
        except OSError as error:
            raise from_os(error, settings.where) from error

    def check(self) -> None:
        """Look whether the path still leads to the file that was opened: what is written to another place is lost.

        Raises:
            StoreUnavailable: It does not.
        """
        inode = inode_of(self.settings.where)
        if self.inode is not None and inode != self.inode:
            raise _refuse(
                self.settings, "the file was moved or deleted while it was open", "moved", "put it back, or start anew"
            )
        self.inode = inode


def inode_of(path: str) -> tuple[int, int] | None:
    """Which file is there, `None` for none that can be looked at."""
    try:
        status = os.stat(path)  # noqa: PTH116  # before every commit, so without a path's detour
    except OSError:
        return None
    return status.st_dev, status.st_ino


def wal_is_safe(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite may use WAL with a second connection."""
    newest, *lines = _MENDED
    return version >= newest or any(version[:2] == line[:2] and version >= line for line in lines)


def _refuse(settings: Settings, what: str, reason: str, hint: str) -> StoreUnavailable:
    return StoreUnavailable(f"{settings.where}: {what}", where=settings.where, reason=reason, hint=hint)


def _check_file(settings: Settings) -> None:
    """Refuse what is no file of one's own, and take rights away that others have.

    The file is never opened here: closing it would drop the locks that another connection of this process has on it.
    """
    path = settings.path
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        make_folder(path.parent)
        return
    if stat.S_ISDIR(status.st_mode):
        raise _refuse(settings, "it is a directory", "directory", "name a file in it, such as runs.db")
    if stat.S_ISLNK(status.st_mode):
        raise _refuse(settings, "it is a symbolic link", "link", "give the path of the file itself")
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(settings, "it is no regular file", "not-a-database", "give another path")
    if os.name != "posix":
        return
    if status.st_nlink > 1:
        raise _refuse(settings, "the file has a second name", "link", "remove the hard link, or copy the file")
    user = os.geteuid()
    if status.st_uid not in (user, 0) and user != 0:
        raise _refuse(settings, "the file belongs to another user", "permission", "give another path")
    if status.st_mode & 0o777 & ~settings.mode and status.st_uid == user:
        path.chmod(status.st_mode & settings.mode)


def _create(place: Place) -> None:
    """Make the file with its permissions, before SQLite would with its own."""
    path = place.settings.path
    if not path.exists():
        place.check()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, place.settings.mode))
        sync_folder(path.parent)
    place.check()


def connect(settings: Settings) -> sqlite3.Connection:
    """A connection as it is before anything was asked of it."""
    # The path is absolute, so SQLite takes neither "file:..." nor ":memory:" for something else.
    return sqlite3.connect(settings.path, timeout=settings.busy_timeout, isolation_level=None)


def open_database(place: Place) -> tuple[sqlite3.Connection, Mode, int]:
    """Open the file, or make it.

    Returns:
        The connection, how the file is written, and where checksums begin.

    Raises:
        StoreUnavailable: It cannot be opened, and why.
        CorruptRecord: It is damaged.
    """
    settings = place.settings
    if sqlite3.sqlite_version_info < _OLDEST:
        raise _refuse(
            settings,
            f"SQLite {sqlite3.sqlite_version} is too old",
            "sqlite",
            "a Python that is linked with 3.35 or newer",
        )
    with place.locks.opening(settings.busy_timeout, settings.where):
        try:
            _create(place)
        except OSError as error:
            raise from_os(error, settings.where) from error
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(settings)
            mode = _prepare(connection, settings)
            return connection, mode, _verify(connection, settings)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, DRIVER_ERRORS):
                raise from_sqlite(error, settings.where) from error
            raise


def _one(connection: sqlite3.Connection, sql: str) -> object:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _prepare(connection: sqlite3.Connection, settings: Settings) -> Mode:
    # Before the first read: with it, a file that was left in WAL mode is read without shared memory.
    safe = wal_is_safe(sqlite3.sqlite_version_info)
    if settings.exclusive or not safe:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    application, version = _one(connection, "PRAGMA application_id"), _one(connection, "PRAGMA user_version")
    new = application == 0 and _one(connection, "SELECT count(*) FROM sqlite_master") == 0
    if not new and application != APPLICATION:
        raise _refuse(settings, "the file is a database of something else", "not-a-database", "give another path")
    if not new and version != VERSION and version not in _UPGRADES:
        raise _refuse(
            settings,
            f"the file has version {version}, and this release knows {VERSION}",
            "newer",
            "upgrade noetic-py, or give another path",
        )
    mode = mode_of(_one(connection, "PRAGMA journal_mode") == "wal", new=new, safe=safe, exclusive=settings.exclusive)
    _set(connection, mode, settings)
    if new:
        _make(connection)
    elif isinstance(version, int):
        for each in range(version, VERSION):
            _in_one(connection, (*_UPGRADES[each], f"PRAGMA user_version = {each + 1}"))
    return mode


def mode_of(is_wal: bool, *, new: bool, safe: bool, exclusive: bool) -> Mode:
    """How a file is to be written.

    Args:
        is_wal: Whether it is in WAL mode.
        new: Whether it was made just now.
        safe: Whether this SQLite may use WAL with a second connection.
        exclusive: Whether there is none.
    """
    if exclusive:
        return "exclusive"
    return "wal" if safe and (new or is_wal) else "persist"


def _set(connection: sqlite3.Connection, mode: Mode, settings: Settings) -> None:
    wanted = "persist" if mode == "persist" else "wal"
    statement = "PRAGMA journal_mode = PERSIST" if mode == "persist" else "PRAGMA journal_mode = WAL"
    if _one(connection, statement) != wanted:
        raise _refuse(
            settings, "its journal mode cannot be set", "sqlite", "close the other programs that have it open"
        )
    for pragma in (
        "PRAGMA synchronous = FULL",
        # On macOS an fsync does not reach the disk without these; elsewhere they mean nothing.
        "PRAGMA fullfsync = ON",
        "PRAGMA checkpoint_fullfsync = ON",
        "PRAGMA trusted_schema = OFF",
        "PRAGMA cell_size_check = ON",
        "PRAGMA mmap_size = 0",
        "PRAGMA secure_delete = ON",
        "PRAGMA temp_store = MEMORY",
    ):
        connection.execute(pragma)
    if mode == "persist":
        connection.execute("PRAGMA locking_mode = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 1048576")
        # The lock is given back by the first access after the change of mode.
        _one(connection, "SELECT count(*) FROM sqlite_master")


def _make(connection: sqlite3.Connection) -> None:
    salt = secrets.token_bytes(16)
    first = zlib.crc32(b"0", zlib.crc32(salt))
    _in_one(
        connection,
        (
            *_TABLES,
            f"INSERT INTO store VALUES (1, x'{salt.hex()}', 0, {first})",  # noqa: S608  # nosec B608  # bytes and a number of ours
            "PRAGMA application_id = 0x6E6F6574",
            f"PRAGMA user_version = {VERSION}",
        ),
    )


def _in_one(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    """Execute statements in one transaction; one that fails closes the connection, and so undoes them all."""
    connection.execute("BEGIN IMMEDIATE")
    for sql in statements:
        connection.execute(sql)
    connection.execute("COMMIT")


def _verify(connection: sqlite3.Connection, settings: Settings) -> int:
    """Compare the tables with what they have to be, and the indexes that say what is there with their tables.

    A lookup that misses would let a run begin anew that is there: so the two indexes whose misses mean something are
    checked when the file is opened. Everything else is found by its checksums when it is read.
    """
    # Fetched in one go: a cursor in the frame of an error would keep the connection, and its lock, from being closed.
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()}
    foreign = _one(connection, "SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')")
    if not found.issuperset(_TABLES) or foreign:
        raise CorruptRecord(
            f"{settings.where}: the tables are not those that were made", hint="restore a copy of the file"
        )
    for check in ("PRAGMA integrity_check(runs)", "PRAGMA integrity_check(pairs)"):
        problem = _one(connection, check)
        if problem != "ok":
            raise CorruptRecord(f"{settings.where}: the database is damaged", hint="restore a copy of the file")
    # In one statement: between two of them another process may begin a run, with a number that the first has not seen.
    row = connection.execute(
        "SELECT salt, ticks, crc, max((SELECT max(max(id), max(fence)) FROM runs),"
        " (SELECT coalesce(max(version), 0) FROM pairs)) FROM store"
    ).fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise CorruptRecord(f"{settings.where}: the database has lost its salt", hint="restore a copy of the file")
    seed = zlib.crc32(row[0])
    # A counter that has gone back would give numbers a second time, and a fence that stops nobody.
    went_back = isinstance(row[3], int) and row[3] > row[1]
    if went_back or zlib.crc32(str(row[1]).encode(), seed) != row[2]:
        raise CorruptRecord(f"{settings.where}: the database's counter is damaged", hint="restore a copy of the file")
    return seed
