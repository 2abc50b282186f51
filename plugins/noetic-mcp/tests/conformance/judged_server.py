"""The server that the conformance suite calls: `judged_server.py PORT`, at `http://127.0.0.1:PORT/mcp`.

The names and texts of the tools, resources and prompts are the suite's.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal

import anyio
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from noetic_mcp import ClientModel, serve_mcp
from pydantic import BaseModel, Field, JsonValue

from noetic_py import (
    Ask,
    Context,
    Harness,
    InMemoryBackend,
    InputFile,
    InputImage,
    InputText,
    ModelSettings,
    Tool,
    call_model,
    tool,
)
from noetic_py.tools.definition import AnyTool

CHANGES: Final = InMemorySubscriptionBus()
LOGGER: Final = logging.getLogger("judged")
PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
WAV: Final = base64.b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=")


def gives_text(name: str, text: str) -> AnyTool:
    async def give() -> str:
        return text

    return tool(name=name, description="Give a text.")(give)


def gives_image(name: str) -> AnyTool:
    async def give() -> InputImage:
        return InputImage(data=PNG, media_type="image/png")

    return tool(name=name, description="Give an image.")(give)


@tool
async def test_audio_content() -> InputFile:
    """Give a sound."""
    return InputFile(data=WAV, filename="silence.wav", media_type="audio/wav")


@tool
async def test_embedded_resource() -> InputFile:
    """Give a file."""
    return InputFile(data=b"This is an embedded resource content.", filename="note.txt", media_type="text/plain")


@tool
async def test_multiple_content_types() -> list[InputText | InputImage | InputFile]:
    """Give a text, an image and a file."""
    data = b'{"test":"data","value":123}'
    return [
        InputText(text="Multiple content types test:"),
        InputImage(data=PNG, media_type="image/png"),
        InputFile(data=data, filename="mixed.json", media_type="application/json"),
    ]


@tool
async def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Tell its progress."""
    for percent in (0, 50, 100):
        ctx.progress.set(percent)
    return "done"


async def log() -> str:
    for done in ("begins", "is half done", "is done"):
        LOGGER.info("the tool %s", done)
    return "done"


test_tool_with_logging: Final = tool(name="test_tool_with_logging", description="Log what it does.")(log)
test_logging_tool: Final = tool(name="test_logging_tool", description="Log where the request says so.")(log)


@tool
async def test_trigger_tool_change() -> str:
    """Say that the tools have changed."""
    await CHANGES.publish(ToolsListChanged())
    return "done"


@tool
async def test_trigger_prompt_change() -> str:
    """Say that the prompts have changed."""
    await CHANGES.publish(PromptsListChanged())
    return "done"


@tool
async def test_sampling(ctx: Context, prompt: str) -> str:
    """Ask the client's model."""
    settings = ModelSettings(max_output_tokens=100)
    return f"LLM response: {await call_model(ClientModel(), settings=settings)(prompt, ctx)}"


class User(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


@tool
async def test_elicitation(ctx: Context, message: str) -> str:
    """Ask a person."""
    return f"User response: {await ctx.ask(Ask(message, User))}"


class Status(Enum):
    ACTIVE = "active"
    INACTIVE = "inactive"
    PENDING = "pending"


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Status = Status.ACTIVE
    verified: bool = True


@tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask a person, with answers that are filled in."""
    return f"Elicitation completed: {await ctx.ask(Ask('Who are you?', Defaults))}"


def titled(*titles: str) -> list[JsonValue]:
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]


Untitled = Literal["option1", "option2", "option3"]
Legacy = Annotated[
    Literal["opt1", "opt2", "opt3"],
    Field(json_schema_extra={"enumNames": ["Option One", "Option Two", "Option Three"]}),
]
TitledSingle = Annotated[str, Field(json_schema_extra={"oneOf": titled("First Option", "Second Option")})]
TitledMulti = Annotated[
    list[str], Field(json_schema_extra={"items": {"anyOf": titled("First Choice", "Second Choice")}})
]


class Choices(BaseModel):
    untitledSingle: Untitled  # noqa: N815
    titledSingle: TitledSingle  # noqa: N815
    legacyEnum: Legacy  # noqa: N815
    untitledMulti: list[Untitled]  # noqa: N815
    titledMulti: TitledMulti  # noqa: N815


@tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask a person to choose."""
    return f"Elicitation completed: {await ctx.ask(Ask('Which ones?', Choices))}"


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


class Confirmed(BaseModel):
    ok: bool


@tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Ask a person once."""
    return f"Hello, {(await ctx.ask(Ask('What is your name?', Name))).name}!"


@tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask a person twice."""
    name = await ctx.ask(Ask("Step 1: What is your name?", Name))
    color = await ctx.ask(Ask("Step 2: What is your favorite color?", Color))
    return f"{name.name} likes {color.color}"


async def confirm(ctx: Context) -> str:
    return f"state-ok: {await ctx.ask(Ask('Please confirm', Confirmed))}"


CONFIRMING: Final = [
    tool(name=name, description="Have a person confirm.")(confirm)
    for name in (
        "test_input_required_result_request_state",
        "test_input_required_result_tampered_state",
        "test_streaming_elicitation",
    )
]


@tool
async def test_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Take an argument that is also a header."""
    return region


async def with_schema(**arguments: object) -> str:
    return str(arguments)


json_schema_2020_12_tool: Final = Tool.from_schema(
    with_schema,
    name="json_schema_2020_12_tool",
    description="Tool with JSON Schema 2020-12 features",
    parameters={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)


@tool
async def template(id: str) -> Mapping[str, Any]:
    """Data by their id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@tool
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@tool
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[InputFile | InputText]:  # noqa: N803
    """A prompt with a file."""
    name = resourceUri.rpartition("/")[2]
    return [
        InputFile(data=b"Embedded resource content for testing.", filename=name, media_type="text/plain"),
        InputText(text="Please process the embedded resource above."),
    ]


@tool
async def test_prompt_with_image() -> list[InputImage | InputText]:
    """A prompt with an image."""
    return [InputImage(data=PNG, media_type="image/png"), InputText(text="Please analyze the image above.")]


class UserContext(BaseModel):
    context: str


@tool
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks a person."""
    answer = await ctx.ask(Ask("What context should the prompt use?", UserContext))
    return f"Use this context: {answer.context}"


FLOWS: Final[tuple[AnyTool, ...]] = (
    gives_text("test_simple_text", "This is a simple text response for testing."),
    gives_image("test_image_content"),
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    test_tool_with_logging,
    test_logging_tool,
    test_trigger_tool_change,
    test_trigger_prompt_change,
    test_sampling,
    gives_text("test_reconnection", "done"),
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_input_required_result_elicitation,
    test_input_required_result_multi_round,
    *CONFIRMING,
    test_header,
    json_schema_2020_12_tool,
)
RESOURCES: Final[Mapping[str, AnyTool]] = {
    "test://static-text": gives_text("static_text", "This is the content of the static text resource."),
    "test://static-binary": gives_image("static_binary"),
    "test://template/{id}/data": template,
}
PROMPTS: Final[tuple[AnyTool, ...]] = (
    gives_text("test_simple_prompt", "This is a simple prompt for testing."),
    test_prompt_with_arguments,
    test_prompt_with_embedded_resource,
    test_prompt_with_image,
    test_input_required_result_prompt,
)


async def main(port: int) -> None:
    LOGGER.setLevel(logging.INFO)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await serve_mcp(
            harness,
            {each.name: each for each in FLOWS},
            resources=RESOURCES,
            prompts={each.name: each for each in PROMPTS},
            changes=CHANGES,
            logger=LOGGER,
            port=port,
        )


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]))
