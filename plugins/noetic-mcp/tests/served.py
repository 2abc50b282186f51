"""A server of the official SDK: `served.py stdio`, or `served.py http`, which prints its port."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from typing import Annotated

import anyio
from mcp.server.mcpserver import Audio, Context, Elicit, Image, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    CreateMessageResult,
    EmbeddedResource,
    ListRootsResult,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel

server = MCPServer("served", instructions="Add whole numbers only.", log_level="CRITICAL")
PIXEL = b"\x89PNG\r\n\x1a\n"


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(structured_output=False)
async def picture() -> list[Image | Audio | EmbeddedResource | str]:
    """A picture, a sound and a text."""
    note = TextResourceContents(uri="note://one", text="north", mime_type="text/plain")
    return [
        Image(data=PIXEL, format="png"),
        Audio(data=b"RIFF", format="wav"),
        EmbeddedResource(type="resource", resource=note),
        "a buoy",
    ]


@server.tool(structured_output=False)
async def large(size: int) -> str:
    """So many characters."""
    return "x" * size


@server.tool()
async def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
async def hang() -> str:
    """Never answer."""
    await anyio.sleep_forever()
    return ""


@server.tool()
async def die() -> str:
    """End the process in the middle of the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool()
async def pid() -> int:
    """The id of the process."""
    return os.getpid()


@server.resource("tides://{port}")
def tides(port: str) -> str:
    """The tides of a port."""
    return f"High water at {port} is at noon."


COUNTED: list[int] = []


@server.tool()
async def count() -> int:
    """How often it was called."""
    COUNTED.append(1)
    return len(COUNTED)


@server.tool()
async def variable(name: str) -> str:
    """A variable of the environment."""
    return os.environ.get(name, "")


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Add a tool."""

    async def added() -> str:
        return f"this is {name}"

    server.add_tool(added, name=name, description="A tool that came later.")
    await ctx.notify_tools_changed()
    return "added"


class Sure(BaseModel):
    sure: bool


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the user."""
    return str(await ctx.elicit("Sure?", Sure))


class Berth(BaseModel):
    port: str
    nights: int


async def which_berth() -> Elicit[Berth]:
    return Elicit("Which berth?", Berth)


async def summary(text: str) -> Sample:
    said = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return Sample([said], max_tokens=50, system_prompt="Sum up.", temperature=0.5)


async def folders() -> ListRoots:
    return ListRoots()


@server.tool(structured_output=False)
async def book(berth: Annotated[Berth, Resolve(which_berth)]) -> str:
    """Book a berth, of which the person says which."""
    return f"{berth.port} for {berth.nights} nights"


@server.tool(structured_output=False)
async def shorten(text: str, short: Annotated[CreateMessageResult, Resolve(summary)]) -> str:
    """Have the client's model sum up a text."""
    assert isinstance(short.content, TextContent)
    return f"{text} is {short.content.text}, says {short.model}"


@server.tool(structured_output=False)
async def publish(
    text: str,
    short: Annotated[CreateMessageResult, Resolve(summary)],
    berth: Annotated[Berth, Resolve(which_berth)],
) -> str:
    """Ask the client's model and the person."""
    assert isinstance(short.content, TextContent)
    return f"{short.content.text} in {berth.port}"


@server.tool(structured_output=False)
async def where(roots: Annotated[ListRootsResult, Resolve(folders)]) -> str:
    """The roots of the client."""
    return " ".join(str(each.uri) for each in roots.roots)


@server.tool(structured_output=False)
async def sail(ctx: Context) -> str:
    """Report progress twice."""
    await ctx.report_progress(1, 2, "left Brest")
    await ctx.report_progress(2, 2)
    return "arrived"


@server.resource("docs://style")
def style() -> str:
    """How to write."""
    return "Write short sentences."


@server.resource("docs://picture", mime_type="image/png")
def bytes_of_picture() -> bytes:
    """A picture."""
    return PIXEL


@server.prompt()
def review(code: str) -> str:
    """Ask for a review."""
    return f"Review {code}."


def over_http() -> None:
    import uvicorn

    # asyncio sends small answers at once only where the protocol is named.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(server.streamable_http_app(), log_level="critical", lifespan="on")
        uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    warnings.simplefilter("ignore")
    over_http() if sys.argv[1] == "http" else server.run("stdio")


if __name__ == "__main__":
    main()
