"""What is sent to models of pydantic-ai, and what comes back."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from noetic_pydantic_ai import PydanticAIModel, plugin
from noetic_pydantic_ai.parts import item_of, part_of
from pydantic import BaseModel
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InputFile,
    InputImage,
    InputText,
    Message,
    ModelRequest,
    Reasoning,
    call_model,
    loop,
    tool,
    until,
)
from noetic_py.core.items import Opaque
from noetic_py.errors import ConfigError
from noetic_py.models import allow_real_models
from noetic_py.plugins import load_plugins

Asked = list[tuple[list[ModelMessage], AgentInfo]]


def answering(*answers: Any, profile: Any = None) -> tuple[PydanticAIModel, Asked]:
    """A model that gives the pieces of one answer after the other, and what it was asked."""
    asked: Asked = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        asked.append((list(messages), info))
        for piece in answers[len(asked) - 1]:
            yield piece

    made = FunctionModel(stream_function=stream, model_name="scripted", profile=profile)
    return PydanticAIModel(made), asked


def parts(asked: Asked, request: int) -> list[Any]:
    return [part for message in asked[request][0] for part in message.parts]


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    return f"noon at {port}"


async def test_an_agent_with_a_tool_and_reasoning() -> None:
    call = {0: DeltaToolCall(name="tide", json_args='{"port": ', tool_call_id="c1")}
    more = {0: DeltaToolCall(json_args='"Brest"}')}
    thought = {0: DeltaThinkingPart(content="Which port?", signature="signed")}
    model, asked = answering([thought, {1: call[0]}, {1: more[0]}], ["At ", "noon."])
    agent = loop(
        call_model(model, instructions="Be brief.", tools=[tide], settings={"temperature": 0.5, "stop": ["."]}),
        until=until.no_tool_calls(),
    )
    with allow_real_models():
        async with Harness() as harness:
            result = await harness.run(agent, "When?")
    assert result.value == "At noon."
    assert [item.type for item in result.items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]
    system, said, thinking, called, output = parts(asked, 1)
    assert isinstance(system, SystemPromptPart)
    assert isinstance(said, UserPromptPart)
    assert (system.content, said.content) == ("Be brief.", "When?")
    assert isinstance(thinking, ThinkingPart)
    assert (thinking.content, thinking.signature) == ("Which port?", "signed")
    assert isinstance(called, ToolCallPart)
    assert (called.tool_name, called.args, called.tool_call_id) == ("tide", '{"port": "Brest"}', "c1")
    assert isinstance(output, ToolReturnPart)
    assert (output.tool_name, output.content, output.tool_call_id) == ("tide", "noon at Brest", "c1")
    settings: Any = asked[0][1].model_settings
    assert {**settings} == {"temperature": 0.5, "stop_sequences": ["."], "max_retries": 0}
    assert [each.name for each in asked[0][1].function_tools] == ["tide"]


class Tide(BaseModel):
    hour: int


@pytest.mark.parametrize("native", [True, False])
async def test_typed_output(native: bool) -> None:
    model, asked = answering(['{"hour": 6}'], profile={"supports_json_schema_output": native})
    with allow_real_models():
        async with Harness() as harness:
            result = await harness.run(call_model(model, output=Tide), "When?")
    assert result.value == Tide(hour=6)
    parameters = asked[0][1].model_request_parameters
    assert parameters.output_mode == ("native" if native else "prompted")
    assert parameters.output_object is not None
    assert parameters.output_object.json_schema["properties"]["hour"]["type"] == "integer"


async def test_pictures_files_and_outputs_in_their_places() -> None:
    model, asked = answering(["Yes."])
    content = [InputText(text="What?"), InputImage(data=b"png", media_type="image/png")]
    items = [
        Message(role="user", content=content),
        FunctionCall(name="a", arguments="{}", call_id="1"),
        FunctionCall(name="b", arguments="{}", call_id="2"),
        FunctionCallOutput(call_id="2", output=[InputFile(data=b"pdf", filename="x.pdf")]),
        FunctionCallOutput(call_id="1", output="one"),
        Reasoning(content="of another provider", encrypted_content="secret"),
        Message.assistant("Hm."),
        Message.user("And?"),
    ]
    await ask(model, items)
    sent = asked[0][0]
    assert [message.kind for message in sent] == ["request", "response", "request", "response", "request"]
    picture = parts(asked, 0)[0].content
    assert picture == ["What?", BinaryContent(b"png", media_type="image/png")]
    assert [part.tool_call_id for part in sent[2].parts if isinstance(part, ToolReturnPart)] == ["1", "2"]
    # Reasoning of another provider has no signature that this one would take.
    assert [type(part) for part in sent[3].parts] == [TextPart]
    with pytest.raises(ConfigError) as caught:
        await ask(model, [Message(role="user", content=[InputImage(file_id="f1")])])
    assert caught.value.code == "model-content"


async def ask(model: PydanticAIModel, items: list[Any]) -> None:
    with allow_real_models():
        async with model.respond(ModelRequest(items=items)) as stream:
            await stream.response()


@pytest.mark.parametrize(
    "part",
    [
        TextPart("noon", id="t1", provider_name="google", provider_details={"thought_signature": "abc"}),
        ThinkingPart("hm", id="r1", signature="s", provider_name="anthropic"),
        ToolCallPart("tide", '{"port":"x"}', tool_call_id="c", provider_details={"thought_signature": "abc"}),
        NativeToolCallPart("web_search", {"q": "tides"}, tool_call_id="n", provider_name="openai"),
        NativeToolReturnPart("web_search", {"found": [1]}, tool_call_id="n", provider_name="openai"),
    ],
)
def test_a_part_goes_back_as_it_came(part: Any) -> None:
    item = item_of(part, "i")
    assert item is not None
    back = part_of(item)
    back.timestamp = part.timestamp = None
    assert back == part
    assert isinstance(item, Opaque) == isinstance(part, NativeToolCallPart | NativeToolReturnPart)


async def test_an_answer_that_was_withheld() -> None:
    from noetic_pydantic_ai.reading import PartReading

    class Streamed:
        def get(self) -> ModelResponse:
            return ModelResponse(parts=[], finish_reason="content_filter", provider_details={"refusal": "Not that."})

    reading = PartReading()
    streamed: Any = Streamed()
    reading.streamed = streamed
    assert len(list(reading.end())) == 1
    response = reading.response()
    assert (response.stop_reason, response.usage) == ("refusal", None)


def test_wrong_names_say_what_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        PydanticAIModel("mistral-large")
    assert caught.value.code == "model-name"


@pytest.mark.parametrize("name", ["nowhere:m", "openai-chat:m"])
async def test_an_unknown_provider_or_no_key(name: str) -> None:
    with allow_real_models(), pytest.raises(ConfigError) as caught:
        await ask(PydanticAIModel(name), [Message.user("Hello")])
    assert caught.value.code == "model-name"


def test_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["pydantic-ai"]) is plugin
    model = load_plugins([plugin]).models("pydantic-ai:mistral:mistral-large-latest")
    assert model.name == "pydantic-ai:mistral:mistral-large-latest"
    code = "import sys, noetic_pydantic_ai.plugin; assert 'pydantic_ai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
