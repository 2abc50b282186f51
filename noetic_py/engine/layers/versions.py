"""Layers whose state has another form now: what is newer is refused, and what is older becomes what `migrate` makes.

What a journal holds of a layer stays as it was written. A `StateRevised` record says, for the records before it, what
they would say had the layer always had its new form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import define, field, frozen

from noetic_py.core.codec import MAX_VALUE_BYTES, Codec
from noetic_py.core.codec.structure import parse
from noetic_py.core.types import Version, version_order
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.journaling.fold import DETACHED_START, OPEN, ended_with
from noetic_py.engine.journaling.replay import opening_of
from noetic_py.engine.kind import BodySegment, Node
from noetic_py.errors import CodecError, ConfigError, NoeticError
from noetic_py.journal.changes import StoredLayerStates, changed_tree
from noetic_py.journal.records import JournalRecord, Segment, StateRevised, StepFinished, StepStopped
from noetic_py.journal.values import LayerDeltas, Stored

if TYPE_CHECKING:
    from noetic_py.engine.frame import Frame
    from noetic_py.engine.layers.handles import Layers
    from noetic_py.memory.layer import AnyLayer


NEWER = "layer-version"
"""The code of the error that what is stored of a layer is of a newer version than its own."""
_MISSING = object()


def is_older(layer: AnyLayer, version: Version) -> bool:
    """Whether the stored state of a layer has an older version than the layer.

    Raises:
        ConfigError: It is of a newer one; code `"layer-version"`.
    """
    mine, theirs = version_order(layer.schema_version), version_order(version)
    if mine is None or theirs is None or theirs > mine:
        raise ConfigError(
            f"layer {layer.id!r} has a stored state of version {version}, and its own is {layer.schema_version}",
            code=NEWER,
            hint="run the newer code, or give the layer another id",
        )
    return theirs < mine


def newest(versions: Sequence[Version]) -> Version | None:
    """The newest of several versions, `None` of none."""
    return max(versions, key=lambda each: version_order(each) or (), default=None)


def versions_of(layers: Layers) -> dict[str, Version] | None:
    """The versions of layers that are not the first; `None` when there are none."""
    return {
        each.id: each.schema_version for each in layers.by_id.values() if version_order(each.schema_version) != (1,)
    } or None


def migrated(layer: AnyLayer, codec: Codec, tree: object, version: Version, kind: object) -> object:
    """A layer's stored state of an older version in the form of its own.

    Raises:
        ConfigError: Nothing migrates it; code `"layer-version"`.
        CodecError: `migrate` failed, or what it has made does not fit.
    """
    try:
        made = layer.migrate(Codec().decode(_plain(tree)), version)
    except NoeticError:
        raise
    except Exception as error:
        raise CodecError(
            f"layer {layer.id!r}: migrate() failed on a state of version {version}: {type(error).__name__}: {error}",
            hint="it is given plain data: of an object a dict of its fields",
        ) from error
    try:
        return codec.decode(codec.encode(made), kind)
    except CodecError as error:
        raise CodecError(
            f"layer {layer.id!r}: migrate() of version {version} gave no {kind!r}: {error.message}"
        ) from error


def _plain(tree: object) -> Any:
    """A stored value without the names of classes, which may be others by now."""
    if is_list(tree):
        return [_plain(each) for each in tree]
    if not is_dict(tree):
        return tree
    mark = tree.get("$")
    if mark in ("object", "enum"):
        return _plain(tree["v"])
    if isinstance(mark, str) and mark.startswith("object:"):
        return {key: _plain(each) for key, each in tree.items() if key != "$"}
    return {key: _plain(each) for key, each in tree.items()}


# -------------------------------------------------------------------------------------------------------- a journal


def revise_here(root: Frame) -> None:
    """Make of what the journal of a resumed run says of an execution's own layers what they have become since."""
    run = root.x.run
    if run.store is not None and root.node is not None:
        record = revise_layers(run.journal, root.node, root.x.layers, run.store.codec)
        if record is not None:
            run.journal.append(record)


def revise_layers(records: Sequence[JournalRecord], node: Node, layers: Layers, codec: Codec) -> StateRevised | None:
    """Put the states of layers that are newer now in the place of what the journal of an execution holds.

    Returns:
        What says so in the journal; `None` when all are of the versions that they were.

    Raises:
        ConfigError: One was stored by a newer version, or nothing migrates it; code `"layer-version"`.
        CodecError: Its `migrate` failed.
    """
    opened = node.children.get(OPEN)
    if opened is None or opened.finished is None:
        return None
    output = opened.finished.output
    known: dict[str, Version] = output.tree if isinstance(output, Stored) and is_dict(output.tree) else {}
    older = {each.id: each for each in layers.by_id.values() if is_older(each, known.get(each.id, 1))}
    if not older:
        return None

    def newer(layer: str, tree: object) -> object:
        return migrated(older[layer], codec, tree, known.get(layer, 1), layers.state_type(layer))

    walk = _Walk(set(older), newer, codec)
    try:
        walk.below(node, {})
    except (CodecError, ConfigError):
        if known or not _fits(node, older, layers, codec):
            raise
        # Earlier releases have not written which version it was: it is the one that it fits.
        return None
    for segment, deltas in walk.found:
        segment.memory = deltas
        record = records[segment.position]
        if isinstance(record, (Segment, StepFinished, StepStopped)):
            record.memory = deltas
    versions = versions_of(layers) or {}
    opened.finished.output = Stored(versions)
    opening = opening_of(records)
    state = opening.state.tree if isinstance(opening.state, Stored) else opening.state
    memory = {segment.position: deltas for segment, deltas in walk.found}
    return StateRevised(node.path, opening.version, state, {}, versions, memory)


def _fits(node: Node, older: Mapping[str, AnyLayer], layers: Layers, codec: Codec) -> bool:
    """Whether all that is stored of layers is of their own types already."""
    try:
        walk = _Walk(set(older), lambda layer, tree: codec.decode(tree, layers.state_type(layer)), codec)
        walk.below(node, {})
    except CodecError:
        return False
    return True


@frozen(eq=False)
class _Form:
    """A layer's state as it is stored, and in its new form."""

    tree: object
    value: Any


_Forms: TypeAlias = Mapping[str, _Form]
_SEED = re.compile(r"memory\[spawn\]#(\d+)")


@define(eq=False)
class _Walk:
    """Rewrites what an execution's steps have done to layers, in the order in which they have."""

    older: set[str]
    newer: Callable[[str, Any], object]
    codec: Codec
    found: list[tuple[BodySegment, LayerDeltas]] = field(factory=list["tuple[BodySegment, LayerDeltas]"])

    def below(self, node: Node, forms: _Forms) -> _Forms:
        """All at and below a step; returns what it leaves to its parent."""
        # A step with a conversation of its own begins with its parent's layers, and leaves them as they are.
        apart, inner = node.kind.begins_apart, forms
        seeds: dict[str, _Forms] = {}
        for child in node.children.values():
            if child.kind.beside:
                self.below(child, self._detached(child))
        for entry in node.layout:
            if isinstance(entry, BodySegment):
                forms = self._own(entry, forms)
            elif OPEN in entry.children:
                # It has layers of its own.
                continue
            elif apart:
                inner = self.below(entry, inner)
            elif (seed := _SEED.fullmatch(entry.name)) is not None:
                seeds[f"[{seed[1]}]"] = self.below(entry, forms)
            elif node.kind.paths or entry.kind.apart:
                self.below(entry, seeds.get(entry.name[entry.name.rfind("[") :], forms))
            elif entry.cause is None or entry.shown or ended_with(node, entry):
                forms = self.below(entry, forms)
            else:
                self.below(entry, forms)
        return forms

    def _detached(self, work: Node) -> _Forms:
        """The layer states that detached work began with."""
        started = work.decisions.get(DETACHED_START, {})
        trees: dict[str, object] = (
            parse(started["memory"], MAX_VALUE_BYTES, "what was started") if "memory" in started else {}
        )
        return {layer: self._form(layer, tree) for layer, tree in trees.items() if layer in self.older}

    def _form(self, layer: str, tree: object) -> _Form:
        return _Form(tree, None if tree is None else self.newer(layer, tree))

    def _own(self, segment: BodySegment, forms: _Forms) -> _Forms:
        if not any(layer in self.older for layer, _ in segment.memory):
            return forms
        after, deltas = dict(forms), list[Any]()
        for layer, given in segment.memory:
            if layer not in self.older:
                deltas.append((layer, given))
                continue
            old = after.pop(layer, None)
            tree = changed_tree(_MISSING if old is None else old.tree, given, _MISSING)
            if tree is not _MISSING:
                after[layer] = self._form(layer, tree)
            before = {} if old is None else {layer: old.value}
            now = {layer: after[layer].value} if layer in after else {}
            deltas += StoredLayerStates(before).changes(now, self.codec)[0]
        self.found.append((segment, tuple(deltas)))
        return after
