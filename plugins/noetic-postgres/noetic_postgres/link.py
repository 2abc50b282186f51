"""One connection, the session of the server behind it, and how a write is found again after the connection was lost.

A statement that was sent may have been committed although its answer never came. So every connection has a random
number, every write through it a number that counts up, and the write's transaction stores that number. A caller
that loses the connection makes a new one, ends the old session by its name, so that nothing which is still under way
can be committed later, and reads the number.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg
from attrs import frozen
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

from noetic_postgres.address import Address
from noetic_postgres.checksums import Checksums
from noetic_postgres.failures import from_connecting, from_server, unknown_outcome
from noetic_postgres.schema import Found, lock_of, prepare
from noetic_postgres.statements import Statements
from noetic_py.errors import StoreUnavailable

__all__ = ["Link", "Pending", "Values"]

Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Mapping[str, Any]

_ENDING = 2_000
# The share of an operation's time that the server may wait for a lock: less than until the connection is cut, so that
# the server says why.
_LOCK = 0.4
_END = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
    " WHERE right(application_name, 16) = %s AND pid <> pg_backend_pid()"
)
# The server ends idle transactions itself, but not always that of a client that is stopped while it sends statements
# together: the session is active until their last message has come, and a message that is not a statement, such as a
# Flush, ends the time limit of an idle one without making it active.
_END_STALLED = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
    " WHERE application_name ~ ' [0-9a-f]{16}$' AND datname = current_database() AND usename = current_user"
    " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND wait_event = 'ClientRead'"
    " AND clock_timestamp() - state_change > current_setting('idle_in_transaction_session_timeout')::interval"
)


@frozen
class Pending:
    """A write that was sent and not answered.

    Attributes:
        session: The number of the connection.
        number: The write's.
        marked: Whether an earlier write through the connection has left its number.
        result: What it is worth if it was committed.
    """

    session: int
    number: int
    marked: bool
    result: Any


class Link:
    """A connection; used by one thread.

    Attributes:
        address: Where it leads.
        sums: The store's checksums.
        sql: The statements.
        pending: The write that is under way.
        session: Its number.
        ready: Runs that what was written may have made ready, and of which no worker was told yet.
        refused: Whether statements that were sent together were refused. The driver counts each as prepared when it is
            sent, and the server has not prepared those behind the refused one, so the connection is not used any more.
    """

    def __init__(
        self, address: Address, statements: Statements, met: Callable[[Found], None], *, seconds: float
    ) -> None:
        self.address = address
        self._met = met
        self.sql = statements
        self.lock = lock_of(address.schema)
        self.pending: Pending | None = None
        self.session = secrets.randbits(62) + 1
        self.ready: list[str] = []
        self._written = 0
        self._marked = False
        self.refused = False
        try:
            self.connection = psycopg.connect(
                address.connection_text(name=f"{self.session:016x}", seconds=seconds), autocommit=True
            )
        except psycopg.Error as error:
            # Its text may hold what was connected with.
            raise from_connecting(error, address.where) from None
        adapters = self.connection.adapters
        for kind, dumper in ((int, Int8BinaryDumper), (bytes, BytesBinaryDumper), (str, StrBinaryDumper)):
            adapters.register_dumper(kind, dumper)

    def prepare(self) -> None:
        """Set it up; nothing else is done before.

        Raises:
            CheckpointError: The store cannot be used, or the connection was lost.
        """
        try:
            found = prepare(self.connection, self.address.schema, self.address.where, lock=self.address.timeout * _LOCK)
        except psycopg.Error as error:
            raise from_server(error, self.address.where) from None
        self.checksums = Checksums(found.salt)
        self._met(found)

    @property
    def handle(self) -> int:
        """Its socket."""
        return self.connection.fileno()

    # -- statements

    def rows(self, query: bytes, values: Values | None = None) -> list[Row]:
        """The rows of a statement."""
        return self.connection.execute(query, values, binary=True).fetchall()

    def batch(self, statements: Sequence[tuple[bytes, Values | None]]) -> list[list[Row]]:
        """The rows of statements that are sent together."""
        cursors: list[psycopg.Cursor[Row]] = []
        failure: psycopg.Error | None = None
        try:
            with self.connection.pipeline():
                # The driver would log what it meets while it leaves the block by an error.
                try:
                    cursors += [self.connection.execute(query, values, binary=True) for query, values in statements]
                except psycopg.Error as error:
                    failure = error
        except psycopg.Error as error:
            self.refused = True
            raise (failure or error) from None
        if failure is not None:
            self.refused = True
            raise failure
        return [cursor.fetchall() if cursor.description is not None else [] for cursor in cursors]

    def run(self, query: bytes, values: Values | None = None) -> None:
        """Do what gives nothing, and what may be done twice."""
        self.connection.execute(query, values)

    def ticks(self, count: int = 1) -> list[int]:
        """Numbers that this store has never given before; later ones are larger."""
        return [row[0] for row in self.rows(self.sql["tick"], {"count": count})]

    # -- writes

    def notify(self) -> None:
        """Tell workers of other processes which of the runs that may be ready are."""
        run_ids, self.ready = self.ready, []
        self.run(self.sql["notify"], {"run_ids": run_ids})

    def write(self, query: bytes, values: Values, result: Any) -> bool:
        """Do a statement that is a transaction of its own and marks itself.

        Args:
            query: The statement.
            values: Its values.
            result: What the operation returns if the statement was committed.

        Returns:
            Whether its condition held; otherwise nothing was written.
        """
        number = self._promise(result)
        ((count,),) = self.rows(query, {**values, "session": self.session, "number": number})
        self.pending = None
        # A write that was refused leaves none.
        self._marked = self._marked or bool(count)
        return bool(count)

    def commit(self, result: Any, last: Sequence[tuple[bytes, Values]] = ()) -> None:
        """End a transaction of several statements, of which the last ones give nothing."""
        number = self._promise(result)
        mark = self.sql.mark, {"session": self.session, "number": number}
        self.batch([*last, mark, (b"COMMIT", None)])
        self.pending = None
        self._marked = True

    def _promise(self, result: Any) -> int:
        self._written += 1
        self.pending = Pending(self.session, self._written, self._marked, result)
        return self._written

    def undo(self) -> None:
        """Leave nothing open."""
        self.pending = None
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.connection.execute("ROLLBACK")

    def end_session(self, session: int, end: float) -> None:
        """Let the server end another connection of this backend, which it may not know to be lost.

        What that one has not committed is undone then, and holds no locks any more.

        Args:
            session: The other connection's number.
            end: Until when, by the monotonic clock.

        Raises:
            StoreUnavailable: It does not end; reason `"lost"`.
        """
        where = self.address.where
        while self.connection.execute(_END, [_ENDING, f"{session:016x}"]).fetchall():
            if time.monotonic() > end:
                raise StoreUnavailable(
                    f"{where}: the server does not end a lost connection", where=where, reason="lost", hint="try again"
                )

    def end_stalled(self) -> None:
        """Let the server end sessions of backends that wait in the middle of a transaction for their client to go on.

        Such a client was stopped, or is cut off; the rows that its session has locked are free then.
        """
        self.connection.execute(_END_STALLED, [_ENDING])

    def was_taken(self, pending: Pending) -> bool:
        """Whether a write through another connection, which has ended, was committed.

        Raises:
            StoreUnavailable: It cannot be found out; reason `"unknown"`.
        """
        rows = self.rows(self.sql["settled"], {"session": pending.session})
        if not rows and pending.marked:
            raise unknown_outcome(self.address.where)
        return bool(rows) and rows[0][0] == pending.number

    def forget(self) -> None:
        """Take away the number of its last write, which is not asked for any more."""
        if self._written:
            self.run(self.sql["forget_sessions"], {"session": self.session})
