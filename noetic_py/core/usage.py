"""What calls of models have used, as it is reported and booked."""

from __future__ import annotations

from decimal import Decimal

from attrs import frozen

__all__ = ["MOST", "NOTHING_USED", "NO_USAGE", "TokenUsage", "Usage", "problem_of"]

MOST = 2**53
"""No figure of a usage is larger: up to here every program that reads JSON has whole numbers exactly."""


def _add(a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else a + b


@frozen
class TokenUsage:
    """Tokens that model calls used; what no provider reported is `None`, never 0.

    Attributes:
        input: Tokens read, cached ones included.
        output: Tokens written, reasoning included.
        cached_input: Part of `input` that the provider served from its cache.
        cache_write: Part of `input` that the provider wrote to its cache.
        reasoning: Part of `output` that was reasoning.
        cache_write_1h: Part of `cache_write` that the provider keeps for an hour rather than for minutes.
        input_audio: Part of `input` that was sound.
        output_audio: Part of `output` that was sound.
        input_image: Part of `input` that was pictures.
        output_image: Part of `output` that was pictures.
    """

    input: int = 0
    output: int = 0
    cached_input: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    cache_write_1h: int | None = None
    input_audio: int | None = None
    output_audio: int | None = None
    input_image: int | None = None
    output_image: int | None = None

    @property
    def total(self) -> int:
        """`input` plus `output`."""
        return self.input + self.output

    @property
    def is_plain(self) -> bool:
        """Whether no part is known."""
        return (
            self.cached_input is None
            and self.cache_write is None
            and self.reasoning is None
            and self.cache_write_1h is None
            and self.input_audio is None
            and self.output_audio is None
            and self.input_image is None
            and self.output_image is None
        )

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Add two usages; a part that only one side knows keeps that side's value."""
        read, written = self.input + other.input, self.output + other.output
        if self.is_plain and other.is_plain:
            # What most providers report, and what is added for every call, some times over.
            return TokenUsage(read, written)
        return TokenUsage(
            input=read,
            output=written,
            cached_input=_add(self.cached_input, other.cached_input),
            cache_write=_add(self.cache_write, other.cache_write),
            reasoning=_add(self.reasoning, other.reasoning),
            cache_write_1h=_add(self.cache_write_1h, other.cache_write_1h),
            input_audio=_add(self.input_audio, other.input_audio),
            output_audio=_add(self.output_audio, other.output_audio),
            input_image=_add(self.input_image, other.input_image),
            output_image=_add(self.output_image, other.output_image),
        )


NO_USAGE = TokenUsage()


@frozen
class Usage:
    """What one call really used: the tokens, the cost in USD and the model calls it counts for."""

    tokens: TokenUsage = NO_USAGE
    cost: Decimal | None = None
    model_calls: int = 0


NOTHING_USED = Usage()

# What is a part of what.
_PARTS = {
    "cached_input": "input",
    "cache_write": "input",
    "reasoning": "output",
    "cache_write_1h": "cache_write",
    "input_audio": "input",
    "output_audio": "output",
    "input_image": "input",
    "output_image": "output",
}


def problem_of(usage: object, cost: object) -> str | None:
    """What is wrong with a usage and a cost that a provider has reported; `None` when nothing is.

    Args:
        usage: Tokens; none are reported when it is `None`.
        cost: USD; none is reported when it is `None`.
    """
    if cost is not None and not (isinstance(cost, Decimal) and cost.is_finite() and 0 <= cost <= MOST):
        return f"cost={cost!r:.60} is not a finite Decimal from 0 to 2**53"
    if usage is None:
        return None
    if not isinstance(usage, TokenUsage):
        return f"usage={usage!r:.60} is not a TokenUsage"
    if usage.is_plain and _is_count(usage.input) and _is_count(usage.output):
        return None
    return _problem_of_count(usage) or _problem_of_part(usage)


def _problem_of_count(usage: TokenUsage) -> str | None:
    for name in ("input", "output", *_PARTS):
        value = getattr(usage, name)
        if not _is_count(value) and (value is not None or name not in _PARTS):
            return f"{name}={value!r:.60} is not a whole number from 0 to 2**53"
    return None


def _problem_of_part(usage: TokenUsage) -> str | None:
    for name, whole in _PARTS.items():
        value, most = getattr(usage, name) or 0, getattr(usage, whole) or 0
        if value > most:
            return f"{name}={value} is more than {whole}={most}, of which it is a part"
    cached, written = usage.cached_input or 0, usage.cache_write or 0
    if cached + written > usage.input:
        return f"cached_input={cached} and cache_write={written} are more than input={usage.input}"
    return None


def _is_count(value: object) -> bool:
    # No bool, which is an int too.
    return type(value) is int and 0 <= value <= MOST
