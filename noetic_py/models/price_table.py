"""Prices of models: a table that users extend, and a source for what is not in it; and the settings that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from noetic_py.core.runtime import SYSTEM
from noetic_py.core.spelling import suggestion
from noetic_py.errors import ConfigError, MissingExtra, UnknownKeyword
from noetic_py.models.model import Model, ModelProfile, ModelSettings
from noetic_py.models.price import Price

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
# Tools of the provider's own, which a request of ours does not ask for, and what is cheaper than the price of its kind.
_LEFT_OUT = frozenset(
    {
        "web_searches_kcount",
        "social_searches_kcount",
        "storage_searches_kcount",
        "code_executions_kcount",
        "cache_audio_read_mtok",
        "cache_image_read_mtok",
    }
)


def _from_rates(given: Mapping[str, object]) -> Price | None:
    """A price of genai-prices as one of ours; `None` for one that has more to it than tokens and calls."""
    rates = {name: rate for name, rate in given.items() if rate is not None and name not in _LEFT_OUT}
    if "input_mtok" not in rates or not rates.keys() <= _RATES.keys():
        return None
    starts = sorted({tier.start for rate in rates.values() for tier in getattr(rate, "tiers", ())})
    return Price(**_at(rates, None), tiers={start: Price(**_at(rates, start)) for start in starts})


def _at(rates: Mapping[str, Any], start: int | None) -> dict[str, Any]:
    """The rates of prompts behind the start of a tier, or before all tiers."""
    found: dict[str, Any] = {}
    for name, rate in rates.items():
        usd = getattr(rate, "base", rate)
        for tier in getattr(rate, "tiers", ()) if start is not None else ():
            usd = tier.price if tier.start <= start else usd
        found[_RATES[name]] = usd / 1000 if name == "requests_kcount" else usd
    return found


def profile_of(model: Model) -> ModelProfile:
    """What the model says of itself, empty when it says nothing."""
    # Not by isinstance with the protocol: that walks its attributes, and this is asked for every call.
    profile = getattr(model, "profile", None)
    return profile if isinstance(profile, ModelProfile) else _NONE


_SETTINGS = frozenset(ModelSettings.__annotations__)


def check_settings(settings: Mapping[str, object], model: Model | None, where: str, path: tuple[str, ...] = ()) -> None:
    """Refuse settings that would be dropped without a word, because no model reads them.

    Args:
        settings: The settings.
        model: The model, which may take settings of its own.
        where: Who takes them: `"call_model()"`.
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
