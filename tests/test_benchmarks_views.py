"""The benchmark of long sessions: what it measures holds for shorter ones too."""

from __future__ import annotations

import pytest

from benchmarks import views
from tests.properties.checks import FULL

pytestmark = pytest.mark.anyio


SHARES = {"none": 0.95, "five": 0.90, "eight": 0.85}


@pytest.mark.parametrize("layers", SHARES if FULL else ["none", "five"])
async def test_a_long_session_uses_the_cache_and_costs_the_same(layers: str) -> None:
    memory = {"none": None, "five": views.Five(), "eight": views.eight(8_000)}[layers]
    measured = await views.measure(memory, 8_000, 100)
    assert (measured.requests, measured.above) == (200, 0)
    assert measured.share >= SHARES[layers]
    # The sampled turns are few, and one may do more than another.
    assert measured.growth <= 1.3


async def test_the_cpu_time_of_early_and_late_turns_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAIRS", 2)
    early, late = await views.cpu(views.Five(), 8_000, 8)
    assert early > 0
    assert late > 0
