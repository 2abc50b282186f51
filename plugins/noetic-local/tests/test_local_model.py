from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Literal

import anyio
import pytest
from noetic_local import LocalModel, LocalServer
from pydantic import BaseModel

from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.errors import ContextOverflow
from noetic_py.models import (
    ItemDone,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    OutputSchema,
    Price,
    ProfiledModel,
    TextPart,
    ToolCallPart,
    allow_real_models,
    price_of,
    profile_of,
)

pytestmark = pytest.mark.anyio
# The model takes a second to answer; what does not depend on the event loop is tried once.
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
PING: dict[str, Any] = {"name": "ping", "description": "Says that you are there."}


class Ticket(BaseModel):
    label: Literal["bug", "feature", "question"]
    urgent: bool = False


@asynccontextmanager
async def asked(server: LocalServer, request: ModelRequest, **options: Any) -> AsyncGenerator[ModelStream]:
    with allow_real_models():
        async with LocalModel(server=server, **options).respond(request) as stream:
            yield stream


async def answer(server: LocalServer, request: ModelRequest, **options: Any) -> ModelResponse:
    async with asked(server, request, **options) as stream:
        return await stream.response()


async def test_text(server: LocalServer) -> None:
    request = ModelRequest(items=[Message.user("Tell me a story.")], settings={"max_output_tokens": 6})
    async with asked(server, request) as stream:
        events = [event async for event in stream]
        response = await stream.response()
    (item,) = response.items
    assert isinstance(item, Message)
    assert item.text == "".join(event.delta for event in events if isinstance(event, TextPart))
    assert response.stop_reason == "length"
    assert response.usage is not None
    assert response.usage.output == 6


@on_trio
async def test_no_answer_is_longer_than_the_model_allows(server: LocalServer) -> None:
    request = ModelRequest(items=[Message.user("Tell me a story.")], settings={"max_output_tokens": 500})
    response = await answer(server, request, max_output_tokens=5)
    assert response.usage is not None
    assert response.usage.output == 5


async def test_a_typed_answer(server: LocalServer) -> None:
    request = ModelRequest(
        items=[Message.user("The app crashes when I save.")],
        instructions="Sort the ticket.",
        output=OutputSchema("ticket", Ticket.model_json_schema()),
    )
    (item,) = (await answer(server, request)).items
    assert isinstance(item, Message)
    Ticket.model_validate_json(item.text)


@pytest.mark.parametrize("choice", ["required", "add"])
async def test_a_call_that_has_to_be_made(server: LocalServer, choice: str) -> None:
    request = ModelRequest(
        items=[Message.user("What is 2 plus 3?")],
        tools=[ADD, PING],
        settings={"tool_choice": choice, "temperature": 0.0, "max_output_tokens": 80},
    )
    async with asked(server, request) as stream:
        events = [event async for event in stream]
        response = await stream.response()
    (call,) = response.items
    assert isinstance(call, FunctionCall)
    assert call.name in (["add"] if choice == "add" else ["add", "ping"])
    if call.name == "add":
        assert set(json.loads(call.arguments)) == {"a", "b"}
    assert response.stop_reason == "tool_calls"
    assert events == [ToolCallPart(call.call_id, call.name, call.arguments), ItemDone(call)]


@on_asyncio
async def test_an_output_leads_to_an_answer_or_a_call(server: LocalServer) -> None:
    items: list[Item] = [
        Message.user("What is 2 plus 3?"),
        FunctionCall(name="add", arguments='{"a":2,"b":3}', call_id="c1"),
        FunctionCallOutput(call_id="c1", output="5"),
    ]
    request = ModelRequest(items=items, tools=[ADD], settings={"max_output_tokens": 80})
    (item,) = (await answer(server, request)).items
    assert isinstance(item, FunctionCall | Message)
    if isinstance(item, FunctionCall):
        assert item.name == "add"


@on_trio
async def test_earlier_calls_are_understood_without_tools(server: LocalServer) -> None:
    items: list[Item] = [
        Message.user("What is 2 plus 3?"),
        FunctionCall(name="add", arguments='{"a":2,"b":3}', call_id="c1"),
        FunctionCallOutput(call_id="c1", output="5"),
    ]
    request = ModelRequest(items=items, settings={"max_output_tokens": 4})
    (item,) = (await answer(server, request)).items
    assert isinstance(item, Message)


@on_asyncio
async def test_a_request_larger_than_the_window(server: LocalServer) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await answer(server, ModelRequest(items=[Message.user("word " * 6000)]))
    assert caught.value.model == "local:smollm2"


@on_trio
async def test_it_costs_nothing_and_knows_its_window(server: LocalServer) -> None:
    model = LocalModel(server=server)
    assert isinstance(model, ProfiledModel)
    assert profile_of(model) == ModelProfile(context_window=4096, max_output_tokens=512, price=Price())
    price = price_of(model)
    assert price is not None
    assert price.cost(TokenUsage(input=10, output=10)) == Decimal(0)


async def test_concurrent_calls_wait_for_each_other(server: LocalServer) -> None:
    found: list[ModelResponse] = []
    request = ModelRequest(items=[Message.user("Say hi.")], settings={"max_output_tokens": 2})

    async def one() -> None:
        found.append(await answer(server, request))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    assert [response.usage.output for response in found if response.usage] == [2] * 4


@on_asyncio
async def test_the_start_of_a_conversation_is_served_from_the_servers_cache(server: LocalServer) -> None:
    story = "The harbour dries out six hours after high water, and ships wait outside. " * 8
    items: list[Item] = [Message.user(story)]
    usages: list[TokenUsage] = []
    for _ in range(2):
        response = await answer(server, ModelRequest(items, settings={"max_output_tokens": 4}))
        assert response.usage is not None
        usages.append(response.usage)
        items = [*items, *response.items, Message.user("And then?")]
    first, second = usages
    assert second.cached_input is not None
    assert first.input - 10 <= second.cached_input < second.input
