"""Writing and reading journals: what one thread does on its connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from attrs import define

from noetic_postgres.checksums import FARTHEST, int8
from noetic_postgres.link import Link, Row, Values
from noetic_py.checkpoints.checks import no_run, refusal
from noetic_py.checkpoints.server import PackedTransaction
from noetic_py.checkpoints.turns import Turns
from noetic_py.errors import CorruptRecord, NoeticError
from noetic_py.journal.stored import Head, Lease, Record, Transaction
from noetic_py.journal.transforms import unpack

__all__ = ["RESTORE", "Found", "Journals", "Numbers", "ended", "refusal_of"]

RESTORE = "restore a copy of the database"
_COLUMNS: Final = (
    "id", "position", "fence", "new", "crc", "card", "card_crc", "status", "status_crc", "count", "size", "body_crc",
    "body", "release",
)  # fmt: skip
"""What the statement for a group takes an array of."""
_PAGE_BYTES = 32 * 1024 * 1024
_PAGE_ROWS = 1000
_KNOWN = 10_000


@define(eq=False)
class Found:
    """A run's row.

    Attributes:
        id: Its number, which is the number of the stream that it appends to as well.
    """

    id: int
    position: int
    fence: int


class Numbers:
    """The numbers of runs that this process has written, so that an append asks for none; and whose turn it is.

    Attributes:
        turns: The turns of claims.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self.turns = Turns()

    def get(self, run_id: str) -> int | None:
        """A run's number; it may be that of one that was deleted since."""
        return self._known.get(run_id)

    def put(self, run_id: str, number: int) -> None:
        """Note a run's number."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[run_id] = number

    def drop(self, run_id: str) -> None:
        """Forget a run's number."""
        self._known.pop(run_id, None)


class _Page:
    """A page of records while it is read."""

    def __init__(self, after: int, limit: int) -> None:
        self.at = after
        self.limit = limit
        self.records: list[Record] = []
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether it holds enough records, or enough bytes."""
        return len(self.records) >= self.limit or self.bytes >= _PAGE_BYTES


class Journals:
    """Writes and reads journals, on one connection in one thread.

    Args:
        link: The connection.
        numbers: The numbers of runs that the threads know.
        threshold: Payloads longer than this, in bytes, are stored once, by their content.
    """

    def __init__(self, link: Link, numbers: Numbers, threshold: int) -> None:
        self.link = link
        self.numbers = numbers
        self.threshold = threshold

    def append_one(self, given: PackedTransaction) -> Sequence[Lease] | NoeticError:
        """Append, in a statement that is a transaction of its own."""
        what = given.what
        done = [ended(what)]
        number = self.numbers.get(what.run_id)
        while True:
            if number is not None:
                if self.link.write(self._statement(given), self.values(given, number), [done]):
                    return done
                self.numbers.drop(what.run_id)
            found = self._find(what.run_id)
            refused = refusal_of(what, found)
            if refused is not None:
                return refused
            if found is not None:
                number = found.id
                self.numbers.put(what.run_id, number)
                continue
            (number,) = self.link.ticks()
            if self.link.write(self.link.sql.append_new, self.new_values(given, number), [done]):
                self.numbers.put(what.run_id, number)
                return done
            number = None

    def group(self, all_given: Sequence[tuple[PackedTransaction, int]]) -> tuple[bytes, Values]:
        """What appends to several runs, each with its number, in a transaction of the server that is left open.

        It gives the numbers of the runs that were as they should be.
        """
        each = [self.values(given, number) for given, number in all_given]
        return self.link.sql.append_group, {name: [values[name] for values in each] for name in _COLUMNS}

    def extend(self, given: PackedTransaction, number: int) -> None:
        """Append to a run that was made in the same transaction of the server, which is left open."""
        self.link.rows(*self.appending(given, number))

    def appending(self, given: PackedTransaction, number: int) -> tuple[bytes, Values]:
        """What appends in a transaction of the server that is left open."""
        query = self.link.sql.batch_append_blobs if given.packed.blobs else self.link.sql.batch_append
        return query, self.values(given, number)

    def append_again(self, given: PackedTransaction) -> Sequence[Lease] | NoeticError:
        """Why a transaction was refused in a group; or append it, if only its run's number was another one."""
        what = given.what
        while True:
            self.numbers.drop(what.run_id)
            found = self._find(what.run_id)
            refused = refusal_of(what, found)
            if refused is not None:
                return refused
            if found is None:
                (number,) = self.link.ticks()
                query, values = self.link.sql.batch_append_new, {**self.new_values(given, number), "lock": None}
            else:
                query, values = self.link.sql.batch_append_blobs, self.values(given, found.id)
            if self.link.rows(query, values)[0][0]:
                return [ended(what)]

    def _statement(self, given: PackedTransaction) -> bytes:
        if given.packed.blobs:
            return self.link.sql.append_blobs
        bare = given.what.summary is None and given.what.status is None
        return self.link.sql.append if bare else self.link.sql.append_summary

    def values(self, given: PackedTransaction, number: int) -> dict[str, Any]:
        """The values of the transaction of a run that has a number."""
        what, checksums, body = given.what, self.link.checksums, given.packed.body
        position, fence, count = int8(what.expected_position), int8(what.fence), len(what.records)
        new = min(position + count, FARTHEST)
        digests = sorted(given.packed.blobs)
        return {
            "id": number,
            "position": position,
            "fence": fence,
            "new": new,
            "crc": checksums.head(number, what.run_id, new, fence),
            "card": what.summary,
            "card_crc": None if what.summary is None else checksums.summary(number, what.summary),
            "status": what.status,
            "status_crc": None if what.status is None else checksums.status(number, what.status),
            "count": count,
            "size": given.size,
            "body": body,
            "body_crc": checksums.transaction(number, new, count, body),
            "digests": digests,
            "payloads": [given.packed.blobs[digest] for digest in digests],
            "lock": self.link.lock,
            "release": what.release,
        }

    def new_values(self, given: PackedTransaction, number: int) -> dict[str, Any]:
        """The values of the transaction that makes a run."""
        what = given.what
        summary = what.summary or b""
        return {
            **self.values(given, number),
            "run_id": what.run_id,
            "ttl": None,
            "card": summary,
            "card_crc": self.link.checksums.summary(number, summary),
            "status_crc": self.link.checksums.status(number, what.status),
            "lock": self.link.lock if given.packed.blobs else None,
        }

    def head(self, run_id: str) -> Head | None:
        """Where a journal ends."""
        run = self._find(run_id)
        return None if run is None else Head(run.position, run.fence)

    def read(self, run_id: str, after: int, limit: int) -> list[Record]:
        """A page of records, all as they were at one moment."""
        values = {"run_id": run_id}
        rows, parts = self.link.batch(
            [
                (b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None),
                (self.link.sql["find"], values),
                (self.link.sql["parts_of"], values),
            ]
        )[1:]
        if not rows:
            raise no_run(run_id)
        run = self.run_of(run_id, rows[0])
        page = _Page(after, limit)
        for stream, upto in self.parts_of(run, parts):
            while page.at < upto and not page.full:
                self._read_part(stream, upto, page)
        beyond, _ = self.link.batch(
            [(self.link.sql["beyond"], {"stream": run.id, "upto": run.position}), (b"COMMIT", None)]
        )
        if beyond:
            raise CorruptRecord("a run has records beyond its end", hint=RESTORE)
        return page.records[:limit]

    def _read_part(self, stream: int, upto: int, page: _Page) -> None:
        wanted = page.limit - len(page.records)
        rows = self.link.rows(
            self.link.sql["page"],
            {
                "stream": stream,
                "after": page.at,
                "upto": upto,
                "until": min(page.at + wanted, FARTHEST),
                "most": _PAGE_ROWS,
                "bytes": _PAGE_BYTES - page.bytes,
            },
        )
        if not rows:
            raise CorruptRecord(f"a run has lost records after position {page.at}", hint=RESTORE)
        seen: dict[bytes, bytes] = {}
        for last, count, crc, body in rows:
            first = last - count
            if (
                crc != self.link.checksums.transaction(stream, last, count, body)
                or not first <= page.at < last
                or (page.records and first != page.at)
            ):
                raise CorruptRecord(f"a run is damaged after position {page.at}", hint=RESTORE)
            found = unpack(body, count, lambda digest: self._blob(digest, seen), skip=page.at - first)
            page.records += found
            page.bytes += sum(len(record.payload) for record in found)
            page.at = last
            if page.full:
                return

    def _blob(self, digest: bytes, seen: dict[bytes, bytes]) -> bytes:
        if digest not in seen:
            rows = self.link.rows(self.link.sql["blob"], {"sha256": digest})
            if not rows:
                raise CorruptRecord("a large payload is missing", hint=RESTORE)
            seen[digest] = rows[0][0]
        return seen[digest]

    def _find(self, run_id: str) -> Found | None:
        """A run."""
        rows = self.link.rows(self.link.sql["find"], {"run_id": run_id})
        return self.run_of(run_id, rows[0]) if rows else None

    def run_of(self, run_id: str, row: Row) -> Found:
        """A run's row: its number, position, fence and checksum.

        Raises:
            CorruptRecord: It is not what was written.
        """
        number, position, fence, crc = row[:4]
        if crc != self.link.checksums.head(number, run_id, position, fence):
            raise CorruptRecord("the row of a run is damaged", hint=RESTORE)
        return Found(number, position, fence)

    def parts_of(self, run: Found, rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
        """The streams that a journal is made of, each with the position up to which it is.

        Raises:
            CorruptRecord: A row is not what was written.
        """
        for upto, stream, crc in rows:
            if crc != self.link.checksums.shared(run.id, upto, stream):
                raise CorruptRecord("what a run shares is damaged", hint=RESTORE)
            yield stream, upto
        yield run.id, run.position


def ended(what: Transaction) -> Lease:
    """The lease of a transaction that was committed: its run's owner, and where the journal ends then."""
    return Lease(what.run_id, what.fence, what.expected_position + len(what.records))


def refusal_of(what: Transaction, found: Found | None) -> NoeticError | None:
    """Why a transaction is not taken where a run is as it was found."""
    return refusal(what, 0, 0) if found is None else refusal(what, found.position, found.fence)
