"""Budgets as values, and the tree of leases."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Budget, errors, step
from noetic_py.core.allowance import Remaining
from noetic_py.core.budget import (
    NO_USAGE,
    NOTHING_USED,
    BudgetLease,
    Reservation,
    TokenUsage,
    Usage,
    _affordable,
    amounts_of,
)

pytestmark = pytest.mark.anyio

COUNTS = ("steps", "model_calls", "tool_calls", "input_tokens", "cached_input_tokens", "output_tokens", "tokens")


@step
async def wrap(x: object) -> str:
    return "wrapped"


def usage(tokens: int = 0, cost: str | None = None) -> Usage:
    return Usage(TokenUsage(tokens), None if cost is None else Decimal(cost))


def flat(price: str = "1") -> Callable[[int, int], Decimal]:
    return lambda read, written: Decimal(price)


def per_token(read: int, written: int) -> Decimal:
    return Decimal(read + written)


def numbers(*values: Any) -> tuple[Any, ...]:
    """Whole numbers stand for the amounts that they equal."""
    return values


def settled(lease: BudgetLease, name: str) -> Decimal:
    return lease._settled.get(name, Decimal(0))


def held(lease: BudgetLease, name: str) -> Decimal:
    return lease._held.get(name, Decimal(0))


def kept(lease: BudgetLease, name: str) -> Decimal:
    return lease._kept.get(name, Decimal(0))


# -------------------------------------------------------------------------------------------------------- token usage


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=6, max_size=6))
def test_parts_that_nobody_reported_stay_unknown(parts: list[int | None]) -> None:
    a = TokenUsage(1, 2, *parts[:3])
    b = TokenUsage(3, 4, *parts[3:])
    found = a + b
    assert (found.input, found.output, found.total) == (4, 6, 10)
    got = (found.cached_input, found.cache_write, found.reasoning)
    for one, other, both in zip(parts[:3], parts[3:], got, strict=True):
        assert both == (None if one is None and other is None else (one or 0) + (other or 0))


def test_what_a_usage_means_in_dimensions() -> None:
    found = amounts_of(Usage(TokenUsage(5, 3, cached_input=2), Decimal("0.5")))
    assert found == {
        "input_tokens": 5,
        "output_tokens": 3,
        "tokens": 8,
        "cached_input_tokens": 2,
        "cost": Decimal("0.5"),
    }
    assert amounts_of(NOTHING_USED) == dict.fromkeys(found, 0)


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("name", [*COUNTS, "depth"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "3", float("nan"), float("inf"), Decimal(3)])
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Budget(**{name: value})
    assert caught.value.code == "budget"
    assert name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "value", [-1, "-0.01", float("nan"), float("inf"), "-inf", "NaN", "sNaN", "much", True, object()]
)
def test_costs_are_finite_amounts(value: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Budget(cost=value)
    assert caught.value.code == "budget"


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), True, "3", Decimal(1)])
def test_seconds_are_finite_numbers(value: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Budget(seconds=value)
    assert caught.value.code == "budget"


def test_seconds_that_no_float_can_hold() -> None:
    with pytest.raises(errors.ConfigError):
        Budget(seconds=10**400)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.5", None])
def test_warn_at_is_a_fraction(value: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Budget(warn_at=value)
    assert caught.value.code == "budget"


@pytest.mark.parametrize("value", [{"search": -1}, {"search": True}, {"search": "3"}, ["search"], 3])
def test_per_tool_is_counts_by_name(value: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Budget(per_tool=value)
    assert caught.value.code == "budget"


def test_a_wrap_up_needs_a_reserve_that_the_budget_has() -> None:
    wrong: list[dict[str, Any]] = [
        {"wrap_up": wrap},
        {"wrap_up": 3, "reserve": Budget(cost=1)},
        {"wrap_up": wrap, "reserve": 3},
        {"cost": 1, "wrap_up": wrap, "reserve": Budget(cost=2)},
        {"per_tool": {"search": 1}, "wrap_up": wrap, "reserve": Budget(per_tool={"search": 2})},
        {"seconds": 1.0, "wrap_up": wrap, "reserve": Budget(seconds=2.0)},
    ]
    for options in wrong:
        with pytest.raises(errors.ConfigError) as caught:
            Budget(**options)
        assert caught.value.code == "budget"
    # A dimension that the budget leaves open can be kept all the same.
    assert Budget(cost=1, wrap_up=wrap, reserve=Budget(tokens=100)).reserve is not None
    assert Budget(cost=1, reserve=Budget(cost=1)).wrap_up is None


@given(st.floats(0, 1e6, allow_nan=False))
def test_a_float_means_its_decimal_text(value: float) -> None:
    assert Budget(cost=value).limits["cost"] == Decimal(str(value))


def test_what_a_budget_shows() -> None:
    budget = Budget(steps=3, cost="0.50", seconds=2, depth=1, per_tool={"search": 4, "fetch": None})  # type: ignore[dict-item] # None limits nothing
    assert repr(budget) == "Budget(steps=3, cost=0.50, per_tool:search=4, seconds=2.0, depth=1)"
    assert budget.per_tool == {"search": 4}
    assert repr(Budget()) == "Budget()"
    assert Budget(cost=Decimal("0.10")).limits["cost"] == Decimal("0.10")


# ------------------------------------------------------------------------------------------------------------- counts


def test_steps_are_counted_at_every_lease_and_refused_at_any() -> None:
    root = BudgetLease(Budget(steps=3))
    middle = BudgetLease(None, root)
    leaf = BudgetLease(Budget(steps=9), middle)
    leaf.take_step(counted=False)
    for _ in range(3):
        leaf.take_step()
    with pytest.raises(errors.BudgetExceeded) as caught:
        leaf.take_step()
    assert (caught.value.dimension, caught.value.limit, caught.value.settled) == ("steps", 3, 3)
    # What was refused is counted nowhere.
    assert [lease.steps for lease in (root, middle, leaf)] == [3, 3, 3]
    with pytest.raises(errors.BudgetExceeded):
        root.take_step()


def test_steps_that_nobody_limits_are_handed_up_when_a_lease_ends() -> None:
    root = BudgetLease(Budget(cost=1))
    child = BudgetLease(None, root)
    limited = BudgetLease(Budget(steps=5), child)
    for _ in range(3):
        limited.take_step()
    child.take_step()
    limited.close()
    child.close()
    root.take_step()
    assert (root.steps, child.steps, limited.steps) == (5, 4, 3)


def test_tool_calls_are_counted_by_tool() -> None:
    root = BudgetLease(Budget(tool_calls=3))
    leaf = BudgetLease(Budget(per_tool={"search": 1}), root)
    leaf.take_tool_call("search")
    with pytest.raises(errors.BudgetExceeded) as caught:
        leaf.take_tool_call("search")
    assert caught.value.dimension == "per_tool:search"
    leaf.take_tool_call("fetch")
    leaf.take_tool_call("fetch")
    with pytest.raises(errors.BudgetExceeded) as caught:
        leaf.take_tool_call("fetch")
    assert caught.value.dimension == "tool_calls"
    assert (root.tool_calls, leaf.tool_calls) == (3, 3)
    free = BudgetLease(None)
    free.take_tool_call("search")
    assert free.tool_calls == 1


def test_depth_is_counted_from_where_a_lease_begins() -> None:
    root = BudgetLease(Budget(depth=3))
    inner = BudgetLease(Budget(depth=1), root, depth=1)
    inner.enter_depth(2)
    with pytest.raises(errors.BudgetExceeded) as caught:
        inner.enter_depth(3)
    assert (caught.value.dimension, caught.value.limit, caught.value.settled) == ("depth", 1, 1)
    root.enter_depth(3)
    with pytest.raises(errors.BudgetExceeded):
        BudgetLease(None, root, depth=3).enter_depth(4)


def test_what_a_child_elsewhere_has_used_is_counted_in_its_run_alone() -> None:
    above = BudgetLease(None)
    own = BudgetLease(None, above)
    inner = BudgetLease(Budget(tool_calls=9), own)
    inner.charge(Usage(TokenUsage(3, 1)), 2, ["look"], own)
    inner.close()
    own.close()
    counted = [(each.steps, each.tool_calls, each.tokens.total) for each in (inner, own, above)]
    assert counted == [(2, 1, 4), (2, 1, 4), (0, 0, 0)]


def test_the_depth_that_is_left_is_that_of_the_tightest_lease() -> None:
    inner = BudgetLease(Budget(depth=1), BudgetLease(Budget(depth=3)), depth=1)
    shown = inner.remaining(0.0, 2)
    assert (shown.depth, shown.limit.depth, shown.used.depth) == (0, 1, 1)


# ------------------------------------------------------------------------------------------------------- reservations


async def test_where_nothing_is_limited_only_the_meters_run() -> None:
    root = BudgetLease(None)
    leaf = BudgetLease(Budget(seconds=3), root)
    assert leaf.free
    reservation = await leaf.reserve(max_output=7)
    assert (reservation.max_output, reservation.amounts) == (7, {})
    reservation.settle(Usage(TokenUsage(3, 4), Decimal("0.1")))
    reservation.settle(Usage(TokenUsage(9, 9), Decimal(9)))
    again = await leaf.reserve()
    again.settle(NOTHING_USED)
    assert (root.calls, leaf.calls) == (2, 2)
    assert root.tokens == leaf.tokens == TokenUsage(3, 4)
    assert root.cost == leaf.cost == Decimal("0.1")
    assert not leaf.limited("cost", "tokens")


async def test_a_reservation_is_held_up_to_the_root_and_settled_once() -> None:
    root = BudgetLease(Budget(cost=5, tokens=1000))
    leaf = BudgetLease(Budget(model_calls=2), root)
    assert leaf.limited("cost")
    reservation = await leaf.reserve(input_tokens=10, max_output=20, cost_of=flat("2"))
    for lease in (root, leaf):
        assert (held(lease, "cost"), held(lease, "tokens"), settled(lease, "model_calls")) == numbers(2, 30, 1)
    reservation.settle(Usage(TokenUsage(10, 5, cached_input=4), Decimal("1.5")))
    reservation.settle(Usage(TokenUsage(10, 5), Decimal(3)))
    for lease in (root, leaf):
        assert not any(lease._held.values())
        assert (settled(lease, "cost"), settled(lease, "tokens")) == numbers(Decimal("1.5"), 15)
        assert settled(lease, "cached_input_tokens") == 4
        assert lease.calls == 1


async def test_a_provider_may_report_more_than_was_reserved_and_the_next_call_is_refused() -> None:
    lease = BudgetLease(Budget(tokens=100))
    reservation = await lease.reserve(input_tokens=10, max_output=20)
    reservation.settle(usage(500))
    assert settled(lease, "tokens") == 500
    with pytest.raises(errors.BudgetExceeded) as caught:
        await lease.reserve(input_tokens=1)
    assert (caught.value.limit, caught.value.settled, caught.value.requested) == (100, 500, 2)


async def test_what_can_never_fit_is_refused_though_others_are_in_flight() -> None:
    lease = BudgetLease(Budget(cost=3))
    first = await lease.reserve(cost_of=flat("2"))
    with pytest.raises(errors.BudgetExceeded) as caught:
        await lease.reserve(cost_of=flat("4"))
    assert (caught.value.dimension, caught.value.limit, caught.value.requested) == ("cost", 3, 4)
    first.settle(NOTHING_USED)


@pytest.mark.parametrize(
    ("budget", "read", "cost_of", "cap", "most"),
    [
        (Budget(tokens=100), 30, None, None, 70),
        (Budget(output_tokens=40), 30, None, None, 40),
        (Budget(tokens=100, output_tokens=40), 30, None, 25, 25),
        (Budget(cost=100), 30, per_token, None, 70),
        (Budget(cost=100), 30, per_token, 50, 50),
        (Budget(cost=100), 30, flat("1"), 50, 50),
        (Budget(input_tokens=100), 30, None, None, None),
        (Budget(tokens=100), 99, None, None, 1),
    ],
)
async def test_output_is_limited_to_what_is_left(
    budget: Budget, read: int, cost_of: Callable[[int, int], Decimal] | None, cap: int | None, most: int | None
) -> None:
    for lease in (BudgetLease(budget), BudgetLease(None, BudgetLease(budget))):
        reservation = await lease.reserve(input_tokens=read, cost_of=cost_of, output_cap=cap)
        assert reservation.max_output == most
        reservation.settle(NOTHING_USED)


async def test_a_budget_that_is_spent_is_refused_and_not_asked_for_nothing() -> None:
    for budget, cost_of in ((Budget(tokens=30), None), (Budget(output_tokens=0), None), (Budget(cost=30), per_token)):
        with pytest.raises(errors.BudgetExceeded):
            await BudgetLease(budget).reserve(input_tokens=30, cost_of=cost_of)
    with pytest.raises(errors.BudgetExceeded):
        await BudgetLease(Budget(model_calls=0)).reserve()


# ------------------------------------------------------------------------------------------------------------ waiting


async def waiting(lease: BudgetLease) -> None:
    """Come back when everybody who can go on has gone on, while something is in flight."""
    await anyio.wait_all_tasks_blocked()
    assert any(lease._held.values())


async def test_a_request_waits_for_what_calls_in_flight_may_give_back() -> None:
    root = BudgetLease(Budget(cost=3))
    leaf = BudgetLease(None, root)
    first = await leaf.reserve(cost_of=flat("2"))
    got: list[Reservation] = []

    async def second() -> None:
        got.append(await BudgetLease(None, root).reserve(cost_of=flat("2")))

    async with anyio.create_task_group() as group:
        group.start_soon(second)
        await waiting(root)
        assert not got
        first.settle(usage(cost="1"))
    assert held(root, "cost") == 2
    got[0].settle(usage(cost="2"))
    assert (settled(root, "cost"), held(root, "cost")) == numbers(3, 0)


async def test_a_request_that_waited_is_refused_when_nothing_came_back() -> None:
    lease = BudgetLease(Budget(cost=3))
    first = await lease.reserve(cost_of=flat("2"))
    caught: list[errors.BudgetExceeded] = []

    async def second() -> None:
        with pytest.raises(errors.BudgetExceeded) as refused:
            await lease.reserve(cost_of=flat("2"))
        caught.append(refused.value)

    async with anyio.create_task_group() as group:
        group.start_soon(second)
        await waiting(lease)
        first.settle(usage(cost="2"))
    assert (caught[0].settled, caught[0].requested) == (2, 2)


async def test_requests_that_wait_are_served_in_the_order_in_which_they_came() -> None:
    lease = BudgetLease(Budget(cost=1))
    order: list[int] = []

    async def one(index: int) -> None:
        reservation = await lease.reserve(cost_of=flat("1"))
        order.append(index)
        await checkpoint()
        reservation.settle(NOTHING_USED)

    first = await lease.reserve(cost_of=flat("1"))
    async with anyio.create_task_group() as group:
        for index in range(8):
            group.start_soon(one, index)
            await anyio.wait_all_tasks_blocked()
        first.settle(NOTHING_USED)
    assert order == list(range(8))


async def test_a_request_that_waits_is_not_overtaken_by_smaller_ones_for_ever() -> None:
    lease = BudgetLease(Budget(cost=10))
    order: list[str] = []

    async def large() -> None:
        reservation = await lease.reserve(cost_of=flat("10"))
        order.append("large")
        reservation.settle(NOTHING_USED)

    async def small() -> None:
        reservation = await lease.reserve(cost_of=flat("6"))
        order.append("small")
        await checkpoint()
        reservation.settle(NOTHING_USED)

    first = await lease.reserve(cost_of=flat("6"))
    async with anyio.create_task_group() as group:
        group.start_soon(large)
        await waiting(lease)
        for _ in range(20):
            group.start_soon(small)
        await anyio.wait_all_tasks_blocked()
        first.settle(NOTHING_USED)
    assert order[0] == "large"


async def test_a_request_that_would_fit_does_not_overtake_one_that_waits_for_the_same_budget() -> None:
    root = BudgetLease(Budget(cost=10))
    order: list[str] = []

    async def one(name: str, lease: BudgetLease, price: str) -> None:
        reservation = await lease.reserve(cost_of=flat(price))
        order.append(name)
        await checkpoint()
        reservation.settle(NOTHING_USED)

    first = await root.reserve(cost_of=flat("6"))
    async with anyio.create_task_group() as group:
        group.start_soon(one, "large", BudgetLease(None, root), "6")
        await waiting(root)
        group.start_soon(one, "small", BudgetLease(None, root), "2")
        await waiting(root)
        assert order == []
        first.settle(NOTHING_USED)
    assert order == ["large", "small"]


async def test_a_request_does_not_wait_behind_one_that_waits_for_another_budget() -> None:
    root = BudgetLease(Budget(cost=10))
    narrow, wide = BudgetLease(Budget(cost=3), root), BudgetLease(Budget(cost=9), root)
    order: list[str] = []

    async def one(name: str, lease: BudgetLease) -> None:
        reservation = await lease.reserve(cost_of=flat("2"))
        order.append(name)
        reservation.settle(NOTHING_USED)

    first = await narrow.reserve(cost_of=flat("2"))
    async with anyio.create_task_group() as group:
        group.start_soon(one, "narrow", narrow)
        await waiting(root)
        group.start_soon(one, "wide", wide)
        await waiting(root)
        assert order == ["wide"]
        first.settle(NOTHING_USED)
    assert order == ["wide", "narrow"]


async def test_a_waiting_request_that_is_cancelled_leaves_nothing() -> None:
    lease = BudgetLease(Budget(cost=1))
    first = await lease.reserve(cost_of=flat("1"))
    got: list[Reservation] = []

    async def one() -> None:
        got.append(await lease.reserve(cost_of=flat("1")))

    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as doomed:
            doomed.start_soon(one)
            await waiting(lease)
            doomed.cancel_scope.cancel()
        group.start_soon(one)
        await waiting(lease)
        assert held(lease, "cost") == 1
        first.settle(NOTHING_USED)
    assert len(got) == 1
    got[0].settle(usage(cost="1"))
    assert (held(lease, "cost"), settled(lease, "cost"), lease.calls) == numbers(0, 1, 2)


async def test_a_waiting_request_that_is_cancelled_as_it_is_woken_does_not_keep_its_turn() -> None:
    lease = BudgetLease(Budget(cost=1))
    first = await lease.reserve(cost_of=flat("1"))
    got: list[str] = []

    async def one(name: str) -> None:
        reservation = await lease.reserve(cost_of=flat("1"))
        got.append(name)
        reservation.settle(NOTHING_USED)

    async with anyio.create_task_group() as group:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(one, "doomed")
                await anyio.wait_all_tasks_blocked()
                group.start_soon(one, "patient")
                await anyio.wait_all_tasks_blocked()
                first.settle(NOTHING_USED)
                doomed.cancel_scope.cancel()
    assert "patient" in got
    assert held(lease, "cost") == 0


# ----------------------------------------------------------------------------------------------------------- warnings


def test_a_warning_is_given_once_for_each_dimension() -> None:
    seen: list[tuple[str, Decimal, Decimal]] = []

    def note(dimension: str, spent: Decimal, limit: Decimal) -> None:
        seen.append((dimension, spent, limit))

    root = BudgetLease(Budget(steps=4, cost=10, warn_at=0.5))
    leaf = BudgetLease(Budget(steps=100, tokens=9), root, on_warning=note)
    for _ in range(4):
        leaf.take_step()
    for _ in range(6):
        leaf.book({"cost": Decimal(1), "tokens": Decimal(0)}, NO_USAGE)
    assert seen == [numbers("steps", 2, 4), numbers("cost", 5, 10)]
    silent = BudgetLease(Budget(steps=1))
    silent.take_step()


# ------------------------------------------------------------------------------------------------------ what is left


async def test_what_is_left_is_what_the_tightest_lease_leaves() -> None:
    root = BudgetLease(Budget(steps=10, cost=5, tokens=100, seconds=50), now=100.0)
    leaf = BudgetLease(
        Budget(steps=4, model_calls=3, tool_calls=2, cost=9, input_tokens=80, output_tokens=30, seconds=90),
        root,
        now=110.0,
    )
    leaf.take_step()
    leaf.take_tool_call("search")
    reservation = await leaf.reserve(input_tokens=10, max_output=20, cost_of=flat("2"))
    assert leaf.remaining(120.0) == Remaining(
        steps=3,
        model_calls=2,
        tool_calls=1,
        tokens=70,
        input_tokens=70,
        output_tokens=10,
        cost=Decimal(3),
        seconds=30.0,
    )
    shown = leaf.remaining(120.0)
    assert (shown.limit.steps, shown.limit.cost, shown.limit.tokens, shown.limit.seconds) == (4, Decimal(5), 100, 50.0)
    # What is reserved is not used.
    assert (shown.used.steps, shown.used.model_calls, shown.used.tokens, shown.used.seconds) == (1, 1, 0, 20.0)
    assert leaf.remaining(1000.0).seconds == 0.0
    reservation.settle(NOTHING_USED)
    assert BudgetLease(None).remaining(0.0) == Remaining()


@pytest.mark.parametrize("seed", range(20))
def test_limit_used_and_remaining_of_every_dimension_fit_together(seed: int) -> None:
    draw = random.Random(seed)
    node: BudgetLease | None = None
    for _ in range(draw.randint(1, 3)):
        limits: dict[str, Any] = {name: draw.randint(30, 90) for name in (*COUNTS, "cost") if draw.random() < 0.5}
        per_tool = {name: draw.randint(5, 9) for name in ("look", "search") if draw.random() < 0.5}
        seconds, depth = draw.choice([None, 90.0, 200.0]), draw.choice([None, 3, 9])
        budget = Budget(**limits, per_tool=per_tool, seconds=seconds, depth=depth)
        node = BudgetLease(budget, node, now=float(draw.randint(0, 9)))
    assert node is not None
    for _ in range(draw.randint(0, 4)):
        node.take_step()
        node.take_tool_call(draw.choice(["look", "search"]))
        tokens = TokenUsage(draw.randint(0, 3), draw.randint(0, 3), cached_input=1)
        node.book(amounts_of(Usage(tokens, Decimal(1))), tokens)
    shown = node.remaining(20.0, 2, {"depth": 2, **node.used()})
    for name in (*COUNTS, "cost", "seconds", "depth"):
        limit, used, left = (getattr(each, name) for each in (shown.limit, shown.used, shown))
        assert (limit is None) == (left is None), (seed, name)
        assert left is None or limit == pytest.approx(used + left), (seed, name)
    assert {name: shown.used.per_tool[name] + left for name, left in shown.per_tool.items()} == shown.limit.per_tool
    assert shown.used.tokens == shown.used.input_tokens + shown.used.output_tokens, seed


def test_a_wrap_up_is_shown_the_time_of_its_reserve() -> None:
    lease = BudgetLease(Budget(seconds=30, wrap_up=wrap, reserve=Budget(seconds=5)), now=100.0)
    assert lease.remaining(110.0).limit.seconds == 25.0
    shown = lease.open_wrap_up(130.0).remaining(131.0)
    assert (shown.seconds, shown.limit.seconds, shown.used.seconds) == (4.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("own", "above", "deadline"),
    [
        (None, None, None),
        (Budget(seconds=5), None, 15.0),
        (None, Budget(seconds=5), 5.0),
        (Budget(seconds=1), Budget(seconds=50), 11.0),
        (Budget(seconds=100), Budget(seconds=50), 50.0),
        (Budget(seconds=9, wrap_up=wrap, reserve=Budget(seconds=2)), None, 17.0),
        (Budget(seconds=9, wrap_up=wrap, reserve=Budget(cost=2)), None, 19.0),
    ],
)
def test_the_nearest_deadline_holds(own: Budget | None, above: Budget | None, deadline: float | None) -> None:
    parent = BudgetLease(above, now=0.0)
    assert BudgetLease(own, parent, now=10.0).deadline == deadline


# ------------------------------------------------------------------------------------------------------- the wrap-up


def wrapped(**limits: Any) -> Budget:
    """A budget that keeps 2 of everything."""
    block: dict[str, Any] = dict.fromkeys(limits, 2)
    return Budget(**limits, wrap_up=wrap, reserve=Budget(**block))


async def spend(lease: BudgetLease, cost: str) -> None:
    (await lease.reserve(cost_of=flat(cost))).settle(usage(1, cost))


async def test_a_block_is_held_above_until_its_lease_ends() -> None:
    root = BudgetLease(Budget(cost=10))
    middle = BudgetLease(None, root)
    lease = BudgetLease(wrapped(cost=6), middle)
    lease.keep_reserve()
    assert (kept(root, "cost"), kept(middle, "cost"), kept(lease, "cost")) == numbers(2, 2, 0)
    await spend(lease, "4")
    with pytest.raises(errors.BudgetExceeded):
        await spend(lease, "1")
    await spend(root, "4")
    with pytest.raises(errors.BudgetExceeded):
        await spend(root, "1")
    lease.close()
    lease.close()
    assert (kept(root, "cost"), kept(middle, "cost")) == numbers(0, 0)
    await spend(root, "2")
    assert settled(root, "cost") == root.cost == 10


async def test_what_a_wrap_up_uses_of_its_block_is_booked_once() -> None:
    root = BudgetLease(Budget(cost=10, model_calls=10))
    lease = BudgetLease(wrapped(cost=6), root)
    lease.keep_reserve()
    await spend(lease, "4")
    wrap_up = lease.open_wrap_up(0.0)
    await spend(wrap_up, "1")
    # Its cost is in the block that is held above, its call is not.
    assert (settled(root, "cost"), kept(root, "cost"), settled(root, "model_calls")) == numbers(4, 2, 2)
    assert (root.cost, lease.cost, root.tokens.total) == numbers(5, 5, 2)
    with pytest.raises(errors.BudgetExceeded):
        await spend(wrap_up, "2")
    await spend(wrap_up, "1")
    lease.close(wrap_up)
    assert (settled(root, "cost"), kept(root, "cost"), held(root, "cost"), root.cost) == numbers(6, 0, 0, 6)
    assert settled(root, "model_calls") == 3


async def test_steps_and_tools_of_a_wrap_up_come_out_of_the_block() -> None:
    root = BudgetLease(Budget(steps=10, tool_calls=10))
    lease = BudgetLease(wrapped(steps=5, tool_calls=5), root)
    lease.keep_reserve()
    for _ in range(3):
        lease.take_step()
        lease.take_tool_call("search")
    with pytest.raises(errors.BudgetExceeded):
        lease.take_step()
    with pytest.raises(errors.BudgetExceeded):
        lease.take_tool_call("search")
    # What others may take is all but the block.
    for _ in range(5):
        root.take_step()
        root.take_tool_call("fetch")
    with pytest.raises(errors.BudgetExceeded):
        root.take_step()
    assert root.remaining(0.0).steps == 0
    wrap_up = lease.open_wrap_up(0.0)
    wrap_up.take_step()
    wrap_up.take_tool_call("search")
    lease.close(wrap_up)
    assert (root.steps, kept(root, "steps"), root.remaining(0.0).steps) == numbers(9, 0, 1)
    assert (settled(root, "tool_calls"), kept(root, "tool_calls"), root.tool_calls) == numbers(9, 0, 9)
    root.take_step()
    with pytest.raises(errors.BudgetExceeded):
        root.take_step()


@pytest.mark.parametrize("name", ["cost", "tokens", "steps", "tool_calls"])
def test_a_block_that_does_not_fit_above_is_refused_and_holds_nothing(name: str) -> None:
    root = BudgetLease(Budget(**{name: 1}))  # type: ignore[arg-type] # the name of any dimension
    lease = BudgetLease(wrapped(**{name: 9}), BudgetLease(None, root))
    with pytest.raises(errors.BudgetExceeded) as caught:
        lease.keep_reserve()
    assert caught.value.dimension == name
    lease.close()
    assert not any(root._kept.values())


def test_a_block_of_steps_that_were_taken_is_refused() -> None:
    root = BudgetLease(Budget(steps=5))
    for _ in range(4):
        root.take_step()
    lease = BudgetLease(wrapped(steps=5), root)
    with pytest.raises(errors.BudgetExceeded) as caught:
        lease.keep_reserve()
    assert (caught.value.dimension, caught.value.settled) == ("steps", 4)


async def test_a_block_of_a_dimension_that_only_the_reserve_limits() -> None:
    root = BudgetLease(Budget(cost=10))
    lease = BudgetLease(Budget(model_calls=1, wrap_up=wrap, reserve=Budget(cost=3, seconds=5.0)), root)
    lease.keep_reserve()
    assert kept(root, "cost") == 3
    await spend(lease, "1")
    wrap_up = lease.open_wrap_up(20.0)
    assert wrap_up.deadline == 25.0
    lease.close(wrap_up)
    assert kept(root, "cost") == 0


async def test_a_wrap_up_at_the_root_has_nobody_to_book_with() -> None:
    lease = BudgetLease(wrapped(cost=6))
    lease.keep_reserve()
    await spend(lease, "4")
    wrap_up = lease.open_wrap_up(0.0)
    await spend(wrap_up, "2")
    lease.close(wrap_up)
    assert settled(lease, "cost") == lease.cost == 6


async def test_blocks_within_blocks_are_kept_and_booked_once() -> None:
    root = BudgetLease(Budget(cost=20))
    outer = BudgetLease(Budget(cost=12, wrap_up=wrap, reserve=Budget(cost=8)), root)
    outer.keep_reserve()
    await spend(outer, "4")
    outer_wrap = outer.open_wrap_up(0.0)
    inner = BudgetLease(Budget(cost=5, wrap_up=wrap, reserve=Budget(cost=2)), outer_wrap)
    inner.keep_reserve()
    # The inner block lies within the outer one, so the root keeps no more for it.
    assert (kept(outer_wrap, "cost"), kept(root, "cost")) == numbers(2, 8)
    await spend(inner, "3")
    inner_wrap = inner.open_wrap_up(0.0)
    await spend(inner_wrap, "2")
    inner.close(inner_wrap)
    assert (settled(outer_wrap, "cost"), settled(root, "cost"), kept(root, "cost")) == numbers(5, 4, 8)
    outer.close(outer_wrap)
    assert (settled(root, "cost"), kept(root, "cost"), root.cost) == numbers(9, 0, 9)


def test_a_step_of_a_wrap_up_that_does_not_begin_goes_back_into_the_block() -> None:
    root = BudgetLease(Budget(steps=9))
    lease = BudgetLease(Budget(steps=6, wrap_up=wrap, reserve=Budget(steps=4)), root)
    lease.keep_reserve()
    wrap_up = lease.open_wrap_up(0.0)
    inner = BudgetLease(None, wrap_up)
    for _ in range(2):
        inner.take_step()
    assert kept(root, "steps") == 2
    assert (root.steps, wrap_up.steps) == (2, 2)
    inner.give_back_step()
    assert kept(root, "steps") == 3
    assert (root.steps, lease.steps, wrap_up.steps, inner.steps) == (1, 1, 1, 1)
    lease.close(wrap_up)
    assert kept(root, "steps") == 0
    assert root.steps == 1


def test_leases_without_a_budget_open_and_close_too() -> None:
    lease = BudgetLease(None)
    lease.keep_reserve()
    wrap_up = lease.open_wrap_up(0.0)
    wrap_up.take_step()
    lease.close(wrap_up)
    assert (wrap_up.deadline, lease.steps) == (None, 1)


# ------------------------------------------------------------------------------------------------------------- random


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), max_size=5), st.booleans())
async def test_a_lease_that_is_charged_again_stands_where_the_first_one_stood(
    calls: list[tuple[int, int, int]], limited: bool
) -> None:
    budget = Budget(steps=50, cost=90, tokens=900) if limited else Budget(cost=90)
    first, again = (BudgetLease(Budget(cost=99)), BudgetLease(Budget(cost=99)))
    child, charged = BudgetLease(budget, first), BudgetLease(budget, again)
    for read, written, steps in calls:
        for _ in range(steps):
            child.take_step()
        child.take_tool_call("search")
        used = Usage(TokenUsage(read, written), Decimal(read) if read else None, model_calls=1)
        (await child.reserve(input_tokens=read, max_output=written, cost_of=per_token)).settle(used)
        for lease in (again, charged):
            lease.recover(used, steps, None)
            lease.recover(NOTHING_USED, 0, "search")
    assert (charged.used(), charged.steps, charged.tokens) == (child.used(), child.steps, child.tokens)
    assert charged.remaining(0.0) == child.remaining(0.0)
    child.close()
    charged.close()
    assert (again.used(), again.steps, again.calls) == (first.used(), first.steps, first.calls)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 4), st.integers(1, 30))
def test_money_buys_as_much_output_as_it_can_pay_for(money: int, read: int, price: int, most: int) -> None:
    found = _affordable(Decimal(money), read, most, lambda read, written: Decimal(read + price * written))
    assert found == max((written for written in range(most + 1) if read + price * written <= money), default=0)


@given(st.integers(0, 2**32))
async def test_random_trees_of_leases_add_up(seed: int) -> None:
    chance = random.Random(seed)
    root = BudgetLease(
        Budget(cost=chance.randint(0, 30), model_calls=chance.randint(0, 30), tokens=chance.randint(0, 500))
    )
    leases = [root]
    for _ in range(chance.randint(0, 5)):
        budget = Budget(cost=chance.randint(0, 20)) if chance.random() < 0.5 else None
        leases.append(BudgetLease(budget, chance.choice(leases)))
    paid, tokens, calls = Decimal(0), 0, 0
    open_calls: list[Reservation] = []
    for _ in range(40):
        if open_calls and chance.random() < 0.5:
            reservation = open_calls.pop(chance.randrange(len(open_calls)))
            used = Usage(
                TokenUsage(chance.randint(0, int(reservation.amounts["input_tokens"]))),
                Decimal(chance.randint(0, int(reservation.amounts["cost"]))),
            )
            reservation.settle(used)
            paid, tokens = paid + (used.cost or 0), tokens + used.tokens.total
            continue
        with anyio.move_on_after(0) as scope:
            try:
                open_calls.append(
                    await chance.choice(leases).reserve(
                        input_tokens=chance.randint(1, 50), max_output=1, cost_of=flat(str(chance.randint(0, 5)))
                    )
                )
                calls += 1
            except errors.BudgetExceeded:
                pass
        assert not scope.cancelled_caught or open_calls, "waited though nothing was in flight"
        for lease in leases:
            for name, limit in lease.limits.items():
                assert settled(lease, name) + held(lease, name) <= limit
    for reservation in open_calls:
        reservation.settle(NOTHING_USED)
    assert not any(value for lease in leases for value in lease._held.values())
    assert (settled(root, "cost"), root.cost) == (paid, paid)
    assert (settled(root, "tokens"), root.tokens.total) == numbers(tokens, tokens)
    assert (settled(root, "model_calls"), root.calls) == numbers(calls, calls)
