"""The contract of token counters, and the counter in a run."""

import pytest
from noetic_py import Budget, Harness, call_model
from noetic_py.testing import ScriptedModel, TokenCounterContract

from @MODULE@ import Words, plugin

pytestmark = pytest.mark.anyio


class TestWords(TokenCounterContract):
    """What every token counter has to keep."""

    def make(self) -> Words:
        return Words()


async def test_it_counts_for_the_models_of_the_provider() -> None:
    model = ScriptedModel("High water is at noon.", name="@PREFIX@:small")
    async with Harness(model=model, plugins=[plugin]) as harness:
        limit = Budget(input_tokens=7)
        result = await harness.run(call_model(), "When is high water?", budget=limit)
    # Four words, and four tokens of what stands around them.
    assert result.reason == "budget of 7 input_tokens reached: 0 spent, 8 more asked for"
