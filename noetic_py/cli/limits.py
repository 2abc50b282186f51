"""Limits and spans of time as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from noetic_py.core.budget import Budget
from noetic_py.errors import ConfigError

__all__ = ["read_age", "with_limits"]

_COUNTS = (
    "steps",
    "model_calls",
    "tool_calls",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "tokens",
    "depth",
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MOST_DAYS = 100_000


def with_limits(base: Budget | None, given: Sequence[str]) -> Budget | None:
    """A budget in which some limits are replaced.

    Args:
        base: The budget; `None` for one without limits.
        given: Limits as `NAME=VALUE`.

    Raises:
        ConfigError: A name is unknown, or a value none; code `"budget"`.
    """
    if not given:
        return base
    limits: dict[str, Any] = {}
    if base is not None:
        limits = {name: amount for name, amount in base.limits.items() if ":" not in name and name != "cost"}
        limits = {name: int(amount) for name, amount in limits.items()}
        limits |= {"cost": base.limits.get("cost"), "per_tool": base.per_tool, "seconds": base.seconds}
        limits |= {"depth": base.depth, "warn_at": base.warn_at, "wrap_up": base.wrap_up, "reserve": base.reserve}
    for each in given:
        name, _, value = each.partition("=")
        limits[name] = _limit(name, value)
    return Budget(**limits)


def _limit(name: str, value: str) -> int | float | str:
    try:
        if name in _COUNTS:
            return int(value.replace("_", ""))
        if name == "seconds":
            return float(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is no number", code="budget", hint="--budget steps=20") from None
    if name == "cost":
        return value
    raise ConfigError(
        f"--budget knows no {name!r}", code="budget", hint=f"one of {', '.join((*_COUNTS, 'cost', 'seconds'))}"
    )


def read_age(text: str) -> timedelta:
    """A span of time such as `30d`, `12h` or `90s`.

    Raises:
        ConfigError: It is none; code `"age"`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is not None:
        span = float(found[1])
        unit = _UNITS[found[2]]
        if span <= _MOST_DAYS:
            return timedelta(**{unit: span})
    raise ConfigError(f"{text!r} is no span of time", code="age", hint="30d, 12h, 90m, 45s or 2w")
