from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Any, Literal

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field
from pydantic import BaseModel

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    InputImage,
    InputText,
    Item,
    Memory,
    Message,
    ModelRequest,
    ModelResponse,
    Retry,
    StateBag,
    Step,
    branch,
    call_model,
    call_tool,
    every,
    loop,
    sequence,
    settle,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.core import reducers
from noetic_py.core.events import LoopIteration
from noetic_py.errors import (
    ConfigError,
    LoopLimit,
    ModelRetry,
    ModelStreamError,
    ModelUnavailable,
    NoOutput,
    RunNotFound,
    StepFailed,
    ToolFailed,
)
from noetic_py.models import ModelStream
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.until import Snapshot, Verdict

pytestmark = pytest.mark.anyio


@define
class State:
    count: int = 0


@step
async def add_one(n: int) -> int:
    return n + 1


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


async def run(flow: Any, input: object = 0, **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, input, **options)).value


async def test_iterations_have_paths_of_their_own() -> None:
    paths: list[tuple[str, ...]] = []

    @step
    async def note(n: int, ctx: Context) -> int:
        paths.append(ctx.path)
        return n

    await run(loop(note, until=until.max_rounds(2), id="again"))
    assert paths == [("again", "note[0]"), ("again", "note[1]")]


async def test_a_loop_inside_a_loop() -> None:
    inner = loop(add_one, until=until.max_rounds(2), id="inner")
    assert await run(loop(inner >> add_one, until=until.max_rounds(3))) == 9


async def test_state_and_conversation_are_shared_by_the_iterations() -> None:
    @step
    async def write(n: int, ctx: Context[Memory, State]) -> int:
        ctx.state.count += 1
        ctx.items.append(Message.user(str(n)))
        assert len(ctx.items) == ctx.state.count
        return n + 1

    async with Harness() as harness:
        result = await harness.run(loop(write, until=until.max_rounds(3)), 0, state=State())
    assert (result.state.count, len(result.items)) == (3, 3)


# ------------------------------------------------------------------------------------------------------------- verdicts


async def test_until_may_be_a_function_of_the_user_s_own() -> None:
    async def judge(snapshot: Snapshot[int]) -> Verdict:
        return Verdict(snapshot.output == 3, reason="three")

    made: Any = judge
    async with Harness() as harness:
        result = await harness.run(loop(add_one, until=made), 0)
    assert (result.value, result.reason) == (3, "three")


async def test_until_that_gives_something_else_stops_and_says_so() -> None:
    async def judge(snapshot: Snapshot[int]) -> bool:
        return True

    made: Any = judge
    async with Harness() as harness:
        result = await harness.run(loop(add_one, until=made), 0)
    assert "Verdict" in (result.reason or "")


async def test_a_snapshot_shows_the_loop() -> None:
    seen: list[tuple[int, int, int, int, float, str, tuple[int, ...]]] = []

    def judge(snapshot: Snapshot[int]) -> bool:
        assert snapshot.elapsed >= 0
        assert snapshot.cost == 0
        assert snapshot.last_step is not None
        seen.append(
            (
                snapshot.iteration,
                snapshot.step_count,
                snapshot.turns,
                snapshot.tokens.total,
                snapshot.output,
                snapshot.text,
                tuple(snapshot.outputs),
            )
        )
        return snapshot.iteration == 1

    await run(sequence(add_one, loop(add_one, until=until.custom(judge))))
    assert seen == [(0, 2, 0, 0, 2, "", (2,)), (1, 3, 0, 0, 3, "", (2, 3))]


async def test_a_snapshot_s_text() -> None:
    texts: list[str] = []

    def judge(snapshot: Snapshot[object]) -> bool:
        texts.append(snapshot.text)
        return True

    @step
    async def number(text: str) -> int:
        return 3

    async with Harness(model=ScriptedModel("hello", "again")) as harness:
        await harness.run(loop(call_model(), until=until.custom(judge)), "hi")
        flow: Any = loop(sequence(call_model(), number), until=until.custom(judge))
        await harness.run(flow, "hi")
    assert texts == ["hello", "again"]


async def test_a_snapshot_keeps_the_latest_outputs_only() -> None:
    lengths: list[int] = []

    def judge(snapshot: Snapshot[int]) -> bool:
        lengths.append(len(snapshot.outputs))
        assert snapshot.outputs[-1] == snapshot.output
        return snapshot.iteration == 500

    assert await run(loop(add_one, until=until.custom(judge))) == 501
    assert lengths[:3] == [1, 2, 3]
    assert max(lengths) <= 200
    assert lengths[-1] >= 100


async def test_the_reason_of_an_inner_loop_does_not_become_the_run_s() -> None:
    inner = loop(add_one, until=until.max_rounds(1), id="inner")
    outer = loop(inner, until=until.max_steps(2), id="outer")
    async with Harness() as harness:
        assert "max_steps" in ((await harness.run(outer, 0)).reason or "")
        assert (await harness.run(outer >> spawn(inner), 0)).reason is None
        assert "max_steps" in ((await harness.run(spawn(inner) >> outer, 0)).reason or "")


async def test_feedback_of_two_predicates_reaches_prepare_next() -> None:
    heard: list[str | None] = []

    def first(snapshot: Snapshot[int]) -> Verdict:
        return Verdict(False, feedback="first")

    def second(n: int) -> Verdict:
        return Verdict(n == 3, feedback="second")

    def prepare(n: int, verdict: Verdict, ctx: Context) -> int:
        heard.append(verdict.feedback)
        return n

    await run(loop(add_one, until=until.custom(first) | until.verified(second), prepare_next=prepare))
    assert heard == ["first; second", "first; second"]


# ----------------------------------------------------------------------------------------------------- errors and stops


async def test_on_error_may_be_async() -> None:
    tries = 0

    @step
    async def flaky(n: int) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError(n)
        return n

    async def decide(error: Exception, ctx: Context) -> Literal["skip"]:
        await anyio.lowlevel.checkpoint()
        return "skip"

    slow: Any = decide
    assert await run(loop(flaky, until=until.max_rounds(2), on_error=slow), 7) == 7
    assert tries == 2


async def test_on_error_sees_the_error_as_others_do_and_the_loop_s_context() -> None:
    seen: list[tuple[object, ...]] = []

    @step
    async def bad(n: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["n"] = n
        raise KeyError(n)

    def decide(error: Exception, ctx: Context[Memory, StateBag]) -> Literal["abort"]:
        assert isinstance(error, StepFailed)
        seen.append((error.path, error.error_type, ctx.path, "n" in ctx.state))
        return "abort"

    with pytest.raises(StepFailed):
        await run(loop(bad, until=until.never(), on_error=decide))
    assert seen == [(("loop", "bad[0]"), "KeyError", ("loop",), False)]


async def test_on_error_that_raises_ends_the_loop() -> None:
    @step
    async def bad(n: int) -> int:
        raise KeyError(n)

    def decide(error: Exception, ctx: Context) -> Literal["skip"]:
        raise ValueError("worse")

    with pytest.raises(StepFailed, match="worse") as caught:
        await run(loop(bad, until=until.never(), on_error=decide))
    assert caught.value.path == ("loop",)


async def test_prepare_next_that_raises_ends_the_loop() -> None:
    def prepare(n: int, verdict: Verdict, ctx: Context) -> int:
        raise ValueError("no")

    with pytest.raises(StepFailed) as caught:
        await run(loop(add_one, until=until.never(), prepare_next=prepare))
    assert caught.value.path == ("loop",)


async def test_a_loop_can_be_retried_as_a_whole() -> None:
    counts: list[int] = []

    @step
    async def work(n: int, ctx: Context[Memory, State]) -> int:
        ctx.state.count += 1
        counts.append(ctx.state.count)
        if len(counts) == 2:
            raise ValueError(n)
        return n + 1

    flow = loop(work, until=until.max_rounds(3)).with_options(retry=Retry(2, initial=0))
    async with Harness() as harness:
        result = await harness.run(flow, 0, state=State())
    assert (result.value, result.state.count) == (3, 3)
    assert counts == [1, 2, 1, 2, 3]


async def test_stop_loop_from_deep_inside_and_from_a_tool() -> None:
    @step
    async def deep(n: int, ctx: Context) -> int:
        if n >= 2:
            ctx.stop_loop("stopped")
        return n + 1

    flow = branch(lambda n: "a", {"a": sequence(deep)})
    assert await run(loop(flow, until=until.never())) == "stopped"

    @tool
    async def enough(ctx: Context) -> str:
        """Say that it is enough."""
        ctx.stop_loop("by the tool")
        return "thanks"

    model = ScriptedModel(FunctionCall(name="enough"), "not asked")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(enough,)), until=until.never()), "go")
    assert (result.value, result.reason) == ("by the tool", "stop_loop")
    assert len(model.requests) == 1


async def test_a_stop_of_an_iteration_that_fails_is_forgotten() -> None:
    tries = 0

    @step
    async def flaky(n: int, ctx: Context) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            ctx.stop_loop(99)
            raise ValueError(n)
        return n + 1

    flow = loop(flaky, until=until.max_rounds(3), on_error=lambda error, ctx: "skip")
    assert await run(flow) == 2
    assert tries == 3


async def test_iterations_are_events() -> None:
    async with Harness() as harness, harness.stream(loop(add_one, until=until.max_rounds(2)), 0) as stream:
        events = [event async for event in stream.events if isinstance(event, LoopIteration)]
    assert [(event.path, event.iteration, event.stop) for event in events] == [
        (("loop",), 0, False),
        (("loop",), 1, True),
    ]
    assert "max_rounds" in (events[1].reason or "")


# ----------------------------------------------------------------------------------------------------- agents in a loop


def agent(*tools: Any) -> Step[Any, str]:
    return loop(call_model(tools=tools), until=until.no_tool_calls())


async def test_a_loop_that_ends_on_tool_calls_has_no_output() -> None:
    model = ScriptedModel(*[FunctionCall(name="search", arguments={"query": "x"})] * 2)
    async with Harness(model=model) as harness:
        flow = loop(call_model(tools=(search,)), until=until.no_tool_calls() | until.max_rounds(2))
        with pytest.raises(NoOutput, match="max_rounds") as caught:
            await harness.run(flow, "go")
    assert caught.value.path == ("loop",)
    assert caught.value.result is not None
    assert len([item for item in caught.value.result.items if isinstance(item, FunctionCallOutput)]) == 2


async def test_a_round_with_text_and_calls_has_its_text() -> None:
    call = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel([Message.assistant("looking"), call])
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(search,)), until=until.max_rounds(1)), "go")
    assert result.value == "looking"


async def test_an_agent_that_never_stops_meets_the_cap() -> None:
    model = ScriptedModel(*[FunctionCall(name="search", arguments={"query": "x"})] * 5)
    async with Harness(model=model) as harness:
        with pytest.raises(LoopLimit):
            await harness.run(loop(call_model(tools=(search,)), until=until.no_tool_calls(), max_iterations=3), "go")
    assert len(model.requests) == 3


async def test_tool_calls_of_a_round_run_at_once_and_answer_in_call_order() -> None:
    event = anyio.Event()

    @tool
    async def wait() -> str:
        await event.wait()
        return "waited"

    @tool
    async def release() -> str:
        event.set()
        return "released"

    model = ScriptedModel([FunctionCall(name="wait"), FunctionCall(name="release")], "done")
    async with Harness(model=model) as harness:
        result = await harness.run(agent(wait, release), "go")
    outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
    assert outputs == ["waited", "released"]


@define
class Words:
    words: list[str] = field(factory=list[str])
    seen: dict[str, bool] = field(factory=dict[str, bool])
    last: Annotated[str, reducers.last] = ""


async def two_calls(state: Any, change: Callable[[Any, str], None]) -> Any:
    """The state after two calls of one round have each changed it."""

    @tool
    async def note(ctx: Context[Memory, object], name: str) -> str:
        """Note a name."""
        change(ctx.state, name)
        await anyio.lowlevel.checkpoint()
        return name

    calls = [FunctionCall(name="note", arguments={"name": name}) for name in "ab"]
    run: Any
    async with Harness(model=ScriptedModel(calls, "done")) as harness:
        run = harness.run
        return (await run(agent(note), "go", state=state)).state


async def test_tool_calls_of_a_round_both_change_the_state() -> None:
    def change(state: Words, name: str) -> None:
        state.words.append(name)
        state.last = name

    state = Words(["before"])
    assert await two_calls(state, change) is state
    assert state == Words(["before", "a", "b"], last="b")


async def test_tool_calls_of_a_round_change_a_bag() -> None:
    def change(state: StateBag, name: str) -> None:
        state[name] = True
        state["words"].append(name)
        if name == "b":
            del state["gone"]

    state = await two_calls(StateBag({"words": [], "gone": 1}), change)
    assert dict(state.view()) == {"a": True, "b": True, "words": ["a", "b"]}


async def test_tool_calls_of_a_round_change_a_state_of_any_kind() -> None:
    def append(state: list[str], name: str) -> None:
        state.append(name)

    def add(state: set[str], name: str) -> None:
        state.add(name)

    def put(state: dict[str, int], name: str) -> None:
        state[name] = 1

    assert await two_calls([], append) == ["a", "b"]
    assert await two_calls({"x"}, add) == {"x", "a", "b"}
    assert await two_calls({"x": 1}, put) == {"x": 1, "a": 1, "b": 1}


async def test_two_tool_calls_that_replace_one_field_are_an_error_that_names_both() -> None:
    def replace(state: list[str], name: str) -> None:
        state[:] = [name]

    def set_last(state: dict[str, str], name: str) -> None:
        state["last"] = name

    for state, change in ((["x"], replace), ({"last": "x"}, set_last)):
        with pytest.raises(ConfigError, match=r"by 'note\[0\]' and by 'note\[1\]'") as caught:
            await two_calls(state, change)
        assert caught.value.code == "state-conflict"


async def test_one_tool_call_changes_a_state_of_any_kind() -> None:
    @tool
    async def note(ctx: Context[Memory, list[str]], name: str) -> str:
        """Note a name."""
        ctx.state.append(name)
        return name

    model = ScriptedModel(FunctionCall(name="note", arguments={"name": "a"}), "done")
    async with Harness(model=model) as harness:
        result = await harness.run(loop(call_model(tools=(note,)), until=until.no_tool_calls()), "go", state=["x"])
    assert result.state == ["x", "a"]


async def test_two_wrong_calls_in_one_round_are_told_to_the_model() -> None:
    """A model that makes the same mistake twice in one answer has not been asked again yet."""
    calls = [FunctionCall(name="search", arguments={"page": 1}), FunctionCall(name="search", arguments={"page": 2})]
    model = ScriptedModel(calls, "sorry")
    async with Harness(model=model) as harness:
        result = await harness.run(agent(search), "go")
    assert result.value == "sorry"


async def test_a_good_call_forgives_the_bad_ones_before() -> None:
    wrong = FunctionCall(name="search", arguments={"page": 1})
    right = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel(wrong, right, wrong, right, "done")
    async with Harness(model=model) as harness:
        assert (await harness.run(agent(search), "go")).value == "done"


async def test_a_step_tool_that_fails_tells_the_model() -> None:
    """As a tool that is a function and raises."""

    @step
    async def bad(text: str) -> str:
        raise ValueError("no such page")

    @tool
    async def also_bad(text: str) -> str:
        raise ValueError("no such book")

    calls = [
        FunctionCall(name="bad", arguments={"input": "x"}),
        FunctionCall(name="also_bad", arguments={"text": "x"}),
    ]
    model = ScriptedModel(calls, "done")
    async with Harness(model=model) as harness:
        result = await harness.run(agent(step_tool(bad, name="bad", description=""), also_bad), "go")
    assert result.value == "done"
    outputs = [str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)]
    assert "no such page" in outputs[0]
    assert "no such book" in outputs[1]


async def test_a_sub_agent_that_gives_up_tells_the_model() -> None:
    @step
    async def give_up(text: str, ctx: Context) -> str:
        ctx.abort("too hard")
        return text

    sub = step_tool(spawn(give_up), name="sub", description="A sub-agent.")
    model = ScriptedModel(FunctionCall(name="sub", arguments={"input": "x"}), "done")
    async with Harness(model=model) as harness:
        result = await harness.run(agent(sub), "go")
    assert result.value == "done"
    (output,) = [str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)]
    assert "too hard" in output


async def test_a_handled_failure_of_a_round_leaves_a_valid_conversation() -> None:
    """The round that broke is undone, call and all, and the next one starts from before it."""

    @tool
    async def broken() -> object:
        return object()

    model = ScriptedModel(FunctionCall(name="broken"), "done")
    flow = loop(call_model(tools=(broken,)), until=until.no_tool_calls(), on_error=lambda error, ctx: "retry")
    async with Harness(model=model) as harness:
        result = await harness.run(flow, "go")
    assert result.value == "done"
    assert [item.type for item in result.items] == ["message", "message"]
    assert [len(request.items) for request in model.requests] == [1, 1]


# ----------------------------------------------------------------------------------------------------- models and tools


async def test_what_a_model_may_be_given() -> None:
    model = ScriptedModel(*"abcd")
    flow = call_model()
    message = Message.user([InputText(text="a"), InputImage(url="https://example.org/x.png")])
    async with Harness(model=model) as harness:
        await harness.run(flow, "text")
        await harness.run(flow, message)
        await harness.run(flow, [Message.user("a"), Message.assistant("b"), Message.user("c")])
        await harness.run(flow, None, history=[Message.user("before")])
    assert [len(request.items) for request in model.requests] == [1, 1, 3, 1]
    assert model.requests[1].items[0] is message


async def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    model = ScriptedModel("no JSON", '```json\n{"value": [1]}\n```')
    async with Harness(model=model) as harness:
        result = await harness.run(call_model(output=list[int]), "go")
    assert result.value == [1]
    asked = model.requests[1].items[-1]
    assert isinstance(asked, Message)
    assert "not JSON" in asked.text
    assert [item.type for item in result.items] == ["message"] * 4


@pytest.mark.parametrize("answer", ['{"other": 1}', "[1]", '{"value": 1, "more": 2}', '"x"'])
async def test_an_answer_of_the_wrong_shape(answer: str) -> None:
    async with Harness(model=ScriptedModel(answer, '{"value": 3}')) as harness:
        assert (await harness.run(call_model(output=int), "go")).value == 3


async def test_one_of_several_output_types() -> None:
    class A(BaseModel):
        a: int

    class B(BaseModel):
        b: date
        more: str = ""

    model = ScriptedModel('{"value": {"b": "2025-01-02"}}', '{"value": {"a": 1}}')
    flow = call_model(output=(A, B))
    async with Harness(model=model) as harness:
        assert (await harness.run(flow, "go")).value == B(b=date(2025, 1, 2))
        assert (await harness.run(flow, "go")).value == A(a=1)
    schema = model.requests[0].output
    assert schema is not None
    assert schema.name == "A_or_B"
    # A field with a default is one that strict providers do not take.
    assert not schema.strict


async def test_a_validator_may_change_the_value_and_wait() -> None:
    async def check(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        if n > 5:
            raise ModelRetry("at most 5")
        return n * 10

    async with Harness(model=ScriptedModel('{"value": 9}', '{"value": 3}')) as harness:
        result = await harness.run(call_model(output=int, validate=check), "go")
    assert result.value == 30
    assert any("at most 5" in item.text for item in result.items if isinstance(item, Message))


async def test_call_ids_that_a_server_repeats_are_told_apart() -> None:
    def call(query: str) -> FunctionCall:
        return FunctionCall(name="search", arguments={"query": query}, call_id="call_0")

    class Repeating:
        """A model whose server counts its calls from 0 in each answer."""

        name = "test:repeating"

        def __init__(self) -> None:
            self.turns: list[list[Item]] = [[call("a"), call("b")], [call("c")], [Message.assistant("done")]]

        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            items = self.turns.pop(0)

            class Stream:
                def __aiter__(self) -> Any:
                    return self

                async def __anext__(self) -> Any:
                    raise StopAsyncIteration

                async def response(self) -> ModelResponse:
                    return ModelResponse(items)

            yield Stream()

    async with Harness(model=Repeating()) as harness:
        result = await harness.run(agent(search), "go")
    assert result.value == "done"
    outputs = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert [item.output for item in outputs] == ["found a", "found b", "found c"]
    assert len({item.call_id for item in outputs}) == 3


@pytest.mark.parametrize("watched", [False, True])
async def test_an_error_of_the_model_keeps_its_class(watched: bool) -> None:
    for error in (ModelUnavailable("down", model="m"), ModelStreamError("cut", model="m"), KeyError("bug")):
        async with Harness(model=ScriptedModel(error)) as harness:
            if watched:
                async with harness.stream(call_model(), "go", on_error="result") as stream:
                    result = await stream.result()
            else:
                result = await harness.run(call_model(), "go", on_error="result")
        assert result.error is not None
        assert error in (result.error, result.error.__cause__)
        assert result.error.path == ("call_model", "answer")


async def test_a_token_budget_counts_what_no_provider_reported() -> None:
    async with Harness(model=ScriptedModel('{"value": 1}')) as harness:
        result = await harness.run(call_model(output=int), "hello", budget=Budget(tokens=10_000))
    assert result.usage.input > 0
    assert result.usage.output > 0


async def test_a_tool_step_s_arguments_may_be_waited_for() -> None:
    async def arguments(text: str) -> dict[str, object]:
        await anyio.lowlevel.checkpoint()
        return {"query": text}

    slow: Any = arguments
    assert await run(call_tool(search, args=slow), "x") == "found x"


async def test_a_tool_has_a_timeout() -> None:
    @tool(timeout=0.01)
    async def slow() -> str:
        await anyio.sleep_forever()
        return ""

    @tool(timeout=60)
    async def quick() -> str:
        return "quick"

    calls = [FunctionCall(name="slow"), FunctionCall(name="quick")]
    async with Harness(model=ScriptedModel(calls, "done")) as harness:
        result = await harness.run(agent(slow, quick), "go")
    outputs = [str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)]
    assert "0.01 s" in outputs[0]
    assert outputs[1] == "quick"
    with pytest.raises(ToolFailed, match="longer"):
        await run(call_tool(slow, args={}))


class Query(BaseModel):
    text: str


@step
async def by_model(query: Query) -> str:
    return query.text


async def test_a_step_tool_s_input_type() -> None:
    @step
    async def nothing() -> str:
        return "nothing"

    def schema(flow: Step[Any, Any], **options: Any) -> Any:
        parameters: Any = step_tool(flow, name="find", description="", **options).parameters
        return parameters["properties"]["input"]

    of_model = schema(by_model)
    assert of_model != schema(nothing)
    assert schema(nothing)["type"] == "string"
    assert schema(by_model >> nothing) == of_model
    assert schema(spawn(by_model))["type"] == "string"
    assert schema(spawn(by_model), input_type=Query) == of_model
    call = FunctionCall(name="find", arguments={"input": {"text": "x"}})
    async with Harness(model=ScriptedModel(call, "done")) as harness:
        result = await harness.run(agent(step_tool(by_model, name="find", description="Find.")), "go")
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["x"]


async def test_items_that_a_stopped_step_keeps_are_events_too() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user("kept"))
        ctx.abort("enough")
        await anyio.sleep_forever()
        return text

    async with Harness() as harness, harness.stream(stop, "x") as stream:
        items = [item async for item in stream.items]
    assert [item.text for item in items if isinstance(item, Message)] == ["kept"]


# ------------------------------------------------------------------------------------------------- ended at once


@step
async def noted(number: int, ctx: Context[Memory, StateBag]) -> int:
    ctx.items.append(Message.user(f"round {number}"))
    ctx.state["rounds"] = number
    if number == 2:
        ctx.stop_loop(f"cut at {number}", now=True)
        ctx.items.append(Message.user("to the end"))
    return number


@step
async def rest(number: int, ctx: Context[Memory, StateBag]) -> int:
    ctx.state["rest"] = number
    return number + 1


@step
async def waits(number: int, ctx: Context[Memory, StateBag]) -> int:
    ctx.items.append(Message.user("before"))
    ctx.stop_loop(number, now=True)
    await anyio.lowlevel.checkpoint()
    raise AssertionError("it goes on to its next await")


def lines(result: Any) -> list[str]:
    return [item.text for item in result.items if isinstance(item, Message)]


async def test_a_round_that_is_cut_short_keeps_what_was_finished_wherever_the_process_dies() -> None:
    @step
    async def length(text: str) -> int:
        return len(text)

    rounds: Any = loop(sequence(noted, rest), until=until.never())
    flow: Any = sequence(rounds, length)
    plain = await Harness(plugins=[]).run(flow, 0)
    assert (plain.value, lines(plain)) == (8, ["round 0", "round 1", "round 2", "to the end"])
    assert dict(plain.state.view()) == {"rounds": 2, "rest": 1}
    appends = 0
    for dies_at in range(1, 40):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
        with backend.outlived():
            await Harness(plugins=[], checkpoints=backend).run(flow, 0, run_id="r")
        if not backend.dead:
            break
        appends = dies_at
        backend.revive()
        harness = Harness(plugins=[], checkpoints=backend)
        try:
            result = await harness.resume("r", flow)
        except RunNotFound:
            assert dies_at == 1
            continue
        assert (result.value, lines(result), result.state) == (8, lines(plain), plain.state), dies_at
        again = await harness.resume("r", flow)
        assert (again.value, lines(again), again.state) == (8, lines(plain), plain.state), dies_at
    assert appends > 5


@pytest.mark.parametrize("durable", [False, True])
async def test_a_body_that_cuts_its_round_short_is_cancelled_at_its_next_await(durable: bool) -> None:
    backend = InMemoryBackend() if durable else None
    harness = Harness(plugins=[], checkpoints=backend)
    result = await harness.run(loop(waits, until=until.never()), 7)
    assert (result.status, result.value, lines(result)) == ("completed", 7, ["before"])
    if durable:
        again = await harness.resume(result.run_id, loop(waits, until=until.never()))
        assert (again.value, lines(again)) == (7, ["before"])


async def test_the_nearest_loop_is_cut_short_and_the_one_around_it_goes_on() -> None:
    @step
    async def after(number: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["after"] = number
        return number + 1

    inner = loop(waits, until=until.never())
    async with Harness(plugins=[]) as harness:
        result = await harness.run(loop(sequence(inner, after), until=until.max_rounds(3)), 0)
        assert (result.value, result.state["after"], lines(result)) == (3, 2, ["before"] * 3)
        # What stops the run is no end of the loop.
        stopped = await harness.run(loop(sequence(inner, after), until=until.never()), 0, budget=Budget(steps=3))
        assert stopped.status == "budget_exceeded"


async def test_what_runs_beside_is_cancelled_and_a_tool_can_cut_its_round_short() -> None:
    @tool
    async def enough(ctx: Context) -> str:
        """Enough."""
        ctx.stop_loop("told", now=True)
        return "done"

    @step
    async def hangs(_: object) -> None:
        await anyio.sleep_forever()

    @step
    async def cuts(_: object, ctx: Context) -> None:
        ctx.stop_loop("cut", now=True)

    async with Harness(plugins=[]) as harness:
        beside: Any = settle([hangs, cuts])
        result = await harness.run(loop(beside, until=until.never()), None)
        assert result.value == "cut"
        model = ScriptedModel(FunctionCall(name="enough", arguments={}), "never asked")
        agent = loop(call_model(model, tools=[enough]), until=until.no_tool_calls())
        told = await harness.run(agent, "x")
        assert (told.value, len(model.requests)) == ("told", 1)
        assert [item.type for item in told.items] == ["message", "function_call", "function_call_output"]
        scheduled = await harness.run(every(1.0, cuts), None)
        assert (scheduled.status, scheduled.value) == ("completed", None)
        with pytest.raises(ConfigError, match="outside a loop"):
            await harness.run(cuts, None)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_limit_that_ends_a_loop_is_said_once(durable: bool) -> None:
    flow = loop(rest, until=until.never(), max_iterations=2, at_limit="end")
    harness = Harness(plugins=[], checkpoints=InMemoryBackend() if durable else None)
    result = await harness.run(flow, 0)
    told = "Stopped after 2 rounds, which is the limit."
    assert (result.value, lines(result), result.reason) == (2, [told], "the limit of 2 rounds was reached")
    if durable:
        assert lines(await harness.resume(result.run_id, flow)) == [told]
    unknown: Any = "stop"
    with pytest.raises(ConfigError, match="at_limit"):
        loop(rest, until=until.never(), at_limit=unknown)


@step
async def halts(x: int, ctx: Context) -> int:
    ctx.stop_loop(x)
    return x


def wrong(snapshot: Snapshot[int]) -> bool:
    raise LookupError(snapshot.iteration)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("flow", "stop", "reason"),
    [
        (loop(rest, until=until.max_rounds(2)), "until", "max_rounds: 2 rounds reached"),
        (loop(rest, until=until.custom(wrong)), "until_failed", "until raised LookupError: 0"),
        (
            loop(rest, until=until.max_rounds(2) & until.custom(wrong)),
            "until_failed",
            "until raised LookupError: 1",
        ),
        (loop(halts, until=until.never()), "stop_loop", "stop_loop"),
        (
            loop(rest, until=until.never(), max_iterations=2, at_limit="end"),
            "max_iterations",
            "the limit of 2 rounds was reached",
        ),
        (loop(rest, until=until.max_rounds(2)) >> rest, None, None),
        (rest >> loop(rest, until=until.custom(wrong), id="wrong"), "until_failed", "until raised LookupError: 0"),
    ],
    ids=["until", "raised", "raised-second", "stop_loop", "limit", "not-last", "last"],
)
async def test_what_ended_a_loop_is_told_live_and_once_more(flow: Any, stop: str, reason: str, durable: bool) -> None:
    harness = Harness(plugins=[], checkpoints=InMemoryBackend() if durable else None)
    result = await harness.run(flow, 0)
    assert (result.status, result.loop_stop, result.reason) == ("completed", stop, reason)
    if durable:
        again = await harness.resume(result.run_id, flow)
        assert (again.status, again.loop_stop, again.reason) == ("completed", stop, reason)


async def test_a_flow_that_fails_or_is_completed_has_no_stop_of_a_loop() -> None:
    @step
    async def completes(x: int, ctx: Context) -> int:
        ctx.complete(x)
        return x

    async with Harness(plugins=[]) as harness:
        for flow in (completes, loop(completes, until=until.custom(wrong))):
            result = await harness.run(flow, 0)
            assert (result.status, result.loop_stop) == ("completed", None)
        capped = await harness.run(loop(rest, until=until.never(), max_iterations=1), 0, on_error="result")
        assert (capped.status, capped.loop_stop) == ("failed", None)
