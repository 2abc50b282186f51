"""The lock of sessions: one at a time, in the order of arrival, and shut for what is new."""

from __future__ import annotations

import random

import anyio
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import SessionKey
from noetic_py.errors import Overloaded, ShuttingDown
from noetic_py.sessions.queue import SessionLock

pytestmark = pytest.mark.anyio

KEY = SessionKey("ada", "trip")


async def test_order_bound_and_nothing_left() -> None:
    lock, order = SessionLock(), list[int]()
    inside, go = anyio.Event(), anyio.Event()

    async def first() -> None:
        async with lock.acquire(KEY):
            inside.set()
            await go.wait()
            order.append(0)

    async def later(number: int) -> None:
        async with lock.acquire(KEY, limit=2):
            order.append(number)

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await inside.wait()
        for number in (1, 2):
            group.start_soon(later, number)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await later(3)
        assert lock.is_locked(KEY)
        go.set()
    assert (order, len(lock), lock.is_locked(KEY)) == ([0, 1, 2], 0, False)


async def test_shut_it_refuses_what_is_new_and_lets_in_what_is_to_be_written() -> None:
    lock = SessionLock()
    lock.close()
    with pytest.raises(ShuttingDown):
        async with lock.acquire(KEY, new=True):
            pytest.fail("it was shut")
    async with lock.acquire(KEY):
        assert len(lock) == 1
    assert len(lock) == 0


async def test_one_that_is_cancelled_in_the_moment_of_being_refused_leaves_nothing() -> None:
    lock = SessionLock()
    ended: list[str] = []

    async def waits() -> None:
        try:
            async with lock.acquire(KEY, new=True):
                ended.append("in")
        except ShuttingDown:
            ended.append("refused")
        except anyio.get_cancelled_exc_class():
            ended.append("cancelled")
            raise

    async with lock.acquire(KEY), anyio.create_task_group() as group:
        group.start_soon(waits)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        lock.close()
    assert ended == ["cancelled"]
    assert len(lock) == 0
    async with lock.acquire(KEY):
        assert len(lock) == 1


async def test_one_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    lock = SessionLock()
    let_in: list[str] = []

    async def waits(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with lock.acquire(KEY):
                await anyio.lowlevel.checkpoint()
                let_in.append(name)

    scopes = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as group, lock.acquire(KEY):
        for name, scope in zip("ab", scopes, strict=True):
            group.start_soon(waits, name, scope)
            await anyio.wait_all_tasks_blocked()
        scopes[0].cancel()
    assert (let_in, len(lock)) == (["b"], 0)


@define
class Queue:
    """What a lock for `most` that wait does, without tasks."""

    most: int
    shut: bool = False
    inside: list[int] = field(factory=list[int])
    waiting: list[int] = field(factory=list[int])
    new: set[int] = field(factory=set[int])
    told: dict[int, str] = field(factory=dict[int, str])

    def enter(self, number: int) -> None:
        if number in self.new and self.shut:
            self.told[number] = "ShuttingDown"
        elif self.inside and len(self.waiting) >= self.most:
            self.told[number] = "Overloaded"
        else:
            self.waiting.append(number)

    def close(self) -> None:
        self.shut = True
        self.told |= dict.fromkeys(self.new.intersection(self.waiting), "ShuttingDown")
        self.waiting = [number for number in self.waiting if number not in self.new]

    def go_on(self) -> None:
        if not self.inside and self.waiting:
            self.inside.append(self.waiting.pop(0))
            self.told[self.inside[0]] = "in"


MOVES = {"enter": 3, "enter new": 5, "leave": 3, "cancel first": 1, "cancel last": 1, "shut": 1}


@given(st.integers(0, 2**32))
async def test_random_callers_take_turns_as_a_queue_says(seed: int) -> None:
    chance = random.Random(seed)
    moves, most = chance.choices([*MOVES], [*MOVES.values()], k=14), chance.randint(0, 3)
    lock, queue, told = SessionLock(), Queue(most), dict[int, str]()
    scopes, leave = list[anyio.CancelScope](), list[anyio.Event]()

    async def caller(number: int) -> None:
        with scopes[number]:
            try:
                async with lock.acquire(KEY, limit=most, new=number in queue.new):
                    told[number] = "in"
                    await leave[number].wait()
                    told[number] = "out"
            except (Overloaded, ShuttingDown) as error:
                told[number] = type(error).__name__

    async with anyio.create_task_group() as group:
        for move in moves:
            if move.startswith("enter"):
                number = len(scopes)
                scopes.append(anyio.CancelScope())
                leave.append(anyio.Event())
                queue.new |= {number} if move == "enter new" else set()
                queue.enter(number)
                group.start_soon(caller, number)
            elif move == "shut":
                lock.close()
                queue.close()
            elif move == "leave" and queue.inside:
                leave[queue.inside[0]].set()
                queue.told[queue.inside.pop()] = "out"
            elif move.startswith("cancel") and queue.waiting:
                scopes[queue.waiting.pop(0 if move == "cancel first" else -1)].cancel()
            queue.go_on()
            await anyio.wait_all_tasks_blocked()
            assert told == queue.told
            assert (lock.is_locked(KEY), len(lock)) == (bool(queue.inside), len(queue.inside))
        group.cancel_scope.cancel()
    assert len(lock) == 0
