"""Work beside the flow that is ended with a value, or finishes with what it has, from another task or process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import (
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    RunResult,
    StateBag,
    Step,
    acting_as,
    call_tool,
    errors,
    loop,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.access import Principal
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context.detached import DetachedRun
from noetic_py.journal.records import Decision
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
Owner = str


@define
class Sum:
    """A value of a class of its own."""

    total: int


@step
async def summary(_: object, ctx: Ctx) -> int:
    ctx.items.append(Message.assistant("summed up"))
    return 100 + int(ctx.state["seen"])


@step
async def breaks(_: object) -> int:
    raise ValueError("no sum")


def wrapped(by: Any = summary) -> Budget:
    return Budget(steps=50, reserve=Budget(steps=5), wrap_up=by)


class Counting:
    """A loop that counts to three and then waits, and a flow that starts it beside itself and waits for its end."""

    def __init__(self, owner: Owner = "run", budget: Budget | None = None, own: Budget | None = None) -> None:
        self.there = anyio.Event()
        self.work: list[DetachedRun[Any]] = []
        self.ran: list[int] = []

        @step
        async def count(n: int, ctx: Ctx) -> int:
            self.ran.append(n)
            if n == 3:
                ctx.items.append(Message.assistant("not kept"))
                self.there.set()
                await anyio.sleep_forever()
            ctx.items.append(Message.assistant(f"counted {n}"))
            ctx.state["seen"] = n
            return n + 1

        counting: Step[int, int, Memory, StateBag] = loop(count, until=until.never(), id="counting")
        self.beside: Step[int, int, Memory, StateBag] = counting.with_options(budget=own) if own else counting
        beside = self.beside

        @step
        async def start(n: int, ctx: Ctx) -> Any:
            work = ctx.spawn_detached(beside, n, owner=owner, budget=budget)  # type: ignore[call-overload] # of any owner
            self.work.append(work)
            return (await work.wait()).value

        self.start: Step[int, Any, Memory, StateBag] = start

    @property
    def result(self) -> RunResult[Any]:
        """How it has ended."""
        result = self.work[-1].result
        assert result is not None
        return result


def texts(result: RunResult[Any]) -> list[str]:
    return [item.text for item in result.items if isinstance(item, Message)]


@asynccontextmanager
async def counting(made: Counting, backend: CheckpointBackend | None = None) -> AsyncGenerator[DetachedRun[Any]]:
    """The work once it waits; the run has ended when the block has."""
    with anyio.fail_after(20):
        async with Harness(plugins=(), checkpoints=backend) as harness:
            handle = harness.start(made.start, 0, run_id="r", on_error="result")
            await made.there.wait()
            yield made.work[0]
            await handle.result()


OWNERS = pytest.mark.parametrize("owner", ["run", "harness"])
KEPT = pytest.mark.parametrize("durable", [False, True])


@OWNERS
@KEPT
async def test_another_task_ends_it_with_a_value(owner: Owner, durable: bool) -> None:
    made = Counting(owner)
    async with counting(made, InMemoryBackend() if durable else None) as work:
        with pytest.raises(
            errors.ConfigError, match="'many' is not a valid value of 'counting'; expected int"
        ) as wrong:
            work.complete("many")
        assert wrong.value.code == "complete"
        assert work.status == "running"
        with acting_as(Principal("ada")):
            assert work.complete(42)
        # The first one wins.
        assert not work.complete(43)
        assert not work.wrap_up("enough")
    result: Any = made.result
    assert (result.status, result.value, result.reason) == ("completed", 42, "completed from outside")
    assert (work.status, made.ran) == ("completed", [0, 1, 2, 3])
    assert texts(result) == ["counted 0", "counted 1", "counted 2"]
    assert not work.complete(44)


@OWNERS
@KEPT
@pytest.mark.parametrize("by", ["budget", "budget of the loop", "loop"])
async def test_it_finishes_with_what_it_has(owner: Owner, durable: bool, by: str) -> None:
    made = Counting(owner, wrapped() if by == "budget" else None, wrapped() if by == "budget of the loop" else None)
    async with counting(made, InMemoryBackend() if durable else None) as work:
        assert work.wrap_up("enough")
        assert not work.wrap_up("again")
    result: Any = made.result
    value, more = (3, list[str]()) if by == "loop" else (102, ["summed up"])
    assert (result.status, result.value, result.reason) == ("completed", value, "enough")
    assert texts(result) == ["counted 0", "counted 1", "counted 2", *more]
    assert result.state["seen"] == 2
    assert result.steps == (4 if by == "loop" else 5)


@OWNERS
async def test_a_wrap_up_that_fails_is_its_failure_and_a_stop_meanwhile_holds(owner: Owner) -> None:
    made = Counting(owner, wrapped(breaks))
    async with counting(made) as work:
        assert work.wrap_up("enough")
    assert (work.status, made.result.has_value) == ("failed", False)
    assert "no sum" in str(work.error)

    there = anyio.Event()

    @step
    async def hangs(_: object) -> int:
        there.set()
        await anyio.sleep_forever()
        return 0

    stops: dict[str, Callable[[Any], object]] = {
        "aborted": lambda work: work.abort("no"),
        "completed": lambda work: work.complete(5),
    }
    for status, stop in stops.items():
        made = Counting(owner, wrapped(hangs))
        there = anyio.Event()
        async with counting(made) as work:
            assert work.wrap_up("enough")
            await there.wait()
            stop(work)
        assert work.status == status


@OWNERS
@KEPT
async def test_what_has_nothing_yet_has_no_value(owner: Owner, durable: bool) -> None:
    @step
    async def waits(n: int) -> int:
        made.there.set()
        await anyio.sleep_forever()
        return n

    made = Counting(owner)
    made.beside = waits
    backend = InMemoryBackend() if durable else None

    @step
    async def start(n: int, ctx: Ctx) -> str:
        made.work.append(ctx.spawn_detached(waits, n, owner=owner))  # type: ignore[call-overload] # of any owner
        return (await made.work[-1].wait()).status

    made.start = start
    async with counting(made, backend) as work:
        assert work.wrap_up("enough")
    assert (work.status, made.result.has_value, made.result.reason) == ("completed", False, "enough")
    if backend is not None and owner == "run":
        # Whoever goes on with the run sees the same.
        async with Harness(plugins=(), checkpoints=backend) as harness:
            await harness.resume(await harness.fork("r"), start)
        assert (work.status, made.result.has_value, made.result.reason) == ("completed", False, "enough")


async def test_it_is_ended_with_a_value_of_a_class_of_its_own_and_in_a_thread() -> None:
    made = Counting()

    @step
    async def waits(n: int) -> Sum:
        made.there.set()
        await anyio.sleep_forever()
        return Sum(n)

    @tool
    def ends() -> bool:
        """End it, in a thread of its own."""
        return made.work[0].complete(Sum(7))

    @step
    async def start(n: int, ctx: Ctx) -> int:
        made.work.append(ctx.spawn_detached(waits, n))
        await made.there.wait()
        assert await call_tool(ends, args={})(None, ctx)
        total: int = (await made.work[0].wait()).value.total
        return total

    backend = InMemoryBackend()
    async with Harness(plugins=(), checkpoints=backend) as harness:
        assert (await harness.run(start, 1, run_id="r")).value == 7
        assert (await harness.resume(await harness.fork("r"), start)).value == 7


STOPS: list[tuple[str, Callable[[DetachedRun[Any]], bool], int]] = [
    ("complete", lambda work: work.complete(42), 42),
    ("wrap_up", lambda work: work.wrap_up("enough"), 102),
    ("wrap_up", lambda work: work.wrap_up("enough"), 3),
]


@pytest.mark.parametrize(("kind", "stop", "value"), STOPS, ids=["complete", "wrap-up", "loop"])
async def test_a_stop_that_was_taken_holds_wherever_the_process_dies(
    kind: str, stop: Callable[[DetachedRun[Any]], bool], value: int
) -> None:
    budget = wrapped() if value == 102 else None
    decided = 0
    for at in range(1, 40):
        backend, made = FaultyBackend(InMemoryBackend()), Counting(budget=budget)
        died = False
        with backend.outlived():
            async with counting(made, backend) as work:
                backend.revive(dies_at=at)
                assert stop(work)
            died = backend.dead
        died = died or backend.dead
        backend.revive()
        again = Counting(budget=budget)
        async with Harness(plugins=(), checkpoints=backend) as harness:
            journal = await harness.runs.journal("r")
            stored = any(isinstance(each, Decision) and each.key == "asked" and each.path for each in journal)
            decided += stored and died
            handle = harness.start(sequence(again.start), 0) if not stored else None
            if handle is not None:
                # A stop that was not stored was never asked for.
                handle.abort("enough")
                await handle.result()
                continue
            with anyio.fail_after(20):
                result = await harness.resume("r", again.start)
        assert result.value == value, at
        assert set(again.ran) <= {3}
        assert kind != "complete" or again.ran == []
        if not died:
            break
    assert decided


async def test_work_that_was_aborted_is_aborted_in_a_later_process(backend: CheckpointBackend) -> None:
    there, go = anyio.Event(), anyio.Event()
    began, seen = [0], list[tuple[str, str | None]]()

    @step
    async def linger(n: int) -> int:
        began[0] += 1
        there.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await go.wait()
        return n

    @step
    async def start(n: int, ctx: Ctx) -> int:
        work = ctx.spawn_detached(linger, n)
        if not there.is_set():
            await there.wait()
            store.revive(dies_at=1, when="after")
            work.abort("enough")
            with anyio.CancelScope(shield=True):
                while not store.dead:
                    await anyio.lowlevel.checkpoint()
            go.set()
        ended = await work.wait()
        seen.append((ended.status, ended.reason))
        return n

    store = FaultyBackend(backend)
    with anyio.fail_after(20):
        with store.outlived():
            async with Harness(plugins=(), checkpoints=store) as harness:
                await harness.run(start, 0, run_id="r")
        assert store.dead
        store.revive()
        seen.clear()
        async with Harness(plugins=(), checkpoints=store) as harness:
            assert (await harness.resume("r", start)).value == 0
    assert (seen, began) == ([("aborted", "enough")], [1])


async def test_another_process_ends_work_that_is_a_run_of_its_own() -> None:
    backend, made = InMemoryBackend(), Counting("harness")
    async with counting(made, backend) as work, Harness(plugins=(), checkpoints=backend) as other:
        await other.runs.complete(work.run_id, 42)
    assert (made.result.status, made.result.value) == ("completed", 42)


async def test_an_attempt_that_is_tried_again_starts_work_that_nothing_has_stopped() -> None:
    works: list[DetachedRun[Any]] = []

    @step
    async def work(n: int) -> int:
        if len(works) == 1:
            await anyio.sleep_forever()
        return n

    @step(retry=Retry(2, initial=0))
    async def start(n: int, ctx: Ctx) -> Any:
        works.append(ctx.spawn_detached(work, n))
        if len(works) == 1:
            works[0].complete(42)
            assert (await works[0].wait()).value == 42
            raise OSError("flaky")
        return (await works[1].wait()).value

    for backend in (None, InMemoryBackend()):
        works.clear()
        async with Harness(plugins=(), checkpoints=backend) as harness:
            assert (await harness.run(start, 1)).value == 1
        assert [each.result.reason for each in works if each.result] == ["completed from outside", None]
