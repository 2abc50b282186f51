"""How a stored value became another one, in operations that cost as much as what changed.

Both values are stored forms: what JSON knows. So one comparison serves every type: a tuple, a set and an object of a
class are marked objects whose parts are found below their marks. An operation is a list that JSON can hold:

- `["put", PATH, VALUE]`: the entry of a dict, which is new or has another value, or the element of a list.
- `["del", PATH]`: the entry of a dict that is gone.
- `["splice", PATH, START, COUNT, NEW]`: in a list or a text, so many elements or characters make way for new ones.

A path leads from the value down: keys of dicts and indexes of lists.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final, TypeAlias

from noetic_py.core.codec.structure import dump
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError

Key: TypeAlias = str | int
Operation: TypeAlias = list[Any]

_SHORT: Final = 64
"""A text that has fewer characters in common with the earlier one is stored whole: an operation is not shorter."""


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
