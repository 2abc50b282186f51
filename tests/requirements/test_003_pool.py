"""Rows 003-31 to 003-39 and 003-42 to 003-46: pools, their listeners, tags, and listeners of all layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from noetic_py.errors import CodecError, ConfigError, InvalidEntry, NameNotFound, NoeticError, StateTypeError
from noetic_py.memory import ContextItem, ContextPool, ContextQueue
from noetic_py.memory.listeners import (
    EVERYWHERE,
    Added,
    Adding,
    Appended,
    Cleared,
    Clearing,
    Evicting,
    LayerEvent,
    Removed,
    Removing,
)

pytestmark = pytest.mark.anyio


class Refused(Exception):
    pass


@attrs.frozen
class Doc:
    text: str


def entry(id: str, content: Any = 0) -> ContextItem[Any]:
    return ContextItem(content, f"about {id}", id)


async def filled(ids: str, limit: int | None = None) -> ContextPool[Any]:
    pool = ContextPool[Any](limit=limit)
    for each in ids:
        await pool.add(entry(each))
    return pool


def ids(pool: ContextPool[Any]) -> str:
    return "".join(str(each.id) for each in pool)


def record(pool: ContextPool[Any]) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []

    @pool.on(Adding)
    async def adding(event: Adding[Any]) -> None:
        seen.append(("adding", event.entry.id, ids(event.layer)))

    @pool.on(Added)
    async def added(event: Added[Any]) -> None:
        seen.append(("added", event.entry.id, ids(event.layer)))

    @pool.on(Removing)
    async def removing(event: Removing[Any]) -> None:
        seen.append(("removing", event.entry.id, ids(event.layer)))

    @pool.on(Removed)
    async def removed(event: Removed[Any]) -> None:
        seen.append(("removed", event.entry.id, ids(event.layer)))

    @pool.on(Evicting)
    async def evicting(event: Evicting[Any]) -> None:
        assert isinstance(event.layer, ContextPool)
        seen.append(("evicting", event.entry.id, ids(event.layer)))

    @pool.on(Clearing)
    async def clearing(event: Clearing[Any]) -> None:
        seen.append(("clearing", event.by_id, len(event.layer)))

    @pool.on(Cleared)
    async def cleared(event: Cleared[Any]) -> None:
        seen.append(("cleared", len(event.layer)))

    return seen


@pytest.fixture
def everywhere() -> Iterator[None]:
    """Listeners of all layers are gone after the test."""
    before = list(EVERYWHERE)
    yield
    for each in EVERYWHERE:
        if each not in before:
            EVERYWHERE.remove(each)


@pytest.mark.clause("003-31a", "003-31b")
async def test_003_31_a_pool_may_have_a_limit() -> None:
    assert ContextPool().limit is None
    assert ContextPool(limit=None).limit is None
    assert ContextPool(limit=1).limit == 1
    for limit in (0, -3, True, 1.5):
        with pytest.raises(ValueError, match="limit must be >= 1") as caught:
            ContextPool(limit=limit)  # type: ignore[arg-type]  # that is the test
        assert issubclass(caught.type, ConfigError)
    assert len(await filled("abcdefghijklmnopqrstuvwxyz")) == 26
    assert ids(await filled("abc", limit=2)) == "bc"


@pytest.mark.clause("003-32a", "003-32b")
async def test_003_32_adding_needs_id_and_description() -> None:
    pool = ContextPool[Any]()
    seen = record(pool)
    for wrong, said in (
        (ContextItem(1), "has no id and no description"),
        (ContextItem(1, id="a"), "entry 'a' has no description"),
        (ContextItem(1, "about"), "has no id$"),
    ):
        with pytest.raises(ValueError, match=said.replace("$", "")) as caught:
            await pool.add(wrong)
        assert isinstance(caught.value, InvalidEntry)
        assert ("description" in caught.value.message) is (wrong.description is None)
    with pytest.raises(StateTypeError, match="dict is not a valid entry; expected a ContextItem"):
        await pool.add({"id": "a"})  # type: ignore[arg-type]  # that is the test
    assert (seen, len(pool)) == ([], 0)
    await pool.add(ContextItem(1, "", ""))
    assert pool.get("").content == 1


@pytest.mark.clause("003-33a", "003-33b")
async def test_003_33_the_same_id_replaces_in_place() -> None:
    pool = await filled("abc", limit=3)
    seen = record(pool)
    await pool.add(entry("a", "new"))
    assert (ids(pool), pool.get("a").content) == ("abc", "new")
    assert seen == [("adding", "a", "abc"), ("added", "a", "abc")]
    await pool.add(entry("d"))
    assert ids(pool) == "bcd", "it is as old as what it has replaced"
    await pool.add(entry("b", "newer"), touch=True)
    assert ids(pool) == "cdb"
    await pool.add(entry("e"))
    assert ids(pool) == "dbe"


@pytest.mark.clause("003-34a", "003-34b")
async def test_003_34_the_oldest_makes_room() -> None:
    pool = await filled("ab", limit=2)
    seen = record(pool)
    await pool.add(entry("c"))
    assert ids(pool) == "bc"
    assert seen == [("evicting", "a", "ab"), ("adding", "c", "b"), ("added", "c", "bc")]
    for event in (Adding, Evicting):
        pool = await filled("ab", limit=2)

        @pool.on(event)
        async def veto(event: Any) -> None:
            raise Refused

        with pytest.raises(Refused):
            await pool.add(entry("c"))
        assert ids(pool) == "ab", "a refused entry leaves the old one in place"
    pool = await filled("ab", limit=2)

    @pool.on(Added)
    async def late(event: Any) -> None:
        raise Refused

    with pytest.raises(Refused):
        await pool.add(entry("c"))
    assert ids(pool) == "bc"


@pytest.mark.clause("003-35a", "003-35b")
async def test_003_35_reading_by_id() -> None:
    pool = await filled("ab")
    assert pool.get("a") is pool["a"] is pool.items[0]
    for missing in (pool.get, pool.__getitem__):
        with pytest.raises(KeyError, match="no entry 'z'") as caught:
            missing("z")
        assert isinstance(caught.value, NameNotFound)
        assert caught.value.hint == "there are 'a', 'b'"
    assert pool.get("z", None) is None
    assert pool.get("z", 3) == 3
    assert ("a" in pool, "z" in pool, entry("b") in pool, entry("b", 1) in pool) == (True, False, True, False)


@pytest.mark.clause("003-36a", "003-36b")
async def test_003_36_removing() -> None:
    pool = await filled("abc")
    seen = record(pool)
    with pytest.raises(KeyError):
        await pool.remove("z")
    assert seen == []
    await pool.remove("b")
    assert seen == [("removing", "b", "abc"), ("removed", "b", "ac")]

    @pool.on(Removing)
    async def veto(event: Removing[Any]) -> None:
        raise Refused

    with pytest.raises(Refused):
        await pool.remove("a")
    assert ids(pool) == "ac"


@pytest.mark.clause("003-37a", "003-37b")
async def test_003_37_clearing() -> None:
    pool = await filled("ab")
    seen = record(pool)
    snapshots: list[dict[str, Any]] = []

    @pool.on(Clearing)
    async def by_values(pool: Any, items: Any) -> None:
        snapshots.append(dict(items))
        items.clear()

    await pool.clear()
    assert seen == [("clearing", {"a": entry("a"), "b": entry("b")}, 2), ("cleared", 0)]
    assert snapshots == [{"a": entry("a"), "b": entry("b")}]
    assert ids(pool) == ""
    seen.clear()
    await pool.clear()
    assert seen == [("clearing", {}, 0), ("cleared", 0)]


@pytest.mark.clause("003-38a", "003-38b")
async def test_003_38_reading_all() -> None:
    pool = await filled("bca", limit=5)
    assert [each.id for each in pool.items] == [each.id for each in pool] == ["b", "c", "a"]
    pool.items.clear()
    assert (len(pool), pool.limit, bool(pool), bool(ContextPool())) == (3, 5, True, False)
    with pytest.raises(AttributeError):
        pool.items = []  # type: ignore[misc]  # that is the test


async def test_003_39_the_catalogue() -> None:
    pool = ContextPool[int]()
    assert pool.catalogue() == ""
    await pool.add(ContextItem(1, "Q3 report", "doc-1"))
    await pool.add(ContextItem(2, "two\nlines", "b"))
    assert pool.catalogue() == "- [doc-1] Q3 report\n- [b] two\nlines"


class Shelf(ContextPool[int]):
    place: str = "here"


@pytest.mark.clause("003-42a", "003-42b", "003-42c")
async def test_003_42_branches_of_a_pool() -> None:
    parent = Shelf(limit=3, tags=["docs"], place="there")
    for each in "abc":
        await parent.add(entry(each))
    seen = record(parent)
    child = parent.branch()
    assert (type(child), child.limit, child.place, set(child.tags)) == (Shelf, 3, "there", {"docs"})
    assert all(mine is theirs for mine, theirs in zip(child.entries, parent.entries, strict=True))
    small = parent.branch(limit=2)
    assert (ids(small), small.limit) == ("bc", 2)
    assert seen == [], "nobody is told of what a smaller branch leaves out"
    free = parent.branch(limit=None)
    assert free.limit is None
    await free.add(entry("d"))
    await child.remove("a")
    assert [each[0] for each in seen] == ["adding", "added", "removing", "removed"], "they have the listeners too"
    assert (ids(parent), ids(child), ids(free)) == ("abc", "bc", "abcd")
    with pytest.raises(ValueError, match="limit must be >= 1"):
        parent.branch(limit=0)
    # As of a queue.
    assert len(parent.branch(listeners=None).listeners) == len(parent.branch(listeners=[]).listeners) == 0
    assert [*parent.branch(listeners=[*parent.listeners][:2]).listeners] == [*parent.listeners][:2]


@pytest.mark.clause("003-43a", "003-43b", "003-43c", "003-43d")
async def test_003_43_listeners_of_a_pool() -> None:
    pool = await filled("ab", limit=2)
    seen: list[tuple[Any, ...]] = []

    def note(event: type[LayerEvent]) -> None:
        @pool.on(event)
        async def log(pool: Any, item: Any) -> None:
            seen.append((event, isinstance(pool, ContextPool), item.id if isinstance(item, ContextItem) else item))

    for event in (Adding, Added, Removing, Removed, Clearing, Evicting):
        note(event)

    @pool.on(Cleared)
    async def cleared(event: Cleared[Any]) -> None:
        seen.append((Cleared, event.layer is pool, None))

    await pool.add(entry("c"))
    await pool.remove("b")
    await pool.clear()
    assert seen == [
        (Evicting, True, "a"),
        (Adding, True, "c"),
        (Added, True, "c"),
        (Removing, True, "b"),
        (Removed, True, "b"),
        (Clearing, True, {"c": entry("c")}),
        (Cleared, True, None),
    ]


@pytest.mark.clause("003-44a", "003-44b", "003-44c")
async def test_003_44_a_pool_as_data() -> None:
    pool = ContextPool[Doc](tags=["docs"])
    for each in "abc":
        await pool.add(entry(each, Doc(each)))
    seen = record(pool)
    data = json.loads(json.dumps(pool.dump()))
    assert data["limit"] is None
    restored = ContextPool[Doc].load(data, type=Doc, listeners=pool.listeners)
    assert (restored.entries, set(restored.tags)) == (pool.entries, {"docs"})
    data["listeners"] = {}
    over = ContextPool[Doc].load(data | {"limit": 1}, type=Doc, listeners=())
    assert (len(over), over.limit) == (3, 1), "past its limit"
    over.listeners.append(next(each for each in pool.listeners if each.event is Evicting))
    assert seen == []
    await over.add(entry("d"))
    assert ids(over) == "d", "until something is added"
    assert [each[1:] for each in seen] == [("a", "abc"), ("b", "bc"), ("c", "c")]
    whole = data["entries"][0]
    for wrong in (whole | {"id": None}, whole | {"description": None}):
        with pytest.raises(ValueError, match="has no"):
            ContextPool[Doc].load(data | {"entries": [wrong]}, type=Doc)
    with pytest.raises(InvalidEntry, match="'a' is there twice"):
        ContextPool[Doc].load(data | {"entries": [whole, whole]}, type=Doc)
    with pytest.raises(CodecError, match="Doc"):
        ContextPool.load(data)
    with pytest.raises(NoeticError, match="limit must be"):
        ContextPool[Doc].load(data | {"limit": -1}, type=Doc)


@pytest.mark.clause("003-45a", "003-45b", "003-45c")
@pytest.mark.usefixtures("everywhere")
async def test_003_45_tags() -> None:
    heard: list[tuple[str, frozenset[str]]] = []

    def listen(name: str, *tags: str) -> None:
        @EVERYWHERE.on(Appended, tags=tags)
        async def log(event: Appended[Any]) -> None:
            heard.append((name, frozenset(event.layer.tags)))

    listen("docs", "docs")
    listen("docs or logs", "docs", "logs")
    listen("all")
    tagged = ContextQueue[str](limit=2, tags=["logs", "other"])
    bare = ContextQueue[str](limit=2)
    assert (tagged.tags, bare.tags) == (frozenset({"logs", "other"}), frozenset())
    await tagged.append(ContextItem("a"))
    assert [name for name, _ in heard] == ["docs or logs", "all"]
    heard.clear()
    await bare.append(ContextItem("a"))
    assert [name for name, _ in heard] == ["all"]
    assert tagged.branch().tags == tagged.tags
    assert ContextQueue[str].load(tagged.dump()).tags == tagged.tags
    assert ContextPool.load(ContextPool[int](tags={"x"}).dump()).tags == {"x"}
    with pytest.raises(NoeticError, match="are not valid; expected texts"):
        ContextQueue(limit=1, tags="session")


@pytest.mark.clause("003-46a", "003-46b")
@pytest.mark.usefixtures("everywhere")
async def test_003_46_one_s_own_listeners_come_first() -> None:
    heard: list[str] = []
    queue = ContextQueue[str](limit=2)

    @EVERYWHERE.on(Appended)
    async def everyone(event: Appended[Any]) -> None:
        heard.append("everywhere")

    @queue.on(Appended)
    async def first(event: Appended[str]) -> None:
        heard.append("first")

    @queue.on(Appended)
    async def second(event: Appended[str]) -> None:
        heard.append("second")

    await queue.append(ContextItem("a"))
    assert heard == ["first", "second", "everywhere"]
    heard.clear()
    queue.listeners.append(everyone)
    EVERYWHERE.on(Appended)(first)
    await queue.append(ContextItem("a"))
    assert heard == ["first", "second", "everywhere"], "each once"
