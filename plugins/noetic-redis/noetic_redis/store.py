"""The store of one connection to Redis."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from noetic_py.checkpoints.adapter import FARTHEST, LARGEST, PrunePage
from noetic_py.checkpoints.budgets import load_row, refused
from noetic_py.checkpoints.checks import (
    is_changed,
    is_elsewhere,
    is_fenced,
    is_held,
    is_owned,
    is_taken,
    no_end,
    no_run,
    not_held,
)
from noetic_py.checkpoints.contract import Scope
from noetic_py.checkpoints.server import PackedTransaction
from noetic_py.checkpoints.turns import MOST_KEYS, ClaimRequest
from noetic_py.errors import CorruptRecord, NoeticError
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
from noetic_py.journal.transforms import pack_scope, scopes_behind, unpack
from noetic_redis.link import Argument, Link

__all__ = ["RedisStore"]

_RESTORE = "restore a copy of the server's data"
_PAGE_BYTES = 16 * 1024 * 1024
# The work of one script, limited so that the server can serve other clients.
_READ, _LISTED, _SCANNED, _PRUNED, _CLAIMED = 2000, 100, 200, 25, 200
# How many words a claim has.
_WORDS = 10
# Ten years.
_LONGEST = 3e8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


class RedisStore:
    """All that `ServerBackend` asks a store for; the contract is there.

    Args:
        link: The connection.
        threshold: Payloads longer than this, in bytes, are stored once, by their content.
    """

    def __init__(self, link: Link, threshold: int) -> None:
        self._link = link
        self._threshold = threshold

    # -- journals

    def commit_many(self, given: Sequence[Sequence[Transaction]]) -> Sequence[Sequence[Lease] | NoeticError]:
        """Do commits: a script for each, all sent together."""
        answers = self._link.write_all("commit", [self._row(each) for each in given])
        return [_committed(each, self._link.words(answer)) for each, answer in zip(given, answers, strict=True)]

    def _row(self, given: Sequence[Transaction]) -> list[Argument]:
        """The arguments of the script for one commit."""
        row: list[Argument] = []
        for each in given:
            arguments = _arguments(PackedTransaction.of(each, self._threshold))
            ttl = "" if each.acquire is None else _micros(each.acquire)
            queued, signals = _queued(each.queued), [word for signal in each.signals for word in _sent(signal)]
            budgets = [word for change in each.budgets for word in _change(change)]
            sizes = len(queued), len(signals), len(budgets), len(arguments)
            row += [ttl, int(each.release), int(each.ended), each.read, *sizes]
            row += [*queued, *signals, *budgets, *arguments]
        return row

    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records, all as they were at one moment."""
        found = self._link.read("read", run_id, after, min(limit, _READ), _PAGE_BYTES)
        if not found:
            raise no_run(run_id)
        rows, apart = found
        blobs = {bytes.fromhex(digest.decode()): data for digest, data in zip(apart[::2], apart[1::2], strict=True)}
        records: list[Record] = []
        for last, count, crc, body in rows:
            if int(crc) != zlib.crc32(body):
                raise CorruptRecord(f"a run is damaged before position {int(last)}", hint=_RESTORE)
            skip = max(0, after - (int(last) - int(count)))
            records += unpack(body, int(count), blobs.__getitem__, skip=skip)
        return records[:limit]

    def head(self, run_id: str) -> Head | None:
        """Where a journal ends."""
        found = self._link.read("head", run_id)
        return Head(int(found[0]), int(found[1])) if found else None

    def entry(self, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        found = self._link.read("entry", run_id)
        return _entry(found[0]) if found else None

    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        entries: list[RunEntry] = []
        # Below 0 are only places of a damaged index, which stood on the page before.
        while len(entries) < limit and after != 0:
            most = min(limit - len(entries), _LISTED)
            below = "" if after is None else after
            page = [_listed(row) for row in self._link.read("list", below, most, _digest(status))]
            entries += page
            if len(page) < most:
                break
            after = page[-1].cursor
        return entries

    def fork(self, run_id: str, given: Transaction, now: datetime) -> None:
        """Make a run that shares a journal's beginning, up to where a transaction is appended to it."""
        at = given.expected_position
        shared = at if 0 <= at <= FARTHEST else -1
        kept = given.summary or b""
        card = kept, zlib.crc32(kept), _marked(given.status), _digest(given.status)
        transaction = _transaction(PackedTransaction.of(given, self._threshold))
        words = self._link.write("fork", run_id, shared, given.run_id, *card, *transaction)
        if words[0] == "none":
            raise no_run(run_id)
        if words[0] == "end":
            raise no_end(at)
        if words[0] == "exists":
            raise is_taken(given.run_id)

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        if self._link.write("delete", run_id)[0] == "busy":
            raise is_held()

    def prune(
        self,
        page: PrunePage,
        before: datetime | None,
        keep: int | None,
        statuses: Sequence[str] | None,
    ) -> PrunePage:
        """Delete what is old among the next runs."""
        words = self._link.write(
            "prune",
            FARTHEST if page.below is None else page.below,
            _PRUNED,
            "" if before is None else (before - _EPOCH) // _MICRO,
            "" if keep is None else min(keep, FARTHEST),
            page.kept,
            "all" if statuses is None else "some",
            *(_marked(status) for status in statuses or ()),
        )
        below, kept, deleted = (int(word) for word in words)
        return PrunePage(below or None, kept, deleted)

    def stats(self) -> Stats:
        """How much there is; the bytes are those of records, large payloads, summaries and values."""
        runs, records, values, blobs, size = (int(each) for each in self._link.read("stats"))
        return Stats(runs=runs, records=records, values=values, blobs=blobs, bytes=size)

    def scrub(self) -> Sequence[str]:
        """Delete nothing more: the files are the server's, and the data of other programs are in them too."""
        return (
            "Redis: deleted data stay in the append-only file until BGREWRITEAOF, and in the snapshot until BGSAVE",
            "Redis: replicas, and copies of these files",
        )

    # -- leases

    def acquire(self, run_id: str, ttl: float, now: datetime) -> Lease:
        """Become the owner."""
        words = self._link.write("acquire", run_id, _micros(ttl))
        if words[0] == "busy":
            raise is_owned("its lease to run out")
        return Lease(run_id, int(words[1]), int(words[2]))

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Renew the lease."""
        if self._link.read("renew", lease.run_id, lease.fence, _micros(ttl)) != [b"ok"]:
            raise not_held()
        return lease

    def release(self, leases: Collection[Lease]) -> None:
        """End leases."""
        if leases:
            self._link.read("release", *(word for each in leases for word in (each.run_id, each.fence)))

    # -- queues and inboxes

    def clock(self) -> float:
        """The server's clock."""
        return _seconds(self._link.read("clock"))

    def claim(self, wanted: ClaimRequest, now: datetime) -> Sequence[Claim]:
        """Become the owner of queued runs."""
        limits = [wanted.limits.get(queue, QueueLimits()) for queue in wanted.queues]
        counts = ["" if each is None else each for one in limits for each in (one.concurrency, one.per_key)]
        most = min(wanted.limit, _CLAIMED)
        given = (MOST_KEYS, len(wanted.queues), *wanted.queues, *counts, *wanted.flows)
        words = self._link.write("claim", _micros(wanted.ttl), most, *given)
        return [_claim(words[at : at + _WORDS], _seconds(words[1])) for at in range(2, len(words), _WORDS)]

    def queues(self, now: datetime) -> Sequence[QueueStats]:
        """How full each queue is."""
        found = [_queue_stats(*row) for row in self._link.read("queues")]
        return sorted(found, key=lambda stats: (stats.queue, stats.flow))

    def send(self, run_id: str, key: str, body: bytes, now: datetime) -> int:
        """Put a signal into a run's inbox, and let the run be claimed."""
        words = self._link.write("send", *_sent(Signal(run_id, key, body)))
        if words[0] == "none":
            raise no_run(run_id)
        return int(words[1])

    def inbox(self, run_id: str, after: int, limit: int) -> Sequence[Signal]:
        """A page of a run's signals."""
        signals: list[Signal] = []
        while len(signals) < limit:
            most = min(limit - len(signals), _SCANNED)
            page = self._link.read("inbox", run_id, after, most, _PAGE_BYTES)
            signals += [_signal(run_id, *row) for row in page]
            if len(page) < most and sum(len(row[-1]) for row in page) < _PAGE_BYTES:
                break
            after = signals[-1].number
        return signals

    # -- shared budgets

    def budgets(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        rows = self._link.read("budgets", name or "", since)
        found = [load_row(own.decode(), period.decode(), body) for own, period, body in rows]
        return [row for row in found if row.period >= since]

    def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        self._link.read("forget_budgets", *(f"{name}\n{period}" for name, period in places))

    # -- scoped values

    def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        found = self._link.read("get", _scope(scope), key)
        return _value(key, *found) if found else None

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        packed = pack_scope(scope)
        words = self._link.write("put", _digested(packed), key, _expected(expected), zlib.crc32(value), value, packed)
        if words[0] == "version":
            raise is_changed(words[1], expected)
        return int(words[1])

    def remove(self, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        packed = pack_scope(scope)
        words = self._link.write("remove", _digested(packed), key, _expected(expected), packed)
        if words[0] == "version":
            raise is_changed(words[1], expected)
        return words[0] == "ok"

    def scan(self, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values."""
        values: list[StoredValue] = []
        while len(values) < limit:
            most = min(limit - len(values), _SCANNED)
            page = self._link.read("scan", _scope(scope), after, most, _PAGE_BYTES)
            values += [_value(key.decode(), *rest) for key, *rest in page]
            if len(page) < most and sum(len(row[-1]) for row in page) < _PAGE_BYTES:
                break
            after = values[-1].key
        return values

    def scopes(self, prefix: bytes, after: bytes, limit: int) -> Sequence[bytes]:
        """A page of the scopes that hold a value; those that begin with a prefix follow each other."""
        scopes: list[bytes] = []
        while len(scopes) < limit:
            most = min(limit - len(scopes), _SCANNED)
            found = self._link.read("scopes", prefix, after, most)
            scopes += scopes_behind(found, prefix, after, most)
            if len(found) < most or not found[-1].startswith(prefix):
                break
            after = found[-1]
        return scopes


def _arguments(given: PackedTransaction) -> list[Argument]:
    what = given.what
    summary = what.summary or b""
    new, count, crc, body, *blobs = _transaction(given)
    return [
        what.run_id,
        what.expected_position,
        what.fence,
        new,
        count,
        crc,
        body,
        int(what.summary is not None),
        summary,
        zlib.crc32(summary),
        int(what.status is not None),
        _marked(what.status),
        _digest(what.status),
        *blobs,
    ]


def _transaction(given: PackedTransaction) -> list[Argument]:
    """The position behind a transaction, its count, the checksum of its body, its body, and its large payloads."""
    what, body, blobs = given.what, given.packed.body, given.packed.blobs
    large = (part for digest in sorted(blobs) for part in (digest.hex(), blobs[digest]))
    return [what.expected_position + len(what.records), len(what.records), zlib.crc32(body), body, *large]


def _committed(given: Sequence[Transaction], words: list[str] | NoeticError) -> Sequence[Lease] | NoeticError:
    if isinstance(words, NoeticError):
        return words
    if words[0] == "busy":
        return is_owned("its lease to run out")
    if words[0] == "budget":
        at, number, limit, used, reserved, asked = map(int, words[1:])
        change = given[at].budgets[number]
        return refused(change, [*change.limits][limit], used=used, reserved=reserved, asked=asked)
    if words[0] != "ok":
        return _refused(given[int(words[1])], words[0], words[2])
    return [
        Lease(each.run_id, int(fence), each.expected_position + len(each.records))
        for each, fence in zip(given, words[1:], strict=True)
    ]


def _refused(what: Transaction, why: str, found: str) -> NoeticError:
    return is_fenced(what, found) if why == "fence" else is_elsewhere(what, found)


def _queued(queued: Queued | None) -> list[Argument]:
    if queued is None:
        return []
    return ["" if queued.at is None else _moment(queued.at), queued.priority, queued.queue, queued.flow, queued.key]


def _sent(signal: Signal) -> list[Argument]:
    return [signal.run_id, signal.key, zlib.crc32(signal.body), signal.body]


def _change(change: BudgetChange) -> list[Argument]:
    held = None if change.held is None else {name: str(amount) for name, amount in change.held.items() if amount}
    return [
        f"{change.name}\n{change.period}",
        json.dumps({name: str(amount) for name, amount in change.spent.items() if amount}),
        "" if held is None else json.dumps(held),
        json.dumps([word for name, limit in change.limits.items() for word in (name, str(limit))]),
    ]


def _claim(words: Sequence[str], now: float) -> Claim:
    fence, position, lives, at, priority, signals, *names = words
    run_id, queue, flow, key = (bytes.fromhex(name).decode() for name in names)
    queued = Queued(queue, flow, _seconds(at), int(priority), key[1:])
    return Claim(Lease(run_id, int(fence), int(position)), queued, int(lives), now, signals != "0")


def _queue_stats(queue: bytes, flow: bytes, ready: bytes, owned: bytes, waiting: bytes, since: bytes) -> QueueStats:
    first = _seconds(since) if since else None
    return QueueStats(queue.decode(), flow.decode(), int(ready), int(owned), int(waiting), first)


def _signal(run_id: str, key: bytes, number: bytes, crc: bytes, body: bytes) -> Signal:
    if int(crc) != zlib.crc32(body):
        raise CorruptRecord(f"a signal of run {run_id!r} is damaged", hint=_RESTORE)
    return Signal(run_id, key.decode(), body, int(number))


def _entry(row: Sequence[Any]) -> RunEntry:
    number, run_id, position, status, crc, summary, created, updated, held = row
    if int(crc) != zlib.crc32(summary):
        raise CorruptRecord("the summary of a run is damaged", hint=_RESTORE)
    return RunEntry(
        run_id=run_id.decode(),
        position=int(position),
        status=status[1:].decode() if status else None,
        summary=summary,
        created=_EPOCH + int(created) * _MICRO,
        updated=_EPOCH + int(updated) * _MICRO,
        held=held == b"1",
        cursor=int(number),
    )


def _listed(row: Sequence[Any]) -> RunEntry:
    if len(row) == 2:
        run_id = row[1].decode(errors="replace") or None
        place = int(min(max(float(row[0]), 0), LARGEST))
        return RunEntry.damaged(run_id, place, "what is stored of the run is not what was written")
    try:
        return _entry(row)
    except CorruptRecord as error:
        return RunEntry.damaged(row[1].decode(), int(row[0]), error.message)


def _value(key: str, version: bytes, crc: bytes, value: bytes) -> StoredValue:
    if int(crc) != zlib.crc32(value):
        raise CorruptRecord("the value of a key is damaged", hint=_RESTORE)
    return StoredValue(key, value, int(version))


def _marked(status: str | None) -> bytes:
    """A status, distinguished from none."""
    return b"" if status is None else b"s" + status.encode()


def _digest(status: str | None) -> str:
    """The form of a status in the name of a key."""
    return "" if status is None else hashlib.sha256(status.encode()).hexdigest()


def _scope(scope: Scope) -> str:
    """The form of a scope in the names of keys."""
    return _digested(pack_scope(scope))


def _digested(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


def _expected(version: int | None) -> Argument:
    return "" if version is None else version


def _micros(seconds: float) -> int:
    return max(1, int(min(seconds, _LONGEST) * 1_000_000))


def _moment(seconds: float) -> int:
    """The first microsecond that is not before a time, so that its owner finds it past."""
    micros = round(seconds * 1_000_000)
    return micros if _seconds(micros) >= seconds else micros + 1


def _seconds(micros: int | str | bytes) -> float:
    return int(micros) / 1_000_000
