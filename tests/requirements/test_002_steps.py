"""What steps there are, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field

from noetic_py import (
    Budget,
    Channel,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    Message,
    ReadContext,
    Retry,
    StateBag,
    Step,
    TokenUsage,
    branch,
    call_model,
    call_tool,
    each,
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
from noetic_py.core.events import LoopIteration
from noetic_py.errors import (
    Aborted,
    BudgetExceeded,
    LoopLimit,
    ModelUnavailable,
    NoeticError,
    ParallelFailed,
    StepFailed,
    StepTimeout,
)
from noetic_py.steps.flow import Settled
from noetic_py.testing import ScriptedModel, VirtualRuntime
from noetic_py.until import Snapshot, Until, Verdict

pytestmark = pytest.mark.anyio


@define
class State:
    count: int = 0
    words: list[str] = field(factory=list[str])


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@step
async def echo(text: str) -> str:
    return text


@step
async def shout(text: str) -> str:
    return text.upper()


@step
async def exclaim(text: str) -> str:
    return f"{text}!"


@step
async def add_one(n: int) -> int:
    return n + 1


@step
async def fail(text: str) -> str:
    raise ValueError(text)


@step
async def forever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@step
async def count_up(text: str, ctx: Context[Memory, State]) -> str:
    ctx.state.count += 1
    ctx.state.words.append(text)
    return text


# --------------------------------------------------------------------------------------------------------------- 002-40


STEPS: list[tuple[Step[Any, Any], str]] = [
    (echo, "code"),
    (call_model(), "model"),
    (call_tool(search, args={"query": "x"}), "tool"),
    (sequence(echo), "sequence"),
    (branch(lambda text: "a", {"a": echo}), "branch"),
    (parallel([echo]), "parallel"),
    (race([echo]), "parallel"),
    (settle([echo]), "parallel"),
    (each(echo), "parallel"),
    (spawn(echo), "spawn"),
    (loop(echo, until=until.max_rounds(1)), "loop"),
]


@pytest.mark.clause("002-40a")
@pytest.mark.parametrize(("made", "kind"), STEPS, ids=lambda each: getattr(each, "id", each))
def test_002_40_all_steps_are_of_one_type(made: Step[Any, Any], kind: str) -> None:
    assert type(made) is Step
    assert made.kind == kind
    assert made.id
    with pytest.raises(AttributeError):
        made.id = "other"  # type: ignore[misc] # that it is frozen is the point


WRAPPERS: dict[str, Callable[[Step[str, str]], Step[str, str]]] = {
    "sequence": lambda inner: sequence(echo, inner),
    "branch": lambda inner: branch(lambda text: "a", {"a": inner}),
    "parallel": lambda inner: parallel([inner, echo], merge=lambda outputs, ctx: outputs[0]),
    "race": lambda inner: race([inner]),
    "settle": lambda inner: settle([inner, fail], merge=lambda outcomes, ctx: outcomes[0].value),
    "spawn": spawn,
    "loop": lambda inner: loop(inner, until=until.max_rounds(1)),
}


@pytest.mark.clause("002-40b")
@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
async def test_002_40_steps_compose_in_any_nesting(outer: str, inner: str) -> None:
    flow = sequence(WRAPPERS[outer](WRAPPERS[inner](sequence(call_model(), shout))), exclaim)
    async with Harness(model=ScriptedModel("hello")) as harness:
        result = await harness.run(flow, "hi")
    assert result.value == "HELLO!"


@pytest.mark.clause("002-40b")
async def test_002_40_a_tool_step_and_each_nest_too() -> None:
    def arguments(query: str) -> dict[str, object]:
        return {"query": query}

    finder: Step[str, str] = call_tool(search, args=arguments)
    flow = loop(each(spawn(sequence(finder, shout))) >> step(_first), until=until.max_rounds(1))
    async with Harness() as harness:
        assert (await harness.run(flow, ["a", "b"])).value == ["FOUND A", "FOUND B"]


async def _first(found: list[str]) -> list[str]:
    return found


@pytest.mark.clause("002-40c")
async def test_002_40_a_model_call_has_tools_and_structured_output() -> None:
    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "x"}), '{"value": [1, 2]}')
    agent = loop(call_model(output=list[int], tools=(search,)), until=until.no_tool_calls())
    async with Harness(model=model) as harness:
        result = await harness.run(agent, "go")
    assert result.value == [1, 2]
    assert [tool["name"] for tool in model.requests[0].tools] == ["search"]
    assert model.requests[0].output is not None
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["found x"]


@pytest.mark.clause("002-40d")
async def test_002_40_a_step_can_be_a_tool() -> None:
    model = ScriptedModel(FunctionCall(name="loudly", arguments={"input": "x"}), "done")
    loudly = step_tool(sequence(shout, exclaim), name="loudly", description="Say it loudly.")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(loudly,)), until=until.no_tool_calls()), "go")
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["X!"]


class Dice(VirtualRuntime):
    """A runtime whose random number is given."""

    __slots__ = ("_number",)

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


async def attempts(retry: Retry | int, *, random: float = 0.0, fails: int = 100) -> list[float]:
    """At which seconds a step was tried that failed so many times."""
    runtime = Dice(random)
    times: list[float] = []

    @step(retry=retry)
    async def flaky(text: str) -> str:
        times.append(runtime.monotonic())
        if len(times) <= fails:
            raise ValueError(text)
        return text

    async with Harness(runtime=runtime) as harness:
        handle = harness.start(flaky, "x", on_error="result")
        await runtime.advance(1000)
        result = await handle.result()
    assert result.status == ("completed" if len(times) > fails else "failed")
    return times


@pytest.mark.clause("002-40h")
async def test_002_40_retry_attempts() -> None:
    assert len(await attempts(1)) == 1
    assert len(await attempts(4)) == 4
    assert len(await attempts(Retry(4))) == 4
    assert len(await attempts(4, fails=2)) == 3


@pytest.mark.clause("002-40i")
async def test_002_40_retry_backoff() -> None:
    def retry(backoff: Literal["fixed", "linear", "exponential"], longest: float = 30.0) -> Retry:
        return Retry(5, backoff=backoff, initial=1, max=longest, jitter=False)

    assert await attempts(retry("fixed")) == [0, 1, 2, 3, 4]
    assert await attempts(retry("linear")) == [0, 1, 3, 6, 10]
    assert await attempts(retry("exponential")) == [0, 1, 3, 7, 15]
    assert await attempts(retry("exponential", 3)) == [0, 1, 3, 6, 9]


@pytest.mark.clause("002-40j")
async def test_002_40_retry_jitter() -> None:
    assert await attempts(Retry(2, initial=2, jitter=True), random=0.0) == [0, 1]
    assert await attempts(Retry(2, initial=2, jitter=True), random=0.5) == [0, 1.5]
    assert await attempts(Retry(2, initial=2, jitter=False), random=0.5) == [0, 2]


async def test_002_40_retry_only_of_what_is_worth_it() -> None:
    assert len(await attempts(Retry(3, on=(ValueError,)))) == 3
    assert len(await attempts(Retry(3, on=(KeyError,)))) == 1
    assert len(await attempts(Retry(3, on=lambda error: "x" in str(error)))) == 3
    assert len(await attempts(Retry(3, on=lambda error: "no such text" in str(error)))) == 1


@pytest.mark.clause("002-40h")
async def test_002_40_a_model_call_can_be_retried() -> None:
    model = ScriptedModel(ModelUnavailable("no connection", model="m"), "hello")
    runtime = VirtualRuntime()
    async with Harness(model=model, runtime=runtime) as harness:
        handle = harness.start(call_model(retry=2), "hi")
        await runtime.advance(60)
        result = await handle.result()
    assert result.value == "hello"
    # The second attempt starts from the log as it was.
    assert [len(request.items) for request in model.requests] == [1, 1]
    assert len(result.items) == 2


# --------------------------------------------------------------------------------------------------------------- 002-41


@pytest.mark.clause("002-41a")
async def test_002_41_a_route_returns_a_step() -> None:
    def route(text: str, ctx: ReadContext) -> Step[str, str]:
        return shout if text == "loud" else exclaim

    async with Harness() as harness:
        assert (await harness.run(branch(route), "loud")).value == "LOUD"
        assert (await harness.run(branch(route), "quiet")).value == "quiet!"


@pytest.mark.clause("002-41c")
async def test_002_41_a_route_may_be_async() -> None:
    async def route(text: str, ctx: ReadContext) -> Step[str, str]:
        await anyio.lowlevel.checkpoint()
        return shout

    async def key(text: str) -> str:
        await anyio.lowlevel.checkpoint()
        return text

    async with Harness() as harness:
        assert (await harness.run(branch(route), "x")).value == "X"
        assert (await harness.run(branch(key, {"a": shout, "b": exclaim}), "b")).value == "b!"


@pytest.mark.clause("002-41b")
async def test_002_41_none_is_a_no_op() -> None:
    def nowhere(text: str, ctx: ReadContext) -> Step[str, str] | None:
        return None

    async def nowhere_async(text: str, ctx: ReadContext) -> Step[str, str] | None:
        return None

    async with Harness() as harness:
        result = await harness.run(branch(nowhere), "x")
        assert (result.value, result.steps) == ("x", 0)
        assert (await harness.run(branch(nowhere_async), "x")).value == "x"


@pytest.mark.clause("002-41d")
async def test_002_41_a_route_sees_the_run_and_cannot_change_it() -> None:
    seen: list[ReadContext[Memory, State]] = []

    def route(text: str, ctx: ReadContext[Memory, State]) -> str:
        seen.append(ctx)
        assert ctx.state.count == 1
        assert ctx.step_count == 1
        return "a"

    async with Harness() as harness:
        await harness.run(count_up >> branch(route, {"a": count_up}), "x", state=State())
    for name in ("complete", "abort", "stop_loop", "emit", "gather", "send"):
        assert not hasattr(seen[0], name)
    assert not hasattr(seen[0].items, "append")


@pytest.mark.clause("002-41a")
async def test_002_41_by_key_with_a_default() -> None:
    flow = branch(lambda text: text, {"a": shout}, default=exclaim)
    async with Harness() as harness:
        assert (await harness.run(flow, "a")).value == "A"
        assert (await harness.run(flow, "z")).value == "z!"


# --------------------------------------------------------------------------------------------------------------- 002-42


@pytest.mark.clause("002-42a")
async def test_002_42_paths_may_be_made_from_the_input() -> None:
    def fan_out(words: list[str], ctx: Context) -> Iterator[Step[object, str]]:
        for word in words:
            yield shout.bind(word)

    async def fan_out_async(words: list[str], ctx: Context) -> list[Step[object, str]]:
        await anyio.lowlevel.checkpoint()
        return [exclaim.bind(word) for word in words]

    made: Any = fan_out_async
    async with Harness() as harness:
        assert (await harness.run(parallel(fan_out), ["a", "b", "c"])).value == ["A", "B", "C"]
        nothing: list[str] = []
        assert (await harness.run(parallel(fan_out), nothing)).value == []
        assert (await harness.run(parallel(made), ["a", "b"])).value == ["a!", "b!"]
        assert (await harness.run(each(shout), ["a", "b"])).value == ["A", "B"]


@pytest.mark.clause("002-42b")
async def test_002_42_paths_run_at_once_and_outputs_come_in_order() -> None:
    first_waits = anyio.Event()

    @step
    async def slow(text: str) -> str:
        await first_waits.wait()
        return "slow"

    @step
    async def quick(text: str) -> str:
        first_waits.set()
        return "quick"

    async with Harness() as harness:
        assert (await harness.run(parallel(slow, quick), "x")).value == ("slow", "quick")
        assert (await harness.run(parallel([slow, quick]), "x")).value == ["slow", "quick"]


@pytest.mark.clause("002-42b")
async def test_002_42_merge_makes_the_output() -> None:
    async def merge_async(outputs: Any, ctx: Context[Memory, State]) -> str:
        await anyio.lowlevel.checkpoint()
        return "+".join(outputs)

    merge: Any = merge_async
    async with Harness() as harness:
        result = await harness.run(parallel([echo, shout], merge=lambda outputs, ctx: "+".join(outputs)), "x")
        assert result.value == "x+X"
        assert (await harness.run(parallel([echo, shout], merge=merge), "x")).value == "x+X"
        settled = settle([echo, fail], merge=lambda outcomes, ctx: [outcome.ok for outcome in outcomes])
        assert (await harness.run(settled, "x")).value == [True, False]


@pytest.mark.clause("002-42c")
@pytest.mark.parametrize("make", ["parallel", "race", "settle", "each"])
async def test_002_42_concurrency_limits_how_many_run_at_once(make: str) -> None:
    now = most = started = 0

    @step
    async def work(n: int) -> int:
        nonlocal now, most, started
        started += 1
        now += 1
        most = max(most, now)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        now -= 1
        if make == "race" and n < 9:
            raise ValueError(n)
        return n

    paths = [work.bind(n) for n in range(10)]
    flows: dict[str, Step[Any, Any]] = {
        "parallel": parallel(paths, concurrency=3),
        "race": race(paths, concurrency=3),
        "settle": settle(paths, concurrency=3),
        "each": each(work, concurrency=3),
    }
    async with Harness() as harness:
        await harness.run(flows[make], range(10))
    assert (most, started) == (3, 10)


@pytest.mark.clause("002-42d")
async def test_002_42_each_path_has_a_deep_copy_of_the_state() -> None:
    @step
    async def work(text: str, ctx: Context[Memory, State]) -> list[str]:
        ctx.state.words.append(text)
        ctx.state.count += 1
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        return list(ctx.state.words)

    state = State(words=["begin"])
    async with Harness() as harness:
        result = await harness.run(parallel([work.bind("a"), work.bind("b")]), "x", state=state)
    assert result.value == [["begin", "a"], ["begin", "b"]]
    assert result.state is state
    assert (state.words, state.count) == (["begin"], 0)


async def test_002_42_merge_may_read_the_states_and_change_the_parent_s() -> None:
    def merge(outputs: Any, ctx: Context[Memory, State], states: Any) -> int:
        ctx.state.count = sum(state.count for state in states)
        return len(outputs)

    async with Harness() as harness:
        result = await harness.run(parallel([count_up, count_up], merge=merge), "x", state=State(count=1))
    assert (result.value, result.state.count) == (2, 4)


@pytest.mark.clause("002-42e")
async def test_002_42_the_winner_of_a_race_replaces_the_parent_s_state() -> None:
    @step
    async def slow(text: str, ctx: Context[Memory, State]) -> str:
        ctx.state.words.append("slow")
        await anyio.sleep_forever()
        return "slow"

    @step
    async def quick(text: str, ctx: Context[Memory, State]) -> str:
        await anyio.lowlevel.checkpoint()
        ctx.state.words.append("quick")
        ctx.items.append(Message.user("from the winner"))
        return "quick"

    state = State()
    async with Harness() as harness:
        result = await harness.run(race([slow, quick]), "x", state=state)
    assert result.value == "quick"
    assert state.words == ["quick"]
    assert [item.text for item in result.items if isinstance(item, Message)] == ["from the winner"]


@pytest.mark.clause("002-42f")
async def test_002_42_all_fails_with_what_succeeded_and_what_failed() -> None:
    cancelled: list[str] = []
    done = anyio.Event()

    @step
    async def good(text: str) -> str:
        done.set()
        return "good"

    @step
    async def bad(text: str) -> str:
        await done.wait()
        raise ValueError("bad")

    @step
    async def slow(text: str) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("slow")
        return text

    async with Harness() as harness:
        with pytest.raises(ParallelFailed) as caught:
            await harness.run(parallel([good, bad, slow]), "x")
    error = caught.value
    assert error.succeeded == {0: "good"}
    assert list(error.failed) == [1]
    assert isinstance(error.failed[1], StepFailed)
    assert error.failed[1].error_type == "ValueError"
    assert error.first is error.failed[1]
    assert isinstance(error.__cause__, ValueError)
    assert cancelled == ["slow"]


@pytest.mark.clause("002-42g")
async def test_002_42_settle_never_raises() -> None:
    async with Harness() as harness:
        result = await harness.run(settle([echo, fail, shout]), "x")
        good, bad, loud = result.value
        assert isinstance(good, Settled)
        assert (good.ok, good.value, good.error) == (True, "x", None)
        assert not bad.ok
        assert isinstance(bad.error, StepFailed)
        with pytest.raises(StepFailed, match="ValueError: x"):
            _ = bad.value
        assert loud.value == "X"
        assert [outcome.ok for outcome in (await harness.run(settle([fail, fail]), "x")).value] == [False, False]


@pytest.mark.clause("002-42i")
async def test_002_42_a_race_fails_when_every_path_has() -> None:
    async with Harness() as harness:
        assert (await harness.run(race([fail, echo]), "x")).value == "x"
        with pytest.raises(ParallelFailed) as caught:
            await harness.run(race([fail, fail.with_options(id="fail2")]), "x")
    assert sorted(caught.value.failed) == [0, 1]
    assert caught.value.succeeded == {}


@pytest.mark.clause("002-42h")
@pytest.mark.parametrize("make", [parallel, race, settle])
async def test_002_42_an_abort_of_the_parent_cancels_the_paths(make: Any) -> None:
    stopped: list[str] = []
    inside = anyio.Event()

    @step
    async def slow(text: str) -> str:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(text)
        return text

    @step
    async def stopper(text: str, ctx: Context) -> str:
        await inside.wait()
        ctx.abort("enough")
        await anyio.lowlevel.checkpoint()
        return "not reached"

    async with Harness() as harness:
        result = await harness.run(make([slow, stopper]), "x")
    assert (result.status, result.reason) == ("aborted", "enough")
    assert stopped == ["x"]
    with pytest.raises(Aborted):
        _ = result.value


# --------------------------------------------------------------------------------------------------------------- 002-43


@pytest.mark.clause("002-43a")
async def test_002_43_a_child_has_an_empty_item_log() -> None:
    lengths: list[int] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        lengths.append(len(ctx.items))
        ctx.items.append(Message.user(text))
        lengths.append(len(ctx.items))
        return text

    async with Harness() as harness:
        result = await harness.run(sequence(look, spawn(look), look), "x", history=[Message.user("before")])
    assert lengths == [1, 2, 0, 1, 2, 3]
    assert len(result.items) == 3


@pytest.mark.clause("002-43a")
@pytest.mark.parametrize(("items", "sees", "left"), [("copy", 1, 1), ("view", 1, 1), ("share", 1, 2), ("new", 0, 1)])
async def test_002_43_or_as_much_of_the_parent_s_log_as_asked(
    items: Literal["copy", "view", "share", "new"], sees: int, left: int
) -> None:
    lengths: list[int] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        lengths.append(len(ctx.items))
        ctx.items.append(Message.user(text))
        return text

    async with Harness() as harness:
        result = await harness.run(spawn(look, items=items), "x", history=[Message.user("before")])
    assert lengths == [sees]
    assert len(result.items) == left


@pytest.mark.clause("002-43c")
async def test_002_43_a_timeout() -> None:
    async with Harness() as harness:
        with pytest.raises(StepTimeout) as caught:
            await harness.run(spawn(forever, timeout=0.01), "x")
        assert caught.value.seconds == 0.01
        assert (await harness.run(spawn(echo, timeout=60), "x")).value == "x"


@pytest.mark.clause("002-43d")
async def test_002_43_usage_rolls_up() -> None:
    inside: list[tuple[int, Decimal, int]] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        inside.append((ctx.tokens.total, ctx.cost, ctx.step_count))
        return text

    model = ScriptedModel("a", "b", usage=TokenUsage(10, 5), cost="0.1")
    async with Harness(model=model) as harness:
        result = await harness.run(sequence(call_model(), spawn(sequence(call_model(), look))), "x")
    assert inside == [(15, Decimal("0.1"), 2)]
    assert result.usage == TokenUsage(20, 10)
    assert result.cost == Decimal("0.2")
    assert result.steps == 3


@pytest.mark.clause("002-43d")
async def test_002_43_usage_of_a_child_that_fails_rolls_up_too() -> None:
    flow = settle([spawn(sequence(call_model(), fail))])
    async with Harness(model=ScriptedModel("a", usage=TokenUsage(10, 5))) as harness:
        result = await harness.run(flow, "x")
    assert not result.value[0].ok
    assert result.usage.total == 15


@pytest.mark.clause("002-43e")
async def test_002_43_tools_are_inherited() -> None:
    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "x"}), "done")
    async with Harness(model=model, tools=(search,)) as harness:
        result = await harness.run(spawn(loop(call_model(), until=until.no_tool_calls())), "go")
    assert result.value == "done"
    assert [tool["name"] for tool in model.requests[0].tools] == ["search"]
    output = model.requests[1].items[-1]
    assert isinstance(output, FunctionCallOutput)
    assert output.output == "found x"


@pytest.mark.clause("002-43f")
async def test_002_43_a_budget_caps_the_child() -> None:
    flow = settle([spawn(sequence(echo, echo, echo), budget=Budget(steps=2)), echo])
    async with Harness() as harness:
        result = await harness.run(flow, "x")
    capped, beside = result.value
    assert isinstance(capped.error, BudgetExceeded)
    assert capped.error.dimension == "steps"
    assert beside.ok
    assert result.steps == 3


@pytest.mark.clause("002-43h")
@pytest.mark.parametrize(
    ("share", "seen", "left"),
    [
        ("share", (1, ["a"]), (2, ["a", "x"])),
        ("copy", (1, ["a"]), (1, ["a", "x"])),
        ("deepcopy", (1, ["a"]), (1, ["a"])),
    ],
)
async def test_002_43_the_child_s_state_is_shared_or_copied(
    share: Literal["share", "copy", "deepcopy"], seen: object, left: object
) -> None:
    before: list[object] = []

    @step
    async def change(text: str, ctx: Context[Memory, State]) -> str:
        before.append((ctx.state.count, list(ctx.state.words)))
        ctx.state.count += 1
        ctx.state.words.append(text)
        return text

    async with Harness() as harness:
        result = await harness.run(spawn(change, state=share), "x", state=State(1, ["a"]))
    assert before == [seen]
    assert (result.state.count, result.state.words) == left


@pytest.mark.clause("002-43h")
async def test_002_43_the_child_s_state_may_be_new() -> None:
    @step
    async def bag(text: str, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["n"] = 1
        return len(ctx.state)

    @step
    async def own(text: str, ctx: Context[Memory, State]) -> int:
        ctx.state.count += 5
        return ctx.state.count

    new: Step[str, int] = spawn(own, state=State)
    loose: Any = spawn(bag, state="new")
    async with Harness() as harness:
        assert (await harness.run(new, "x")).value == 5
        result = await harness.run(loose, "x", state=State(7))
    assert (result.value, result.state.count) == (1, 7)


@pytest.mark.clause("002-43h")
async def test_002_43_the_state_is_deep_copied_when_nothing_is_said() -> None:
    async with Harness() as harness:
        result = await harness.run(spawn(count_up), "x", state=State())
    assert (result.state.count, result.state.words) == (0, [])


# --------------------------------------------------------------------------------------------------------------- 002-45


@pytest.mark.clause("002-45a")
async def test_002_45_steps_are_piped() -> None:
    async with Harness() as harness:
        result = await harness.run(loop(add_one >> add_one, until=until.max_rounds(3)), 0)
    assert result.value == 6


@pytest.mark.clause("002-45a")
async def test_002_45_a_body_that_can_goes_on_from_the_log() -> None:
    model = ScriptedModel(*[FunctionCall(name="search", arguments={"query": "x"})] * 2, "done")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(search,)), until=until.no_tool_calls()), "go")
    assert result.value == "done"
    assert [item.text for item in result.items if isinstance(item, Message) and item.role == "user"] == ["go"]


@pytest.mark.clause("002-45b")
async def test_002_45_until_gives_a_verdict_with_reason_and_feedback() -> None:
    seen: list[Verdict] = []

    def judge(snapshot: Snapshot[int]) -> Verdict:
        if snapshot.output >= 3:
            return Verdict(True, reason="big enough")
        return Verdict(False, feedback=f"{snapshot.output} is too small")

    def prepare(output: int, verdict: Verdict, ctx: Context) -> int:
        seen.append(verdict)
        return output

    flow = loop(add_one, until=until.custom(judge), prepare_next=prepare)
    async with Harness() as harness, harness.stream(flow, 0) as stream:
        events = [event async for event in stream.events if isinstance(event, LoopIteration)]
        result = await stream.result()
    assert (result.value, result.reason) == (3, "big enough")
    assert [verdict.feedback for verdict in seen] == ["1 is too small", "2 is too small"]
    assert [verdict.stop for verdict in seen] == [False, False]
    assert [(event.stop, event.reason, event.feedback) for event in events] == [
        (False, None, "1 is too small"),
        (False, None, "2 is too small"),
        (True, "big enough", None),
    ]


@pytest.mark.clause("002-45c")
async def test_002_45_prepare_next_makes_the_next_input() -> None:
    @step
    async def note(text: str, ctx: Context[Memory, State]) -> str:
        ctx.state.words.append(text)
        return text

    def prepare(output: str, verdict: Verdict, ctx: Context[Memory, State]) -> str:
        ctx.state.count += 1
        return f"{output}{ctx.step_count}"

    async def prepare_async(output: str, verdict: Verdict, ctx: Context[Memory, State]) -> str:
        await anyio.lowlevel.checkpoint()
        return f"{output}?"

    slow: Any = prepare_async
    async with Harness() as harness:
        flow = loop(note, until=until.max_rounds(3), prepare_next=prepare)
        result = await harness.run(flow, "x", state=State())
        assert result.state.words == ["x", "x1", "x12"]
        # It is not asked after the last iteration.
        assert result.state.count == 2
        flow = loop(note, until=until.max_rounds(2), prepare_next=slow)
        assert (await harness.run(flow, "x", state=State())).value == "x?"


def failing(times: int) -> tuple[Step[str, str], list[str]]:
    """A step that fails so many times, and its inputs."""
    inputs: list[str] = []

    @step
    async def flaky(text: str) -> str:
        inputs.append(text)
        if len(inputs) <= times:
            raise ValueError(f"no {len(inputs)}")
        return f"{text}!"

    return flaky, inputs


INBOX = Channel("inbox", str)


@step
async def fill(text: str, ctx: Context) -> str:
    await ctx.send(INBOX, "a")
    return text


@pytest.mark.clause("002-45d")
@pytest.mark.parametrize("decision", ["retry", "skip"])
async def test_002_45_on_error_may_go_on(decision: Literal["retry", "skip"]) -> None:
    asked: list[Exception] = []
    flaky, inputs = failing(2)

    def on_error(error: Exception, ctx: Context) -> Literal["retry", "skip", "abort"]:
        asked.append(error)
        assert ctx.step_count == len(asked)
        return decision

    async with Harness() as harness:
        result = await harness.run(loop(flaky, until=until.max_rounds(3), on_error=on_error), "x")
    assert inputs == ["x", "x", "x"]
    assert result.value == "x!"
    assert [type(error) for error in asked] == [StepFailed, StepFailed]
    assert isinstance(asked[0].__cause__, ValueError)


@pytest.mark.clause("002-45d")
async def test_002_45_on_error_retry_repeats_the_iteration_and_skip_does_not() -> None:
    """Both use up one of `max_iterations`; where messages come in, a retry has the same one again."""
    flaky, _ = failing(5)
    seen: list[str] = []

    @step
    async def fails_once(text: str) -> str:
        seen.append(text)
        if seen == ["first"]:
            raise ValueError
        return text

    async with Harness() as harness:
        once = until.max_rounds(1)
        retried = loop(fails_once, until=once, inbox=INBOX, on_error=lambda error, ctx: "retry")
        await harness.run(fill >> retried, "first")
        assert seen == ["first", "first", "a"]
        seen.clear()
        skipped = loop(fails_once, until=once, inbox=INBOX, on_error=lambda error, ctx: "skip")
        await harness.run(fill >> skipped, "first")
        assert seen == ["first", "a"]
        with pytest.raises(LoopLimit):
            await harness.run(
                loop(flaky, until=until.never(), on_error=lambda error, ctx: "retry", max_iterations=3), "x"
            )


@pytest.mark.clause("002-45d")
async def test_002_45_on_error_may_abort() -> None:
    flaky, inputs = failing(1)
    async with Harness() as harness:
        with pytest.raises(StepFailed, match="no 1"):
            await harness.run(loop(flaky, until=until.never(), on_error=lambda error, ctx: "abort"), "x")
        flaky, inputs = failing(1)
        with pytest.raises(StepFailed, match="no 1"):
            await harness.run(loop(flaky, until=until.never()), "x")
    assert inputs == ["x"]


@pytest.mark.clause("002-45j")
async def test_002_45_what_a_failed_iteration_did_is_undone() -> None:
    tries = 0

    @step
    async def work(text: str, ctx: Context[Memory, State]) -> str:
        nonlocal tries
        tries += 1
        ctx.state.count += 1
        ctx.items.append(Message.user(text))
        if tries == 2:
            raise ValueError("no")
        return text

    flow = loop(work, until=until.max_rounds(3), on_error=lambda error, ctx: "skip")
    async with Harness() as harness:
        result = await harness.run(flow, "x", state=State())
    assert (tries, result.state.count, len(result.items)) == (3, 2, 2)


@pytest.mark.clause("002-45e")
async def test_002_45_at_most_1000_iterations_unless_told() -> None:
    async with Harness() as harness:
        with pytest.raises(LoopLimit) as caught:
            await harness.run(loop(add_one, until=until.never()), 0)
        assert caught.value.limit == 1000
        assert caught.value.result is not None
        assert caught.value.result.steps == 1000
        with pytest.raises(LoopLimit):
            await harness.run(loop(add_one, until=until.never(), max_iterations=2), 0)
        assert (await harness.run(loop(add_one, until=until.max_rounds(2), max_iterations=2), 0)).value == 2


@pytest.mark.clause("002-45h")
async def test_002_45_until_that_raises_stops_the_loop_with_the_reason() -> None:
    def broken(snapshot: Snapshot[int]) -> bool:
        raise KeyError("oops")

    async def broken_async(snapshot: Snapshot[int]) -> bool:
        raise KeyError("later")

    async with Harness() as harness:
        result = await harness.run(loop(add_one, until=until.custom(broken)), 0)
        assert (result.status, result.value) == ("completed", 1)
        assert "KeyError" in (result.reason or "")
        assert "oops" in (result.reason or "")
        result = await harness.run(loop(add_one, until=until.custom(broken_async)), 0)
        assert result.value == 1
        assert "later" in (result.reason or "")


@pytest.mark.clause("002-45i")
async def test_002_45_on_error_never_sees_a_cancellation() -> None:
    asked: list[Exception] = []
    inside = anyio.Event()

    @step
    async def wait(text: str) -> str:
        inside.set()
        await anyio.sleep_forever()
        return text

    def on_error(error: Exception, ctx: Context) -> Literal["retry", "skip", "abort"]:
        asked.append(error)
        return "skip"

    flow = loop(wait, until=until.never(), on_error=on_error)
    async with Harness() as harness:
        handle = harness.start(flow, "x")
        await inside.wait()
        handle.abort("enough")
        assert (await handle.result()).status == "aborted"
        with anyio.move_on_after(0.01) as scope:
            await harness.run(flow, "x")
        assert scope.cancelled_caught
    assert asked == []


async def test_002_45_stop_loop_ends_the_nearest_loop() -> None:
    @step
    async def work(n: int, ctx: Context) -> int:
        if n == 3:
            ctx.stop_loop()
        return n + 1

    @step
    async def with_value(n: int, ctx: Context) -> int:
        ctx.stop_loop(99)
        return n

    async with Harness() as harness:
        result = await harness.run(loop(work, until=until.never()), 0)
        assert result.value == 4
        inner = loop(with_value, until=until.never(), id="inner")
        assert (await harness.run(loop(inner >> add_one, until=until.max_rounds(2)), 0)).value == 100


# --------------------------------------------------------------------------------------------------------------- 002-46


async def rounds(when: Until[int], *, body: Step[int, int] = add_one, **harness_options: Any) -> tuple[int, str]:
    """How far a loop counted, and the reason it stopped for."""
    made: Any = Harness
    async with made(**harness_options) as harness:
        result = await harness.run(loop(body, until=when, max_iterations=20), 0)
    reason = result.reason or ""
    return result.value, reason


@pytest.mark.clause("002-46a")
async def test_002_46_max_steps() -> None:
    value, reason = await rounds(until.max_steps(10))
    assert value == 10
    assert "10" in reason
    assert (await rounds(until.max_steps(10), body=add_one >> add_one))[0] == 10
    assert (await rounds(until.max_steps(0)))[0] == 1


@pytest.mark.clause("002-46a")
async def test_002_46_max_rounds_counts_this_loop_only() -> None:
    body = loop(add_one, until=until.max_rounds(2), id="inner")
    value, reason = await rounds(until.max_rounds(3), body=body)
    assert value == 6
    assert "3" in reason


@step
async def ask(n: int, ctx: Context) -> int:
    await call_model()("hi", ctx)
    return n + 1


@pytest.mark.clause("002-46b")
async def test_002_46_max_cost() -> None:
    model = ScriptedModel(*["a"] * 20, cost="0.1")
    value, reason = await rounds(until.max_cost(0.3), body=ask, model=model)
    assert value == 3
    assert "0.3" in reason
    model = ScriptedModel(*["a"] * 20, cost="0.1")
    assert (await rounds(until.max_cost(Decimal("0.25")), body=ask, model=model))[0] == 3


@pytest.mark.clause("002-46l")
async def test_002_46_max_tokens_and_max_turns() -> None:
    def model() -> ScriptedModel:
        return ScriptedModel(*["a"] * 20, usage=TokenUsage(7, 3))

    value, reason = await rounds(until.max_tokens(25), body=ask, model=model())
    assert value == 3
    assert "25" in reason
    value, reason = await rounds(until.max_turns(4), body=ask, model=model())
    assert value == 4
    assert "4" in reason


@pytest.mark.clause("002-46l")
async def test_002_46_max_turns_of_the_run_or_of_the_context() -> None:
    async def turns(scope: Literal["run", "context"]) -> int:
        flow = sequence(ask, spawn(loop(ask, until=until.max_turns(3, scope=scope), max_iterations=9)))
        async with Harness(model=ScriptedModel(*["a"] * 20)) as harness:
            return (await harness.run(flow, 0)).value

    assert await turns("run") == 3
    assert await turns("context") == 4


@pytest.mark.clause("002-46c")
async def test_002_46_max_seconds() -> None:
    runtime = VirtualRuntime()

    @step
    async def wait(n: int) -> int:
        await runtime.sleep(2)
        return n + 1

    async with Harness(runtime=runtime) as harness:
        handle = harness.start(loop(wait, until=until.max_seconds(5)), 0)
        await runtime.advance(20)
        result = await handle.result()
    assert result.value == 3
    assert "5" in (result.reason or "")


@pytest.mark.clause("002-46d")
async def test_002_46_no_tool_calls() -> None:
    call = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel(call, [Message.assistant("looking"), call], "done", "not asked")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(search,)), until=until.no_tool_calls()), "go")
    assert result.value == "done"
    assert "no tool calls" in (result.reason or "")
    assert len(model.requests) == 3


@pytest.mark.clause("002-46e")
async def test_002_46_verified() -> None:
    def check(n: int) -> bool:
        return n == 2

    async def check_async(n: int) -> bool:
        await anyio.lowlevel.checkpoint()
        return n == 3

    def verdict(n: int) -> Verdict:
        return Verdict(n == 4, reason="four")

    assert await rounds(until.verified(check)) == (2, "verified")
    assert await rounds(until.verified(check_async)) == (3, "verified")
    assert await rounds(until.verified(verdict)) == (4, "four")


@pytest.mark.clause("002-46e")
async def test_002_46_verified_gives_feedback_to_prepare_next() -> None:
    def check(text: str) -> Verdict:
        return Verdict(text.endswith("ok"), feedback="say ok")

    flow = loop(echo, until=until.verified(check), prepare_next=lambda text, verdict, ctx: f"{verdict.feedback} ok")
    async with Harness() as harness:
        assert (await harness.run(flow, "x")).value == "say ok ok"


@pytest.mark.clause("002-46f")
async def test_002_46_converged() -> None:
    texts = ["a b c d", "a b c e", "a b c e"]

    async def stops(threshold: float) -> int:
        said = iter(texts)

        @step
        async def say(n: int) -> str:
            return next(said)

        body: Any = say
        async with Harness() as harness:
            result = await harness.run(loop(body, until=until.converged(threshold=threshold)), 0)
        assert "converged" in (result.reason or "")
        return result.steps

    assert await stops(0.7) == 2
    assert await stops(0.95) == 3
    assert await stops(1.0) == 3


@pytest.mark.clause("002-46g")
async def test_002_46_output_contains_and_equals() -> None:
    @step
    async def grow(text: str) -> str:
        return f"{text}x"

    async with Harness() as harness:
        assert (await harness.run(loop(grow, until=until.output_contains("xxx")), "a")).value == "axxx"
        assert (await harness.run(loop(grow, until=until.output_equals("axx")), "a")).value == "axx"
    assert (await rounds(until.output_equals(4)))[0] == 4


@pytest.mark.clause("002-46h")
async def test_002_46_never() -> None:
    with pytest.raises(NoeticError) as caught:
        await rounds(until.never())
    assert isinstance(caught.value, LoopLimit)


@pytest.mark.clause("002-46i")
async def test_002_46_custom() -> None:
    def by_output(snapshot: Snapshot[int]) -> bool:
        return snapshot.output == 3 and list(snapshot.outputs) == [1, 2, 3] and snapshot.iteration == 2

    async def later(snapshot: Snapshot[int]) -> Verdict:
        await anyio.lowlevel.checkpoint()
        return Verdict(snapshot.step_count == 4, reason="four steps")

    assert await rounds(until.custom(by_output)) == (3, "by_output")
    assert await rounds(until.custom(later)) == (4, "four steps")


@pytest.mark.clause("002-46j")
async def test_002_46_any_of_several_with_or() -> None:
    assert (await rounds(until.max_steps(10) | until.max_rounds(3)))[0] == 3
    value, reason = await rounds(until.max_rounds(3) | until.max_steps(2))
    assert value == 2
    assert "max_steps" in reason
    assert (await rounds(until.never() | until.never() | until.output_equals(5)))[0] == 5


@pytest.mark.clause("002-46k")
async def test_002_46_all_of_several_with_and() -> None:
    value, reason = await rounds(until.max_steps(4) & until.max_rounds(2))
    assert value == 4
    assert "max_steps" in reason
    assert "max_rounds" in reason
    assert (await rounds(until.never() & until.max_rounds(1) | until.max_rounds(5)))[0] == 5
