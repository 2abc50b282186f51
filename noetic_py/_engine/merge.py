"""Joining the states of a round's tool calls: what each changed is applied, in the order of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetic_py.context import Domain
from noetic_py.state import StateBag, copy_state, restore_state, state_fields

__all__ = ["join_states"]

_MISSING = object()


def join_states(target: Any, paths: Sequence[Domain]) -> None:
    """Apply to `target`, which all paths began with, what each path changed.

    A list that only grew is extended, so that two calls can both append; of two that set one field the later wins.
    """
    touched = [path.state for path in paths if not path.untouched]
    if len(touched) == 1:
        restore_state(target, copy_state(touched[0]))
        return
    base = copy_state(target)
    before = state_fields(base)
    for state in touched:
        _apply(target, before, state_fields(copy_state(state)))


def _apply(target: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
    now = state_fields(target)
    for name, value in after.items():
        old = before.get(name, _MISSING)
        if old is not _MISSING and old == value:
            continue
        if _grew(old, value) and isinstance(now.get(name), list):
            now[name] = [*now[name], *value[len(old) :]]
        else:
            now[name] = value
    for name in before:
        if name not in after:
            now.pop(name, None)
    _put(target, now)


def _grew(old: Any, new: Any) -> bool:
    """Whether a list was only appended to."""
    return type(old) is list and type(new) is list and bool(new[: len(old)] == old)  # pyright: ignore[reportUnknownArgumentType] # any list


def _put(target: Any, fields: dict[str, Any]) -> None:
    if isinstance(target, StateBag):
        restore_state(target, StateBag(fields))
    elif isinstance(target, dict):
        restore_state(target, fields)
    else:
        for name, value in fields.items():
            object.__setattr__(target, name, value)
