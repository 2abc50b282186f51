"""How a pool of tokens is shared out between layers and history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.memory import MemoryLayer
from noetic_py.memory.layer import budget_of
from noetic_py.memory.projector import DEFAULT_MAXIMUM, Allocation, Demand, allocate, allocate_unknown


class Bare(MemoryLayer[None]):
    """A layer that has settings only."""


@pytest.mark.clause("002-49c")
def test_minimums_come_first_then_six_tenths_in_equal_parts() -> None:
    shared = allocate(1100, [Demand("a", 100, 1100), Demand("b", 0, 500)])
    # 1000 are left, 600 of them to share, and each has room for its half.
    assert shared.layers == {"a": 100 + 300, "b": 300}
    assert shared.history == 400
    assert shared.total == 1100


@pytest.mark.clause("002-49b")
def test_the_earlier_layers_get_their_minimum_when_there_is_too_little() -> None:
    shared = allocate(100, [Demand("a", 60, 80), Demand("b", 60, 80), Demand("c", 60, 80)])
    assert shared.layers == {"a": 60, "b": 40, "c": 0}
    assert shared.history == 0


@pytest.mark.clause("002-49d")
def test_what_no_layer_can_use_goes_to_the_history() -> None:
    shared = allocate(10_000, [Demand("a", 0, 100), Demand("b", 50, 50)])
    assert shared.layers == {"a": 100, "b": 50}
    assert shared.history == 9850


def test_a_layer_without_a_maximum_takes_the_whole_share() -> None:
    assert allocate(1000, [Demand("a")]) == Allocation({"a": 600}, 400)


def test_layers_without_a_maximum_share_alike() -> None:
    shared = allocate(1000, [Demand("a"), Demand("b"), Demand("c", 0, 300)])
    assert shared.layers == {"a": 200, "b": 200, "c": 200}


def test_a_small_maximum_is_not_cut_for_layers_that_may_take_more() -> None:
    asked = [Demand("small", 0, 60), *(Demand(str(number)) for number in range(7)), Demand("large", 0, 5000)]
    shared = allocate(1000, asked)
    assert shared.layers == {"small": 60, **dict.fromkeys("012", 68), **dict.fromkeys("3456", 67), "large": 68}
    assert allocate(100_000, asked).layers["large"] == 5000


def test_the_first_of_equals_get_what_rounding_leaves() -> None:
    assert allocate(17, [Demand("a", 0, 20), Demand("b", 0, 20), Demand("c", 0, 20)]).layers == {"a": 4, "b": 3, "c": 3}
    assert allocate(17, [Demand("a", 0, 2), Demand("b", 0, 11), Demand("c", 0, 19)]).layers == {"a": 2, "b": 4, "c": 4}


def test_without_layers_the_history_has_everything() -> None:
    assert allocate(500, []) == Allocation({}, 500)


def test_a_pool_below_zero_is_empty() -> None:
    assert allocate(-5, [Demand("a", 10, 20)]) == Allocation({"a": 0}, 0)


def test_an_unknown_window_gives_everybody_the_most_it_asks_for() -> None:
    shared = allocate_unknown([Demand("a", 0, 70), Demand("b"), Demand("c", 9000)])
    assert shared.layers == {"a": 70, "b": DEFAULT_MAXIMUM, "c": 9000}
    assert shared.history is None
    assert shared.total is None


@pytest.mark.clause("002-49e")
@pytest.mark.parametrize(
    ("budget", "demand"),
    [(300, Demand("a", 0, 300)), ((10, 300), Demand("a", 10, 300)), ("auto", Demand("a", 0, None))],
)
def test_a_number_is_the_most_a_layer_wants(budget: Any, demand: Demand) -> None:
    assert Demand("a", *budget_of(Bare(id="a", budget=budget))) == demand


@pytest.mark.parametrize("demand", [(20, 10), (-1, 5), (0, -1)])
def test_a_demand_that_cannot_be(demand: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="layer 'a' asks for"):
        Demand("a", *demand)


def test_a_layer_asks_once() -> None:
    with pytest.raises(ValueError, match="'a' asks twice"):
        allocate(10, [Demand("a"), Demand("a")])


def test_an_allocation_is_not_changed_by_who_gets_it() -> None:
    layers = {"a": 1}
    shared = Allocation(layers, 2)
    layers["a"] = 5
    assert shared.layers["a"] == 1


@st.composite
def demands(draw: st.DrawFn) -> list[Demand]:
    made: list[Demand] = []
    for place in range(draw(st.integers(0, 8))):
        least = draw(st.integers(0, 400))
        made.append(Demand(str(place), least, draw(st.none() | st.integers(least, least + 2000))))
    return made


@given(st.integers(0, 20_000), demands())
def test_shares_keep_the_rules(pool: int, asked: list[Demand]) -> None:
    shared = allocate(pool, asked)
    assert shared.total == pool
    least = sum(demand.minimum for demand in asked)
    rest = max(0, pool - least)
    assert shared.history is not None
    assert shared.history * 10 >= rest * 4
    left = pool
    for demand in asked:
        given_to = shared.layers[demand.layer]
        assert given_to >= min(demand.minimum, left)
        assert demand.maximum is None or given_to <= demand.maximum
        left -= min(demand.minimum, left)
    assert list(shared.layers) == [demand.layer for demand in asked]
    # Equal parts: a layer gets less on top than another only where it has no room for more, but for one of rounding.
    share = rest * 6 // 10
    rooms = {d.layer: share if d.maximum is None else d.maximum - d.minimum for d in asked}
    tops = {d.layer: shared.layers[d.layer] - d.minimum for d in asked}
    if pool >= least:
        assert all(tops[a] >= min(rooms[a], tops[b] - 1) for a in rooms for b in rooms)
