"""Joining what was written side by side: the state of a run and those of its layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from noetic_py.context.read import ContextScope
from noetic_py.core.reducers import Conflict, join
from noetic_py.core.reducers import join_declared as join_declared_fields
from noetic_py.core.state import LayerStates, copy_state, restore_state, state_fields
from noetic_py.core.values import alike, copy_private
from noetic_py.errors import ConfigError
from noetic_py.memory.layer import AnyLayer

CONFLICT = "state-conflict"
"""The code of the error of two writers whose changes nothing joins."""

Written = Sequence[tuple[str, ContextScope]]
"""The changes of parallel paths, by their names and in their order."""


def join_states(target: object, paths: Written, path: tuple[str, ...]) -> None:
    """Apply to `target`, which all paths began with, what each path has changed.

    Raises:
        ConfigError: Two have changed the same, and nothing says how to join that; code `"state-conflict"`.
    """
    touched = [(name, copy_state(each.state)) for name, each in paths if not each.untouched]
    if len(touched) == 1:
        restore_state(target, touched[0][1])
    elif touched:
        restore_state(target, _all_joined(copy_state(target), touched, join, "state", path, _STATE_HINT))


def join_declared(target: object, paths: Written, path: tuple[str, ...]) -> None:
    """The same of the fields alone that have a reducer.

    Raises:
        ConfigError: A reducer does not join what two have written; code `"state-conflict"`.
    """
    touched = [(name, copy_state(each.state)) for name, each in paths if not each.untouched]
    restore_state(target, _all_joined(copy_state(target), touched, join_declared_fields, "state", path, _STATE_HINT))


def lost_fields(base: object, paths: Written, joined: Collection[str]) -> dict[str, list[str]]:
    """The fields of the state that paths have changed, but for those that are joined; with the names of the paths."""
    before = state_fields(base)
    lost: dict[str, list[str]] = {}
    for name, scope in paths:
        after = state_fields(scope.state)
        for field in dict.fromkeys((*before, *after)):
            if field not in joined and not alike(before.get(field, _MISSING), after.get(field, _MISSING)):
                lost.setdefault(field, []).append(name)
    return lost


def join_layer_states(
    target: LayerStates, paths: Written, layers: Mapping[str, AnyLayer], path: tuple[str, ...]
) -> LayerStates:
    """The states of layers with what each path has changed of them; all paths began with `target`.

    Raises:
        ConfigError: Two have changed the same of a layer, and it does not say how to join that; code
            `"state-conflict"`.
    """
    made = dict(target)
    for key in dict.fromkeys(each for _, scope in paths for each in scope.layer_states):
        base = target.get(key, _MISSING)
        touched = [
            (name, each.layer_states[key]) for name, each in paths if each.layer_states.get(key, base) is not base
        ]
        if not touched:
            continue
        if len(touched) == 1 or base is _MISSING or key not in layers:
            made[key] = touched[-1][1]
        else:
            layer = layers[key]
            made[key] = _all_joined(base, touched, partial(merged, layer), f"memory.{key}", path, hint_of(layer))
    return made


def merged(layer: AnyLayer, base: Any, mine: object, theirs: object) -> object:
    """A layer's state of two that were written side by side, as the layer makes it; none of the three is changed.

    Raises:
        Conflict: Both have changed the same, and the layer does not say how to join that.
    """
    if alike(mine, base):
        return theirs
    if alike(theirs, base):
        return mine
    return copy_private(layer.merge(copy_private(base), copy_private(mine), copy_private(theirs)))


def _all_joined(
    base: object,
    written: Sequence[tuple[str, object]],
    one: Callable[[Any, Any, Any], Any],
    what: str,
    path: tuple[str, ...],
    hint: str,
) -> object:
    made = base
    for name, value in written:
        try:
            made = one(base, value, made)
        except Conflict as error:
            other = next(each for each, earlier in written if _clashes(one, base, value, earlier))
            raise conflict(what + error.where, f"{other!r} and by {name!r}", hint, path) from None
    return made


def _clashes(one: Callable[[Any, Any, Any], Any], base: object, value: object, earlier: object) -> bool:
    try:
        one(base, value, earlier)
    except Conflict:
        return True
    return False


_STATE_HINT = (
    "declare how its values are joined, as in `hits: Annotated[int, reducers.sum]`, or let one of them alone write it"
)


def hint_of(layer: AnyLayer) -> str:
    """How a layer says what becomes of two states."""
    return f"define merge(self, base, mine, theirs) in {type(layer).__name__}, or a reducer for the field of its state"


def conflict(what: str, who: str, hint: str, path: tuple[str, ...] = ()) -> ConfigError:
    """The error of two writers whose changes nothing joins."""
    return ConfigError(
        f"{what} was changed in parallel by {who}, and no merge is defined for it",
        code=CONFLICT,
        path=path,
        hint=hint,
    )


_MISSING: Any = object()
