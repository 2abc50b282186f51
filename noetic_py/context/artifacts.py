"""Artifacts: named bytes that outlive what made them, with versions, kept for a session, a user or a run.

A run finds its store as `ctx.services[ArtifactStore]`:

    harness = Harness(checkpoints="sqlite:runs.db", services={ArtifactStore: StoredArtifacts()})
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from attrs import astuple, evolve, frozen

from noetic_py.checkpoints.checks import MAX_BYTES, check_id, check_key
from noetic_py.context.step import awaited
from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import CodecError, ConfigError, LimitExceeded, VersionConflict

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.context.read import AnyReadContext

ArtifactScope: TypeAlias = Literal["session", "user", "run"]
"""The owner of an artifact: the session, the user, or one run."""

_ROOM = "artifacts"


@frozen
class ArtifactOwner:
    """The owner of artifacts. Both parts are data: owners that differ in any character are different.

    Attributes:
        scope: What it is.
        id: The thread's id, which for a session is `key.stream`; the user's; or the run's.
    """

    scope: ArtifactScope
    id: str

    @classmethod
    def of(cls, ctx: AnyReadContext, scope: ArtifactScope = "session") -> ArtifactOwner:
        """The owner that a scope means in a run.

        Raises:
            ConfigError: The scope is unknown, or the user's, and the run has none; code `"artifact-scope"`.
        """
        if scope not in ("session", "user", "run"):
            raise ConfigError(f"scope={scope!r} is unknown", code="artifact-scope", hint='"session", "user" or "run"')
        ids = {"session": ctx.thread_id, "user": ctx.user_id, "run": ctx.run_id}
        found = ids[scope]
        if not found:
            # A shared place for anonymous users would show each the artifacts of the others.
            raise ConfigError(
                "an artifact is to be the user's, and the run has no user_id",
                code="artifact-scope",
                hint='harness.run(..., user_id="ada"), or scope="session"',
            )
        return cls(scope, found)


@frozen
class Artifact:
    """One version of an artifact.

    Attributes:
        name: Its name.
        version: Which version, from 1.
        data: The bytes.
        media_type: What they are, such as `"text/markdown"`.
    """

    name: str
    version: int
    data: bytes
    media_type: str


class ArtifactStore(Protocol):
    """Keeps artifacts. Names and owners are data, and never parts of a path."""

    async def save(
        self,
        owner: ArtifactOwner,
        name: str,
        data: bytes,
        /,
        *,
        media_type: str = "application/octet-stream",
        key: str | None = None,
    ) -> int:
        """Save a new version, and return its number.

        Args:
            owner: Whose it is.
            name: Its name.
            data: The bytes.
            media_type: What they are.
            key: Saving again with the same key takes the place of what was saved with it, and is not a new version: for
                what may be done twice because its process has died.
        """
        ...

    async def load(self, owner: ArtifactOwner, name: str, /, *, version: int | None = None) -> Artifact | None:
        """A version, the newest one when left out; `None` when there is none."""
        ...

    async def list(self, owner: ArtifactOwner, /) -> Sequence[str]:
        """The names that an owner has, in the order of code points."""
        ...

    async def versions(self, owner: ArtifactOwner, name: str, /) -> Sequence[int]:
        """The versions that there are, the oldest first; none for a name that is not there."""
        ...

    async def delete(self, owner: ArtifactOwner, name: str, /, *, version: int | None = None) -> bool:
        """Forget a version, or all of them when left out; returns whether there was anything."""
        ...


@frozen
class _Version:
    """A version: its number, its media type, and the key of its bytes."""

    number: int
    media_type: str
    place: str


@frozen
class _Index:
    """The versions of one name, and the number of the next one."""

    next: int = 1
    versions: tuple[_Version, ...] = ()

    def find(self, version: int | None) -> _Version | None:
        """A version, or the newest."""
        if version is None:
            return self.versions[-1] if self.versions else None
        return next((each for each in self.versions if each.number == version), None)

    def with_place(self, place: str, media_type: str, limit: int) -> tuple[_Index, int]:
        """The index with a version whose bytes are at a place, and its number."""
        for at, each in enumerate(self.versions):
            if each.place == place:
                again = evolve(each, media_type=media_type)
                return evolve(self, versions=(*self.versions[:at], again, *self.versions[at + 1 :])), each.number
        if len(self.versions) >= limit:
            raise LimitExceeded(
                "versions of an artifact", limit, hint="delete(..., version=1), or StoredArtifacts(max_versions=...)"
            )
        made = _Version(self.next, media_type, place)
        return _Index(self.next + 1, (*self.versions, made)), self.next


@awaited("artifacts")
@frozen
class StoredArtifacts:
    """Artifacts as values of a checkpoint backend: that of the harness that has it as a service, or one of its own.

    The bytes of a version are written first, then the index that names them, and never two versions under one number,
    however many write at once.

    Attributes:
        backend: Where they are kept; the harness's own when left out.
        max_bytes: Bytes of a version; at most 64 MiB.
        max_versions: Versions of a name.

    Raises:
        ConfigError: A limit is out of range; code `"artifacts"`.
    """

    backend: CheckpointBackend | None = None
    max_bytes: int = 16 * 1024 * 1024
    max_versions: int = 1000

    def __attrs_post_init__(self) -> None:
        """Refuse invalid limits."""
        if not 0 < self.max_bytes <= MAX_BYTES or self.max_versions < 1:
            raise ConfigError(
                f"max_bytes={self.max_bytes!r}, max_versions={self.max_versions!r} are out of range",
                code="artifacts",
                hint=f"1 to {MAX_BYTES} bytes, 1 version or more",
            )

    async def save(
        self,
        owner: ArtifactOwner,
        name: str,
        data: bytes,
        /,
        *,
        media_type: str = "application/octet-stream",
        key: str | None = None,
    ) -> int:
        """Save a new version, and return its number; see [`ArtifactStore`][noetic_py.context.artifacts.ArtifactStore].

        Raises:
            InvalidId: The name, the owner or the media type is not text that can be kept.
            ConfigError: The data are not bytes; code `"artifact"`.
            LimitExceeded: They are too many, or there are too many versions.
        """
        backend, scope = self._home(), artifacts_of(owner)
        data = self._checked(name, data, media_type)
        place = SYSTEM.new_id() if key is None else sha256(key.encode(errors="surrogatepass")).hexdigest()
        written = False
        while True:
            index, stood = await self._read(backend, scope, name)
            try:
                changed, number = index.with_place(place, media_type, self.max_versions)
            except LimitExceeded:
                if written:
                    await backend.remove((*scope, name), place)
                raise
            if not written:
                await backend.put((*scope, name), place, data)
                written = True
            if await self._replace(backend, scope, name, changed, stood):
                return number

    async def load(self, owner: ArtifactOwner, name: str, /, *, version: int | None = None) -> Artifact | None:
        """A version, the newest one when left out; `None` when there is none.

        Raises:
            CodecError: The stored value is not an index of versions.
        """
        backend, scope = self._home(), artifacts_of(owner)
        found = (await self._read(backend, scope, name))[0].find(version)
        stored = None if found is None else await backend.get((*scope, name), found.place)
        if found is None or stored is None:
            return None
        return Artifact(name, found.number, stored.value, found.media_type)

    async def list(self, owner: ArtifactOwner, /) -> Sequence[str]:
        """The names that an owner has, in the order of code points."""
        backend, scope = self._home(), artifacts_of(owner)
        names: list[str] = []
        while page := await backend.scan(scope, after=names[-1] if names else None):
            names += [each.key for each in page]
        return names

    async def versions(self, owner: ArtifactOwner, name: str, /) -> Sequence[int]:
        """The versions that there are, the oldest first.

        Raises:
            CodecError: The stored value is not an index of versions.
        """
        index, _ = await self._read(self._home(), artifacts_of(owner), name)
        return [each.number for each in index.versions]

    async def delete(self, owner: ArtifactOwner, name: str, /, *, version: int | None = None) -> bool:
        """Forget a version, or all of them when left out; returns whether there was anything.

        The numbers of versions that were forgotten are not used again while there are others of the name.

        Raises:
            CodecError: The stored value is not an index of versions.
        """
        backend, scope = self._home(), artifacts_of(owner)
        while True:
            index, stood = await self._read(backend, scope, name)
            gone = [each for each in index.versions if version is None or each.number == version]
            kept = tuple(each for each in index.versions if each not in gone)
            if not gone:
                return False
            if await self._replace(backend, scope, name, evolve(index, versions=kept), stood):
                break
        for each in gone:
            await backend.remove((*scope, name), each.place)
        return True

    # -- what is stored

    def _home(self) -> CheckpointBackend:
        if self.backend is None:
            raise ConfigError(
                "these artifacts have no backend",
                code="no-backend",
                hint="ctx.services[ArtifactStore] has the harness's; outside of a run, StoredArtifacts(backend)",
            )
        return self.backend

    def _checked(self, name: str, data: bytes, media_type: str) -> bytes:
        check_key(name)
        check_id(media_type, "media_type")
        given: object = data
        if not isinstance(given, (bytes, bytearray, memoryview)):
            raise ConfigError(
                f"the data of artifact {name!r:.60} are {type(data).__name__}, not bytes",
                code="artifact",
                hint="text.encode()",
            )
        whole = bytes(data)
        if len(whole) > self.max_bytes:
            raise LimitExceeded("bytes of an artifact", self.max_bytes, hint="StoredArtifacts(max_bytes=...)")
        return whole

    async def _read(self, backend: CheckpointBackend, scope: tuple[str, ...], name: str) -> tuple[_Index, int]:
        """The versions of a name, and the version of what says so, 0 when nothing does."""
        stored = await backend.get(scope, name)
        if stored is None:
            return _Index(), 0
        try:
            following, versions = json.loads(stored.value)
            return _Index(int(following), tuple([_Version(*each) for each in versions])), stored.version
        except (ValueError, TypeError) as error:
            raise CodecError(f"is not a valid index of versions: {error}", where=f"artifact {name}") from error

    async def _replace(
        self, backend: CheckpointBackend, scope: tuple[str, ...], name: str, index: _Index, stood: int
    ) -> bool:
        """Put an index in the place of the one that was read; says whether it was still unchanged."""
        try:
            if index.versions:
                parts = [astuple(each) for each in index.versions]
                await backend.put(scope, name, json.dumps([index.next, parts]).encode(), expected=stood)
            else:
                await backend.remove(scope, name, expected=stood)
        except VersionConflict:
            return False
        return True


def artifacts_of(owner: ArtifactOwner) -> tuple[str, ...]:
    """Where the artifacts of an owner are, each name with its versions below it."""
    # A tuple in columns of its own: whatever an id contains, no two of these meet.
    return (_ROOM, owner.scope, owner.id)
