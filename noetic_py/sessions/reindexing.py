"""What layers keep for each owner, brought into the form of their settings: for vectors of another embedder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

from attrs import frozen

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.codec import Codec
from noetic_py.engine.fingerprint import types_in
from noetic_py.memory.layer import AnyLayer, MemoryLayer
from noetic_py.memory.scopes import LayerStorage, Scope, place_of


@frozen
class Reindexed:
    """An owner whose entries have been looked at.

    Attributes:
        layer: The layer's id.
        owner: The user or the thread; empty for what belongs to all.
        changed: How many entries have a new form.
        done: How many owners have been looked at, this one included.
        total: How many there are.
    """

    layer: str
    owner: str
    changed: int
    done: int
    total: int


async def reindexed(store: CheckpointBackend, layers: Iterable[AnyLayer]) -> AsyncGenerator[Reindexed]:
    """Bring the entries of all owners into the form of the layers' settings, one owner after the other."""
    able = [
        layer
        for layer in layers
        if type(layer).reindex_owner is not MemoryLayer.reindex_owner and layer.scope is not Scope.EXECUTION
    ]
    found = [(layer, owner) for layer in able for owner in await _owners(store, layer)]
    for done, (layer, owner) in enumerate(found, 1):
        codec = Codec(types_in(layer.state_type))
        storage = LayerStorage(store, codec, layer=layer.id, scope=layer.scope, owner=owner)
        yield Reindexed(layer.id, owner, await layer.reindex_owner(storage), done, len(found))


async def _owners(store: CheckpointBackend, layer: AnyLayer) -> Sequence[str]:
    """The owners for whom a layer keeps something: values, or a state, which says so of what is kept elsewhere."""
    owners: set[str] = set()
    for namespace in ("state", "data"):
        first = place_of(namespace, layer=layer.id, scope=layer.scope, owner="")[:-1]
        last: tuple[str, ...] | None = None
        while page := await store.scopes(first, after=last):
            last = tuple(page[-1])
            # What belongs to all has no owner in its place.
            mine = [scope for scope in page if scope[-1] == layer.id]
            owners |= {scope[len(first)] if len(scope) > len(first) + 1 else "" for scope in mine}
    return sorted(owners)
