"""The life of a context: its turns, what is taken over of it, and which one is current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    StateBag,
    Trace,
    call_model,
    current_context,
    loop,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.errors import ConfigError, ForgedEvent, NoContextError, RunBusy, StepFailed
from noetic_py.testing import ScriptedModel

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def texts(ctx: Context[Any, Any]) -> list[str]:
    return [item.text for item in ctx.items.view(Message)]


# ---------------------------------------------------------------------------------------------------------------- turns


@step
async def again(_: object, ctx: Context) -> str:
    turns.append(ctx.turns)
    return "go on"


turns: list[int] = []


@pytest.mark.clause("000-15a")
async def test_000_15_turns_start_at_zero_and_add_up_over_the_life_of_the_context() -> None:
    turns.clear()
    ctx = Context()
    assert ctx.turns == 0
    flow = again >> call_model() >> again
    async with Harness(model=ScriptedModel("a", "b", "c")) as harness:
        await harness.run(flow, "x", ctx=ctx)
        assert ctx.turns == 1
        await harness.run(flow, "x", ctx=ctx)
        assert ctx.turns == 2
        await harness.run(flow, "x", ctx=Context())
    assert turns == [0, 1, 1, 2, 0, 1]


@pytest.mark.clause("000-15d")
async def test_000_15_a_run_that_breaks_has_had_its_turns() -> None:
    @step
    async def breaks(_: str) -> None:
        raise ValueError

    ctx = Context()
    async with Harness(model=ScriptedModel("a")) as harness:
        with pytest.raises(StepFailed):
            await harness.run(call_model() >> breaks, "x", ctx=ctx)
    assert ctx.turns == 1


@pytest.mark.clause("000-15d")
async def test_000_15_a_spawn_counts_its_own() -> None:
    turns.clear()
    ctx = Context()
    flow = call_model() >> spawn(again >> call_model() >> again) >> again
    async with Harness(model=ScriptedModel("a", "b", "c", "d")) as harness:
        await harness.run(flow, "x", ctx=ctx)
        await harness.run(flow, "x", ctx=ctx)
    assert turns == [0, 1, 1, 0, 1, 2]
    assert ctx.turns == 2


async def rounds(stop: until.Until) -> list[int]:
    """How many model calls each of two runs with one context makes."""
    model = ScriptedModel(*map(str, range(12)))
    ctx = Context()
    made: list[int] = []
    async with Harness(model=model) as harness:
        for _ in range(2):
            before = len(model.requests)
            await harness.run(loop(call_model(), until=stop), "x", ctx=ctx)
            made.append(len(model.requests) - before)
    return made


@pytest.mark.clause("000-15b")
async def test_000_15_a_limit_holds_for_one_run() -> None:
    assert await rounds(until.max_turns(3)) == [3, 3]
    assert await rounds(until.max_turns(3, scope="run")) == [3, 3]


@pytest.mark.clause("000-15c")
async def test_000_15_a_limit_holds_for_the_context() -> None:
    assert await rounds(until.max_turns(3, scope="context")) == [3, 1]
    assert await rounds(until.max_turns(3, scope="context") | until.max_turns(2)) == [2, 1]


@pytest.mark.clause("000-15e")
async def test_000_15_a_run_that_goes_on_in_another_process_knows_the_turns_before_it() -> None:
    broken = [True]

    @step
    async def breaks(_: object, ctx: Context) -> int:
        if broken:
            raise ValueError
        return ctx.turns

    backend, ctx = InMemoryBackend(), Context()
    flow = call_model() >> breaks
    async with Harness(model=ScriptedModel("a", "b"), checkpoints=backend) as harness:
        await harness.run(call_model(), "x", ctx=ctx)
        failed = await harness.run(flow, "y", ctx=ctx, on_error="result")
    assert (failed.status, ctx.turns) == ("failed", 2)
    broken.clear()
    async with Harness(model=ScriptedModel(), checkpoints=backend) as harness:
        assert (await harness.resume(failed.run_id, flow)).value == 2


# ----------------------------------------------------------------------------------------------------------- request id


@pytest.mark.clause("000-23a")
async def test_000_23_a_request_id_goes_with_the_run_apart_from_the_trace(spans: InMemorySpanExporter) -> None:
    seen: list[tuple[str | None, int]] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append((ctx.request_id, ctx.span.get_span_context().trace_id))
        return text

    ctx = Context(request_id="checkout 7")
    async with Harness() as harness:
        await harness.run(look >> spawn(look), "x", ctx=ctx)
        await harness.run(look, "x", ctx=ctx)
        await harness.run(look, "x", ctx=ctx, request_id="another")
        await harness.run(look, "x", request_id="checkout 7")
        await harness.run(look, "x")
    assert [request_id for request_id, _ in seen] == ["checkout 7"] * 3 + ["another", "checkout 7", None]
    traces = [trace_id for _, trace_id in seen]
    assert len(set(traces[:4])) == 1
    assert len(set(traces)) == 3
    assert {span.context.trace_id for span in spans.get_finished_spans() if span.context} == set(traces)
    assert ctx.request_id == "checkout 7"


@pytest.mark.clause("000-23b")
async def test_000_23_a_stored_run_keeps_its_request_id() -> None:
    @step
    async def look(_: str, ctx: Context) -> str | None:
        if fails:
            raise ValueError
        return ctx.request_id

    fails = [True]
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        failed = await harness.run(look, "x", request_id="checkout 7", on_error="result")
        fails.clear()
        assert (await harness.resume(failed.run_id, look)).value == "checkout 7"


# ------------------------------------------------------------------------------------------------------------- children


async def lived() -> Ctx:
    """A context with a conversation, a state, a turn and ids."""
    ctx = Context(thread_id="t", request_id="r")
    ctx.state.put("list", [1]).put("n", 1)
    async with Harness(model=ScriptedModel("answer")) as harness:
        await harness.run(call_model(), "question", ctx=ctx)
    return ctx


@pytest.mark.clause("000-17a")
async def test_000_17_a_copy_has_the_same_items_state_and_turns() -> None:
    ctx = await lived()
    copied = ctx.child(preset="copy")
    assert all(mine is theirs for mine, theirs in zip(copied.items, ctx.items, strict=True))
    assert copied.state == ctx.state
    assert (copied.turns, copied.thread_id, copied.request_id) == (1, "t", "r")
    assert copied.trace == ctx.trace
    assert copied.id != ctx.id


@pytest.mark.clause("000-17b")
async def test_000_17_a_copy_shares_the_values() -> None:
    ctx = await lived()
    copied = ctx.child(preset="copy")
    assert copied.state is not ctx.state
    assert copied.state["list"] is ctx.state["list"]
    ctx.state["list"].append(2)
    assert copied.state["list"] == [1, 2]


@pytest.mark.clause("000-17c")
async def test_000_17_a_copy_is_independent_both_ways() -> None:
    ctx = await lived()
    copied = ctx.child(preset="copy")
    ctx.items.append(Message.user("mine"))
    copied.items.append(Message.user("theirs"))
    ctx.state["n"] = 2
    copied.state["m"] = 3
    assert texts(ctx) == ["question", "answer", "mine"]
    assert texts(copied) == ["question", "answer", "theirs"]
    assert (ctx.state["n"], copied.state["n"]) == (2, 1)
    assert "m" not in ctx.state
    async with Harness(model=ScriptedModel("more")) as harness:
        await harness.run(call_model(), "x", ctx=copied)
    assert (ctx.turns, copied.turns) == (1, 2)


@pytest.mark.clause("000-27a")
async def test_000_27_a_child_takes_over_the_history_and_gets_a_request() -> None:
    ctx = await lived()
    child = ctx.child(request="and then?")
    assert [(item.role, item.text) for item in child.items.view(Message)] == [
        ("user", "question"),
        ("assistant", "answer"),
        ("user", "and then?"),
    ]
    assert texts(ctx) == ["question", "answer"]
    assert (child.turns, child.request_id, child.state) == (0, "r", ctx.state)
    assert child.state is not ctx.state
    model = ScriptedModel("this")
    async with Harness(model=model) as harness:
        await harness.run(call_model(), None, ctx=child)
    assert texts(child) == ["question", "answer", "and then?", "this"]
    assert len(ctx.items) == 2


@pytest.mark.clause("000-27b")
async def test_000_27_items_and_state_are_chosen_separately() -> None:
    ctx = await lived()
    child = ctx.child(items="copy", state="new", request="and then?")
    assert texts(child) == ["question", "answer", "and then?"]
    assert child.state == StateBag()
    assert len(ctx.state) == 2


@pytest.mark.clause("000-28a")
async def test_000_28_a_child_takes_over_the_state_alone() -> None:
    ctx = await lived()
    child = ctx.child(items="new", request="look it up")
    assert texts(child) == ["look it up"]
    assert child.state == ctx.state
    assert child.state is not ctx.state
    assert (child.turns, child.request_id) == (0, "r")
    child.state["n"] = 5
    assert ctx.state["n"] == 1


@pytest.mark.parametrize(("how", "same", "same_values"), [("share", True, True), ("deepcopy", False, False)])
async def test_how_the_state_is_taken_over_can_be_chosen(how: Any, same: bool, same_values: bool) -> None:
    ctx = await lived()
    child = ctx.child(items="new", state=how)
    assert child.state == ctx.state
    assert (child.state is ctx.state) is same
    assert (child.state["list"] is ctx.state["list"]) is same_values


# -------------------------------------------------------------------------------------------------------------- current


@pytest.mark.clause("000-31a")
def test_000_31_a_context_is_the_current_one_for_a_block() -> None:
    ctx = Context()
    with ctx.bind() as bound:
        assert bound is ctx
        assert current_context() is ctx
    assert current_context() is None


@pytest.mark.clause("000-31b")
def test_000_31_nesting_restores_the_outer_one() -> None:
    outer, inner = Context(), Context()
    with outer.bind():
        with inner.bind():
            assert current_context() is inner
        assert current_context() is outer
    assert current_context() is None


@pytest.mark.clause("000-31c")
def test_000_31_nesting_restores_the_outer_one_after_an_error() -> None:
    outer, inner = Context(), Context()
    wrong = ValueError("wrong")
    with outer.bind():
        with pytest.raises(ValueError, match="wrong") as caught, inner.bind():
            raise wrong
        assert caught.value is wrong
        assert current_context() is outer
    assert current_context() is None


@pytest.mark.clause("000-31a")
async def test_000_31_a_run_in_the_block_has_its_own() -> None:
    seen: list[object] = []

    @step
    async def look(_: str, ctx: Context) -> None:
        seen.append(current_context() is ctx)
        with other.bind():
            await inner("x", ctx)
            seen.append(current_context() is other)
        seen.append(current_context() is ctx)

    @step
    async def inner(_: str, ctx: Context) -> None:
        seen.append(current_context() is ctx)

    outside, other = Context(), Context()
    async with Harness() as harness:
        with outside.bind():
            await harness.run(look, "x")
            assert current_context() is outside
    assert seen == [True, True, True, True]


@pytest.mark.clause("000-32a")
async def test_000_32_steps_and_tools_run_with_their_context_as_the_current_one() -> None:
    same: list[bool] = []

    @tool
    async def plain(ctx: Context) -> str:
        """A tool."""
        same.append(current_context() is ctx)
        return "done"

    @tool
    def threaded(ctx: Context) -> str:
        """A tool that runs in a thread."""
        same.append(current_context() is ctx)
        return "done"

    @step
    async def look(_: object, ctx: Context) -> None:
        async def beside() -> None:
            same.append(current_context() is ctx)

        same.append(current_context() is ctx)
        async with anyio.create_task_group() as group:
            group.start_soon(beside)
        same.append(await anyio.to_thread.run_sync(current_context) is ctx)

    model = ScriptedModel([FunctionCall(name="plain"), FunctionCall(name="threaded")], "end")
    agent = loop(call_model(tools=(plain, threaded)), until=until.no_tool_calls())
    async with Harness(model=model) as harness:
        await harness.run(look >> agent, "x")
    assert same == [True] * 5
    assert current_context() is None


@pytest.mark.clause("000-32b")
async def test_000_32_errors_pass_through_unchanged() -> None:
    wrong = ValueError("wrong")
    caught: list[BaseException | None] = []

    @step
    async def breaks(_: str) -> None:
        raise wrong

    @step
    async def body(_: str, ctx: Context) -> None:
        try:
            await breaks("x", ctx)
        except StepFailed as error:
            caught.append(error.__cause__)
        assert current_context() is ctx
        raise wrong

    async with Harness() as harness:
        with pytest.raises(StepFailed) as failed:
            await harness.run(body, "x")
    assert failed.value.__cause__ is wrong
    assert caught == [wrong]
    assert current_context() is None


@pytest.mark.clause("000-33a")
async def test_000_33_the_current_context_can_be_asked_for_anywhere() -> None:
    def deep_below() -> tuple[str, bool]:
        ctx = current_context(required=True)
        return ctx.name, current_context() is ctx

    @step
    async def named(_: str) -> tuple[str, bool]:
        return deep_below()

    async with Harness() as harness:
        assert (await harness.run(named, "x")).value == ("named", True)


@pytest.mark.clause("000-33b")
def test_000_33_outside_a_run_there_is_none() -> None:
    assert current_context() is None
    with pytest.raises(NoContextError):
        current_context(required=True)


# ------------------------------------------------------------------------------------------ what a child keeps


@define
class Counts:
    n: int = 0
    seen: list[str] = field(factory=list[str])


@define
class Needs:
    n: int


def test_a_child_has_a_state_of_the_same_class() -> None:
    ctx = Context(state=Counts(3, ["a"]))
    assert ctx.child().state == Counts(3, ["a"])
    assert ctx.child(state="new").state == Counts()
    with pytest.raises(ConfigError) as caught:
        Context(state=Needs(1)).child(state="new")
    assert caught.value.code == "state-new"


@pytest.mark.parametrize("name", ["preset", "state", "items", "counters", "trace", "session"])
def test_a_child_refuses_what_it_does_not_know(name: str) -> None:
    options: Any = {name: "some"}
    with pytest.raises(ConfigError) as caught:
        Context().child(**options)
    assert caught.value.code == "child-option"


def test_a_child_may_be_a_conversation_of_its_own() -> None:
    ctx = Context(thread_id="t")
    assert ctx.child(session="same").thread_id == "t"
    assert ctx.child(session="new").thread_id != "t"


async def test_a_child_of_a_step_outlives_its_run() -> None:
    made: list[Ctx] = []

    @step
    async def fork(text: str, ctx: Ctx) -> None:
        ctx.state["n"] = 1
        ctx.items.append(Message.user(text))
        made.append(ctx.child(request="more"))

    async with Harness(model=ScriptedModel("answer")) as harness:
        await harness.run(fork, "x")
        (child,) = made
        assert (child.run_id, child.depth, child.parent, child.state["n"]) == ("", 0, None, 1)
        await harness.run(call_model(), None, ctx=child)
    assert texts(child) == ["x", "more", "answer"]


async def test_a_child_lets_no_forged_call_in() -> None:
    ctx = Context()
    ctx.items.append(FunctionCall(name="pay", call_id="c"))
    async with Harness(model=ScriptedModel("answer")) as harness:
        with pytest.raises(ForgedEvent):
            await harness.run(call_model(), None, ctx=ctx.child())


@pytest.mark.clause("000-22d", "000-23c")
async def test_000_23_a_request_id_and_a_trace_are_set_on_a_context_that_is_there() -> None:
    found: list[Any] = []

    @step
    async def look(_: object, ctx: Context) -> None:
        found.append((ctx.request_id, ctx.trace and ctx.trace.trace_id))
        for name in ("request_id", "trace"):
            with pytest.raises(ConfigError, match="is the run's"):
                setattr(ctx, name, None)
            with pytest.raises(RunBusy):
                setattr(outside, name, None)

    outside = Context()
    async with Harness(plugins=[]) as harness:
        for number in (1, 2):
            outside.request_id = f"r{number}"
            outside.trace = Trace(f"{number:032x}", f"{number:016x}")
            await harness.run(look, None, ctx=outside)
    assert found == [("r1", f"{1:032x}"), ("r2", f"{2:032x}")]
