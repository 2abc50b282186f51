"""What a step's context is, and the harness that makes it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, assert_type
from uuid import UUID

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Memory,
    Message,
    ModelRequest,
    ModelSettings,
    StateBag,
    Step,
    TokenUsage,
    call_model,
    call_tool,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.read import StepMeta
from noetic_py.core.events import TextDelta
from noetic_py.core.log import ItemLog
from noetic_py.core.runtime import Runtime
from noetic_py.errors import RateLimited
from noetic_py.models import RetryModel
from noetic_py.testing import ScriptedModel, VirtualRuntime

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio


@define
class State:
    drafts: int = 0
    words: list[str] = field(factory=list[str])


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@step
async def echo(text: str) -> str:
    return text


# --------------------------------------------------------------------------------------------------------------- 002-01


@pytest.mark.clause("002-01a")
async def test_002_01_a_step_gets_its_input_and_a_context() -> None:
    seen: list[tuple[str, Context]] = []

    @step
    async def greet(name: str, ctx: Context) -> str:
        seen.append((name, ctx))
        return f"Hello, {name}!"

    async with Harness() as harness:
        result = await harness.run(greet, "Ada")
    assert result.value == "Hello, Ada!"
    ((name, ctx),) = seen
    assert name == "Ada"
    assert isinstance(ctx, Context)


@pytest.mark.clause("002-01b")
async def test_002_01_the_context_is_the_source_of_truth_for_the_run() -> None:
    """What one step does, the next one sees through its own context."""
    seen: list[Context] = []

    @step
    async def first(text: str, ctx: Context[Memory, StateBag]) -> str:
        seen.append(ctx)
        ctx.state["topic"] = text
        ctx.items.append(Message.user(text))
        return text

    @step
    async def second(text: str, ctx: Context[Memory, StateBag]) -> str:
        seen.append(ctx)
        assert ctx.state["topic"] == text
        assert [item.text for item in ctx.items.view(Message)] == [text]
        assert ctx.step_count == 2
        return text

    async with Harness() as harness:
        result = await harness.run(first >> second, "tides")
    assert result.value == "tides"
    assert seen[0] is not seen[1]
    assert seen[0].id == seen[1].id
    assert [ctx.path for ctx in seen] == [("sequence", "first"), ("sequence", "second")]


# --------------------------------------------------------------------------------------------------------------- 002-02


@pytest.mark.clause("002-02a", "002-02b")
async def test_002_02_ids_are_unique_and_sort_by_time() -> None:
    ids: list[str] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        ids.append(ctx.id)
        return text

    async with Harness() as harness:
        for _ in range(20):
            await harness.run(note, "x")
    assert len(set(ids)) == 20
    assert sorted(ids) == ids
    assert {UUID(each).version for each in ids} == {7}


@pytest.mark.clause("002-02a", "002-02c")
async def test_002_02_a_child_never_reuses_an_id() -> None:
    ids: list[str] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        ids.append(ctx.id)
        return text

    async with Harness() as harness:
        result = await harness.run(sequence(note, spawn(note), spawn(spawn(note)), note), "x")
    root, child, grandchild, again = ids
    assert root == again == result.run_id
    assert len({root, child, grandchild}) == 3
    assert root < child < grandchild
    assert {UUID(each).version for each in ids} == {7}


# --------------------------------------------------------------------------------------------------------------- 002-03


@pytest.mark.clause("002-03a")
async def test_002_03_step_count_counts_completed_and_running_steps() -> None:
    counts: list[int] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        counts.append(ctx.step_count)
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        counts.append(ctx.step_count)
        await note(text, ctx)
        counts.append(ctx.step_count)
        return text

    async with Harness(model=ScriptedModel("hi")) as harness:
        result = await harness.run(sequence(note, body, call_model(), note), "x")
    # The composites around them are no steps of their own; a model call is one.
    assert counts == [1, 2, 3, 3, 5]
    assert result.steps == 5


@pytest.mark.clause("002-03b")
async def test_002_03_step_count_never_goes_back() -> None:
    counts: list[int] = []

    @step(retry=3)
    async def flaky(text: str, ctx: Context) -> str:
        counts.append(ctx.step_count)
        if len(counts) < 3:
            raise ValueError(text)
        return text

    runtime = VirtualRuntime()
    async with Harness(runtime=runtime) as harness:
        handle = harness.start(flaky, "x")
        await runtime.advance(60)
        await handle.result()
    assert counts == [1, 2, 3]


@pytest.mark.clause("002-03c")
async def test_002_03_step_count_is_the_execution_s_own() -> None:
    counts: list[int] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        counts.append(ctx.step_count)
        return text

    async with Harness() as harness:
        await harness.run(sequence(note, spawn(sequence(note, note))), "x")
        await harness.run(note, "x")
    assert counts == [1, 1, 2, 1]


# --------------------------------------------------------------------------------------------------------------- 002-04


@pytest.mark.clause("002-04a")
async def test_002_04_tokens_add_up_over_all_model_calls() -> None:
    seen: list[TokenUsage] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        seen.append(ctx.tokens)
        return text

    usage = TokenUsage(10, 5, cached_input=4)
    async with Harness(model=ScriptedModel("a", "b", usage=usage)) as harness:
        result = await harness.run(sequence(note, call_model(), note, call_model(), note), "x")
    assert [each.total for each in seen] == [0, 15, 30]
    assert (seen[2].input, seen[2].output) == (20, 10)
    assert seen[2].cached_input == 8
    assert result.usage == seen[2]


@pytest.mark.clause("002-04c")
async def test_002_04_what_no_provider_reported_is_none() -> None:
    async with Harness(model=ScriptedModel("a", usage=TokenUsage(10, 5))) as harness:
        result = await harness.run(call_model(), "x")
    assert result.usage.cached_input is None
    assert result.usage.cache_write is None
    assert result.usage.reasoning is None


@pytest.mark.clause("002-04b")
async def test_002_04_tokens_of_children_roll_up() -> None:
    inside: list[int] = []
    after: list[int] = []

    @step
    async def note_inside(text: str, ctx: Context) -> str:
        inside.append(ctx.tokens.total)
        return text

    @step
    async def note_after(text: str, ctx: Context) -> str:
        after.append(ctx.tokens.total)
        return text

    child = spawn(sequence(call_model(), note_inside))
    async with Harness(model=ScriptedModel("a", "b", "c", usage=TokenUsage(10, 5))) as harness:
        result = await harness.run(sequence(call_model(), child, spawn(child, id="deeper"), note_after), "x")
    assert inside == [15, 15]
    assert after == [45]
    assert result.usage.total == 45


@pytest.mark.clause("002-04d")
async def test_002_04_a_failed_attempt_s_tokens_stay_counted() -> None:
    def check(text: str) -> str:
        raise ValueError("no good")

    flaky = call_model(output=str, validate=check, retry=2)
    runtime = VirtualRuntime()
    async with Harness(model=ScriptedModel("a", "b", usage=TokenUsage(10, 5)), runtime=runtime) as harness:
        handle = harness.start(flaky, "x", on_error="result")
        await runtime.advance(60)
        result = await handle.result()
    assert result.status == "failed"
    assert result.usage.total == 30


# --------------------------------------------------------------------------------------------------------------- 002-05


class Jumping(VirtualRuntime):
    """A runtime whose wall clock is set back again and again."""

    __slots__ = ("_years",)

    def __init__(self) -> None:
        super().__init__()
        self._years = itertools.count()

    def now(self) -> datetime:
        return datetime(2030 - next(self._years), 1, 1, tzinfo=UTC)


@pytest.mark.clause("002-05a", "002-05b")
async def test_002_05_elapsed_is_seconds_since_the_execution_began() -> None:
    runtime = Jumping()
    seen: list[float] = []

    @step
    async def wait(text: str, ctx: Context) -> str:
        seen.append(ctx.elapsed)
        await runtime.sleep(2.5)
        seen.append(ctx.elapsed)
        return text

    async with Harness(runtime=runtime) as harness:
        await runtime.advance(100)
        handle = harness.start(sequence(wait, spawn(wait)), "x")
        await runtime.advance(10)
        result = await handle.result()
    # The spawn is an execution of its own, and began after the first step.
    assert seen == [0.0, 2.5, 0.0, 2.5]
    assert result.seconds == 5.0


@pytest.mark.clause("002-05b")
async def test_002_05_elapsed_is_a_float_that_only_grows() -> None:
    seen: list[float] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.extend(ctx.elapsed for _ in range(50))
        return text

    async with Harness() as harness:
        await harness.run(look, "x")
    assert {type(each) for each in seen} == {float}
    assert min(seen) >= 0
    assert seen == sorted(seen)
    assert Context().elapsed >= 0


# --------------------------------------------------------------------------------------------------------------- 002-06


@pytest.mark.clause("002-06a")
async def test_002_06_cost_is_exact_and_cumulative() -> None:
    seen: list[Decimal] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        seen.append(ctx.cost)
        return text

    async with Harness(model=ScriptedModel(*"abc", cost="0.1")) as harness:
        result = await harness.run(sequence(note, loop(sequence(call_model(), note), until=until.max_rounds(3))), "x")
    assert [str(each) for each in seen] == ["0", "0.1", "0.2", "0.3"]
    assert isinstance(result.cost, Decimal)
    assert result.cost == Decimal("0.3")


@pytest.mark.clause("002-06b")
async def test_002_06_cost_of_children_rolls_up() -> None:
    seen: list[Decimal] = []

    @step
    async def note(text: str, ctx: Context) -> str:
        seen.append(ctx.cost)
        return text

    child = spawn(sequence(call_model(), note))
    async with Harness(model=ScriptedModel(*"ab", cost="0.1")) as harness:
        result = await harness.run(sequence(call_model(), child, note), "x")
    assert [str(each) for each in seen] == ["0.1", "0.2"]
    assert result.cost == Decimal("0.2")


# --------------------------------------------------------------------------------------------------------------- 002-07


@pytest.mark.clause("002-07a")
async def test_002_07_state_is_the_user_s_own_object_and_can_be_changed() -> None:
    state = State()
    seen: list[State] = []

    @step
    async def draft(text: str, ctx: Context[Memory, State]) -> str:
        seen.append(ctx.state)
        ctx.state.drafts += 1
        ctx.state.words = [*ctx.state.words, text]
        return text

    async with Harness() as harness:
        result = await harness.run(draft >> draft, "x", state=state)
    assert seen[0] is state
    assert (state.drafts, state.words) == (2, ["x", "x"])
    assert result.state is state


@pytest.mark.clause("002-07c")
async def test_002_07_without_a_state_there_is_a_bag() -> None:
    @step
    async def put(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["text"] = text
        return text

    async with Harness() as harness:
        result = await harness.run(put, "x")
    assert assert_type(result.state, StateBag)["text"] == "x"


@pytest.mark.clause("002-07b")
@pytest.mark.parametrize("state", [{"n": 1}, [1], {1}, 3, "text", None], ids=lambda each: type(each).__name__)
async def test_002_07_any_type_can_be_the_state(state: object) -> None:
    seen: list[object] = []

    @step
    async def look(text: str, ctx: Context[Memory, object]) -> str:
        seen.append(ctx.state)
        return text

    async with Harness() as harness:
        result = await harness.run(look, "x", state=state)
    expected = StateBag() if state is None else state
    assert seen == [expected]
    assert result.state == expected


@pytest.mark.clause("002-07d")
async def test_002_07_the_container_has_no_setter() -> None:
    ctx: Any = Context(state=State())
    with pytest.raises(AttributeError):
        ctx.state = State(3)
    assert ctx.state.drafts == 0


# ------------------------------------------------------------------------------------------------------- 002-09, 002-10


@pytest.mark.clause("002-09a", "002-09b")
async def test_002_09_parent_is_the_spawning_context_and_none_at_the_root() -> None:
    seen: dict[str, Context[Any, Any] | None] = {}
    outer: list[Context] = []

    @step
    async def look(name: str, ctx: Context) -> str:
        seen[ctx.name] = ctx.parent
        return name

    child = spawn(look.with_options(id="inside"), id="child")

    @step
    async def body(name: str, ctx: Context) -> str:
        outer.append(ctx)
        return await child(name, ctx)

    async with Harness() as harness:
        await harness.run(sequence(look.with_options(id="root"), body), "x")
    assert seen["root"] is None
    parent = seen["inside"]
    assert parent is not None
    assert parent.id == outer[0].id
    assert parent.path == ("sequence", "body", "child")
    assert parent.parent is None
    assert Context().parent is None


@pytest.mark.clause("002-10a", "002-10b")
async def test_002_10_depth_is_zero_at_the_root_and_grows_by_one_with_each_spawn() -> None:
    depths: list[int] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        depths.append(ctx.depth)
        return text

    nested = loop(sequence(look), until=until.max_rounds(1))
    async with Harness() as harness:
        await harness.run(sequence(look, nested, spawn(look), spawn(sequence(look, spawn(look))), look), "x")
    assert depths == [0, 0, 1, 1, 2, 0]
    assert Context().depth == 0


# --------------------------------------------------------------------------------------------------------------- 002-11


@pytest.mark.clause("002-11a")
async def test_002_11_span_is_the_active_tracing_span(spans: InMemorySpanExporter) -> None:
    from opentelemetry import trace

    ids: dict[str, int] = {}

    @step
    async def look(text: str, ctx: Context) -> str:
        assert trace.get_current_span() is ctx.span
        assert ctx.span.is_recording()
        ctx.span.set_attribute("mine", text)
        ids[ctx.name] = ctx.span.get_span_context().span_id
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        before = ctx.span
        await look(text, ctx)
        assert ctx.span is before
        assert trace.get_current_span() is before
        ids[ctx.name] = before.get_span_context().span_id
        return text

    async with Harness() as harness:
        await harness.run(body, "x")
    finished = {span.name: span for span in spans.get_finished_spans()}
    inner, outer = finished["code look"], finished["code body"]
    assert inner.context is not None
    assert inner.context.span_id == ids["look"]
    assert outer.context is not None
    assert outer.context.span_id == ids["body"]
    assert (inner.attributes or {})["mine"] == "x"
    assert inner.parent is not None
    assert inner.parent.span_id == ids["body"]


@pytest.mark.clause("002-11b")
async def test_002_11_without_tracing_the_span_records_nothing() -> None:
    seen: list[bool] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx.span.is_recording())
        ctx.span.set_attribute("mine", text)
        return text

    async with Harness() as harness:
        await harness.run(look, "x")
    assert seen == [False]
    assert not Context().span.is_recording()


# --------------------------------------------------------------------------------------------------------------- 002-54


async def test_002_54a_spans_mirror_the_tree_of_steps(spans: InMemorySpanExporter) -> None:
    flow = sequence(
        echo,
        parallel([echo, spawn(echo, id="child")], merge=lambda outputs, ctx: outputs[0], id="both"),
        loop(call_model(tools=(search,)), until=until.no_tool_calls(), id="agent"),
        id="Root",
    )
    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "x"}), "done")
    async with Harness(plugins=[], model=model) as harness:
        await harness.run(flow, "x")
    finished = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}

    def place(span: ReadableSpan) -> str:
        above = finished[span.parent.span_id] if span.parent else None
        return span.name if above is None else f"{place(above)} > {span.name}"

    # Two rounds of the agent, each with its answer, and the tool call of the first.
    agent = "invoke_workflow Root > sequence Root > invoke_agent agent"
    assert sorted(map(place, finished.values())) == [
        "invoke_workflow Root",
        "invoke_workflow Root > sequence Root",
        "invoke_workflow Root > sequence Root > code echo",
        agent,
        *[f"{agent} > model call_model"] * 2,
        *[f"{agent} > model call_model > answer answer"] * 2,
        *[f"{agent} > model call_model > answer answer > chat scripted"] * 2,
        f"{agent} > model call_model > execute_tool search",
        "invoke_workflow Root > sequence Root > parallel both",
        "invoke_workflow Root > sequence Root > parallel both > code echo",
        "invoke_workflow Root > sequence Root > parallel both > spawn child",
        "invoke_workflow Root > sequence Root > parallel both > spawn child > code echo",
    ]


def told(spans: InMemorySpanExporter, operation: str) -> list[ReadableSpan]:
    """The spans of an operation of GenAI, in the order in which they ended."""
    found = spans.get_finished_spans()
    return [span for span in found if (span.attributes or {}).get("gen_ai.operation.name") == operation]


def of_genai(span: ReadableSpan) -> dict[str, Any]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith(("gen_ai.", "error."))}


async def test_002_54b_model_and_tool_spans_follow_the_genai_conventions(spans: InMemorySpanExporter) -> None:
    from opentelemetry.trace import SpanKind, StatusCode, get_current_span

    active: list[Any] = []

    def answer(request: ModelRequest) -> Any:
        active.append(get_current_span())
        return FunctionCall(name="look", arguments={"at": "the harbour"}, call_id="c1")

    @tool
    async def look(at: str) -> str:
        """Look at a place."""
        raise LookupError(f"{at} is closed")

    usage = TokenUsage(100, 20, cached_input=30, cache_write=40, reasoning=5)
    model = ScriptedModel(
        RateLimited("slowly", model="acme:wave-2", status=429), answer, "nothing seen", usage=usage, name="acme:wave-2"
    )
    settings = ModelSettings(temperature=0.5, top_p=0.9, max_output_tokens=64, seed=7, stop=["END"])
    agent = loop(
        call_model(RetryModel(model, attempts=2, initial=0.0), tools=(look,), settings=settings),
        until=until.no_tool_calls(),
        id="agent",
    )
    async with Harness(plugins=[]) as harness:
        await harness.run(agent, "what about the harbour?", thread_id="t1")

    failed, first, second = told(spans, "chat")
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "acme",
        "gen_ai.request.model": "wave-2",
        "gen_ai.conversation.id": "t1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
    }
    used = {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.cache_write.input_tokens": 40,
        "gen_ai.usage.reasoning.output_tokens": 5,
        "gen_ai.response.model": "acme:wave-2",
    }
    assert {span.name for span in (failed, first, second)} == {"chat wave-2"}
    assert {span.kind for span in (failed, first, second)} == {SpanKind.CLIENT}
    assert of_genai(failed) == asked | {"error.type": "RateLimited"}
    assert failed.status.status_code is StatusCode.ERROR
    assert of_genai(first) == asked | used | {"gen_ai.response.finish_reasons": ("tool_calls",)}
    assert of_genai(second) == asked | used | {"gen_ai.response.finish_reasons": ("stop",)}
    # What a client of the provider records is shown below it.
    assert [span.get_span_context() for span in active] == [first.context]

    (called,) = told(spans, "execute_tool")
    assert (called.name, called.kind, called.status.status_code) == (
        "execute_tool look",
        SpanKind.INTERNAL,
        StatusCode.ERROR,
    )
    assert of_genai(called) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look at a place.",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": "t1",
        "error.type": "LookupError",
    }
    # What was said is nobody's business but the conversation's.
    assert "what about" not in str([span.attributes for span in spans.get_finished_spans()])


async def test_002_54b_an_answer_that_fits_a_schema_and_a_step_that_calls_a_tool(spans: InMemorySpanExporter) -> None:
    @tool
    async def broken() -> str:
        """Break."""
        raise ValueError("broken")

    model = ScriptedModel('{"value": 3}', FunctionCall(name="nothing", arguments={}), "done", name="plain")
    async with Harness(plugins=[], model=model) as harness:
        await harness.run(call_model(output=int), "how many?")
        await harness.run(loop(call_model(), until=until.no_tool_calls()), "x")
        await harness.run(call_tool(broken, args={}), None, on_error="result")
    (shaped, *_) = told(spans, "chat")
    assert shaped.name == "chat plain"
    assert of_genai(shaped)["gen_ai.provider.name"] == of_genai(shaped)["gen_ai.request.model"] == "plain"
    assert of_genai(shaped)["gen_ai.output.type"] == "json"
    unknown, step_of_tool = told(spans, "execute_tool")
    assert (unknown.name, of_genai(unknown)["error.type"]) == ("execute_tool nothing", "UnknownTool")
    assert step_of_tool.name == "execute_tool broken"
    assert of_genai(step_of_tool)["error.type"] == "ToolFailed"


def good(snapshot: until.Snapshot[Any]) -> until.Verdict:
    return until.Verdict(True, "good", "nicely done")


LIMITED = {"max_iterations": 2, "at_limit": "end"}
ENDS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (until.no_tool_calls(), {}, {"stop": True, "reason": "no tool calls"}),
    (good, {}, {"stop": True, "reason": "good", "feedback": "nicely done"}),
    (until.never(), LIMITED, {"stop": True, "reason": "the limit of 2 rounds was reached"}),
]


@pytest.mark.parametrize(("until_", "options", "expected"), ENDS, ids=["predicate", "verdict", "limit"])
async def test_002_54c_the_span_of_a_loop_has_its_verdict(
    spans: InMemorySpanExporter, until_: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    flow: Any = loop(call_model(), until=until_, id="agent", **options)
    async with Harness(plugins=[], model=ScriptedModel("one", "two", "three")) as harness:
        await harness.run(flow, "x")
    (span,) = [span for span in spans.get_finished_spans() if span.name == "invoke_agent agent"]
    found = {name: value for name, value in (span.attributes or {}).items() if name.startswith("noetic.verdict.")}
    assert found == {f"noetic.verdict.{name}": value for name, value in expected.items()}


async def test_002_54c_stop_loop_is_a_verdict_too(spans: InMemorySpanExporter) -> None:
    @step
    async def stops(text: str, ctx: Context) -> str:
        ctx.stop_loop(text)
        return text

    async with Harness(plugins=[]) as harness:
        await harness.run(loop(stops, until=until.never(), id="agent"), "x")
    (span,) = [span for span in spans.get_finished_spans() if span.name == "loop agent"]
    assert (span.attributes or {})["noetic.verdict.reason"] == "stop_loop"


# --------------------------------------------------------------------------------------------------------------- 002-12


@step
async def who(text: str, ctx: Context) -> tuple[str, str | None]:
    return ctx.thread_id, ctx.user_id


@pytest.mark.clause("002-12a")
async def test_002_12_thread_id_is_stable_across_calls() -> None:
    ctx = Context()
    async with Harness() as harness:
        first = (await harness.run(who, "x", ctx=ctx)).value
        second = (await harness.run(who, "x", ctx=ctx)).value
        named = (await harness.run(who, "x", thread_id="thread-1")).value
        nobody = (await harness.run(who, "x")).value
    assert first[0] == second[0] == ctx.thread_id
    assert named[0] == "thread-1"
    assert nobody[0] not in (first[0], named[0])
    assert Context(thread_id="thread-2").thread_id == "thread-2"


@pytest.mark.clause("002-12b", "002-12c")
async def test_002_12_user_id_is_optional_and_children_have_both() -> None:
    async with Harness() as harness:
        assert (await harness.run(who, "x")).value[1] is None
        assert (await harness.run(spawn(who), "x", thread_id="t", user_id="u")).value == ("t", "u")
    assert Context().user_id is None


# --------------------------------------------------------------------------------------------------------------- 002-13


@pytest.mark.clause("002-13b")
async def test_002_13_items_are_an_append_only_sequence() -> None:
    @step
    async def write(text: str, ctx: Context) -> list[str]:
        log = ctx.items
        assert isinstance(log, ItemLog)
        assert isinstance(log, Sequence)
        assert len(log) == 0
        log.append(Message.user(text))
        log.extend([Message.assistant("a"), Message.user("b")])
        assert len(log) == 3
        for name in ("__setitem__", "__delitem__", "insert", "pop", "remove", "clear", "sort", "reverse"):
            assert not hasattr(log, name)
        return [item.text for item in log if isinstance(item, Message)]

    async with Harness() as harness:
        result = await harness.run(write, "x")
    assert result.value == ["x", "a", "b"]
    assert [item.text for item in result.items if isinstance(item, Message)] == ["x", "a", "b"]


@pytest.mark.clause("002-13a")
async def test_002_13_items_are_readable_at_any_time() -> None:
    lengths: list[int] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        lengths.append(len(ctx.items))
        ctx.items.append(Message.user(text))
        lengths.append(len(ctx.items))
        return text

    ctx = Context(items=[Message.user("before")])
    async with Harness() as harness:
        await harness.run(look >> look, "x", ctx=ctx)
    assert lengths == [1, 2, 2, 3]
    assert len(ctx.items) == 3


@pytest.mark.clause("002-13c")
async def test_002_13_the_runtime_appends_after_each_model_step() -> None:
    kinds: list[list[str]] = []

    @step
    async def look(text: object, ctx: Context) -> None:
        kinds.append([item.type for item in ctx.items])

    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "x"}), "done")
    agent = sequence(call_model(tools=(search,)), look)
    async with Harness(model=model) as harness:
        await harness.run(loop(agent, until=until.max_rounds(2)), "go")
    assert kinds == [
        ["message", "function_call", "function_call_output"],
        ["message", "function_call", "function_call_output", "message"],
    ]


async def test_002_28d_the_log_keeps_one_final_entry_of_a_streamed_item() -> None:
    async with (
        Harness(plugins=[], model=ScriptedModel("in three parts", chunk=5)) as harness,
        harness.stream(call_model(), "go") as stream,
    ):
        parts = [event.delta async for event in stream.events if isinstance(event, TextDelta)]
        result = await stream.result()
    assert parts == ["in th", "ree p", "arts"]
    assert [item.status for item in result.items] == ["completed", "completed"]
    assert len({item.id for item in result.items}) == 2
    assert isinstance(result.items[-1], Message)
    assert result.items[-1].text == "in three parts"


# --------------------------------------------------------------------------------------------------------------- 002-14


@pytest.mark.clause("002-14a")
async def test_002_14_last_step_is_none_before_the_first() -> None:
    seen: list[StepMeta | None] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx.last_step)
        return text

    async with Harness() as harness:
        await harness.run(sequence(look, spawn(look)), "x")
    assert seen == [None, None]
    assert Context().last_step is None


@pytest.mark.clause("002-14b")
async def test_002_14_last_step_is_what_the_latest_step_did() -> None:
    seen: list[StepMeta | None] = []

    @step
    async def look(text: object, ctx: Context) -> None:
        seen.append(ctx.last_step)

    call = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel([Message.assistant("looking"), call], usage=TokenUsage(7, 3), cost="0.25")
    agent = loop(sequence(call_model(tools=(search,)), look, look), until=until.max_rounds(1))
    async with Harness(model=model) as harness:
        await harness.run(agent, "go")
    after_model, after_code = seen
    assert after_model is not None
    assert list(after_model.tool_calls) == [call]
    assert after_model.usage == TokenUsage(7, 3)
    assert after_model.cost == Decimal("0.25")
    assert [item.type for item in after_model.items] == ["message", "function_call"]
    assert after_code is not None
    assert (list(after_code.tool_calls), list(after_code.items)) == ([], [])
    assert (after_code.usage.total, after_code.cost) == (0, Decimal(0))


@pytest.mark.clause("002-14c")
async def test_002_14_a_tool_step_is_a_step_too() -> None:
    seen: list[StepMeta | None] = []

    @step
    async def look(text: object, ctx: Context) -> None:
        seen.append(ctx.last_step)

    flow = sequence(call_model(), call_tool(search, args={"query": "x"}), look)
    async with Harness(model=ScriptedModel("hi", usage=TokenUsage(7, 3))) as harness:
        await harness.run(flow, "go")
    assert seen[0] is not None
    assert seen[0].usage.total == 0
    assert list(seen[0].items) == []


# --------------------------------------------------------------------------------------------------------------- 002-15


class Notes(Memory):
    """A bundle of one's own."""

    def shout(self) -> str:
        return "notes"


@pytest.mark.clause("002-15a")
async def test_002_15_contexts_are_generic_over_memory_and_state() -> None:
    @step
    async def typed(text: str, ctx: Context[Notes, State]) -> str:
        assert_type(ctx.state, State)
        assert_type(ctx.memory, Notes)
        ctx.state.drafts += 1
        return ctx.memory.shout() + text

    assert_type(typed, Step[str, str, Notes, State])
    async with Harness(memory=Notes()) as harness:
        result = await harness.run(typed, "!", state=State())
    assert_type(result.value, str)
    assert_type(result.state, State)
    assert (result.value, result.state.drafts) == ("notes!", 1)


@pytest.mark.clause("002-15b")
async def test_002_15_a_bare_context_has_defaults_and_composes_with_everything() -> None:
    @step
    async def bare(text: str, ctx: Context) -> str:
        assert_type(ctx.memory, Memory)
        assert_type(ctx.state, object)
        return text

    @step
    async def typed(text: str, ctx: Context[Notes, State]) -> str:
        return ctx.memory.shout() + text

    assert_type(bare, Step[str, str])
    assert_type(bare, Step[str, str, Memory, object])
    both = bare >> typed >> bare
    assert_type(both, Step[str, str, Notes, State])
    async with Harness(memory=Notes()) as harness:
        assert (await harness.run(both, "!", state=State())).value == "notes!"
        assert (await harness.run(bare, "x")).value == "x"
    async with Harness() as plain:
        assert (await plain.run(bare, "x")).value == "x"


# --------------------------------------------------------------------------------------------------------------- 002-38


@pytest.mark.clause("002-38a")
async def test_002_38_one_harness_makes_the_contexts_of_many_concurrent_runs() -> None:
    together = 20
    inside = 0
    all_inside = anyio.Event()
    ids: set[str] = set()

    @step
    async def meet(n: int, ctx: Context[Memory, StateBag]) -> int:
        nonlocal inside
        ids.add(ctx.id)
        ctx.state["n"] = n
        ctx.items.append(Message.user(str(n)))
        inside += 1
        if inside == together:
            all_inside.set()
        await all_inside.wait()
        assert ctx.state["n"] == n
        assert [item.text for item in ctx.items.view(Message)] == [str(n)]
        assert ctx.step_count == 1
        return n

    async with Harness() as harness:
        handles = [harness.start(meet, n) for n in range(together)]
        results = [await handle.result() for handle in handles]
    assert [result.value for result in results] == list(range(together))
    assert len(ids) == together
    assert {result.run_id for result in results} == ids


@pytest.mark.clause("002-38b")
async def test_002_38_a_harness_keeps_nothing_of_its_runs() -> None:
    @step
    async def count(text: str, ctx: Context[Memory, StateBag]) -> tuple[int, int, int]:
        seen = len(ctx.state)
        ctx.state["n"] = 1
        ctx.items.append(Message.user(text))
        assert seen == 0
        return ctx.step_count, ctx.turns, len(ctx.items)

    flow = sequence(call_model(), count)
    async with Harness(model=ScriptedModel("a", "b"), budget=Budget(steps=10)) as harness:
        first = await harness.run(flow, "x")
        second = await harness.run(flow, "x")
    assert first.value == second.value == (2, 1, 3)
    assert first.steps == second.steps == 2


@pytest.mark.clause("002-38c")
async def test_002_38_one_run_that_breaks_leaves_the_others_alone() -> None:
    release = anyio.Event()

    @step
    async def wait(text: str) -> str:
        await release.wait()
        return text

    @step
    async def bad(text: str) -> str:
        raise ValueError(text)

    async with Harness() as harness:
        waiting = harness.start(wait, "fine")
        broken = harness.start(bad, "bad", on_error="result")
        assert (await broken.result()).status == "failed"
        assert not waiting.done
        release.set()
        assert (await waiting.result()).value == "fine"


@pytest.mark.clause("002-38d")
async def test_002_38_a_conversation_is_the_caller_s_and_not_the_harness_s() -> None:
    """What goes on from run to run is the context that the caller passes, in any harness."""
    ctx = Context()
    items: Sequence[Item] = ()
    async with Harness(model=ScriptedModel("one")) as harness:
        await harness.run(call_model(), "first", ctx=ctx)
    second = ScriptedModel("two")
    async with Harness(model=second) as harness:
        items = (await harness.run(call_model(), "second", ctx=ctx)).items
    texts = [item.text for item in items if isinstance(item, Message)]
    assert texts == ["first", "one", "second", "two"]
    assert len(second.requests[0].items) == 3
    assert not any(isinstance(item, FunctionCallOutput) for item in items)


def test_002_38_a_runtime_of_the_user_s_own_is_used() -> None:
    class Counting(Runtime):
        def __init__(self) -> None:
            super().__init__()
            self.ids = itertools.count()

        def new_id(self) -> str:
            return f"id-{next(self.ids)}"

    harness = Harness(runtime=Counting())
    assert harness.run_sync(echo, "x").run_id == "id-0"
    assert harness.run_sync(echo, "x").run_id == "id-1"
