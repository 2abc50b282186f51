"""A flow that is served to MCP clients, and an agent that uses it as a tool of an MCP server.

`python mcp_tools.py serve` is the server; any MCP client can start it. Without an argument the program starts it, as an
agent starts a server of another author. Of the server's two tools, one needs the approval of a person.
"""

import sys

import anyio
from noetic_mcp import McpServer, McpTools, serve_mcp

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    ReadContext,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel

# -- the server

HEIGHTS = {"Brest": 6.9, "Dover": 6.7}


@step
async def tides(ports: list[str], ctx: Context) -> dict[str, float]:
    """The height of the next high water at each port, in metres."""
    found: dict[str, float] = {}
    for port in ports:
        found[port] = HEIGHTS[port]
        ctx.progress.set(f"{port} is done")  # sent to clients that ask for progress
    return found


@tool
async def book(port: str) -> str:
    """Book a berth."""
    return f"A berth in {port} is booked."


async def serve() -> None:
    async with Harness() as harness:
        await serve_mcp(harness, {"tides": tides, "book": book}, name="harbour")


# -- the client


async def books(call: FunctionCall, ctx: ReadContext) -> bool:
    return call.name == "harbour__book"


harbour = McpServer.stdio("harbour", [sys.executable, __file__, "serve"], needs_approval=books)
agent = loop(call_model(), until=until.no_tool_calls() | until.max_rounds(5))


class Mem(Memory):
    mcp: McpTools = McpTools(servers=[harbour])


async def use() -> None:
    model = ScriptedModel(
        FunctionCall(name="harbour__tides", arguments={"input": ["Brest", "Dover"]}),
        FunctionCall(name="harbour__book", arguments={"port": "Brest"}),
        "High water is higher in Brest, and you have a berth there.",
    )
    async with harbour, Harness(model=model, memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        waits = await harness.run(agent, "Book a berth where high water is higher.", run_id="trip")
        for request in waits.pending:
            print(f"{request.kind}: {request.tool} {dict(request.arguments)}")
        result = await harness.resume("trip", agent, answers=[each.approve() for each in waits.pending])
    for item in result.items:
        if isinstance(item, FunctionCallOutput):
            print(item.text)
    print(result.value)


if __name__ == "__main__":
    anyio.run(serve if sys.argv[1:] == ["serve"] else use)
