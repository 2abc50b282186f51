from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import evolve
from trio.testing import MockClock

from noetic_py import Budget, Harness, Message, RunResult, TokenUsage, call_model, errors, loop, settle, step, until
from noetic_py.checkpoints import InMemoryBackend
from noetic_py.core.budget import BudgetLease
from noetic_py.core.events import Event, ModelFailed, ModelFinished, ModelStarted, StepDiscarded, TextDelta
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.tokens import counter_for
from noetic_py.errors import (
    AllModelsFailed,
    ConfigError,
    ContextOverflow,
    ModelBusy,
    ModelError,
    ModelNotFound,
    ModelParseError,
    ModelRefused,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    RateLimited,
    RealModelRefused,
)
from noetic_py.journal.records import StepFinished
from noetic_py.models import (
    FallbackModel,
    ItemDone,
    LimitedModel,
    Model,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    ModelWrapper,
    Price,
    RetryModel,
    TextPart,
    TimedModel,
)
from noetic_py.models.model import current_runtime
from noetic_py.models.wrapper import GeneratedAnswer
from noetic_py.testing import ScriptedModel, ScriptExhausted, Turn, Unfinished, VirtualRuntime

pytestmark = pytest.mark.anyio

NAME = "test:scripted"
ON_ITS_OWN_CLOCK = pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio")]
)
"""For limits that one thing has to keep and another has to pass: time goes by only while every task waits."""


def down() -> ModelError:
    return ModelUnavailable("connection refused", model=NAME)


def cut(said: str = "High wa") -> Unfinished:
    return Unfinished(said, ModelStreamError("the stream was cut", model=NAME))


def status(code: int) -> ModelError:
    return ModelStatusError(f"status {code}", model=NAME, status=code)


def limited(after: float | None = None) -> RateLimited:
    return RateLimited("too many requests", model=NAME, retry_after=after)


REQUEST = ModelRequest([Message.user("When is high water?")])


async def ask(model: Model) -> ModelResponse:
    """One call, outside of a run."""
    async with model.respond(REQUEST) as stream:
        return await stream.response()


def said(response: ModelResponse) -> str:
    return "".join(item.text for item in response.items if isinstance(item, Message))


def lease_of(harness: Harness[Any]) -> BudgetLease:
    return harness._resources.lease


class Hasty(Runtime):
    """A clock that jumps over every sleep, and remembers them."""

    __slots__ = ("_chance", "elapsed", "slept")

    def __init__(self) -> None:
        super().__init__()
        self._chance = random.Random(1)
        self.elapsed = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.elapsed

    def random(self) -> float:
        return self._chance.random()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds
        await checkpoint()


async def run(
    model: Model | str,
    *,
    budget: Budget | None = None,
    runtime: Runtime | None = None,
    harness: Harness[Any] | None = None,
) -> tuple[RunResult[Any, Any], list[Event]]:
    """One call in a run that is watched, however it ends."""
    events: list[Event] = []
    made: Harness[Any] = harness or Harness(plugins=(), runtime=runtime or SYSTEM)
    options: dict[str, Any] = {} if budget is None else {"budget": budget}
    async with made:
        handle = made.start(call_model(model), "When is high water?", on_error="result", **options)
        handle._run.bus.watch(events.append)
        result: RunResult[Any, Any] = await handle.result()
    return result, events


def told(events: Sequence[Event]) -> list[str]:
    """What somebody who watches is told of models."""
    out: list[str] = []
    for event in events:
        match event:
            case ModelStarted():
                out.append(f"start {event.model}")
            case TextDelta():
                out.append(event.delta)
            case ModelFailed():
                out.append(f"failed {event.model}: {event.error.partition(' [')[0]}")
            case ModelFinished():
                out.append(f"end {event.model}")
            case _:
                pass
    return out


# -------------------------------------------------------------------------------------------------------- leaf models


class Scoped:
    """A model that holds a task group, and a scope, open while its answer is read."""

    name = "test:scoped"

    def __init__(self, *turns: Turn) -> None:
        self.inner = ScriptedModel(*turns, name=self.name)

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                with anyio.CancelScope():
                    async with self.inner.respond(request) as stream:
                        yield stream
                group.cancel_scope.cancel()
        except ExceptionGroup as several:
            [error] = several.exceptions
            raise error from None


class Impatient:
    """A model that lets another wait for 10 ms, and at the last try for a minute: that one has to be in time."""

    name = "test:scoped"

    def __init__(self, inner: Model, tries: int) -> None:
        self.inner, self.tries = inner, tries

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        self.tries -= 1
        limit = 0.01 if self.tries else 60.0
        return TimedModel(self.inner, begin=limit, idle=limit, total=60).respond(request)


class Generating:
    """A model whose events come out of an async generator, which has something to close, and does not close itself."""

    name = "test:generating"

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces
        self.closed = 0

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        yield _Generated(self)


class _Generated:
    def __init__(self, model: Generating) -> None:
        self.model = model

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        try:
            for piece in self.model.pieces:
                await checkpoint()
                yield TextPart(piece)
        finally:
            await checkpoint()
            self.model.closed += 1

    async def response(self) -> ModelResponse:
        return ModelResponse([Message.assistant("".join(self.model.pieces))], model=self.model.name)


class Silent:
    """A model that streams nothing and gives the whole at the end, when it is told to."""

    name = "test:silent"

    def __init__(self) -> None:
        self.ready = anyio.Event()

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        yield _Whole(self)


class _Whole:
    def __init__(self, model: Silent) -> None:
        self.model = model

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        raise StopAsyncIteration

    async def response(self) -> ModelResponse:
        await self.model.ready.wait()
        return ModelResponse([Message.assistant("whole")])


class Translating:
    """A model that makes errors of the library out of its own where its block is left."""

    name = "test:translating"

    def __init__(self, *turns: Turn) -> None:
        self.inner = ScriptedModel(*turns, name=self.name)

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        try:
            async with self.inner.respond(request) as stream:
                yield stream
        except ConnectionError as error:
            raise ModelStreamError("the connection broke", model=self.name) from error


# -------------------------------------------------------------------------------------------------------------- retry

MENDED: list[Callable[[], Turn]] = [
    limited,
    lambda: limited(0.5),
    lambda: status(500),
    lambda: status(503),
    lambda: status(408),
    down,
    lambda: cut(),
    lambda: cut(""),
    lambda: Unfinished("High", ModelStreamError("the stream is malformed", model=NAME)),
    lambda: ModelStreamError("the stream stalled", model=NAME),
    lambda: ModelBusy(3, model=NAME),
]
FINAL: list[Callable[[], Exception]] = [
    lambda: ModelRefused("no", model=NAME),
    lambda: ModelParseError("no JSON", model=NAME),
    lambda: status(400),
    lambda: status(401),
    lambda: ContextOverflow("too long", model=NAME, status=500),
    lambda: ModelNotFound("who?", model=NAME),
    lambda: RealModelRefused("a test", model=NAME),
    lambda: ScriptExhausted("over", model=NAME),
    lambda: ConfigError("wrong", code="x"),
    lambda: errors.BudgetExceeded("cost", limit=1, requested=1, settled=1),
]


@pytest.mark.parametrize("turn", MENDED)
async def test_what_another_try_may_mend_is_tried_again(turn: Callable[[], Turn]) -> None:
    model = RetryModel(ScriptedModel(turn(), turn(), "At noon."), initial=0)
    result, _ = await run(model, runtime=Hasty())
    assert (result.value, result.model_calls) == ("At noon.", 3)


@pytest.mark.parametrize("turn", [each for each in MENDED if each is not MENDED[1]])
async def test_it_is_tried_again_outside_of_a_run_too(turn: Callable[[], Turn]) -> None:
    leaf = ScriptedModel(turn(), "At noon.")
    assert said(await ask(RetryModel(leaf, initial=0))) == "At noon."
    leaf.assert_complete()


@pytest.mark.parametrize("error", FINAL)
async def test_what_no_other_try_mends_is_raised_at_once(error: Callable[[], Exception]) -> None:
    made = error()
    leaf = ScriptedModel(made, "At noon.")
    result, _ = await run(RetryModel(leaf, initial=0))
    assert result.error is made
    assert len(leaf.requests) == 1
    with pytest.raises(type(made)):
        await ask(RetryModel(ScriptedModel(error(), "At noon."), initial=0))


async def test_a_mistake_of_the_model_itself_is_no_reason_to_try_again() -> None:
    leaf = ScriptedModel(KeyError("bug"), "At noon.")
    with pytest.raises(KeyError):
        await ask(RetryModel(leaf, initial=0))
    assert len(leaf.requests) == 1


async def test_the_last_error_is_raised() -> None:
    last = status(502)
    leaf = ScriptedModel(down(), cut(), last, "too late")
    result, _ = await run(RetryModel(leaf, initial=0))
    assert result.error is last
    assert (result.status, result.model_calls) == ("failed", 3)
    once = down()
    with pytest.raises(ModelUnavailable) as caught:
        await ask(RetryModel(ScriptedModel(once, "too late"), 1))
    assert caught.value is once


async def test_waits_grow_up_to_their_limit() -> None:
    runtime = Hasty()
    model = RetryModel(ScriptedModel(*[down()] * 6), 6, initial=0.5, max=3.0, jitter=False)
    await run(model, runtime=runtime)
    assert runtime.slept == [0.5, 1.0, 2.0, 3.0, 3.0]


async def test_each_wait_is_a_random_part() -> None:
    runtime = Hasty()
    await run(RetryModel(ScriptedModel(*[down()] * 40), 40, initial=8.0, max=8.0), runtime=runtime)
    assert len(runtime.slept) == 39
    assert all(0 <= seconds < 8 for seconds in runtime.slept)
    assert min(runtime.slept) < 1
    assert max(runtime.slept) > 7


async def test_a_provider_is_waited_for_at_least_as_long_as_it_asks() -> None:
    runtime = Hasty()
    model = RetryModel(ScriptedModel(limited(20.0), limited(0.0), limited(None), limited(-5.0), "ok"), 5, initial=1.0)
    result, _ = await run(model, runtime=runtime)
    assert result.value == "ok"
    first, *others = runtime.slept
    assert 20 <= first < 21
    assert all(0 <= seconds < 8 for seconds in others)


@pytest.mark.parametrize("after", [60.5, float("inf")])
async def test_a_provider_that_asks_for_too_much_is_not_waited_for(after: float) -> None:
    runtime = Hasty()
    result, _ = await run(RetryModel(ScriptedModel(limited(after), "ok")), runtime=runtime)
    assert isinstance(result.error, RateLimited)
    assert runtime.slept == []
    patient, _ = await run(RetryModel(ScriptedModel(limited(60.0), "ok"), jitter=False), runtime=runtime)
    assert (patient.value, runtime.slept) == ("ok", [60.5])


async def test_a_virtual_clock_brings_the_tries_about() -> None:
    runtime = VirtualRuntime()
    leaf = ScriptedModel(limited(30.0), down(), "ok")
    async with Harness(plugins=(), runtime=runtime) as harness:
        handle = harness.start(call_model(RetryModel(leaf, jitter=False)), "go")
        await runtime.advance(30.4)
        assert len(leaf.requests) == 1
        await runtime.advance(0.2)
        assert len(leaf.requests) == 2
        await runtime.advance(1.0)
        assert (await handle.result()).value == "ok"


async def test_what_is_worth_another_try_can_be_chosen() -> None:
    refused, wrong = ModelRefused("no", model=NAME), status(400)
    leaf = ScriptedModel(refused, wrong, "ok")
    assert said(await ask(RetryModel(leaf, initial=0, on=(ModelRefused, ModelStatusError)))) == "ok"
    leaf = ScriptedModel(refused, "ok")
    assert said(await ask(RetryModel(leaf, initial=0, on=lambda error: error is refused))) == "ok"
    with pytest.raises(ModelUnavailable):
        await ask(RetryModel(ScriptedModel(down(), "ok"), initial=0, on=(ModelRefused,)))


async def test_who_watches_is_told_what_is_void() -> None:
    result, events = await run(RetryModel(ScriptedModel(cut("High wa"), down(), "At noon."), initial=0))
    assert told(events) == [
        f"start {NAME}",
        "High ",
        "wa",
        f"failed {NAME}: the stream was cut",
        f"start {NAME}",
        f"failed {NAME}: connection refused",
        f"start {NAME}",
        "At ",
        "noon.",
        f"end {NAME}",
    ]
    assert {event.path for event in events if isinstance(event, ModelFailed)} == {("call_model", "answer")}
    assert not [event for event in events if isinstance(event, StepDiscarded)]
    assert [item.text for item in result.items if isinstance(item, Message)] == ["When is high water?", "At noon."]


async def test_a_call_without_a_wrapper_tells_of_its_failure_too() -> None:
    _, events = await run(ScriptedModel(cut("High wa")))
    assert told(events) == [f"start {NAME}", "High ", "wa", f"failed {NAME}: the stream was cut"]


async def test_no_try_follows_a_cancellation() -> None:
    leaf = ScriptedModel(down(), "late")
    harness = Harness(plugins=(), budget=Budget(cost=1), runtime=VirtualRuntime())
    with anyio.move_on_after(0.02):
        await harness.run(call_model(RetryModel(leaf)), "go")
        pytest.fail("nobody moved the clock")
    assert len(leaf.requests) == 1
    assert not any(lease_of(harness)._held.values())


async def test_nothing_is_reserved_between_two_tries() -> None:
    runtime = VirtualRuntime()
    leaf = ScriptedModel(cut(), "ok", cost="0.5")
    async with Harness(plugins=(), budget=Budget(cost=1), runtime=runtime) as harness:
        handle = harness.start(call_model(RetryModel(leaf, jitter=False)), "go")
        await runtime.advance(0.1)
        lease = lease_of(harness)
        assert (runtime.sleeping(), lease.cost) == (1, Decimal("0.5"))
        assert not any(lease._held.values())
        await runtime.advance(1.0)
        assert (await handle.result()).cost == Decimal(1)


async def test_an_error_of_the_reader_is_no_failure_of_the_model() -> None:
    leaf = ScriptedModel("At noon.", "late")

    async def read() -> None:
        async with RetryModel(leaf, initial=0).respond(REQUEST) as stream:
            async for _ in stream:
                raise ModelStreamError("mine", model="reader")

    with pytest.raises(ModelStreamError, match="mine"):
        await read()
    assert len(leaf.requests) == 1


async def test_an_answer_that_broke_off_is_not_given_afterwards() -> None:
    async with RetryModel(ScriptedModel(Unfinished("High", ModelRefused("no", model=NAME)))).respond(REQUEST) as stream:
        with pytest.raises(ModelRefused):
            await stream.response()
        with pytest.raises(ModelStreamError, match="broke off"):
            await stream.response()


# ---------------------------------------------------------------------------------------------------- budget, exactly


def priced(name: str, price: str, *turns: Turn, usage: TokenUsage | None = None) -> ScriptedModel:
    return ScriptedModel(*turns, name=name, cost=price, usage=usage)


@pytest.mark.parametrize("watched", [True, False])
async def test_each_try_is_settled_on_its_own(watched: bool) -> None:
    leaf = priced("a", "0.25", cut(), limited(), "ok", usage=TokenUsage(10, 5))
    harness = Harness(plugins=(), budget=Budget(cost=10))
    flow = call_model(RetryModel(leaf, initial=0))
    events: list[Event] = []
    async with harness:
        handle = harness.start(flow, "go")
        handle._run.bus.watch(events.append)
        handle._run.bus.active = watched
        result = await handle.result()
        journal = handle._run.journal
    # A stream that was cut costs a call, and what it read and wrote; a rate limit costs nothing.
    assert (result.cost, result.model_calls) == (Decimal("0.50"), 3)
    assert lease_of(harness).cost == Decimal("0.50")
    assert not any(lease_of(harness)._held.values())
    [answer] = [record for record in journal if isinstance(record, StepFinished) and record.kind == "answer"]
    assert (answer.cost, answer.usage) == (Decimal("0.50"), result.usage)
    assert result.usage.output > 5
    assert result.usage.input > 10
    if watched:
        failed = [event for event in events if isinstance(event, ModelFailed)]
        assert [event.cost for event in failed] == [Decimal("0.25"), None]
        assert failed[0].usage is not None
        assert failed[0].usage + TokenUsage(10, 5) == result.usage
        assert failed[1].usage is None


HEARING: list[Callable[[Model], Model]] = [
    lambda leaf: leaf,
    lambda leaf: LimitedModel(leaf, concurrency=1),
    lambda leaf: TimedModel(leaf, idle=60),
    FallbackModel,
]


@pytest.mark.parametrize("wrap", HEARING)
async def test_what_was_heard_counts_the_same_whether_or_not_somebody_watches(wrap: Callable[[Model], Model]) -> None:
    usages: list[TokenUsage] = []
    for watched in (True, False):
        model = wrap(ScriptedModel(cut("High water is at")))
        async with Harness(plugins=()) as harness:
            handle = harness.start(call_model(model), "go", budget=Budget(tokens=10_000), on_error="result")
            # A run that was started is always watched; one that is simply run is not.
            handle._run.bus.active = watched
            usages.append((await handle.result()).usage)
    assert usages[0] == usages[1]
    assert usages[0].output == counter_for(NAME).count_text("High water is at").value


async def test_a_mistake_of_the_model_in_the_middle_of_its_answer_counts_what_was_read() -> None:
    budget = Budget(tokens=1000)
    at_once, _ = await run(RetryModel(ScriptedModel(KeyError("bug"))), budget=budget)
    halfway, _ = await run(RetryModel(ScriptedModel(Unfinished("High wa", KeyError("bug")))), budget=budget)
    assert (at_once.usage, at_once.model_calls, halfway.model_calls) == (TokenUsage(), 1, 1)
    assert halfway.usage.input > 0
    assert halfway.usage.output > 0


@pytest.mark.parametrize("dimension", ["model_calls", "cost"])
async def test_a_budget_ends_the_tries(dimension: str) -> None:
    leaf = priced("a", "1", *[cut()] * 9)
    budget = Budget(model_calls=2) if dimension == "model_calls" else Budget(cost=2)
    result, _ = await run(FallbackModel(RetryModel(leaf, 9, initial=0), leaf), budget=budget)
    assert (result.status, result.model_calls, result.cost) == ("budget_exceeded", 2, Decimal(2))
    assert isinstance(result.error, errors.BudgetExceeded)
    assert result.error.dimension == dimension
    assert result.error.path == ("call_model", "answer")
    assert len(leaf.requests) == 2


async def test_each_model_has_its_own_price() -> None:
    dear, cheap = priced("dear", "1", cut()), priced("cheap", "0.10", "ok")
    result, events = await run(FallbackModel(dear, cheap), budget=Budget(cost=2))
    assert (result.cost, result.model_calls) == (Decimal("1.10"), 2)
    assert [event.cost for event in events if isinstance(event, ModelFinished)] == [Decimal("0.10")]
    # A budget that is too small for the first is not asked whether the second would fit.
    spent, _ = await run(FallbackModel(priced("dear", "1", "ok"), cheap), budget=Budget(cost="0.5"))
    assert (spent.status, spent.model_calls) == ("budget_exceeded", 0)


async def test_a_model_without_a_price_is_refused_behind_a_wrapper_too() -> None:
    result, _ = await run(FallbackModel(Scoped("ok"), priced("cheap", "0.1", "ok")), budget=Budget(cost=1))
    assert isinstance(result.error, errors.UnknownPrice)
    assert result.error.model == "test:scoped"


async def test_a_call_that_was_cut_and_has_no_price_leaves_the_cost_unknown() -> None:
    result, _ = await run(FallbackModel(Scoped(cut()), priced("cheap", "0.1", "ok")))
    assert (result.value, result.cost) == ("ok", None)


async def test_output_is_limited_anew_for_each_try() -> None:
    leaf = ScriptedModel(cut("one two three"), "ok", usage=TokenUsage(1, 1))
    result, _ = await run(RetryModel(leaf, initial=0), budget=Budget(tokens=200))
    first, second = (request.settings.get("max_output_tokens") for request in leaf.requests)
    assert first is not None
    assert second is not None
    failed = result.usage.total - 2
    assert second == first - failed


async def test_a_model_that_holds_wrappers_of_its_own_counts_once() -> None:
    class Router:
        """No wrapper, so the run sees one call."""

        name = "test:router"
        profile = ModelProfile(price=Price(per_call=Decimal(3)))

        def __init__(self) -> None:
            self.inner = RetryModel(priced("inner", "1", down(), cut(), "ok"), initial=0)

        def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
            assert current_runtime() is SYSTEM
            return self.inner.respond(request)

    budget = Budget(cost=10)
    for model in (Router(), LimitedModel(Router(), concurrency=1), RetryModel(TimedModel(Router(), begin=60))):
        harness = Harness(plugins=(), budget=budget)
        result, _ = await run(model, harness=harness)
        # What the inner answer reports is what the call costs.
        assert (result.value, result.model_calls, result.cost) == ("ok", 1, Decimal(1))
        assert lease_of(harness).cost == Decimal(1)


# ----------------------------------------------------------------------------------------------------------- fallback


@pytest.mark.parametrize(
    "turn",
    [*MENDED, lambda: status(401), lambda: status(404), lambda: ModelNotFound("who?", model=NAME)],
)
async def test_the_next_model_is_asked(turn: Callable[[], Turn]) -> None:
    first, second, third = (priced(name, "0", said) for name, said in (("a", turn()), ("b", "At noon."), ("c", "no")))
    result, events = await run(FallbackModel(first, second, third))
    assert (result.value, result.model_calls, len(third.requests)) == ("At noon.", 2, 0)
    assert told(events)[-1] == "end b"
    answered = await ask(FallbackModel(ScriptedModel(turn()), ScriptedModel("At noon.", name="b")))
    assert (said(answered), answered.model) == ("At noon.", "b")


async def test_an_account_that_is_empty_does_not_keep_another_from_answering() -> None:
    spent = limited()
    spent.retryable = False
    assert said(await ask(FallbackModel(ScriptedModel(spent), ScriptedModel("ok")))) == "ok"


@pytest.mark.parametrize(
    "error",
    [each for each in FINAL if not isinstance(each(), ModelNotFound) and getattr(each(), "status", 0) != 401],
)
async def test_what_would_be_the_same_everywhere_is_raised(error: Callable[[], Exception]) -> None:
    made = error()
    second = ScriptedModel("At noon.")
    result, _ = await run(FallbackModel(ScriptedModel(made), second))
    assert result.error is made
    assert len(second.requests) == 0


async def test_when_chooses() -> None:
    def too_large(error: ModelError) -> bool:
        return isinstance(error, ContextOverflow)

    overflow = ContextOverflow("too long", model=NAME, status=400)
    model = FallbackModel(ScriptedModel(overflow), ScriptedModel("ok"), when=too_large)
    assert said(await ask(model)) == "ok"
    with pytest.raises(ModelUnavailable):
        await ask(FallbackModel(ScriptedModel(down()), ScriptedModel("ok"), when=too_large))


async def test_all_dead_is_one_error() -> None:
    first, second = down(), status(500)
    model = FallbackModel(priced("a", "0", first), priced("b", "0", second))
    result, _ = await run(model)
    error = result.error
    assert isinstance(error, AllModelsFailed)
    assert error.failures == (("a", first), ("b", second))
    assert error.__cause__ is second
    assert (error.model, error.retryable) == ("a|b", True)
    assert error.message == "every model failed: a: connection refused; b: status 500"
    assert error.path == first.path == ("call_model", "answer")


async def test_one_dead_model_is_no_exception() -> None:
    with pytest.raises(AllModelsFailed) as caught:
        await ask(FallbackModel(ScriptedModel(status(403))))
    assert [name for name, _ in caught.value.failures] == [NAME]
    assert not caught.value.retryable


async def test_fallbacks_in_fallbacks_and_tries_around_them() -> None:
    dead = FallbackModel(priced("a", "0", down(), down()), priced("b", "0", limited(7.0), limited(3.0)))
    outer = FallbackModel(dead, priced("c", "0", limited(5.0), "ok"))
    runtime = Hasty()
    result, _ = await run(RetryModel(outer, jitter=False, initial=0.0), runtime=runtime)
    # The first that may answer again does so at once.
    assert (result.value, result.model_calls, runtime.slept) == ("ok", 6, [0.0])
    runtime = Hasty()
    limits = FallbackModel(priced("a", "0", limited(7.0), "ok"), priced("b", "0", limited(5.0)))
    result, _ = await run(RetryModel(limits, initial=0.0), runtime=runtime)
    assert (result.value, runtime.slept) == ("ok", [5.0])


async def test_what_is_known_of_a_fallback_holds_for_all_of_its_models() -> None:
    class Known(ModelWrapper):
        def __init__(self, profile: ModelProfile) -> None:
            super().__init__(ScriptedModel())
            self.known = profile

        @property
        def profile(self) -> ModelProfile:
            return self.known

    price = Price(input=Decimal(1))
    large = Known(ModelProfile(128_000, 16_000, price, "o200k_base"))
    small = Known(ModelProfile(8_000, None, price, "o200k_base"))
    other = Known(ModelProfile(None, 4_000, Price(), "cl100k_base"))
    assert FallbackModel(large, small).profile == ModelProfile(8_000, 16_000, price, "o200k_base")
    assert FallbackModel(large, small, other).profile == ModelProfile(8_000, 4_000, None, None)
    assert FallbackModel(large, "openai:x").profile == ModelProfile(128_000, 16_000, None, None)
    around = (RetryModel(small), TimedModel(small, begin=1), LimitedModel(small, concurrency=1), ModelWrapper(small))
    assert {(model.name, model.profile) for model in around} == {(NAME, small.profile)}
    assert RetryModel("openai:x").profile == ModelProfile()
    assert repr(FallbackModel(large, "openai:x")) == "FallbackModel('test:scripted|openai:x')"


# -------------------------------------------------------------------------------------------------------------- names


async def test_names_are_resolved_by_the_run() -> None:
    from noetic_py.hookspecs import hookimpl

    leaf = ScriptedModel("ok", name="acme:large")

    def make(name: str) -> Model:
        return leaf

    class Acme:
        @hookimpl
        def register_models(self, registry: Any) -> None:
            registry.provider("acme", make)

    harness = Harness(plugins=[Acme()])
    result, events = await run(FallbackModel("gone:small", RetryModel("acme:large")), harness=harness)
    assert (result.value, told(events)[0]) == ("ok", "start acme:large")
    harness = Harness(plugins=[Acme()])
    failed, _ = await run(FallbackModel("gone:small"), harness=harness)
    assert isinstance(failed.error, AllModelsFailed)
    assert isinstance(failed.error.failures[0][1], ModelNotFound)


async def test_outside_of_a_run_a_name_is_only_a_name() -> None:
    with pytest.raises(ModelNotFound, match="only a name") as caught:
        await ask(RetryModel("acme:large"))
    assert caught.value.model == "acme:large"
    assert caught.value.hint is not None


# ------------------------------------------------------------------------------------------------------------ limited


class Gauge:
    """A model that answers when it is told to, and notes who is with it."""

    name = "test:gauge"

    def __init__(self) -> None:
        self.running = self.peak = 0
        self.entered: list[str] = []
        self.go = anyio.Event()

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        [message] = [item for item in request.items if isinstance(item, Message)]
        self.entered.append(message.text)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.go.wait()
            await checkpoint()
            async with ScriptedModel("ok").respond(request) as stream:
                yield stream
        finally:
            self.running -= 1


async def ask_as(model: Model, name: str) -> None:
    async with model.respond(ModelRequest([Message.user(name)])) as stream:
        await stream.response()


async def settled_down() -> None:
    """Let all others go as far as they can."""
    for _ in range(20):
        await checkpoint()


async def test_only_so_many_are_with_the_model_and_who_came_first_goes_first() -> None:
    leaf = Gauge()
    model = LimitedModel(leaf, concurrency=2)
    async with anyio.create_task_group() as group:
        for name in "abcdefg":
            group.start_soon(ask_as, model, name)
            await settled_down()
        assert (leaf.entered, model.running, model.waiting) == (["a", "b"], 2, 5)
        leaf.go.set()
    assert leaf.entered == list("abcdefg")
    assert (leaf.peak, model.running, model.waiting) == (2, 0, 0)


async def test_who_is_cancelled_while_waiting_has_taken_no_place() -> None:
    leaf = Gauge()
    model = LimitedModel(leaf, concurrency=1)
    scopes = {name: anyio.CancelScope() for name in "abcde"}

    async def work(name: str) -> None:
        with scopes[name]:
            await ask_as(model, name)

    async with anyio.create_task_group() as group:
        for name in "abcde":
            group.start_soon(work, name)
            await settled_down()
        scopes["c"].cancel()
        await settled_down()
        assert model.waiting == 3
        # The next one is called in the same moment in which it is cancelled.
        scopes["a"].cancel()
        scopes["b"].cancel()
        leaf.go.set()
    assert [name for name in leaf.entered if name in "ade"] == ["a", "d", "e"]
    assert "c" not in leaf.entered
    assert (leaf.peak, model.running, model.waiting) == (1, 0, 0)


async def test_a_place_is_held_until_the_stream_is_closed() -> None:
    model = LimitedModel(ScriptedModel("one", "two"), concurrency=1)
    async with model.respond(REQUEST) as stream:
        await stream.response()
        assert model.running == 1
    assert model.running == 0
    with pytest.raises(RuntimeError):
        async with model.respond(REQUEST):
            raise RuntimeError
    assert model.running == 0
    with pytest.raises(ScriptExhausted):
        await ask(model)
    assert model.running == 0


async def test_one_more_than_may_wait_is_refused() -> None:
    leaf = Gauge()
    model = LimitedModel(leaf, concurrency=1, max_waiting=1)
    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(ask_as, model, name)
            await settled_down()
        with pytest.raises(ModelBusy) as caught:
            await ask_as(model, "c")
        assert (caught.value.waiting, caught.value.model) == (1, leaf.name)
        # The queue is full, so another model may take the work.
        assert said(await ask(FallbackModel(model, ScriptedModel("ok")))) == "ok"
        leaf.go.set()
    assert leaf.entered == ["a", "b"]
    await ask_as(LimitedModel(leaf, concurrency=1, max_waiting=0), "d")


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_so_many_may_begin_within_any_minute(concurrency: int | None) -> None:
    runtime = VirtualRuntime()
    began: list[float] = []

    def turn(request: ModelRequest) -> str:
        began.append(runtime.monotonic())
        return "ok"

    model = LimitedModel(ScriptedModel(*[turn] * 9), concurrency=concurrency, requests_per_minute=3)
    flow = settle([call_model(model).bind("go") for _ in range(7)])
    async with Harness(plugins=(), runtime=runtime) as harness:
        handle = harness.start(flow, None)
        await runtime.advance(0.3)
        assert began == [0.0] * 3
        await runtime.advance(59.6)
        assert len(began) == 3
        await runtime.advance(0.2)
        assert began == [0.0] * 3 + [60.0] * 3
        await runtime.advance(60.0)
        assert all(outcome.ok for outcome in (await handle.result()).value)
        assert began == [0.0] * 3 + [60.0] * 3 + [120.0]
        # Whoever comes when a minute has passed does not wait.
        await runtime.advance(300.0)
        assert (await harness.run(call_model(model), "go")).value == "ok"
    # Another clock begins a minute of its own.
    async with Harness(plugins=(), runtime=VirtualRuntime()) as harness:
        assert (await harness.run(call_model(model), "go")).value == "ok"


async def test_nothing_is_reserved_for_who_waits() -> None:
    leaf = Gauge()
    model = LimitedModel(leaf, concurrency=1)
    leaf_price = Price(per_call=Decimal(1))
    leaf.profile = ModelProfile(price=leaf_price)  # type: ignore[attr-defined] # the class needs none elsewhere
    async with Harness(plugins=(), budget=Budget(cost=9)) as harness:
        flow = settle([call_model(model).bind("go") for _ in range(4)])
        handle = harness.start(flow, None)
        while model.waiting < 3:
            await checkpoint()
        await settled_down()
        assert (lease_of(harness)._held["cost"], lease_of(harness).calls) == (Decimal(1), 1)
        leaf.go.set()
        assert (await handle.result()).cost == Decimal(4)


# -------------------------------------------------------------------------------------------------------------- timed


async def test_an_answer_that_does_not_begin() -> None:
    slow = ScriptedModel("late", "late", delay=60.0)
    with pytest.raises(ModelUnavailable, match=r"did not begin within 0\.01 s"):
        await ask(TimedModel(slow, begin=0.01))
    with pytest.raises(ModelUnavailable, match=r"took longer than 0\.01 s"):
        await ask(TimedModel(slow, total=0.01))
    with pytest.raises(ModelUnavailable, match=r"did not begin within 0\.01 s"):
        await ask(TimedModel(ScriptedModel(Unfinished()), begin=0.01, idle=60, total=60))


@ON_ITS_OWN_CLOCK
@pytest.mark.parametrize("iterate", [True, False])
async def test_a_stream_that_stalls(iterate: bool) -> None:
    heard: list[ModelEvent] = []

    async def read() -> None:
        async with TimedModel(ScriptedModel(Unfinished("High wa")), begin=60, idle=5).respond(REQUEST) as stream:
            while iterate:
                heard.append(await anext(aiter(stream)))
            await stream.response()

    with pytest.raises(ModelStreamError, match="nothing came for 5 s") as caught:
        await read()
    assert [event.delta for event in heard if isinstance(event, TextPart)] == (["High ", "wa"] if iterate else [])
    assert caught.value.hint == "raise idle= of the TimedModel, or try again"


async def test_an_answer_that_does_not_end() -> None:
    with pytest.raises(ModelStreamError, match=r"took longer than 0\.01 s"):
        await ask(TimedModel(ScriptedModel(Unfinished("High wa")), begin=60, idle=60, total=0.01))


@ON_ITS_OWN_CLOCK
@pytest.mark.parametrize("watched", [True, False])
async def test_a_stream_that_stalls_in_a_run(watched: bool) -> None:
    leaf = priced("a", "1", Unfinished("High wa"), "At noon.")
    model = RetryModel(TimedModel(leaf, idle=5), initial=0)
    events: list[Event] = []
    async with Harness(plugins=(), budget=Budget(cost=9)) as harness:
        handle = harness.start(call_model(model), "go")
        handle._run.bus.watch(events.append)
        handle._run.bus.active = watched
        result = await handle.result()
    assert (result.value, result.model_calls, result.cost) == ("At noon.", 2, Decimal(2))
    if watched:
        void = ["start a", "High ", "wa", "failed a: stopped"]
        assert told(events) == [*void, "start a", "At ", "noon.", "end a"]


async def test_a_model_that_streams_nothing() -> None:
    with pytest.raises(ModelUnavailable, match=r"did not begin within 0\.01 s"):
        await ask(TimedModel(Silent(), begin=0.01))
    ready = Silent()
    ready.ready.set()
    assert said(await ask(TimedModel(ready, begin=60, idle=60))) == "whole"


async def test_an_answer_in_time_is_passed_on_as_it_is() -> None:
    model = TimedModel(ScriptedModel("High water is at noon."), begin=60, idle=60, total=60)
    async with model.respond(REQUEST) as stream:
        events = [event async for event in stream]
        response = await stream.response()
        assert await stream.response() is response
    assert [event.delta for event in events if isinstance(event, TextPart)] == [
        "High ",
        "water ",
        "is ",
        "at ",
        "noon.",
    ]
    assert events[-1] == ItemDone(response.items[0])


@ON_ITS_OWN_CLOCK
async def test_the_time_of_the_reader_does_not_count() -> None:
    async with TimedModel(ScriptedModel("one two"), begin=5, idle=5).respond(REQUEST) as stream:
        async for _ in stream:
            await anyio.sleep(10)
        assert said(await stream.response()) == "one two"


async def test_a_cancellation_from_outside_is_no_timeout() -> None:
    with anyio.move_on_after(0.01) as scope:
        await ask(RetryModel(TimedModel(ScriptedModel(Unfinished("High")), idle=60), initial=0))
    assert scope.cancelled_caught


async def test_scopes_of_the_model_behind_and_of_the_reader_stay_in_order() -> None:
    for turn in (Unfinished(), Unfinished("High wa")):
        model = RetryModel(ScriptedModel(), 3, initial=0)
        for around in (model, TimedModel(model, begin=60, idle=60), LimitedModel(FallbackModel(model), concurrency=1)):
            model.model = Impatient(Scoped(turn, turn, "At noon."), tries=3)
            result, _ = await run(around)
            assert result.value == "At noon."

    async def read() -> None:
        async with TimedModel(Scoped(Unfinished("High wa")), idle=0.01).respond(REQUEST) as stream:
            with anyio.move_on_after(60):
                await stream.response()

    with pytest.raises(ModelStreamError, match="nothing came"):
        await read()


# --------------------------------------------------------------------------------------------------- wrappers at large

WRAPPED: list[Callable[[Model], Model]] = [
    lambda model: RetryModel(model, initial=0),
    FallbackModel,
    lambda model: LimitedModel(model, concurrency=1),
    lambda model: LimitedModel(model, requests_per_minute=1000),
    lambda model: TimedModel(model, begin=60, idle=60, total=60),
    ModelWrapper,
    lambda model: RetryModel(FallbackModel(LimitedModel(TimedModel(model, begin=60), concurrency=2)), initial=0),
    lambda model: TimedModel(LimitedModel(FallbackModel(RetryModel(model)), concurrency=2), idle=60),
]


@pytest.mark.parametrize("wrap", WRAPPED)
async def test_a_wrapper_passes_on_what_it_hears(wrap: Callable[[Model], Model]) -> None:
    bare, wrapped = ScriptedModel("High water."), ScriptedModel("High water.")
    _, expected = await run(bare)
    result, events = await run(wrap(wrapped))
    assert result.value == "High water."
    assert told(events) == told(expected)
    assert [type(event) for event in events] == [type(event) for event in expected]


async def stumble(model: Model) -> None:
    """A reader that fails at the first event."""
    async with model.respond(REQUEST) as stream:
        async for event in stream:
            raise KeyError(event)


# Those that read by themselves, and so end what they have begun to read.
READING = [wrap for wrap in WRAPPED if isinstance(wrap(ScriptedModel()), (RetryModel, FallbackModel, TimedModel))]


@pytest.mark.parametrize("wrap", WRAPPED)
async def test_a_reader_may_leave_early(wrap: Callable[[Model], Model]) -> None:
    leaf = ScriptedModel(*["one two three"] * 4)
    async with wrap(leaf).respond(REQUEST) as stream:
        async for event in stream:
            assert isinstance(event, TextPart)
            assert event.delta == "one "
            break
        assert said(await stream.response()) == "one two three"
    async with wrap(leaf).respond(REQUEST) as stream:
        async for _ in stream:
            break
    with pytest.raises(KeyError):
        await stumble(wrap(leaf))
    async with wrap(leaf).respond(REQUEST):
        pass
    leaf.assert_complete()


@pytest.mark.parametrize("wrap", READING)
async def test_generators_are_closed(wrap: Callable[[Model], Model]) -> None:
    leaf = Generating(["one ", "two "])
    async with wrap(leaf).respond(REQUEST) as stream:
        assert await anext(aiter(stream)) == TextPart("one ")
    assert leaf.closed == 1
    with pytest.raises(KeyError):
        await stumble(wrap(leaf))
    assert leaf.closed == 2
    assert said(await ask(wrap(leaf))) == "one two "
    assert leaf.closed == 3


@pytest.mark.parametrize("wrap", WRAPPED)
async def test_a_generator_of_events_is_heard_in_a_run(wrap: Callable[[Model], Model]) -> None:
    leaf = Generating(["one ", "two"])
    result, events = await run(wrap(leaf))
    assert result.value == "one two"
    assert told(events)[1:-1] == ["one ", "two"]
    assert leaf.closed == 1


async def test_an_error_that_is_translated_on_leaving_counts_as_what_it_becomes() -> None:
    broken = Unfinished("High", ConnectionError("reset"))
    result, _ = await run(RetryModel(Translating(broken, broken, "ok"), initial=0))
    assert (result.value, result.model_calls) == ("ok", 3)
    result, _ = await run(FallbackModel(Translating(broken), ScriptedModel("ok")))
    assert result.value == "ok"


async def test_a_wrapper_of_your_own() -> None:
    class Polite(ModelWrapper):
        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            async with self.ask(self.model, evolve(request, instructions="Be polite.")) as stream:
                yield stream

    leaf = priced("a", "0.1", down(), "ok")
    model = Polite(RetryModel(leaf, initial=0))
    result, events = await run(model, budget=Budget(cost=1))
    assert (result.value, result.cost, result.model_calls) == ("ok", Decimal("0.1"), 2)
    assert [request.instructions for request in leaf.requests] == ["Be polite."] * 2
    assert told(events)[-1] == "end a"


async def test_a_wrapper_that_has_heard_enough_pays_for_what_it_heard() -> None:
    class Impatient(ModelWrapper):
        """Gives up on an answer that begins in the wrong way."""

        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            async with self.ask(self.model, request) as stream:
                async for event in stream:
                    if isinstance(event, TextPart) and event.delta.startswith("Well"):
                        break
            if request.items:
                raise ModelStreamError("it rambles", model=self.name)
            yield stream

    leaf = priced("a", "0.5", "Well, let me see.", usage=TokenUsage(500, 500))
    harness = Harness(plugins=(), budget=Budget(cost=9))
    result, events = await run(FallbackModel(Impatient(leaf), priced("b", "1", "ok")), harness=harness)
    assert (result.value, result.model_calls, result.cost) == ("ok", 2, Decimal("1.5"))
    assert told(events) == ["start a", "failed a: stopped", "start b", "ok", "end b"]
    assert 0 < result.usage.output < 20
    assert not any(lease_of(harness)._held.values())


def known(name: str, response: ModelResponse) -> AbstractAsyncContextManager[ModelStream]:
    """An answer that is there already."""

    async def parts() -> AsyncGenerator[ModelEvent | ModelResponse]:
        yield response

    return GeneratedAnswer(name, parts())


async def test_a_wrapper_may_ask_several_at_once() -> None:
    class Hedged(ModelWrapper):
        """Asks twice; the first answer counts."""

        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            found: list[ModelResponse] = []

            async def one() -> None:
                async with self.ask(self.model, request) as stream:
                    found.append(await stream.response())
                    group.cancel_scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(one)
                group.start_soon(one)
            async with known(self.name, found[0]) as stream:
                yield stream

    leaf = ScriptedModel("a", "b", cost="1", delay=0.005, usage=TokenUsage(5, 5))
    harness = Harness(plugins=(), budget=Budget(cost=10))
    result, _ = await run(Hedged(leaf), harness=harness)
    assert result.value in ("a", "b")
    assert (result.model_calls, result.cost) == (2, Decimal(2))
    assert not any(lease_of(harness)._held.values())


async def test_a_wrapper_that_answers_by_itself_uses_nothing() -> None:
    class Cached(ModelWrapper):
        def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
            return known(self.name, ModelResponse([Message.assistant("known")]))

    result, events = await run(Cached(ScriptedModel()), budget=Budget(cost=1))
    assert (result.value, result.model_calls, result.cost, result.usage) == ("known", 0, Decimal(0), TokenUsage())
    assert told(events) == []


async def test_a_request_that_a_wrapper_has_changed_is_counted_anew() -> None:
    class Annotated(ModelWrapper):
        """From the second round on, shows the model another beginning of the conversation."""

        def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
            first = request.items[0] if len(request.items) == 2 else Message.user("x " * 500)
            return self.ask(self.model, evolve(request, items=(first, *request.items[1:])))

    class Plain(ModelWrapper):
        """Changes nothing."""

    async def read(wrapper: type[ModelWrapper]) -> int:
        agent = loop(call_model(wrapper(ScriptedModel("one", "two", "three"))), until=until.max_rounds(3))
        history = [Message.user("first")]
        result = await Harness(plugins=()).run(agent, "go", history=history, budget=Budget(tokens=100_000))
        return result.usage.input

    longer = counter_for(NAME).count_text("x " * 500).value - counter_for(NAME).count_text("first").value
    assert await read(Annotated) == await read(Plain) + 2 * longer


async def test_a_wrapper_inside_of_a_step_is_simply_a_model() -> None:
    model = RetryModel(ScriptedModel(down(), "ok"), initial=0)

    @step
    async def work(text: str) -> str:
        return said(await ask(model))

    result = await Harness(plugins=()).run(work, "go")
    assert (result.value, result.model_calls) == ("ok", 0)


# ---------------------------------------------------------------------------------------------------------- bad input

M = ScriptedModel()
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no model": (lambda: RetryModel(None), "model-wrapper"),  # type: ignore[arg-type] # on purpose
    "an empty name": (lambda: RetryModel(""), "model-wrapper"),
    "a class": (lambda: TimedModel(ScriptedModel, begin=1), "model-wrapper"),  # type: ignore[arg-type] # on purpose
    "a number": (lambda: LimitedModel(3, concurrency=1), "model-wrapper"),  # type: ignore[arg-type] # on purpose
    "no name": (lambda: ModelWrapper(object()), "model-wrapper"),  # type: ignore[arg-type] # on purpose
    "zero attempts": (lambda: RetryModel(M, 0), "retry-model"),
    "negative attempts": (lambda: RetryModel(M, -1), "retry-model"),
    "half an attempt": (lambda: RetryModel(M, 1.5), "retry-model"),  # type: ignore[arg-type] # on purpose
    "true attempts": (lambda: RetryModel(M, True), "retry-model"),
    "negative initial": (lambda: RetryModel(M, initial=-1), "retry-model"),
    "endless max": (lambda: RetryModel(M, max=float("inf")), "retry-model"),
    "no number": (lambda: RetryModel(M, max_wait=float("nan")), "retry-model"),
    "a text": (lambda: RetryModel(M, initial="1"), "retry-model"),  # type: ignore[arg-type] # on purpose
    "on a class": (lambda: RetryModel(M, on=RateLimited), "retry-model"),  # type: ignore[arg-type] # on purpose
    "on others": (lambda: RetryModel(M, on=(KeyError,)), "retry-model"),  # type: ignore[arg-type] # on purpose
    "on a number": (lambda: RetryModel(M, on=3), "retry-model"),  # type: ignore[arg-type] # on purpose
    "no models": (lambda: FallbackModel(), "fallback-model"),
    "a list": (lambda: FallbackModel([M]), "fallback-model"),  # type: ignore[arg-type] # on purpose
    "a second that is none": (lambda: FallbackModel(M, None), "fallback-model"),  # type: ignore[arg-type] # on purpose
    "when no function": (lambda: FallbackModel(M, when=True), "fallback-model"),  # type: ignore[arg-type] # on purpose
    "no limit": (lambda: LimitedModel(M), "limited-model"),
    "no place": (lambda: LimitedModel(M, concurrency=0), "limited-model"),
    "a negative rate": (lambda: LimitedModel(M, requests_per_minute=-3), "limited-model"),
    "half a request": (lambda: LimitedModel(M, requests_per_minute=0.5), "limited-model"),  # type: ignore[arg-type] # on purpose
    "negative waiting": (lambda: LimitedModel(M, concurrency=1, max_waiting=-1), "limited-model"),
    "no time": (lambda: TimedModel(M), "timed-model"),
    "zero seconds": (lambda: TimedModel(M, begin=0), "timed-model"),
    "negative seconds": (lambda: TimedModel(M, idle=-1.0), "timed-model"),
    "endless": (lambda: TimedModel(M, total=float("inf")), "timed-model"),
    "a time in words": (lambda: TimedModel(M, total="1s"), "timed-model"),  # type: ignore[arg-type] # on purpose
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str) -> None:
    make, code = BAD[what]
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == code
    assert caught.value.hint


class Pausing(ModelWrapper):
    """A model whose provider pauses in its first answers."""

    def __init__(self, model: Model, pauses: int) -> None:
        super().__init__(model)
        self.pauses = pauses

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        async with self.ask(self.model, request) as stream:
            response = await stream.response()
        self.pauses -= 1
        made = response if self.pauses < 0 else evolve(response, stop_reason="paused")
        async with known(self.name, made) as answer:
            yield answer


async def test_a_provider_that_pauses_is_asked_on_as_calls_of_their_own() -> None:
    leaf = priced("a", "0.25", "I search.", "I read.", '{"value": 6}', usage=TokenUsage(10, 5))
    asked = call_model(Pausing(leaf, 2), output=int, output_retries=0)
    async with Harness(plugins=(), budget=Budget(cost=1)) as harness:
        result = await harness.run(asked, "go")
    assert (result.value, result.cost, result.model_calls) == (6, Decimal("0.75"), 3)
    assert result.usage == TokenUsage(30, 15)
    texts = [[item.text for item in request.items if isinstance(item, Message)] for request in leaf.requests]
    assert texts == [["go"], ["go", "I search."], ["go", "I search.", "I read."]]


async def test_a_budget_ends_the_calls_of_a_provider_that_pauses() -> None:
    leaf = priced("a", "0.25", *["I search."] * 9)
    result, _ = await run(Pausing(leaf, 9), budget=Budget(model_calls=3))
    assert (result.status, result.model_calls) == ("budget_exceeded", 3)


async def test_a_provider_that_pauses_without_end_is_given_up() -> None:
    leaf = priced("a", "0", *["I search."] * 20)
    result, _ = await run(Pausing(leaf, 20))
    assert isinstance(result.error, ModelError)
    assert "paused 17 times" in str(result.error)
    assert len(leaf.requests) == 17


async def test_an_answer_before_a_pause_is_not_asked_for_again() -> None:
    leaf = priced("a", "0.25", "I search.", down(), "At noon.")
    asked = call_model(Pausing(leaf, 1))
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        with pytest.raises(ModelUnavailable):
            await harness.run(asked, "go", run_id="tides")
        result = await harness.resume("tides", asked)
    assert (result.value, len(leaf.requests)) == ("At noon.", 3)
    assert result.cost == Decimal("0.50")
