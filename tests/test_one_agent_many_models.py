"""One agent on the models of all plugins: only the name changes, and each is asked in the wire form of its provider."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import anyio
import noetic_anthropic.plugin
import noetic_google.plugin
import noetic_openai.plugin
import noetic_pydantic_ai.plugin
import pytest
from attrs import evolve, frozen
from noetic_local import LocalModel
from pydantic import BaseModel

from noetic_py import Budget, Harness, Item, RunResult, TokenUsage, call_model, loop, tool, until
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Message
from noetic_py.models import allow_real_models, set_price
from noetic_py.plugins import ModelRegistry, hookimpl
from noetic_py.testing.models import ProviderAnswer, ProviderCallPieces, ProviderScript
from noetic_py.testing.replies import Reply, replying

# pydantic-ai runs on asyncio only; the contracts of the models try both loops.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

PLUGINS = Path(__file__).parents[1] / "plugins"


class Report(BaseModel):
    port: str
    metres: float
    safe: bool


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    return f"6.9 m at {port}"


@tool
async def wind(port: str, knots: bool) -> str:
    """The wind at a port."""
    return f"12 {'kn' if knots else 'm/s'} at {port}"


@tool
async def berths(port: str, most: int) -> list[str]:
    """Free berths at a port."""
    return [f"{port} {number}" for number in range(1, most + 1)]


agent = loop(call_model(tools=[tide, wind, berths], output=Report), until=until.no_tool_calls())

ANSWERS: list[ProviderAnswer] = [
    ProviderAnswer(calls=[ProviderCallPieces("c1", "tide", ['{"port": ', '"Brest"}'])], usage=TokenUsage(100, 10)),
    ProviderAnswer(
        calls=[ProviderCallPieces("c2", "wind", ['{"port": "Brest", ', '"knots": true}'])], usage=TokenUsage(130, 11)
    ),
    ProviderAnswer(
        calls=[ProviderCallPieces("c3", "berths", ['{"port": "Brest"', ', "most": 2}'])], usage=TokenUsage(160, 12)
    ),
    ProviderAnswer(['{"port": "Brest", ', '"metres": 6.9, ', '"safe": true}'], usage=TokenUsage(190, 13)),
]


@frozen
class Served:
    """A model by its name, and how a server of its provider answers.

    Attributes:
        name: Its name.
        reply: Makes a reply in the provider's form.
        environment: What the environment says, by the server's address.
    """

    name: str
    reply: Callable[[ProviderScript], Reply]
    environment: Callable[[str], Mapping[str, str]]


def wire(plugin: str, module: str) -> Any:
    """A module of a plugin's tests, which knows the wire form of its provider."""
    folder = PLUGINS / plugin / "tests"
    spec = spec_from_file_location(f"wire_of_{plugin.replace('-', '_')}", folder / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(folder))
    return made


def of_openai(url: str) -> Mapping[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-secret"}


def local_reply(script: ProviderScript) -> Reply:
    # Where it has tools, a local model says by its grammar whether it calls one or answers.
    if isinstance(script, ProviderAnswer) and script.text:
        script = evolve(script, text=['{"answer": ', *script.text, "}"])
    found: Reply = LOCAL.reply(script)
    return found


OPENAI, LOCAL = wire("noetic-openai", "test_contract"), wire("noetic-local", "test_contract")
MODELS = [
    Served("openai:m", OPENAI.TestResponses().reply, of_openai),
    Served(
        "anthropic:claude-sonnet-5",
        wire("noetic-anthropic", "messages_wire").reply,
        lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-secret"},
    ),
    Served(
        "google:gemini-3.8-flash",
        wire("noetic-google", "gemini_wire").reply,
        lambda url: {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "sk-secret"},
    ),
    Served("pydantic-ai:openai-chat:m", wire("noetic-pydantic-ai", "chat_wire").reply, of_openai),
    Served("local:smollm2", local_reply, lambda url: {"TIDES_LOCAL_SERVER": f"{url}/v1"}),
]


class LocalPlugin:
    """Local models whose server is not started: the one of the test is asked."""

    @hookimpl
    def register_models(self, registry: ModelRegistry) -> None:
        registry.provider(
            "local", lambda name: LocalModel(name, server=LOCAL.ScriptedServer(os.environ["TIDES_LOCAL_SERVER"]))
        )


ALL = [
    noetic_openai.plugin,
    noetic_anthropic.plugin,
    noetic_google.plugin,
    noetic_pydantic_ai.plugin,
    LocalPlugin(),
]


async def asked(
    served: Served, monkeypatch: pytest.MonkeyPatch, budget: Budget | None = None
) -> tuple[RunResult[Report | None], str, list[Any]]:
    """The agent's result on a model, the text that was streamed, and the requests that came to the provider."""
    set_price(served.name, input="2", output="10")
    with anyio.fail_after(60), allow_real_models():
        async with replying(*map(served.reply, ANSWERS)) as server:
            for name, value in served.environment(server.url).items():
                monkeypatch.setenv(name, value)
            async with Harness(model=served.name, plugins=ALL) as harness:
                options: Any = {"on_error": "result", **({} if budget is None else {"budget": budget})}
                async with harness.stream(agent, "May we berth at Brest?", **options) as stream:
                    streamed = [part async for part in stream.text]
                    result = await stream.result()
            await server.all_closed()
            assert server.opened == 1
    return result, "".join(streamed), server.requests


def form_of(items: list[Item]) -> list[object]:
    """A transcript without what each provider names in its own way: ids, and the spaces of JSON."""
    calls = [item.call_id for item in items if isinstance(item, FunctionCall)]
    form: list[object] = []
    for item in items:
        match item:
            case Message(role="assistant"):
                form.append(("assistant", json.loads(item.text), item.status))
            case Message():
                form.append((item.role, item.text, item.status))
            case FunctionCall():
                form.append(("call", calls.index(item.call_id), item.name, json.loads(item.arguments), item.status))
            case FunctionCallOutput():
                form.append(("output", calls.index(item.call_id), item.text, item.status))
            case _:
                form.append(item)
    return form


FORM: list[object] = [
    ("user", "May we berth at Brest?", "completed"),
    ("call", 0, "tide", {"port": "Brest"}, "completed"),
    ("output", 0, "6.9 m at Brest", "completed"),
    ("call", 1, "wind", {"port": "Brest", "knots": True}, "completed"),
    ("output", 1, "12 kn at Brest", "completed"),
    ("call", 2, "berths", {"port": "Brest", "most": 2}, "completed"),
    ("output", 2, '["Brest 1","Brest 2"]', "completed"),
    ("assistant", {"port": "Brest", "metres": 6.9, "safe": True}, "completed"),
]


@pytest.mark.parametrize("served", MODELS, ids=lambda served: served.name.partition(":")[0])
async def test_the_same_agent_has_the_same_transcript(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(model_calls=4, tool_calls=3, cost=1)
    result, streamed, requests = await asked(served, monkeypatch, budget)
    assert result.status == "completed"
    assert result.value == Report(port="Brest", metres=6.9, safe=True)
    assert json.loads(streamed) == {"port": "Brest", "metres": 6.9, "safe": True}
    assert form_of(list(result.items)) == FORM
    usage = result.usage
    assert (usage.input, usage.output, result.model_calls, len(requests)) == (580, 46, 4, 4)
    # 580 tokens at 2 USD for a million and 46 at 10; a price that was set holds for a local model too.
    assert str(result.cost) == "0.00162"


@pytest.mark.parametrize("served", MODELS, ids=lambda served: served.name.partition(":")[0])
async def test_a_budget_ends_it_at_the_same_place(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    result, streamed, requests = await asked(served, monkeypatch, Budget(model_calls=2, tool_calls=5))
    assert (result.status, result.model_calls, len(requests)) == ("budget_exceeded", 2, 2)
    assert (result.usage.input, result.usage.output, str(result.cost)) == (230, 21, "0.00067")
    assert form_of(list(result.items)) == FORM[:5]
    assert streamed == ""
    result, _, requests = await asked(served, monkeypatch, Budget(tool_calls=1))
    assert (result.status, result.model_calls, len(requests)) == ("budget_exceeded", 2, 2)
    assert (result.usage.input, result.usage.output) == (230, 21)
