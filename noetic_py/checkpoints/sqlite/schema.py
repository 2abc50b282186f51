"""The SQLite file: how it is opened, its tables and rows, and the errors of SQLite by name."""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attrs import define, field, frozen

from noetic_py.checkpoints.checks import NO_DESCRIPTORS, has_descriptors
from noetic_py.checkpoints.locks import Locks, from_os, make_folder, sync_folder
from noetic_py.errors import CheckpointError, CorruptRecord, StoreUnavailable
from noetic_py.journal.stored import Lease, Queued

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
    sqlite3.SQLITE_NOTADB: ("not-a-database", "the file is not an SQLite database", "give the path of a new file"),
    sqlite3.SQLITE_NOMEM: ("memory", "memory ran out", "give the process more memory"),
    sqlite3.SQLITE_PROTOCOL: ("busy", "the file's locks are not granted", "use a local disk"),
}
# SQLite also reports these without a file descriptor.
_OPENING = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)


# SQLite's message about a damaged schema holds bytes of the file; if they are not UTF-8, the driver raises that.
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
    """Whether a failed group may be retried one by one: it was certainly not committed, and no wait failed."""
    return code_of(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def from_sqlite(error: Exception, where: str) -> CheckpointError:
    """The library's error for SQLite's."""
    code = code_of(error)
    name: str = getattr(error, "sqlite_errorname", "") or type(error).__name__
    found = _SQLITE.get(code)
    if code in _OPENING and not has_descriptors():
        found = NO_DESCRIPTORS
    if found is not None:
        reason, what, hint = found
        return StoreUnavailable(f"{where}: {what} ({name})", where=where, reason=reason, hint=hint)
    if code in _DAMAGED:
        return CorruptRecord(
            f"{where}: the database is damaged ({name})", hint="keep a copy of the file, and restore an earlier one"
        )
    return StoreUnavailable(
        f"{where}: SQLite refused ({name})", where=where, reason="sqlite", hint="look at the file and its directory"
    )


POSITION_BITS = 27
"""How many bits of a place are the position."""
LONGEST = 1 << POSITION_BITS
"""Below this is the position of every record: 134 million."""
MOST = 1 << 63 - POSITION_BITS
"""Below this is the number of every run: 69 billion."""

RUN = "SELECT id, run_id, position, fence, owner, updated, crc, created, status, card, card_crc FROM runs"
"""Reads rows of runs, with the columns in the order of `RunRow`."""

QUEUED = "SELECT q.run, q.queue, q.flow, q.at, q.priority, q.lives, q.crc, q.key, q.due FROM queued q"
"""Reads rows of queues, with the columns in the order of `QueuedRow`."""

_HEAD = struct.Struct("<qqqqq")
_SUMMARY = struct.Struct("<qqq?")
_THREE = struct.Struct("<qqq")
_QUEUED = struct.Struct("<q?qqqq")


def place(stream: int, position: int) -> int:
    """Where a transaction is: the stream that it belongs to, and the position of its last record."""
    return stream << POSITION_BITS | position


@define(eq=False)
class RunRow:
    """One row of `runs`; times are microseconds since 1970.

    Attributes:
        id: Its number, which is the number of the stream that it appends to as well.
        owner: The number of the lease that holds it, 0 for none.
    """

    id: int
    run_id: str
    position: int
    fence: int
    owner: int
    updated: int
    crc: int
    created: int
    status: str | None
    summary: bytes
    summary_crc: int


@define(eq=False)
class QueuedRow:
    """One row of `queued`; `at` is microseconds since 1970, and `run` the number of the run's row.

    Attributes:
        due: Whether `at` is known to be over and no worker has the run: the index that claims read has these alone.
    """

    run: int
    queue: str
    flow: str
    at: int | None
    priority: int
    lives: int
    crc: int
    key: str
    due: bool

    @property
    def place(self) -> Queued:
        """The run's place, as it is told."""
        at = None if self.at is None else self.at / 1_000_000
        return Queued(self.queue, self.flow, at, self.priority, self.key)


class Sums:
    """Checksums of rows. They begin at the file's salt and take a row's place in, so a row of elsewhere has another.

    Args:
        seed: The checksum of the file's salt.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def head(self, run: RunRow) -> int:
        """Return the checksum of a run's position, fence and owner."""
        numbers = _HEAD.pack(run.id, run.position, run.fence, run.owner, run.updated)
        return zlib.crc32(run.run_id.encode(), zlib.crc32(numbers, self._seed))

    def summary(self, run: RunRow) -> int:
        """Return the checksum of a run's summary and status."""
        status = b"" if run.status is None else run.status.encode()
        begun = zlib.crc32(_SUMMARY.pack(run.id, run.created, len(status), run.status is None), self._seed)
        return zlib.crc32(run.summary, zlib.crc32(status, begun))

    def transaction(self, stream: int, last: int, count: int, body: bytes) -> int:
        """Return the checksum of a packed transaction at its place."""
        return zlib.crc32(body, zlib.crc32(_THREE.pack(stream, last, count), self._seed))

    def shared(self, run: int, upto: int, stream: int) -> int:
        """Return the checksum of a part that a fork shares."""
        return zlib.crc32(_THREE.pack(run, upto, stream), self._seed)

    def pair(self, version: int, scope: bytes, key: str, value: bytes) -> int:
        """Return the checksum of the value of a key."""
        name = key.encode()
        begun = zlib.crc32(_THREE.pack(version, len(scope), len(name)), self._seed)
        return zlib.crc32(value, zlib.crc32(name, zlib.crc32(scope, begun)))

    def queued(self, row: QueuedRow) -> int:
        """Return the checksum of a run's place in a queue; whether it is due follows from the rest."""
        names = "\0".join((row.queue, row.flow, *filter(None, [row.key]))).encode()
        numbers = _QUEUED.pack(row.run, row.at is None, row.at or 0, row.priority, row.lives, len(names))
        return zlib.crc32(names, zlib.crc32(numbers, self._seed))

    def signal(self, number: int, run: int, key: str, body: bytes) -> int:
        """Return the checksum of a signal."""
        name = key.encode()
        begun = zlib.crc32(_THREE.pack(number, run, len(name)), self._seed)
        return zlib.crc32(body, zlib.crc32(name, begun))

    def budget(self, name: str, period: str, body: bytes) -> int:
        """Return the checksum of a row of a shared budget."""
        names = f"{name}\0{period}".encode()
        return zlib.crc32(body, zlib.crc32(names, zlib.crc32(_THREE.pack(len(names), len(body), 0), self._seed)))

    def ticks(self, value: int) -> int:
        """Return the checksum of the file's counter."""
        return zlib.crc32(str(value).encode(), self._seed)

    def checked_run(self, row: tuple[Any, ...], *, summary: bool) -> RunRow:
        """A row of `runs`.

        Args:
            row: Its columns. A value of a wrong type has no checksum, so the types are not looked at one by one.
            summary: Whether the summary and the status are wanted too.

        Raises:
            CorruptRecord: It is not what was written.
        """
        try:
            run = RunRow(*row)
            if run.crc == self.head(run) and (not summary or run.summary_crc == self.summary(run)):
                return run
        except (TypeError, AttributeError, struct.error):
            pass
        raise CorruptRecord(f"the row of run {row[1]!r:.80} is damaged", hint="restore a copy of the file")

    def checked_queued(self, row: tuple[Any, ...]) -> QueuedRow:
        """A row of `queued`.

        Raises:
            CorruptRecord: It is not what was written.
        """
        try:
            queued = QueuedRow(*row)
            if queued.crc == self.queued(queued):
                return queued
        except (TypeError, AttributeError, struct.error):
            pass
        raise CorruptRecord(f"the place of run number {row[0]!r:.80} in its queue is damaged", hint="restore a copy")


APPLICATION = 0x6E6F6574
VERSION = 5
_OLDEST = (3, 35, 0)

Mode: TypeAlias = Literal["wal", "exclusive", "persist"]
"""How the file is written: a write-ahead log with several connections, one with a single one, or a rollback journal."""

_JOURNAL_BYTES = 8 << 20
"""The journal's size on the disk after it was emptied, in bytes."""

_QUEUES = (
    """CREATE TABLE queued (
        run INTEGER PRIMARY KEY, queue TEXT NOT NULL, flow TEXT NOT NULL, at INTEGER, priority INTEGER NOT NULL,
        lives INTEGER NOT NULL, crc INTEGER NOT NULL, key TEXT NOT NULL, due INTEGER NOT NULL
    )""",
    "CREATE INDEX queued_by_turn ON queued (queue, flow, key, priority DESC, at, run) WHERE due = 1",
    "CREATE INDEX queued_asleep ON queued (at) WHERE due IS NOT 1 AND lives = 0",
    "CREATE INDEX queued_at_work ON queued (queue) WHERE lives > 0",
)
_SIGNALS = (
    """CREATE TABLE signals (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, key TEXT NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX signals_by_key ON signals (run, key)",
)
_BUDGETS = """CREATE TABLE budgets (
        name TEXT NOT NULL, period TEXT NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (name, period)
    ) WITHOUT ROWID"""
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
    *_QUEUES,
    *_SIGNALS,
    _BUDGETS,
)

# By the version that a file has: what makes it one of the next.
_UPGRADES = {
    1: (
        "ALTER TABLE transactions RENAME TO transactions_1",
        next(sql for sql in _TABLES if sql.startswith("CREATE TABLE transactions")),
        f"INSERT INTO transactions SELECT stream << {POSITION_BITS} | last, count, crc, body FROM transactions_1",  # noqa: S608  # nosec B608  # a number of ours
        "DROP TABLE transactions_1",
    ),
    2: (*_QUEUES, *_SIGNALS),
    3: (_BUDGETS,),
    4: (
        "ALTER TABLE queued RENAME TO queued_4",
        _QUEUES[0],
        "INSERT INTO queued SELECT run, queue, flow, at, priority, lives, crc, '', 0 FROM queued_4",
        "DROP TABLE queued_4",
        *_QUEUES[1:],
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
class OpenFile:
    """An open file: the data that stay when its connection is reopened.

    Attributes:
        settings: How it was opened.
        locks: The locks beside it.
        inode: Which file it is, once it was opened.
        unreleased: Leases that were given back, but not yet in the file.
    """

    settings: Settings
    locks: Locks
    inode: tuple[int, int] | None = None
    unreleased: set[Lease] = field(factory=set[Lease])

    @classmethod
    def find(cls, settings: Settings) -> OpenFile:
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
    """The identity of the file, `None` if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116  # before every commit, so without a path's detour
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _refuse(settings: Settings, what: str, reason: str, hint: str) -> StoreUnavailable:
    return StoreUnavailable(f"{settings.where}: {what}", where=settings.where, reason=reason, hint=hint)


def _check_file(settings: Settings) -> None:
    """Refuse everything but a file of one's own, and take rights away that others have.

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
        raise _refuse(settings, "it is not a regular file", "not-a-database", "give another path")
    if os.name != "posix":
        return
    if status.st_nlink > 1:
        raise _refuse(settings, "the file has a second name", "link", "remove the hard link, or copy the file")
    user = os.geteuid()
    if status.st_uid not in (user, 0) and user != 0:
        raise _refuse(settings, "the file belongs to another user", "permission", "give another path")
    if status.st_mode & 0o777 & ~settings.mode and status.st_uid == user:
        path.chmod(status.st_mode & settings.mode)


def _create(place: OpenFile) -> None:
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
    connection = sqlite3.connect(settings.path, timeout=settings.busy_timeout, isolation_level=None)
    # The driver gives up the whole query where one text is not UTF-8, and the rows beside it with it.
    connection.text_factory = _text
    if not settings.exclusive:
        # SQLite would move the log into the file after a commit, without the lock that keeps other writers away.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def open_checkpointer(settings: Settings) -> sqlite3.Connection:
    """A second connection, which moves the write-ahead log into the file."""
    connection = connect(settings)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    return connection


def _text(stored: bytes) -> str | bytes:
    """A stored text; bytes where it is none, which no row may hold in that place, so its checksum refuses it."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def open_database(place: OpenFile) -> tuple[sqlite3.Connection, Mode, int]:
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
    if settings.exclusive:
        # Before the first read: with it, a file that was left in WAL mode is read without shared memory.
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
    mode = _set_journal(connection, settings)
    configure(connection)
    if new:
        _make(connection)
    elif isinstance(version, int):
        for each in range(version, VERSION):
            _in_one(connection, (*_UPGRADES[each], f"PRAGMA user_version = {each + 1}"))
    return mode


def _set_journal(connection: sqlite3.Connection, settings: Settings) -> Mode:
    """Use a write-ahead log, unless another program has the file open with a rollback journal at this moment."""
    try:
        journal = _one(connection, "PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        journal = _one(connection, "PRAGMA journal_mode")
    if journal == "wal":
        return "exclusive" if settings.exclusive else "wal"
    if settings.exclusive or _one(connection, "PRAGMA journal_mode = PERSIST") != "persist":
        raise _refuse(
            settings, "its journal mode cannot be set", "sqlite", "close the other programs that have it open"
        )
    return "persist"


def configure(connection: sqlite3.Connection) -> None:
    """Set what a writing connection is set to."""
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
        f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}",
    ):
        connection.execute(pragma)


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

    A lookup that misses would let an existing run start again: so the two indexes whose misses mean something are
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
    seed, ticks, most = zlib.crc32(row[0]), row[1], row[3]
    sums = Sums(seed)
    # A counter that has gone back would give numbers a second time, and a fence without effect.
    went_back = isinstance(ticks, int) and isinstance(most, int) and most > ticks and _is_above(connection, ticks, sums)
    if not isinstance(ticks, int) or sums.ticks(ticks) != row[2] or went_back:
        raise CorruptRecord(f"{settings.where}: the database's counter is damaged", hint="restore a copy of the file")
    return seed


def _is_above(connection: sqlite3.Connection, ticks: int, sums: Sums) -> bool:
    """Whether a row has a larger number than the counter; one that is damaged itself says nothing of it."""
    for run in connection.execute(f"{RUN} WHERE id > ? OR fence > ?", (ticks, ticks)).fetchall():
        with suppress(CorruptRecord):
            sums.checked_run(run, summary=False)
            return True
    pairs = connection.execute("SELECT scope, key, version, crc, value FROM pairs WHERE version > ?", (ticks,))
    return any(
        isinstance(key, str) and isinstance(value, bytes) and crc == sums.pair(version, scope, key, value)
        for scope, key, version, crc, value in pairs.fetchall()
    )
