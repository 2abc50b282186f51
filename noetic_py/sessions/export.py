"""A session as one JSON document with a version: out of a store, and into one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, get_args

import anyio
from attrs import field, frozen

from noetic_py.access import Authorizer, Resource
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.codec import MAX_NESTING, MAX_VALUE_BYTES, Codec
from noetic_py.core.codec.structure import dump, inside, parse
from noetic_py.core.control import RunStatus, SessionKey
from noetic_py.core.items import Item
from noetic_py.core.log import ItemLog, Origin, admit
from noetic_py.core.types import Version, version_order
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.fingerprint import types_in
from noetic_py.engine.layers.store import state_key, version_of_key, written_state
from noetic_py.engine.layers.versions import is_older, migrated, newest
from noetic_py.errors import CodecError, ConfigError, ForgedEvent, LogError, SessionConflict, SessionLoadError
from noetic_py.journal.patches import state_tree
from noetic_py.journal.session_stream import StoredConversation, loaded
from noetic_py.journal.values import read_items, write_items
from noetic_py.memory.layer import AnyLayer
from noetic_py.memory.scopes import Scope, forget, place_of
from noetic_py.sessions.store import SessionLease, SessionStore

# The fields of a document around values that are stored by themselves.
_AROUND: Final = 8
_FIELDS: Final = ("schema_version", "app", "user", "session", "status", "turns", "items", "origins", "states", "layers")


def _as_tuple(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(items)


@frozen
class StateData:
    """A state in its stored form.

    Attributes:
        value: The state, as [`Codec.encode`][noetic_py.core.codec.Codec] gives it.
        version: The `schema_version` of its type, or of the layer.
    """

    value: Any
    version: Version = 1


@frozen
class LayerData:
    """The data of a memory layer for a session, a thread or a user.

    Attributes:
        state: Its state; `None` when it has stored none.
        values: What it keeps beside that, in stored form, by key.
    """

    state: StateData | None = None
    values: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen(kw_only=True)
class SessionData:
    """A session as data: `session.dump()` gives it, [`Sessions.load`][noetic_py.sessions.session.Sessions] takes it.

    Two are equal when they hold the same, whatever went on while they were made.

    Attributes:
        key: The key of the session; `None` when a document does not say.
        items: The conversation, calls that were left open closed.
        origins: Of which run and branch items are, by the ids of those of which it is known.
        states: The states by the names of their types.
        layers: What the harness's layers of scope thread keep of it, by their ids.
        turns: How many turns have begun.
        status: How the last turn stood that has ended; `None` when none has.
        open_run: The run of a turn that had begun and not ended, of which nothing is here but what layers have stored
            of it. It is not written, and does not count when two are compared.
    """

    SCHEMA_VERSION: ClassVar[int] = 1
    """The version of the document's form."""

    key: SessionKey | None = None
    items: Sequence[Item] = field(default=(), converter=_as_tuple)
    origins: Mapping[str, Origin] = field(factory=dict[str, Origin])
    states: Mapping[str, StateData] = field(factory=dict[str, StateData])
    layers: Mapping[str, LayerData] = field(factory=dict[str, LayerData])
    turns: int = 0
    status: RunStatus | None = None
    open_run: str | None = field(default=None, eq=False)

    def to_json(self, *, indent: int | None = 2) -> str:
        """The document; equal sessions give equal texts.

        Its fields come in one order, states, layers and values by name, and what a state holds as it is stored.

        Raises:
            CodecError: An item cannot be stored.
        """
        app, user, session = (None, None, None) if self.key is None else self.key.parts
        tree = {
            "schema_version": self.SCHEMA_VERSION,
            "app": app,
            "user": user,
            "session": session,
            "status": self.status,
            "turns": self.turns,
            "items": write_items(tuple(self.items), Codec()),
            "origins": {item: list(self.origins[item]) for item in sorted(self.origins)},
            "states": {name: _state_tree(self.states[name]) for name in sorted(self.states)},
            "layers": {name: layer_tree(self.layers[name]) for name in sorted(self.layers)},
        }
        return json.dumps(tree, ensure_ascii=False, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> SessionData:
        """Read a document; a missing field has its default, an unknown one is refused.

        Raises:
            SessionLoadError: It is of a newer version than this library knows.
            CodecError: It is not such a document; `where` says what is wrong in it.
            InvalidId: Its key cannot be one.
            LimitExceeded: It is too long, or nested too deep.
        """
        tree: object = parse(text, MAX_VALUE_BYTES, "session size", nesting=MAX_NESTING + _AROUND)
        # The version first: of a newer one the fields say nothing.
        version = _count(tree, "schema_version", 1) if is_dict(tree) else 1
        if version > cls.SCHEMA_VERSION:
            raise SessionLoadError(
                f"the session's data are of schema_version {version}, and this library knows {cls.SCHEMA_VERSION}",
                hint="install a newer noetic-py",
            )
        fields = _object(tree, "the session", _FIELDS)
        if version < 1:
            raise CodecError(
                f"{version} is not a valid version; expected a whole number from 1", where="schema_version"
            )
        return cls(
            key=_key(fields),
            items=_items(fields.get("items", [])),
            origins={item: _read_origin(each, f"origins.{item}") for item, each in _named(fields, "origins").items()},
            states={name: _read_state(each, f"states.{name}") for name, each in _named(fields, "states").items()},
            layers={name: _read_layer(each, f"layers.{name}") for name, each in _named(fields, "layers").items()},
            turns=_count(fields, "turns", 0),
            status=_status(fields.get("status")),
        )


def _state_tree(state: StateData) -> dict[str, object]:
    return {"version": state.version, "value": state.value}


def _object(tree: object, where: str, known: Sequence[str] | None = None) -> dict[str, object]:
    if not is_dict(tree):
        raise CodecError("is not a valid document; expected a JSON object", where=where)
    unknown = [] if known is None else sorted(tree.keys() - set(known))
    if unknown:
        raise CodecError(
            f"has an unknown field {unknown[0]!r:.60}", where=where, hint=f"it has {', '.join(known or ())}"
        )
    return tree


def _named(fields: Mapping[str, object], name: str) -> dict[str, object]:
    return _object(fields.get(name, {}), name)


def _count(fields: Mapping[str, object], name: str, default: int) -> int:
    found: object = fields.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise CodecError(f"{found!r:.60} is not a valid number; expected a whole number from 0", where=name)
    return found


def _version(fields: Mapping[str, object]) -> Version:
    found: object = fields.get("version", 1)
    return found if isinstance(found, str) and version_order(found) else _count(fields, "version", 1)


def _key(fields: Mapping[str, Any]) -> SessionKey | None:
    session: Any = fields.get("session")
    return None if session is None else SessionKey(fields.get("user"), session, app=fields.get("app"))


def _status(found: object) -> RunStatus | None:
    for status in get_args(RunStatus):
        if found == status:
            known: RunStatus = status
            return known
    if found is not None:
        raise CodecError(f"{found!r:.60} is not a valid status of a run", where="status")
    return None


def _items(tree: object) -> tuple[Item, ...]:
    if not is_list(tree):
        raise CodecError("is not a valid value; expected a list", where="items")
    try:
        return read_items(tree, Codec())
    except CodecError as error:
        raise error if error.where == "items" else inside(error, "items") from None


def _read_origin(tree: object, where: str) -> Origin:
    if not is_list(tree) or len(tree) != 2 or not all(isinstance(part, str) for part in tree):
        raise CodecError("is not a valid origin; expected a run's id and a branch", where=where)
    return tree[0], tree[1]


def _read_state(tree: object, where: str, *, dotted: bool = False) -> StateData:
    fields = _object(tree, where, ("version", "value"))
    try:
        Codec().check(fields.get("value"))
        return StateData(fields.get("value"), _version(fields) if dotted else _count(fields, "version", 1))
    except CodecError as error:
        raise inside(error, where) from None


def _read_layer(tree: object, where: str) -> LayerData:
    fields = _object(tree, where, ("state", "values"))
    state = fields.get("state")
    values = _object(fields.get("values", {}), f"{where}.values")
    for key, value in values.items():
        try:
            Codec().check(value)
        except CodecError as error:
            raise inside(error, f"{where}.values[{key!r:.60}]") from None
    return LayerData(None if state is None else _read_state(state, f"{where}.state", dotted=True), values)


_ATTEMPTS: Final = 5


@frozen(eq=False)
class _Checked:
    """The data of a layer in the form in which it is written."""

    state: bytes | None
    values: Mapping[str, bytes]


# --------------------------------------------------------------------------------------------------------------- out


async def dumped(store: SessionStore, key: SessionKey) -> SessionData:
    """The data of a session and of its layers at one moment between two writes.

    Raises:
        SessionLoadError: It cannot be read.
        SessionConflict: It is written all the time.
    """
    for _ in range(_ATTEMPTS):
        conversation = await store.read(key)
        position, found = conversation.position, _data_of(key, conversation)
        layers = {name: await _kept(store.layer_store, layer, key.stream) for name, layer in store.layers.items()}
        entry = await store.backend.entry(key.stream)
        if position == (0 if entry is None else entry.position):
            kept = {name: each for name, each in layers.items() if each != LayerData()}
            return SessionData(**found, layers=kept)
    raise SessionConflict(f"session {key.session!r} is written all the time", hint="dump it between its turns")


def _data_of(key: SessionKey, conversation: StoredConversation) -> dict[str, Any]:
    states = {
        name: StateData(state_tree(each.like, each.fields), each.version) for name, each in conversation.states.items()
    }
    items = conversation.log.rendered("interrupted")
    origins = {item.id: items.origin_of(index) for index, item in enumerate(items)}
    return {
        "key": key,
        "items": tuple(items),
        "origins": {item: origin for item, origin in origins.items() if origin is not None},
        "states": states,
        "turns": conversation.turns,
        "status": conversation.status,
        "open_run": None if conversation.open is None else conversation.open.run_id,
    }


async def dump_of(
    access: Authorizer,
    store: CheckpointBackend,
    layers: Iterable[AnyLayer],
    *,
    user_id: str | None,
    thread_id: str | None,
) -> Mapping[str, LayerData]:
    """What layers keep for a user and for a thread, by the layer's id; one that keeps nothing is left out.

    Raises:
        ConfigError: Neither is named; code `"memory-owner"`.
        AccessDenied: The access policy does not allow `"export"`.
    """
    if user_id is None and thread_id is None:
        raise ConfigError("no owner is named", code="memory-owner", hint='await harness.dump_memory(user_id="ada")')
    if user_id is not None:
        await access.require("export", on=Resource(owner=user_id))
    if thread_id is not None:
        # Of whom a thread is nothing says, so the owner of the user's part does not count here.
        await access.require("export", on=Resource(thread_id=thread_id))
    owners = {Scope.USER: user_id, Scope.THREAD: thread_id}
    asked = [(layer, owner) for layer in layers if (owner := owners.get(layer.scope)) is not None]
    found = {layer.id: await _kept(store, layer, owner) for layer, owner in asked}
    return {name: each for name, each in found.items() if each != LayerData()}


def layer_tree(layer: LayerData) -> dict[str, object]:
    """The data of a layer as they stand in a document."""
    state = None if layer.state is None else _state_tree(layer.state)
    return {"state": state, "values": {key: layer.values[key] for key in sorted(layer.values)}}


async def _kept(store: CheckpointBackend, layer: AnyLayer, owner: str) -> LayerData:
    found = await _all(store, place_of("state", layer=layer.id, scope=layer.scope, owner=owner))
    states = {version_of_key(name): data for name, data in found.items()}
    state = None
    last = newest(list(states))
    if last is not None:
        # That of the layer's own version, or else what it would migrate.
        version = layer.schema_version if layer.schema_version in states else last
        _, tree = written_state(_tree(states[version]), f"{layer.id}: {state_key(version)}")
        state = StateData(tree, version)
    beside = await _all(store, place_of("data", layer=layer.id, scope=layer.scope, owner=owner))
    return LayerData(state, {name: _tree(data) for name, data in beside.items()})


def _tree(data: bytes) -> object:
    return parse(data, MAX_VALUE_BYTES, "value size")


async def _all(store: CheckpointBackend, place: tuple[str, ...]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after: str | None = None
    while page := await store.scan(place, after=after):
        found |= {each.key: each.value for each in page}
        after = page[-1].key
    return found


def _place(layer: AnyLayer, key: SessionKey, namespace: str) -> tuple[str, ...]:
    return place_of(namespace, layer=layer.id, scope=Scope.THREAD, owner=key.stream)


# ---------------------------------------------------------------------------------------------------------------- in


def target_of(data: SessionData, into: SessionKey | None) -> SessionKey:
    """The session that data are imported as.

    Raises:
        ConfigError: Neither the data nor the caller says; code `"session-key"`.
    """
    key: object = data.key if into is None else into
    if not isinstance(key, SessionKey):
        raise ConfigError(
            f"{key!r} is not a valid session; expected a SessionKey",
            code="session-key",
            hint='into=SessionKey("ada", "trip")',
        )
    return key


async def load_into(store: SessionStore, key: SessionKey, data: SessionData, *, replace: bool) -> None:
    """Make data a session.

    Raises:
        ForgedEvent: An item is one that only a run makes.
        CodecError: What a layer is to keep does not fit it.
        SessionLoadError: Something is of a newer version, or for a layer that is not there.
        SessionConflict: There is such a session, and it is not to be replaced, or has a turn that has not ended.
    """
    _check_items(data)
    _check_states(data)
    layers = {name: _checked(store, name, each) for name, each in data.layers.items()}
    states = {name: {"w": each.value, "v": each.version} for name, each in data.states.items()}
    codec = Codec()
    origins = [(1, data.origins.get(item.id)) for item in data.items]
    record = loaded(data.items, states, turns=data.turns, status=data.status, codec=codec, origins=origins)

    async def work(lease: SessionLease) -> None:
        if (lease.position or store.unsaved(key)) and not replace:
            raise SessionConflict(f"there is a session {key.session!r} already", hint="replace=True, or another key")
        conversation = await store.read(key)
        if conversation.open is not None or store.unsaved(key):
            raise SessionConflict(
                f"session {key.session!r} has a turn that is not written",
                hint="resume its run, save the session, or let another turn end it",
            )
        with anyio.CancelScope(shield=True):
            for layer in store.layers:
                await forget(store.layer_store, layer=layer, scope=Scope.THREAD, owner=key.stream)
            for layer, checked in layers.items():
                await _keep(store.layer_store, store.layers[layer], key, checked)
            # Last, for a session is there once it has this.
            await store.write(lease, key, conversation, [record], codec)

    async with store.lock.acquire(key):
        await store.with_lease(key, work)


def _check_items(data: SessionData) -> None:
    try:
        admit(data.items, entry="session")
        ItemLog(data.items)
    except ForgedEvent:
        raise
    except (TypeError, LogError) as error:
        raise CodecError(f"are not a valid conversation: {error}", where="items") from error


def _check_states(data: SessionData) -> None:
    codec = Codec()
    for name, state in data.states.items():
        try:
            codec.check(state.value)
        except CodecError as error:
            raise inside(error, f"states.{name}") from error


def _checked(store: SessionStore, name: str, data: LayerData) -> _Checked:
    layer = store.layers.get(name)
    if layer is None:
        raise SessionLoadError(
            f"the data hold state of layer {name!r}, which this harness does not have in scope thread",
            hint=f"give it that layer, or leave the data out; the layers are {', '.join(store.layers) or 'none'}",
        )
    codec = Codec(types_in(layer.state_type))
    values = {key: dump(value) for key, value in data.values.items()}
    if data.state is None:
        return _Checked(None, values)
    try:
        older = is_older(layer, data.state.version)
    except ConfigError:
        raise SessionLoadError(
            f"the state of layer {name!r} is of version {data.state.version}, and its own is {layer.schema_version}",
            hint="run the newer code",
        ) from None
    kind: object = object if layer.state_type is None else layer.state_type
    try:
        if older:
            state = migrated(layer, codec, data.state.value, data.state.version, kind)
        else:
            state = codec.decode(data.state.value, kind)
    except CodecError as error:
        raise inside(error, f"layers.{name}.state") from error
    # It was not written by a run, so no run takes it for its own.
    return _Checked(codec.dumps(("", state)), values)


async def _keep(store: CheckpointBackend, layer: AnyLayer, key: SessionKey, checked: _Checked) -> None:
    if checked.state is not None:
        await store.put(_place(layer, key, "state"), state_key(layer.schema_version), checked.state)
    for name, value in checked.values.items():
        await store.put(_place(layer, key, "data"), name, value)
