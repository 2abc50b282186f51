"""`noetic mcp` as a program: over standard input and output, over HTTP, and killed in the middle of a call."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client import Client
from mcp.types import TextContent
from noetic_mcp import McpServer, McpToolError, McpUnavailable

from noetic_py.cli import serving
from tests.warm import forked

HERE = Path(__file__).parent
NOETIC = [sys.executable, "-m", "noetic_py.cli", "mcp"]


async def test_a_file_is_served_to_our_own_client(tmp_path: Path) -> None:
    command = [*forked("tests.warm_noetic"), "mcp", f"{HERE / 'flows.py'}:shout", "--db", str(tmp_path / "runs.db")]
    async with McpServer.stdio("own", command) as server:
        assert [tool.wire_name for tool in await server.tools()] == ["own__shout", "own__continue_run"]
        assert await server.call("shout", {"input": "tide"}) == "TIDE"
        with pytest.raises(McpToolError, match="ToolArgumentsInvalid"):
            await server.call("shout", {})


async def test_a_call_goes_on_after_the_server_was_killed_in_its_middle(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = [*forked("tests.warm_noetic"), "mcp", str(HERE / "dying.py"), "--db", str(tmp_path / "runs.db")]
    program = StdioServerParameters(command=command[0], args=command[1:], env={"DONE": str(done)})
    meta: Any = {"noetic/run_id": "monday"}
    async with Client(program) as client:
        with pytest.raises(MCPError):
            await client.call_tool("flow", {"input": "tide"}, meta=meta)
    # The lease of the dead process has to run out, or to be seen as one of a dead process.
    async with Client(program) as client:
        result = await client.call_tool("flow", {"input": "tide"}, meta=meta)
    assert [block.text for block in result.content if isinstance(block, TextContent)] == ["TIDE!"]
    assert done.read_text(encoding="utf-8").split() == ["first", "second", "second"]


@contextmanager
def over_http() -> Generator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*NOETIC, f"{HERE / 'flows.py'}:shout", "--db", "none", "--port", str(port)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}) as process:
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
    assert process.returncode in (0, 143)


async def test_http_checks_the_host_and_the_origin() -> None:
    with over_http() as url:
        async with McpServer.streamable_http("own", url) as server:
            with anyio.fail_after(60):
                while True:
                    try:
                        assert await server.call("shout", {"input": "tide"}) == "TIDE"
                        break
                    except McpUnavailable:
                        # Not up yet; the next use waits longer each time.
                        continue
        async with httpx2.AsyncClient() as client:
            for header in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
                answer = await client.post(url, headers=header, json={})
                assert answer.status_code in (403, 421)


def test_without_the_package_the_remedy_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "noetic_mcp", None)
    assert serving.serve(str(HERE / "flows.py"), None, None, None) == 2
    assert "pip install noetic-mcp" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.serve("missing.py", None, None, None) == 2
    assert "there is no file missing.py" in capsys.readouterr().err
