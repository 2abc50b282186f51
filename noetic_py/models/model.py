"""The model interface, one request in and a stream of events out; the prices and profiles of models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field, frozen
from typing_extensions import TypedDict

from noetic_py.core.budget import MOST, TokenUsage
from noetic_py.core.diagnostics import NOWHERE, Where, suggestion
from noetic_py.core.items import Item, ItemBase, JsonValue
from noetic_py.core.log import ItemView
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.secrets import Secret
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.values import is_mapping, size_of
from noetic_py.errors import AnswerTooLarge, ConfigError, LimitExceeded, MissingExtra, RealModelRefused, UnknownKeyword

# A prompt may be larger than it was counted, and so cost what one of a larger size does.
_MARGIN = Decimal("1.25")


def _usd(value: str | int | Decimal) -> Decimal:
    given: object = value
    try:
        amount = Decimal(given) if isinstance(given, (str, int, Decimal)) and not isinstance(given, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount <= MOST:
        raise ConfigError(
            f"{value!r:.60} is not a valid price; expected a finite amount of USD from 0 to 2**53",
            code="price",
            hint='a text or a Decimal, which are exact: Price(input="0.50")',
        )
    return amount


def _usd_or_none(value: str | int | Decimal | None) -> Decimal | None:
    return None if value is None else _usd(value)


def _tiers(given: Mapping[int, Price] | Iterable[tuple[int, Price]]) -> tuple[tuple[int, Price], ...]:
    pairs: list[tuple[Any, Any]] = list(given.items() if is_mapping(given) else given)
    for above, price in pairs:
        if isinstance(above, bool) or not isinstance(above, int) or above < 1:
            raise _wrong_tier(f"{above!r} is not a valid size of a prompt; expected tokens above 0")
        if not isinstance(price, Price) or price.tiers:
            raise _wrong_tier(f"{price!r:.60} is not a valid tier; expected a Price without tiers of its own")
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _fees(
    given: Mapping[str, str | int | Decimal] | Iterable[tuple[str, str | int | Decimal]],
) -> tuple[tuple[str, Decimal], ...]:
    pairs: list[tuple[Any, Any]] = list(given.items() if is_mapping(given) else given)
    return tuple(sorted((str(name), _usd(fee)) for name, fee in pairs))


def _wrong_tier(what: str) -> ConfigError:
    return ConfigError(what, code="price", hint="Price(..., tiers={200_000: Price(...)})")


@frozen
class Price:
    """USD a model costs; exact, so that a bill adds up.

    A part of the tokens that has no price of its own costs what the others do. Where parts overlap, as cached sound
    does, the dearer price holds.

    Attributes:
        input: USD for a million input tokens.
        output: USD for a million output tokens.
        cached_input: USD for a million input tokens served from cache; the input price when `None`.
        per_call: USD for each call besides.
        cache_write: USD for a million input tokens written to a cache for minutes; the input price when `None`.
        cache_write_1h: USD for a million input tokens written to a cache for an hour; `cache_write` when `None`.
        reasoning: USD for a million output tokens of reasoning; the output price when `None`.
        input_audio: USD for a million input tokens of sound; the input price when `None`.
        output_audio: USD for a million output tokens of sound; the output price when `None`.
        input_image: USD for a million input tokens of pictures; the input price when `None`.
        output_image: USD for a million output tokens of pictures; the output price when `None`.
        tools: USD for each use of a tool of the provider's own, by its name: `{"web_search": "0.01"}`.
        tiers: The prices of prompts of more input tokens than a number: `{200_000: Price(...)}`. The price of the
            largest number that a prompt passes holds for the whole call.

    Raises:
        ConfigError: A price is negative, not finite, or of the wrong type; code `"price"`.
    """

    input: Decimal = field(default=Decimal(0), converter=_usd)
    output: Decimal = field(default=Decimal(0), converter=_usd)
    cached_input: Decimal | None = field(default=None, converter=_usd_or_none)
    per_call: Decimal = field(default=Decimal(0), converter=_usd)
    cache_write: Decimal | None = field(default=None, converter=_usd_or_none)
    cache_write_1h: Decimal | None = field(default=None, converter=_usd_or_none)
    reasoning: Decimal | None = field(default=None, converter=_usd_or_none)
    input_audio: Decimal | None = field(default=None, converter=_usd_or_none)
    output_audio: Decimal | None = field(default=None, converter=_usd_or_none)
    input_image: Decimal | None = field(default=None, converter=_usd_or_none)
    output_image: Decimal | None = field(default=None, converter=_usd_or_none)
    tiers: tuple[tuple[int, Price], ...] = field(default=(), converter=_tiers)
    tools: tuple[tuple[str, Decimal], ...] = field(default=(), converter=_fees)

    def cost(self, usage: TokenUsage) -> Decimal:
        """USD for a usage."""
        price = self._of_prompt(usage.input) if self.tiers else self
        if usage.is_plain:
            return (usage.input * price.input + usage.output * price.output) / 1_000_000 + price.per_call
        hour = usage.cache_write_1h or 0
        read = [
            (usage.cached_input or 0, price.cached_input),
            (hour, price._an_hour),
            ((usage.cache_write or 0) - hour, price.cache_write),
            (usage.input_audio or 0, price.input_audio),
            (usage.input_image or 0, price.input_image),
        ]
        written = [
            (usage.reasoning or 0, price.reasoning),
            (usage.output_audio or 0, price.output_audio),
            (usage.output_image or 0, price.output_image),
        ]
        tokens = _sum(usage.input, price.input, read) + _sum(usage.output, price.output, written)
        return tokens / 1_000_000 + price.per_call

    def tool_cost(self, uses: Mapping[str, int]) -> tuple[Decimal, Sequence[str]]:
        """USD for uses of the provider's own tools, and the names of those whose fee is not known.

        Args:
            uses: How many, by the tool's name.
        """
        fees = dict(self.tools)
        known = sum((fees[name] * count for name, count in uses.items() if name in fees), Decimal(0))
        return known, [name for name, count in uses.items() if name not in fees and count]

    def max_cost(self, read: int, written: int) -> Decimal:
        """USD that a call of so many input and output tokens costs at the most, whatever the tokens are."""
        near = [price for above, price in self.tiers if above < read * _MARGIN]
        return max(price._most_here(read, written) for price in (self, *near))

    def _most_here(self, read: int, written: int) -> Decimal:
        reads = (self.cached_input, self.cache_write, self._an_hour, self.input_audio, self.input_image)
        writes = (self.reasoning, self.output_audio, self.output_image)
        dearest = max([self.input, *[each for each in reads if each is not None]])
        dearest_output = max([self.output, *[each for each in writes if each is not None]])
        return (read * dearest + written * dearest_output) / 1_000_000 + self.per_call

    @property
    def _an_hour(self) -> Decimal | None:
        return self.cache_write if self.cache_write_1h is None else self.cache_write_1h

    def _of_prompt(self, read: int) -> Price:
        """The price of the tier that a prompt belongs to."""
        found = self
        for above, price in self.tiers:
            if read > above:
                found = price
        return found


def _sum(total: int, price: Decimal, parts: Iterable[tuple[int, Decimal | None]]) -> Decimal:
    """The cost of tokens: parts with their own price, the dearest first, then the rest."""
    found = Decimal(0)
    own = sorted(((rate, count) for count, rate in parts if rate is not None and count), reverse=True)
    for rate, count in own:
        taken = min(count, total)
        found += taken * rate
        total -= taken
    return found + total * price


_allowed: ContextVar[bool | None] = ContextVar("noetic_real_models", default=None)
_default = True


def set_real_models_default(allowed: bool) -> bool:
    """Set what holds where no other decision was made, and return what held before; the pytest plugin forbids."""
    global _default
    before, _default = _default, allowed
    return before


@contextmanager
def allow_real_models(allowed: bool = True) -> Generator[None]:
    """Allow, or forbid, real models for the block and the tasks it starts.

    Args:
        allowed: `False` makes every real model raise [`RealModelRefused`][noetic_py.errors.RealModelRefused].
    """
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_real_model(name: str) -> None:
    """Called by every provider before it opens a connection.

    Args:
        name: The model's name.

    Raises:
        RealModelRefused: Real models are forbidden here.
    """
    allowed = _allowed.get()
    if not (_default if allowed is None else allowed):
        raise RealModelRefused(
            f"a real model was called in a test: {name}",
            model=name,
            hint="use ScriptedModel, or `with allow_real_models():` in a test that means it",
        )


class Calls(Protocol):
    """The protocol from model wrappers to the run."""

    @property
    def runtime(self) -> Runtime:
        """The run's clock and randomness."""
        ...

    @property
    def where(self) -> Where:
        """The step that asks, for log records."""
        ...

    def find(self, name: str, /) -> Model:
        """The model of a name.

        Raises:
            ModelNotFound: No plugin knows it.
        """
        ...

    def open(
        self, model: Model, request: ModelRequest, /, budget: SharedBudget | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """A call of a model that is not a wrapper, reserved on entering and settled on leaving.

        Args:
            model: The model.
            request: What to ask.
            budget: The shared budget that the model has for itself.

        Raises:
            BudgetExceeded: On entering: the call does not fit the budget.
            ConfigError: On entering: the model has a budget, and the run is not stored; code `"budgets"`.
        """
        ...


CALLS: ContextVar[Calls | None] = ContextVar("noetic_model_calls", default=None)
"""The opener of calls here; `None` outside of a run and inside a model that is not a wrapper."""


def current_runtime() -> Runtime:
    """The clock and randomness of the run that asks; the machine's own outside of one."""
    calls = CALLS.get()
    return SYSTEM if calls is None else calls.runtime


def current_where() -> Where:
    """Where a log record of a wrapper belongs: to the step that asks, if there is one."""
    calls = CALLS.get()
    return NOWHERE if calls is None else calls.where


StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "paused", "other"]
"""Why a model stopped.

After `"paused"` the provider goes on where it stopped when it is asked again, as in long work of its own tools. A model
step does that, each time as a call of its own.
"""


class ModelSettings(TypedDict, total=False):
    """Settings of one model call; what is left out is the provider's default.

    Attributes:
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        max_output_tokens: The most tokens the model may write, reasoning included.
        tool_choice: `"auto"`, `"required"`, `"none"` or the name of the one tool to call.
        parallel_tool_calls: Whether one answer may hold several calls.
        seed: Sampling seed, where a provider has one.
        stop: Texts that end the answer.
        reasoning_effort: `"minimal"`, `"low"`, `"medium"` or `"high"`, where a model reasons.
        timeout: Seconds the provider may take to begin its answer.
        extra: Provider's own fields, passed on as they are; a `Secret` in it is revealed to the provider alone.
    """

    temperature: float
    top_p: float
    max_output_tokens: int
    tool_choice: Literal["auto", "required", "none"] | str
    parallel_tool_calls: bool
    seed: int
    stop: Sequence[str]
    reasoning_effort: Literal["minimal", "low", "medium", "high"]
    timeout: float
    extra: Mapping[str, JsonValue | Secret[Any]]


def merge_settings(*parts: ModelSettings) -> ModelSettings:
    """Settings put together; a later part wins."""
    merged = ModelSettings()
    for part in parts:
        merged.update(part)
    return merged


@frozen
class OutputSchema:
    """The JSON schema an answer has to follow.

    Attributes:
        name: A short name, as providers ask for one.
        schema: The JSON schema; its root is an object.
        strict: Whether the provider is to enforce it, where it can.
    """

    name: str
    schema: Mapping[str, JsonValue]
    strict: bool = True


def _view_of(items: Iterable[Item]) -> ItemView:
    # mypy takes only functions of a module as converters.
    return ItemView.of(items)


@frozen
class ModelRequest:
    """One call of a model.

    Attributes:
        items: The conversation as the model shall see it: provider-valid, every call has its output. A view, whose
            `last_text("user")` is what the user has said last; a list that is given becomes one.
        instructions: The system instructions, `None` for none.
        tools: Function tools: mappings with `name`, `description`, `parameters` (a JSON schema) and `strict`.
        settings: The call's settings.
        output: The schema the answer has to follow, `None` for free text.
        stable: How many items at the start are likely to be the same in the next call of this conversation, for
            providers that need marks of what to cache.
        cache_key: The same text for all calls of a conversation, for providers that look for what they have cached by
            such a key; a digest, in which neither the thread's nor the user's id can be read. `None` outside of a run.
        metadata: What is known of the run: its `metadata=`, and `user_id`, `session_id` and `app_name` where it has
            them and does not say otherwise. For models and wrappers to look at; the library's own send none of it.
    """

    # Two views of the same items are not equal, and two requests with them are.
    items: ItemView = field(converter=_view_of, eq=tuple)
    instructions: str | None = None
    tools: Sequence[Mapping[str, JsonValue]] = ()
    settings: ModelSettings = field(factory=ModelSettings)
    output: OutputSchema | None = None
    stable: int = 0
    cache_key: str | None = None
    metadata: Mapping[str, JsonValue] = field(factory=dict[str, JsonValue])


@frozen
class ModelResponse:
    """The response of one call.

    Attributes:
        items: Messages, reasoning and function calls, in the model's order.
        usage: Tokens as the provider reported them, `None` when it did not.
        cost: USD as the provider reported it, `None` when it did not; the price table then tells.
        stop_reason: Why the model stopped.
        model: The name of the model that really answered.
        response_id: The provider's id of the answer.
        server_tools: How often tools of the provider's own were used that it charges for besides tokens, by name, such
            as `{"web_search": 2}`. It is no part of a stored answer; what it cost is.
    """

    items: Sequence[Item]
    usage: TokenUsage | None = None
    cost: Decimal | None = None
    stop_reason: StopReason = "stop"
    model: str | None = None
    response_id: str | None = None
    server_tools: Mapping[str, int] = field(factory=dict[str, int])


@frozen
class TextPart:
    """A piece of the answer's text."""

    delta: str
    item_id: str | None = None


@frozen
class ReasoningPart:
    """A piece of visible reasoning."""

    delta: str
    item_id: str | None = None


@frozen
class ToolCallPart:
    """A piece of a function call's arguments."""

    call_id: str
    name: str
    delta: str


@frozen
class ItemDone:
    """An item of the answer is whole."""

    item: ItemBase


ModelEvent: TypeAlias = TextPart | ReasoningPart | ToolCallPart | ItemDone
"""The events of a streamed answer."""


class ModelStream(Protocol):
    """An answer under way: iterate for its events, then ask for the whole."""

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        """The events in order; may be left early."""
        ...

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated."""
        ...


class Model(Protocol):
    """A model as the engine sees it."""

    @property
    def name(self) -> str:
        """The name it is known by, such as `"openai:gpt-5-mini"`."""
        ...

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask; the answer is streamed while the context manager is open.

        Raises:
            ModelError: One of its subclasses, on entering or while streaming.
        """
        ...


@frozen
class ModelProfile:
    """The properties of a model; `None` where unknown.

    Attributes:
        context_window: Tokens that request and answer may have together.
        max_output_tokens: The most tokens one answer may have.
        price: Its price; the price table is asked when `None`.
        encoding: The tiktoken encoding that counts for it.
        settings: Names of settings that it takes besides those of [`ModelSettings`][noetic_py.ModelSettings].
    """

    context_window: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None
    encoding: str | None = None
    settings: frozenset[str] = frozenset()


@runtime_checkable
class ProfiledModel(Protocol):
    """A model that tells its window, its price and its tokenizer."""

    @property
    def profile(self) -> ModelProfile:
        """Its properties."""
        ...


PriceSource: TypeAlias = Callable[[str], Price | None]
"""Tells the price of a model by its name, `None` when it does not know it."""

_NONE = ModelProfile()
# No provider's list is shipped: a price that is not kept up to date is worse than `UnknownPrice`, which says how to
# register one.
_prices: dict[str, Price] = {}
_FREE = Price()
_source: PriceSource | None = None


def set_price(
    model: str,
    price: Price | None = None,
    *,
    input: str | Decimal = "0",
    output: str | Decimal = "0",
    cached_input: str | Decimal | None = None,
    per_call: str | Decimal = "0",
) -> None:
    """Tell what a model costs; the newest price that fits a name holds.

    Args:
        model: A model's name, or a pattern such as `"openai:gpt-5*"`.
        price: The price, in place of the other arguments.
        input: USD for a million input tokens.
        output: USD for a million output tokens.
        cached_input: USD for a million cached input tokens; the input price when `None`.
        per_call: USD for each call besides.

    Raises:
        ConfigError: A price is negative, not finite, or of the wrong type; code `"price"`.
    """
    own = Price(input, output, cached_input, per_call)
    given: object = own if price is None else price
    if not isinstance(given, Price) or (price is not None and own != _FREE):
        raise ConfigError(
            f"set_price got {price!r:.60} as the price of {model!r}; expected a Price, or its parts by name",
            code="price",
            hint='set_price("acme:*", input="0.50", output="2.00")',
        )
    _prices.pop(model, None)
    _prices[model] = given


def set_price_source(source: PriceSource | None) -> PriceSource | None:
    """Say where the prices of models come from that neither the table nor the model itself knows.

    Args:
        source: Is asked for each call, by the model's name; `None` for no source.

    Returns:
        The source that was there before.
    """
    global _source
    before, _source = _source, source
    return before


def genai_prices() -> PriceSource:
    """The prices of the package genai-prices, as a source: `set_price_source(genai_prices())`.

    A name such as `"anthropic:claude-sonnet-4-5"` is looked up as that provider's model. What the package knows only by
    hours, pages, characters or the like has no price here.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as error:
        raise MissingExtra("genai-prices", install='pip install "noetic-py[prices]"') from error

    def source(model: str) -> Price | None:
        provider, _, name = model.rpartition(":")
        try:
            _, found = get_snapshot().find_provider_model(name, None, provider or None, None)
        except LookupError:
            return None
        return _from_rates(vars(found.get_prices(SYSTEM.now())))

    return source


_RATES: Mapping[str, str] = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached_input",
    "cache_write_5m_mtok": "cache_write",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_reasoning_mtok": "reasoning",
    "input_audio_mtok": "input_audio",
    "output_audio_mtok": "output_audio",
    "input_image_mtok": "input_image",
    "output_image_mtok": "output_image",
    "requests_kcount": "per_call",
}
_FEES: Mapping[str, str] = {
    "web_searches_kcount": "web_search",
    "social_searches_kcount": "x_search",
    "storage_searches_kcount": "file_search",
    "code_executions_kcount": "code_execution",
}
"""Fees of the provider's own tools, for a thousand uses, and what the tools are called."""
# What is cheaper than the price of its kind.
_LEFT_OUT = frozenset({"cache_audio_read_mtok", "cache_image_read_mtok"})


def _from_rates(given: Mapping[str, object]) -> Price | None:
    """A price of genai-prices as one of ours; `None` for one that has more to it than tokens and calls."""
    rates = {name: rate for name, rate in given.items() if rate is not None and name not in _LEFT_OUT}
    # A fee that depends on more than the number of uses is not known here, and is named when it is due.
    fees = {tool: rates.pop(name, None) for name, tool in _FEES.items()}
    tools = {tool: fee / 1000 for tool, fee in fees.items() if isinstance(fee, Decimal)}
    if "input_mtok" not in rates or not rates.keys() <= _RATES.keys():
        return None
    starts = sorted({tier.start for rate in rates.values() for tier in getattr(rate, "tiers", ())})
    tiers = {start: Price(**_at(rates, start)) for start in starts}
    return Price(**_at(rates, None), tiers=tiers, tools=tools)


def _at(rates: Mapping[str, Any], start: int | None) -> dict[str, Any]:
    """The rates of prompts behind the start of a tier, or before all tiers."""
    found: dict[str, object] = {}
    for name, rate in rates.items():
        usd = getattr(rate, "base", rate)
        for tier in getattr(rate, "tiers", ()) if start is not None else ():
            usd = tier.price if tier.start <= start else usd
        found[_RATES[name]] = usd / 1000 if name == "requests_kcount" else usd
    return found


def profile_of(model: Model) -> ModelProfile:
    """The properties of the model, empty if it has none."""
    # Not by isinstance with the protocol: that walks its attributes, and this is asked for every call.
    profile = getattr(model, "profile", None)
    return profile if isinstance(profile, ModelProfile) else _NONE


_SETTINGS = frozenset(ModelSettings.__annotations__)


def check_settings(settings: Mapping[str, object], model: Model | None, where: str, path: tuple[str, ...] = ()) -> None:
    """Refuse settings that would be dropped without a word, because no model reads them.

    Args:
        settings: The settings.
        model: The model, which may take settings of its own.
        where: The function that takes them, for messages: `"call_model()"`.
        path: The step that asks.

    Raises:
        UnknownKeyword: One is neither of `ModelSettings` nor of the model's own; code `"model-settings"`.
    """
    if _SETTINGS.issuperset(settings):
        return
    known = _SETTINGS if model is None else _SETTINGS | profile_of(model).settings
    for name in settings:
        if name not in known:
            hint = f"{suggestion(str(name), known)}; a field of the provider's own goes into extra={{...}}"
            raise UnknownKeyword(f"{where} got a setting {name!r}", code="model-settings", hint=hint, path=path)


def price_of(model: Model) -> Price | None:
    """The model's price: the table's, its own, nothing for a local model, the source's; `None` when all are silent."""
    name = model.name
    exact = _prices.get(name)
    if exact is not None:
        return exact
    for pattern in reversed(_prices):
        if fnmatchcase(name, pattern):
            return _prices[pattern]
    own = profile_of(model).price
    if own is None and name.startswith("local:"):
        return _FREE
    return _source(name) if own is None and _source is not None else own


async def close_events(events: AsyncIterator[ModelEvent]) -> None:
    """End an iterator that may have been left in the middle; most have nothing to end."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()


MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""How many bytes the pieces of an answer may have together: text, reasoning and arguments of calls."""


_SMALLEST: Final = 16
"""The minimum size of a piece, since each is an object."""


class AnswerSize:
    """Counts the bytes of one answer.

    Args:
        model: The model's name, for the error.
    """

    __slots__ = ("_items", "_model", "_size")

    def __init__(self, model: str) -> None:
        self._model = model
        self._size = 0
        # Whole items repeat the pieces, so they are counted apart.
        self._items = 0

    def add(self, event: ModelEvent) -> None:
        """Count an event.

        Raises:
            AnswerTooLarge: It is one too many.
        """
        if isinstance(event, ItemDone):
            self._items += size_of(event.item)
        else:
            delta = event.delta
            self.count(len(delta) if delta.isascii() else len(delta.encode(errors="surrogatepass")))
        if self._items > 2 * MAX_ANSWER_BYTES:
            raise AnswerTooLarge(MAX_ANSWER_BYTES, model=self._model)

    def count(self, size: int) -> None:
        """Count a piece of so many bytes.

        Raises:
            AnswerTooLarge: It is one too many.
        """
        self._size += max(_SMALLEST, size)
        if self._size > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(MAX_ANSWER_BYTES, model=self._model)


def check_answer(items: Iterable[Item], model: str) -> None:
    """Refuse an answer of which an item, or all together, are larger than an item may be.

    Raises:
        AnswerTooLarge: It is.
    """
    # Loaded here: a program that only defines tools does not load the codec.
    from noetic_py.core.codec.wire import check_size

    total = 0
    try:
        for item in items:
            total += check_size(item)
    except LimitExceeded:
        total = MAX_ANSWER_BYTES + 1
    if total > MAX_ANSWER_BYTES:
        raise AnswerTooLarge(MAX_ANSWER_BYTES, model=model)
