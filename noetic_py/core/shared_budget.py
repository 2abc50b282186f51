"""Budgets that hold for runs of several processes and machines, and how one run sees what is left of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, TypeAlias, get_args

from noetic_py.core.budget import MOST, Amounts, Budget, BudgetLease, WarningSink
from noetic_py.core.diagnostics import known_keywords
from noetic_py.errors import BudgetExceeded, ConfigError

Period: TypeAlias = Literal["minute", "hour", "day", "month"]
"""How long a shared budget lasts: a minute, an hour, a day or a month of the calendar, in UTC."""

EVER = "ever"
"""The period of a budget that never begins anew."""
_FORMS: Mapping[str | None, str] = {
    "minute": "%Y-%m-%dT%H:%M",
    "hour": "%Y-%m-%dT%H",
    "day": "%Y-%m-%d",
    "month": "%Y-%m",
    None: EVER,
}
# A day of the next month, from whichever day of a month.
_LASTS: Mapping[str, timedelta] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "month": timedelta(days=31),
}
_UNITS = Decimal(1_000_000_000)
_LONGEST = 256
# Those that are held while a call is under way, and settled at what it has used; the others count when work begins.
HELD = frozenset({"input_tokens", "output_tokens", "tokens", "cached_input_tokens", "cost"})


def _end_of(period: str) -> datetime | None:
    """The first moment after a period; `None` if it never ends, or is not of the calendar."""
    for per, form in _FORMS.items():
        if per is None:
            continue
        try:
            begun = datetime.strptime(period, form).replace(tzinfo=UTC)
            ends = begun + _LASTS[per]
        except (ValueError, OverflowError):
            continue
        if begun.strftime(form) == period:
            return ends.replace(day=1) if per == "month" else ends
    return None


def has_ended(period: str, moment: datetime) -> bool:
    """Whether a period is over at a moment; one that never ends is not, nor one that is not of the calendar.

    Args:
        period: Its name, as `SharedBudget.period_at` gives it.
        moment: The moment, with a time zone.
    """
    ends = _end_of(period)
    return ends is not None and ends <= moment


def in_store(dimension: str, amount: Decimal) -> int:
    """An amount as a store counts it: money in billionths of a USD, rounded up."""
    return int((amount * _UNITS if dimension == "cost" else amount).to_integral_value(ROUND_CEILING))


def from_store(dimension: str, amount: int) -> Decimal:
    """An amount of a store, in the unit of the budget."""
    return Decimal(amount) / _UNITS if dimension == "cost" else Decimal(amount)


class SharedBudget:
    """Limits for all runs that name it, in every process and on every machine that uses the same store.

    Args:
        name: What it is called; runs with the same name share it.
        budget: The limits. Time, depth and a wrap-up are of one run, so they cannot be shared.
        per: When it begins anew: with each `"minute"`, `"hour"`, `"day"` or `"month"` in UTC by the store's clock;
            never when left out.
        wait: Whether work that it has no room for waits for the next period, or for what other runs give back, as for
            a limit of rate. Otherwise, and where it could never have room, the work is refused.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"budget"`.
    """

    __slots__ = ("budget", "name", "per", "wait")

    @known_keywords("SharedBudget()")
    def __init__(self, name: str, budget: Budget, *, per: Period | None = None, wait: bool = False) -> None:
        self.name: str = name
        self.budget: Budget = budget
        self.per: Period | None = per
        self.wait: bool = wait
        self._check(name, budget, per, wait)

    def _check(self, name: object, budget: object, per: object, wait: object) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise ConfigError(
                f"name={name!r:.80} is not a valid name of a shared budget; expected a text of 1 to {_LONGEST} "
                "printable characters",
                code="budget",
                hint='SharedBudget("team-a", Budget(model_calls=1_000), per="month")',
            )
        if not isinstance(budget, Budget) or not budget.limits:
            raise ConfigError(
                f"{budget!r} is not a valid budget to share; expected a Budget with limits",
                code="budget",
                hint="Budget(model_calls=1_000)",
            )
        own = ("seconds", "depth", "reserve", "wrap_up")
        found = next((each for each in own if getattr(budget, each) is not None), None)
        if found is not None:
            raise ConfigError(
                f"a shared budget with {found}= is not valid; expected limits of counts, tokens or cost",
                code="budget",
                hint=f"give {found}= to a step: flow.with_options(budget=Budget({found}=...))",
            )
        if per not in (*get_args(Period), None):
            raise ConfigError(
                f"per={per!r} is not a valid period; expected 'minute', 'hour', 'day', 'month' or None",
                code="budget",
                hint='per="month"',
            )
        if not isinstance(wait, bool):
            raise ConfigError(
                f"wait={wait!r:.80} is not valid; expected True or False",
                code="budget",
                hint="wait=True waits where there is no room",
            )
        most = next((each for each, limit in budget.limits.items() if in_store(each, limit) > MOST), None)
        if most is not None:
            raise ConfigError(
                f"{most}={budget.limits[most]} is not a valid limit to share; expected at most "
                f"{from_store(most, MOST)}",
                code="budget",
                hint="leave the dimension out, and it is not limited",
            )

    def __repr__(self) -> str:
        wait = ", wait=True" if self.wait else ""
        return f"SharedBudget({self.name!r}, {self.budget!r}, per={self.per!r}{wait})"

    @property
    def limits(self) -> dict[str, int]:
        """Its limits as a store counts them."""
        return {
            name: int(limit * _UNITS) if name == "cost" else int(limit) for name, limit in self.budget.limits.items()
        }

    def period_at(self, seconds: float) -> str:
        """The name of its period.

        Args:
            seconds: The store's clock, in seconds since 1970.
        """
        return datetime.fromtimestamp(seconds, UTC).strftime(_FORMS[self.per])

    def left_of_period(self, seconds: float) -> float | None:
        """The seconds until the next period begins; `None` without one.

        Args:
            seconds: The store's clock, in seconds since 1970.
        """
        ends = _end_of(self.period_at(seconds))
        return None if ends is None else (ends - datetime.fromtimestamp(seconds, UTC)).total_seconds()


class SharedLease(BudgetLease):
    """What one run may take of the tokens and the money of a shared budget, as far as this process knows.

    The store decides; this says beforehand how much a model may write. Counts are left to the store alone.

    Args:
        shared: The budget.
        parent: The lease it lives under.
        now: Monotonic seconds.
    """

    __slots__ = ("_seen", "shared")
    covers_all = False

    def __init__(self, shared: SharedBudget, parent: BudgetLease, *, now: float) -> None:
        super().__init__(_held_part(shared.budget), parent, now=now)
        self.shared: SharedBudget = shared
        self._seen: tuple[str, Mapping[str, int], Mapping[str, int]] = ("", {}, {})

    def see(self, period: str, left: Amounts, used: Mapping[str, int], reserved: Mapping[str, int]) -> None:
        """Learn what is left now.

        Args:
            period: The period.
            left: What other runs and this one have left, by dimension.
            used: What was used in the period.
            reserved: What runs hold.
        """
        self._seen = period, used, reserved
        for name in self.limits:
            self.limits[name] = left[name] + self._settled.get(name, Decimal(0)) + self._held.get(name, Decimal(0))

    def _warn(self, name: str, spent: Decimal, limit: Decimal, sink: WarningSink | None) -> None:
        # By what all runs have used or hold, of the whole limit.
        whole = self.shared.budget.limits[name]
        super()._warn(name, whole - limit + spent, whole, sink)

    def refusal(self, name: str, asked: Decimal | int, settled: Decimal | int) -> BudgetExceeded:
        """Why this lease does not give what is asked for, with the figures of all runs."""
        period, used, reserved = self._seen
        return BudgetExceeded(
            name,
            limit=self.shared.budget.limits[name],
            requested=asked,
            settled=from_store(name, used.get(name, 0)),
            shared=self.shared.name,
            period=period,
            reserved=from_store(name, reserved.get(name, 0)),
        )


def _held_part(budget: Budget) -> Budget:
    limits: dict[str, Any] = {
        name: limit if name == "cost" else int(limit) for name, limit in budget.limits.items() if name in HELD
    }
    return Budget(warn_at=budget.warn_at, **limits)
