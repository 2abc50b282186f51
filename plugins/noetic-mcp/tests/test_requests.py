"""What servers ask for during a call: a person's answer, a model's, and roots; and the progress that they report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from noetic_mcp import McpProtocolError, McpServer, McpToolError

from noetic_py import (
    Ask,
    Budget,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    RunResult,
    call_model,
    loop,
    step,
    until,
)
from noetic_py.core.events import ProgressSet
from noetic_py.errors import ConfigError, Rejected
from noetic_py.testing import ScriptedModel
from tests.warm import forked

HERE = Path(__file__).parent


def modern(**options: Any) -> McpServer:
    return McpServer.stdio("one", [*forked("served"), "stdio"], **options)


def earlier(**options: Any) -> McpServer:
    """A server of a protocol before 2026-07-28, which asks over the connection."""
    return McpServer.stdio("one", [sys.executable, str(HERE / "by_hand.py")], **options)


def agent(tool: Any) -> Any:
    return loop(call_model(tools=[tool]), until=until.no_tool_calls() | until.max_rounds(8))


def call(name: str, **arguments: Any) -> FunctionCall:
    return FunctionCall(name=f"one__{name}", arguments=arguments)


def outputs(result: RunResult[Any, Any]) -> list[str]:
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


async def test_a_question_of_a_server_is_one_of_the_run() -> None:
    backend = InMemoryBackend()
    async with modern(elicitation=True, timeout=20.0) as server:
        async with Harness(model=ScriptedModel(call("book")), checkpoints=backend) as harness:
            waits = await harness.run(agent(server), "Book.", run_id="r")
        assert waits.status == "suspended"
        asked = waits.pending[0]
        assert (asked.kind, asked.prompt) == ("question", "MCP server 'one' asks: Which berth?")
        assert asked.schema is not None
        assert asked.schema["required"] == ["port", "nights"]
        # An answer that does not fit the server's schema is asked for again.
        async with Harness(model=ScriptedModel("Done."), checkpoints=backend) as harness:
            waits = await harness.resume("r", agent(server), answers=[asked.answer({"port": "Brest"})])
            asked = waits.pending[0]
            assert "'nights' is a required property" in str(asked.problem)
            answers = [asked.answer({"port": "Brest", "nights": 2})]
            result = await harness.resume("r", agent(server), answers=answers)
    assert (outputs(result), result.value) == (["Brest for 2 nights"], "Done.")


async def test_a_model_is_asked_once_on_the_budget_of_the_run() -> None:
    backend, small = InMemoryBackend(), ScriptedModel("short", "never", name="acme:small", cost="0.01")
    budget = Budget(model_calls=10)
    async with modern(elicitation=True, sampling=small) as server:
        async with Harness(model=ScriptedModel(call("publish", text="a lot")), checkpoints=backend) as harness:
            waits = await harness.run(agent(server), "Secret.", run_id="r", budget=budget)
        assert [each.kind for each in waits.pending] == ["question"]
        async with Harness(model=ScriptedModel("Done."), checkpoints=backend) as harness:
            answers = [waits.pending[0].answer({"port": "Brest", "nights": 2})]
            result = await harness.resume("r", agent(server), answers=answers)
    assert outputs(result) == ["short in Brest"]
    # The call was made twice, and the model asked once: its answer is a step of the run.
    assert (len(small.requests), result.model_calls, str(result.cost)) == (1, 3, "0.01")
    request = small.requests[0]
    assert [getattr(item, "text", "") for item in request.items] == ["a lot"]
    assert (request.instructions, request.settings) == ("Sum up.", {"max_output_tokens": 50, "temperature": 0.5})


async def test_a_budget_stops_what_a_server_asks_of_a_model() -> None:
    small = ScriptedModel("short")
    async with modern(sampling=small) as server, Harness(model=ScriptedModel(call("shorten", text="x"))) as harness:
        result = await harness.run(agent(server), "Go.", budget=Budget(model_calls=1), on_error="result")
    assert (result.status, small.requests) == ("budget_exceeded", [])


async def test_roots_and_progress(tmp_path: Path) -> None:
    model = ScriptedModel([call("sail"), call("where")], "Done.")
    async with (
        modern(roots=[tmp_path, "file:///srv/docs"]) as server,
        Harness(model=model) as harness,
        harness.stream(agent(server), "Sail.") as stream,
    ):
        seen = [event.value async for event in stream.events if isinstance(event, ProgressSet)]
        result = await stream.result()
    assert outputs(result) == ["arrived", f"{tmp_path.as_uri()} file:///srv/docs"]
    assert seen == [{"progress": 1, "total": 2, "message": "left Brest"}, {"progress": 2, "total": 2}]


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        # What is left out is as the form was filled in.
        ("elicit", {"port": "Brest"}, {"action": "accept", "content": {"nights": 1, "port": "Brest"}}),
        ("open", True, {"action": "accept"}),
        ("open", False, {"action": "decline"}),
        ("elicit", "no", {"action": "decline"}),
    ],
)
async def test_a_server_of_an_earlier_protocol_asks_a_person(name: str, answer: Any, said: Any) -> None:
    async with (
        earlier(elicitation=True) as server,
        Harness(model=ScriptedModel("Done."), checkpoints=InMemoryBackend()) as harness,
    ):

        @step
        async def ask() -> str:
            return str(await server.call(name, {}))

        waits = await harness.run(ask, None, run_id="r")
        assert "MCP server 'one' asks: " in waits.pending[0].prompt
        asked = waits.pending[0]
        given = asked.reject("no") if answer == "no" else asked.answer(answer)
        result = await harness.resume("r", ask, answers=[given])
    assert json.loads(result.value) == said


async def test_a_function_answers_while_the_call_goes_on() -> None:
    """Neither a run nor a second call is needed, so also a call that is made once can ask."""
    answers: list[Any] = [{"port": "Brest", "nights": 2}, Rejected("no"), {"port": 3, "nights": 1}] * 2
    asked: list[str] = []

    async def answer(question: Ask[Any]) -> object:
        asked.append(question.prompt)
        given = answers.pop(0)
        if isinstance(given, Rejected):
            raise given
        return given

    async with modern(elicitation=answer, replay="once") as server:
        assert await server.call("book", {}) == "Brest for 2 nights"
        with pytest.raises(McpToolError, match="decline"):
            await server.call("book", {})
        with pytest.raises(McpProtocolError, match=r"the answer to its question is not valid: (?s:.*)port: 3 is not"):
            await server.call("book", {})
    async with earlier(elicitation=answer, replay="once") as server:
        said = [json.loads(str(await server.call("elicit", {}))) for _ in range(3)]
    assert said[:2] == [{"action": "accept", "content": {"nights": 2, "port": "Brest"}}, {"action": "decline"}]
    assert "the answer to its question is not valid" in said[2]["message"]
    assert asked == ["MCP server 'one' asks: Which berth?"] * 3 + ["MCP server 'one' asks: Where?"] * 3


async def test_a_server_of_an_earlier_protocol_asks_a_model() -> None:
    model = ScriptedModel("At six.", name="acme:small")
    async with earlier(sampling=model, roots=["/srv"]) as server, Harness() as harness:
        assert json.loads(str(await server.call("roots", {}))) == {"roots": [{"name": "srv", "uri": "file:///srv"}]}

        @step
        async def ask() -> str:
            return str(await server.call("sample", {}))

        result = await harness.run(ask, None)
    text = {"type": "text", "text": "At six."}
    said = {"content": text, "model": "acme:small", "role": "assistant", "stopReason": "endTurn"}
    assert (json.loads(result.value), result.model_calls) == (said, 1)


async def test_what_a_server_may_not_ask_is_refused() -> None:
    @step
    async def two_at_once() -> list[str]:
        found: list[str] = []

        async def one() -> None:
            found.append(str(await server.call("sample", {})))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return found

    @step
    async def book() -> str:
        return str(await server.call("book", {}))

    @step
    async def wrong() -> str:
        return str(await server.call("wrong-form", {}))

    async with (
        earlier(sampling=ScriptedModel("yes", "yes"), elicitation=True) as server,
        Harness(checkpoints=InMemoryBackend()) as harness,
    ):
        assert "no call is under way" in str(await server.call("sample", {}))
        # Of an earlier protocol nothing says which of two calls a request is of.
        said = " ".join((await harness.run(two_at_once, None)).value)
        assert "several calls are under way" in said
        assert "the schema of its question is not valid" in (await harness.run(wrong, None)).value
    async with modern(elicitation=True) as server, Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(book, None)
        assert caught.value.code == "no-backend"
        with pytest.raises(McpProtocolError, match="it asks for a person's answer, and the call belongs to no run"):
            await server.call("book", {})


def test_wrong_roots_are_refused() -> None:
    for roots in ([3], ["https://example.com/folder"]):
        with pytest.raises(ConfigError) as caught:
            modern(roots=roots)
        assert caught.value.code == "mcp-option"
