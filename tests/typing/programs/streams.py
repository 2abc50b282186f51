# What comes out of a stream, and what can be asked of it.
from attrs import define
from typing_extensions import assert_type

from noetic_py import Event, Harness, Item, StepStarted, TextDelta, ToolStarted, step
from noetic_py.core.selections import ItemSnapshot, SelectOptions


@define
class Port:
    name: str = ""


@step
async def count(text: str) -> int:
    return len(text)


MINE: SelectOptions = {"depth": 0, "overflow": "wait"}


async def watch(harness: Harness) -> None:
    async with harness.stream(count, "x") as stream:
        async for event in stream.events:
            assert_type(event, Event)
        async for text in stream.text:
            assert_type(text, str)
        async for item in stream.items:
            assert_type(item, Item)
        async for some in stream.select():
            assert_type(some, Event)
        async for delta in stream.select(TextDelta, path=("agent",), branch="agent", capacity=10):
            assert_type(delta, TextDelta)
        async for either in stream.select(ToolStarted, StepStarted):
            print(either.path)
        async with stream.select(TextDelta, **MINE) as mine:
            assert_type(await anext(mine), TextDelta)
        async for snapshot in stream.snapshots(**MINE):
            assert_type(snapshot, ItemSnapshot)
        async with stream.partial(Port, call_id="c1") as ports:
            assert_type(await anext(ports), Port)
            assert_type(ports.dropped, int)
        stream.select(str)  # E
        stream.select(TextDelta, overflow="block")  # E
        stream.select(TextDelta, kind="x")  # E
        stream.snapshots(path="agent")  # E
        assert_type((await stream.result()).value, int)
