"""Queues and pools as layers: what they recall, how their state is stored, and how drafts and runs share it."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest

from noetic_py import Memory
from noetic_py.core.codec import Codec
from noetic_py.journal.patches import apply_changes, changes, known_fields
from noetic_py.memory import ContextItem, ContextPool, ContextQueue, Scope, Slot, function
from noetic_py.memory.binding import Draft
from noetic_py.memory.layer import hooks_of, state_type_of
from noetic_py.memory.listeners import Appended, Appending

pytestmark = pytest.mark.anyio


@attrs.frozen
class Doc:
    text: str


class Thing:
    """Equal to nothing but itself."""


class Mem(Memory):
    window: ContextQueue[Doc] = ContextQueue(limit=2)
    named: ContextQueue[Doc] = ContextQueue(id="other")
    shelf: ContextPool[Doc] = ContextPool()
    bare: ContextPool = ContextPool()


class Shelf(ContextPool[Doc]):
    pass


class Wide(ContextPool[Any]):
    @function
    async def put(self, id: str, content: str) -> int:
        """Keep something.

        Args:
            id: Its name.
            content: What it is.
        """
        await self.add(ContextItem(content, "kept", id))
        if content == "bad":
            raise ValueError(content)
        return len(self)


def entry(id: str, content: Any = 0) -> ContextItem[Any]:
    return ContextItem(content, f"about {id}", id)


async def test_settings_of_the_layers() -> None:
    queue, pool = ContextQueue[str](), ContextPool[str]()
    assert (queue.slot, pool.slot) == (Slot.HISTORY, Slot.ENTITY)
    assert queue.scope is pool.scope is Scope.THREAD
    assert hooks_of(ContextQueue) == hooks_of(ContextPool) == {"recall"}
    memory = Mem()
    assert [each.id for each in (memory.window, memory.named, memory.shelf)] == ["window", "other", "shelf"]
    assert memory["shelf"] is memory.shelf


async def test_a_queue_recalls_the_newest_it_has_room_for() -> None:
    queue = ContextQueue[str](limit=3)
    assert await queue.recall("", 100) is None
    await queue.append(*map(ContextItem, ("oldest " * 50, "middle", "newest")))
    assert await queue.recall("", 1000) == f"{'oldest ' * 50}\nmiddle\nnewest"
    assert await queue.recall("", 20) == "middle\nnewest"
    assert await queue.recall("", 0) is None


async def test_a_pool_recalls_its_catalogue() -> None:
    pool = ContextPool[str]()
    assert await pool.recall("", 100) is None
    for name in "abc":
        await pool.add(ContextItem("secret", f"about {name} and more " * 10, name))
    assert await pool.recall("", 1000) == pool.catalogue()
    short = await pool.recall("", 90)
    assert short is not None
    assert short.splitlines() == pool.catalogue().splitlines()[1:]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ContextQueue(), tuple[ContextItem[object], ...]),
        (ContextQueue[Doc](), tuple[ContextItem[Doc], ...]),
        (ContextPool[Doc](), dict[str, ContextItem[Doc]]),
        (Shelf(), dict[str, ContextItem[Doc]]),
        (Mem().window, tuple[ContextItem[Doc], ...]),
        (Mem().named, tuple[ContextItem[Doc], ...]),
        (Mem(window=ContextQueue[Doc](limit=3)).window, tuple[ContextItem[Doc], ...]),
        (Mem().shelf, dict[str, ContextItem[Doc]]),
        (Mem().bare, dict[str, ContextItem[object]]),
        (Mem().shelf.branch(), dict[str, ContextItem[Doc]]),
    ],
)
def test_the_type_of_the_state(layer: Any, expected: Any) -> None:
    assert layer.state_type == expected
    assert layer.bound(layer.binding).state_type == expected
    assert state_type_of(ContextQueue) == tuple[ContextItem[object], ...]


async def test_states_are_stored_with_the_types_of_their_contents() -> None:
    memory, codec = Mem(), Codec()
    await memory.window.append(ContextItem(Doc("a")), ContextItem(Doc("b"), "about", "b"))
    await memory.shelf.add(entry("x", Doc("x")))
    await memory.shelf.add(entry("y", Doc("y")))
    for layer in (memory.window, memory.shelf):
        state = layer.state
        assert codec.loads(codec.dumps(state), layer.state_type) == state
        assert list(codec.loads(codec.dumps(state), layer.state_type)) == list(state)


async def test_changes_of_a_pool_keep_its_order() -> None:
    codec = Codec([ContextItem, Doc])
    pool = ContextPool[Doc]()
    for name in "abc":
        await pool.add(entry(name, Doc(name)))
    before = known_fields(pool.state, codec)
    state = copy.copy(pool.state)
    await pool.add(entry("a", Doc("new")), touch=True)
    await pool.remove("b")
    await pool.add(entry("b", Doc("again")))
    apply_changes(state, changes(before, known_fields(pool.state, codec)), codec)
    assert list(state.items()) == list(pool.state.items())


async def test_copies_share_what_cannot_change() -> None:
    fixed, open_ = ContextItem("text", "about", "a"), ContextItem(["list"])
    assert copy.deepcopy(fixed) is fixed
    other = copy.deepcopy(open_)
    assert other == open_
    assert other.content is not open_.content


async def test_looking_in_a_hook_changes_nothing() -> None:
    queue = ContextQueue[Thing](limit=3)
    await queue.append(ContextItem(Thing()))
    draft = Draft(queue.binding)
    hook: ContextQueue[Thing] = queue.bound(draft)
    assert await hook.recall("", 100)
    assert hook.entries[0] is not queue.entries[0], "it can be changed, so the hook has one of its own"
    before = draft.changed
    assert not before
    await hook.append(ContextItem(Thing()))
    assert (len(hook), len(queue)) == (2, 1)
    assert draft.changed
    assert draft.commit()
    assert len(queue) == 2


async def test_functions_of_a_class_below() -> None:
    pool = Wide(limit=3)
    assert await pool.put("a", "good") == 1
    assert await pool.put(id="b", content="good") == 2
    with pytest.raises(ValueError, match="bad"):
        await pool.put("c", "bad")
    assert [each.id for each in pool] == ["a", "b"]
    with pytest.raises(Exception, match="can only be read"):
        await pool.read_only().put("c", "good")
    assert len(pool) == 2


async def test_bound_handles_share_listeners_and_copies_do_not() -> None:
    queue = ContextQueue[str](limit=3)
    handle: ContextQueue[str] = queue.bound(queue.binding)
    heard: list[str] = []

    @handle.on(Appended)
    async def log(event: Appended[str]) -> None:
        heard.append(event.entries[0].content)

    await queue.append(ContextItem("a"))
    assert heard == ["a"]
    assert handle.entries == queue.entries
    # The fields of two bundles are two layers, though made of one default.
    one, other = Mem(), Mem()
    one.window.listeners.append(log)
    await one.window.append(ContextItem(Doc("x")))
    assert len(other.window) == 0
    assert log not in other.window.listeners


async def test_a_listener_writes_to_the_layer_and_not_to_what_it_is_shown() -> None:
    queue = ContextQueue[str](limit=9)

    @queue.on(Appending)
    async def first(event: Appending[str]) -> None:
        if len(event.current) == 0 and event.entries[0].content == "b":
            event.layer.state = (ContextItem("a"),)

    await queue.append(ContextItem("b"))
    assert queue.render() == "a\nb"


async def state_after(layer: Any, *entries: ContextItem[Any]) -> Any:
    """What a path makes of a layer's state."""
    path = layer.branch()
    for each in entries:
        await (path.add(each) if path.keyed else path.append(each))
    return path.state


async def test_queues_of_two_paths() -> None:
    queue = ContextQueue[str](limit=4)
    await queue.append(*map(ContextItem, "abc"))
    base = queue.state
    one = await state_after(queue, *map(ContextItem, "de"))
    other = await state_after(queue, ContextItem("f"))
    assert "".join(each.content for each in queue.merge(base, other, one)) == "cdef"
    assert queue.merge(base, base, one) == one
    assert queue.merge(base, (), one) == (ContextItem("d"), ContextItem("e")), "one path has cleared it"
    twice = (*base, ContextItem("a"))
    assert queue.merge(base, twice, base) == twice, "of two equal entries both stay"
    assert queue.state is base


async def test_pools_of_two_paths() -> None:
    pool = ContextPool[str](limit=3)
    for name in "ab":
        await pool.add(entry(name))
    base = pool.state
    one = await state_after(pool, entry("c"))
    other = await state_after(pool, entry("d"), entry("a", "new"))
    assert list(pool.merge(base, other, one)) == ["b", "c", "d"]
    free = pool.branch(limit=None)
    met = free.merge(base, other, one)
    assert (list(met), met["a"].content) == (["a", "b", "c", "d"], "new")
    without = {key: each for key, each in base.items() if key != "a"}
    assert list(free.merge(base, without, one)) == ["b", "c"]
    assert list(free.merge(base, one, without)) == ["b", "c"]
    assert pool.state is base
