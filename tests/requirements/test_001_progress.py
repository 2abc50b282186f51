"""Rows 001-07, 08, 14 and 34 to 37: what steps leave of how far they have come, for whoever goes on with the run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    JsonValue,
    Step,
    call_model,
    every,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]
Left = dict[str, tuple[JsonValue, bool]]


def left(ctx: Context[Any, Any]) -> Left:
    """What there is of all steps of the run, by their paths."""
    return {"/".join(path): (entry.value, entry.done) for path, entry in ctx.progress.entries.items()}


async def run(flow: AnyStep, value: Any = "x") -> Any:
    async with Harness(plugins=()) as harness:
        return (await harness.run(flow, value)).value


@pytest.mark.clause("001-07a", "001-07b")
async def test_001_07_progress_is_keyed_by_the_step_s_path_and_shared_by_the_whole_tree() -> None:
    found: list[Left] = []
    set_by_first = anyio.Event()

    @step
    async def work(value: str, ctx: Context) -> str:
        # Another step of the same name has left something, and not here.
        assert ctx.progress.value is None
        ctx.progress.set(value)
        return value

    @step
    async def first(value: str, ctx: Context) -> str:
        ctx.progress.set({"from": "first"})
        set_by_first.set()
        return value

    @step
    async def second(value: str, ctx: Context) -> str:
        await set_by_first.wait()
        ctx.progress.set(ctx.progress.at(("flow", "both", "first[0]")).value)
        return value

    @tool
    async def note(ctx: Context) -> str:
        """Leave a note."""
        ctx.progress.at(("flow",)).set("from a tool")
        return "noted"

    @step
    async def last(_: object, ctx: Context) -> None:
        found.append(left(ctx))

    model = ScriptedModel([FunctionCall(name="note", arguments={})], "done")
    agent: Any = loop(call_model(model, tools=[note]), until=until.no_tool_calls(), id="agent")
    both: Any = parallel([first, second], merge=lambda results, ctx: "x", id="both")
    child: Any = spawn(sequence(work, id="inside"), id="child")
    await run(sequence(work, child, both, agent, last, id="flow"))
    assert found == [
        {
            "flow/work": ("x", False),
            "flow/child/inside/work": ("x", False),
            "flow/both/first[0]": ({"from": "first"}, False),
            "flow/both/second[1]": ({"from": "first"}, False),
            "flow": ("from a tool", False),
        }
    ]


@pytest.mark.clause("001-07c")
@pytest.mark.parametrize(("when", "found"), [("before", 1), ("after", 2)])
async def test_001_07_whoever_resumes_the_run_finds_what_was_committed(when: Any, found: int) -> None:
    began: list[JsonValue] = []

    @step
    async def copy(pages: int, ctx: Context) -> int:
        began.append(ctx.progress.value)
        for page in range(ctx.progress.get_as(int) or 0, pages):
            ctx.progress.set(page + 1)
            await ctx.checkpoint()
        ctx.progress.finish()
        return pages

    backend = FaultyBackend(InMemoryBackend(), dies_at=3, when=when)
    with backend.outlived():
        async with Harness(plugins=(), checkpoints=backend) as harness:
            await harness.run(copy, 4, run_id="r")
    backend.revive()
    async with Harness(plugins=(), checkpoints=backend) as harness:
        # Seen from any process, without the flow.
        assert {path: entry.value for path, entry in (await harness.runs.progress("r")).items()} == {("copy",): found}
        assert (await harness.resume("r", copy)).value == 4
        assert [entry.done for entry in (await harness.runs.progress("r")).values()] == [True]
    assert began == [None, found]


@pytest.mark.clause("001-07b")
async def test_001_07_a_derived_context_shares_the_map_at_a_place_of_its_own() -> None:
    @step
    async def body(_: str, ctx: Context) -> None:
        child = ctx.child(preset="derive", name="child")
        child.progress.set("child")
        ctx.progress.set("body")
        assert left(ctx) == left(child) == {"body/child": ("child", False), "body": ("body", False)}
        ctx.progress.reset_children()
        assert child.progress.value is None

    await run(body)


@pytest.mark.clause("001-08a", "001-08b")
async def test_001_08_a_step_that_is_done_does_not_end_the_loop_around_it() -> None:
    rounds: list[tuple[str, bool]] = []

    @step
    async def work(value: str, ctx: Context) -> str:
        ctx.progress.finish()
        ctx.progress.at(ctx.path[:-1]).finish()
        rounds.append((ctx.path[-1], ctx.progress.done))
        return value

    @step
    async def escalates(value: str, ctx: Context) -> str:
        await work(value, ctx)
        ctx.stop_loop()
        return value

    def around(body: AnyStep) -> AnyStep:
        return loop(body, until=until.max_rounds(3), id="rounds")

    assert await run(around(work)) == "x"
    assert rounds == [("work[0]", True), ("work[1]", True), ("work[2]", True)]
    rounds.clear()
    # Unlike being done, asking the loop to end does end it.
    await run(around(escalates))
    assert rounds == [("work", True)]


@pytest.mark.clause("001-14a", "001-14b")
async def test_001_14_a_context_names_its_place_and_progress_below_it_can_be_reset() -> None:
    found: list[Left] = []

    @step
    async def work(value: str, ctx: Context) -> str:
        ctx.progress.set(ctx.path[-1])
        return value

    @step
    async def parent(value: str, ctx: Context) -> str:
        assert ctx.path == ctx.progress.path == ("flow", "parent")
        ctx.progress.set("parent")
        await sequence(work, work, id="inner")(value, ctx)
        before = left(ctx)
        # Nobody runs there: nothing happens, and nothing is said.
        ctx.progress.at(("flow", "nobody")).reset_children()
        ctx.progress.at(()).at(("nowhere",)).reset_children()
        assert left(ctx) == before
        ctx.progress.reset_children()
        found.append(left(ctx))
        return value

    await run(sequence(work, parent, id="flow"))
    assert found == [{"flow/work": ("work", False), "flow/parent": ("parent", False)}]


@pytest.mark.clause("001-34a", "001-34b")
@pytest.mark.parametrize("value", [{}, [], "", 0, False, {"page": 3}])
async def test_001_34_a_value_is_kept_as_it_is_and_an_empty_one_counts(value: JsonValue) -> None:
    @step
    async def body(_: str, ctx: Context) -> None:
        assert (ctx.progress.value, ctx.progress.done, left(ctx)) == (None, False, {})
        ctx.progress.finish()
        ctx.progress.set(value)
        assert ctx.progress.value == value
        assert ctx.progress.value is not None
        assert not ctx.progress.done
        assert left(ctx) == {"body": (value, False)}

    await run(body)


@pytest.mark.clause("001-35a", "001-35b")
@pytest.mark.parametrize("set_before", [False, True])
async def test_001_35_finishing_removes_the_value_and_wins_over_one(set_before: bool) -> None:
    @step
    async def body(_: str, ctx: Context) -> None:
        if set_before:
            ctx.progress.set({"page": 3})
        ctx.progress.finish()
        assert (ctx.progress.value, ctx.progress.done) == (None, True)

    backend = InMemoryBackend()
    async with Harness(plugins=(), checkpoints=backend) as harness:
        await harness.run(body, "x", run_id="r")
        # In one commit with a value too.
        [(path, entry)] = (await harness.runs.progress("r")).items()
    assert (path, entry.value, entry.done) == (("body",), None, True)


@pytest.mark.clause("001-36a", "001-36b")
async def test_001_36_clearing_removes_both_and_nothing_there_is_no_error() -> None:
    @step
    async def body(_: str, ctx: Context) -> None:
        ctx.progress.clear()
        ctx.progress.set({"page": 3})
        ctx.progress.clear()
        assert (ctx.progress.value, ctx.progress.done, left(ctx)) == (None, False, {})
        ctx.progress.finish()
        ctx.progress.clear()
        assert (ctx.progress.value, ctx.progress.done, left(ctx)) == (None, False, {})
        ctx.progress.at(("another",)).clear()

    await run(body)


@pytest.mark.clause("001-37a")
async def test_001_37_everything_below_is_reset_and_not_the_step_itself() -> None:
    found: list[Left] = []

    @step
    async def leaf(value: str, ctx: Context) -> str:
        ctx.progress.finish()
        return value

    @step
    async def middle(value: str, ctx: Context) -> str:
        ctx.progress.set("middle")
        return await leaf(value, ctx)

    @step
    async def top(value: str, ctx: Context) -> str:
        ctx.progress.set("top")
        return await middle(value, ctx)

    @step
    async def last(_: str, ctx: Context) -> None:
        ctx.progress.at(("flow", "top")).reset_children()
        found.append(left(ctx))
        # A name that begins with another one's is not below that.
        ctx.progress.at(("flow", "to")).reset_children()
        assert left(ctx) == found[0]

    await run(sequence(leaf, top, last, id="flow"))
    assert found == [{"flow/leaf": (None, True), "flow/top": ("top", False)}]


@pytest.mark.clause("001-37b")
async def test_001_37_a_loop_resets_between_its_rounds_not_before_the_first_and_not_after_the_last() -> None:
    found: list[Left] = []

    @step
    async def deep(value: str, ctx: Context) -> str:
        ctx.progress.finish()
        return value

    @step
    async def work(value: str, ctx: Context) -> str:
        found.append(left(ctx))
        ctx.progress.set("work")
        await deep(value, ctx)
        ctx.progress.at(("flow", "rounds")).set(len(found))
        return value

    @step
    async def first(value: str, ctx: Context) -> str:
        ctx.progress.at(("flow", "rounds", "work[0]", "hint")).set("waits there")
        return value

    @step
    async def last(_: str, ctx: Context) -> None:
        found.append(left(ctx))

    rounds: Any = loop(work, until=until.max_rounds(2), id="rounds")
    await run(sequence(first, rounds, last, id="flow"))
    assert found == [
        {"flow/rounds/work[0]/hint": ("waits there", False)},
        {"flow/rounds": (1, False)},
        {
            "flow/rounds": (2, False),
            "flow/rounds/work[1]": ("work", False),
            "flow/rounds/work[1]/deep": (None, True),
        },
    ]


@pytest.mark.clause("001-37c")
async def test_001_37_a_schedule_resets_between_its_times() -> None:
    found: list[Left] = []
    clock = VirtualRuntime()

    @step
    async def tick(_: None, ctx: Context) -> None:
        found.append(left(ctx))
        ctx.progress.set(len(found))
        if len(found) == 2:
            ctx.stop_loop()

    @step
    async def last(_: None, ctx: Context) -> None:
        found.append(left(ctx))

    flow: Any = sequence(every(10.0, tick, id="ticks"), last, id="flow")
    async with Harness(plugins=(), runtime=clock) as harness:
        handle = harness.start(flow, "x")
        await clock.advance(10)
        await handle.result()
    assert found == [{}, {}, {"flow/ticks/tick[1]": (2, False)}]
