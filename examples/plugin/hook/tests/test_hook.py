"""The contract of hooks, and the hook in a run."""

from typing import Any

import pytest
from noetic_py import Harness, call_model, hooks
from noetic_py.testing import HookContract, ScriptedModel

from @MODULE@ import count_answers, plugin

pytestmark = pytest.mark.anyio


class TestCountAnswers(HookContract):
    """What every hook has to keep."""

    def make(self) -> hooks.Hook[Any, Any]:
        return count_answers


async def test_answers_are_counted() -> None:
    model = ScriptedModel("High water is at noon.")
    async with Harness(model=model, plugins=[plugin]) as harness:
        result = await harness.run(call_model(), "When is high water?")
    assert result.state["answers"] == 1
