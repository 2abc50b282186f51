"""The SDK, both interfaces and a real model: what a scripted server would only repeat from our own idea of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import pytest
from noetic_local import LocalServer
from noetic_openai import OpenAIModel
from proxy import proxied

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from noetic_py.errors import ContextOverflow, ModelStatusError, ModelStreamError
from noetic_py.models import (
    ItemDone,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    ModelStream,
    OutputSchema,
    TextPart,
    allow_real_models,
)

pytestmark = pytest.mark.anyio

Api = Literal["responses", "chat"]
every = pytest.mark.parametrize("api", ["chat", "responses"])
# The model takes a second to answer; what does not depend on the event loop is tried once for each interface.
both = pytest.mark.parametrize(
    ("anyio_backend", "api"), [("asyncio", "chat"), ("trio", "responses")], indirect=["anyio_backend"]
)
SHORT: ModelSettings = {"max_output_tokens": 8, "temperature": 0.0}


@asynccontextmanager
async def asked(
    server: LocalServer, api: Api, request: ModelRequest, url: str | None = None, idle: float = 60.0
) -> AsyncGenerator[ModelStream]:
    model = OpenAIModel(
        "smollm2",
        api=api,
        base_url=url or server.base_url,
        api_key=server.api_key,
        schema_in_extra_body=True,
        idle_timeout=idle,
    )
    with allow_real_models():
        async with model.respond(request) as stream:
            yield stream


async def answer(server: LocalServer, api: Api, request: ModelRequest) -> ModelResponse:
    async with asked(server, api, request) as stream:
        return await stream.response()


@every
async def test_text_comes_in_pieces_and_is_counted(local_server: LocalServer, api: Api) -> None:
    request = ModelRequest(items=[Message.user("Tell me a story.")], instructions="You are brief.", settings=SHORT)
    async with asked(local_server, api, request) as stream:
        events = [event async for event in stream]
        response = await stream.response()
    (item,) = response.items
    assert isinstance(item, Message)
    parts = [event.delta for event in events if isinstance(event, TextPart)]
    assert len(parts) > 1
    assert item.text == "".join(parts)
    assert events[-1] == ItemDone(item)
    assert response.usage is not None
    assert response.usage.output == 8
    assert response.usage.input > 0
    assert response.usage.cached_input is not None
    assert response.model == "smollm2"
    assert response.response_id


@both
async def test_an_answer_follows_its_schema(local_server: LocalServer, api: Api) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"label": {"enum": ["bug", "feature", "question"]}, "urgent": {"type": "boolean"}},
    }
    request = ModelRequest(
        items=[Message.user("The app crashes when I save.")],
        output=OutputSchema("ticket", schema),
        settings={"max_output_tokens": 64, "temperature": 0.0},
    )
    response = await answer(local_server, api, request)
    (item,) = response.items
    assert isinstance(item, Message)
    found = json.loads(item.text)
    assert set(found) == {"label", "urgent"}
    assert found["label"] in ("bug", "feature", "question")
    assert response.stop_reason == "stop"


@both
async def test_a_conversation_with_everything_is_taken(local_server: LocalServer, api: Api) -> None:
    earlier: list[Item] = [
        Message.system("You are a clerk."),
        Message.user(["What is 2+2?", "Quick."]),
        Message.assistant("I add."),
        Message.user("Do."),
    ]
    if api == "responses":
        # The model's own template has no form for tool messages; this interface turns them into text by itself.
        earlier.insert(2, Reasoning(content="add them"))
    request = ModelRequest(items=earlier, settings=SHORT)
    assert (await answer(local_server, api, request)).items


@both
async def test_an_answer_is_taken_back(local_server: LocalServer, api: Api) -> None:
    first = ModelRequest(items=[Message.user("Say hi.")], settings=SHORT)
    response = await answer(local_server, api, first)
    second = ModelRequest(items=[*first.items, *response.items, Message.user("Again.")], settings=SHORT)
    assert (await answer(local_server, api, second)).usage is not None


@both
async def test_a_request_larger_than_the_window(local_server: LocalServer, api: Api) -> None:
    request = ModelRequest(items=[Message.user("word " * 6000)], settings=SHORT)
    with pytest.raises(ContextOverflow) as caught:
        await answer(local_server, api, request)
    assert caught.value.status == 400


@both
async def test_a_request_that_the_server_refuses(local_server: LocalServer, api: Api) -> None:
    request = ModelRequest(items=[Message.user("hi")], settings={"extra": {"temperature": "hot"}})
    with pytest.raises(ModelStatusError):
        await answer(local_server, api, request)


@both
@pytest.mark.parametrize("then", ["cut", "stall"])
async def test_a_connection_that_fails_in_the_middle(
    local_server: LocalServer, api: Api, then: Literal["cut", "stall"]
) -> None:
    port = urlsplit(local_server.base_url).port
    assert port is not None
    request = ModelRequest(items=[Message.user("Tell me a story.")], settings={"max_output_tokens": 64})
    async with proxied(port, after=2000, then=then) as proxy:
        with pytest.raises(ModelStreamError, match="broke" if then == "cut" else "stalled"):
            async with asked(
                local_server, api, request, url=f"{proxy.url}/v1", idle=60 if then == "cut" else 0.5
            ) as stream:
                await stream.response()
        await proxy.all_closed()


@both
async def test_a_stream_left_early_frees_the_server(local_server: LocalServer, api: Api) -> None:
    long = ModelRequest(items=[Message.user("Tell me a long story.")], settings={"max_output_tokens": 4000})
    with anyio.fail_after(60):
        async with asked(local_server, api, long) as stream:
            async for event in stream:
                if isinstance(event, TextPart):
                    break
        # The server works on one request at a time, so this one waits for the end of the first.
        short = ModelRequest(items=[Message.user("hi")], settings={"max_output_tokens": 1})
        assert (await answer(local_server, api, short)).usage is not None


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_calls_and_outputs_are_taken(local_server: LocalServer) -> None:
    items: list[Item] = [
        Message.user("2+2?"),
        FunctionCall(name="add", arguments='{"a": 2, "b": 2}', call_id="c1"),
        FunctionCallOutput(call_id="c1", output="4"),
    ]
    tool: dict[str, Any] = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    request = ModelRequest(items=items, tools=[tool], settings={**SHORT, "tool_choice": "none"})
    assert (await answer(local_server, "responses", request)).items
