"""A backend whose records go through transforms: signed on their way to another backend, checked when read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from anyio.lowlevel import checkpoint
from attrs import evolve, frozen

from noetic_py.checkpoints.checks import (
    check_apart,
    check_append,
    check_id,
    check_key,
    check_page,
    check_value,
    is_fenced,
    is_owned,
    no_end,
    no_run,
)
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.errors import PositionConflict, RunNotFound, TransformMissing, VersionConflict
from noetic_py.journal.fields import missing, plain_summary
from noetic_py.journal.signing import NOTHING, StoredEnd, TransformChain, digest_of, origins_at
from noetic_py.journal.stored import Lease, Record, RunEntry, Signal, Stats, Transaction
from noetic_py.journal.transforms import (
    Anchor,
    Finding,
    JournalEnd,
    RecordCheck,
    RecordTransform,
    VerificationReport,
    refused,
)

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend, Scope


_PAGE = 1000
_BREATH = 64
"""How many records are checked before others get a turn."""
_KEPT = 10_000
"""How many places in journals are kept in mind."""

_STORE, _IDENTITY = ("noetic", "store"), "identity"
_SIGNAL = "Signal"
"""What a signal is for a transform: no record of a journal has this kind."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@frozen(eq=False)
class _Cursor:
    """A place in a journal that was checked up to there.

    Attributes:
        position: How many records were read.
        digest: Of the last one.
        seen: The end of the run when it was last read.
    """

    position: int
    digest: bytes
    seen: StoredEnd


@frozen(eq=False)
class _Page:
    """Records that follow a place, and what is said of them.

    Attributes:
        records: As they were written; none at the end, and none from the first one on that cannot be had.
        checks: What the transforms say.
        cursor: The place behind them.
        missing: What is needed to read on, when something is.
        count: How many records were looked at.
    """

    records: Sequence[Record]
    checks: Sequence[RecordCheck]
    cursor: _Cursor
    missing: TransformMissing | None = None
    count: int = 0


class SignedBackend(DelegatingBackend):
    """Another backend, whose records go through transforms; made by a harness that has some.

    The other backend stores each record as the transforms returned it; kinds, paths, summaries and scoped values can
    still be read there. A run's summary may be about 500 bytes shorter than in the other backend.

    Args:
        inner: The backend that keeps everything.
        transforms: The transforms, in the order in which they are applied.

    Raises:
        ConfigError: A transform is not valid, or two have one name; code `"record-transforms"`.
    """

    def __init__(self, inner: CheckpointBackend, transforms: Sequence[RecordTransform]) -> None:
        super().__init__(inner)
        self._chain = TransformChain(transforms)
        self._cursors: OrderedDict[tuple[str, int], _Cursor] = OrderedDict()
        self._ends: OrderedDict[str, JournalEnd] = OrderedDict()
        # The first forged record and the first forged end that were read all the same, as transforms are not strict.
        self._forged: dict[str, dict[bool, RecordCheck]] = {}

    async def describe(self) -> Mapping[str, str]:
        """The description of the other backend, and the transforms."""
        return {**await super().describe(), "record transforms": ", ".join(self._chain.by_name)}

    # -- reading

    async def read(self, run_id: str, *, after: int = 0, limit: int = _PAGE) -> Sequence[Record]:
        """A page of records, checked; each is a [`CheckedRecord`][noetic_py.checkpoints.CheckedRecord].

        Raises:
            RunNotFound: There is no such run.
            RecordRefused: A record, or the end of the journal, is not what was written, and a strict transform says so.
            TransformMissing: The run was written through a transform that is not here.
        """
        check_id(run_id)
        check_page(after, limit)
        await self._identify()
        cursor = self._cursors.get((run_id, after))
        if cursor is not None:
            page = await self._follow(run_id, cursor, limit)
            if page.missing is None and not any(check.verdict == "forged" for check in page.checks):
                return self._accepted(run_id, page, after)
            # Another process may have created the run again meanwhile, so it is read from its beginning.
        cursor = await self._walk(run_id, after)
        if cursor is None:
            return ()
        return self._accepted(run_id, await self._follow(run_id, cursor, limit), after)

    def _accepted(self, run_id: str, page: _Page, after: int) -> Sequence[Record]:
        self._judge(run_id, page)
        self._cursors.pop((run_id, after), None)
        _keep(self._cursors, (run_id, page.cursor.position), page.cursor)
        return page.records

    def _judge(self, run_id: str, page: _Page) -> None:
        """Refuse what a strict transform does not know to be right."""
        if page.missing is not None:
            raise page.missing
        self._refuse(run_id, page.checks)
        if len(page.records) < page.count:
            raise refused(run_id, next(c for c in page.checks if c.verdict != "verified"))

    def _refuse(self, run_id: str, checks: Sequence[RecordCheck]) -> None:
        for check in checks:
            if check.verdict == "verified":
                continue
            if self._chain.by_name[check.transform].strict:
                raise refused(run_id, check)
            if check.verdict == "forged":
                self._forged.setdefault(run_id, {}).setdefault(check.kind is None, check)

    async def _begin(self, run_id: str) -> _Page:
        """The place before a journal's first record, and what is said of its end.

        Raises:
            RunNotFound: There is no such run.
        """
        self._forged.pop(run_id, None)
        entry = await self._inner.entry(run_id)
        if entry is None:
            raise no_run(run_id)
        seen, checks = self._chain.check_end(entry)
        return _Page((), checks, _Cursor(0, NOTHING, seen))

    async def _walk(self, run_id: str, to: int) -> _Cursor | None:
        """The place behind a record, all before it checked; `None` when the journal is shorter."""
        page = await self._begin(run_id)
        self._judge(run_id, page)
        while page.cursor.position < to:
            page = await self._follow(run_id, page.cursor, min(_PAGE, to - page.cursor.position))
            self._judge(run_id, page)
            if not page.count:
                return None
        return page.cursor

    async def _follow(self, run_id: str, cursor: _Cursor, limit: int) -> _Page:
        """The records after a position, up to the known end; the end is read again there."""
        checks: list[RecordCheck] = []
        if cursor.position >= cursor.seen.position:
            entry = await self._inner.entry(run_id)
            if entry is None:
                raise RunNotFound("the run was deleted", hint="it was there a moment ago")
            seen, checks = self._chain.check_end(entry)
            cursor = evolve(cursor, seen=seen)
            if seen.position <= cursor.position:
                if seen.position < cursor.position:
                    checks += self._cut(seen, f"the journal had {cursor.position} records a moment ago")
                return _Page((), [*checks, *self._chain.check_last(seen, cursor.digest)], cursor)
        seen = cursor.seen
        stored = await self._inner.read(
            run_id, after=cursor.position, limit=min(limit, seen.position - cursor.position)
        )
        if not stored:
            checks += self._cut(seen, f"the journal ends after record {cursor.position}")
        return await self._open(cursor, stored, checks)

    async def _open(self, cursor: _Cursor, stored: Sequence[Record], checks: list[RecordCheck]) -> _Page:
        records: list[Record] = []
        needed: TransformMissing | None = None
        position, digest, seen = cursor.position, cursor.digest, cursor.seen
        readable = True
        for record in stored:
            position += 1
            if not position % _BREATH:
                await checkpoint()
            found = self._chain.decode(seen, position, digest, record)
            checks += found.checks
            digest = digest_of(record)
            if found.missing is not None and needed is None:
                needed = missing(found.missing, record.path)
            readable = readable and found.record is not None
            if readable and found.record is not None:
                records.append(found.record)
        if position == seen.position:
            checks += self._chain.check_last(seen, digest)
        return _Page(records, checks, _Cursor(position, digest, seen), needed, len(stored))

    def _cut(self, seen: StoredEnd, reason: str) -> list[RecordCheck]:
        names = self._chain.by_name
        return [self._chain.about_end(name, seen.position, Finding("forged", reason)) for name in names]

    async def entry(self, run_id: str) -> RunEntry | None:
        """The list entry of one run, checked.

        Raises:
            RecordRefused: That is not what was written, and a strict transform says so.
        """
        entry = await super().entry(run_id)
        if entry is None:
            return None
        await self._identify()
        self._refuse(run_id, self._chain.check_end(entry)[1])
        return evolve(entry, summary=plain_summary(entry.summary))

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs; one that is refused says so and does not hide the others."""
        page = await super().list(after=after, limit=limit, status=status)
        await self._identify()
        return [evolve(entry, summary=plain_summary(entry.summary), problem=self._problem(entry)) for entry in page]

    def _problem(self, entry: RunEntry) -> str | None:
        """Why a run of a list would be refused: what its own end says, without a look at its records."""
        if entry.problem is not None:
            return entry.problem
        refusing = (
            check
            for check in self._chain.check_end(entry)[1]
            if check.verdict == "forged"
            or (check.verdict == "unverified" and self._chain.by_name[check.transform].strict)
        )
        return next(map(str, refusing), None)

    async def verify(self, run_id: str, anchor: Anchor | None = None) -> VerificationReport:
        """The report of the transforms on a whole run; nothing is refused.

        Raises:
            RunNotFound: There is no such run.
        """
        check_id(run_id)
        await self._identify()
        page = await self._begin(run_id)
        checks = [*page.checks]
        anchored = anchor is None
        while True:
            if anchor is not None and page.cursor.position == anchor.position:
                anchored = page.cursor.digest.hex() == anchor.digest
            left = 0 if anchor is None else anchor.position - page.cursor.position
            page = await self._follow(run_id, page.cursor, left if 0 < left < _PAGE else _PAGE)
            checks += page.checks
            if not page.count:
                break
        end = page.cursor
        if not anchored:
            reason = f"it does not hold what it held when the anchor was made, at record {anchor and anchor.position}"
            checks.append(self._chain.about_end("anchor", end.position, Finding("forged", reason)))
        ordered = sorted(dict.fromkeys(checks), key=lambda check: check.kind is None)
        return VerificationReport(run_id, ordered, Anchor(end.position, end.digest.hex()))

    async def stats(self) -> Stats:
        """How much the other backend holds, without the store's identity."""
        await self._identify()
        found = await super().stats()
        return found if self._chain.store is None else evolve(found, values=found.values - 1)

    async def scopes(self, prefix: Scope = (), *, after: Scope | None = None, limit: int = 100) -> Sequence[Scope]:
        """A page of the scopes that hold a value, without that of the store's identity."""
        check_page(None, limit)
        found: list[Scope] = []
        while len(found) < limit and (page := await super().scopes(prefix, after=after, limit=limit - len(found))):
            found += [scope for scope in page if scope != _STORE]
            after = page[-1]
        return found

    async def _identify(self, *, make: bool = False) -> None:
        """Learn the identity of the store, which goes with a copy of the whole store and not with that of one run.

        Args:
            make: Whether to give it one when it has none.
        """
        if self._chain.store is not None:
            return
        found = await self._inner.get(_STORE, _IDENTITY)
        if found is None and make:
            with suppress(VersionConflict):
                await self._inner.put(_STORE, _IDENTITY, uuid4().hex.encode(), expected=0)
            found = await self._inner.get(_STORE, _IDENTITY)
        if found is not None:
            self._chain.store = found.value.decode("ascii", "backslashreplace")

    # -- writing

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        summary: bytes | None = None,
        status: str | None = None,
    ) -> int:
        """Append one transaction, encoded by the transforms.

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CheckpointFailed: A transform failed, or it was not taken.
            RecordRefused: What is there was tampered with; also where that can be read.
        """
        await self._identify(make=True)
        given, end = await self._encoded(
            Transaction(run_id, expected_position, fence, records, summary, status), self._ends.pop(run_id, None)
        )
        position = await self._inner.append(
            run_id,
            expected_position=expected_position,
            fence=fence,
            records=given.records,
            summary=given.summary,
            status=status,
        )
        _keep(self._ends, run_id, end)
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them; the records are encoded by the transforms."""
        given = tuple(transactions)
        check_apart(given)
        await self._identify(make=True)
        sending: list[Transaction] = []
        ends: list[JournalEnd] = []
        for each in given:
            if each.acquire is not None:
                self._check_forged(each.run_id)
            # Another owner may have written since, where this one acquires it after any.
            known = self._ends.pop(each.run_id, None)
            encoded, end = await self._encoded(each, known if each.acquire is None or each.fence else None)
            sending.append(encoded)
            ends.append(end)
        done = await self._inner.commit(sending)
        for each, end in zip(given, ends, strict=True):
            _keep(self._ends, end.run_id, end)
            if each.release:
                self._released(each.run_id)
        return done

    async def _encoded(self, given: Transaction, known: JournalEnd | None) -> tuple[Transaction, JournalEnd]:
        """A transaction as it is to be stored, and where the journal ends with it."""
        check_id(given.run_id)
        check_append(given.records, given.summary, given.status)
        end = known
        if end is None or end.position != given.expected_position:
            end = await self._end(given.run_id, given.expected_position)
        if end is None:
            await self._conflict(given)
            raise PositionConflict(
                f"the journal does not end at {given.expected_position}", hint="read it again, then append"
            )
        self._check_forged(given.run_id)
        records, digest = self._chain.encode(given.run_id, end.position, end.digest, given.records)
        after = JournalEnd(
            given.run_id,
            end.position + len(records),
            digest,
            end.status if given.status is None else given.status,
            end.summary if given.summary is None else bytes(given.summary),
            end.origins,
            self._chain.store,
        )
        signals = [self._sealed(each) for each in given.signals]
        return evolve(given, records=records, summary=self._chain.sign_end(after), signals=signals), after

    def _sealed(self, signal: Signal) -> Signal:
        """A signal as it is to be stored: of use for this run, this key and this store only."""
        place = Record(_SIGNAL, (signal.key, self._chain.store or ""), signal.body)
        (made,), _ = self._chain.encode(signal.run_id, 0, NOTHING, [place])
        return evolve(signal, body=bytes(made.payload))

    async def send(self, run_id: str, key: str, body: bytes) -> int:
        """Put a signal into a run's inbox, encoded by the transforms.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: The backend has no queues; code `"queues"`.
            CheckpointFailed: A transform failed.
        """
        check_id(run_id)
        check_key(key)
        check_value(body)
        await self._identify(make=True)
        return await super().send(run_id, key, self._sealed(Signal(run_id, key, body)).body)

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Signal]:
        """A page of the signals that wait for a run, checked.

        Raises:
            RecordRefused: One is not what was sent, and a strict transform says so.
            TransformMissing: One was sent through a transform that is not here.
        """
        found = await super().inbox(run_id, after=after, limit=limit)
        if found:
            await self._identify()
        return [self._opened(each) for each in found]

    def _opened(self, signal: Signal) -> Signal:
        run_id = signal.run_id
        end = StoredEnd(0, JournalEnd(run_id, 0, NOTHING, None, b""), None)
        stored = Record(_SIGNAL, (signal.key, self._chain.store or ""), signal.body)
        read = self._chain.decode(end, 1, NOTHING, stored)
        if read.missing is not None:
            raise missing(read.missing)
        for check in read.checks:
            if check.verdict != "verified" and self._chain.by_name[check.transform].strict:
                raise refused(run_id, check)
        if read.record is None:
            raise refused(run_id, read.checks[-1])
        return evolve(signal, body=bytes(read.record.payload))

    async def _conflict(self, given: Transaction) -> None:
        """Say so when it is the owner that is wrong; backends look at that first."""
        if given.acquire is not None:
            entry = await self._inner.entry(given.run_id)
            if entry is not None and entry.held:
                raise is_owned("its lease to run out")
            return
        head = await self._inner.head(given.run_id)
        fence = 0 if head is None else head.fence
        if given.fence != fence:
            raise is_fenced(given, fence)

    async def _end(self, run_id: str, position: int) -> JournalEnd | None:
        """Where a journal ends, which is checked; `None` when that is not at this position."""
        entry = await self._inner.entry(run_id)
        if entry is None or entry.position != position:
            return JournalEnd(run_id, 0, NOTHING, None, b"") if entry is None and not position else None
        seen, checks = self._chain.check_end(entry)
        cursor = self._cursors.get((run_id, position))
        if cursor is None or any(self._chain.check_last(seen, cursor.digest)):
            cursor = await self._walk(run_id, position)
        if cursor is None:
            return None
        self._refuse(run_id, [*checks, *self._chain.check_last(seen, cursor.digest)])
        return evolve(seen.end, digest=cursor.digest)

    def _check_forged(self, run_id: str) -> None:
        """Refuse to write what would make a journal that was tampered with look right."""
        for check in self._forged.get(run_id, {}).values():
            raise refused(run_id, check)

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        new_run_id: str,
        records: Sequence[Record] = (),
        summary: bytes | None = None,
        status: str | None = None,
    ) -> None:
        """Make a run out of another one's beginning; what they share stays as it was written in the other one.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is not a transaction's end, or the new run exists.
            CheckpointFailed: A transform failed.
            RecordRefused: A record up to there is not what was written.
        """
        check_id(run_id)
        check_id(new_run_id, "new_run_id")
        check_append(records, summary, status)
        await self._identify(make=True)
        cursor = await self._walk(run_id, at)
        first = self._forged.get(run_id, {}).get(False)
        if first is not None and first.position <= at:
            raise refused(run_id, first)
        if cursor is None or at < 0:
            raise no_end(at)
        origins = origins_at(cursor.seen.end, at)
        made, digest = self._chain.encode(new_run_id, at, cursor.digest, records)
        end = JournalEnd(new_run_id, at + len(made), digest, status, bytes(summary or b""), origins, self._chain.store)
        await self._inner.fork(
            run_id, at=at, new_run_id=new_run_id, records=made, summary=self._chain.sign_end(end), status=status
        )
        _keep(self._ends, new_run_id, end)

    async def delete(self, run_id: str) -> None:
        """Forget a run."""
        await super().delete(run_id)
        self._forget(run_id)

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs."""
        count = await super().prune(before=before, keep=keep, statuses=statuses)
        self._ends.clear()
        self._cursors.clear()
        return count

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer.

        Raises:
            RunBusy: Another owner holds it.
            RecordRefused: It was read here, and had been tampered with.
        """
        self._check_forged(run_id)
        # Another owner may have written since.
        self._ends.pop(run_id, None)
        return await super().acquire(run_id, ttl=ttl)

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._released(lease.run_id)
        await super().release(lease)

    def _released(self, run_id: str) -> None:
        end = self._ends.pop(run_id, None)
        if end is not None:
            # A journal that this process wrote need not be read to be continued.
            cursor = _Cursor(end.position, end.digest, StoredEnd(end.position, end, None))
            _keep(self._cursors, (end.run_id, end.position), cursor)

    def _forget(self, run_id: str) -> None:
        self._ends.pop(run_id, None)
        self._forged.pop(run_id, None)
        for key in [key for key in self._cursors if key[0] == run_id]:
            del self._cursors[key]


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep something in mind, and forget what was kept longest ago when it is too much."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _KEPT:
        kept.popitem(last=False)
