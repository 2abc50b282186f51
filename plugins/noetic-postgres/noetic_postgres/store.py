"""The store of one connection to PostgreSQL: values of scoped keys here, the rest in base classes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from noetic_postgres.checksums import Name, int8
from noetic_postgres.journals import RESTORE
from noetic_postgres.link import Row
from noetic_postgres.runs import Runs
from noetic_py.checkpoints.contract import Scope
from noetic_py.errors import CorruptRecord, VersionConflict
from noetic_py.journal.stored import StoredValue
from noetic_py.journal.transforms import scopes_behind

__all__ = ["PostgresStore"]


class PostgresStore(Runs):
    """All that `ServerBackend` asks a store for; the contract is there."""

    def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        name = Name(scope, key)
        rows = self.link.rows(self.link.sql["get"], {"name": name.whole})
        return self._checked(name, name.key, rows[0]) if rows else None

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        name = Name(scope, key)
        # Drawn, and not counted, so that nothing has to be asked for first; the same one does not come twice.
        version = secrets.randbits(62) + 1
        values = {
            "name": name.whole,
            "scope_sha": name.scope,
            "scope": name.packed,
            "key": name.key,
            "version": version,
            "crc": self.link.checksums.pair(version, name.packed, name.key, value),
            "value": value,
            "expected": None if expected is None else int8(expected),
        }
        sql = self.link.sql
        query = sql.put_any if expected is None else sql.put_again if expected else sql.put_new
        if not self.link.write(query, values, version):
            raise self._conflict(name, expected)
        return version

    def remove(self, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        name = Name(scope, key)
        values = {"name": name.whole, "expected": None if expected is None else int8(expected)}
        if self.link.write(self.link.sql.remove, values, True):
            return True
        if expected is not None and expected != self._version(name):
            raise self._conflict(name, expected)
        return False

    def scan(self, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        name = Name(scope, after)
        values = {"scope_sha": name.scope, "after": after, "limit": limit}
        return [self._checked(name, key, tuple(row)) for key, *row in self.link.rows(self.link.sql["scan"], values)]

    def scopes(self, prefix: bytes, after: bytes, limit: int) -> Sequence[bytes]:
        """A page of the scopes that hold a value; those that begin with a prefix follow each other."""
        values = {"prefix": prefix, "after": after, "limit": limit}
        found = [scope for (scope,) in self.link.rows(self.link.sql["scopes"], values)]
        return scopes_behind(found, prefix, after, limit)

    def _checked(self, name: Name, key: str, row: Row) -> StoredValue:
        version, crc, value = row
        if crc != self.link.checksums.pair(version, name.packed, key, value):
            raise CorruptRecord("the value of a key is damaged", hint=RESTORE)
        return StoredValue(key, value, version)

    def _version(self, name: Name) -> int:
        """The version of a key's value, 0 when it has none."""
        rows = self.link.rows(self.link.sql["version"], {"name": name.whole})
        return rows[0][0] if rows else 0

    def _conflict(self, name: Name, expected: int | None) -> VersionConflict:
        return VersionConflict(
            f"the key has version {self._version(name)}, not {expected}", hint="read it again, then write"
        )
