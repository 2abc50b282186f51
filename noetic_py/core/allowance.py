"""`ctx.budget`: limit, usage and remainder of each dimension of a budget; and how a limit is read."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from attrs import field, frozen

from noetic_py.errors import ConfigError

_TOOL = "per_tool:"


@frozen(kw_only=True)
class BudgetLimits:
    """An amount of each dimension that a budget limits; `None` where nothing limits.

    Attributes:
        steps: Bodies.
        model_calls: Model calls.
        tool_calls: Tool calls.
        per_tool: Calls by the name of the tool, of those tools that are limited by themselves.
        tokens: Input plus output tokens.
        input_tokens: Input tokens.
        cached_input_tokens: Input tokens from a provider's cache.
        output_tokens: Output tokens.
        cost: USD.
        seconds: Seconds of active time.
        depth: Spawns below one another.
    """

    steps: int | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    per_tool: Mapping[str, int] = field(factory=dict[str, int])
    tokens: int | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    cost: Decimal | None = None
    seconds: float | None = None
    depth: int | None = None


@frozen(kw_only=True)
class BudgetUsed:
    """The usage of each dimension: under the tightest budget where one limits it, otherwise in the execution.

    Attributes:
        steps: Bodies started.
        model_calls: Model calls started.
        tool_calls: Tool calls started.
        per_tool: Calls started by the name of the tool, of those tools that are limited by themselves.
        tokens: Input plus output tokens.
        input_tokens: Input tokens.
        cached_input_tokens: Input tokens from a provider's cache.
        output_tokens: Output tokens.
        cost: USD.
        seconds: Seconds of active time.
        depth: Spawns above the step.
    """

    steps: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    per_tool: Mapping[str, int] = field(factory=dict[str, int])
    tokens: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    seconds: float = 0.0
    depth: int = 0


@frozen(kw_only=True)
class Remaining(BudgetLimits):
    """The remainder of the tightest budget; `None` where nothing limits.

    What calls in flight have reserved does not remain, and is not used yet. Two are equal when the same remains.

    Attributes:
        limit: The limits themselves, without what a budget keeps back as its reserve.
        used: What was used of them.
    """

    limit: BudgetLimits = field(factory=BudgetLimits, eq=False)
    used: BudgetUsed = field(factory=BudgetUsed, eq=False)


def by_dimension(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts as a lease counts them, as the fields of these classes; those of a tool are called `per_tool:NAME`."""
    found: dict[str, Any] = {"per_tool": {}}
    for name, amount in amounts.items():
        if name.startswith(_TOOL):
            found["per_tool"][name.removeprefix(_TOOL)] = int(amount)
        else:
            found[name] = amount if name in ("cost", "seconds") else int(amount)
    return found


def read_count(value: object, name: str) -> int | None:
    """A count that a budget is given.

    Raises:
        ConfigError: It is not one; code `"budget"`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r} is not a whole number", code="budget", hint=f"{name}=10, or leave it out")
    if value < 0:
        raise ConfigError(f"{name}={value} is negative", code="budget", hint="0 allows none, None does not limit")
    return value


def read_money(value: object, name: str = "cost") -> Decimal | None:
    """An amount of money that a budget is given, in USD.

    Raises:
        ConfigError: It is not one; code `"budget"`.
    """
    if value is None:
        return None
    try:
        # Through str, so that 0.1 means a tenth and not the nearest binary fraction.
        amount = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        raise ConfigError(f"{name}={value!r} is not an amount", code="budget", hint='cost="0.50"') from None
    if isinstance(value, bool) or not amount.is_finite() or amount < 0:
        raise ConfigError(
            f"{name}={value!r} is not a finite amount of USD, 0 or more", code="budget", hint='cost="0.50"'
        )
    return amount


# Ten thousand years: a longer time is a mistake, and the sum with a clock's reading would not be exact.
_LONGEST = 10_000 * 365 * 24 * 3600


def read_seconds(value: object, name: str = "seconds") -> float | None:
    """A time that a budget is given, in seconds.

    Raises:
        ConfigError: It is not one; code `"budget"`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name}={value!r} is not a number of seconds", code="budget", hint=f"{name}=30.0")
    if not 0 <= value < float("inf") or value > _LONGEST:
        raise ConfigError(f"{name}={value!r} is not a finite number, 0 or more", code="budget", hint=f"{name}=30.0")
    return float(value)
