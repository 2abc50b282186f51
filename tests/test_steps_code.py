from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional

import anyio
import pytest

from noetic_py import Budget, Context, Harness, Memory, Message, Retry, StateBag, Step, StepStarted, loop, step, until
from noetic_py.core.items import ModelInput
from noetic_py.errors import ConfigError, StepFailed, StepTimeout
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio


async def run(flow: Any, input: object = "x", **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, input, **options)).value


# ------------------------------------------------------------------------------------------------------------ functions


async def test_a_function_takes_input_and_context_or_input_or_nothing() -> None:
    @step
    async def two(text: str, ctx: Context) -> str:
        return f"{ctx.name} {text}"

    @step
    async def one(text: str) -> str:
        return text

    @step
    async def none() -> str:
        return "nothing"

    assert await run(two) == "two x"
    assert await run(one) == "x"
    assert await run(none) == "nothing"


async def test_the_parameters_may_be_called_anything() -> None:
    @step
    async def odd(ctx: str, input: Context) -> str:
        return f"{input.name} {ctx}"

    @step
    async def positional(text: str, ctx: Context, /) -> str:
        return f"{ctx.name} {text}"

    @step
    async def only_looks_like_it(ctx: str) -> str:
        return ctx

    assert await run(odd) == "odd x"
    assert await run(positional) == "positional x"
    assert await run(only_looks_like_it) == "x"


async def test_defaults_are_allowed() -> None:
    @step
    async def greet(text: str = "nobody") -> str:
        return text

    assert await run(greet) == "x"


async def test_the_input_may_be_the_context_s_neighbour_in_name_only() -> None:
    """A class of the user's own that is called like the context, and is not one."""

    class ContextItem:
        pass

    @step
    async def take(item: ContextItem) -> str:
        return type(item).__name__

    assert await run(take, ContextItem()) == "ContextItem"


@pytest.mark.parametrize("wanted", ["Context", "Context[Memory, StateBag]", "noetic_py.Context"])
def test_context_alone_is_found_in_an_annotation_that_is_text(wanted: str) -> None:
    async def takes(ctx: Any) -> None: ...

    takes.__annotations__["ctx"] = wanted
    with pytest.raises(ConfigError, match="context alone"):
        step(takes)


def test_context_alone_is_found_in_an_annotation_that_is_a_class() -> None:
    async def takes(everything: Any) -> None: ...

    for wanted in (Context, Context[Memory, StateBag]):
        takes.__annotations__["everything"] = wanted
        with pytest.raises(ConfigError, match="context alone"):
            step(takes)


def test_an_annotation_that_does_not_resolve_is_no_obstacle() -> None:
    async def takes(text: Any) -> None: ...

    takes.__annotations__["text"] = "Nowhere[str]"
    assert step(takes).id == "takes"


def test_a_partial_needs_a_name() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(ConfigError) as caught:
        step(partial(add, 1))
    assert caught.value.code in ("step-signature", "step-id")
    assert "id=" in (caught.value.hint or "")


async def test_a_partial_with_a_name() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    made: Callable[[int], Any] = partial(add, 1)
    assert await run(step(id="add_one")(made), 2) == 3


async def test_one_function_may_be_several_steps() -> None:
    async def work(text: str, ctx: Context) -> str:
        return f"{text}{ctx.name}"

    a, b = step(id="a")(work), step(id="b")(work)
    assert await run(a >> b, "") == "ab"


# -------------------------------------------------------------------------------------------------------------- options


@step
async def echo(text: str) -> str:
    return text


def test_a_step_is_named_after_its_function() -> None:
    assert (echo.id, echo.kind) == ("echo", "code")
    assert repr(echo) == "<code step 'echo'>"
    assert step(id="other")(echo.spec).id == "other"


def test_options_have_defaults() -> None:
    assert (echo.retry, echo.timeout, echo.replay, echo.budget, echo.version) == (None, None, "repeatable", None, None)
    assert echo.tags == frozenset()


def test_options_are_kept() -> None:
    budget = Budget(steps=3)
    made = step(retry=2, timeout=1.5, replay="once", budget=budget, version="2", tags=["a", "b"])(echo.spec)
    assert isinstance(made.retry, Retry)
    assert made.retry.attempts == 2
    assert (made.timeout, made.replay, made.budget, made.version) == (1.5, "once", budget, "2")
    assert made.tags == {"a", "b"}
    assert step(tags="one")(echo.spec).tags == {"one"}
    assert step(retry=1)(echo.spec).retry is None
    given = Retry(5)
    assert step(retry=given)(echo.spec).retry is given


def test_with_options_leaves_the_step_as_it_was() -> None:
    other = echo.with_options(id="other", timeout=3)
    assert (other.id, other.timeout, other.spec) == ("other", 3, echo.spec)
    assert (echo.id, echo.timeout) == ("echo", None)
    again = other.with_options(retry=2)
    assert (again.id, again.timeout) == ("other", 3)


def test_an_id_of_none_is_no_id() -> None:
    options: Any = {"id": None}
    assert step(**options)(echo.spec).id == "echo"
    assert echo.with_options(**options).id == "echo"


def test_a_step_is_equal_to_itself_alone() -> None:
    assert len({echo, echo, echo.with_options()}) == 2


async def test_a_bound_step_has_an_input_of_its_own() -> None:
    bound = echo.bind("mine")
    assert await run(bound, "given") == "mine"
    assert bound.id == "echo"
    assert echo.bind("mine", id="other").id == "other"
    assert await run(echo.bind("first").bind("second"), "given") == "second"


async def test_what_a_body_writes_between_its_children_keeps_its_place() -> None:
    @step
    async def write(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        await write("1", ctx)
        ctx.items.append(Message.user("2"))
        with pytest.raises(StepFailed):
            await hopeless("lost at once", ctx)
        ctx.items.append(Message.user("2b"))
        await echo("nothing", ctx)
        ctx.items.append(Message.user("3"))
        with pytest.raises(StepFailed):
            await bad("lost", ctx)
        ctx.items.append(Message.user("4"))
        with pytest.raises(StepFailed):
            await bad("lost too", ctx)
        ctx.items.append(Message.user("5"))
        with pytest.raises(StepFailed):
            await hopeless("lost at once", ctx)
        ctx.items.append(Message.user("6"))
        with pytest.raises(StepFailed):
            await hopeless("lost at once", ctx)
        return text

    @step
    async def hopeless(text: str) -> str:
        raise ValueError(text)

    @step
    async def bad(text: str, ctx: Context) -> str:
        await write(text, ctx)
        ctx.items.append(Message.user(text))
        raise ValueError(text)

    async with Harness() as harness:
        ctx = Context()
        result = await harness.run(body, "x", ctx=ctx)
    assert [item.text for item in result.items if isinstance(item, Message)] == ["1", "2", "2b", "3", "4", "5", "6"]
    assert list(ctx.items) == list(result.items)


async def test_a_step_can_be_called_many_times() -> None:
    paths: list[tuple[str, ...]] = []

    @step
    async def note(n: int, ctx: Context) -> int:
        paths.append(ctx.path)
        return n

    @step
    async def body(text: str, ctx: Context) -> int:
        return sum([await note(n, ctx) for n in range(3)])

    assert await run(body) == 3
    assert paths == [("body", "note"), ("body", "note#1"), ("body", "note#2")]


# ------------------------------------------------------------------------------------------------- failures and retries


async def test_what_a_body_raises_is_the_cause() -> None:
    @step
    async def bad(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(StepFailed) as caught:
        await run(bad)
    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.error_type, caught.value.path) == ("KeyError", ("bad",))


async def test_an_exception_without_text() -> None:
    @step
    async def bad(text: str) -> str:
        raise ValueError

    with pytest.raises(StepFailed) as caught:
        await run(bad)
    assert caught.value.message == "ValueError"


async def test_a_handled_failure_leaves_nothing_behind() -> None:
    @step
    async def bad(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["bad"] = text
        raise ValueError(text)

    @step
    async def body(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["mine"] = text
        with pytest.raises(StepFailed):
            await bad(text, ctx)
        ctx.state["after"] = text
        return await echo(text, ctx)

    async with Harness() as harness:
        result = await harness.run(body, "x")
    assert dict(result.state.view()) == {"mine": "x", "after": "x"}


@pytest.mark.parametrize("failing", [False, True])
async def test_a_step_within_its_timeout(failing: bool) -> None:
    @step(timeout=60)
    async def work(text: str) -> str:
        if failing:
            raise ValueError(text)
        return text

    if failing:
        with pytest.raises(StepFailed):
            await run(work)
    else:
        assert await run(work) == "x"


async def test_a_timeout_can_be_handled_and_retried() -> None:
    tries = 0

    @step(timeout=0.01, retry=Retry(2, initial=0))
    async def slow(text: str) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            await anyio.sleep_forever()
        return text

    @step(timeout=0.01)
    async def too_slow(text: str) -> str:
        await anyio.sleep_forever()
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(StepTimeout):
            await too_slow(text, ctx)
        return await slow(text, ctx)

    assert await run(body) == "x"
    assert tries == 2


async def test_a_timeout_cancels_the_children() -> None:
    stopped: list[str] = []

    @step
    async def child(text: str) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(text)
        return text

    @step(timeout=0.01)
    async def body(text: str, ctx: Context) -> str:
        return await child(text, ctx)

    with pytest.raises(StepTimeout) as caught:
        await run(body)
    assert caught.value.path == ("body",)
    assert stopped == ["x"]


async def test_each_attempt_is_an_event() -> None:
    @step(retry=Retry(3, initial=0, jitter=False))
    async def flaky(text: str) -> str:
        raise ValueError(text)

    async with Harness() as harness, harness.stream(flaky, "x", on_error="result") as stream:
        attempts = [event.attempt async for event in stream.events if isinstance(event, StepStarted)]
    assert attempts == [1, 2, 3]


async def test_the_idempotency_key_stays_from_attempt_to_attempt_and_differs_otherwise() -> None:
    keys: list[str] = []

    @step(retry=Retry(2, initial=0))
    async def pay(text: str, ctx: Context) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise ValueError(text)
        return text

    async with Harness() as harness:
        await harness.run(pay >> pay, "x", run_id="run-1")
        await harness.run(pay, "x", run_id="run-2")
        await harness.run(pay.with_options(id="p"), "x", run_id="run-1")
        await harness.run(pay, "x", run_id="run-1")
    first, again, second_step, other_run, other_step, _ = keys
    assert first == again
    assert len({first, second_step, other_run, other_step}) == 4


@pytest.mark.parametrize("attempts", [1, 5, 200])
def test_waits_are_bounded(attempts: int) -> None:
    retry = Retry(attempts, initial=0.5, max=30)
    assert 0.25 <= retry.wait(attempts, 0.0) <= retry.wait(attempts, 1.0) <= 30


async def test_retries_wait_on_the_runtime_s_clock() -> None:
    runtime = VirtualRuntime()

    @step(retry=Retry(2, initial=3600, max=7200, jitter=False))
    async def flaky(text: str, ctx: Context) -> float:
        if ctx.elapsed == 0:
            raise ValueError(text)
        return ctx.elapsed

    async with Harness(runtime=runtime) as harness:
        handle = harness.start(flaky, "x")
        await runtime.advance(3600)
        assert (await handle.result()).value == 3600


# -------------------------------------------------------------------------------------- going on from the log in a loop


async def inputs_of(function: Any) -> list[object]:
    """The inputs of two iterations."""
    seen: list[object] = []

    async def body(given: Any) -> str:
        seen.append(given)
        return "output"

    body.__annotations__ = function
    await run(loop(step(body), until=until.max_rounds(2)))
    return seen


@pytest.mark.parametrize(
    "annotation",
    [
        str | None,
        Optional[str],  # noqa: UP045 # both spellings are read
        "str | None",
        "Optional[str]",
        ModelInput,
        "Missing | None",
        "Optional[Missing]",
    ],
    ids=str,
)
async def test_a_body_that_takes_none_gets_none(annotation: Any) -> None:
    assert await inputs_of({"given": annotation}) == ["x", None]


@pytest.mark.parametrize("annotation", [str, "str", Sequence[str], "Missing", object], ids=str)
async def test_any_other_body_gets_its_last_output(annotation: Any) -> None:
    assert await inputs_of({"given": annotation}) == ["x", "output"]


async def test_a_body_without_annotations_gets_its_last_output() -> None:
    assert await inputs_of({}) == ["x", "output"]


async def test_an_awaitable_that_a_body_makes_is_its_own_business() -> None:
    @step
    async def body(text: str, ctx: Context) -> str:
        called: Step[str, str] = echo
        return await called(text, ctx) + await called(text, ctx)

    assert await run(body) == "xx"
