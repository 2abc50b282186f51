"""Flows served to the client of the official SDK, by both of its protocols."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import anyio
import flows
import pytest
from mcp import MCPError, types
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from noetic_mcp import mcp_server, serve_mcp
from pydantic import BaseModel, Field

from noetic_py import Ask, Context, Harness, InMemoryBackend, step
from noetic_py.errors import ConfigError

pytestmark = pytest.mark.parametrize("mode", ["legacy", "auto"])


class Person:
    """Who answers the forms of a server."""

    def __init__(self, *said: Mapping[str, Any] | str) -> None:
        self.asked: list[str] = []
        self.forms: list[dict[str, Any]] = []
        self._said = list(said)

    async def answer(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        assert isinstance(params, types.ElicitRequestFormParams)
        self.forms.append(params.requested_schema)
        said = self._said.pop(0)
        if said == "decline" or said == "cancel":
            return types.ElicitResult(action="decline" if said == "decline" else "cancel")
        assert isinstance(said, Mapping)
        return types.ElicitResult(action="accept", content=dict(said))


@asynccontextmanager
async def served(
    mode: str, *, backend: InMemoryBackend | None = None, person: Person | None = None
) -> AsyncGenerator[Client]:
    async with Harness(checkpoints=backend) as harness:
        answers = None if person is None else person.answer
        server = mcp_server(harness, flows.FLOWS, name="harbour")
        async with Client(server, mode=mode, elicitation_callback=answers, cache=None) as client:
            yield client


def text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


def run_id(result: types.CallToolResult) -> str:
    assert result.meta is not None
    return str(result.meta["noetic/run_id"])


async def test_tools_have_the_types_of_the_flows(mode: str) -> None:
    async with served(mode) as client:
        about = client.server_info
        assert about is not None
        assert (about.name, bool(about.version)) == ("harbour", True)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == sorted(flows.FLOWS)
        assert tools["plan"].description == "Plan a passage."
        assert tools["shout"].description == "Runs shout."
        assert tools["plan"].input_schema["required"] == ["input"]
        assert tools["pay"].input_schema["required"] == ["to"]
        assert (tools["plan"].output_schema or {})["required"] == ["hours", "ports"]
        assert (tools["count"].output_schema or {})["properties"] == {"result": {"type": "integer"}}
        assert tools["shout"].output_schema is None


async def test_a_call_is_a_run_with_structured_output(mode: str) -> None:
    async with served(mode) as client:
        result = await client.call_tool("plan", {"input": {"start": "Brest", "end": "Dover"}})
        assert result.structured_content == {"hours": 2.5, "ports": ["Brest", "Dover"]}
        assert text(result) == '{"hours":2.5,"ports":["Brest","Dover"]}'
        assert run_id(result).startswith("mcp-")
        counted = await client.call_tool("count", {"input": "four"})
        assert (counted.structured_content, text(counted)) == ({"result": 4}, "4")
        shouted = await client.call_tool("shout", {"input": "tide"})
        assert (shouted.structured_content, text(shouted)) == (None, "TIDE")
        image, buoy = (await client.call_tool("picture", {})).content
        assert isinstance(image, types.ImageContent)
        assert (image.mime_type, isinstance(buoy, types.TextContent)) == ("image/png", True)


async def test_progress_is_sent(mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with served(mode) as client:
        await client.call_tool("plan", {"input": {"start": "Brest", "end": "Dover"}}, progress_callback=hear)
    assert told == [
        (1.0, "plan: 1"),
        (2.0, "plan: looked at Brest"),
        (3.0, "plan: 2"),
        (4.0, "plan: looked at Dover"),
    ]


async def test_errors_are_errors_of_the_tool(mode: str) -> None:
    async with served(mode) as client:
        failed = await client.call_tool("break_off", {"input": "wind"})
        assert failed.is_error
        assert text(failed).startswith("StepFailed: ")
        assert "no wind" in text(failed)
        misfit = await client.call_tool("plan", {"input": {"start": "Brest"}})
        assert misfit.is_error
        assert text(misfit).startswith("ToolArgumentsInvalid: ")
        assert "end" in text(misfit)
        with pytest.raises(MCPError, match="there is no tool 'other'"):
            await client.call_tool("other", {})


async def test_cancelling_a_call_cancels_its_run(mode: str) -> None:
    flows.waiting.clear()
    flows.cancelled.clear()
    async with served(mode) as client:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "wait", {"input": mode})
                while not flows.waiting:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            while not flows.cancelled:
                await anyio.lowlevel.checkpoint()
        assert flows.cancelled == [mode]
        assert text(await client.call_tool("shout", {"input": "tide"})) == "TIDE"


async def test_approvals_and_questions_are_asked_of_the_person(mode: str) -> None:
    flows.paid.clear()
    person = Person({"approve": True}, {"approve": False, "reason": "too much"}, "decline", {"answer": 3})
    async with served(mode, backend=InMemoryBackend(), person=person) as client:
        assert text(await client.call_tool("pay", {"to": "ada"})) == "paid ada 10"
        refused = await client.call_tool("pay", {"to": "bob"})
        assert refused.is_error
        assert "too much" in text(refused)
        assert (await client.call_tool("pay", {"to": "eve"})).is_error
        assert text(await client.call_tool("choose", {"input": "lamps"})) == "3 of lamps"
    assert flows.paid == ["ada"]
    assert person.asked[0] == 'Allow the call of pay with {"to": "ada", "amount": 10}?'
    assert person.asked[3] == "How many of lamps?"


class Color(Enum):
    RED = "red"
    GREEN = "green"


class Berth(BaseModel):
    port: str = Field(description="Where.", min_length=2)
    nights: int = 1
    light: Color = Color.GREEN
    extras: list[Literal["water", "power"]] = []
    note: str | None = None
    key: UUID | None = None


BERTH: dict[str, Any] = {
    "port": {"type": "string", "title": "Port", "description": "Where.", "minLength": 2},
    "nights": {"type": "integer", "title": "Nights", "default": 1},
    "light": {"type": "string", "title": "Color", "default": "green", "enum": ["red", "green"]},
    "extras": {
        "type": "array",
        "title": "Extras",
        "default": [],
        "items": {"type": "string", "enum": ["water", "power"]},
    },
    "note": {"type": "string", "title": "Note"},
    "key": {"type": "string", "title": "Key"},
}
AS_TEXT = {"type": "string", "description": "JSON that fits "}
QUESTIONS: dict[Any, tuple[dict[str, Any], dict[str, Any], Any]] = {
    Berth: (BERTH, {"port": "Brest", "extras": ["water"]}, Berth(port="Brest", extras=["water"])),
    Color: ({"answer": {"type": "string", "title": "Color", "enum": ["red", "green"]}}, {"answer": "red"}, Color.RED),
    list[Color]: (
        {"answer": {"type": "array", "items": {"type": "string", "title": "Color", "enum": ["red", "green"]}}},
        {"answer": ["red"]},
        [Color.RED],
    ),
    # What forms do not have is asked for as JSON.
    list[int]: ({"answer": AS_TEXT}, {"answer": "[1, 2]"}, [1, 2]),
    dict[str, int]: ({"answer": AS_TEXT}, {"answer": '{"a": 1}'}, {"a": 1}),
    tuple[Berth, int]: ({"answer": AS_TEXT}, {"answer": '[{"port": "Dover"}, 2]'}, (Berth(port="Dover"), 2)),
}


@pytest.mark.parametrize("kind", QUESTIONS)
async def test_a_question_is_a_form_with_the_fields_of_its_type(mode: str, kind: Any) -> None:
    fields, said, value = QUESTIONS[kind]
    person, found = Person(said), list[object]()

    @step
    async def asks(_: object, ctx: Context) -> str:
        found.append(await ctx.ask(Ask("Which?", kind)))
        return "done"

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        server = mcp_server(harness, {"asks": asks})
        async with Client(server, mode=mode, elicitation_callback=person.answer, cache=None) as client:
            assert text(await client.call_tool("asks", {"input": "x"})) == "done"
    (form,) = person.forms
    for field in form["properties"].values():
        if field.get("description", "").startswith("JSON"):
            field["description"] = field["description"][: len("JSON that fits ")]
    assert form == {"type": "object", "properties": fields, "required": ["port" if kind is Berth else "answer"]}
    assert found == [value]


async def test_a_form_that_is_dismissed_leaves_the_run_waiting(mode: str) -> None:
    flows.paid.clear()
    async with served(mode, backend=InMemoryBackend(), person=Person("cancel", {"approve": True})) as client:
        waits = await client.call_tool("pay", {"to": "ada"})
        assert waits.is_error
        assert flows.paid == []
        again = await client.call_tool("continue_run", {"run_id": run_id(waits)})
        assert text(again) == "paid ada 10"


async def test_a_wrong_answer_is_asked_for_once_and_told(mode: str) -> None:
    person = Person({"answer": "many"}, {"answer": 2})
    async with served(mode, backend=InMemoryBackend(), person=person) as client:
        waits = await client.call_tool("choose", {"input": "lamps"})
        assert waits.is_error
        assert "The last answer was not taken: " in text(waits)
        assert len(person.asked) == 1
        again = await client.call_tool("continue_run", {"run_id": run_id(waits)})
        assert text(again) == "2 of lamps"


async def test_a_client_that_cannot_ask_is_told_how_to_answer(mode: str) -> None:
    backend = InMemoryBackend()
    async with served(mode, backend=backend) as client:
        waits = await client.call_tool("pay", {"to": "ada"})
        run = run_id(waits)
        assert waits.is_error
        assert f"noetic answer {run}" in text(waits)
        assert 'approval: pay {"to": "ada", "amount": 10}' in text(waits)
        # A model that asks again does not approve.
        assert (await client.call_tool("continue_run", {"run_id": run})).is_error
        async with Harness(checkpoints=backend) as office:
            await office.runs.answer((await office.runs.get(run)).pending[0].approve())
        assert text(await client.call_tool("continue_run", {"run_id": run})) == "paid ada 10"
        # A finished run gives its result once more.
        assert text(await client.call_tool("continue_run", {"run_id": run})) == "paid ada 10"
        assert (await client.call_tool("continue_run", {"run_id": "mcp-other"})).is_error
    async with Harness(checkpoints=backend) as office:
        await office.run(flows.shout, "mine", run_id="office")
    async with served(mode, backend=backend) as client:
        assert (await client.call_tool("continue_run", {"run_id": "office"})).is_error


async def test_a_run_that_waits_needs_a_harness_that_keeps_runs(mode: str) -> None:
    async with served(mode, person=Person()) as client:
        waits = await client.call_tool("pay", {"to": "ada"})
        assert waits.is_error
        assert "in a run that is not stored" in text(waits)


async def test_a_call_that_names_its_run_goes_on_with_it(mode: str) -> None:
    backend, begun = InMemoryBackend(), list[str]()

    @step
    async def first(input: str) -> str:
        begun.append(input)
        return input

    @step
    async def fails_once(input: str) -> str:
        begun.append("second")
        if begun.count("second") == 1:
            raise ValueError("not yet")
        return input

    async with Harness(checkpoints=backend) as harness:
        server = mcp_server(harness, {"flow": first >> fails_once})
        async with Client(server, mode=mode, cache=None) as client:
            meta: Any = {"noetic/run_id": "monday"}
            assert (await client.call_tool("flow", {"input": "a"}, meta=meta)).is_error
            result = await client.call_tool("flow", {"input": "a"}, meta=meta)
    assert (text(result), run_id(result)) == ("a", "mcp-monday")
    assert begun == ["a", "second", "second"]


async def test_what_cannot_be_served_is_refused(mode: str) -> None:
    harness = Harness()
    with pytest.raises(ConfigError) as caught:
        mcp_server(harness)
    assert caught.value.code == "mcp-flows"
    with pytest.raises(ConfigError, match=r"is reached from other machines|on asyncio only") as caught:
        await serve_mcp(harness, {"shout": flows.shout}, host="0.0.0.0", port=1)
    assert caught.value.code == "mcp-http"
    with pytest.raises(ConfigError):
        mcp_server(harness, {"shout": len})  # type: ignore[dict-item] # the mistake is what is tested
