"""What is done for the layers of one execution: their part of the store, what is mirrored there, their own steps."""

from __future__ import annotations

import json
from hashlib import sha256
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import anyio
from attrs import frozen

from noetic_py._engine.execute import execute
from noetic_py._engine.frame import Frame
from noetic_py._engine.hooks import tell_failed
from noetic_py._engine.layers import NO_LAYERS, AnyLayer
from noetic_py._engine.merge import joined
from noetic_py._engine.state import DOORS
from noetic_py._engine.types import types_in
from noetic_py.codec import Codec
from noetic_py.errors import CodecError, ConfigError, NoeticError, VersionConflict
from noetic_py.memory.scopes import LayerStorage, Scope, owner_of
from noetic_py.steps.model import call_model
from noetic_py.steps.spawn import MemorySpec
from noetic_py.steps.step import Step
from noetic_py.steps.step import frame as frame_name

if TYPE_CHECKING:
    from noetic_py._engine.state import Execution
    from noetic_py.models.base import Model
    from noetic_py.state import Cells

__all__ = ["Upkeep", "migrated", "state_key"]


@frozen(eq=False)
class _Mirrored:
    """A layer's state as this run and its store had it when they last met.

    Attributes:
        mine: The run's.
        theirs: The store's; another one, when somebody else has written too.
        version: Of the value in the store, 0 where there is none.
    """

    mine: Any
    theirs: Any
    version: int


_NEVER = object()
_ATTEMPTS = 5


class Upkeep:
    """The store's side of an execution's layers.

    A state is kept under a key that names the form's version, and with it who wrote it last: a run that goes on after a
    crash knows by that whether the store has what it wrote itself.
    """

    __slots__ = ("_lock", "_mirrored", "_x", "first", "parents", "recalled")

    def __init__(self, x: Execution) -> None:
        self._x = x
        self._lock = anyio.Lock()
        self._mirrored: dict[str, _Mirrored] = {}
        # The states that the execution began with.
        self.first: dict[str, Any] = {}
        # What layers that recall now and then have recalled last, by layer.
        self.recalled: dict[str, Any] = {}
        # Of a child the states that its parent's layers had when it looked last.
        self.parents: dict[str, Any] = dict(x.born)

    # -- the store

    def storage(self, layer: AnyLayer, room: str = "data") -> LayerStorage:
        """The layer's part of the store.

        Raises:
            ConfigError: Its scope is a person's, and the run has none; code `"layer-scope"`.
        """
        x = self._x
        owner = (
            _place_of(x)
            if layer.scope is Scope.EXECUTION
            else owner_of(layer.scope, layer=layer.id, thread_id=x.thread_id, user_id=x.user_id)
        )
        codec = self._codec_of(layer)
        return LayerStorage(x.run.resources.storage, codec, layer=layer.id, scope=layer.scope, owner=owner, room=room)

    def _codec_of(self, layer: AnyLayer) -> Codec:
        """What stores a layer's values, and makes again the classes that its state's type names."""
        known = self._x.layers.codecs
        codec = known.get(layer.id)
        if codec is None:
            codec = known[layer.id] = Codec(types_in(layer.state_type))
        return codec

    async def load(self, layer: AnyLayer) -> Any:
        """The state that the store has of a layer, or its first one.

        Raises:
            CodecError: What is stored does not fit the state's type, and nothing makes it fit.
            ConfigError: It was stored by a newer version, or by an older one that nothing migrates.
            StoreUnavailable: The store does not answer.
        """
        if layer.scope is Scope.EXECUTION:
            return layer.initial()
        found, version, _ = await self._stored(layer)
        state = layer.initial() if found is _NEVER else found
        self._mirrored[layer.id] = _Mirrored(state, found, version)
        return state

    async def _stored(self, layer: AnyLayer) -> tuple[Any, int, str]:
        """What the store has of a layer's state, its version there, and the run that wrote it."""
        storage = self.storage(layer, "state")
        kind: Any = self._x.layers.state_type(layer.id)
        written: Any = GenericAlias(tuple, (str, kind))
        found, version = await storage.get_versioned(state_key(layer.schema_version), written)
        if found is not None:
            return found[1], version, found[0]
        for key, older in await storage.scan(tuple[str, object], limit=1):
            version = int(key.removeprefix("v"))
            if version == layer.schema_version:
                # Somebody has written it between the two looks.
                return await self._stored(layer)
            return migrated(layer, self._codec_of(layer), older[1], version, kind), 0, older[0]
        return _NEVER, 0, ""

    def is_behind(self, cells: Cells) -> bool:
        """Whether the store has not got all of these."""
        return any(self._is_behind(layer, cells) for layer in self._x.layers.by_id.values())

    def _is_behind(self, layer: AnyLayer, cells: Cells) -> bool:
        if layer.scope is Scope.EXECUTION or layer.id not in cells:
            return False
        known = self._mirrored.get(layer.id)
        return known is None or known.mine is not cells[layer.id]

    async def flush(self, frame: Frame) -> None:
        """Mirror the states that the store does not have yet; a store that fails is told of, and no failure."""
        cells = frame.domain.cells
        for layer in self._x.layers.by_id.values():
            if self._is_behind(layer, cells):
                try:
                    await self._mirror(layer, cells[layer.id])
                except NoeticError as error:
                    tell_failed(frame, layer, "mirror", error)

    async def _mirror(self, layer: AnyLayer, state: Any) -> None:
        storage, key = self.storage(layer, "state"), state_key(layer.schema_version)
        known = self._mirrored.get(layer.id)
        if known is None:
            # A run that goes on in another process: what it had begun with is what it has changed.
            known = _Mirrored(self.first.get(layer.id, state), _NEVER, -1)
        for _ in range(_ATTEMPTS):
            if known.version < 0:
                theirs, version, writer = await self._stored(layer)
                known = _Mirrored(theirs if writer == self._x.run_id else known.mine, theirs, version)
            # Somebody else may have written meanwhile: what both have changed is kept.
            alone = known.theirs in (_NEVER, known.mine)
            value = state if alone else joined(known.mine, state, known.theirs, layer)
            if self._is_stored(layer, value, layer.initial() if known.theirs is _NEVER else known.theirs):
                # Whoever reads the store has this already; a run that goes on cannot tell by more than that.
                self._mirrored[layer.id] = _Mirrored(state, known.theirs, known.version)
                return
            try:
                version = await self._write(storage, key, value, known.version)
            except VersionConflict:
                known = _Mirrored(known.mine, known.theirs, -1)
                continue
            self._mirrored[layer.id] = _Mirrored(state, value, version)
            return
        raise VersionConflict(f"layer {layer.id!r}: others write its stored state all the time")

    def _is_stored(self, layer: AnyLayer, value: Any, theirs: Any) -> bool:
        codec = self._codec_of(layer)
        # Equal values may be stored in different ways, as 1 and True are.
        return bool(value == theirs) and codec.dumps(value) == codec.dumps(theirs)

    async def _write(self, storage: LayerStorage, key: str, value: Any, expected: int) -> int:
        if value is None:
            await storage.remove(key, expected=expected or None)
            return 0
        return await storage.put(key, (self._x.run_id, value), expected=expected)

    # -- steps of a layer's own

    async def call(self, frame: Frame, layer: AnyLayer, step: Step[Any, Any, Any, Any], value: object) -> Any:
        """Run a step for a layer: a spawn below the step in flight, with nothing of its conversation and no layers."""
        spec = MemorySpec(step, "new", "new", None, None, NO_LAYERS.memory)
        child: Step[Any, Any, Any, Any] = Step(id=f"{layer.id}.{step.id}", kind="spawn", spec=spec, goes_on=False)
        # Layers that store at once take turns: a step's children are in flight one after the other.
        async with self._lock:
            occurrences = frame.occurrences
            if occurrences is None:
                occurrences = frame.occurrences = {}
            count = occurrences.get(child.id, 0)
            occurrences[child.id] = count + 1
            return await execute(child, value, frame, frame_name(child.id, count))

    async def ask(
        self, frame: Frame, layer: AnyLayer, model: str | Model | None, instructions: str, text: str, output: Any
    ) -> Any:
        """Ask a model for a layer."""
        step: Step[Any, Any, Any, Any] = call_model(model, instructions=instructions, output=output, id="ask")
        return await self.call(frame, layer, step, text)


DOORS.upkeep = Upkeep


def _place_of(x: Execution) -> str:
    """What is an execution's own in the store, for every process that carries it: its id is drawn by each anew."""
    up = x.parent_frame
    while x.passes and up is not None:
        # A part of an execution with other memory.
        x, up = up.x, up.x.parent_frame
    root = x.frame
    if up is None or root is None:
        return x.id
    attempts: list[int] = []
    frame: Frame | None = root
    while frame is not None:
        attempts.append(frame.attempt)
        frame = frame.up
    return sha256(json.dumps([x.run_id, root.path, attempts]).encode()).hexdigest()


def state_key(version: int) -> str:
    """The key of a layer's state of a version, in its part of the store."""
    return f"v{version}"


def migrated(layer: AnyLayer, codec: Codec, state: Any, version: int, kind: Any) -> Any:
    """A layer's state of an older version in the form of its own.

    Raises:
        ConfigError: It is of a newer one, or nothing migrates it; code `"layer-version"`.
        CodecError: What `migrate` has made of it does not fit.
    """
    if version > layer.schema_version:
        raise ConfigError(
            f"layer {layer.id!r} has a stored state of version {version}, and its own is {layer.schema_version}",
            code="layer-version",
            hint="run the newer code, or give the layer another id",
        )
    made = layer.migrate(state, version)
    try:
        return codec.decode(codec.encode(made), kind)
    except CodecError as error:
        raise CodecError(
            f"layer {layer.id!r}: migrate() of version {version} gave no {kind!r}: {error.message}"
        ) from error
