"""Messages to channels of runs in other processes: they wait in the inbox until the run's owner has taken them."""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import (
    Ask,
    Channel,
    Context,
    FunctionCallOutput,
    Harness,
    Memory,
    PendingRequest,
    Retry,
    each,
    errors,
    loop,
    parallel,
    sequence,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.engine.journaling import writer
from noetic_py.engine.journaling.run_history import open_requests, request_of
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.records import Decision
from noetic_py.testing import FaultyBackend
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

LEASE = 0.3
"""Seconds; an owner looks for messages thirty times in this time."""
orders = Channel("orders", str, external=True)
numbers = Channel("numbers", int, external=True)
few = Channel("few", int, external=True, capacity=3)
heights = Channel("heights", int, mode="value", external=True)


async def begun(store: CheckpointBackend, run_id: str) -> None:
    with anyio.fail_after(10):
        while True:
            if await store.head(run_id) is not None:
                return
            await anyio.sleep(0.001)


async def test_a_run_receives_what_another_harness_sends(store: CheckpointBackend) -> None:
    began = anyio.Event()

    @step
    async def serve(count: int, ctx: Context) -> list[str]:
        began.set()
        return [await ctx.recv(orders) for _ in range(count)]

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(serve, 3)
        await began.wait()
        for each in ("bread", "salt", "wine"):
            await other.runs.send(handle.run_id, orders, each)
        result = await handle.result()
        assert result.value == ["bread", "salt", "wine"]
        assert await store.inbox(handle.run_id) == []


async def test_messages_sent_before_a_channel_is_used_wait_for_it(store: CheckpointBackend) -> None:
    began, sent = anyio.Event(), anyio.Event()

    @step
    async def serve(_: int, ctx: Context) -> tuple[str, int]:
        began.set()
        await sent.wait()
        return await ctx.recv(orders), await ctx.recv(numbers)

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(serve, 0)
        await began.wait()
        await other.runs.send(handle.run_id, numbers, 7)
        await other.runs.send(handle.run_id, orders, "bread")
        sent.set()
        assert (await handle.result()).value == ("bread", 7)


async def test_a_message_that_finds_no_room_waits_in_the_store(store: CheckpointBackend) -> None:
    go = anyio.Event()

    @step
    async def serve(count: int, ctx: Context) -> list[int]:
        first = ctx.try_recv(few)
        assert first is None
        await go.wait()
        return [await ctx.recv(few) for _ in range(count)]

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(serve, 9)
        await begun(store, handle.run_id)
        for number in range(9):
            await other.runs.send(handle.run_id, few, number)
        with anyio.fail_after(20):
            while True:
                if len(await store.inbox(handle.run_id)) == 9 - few.capacity:
                    break
                await anyio.sleep(0.001)
        assert handle.channel(few).dropped == 0
        go.set()
        assert (await handle.result()).value == [*range(9)]


async def test_a_message_sent_twice_with_a_key_is_received_once(store: CheckpointBackend) -> None:
    again = anyio.Event()

    @step
    async def serve(_: int, ctx: Context) -> list[str]:
        first = await ctx.recv(orders)
        again.set()
        return [first, await ctx.recv(orders)]

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(serve, 0)
        await begun(store, handle.run_id)
        for _ in range(2):
            await other.runs.send(handle.run_id, orders, "bread", key="one]")
        await again.wait()
        await other.runs.send(handle.run_id, few, 1, key="k" * 256)
        # By now the first one has left the inbox.
        await other.runs.send(handle.run_id, orders, "bread", key="one]")
        await other.runs.send(handle.run_id, orders, "salt", key="two")
        assert (await handle.result()).value == ["bread", "salt"]


@step
async def one_more(_: object, ctx: Context) -> str:
    return await ctx.recv(orders)


@step
async def hotel(_: object, ctx: Context) -> str:
    return await ctx.ask(Ask("Which hotel?", str))


async def test_a_waiting_run_finds_its_messages_when_it_goes_on(store: CheckpointBackend) -> None:
    flow = sequence(hotel, one_more, id="stay")
    async with Harness(checkpoints=store) as first:
        waiting = await first.run(flow, 0)
        assert waiting.status == "suspended"
    async with Harness(checkpoints=store, lease=LEASE) as other:
        await other.runs.send(waiting.run_id, orders, "breakfast")
        result = await other.resume(waiting.run_id, flow, answers=[waiting.pending[0].answer("Forum")])
        assert result.value == "breakfast"
        assert await store.inbox(waiting.run_id) == []


async def test_a_worker_takes_messages_and_answers_beside_each_other(store: CheckpointBackend) -> None:
    flow = parallel(hotel, one_more, loop(one_more, until=until.max_rounds(3), id="rounds"), id="stay")
    async with (
        Harness(checkpoints=store, flows={"stay": flow}, lease=LEASE) as back,
        Harness(checkpoints=store, flows={"stay": flow}) as front,
        anyio.create_task_group() as group,
    ):
        run_id = await front.submit(flow, 0)
        # Before a worker has it, while it has it, and while an answer waits that only the next owner takes.
        await front.runs.send(run_id, orders, "a", key="0")
        group.start_soon(back.work)
        asked = await asked_by(front, run_id)
        await front.runs.answer(asked.answer("Forum"), wait=0)
        for key, each in enumerate("bcd", 1):
            await front.runs.send(run_id, orders, each, key=str(key))
        assert (await front.runs.wait(run_id, timeout=20)).status == "completed"
        found = (await front.resume(run_id, flow)).value
        assert found[0] == "Forum"
        assert found[1] in "abcd"
        # Behind an answer messages stay in the inbox, and the next owner knows them.
        keys = [each.key for each in await front.runs.journal(run_id) if isinstance(each, Decision)]
        assert sorted(key for key in keys if key.startswith("message")) == [f"message[{key}]" for key in range(4)]
        assert await store.inbox(run_id) == []
        await back.shutdown()


async def asked_by(harness: Harness[Memory], run_id: str) -> PendingRequest:
    with anyio.fail_after(10):
        while True:
            with suppress(errors.RunNotFound):
                for each in open_requests(await harness.runs.journal(run_id), KINDS).values():
                    return request_of(each, run_id)
            await anyio.sleep(0.005)


async def test_the_latest_value_of_another_process_is_seen(store: CheckpointBackend) -> None:
    @step
    async def watch(limit: int, ctx: Context) -> int:
        while True:
            if (height := await ctx.recv(heights)) > limit:
                return height
            await anyio.sleep(0.001)

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(watch, 7)
        await begun(store, handle.run_id)
        for height in (6, 7, 8):
            await other.runs.send(handle.run_id, heights, height)
        assert (await handle.result()).value == 8


@define
class Order:
    what: str
    price: Decimal


async def test_values_of_classes_and_converted_ones_arrive_as_such(store: CheckpointBackend) -> None:
    placed = Channel("placed", Order, external=True)

    @step
    async def serve(_: int, ctx: Context) -> tuple[Order, int]:
        return await ctx.recv(placed), await ctx.recv(numbers)

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(serve, 0)
        await begun(store, handle.run_id)
        await other.runs.send(handle.run_id, placed, Order("bread", Decimal("1.10")))
        given: Any = "7"
        await other.runs.send(handle.run_id, numbers, given)
        assert (await handle.result()).value == (Order("bread", Decimal("1.10")), 7)


async def test_what_cannot_be_sent_is_refused(store: CheckpointBackend, tmp_path: Path) -> None:
    began, go = anyio.Event(), anyio.Event()

    @step
    async def serve(_: int, ctx: Context) -> None:
        began.set()
        await go.wait()

    async with Harness(checkpoints=store) as harness:
        handle = harness.start(serve, 0)
        await began.wait()
        send, run_id = harness.runs.send, handle.run_id
        wrong: Any = 5
        forged = FunctionCallOutput(call_id="c", output="x")
        with pytest.raises(errors.ChannelValueInvalid, match="string"):
            await send(run_id, orders, wrong)
        with pytest.raises(errors.ConfigError, match="not external"):
            await send(run_id, Channel("inner", str), "bread")
        with pytest.raises(errors.ConfigError, match="not a valid channel"):
            await send(run_id, wrong, "bread")
        with pytest.raises(errors.RunNotFound):
            await send("elsewhere", orders, "bread")
        for key in ("", "x" * 257, "a\nb"):
            with pytest.raises(errors.InvalidId, match="key"):
                await send(run_id, orders, "bread", key=key)
        with pytest.raises(errors.ForgedEvent):
            await send(run_id, Channel("outputs", FunctionCallOutput, external=True), forged)
        with pytest.raises(errors.CodecError):
            await send(run_id, Channel("sets", object, external=True), object())
        assert await store.inbox(run_id) == []
        go.set()
        await handle.result()
        with pytest.raises(errors.ChannelClosed, match="completed"):
            await send(run_id, orders, "bread")
    async with Harness(checkpoints=FileBackend(tmp_path / "runs")) as harness:
        done = await harness.run(hotel, 0)
        with pytest.raises(errors.ConfigError, match="queues") as refused:
            await harness.runs.send(done.run_id, orders, "bread")
        assert refused.value.code == "queues"


async def test_a_message_that_the_owner_cannot_use_is_logged_and_dropped(
    store: CheckpointBackend, caplog: pytest.LogCaptureFixture
) -> None:
    older = Channel("orders", int, external=True)

    async with Harness(checkpoints=store, lease=LEASE) as owner, Harness(checkpoints=store) as other:
        handle = owner.start(one_more, 0)
        await begun(store, handle.run_id)
        await other.runs.send(handle.run_id, older, 5)
        await other.runs.send(handle.run_id, orders, "bread")
        assert (await handle.result()).value == "bread"
    assert [each.getMessage() for each in caplog.records if "is dropped" in each.getMessage()] == [
        f"a message for channel 'orders' of run {handle.run_id} is dropped: is a str, not int"
    ]


def messages_by(dice: random.Random) -> list[tuple[str, int, str]]:
    """Channel, value and key of each message, some of them sent again at once or later."""
    made: list[tuple[str, int, str]] = []
    for number in range(dice.randrange(1, 7)):
        made.append((dice.choice("ab"), number, f"k{number}"))
        made += [dice.choice(made) for _ in range(dice.choice((0, 0, 1, 2)))]
    return made


CHANNELS = {name: Channel(name, int, external=True, capacity=2) for name in "ab"}


@pytest.mark.parametrize("seed", range(SEED * 1000, SEED * 1000 + examples(sample=12, full=400)))
async def test_no_message_is_lost_or_doubled_when_owners_die(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, store = random.Random(seed), InMemoryBackend()
    if seed % 3 == 0:
        # Each record is a transaction of its own, as if all were large.
        monkeypatch.setattr(writer, "_MOST_TOGETHER", 1)
    sent = messages_by(dice)
    wanted = {name: [*dict.fromkeys(value for channel, value, _ in sent if channel == name)] for name in "ab"}

    @step
    async def take(name: str, ctx: Context) -> int:
        value = await ctx.recv(CHANNELS[name], timeout=20)
        if dice.random() < 0.2:
            raise RuntimeError("once more")
        return value

    takes = take.with_options(retry=Retry(attempts=50, initial=0))

    @step
    async def path(name: str, ctx: Context) -> list[int]:
        return [await takes(name, ctx) for _ in wanted[name]]

    flow = each(path, id="paths")

    async def send() -> None:
        again: set[str] = set()
        async with Harness(checkpoints=store) as other:
            for channel, value, key in sent:
                await begun(store, "r")
                try:
                    await other.runs.send("r", CHANNELS[channel], value, key=key)
                except errors.ChannelClosed:
                    # The run has all messages, and this one for the second time.
                    assert key in again
                again.add(key)
                if dice.random() < 0.5:
                    await anyio.sleep(0.002)

    result: Any = None
    async with anyio.create_task_group() as group:
        group.start_soon(send)
        while result is None:
            dying = FaultyBackend(store, dies_at=dice.randrange(1, 12), when=dice.choice(("before", "after")))
            with dying.outlived():
                async with Harness(checkpoints=dying, lease=LEASE, plugins=()) as harness:
                    is_there = await store.head("r") is not None
                    result = await (
                        harness.resume("r", flow) if is_there else harness.run(flow, ["a", "b"], run_id="r")
                    )
    assert result is not None
    assert result.value == [wanted["a"], wanted["b"]], f"seed {seed}"
