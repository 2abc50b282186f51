"""Two processes with one stored login, which call a tool, and again when their input ends: `renewing.py URL FILE`."""

from __future__ import annotations

import os
import sys

import anyio
import anyio.to_thread
from noetic_mcp import McpServer, OAuth


async def main(url: str, file: str) -> None:
    async with McpServer.streamable_http("web", url, auth=OAuth(file)) as server:
        for _ in range(2):
            os.write(1, f"{await server.call('add', {'a': 1, 'b': 2})}\n".encode())
            await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    # What both have imported takes most of their time.
    other = os.fork()
    anyio.run(main, sys.argv[1], sys.argv[2])
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
