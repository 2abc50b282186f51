"""What is written of attempts that asked for the end themselves, or whose child was refused before it began."""

from __future__ import annotations

import anyio
import pytest

from noetic_py import (
    Ask,
    Budget,
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    StateBag,
    Step,
    call_model,
    sequence,
    step,
)
from noetic_py.errors import BudgetExceeded, ModelUnavailable
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
ORDERS = Channel("orders", str, mode="queue")


@step(version="1")
async def send(value: str, ctx: Ctx) -> str:
    """Two messages."""
    await ctx.send(ORDERS, value)
    await ctx.send(ORDERS, value + "!")
    return value


@pytest.mark.parametrize("kept", [True, False])
async def test_what_an_attempt_has_taken_before_it_asked_for_the_end_is_taken(kept: bool) -> None:
    @step(version="1")
    async def take(value: str, ctx: Ctx) -> str:
        taken = await ctx.recv(ORDERS)
        ctx.complete(taken)
        await anyio.sleep_forever()
        return "never"

    flow = sequence(send, take, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        assert (result.status, result.value) == ("completed", "tea")
        if kept:
            again = await harness.resume("r", flow)
            assert (again.status, again.value) == ("completed", "tea")


@pytest.mark.parametrize("kept", [True, False])
async def test_a_take_below_what_may_be_tried_again_is_taken_by_who_asked_for_the_end(kept: bool) -> None:
    @step(version="1")
    async def take(value: str, ctx: Ctx) -> str:
        taken = await ctx.recv(ORDERS)
        ctx.complete(taken)
        await anyio.sleep_forever()
        return "never"

    flow = sequence(send, sequence(take, id="tried").with_options(retry=2), id="flow").with_options(retry=2)
    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        assert (result.status, result.value) == ("completed", "tea")
        if kept:
            again = await harness.resume("r", flow)
            assert (again.status, again.value) == ("completed", "tea")


async def test_what_a_once_step_has_tried_in_vain_is_no_outcome() -> None:
    tries: list[int] = []

    def flow() -> Step[int, int, Memory, StateBag]:
        @step(replay="once", retry=3, version="1")
        async def pay(x: int) -> int:
            tries.append(x)
            if len(tries) % 2:
                raise OSError("not now")
            return x + 1

        return sequence(pay, id="flow")

    result = await Harness(plugins=[], checkpoints=InMemoryBackend()).run(flow(), 1)
    assert (result.value, tries) == (2, [1, 1])


async def test_work_that_cannot_be_stored_is_not_kept_of_an_attempt_that_asked_for_the_end() -> None:
    @step(version="1")
    async def end(value: str, ctx: Ctx) -> str:
        ctx.state["client"] = object()
        ctx.complete(value)
        await anyio.sleep_forever()
        return "never"

    @step(version="1")
    async def begin(value: str, ctx: Ctx) -> str:
        ctx.state["seen"] = value
        return value

    flow = sequence(begin, end, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        again = await harness.resume("r", flow)
    assert (result.status, result.value) == (again.status, again.value) == ("completed", "tea")
    assert again.state == StateBag({"seen": "tea"})


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("handled", [True, False])
async def test_a_question_without_an_answer_stays_and_what_a_body_around_it_has_begun_does_not(
    kept: bool, handled: bool
) -> None:
    """The items before the question are written with it; changes of the state are those of bodies that finish."""
    model = ScriptedModel(*(ModelUnavailable("down", model="m") for _ in range(2)))

    @step(version="1")
    async def child(value: str, ctx: Ctx) -> str:
        ctx.state["child"] = value
        return value

    @step(version="1")
    async def asks(value: str, ctx: Ctx) -> str:
        ctx.items.append(Message.developer("before"))
        ctx.state["before"] = value
        await child(value, ctx)
        ctx.items.append(Message.developer("between"))
        ctx.state["begun"] = value
        try:
            await call_model()(value, ctx)
        except ModelUnavailable:
            if not handled:
                raise
        return "handled"

    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(asks, "tides", run_id="r", on_error="result")
        texts = [item.text for item in result.items if isinstance(item, Message)]
        if handled:
            assert (result.status, texts) == ("completed", ["before", "between"])
            assert dict(result.state) == {"before": "tides", "child": "tides", "begun": "tides"}
        else:
            assert (result.status, texts) == ("failed", ["before", "between", "tides"])
            assert dict(result.state) == {"before": "tides", "child": "tides"}
            if kept:
                again = await harness.resume("r", asks, on_error="result")
                assert [item.text for item in again.items if isinstance(item, Message)] == texts


async def test_what_a_body_said_before_a_child_that_was_refused_is_written() -> None:
    ran: list[str] = []

    @step(version="1")
    async def body(value: str, ctx: Ctx) -> str:
        ran.append(value)
        ctx.items.append(Message.user("before"))
        ctx.state["noted"] = 1
        with pytest.raises(BudgetExceeded):
            await send(value, ctx)
        ctx.items.append(Message.user("after"))
        return value

    @step(version="1")
    async def ask(value: str, ctx: Ctx) -> str:
        return f"{value} {await ctx.ask(Ask('Go on?', bool))}"

    flow = sequence(body, ask, id="flow")
    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        first = await harness.run(flow, "tea", run_id="r", budget=Budget(steps=1))
        assert [item.text for item in first.items if isinstance(item, Message)] == ["before", "after"]
    async with Harness(plugins=[], checkpoints=backend) as harness:
        again = await harness.resume("r", flow, budget=Budget(steps=5))
    assert (again.status, ran) == ("suspended", ["tea"])
    assert [item.text for item in again.items if isinstance(item, Message)] == ["before", "after"]
    assert again.state["noted"] == 1
