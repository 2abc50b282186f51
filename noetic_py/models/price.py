"""`Price`: what a model costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from attrs import field, frozen

from noetic_py.core.types import is_mapping
from noetic_py.core.usage import MOST, TokenUsage
from noetic_py.errors import ConfigError

_Part: TypeAlias = tuple[int, Decimal]
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

    def most(self, read: int, written: int) -> Decimal:
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
    """What tokens come to: those of parts that cost something else, the dearest first, and the rest of them."""
    found = Decimal(0)
    own = sorted(((rate, count) for count, rate in parts if rate is not None and count), reverse=True)
    for rate, count in own:
        taken = min(count, total)
        found += taken * rate
        total -= taken
    return found + total * price
