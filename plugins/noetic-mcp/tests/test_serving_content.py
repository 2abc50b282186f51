"""Steps and tools as resources and prompts, read by the client of the official SDK and by our own."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import MCPError, types
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from noetic_mcp import McpProtocolError, McpServer, mcp_server

from noetic_py import Ask, Context, Harness, InMemoryBackend, InputImage, InputText, Message, call_model, step, tool
from noetic_py.errors import ConfigError
from noetic_py.testing import ScriptedModel


class Color(Enum):
    RED = "red"
    GREEN = "green"


MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
PIXEL = b"\x89PNG\r\n\x1a\n"


@step
async def style() -> str:
    """How to write."""
    return "Write short sentences."


@step
async def picture() -> list[InputImage | InputText]:
    return [InputImage(data=PIXEL, media_type="image/png"), InputText(text="a buoy")]


@tool
async def heights(port: str = "Brest") -> dict[str, float]:
    """The heights of high water."""
    return {port: 6.9}


@step
async def breaks() -> str:
    raise ValueError("no such port")


@step
async def asks(_: object, ctx: Context) -> str:
    return await ctx.ask(Ask("Which?", str))


@tool
async def review(code: str, lines: int = 10) -> str:
    """Ask for a review.

    Args:
        code: What is reviewed.
    """
    return f"Review {code} in {lines} lines."


@step
async def dialogue(topic: str) -> list[Message]:
    return [Message.user(f"What of {topic}?"), Message.assistant("Let me see.")]


RESOURCES: dict[str, Any] = {
    "docs://style": style,
    "docs://picture": picture,
    "tides://now": heights,
    "docs://breaks": breaks,
    "docs://asks": asks,
}
PROMPTS: dict[str, Any] = {"review": review, "dialogue": dialogue, "breaks": call_model()}


@asynccontextmanager
async def served(
    mode: str,
    flows: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = RESOURCES,
    prompts: Mapping[str, Any] | None = PROMPTS,
) -> AsyncGenerator[Client]:
    async with Harness(model=ScriptedModel(), checkpoints=InMemoryBackend()) as harness:
        server = mcp_server(harness, flows, resources=resources, prompts=prompts)
        async with Client(server, mode=mode, cache=None) as client:
            yield client


@MODES
async def test_resources_are_listed_and_each_reading_is_a_run(mode: str) -> None:
    async with served(mode) as client:
        listed = {str(each.uri): each for each in (await client.list_resources()).resources}
        assert sorted(listed) == sorted(RESOURCES)
        assert (listed["docs://style"].name, listed["docs://style"].description) == ("style", "How to write.")
        assert (listed["tides://now"].name, listed["tides://now"].description) == (
            "heights",
            "The heights of high water.",
        )
        (text,) = (await client.read_resource("docs://style")).contents
        assert text == types.TextResourceContents(
            uri="docs://style", text="Write short sentences.", mime_type="text/plain"
        )
        image, note = (await client.read_resource("docs://picture")).contents
        assert isinstance(image, types.BlobResourceContents)
        assert (image.blob, image.mime_type) == ("iVBORw0KGgo=", "image/png")
        assert isinstance(note, types.TextResourceContents)
        assert note.mime_type == "text/plain"
        (tide,) = (await client.read_resource("tides://now")).contents
        assert isinstance(tide, types.TextResourceContents)
        assert (tide.text, tide.mime_type) == ('{"Brest":6.9}', "application/json")


@MODES
async def test_prompts_have_the_arguments_of_their_steps_and_give_messages(mode: str) -> None:
    async with served(mode) as client:
        listed = {each.name: each for each in (await client.list_prompts()).prompts}
        assert sorted(listed) == sorted(PROMPTS)
        assert listed["review"].arguments == [
            types.PromptArgument(name="code", description="What is reviewed.", required=True),
            types.PromptArgument(name="lines", required=False),
        ]
        assert [(each.name, each.required) for each in listed["dialogue"].arguments or ()] == [("input", True)]
        said = (await client.get_prompt("review", {"code": "tide.py", "lines": "3"})).messages
        assert [(each.role, each.content) for each in said] == [
            ("user", types.TextContent(type="text", text="Review tide.py in 3 lines."))
        ]
        both = (await client.get_prompt("dialogue", {"input": "tides"})).messages
        assert [(each.role, getattr(each.content, "text", None)) for each in both] == [
            ("user", "What of tides?"),
            ("assistant", "Let me see."),
        ]


@MODES
@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("docs://breaks", "StepFailed: ValueError: no such port"),
        ("docs://asks", "Suspended: the run waits for an answer"),
        ("docs://none", "there is no resource 'docs://none'"),
    ],
)
async def test_a_resource_that_cannot_be_read_says_why(mode: str, uri: str, told: str) -> None:
    async with served(mode) as client:
        with pytest.raises(MCPError, match=told) as caught:
            await client.read_resource(uri)
    assert caught.value.data == ({"uri": uri} if "no resource" in told else None)


@MODES
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("none", {}, "there is no prompt 'none'"),
        ("review", {}, "code"),
        ("review", {"code": "x", "lines": "many"}, "lines"),
        ("breaks", {"input": "x"}, "ScriptExhausted"),
    ],
)
async def test_a_prompt_that_cannot_be_made_says_why(
    mode: str, name: str, arguments: dict[str, str], told: str
) -> None:
    async with served(mode) as client:
        with pytest.raises(MCPError, match=told):
            await client.get_prompt(name, arguments)


async def say_brest(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert params.message == "Which?"
    return types.ElicitResult(action="accept", content={"answer": "Brest"})


async def dismiss(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="cancel")


@MODES
async def test_a_resource_and_a_prompt_ask_the_person(mode: str) -> None:
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        server = mcp_server(harness, resources={"docs://asks": asks}, prompts={"asks": asks})
        async with Client(server, mode=mode, elicitation_callback=say_brest, cache=None) as client:
            (page,) = (await client.read_resource("docs://asks")).contents
            (said,) = (await client.get_prompt("asks", {"input": "x"})).messages
        assert getattr(page, "text", None) == getattr(said.content, "text", None) == "Brest"
        async with Client(server, mode=mode, elicitation_callback=dismiss, cache=None) as client:
            with pytest.raises(MCPError, match="Suspended: the run waits for an answer"):
                await client.read_resource("docs://asks")
            with pytest.raises(MCPError, match="Suspended: the run waits for an answer"):
                await client.get_prompt("asks", {"input": "x"})


@dataclass
class Harbour:
    name: str = "Brest"


@step
async def where(_: object, ctx: Context[Any, Harbour]) -> str:
    return ctx.state.name


@MODES
async def test_a_resource_and_a_prompt_have_the_state_of_the_server(mode: str) -> None:
    async with Harness() as harness:
        server = mcp_server(harness, resources={"docs://where": where}, prompts={"where": where}, state=Harbour)
        async with Client(server, mode=mode, cache=None) as client:
            (page,) = (await client.read_resource("docs://where")).contents
            (said,) = (await client.get_prompt("where", {"input": "x"})).messages
    assert getattr(page, "text", None) == getattr(said.content, "text", None) == "Brest"


@MODES
async def test_what_is_not_offered_is_not_announced(mode: str) -> None:
    async with served(mode, {"style": style}, None, None) as client:
        capabilities = client.server_capabilities
        assert (capabilities.resources, capabilities.prompts) == (None, None)
    async with served(mode, prompts=None) as client:
        capabilities = client.server_capabilities
        assert (capabilities.resources is not None, capabilities.prompts) == (True, None)


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"style": style}, "'style' is not a valid URI of a resource"),
        ({"docs://x": review}, "is the tool 'review', which needs arguments"),
        ({"docs://{lines}": review}, "which needs arguments that the URI does not have: 'code'"),
        ({"docs://{code}/{page}": review}, "has a variable 'page', which is not an argument of 'review'"),
        ({"docs://{a}/{b}": style}, "has 2 variables, and a step takes one"),
        ({"docs://{a": style, "docs://{!}": style}, "'docs://{!}' is not a valid URI template"),
        ({"docs://x": 3}, "3"),
    ],
)
async def test_what_cannot_be_a_resource_is_refused(resources: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mcp_server(Harness(), resources=resources)


@tool
async def table(port: str, day: int, unit: str = "m") -> str:
    """The tides of a day."""
    return f"{port}, day {day}, in {unit}"


@step
async def place(port: str) -> str:
    """Where a port is."""
    return f"{port} is on the coast."


TEMPLATES = {"tides://{port}/{day}": table, "port://{port}": place, "port://here": style}


@MODES
async def test_templates_are_listed_and_fill_the_arguments(mode: str) -> None:
    async with served(mode, resources=TEMPLATES) as client:
        assert [str(each.uri) for each in (await client.list_resources()).resources] == ["port://here"]
        listed = {each.uri_template: each for each in (await client.list_resource_templates()).resource_templates}
        assert {uri: (each.name, each.description) for uri, each in listed.items()} == {
            "tides://{port}/{day}": ("table", "The tides of a day."),
            "port://{port}": ("place", "Where a port is."),
        }
        said = {
            uri: getattr((await client.read_resource(uri)).contents[0], "text", None)
            for uri in ("tides://S%C3%A8te/3", "port://Brest", "port://here")
        }
        assert said == {
            "tides://S%C3%A8te/3": "Sète, day 3, in m",
            "port://Brest": "Brest is on the coast.",
            "port://here": "Write short sentences.",
        }
        for uri, told in (
            ("tides://Brest/noon", "day"),
            ("tides://Brest", "no resource"),
            ("port://a/b", "no resource"),
        ):
            with pytest.raises(MCPError, match=told):
                await client.read_resource(uri)


@tool
async def wind(force: Literal["Storm", "strong", "light"], port: str, gusts: bool = False) -> str:
    """The wind."""
    return f"{force} at {port}"


@step
async def flag(color: Color | None) -> str:
    """What a flag says."""
    return str(color)


@MODES
async def test_arguments_whose_types_list_their_values_are_completed(mode: str) -> None:
    resources = {"wind://{force}/{port}": wind, "flags://{shade}": flag}
    async with served(mode, resources=resources, prompts={"wind": wind}) as client:
        prompt = types.PromptReference(name="wind")
        storms = types.ResourceTemplateReference(uri="wind://{force}/{port}")
        flags = types.ResourceTemplateReference(uri="flags://{shade}")
        for ref, name, typed, values in (
            (prompt, "force", "st", ["Storm", "strong"]),
            (prompt, "gusts", "", ["true", "false"]),
            (prompt, "port", "", []),
            (prompt, "other", "", []),
            (storms, "force", "L", ["light"]),
            (flags, "shade", "", ["red", "green"]),
        ):
            found = (await client.complete(ref, {"name": name, "value": typed})).completion
            assert (found.values, found.total, found.has_more) == (values, len(values), False)
        for unknown in (types.PromptReference(name="x"), types.ResourceTemplateReference(uri="x://")):
            with pytest.raises(MCPError, match="there is no"):
                await client.complete(unknown, {"name": "force", "value": ""})


async def test_clients_hear_that_lists_have_changed_and_list_again() -> None:
    flows: dict[str, Any] = {"style": style}
    resources: dict[str, Any] = {}
    changes = InMemorySubscriptionBus()
    async with Harness() as harness:
        server = mcp_server(harness, flows, resources=resources, changes=changes)
        async with Client(server, cache=None) as client:
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)
            async with client.listen(tools_list_changed=True, resources_list_changed=True) as events:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["style"]
                flows["dialogue"] = dialogue
                await changes.publish(ToolsListChanged())
                assert isinstance(await anext(events), ToolsListChanged)
                assert [tool.name for tool in (await client.list_tools()).tools] == ["style", "dialogue"]
                resources["docs://style"] = style
                await changes.publish(ResourcesListChanged())
                assert isinstance(await anext(events), ResourcesListChanged)
                assert [each.name for each in (await client.list_resources()).resources] == ["style"]
                del flows["style"]
                with pytest.raises(MCPError, match="there is no tool 'style'"):
                    await client.call_tool("style", {})


class CountingBus(InMemorySubscriptionBus):
    """Counts who listens."""

    listening = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self.listening += 1
        unsubscribe = super().subscribe(listener)

        def counted() -> None:
            self.listening -= 1
            unsubscribe()

        return counted


async def test_clients_of_earlier_protocols_are_told_of_changes() -> None:
    changes = CountingBus()
    told, heard = anyio.create_memory_object_stream[str](100)

    async def hear(message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await told.send(message.params.uri)
        elif isinstance(message, types.ToolListChangedNotification | types.PromptListChangedNotification):
            await told.send(message.method)

    async with Harness() as harness, told, heard:
        server = mcp_server(harness, {"style": style}, resources=RESOURCES, prompts=PROMPTS, changes=changes)
        async with Client(server, mode="legacy", message_handler=hear, cache=None) as client:
            capabilities = client.server_capabilities
            assert capabilities.tools == types.ToolsCapability(list_changed=True)
            assert capabilities.prompts == types.PromptsCapability(list_changed=True)
            assert capabilities.resources == types.ResourcesCapability(list_changed=True, subscribe=True)
            await client.list_tools()
            await changes.publish(ToolsListChanged())
            assert await heard.receive() == "notifications/tools/list_changed"
            await changes.publish(ResourceUpdated("docs://style"))
            tides = "tides://now"
            subscribe = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=tides))
            await client.session.send_request(subscribe, types.EmptyResult)
            await changes.publish(ResourceUpdated(tides))
            await changes.publish(ResourceUpdated("docs://style"))
            assert await heard.receive() == tides
            unsubscribe = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=tides))
            await client.session.send_request(unsubscribe, types.EmptyResult)
            await changes.publish(ResourceUpdated(tides))
            await changes.publish(PromptsListChanged())
            assert await heard.receive() == "notifications/prompts/list_changed"
            assert changes.listening == 1
            for number in range(1000):
                one = types.SubscribeRequestParams(uri=f"tides://{number}")
                await client.session.send_request(types.SubscribeRequest(params=one), types.EmptyResult)
            with pytest.raises(MCPError, match="may subscribe to 1000 resources"):
                await client.session.send_request(subscribe, types.EmptyResult)
        # The end of the session ends its subscription.
        assert changes.listening == 0


GROWING = """
import anyio
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from noetic_mcp import serve_mcp
from noetic_py import Harness, tool

changes, flows = InMemorySubscriptionBus(), {}

@tool
async def later() -> str:
    "Comes later."
    return "here"

@tool
async def grow() -> str:
    "Adds a tool."
    flows["later"] = later
    await changes.publish(ToolsListChanged())
    return "grown"

flows["grow"] = grow

async def main():
    async with Harness() as harness:
        await serve_mcp(harness, flows, changes=changes)

anyio.run(main)
"""


async def test_our_own_client_hears_of_a_new_tool(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(GROWING)
    async with McpServer.stdio("own", [sys.executable, str(program)]) as server:
        before = await server.tools()
        assert [tool.wire_name for tool in before] == ["own__grow"]
        # The list is asked for again only after a change that was announced.
        assert await server.tools() is before
        assert await server.call("grow", {}) == "grown"
        assert [tool.wire_name for tool in await server.tools()] == ["own__grow", "own__later"]
        assert await server.call("later", {}) == "here"


PROGRAM = """
import anyio
from noetic_mcp import serve_mcp
from noetic_py import Harness
from test_serving_content import PROMPTS, RESOURCES

async def main():
    async with Harness() as harness:
        await serve_mcp(harness, resources=RESOURCES, prompts=PROMPTS)

anyio.run(main)
"""


async def test_our_own_client_reads_them_over_standard_input_and_output(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{PROGRAM}")
    async with McpServer.stdio("own", [sys.executable, str(program)]) as server:
        assert await server.read("docs://style") == [InputText(text="Write short sentences.")]
        image, _ = await server.read("docs://picture")
        assert isinstance(image, InputImage)
        assert image.data == PIXEL
        (said,) = await server.prompt("review", {"code": "tide.py"})
        assert said.text == "Review tide.py in 10 lines."
        with pytest.raises(McpProtocolError, match="no such port"):
            await server.read("docs://breaks")
