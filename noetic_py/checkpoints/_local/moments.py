"""Stored times: microseconds since 1970, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from noetic_py.errors import CorruptRecord

__all__ = ["micros", "moment"]

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
        raise CorruptRecord("a stored time is none") from None
