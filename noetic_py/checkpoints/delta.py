"""How a state was changed between two moments, field by field, so that only what changed is stored."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, get_type_hints

from attrs import define

from noetic_py.checkpoints.records import Change
from noetic_py.codec import Codec
from noetic_py.codec.text import dump, is_dict, is_list
from noetic_py.errors import CodecError
from noetic_py.state import StateBag, restore_state, state_fields

__all__ = ["Known", "apply_changes", "changes", "digest_of", "known_fields"]

WHOLE = ""
"""The key of a state that has no fields: a list, a set, a number."""


def digest_of(data: bytes) -> str:
    """A short digest of stored bytes; 64 bits, to notice a difference, not an attack."""
    return blake2b(data, digest_size=8).hexdigest()


@define(eq=False)
class Known:
    """A field as it was stored last: its tree and its bytes."""

    tree: Any
    data: bytes


def known_fields(state: object, codec: Codec) -> dict[str, Known]:
    """Every field of a state in its stored form.

    Raises:
        CodecError: A field cannot be stored; `where` begins with its name.
    """
    found: dict[str, Known] = {}
    for key, value in _fields(state).items():
        try:
            tree = codec.encode(value)
        except CodecError as error:
            where = f"state.{key}" if key else "state"
            raise CodecError(
                error.message.removeprefix(f"{error.where}: "),
                where=f"{where}.{error.where}" if error.where else where,
                hint=error.hint,
            ) from error
        found[key] = Known(tree, dump(tree))
    return found


def changes(before: Mapping[str, Known], after: Mapping[str, Known]) -> tuple[Change, ...]:
    """What leads from one state to the other."""
    found: list[Change] = []
    for key, now in after.items():
        old = before.get(key)
        if old is None:
            found.append(Change("set", key, None, now.tree))
        elif old.data != now.data:
            found.append(_change(key, old, now))
    found += [Change("unset", key, digest_of(old.data)) for key, old in before.items() if key not in after]
    return tuple(found)


def _change(key: str, old: Known, now: Known) -> Change:
    before = digest_of(old.data)
    if is_list(old.tree) and is_list(now.tree):
        length = len(old.tree)
        # Compared by bytes: in Python 1, 1.0 and True are equal, stored they are not.
        if length < len(now.tree) and dump(now.tree[:length]) == old.data:
            return Change("append", key, before, now.tree[length:])
    return Change("set", key, before, now.tree)


def apply_changes(state: Any, given: tuple[Change, ...], codec: Codec) -> None:
    """Change a state as it was changed once before, keeping its identity.

    Raises:
        CodecError: What was stored does not fit the state's type.
    """
    kind: Any = state.__class__
    hints = _hints(kind)
    for change in given:
        if change.key == WHOLE and not _has_fields(state):
            restore_state(state, codec.decode(change.tree, kind))
            continue
        fields = state_fields(state)
        if change.op == "unset":
            _unset(state, change.key)
            continue
        value = codec.decode(change.tree, hints.get(change.key, object))
        if change.op == "append":
            value = [*fields[change.key], *value]
        _set(state, change.key, value)


def _has_fields(state: Any) -> bool:
    if isinstance(state, StateBag):
        return True
    if is_dict(state):
        return all(isinstance(key, str) and key for key in state)
    kind: Any = state.__class__
    return hasattr(state, "__dict__") or hasattr(kind, "__attrs_attrs__")


def _fields(state: object) -> dict[str, Any]:
    return state_fields(state) if _has_fields(state) else {WHOLE: state}


def _set(state: Any, key: str, value: Any) -> None:
    if isinstance(state, (StateBag, dict)):
        state[key] = value
    else:
        object.__setattr__(state, key, value)


def _unset(state: Any, key: str) -> None:
    if isinstance(state, (StateBag, dict)):
        del state[key]
    else:
        object.__delattr__(state, key)


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except Exception:  # noqa: BLE001 # an annotation that does not resolve: the value is read by its own marks
        return {}
