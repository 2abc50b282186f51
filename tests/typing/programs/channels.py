# Channels, schedules, inboxes and work beside the flow: what is sent, received and given back has its type.
from collections.abc import AsyncIterator
from typing import Literal

from attrs import define
from typing_extensions import assert_type

from noetic_py import Budget, Channel, Context, Harness, Memory, RunResult, Step
from noetic_py.channels import ChannelHandle
from noetic_py.context.detached import DetachedRun
from noetic_py import call_model, every, loop, step, until


class Mem(Memory): ...


@define
class State:
    n: int = 0


@define
class Order:
    what: str


numbers = Channel("numbers", int)
orders = Channel("orders", Order, mode="topic", capacity=10, external=True)
many = Channel("many", list[str], mode="value")
assert_type(numbers, Channel[int])
assert_type(orders, Channel[Order])
assert_type(many, Channel[list[str]])
Channel("a", int, mode="stack")  # E
Channel("a", int, capacity="1")  # E
Channel(1, int)  # E


# -- inside


@step
async def talk(x: str, ctx: Context) -> int:
    await ctx.send(numbers, 1)
    await ctx.send(numbers, "1")  # E
    await ctx.send(orders, {"what": "tea"})  # E
    await ctx.send(many, ["a"], timeout=None)
    await ctx.send(many, [1])  # E
    await ctx.send(numbers, 1, timeout="1")  # E
    assert_type(await ctx.recv(numbers), int)
    assert_type(await ctx.recv(orders, timeout=1.5), Order)
    assert_type(ctx.try_recv(many), list[str] | None)
    print(await ctx.recv(numbers), f"{await ctx.recv(orders)}")
    maybe: int | None = await ctx.recv(numbers)
    text: str = await ctx.recv(numbers)  # E
    await ctx.recv("numbers")  # E
    ctx.try_recv(numbers).bit_length()  # E
    return await ctx.recv(numbers)


# -- outside


async def outside(handle: ChannelHandle[Order]) -> None:
    handle.send(Order("tea"))
    handle.send("tea")  # E
    async with handle.stream() as values:
        assert_type(values, AsyncIterator[Order])
        async for value in values:
            assert_type(value, Order)
    assert_type(handle.dropped, int)


async def from_harness() -> None:
    async with Harness() as harness:
        run = harness.start(talk, "x")
        assert_type(run.channel(orders), ChannelHandle[Order])
        assert_type(harness.channel_handle(orders, run.run_id), ChannelHandle[Order])
        run.channel(numbers).send("1")  # E
        async with harness.channel_stream(numbers, run.run_id) as values:
            async for value in values:
                assert_type(value, int)


# -- an inbox


@step
async def shout(x: str) -> str:
    return x.upper()


@step
async def length(x: str) -> int:
    return len(x)


texts = Channel("texts", str)
chat = loop(call_model(), until=until.no_tool_calls(), inbox=texts, inbox_timeout=60.0)
assert_type(loop(shout, until=until.never(), inbox=texts), Step[str, str, Memory, object])
loop(shout, until=until.never(), inbox=numbers)  # E
loop(call_model(), until=until.no_tool_calls(), inbox=numbers)  # E
loop(shout, until=until.never(), inbox="texts")  # E
loop(length, until=until.never(), inbox=texts)  # E
loop(shout, until=until.never(), inbox=texts, inbox_timeout="long")  # E


# -- a schedule


@step
async def poll(_: None, ctx: Context[Mem, State]) -> int:
    return ctx.state.n


def decide(error: Exception, ctx: Context[Mem, State]) -> Literal["retry", "skip", "abort"]:
    return "skip"


def undecided(error: Exception, ctx: Context[Mem, State]) -> str:
    return "perhaps"


watch = every(60.0, poll, jitter=5.0, on_error=decide, wake=numbers)
assert_type(watch, Step[object, None, Mem, State])
assert_type(every(1, talk.bind("x")), Step[object, None, Memory, object])
every(60.0, poll, on_error=undecided)  # E
every("1h", poll)  # E
every(60.0, talk)  # E
every(60.0, poll, wake="numbers")  # E
every(60.0)  # E


async def watched() -> None:
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(watch, "x", state=State())
        assert_type(result.value, None)
        await harness.run(watch, "x")  # E
    await Harness().run(watch, "x", state=State())  # E


# -- work beside the flow


@step
async def counted(x: str, ctx: Context[Memory, State]) -> list[int]:
    return [ctx.state.n]


@step
async def demanding(x: str, ctx: Context[Mem, State]) -> int:
    return ctx.state.n


@step
async def start(x: str, ctx: Context) -> int:
    work = ctx.spawn_detached(talk, x)
    assert_type(work, DetachedRun[int])
    assert_type(work.result, RunResult[int, object] | None)
    assert_type((await work.wait(timeout=3.0)).value, int)
    assert_type(work.channel(orders), ChannelHandle[Order])
    beside = ctx.spawn_detached(counted, x, state=State(), budget=Budget(steps=3), owner="harness")
    assert_type(beside, DetachedRun[list[int]])
    ctx.spawn_detached(talk, 1)  # E
    ctx.spawn_detached(counted, x, state=3)  # E
    ctx.spawn_detached(demanding, x, state=State())  # E
    ctx.spawn_detached(talk, x, owner="nobody")  # E
    ctx.spawn_detached(talk, x, budget=3)  # E
    ctx.spawn_detached("talk", x)  # E
    await work.wait(timeout="3")  # E
    text: str = (await work.wait()).value  # E
    return work.result.value  # E
