"""An agent with tools: ask the model, run the tools it calls, ask again, until it calls none.

The script is what a model might say: two calls at once, one of them wrong, a corrected call, the answer. Tools of one
round run side by side, and a tool may send its caller back with a message instead of ending the run.
"""

import anyio

from noetic_py import Context, FunctionCall, FunctionCallOutput, Harness, Memory, Message, call_model, loop, tool, until
from noetic_py.errors import ModelRetry
from noetic_py.testing import ScriptedModel

HEIGHTS = {"Dover": 6.8, "Calais": 7.2}


# What the model gets to see is made from the signature and the docstring; `ctx` is no part of it.
@tool
async def tide(ctx: Context[Memory, object], port: str) -> float:
    """Height of the next high tide in metres.

    Args:
        port: The port's English name.
    """
    await anyio.sleep(0.05)
    if port not in HEIGHTS:
        raise ModelRetry(f"no port is called {port!r}; there are {', '.join(HEIGHTS)}")
    return HEIGHTS[port]


agent = loop(
    call_model(instructions="You know the tides.", tools=[tide]),
    until=until.no_tool_calls() | until.max_rounds(5),
)


async def main() -> None:
    model = ScriptedModel(
        [
            FunctionCall(name="tide", arguments={"port": "Dover"}),
            FunctionCall(name="tide", arguments={"port": "Callais"}),
        ],
        FunctionCall(name="tide", arguments={"port": "Calais"}),
        "Calais has the higher tide: 7.2 m, and Dover 6.8 m.",
    )
    async with Harness(model=model) as harness:
        result = await harness.run(agent, "Where is the tide higher, in Dover or in Calais?")
    for item in result.items:
        match item:
            case Message():
                print(f"{item.role}: {item.text}")
            case FunctionCall():
                print(f"  calls {item.name}({item.arguments})")
            case FunctionCallOutput():
                print(f"  gets {item.text}")
            case _:
                pass
    print(f"\n{result.status} ({result.reason}) after {result.model_calls} model calls")


if __name__ == "__main__":
    anyio.run(main)
