"""What grows has a bound: what is beyond it is refused by name, what is below it is kept, and no loss goes untold."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from noetic_py import Channel, Context, Harness, Memory, StateBag, parallel, step
from noetic_py.channels.live import MAX_CHANNELS, MAX_LISTENERS, Board, Entry
from noetic_py.core.items import Message
from noetic_py.core.log import MAX_ITEMS, ItemLog
from noetic_py.errors import ChannelTimeout, LimitExceeded
from tests.properties.checks import FULL, examples
from tests.servers.figures import Figure

pytestmark = pytest.mark.anyio


def nothing_lost(channel: Channel[Any], dropped: int) -> None:
    raise AssertionError(f"{channel.name} has lost {dropped}")


def test_a_log_takes_its_million_items_and_no_more(figure: Figure) -> None:
    wanted = examples(20_000, MAX_ITEMS)
    assert MAX_ITEMS == 1_000_000
    log = ItemLog() if FULL else ItemLog(max_items=wanted)
    item = Message.user("x")
    for _ in range(wanted):
        log.append(item)
    with pytest.raises(LimitExceeded, match="log length"):
        log.append(item)
    with pytest.raises(LimitExceeded, match="log length"):
        log.extend([item, item])
    assert len(log) == wanted
    log.rollback(wanted - 2)
    with pytest.raises(LimitExceeded):
        log.extend([item] * 3)
    log.extend([item] * 2)
    assert len(log) == wanted
    figure("items", len(log))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_a_million_messages_from_outside_the_newest_stay_and_the_loss_is_told(figure: Figure) -> None:
    sends, capacity = examples(20_000, 1_000_000), 1000
    told: list[int] = []
    board = Board(lambda _, dropped: told.append(dropped))
    live = board.live(Channel("jobs", int, capacity=capacity))
    for number in range(sends):
        live.push(number)
    assert live.dropped == sends - capacity
    assert told == list(range(1, sends - capacity + 1))
    left: list[Entry] = []
    reader = live.reader(lambda: True)
    while (entry := reader.take_now()) is not None:
        left.append(entry)
    assert [entry.value for entry in left] == list(range(sends - capacity, sends))
    figure("sends", sends)


async def test_a_sender_inside_waits_at_the_capacity_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Exactly as many as the channel holds are sent; the next one has an error with a name, and nothing is dropped."""
    channel = Channel("jobs", int, capacity=100)

    @step
    async def flood(_: None, ctx: Context[Memory, StateBag]) -> int:
        for number in range(1_000_000):
            try:
                await ctx.send(channel, number, timeout=0.0 if number >= 100 else 30.0)
            except ChannelTimeout:
                return number
        return -1

    @step
    async def both(_: None, ctx: Context[Memory, StateBag]) -> list[int]:
        sent = await flood(None, ctx)
        received = [await ctx.recv(channel) for _ in range(sent)]
        assert ctx.try_recv(channel) is None
        return received

    with caplog.at_level(logging.WARNING):
        async with Harness(plugins=[]) as harness:
            assert (await harness.run(both, None)).value == list(range(100))
    assert caplog.records == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hundred_thousand_who_would_listen_to_a_topic(figure: Figure) -> None:
    """The bound is met exactly, those who listen hear everything, and whoever leaves makes room for one."""
    asked = examples(MAX_LISTENERS + 500, 100_000)
    live = Board(nothing_lost).live(Channel("news", str, mode="topic"))
    listeners: list[Any] = []
    refused = 0
    for _ in range(asked):
        try:
            listeners.append(live.listen())
        except LimitExceeded:
            refused += 1
    assert (len(listeners), refused) == (MAX_LISTENERS, asked - MAX_LISTENERS)
    live.push("high tide")
    assert {(await listener.take()).value for listener in listeners} == {"high tide"}
    listeners.pop().leave()
    live.listen()
    with pytest.raises(LimitExceeded):
        live.listen()
    figure("asked", asked)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_those_whose_step_has_ended_take_nobodys_place() -> None:
    live = Board(nothing_lost).live(Channel("news", str, mode="topic"))
    for _ in range(2 * MAX_LISTENERS):
        live.reader(lambda: False)
    for _ in range(MAX_LISTENERS):
        live.reader(lambda: True)
    with pytest.raises(LimitExceeded, match="listeners of channel 'news'"):
        live.reader(lambda: True)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_run_has_so_many_channels_and_no_more() -> None:
    board = Board(nothing_lost)
    for number in range(MAX_CHANNELS):
        board.live(Channel(f"c{number}", str))
    with pytest.raises(LimitExceeded, match="channels of a run"):
        board.live(Channel("one more", str))
    assert board.live(Channel("c0", str)) is board.known("c0")


async def test_a_body_that_makes_channels_without_end_is_stopped_by_name() -> None:
    @step
    async def flood(_: None, ctx: Context[Memory, StateBag]) -> None:
        for number in range(MAX_CHANNELS + 1):
            ctx.try_recv(Channel(f"c{number}", str))

    async with Harness(plugins=[]) as harness:
        with pytest.raises(LimitExceeded, match="channels of a run"):
            await harness.run(flood, None)
        # And the harness goes on.
        assert (await harness.run(parallel(one, one), None)).value == (1, 1)


@step
async def one(_: None) -> int:
    return 1
