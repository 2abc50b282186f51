"""The kinds of values in records: how each is stored, checked and read; and deltas of state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from attrs import define, field, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump, inside, parse
from noetic_py.core.control import Control, Partial, StopKind
from noetic_py.core.derivation import read_memory, write_memory
from noetic_py.core.items import Item, ItemBase
from noetic_py.core.log import Origin
from noetic_py.core.runtime import Trace
from noetic_py.core.state import StateBag, restore_state, state_fields
from noetic_py.core.types import version_order
from noetic_py.core.values import is_array, is_dict, is_list
from noetic_py.errors import BudgetExceeded, CodecError, ItemSchemaMismatch, NoeticError
from noetic_py.journal.fields import Fits, ValueKind, or_none, write_fields
from noetic_py.journal.patches import added, difference, is_patch, is_unchanged, patched, starts_with, touched

WHOLE = ""
"""The key of a state that has no fields: a list, a set, a dict whose keys are not names."""


_DIGEST = 8


def digest_of(data: bytes) -> str:
    """A short digest of stored bytes; 64 bits, to notice a difference, not an attack."""
    return blake2b(data, digest_size=_DIGEST).hexdigest()


_ENDS: Mapping[type[object], bytes] = {str: b'"', list: b"]", dict: b"}"}
_SURROGATE = b"\\ud"
"""The beginning of an escaped surrogate in JSON."""


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
            self._hash = blake2b(self.data[:-1], digest_size=_DIGEST)
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


Path: TypeAlias = tuple[str, ...]

_MAX_COUNT = 2**63


@frozen(eq=False)
class Stored:
    """A value in its stored form: the code that knows its type makes it."""

    tree: Any


@frozen(eq=False)
class SameAsChild:
    """The output of a composite that is its child's, and so is stored there."""

    name: str


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


LayerDeltas: TypeAlias = tuple[tuple[str, tuple[Change, ...]], ...]
"""How layers' states were changed, by the layer's id."""


# ---------------------------------------------------------------------------------------------------- what fits


def is_text(value: object) -> bool:
    """Whether a stored value is a text."""
    return isinstance(value, str)


def is_count(value: object) -> bool:
    """Whether a stored value is a whole number from 0 on."""
    return type(value) is int and 0 <= value < _MAX_COUNT


def is_attempt(value: Any) -> bool:
    """Whether a stored value is a whole number from 1 on."""
    return is_count(value) and value > 0


def is_flag(value: object) -> bool:
    """Whether a stored value is true or false."""
    return isinstance(value, bool)


def is_cost(value: object) -> bool:
    """Whether a stored value is the text of a finite number."""
    try:
        return isinstance(value, str) and Decimal(value).is_finite()
    except InvalidOperation:
        return False


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_json_object(value: object) -> bool:
    return isinstance(value, str) and is_dict(parse(value, len(value) * 4 + 1, "arguments"))


def _anything(_: object) -> bool:
    return True


def each_of(fits: Fits) -> Fits:
    """A list of what fits."""
    return lambda value: is_array(value) and all(map(fits, value))


def pair_of(first: Fits, second: Fits) -> Fits:
    """A list of two that fit."""
    return lambda value: is_list(value) and len(value) == 2 and first(value[0]) and second(value[1])


def is_one_of(given: object) -> Fits:
    """One of the texts of a `Literal`."""
    known = frozenset(get_args(given))
    return lambda value: isinstance(value, str) and value in known


def object_of(fields: Mapping[str, Fits], optional: Mapping[str, Fits] | None = None) -> Fits:
    """An object whose values fit; other keys are passed over."""
    more = optional or {}
    return lambda value: (
        is_dict(value)
        and all(key in value and fits(value[key]) for key, fits in fields.items())
        and all(fits(value[key]) for key, fits in more.items() if key in value)
    )


def _reads(read: Callable[[object], object]) -> Fits:
    def fits(value: object) -> bool:
        try:
            read(value)
        except (TypeError, ValueError):
            return False
        return True

    return fits


is_path: Fits = each_of(is_text)
is_optional_text: Fits = or_none(is_text)


def _is_change(value: object) -> bool:
    if not is_list(value) or not 4 <= len(value) <= 5:
        return False
    op, key, before, tree, *kept = value
    return (
        op in ("set", "unset", "append", "patch")
        and is_text(key)
        and is_optional_text(before)
        and (op != "append" or is_list(tree))
        and (op != "patch" or is_patch(tree))
        and all(map(is_flag, kept))
    )


is_changes: Fits = each_of(_is_change)
_is_layers = each_of(pair_of(is_text, is_changes))
_is_control = object_of(
    {
        "kind": is_one_of(StopKind),
        "value": _anything,
        "reason": is_optional_text,
        "path": is_path,
        "at": is_path,
        "error": or_none(is_dict),
    },
    {"shutdown": or_none(is_one_of(Partial))},
)


def is_usage(value: object) -> bool:
    """Whether a stored value is a usage of tokens."""
    # Counts that a provider does not report are null, except input and output.
    return (
        is_list(value)
        and len(value) >= 5
        and all(map(is_count, value[:2]))
        and all(each is None or is_count(each) for each in value[2:])
    )


def _is_loop_stops(value: object) -> bool:
    return is_list(value) and len(value) % 2 == 0 and all(map(is_path, value[::2]))


def _is_versions(value: object) -> bool:
    return is_dict(value) and all(version_order(each) is not None for each in value.values())


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_digits(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20


def is_limits(value: object) -> bool:
    """Whether a stored value is a budget's limits, or null."""
    return _LIMITS(value)


_LIMITS = or_none(
    object_of(
        {
            "limits": lambda value: (
                is_dict(value)
                and all(is_cost(each) if name == "cost" else _is_digits(each) for name, each in value.items())
            ),
            "per_tool": lambda value: is_dict(value) and all(map(is_count, value.values())),
            "seconds": or_none(_is_number),
            "depth": or_none(is_count),
            "warn_at": _is_number,
            "wrap_up": is_optional_text,
            "reserve": is_limits,
        }
    )
)
_ACTION = is_one_of(Literal["allow", "ask", "deny"])
_RULES = object_of(
    {
        "otherwise": _ACTION,
        "rules": each_of(
            object_of(
                {
                    "action": _ACTION,
                    "tool": is_text,
                    "where": each_of(pair_of(is_text, is_text)),
                    "within": each_of(is_text),
                    "folders": each_of(is_text),
                }
            )
        ),
    }
)


# ---------------------------------------------------------------------------------------------------- stored forms


def _encode(value: object, codec: Codec) -> Any:
    return codec.encode(value)


def _decode(tree: object, codec: Codec) -> object:
    return codec.decode(tree)


def stored_form(value: object, codec: Codec) -> object:
    """The stored form of a value, which may be in it already."""
    return value.tree if isinstance(value, Stored) else codec.encode(value)


def write_items(items: Sequence[Item], codec: Codec, where: str = "items") -> list[object]:
    """Items in their stored form.

    Raises:
        CodecError: One cannot be stored; its `where` begins with the name that is given here, and the item's place.
    """
    trees: list[object] = []
    for index, item in enumerate(items):
        try:
            trees.append(codec.encode(item))
        except CodecError as error:
            raise inside(error, f"{where}[{index}]") from error
    return trees


def read_items(tree: Any, codec: Codec) -> tuple[Item, ...]:
    """Items from their stored form.

    Raises:
        ItemSchemaMismatch: One is something else.
    """
    found: list[Any] = [codec.decode(each) for each in tree or ()]
    if not all(isinstance(each, ItemBase) for each in found):
        raise ItemSchemaMismatch("holds something that is not an item", where="items")
    return tuple(found)


def write_origins(origins: Sequence[tuple[int, Origin | None]]) -> list[Any]:
    """Where items came from; empty when not known."""
    parts = [[count] if origin is None else [count, *origin] for count, origin in origins]
    return parts if any(origin is not None for _, origin in origins) else []


def read_origins(tree: Any) -> tuple[tuple[int, Origin | None], ...]:
    """The origins of items, in the form of `write_origins`.

    Raises:
        ValueError: It was not.
    """
    found: list[tuple[int, Origin | None]] = []
    for count, *origin in tree or ():
        if type(count) is not int or count < 0 or len(origin) not in (0, 2) or not all(type(e) is str for e in origin):
            raise ValueError(f"{[count, *origin]!r:.60} is not a valid origin of items")
        found.append((count, (origin[0], origin[1]) if origin else None))
    return tuple(found)


def write_changes(delta: Sequence[Change]) -> list[object]:
    """Changes of a state as JSON."""
    return [[change.op, change.key, change.before, change.tree, *((True,) if change.kept else ())] for change in delta]


def read_changes(tree: Any) -> tuple[Change, ...]:
    """Changes of a state from JSON."""
    return tuple(Change(*each) for each in tree or ())


def _write_layers(deltas: LayerDeltas) -> list[object]:
    return [[layer, write_changes(delta)] for layer, delta in deltas]


def _read_layers(tree: Any) -> LayerDeltas:
    return tuple((layer, read_changes(delta)) for layer, delta in tree or ())


def _write_paths(paths: Sequence[Path], _: Codec) -> list[list[str]]:
    return [list(path) for path in paths]


def _read_paths(tree: Any, _: Codec) -> tuple[Path, ...]:
    return tuple(tuple(path) for path in tree)


def dump_usage(usage: TokenUsage | None) -> object:
    """Tokens as a list of numbers."""
    if usage is None:
        return None
    first = [usage.input, usage.output, usage.cached_input, usage.cache_write, usage.reasoning]
    # Fields that were added later are in a record only if they are known.
    later = [getattr(usage, name) for name in _LATER]
    return first if later == _UNKNOWN else first + later


def read_usage(tree: Any) -> TokenUsage | None:
    """Tokens from a list of numbers."""
    return None if tree is None else TokenUsage(*tree)


_LATER = ("cache_write_1h", "input_audio", "output_audio", "input_image", "output_image")
_UNKNOWN = [None] * len(_LATER)


def _write_error(error: NoeticError, codec: Codec) -> object:
    return codec.encode(error)


def _read_error(tree: object, codec: Codec) -> NoeticError:
    found = codec.decode(tree)
    if not isinstance(found, NoeticError):
        raise CodecError("is not a valid stored error", where="error")
    return found


def _write_control(control: Control | None, codec: Codec) -> object:
    if control is None:
        return None
    return {
        "kind": control.kind,
        "value": stored_form(control.value, codec),
        "reason": control.reason,
        "path": list(control.path),
        "at": list(control.at),
        "error": None if control.error is None else _write_error(control.error, codec),
        **({} if control.shutdown is None else {"shutdown": control.shutdown}),
    }


def _read_control(tree: Any, codec: Codec) -> Control | None:
    if tree is None:
        return None
    error = None if tree["error"] is None else _read_error(tree["error"], codec)
    return Control(
        tree["kind"],
        value=Stored(tree["value"]),
        reason=tree["reason"],
        path=tuple(tree["path"]),
        at=tuple(tree["at"]),
        error=error if isinstance(error, BudgetExceeded) else None,
        shutdown=tree.get("shutdown"),
    )


def _write_loop_stops(stops: Sequence[tuple[Path, object]], codec: Codec) -> list[object]:
    # One list of them all, which of one is what earlier versions have written.
    return [part for path, value in stops for part in (list(path), stored_form(value, codec))]


def _read_loop_stops(tree: Any, _: Codec) -> tuple[tuple[Path, Stored], ...]:
    return tuple((tuple(path), Stored(value)) for path, value in zip(tree[::2], tree[1::2], strict=True))


# ---------------------------------------------------------------------------------------------------- kinds of values


def one_of(given: object) -> ValueKind:
    """One of the texts of a `Literal`."""
    return ValueKind(" or ".join(get_args(given)), is_one_of(given))


def nested(made: type[object], expected: str) -> ValueKind:
    """A value with declared fields, which are checked and read like those of the record."""
    return ValueKind(expected, lambda value: value is not None, write_fields, nested=made)


TEXT = ValueKind("text", is_text)
COUNT = ValueKind("a whole number from 0 on", is_count)
ATTEMPT = ValueKind("a whole number from 1 on", is_attempt)
FLAG = ValueKind("true or false", is_flag)
TIME = ValueKind("a time with an offset", _is_time)
ARGUMENTS = ValueKind("text of a JSON object", _is_json_object)
OBJECT = ValueKind("an object", is_dict)
ANY_JSON = ValueKind("JSON", _anything)
RULES = ValueKind("a list of rules with what becomes of other calls", each_of(_RULES))
LIMITS = ValueKind("limits or null", is_limits)
POSITION = ValueKind("a whole number from -1 on", lambda value: value == -1 or is_count(value))
POSITIONS = ValueKind(
    "a list of positions", each_of(is_count), lambda value, _: list(value), lambda tree, _: tuple(tree)
)
PATHS = ValueKind("a list of paths, each a list of texts", each_of(is_path), _write_paths, _read_paths)
COST = ValueKind(
    "text of a finite number",
    is_cost,
    lambda cost, _: None if cost is None else str(cost),
    lambda tree, _: None if tree is None else Decimal(tree),
)
USAGE = ValueKind(
    "a list of whole numbers from 0 on",
    is_usage,
    lambda usage, _: dump_usage(usage),
    lambda tree, _: read_usage(tree),
)
CONTROL = ValueKind("a stop: kind, value, reason, path, at, error", _is_control, _write_control, _read_control)
ERROR = ValueKind("a stored error", is_dict, _write_error, _read_error)
ITEMS = ValueKind(
    "a list of items", each_of(is_dict), lambda items, codec: write_items(items, codec, where=""), read_items
)
CHANGES = ValueKind(
    "a list of changes, each [op, key, before, value]",
    is_changes,
    lambda delta, _: write_changes(delta),
    lambda tree, _: read_changes(tree),
)
LAYERS = ValueKind(
    "a list of [layer, changes]",
    _is_layers,
    lambda deltas, _: _write_layers(deltas),
    lambda tree, _: _read_layers(tree),
)
REVISED_CHANGES = ValueKind(
    "a list of [position, changes]",
    each_of(pair_of(is_count, is_changes)),
    lambda deltas, _: [[position, write_changes(delta)] for position, delta in deltas.items()],
    lambda tree, _: {position: read_changes(delta) for position, delta in tree},
)
REVISED_LAYERS = ValueKind(
    "a list of [position, layers]",
    each_of(pair_of(is_count, _is_layers)),
    lambda memory, _: [[position, _write_layers(each)] for position, each in memory.items()],
    lambda tree, _: {position: _read_layers(each) for position, each in tree},
)
VERSIONS = ValueKind("an object of versions", _is_versions, lambda value, _: dict(value))
LOOP_STOPS = ValueKind("pairs of a path and a value", _is_loop_stops, _write_loop_stops, _read_loop_stops)
CHILD = ValueKind("the name of a child", is_text, lambda same, _: same.name, lambda tree, _: SameAsChild(tree))
VALUE = ValueKind("a stored value", _anything, stored_form, lambda tree, _: Stored(tree))
"""A value whose type is not known where it is read."""
ENCODED = ValueKind("a stored value", _anything, _encode, _decode)
"""A value that is of the types that a codec knows by itself."""
TREE = ValueKind(
    "a stored value",
    _anything,
    lambda value, _: value.tree if isinstance(value, Stored) else value,
    lambda tree, _: Stored(tree),
)
"""A value that was encoded before it was put into the record."""
METADATA = ValueKind(
    "an object with text keys",
    is_dict,
    lambda value, codec: codec.encode(dict(value)),
    _decode,
    holds=lambda value: is_dict(value) and all(map(is_text, value)),
)
TRACE = ValueKind(
    "a list of texts", is_path, lambda trace, _: trace.as_headers(), lambda tree, _: Trace.from_headers(tree)
)
ORIGINS = ValueKind(
    "a list of [count] or [count, run, branch]",
    _reads(read_origins),
    lambda origins, _: write_origins(origins),
    lambda tree, _: read_origins(tree),
)
MEMORY = ValueKind(
    "the memory of a context",
    _reads(read_memory),
    lambda memory, codec: write_memory(memory, codec.encode),
    lambda tree, _: read_memory(tree),
)
