"""Reducers: how two values of one field that were written side by side become one.

Tool calls of one round, parallel paths and runs that share memory each begin with the same values. Where two of them
have changed one field, its reducer says what it holds afterwards:

    @define
    class State:
        hits: Annotated[int, reducers.sum] = 0
        seen: Annotated[set[str], reducers.union] = Factory(set)

In a class of attrs or of dataclasses `field(metadata={"reducer": reducers.sum})` says the same, and in a subclass of
[`StateBag`][noetic_py.StateBag] `reducers = {"hits": reducers.sum}`. Without a reducer what both have changed is kept
where nothing of it gets lost: lists that grew, sets, different keys of a dict, different fields. All else is a
conflict.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from inspect import get_annotations
from typing import Any, Final, get_type_hints

from attrs import frozen

from noetic_py.core.state import StateBag, class_of, state_fields
from noetic_py.core.values import alike

_MISSING: Final[Any] = object()


class Conflict(Exception):
    """Two have written the same, and nothing says what it is to be; `where` names it, as `.counts['a']`."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


@frozen(eq=False, repr=False)
class Reducer:
    """Makes one value of two that were written side by side.

    Attributes:
        name: What it is called.
        apply: `(base, mine, theirs)`, of which `base` and one of the others may be `None` where there was no value:
            the value with what both have made of `base`. The order is that of the calls or paths: `mine` is the later.
        later: Whether the later counts where one has taken the value away, and the other has changed it; otherwise
            that is a conflict.
    """

    name: str
    apply: Callable[[Any, Any, Any], Any]
    later: bool = False

    def __repr__(self) -> str:
        return f"reducers.{self.name}"


def reducer(function: Callable[[Any, Any, Any], Any], *, later: bool = False) -> Reducer:
    """A reducer of your own: `reducer(lambda base, mine, theirs: max(mine, theirs))`.

    It is called with values that it must not change, and only where both have changed the field. What it gives has to
    follow from what it is given, for a resumed run asks it again.

    Args:
        function: `(base, mine, theirs)`; `base` is `None` where there was no value.
        later: As of [`Reducer`][noetic_py.core.reducers.Reducer].
    """
    return Reducer(getattr(function, "__name__", "reducer"), function, later)


def _sum(base: Any, mine: Any, theirs: Any) -> object:
    return theirs + mine if base is None else theirs + (mine - base)


def _union(base: Any, mine: object, theirs: Any) -> object:
    if isinstance(mine, Mapping):
        return by_key().apply(base, mine, theirs)
    if base is None:
        return theirs | mine
    return (theirs | (mine - base)) - (base - mine)


def _append(base: object, mine: Any, theirs: Any) -> object:
    return theirs + mine if base is None else theirs + _added(base, mine)


def _added(base: Any, value: Any) -> object:
    if value[: len(base)] != base:
        raise Conflict("")
    return value[len(base) :]


def _last(base: object, mine: object, theirs: object) -> object:
    return mine


sum: Final = Reducer("sum", _sum)  # noqa: A001 # users write `reducers.sum`
"""Numbers: what each has added is added."""
union: Final = Reducer("union", _union)
"""Sets: what each has put in is in, what each has taken out is out. Mappings: as `by_key()`."""
append: Final = Reducer("append", _append)
"""Lists, tuples and texts: what each has appended is appended; one that was changed otherwise is a conflict."""
last: Final = Reducer("last", _last, later=True)
"""The last written value, in the order of the calls or paths."""


def by_key(values: Reducer = last) -> Reducer:
    """Mappings, key by key: of a key that both have written `values` makes the value.

    Args:
        values: The reducer of the values; `last` when left out.
    """

    def apply(base: Any, mine: Any, theirs: Any) -> Any:
        before: Mapping[Any, Any] = {} if base is None else base
        made = dict(theirs)
        for key in [*mine, *(each for each in before if each not in mine)]:
            old, new, now = (each.get(key, _MISSING) for each in (before, mine, theirs))
            value = _one(old, new, now, values, f"[{key!r}]")
            if value is _MISSING:
                made.pop(key, None)
            else:
                made[key] = value
        return made

    return Reducer(f"by_key({values.name})", apply)


# ----------------------------------------------------------------------------------------------------------- declared


@lru_cache(512)
def reducers_of(kind: type[object]) -> Mapping[str, Reducer]:
    """The reducers that a class declares for its fields."""
    declared: Mapping[str, Any] = kind.reducers if issubclass(kind, StateBag) else {}
    found = {name: each for name, each in declared.items() if isinstance(each, Reducer)}
    for name, hint in _hints(kind).items():
        for each in getattr(hint, "__metadata__", ()):
            if isinstance(each, Reducer):
                found[name] = each
    fields = [*getattr(kind, "__attrs_attrs__", ()), *getattr(kind, "__dataclass_fields__", {}).values()]
    for each in fields:
        given = each.metadata.get("reducer")
        if isinstance(given, Reducer):
            found[each.name] = given
    return found


def _hints(kind: Any) -> dict[str, object]:
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        pass
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        # One by one, so that a name that is not there yet takes no reducer away from another field.
        for name, hint in get_annotations(base).items():
            found[name] = _evaluated(hint, vars(sys.modules.get(base.__module__, sys)))
    return found


def _evaluated(hint: object, names: dict[str, object]) -> object:
    def carrier() -> None: ...

    carrier.__annotations__ = {"it": hint}
    try:
        return get_type_hints(carrier, names, include_extras=True)["it"]
    except (NameError, TypeError):
        return None


# ------------------------------------------------------------------------------------------------------------- joining


def join(base: object, mine: object, theirs: object) -> Any:
    """The value that joins two changes of `base`; none of the three is changed.

    Raises:
        Conflict: Both have changed the same, and nothing says how to join that.
    """
    return _one(base, mine, theirs, None, "")


def join_declared(base: object, mine: object, theirs: object) -> object:
    """`theirs` with what `mine` has made of the fields that have a reducer; all other fields stay.

    Raises:
        Conflict: A reducer does not join what two have written.
    """
    before, after, made = state_fields(base), state_fields(mine), state_fields(theirs)
    for name, how in reducers_of(class_of(theirs)).items():
        parts = [each.get(name, _MISSING) for each in (before, after, made)]
        made[name] = _one(parts[0], parts[1], parts[2], how, f".{name}")
    return _with_parts(theirs, {name: value for name, value in made.items() if value is not _MISSING})


def _one(base: object, mine: object, theirs: object, how: Reducer | None, where: str) -> object:
    """One value of two; each may be missing."""
    if _same(mine, base):
        return theirs
    if _same(theirs, base):
        return mine
    if mine is _MISSING or theirs is _MISSING:
        if mine is theirs or (how is not None and how.later):
            return mine
        raise Conflict(where)
    if how is not None:
        try:
            return how.apply(None if base is _MISSING else base, mine, theirs)
        except Conflict as inner:
            raise Conflict(where + inner.where) from None
    return _joined(base, mine, theirs, where)


def _same(one: object, other: object) -> bool:
    return one is other or (one is not _MISSING and other is not _MISSING and alike(one, other))


def _joined(base: Any, mine: Any, theirs: Any, where: str) -> object:
    kind = class_of(mine)
    if class_of(theirs) is kind:
        before = base if class_of(base) is kind else _MISSING
        if kind is tuple or issubclass(kind, list):
            if _has_grown(before, mine) and _has_grown(before, theirs):
                return theirs + mine[0 if before is _MISSING else len(before) :]
        elif issubclass(kind, (set, frozenset)):
            return _union(None if before is _MISSING else before, mine, theirs)
        elif _has_parts(mine) and (before is not _MISSING or issubclass(kind, (dict, StateBag))):
            return _join_parts(before, mine, theirs, where)
        if _is_the_same_choice(base, mine, theirs):
            return theirs
    raise Conflict(where)


def _has_grown(before: Any, value: Any) -> bool:
    return before is _MISSING or bool(value[: len(before)] == before)


def _is_the_same_choice(base: object, mine: object, theirs: object) -> bool:
    """Whether both have set the same, and not counted, appended or taken out: two that add one write the same, too."""
    if not alike(mine, theirs):
        return False
    if isinstance(mine, (bool, Enum)) or mine is None:
        return True
    if isinstance(mine, (int, float, complex, Decimal)):
        return False
    kind = class_of(mine)
    if class_of(base) is not kind:
        return True
    appends = issubclass(kind, (str, bytes, list, tuple)) and _has_grown(base, mine)
    return not (appends or (issubclass(kind, (list, tuple)) and _has_shrunk(base, mine)))


def _has_shrunk(before: Any, value: Any) -> bool:
    """Whether something was taken out, and nothing else done."""
    left = iter(before)
    return len(value) < len(before) and all(any(alike(part, each) for each in left) for part in value)


def _has_parts(value: object) -> bool:
    return isinstance(value, (dict, StateBag)) or (
        not isinstance(value, (str, bytes, Enum)) and bool(state_fields(value))
    )


def _join_parts(base: object, mine: object, theirs: object, where: str) -> object:
    """A mapping key by key, an object field by field."""
    keyed = isinstance(mine, (dict, StateBag))
    declared = reducers_of(class_of(mine))
    before = {} if base is _MISSING else state_fields(base)
    after, made = state_fields(mine), state_fields(theirs)
    for name in [*after, *(each for each in before if each not in after)]:
        parts = [each.get(name, _MISSING) for each in (before, after, made)]
        place = f"{where}[{name!r}]" if keyed else f"{where}.{name}"
        value = _one(parts[0], parts[1], parts[2], declared.get(name), place)
        if value is _MISSING:
            made.pop(name, None)
        else:
            made[name] = value
    return _with_parts(theirs, made)


def _with_parts(like: object, parts: Mapping[str, object]) -> object:
    made: Any = copy.copy(like)
    if issubclass(class_of(made), (dict, StateBag)):
        for name in list(made):
            del made[name]
        for name, value in parts.items():
            made[name] = value
        return made
    for name in state_fields(made):
        if name not in parts:
            object.__delattr__(made, name)
    for name, value in parts.items():
        object.__setattr__(made, name, value)
    return made
