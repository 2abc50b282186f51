"""Real servers: programs and HTTP on the loopback."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.types import ResourceTemplate
from noetic_mcp import (
    McpConnectionLost,
    McpError,
    McpProtocolError,
    McpServer,
    McpTimeout,
    McpToolError,
    McpUnavailable,
)

from noetic_py import InputFile, InputImage, InputText, Secret
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from tests.warm import forked

HERE = Path(__file__).parent


def served(name: str = "served", **options: Any) -> McpServer:
    return McpServer.stdio(name, [*forked("served"), "stdio"], **options)


def by_hand(*arguments: str, **options: Any) -> McpServer:
    return McpServer.stdio("hand", [sys.executable, str(HERE / "by_hand.py"), *arguments], **options)


@contextmanager
def over_http() -> Generator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, str(HERE / "served.py"), "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp", process
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def ends(pid: int) -> None:
    """Return when a process that was killed has been collected by its parent."""
    with anyio.fail_after(30):
        while is_alive(pid):  # noqa: ASYNC110 # the event loop collects it, and says nothing
            await anyio.sleep(0.01)


async def named(server: McpServer) -> Mapping[str, Any]:
    return {tool.wire_name: tool for tool in await server.tools()}


async def test_a_program_is_started_at_first_use_and_ended_with_the_block() -> None:
    async with served() as server:
        tools = await named(server)
        assert tools["served__add"].description == "Add two numbers."
        assert tools["served__add"].parameters["required"] == ["a", "b"]
        assert await server.call("add", {"a": 1, "b": 2}) == "3"
        with pytest.raises(ToolArgumentsInvalid, match="'b' is a required property"):
            tools["served__add"].parse('{"a": 1}')
        pid = int(str(await server.call("pid", {})))
        assert is_alive(pid)
    await ends(pid)
    with pytest.raises(ConfigError) as caught:
        await server.tools()
    assert caught.value.code == "mcp-not-entered"


async def test_the_standard_error_need_not_be_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for stands_for_it in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stands_for_it)
        async with by_hand() as server:
            assert await server.call("other", {}) == "other"


async def test_nothing_is_started_before_it_is_used() -> None:
    async with McpServer.stdio("missing", ["/nonexistent/program"]):
        await anyio.lowlevel.checkpoint()


async def test_content_becomes_content_parts() -> None:
    async with served(max_output_bytes=5000) as server:
        parts = await server.call("picture", {})
        assert isinstance(parts, list)
        image, sound, note, text = parts
        assert isinstance(image, InputImage)
        assert (image.media_type, image.data) == ("image/png", b"\x89PNG\r\n\x1a\n")
        assert isinstance(sound, InputFile)
        assert (sound.media_type, sound.data) == ("audio/wav", b"RIFF")
        assert note == InputText(text="north")
        assert text == InputText(text="a buoy")
        assert await server.call("large", {"size": 5000}) == "x" * 5000
        with pytest.raises(McpProtocolError, match="the output has 5001 bytes, and 5000 are allowed"):
            await server.call("large", {"size": 5001})
        with pytest.raises(McpToolError, match="no wind"):
            await server.call("fail", {"why": "no wind"})
        # One that fails is still there.
        assert await server.call("add", {"a": 1, "b": 1}) == "2"
        assert list(await server.read("docs://style")) == [InputText(text="Write short sentences.")]
        with pytest.raises(McpProtocolError, match="docs://other"):
            await server.read("docs://other")
        (message,) = await server.prompt("review", {"code": "f()"})
        assert (message.role, message.text) == ("user", "Review f().")
        with pytest.raises(McpProtocolError, match="'other'"):
            await server.prompt("other")


async def test_a_server_that_is_killed_in_mid_call_fails_that_call_and_is_started_again() -> None:
    async with served("first") as first, served("second") as second:
        pid = await first.call("pid", {})
        other = await second.call("pid", {})
        with pytest.raises(McpConnectionLost, match=r"'first'.*'die'") as caught:
            await first.call("die", {})
        assert caught.value.server == "first"
        again = await first.call("pid", {})
        assert again != pid
        assert await second.call("pid", {}) == other
    for each in (pid, other, again):
        await ends(int(str(each)))


async def test_all_calls_in_flight_fail_when_their_server_dies() -> None:
    failed: list[type[McpError]] = []

    async def hang(server: McpServer) -> None:
        try:
            await server.call("hang", {})
        except McpError as error:
            failed.append(type(error))

    async with served() as server, anyio.create_task_group() as group:
        await server.tools()
        group.start_soon(hang, server)
        group.start_soon(hang, server)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(McpConnectionLost):
            await server.call("die", {})
    assert failed == [McpConnectionLost, McpConnectionLost]


async def test_a_slow_server_times_out_and_is_usable_afterwards() -> None:
    async with served(timeout=1.0) as server:
        await server.tools()
        with pytest.raises(McpTimeout, match=r"no answer to the call of 'hang' within 1 s"):
            await server.call("hang", {})
        assert await server.call("add", {"a": 2, "b": 2}) == "4"


async def test_malformed_frames_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async with by_hand(timeout=2.0) as server:
        with pytest.raises(McpProtocolError, match="1 frames that are not valid messages"):
            await server.call("frames", {})
        with pytest.raises(McpProtocolError, match="its answer to the call of 'unpaired' is not valid"):
            await server.call("unpaired", {})
        with pytest.raises(McpProtocolError, match=r"it refused the call of 'refuse': no \(code -32602\)"):
            await server.call("refuse", {})


async def test_a_changed_list_is_heard_from_an_earlier_protocol() -> None:
    async with by_hand() as server:
        tools = await server.tools()
        assert "hand__later" not in {tool.wire_name for tool in tools}
        assert await server.tools() is tools
        assert await server.call("grow", {}) == "added"
        assert "hand__later" in await named(server)
        assert await server.call("later", {}) == "later"


async def test_a_changed_list_is_heard_from_the_current_protocol() -> None:
    async with served() as server:
        tools = await server.tools()
        assert await server.tools() is tools
        await server.call("grow", {"name": "later"})
        with anyio.fail_after(30):
            while "served__later" not in await named(server):
                await anyio.lowlevel.checkpoint()
        assert await server.call("later", {}) == "this is later"


@pytest.mark.parametrize(
    ("argument", "seconds", "reason"),
    [("at-once", 60.0, "Connection closed"), ("silent", 0.5, r"the handshake was not done within 0\.5 s")],
)
async def test_a_server_that_does_not_begin(argument: str, seconds: float, reason: str) -> None:
    async with by_hand(argument, start_timeout=seconds) as server:
        with pytest.raises(McpUnavailable, match=reason):
            await server.tools()
        # The next use tries again.
        with pytest.raises(McpUnavailable, match=reason):
            await server.tools()


async def test_a_program_that_is_not_there() -> None:
    async with McpServer.stdio("missing", ["/nonexistent/program"]) as server:
        with pytest.raises(McpUnavailable, match=r"'missing': it could not be started: FileNotFoundError"):
            await server.tools()


async def test_lists_that_are_not_valid() -> None:
    async with by_hand("twice") as server:
        with pytest.raises(McpProtocolError, match="two of its tools are named 'hand__frames'"):
            await server.tools()


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("refers", "the schema of its tool 'frames' is not valid; .* refers to 'https://example.com/schema'"),
        ("no-schema", "the schema of its tool 'frames' is not valid; .*'nonsense' is not valid"),
        ("pattern", "the schema of its tool 'frames' is not valid; .* is not a 'regex'"),
        ("no-name", "one of its tools has no name"),
        ("large", r"its list of tools has 200\d+ bytes, and 1048576 are allowed"),
    ],
)
async def test_a_tool_that_is_not_valid_is_refused_before_a_model_is_asked(argument: str, reason: str) -> None:
    async with by_hand(argument) as server:
        with pytest.raises(McpProtocolError, match=reason):
            await server.tools()
        # The connection is not to blame.
        assert await server.call("other", {}) == "other"


async def test_content_that_a_provider_would_refuse_is_refused() -> None:
    async with by_hand() as server:
        for tool, reason in (
            ("not-an-image", "'text/html\\\\n' is not a valid media type; expected one of image/"),
            ("not-audio", "'image/png' is not a valid media type; expected one of audio/"),
            ("no-image", "an image has no data"),
            ("no-base64", "an image is not valid base64"),
        ):
            with pytest.raises(McpProtocolError, match=reason) as caught:
                await server.call(tool, {})
            assert caught.value.hint is None
        file = (await server.call("any-file", {}))[0]
        assert isinstance(file, InputFile)
        assert (file.filename, file.media_type) == ("b", "application/octet-stream")


async def test_a_message_without_an_end_ends_the_connection() -> None:
    async with by_hand(max_output_bytes=10_000, timeout=60.0) as server:
        await server.tools()
        with pytest.raises(
            McpProtocolError, match="it sent a message of more than 2217152 bytes, which ended the call"
        ):
            await server.call("endless", {})
        # The next use starts it again.
        assert await server.call("other", {}) == "other"


@pytest.mark.parametrize("value", ["\ud800", float("nan"), object(), {1, 2}])
async def test_arguments_without_a_json_form_do_not_end_the_connection(value: object) -> None:
    failed: list[McpError] = []

    async def hang(server: McpServer) -> None:
        try:
            await server.call("hang", {})
        except McpError as error:
            failed.append(error)

    async with served() as server, anyio.create_task_group() as group:
        pid = await server.call("pid", {})
        group.start_soon(hang, server)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(McpProtocolError, match="the call of 'add' cannot be sent"):
            await server.call("add", {"a": value, "b": 1})
        assert await server.call("pid", {}) == pid
        assert failed == []
        group.cancel_scope.cancel()


async def test_texts_that_cannot_be_sent_do_not_end_the_connection() -> None:
    async with served() as server:
        pid = await server.call("pid", {})
        with pytest.raises(McpProtocolError, match="cannot be sent"):
            await server.read("docs://\ud800")
        with pytest.raises(McpProtocolError, match="cannot be sent"):
            await server.prompt("review", {"code": "\ud800"})
        assert await server.call("pid", {}) == pid


async def test_leaving_the_block_ends_those_who_wait_for_a_connection() -> None:
    found: list[McpUnavailable] = []

    async def wait(server: McpServer) -> None:
        with anyio.fail_after(30):
            try:
                await server.tools()
            except McpUnavailable as error:
                found.append(error)

    async with anyio.create_task_group() as group, McpServer.stdio("missing", ["/nonexistent/program"]) as server:
        for _ in range(4):
            with pytest.raises(McpUnavailable):
                await server.tools()
        # The next start is put off by a delay, which this task waits for.
        group.start_soon(wait, server)
        await anyio.wait_all_tasks_blocked()
    assert [str(error).split("\n")[0] for error in found] == [
        "MCP server 'missing': it could not be started: its block was left"
    ]


async def test_leaving_the_block_ends_calls_in_flight() -> None:
    found: list[type[McpError]] = []

    async def hang(server: McpServer) -> None:
        try:
            await server.call("hang", {})
        except McpError as error:
            found.append(type(error))

    async with anyio.create_task_group() as group, served() as server:
        await server.tools()
        group.start_soon(hang, server)
        await anyio.wait_all_tasks_blocked()
    assert found == [McpConnectionLost]


async def test_http() -> None:
    with over_http() as (url, process):
        async with McpServer.streamable_http("web", url) as server:
            assert "web__add" in await named(server)
            assert await server.call("add", {"a": 1, "b": 2}) == "3"
            assert await server.read("docs://style") == [InputText(text="Write short sentences.")]
            assert await server.read("tides://Brest") == [InputText(text="High water at Brest is at noon.")]
            with pytest.raises(McpProtocolError, match="waves://Brest"):
                await server.read("waves://Brest")
            listed = await server.resources()
            assert "tides://{port}" in [each.uri_template for each in listed if isinstance(each, ResourceTemplate)]
            with pytest.raises(McpConnectionLost):
                await server.call("die", {})
            process.wait()
            with pytest.raises(McpUnavailable):
                await server.call("add", {"a": 1, "b": 2})


async def test_no_text_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    env = {"TOKEN": "kept-from-texts-1", "OTHER": Secret("kept-from-texts-2")}
    async with served(env=env) as server:
        assert await server.call("variable", {"name": "TOKEN"}) == "kept-from-texts-1"
        with pytest.raises(McpToolError) as caught:
            await server.call("fail", {"why": "kept-from-texts-2"})
        assert "kept-from-texts" not in f"{caught.value} {caught.value!r} {server!r}"
    with over_http() as (url, _):
        headers = {"Authorization": "Bearer kept-from-texts-3"}
        async with McpServer.streamable_http("web", url, headers=headers) as server:
            await server.tools()
    shown = [record.getMessage() for record in caplog.records if record.name.startswith(("mcp", "noetic", "httpx"))]
    assert not [text for text in shown if "kept-from-texts-3" in text]


async def test_questions_of_a_server_are_refused() -> None:
    async with served(timeout=20.0) as server:
        with pytest.raises(McpError) as caught:
            await server.call("ask", {})
        assert not isinstance(caught.value, McpTimeout)
        assert await server.call("add", {"a": 1, "b": 2}) == "3"


async def test_a_cancelled_call_leaves_the_server_usable() -> None:
    async with served() as server:
        await server.tools()
        with anyio.move_on_after(0.1) as scope:
            await server.call("hang", {})
        assert scope.cancelled_caught
        assert await server.call("add", {"a": 1, "b": 2}) == "3"


def test_definitions_that_are_refused() -> None:
    for wrong in ("", "a__b", "a/b", "_a", "é"):
        with pytest.raises(ConfigError) as caught:
            McpServer.stdio(wrong, ["x"])
        assert caught.value.code == "mcp-name"
    with pytest.raises(ConfigError, match="expected a list of the program"):
        McpServer.stdio("a", "uvx mcp-server-time")
    for url in ("ftp://example.com", "https://user:hidden@example.com/mcp", "example.com"):
        with pytest.raises(ConfigError) as caught:
            McpServer.streamable_http("a", url)
        assert caught.value.code == "mcp-url"
        assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError, match="timeout=0 is not a valid option"):
        McpServer.stdio("a", ["x"], timeout=0)
