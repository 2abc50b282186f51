"""Prices of models, a table that users extend."""

from __future__ import annotations

from decimal import Decimal
from fnmatch import fnmatchcase

from noetic_py.models.base import Model, ModelProfile, Price

__all__ = ["price_of", "profile_of", "set_price"]

_NONE = ModelProfile()
# No provider's list is shipped: a price that nobody keeps up to date is worse than `UnknownPrice`, which says how to
# register one.
_prices: dict[str, Price] = {}
_FREE = Price()


def set_price(
    model: str,
    *,
    input: str | Decimal = "0",
    output: str | Decimal = "0",
    cached_input: str | Decimal | None = None,
    per_call: str | Decimal = "0",
) -> None:
    """Tell what a model costs; the newest price that fits a name holds.

    Args:
        model: A model's name, or a pattern such as `"openai:gpt-5*"`.
        input: USD for a million input tokens.
        output: USD for a million output tokens.
        cached_input: USD for a million cached input tokens; the input price when `None`.
        per_call: USD for each call besides.
    """
    _prices.pop(model, None)
    _prices[model] = Price(
        input=Decimal(input),
        output=Decimal(output),
        cached_input=None if cached_input is None else Decimal(cached_input),
        per_call=Decimal(per_call),
    )


def profile_of(model: Model) -> ModelProfile:
    """What the model says of itself, empty when it says nothing."""
    # Not by isinstance with the protocol: that walks its attributes, and this is asked for every call.
    profile = getattr(model, "profile", None)
    return profile if isinstance(profile, ModelProfile) else _NONE


def price_of(model: Model) -> Price | None:
    """The model's price: the table's, then its own, then nothing for a local model, then `None`."""
    name = model.name
    exact = _prices.get(name)
    if exact is not None:
        return exact
    for pattern in reversed(_prices):
        if fnmatchcase(name, pattern):
            return _prices[pattern]
    own = profile_of(model).price
    return _FREE if own is None and name.startswith("local:") else own
