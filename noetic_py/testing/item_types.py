"""The conformance suite for item types, to be run with pytest against one of your own.

An item type that passes it can be stored and read back by every release of its plugin: what is written is read as it
was, what older versions have written is migrated, and what newer ones have written is refused.

```python
from noetic_py import Extension, extension_item
from noetic_py.testing import ItemTypeContract


@extension_item("harbour:height")
class Height(Extension):
    port: str
    metres: float


class TestHeight(ItemTypeContract[Height]):
    def make(self) -> Height:
        return Height(port="Brest", metres=6.9)
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import pytest

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.context.context import Context
from noetic_py.core.codec import Codec, from_wire, from_wire_json, to_wire, to_wire_json
from noetic_py.core.control import Ask
from noetic_py.core.items import Extension, extension_class
from noetic_py.core.types import version_order
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ItemSchemaMismatch
from noetic_py.harness import Harness
from noetic_py.steps.code import step
from noetic_py.testing._conformance.base import equal

__all__ = ["ItemTypeContract"]

X = TypeVar("X", bound=Extension)


class ItemTypeContract(Generic[X]):
    """The contract of an item type."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    def make(self) -> X:
        """Make an item, with a value in every field that may hold one."""
        raise NotImplementedError("make() has to make the item")

    def older(self) -> Sequence[tuple[int | str, Mapping[str, Any]]]:
        """Payloads that earlier versions of the type have stored, as JSON values, each behind its version."""
        return ()

    # -- what it is

    def test_it_is_registered_and_fixed(self) -> None:
        """Its name leads to its class, and nothing changes what it holds."""
        item = self.make()
        equal(extension_class(item.type), type(item))
        for name in ("id", *item.data):
            with pytest.raises(AttributeError):
                setattr(item, name, None)

    def test_its_payload_is_json(self) -> None:
        """The payload is what it is when it has been written as JSON and read again."""
        data = self.make().data
        equal(json.loads(json.dumps(data, allow_nan=False)), data)

    # -- how it is stored

    def test_it_is_read_back_as_it_was(self) -> None:
        """On the wire, and as a value that is stored."""
        item, codec = self.make(), Codec()
        equal(from_wire(to_wire(item)), item)
        equal(from_wire_json(to_wire_json(item)), item)
        equal(codec.loads(codec.dumps(item)), item)
        equal(to_wire_json(from_wire_json(to_wire_json(item))), to_wire_json(item))

    def test_what_it_does_not_know_is_kept(self) -> None:
        """A field of a payload that the class does not have goes back on the wire."""
        wire: dict[str, Any] = to_wire(self.make())
        wire["data"] = {**wire["data"], "of_another_release": [1]}
        equal(to_wire(from_wire(wire)), wire)

    # -- its versions

    def test_what_an_earlier_version_has_written_is_migrated(self) -> None:
        """It is an item of the class, and is written in the class's own version from then on."""
        item = self.make()
        for version, data in self.older():
            found = from_wire(_stored_by(item, version, data))
            equal(type(found), type(item))
            equal(to_wire(found).get("schema_version", 1), to_wire(item).get("schema_version", 1))
            equal(from_wire(to_wire(found)), found)

    def test_what_a_newer_version_has_written_is_refused(self) -> None:
        """It is not read as if it were of this version, and the error says what to do."""
        item = self.make()
        newer = (version_order(item.schema_version) or (1,))[0] + 1
        with pytest.raises(ItemSchemaMismatch, match="schema_version") as caught:
            from_wire(_stored_by(item, newer, item.data))
        equal(caught.value.hint is not None, True)

    async def test_a_run_that_waits_goes_on_after_an_upgrade(self) -> None:
        """A journal that holds items of this version, and of earlier ones, is resumed with all of them."""
        item = self.make()
        own: Any = to_wire(item).get("schema_version", 1)
        versions = [(own, item.data), *self.older()]
        for version, data in versions:
            stored = _stored_by(item, version, data)
            equal(await _resumed(item, stored), [from_wire(stored)])


def _stored_by(item: Extension, version: int | str, data: Mapping[str, Any]) -> dict[str, Any]:
    """An item on the wire, as a version of its type has written it."""
    wire: dict[str, Any] = {**to_wire(item), "data": dict(data)}
    wire.pop("schema_version", None)
    return wire if version_order(version) == (1,) else {**wire, "schema_version": version}


async def _resumed(item: Extension, stored: Mapping[str, Any]) -> list[Extension]:
    """Return what a resumed run finds when the item that it appended has another form in its journal."""

    @step(id="keep", version="1")
    async def keep(_: object, ctx: Context[Any]) -> None:
        ctx.items.append(item)

    @step(id="look", version="1")
    async def look(_: object, ctx: Context[Any]) -> list[Extension]:
        await ctx.ask(Ask("Go on?", bool))
        return list(ctx.items.view(type(item)))

    backend = InMemoryBackend()
    async with Harness(checkpoints=backend, plugins=()) as harness:
        first = await harness.run(keep >> look, None)
    await _rewrite(backend, first.run_id, to_wire(item), stored)
    async with Harness(checkpoints=backend, plugins=()) as harness:
        result = await harness.resume(first.run_id, keep >> look, answers=[first.pending[0].answer(True)])
    return list(result.value)


async def _rewrite(
    backend: CheckpointBackend, run_id: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Put a stored item in the place of another one in a journal."""
    records = await backend.read(run_id)
    await backend.delete(run_id)
    lease = await backend.acquire(run_id, ttl=60)
    made = [
        attrs.evolve(each, payload=json.dumps(_replaced(json.loads(each.payload), before, after)).encode())
        for each in records
    ]
    await backend.append(run_id, expected_position=0, fence=lease.fence, records=made)
    await backend.release(lease)


def _replaced(tree: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    if tree == before:
        return after
    if is_dict(tree):
        return {key: _replaced(each, before, after) for key, each in tree.items()}
    return [_replaced(each, before, after) for each in tree] if is_list(tree) else tree
