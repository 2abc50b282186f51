"""Joining the states of a round's tool calls: what each changed is applied, in the order of the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetic_py.domain import Domain
from noetic_py.state import Cells, StateBag, copy_state, restore_state, state_fields

__all__ = ["join_cells", "join_states", "joined"]

_MISSING = object()


def join_states(target: Any, paths: Sequence[Domain]) -> None:
    """Apply to `target`, which all paths began with, what each path changed.

    A list that only grew is extended, so that two calls can both append; of two that set one field the later wins.
    """
    touched = [copy_state(path.state) for path in paths if not path.untouched]
    if len(touched) == 1:
        restore_state(target, touched[0])
        return
    base = copy_state(target)
    for state in touched:
        restore_state(target, _joined(base, state, copy_state(target)))


def join_cells(target: Cells, paths: Sequence[Cells], layers: Mapping[str, Any]) -> Cells:
    """The states of layers with what each path has changed of them; all paths began with `target`."""
    made = dict(target)
    for cells in paths:
        for layer, value in cells.items():
            base = target.get(layer, _MISSING)
            if value is not base:
                one_only = made.get(layer, _MISSING) is base
                made[layer] = value if one_only else joined(base, value, made[layer], layers.get(layer))
    return made


def joined(base: Any, changed: Any, now: Any, layer: Any = None) -> Any:
    """`now` with the changes that lead from `base` to `changed`; none of these is changed itself.

    A layer that has a `join` knows best what its state means: a window keeps its limit, and loses no entry.
    """
    join = getattr(layer, "join", None)
    if join is not None and base is not _MISSING:
        return join(base, changed, now)
    return _joined(base, changed, copy_state(now))


def _joined(base: Any, changed: Any, now: Any) -> Any:
    """`now` with the changes that lead from `base` to `changed`."""
    if changed == base:
        return now
    if isinstance(now, list):
        return [*now, *changed[len(base) :]] if _grew(base, changed) else changed
    if isinstance(now, set):
        return (now | (changed - base)) - (base - changed)
    if not (before := state_fields(base)) and not state_fields(changed):
        return changed
    _join_fields(now, before, state_fields(changed))
    return now


def _join_fields(now: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
    fields = state_fields(now)
    for name, value in after.items():
        old = before.get(name, _MISSING)
        if old is _MISSING or name not in fields:
            fields[name] = value
        elif _grew(old, value) and isinstance(fields[name], list):
            fields[name] = [*fields[name], *value[len(old) :]]
        elif old != value:
            fields[name] = value
    for name in before:
        if name not in after:
            fields.pop(name, None)
    _put(now, fields)


def _grew(old: Any, new: Any) -> bool:
    """Whether a list was only appended to."""
    return _is_list(old) and _is_list(new) and bool(new[: len(old)] == old)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _put(target: Any, fields: dict[str, Any]) -> None:
    if isinstance(target, StateBag):
        restore_state(target, StateBag(fields))
    elif isinstance(target, dict):
        restore_state(target, fields)
    else:
        for name, value in fields.items():
            object.__setattr__(target, name, value)
