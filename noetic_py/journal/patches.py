"""How a state became another one: field by field, and within a field in operations that cost as much as what changed.

All values are stored forms: what JSON knows. So one comparison serves every type: a tuple, a set and an object of a
class are marked objects whose parts are found below their marks. A `Change` is of one field. Its operations are lists
that JSON can hold:

- `["put", PATH, VALUE]`: the entry of a dict, which is new or has another value, or the element of a list.
- `["del", PATH]`: the entry of a dict that is gone.
- `["splice", PATH, START, COUNT, NEW]`: in a list or a text, so many elements or characters make way for new ones.

A path leads from the field's value down: keys of dicts and indexes of lists.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import compress
from typing import Any, Final, Literal, TypeAlias, get_type_hints

from attrs import define, field, frozen

from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import DIGEST_BYTES, digest_of, dump, inside
from noetic_py.core.items import ItemBase
from noetic_py.core.state import StateBag, restore_state, state_fields
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError

Key: TypeAlias = str | int
Operation: TypeAlias = list[Any]

_SHORT: Final = 64
"""A text that has fewer characters in common with the earlier one is stored whole: an operation is not shorter."""
WHOLE = ""
"""The key of a state that has no fields: a list, a set, a dict whose keys are not names."""

_ENDS: Mapping[type[object], bytes] = {str: b'"', list: b"]", dict: b"}"}
_SURROGATE = b"\\ud"
"""The beginning of an escaped surrogate in JSON."""


@frozen(eq=False)
class Change:
    """How one field of a state was changed.

    Attributes:
        op: `"set"`, `"unset"`, `"append"` to a list, or `"patch"` for a part of it.
        key: The field.
        before: A digest of what it was, `None` when it was not there.
        tree: Stored form of what was set, or of what was appended; or the operations of a patch.
        kept: Whether the field holds the same object as before, which was changed in place.
    """

    op: Literal["set", "unset", "append", "patch"]
    key: str
    before: str | None
    tree: Any = None
    kept: bool = False


@define(eq=False)
class Known:
    """A field as it was stored last: its tree, and the object itself."""

    tree: Any
    value: Any = None
    _data: bytes | None = field(default=None, init=False)
    _digest: str | None = field(default=None, init=False)
    _hash: Any = field(default=None, init=False)

    @property
    def data(self) -> bytes:
        """The bytes that it is stored as.

        Raises:
            CodecError: It cannot be written as JSON.
        """
        if self._data is None:
            self._data = dump(self.tree)
        return self._data

    @property
    def digest(self) -> str:
        """The digest of these bytes.

        Raises:
            CodecError: It cannot be written as JSON.
        """
        made = self._digest
        if made is None:
            begun = self._begin()
            if begun is None:
                made = digest_of(self.data)
            else:
                whole = begun.copy()
                whole.update(_ENDS[self.tree.__class__])
                made = whole.hexdigest()
            self._digest = made
        return made

    def _begin(self) -> Any:
        """A hash of the bytes but the last one; `None` where what is added to the value is not just written there."""
        if self._hash is None and self.tree.__class__ in _ENDS and _SURROGATE not in self.data:
            self._hash = blake2b(self.data[:-1], digest_size=DIGEST_BYTES)
        return self._hash

    def keep(self, old: Known) -> None:
        """It is stored as it was: what is known of that holds."""
        self._data, self._digest, self._hash = old._data, old._digest, old._hash

    def extend(self, old: Known, more: Any) -> None:
        """It is the old value with more at its end, so its digest takes only the new bytes.

        Raises:
            CodecError: It cannot be written as JSON.
        """
        begun, new = old._begin(), dump(more)
        if begun is None or _SURROGATE in new:
            # A text with a surrogate is written in another way, all of it. That it can be is found out now.
            self._data = dump(self.tree)
            return
        self._hash = begun.copy()
        self._hash.update(b"," + new[1:-1] if old.tree and not isinstance(more, str) else new[1:-1])


def known_of(fields: Mapping[str, object]) -> dict[str, Known]:
    """Fields that are stored already."""
    return {key: Known(tree) for key, tree in fields.items()}


def known_fields(state: object, codec: Codec) -> dict[str, Known]:
    """Every field of a state in its stored form.

    Raises:
        CodecError: A field cannot be stored; `where` begins with its name.
    """
    found: dict[str, Known] = {}
    for key, value in _fields(state).items():
        try:
            found[key] = Known(codec.encode(value), value)
        except CodecError as error:
            raise inside(error, f"state.{key}" if key else "state") from error
    return found


def changes(before: Mapping[str, Known], after: Mapping[str, Known]) -> tuple[Change, ...]:
    """The delta between two states.

    Raises:
        CodecError: A field cannot be stored; `where` begins with its name.
    """
    found: list[Change] = []
    moved: set[str] = set()
    if list(before) != list(after):
        found = [Change("unset", key, old.digest) for key, old in before.items() if key not in after]
        moved = _moved(before, after)
        found += [Change("unset", key, before[key].digest) for key in moved if key in before]
    for key, now in after.items():
        try:
            change = _change(key, None if key in moved else before.get(key), now)
        except CodecError as error:
            raise inside(error, f"state.{key}" if key else "state") from error
        if change is not None:
            found.append(change)
    return tuple(found)


def _moved(before: Mapping[str, Known], after: Mapping[str, Known]) -> set[str]:
    """The fields from the first on that has another place than it would have if each stayed where it was."""
    stay = [key for key in before if key in after] + [key for key in after if key not in before]
    for index, (one, other) in enumerate(zip(stay, after, strict=True)):
        if one != other:
            return set(list(after)[index:])
    return set()


def _change(key: str, old: Known | None, now: Known) -> Change | None:
    if old is None:
        return Change("set", key, None, now.tree)
    same = is_unchanged(old.tree, now.tree)
    if same or (same is None and old.data == now.data):
        now.keep(old)
        return None
    kept = now.value is old.value
    if is_list(old.tree) and is_list(now.tree) and starts_with(now.tree, old.tree):
        more = now.tree[len(old.tree) :]
        now.extend(old, more)
        return Change("append", key, old.digest, more, kept)
    operations = difference(old.tree, now.tree)
    if operations is None or not _is_shorter(operations, now):
        return Change("set", key, old.digest, now.tree, kept)
    more = added(old.tree, operations)
    if more is not None:
        now.extend(old, more)
    return Change("patch", key, old.digest, operations, kept)


def _is_shorter(operations: object, now: Known) -> bool:
    """Whether operations are shorter than what they lead to; a part has at least a byte, so most need no more."""
    size = len(dump(operations))
    return size < len(now.tree) or size < len(now.data)


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
        latest[change.key] = None if old is None else old.digest
        if latest[change.key] != change.before:
            return change.key or "state"
    return None


def apply_changes(state: object, given: Sequence[Change], codec: Codec) -> None:
    """Change a state as it was changed once before. It stays the same object, and so does what was changed in place.

    Raises:
        CodecError: What was stored does not fit the state's type.
    """
    try:
        _apply(state, given, codec)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise CodecError(f"a stored change does not fit: {type(error).__name__}: {error}", where="state") from error


def _apply(state: object, given: Sequence[Change], codec: Codec) -> None:
    kind: object = state.__class__
    hints = _hints(kind)
    if any(change.key == WHOLE for change in given):
        _apply_whole(state, given, codec)
        return
    for change in given:
        if change.op == "unset":
            _unset(state, change.key)
            continue
        old = state_fields(state).get(change.key)
        try:
            value = changed_value(old, change, hints.get(change.key, object), codec)
        except CodecError as error:
            raise inside(error, f"state.{change.key}") from error
        # Holders of the object see it change, as when it was changed.
        _set(state, change.key, _put_into(old, value) if change.kept else value)


def changed_value(old: object, change: Change, kind: object, codec: Codec) -> Any:
    """What a field, or a state without fields, holds after a change other than `"unset"`.

    Args:
        old: What it holds.
        change: The change.
        kind: The type that it is read as.
        codec: What reads it.

    Raises:
        CodecError: The change does not fit.
    """
    if change.op == "patch":
        return codec.decode(patched(codec.encode(old), change.tree), kind)
    value = codec.decode(change.tree, kind)
    if change.op == "append":
        if not is_list(old):
            raise CodecError("is not a list, so nothing can be appended to it")
        return [*old, *value]
    return value


def changed_tree(old: object, change: Change) -> object:
    """The same of stored forms.

    Raises:
        CodecError: The change does not fit.
    """
    if change.op == "patch":
        return patched(old, change.tree)
    if change.op == "append":
        if not is_list(old):
            raise CodecError("is not a list, so nothing can be appended to it")
        return [*old, *change.tree]
    return change.tree


def require_readable(
    state: object,
    given: Iterable[Change],
    known: Mapping[str, Known],
    codec: Codec,
    *,
    declared: object = None,
    where: str = "state",
) -> None:
    """Refuse changes of a state that could be stored, and from which its values could not be made again.

    Args:
        state: The state.
        given: The changes.
        known: Its fields after them.
        codec: What stores it.
        declared: The type that it is read as when it is stored as a whole; its class when left out.
        where: What it is called.

    Raises:
        CodecError: That is so; `where` begins with the field's name.
    """
    kind: object = state.__class__
    hints = _hints(kind)
    whole: object = declared or (object if isinstance(state, StateBag) else kind)
    for change in given:
        if change.op == "unset":
            continue
        try:
            _require_readable(change, known, hints.get(change.key, object) if change.key else whole, codec)
        except CodecError as error:
            raise inside(error, f"{where}.{change.key}" if change.key else where) from error


def _require_readable(change: Change, known: Mapping[str, Known], kind: object, codec: Codec) -> None:
    if change.op != "patch":
        codec.require_readable(change.tree, kind)
        return
    now: object = known[change.key].tree
    try:
        codec.require_readable(touched(now, change.tree), kind)
    except CodecError:
        # The type may ask for what was there before: a tuple for all its elements.
        codec.require_readable(now, kind)


def field_trees(tree: object) -> dict[str, object]:
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


def state_tree(like: Any, fields: Mapping[str, object], name: str | None = None) -> object:
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


def changed_fields(fields: Mapping[str, object], given: Iterable[Change]) -> Mapping[str, object]:
    """The stored fields of a state after changes.

    Raises:
        CodecError: A change does not fit the field.
    """
    made = dict(fields)
    for change in given:
        if change.op == "unset":
            made.pop(change.key, None)
            continue
        try:
            made[change.key] = changed_tree(made.get(change.key), change)
        except CodecError as error:
            raise inside(error, f"state.{change.key}") from error
    return made


def _apply_whole(state: Any, given: Sequence[Change], codec: Codec) -> None:
    """A state without fields, or one that had none before, or has none from now on."""
    whole = next((change for change in given if change.key == WHOLE and change.op != "unset"), None)
    bag = isinstance(state, StateBag)
    if whole is None:
        restore_state(state, StateBag() if bag else {})
        apply_changes(state, [change for change in given if change.key != WHOLE], codec)
        return
    value = changed_value(dict(state.view()) if bag else state, whole, object if bag else state.__class__, codec)
    restore_state(state, StateBag(value) if bag else value)


def _put_into(old: Any, new: Any) -> object:
    """The new value, as the old object where that can be changed."""
    kind: object = new.__class__
    if old.__class__ is not kind:
        return new
    if is_dict(new):
        restore_state(old, {key: _put_into(old.get(key), value) for key, value in new.items()})
        return old
    if not isinstance(new, (list, set)):
        return _put_fields(old, new)
    restore_state(old, new)
    return old


def _put_fields(old: object, new: object) -> object:
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


def _has_fields(state: object) -> bool:
    if isinstance(state, StateBag):
        return WHOLE not in state
    if is_dict(state):
        return all(isinstance(key, str) and key for key in state)
    kind: object = state.__class__
    return hasattr(state, "__dict__") or hasattr(kind, "__attrs_attrs__")


def _fields(state: object) -> dict[str, object]:
    if _has_fields(state):
        # Which fields were given to a pydantic model is not stored with it.
        return {key: value for key, value in state_fields(state).items() if key != "__pydantic_fields_set__"}
    return {WHOLE: dict(state.view()) if isinstance(state, StateBag) else state}


def _set(state: object, key: str, value: object) -> None:
    if isinstance(state, (StateBag, dict)):
        state[key] = value
    else:
        object.__setattr__(state, key, value)


def _unset(state: object, key: str) -> None:
    if isinstance(state, (StateBag, dict)):
        del state[key]
    else:
        object.__delattr__(state, key)


@lru_cache(256)
def _hints(kind: type[object]) -> dict[str, object]:
    try:
        return get_type_hints(kind)
    except Exception:  # noqa: BLE001 # an annotation that does not resolve: the value is read by its own marks
        return {}


# ---------------------------------------------------------------------------------------------------- operations


def difference(old: object, now: object) -> list[Operation] | None:
    """The operations that make the later value of the earlier one; `None` where one of them would put the whole value.

    Args:
        old: The earlier value, in its stored form.
        now: The later one.
    """
    found: list[Operation] = []
    _compare(old, now, (), found)
    return None if any(name == "put" and not path for name, path, *_ in found) else found


def added(old: Any, operations: Sequence[Operation]) -> Any:
    """What operations add at the end of a text or a dict, as a text or dict of its own; `None` if they do more."""
    match operations:
        case [["splice", [], start, 0, str() as more]] if start == len(old):
            return more
        case [*_] if all(name == "put" and len(path) == 1 for name, path, *_ in operations) and is_dict(old):
            entries = {path[0]: given for _, path, given in operations}
            return entries if old.keys().isdisjoint(entries) else None
        case _:
            return None


def is_unchanged(old: Any, now: Any) -> bool | None:
    """Whether two values are stored alike, as far as the identity of their parts tells; `None` if it does not."""
    kind: object = now.__class__
    if old is now or old.__class__ is not kind:
        return old is now
    if kind is str:
        return bool(old == now)
    if kind is not list and kind is not dict:
        return None
    if len(old) != len(now):
        return False
    alike = _begins(old, now) and (kind is list or _begins(old.values(), now.values()))
    return True if alike else None


def starts_with(now: list[object], old: list[object]) -> bool:
    """Whether a list is stored as an earlier one was, with more at its end."""
    return len(old) < len(now) and (_begins(old, now) or _same(old, now[: len(old)]))


def _begins(old: Iterable[object], now: Iterable[object]) -> bool:
    """Whether two containers hold the same objects, up to where the shorter one ends; compared in C."""
    return all(map(operator.is_, old, now))


def _compare(old: Any, now: Any, path: tuple[Key, ...], found: list[Operation]) -> None:
    if old is now:
        return
    kind: object = now.__class__
    if old.__class__ is not kind:
        found.append(["put", list(path), now])
    elif kind is dict:
        _compare_dicts(old, now, path, found)
    elif kind is list:
        _compare_lists(old, now, path, found)
    elif kind is str:
        _compare_texts(old, now, path, found)
    elif not _same(old, now):
        found.append(["put", list(path), now])


def _same(old: object, now: object) -> bool:
    """Whether two stored values are stored alike: to Python 1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    return old is now or (old == now and (now.__class__ is str or dump(old) == dump(now)))


def _compare_dicts(
    old: dict[str, object], now: dict[str, object], path: tuple[Key, ...], found: list[Operation]
) -> None:
    if old.get("$") != now.get("$"):
        found.append(["put", list(path), now])
        return
    # The order of the entries is part of the value, and what is put comes last.
    keys = list(now)
    kept, own = 0, list[Operation]()
    if len(old) <= len(keys) and _begins(old, now):
        kept = len(old)
    else:
        for key in old:
            if kept < len(keys) and keys[kept] == key:
                kept += 1
            else:
                own.append(["del", [*path, key]])
    if own:
        changed = [key for key in keys[:kept] if old[key] is not now[key]]
    else:
        changed = list(compress(keys, map(operator.is_not, old.values(), now.values())))
    for key in changed:
        _compare(old[key], now[key], (*path, key), own)
    own += [["put", [*path, key], now[key]] for key in keys[kept:]]
    found += own if len(own) <= len(keys) else [["put", list(path), now]]


def _compare_lists(old: list[object], now: list[object], path: tuple[Key, ...], found: list[Operation]) -> None:
    shorter = min(len(old), len(now))
    start = shorter if _begins(old, now) else _common(old, now, shorter)
    end = _common(old[start:][::-1], now[start:][::-1], shorter - start)
    before, after = old[start : len(old) - end], now[start : len(now) - end]
    pairs = min(len(before), len(after))
    if pairs and (before[0].__class__ is not after[0].__class__ or after[0].__class__ not in (dict, list, str)):
        pairs = 0
    own: list[Operation] = []
    for index in range(pairs):
        _compare(before[index], after[index], (*path, start + index), own)
    if len(own) > 1 + len(now) // 2:
        pairs, own = 0, []
    if len(before) > pairs or len(after) > pairs:
        own.append(["splice", list(path), start + pairs, len(before) - pairs, after[pairs:]])
    found += own


def _compare_texts(old: str, now: str, path: tuple[Key, ...], found: list[Operation]) -> None:
    if old == now:
        return
    shorter = min(len(old), len(now))
    start = len(old) if now.startswith(old) else _common(old, now, shorter)
    end = _common(old[start:][::-1], now[start:][::-1], shorter - start)
    if path and start + end < _SHORT:
        found.append(["put", list(path), now])
    else:
        found.append(["splice", list(path), start, len(old) - start - end, now[start : len(now) - end]])


def _common(one: Any, other: Any, longest: int) -> int:
    """How many elements at their beginning two lists, or texts, have in common."""
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if _same(one[low:middle], other[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


# ----------------------------------------------------------------------------------------------------- what is read


def is_patch(value: object) -> bool:
    """Whether a stored value is a list of operations."""
    return is_list(value) and all(map(_is_operation, value))


def _is_operation(value: object) -> bool:
    if not is_list(value) or len(value) < 2 or not _is_path(value[1]):
        return False
    match value:
        case ["put", [_, *_], _] | ["del", [*_, str()]]:
            return True
        case ["splice", _, start, count, str() | [*_]]:
            return _is_index(start) and _is_index(count)
        case _:
            return False


def _is_path(value: object) -> bool:
    return is_list(value) and all(isinstance(key, str) or _is_index(key) for key in value)


def _is_index(value: object) -> bool:
    return type(value) is int and value >= 0


def patched(tree: object, operations: Sequence[Operation]) -> Any:
    """A stored value after the operations. The given one stays as it is; the two share what is alike.

    Raises:
        CodecError: An operation does not fit the value.
    """
    root: list[Any] = [tree]
    own: dict[int, object] = {}
    for name, path, *given in operations:
        holder: Any = root
        key: Any = 0
        try:
            for below in path:
                holder, key = _owned(holder, key, own), below
            if name == "splice":
                _splice(holder, key, own, *given)
            elif name == "put" and (is_dict(holder) or 0 <= key < len(holder)):
                holder[key] = given[0]
            elif name == "del" and is_dict(holder):
                del holder[key]
            else:
                raise LookupError(key)
        except (LookupError, TypeError) as error:
            where = "".join(f"[{each!r:.60}]" for each in path)
            raise CodecError(f"a stored {name} does not fit the value that it changes", where=where) from error
    return root[0]


def _owned(holder: Any, key: Any, own: dict[int, object]) -> Any:
    """What a container holds at a key, as a container that may be changed."""
    value = holder[key]
    if id(value) not in own:
        if not is_dict(value) and not is_list(value):
            raise TypeError(key)
        value = holder[key] = value.copy()
        own[id(value)] = value
    return value


def _splice(holder: Any, key: Any, own: dict[int, object], start: int, count: int, new: Any) -> None:
    value = holder[key]
    if value.__class__ is not new.__class__ or start + count > len(value):
        raise LookupError(start)
    if isinstance(value, str):
        holder[key] = value[:start] + new + value[start + count :]
    else:
        _owned(holder, key, own)[start : start + count] = new


def touched(tree: Any, operations: Sequence[Operation]) -> Any:
    """A value as short as it can be that holds what the operations have put into it: to be read in its place.

    Args:
        tree: The value after the operations.
        operations: They.
    """
    below: dict[Any, list[Operation]] = {}
    new: list[Any] = []
    for name, path, *given in operations:
        if path:
            below.setdefault(path[0], []).append([name, path[1:], *given])
        elif name == "put" or isinstance(tree, str):
            return tree
        elif name == "splice":
            new += given[2]
    found: dict[Any, Any] = {
        key: touched(tree[key], inner) for key, inner in below.items() if is_list(tree) or key in tree
    }
    if is_list(tree):
        return [*found.values(), *new]
    return {**tree, **found} if "$" in tree else found
