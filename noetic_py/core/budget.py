"""Usage, and budgets as a tree of leases: reserved before work starts, settled afterwards.

A [`Budget`][noetic_py.Budget] is a value a user writes. A `BudgetLease` is that budget in force for one harness, run,
step or spawn; it points to the lease it lives under, and every reservation walks from where the work happens up to the
root in one synchronous section, so no two tasks can both be given the last of anything.

Counts (steps, model calls, tool calls) are taken for good when the work starts: they are exact under any concurrency.
Tokens and cost are reserved at their maximum and settled at what the provider reported, so they can pass a limit only
by what a provider reports above the reserved maximum of the calls then in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Protocol

import anyio
from attrs import define, field, frozen

from noetic_py.core.allowance import (
    BudgetLimits,
    BudgetUsed,
    Remaining,
    by_dimension,
    read_count,
    read_money,
    read_seconds,
)
from noetic_py.core.diagnostics import known_keywords
from noetic_py.errors import BudgetExceeded, ConfigError

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
            # The common case, which runs several times for every call.
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
    """The actual usage of one call: tokens, cost in USD, and the model calls it counts for."""

    tokens: TokenUsage = NO_USAGE
    cost: Decimal | None = None
    model_calls: int = 0


NOTHING_USED = Usage()

# Which counts are parts of which.
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
    """Why a reported usage and cost are invalid; `None` if they are valid.

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


Amounts = dict[str, Decimal]


_ZERO = Decimal(0)
_ONE = Decimal(1)
_CALL: Amounts = {"model_calls": _ONE}


class RunnableStep(Protocol):
    """The protocol of a step that `wrap_up` names; every `Step` satisfies it."""

    @property
    def id(self) -> str:
        """The step's id."""
        ...

    @property
    def kind(self) -> str:
        """The name of its kind."""
        ...


class Budget:
    """Limits for a harness, a run, a step or a spawn; a dimension left out is not limited.

    Args:
        steps: Bodies started: code steps, model calls and tool steps; composites are free.
        model_calls: Calls of a model.
        tool_calls: Calls of tools.
        per_tool: Calls by tool name.
        input_tokens: Tokens read by models.
        cached_input_tokens: Tokens read from a provider's cache.
        output_tokens: Tokens written by models.
        tokens: Input plus output tokens.
        cost: USD; a str or Decimal is exact, a float is taken by its decimal text.
        seconds: Active time, in seconds.
        depth: Spawns below one another.
        warn_at: Fraction of any limit at which a `BudgetWarning` event is sent, 0 to 1.
        wrap_up: A step run on `reserve` when the rest is spent; its output becomes the result's value.
        reserve: The part kept back for `wrap_up`.

    Raises:
        ConfigError: A value is negative, not finite, or of the wrong type; code `"budget"`.
    """

    __slots__ = ("depth", "limits", "per_tool", "reserve", "seconds", "warn_at", "wrap_up")

    limits: Mapping[str, Decimal]
    per_tool: Mapping[str, int]
    seconds: float | None
    depth: int | None
    warn_at: float
    wrap_up: RunnableStep | None
    reserve: Budget | None

    @known_keywords("Budget()")
    def __init__(
        self,
        *,
        steps: int | None = None,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        per_tool: Mapping[str, int] | None = None,
        input_tokens: int | None = None,
        cached_input_tokens: int | None = None,
        output_tokens: int | None = None,
        tokens: int | None = None,
        cost: str | float | Decimal | None = None,
        seconds: float | None = None,
        depth: int | None = None,
        warn_at: float = 0.8,
        wrap_up: RunnableStep | None = None,
        reserve: Budget | None = None,
    ) -> None:
        given: dict[str, int | Decimal | None] = {
            "steps": read_count(steps, "steps"),
            "model_calls": read_count(model_calls, "model_calls"),
            "tool_calls": read_count(tool_calls, "tool_calls"),
            "input_tokens": read_count(input_tokens, "input_tokens"),
            "cached_input_tokens": read_count(cached_input_tokens, "cached_input_tokens"),
            "output_tokens": read_count(output_tokens, "output_tokens"),
            "tokens": read_count(tokens, "tokens"),
            "cost": read_money(cost),
        }
        self.per_tool = {}
        if per_tool is not None and not isinstance(per_tool, Mapping):
            raise ConfigError(
                f"per_tool={per_tool!r} is not a valid per_tool; expected tools' names and numbers",
                code="budget",
                hint='per_tool={"search": 3}',
            )
        for name, limit in (per_tool or {}).items():
            checked = read_count(limit, f"per_tool[{name!r}]")
            if checked is not None:
                self.per_tool[name] = checked
                given[f"per_tool:{name}"] = checked
        self.limits = {name: Decimal(limit) for name, limit in given.items() if limit is not None}
        self.seconds = read_seconds(seconds)
        self.depth = read_count(depth, "depth")
        self.warn_at, self.wrap_up, self.reserve = warn_at, wrap_up, reserve
        self._check()

    def _check(self) -> None:
        warn_at: object = self.warn_at
        if isinstance(warn_at, bool) or not isinstance(warn_at, (int, float)) or not 0 <= warn_at <= 1:
            raise ConfigError(f"warn_at={self.warn_at!r} is not between 0 and 1", code="budget", hint="warn_at=0.8")
        if self.wrap_up is not None and not hasattr(self.wrap_up, "kind"):
            raise ConfigError(
                f"wrap_up={self.wrap_up!r} is not a valid step; expected a Step",
                code="budget",
                hint="put @step on the function",
            )
        if self.reserve is not None and not isinstance(self.reserve, Budget):
            raise ConfigError(
                f"reserve={self.reserve!r} is not a valid reserve; expected a Budget",
                code="budget",
                hint="reserve=Budget(tokens=2_000)",
            )
        if self.wrap_up is not None and self.reserve is None:
            raise ConfigError("wrap_up= needs reserve=", code="budget", hint="reserve=Budget(tokens=2_000)")
        if self.reserve is None:
            return
        kept_back: dict[str, Decimal | float] = {**self.reserve.limits, "seconds": self.reserve.seconds or 0.0}
        whole: dict[str, Decimal | float | None] = {**self.limits, "seconds": self.seconds}
        for name, kept in kept_back.items():
            limit = whole.get(name)
            if limit is not None and kept > limit:
                raise ConfigError(
                    f"reserve keeps {kept} {name}, the budget has {limit}",
                    code="budget",
                    hint="keep less, or raise the budget",
                )

    def __repr__(self) -> str:
        parts = [f"{name}={limit}" for name, limit in self.limits.items()]
        parts += [
            f"{name}={value}" for name, value in (("seconds", self.seconds), ("depth", self.depth)) if value is not None
        ]
        return f"Budget({', '.join(parts)})"


@define
class Reservation:
    """Amounts held for one call in flight, at every lease from where it happens up to the root."""

    lease: BudgetLease
    amounts: Amounts
    max_output: int | None = None
    held: list[tuple[BudgetLease, Amounts]] = field(factory=list["tuple[BudgetLease, Amounts]"])
    open: bool = True

    @property
    def max_usage(self) -> Usage:
        """The reserved amounts as a usage."""
        held = self.amounts
        tokens = TokenUsage(int(held.get("input_tokens", 0)), int(held.get("output_tokens", 0)))
        return Usage(tokens, held.get("cost"))

    def cancel(self) -> None:
        """Give all of it back: the call does not begin."""
        self.open = False
        if self.lease.free:
            self.lease.count_call(-1)
            return
        for node, amounts in self.held:
            node.unhold(amounts)
        self.lease.book({"model_calls": -_ONE}, NO_USAGE, calls=-1)
        self.lease.wake()

    def settle(self, used: Usage) -> None:
        """Give back what was held and book what was used; a second call does nothing."""
        if not self.open:
            return
        self.open = False
        if self.lease.free:
            self.lease.meter(used)
            return
        spent = amounts_of(used)
        for node, amounts in self.held:
            node.unhold(amounts)
        self.lease.book(spent, used.tokens)
        self.lease.wake()


def amounts_of(used: Usage) -> Amounts:
    """A usage in the dimensions of a budget, without the counts."""
    tokens = used.tokens
    return {
        "input_tokens": Decimal(tokens.input),
        "output_tokens": Decimal(tokens.output),
        "tokens": Decimal(tokens.total),
        "cached_input_tokens": Decimal(tokens.cached_input or 0),
        "cost": used.cost or _ZERO,
    }


@define(eq=False)
class _WaitingRequest:
    """A waiting request's place in line, and the lease that cannot cover it yet."""

    at: BudgetLease
    called: anyio.Event = field(factory=anyio.Event)


@frozen(eq=False)
class _Blocker:
    """The lease that refuses a request, and whether calls in flight could give back enough."""

    error: BudgetExceeded
    could_fit: bool
    lease: BudgetLease


WarningSink = Callable[[str, Decimal, Decimal], None]


class BudgetLease:
    """A budget in force, and the meter of everything that happens under it.

    Args:
        budget: The limits; `None` for a pure meter.
        parent: The lease it lives under; each reservation holds there too.
        now: Monotonic seconds at which its time starts.
        depth: Spawn depth at which it starts.
        on_warning: Called with dimension, spent and limit when `warn_at` is passed, once a dimension.
    """

    __slots__ = (
        "_before", "_closed", "_cost", "_covers", "_held", "_kept", "_line", "_settled", "_spent_above", "_warned",
        "budget", "calls", "deadline", "depth", "ends", "free", "keeps", "limits", "max_steps", "of_models",
        "on_warning", "parent", "root", "started", "steps", "steps_free", "tokens", "tool_calls",
    )  # fmt: skip

    # Whether what is set aside for a run elsewhere has to be limited by it: not where that run takes its own part.
    covers_all: ClassVar[bool] = True

    def __init__(
        self,
        budget: Budget | None,
        parent: BudgetLease | None = None,
        *,
        now: float = 0.0,
        depth: int = 0,
        on_warning: WarningSink | None = None,
    ) -> None:
        self.budget: Budget | None = budget
        self.parent: BudgetLease | None = parent
        self.root: BudgetLease = self if parent is None else parent.root
        self.depth: int = depth
        # The caller tells its own run that a lease above, which belongs to several, has passed its mark.
        self.on_warning: WarningSink | None = (
            on_warning if on_warning is not None or parent is None else parent.on_warning
        )
        self.steps: int = 0
        self.calls: int = 0
        self.tool_calls: int = 0
        self.tokens: TokenUsage = NO_USAGE
        self._cost: Decimal | None = None
        self._settled: Amounts = {}
        self._held: Amounts = {}
        self._kept: Amounts = {}
        self._covers: Mapping[str, Decimal] | None = None
        # For a wrap-up: its usage in an earlier process; and how much of the block the leases above have booked.
        self._before: Amounts = {}
        self._spent_above: Amounts = {}
        self._warned: set[str] = set()
        # Waiting requests in order of arrival; kept at the root.
        self._line: list[_WaitingRequest] = []
        self._closed = False
        self.limits: dict[str, Decimal] = dict(budget.limits) if budget is not None else {}
        if budget is not None and budget.reserve is not None:
            for name, kept in budget.reserve.limits.items():
                if name in self.limits:
                    self.limits[name] -= kept
        self.max_steps = self._whole("steps")
        # Nothing is limited from here to the root: only the meters have to run.
        # Whether the block for the wrap-up is held, here and above.
        self.keeps: bool = False
        # The leases below it of budgets that single models have, by the budgets' names.
        self.of_models: dict[str, BudgetLease] | None = None
        # Where no lease limits steps, each counts its own, and hands the count up when it closes.
        self.steps_free: bool = self.max_steps is None and (parent is None or parent.steps_free)
        self.free: bool = not self.limits and (parent is None or parent.free)
        self.started: float = now
        own = None if budget is None or budget.seconds is None else now + budget.seconds
        if own is not None and budget is not None and budget.reserve is not None and budget.reserve.seconds is not None:
            own -= budget.reserve.seconds
        self.ends: float | None = own
        above = None if parent is None else parent.deadline
        self.deadline: float | None = own if above is None else above if own is None else min(own, above)

    def _whole(self, name: str) -> int | None:
        limit = self.limits.get(name)
        return None if limit is None else int(limit)

    @property
    def cost(self) -> Decimal:
        """USD spent under this lease."""
        return _ZERO if self._cost is None else self._cost

    def limited(self, *names: str) -> bool:
        """Whether this lease or one above limits any of the dimensions."""
        node: BudgetLease | None = None if self.free else self
        while node is not None:
            if not node.limits.keys().isdisjoint(names):
                return True
            node = node.parent
        return False

    # -- counts, taken for good

    def take_step(self, counted: bool = True) -> None:
        """Count one body that starts, unless it is one that does not count.

        Raises:
            BudgetExceeded: This lease or one above has no step left; nothing was counted.
        """
        if not counted:
            return
        if self.steps_free:
            self.steps += 1
            return
        covered = False
        node: BudgetLease | None = self
        while node is not None:
            limit = node.max_steps
            kept = node._kept.get("steps", _ZERO)
            if covered and kept:
                node._kept["steps"] = kept - 1
            elif limit is not None:
                if node.steps + kept >= limit:
                    self._give_back_step(node)
                    raise node.refusal("steps", 1, node.steps)
                node._warn("steps", Decimal(node.steps + 1), Decimal(limit), self.on_warning)
            node.steps += 1
            if node.steps_free and not node._closed:
                # It hands its steps up when it closes.
                return
            covered = covered or (node._covers is not None and "steps" in node._covers)
            node = node.parent

    def _give_back_step(self, stop: BudgetLease) -> None:
        node: BudgetLease | None = self
        while node is not None and node is not stop:
            node.steps -= 1
            node = node.parent

    def give_back_step(self) -> None:
        """A step that was counted does not begin after all."""
        covered = False
        node: BudgetLease | None = self
        while node is not None:
            node.steps -= 1
            if node.steps_free and not node._closed:
                return
            if covered and "steps" in node._kept:
                node._kept["steps"] += 1
            covered = covered or (node._covers is not None and "steps" in node._covers)
            node = node.parent

    def take_tool_call(self, tool: str) -> None:
        """Count one tool call that starts, against `tool_calls` and `per_tool`.

        Raises:
            BudgetExceeded: A lease has none left; nothing was counted.
        """
        if not self.free:
            self._take({"tool_calls": _ONE, f"per_tool:{tool}": _ONE})
        node: BudgetLease | None = self
        while node is not None:
            node.tool_calls += 1
            node = node.parent

    def _take(self, amounts: Amounts) -> None:
        blocker = self._blocker(amounts)
        if blocker is not None:
            raise blocker.error
        self.book(amounts, NO_USAGE)

    def enter_depth(self, depth: int) -> None:
        """Check a spawn at `depth` against every `depth` limit above.

        Raises:
            BudgetExceeded: A lease does not allow spawns so deep below it.
        """
        node: BudgetLease | None = self
        while node is not None:
            limit = None if node.budget is None else node.budget.depth
            if limit is not None and depth - node.depth > limit:
                raise BudgetExceeded("depth", limit=limit, requested=1, settled=depth - node.depth - 1)
            node = node.parent

    # -- reservations

    async def reserve(
        self,
        *,
        input_tokens: int = 0,
        max_output: int | None = None,
        cost_of: Callable[[int, int], Decimal] | None = None,
        output_cap: int | None = None,
    ) -> Reservation:
        """Hold the maximum of one model call; waits while calls in flight could still give back enough.

        Args:
            input_tokens: The request's counted tokens.
            max_output: The most the model may write; when absent it is set to what is left.
            cost_of: USD for (input tokens, output tokens), when a cost is limited.
            output_cap: The model's own limit of output tokens, which bounds what is left.

        Returns:
            The reservation; its `max_output` is what the request has to carry, `None` when nothing limits it.

        Raises:
            BudgetExceeded: It can never fit, whatever the calls in flight give back.
        """
        if self.free:
            return self._hold({}, max_output)
        place: _WaitingRequest | None = None
        try:
            while True:
                allowed = max_output
                if allowed is None and self.limited("output_tokens", "tokens", "cost"):
                    allowed = self._output_left(input_tokens, cost_of, output_cap)
                amounts = self._amounts(input_tokens, allowed or 0, cost_of)
                blocker = self._blocker(amounts)
                if blocker is not None and not blocker.could_fit:
                    raise blocker.error
                at = self._ahead(place) if blocker is None else blocker.lease
                if at is None:
                    return self._hold(amounts, allowed)
                place = self._take_place(place, at)
                await place.called.wait()
        finally:
            if place is not None:
                self.root._line.remove(place)
                self.wake()

    def _ahead(self, place: _WaitingRequest | None) -> BudgetLease | None:
        """The lease at which an earlier request waits, which this request would overtake."""
        for other in self.root._line:
            if other is place:
                return None
            node: BudgetLease | None = self
            while node is not None:
                if node is other.at:
                    return node
                node = node.parent
        return None

    def _take_place(self, place: _WaitingRequest | None, at: BudgetLease) -> _WaitingRequest:
        """Stand in line, at the end the first time, and at one's own place afterwards."""
        if place is None:
            place = _WaitingRequest(at)
            self.root._line.append(place)
        else:
            place.at, place.called = at, anyio.Event()
        return place

    def _amounts(self, read: int, written: int, cost_of: Callable[[int, int], Decimal] | None) -> Amounts:
        amounts: Amounts = {"model_calls": _ONE}
        if read or written:
            amounts["input_tokens"] = amounts["cached_input_tokens"] = Decimal(read)
            amounts["output_tokens"] = Decimal(written)
            amounts["tokens"] = Decimal(read + written)
        if cost_of is not None:
            amounts["cost"] = cost_of(read, written)
        return amounts

    def _output_left(self, read: int, cost_of: Callable[[int, int], Decimal] | None, cap: int | None) -> int:
        """The most output that fits now, at least 1, so that a full budget is refused and not asked for nothing."""
        left = cap if cap is not None else 1 << 30
        node: BudgetLease | None = self
        while node is not None:
            for name, spent_on_input in (("output_tokens", 0), ("tokens", read)):
                if name in node.limits:
                    left = min(left, int(node._left(name)) - spent_on_input)
            if "cost" in node.limits and cost_of is not None:
                left = min(left, _affordable(node._left("cost"), read, left, cost_of))
            node = node.parent
        return max(left, 1)

    def _left(self, name: str) -> Decimal:
        if name == "steps":
            return self.limits[name] - self.steps - self._kept.get(name, _ZERO)
        taken = self._settled.get(name, _ZERO) + self._held.get(name, _ZERO) + self._kept.get(name, _ZERO)
        return self.limits[name] - taken

    def _blocker(self, amounts: Amounts, last: BudgetLease | None = None) -> _Blocker | None:
        """The first lease up to `last` that has no room, and whether calls in flight could make some."""
        waitable: _Blocker | None = None
        node: BudgetLease | None = self
        while node is not None:
            for name in node.limits:
                asked = amounts.get(name)
                if not asked or asked <= node._left(name):
                    continue
                settled = node._settled.get(name, _ZERO) if name != "steps" else Decimal(node.steps)
                error = node.refusal(name, asked, settled)
                if asked > node._left(name) + node._held.get(name, _ZERO):
                    return _Blocker(error, False, node)
                waitable = waitable or _Blocker(error, True, node)
            amounts = node._uncovered(amounts)
            node = None if node is last else node.parent
        return waitable

    def refusal(self, name: str, asked: Decimal | int, settled: Decimal | int) -> BudgetExceeded:
        """Why this lease does not give what is asked for."""
        return BudgetExceeded(name, limit=self.limits[name], requested=asked, settled=settled)

    def _uncovered(self, amounts: Amounts) -> Amounts:
        """The part that the leases above must cover; a wrap-up's block is already reserved there."""
        covers = self._covers
        return amounts if covers is None else {name: value for name, value in amounts.items() if name not in covers}

    def _hold(self, amounts: Amounts, max_output: int | None) -> Reservation:
        reservation = Reservation(self, amounts, max_output)
        # A call that has started is a call, whatever becomes of it: the count is booked, the rest is held.
        if self.free:
            self.count_call(1)
            return reservation
        self.book(_CALL, NO_USAGE, calls=1)
        rest = {name: value for name, value in amounts.items() if name != "model_calls"}
        node: BudgetLease | None = self
        while node is not None:
            for name, value in rest.items():
                node._held[name] = node._held.get(name, _ZERO) + value
            reservation.held.append((node, rest))
            rest = node._uncovered(rest)
            node = node.parent
        return reservation

    def count_call(self, more: int) -> None:
        """Count calls where nothing is limited, here and at every lease above."""
        node: BudgetLease | None = self
        while node is not None:
            node.calls += more
            node = node.parent

    def unhold(self, amounts: Amounts) -> None:
        """Give back amounts that were held here."""
        for name, value in amounts.items():
            self._held[name] -= value

    def meter(self, used: Usage) -> None:
        """Count what was used where nothing is limited."""
        node: BudgetLease | None = self
        while node is not None:
            if used.tokens is not NO_USAGE:
                node.tokens = node.tokens + used.tokens
            if used.cost:
                node._cost = node.cost + used.cost
            node = node.parent

    def book(self, amounts: Amounts, tokens: TokenUsage, *, calls: int = 0, last: BudgetLease | None = None) -> None:
        """Add what was spent, here and at every lease above, up to `last`."""
        cost = amounts.get("cost")
        node: BudgetLease | None = self
        while node is not None:
            settled = node._settled
            for name, value in amounts.items():
                settled[name] = settled.get(name, _ZERO) + value
                limit = node.limits.get(name)
                if limit is not None:
                    node._warn(name, settled[name], limit, self.on_warning)
            node.calls += calls
            if tokens is not NO_USAGE:
                node.tokens = node.tokens + tokens
            if cost:
                node._cost = node.cost + cost
            if node._covers is not None:
                amounts = node._uncovered(amounts)
            node = None if node is last else node.parent

    def recover(self, used: Usage, steps: int, tool: str | None) -> None:
        """Charge this lease, and none above, with what was used under it before this process had the run."""
        amounts = amounts_of(used)
        if tool is not None:
            amounts |= {"tool_calls": _ONE, f"per_tool:{tool}": _ONE}
            self.tool_calls += 1
        for name, value in (amounts | {"model_calls": Decimal(used.model_calls)}).items():
            self._settled[name] = self._settled.get(name, _ZERO) + value
        self.calls += used.model_calls
        self.tokens = self.tokens + used.tokens
        if used.cost:
            self._cost = self.cost + used.cost
        self.steps += steps
        if self.steps_free and self.parent is not None and self.parent.steps_free:
            self.parent.steps -= steps  # counted there already, and handed up once more when this lease closes

    # -- runs that are carried out elsewhere; `own` is the lease of the run that waits, above which they count alone

    def set_aside(self, limits: Amounts, own: BudgetLease) -> None:
        """Hold here and at every lease up to the run's own what a run elsewhere may use.

        Raises:
            ConfigError: A dimension is limited, and it names none; code `"spawn"`.
            BudgetExceeded: A lease has not so much left; nothing is held.
        """
        node: BudgetLease | None = self
        while node is not None:
            missing = sorted(node.limits.keys() - limits.keys())
            if missing and node.covers_all:
                raise ConfigError(
                    f"the run's budget limits {', '.join(missing)}, and the child that another worker carries out does "
                    "not",
                    code="spawn",
                    hint=f"spawn(..., queue=..., budget=Budget({missing[0].partition(':')[0]}=...)); it is set aside",
                )
            node = None if node is own else node.parent
        blocker = self._blocker(limits, own)
        if blocker is not None:
            raise blocker.error
        self._keep(self, limits, _ONE, own)

    def keep(self, limits: Amounts) -> None:
        """Hold here what was set aside before this process had the run."""
        self._keep(self, limits, _ONE, self)

    def free_up(self, limits: Amounts, own: BudgetLease) -> None:
        """Give back, here and at every lease up to the run's own, what was set aside."""
        self._keep(self, limits, -_ONE, own)
        self.wake()

    def charge(self, used: Usage, steps: int, tools: Sequence[str], own: BudgetLease) -> None:
        """Book, here and at every lease up to the run's own, what a run elsewhere has used."""
        amounts = amounts_of(used) | {"model_calls": Decimal(used.model_calls), "tool_calls": Decimal(len(tools))}
        for tool in tools:
            amounts[f"per_tool:{tool}"] = amounts.get(f"per_tool:{tool}", _ZERO) + 1
        self.book(amounts, used.tokens, calls=used.model_calls, last=own)
        counting = True
        node: BudgetLease | None = self
        while node is not None:
            node.tool_calls += len(tools)
            if counting:
                node.steps += steps
                # It hands its steps up when it closes.
                counting = not node.steps_free or node._closed
            node = None if node is own else node.parent
        if own.steps_free and own.parent is not None and not own._closed:
            own.parent.steps -= steps  # handed up when the run's lease closes

    def wake(self) -> None:
        """Let the reservations that wait look again."""
        for place in self.root._line:
            place.called.set()

    def _warn(self, name: str, spent: Decimal, limit: Decimal, sink: WarningSink | None) -> None:
        budget = self.budget
        if budget is None or sink is None or name in self._warned:
            return
        if spent >= limit * Decimal(str(budget.warn_at)):
            self._warned.add(name)
            sink(name, spent, limit)

    # -- what is left

    def remaining(self, now: float, depth: int = 0, used: Mapping[str, object] | None = None) -> Remaining:
        """The remainder of the tightest lease from here to the root.

        Args:
            now: Monotonic seconds.
            depth: How many spawns there are above.
            used: What was used of each dimension, for those that nothing limits.
        """
        left: dict[str, object] = {}
        limits: dict[str, object] = {}
        used = {} if used is None else dict(used)
        node: BudgetLease | None = self
        while node is not None:
            for name, (limit, spent, rest) in node._allowances(now, depth).items():
                # A wrap-up has its own time, whatever that of the work around it comes to.
                if (name not in left or rest < left[name]) and (name != "seconds" or node.ends == self.deadline):
                    left[name], limits[name], used[name] = rest, limit, spent
            node = node.parent
        shown = [by_dimension(amounts) for amounts in (left, limits, used)]
        return Remaining(**shown[0], limit=BudgetLimits(**shown[1]), used=BudgetUsed(**shown[2]))

    def _allowances(self, now: float, depth: int) -> dict[str, tuple[Any, Any, Any]]:
        """Return the limit, the usage and the rest of each dimension that is limited here."""
        found: dict[str, tuple[object, object, object]] = {}
        for name, limit in self.limits.items():
            spent = Decimal(self.steps) if name == "steps" else self._settled.get(name, _ZERO)
            found[name] = (limit, spent, self._left(name))
        if self.ends is not None:
            found["seconds"] = (self.ends - self.started, now - self.started, max(0.0, self.ends - now))
        if self.budget is not None and self.budget.depth is not None:
            below = depth - self.depth
            found["depth"] = (self.budget.depth, below, self.budget.depth - below)
        return found

    def used(self) -> dict[str, object]:
        """The usage under this lease, limited or not."""
        counts = {"steps": self.steps, "model_calls": self.calls, "tool_calls": self.tool_calls}
        return {**amounts_of(Usage(self.tokens, self._cost)), **counts}

    # -- the wrap-up and its block

    def keep_reserve(self, spent: BudgetLease | None = None) -> None:
        """Hold the block of `reserve=` at every lease above, so that the wrap-up can count on it.

        Args:
            spent: The meter of what the wrap-up had used before this process had the run; the leases above have it.

        Raises:
            BudgetExceeded: The block does not fit into a lease above.
        """
        if self.budget is None or self.budget.reserve is None:
            return
        block = self._block()
        if spent is not None:
            booked = spent._settled | {"steps": Decimal(spent.steps)}
            self._spent_above = {name: min(kept, booked.get(name, _ZERO)) for name, kept in block.items()}
            block = self._unspent(block)
        if self.parent is not None:
            blocker = self.parent._blocker(block)
            if blocker is not None:
                raise blocker.error
            self._keep_above(block, _ONE)
        self.keeps = True

    def _block(self) -> Amounts:
        return dict(self.budget.reserve.limits) if self.budget is not None and self.budget.reserve is not None else {}

    def _unspent(self, block: Amounts) -> Amounts:
        return {name: kept - self._spent_above.get(name, _ZERO) for name, kept in block.items()}

    def begin_again(self) -> None:
        """Mark the wrap-up's usage so far as that of an earlier process, which the leases above have booked."""
        self._before = self._settled | {"steps": Decimal(self.steps)}

    def _keep_above(self, block: Amounts, sign: Decimal) -> None:
        self._keep(self.parent, block, sign)

    @staticmethod
    def _keep(node: BudgetLease | None, block: Amounts, sign: Decimal, last: BudgetLease | None = None) -> None:
        while node is not None:
            for name, kept in block.items():
                node._kept[name] = node._kept.get(name, _ZERO) + sign * kept
            block = node._uncovered(block)
            node = None if node is last else node.parent

    def open_wrap_up(self, now: float) -> BudgetLease:
        """A lease for the wrap-up step: what `reserve=` kept back, already held at the leases above."""
        reserve = self.budget.reserve if self.budget is not None else None
        lease = BudgetLease(reserve, self, now=now, depth=self.depth)
        for name, kept in self._block().items():
            if name in self.limits:
                self.limits[name] += kept
        self.max_steps = self._whole("steps")
        self._covers = self._block()
        lease.deadline = None if reserve is None or reserve.seconds is None else now + reserve.seconds
        return lease

    def close(self, wrap_up: BudgetLease | None = None) -> None:
        """End this lease: give the block back above, and book there what the wrap-up used of it."""
        block = self._unspent(self._block()) if self.keeps else {}
        self.keeps = False
        if self.parent is not None and block:
            if wrap_up is not None:
                before, settled = wrap_up._before, wrap_up._settled
                used = {name: settled[name] - before.get(name, _ZERO) for name in block if name in settled}
                self.parent._book_settled(used)
                if "steps" in block:
                    # Each step of the wrap-up has been moved from the block to what is spent.
                    block["steps"] -= wrap_up.steps - before.get("steps", _ZERO)
            self._keep_above(block, -_ONE)
        self._covers = None
        if wrap_up is not None and wrap_up.steps_free and not wrap_up._closed:
            self.steps += wrap_up.steps
        if self.steps_free and self.parent is not None and not self._closed:
            self.parent.hand_up(self.steps)
        self._closed = True
        self.wake()

    def hand_up(self, steps: int) -> None:
        """Count steps of a lease below that has ended; where this one has ended before it, further up too."""
        self.steps += steps
        if self._closed and self.steps_free and self.parent is not None:
            self.parent.hand_up(steps)

    def _book_settled(self, amounts: Amounts) -> None:
        node: BudgetLease | None = self
        while node is not None:
            for name, value in amounts.items():
                node._settled[name] = node._settled.get(name, _ZERO) + value
            amounts = node._uncovered(amounts)
            node = node.parent


def _affordable(money: Decimal, read: int, most: int, cost_of: Callable[[int, int], Decimal]) -> int:
    """The most output tokens that `money` pays for besides the input; 0 when it pays for none."""
    if cost_of(read, most) <= money:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost_of(read, middle) <= money:
            low = middle
        else:
            high = middle - 1
    return low
