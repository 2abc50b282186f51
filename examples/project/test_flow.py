"""Tests of the flow: no key, no network, no sleeping."""

import pytest
from noetic_py import Harness

from flow import Report, budget, flow, scripted

pytestmark = pytest.mark.anyio


async def test_the_agent_uses_its_tool() -> None:
    model = scripted()
    async with Harness(model=model) as harness:
        result = await harness.run(flow, "When is high water in Dover?", budget=budget)
    assert result.value == Report(
        "When is high water in Dover?", "High water in Dover is at 06:12 and at 18:40."
    )
    assert result.model_calls == 2
    assert "06:12" in str(model.requests[1].items[-1])


async def test_a_run_goes_on_in_another_process(tmp_path: object) -> None:
    stored = f"sqlite:{tmp_path}/runs.db"
    async with Harness(model=scripted(), checkpoints=stored) as harness:
        first = await harness.run(flow, "When is high water in Dover?", run_id="dover")
    async with Harness(model=scripted(), checkpoints=stored) as harness:
        again = await harness.resume("dover", flow)
    assert again.value == first.value
