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
    ItemLog,
    Memory,
    Message,
    Runtime,
    StateBag,
    Step,
    StepMeta,
    TokenUsage,
    call_model,
    call_tool,
    loop,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel, VirtualRuntime

if TYPE_CHECKING:
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


async def test_002_04_what_no_provider_reported_is_none() -> None:
    async with Harness(model=ScriptedModel("a", usage=TokenUsage(10, 5))) as harness:
        result = await harness.run(call_model(), "x")
    assert result.usage.cached_input is None
    assert result.usage.cache_write is None
    assert result.usage.reasoning is None


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


async def test_002_07_without_a_state_there_is_a_bag() -> None:
    @step
    async def put(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["text"] = text
        return text

    async with Harness() as harness:
        result = await harness.run(put, "x")
    assert assert_type(result.state, StateBag)["text"] == "x"


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


async def test_002_07_the_container_has_no_setter() -> None:
    ctx: Any = Context(state=State())
    with pytest.raises(AttributeError):
        ctx.state = State(3)
    assert ctx.state.drafts == 0


# ------------------------------------------------------------------------------------------------------- 002-09, 002-10


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


# --------------------------------------------------------------------------------------------------------------- 002-12


@step
async def who(text: str, ctx: Context) -> tuple[str, str | None]:
    return ctx.thread_id, ctx.user_id


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


async def test_002_12_user_id_is_optional_and_children_have_both() -> None:
    async with Harness() as harness:
        assert (await harness.run(who, "x")).value[1] is None
        assert (await harness.run(spawn(who), "x", thread_id="t", user_id="u")).value == ("t", "u")
    assert Context().user_id is None


# --------------------------------------------------------------------------------------------------------------- 002-13


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


# --------------------------------------------------------------------------------------------------------------- 002-14


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


async def test_002_38_a_harness_keeps_nothing_of_its_runs() -> None:
    @step
    async def count(text: str, ctx: Context[Memory, StateBag]) -> tuple[int, int, int]:
        ctx.state["n"] = seen = ctx.state.get("n", 0)
        ctx.items.append(Message.user(text))
        assert seen == 0
        return ctx.step_count, ctx.turns, len(ctx.items)

    flow = sequence(call_model(), count)
    async with Harness(model=ScriptedModel("a", "b"), budget=Budget(steps=10)) as harness:
        first = await harness.run(flow, "x")
        second = await harness.run(flow, "x")
    assert first.value == second.value == (2, 1, 3)
    assert first.steps == second.steps == 2


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
