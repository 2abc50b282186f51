"""The kinds of values in records: how each is stored, checked and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias, get_args

from attrs import frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import inside, parse
from noetic_py.core.control import Control, Partial, StopKind
from noetic_py.core.derivation import read_memory, write_memory
from noetic_py.core.items import Item, ItemBase
from noetic_py.core.log import Origin
from noetic_py.core.runtime import Trace
from noetic_py.core.types import version_order
from noetic_py.core.values import is_array, is_dict, is_list
from noetic_py.errors import BudgetExceeded, CodecError, ItemSchemaMismatch, NoeticError
from noetic_py.journal.fields import Fits, ValueKind, or_none, write_fields
from noetic_py.journal.patches import Change, is_patch

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
