"""What one thread does on its connection to Redis, as `ServedBackend` asks for it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from noetic_py.checkpoints.backend import Head, Lease, Record, RunEntry, Scope, Stats, StoredValue, Transaction
from noetic_py.checkpoints.packing import pack_scope, unpack
from noetic_py.checkpoints.served import FARTHEST, Given, PrunePage
from noetic_py.errors import (
    CorruptRecord,
    LeaseLost,
    NoeticError,
    PositionConflict,
    RunBusy,
    RunNotFound,
    VersionConflict,
)
from noetic_redis.link import Argument, Link

__all__ = ["RedisOperations"]

_RESTORE = "restore a copy of the server's data"
_PAGE_BYTES = 16 * 1024 * 1024
# What one script does, so that the server is not kept from everybody else for long.
_READ, _LISTED, _SCANNED, _PRUNED = 2000, 100, 200, 25
# Ten years.
_LONGEST = 3e8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


class RedisOperations:
    """The operations of `ServedBackend`; the contract is there."""

    # -- journals

    def append(self, link: Link, given: Sequence[Given]) -> Sequence[int | NoeticError]:
        """Append transactions: a script for each, all sent together."""
        answers = link.write_all("append", [_arguments(each) for each in given])
        return [_appended(each.what, link.words(answer)) for each, answer in zip(given, answers, strict=True)]

    def read(self, link: Link, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records, all as they were at one moment."""
        found = link.read("read", run_id, min(after, FARTHEST), min(limit, _READ), _PAGE_BYTES)
        if not found:
            raise _not_found()
        rows, apart = found
        blobs = {bytes.fromhex(digest.decode()): data for digest, data in zip(apart[::2], apart[1::2], strict=True)}
        records: list[Record] = []
        for last, count, crc, body in rows:
            if int(crc) != zlib.crc32(body):
                raise CorruptRecord(f"a run is damaged before position {int(last)}", hint=_RESTORE)
            skip = max(0, after - (int(last) - int(count)))
            records += unpack(body, int(count), blobs.__getitem__, skip=skip)
        return records[:limit]

    def head(self, link: Link, run_id: str) -> Head | None:
        """Where a journal ends."""
        found = link.read("head", run_id)
        return Head(int(found[0]), int(found[1])) if found else None

    def entry(self, link: Link, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        found = link.read("entry", run_id)
        return _entry(found[0]) if found else None

    def list_runs(self, link: Link, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        below = FARTHEST if after is None else min(after, FARTHEST)
        entries: list[RunEntry] = []
        while len(entries) < limit:
            most = min(limit - len(entries), _LISTED)
            page = [_entry(row) for row in link.read("list", below, most, _digest(status))]
            entries += page
            if len(page) < most:
                break
            below = page[-1].cursor
        if any(each.status != status for each in entries if status is not None):
            raise CorruptRecord("the index of runs by their status is damaged", hint=_RESTORE)
        return entries

    def fork(self, link: Link, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None) -> None:
        """Make a run that shares a journal's beginning."""
        shared = at if 0 <= at <= FARTHEST else -1
        kept = card or b""
        words = link.write("fork", run_id, shared, new_run_id, kept, zlib.crc32(kept), _marked(status), _digest(status))
        if words[0] == "none":
            raise _not_found()
        if words[0] == "end":
            raise PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")
        if words[0] == "exists":
            raise PositionConflict(f"run {new_run_id!r} exists already", hint="fork to a new id")

    def delete(self, link: Link, run_id: str) -> None:
        """Forget a run."""
        if link.write("delete", run_id)[0] == "busy":
            raise RunBusy("an owner holds the run", hint="wait for it to end, then delete it")

    def prune(
        self,
        link: Link,
        page: PrunePage,
        before: datetime | None,
        keep: int | None,
        statuses: Sequence[str] | None,
        limit: int,
    ) -> PrunePage:
        """Delete what is old among the next runs."""
        words = link.write(
            "prune",
            FARTHEST if page.below is None else page.below,
            min(limit, _PRUNED),
            "" if before is None else (before - _EPOCH) // _MICRO,
            "" if keep is None else min(keep, FARTHEST),
            page.kept,
            "all" if statuses is None else "some",
            *(_marked(status) for status in statuses or ()),
        )
        below, kept, deleted = (int(word) for word in words)
        return PrunePage(below or None, kept, deleted)

    def stats(self, link: Link) -> Stats:
        """How much there is; the bytes are those of records, large payloads, cards and values."""
        runs, records, values, blobs, size = (int(each) for each in link.read("stats"))
        return Stats(runs=runs, records=records, values=values, blobs=blobs, bytes=size)

    # -- leases

    def acquire(self, link: Link, run_id: str, ttl: float) -> Lease:
        """Become the owner."""
        words = link.write("acquire", run_id, _micros(ttl))
        if words[0] == "busy":
            raise RunBusy("another owner holds the run", hint="wait for it to end, or for its lease to run out")
        return Lease(run_id, int(words[1]))

    def renew(self, link: Link, lease: Lease, ttl: float) -> Lease:
        """Begin the time anew."""
        if link.read("renew", lease.run_id, lease.fence, _micros(ttl)) != [b"ok"]:
            raise LeaseLost("the lease is not held any more", hint="acquire the run again")
        return lease

    def give_back(self, link: Link, leases: Collection[Lease]) -> None:
        """End leases."""
        if leases:
            link.read("release", *(word for each in leases for word in (each.run_id, each.fence)))

    # -- scoped values

    def get(self, link: Link, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        found = link.read("get", _scope(scope), key)
        return _value(key, *found) if found else None

    def put(self, link: Link, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        words = link.write("put", _scope(scope), key, _expected(expected), zlib.crc32(value), value)
        if words[0] == "version":
            raise _conflict(words[1], expected)
        return int(words[1])

    def remove(self, link: Link, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        words = link.write("remove", _scope(scope), key, _expected(expected))
        if words[0] == "version":
            raise _conflict(words[1], expected)
        return words[0] == "ok"

    def scan(self, link: Link, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values."""
        values: list[StoredValue] = []
        while len(values) < limit:
            most = min(limit - len(values), _SCANNED)
            page = link.read("scan", _scope(scope), after, most, _PAGE_BYTES)
            values += [_value(key.decode(), *rest) for key, *rest in page]
            if len(page) < most and sum(len(row[-1]) for row in page) < _PAGE_BYTES:
                break
            after = values[-1].key
        return values


def _arguments(given: Given) -> list[Argument]:
    what, body = given.what, given.packed.body
    card = what.card or b""
    blobs = given.packed.blobs
    return [
        what.run_id,
        what.expected_position,
        what.fence,
        what.expected_position + len(what.records),
        len(what.records),
        zlib.crc32(body),
        body,
        int(what.card is not None),
        card,
        zlib.crc32(card),
        int(what.status is not None),
        _marked(what.status),
        _digest(what.status),
        *(part for digest in sorted(blobs) for part in (digest.hex(), blobs[digest])),
    ]


def _appended(what: Transaction, words: list[str] | NoeticError) -> int | NoeticError:
    if isinstance(words, NoeticError):
        return words
    if words[0] == "fence":
        return LeaseLost(f"fence {what.fence} is not {words[1]}, the latest", hint="acquire the run again")
    if words[0] == "position":
        return PositionConflict(
            f"the journal ends at {words[1]}, not at {what.expected_position}", hint="read it again, then append"
        )
    return what.expected_position + len(what.records)


def _not_found() -> RunNotFound:
    return RunNotFound("there is no such run", hint="look at the run's id, and at the backend it was written to")


def _conflict(version: str, expected: int | None) -> VersionConflict:
    return VersionConflict(f"the key has version {version}, not {expected}", hint="read it again, then write")


def _entry(row: Sequence[Any]) -> RunEntry:
    number, run_id, position, status, crc, card, created, updated, held = row
    if int(crc) != zlib.crc32(card):
        raise CorruptRecord("the card of a run is damaged", hint=_RESTORE)
    return RunEntry(
        run_id=run_id.decode(),
        position=int(position),
        status=status[1:].decode() if status else None,
        card=card,
        created=_EPOCH + int(created) * _MICRO,
        updated=_EPOCH + int(updated) * _MICRO,
        held=held == b"1",
        cursor=int(number),
    )


def _value(key: str, version: bytes, crc: bytes, value: bytes) -> StoredValue:
    if int(crc) != zlib.crc32(value):
        raise CorruptRecord("the value of a key is damaged", hint=_RESTORE)
    return StoredValue(key, value, int(version))


def _marked(status: str | None) -> bytes:
    """A status, told from none."""
    return b"" if status is None else b"s" + status.encode()


def _digest(status: str | None) -> str:
    """What stands for a status in the name of a key."""
    return "" if status is None else hashlib.sha256(status.encode()).hexdigest()


def _scope(scope: Scope) -> str:
    """What stands for a scope in the names of keys."""
    return hashlib.sha256(pack_scope(scope)).hexdigest()


def _expected(version: int | None) -> Argument:
    return "" if version is None else version


def _micros(seconds: float) -> int:
    return max(1, int(min(seconds, _LONGEST) * 1_000_000))
