"""Wrapped models: whatever fails, each request is paid once, no budget is passed, and every run has one end."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from types import TracebackType
from typing import Any, TypeAlias

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, evolve, field

from noetic_py import (
    Budget,
    Harness,
    Message,
    RunResult,
    Step,
    TokenUsage,
    call_model,
    errors,
    loop,
    sequence,
    settle,
    until,
)
from noetic_py.core.budget import BudgetLease
from noetic_py.core.runtime import Runtime
from noetic_py.core.tokens import counter_for
from noetic_py.journal.records import AttemptFailed, CallStarted, JournalRecord, StepFinished, StepStopped
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
from noetic_py.steps.flow import Settled
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.stepping import Points

pytestmark = pytest.mark.anyio

AnyStep: TypeAlias = Step[Any, Any, Any, Any]

# What a provider may do with a request. The last three begin an answer that never becomes whole.
OUTCOMES = ("ok", "429", "500", "down", "401", "400", "429 within", "cut", "malformed", "stall")
STALL = 0.001
"""Seconds without an event after which the tests give up."""


class Hasty(Runtime):
    """A clock that jumps over every sleep."""

    __slots__ = ("elapsed",)

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        await checkpoint()


@define(eq=False)
class Meter:
    """What providers would bill: the tests' own account, kept where the requests arrive."""

    counts: bool
    calls: int = 0
    tokens: TokenUsage = field(factory=TokenUsage)
    cost: Decimal = Decimal(0)

    def bill(self, tokens: TokenUsage, cost: Decimal) -> None:
        self.tokens += tokens
        self.cost += cost


class Provider:
    """A model that does by chance what providers do, and bills what it has read and said."""

    def __init__(self, chance: random.Random, meter: Meter, name: str, outcomes: Sequence[str]) -> None:
        self.chance = chance
        self.meter = meter
        self.name = name
        self.outcomes = outcomes
        self.running = self.peak = 0
        self.places = 1
        self.profile = ModelProfile(
            price=Price(
                input=Decimal(chance.randint(0, 900)),
                output=Decimal(chance.randint(0, 900)),
                per_call=Decimal(chance.randint(0, 300)) / 1000,
            ),
            max_output_tokens=chance.choice((None, 40)),
        )

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return Answer(self, request)


class Answer:
    """One answer of a provider."""

    def __init__(self, provider: Provider, request: ModelRequest) -> None:
        self.provider = provider
        self.request = request
        self.outcome = provider.chance.choice(provider.outcomes)
        self.refused = self.whole = False
        self.heard = ""
        self.counter = counter_for(provider.name)
        self.most = request.settings.get("max_output_tokens", 40)
        self.pieces = self._pieces()
        self.given: ModelResponse | None = None

    @property
    def read(self) -> int:
        """Tokens of the request, where anything is counted at all."""
        return (
            sum(self.counter.count_item(item).value for item in self.request.items) if self.provider.meter.counts else 0
        )

    def _pieces(self) -> list[str]:
        """Pieces of text that fit into what the answer may have."""
        pieces: list[str] = []
        for _ in range(self.provider.chance.randint(0, 5)):
            longer = [*pieces, "water "]
            if self.counter.count_item(Message.assistant("".join(longer))).value > self.most:
                break
            pieces = longer
        return pieces

    async def _wait(self) -> None:
        for _ in range(self.provider.chance.choice((0, 0, 1, 3))):
            await checkpoint()

    async def __aenter__(self) -> ModelStream:
        provider = self.provider
        provider.meter.calls += 1
        provider.running += 1
        provider.peak = max(provider.peak, provider.running)
        try:
            await self._wait()
            error = self._refusal()
            if error is not None:
                self.refused = True
                raise error
        except BaseException:
            self._leave()
            raise
        return self

    def _refusal(self) -> Exception | None:
        name = self.provider.name
        match self.outcome:
            case "429":
                after = self.provider.chance.choice((None, 0.0, 2.5, 300.0))
                return errors.RateLimited("too many requests", model=name, retry_after=after)
            case "down":
                return errors.ModelUnavailable("connection refused", model=name)
            case "500" | "401" | "400":
                return errors.ModelStatusError("an error", model=name, status=int(self.outcome))
            case _:
                return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            await self._wait()
        finally:
            self._leave()

    def _leave(self) -> None:
        self.provider.running -= 1
        price = self.provider.profile.price
        assert price is not None
        if self.given is not None:
            tokens = self.given.usage
            if tokens is None:
                written = sum(self.counter.count_item(item).value for item in self.given.items)
                tokens = TokenUsage(self.read, written) if self.provider.meter.counts else TokenUsage()
            self.provider.meter.bill(tokens, price.cost(tokens) if self.given.cost is None else self.given.cost)
        elif not self.refused:
            written = self.counter.count_text(self.heard).value if self.provider.meter.counts else 0
            tokens = TokenUsage(self.read, written)
            self.provider.meter.bill(tokens, price.cost(tokens))

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        await self._wait()
        if self.pieces:
            piece = self.pieces.pop()
            self.heard += piece
            return TextPart(piece)
        await self._break_off()
        if self.whole:
            raise StopAsyncIteration
        self.whole = True
        return ItemDone(Message.assistant(self.heard))

    async def _break_off(self) -> None:
        name = self.provider.name
        match self.outcome:
            case "cut" | "malformed":
                raise errors.ModelStreamError(f"the stream was {self.outcome}", model=name)
            case "429 within":
                self.refused = True
                raise errors.RateLimited("too many requests", model=name)
            case "stall":
                await anyio.sleep_forever()
            case _:
                pass

    async def response(self) -> ModelResponse:
        async for _ in self:
            pass
        chance = self.provider.chance
        message = Message.assistant(self.heard)
        usage: TokenUsage | None = TokenUsage(self.read, self.counter.count_text(self.heard).value)
        if chance.random() < 0.3 and self.counter.count_item(message).value <= self.most:
            usage = None
        price = self.provider.profile.price
        # Some report what the call costs, a little less than the list says.
        cost = price.per_call / 2 if price is not None and chance.random() < 0.3 else None
        self.given = ModelResponse([message], usage, cost, model=self.provider.name)
        return self.given


# ------------------------------------------------------------------------------------------------------------ wrappers


@define(eq=False)
class World:
    """Random wrappers around random providers, and what they share."""

    chance: random.Random
    meter: Meter
    providers: list[Provider] = field(factory=list[Provider])
    limits: list[LimitedModel] = field(factory=list[LimitedModel])

    def model(self, depth: int, *, timed: bool = False) -> Model:
        """A model; only behind a `TimedModel` may a provider stall."""
        chance = self.chance
        if depth == 0:
            # Without a price list of its own the same provider may stand in several places.
            if self.providers and chance.random() < 0.3 and timed:
                again = chance.choice(self.providers)
                again.places += 1
                return again
            outcomes = [*(OUTCOMES if timed else OUTCOMES[:-1]), *["ok"] * 6]
            made = Provider(chance, self.meter, f"test:{len(self.providers)}", outcomes)
            self.providers.append(made)
            return made
        match chance.choice(("retry", "retry", "fallback", "limited", "timed", "own")):
            case "retry":
                inner = self.model(depth - 1, timed=timed)
                return RetryModel(inner, chance.randint(1, 4), initial=chance.choice((0, 1.0)), max_wait=60)
            case "fallback":
                return FallbackModel(*[self.model(depth - 1, timed=timed) for _ in range(chance.randint(1, 3))])
            case "limited":
                made_limit = LimitedModel(
                    self.model(depth - 1, timed=timed),
                    concurrency=chance.randint(1, 3),
                    requests_per_minute=chance.choice((None, 2, 20)),
                    max_waiting=chance.choice((None, None, 2)),
                )
                self.limits.append(made_limit)
                return made_limit
            case "timed":
                inner = self.model(depth - 1, timed=True)
                return TimedModel(inner, begin=chance.choice((None, STALL)), idle=STALL, total=STALL * 10)
            case _:
                return Own(self.model(depth - 1, timed=timed))

    def check(self) -> None:
        """Nobody holds or waits for a place any more, and no place was given twice."""
        for limit in self.limits:
            assert (limit.running, limit.waiting) == (0, 0)
            if isinstance(limit.model, Provider) and limit.concurrency is not None and limit.model.places == 1:
                assert limit.model.peak <= limit.concurrency
        assert all(provider.running == 0 for provider in self.providers)


class Own(ModelWrapper):
    """A wrapper as a user writes one."""

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        async with self.ask(self.model, evolve(request, instructions=request.instructions)) as stream:
            yield stream


def stalls(model: Model | str, timed: bool = False) -> bool:
    """Whether a provider that may stall can be reached without a `TimedModel` in between."""
    if isinstance(model, Provider):
        return not timed and "stall" in model.outcomes
    if isinstance(model, FallbackModel):
        return any(stalls(each, timed) for each in model.models)
    if isinstance(model, ModelWrapper):
        return stalls(model.model, timed or isinstance(model, TimedModel))
    return False


def flow_of(world: World, model: Model) -> AnyStep:
    """Rounds of an agent, alone, one after the other, or side by side."""
    chance = world.chance
    ask = loop(call_model(model), until=until.max_rounds(chance.randint(1, 4))).bind("When is high water?")
    match chance.choice(("one", "sequence", "settle", "retry")):
        case "one":
            return ask
        case "sequence":
            return sequence(ask, call_model(model).bind("And low water?"))
        case "retry":
            return ask.with_options(retry=2) if chance.random() < 0.5 else sequence(ask)
        case _:
            return settle([ask for _ in range(chance.randint(2, 5))])


def budget_of(chance: random.Random) -> Budget:
    return Budget(
        tokens=chance.choice((None, None, 60, 400, 10_000)),
        cost=chance.choice((None, None, "0.25", 2, 50)),
        model_calls=chance.choice((None, None, 4, 20, 500)),
    )


# -------------------------------------------------------------------------------------------------------------- trials


def settled(lease: BudgetLease, name: str) -> Decimal:
    assert not any(lease._held.values()), lease._held
    return lease._settled.get(name, Decimal(0))


class Trial:
    """One run, and everything that has an account of it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.budget = budget_of(chance)
        self.own = budget_of(chance)
        limits = {**self.budget.limits, **self.own.limits}
        self.meter = Meter(counts="tokens" in limits or "cost" in limits)
        self.world = World(chance, self.meter)
        while stalls(model := self.world.model(chance.randint(1, 4))):
            self.world = World(chance, self.meter)
        self.model = model
        self.flow = flow_of(self.world, model)
        self.harness: Harness[Any] = Harness(plugins=(), budget=self.budget, runtime=Hasty())
        self.result: RunResult[Any, Any] | None = None
        self.journal: Sequence[JournalRecord] = ()
        self.watched = chance.random() < 0.5

    async def go(self) -> None:
        """Run, to whatever end."""
        options: dict[str, Any] = {"budget": self.own, "on_error": "result"}
        async with self.harness:
            handle = self.harness.start(self.flow, 1, **options)
            self.journal = handle._run.journal
            # A run that was started is always watched; one that is simply run is not.
            handle._run.bus.active = self.watched
            self.result = await handle.result()

    def check(self) -> None:
        """All accounts agree, and no limit was passed."""
        meter, lease = self.meter, self.harness._resources.lease
        assert (lease.calls, lease.tokens, lease.cost) == (meter.calls, meter.tokens, meter.cost)
        spent: dict[str, int | Decimal] = {"tokens": meter.tokens.total, "cost": meter.cost, "model_calls": meter.calls}
        for budget in (self.budget, self.own):
            for name, limit in budget.limits.items():
                assert spent[name] <= limit, name
        if not lease.free:
            assert {name: settled(lease, name) for name in spent} == spent
        tokens, cost = TokenUsage(), Decimal(0)
        for record in self.journal:
            if isinstance(record, (StepFinished, AttemptFailed, StepStopped)):
                tokens += record.usage or TokenUsage()
                cost += record.cost or 0
        assert (tokens, cost) == (meter.tokens, meter.cost)
        if isinstance(self.model, ModelWrapper):
            assert sum(isinstance(record, CallStarted) for record in self.journal) == meter.calls
        if self.result is not None:
            result = self.result
            assert (result.model_calls, result.usage, result.cost) == (meter.calls, meter.tokens, meter.cost)
            self.check_end(result)
        self.world.check()

    def check_end(self, result: RunResult[Any, Any]) -> None:
        """It ended right, or with one named error that is not wrapped in another."""
        match result.status:
            case "completed":
                if self.flow.kind == "parallel":
                    outcomes: list[Settled[Any]] = result.value
                    assert all(outcome.ok or named(outcome.error) for outcome in outcomes)
            case "budget_exceeded":
                assert isinstance(result.error, errors.BudgetExceeded)
            case status:
                assert status == "failed"
                assert named(result.error)


def named(error: object) -> bool:
    return isinstance(error, (errors.ModelError, errors.BudgetExceeded))


async def test_whatever_fails_each_request_is_paid_once() -> None:
    turns, seed = 0, SEED * 1_000_000
    ends: set[str] = set()
    while turns < examples(sample=100, full=20_000):
        seed += 1
        try:
            before = tasks()
            trial = Trial(seed)
            with anyio.fail_after(30):
                await trial.go()
            trial.check()
            assert await left_over(before) == set()
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, seed {seed}")
            raise
        turns += trial.meter.calls
        assert trial.result is not None
        ends.add(trial.result.status)
    assert ends == {"completed", "failed", "budget_exceeded"}


async def test_a_run_that_is_cancelled_anywhere_has_paid_for_what_it_asked() -> None:
    cancelled = tried = 0
    for seed in range(SEED * 2_000_000, SEED * 2_000_000 + examples(sample=24, full=1500)):
        chance = random.Random(seed)
        points = (await cancel_at(seed, 0)).count
        for at in chance.sample(range(1, points + 1), min(points, 4)):
            tried += 1
            cancelled += (await cancel_at(seed, at)).reached
    assert cancelled > tried / 2


async def cancel_at(seed: int, at: int) -> Points:
    """One run that is cancelled at one of its scheduling points."""
    scope = anyio.CancelScope()
    points = Points(at, scope.cancel)
    try:
        before = tasks()
        trial = Trial(seed)
        with anyio.fail_after(30), scope:
            await points.run(trial.go)
        assert await left_over(before) == set()
        trial.check()
    except BaseException as error:
        error.add_note(f"NOETIC_SEED={SEED}, seed {seed} at point {at}")
        raise
    return points


# ----------------------------------------------------------------------------------------------------- the line


class Arrivals(ModelWrapper):
    """Notes who comes, and whether it was cancelled before it went through."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.came: list[str] = []

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        [message] = [item for item in request.items if isinstance(item, Message)]
        self.came.append(message.text)
        async with self.ask(self.model, request) as stream:
            yield stream


class Gauge(Provider):
    """A provider that notes in which order requests reach it."""

    entered: list[str]

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        [message] = [item for item in request.items if isinstance(item, Message)]
        self.entered.append(message.text)
        return super().respond(request)


async def test_paths_that_share_a_limit_keep_to_it_and_to_their_order() -> None:
    for seed in range(SEED * 3_000_000, SEED * 3_000_000 + examples(sample=16, full=1000)):
        try:
            with anyio.fail_after(30):
                await share(random.Random(seed))
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, seed {seed}")
            raise


async def share(chance: random.Random) -> None:
    gauge = Gauge(chance, Meter(counts=False), "test:gauge", ["ok", "ok", "cut", "500", "down"])
    gauge.entered = []
    limit = LimitedModel(gauge, concurrency=chance.randint(1, 4), requests_per_minute=chance.choice((None, 3)))
    model = Arrivals(limit)
    paths = chance.randint(2, 12)
    scopes = [anyio.CancelScope() for _ in range(paths)]
    harness: Harness[Any] = Harness(plugins=(), budget=Budget(model_calls=100), runtime=Hasty())

    async def path(number: int) -> None:
        for _ in range(chance.randint(0, 6)):
            await checkpoint()
        with scopes[number]:
            await harness.run(call_model(model), str(number), on_error="result")

    async def disturb() -> None:
        for _ in range(chance.randint(0, paths)):
            for _ in range(chance.randint(0, 10)):
                await checkpoint()
            chance.choice(scopes).cancel()

    async with anyio.create_task_group() as group:
        for number in range(paths):
            group.start_soon(path, number)
        group.start_soon(disturb)
    went = iter(model.came)
    # In the order in which they came; who was cancelled on the way is missing, and nobody else.
    assert all(name in went for name in gauge.entered), (model.came, gauge.entered)
    missing = set(model.came) - set(gauge.entered)
    assert all(scopes[int(name)].cancel_called for name in missing)
    assert limit.concurrency is not None
    assert gauge.peak <= limit.concurrency
    assert (limit.running, limit.waiting, gauge.running) == (0, 0, 0)
    assert harness._resources.lease.calls == gauge.meter.calls
