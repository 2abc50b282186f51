"""Sessions out of a store as data, and into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio
from attrs import frozen

from noetic_py._engine.types import types_in
from noetic_py._engine.upkeep import migrated, state_key
from noetic_py.admission import admit
from noetic_py.checkpoints.backend import CheckpointBackend
from noetic_py.checkpoints.conversation import Conversation, loaded
from noetic_py.checkpoints.delta import state_tree
from noetic_py.codec import MAX_VALUE_BYTES, Codec
from noetic_py.codec.text import dump, inside, parse
from noetic_py.errors import (
    CodecError,
    ConfigError,
    ForgedEvent,
    LogError,
    SessionConflict,
    SessionLoadError,
)
from noetic_py.log import ItemLog
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.scopes import Scope, forget, place_of
from noetic_py.sessions.data import LayerData, SessionData, StateData
from noetic_py.sessions.desk import Desk, Hold
from noetic_py.sessions.keys import SessionKey

__all__ = ["dumped", "load_into", "target_of"]

_ATTEMPTS: Final = 5


@frozen(eq=False)
class _Checked:
    """What a layer is to keep, as it is written."""

    state: bytes | None
    values: Mapping[str, bytes]


# --------------------------------------------------------------------------------------------------------------- out


async def dumped(desk: Desk, key: SessionKey) -> SessionData:
    """What a session holds, and what layers keep of it, of one moment between two writes.

    Raises:
        SessionLoadError: It cannot be read.
        SessionConflict: It is written all the time.
    """
    for _ in range(_ATTEMPTS):
        conversation = await desk.read(key)
        position, found = conversation.position, _data_of(key, conversation)
        layers = {name: await _kept(desk.layer_store, layer, key) for name, layer in desk.layers.items()}
        entry = await desk.backend.entry(key.stream)
        if position == (0 if entry is None else entry.position):
            kept = {name: each for name, each in layers.items() if each != LayerData()}
            return SessionData(**found, layers=kept)
    raise SessionConflict(f"session {key.session!r} is written all the time", hint="dump it between its turns")


def _data_of(key: SessionKey, conversation: Conversation) -> dict[str, Any]:
    states = {
        name: StateData(state_tree(each.like, each.fields), each.version) for name, each in conversation.states.items()
    }
    return {
        "key": key,
        "items": tuple(conversation.log.rendered("interrupted")),
        "states": states,
        "turns": conversation.turns,
        "status": conversation.status,
        "open_run": None if conversation.open is None else conversation.open.run_id,
    }


async def _kept(store: CheckpointBackend, layer: MemoryLayer[Any], key: SessionKey) -> LayerData:
    states = {
        int(name.removeprefix("v")): data for name, data in (await _all(store, _place(layer, key, "state"))).items()
    }
    state = None
    if states:
        # That of the layer's own version, or else what it would migrate.
        version = layer.schema_version if layer.schema_version in states else max(states)
        state = StateData(_tree(states[version])["v"][1], version)
    values = {name: _tree(data) for name, data in (await _all(store, _place(layer, key, "data"))).items()}
    return LayerData(state, values)


def _tree(data: bytes) -> Any:
    return parse(data, MAX_VALUE_BYTES, "value size")


async def _all(store: CheckpointBackend, place: tuple[str, ...]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after: str | None = None
    while page := await store.scan(place, after=after):
        found |= {each.key: each.value for each in page}
        after = page[-1].key
    return found


def _place(layer: MemoryLayer[Any], key: SessionKey, room: str) -> tuple[str, ...]:
    return place_of(room, layer=layer.id, scope=Scope.THREAD, owner=key.stream)


# ---------------------------------------------------------------------------------------------------------------- in


def target_of(data: SessionData, into: SessionKey | None) -> SessionKey:
    """Which session data are to become.

    Raises:
        ConfigError: Neither the data nor the caller says; code `"session-key"`.
    """
    key: object = data.key if into is None else into
    if not isinstance(key, SessionKey):
        raise ConfigError(f"{key!r} is no SessionKey", code="session-key", hint='into=SessionKey("ada", "trip")')
    return key


async def load_into(desk: Desk, key: SessionKey, data: SessionData, *, replace: bool) -> None:
    """Make data a session.

    Raises:
        ForgedEvent: An item is one that only a run makes.
        CodecError: What a layer is to keep does not fit it.
        SessionLoadError: Something is of a newer version, or for a layer that is not there.
        SessionConflict: There is such a session, and it is not to be replaced, or has a turn that has not ended.
    """
    _check_items(data)
    _check_states(data)
    layers = {name: _checked(desk, name, each) for name, each in data.layers.items()}
    states = {name: {"w": each.value, "v": each.version} for name, each in data.states.items()}
    codec = Codec()
    record = loaded(data.items, states, turns=data.turns, status=data.status, codec=codec)

    async def work(hold: Hold) -> None:
        if (hold.position or desk.unsaved(key)) and not replace:
            raise SessionConflict(f"there is a session {key.session!r} already", hint="replace=True, or another key")
        conversation = await desk.read(key)
        if conversation.open is not None or desk.unsaved(key):
            raise SessionConflict(
                f"session {key.session!r} has a turn that is not written",
                hint="resume its run, save the session, or let another turn end it",
            )
        with anyio.CancelScope(shield=True):
            for layer in desk.layers:
                await forget(desk.layer_store, layer=layer, scope=Scope.THREAD, owner=key.stream)
            for layer, checked in layers.items():
                await _keep(desk.layer_store, desk.layers[layer], key, checked)
            # Last, for a session is there once it has this.
            await desk.write(hold, key, conversation, [record], codec)

    async with desk.gate.enter(key):
        await desk.holding(key, work)


def _check_items(data: SessionData) -> None:
    try:
        admit(data.items, entry="session")
        ItemLog(data.items)
    except ForgedEvent:
        raise
    except (TypeError, LogError) as error:
        raise CodecError(f"are no conversation: {error}", where="items") from error


def _check_states(data: SessionData) -> None:
    codec = Codec()
    for name, state in data.states.items():
        try:
            codec.check(state.value)
        except CodecError as error:
            raise inside(error, f"states.{name}") from error


def _checked(desk: Desk, name: str, data: LayerData) -> _Checked:
    layer = desk.layers.get(name)
    if layer is None:
        raise SessionLoadError(
            f"the data hold something of a layer {name!r}, and this harness has none of scope thread",
            hint=f"give it that layer, or leave the data out; the layers are {', '.join(desk.layers) or 'none'}",
        )
    codec = Codec(types_in(layer.state_type))
    values = {key: dump(value) for key, value in data.values.items()}
    if data.state is None:
        return _Checked(None, values)
    if data.state.version > layer.schema_version:
        raise SessionLoadError(
            f"the state of layer {name!r} is of version {data.state.version}, and its own is {layer.schema_version}",
            hint="run the newer code",
        )
    kind: Any = object if layer.state_type is None else layer.state_type
    try:
        if data.state.version == layer.schema_version:
            state = codec.decode(data.state.value, kind)
        else:
            state = migrated(layer, codec, codec.decode(data.state.value), data.state.version, kind)
    except CodecError as error:
        raise inside(error, f"layers.{name}.state") from error
    # Nobody's run has written it, so no run takes it for its own.
    return _Checked(codec.dumps(("", state)), values)


async def _keep(store: CheckpointBackend, layer: MemoryLayer[Any], key: SessionKey, checked: _Checked) -> None:
    if checked.state is not None:
        await store.put(_place(layer, key, "state"), state_key(layer.schema_version), checked.state)
    for name, value in checked.values.items():
        await store.put(_place(layer, key, "data"), name, value)
