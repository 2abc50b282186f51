"""Spans and metrics: what a run records, by the names of OpenTelemetry's conventions for GenAI."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import SpanKind
from pydantic import Field

import noetic_py
from noetic_py import (
    Budget,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Secret,
    TokenUsage,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.core import telemetry as core_telemetry
from noetic_py.core.control import SessionKey
from noetic_py.core.runtime import CONTENT
from noetic_py.engine import telemetry
from noetic_py.errors import ConfigError, StepFailed
from noetic_py.redaction import MASK
from noetic_py.testing import ScriptedModel
from tests.traces import program as traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Metrics of the test; the provider is gone afterwards."""
    found = InMemoryMetricReader()
    provider = MeterProvider([found])
    # The API lets a provider be set only once in a process.
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    yield found
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The points of each metric."""
    data = reader.get_metrics_data()
    found = [] if data is None else [each for part in data.resource_metrics for each in part.scope_metrics]
    return {metric.name: list(metric.data.data_points) for scope in found for metric in scope.metrics}


@tool
async def look(at: str) -> str:
    """Look at a place."""
    return f"{at} is empty"


def agent(**options: Any) -> Any:
    model = ScriptedModel(
        FunctionCall(name="look", arguments={"at": "the harbour"}, call_id="c1"),
        "nothing",
        usage=TokenUsage(100, 20, cached_input=30, input_image=7),
        name="google:wave-2",
        **options,
    )
    return loop(call_model(model, tools=(look,)), until=until.no_tool_calls(), id="pilot")


def tree(spans: InMemorySpanExporter) -> list[tuple[str, SpanKind, dict[str, Any]]]:
    """Each span with its place, its kind and its attributes of the conventions and of tokens."""
    finished = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}

    def place(span: ReadableSpan) -> str:
        above = finished.get(span.parent.span_id) if span.parent else None
        return span.name if above is None else f"{place(above)} > {span.name}"

    wanted = ("gen_ai.", "error.")

    def told(span: ReadableSpan) -> dict[str, Any]:
        return {name: value for name, value in (span.attributes or {}).items() if name.startswith(wanted)}

    return sorted(((place(span), span.kind, told(span)) for span in finished.values()), key=lambda each: each[0])


async def test_spans_are_a_tree_with_the_attributes_of_the_conventions(spans: InMemorySpanExporter) -> None:
    async with Harness(plugins=[]) as harness:
        await harness.run(agent(), "what about the harbour?", thread_id="t1")
    run, invoked = "invoke_workflow pilot", "invoke_workflow pilot > invoke_agent pilot"
    round_ = f"{invoked} > model call_model"
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "wave-2",
        "gen_ai.response.model": "google:wave-2",
        "gen_ai.conversation.id": "t1",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.image.input_tokens": 7,
    }
    found = tree(spans)
    assert [each for each in found if each[1] is SpanKind.CLIENT] == [
        (f"{round_} > answer answer > chat wave-2", SpanKind.CLIENT, chat | {"gen_ai.response.finish_reasons": (why,)})
        for why in ("tool_calls", "stop")
    ]
    assert [each for each in found if each[1] is not SpanKind.CLIENT] == [
        (
            run,
            SpanKind.INTERNAL,
            {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": "pilot",
                "gen_ai.conversation.id": "t1",
            },
        ),
        (
            invoked,
            SpanKind.INTERNAL,
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "pilot",
                "gen_ai.conversation.id": "t1",
            },
        ),
        *[(round_, SpanKind.INTERNAL, {})] * 2,
        *[(f"{round_} > answer answer", SpanKind.INTERNAL, {})] * 2,
        (
            f"{round_} > execute_tool look",
            SpanKind.INTERNAL,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.agent.name": "pilot",
                "gen_ai.conversation.id": "t1",
                "gen_ai.tool.name": "look",
                "gen_ai.tool.type": "function",
                "gen_ai.tool.description": "Look at a place.",
                "gen_ai.tool.call.id": "c1",
            },
        ),
    ]


async def test_a_resumed_run_and_a_fork_are_linked_to_the_run_before(spans: InMemorySpanExporter) -> None:
    fails = True

    @step
    async def sail(_: object) -> str:
        if fails:
            raise ValueError("no wind")
        return "there"

    async with Harness(checkpoints=InMemoryBackend(), plugins=[]) as harness:
        with pytest.raises(StepFailed):
            await harness.run(sail, None, run_id="first")
        fork = await harness.fork("first")
        fails = False
        await harness.resume("first", sail)
        await harness.resume(fork, sail)
    first, *later = [span for span in spans.get_finished_spans() if span.name == "invoke_workflow sail"]
    assert first.links == ()
    assert (first.attributes or {})["error.type"] == "StepFailed"
    assert len(later) == 2
    for span in later:
        assert span.parent is not None
        assert first.context is not None
        assert [link.context.span_id for link in span.links] == [first.context.span_id]


async def test_model_calls_are_measured(reader: InMemoryMetricReader) -> None:
    async with Harness(plugins=[]) as harness:
        await harness.run(agent(cost=Decimal("0.25")), "what about the harbour?")
    found = points(reader)
    names = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "wave-2",
        "gen_ai.response.model": "google:wave-2",
    }
    used = {
        name.removeprefix("gen_ai.client.inference.usage."): [(point.attributes, point.value) for point in points]
        for name, points in found.items()
        if name.startswith("gen_ai.client.inference.usage.")
    }
    assert used == {
        "input_tokens": [
            (names | {"gen_ai.token.modality": "image"}, 14),
            (names | {"gen_ai.token.modality": "unknown"}, 186),
        ],
        "output_tokens": [(names | {"gen_ai.token.modality": "unknown"}, 40)],
        "cache_read.input_tokens": [(names | {"gen_ai.token.modality": "unknown"}, 60)],
    }
    (read,) = found["gen_ai.client.inference.operation.input_tokens"]
    (written,) = found["gen_ai.client.inference.operation.output_tokens"]
    assert [(point.attributes, point.count, point.sum) for point in (read, written)] == [
        (names, 2, 200),
        (names, 2, 40),
    ]
    assert read.explicit_bounds == (
        1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
    )  # fmt: skip
    (duration,) = found["gen_ai.client.operation.duration"]
    assert (duration.attributes, duration.count) == (names, 2)
    assert duration.explicit_bounds == (
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    )  # fmt: skip
    (cost,) = found["noetic.client.cost"]
    assert (cost.attributes, cost.value) == (names, 0.5)


async def test_a_model_call_that_fails_is_measured_with_its_error(reader: InMemoryMetricReader) -> None:
    def fail(_: object) -> Any:
        raise ConnectionError("gone")

    async with Harness(plugins=[]) as harness:
        await harness.run(call_model(ScriptedModel(fail, name="acme:wave")), "x", on_error="result")
    (duration,) = points(reader)["gen_ai.client.operation.duration"]
    assert duration.attributes["error.type"] == "ConnectionError"
    assert "gen_ai.client.inference.usage.input_tokens" not in points(reader)


async def test_steps_and_replayed_steps_and_commits_are_measured(reader: InMemoryMetricReader) -> None:
    fails = True

    @step
    async def load(text: str) -> str:
        return text

    @step
    async def sail(text: str) -> str:
        if fails:
            raise ValueError("no wind")
        return text

    flow = load >> sail
    async with Harness(checkpoints=InMemoryBackend(), plugins=[]) as harness:
        with pytest.raises(StepFailed):
            await harness.run(flow, "x", run_id="first")
        (steps,) = points(reader)["noetic.steps"]
        assert (steps.attributes, steps.value) == ({"noetic.flow": flow.id}, 3)
        fails = False
        await harness.resume("first", flow)
    found = points(reader)
    # The sequence and its second step run again, and the first step does not.
    assert [point.value for point in found["noetic.steps"]] == [5]
    assert [point.value for point in found["noetic.steps.replayed"]] == [1]
    (commits,) = found["noetic.commit.duration"]
    assert commits.count >= 4
    assert commits.sum >= 0


async def test_what_a_budget_refuses_is_counted_once(reader: InMemoryMetricReader) -> None:
    @step
    async def row(text: str) -> str:
        return text

    async with Harness(plugins=[]) as harness:
        result = await harness.run((row >> row >> row), "x", budget=Budget(steps=2), on_error="result")
    assert result.status == "budget_exceeded"
    (refused,) = points(reader)["noetic.budget.refusals"]
    assert (refused.attributes, refused.value) == ({"noetic.budget.dimension": "steps"}, 1)


async def test_turns_that_wait_for_their_session_are_counted(reader: InMemoryMetricReader) -> None:
    began, go = anyio.Event(), anyio.Event()
    seen: list[int] = []

    @step
    async def turn(text: str) -> str:
        began.set()
        await go.wait()
        return text

    async with Harness(plugins=[]) as harness, anyio.create_task_group() as tasks:

        async def ask(text: str) -> None:
            await harness.run(turn, text, session=SessionKey("ada", "trip"))

        tasks.start_soon(ask, "one")
        await began.wait()
        tasks.start_soon(ask, "two")
        await anyio.wait_all_tasks_blocked()
        seen += [point.value for point in points(reader)["noetic.sessions.waiting"]]
        go.set()
    seen += [point.value for point in points(reader)["noetic.sessions.waiting"]]
    assert seen == [1, 0]


async def test_without_a_provider_nothing_is_measured() -> None:
    from noetic_py.core.runtime import metrics as instruments

    assert instruments() is None


async def content(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, setting: str) -> dict[str, list[Any]]:
    monkeypatch.setenv(CONTENT, setting)
    password = Secret('open sesame "now"')

    @tool
    async def unlock(door: str, code: Annotated[str, Field(json_schema_extra={"writeOnly": True})]) -> str:
        """Unlock a door."""
        return f"{door} is open, thanks to {password.reveal()}"

    call = FunctionCall(name="unlock", arguments={"door": "north", "code": "1234-5678"}, call_id="c1")
    model = ScriptedModel(call, f"it was {password.reveal()}")
    guard = loop(
        call_model(model, tools=(unlock,), instructions=f"never say {password.reveal()}"), until=until.no_tool_calls()
    )
    async with Harness(plugins=[]) as harness:
        await harness.run(guard, "let me in")
    found: dict[str, list[Any]] = {}
    for span in spans.get_finished_spans():
        for name, value in (span.attributes or {}).items():
            found.setdefault(name, []).append(value)
    return found


async def test_messages_are_recorded_where_the_setting_says_so_and_without_secrets(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await content(spans, monkeypatch, "true")
    assert [json.loads(each) for each in found["gen_ai.system_instructions"]] == [
        [{"type": "text", "content": f"never say {MASK}"}]
    ] * 2
    asked = {"role": "user", "parts": [{"type": "text", "content": "let me in"}]}
    arguments = json.dumps({"door": "north", "code": MASK}, separators=(",", ":"))
    call = {"type": "tool_call", "id": "c1", "name": "unlock"}
    first, second = (json.loads(each) for each in found["gen_ai.input.messages"])
    assert first == [asked]
    assert second[0] == asked
    assert second[1]["role"] == "assistant"
    assert {**second[1]["parts"][0], "arguments": json.loads(second[1]["parts"][0]["arguments"])} == {
        **call,
        "arguments": json.loads(arguments),
    }
    result = f"north is open, thanks to {MASK}"
    assert second[2:] == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": result}]},
    ]
    assert [json.loads(each) for each in found["gen_ai.output.messages"]] == [
        [{"role": "assistant", "parts": [call], "finish_reason": "tool_call"}],
        [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": f"it was {MASK}"}],
                "finish_reason": "stop",
            }
        ],
    ]
    assert [json.loads(each) for each in found["gen_ai.tool.call.arguments"]] == [json.loads(arguments)]
    assert found["gen_ai.tool.call.result"] == [result]
    assert "sesame" not in str(found)
    assert "1234" not in str(found)


@pytest.mark.parametrize("setting", ["", "false", "NO_CONTENT"])
async def test_messages_are_not_recorded_otherwise(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    found = await content(spans, monkeypatch, setting)
    assert "gen_ai.operation.name" in found
    names = ("input.messages", "output.messages", "system_instructions", "tool.call.arguments", "tool.call.result")
    assert not {f"gen_ai.{name}" for name in names} & found.keys()


async def test_a_setting_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTENT, "event_only")
    async with Harness(plugins=[]) as harness:
        with pytest.raises(ConfigError, match="expected true or false"):
            await harness.run(agent(), "x")


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai:gpt-5-mini", "openai", "gpt-5-mini"),
        ("openai-chat:gpt-5-mini", "openai", "gpt-5-mini"),
        ("azure:mine", "azure.ai.openai", "mine"),
        ("xai:grok-4", "x_ai", "grok-4"),
        ("ollama:qwen3:8b", "ollama", "qwen3:8b"),
        ("pydantic-ai:bedrock:anthropic.claude-v1:0", "aws.bedrock", "anthropic.claude-v1:0"),
        ("pydantic-ai:mistral:mistral-large-latest", "mistral_ai", "mistral-large-latest"),
    ],
)
def test_providers_have_the_names_of_the_conventions(model: str, provider: str, name: str) -> None:
    names = telemetry.names_of(model)
    assert (names["gen_ai.provider.name"], names["gen_ai.request.model"]) == (provider, name)


CONVENTIONS = tomllib.loads((Path(traces.__file__).with_name("conventions.toml")).read_text(encoding="utf-8"))
NAMES = {kind: set(names) for kind, names in CONVENTIONS["names"].items()}


async def test_every_name_that_a_program_gives_is_one_of_the_conventions(
    spans: InMemorySpanExporter, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTENT, "true")
    await traces.trace()
    found = spans.get_finished_spans()
    measured = points(reader)
    tagged: list[dict[str, Any]] = [dict(span.attributes or {}) for span in found]
    tagged += [dict(point.attributes) for many in measured.values() for point in many]

    def given(name: str) -> set[Any]:
        return {each[name] for each in tagged if name in each}

    attributes = {name for each in tagged for name in each if name.startswith("gen_ai.")}
    metrics = {name for name in measured if name.startswith("gen_ai.")}
    assert attributes - NAMES["attributes"] == set()
    assert metrics - NAMES["metrics"] == set()
    assert given("gen_ai.operation.name") == CONVENTIONS["spans"].keys() <= NAMES["operations"]
    assert given("gen_ai.provider.name") == {"openai"} <= NAMES["providers"]
    assert given("gen_ai.token.modality") == {"audio", "image", "unknown"} <= NAMES["modalities"]
    for span, each in zip(found, tagged, strict=False):
        operation = each.get("gen_ai.operation.name")
        if operation is not None:
            assert span.name == f"{operation} {each[CONVENTIONS['spans'][operation]]}"
    # The program has to give each name that is in the code, or the test above would not see a wrong one.
    # A scripted answer has no id.
    assert attributes == in_code() - {"gen_ai.response.id"}
    assert metrics == {
        "gen_ai.client.operation.duration",
        *(f"gen_ai.client.inference.operation.{name}_tokens" for name in ("input", "output")),
        *(f"gen_ai.client.inference.usage.{name}" for name in core_telemetry._USED),
    }
    tools = [each for each in tagged if "gen_ai.tool.name" in each]
    assert {each["gen_ai.tool.name"]: each.get("gen_ai.agent.name") for each in tools} == traces.TOOLS
    assert [each["noetic.cost"] for each in tagged if "noetic.cost" in each] == [traces.COST] * traces.CALLS


def in_code() -> set[str]:
    """The attributes that the code names."""
    found: set[str] = set()
    for file in sorted(Path(noetic_py.__file__).parent.rglob("*.py")):
        found.update(re.findall(r'"(gen_ai\.[a-z_.]+[a-z])"', file.read_text(encoding="utf-8")))
    found.update(f"gen_ai.usage.{name}" for name in telemetry._USAGE.values())
    found.update(f"gen_ai.request.{name}" for name in telemetry._SETTINGS.values())
    return found - {"gen_ai.client.operation.duration"}


def test_every_provider_that_is_renamed_has_a_name_of_the_conventions() -> None:
    assert set(telemetry._PROVIDERS.values()) <= NAMES["providers"]
