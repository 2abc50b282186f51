"""Queues and pools against plain lists and dicts, with listeners that refuse at random."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from noetic_py.memory import ContextItem, ContextPool, ContextQueue
from noetic_py.memory.listeners import Appended, Appending, Clearing, LayerEvent

LIMITS = st.integers(1, 4)
IDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
# Which of the events of one call is refused, counted from 0; most calls are let through.
REFUSED = st.none() | st.integers(0, 4)


class Refused(Exception):
    pass


def now(work: Coroutine[Any, Any, Any]) -> bool:
    """Run what never waits, and say whether it was let through."""
    try:
        work.send(None)
    except StopIteration:
        return True
    except Refused:
        return False
    raise AssertionError("it waits for something")


def contents(entries: Any) -> list[Any]:
    return [entry.content for entry in entries]


class Call:
    """The events that a call should give, and where one of them is refused."""

    def __init__(self, refused: int | None) -> None:
        self.refused = refused
        self.events: list[tuple[Any, ...]] = []

    def tell(self, *event: Any) -> None:
        self.events.append(event)
        if len(self.events) - 1 == self.refused:
            raise Refused


def shown(event: Any) -> tuple[Any, ...]:
    """An event as the oracle writes it: what it says, and what its layer looks like at that moment."""
    name = type(event).__name__
    there = contents(event.layer)
    if name in ("Appending", "Appended"):
        return name, contents(event.entries), contents(event.current), there
    if name == "Clearing":
        return name, contents(event.entries), there
    return (name, there) if name == "Cleared" else (name, event.entry.content, there)


class Machine(RuleBasedStateMachine):
    layer: Any
    seen: list[tuple[Any, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.refused: int | None = None
        self.seen = []

    def listen(self, layer: Any) -> Any:
        async def log(event: Any) -> None:
            self.seen.append(shown(event))
            if len(self.seen) - 1 == self.refused:
                raise Refused

        self.listener = layer.on(LayerEvent)(log)
        return layer

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def check(self, work: Coroutine[Any, Any, Any], call: Call, through: bool) -> None:
        self.refused, self.seen[:] = call.refused, []
        assert now(work) == through
        assert self.seen == call.events
        self.refused = None


class QueueMachine(Machine):
    @initialize(limit=LIMITS)
    def start(self, limit: int) -> None:
        self.limit = limit
        self.model: list[int] = []
        self.layer = self.listen(ContextQueue[int](limit=limit))

    def append_to_model(self, values: list[int], call: Call) -> None:
        joined = [*self.model, *values]
        call.tell("Appending", values, list(self.model), list(self.model))
        for place in range(len(joined) - self.limit):
            call.tell("Evicting", joined[place], joined[place : place + self.limit])
        self.model = joined[-self.limit :]
        call.tell("Appended", values, list(self.model), list(self.model))

    @rule(count=st.integers(0, 6), refused=REFUSED, same=st.booleans())
    def append(self, count: int, refused: int | None, same: bool) -> None:
        values = [self.fresh()] * count if same else [self.fresh() for _ in range(count)]
        entries = [ContextItem(value) for value in values]
        if same and entries:
            entries = [entries[0]] * count
        call = Call(refused)
        try:
            self.append_to_model(values, call)
            through = True
        except Refused:
            through = False
        self.check(self.layer.append(*entries), call, through)

    @rule(refused=REFUSED)
    def clear(self, refused: int | None) -> None:
        call = Call(refused)
        try:
            call.tell("Clearing", list(self.model), list(self.model))
            self.model = []
            call.tell("Cleared", [])
            through = True
        except Refused:
            through = False
        self.check(self.layer.clear(), call, through)

    @rule(limit=LIMITS | st.none(), values=st.integers(0, 3))
    def branch(self, limit: int | None, values: int) -> None:
        """Go on with a branch, and look that neither notices what becomes of the other."""
        parent, before = self.layer, list(self.model)
        self.layer = parent.branch() if limit is None else parent.branch(limit=limit)
        self.limit = limit or self.limit
        self.model = self.model[-self.limit :]
        self.append(values, None, False)
        assert contents(parent) == before
        after = list(self.model)
        now(parent.clear())
        assert contents(self.layer) == after

    @rule()
    def store(self) -> None:
        data = json.loads(json.dumps(self.layer.dump()))
        self.seen.clear()
        self.layer = ContextQueue[int].load(data, type=int, listeners=[self.listener])
        assert self.seen == []

    @invariant()
    def holds_the_same(self) -> None:
        if hasattr(self, "model"):
            assert contents(self.layer.entries) == self.model == contents(self.layer.items) == contents(self.layer)
            assert len(self.layer) == len(self.model) <= self.limit == self.layer.limit
            assert bool(self.layer) == bool(self.model)
            assert self.layer.render() == "\n".join(map(str, self.model))


class PoolMachine(Machine):
    @initialize(limit=LIMITS | st.none())
    def start(self, limit: int | None) -> None:
        self.limit = limit
        self.model: dict[str, int] = {}
        self.layer = self.listen(ContextPool[int](limit=limit))

    def there(self, *without: str) -> list[int]:
        return [value for key, value in self.model.items() if key not in without]

    def add_to_model(self, key: str, value: int, touch: bool, call: Call) -> None:
        going: list[str] = []
        if key not in self.model and self.limit is not None:
            going = list(self.model)[: max(0, len(self.model) + 1 - self.limit)]
        for place, each in enumerate(going):
            call.tell("Evicting", self.model[each], self.there(*going[:place]))
        call.tell("Adding", value, self.there(*going))
        kept = {each: old for each, old in self.model.items() if each not in going and not (touch and each == key)}
        self.model = kept | {key: value}
        call.tell("Added", value, self.there())

    @rule(key=IDS, touch=st.booleans(), refused=REFUSED)
    def add(self, key: str, touch: bool, refused: int | None) -> None:
        call, value = Call(refused), self.fresh()
        try:
            self.add_to_model(key, value, touch, call)
            through = True
        except Refused:
            through = False
        self.check(self.layer.add(ContextItem(value, f"about {value}", key), touch=touch), call, through)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), refused=REFUSED)
    def remove(self, data: st.DataObject, refused: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        call = Call(refused)
        value = self.model[key]
        try:
            call.tell("Removing", value, self.there())
            del self.model[key]
            call.tell("Removed", value, self.there())
            through = True
        except Refused:
            through = False
        self.check(self.layer.remove(key), call, through)

    @rule(key=IDS)
    def remove_what_is_not_there(self, key: str) -> None:
        if key not in self.model:
            self.seen.clear()
            with pytest.raises(KeyError):
                now(self.layer.remove(key))
            assert self.seen == []

    @rule(refused=REFUSED)
    def clear(self, refused: int | None) -> None:
        call = Call(refused)
        try:
            call.tell("Clearing", self.there(), self.there())
            self.model = {}
            call.tell("Cleared", [])
            through = True
        except Refused:
            through = False
        self.check(self.layer.clear(), call, through)

    @rule(limit=LIMITS | st.none(), inherit=st.booleans())
    def branch(self, limit: int | None, inherit: bool) -> None:
        parent, before = self.layer, self.there()
        self.seen.clear()
        self.layer = parent.branch() if inherit else parent.branch(limit=limit)
        assert self.seen == []
        if not inherit:
            self.limit = limit
        if self.limit is not None:
            self.model = dict(list(self.model.items())[-self.limit :])
        self.add("a", False, None)
        assert contents(parent) == before
        after = self.there()
        now(parent.clear())
        assert contents(self.layer) == after

    @rule(limit=LIMITS | st.none())
    def store(self, limit: int | None) -> None:
        """Stored data may hold more than the limit, until something is added."""
        data = json.loads(json.dumps(self.layer.dump()))
        self.seen.clear()
        self.limit = limit
        self.layer = ContextPool[int].load(data | {"limit": limit}, type=int, listeners=[self.listener])
        assert self.seen == []

    @rule(limit=st.integers(1, 2), refused=REFUSED)
    def overflow(self, limit: int, refused: int | None) -> None:
        self.store(limit)
        self.add("z", False, refused)

    @invariant()
    def holds_the_same(self) -> None:
        if hasattr(self, "model"):
            assert contents(self.layer.entries) == self.there() == contents(self.layer.items)
            assert len(self.layer) == len(self.model)
            assert bool(self.layer) == bool(self.model)
            assert self.layer.limit == self.limit
            lines = [f"- [{key}] about {value}" for key, value in self.model.items()]
            assert self.layer.catalogue() == "\n".join(lines)
            for key in "abcdefz":
                assert (key in self.layer) == (key in self.model)
                found = self.layer.get(key, None)
                assert (found and found.content) == self.model.get(key)


RUNS = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_queues_do_what_a_list_does() -> None:
    run_state_machine_as_test(QueueMachine, settings=RUNS)


def test_pools_do_what_a_dict_does() -> None:
    run_state_machine_as_test(PoolMachine, settings=RUNS)


@pytest.mark.anyio
@pytest.mark.parametrize("limit", [3, 5, 100])
async def test_nothing_is_lost_when_several_write_at_once(limit: int) -> None:
    queue = ContextQueue[int](limit=limit)
    pool = ContextPool[int](limit=limit)
    gone: Counter[int] = Counter()

    @queue.on(LayerEvent)
    @pool.on(LayerEvent)
    async def slow(event: Any) -> None:
        if type(event).__name__ == "Evicting":
            gone[event.entry.content] += 1
        for _ in range(1 + len(gone) % 3):
            await anyio.lowlevel.checkpoint()

    async def write(start: int) -> None:
        for value in range(start, start + 10, 2):
            await queue.append(ContextItem(value), ContextItem(value + 1))
            for each in (value, value + 1):
                await pool.add(ContextItem(1000 + each, "about", str(each)))

    async with anyio.create_task_group() as group:
        for start in (0, 10, 20):
            group.start_soon(write, start)
    for layer, written in ((queue, set(range(30))), (pool, set(range(1000, 1030)))):
        left = contents(layer)
        assert len(left) == len(set(left)) == min(limit, 30)
        # Whatever is gone was announced, and nothing that is there is missing.
        assert set(left) | (set(gone) & written) == written


@pytest.mark.anyio
async def test_what_a_listener_writes_stays() -> None:
    queue = ContextQueue[str](limit=9)

    @queue.on(Appending)
    async def refuse(event: Appending[str]) -> None:
        if event.entries[0].content == "bad":
            await event.layer.append(ContextItem("refused: bad"))
            raise Refused

    with pytest.raises(Refused):
        await queue.append(ContextItem("bad"))
    assert contents(queue) == ["refused: bad"]


@pytest.mark.anyio
async def test_a_listener_may_write_to_what_it_is_shown() -> None:
    queue = ContextQueue[str](limit=9)

    @queue.on(Appended)
    async def answer(event: Appended[str]) -> None:
        if event.entries[0].content != "noted":
            await event.layer.append(ContextItem("noted"))

    @queue.on(Clearing)
    async def rescue(event: Clearing[str]) -> None:
        # It comes before the clearing, so it goes with the rest.
        assert isinstance(event.layer, ContextQueue)
        await event.layer.append(ContextItem("noted"))

    await queue.append(ContextItem("a"))
    assert contents(queue) == ["a", "noted"]
    await queue.clear()
    assert contents(queue) == []
