"""The rows of shared budgets in the SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from noetic_py.checkpoints import budgets
from noetic_py.checkpoints.sqlite.schema import Sums
from noetic_py.errors import CorruptRecord
from noetic_py.journal.stored import BudgetRow, Transaction


class BudgetRows:
    """Reads and writes them in a transaction of the file that is open.

    Args:
        connection: The connection.
        sums: The file's checksums.
    """

    def __init__(self, connection: sqlite3.Connection, sums: Sums) -> None:
        self._execute = connection.execute
        self._sums = sums

    def change(self, given: Sequence[Transaction]) -> int:
        """Do what transactions say of shared budgets; returns how many bytes were written.

        Raises:
            BudgetExceeded: One of them would pass a limit.
            CorruptRecord: A row is not what was written.
        """
        found = {place: row for place in budgets.places_of(given) for row in self._at(place)}
        written = 0
        for (name, period), row in budgets.rows_after(given, found).items():
            body = budgets.dump_row(row)
            written += len(body)
            self._execute(
                "INSERT OR REPLACE INTO budgets (name, period, crc, body) VALUES (?, ?, ?, ?)",
                (name, period, self._sums.budget(name, period, body), body),
            )
        return written

    def forget(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows that no run holds anything of.

        Raises:
            CorruptRecord: A row is not what was written.
        """
        for place in places:
            if any(not row.held for row in self._at(place)):
                self._execute("DELETE FROM budgets WHERE name = ? AND period = ?", place)

    def _at(self, place: tuple[str, str]) -> Sequence[BudgetRow]:
        """The row of a name and a period, if there is one."""
        rows = self._execute("SELECT name, period, crc, body FROM budgets WHERE name = ? AND period = ?", place)
        return [self._row(row) for row in rows.fetchall()]

    def read(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """The rows of a name, or of all, from a period on.

        Raises:
            CorruptRecord: A row is not what was written.
        """
        rows = self._execute(
            "SELECT name, period, crc, body FROM budgets WHERE (:name IS NULL OR name = :name) AND period >= :since "
            "ORDER BY name, period",
            {"name": name, "since": since},
        ).fetchall()
        return [self._row(row) for row in rows]

    def _row(self, row: tuple[object, ...]) -> BudgetRow:
        match row:
            case (str(name), str(period), int(crc), bytes(body)) if crc == self._sums.budget(name, period, body):
                return budgets.load_row(name, period, body)
            case _:
                raise CorruptRecord(f"the row of shared budget {row[0]!r:.80} is damaged", hint="restore a copy")
