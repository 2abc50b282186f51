"""An agent that waits for messages: it answers, waits for the next one, and is told when its background work is done.

The loop's inbox is a channel. Where the loop would end, it waits for a message instead: from the user outside of the
run, or from a step of the run. A tool starts slow work in the background and returns at once; the result arrives in the
same inbox. A script says what a model might say.
"""

import anyio

from noetic_py import (
    Channel,
    Context,
    FunctionCall,
    Harness,
    ItemsAppended,
    Message,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.core.events import LoopWaiting
from noetic_py.testing import ScriptedModel

# external: code outside the run may send to it.
inbox = Channel("inbox", str, external=True)


@step
async def measure(port: str, ctx: Context) -> None:
    await anyio.sleep(0.3)
    await ctx.send(inbox, f"[the gauge of {port}] 7.4 m, and rising")


@tool
async def ask_the_gauge(ctx: Context, port: str) -> str:
    """Ask a port's gauge how high the water is; the answer comes as a message.

    Args:
        port: The port's English name.
    """
    # The run owns it, waits for it at its end, and stops it when it is stopped itself.
    ctx.spawn_detached(measure, port)
    return "asked"


agent = loop(
    call_model(instructions="You know the tides.", tools=[ask_the_gauge]),
    until=until.no_tool_calls(),
    inbox=inbox,
    inbox_timeout=60.0,
)

model = ScriptedModel(
    FunctionCall(name="ask_the_gauge", arguments={"port": "Brest"}),
    "I have asked the gauge. What else?",
    "When sun and moon pull in one line.",
    "The gauge of Brest says 7.4 m, and rising.",
)


async def main() -> None:
    questions = ["What makes a spring tide?"]
    async with Harness(model=model) as harness:
        handle = harness.start(agent, "How high is the water in Brest?")
        async for event in handle.stream.events:
            match event:
                case ItemsAppended(items=items):
                    for item in items:
                        if isinstance(item, Message):
                            print(f"{item.role}: {item.text}")
                case LoopWaiting():
                    if questions:
                        handle.channel(inbox).send(questions.pop())
                    elif len(model.requests) == 4:
                        handle.interrupt("the user went to see for himself")
                case _:
                    pass
        result = await handle.result()
    print(f"{result.status} ({result.reason}) after {result.model_calls} model calls")


if __name__ == "__main__":
    anyio.run(main)
