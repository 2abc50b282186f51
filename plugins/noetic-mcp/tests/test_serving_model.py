"""Flows that ask the model of the client which calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import types
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from noetic_mcp import ClientModel, ClientModelUnavailable, mcp_server
from pydantic import BaseModel

from noetic_py import (
    Ask,
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    InputFile,
    InputImage,
    InputText,
    Message,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.models import FallbackModel, ModelRequest
from noetic_py.testing import ScriptedModel

PIXEL = b"\x89PNG\r\n\x1a\n"


class Tide(BaseModel):
    port: str
    height: float


class Asked:
    """A client's model, with what it was asked."""

    def __init__(self, *answers: str | types.ImageContent | types.ErrorData, stop_reason: str = "endTurn") -> None:
        self.requests: list[types.CreateMessageRequestParams] = []
        self._answers, self._reason = list(answers), stop_reason

    async def answer(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        self.requests.append(params)
        said = self._answers.pop(0)
        if isinstance(said, types.ErrorData):
            return said
        content = types.TextContent(type="text", text=said) if isinstance(said, str) else said
        return types.CreateMessageResult(role="assistant", content=content, model="theirs", stop_reason=self._reason)


@asynccontextmanager
async def served(flow: Any, asked: Asked | None, mode: str = "legacy", **options: Any) -> AsyncGenerator[Client]:
    async with Harness(**options) as harness:
        answers = None if asked is None else asked.answer
        async with Client(
            mcp_server(harness, {"flow": flow}), mode=mode, sampling_callback=answers, cache=None
        ) as client:
            yield client


def text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def test_a_flow_asks_the_model_of_its_client() -> None:
    asked = Asked("At noon.", "And at midnight.")
    settings: Any = {"temperature": 0.5, "max_output_tokens": 100, "stop": ["."]}
    flow = call_model(ClientModel(), instructions="Be short.", settings=settings)
    async with served(flow, asked) as client:
        assert text(await client.call_tool("flow", {"input": "When is high water?"})) == "At noon."
        assert text(await client.call_tool("flow", {"input": "Else?"})) == "And at midnight."
    (request, _) = asked.requests
    assert [(each.role, each.content) for each in request.messages] == [
        ("user", types.TextContent(type="text", text="When is high water?"))
    ]
    assert (request.system_prompt, request.max_tokens, request.temperature) == ("Be short.", 100, 0.5)
    assert request.stop_sequences == ["."]


async def test_its_answer_says_which_model_gave_it_and_whether_it_was_cut() -> None:
    @step
    async def ask(question: str) -> str:
        async with ClientModel().respond(ModelRequest([Message.user(question)])) as stream:
            answer = await stream.response()
        return f"{answer.model}: {answer.stop_reason}"

    async with served(ask, Asked("At", stop_reason="maxTokens")) as client:
        assert text(await client.call_tool("flow", {"input": "When?"})) == "theirs: length"
    async with served(ask, Asked("At noon.")) as client:
        assert text(await client.call_tool("flow", {"input": "When?"})) == "theirs: stop"


async def test_its_answer_may_have_a_type() -> None:
    asked = Asked('{"port": "Brest", "height": 6.9}')
    async with served(call_model(ClientModel(), output=Tide), asked) as client:
        result = await client.call_tool("flow", {"input": "How high?"})
    assert result.structured_content == {"port": "Brest", "height": 6.9}
    (request,) = asked.requests
    assert request.system_prompt is not None
    assert "Answer with JSON only" in request.system_prompt
    assert '"height"' in request.system_prompt
    assert request.max_tokens == 4096


async def test_it_gets_images_and_sounds_one_a_message() -> None:
    @step
    async def show(question: str) -> list[Message]:
        image = InputImage(data=PIXEL, media_type="image/png")
        sound = InputFile(data=b"RIFF", filename="a.wav", media_type="audio/wav")
        return [
            Message(role="system", content="Look."),
            Message.assistant("Show it."),
            Message.user([InputText(text=question), image, sound]),
        ]

    asked = Asked("A buoy.")
    async with served(show >> call_model(ClientModel()), asked) as client:
        assert text(await client.call_tool("flow", {"input": "What is it?"})) == "A buoy."
    (request,) = asked.requests
    kinds = [(each.role, each.content.type) for each in request.messages if not isinstance(each.content, list)]
    assert kinds == [("assistant", "text"), ("user", "text"), ("user", "image"), ("user", "audio")]
    assert request.system_prompt == "Look."


@pytest.mark.parametrize(
    ("mode", "answers", "told"),
    [
        ("legacy", None, "the client offers no model to servers"),
        ("auto", [], "servers cannot ask a client of protocol version 2026-07-28 during a call"),
        ("legacy", [types.ErrorData(code=-1, message="not for you")], "the client did not answer: not for you"),
        (
            "legacy",
            [types.ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")],
            "the client answered with image, and not with text",
        ),
    ],
)
async def test_the_run_is_told_why_it_cannot_be_asked(mode: str, answers: list[Any] | None, told: str) -> None:
    asked = None if answers is None else Asked(*answers)
    async with served(call_model(ClientModel()), asked, mode) as client:
        failed = await client.call_tool("flow", {"input": "x"})
        assert failed.is_error
        assert f"ClientModelUnavailable: {told}" in text(failed)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_another_model_answers_where_the_client_has_none(mode: str) -> None:
    flow = call_model(FallbackModel(ClientModel(), ScriptedModel("Ours.")))
    async with served(flow, None, mode) as client:
        assert text(await client.call_tool("flow", {"input": "x"})) == "Ours."


async def test_outside_of_a_request_it_is_not_there() -> None:
    async with Harness() as harness:
        with pytest.raises(ClientModelUnavailable, match="the run does not serve a request of a client"):
            await harness.run(call_model(ClientModel()), "x")


async def test_it_takes_no_tools() -> None:
    @tool
    async def height(port: str) -> float:
        """The height of high water."""
        return 6.9

    agent = loop(call_model(ClientModel(), tools=[height]), until=until.no_tool_calls())
    async with served(agent, Asked()) as client:
        failed = await client.call_tool("flow", {"input": "x"})
    assert "ConfigError: tools cannot be sent to the model of an MCP client" in text(failed)


async def test_its_tokens_count_against_the_budget_of_the_run() -> None:
    asked = Asked("At noon. " * 40, "never")
    flow = call_model(ClientModel()) >> call_model(ClientModel(), id="again")
    async with served(flow, asked, budget=Budget(tokens=150)) as client:
        failed = await client.call_tool("flow", {"input": "When?"})
    assert failed.is_error
    assert "budget" in text(failed).lower()
    assert len(asked.requests) == 1
    # What is left bounds the answer.
    assert asked.requests[0].max_tokens < 150


async def test_an_answer_is_not_asked_for_again_by_a_resumed_run() -> None:
    @step
    async def confirm(said: str, ctx: Context) -> str:
        return f"{said} {await ctx.ask(Ask('Sure?', str))}"

    asked, backend = Asked("At noon."), InMemoryBackend()
    async with served(call_model(ClientModel()) >> confirm, asked, checkpoints=backend) as client:
        waits = await client.call_tool("flow", {"input": "When?"})
        run = str((waits.meta or {})["noetic/run_id"])
        async with Harness(checkpoints=backend) as office:
            await office.runs.answer((await office.runs.get(run)).pending[0].answer("Yes."))
        assert text(await client.call_tool("continue_run", {"run_id": run})) == "At noon. Yes."
    assert len(asked.requests) == 1
