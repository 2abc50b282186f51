"""What a program logs while it serves a request, at the client of the official SDK."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Thread
from typing import Any

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client import Client
from mcp.server.subscriptions import InMemorySubscriptionBus
from noetic_mcp import mcp_server

from noetic_py import Harness, Secret, step, tool

LOGGER = logging.getLogger("harbour")
DEEP = logging.getLogger("harbour.tides")
SECRET = Secret("q7b2-kx91-pp")
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])


@step
async def report(port: str) -> str:
    """Log at each level."""
    DEEP.debug("looked at %s", port)
    DEEP.info("asked with %s", SECRET.reveal())
    logging.getLogger("elsewhere").critical("not this one")
    try:
        raise ValueError("no gauge")
    except ValueError:
        LOGGER.exception("failed")
    return port


@tool
def in_a_thread(port: str) -> str:
    """Log in a worker thread, and in one that belongs to nothing."""
    LOGGER.warning("at %s", port)
    other = Thread(target=LOGGER.warning, args=("of another thread",))
    other.start()
    other.join()
    return port


@pytest.fixture(autouse=True)
def all_levels() -> Any:
    LOGGER.setLevel(logging.DEBUG)
    yield
    LOGGER.setLevel(logging.NOTSET)
    assert LOGGER.handlers == []


@asynccontextmanager
async def served(mode: str, level: Any = None) -> AsyncGenerator[tuple[Client, list[tuple[str, Any, str | None]]]]:
    heard: list[tuple[str, Any, str | None]] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.data, params.logger))

    async with Harness() as harness:
        flows: dict[str, Any] = {"report": report, "in_a_thread": in_a_thread}
        resources, prompts = {"docs://{port}": report}, {"report": report}
        server = mcp_server(harness, flows, resources=resources, prompts=prompts, logger=LOGGER)
        async with Client(server, mode=mode, logging_callback=hear, log_level=level, cache=None) as client:
            if mode == "legacy" and level is not None:
                await set_level(client, level)
            yield client, heard


async def set_level(client: Client, level: Any) -> None:
    request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
    await client.session.send_request(request, types.EmptyResult)


ALL = [
    ("debug", "looked at Brest", "harbour.tides"),
    ("info", "asked with [secret]", "harbour.tides"),
    ("error", "failed: ValueError: no gauge", "harbour"),
]


@MODES
async def test_a_client_gets_what_its_request_logs(mode: str) -> None:
    async with served(mode, "debug") as (client, heard):
        assert client.server_capabilities.logging == types.LoggingCapability()
        await client.call_tool("report", {"input": "Brest"})
        assert heard == ALL
        await client.read_resource("docs://Brest")
        await client.get_prompt("report", {"input": "Brest"})
        assert heard == ALL * 3
        LOGGER.error("of no request")
        assert heard == ALL * 3


@MODES
async def test_a_client_sets_the_least_level(mode: str) -> None:
    async with served(mode, "notice") as (client, heard):
        await client.call_tool("report", {"input": "Brest"})
        assert heard == ALL[2:]


async def test_a_level_is_set_for_a_session() -> None:
    async with served("legacy") as (client, heard):
        await client.call_tool("report", {"input": "Brest"})
        assert heard == ALL
        await set_level(client, "error")
        await client.call_tool("report", {"input": "Brest"})
        assert heard == [*ALL, *ALL[2:]]
        await set_level(client, "info")
        await client.call_tool("report", {"input": "Brest"})
        assert heard == [*ALL, *ALL[2:], *ALL[1:]]


async def test_a_later_client_that_does_not_ask_gets_nothing() -> None:
    async with served("auto") as (client, heard):
        await client.call_tool("report", {"input": "Brest"})
        assert heard == []


@MODES
async def test_a_sync_tool_logs_from_its_thread(mode: str) -> None:
    async with served(mode, "debug") as (client, heard):
        await client.call_tool("in_a_thread", {"port": "Brest"})
        assert heard == [("warning", "at Brest", "harbour")]


@MODES
async def test_requests_at_once_get_their_own_messages(mode: str) -> None:
    async with (
        served(mode, "debug") as (one, heard),
        served(mode, "debug") as (two, others),
        anyio.create_task_group() as group,
    ):
        group.start_soon(one.call_tool, "report", {"input": "Brest"})
        group.start_soon(two.call_tool, "report", {"input": "Dover"})
    assert heard == ALL
    assert others == [("debug", "looked at Dover", "harbour.tides"), *ALL[1:]]


async def test_without_a_logger_none_is_offered() -> None:
    async with Harness() as harness, Client(mcp_server(harness, {"report": report}), mode="legacy") as client:
        assert client.server_capabilities.logging is None


async def test_where_there_is_no_session_none_is_kept() -> None:
    async with Harness() as harness:
        server = mcp_server(harness, {"report": report}, resources={}, changes=InMemorySubscriptionBus(), logger=LOGGER)
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        transport = httpx2.ASGITransport(app=app)
        async with (
            server.session_manager.run(),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client,
        ):
            for method, params, told in (
                ("logging/setLevel", {"level": "error"}, "there is no session"),
                ("resources/subscribe", {"uri": "docs://Brest"}, "the session has not been initialized"),
            ):
                sent = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                headers = {"Accept": "application/json, text/event-stream"}
                answer = await client.post("/mcp", json=sent, headers=headers)
                assert told in answer.json()["error"]["message"]
