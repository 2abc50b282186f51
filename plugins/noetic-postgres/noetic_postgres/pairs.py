"""Values of scoped keys: what one thread does on its connection."""

from __future__ import annotations

import secrets

from noetic_postgres.journals import RESTORE
from noetic_postgres.link import Link, Row
from noetic_postgres.sums import Name, int8
from noetic_py.checkpoints.backend import StoredValue
from noetic_py.errors import CorruptRecord, VersionConflict

__all__ = ["get", "put", "remove", "scan"]


def _checked(link: Link, name: Name, key: str, row: Row) -> StoredValue:
    version, crc, value = row
    if crc != link.sums.pair(version, name.packed, key, value):
        raise CorruptRecord("the value of a key is damaged", hint=RESTORE)
    return StoredValue(key, value, version)


def get(link: Link, name: Name) -> StoredValue | None:
    """The value of a key."""
    rows = link.rows(link.sql["get"], {"name": name.whole})
    return _checked(link, name, name.key, rows[0]) if rows else None


def scan(link: Link, name: Name, limit: int) -> list[StoredValue]:
    """A page of a scope's values, behind a key."""
    values = {"scope_sha": name.scope, "after": name.key, "limit": limit}
    return [_checked(link, name, key, tuple(row)) for key, *row in link.rows(link.sql["scan"], values)]


def put(link: Link, name: Name, value: bytes, expected: int | None) -> int:
    """Give a key a value."""
    # Drawn, and not counted, so that nothing has to be asked for first; the same one does not come twice.
    version = secrets.randbits(62) + 1
    values = {
        "name": name.whole,
        "scope_sha": name.scope,
        "scope": name.packed,
        "key": name.key,
        "version": version,
        "crc": link.sums.pair(version, name.packed, name.key, value),
        "value": value,
        "expected": None if expected is None else int8(expected),
    }
    query = link.sql.put_any if expected is None else link.sql.put_again if expected else link.sql.put_new
    if not link.write(query, values, version):
        raise _conflict(link, name, expected)
    return version


def remove(link: Link, name: Name, expected: int | None) -> bool:
    """Take a key's value away."""
    values = {"name": name.whole, "expected": None if expected is None else int8(expected)}
    if link.write(link.sql.remove, values, True):
        return True
    if expected is not None and expected != _version(link, name):
        raise _conflict(link, name, expected)
    return False


def _version(link: Link, name: Name) -> int:
    """The version of a key's value, 0 when it has none."""
    rows = link.rows(link.sql["version"], {"name": name.whole})
    return rows[0][0] if rows else 0


def _conflict(link: Link, name: Name, expected: int | None) -> VersionConflict:
    return VersionConflict(
        f"the key has version {_version(link, name)}, not {expected}", hint="read it again, then write"
    )
