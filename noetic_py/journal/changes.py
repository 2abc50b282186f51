"""How layers' states and the view were changed between two moments, so that only what changed is stored.

The states of all layers are one mapping that is replaced and never changed in place, so two moments are compared by
identity first, and only what is another object then by its stored form. The stored form of a view is a mapping that
`memory/view_state.py` makes and reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import digest_of, inside
from noetic_py.core.items import Item
from noetic_py.core.state import NO_LAYER_STATES, LayerStates
from noetic_py.core.values import is_dict
from noetic_py.errors import CodecError
from noetic_py.journal import patches, values
from noetic_py.journal.fields import ValueKind

_MISSING = object()


class StoredLayerStates:
    """The states as they were stored last, with their stored forms as far as these are known."""

    __slots__ = ("_forms", "layer_states")

    def __init__(self, layer_states: LayerStates = NO_LAYER_STATES) -> None:
        self.layer_states: LayerStates = layer_states
        self._forms: dict[str, dict[str, patches.Known]] = {}

    def changes(self, now: LayerStates, codec: Codec) -> tuple[values.LayerDeltas, StoredLayerStates]:
        """The delta between two sets of layer states, and the later set as stored.

        Raises:
            CodecError: A state cannot be stored; `where` says the layer and the field.
        """
        after = StoredLayerStates(now)
        found: list[tuple[str, tuple[patches.Change, ...]]] = []
        for layer in (*self.layer_states, *(each for each in now if each not in self.layer_states)):
            old, new = self.layer_states.get(layer, _MISSING), now.get(layer, _MISSING)
            if old is new:
                if layer in self._forms:
                    after._forms[layer] = self._forms[layer]
                continue
            delta = _delta(self.form(layer, codec), after.form(layer, codec), old, new, codec)
            if delta:
                found.append((layer, delta))
        return tuple(found), after

    def form(self, layer: str, codec: Codec) -> dict[str, patches.Known]:
        """The fields of a layer's state in their stored form; none where it has no state.

        Raises:
            CodecError: It cannot be stored; `where` says the layer and the field.
        """
        found = self._forms.get(layer)
        if found is None and layer in self.layer_states:
            try:
                found = self._forms[layer] = patches.known_fields(self.layer_states[layer], codec)
            except CodecError as error:
                raise inside(error, f"memory.{layer}") from error
        return found or {}


def _delta(
    before: dict[str, patches.Known], after: dict[str, patches.Known], old: object, new: object, codec: Codec
) -> tuple[patches.Change, ...]:
    if new is _MISSING:
        return (patches.Change("unset", patches.WHOLE, None),)
    if type(old) is type(new) and (patches.WHOLE in before) == (patches.WHOLE in after):
        return patches.changes(before, after)
    # Its type is not known from what was there, so all of it is stored.
    return (patches.Change("set", patches.WHOLE, None, codec.encode(new)),)


def apply_layer_states(
    layer_states: LayerStates, deltas: values.LayerDeltas, types: Callable[[str], object], codec: Codec
) -> LayerStates:
    """The states, changed as they were changed once before.

    Args:
        layer_states: The states as they are.
        deltas: The changes.
        types: The type of a layer's state, by the layer's id.
        codec: What reads them.

    Raises:
        CodecError: What was stored does not fit the state's type; `where` says the layer and the field.
    """
    if not deltas:
        return layer_states
    made = dict(layer_states)
    for layer, given in deltas:
        try:
            value = _applied(made.get(layer, _MISSING), given, types(layer), codec)
        except CodecError as error:
            raise inside(error, f"memory.{layer}") from error
        if value is _MISSING:
            made.pop(layer, None)
        else:
            made[layer] = value
    return made


def _applied(old: Any, given: tuple[patches.Change, ...], kind: object, codec: Codec) -> object:
    whole = next((change for change in given if change.key == patches.WHOLE), None)
    if whole is None:
        value = copy.copy(old)
        patches.apply_changes(value, given, codec)
        return value
    if whole.op == "unset":
        return _MISSING
    # Whatever its type is, a layer may forget its state.
    return None if whole.tree is None else patches.changed_value(old, whole, kind, codec)


def changed_tree(tree: Any, given: Sequence[patches.Change], missing: object) -> object:
    """A layer's stored state after changes; `missing` stands for none.

    Raises:
        CodecError: A change does not fit the state.
    """
    whole = next((change for change in given if change.key == patches.WHOLE), None)
    if whole is None:
        return patches.state_tree(tree, patches.changed_fields(patches.field_trees(tree), given))
    if whole.op == "unset":
        return missing
    return patches.changed_tree(tree, whole)


def unlike(layer_states: LayerStates, deltas: values.LayerDeltas, codec: Codec) -> str | None:
    """The first layer whose state is not what it was when these changes were made; `None` when all are."""
    for layer, given in deltas:
        if layer not in layer_states or all(change.before is None for change in given):
            continue
        known = patches.known_fields(layer_states[layer], codec)
        for change in given:
            found = known.get(change.key)
            if change.before is not None and (None if found is None else found.digest) != change.before:
                return layer
    return None


# -------------------------------------------------------------------------------------------- of the view


ViewState = Mapping[str, Any]
"""The stored form of a view; empty where nothing was decided for it."""


@frozen
class ViewChange:
    """How a view differs from an earlier one.

    Attributes:
        after: The model call of the earlier one, `None` for the view that the run began with.
        put: What is new or different.
        gone: What is there no more.
    """

    after: tuple[str, ...] | None
    put: ViewState
    gone: Sequence[str] = ()

    def applied(self, before: ViewState) -> ViewState:
        """The view, from the earlier one."""
        return {**{key: value for key, value in before.items() if key not in self.gone}, **self.put}


def views_in(records: Iterable[Any], begun: ViewState) -> Iterator[tuple[tuple[str, ...], ViewState]]:
    """The views of a journal with the model calls that they were made for; of a call that was discarded too.

    Args:
        records: The journal.
        begun: The view that the run began with.
    """
    found: dict[tuple[str, ...] | None, ViewState] = {None: begun}
    for record in records:
        change: ViewChange | None = getattr(record, "view", None)
        if isinstance(change, ViewChange):
            found[record.path] = change.applied(found.get(change.after, {}))
            yield record.path, found[record.path]


def last_views(records: Iterable[Any], begun: ViewState) -> dict[tuple[str, ...] | None, ViewState]:
    """The last view of each model call in a journal, and under `None` the one that the run began with."""
    return {None: begun, **dict(views_in(records, begun))}


def view_change(before: ViewState, now: ViewState, after: tuple[str, ...] | None = None) -> ViewChange | None:
    """How two views differ; `None` when they do not."""
    put = {key: value for key, value in now.items() if key not in before or before[key] != value}
    gone = [key for key in before if key not in now]
    return ViewChange(after, put, gone) if put or gone else None


def _write(change: ViewChange | None, _: object) -> Any:
    return None if change is None else {"of": change.after, "put": change.put, "gone": [*change.gone]}


def _read(tree: Any, _: object) -> ViewChange:
    of = tree["of"]
    return ViewChange(None if of is None else tuple(of), tree["put"], tuple(tree["gone"]))


VIEW = ValueKind(
    "an object of of, put and gone",
    values.object_of(
        {
            "of": lambda path: path is None or values.is_path(path),
            "put": is_dict,
            "gone": values.each_of(values.is_text),
        }
    ),
    _write,
    _read,
)


def item_mark(item: Item) -> str:
    """Stands for the content of an item, whatever its id is."""
    return digest_of(repr(evolve(item, id="")).encode(errors="surrogatepass"))


def clipped(state: ViewState, items: Sequence[Item]) -> ViewState:
    """A view of a conversation of which no more than these items at the start are left as they were."""
    if not state or len(items) >= state["shown"][0]:
        return state
    _, cut, end, first, _, first_round, repeated = state["shown"]
    last = item_mark(items[-1]) if items else ""
    return {**state, "shown": [len(items), cut, end, first, last, first_round, repeated]}
