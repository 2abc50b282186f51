"""`ctx.progress`: what steps leave of how far they have come, who sees it, and what makes it void."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    JsonValue,
    ReadContext,
    Retry,
    branch,
    call_model,
    errors,
    every,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.core.events import ProgressSet
from noetic_py.core.progress import Progress, ProgressEntry, ReadProgress
from noetic_py.core.types import OnError
from noetic_py.engine.progress import MAX_ENTRIES
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.progressing import AnyStep, by_name, noting, plain, rounds

pytestmark = pytest.mark.anyio


async def run(flow: AnyStep, value: Any = 1, **options: Any) -> Any:
    """Run a flow on a harness that keeps nothing."""
    async with Harness(plugins=()) as made:
        runs: Any = made.run
        return await runs(flow, value, **options)


# ------------------------------------------------------------------------------------------------------- one entry


@pytest.mark.parametrize("value", [{}, [], "", 0, 0.0, False, {"page": [1, {"a": None}]}, "x", 7])
async def test_a_value_is_there_until_another_one_is(value: JsonValue) -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        progress = ctx.progress
        assert (progress.path, progress.value, progress.done, dict(progress.entries)) == (ctx.path, None, False, {})
        progress.set(value)
        assert (progress.value, progress.done) == (value, False)
        assert ctx.progress.entries == {("body",): ProgressEntry(value)}
        progress.set("another")
        assert progress.value == "another"

    await run(body)


async def test_what_is_left_is_sent_as_events_with_the_source_of_the_step() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        pages: list[JsonValue] = [1]
        ctx.progress.set(pages)
        pages.append(2)
        ctx.progress.finish()

    async with Harness(plugins=()) as made, made.stream(spawn(body), 1) as stream:
        found = [event async for event in stream.select(ProgressSet)]
    assert [(event.path[-1], event.value, event.done, event.depth) for event in found] == [
        ("body", [1], False, 1),
        ("body", None, True, 1),
    ]


async def test_null_is_a_value_too_although_no_value_looks_like_it() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        ctx.progress.set(None)
        assert (ctx.progress.value, ctx.progress.done) == (None, False)
        assert plain(ctx.progress.entries) == {("body",): (None, False)}

    await run(body)


async def test_a_value_is_what_it_was_when_it_was_set_whatever_is_done_to_the_objects() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        value: dict[str, JsonValue] = {"pages": [1]}
        ctx.progress.set(value)
        shown: Any = [value, ctx.progress.value, ctx.progress.entries[ctx.path].value, ctx.progress.get_as(dict)]
        for each in shown:
            each["pages"].append(2)
        assert ctx.progress.value == {"pages": [1]}
        assert len(ctx.progress.entries) == 1
        assert repr(ctx.progress.entries) == repr({ctx.path: ProgressEntry({"pages": [1]})})

    await run(body)


async def test_a_finished_step_has_no_value_and_one_that_sets_a_value_again_is_not_finished() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        progress = ctx.progress
        progress.set(1)
        progress.finish()
        progress.finish()
        assert (progress.value, progress.done) == (None, True)
        progress.set(2)
        assert (progress.value, progress.done) == (2, False)
        progress.finish()
        progress.clear()
        progress.clear()
        assert (progress.value, progress.done, dict(progress.entries)) == (None, False, {})

    await run(body)


async def test_a_value_is_asked_for_as_a_type() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        assert ctx.progress.get_as(int) is None
        ctx.progress.set(3)
        assert ctx.progress.get_as(int) == 3
        with pytest.raises(errors.StateTypeError, match="the progress is int, not str") as told:
            ctx.progress.get_as(str)
        assert told.value.path == ("body",)

    await run(body)


async def test_how_a_handle_looks() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        assert repr(ctx.progress) == "Progress(body: nothing)"
        ctx.progress.set({"page": 1})
        assert repr(ctx.progress) == "Progress(body: {'page': 1})"
        ctx.progress.finish()
        assert repr(ctx.read_only().progress) == "ReadProgress(body: done)"

    await run(body)


BAD: list[tuple[Any, str]] = [
    ((1, 2), r"progress: a builtins\.tuple is not valid JSON"),
    ({"a": [1, {2}]}, r"progress\['a'\]\[1\]: a builtins\.set is not valid JSON"),
    ({1: 2}, r"progress\[1\]: a builtins\.int is not valid JSON"),
    (float("inf"), r"progress: inf is not valid JSON"),
    ([float("nan")], r"progress\[0\]: nan is not valid JSON"),
    (object(), r"progress: a builtins\.object is not valid JSON"),
]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("value", "told"), BAD)
async def test_what_is_no_json_is_refused_and_changes_nothing(value: Any, told: str, durable: bool) -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        ctx.progress.set("before")
        with pytest.raises(errors.CodecError, match=told) as refused:
            ctx.progress.set(value)
        assert refused.value.path == ("body",)
        assert ctx.progress.value == "before"

    async with Harness(plugins=(), checkpoints=InMemoryBackend() if durable else None) as made:
        await made.run(body, 1, run_id="r")
        if durable:
            assert plain(await made.runs.progress("r")) == {("body",): ("before", False)}


async def test_what_is_nested_too_deep_too_long_or_no_text_is_refused() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    ring: list[Any] = []
    ring.append(ring)

    @step
    async def body(_: int, ctx: Context) -> None:
        for value in (deep, ring):
            with pytest.raises(errors.LimitExceeded, match="nesting is limited to 64"):
                ctx.progress.set(value)
        with pytest.raises(errors.LimitExceeded, match="progress size is limited to 1048576") as told:
            ctx.progress.set("x" * 2**20)
        assert told.value.path == ("body",)
        with pytest.raises(errors.CodecError, match="surrogates"):
            ctx.progress.set("\ud800\udc00")
        assert not ctx.progress.entries
        ctx.progress.set("x" * (2**20 - 20))

    backend = InMemoryBackend()
    async with Harness(plugins=(), checkpoints=backend) as made:
        await made.run(body, 1, run_id="r")
        found = await made.runs.progress("r")
    assert len(str(found[("body",)].value)) == 2**20 - 20


async def test_only_so_many_steps_may_leave_something() -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        for number in range(MAX_ENTRIES):
            ctx.progress.at(("x", f"y[{number}]")).finish()
        with pytest.raises(errors.LimitExceeded, match="progress entries is limited to 100000"):
            ctx.progress.set(1)
        ctx.progress.at(("x", "y[7]")).set("another")
        ctx.progress.at(("x",)).reset_children()
        ctx.progress.set(1)

    await run(body)


# ------------------------------------------------------------------------------------------------------- where


def acts(progress: Progress) -> list[Callable[[], None]]:
    """All that changes something."""
    return [partial(progress.set, 2), progress.finish, progress.clear, progress.reset_children]


def test_outside_of_a_run_there_is_nothing_and_nothing_can_be_left() -> None:
    ctx: Context[Any, Any] = Context()
    assert (ctx.progress.path, ctx.progress.value, ctx.progress.done, dict(ctx.progress.entries)) == (
        (), None, False, {},
    )  # fmt: skip
    assert ctx.read_only().progress.get_as(int) is None
    for act in acts(ctx.progress):
        with pytest.raises(errors.NoContextError, match="progress needs a run"):
            act()


@pytest.mark.parametrize("durable", [False, True])
async def test_when_the_run_is_over_it_can_be_read_only(durable: bool) -> None:
    handles: list[Progress] = []

    @step
    async def body(_: int, ctx: Context) -> None:
        ctx.progress.set(1)
        handles.append(ctx.progress)

    async with Harness(plugins=(), checkpoints=InMemoryBackend() if durable else None) as made:
        await made.run(body, 1)
        handle = handles[0]
        for act in acts(handle):
            with pytest.raises(errors.ConfigError, match="the run is over") as told:
                act()
            assert told.value.code == "not-running"
        assert handle.value == 1


@pytest.mark.parametrize("path", ["body", ("body", 1), None, 3, {"a": 1}])
async def test_what_is_no_path_is_refused(path: Any) -> None:
    @step
    async def body(_: int, ctx: Context) -> None:
        for progress in (ctx.progress, ctx.read_only().progress):
            with pytest.raises(errors.ConfigError, match="is not a valid path of a step") as told:
                progress.at(path)
            assert told.value.code == "progress-path"

    await run(body)


async def test_steps_of_one_name_do_not_share_an_entry() -> None:
    @step
    async def work(number: int, ctx: Context) -> int:
        assert ctx.progress.value is None
        ctx.progress.set(number)
        return number + 1

    @step
    async def twice(number: int, ctx: Context) -> int:
        return await work(await work(number, ctx), ctx)

    seen: list[Any] = []

    @step
    async def last(_: object, ctx: Context) -> None:
        seen.extend(sorted(("/".join(path), entry.value) for path, entry in ctx.progress.entries.items()))

    await run(sequence(work, twice, parallel([work, work], id="both"), last, id="flow"))
    assert seen == [
        ("flow/both/work[0]", 4), ("flow/both/work[1]", 4),
        ("flow/twice/work", 2), ("flow/twice/work#1", 3), ("flow/work", 1),
    ]  # fmt: skip


async def test_what_a_path_has_left_its_siblings_see_at_once() -> None:
    seen: list[Any] = []
    begun, met = anyio.Event(), anyio.Event()

    @step
    async def first(value: int, ctx: Context) -> int:
        ctx.progress.set("one")
        begun.set()
        await met.wait()
        seen.append(by_name(ctx.progress.entries))
        return value

    @step
    async def second(value: int, ctx: Context) -> int:
        await begun.wait()
        seen.append(by_name(ctx.progress.entries))
        ctx.progress.set("two")
        met.set()
        return value

    await run(parallel([first, second]))
    assert seen == [{"first[0]": "one"}, {"first[0]": "one", "second[1]": "two"}]


async def test_spawns_detached_work_tools_and_steps_as_tools_share_the_map() -> None:
    seen: list[Any] = []

    @step
    async def below(value: str, ctx: Context) -> str:
        seen.append(by_name(ctx.progress.entries))
        ctx.progress.set(f"in {ctx.depth}")
        return value

    @tool
    def in_thread(ctx: Context) -> str:
        """Leave something from a thread."""
        ctx.progress.set("from a thread")
        return told(ctx)

    @tool
    async def in_loop(ctx: Context) -> str:
        """Leave something."""
        ctx.progress.set("from a tool")
        return told(ctx)

    def told(ctx: Context) -> str:
        # What is left in a round is forgotten with it.
        ctx.progress.at((*ctx.path[:1], *ctx.path[-1:])).set(ctx.progress.value)
        return str(ctx.progress.at(("body",)).value)

    as_tool = step_tool(below, name="below", description="Do something below.")
    calls = [FunctionCall(name=name, arguments=given) for name, given in CALLS]
    model = ScriptedModel(calls, "done")
    agent: Any = loop(call_model(model, tools=[in_thread, in_loop, as_tool]), until=until.no_tool_calls(), id="agent")

    @step
    async def body(value: str, ctx: Context) -> str:
        ctx.progress.set("body")
        await spawn(below, id="child")(value, ctx)
        await ctx.spawn_detached(below, value).wait()
        await agent(value, ctx)
        seen.append(sorted(str(entry.value) for entry in ctx.progress.entries.values()))
        return value

    await run(body, "x")
    assert seen[0] == {"body": "body"}
    assert seen[1] == {"body": "body", "below": "in 1"}
    assert {"in 1", "body"} <= set(seen[2].values())
    assert seen[3] == ["body", "from a thread", "from a tool", "in 1", "in 1"]
    outputs = [item.output for item in model.requests[1].items if isinstance(item, FunctionCallOutput)]
    assert outputs == ["body", "body", "y"]


CALLS: list[tuple[str, Any]] = [("in_thread", {}), ("in_loop", {}), ("below", {"input": "y"})]


async def test_a_route_reads_it_and_cannot_change_it() -> None:
    @step
    async def before(value: int, ctx: Context) -> int:
        ctx.progress.finish()
        return value

    def route(_: int, ctx: ReadContext[Any, Any]) -> str:
        progress = ctx.progress
        assert type(progress) is type(progress.at(("x",))) is ReadProgress
        assert (progress.path, progress.value, progress.done) == (("flow", "chosen"), None, False)
        assert not hasattr(progress, "set")
        return "yes" if progress.at(("flow", "before")).done else "no"

    cases: dict[str, AnyStep] = {"yes": noting([], "yes"), "no": noting([], "no")}
    chosen: AnyStep = branch(route, cases, id="chosen")
    seen: list[Any] = []
    await run(sequence(before, chosen, noting(seen), id="flow"))
    assert seen == [{"before": True}]


async def test_a_live_view_goes_on_with_the_run() -> None:
    @step
    async def child(value: int, ctx: Context) -> int:
        ctx.progress.set(value)
        return value

    @step
    async def parent(value: int, ctx: Context) -> None:
        entries, mine = ctx.progress.entries, ctx.progress.at((*ctx.path, "child"))
        await child(value, ctx)
        assert plain(entries) == {("parent", "child"): (1, False)}
        assert mine.value == 1
        changed: Any = entries
        with pytest.raises(TypeError):
            changed["x"] = 1
        mine.reset_children()
        assert mine.value == 1
        ctx.progress.reset_children()
        assert not entries

    await run(parent)


# ------------------------------------------------------------------------------------------------- what makes it void


async def test_a_retry_forgets_what_is_left_of_the_step_and_below_it_and_nothing_else() -> None:
    attempts: list[Any] = []
    seen: list[Any] = []

    @step
    async def child(value: int, ctx: Context) -> int:
        ctx.progress.set("child")
        return value

    @step(retry=Retry(3, initial=0))
    async def body(value: int, ctx: Context) -> int:
        attempts.append(by_name(ctx.progress.entries))
        ctx.progress.set("body")
        await child(value, ctx)
        ctx.progress.at(("elsewhere",)).set(len(attempts))
        if len(attempts) < 3:
            raise ValueError
        return value

    @step
    async def before(value: int, ctx: Context) -> int:
        ctx.progress.finish()
        return value

    await run(sequence(before, body, noting(seen), id="flow"))
    assert attempts == [{"before": True}, {"before": True, "elsewhere": 1}, {"before": True, "elsewhere": 2}]
    assert seen == [{"before": True, "elsewhere": 3, "body": "body", "child": "child"}]


async def test_what_has_failed_for_good_keeps_what_it_left() -> None:
    seen: list[Any] = []

    @step
    async def bad(_: int, ctx: Context) -> int:
        ctx.progress.set("so far")
        raise ValueError

    await run(sequence(settle([bad], id="tried"), noting(seen), id="flow"))
    assert seen == [{"bad[0]": "so far"}]


async def test_a_race_forgets_what_its_losers_left() -> None:
    seen: list[Any] = []
    under_way = anyio.Event()

    @step
    async def below(value: int, ctx: Context) -> int:
        ctx.progress.set("below")
        return value

    @step
    async def slow(value: int, ctx: Context) -> int:
        ctx.progress.set("slow")
        await below(value, ctx)
        under_way.set()
        await anyio.sleep_forever()
        return value

    @step
    async def quick(value: int, ctx: Context) -> int:
        await under_way.wait()
        ctx.progress.set("quick")
        return await below(value, ctx)

    await run(sequence(race([slow, quick], id="either"), noting(seen), id="flow"))
    assert seen == [{"quick[1]": "quick", "below": "below"}]


async def test_a_failed_section_keeps_what_its_paths_left() -> None:
    seen: list[Any] = []

    @step
    async def bad(_: int, ctx: Context) -> int:
        await under_way.wait()
        ctx.progress.set("bad")
        raise ValueError

    under_way = anyio.Event()

    @step
    async def waits(value: int, ctx: Context) -> int:
        ctx.progress.set("waits")
        under_way.set()
        await anyio.sleep_forever()
        return value

    @step
    async def body(value: int, ctx: Context) -> int:
        with pytest.raises(errors.ParallelFailed):
            await parallel([waits, bad], id="both")(value, ctx)
        return value

    await run(sequence(body, noting(seen), id="flow"))
    assert seen == [{"waits[0]": "waits", "bad[1]": "bad"}]


# ------------------------------------------------------------------------------------------------------- loops


async def test_a_loop_forgets_each_round_before_the_next_one_and_nothing_else() -> None:
    seen: list[Any] = []

    @step
    async def deep(value: int, ctx: Context) -> int:
        ctx.progress.set("deep")
        return value

    @step
    async def work(value: int, ctx: Context) -> int:
        seen.append(by_name(ctx.progress.entries))
        ctx.progress.finish()
        around = ctx.progress.at(ctx.path[:-2])
        around.set((around.get_as(int) or 0) + 1)
        return await deep(value, ctx)

    @step
    async def before(value: int, ctx: Context) -> int:
        ctx.progress.set("before")
        # The first round has nothing before it that could be forgotten: what waits for it is there.
        ctx.progress.at(("flow", "rounds", "body[0]", "hint")).set("a hint")
        return value

    after: list[Any] = []
    body = sequence(work, id="body")
    await run(sequence(before, rounds(body), noting(after), id="flow"))
    assert seen == [
        {"before": "before", "hint": "a hint"},
        {"before": "before", "rounds": 1},
        {"before": "before", "rounds": 2},
    ]
    assert after == [{"before": "before", "rounds": 3, "work": True, "deep": "deep"}]


async def test_a_round_that_has_failed_is_forgotten_as_well() -> None:
    seen: list[Any] = []

    @step
    async def work(value: int, ctx: Context) -> int:
        seen.append(by_name(ctx.progress.entries))
        ctx.progress.set(len(seen))
        if len(seen) < 3:
            raise ValueError
        return value

    after: list[Any] = []
    flow = rounds(work, 1, on_error=skip)
    await run(sequence(flow, noting(after), id="flow"))
    assert seen == [{}, {}, {}]
    assert after == [{"work[2]": 3}]


async def test_a_loop_in_a_loop_begins_anew_with_each_round_of_the_outer_one() -> None:
    seen: list[Any] = []

    @step
    async def work(value: int, ctx: Context) -> int:
        seen.append(sorted("/".join(path[2:]) for path in ctx.progress.entries))
        ctx.progress.finish()
        around = ctx.progress.at(ctx.path[:-1])
        around.set((around.get_as(int) or 0) + 1)
        return value

    made: Any = loop
    inner = made(work, until=until.max_rounds(2), id="inner")
    await run(sequence(rounds(inner, 2), id="flow"))
    assert seen == [[], ["inner[0]"], [], ["inner[1]"]]


def skip(_: Exception, __: ReadContext[Any, Any]) -> OnError:
    return "skip"


async def test_a_schedule_forgets_each_time_before_the_next_one() -> None:
    seen: list[Any] = []
    clock = VirtualRuntime()

    @step
    async def tick(_: None, ctx: Context) -> None:
        seen.append(by_name(ctx.progress.entries))
        ctx.progress.set(len(seen))
        ctx.progress.at((*ctx.path, "below")).finish()
        if len(seen) == 2:
            raise ValueError
        if len(seen) == 4:
            ctx.stop_loop()

    after: list[Any] = []
    flow: Any = sequence(every(10.0, tick, on_error=skip), noting(after), id="flow")
    async with Harness(plugins=(), runtime=clock) as made:
        handle = made.start(flow, "x")
        await clock.advance(30)
        await handle.result()
    assert seen == [{}, {}, {}, {}]
    assert after == [{"tick[3]": 4, "below": True}]
