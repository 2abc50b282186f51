"""What goes wrong has a name, says where, and says what to do about it."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from noetic_py import (
    Budget,
    Channel,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Message,
    Model,
    ModelRequest,
    Retry,
    Step,
    branch,
    call_model,
    call_tool,
    current_context,
    each,
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
from noetic_py.context.read import Services
from noetic_py.core.items import Refusal
from noetic_py.errors import (
    BudgetExceeded,
    ChannelClosed,
    ChannelTimeout,
    ChannelValueInvalid,
    CodecError,
    ConcurrentStepCall,
    ConfigError,
    DuplicateCall,
    InvalidId,
    LimitExceeded,
    LoopLimit,
    ModelNotFound,
    ModelParseError,
    ModelRefused,
    ModelRetry,
    NoContextError,
    NoeticError,
    NoOutput,
    ParallelFailed,
    RouteError,
    RunBusy,
    RunNotFound,
    StepTimeout,
    ToolArgumentsInvalid,
    ToolFailed,
    UnknownPrice,
    UnknownTool,
    UnpairedOutput,
    WrongThread,
)
from noetic_py.models import ModelStream
from noetic_py.testing import ScriptedModel


def named(value: object) -> str:
    """A test's name for a value: without the address, which differs between the workers that collect the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", getattr(value, "__qualname__", str(value)))


pytestmark = pytest.mark.anyio


class Report(BaseModel):
    title: str
    score: int


@step
async def echo(text: str) -> str:
    return text


@step
async def other(text: str) -> str:
    return text


@step
async def wait_for_ever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@tool
async def search(query: str, limit: int = 3) -> list[str]:
    """Search."""
    return [query] * limit


def explains(error: NoeticError, *path: str) -> None:
    """The error names the step's path, and the next thing to try, and its text shows both."""
    assert error.path == path
    if path:
        assert f"[at {'/'.join(path)}]" in str(error)
    assert error.hint
    assert f"Try: {error.hint}" in str(error)


async def failure(flow: Any, input: Any = "x", *, model: Model | None = None, **options: Any) -> NoeticError:
    """The error of a run that breaks; it carries the run's result."""
    async with Harness(model=model) as harness:
        run: Any = harness.run
        with pytest.raises(NoeticError) as caught:
            await run(flow, input, **options)
    assert caught.value.result is not None
    assert caught.value.result.status == "failed"
    assert caught.value.result.error is caught.value
    return caught.value


def gives(value: object) -> Any:
    """A function that returns the value, whatever it is called with."""

    def function(*args: object) -> object:
        return value

    return function


def agent(*tools: Any) -> Any:
    return loop(call_model(tools=tools), until=until.no_tool_calls())


def calls(name: str, arguments: str) -> ScriptedModel:
    return ScriptedModel(FunctionCall(name=name, arguments=arguments), FunctionCall(name=name, arguments=arguments))


# -------------------------------------------------------------------------------------------------- what the model says


async def test_unknown_tool() -> None:
    error = await failure(agent(search), model=calls("serach", "{}"))
    assert isinstance(error, UnknownTool)
    assert error.tool == "serach"
    assert "search" in (error.hint or "")
    explains(error, "loop", "call_model[1]", "tool[0]")


async def test_unknown_tool_is_first_said_to_the_model() -> None:
    model = ScriptedModel(FunctionCall(name="serach"), "done")
    async with Harness(model=model) as harness:
        result = await harness.run(agent(search), "x")
    assert result.value == "done"
    output = model.requests[1].items[-1]
    assert isinstance(output, FunctionCallOutput)
    assert "serach" in str(output.output)
    assert "search" in str(output.output)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "JSON"),
        ("[1]", "object"),
        ('{"query": "x", "limit": "many"}', "limit"),
        ("{}", "query"),
        ('{"query": "x", "page": 2}', "page"),
    ],
    ids=["malformed", "no object", "wrong type", "missing", "unknown"],
)
async def test_wrong_arguments(arguments: str, says: str) -> None:
    error = await failure(agent(search), model=calls("search", arguments))
    assert isinstance(error, ToolArgumentsInvalid)
    assert error.tool == "search"
    assert says in str(error)
    explains(error, "loop", "call_model[1]", "search[0]")


async def test_wrong_arguments_of_a_tool_step() -> None:
    error = await failure(call_tool(search, args={"query": "x", "limit": "many"}))
    assert isinstance(error, ToolArgumentsInvalid)
    explains(error, "search")


async def test_refusal() -> None:
    model = ScriptedModel(Message(role="assistant", content=[Refusal(refusal="I cannot do that.")]))
    error = await failure(call_model(), model=model)
    assert isinstance(error, ModelRefused)
    assert error.model == "test:scripted"
    assert "I cannot do that." in str(error)
    explains(error, "call_model")


@pytest.mark.parametrize(
    "answer", ['{"title": "x"}', "no JSON", '{"title": "x", "score": "high"}'], ids=["missing", "text", "wrong type"]
)
async def test_wrong_output_type_after_retries(answer: str) -> None:
    model = ScriptedModel(answer, answer, answer)
    error = await failure(call_model(output=Report, output_retries=2), model=model)
    assert isinstance(error, ModelParseError)
    assert error.model == "test:scripted"
    assert "output_retries" in (error.hint or "")
    explains(error, "call_model")
    model.assert_complete()


async def test_validator_that_never_accepts() -> None:
    def check(report: Report) -> Report:
        raise ModelRetry("the score is too low")

    answer = '{"title": "x", "score": 1}'
    error = await failure(call_model(output=Report, validate=check), model=ScriptedModel(answer, answer))
    assert isinstance(error, ModelParseError)
    assert "the score is too low" in str(error)
    explains(error, "call_model")


async def test_tool_that_never_accepts() -> None:
    @tool(retries=2)
    async def buy(count: int) -> str:
        raise ModelRetry("at most 5")

    turns = [FunctionCall(name="buy", arguments={"count": 9}) for _ in range(3)]
    error = await failure(agent(buy), model=ScriptedModel(*turns))
    assert isinstance(error, ToolFailed)
    assert "at most 5" in str(error)
    assert isinstance(error.__cause__, ModelRetry)
    explains(error, "loop", "call_model[2]", "buy[0]")


async def test_unserialisable_tool_value() -> None:
    @tool
    async def connect() -> object:
        return object()

    error = await failure(agent(connect), model=calls("connect", "{}"))
    assert isinstance(error, CodecError)
    assert "connect" in str(error)
    explains(error, "loop", "call_model[0]", "connect[0]")


async def test_only_tool_calls_outside_a_loop() -> None:
    error = await failure(call_model(tools=(search,)), model=calls("search", '{"query": "x"}'))
    assert isinstance(error, NoOutput)
    assert "loop" in (error.hint or "")
    explains(error, "call_model")


async def test_model_input_of_another_kind() -> None:
    error = await failure(call_model(), 3, model=ScriptedModel("x"))
    assert isinstance(error, ConfigError)
    assert error.code == "model-input"
    assert "int" in str(error)
    explains(error, "call_model")


async def test_model_input_of_messages_that_are_dicts() -> None:
    error = await failure(call_model(), [{"role": "user", "content": "hi"}], model=ScriptedModel("x"))
    assert isinstance(error, ConfigError)
    assert error.code == "model-input"
    assert "a list with dict" in error.message
    assert "from_wire" in (error.hint or "")
    explains(error, "call_model")


async def test_output_type_without_a_schema() -> None:
    for wanted in (Client, Callable[[int], str]):
        kind: Any = wanted
        error = await failure(call_model(output=kind), model=ScriptedModel("x"))
        assert isinstance(error, ConfigError)
        assert error.code == "output-type"
        explains(error, "call_model")


@pytest.mark.parametrize("options", [{"needs_approval": True}, {"long_running": True}], ids=str)
async def test_tool_that_needs_somebody_outside(options: Any) -> None:
    patient = search.with_options(**options)
    error = await failure(agent(patient), model=calls("search", '{"query": "x"}'))
    assert isinstance(error, ConfigError)
    assert error.code == "no-backend"
    explains(error, "loop", "call_model[0]", "search[0]")
    error = await failure(call_tool(patient, args={"query": "x"}))
    assert isinstance(error, ConfigError)
    explains(error, "search")


async def test_no_model() -> None:
    error = await failure(call_model())
    assert isinstance(error, ConfigError)
    assert error.code == "no-model"
    explains(error, "call_model")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("openai:gpt-5-mini", "pip install noetic-openai"),
        ("local:smollm2", "pip install noetic-local"),
        ("nobody:model", "no provider is installed: pip install noetic-openai"),
        ("gpt-5-mini", "openai:gpt-5-mini"),
        ("openai:", "openai:"),
        ("opnai:gpt-5-mini", 'did you mean "openai:gpt-5-mini"?'),
    ],
)
async def test_unknown_provider(name: str, says: str) -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(ModelNotFound) as caught:
            await harness.run(call_model(name), "x")
    assert caught.value.model == name
    assert says in (caught.value.hint or "")
    explains(caught.value, "call_model")


class Unpriced:
    """A model that nobody has set a price for."""

    name = "acme:unpriced"

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return ScriptedModel("never asked").respond(request)


async def test_unpriced_model_under_a_cost_limit() -> None:
    error = await failure(call_model(), model=Unpriced(), budget=Budget(cost="0.50"))
    assert isinstance(error, UnknownPrice)
    assert error.model == "acme:unpriced"
    assert "set_price" in (error.hint or "")
    explains(error, "call_model", "answer")


# ----------------------------------------------------------------------------------------------------- what a flow does


async def test_route_that_returns_no_step() -> None:
    error = await failure(branch(gives("other")))
    assert isinstance(error, RouteError)
    assert "'other'" in str(error)
    explains(error, "branch")


@pytest.mark.parametrize("key", ["c", ["unhashable"], None])
async def test_route_with_an_unknown_key(key: Any) -> None:
    error = await failure(branch(gives(key), {"a": echo, "b": other}))
    assert isinstance(error, RouteError)
    assert repr(key) in str(error)
    assert "'a', 'b'" in (error.hint or "")
    explains(error, "branch")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def by_literal(text: str) -> Literal["a", "b"]:
    return "a"


def by_enum(text: str) -> Colour:
    return Colour.RED


@pytest.mark.parametrize(
    ("route", "cases", "says"),
    [
        (by_literal, {"a": echo}, "'b'"),
        (by_literal, {"a": echo, "b": other, "c": echo}, "'c'"),
        (by_enum, {Colour.RED: echo}, "BLUE"),
        (by_enum, {Colour.RED: echo, Colour.BLUE: echo, "green": echo}, "'green'"),
        (by_literal, {}, "no cases"),
    ],
    ids=["literal missing", "literal extra", "enum missing", "enum extra", "none at all"],
)
def test_cases_that_do_not_fit_the_route(route: Any, cases: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        branch(route, cases)
    assert caught.value.code == "branch-cases"
    assert says in str(caught.value)
    explains(caught.value)


async def test_paths_that_are_no_steps() -> None:
    error = await failure(parallel(gives([echo, "other"])))
    assert isinstance(error, RouteError)
    assert "'other'" in str(error)
    explains(error, "parallel")


@pytest.mark.parametrize("paths", [3, None, "ab"])
async def test_paths_that_are_no_iterable(paths: Any) -> None:
    error = await failure(parallel(gives(paths)))
    assert isinstance(error, RouteError)
    assert repr(paths) in str(error) or "'a'" in str(error)
    explains(error, "parallel")


async def test_race_without_a_path() -> None:
    error = await failure(race(gives([])))
    assert isinstance(error, RouteError)
    explains(error, "race")


@pytest.mark.parametrize("value", ["text", b"bytes", 3, None])
async def test_each_on_something_else_than_a_list(value: Any) -> None:
    error = await failure(each(echo), value)
    assert isinstance(error, ConfigError)
    assert error.code == "each"
    assert type(value).__name__ in str(error)
    explains(error, "each")


async def test_failed_path() -> None:
    @step
    async def bad(text: str) -> str:
        raise ValueError("no")

    error = await failure(parallel([echo, bad]))
    assert isinstance(error, ParallelFailed)
    assert "ValueError: no" in str(error)
    explains(error, "parallel")


async def test_loop_over_its_cap() -> None:
    error = await failure(loop(echo, until=until.never(), max_iterations=3))
    assert isinstance(error, LoopLimit)
    assert error.limit == 3
    assert "3" in str(error)
    explains(error, "loop")


async def test_on_error_that_says_something_else() -> None:
    @step
    async def bad(text: str) -> str:
        raise ValueError("no")

    error = await failure(loop(bad, until=until.never(), on_error=gives("ignore")))
    assert isinstance(error, ConfigError)
    assert "'ignore'" in str(error)
    explains(error, "loop")


async def test_step_over_its_timeout() -> None:
    error = await failure(wait_for_ever.with_options(timeout=0.01))
    assert isinstance(error, StepTimeout)
    assert error.seconds == 0.01
    explains(error, "wait_for_ever")


async def test_step_over_its_budget() -> None:
    async with Harness() as harness:
        result = await harness.run(sequence(echo, other, echo).with_options(budget=Budget(steps=2)), "x")
    assert result.status == "budget_exceeded"
    with pytest.raises(BudgetExceeded) as caught:
        _ = result.value
    assert caught.value.dimension == "steps"
    explains(caught.value, "sequence", "echo#1")


async def test_spawns_too_deep() -> None:
    deep: Step[str, str] = echo
    for _ in range(17):
        deep = spawn(deep, id="deeper")
    error = await failure(deep)
    assert isinstance(error, LimitExceeded)
    assert (error.what, error.limit) == ("spawn depth", 16)
    explains(error, *["deeper"] * 17)


# ----------------------------------------------------------------------------------------------------- what a body does


async def test_two_steps_in_flight_from_a_task_group() -> None:
    @step
    async def both(text: str, ctx: Context) -> str:
        async def call(child: Step[str, str]) -> None:
            await child(text, ctx)

        async with anyio.create_task_group() as group:
            group.start_soon(call, echo)
            group.start_soon(call, other)
        return text

    error = await failure(both)
    assert isinstance(error, ConcurrentStepCall)
    assert "both/echo" in str(error) or "both/other" in str(error)
    assert "gather" in (error.hint or "")
    explains(error, "both")


async def test_child_called_while_another_is_in_flight() -> None:
    outer: list[Context] = []

    @step
    async def inner(text: str) -> str:
        return await other(text, outer[0])

    @step
    async def body(text: str, ctx: Context) -> str:
        outer.append(ctx)
        return await inner(text, ctx)

    error = await failure(body)
    assert isinstance(error, ConcurrentStepCall)
    assert "body/other" in str(error)
    assert "body/inner" in str(error)
    assert "gather" in (error.hint or "")


async def test_step_called_from_a_foreign_task() -> None:
    seen: list[ConcurrentStepCall] = []

    @step
    async def body(text: str, ctx: Context) -> str:
        async def work() -> None:
            with pytest.raises(ConcurrentStepCall) as caught:
                await echo(text, ctx)
            seen.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
        return await echo(text, ctx)

    async with Harness() as harness:
        assert (await harness.run(body, "x")).value == "x"
    assert "body/echo" in str(seen[0])
    explains(seen[0], "body")


async def test_step_that_is_still_in_flight_when_its_body_ends() -> None:
    class Wait:
        def __await__(self) -> Generator[None]:
            yield

    @step
    async def waits(text: str) -> str:
        await Wait()
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        # As an eager task does: it runs up to its first wait while the body's own code is still running.
        begun = waits(text, ctx)
        begun.send(None)
        return text

    error = await failure(body)
    assert isinstance(error, ConcurrentStepCall)
    assert "body/waits" in str(error)
    assert "had not ended" in str(error)
    explains(error, "body")


async def test_context_used_after_its_step_has_ended() -> None:
    kept: list[Context] = []

    @step
    async def first(text: str, ctx: Context) -> str:
        kept.append(ctx)
        return text

    @step
    async def second(text: str) -> str:
        return await echo(text, kept[0])

    error = await failure(first >> second)
    assert isinstance(error, ConcurrentStepCall)
    assert "ended" in str(error)
    assert "first/echo" in str(error)
    assert error.hint


async def test_context_used_after_its_run_has_ended() -> None:
    kept: list[Context] = []

    @step
    async def keep(text: str, ctx: Context) -> str:
        kept.append(ctx)
        return text

    async with Harness() as harness:
        await harness.run(keep, "x")
        with pytest.raises(ConcurrentStepCall, match="ended") as caught:
            await echo("x", kept[0])
        explains(caught.value, "keep")
        with pytest.raises(ConcurrentStepCall, match="ended"):
            await kept[0].gather(echo.bind("x"), echo.bind("y"))


async def test_root_of_a_context_whose_run_has_ended() -> None:
    kept: list[Context] = []

    @step
    async def keep(text: str, ctx: Context) -> str:
        kept.append(ctx)
        return text

    async with Harness() as harness:
        await harness.run(keep, "x")
    with pytest.raises(ConfigError, match="over") as caught:
        _ = kept[0].root
    explains(caught.value)


@pytest.mark.parametrize("wrong", [None, "ctx", object(), {}])
async def test_step_called_with_a_wrong_context(wrong: Any) -> None:
    @step
    async def body(text: str) -> str:
        return await echo(text, wrong)

    error = await failure(body)
    assert isinstance(error, NoContextError)
    assert "echo" in str(error)
    assert ("without a context" if wrong is None else type(wrong).__name__) in str(error)
    explains(error, "body")


async def test_step_called_with_a_read_only_view() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        view: Any = ctx.read_only()
        return await echo(text, view)

    error = await failure(body)
    assert isinstance(error, NoContextError)
    explains(error, "body")


async def test_step_called_without_a_context() -> None:
    call: Any = echo
    with pytest.raises(NoContextError, match="without a context") as caught:
        await call("x")
    explains(caught.value)


async def test_gather_of_something_else() -> None:
    @step
    async def body(text: str, ctx: Context) -> object:
        wrong: Any = "echo"
        return await ctx.gather(wrong)

    error = await failure(body)
    assert isinstance(error, ConfigError)
    assert error.code == "not-a-step"
    explains(error, "body")


async def test_unpaired_output_appended() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.items.append(FunctionCallOutput(call_id="call-1", output="x"))
        return text

    error = await failure(body)
    assert isinstance(error, UnpairedOutput)
    assert error.call_id == "call-1"
    explains(error, "body")


async def test_duplicate_call_appended() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.items.append(FunctionCall(name="search", call_id="call-1"))
        ctx.items.append(FunctionCall(name="search", call_id="call-1"))
        return text

    error = await failure(body)
    assert isinstance(error, DuplicateCall)
    assert error.call_id == "call-1"
    explains(error, "body")


class Client:
    """Something that is no data."""

    def __deepcopy__(self, memo: object) -> Client:
        raise TypeError("a client cannot be copied")


async def test_state_that_cannot_be_copied() -> None:
    @step
    async def body(text: str, ctx: Context[Any, dict[str, object]]) -> str:
        ctx.state["x"] = text
        return text

    error = await failure(body, state={"client": Client()})
    assert isinstance(error, ConfigError)
    assert error.code == "state-copy"
    assert "dict" in str(error)
    explains(error, "body")


async def test_stop_loop_outside_a_loop() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.stop_loop()
        return text

    error = await failure(body)
    assert isinstance(error, ConfigError)
    assert error.code == "no-loop"
    explains(error, "body")


async def test_stop_loop_inside_a_spawn_does_not_reach_the_loop_outside() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        ctx.stop_loop()
        return text

    error = await failure(loop(spawn(body), until=until.never()))
    assert isinstance(error, ConfigError)
    assert error.code == "no-loop"
    explains(error, "loop", "spawn:body[0]", "body")


async def test_missing_service() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        return str(ctx.services[Client])

    error = await failure(body)
    assert isinstance(error, ConfigError)
    assert error.code == "service-missing"
    assert "Client" in str(error)
    explains(error, "body")


async def test_service_that_a_tool_misses() -> None:
    @tool
    async def look(text: str, client: Client) -> str:
        return text

    error = await failure(call_tool(look, args={"text": "x"}))
    assert isinstance(error, ConfigError)
    assert error.code == "tool-injection"
    assert "Client" in str(error)
    explains(error, "look")


# ------------------------------------------------------------------------------------------------- definitions of steps


class Holder:
    async def method(self, text: str) -> str:
        return text

    @staticmethod
    async def static(text: str) -> str:
        return text


async def takes_context_alone(ctx: Context) -> str:
    return ""


async def takes_bare_context(ctx: Any) -> object:
    return ctx


takes_bare_context.__annotations__.clear()


def is_sync(text: str) -> str:
    return text


async def takes_three(text: str, ctx: Context, more: int) -> str:
    return text


async def takes_any_number(*texts: str) -> str:
    return ""


async def takes_keyword(text: str, *, more: int) -> str:
    return text


async def takes_keywords(text: str, **more: int) -> str:
    return text


async def generates(text: str) -> AsyncIterator[str]:
    yield text


@pytest.mark.parametrize(
    "function",
    [
        takes_context_alone,
        takes_bare_context,
        is_sync,
        takes_three,
        takes_any_number,
        takes_keyword,
        takes_keywords,
        generates,
        Holder.method,
        Holder().method,
        Holder,
        echo,
        3,
    ],
    ids=named,
)
def test_functions_that_cannot_be_steps(function: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        step(function)
    assert caught.value.code == "step-signature"
    explains(caught.value)


@pytest.mark.parametrize("descriptor", [staticmethod, classmethod])
def test_method_descriptors_cannot_be_steps(descriptor: Any) -> None:
    function = descriptor(takes_three)
    with pytest.raises(ConfigError) as caught:
        step(function)
    assert caught.value.code == "step-signature"
    explains(caught.value)


def test_a_refused_function_is_named_with_its_place() -> None:
    make: Any = step
    with pytest.raises(ConfigError) as caught:
        make(is_sync)
    assert "is_sync" in str(caught.value)
    assert "test_bad_input.py" in str(caught.value)


@pytest.mark.parametrize("id", ["", "a/b", "a#1", "a[0]", "a\nb", "x" * 201, 3])
def test_ids_that_no_path_can_hold(id: Any) -> None:
    make_step: Any = step
    makers: list[Callable[[], object]] = [
        lambda: echo.with_options(id=id),
        lambda: make_step(id=id)(echo.spec),
        lambda: echo.bind("x", id=id),
        lambda: sequence(echo, id=id),
        lambda: branch(by_literal, {"a": echo, "b": echo}, id=id),
        lambda: parallel(echo, other, id=id),
        lambda: race([echo], id=id),
        lambda: settle([echo], id=id),
        lambda: each(echo, id=id),
        lambda: loop(echo, until=until.never(), id=id),
        lambda: spawn(echo, id=id),
        lambda: call_model(id=id),
        lambda: call_tool(search, args={"query": "x"}, id=id),
    ]
    for make in makers:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "step-id"
        explains(caught.value)


def test_duplicate_ids() -> None:
    one = echo.with_options(id="same")
    two = other.with_options(id="same")
    makers: list[Callable[[], object]] = [lambda: sequence(one, two), lambda: one >> two]
    for make in makers:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "duplicate-id"
        assert "'same'" in str(caught.value)
        explains(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"retrys": 3},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": True},
        {"timeout": float("nan")},
        {"timeout": "1"},
        {"replay": "always"},
    ],
    ids=named,
)
def test_wrong_step_options(options: Any) -> None:
    for make in (lambda: step(**options)(echo.spec), lambda: echo.with_options(**options)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "step-option"
        assert next(iter(options)) in str(caught.value)
        explains(caught.value)


@pytest.mark.parametrize("retry", [0, -1, True, False, 1.5, "3"])
def test_wrong_number_of_attempts(retry: Any) -> None:
    for make in (lambda: Retry(retry), lambda: echo.with_options(retry=retry), lambda: call_model(retry=retry)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "retry"
        explains(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"initial": -1},
        {"max": -1},
        {"initial": float("nan")},
        {"initial": float("inf")},
        {"max": float("nan")},
        {"backoff": "quadratic"},
        {"on": ValueError},
        {"on": ("ValueError",)},
    ],
    ids=named,
)
def test_wrong_retry(options: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(3, **options)
    assert caught.value.code == "retry"
    explains(caught.value)


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "2"])
def test_wrong_concurrency(concurrency: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: parallel([echo], concurrency=concurrency),
        lambda: race([echo], concurrency=concurrency),
        lambda: settle([echo], concurrency=concurrency),
        lambda: each(echo, concurrency=concurrency),
    ]
    for make in makers:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "concurrency"
        explains(caught.value)


@pytest.mark.parametrize("make", [parallel, race, settle])
def test_sections_without_a_path(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make([])
    assert caught.value.code == "empty"
    explains(caught.value)


def test_sequence_and_parallel_without_a_step() -> None:
    for make in (sequence, parallel):
        empty: Any = make
        with pytest.raises(ConfigError) as caught:
            empty()
        assert caught.value.code == "empty"
        explains(caught.value)


@pytest.mark.parametrize("wrong", ["echo", None, 3, is_sync], ids=named)
def test_something_that_is_no_step(wrong: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: sequence(echo, wrong),
        lambda: echo >> wrong,
        lambda: branch(by_literal, {"a": echo, "b": wrong}),
        lambda: parallel([echo, wrong]),
        lambda: race([wrong]),
        lambda: settle([wrong]),
        lambda: each(wrong),
        lambda: loop(wrong, until=until.never()),
        lambda: spawn(wrong),
        lambda: step_tool(wrong, name="x", description=""),
        lambda: Harness(flows={"main": wrong}),
        lambda: Harness().graph(wrong),
    ]
    for make in makers:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "not-a-step"
        explains(caught.value)


def test_default_of_a_branch_that_is_no_step() -> None:
    wrong: Any = "echo"
    with pytest.raises(ConfigError) as caught:
        branch(by_literal, {"a": echo}, default=wrong)
    assert caught.value.code == "not-a-step"
    explains(caught.value)


@pytest.mark.parametrize("wrong", [3, None])
def test_section_of_something_else(wrong: Any) -> None:
    for make in (parallel, race, settle):
        build: Any = make
        with pytest.raises(ConfigError) as caught:
            build(wrong)
        assert caught.value.code == "not-a-step"
        explains(caught.value)


ANY: Any = "wrong"
NUMBER: Any = 3
MODEL: Any = call_model
TOOL: Any = call_tool


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: branch(ANY, {"a": echo}), "branch-route"),
        (lambda: parallel([echo], merge=ANY), "merge"),
        (lambda: loop(echo, until=ANY), "loop"),
        (lambda: loop(echo, until=until.never(), max_iterations=0), "loop"),
        (lambda: loop(echo, until=until.never(), max_iterations=ANY), "loop"),
        (lambda: loop(echo, until=until.never(), max_iterations=True), "loop"),
        (lambda: loop(echo, until=until.never(), prepare_next=ANY), "loop"),
        (lambda: loop(echo, until=until.never(), on_error=ANY), "loop"),
        (lambda: spawn(echo, state=ANY), "spawn"),
        (lambda: spawn(echo, items=ANY), "spawn"),
        (lambda: spawn(echo, timeout=0), "step-option"),
        (lambda: MODEL(output="text"), "call-model"),
        (lambda: MODEL("test:x", output="text"), "call-model"),
        (lambda: call_model(output=Report, output_retries=-1), "call-model"),
        (lambda: call_model(output=Report, output_retries=ANY), "call-model"),
        (lambda: call_model(instructions=NUMBER), "call-model"),
        (lambda: call_model(tools=(ANY,)), "call-model"),
        (lambda: call_model(timeout=0), "step-option"),
        (lambda: TOOL(ANY, args={}), "call-tool"),
        (lambda: TOOL(search, args=ANY), "call-tool"),
        (lambda: until.max_rounds(-1), "until"),
        (lambda: until.max_steps(ANY), "until"),
        (lambda: until.max_turns(3, scope=ANY), "until"),
        (lambda: until.max_cost(float("nan")), "until"),
        (lambda: until.max_cost(ANY), "until"),
        (lambda: until.max_cost(Decimal("NaN")), "until"),
        (lambda: until.max_seconds(True), "until"),
        (lambda: until.converged(threshold=0), "until"),
        (lambda: until.converged(threshold=1.5), "until"),
        (lambda: until.converged(threshold=ANY), "until"),
        (lambda: until.verified(ANY), "until"),
        (lambda: until.custom(ANY), "until"),
        (lambda: until.never() | ANY, "until"),
        (lambda: until.never() & ANY, "until"),
        (lambda: Harness(memory=ANY), "memory"),
        (lambda: Harness(plugins=ANY), "plugins"),
        (lambda: Harness(budget=ANY), "budget"),
        (lambda: Harness(model=NUMBER), "model"),
        (lambda: Harness(tools=(ANY,)), "tools"),
        (lambda: Harness(checkpoints=ANY), "checkpoints"),
        (lambda: call_model(NUMBER), "call-model"),
        (lambda: echo.with_options(budget=ANY), "step-option"),
        (lambda: echo.with_options(tags=NUMBER), "step-option"),
        (lambda: echo.with_options(version=NUMBER), "step-option"),
        (lambda: spawn(echo, budget=ANY), "spawn"),
    ],
)
def test_arguments_of_the_wrong_kind(make: Callable[[], object], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == code
    explains(caught.value)


COUNTS = (
    "steps",
    "model_calls",
    "tool_calls",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "tokens",
    "depth",
)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, True, 1.5, float("nan"), float("inf"), "3"])
def test_counts_no_budget_can_have(name: str, value: Any) -> None:
    given: Any = {name: value}
    with pytest.raises(ConfigError) as caught:
        Budget(**given)
    assert caught.value.code == "budget"
    assert name in str(caught.value)
    explains(caught.value)


@pytest.mark.parametrize("name", ["cost", "seconds"])
@pytest.mark.parametrize("value", [-1, True, float("nan"), float("inf"), -0.5, "much"])
def test_amounts_no_budget_can_have(name: str, value: Any) -> None:
    given: Any = {name: value}
    with pytest.raises(ConfigError) as caught:
        Budget(**given)
    assert caught.value.code == "budget"
    assert name in str(caught.value)
    explains(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"cost": Decimal("NaN")},
        {"cost": Decimal("-Infinity")},
        {"cost": object()},
        {"per_tool": {"search": -1}},
        {"per_tool": {"search": True}},
        {"warn_at": 1.5},
        {"warn_at": True},
        {"warn_at": float("nan")},
        {"warn_at": "high"},
        {"wrap_up": echo},
        {"wrap_up": is_sync, "reserve": Budget(steps=1)},
        {"tokens": 10, "reserve": Budget(tokens=11)},
        {"reserve": 3},
    ],
    ids=named,
)
def test_other_things_no_budget_can_have(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Budget(**given)
    assert caught.value.code == "budget"
    explains(caught.value)


# ----------------------------------------------------------------------------------------------------- harness and runs


@pytest.mark.parametrize(
    "options",
    [
        {"sesion": 3},
        {"on_error": "ignore"},
        {"deadline": -1},
        {"deadline": True},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": "soon"},
        {"budget": 3},
        {"services": 3},
        {"metadata": 3},
        {"metadata": {1: 2}},
        {"source": 3},
        {"model_settings": 3},
        {"history": 3},
        {"history": ["text"]},
    ],
    ids=named,
)
async def test_wrong_run_options(options: Any) -> None:
    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(echo, "x", **options)
        assert caught.value.code == "run-option"
        assert next(iter(options)) in str(caught.value)
        explains(caught.value)


@pytest.mark.parametrize("name", ["run_id", "thread_id", "user_id", "request_id"])
@pytest.mark.parametrize("value", ["", "x" * 257, "a\nb", "\ud800", 3, None])
async def test_ids_that_no_run_can_have(name: str, value: Any) -> None:
    given: Any = {name: value}
    async with Harness() as harness:
        with pytest.raises(InvalidId) as caught:
            await harness.run(echo, "x", **given)
        assert isinstance(caught.value, ValueError)
        assert name in str(caught.value)
        explains(caught.value)


async def test_run_of_something_that_is_no_step() -> None:
    wrong: Any = is_sync
    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(wrong, "x")
        assert caught.value.code == "not-a-step"
        assert "@step" in (caught.value.hint or "")
        explains(caught.value)


async def test_one_context_in_two_runs_at_once() -> None:
    ctx = Context()
    started = anyio.Event()

    @step
    async def hold(text: str) -> str:
        started.set()
        await anyio.sleep_forever()
        return text

    async with Harness() as harness, anyio.create_task_group() as group:

        async def run() -> None:
            await harness.run(hold, "x", ctx=ctx)

        group.start_soon(run)
        await started.wait()
        with pytest.raises(RunBusy) as caught:
            await harness.run(echo, "x", ctx=ctx)
        explains(caught.value)
        group.cancel_scope.cancel()
    async with Harness() as harness:
        assert (await harness.run(echo, "x", ctx=ctx)).value == "x"


async def test_one_context_in_runs_of_two_harnesses_at_once() -> None:
    ctx = Context()
    started = anyio.Event()

    @step
    async def hold(text: str) -> str:
        started.set()
        await anyio.sleep_forever()
        return text

    async with Harness() as one, Harness() as two, anyio.create_task_group() as group:

        async def run() -> None:
            await one.run(hold, "x", ctx=ctx)

        group.start_soon(run)
        await started.wait()
        with pytest.raises(RunBusy) as caught:
            await two.run(echo, "x", ctx=ctx)
        explains(caught.value)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("options", [{"state": {}}, {"history": []}], ids=named)
async def test_context_together_with_what_it_brings(options: Any) -> None:
    async with Harness() as harness:
        run: Any = harness.run
        with pytest.raises(ConfigError) as caught:
            await run(echo, "x", ctx=Context(), **options)
        assert caught.value.code == "run-option"
        assert "ctx=" in str(caught.value)
        explains(caught.value)


@pytest.mark.parametrize("wrong", ["ctx", 3, object()], ids=["text", "number", "object"])
async def test_run_with_something_that_is_no_context(wrong: Any) -> None:
    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(echo, "x", ctx=wrong)
        assert caught.value.code == "run-option"
        explains(caught.value)


async def test_run_with_the_context_of_a_step() -> None:
    async with Harness() as harness:

        @step
        async def body(text: str, ctx: Context) -> str:
            return (await harness.run(echo, text, ctx=ctx)).value

        with pytest.raises(ConfigError) as caught:
            await harness.run(body, "x")
        assert caught.value.code == "run-option"
        explains(caught.value, "body")


async def test_context_stopped_from_a_foreign_thread() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        caught: list[NoeticError] = []

        def work() -> None:
            uses: list[Callable[[], object]] = [lambda: ctx.abort("no"), lambda: ctx.complete("no")]
            for use in uses:
                with pytest.raises(WrongThread) as found:
                    use()
                caught.append(found.value)

        thread = threading.Thread(target=work)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        for error in caught:
            explains(error)
        assert len(caught) == 2
        assert not ctx.aborted
        return text

    async with Harness() as harness:
        assert (await harness.run(body, "x")).value == "x"


async def test_harness_in_two_threads() -> None:
    caught: list[WrongThread] = []

    async def use(harness: Harness) -> None:
        with pytest.raises(WrongThread) as found:
            await harness.run(echo, "x")
        caught.append(found.value)

    async with Harness() as harness:
        await harness.run(echo, "x")
        thread = threading.Thread(target=anyio.run, args=(use, harness))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    explains(caught[0])


async def test_harness_in_two_event_loops() -> None:
    harness = Harness()

    async def use() -> None:
        await harness.run(echo, "x")

    await use()
    with pytest.raises(WrongThread) as caught:
        await anyio.to_thread.run_sync(anyio.run, use)
    explains(caught.value)


async def test_run_sync_inside_an_event_loop() -> None:
    with pytest.raises(WrongThread) as caught:
        Harness().run_sync(echo, "x")
    assert "run_sync" in str(caught.value)
    explains(caught.value)


async def test_closed_harness() -> None:
    async with Harness() as harness:
        pass
    for use in (harness.run, harness.start):
        call: Any = use
        with pytest.raises(ConfigError) as caught:
            await call(echo, "x")
        assert caught.value.code == "harness-closed"
        explains(caught.value)
    with pytest.raises(ConfigError) as caught:
        async with harness.stream(echo, "x"):
            pass
    assert caught.value.code == "harness-closed"
    with pytest.raises(ConfigError) as caught:
        async with harness:
            pass
    assert caught.value.code == "harness-closed"


def test_run_sync_of_a_closed_harness() -> None:
    harness = Harness()

    async def open_and_close() -> None:
        async with harness:
            pass

    anyio.run(open_and_close)
    with pytest.raises(ConfigError) as caught:
        harness.run_sync(echo, "x")
    assert caught.value.code == "harness-closed"
    explains(caught.value)


async def test_harness_entered_twice() -> None:
    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            async with harness:
                pass
        assert caught.value.code == "harness-entered"
        explains(caught.value)


async def test_start_without_entering() -> None:
    with pytest.raises(ConfigError) as caught:
        Harness().start(echo, "x")
    assert caught.value.code == "harness-not-entered"
    explains(caught.value)


# ----------------------------------------------------------------------------------------------- contexts outside a run


async def test_engine_methods_outside_a_run() -> None:
    ctx = Context()
    uses: list[Callable[[], object]] = [
        lambda: ctx.complete(1),
        lambda: ctx.abort("no"),
        lambda: ctx.stop_loop(),
        lambda: ctx.emit("x"),
        lambda: ctx.idempotency_key,
    ]
    for use in uses:
        with pytest.raises(NoContextError) as caught:
            use()
        explains(caught.value)
    with pytest.raises(NoContextError, match="echo") as caught:
        await echo("x", ctx)
    explains(caught.value)
    with pytest.raises(NoContextError, match="gather") as caught:
        await ctx.gather(echo.bind("x"))
    explains(caught.value)


def test_step_tool_whose_input_type_is_unknown() -> None:
    async def look(text: str) -> str:
        return text

    look.__annotations__["text"] = "Nowhere"
    with pytest.raises(ConfigError) as caught:
        step_tool(step(look), name="look", description="")
    assert "input_type=" in (caught.value.hint or "")
    explains(caught.value)
    assert step_tool(step(look), name="look", description="", input_type=str).parameters


def test_no_current_context() -> None:
    assert current_context() is None
    with pytest.raises(NoContextError) as caught:
        current_context(required=True)
    explains(caught.value)


def test_tool_that_needs_a_context_outside_a_run() -> None:
    @tool
    async def look(ctx: Context, text: str) -> str:
        return text

    call: Any = look
    with pytest.raises(NoContextError, match="look") as caught:
        call("x")
    explains(caught.value)


def test_no_service_outside_a_run() -> None:
    with pytest.raises(ConfigError) as caught:
        Services()[Client]
    assert caught.value.code == "service-missing"
    explains(caught.value)


@asynccontextmanager
async def contexts() -> AsyncGenerator[list[Any]]:
    """A context outside a run, and one of a step that is running."""
    found: list[Any] = [Context()]
    ready, done = anyio.Event(), anyio.Event()

    @step
    async def body(text: str, ctx: Context) -> str:
        found.append(ctx)
        ready.set()
        await done.wait()
        return text

    async with Harness() as harness:
        harness.start(body, "x")
        await ready.wait()
        try:
            yield found
        finally:
            done.set()


async def test_contexts_are_neither_pickled_nor_copied() -> None:
    async with contexts() as found:
        for ctx in found:
            for use in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="context cannot be"):
                    use(ctx)


# ---------------------------------------------------------------------------- channels, schedules, work beside the flow


NUMBERS = Channel("numbers", int)
LINE = Channel("line", int, external=True)
LATEST = Channel("latest", int, mode="value")
NEWS = Channel("news", int, mode="topic")


@step
async def tick(_: None) -> None: ...


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: untyped(Channel)("", str), "channel"),
        (lambda: untyped(Channel)(None, str), "channel"),
        (lambda: untyped(Channel)("two\nlines", str), "channel"),
        (lambda: untyped(Channel)("x" * 201, str), "channel"),
        (lambda: untyped(Channel)("jobs", "str"), "channel"),
        (lambda: untyped(Channel)("jobs", 3), "channel"),
        (lambda: untyped(Channel)("jobs", [int]), "channel"),
        (lambda: untyped(Channel)("jobs", str, mode="stack"), "channel"),
        (lambda: untyped(Channel)("jobs", str, capacity=0), "channel"),
        (lambda: untyped(Channel)("jobs", str, capacity=-1), "channel"),
        (lambda: untyped(Channel)("jobs", str, capacity=2.5), "channel"),
        (lambda: untyped(Channel)("jobs", str, capacity="many"), "channel"),
        (lambda: untyped(every)(0, tick), "every"),
        (lambda: untyped(every)(-1.0, tick), "every"),
        (lambda: untyped(every)("1h", tick), "every"),
        (lambda: untyped(every)(float("nan"), tick), "every"),
        (lambda: untyped(every)(60.0, tick, jitter=-1), "every"),
        (lambda: untyped(every)(60.0, tick, on_error="skip"), "every"),
        (lambda: untyped(every)(60.0, tick, wake="wake"), "every"),
        (lambda: untyped(every)(60.0, tick, wake=LATEST), "every"),
        (lambda: untyped(every)(60.0, lambda: None), "not-a-step"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox="inbox"), "loop"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox=LATEST), "loop"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox=NEWS), "loop"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox=NUMBERS, inbox_timeout=-1), "loop"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox=NUMBERS, inbox_timeout="long"), "loop"),
        (lambda: untyped(loop)(echo, until=until.never(), inbox_timeout=60.0), "loop"),
    ],
)
def test_definitions_of_channels_schedules_and_inboxes(make: Callable[[], object], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == code
    explains(caught.value)


def untyped(value: object) -> Any:
    return value


ASKED: list[tuple[str, tuple[object, ...], dict[str, object], type[NoeticError]]] = [
    ("send", (NUMBERS, "one"), {}, ChannelValueInvalid),
    ("send", (NUMBERS, True), {}, ChannelValueInvalid),
    ("send", (NUMBERS, None), {}, ChannelValueInvalid),
    ("send", ("numbers", 1), {}, ConfigError),
    ("send", (NUMBERS, 1), {"timeout": "soon"}, ConfigError),
    ("send", (Channel("numbers", str), "x"), {}, ConfigError),
    ("recv", ("numbers",), {}, ConfigError),
    ("recv", (NUMBERS,), {"timeout": -1}, ConfigError),
    ("recv", (NUMBERS,), {"timeout": 0}, ChannelTimeout),
    ("recv", (Channel("numbers", int, capacity=1),), {}, ConfigError),
    ("try_recv", ("numbers",), {}, ConfigError),
    ("spawn_detached", (echo, "x"), {"owner": "me"}, ConfigError),
    ("spawn_detached", (echo, "x"), {"budget": 1}, ConfigError),
    ("spawn_detached", ("echo", "x"), {}, ConfigError),
]


@pytest.mark.parametrize(("method", "args", "options", "kind"), ASKED)
async def test_what_a_body_asks_of_channels_and_work(
    method: str, args: tuple[object, ...], options: dict[str, object], kind: type[NoeticError]
) -> None:
    @step
    async def body(text: str, ctx: Context) -> None:
        assert ctx.try_recv(NUMBERS) is None
        asked = getattr(ctx, method)(*args, **options)
        if inspect.isawaitable(asked):
            await asked

    error = await failure(body)
    assert type(error) is kind
    explains(error, "body")


async def test_handles_of_channels() -> None:
    @step
    async def body(text: str, ctx: Context) -> int:
        return await ctx.recv(LINE)

    async with Harness() as harness, Harness() as other:
        handle = harness.start(body, "x")
        channel = handle.channel(LINE)
        refused: list[tuple[Callable[[], object], type[NoeticError]]] = [
            (lambda: handle.channel(NUMBERS), ConfigError),
            (lambda: handle.channel(untyped("line")), ConfigError),
            (lambda: handle.channel(Channel("line", str, external=True)), ConfigError),
            (lambda: harness.channel_handle(NUMBERS, handle.run_id), ConfigError),
            (lambda: harness.channel_handle(LINE, "unknown"), RunNotFound),
            (lambda: harness.channel_stream(LINE, "unknown"), RunNotFound),
            (lambda: other.channel_handle(LINE, handle.run_id), RunNotFound),
            (lambda: channel.send(untyped("one")), ChannelValueInvalid),
        ]
        for use, kind in refused:
            with pytest.raises(kind) as caught:
                use()
            explains(caught.value)
        channel.send(1)
        await handle.result()
        ended: list[tuple[Callable[[], object], type[NoeticError]]] = [
            (lambda: channel.send(2), ChannelClosed),
            (lambda: handle.channel(LINE).send(2), ChannelClosed),
            (lambda: harness.channel_handle(LINE, handle.run_id), RunNotFound),
        ]
        for use, kind in ended:
            with pytest.raises(kind) as caught:
                use()
            explains(caught.value)


async def test_work_without_an_owner() -> None:
    @step
    async def body(text: str, ctx: Context) -> None:
        ctx.spawn_detached(echo, text)

    with pytest.raises(ConfigError) as caught:
        await Harness().run(body, "x")
    assert caught.value.code == "harness-not-entered"
    explains(caught.value, "body")


async def test_channels_and_work_outside_a_run() -> None:
    ctx = Context()
    with pytest.raises(NoContextError, match="send") as caught:
        await ctx.send(NUMBERS, 1)
    explains(caught.value)
    with pytest.raises(NoContextError, match="recv") as caught:
        await ctx.recv(NUMBERS)
    explains(caught.value)
    with pytest.raises(NoContextError, match="try_recv") as caught:
        ctx.try_recv(NUMBERS)
    explains(caught.value)
    with pytest.raises(NoContextError, match="spawn_detached") as caught:
        ctx.spawn_detached(echo, "x")
    explains(caught.value)


@pytest.mark.parametrize("name", ["thread_id", "request_id", "trace", "name"])
@pytest.mark.parametrize("value", [3, "a\nb", "x" * 257, "\ud800", b"r", ["r"]])
async def test_ids_of_a_context_outside_a_run(name: str, value: Any) -> None:
    if name == "name" and value == "x" * 257:
        return
    with pytest.raises(InvalidId) as caught:
        Context(**{name: value})
    explains(caught.value)


@pytest.mark.parametrize("name", ["request_id", "trace"])
@pytest.mark.parametrize("value", [3, "", "a\nb", "x" * 257])
async def test_ids_that_a_context_is_given_later(name: str, value: Any) -> None:
    ctx = Context(request_id="r")
    with pytest.raises(InvalidId) as caught:
        setattr(ctx, name, value)
    explains(caught.value)
    assert (ctx.request_id, ctx.trace) == ("r", None)


async def test_a_step_is_called_with_a_context_that_goes_into_a_run() -> None:
    @step
    async def outer(text: str, ctx: Context) -> str:
        return await echo(text, ctx.child(preset="copy"))

    async with Harness() as harness:
        with pytest.raises(NoContextError) as caught:
            await harness.run(outer, "x")
    explains(caught.value, "outer")
    assert "ctx.child(preset='derive')" in str(caught.value)
