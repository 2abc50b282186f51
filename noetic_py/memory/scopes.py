"""Scopes of memory: owners, slots, and the part of the store that a layer can reach."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from attrs import frozen

from noetic_py.errors import CodecError, ConfigError

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend

T = TypeVar("T")


class Scope(Enum):
    """Which runs share a layer's state.

    Attributes:
        THREAD: One conversation: all runs with the same `thread_id`.
        USER: One person: all runs with the same `user_id`.
        GLOBAL: All users.
        EXECUTION: One execution: the state ends with it.
    """

    THREAD = "thread"
    USER = "user"
    GLOBAL = "global"
    EXECUTION = "execution"


class Slot(IntEnum):
    """Where a layer stands among the others of its band; any number between these will do too.

    Attributes:
        SYSTEM: What is near to the instructions: rules, identity.
        ENTITY: What is known: facts, notes, plans.
        HISTORY: What happened: episodes, recalled passages.
    """

    SYSTEM = 100
    ENTITY = 200
    HISTORY = 300


@frozen
class Owner:
    """The owner of memory. Its parts are data, and stay apart: a store keeps each in a column of its own.

    Attributes:
        scope: Which runs share it.
        id: The thread, the user or the execution; empty for what is global.
        layer: The id of the layer.
    """

    scope: Scope
    id: str
    layer: str


def owner_of(scope: Scope, *, layer: str, thread_id: str, user_id: str | None) -> str:
    """The owner that a scope means in a run; empty for global state.

    Raises:
        ConfigError: The scope is a person's, and the run has no `user_id`; code `"layer-scope"`.
    """
    if scope is Scope.THREAD:
        return thread_id
    if scope is not Scope.USER:
        return ""
    if not user_id:
        # A shared place for anonymous users would show each what the others said.
        raise ConfigError(
            f"layer {layer!r} keeps its state for a user, and the run has no user_id",
            code="layer-scope",
            hint='harness.run(..., user_id="ada"), or give the layer scope=Scope.THREAD',
        )
    return user_id


_PREFIX: Final = "memory"


def place_of(namespace: str, *, layer: str, scope: Scope, owner: str, run_id: str = "") -> tuple[str, ...]:
    """Where a store keeps what is a layer's: its state, or the values beside it, for one owner.

    Args:
        namespace: `"state"` or `"data"`.
        layer: The layer's id.
        scope: The scope.
        owner: Which of these; empty for what is global.
        run_id: Of an execution, the run that it is in: by that all that is kept for a run is found.
    """
    whose = (run_id, owner) if run_id and run_id != owner else (owner,) if owner else ()
    return (_PREFIX, namespace, scope.value, *whose, layer)


def places_of(scope: Scope, owner: str) -> Sequence[tuple[str, ...]]:
    """What the places of all layers begin with, for one owner; nothing else begins so.

    Raises:
        ValueError: The owner is empty, as that of global state is, which belongs to no one owner.
    """
    if not owner:
        raise ValueError("the owner is empty")
    return [(_PREFIX, namespace, scope.value, owner) for namespace in ("state", "data")]


class ValueCodec(Protocol):
    """What turns values into bytes and back."""

    max_bytes: int
    """How long a stored value may be."""

    def dumps(self, value: Any) -> bytes:
        """The bytes of a value."""
        ...

    def loads(self, data: bytes | str, type: Any = object, /) -> Any:
        """The value of bytes, as an instance of `type`."""
        ...


class LayerStorage:
    """The values that a layer keeps beside its state, for its own scope; no key can reach those of another.

    They are not part of the journal. A write takes effect at once, for all runs that share the scope, and nothing
    undoes it: a step that fails or is tried again, a process that dies, and a fork find what was written. So write in a
    way that may be repeated, and keep in `state` what has to agree with the conversation.

    What is stored goes through the library's codec: plain data, attrs and pydantic values, dates, bytes.

    Args:
        backend: Where it is kept.
        codec: How a value is stored.
        layer: The layer's id.
        scope: The scope of the values.
        owner: Which of these; empty for what is global.
        namespace: `"data"`, or `"state"` for what the library itself keeps of the layer.
        run_id: The run of an execution.

    Attributes:
        owner: The owner of these values.
    """

    __slots__ = ("_backend", "_codec", "_scope", "owner")

    def __init__(
        self,
        backend: CheckpointBackend,
        codec: ValueCodec,
        *,
        layer: str,
        scope: Scope,
        owner: str,
        namespace: str = "data",
        run_id: str = "",
    ) -> None:
        self._backend = backend
        self._codec = codec
        self.owner: Owner = Owner(scope, owner, layer)
        # A tuple in columns of its own: whatever an id contains, no two of these meet.
        self._scope: tuple[str, ...] = place_of(namespace, layer=layer, scope=scope, owner=owner, run_id=run_id)

    @overload
    async def get(self, key: str, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, type: object = ...) -> Any: ...
    async def get(self, key: str, type: object = object) -> Any:
        """The value of a key as a type, `None` when it has none.

        Raises:
            CodecError: The stored value is not such a value.
            StoreUnavailable: The store does not answer.
        """
        return (await self.get_versioned(key, type))[0]

    @overload
    async def get_versioned(self, key: str, type: type[T]) -> tuple[T | None, int]: ...
    @overload
    async def get_versioned(self, key: str, type: object = ...) -> tuple[Any, int]: ...
    async def get_versioned(self, key: str, type: object = object) -> tuple[Any, int]:
        """The value of a key, and its version, which is 0 where there is none; for `put(..., expected=...)`.

        Raises:
            CodecError: The stored value is not such a value.
        """
        found = await self._backend.get(self._scope, key)
        return (None, 0) if found is None else (self._read(key, found.value, type), found.version)

    async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
        """Give a key a value, and return its version.

        Args:
            key: The key.
            value: What the codec can store.
            expected: The version that has to be there, 0 for none; `None` writes whatever is there.

        Raises:
            CodecError: It cannot be stored.
            VersionConflict: Another version is there.
        """
        return await self._backend.put(self._scope, key, self._codec.dumps(value), expected=expected)

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away; returns whether there was one.

        Raises:
            VersionConflict: Another version than `expected` is there.
        """
        return await self._backend.remove(self._scope, key, expected=expected)

    @overload
    async def scan(self, type: type[T], *, after: str | None = ..., limit: int = ...) -> Sequence[tuple[str, T]]: ...
    @overload
    async def scan(
        self, type: object = ..., *, after: str | None = ..., limit: int = ...
    ) -> Sequence[tuple[str, Any]]: ...
    async def scan(
        self, type: object = object, *, after: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Any]]:
        """A page of keys and their values, by key in the order of code points.

        Args:
            type: What the values are.
            after: The last key of the page before.
            limit: How many at most.

        Raises:
            CodecError: The stored value is not such a value.
        """
        page = await self._backend.scan(self._scope, after=after, limit=limit)
        return [(each.key, self._read(each.key, each.value, type)) for each in page]

    async def keys(self) -> Sequence[str]:
        """All keys, in the order of code points."""
        found: list[str] = []
        while page := await self._backend.scan(self._scope, after=found[-1] if found else None):
            found += [each.key for each in page]
        return found

    async def get_stored(self, key: str) -> Any:
        """The value of a key as it is stored: JSON, in which `"$"` marks classes; `None` when it has none.

        Raises:
            CodecError: The stored value is not JSON.
        """
        from noetic_py.core.codec.structure import parse

        found = await self._backend.get(self._scope, key)
        return None if found is None else parse(found.value, self._codec.max_bytes, "value size")

    def _read(self, key: str, data: bytes, type: object) -> object:
        try:
            return self._codec.loads(data, type)
        except CodecError as error:
            # With the codec comes what it is made with, which a program that stores nothing does not need.
            from noetic_py.core.codec.structure import inside

            raise inside(error, f"{self._scope[-1]}: {key}") from None


async def forget(backend: CheckpointBackend, *, layer: str, scope: Scope, owner: str) -> None:
    """Remove all that a layer keeps for an owner: its state, and the values beside it."""
    for namespace in ("state", "data"):
        place = place_of(namespace, layer=layer, scope=scope, owner=owner)
        while page := await backend.scan(place):
            for value in page:
                await backend.remove(place, value.key)
