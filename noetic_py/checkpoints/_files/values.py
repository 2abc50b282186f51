"""Scoped values: a folder a scope, a file a key."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from noetic_py.checkpoints._files.place import Folder
from noetic_py.checkpoints._files.sealed import read_file, seal, unseal
from noetic_py.checkpoints._local.folders import sync_folder
from noetic_py.checkpoints._local.rules import RESTORE, check_version
from noetic_py.checkpoints.backend import StoredValue
from noetic_py.checkpoints.packing import pack_scope
from noetic_py.errors import CorruptRecord

__all__ = ["Values"]


def _hashed(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


class Values:
    """The values in a folder. Every method may raise `OSError`.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _scope(self, scope: bytes) -> str:
        return self._folder.at("values", _hashed(scope))

    def _changing(self, scope: bytes) -> AbstractContextManager[None]:
        return self._folder.holding(b"scope" + scope)

    def _value(self, scope: bytes, name: str) -> StoredValue | None:
        """The value in a file; its name is that of its key."""
        try:
            content = read_file(os.path.join(self._scope(scope), name))
        except FileNotFoundError:
            return None
        fields, data = unseal(content, "the value of a key", seed=self._folder.seed)
        match fields:
            case {"scope": str(found), "key": str(key), "version": int(version)} if (
                found.encode("latin-1") == scope and _hashed(pack_scope((key,))) == name
            ):
                return StoredValue(key, data, version)
            case _:
                raise CorruptRecord("the value of a key is that of another one", hint=RESTORE)

    def get(self, scope: bytes, key: str) -> StoredValue | None:
        """The value of a key."""
        return self._value(scope, _hashed(pack_scope((key,))))

    def put(self, scope: bytes, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        with self._changing(scope):
            found = self.get(scope, key)
            check_version(found, expected)
            version = self._folder.tick()
            if found is not None and version <= found.version:
                raise CorruptRecord("the store's counter has gone back", hint=RESTORE)
            place = self._scope(scope)
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
            if found is None:
                sync_folder(self._folder.at("values"))
            # The scope as bytes: where a part of it ends is a length, and not any character that it may hold.
            fields = {"scope": scope.decode("latin-1"), "key": key, "version": version}
            self._folder.replace(place, _hashed(pack_scope((key,))), seal(fields, value, seed=self._folder.seed))
            return version

    def remove(self, scope: bytes, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        with self._changing(scope):
            found = self.get(scope, key)
            check_version(found, expected)
            if found is None:
                return False
            place = self._scope(scope)
            os.unlink(os.path.join(place, _hashed(pack_scope((key,)))))
            sync_folder(place)
            with suppress(OSError):
                os.rmdir(place)
            return True

    def scan(self, scope: bytes, after: str | None, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values."""
        try:
            names = os.listdir(self._scope(scope))
        except FileNotFoundError:
            return []
        found = [value for name in names if (value := self._value(scope, name)) is not None]
        found.sort(key=lambda value: value.key)
        return [value for value in found if after is None or value.key > after][:limit]
