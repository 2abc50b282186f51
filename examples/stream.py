"""Streaming: text while it is written, typed events with their paths, and a typed answer while it arrives.

A stream is entered with `async with`, so a reader that stops early leaves nothing running. The second part selects some
of the events.
"""

import anyio
from typing_extensions import TypedDict

from noetic_py import (
    Context,
    Emitted,
    FunctionCall,
    Harness,
    Memory,
    RunFinished,
    TextDelta,
    TokenUsage,
    ToolFinished,
    ToolStarted,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.core.events import LoopIteration, ModelFinished
from noetic_py.testing import ScriptedModel


@tool
async def look_up(ctx: Context[Memory, object], word: str) -> str:
    """Look a word up."""
    ctx.emit(f"opening the dictionary at {word[0]!r}")  # an event of your own; any object
    return f"{word}: the rise and fall of the sea"


agent = loop(call_model(tools=[look_up]), until=until.no_tool_calls())


class Entry(TypedDict, total=False):
    """What the glossary says of a word; the keys come one by one."""

    word: str
    meaning: str


writer = call_model(output=Entry, instructions="Write an entry for a glossary.")


async def everything() -> None:
    call = FunctionCall(name="look_up", arguments={"word": "tide"})
    model = ScriptedModel(call, "The tide is the rise and fall of the sea.", usage=TokenUsage(input=30, output=12))
    async with Harness(model=model) as harness, harness.stream(agent, "What is a tide?") as stream:
        async for event in stream.events:
            where = "/".join(event.path)
            match event:
                case TextDelta():
                    print(event.delta, end="|")
                case ToolStarted():
                    print(f"{where}: {event.call.name}({event.call.arguments})")
                case Emitted():
                    print(f"{where}: {event.event}")
                case ToolFinished():
                    print(f"{where}: {event.output.text}")
                case ModelFinished():
                    print(f"\n{where}: {event.usage.total if event.usage else 'unknown'} tokens")
                case LoopIteration():
                    print(f"{where}: round {event.iteration + 1}, stop: {event.stop}")
                case RunFinished():
                    print(f"{event.status}: {event.reason}")
                case _:
                    pass
        result = await stream.result()
    print(f"\nvalue: {result.value}")


async def some_of_it() -> None:
    call = FunctionCall(name="look_up", arguments={"word": "tide"}, call_id="c1")
    answer = '{"word": "tide", "meaning": "the rise and fall of the sea"}'
    model = ScriptedModel(call, "The rise and fall of the sea.", answer, chunk=20)
    async with Harness(model=model) as harness, harness.stream(agent >> writer, "What is a tide?") as stream:
        # The run goes no farther than this reader, and nothing is lost however slow it is.
        entries = stream.partial(Entry, capacity=1, overflow="wait")
        calls = stream.select(ToolStarted, Emitted, ToolFinished, call_id="c1")
        async for entry in entries:
            print(f"so far: {entry}")
        print([type(event).__name__ async for event in calls])
        print(f"at last: {(await stream.result()).value}")


async def main() -> None:
    await everything()
    await some_of_it()


if __name__ == "__main__":
    anyio.run(main)
