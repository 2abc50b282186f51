"""Rows 003-01 to 003-09 and 003-23 to 003-30: entries, queues, and the listeners of queues."""

from __future__ import annotations

import json
from typing import Any

import anyio
import attrs
import pytest

from noetic_py.errors import CodecError, ConfigError, NameNotFound, NoeticError, StateTypeError
from noetic_py.memory import ContextItem, ContextQueue, Listener, Listeners
from noetic_py.memory.listeners import EVERYWHERE, Appended, Appending, Cleared, Clearing, Evicting

pytestmark = pytest.mark.anyio


class Refused(Exception):
    pass


@attrs.frozen
class Note:
    text: str


def texts(*contents: str) -> list[ContextItem[str]]:
    return [ContextItem(each) for each in contents]


def held(queue: ContextQueue[Any]) -> str:
    return "".join(entry.content for entry in queue.entries)


async def filled(contents: str, limit: int = 10) -> ContextQueue[str]:
    queue = ContextQueue[str](limit=limit)
    await queue.append(*texts(*contents))
    return queue


def record(queue: ContextQueue[str]) -> list[tuple[Any, ...]]:
    """What happens to the queue, in order, with how long it is in each event."""
    seen: list[tuple[Any, ...]] = []

    @queue.on(Appending)
    async def appending(event: Appending[str]) -> None:
        seen.append(("appending", [e.content for e in event.entries], [e.content for e in event.current]))

    @queue.on(Appended)
    async def appended(event: Appended[str]) -> None:
        seen.append(("appended", [e.content for e in event.entries], [e.content for e in event.current]))

    @queue.on(Evicting)
    async def evicting(event: Evicting[str]) -> None:
        seen.append(("evicting", event.entry.content, event.entry in event.layer.items, len(event.layer)))

    @queue.on(Clearing)
    async def clearing(event: Clearing[str]) -> None:
        seen.append(("clearing", [e.content for e in event.entries], len(event.layer)))

    @queue.on(Cleared)
    async def cleared(event: Cleared[str]) -> None:
        seen.append(("cleared", len(event.layer)))

    return seen


@pytest.mark.clause("003-01a", "003-01b", "003-01c")
def test_003_01_entries_are_values() -> None:
    entry = ContextItem("text", "about", "a")
    assert (entry.content, entry.description, entry.id) == ("text", "about", "a")
    bare = ContextItem("text")
    assert (bare.description, bare.id) == (None, None)
    for name in ("content", "description", "id"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(entry, name, "other")
    assert entry == ContextItem("text", "about", "a")
    assert entry != ContextItem("text", "about", "b")
    assert hash(entry) == hash(ContextItem("text", "about", "a"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(ContextItem(["list"]))
    with pytest.raises(TypeError):
        ContextItem()  # type: ignore[call-arg]  # the content is required
    with pytest.raises(StateTypeError, match="id of a ContextItem is int"):
        ContextItem("text", "about", 3)  # type: ignore[arg-type]  # refused when it runs, too


@pytest.mark.clause("003-02a", "003-02b")
def test_003_02_entries_as_data() -> None:
    entry = ContextItem(Note("hm"), "about", "a")
    data = entry.dump()
    assert set(data) == {"content", "description", "id"}
    again = json.loads(json.dumps(data))
    assert ContextItem[Note].load(again, type=Note) == entry
    assert ContextItem.load(ContextItem({"k": [1, None]}).dump()) == ContextItem({"k": [1, None]})
    assert ContextItem.load(ContextItem((1, 2)).dump()).content == (1, 2)
    with pytest.raises(CodecError, match="content"):
        ContextItem(object()).dump()
    with pytest.raises(CodecError, match="content"):
        ContextItem.load({"content": "text", "description": None, "id": None}, type=int)
    no_data: Any = ["content"]
    with pytest.raises(CodecError, match="ContextItem"):
        ContextItem.load(no_data)
    with pytest.raises(CodecError, match="colour"):
        ContextItem.load(data | {"colour": "red"}, type=Note)


async def test_003_03_types_are_for_checkers() -> None:
    queue = ContextQueue[str](limit=3)
    await queue.append(ContextItem(42))  # type: ignore[arg-type]  # what a checker says, and running does not
    await ContextQueue(limit=3).append(ContextItem(42), ContextItem("any"))
    assert held_any(queue) == [42]
    # What was said in brackets is known when the content is stored.
    assert queue.state_type == tuple[ContextItem[str], ...]
    assert ContextQueue(limit=3).state_type == tuple[ContextItem[object], ...]


def held_any(queue: ContextQueue[Any]) -> list[Any]:
    return [entry.content for entry in queue]


@pytest.mark.clause("003-04a", "003-04b")
@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "3", None])
def test_003_04_a_queue_has_a_limit(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit must be >= 1") as caught:
        ContextQueue(limit=limit)
    assert issubclass(caught.type, NoeticError)
    assert isinstance(caught.value, ConfigError)
    assert ContextQueue(limit=1).limit == 1
    assert ContextQueue().limit == 10
    queue = ContextQueue[str](limit=2)
    with pytest.raises(AttributeError, match="limit is fixed"):
        queue.limit = 3  # type: ignore[misc]  # that is the test


@pytest.mark.clause("003-05a", "003-05b")
async def test_003_05_append_takes_any_number_of_entries() -> None:
    queue = ContextQueue[str](limit=5)
    seen = record(queue)
    await queue.append()
    assert seen == [("appending", [], []), ("appended", [], [])]
    await queue.append(*texts("a", "b"), ContextItem("c", "with an id", "c"))
    assert held(queue) == "abc"
    assert queue.entries[2].id == "c"
    seen.clear()
    with pytest.raises(TypeError, match="int is not a valid entry; expected a ContextItem") as caught:
        await queue.append(ContextItem("d"), 5)  # type: ignore[arg-type]  # that is the test
    assert isinstance(caught.value, StateTypeError)
    assert held(queue) == "abc"
    assert seen == []


@pytest.mark.clause("003-06a", "003-06b")
async def test_003_06_the_oldest_make_room() -> None:
    queue = await filled("abc", limit=3)
    seen = record(queue)
    await queue.append(*texts("d", "e"))
    assert held(queue) == "cde"
    assert seen == [
        ("appending", ["d", "e"], ["a", "b", "c"]),
        ("evicting", "a", True, 3),
        ("evicting", "b", True, 3),
        ("appended", ["d", "e"], ["c", "d", "e"]),
    ]
    seen.clear()
    small = await filled("", limit=2)
    seen = record(small)
    await small.append(*texts(*"vwxyz"))
    assert held(small) == "yz"
    # Entries of the same call go too, each while it is there and the queue is full.
    assert [each[1:] for each in seen if each[0] == "evicting"] == [("v", True, 2), ("w", True, 2), ("x", True, 2)]
    assert seen[-1] == ("appended", [*"vwxyz"], ["y", "z"])


@pytest.mark.clause("003-07a", "003-07b")
async def test_003_07_listeners_can_prevent_it() -> None:
    for event, place in ((Appending, 1), (Evicting, 1), (Evicting, 2)):
        queue = await filled("abc", limit=3)
        calls: list[object] = []

        @queue.on(event)
        async def veto(event: Any, calls: list[object] = calls, place: int = place) -> None:
            calls.append(event)
            if len(calls) == place:
                raise Refused

        with pytest.raises(Refused):
            await queue.append(*texts("d", "e"))
        assert held(queue) == "abc", "all or nothing"
    queue = await filled("abc", limit=3)

    @queue.on(Appended)
    async def late(event: Appended[str]) -> None:
        raise Refused

    with pytest.raises(Refused):
        await queue.append(*texts("d", "e"))
    assert held(queue) == "cde", "what is told afterwards has happened"


@pytest.mark.clause("003-08a", "003-08b")
async def test_003_08_clear() -> None:
    queue = await filled("abc")
    seen = record(queue)
    await queue.clear()
    assert queue.entries == ()
    assert seen == [("clearing", ["a", "b", "c"], 3), ("cleared", 0)]
    seen.clear()
    await queue.clear()
    assert seen == [("clearing", [], 0), ("cleared", 0)]
    await queue.append(ContextItem("d"))

    @queue.on(Clearing)
    async def veto(event: Clearing[str]) -> None:
        raise Refused

    with pytest.raises(Refused):
        await queue.clear()
    assert held(queue) == "d"


@pytest.mark.clause("003-09a", "003-09b")
async def test_003_09_reading() -> None:
    queue = await filled("abc", limit=4)
    items = queue.items
    items.clear()
    assert held(queue) == "abc"
    assert (len(queue), queue.limit, bool(queue), bool(ContextQueue(limit=1))) == (3, 4, True, False)
    assert [entry.content for entry in queue] == ["a", "b", "c"]
    for entry in queue:
        # Going through them is not disturbed by what happens meanwhile.
        await queue.append(entry)
    assert len(queue) == 4
    mixed = ContextQueue[Any](limit=4)
    await mixed.append(ContextItem("a"), ContextItem(2), ContextItem(None))
    assert mixed.render() == "a\n2\nNone"
    assert [mixed.render(last=n) for n in (0, 1, 2, 9)] == ["", "None", "2\nNone", "a\n2\nNone"]
    with pytest.raises(ConfigError, match="last=-1"):
        mixed.render(last=-1)
    with pytest.raises(AttributeError):
        queue.items = []  # type: ignore[misc]  # there is no way around checks and listeners
    with pytest.raises(AttributeError):
        queue.entries = ()  # type: ignore[misc]  # as above


class Window(ContextQueue[str]):
    label: str = "main"


@pytest.mark.clause("003-23a", "003-23b", "003-23c")
async def test_003_23_a_branch_goes_its_own_way() -> None:
    parent = Window(limit=4, tags=["session"], label="other")
    await parent.append(*texts(*"abcd"))
    seen = record(parent)
    child = parent.branch()
    assert seen == []
    assert type(child) is Window
    assert (child.limit, set(child.tags), child.label) == (4, {"session"}, "other")
    assert all(mine is theirs for mine, theirs in zip(child.entries, parent.entries, strict=True))
    await child.append(ContextItem("e"))
    assert [each[0] for each in seen] == ["appending", "evicting", "appended"], "the child has the parent's listeners"
    await parent.append(ContextItem("f"))
    assert (held(child), held(parent)) == ("bcde", "bcdf")
    assert held(parent.branch(limit=2)) == "df", "the newest are kept"
    assert parent.branch(limit=9).limit == 9
    assert parent.branch(limit=None).limit == 4
    with pytest.raises(ValueError, match="limit must be >= 1"):
        parent.branch(limit=0)

    assert len(parent.branch().listeners) == 5
    assert len(parent.branch(listeners=[]).listeners) == 0
    assert len(parent.branch(listeners=None).listeners) == 0
    (first, *_) = parent.listeners
    assert list(parent.branch(listeners=[first]).listeners) == [first]
    # The list is a copy, both ways.
    child.listeners.remove(first)
    assert first in parent.listeners

    @parent.on(Cleared)
    async def only_here(event: Cleared[str]) -> None: ...

    assert only_here not in child.listeners


async def test_003_24_branches_of_branches() -> None:
    agent = ContextQueue[str](limit=20)
    await agent.append(ContextItem("system context"), ContextItem("user message"))
    turn = agent.branch()
    await turn.append(ContextItem("tool call result"))
    inner = turn.branch(limit=5)
    await inner.append(ContextItem("sub-step output"))
    assert ContextItem("tool call result") not in agent.items
    assert ContextItem("sub-step output") not in turn.items
    assert (len(agent), len(turn), len(inner), inner.limit) == (2, 3, 4, 5)


@pytest.mark.clause("003-25a", "003-25b", "003-25c", "003-25d")
async def test_003_25_listeners_of_a_queue() -> None:
    queue = await filled("ab", limit=2)
    seen: list[tuple[Any, ...]] = []

    @queue.on(Appended)
    async def log_after(queue: Any, appended: Any, current: Any) -> None:
        seen.append((queue, [e.content for e in appended], [e.content for e in current]))
        appended.clear()
        current.clear()

    @queue.on(Appending)
    async def log_before(queue: Any, incoming: Any, current: Any) -> None:
        seen.append((queue, [e.content for e in incoming], [e.content for e in current]))
        incoming.clear()
        current.clear()

    @queue.on(Evicting)
    async def log_evict(queue: Any, item: Any) -> None:
        seen.append((list(queue), item.content))

    @queue.on(Clearing)
    async def log_clear(queue: Any, items: Any) -> None:
        seen.append((queue, [e.content for e in items]))
        items.clear()

    @queue.on(Cleared)
    async def log_cleared(event: Cleared[str]) -> None:
        seen.append((event.layer,))

    await queue.append(ContextItem("c"))
    # Changing a list that was passed has no effect.
    assert held(queue) == "bc"
    await queue.clear()
    assert seen == [
        (queue, ["c"], ["a", "b"]),
        (texts("a", "b"), "a"),
        (queue, ["c"], ["b", "c"]),
        (queue, ["b", "c"]),
        (queue,),
    ]

    @queue.on(Appended)
    async def by_event(event: Appended[str]) -> None:
        seen.append((event.layer, event.entries, event.current))

    seen.clear()
    await queue.append(ContextItem("d"))
    assert seen[-1] == (queue, tuple(texts("d")), tuple(texts("d")))


@pytest.mark.clause("003-25e")
async def test_003_25_the_document_s_own_example() -> None:
    counts: list[str] = []
    queue = ContextQueue[str](limit=20)

    @queue.on(Appending)
    async def log_before(queue: Any, incoming: Any, current: Any) -> None:
        counts.append(f"Current count: {len(current)}")

    @queue.on(Appended)
    async def log_after(queue: Any, appended_items: Any, current: Any) -> None:
        counts.append(f"New count: {len(current)}")

    await queue.append(ContextItem(content="a"), ContextItem(content="b"), ContextItem(content="c"))
    assert counts == ["Current count: 0", "New count: 3"]


@pytest.mark.clause("003-26a", "003-26b")
async def test_003_26_listeners_are_attached_with_a_decorator() -> None:
    queue = ContextQueue[str](limit=9)
    running, most, runs = 0, 0, 0

    async def slow(event: Appended[str]) -> None:
        nonlocal running, most, runs
        running += 1
        most, runs = max(most, running), runs + 1
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        running -= 1

    async def together() -> None:
        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(queue.append, ContextItem(name))

    locked = queue.on(Appended, lock=True)(slow)
    assert isinstance(locked, Listener)
    await together()
    assert (most, runs) == (1, 3)
    queue.listeners.remove(locked)
    most = runs = 0
    free = Listeners()
    queue.listeners.append(free.on(Appended)(slow))
    await together()
    assert (most, runs) == (3, 3), "without the lock they run side by side"
    with pytest.raises(ConfigError, match="is not a valid listener"):
        queue.listeners.append(slow)  # type: ignore[arg-type]  # that is the test


def test_003_27_only_async_functions_listen() -> None:
    queue = ContextQueue[str](limit=3)

    def plain(event: Appended[str]) -> None: ...

    async def too_many(a: Any, b: Any, c: Any, d: Any) -> None: ...

    async def nothing() -> None: ...

    async def two_of_one(queue: Any, more: Any) -> None: ...

    wrong: list[tuple[Any, str]] = [
        (plain, "is not an async function"),
        (too_many, "takes 4 values"),
        (nothing, "takes 0 values"),
    ]
    for fn, why in wrong:
        with pytest.raises(ConfigError, match=why) as caught:
            queue.on(Appended)(fn)
        assert caught.value.code == "layer-listener"
    with pytest.raises(ConfigError, match="takes 2 values"):
        queue.on(Cleared)(two_of_one)
    anything: Any = str
    with pytest.raises(ConfigError, match="is not a valid event"):
        queue.on(anything)(audit)
    assert len(queue.listeners) == 0


async def audit(event: Appended[Any]) -> None: ...


async def test_003_28_a_queue_as_data() -> None:
    queue = ContextQueue[Note](limit=3, tags=["b", "a"])
    queue.on(Appended)(audit)
    queue.on(Cleared, name="tidy")(audit_cleared)
    await queue.append(ContextItem(Note("x")), ContextItem(Note("y"), "about", "y"))
    data = queue.dump()
    assert data == {
        "version": 1,
        "limit": 3,
        "tags": ["a", "b"],
        "entries": [each.dump() for each in queue],
        "listeners": {"Appended": [f"{__name__}:audit"], "Cleared": ["tidy"]},
    }
    assert json.loads(json.dumps(data)) == data


async def audit_cleared(event: Cleared[Any]) -> None: ...


@pytest.mark.clause("003-29a", "003-29b", "003-29c")
async def test_003_29_a_queue_read_back() -> None:
    queue = await filled("abcd", limit=4)
    seen = record(queue)
    data = json.loads(json.dumps(queue.dump()))
    restored = ContextQueue[str].load(data, type=str, listeners=queue.listeners)
    assert seen == []
    assert (restored.entries, restored.limit, restored.tags) == (queue.entries, 4, frozenset())
    assert list(restored.listeners) == list(queue.listeners)
    await restored.append(ContextItem("e"))
    assert [each[0] for each in seen] == ["appending", "evicting", "appended"]
    assert held(queue) == "abcd"
    assert held(ContextQueue.load(data | {"limit": 2, "listeners": {}})) == "cd", "the oldest are dropped"
    for known in ((), [each for each in queue.listeners if each.event is not Evicting]):
        with pytest.raises(KeyError) as caught:
            ContextQueue.load(data, listeners=known)
        assert isinstance(caught.value, NameNotFound)
        assert issubclass(caught.type, NoeticError)
    for wrong in ({"version": 2}, {"limit": "many"}, {"entries": 3}, {"colour": "red"}):
        with pytest.raises(CodecError):
            ContextQueue.load(data | {"listeners": {}} | wrong)
    no_data: Any = ["version", 1]
    with pytest.raises(CodecError, match="version None"):
        ContextQueue.load(no_data)
    with pytest.raises(CodecError, match=r"entries\[0\].content"):
        ContextQueue.load(data | {"listeners": {}}, type=int)
    with pytest.raises(ValueError, match="limit must be >= 1"):
        ContextQueue.load(data | {"listeners": {}, "limit": 0})


@pytest.mark.clause("003-30a", "003-30b")
async def test_003_30_names_of_listeners() -> None:
    first, second = ContextQueue[str](limit=3), ContextQueue[str](limit=3)
    heard: list[str] = []

    def attach(queue: ContextQueue[str], who: str) -> Listener:
        @queue.on(Appended)
        async def log(event: Appended[str]) -> None:
            heard.append(who)

        return log

    one, two = attach(first, "first"), attach(second, "second")
    assert one.name == two.name
    assert one.name.startswith(f"{__name__}:test_003_30")
    await first.append(ContextItem("a"))
    await second.append(ContextItem("a"))
    assert heard == ["first", "second"], "two of one name do not meet"
    named = first.on(Appended, name="mine")(log_elsewhere)
    assert named.name == "mine"

    # One function for two events is two listeners.
    both = ContextQueue[str](limit=3)
    events: list[object] = []

    @both.on(Cleared)
    @both.on(Clearing)
    async def either(event: Any) -> None:
        events.append(event.__class__)

    await both.clear()
    assert events == [Clearing, Cleared]
    # One that listens everywhere is found without being given.
    everywhere = EVERYWHERE.on(Appended)(log_elsewhere)
    try:
        restored = ContextQueue.load(ContextQueue[str](limit=2).dump() | {"listeners": {"Appended": [everywhere.name]}})
        assert list(restored.listeners) == [everywhere]
    finally:
        EVERYWHERE.remove(everywhere)


async def log_elsewhere(event: Appended[Any]) -> None: ...
