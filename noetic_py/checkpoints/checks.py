"""Checks of all backends: ids, scopes, sizes, pages, and whether a store can be shared."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.journal.stored import Record, StoredValue, Transaction

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(when: datetime) -> int:
    """A time as it is stored."""
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(stored: int) -> datetime:
    """A stored time."""
    try:
        return _EPOCH + timedelta(microseconds=stored)
    except OverflowError:
        raise errors.CorruptRecord("a stored time is not valid") from None


_PAGE_BYTES = 32 * 1024 * 1024


class Page:
    """A page of records while it is read."""

    def __init__(self, after: int, limit: int) -> None:
        self.at = after
        self.limit = limit
        self.records: list[Record] = []
        self._bytes = 0

    def add(self, records: list[Record], last: int) -> None:
        """Take in the records of a transaction, the last of them at position `last`."""
        self.records += records
        self._bytes += sum(len(record.payload) for record in records)
        self.at = last

    @property
    def full(self) -> bool:
        """Whether it holds enough records, or enough bytes."""
        return len(self.records) >= self.limit or self._bytes >= _PAGE_BYTES


RESTORE = "restore a copy of it"
"""The hint for damaged data."""


def refusal(given: Transaction, position: int, fence: int) -> errors.NoeticError | None:
    """Why a transaction is not taken where a journal ends here and has this owner; `None` when it is."""
    if given.fence != fence and (given.acquire is None or given.fence):
        return is_fenced(given, fence)
    if given.expected_position != position:
        return is_elsewhere(given, position)
    return None


def check_turn(given: Transaction, position: int, fence: int) -> None:
    """Refuse a transaction whose turn it is not.

    Raises:
        LeaseLost: The fence is not the latest owner's.
        PositionConflict: The journal does not end where it should.
    """
    error = refusal(given, position, fence)
    if error is not None:
        raise error


def check_version(found: StoredValue | None, expected: int | None) -> None:
    """Refuse to write over another version.

    Raises:
        VersionConflict: Another one is there.
    """
    version = 0 if found is None else found.version
    if expected is not None and expected != version:
        raise is_changed(version, expected)


def is_fenced(given: Transaction, fence: object) -> errors.LeaseLost:
    """The error for a transaction of an owner that is not the latest one."""
    return errors.LeaseLost(f"fence {given.fence} is not {fence}, the latest", hint="acquire the run again")


def is_elsewhere(given: Transaction, position: object) -> errors.PositionConflict:
    """The error for a transaction that does not begin where the journal ends."""
    return errors.PositionConflict(
        f"the journal ends at {position}, not at {given.expected_position}", hint="read it again, then append"
    )


def is_changed(version: object, expected: int | None) -> errors.VersionConflict:
    """The error for a key that has another version than expected."""
    return errors.VersionConflict(f"the key has version {version}, not {expected}", hint="read it again, then write")


def no_end(at: int) -> errors.PositionConflict:
    """The error for a fork in the middle of a transaction."""
    return errors.PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")


def is_taken(run_id: str) -> errors.PositionConflict:
    """The error for a fork to a run that is there."""
    return errors.PositionConflict(f"run {run_id!r} exists already", hint="fork to a new id")


def is_owned(end: str) -> errors.RunBusy:
    """The error for a run that cannot be acquired; `end` is what to wait for beside the run's own end."""
    return errors.RunBusy("another owner holds the run", hint=f"wait for it to end, or for {end}")


def is_held() -> errors.RunBusy:
    """The error for a run that cannot be deleted."""
    return errors.RunBusy("an owner holds the run", hint="wait for it to end, then delete it")


def not_held() -> errors.LeaseLost:
    """The error for a lease that is over."""
    return errors.LeaseLost("the lease is not held any more", hint="acquire the run again")


class Pruning:
    """Decides which runs go, the newest first.

    Args:
        kept: How many were left on the pages before.
        before: Only runs that were last written before this moment.
        keep: Leave so many of the newest.
        statuses: Only runs with one of these.
    """

    def __init__(self, kept: int, before: datetime | None, keep: int | None, statuses: Sequence[str] | None) -> None:
        self.kept = kept
        self._before = None if before is None else micros(before)
        self._keep = keep
        self._statuses = statuses

    def takes(self, status: str | None, updated: int) -> bool:
        """Whether the next run goes, unless it is held."""
        if self._statuses is not None and status not in self._statuses:
            return False
        if self._keep is not None and self.kept < self._keep:
            self.kept += 1
            return False
        return self._before is None or updated < self._before


MAX_ID = 256
"""The longest run id, in characters."""
MAX_KEY = 1024
"""The longest key, and the longest part of a scope, in characters."""
MAX_SCOPE = 16
"""The most parts of a scope."""
MAX_STATUS = 64
"""The longest status, in characters."""
MAX_SUMMARY = 64 * 1024
"""The largest summary of a run, in bytes."""
MAX_BYTES = 64 * 1024 * 1024
"""The largest transaction, its payloads together, and the largest value of a key, in bytes."""


_LATEST = 253_402_300_800.0
"""The year 10000, in seconds since 1970: the end of what `datetime` knows."""
_MAX_AMOUNT = 2**53
_MAX_PRIORITY = 1_000_000
_ELSEWHERE = "keep large values in files, and store their names"


def no_run(run_id: str) -> errors.RunNotFound:
    """The error for a run that is not there."""
    return errors.RunNotFound(
        f"there is no run {run_id!r}",
        hint="harness.runs.list() shows the runs of this store; correct the id, or the store's address",
    )


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        return False
    # Printable is decided fast, in C; the loop is for the rare id that holds a mark of direction or an odd space.
    return value.isprintable() or not any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in value)


def check_id(value: object, name: str = "run_id", *, longest: int = MAX_ID) -> None:
    """Refuse a text that is not an id. What is an id is kept as it is: nothing is normalised, folded or stripped.

    Raises:
        InvalidId: It is not text, empty, too long, or holds control characters or a lone surrogate.
    """
    if not _is_text(value, longest):
        raise errors.InvalidId(
            f"{name} is not a text of 1 to {longest} characters without control characters",
            hint="use a UUID, or a short name",
        )


def check_key(value: object) -> None:
    """Refuse an invalid key.

    Raises:
        InvalidId: As of `check_id`.
    """
    check_id(value, "key", longest=MAX_KEY)


def check_scope(scope: Sequence[str]) -> None:
    """Refuse an invalid scope: a tuple of 1 to 16 ids.

    Raises:
        InvalidId: As of `check_id`, or it is not such a tuple.
    """
    if not isinstance(scope, tuple) or not 0 < len(scope) <= MAX_SCOPE:
        raise errors.InvalidId(
            f"scope is not a tuple of 1 to {MAX_SCOPE} texts", hint='("user", user_id, "layer", layer_id)'
        )
    for part in scope:
        check_id(part, "scope", longest=MAX_KEY)


def check_append(
    records: Sequence[Record],
    summary: bytes | None,
    status: str | None,
    *,
    largest: int = MAX_BYTES,
    payloads: bool = True,
) -> int:
    """Refuse a transaction that is too large, or whose records cannot be stored.

    Args:
        records: The transaction's.
        summary: Its summary.
        status: Its status.
        largest: How large it may be, in bytes.
        payloads: Whether the backend stores payloads only, so that a record needs one.

    Returns:
        How large its records are, in bytes.

    Raises:
        LimitExceeded: It is too large.
        InvalidId: The status, a kind or a frame of a path is not text that can be stored.
        CodecError: A record is a reference and has no payload.
    """
    size = 0
    for index, record in enumerate(records):
        # The rules of `check_id` and `_is_text`, inlined: a call for each frame would cost more than the rest.
        kind = record.kind
        if kind.__class__ is not str or not 0 < len(kind) <= MAX_ID or not kind.isprintable():
            check_id(kind, "kind")
        for frame in record.path:
            if frame.__class__ is not str or not 0 < len(frame) <= MAX_KEY or not frame.isprintable():
                check_id(frame, "path", longest=MAX_KEY)
            size += len(frame)
        if payloads and record.value is not None and not record.payload:
            raise errors.CodecError("a record without its payload cannot be stored", where=f"records[{index}]")
        size += len(record.payload)
    check_size(size, largest)
    if summary is not None and len(summary) > MAX_SUMMARY:
        raise errors.LimitExceeded("summary size", MAX_SUMMARY, hint="store large values in a record")
    if status is not None:
        check_id(status, "status", longest=MAX_STATUS)
    return size


def check_size(size: int, largest: int) -> None:
    """Refuse a write of too many bytes.

    Raises:
        LimitExceeded: It has more than `largest`.
    """
    if size > largest:
        raise errors.LimitExceeded("stored transaction size", largest, hint=_ELSEWHERE)


def check_settings(*, blob_threshold: int, max_bytes: int, limit: int, code: str, busy_timeout: float = 0.0) -> None:
    """Refuse invalid settings of a backend.

    Args:
        blob_threshold: From which size on payloads are stored apart.
        max_bytes: The largest transaction, in bytes.
        limit: The largest valid `max_bytes`.
        code: Of the error.
        busy_timeout: How many seconds to wait for another process.

    Raises:
        ConfigError: One is wrong.
    """
    if busy_timeout < 0 or blob_threshold < 0 or not 0 < max_bytes <= limit:
        raise errors.ConfigError(
            f"busy_timeout={busy_timeout!r}, blob_threshold={blob_threshold!r}, max_bytes={max_bytes!r} are not valid "
            f"settings of a backend; expected numbers from 0 on, and max_bytes up to {limit >> 20} MiB",
            code=code,
            hint="leave them out",
        )


def check_value(value: bytes, *, largest: int = MAX_BYTES) -> None:
    """Refuse a value that is too large.

    Raises:
        LimitExceeded: It is.
    """
    if len(value) > largest:
        raise errors.LimitExceeded("stored value size", largest, hint=_ELSEWHERE)


def check_page(after: int | None, limit: int) -> None:
    """Refuse an invalid page.

    Raises:
        ConfigError: `after` is negative, or `limit` is below 1; code `"page"`.
    """
    if limit < 1 or (after is not None and after < 0):
        raise errors.ConfigError(
            f"after={after}, limit={limit} is not a valid page; expected after= from 0 and limit= from 1",
            code="page",
            hint="after=0, limit=100",
        )


def check_ttl(ttl: float) -> None:
    """Refuse a lease of no time.

    Raises:
        ConfigError: It is not a positive number of seconds; code `"ttl"`.
    """
    if not 0 < ttl < float("inf"):
        raise errors.ConfigError(f"ttl={ttl!r} is not a positive number of seconds", code="ttl", hint="ttl=30.0")


def check_queued(given: Transaction, largest: int) -> int:
    """Refuse an invalid queue, time or signal.

    Returns:
        How many bytes its signals have.

    Raises:
        InvalidId: A name or a key is not text that can be stored.
        ConfigError: A time or a priority is not valid, or a run that has ended is queued; code `"queued"`.
        LimitExceeded: A signal is too large.
    """
    queued = given.queued
    if queued is not None:
        check_id(queued.queue, "queue")
        check_id(queued.flow, "flow", longest=MAX_KEY)
        if queued.key:
            check_key(queued.key)
        late = queued.at is not None and not 0 <= queued.at < _LATEST
        if late or not -_MAX_PRIORITY <= queued.priority <= _MAX_PRIORITY or given.ended:
            raise errors.ConfigError(
                f"at={queued.at!r}, priority={queued.priority!r}, ended={given.ended} is not a valid place in a queue; "
                f"expected seconds since 1970, a priority of up to {_MAX_PRIORITY}, and a run that goes on",
                code="queued",
                hint="at=0 is now",
            )
    for each in given.signals:
        check_id(each.run_id)
        check_key(each.key)
        check_value(each.body, largest=largest)
    return sum(len(each.body) for each in given.signals)


def no_queues(where: str) -> errors.ConfigError:
    """The error of a backend without queues."""
    return errors.ConfigError(
        f"{where} has no queues", code="queues", hint="use SQLite, PostgreSQL or Redis for runs that workers carry out"
    )


def check_budgets(given: Transaction) -> int:
    """Refuse an invalid change of a shared budget.

    Returns:
        About how many bytes its changes have.

    Raises:
        InvalidId: A name is not text that can be stored.
        ConfigError: An amount is not a whole number from 0 to 2**53; code `"budgets"`.
    """
    size = 0
    for change in given.budgets:
        check_id(change.name, "budget")
        check_id(change.period, "period")
        for amounts in (change.spent, change.held or {}, change.limits):
            for name, amount in amounts.items():
                check_id(name, "dimension", longest=MAX_KEY)
                if type(amount) is not int or not 0 <= amount <= _MAX_AMOUNT:
                    raise errors.ConfigError(
                        f"{name}={amount!r} is not a valid amount of a shared budget; expected a whole number from 0 "
                        "to 2**53",
                        code="budgets",
                        hint="money is counted in billionths of a USD",
                    )
                size += len(name) + 20
    return size


def no_budgets(where: str) -> errors.ConfigError:
    """The error of a backend without shared budgets."""
    return errors.ConfigError(
        f"{where} has no shared budgets", code="budgets", hint="use SQLite, PostgreSQL or Redis to share a budget"
    )


def check_apart(transactions: Sequence[Transaction]) -> None:
    """Refuse two transactions of one run in one commit.

    Raises:
        ConfigError: There are two; code `"commit"`.
    """
    seen: set[str] = set()
    for each in transactions:
        if each.run_id in seen:
            raise errors.ConfigError(
                f"two transactions of run {each.run_id!r} are not a valid commit; expected one for each run",
                code="commit",
                hint="put their records into one transaction",
            )
        seen.add(each.run_id)


def check_prune(before: datetime | None, keep: int | None) -> None:
    """Refuse to delete everything by leaving both limits out.

    Raises:
        ConfigError: Neither was given, `keep` is negative, or `before` has no time zone; code `"prune"`.
    """
    if before is None and keep is None:
        raise errors.ConfigError("prune needs before= or keep=", code="prune", hint="keep=0 deletes all")
    if keep is not None and keep < 0:
        raise errors.ConfigError(
            f"keep={keep} is not a valid keep; expected a number from 0", code="prune", hint="keep=100"
        )
    if before is not None and before.tzinfo is None:
        raise errors.ConfigError(
            "before= has no time zone", code="prune", hint="datetime.now(UTC) - timedelta(days=30)"
        )


class Distributed(Protocol):
    """A tool source, a service, a model or a memory layer that works across machines: a remote disk, a pool of workers.

    A harness that is given one needs a backend whose `shared` is true. Otherwise a run that goes on elsewhere would
    find what the part has done there, and nothing of what the run had recorded.
    """

    @property
    def distributed(self) -> bool:
        """Whether it works across machines; only `True` counts."""
        ...


def check_shared(backend: CheckpointBackend | None, parts: Iterable[tuple[str, object]]) -> None:
    """Refuse parts that work across machines where other machines do not see the backend.

    Args:
        backend: The backend of a harness; `None` for one that keeps its runs in its own memory.
        parts: What the harness is made of, with names for people.

    Raises:
        ConfigError: One is; code `"not-shared"`.
    """
    if backend is not None and backend.shared:
        return
    for name, part in parts:
        if getattr(part, "distributed", False) is True:
            store = "there is no backend" if backend is None else f"{type(backend).__name__} is on this machine only"
            raise errors.ConfigError(
                f"{name} works across machines, and {store}",
                code="not-shared",
                hint='checkpoints="postgres://..." or another backend that all of them see',
            )


NO_DESCRIPTORS_ERRNO = frozenset({errno.EMFILE, errno.ENFILE})
"""The error codes for a process or machine without free file descriptors."""
NO_DESCRIPTORS = (
    "descriptors",
    "no file descriptor is left, so nothing can be opened",
    "raise the limit (ulimit -n, LimitNOFILE=) or close what is not needed, then resume the run",
)
"""The reason of the error, what happened, and what to do."""


_NEEDED = 8


def has_descriptors() -> bool:
    """Whether a few more files can be opened: a database is a file, a journal beside it and their directory."""
    opened: list[int] = []
    try:
        while len(opened) < _NEEDED:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in NO_DESCRIPTORS_ERRNO
    finally:
        for each in opened:
            os.close(each)
    return True


def check_descriptors(where: str, cause: Exception) -> None:
    """Say that descriptors have run out where something could not be opened, and that is why.

    Args:
        where: What was to be opened.
        cause: What was reported.

    Raises:
        StoreUnavailable: There is none left; reason `"descriptors"`.
    """
    if not has_descriptors():
        reason, what, hint = NO_DESCRIPTORS
        raise errors.StoreUnavailable(f"{where}: {what}", where=where, reason=reason, hint=hint) from cause
