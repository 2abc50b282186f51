from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Literal
from xml.etree import ElementTree as ET

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    StateBag,
    Step,
    branch,
    call_model,
    each,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core import reducers
from noetic_py.core.events import StepCommitted
from noetic_py.errors import BudgetExceeded, ConfigError, ParallelFailed, RouteError, StepFailed, StepTimeout
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio


@define
class State:
    count: int = 0
    words: list[str] = field(factory=list[str])


@step
async def echo(text: str) -> str:
    return text


@step
async def shout(text: str) -> str:
    return text.upper()


@step
async def where(text: str, ctx: Context) -> str:
    return "/".join(ctx.path)


@step
async def fail(text: str) -> str:
    raise ValueError(text)


@step
async def write(text: str, ctx: Context[Memory, State]) -> str:
    ctx.items.append(Message.user(text))
    ctx.state.words.append(text)
    ctx.state.count += 1
    return text


async def run(flow: Any, input: object = "x", **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, input, **options)).value


async def run_items(flow: Any, input: object = "x", **options: Any) -> list[str]:
    """The texts of a run's conversation."""
    async with Harness() as harness:
        result = await harness.run(flow, input, **options)
    return [item.text for item in result.items if isinstance(item, Message)]


# ------------------------------------------------------------------------------------------------------------- sequence


async def test_each_step_gets_what_the_one_before_returned() -> None:
    @step
    async def length(text: str) -> int:
        return len(text)

    assert await run(sequence(echo, shout, length), "abc") == 3
    assert await run(echo >> shout >> length, "abc") == 3


async def test_chains_are_flat_however_they_are_bracketed() -> None:
    expected = ["sequence/where", "sequence/where#1", "sequence/where#2"]

    async def paths(flow: Step[str, str]) -> list[str]:
        async with Harness() as harness, harness.stream(flow, "x") as stream:
            return [
                "/".join(event.path)
                async for event in stream.events
                if isinstance(event, StepCommitted) and event.kind == "code"
            ]

    assert await paths(where >> where >> where) == expected
    assert await paths(where >> (where >> where)) == expected
    assert await paths(sequence(where, where, where)) == expected


async def test_a_named_or_configured_sequence_stays_whole() -> None:
    assert await run(echo >> sequence(echo, where, id="inner")) == "sequence/inner/where"
    assert await run(echo >> sequence(echo, where).with_options(timeout=60)) == "sequence/sequence/where"
    assert await run(echo >> sequence(echo, where).with_options(tags=["a"])) == "sequence/sequence/where"
    assert await run(sequence(echo, id="outer") >> where) == "sequence/where"


async def test_one_step_may_stand_in_a_sequence_several_times() -> None:
    assert await run(sequence(where, where)) == "sequence/where#1"
    assert await run(where.bind("a") >> where.bind("b")) == "sequence/where#1"


async def test_two_unnamed_steps_of_one_name_are_told_apart_by_their_place() -> None:
    def make() -> Step[str, str]:
        @step
        async def work(text: str, ctx: Context) -> str:
            return f"{text} {ctx.name}"

        return work

    assert await run(sequence(make(), make()), "") == " work work#1"


async def test_a_sequence_shares_state_and_conversation() -> None:
    async with Harness() as harness:
        result = await harness.run(sequence(write, sequence(write, id="inner"), write), "x", state=State())
    assert result.state.words == ["x", "x", "x"]
    assert len(result.items) == 3


# --------------------------------------------------------------------------------------------------------------- branch


async def test_a_route_may_be_any_function() -> None:
    def two(text: str, other: str) -> str:
        return other

    class Router:
        def __call__(self, text: str) -> str:
            return "a"

        def method(self, text: str) -> str:
            return "b"

    cases = {"a": shout, "b": where}
    assert await run(branch(Router(), cases)) == "X"
    assert await run(branch(Router().method, cases)) == "branch/where"
    assert await run(branch(partial(two, other="a"), cases)) == "X"
    lower: Callable[[str], str] = str.lower
    assert await run(branch(lower, {"x": shout})) == "X"


async def test_a_route_may_take_any_number_of_arguments() -> None:
    seen: list[int] = []

    def route(*args: object) -> str:
        seen.append(len(args))
        return "a"

    made: Any = route
    assert await run(branch(made, {"a": shout})) == "X"
    assert seen == [2]


async def test_a_route_without_a_signature_gets_the_input() -> None:
    # `str` has none that Python can read.
    made: Any = str
    assert await run(branch(made, {"x": shout})) == "X"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


async def test_literal_and_enum_routes() -> None:
    def by_enum(text: str) -> Colour:
        return Colour(text)

    def by_literal(text: str) -> Literal["a", "b"]:
        return "a" if text == "x" else "b"

    assert await run(branch(by_enum, {Colour.RED: shout, Colour.BLUE: echo}), "red") == "RED"
    assert await run(branch(by_enum, {Colour.RED: shout}, default=where), "blue") == "branch/where"
    assert await run(branch(by_literal, {"a": shout, "b": echo})) == "X"


async def test_an_annotation_that_does_not_resolve_is_checked_when_the_route_has_run() -> None:
    def route(text: str) -> Any:
        return "c"

    route.__annotations__["return"] = "Nowhere"
    flow = branch(route, {"a": shout})
    with pytest.raises(RouteError):
        await run(flow)


async def test_the_case_s_path_is_below_the_branch() -> None:
    assert await run(branch(lambda text: "a", {"a": where}, id="choose")) == "choose/where"


async def test_a_route_that_raises_fails_the_branch() -> None:
    def route(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(StepFailed) as caught:
        await run(branch(route, {"a": shout}))
    assert caught.value.path == ("branch",)
    assert caught.value.error_type == "KeyError"


async def test_a_branch_goes_on_from_the_log_when_all_its_cases_do() -> None:
    model = ScriptedModel(*[FunctionCall(name="nobody")], "done")
    flow = loop(branch(lambda text: "a", {"a": call_model()}, default=call_model()), until=until.no_tool_calls())
    async with Harness(model=model) as harness:
        result = await harness.run(flow, "go")
    assert result.value == "done"
    assert len([item for item in result.items if isinstance(item, Message) and item.role == "user"]) == 1


# ------------------------------------------------------------------------------------------------------------- parallel


async def test_two_to_many_steps_give_a_tuple_and_an_iterable_a_list() -> None:
    many: Any = parallel
    assert await run(parallel(echo, shout)) == ("x", "X")
    assert await run(parallel(echo, shout, echo, shout)) == ("x", "X", "x", "X")
    assert await run(many(*[echo] * 6)) == ("x",) * 6
    assert await run(parallel([echo, shout])) == ["x", "X"]
    assert await run(parallel(each for each in (echo, shout))) == ["x", "X"]
    assert await run(many(echo)) == ("x",)


async def test_paths_are_named_by_their_index() -> None:
    assert await run(parallel(where, where)) == ("parallel/where[0]", "parallel/where[1]")
    assert await run(each(where), ["a", "b"]) == ["each/where[0]", "each/where[1]"]


async def test_a_path_sees_the_parent_s_log_and_writes_its_own() -> None:
    lengths: list[int] = []

    @step
    async def look(text: str, ctx: Context[Memory, State]) -> str:
        lengths.append(len(ctx.items))
        await write(text, ctx)
        lengths.append(len(ctx.items))
        return text

    both = parallel([look, look], merge=lambda outputs, ctx: "merged")
    assert await run_items(sequence(write, both, look), "x", state=State()) == ["x", "merged"]
    assert sorted(lengths[:4]) == [1, 1, 2, 2]
    assert lengths[4:] == [1, 2]


async def test_merge_takes_one_two_or_three_arguments() -> None:
    def one(outputs: Any) -> int:
        return len(outputs)

    def two(outputs: Any, ctx: Context[Memory, State]) -> str:
        return ctx.name

    def three(outputs: Any, ctx: Context[Memory, State], states: Any) -> list[int]:
        return [state.count for state in states]

    def any_number(*args: object) -> int:
        return len(args)

    single: Any = one
    loose: Any = any_number
    for make in (parallel, settle):
        assert await run(make([write, write], merge=single), state=State()) == 2
        assert await run(make([write, write], merge=two), state=State()) == make.__name__
        assert await run(make([write, echo], merge=three), state=State()) == [1, 0]
        assert await run(make([write, write], merge=loose), state=State()) == 3


async def test_a_merge_that_raises_fails_the_section() -> None:
    def merge(outputs: Any, ctx: Context) -> str:
        raise KeyError("no")

    with pytest.raises(StepFailed) as caught:
        await run(parallel([echo], merge=merge))
    assert caught.value.path == ("parallel",)


async def test_a_merge_may_write_to_the_conversation() -> None:
    def merge(outputs: Any, ctx: Context[Memory, State]) -> str:
        ctx.items.append(Message.assistant("+".join(outputs)))
        return "merged"

    assert await run_items(parallel([write, write], merge=merge), "x", state=State()) == ["x+x"]


async def test_the_first_failure_is_the_one_that_is_raised() -> None:
    first = anyio.Event()

    @step
    async def early(text: str) -> str:
        first.set()
        raise ValueError("early")

    @step
    async def late(text: str) -> str:
        await first.wait()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        raise ValueError("late")

    with pytest.raises(ParallelFailed) as caught:
        await run(parallel([late, early]))
    assert "early" in str(caught.value.__cause__)
    assert next(iter(caught.value.failed)) == 1


async def test_a_budget_error_of_a_path_stays_one() -> None:
    async with Harness() as harness:
        for make in (parallel, race):
            made: Any = make
            result = await harness.run(made([sequence(echo, echo)] * 2), "x", budget=Budget(steps=1))
            assert result.status == "budget_exceeded"
            assert isinstance(result.error, BudgetExceeded)


async def test_an_element_that_fails_cancels_the_others() -> None:
    done = anyio.Event()

    @step
    async def work(n: int) -> int:
        if n == 1:
            done.set()
        if n == 2:
            await done.wait()
            raise ValueError(n)
        if n == 3:
            await anyio.sleep_forever()
        return n

    with pytest.raises(ParallelFailed) as caught:
        await run(each(work), [1, 2, 3])
    # Which of the others had finished by then depends on the order in which tasks begin.
    assert set(caught.value.succeeded.items()) <= {(0, 1)}
    assert list(caught.value.failed) == [1]


@pytest.mark.parametrize("values", [[], (1, 2), {1: "a", 2: "b"}, range(3)], ids=str)
async def test_each_takes_any_iterable(values: Iterable[int]) -> None:
    @step
    async def double(n: int) -> int:
        return 2 * n

    assert await run(each(double), values) == [2 * n for n in values]
    assert await run(each(double, concurrency=2), iter(values)) == [2 * n for n in values]


async def test_each_takes_a_generator() -> None:
    def numbers() -> Iterator[str]:
        yield from ("a", "b")

    assert await run(each(shout), numbers()) == ["A", "B"]


@pytest.mark.parametrize("make", [parallel, race, settle])
@pytest.mark.parametrize("concurrency", [1, 2, 3])
async def test_concurrency_up_to_the_number_of_paths(make: Any, concurrency: int) -> None:
    outputs = await run(make([echo.bind("a"), echo.bind("b")], concurrency=concurrency))
    if make is parallel:
        assert outputs == ["a", "b"]
    elif make is race:
        assert outputs in ("a", "b")
    else:
        assert [outcome.value for outcome in outputs] == ["a", "b"]


async def test_with_one_at_a_time_nothing_starts_after_a_failure_or_a_win() -> None:
    started: list[str] = []

    @step
    async def work(text: str) -> str:
        started.append(text)
        if text == "bad":
            raise ValueError(text)
        return text

    with pytest.raises(ParallelFailed):
        await run(parallel([work.bind("bad"), work.bind("never")], concurrency=1))
    assert await run(race([work.bind("bad"), work.bind("good"), work.bind("never")], concurrency=1)) == "good"
    assert started == ["bad", "bad", "good"]


# ----------------------------------------------------------------------------------------------------------------- race


async def test_losers_leave_nothing() -> None:
    inside = anyio.Event()

    @step
    async def loser(text: str, ctx: Context[Memory, State]) -> str:
        await write("loser", ctx)
        inside.set()
        await anyio.sleep_forever()
        return text

    @step
    async def winner(text: str, ctx: Context[Memory, State]) -> str:
        await inside.wait()
        return await write("winner", ctx)

    async with Harness() as harness:
        result = await harness.run(sequence(write, race([loser, winner])), "x", state=State())
    assert result.value == "winner"
    assert [item.text for item in result.items if isinstance(item, Message)] == ["x", "winner"]
    assert result.state.words == ["x", "winner"]


async def test_a_race_of_one() -> None:
    async with Harness() as harness:
        result = await harness.run(sequence(write, race([write])), "x", state=State())
        assert len(result.items) == 2
        assert result.state.count == 2
        with pytest.raises(ParallelFailed):
            await harness.run(race([fail]), "x")


async def test_the_state_of_a_race_can_be_taken_back_by_a_retry_around_it() -> None:
    tries = 0

    @step
    async def flaky(text: str) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError(text)
        return text

    flow = sequence(race([write]), flaky).with_options(retry=Retry(2, initial=0))
    async with Harness() as harness:
        result = await harness.run(sequence(write, flow), "x", state=State())
    assert (result.state.count, len(result.items)) == (2, 2)


# --------------------------------------------------------------------------------------------------------------- settle


async def test_settle_shows_every_outcome() -> None:
    @step(timeout=0.01)
    async def slow(text: str) -> str:
        await anyio.sleep_forever()
        return text

    outcomes = await run(settle([echo, fail, slow, spawn(fail)]))
    assert [outcome.ok for outcome in outcomes] == [True, False, False, False]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), StepFailed, StepTimeout, StepFailed]
    for outcome in outcomes[1:]:
        with pytest.raises((StepFailed, StepTimeout)) as caught:
            _ = outcome.value
        assert caught.value is outcome.error


# --------------------------------------------------------------------------------------------------------------- gather


async def gathered(number: int) -> Any:
    @step
    async def body(text: str, ctx: Context) -> Any:
        return await ctx.gather(*[shout.bind(f"{text}{n}") for n in range(number)])

    return await run(body)


async def test_gather_gives_a_tuple_of_two_or_three_and_otherwise_a_list() -> None:
    assert await gathered(0) == []
    assert await gathered(1) == ["X0"]
    assert await gathered(2) == ("X0", "X1")
    assert await gathered(3) == ("X0", "X1", "X2")
    assert await gathered(4) == ["X0", "X1", "X2", "X3"]


async def test_gather_runs_at_once() -> None:
    event = anyio.Event()

    @step
    async def wait(text: str) -> str:
        await event.wait()
        return text

    @step
    async def release(text: str) -> str:
        event.set()
        return text

    @step
    async def body(text: str, ctx: Context) -> tuple[str, str]:
        return await ctx.gather(wait.bind("a"), release.bind("b"))

    assert await run(body) == ("a", "b")


async def test_gather_is_a_section_with_paths_of_its_own() -> None:
    @step
    async def body(text: str, ctx: Context) -> list[str]:
        first = await ctx.gather(where.bind("1"), where.bind("2"))
        second = await ctx.gather(where.bind("3"))
        return [*first, *second]

    unbound: Any = body
    assert await run(unbound) == ["body/gather/where[0]", "body/gather/where[1]", "body/gather#1/where[0]"]


async def test_gather_leaves_state_and_conversation_alone() -> None:
    @step
    async def body(text: str, ctx: Context[Memory, State]) -> str:
        ctx.state.words.append("mine")
        await ctx.gather(write.bind("a"), write.bind("b"))
        assert ctx.state.words == ["mine"]
        assert len(ctx.items) == 0
        return text

    assert await run_items(body, "x", state=State()) == []


async def test_gather_fails_like_parallel() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(ParallelFailed) as caught:
            await ctx.gather(echo.bind("a"), fail.bind("b"))
        assert caught.value.path == ("body", "gather")
        assert list(caught.value.failed) == [1]
        return await echo("handled", ctx)

    assert await run(body) == "handled"


async def test_gather_inside_gather() -> None:
    @step
    async def inner(text: str, ctx: Context) -> tuple[str, str]:
        return await ctx.gather(shout.bind(f"{text}1"), shout.bind(f"{text}2"))

    @step
    async def body(text: str, ctx: Context) -> Any:
        return await ctx.gather(inner.bind("a"), inner.bind("b"))

    assert await run(body) == (("A1", "A2"), ("B1", "B2"))


async def test_gather_takes_steps_without_an_input() -> None:
    @step
    async def nothing() -> str:
        return "nothing"

    @step
    async def body(text: str, ctx: Context) -> Any:
        return await ctx.gather(nothing, nothing)

    assert await run(body) == ("nothing", "nothing")


# ---------------------------------------------------------------------------------------------------------------- graph


def test_the_graph_of_a_flow() -> None:
    def route(text: str, ctx: object) -> Any:
        return echo

    chain: Any = sequence
    flow: Step[str, Any, Memory, State] = chain(
        branch(lambda text: "a", {"a": echo}, default=shout),
        branch(route, id="dynamic"),
        parallel([echo, fail], id="both"),
        race([echo, shout]),
        settle(lambda text, ctx: [echo], id="made"),
        each(call_model()),
        loop(spawn(write), until=until.never()),
    )
    text = Harness().graph(flow)
    lines = text.splitlines()
    assert lines[0] == "flowchart TD"
    assert lines[1] == '    n0["sequence"]'
    for part in (
        '{"branch"}',
        '{"dynamic (branch): step chosen while running"}',
        '[/"both (parallel)"/]',
        '[/"race"/]',
        '[/"made (settle): paths made while running"/]',
        '("call_model (model)")',
        '(["loop<br/>until never"])',
        '[["spawn:write (spawn)"]]',
        '["write"]',
        "-->|\"'a'\"|",
        '-->|"otherwise"|',
        '-->|"each"|',
        '-->|"again"|',
        '-->|"child"|',
        '-->|"1"|',
    ):
        assert part in text, part


def test_the_graph_escapes_names() -> None:
    odd = echo.with_options(id='say "a" <b> & c')
    assert "say &quot;a&quot; &lt;b&gt; &amp; c" in Harness().graph(odd)
    assert "say &quot;a&quot; &lt;b&gt; &amp; c" in Harness().graph(odd, "svg")


def test_the_graph_names_tools_models_types_and_conditions() -> None:
    @tool
    async def look_up(word: str) -> str:
        """Look a word up."""
        return word

    agent = loop(call_model("test:small", tools=[look_up], output=int), until=until.max_rounds(3))
    text = Harness().graph(agent)
    assert '(["loop<br/>until max_rounds(3)"])' in text
    assert '("call_model (model)<br/>test:small<br/>tools: look_up<br/>gives int")' in text


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Step[Any, Any, Any, Any]:
    if depth == 0 or draw(st.booleans()):
        return echo.with_options(id=draw(st.sampled_from(["a", "a longer name", "b"])))
    parts = draw(st.lists(trees(depth - 1), min_size=1, max_size=4))
    if len(parts) == 1:
        return loop(parts[0], until=until.never())
    return parallel([part.with_options(id=f"{part.id}{index}") for index, part in enumerate(parts)])


@given(trees())
def test_the_boxes_of_a_picture_do_not_overlap(flow: Step[Any, Any, Any, Any]) -> None:
    picture = ET.fromstring(Harness().graph(flow, "svg"))
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in picture.iter("{http://www.w3.org/2000/svg}rect")
    ]
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for number, (x, y, w, h) in enumerate(boxes):
        assert min(x, y, width + 1 - x - w, height + 1 - y - h) >= 0
        for left, top, wide, high in boxes[number + 1 :]:
            assert x + w <= left or left + wide <= x or y + h <= top or top + high <= y


# ------------------------------------------------------------------------------------------------- shared by the paths


def sets(**fields: int) -> Any:
    @step(id="sets")
    async def change(_: object, ctx: Context[Memory, StateBag]) -> int:
        for name, value in fields.items():
            ctx.state[name] = value
        ctx.state["log"] = [*(ctx.state.get_as("log", list) or ()), *fields]
        return len(fields)

    return change


@step
async def joined(_: object, ctx: Context[Memory, StateBag]) -> dict[str, Any]:
    await ctx.gather(sets(a=1).bind(None), sets(b=2).bind(None), state="share")
    return dict(ctx.state.view())


SHARED: dict[str, Any] = {
    "parallel": parallel(sets(a=1), sets(b=2), state="share"),
    "a list": parallel([sets(a=1), sets(b=2)], state="share"),
    "settle": settle([sets(a=1), sets(b=2)], state="share"),
    "gather": joined,
}


@pytest.mark.clause("001-06d")
@pytest.mark.parametrize("name", SHARED)
async def test_paths_that_share_leave_what_they_have_changed_wherever_the_process_dies(name: str) -> None:
    flow = SHARED[name]
    there = {"x": 0, "a": 1, "b": 2, "log": ["a", "b"]}
    plain = await Harness(plugins=[]).run(sequence(sets(x=0), flow), None)
    assert {**plain.state.view(), "log": plain.state["log"][1:]} == there
    for dies_at in range(2, 20):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
        with backend.outlived():
            await Harness(plugins=[], checkpoints=backend).run(sequence(sets(x=0), flow), None, run_id="r")
        if not backend.dead:
            break
        backend.revive()
        result = await Harness(plugins=[], checkpoints=backend).resume("r", sequence(sets(x=0), flow))
        assert (result.state, repr(result.value)) == (plain.state, repr(plain.value)), dies_at


async def test_a_path_that_shares_sees_nothing_of_what_another_attempt_may_take_back() -> None:
    written, seen = anyio.Event(), list[object]()

    @step(retry=Retry(2, initial=0))
    async def writes(_: object, ctx: Context[Memory, StateBag]) -> None:
        ctx.state["written"] = ctx.state.get("written", 0) or "by attempt " + str(1 + written.is_set())
        if not written.is_set():
            written.set()
            await looked.wait()
            raise OSError("flaky")

    @step
    async def looks(_: object, ctx: Context[Memory, StateBag]) -> None:
        await written.wait()
        seen.append(ctx.state.get("written"))
        looked.set()

    looked = anyio.Event()
    async with Harness(plugins=[]) as harness:
        result = await harness.run(parallel(writes, looks, state="share"), None)
    assert (seen, dict(result.state.view())) == ([None], {"written": "by attempt 2"})


async def test_only_paths_that_have_succeeded_share_and_a_copy_stays_a_copy() -> None:
    @step
    async def fails(_: object, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["failed"] = True
        raise ValueError("no")

    async with Harness(plugins=[]) as harness:
        settled = await harness.run(settle([sets(a=1), fails], state="share"), None)
        assert dict(settled.state.view()) == {"a": 1, "log": ["a"]}
        some = await harness.run(each(sets(a=1), state="share"), [1])
        assert some.state["a"] == 1
        # Two that change the same are told, unless something says how to join that.
        with pytest.raises(ConfigError, match="in parallel"):
            await harness.run(parallel(sets(a=1), sets(a=2), state="share"), None)
        copied = await harness.run(parallel(sets(a=1), sets(b=2)), None)
        assert dict(copied.state.view()) == {}
    unknown: Any = "some"
    sections: list[Any] = [partial(parallel, [sets(a=1)]), partial(each, sets(a=1))]
    for section in sections:
        with pytest.raises(ConfigError, match="state='some' is unknown"):
            section(state=unknown)


async def test_what_a_sequence_hands_on_is_one_of_two() -> None:
    unknown: Any = "none"
    with pytest.raises(ConfigError, match="hand_on='none' is unknown"):
        sequence(sets(a=1), hand_on=unknown)
    silent = sequence(sets(a=1), hand_on="text")
    assert (silent >> sets(b=2)).spec.steps[0] is silent


@step
async def writes(x: int, ctx: Context[Any, StateBag]) -> int:
    ctx.state["seen"] = x
    return x


@step
async def reads(x: int, ctx: Context[Any, StateBag]) -> int:
    return len(ctx.state)


@step
async def writes_below(x: int, ctx: Context[Any, StateBag]) -> int:
    return await writes(x, ctx)


@step
async def gathers(x: int, ctx: Context[Any, StateBag]) -> tuple[int, int]:
    return await ctx.gather(writes.bind(x), reads.bind(x))


class Joined(StateBag):
    reducers: ClassVar = {"seen": reducers.last}


BOTH_WRITE: Any = parallel(writes, writes, id="p")
BOTH = "'seen' by 'writes[0]' and 'writes[1]'"
LOST: dict[str, tuple[Any, Any, Any, list[tuple[str, str]]]] = {
    "parallel": (parallel(writes, writes), 1, StateBag(), [("parallel", BOTH)]),
    "below": (parallel(reads, writes_below), 1, StateBag(), [("parallel", "'seen' by 'writes_below[1]'")]),
    "deleted": (parallel([writes, writes]), 1, StateBag({"seen": 0, "b": 2}), [("parallel", BOTH)]),
    "each": (each(writes), [1, 2], StateBag(), [("each", BOTH)]),
    "many": (each(writes), [1, 2, 3, 4, 5], StateBag(), [("each", f"{BOTH} and 3 more")]),
    "settle": (settle([writes, writes]), 1, StateBag(), [("settle", BOTH)]),
    "gather": (gathers, 1, StateBag(), [("gathers/gather", "'seen' by 'writes[0]'")]),
    "merge": (parallel([writes, writes], merge=lambda outputs, ctx: 1), 1, StateBag(), [("parallel", BOTH)]),
    "once": (loop(BOTH_WRITE, until=until.max_rounds(3)), 1, StateBag(), [("loop/p[0]", BOTH)]),
    "merge-of-states": (parallel([writes, writes], merge=lambda outputs, ctx, states: 1), 1, StateBag(), []),
    "shared": (parallel(writes, reads, state="share"), 1, StateBag(), []),
    "reducer": (parallel(writes, writes), 1, Joined(), []),
    "race": (race([writes, writes]), 1, StateBag(), []),
    "same-value": (parallel(writes, writes), 1, StateBag({"seen": 1}), []),
    "read": (parallel(reads, reads), 1, StateBag({"seen": 1}), []),
}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", LOST)
async def test_what_paths_write_to_their_copies_and_nothing_takes_is_told(
    name: str, durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    flow, value, state, expected = LOST[name]
    async with Harness(plugins=[], checkpoints="memory:" if durable else None) as harness:
        await harness.run(flow, value, state=copy.deepcopy(state))
    lost = "paths changed their copies of the state, and these changes are lost: "
    told = [record for record in caplog.records if record.getMessage().startswith(lost)]
    heard = [(vars(record)["path"], record.getMessage()[len(lost) :].partition(" [at ")[0]) for record in told]
    assert heard == expected
    assert all('Try: state="share"' in record.getMessage() for record in told)
