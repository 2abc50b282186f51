"""Prices: what a usage costs, what a call can cost at the most, and where prices come from."""

from __future__ import annotations

import builtins
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import pytest
from attrs import evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import Budget, Harness, InMemoryBackend, ModelSettings, TokenUsage, call_model, settle
from noetic_py.checkpoints import SharedBudget
from noetic_py.core.events import FeeUnknown
from noetic_py.errors import ConfigError, MissingExtra, ModelStreamError
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    genai_prices,
    price_of,
    set_price,
    set_price_source,
)
from noetic_py.testing import ScriptedModel, Unfinished
from tests.properties.checks import examples

FULL = Price(
    input=10,
    output=20,
    cached_input=1,
    per_call="0.5",
    cache_write="12.5",
    cache_write_1h=20,
    reasoning=30,
    input_audio=40,
    output_audio=80,
    input_image=15,
    output_image=60,
)
M = 1_000_000


@frozen
class Named:
    name: str
    profile: ModelProfile = field(factory=ModelProfile)

    def respond(self, request: Any, /) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def no_source() -> Iterator[None]:
    before = set_price_source(None)
    yield
    set_price_source(before)


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (TokenUsage(), "0.5"),
        (TokenUsage(M, M), "30.5"),
        (TokenUsage(M, 0, cached_input=M), "1.5"),
        (TokenUsage(M, 0, cached_input=M // 2), "6"),
        (TokenUsage(M, 0, cache_write=M), "13"),
        (TokenUsage(M, 0, cache_write=M, cache_write_1h=M // 2), "16.75"),
        (TokenUsage(M, 0, cached_input=M // 2, cache_write=M // 2, cache_write_1h=0), "7.25"),
        (TokenUsage(0, M, reasoning=M // 2), "25.5"),
        (TokenUsage(0, M, output_audio=M), "80.5"),
        (TokenUsage(0, M, output_image=M // 4, reasoning=M // 4), "33"),
        (TokenUsage(M, 0, input_audio=M), "40.5"),
        (TokenUsage(M, 0, input_image=M // 5), "11.5"),
        # Sound that came from the cache is in both: the dearer price holds, and no token is paid twice.
        (TokenUsage(M, 0, cached_input=M, input_audio=M), "40.5"),
    ],
)
def test_every_part_has_its_price(usage: TokenUsage, usd: str) -> None:
    assert FULL.cost(usage) == Decimal(usd)


def test_a_part_without_a_price_of_its_own_costs_what_the_others_do() -> None:
    plain = Price(input=10, output=20)
    assert plain.cost(TokenUsage(M, M, M // 2, M // 4, M, M // 4, M // 4, M, 0, 0)) == 30
    # An hour costs what minutes do.
    assert Price(input=10, cache_write=12).cost(TokenUsage(M, 0, cache_write=M, cache_write_1h=M)) == 12


def test_the_size_of_the_prompt_chooses_the_tier() -> None:
    price = Price(input=1, output=2, tiers={200_000: Price(input=2, output=3), 400_000: Price(input=4, output=8)})
    assert price.tiers == ((200_000, Price(input=2, output=3)), (400_000, Price(input=4, output=8)))
    costs = [price.cost(TokenUsage(read, 0)) * M / read for read in (1, 200_000, 200_001, 400_000, 400_001)]
    assert costs == [1, 1, 2, 2, 4]
    assert price.cost(TokenUsage(200_001, M)) == 3 + Decimal("0.400002")


def test_a_reservation_covers_the_dearest_case() -> None:
    assert FULL.max_cost(M, M) == 40 + 80 + Decimal("0.5")
    price = Price(input=1, output=2, tiers={200_000: Price(input=2, output=3)})
    assert price.max_cost(100_000, M) == Decimal("2.1")
    # The provider may count more tokens than were counted here.
    assert price.max_cost(199_000, M) == Decimal("3.398")
    cheaper = Price(input=5, output=5, tiers={10: Price(input=1, output=1)})
    assert cheaper.max_cost(M, M) == 10


counts = st.integers(0, 10**7)
rates = st.decimals(0, 1000, places=6)
PARTS = (
    *("cached_input", "cache_write", "cache_write_1h", "reasoning"),
    *("input_audio", "output_audio", "input_image", "output_image"),
)


def priced(read: Decimal, written: Decimal, call: Decimal, rest: dict[str, Any], tiers: dict[int, Price]) -> Price:
    return Price(read, written, per_call=call, tiers=tiers, **rest)


parts = st.fixed_dictionaries({}, optional=dict.fromkeys(PARTS, rates))
prices = st.builds(priced, rates, rates, rates, parts, st.just(dict[int, Price]()))
sizes = st.dictionaries(st.integers(1, 10**7), prices, max_size=3)
tiered = st.builds(priced, rates, rates, rates, parts, sizes)


@st.composite
def usages(draw: Any) -> TokenUsage:
    read, written = draw(counts), draw(counts)
    cached = draw(st.integers(0, read))
    to_cache = draw(st.integers(0, read - cached))
    return TokenUsage(
        read,
        written,
        cached_input=cached,
        cache_write=to_cache,
        reasoning=draw(st.integers(0, written)),
        cache_write_1h=draw(st.integers(0, to_cache)),
        input_audio=draw(st.integers(0, read)),
        output_audio=draw(st.integers(0, written)),
        input_image=draw(st.integers(0, read)),
        output_image=draw(st.integers(0, written)),
    )


@given(tiered, usages())
def test_no_usage_costs_more_than_was_reserved_for_it(price: Price, usage: TokenUsage) -> None:
    assert 0 <= price.cost(usage) <= price.max_cost(usage.input, usage.output)


@given(tiered, counts, counts, counts)
def test_more_output_never_costs_less_at_the_most(price: Price, read: int, written: int, more: int) -> None:
    assert price.max_cost(read, written) <= price.max_cost(read, written + more)


@pytest.mark.parametrize(
    "value", ["-1", Decimal("-0.01"), "nan", "sNaN", "inf", "1e99", "much", "", 0.5, math.nan, True, b"1", [], object()]
)
@pytest.mark.parametrize("name", ["input", "output", "cached_input", "per_call", "cache_write_1h", "output_image"])
def test_a_price_is_looked_at_when_it_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="is not a valid price; expected a finite amount") as caught:
        Price(**{name: value})
    assert caught.value.code == "price"


@pytest.mark.parametrize("name", ["input", "output", "per_call"])
def test_what_a_price_needs_is_not_none(name: str) -> None:
    none: Any = {name: None}
    negative: Any = {name: "-1"}
    with pytest.raises(ConfigError, match="not a valid price"):
        Price(**none)
    with pytest.raises(ConfigError, match="not a valid price"):
        set_price("acme:*", **negative)


@pytest.mark.parametrize(
    "tiers", [{0: Price()}, {-1: Price()}, {True: Price()}, {"200k": Price()}, {1: 5}, {1: Price(tiers={2: Price()})}]
)
def test_tiers_are_looked_at_too(tiers: Any) -> None:
    with pytest.raises(ConfigError, match="is not a valid") as caught:
        Price(tiers=tiers)
    assert caught.value.code == "price"


def test_a_price_is_given_whole_or_by_parts() -> None:
    set_price("acme:large", FULL)
    assert price_of(Named("acme:large")) == FULL
    set_price("acme:large", input="1")
    assert price_of(Named("acme:large")) == Price(input=1)
    for price, rest in ((FULL, {"input": "1"}), ("0.5", {})):
        wrong: Any = price
        with pytest.raises(ConfigError, match="expected a Price, or its parts"):
            set_price("acme:large", wrong, **rest)


@pytest.mark.anyio
async def test_a_limit_of_cost_is_kept_by_the_dearest_price() -> None:
    set_price("dear:m", Price(reasoning="1000000"))
    model = ScriptedModel("hi", name="dear:m", usage=TokenUsage(1, 1, reasoning=1))
    async with Harness(model=model, budget=Budget(cost="5")) as harness:
        refused = await harness.run(call_model(settings={"max_output_tokens": 6}), "x")
        assert refused.status == "budget_exceeded"
        assert refused.cost == 0
        result = await harness.run(call_model(settings={"max_output_tokens": 5}), "x")
    assert result.cost == 1


class Charging:
    """A model with a fee for each call, which writes as much as it may, and whose every second answer breaks off."""

    name = "test:charging"

    def __init__(self, price: Price, written: int) -> None:
        self.profile = ModelProfile(price=price)
        self.written, self.calls = written, 0

    def respond(self, request: ModelRequest, /) -> Any:
        self.calls += 1
        cut = Unfinished("High", ModelStreamError("cut off", model=self.name))
        written = min(self.written, request.settings.get("max_output_tokens", self.written))
        return ScriptedModel("noon" if self.calls % 2 else cut, usage=TokenUsage(0, written)).respond(request)


@settings(max_examples=examples(sample=15, full=500), deadline=None)
@given(
    fee=st.decimals("0.001", "2", places=4),
    rate=st.sampled_from([0, 0, 3, 100]),
    limit=st.decimals(0, 6, places=4),
    written=st.integers(1, 20_000),
    most=st.sampled_from([None, 20_000]),
    calls=st.integers(1, 6),
    concurrency=st.sampled_from([None, 1]),
    shared=st.booleans(),
)
def test_fees_of_calls_never_pass_a_limit_of_cost(
    fee: Decimal,
    rate: int,
    limit: Decimal,
    written: int,
    most: int | None,
    calls: int,
    concurrency: int | None,
    shared: bool,
) -> None:
    model = Charging(Price(output=rate, per_call=fee), written)
    ask = call_model(model, settings=ModelSettings() if most is None else ModelSettings(max_output_tokens=most))
    flow = settle([ask.with_options(id=f"ask-{number}") for number in range(calls)], concurrency=concurrency)
    budget = SharedBudget("all", Budget(cost=limit)) if shared else Budget(cost=limit)

    async def run() -> None:
        async with Harness(checkpoints=InMemoryBackend(), plugins=(), budget=budget) as harness:
            result = await harness.run(flow, "when?")
            rows = await harness.runs.budgets()
        assert result.cost is not None
        assert fee * model.calls <= result.cost <= limit
        assert [row.used.get("cost", 0) for row in rows] in ([], [int(result.cost * 10**9)])
        if not rate:
            # No token is paid for, so the fees alone say how many calls there are.
            assert model.calls == min(calls, int(limit // fee))

    anyio.run(run)


# -------------------------------------------------------------------------------------------------------------- sources


def test_a_source_is_asked_last() -> None:
    asked: list[str] = []

    def source(model: str) -> Price | None:
        asked.append(model)
        return Price(input=7) if model == "mine:a" else None

    assert set_price_source(source) is None
    assert price_of(Named("mine:a")) == Price(input=7)
    assert price_of(Named("mine:b")) is None
    assert price_of(Named("mine:a", ModelProfile(price=FULL))) == FULL
    assert price_of(Named("local:a")) == Price()
    set_price("mine:c", FULL)
    assert price_of(Named("mine:c")) == FULL
    assert asked == ["mine:a", "mine:b"]
    assert set_price_source(None) is source


def test_prices_of_the_package_genai_prices() -> None:
    source = genai_prices()
    sonnet, mini = source("anthropic:claude-sonnet-4-5"), source("openai:gpt-5-mini")
    assert sonnet is not None
    assert mini is not None
    assert [above for above, _ in sonnet.tiers] == [200_000]
    long = sonnet.tiers[0][1]
    for here, there in (
        (sonnet.input, long.input),
        (sonnet.output, long.output),
        (sonnet.cache_write, long.cache_write),
    ):
        assert here is not None
        assert there is not None
        assert 0 < here < there
    assert (sonnet.cache_write_1h or 0) > (sonnet.cache_write or 0) > sonnet.input > (sonnet.cached_input or 0) > 0
    assert mini.tiers == ()
    assert 0 < (mini.cached_input or 0) < mini.input < mini.output
    realtime = source("openai:gpt-4o-realtime-preview")
    assert realtime is not None
    assert (realtime.input_audio or 0) > realtime.input
    assert (realtime.output_audio or 0) > realtime.output
    sonar = source("perplexity:sonar-pro")
    assert sonar is not None
    assert 0 < sonar.per_call < 1
    # By the hour or by the character: that is no price of tokens.
    assert source("groq:whisper-large-v3") is None
    assert source("openai:tts-1") is None
    assert source("acme:large") is None
    assert source("openai:no-such-model") is None
    # A name without a provider is looked up in all.
    assert source("gpt-5-mini") == mini
    set_price_source(source)
    assert price_of(Named("openai:gpt-5-mini")) == mini


def test_our_prices_and_those_of_the_package_come_to_the_same() -> None:
    from genai_prices import Usage, calc_price

    source = genai_prices()
    for provider, model in (("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5-mini"), ("google", "gemini-2.5-pro")):
        price = source(f"{provider}:{model}")
        assert price is not None
        for read in (1000, 200_000, 200_001, 500_000):
            theirs = calc_price(
                Usage(input_tokens=read, output_tokens=300, cache_read_tokens=400), model, provider_id=provider
            )
            assert price.cost(TokenUsage(read, 300, cached_input=400)) == theirs.total_price, (model, read)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("genai_prices"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match="genai-prices is not installed") as caught:
        genai_prices()
    assert caught.value.hint == 'pip install "noetic-py[prices]"'


# ---------------------------------------------------------------------------------------- tools of the provider's own


class Searching:
    """A model whose provider has searched, and charges for it."""

    name = "mine:searching"

    def __init__(self, price: Price, cost: Decimal | None = None) -> None:
        self.profile = ModelProfile(price=price)
        self._cost = cost

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        async with ScriptedModel("noon", usage=TokenUsage(M, 0)).respond(request) as stream:
            response = await stream.response()
            yield Whole(evolve(response, cost=self._cost, server_tools={"web_search": 3, "code": 1}))


class Whole:
    """An answer that is there."""

    def __init__(self, response: ModelResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[ModelEvent]:
        for item in self._response.items:
            yield ItemDone(item)

    async def response(self) -> ModelResponse:
        return self._response


async def told(model: Any) -> tuple[Decimal | None, list[tuple[str, int]]]:
    async with Harness(model=model, plugins=()) as harness, harness.stream(call_model(), "when?") as stream:
        unknown = [(event.tool, event.uses) async for event in stream.events if isinstance(event, FeeUnknown)]
        return (await stream.result()).cost, unknown


@pytest.mark.anyio
async def test_fees_of_the_providers_own_tools_are_part_of_the_cost(caplog: pytest.LogCaptureFixture) -> None:
    price = Price(input=2, tools={"web_search": "0.01", "code": "0.5"})
    assert await told(Searching(price)) == (Decimal("2.53"), [])
    assert await told(Searching(price, Decimal(7))) == (Decimal(7), [])
    assert not caplog.records
    cost, unknown = await told(Searching(Price(input=2, tools={"web_search": "0.01"})))
    assert (cost, unknown) == (Decimal("2.03"), [("code", 1)])
    assert "used code 1 times, and its fee is not known" in caplog.text


@pytest.mark.anyio
async def test_a_fee_counts_for_the_limit_of_cost() -> None:
    model = Searching(Price(input=1, output=1, tools={"web_search": 1, "code": 1}))
    settings: Any = {"max_output_tokens": 10}
    async with Harness(model=model, plugins=(), budget=Budget(cost=3)) as harness:
        ask = call_model(settings=settings)
        result = await harness.run(ask >> ask.with_options(id="again"), "when?")
    assert (result.status, result.cost, result.model_calls) == ("budget_exceeded", Decimal(5), 1)


def test_fees_of_the_package_genai_prices() -> None:
    from genai_prices import Usage, calc_price

    for provider, model in (("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5-mini"), ("google", "gemini-2.5-pro")):
        price = genai_prices()(f"{provider}:{model}")
        assert price is not None
        usage = Usage(input_tokens=0, output_tokens=0, web_searches=7)
        theirs = calc_price(usage, model, provider_id=provider)
        assert price.tool_cost({"web_search": 7}) == (theirs.total_price, [])
        assert theirs.total_price > 0


@pytest.mark.parametrize("tools", [{"web_search": -1}, {"web_search": "x"}, {"web_search": 0.5}])
def test_a_fee_is_looked_at_when_it_is_made(tools: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Price(tools=tools)
    assert caught.value.code == "price"
