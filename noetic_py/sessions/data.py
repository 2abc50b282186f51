"""A session as data: one JSON document with a version, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, get_args

from attrs import field, frozen

from noetic_py.checkpoints.stored import read_items, write_items
from noetic_py.codec import MAX_NESTING, MAX_VALUE_BYTES, Codec
from noetic_py.codec.text import inside, is_dict, is_list, parse
from noetic_py.control import RunStatus
from noetic_py.errors import CodecError, SessionLoadError
from noetic_py.items import Item
from noetic_py.sessions.keys import SessionKey

__all__ = ["LayerData", "SessionData", "StateData"]

# What a document puts around what is stored by itself.
_AROUND: Final = 8
_FIELDS: Final = ("schema_version", "app", "user", "session", "status", "turns", "items", "states", "layers")


def _as_tuple(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(items)


@frozen
class StateData:
    """A state in its stored form.

    Attributes:
        value: The state, as [`Codec.encode`][noetic_py.codec.Codec] gives it.
        version: The `schema_version` of its type.
    """

    value: Any
    version: int = 1


@frozen
class LayerData:
    """What a memory layer keeps of a session.

    Attributes:
        state: Its state; `None` when it has stored none.
        values: What it keeps beside that, in stored form, by key.
    """

    state: StateData | None = None
    values: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen(kw_only=True)
class SessionData:
    """A session as `await session.dump()` gives it, and [`Sessions.load`][noetic_py.Sessions] takes it.

    Two are equal when they hold the same, whatever went on while they were made.

    Attributes:
        key: Whose session it was, and which; `None` when a document does not say.
        items: The conversation, calls that were left open closed.
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
            "states": {name: _state_tree(self.states[name]) for name in sorted(self.states)},
            "layers": {name: _layer_tree(self.layers[name]) for name in sorted(self.layers)},
        }
        return json.dumps(tree, ensure_ascii=False, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> SessionData:
        """What a document says; a field that is missing has its default, one that is unknown is refused.

        Raises:
            SessionLoadError: It is of a newer version than this library knows.
            CodecError: It is no such document; `where` says what is wrong in it.
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
            raise CodecError(f"{version} is no version", where="schema_version")
        return cls(
            key=_key(fields),
            items=_items(fields.get("items", [])),
            states={name: _read_state(each, f"states.{name}") for name, each in _named(fields, "states").items()},
            layers={name: _read_layer(each, f"layers.{name}") for name, each in _named(fields, "layers").items()},
            turns=_count(fields, "turns", 0),
            status=_status(fields.get("status")),
        )


def _state_tree(state: StateData) -> dict[str, Any]:
    return {"version": state.version, "value": state.value}


def _layer_tree(layer: LayerData) -> dict[str, Any]:
    state = None if layer.state is None else _state_tree(layer.state)
    return {"state": state, "values": {key: layer.values[key] for key in sorted(layer.values)}}


def _object(tree: object, where: str, known: Sequence[str] | None = None) -> dict[str, Any]:
    if not is_dict(tree):
        raise CodecError("is no object", where=where)
    unknown = [] if known is None else sorted(tree.keys() - set(known))
    if unknown:
        raise CodecError(
            f"has an unknown field {unknown[0]!r:.60}", where=where, hint=f"it has {', '.join(known or ())}"
        )
    return tree


def _named(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return _object(fields.get(name, {}), name)


def _count(fields: Mapping[str, Any], name: str, default: int) -> int:
    found: object = fields.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise CodecError(f"{found!r:.60} is no whole number from 0", where=name)
    return found


def _key(fields: Mapping[str, Any]) -> SessionKey | None:
    session: Any = fields.get("session")
    return None if session is None else SessionKey(fields.get("user"), session, app=fields.get("app"))


def _status(found: Any) -> RunStatus | None:
    for status in get_args(RunStatus):
        if found == status:
            known: RunStatus = status
            return known
    if found is not None:
        raise CodecError(f"{found!r:.60} is no status of a run", where="status")
    return None


def _items(tree: object) -> tuple[Item, ...]:
    if not is_list(tree):
        raise CodecError("is no list", where="items")
    try:
        return read_items(tree, Codec())
    except CodecError as error:
        raise error if error.where == "items" else inside(error, "items") from None


def _read_state(tree: object, where: str) -> StateData:
    fields = _object(tree, where, ("version", "value"))
    try:
        Codec().check(fields.get("value"))
        return StateData(fields.get("value"), _count(fields, "version", 1))
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
    return LayerData(None if state is None else _read_state(state, f"{where}.state"), values)
