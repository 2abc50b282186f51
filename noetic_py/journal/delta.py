"""How a state was changed between two moments, field by field, so that only what changed is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, get_type_hints

from attrs import define

from noetic_py.core.codec import Codec
from noetic_py.core.codec.text import dump, inside, is_dict, is_list
from noetic_py.core.items import ItemBase
from noetic_py.core.state import StateBag, restore_state, state_fields
from noetic_py.errors import CodecError
from noetic_py.journal.values import Change

__all__ = [
    "Known",
    "apply_changes",
    "changed_fields",
    "changes",
    "digest_of",
    "field_trees",
    "known_fields",
    "known_of",
    "mismatch",
    "state_tree",
]

WHOLE = ""
"""The key of a state that has no fields: a list, a set, a dict whose keys are no names."""


def digest_of(data: bytes) -> str:
    """A short digest of stored bytes; 64 bits, to notice a difference, not an attack."""
    return blake2b(data, digest_size=8).hexdigest()


@define(eq=False)
class Known:
    """A field as it was stored last: its tree, its bytes, and the object itself."""

    tree: Any
    data: bytes
    value: Any = None


def known_of(fields: Mapping[str, Any]) -> dict[str, Known]:
    """Fields that are stored already."""
    return {key: Known(tree, dump(tree)) for key, tree in fields.items()}


def known_fields(state: object, codec: Codec) -> dict[str, Known]:
    """Every field of a state in its stored form.

    Raises:
        CodecError: A field cannot be stored; `where` begins with its name.
    """
    found: dict[str, Known] = {}
    for key, value in _fields(state).items():
        try:
            tree = codec.encode(value)
            found[key] = Known(tree, dump(tree), value)
        except CodecError as error:
            raise inside(error, f"state.{key}" if key else "state") from error
    return found


def changes(before: Mapping[str, Known], after: Mapping[str, Known]) -> tuple[Change, ...]:
    """What leads from one state to the other."""
    found: list[Change] = []
    moved: set[str] = set()
    if list(before) != list(after):
        found = [Change("unset", key, digest_of(old.data)) for key, old in before.items() if key not in after]
        moved = _moved(before, after)
        found += [Change("unset", key, digest_of(before[key].data)) for key in moved if key in before]
    for key, now in after.items():
        old = before.get(key)
        if old is None or key in moved:
            found.append(Change("set", key, None, now.tree))
        elif old.data != now.data:
            found.append(_change(key, old, now))
    return tuple(found)


def _moved(before: Mapping[str, Known], after: Mapping[str, Known]) -> set[str]:
    """The fields from the first on that has another place than it would have if each stayed where it was."""
    stay = [key for key in before if key in after] + [key for key in after if key not in before]
    for index, (one, other) in enumerate(zip(stay, after, strict=True)):
        if one != other:
            return set(list(after)[index:])
    return set()


def _change(key: str, old: Known, now: Known) -> Change:
    before = digest_of(old.data)
    if is_list(old.tree) and is_list(now.tree):
        length = len(old.tree)
        # Compared by bytes: in Python 1, 1.0 and True are equal, stored they are not.
        if length < len(now.tree) and dump(now.tree[:length]) == old.data:
            return Change("append", key, before, now.tree[length:], now.value is old.value)
    return Change("set", key, before, now.tree, now.value is old.value)


def mismatch(known: Mapping[str, Known], given: Iterable[Change]) -> str | None:
    """The first field that is not what it was when these changes were made; `None` when all are.

    Args:
        known: The state as it is now.
        given: The changes, in order.
    """
    latest: dict[str, str | None] = {}
    for change in given:
        if change.key in latest:
            # Changed by an earlier one of them already: what that led to was compared when it was made.
            continue
        old = known.get(change.key)
        latest[change.key] = None if old is None else digest_of(old.data)
        if latest[change.key] != change.before:
            return change.key or "state"
    return None


def apply_changes(state: Any, given: Sequence[Change], codec: Codec) -> None:
    """Change a state as it was changed once before. It stays the same object, and so does what was changed in place.

    Raises:
        CodecError: What was stored does not fit the state's type.
    """
    try:
        _apply(state, given, codec)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise CodecError(f"a stored change does not fit: {type(error).__name__}: {error}", where="state") from error


def _apply(state: Any, given: Sequence[Change], codec: Codec) -> None:
    kind: Any = state.__class__
    hints = _hints(kind)
    if any(change.key == WHOLE for change in given):
        _apply_whole(state, given, codec)
        return
    for change in given:
        if change.op == "unset":
            _unset(state, change.key)
            continue
        value = codec.decode(change.tree, hints.get(change.key, object))
        old = state_fields(state).get(change.key)
        if change.op == "append":
            if not is_list(old):
                raise CodecError("is not a list, so nothing can be appended to it", where=f"state.{change.key}")
            value = [*old, *value]
        # Holders of the object see it change, as when it was changed.
        _set(state, change.key, _put_into(old, value) if change.kept else value)


def require_readable(
    state: object, given: Iterable[Change], codec: Codec, *, declared: object = None, where: str = "state"
) -> None:
    """Refuse changes of a state that could be stored, and from which its values could not be made again.

    Args:
        state: The state.
        given: The changes.
        codec: What stores it.
        declared: The type that it is read as when it is stored as a whole; its class when left out.
        where: What it is called.

    Raises:
        CodecError: That is so; `where` begins with the field's name.
    """
    kind: Any = state.__class__
    hints = _hints(kind)
    whole: object = declared or (object if isinstance(state, StateBag) else kind)
    for change in given:
        if change.op == "unset":
            continue
        try:
            codec.require_readable(change.tree, hints.get(change.key, object) if change.key else whole)
        except CodecError as error:
            raise inside(error, f"{where}.{change.key}" if change.key else where) from error


def field_trees(tree: Any) -> dict[str, Any]:
    """The fields of a stored state, each in its stored form."""
    if is_dict(tree):
        mark = tree.get("$")
        if mark is None:
            return dict(tree)
        if isinstance(mark, str) and mark.startswith("object:"):
            return {key: value for key, value in tree.items() if key != "$"}
        if mark == "object" and is_dict(tree.get("v")):
            return dict(tree["v"])
    return {WHOLE: tree}


def state_tree(like: Any, fields: Mapping[str, Any], name: str | None = None) -> Any:
    """A stored state again, of its fields.

    Args:
        like: The stored state that the fields were taken of.
        fields: The fields.
        name: The class's name now; as it was when left out.
    """
    if WHOLE in fields:
        return fields[WHOLE]
    mark = like.get("$") if is_dict(like) else None
    if mark == "object":
        return {"$": mark, "t": name or like["t"], "v": dict(fields)}
    if isinstance(mark, str) and mark.startswith("object:"):
        return {"$": f"object:{name}" if name else mark, **fields}
    return dict(fields)


def changed_fields(fields: Mapping[str, Any], given: Iterable[Change]) -> Mapping[str, Any]:
    """The stored fields of a state after changes.

    Raises:
        CodecError: Something was appended to what is no list.
    """
    made = dict(fields)
    for change in given:
        if change.op == "unset":
            made.pop(change.key, None)
        elif change.op == "set":
            made[change.key] = change.tree
        else:
            old = made.get(change.key)
            if not is_list(old):
                raise CodecError("is not a list, so nothing can be appended to it", where=f"state.{change.key}")
            made[change.key] = [*old, *change.tree]
    return made


def _apply_whole(state: Any, given: Sequence[Change], codec: Codec) -> None:
    """A state without fields, or one that had none before, or has none from now on."""
    whole = next((change for change in given if change.key == WHOLE and change.op != "unset"), None)
    bag = isinstance(state, StateBag)
    if whole is None:
        restore_state(state, StateBag() if bag else {})
        apply_changes(state, [change for change in given if change.key != WHOLE], codec)
        return
    value = codec.decode(whole.tree, object if bag else state.__class__)
    if whole.op == "append":
        state.extend(value)
    else:
        restore_state(state, StateBag(value) if bag else value)


def _put_into(old: Any, new: Any) -> Any:
    """The new value, as the old object where that can be changed."""
    kind: Any = new.__class__
    if old.__class__ is not kind:
        return new
    if is_dict(new):
        restore_state(old, {key: _put_into(old.get(key), value) for key, value in new.items()})
        return old
    if not isinstance(new, (list, set)):
        return _put_fields(old, new)
    restore_state(old, new)
    return old


def _put_fields(old: Any, new: Any) -> Any:
    """The same for an object, unless its class is frozen, or refuses."""
    if isinstance(new, ItemBase) or not _has_fields(new):
        return new
    fields = state_fields(old)
    try:
        for name, value in state_fields(new).items():
            setattr(old, name, _put_into(fields.get(name), value))
    except Exception:  # noqa: BLE001 # whatever a class of the user's raises to say that it is not to be changed
        return new
    return old


def _has_fields(state: Any) -> bool:
    if isinstance(state, StateBag):
        return WHOLE not in state
    if is_dict(state):
        return all(isinstance(key, str) and key for key in state)
    kind: Any = state.__class__
    return hasattr(state, "__dict__") or hasattr(kind, "__attrs_attrs__")


def _fields(state: object) -> dict[str, Any]:
    if _has_fields(state):
        # Which fields were given to a pydantic model is not stored with it.
        return {key: value for key, value in state_fields(state).items() if key != "__pydantic_fields_set__"}
    return {WHOLE: dict(state.view()) if isinstance(state, StateBag) else state}


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


@lru_cache(256)
def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except Exception:  # noqa: BLE001 # an annotation that does not resolve: the value is read by its own marks
        return {}
