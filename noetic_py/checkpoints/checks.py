"""What every backend refuses, in one place: ids, scopes, sizes and pages that are none.

A backend calls these before it does anything, so that all of them refuse the same things with the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from noetic_py.checkpoints.backend import Record
from noetic_py.errors import CodecError, ConfigError, InvalidId, LimitExceeded

__all__ = [
    "MAX_BYTES",
    "MAX_CARD",
    "MAX_ID",
    "MAX_KEY",
    "MAX_SCOPE",
    "MAX_STATUS",
    "check_append",
    "check_id",
    "check_key",
    "check_page",
    "check_prune",
    "check_scope",
    "check_ttl",
    "check_value",
]

MAX_ID = 256
"""The longest run id, in characters."""
MAX_KEY = 1024
"""The longest key, and the longest part of a scope, in characters."""
MAX_SCOPE = 16
"""The most parts of a scope."""
MAX_STATUS = 64
"""The longest status, in characters."""
MAX_CARD = 64 * 1024
"""The largest card, in bytes."""
MAX_BYTES = 64 * 1024 * 1024
"""The largest transaction, its payloads together, and the largest value of a key, in bytes."""


_ELSEWHERE = "keep large values in files, and store their names"


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        return False
    # Printable is decided fast, in C; the loop is for the rare id that holds a mark of direction or an odd space.
    return value.isprintable() or not any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in value)


def check_id(value: object, name: str = "run_id", *, longest: int = MAX_ID) -> None:
    """Refuse a text that is no id. What is an id is kept as it is: nothing is normalised, folded or stripped.

    Raises:
        InvalidId: It is no text, empty, too long, or holds control characters or a lone surrogate.
    """
    if not _is_text(value, longest):
        raise InvalidId(
            f"{name} is not a text of 1 to {longest} characters without control characters",
            hint="use a UUID, or a short name",
        )


def check_key(value: object) -> None:
    """Refuse what is no key.

    Raises:
        InvalidId: As of `check_id`.
    """
    check_id(value, "key", longest=MAX_KEY)


def check_scope(scope: Sequence[str]) -> None:
    """Refuse what is no scope: a tuple of 1 to 16 ids.

    Raises:
        InvalidId: As of `check_id`, or it is no such tuple.
    """
    if not isinstance(scope, tuple) or not 0 < len(scope) <= MAX_SCOPE:
        raise InvalidId(f"scope is not a tuple of 1 to {MAX_SCOPE} texts", hint='("user", user_id, "layer", layer_id)')
    for part in scope:
        check_id(part, "scope", longest=MAX_KEY)


def check_append(
    records: Sequence[Record],
    card: bytes | None,
    status: str | None,
    *,
    largest: int = MAX_BYTES,
    payloads: bool = True,
) -> None:
    """Refuse a transaction that is too large, or whose records cannot be stored.

    Args:
        records: The transaction's.
        card: Its card.
        status: Its status.
        largest: How large it may be, in bytes.
        payloads: Whether the backend stores payloads only, so that a record needs one.

    Raises:
        LimitExceeded: It is too large.
        InvalidId: The status, a kind or a frame of a path is no text that can be stored.
        CodecError: A record is a reference and has no payload.
    """
    size = 0
    for index, record in enumerate(records):
        # As `check_id` and `_is_text` say; a call for each frame of each record would cost more than all the rest.
        kind = record.kind
        if kind.__class__ is not str or not 0 < len(kind) <= MAX_ID or not kind.isprintable():
            check_id(kind, "kind")
        for frame in record.path:
            if frame.__class__ is not str or not 0 < len(frame) <= MAX_KEY or not frame.isprintable():
                check_id(frame, "path", longest=MAX_KEY)
            size += len(frame)
        if payloads and record.value is not None and not record.payload:
            raise CodecError("a record without its payload cannot be stored", where=f"records[{index}]")
        size += len(record.payload)
    if size > largest:
        raise LimitExceeded("stored transaction size", largest, hint=_ELSEWHERE)
    if card is not None and len(card) > MAX_CARD:
        raise LimitExceeded("card size", MAX_CARD, hint="a card is a summary; what is large belongs into a record")
    if status is not None:
        check_id(status, "status", longest=MAX_STATUS)


def check_value(value: bytes, *, largest: int = MAX_BYTES) -> None:
    """Refuse a value that is too large.

    Raises:
        LimitExceeded: It is.
    """
    if len(value) > largest:
        raise LimitExceeded("stored value size", largest, hint=_ELSEWHERE)


def check_page(after: int | None, limit: int) -> None:
    """Refuse a page that is none.

    Raises:
        ConfigError: `after` is negative, or `limit` is below 1; code `"page"`.
    """
    if limit < 1 or (after is not None and after < 0):
        raise ConfigError(f"after={after}, limit={limit} is no page", code="page", hint="after=0, limit=100")


def check_ttl(ttl: float) -> None:
    """Refuse a lease of no time.

    Raises:
        ConfigError: It is not a positive number of seconds; code `"ttl"`.
    """
    if not 0 < ttl < float("inf"):
        raise ConfigError(f"ttl={ttl!r} is not a positive number of seconds", code="ttl", hint="ttl=30.0")


def check_prune(before: datetime | None, keep: int | None) -> None:
    """Refuse to delete everything by leaving both limits out.

    Raises:
        ConfigError: Neither was given, `keep` is negative, or `before` has no time zone; code `"prune"`.
    """
    if before is None and keep is None:
        raise ConfigError("prune needs before= or keep=", code="prune", hint="keep=0 deletes all")
    if keep is not None and keep < 0:
        raise ConfigError(f"keep={keep} is no count", code="prune", hint="keep=100")
    if before is not None and before.tzinfo is None:
        raise ConfigError("before= has no time zone", code="prune", hint="datetime.now(UTC) - timedelta(days=30)")
