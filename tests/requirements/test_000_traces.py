"""Traces: where a context stands in one, what its runs and its children make of it, and starting over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    StateBag,
    Trace,
    call_model,
    call_tool,
    loop,
    spawn,
    step,
    step_tool,
    until,
)
from noetic_py.errors import ConfigError, ForgedEvent, InvalidId, RunBusy, StepFailed, ToolFailed
from noetic_py.testing import ScriptedModel

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
TRACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
OTHER = "00f067aa0ba902b7"


@step
async def echo(text: str) -> str:
    return text


@step
async def look(_: object, ctx: Context) -> Trace | None:
    return ctx.trace


def texts(ctx: Context[Any, Any]) -> list[str]:
    return [item.text for item in ctx.items.view(Message)]


def recorded(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


# -------------------------------------------------------------------------------------------------------- a run's trace


@pytest.mark.clause("000-21a")
async def test_000_21_a_run_starts_a_trace_when_the_context_has_none() -> None:
    ctx = Context()
    before = ctx.trace
    assert before is None
    async with Harness() as harness:
        seen = (await harness.run(look, None, ctx=ctx)).value
        assert seen is not None
        assert re.fullmatch(r"[0-9a-f]{32}", seen.trace_id)
        assert re.fullmatch(r"[0-9a-f]{16}", seen.span_id)
        # Several runs of one context are one trace, and runs of several are several.
        assert ctx.trace == seen
        assert (await harness.run(look, None, ctx=ctx)).value == seen
        assert ctx.trace == seen
        other = (await harness.run(look, None, ctx=Context())).value
        assert other is not None
        assert other.trace_id != seen.trace_id


@pytest.mark.clause("000-21b")
async def test_000_21_a_run_leaves_a_trace_alone() -> None:
    ctx = Context(trace=TRACE)
    async with Harness() as harness:
        assert (await harness.run(look, None, ctx=ctx)).value == TRACE
        assert (await harness.run(spawn(look), None, ctx=ctx)).value == TRACE
    assert ctx.trace == TRACE


@pytest.mark.clause("000-21c")
def test_000_21_half_a_trace_cannot_be_written_down() -> None:
    half: dict[str, Any] = {"trace_id": TRACE.trace_id}
    with pytest.raises(TypeError):
        Trace(**half)
    with pytest.raises(InvalidId):
        Trace(TRACE.trace_id, "")


@pytest.mark.clause("000-21d")
async def test_000_21_a_run_that_goes_on_in_another_process_goes_on_in_its_trace() -> None:
    fails = True

    @step
    async def second(_: object, ctx: Context) -> Trace | None:
        if fails:
            raise ValueError
        return ctx.trace

    backend = InMemoryBackend()
    for given in (None, TRACE):
        fails = True
        async with Harness(checkpoints=backend) as harness:
            ctx = Context(trace=given)
            with pytest.raises(StepFailed):
                await harness.run(second, None, ctx=ctx, run_id=f"run {given is None}")
            began = ctx.trace
        assert began is not None
        assert given in (None, began)
        fails = False
        async with Harness(checkpoints=backend) as harness:
            assert (await harness.resume(f"run {given is None}", second)).value == began


# -------------------------------------------------------------------------------------------------- one from elsewhere


@pytest.mark.clause("000-22a")
async def test_000_22_a_trace_from_outside_is_continued(spans: InMemorySpanExporter) -> None:
    async with Harness() as harness:
        await harness.run(echo >> spawn(echo, id="child"), "x", ctx=Context(trace=TRACE))
        first = recorded(spans)
        await harness.run(echo, "x", traceparent=TRACE.traceparent)
    runs = [span for span in spans.get_finished_spans() if span.name.startswith("invoke_workflow ")]
    assert len(runs) == 2
    for run in runs:
        assert run.parent is not None
        assert (f"{run.parent.trace_id:032x}", f"{run.parent.span_id:016x}") == (TRACE.trace_id, TRACE.span_id)
        assert run.parent.is_remote
    assert {ids(span)[0] for span in spans.get_finished_spans()} == {TRACE.trace_id}
    inner = first["spawn child"].parent
    assert inner is not None
    assert f"{inner.span_id:016x}" in {ids(span)[1] for span in first.values() if span.name.startswith("sequence ")}


@pytest.mark.clause("000-22a")
async def test_000_22_the_active_span_is_continued(spans: InMemorySpanExporter) -> None:
    from opentelemetry.trace import get_tracer

    ctx = Context()
    async with Harness() as harness:
        with get_tracer("web").start_as_current_span("GET /") as outer:
            inside = (await harness.run(look, None, ctx=ctx)).value
            # What somebody says goes before what happens to be active.
            await harness.run(echo, "x", traceparent=TRACE.traceparent)
    found = recorded(spans)
    assert inside is not None
    assert ids(found["code look"]) == (inside.trace_id, inside.span_id)
    assert f"{outer.get_span_context().trace_id:032x}" == inside.trace_id
    assert ids(found["invoke_workflow echo"])[0] == TRACE.trace_id
    assert ctx.trace is not None
    assert ids(found["invoke_workflow look"]) == (ctx.trace.trace_id, ctx.trace.span_id)


async def test_000_22_later_runs_of_a_context_are_shown_below_the_first(spans: InMemorySpanExporter) -> None:
    ctx = Context()
    async with Harness() as harness:
        await harness.run(echo, "x", ctx=ctx)
        await harness.run(look, None, ctx=ctx)
    found = recorded(spans)
    later = found["invoke_workflow look"].parent
    assert later is not None
    assert (f"{later.trace_id:032x}", f"{later.span_id:016x}") == ids(found["invoke_workflow echo"])


@pytest.mark.clause("000-22c")
def test_000_22_a_header_is_read_and_written() -> None:
    header = f"00-{TRACE.trace_id}-{TRACE.span_id}-01"
    assert Trace.from_traceparent(header) == TRACE
    assert TRACE.traceparent == header
    assert not Trace.from_traceparent(header[:-2] + "00").sampled
    # What later versions of the form put behind is passed over.
    assert Trace.from_traceparent(f"cc-{header[3:]}-what-the-future-will-bring") == TRACE


@pytest.mark.clause("000-22b")
@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE.trace_id}-{TRACE.span_id}",
        f"00-{TRACE.trace_id}-{TRACE.span_id}-01-more",
        f"ff-{TRACE.trace_id}-{TRACE.span_id}-01",
        f"00-{TRACE.trace_id.upper()}-{TRACE.span_id}-01",
        f"00-{TRACE.trace_id[:-1]}-{TRACE.span_id}-01",
        f"00-{'0' * 32}-{TRACE.span_id}-01",
        f"00-{TRACE.trace_id}-{'0' * 16}-01",
        f"00-{TRACE.trace_id}-{TRACE.span_id}-xx",
    ],
)
def test_000_22_what_is_no_trace_is_refused(header: str) -> None:
    with pytest.raises(InvalidId) as caught:
        Trace.from_traceparent(header)
    assert isinstance(caught.value, ValueError)


@pytest.mark.clause("000-22b")
@pytest.mark.parametrize("bad", ["", "0" * 32, "a" * 31, "A" * 32, "g" * 32, 7])
def test_000_22_ids_have_their_form(bad: Any) -> None:
    with pytest.raises(InvalidId):
        Trace(bad, TRACE.span_id)
    with pytest.raises(InvalidId):
        Trace(TRACE.trace_id, bad)


@pytest.mark.clause("000-22b")
async def test_000_22_an_option_that_is_no_trace_is_refused() -> None:
    wrong: Any = TRACE
    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(echo, "x", traceparent=wrong)
        assert caught.value.code == "run-option"
        with pytest.raises(InvalidId):
            await harness.run(echo, "x", traceparent="00-0-0-0")


@pytest.mark.clause("000-02b", "000-24a", "000-24b")
async def test_000_24_trace_parent_span_and_request_id_can_be_read() -> None:
    ctx = Context(trace=TRACE, request_id="r")
    assert ctx.trace is not None
    assert (ctx.trace.trace_id, ctx.trace.span_id, ctx.request_id) == (TRACE.trace_id, TRACE.span_id, "r")
    assert (Context().trace, Context().request_id) == (None, None)
    back = Context.restore(ctx.snapshot())
    assert (back.trace, back.request_id) == (TRACE, "r")
    linked = ctx.child(trace="link")
    assert Context.restore(linked.snapshot()).trace == linked.trace


def test_000_25_a_context_says_whether_it_has_a_trace() -> None:
    assert Context().trace is None
    assert Context(trace=TRACE).trace is not None


# ------------------------------------------------------------------------------------------------------------ children


async def lived(trace: Trace | None = TRACE) -> Ctx:
    """A context with a conversation, a state, a turn and ids."""
    ctx = Context(thread_id="t", request_id="r", trace=trace)
    ctx.state.put("n", 1)
    async with Harness(model=ScriptedModel("answer")) as harness:
        await harness.run(call_model(), "question", ctx=ctx)
    return ctx


@pytest.mark.clause("000-26a", "000-26b")
async def test_000_26_a_fork_is_a_copy_with_turns_at_zero_and_a_new_parent_span() -> None:
    ctx = await lived()
    child = ctx.child(preset="fork", parent_span=OTHER)
    assert child.trace == Trace(TRACE.trace_id, OTHER)
    assert (child.turns, ctx.turns) == (0, 1)
    assert list(child.items) == list(ctx.items)
    assert child.state == ctx.state
    assert child.state is not ctx.state
    assert (child.thread_id, child.request_id) == ("t", "r")
    assert ctx.trace == TRACE
    with pytest.raises(InvalidId):
        ctx.child(preset="fork", parent_span="")


@pytest.mark.clause("000-26c")
def test_000_26_a_fork_of_a_context_without_a_trace_begins_one_with_the_span() -> None:
    child = Context().child(preset="fork", parent_span=OTHER)
    assert child.trace is not None
    assert child.trace.span_id == OTHER


@pytest.mark.clause("000-26b")
async def test_000_26_a_fork_of_a_step_is_in_the_runs_trace(spans: InMemorySpanExporter) -> None:
    forked: list[Ctx] = []

    @step
    async def fork(_: object, ctx: Ctx) -> None:
        forked.append(ctx.child(preset="fork", parent_span=f"{ctx.span.get_span_context().span_id:016x}"))

    async with Harness() as harness:
        await harness.run(fork, None, traceparent=TRACE.traceparent)
        await harness.run(echo, "x", ctx=forked[0])
    found = recorded(spans)
    below = found["invoke_workflow echo"].parent
    assert below is not None
    assert (f"{below.trace_id:032x}", f"{below.span_id:016x}") == ids(found["code fork"])
    assert ids(found["invoke_workflow echo"])[0] == TRACE.trace_id


@pytest.mark.clause("000-27c")
async def test_000_27_history_mode_makes_a_new_span_in_the_trace() -> None:
    ctx = await lived()
    child = ctx.child(request="and then?")
    assert child.trace is not None
    assert child.trace.trace_id == TRACE.trace_id
    assert child.trace.span_id != TRACE.span_id
    assert ctx.child(request="x").trace != child.trace


@pytest.mark.clause("000-28b")
async def test_000_28_state_mode_makes_a_new_span_only_where_there_is_a_trace() -> None:
    child = (await lived()).child(items="new", request="look")
    assert child.trace is not None
    assert (child.trace.trace_id, child.request_id) == (TRACE.trace_id, "r")
    assert child.trace.span_id != TRACE.span_id
    assert Context().child(items="new", request="look").trace is None


@pytest.mark.clause("000-29a", "000-29b")
async def test_000_29_an_isolated_child_has_nothing() -> None:
    ctx = await lived()
    child = ctx.child(preset="isolated", request="look")
    assert texts(child) == ["look"]
    assert (child.trace, child.request_id, child.turns, len(child.state)) == (None, None, 0, 0)
    assert child.thread_id != "t"
    # Without the preset the trace is chosen for itself.
    kept = ctx.child(items="new", state="new", request="look")
    assert kept.trace is not None
    assert (kept.trace.trace_id, kept.request_id) == (TRACE.trace_id, "r")
    assert ctx.child(items="new", state="new", trace="new").trace is None


@pytest.mark.clause("000-27d")
@pytest.mark.parametrize("share_history", [True, False])
@pytest.mark.parametrize("share_state", [True, False])
async def test_000_27_28_29_the_truth_table_of_the_document(share_state: bool, share_history: bool) -> None:
    ctx = await lived()
    if share_history:
        # What is said of the state is not heard then.
        child = ctx.child(preset="fork", request="go")
    elif share_state:
        child = ctx.child(preset="fork", items="new", request="go")
    else:
        child = ctx.child(preset="isolated", request="go")
    assert texts(child) == (["question", "answer", "go"] if share_history else ["go"])
    assert ("n" in child.state) is (share_history or share_state)
    assert (child.trace is not None) is (share_history or share_state)
    assert (child.request_id == "r") is (share_history or share_state)
    assert child.turns == 0


async def test_a_linked_child_begins_a_trace_of_its_own(spans: InMemorySpanExporter) -> None:
    ctx = await lived()
    child = ctx.child(trace="link")
    assert child.trace is not None
    assert child.trace.trace_id != TRACE.trace_id
    assert child.trace.link == TRACE
    spans.clear()
    async with Harness() as harness:
        await harness.run(echo, "x", ctx=child)
    (link,) = recorded(spans)["invoke_workflow echo"].links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE.trace_id, TRACE.span_id)
    assert ids(recorded(spans)["invoke_workflow echo"])[0] == child.trace.trace_id


def test_a_span_is_at_odds_with_a_trace_that_makes_none() -> None:
    for how in ("same", "link", "new"):
        with pytest.raises(ConfigError) as caught:
            Context().child(trace=how, parent_span=OTHER)
        assert caught.value.code == "child-option"


@pytest.mark.clause("000-30a")
async def test_000_30_a_request_may_be_empty() -> None:
    assert texts(Context().child(request="")) == [""]
    assert texts(Context().child()) == []


@pytest.mark.clause("000-30b")
async def test_000_30_a_step_as_a_tool_answers_an_empty_one_with_an_error() -> None:
    ran: list[str] = []

    @step
    async def research(text: str) -> str:
        ran.append(text)
        return f"found {text}"

    ask = step_tool(research, name="research", description="Look something up.")
    calls = [FunctionCall(name="research", arguments={"input": text}) for text in ("", "  ", "tides")]
    agent = loop(call_model(tools=(ask,)), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(calls, "done")) as harness:
        result = await harness.run(agent, "go")
        outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
        assert outputs == ["The request cannot be empty."] * 2 + ["found tides"]
        assert ran == ["tides"]
        # A program that calls it gets the error as one.
        with pytest.raises(ToolFailed, match="cannot be empty"):
            await harness.run(call_tool(ask, args={"input": ""}), None)


# -------------------------------------------------------------------------------------------------------- starting over


@pytest.mark.clause("000-16a", "000-16b")
async def test_000_16_items_state_and_turns_start_over() -> None:
    ctx = await lived()
    before, state = ctx.items.frozen(), ctx.state
    assert ctx.turns == 1
    ctx.reset()
    assert (len(ctx.items), dict(ctx.state.view()), ctx.turns) == (0, {}, 0)
    assert (ctx.trace, ctx.request_id, ctx.thread_id) == (TRACE, "r", "t")
    # Whoever holds the state or has looked at the items goes on holding them.
    assert ctx.state is state
    assert [item.text for item in before.view(Message)] == ["question", "answer"]
    async with Harness(model=ScriptedModel("new")) as harness:
        await harness.run(call_model(), "again", ctx=ctx)
    assert (texts(ctx), ctx.turns) == (["again", "new"], 1)


@pytest.mark.clause("000-16b")
async def test_000_16_trace_and_request_id_start_over_when_asked() -> None:
    ctx = await lived()
    ctx.reset(trace=True)
    assert (ctx.trace, ctx.request_id, ctx.thread_id) == (None, None, "t")


@pytest.mark.clause("000-16c")
async def test_000_16_what_a_run_had_made_is_no_longer_trusted() -> None:
    ctx = await lived()
    ctx.reset()
    ctx.items.append(FunctionCall(name="pay", call_id="c"))
    async with Harness(model=ScriptedModel("x")) as harness:
        with pytest.raises(ForgedEvent):
            await harness.run(call_model(), None, ctx=ctx)


@define
class Trip:
    port: str = "Brest"
    days: list[int] = field(factory=list[int])


@define
class Needs:
    n: int


@pytest.mark.clause("000-16a")
async def test_000_16_a_typed_state_starts_over_as_its_class_makes_it() -> None:
    ctx = Context(state=Trip("Calais", [1]))
    state = ctx.state
    ctx.reset()
    assert ctx.state is state
    assert state == Trip()
    held = Context(state=Needs(1), items=[Message.user("kept")])
    with pytest.raises(ConfigError) as caught:
        held.reset()
    assert caught.value.code == "state-new"
    assert (texts(held), held.state) == (["kept"], Needs(1))


@pytest.mark.clause("000-16d")
async def test_000_16_a_context_in_a_run_does_not_start_over() -> None:
    outer = Context()

    @step
    async def reset(_: object, ctx: Context) -> None:
        with pytest.raises(ConfigError) as caught:
            ctx.reset()
        assert caught.value.code == "running"
        with pytest.raises(RunBusy):
            outer.reset()

    async with Harness() as harness:
        await harness.run(reset, None, ctx=outer)
    outer.reset()
