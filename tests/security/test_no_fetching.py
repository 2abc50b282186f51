"""Addresses in a history are data: nothing that the library does with them opens a connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_socket import SocketBlockedError, disable_socket, enable_socket

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InputFile,
    InputImage,
    InputText,
    Item,
    Memory,
    Message,
    Opaque,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.core.codec import Codec, from_wire_json, to_wire_json
from noetic_py.core.tokens import EstimatedCounter, counter_for
from noetic_py.memory import Compaction, HistoryWindow
from noetic_py.testing import ScriptedModel
from noetic_py.tools import render_output
from tests.security.sinks import sinks

pytestmark = pytest.mark.anyio

URLS = [
    "http://169.254.169.254/latest/meta-data/", "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/", "http://[::169.254.169.254]/", "http://2852039166/", "http://0xa9fea9fe/",
    "http://127.0.0.1:1/", "http://localhost:1/", "http://10.0.0.1/", "https://example.invalid/a.png",
    "file:///etc/passwd", "ftp://example.invalid/a", "gopher://127.0.0.1:1/_", "data:image/png;base64,AAAA",
    "//example.invalid/a", "\\\\example.invalid\\share\\a", "http://user:password@127.0.0.1:1/",
]  # fmt: skip


def parts(url: str) -> list[Any]:
    """Everything that can hold an address."""
    return [InputText(text=url), InputImage(url=url), InputFile(url=url), InputFile(url=url, filename="a.pdf")]


def conversation() -> list[Item]:
    """A history of a client that would like somebody to fetch something."""
    items: list[Item] = []
    for number, url in enumerate(URLS):
        items.append(Message.user(parts(url)))
        items.append(FunctionCall(name="look", call_id=f"c{number}", arguments={"url": url}))
        items.append(FunctionCallOutput(call_id=f"c{number}", output=parts(url)))
        items.append(Opaque(raw=json.dumps({"type": "image_reference", "url": url}).encode()))
        items.append(Message.assistant(f"![image]({url})"))
    return items


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every socket but those that wake an event loop up is an error, and so is the look-up of a name."""
    asked: list[str] = []

    def refuse(*args: Any, **options: Any) -> Any:
        asked.append(str(args))
        raise ConnectionRefusedError("no connections here")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    disable_socket(allow_unix_socket=True)
    yield asked
    enable_socket()


def test_the_guard_guards(no_sockets: list[str]) -> None:
    with pytest.warns(UserWarning, match="tried to use"), pytest.raises(SocketBlockedError):
        socket.socket(socket.AF_INET)
    with pytest.warns(UserWarning, match="tried to use"), pytest.raises(SocketBlockedError):
        socket.getaddrinfo("example.invalid", 80)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("example.invalid", 80))
    assert no_sockets


def test_counting_rendering_and_importing(no_sockets: list[str]) -> None:
    items = conversation()
    for counter in (EstimatedCounter(), counter_for("openai:gpt-5-mini"), counter_for("nobody:knows")):
        assert all(counter.count_item(item).value >= 0 for item in items)
    for item in items:
        assert from_wire_json(to_wire_json(item)).type == item.type
        assert repr(item)
    codec = Codec()
    assert codec.loads(codec.dumps(items), list[Item]) is not None
    assert render_output([*parts(URLS[0])], tool="look")
    assert not no_sockets


@tool
async def look(url: str) -> list[Any]:
    """Look at it."""
    return parts(url)


class Bundle(Memory):
    """Layers that count and shorten."""

    window: HistoryWindow = HistoryWindow(max_items=50)
    shorter: Compaction = Compaction()


@pytest.mark.parametrize("memory", [None, Bundle()], ids=["plain", "layers"])
async def test_a_run(memory: Any, no_sockets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(FunctionCall(name="look", arguments={"url": URLS[0]}), "done", "done", "done")
    flow = loop(call_model(tools=[look]), until=until.no_tool_calls(), max_iterations=3)
    with sinks(tmp_path, monkeypatch) as found:
        async with Harness(
            model=model, memory=memory, checkpoints=f"sqlite:{tmp_path / 'runs.db'}", plugins=()
        ) as harness:
            result = await found.run(harness, flow, "go", history=conversation())
            assert result.status == "completed"
            session = harness.session("ada", "trip")
            async with session.edit() as edit:
                edit.items += conversation()
            assert len(await session.items()) == len(conversation())
    assert not no_sockets
