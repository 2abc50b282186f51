"""Work beside the flow goes on after a crash, also when the step that started it had finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from attrs import define

from noetic_py import (
    Budget,
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    StateBag,
    Step,
    call_model,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.testing.faults import When
from noetic_py.testing.ledger import attempt_of

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]


@define
class Order:
    number: int


# What the bodies have done, over all processes of a test.
DONE: list[str] = []
WHENS: tuple[When, ...] = ("before", "after")
SENT = Channel("sent", int)


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    DONE.clear()


@step
async def pack(order: Order) -> int:
    DONE.append(f"pack {order.number}")
    return order.number


@step
async def ship(number: int, ctx: Ctx) -> int:
    for _ in range(3):
        await checkpoint()
    ctx.items.append(Message.assistant(f"shipped {number}"))
    DONE.append(f"ship {number} {ctx.state.get('k')}")
    return number * 10


DELIVER = sequence(pack, ship, id="deliver")


@step
async def accept(number: int, ctx: Ctx) -> int:
    ctx.state["k"] = number
    ctx.spawn_detached(DELIVER, Order(number))
    ctx.state["k"] = -1
    return number + 1


@step
async def count(number: int) -> int:
    for _ in range(6):
        await checkpoint()
    return number + 1


def harness(backend: Any, **options: Any) -> Any:
    return Harness(plugins=(), checkpoints=backend, **options)


async def outcome(backend: FaultyBackend, flow: AnyStep, **options: Any) -> Any:
    """How the run comes out, after all the deaths of its processes."""
    result: Any = None
    with backend.outlived():
        async with harness(backend) as owner:
            result = await owner.run(flow, 1, run_id="r", **options)
    while backend.dead:
        backend.revive()
        async with harness(backend) as owner:
            head = await backend.head("r")
            if head is None or not head.position:
                result = await owner.run(flow, 1, run_id="r", **options)
            else:
                result = await owner.resume("r", flow)
    return result


@step
async def second(number: int) -> int:
    for _ in range(50):
        await checkpoint()
    return number


@step
async def flaky(number: int, ctx: Ctx) -> int:
    await checkpoint()
    if all(attempt == 1 for _, attempt in attempt_of(ctx)):
        raise ValueError("not yet")
    return number


@step
async def tell(number: int, ctx: Ctx) -> int:
    for _ in range(3):
        await checkpoint()
    await ctx.send(SENT, number)
    DONE.append(f"ship {number}")
    return number


@step
async def order_message(number: int, ctx: Ctx) -> int:
    ctx.spawn_detached(tell, number)
    return number


@step
async def hear(number: int, ctx: Ctx) -> int:
    return number + 100 * await ctx.recv(SENT, timeout=20)


def first_of(results: Sequence[int], ctx: Ctx) -> int:
    return results[0]


PATHS: tuple[Step[int, int, Memory, StateBag], ...] = (accept, count)
RACERS: tuple[Step[int, int, Memory, StateBag], ...] = (accept, second)
FLOWS: dict[str, Step[int, int, Memory, StateBag]] = {
    "a sequence": sequence(accept, count, count),
    "the whole flow": accept,
    "below a finished spawn": sequence(spawn(accept), count, count),
    "a loop": sequence(loop(accept, until=until.max_rounds(2)), count, count),
    "beside paths": sequence(parallel(PATHS, merge=first_of), count, count),
    "the winner of a race": sequence(race(RACERS), count, count),
    "a retry around it": sequence(accept, count, flaky, id="q").with_options(retry=Retry(2, initial=0)),
    "messages": sequence(order_message, count, hear),
}


@pytest.mark.parametrize("name", FLOWS)
async def test_work_goes_on_wherever_the_process_dies(name: str) -> None:
    flow = FLOWS[name]
    whole = FaultyBackend(InMemoryBackend())
    expected = await outcome(whole, flow)
    shipped = {line for line in DONE if line.startswith("ship")}
    assert shipped
    for at in range(2, whole.appends + 1):
        for when in WHENS:
            DONE.clear()
            result = await outcome(FaultyBackend(InMemoryBackend(), dies_at=at, when=when), flow)
            assert (result.value, result.state) == (expected.value, expected.state), (at, when)
            # A race that is won starts no other path, and an attempt that failed may have got further with its work.
            assert result.steps == expected.steps or name in ("the winner of a race", "a retry around it"), (at, when)
            assert {line for line in DONE if line.startswith("ship")} == shipped, (at, when)


async def dying_in_ship(backend: FaultyBackend, flow: AnyStep) -> None:
    """Run until the work is in flight, its first step done, and its starter too."""
    with backend.outlived():
        async with harness(backend) as owner:
            await owner.run(flow, 1, run_id="r")


async def found(flow: AnyStep) -> FaultyBackend:
    """A run that died when the starter and the first step of the work were stored, and nothing of the second."""
    for at in range(2, 30):
        DONE.clear()
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        await dying_in_ship(backend, flow)
        backend.revive()
        journal = await harness(backend).runs.journal("r")
        ended = {record.path[-1] for record in journal if type(record).__name__ == "StepFinished"}
        if {"accept", "pack"} <= ended and not {"ship", "deliver[detached]"} & ended:
            return backend
    raise AssertionError("there is no such moment")


async def test_what_it_had_finished_does_not_run_again() -> None:
    flow = sequence(accept, count, count)
    backend = await found(flow)
    DONE.clear()
    async with harness(backend) as owner:
        await owner.resume("r", flow)
    # With the state that it was started with, and not the one that its starter has left.
    assert DONE == ["ship 1 1"]


async def test_it_goes_on_in_one_process_after_the_other() -> None:
    flow = sequence(accept, count, count)
    backend = await found(flow)
    DONE.clear()
    for _ in range(2):
        backend.revive(dies_at=1)
        with backend.outlived():
            async with harness(backend) as owner:
                await owner.resume("r", flow)
    backend.revive()
    async with harness(backend) as owner:
        await owner.resume("r", flow)
    assert set(DONE) == {"ship 1 1"}


@define
class Tally:
    k: int = 0


@step
async def log_state(x: int, ctx: Context[Memory, Any]) -> int:
    for _ in range(9):
        await checkpoint()
    DONE.append(repr(ctx.state))
    return x


@pytest.mark.parametrize(("own", "given"), [({}, None), (Tally(5), None), ({"k": 1}, Tally(7)), (Tally(5), {"k": 2})])
async def test_its_state_is_the_one_that_it_was_started_with(own: Any, given: Any) -> None:
    @step
    async def start(x: int, ctx: Context[Memory, Any]) -> int:
        ctx.spawn_detached(log_state, x, **({} if given is None else {"state": given}))
        return x

    @step
    async def plain(x: int, ctx: Context[Memory, Any]) -> int:
        for _ in range(30):
            await checkpoint()
        return x

    async def lived(backend: FaultyBackend) -> None:
        flow = sequence(start, plain)
        with backend.outlived():
            async with harness(backend) as owner:
                await owner.run(flow, 1, run_id="r", state=own)
        if backend.dead:
            backend.revive()
            async with harness(backend) as owner:
                await owner.resume("r", flow, state_type=type(own))

    await lived(FaultyBackend(InMemoryBackend()))
    (expected,) = DONE
    DONE.clear()
    if isinstance(given, Tally):
        # Nobody says where that class is.
        with pytest.warns(errors.NoeticWarning):
            await lived(FaultyBackend(InMemoryBackend(), dies_at=2, when="after"))
        assert DONE == []
        return
    await lived(FaultyBackend(InMemoryBackend(), dies_at=2, when="after"))
    assert [expected] == DONE


async def test_a_harness_that_was_not_entered_cannot_own_it() -> None:
    flow = sequence(accept, count, count)
    backend = await found(flow)
    DONE.clear()
    with pytest.warns(errors.NoeticWarning, match=r"accept/deliver\[detached\] had not ended") as warned:
        assert (await harness(backend).resume("r", flow)).value == 4
    assert warned[0].filename == __file__
    assert DONE == []


async def test_a_step_that_nobody_can_find_again_is_named() -> None:
    def hidden(number: int) -> AnyStep:
        @step(id="hidden")
        async def work(x: int) -> int:
            for _ in range(20):
                await checkpoint()
            DONE.append(f"hidden {number}")
            return x

        return work

    @step
    async def start(x: int, ctx: Ctx) -> int:
        # One of two that say the same and hold something else: nobody can tell which.
        ctx.spawn_detached([hidden(1), hidden(2)][x], x)
        return x

    flow = sequence(start, count, count)
    backend = FaultyBackend(InMemoryBackend(), dies_at=3, when="after")
    await dying_in_ship(backend, flow)
    backend.revive()
    with pytest.warns(errors.NoeticWarning, match=r"start/hidden\[detached\] had not ended"):
        async with harness(backend) as owner:
            assert (await owner.resume("r", flow)).value == 3
    assert DONE == []


async def test_its_own_budget_holds_over_all_processes() -> None:
    model = ScriptedModel(*["yes"] * 99)
    asks = loop(call_model(model), until=until.max_rounds(9), prepare_next=lambda out, verdict, ctx: "on", id="asks")

    @step
    async def start(x: int, ctx: Ctx) -> int:
        ctx.spawn_detached(asks, "go", budget=Budget(model_calls=3))
        return x

    flow = sequence(start, count, count)
    for at in range(2, 14):
        asked = len(model.requests)
        result = await outcome(FaultyBackend(InMemoryBackend(), dies_at=at, when="after"), flow)
        assert (result.value, result.model_calls) == (3, 3), at
        # The answer of one that was in flight at the kill may be lost, and then it is asked once more.
        assert len(model.requests) <= asked + 4
